"""The benchmark of the loop: how sides are compared, the model of the one in another process, and that process."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import figures, loop, peers, rivals
from decodekit import Greedy

TOKENS = [[5, 6, 7, 8], [9]]


def test_tokens_are_equal_up_to_the_first_that_differs() -> None:
    assert loop.equal_share(TOKENS, TOKENS) == 1
    assert loop.equal_share(TOKENS, [[5, 6, 1, 8], [9]]) == 3 / 5
    assert loop.equal_share(TOKENS, [[5, 6], [8, 9]]) == 2 / 6  # also where one has ended before


def test_another_arithmetic_may_differ_and_another_loop_may_not() -> None:
    def compared(name: str) -> loop.Row:
        sides = {"decodekit": lambda: TOKENS, name: lambda: [[5, 6, 7, 8], [8]]}
        return loop.compare(sides, 1, time.process_time, is_exact=True)

    assert compared(rivals.LLAMA_CPP)[f"tokens_as_{rivals.LLAMA_CPP}"] == 0.8
    with pytest.raises(SystemExit, match="differ from those of bare"):
        compared("bare")


class Answering:
    """A process that answers each batch with its prompts, after a minute of processor time."""

    def answer(self, **request: Any) -> dict[str, Any]:
        return {"tokens": [row[: request["max_new_tokens"]] for row in request["prompts"]], "processor_seconds": 60.0}


def test_processor_time_of_another_process_counts() -> None:
    setup: Any = SimpleNamespace(prompts=TOKENS, max_new_tokens=4, eos=frozenset[int]())
    worker: Any = Answering()
    side = loop.LlamaCpp(worker, 1)
    assert side.run(setup) == TOKENS
    assert 119 < side.spent() - time.process_time() < 121


def weights(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder of a Llama whose four heads share two of keys, and its weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder, dict(model.state_dict())


@pytest.mark.parametrize(
    ("dtype", "kind", "of_value", "of_block"),
    [
        ("float32", "F32", 0.0, 0.0),
        ("bfloat16", "BF16", 2**-8, 0.0),
        ("float16", "F16", 2**-11, 2**-17),  # a small one has fewer bits
        ("int8", "Q8_0", 0.0, 0.5 / 127 + 2**-11),  # half a step, and the step is a float16
    ],
)
def test_a_gguf_file_has_the_weights(tmp_path: Path, dtype: str, kind: str, of_value: float, of_block: float) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    folder, expected = weights(tmp_path / "model")
    path = tmp_path / "model.gguf"
    rivals.write_gguf(path, folder, dtype)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(found) == 11  # nine of the layer, the last norm, the embedding that is the head, too

    def read(name: str) -> torch.Tensor:
        tensor = found[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return torch.tensor(values).reshape(*reversed(tensor.shape.tolist()))

    for ours, theirs in (("embed_tokens", "token_embd"), ("layers.0.mlp.down_proj", "blk.0.ffn_down")):
        wanted, values = (rows.reshape(-1, 32) for rows in (expected[f"model.{ours}.weight"], read(f"{theirs}.weight")))
        largest = wanted.abs().amax(1, keepdim=True)
        assert found[f"{theirs}.weight"].tensor_type.name == kind
        assert ((values - wanted).abs() <= of_value * wanted.abs() + of_block * largest).all(), ours
    assert found["output_norm.weight"].tensor_type.name == "F32"
    if dtype == "float32":  # neighbours of a head of sixteen were its halves
        keys = expected["model.layers.0.self_attn.k_proj.weight"]
        assert torch.equal(read("blk.0.attn_k.weight")[[0, 1, 2, 17]], keys[[0, 8, 1, 24]])


def test_the_table_of_the_loop_has_llama_cpp_if_the_record_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    row: loop.Row = {
        "model": "2M",
        "strategy": "greedy",
        "dtype": "int8",
        "num_threads": 1,
        "batch_size": 8,
        "decodekit": 1000.0,
    }
    row |= {"generate": 500.0, "ratio_generate": 2.0, "ratio_generate_p10_p90": [1.9, 2.1]}
    more: loop.Row = {"llama.cpp": 800.0, "ratio_llama.cpp": 1.25, "tokens_as_llama.cpp": 0.254}
    more["versions"] = {"llama_cpp_python": "0.3"}
    for rows in ([row], [row, row | more]):
        record = {"rows": rows, "commit": "abc", "machine": {"processor": "AMD", "num_cores": 2}}
        (tmp_path / "loop.json").write_text(json.dumps(record))
        shown = figures.loop()
        assert ("llama" in shown) == (len(rows) == 2)
    assert "| 2.00, 1.90 to 2.10 |  |  | 1.25, 25% |" in shown and "llama_cpp_python 0.3" in shown


@pytest.mark.slow
@pytest.mark.parametrize("size", ["2", "tiny"])
def test_llama_cpp_continues_as_decodekit_does(size: str, tmp_path: Path) -> None:
    if not os.environ.get(peers.VARIABLE):
        pytest.skip(f"{peers.VARIABLE} names no environment of the rivals")
    make = loop.random_model if size in loop.SIZES else loop.bundled
    setup = make(size, torch.float32, 3, 40)
    with loop.llama_cpp(size, "float32", 1, 2, tmp_path) as side:
        if side is None:
            pytest.skip("llama.cpp is not in the environment of the rivals")
        expected = loop.run_decodekit(setup, Greedy(), 2)
        assert [*map(len, expected)] == [40] * 3
        assert side.run(setup, "F32") == expected
        assert [*map(len, side.run(setup))] == [40] * 3
        assert side.processor_seconds > 0
