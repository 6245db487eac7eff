"""Another attention function for the models of one test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import AttentionInterface

from decodekit.models.runners import attention


def use_attention(monkeypatch: pytest.MonkeyPatch, attend: Callable[..., Any]) -> None:
    """Every model attends with this function from now on, and with decodekit's own after the test.

    transformers keeps the functions by name for the whole process, so that it is not enough to put back the module's.
    """
    attention.register()
    monkeypatch.setitem(AttentionInterface._global_mapping, attention.ATTENTION_NAME, attend)
    monkeypatch.setattr(attention, "ragged_attention", attend)
