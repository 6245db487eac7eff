"""What is predicted of a model against what its caches allocate, what counting by hand gives, and what can be done."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import decodekit as dk
from decodekit.costs.device_speed import DeviceSpeed, device_speed
from decodekit.errors import ModelError, OptionError
from decodekit.models import sizes
from decodekit.models.huggingface import HuggingFaceLM
from tests.models.architectures import ALL, build, tokens
from tests.sizes import thinned

EVERY = ALL
KEPT = ("gemma3", "deepseek_v3", "jamba")
GIVEN: dict[str, Any] = {"bandwidth": 1e10, "flops": 1e12}
BATCH, CONTEXT = 2, 24

LLAMA_8B: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "dtype": "bfloat16",
}
SMALL = {**LLAMA_8B, "num_hidden_layers": 2}
NUM_8B = 8_030_261_248
LAYER_8B = 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14_336)  # the weights of its products


def stored(cache: Any) -> int:
    """Bytes of every tensor in a cache, found one by one."""
    found: dict[int, torch.Tensor] = {}

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif isinstance(value, dict):
            walk(list(value.values()))
        elif isinstance(value, list | tuple):
            for one in value:
                walk(one)

    if hasattr(cache, "num_bytes"):
        return int(cache.num_bytes)
    for state in cache.states:
        for layer in state.layers:
            walk({name: value for name, value in vars(layer).items() if not name.startswith("_")})
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


@thinned("name", EVERY, keep=KEPT)
def test_predicted_bytes_are_those_that_are_allocated(name: str) -> None:
    model = build(name)
    lm = HuggingFaceLM(model)
    cache = lm.new_cache(BATCH, CONTEXT)
    for count in (CONTEXT - 4, 3, 1):  # a prompt, a draft and a step
        rows = torch.tensor([tokens(row, count) for row in range(BATCH)])
        lm.forward(rows, [count] * BATCH, cache)
    found = dk.estimate(lm, BATCH, CONTEXT, **GIVEN)
    assert found.cache_bytes == stored(cache)
    assert found.cache_bytes != dk.estimate(lm, BATCH + 1, CONTEXT, **GIVEN).cache_bytes
    weights = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    assert found.weight_bytes == weights
    planned = dk.estimate(model.config, BATCH, CONTEXT, **GIVEN)  # type: ignore[union-attr]
    num_parameters = sum(one.numel() for one in model.parameters())
    assert (planned.weight_bytes, planned.num_parameters, found.num_parameters) == (weights, *[num_parameters] * 2)
    assert planned.flops_per_prompt_token == found.flops_per_prompt_token > 0
    # Without weights no self-check says which tier runs: the rectangle has a slot for padding in every row.
    slot = found.kv_bytes_per_token * BATCH
    assert planned.cache_bytes - found.cache_bytes in ((0, slot) if lm.tier.name == "rowwise" else (0,))


def test_a_llama_of_eight_billion_by_hand() -> None:
    found = dk.estimate(transformers.LlamaConfig(**LLAMA_8B), batch=1, context=2048, **GIVEN)
    assert found.num_parameters == NUM_8B
    table = 128_256 * 4096 * 2
    assert 0 <= found.weight_bytes - 2 * NUM_8B <= 1024  # 64 rotary frequencies, once or twice
    assert found.bytes_read_per_step == found.weight_bytes - table
    assert found.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2 == 131_072
    assert found.cache_bytes == 2049 * 131_072
    assert found.flops_per_prompt_token == 2 * 32 * LAYER_8B
    assert found.attention_flops == 32 * (2048 * 2049 // 2) * 4 * 4096
    step = found.bytes_read_per_step + 2048 * 131_072
    assert found.seconds_per_token == step / 1e10
    prompt = 2048 * found.flops_per_prompt_token + found.attention_flops + 2 * 128_256 * 4096
    assert found.seconds_to_first_token == pytest.approx(prompt / 1e12)


def test_fourteen_gigabytes_take_fourteen_milliseconds() -> None:
    assert round(DeviceSpeed(1008e9, 1e15).least_seconds(14.2e9) * 1e3, 1) == 14.1
    # Where the operations take longer than the reading, they are the limit.
    assert DeviceSpeed(1008e9, 1e12).least_seconds(14.2e9, 14.2e9) == pytest.approx(14.2e-3)


@pytest.mark.parametrize(("num_heads", "num_bytes"), [(4, 4 * 64), (2, 2 * 64), (1, 64)])
def test_heads_that_share_keys(num_heads: int, num_bytes: int) -> None:
    """Multi-head, grouped and multi-query attention: 8 numbers of 4 bytes for keys and values of each head."""
    config = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=num_heads, num_hidden_layers=3, vocab_size=50
    )
    assert dk.estimate(config, 1, 8, **GIVEN).kv_bytes_per_token == 3 * num_bytes


def test_latent_attention_is_told() -> None:
    found = dk.estimate(ALL["deepseek_v3"](), 1, 8, **GIVEN)
    assert any("multi-head latent attention" in note for note in found.notes)
    # 3 layers: the latent of 16 and the rotary part of 8 numbers, or 4 heads of 16 and 12.
    assert found.kv_bytes_per_token in (3 * (16 + 8) * 4, 3 * 4 * (16 + 12) * 4)


def test_tied_embeddings_count_once() -> None:
    tied = dk.estimate(transformers.LlamaConfig(**{**SMALL, "tie_word_embeddings": True}), **GIVEN)
    untied = dk.estimate(transformers.LlamaConfig(**SMALL), **GIVEN)
    table = 128_256 * 4096 * 2
    assert untied.weight_bytes - tied.weight_bytes == table
    assert tied.bytes_read_per_step == tied.weight_bytes == untied.bytes_read_per_step


def test_windows_bound_what_a_step_reads() -> None:
    config = ALL["gemma3"]()  # two layers of three have windows of 8 tokens
    found = dk.estimate(config, 1, 24, **GIVEN)
    each = found.kv_bytes_per_token // 3
    assert found.window_bytes == (24 + 8 + 8) * each
    assert found.cache_bytes == 25 * 3 * each
    assert any("outside of sliding windows" in note for note in found.notes)


def test_pairs_of_attention_against_counting() -> None:
    for window, start, count in itertools.product((None, 1, 3, 8), range(6), range(6)):
        seen = sum(min(position + 1, window or position + 1) for position in range(start, start + count))
        assert sizes.Operations(0.0, 1.0, 0.0, (window,)).attention(count, start) == seen


def test_expected_experts_against_every_choice() -> None:
    """All ways in which two and three tokens choose two of four experts."""
    choices = list(itertools.combinations(range(4), 2))
    for num_tokens in (1, 2, 3):
        every = [len(set().union(*way)) for way in itertools.product(choices, repeat=num_tokens)]
        layer = sizes.Experts(400, 4, 2)
        assert layer.expected_bytes(num_tokens) == pytest.approx(100 * sum(every) / len(every))


def test_experts_are_read_by_batch() -> None:
    found = {batch: dk.estimate(ALL["mixtral"](), batch, 8, **GIVEN) for batch in (1, 2, 1000)}
    assert [round(one.num_experts_per_step, 3) for one in found.values()] == [2, 3, 4]
    experts = 3 * 4 * 3 * 32 * 64 * 4  # layers, experts, matrices
    read = [one.bytes_read_per_step for one in found.values()]
    assert [read[2] - one for one in read] == [experts // 2, experts // 4, 0]
    assert len({one.weight_bytes for one in found.values()}) == 1


def test_experts_of_deepseek_beside_shared_ones() -> None:
    config = ALL["deepseek_v3"]()
    config.first_k_dense_replace = 1
    found = dk.estimate(config, 1, 8, **GIVEN)
    assert found.num_experts_per_step == 2
    unread = 2 * 6 * 3 * 32 * 16 * 4  # layers, experts that are not chosen, matrices
    table = 160 * 32 * 4
    assert found.weight_bytes - found.bytes_read_per_step == unread + table


def test_quantised_weights_by_their_bits() -> None:
    config = transformers.LlamaConfig(**SMALL)
    config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    found = dk.estimate(config, **GIVEN)
    linear = 2 * LAYER_8B
    plain = dk.estimate(transformers.LlamaConfig(**SMALL), **GIVEN)
    assert found.weight_bytes == plain.weight_bytes - 2 * linear + linear // 2 + linear // 128 * 4
    assert "quantised" in str(found)
    config.quantization_config = {"quant_method": "unheard-of"}
    with pytest.raises(ModelError, match="unheard-of"):
        dk.estimate(config, **GIVEN)


def test_quantised_tensors_as_they_are_stored() -> None:
    class Packed:
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.absmax, self.shape = torch.zeros(4), torch.Size(shape)

    weight = torch.nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    weight.quant_state = Packed((4, 4))  # type: ignore[attr-defined]  # as bitsandbytes keeps four bits a number
    assert sizes.num_bytes(weight) == 8 + 16


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    config = transformers.LlamaConfig(**SMALL)
    memory = 8_000_000_000
    found = dk.estimate(config, 1, 2048, memory=memory, **GIVEN)
    assert found.max_batch is not None
    for batch, fits in ((found.max_batch, True), (found.max_batch + 1, False)):
        one = dk.estimate(config, batch, 2048, memory=memory, **GIVEN)
        passing = 3 * 2048 * 14_336 * 2
        logits = 3 * 4 * 128_256 * batch
        assert (one.weight_bytes + one.cache_bytes + passing + logits <= memory) is fits
    assert dk.estimate(config, memory=10**8, **GIVEN).max_batch == 0


def test_a_share_of_the_limit() -> None:
    plain = dk.estimate("tiny", **GIVEN)
    assert plain.share is None
    half = dk.estimate("tiny", measured=2 * plain.seconds_per_token, **GIVEN)
    assert half.share == 0.5
    assert "50%" in str(half)
    llm = dk.LLM.load("tiny")
    seen = dk.estimate(llm, 1, 32, measure=True, **GIVEN)
    assert seen.measured_seconds_per_token is not None
    assert seen.share == seen.seconds_per_token / seen.measured_seconds_per_token > 0


def test_a_device_is_measured_once() -> None:
    first = device_speed(torch.device("cpu"), torch.float32, 1 << 20)
    assert first.bandwidth > 0 and first.flops > 0
    assert device_speed(torch.device("cpu"), torch.float32, (1 << 20) + 100) is first


def test_a_configuration_by_file_and_folder(tmp_path: Path) -> None:
    transformers.LlamaConfig(**SMALL).save_pretrained(tmp_path)
    by_folder = dk.estimate(str(tmp_path), **GIVEN)
    by_file = dk.estimate(tmp_path / "config.json", **GIVEN)
    num_parameters = 2 * (LAYER_8B + 2 * 4096) + 2 * 128_256 * 4096 + 4096
    assert by_folder.num_parameters == by_file.num_parameters == num_parameters
    assert by_folder.weight_bytes == by_file.weight_bytes
    assert by_file.dtype == "bfloat16"
    wider = dk.estimate(str(tmp_path), dtype="float32", **GIVEN).weight_bytes
    assert wider - by_file.weight_bytes == 2 * num_parameters
    assert json.loads(json.dumps(by_file.to_dict()))["cache_bytes"] == by_file.cache_bytes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 0}, "batch=0 is not an integer from 1 on"),
        ({"context": 1.5}, "context=1.5 is not"),
        ({"context": 100_000}, "more than the model's"),
        ({"bandwidth": 0}, "bandwidth must be a number above 0"),
        ({"measured": float("nan")}, "measured must be"),
        ({"measure": True}, "only a model that is loaded can be measured"),
        ({"measure": True, "measured": 1.0}, "measured= is what measure=True would find"),
        ({"dtype": "int7"}, "'int7' is not a type of weights"),
        ({"device": "abacus"}, "no device 'abacus'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        dk.estimate("tiny", **{**GIVEN, **options})


def test_what_is_no_model() -> None:
    with pytest.raises(ModelError, match="neither a model of transformers nor a configuration"):
        dk.estimate(5)
    with pytest.raises(ModelError, match="there is no such model folder"):
        dk.estimate("/nowhere/at/all")
    with pytest.raises(ModelError, match="no causal language model can be built"):
        dk.estimate(transformers.ViTConfig())
    with pytest.raises(OptionError, match="dtype= has no effect"):
        dk.estimate(dk.LLM.load("tiny"), dtype="float32")


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
@thinned("num_tokens", [1, 31, 33, 64], keep=[31, 33])
def test_pages_take_what_is_predicted(name: str, num_tokens: int) -> None:
    lm = HuggingFaceLM(build(name), tier="paged")
    cache: Any = lm.new_cache(2, 64)
    lm.forward(torch.tensor([tokens(row, num_tokens) for row in range(2)]), [num_tokens] * 2, cache)
    assert cache.num_bytes == sizes.cache_sizes(lm).num_bytes(2, num_tokens)
