"""String languages of a small world: every spelling of every text, every meet of three, emptiness by characters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest

from decodekit.constraints.json_schema.strings import character_search, patterns, text
from decodekit.constraints.json_schema.strings.string_escapes import Sparing
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex import regex
from tests.reference.regex import Char, Place, Quantifier, World, written

SPELLINGS = {
    "a": ["a", r"\u0061"],
    "/": ["/", r"\/", r"\u002f", r"\u002F"],
    '"': [r"\"", r"\u0022"],
    "\n": [r"\n", r"\u000a", r"\u000A"],
    "é": ["é", r"\u00e9", r"\u00E9"],
    "😀": [
        "😀",
        *(rf"\u{one}\u{two}" for one in ("d83d", "d83D", "D83d", "D83D") for two in ("de00", "dE00", "De00", "DE00")),
    ],
}
"""All spellings of a character in JSON (RFC 8259, section 7)."""
NEEDLESS = {r"\u0061", r"\/", r"\u002f", r"\u002F", r"\u00e9", r"\u00E9", *SPELLINGS["😀"][1:]}


def words_of(node: Node) -> set[bytes]:
    """All words of a finite language."""
    found, agenda = set(), [(b"", node)]
    while agenda:
        word, rest = agenda.pop()
        if rest.labels:
            found.add(word)
        agenda += [(word + bytes([byte]), target) for mask, target in rest.transitions() for byte in ir.bytes_of(mask)]
    return found


def spellings(value: str, without: Iterable[str] = ()) -> set[bytes]:
    ways = [[way for way in SPELLINGS[character] if way not in without] for character in value]
    return {"".join(way).encode() for way in itertools.product(*ways)}


def test_every_spelling_of_every_list_of_two_texts() -> None:
    values = ["".join(value) for n in range(3) for value in itertools.product(SPELLINGS, repeat=n)]
    lists = [(), *((value,) for value in values), *itertools.combinations(values, 2)]
    for chosen in lists:
        node = text.words(chosen)
        assert words_of(node) == set().union(*map(spellings, chosen)), chosen
        needed = set().union(*(spellings(value, NEEDLESS) for value in chosen))
        assert words_of(Sparing(node)) == needed, chosen
        assert character_search.num_texts(node, 5) == len(chosen)
    assert len(lists) > 900


def test_negative_control_a_missing_spelling_is_found() -> None:
    assert words_of(text.words(["/"])) != spellings("/", ["\\/"])
    assert words_of(Sparing(text.words(["é"]))) != spellings("é")


VALUES = ["".join(value) for n in range(4) for value in itertools.product("aé", repeat=n)]
BODIES: list[tuple[Node, Callable[[str], bool]]] = [
    (text.BODY, lambda value: True),
    (ir.EMPTY, lambda value: False),
    (text.length(0, 1), lambda value: len(value) < 2),
    (text.length(1, 2), lambda value: len(value) in (1, 2)),
    (text.length(2, None), lambda value: len(value) > 1),
    (text.words(["", "a", "éa", "aaa"]), lambda value: value in ("", "a", "éa", "aaa")),
    (patterns.searched("a", at="#").texts, lambda value: "a" in value),
    (patterns.searched("^é*$", at="#").texts, lambda value: "a" not in value),
    (text.without(text.BODY, patterns.searched("^a", at="#").texts), lambda value: value[:1] != "a"),
    (text.meet(text.length(1, None), patterns.searched("é$", at="#").texts), lambda value: value[-1:] == "é"),
]


def test_every_meet_of_three_bodies() -> None:
    for first, second, third in itertools.product(BODIES, repeat=3):
        together = text.meet(first[0], second[0], third[0])
        nested = text.meet(text.meet(first[0], second[0]), third[0])
        apart = text.meet(text.without(first[0], second[0]), third[0])
        for value in VALUES:
            one, two, three = (holds(value) for _, holds in (first, second, third))
            assert text.matches(together, value) == text.matches(nested, value) == (one and two and three)
            assert text.matches(apart, value) == (one and not two and three)
        assert nested.is_empty == together.is_empty


A, ANY = Char("a", "a"), Char(".", "ab")
SMALL = World(
    "ab", (A, Char("é", "b"), ANY, Place("^"), Place("$")), (Quantifier("*", 0, None), Quantifier("{2}", 2, 2))
)


def disagreements(bounds: Sequence[tuple[int, int | None]], most: int | None = None) -> tuple[int, list[str]]:
    """Meets of two patterns and a length whose emptiness by characters is not the one of the same texts in UTF-8."""
    found, num_empty = [], 0
    sources = sorted({written(tree) for tree in SMALL.trees(1)})[:most]
    bodies = [(patterns.searched(source, at="#").texts, regex.parse_search(source)) for source in sources]
    plain = utf8.charset(utf8.SCALARS)
    for (one, other), (low, high), is_left_out in itertools.product(
        itertools.combinations(range(len(sources)), 2), bounds, (False, True)
    ):
        body = text.meet(
            bodies[one][0],
            text.without(text.BODY, bodies[other][0]) if is_left_out else bodies[other][0],
            text.length(low, high),
        )
        same = ir.both(
            bodies[one][1],
            ir.complement(bodies[other][1]) if is_left_out else bodies[other][1],
            ir.repeat(plain, low, high),
        )
        num_empty += same.is_empty
        if character_search.is_empty(body) not in (None, same.is_empty) or body.is_empty != same.is_empty:
            found.append(f"{sources[one]!r}, {sources[other]!r}, {low} to {high}, {is_left_out}")
    return num_empty, found


def test_emptiness_by_characters_of_every_pair_of_patterns() -> None:
    num_empty, found = disagreements([(0, 1)])
    assert not found, found[:10]
    assert num_empty > 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_emptiness_by_characters_of_every_pair_of_patterns_and_more_lengths() -> None:
    num_empty, found = disagreements([(0, None), (0, 1), (2, 2), (1, 3), (4, None)])
    assert not found, found[:10]
    assert num_empty > 500


def test_negative_control_a_length_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    length = text.length
    monkeypatch.setattr(text, "length", lambda low, high: length(low, None if high is None else high + 1))
    assert disagreements([(0, 1)], most=30)[1]
