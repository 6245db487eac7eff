"""What holds for all tests: one thread, nothing of the user's cache, no chance, and no GPU tests without a GPU.

Property tests draw the same examples in every run, so that a run is never red by chance. `make fuzz` draws others:
`DECODEKIT_TEST_SEED` asks for that, and for its number as the seed (see `tests.fuzz`).
"""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

os.environ["DECODEKIT_CACHE"] = "off"  # in the processes that tests start, too

settings.register_profile("ordinary", derandomize=True, database=None, deadline=None)
settings.register_profile("chance", database=None, deadline=None, print_blob=True)
settings.load_profile("chance" if "DECODEKIT_TEST_SEED" in os.environ else "ordinary")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and on a busy machine lose much by them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))
