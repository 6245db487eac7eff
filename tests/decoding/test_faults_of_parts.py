"""Processors and proposers of a user's own that do what none may: refused by name, and never blamed on the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.errors import DeadEndError, DecodekitError, NonFiniteLogitsError, ProcessorError, ProposerError
from decodekit.llm import LLM, front
from decodekit.sampling import XTC, History, LogitsProcessor, MinP, OrderPreserving, Pipeline, Stage, Temperature, TopK
from decodekit.speculation import Adaptive, Chain, Context, Draft, Joined, PromptLookup
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import EOS, small_tokenizer

V = 160
TOKENIZER = small_tokenizer()
PROMPTS = ["the other", "xab", "né"]


@dataclass(frozen=True, repr=False)
class Broken(LogitsProcessor):
    """Does something that is not allowed, from a position on in rows whose prompt begins with a token."""

    how: str
    position: int = 0
    first: int | None = None
    stage: ClassVar[Stage] = Stage.BIAS
    needs_history: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        assert history is not None
        if self.how == "narrow":
            return logits[:, :-1]
        if self.how == "transposed":
            return logits.T
        if self.how == "double":
            return logits.double()
        if self.how == "a row too few":
            return logits[1:]
        if self.how == "nothing":
            return None  # type: ignore[return-value]
        is_meant = history.lengths - history.prompt_lengths >= self.position
        if self.first is not None:
            is_meant &= history.token_ids[:, 0] == self.first
        bad = torch.full_like(logits, {"NaN": math.nan, "+inf": math.inf}[self.how])
        if self.how == "+inf":
            bad = torch.where(torch.arange(V) == 40, bad, logits)
        return torch.where(is_meant[:, None], bad, logits)


def toy(law: Any = None) -> LLM:
    return LLM(ToyLM(law or hashed_law(V), V, frozenset({EOS})), TOKENIZER)


STRATEGIES: dict[str, Any] = {
    "greedy": lambda *broken: dk.Greedy(processors=broken),
    "sample": lambda *broken: dk.Sample(processors=broken, temperature=0.9, top_p=0.9),
    "drafts": lambda *broken: dk.Sample(processors=broken, speculate=PromptLookup()),
    "mirostat": lambda *broken: dk.Mirostat(processors=broken),
    "beam": lambda *broken: dk.Beam(2, processors=broken),
    "best-of": lambda *broken: dk.BestOf(strategy=dk.Sample(processors=broken), n=2),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("narrow", "made float32 [{n}, 159] on cpu of float32 [{n}, 160] on cpu"),
        ("transposed", "made float32 [160, {n}] on cpu of"),
        ("double", "made float64 [{n}, 160] on cpu of float32 [{n}, 160] on cpu"),
        ("a row too few", "made float32 [{less}, 160] on cpu of"),
        ("nothing", "made a NoneType of"),
    ],
)
def test_another_shape_or_type_is_refused_with_both(name: str, how: str, says: str) -> None:
    strategy = STRATEGIES[name](Broken(how))
    completion = toy().generate("the other", strategy=strategy, max_new_tokens=4)
    n = 2 if name == "beam" and "[2, 160]" in str(completion.error) else 1
    assert isinstance(completion.error, ProcessorError) and completion.finish_reason == "error"
    assert says.format(n=n, less=n - 1) in str(completion.error)
    assert f"Broken({how!r}" in str(completion.error) and "processor Broken" in str(completion.error)
    with pytest.raises(ProcessorError, match="DK605"):
        toy().generate(PROMPTS, strategy=strategy, max_new_tokens=4, on_error="raise")


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("how", ["NaN", "+inf"])
def test_nan_of_a_processor_is_its_own(name: str, how: str) -> None:
    """And it stops the rows that have it, from where they have it: the others write what they write alone."""
    llm, broken = toy(), Broken(how, 2, TOKENIZER("x")["input_ids"][0])
    whole = STRATEGIES[name]()
    if name != "best-of":
        assert isinstance(llm.generate("x", strategy=whole, max_new_tokens=2).text, str)
    bad, good = (llm.generate(PROMPTS, strategy=one, max_new_tokens=6) for one in (STRATEGIES[name](broken), whole))
    assert [one.error is None for one in bad] == [True, False, True]
    assert isinstance(bad[1].error, ProcessorError)
    assert f"Broken({how!r}" in str(bad[1].error) and "made NaN or +inf of finite logits" in str(bad[1].error)
    assert "prompt 1" in str(bad[1].error) and "step 2" in str(bad[1].error)
    assert [bad[i].text for i in (0, 2)] == [good[i].text for i in (0, 2)]


def test_the_first_culprit_is_named() -> None:
    """Behind others, before others, beside a mask, and as the inner part of another."""
    for processors in ((TopK(5), Broken("NaN"), MinP(0.1)), (dk.LogitBias({3: 1.0}), Broken("NaN"), Temperature(0.5))):
        found = toy().generate(
            "x", strategy=dk.Sample(processors=processors), constraint=dk.Regex("[ab]{3}"), max_new_tokens=4
        )
        assert isinstance(found.error, ProcessorError) and "processor Broken" in str(found.error)
    with pytest.raises(ProcessorError, match="Halves"):
        XTC(0.5, 0.1, then=(Halves(),))(torch.randn(2, 8), None)
    pipeline = Pipeline([TopK(3), Broken("NaN")])
    history = History.from_lists([[1]], [[]])
    assert pipeline.first_fault(torch.randn(1, V), history) == Broken("NaN")
    assert pipeline.first_fault(torch.full((1, V), math.nan), history) is None


@dataclass(frozen=True, repr=False)
class Halves(OrderPreserving):
    """Gives half of the columns."""

    stage: ClassVar[Stage] = Stage.TEMPERATURE

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        return logits[:, ::2]

    def on_sorted(self, logits: Any) -> Any:
        return logits[:, ::2] if logits.shape[1] < 4 else logits.astype(np.float64)


def test_candidates_are_checked_too() -> None:
    for k in (3, 6):
        with pytest.raises(ProcessorError, match=r"Halves.*made float.*of sorted rows float32"):
            Pipeline([TopK(k), Halves()]).narrow(torch.randn(2, 1024))
    with pytest.raises(ProcessorError, match=r"float32 \[2, 32\]"):
        Pipeline([Halves()]).trace(torch.randn(2, 64))


def nan_law(prefix: Sequence[int], value: float = math.nan) -> Tensor:
    row = hashed_law(V)(prefix)
    return row if len(prefix) < 4 else torch.full((V,), value)


@pytest.mark.parametrize("name", STRATEGIES)
def test_nan_of_the_model_is_the_models(name: str) -> None:
    found = toy(nan_law).generate("xab", strategy=STRATEGIES[name](dk.LogitBias({3: 1.0})), max_new_tokens=6)
    assert isinstance(found.error, NonFiniteLogitsError) and "the model gave NaN or +inf" in str(found.error)


@pytest.mark.parametrize("name", [*STRATEGIES, "particles"])
def test_a_row_without_a_finite_logit_is_the_models(name: str) -> None:
    """Greedy and sampled texts are at a dead end there; searches cannot tell."""
    bias = dk.LogitBias({3: 1.0})
    particles = dk.Particles(strategy=dk.Sample(processors=(bias,)), num_particles=3)
    constraint = dk.Regex("[ab]{6}") if name == "particles" else None
    strategy = particles if name == "particles" else STRATEGIES[name](bias)
    llm = toy(partial(nan_law, value=-math.inf))
    error = llm.generate("xab", strategy=strategy, constraint=constraint, max_new_tokens=6).error
    assert isinstance(error, NonFiniteLogitsError | DeadEndError) and "logit" in str(error)


def test_nan_under_a_contrast_names_it() -> None:
    amateur = toy(nan_law)
    strategy = dk.Sample(contrast=dk.Amateur(amateur))
    found = toy().generate("xab", strategy=strategy, max_new_tokens=6)
    assert isinstance(found.error, NonFiniteLogitsError)
    assert "the model under Amateur(" in str(found.error)


def test_nan_of_a_processor_among_particles() -> None:
    strategy = dk.Particles(strategy=dk.Sample(processors=(Broken("NaN", 2),)), num_particles=3)
    found = toy().generate("x", strategy=strategy, constraint=dk.Regex("[ab]{6}"), max_new_tokens=8)
    assert isinstance(found.error, ProcessorError) and "processor Broken" in str(found.error)


# --- proposers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guesses:
    """Offers the same always."""

    offer: Any

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        if self.offer == "no list":
            return None  # type: ignore[return-value]
        if self.offer == "too few":
            return []
        return [self.offer if isinstance(self.offer, str) else Draft(self.offer) for _ in contexts]


WRONG: list[tuple[Any, str]] = [
    ([5, V], "gave the token id 160, which is outside the vocabulary of 160 ids"),
    ([-1], "gave the token id -1, which is outside"),
    ([2**40], "gave the token id 1099511627776, which is outside"),
    ([5.0], "gave 5.0 in place of a token id"),
    ([True], "gave True in place of a token id"),
    ([None], "gave None in place of a token id"),
    ("no draft", "gave a str in place of a Draft"),
    ("no list", "gave a NoneType for 1 texts"),
    ("too few", "gave 0 drafts for 1 texts"),
]


@pytest.mark.parametrize(("offer", "says"), WRONG, ids=str)
@pytest.mark.parametrize(
    "inside",
    [
        lambda wrong: wrong,
        lambda wrong: Chain((PromptLookup(), wrong)),
        lambda wrong: Joined((wrong, PromptLookup())),
        lambda wrong: Adaptive(wrong),
    ],
    ids=["alone", "chain", "joined", "adaptive"],
)
@pytest.mark.parametrize("constraint", [None, dk.Regex("[a-z]{1,9}")], ids=["free", "constrained"])
def test_a_draft_that_is_none_is_refused_by_name(inside: Any, offer: Any, says: str, constraint: Any) -> None:
    wrong = Guesses(offer)
    proposer = inside(wrong)
    strategies: list[Any] = [dk.Greedy(speculate=proposer)]
    if not isinstance(proposer, Adaptive):
        strategies.append(dk.Sample(speculate=proposer, verify="rejection"))
    for strategy in strategies:
        found = toy().generate("né", strategy=strategy, constraint=constraint, max_new_tokens=6)
        message = str(found.error)
        assert isinstance(found.error, ProposerError)
        assert f"the proposer Guesses {says}" in message and "speculate=Guesses(" in message and "DK606" in message


def test_numbers_of_numpy_are_token_ids() -> None:
    llm = toy()
    plain = llm.generate("né", max_new_tokens=6)
    drafted = llm.generate(
        "né",
        strategy=dk.Greedy(speculate=Guesses([np.int64(token) for token in plain.token_ids[:3]])),
        max_new_tokens=6,
    )
    assert drafted.token_ids == plain.token_ids and drafted.stats.num_forwards < plain.stats.num_forwards
    assert issubclass(ProposerError, DecodekitError)


# --- what raises -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Raising(LogitsProcessor):
    """Raises where a row's prompt begins with a token, once its text has two tokens."""

    first: int
    stage: ClassVar[Stage] = Stage.BIAS
    needs_history: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        assert history is not None
        if bool(((history.token_ids[:, 0] == self.first) & (history.lengths - history.prompt_lengths >= 2)).any()):
            raise ZeroDivisionError("no share of nothing")
        return logits


@dataclass(frozen=True)
class Silent:
    """Offers nothing, and raises as `Raising` does."""

    first: int

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        if any(one.prompt[0] == self.first and len(one.text) >= 2 for one in contexts):
            raise ZeroDivisionError("no share of nothing")
        return [Draft([]) for _ in contexts]


@pytest.mark.parametrize("name", [*STRATEGIES, "proposer"])
def test_what_raises_ends_its_row_alone_in_a_call_and_in_an_engine(name: str) -> None:
    llm = toy()
    first = llm.tokenizer(PROMPTS[1])["input_ids"][0]
    raising = dk.Greedy(speculate=Silent(first)) if name == "proposer" else STRATEGIES[name](Raising(first))
    harmless = dk.Greedy() if name == "proposer" else STRATEGIES[name](Raising(-1))
    expected = llm.generate(PROMPTS, strategy=harmless, max_new_tokens=6)
    called = llm.generate(PROMPTS, strategy=raising, max_new_tokens=6)
    with llm.engine() as engine:
        handles = [engine.submit(prompt, strategy=raising, max_new_tokens=6) for prompt in PROMPTS]
        served = [handle.result(60) for handle in handles]
    for found in (called, served):
        assert [one.error is None for one in found] == [True, False, True]
        assert [one.token_ids for one in found[::2]] == [one.token_ids for one in expected[::2]]
        assert isinstance(found[1].error, DecodekitError) and found[1].finish_reason == "error"
        assert "ZeroDivisionError: no share of nothing" in str(found[1].error)
        assert isinstance(found[1].error.__cause__, ZeroDivisionError)
    with pytest.raises(type(called[1].error), match="no share of nothing"):
        llm.generate(PROMPTS, strategy=raising, max_new_tokens=6, on_error="raise")


def test_a_tokenizer_that_raises_fails_its_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = toy()
    encode = front.encode

    def fragile(tokenizer: Any, prompt: Any, *rest: Any) -> Any:
        if prompt == PROMPTS[1]:
            raise ZeroDivisionError("no share of nothing")
        return encode(tokenizer, prompt, *rest)

    monkeypatch.setattr(front, "encode", fragile)
    found = llm.generate(PROMPTS, max_new_tokens=3)
    assert [one.error is None for one in found] == [True, False, True]
    assert "reading the prompt raised ZeroDivisionError" in str(found[1].error) and "prompt 1" in str(found[1].error)


def test_a_judge_that_raises_is_the_error_of_its_completion_in_a_call_and_in_an_engine() -> None:
    class Raises:
        def score(self, texts: str) -> dk.Score:
            raise ZeroDivisionError("no share of nothing")

    llm = toy()
    strategy = dk.BestOf(strategy=dk.Sample(), n=2, rank=Raises())  # type: ignore[arg-type]
    called = llm.generate(PROMPTS[1], strategy=strategy, max_new_tokens=3)
    with llm.engine() as engine:
        served = engine.submit(PROMPTS[1], strategy=strategy, max_new_tokens=3).result(60)
    for found in (called, served):
        assert "making the completion raised ZeroDivisionError" in str(found.error) and found.finish_reason == "error"
        assert found.token_ids == called.token_ids and len(found.text) > 0
