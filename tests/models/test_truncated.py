"""The first layers of a model: the logits of transformers' own hidden states after norm and head, the same weights."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from decodekit.errors import ModelError
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.layers import decoder_layers
from decodekit.models.wrappers import truncated
from decodekit.models.wrappers.truncated import first_layers, num_layers
from tests.models import architectures
from tests.models.architectures import tokens
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.models import exit_logits, plain_logits
from tests.sizes import few, thinned

TEXT = tokens(1, 20)  # longer than the sliding windows


@few(2)
@thinned(
    "name",
    [*architectures.RAGGED, *architectures.MASKED, *architectures.ROWWISE],
    keep=["llama", "gemma3", "gpt2", "opt", "gpt_oss", "deepseek_v3", "falcon", "mpt", "bloom", "llama4"],
)
def test_logits_are_those_of_the_hidden_states(name: str) -> None:
    whole = HuggingFaceLM(architectures.build(name))
    own, own_logits = whole.model, plain_logits(whole.model, TEXT)
    count = num_layers(whole)
    for num_kept in range(1, count):
        part = first_layers(whole, num_kept)
        assert (num_layers(part), part.vocab_size) == (num_kept, whole.vocab_size)
        assert part.tier.place <= whole.tier.place  # the layer that needs a slower tier may be gone
        expected = exit_logits(own, TEXT, num_kept)
        cache = part.new_cache(1, 4)
        first = part.forward(torch.tensor([TEXT[:9]]), [9], cache, logits="all")[0]
        rest = part.forward(torch.tensor([TEXT[9:]]), [len(TEXT) - 9], cache, logits="all")[0]
        assert torch.allclose(torch.cat([first, rest]), expected, atol=2e-4)
        assert not torch.allclose(expected, own_logits, atol=0.1)
    assert num_layers(whole) == count and torch.equal(plain_logits(own, TEXT), own_logits)  # nothing was changed


def test_a_short_context_is_enough() -> None:
    config = architectures.RAGGED["gpt2"]()
    config.n_positions = 9  # as many rows has the table of positions
    part = first_layers(HuggingFaceLM(transformers.AutoModelForCausalLM.from_config(config).eval()), 1)
    assert (part.context_length, num_layers(part)) == (9, 1)


def test_weights_are_shared_and_it_is_made_once() -> None:
    whole = HuggingFaceLM(architectures.build("llama"))
    part = first_layers(whole, 2)
    mine = dict(part.model.named_parameters())
    assert mine and all(own is mine[name] for name, own in whole.model.named_parameters() if name in mine)
    assert first_layers(whole, 2) is part and first_layers(whole, 1) is not part
    gone = weakref.ref(part)
    del whole, part, mine
    gc.collect()
    assert gone() is None


def test_configurations_are_cut_where_they_have_an_entry_for_each_layer() -> None:
    whole = HuggingFaceLM(architectures.build("gemma3"))
    whole.model.config.eos_token_id = [2, 5, 7]  # as many as layers
    config: Any = first_layers(whole, 2).model.config
    assert (config.num_hidden_layers, config.layer_types) == (2, ["sliding_attention", "full_attention"])
    assert config.eos_token_id == [2, 5, 7]


class Scaled(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """Its logits depend on how many layers it has, apart from what the layers do."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = out.logits + torch.arange(out.logits.shape[-1]) * self.config.num_hidden_layers
        return out


def test_a_model_whose_end_depends_on_its_depth_is_refused() -> None:
    """The control: cut out, it is another model."""
    config = architectures.RAGGED["llama"]()
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="other logits than in the model"):
        first_layers(HuggingFaceLM(Scaled(config).eval()), 2)


def test_other_layers_than_the_first_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = truncated._truncated

    def last(module: nn.Module, num_kept: int) -> nn.Module:
        part = own(module, num_kept)
        layers, kept = decoder_layers(part), decoder_layers(module)
        for index, layer in enumerate([*kept][-num_kept:]):
            layers[index] = layer
        return part

    monkeypatch.setattr(truncated, "_truncated", last)
    with pytest.raises(ModelError, match="other logits than in the model"):
        first_layers(HuggingFaceLM(architectures.build("gpt2")), 1)


def test_what_has_no_layers_to_cut() -> None:
    with pytest.raises(ModelError, match="ToyLM is not a model of transformers"):
        num_layers(ToyLM(hashed_law(5), 5))
    whole = HuggingFaceLM(architectures.build("llama"))
    decoder: Any = whole.model.get_decoder()  # type: ignore[operator]
    decoder.more = nn.ModuleList([nn.Identity() for _ in range(3)])
    with pytest.raises(ModelError, match="has 2 lists of 3 layers"):
        num_layers(whole)
    del decoder.more, decoder.layers[0]
    with pytest.raises(ModelError, match="has no lists of 3 layers"):
        first_layers(whole, 1)
