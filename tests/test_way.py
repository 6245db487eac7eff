"""The way of one prompt from `LLM.generate` to the model: the nouns, files and calls on it only fall.

Counted of a call on a CPU whose model is known: nouns are classes of decodekit of which an object is made before the
model runs first, files those with a function that runs until then, calls the functions of decodekit that wait for
the modules of the model, or for the program of a step, to come back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import decodekit as dk
from decodekit.decoding.loop import step
from decodekit.models.programs.replay import StepFrame
from tests.package_sources import PACKAGE

NOUNS = 20
FILES = 40
CALLS = 12
"""To the modules, which read the prompt."""
CALLS_OF_A_STEP = 13
"""To the program that runs a later step."""


class Way:
    """The way of a call, as it was gone."""

    def __init__(self, llm: dk.LLM) -> None:
        self._module: object = llm.model.runner.module  # type: ignore[attr-defined]
        self.nouns: dict[str, None] = {}
        self.files: dict[str, None] = {}
        self.calls: list[str] = []
        self.calls_of_a_step: list[str] = []

    def gone(self, call: Callable[[], Any]) -> Any:
        """The outcome of a call that goes it."""
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            return call()
        finally:
            sys.setprofile(before)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code, given = frame.f_code, frame.f_locals
        if code is StepFrame.run.__code__:
            self.calls_of_a_step = _waiting(frame.f_back)
        if self.calls:
            return
        if given.get("self") is self._module:
            self.calls = _waiting(frame)
            return
        if code.co_name in ("__init__", "__new__"):
            first = next(iter(given.values()), None)
            kind = first if isinstance(first, type) else type(first)
            if kind.__module__.startswith("decodekit."):
                self.nouns[f"{kind.__module__}.{kind.__qualname__}"] = None
        if _is_ours(frame):
            self.files[code.co_filename] = None


def _is_ours(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(PACKAGE)


def _waiting(frame: FrameType | None) -> list[str]:
    """The functions of decodekit that wait for a frame, or are it, the first one first."""
    found = []
    while frame is not None:
        found += [frame.f_code.co_qualname] if _is_ours(frame) else []
        frame = frame.f_back
    return found[::-1]


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    llm = dk.LLM.load("tiny", device="cpu")
    for _ in range(2):  # what is learned once
        llm.generate("the", max_new_tokens=8)
    return llm


def test_the_way_only_gets_shorter(llm: dk.LLM) -> None:
    way = Way(llm)
    done = way.gone(lambda: llm.generate("the", max_new_tokens=8))
    assert len(done.token_ids) == 8
    assert len(way.nouns) <= NOUNS, [*way.nouns]
    assert len(way.files) <= FILES, [*way.files]
    assert len(way.calls) <= CALLS, way.calls
    assert 10 < len(way.calls_of_a_step) <= CALLS_OF_A_STEP, way.calls_of_a_step


def test_a_detour_is_seen(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A noun more in a file more, and two calls more: a function in the way that calls itself."""
    from decodekit.testing.toy import ToyTokenizer

    forward, is_begun = step.forward, []

    def detour(*given: Any, **named: Any) -> Any:
        if is_begun:
            return forward(*given, **named)
        is_begun.append(ToyTokenizer([b"a", None]))
        return detour(*given, **named)

    plain, way = Way(llm), Way(llm)
    plain.gone(lambda: llm.generate("the", max_new_tokens=1))
    monkeypatch.setattr(step, "forward", detour)
    monkeypatch.setattr(sys.modules[__name__], "_is_ours", lambda frame: frame.f_code is detour.__code__ or ours(frame))
    way.gone(lambda: llm.generate("the", max_new_tokens=1))
    assert len(way.calls) == len(plain.calls) + 2
    assert {*way.nouns} - {*plain.nouns} == {"decodekit.testing.toy.ToyTokenizer"}
    assert len({*way.files} - {*plain.files}) == 2  # that of the noun, and this one


ours = _is_ours
