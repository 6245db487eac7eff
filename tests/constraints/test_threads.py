"""Eight threads that compile, mask and accept on shared tables see what one thread sees with tables of its own."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine import automaton
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching import compiler
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.regex.regex import Regex
from decodekit.testing import check_matcher
from decodekit.vocabulary import Vocabulary
from tests.constraints.test_masks import CONSTRAINTS
from tests.reference.vocabularies import adversarial_vocabulary
from tests.sizes import few

Trace = list[tuple[str, list[int]]]


def trace(constraints: dict[str, Constraint], vocabulary: Vocabulary, seed: int) -> Trace:
    """The masks along a random walk under each constraint."""
    rng = random.Random(seed)
    steps: Trace = []
    for name, constraint in constraints.items():
        matcher = compile(constraint, vocabulary).matcher()
        for _ in range(12):
            bitmask = allocate_bitmask(1, vocabulary.size)
            matcher.fill_bitmask(bitmask)
            allowed = ids_from_bitmask(bitmask[0]).tolist()
            steps.append((name, allowed))
            if not allowed or not matcher.accept(rng.choice(allowed)):
                break
    return steps


def run_in_threads(constraints: dict[str, Constraint], vocabulary: Vocabulary) -> list[Trace]:
    results: dict[int, Trace] = {}
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        barrier.wait()
        results[seed] = trace(constraints, vocabulary, seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[seed] for seed in range(8)]


@few(1)
@pytest.mark.parametrize("number", range(3))
def test_threads_equal_serial(number: int) -> None:
    vocabulary = adversarial_vocabulary()
    # Constraints that no other test uses, so that the threads meet tables that are still empty.
    fresh: dict[str, Constraint] = {f"{n}": Regex(f'[a-f{{}}",:]{{{n},{n + 40}}}x{{{number}}}?') for n in range(6)}
    constraints = CONSTRAINTS | fresh
    with compiler._lock:
        compiler._grammars.clear()
    together = run_in_threads(constraints, vocabulary)
    with compiler._lock:
        compiler._grammars.clear()
    assert together == [trace(constraints, vocabulary, seed) for seed in range(8)]


def test_laws_hold_for_every_constraint() -> None:
    vocabulary = adversarial_vocabulary()
    for seed, constraint in enumerate(CONSTRAINTS.values()):
        check_matcher(compile(constraint, vocabulary).matcher(), vocabulary, seed=seed, num_tokens=8)


# JSON Schema: the same, for whole rounds of schemas that nobody has compiled before.

Round = dict[int, list[tuple[str, list[int]]]]  # thread to its walks: the schema, and hashes of the masks on the way


def json_schemas(number: int) -> list[Any]:
    """The schemas of a round. The number is in all of them, so that every round meets tables without its states."""
    return [
        {"type": "object", "properties": {f"a{number}": {"type": "integer", "minimum": number}, "b": {"$ref": "#"}}},
        {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [number, f"x{number}", None, "aa"]}},
        {"type": "string", "pattern": f"^(a|bc){{{number % 50},{number % 50 + 9}}}[^{number % 10}]*$"},
        {"allOf": [{"type": "number", "multipleOf": number + 2}, {"not": {"maximum": 3 * number}}]},
        {"type": "string", "format": "date", "minLength": number % 7},
        {"patternProperties": {f"^{number}": {"type": "boolean"}}, "propertyNames": {"maxLength": 9}, "type": "object"},
        {
            "oneOf": [{"required": ["a"]}, {"required": [f"b{number}"]}],
            "type": "object",
            "properties": {"a": {"type": "null"}},
            "unevaluatedProperties": {"type": "string", "maxLength": number + 2},
        },
        {"if": {"type": "string"}, "then": {"minLength": number % 9}, "else": {"contains": {"const": number}}},
    ]


def walk_schemas(number: int, seed: int, vocabulary: Vocabulary) -> list[tuple[str, list[int]]]:
    """Compile the schemas of a round in an order of one's own and walk each at random."""
    rng = random.Random(f"{number} {seed}")
    schemas = json_schemas(number)
    rng.shuffle(schemas)
    walks = []
    for schema in schemas:
        matcher = compile(JsonSchema(schema, format="assert", order="any"), vocabulary).matcher()
        walks.append((json.dumps(schema), walk_masks(matcher, rng, vocabulary)))
    return walks


def walk_masks(matcher: Matcher, rng: random.Random, vocabulary: Vocabulary, num_steps: int = 12) -> list[int]:
    hashes = []
    for _ in range(num_steps):
        bitmask = allocate_bitmask(1, vocabulary.size)
        matcher.fill_bitmask(bitmask)
        hashes.append(hash(bitmask.tobytes()))
        allowed = ids_from_bitmask(bitmask[0]).tolist()
        if not allowed or not matcher.accept(rng.choice(allowed)):
            break
    return hashes


def in_threads(work: Callable[[int], None]) -> list[BaseException]:
    """Run `work` in eight threads that change places as often as can be; what they raised."""
    errors: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    return errors


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next compilation find empty tables."""
    with compiler._lock:
        compiler._grammars.clear()
    monkeypatch.setattr(automaton, "_current", automaton.Automaton())


def check_schemas_in_threads(seconds: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rounds of eight threads for that long, then each round again by one thread over tables of its own."""
    vocabulary = adversarial_vocabulary()
    forget(monkeypatch)
    rounds: list[Round] = []
    deadline = time.monotonic() + seconds
    while not rounds or time.monotonic() < deadline:
        together: Round = {}
        barrier = threading.Barrier(8)

        def work(seed: int, together: Round = together, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            together[seed] = walk_schemas(len(rounds), seed, vocabulary)

        assert in_threads(work) == []
        rounds.append(together)
    for number, together in enumerate(rounds):
        forget(monkeypatch)
        for seed in range(8):
            assert together[seed] == walk_schemas(number, seed, vocabulary), (number, seed)
    return len(rounds)


def test_json_schemas_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_schemas_in_threads(0.5, monkeypatch) >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_json_schemas_in_threads_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    num_rounds = check_schemas_in_threads(60.0, monkeypatch)
    print(f"{num_rounds} rounds of {len(json_schemas(0))} schemas in 8 threads")


def test_negative_control_a_matcher_that_threads_share_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # What must not be shared is the matcher. Eight threads that walk one go on from each other's places.
    vocabulary = adversarial_vocabulary()
    forget(monkeypatch)
    grammar = compile(JsonSchema(json_schemas(3)[0], format="assert", order="any"), vocabulary)
    shared = grammar.matcher()
    together: dict[int, list[int]] = {}

    def work(seed: int) -> None:
        together[seed] = walk_masks(shared, random.Random(seed), vocabulary)

    errors = in_threads(work)
    alone = {seed: walk_masks(grammar.matcher(), random.Random(seed), vocabulary) for seed in range(8)}
    assert errors or together != alone
