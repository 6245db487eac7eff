"""Strategies as values, their options, and the names by which they are found."""

from __future__ import annotations

import inspect
import math
import pickle
import textwrap
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.errors import OptionError, UnknownNameError, UselessOptionError
from decodekit.sampling import (
    DRY,
    XTC,
    AllowedTokens,
    BadWords,
    DynamicTemperature,
    Epsilon,
    Eta,
    FrequencyPenalty,
    History,
    LogitBias,
    LogitsProcessor,
    MinP,
    MinTokens,
    NoRepeatNGram,
    Pipeline,
    PLess,
    PresencePenalty,
    Quadratic,
    RepetitionPenalty,
    SequenceBias,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Watermark,
)
from decodekit.strategy import Greedy, Sample, available_strategies, resolve_strategy, tokenwise
from decodekit.strategy import strategy as base
from decodekit.vocabulary import Vocabulary


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


EVERY_BIAS: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "penalty_window": 64,
    "logit_bias": {1: 2.0},
    "sequence_bias": {(1, 2): -1.0},
    "no_repeat_ngram_size": 3,
    "bad_words": [[4, 5]],
    "allowed_tokens": [1, 2, 3],
    "min_tokens": 2,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_breakers": [[9]],
    "dry_window": 100,
}
BIASES: list[LogitsProcessor] = [
    RepetitionPenalty(1.1, 64),
    PresencePenalty(0.2, 64),
    FrequencyPenalty(0.1, 64),
    LogitBias({1: 2.0}),
    SequenceBias({(1, 2): -1.0}),
    DRY(0.8, 2.0, 3, ((9,),), 100),
    NoRepeatNGram(3),
    BadWords([[4, 5]]),
    AllowedTokens([1, 2, 3]),
    MinTokens(2),
]
EVERY_SHAPE: dict[str, Any] = {
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.01,
    "typical_p": 0.95,
    "epsilon_cutoff": 0.001,
    "eta_cutoff": 0.002,
    "top_n_sigma": 2.0,
    "top_a": 0.1,
    "top_h": 0.8,
    "p_less": True,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynamic_temperature": (0.5, 1.5, 2.0),
    "smoothing_factor": 0.2,
    "smoothing_curve": 1.5,
    "watermark": Watermark(key=7),
}
SHAPES: list[LogitsProcessor] = [
    DynamicTemperature(0.5, 1.5, 2.0),
    Quadratic(0.2, 1.5),
    TopK(50),
    TopP(0.9),
    MinP(0.01),
    Typical(0.95),
    Epsilon(0.001),
    Eta(0.002),
    TopNSigma(2.0),
    TopA(0.1),
    TopH(0.8),
    PLess(),
    XTC(0.5, 0.2),
    Watermark(key=7),
]


def test_every_option_is_a_processor() -> None:
    assert list(Greedy(**EVERY_BIAS).pipeline) == BIASES
    everything = {**EVERY_BIAS, **EVERY_SHAPE}
    assert list(Sample(**everything).pipeline) == [*BIASES, *SHAPES]
    missing = set(inspect.signature(Sample).parameters) - everything.keys()
    others = {"temperature", "seed", "processors", "speculate", "verify", "num_return_sequences", "contrast", "order"}
    assert missing == others
    assert Sample(dynamic_temperature=(0.5, 1.5)).pipeline == Pipeline([DynamicTemperature(0.5, 1.5)])
    assert repr(Sample(temperature=0.7, seed=1)) == "Sample(temperature=0.7, seed=1)"
    assert pickle.loads(pickle.dumps(Sample(**everything))) == Sample(**everything)


def test_processors_stand_between_the_options() -> None:
    """Biases after the options' own, the rest at the end but before a watermark."""
    mixed = Sample(top_k=5, repetition_penalty=1.1, watermark=Watermark(), processors=TopP(0.9) | LogitBias({1: 1.0}))
    assert list(mixed.pipeline) == [RepetitionPenalty(1.1), LogitBias({1: 1.0}), TopK(5), TopP(0.9), Watermark()]
    composed = TopP(0.9) | Temperature(0.5)
    assert list(Sample(min_tokens=2, processors=composed).pipeline) == [MinTokens(2), *composed]


def test_orders_of_libraries() -> None:
    """The same settings, another law: llama.cpp truncates first, takes exactly k, and penalizes the last 64 tokens."""
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
    assert list(Sample(**options, order="llamacpp").pipeline) == [
        RepetitionPenalty(1.1, 64),
        TopK(40, exact=True),
        MinP(0.05),
        Temperature(0.7),
    ]
    assert list(Sample(**options, order="vllm").pipeline)[1:] == [Temperature(0.7), MinP(0.05), TopK(40)]
    [xtc] = Sample(xtc_probability=0.5, temperature=0.7, order="llamacpp").pipeline
    assert xtc == XTC(0.5, then=(Temperature(0.7),))


def test_every_useless_or_wrong_option_is_told() -> None:
    with pytest.raises(OptionError) as caught:
        Sample(
            penalty_window=0,
            dry_base=2.0,
            dry_window=5,
            xtc_threshold=0.2,
            smoothing_curve=2.0,
            temperature=0.5,
            dynamic_temperature=(0.5, 1.0),
            typical_p=0.0,
            bad_words=["no"],  # type: ignore[list-item]
            watermark=True,  # type: ignore[arg-type]
        )
    assert sorted((fault.code, str(fault.at)) for fault in caught.value.faults) == [
        ("DK305", "bad_words"),
        ("DK305", "penalty_window"),
        ("DK305", "temperature"),
        ("DK305", "typical_p"),
        ("DK305", "watermark"),
        ("DK306", "dry_base"),
        ("DK306", "dry_window"),
        ("DK306", "penalty_window"),
        ("DK306", "smoothing_curve"),
        ("DK306", "xtc_threshold"),
    ]
    with pytest.raises(OptionError) as caught:
        Sample(typical_p=0.9, top_h=0.5, top_k=3, order="vllm")
    assert [str(fault).splitlines()[0] for fault in caught.value.faults] == [
        "DK305 vLLM has no Typical",
        "DK305 vLLM has no TopH",
    ]


@pytest.mark.parametrize(
    ("processor", "can_forbid"),
    [
        (RepetitionPenalty(1.3), False),
        (PresencePenalty(2.0), False),
        (FrequencyPenalty(-2.0), False),
        (DRY(1e6, 3.0), False),
        (LogitBias({1: -100.0}), False),
        (LogitBias({1: -1e39}), True),  # -inf in float32
        (LogitBias({1: -math.inf, 2: 1.0}), True),
        (SequenceBias({(1, 2): -5.0}), False),
        (SequenceBias({(1, 2): -math.inf}), True),
        (BadWords([[1]]), True),
        (AllowedTokens([1]), True),
        (MinTokens(20), True),
        (NoRepeatNGram(2), True),
    ],
)
def test_only_what_can_forbid_keeps_forced_tokens_from_being_taken_unseen(
    processor: LogitsProcessor, can_forbid: bool
) -> None:
    assert processor.can_forbid == can_forbid
    vocabulary = Vocabulary([bytes([number]) for number in range(256)], {0})
    settings = Settings(vocabulary, Pipeline([processor]), Greedy().select, 8)
    assert settings.can_ban == can_forbid and settings.is_forced_unseen != can_forbid
    row = processor.for_vocabulary(256, {0})(torch.full((1, 256), -50.0), History.from_lists([[1] * 9], [[1] * 9]))
    assert bool((row == -torch.inf).any()) == can_forbid
    named = processor.for_vocabulary(256, {0}).may_forbid(256)
    assert (named is None) == isinstance(processor, NoRepeatNGram)
    forbidden = set((row[0] == -torch.inf).nonzero()[:, 0].tolist())
    assert named is None or (forbidden <= set(named) and bool(named) == can_forbid)


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
        ("greedy", {"processors": 5}, OptionError, "processors must be logits processors, got 5"),
        ("specualtive", {}, UnknownNameError, "no strategy 'specualtive'."),
        ("gredy", {}, UnknownNameError, "Did you mean 'greedy'? Installed: greedy, sample, prompt-lookup"),
        ("sample", {"temprature": 0.7}, OptionError, "no option 'temprature'. Did you mean 'temperature'?"),
        ("greedy", {"max_new_token": 5}, OptionError, "Did you mean 'max_new_tokens'?"),
        ("sample", {"temperature": 0.0}, OptionError, "greedy"),
        ("sample", {"order": "ollama", "top_k": 3}, UnknownNameError, '"llamacpp" or "mlx", got'),
        ("sample", {"order": "ollama"}, UnknownNameError, "order must be"),
        ("sample", {"order": "hf"}, UselessOptionError, "order='hf' has nothing to put in order"),
        ("sample", {"dynamic_temperature": 0.5}, OptionError, "must be (low, high) or (low, high, exponent), got"),
        ("sample", {"dynamic_temperature": (2.0, 1.0)}, OptionError, "exponent), where high must be"),
        ("sample", {"dry_multiplier": 1.0, "dry_breakers": 5}, OptionError, "dry_breakers must be sequences"),
        ("greedy", {"bad_words": 5}, OptionError, "bad_words must be sequences of token ids, got 5"),
        ("greedy", {"typical_p": 0.9}, UselessOptionError, "typical_p=0.9 has no effect with greedy"),
        ("greedy", {"dry_base": 2.0}, UselessOptionError, "dry_base=2.0 has no effect without dry_multiplier"),
        (Sample(), {"temperature": 0.7}, OptionError, "temperature=0.7 is given beside strategy=Sample("),
        (Sample(), {"zzz": 1}, OptionError, "no option 'zzz'."),
        (7, {}, OptionError, "strategy must be a name, a Strategy or logits processors, got 7"),
        (["x"], {}, UnknownNameError, "no processor 'x'. Installed: none."),
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


def test_the_example_of_the_docs_runs() -> None:
    source = textwrap.dedent((base.__doc__ or "").split("::\n")[1].split("and name it")[0])
    scope = {**vars(base), **vars(tokenwise)}
    exec(source, scope)
    assert len(source.strip().splitlines()) <= 20
    scores = torch.tensor([[0.0, 5.0, 1.0]])
    coldest = scope["Coldest"]()
    assert coldest.select(coldest.pipeline(scores), NoiseKeys([0], [0], [0])).tolist() == [1]
