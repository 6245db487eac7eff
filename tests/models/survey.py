"""The survey: every causal language model that transformers can build, made small, and how decodekit runs it.

    python -m tests.models.survey              writes docs/architectures.md
    python -m tests.models.survey llama rwkv   prints the rows of some

Each model is built from the configuration that its class has by default, made small by the rules with which the
self-check makes twins (`decodekit.models.checks.tiny_copy`), with random weights. What the rules cannot know is in
`CHANGES`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from decodekit.models.checks.tiny_copy import randomise, shrunken
from decodekit.models.huggingface import HuggingFaceLM

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

_MIXED = ["linear_attention", "full_attention"] * 2
# Arguments of configurations whose defaults cannot be built, or do not have the layers that the architecture is for.
CHANGES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 256},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 8, "num_hidden_layers": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16, "num_hidden_layers": 32},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16, "num_hidden_layers": 32},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 4},
    "minimax": {"layer_types": _MIXED, "num_hidden_layers": 4},
    "llama4_text": {"num_hidden_layers": 4},
    "xmod": {"default_language": "en_XX"},
    "xlm": {"causal": True},
}
# After the configuration was made small.
_AFTER: dict[str, dict[str, Any]] = {
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 16], "hidden_size": 64}
}
TIERS = ("ragged", "masked", "recurrent", "rowwise", "recompute")
NOTES = {
    "ragged": "all rows in one pass",
    "masked": "all rows in one pass, by the model's own attention with a mask",
    "recurrent": "all rows in one pass, with the state of each",
    "rowwise": "one row at a time",
    "recompute": "one row at a time, without a cache",
    "refused": "not run",
    "not built": "",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table.

    Args:
        tier: how it is run; "refused" or "not built" if it is not.
        why: why it is not run in a faster tier, or at all.
        error: of the self-check.
        has_twin: whether the self-check could compare a small twin of it.
    """

    name: str
    tier: str
    why: str = ""
    error: float = float("nan")
    has_twin: bool = False


def build(name: str) -> nn.Module:
    """The small model of an architecture, in evaluation mode, the same at every call."""
    kind: Any = CONFIG_MAPPING[name]
    config = kind(**CHANGES.get(name, {}))
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[kind]
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if not isinstance(config, model_class.config_class):
        config = config.get_text_config(decoder=True)
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    small = shrunken(config)
    for attribute, value in _AFTER.get(name, {}).items():
        setattr(small, attribute, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = model_class(small)
    randomise(model)
    return model.float().eval()


def look_at(name: str) -> Entry:
    """Build an architecture and let the self-check choose its tier."""
    try:
        model = build(name)
    except Exception as problem:
        return Entry(name, "not built", _short(f"{type(problem).__name__}: {problem}"))
    try:
        tier = HuggingFaceLM(model).tier
    except Exception as problem:
        return Entry(name, "refused", _short(str(getattr(problem, "at", None) or problem)))
    return Entry(name, tier.name, "; ".join(map(_short, tier.refused)), tier.error, tier.twin_error is not None)


def _short(text: str) -> str:
    """One line without what differs from run to run: numbers of errors, addresses, paths."""
    text = re.sub(r"\d+(\.\d+)?e[-+]\d+|\b\d+\.\d+\b", "…", text.strip().split("\n", 1)[0])
    text = re.sub(r"<class '.*?'>|0x[0-9a-f]+|torch\.Size\(.*?\)", "…", text)
    text = re.sub(r"by \S+ of their spread", "by more than rounding", text)
    return text if len(text) <= 110 else text[:109] + "…"


def names() -> list[str]:
    """Every architecture that transformers has a causal language model for."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def page(entries: list[Entry]) -> str:
    """The table as a page."""
    counts = Counter(entry.tier for entry in entries)
    num_run = sum(counts[tier] for tier in TIERS)
    lines = [
        "# Architectures",
        "",
        "```python",
        "import decodekit as dk",
        "",
        'tier = dk.LLM.load("tiny").model.tier',
        "print(tier.name)  # ragged",
        "print(tier.error < 1e-4, tier.twin_error < 1e-4)  # True True",
        "print(tier.refused)  # ()",
        "```",
        "",
        "No architecture is known to decodekit by its name. When a model is loaded, the *self-check* runs a few tokens",
        "through a small float32 twin of it and through the model itself, and takes the fastest way of running it that",
        "gives the model's own logits. `tier.refused` says why not a faster one ([Guide](guide.md)):",
        "",
        *(f"- **{tier}**: {NOTES[tier]}" for tier in TIERS),
        "",
        "The table is what the self-check says of every causal language model of transformers, made small from its",
        f"default configuration (`make architectures`; transformers {transformers.__version__}, on a CPU in float32).",
        "A model with other settings or weights is checked anew, and may run in another tier.",
        "",
        f"Of {len(entries)} architectures {num_run} run: {counts['ragged']} ragged, {counts['masked']} masked, "
        f"{counts['recurrent']} recurrent, {counts['rowwise']} rowwise, {counts['recompute']} recompute.",
        f"{counts['refused']} are refused, and {counts['not built']} cannot be built from their default configuration",
        "made small.",
        "",
        "| architecture | tier | twin | why not faster |",
        "|---|---|---|---|",
    ]
    for entry in entries:
        why = entry.why.replace("|", "/").replace("`", "'")
        lines.append(f"| {entry.name} | {entry.tier} | {'yes' if entry.has_twin else 'no'} | {why} |")
    return "\n".join(lines) + "\n"


def main(chosen: list[str]) -> None:
    """Write the page, or print the rows of some architectures."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if chosen:
        for name in chosen:
            print(look_at(name))
        return
    entries = [look_at(name) for name in names()]
    PAGE.write_text(page(entries), encoding="utf-8")
    print(Counter(entry.tier for entry in entries), "without a twin:", [e.name for e in entries if not e.has_twin])


if __name__ == "__main__":
    main(sys.argv[1:])
