"""The bundled model as it is, and over pages with the loops that decode it a step ahead."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from decodekit import LLM
from decodekit.decoding.loop.device_pass import DevicePass
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import paged
from tests.models import device_law


@pytest.fixture(autouse=True)
def _device_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over pages the device holds what the host believes: looked at after every pass of every test."""
    device_law.watch(monkeypatch)


@pytest.fixture(scope="session")
def plain() -> LLM:
    """Decoded step by step."""
    return LLM.load("tiny")


@pytest.fixture(scope="session")
def over_pages(plain: LLM) -> LLM:
    """The same model over pages, of which nothing is captured."""
    model: Any = plain.model
    return LLM(HuggingFaceLM(copy.deepcopy(model.model), tier="paged"), plain.tokenizer)


@pytest.fixture
def ahead(over_pages: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The same, with nothing that earlier tests have left; rows are short, for the twin of the attention looks at every
    slot of a table.
    """
    monkeypatch.setattr(paged, "LONGEST", 128)
    monkeypatch.setattr(over_pages.model.paged, "_rows", None)  # type: ignore[attr-defined]
    return over_pages


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[DevicePass]:
    """The loops that are made during a test."""
    made: list[DevicePass] = []
    begin = DevicePass.__init__

    def init(self: DevicePass, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(DevicePass, "__init__", init)
    return made
