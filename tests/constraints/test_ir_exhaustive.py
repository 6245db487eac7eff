"""Every expression up to a size means what its operators say: its words, labels, emptiness, bounds and saturation.

The constructors of `ir` simplify, so a wrong rule hides wherever nobody looks. Here all expressions of some leaves, up
to a number of operators, are made twice: as nodes, and as sets of words (`tests/reference/expressions.py`). Expressions
whose nodes are one object are gone through once: whatever is built on them is the same, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import pytest

from decodekit.constraints.composition.free_text import free_text
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.words import words as word_list
from tests.constraints.views import Views
from tests.reference.composition import is_free_text
from tests.reference.expressions import Language, Meanings
from tests.sizes import few

Counts: TypeAlias = tuple[int, int | None]
Known: TypeAlias = dict[Node, Language]
"""Nodes with their words up to the length."""

COUNTS: Final[tuple[Counts, ...]] = (
    (0, 0), (0, 1), (0, 2), (0, None), (1, 1), (1, 2), (1, None), (2, 2), (2, None),
)  # fmt: skip
ALPHABET: Final = b"ab"
LENGTH: Final = 5
NAMES: Final = ("x", "y")


def faults(node: Node, language: Language, views: Views) -> Iterator[str]:
    """What is wrong with a node that should have these words up to the length."""
    if views.of(node, LENGTH)[:-1] != views.words(language, LENGTH):
        yield "words"
    for byte in (*ALPHABET, 0x21):
        single = node._after(byte) if isinstance(node, ir._Interned) else node.derivative(byte)
        of_row = Node.derivative(node, byte)
        if single is not of_row and views.of(single, LENGTH - 1) != views.of(of_row, LENGTH - 1):
            yield f"derivative by {byte:c}"
    if any(mask & ~node.possible_bytes() for mask, target in node.transitions() if not target.is_empty):
        yield "possible_bytes"
    shortest = views.shortest(node)  # the words that are longer than `LENGTH` decide, too
    if node.is_empty != (shortest is None):
        yield "is_empty"
    if shortest is None and not node.can_be_empty:
        yield "can_be_empty"
    if not node.is_labelled and any(label is not None for _, label in language):
        yield "is_labelled"
    numbers = ir.label_range(node)
    if numbers is not None and any(label not in range(*numbers) for _, label in language):
        yield "label_range"
    for limit in range(4):
        rough = node.saturated(limit)
        if rough is not node and views.of(rough, limit) != views.of(node, limit):
            yield f"saturated({limit})"
    bounds = node.bounds()
    if bounds is not None:
        least, most = bounds
        if shortest is None or shortest > least:
            yield "bounds, of a word"
        lengths = [views.shortest(rest) for rest in views.beginnings(node)]
        if any(length is None or length > most for length in lengths):
            yield "bounds, of a beginning"


class Expressions:
    """All expressions over some leaves, by their number of operators, as nodes with their words.

    Attributes:
        levels: the nodes that need this number of operators at least.
        wrong: expressions whose node is that of an expression with other words, or depends on the order.
    """

    def __init__(self, meanings: Meanings, leaves: Mapping[Node, Language], counts: Iterable[Counts] = COUNTS) -> None:
        self.meanings, self.counts = meanings, tuple(counts)
        self.levels: list[Known] = [dict(leaves)]
        self.known: Known = dict(leaves)
        self.num_expressions = 0
        self.wrong: list[str] = []

    def grow(self) -> Known:
        """The expressions with one more operator."""
        new: Known = {}
        for node, language in self.made():
            self.num_expressions += 1
            known = self.known.get(node)
            if known is None:
                self.known[node] = new[node] = language
            elif known != language:
                self.wrong.append(f"words: {node!r} for another expression")
        self.levels.append(new)
        return new

    def made(self) -> Iterator[tuple[Node, Language]]:
        """The expressions with one more operator, one after the other."""
        means = self.meanings
        for node, language in self.levels[-1].items():
            for low, high in self.counts:
                yield ir.repeat(node, low, high), means.repeat(language, low, high)
            yield ir.complement(node), means.complement(language)
        for number, level in enumerate(self.levels):
            other_number = len(self.levels) - 1 - number
            for first, words in level.items():
                for second, others in self.levels[other_number].items():
                    yield ir.concat(first, second), means.concat(words, others)
                    if number > other_number:
                        continue  # the order of the others does not matter
                    yield self.either_way(ir.choice, first, second), means.choice(words, others)
                    if not (first.is_labelled and second.is_labelled):
                        yield self.either_way(ir.both, first, second), means.both(words, others)

    def either_way(self, operator: Callable[[Node, Node], Node], first: Node, second: Node) -> Node:
        node = operator(first, second)
        if operator(second, first) is not node:
            self.wrong.append(f"the order of {first!r} and {second!r}")
        return node


def leaves(meanings: Meanings, kinds: str, names: tuple[str, str]) -> Known:
    """Leaves by their names.

    ``a b`` the letters, ``|`` either, ``2`` both as a literal, ``0 1 .`` the constants, ``x y 3`` labels, ``w`` a list.
    """
    first, second = (bytes([letter]) for letter in meanings.alphabet)
    a, b = meanings.byte_set(first), meanings.byte_set(second)
    ab = meanings.concat(a, b)
    every: dict[str, tuple[Node, Language]] = {
        "0": (ir.EMPTY, frozenset()),
        "1": (ir.EPSILON, meanings.accept(None)),
        ".": (ir.ANYTHING, meanings.everything),
        "a": (ir.byte_set(first), a),
        "b": (ir.byte_set(second), b),
        "|": (ir.byte_set(meanings.alphabet), a | b),
        "2": (ir.literal(meanings.alphabet), ab),
        "x": (ir.accept(names[0]), meanings.accept(names[0])),
        "y": (ir.accept(names[1]), meanings.accept(names[1])),
        "3": (ir.accept(3), meanings.accept(3)),
        "w": (
            word_list({first: names[0], first + second: None, first * 3: 3}),
            meanings.concat(a, meanings.accept(names[0])) | ab | frozenset({(first * 3, 3)}),
        ),
    }
    return dict(every[kind] for kind in kinds)


def wrong(
    kinds: str, size: int, counts: Iterable[Counts] = COUNTS, alphabet: bytes = ALPHABET, names: tuple[str, str] = NAMES
) -> tuple[int, list[str]]:
    """The number of expressions up to a number of operators, and what is wrong with some of them."""
    meanings, views = Meanings(alphabet, LENGTH), Views(alphabet, (None, *names, 3))
    expressions = Expressions(meanings, leaves(meanings, kinds, names), counts)
    found: list[str] = []
    for level in range(size + 1):
        for node, language in expressions.levels[0].items() if level == 0 else expressions.grow().items():
            found += (f"{what}: {node!r}" for what in faults(node, language, views))
    return expressions.num_expressions, expressions.wrong + found


def assert_right(kinds: str, size: int, num_expressions: int, counts: Iterable[Counts] = COUNTS) -> None:
    num_seen, found = wrong(kinds, size, counts)
    assert not found, found[:10]
    assert num_seen >= num_expressions  # the world did not shrink


def test_all_leaves_under_two_operators() -> None:
    assert_right("01.ab|2xy3w", 2, 8_000, (*COUNTS, (3, 3)))


def test_some_leaves_under_three_operators() -> None:
    assert_right("1.ax", 3, 8_000)


def test_without_factoring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir, "_FACTOR_DEPTH", 0)
    assert_right("1ab|2x", 2, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_most_leaves_under_three_operators() -> None:
    assert_right("01.ab|2xyw", 3, 200_000, (*COUNTS, (2, 3), (3, None)))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kinds", ["1ax", "1ab", "a.x"])
def test_few_leaves_under_four_operators(kinds: str) -> None:
    assert_right(kinds, 4, 50_000)


# -- nodes that are derived when asked for


def lists_of_words(meanings: Meanings) -> Iterator[tuple[Node, Language]]:
    """Every list of words of at most two letters, with labels in turn."""
    candidates = sorted(word for word, _ in meanings.everything if len(word) <= 2)
    for size in range(len(candidates) + 1):
        for number, chosen in enumerate(itertools.combinations(candidates, size)):
            turn = itertools.cycle((None, "x", 3)) if number % 2 else itertools.repeat((None, 3)[number % 4 // 2])
            listed = dict(zip(chosen, turn, strict=False))
            yield word_list(listed), frozenset(listed.items())


def free_texts(meanings: Meanings) -> Iterator[tuple[Node, Language]]:
    """Free texts without up to two words of at most two letters, that do not end with another, of some lengths."""
    candidates = sorted(word.decode() for word, _ in meanings.everything if 0 < len(word) <= 2)
    pairs = [*((word,) for word in candidates), *itertools.combinations(candidates, 2)]
    for excluded, end in itertools.product(((), *pairs), ("", *candidates)):
        not_ending = [end] if end else []
        for low, high in ((0, None), (1, None), (0, 2), (2, 3)):
            node = free_text(excluded, not_ending, low, high)
            words = (word for word, _ in meanings.everything)
            yield (
                node,
                frozenset(
                    (word, None) for word in words if is_free_text(word.decode(), list(excluded), not_ending, low, high)
                ),
            )


@few(1)
@pytest.mark.parametrize(("nodes", "least"), [(lists_of_words, 128), (free_texts, 600)])
def test_nodes_that_are_derived_when_asked_for(
    nodes: Callable[[Meanings], Iterator[tuple[Node, Language]]], least: int
) -> None:
    meanings, views = Meanings(ALPHABET, LENGTH), Views(ALPHABET, (None, *NAMES, 3))
    found: list[str] = []
    num_nodes = 0
    for node, language in nodes(meanings):
        num_nodes += 1
        found += (f"{what}: {node!r}" for what in faults(node, language, views))
    assert not found, found[:10]
    assert num_nodes >= least


# -- negative controls: what would be found

_repeat, _join_repeats, _saturate_both = ir.repeat, ir._join_repeats, ir.Both._saturate


def repeat_that_drops_the_count(node: Node, min: int = 0, max: int | None = None) -> Node:
    if isinstance(node, ir.Repeat) and node.max is None and node.min <= 1 and max is None:
        return _repeat(node.body, node.min if min else 0)  # (X+){2,} is no X+
    return _repeat(node, min, max)


def repeat_that_drops_a_label(node: Node, min: int = 0, max: int | None = None) -> Node:
    return ir.EPSILON if min == 0 and isinstance(node, ir.Accept) else _repeat(node, min, max)


def join_over_a_gap(group: list[ir.Repeat]) -> list[Node]:
    high = max((node.max for node in group if node.max is not None), default=None)
    if len(group) == 1 or any(node.max is None for node in group):
        return _join_repeats(group)
    return [ir.repeat(group[0].body, min(node.min for node in group), high)]


def saturate_too_much(self: ir.Repeat, limit: int) -> Node:
    high = None if self.max is None or self.max > limit else self.max
    return ir.repeat(self.body.saturated(limit), min(self.min, limit), high)


def first_label(before: tuple[Hashable, ...], after: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    return tuple(dict.fromkeys(last if first is None else first for last in after for first in before))


def bound_of_the_longest_part(self: ir.Product) -> tuple[int, int] | None:
    bounds = [part.bounds() for part in ir._chain(self)]
    known = [one for one in bounds if one is not None]
    return (sum(least for least, _ in known), max(most for _, most in known)) if len(known) == len(bounds) else None


def no_label_to_keep(node: Node) -> tuple[Hashable, ...]:
    return () if isinstance(node, ir.Product) else (None,)


def after_the_head_alone(self: ir.Product, byte: int) -> Node:
    return ir.concat(self.head.derivative(byte), self.tail)


def bytes_of_the_head_alone(self: ir.Product) -> int:
    return self.head.possible_bytes()


BROKEN: Final[list[tuple[Any, str, Any, str]]] = [
    (ir, "repeat", repeat_that_drops_the_count, "words"),
    (ir, "repeat", repeat_that_drops_a_label, "words"),
    (ir, "_join_repeats", join_over_a_gap, "words"),
    (ir, "_pass_labels", first_label, "words"),
    (ir, "_possible_labels", no_label_to_keep, "words"),
    (ir.Repeat, "_saturate", saturate_too_much, "saturated"),
    (ir.Product, "_after", after_the_head_alone, "derivative"),
    (ir.Product, "possible_bytes", bytes_of_the_head_alone, "possible_bytes"),
    (ir.Product, "_bound", bound_of_the_longest_part, "bounds"),
]


@few(3)
@pytest.mark.parametrize("number", range(len(BROKEN)), ids=[broken.__name__ for _, _, broken, _ in BROKEN])
def test_negative_control_a_broken_rule_is_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, broken, what = BROKEN[number]
    monkeypatch.setattr(place, name, broken)
    # Letters and labels of its own: nodes that were made by a rule are what the next rule finds, while they live.
    letters, names = bytes([0x80 + 2 * number, 0x81 + 2 * number]), (f"x{number}", f"y{number}")
    kinds, size = ("a", 3) if broken is join_over_a_gap else ("1a2xy", 2)
    _, found = wrong(kinds, size, (*COUNTS, (3, 3)), letters, names)
    assert any(fault.startswith(what) for fault in found)
    monkeypatch.undo()
    ir.sweep()


# -- counts of letters that are out of sight (`declare_alphabet`)


def lettered(letters: bytes, size: int) -> tuple[Node, Known]:
    """A letter of one byte or two, and the expressions of such letters without dead ends."""
    one, two = ir.byte_set(letters[:1]), ir.literal(letters[1:])
    letter = ir.choice(one, two)
    ir.declare_alphabet(letter)
    meanings = Meanings(letters, 0)  # their words are not asked for
    nothing: Language = frozenset()
    leaves = dict.fromkeys((one, two, letter, ir.EPSILON, ir.accept("x")), nothing)
    expressions = Expressions(meanings, leaves)
    for _ in range(size):
        expressions.grow()
    usable = (node for node in expressions.known if node is not ir.EMPTY and node.bounds() is not None)
    return letter, dict.fromkeys(usable, nothing)


def forgotten_too_early(
    letters: bytes, size: int, highs: Iterable[int], limits: Iterable[int], lows: Iterable[int] = (0, 1)
) -> tuple[int, list[str]]:
    """How many meets forget their count, or the greatest one, and those that forget one that can be seen."""
    letter, nodes = lettered(letters, size)
    views = Views(letters, (None, *NAMES))
    num_forgotten, found = 0, []
    for node in nodes:
        for low, high in itertools.product(lows, highs):
            meeting = ir.both(node, ir.repeat(letter, low, high))
            for rest in views.beginnings(meeting, 12):
                for limit in limits if not rest.is_empty else ():
                    rough = rest.saturated(limit)
                    num_forgotten += isinstance(rest, ir.Both) and rough is not rest
                    if rough is not rest and views.of(rough, limit) != views.of(rest, limit):
                        found.append(f"{rest!r} up to {limit}")
    return num_forgotten, found


def test_counts_of_letters_are_forgotten_where_nobody_sees_them() -> None:
    num_forgotten, found = forgotten_too_early(b"abc", 1, range(1, 8), range(1, 5))
    assert not found, found[:10]
    assert num_forgotten > 100


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_counts_of_letters_are_forgotten_where_nobody_sees_them_in_larger_ones() -> None:
    num_forgotten, found = forgotten_too_early(b"abc", 2, range(1, 12), range(1, 5))
    assert not found, found[:10]
    assert num_forgotten > 10_000


def test_greatest_counts_are_forgotten_where_words_go_round_up_to_the_least() -> None:
    num_forgotten, found = forgotten_too_early(b"abc", 1, (5, 7, 9), (1, 2), (2, 3))
    assert not found, found[:10]
    assert num_forgotten > 100


def wrongly_inhabited(letters: bytes, size: int) -> tuple[int, list[str]]:
    """How many meets with a count have a word that is plain to see, and those of them that a search finds empty."""
    letter, nodes = lettered(letters, size)
    num_seen, found = 0, []
    for node, low, high in itertools.product(nodes, range(4), (*range(1, 8), None)):
        meeting = ir.both(node, ir.repeat(letter, low, high)) if high is None or low <= high else ir.EMPTY
        for rest in Views(letters, (None, *NAMES)).beginnings(meeting, 3):
            if isinstance(rest, ir.Both) and rest._has_short_word():
                num_seen += 1
                if not any(one.is_nullable for one in reached_from(rest)):
                    found.append(repr(rest))
    return num_seen, found


def reached_from(node: Node) -> list[Node]:
    """All derivatives."""
    reached = [node]
    for one in reached:
        reached += [after for _, after in one.transitions() if after not in reached]
    return reached


def test_words_that_are_plain_to_see_are_there() -> None:
    num_seen, found = wrongly_inhabited(b"abd", 1)
    assert not found, found[:10]
    assert num_seen > 100


def test_negative_control_a_word_without_length_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = ir._Interned.bounds
    monkeypatch.setattr(ir._Interned, "bounds", lambda self: bound(self) and (0, 0))
    assert wrongly_inhabited(b"\xc0\xc1\xf8", 1)[1]
    monkeypatch.undo()
    ir.sweep()


def test_negative_control_a_word_that_goes_round_in_no_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (ir.byte_set(bytes((byte,))) for byte in b"\xc0\xc1\xf6")
    letter = ir.choice(one, two, three)
    ir.declare_alphabet(letter)
    even = ir.repeat(ir.concat(one, one))
    node = ir.choice(ir.concat(two, even), ir.concat(three, three, even))  # an odd or an even number of letters
    views = Views(b"\xc0\xc1\xf6", (None,))

    def meeting(low: int, high: int) -> Node:
        return ir.both(node, ir.repeat(letter, low, high))

    def is_seen(low: int, high: int) -> bool:
        rough = meeting(low, high).saturated(1)
        return rough is not meeting(low, high) and views.of(rough, 1) != views.of(meeting(low, high), 1)

    bounds = [(low, high) for high in range(2, 39) for low in range(2, high + 1)]
    assert not any(is_seen(*bound) for bound in bounds)
    exact, loop = views.of(meeting(39, 39), 1), ir.bytes_of_loop
    monkeypatch.setattr(ir, "bytes_of_loop", lambda node: None if loop(node) is None else 0)
    assert views.of(meeting(39, 39).saturated(1), 1) != exact
    monkeypatch.undo()
    ir.sweep()


def test_negative_control_a_count_that_is_forgotten_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = ir.Repeat._bound
    monkeypatch.setattr(ir.Repeat, "_bound", lambda self: bound(self) and (0, 0))
    assert forgotten_too_early(b"\xc0\xc1\xf5", 2, (3,), (3,))[1]  # (aa)* within three letters
    monkeypatch.undo()
    ir.sweep()
