"""The training network is transformers' Llama, and its initial weights can already copy."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.batches import NO_LOSS, Batches, copy_task
from training.network import Network, NetworkShape
from training.peers import Peers
from training.train import MODELS, RECIPES, Trainer

SHAPE = NetworkShape(vocab_size=512, hidden_size=96, num_layers=3, num_heads=3, intermediate_size=64)


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(3)
    return Network(SHAPE)


def test_same_logits_as_transformers(network: Network) -> None:
    reference = LlamaForCausalLM(LlamaConfig(**network.transformers_config(1024, eos_id=1, pad_id=0)))
    reference.load_state_dict(network.transformers_state(), strict=False)
    reference.tie_weights()
    tokens = torch.randint(0, 512, (2, 90))
    with torch.no_grad():
        torch.testing.assert_close(network.project(network(tokens)), reference(tokens).logits, atol=2e-5, rtol=1e-4)


def copied_part(network: Network, length: int) -> float:
    part = torch.randint(2, 512, (16, length), generator=torch.Generator().manual_seed(0))
    tokens = part.repeat(1, 2)
    with torch.no_grad():
        best = network.project(network(tokens[:, :-1])).argmax(-1)
    return float((best == tokens[:, 1:])[:, length:].float().mean())


def test_written_induction_heads_copy_and_random_weights_do_not() -> None:
    torch.manual_seed(3)
    network = Network(SHAPE)
    assert copied_part(network, 24) < 0.05
    network.write_induction_heads(num_heads=2)
    for length in (8, 24, 100):
        assert copied_part(network, length) > 0.5


def test_copy_task_learns_the_second_time() -> None:
    sample = copy_task(random.Random(0), 21, vocab_size=50, eos_id=1)
    assert sample.tokens[:10] == sample.tokens[10:20]
    assert sample.tokens[20] == 1
    assert sample.is_learned == [False] * 10 + [True] * 10 + [False]
    assert min(sample.tokens[:10]) > 1


def test_rows_are_documents_with_loss_on_their_json(tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(tokenizer_folder).backend_tokenizer

    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    batches = Batches(random.Random(1), encode, 1, 2048)
    inputs, targets = batches.take(0.0, 0.0)
    again, _ = Batches(random.Random(1), encode, 1, 2048).take(0.0, 0.0)
    assert torch.equal(inputs, again)
    rows, length = inputs.shape
    assert inputs.shape == targets.shape
    assert length in Batches.LENGTHS and rows == 2048 // length
    learned = targets != NO_LOSS
    assert 0.2 < learned.float().mean() < 0.8
    # A target is the next input wherever there is one, but for the end, which is no input.
    is_inner = learned[:, :-1] & (targets[:, :-1] != 1)
    assert torch.equal(targets[:, :-1][is_inner], inputs[:, 1:][is_inner])
    for row in range(rows):
        end = targets[row].tolist().index(1)
        text = backend.decode(inputs[row, : end + 1].tolist(), skip_special_tokens=False)
        answer = backend.decode(targets[row, : end + 1][learned[row, : end + 1]].tolist(), skip_special_tokens=True)
        assert text.endswith(answer)
        assert isinstance(json.loads(answer), dict)


def test_a_network_grown_by_layers_computes_the_same(network: Network) -> None:
    torch.manual_seed(4)
    grown = Network(replace(SHAPE, num_layers=5))
    grown.grow_from(network.state_dict())
    tokens = torch.randint(0, 512, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(grown(tokens), network(tokens))
        grown.blocks[2].mlp.down_proj.weight.add_(0.01)  # a layer that writes is a layer that counts
        assert not torch.allclose(grown(tokens), network(tokens))


@pytest.mark.slow
def test_training_can_go_on_from_the_written_model(tmp_path: Path) -> None:
    trainer = Trainer("tiny", RECIPES["tiny"], "cpu", compiles=False, peers=Peers(0, 1, tmp_path / "meeting"))
    before = trainer.field_accuracy(held_out_wordings=False, num_documents=12)
    trainer.start_from(MODELS / "tiny")
    after = trainer.field_accuracy(held_out_wordings=False, num_documents=12)
    assert before < 0.2 < 0.7 < after
    assert trainer.is_warm
    loss = trainer.train_step(0.99)  # a small rate: what was learned stays
    assert loss < 1
    assert trainer.field_accuracy(held_out_wordings=False, num_documents=12) > 0.7
