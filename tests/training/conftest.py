"""Where the bundled models are."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.train import MODELS


@pytest.fixture(scope="session")
def tokenizer_folder() -> Path:
    return MODELS / "tiny"
