r"""Regular expressions: as a constraint of their own, and as languages over any spelling of the characters.

A tree over sets of code points becomes a language of bytes through `encode`, which says how one character of a set is
spelled: in UTF-8, or inside a JSON string, where it may be raw or an escape. If `encode` gives all spellings of a
character, the language holds all spellings of a text, also through lookahead and its complement.

Assertions are lowered together with what follows them: a lookahead is an intersection with it, ``$`` keeps of it the
empty text, ``^`` and ``\b`` ask what came before, which is carried along as a context. A lookbehind splits a pattern:
what comes before it becomes a language of beginnings of the text, which is intersected with those that end as it says.

A round of a repeated group may not be empty, as in ECMA-262; where assertions decide whether it is, the context also
says whether something was read since the round began.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints import charclasses, ir, utf8
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.ir import Node, Transitions
from decodekit.constraints.network import Frame, Lexeme
from decodekit.constraints.regex_syntax import (
    Alternatives,
    Assertion,
    Chars,
    Flavour,
    Lookahead,
    Lookbehind,
    Repeated,
    Sequence,
    Tree,
    parse,
)
from decodekit.constraints.utf8 import EVERYTHING, Ranges
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

Encode: TypeAlias = Callable[[Ranges], Node]
Context: TypeAlias = Literal["start", "word", "other", "fresh start", "fresh word", "fresh other"]
"""What came before: nothing, a word character, another character; fresh at the beginning of a round."""

_FRESH: Final[dict[Context, Context]] = {
    "start": "fresh start", "word": "fresh word", "other": "fresh other",
    "fresh start": "fresh start", "fresh word": "fresh word", "fresh other": "fresh other",
}  # fmt: skip
MAX_EMPTY_ROUNDS: Final = 8
"""Bound on the least count of a group with assertions that may match nothing."""

MAX_ASSERTIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Regex(Constraint):
    r"""Texts that the pattern matches as a whole, as `re.fullmatch` does.

    Args:
        pattern: the pattern.
        flavour: ``"python"`` (the syntax of `re` with `re.ASCII`) or ``"ecma"`` (ECMA-262, as in JSON Schema). Their
            differences: the dot and ``\s`` know more line ends and blanks in ECMA, which has ``\p{..}`` too.

    Raises:
        InvalidConstraintError: the pattern is malformed; the error shows where.
        UnsupportedSchemaError: back-references, flags and other things that are refused by name.
    """

    pattern: str
    flavour: Flavour = "python"

    def __post_init__(self) -> None:
        parse(self.pattern, self.flavour)

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(full_match(self.pattern, self.flavour))

    def parse(self, text: str) -> str:
        """The text itself."""
        if not ir.matches(full_match(self.pattern, self.flavour), text.encode("utf-8", errors="surrogatepass")):
            raise ValueError(f"{text!r:.200} does not match {self.pattern!r:.200}")
        return text


@lru_cache(maxsize=512)
def full_match(pattern: str, flavour: Flavour = "python", encode: Encode = utf8.charset) -> Node:
    """The texts that the pattern matches from start to end. Raises what `regex_syntax.parse` raises."""
    return _Lowering(encode, parse(pattern, flavour)).full_match()


@lru_cache(maxsize=512)
def parse_search(pattern: str, flavour: Flavour = "ecma", encode: Encode = utf8.charset) -> Node:
    """The texts in which the pattern matches somewhere, as JSON Schema's ``pattern`` means it.

    Args:
        pattern: the pattern.
        flavour: its syntax.
        encode: the spellings of one character out of a set; a pure function, the same object for the same spelling.

    Raises:
        InvalidConstraintError: the pattern is malformed.
        UnsupportedSchemaError: it uses something that is refused by name.
        ResourceLimitError: it is too long, too deep, or has more than `MAX_ASSERTIONS` assertions.
    """
    return _Lowering(encode, parse(pattern, flavour)).search()


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What is still to be matched: a linked list, shared by identity.

    Attributes:
        item: a tree, or an iteration to go on with; None at the end.
        then: what follows.
        asks_before: whether the texts depend on what came before.
    """

    item: Tree | _Iteration | _RoundEnd | None
    then: _Rest | None
    asks_before: bool
    open_end: bool = False  # at the end: any text may follow, or none


@dataclass(frozen=True, slots=True)
class _Iteration:
    """Further rounds of a repeated tree with assertions."""

    tree: Repeated
    min: int
    max: int | None


@dataclass(frozen=True, slots=True)
class _RoundEnd:
    """The end of a round that has to have read something."""


_ROUND_END: Final = _RoundEnd()


@dataclass(frozen=True, slots=True)
class Loop(Node):
    """The texts of an iteration and of what follows it, derived when asked for: it contains itself."""

    can_be_empty = True
    is_labelled = False
    lowering: _Lowering  # compared by identity, as is `then`
    iteration: _Iteration
    then: _Rest
    before: Context

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """As in `Node`."""
        # A round matches one character at least, so only stopping here gives the empty text.
        return () if self.iteration.min else self.lowering.lower(self.then, self.before).labels

    def transitions(self) -> Transitions:
        """As in `Node`."""
        return self.lowering.unroll(self.iteration, self.then, self.before).transitions()


class _Lowering:
    """One tree in one spelling."""

    def __init__(self, encode: Encode, tree: Tree) -> None:
        self.encode = encode
        self.tree = tree
        if _num_assertions(tree) > MAX_ASSERTIONS:
            raise ResourceLimitError(f"the pattern has more than {MAX_ASSERTIONS} assertions", hint="a simpler pattern")
        self.anything = ir.repeat(encode(EVERYTHING))
        # The kinds of character that assertions tell apart.
        self.kinds: tuple[tuple[Context, Ranges], ...] = (("other", EVERYTHING),)
        if _has_boundary(tree):
            self.kinds = (("word", charclasses.WORD), ("other", utf8.invert(charclasses.WORD)))
        self.end = _Rest(None, None, False)
        self.open_end = _Rest(None, None, False, open_end=True)
        self._plain: dict[Tree, Node] = {}
        self._lowered: dict[tuple[_Rest, Context], Node] = {}
        self._rests: dict[tuple[Tree | _Iteration | _RoundEnd, _Rest], _Rest] = {}
        self._stars: dict[Repeated, Repeated] = {}

    def full_match(self) -> Node:
        return self._after(ir.EPSILON, (self.tree,), self.end)

    def search(self) -> Node:
        return self._after(self.anything, (self.tree,), self.open_end)

    def _after(self, prefix: Node, items: tuple[Tree, ...], end: _Rest) -> Node:
        """Texts that begin with a word of `prefix` and go on with the items; here lookbehinds are met.

        Raises:
            UnsupportedSchemaError: a lookbehind in a repeated group or in another assertion, or behind an assertion
                about what follows.
        """
        for index, item in enumerate(items):
            if not _has_lookbehind(item):
                continue
            done, rest = items[:index], items[index + 1 :]
            if isinstance(item, Sequence):
                return self._after(prefix, (*done, *item.items, *rest), end)
            if isinstance(item, Alternatives):
                return ir.choice(*(self._after(prefix, (*done, option, *rest), end) for option in item.options))
            if isinstance(item, Repeated) and item.max == 0:
                return self._after(prefix, (*done, *rest), end)
            if isinstance(item, Repeated) and item.max == 1:
                once = self._after(prefix, (*done, item.item, *rest), end)
                return once if item.min else ir.choice(self._after(prefix, (*done, *rest), end), once)
            if not isinstance(item, Lookbehind) or _sees_past(done) or _sees_past((item.item,)):
                raise UnsupportedSchemaError(
                    "a lookbehind in a repeated group, in another assertion or behind an assertion about what follows "
                    "is not supported in a pattern",
                    hint="moving the condition in front, as part of the pattern",
                )
            behind = self._after(self.anything, (item.item,), self.end)
            read = self._after(prefix, done, self.end)
            read = ir.both(read, ir.complement(behind) if item.is_negative else behind)
            return self._after(read, rest, end)
        following = end
        for item in reversed(items):
            following = self.before(item, following)
        if not following.asks_before:
            return ir.concat(prefix, self.lower(following, "other"))
        ways = [self.lower(following, "start")] if prefix.is_nullable else []
        for kind, chars in self.kinds if prefix is not ir.EPSILON else ():
            last = self.encode(chars)
            ending = (
                ir.concat(prefix, last) if prefix is self.anything else ir.both(prefix, ir.concat(self.anything, last))
            )
            ways.append(ir.concat(ending, self.lower(following, kind)))
        return ir.choice(*ways)

    def before(self, item: Tree | _Iteration | _RoundEnd, then: _Rest) -> _Rest:
        """The rest with `item` in front."""
        key = (item, then)
        rest = self._rests.get(key)
        if rest is None and isinstance(item, _RoundEnd):
            rest = self._rests[key] = _Rest(item, then, True)
        if rest is None:
            assert not isinstance(item, _RoundEnd)
            tree = item.tree if isinstance(item, _Iteration) else item
            asks = _asks_before(tree) or (_is_nullable(tree) and then.asks_before)
            rest = self._rests[key] = _Rest(item, then, asks)
        return rest

    def lower(self, rest: _Rest, before: Context) -> Node:
        """The texts of `rest` after `before`."""
        key = (rest, before if rest.asks_before else "other")
        node = self._lowered.get(key)
        if node is None:
            node = self._lowered[key] = self._lower(rest, before)
        return node

    def _lower(self, rest: _Rest, before: Context) -> Node:
        parts: list[Node] = []
        while True:
            item, then = rest.item, rest.then
            if item is None or then is None:
                return ir.concat(*parts, self.anything if rest.open_end else ir.EPSILON)
            if then.asks_before or isinstance(item, _Iteration | _RoundEnd) or _num_assertions(item):
                return ir.concat(*parts, self._lower_item(item, then, before))
            parts.append(self.plain(item))
            rest = then

    def _lower_item(self, item: Tree | _Iteration | _RoundEnd, then: _Rest, before: Context) -> Node:
        if isinstance(item, _RoundEnd):
            return ir.EMPTY if before.startswith("fresh") else self.lower(then, before)
        if isinstance(item, _Iteration):
            return Loop(self, item, then, before)
        if isinstance(item, Chars):
            return ir.choice(
                *(
                    ir.concat(self.encode(utf8.intersect(item.ranges, chars)), self.lower(then, kind))
                    for kind, chars in self.kinds
                )
            )
        if isinstance(item, Sequence):
            for part in reversed(item.items):
                then = self.before(part, then)
            return self.lower(then, before)
        if isinstance(item, Alternatives):
            return ir.choice(*(self.lower(self.before(option, then), before) for option in item.options))
        if isinstance(item, Repeated):
            return self._lower_repeated(item, then, before)
        if isinstance(item, Lookahead):
            ahead = self.lower(self.before(item.item, self.open_end), before)
            return ir.both(ir.complement(ahead) if item.is_negative else ahead, self.lower(then, before))
        assert isinstance(item, Assertion)  # lookbehinds were met before
        return self._lower_assertion(item, self.lower(then, before), before)

    def _lower_assertion(self, item: Assertion, after: Node, before: Context) -> Node:
        if item.kind == "start":
            return after if before.endswith("start") else ir.EMPTY
        if item.kind == "end":
            return ir.EPSILON if after.is_nullable else ir.EMPTY
        if item.kind == "last line":
            return ir.both(after, ir.optional(self.encode(((0x0A, 0x0A),))))
        if (item.kind == "boundary") == before.endswith("word"):  # the next character must be no word character
            chars = utf8.invert(charclasses.WORD)
            return ir.both(after, ir.optional(ir.concat(self.encode(chars), self.anything)))
        return ir.both(after, ir.concat(self.encode(charclasses.WORD), self.anything))

    def _lower_repeated(self, item: Repeated, then: _Rest, before: Context) -> Node:
        if not _num_assertions(item):  # `then` asks what the last character was
            texts = self.plain(item)
            ways = [self.lower(then, before)] if texts.is_nullable else []
            for kind, chars in self.kinds:
                ending = ir.both(texts, ir.concat(self.anything, self.encode(chars)))
                ways.append(ir.concat(ending, self.lower(then, kind)))
            return ir.choice(*ways)
        if item.max == 0:
            return self.lower(then, before)
        if item.max == 1:
            once = self.lower(self.before(item.item, then), before)
            return once if item.min else ir.choice(self.lower(then, before), once)
        if item.min and _is_nullable(item.item):  # these rounds may read nothing, if their assertions hold
            if item.min > MAX_EMPTY_ROUNDS:
                raise UnsupportedSchemaError(
                    f"more than {MAX_EMPTY_ROUNDS} rounds at least of a group with an assertion, which may match "
                    "nothing, are not supported in a pattern",
                    hint="taking the assertion out of the repeated group",
                )
            if item not in self._stars:
                self._stars[item] = Repeated(item.item, 0, None if item.max is None else item.max - item.min)
            rest = self.before(self._stars[item], then)
            for _ in range(item.min):
                rest = self.before(item.item, rest)
            return self.lower(rest, before)
        return Loop(self, _Iteration(item, item.min, item.max), then, before)

    def unroll(self, iteration: _Iteration, then: _Rest, before: Context) -> Node:
        """Stop here, or one round and then the rounds that are left."""
        ways = [] if iteration.min else [self.lower(then, before)]
        if iteration.max is None or iteration.max > 0:
            left = None if iteration.max is None else iteration.max - 1
            rounds = self.before(_Iteration(iteration.tree, max(iteration.min - 1, 0), left), then)
            body = iteration.tree.item
            if _is_nullable(body):
                rounds, before = self.before(_ROUND_END, rounds), _FRESH[before]
            ways.append(self.lower(self.before(body, rounds), before))
        return ir.choice(*ways)

    def plain(self, item: Tree) -> Node:
        """The texts of a tree without assertions."""
        node = self._plain.get(item)
        if node is None:
            if isinstance(item, Chars):
                node = self.encode(item.ranges)
            elif isinstance(item, Sequence):
                node = ir.concat(*map(self.plain, item.items))
            elif isinstance(item, Alternatives):
                single = [option.ranges for option in item.options if isinstance(option, Chars)]
                ranges = utf8.normalise(pair for ranges in single for pair in ranges)
                others = (self.plain(option) for option in item.options if not isinstance(option, Chars))
                node = ir.choice(self.encode(ranges), *others)  # one set, whose spellings are those of a set
            else:
                assert isinstance(item, Repeated)
                node = ir.repeat(self.plain(item.item), item.min, item.max)
            self._plain[item] = node
        return node


def _children(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Sequence):
        return tree.items
    if isinstance(tree, Alternatives):
        return tree.options
    return (tree.item,) if isinstance(tree, Repeated | Lookahead | Lookbehind) else ()


@lru_cache(maxsize=4096)
def _num_assertions(tree: Tree) -> int:
    return isinstance(tree, Assertion | Lookahead | Lookbehind) + sum(map(_num_assertions, _children(tree)))


@lru_cache(maxsize=4096)
def _has_lookbehind(tree: Tree) -> bool:
    return isinstance(tree, Lookbehind) or any(map(_has_lookbehind, _children(tree)))


def _sees_past(items: tuple[Tree, ...]) -> bool:
    """Whether an assertion in the items may be about what follows them."""
    for index, item in enumerate(items):
        behind = items[index + 1 :]
        if isinstance(item, Sequence):
            if _sees_past((*item.items, *behind)):
                return True
        elif (_has_boundary(item) and all(map(_is_nullable, behind))) or _sees_far(item):  # it sees one character
            return True
    return False


def _sees_far(tree: Tree) -> bool:
    if isinstance(tree, Assertion):
        return tree.kind in ("end", "last line")
    return isinstance(tree, Lookahead) or any(map(_sees_far, _children(tree)))


def _has_boundary(tree: Tree) -> bool:
    if isinstance(tree, Assertion):
        return tree.kind in ("boundary", "inside")
    return any(map(_has_boundary, _children(tree)))


def _is_nullable(tree: Tree) -> bool:
    if isinstance(tree, Chars):
        return False
    if isinstance(tree, Sequence):
        return all(map(_is_nullable, tree.items))
    if isinstance(tree, Alternatives):
        return any(map(_is_nullable, tree.options))
    return not isinstance(tree, Repeated) or tree.min == 0 or _is_nullable(tree.item)


def _asks_before(tree: Tree) -> bool:
    """Whether an assertion about what came before may be met before the first character."""
    if isinstance(tree, Assertion):
        return tree.kind in ("start", "boundary", "inside")
    if isinstance(tree, Sequence):
        for item in tree.items:
            if _asks_before(item):
                return True
            if not _is_nullable(item):
                return False
        return False
    return any(map(_asks_before, _children(tree)))
