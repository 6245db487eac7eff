"""Sliding windows of every architecture that has one: rows far beyond it, and a control that leaves it out."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from decodekit.models.checks.self_check import Plain
from decodekit.models.checks.tiny_copy import WINDOW
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners.attention import ragged_attention
from decodekit.models.runners.ragged import RaggedModel
from tests.models import survey
from tests.models.other_attention import use_attention
from tests.sizes import few, thinned

WINDOWED = (
    *("afmoe", "beam", "cohere2", "cwm", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss"),
    *("laguna", "mimo_v2_flash", "ministral", "mistral", "mixtral", "modernbert-decoder", "olmo3", "phi3", "qwen2"),
    *("starcoder2", "vaultgemma", "granite_swa", "mellum"),
)
LENGTHS = (5 * WINDOW, WINDOW - 1, 2 * WINDOW, WINDOW + 1)


@functools.cache
def load(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(survey.build(name))


def furthest(lm: HuggingFaceLM, runner: Any) -> float:
    """The largest difference to plain passes over prompts of several lengths, a draft and six steps, in deviations."""
    rows = [[(7 + 31 * row + 13 * i) % 120 for i in range(length + 9)] for row, length in enumerate(LENGTHS)]
    plain = Plain(lm.model)
    expected = [plain.logits(row) for row in rows]
    cache = runner.new_cache(len(rows), 4)
    read, errors = [0] * len(rows), [0.0]
    for widths in (LENGTHS, (3, 1, 2, 3), *[(1, 1, 1, 1)] * 6):
        new = [torch.tensor(row[at : at + n]) for row, at, n in zip(rows, read, widths, strict=True)]
        batch = torch.nn.utils.rnn.pad_sequence(new, batch_first=True)
        out = runner.forward(batch, list(widths), cache, None, "last")
        read = [at + n for at, n in zip(read, widths, strict=True)]
        for logits, wanted, at in zip(out, expected, read, strict=True):
            errors.append(float((logits - wanted[at - 1]).abs().max() / wanted[at - 1].std()))
    return max(errors)


@few(2)
@thinned("name", WINDOWED, keep=("cohere2", "gemma3n_text", "mistral", "modernbert-decoder", "olmo3"))
def test_rows_beyond_their_window(name: str) -> None:
    lm = load(name)
    assert lm.tier.name == "ragged", lm.tier
    assert furthest(lm, lm._runner) < 1e-3


@pytest.mark.parametrize("name", ["cohere2", "gemma3n_text", "mistral", "modernbert-decoder", "olmo3"])
def test_without_windows_it_would_be_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    lm, windows = load(name), set[int | None]()

    def everything(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> Any:
        windows.add(sliding_window)
        return ragged_attention(*args, **kwargs)

    with monkeypatch.context() as patch:
        use_attention(patch, everything)
        assert furthest(lm, RaggedModel(lm.model)) > 0.1
    assert max(width or 0 for width in windows) < max(LENGTHS)
    assert furthest(lm, lm._runner) < 1e-3  # and nothing is left of it for what this process runs next
