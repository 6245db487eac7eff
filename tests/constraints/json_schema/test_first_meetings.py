"""What the first meeting of a state costs, counted: searches, tables, lexical states and counts of keys.

Every case is a small schema of a kind whose masks took 50 to 500 ms when all of it was done over again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from decodekit.constraints import JsonSchema, allocate_bitmask, compile
from decodekit.constraints.engine.automaton import Automaton, begin_epoch
from decodekit.constraints.json_schema.frames import objects
from decodekit.constraints.json_schema.frames.objects import ObjectPlan
from decodekit.constraints.json_schema.strings import character_search, text
from decodekit.constraints.language import utf8
from decodekit.constraints.language.blocks import Block
from decodekit.constraints.language.ir import both
from decodekit.constraints.language.node import Node
from decodekit.constraints.matching.matcher import Matcher
from tests.reference.any_json import any_json
from tests.reference.vocabularies import byte_vocabulary

LONG = byte_vocabulary([b"a" * length for length in range(2, 70)] + [b"ab" * length for length in range(1, 35)])


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Counter[str]:
    """Count the calls of a function."""
    counts: Counter[str] = Counter()
    function: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        counts[name] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    return counts


def matcher_at(schema: Any, data: bytes, vocabulary: Any = LONG) -> Matcher:
    begin_epoch()
    matcher = compile(any_json(schema, whitespace="compact"), vocabulary).matcher()
    assert all(matcher.accept(byte) for byte in data)
    return matcher


def fill(matcher: Matcher, vocabulary: Any = LONG) -> None:
    matcher.fill_bitmask(allocate_bitmask(1, vocabulary.size))


def test_keys_are_counted_once_whatever_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that owes members: which keys are left is told from one count, not from one for every key before."""
    counts = counting(monkeypatch, objects, "num_texts")
    owing = [{"not": {"patternProperties": {key: {"type": kind}}}} for key, kind in (("^a", "integer"), ("b$", "null"))]
    matcher = matcher_at({"type": "object", "allOf": owing, "title": "counted once"}, b"{")
    fill(matcher)
    first = counts["num_texts"]
    assert 0 < first < 10
    for data in (b'"x', b'yb":null', b',"aa', b'":2', b',"xc', b'":"s"', b',"'):
        assert all(matcher.accept(byte) for byte in data)
        fill(matcher)
    assert counts["num_texts"] == first  # each text has keys that no other text had


def test_few_keys_are_counted_anew_as_they_go() -> None:
    """Where there are few keys, those that were used count: the slow way is still taken."""
    schema = {
        "type": "object",
        "patternProperties": {"^[xy]$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 2,
        "not": {"patternProperties": {"^[xyz]$": {"const": 1}}},
        "title": "few keys",
    }
    for data, is_allowed in (
        (b'{"x":1,"y":2}', True), (b'{"x":1,"y":1}', False), (b'{"y":1,"x":1', True), (b'{"x":2,"y":1}', True),
    ):  # fmt: skip
        matcher = compile(any_json(schema, whitespace="compact"), LONG).matcher()
        assert (matcher.validate(list(data)) == len(data)) == is_allowed, data


def test_alternatives_with_the_same_names_share_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counting(monkeypatch, Block, "__init__")
    names = [f"name{number}" for number in range(12)]
    texts: dict[str, Any] = {name: {"type": "string"} for name in names}
    branches = [{"properties": texts | {"name0": {"const": number}}, "required": ["name1"]} for number in range(20)]
    fill(matcher_at({"type": "object", "anyOf": branches, "title": "shared"}, b'{"'))
    assert counts["__init__"] <= 2


def regions_by_hand(patterns: list[Node]) -> set[frozenset[Node]]:
    """The sets of patterns that some key matches, and no other pattern, by trying all."""
    found = set()
    for flags in itertools.product((False, True), repeat=len(patterns)):
        keys: Node = text.BODY
        for pattern, is_in in zip(patterns, flags, strict=True):
            keys = text.meet(keys, pattern) if is_in else text.without(keys, pattern)
        if not keys.is_empty:
            found.add(frozenset(itertools.compress(patterns, flags)))
    return found


@pytest.mark.parametrize(
    "patterns",
    [
        ["^a", "^b", "^c", "d$"], ["^x-", "^y-", "^[xz]-", "^x-a"], ["a", "b", "^c$"], ["^a+$", "^aa$", "^b", "^ba"],
        ["^a$", "^b$", "^.$"], ["", "^a"],
    ],
)  # fmt: skip
def test_regions_are_those_of_all_combinations(patterns: list[str]) -> None:
    schema = {"type": "object", "patternProperties": {pattern: {"minLength": 1} for pattern in patterns}}
    network = any_json(schema).network()
    [plan] = network.objects(network.root_goal)
    nodes = [node for part in plan.spec.parts for node, _ in part.patterns]
    regions = plan._regions()[0]
    assert {matched for _, matched in regions} == regions_by_hand(nodes)
    for (keys, _), (others, _) in itertools.combinations(regions, 2):
        assert text.meet(keys, others).is_empty
    assert both(*(text.without(text.BODY, keys) for keys, _ in regions)).is_empty  # no key is in none


def test_prefixes_are_not_held_against_one_another_in_every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "patternProperties": {f"^{letter}-": {} for letter in "abcdefghijkl"}}
    network = any_json(schema).network()
    [plan] = network.objects(network.root_goal)
    assert isinstance(plan, ObjectPlan)
    counts = counting(monkeypatch, objects.text, "without")
    assert len(plan._regions()[0]) == 13
    assert counts["without"] == 12  # with every pattern in every region: 78


def test_a_pattern_with_a_length_out_of_sight_has_few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greatest count is forgotten while the least one is not: a state for each length up to the least."""
    states = []
    for greatest in (70, 400):
        schema = {"type": "string", "pattern": "^[^@]+@[^@]+[.][^@]+$", "minLength": 5, "maxLength": greatest}
        counts = counting(monkeypatch, Automaton, "expand")
        fill(matcher_at({**schema, "title": f"to {greatest}"}, b'"'))
        states.append(counts["expand"])
        monkeypatch.undo()
    in_sight, out_of_sight = states
    assert out_of_sight < 25 < 60 < in_sight


@pytest.mark.parametrize(
    "ranges",
    [
        ((0, 0x10FFFF),), ((0x61, 0x61),), ((0x80, 0x7FF), (0x900, 0x1FFFF)), ((0xFFFF, 0x10000),),
        ((0x10400, 0x107FF), (0x10C00, 0x10C03), (0x20000, 0x2FFFF)), ((0x1F600, 0x1F64F),),
    ],
)  # fmt: skip
def test_escapes_of_a_range_are_those_of_its_code_points(ranges: tuple[tuple[int, int], ...]) -> None:
    node = text.encode(ranges)
    edges = {edge + step for low, high in ranges for edge in (low, high) for step in (-1, 0, 1)}
    for point in sorted(edge for edge in edges if 0 <= edge <= utf8.MAX_CODE_POINT):
        units = chr(point).encode("utf-16-be", "surrogatepass")
        spelled = "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)).encode()
        rest = node
        for byte in spelled:
            rest = rest.derivative(byte)
        is_scalar = not 0xD800 <= point <= 0xDFFF
        assert rest.is_nullable == (is_scalar and any(low <= point <= high for low, high in ranges)), hex(point)


def test_ranges_of_many_code_points_cut_few_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = tuple((start, start + 5) for start in range(0x10000, 0x10000 + 40_000, 16))
    text.encode.cache_clear()
    counts = counting(monkeypatch, utf8, "intersect")
    text.encode(ranges)
    assert counts["intersect"] < 30  # not one for every digit of every surrogate
    assert JsonSchema({"type": "string"}).network() is not None


@pytest.mark.parametrize("num_branches", [1, 16])
def test_what_tells_the_keys_of_an_object_apart_takes_as_much_work_as_one_question(
    num_branches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each region would be a question of its own, and so would be the regions of each branch."""
    monkeypatch.setattr(character_search, "MAX_STATES", 800)
    counts = counting(monkeypatch, character_search, "_followed")
    branches = [
        {
            "type": "object",
            "required": [f"k{number}"],
            "patternProperties": {f"a(a|b){{{n}}}$": {"minimum": number} for n in range(5)},
        }
        for number in range(num_branches)
    ]
    schema = {"propertyNames": {"pattern": "^(a|b)*a(a|b){10}$|^k"}, "anyOf": branches}
    network = any_json(schema).network()
    plans = network.objects(network.root_goal)
    assert len(plans) == num_branches and all(plan.classes for plan in plans)
    assert counts["_followed"] <= 2 * 800
    assert any("states are needed" in cause for cause in network.semantics.left.values())
