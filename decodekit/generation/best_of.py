"""The best of several samples: each has a score, and they come back in its order.

Reranking samples by log-probability, by a reward or by a judge is best-of-n (Stiennon et al. 2020, "Learning to
summarize from human feedback", section 4.3; Nakano et al. 2021, "WebGPT").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from decodekit.errors import DecodekitError, OptionError

if TYPE_CHECKING:
    from decodekit.generation.completion import Completion, Score


@runtime_checkable
class Judge(Protocol):
    """A model that says how likely a text is; `LLM` is one."""

    def score(self, texts: str) -> Score:
        """Log-probabilities of the tokens of a text."""


Rank: TypeAlias = Literal["logprob", "mean_logprob"] | Callable[["Completion"], float] | Judge
"""What samples are ranked by; see `strategy.BestOf`."""


def log_probability(sample: Completion) -> float:
    """The recorded log-probabilities of the tokens of a sample, under the model's own distribution, summed."""
    return math.fsum(entry.logprob for entry in sample.logprobs or ())


def score_of(sample: Completion, rank: Rank) -> float | None:
    """How good a sample is, larger is better; None of one that failed, or that the judge cannot read.

    Raises:
        OptionError: the caller's function failed, or gave no number.
    """
    if sample.error is not None:
        return None
    if rank == "logprob":
        return log_probability(sample)
    if rank == "mean_logprob":
        return log_probability(sample) / max(1, len(sample.token_ids))
    if isinstance(rank, Judge):
        try:
            return -rank.score(sample.text).perplexity
        except DecodekitError:  # fewer than two tokens, or more than its context
            return None
    assert callable(rank)
    score = asked("rank", rank, sample)
    if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score):
        raise OptionError(f"rank gave {score!r:.60} for {sample.text!r:.60}, which is no number", at="rank")
    return float(score)


def best_of(samples: Sequence[Completion], rank: Rank) -> Completion:
    """The best sample with its score, the others after it; of equals the first, and what has no score at the end."""
    try:
        scored = [replace(sample, score=score_of(sample, rank)) for sample in samples]
    except OptionError as error:
        return replace(samples[0], error=error, others=tuple(samples[1:]))
    best, *others = sorted(scored, key=lambda sample: -math.inf if sample.score is None else sample.score, reverse=True)
    return replace(best, others=tuple(others))


def asked(option: str, function: Callable[[Completion], object], sample: Completion) -> object:
    """What a function of the caller says of a sample.

    Raises:
        OptionError: it failed.
    """
    try:
        return function(sample)
    except Exception as error:
        cause = f"{option} failed for {sample.text!r:.60}: {type(error).__name__}: {error}"
        raise OptionError(cause, at=option) from error
