"""A model that is divided over two processes gives the text of one: tensor parallelism of transformers, by gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import decodekit as dk
from decodekit.models.modules.shared_copy import is_spread

ROOT = Path(__file__).parents[2]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
PROMPTS = ["Invoice A-17, total 40.20 EUR.", "hello world", "a"]
STRATEGIES: dict[str, Any] = {
    "greedy": dk.Greedy(),
    "sample": dk.Sample(temperature=0.9, top_p=0.95, seed=3),
    "draft": dk.Sample(temperature=0.9, top_p=0.95, seed=3, speculate="prompt-lookup"),
}


def texts_of(llm: dk.LLM) -> dict[str, list[list[int]]]:
    """The tokens of every strategy, without and with a constraint."""
    found = {}
    for name, strategy in STRATEGIES.items():
        for constraint in (None, SCHEMA):
            outs = llm.generate(
                PROMPTS, strategy=strategy, constraint=constraint, max_new_tokens=24, on_length="return"
            )
            found[f"{name} {'schema' if constraint else 'free'}"] = [[*out.token_ids] for out in outs]
    return found


def one_rank(folder: str) -> None:
    """One of the processes: writes its tokens, and how many values of a divided weight it holds."""
    import torch.distributed as dist
    from transformers.distributed import DistributedConfig

    dist.init_process_group("gloo")
    llm = dk.LLM.load(folder, distributed_config=DistributedConfig(tp_plan="auto"))
    model: Any = llm.model.model  # type: ignore[attr-defined]
    weight = model.model.layers[0].mlp.up_proj.weight
    result = {"texts": texts_of(llm), "num_here": weight.to_local().numel(), "num_values": weight.numel()}
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_text_of_one(tmp_path: Path) -> None:
    tiny = dk.LLM.load("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tiny.model.model.config.vocab_size,  # type: ignore[attr-defined]
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    expected = texts_of(dk.LLM.load(str(tmp_path)))
    assert expected["greedy free"] != expected["sample free"] == expected["draft free"]
    code = f"from tests.models.test_tensor_parallel import one_rank; one_rank({str(tmp_path)!r})"
    (tmp_path / "rank.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path / "rank.py")], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in (0, 1):
        result = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert result["num_here"] * 2 == result["num_values"]  # each has a half: it is divided indeed
        assert result["texts"] == expected


def test_divided_weights_are_not_of_one_device() -> None:
    """No step of such a model is written down: an error while it is leaves torch's masks of the ids behind."""
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        layer = torch.nn.Linear(4, 4)
        assert not is_spread(layer)
        layer.weight = torch.nn.Parameter(distribute_tensor(layer.weight.detach(), DeviceMesh("cpu", [0]), [Shard(0)]))
        assert is_spread(layer)
    finally:
        dist.destroy_process_group()
