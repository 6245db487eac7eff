"""The scheduler: requests wait, are admitted to the rows of a cache, and are brought on a step at a time.

The life of a request, here of three prompts in two rows:

    add      it waits; larger priorities first, then who came first                    A, B, C
    admit    `Decoder.begin` makes a `Group`, which gets rows of a batch                 A -> row 0, B -> row 1
    step     prompts are read, every group takes a token or more from one forward pass   A B, A B, A B
    finish   a group that is done leaves; its last update has the result               A is done
    refill   its rows go to the next request                                           C -> row 0, read C, C B, C B, ...

A request that cannot start, or whose text is known without the model, is answered when it is admitted. It may be
cancelled at any time, and ends by itself at its deadline. Requests of different settings share the rows of a batch;
there is one batch for single texts of each model, and one for each search (beams, candidates, particles), which has
rows and forward passes of its own.

Requests may have an owner, as the texts that one client asks for at once do; the samples of a request have it as one.
Of equal priority, the first text of an owner goes before the second of any other. And while others wait an owner has
`max_owned` rows at most: it leaves those that it had when nobody waited.

    rows  A A A A A A A A    B and C wait, 2 rows for an owner    ->    A A A A A A B C    two texts of A wait

`run` decodes a stream of requests of one kind in the thread of its caller; `llm.engine` has requests of any kind and a
thread of its own. Both do no more than `add` and `step`.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias

from decodekit.constraints.priority import decoding
from decodekit.decoding.loop.batch import Batch
from decodekit.decoding.loop.decoder import Decoder, Group
from decodekit.decoding.loop.text_row import Request, TextRow
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.decoding.prefixes.prefix_store import PrefixStore
from decodekit.decoding.request.budget import token_budget
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result, Update, refused, with_others
from decodekit.errors import CacheFullError, DecodekitError, RequestTimeoutError, TooManyRowsError, is_out_of_memory

FIRST_TOKENS: Final = 64
"""A request is admitted when there is room for its prompt and so many tokens of its text, or all of it."""

PREFIX_SHARE: Final = 8
"""Kept prefixes take up to an eighth of the memory that is free at first, unless the caller says otherwise."""

MAX_IDLE_BATCHES: Final = 4
"""So many batches without a request keep their cache and prefixes."""


@dataclass(eq=False)
class ScheduledRequest:
    """A request that was added, with its samples.

    Args:
        index: number of the request.
        request: what to continue, or why that could not be read.
        decoder, settings: how.
        num_samples: how many texts of it are decoded.
        priority: larger ones first.
        owner: what it belongs to, with others; None for itself alone.
        num_begun: how many samples were admitted.
        groups: those that were admitted and are not done, with rows or waiting for some again.
        number: how many requests and entries came before it.
        num_before: how many requests of its owner did.
        texts, results: of the samples.
        is_over: whether its last update was given out.
    """

    index: int
    request: Request | DecodekitError
    decoder: Decoder[Any]
    settings: Settings
    num_samples: int = 1
    priority: float = 0
    owner: Hashable = None
    num_begun: int = 0
    groups: list[Group] = field(default_factory=list)
    number: int = 0
    num_before: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)
    is_over: bool = False

    def number_of(self, sample: int) -> int:
        """The number that keys the noise of a sample."""
        first = 0 if isinstance(self.request, DecodekitError) else self.request.sequence
        return first * self.num_samples + sample

    def gathered(self, update: Update) -> list[Update]:
        """The updates of the request after one of its samples has an update.

        The text of the first sample is handed out as it grows. The last update comes when all samples have ended; its
        result is that of the first, with those of the others, in their order, in `Result.others`.
        """
        if self.num_samples == 1:
            return [update]
        number = update.sequence % self.num_samples
        self.texts[number] = self.texts.get(number, "") + update.text
        told = [replace(update, result=None)] if number == 0 and (update.text or update.token_ids) else []
        if update.result is not None:
            self.results[number] = update.result
        if len(self.results) == self.num_samples:
            ended = [(i, self.results[i]) for i in range(self.num_samples)]
            whole = with_others(Update(update.index, self.texts[i], one.token_ids, one, i) for i, one in ended)
            told.append(Update(update.index, "", (), whole.result))
        return told


Waiting: TypeAlias = tuple[float, int, int, int, ScheduledRequest, Group | None]
"""What waits, the smallest first: negative priority, the number of the text among those of its owner, numbers of
request and entry; a group, if it had rows."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts of a scheduler: of the past and of the moment.

    Args:
        running, waiting: requests that were admitted, and that were not.
        cached_tokens: in the rows of requests that run.
        prefix_tokens, prefix_bytes: that are kept for later requests.
        prefix_hits: how often a row began with tokens that another one had read.
        tokens_read, tokens_reused: of prompts.
        preemptions: how often a request had to leave its row for want of memory.
        finished: requests by the reason why they ended; "cancelled" and "timeout" are counted apart from "error".
    """

    running: int = 0
    waiting: int = 0
    cached_tokens: int = 0
    prefix_tokens: int = 0
    prefix_bytes: int = 0
    prefix_hits: int = 0
    tokens_read: int = 0
    tokens_reused: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """Decodes requests that may be added and cancelled between any two steps.

    Args:
        batch_size: most rows of a batch; a search with several rows for a request has fewer requests at a time, but
            never less than one.
        is_per_request: whether `batch_size` counts requests in place of rows.
        cache_tokens: most tokens in the rows of all requests; None for what memory holds.
        prefix_bytes: most bytes of kept prefixes of a batch; None for a share of the free memory.
        keeps_texts: whether the prompt and text of a request are kept for later ones.
        max_owned: most rows of a batch for the texts of an owner while others wait, searches aside; None for any
            number, and then owners are not looked at.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        is_per_request: bool = False,
        max_owned: int | None = None,
        cache_tokens: int | None = None,
        prefix_bytes: int | None = None,
        keeps_texts: bool = False,
    ) -> None:
        self._batch_size, self._is_per_request, self._max_owned = batch_size, is_per_request, max_owned
        self._cache_tokens, self._prefix_bytes = cache_tokens, prefix_bytes
        self._keeps_texts = keeps_texts
        self._batches: dict[int, Batch[Any]] = {}  # by the identity of the decoder; the one used last comes last
        self._waiting: dict[int, list[Waiting]] = {}
        self._requests: dict[int, ScheduledRequest] = {}
        self._request_of: dict[int, ScheduledRequest] = {}  # by the identity of the group
        self._deadlines: list[tuple[float, int, ScheduledRequest]] = []
        self._numbers = count()
        self._finished: Counter[str] = Counter()
        self._owners: dict[
            Hashable, list[int]
        ] = {}  # how many requests were added, and how many of them have not ended
        self._counts: Counter[str] = Counter()  # of all batches, by their names in `SchedulerStats`
        self.num_waiting = 0
        """Requests of which no sample was admitted."""

    @property
    def is_idle(self) -> bool:
        """Whether all requests have ended."""
        return not self._requests

    def in_rows(self) -> list[int]:
        """The requests that have rows, or had; any thread may ask."""
        return [scheduled.index for scheduled in list(self._requests.values()) if scheduled.groups]

    def num_free(self, decoder: Decoder[Any]) -> int:
        """The number of further groups of a decoder that would be admitted now."""
        batch = self._batches.get(id(decoder))
        return (self._groups_of(decoder) if batch is None else batch.num_free) - self._num_queued(decoder)

    def _num_queued(self, decoder: Decoder[Any]) -> int:
        """Groups of a decoder that wait."""
        return sum(
            1 if group is not None else scheduled.num_samples - scheduled.num_begun
            for *_, scheduled, group in self._waiting.get(id(decoder), ())
        )

    def _groups_of(self, decoder: Decoder[Any]) -> int:
        return self._batch_size if self._is_per_request else max(1, self._batch_size // decoder.num_rows)

    def add(self, scheduled: ScheduledRequest) -> None:
        """Let a request wait for its rows.

        Raises:
            ValueError: a request with this index is there already.
        """
        if scheduled.index in self._requests:
            raise ValueError(f"there is a request {scheduled.index} already")
        self._requests[scheduled.index] = scheduled
        self.num_waiting += 1
        scheduled.number = next(self._numbers)
        if self._max_owned is not None:
            if scheduled.owner is None and scheduled.num_samples > 1:
                scheduled.owner = "samples of", scheduled.index
            if scheduled.owner is not None:
                counts = self._owners.setdefault(scheduled.owner, [0, 0])
                scheduled.num_before = counts[0]
                counts[:] = counts[0] + 1, counts[1] + 1
        self._push(scheduled, None)
        deadline = None if isinstance(scheduled.request, DecodekitError) else scheduled.request.deadline
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), scheduled))

    def _push(self, scheduled: ScheduledRequest, group: Group | None) -> None:
        place = 0
        if scheduled.owner is not None:
            sample = scheduled.num_begun if group is None else group.sequence.request.sequence - scheduled.number_of(0)
            place = scheduled.num_before + sample
        entry = (-scheduled.priority, place, scheduled.number, next(self._numbers), scheduled, group)
        heapq.heappush(self._waiting.setdefault(id(scheduled.decoder), []), entry)

    def cancel(self, index: int, error: DecodekitError) -> list[Update]:
        """End a request with an error; its last update, or nothing if it is over."""
        scheduled = self._requests.get(index)
        return [] if scheduled is None else self._interrupt(scheduled, error)

    def _interrupt(self, scheduled: ScheduledRequest, error: DecodekitError) -> list[Update]:
        updates: list[Update] = []
        for group in list(scheduled.groups):
            batch = self._batches.get(id(scheduled.decoder))
            if group.rows and batch is not None:
                update = batch.fail(group, error)
            else:
                scheduled.decoder.fail(group, error)
                update = scheduled.decoder.update(group)
            updates += self._handed_out(scheduled, group, update)
        while scheduled.num_begun < scheduled.num_samples:
            updates += self._refuse(scheduled, error)
        waiting = self._waiting.get(id(scheduled.decoder))
        if waiting and any(entry[-2] is scheduled for entry in waiting):
            waiting[:] = [entry for entry in waiting if entry[-2] is not scheduled]
            heapq.heapify(waiting)
        return updates

    def _refuse(self, scheduled: ScheduledRequest, error: DecodekitError) -> list[Update]:
        """The answer of the next sample of a request that cannot start."""
        update = refused(scheduled.index, scheduled.number_of(scheduled.num_begun), scheduled.request, error)
        self._count_begun(scheduled)
        return self._handed_out(scheduled, None, update)

    def _handed_out(self, scheduled: ScheduledRequest, group: Group | None, update: Update | None) -> list[Update]:
        """The update to hand out for a sample; a sample that has ended leaves its request."""
        if update is None:
            return []
        if update.result is not None and group is not None:
            scheduled.groups.remove(group)
            self._request_of.pop(id(group), None)
        updates = scheduled.gathered(update)
        for one in updates:
            if one.result is not None:
                self._finish(scheduled, one)
        return updates

    def _finish(self, scheduled: ScheduledRequest, update: Update) -> None:
        scheduled.is_over = True
        del self._requests[scheduled.index]
        if scheduled.owner in self._owners:
            self._owners[scheduled.owner][1] -= 1
            if not self._owners[scheduled.owner][1]:
                del self._owners[scheduled.owner]
        result = update.result
        assert result is not None
        code = getattr(result.error, "code", None)
        self._finished[{"DK711": "cancelled", "DK712": "timeout"}.get(str(code), result.finish_reason)] += 1

    @decoding()
    def step(self, *, expects_more: bool = True) -> list[Update]:
        """Admit what there is room for, and bring every batch on by a step; what is new.

        Args:
            expects_more: whether more requests may come; if not, caches are no larger than what waits.
        """
        updates = self._expire()
        self._make_way()
        updates += self._admit(expects_more)
        self._keep_budget()
        for batch in list(self._batches.values()):
            if not batch.reading and not batch.running:
                continue
            for group, update in batch.step():
                updates += self._handed_out(self._requests[update.index], group, update)
        self._drop_idle_batches()
        return updates

    def _expire(self) -> list[Update]:
        """End the requests whose time is over."""
        updates: list[Update] = []
        while self._deadlines and (self._deadlines[0][2].is_over or self._deadlines[0][0] <= time.monotonic()):
            _, _, scheduled = heapq.heappop(self._deadlines)
            if not scheduled.is_over:
                updates += self._interrupt(scheduled, overdue(f"request {scheduled.index}"))
        return updates

    def _make_way(self) -> None:
        """Let owners of more rows than they may have leave some to those that wait and have fewer."""
        most = self._max_owned
        if most is None:
            return
        for key, waiting in self._waiting.items():
            batch = self._batches.get(key)
            if batch is None or not waiting or batch.decoder.num_rows > 1:
                continue
            held, due = self._owned(batch.groups), list[float]()
            if max(held.values(), default=0) <= most:
                continue
            taken = Counter(held)
            for priority, *_, scheduled, _ in sorted(waiting, key=lambda entry: entry[:4]):
                if scheduled.owner is None or taken[scheduled.owner] < most:
                    due.append(-priority)
                    taken[scheduled.owner] += 1
            for priority in due[batch.num_free :]:
                owner = max(held, key=lambda one: held[one])
                owned = [
                    group
                    for group in batch.groups
                    for scheduled in [self._request_of[id(group)]]
                    if scheduled.owner == owner and scheduled.priority <= priority
                ]
                if held[owner] <= most or not owned:
                    break
                batch.preempt(max(owned, key=lambda group: group.number), is_kept=True)
                held[owner] -= 1

    def _owned(self, groups: Iterable[Group]) -> Counter[Hashable]:
        """The number of groups, of some, that each owner has."""
        owners = (self._request_of[id(group)].owner for group in groups)
        return Counter(owner for owner in owners if owner is not None)

    def _head(self, waiting: list[Waiting], held: Counter[Hashable] | None) -> Waiting:
        """The next of those that wait: the first, unless its owner has its rows, and another one has not."""
        first, most = waiting[0], self._max_owned
        if most is None or held is None or held[first[-2].owner] < most:
            return first
        others = (entry for entry in waiting if entry[0] == first[0] and held[entry[-2].owner] < most)
        return min(others, key=lambda entry: entry[:4], default=first)

    def _admit(self, expects_more: bool) -> list[Update]:
        """Begin requests as long as there is room; those that need no model are answered at once."""
        updates: list[Update] = []
        held = (
            None
            if self._max_owned is None
            else self._owned(g for batch in self._batches.values() for g in batch.groups)
        )
        admitted: dict[int, list[Group]] = {}
        num_answers: Counter[int] = Counter()
        num_used = None if self._cache_tokens is None else sum(batch.num_cached for batch in self._batches.values())
        while True:
            heads = [
                (self._head(waiting, held), key)
                for key, waiting in self._waiting.items()
                if waiting
                and self._batch_of(waiting[0][-2].decoder).num_free > len(admitted.get(key, ())) + num_answers[key]
            ]
            if not heads:
                break
            head, key = min(heads, key=lambda one: one[0][:4])
            *_, scheduled, group = head
            if num_used is not None:
                assert self._cache_tokens is not None
                least, needed = self._needed(scheduled, group)
                if least > self._cache_tokens:
                    _take(self._waiting[key], head)
                    cause = f"the request needs {least:,} tokens of the cache to begin with"
                    cause += f", and there are {self._cache_tokens:,}"
                    hint = "a shorter prompt, or a larger cache_tokens"
                    fault = CacheFullError(cause, at=f"request {scheduled.index}", hint=hint)
                    updates += self._interrupt(scheduled, fault)
                    continue
                if num_used and num_used + needed > self._cache_tokens:
                    break  # who waits for room is not overtaken
                num_used += needed
            _take(self._waiting[key], head)
            if group is None:
                group, answers = self._begin(scheduled)
                updates += answers
                if scheduled.num_begun < scheduled.num_samples and not scheduled.is_over:
                    self._push(scheduled, None)
            if group is None:
                num_answers[key] += 1
            else:
                admitted.setdefault(key, []).append(group)
                if held is not None and scheduled.owner is not None:
                    held[scheduled.owner] += 1
        for key, groups in admitted.items():
            updates += self._place(self._batches[key], groups, expects_more)
        return updates

    def _needed(self, scheduled: ScheduledRequest, group: Group | None) -> tuple[int, int]:
        """Tokens that a request needs to go on at all, and those that there must be room for, to admit it."""
        if isinstance(scheduled.request, DecodekitError):
            return 0, 0
        length = len(scheduled.request.prompt) if group is None else group.sequence.length
        num_left = scheduled.settings.max_new_tokens - (0 if group is None else len(group.sequence.token_ids))
        num_rows = scheduled.decoder.num_rows
        return num_rows * (length + 1), num_rows * (length + min(num_left, FIRST_TOKENS))

    def _begin(self, scheduled: ScheduledRequest) -> tuple[Group | None, list[Update]]:
        """Start the next sample of a request; or its answer, if it needs no rows."""
        request = scheduled.request
        try:
            if isinstance(request, DecodekitError):
                raise request
            number = scheduled.number_of(scheduled.num_begun)
            request = replace(request, sequence=number) if number != request.sequence else request
            budget = token_budget(scheduled.index, request, scheduled.decoder.model, scheduled.settings)
            sequence = TextRow(scheduled.index, request, budget, scheduled.settings)
            matcher = sequence.matcher
            if matcher is not None and matcher.is_accepting and not matcher.can_continue:
                sequence.finish("complete")  # the empty text is the only one
            group = scheduled.decoder.begin(sequence)
        except DecodekitError as error:
            return None, self._refuse(scheduled, error)
        except Exception as error:
            return None, self._refuse(scheduled, fault_of(error, "decoding", at=f"prompt {scheduled.index}"))
        self._count_begun(scheduled)
        scheduled.groups.append(group)
        update = scheduled.decoder.update(group) if group.is_done else None
        if update is not None:
            return None, self._handed_out(scheduled, group, update)
        self._request_of[id(group)] = scheduled
        return group, []

    def _count_begun(self, scheduled: ScheduledRequest) -> None:
        self.num_waiting -= scheduled.num_begun == 0
        scheduled.num_begun += 1

    def _place(self, batch: Batch[Any], groups: list[Group], expects_more: bool) -> list[Update]:
        """Give groups their rows; where there is no memory for the first, it fails and the others wait."""
        try:
            batch.place(groups, batch.num_groups if expects_more else len(groups) + self._num_queued(batch.decoder))
        except Exception as error:
            is_short = isinstance(error, TooManyRowsError) or is_out_of_memory(error)
            if not is_short and not isinstance(error, DecodekitError):
                raise
            first, *others = [group for group in groups if not group.rows and group not in batch.groups]
            for group in others:
                self._push(self._request_of[id(group)], group)
            scheduled = self._request_of[id(first)]
            batch.decoder.fail(first, fault_of(error, "decoding", at=f"prompt {scheduled.index}"))
            return self._handed_out(scheduled, first, batch.decoder.update(first))
        return []

    def _batch_of(self, decoder: Decoder[Any]) -> Batch[Any]:
        batch = self._batches.pop(id(decoder), None)
        if batch is None:

            def most_bytes() -> int:
                return (memory.free_for(decoder.model) or 1 << 30) // PREFIX_SHARE

            store = PrefixStore(most_bytes if self._prefix_bytes is None else self._prefix_bytes)
            batch = Batch(decoder, self._groups_of(decoder), store, self._keeps_texts, self._again, self._counts)
        self._batches[id(decoder)] = batch
        return batch

    def _again(self, before: Group, group: Group) -> None:
        """A group had to leave its rows; what goes on in its place waits for some, before those that came later."""
        scheduled = self._request_of.pop(id(before))
        scheduled.groups[scheduled.groups.index(before)] = group
        self._request_of[id(group)] = scheduled
        self._push(scheduled, group)

    def _keep_budget(self) -> None:
        """Let the youngest groups leave their rows while all together have more tokens than there may be."""
        while self._cache_tokens is not None:
            batches = [batch for batch in self._batches.values() if batch.groups]
            num_groups = sum(len(batch.groups) for batch in batches)
            num_next = sum(batch.decoder.num_rows * len(batch.groups) for batch in batches)  # a token more for each
            if sum(batch.num_cached for batch in batches) + num_next <= self._cache_tokens:
                return
            youngest = max(
                (
                    (self._request_of[id(group)].number, group.number, batch)
                    for batch in batches
                    for group in batch.groups
                ),
                key=lambda one: one[:2],
            )
            batch = youngest[2]
            [group] = [group for group in batch.groups if group.number == youngest[1]]
            if num_groups > 1:
                batch.preempt(group)
                continue
            scheduled = self._request_of[id(group)]
            cause = f"the request alone has more tokens than the {self._cache_tokens:,} that the cache may have"
            batch.decoder.fail(
                group, CacheFullError(cause, at=f"request {scheduled.index}", hint="a larger cache_tokens")
            )
            return

    def _drop_idle_batches(self) -> None:
        """Searches have a batch as long as they run; of single texts a few batches keep what was read."""
        idle = [batch for key, batch in self._batches.items() if not batch.groups and not self._waiting.get(key)]
        kept = [batch for batch in idle if batch.decoder.num_rows == 1]
        for batch in idle:
            if batch.decoder.num_rows > 1 or batch in kept[:-MAX_IDLE_BATCHES]:
                self._drop(batch)

    def _drop(self, batch: Batch[Any]) -> None:
        batch.close()
        del self._batches[id(batch.decoder)]
        self._waiting.pop(id(batch.decoder), None)

    def stats(self) -> SchedulerStats:
        """The counts so far."""
        batches, counts = list(self._batches.values()), self._counts
        return SchedulerStats(
            running=len(self._requests) - self.num_waiting,
            waiting=self.num_waiting,
            cached_tokens=sum(batch.num_cached for batch in batches),
            prefix_tokens=sum(batch.store.num_tokens for batch in batches),
            prefix_bytes=sum(batch.store.num_bytes for batch in batches),
            prefix_hits=counts["prefix_hits"],
            tokens_read=counts["tokens_read"],
            tokens_reused=counts["tokens_reused"],
            preemptions=counts["preemptions"],
            finished=dict(self._finished),
        )

    def close(self) -> None:
        """Drop all caches, prefixes and requests."""
        for batch in list(self._batches.values()):
            self._drop(batch)
        self._waiting.clear()
        self._requests.clear()
        self._request_of.clear()
        self._deadlines.clear()


def overdue(at: str) -> RequestTimeoutError:
    """The error of a request whose time is over."""
    hint = "a longer timeout, a smaller max_new_tokens, or fewer requests"
    return RequestTimeoutError("the time of the request is over", at=at, hint=hint)


def _take(waiting: list[Waiting], entry: Waiting) -> None:
    """Take one of those that wait, mostly the first, out of their heap."""
    if entry is waiting[0]:
        heapq.heappop(waiting)
        return
    waiting.remove(entry)
    heapq.heapify(waiting)


def run(
    decoder: Decoder[Any],
    settings: Settings,
    num_groups: int,
    requests: Iterable[Request | DecodekitError],
    num_samples: int = 1,
) -> Iterator[Update]:
    """Decode a stream of requests of one kind; updates as they come, each request's own in order.

    Requests are taken from their stream only when there are rows for them; a blocking request stream blocks decoding. A
    request that is an error already (its prompt could not be read), or that does not fit the model, is answered with a
    result that carries the error.

    Args:
        num_groups: most groups of rows at a time.
        num_samples: how often a request is decoded: samples of request s have the numbers from s num_samples on, for
            their noise.
    """
    scheduler = Scheduler(num_groups, is_per_request=True)
    source, is_exhausted = enumerate(requests), False
    try:
        while True:
            num_free = 0 if is_exhausted else scheduler.num_free(decoder)
            while num_free > 0:
                entry = next(source, None)
                if entry is None:
                    is_exhausted = True
                    break
                scheduler.add(ScheduledRequest(*entry, decoder, settings, num_samples))
                num_free -= num_samples
            yield from scheduler.step(expects_more=not is_exhausted)
            if is_exhausted and scheduler.is_idle:
                return
    finally:
        scheduler.close()
