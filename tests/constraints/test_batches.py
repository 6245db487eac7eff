"""Many rows at once: as one after the other, whatever the threads."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.bitmask import allocate_bitmask
from decodekit.constraints.matching import compiler
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.matcher import Matcher, fill_bitmasks
from decodekit.constraints.regex.regex import Regex
from decodekit.errors import DecodekitError, OptionError
from decodekit.vocabulary import Vocabulary
from tests.constraints.test_explaining import SCHEMAS
from tests.constraints.test_masks import CONSTRAINTS
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary
from tests.sizes import few

VOCABULARY = adversarial_vocabulary()


def anew() -> None:
    """Forget all grammars, so that masks are made and not found."""
    with compiler._lock:
        compiler._grammars.clear()


def walked(constraints: list[Constraint], seed: int, vocabulary: Vocabulary = VOCABULARY) -> list[Matcher]:
    """A matcher of each constraint, some random tokens along its way; their masks there are not asked for."""
    rng = random.Random(seed)
    matchers = [compile(constraint, vocabulary).matcher() for constraint in constraints]
    for matcher in matchers:
        for _ in range(rng.randint(0, 6)):
            tokens = [token for token in rng.sample(range(vocabulary.size), 200) if matcher.validate([token])]
            if not tokens or not matcher.accept(tokens[0]):
                break
    return matchers


def serial(matchers: list[Matcher], exact: bool = True) -> np.ndarray:
    out = allocate_bitmask(len(matchers), VOCABULARY.size)
    for row, matcher in enumerate(matchers):
        matcher.fill_bitmask(out, row, exact)
    return out


MANY = [constraint for constraint in [*CONSTRAINTS.values(), *SCHEMAS] for _ in range(2)]


@few(1)
@pytest.mark.parametrize("num_threads", [None, 2, 8])
def test_as_one_after_the_other(num_threads: int | None) -> None:
    """Grammars shared by rows, guards among them; the threads meet masks that nobody has made."""
    anew()
    together = allocate_bitmask(len(MANY), VOCABULARY.size)
    fill_bitmasks(walked(MANY, 1), together, num_threads=num_threads)
    anew()
    assert np.array_equal(together, serial(walked(MANY, 1)))


def test_eight_threads_over_one_grammar() -> None:
    constraint = Regex(r'[a-f{}",:]{2,60}')
    anew()
    together = allocate_bitmask(64, VOCABULARY.size)
    fill_bitmasks(walked([constraint] * 64, 3), together, num_threads=8)
    anew()
    assert np.array_equal(together, serial(walked([constraint] * 64, 3)))
    assert len({row.tobytes() for row in together}) > 1


def test_rows_and_exactness() -> None:
    matchers = walked([Guarded(Regex("[ab]"), lambda text: text == "a")] * 2, 0)
    matchers = [matcher.fork() for matcher in matchers]
    for matcher in matchers:
        matcher.rollback(matcher.num_tokens)
    out = np.full((5, VOCABULARY.num_mask_words), -1, np.int32)
    fill_bitmasks(matchers, out, rows=[3, 1])
    assert (out[[0, 2, 4]] == -1).all()
    assert np.array_equal(out[[3, 1]], serial(matchers)) and not np.array_equal(
        out[3], serial(matchers, exact=False)[0]
    )
    fill_bitmasks(matchers, out, rows=[4, 0], exact=False, num_threads=2)
    assert np.array_equal(out[[4, 0]], serial(matchers, exact=False))
    fill_bitmasks([], out)


def test_what_is_refused() -> None:
    one, two = walked([Regex("a"), Regex("a")], 0)
    out = allocate_bitmask(2, VOCABULARY.size)
    for arguments in (
        {"matchers": [one, one], "out": out},
        {"matchers": [one, two], "out": out, "rows": [1, 1]},
        {"matchers": [one, two], "out": out, "rows": [1]},
        {"matchers": [one, two], "out": out, "rows": [1, 2]},
        {"matchers": [one, two], "out": out, "rows": [-1, 0]},
        {"matchers": [one, two], "out": out[:1]},
        {"matchers": [one, two], "out": out, "num_threads": 0},
    ):
        with pytest.raises(OptionError):
            fill_bitmasks(**arguments)  # type: ignore[arg-type]
    assert not out.any()


def test_the_error_of_a_row_is_raised() -> None:
    def fails(text: str) -> bool:
        raise ZeroDivisionError

    vocabulary = byte_vocabulary()
    matchers = [compile(constraint, vocabulary).matcher() for constraint in (Regex("b"), Guarded(Regex("a"), fails))]
    for num_threads in (None, 2):
        with pytest.raises(DecodekitError, match="ZeroDivisionError"):
            fill_bitmasks(matchers, allocate_bitmask(2, vocabulary.size), num_threads=num_threads)
