"""What is left to the guard is judged where a value is complete, not at the end of the text.

Small schemas under lowered limits stand at places of a larger one. Behind a value the text goes on exactly if the value
is valid, and whatever is refused early belongs to no valid text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import decodekit as dk
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.guard.guard_rules import SchemaJudge
from decodekit.constraints.json_schema.guard.places import Place
from decodekit.constraints.json_schema.guard.schema_guard import SchemaGuard
from decodekit.constraints.json_schema.guard.schema_reader import Judgements
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher
from decodekit.constraints.work_budget import Work
from decodekit.decoding.loop.text_row import TextRow
from decodekit.errors import DeadEndError, UnsatisfiableError
from decodekit.testing import check_guard, check_matcher
from tests.constraints.json_schema.low_limits import LIMITS, forget, lower
from tests.constraints.json_schema.small_worlds import World, texts_of
from tests.constraints.json_schema.test_schema_guard import ABOVE, SOME_ARRAYS, SOME_OBJECTS
from tests.constraints.json_schema.test_small_schemas import FEW_ARRAYS, FEW_OBJECTS, every
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few, thinned

Schema = dict[str, Any]

BYTES = byte_vocabulary()
PIECES = [
    b'"}', b'"]', b'"},', b'","', b'":', b'{"', b'"a"', b'a"', b"aa", b"1,", b"12", b"1]", b"],[", b"[]", b"{}", b"},{",
    b"{}]", b"[1]", b"true", b"rue", b"e,", b"null]", b'"k":"', b'"}]}', b'\\"', b'x"}', b'{"k":"a', b'axa"', b"0}",
    b', "', b" ]", b'"}}', b',"', b':"a"', b'":0,"', b'"":{}', b"1,1", b"[[],[]", b'("', b'(",',
]  # fmt: skip
VOCABULARY = byte_vocabulary(PIECES, num_eos=1)

AROUND: list[tuple[str, str]] = [
    ('{"type": "array", "items": S}', "[%s,"),
    ('{"type": "object", "properties": {"k": S, "l": {}}}', '{"k":%s,"'),
    ('{"type": "object", "allOf": [{"additionalProperties": {"$ref": "#/$defs/s"}}], "$defs": {"s": S}}', '{"x":%s,"y'),
    ('{"prefixItems": [{"type": "object", "patternProperties": {"k": S}}], "type": "array"}', '[{"ik":%s,"'),
    ('{"type": "array", "items": {"anyOf": [S, {"type": "boolean"}]}}', "[%s,"),
    ('{"type": "array", "items": {"type": "object", "properties": {"k": {"not": {"not": S}}}}}', '[{"k":%s,'),
]
"""Schemas around a schema S, with a text around a value of it that can go on if the value is valid."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget()


def schema_around(number: int, schema: Schema) -> Schema:
    return json.loads(AROUND[number][0].replace("S", json.dumps(schema)))  # type: ignore[no-any-return]


def small(thinning: int) -> Iterator[tuple[Schema, World]]:
    yield from (({"type": "object", **below}, FEW_OBJECTS) for below in every(thinning, SOME_OBJECTS))
    yield from (({"type": "array", **below}, FEW_ARRAYS) for below in every(thinning, SOME_ARRAYS))


def faults_behind(schema: Schema, world: World, number: int) -> tuple[list[str], int]:
    """Where a text goes on behind an invalid value, or does not behind a valid one; and how many are refused early."""
    found: list[str] = []
    rule = JsonSchema(schema_around(number, schema), order="any", whitespace="compact")
    try:
        rule.root()
    except UnsatisfiableError:
        return found, 0
    guard = rule.guard()
    if guard is None:
        return found, 0
    oracle, matcher, num_early = jsonschema.Draft202012Validator(schema), compile(rule, BYTES).matcher(), 0
    assert isinstance(guard, SchemaGuard)
    for value in world.values:
        is_valid = oracle.is_valid(value)
        for written in texts_of(value):
            text = AROUND[number][1].replace("%s", written).encode()
            if (matcher.validate(list(text)) == len(text)) != is_valid:
                found.append(f"{rule}: {text!r} {'ends' if is_valid else 'goes on'}")
            num_early += guard.reader().read(text) is not None
    return found, num_early


@few(10)
@pytest.mark.parametrize("name", LIMITS)
def test_a_text_goes_on_behind_valid_values_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, LIMITS[name])
    results = [faults_behind(schema, world, number % len(AROUND)) for number, (schema, world) in enumerate(small(3))]
    found = [fault for faults, _ in results for fault in faults]
    assert not found, "\n".join(found[:10])
    assert sum(num_early for _, num_early in results) > 10


def guards_of(schemas: Iterator[tuple[Schema, World]]) -> Iterator[tuple[SchemaGuard, World]]:
    for schema, world in schemas:
        rule = JsonSchema(schema, order="any", whitespace="compact")
        try:
            rule.root()
        except UnsatisfiableError:
            continue
        guard = rule.guard()
        if guard is not None:
            assert isinstance(guard, SchemaGuard)
            yield guard, world


def check_small(thinning: int, number: int | None) -> None:
    schemas = (
        (schema if number is None else schema_around(number, schema), world) for schema, world in small(thinning)
    )
    around = "%s" if number is None else AROUND[number][1].rstrip(',"y')
    closing = {"[%s": "]", '{"k":%s': "}", '{"x":%s': "}", '[{"ik":%s': "}]", '[{"k":%s': "}]", "%s": ""}[around]
    for guard, world in guards_of(schemas):
        texts = [text for value in every(2, world.values) for text in texts_of(value)]
        check_guard(guard, [around.replace("%s", text) + closing for text in texts])


@pytest.mark.parametrize("name", ["one alternative", "one in place", "one goal", "no pattern", "no contains"])
def test_what_is_refused_early_begins_no_valid_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, LIMITS[name])
    check_small(9, None)
    for number in range(len(AROUND)):
        check_small(40, number)


def test_a_guard_that_refuses_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes each value for wrong of which the mask cannot tell."""
    lower(monkeypatch, LIMITS["one alternative"])

    def refusing(self: Judgements, place: Place, instance: Instance, raw: bytes) -> Work[bool]:
        yield 0
        self._recent[place, raw] = False
        return False

    monkeypatch.setattr(Judgements, "_verdict", refusing)
    with pytest.raises(AssertionError, match="and accepted"):
        check_small(9, 0)
    assert any(faults_behind(schema, world, 0)[0] for schema, world in small(9))


# -- by example

TWICE = {"type": "string", "pattern": "^(..)-\\1$"}
EXAMPLES: list[tuple[Schema, str, str, int]] = [
    ({"properties": {"a": TWICE}, "required": ["a"], "type": "object"}, '{"a":"ab-ax', '"', 11),
    ({"items": TWICE, "type": "array"}, '["ab-ab","ab-ax', '"', 15),
    ({"propertyNames": TWICE, "type": "object"}, '{"ab-ab":{},"ab-ax', '"', 18),
    ({"patternProperties": {"^(.)\\1$": {}}, "additionalProperties": False, "type": "object"}, '{"aa":1,"ab', '"', 11),
    ({"items": {"type": "array", "uniqueItems": True}, "type": "array"}, "[[[],[1],[", "]", 8),
    ({"items": {"type": "array", "uniqueItems": True}, "type": "array"}, '[[[1],"a",[1.0', "]", 9),
    ({"items": {"enum": [{"n": n, "m": [n % 7]} for n in range(600)]}, "type": "array"}, '[{"n":5,"m":[4]', "}", 15),
    ({"items": {"minimum": 10**1300, "type": "number"}, "type": "array"}, "[12", ",", 2),
    ({"properties": {"p": ABOVE["70 dependencies"][0]}, "type": "object"}, '{"p":{"a69":1', "}", 13),
]
"""A schema, the beginning of a text, the bytes that complete a wrong value, and how much of the text can stay."""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_byte_that_completes_a_wrong_value_is_refused(number: int) -> None:
    schema, before, wrong, keep = EXAMPLES[number]
    matcher = compile(JsonSchema(schema, order="any", whitespace="compact"), VOCABULARY).matcher()
    assert isinstance(matcher, GuardedMatcher)
    tokens = list(before.encode())
    mask = allocate_bitmask(1, VOCABULARY.size)
    assert all(map(matcher.accept, tokens)), matcher.text
    token = VOCABULARY.token_bytes.index(wrong.encode())
    refusal = matcher.refusal(token)
    assert refusal is not None and refusal.is_early and refusal.keep == keep, refusal
    assert matcher.refusals()[token] == refusal and not matcher.accept(token) and matcher.validate([token]) == 0
    matcher.fill_bitmask(mask)
    assert token not in ids_from_bitmask(mask[0])
    matcher.fill_bitmask(mask, exact=False)
    assert token in ids_from_bitmask(mask[0])
    explanation = matcher.explain(wrong)
    assert not explanation.is_allowed and refusal.message in str(explanation)
    assert not matcher.can_end_within(50, token)
    fork = matcher.fork()
    fork.rollback(len(tokens))  # further back than to where it was forked
    assert all(map(fork.accept, tokens)) and not fork.accept(token)
    matcher.rollback(3)
    assert all(map(matcher.accept, tokens[-3:])) and matcher.refusal(token) == refusal


LAWS = ["a back-reference", "a back-reference in a key", "600 arrays", "unevaluated beside many branches"]


@pytest.mark.parametrize("name", LAWS)
def test_laws_of_the_matcher(name: str) -> None:
    for schema in (ABOVE[name][0], {"type": "array", "items": ABOVE[name][0]}):
        matcher = compile(JsonSchema(schema, order="any", whitespace="compact"), VOCABULARY).matcher()
        for seed in range(2):
            check_matcher(matcher, VOCABULARY, num_tokens=10, seed=seed)


INNER: dict[str, tuple[Schema, str]] = {
    "uniqueItems": ({"uniqueItems": True, "items": {"type": ["array", "integer", "string"]}, "type": "array"}, ""),
    "keys": ({"patternProperties": {"^(.)\\1$": {}}, "additionalProperties": False, "type": "object"}, ""),
    "names": ({"propertyNames": {"pattern": "^(.)\\1$"}, "type": "object"}, ""),
    "format": ({"items": {"format": "regex", "type": "string"}, "type": "array"}, '[["('),
    "numbers": ({"items": {"minimum": 10**1300, "type": "number"}, "type": "array"}, "[[1"),
}
"""By name: a schema of items, and how texts begin."""


@pytest.mark.parametrize("name", INNER)
def test_the_refused_tokens_are_those_found_by_trying_all(name: str) -> None:
    schema, beginning = INNER[name]
    rule = JsonSchema({"items": schema, "type": "array"}, order="any", whitespace="compact", format="assert")
    num_found = 0
    for seed in range(8):
        rng = random.Random(seed)
        matcher = compile(rule, VOCABULARY).matcher()
        assert isinstance(matcher, GuardedMatcher) and all(map(matcher.accept, beginning.encode()))
        for _ in range(14):
            refused = {token: why for token in range(VOCABULARY.size) if (why := matcher.refusal(token)) is not None}
            assert matcher.refusals() == refused
            assert matcher.refusals(is_early=False) == {t: why for t, why in refused.items() if not why.is_early}
            num_found += len(refused)
            mask = allocate_bitmask(1, VOCABULARY.size)
            matcher.fill_bitmask(mask)
            allowed = set(ids_from_bitmask(mask[0]).tolist()) - VOCABULARY.eos_token_ids
            likely = sorted(allowed & {*b'[]{}",:a01(', *range(256, VOCABULARY.size)})
            if not likely:
                break
            assert matcher.accept(rng.choice(likely))
    assert num_found >= 5


def test_what_is_left_in_the_middle_of_a_text_is_known_to_texts_that_began_before() -> None:
    rule = JsonSchema({"type": "array", "items": TWICE}, whitespace="compact")
    guard = rule.guard()
    assert isinstance(guard, SchemaGuard)
    left = dict(guard.semantics.left)
    guard.semantics.left.clear()
    reader = guard.reader()
    assert reader.read(b'["ab-ax"') is None and not reader.watch
    guard.semantics.left.update(left)
    assert reader.fork().watch is True  # nothing may follow
    refusal = reader.read(b",")
    assert refusal is not None and refusal.keep == 7
    reader.rollback(1)
    assert reader.read(b'["ab-ab"') is None


# -- cost


@pytest.mark.parametrize("num_items", [500, 2000])
def test_each_item_of_a_long_array_is_judged_once(num_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    num_evaluated = 0
    evaluate = SchemaJudge._evaluate

    def counting(self: SchemaJudge, location: Any, value: Any) -> Any:
        nonlocal num_evaluated
        num_evaluated += 1
        return evaluate(self, location, value)

    monkeypatch.setattr(SchemaJudge, "_evaluate", counting)
    item = {"type": "object", "properties": {"id": TWICE, "n": {"type": "integer"}}}
    rule = JsonSchema({"type": "array", "uniqueItems": True, "items": item}, whitespace="compact")
    guard = rule.guard()
    assert isinstance(guard, SchemaGuard)
    reader = guard.reader()
    text = json.dumps([{"id": "ab-ab", "n": n} for n in range(num_items)], separators=(",", ":")).encode()
    assert all(reader.read(text[start : start + 3]) is None for start in range(0, len(text), 3))
    assert num_evaluated <= 2 * num_items
    assert reader.read(b"") is None and guard.refuses(text) is None


# -- generation

REST: Schema = {f"l{n}": {"const": f"v{n}"} for n in range(12)}
LONG: dict[str, tuple[Schema, int]] = {
    "a pattern": (
        {
            "type": "object",
            "properties": {"k": {"type": "string", "pattern": "^(a|b)\\1$"}, **REST},
            "required": ["k", *REST],
            "additionalProperties": False,
        },
        6,
    ),
    "repeated items": (
        {
            "type": "object",
            "properties": {
                "points": {
                    "type": "array",
                    "uniqueItems": True,
                    "minItems": 3,
                    "maxItems": 4,
                    "items": {
                        "type": "object",
                        "properties": {"x": {"enum": ["left", "right"]}, "y": {"enum": ["a", "b"]}},
                        "required": ["x", "y"],
                        "additionalProperties": False,
                    },
                },
                **REST,
            },
            "required": ["points", *REST],
            "additionalProperties": False,
        },
        100,
    ),
}
"""A wrong value at the beginning and a long rest; and within how many tokens something is taken back."""


@few(2)
@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("has_reader", [True, False])
def test_a_wrong_value_is_taken_back_right_there(name: str, has_reader: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the reader, the negative control, all of the text is generated before."""
    schema, most = LONG[name]
    rule = JsonSchema(schema, whitespace="compact")
    taken_back_at: list[int] = []
    roll_back = TextRow.roll_back

    def watched(self: TextRow, num_tokens: int) -> None:
        taken_back_at.append(len(self.token_ids))
        roll_back(self, num_tokens)

    llm, prompt = dk.LLM.load("tiny"), "some JSON: "
    monkeypatch.setattr(TextRow, "roll_back", watched)
    if not has_reader:
        monkeypatch.setattr(SchemaGuard, "reader", lambda self: None)
    strategy = dk.Sample(temperature=1.5, seed=2)
    drawn = llm.generate(prompt, constraint=rule, strategy=strategy, max_new_tokens=800, masks="always")
    assert drawn.finish_reason == "complete" and drawn.stats.num_guard_refusals > 0
    jsonschema.validate(drawn.value, schema)
    assert len(drawn.token_ids) > most + 80 and (max(taken_back_at, default=0) <= most) == has_reader


@thinned("name", LONG, keep=["a pattern"])
def test_texts_do_not_depend_on_how_masks_are_made(name: str) -> None:
    """Asked or made, one by one or in a batch, with drafts, and in time."""
    schema = LONG[name][0]
    rule = JsonSchema(schema, whitespace="compact")
    llm, prompts = dk.LLM.load("tiny"), ["some JSON: ", "more of it: "]
    options: dict[str, Any] = {"constraint": rule, "max_new_tokens": 800, "seed": 2}
    hot = dk.Sample(temperature=1.5)
    drawn = llm.generate(prompts, strategy=hot, masks="always", **options)
    guessing = dk.Sample(temperature=1.5, speculate=[dk.GrammarDraft(), dk.PromptLookup()])
    for other in (
        llm.generate(prompts, strategy=hot, masks="asked", **options),
        llm.generate(prompts, strategy=guessing, **options),
        [llm.generate(prompts[0], strategy=hot, fast_forward="off", **options)],
    ):
        assert [one.token_ids for one in other] == [one.token_ids for one in drawn[: len(other)]]
    least = compile(rule, llm.vocabulary).least_tokens()
    closed = llm.generate(prompts, strategy=hot, on_length="close", **options | {"max_new_tokens": least + 12})
    assert all(jsonschema.Draft202012Validator(schema).is_valid(one.value) for one in closed), closed
    assert all(one.stats.num_guard_refusals > 0 for one in drawn)


def test_a_search_that_cannot_go_back_has_the_guard_in_its_masks() -> None:
    """Contrastive search once took a token that was refused."""
    schema = LONG["repeated items"][0]["properties"]["points"]
    for number in range(0, 16, 4):
        done = dk.LLM.load("tiny").generate(
            f"Points {number}.",
            constraint=JsonSchema(schema, whitespace="compact"),
            strategy=dk.ContrastiveSearch(top_k=4, penalty_alpha=0.6),
            max_new_tokens=100,
        )
        assert isinstance(done.error, DeadEndError) or jsonschema.Draft202012Validator(schema).is_valid(done.value)
