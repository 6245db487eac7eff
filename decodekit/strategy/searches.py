"""Strategies whose prompts are decoded by a search: beam search, and contrastive search among candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from decodekit.decoding.loop.decoder import Decoder
from decodekit.decoding.loop.scheduler import run
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.decoding.search.beam_search import BeamOptions, BeamSearch
from decodekit.decoding.search.contrastive_search import ContrastiveRows
from decodekit.errors import DecodekitError, ModelError, OptionError, UselessOptionError, out_of_domain, raise_faults
from decodekit.models.layers import HiddenStates
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import Candidates, Pipeline, Temperature, greedy
from decodekit.sampling.checks import (
    COUNT,
    FLAG,
    NUMBER,
    POSITIVE,
    SHARE,
    Domain,
    at_least,
    faults_of,
    from_on,
    is_count,
)
from decodekit.sampling.sampler_options import Processors, listed
from decodekit.speculation.proposer import Speculate
from decodekit.strategy.strategy import DOMAINS, Strategy
from decodekit.strategy.tokenwise import joined

if TYPE_CHECKING:
    from decodekit.decoding.loop.text_row import Request
    from decodekit.decoding.request.updates import Update
    from decodekit.decoding.search.search import SearchCall
    from decodekit.models.causal_lm import CausalLM


class Searching(Strategy):
    """A strategy with a `decoding.search.search.Search`: a prompt has several rows, and a decoder says what they do."""

    @abstractmethod
    def decoder(self, model: CausalLM, settings: Settings) -> Decoder[Any]:
        """The decoder of the rows of a prompt; a `ModelError` if the model lacks what the search needs."""

    def decode(
        self, model: CausalLM, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        """Search the prompts of a stream; see `decoding.search.search.Search`."""
        return run(self.decoder(model, settings), settings, num_prompts, requests)

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The likeliest token of each row alone, which is what one hypothesis would take."""
        return greedy(scores)


def _faults_of_guesses(speculate: Speculate, why: str) -> Iterator[DecodekitError]:
    """The fault of a proposer given to a search, which none can use."""
    if speculate is not None:
        hint = 'no speculate=, or strategy="greedy"'
        yield OptionError(why, at="speculate", hint=hint)


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
        "early_stopping": Domain(
            'True, False or "never"', lambda value: FLAG.has(value) or (isinstance(value, str) and value == "never")
        ),
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
        faults: list[DecodekitError] = [*faults_of(self, self.domains)]

        def need(name: str, condition: bool, expected: str) -> None:
            if not condition:
                faults.append(out_of_domain(name, expected, getattr(self, name)))

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
        raise_faults([*faults, *_faults_of_guesses(speculate, why)])

    @cached_property
    def pipeline(self) -> Pipeline:
        """Biases, temperature, the rest: what log-probabilities go through."""
        own = [] if self.temperature == 1.0 else [Temperature(self.temperature)]
        return joined(own, listed(self.processors, []))

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


@dataclass(frozen=True)
class ContrastiveSearch(Searching):
    """The token that is likely and unlike everything before it, of the `top_k` likeliest. Nothing is drawn.

    Processors and the constraint's mask come before the candidates are chosen, so that all candidates may come; where
    one token is left, it is taken without a comparison. Needs a model that shows its last layer
    (`models.layers.HiddenStates`); each prompt has `top_k` rows of the cache.

    Args:
        top_k: how many candidates; 1 is greedy decoding.
        penalty_alpha: weight of the largest cosine similarity against that of the probability, from 0 (greedy decoding)
            to 1.
        processors: change the probabilities first.
        speculate: None. A draft has no hidden states to compare with.
    """

    name: ClassVar[str] = "contrastive"
    domains: ClassVar[Mapping[str, Domain]] = {"top_k": COUNT, "penalty_alpha": SHARE}

    top_k: int = 4
    penalty_alpha: float = 0.6
    processors: Processors = ()
    speculate: InitVar[Speculate] = None

    def __post_init__(self, speculate: Speculate) -> None:
        faults: list[DecodekitError] = [*faults_of(self, self.domains)]
        listed(self.processors, faults)
        why = "contrastive search cannot speculate: each token is compared with candidates beside it"
        raise_faults([*faults, *_faults_of_guesses(speculate, why)])

    @cached_property
    def pipeline(self) -> Pipeline:
        """The processors."""
        return Pipeline(listed(self.processors, []))

    @property
    def num_candidates(self) -> int:
        """The number of tokens that are compared; 1 where no comparison can change the likeliest."""
        return self.top_k if self.penalty_alpha > 0 else 1

    def decoder(self, model: CausalLM, settings: Settings) -> ContrastiveRows:
        """A row for each candidate; a `ModelError` if the model does not show its layers."""
        if not isinstance(model, HiddenStates):
            raise _without_states(model)
        return ContrastiveRows(model, settings, self.num_candidates, self.penalty_alpha, f"top_k={self.top_k}")

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Options that contrastive search does not have, and models that it cannot use."""
        if call.model is not None and not isinstance(call.model, HiddenStates):
            yield _without_states(call.model)
        yield from call.unsupported(
            "contrastive search",
            closing="bounds on lengths in the constraint",
            canonical="tokens are compared one by one",
            rollbacks="here: what a guard refuses is no candidate",
        )


def _without_states(model: CausalLM) -> ModelError:
    cause = f"{type(model).__name__} does not show its hidden states, which contrastive search compares"
    hint = "a model of transformers, or models.layers.HiddenStates implemented for it"
    return ModelError(cause, at="strategy", hint=hint)
