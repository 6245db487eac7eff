"""Contrastive search: of the k likeliest tokens the one that is likely and unlike everything before it.

Su et al. 2022, "A Contrastive Framework for Neural Text Generation", equation 5: with the hidden states h of the last
layer, the next token is the argmax over the k likeliest v of

    (1 - alpha) p(v | x) - alpha max_j cos(h_v, h_j),

j running over all tokens of prompt and text, and h_v the state that the model has after reading v. So each token costs
a forward pass over k continuations. transformers 4 had it as `penalty_alpha`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from decodekit.errors import DecodekitError, ModelError, OptionError, UselessOptionError, raise_faults
from decodekit.models.layers import HiddenStates
from decodekit.sampling import Pipeline, greedy
from decodekit.sampling.checks import is_count, is_number
from decodekit.sampling.named import Processors, listed

if TYPE_CHECKING:
    from decodekit.generation.batch import Update
    from decodekit.generation.search import SearchCall
    from decodekit.generation.sequence import Request
    from decodekit.generation.settings import NoiseKeys, Settings
    from decodekit.models.causal_lm import CausalLM
    from decodekit.sampling import Candidates
    from decodekit.speculation.proposer import Proposer, Speculate


@dataclass(frozen=True)
class ContrastiveSearch:
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

    Raises:
        OptionError: with all options that are out of range or in conflict.
    """

    name: ClassVar[str] = "contrastive"
    seed: ClassVar[int | None] = None

    top_k: int = 4
    penalty_alpha: float = 0.6
    processors: Processors = ()
    speculate: InitVar[Speculate] = None

    def __post_init__(self, speculate: Speculate) -> None:
        faults: list[DecodekitError] = []
        if not is_count(self.top_k):
            faults.append(OptionError(f"top_k={self.top_k!r} is not an integer from 1 on", at="top_k"))
        if not is_number(self.penalty_alpha) or not 0 <= self.penalty_alpha <= 1:
            cause = f"penalty_alpha={self.penalty_alpha!r} is not a number from 0 to 1"
            faults.append(OptionError(cause, at="penalty_alpha"))
        listed(self.processors, faults)
        if speculate is not None:
            faults.append(
                OptionError(
                    "contrastive search cannot speculate: each token is compared with candidates beside it",
                    at="speculate",
                    hint='no speculate=, or strategy="greedy"',
                )
            )
        raise_faults(faults)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The processors."""
        return Pipeline(listed(self.processors, []))

    @property
    def proposer(self) -> Proposer | None:
        """None: nobody guesses ahead."""
        return None

    @property
    def num_candidates(self) -> int:
        """How many tokens are compared; 1 where no comparison can change the likeliest."""
        return self.top_k if self.penalty_alpha > 0 else 1

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The likeliest token, which is the first candidate."""
        return greedy(scores if isinstance(scores, Tensor) else scores.dense())

    def decode(
        self, model: CausalLM, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        """Search the prompts of a stream; see `generation.search.Search`.

        Raises:
            ModelError: the model does not show its layers.
        """
        from decodekit.generation.contrastive_batch import ContrastiveBatch

        if not isinstance(model, HiddenStates):
            raise _without_states(model)
        return ContrastiveBatch(model, settings, self, num_prompts, requests).run()

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Options that contrastive search does not have, and models that it cannot use."""
        if call.model is not None and not isinstance(call.model, HiddenStates):
            yield _without_states(call.model)
        if call.on_length == "close":
            yield OptionError(
                'on_length="close" and contrastive search cannot be combined',
                at="on_length",
                hint="bounds on lengths in the constraint",
            )
        if call.fast_forward == "canonical":
            yield OptionError(
                'fast_forward="canonical" and contrastive search cannot be combined: tokens are compared one by one',
                at="fast_forward",
                hint='fast_forward="exact"',
            )
        if call.max_rollbacks is not None:
            yield UselessOptionError(
                f"max_rollbacks={call.max_rollbacks} has no effect here: what a guard refuses is no candidate",
                at="max_rollbacks",
            )


def _without_states(model: CausalLM) -> ModelError:
    return ModelError(
        f"{type(model).__name__} does not show its hidden states, which contrastive search compares",
        at="strategy",
        hint="a model of transformers, or models.layers.HiddenStates implemented for it",
    )


class Choices(NamedTuple):
    """The candidates for one token."""

    tokens: list[int]
    """Likeliest first."""
    probabilities: Tensor
    """Of each, float32 [c], under the processed law."""


def likeliest(scores: Tensor, first: int, num_candidates: int) -> Choices:
    """The tokens of the largest probability, none of probability 0; `first` before its equals.

    Args:
        scores: processed logits of one place, float32 [V].
        first: a token of the largest probability.
        num_candidates: most of them.
    """
    law = torch.softmax(scores, dim=-1)
    values, tokens = law.topk(min(num_candidates, law.shape[-1]))
    pairs = [(token, value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True) if value > 0]
    others = [pair for pair in pairs if pair[0] != first][: num_candidates - 1]
    chosen = [(first, float(law[first])), *others]
    return Choices([token for token, _ in chosen], torch.tensor([value for _, value in chosen], device=scores.device))


def most_contrastive(choices: Choices, states: Tensor, context: Tensor, penalty_alpha: float) -> int:
    """Which of the candidates is taken; of equals the likeliest.

    Args:
        choices: c candidates.
        states: unit vectors [c, D], the hidden state after each.
        context: unit vectors [T, D], the hidden states of prompt and text.
        penalty_alpha: weight of the largest similarity.
    """
    similarity = (states @ context.T).amax(dim=-1)  # [c]
    scores = ((1 - penalty_alpha) * choices.probabilities - penalty_alpha * similarity).tolist()
    return scores.index(max(scores))
