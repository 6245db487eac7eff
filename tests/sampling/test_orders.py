"""Order presets against rows that the libraries compute, and against each other.

``library_rows`` holds laws that llama.cpp and mlx-lm computed from random rows and settings: see
``record_library_rows``. transformers is asked directly. vLLM's law is derived from its published source below.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decodekit.errors import OptionError, UnknownNameError
from decodekit.sampling import (
    DRY,
    ORDERS,
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
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Watermark,
)

FOLDER = Path(__file__).parent / "library_rows"


def processors_for(settings: dict[str, Any]) -> list[LogitsProcessor]:
    """In the order of the dictionary: `Pipeline.ordered` sorts them."""
    one = {
        "temperature": Temperature, "top_k": TopK, "top_p": TopP, "min_p": MinP, "typical": Typical,
        "top_n_sigma": TopNSigma, "repetition": RepetitionPenalty, "frequency": FrequencyPenalty,
        "presence": PresencePenalty, "epsilon": Epsilon, "eta": Eta, "top_h": TopH,
    }  # fmt: skip
    made: list[LogitsProcessor] = []
    for name, value in settings.items():
        if name in one:
            made.append(one[name](value))
        elif name == "logit_bias":
            made.append(LogitBias({int(token): bias for token, bias in value.items()}))
        elif name == "dry":
            multiplier, base, allowed, breakers = value
            made.append(DRY(multiplier, base, allowed, tuple(map(tuple, breakers))))
        else:
            made.append({"xtc": XTC, "dynamic_temperature": DynamicTemperature}[name](*value))
    return made


def recorded(library: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{library}.json").read_text())["cases"]


def distance(order: str, case: dict[str, Any]) -> float:
    """The largest difference to the recorded law; 1 if another set of tokens is left."""
    pipeline = Pipeline.ordered(processors_for(case["settings"]), order)
    history = History.from_lists([case["prefix"]], [[]])
    law = pipeline(torch.tensor([case["logits"]]), history).double().softmax(dim=-1)[0].numpy()
    expected = np.array(case["law"])
    if ((law > 1e-8) != (expected > 1e-8)).any():
        return 1.0
    return float(np.abs(law - expected).max())


def is_a_known_difference(library: str, settings: dict[str, Any]) -> bool:
    """In llama.cpp what top-n-sigma removes stays in the list of candidates, with a logit of -inf.

    The entropy of typical sampling is then NaN (0 times the logarithm of 0) and its order undefined; dynamic
    temperature divides by the logarithm of the number of all of them.
    """
    later = {"typical", "dynamic_temperature"} & settings.keys()
    return library == "llamacpp" and "top_n_sigma" in settings and bool(later)


@pytest.mark.parametrize(("library", "count"), [("llamacpp", 50), ("mlx", 50)])
def test_the_law_is_that_of_the_library(library: str, count: int) -> None:
    cases = [case for case in recorded(library) if not is_a_known_difference(library, case["settings"])]
    assert len(cases) >= count
    for case in cases:
        assert distance(library, case) < 1e-6, case["settings"]


@pytest.mark.parametrize("library", ["llamacpp", "mlx"])
def test_another_order_is_another_law(library: str) -> None:
    """Negative control: in our own order, which has everything, most of the same settings give another law."""
    several = [case for case in recorded(library) if len(case["settings"]) > 2]
    differs = [distance("decodekit", case) > 1e-4 for case in several]
    assert sum(differs) > len(several) / 2


# --- transformers ----------------------------------------------------------------------------------------------------

HF_VALUES: dict[str, list[Any]] = {
    "temperature": [0.6, 1.3], "top_k": [5, 12], "top_p": [0.7, 0.9], "min_p": [0.05, 0.2], "typical": [0.5, 0.9],
    "epsilon": [0.01], "eta": [0.05], "top_h": [0.6],
}  # fmt: skip
HF_NAMES = {"typical": "typical_p", "epsilon": "epsilon_cutoff", "eta": "eta_cutoff"}


def hf_processors(settings: dict[str, Any], **more: Any) -> Any:
    """The list that `generate` builds."""
    from transformers import GenerationConfig, GenerationMixin

    class Config:
        is_encoder_decoder = False

    class Model(GenerationMixin):
        config = Config()
        device = torch.device("cpu")

        def __init__(self) -> None:
            pass

    values = {HF_NAMES.get(name, name): value for name, value in settings.items()}
    config = GenerationConfig(do_sample=True, **{"top_k": 0, **values}, **more)
    config._eos_token_tensor = torch.tensor([3])
    return Model()._get_logits_processor(config, input_ids_seq_length=20, device="cpu")


def test_transformers() -> None:
    """At most one row in a hundred may differ in its tokens: a decision within rounding."""
    rng = np.random.default_rng(0)
    num_rows = num_close = 0
    for _ in range(60):
        picked = {name: values[rng.integers(len(values))] for name, values in HF_VALUES.items() if rng.random() < 0.5}
        more: dict[str, Any] = {}
        biases: list[LogitsProcessor] = []
        if rng.random() < 0.5:
            more |= {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[4, 5], [1]]}
            more |= {"min_new_tokens": 30}
            biases = [BadWords([[4, 5], [1]]), MinTokens(30, (3,)), NoRepeatNGram(2), RepetitionPenalty(1.3)]
        logits = torch.from_numpy(rng.normal(0, 3, (8, 30)).astype(np.float32))
        ids = torch.from_numpy(rng.integers(0, 30, (8, 20)))
        expected = hf_processors(picked, **more)(ids, logits.clone()).softmax(dim=-1)
        pipeline = Pipeline.ordered([*processors_for(picked)[::-1], *biases], "hf")
        history = History(ids, torch.full((8,), 20), torch.full((8,), 20))
        law = pipeline(logits, history).softmax(dim=-1)
        is_close = ((law > 0) != (expected > 0)).any(dim=-1)
        num_rows, num_close = num_rows + 8, num_close + int(is_close.sum())
        assert torch.allclose(law[~is_close], expected[~is_close], rtol=0, atol=1e-6)
    assert num_close <= num_rows // 100


# --- vLLM ------------------------------------------------------------------------------------------------------------


def vllm_law(z: np.ndarray, s: dict[str, Any], prompt: list[int], output: list[int]) -> np.ndarray:
    """One row as `vllm/v1/sample/sampler.py` computes it, in float64.

    `Sampler.forward` applies logit bias (a processor that may change the argmax), then `apply_penalties`:
    logits of tokens in prompt or output are divided by the repetition penalty where positive, else multiplied; then
    frequency_penalty * count(output) and presence_penalty * (count > 0) are subtracted. `Sampler.sample` divides by
    the temperature, applies min-p on the law of that (p < min_p * max p is removed), then `apply_top_k_top_p`, which
    sorts upwards once: what is below the k-th value is removed, then of the law that is left what has an upward
    cumulative sum <= 1 - top_p, the largest never.
    """
    z = z.copy()
    for token, bias in s.get("logit_bias", {}).items():
        z[int(token)] += bias
    for token in set(prompt + output):
        z[token] = z[token] / s.get("repetition", 1.0) if z[token] > 0 else z[token] * s.get("repetition", 1.0)
    for token in set(output):
        z[token] -= s.get("frequency", 0.0) * output.count(token) + s.get("presence", 0.0)
    z /= s.get("temperature", 1.0)

    def softmax(x: np.ndarray) -> np.ndarray:
        w = np.exp(x - x.max())
        return w / w.sum()

    if "min_p" in s:
        p = softmax(z)
        z[p < s["min_p"] * p.max()] = -np.inf
    order = np.argsort(z)
    ascending = z[order]
    if "top_k" in s:
        ascending[ascending < ascending[len(z) - s["top_k"]]] = -np.inf
    if "top_p" in s:
        removed = np.cumsum(softmax(ascending)) <= 1 - s["top_p"]
        removed[-1] = False
        ascending[removed] = -np.inf
    z[order] = ascending
    return softmax(z)


def test_vllm() -> None:
    rng = np.random.default_rng(1)
    choices: dict[str, list[Any]] = {
        "min_p": [0.05, 0.2], "top_p": [0.6, 0.9], "top_k": [4, 10], "temperature": [0.5, 1.5],
        "presence": [0.5], "frequency": [0.2], "repetition": [1.2], "logit_bias": [{"2": 1.5, "7": -2.0}],
    }  # fmt: skip
    differs = []
    for _ in range(150):
        settings = {name: values[rng.integers(len(values))] for name, values in choices.items() if rng.random() < 0.6}
        z = rng.choice(np.arange(-400, 400), 24, replace=False) / 64
        prompt, output = rng.integers(0, 12, 10).tolist(), rng.integers(0, 12, 10).tolist()
        history = History.from_lists([prompt], [output])
        logits = torch.from_numpy(z[None].astype(np.float32))
        law = Pipeline.ordered(processors_for(settings), "vllm")(logits, history).double().softmax(-1)[0].numpy()
        expected = vllm_law(z, settings, prompt, output)
        assert ((law > 0) == (expected > 0)).all()
        assert np.abs(law - expected).max() < 1e-6
        if {"min_p", "top_p"} <= settings.keys():
            other = (
                Pipeline.ordered(processors_for(settings), "hf")
                if not settings.keys() & {"presence", "frequency"}
                else None
            )
            if other is not None:
                differs.append(np.abs(other(logits, history).double().softmax(-1)[0].numpy() - expected).max() > 1e-6)
    assert any(differs)  # negative control: with min-p after top-p, some of these are other laws


# --- orders as values ------------------------------------------------------------------------------------------------


def test_an_order_does_not_depend_on_how_processors_are_given() -> None:
    given = [TopP(0.9), Temperature(0.7), MinP(0.1), RepetitionPenalty(1.1), TopK(5)]
    for order in ORDERS:
        made = {Pipeline.ordered(permutation, order) for permutation in itertools.permutations(given)}
        assert len(made) == 1
    assert repr(Pipeline.ordered(given)) == (
        "RepetitionPenalty(1.1) | Temperature(0.7) | TopK(5) | TopP(0.9) | MinP(0.1)"
    )
    assert repr(Pipeline.ordered(given, "mlx")) == (
        "RepetitionPenalty(1.1, window=20) | TopP(0.9) | MinP(0.1) | TopK(5, exact=True) | Temperature(0.7)"
    )
    assert repr(Pipeline.ordered(given, "llamacpp")) == (
        "RepetitionPenalty(1.1, window=64) | TopK(5, exact=True) | TopP(0.9) | MinP(0.1) | Temperature(0.7)"
    )
    assert Pipeline.ordered([RepetitionPenalty(1.1, window=7)], "mlx").processors == (RepetitionPenalty(1.1, window=7),)
    assert Pipeline.ordered([XTC(0.5), Temperature(0.5)], "mlx").processors == (XTC(0.5, then=(Temperature(0.5),)),)
    assert len(Pipeline.ordered([Watermark(), XTC(0.5)])) == 2


def test_two_of_a_kind_keep_their_order() -> None:
    assert Pipeline.ordered([TopK(9), Temperature(2.0), TopK(3)]).processors == (Temperature(2.0), TopK(9), TopK(3))


@pytest.mark.parametrize("order", ORDERS)
def test_the_mask_comes_before_truncation_in_every_order(order: str) -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0]])
    mask = torch.tensor([[0b11010000]], dtype=torch.int32)
    pipeline = Pipeline.ordered([Temperature(0.5), TopK(2), TopP(0.99)], order)
    kept = pipeline(logits, mask=mask) > -math.inf
    assert kept[0].nonzero().flatten().tolist() == [4, 6]
    # Negative control: truncated first, no allowed token is left.
    assert not (pipeline(logits) > -math.inf)[0, [4, 6, 7]].any()


def test_what_a_library_does_not_have_is_refused() -> None:
    for order, processor, message in (
        ("hf", XTC(0.5), "transformers has no XTC"),
        ("vllm", Typical(0.5), "vLLM has no Typical"),
        ("llamacpp", Eta(0.1), "llama.cpp has no Eta"),
        ("mlx", AllowedTokens([1]), "mlx-lm has no AllowedTokens"),
        ("mlx", TopA(0.1), "order='mlx'"),
    ):
        with pytest.raises(OptionError) as caught:
            Pipeline.ordered([processor], order)
        assert message in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"order must be .*, got 'tgi'"):
        Pipeline.ordered([], "tgi")
