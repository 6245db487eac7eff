"""What the engine keeps stays within the limit, and what it writes does not depend on the limit."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from decodekit.constraints import (
    CompiledGrammar,
    JsonSchema,
    Matcher,
    as_constraint,
    compile,
    memory_in_use,
    memory_limit,
    set_memory_limit,
)
from decodekit.constraints import memory_account as memory
from decodekit.constraints.engine import token_index
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import schema as networks
from decodekit.constraints.matching import compiler
from decodekit.constraints.memory_account import Account
from decodekit.errors import OptionError
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import adversarial_vocabulary

VOCABULARY = adversarial_vocabulary()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing is kept before, and the limit is the usual one after."""
    limit = memory_limit()
    compiler._grammars.clear()
    token_index.all_tokens.cache_clear()
    token_index.tokens_after.cache_clear()
    compiler.begin_epoch()
    gc.collect()
    yield
    set_memory_limit(limit)


def schema(number: int) -> JsonSchema:
    rng = random.Random(number)
    properties: dict[str, Any] = {
        f"p{number}-{n}": rng.choice(
            [
                {"type": "string", "maxLength": rng.randrange(1, 9)},
                {"enum": [f"e{number}", f"f{n}"]},
                {"type": "array", "items": {"type": "integer", "minimum": number}, "maxItems": 3},
            ]
        )
        for n in range(4)
    }
    return JsonSchema({"type": "object", "properties": properties, "additionalProperties": False}, order="any")


def write(matcher: Matcher, rng: random.Random, num_tokens: int = 25) -> list[int]:
    """A random text, its masks looked at on the way."""
    row = allocate_bitmask(1, len(VOCABULARY))
    written: list[int] = []
    for _ in range(num_tokens):
        matcher.fill_bitmask(row)
        allowed = ids_from_bitmask(row[0]).tolist()
        if not allowed:
            break
        written.append(rng.choice(allowed))
        assert matcher.accept(written[-1])
    return written


def drive(num_schemas: int, limit: int | None) -> tuple[list[list[int]], int]:
    """Texts of many schemas, some of them asked for again, and the most that was kept after any of them."""
    set_memory_limit(limit)
    rng, texts, most = random.Random(1), [], 0
    for number in range(num_schemas):
        for chosen in (number, rng.randrange(number + 1)):
            texts.append(write(compile(schema(chosen), VOCABULARY).matcher(), random.Random(number)))
            compile(schema(chosen), VOCABULARY).matcher()
            most = max(most, memory_in_use())
    return texts, most


def test_many_schemas_stay_within_the_limit_and_write_the_same() -> None:
    before = memory_in_use()
    free, most_free = drive(40, None)
    compiler._grammars.clear()
    limit = before + (most_free - before) // 3
    bounded, most = drive(40, limit)
    assert bounded == free
    assert most <= limit < most_free
    gc.collect()
    assert memory_in_use() <= limit


def test_negative_control_without_giving_up_the_limit_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_releases", [])
    before = memory_in_use()
    _, most = drive(15, before + 200_000)
    assert most > before + 200_000


def test_a_limit_that_nothing_fits_in_changes_no_text() -> None:
    free, _ = drive(6, None)
    assert drive(6, 1)[0] == free


def test_a_lower_limit_is_enforced_at_once() -> None:
    drive(12, None)
    in_use = memory_in_use()
    set_memory_limit(in_use // 2)
    assert memory_in_use() < in_use


def test_a_matcher_outlives_what_its_grammar_gave_up() -> None:
    grammar = compile(schema(0), VOCABULARY)
    old = grammar.matcher()
    start = write(old, random.Random(5), 6)
    others = [old.fork() for _ in range(3)]
    grammar.release()
    expected = write(others[0], random.Random(7))
    assert write(old, random.Random(7)) == expected == write(others[1], random.Random(7))
    new = grammar.matcher()
    assert write(new, random.Random(5), 6) == start and write(new, random.Random(7)) == expected
    old.rollback(old.num_tokens)
    assert write(old, random.Random(5), 6) == start


def test_released_states_are_gone_at_once() -> None:
    grammar = compile(schema(3), VOCABULARY)
    write(grammar.matcher(), random.Random(0))
    grammar.matcher()
    kept = grammar.num_bytes
    assert kept > 0
    before = memory_in_use()
    gc.disable()
    try:
        grammar.release()
        assert grammar.num_bytes == 0 and memory_in_use() <= before - kept
    finally:
        gc.enable()


def test_threads_write_the_same_under_a_small_limit() -> None:
    def texts(first: int) -> list[list[int]]:
        order = [(first + 5 * n) % 12 for n in range(12)]
        return [write(compile(schema(n), VOCABULARY).matcher(), random.Random(n), 12) for n in order]

    set_memory_limit(None)
    expected = [texts(first) for first in range(6)]
    set_memory_limit(memory_in_use() // 3)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(2):
            assert list(pool.map(texts, range(6))) == expected


def test_answers_are_accounted_for() -> None:
    """What is asked of states that exist, and is kept: forced bytes, completions, what follows a stack."""
    grammar = CompiledGrammar(as_constraint({"type": "array", "items": {"type": "array"}}), VOCABULARY)
    matcher = grammar.matcher()
    places = []
    for byte in b'[[1, [true], "abc"], [[[[2]]]]]':
        assert matcher.accept(VOCABULARY.token_bytes.index(bytes([byte])))
        places.append(matcher.fork())
    grammar.matcher()
    before, states = grammar.num_bytes, grammar._recogniser.num_states
    for place in places:
        place.forced_text()
        place.completion()
    grammar.matcher()
    assert grammar.num_bytes >= before + 300 * len(set(grammar._recogniser._following_bytes)) > before
    assert grammar.num_bytes - before > 1300 * (grammar._recogniser.num_states - states)


def test_accounts() -> None:
    before = memory_in_use()
    account = Account()
    account.add(100)
    account.add(-30)
    assert account.num_bytes == 70 and memory_in_use() == before + 70
    account.set(5)
    assert memory_in_use() == before + 5
    del account
    assert memory_in_use() == before


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1 GB", True])
def test_wrong_limits(wrong: Any) -> None:
    with pytest.raises(OptionError, match="memory limit"):
        set_memory_limit(wrong)


def test_the_tokens_of_a_vocabulary_are_accounted_for() -> None:
    before = memory_in_use()
    vocabulary = Vocabulary([*VOCABULARY.token_bytes, b"another"], VOCABULARY.eos_token_ids)
    compile(schema(1), vocabulary)
    assert memory_in_use() - before > token_index.all_tokens(vocabulary).whole.trie.num_bytes


CIRCLES: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    {
        "type": "array",
        "items": {"$ref": "#/$defs/node"},
        "$defs": {"node": {"properties": {"next": {"$ref": "#/items"}}}},
    },
    {"not": {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}, "type": "object"},
    {"type": "array", "contains": {"type": "integer", "minimum": 3}, "minContains": 2, "maxItems": 5},
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, "three"]}, "minItems": 2},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "patternProperties": {"^x": {"type": "null"}}},
    {"type": "object", "minProperties": 2, "maxProperties": 3, "propertyNames": {"pattern": "^[a-c]+$"}},
]


def test_a_schema_that_is_dropped_is_no_garbage() -> None:
    """What a schema has made goes with the last reference to it; the garbage collector has nothing to find."""

    def use(number: int) -> None:
        rule = JsonSchema(CIRCLES[number % len(CIRCLES)] | {"title": str(number)})
        write(compile(rule, VOCABULARY).matcher(), random.Random(number), num_tokens=6)

    def drop() -> None:
        compiler._grammars.clear()
        networks._network.cache_clear()
        networks._guard.cache_clear()

    layouts = compile(JsonSchema({"title": "has the layouts, which all share"}), VOCABULARY)
    for number in range(len(CIRCLES)):  # what is loaded once
        use(number)
    drop()
    gc.collect()
    gc.disable()
    try:
        found = []
        for number in range(len(CIRCLES), 3 * len(CIRCLES)):
            use(number)
            drop()
            found.append(gc.collect())
    finally:
        gc.enable()
    assert layouts.vocabulary is VOCABULARY
    assert found == [0] * len(found)


def test_objects_of_a_schema_are_few() -> None:
    """The collector looks at what is kept of a schema in every whole collection."""
    compile(schema(0), VOCABULARY).matcher()
    gc.collect()
    before = len(gc.get_objects())
    grammars = []
    for number in range(1, 31):
        grammars.append(compile(schema(number), VOCABULARY))
        write(grammars[-1].matcher(), random.Random(number))
    gc.collect()
    assert (len(gc.get_objects()) - before) / len(grammars) < 700
