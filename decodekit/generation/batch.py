"""Continuous batching: a fixed number of cache rows, refilled from a lazy stream of requests as rows become free.

New rows are prefilled apart from the rows that decode, in groups of similar length; then all rows decode together, step
by step, each by as many tokens as come out of its draft. A finished row leaves at once. Requests are taken from the
stream only when a row is free for them, and while the stream lets wait for one, everything waits.

Several samples of a request are rows like any others, each with a number that keys its noise. They share the reading of
their prompt (see `generation.sharing`), also where there are fewer rows than samples: a sample that comes later finds
the prompt in the row of one that came before, as long as no other request has taken it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import torch

from decodekit.errors import ContextLengthError, DecodekitError, LengthError, OptionError
from decodekit.generation.buffers import Masks, TokenTable
from decodekit.generation.forced import take_forced
from decodekit.generation.memory import new_cache
from decodekit.generation.padding import similar_lengths
from decodekit.generation.rows import begin_rows
from decodekit.generation.sequence import Request, Sequence, TokenLogprob
from decodekit.generation.sharing import SharedPrompts
from decodekit.generation.stats import Stats
from decodekit.generation.step import Settings, forward, step
from decodekit.generation.stopping import FinishReason

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.models.causal_lm import Cache, CausalLM

T = TypeVar("T")

PREFILL_TOKENS = 2048
"""Most tokens, padding included, of one prefill forward: bounds its activations; longer prompts are read in chunks."""

_CAPACITY_STEP = 64


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
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    error: DecodekitError | None
    logprobs: tuple[TokenLogprob, ...]
    stats: Stats
    score: float | None = None
    others: tuple[Update, ...] = ()
    is_satisfied: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """What is new of one request.

    Args:
        index: number of the request, counted from 0.
        text: text that became certain; the texts of all updates of a request, concatenated, are its text.
        token_ids: tokens taken since its last update.
        result: the end, with the last update of the request.
        sequence: number of the sample, as in `Request`; each sample of a request has updates of its own.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    result: Result | None = None
    sequence: int = 0


class Batch:
    """Decodes a stream of requests on the rows of one cache.

    Args:
        model: the model; batches with caches of their own may share it.
        settings: how tokens are taken.
        num_rows: most sequences at a time.
        requests: what to continue. One that is an error already (its prompt could not be read), or that does not fit
            the model, is answered with a result that carries the error.
        num_samples: how many texts each request has, n. Those of a request with number s are numbered from s n on.
    """

    def __init__(
        self,
        model: CausalLM,
        settings: Settings,
        num_rows: int,
        requests: Iterable[Request | DecodekitError],
        num_samples: int = 1,
    ) -> None:
        self._model = model
        self._settings = settings
        self._max_rows = num_rows
        self._running: list[Sequence] = []
        self._free: list[int] = []
        self._cache: Cache | None = None
        self._queue = _samples(requests, num_samples)
        self._is_exhausted = False
        self._shared = SharedPrompts(model.can_rollback) if num_samples > 1 else None
        left_out = settings.left_out if settings.masks_ending else None
        self._masks = Masks(num_rows, settings.vocabulary.num_mask_words, settings.can_redraw, left_out)
        self._table = TokenTable(num_rows) if settings.pipeline.needs_history else None

    def run(self) -> Iterator[Update]:
        """Decode all requests; updates as they come, each request's own in order."""
        while True:
            admitted, answers = self._admit()
            yield from answers
            if self._shared is not None and admitted:
                yield from self._read_shared(self._shared, admitted)
            for indices in similar_lengths([len(sequence.pending) for sequence in admitted], PREFILL_TOKENS):
                group = [admitted[i] for i in indices]
                yield from self._prefill(group)
                yield from self._step(group)
            if self._running:
                self._running.sort(key=lambda sequence: sequence.row)
                if self._is_exhausted:
                    self._compact()
                yield from self._step(self._running)
            elif not admitted and not answers:
                return

    def _admit(self) -> tuple[list[Sequence], list[Update]]:
        """Take requests while there are free rows; those that need no model are answered at once."""
        admitted: list[Sequence] = []
        answers: list[Update] = []
        num_free = self._max_rows - len(self._running)
        while len(admitted) + len(answers) < num_free and not self._is_exhausted:
            entry = next(self._queue, None)
            if entry is None:
                self._is_exhausted = True
                break
            index, number, request = entry
            try:
                sequence = begin(index, request, self._model, self._settings)
            except DecodekitError as error:
                answers.append(replace(refused(index, request, error), sequence=number))
                continue
            if sequence.finish_reason is None:
                admitted.append(sequence)
            else:
                answers.append(update_of(sequence))
        if admitted:
            self._assign_rows(admitted)
        return admitted, answers

    def _assign_rows(self, admitted: list[Sequence]) -> None:
        """Give every new sequence an empty cache row; the first ones decide how large the cache is."""
        longest = max(len(sequence.request.prompt) + min(sequence.max_tokens, 256) for sequence in admitted)
        if self._cache is None:
            num_rows = len(admitted) if self._is_exhausted else self._max_rows
            self._free = list(range(num_rows))[::-1]
            self._cache = new_cache(self._model, num_rows, rounded(longest), f"batch_size={num_rows}")
        for sequence in admitted:
            if self._shared is None:
                sequence.row = self._free.pop()
            else:
                sequence.row = self._shared.take_row(self._free, sequence.request.prompt)
            if self._table is not None:
                self._table.begin(sequence)
        if self._shared is None:
            begin_rows(self._cache, {sequence.row: sequence.request for sequence in admitted})

    def _read_shared(self, shared: SharedPrompts, admitted: list[Sequence]) -> Iterator[Update]:
        """Bring the rows of new sequences up to the last token of their prompts, reading each prompt once."""
        assert self._cache is not None
        readers = shared.begin(admitted, self._cache)
        for sequence in admitted:
            del sequence.pending[: len(sequence.request.prompt) - 1]
        waiting = [sequence.pending for sequence in readers]
        for sequence in readers:
            sequence.pending = list(sequence.request.prompt[:-1])
        for indices in similar_lengths([len(sequence.pending) for sequence in readers], PREFILL_TOKENS):
            group = [readers[i] for i in indices]
            yield from self._prefill(group)
            with torch.inference_mode():
                forward(group, self._model, self._cache)
        for sequence, pending in zip(readers, waiting, strict=True):
            sequence.pending = pending
        shared.spread(readers, admitted, self._cache)

    def _prefill(self, group: list[Sequence]) -> Iterator[Update]:
        """Read long prompts up to their last chunk, which `step` reads; after each chunk the others take a token."""
        assert self._cache is not None
        chunk = PREFILL_TOKENS // len(group)
        while max(len(sequence.pending) for sequence in group) > chunk:
            with torch.inference_mode():
                forward(group, self._model, self._cache, chunk)
            if self._running:
                yield from self._step(self._running)

    def _step(self, sequences: list[Sequence]) -> list[Update]:
        """One step, the updates it brought, and the rows it freed."""
        assert self._cache is not None
        step(sequences, self._model, self._cache, self._settings, self._masks, self._table)
        updates = [
            update_of(sequence)
            for sequence in sequences
            if sequence.finish_reason or (sequence.new_text and not sequence.is_provisional)
        ]
        finished = [sequence for sequence in sequences if sequence.finish_reason is not None]
        if sequences is not self._running:
            self._running += sequences
        if finished:
            self._free += [sequence.row for sequence in finished]
            self._running = [sequence for sequence in self._running if sequence.finish_reason is None]
        return updates

    def _compact(self) -> None:
        """Drop the cache rows that nobody will use any more.

        The cache reads neighbouring rows in place and must copy scattered ones at every step. While requests wait, all
        rows are busy; at the end of the stream the holes are closed, one copy for each time that rows leave.
        """
        rows = [sequence.row for sequence in self._running]
        if not rows or rows == list(range(rows[0], rows[0] + len(rows))):
            return
        assert self._cache is not None
        self._cache.reorder(torch.tensor(rows))
        if self._table is not None:
            self._table.reorder(rows)
        for row, sequence in enumerate(self._running):
            sequence.row = row
        self._free = []


def begin(index: int, request: Request | DecodekitError, model: CausalLM, settings: Settings) -> Sequence:
    """A sequence at its start; it may be finished already.

    Raises:
        DecodekitError: the request is one, has no tokens, does not fit the model, or its constraint fails.
    """
    if isinstance(request, DecodekitError):
        raise request
    max_tokens = token_budget(index, request, model, settings)
    sequence = Sequence(index, request, max_tokens, settings.stop)
    if settings.must_close and sequence.matcher is not None:
        least = len(sequence.matcher.completion(settings.left_out))
        if least > max_tokens:
            raise LengthError(
                f"no text of the constraint fits into {max_tokens:,} tokens: the least known has {least:,}",
                at=f"prompt {index}",
                hint="a larger max_new_tokens" if max_tokens == settings.max_new_tokens else "a shorter prompt",
            )
    if sequence.matcher is not None and sequence.matcher.is_accepting and not sequence.matcher.can_continue:
        sequence.finish("complete")  # the empty text is the only one
    else:
        take_forced(sequence, settings, None)
        if sequence.finish_reason is not None:  # all of the text is forced
            sequence.first_token_at = time.perf_counter()
    return sequence


def token_budget(index: int, request: Request, model: CausalLM, settings: Settings) -> int:
    """How many tokens may be generated for a request.

    Raises:
        OptionError: its prompt has no tokens.
        ContextLengthError: its prompt fills the context of the model.
    """
    num_prompt_tokens, context_length = len(request.prompt), model.context_length
    max_tokens = settings.max_new_tokens
    if num_prompt_tokens == 0:
        raise OptionError(
            "the prompt has no tokens, so that the model has nothing to continue",
            at=f"prompt {index}",
            hint="a prompt that is not empty; this tokenizer puts no token at the beginning",
        )
    if context_length is not None:
        if num_prompt_tokens >= context_length:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens:,} tokens, the context of the model {context_length:,}: "
                "there is no room for an answer",
                at=f"prompt {index}",
                hint="a shorter prompt, or a model with a longer context",
            )
        if len(request.negative_prompt) >= context_length:
            raise ContextLengthError(
                f"the negative prompt has {len(request.negative_prompt):,} tokens, the context of the model "
                f"{context_length:,}: there is no room for an answer",
                at=f"prompt {index}",
                hint="a shorter negative prompt",
            )
        max_tokens = min(max_tokens, context_length - max(num_prompt_tokens, len(request.negative_prompt)))
    return max_tokens


def _samples(
    requests: Iterable[Request | DecodekitError], num_samples: int
) -> Iterator[tuple[int, int, Request | DecodekitError]]:
    """Every request once for each of its samples, with its index and the number of the sample."""
    for index, request in enumerate(requests):
        for sample in range(num_samples):
            if isinstance(request, DecodekitError):
                yield index, sample, request
            else:
                number = request.sequence * num_samples + sample
                yield index, number, replace(request, sequence=number)


def admit(
    queue: Iterator[tuple[int, Request | DecodekitError]],
    num_free: int,
    begin: Callable[[int, Request | DecodekitError], T],
    answer: Callable[[T], Update | None],
) -> tuple[list[T], list[Update]]:
    """Take requests as long as there is room; those that fail, or need no model, are answered at once.

    Args:
        queue: the requests with their numbers.
        num_free: how many may come.
        begin: makes what decodes a request; it raises a `DecodekitError` for one that cannot start.
        answer: the update of one that is done already, None of one that is not.

    Returns:
        What is to be decoded, and the answers; as many as `num_free` in all, or fewer at the end of the queue.
    """
    admitted: list[T] = []
    answers: list[Update] = []
    for entry in islice(queue, num_free):
        try:
            begun = begin(*entry)
        except DecodekitError as error:
            answers.append(refused(*entry, error))
            continue
        update = answer(begun)
        if update is None:
            admitted.append(begun)
        else:
            answers.append(update)
    return admitted, answers


def refused(index: int, request: Request | DecodekitError, error: DecodekitError) -> Update:
    """The answer to a request that cannot start."""
    num_prompt_tokens = 0 if isinstance(request, DecodekitError) else len(request.prompt)
    return Update(index, "", (), Result((), "error", error, (), Stats(num_prompt_tokens, 0, 0, None, 0.0)))


def update_of(sequence: Sequence) -> Update:
    """What is new of a sequence since the last update."""
    result = None
    if sequence.finish_reason is not None:
        result = Result(
            tuple(sequence.token_ids),
            sequence.finish_reason,
            sequence.error,
            tuple(sequence.logprobs),
            sequence.stats(time.perf_counter()),
            is_satisfied=is_satisfied(sequence.finish_reason, sequence.matcher),
        )
    token_ids = tuple(sequence.token_ids[sequence.num_reported :])
    update = Update(sequence.index, sequence.new_text, token_ids, result, sequence.request.sequence)
    sequence.new_text, sequence.num_reported = "", len(sequence.token_ids)
    return update


def is_satisfied(reason: FinishReason | None, matcher: Matcher | None) -> bool:
    """Whether a text was cut where its constraint is satisfied."""
    return reason == "length" and matcher is not None and matcher.is_accepting


def rounded(capacity: int) -> int:
    """A capacity of a cache that is worth asking for."""
    return -(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP
