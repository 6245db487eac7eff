"""Searches: what a strategy of several texts adds, a way of its own to decode or a choice among samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from decodekit.errors import DecodekitError, OptionError, UselessOptionError

if TYPE_CHECKING:
    from decodekit.decoding.loop.text_row import Request
    from decodekit.decoding.request.completion import Completion
    from decodekit.decoding.request.settings import Settings
    from decodekit.decoding.request.updates import Update
    from decodekit.models.causal_lm import CausalLM


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A search's call, as far as the search may refuse it.

    Args:
        model: the model; None where it is not loaded yet, so that nothing is said about it.
        is_constrained: whether texts have a constraint.
        on_length, fast_forward, max_rollbacks: as `LLM.generate` was given them; None for what it was not.
    """

    model: CausalLM | None
    is_constrained: bool
    on_length: str | None
    fast_forward: str
    max_rollbacks: int | None

    def unsupported(
        self, search: str, *, closing: str | None, canonical: str, rollbacks: str, why_closing: str = ""
    ) -> Iterator[DecodekitError]:
        """The options that searches with several hypotheses do not have.

        Args:
            search: its name in a sentence.
            closing: what to write in place of ``on_length="close"``; None if it closes in time.
            canonical: why it cannot take tokens unseen.
            rollbacks: where, and why, no text is taken back.
            why_closing: why it cannot close in time, if there is more to say.
        """
        if self.on_length == "close" and closing is not None:
            cause = f'on_length="close" and {search} cannot be combined{why_closing and ": " + why_closing}'
            yield OptionError(cause, at="on_length", hint=closing)
        if self.fast_forward == "canonical":
            cause = f'fast_forward="canonical" and {search} cannot be combined: {canonical}'
            yield OptionError(cause, at="fast_forward", hint='fast_forward="exact"')
        if self.max_rollbacks is not None:
            cause = f"max_rollbacks={self.max_rollbacks} has no effect {rollbacks}"
            yield UselessOptionError(cause, at="max_rollbacks")


@runtime_checkable
class Search(Protocol):
    """A way of its own to decode prompts, where a strategy does not use `decoding.loop.step.Texts`.

    `strategy.Beam` is the model of one. What it finds for a prompt is a function of that prompt, its constraint
    and its seed alone, whatever else is in the batch.
    """

    def decode(
        self, model: CausalLM, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        """Decode a stream of requests; at least one update each, the last with the result.

        Args:
            model: the model.
            settings: the checked options of the call.
            num_prompts: most prompts at a time; a prompt may have several rows of the cache.
            requests: what to continue, as for `scheduler.run`.
        """

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Refusals of the search before anything is decoded: options of the call that it does not have, or
        that have no effect on it; a model that it cannot use; a constraint that it needs.
        """


@runtime_checkable
class Aggregation(Protocol):
    """A choice among several samples of a prompt (`Strategy.num_samples`), from which its completion is made.

    `strategy.several` has them. Nothing is streamed before all samples have ended.
    """

    @property
    def needs_logprobs(self) -> bool:
        """Whether samples must have log-probabilities, also where the caller does not ask for them."""

    def choose(self, samples: Sequence[Completion]) -> Completion:
        """The completion to hand out, with the others and scores, for all samples in the order of their numbers.

        What fails is the `error` of the completion; nothing is raised.
        """
