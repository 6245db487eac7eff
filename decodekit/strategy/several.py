"""Strategies that draw several samples of a prompt, or particles, and hand out what comes of them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

from torch import Tensor

from decodekit.decoding.request.completion import Completion
from decodekit.decoding.request.settings import NoiseKeys
from decodekit.decoding.search.best_of import Judge, Key, Rank, best_of, majority
from decodekit.decoding.search.particle_filter import Method, ParticleFilter, ParticleOptions, Returns
from decodekit.decoding.search.search import Search
from decodekit.decoding.search.weighted_draws import Resample
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, out_of_domain, raise_faults
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import Candidates, Pipeline
from decodekit.sampling.checks import SHARE, Domain, at_least, faults_of, one_of
from decodekit.sampling.mirostat import MirostatTruncation as Truncation
from decodekit.speculation import Proposer
from decodekit.strategy.searches import Searching
from decodekit.strategy.strategy import Strategy
from decodekit.strategy.tokenwise import Greedy, Sample

if TYPE_CHECKING:
    from decodekit.decoding.request.settings import Settings
    from decodekit.decoding.search.search import SearchCall
    from decodekit.models.causal_lm import CausalLM

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
        raise_faults([*self._faults()])

    def _faults(self) -> Iterator[DecodekitError]:
        """The faults of the options, and of the strategy that draws."""
        yield from faults_of(self, self.domains)
        given: object = self.strategy
        if not isinstance(given, Strategy):
            yield out_of_domain("strategy", "a Strategy", given, hint="Sample(temperature=0.7)")
        elif isinstance(given, Search | OverSamples):
            cause = f"{type(self).__name__} needs single samples, and {given!r:.60} has several texts of its own"
            yield OptionError(cause, at="strategy", hint="Sample(temperature=0.7)")
        elif isinstance(given, Greedy):
            cause = "all samples of greedy decoding are the same"
            yield UselessOptionError(cause, at="strategy", hint="Sample(temperature=0.7)")
        elif given.num_samples > 1:
            own = f"{self.number}={getattr(self, self.number)!r}"
            cause = f"num_return_sequences={given.num_samples} is given beside {own}"
            yield OptionError(cause, at="num_return_sequences", hint=f"{self.number} alone")


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


@dataclass(frozen=True, repr=False)
class Particles(OverSamples, Searching, ParticleOptions):
    """A text from the distribution of the model given that the constraint holds, which masking alone does not give.

    The distribution, the weights and the draws are explained in `decoding.search.particle_filter`. `Completion.score`
    is the share of the weight that the text has, in all its divisions into tokens; `Completion.others` has the other
    texts; `Stats.particles` has the estimate of the probability that the constraint holds. Nothing is streamed before
    the end. A text that a guard refuses, or that `max_new_tokens` cuts before it has ended, has no weight.

    Args:
        num_particles: how many, at least 2; each is a row of the cache. The distribution is exact as they become many.
        method: ``"smc"`` draws tokens from the masked distribution and weighs by the mass that the mask leaves;
            ``"awrs"`` draws by rejection, asking the constraint about single tokens, with an unbiased estimate of that
            mass as weight.
        resample: how particles are drawn anew; see `decoding.search.weighted_draws.ancestors`.
        threshold: they are when the effective sample size falls below this share of their number; 0 is never.
        returns: the text that is handed out: ``"draw"``, one drawn by weight; ``"best"``, that with most weight.
        predicate: with ``"awrs"``, a function of the bytes of the text so far and whether it ends there, which says
            whether it is legal; instead of a constraint or beside it. It must refuse every text whose beginnings it
            refuses. Under a predicate alone, a text that `max_new_tokens` cuts keeps its weight.
        strategy: the distribution of a token without the mask: a `Sample`, without speculation.
    """

    name: ClassVar[str] = "particles"
    number: ClassVar[str] = "num_particles"
    domains: ClassVar[Mapping[str, Domain]] = {
        "num_particles": SEVERAL,
        "method": one_of(*get_args(Method)),
        "resample": one_of(*get_args(Resample)),
        "threshold": SHARE,
        "returns": one_of(*get_args(Returns)),
        "predicate": Domain("a function of bytes and a bool", callable).or_none,
    }

    strategy: Strategy = Sample()

    def _faults(self) -> Iterator[DecodekitError]:
        found = [*super()._faults()]
        if self.threshold == 0 and self.resample != "systematic":
            cause = f"resample={self.resample!r} has no effect with threshold=0, which never draws anew"
            found.append(UselessOptionError(cause, at="resample"))
        predicate: object = self.predicate
        if callable(predicate) and self.method == "smc":
            cause = "a predicate has no mask: it would have to be asked about every token of the vocabulary"
            hint = 'method="awrs", which asks about the tokens that are drawn'
            found.append(OptionError(cause, at="predicate", hint=hint))
        yield from found
        if not found and not isinstance(self.strategy, Sample):
            cause = f"particles weigh the draws of a Sample, and {self.strategy!r:.60} may take others"
            yield OptionError(cause, at="strategy", hint="Sample(temperature=0.7)")
        if isinstance(self.strategy, Sample) and self.strategy.speculate is not None:
            cause = "particles cannot speculate: their weights need the law at every token"
            yield OptionError(cause, at="speculate", hint="no speculate=")

    def decoder(self, model: CausalLM, settings: Settings) -> ParticleFilter:
        """A row for each particle."""
        return ParticleFilter(model, settings, self)

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Options that particles do not have, and texts that may be anything."""
        if not call.is_constrained and self.predicate is None:
            cause = "particles have no effect without a constraint or a predicate: all weights are the same"
            yield UselessOptionError(cause, at="strategy", hint='constraint=, or strategy="sample"')
        yield from call.unsupported(
            "particles",
            closing="bounds on lengths in the constraint; texts that were cut have no weight",
            why_closing="it masks by the budget, which is no constraint",
            canonical="weights need the law of every token",
            rollbacks="on particles: a text that a guard refuses has no weight",
        )
