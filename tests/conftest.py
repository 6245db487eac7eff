"""What holds for all tests: one thread, nothing of the user's cache, no chance, and no GPU tests without a GPU."""

import gc
import os
import shlex
from collections.abc import Iterator

import pytest
import torch

from tests import chance
from tests.sizes import thin_out

os.environ["DECODEKIT_CACHE"] = "off"  # in the processes that tests start, too

chance.set_up()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and on a busy machine lose much by them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _collected_once() -> Iterator[None]:
    """What a file of tests leaves in caches is not looked through again by each collection of garbage to come.

    A worker holds millions of objects in the end; looking through all of them took most of the time of the last tests.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What is frozen is not freed at the exit, and compiled modules such as those of Triton report it as leaked."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)  # before the tests of a mark are chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    thin_out(items)
    for item in items:
        if chance.draws(item):
            item.add_marker(pytest.mark.chance)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """For each red test the command that runs it alone."""
    reports = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    if not reports:
        return
    seed = "" if chance.SEED is None else f"DECODEKIT_TEST_SEED={chance.SEED} "
    option = "" if chance.SEED is None else f" --hypothesis-seed={chance.SEED}"
    terminalreporter.section("to run one of them again")
    for name in dict.fromkeys(report.nodeid for report in reports):
        terminalreporter.write_line(f"{seed}.venv/bin/python -m pytest{option} -m '' {shlex.quote(name)}")
