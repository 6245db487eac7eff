"""Contrastive search as a strategy: each token is compared with candidates beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from decodekit.decoding.request.settings import Settings
from decodekit.decoding.search.contrastive_search import ContrastiveRows
from decodekit.errors import DecodekitError, ModelError, raise_faults
from decodekit.models.layers import HiddenStates
from decodekit.sampling import Pipeline
from decodekit.sampling.checks import COUNT, SHARE, Domain, faults_of
from decodekit.sampling.sampler_options import Processors, listed
from decodekit.speculation.proposer import Speculate
from decodekit.strategy.search_options import Searching, faults_of_guesses

if TYPE_CHECKING:
    from decodekit.decoding.search.search import SearchCall
    from decodekit.models.causal_lm import CausalLM


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
        faults: list[DecodekitError] = []
        faults += faults_of(self, self.domains)
        listed(self.processors, faults)
        why = "contrastive search cannot speculate: each token is compared with candidates beside it"
        raise_faults([*faults, *faults_of_guesses(speculate, why)])

    @cached_property
    def pipeline(self) -> Pipeline:
        """The processors."""
        return Pipeline(listed(self.processors, []))

    @property
    def num_candidates(self) -> int:
        """The number of tokens that are compared; 1 where no comparison can change the likeliest."""
        return self.top_k if self.penalty_alpha > 0 else 1

    def decoder(self, model: CausalLM, settings: Settings) -> ContrastiveRows:
        """A row for each candidate.

        Raises:
            ModelError: the model does not show its layers.
        """
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
