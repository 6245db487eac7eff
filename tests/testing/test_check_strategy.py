"""Every built-in strategy keeps the laws; for every law there are strategies that break it and are found out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit import testing
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.decoding.request.updates import Update
from decodekit.decoding.search.search import SearchCall
from decodekit.errors import DecodekitError
from decodekit.sampling import Candidates, Pipeline, greedy, sample
from decodekit.strategy import resolve_strategy
from decodekit.strategy import strategy_names as names
from decodekit.testing import STRATEGY_LAWS, check_strategy
from tests.sizes import few


@few(3, "particles")
@pytest.mark.parametrize("name", names._BUILT_IN)
def test_built_in_strategies_keep_the_laws(name: str) -> None:
    check_strategy(resolve_strategy(name, {}), max_new_tokens=16)


@few(4, "Greedy(repetition_penalty=1.3, logit_bias={97: 2.0}, min_tokens=3)")
@pytest.mark.parametrize(
    "strategy",
    [
        dk.Greedy(repetition_penalty=1.3, min_tokens=3, logit_bias={97: 2.0}),
        dk.Sample(temperature=0.7, min_p=0.1, seed=7),
        dk.Sample(top_k=5),
        dk.Sample(top_k=20, top_p=0.9, order="vllm"),
        dk.Sample(dry_multiplier=0.8, typical_p=0.9, xtc_probability=0.5, watermark=dk.Watermark()),
        dk.Sample(speculate=dk.Suffix(), verify="rejection"),
        dk.Sample(contrast=dk.Guidance(1.5, negative_prompt="the ab"), seed=1),
        dk.Mirostat(tau=2.0, version=1),
        dk.Sample(allowed_tokens=[*b"ab,. "]),  # leaves some rows without a token
        dk.Sample(bad_words=[[97], [98], [99], [100]], num_return_sequences=2),  # leaves no text of the constraint
        dk.Beam(3, do_sample=True, seed=3, num_return_sequences=2),
        dk.Beam(4, num_beam_groups=2, diversity_penalty=0.5),
    ],
    ids=repr,
)
def test_with_options(strategy: Any) -> None:
    check_strategy(strategy, max_new_tokens=12)


def test_what_holds_a_model_is_checked_but_for_equality() -> None:
    llm = testing.toy_llm(1)
    llm.generate("a", constraint=dk.Regex("ab"))  # and it can be copied after it was used
    check_strategy(dk.Greedy(speculate=dk.DraftModel(llm)), max_new_tokens=8)
    check_strategy(dk.Sample(contrast=dk.Amateur(llm)), max_new_tokens=8)


# --- strategies that break a law ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Likeliest(dk.Strategy):
    """Breaks nothing: the base of those that do."""

    name: ClassVar[str] = "likeliest"

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline()

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        return greedy(scores.dense() if isinstance(scores, Candidates) else scores)


class NoDataclass(Likeliest):
    pass


@dataclass(repr=False)
class NotFrozen(dk.Strategy):
    temperature: float = 1.0
    pipeline = Pipeline()
    select = Likeliest.select


@dataclass(frozen=True, repr=False)
class SaysLittle(Likeliest):
    temperature: float = 1.0

    def __repr__(self) -> str:
        return "SaysLittle"


@dataclass(frozen=True, repr=False)
class TakesAnySeed(Likeliest):
    seed: int | None = None


@dataclass(frozen=True, repr=False)
class ChecksLate(Likeliest):
    speculate: Any = None


@dataclass(frozen=True, repr=False)
class FailsOnProcessors(Likeliest):
    processors: Any = ()

    def __post_init__(self) -> None:
        len(self.processors)


@dataclass(frozen=True, repr=False)
class Narrow(Likeliest):
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        return super().select(scores, keys).int()


@dataclass(frozen=True, repr=False)
class GivesLists(Likeliest):
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Any:
        return super().select(scores, keys).tolist()


@dataclass(frozen=True, repr=False)
class HasAGenerator(Likeliest):
    """Draws with a generator whose state depends on how often it was asked."""

    generator: ClassVar[Any] = np.random.default_rng(0)

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        assert isinstance(scores, Tensor)
        greedy(scores)
        return greedy(scores + torch.from_numpy(self.generator.gumbel(size=scores.shape)))


@dataclass(frozen=True, repr=False)
class SeedsAGeneratorAnew(Likeliest):
    """The noise of a row is that of its place in the batch."""

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        assert isinstance(scores, Tensor)
        greedy(scores)
        noise = torch.rand(scores.shape, generator=torch.Generator().manual_seed(keys.seeds[0]))
        return greedy(scores - (-noise.log()).log())


@dataclass(frozen=True, repr=False)
class Unlikeliest(Likeliest):
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        super().select(scores, keys)
        assert isinstance(scores, Tensor)
        return scores.argmin(dim=-1)


@dataclass(frozen=True, repr=False)
class PlaceForToken(Likeliest):
    """Takes the place of a candidate for its token id."""

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline([dk.TopK(5)])

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        return greedy(torch.from_numpy(scores.logits) if isinstance(scores, Candidates) else scores)


@dataclass(frozen=True, repr=False)
class NeverGivesUp(Likeliest):
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        assert isinstance(scores, Tensor)
        return scores.argmax(dim=-1)


@dataclass(frozen=True, repr=False)
class OneErrorForAll(Likeliest):
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        assert isinstance(scores, Tensor)
        if not scores.amax(dim=-1).isfinite().all():
            raise ValueError("no token")
        return scores.argmax(dim=-1)


@dataclass(frozen=True, repr=False)
class OtherInPairs(Likeliest):
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        first = super().select(scores, keys)
        assert isinstance(scores, Tensor)
        rest = scores.scatter(1, first[:, None], -torch.inf)
        return greedy(rest) if len(first) == 2 and (rest.amax(dim=-1) > -torch.inf).all() else first


@dataclass(frozen=True, repr=False)
class CountsTexts(Likeliest):
    """What a text is depends on how many texts were asked for before: a search with state."""

    calls: ClassVar[Any] = itertools.count()

    def decode(
        self, model: Any, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        return decode_texts(model, replace(settings, max_new_tokens=2 + next(self.calls)), num_prompts, iter(requests))

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        return iter(())


@dataclass(frozen=True, repr=False)
class ForgetsTheConstraint(CountsTexts):
    def decode(
        self, model: Any, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        free = (one if isinstance(one, DecodekitError) else replace(one, matcher=None) for one in requests)
        return decode_texts(model, replace(settings, max_new_tokens=6, stops=("a",)), num_prompts, free)


@dataclass(frozen=True, repr=False)
class OtherWithDrafts(Likeliest):
    speculate: Any = None

    def __post_init__(self) -> None:
        _ = self.proposer

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        if self.speculate is None:
            return super().select(scores, keys)
        return sample(scores, keys.seeds, keys.sequences, keys.positions)


CONTROLS: list[tuple[str, Any, str]] = [
    ("value", NotFrozen(), "its field 'temperature' can be set"),
    ("value", SaysLittle(0.5), "evaluating SaysLittle makes <class"),
    ("options", TakesAnySeed(), "seed=-1, which is taken"),
    ("options", ChecksLate(), "speculate='no such proposer', which is taken"),
    ("options", FailsOnProcessors(), r"processors=7 \(TypeError"),
    ("select", Narrow(), "rows of scores: tensor"),
    ("select", GivesLists(), r"rows of scores: \["),
    ("select", HasAGenerator(), "a second call, which takes others"),
    ("rows", SeedsAGeneratorAnew(), "the rows in another order"),
    ("allowed", Unlikeliest(), "row [0-9]+: token [0-9]+"),
    ("candidates", PlaceForToken(), "row [0-9]+: token 0, of the whole row [0-9]+"),
    ("dead end", NeverGivesUp(), "a row of no token, from which token 0 is taken"),
    ("dead end", OneErrorForAll(), r"a row of no token \(ValueError"),
    ("batch", OtherInPairs(), "batch_size=2: "),
    ("batch", CountsTexts(), "batch_size=2: "),
    ("constraint", ForgetsTheConstraint(), "the prompt '.*' under Regex"),
    ("drafts", OtherWithDrafts(), "drafts, batch_size=1: "),
]


@pytest.mark.parametrize(("law", "strategy", "place"), CONTROLS, ids=lambda v: type(v).__name__ if v else "")
def test_a_broken_law_is_found_and_named(law: str, strategy: Any, place: str) -> None:
    with pytest.raises(AssertionError, match=rf"breaks the law '{law}'[^\n]*\n  at  .*({place})"):
        check_strategy(strategy)


def test_every_law_has_a_strategy_that_breaks_it() -> None:
    assert {law for law, _, _ in CONTROLS} == STRATEGY_LAWS.keys()


def test_what_the_controls_are_made_of_breaks_nothing() -> None:
    check_strategy(Likeliest(), max_new_tokens=12)
