"""Every pattern up to a size: `Regex` beside `re`, the ECMA flavour beside places tried one by one.

The texts are all those over two letters of at most five characters. `tests/reference/regex.py` makes the patterns.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, Final

import pytest

from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex.regex import Lowering, full_match, parse_search
from decodekit.errors import UnsupportedSchemaError
from tests.constraints.regex_patterns import compiled
from tests.constraints.views import Views
from tests.reference.regex import Char, Place, Places, Quantifier, World, written
from tests.sizes import few

LENGTH: Final = 5
STAR, PLUS, MAYBE = Quantifier("*", 0, None), Quantifier("+", 1, None), Quantifier("?", 0, 1)
TWO_OR_MORE, TWO, ONE_OR_TWO = Quantifier("{2,}", 2, None), Quantifier("{2}", 2, 2), Quantifier("{1,2}", 1, 2)
NONE, UP_TO_TWO = Quantifier("{0}", 0, 0), Quantifier("{0,2}", 0, 2)
LAZY: Final = tuple(Quantifier(f"{one.text}?", one.low, one.high) for one in (STAR, PLUS, MAYBE, TWO_OR_MORE))
POSSESSIVE: Final = tuple(Quantifier(f"{one.text}+", one.low, one.high) for one in (STAR, MAYBE, ONE_OR_TWO))
NOTHING, START, END = Place("(?:)"), Place("^"), Place("$")
BOUNDARY, NO_BOUNDARY = Place(r"\b"), Place(r"\B")


@dataclass
class Outcome:
    """How many patterns were compared and refused, and where a flavour differs."""

    num_compared: int
    num_refused: int
    wrong: list[str]


def compare(world: World, size: int, *, word: str = "", flavours: str = "python ecma") -> Outcome:
    """Compare all patterns of a world up to a number of operators. `word` are the letters that words consist of."""
    alphabet = sorted(world.alphabet)
    texts = sorted("".join(text) for n in range(LENGTH + 1) for text in itertools.product(alphabet, repeat=n))
    places, views = Places(texts, word), Views("".join(alphabet).encode(), with_dead_ends=False)
    outcome = Outcome(0, 0, [])

    def check(node: Node, expected: int, what: str) -> None:
        seen = views.of(node, LENGTH)[0]
        if seen != expected:
            text = texts[((seen ^ expected) & -(seen ^ expected)).bit_length() - 1]
            outcome.wrong.append(f"{what}: {text!r}")

    for tree in world.trees(size):
        pattern = written(tree)
        try:
            if "python" in flavours:
                oracle = compiled(pattern)
                expected = sum(1 << i for i, text in enumerate(texts) if oracle.fullmatch(text))
                check(full_match(pattern), expected, f"re.fullmatch({pattern!r})")
            if "ecma" in flavours:
                check(full_match(pattern, "ecma"), places.whole(tree), f"ECMA, the whole text, {pattern!r}")
                check(parse_search(pattern, "ecma"), places.found(tree), f"ECMA, found in the text, {pattern!r}")
            if "search" in flavours:
                oracle = compiled(pattern)
                expected = sum(1 << i for i, text in enumerate(texts) if oracle.search(text))
                check(parse_search(pattern, "python"), expected, f"re.search({pattern!r})")
            outcome.num_compared += 1
        except UnsupportedSchemaError:
            outcome.num_refused += 1
    return outcome


def letters(alphabet: str) -> tuple[Char, Char, Char, Char, Char]:
    """The first letter, the second, any, all but the first, both as a class."""
    first, second = alphabet
    return (
        Char(first, first),
        Char(second, second),
        Char(".", alphabet),
        Char(f"[^{first}]", second),
        Char(f"[{alphabet}]", alphabet),
    )


A, B, ANY, NOT_A, A_OR_B = letters("ab")
DASH: Final = Char("-", "-")


@few(1)
@pytest.mark.parametrize(
    ("world", "size", "word", "flavours", "least"),
    [
        (World("ab", (A, B), (STAR, PLUS, MAYBE, TWO_OR_MORE, ONE_OR_TWO)), 3, "", "python", 3_500),
        (
            World("ab", (A, ANY, NOTHING, END), (STAR, TWO_OR_MORE, MAYBE), has_lookahead=True),
            2,
            "",
            "python ecma",
            900,
        ),
        (World("a-", (A, DASH, BOUNDARY), (STAR, TWO)), 2, "a", "python", 350),
        (World("ab", (A, ANY, START, END), (STAR,)), 2, "", "search ecma", 500),
        (World("ab", (A, B, NOTHING), (STAR, *LAZY[:1], *POSSESSIVE), has_atomic=True), 2, "", "python", 600),
    ],
    ids=["counts", "lookahead", "boundaries", "search", "atomic"],
)
def test_all_patterns_up_to_a_size(world: World, size: int, word: str, flavours: str, least: int) -> None:
    outcome = compare(world, size, word=word, flavours=flavours)
    assert not outcome.wrong, outcome.wrong[:10]
    assert outcome.num_compared >= least and not outcome.num_refused


MANY: Final = (STAR, PLUS, MAYBE, TWO_OR_MORE, TWO, ONE_OR_TWO, NONE, UP_TO_TWO)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("world", "size", "word", "flavours", "least"),
    [
        (World("ab", (A, B, ANY, NOT_A, A_OR_B, NOTHING), (*MANY, *LAZY)), 2, "", "python ecma search", 3_000),
        (World("ab", (A, ANY), (STAR, PLUS, MAYBE, TWO_OR_MORE), has_lookahead=True), 3, "", "python", 5_000),
        (World("ab", (A, B, NOTHING, START, END), MANY, has_lookahead=True), 2, "", "python ecma search", 3_000),
        (
            World("a-", (A, DASH, BOUNDARY, NO_BOUNDARY, START, END), MANY, has_lookahead=True),
            2,
            "a",
            "python ecma",
            4_000,
        ),
        (World("ab", (A, B), (STAR, MAYBE, *POSSESSIVE), has_atomic=True), 3, "", "python", 3_000),
        (World("ab", (A, B, ANY, END), (*LAZY, *POSSESSIVE), has_atomic=True), 2, "", "python search", 1_000),
    ],
    ids=["counts", "lookahead", "anchors", "boundaries", "atomic", "lazy"],
)
def test_all_patterns_up_to_a_larger_size(world: World, size: int, word: str, flavours: str, least: int) -> None:
    outcome = compare(world, size, word=word, flavours=flavours)
    assert not outcome.wrong, outcome.wrong[:10]
    assert outcome.num_compared >= least and outcome.num_refused <= outcome.num_compared / 50


# -- negative controls: what would be found

_repeat, _lower_assertion = ir.repeat, Lowering._lower_assertion


def repeat_that_drops_the_count(node: Node, min: int = 0, max: int | None = None) -> Node:
    if isinstance(node, ir.Repeat) and node.max is None and node.min <= 1 and max is None:
        return _repeat(node.body, node.min if min else 0)  # (X+){2,} is no X+
    return _repeat(node, min, max)


def end_that_holds_everywhere(self: Lowering, item: Any, after: Node, before: Any) -> Node:
    return after if item.kind == "end" else _lower_assertion(self, item, after, before)


def fewer_rounds(self: Lowering, item: Any, then: Any, before: Any, is_ordered: bool) -> Node:
    return self.lower(self.before(item.item, then), before)


@pytest.mark.parametrize(
    ("place", "name", "broken", "alphabet"),
    [
        (ir, "repeat", repeat_that_drops_the_count, "vw"),
        (Lowering, "_lower_assertion", end_that_holds_everywhere, "xy"),
        (Lowering, "_lower_repeated", fewer_rounds, "zu"),
    ],
    ids=["counts", "ends", "rounds"],
)
def test_negative_control_a_broken_rule_is_found(
    place: Any, name: str, broken: Any, alphabet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = letters(alphabet)  # of its own: nodes and patterns are kept
    world = World(alphabet, (first, Char(".", alphabet), END), (PLUS, TWO_OR_MORE))
    monkeypatch.setattr(place, name, broken)
    outcome = compare(world, 2)
    flavours = {wrong.partition(",")[0].partition("(")[0] for wrong in outcome.wrong}
    assert flavours == ({"ECMA"} if broken is end_that_holds_everywhere else {"ECMA", "re.fullmatch"})
    monkeypatch.undo()
    for known in (full_match, parse_search):
        known.cache_clear()
    ir.sweep()


def test_negative_control_another_reading_is_found() -> None:
    # Python's $ may come before a line end, that of ECMA may not; a word of a alone is no word of a and b.
    line_end = Char("\n", "\n")
    world = World("a\n", (A, line_end, END), (STAR,))
    wrong = compare(world, 2).wrong
    assert not wrong
    assert compare(World("a\n", (A, Char("a", "\n"), END), (STAR,)), 1, flavours="ecma").wrong
    assert compare(World("a-", (A, DASH, BOUNDARY), (STAR,)), 1, word="-a").wrong
    assert re.fullmatch("a$\n", "a\n")
