"""Which tests draw, that they draw the same in every ordinary run, and what a red test says."""

from __future__ import annotations

import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import chance, conftest


@given(st.integers())
def by_hypothesis(number: int) -> None: ...


def own_numbers() -> float:
    return random.Random(1).random()


def numbers_of_a_helper() -> float:
    return own_numbers()


def no_numbers() -> int:
    return len("abc")


@pytest.mark.parametrize("function", [by_hypothesis, own_numbers, numbers_of_a_helper])
def test_what_draws_is_seen(function: Any) -> None:
    assert chance.draws(SimpleNamespace(function=function))  # type: ignore[arg-type]


def test_what_does_not_draw_is_left_out() -> None:
    assert not chance.draws(SimpleNamespace(function=no_numbers))  # type: ignore[arg-type]


@pytest.mark.skipif(chance.SEED is not None, reason="other seeds are asked for")
def test_ordinary_runs_are_without_chance() -> None:
    assert settings().derandomize and settings().database is None
    assert random.Random is not chance._Mixed


def test_a_seed_changes_what_tests_draw_and_nothing_else() -> None:
    code = (
        "import random; from tests import chance; chance.set_up();"
        "print(random.Random(1).random(), eval('random.Random(1).random()', {'__name__': 'tests.a', 'random': random}))"
    )
    plain = str(random.Random.__mro__[-2](1).random())  # the C class below: the same numbers whatever is set up
    for seed, is_same in ((None, True), ("7", False)):
        environment = {} if seed is None else {"DECODEKIT_TEST_SEED": seed}
        command, environment = [sys.executable, "-c", code], {"PYTHONPATH": ".", **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outside, inside = done.stdout.split()
        assert (outside, inside == plain) == (plain, is_same)


def test_a_red_test_names_the_command_that_runs_it_alone() -> None:
    lines: list[str] = []
    report = SimpleNamespace(nodeid="tests/test_a.py::test_b[it's]")
    reporter = SimpleNamespace(stats={"failed": [report]}, section=lines.append, write_line=lines.append)
    conftest.pytest_terminal_summary(reporter)  # type: ignore[arg-type]
    [_, line] = lines
    assert line.endswith("""-m pytest -m '' 'tests/test_a.py::test_b[it'"'"'s]'""") or chance.SEED is not None
    lines.clear()
    conftest.pytest_terminal_summary(SimpleNamespace(stats={}, section=lines.append))  # type: ignore[arg-type]
    assert lines == []
