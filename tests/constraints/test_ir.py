"""Nodes mean what their operators say, equal structure is one object, and hostile sizes stay small.

Small expressions are gone through in `test_ir_exhaustive.py`; here chance looks at larger ones.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.constraints.language import ir
from decodekit.constraints.language import node as nodes
from decodekit.constraints.language.ir import (
    ANYTHING,
    EMPTY,
    EPSILON,
    accept,
    both,
    byte_set,
    choice,
    complement,
    concat,
    literal,
    matches,
    repeat,
)
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.words import words as word_list
from decodekit.errors import ResourceLimitError
from tests.reference.languages import derived_words, words

ALPHABET = b"abc"


def unlabelled(depth: int = 3) -> st.SearchStrategy[Node]:
    leaves = st.one_of(
        st.sampled_from([EMPTY, EPSILON, ANYTHING]),
        st.binary(min_size=1, max_size=3).map(lambda data: byte_set([ALPHABET[b % 3] for b in data])),
        st.text("abc", max_size=4).map(lambda text: literal(text.encode())),
    )
    counts = st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 3))).map(
        lambda c: (c[0], None if c[1] is None else c[0] + c[1])
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda nodes: concat(*nodes)),
            st.lists(inner, min_size=2, max_size=3).map(lambda nodes: choice(*nodes)),
            st.lists(inner, min_size=2, max_size=3).map(lambda nodes: both(*nodes)),
            inner.map(complement),
            st.tuples(inner, counts).map(lambda pair: repeat(pair[0], *pair[1])),
        ),
        max_leaves=6,
    )


@settings(max_examples=50, deadline=None)
@given(unlabelled())
def test_derivatives_find_the_words_of_the_operators(node: Node) -> None:
    expected = {word for word, _ in words(node, ALPHABET, 4)}
    assert {word for word, _ in derived_words(node, ALPHABET, 4)} == expected
    for word in expected:
        assert matches(node, word)
    if expected:
        assert not node.is_empty


@settings(max_examples=40, deadline=None)
@given(unlabelled(), unlabelled(), unlabelled())
def test_labels_reach_the_end_of_their_words(first: Node, second: Node, tail: Node) -> None:
    node = concat(choice(concat(first, accept(1)), concat(second, accept(2))), tail)
    assert derived_words(node, ALPHABET, 4) == words(node, ALPHABET, 4)
    inside = both(concat(choice(concat(first, accept("x")), second), tail), tail)
    assert derived_words(inside, ALPHABET, 4) == words(inside, ALPHABET, 4)


@settings(max_examples=40, deadline=None)
@given(unlabelled())
def test_emptiness_is_exact(node: Node) -> None:
    # Without counts above 3 and with at most 6 leaves, a shortest word this long would be a surprise: explore instead.
    reachable, agenda, alive = {node}, [node], False
    while agenda and not alive and len(reachable) < 3000:
        current = agenda.pop()
        alive = current.is_nullable
        for _, target in current.transitions():
            if target not in reachable:
                reachable.add(target)
                agenda.append(target)
    assert node.is_empty == (not alive)


def test_equal_structure_is_one_object() -> None:
    a, b = literal(b"ab"), byte_set(b"xyz")
    assert concat(a, b) is concat(literal(b"ab"), byte_set([120, 121, 122]))
    assert choice(a, b) is choice(b, a, b)
    assert choice(a, choice(b, EMPTY)) is choice(a, b)
    assert both(a, b) is both(b, both(a, a))
    assert concat(a, concat(b, a)) is concat(concat(a, b), a)
    assert complement(complement(a)) is a
    assert choice(byte_set(b"a"), byte_set(b"b")) is byte_set(b"ab")
    assert both(byte_set(b"ab"), byte_set(b"bc")) is byte_set(b"b")
    assert both(a, complement(a)) is EMPTY
    assert repeat(repeat(a)) is repeat(a)
    assert choice(repeat(a, 2, 4), repeat(a, 5, 9)) is repeat(a, 2, 9)
    assert choice(EPSILON, repeat(a, 1, 3)) is repeat(a, 0, 3)
    assert accept(1) is not accept(True)
    assert concat(b, EPSILON) is b is concat(EPSILON, b) and concat(b, EMPTY) is EMPTY


def test_repeats_of_repeats_keep_their_counts() -> None:
    a = byte_set(b"a")
    assert repeat(repeat(a, 1), 2) is repeat(a, 2) is repeat(repeat(a, 1), 2, 7)
    assert repeat(repeat(a, 2), 3) is repeat(a, 6)
    assert repeat(repeat(a, 1), 0) is repeat(repeat(a, 1), 0, 1) is repeat(a)
    assert not matches(repeat(repeat(a, 2), 0), b"a") and matches(repeat(repeat(a, 2), 0), b"")


def test_rounds_that_read_nothing_keep_their_label() -> None:
    named = choice(byte_set(b"a"), accept("x"))
    for node in (repeat(accept("x"), 0, 2), repeat(named, 2, 2), repeat(named, 3), concat(repeat(named, 3, 4), named)):
        assert derived_words(node, ALPHABET, 5) == words(node, ALPHABET, 5)
    assert repeat(accept("x"), 0, 2).labels == (None, "x")
    assert derived_words(repeat(named, 2, 2), ALPHABET, 3) == {(b"", "x"), (b"a", "x"), (b"aa", None)}


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="labelled"):
        both(concat(literal(b"ab"), accept(1)), concat(repeat(literal(b"ab")), accept(2)))
    for bounds in ((-1, None), (3, 2)):
        with pytest.raises(ValueError, match="no number"):
            repeat(literal(b"a"), *bounds)
    for members in ([256], [-1], 1 << 256):
        with pytest.raises(ValueError, match="byte"):
            byte_set(members)  # type: ignore[arg-type]
    for letter in (choice(byte_set(b"a"), EPSILON), concat(byte_set(b"a"), accept(1))):
        with pytest.raises(ValueError, match="letter"):
            ir.declare_alphabet(letter)
    with pytest.raises(TypeError, match="pickle the constraint"):
        pickle.dumps(literal(b"ab"))


def test_transitions_are_disjoint() -> None:
    node = choice(repeat(byte_set(range(97, 110))), concat(byte_set(range(100, 120)), literal(b"zz")), literal(b"abc"))
    for _ in range(3):
        masks = [mask for mask, _ in node.transitions()]
        assert sum(mask.bit_count() for mask in masks) == (sum(masks)).bit_count()
        node = node.derivative(ord("a"))


def reachable(node: Node, text: bytes) -> list[Node]:
    seen = [node]
    for byte in text:
        node = node.derivative(byte)
        seen.append(node)
    return seen


@pytest.mark.parametrize(
    "node",
    [
        repeat(repeat(repeat(byte_set(b"a"), 1000, 1000), 1000, 1000), 1000, 1000),
        repeat(choice(literal(b"a"), literal(b"aa")), 10**9, 10**9),
        repeat(repeat(byte_set(b"a"), 0, 10**9), 0, 10**9),
        repeat(choice(literal(b"ab"), literal(b"abab"), literal(b"aba")), 5, 10**6),
        concat(*[repeat(byte_set(b"a"), 0, 1)] * 3000),
        concat(*[repeat(byte_set(b), 0, 1) for b in (b"a", b"ab", b"ac")] * 80),
        concat(*[literal(b"a")] * 20_000),
        choice(*(concat(*[literal(b"a")] * n) for n in range(1, 200))),
        literal(b"ab" * 500_000),
    ],
    ids=[
        "nested",
        "ambiguous",
        "nested optional",
        "overlapping",
        "optionals",
        "mixed optionals",
        "long",
        "many lengths",
        "megabyte",
    ],
)
@pytest.mark.timeout(60)
def test_hostile_counts_stay_small(node: Node) -> None:
    current, size = node, 0
    for byte in (b"ab" if matches_start(node, b"ab") else b"aa") * 30:
        current = current.derivative(byte)
        assert not current.is_empty
        size = max(size, len(current.options) if isinstance(current, ir.Choice) else 1)
    assert size < 4000


def matches_start(node: Node, data: bytes) -> bool:
    return not reachable(node, data)[-1].is_empty


def test_a_search_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MAX_SEARCH_STATES", 500)
    # Lengths that two different primes divide: the shortest common word has 31 * 37 characters.
    a = byte_set(b"a")
    node = both(repeat(repeat(a, 31, 31), 1), repeat(repeat(a, 37, 37), 1))
    with pytest.raises(ResourceLimitError, match="states"):
        _ = node.is_empty
    monkeypatch.setattr(nodes, "MAX_SEARCH_STATES", 5000)
    assert not node.is_empty
    assert both(repeat(repeat(a, 31, 31), 1, 36), repeat(repeat(a, 37, 37), 1)).is_empty


def test_word_lists_equal_choices_of_literals() -> None:
    texts = {b"": None, b"a": 1, b"ab": 2, b"abc": 1, b"b": None, b"bca": 3, b"cc": None}
    listed = word_list(texts)
    assert derived_words(listed, ALPHABET, 4) == frozenset(texts.items())
    assert word_list({}) is EMPTY and word_list({b"ab": None}) is literal(b"ab")
    big = word_list({f"{n:06}".encode(): None for n in range(100_000)})
    assert len(big.transitions()) == 10 if big.labels else True
    assert matches(big, b"054321") and not matches(big, b"100000")


def test_nodes_are_freed() -> None:
    ir.sweep()
    before = len(ir._interned)
    node: Any = repeat(choice(*(literal(f"temporary {n}".encode()) for n in range(500))))
    for byte in b"temporary 4":
        node = node.derivative(byte)
    assert len(ir._interned) > before + 500
    kept = node
    del node
    ir.sweep()
    assert before < len(ir._interned) < before + 2000 and kept.derivative(ord("2")) is kept.derivative(ord("2"))
    del kept
    ir.sweep()
    assert len(ir._interned) <= before


def test_threads_make_the_same_nodes() -> None:
    made: list[list[Node]] = []

    def make() -> None:
        made.append([concat(repeat(literal(f"thread {n}".encode()), n % 5), byte_set([n])) for n in range(200)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert all(first is other for nodes in made[1:] for first, other in zip(made[0], nodes, strict=True))


@settings(max_examples=40, deadline=None)
@given(unlabelled(), unlabelled(), st.integers(1, 3))
def test_saturated_counts_look_the_same_nearby(first: Node, second: Node, limit: int) -> None:
    counted = concat(repeat(choice(first, byte_set(b"a")), limit, 50), repeat(byte_set(b"b"), 0, limit + 1))
    node = choice(concat(counted, accept("x")), concat(repeat(second, 0, 9), byte_set(b"c"), accept("y")))
    pairs = [(node, node.saturated(limit))]
    for length in range(limit + 1):
        for exact, forgetful in pairs:
            assert set(exact.labels) == set(forgetful.labels)
            assert exact.is_empty == forgetful.is_empty
        if length < limit:
            pairs = [(e.derivative(b), f.derivative(b)) for e, f in pairs for b in ALPHABET]


def test_saturation_forgets_counts_and_only_those_beyond_reach() -> None:
    a = byte_set(b"a")
    assert repeat(a, 0, 900).saturated(16) is repeat(a, 0, 800).saturated(16) is repeat(a)
    assert repeat(a, 500, 900).saturated(16) is repeat(a, 17)
    assert repeat(a, 3, 16).saturated(16) is repeat(a, 3, 16)
    assert repeat(a, 3, 17).saturated(16) is repeat(a, 3)
    meeting = both(repeat(a, 500, 900), repeat(literal(b"aa"), 0, 260))
    assert meeting.saturated(16) is meeting  # what is empty depends on both counts
    assert concat(literal(b"x"), repeat(a, 0, 900), literal(b"y")).saturated(16) is concat(
        literal(b"x"), repeat(a), literal(b"y")
    )


LETTER = choice(byte_set(b"a"), literal(b"bc"))


def lettered(depth: int = 3) -> st.SearchStrategy[Node]:
    """Languages of the letters ``a`` and ``bc``, none of them empty."""
    leaves = st.sampled_from([byte_set(b"a"), literal(b"bc"), LETTER, EPSILON, literal(b"abca")])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda nodes: concat(*nodes)),
            st.lists(inner, min_size=2, max_size=3).map(lambda nodes: choice(*nodes)),
            st.tuples(inner, st.integers(0, 2), st.one_of(st.none(), st.integers(1, 3))).map(
                lambda part: repeat(part[0], part[1], None if part[2] is None else part[1] + part[2])
            ),
        ),
        max_leaves=5,
    )


def look_the_same(exact: Node, forgetful: Node, limit: int) -> bool:
    """Whether two nodes have the same beginnings and words of up to `limit` bytes."""
    pairs = [(exact, forgetful)]
    for length in range(limit + 1):
        if any(e.is_empty != f.is_empty or set(e.labels) != set(f.labels) for e, f in pairs):
            return False
        if length < limit:
            pairs = [(e.derivative(b), f.derivative(b)) for e, f in pairs if not e.is_empty for b in ALPHABET]
    return True


@settings(max_examples=50, deadline=None)
@given(lettered(), st.integers(0, 1), st.integers(1, 14), st.integers(1, 4), st.binary(max_size=3))
def test_a_count_of_letters_out_of_sight_is_forgotten(
    node: Node, low: int, high: int, limit: int, start: bytes
) -> None:
    ir.declare_alphabet(LETTER)
    meeting = both(node, repeat(LETTER, low, high))
    for byte in start:
        meeting = meeting.derivative(b"abc"[byte % 3])
    if not meeting.is_empty:
        assert look_the_same(meeting, meeting.saturated(limit), limit)


def test_a_count_of_letters_in_sight_is_kept() -> None:
    ir.declare_alphabet(LETTER)
    node = concat(repeat(byte_set(b"a"), 0, 9), repeat(literal(b"bc"), 3))
    assert node.bounds() == (6, 7)
    meeting = both(node, repeat(LETTER, 0, 11))
    assert meeting.saturated(4) is node.saturated(4)
    assert meeting.saturated(5) is meeting
    assert not look_the_same(both(node, repeat(LETTER, 0, 3)), node, 4)  # what forgetting too much would do
    assert both(node, repeat(LETTER, 2, 11)).saturated(4) is not node.saturated(4)
    # A word in front of a count is a condition, unless it is what is left of a letter.
    condition = both(node, concat(literal(b"aa"), repeat(LETTER, 0, 40)))
    assert condition.saturated(4) is condition
    assert meeting.derivative(ord("b")).saturated(3) is node.derivative(ord("b")).saturated(3)


@settings(max_examples=40, deadline=None)
@given(lettered())
def test_bounds_suffice(node: Node) -> None:
    bounds = node.bounds()
    assert bounds is not None
    least, most = bounds
    seen, agenda = {node}, [node]
    while agenda and len(seen) < 60:
        current = agenda.pop()
        limit = least if current is node else most
        layer = {current}
        for _ in range(limit):
            if any(other.labels for other in layer):
                break
            layer = {other.derivative(b) for other in layer for b in ALPHABET} - {EMPTY}
        assert any(other.labels for other in layer)
        for _, target in current.transitions():
            if target not in seen:
                seen.add(target)
                agenda.append(target)
