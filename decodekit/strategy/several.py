"""Strategies that draw several samples of a prompt and hand out what comes of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch import Tensor

from decodekit.decoding.request.completion import Completion
from decodekit.decoding.request.settings import NoiseKeys
from decodekit.decoding.search.best_of import Judge, Key, Rank, best_of, majority
from decodekit.decoding.search.search import Search
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, out_of_domain, raise_faults
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import Candidates, Pipeline
from decodekit.sampling.checks import Domain, at_least, faults_of, one_of
from decodekit.sampling.mirostat import MirostatTruncation as Truncation
from decodekit.speculation import Proposer
from decodekit.strategy.strategy import Strategy
from decodekit.strategy.tokenwise import Greedy, Sample

SEVERAL: Final = at_least(2).hinting('"sample" for one text')
_RANKS: Final = one_of("logprob", "mean_logprob")


class OverSamples(Strategy):
    """A strategy over samples of another one, `strategy`, which takes the tokens."""

    number: ClassVar[str] = "n"
    """The option that says how many samples."""
    strategy: Strategy

    @property
    def pipeline(self) -> Pipeline:
        """That of the samples."""
        return self.strategy.pipeline

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The tokens that the strategy of the samples takes."""
        return self.strategy.select(scores, keys)

    @property
    def mirostat(self) -> Truncation | None:
        """That of the samples."""
        return self.strategy.mirostat

    @property
    def proposer(self) -> Proposer | None:
        """The proposer of drafts for every sample."""
        return self.strategy.proposer

    @property
    def seed(self) -> int | None:  # type: ignore[override]
        """That of the samples."""
        return self.strategy.seed

    @property
    def verify(self) -> Any:  # type: ignore[override]
        """The verification of drafts for the samples, by name."""
        return self.strategy.verify

    @property
    def contrast(self) -> Contrast | None:  # type: ignore[override]
        """The contrast from which the samples are drawn."""
        return self.strategy.contrast

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        self._check(faults)
        raise_faults(faults)

    def _check(self, faults: list[DecodekitError]) -> None:
        """Add what speaks against the options, and against the strategy that draws."""
        faults += faults_of(self, self.domains)
        given: object = self.strategy
        if not isinstance(given, Strategy):
            faults.append(out_of_domain("strategy", "a Strategy", given, hint="Sample(temperature=0.7)"))
        elif isinstance(given, Search | OverSamples):
            cause = f"{type(self).__name__} needs single samples, and {given!r:.60} has several texts of its own"
            faults.append(OptionError(cause, at="strategy", hint="Sample(temperature=0.7)"))
        elif isinstance(given, Greedy):
            cause = "all samples of greedy decoding are the same"
            faults.append(UselessOptionError(cause, at="strategy", hint="Sample(temperature=0.7)"))
        elif given.num_samples > 1:
            cause = (
                f"num_return_sequences={given.num_samples} is given beside {self.number}={getattr(self, self.number)!r}"
            )
            faults.append(OptionError(cause, at="num_return_sequences", hint=f"{self.number} alone"))


@dataclass(frozen=True, repr=False)
class BestOf(OverSamples):
    """The best of n samples; the other ones are `Completion.others`, best first, each with its `score`.

    Samples that failed come last, without a score. Nothing is streamed before all have ended.

    Args:
        n: how many samples.
        strategy: draws them.
        rank: what is best: ``"logprob"``, the largest log-probability under the model's own distribution (before
            processors, temperature and constraint); ``"mean_logprob"``, the largest mean of it over the tokens; a
            function of the `Completion` of a sample, the largest number; or another `LLM`, the least perplexity of the
            text alone.
    """

    name: ClassVar[str] = "best-of"
    domains: ClassVar[Mapping[str, Domain]] = {
        "n": SEVERAL,
        "rank": Domain(
            '"logprob", "mean_logprob", a function or an LLM',
            lambda rank: _RANKS.has(rank) or callable(rank) or isinstance(rank, Judge),
        ),
    }

    n: int = 4
    strategy: Strategy = Sample()
    rank: Rank = "logprob"

    @property
    def num_samples(self) -> int:
        """n."""
        return self.n

    @property
    def needs_logprobs(self) -> bool:
        """Whether it ranks by log-probabilities."""
        return _RANKS.has(self.rank)

    def choose(self, samples: Sequence[Completion]) -> Completion:
        """The best one, with the others."""
        return best_of(samples, self.rank)


@dataclass(frozen=True, repr=False)
class SelfConsistency(OverSamples):
    """The answer that most of n samples give (Wang et al. 2022); `Completion.score` is the share of them.

    An answer is the value of a text under its constraint; without one, the text without regard to case and blanks.
    `Completion.others` has one sample of each other answer, with its share, and at the end those that failed, with 0;
    see `decoding.search.best_of`. Nothing is streamed before all have ended.

    Args:
        n: how many samples.
        strategy: draws them.
        key: the answer of a sample, as a function of its `Completion`: equal results are one answer, None is none.
    """

    name: ClassVar[str] = "self-consistency"
    domains: ClassVar[Mapping[str, Domain]] = {
        "n": SEVERAL,
        "key": Domain("a function of a completion", callable).or_none,
    }
    needs_logprobs: ClassVar[bool] = True

    n: int = 8
    strategy: Strategy = Sample()
    key: Key | None = None

    @property
    def num_samples(self) -> int:
        """n."""
        return self.n

    def choose(self, samples: Sequence[Completion]) -> Completion:
        """The answer of most of them, with the others."""
        return majority(samples, self.key)
