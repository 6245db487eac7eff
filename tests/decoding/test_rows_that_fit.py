"""How many rows decode at a time where nobody says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from decodekit import LLM, Beam, GenerateOptions, Sample
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.llm.plans.plan import Plan


@dataclass
class Model:
    """As much of a model as is asked for."""

    device: torch.device
    vocab_size: int = 1000


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        (0, memory.LEAST_ROWS),
        (1 << 40, memory.MOST_ROWS),
        # 2,048 tokens of 1,000 bytes and three rows of 1,000 logits are 2.06 MB a row, in half of the memory.
        (2 * 2_060_000 * 100, 96),
        (None, memory.LEAST_ROWS),
    ],
)
def test_a_gpu_has_as_many_as_half_of_its_memory_holds(
    free_bytes: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "row_bytes", lambda model, num_tokens: 1000 * num_tokens)
    monkeypatch.setattr(memory, "free_for", lambda model: free_bytes)
    model = Model(torch.device("cuda", 0))
    assert memory.rows_that_fit(model) == expected  # type: ignore[arg-type]
    assert memory.rows_that_fit(model, memory.FEW_ROWS) == expected  # type: ignore[arg-type]
    assert memory.rows_that_fit(Model(torch.device("cpu")), memory.FEW_ROWS) == memory.FEW_ROWS  # type: ignore[arg-type]


def test_a_call_has_prompts_for_these_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search shares them; on a CPU it has eight prompts, as other calls do."""
    llm = LLM.load("tiny")

    def plan_of(**options: object) -> Plan:
        return llm.plan(GenerateOptions.of(**options), [])  # type: ignore[arg-type]

    assert plan_of(strategy=Sample()).batch_size == plan_of(strategy=Beam(4)).batch_size == memory.FEW_ROWS
    assert plan_of(batch_size=3).batch_size == 3
    with llm.engine() as engine:
        assert engine.batch_size == memory.LEAST_ROWS
    monkeypatch.setattr(memory, "rows_that_fit", lambda model, on_host: 200)
    assert plan_of(strategy=Sample()).batch_size == 200
    assert plan_of(strategy=Beam(4)).batch_size == 50
