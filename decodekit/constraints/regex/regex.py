r"""Regular expressions as a constraint of their own, and as languages over any spelling of the characters.

`encode` says how one character of a set is spelled: in UTF-8, or inside a JSON string, where it may be raw or an
escape. If it gives all spellings of a character, the language holds all spellings of a text, also through lookahead and
its complement.

Assertions are lowered together with what follows them: a lookahead is an intersection with it, ``$`` keeps of it the
empty text, ``^`` and ``\b`` ask what came before, which is carried along as a context. A lookbehind splits a pattern:
what comes before it becomes a language of beginnings of the text, which is intersected with those that end as it says.

A round of a repeated group may not be empty, as in ECMA-262; where assertions decide whether it is, the context also
says whether something was read since the round began.

In an atomic group the search decides: the first way that leads to the end of the group counts, whatever follows. A way
is taken, then, if no earlier one exists; and that one exists is a lookahead for the rest of the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, TypeAlias

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node, Transitions
from decodekit.constraints.language.utf8 import EVERYTHING, Ranges
from decodekit.constraints.memory_account import Memo, remembered
from decodekit.constraints.network import Frame, Lexeme
from decodekit.constraints.regex.escapes import Flavour
from decodekit.constraints.regex.syntax import MOST_CHARACTERS, other_readings, parse
from decodekit.constraints.regex.tree import (
    Alternation,
    Assertion,
    Atomic,
    Chars,
    Concatenation,
    Lookahead,
    Lookbehind,
    Quantified,
    Tree,
    asks_before,
    has_lookbehind,
    is_nullable,
    kinds_of_chars,
    num_assertions,
    sees_past,
)
from decodekit.errors import InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError, warn

Encode: TypeAlias = Callable[[Ranges], Node]

MAX_EMPTY_ROUNDS: Final = 8
"""Bound on the least count of a group with assertions that may match nothing."""

MAX_ASSERTIONS: Final = 100
_BYTES_PER_CHARACTER: Final = 256  # measured with tracemalloc on alternatives of random words


@dataclass(frozen=True, slots=True)
class Before:
    """The context before a place: a character of the kind with this number, or the start of the text; and when.

    Attributes:
        kind: an index into the kinds of the pattern; None at the start.
        is_fresh: nothing was read since the round began.
    """

    kind: int | None
    is_fresh: bool = False


_START: Final = Before(None)
_ANYTHING: Final = Before(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Continuation:
    """The items that are still to be matched: a linked list, shared by identity.

    Attributes:
        item: a tree, or a step of the lowering; None at the end.
        then: what follows.
        asks_before: whether the texts depend on what came before.
        tail: what may follow the end.
    """

    item: _Item | None
    then: _Continuation | None
    asks_before: bool
    tail: Node = ir.EPSILON


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A tree in an atomic group, whose ways are tried in their order."""

    tree: Tree


@dataclass(frozen=True, slots=True)
class _GroupEnd:
    """The end of an atomic group."""


@dataclass(frozen=True, slots=True)
class _RoundEnd:
    """The end of a round: a round that read nothing has no place here, or, in an atomic group, is the last.

    Attributes:
        ends_rounds: that nothing was read ends the iteration that follows.
        was_fresh: whether the round began fresh, of which only the end of the rounds around it must know.
    """

    ends_rounds: bool = False
    was_fresh: bool = False


_Item: TypeAlias = Tree | _Ordered | _GroupEnd | _RoundEnd


@dataclass(frozen=True, slots=True)
class Loop(Node):
    """The texts of a repeated tree and of what follows it, derived when asked for: it contains itself."""

    can_be_empty = True
    is_labelled = False
    lowering: Lowering  # compared by identity, as is `then`
    tree: Quantified
    is_ordered: bool
    then: _Continuation
    before: Before

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """As in `Node`."""
        # A round matches one character at least, or leads where stopping leads: only stopping gives the empty text.
        return () if self.tree.min else self.lowering.lower(self.then, self.before).labels

    def transitions(self) -> Transitions:
        """As in `Node`."""
        return self.lowering.unroll(self.tree, self.then, self.before, self.is_ordered).transitions()


class Lowering:
    """One tree in one spelling."""

    def __init__(self, encode: Encode, tree: Tree) -> None:
        self.encode = encode
        self.tree = tree
        if num_assertions(tree) > MAX_ASSERTIONS:
            raise ResourceLimitError(f"the pattern has more than {MAX_ASSERTIONS} assertions", hint="a simpler pattern")
        self.anything = ir.repeat(encode(EVERYTHING))
        # The kinds of character that assertions tell apart.
        self.kinds: tuple[Ranges, ...] = (EVERYTHING,)
        for chars in kinds_of_chars(tree):
            parts = [utf8.intersect(kind, part) for kind in self.kinds for part in (chars, utf8.invert(chars))]
            self.kinds = tuple(part for part in parts if part)
        self.end = _Continuation(None, None, False)
        self.open_end = _Continuation(None, None, False, self.anything)
        self.any_end = _Continuation(None, None, False, ir.ANYTHING)
        self._plain: dict[Tree, Node] = {}
        self._lowered: dict[tuple[_Continuation, Before], Node] = {}
        self._rests: dict[tuple[_Item, _Continuation], _Continuation] = {}
        self._ways: dict[_Continuation, _Continuation] = {}
        self._repeated: Memo[tuple[Tree, int, int | None, bool], Quantified] = Memo(lambda parts: Quantified(*parts))

    def full_match(self) -> Node:
        """The texts that the tree matches from start to end."""
        return self._after(ir.EPSILON, (self.tree,), self.end)

    def search(self) -> Node:
        """The texts in which the tree matches somewhere."""
        return self._after(self.anything, (self.tree,), self.open_end)

    def _after(self, prefix: Node, items: tuple[Tree, ...], end: _Continuation) -> Node:
        """Texts that begin with a word of `prefix` and go on with the items; here lookbehinds are met."""
        for index, item in enumerate(items):
            if not has_lookbehind(item):
                continue
            done, rest = items[:index], items[index + 1 :]
            if isinstance(item, Concatenation):
                return self._after(prefix, (*done, *item.items, *rest), end)
            if isinstance(item, Alternation):
                return ir.choice(*(self._after(prefix, (*done, option, *rest), end) for option in item.options))
            if isinstance(item, Quantified) and item.max == 0:
                return self._after(prefix, (*done, *rest), end)
            if isinstance(item, Quantified) and item.max == 1:
                once = self._after(prefix, (*done, item.item, *rest), end)
                return once if item.min else ir.choice(self._after(prefix, (*done, *rest), end), once)
            if not isinstance(item, Lookbehind) or sees_past(done) or sees_past((item.item,)):
                raise UnsupportedSchemaError(
                    "a lookbehind in a repeated or atomic group, in another assertion or behind an assertion about "
                    "what follows is not supported in a pattern",
                    hint="moving the condition in front, as part of the pattern",
                )
            behind = self._after(self.anything, (item.item,), self.end)
            read = self._after(prefix, done, self.end)
            read = ir.both(read, ir.complement(behind) if item.is_negative else behind)
            return self._after(read, rest, end)
        following = reduce(lambda then, item: self.before(item, then), reversed(items), end)
        if not following.asks_before:
            return ir.concat(prefix, self.lower(following, _ANYTHING))
        ways = [self.lower(following, _START)] if prefix.is_nullable else []
        for kind, chars in enumerate(self.kinds) if prefix is not ir.EPSILON else ():
            ending = ir.concat(self.anything, self.encode(chars))
            ending = ending if prefix is self.anything else ir.both(prefix, ending)
            ways.append(ir.concat(ending, self.lower(following, Before(kind))))
        return ir.choice(*ways)

    def before(self, item: _Item, then: _Continuation) -> _Continuation:
        """The rest with `item` in front."""
        key = (item, then)
        if key not in self._rests:
            if isinstance(item, _RoundEnd | _GroupEnd):
                asks = isinstance(item, _RoundEnd) or then.asks_before
            else:
                tree = item.tree if isinstance(item, _Ordered) else item
                asks = asks_before(tree) or (is_nullable(tree) and then.asks_before)
            self._rests[key] = _Continuation(item, then, asks)
        return self._rests[key]

    def lower(self, rest: _Continuation, before: Before) -> Node:
        """The texts of `rest` after `before`."""
        key = (rest, before if rest.asks_before else _ANYTHING)
        node = self._lowered.get(key)
        if node is None:
            node = self._lowered[key] = self._lower(rest, before)
        return node

    def _lower(self, rest: _Continuation, before: Before) -> Node:
        parts: list[Node] = []
        while True:
            item, then = rest.item, rest.then
            if item is None or then is None:
                while rest.tail is ir.ANYTHING and parts and parts[-1].is_nullable:
                    parts.pop()
                return ir.concat(*parts, rest.tail)
            if isinstance(item, _RoundEnd) and before.is_fresh:
                if not item.ends_rounds:
                    return ir.EMPTY
                assert then.then is not None
                return ir.concat(*parts, self.lower(then.then, replace(before, is_fresh=item.was_fresh)))
            if isinstance(item, _RoundEnd | _GroupEnd):
                return ir.concat(*parts, self.lower(then, before))
            tree, is_ordered = (item.tree, True) if isinstance(item, _Ordered) else (item, False)
            if then.asks_before or num_assertions(tree) or (is_ordered and not isinstance(tree, Chars)):
                return ir.concat(*parts, self._lower_tree(tree, then, before, is_ordered))
            parts.append(self.plain(tree))
            rest = then

    def _lower_tree(self, tree: Tree, then: _Continuation, before: Before, is_ordered: bool) -> Node:
        if isinstance(tree, Chars):
            return ir.choice(
                *(
                    ir.concat(self.encode(utf8.intersect(tree.ranges, chars)), self.lower(then, Before(kind)))
                    for kind, chars in enumerate(self.kinds)
                )
            )
        if isinstance(tree, Concatenation):
            for part in reversed(tree.items):
                then = self.before(_Ordered(part) if is_ordered else part, then)
            return self.lower(then, before)
        if isinstance(tree, Alternation):
            if is_ordered:
                return self._first_of([(self.before(_Ordered(option), then), before) for option in tree.options])
            return ir.choice(*(self.lower(self.before(option, then), before) for option in tree.options))
        if isinstance(tree, Quantified):
            return self._lower_repeated(tree, then, before, is_ordered)
        if isinstance(tree, Atomic):
            return self.lower(self.before(_Ordered(tree.item), self.before(_GroupEnd(), then)), before)
        if isinstance(tree, Lookahead):
            ahead = self.lower(self.before(tree.item, self.open_end), before)
            return ir.both(ir.complement(ahead) if tree.is_negative else ahead, self.lower(then, before))
        if isinstance(tree, Lookbehind):
            raise UnsupportedSchemaError(
                "a lookbehind in an atomic group is not supported in a pattern", hint="a group that is not atomic"
            )
        assert isinstance(tree, Assertion)  # groups and references are not lowered
        return self._lower_assertion(tree, self.lower(then, before), before)

    def _lower_assertion(self, item: Assertion, after: Node, before: Before) -> Node:
        if item.kind == "start":
            return after if before.kind is None else ir.EMPTY
        if item.kind == "end":
            return ir.EPSILON if after.is_nullable else ir.EMPTY
        chars = self.encode(item.chars)
        if item.kind == "last line":
            return ir.both(after, ir.optional(chars))
        if item.kind == "line end":
            return ir.both(after, ir.optional(ir.concat(chars, self.anything)))
        is_behind = before.kind is not None and bool(utf8.intersect(self.kinds[before.kind], item.chars))
        if item.kind == "line start":
            return after if before.kind is None or is_behind else ir.EMPTY
        if (item.kind == "boundary") != is_behind:  # the next character must be a word character
            return ir.both(after, ir.concat(chars, self.anything))
        others = ir.concat(self.encode(utf8.invert(item.chars)), self.anything)
        is_in_empty = item.kind == "boundary" or before.kind is not None or item.holds_in_empty
        return ir.both(after, ir.optional(others) if is_in_empty else others)

    def _lower_repeated(self, item: Quantified, then: _Continuation, before: Before, is_ordered: bool) -> Node:
        if not num_assertions(item) and not is_ordered:  # `then` asks what the last character was
            texts = self.plain(item)
            ways = [self.lower(then, before)] if texts.is_nullable else []
            for kind, chars in enumerate(self.kinds):
                ending = ir.both(texts, ir.concat(self.anything, self.encode(chars)))
                ways.append(ir.concat(ending, self.lower(then, Before(kind))))
            return ir.choice(*ways)
        if item.max == 0:
            return self.lower(then, before)
        if item.max == 1 and not is_ordered:
            once = self.lower(self.before(item.item, then), before)
            return once if item.min else ir.choice(self.lower(then, before), once)
        if item.min and is_nullable(item.item):  # these rounds may read nothing, if their assertions hold
            if item.min > MAX_EMPTY_ROUNDS:
                raise UnsupportedSchemaError(
                    f"more than {MAX_EMPTY_ROUNDS} rounds at least of a group which may match nothing, with an "
                    "assertion or in an atomic group, are not supported in a pattern",
                    hint="taking the assertion out of the repeated group",
                )
            most = None if item.max is None else item.max - item.min
            further = self._repeated[item.item, 0, most, item.is_lazy]
            rest = self.before(_Ordered(further) if is_ordered else further, then)
            for _ in range(item.min):
                rest = self.before(_Ordered(item.item) if is_ordered else item.item, rest)
            return self.lower(rest, before)
        item = self._repeated[item.item, item.min, item.max, item.is_lazy]  # one for all equal ones
        return Loop(self, item, is_ordered, then, before)

    def unroll(self, tree: Quantified, then: _Continuation, before: Before, is_ordered: bool) -> Node:
        """Stop here, or one round and then the rounds that are left."""
        body, left = tree.item, None if tree.max is None else tree.max - 1
        further = self._repeated[body, max(tree.min - 1, 0), left, tree.is_lazy]
        rounds = self.before(_Ordered(further) if is_ordered else further, then)
        inside = before
        if is_nullable(body):
            end = _RoundEnd(True, before.is_fresh) if is_ordered else _RoundEnd()
            rounds, inside = self.before(end, rounds), replace(before, is_fresh=True)
        ways = [(self.before(_Ordered(body) if is_ordered else body, rounds), inside)]
        if not tree.min:
            ways.insert(0 if tree.is_lazy else 1, (then, before))
        return self._first_of(ways) if is_ordered else ir.choice(*(self.lower(*way) for way in ways))

    def _first_of(self, ways: list[tuple[_Continuation, Before]]) -> Node:
        """Each way where none before it leads to the end of the atomic group."""
        found: list[Node] = []
        earlier: list[Node] = []
        for rest, before in ways:
            found.append(ir.both(self.lower(rest, before), *map(ir.complement, earlier)))
            earlier.append(self.lower(self._way_out(rest), before))
        return ir.choice(*found)

    def _way_out(self, rest: _Continuation) -> _Continuation:
        """The continuation of the texts with which some way leads to the end of the innermost atomic group."""
        known = self._ways.get(rest)
        if known is None:
            item, then = rest.item, rest.then
            assert item is not None and then is not None  # an atomic group has an end
            if isinstance(item, _Ordered):
                item = item.tree
            known = self.any_end if isinstance(item, _GroupEnd) else self.before(item, self._way_out(then))
            self._ways[rest] = known
        return known

    def plain(self, item: Tree) -> Node:
        """The texts of a tree without assertions."""
        node = self._plain.get(item)
        if node is None:
            match item:
                case Chars(ranges):
                    node = self.encode(ranges)
                case Concatenation(items):
                    node = ir.concat(*map(self.plain, items))
                case Alternation(options):
                    single = [option.ranges for option in options if isinstance(option, Chars)]
                    others = (self.plain(option) for option in options if not isinstance(option, Chars))
                    # One set, whose spellings are those of a set.
                    node = ir.choice(self.encode(utf8.normalise(itertools.chain.from_iterable(single))), *others)
                case Quantified(body, least, most):
                    node = ir.repeat(self.plain(body), least, most)
                case _:
                    raise TypeError(f"the texts of {item} depend on what is around them")
            self._plain[item] = node
        return node


@dataclass(frozen=True, slots=True)
class Regex(Constraint):
    r"""Texts that the pattern matches as a whole, as `re.fullmatch` does.

    Args:
        pattern: the pattern.
        flavour: ``"python"``, the syntax of `re` and of what other dialects have besides (``\p{L}``, ``(?<name>a)``,
            ``a(?i)b``), or ``"ecma"``, ECMA-262, as in JSON Schema.
        flags: letters. Python: ``i`` (case does not matter), ``m`` (``^`` and ``$`` at every line), ``s`` (the dot
            matches line ends), ``x`` (blanks and comments), ``a`` (``\d \w \s \b`` and the case know only ASCII) or
            ``u`` (all of Unicode: the default). ECMA: ``i``, ``m``, ``s``, and ``u`` (its strict syntax and its case
            folding; patterns are over code points in any case).

    What other dialects read otherwise, as ``[[:alpha:]]`` and ``[a&&b]``, is read as in `re`, with a warning.

    As in `re`, ``\d`` matches the digits of every script: ``flags="a"`` or ``[0-9]`` if the text is read by a program.
    The known differences from `re` are inconsistencies there, all with the flag ``i`` and beyond U+FFFF: a capital
    letter in a class or between bars is forgotten by `re`, and a range that ends there takes U+0149 for U+02BC and
    ignores the flag ``a`` (from Python 3.14 on only U+0149 is left). Here such letters and ranges are like all others.

    Raises:
        InvalidConstraintError: the pattern or the flags are malformed; the error shows where.
        UnsupportedSchemaError: back-references and other things that are refused by name.
        ResourceLimitError: the pattern is too long, too deep, or has too many assertions.
    """

    pattern: str
    flavour: Flavour = "python"
    flags: str = ""

    def __post_init__(self) -> None:
        for name in ("pattern", "flavour", "flags"):
            if not isinstance(getattr(self, name), str):
                raise InvalidConstraintError(
                    f"{name}={getattr(self, name)!r:.60} is no text", at=name, hint='Regex("[0-9]+")'
                )
        for reading in other_readings(self.pattern, self.flavour, self.flags):
            warn(reading)

    @property
    def num_bytes(self) -> int:
        """About how much memory its tree and its language take."""
        return _BYTES_PER_CHARACTER * len(self.pattern)

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(full_match(self.pattern, self.flavour, self.flags))

    def parse(self, text: str) -> str:
        """The text itself."""
        node = full_match(self.pattern, self.flavour, self.flags)
        if not ir.matches(node, text.encode("utf-8", errors="surrogatepass")):
            raise ValueError(f"{text!r:.200} does not match {self.pattern!r:.200}")
        return text


@remembered(MOST_CHARACTERS)
def full_match(pattern: str, flavour: Flavour = "python", flags: str = "", encode: Encode = utf8.charset) -> Node:
    """The texts that the pattern matches from start to end.

    Arguments and errors are those of `Regex`. `encode` gives the spellings of one character out of a set: a pure
    function, the same object for the same spelling.
    """
    return Lowering(encode, parse(pattern, flavour, flags)).full_match()


@remembered(MOST_CHARACTERS)
def parse_search(pattern: str, flavour: Flavour = "ecma", encode: Encode = utf8.charset, *, flags: str = "") -> Node:
    """The texts in which the pattern matches somewhere, as JSON Schema's ``pattern`` means it.

    Arguments and errors are those of `full_match`.
    """
    return Lowering(encode, parse(pattern, flavour, flags)).search()
