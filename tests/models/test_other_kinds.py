"""Models that are more than a causal language model, or less: some run for text alone, others are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from decodekit.errors import ModelError
from decodekit.models import load
from decodekit.models.checks.tiny_copy import randomise, shrunken
from decodekit.models.huggingface import HuggingFaceLM
from tests.models.test_huggingface import Checked
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few, thinned

# The default of Qwen2-VL leaves out how its rotary embeddings are divided, which its checkpoints say.
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
CHANGES: dict[str, dict[str, Any]] = {
    name: {"text_config": {"rope_parameters": _SECTIONS}} for name in ("qwen2_vl", "qwen2_5_vl", "glm4v")
}
RAGGED = (
    *("gemma3", "gemma4", "llava", "llava_next", "llava_onevision", "mistral3", "mllama", "qwen2_vl", "qwen2_5_vl"),
    *("qwen3_vl", "qwen3_vl_moe", "idefics3", "smolvlm", "internvl", "aya_vision", "deepseek_vl", "ovis2"),
)


def build(name: str) -> nn.Module:
    """A small model of images and text."""
    torch.manual_seed(0)
    config = shrunken(CONFIG_MAPPING[name](**CHANGES.get(name, {})))
    model: nn.Module = transformers.AutoModelForImageTextToText.from_config(config)
    randomise(model)
    return model.float().eval()


@few(1, "gemma3", "qwen2_vl")
@thinned("name", RAGGED, keep=("gemma3", "llava", "qwen2_vl"))
def test_text_alone(name: str) -> None:
    lm = HuggingFaceLM(build(name))
    assert lm.tier.name == "ragged", lm.tier
    run = Checked(lm, 3)
    rows = [[11, 12, 13, 14], [21, 22], [31, 32, 33, 34, 35, 36]]
    run.forward(rows, kind="last")
    run.forward([[41, 42], [43], [44, 45, 46]])
    run.truncate([5, 3, 7])
    run.forward([[51], [52], [53]], kind="last")


def test_a_folder_with_a_model_of_images_and_text(tmp_path: Path) -> None:
    model = build("llava")
    model.resize_token_embeddings(160)  # type: ignore[operator]
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    small_tokenizer().save_pretrained(tmp_path)
    lm, _ = load(tmp_path)
    assert lm.tier.name == "ragged" and type(lm.model).__name__ == "LlavaForConditionalGeneration"


def small(name: str, kind: str, **changes: Any) -> nn.Module:
    config = CONFIG_MAPPING[name](vocab_size=64, **changes)
    model: nn.Module = getattr(transformers, kind)(config)
    return model.eval()


_BERT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.5,
}
_T5: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("name", "kind", "changes", "cause"),
    [
        ("t5", "T5ForConditionalGeneration", _T5, "T5ForConditionalGeneration is an encoder-decoder model"),
        ("bert", "BertForMaskedLM", _BERT, "BertForMaskedLM is a masked language model"),
        ("bert", "BertLMHeadModel", {**_BERT, "is_decoder": False}, "BertLMHeadModel is not causal"),
        ("llama", "LlamaModel", {**_BERT, "num_key_value_heads": 1}, "LlamaModel has no language modelling head"),
    ],
)
def test_what_continues_no_text_is_refused_by_name(name: str, kind: str, changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(ModelError, match=cause) as caught:
        HuggingFaceLM(small(name, kind, **changes))
    assert "\n  try " in str(caught.value)


def test_an_encoder_as_a_decoder_runs() -> None:
    assert HuggingFaceLM(small("bert", "BertLMHeadModel", **_BERT, is_decoder=True)).tier.name == "ragged"


def test_a_folder_with_an_encoder_decoder_model(tmp_path: Path) -> None:
    small("t5", "T5ForConditionalGeneration", **_T5).save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(ModelError, match="t5 is an encoder-decoder model"):
        load(tmp_path)


def test_a_model_that_wants_images() -> None:
    torch.manual_seed(0)
    config = shrunken(CONFIG_MAPPING["blip-2"]())
    with pytest.raises(ModelError, match="cannot be run") as caught:
        HuggingFaceLM(transformers.AutoModelForImageTextToText.from_config(config).eval())
    assert "it wants images" in str(caught.value)
