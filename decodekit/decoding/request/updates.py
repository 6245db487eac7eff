"""Updates of requests that decoding hands out, the last of each with its result."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from decodekit.decoding.request.stats import Stats
from decodekit.decoding.request.stopping import FinishReason
from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.decoding.loop.text_row import Request, TextRow, TokenLogprob
    from decodekit.decoding.request.token_traces import TokenTrace
    from decodekit.decoding.search.beam_tree import BeamTree


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one request.

    Args:
        token_ids: the generated tokens; an end-of-sequence token, and the tokens of a stop string, are among them.
        finish_reason: why the text ended.
        error: what went wrong with this request, None if nothing.
        logprobs: one per token if asked for, else empty.
        stats: times and counts.
        score: what a search with several hypotheses ranks the text by, None of a text that is alone.
        others: the further texts of a search, best first.
        is_satisfied: whether a text that was cut (``length``) satisfies its constraint as it is, and could have ended.
        trace: how each token was taken, if asked for, else empty.
        tree: of a beam search what it looked at, if a trace was asked for.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    error: DecodekitError | None
    logprobs: tuple[TokenLogprob, ...]
    stats: Stats
    score: float | None = None
    others: tuple[Update, ...] = ()
    is_satisfied: bool = False
    trace: tuple[TokenTrace, ...] = ()
    tree: BeamTree | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """The news of one request.

    Args:
        index: number of the request, counted from 0.
        text: text that became certain; the texts of all updates of a request, concatenated, are its text.
        token_ids: tokens taken since its last update.
        result: the end, with the last update of the request.
        sequence: number of the sample, as in `Request`; each sample of a request has updates of its own.
        logprobs: one for each of the tokens if asked for, else empty.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    result: Result | None = None
    sequence: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


def update_of(sequence: TextRow) -> Update:
    """The news of a sequence since the last update."""
    result = None
    if sequence.finish_reason is not None:
        result = Result(
            tuple(sequence.token_ids),
            sequence.finish_reason,
            sequence.error,
            tuple(sequence.logprobs),
            sequence.stats(time.perf_counter()),
            is_satisfied=is_satisfied(sequence.finish_reason, sequence.matcher),
            trace=tuple(sequence.traces),
        )
    token_ids = tuple(sequence.token_ids[sequence.num_reported :])
    logprobs = tuple(sequence.logprobs[sequence.num_reported :])
    update = Update(sequence.index, sequence.new_text, token_ids, result, sequence.request.sequence, logprobs)
    sequence.new_text, sequence.num_reported = "", len(sequence.token_ids)
    return update


def refused(index: int, sample: int, request: Request | DecodekitError, error: DecodekitError) -> Update:
    """The answer to a request that cannot start."""
    num_prompt_tokens = 0 if isinstance(request, DecodekitError) else len(request.prompt)
    result = Result((), "error", error, (), Stats(num_prompt_tokens, 0, 0, None, 0.0))
    return Update(index, "", (), result, sample)


def with_others(updates: Iterable[Update]) -> Update:
    """The first of several ended texts of a request, with the others in its result."""
    first, *others = updates
    assert first.result is not None
    return replace(first, result=replace(first.result, others=tuple(others)))


def is_satisfied(reason: FinishReason | None, matcher: Matcher | None) -> bool:
    """Whether a text was cut where its constraint is satisfied."""
    return reason == "length" and matcher is not None and matcher.is_accepting
