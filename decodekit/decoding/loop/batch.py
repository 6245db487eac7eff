"""The batch: the rows of one cache, and the groups of requests in them, all of one kind of search.

One step of a batch, with two rows that decode, a prompt of 5,000 tokens and one of 300:

    start     groups whose prefix_owner has read what they share begin with a copy of it        `prefixes.shared_rows`
    prefill   prompts of similar length together, `PREFILL_TOKENS` in all                 300 of the second, first token
    decode    every group that has read its prompt takes a token or more                  A B D
    leave     groups that are done leave their rows                                       B

The next step reads 2,048 of the long prompt, and so on: between its chunks the others go on. When memory runs out, the
youngest group leaves its rows and comes again later (`Batch.step`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic

import torch

from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.loop.decoder import Decoder, G
from decodekit.decoding.prefixes.prefix_store import PrefixStore
from decodekit.decoding.prefixes.row_memory import free_memory, new_cache
from decodekit.decoding.prefixes.shared_rows import SharedRows, copy_rows, withhold
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.updates import Update
from decodekit.errors import CacheFullError, DecodekitError, TooManyRowsError, is_out_of_memory

PREFILL_TOKENS: Final = 2048
"""Most tokens, padding included, of the prompts that are read between two steps: bounds the activations and the wait of
the rows that decode. Longer prompts are read in chunks."""

FREE_PADDING: Final = 32
"""So many tokens of padding are always worth a pass less."""

CAPACITY_STEP: Final = 64
_FIRST_TEXT: Final = 256
"""A new cache has room for so many tokens of a text; it grows when a row needs more."""


@dataclass(eq=False)
class Batch(Generic[G]):
    """The groups of one decoder.

    Args:
        decoder: what its groups do with their rows.
        num_groups: most groups at a time.
        store: prefixes for later requests; of this batch alone.
        keeps_texts: whether what requests have read is kept for later ones.
        requeue: is told of a group that had to leave its rows, and of the one that goes on in its place.
        counts: is told what is read, and what is reused; see `SchedulerStats`.
    """

    decoder: Decoder[G]
    num_groups: int
    store: PrefixStore
    keeps_texts: bool
    requeue: Callable[[G, G], None]
    counts: Counter[str]
    reading: list[G] = field(default_factory=list)
    running: list[G] = field(default_factory=list)
    rows: SharedRows | None = None
    num_alone: int = 0
    """So many groups are brought on one by one, after a search raised with several."""
    _free: list[int] = field(default_factory=list)
    _most: int = 1 << 31  # groups at a time, since memory ran out
    _is_shrunk: bool = False  # whether the cache lost rows
    _number: int = 0
    _model_state: object = None

    @property
    def groups(self) -> list[G]:
        """All that have rows."""
        return [*self.reading, *self.running]

    @property
    def num_free(self) -> int:
        """The number of further groups that there is room for."""
        num_live = len(self.reading) + len(self.running)
        num_free = min(self.num_groups, self._most) - num_live
        if self.rows is None or (not num_live and self._is_shrunk):
            return num_free
        return min(num_free, len(self._free) // self.decoder.num_rows)

    @property
    def num_cached(self) -> int:
        """Tokens in the rows of all groups."""
        return self.decoder.num_rows * sum(group.num_cached for group in self.groups)

    def place(self, groups: Sequence[G], num_groups: int) -> None:
        """Give new groups their rows; the first ones decide how large the cache is.

        Args:
            num_groups: how many groups a new cache is made for.

        Raises:
            TooManyRowsError: there is no memory for a cache with rows of the first of these groups.
        """
        live = self.groups
        if not live:
            self._look_at_rows(groups)
        rows = self.rows = self.rows or self._new_rows(groups, num_groups)
        rows.start(self.reading, live)
        for group in groups:
            self._number += 1
            group.number = self._number
            if len(self._free) < self.decoder.num_rows:  # the cache has become smaller than it was asked for
                self.requeue(group, group)
                continue
            rows.begin(group, self.decoder.num_rows, self._free, live)
            live.append(group)
            for row, sequence in zip(group.rows, group.sequences, strict=False):
                sequence.row = row
                if sequence.settings.pipeline.needs_history:
                    rows.table = rows.table or TokenTable(rows.cache.num_rows)
                    rows.table.begin(sequence)
            if self.decoder.is_prompt_shared:
                withhold(group)
            self.reading.append(group)

    def _look_at_rows(self, groups: Sequence[G]) -> None:
        """Before the first of some groups: drop a cache that does not fit them, or the model as it is now."""
        if self.decoder.num_rows == 1:
            self._most = 1 << 31
        if not self.keeps_texts and self.rows is None:
            return
        state = getattr(self.decoder.model, "state", None)
        is_other, self._model_state = state != self._model_state, state
        if self.rows is not None and (
            is_other or self._is_shrunk or self.rows.cache.capacity > 8 * self._capacity_for(groups)
        ):
            if not is_other:
                self.rows.keep_all()
            self._drop_rows()
        if is_other:
            self.store.clear()

    def _capacity_for(self, groups: Sequence[G]) -> int:
        longest = max(one.sequence.length + min(one.sequence.max_tokens, _FIRST_TEXT) for one in groups)
        return -(-longest // CAPACITY_STEP) * CAPACITY_STEP

    def _new_rows(self, groups: Sequence[G], num_groups: int) -> SharedRows:
        """A new cache; of fewer rows if there is no memory for all, where requests may wait for one another."""
        decoder = self.decoder
        num_groups = max(len(groups), min(num_groups, self.num_groups, self._most))
        self._is_shrunk = False
        while True:
            num_rows = num_groups * decoder.num_rows
            capacity = self._capacity_for(groups[:num_groups])
            try:
                cache = new_cache(decoder.model, num_rows, capacity, decoder.option or f"batch_size={num_rows}")
                break
            except TooManyRowsError:
                if num_groups == 1:
                    raise
            num_groups, self._is_shrunk = num_groups // 2, True
        self._free = list(range(num_rows))[::-1]
        return SharedRows(
            decoder.model,
            cache,
            self.store,
            self.counts,
            keeps_texts=self.keeps_texts,
            can_begin_late=decoder.can_begin_late,
        )

    def _drop_rows(self) -> None:
        self.rows = None
        self._free = []

    def close(self) -> None:
        """Drop the cache and all prefixes."""
        for group in self.groups:
            group.rows = []
        self.reading, self.running = [], []
        self._drop_rows()
        self.store.clear()

    @torch.inference_mode()
    def step(self) -> list[tuple[G, Update]]:
        """Read a part of what there is of prompts, bring all other groups on, and tell what is new.

        Memory may run out where a cache grows. Then the youngest group leaves its rows, and the step goes on without
        it; its text so far stays, and is read again when there is room. A group that is alone and has no room fails.
        """
        rows = self.rows
        assert rows is not None
        updates: list[tuple[G, Update]] = []
        for groups in self._going_on(rows):
            size = 1 if self.num_alone else len(groups)
            self.num_alone -= bool(self.num_alone)
            for first in range(0, len(groups), size):
                self._guarded(self.decoder.step, groups[first : first + size], rows)
            updates += self._ended(groups)
        return updates + self._ended([group for group in self.groups if group.is_done])

    def _going_on(self, rows: SharedRows) -> Iterator[list[G]]:
        """The groups that take tokens together: those whose prompts are read whole by that, and all that run.

        Before, longer prompts are read in part, up to `PREFILL_TOKENS` in all.
        """
        num_left = PREFILL_TOKENS
        self._start()
        while self.reading and (due := self._due()):
            groups = due[0]
            chunk = PREFILL_TOKENS // len(groups)
            counts = [len(group.sequence.pending) for group in groups]
            num_padded = min(max(counts), chunk) * len(groups)
            if num_left < PREFILL_TOKENS and num_padded > num_left:
                for group in groups:
                    group.is_late = True
                break
            num_left -= num_padded
            self.counts["tokens_read"] += sum(min(count, chunk) for count in counts)
            if max(counts) > chunk or groups[0].withheld:
                self._guarded(self.decoder.read, groups, chunk, rows)
            else:
                for group in groups:
                    self.reading.remove(group)
                self.running += groups
                yield groups
            self._start()
        if self.running:
            self.running.sort(key=lambda group: group.rows[0])  # neighbouring rows are read in place
            yield [*self.running]

    def _due(self) -> list[list[G]]:
        """The groups that read now: similar lengths together, shorter ones first, but those first that had to wait."""
        due = [
            group
            for group in self.reading
            if group.prefix_owner is None and group.sequence.pending and not group.is_done
        ]
        found: list[list[G]] = []
        for is_withheld in (False, True):
            some = [group for group in due if bool(group.withheld) == is_withheld]
            lengths = [len(group.sequence.pending) for group in some]
            found += [[some[i] for i in indices] for indices in similar_lengths(lengths, PREFILL_TOKENS)]
        return sorted(found, key=lambda groups: not any(group.is_late for group in groups))

    def _start(self) -> None:
        """Let groups begin that waited for others; those with a token left to read go on with the rows that decode."""
        if not self.reading or self.rows is None:
            return
        self.rows.start(self.reading, self.groups)
        for group in list(self.reading):
            num_left = len(group.sequence.pending)
            if group.prefix_owner is not None or num_left > 1 or not group.rows:
                continue
            if group.withheld:
                if num_left or any(one.prefix_owner is group for one in self.reading):
                    continue
                self._guarded(self._release, [group])
                if not group.rows:
                    continue
            elif not self.running:
                continue  # a pass of its own, which is the first of the text
            self.reading.remove(group)
            self.running.append(group)

    def _release(self, groups: Sequence[G]) -> None:
        """Go on with the last token of a prompt; where several rows begin with it, they get a copy of the rest."""
        [group] = groups
        assert self.rows is not None
        if self.decoder.is_prompt_shared:  # first, since there may be no memory for it
            copy_rows(self.rows.cache, [(group.rows[0], row) for row in group.rows[1:]])
            for sequence in group.sequences[1:]:
                sequence.pending = [*group.withheld]
        group.sequence.pending, group.withheld = group.withheld, []

    def _check_growth(self, groups: Sequence[G]) -> None:
        """Refuse to let a rectangle grow beyond the memory that is free: the old and the new one live at a time.

        Raises:
            CacheFullError: before anything has changed.
        """
        assert self.rows is not None
        cache: Any = getattr(self.rows.cache, "kv", self.rows.cache)  # a recurrent state does not grow
        longest = max(group.num_cached + len(group.sequence.pending) for group in groups)
        num_bytes: object = None if longest <= cache.capacity else getattr(cache, "num_bytes", None)
        if not isinstance(num_bytes, int):
            return
        needed = num_bytes * max(2, longest / cache.capacity)
        free = free_memory(self.decoder.model.device)
        if free is not None and needed > free:
            cause = (
                f"the cache would need {needed / 1e9:,.2f} GB for rows of {longest:,} tokens, and {free / 1e9:,.2f} GB"
            )
            raise CacheFullError(f"{cause} are free", hint="a smaller batch_size, or shorter prompts")

    def _ended(self, groups: Sequence[G]) -> list[tuple[G, Update]]:
        """The updates of groups; those that are done leave their rows."""
        updates = []
        for group in groups:
            if not group.rows:
                continue
            update = self.decoder.update(group)
            if update is not None:
                updates.append((group, update))
            if group.is_done:
                self.leave(group)
                self._most += self.decoder.num_rows == 1
        return updates

    def _guarded(self, act: Callable[..., object], groups: Sequence[G], *rest: object) -> None:
        """Act on groups, with fewer of them where memory runs out; a fault of a group ends it."""
        while some := [group for group in groups if group.rows and not group.is_done]:
            try:
                self._check_growth(some)
                act(some, *rest)
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    self._isolate(error, [group for group in some if group.rows and not group.is_done])
                    return
                cause = f"{type(error).__name__}: {str(error)[:120]}"
            self._make_room(cause)  # only now: what the pass has computed lives as long as its exception

    def _isolate(self, error: Exception, groups: Sequence[G]) -> None:
        """End a group that raised; several are brought on one by one, for it is not known which of them it was."""
        if len(groups) == 1:
            self.decoder.fail(groups[0], fault_of(error, "decoding", at=f"prompt {groups[0].sequence.index}"))
            return
        self.num_alone = max(self.num_alone, 1 + max(one.sequence.max_tokens for one in groups))
        for group in groups:
            self.preempt(group)

    def _make_room(self, cause: str) -> None:
        """Forget what is only kept; or let the youngest group leave its rows, and the cache have no more rows than the
        others need. A group that is alone fails.

        Args:
            cause: what told that memory ran out.
        """
        assert self.rows is not None
        live = [group for group in self.groups if not group.is_done]
        *others, youngest = sorted(live, key=lambda group: group.number)
        if self.decoder.recover(live, self.rows):
            if self.rows.drop_all(self._free):
                return
        elif others:  # a search that was broken off begins anew
            for group in others:
                self.preempt(group)
        if not others:
            cause = f"there is no memory for what this request has to read, though it is alone: {cause}"
            hint = "a shorter prompt, a smaller max_new_tokens, or a smaller dtype"
            self.decoder.fail(youngest, CacheFullError(cause, at=f"prompt {youngest.sequence.index}", hint=hint))
            return
        self._most = len(others)
        self.preempt(youngest)
        self.rows.cache.reset(list(self._free))
        with contextlib.suppress(RuntimeError, MemoryError):
            self._shrink(self.rows)

    def _shrink(self, rows: SharedRows) -> None:
        """Let a cache that is a rectangle have no more rows than its groups use: then it can grow in length."""
        groups = sorted(self.groups, key=lambda group: group.rows[0])
        if not groups or not getattr(rows.cache, "copies_scattered_rows", True):
            return
        rows.drop_all(self._free)
        order = [row for group in groups for row in group.rows]
        rows.cache.reorder(torch.tensor(order))
        if rows.table is not None:
            rows.table.reorder(order)
        new = {row: place for place, row in enumerate(order)}
        for group in groups:
            for sequence in self.decoder.sequences(group):
                sequence.row = new.get(sequence.row, sequence.row)
            group.rows = [new[row] for row in group.rows]
        self._free, self._is_shrunk = [], True

    def preempt(self, group: G, *, is_kept: bool = False) -> None:
        """Take the rows of a group; it comes again later, and its text is the same.

        Args:
            is_kept: whether what it has read may be kept, so that it need not be read again.
        """
        self.counts["preemptions"] += 1
        self.leave(group, is_sound=None if is_kept else False)
        self.requeue(group, self.decoder.again(group))

    def leave(self, group: G, *, is_sound: bool | None = None) -> None:
        """Take a group off its rows."""
        assert self.rows is not None
        is_sound = group.error is None and group.sequence.error is None if is_sound is None else is_sound
        self.rows.leave(group, is_sound=is_sound)
        self._free += reversed(group.rows)
        group.rows = []
        for groups in (self.reading, self.running):
            if group in groups:
                groups.remove(group)

    def fail(self, group: G, error: DecodekitError) -> Update | None:
        """End a group with an error; its last update."""
        self.decoder.fail(group, error)
        update = self.decoder.update(group)
        self.leave(group, is_sound=False)
        return update


def similar_lengths(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices in groups of similar length, shorter ones first.

    A group has at most `max_tokens` with its padding, and at most a quarter of padding beside its tokens, or
    `FREE_PADDING`: padding costs as much as tokens where arithmetic is the limit (a CPU, long prompts), another pass
    costs more than a little padding where it is not. An index whose length exceeds `max_tokens` is alone.
    """
    group: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = lengths[index] * (len(group) + 1)
        padding = padded - num_tokens - lengths[index]
        if group and (padded > max_tokens or padding > max(FREE_PADDING, (num_tokens + lengths[index]) // 4)):
            yield group
            group, num_tokens = [], 0
        group.append(index)
        num_tokens += lengths[index]
    if group:
        yield group
