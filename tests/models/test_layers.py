"""What layers say, beside transformers' own hidden states and models that end at a layer."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.errors import ModelError
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.layers import EarlyExits, Exit, HiddenStates, decoder_layers
from tests.models import architectures
from tests.models.architectures import tokens
from tests.models.test_huggingface import longrope_model
from tests.models.test_replay import num_proven
from tests.reference.contrast import exit_logits, hidden_states
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.models import plain_logits
from tests.sizes import few, thinned

SHOWN = [
    "llama",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
    "opt",
    "mixtral",
    "gpt_oss",
    "falcon",
    "gptj",
    "lfm2",
    "mamba",
]
EVERY = [*architectures.RAGGED, *architectures.MASKED, *architectures.ROWWISE, "lfm2", "jamba"]


@functools.cache
def model(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


@few(1)
@pytest.mark.parametrize("name", SHOWN)
def test_hidden_states_of_unequal_rows_equal_those_of_the_model(name: str) -> None:
    """Prompts, then drafts of unequal length, on some rows of a cache; every layer at every real token."""
    lm = model(name)
    assert isinstance(lm, EarlyExits)
    rows = [tokens(0, 11), tokens(1, 7)]
    expected = [hidden_states(lm.model, row) for row in rows]
    cache = lm.new_cache(3, 4)
    layers = range(lm.num_layers + 1)
    before = [[], []]
    for parts in ([rows[0][:5], rows[1][:6]], [rows[0][5:], rows[1][6:]]):
        counts = [len(part) for part in parts]
        logits, hidden = lm.forward_hidden(padded(parts), counts, cache, [0, 2], layers=layers)
        for i, count in enumerate(counts):
            begin = len(before[i])
            before[i] = before[i] + parts[i]
            for layer in layers:
                found = hidden[layer][i, :count]
                assert torch.allclose(found, expected[i][layer][begin : begin + count], atol=1e-4), (i, layer)
            torch.testing.assert_close(logits[i], plain_logits(lm.model, before[i])[-1], atol=1e-3, rtol=1e-4)
    assert not torch.allclose(expected[0][1], expected[0][2], atol=0.1)  # the layers differ


@few(5)
@thinned(
    "name", EVERY, keep=["llama", "gemma2", "gpt2", "opt", "gpt_oss", "deepseek_v3", "falcon", "bloom", "lfm2", "jamba"]
)
def test_logits_of_an_exit_equal_those_of_a_model_that_ends_there(name: str) -> None:
    lm = model(name)
    row = tokens(0, 9)
    expected = exit_logits(lm.model, row, layer=1)
    _, [hidden] = lm.forward_hidden(padded([row]), [9], lm.new_cache(1, 9), layers=[1])
    torch.testing.assert_close(lm.exit_logits(hidden[0]), expected, atol=1e-3, rtol=1e-4)
    head: Any = lm.model.get_output_embeddings()  # type: ignore[operator]
    bare = lm.exit_logits(hidden[0], final_norm=False)
    with torch.no_grad():
        torch.testing.assert_close(bare, head(hidden[0]), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(bare, expected, atol=0.01) and not torch.allclose(
        expected, plain_logits(lm.model, row), atol=0.01
    )


def test_steps_that_show_layers_are_not_replayed() -> None:
    """A recorded step has no layers to show; recorded and other steps alternate on one cache."""
    lm = model("llama")
    row = tokens(3, 24)
    expected = hidden_states(lm.model, row)
    reference = plain_logits(lm.model, row)
    cache = lm.new_cache(1, len(row))
    lm.forward(padded([row[:5]]), [5], cache)
    for place in range(5, len(row)):
        one = padded([[row[place]]])
        if place % 3:
            logits = lm.forward(one, [1], cache)
        else:
            logits, [hidden] = lm.forward_hidden(one, [1], cache)
            assert torch.allclose(hidden[0, 0], expected[-1][place], atol=1e-4)
        torch.testing.assert_close(logits[0], reference[place], atol=1e-3, rtol=1e-4)
    replays: Any = lm._runner._replays  # type: ignore[union-attr]
    assert num_proven(replays) == 1


def test_longrope_rows_on_both_sides_of_the_limit_show_their_layers() -> None:
    lm = HuggingFaceLM(longrope_model())
    rows = [tokens(0, 20), tokens(1, 5)]
    together = lm.forward_hidden(padded(rows), [20, 5], lm.new_cache(2, 20), layers=[0, 1, -1])[1]
    for i, row in enumerate(rows):
        alone = lm.forward_hidden(padded([row]), [len(row)], lm.new_cache(1, 20), layers=[0, 1, -1])[1]
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one[i, : len(row)], other[0], atol=1e-4, rtol=1e-4)


def test_a_toy_has_no_layers() -> None:
    toy = ToyLM(hashed_law(5), 5)
    assert not isinstance(toy, HiddenStates)


def test_models_whose_layers_cannot_be_told_apart_are_refused() -> None:
    twice: Any = architectures.build("llama")
    twice.model.others = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    with pytest.raises(ModelError, match="2 lists of 3 layers"):
        decoder_layers(twice)

    class Counting(nn.Linear):
        """An output projection that looks at how many tokens there are: logits are no function of one place."""

        def forward(self, hidden: Tensor) -> Tensor:
            return super().forward(hidden) * hidden.shape[1]

    strange: Any = architectures.build("llama")
    strange.lm_head.__class__ = Counting
    with pytest.raises(ModelError, match="in a way that is understood"):
        Exit(strange)
    with pytest.raises(ModelError, match="MambaForCausalLM does not show"):  # no embeddings, one place further
        Exit(architectures.build("mamba"))
