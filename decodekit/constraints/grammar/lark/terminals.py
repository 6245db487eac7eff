r"""Terminals of a Lark grammar: expressions without rules, each a regular language of bytes, and their order.

A terminal is matched as a language of its own: ``^``, ``$``, ``\b`` and lookaround see what the terminal reads, and not
what stands around it. As in Lark, an expression of several parts is one pattern, so that lookaround of one part sees
the others, and a lazy quantifier in any of them makes the terminal end where `re.match` ends first.

Where several terminals have the same word, a lexer takes the one of least rank: by priority (``NAME.2``), strings
before patterns, and then as Lark's basic lexer does: first the terminal that can match more characters, then the one
with the longer pattern, as Lark writes it, then by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from decodekit.constraints.grammar.lark import lark_tree as tree
from decodekit.constraints.grammar.lark.definitions import Definitions, GrammarSymbol, Parts, Scope
from decodekit.constraints.grammar.source import SourcePosition
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.words import words
from decodekit.constraints.regex import syntax as regex_syntax
from decodekit.constraints.regex import tree as regex_tree
from decodekit.constraints.regex.regex import full_match
from decodekit.constraints.regex.syntax import MAX_PATTERN_LENGTH
from decodekit.errors import ResourceLimitError

MAX_SIZE: Final = 300_000
"""Bound on the parts of one terminal, with those of the terminals that it is made of."""

MAX_CHARACTERS: Final = 10_000_000
"""Bound on the characters of all patterns that terminals are written as."""

_NO_BOUND: Final = float("inf")
_BRACKETS: Final = 4  # (?:)
_FLAG: Final = 5  # (?i:)
_MANY_TEXTS: Final = 16  # so many options that are plain texts are sorted as a list of words


class _Traits(NamedTuple):
    """The traits of a terminal, those of the terminals in it included."""

    size: int
    asks_around: bool  # some part is about what the others read
    is_lazy: bool

    @property
    def is_one_pattern(self) -> bool:
        """Whether the parts cannot be taken one by one."""
        return self.asks_around or self.is_lazy


class Terminals:
    """The languages of terminals, and of expressions that stand in rules."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self._traits: dict[str, _Traits] = {}  # by name; a terminal is here behind those that it is made of
        self._nodes: dict[str, Node] = {}  # of terminals whose parts can be taken one by one
        self._patterns: dict[str, str] = {}  # of terminals that are part of one that cannot
        self._num_characters = 0  # of all patterns

    def words(self, parts: Parts, place: SourcePosition, names: tuple[str, ...] = ()) -> Node:
        """The words of an expression; `names` are what it is called itself. Raises what `Grammar` raises."""
        for entry in self._in_order(parts, self._traits, names):
            traits = self._traits[entry.name] = self._traits_of(entry.parts, entry.place)
            if not traits.is_one_pattern:
                self._nodes[entry.name] = self._node_of(entry.parts)
        traits = self._traits_of(parts, place)
        if not traits.is_one_pattern:
            return self._node_of(parts)
        for entry in self._in_order(parts, self._patterns, names):
            self._patterns[entry.name] = self._pattern_of(entry.parts, entry.place)
        pattern = self._pattern_of(parts, place)
        # Of an atomic group there is only what a search from its begin finds first.
        node = _full_match(f"(?>{pattern})" if traits.is_lazy else pattern, "", place)
        if traits.is_lazy and node.is_nullable:
            place.fail(
                "the shortest text that this terminal matches is empty: behind a lazy quantifier something must follow "
                "in the same terminal",
                "a quantifier without the second '?'",
            )
        return node

    def _in_order(self, parts: Parts, known: Collection[str], names: tuple[str, ...]) -> list[GrammarSymbol]:
        """The terminals in an expression that are not known, each behind those that it is made of itself."""
        order: list[GrammarSymbol] = []
        done: set[str] = set()
        path = dict.fromkeys(names)  # from the expression down to where the walk is
        agenda: list[tuple[GrammarSymbol | None, Iterator[tuple[GrammarSymbol, SourcePosition]]]] = [
            (None, self._references(parts))
        ]
        while agenda:
            owner, references = agenda[-1]
            for entry, place in references:
                if entry.name in path:
                    place.fail(f"the terminal {entry.name!r} refers to itself", "a rule, in lower case")
                if entry.name not in done and entry.name not in known:
                    path[entry.name] = None
                    done.add(entry.name)
                    agenda.append((entry, self._references(entry.parts)))
                    break
            else:
                agenda.pop()
                if owner is not None:
                    del path[owner.name]
                    order.append(owner)
        return order

    def _references(self, parts: Parts) -> Iterator[tuple[GrammarSymbol, SourcePosition]]:
        for root, scope in parts:
            for item in tree.walk(root):
                if isinstance(item, tree.Name) and not item.arguments:
                    entry = self.definitions.look_up(item, scope)
                    if not entry.is_terminal:
                        scope.place(item.at).fail(
                            f"the rule {item.name!r} cannot be part of a terminal", "a rule, in lower case, around both"
                        )
                    yield entry, scope.place(item.at)
                elif isinstance(item, tree.Name | tree.TokenName | tree.Json):
                    what = {tree.Name: "a template", tree.TokenName: "a special token", tree.Json: "%json"}[type(item)]
                    scope.place(item.at).fail(f"{what} cannot be part of a terminal", "a rule, in lower case")

    def _traits_of(self, parts: Parts, place: SourcePosition) -> _Traits:
        size, asks_around, is_lazy = 0, False, False
        for root, scope in parts:
            for item in tree.walk(root):
                size += 1
                if isinstance(item, tree.Name):
                    traits = self._traits[scope.qualified(item.name)]
                elif isinstance(item, tree.Pattern):
                    with scope.place(item.at).located():
                        traits = _traits_of_pattern(item.pattern, _flags(item.flags))
                else:
                    continue
                size += traits.size
                asks_around |= traits.asks_around
                is_lazy |= traits.is_lazy
        if size > MAX_SIZE:
            place.fail(f"the terminal has more than {MAX_SIZE:,} parts", "a rule, in lower case", ResourceLimitError)
        return _Traits(size, asks_around, is_lazy)

    # --- part by part ---

    def _node_of(self, parts: Parts) -> Node:
        return ir.choice(*(self._node(item, scope) for item, scope in parts))

    def _node(self, item: tree.Term, scope: Scope) -> Node:
        if isinstance(item, tree.Name):
            return self._nodes[scope.qualified(item.name)]
        if isinstance(item, tree.Series):
            return ir.concat(*(self._node(part, scope) for part in item.items))
        if isinstance(item, tree.Options):
            texts = {
                part.text.encode() for part in item.options if isinstance(part, tree.Quoted) and not part.ignores_case
            }
            if len(texts) < _MANY_TEXTS:
                return ir.choice(*(self._node(part, scope) for part in item.options))
            others = (p for p in item.options if not isinstance(p, tree.Quoted) or p.ignores_case)
            return ir.choice(words(dict.fromkeys(texts)), *(self._node(part, scope) for part in others))
        if isinstance(item, tree.Counted):
            return ir.repeat(self._node(item.item, scope), item.min, item.max)
        if isinstance(item, tree.CharRange):
            return utf8.charset([(ord(item.low), ord(item.high))])
        if isinstance(item, tree.Quoted) and not item.ignores_case:
            return ir.literal(item.text.encode())
        assert isinstance(item, tree.Quoted | tree.Pattern)  # the others were refused with the references
        pattern, flags = (item.pattern, item.flags) if isinstance(item, tree.Pattern) else (re.escape(item.text), "i")
        return _full_match(pattern, flags, scope.place(item.at))

    # --- as one pattern ---

    def _pattern_of(self, parts: Parts, place: SourcePosition) -> str:
        pattern = _longest_first([self._pattern(item, scope) for item, scope in parts])
        self._num_characters += len(pattern)
        if len(pattern) > MAX_PATTERN_LENGTH or self._num_characters > MAX_CHARACTERS:
            place.fail(
                f"the terminal is a pattern of more than {MAX_PATTERN_LENGTH:,} characters",
                "the same without lookaround and lazy quantifiers",
                ResourceLimitError,
            )
        return pattern

    def _pattern(self, item: tree.Term, scope: Scope) -> str:
        if isinstance(item, tree.Name):
            return f"(?:{self._patterns[scope.qualified(item.name)]})"
        if isinstance(item, tree.Series):
            return "".join(self._pattern(part, scope) for part in item.items)
        if isinstance(item, tree.Options):
            return f"(?:{_longest_first([self._pattern(part, scope) for part in item.options])})"
        if isinstance(item, tree.Counted):
            high = "" if item.max is None else item.max
            return f"(?:{self._pattern(item.item, scope)}){{{item.min},{high}}}"
        if isinstance(item, tree.CharRange):
            return f"[\\U{ord(item.low):08X}-\\U{ord(item.high):08X}]"
        if isinstance(item, tree.Quoted):
            return f"(?{'i' * item.ignores_case}:{re.escape(item.text)})"
        assert isinstance(item, tree.Pattern)
        end = "\n" if "x" in item.flags else ""  # a comment may stand at the end
        return f"(?{_flags(item.flags)}:{item.pattern}{end})"


def _longest_first(options: list[str]) -> str:
    """Alternatives in the order in which Lark has them: what may be longest, or else must be, comes first."""

    def order(option: str) -> tuple[float, int, int]:
        low, high = regex_tree.width(regex_syntax.parse(option))
        return -float("inf") if high is None else -high, -low, -len(option)

    return options[0] if len(options) == 1 else "|".join(sorted(options, key=order))


def _flags(flags: str) -> str:
    """Flags without that of Unicode, which is set by itself."""
    return "".join(sorted(set(flags) - {"u"}))


def _full_match(pattern: str, flags: str, place: SourcePosition) -> Node:
    with place.located():
        return full_match(pattern, "python", _flags(flags))


@lru_cache(maxsize=512)
def _traits_of_pattern(pattern: str, flags: str) -> _Traits:
    root = regex_syntax.parse(pattern, "python", flags)
    agenda = [root]
    is_lazy = False
    while agenda and not is_lazy:
        part = agenda.pop()
        is_lazy = isinstance(part, regex_tree.Quantified) and part.is_lazy
        agenda += regex_tree.children(part)
    return _Traits(1, regex_tree.num_assertions(root) > 0, is_lazy)


# --- their order ---


Rank: TypeAlias = tuple[int, bool, float, int, str]
"""The place of a terminal in the order: less its priority, whether it is a pattern, less its width and its length, and
its name. The least is taken; no two terminals of a grammar have the same."""


class Ranks:
    """The ranks of terminals whose languages are known to be well defined."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self._spelled: dict[str, tuple[float, int]] = {}
        self._named: dict[tuple[str, str, str], GrammarSymbol] = {}
        for entry in definitions.entries.values():
            key = key_of(entry.parts[0][0]) if entry.is_terminal and len(entry.parts) == 1 else None
            if key is not None:
                self._named[key] = entry

    def alias(self, item: tree.Term) -> GrammarSymbol | None:
        """The terminal that an item without a name is, because that is written as the same string or pattern."""
        key = key_of(item)
        return None if key is None else self._named.get(key)

    def of(self, parts: Parts, name: str, priority: int = 0) -> Rank:
        """The rank of a terminal that is called `name`."""
        while isinstance(only := parts[0][0] if len(parts) == 1 else None, tree.Name):
            parts = self.definitions.look_up(only, parts[0][1]).parts
        width, length = self._spell_all(parts)
        if isinstance(only, tree.Quoted):
            width, length = len(only.text), len(only.text)
        elif isinstance(only, tree.Pattern):
            length = len(only.pattern)
        return -priority, not isinstance(only, tree.Quoted), -width, -length, name

    def _spell_all(self, parts: Parts) -> tuple[float, int]:
        """The most characters that a terminal matches, and the length of its pattern."""
        spelled = [self._spell(item, scope) for item, scope in parts]
        if len(spelled) == 1:
            return spelled[0]
        return max(width for width, _ in spelled), _BRACKETS - 1 + sum(length + 1 for _, length in spelled)

    def _spell(self, item: tree.Term, scope: Scope) -> tuple[float, int]:
        """The same for a part of one."""
        if isinstance(item, tree.Name):
            entry = self.definitions.look_up(item, scope)
            if entry.name not in self._spelled:
                self._spelled[entry.name] = self._spell_all(entry.parts)
            return self._spelled[entry.name]
        if isinstance(item, tree.Series):
            spelled = [self._spell(part, scope) for part in item.items]
            return sum(width for width, _ in spelled), sum(length for _, length in spelled)
        if isinstance(item, tree.Options):
            return self._spell_all(tuple((part, scope) for part in item.options))
        if isinstance(item, tree.Counted):
            width, length = self._spell(item.item, scope)
            most = _NO_BOUND if item.max is None else item.max
            sign = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((item.min, item.max))
            sign = sign or (f"{{{item.min}}}" if item.min == item.max else f"{{{item.min},{item.max}}}")
            return width * most if width and most else 0, length + _BRACKETS + len(sign)
        if isinstance(item, tree.Quoted):
            return len(item.text), len(re.escape(item.text)) + _FLAG * item.ignores_case
        if isinstance(item, tree.CharRange):
            return 1, len("[a-b]")
        assert isinstance(item, tree.Pattern)  # nothing else is part of a terminal
        _, high = regex_tree.width(regex_syntax.parse(item.pattern, "python", _flags(item.flags)))
        return _NO_BOUND if high is None else high, len(item.pattern) + _FLAG * len(item.flags)


def key_of(item: tree.Term) -> tuple[str, str, str] | None:
    """A key that equal terminals without a name share: how they are written. None for one that is made of parts."""
    if isinstance(item, tree.Quoted):
        return "text", item.text, "i" * item.ignores_case
    if isinstance(item, tree.Pattern):
        return "pattern", item.pattern, "".join(sorted(item.flags))
    return ("range", item.low, item.high) if isinstance(item, tree.CharRange) else None
