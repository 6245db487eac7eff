"""The answer that most samples agree on (Wang et al. 2022, "Self-consistency improves chain of thought reasoning").

Samples vote for the value of their text, so that blanks, the order of members and the way a number is written do not
divide votes. What counts as one answer is `answer_of`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from decodekit.errors import OptionError
from decodekit.generation.best_of import asked, log_probability
from decodekit.generation.completion import Completion

Key: TypeAlias = Callable[[Completion], Hashable]
"""The answer of a sample; None if it has none."""


def majority(samples: Sequence[Completion], key: Key | None) -> Completion:
    """The first sample of the answer with most votes; `others` has the first ones of the other answers.

    `score` is the share of the samples that gave the answer. Of equal shares the answer comes first whose samples have
    the larger sum of log-probabilities, then the one that was given first. A sample that failed, or that `key` gives
    None for, votes for nothing; such samples come last, with the score 0.

    Args:
        samples: of one prompt, with log-probabilities.
        key: what a sample answers; None is `answer_of`.
    """
    votes: dict[Hashable, list[Completion]] = {}
    abstaining: list[Completion] = []
    try:
        for sample in samples:
            answer = None if sample.error is not None else _answer(sample, key)
            if answer is None:
                abstaining.append(dataclasses.replace(sample, score=0.0))
            else:
                votes.setdefault(answer, []).append(sample)
    except OptionError as error:
        return dataclasses.replace(samples[0], error=error, others=tuple(samples[1:]))

    def weight(voters: list[Completion]) -> tuple[int, float]:
        return len(voters), math.fsum(map(log_probability, voters))

    answers = sorted(votes.values(), key=weight, reverse=True)  # stable: of equals the earlier stays
    found = [dataclasses.replace(voters[0], score=len(voters) / len(samples)) for voters in answers]
    first, *others = [*found, *abstaining]
    return dataclasses.replace(first, others=tuple(others))


def _answer(sample: Completion, key: Key | None) -> Hashable:
    if key is None:
        return answer_of(sample)
    answer = asked("key", key, sample)
    if not isinstance(answer, Hashable):
        raise OptionError(f"key gave {answer!r:.60} for {sample.text!r:.60}, which has no hash", at="key")
    return answer


def answer_of(sample: Completion) -> Hashable:
    """The value of a constrained sample as `canonical` has it; else its text, without regard to case and blanks."""
    if sample.value is not None:
        return canonical(sample.value)
    text = unicodedata.normalize("NFKC", sample.text).casefold()
    return "text", " ".join(text.split())


def canonical(value: Any) -> Hashable:
    """Equal for equal values: JSON values as JSON Schema compares them, objects of Python types by their members.

    Numbers are compared as numbers (1 and 1.0), and are no booleans; objects do not depend on the order of members.
    """
    if isinstance(value, bool) or value is None:
        return "constant", value
    if isinstance(value, enum.Enum):
        return canonical(value.value)
    if isinstance(value, int | float):
        return "number", value
    if isinstance(value, str | bytes):
        return "text", value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return "object", frozenset((canonical(name), canonical(member)) for name, member in value.items())
    if isinstance(value, set | frozenset):
        return "set", frozenset(map(canonical, value))
    if isinstance(value, list | tuple):
        return "array", tuple(map(canonical, value))
    return "other", value if isinstance(value, Hashable) else repr(value)
