"""Eight threads that compile, mask and accept on shared tables see what one thread sees."""

from __future__ import annotations

import random
import threading

import pytest

from decodekit.constraints import compiler
from decodekit.constraints.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.compiler import compile
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.regex import Regex
from decodekit.testing import check_matcher
from decodekit.vocabulary import Vocabulary
from tests.constraints.test_masks import CONSTRAINTS
from tests.reference.vocabularies import adversarial_vocabulary

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
