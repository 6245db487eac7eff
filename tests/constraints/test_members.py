"""Random and shortest texts of a constraint: each is accepted, both short and deep ones occur, guards are respected."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from itertools import islice
from typing import Any

import jsonschema
import pytest

from decodekit.constraints.author import members
from decodekit.constraints.author.members import complete, sample_text, sample_texts
from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import RuleRef as Ref
from decodekit.constraints.grammar.rules import Rules, Terminal, alternatives, repeated, sequence
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.language.ir import byte_set, literal
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.regex.regex import Regex, full_match
from decodekit.errors import ConstraintError, GuardError, OptionError, UnsatisfiableError
from tests.constraints.test_explaining import PERSON, SCHEMAS
from tests.constraints.test_masks import CONSTRAINTS, Framed
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

BYTES = byte_vocabulary()
TREE: dict[str, Any] = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "l": {"$ref": "#/$defs/tree"}, "r": {"$ref": "#/$defs/tree"}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/tree",
}


def text(data: bytes) -> Terminal:
    return Terminal(literal(data))


SUMS = Framed(
    root_frame(
        Rules(
            {
                "sum": alternatives(sequence(Ref("sum"), text(b"+"), Ref("term")), Ref("term")),
                "term": alternatives(
                    Terminal(full_match("[0-9]{1,3}")), sequence(text(b"("), Ref("sum"), text(b")")), Ref("empty")
                ),
                "empty": repeated(text(b"~"), 0, 2),
            },
            "sum",
        )
    )
)
SETS = JsonSchema({"type": "array", "items": {"type": "object"}, "uniqueItems": True, "minItems": 2})
ALL: list[Constraint] = [*CONSTRAINTS.values(), *SCHEMAS, SUMS, SETS, JsonSchema(TREE), JsonSchema(TREE, whitespace=2)]


def is_accepted(constraint: Constraint, text: str) -> bool:
    matcher = compile(constraint, BYTES).matcher()
    return all(map(matcher.accept, text.encode())) and matcher.is_accepting


@few(20)
@pytest.mark.parametrize("number", range(len(ALL)))
def test_every_member_is_accepted(number: int) -> None:
    constraint = ALL[number]
    for size in (0, 80):
        for member in islice(sample_texts(constraint, seed=number, size=size), 6):
            assert is_accepted(constraint, member), (constraint, member)
            constraint.parse(member)


def test_a_text_that_is_changed_is_often_refused() -> None:
    """The check above can fail: of members with one character too many, most are no members."""
    found = [
        is_accepted(PERSON, text[:i] + "]" + text[i:]) for text in islice(sample_texts(PERSON), 20) for i in (1, 9)
    ]
    assert sum(found) < len(found) / 2


@few(3)
@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "array", "items": {"type": ["string", "null", "number"]}, "minItems": 1, "uniqueItems": True},
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "minProperties": 2},
        {"type": "object", "properties": {"a": {"enum": [1, "x", [2], {"y": None}]}}, "additionalProperties": False},
        {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]},
        {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(com|org)$", "maxLength": 20},
        {"type": "array", "contains": {"const": 7}, "maxItems": 4},
    ],
)
def test_members_of_schemas_are_valid(schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    found = list(islice(sample_texts(JsonSchema(schema), size=30), 30))
    for member in found:
        validator.validate(json.loads(member, parse_float=exactly))
    assert len(set(found)) > 10


def exactly(number: str) -> int | float:
    """A large number is an integer, not the double beside it."""
    value = Decimal(number)
    return int(value) if value == value.to_integral_value() else float(value)


def depth(text: str) -> int:
    most = level = 0
    for character in text:
        level += (character in "{[(") - (character in "}])")
        most = max(most, level)
    return most


@few(1)
@pytest.mark.parametrize("constraint", [JsonSchema(TREE), JsonSchema({}), SUMS])
def test_short_and_deep_members_occur(constraint: Constraint) -> None:
    found = list(islice(sample_texts(constraint, size=100), 150))
    depths = [depth(text) for text in found]
    assert max(depths) >= 4 and sum(level <= 1 for level in depths) >= 20
    assert len(set(found)) > 50
    lengths = sorted(map(len, found))
    assert lengths[0] <= 10 and lengths[-1] >= 60


def test_without_room_only_the_cheapest_ways_are_left() -> None:
    """A word may take more than there was; found: a square root of what is below 0."""
    for room in (-100.0, -16.0, -3.0, 0.0):
        assert [members._weight(extra, room) for extra in (0, 1, 50)] == [1.0, 0.0, 0.0]
    assert members._weight(1, 5.0) > members._weight(30, 5.0) > 0


@few(1)
@pytest.mark.parametrize("constraint", [JsonSchema(TREE), Regex("[a-z]+( [a-z]+)*"), SUMS])
def test_a_larger_size_makes_longer_members(constraint: Constraint) -> None:
    small, large = (
        sum(map(len, islice(sample_texts(constraint, size=size), 60))) / 60 for size in (10, 400)
    )  # fmt: skip
    assert large > 3 * small
    assert max(map(len, islice(sample_texts(constraint, size=0), 20))) <= 40


def test_the_seed_decides() -> None:
    assert sample_text(PERSON, seed=3) == sample_text(PERSON, seed=3) == next(sample_texts(PERSON, seed=3))
    assert len({sample_text(JsonSchema({}), seed=seed) for seed in range(30)}) > 10


def test_every_choice_occurs() -> None:
    # 60 draws of 3: one is missing by chance in less than 1e-9 of all runs, and the seed is fixed.
    assert set(islice(sample_texts(Choices(["yes", "no", "perhaps"])), 60)) == {"yes", "no", "perhaps"}


@pytest.mark.parametrize(
    ("constraint", "prefix", "expected"),
    [
        (PERSON, "", '{"name":"a"}'),
        (PERSON, '{"name": "abc', '{"name": "abc"}'),
        (PERSON, '{"name":"a","age":', '{"name":"a","age":0}'),
        (PERSON, '{"name":"a"}', '{"name":"a"}'),
        (Choices(["yes", "no"]), "", "no"),
        (Choices(["yes", "no"]), "y", "yes"),
        (Regex("(ab){2,5}c?"), "aba", "abab"),
        (SUMS, "(1+(2", "(1+(2))"),
        (JsonSchema(TREE), '{"v":1,"l":{', '{"v":1,"l":{"v":0}}'),
        ({"type": "integer", "minimum": 100}, "", "100"),
    ],
)
def test_shortest_completions(constraint: object, prefix: str, expected: str) -> None:
    assert complete(constraint, prefix) == expected


def test_a_completion_of_every_beginning_is_accepted() -> None:
    rng = random.Random(0)
    for constraint in ALL:
        member = sample_text(constraint, seed=5, size=60)
        prefix = member[: rng.randint(0, len(member))]
        whole = complete(constraint, prefix)
        assert whole.startswith(prefix) and is_accepted(constraint, whole)
        # The guard of SETS may make a longer one necessary.
        assert len(whole.encode()) <= len(member.encode()) or constraint is SETS


def test_no_shorter_text_is_accepted() -> None:
    """By hand over a small alphabet: all texts shorter than the witness are refused."""
    alphabet = '{}[]",:a01'
    for schema in (
        {"type": "array", "minItems": 2},
        {"type": "object", "required": ["a"]},
        {"minLength": 2, "type": "string"},
    ):
        whole = complete(schema)
        constraint = JsonSchema(schema)
        matcher = compile(constraint, BYTES).matcher()

        def shorter(prefix: str, matcher: Any = matcher, limit: int = len(whole) - 1) -> bool:
            if matcher.is_accepting:
                return True
            for letter in alphabet if len(prefix) < limit else "":
                if matcher.accept(ord(letter)):
                    found = shorter(prefix + letter, matcher, limit)
                    matcher.rollback(1)
                    if found:
                        return True
            return False

        assert not shorter("") and is_accepted(constraint, whole)


def test_a_beginning_that_is_none() -> None:
    with pytest.raises(OptionError, match="'x', character 2 of 3") as caught:
        complete(Choices(["abc"]), "axc")
    assert caught.value.at == "prefix"
    with pytest.raises(OptionError):
        sample_text(PERSON, size=-1)
    with pytest.raises(UnsatisfiableError):
        sample_text({"type": "integer", "minimum": 5, "maximum": 4})


def test_guards_are_respected() -> None:
    even = Guarded(Regex("[0-9]{1,2}"), lambda text: int(text) % 2 == 0)
    assert all(int(text) % 2 == 0 for text in islice(sample_texts(even), 30))
    for member in islice(sample_texts(SETS, size=20), 20):
        items = [json.dumps(item, sort_keys=True) for item in json.loads(member)]
        assert len(set(items)) == len(items) >= 2
    assert complete(SETS) != "[{},{}]" and is_accepted(SETS, complete(SETS))
    assert complete(even, "7") in {f"7{digit}" for digit in "02468"}
    with pytest.raises(GuardError, match="never"):
        sample_text(Guarded(Regex("[0-9]"), lambda text: "never"))
    with pytest.raises(GuardError, match="never"):
        complete(Guarded(Regex("[0-9]"), lambda text: "never"))


def test_texts_that_are_no_utf_8() -> None:
    broken = Framed(root_frame(Rules({"start": Terminal(byte_set([0xC3]))}, "start")))
    with pytest.raises(ConstraintError, match="no UTF-8"):
        sample_text(broken)
    with pytest.raises(ConstraintError, match="no UTF-8"):
        complete(broken)
