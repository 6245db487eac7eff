"""What holds for all tests: one thread, nothing of the user's cache, and no GPU tests without a GPU."""

import os
from collections.abc import Iterator

import pytest
import torch

os.environ["DECODEKIT_CACHE"] = "off"  # in the processes that tests start, too


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
