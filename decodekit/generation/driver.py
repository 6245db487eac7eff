"""The driver: continuous batching of requests, of whatever search, on the rows of one cache.

The life of a request, here of three prompts in two rows:

    admit    `Policy.begin` makes a `Group`, and the driver gives it rows        A -> row 0, B -> row 1
    prefill  prompts of similar length are read together, long ones in chunks    read A, B
    step     every group takes a token or more from one forward pass             A B, A B, A B
    finish   a group that is done leaves; its last update has the result         A is done
    refill   its rows go to the next request                                     C -> row 0, read C, C B, C B, ...

A request that cannot start, or whose text is known without the model, is answered when it is admitted. Requests are
taken from their stream only when there are rows for them; a blocking request stream blocks decoding. Between the chunks
of a long prompt the other groups go on.

What a group is, and what becomes of it in a step, is said by a `Policy`: `samples.Texts` (a row for each text),
`beam_search.BeamSearch` (a row for each hypothesis), `contrastive_search.ContrastiveRows` (a row for each candidate)
and `particle_filter.ParticleFilter` (a row for each particle). What comes out for a request is a function of its
prompt, its constraint and its seed, whatever else is in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import torch

from decodekit.errors import DecodekitError
from decodekit.generation.budget import token_budget
from decodekit.generation.memory import new_cache
from decodekit.generation.padding import similar_lengths
from decodekit.generation.results import Update, refused, update_of
from decodekit.generation.sequence import Request, Sequence
from decodekit.generation.settings import Settings
from decodekit.generation.sharing import SharedPrompts, begin_rows
from decodekit.generation.step import forward
from decodekit.generation.token_table import TokenTable
from decodekit.models.causal_lm import Cache, CausalLM

PREFILL_TOKENS = 2048
"""Most tokens, padding included, of one prefill forward: bounds its activations; longer prompts are read in chunks."""

_CAPACITY_STEP = 64


@dataclass(eq=False)
class Group:
    """The rows of one request, ascending, and the sequences in them, of which the first reads the prompt."""

    sequences: list[Sequence]
    rows: list[int] = field(default_factory=list, kw_only=True)
    error: DecodekitError | None = field(default=None, kw_only=True)
    """What failed for all of them."""

    @property
    def sequence(self) -> Sequence:
        """The one that reads the prompt."""
        return self.sequences[0]

    @property
    def is_done(self) -> bool:
        """Whether nothing goes on."""
        return self.error is not None or all(sequence.finish_reason is not None for sequence in self.sequences)


G = TypeVar("G", bound=Group)


@dataclass(slots=True)
class CacheRows:
    """What the rows of all groups have read: keys and values, and the tokens if a processor looks back."""

    cache: Cache
    table: TokenTable | None


class Policy(ABC, Generic[G]):
    """What the requests of one kind of search do with their rows."""

    num_rows: int = 1
    """Rows of a request."""
    num_samples: int = 1
    """How often a request is decoded: samples of request s have the numbers from s num_samples on, for their noise."""
    is_prompt_shared: bool = False
    """Whether several rows begin with one prompt, which is read once and copied."""
    option: str | None = None
    """What asks for the rows, such as ``num_beams=4``, for errors; None for the batch size."""

    def __init__(self, model: CausalLM, settings: Settings) -> None:
        self.model = model
        self.settings = settings

    @abstractmethod
    def begin(self, sequence: Sequence) -> G:
        """The group of a new request, which may be done already; a `DecodekitError` if the request cannot start."""

    @abstractmethod
    def step(self, groups: Rows[G], rows: CacheRows) -> None:
        """Let the model read what is pending and bring every group on. What fails is an error of its group alone."""

    def read(self, groups: Rows[G], num_tokens: int, rows: CacheRows) -> None:
        """Let the model read the next tokens of prompts."""
        forward([group.sequence for group in groups], self.model, rows.cache, num_tokens)

    def update(self, group: G) -> Update | None:
        """What is new of a group; its result if it is done. None if there is nothing to hand out."""
        sequence = group.sequence
        has_news = sequence.finish_reason or (sequence.new_text and not sequence.is_provisional)
        return update_of(sequence) if has_news else None


class Driver(Generic[G]):
    """Decodes a stream of requests on the rows of one cache, at most `num_groups` groups at a time.

    A request that is an error already (its prompt could not be read), or that does not fit the model, is answered with
    a result that carries the error.
    """

    def __init__(self, policy: Policy[G], num_groups: int, requests: Iterable[Request | DecodekitError]) -> None:
        self._policy = policy
        self._num_groups = num_groups
        self._queue = _numbered(requests, policy.num_samples)
        self._is_exhausted = False
        self._running: list[G] = []
        self._free: list[int] = []
        self._rows: CacheRows | None = None
        self._shared = SharedPrompts(policy.model.can_rollback) if policy.is_prompt_shared else None

    def run(self) -> Iterator[Update]:
        """Decode all requests; updates as they come, each request's own in order."""
        while True:
            admitted, answers = self._admit()
            yield from answers
            if admitted:
                rows = self._place(admitted)
                yield from self._prefill(admitted, rows)
            if self._running:
                assert self._rows is not None
                self._running.sort(key=lambda group: group.rows[0])  # neighbouring rows are read in place
                if self._is_exhausted and self._policy.num_rows == 1:
                    self._compact(self._rows)
                yield from self._step(self._running, self._rows)
            elif not admitted and not answers:
                return

    def _admit(self) -> tuple[list[G], list[Update]]:
        """Take requests as long as there is room; those that need no model are answered at once."""
        admitted: list[G] = []
        answers: list[Update] = []
        num_free = self._num_groups - len(self._running)
        while len(admitted) + len(answers) < num_free and not self._is_exhausted:
            entry = next(self._queue, None)
            if entry is None:
                self._is_exhausted = True
                break
            index, number, request = entry
            try:
                group = self._begin(index, request)
            except DecodekitError as error:
                answers.append(refused(index, number, request, error))
                continue
            update = self._policy.update(group) if group.is_done else None
            if update is None:
                admitted.append(group)
            else:
                answers.append(update)
        return admitted, answers

    def _begin(self, index: int, request: Request | DecodekitError) -> G:
        if isinstance(request, DecodekitError):
            raise request
        settings = self._policy.settings
        sequence = Sequence(index, request, token_budget(index, request, self._policy.model, settings), settings.stop)
        matcher = sequence.matcher
        if matcher is not None and matcher.is_accepting and not matcher.can_continue:
            sequence.finish("complete")  # the empty text is the only one
        return self._policy.begin(sequence)

    def _place(self, admitted: Rows[G]) -> CacheRows:
        """Give every new group its rows; the first ones decide how large the cache is."""
        rows = self._rows = self._rows or self._new_rows(admitted)
        for group in admitted:
            prompt = group.sequence.request.prompt
            take = self._free.pop if self._shared is None else partial(self._shared.take_row, self._free, prompt)
            group.rows = sorted(take() for _ in range(self._policy.num_rows))
            for row, sequence in zip(group.rows, group.sequences, strict=False):
                sequence.row = row
                if rows.table is not None:
                    rows.table.begin(sequence)
        if self._shared is None:
            begin_rows(rows.cache, {row: group.sequence.request for group in admitted for row in group.rows})
        return rows

    def _new_rows(self, admitted: Rows[G]) -> CacheRows:
        policy = self._policy
        num_groups = len(admitted) if self._is_exhausted else self._num_groups
        num_rows = num_groups * policy.num_rows
        longest = max(len(one.sequence.request.prompt) + min(one.sequence.max_tokens, 256) for one in admitted)
        capacity = -(-longest // _CAPACITY_STEP) * _CAPACITY_STEP
        cache = new_cache(policy.model, num_rows, capacity, policy.option or f"batch_size={num_rows}")
        self._free = list(range(num_rows))[::-1]
        return CacheRows(cache, TokenTable(num_rows) if policy.settings.pipeline.needs_history else None)

    def _prefill(self, admitted: list[G], rows: CacheRows) -> Iterator[Update]:
        """Read the prompts, and let the groups take their first step with the last chunks of them."""
        if self._shared is not None:
            yield from self._read_shared(self._shared, admitted, rows)
            self._running += admitted  # a token is left to read, as in the other rows
            return
        for groups in _similar(admitted):
            yield from self._read_chunks(groups, rows)
            yield from self._step(groups, rows)

    def _read_shared(self, shared: SharedPrompts, admitted: list[G], rows: CacheRows) -> Iterator[Update]:
        """Bring the rows of new groups up to the last token of their prompts, reading each prompt once."""
        sequences = [sequence for group in admitted for sequence in group.sequences]
        readers = set(map(id, shared.begin(sequences, rows.cache)))
        reading = [group for group in admitted if id(group.sequence) in readers]
        for sequence in sequences:
            del sequence.pending[: len(sequence.request.prompt) - 1]
        waiting = [group.sequence.pending for group in reading]
        for group in reading:
            group.sequence.pending = list(group.sequence.request.prompt[:-1])
        for groups in _similar(reading):
            yield from self._read_chunks(groups, rows)
            with torch.inference_mode():
                self._policy.read(groups, PREFILL_TOKENS, rows)
        for group, pending in zip(reading, waiting, strict=True):
            group.sequence.pending = pending
        shared.spread([group.sequence for group in reading], sequences, rows.cache)

    def _read_chunks(self, groups: list[G], rows: CacheRows) -> Iterator[Update]:
        """Read long prompts up to their last chunk; after each chunk the other groups take a step."""
        chunk = PREFILL_TOKENS // len(groups)
        while max(len(group.sequence.pending) for group in groups) > chunk:
            with torch.inference_mode():
                self._policy.read(groups, chunk, rows)
            if self._running:
                yield from self._step(self._running, rows)

    def _step(self, groups: list[G], rows: CacheRows) -> list[Update]:
        """One step, the updates it brought, and the rows it freed."""
        with torch.inference_mode():
            self._policy.step(groups, rows)
        updates = [update for group in groups if (update := self._policy.update(group)) is not None]
        if groups is not self._running:
            self._running += groups
        for group in groups:
            if group.is_done:
                self._free += reversed(group.rows)
        self._running = [group for group in self._running if not group.is_done]
        return updates

    def _compact(self, rows: CacheRows) -> None:
        """Drop the cache rows that nobody will use any more.

        The cache reads neighbouring rows in place and must copy scattered ones at every step. While requests wait, all
        rows are busy; at the end of the stream the holes are closed, one copy for each time that rows leave.
        """
        order = [group.rows[0] for group in self._running]
        if order == list(range(order[0], order[0] + len(order))):
            return
        rows.cache.reorder(torch.tensor(order))
        if rows.table is not None:
            rows.table.reorder(order)
        for row, group in enumerate(self._running):
            group.rows = [row]
            group.sequence.row = row
        self._free = []


def _numbered(
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


def _similar(groups: Rows[G]) -> list[list[G]]:
    """Groups whose prompts are read together."""
    lengths = [len(group.sequence.pending) for group in groups]
    return [[groups[i] for i in indices] for indices in similar_lengths(lengths, PREFILL_TOKENS)]
