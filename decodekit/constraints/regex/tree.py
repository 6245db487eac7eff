"""The tree of a regular expression, and what can be told from a tree without lowering it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from decodekit.constraints.language.utf8 import Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One code point out of a set, which may be empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """The items one after the other; none for the empty text."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    """Any of the options. Their order matters in an atomic group only."""

    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Quantified:
    """The item `min` to `max` times (None: no bound). Greedy and lazy have the same texts but in an atomic group."""

    item: Tree
    min: int
    max: int | None
    is_lazy: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Atomic:
    """Of the texts of the item that the place begins with, the one that a backtracking search finds first."""

    item: Tree


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead:
    """Nothing, provided that what follows begins (or does not begin) with the item."""

    item: Tree
    is_negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Lookbehind:
    """Nothing, provided that what was read ends (or does not end) with the item."""

    item: Tree
    is_negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    """Nothing, provided that the place is right.

    Attributes:
        kind: "start" and "end" of the text; "last line": the end, or before a line end that ends the text; "line
            start" and "line end": also behind and before any line end; "boundary" between a word character and another
            one or none; "inside": not at a boundary.
        chars: the line ends, or the word characters, if the kind needs them.
        holds_in_empty: whether an "inside" holds in the empty text.
    """

    kind: Literal["start", "end", "last line", "line start", "line end", "boundary", "inside"]
    chars: Ranges = ()
    holds_in_empty: bool = True

    @property
    def asks_before(self) -> bool:
        """Whether it is about what came before."""
        return self.kind in ("start", "line start", "boundary", "inside")


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """The item, whose text is kept under a number. Only where references are read (`syntax.parse_groups`)."""

    item: Tree
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The text of one of some groups once more, or nothing if they hold none.

    Attributes:
        numbers: those of the groups: several of one name are never in use together.
        fold: the characters that are equal to those of a set; None where the case matters.
    """

    numbers: tuple[int, ...]
    fold: Callable[[Ranges], Ranges] | None = None


Tree: TypeAlias = (
    Chars | Concatenation | Alternation | Quantified | Atomic | Lookahead | Lookbehind | Assertion | Capture | Reference
)


def children(tree: Tree) -> tuple[Tree, ...]:
    """The trees that a tree is made of."""
    match tree:
        case Concatenation(parts) | Alternation(parts):
            return parts
        case Quantified(item) | Atomic(item) | Lookahead(item) | Lookbehind(item) | Capture(item):
            return (item,)
    return ()


def subtrees(tree: Tree) -> Iterator[Tree]:
    """The tree and all that it is made of."""
    stack = [tree]
    while stack:
        one = stack.pop()
        yield one
        stack += children(one)


def rebuilt(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """The same of what the changed children are."""
    match tree:
        case Concatenation(parts) | Alternation(parts):
            return type(tree)(tuple(map(change, parts)))
        case Quantified(item) | Atomic(item) | Lookahead(item) | Lookbehind(item) | Capture(item):
            return replace(tree, item=change(item))
    return tree


@lru_cache(maxsize=4096)
def has_references(tree: Tree) -> bool:
    """Whether a back-reference is in it."""
    return isinstance(tree, Reference) or any(map(has_references, children(tree)))


@lru_cache(maxsize=4096)
def num_assertions(tree: Tree) -> int:
    """The number of assertions and atomic groups in it: of what needs to know its surroundings."""
    return isinstance(tree, Assertion | Lookahead | Lookbehind | Atomic) + sum(map(num_assertions, children(tree)))


@lru_cache(maxsize=4096)
def has_lookbehind(tree: Tree) -> bool:
    """Whether a lookbehind is in it."""
    return isinstance(tree, Lookbehind) or any(map(has_lookbehind, children(tree)))


def kinds_of_chars(tree: Tree) -> set[Ranges]:
    """The sets of characters that decide, as the last one that was read, whether an assertion holds."""
    return {one.chars for one in subtrees(tree) if isinstance(one, Assertion) and one.asks_before and one.chars}


def sees_past(items: tuple[Tree, ...]) -> bool:
    """Whether an assertion in the items may be about what follows them."""
    for index, item in enumerate(items):
        behind = items[index + 1 :]
        if isinstance(item, Concatenation):
            if sees_past((*item.items, *behind)):
                return True
        elif (_sees_one(item) and all(map(is_nullable, behind))) or _sees_far(item):
            return True
    return False


def _sees_one(tree: Tree) -> bool:
    kinds = ("line end", "boundary", "inside")
    return any(isinstance(one, Assertion) and one.kind in kinds for one in subtrees(tree))


def _sees_far(tree: Tree) -> bool:
    return any(
        one.kind in ("end", "last line") if isinstance(one, Assertion) else isinstance(one, Lookahead | Atomic)
        for one in subtrees(tree)
    )


def is_nullable(tree: Tree) -> bool:
    """Whether it may match nothing, if its assertions hold."""
    return width(tree)[0] == 0


def asks_before(tree: Tree) -> bool:
    """Whether an assertion about what came before may be met before the first character."""
    if isinstance(tree, Assertion):
        return tree.asks_before
    parts = children(tree)
    if isinstance(tree, Concatenation):  # those up to the first that reads something
        parts = parts[: next((i + 1 for i, part in enumerate(parts) if not is_nullable(part)), len(parts))]
    return any(map(asks_before, parts))


def width(tree: Tree) -> tuple[int, int | None]:
    """Least and greatest number of characters (None: no bound)."""
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, Assertion | Lookahead | Lookbehind):
        return 0, 0
    widths = [width(child) for child in children(tree)]
    lows, known = [low for low, _ in widths], [high for _, high in widths if high is not None]
    is_bounded = len(known) == len(widths)
    if isinstance(tree, Alternation):
        return min(lows), max(known) if is_bounded else None
    low, high = sum(lows), sum(known) if is_bounded else None
    if isinstance(tree, Quantified):
        low *= tree.min
        high = 0 if high == 0 or tree.max == 0 else None if high is None or tree.max is None else high * tree.max
    return low, high
