"""Particles as a strategy: sequential Monte Carlo under a constraint or a predicate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from decodekit.decoding.search.particle_filter import Method, ParticleFilter, ParticleOptions, Returns
from decodekit.decoding.search.weighted_draws import Resample
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, raise_faults
from decodekit.sampling.checks import SHARE, Domain, one_of
from decodekit.strategy.search_options import Searching
from decodekit.strategy.several import SEVERAL, OverSamples
from decodekit.strategy.tokenwise import Sample

if TYPE_CHECKING:
    from decodekit.decoding.request.settings import Settings
    from decodekit.decoding.search.search import SearchCall
    from decodekit.models.causal_lm import CausalLM
    from decodekit.strategy.strategy import Strategy


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

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        self._check(faults)
        faults += self._option_faults()
        if not faults and not isinstance(self.strategy, Sample):
            cause = f"particles weigh the draws of a Sample, and {self.strategy!r:.60} may take others"
            faults.append(OptionError(cause, at="strategy", hint="Sample(temperature=0.7)"))
        if isinstance(self.strategy, Sample) and self.strategy.speculate is not None:
            cause = "particles cannot speculate: their weights need the law at every token"
            faults.append(OptionError(cause, at="speculate", hint="no speculate="))
        raise_faults(faults)

    def _option_faults(self) -> Iterator[DecodekitError]:
        if self.threshold == 0 and self.resample != "systematic":
            cause = f"resample={self.resample!r} has no effect with threshold=0, which never draws anew"
            yield UselessOptionError(cause, at="resample")
        predicate: object = self.predicate
        if callable(predicate) and self.method == "smc":
            cause = "a predicate has no mask: it would have to be asked about every token of the vocabulary"
            yield OptionError(cause, at="predicate", hint='method="awrs", which asks about the tokens that are drawn')

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
