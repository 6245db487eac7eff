"""No state without a way on (invariant 9), rollback and fork along random ways (5), and schemas rewritten (7)."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.matching.matcher import Matcher
from decodekit.errors import ConstraintError, UnsatisfiableError
from decodekit.vocabulary import Vocabulary
from tests.constraints.json_schema import corpora
from tests.constraints.json_schema.fuzzing import DRAFTS, Source
from tests.reference import json_schema as reference
from tests.reference.any_json import any_json
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary
from tests.sizes import few

SLOW_STEPS = 1_000_000
"""Steps of the long hunt, over the whole corpus."""


def allowed_tokens(matcher: Matcher, size: int) -> list[int]:
    mask = allocate_bitmask(1, size)
    matcher.fill_bitmask(mask)
    found: list[int] = ids_from_bitmask(mask[0]).tolist()
    return found


def hunt(rule: JsonSchema, vocabulary: Vocabulary, rng: random.Random, num_steps: int) -> int:
    """Random tokens under the mask, from the start again at every end; the number of steps.

    Half the ways close what they can, so that ends are met, and half wander.
    """
    grammar = CompiledGrammar(rule, vocabulary)
    closing = {token for token, data in enumerate(vocabulary.token_bytes) if data and set(data) <= set(b'"}]')}
    matcher, text = grammar.matcher(), b""
    is_closing = True
    for _ in range(num_steps):
        allowed = allowed_tokens(matcher, vocabulary.size)
        if not allowed and getattr(matcher, "has_guard", False):  # the decoding loop goes back to its checkpoint here
            going_on = []
        else:
            assert allowed, f"{rule!r}: nothing may follow {text!r}"
            has_eos = bool(vocabulary.eos_token_ids & set(allowed))
            assert matcher.is_accepting == has_eos, (rule, text)
            going_on = [token for token in allowed if token not in vocabulary.eos_token_ids]
            if has_eos:
                rule.parse(text.decode())  # what is accepted is JSON, with no key twice
        if not going_on or len(text) > 400:
            matcher, text = grammar.matcher(), b""
            is_closing = not is_closing
            continue
        ends = [token for token in going_on if token in closing]
        token = rng.choice(ends if ends and is_closing and rng.random() < 0.6 else going_on)
        taken = matcher.accept(token)
        assert taken or getattr(matcher, "has_guard", False), (
            f"{rule!r}: {token} is in the mask after {text!r} and refused"
        )
        text += (vocabulary.token_bytes[token] or b"") if taken else b""
    return num_steps


@pytest.mark.parametrize("draft", DRAFTS)
def test_random_schemas(draft: int) -> None:
    num_steps = 0
    for seed in range(100, 108):
        try:
            rule = any_json(Source(random.Random(seed), draft).root())
            num_steps += hunt(rule, adversarial_vocabulary(), random.Random(seed), 40)
        except ConstraintError:
            continue
    assert num_steps >= 80


@corpora.needs_corpus
def test_some_of_the_corpus() -> None:
    num_steps = 0
    for row in corpora.sample(8, seed=5, max_bytes=5_000):
        try:
            rule = any_json(row["schema"], format="assert")
            num_steps += hunt(rule, adversarial_vocabulary(), random.Random(0), 40)
        except ConstraintError:
            continue
    assert num_steps >= 120


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@corpora.needs_corpus
def test_the_whole_corpus() -> None:
    num_steps = num_schemas = 0
    rows = corpora.sample(6825, seed=11, max_bytes=10**9)
    for number, row in enumerate(rows):
        try:
            rule = any_json(row["schema"], format="assert", order="any" if number % 2 else "declared")
            num_steps += hunt(rule, adversarial_vocabulary(), random.Random(number), SLOW_STEPS // len(rows) + 1)
        except ConstraintError:
            continue
        num_schemas += 1
    print(f"{num_steps} steps under {num_schemas} schemas")
    assert num_steps >= 0.95 * SLOW_STEPS


def test_negative_control_a_dead_end_is_noticed() -> None:
    """A vocabulary without the colon cannot write an object, and the hunt says where."""
    vocabulary = Vocabulary([bytes((byte,)) for byte in b'{}"a1'] + [None], eos_token_ids=[5])
    with pytest.raises(AssertionError, match="nothing may follow"):
        hunt(any_json({"type": "object", "required": ["a"]}), vocabulary, random.Random(0), 40)


@pytest.mark.parametrize("text", [b'{"k1\\', b'{"k1\\u'])
def test_an_escape_goes_on_only_where_a_key_does(text: bytes) -> None:
    """After ``{"k1`` no other key may come, so no escape may begin: its next byte would lead nowhere."""
    schema = {"properties": {"k1": {}, "k10": {}}, "required": ["k1"], "additionalProperties": False, "type": "object"}
    matcher = CompiledGrammar(any_json(schema), byte_vocabulary()).matcher()
    assert not all(matcher.accept(byte) for byte in text)


# -- rollback and fork


@pytest.mark.parametrize("seed", range(6))
def test_rollback_and_fork(seed: int) -> None:
    """Whatever was tried in between, the same tokens have the same mask."""
    rng, vocabulary = random.Random(seed), adversarial_vocabulary()
    try:
        grammar = CompiledGrammar(any_json(Source(rng, DRAFTS[seed % 5]).root(), order="any"), vocabulary)
    except ConstraintError:
        grammar = CompiledGrammar(any_json({"minProperties": 2, "minItems": 2}), vocabulary)
    matcher = grammar.matcher()
    masks: dict[tuple[int, ...], list[int]] = {}
    tokens: tuple[int, ...] = ()
    for _ in range(60):
        allowed = allowed_tokens(matcher, vocabulary.size)
        assert masks.setdefault(tokens, allowed) == allowed
        assert matcher.num_tokens == len(tokens)
        kind = rng.random()
        if tokens and (kind < 0.35 or not allowed):
            count = rng.randint(1, len(tokens))
            matcher.rollback(count)
            tokens = tokens[:-count]
        elif kind < 0.5:
            other = matcher.fork()
            for token in rng.sample(allowed, min(3, len(allowed))):
                other.accept(token)
            if rng.random() < 0.5:
                matcher = matcher.fork()
        elif allowed:
            run = [rng.choice(allowed), rng.randrange(vocabulary.size)]
            count = matcher.validate(run)
            token = run[0]
            assert matcher.accept(token) == (count >= 1)
            if count:
                tokens += (token,)
    # A new matcher that reads the same tokens at once agrees with what was seen on the way.
    for known, expected in masks.items():
        fresh = grammar.matcher()
        assert all(fresh.accept(token) for token in known)
        assert allowed_tokens(fresh, vocabulary.size) == expected


# -- rewritten schemas


def shuffled(schema: Any, rng: random.Random) -> Any:
    """The keys of every schema in another order; names of properties keep theirs, which is the order of generation."""
    if not isinstance(schema, dict):
        return schema
    made = copy.deepcopy(schema)
    for path, child in reference.below(schema):
        place = made
        for token in path[:-1]:
            place = place[token]
        place[path[-1]] = shuffled(child, rng)
    items = list(made.items())
    rng.shuffle(items)
    return dict(items)


def inlined(schema: Any, definition: Any) -> Any:
    """References to ``#/$defs/x`` replaced by what it says, once. Beside other keywords that is one more condition."""
    if not isinstance(schema, dict):
        return schema
    made = copy.deepcopy(schema)
    for path, child in reference.below(schema):
        if path[0] != "$defs":
            place = made
            for token in path[:-1]:
                place = place[token]
            place[path[-1]] = inlined(child, definition)
    if str(made.get("$ref", "")).endswith("#/$defs/x"):
        del made["$ref"]
        made["allOf"] = [*made.get("allOf", []), copy.deepcopy(definition)]
    return made


def wrapped(schema: Any, wrap: Callable[[Any], dict[str, Any]]) -> Any:
    """The whole schema one level down, with what names places left where it is."""
    outside = {key: schema[key] for key in ("$schema", "$defs", "$id", "$anchor", "$dynamicAnchor") if key in schema}
    return outside | wrap({key: value for key, value in schema.items() if key not in outside})


REWRITES: dict[str, Callable[[Any, random.Random], Any]] = {
    "shuffled": shuffled,
    "in allOf": lambda schema, rng: wrapped(schema, lambda inner: {"allOf": [inner]}),
    "twice in allOf": lambda schema, rng: wrapped(schema, lambda inner: {"allOf": [inner, inner]}),
    "in anyOf": lambda schema, rng: wrapped(schema, lambda inner: {"anyOf": [inner, False, inner]}),
    "denied twice": lambda schema, rng: wrapped(schema, lambda inner: {"not": {"not": inner}}),
    "in oneOf": lambda schema, rng: wrapped(schema, lambda inner: {"oneOf": [False, inner]}),
    "as a branch": lambda schema, rng: wrapped(schema, lambda inner: {"if": inner, "else": False}),
    "inlined": lambda schema, rng: inlined(schema, schema["$defs"]["x"]),
    "as a definition": lambda schema, rng: wrapped(
        schema, lambda inner: {"$ref": "#/$defs/whole", "$defs": schema["$defs"] | {"whole": inner}}
    ),
}


def masks_differ(first: Any, second: Any, rng: random.Random, order: Any, num_steps: int = 8) -> str | None:
    """Walk both schemas together; where their masks differ."""
    vocabulary = adversarial_vocabulary()
    grammars = []
    for schema in (first, second):
        try:
            grammars.append(CompiledGrammar(any_json(schema, order=order), vocabulary))
        except UnsatisfiableError:
            grammars.append(None)  # type: ignore[arg-type]
    if None in grammars:
        return None if grammars[0] is grammars[1] else "one of them is impossible"
    one, two = (grammar.matcher() for grammar in grammars)
    text = b""
    for _ in range(num_steps):
        allowed, other = (allowed_tokens(matcher, vocabulary.size) for matcher in (one, two))
        if allowed != other:
            return f"after {text!r}: {sorted(set(allowed) ^ set(other))[:10]}"
        going_on = [token for token in allowed if vocabulary.token_bytes[token]]
        if not going_on:
            return None
        token = min(rng.sample(going_on, min(3, len(going_on))), key=lambda t: len(vocabulary.token_bytes[t] or b""))
        assert one.accept(token) == two.accept(token)
        text += vocabulary.token_bytes[token] or b""
    return None


def rewrite_differs(name: str, seed: int) -> str | None:
    """Compare a random schema with its rewriting."""
    rng = random.Random(seed)
    schema = Source(rng, 2020).root()
    if isinstance(schema, bool):
        return None
    again = REWRITES[name](schema, rng)
    try:
        for order in ("any", "declared"):
            found = masks_differ(schema, again, rng, order)
            if found is not None:
                return f"{json.dumps(schema)}\n{json.dumps(again)}\n{order}: {found}"
    except ConstraintError:  # refused, or too many alternatives
        return None
    return None


@few(4)
@pytest.mark.parametrize("name", REWRITES)
def test_rewriting_a_schema_leaves_its_masks(name: str) -> None:
    for seed in range(4):
        assert rewrite_differs(name, seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", REWRITES)
def test_rewriting_many_schemas_leaves_their_masks(name: str) -> None:
    for seed in range(1000, 1150):
        assert rewrite_differs(name, seed) is None


def test_negative_control_another_schema_has_other_masks() -> None:
    assert masks_differ({"type": "string"}, {"type": ["string", "null"]}, random.Random(0), "any") is not None
    assert masks_differ({"type": "string"}, False, random.Random(0), "any") is not None
