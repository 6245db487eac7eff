"""The best of several samples: each has a score, and they come back in its order.

Reranking samples by log-probability, by a reward or by a judge is best-of-n (Stiennon et al. 2020, "Learning to
summarize from human feedback", section 4.3; Nakano et al. 2021, "WebGPT"). Or they vote (Wang et al. 2022,
"Self-consistency improves chain of thought reasoning") for the value of their text, so that blanks, the order of
members and the way a number is written do not divide votes. What counts as one answer is `answer_of`.
"""

from __future__ import annotations

import enum
import math
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from decodekit.decoding.request.completion import Completion, Score
from decodekit.errors import DecodekitError, OptionError


@runtime_checkable
class Judge(Protocol):
    """A model that says how likely a text is; `LLM` is one."""

    def score(self, texts: str) -> Score:
        """Log-probabilities of the tokens of a text."""


Rank: TypeAlias = Literal["logprob", "mean_logprob"] | Callable[[Completion], float] | Judge
"""What samples are ranked by; see `strategy.BestOf`."""

Key: TypeAlias = Callable[[Completion], Hashable]
"""The answer of a sample; None if it has none."""


def log_probability(sample: Completion) -> float:
    """The recorded log-probabilities of the tokens of a sample, under the model's own distribution, summed."""
    return math.fsum(entry.logprob for entry in sample.logprobs or ())


def score_of(sample: Completion, rank: Rank) -> float | None:
    """The score of a sample, larger is better; None of one that failed, or that the judge cannot read.

    `OptionError` if the caller's function failed, or gave no number.
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
    """The answer of a caller's function for a sample; `OptionError` if it failed."""
    try:
        return function(sample)
    except Exception as error:
        cause = f"{option} failed for {sample.text!r:.60}: {type(error).__name__}: {error}"
        raise OptionError(cause, at=option) from error


def majority(samples: Sequence[Completion], key: Key | None) -> Completion:
    """The first sample of the answer with most votes; `others` has the first ones of the other answers.

    `score` is the share of the samples that gave the answer. Of equal shares the answer comes first whose samples have
    the larger sum of log-probabilities, then the one that was given first. A sample that failed, or that `key` gives
    None for, votes for nothing; such samples come last, with the score 0.
    """
    votes: dict[Hashable, list[Completion]] = {}
    abstaining: list[Completion] = []
    try:
        for sample in samples:
            answer = None if sample.error is not None else answer_of(sample, key)
            if answer is None:
                abstaining.append(replace(sample, score=0.0))
            else:
                votes.setdefault(answer, []).append(sample)
    except OptionError as error:
        return replace(samples[0], error=error, others=tuple(samples[1:]))

    def weight(voters: list[Completion]) -> tuple[int, float]:
        return len(voters), math.fsum(map(log_probability, voters))

    answers = sorted(votes.values(), key=weight, reverse=True)  # stable: of equals the earlier stays
    found = [replace(voters[0], score=len(voters) / len(samples)) for voters in answers]
    first, *others = [*found, *abstaining]
    return replace(first, others=tuple(others))


def answer_of(sample: Completion, key: Key | None = None) -> Hashable:
    """The answer of `key`, if there is one; the value of a constrained sample as `canonical` has it; else its text,
    without regard to case and blanks."""
    if key is not None:
        answer = asked("key", key, sample)
        if not isinstance(answer, Hashable):
            raise OptionError(f"key gave {answer!r:.60} for {sample.text!r:.60}, which has no hash", at="key")
        return answer
    if sample.value is not None:
        return canonical(sample.value)
    text = unicodedata.normalize("NFKC", sample.text).casefold()
    return "text", " ".join(text.split())


def canonical(value: Any) -> Hashable:
    """Equal for equal values: JSON values as JSON Schema compares them, objects of Python types by their members.

    Numbers are compared as numbers (1 and 1.0), and are not booleans; objects do not depend on the order of members.
    """
    if isinstance(value, bool) or value is None:
        return "constant", value
    if isinstance(value, enum.Enum):
        return canonical(value.value)
    if isinstance(value, int | float):
        return "number", value
    if isinstance(value, str | bytes):
        return "text", value
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return "object", frozenset((canonical(name), canonical(member)) for name, member in value.items())
    if isinstance(value, set | frozenset):
        return "set", frozenset(map(canonical, value))
    if isinstance(value, list | tuple):
        return "array", tuple(map(canonical, value))
    return "other", value if isinstance(value, Hashable) else repr(value)
