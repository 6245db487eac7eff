"""Over pages the device holds what the host believes: looked at after every pass of every test."""

from __future__ import annotations

import pytest

from tests.models import device_law


@pytest.fixture(autouse=True)
def _device_law(monkeypatch: pytest.MonkeyPatch) -> None:
    device_law.watch(monkeypatch)
