"""Drafts of the target's own first layers: the same text, all of it accepted where the later layers do nothing."""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.cli.parts.shared_options import parse_speculate
from decodekit.errors import ModelError, OptionError
from decodekit.speculation import Adaptive, Chain, Context, EarlyExit, GrammarDraft, Joined, resolve_proposer
from decodekit.testing import check_proposer
from tests.models import architectures
from tests.reference.generation_tokenizer import EOS, small_tokenizer
from tests.sizes import few, thinned
from tests.speculation.test_extraction import documents, schema_of

STRATEGIES: list[dict[str, Any]] = [
    {},
    {"strategy": "sample", "temperature": 0.8, "top_k": 20, "repetition_penalty": 1.2, "seed": 5},
]


@functools.cache
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


WAYS = {"greedy": (STRATEGIES[0], False), "greedy, a schema": (STRATEGIES[0], True)}
WAYS |= {"sampled": (STRATEGIES[1], False), "sampled, a schema": (STRATEGIES[1], True)}


@few(1)
@thinned("way", WAYS, keep=["greedy", "sampled, a schema"])
def test_the_text_stays_the_same(way: str) -> None:
    strategy, constrained = WAYS[way]
    prompts = [*documents("ticket"), "Invoice A-17, total 40.20 EUR."]
    given: dict[str, Any] = {"max_new_tokens": 32, "on_length": "return", **strategy}
    given |= {"constraint": schema_of("ticket")} if constrained else {}
    plain = llm().generate(prompts, **given)
    num_accepted = 0
    for speculate, batch_size in ((EarlyExit(-1), 1), (EarlyExit(0.5, 3), 3), ((GrammarDraft(), EarlyExit(4, 6)), 3)):
        if isinstance(speculate, tuple) and not constrained:
            speculate = Adaptive(speculate[1])
        drafted = llm().generate(prompts, speculate=speculate, batch_size=batch_size, **given)
        assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
        assert all(one.stats.num_drafts > 0 for one in drafted)
        num_accepted += sum(sum(one.stats.acceptance_histogram) for one in drafted)
    assert num_accepted > 0


@functools.cache
def shallow(name: str) -> dk.LLM:
    """A model of three layers of which the last does nothing."""
    model: Any = architectures.build(name)
    with torch.no_grad():
        for part, weight in model.get_decoder().layers[2].named_parameters():
            if part.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
    return dk.LLM(model, small_tokenizer())


@few(1)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=["greedy", "sampled"])
@thinned("name", ["llama", "mistral"], keep=["mistral"])
def test_layers_that_do_nothing_are_not_missed(name: str, strategy: dict[str, Any]) -> None:
    """All is accepted: the draft has the target's logits, processors and noise. One layer less is another law."""
    given: dict[str, Any] = {"max_new_tokens": 24, "logit_bias": {EOS: -math.inf}, **strategy}
    prompts = ["the first", "ab", "another one"]
    plain = shallow(name).generate(prompts, **given)
    for layer, batch_size in ((2, 1), (-1, 3)):
        drafted = shallow(name).generate(prompts, speculate=EarlyExit(layer, 3), batch_size=batch_size, **given)
        for one, other in zip(drafted, plain, strict=True):
            assert one.token_ids == other.token_ids and one.stats.draft_acceptance_rate == 1.0
            assert one.stats.num_forwards == -(-len(one.token_ids) // 4)
    early = shallow(name).generate(prompts, speculate=EarlyExit(1, 3), **given)
    assert [one.token_ids for one in early] == [one.token_ids for one in plain]
    assert all(one.stats.draft_acceptance_rate < 0.5 for one in early)


@pytest.mark.parametrize(
    ("layer", "num_layers", "kept"),
    [(1, 2, 1), (8, 32, 8), (-1, 5, 4), (-31, 32, 1), (0.5, 5, 2), (0.01, 8, 1), (0.99, 8, 7)],
)
def test_how_many_layers_are_run(layer: float, num_layers: int, kept: int) -> None:
    assert EarlyExit(layer).num_kept(num_layers) == kept


@pytest.mark.parametrize(("layer", "num_layers"), [(5, 5), (6, 5), (-5, 5), (-6, 5), (0.5, 1), (1, 1)])
def test_none_or_all_layers_are_no_draft(layer: float, num_layers: int) -> None:
    with pytest.raises(OptionError, match=f"a model with {num_layers} layers"):
        EarlyExit(layer).num_kept(num_layers)


def test_what_is_no_layer() -> None:
    for wrong in (0, 1.0, -0.5, True, "8", None, float("nan")):
        with pytest.raises(OptionError, match="layer must be"):
            EarlyExit(wrong)  # type: ignore[arg-type]
    for count in (0, 2.0, True):
        with pytest.raises(OptionError, match="num_tokens"):
            EarlyExit(1, count)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a share of them, got 'half'"):
        EarlyExit.of("half")
    assert [EarlyExit.of(text).layer for text in ("8", "-4", "0.5")] == [8, -4, 0.5]


def test_targets_without_layers_are_refused_before_anything_is_decoded() -> None:
    with pytest.raises(OptionError, match="layer=5 of a model with 5 layers"):
        llm().generate("x", speculate=EarlyExit(5))
    broken = dk.LLM(architectures.build("llama"), small_tokenizer())
    broken.model.model.get_decoder().more = torch.nn.ModuleList([torch.nn.Identity()] * 3)  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="2 lists of 3 layers"):
        broken.generate("x", speculate=EarlyExit(2))
    assert EarlyExit(2).propose([Context([1], [])], [4])[0].tokens == ()  # a target that is not known


def test_it_is_a_value() -> None:
    early = EarlyExit(-1, 2)
    llm().generate("Total:", speculate=early, max_new_tokens=4)
    copy = pickle.loads(pickle.dumps(early))
    assert copy == early == EarlyExit(-1, 2) != EarlyExit(-2, 2)
    assert len(early._engines) == 1 and len(copy._engines) == 0


@pytest.mark.slow
def test_the_laws_of_proposers() -> None:
    check_proposer(EarlyExit(2, 3), llm=shallow("llama"), max_new_tokens=8)


def test_by_name_on_the_command_line() -> None:
    names = parse_speculate("early-exit:-1, grammar+early-exit:0.5")
    assert resolve_proposer(names) == Chain((EarlyExit(-1), Joined((GrammarDraft(), EarlyExit(0.5)))))
