"""A small twin of a model: the same classes and settings, a few thousand weights, float32.

    Qwen3ForCausalLM    36 layers, 4096 wide, 32 heads of 128, vocabulary 151,936, bfloat16
    its twin             2 layers,  128 wide,  4 heads of 32,  vocabulary 128,     float32

What decides how tokens see one another stays: kinds of layers, rotary embeddings, scaling, groups of heads, sinks,
routing. What hides a fault is made small: windows are a few tokens wide, scores are capped where they are, and biases,
gates and norms are random, so that leaving one out shows. Numbers that belong together are made smaller together; a
configuration whose numbers do not fit afterwards has no twin, and its model raises when it is built.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from typing_extensions import TypeIs

VOCAB_SIZE: Final = 128
WINDOW: Final = 4
"""Tokens that a query sees under a sliding window, where the model has one."""
SOFTCAP: Final = 2.0
"""Bound of the scores, where the model has one: random scores are about 1, and a bound of 50 would change nothing."""
MAX_LAYERS: Final = 8

WINDOWS: Final = (
    "sliding_window",
    "attention_chunk_size",
    "sliding_window_size",
    "window_size",
    "local_attention",
    "attention_window_size",
    "keep_window_size",
)
"""Attributes of configurations and modules that limit how far back, or how many tokens, a token sees."""

_HEAD_DIM = 16
# Sizes that no other number depends on, behind the largest value that they keep.
_FREE_SIZES_TABLE = """
32   intermediate_size intermediate_size_mlp dense_intermediate_size moe_intermediate_size shared_intermediate_size
32   shared_expert_intermediate_size shared_experts_intermediate_size moe_shared_expert_intermediate_size
32   ffn_dim encoder_ffn_dim decoder_ffn_dim dim_ff dff n_inner d_inner ffn_hidden_size expert_ffn_hidden_size
16   kv_lora_rank q_lora_rank o_lora_rank adapter_rank laurel_rank router_hidden_size hidden_size_per_layer_input
16   mamba_d_state state_size ssm_state_size linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim
8    time_step_rank mamba_dt_rank mamba_chunk_size chunk_size gated_norm_rank
8    num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num
4    floor_scale log_scaling_n_floor block_size
2    linear_num_heads index_n_heads n_mamba_heads n_group num_expert_group index_topk_blocks index_block_size
2    num_experts_per_tok num_experts_per_token moe_k moe_topk
1    n_shared_experts num_shared_experts moe_num_shared_experts num_nextn_predict_layers topk_group
1    first_k_dense_replace num_dense_layers moe_layer_start_index
128  vocab_size_per_layer_input unpadded_vocab_size
"""
_FREE_SIZES: Final = dict.fromkeys(WINDOWS, WINDOW) | {
    name: int(most) for most, *names in map(str.split, _FREE_SIZES_TABLE.strip().splitlines()) for name in names
}
# Dimensions within a head, which are divided together with it.
_PARTS_OF_HEADS = (
    *("head_dim", "global_head_dim", "swa_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim"),
    *("v_head_dim", "rotary_dim", "kv_channels", "attention_head_dim", "d_head", "attention_head_size"),
)
# Lists of numbers of layers.
_LAYER_NUMBERS = (
    *("mlp_only_layers", "moe_layers", "full_attn_idxs", "hybrid_layer_ids", "ple_layer_ids"),
    "cross_attention_layers",
)
# Lists of the kinds of some layers, which are repeated.
_REPEATED = ("block_types",)
_PERIODS = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}


def tiny_copy_of(model: nn.Module) -> nn.Module:
    """The small float32 twin of a model of transformers, on its device, in evaluation mode, the same at every call.

    Raises:
        Exception: whatever its class raises for a configuration that cannot be made smaller.
    """
    config = shrunken(model.config)
    device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        twin: nn.Module = type(model)(config)
    randomise(twin)
    return twin.to(device=device, dtype=torch.float32).eval()


def randomise(model: nn.Module) -> None:
    """Random weights with which every part of the model shows in its logits, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.is_floating_point():
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if id(weight) in tables:
                weight.copy_(noise)
            elif weight.ndim < 2:  # biases, norms and sinks begin at 0 or 1, where a fault in their use is not seen
                weight.add_((0.2 * noise).to(weight.dtype))
            else:
                # Variance 2 / fan-in: the scores of the attention are then about 2, and who sees whom matters.
                weight.copy_(noise * (2 / weight.shape[-1]) ** 0.5)


def shrunken(config: Any) -> Any:
    """A small copy of a configuration of transformers and of those in it; the given one is not changed."""
    small = copy.deepcopy(config)
    for part in _parts(small):
        _shrink(part)
    if getattr(small, "dtype", None) is not None:
        small.dtype = torch.float32
    if getattr(small, "_attn_implementation", None) not in (None, "eager", "sdpa"):
        small._attn_implementation = "eager"  # what else there is wants half precision, or large tensors
    vars(small).pop("quantization_config", None)
    return small


def _parts(config: Any) -> Iterator[Any]:
    """A configuration, and the configurations of parts of the model in it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _parts(value)


def _shrink(config: Any) -> None:
    spec, overrides = vars(config).get("_heterogeneity_spec"), dict[int, dict[str, Any]]()
    if spec is not None:  # the settings of single layers that differ, which transformers 5.23 has, are taken out
        overrides |= copy.deepcopy(spec.per_layer_overrides)
        config.per_layer_config = None
    kept = _shrink_layers(config, overrides)
    sizes = _Heads(config)
    sizes.shrink(config)
    for name, most in _FREE_SIZES.items():
        _lower(config, name, most)
    for name in ("attn_logit_softcapping", "attn_logit_softcap"):
        if isinstance(getattr(config, name, None), int | float):
            setattr(config, name, SOFTCAP)
    _shrink_states(config)
    _shrink_vocabulary(config)
    changed = {}
    for place, layer in enumerate(kept):
        values = overrides.get(layer)
        if values:
            changed[place] = {**values, **sizes.smaller(values)}
    if changed:
        config.per_layer_config = changed


def _lower(config: Any, name: str, most: int) -> None:
    value = getattr(config, name, None)
    if _is_count(value) and value > most:
        setattr(config, name, most)
    elif isinstance(value, list) and value and all(_is_count(one) for one in value):
        setattr(config, name, [min(one, most) for one in value])


def _is_count(value: object) -> TypeIs[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shrink_layers(config: Any, overrides: dict[int, dict[str, Any]]) -> list[int]:
    """Keep one layer of every kind, at least two of them, in their order; their numbers."""
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(count, int):
        return []
    for name, period in _PERIODS.items() if hasattr(config, "attn_layer_period") else ():
        _lower(config, name, period)
    per_layer = {
        name: value for name, value in vars(config).items() if isinstance(value, list | tuple) and len(value) == count
    }
    num_shared = getattr(config, "num_kv_shared_layers", None) or 0  # the last layers, with keys of earlier ones
    kinds: dict[str, list[int]] = {}
    for layer in range(count):
        own = (layer >= count - num_shared, overrides.get(layer), *(value[layer] for value in per_layer.values()))
        kinds.setdefault(repr(own), []).append(layer)
    # Two of the layers that share weights (Zamba), one of each other kind.
    kept = sorted(layer for kind, layers in kinds.items() for layer in layers[: 1 + ("'hybrid'" in kind)])[:MAX_LAYERS]
    if len(kept) < 2:
        kept = sorted({*kept, *range(min(count, 2))})
    least = max(len(getattr(config, name, None) or ()) for name in _REPEATED)
    if hasattr(config, "attn_layer_period"):
        least = 4
    if least:
        kept = list(range(min(count, least)))
    for name, value in per_layer.items():
        setattr(config, name, type(value)(value[layer] for layer in kept))
    for name in _LAYER_NUMBERS:
        numbers = getattr(config, name, None)
        if isinstance(numbers, list):
            setattr(config, name, [kept.index(layer) for layer in numbers if layer in kept])
    if num_shared:
        config.num_kv_shared_layers = sum(layer >= count - num_shared for layer in kept)
    config.num_hidden_layers = len(kept)
    if hasattr(config, "num_blocks"):
        config.num_blocks = len(kept)
    return kept


class _Heads:
    """The numbers and sizes of heads before and after."""

    def __init__(self, config: Any) -> None:
        self.heads: Any = getattr(config, "num_attention_heads", None)
        self.hidden: Any = getattr(config, "hidden_size", None)
        self.divisor, self.kept = 1, 4
        if not _is_count(self.hidden) or not _is_count(self.heads) or self.heads < 1:
            return
        given: Any = getattr(config, "head_dim", None)
        self.head_dim = given if _is_count(given) and given > 0 else int(self.hidden // self.heads)
        choices = (d for d in (16, 8, 4, 2) if self.head_dim // d >= _HEAD_DIM and _divides(config, self.head_dim, d))
        self.divisor = next(choices, 1)
        self.kept = min(self.heads, 4)

    def shrink(self, config: Any) -> None:
        """Few heads of few dimensions; the width of the model follows."""
        if not _is_count(self.hidden):
            return
        if not _is_count(self.heads) or self.heads < 1:
            hidden = min(self.hidden, 4 * _HEAD_DIM)
        else:
            for name, value in self.smaller(vars(config)).items():
                setattr(config, name, value)
            config.num_attention_heads = self.kept
            hidden = self.kept * (self.head_dim // self.divisor)
            _shrink_rotations(config, self.divisor)
        for name in ("lru_width", "attention_hidden_size", "word_embed_proj_dim", "embedding_dim"):
            width: Any = getattr(config, name, None)
            if _is_count(width):
                setattr(config, name, hidden * max(1, width // self.hidden))
        config.hidden_size = hidden

    def smaller(self, values: dict[str, Any]) -> dict[str, int]:
        """The new values of what belongs to heads among some values."""
        changed: dict[str, int] = {}
        for name, value in values.items():
            if not _is_count(value) or value <= 0:
                continue
            if name in _PARTS_OF_HEADS:
                changed[name] = value // self.divisor
            elif name.endswith(("num_key_value_heads", "num_kv_heads", "num_query_groups")):
                changed[name] = self.kept if value == self.heads else min(value, 2)
            elif name.endswith("attention_heads"):
                changed[name] = self.kept
            elif name in _FREE_SIZES:
                changed[name] = min(value, _FREE_SIZES[name])
        return changed


def _rotations(config: Any) -> Iterator[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    yield parameters
    yield from (value for value in parameters.values() if isinstance(value, dict))


def _divides(config: Any, head_dim: int, divisor: int) -> bool:
    """Whether all dimensions of a head, rotated ones too, are even after a division."""
    sizes = [head_dim, *(getattr(config, name, None) or 0 for name in _PARTS_OF_HEADS)]
    for rotation in _rotations(config):
        sizes.append(int(head_dim * rotation.get("partial_rotary_factor", 1.0)))
        sizes += [2 * size for size in rotation.get("mrope_section") or ()]
    return all(size % (2 * divisor) == 0 for size in sizes if isinstance(size, int))


def _shrink_rotations(config: Any, divisor: int) -> None:
    for rotation in _rotations(config):
        for name in ("short_factor", "long_factor"):
            if isinstance(rotation.get(name), list):
                rotation[name] = rotation[name][::divisor]
        if isinstance(rotation.get("mrope_section"), list):
            rotation["mrope_section"] = [size // divisor for size in rotation["mrope_section"]]


def _shrink_states(config: Any) -> None:
    """Heads of recurrent layers; together they are as wide as the model says."""
    hidden = getattr(config, "hidden_size", 0)
    if isinstance(getattr(config, "linear_num_key_heads", None), int):
        is_grouped = config.linear_num_value_heads > config.linear_num_key_heads
        config.linear_num_key_heads, config.linear_num_value_heads = 2, 4 if is_grouped else 2
    for count, size, expand in (
        ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
        ("mamba_num_heads", "mamba_head_dim", "expand"),
        ("num_heads", "head_dim", "expand"),
    ):
        if all(isinstance(getattr(config, name, None), int) for name in (count, size, expand)):
            setattr(config, size, _HEAD_DIM)
            setattr(config, count, getattr(config, expand) * hidden // _HEAD_DIM)
    if isinstance(getattr(config, "mamba_headdim", None), int):
        config.mamba_headdim = config.mamba_expand * hidden // config.n_mamba_heads
    if isinstance(getattr(config, "mamba_d_ssm", None), int):
        config.mamba_d_ssm = config.mamba_expand * hidden
    if isinstance(getattr(config, "time_step_min", None), float):
        config.time_step_min = 1e-6  # the bound holds in prompts, but not in steps
    for name in ("n_groups", "mamba_n_groups", "mamba_ngroups"):
        _lower(config, name, 2)


def _shrink_vocabulary(config: Any) -> None:
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int) or size <= VOCAB_SIZE:
        return
    config.vocab_size = VOCAB_SIZE
    for name in list(vars(config)):
        if not name.endswith(("_token_id", "_token_index")):
            continue
        value = getattr(config, name)
        if isinstance(value, int) and value >= VOCAB_SIZE:
            setattr(config, name, value % VOCAB_SIZE)
        elif isinstance(value, list):
            setattr(config, name, [one % VOCAB_SIZE for one in value])
