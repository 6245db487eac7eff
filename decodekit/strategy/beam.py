"""Beam search as a strategy: several hypotheses of a prompt, of which the likeliest live on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from decodekit.decoding.search.beam_search import BeamOptions, BeamSearch
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, out_of_domain, raise_faults
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import Pipeline, Stage, Temperature
from decodekit.sampling.checks import COUNT, FLAG, NUMBER, POSITIVE, Domain, at_least, faults_of, from_on, is_count
from decodekit.sampling.sampler_options import Processors, listed
from decodekit.speculation.proposer import Speculate
from decodekit.strategy.search_options import Searching, faults_of_guesses
from decodekit.strategy.strategy import DOMAINS

if TYPE_CHECKING:
    from decodekit.decoding.request.settings import Settings
    from decodekit.decoding.search.search import SearchCall
    from decodekit.models.causal_lm import CausalLM


_NEVER: Final = Domain('"never"', lambda value: isinstance(value, str) and value == "never")


@dataclass(frozen=True)
class Beam(Searching, BeamOptions):
    """The likeliest texts that a search with a few hypotheses finds.

    Processors see log-probabilities and the sums are of what they leave, without dividing by its mass: a constraint
    takes continuations away and changes the score of none. (So it is in transformers.)

    With ``on_length="close"`` every text that is found is whole in time. A guard may leave none: no text is taken back.

    Args:
        num_beams: hypotheses that are kept, at least 2; each is a row of the cache.
        length_penalty: exponent of the length that divides a log-probability; above 0 favours long texts.
        early_stopping: when a prompt is done that has `num_beams` ended texts. True: at once. False: when the best
            hypothesis, at its present length, is no better than the worst of them. ``"never"``: when it could not be
            better at any length, if its remaining tokens had probability 1.
        num_return_sequences: how many texts to return, best first; `Completion.others` has those after the first.
        num_beam_groups: groups of equal size that search side by side; divides `num_beams`.
        diversity_penalty: subtracted from the log-probability of a token for each beam of the groups before that took
            it at the same step. It stays in the sum, and so in the score.
        do_sample: draw the continuations instead of taking the likeliest.
        temperature: divides the log-probabilities; only with `do_sample`.
        seed: key of the noise; only with `do_sample`. None is 0.
        processors: further processors, in the order of `Sample`.
        contrast: search the texts of another distribution than the model's own: `Guidance`, `DoLa` or `Amateur`.
        speculate: None. Drafts are verified along one text, and a beam search has several.
    """

    name: ClassVar[str] = "beam"
    domains: ClassVar[Mapping[str, Domain]] = {
        "num_beams": at_least(2).hinting('"greedy" or "sample" for one hypothesis'),
        "length_penalty": NUMBER,
        "early_stopping": Domain('True, False or "never"', lambda value: FLAG.has(value) or _NEVER.has(value)),
        "num_return_sequences": COUNT,
        "num_beam_groups": COUNT,
        "diversity_penalty": from_on(0),
        "do_sample": FLAG,
        "temperature": POSITIVE,
        "contrast": DOMAINS["contrast"],
        "seed": DOMAINS["seed"],
    }

    temperature: float = 1.0
    seed: int | None = None
    processors: Processors = ()
    speculate: InitVar[Speculate] = None
    contrast: Contrast | None = field(default=None, kw_only=True)

    def __post_init__(self, speculate: Speculate) -> None:
        why = "beam search cannot speculate: a draft continues one text, and beams are several"
        raise_faults([*self._faults(), *faults_of_guesses(speculate, why)])

    def _faults(self) -> list[DecodekitError]:
        faults: list[DecodekitError] = []

        def need(name: str, condition: bool, expected: str) -> None:
            if not condition:
                faults.append(out_of_domain(name, expected, getattr(self, name)))

        faults += faults_of(self, self.domains)
        has_beams, returned, groups = is_count(self.num_beams, 2), self.num_return_sequences, self.num_beam_groups
        if has_beams and is_count(returned):
            need("num_return_sequences", returned <= self.num_beams, f"at most num_beams={self.num_beams}")
        if has_beams and is_count(groups):
            need("num_beam_groups", self.num_beams % groups == 0, f"a divisor of num_beams={self.num_beams}")
        if self.diversity_penalty and groups == 1:
            cause = "diversity_penalty has no effect on one group"
            faults.append(UselessOptionError(cause, at="diversity_penalty", hint="num_beam_groups=2"))
        elif not self.diversity_penalty and is_count(groups, 2):
            cause = "without a diversity_penalty all groups find the same"
            faults.append(UselessOptionError(cause, at="num_beam_groups", hint="diversity_penalty=0.5"))
        if self.do_sample and is_count(groups, 2):
            faults.append(OptionError("groups of beams cannot sample", at="do_sample", hint="num_beam_groups=1"))
        if not self.do_sample:
            for option, is_given in (("temperature", self.temperature != 1.0), ("seed", self.seed is not None)):
                if is_given:
                    cause = f"{option} has no effect on beams that take the likeliest"
                    faults.append(UselessOptionError(cause, at=option, hint="do_sample=True"))
        listed(self.processors, faults)
        return faults

    @cached_property
    def pipeline(self) -> Pipeline:
        """Biases, temperature, the rest: what log-probabilities go through."""
        extra = listed(self.processors, [])
        if self.temperature == 1.0:
            return Pipeline(extra)
        biases = [processor for processor in extra if processor.stage is Stage.BIAS]
        return Pipeline((*biases, Temperature(self.temperature), *(p for p in extra if p.stage is not Stage.BIAS)))

    def decoder(self, model: CausalLM, settings: Settings) -> BeamSearch:
        """A row for each hypothesis."""
        return BeamSearch(model, settings, self)

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Options that a beam search does not have."""
        return call.unsupported(
            "beam search",
            closing=None,
            canonical="beams are compared token by token",
            rollbacks="on beams: what a guard refuses is no candidate",
        )
