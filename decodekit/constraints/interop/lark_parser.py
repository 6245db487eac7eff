r"""The texts that a `lark.Lark` object parses, from its compiled rules, terminals and scanners.

    parser = lark.Lark('start: NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "')
    dk.generate("...", constraint=parser)

    rules      start -> NAME EQUAL NAME
    terminals  NAME [a-z]+    EQUAL =    __IGNORE_0 " ", which is ignored
    ab =c      NAME ab, ignored, EQUAL, NAME c
    a b=c      no text: behind NAME a, ignored, only EQUAL may come
    ab=c       not NAME a and then b=c: behind NAME a, its shadow forbids another letter (see `grammar.longest`)

What the object holds is used, not the text that it was made of: so grammars that were opened, imported, edited or
loaded from a file are all alike. How a text is divided into terminals depends on the lexer:

=====================  ==============================================================================================
``dynamic_complete``   every word of a terminal; of an ignored terminal the longest at its place
``dynamic``            the longest word of each terminal at its place, whatever other terminals have there
``basic``              at each place the first terminal in Lark's order that has a word there, its longest
``contextual``         the same among the terminals that may follow here, by the state of the LALR parser
=====================  ==============================================================================================

The words of a pattern are those that `re.match` finds when nothing follows: of ``/a|ab/`` the word ``a`` alone. In any
text x, a pattern without lookaround finds the longest of its words that x begins with. Proof: let it find m in x, and
let w be a longer word of it that x begins with. Both matches fit into w, where the search prefers w to m. They fit into
x in the same way, so there too it would prefer w to m.

Three things do not go into a mask. A terminal that looks outside of itself (``\b`` at its end), one that different
contexts of a contextual lexer read differently (a keyword, where it is a name elsewhere), and conflicts of an LALR
grammar, which Lark decides for shifting. There the masks allow somewhat more, and the parser itself judges the whole
text before it ends, as a guard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from decodekit.constraints.constraint import Constraint, Guard, Refusal
from decodekit.constraints.explain.special_names import read_whole
from decodekit.constraints.grammar.longest.lexer import Lexer, first_match
from decodekit.constraints.grammar.longest.lexer_frames import lexing_root
from decodekit.constraints.grammar.rules import NO_TEXT, Expression, RuleRef, Rules, Terminal, alternatives, sequence
from decodekit.constraints.interop import letters_of
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.utf8 import charset
from decodekit.constraints.memory_account import on_shortage
from decodekit.constraints.network import Frame
from decodekit.constraints.regex import tree as regex_tree
from decodekit.constraints.regex.regex import Lowering
from decodekit.constraints.regex.syntax import parse as parse_pattern
from decodekit.constraints.regex.tree import Tree
from decodekit.errors import ConstraintError, InvalidConstraintError, UnsupportedSchemaError

if TYPE_CHECKING:
    import lark

Scanner: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""The terminals that a scanner tries, in its order, each with the strings that its words may be instead."""

_NUM_PARSERS: Final = 64
_BYTES_PER_RULE: Final = 4_000


@dataclass(frozen=True, slots=True)
class LarkParser(Constraint):
    """The texts that a parser of Lark parses. The value of a text is the text.

    Attributes:
        rules: the name of each rule, and the symbols of one of its alternatives.
        start: the rule to start from.
        terminals: the name and the pattern of each terminal.
        flags: the letters of the flags of all patterns; see `Regex`.
        ignored: the names of the terminals that are ignored.
        lexer: ``"dynamic_complete"``, ``"dynamic"``, ``"basic"`` or ``"contextual"``.
        scanners: those of the basic lexer, or of each context of the contextual one.
        parser: judges whole texts where the masks allow more than it parses; else None.
    """

    rules: tuple[tuple[str, tuple[str, ...]], ...]
    start: str
    terminals: tuple[tuple[str, str], ...]
    flags: str
    ignored: tuple[str, ...]
    lexer: str
    scanners: tuple[Scanner, ...]
    parser: lark.Lark | None = field(default=None, compare=False, repr=False, metadata={"is_told": False})

    @property
    def num_bytes(self) -> int:
        """About how much memory rules and terminals take."""
        return _BYTES_PER_RULE * (len(self.rules) + len(self.terminals))

    def root(self) -> Frame:
        """The frame of a whole text.

        Raises:
            UnsatisfiableError: there is no text.
            ConstraintError: a pattern is refused, or the terminals are too large together; see `lexing_root`.
        """
        return _root(self)

    def guard(self) -> Guard | None:
        """The parser, where the masks allow more than it parses."""
        return None if self.parser is None else ParserGuard(self.parser)

    def parse(self, text: str) -> str:
        """The text itself.

        Raises:
            ValueError: the parser does not parse it.
        """
        read_whole(self.root(), text)
        refusal = None if self.parser is None else ParserGuard(self.parser).refuses(text.encode())
        if refusal is not None:
            raise ValueError(refusal.message)
        return text


@dataclass(frozen=True, slots=True)
class ParserGuard:
    """Refuses what a parser does not parse."""

    parser: lark.Lark

    def refuses(self, text: bytes) -> Refusal | None:
        """The error of the parser, as a refusal that keeps the text before the token at which it stopped."""
        from lark.exceptions import LarkError

        try:
            self.parser.parse(text.decode())
        except LarkError as error:
            return Refusal(
                _place(error, text), "the whole text", f"the parser refuses it: {str(error).splitlines()[0]}"
            )
        except Exception as error:  # a transformer of the user's, which raises what it likes
            raise ConstraintError(
                f"the parser raised {type(error).__name__}: {error}", at=f"{text.decode()!r:.200}"
            ) from error
        return None


def _place(error: lark.exceptions.LarkError, text: bytes) -> int:
    """The byte at which a parser stopped; the end of the text if it should go on there."""
    place = getattr(error, "pos_in_stream", None)
    is_end = getattr(getattr(error, "token", None), "type", None) == "$END"  # whose place is that of the last token
    return len(text) if is_end or place is None or place < 0 else len(text.decode()[:place].encode())


# --- from a parser ---

_known: WeakKeyDictionary[lark.Lark, LarkParser] = WeakKeyDictionary()


def constraint_of(parser: lark.Lark) -> LarkParser:
    """The texts that a parser parses."""
    known = _known.get(parser)
    if known is None:
        known = _known[parser] = _read(parser)
    return known


def _read(parser: lark.Lark) -> LarkParser:
    _refuse_unknown(parser)
    options, conf = parser.options, parser.lexer_conf
    frontend = parser.parser
    if options.lexer == "basic":
        scanners = [_scanner(frontend.lexer)]
    elif options.lexer == "contextual":
        scanners = list(dict.fromkeys(map(_scanner, frontend.lexer.lexers.values())))
    else:
        scanners = []
    rules = ((str(rule.origin.name), tuple(str(symbol.name) for symbol in rule.expansion)) for rule in parser.rules)
    constraint = LarkParser(
        rules=tuple(dict.fromkeys(rules)),
        start=str(options.start[0]),
        terminals=tuple(sorted((str(one.name), one.pattern.to_regexp()) for one in conf.terminals)),
        flags=letters_of(conf.g_regex_flags),
        ignored=tuple(sorted(map(str, conf.ignore))),
        lexer=options.lexer,
        scanners=tuple(sorted(scanners)),
    )
    is_judged = not _lexical(constraint).is_exact or (options.parser == "lalr" and _has_conflicts(parser))
    return replace(constraint, parser=parser) if is_judged else constraint


def _refuse_unknown(parser: lark.Lark) -> None:
    options = parser.options
    if options.parser is None:
        raise InvalidConstraintError(
            "a Lark with parser=None is a lexer alone: any sequence of tokens is in it", hint='parser="lalr"'
        )
    if len(options.start) != 1:
        raise InvalidConstraintError(
            f"the Lark has several starts, {', '.join(map(repr, options.start))}",
            hint='Lark(..., start="...") with one',
        )
    found = {
        "a postlex such as an Indenter": options.postlex is not None,
        "a lexer class of your own": isinstance(options.lexer, type),
        "lexer_callbacks": bool(parser.lexer_conf.callbacks),
        "_plugins": bool(options._plugins),
        "use_bytes": bool(options.use_bytes),
        "the module regex": bool(options.regex),
    }
    refused = [what for what, is_there in found.items() if is_there]
    if refused:
        raise UnsupportedSchemaError(
            f"a Lark with {' and '.join(refused)} is not supported: its texts cannot be told from its grammar",
            hint="the same Lark without, or Grammar(...) with the text of the grammar",
        )


def _scanner(lexer: Any) -> Scanner:
    """The terminals of a basic lexer of Lark in its order, each with those that its callback gives instead."""
    scanner = lexer.scanner  # which makes the callbacks
    instead = {
        name: tuple(str(one.name) for one in callback.scanner.terminals) for name, callback in lexer.callback.items()
    }
    return tuple((str(one.name), instead.get(one.name, ())) for one in scanner.terminals)


def _has_conflicts(parser: lark.Lark) -> bool:
    """Whether the table of an LALR parser leaves out some of its grammar's derivations."""
    from lark.common import ParserConf
    from lark.exceptions import GrammarError
    from lark.parsers.lalr_analysis import LALR_Analyzer

    analysis = LALR_Analyzer(ParserConf(parser.rules, {}, parser.options.start), strict=True)
    try:
        analysis.compute_lalr()
    except GrammarError:  # shift or reduce
        return True
    return any(len(rules) > 1 for items in analysis.lr0_itemsets for rules in items.lookaheads.values())


# --- to rules and a lexer ---


class LexicalGrammar(NamedTuple):
    """The terminals of a parser."""

    lexer: Lexer
    terminals: dict[str, Terminal]  # whose words carry their rank
    ignore: Node | None
    is_exact: bool  # the lexer divides a text in no more ways than Lark does


@lru_cache(maxsize=_NUM_PARSERS)
def _root(parser: LarkParser) -> Frame:
    lexical = _lexical(parser)
    options: dict[str, list[Expression]] = {name: [] for name, _ in parser.rules}
    for name, symbols in parser.rules:
        expansion = (RuleRef(s) if s in options else lexical.terminals.get(s, NO_TEXT) for s in symbols)
        options[name].append(sequence(*expansion))
    rules = {name: alternatives(*some) for name, some in options.items()}
    return lexing_root(Rules(rules, parser.start, lexical.ignore), lexical.lexer)


@lru_cache(maxsize=_NUM_PARSERS)
def _lexical(parser: LarkParser) -> LexicalGrammar:
    words = {name: _words(name, pattern, parser.flags) for name, pattern in parser.terminals}
    ranks = {name: rank for rank, name in enumerate(words)}
    nodes = {name: ir.concat(node, ir.accept(ranks[name])) for name, (node, _) in words.items()}
    terminals = {name: Terminal(node, name) for name, node in nodes.items()}
    wide = {name for name, (_, is_exact) in words.items() if not is_exact}
    if parser.scanners and not wide:
        ignored = [nodes[name] for name in parser.ignored]
        lexer = Lexer(*(_automaton(scanner, words, ranks) for scanner in parser.scanners))
        tried = [{ranks[one] for name, strings in scanner for one in (name, *strings)} for scanner in parser.scanners]
        is_exact = lexer.is_unanimous(tried)
    else:
        # An ignored terminal that a rule names is another one there: only a lexer of its own would drop it.
        ignored = [ir.concat(words[name][0], ir.accept(len(ranks) + ranks[name])) for name in parser.ignored]
        complete = ranks.keys() if parser.lexer == "dynamic_complete" else wide
        unbounded = [ranks[name] for name in complete] + [len(ranks) + ranks[name] for name in wide]
        lexer = Lexer(*nodes.values(), *ignored, unbounded=unbounded)
        is_exact = not parser.scanners and not wide
    return LexicalGrammar(lexer, terminals, ir.choice(*ignored) if ignored else None, is_exact)


def _automaton(scanner: Scanner, words: dict[str, tuple[Node, bool]], ranks: dict[str, int]) -> Node:
    """The words that a scanner finds, with the ranks of the terminals that Lark takes them for."""
    parts: list[Node] = []
    for name, strings in scanner:
        rest, options = words[name][0], []
        for string in strings:
            theirs = words[string][0]
            options.append(ir.concat(ir.both(rest, theirs), ir.accept(ranks[string])))
            rest = ir.both(rest, ir.complement(theirs))
        parts.append(ir.choice(*options, ir.concat(rest, ir.accept(ranks[name]))))
    return first_match(parts)


def _words(name: str, pattern: str, flags: str) -> tuple[Node, bool]:
    """The words of a terminal, and whether these alone say what it finds; else they are more than it finds."""
    try:
        tree = parse_pattern(pattern, "python", flags)
        is_exact = not _looks_outside(tree)
        tree = regex_tree.Atomic(_inward(tree)) if is_exact else _without_assertions(tree)
        return Lowering(charset, tree).full_match(), is_exact
    except ConstraintError as error:
        error.at = f"terminal {name}" if error.at is None else f"terminal {name}, {error.at}"
        raise


def _looks_outside(tree: Tree, before: int = 0, behind: int = 0) -> bool:
    """Whether what a pattern finds may depend on what stands around its word.

    At least so many characters of the word come before and behind this part of the pattern.
    """
    if isinstance(tree, regex_tree.Concatenation):
        least = [regex_tree.width(item)[0] for item in tree.items]
        return any(
            _looks_outside(item, before + sum(least[:i]), behind + sum(least[i + 1 :]))
            for i, item in enumerate(tree.items)
        )
    if isinstance(tree, regex_tree.Lookahead | regex_tree.Lookbehind):
        most = regex_tree.width(tree.item)[1]
        room = behind if isinstance(tree, regex_tree.Lookahead) else before
        return most is None or most > room or regex_tree.num_assertions(tree.item) > 0
    if isinstance(tree, regex_tree.Assertion):
        # The end, and "before the line end that ends the text", which may be two characters away.
        num_behind = {"start": 0, "line start": 0, "last line": 2}.get(tree.kind, 1)
        return (tree.asks_before and before < 1) or behind < num_behind
    if isinstance(tree, regex_tree.Atomic):  # it may take other ways where the text goes on
        return True
    return any(_looks_outside(child, before, behind) for child in regex_tree.children(tree))


def _inward(tree: Tree) -> Tree:
    """A pattern that does not look outside, with lookbehind at one character as an assertion about that character."""
    if isinstance(tree, regex_tree.Lookbehind):
        item = tree.item
        while isinstance(item, regex_tree.Concatenation) and len(item.items) == 1:
            item = item.items[0]
        if isinstance(item, regex_tree.Chars):
            chars = utf8.invert(item.ranges) if tree.is_negative else utf8.normalise(item.ranges)
            return regex_tree.Assertion("line start", chars)  # behind one of them: this is never the start itself
    return _mapped(tree, _inward)


def _without_assertions(tree: Tree) -> Tree:
    """A pattern that matches all that another one does, whatever stands around."""
    if isinstance(tree, regex_tree.Atomic):
        return _without_assertions(tree.item)
    is_assertion = isinstance(tree, regex_tree.Assertion | regex_tree.Lookahead | regex_tree.Lookbehind)
    return regex_tree.Concatenation(()) if is_assertion else _mapped(tree, _without_assertions)


def _mapped(tree: Tree, function: Callable[[Tree], Tree]) -> Tree:
    """The same with other parts."""
    if isinstance(tree, regex_tree.Concatenation):
        return regex_tree.Concatenation(tuple(map(function, tree.items)))
    if isinstance(tree, regex_tree.Alternation):
        return regex_tree.Alternation(tuple(map(function, tree.options)))
    if isinstance(tree, regex_tree.Quantified):
        return replace(tree, item=function(tree.item))
    return tree


on_shortage(_lexical.cache_clear)
on_shortage(_root.cache_clear)
