"""Chance in tests: the same draws in every ordinary run, other ones for who looks for what they miss.

`make test` must never be red by chance, so its property tests draw the same examples each time: Hypothesis is
derandomised, and what a test draws itself comes from ``random.Random(constant)``. `make fuzz` runs the same tests with
other draws: the variable `DECODEKIT_TEST_SEED` seeds Hypothesis and is mixed into every such constant. What it finds
is kept as an example beside the property that it broke.

    python -m tests.chance --rounds 20          # the seeds are drawn and printed
    DECODEKIT_TEST_SEED=7 make pytest PYTEST_ARGS="-m chance"
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import secrets
import subprocess
import sys
from typing import Any, Final

import pytest
from hypothesis import settings

SEED: Final = os.environ.get("DECODEKIT_TEST_SEED")
"""What `make fuzz` sets; None in an ordinary run."""


class _Mixed(random.Random):
    """`random.Random`, whose seed depends on `SEED` where a test makes it."""

    def __init__(self, x: Any = None) -> None:
        by_test = sys._getframe(1).f_globals["__name__"].startswith("tests.")
        super().__init__(f"{SEED} {x}" if by_test else x)


def set_up() -> None:
    """Take chance out of the tests; or, where `SEED` is given, let it in."""
    settings.register_profile("ordinary", derandomize=True, database=None, deadline=None)
    settings.register_profile("chance", database=None, deadline=None, print_blob=True)
    settings.load_profile("ordinary" if SEED is None else "chance")
    if SEED is not None:
        random.Random = _Mixed  # type: ignore[misc]


def draws(item: pytest.Item) -> bool:
    """Whether a test draws: by Hypothesis, or with a `random.Random` of its own or of a function beside it."""
    function = inspect.unwrap(getattr(item, "function", draws))
    if getattr(function, "is_hypothesis_test", False):
        return True
    names = function.__code__.co_names
    beside = (function.__globals__.get(name) for name in names)
    return "Random" in names or any(inspect.isfunction(one) and "Random" in one.__code__.co_names for one in beside)


def main() -> int:
    """Run the tests that draw, round by round, each with another seed; stop at the first that fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="of the first round; drawn unless given")
    parser.add_argument("arguments", nargs="*", help="what else pytest is given, after --")
    options = parser.parse_args()
    first = secrets.randbelow(2**31) if options.seed is None else options.seed
    for seed in range(first, first + options.rounds):
        print(f"DECODEKIT_TEST_SEED={seed}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", f"--hypothesis-seed={seed}"]
        command += ["-m", "chance and (not slow or left_out) and not gpu", *options.arguments]
        done = subprocess.run(command, env={**os.environ, "DECODEKIT_TEST_SEED": str(seed), "OMP_NUM_THREADS": "1"})
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
