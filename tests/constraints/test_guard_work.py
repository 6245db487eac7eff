"""What a guard costs: parts of work that can be left off, a bound for each text, nothing that grows with a square."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import decodekit as dk
from decodekit.constraints import Guarded, JsonSchema, Regex, compile
from decodekit.constraints.composition.split import Split
from decodekit.constraints.constraint import Refusal, judging_of
from decodekit.constraints.json_schema.guard.guard_rules import SchemaJudge
from decodekit.constraints.json_schema.values import instances, numbers
from decodekit.constraints.matching import guarded_matcher
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher
from decodekit.constraints.work_budget import SLICE, STEPS, Work, next_slice
from decodekit.decoding.request.stopping import finish_reason
from decodekit.errors import ResourceLimitError
from decodekit.testing import check_matcher
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few, sized

Schema = dict[str, Any]

VOCABULARY = byte_vocabulary([b'"}', b"},{", b'":', b'a"'])
HARD = r"^x(.*)(.*)(.*)\1\2\3x\1$"
"""Many ways to fill its groups, of which nothing shortens the search."""
QUOTE = ord('"')
LARGEST_PART = 12_000
"""Steps between two points at which work can be left off: what is found or compared in one call of C is longer."""


def steps_of(work: Work[object]) -> list[int]:
    """The steps of each part."""
    return list(work)


def matcher_of(schema: Schema, **options: Any) -> GuardedMatcher:
    matcher = compile(JsonSchema(schema, whitespace="compact", **options), VOCABULARY).matcher()
    assert isinstance(matcher, GuardedMatcher)
    return matcher


def read(matcher: GuardedMatcher, text: str) -> None:
    assert all(matcher.accept(byte) for byte in text.encode())


# -- judgements of whole values

OBJECTS: Schema = {"type": "array", "uniqueItems": True, "items": {"type": "object"}}
ITEM: Schema = {"type": "object", "required": ["a"], "additionalProperties": False}
OPEN: Schema = {"type": "array", "uniqueItems": True}
NESTED: Schema = {"$ref": "#/$defs/a", "$defs": {"a": {**OPEN, "items": {"$ref": "#/$defs/a"}}}}
MANY_KEYS = json.dumps([{f"b{number}": 0 for number in range(300)}])
LONG: dict[str, tuple[Schema, Callable[[int], str]]] = {
    "unique objects": (OBJECTS, lambda size: json.dumps([{"a": number} for number in range(size)])),
    "unique numbers": ({**OBJECTS, "items": {}}, lambda size: json.dumps(list(range(size)))),
    "deep arrays": (NESTED, lambda size: "[" * size + "]" * size),
    "digits": ({**OPEN, "items": {"type": ["object", "number"], "multipleOf": 0.1}}, lambda size: f"[{'1' * size}]"),
    "a fraction": ({**OPEN, "items": {"type": ["object", "number"], "maximum": 2}}, lambda size: f"[1.{'1' * size}]"),
    "members": (
        {
            **OPEN,
            "items": {"type": "object", "allOf": [{"additionalProperties": True}], "unevaluatedProperties": False},
        },
        lambda size: json.dumps([{str(number): 0 for number in range(size)}]),
    ),
    "contains": (
        {**OBJECTS, "contains": {"required": ["x"]}, "minContains": 0},
        lambda size: json.dumps([{"a": number} for number in range(size)]),
    ),
    "alternatives": (
        {**OPEN, "items": {"oneOf": [{"type": "object", "required": [f"k{n}"]} for n in range(20)]}},
        lambda size: json.dumps([{f"k{number % 20}": number} for number in range(size)]),
    ),
    "patterns of keys": (
        {**OPEN, "items": {"type": "object", "patternProperties": {f"^a{n}": True for n in range(20)}}},
        lambda size: json.dumps([{f"b{number}": 0 for number in range(size)}]),
    ),
    "a long string": (
        {**OPEN, "items": {"type": ["object", "string"], "format": "uri"}},
        lambda size: json.dumps(["http://a/" + "a" * size]),
    ),
    "a pattern": (
        {**OPEN, "items": {"type": ["object", "string"], "pattern": r"^(a|b)\1"}},
        lambda size: json.dumps(["aa" + "c" * size]),
    ),
}


@few(4)
@pytest.mark.parametrize("name", LONG)
def test_a_judgement_grows_with_the_value_and_is_left_off_often(name: str) -> None:
    schema, text_of = LONG[name]
    guard = JsonSchema(schema, format="assert").guard()
    assert guard is not None
    parts = [steps_of(judging_of(guard, text_of(size).encode())) for size in (500, 2_000)]
    assert guard.refuses(text_of(2_000).encode()) is None
    assert sum(parts[1]) < 5 * sum(parts[0]) + 1_000
    assert max(parts[1]) <= LARGEST_PART
    assert sum(parts[1]) == sum(steps_of(judging_of(guard, text_of(2_000).encode())))  # whatever is remembered


@sized("depth", 2_500, slow=20_000)
def test_nested_values_need_no_recursion(depth: int) -> None:
    guard = JsonSchema(NESTED).guard()
    assert guard is not None
    assert sys.getrecursionlimit() < depth
    assert guard.refuses(b"[" * depth + b"]" * depth) is None
    refusal = guard.refuses(b"[" * depth + b"[],[]" + b"]" * depth)
    assert refusal is not None and refusal.keep == depth + 2 and refusal.at.count("/") == depth


def test_only_the_first_reason_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer of a value is as long as its nesting, and each level may be wrong."""
    written: list[int] = []
    guard = JsonSchema({**NESTED, "$defs": {"a": {**NESTED["$defs"]["a"], "maxItems": 2}}}).guard()
    assert guard is not None
    refuse = SchemaJudge.refuse

    def counting(self: SchemaJudge, kind: str, keep: int, reason: Callable[[], Refusal]) -> None:
        def noting() -> Refusal:
            written.append(keep)
            return reason()

        refuse(self, kind, keep, noting)

    monkeypatch.setattr(SchemaJudge, "refuse", counting)
    refusal = guard.refuses(b"[[],[[]]," * 500 + b"[[[]]]" + b"]" * 500)
    assert refusal is not None and refusal.at == "/2" * 499
    assert len(written) == 1


def test_work_that_is_not_left_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the parts."""
    schema, text_of = LONG["unique objects"]
    guard = JsonSchema(schema).guard()
    assert guard is not None
    monkeypatch.setattr(instances, "_PART", 1 << 40)
    assert max(steps_of(judging_of(guard, text_of(2_000).encode()))) > LARGEST_PART


def test_long_numbers_are_compared_exactly() -> None:
    ones = "1" * 5_000
    number = numbers.read_any(ones)
    assert numbers.is_integer(number) and not numbers.is_integer(numbers.read_any(f"1.{ones}"))
    assert numbers.is_integer(numbers.read_any(f"1.{'0' * 5_000}"))
    assert numbers.is_multiple(number, numbers.exact(0.1)) and numbers.is_multiple(number, numbers.exact(11))
    assert not numbers.is_multiple(number, numbers.exact(1e300)) and not numbers.is_multiple(number, numbers.exact(2))
    assert numbers.is_multiple(numbers.read_any("5" + "0" * 2_000), numbers.exact(5e300))
    for text in (
        "7" * 1_001,
        "7." + "0" * 1_001,
        "0." + "0" * 1_200 + "7",
        "7" * 1_001 + "e-30",
        "7" * 1_001 + "e-999",
    ):
        short, long = numbers.read(text), numbers.read_any(text)
        assert short == long and hash(short) == hash(long)
        for limit in (numbers.exact(7), numbers.exact(0), numbers.exact(1e300)):
            assert (short >= limit, short < limit) == (long >= limit, long < limit)
            if limit:
                assert numbers.is_multiple(short, limit) == numbers.is_multiple(long, limit)
    assert numbers.read_any("1e-99999999999999999999") == 0 == numbers.read_any("0e99999999999999999999")
    with pytest.raises(OverflowError):
        numbers.read_any("1e99999999999999999999")


def test_a_text_that_is_no_short_pattern_is_not_read_as_one() -> None:
    guard = JsonSchema({"type": "string", "format": "regex"}, format="assert").guard()
    assert guard is not None
    assert guard.refuses(json.dumps("(a)" * 600).encode()) is None
    with pytest.raises(ResourceLimitError, match="is not read as a pattern") as caught:
        guard.refuses(json.dumps("[" * 50_000).encode())
    assert caught.value.code == "DK206" and caught.value.at == "#/format"


# -- the text of a request


def attacked(matcher: GuardedMatcher, text: str, is_prepared: bool) -> Iterator[int]:
    """Go on with a text, and ask about a quote at each place; yields the steps so far."""
    for byte in text.encode():
        for token in (QUOTE, byte):
            if is_prepared:
                assert any(matcher.prepare(next_slice(number), token) for number in range(10_000))
            matcher.validate([token])
        yield matcher.num_guard_steps
        assert matcher.accept(byte)


MEMBER: Schema = {"type": "object", "properties": {"k": {"type": "string", "pattern": HARD}}, "required": ["k"]}


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_text_that_costs_too_much_fails_and_it_alone(is_prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_matcher, "MAX_STEPS", 300_000)
    matcher = matcher_of(MEMBER)
    read(matcher, '{"k":"x')
    steps = attacked(matcher, "abx" * 100, is_prepared)
    with pytest.raises(ResourceLimitError, match="judging the values of one text") as caught:
        list(steps)
    assert caught.value.code == "DK206" and matcher.num_tokens < 60
    matcher.rollback(matcher.num_tokens - 7)
    with pytest.raises(ResourceLimitError):  # nothing is given back
        matcher.accept(ord("a"))
    other = matcher_of(MEMBER)
    read(other, '{"k":"xxa')
    assert not other.accept(QUOTE) and other.num_guard_steps < 100_000


def test_without_a_bound_such_a_text_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(guarded_matcher, "MAX_STEPS", 1 << 40)
    matcher = matcher_of(MEMBER)
    read(matcher, '{"k":"x')
    assert any(num_steps > 600_000 for num_steps in attacked(matcher, "abx" * 15, False))


def test_the_count_is_the_same_in_every_run() -> None:
    counts = []
    for is_prepared in (True, False, True):
        matcher = matcher_of(MEMBER)
        read(matcher, '{"k":"x')
        counts.append(list(attacked(matcher, "abx" * 5, is_prepared)))
    assert counts[0] == counts[1] == counts[2] and counts[0][-1] > 1_000


def test_a_fork_begins_with_the_count_and_goes_its_own_way() -> None:
    matcher = matcher_of(MEMBER)
    read(matcher, '{"k":"xabcabx')
    assert not matcher.validate([QUOTE])
    fork = matcher.fork()
    begun = fork.num_guard_steps
    assert begun == matcher.num_guard_steps > 0
    list(attacked(fork, "aabab", True))
    assert fork.num_guard_steps > begun == matcher.num_guard_steps
    check_matcher(matcher.fork(), VOCABULARY, num_tokens=4)


@pytest.mark.parametrize(
    ("schema", "text", "token"),
    [
        (MEMBER, '{"k":"x' + "abbx" * 9, QUOTE),
        (OBJECTS, json.dumps([{"a": number} for number in range(700)], separators=(",", ":"))[:-1], ord("]")),
    ],
)
def test_a_question_is_prepared_in_slices(
    schema: Schema, text: str, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = matcher_of(schema)
    read(matcher, text)
    whole = matcher.fork()
    steps = [matcher.num_guard_steps]
    while not matcher.prepare(next_slice(0), token):
        steps.append(matcher.num_guard_steps)
        assert len(steps) % 3 or matcher.validate([ord("a")]) < 2  # a draft is looked at meanwhile
    assert len(steps) > 5
    assert max(after - before for before, after in pairwise(steps)) <= SLICE * STEPS + LARGEST_PART

    def never(self: SchemaJudge, location: object, value: object) -> Work[object]:
        raise AssertionError("what was prepared is judged once more")
        yield 0

    before = matcher.num_guard_steps
    is_valid = whole.validate([token])
    assert whole.num_guard_steps == before  # what others found out counts the same
    monkeypatch.setattr(SchemaJudge, "judging", never)
    refusal = matcher.refusal(token)
    assert matcher.accept(token) == (refusal is None) == is_valid
    assert matcher.num_guard_steps == before


def test_the_guard_is_asked_last_whether_a_text_is_complete() -> None:
    asked = []
    rule = Guarded(Regex("[a-z]+"), lambda text: asked.append(text) or True)
    matcher = compile(rule, VOCABULARY).matcher()
    assert isinstance(matcher, GuardedMatcher)
    for byte in b"abcabc":
        assert matcher.accept(byte) and not matcher.is_complete
    assert not asked and matcher.is_accepting and asked == ["abcabc"]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_hostile_text_in_a_batch_fails_alone(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_matcher, "MAX_STEPS", 20_000)
    monkeypatch.setattr(guarded_matcher, "STEPS_OF_A_BYTE", 0)
    llm = dk.LLM.load("tiny")
    quote = llm.vocabulary.token_bytes.index(b'"')
    hostile = dk.JsonSchema(MEMBER, whitespace="compact")
    honest = dk.JsonSchema(
        {**OBJECTS, "minItems": 1, "maxItems": 2, "items": {**ITEM, "properties": {"a": {"enum": [1, 2]}}}},
        whitespace="compact",
    )
    options: dict[str, Any] = {"max_new_tokens": 60, "strategy": dk.Sample(temperature=2.0), "seed": 1}
    with llm.engine(batch_size=batch_size) as engine:
        alone = engine.submit("Points", constraint=honest, **options).result()
        attack = options | {"strategy": dk.Sample(temperature=2.0, logit_bias={quote: 6.0})}
        attacks = [engine.submit("xx", constraint=hostile, **attack | {"seed": seed}) for seed in range(2)]
        beside = engine.submit("Points", constraint=honest, **options).result()
        ends = [one.result() for one in attacks]
    assert beside.text == alone.text and beside.error is None
    errors = [end.error for end in ends if end.error is not None]
    assert any(isinstance(error, ResourceLimitError) for error in errors), [end.text for end in ends]


def test_a_text_with_tags_is_not_divided_at_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end nearly everywhere, and every division begins at its first byte."""
    num_divided = 0
    search = Split._search

    def counting(self: Split, expression: Any) -> Work[bool]:
        nonlocal num_divided
        num_divided += 1
        return search(self, expression)

    monkeypatch.setattr(Split, "_search", counting)
    matcher = compile(dk.Tagged(dk.Tag("<a>", JsonSchema(OBJECTS), "</a>")), VOCABULARY).matcher()
    eos = VOCABULARY.eos_token_ids
    for byte in b"hello world " * 10 + b'<a>[{"a":1},{"a":2}]</a> and more':
        assert matcher.prepare(SLICE, byte) and matcher.accept(byte)
        rest: dict[str, Any] = {"eos_token_ids": eos, "is_stopped": False, "num_tokens": 1, "max_tokens": 1 << 20}
        assert finish_reason(byte, matcher=matcher, **rest) is None
    assert num_divided == 0
    assert matcher.is_accepting and num_divided == 1


def test_a_list_of_objects_is_as_much_work_as_the_value_that_it_is_compared_with() -> None:
    """A step for each 16 bytes of it and each entry, wherever it stands."""
    entries = [{"a": "x" * number} for number in range(10)]
    guard = JsonSchema({**OBJECTS, "items": {"not": {"enum": entries}}}).guard()
    assert guard is not None
    other, short, long = "z" * 16_000, {"a": "y" * 160}, {"a": "y" * 16_160}
    texts = [json.dumps(value).encode() for value in ([short, other], [long, other], [other, long])]
    less, more, behind = (sum(steps_of(judging_of(guard, text))) for text in texts)
    assert 10_000 <= more - less < 10_500  # some of them to read it
    assert abs(behind - more) < 100


def test_what_takes_long_to_be_judged_is_not_forced() -> None:
    """A forced run is taken in one piece: the token comes with its mask, once it is judged."""
    below = {"properties": {"k": OBJECTS}, "required": ["k"], "additionalProperties": False}
    matcher = matcher_of({"type": "object", **below})
    read(matcher, '{"k":' + json.dumps([{"a": number} for number in range(700)], separators=(",", ":")))
    assert matcher.forced_tokens() == []
    assert any(matcher.prepare(next_slice(number), ord("}")) for number in range(10_000))
    assert matcher.forced_tokens() == [ord("}")]
