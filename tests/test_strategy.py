"""Strategies as values, their options, and the names by which they are found."""

from __future__ import annotations

import pickle
import textwrap
from dataclasses import FrozenInstanceError, dataclass
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from decodekit import strategy as module
from decodekit.errors import OptionError, UnknownNameError, UselessOptionError
from decodekit.generation.step import NoiseKeys
from decodekit.sampling import (
    FrequencyPenalty,
    LogitBias,
    MinP,
    Pipeline,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from decodekit.strategy import GENERATION_OPTIONS, Greedy, Sample, Strategy, available_strategies, resolve_strategy


def test_names_and_options() -> None:
    assert resolve_strategy("greedy", {}) == Greedy()
    assert resolve_strategy("sample", {"temperature": 0.7, "top_k": 5}) == Sample(temperature=0.7, top_k=5)
    assert resolve_strategy("greedy", {"repetition_penalty": 1.2}) == Greedy(repetition_penalty=1.2)
    assert available_strategies()[:3] == ["greedy", "sample", "prompt-lookup"]


def test_values_and_processors() -> None:
    sample = Sample(min_p=0.1, seed=3)
    assert resolve_strategy(sample, {}) is sample
    assert resolve_strategy(Temperature(0.8) | TopK(50), {}) == Sample(processors=Temperature(0.8) | TopK(50))
    assert resolve_strategy(TopK(50), {}).pipeline == Pipeline([TopK(50)])
    assert resolve_strategy([TopK(50), Temperature(0.5)], {}).pipeline == TopK(50) | Temperature(0.5)


def test_strategies_are_values() -> None:
    assert pickle.loads(pickle.dumps(Sample(top_p=0.9))) == Sample(top_p=0.9) != Sample(top_p=0.8)
    with pytest.raises(FrozenInstanceError):
        Sample().top_k = 3  # type: ignore[misc]


def test_order_of_the_pipeline() -> None:
    """Penalties and biases, temperature, top-k, top-p, min-p, then what the caller adds."""
    everything = Sample(
        min_p=0.1,
        top_p=0.9,
        top_k=7,
        temperature=0.5,
        logit_bias={1: 2.0},
        frequency_penalty=0.1,
        presence_penalty=0.2,
        repetition_penalty=1.1,
        processors=TopK(3) | LogitBias({2: 1.0}),
    )
    assert list(everything.pipeline) == [
        RepetitionPenalty(1.1),
        PresencePenalty(0.2),
        FrequencyPenalty(0.1),
        LogitBias({1: 2.0}),
        LogitBias({2: 1.0}),
        Temperature(0.5),
        TopK(7),
        TopP(0.9),
        MinP(0.1),
        TopK(3),
    ]
    composed = TopP(0.9) | Temperature(2.0) | LogitBias({2: 1.0})
    assert Sample(processors=composed).pipeline == composed
    assert list(Sample().pipeline) == list(Greedy().pipeline) == []


def test_all_faults_together() -> None:
    with pytest.raises(OptionError) as caught:
        Sample(temperature=-1.0, top_k=0, top_p=1.5, min_p=0.1, seed=-4)
    message = str(caught.value)
    assert message.startswith("DK305 4 options cannot be used:")
    assert all(name in message for name in ("temperature", "top_k", "top_p", "seed"))
    assert "min_p" not in message


@pytest.mark.parametrize(
    ("strategy", "options", "error", "says"),
    [
        ("greedy", {"temperature": 0.7}, UselessOptionError, "DK306 temperature=0.7 has no effect with greedy"),
        ("greedy", {"processors": TopK(5)}, UselessOptionError, "TopK(5) has no effect with greedy decoding."),
        ("greedy", {"processors": 5}, OptionError, "5 is not a logits processor"),
        ("specualtive", {}, UnknownNameError, "no strategy 'specualtive'."),
        ("gredy", {}, UnknownNameError, "Did you mean 'greedy'? Installed: greedy, sample, prompt-lookup"),
        ("sample", {"temprature": 0.7}, OptionError, "no option 'temprature'. Did you mean 'temperature'?"),
        ("greedy", {"max_new_token": 5}, OptionError, "Did you mean 'max_new_tokens'?"),
        ("sample", {"temperature": 0.0}, OptionError, "greedy"),
        (Sample(), {"temperature": 0.7}, OptionError, "temperature=0.7 is given beside strategy=Sample("),
        (Sample(), {"zzz": 1}, OptionError, "no option 'zzz'."),
        (7, {}, OptionError, "7 is no strategy"),
        (["x"], {}, OptionError, "'x' is not a logits processor"),
    ],
)
def test_refusals(strategy: Any, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        resolve_strategy(strategy, options)
    assert says in str(caught.value)


def test_several_faults_of_a_named_strategy() -> None:
    with pytest.raises(OptionError) as caught:
        resolve_strategy("sample", {"top_k": -1, "tempreture": 1.0, "logit_bais": {}})
    assert all(text in str(caught.value) for text in ("3 options", "top_k", "'temperature'?", "'logit_bias'?"))


def test_generation_options_are_those_of_generate() -> None:
    import inspect

    from decodekit.llm import LLM

    parameters = inspect.signature(LLM.generate).parameters
    assert [p for p in parameters if p not in ("self", "prompts", "strategy_options")] == list(GENERATION_OPTIONS)
    for method in (LLM.stream, LLM.as_completed):
        assert list(inspect.signature(method).parameters) == list(parameters)


def test_the_example_of_the_docs_runs() -> None:
    source = textwrap.dedent((module.__doc__ or "").split("::\n")[1].split("and name it")[0])
    names = {**vars(module), "ClassVar": ClassVar}
    exec(source, names)
    assert len(source.strip().splitlines()) <= 20
    scores = torch.tensor([[0.0, 5.0, 1.0]])
    coldest = names["Coldest"]()
    assert coldest.select(coldest.pipeline(scores), NoiseKeys([0], [0], [0])).tolist() == [1]


@dataclass(frozen=True)
class Last(Strategy):
    """A plug-in: the allowed token with the largest id."""

    name: ClassVar[str] = "last"
    flavour: str = "plain"

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline()

    def select(self, scores: Any, keys: NoiseKeys) -> Tensor:
        return torch.where(scores > -torch.inf, torch.arange(scores.shape[-1]), -1).amax(dim=-1)


def broken() -> Strategy:
    raise AssertionError("never called")


def test_plug_ins_are_found_by_name_and_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "decodekit.strategies"
        entries = [
            EntryPoint("last", f"{__name__}:Last", group),
            EntryPoint("broken", "no_such_module:Thing", group),
            EntryPoint("value", f"{__name__}:__name__", group),
        ]
        return [entry for entry in entries if name in (None, entry.name)]

    monkeypatch.setattr(module.importlib.metadata, "entry_points", entry_points)
    assert available_strategies() == ["greedy", "sample", "prompt-lookup", "broken", "last", "value"]
    assert resolve_strategy("last", {"flavour": "other"}) == Last("other")
    with pytest.raises(OptionError, match=r"no option 'flavor'\. Did you mean 'flavour'"):
        resolve_strategy("last", {"flavor": "other"})
    with pytest.raises(UnknownNameError, match="no_such_module"):
        resolve_strategy("broken", {})
    with pytest.raises(UnknownNameError, match="no class or function"):
        resolve_strategy("value", {})
    with pytest.raises(UnknownNameError, match="Installed: greedy, sample, prompt-lookup, broken, last, value"):
        resolve_strategy("lasd", {})
