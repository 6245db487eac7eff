"""What a caller gets back: completions, the chunks of a stream, scores."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from decodekit.errors import DecodekitError
from decodekit.generation.sequence import TokenLogprob
from decodekit.generation.stats import DERIVED, Stats
from decodekit.generation.stopping import FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt.

    Args:
        text: the generated text: the bytes of the tokens as UTF-8, without end-of-sequence token and stop string.
            Special tokens that the constraint asked for are part of it, by name (by id as ``<[7]>``); others are not.
        token_ids: all generated tokens; an end-of-sequence token, and the tokens of a stop string, are among them.
        value: what the text means under the constraint (parsed JSON, an object of the Python type, a string); None
            without a constraint, or if the text is not complete. A text that was cut has one if its constraint is
            satisfied all the same: ``[0-9]+`` by ``555``, which could have gone on.
        finish_reason: ``stop`` (end-of-sequence token or stop string), ``length`` (`max_new_tokens` or the context is
            used up), ``complete`` (the constraint is satisfied and nothing can follow), ``dead_end`` or ``error``.
        error: why there is no usable value, None if all is well.
        logprobs: one entry per token if asked for.
        stats: times and counts.
        score: by what a strategy of several texts ranks it: of a beam search, the log-probability divided by a power
            of the length; of `BestOf`, what its `rank` says; of `SelfConsistency`, the share of the samples with this
            answer; of `Particles`, the share of the weight; else None.
        others: the further texts of a beam search, of samples with `num_return_sequences`, of `BestOf`,
            `SelfConsistency` and `Particles`; in the order of their scores, or of the samples.
        attempts: with `max_retries`, the completions of the tries before this one, each with the error for which it was
            refused; `Stats.num_retries` is their number.
    """

    text: str
    token_ids: tuple[int, ...]
    value: Any
    finish_reason: FinishReason
    error: DecodekitError | None
    logprobs: tuple[TokenLogprob, ...] | None
    stats: Stats
    score: float | None = None
    others: tuple[Completion, ...] = ()
    attempts: tuple[Completion, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain types, for `json.dumps`: lists, dictionaries, texts and numbers.

        The error becomes ``code``, ``error`` (its class), ``message``, ``at`` and ``hint``; a value that has no form in
        JSON its `repr`. `stats` has the derived figures (``tokens_per_second``, ...), too.
        """
        from pydantic_core import to_jsonable_python  # which not every user needs

        stats = asdict(self.stats) | {name: getattr(self.stats, name) for name in DERIVED}
        record = {
            "text": self.text,
            "token_ids": self.token_ids,
            "value": self.value,
            "finish_reason": self.finish_reason,
            "error": None if self.error is None else _plain_error(self.error),
            "logprobs": None if self.logprobs is None else [asdict(one) for one in self.logprobs],
            "stats": stats | {"recommended": dict(self.stats.recommended)},
            "score": self.score,
        }
        plain: dict[str, Any] = to_jsonable_python(record, fallback=repr, inf_nan_mode="null")
        plain["others"] = [other.to_dict() for other in self.others]
        plain["attempts"] = [attempt.to_dict() for attempt in self.attempts]
        return plain


def _plain_error(error: DecodekitError) -> dict[str, str | None]:
    return {
        "code": error.code,
        "error": type(error).__name__,
        "message": error.cause,
        "at": error.at,
        "hint": error.hint,
    }


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream.

    The texts of the chunks of a prompt, concatenated, are ``Completion.text``; so are their token ids its tokens.
    Text comes on character boundaries and is never taken back, so a token and its text may be in different chunks.

    Args:
        index: number of the prompt.
        text: text that is new.
        token_ids: tokens that are new.
        completion: the whole, with the last chunk of a prompt.
        logprobs: an entry for each of the tokens if asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a text is under the model.

    Args:
        token_ids: its n tokens, with the special tokens that the tokenizer adds.
        logprobs: natural log-probabilities of its tokens from the second on, n - 1 of them; nothing precedes the first.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))
