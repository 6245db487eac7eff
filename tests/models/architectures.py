"""Tiny models with random weights, one per architecture, large enough in their weights that a wrong mask shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCAB_SIZE = 160
CONTEXT_LENGTH = 256
WINDOW = 8

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LENGTH,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Tied embeddings make a random model say the last token again and again.
    "tie_word_embeddings": False,
}
_GPT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": CONTEXT_LENGTH,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_MIXED_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]


def _config(name: str, base: dict[str, Any] = COMMON, **changes: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, name)(**{**base, **changes})


# Architectures that run on the ragged cache.
RAGGED: dict[str, Callable[[], Any]] = {
    "llama": _config("LlamaConfig"),
    "qwen2": _config("Qwen2Config"),
    "qwen3": _config("Qwen3Config", head_dim=8),
    "mistral": _config("MistralConfig", sliding_window=WINDOW),
    # Its scores are capped, which the SDPA path of transformers 5.17 leaves out in silence.
    "gemma2": _config(
        "Gemma2Config", head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8, attn_implementation="eager"
    ),
    "gemma3": _config(
        "Gemma3TextConfig", head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8, layer_types=_MIXED_WINDOWS
    ),
    "phi3": _config("Phi3Config"),
    "gpt2": _config("GPT2Config", _GPT),
    "gpt_neox": _config("GPTNeoXConfig"),
    "opt": _config("OPTConfig", ffn_dim=64, word_embed_proj_dim=32, init_std=0.3),
    "mixtral": _config("MixtralConfig", num_local_experts=4),
    "olmo2": _config("Olmo2Config"),
    "smollm3": _config("SmolLM3Config"),
    "granite": _config("GraniteConfig", attention_multiplier=0.3),
    # It hands no keyword arguments on to its attention.
    "stablelm": _config("StableLmConfig"),
    "gpt_oss": _config(
        "GptOssConfig",
        head_dim=8,
        num_local_experts=4,
        sliding_window=WINDOW,
        layer_types=_MIXED_WINDOWS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # Keys are wider than values: multi-head latent attention.
    "deepseek_v3": _config(
        "DeepseekV3Config",
        num_key_value_heads=4,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
    ),
}

# Architectures on the ragged cache whose last layers read the keys and values of earlier ones.
SHARING: dict[str, Callable[[], Any]] = {
    "gemma3n": _config(
        "Gemma3nTextConfig",
        num_hidden_layers=4,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
        altup_num_inputs=2,
        laurel_rank=4,
    ),
    # These layers run for the last tokens alone, where no logits of others are wanted.
    "gemma4": _config(
        "Gemma4TextConfig",
        num_hidden_layers=4,
        head_dim=8,
        global_head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
    ),
}

# Architectures that ignore the attention interface, or bring masks of their own.
MASKED: dict[str, Callable[[], Any]] = {
    "falcon": _config("FalconConfig"),
    "gptj": _config("GPTJConfig", _GPT, rotary_dim=8),
    "codegen": _config("CodeGenConfig", _GPT, rotary_dim=8),
    "mpt": _config("MptConfig", d_model=32, n_layers=3, n_heads=4, max_seq_len=CONTEXT_LENGTH),
}

# Architectures whose positions or masks follow from the length of a row.
ROWWISE: dict[str, Callable[[], Any]] = {
    "falcon_alibi": _config("FalconConfig", alibi=True),
    "bloom": _config("BloomConfig", n_layer=3, n_head=4),
    "gpt_neo": _config(
        "GPTNeoConfig",
        num_hidden_layers=2,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
    ),
    # The scale of its scores follows from the length, and its chunks are in its masks alone.
    "llama4": _config(
        "Llama4TextConfig", head_dim=8, attention_chunk_size=WINDOW, num_local_experts=4, intermediate_size_mlp=64
    ),
}

# Architectures with recurrent state.
RECURRENT: dict[str, Callable[[], Any]] = {
    "mamba": _config("MambaConfig"),
    "lfm2": _config("Lfm2Config", layer_types=["conv", "full_attention", "conv"]),
    "jamba": _config("JambaConfig", num_experts=4, attn_layer_period=3, attn_layer_offset=1),
    "qwen3_next": _config(
        "Qwen3NextConfig",
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
    "minimax": _config(
        "MiniMaxConfig",
        head_dim=8,
        num_local_experts=4,
        block_size=4,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
}
# Those of them that read several tokens after a state in one pass.
IN_CHUNKS = ("lfm2", "qwen3_next", "minimax")

ALL = {**RAGGED, **SHARING, **MASKED, **ROWWISE, **RECURRENT}

# The twelve whose greedy tokens are compared with transformers' own `generate`, and some more.
GREEDY = [name for name in RAGGED if name != "deepseek_v3"] + ["falcon", "gptj", "bloom", "lfm2", "qwen3_next"]


def build(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The tiny model of an architecture, the same at every call."""
    torch.manual_seed(0)
    config = ALL[name]()
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases, gates and sinks start at 0 or 1, where a fault in their use would not show.
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(row: int, count: int) -> list[int]:
    """Random tokens above the special ones, the same at every call."""
    generator = torch.Generator().manual_seed(row)
    return torch.randint(3, VOCAB_SIZE, (count,), generator=generator).tolist()  # type: ignore[no-any-return]
