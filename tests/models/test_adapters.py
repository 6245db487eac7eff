"""Adapters of peft: a folder of one is loaded with its base, and a model that has one decodes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import decodekit as dk


@pytest.mark.slow
def test_a_folder_with_an_adapter_is_a_model(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    base, tokenizer = (dk.LLM.load("tiny").model.model, dk.LLM.load("tiny").tokenizer)  # type: ignore[attr-defined]
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    plain = dk.LLM.load(str(tmp_path / "base")).generate("Invoice A-17", max_new_tokens=24)
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=4, lora_alpha=512, init_lora_weights=False, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    base.name_or_path = str(tmp_path / "base")
    base.config._name_or_path = str(tmp_path / "base")
    adapted = peft.get_peft_model(base, config).eval()
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    with_adapter = dk.LLM(adapted, tokenizer).generate("Invoice A-17", max_new_tokens=24)
    loaded = dk.LLM.load(str(tmp_path / "adapter")).generate("Invoice A-17", max_new_tokens=24)
    assert loaded.token_ids == with_adapter.token_ids != plain.token_ids
    with adapted.disable_adapter():
        assert dk.LLM(adapted, tokenizer).generate("Invoice A-17", max_new_tokens=24).token_ids == plain.token_ids
