"""Rows of a cache that begin with the same tokens: these are read once.

    request           its tokens     what is found                              what it reads
    A  "rules + a"    400 + 150      nothing                                    550
    B  "rules + b"    400 + 120      A is about to read 400 of them: B waits    120, once A has read its own
    C  "rules + c"    400 + 130      the 400 that were kept for B               130
    D  "A's text, d"  700 + 20       the row that A has left: 700 tokens        20, in the row of A

A copy holds what the row would have read, so no text depends on it (but for the last bits of logits, see
`decoding.loop.step`). Shared is at most all but the last token of what a row has to read: the last one gives its
logits.

Caches that have no `keep` and `begin_with`, or treat a prompt in a way of their own (guidance), and models that cannot
go back share whole prompts only, as several samples of one have them: their rows are copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

import torch

from decodekit.decoding.loop.decoder import CacheRows, Group
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.prefixes.prefix_store import PrefixStore, num_common
from decodekit.errors import is_out_of_memory
from decodekit.models.causal_lm import Cache, CausalLM, Prefix, SharesPrefixes, host_lengths
from decodekit.models.wrappers.contrast_model import KnowsPrompts

MIN_SHARED: Final = 32
"""Fewer tokens are not worth a wait or a copy: about so many are read in the time of a further pass."""


class LeftRow(NamedTuple):
    """A row without a group: what it has read, of which the prompt of its request was the first part."""

    tokens: list[int]
    request: Request


class SharedSource(NamedTuple):
    """The source of a row's first tokens: a row, a prefix, or a group that will have read them; or none."""

    num_tokens: int = 0
    row: int | None = None
    prefix: Prefix | None = None
    prefix_owner: Group | None = None


_NOTHING: Final = SharedSource()


class SharedRows(CacheRows):
    """The rows of a batch, with the prefixes that they begin with.

    Args:
        model: of the cache.
        cache: its rows.
        store: prefixes for later requests.
        keeps_texts: whether what a request has read is kept when its row is used again.
        can_begin_late: whether rows may begin with what others have read; see `Decoder`.
        counts: is told what is reused; see `SchedulerStats`.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: Cache,
        store: PrefixStore,
        counts: Counter[str],
        *,
        keeps_texts: bool,
        can_begin_late: bool,
    ) -> None:
        super().__init__(cache)
        self._store, self._counts, self._keeps_texts = store, counts, keeps_texts
        self._can_rollback, self._can_begin_late = model.can_rollback, can_begin_late
        self._is_any = isinstance(cache, SharesPrefixes) and model.can_rollback and not isinstance(cache, KnowsPrompts)
        self._left: dict[int, LeftRow] = {}  # the one that was left first comes first
        self._left_by_head: dict[Hashable, set[int]] = defaultdict(set)  # see `_head`

    def begin(self, group: Group, num_rows: int, free: list[int], live: Sequence[Group]) -> None:
        """Give a new group its rows, empty or with what is known already; or the owner of its prefix: then it waits.

        Args:
            free: rows without a group; those that are taken leave the list.
            live: the groups that have rows.
        """
        tokens = group.sequence.pending
        own = self._left_row(group, tokens, free) if num_rows == 1 else _NOTHING
        source = self._best(group, tokens, own, live)
        if source is own and own.row is not None:
            free.remove(own.row)
            group.rows = [own.row]
            self._take_left(own.row)
            self._cut(own.row, own.num_tokens)
            self._skip(group, own.num_tokens)
            return
        group.rows = sorted(self._take_row(free) for _ in range(num_rows))
        begin_rows(self.cache, dict.fromkeys(group.rows, group.sequence.request))
        if source.prefix is not None:
            self._begin_with(group, source.prefix, source.num_tokens)
        elif source.prefix_owner is not None:
            self._follow(group, source)

    def _begin_with(self, group: Group, prefix: Prefix, num_tokens: int) -> None:
        """Let a row begin with a prefix; without memory for it, it reads by itself."""
        num_tokens = min(num_tokens, prefix.num_tokens)
        try:
            if num_tokens:
                cast("SharesPrefixes", self.cache).begin_with(group.rows[0], prefix, num_tokens)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            num_tokens = 0
        self._skip(group, num_tokens)

    def _kept(self, row: int, num_tokens: int) -> Prefix | None:
        """The first tokens of a row; None without memory for them."""
        try:
            return cast("SharesPrefixes", self.cache).keep(row, num_tokens)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _take_row(self, free: list[int]) -> int:
        """A row off the free ones: one that nobody has used, or the one that was left first."""
        row = next((row for row in reversed(free) if row not in self._left), None)
        if row is None:
            row = next(one for one in self._left if one in free)
            self._keep_left(row)
        free.remove(row)
        return row

    def _keep_left(self, row: int) -> None:
        """Forget what a row has read, or keep it for later requests: for the next turn of a conversation."""
        left = self._take_left(row)
        if not self._keeps_texts or not self._is_any or len(left.tokens) < MIN_SHARED:
            return
        known, num_tokens = self._store.match(left.tokens, left.request.salt)
        if known is None or num_tokens < len(left.tokens):
            prefix = self._kept(row, len(left.tokens))
            if prefix is not None:
                self._add(left.tokens, prefix, left.request.salt)

    def _take_left(self, row: int) -> LeftRow:
        left = self._left.pop(row)
        head = _head(left.tokens, left.request)
        self._left_by_head[head].discard(row)
        if not self._left_by_head[head]:
            del self._left_by_head[head]
        return left

    def _add(self, tokens: Sequence[int], prefix: Prefix, salt: Hashable) -> None:
        if not self._store.add(tokens, prefix, salt):
            prefix.release()

    def keep_all(self) -> None:
        """Keep what all rows without a group have read, before the cache goes."""
        for row in list(self._left):
            self._keep_left(row)

    def leave(self, group: Group, *, is_sound: bool) -> None:
        """A group leaves its rows; what the first has read may be read by others, if nothing went wrong there."""
        sequence = group.sequence
        if is_sound and self._can_begin_late and self._can_rollback and len(group.rows) == 1:
            read = [*sequence.request.prompt, *sequence.token_ids][: group.num_cached]
            if len(read) >= MIN_SHARED:  # fewer are of no use to anybody
                request = replace(sequence.request, matcher=None)  # which would keep its constraint
                self._left[group.rows[0]] = LeftRow(read, request)
                self._left_by_head[_head(read, sequence.request)].add(group.rows[0])

    def make_room(self, row: int) -> None:
        """A row without a group is about to be used."""
        if row in self._left:
            self._keep_left(row)

    def drop_all(self, free: Sequence[int]) -> bool:
        """Forget all that no group needs, because memory is short; whether there was anything.

        Args:
            free: the rows without a group: those of short texts hold what is of no use to others.
        """
        lengths = host_lengths(self.cache)
        had_any = any(lengths[row] for row in free) or len(self._store) > 0
        self.cache.reset([*free])
        self._left.clear()
        self._left_by_head.clear()
        self._store.clear()
        return had_any

    def _left_row(self, group: Group, tokens: list[int], free: Sequence[int]) -> SharedSource:
        """The row without a group that has most of some tokens."""
        best = _NOTHING
        for row in sorted(self._left_by_head.get(_head(tokens, group.sequence.request), ())):
            left = self._left[row]
            num_tokens = self._num_shared(group, tokens, left.tokens, left.request)
            if num_tokens > best.num_tokens and row in free:
                best = SharedSource(min(num_tokens, len(left.tokens)), row)
        return best

    def _best(self, group: Group, tokens: list[int], best: SharedSource, live: Sequence[Group]) -> SharedSource:
        """The source of most of some tokens; of equal ones that which is at hand first."""
        if not self._can_begin_late or len(tokens) <= MIN_SHARED:
            return _NOTHING
        if self._is_any:
            prefix, num_tokens = self._store.match(tokens[:-1], group.sequence.request.salt)
            if num_tokens > max(best.num_tokens, MIN_SHARED - 1):
                best = SharedSource(num_tokens, prefix=prefix)
        for other in live:
            if other is group or other.number >= group.number or not other.rows:
                continue
            sequence = other.sequence
            prompt = cast("list[int]", sequence.request.prompt)
            num_tokens = self._num_shared(group, tokens, prompt, sequence.request, sequence.token_ids)
            if num_tokens > best.num_tokens and self._can_lead(other, num_tokens):
                best = SharedSource(num_tokens, prefix_owner=other)
        return best if best.num_tokens >= MIN_SHARED else _NOTHING

    def _can_lead(self, other: Group, num_tokens: int) -> bool:
        """Whether a group has read, or is going to read, some first tokens so that others can begin with them."""
        if self._can_rollback:
            return True
        return other.num_cached < num_tokens or bool(other.withheld)  # it stops there, see `_follow`

    def _num_shared(
        self, group: Group, tokens: list[int], other: Sequence[int], owner: Request, text: Sequence[int] = ()
    ) -> int:
        """The number of first tokens that a group can take over from those that another's request reads."""
        request = group.sequence.request
        if request.salt != owner.salt:
            return 0
        if not self._is_any:
            is_same = len(request.prompt) == len(owner.prompt) and [*request.prompt] == [*other[: len(owner.prompt)]]
            is_same &= [*request.negative_prompt] == [*owner.negative_prompt]
            return len(request.prompt) - 1 if is_same else 0
        other = other if isinstance(other, list) else [*other]
        if tokens[:MIN_SHARED] != other[:MIN_SHARED] and len(other) >= MIN_SHARED:
            return 0
        num_tokens = num_common(tokens, other)
        if num_tokens == len(other) and text:
            num_tokens += num_common(tokens[num_tokens:], [*text])
        return min(num_tokens, len(tokens) - 1)

    def _follow(self, group: Group, source: SharedSource) -> None:
        """Wait for another group. Where it cannot be cut back to that, it stops there until it is copied."""
        prefix_owner = source.prefix_owner
        assert prefix_owner is not None
        group.prefix_owner, group.num_shared = prefix_owner, source.num_tokens
        if not self._can_rollback and not prefix_owner.withheld:
            withhold(prefix_owner)

    def start(self, reading: Sequence[Group], live: Sequence[Group]) -> None:
        """Let groups begin with what was read for them by now; those without an owner of a prefix look for one."""
        due: dict[int, list[Group]] = defaultdict(list)
        for group in reading:
            if group.prefix_owner is None:
                continue
            if group.prefix_owner.is_done or not group.prefix_owner.rows:
                group.prefix_owner = None
                self._look_again(group, live)
            if group.prefix_owner is not None and group.prefix_owner.num_cached >= group.num_shared:
                due[group.prefix_owner.rows[0]].append(group)
        for row, groups in due.items():
            prefix_owner = groups[0].prefix_owner
            assert prefix_owner is not None
            known = [*prefix_owner.sequence.request.prompt, *prefix_owner.sequence.token_ids]
            self._hand_over(row, known, prefix_owner.sequence.request.salt, groups)

    def _look_again(self, group: Group, live: Sequence[Group]) -> None:
        own = self._left_row(group, group.sequence.pending, [*self._left])
        source = self._best(group, group.sequence.pending, own, live)
        if source.row is not None:
            group.num_shared = source.num_tokens
            left = self._left[source.row]
            self._hand_over(source.row, left.tokens, left.request.salt, [group])
        elif source.prefix is not None:
            self._begin_with(group, source.prefix, source.num_tokens)
        elif source.prefix_owner is not None:
            self._follow(group, source)

    def _hand_over(self, row: int, known: list[int], salt: Hashable, groups: list[Group]) -> None:
        """Let the rows of groups of a salt begin with the first tokens of a row, which has read the known ones."""
        if not self._is_any:
            is_copied = self._copied([(row, group.rows[0]) for group in groups])
            for group in groups:
                if not is_copied:
                    group.num_shared = 0
                elif self._can_rollback:
                    self._cut(group.rows[0], group.num_shared)
                self._skip(group, group.num_shared)
            return
        num_tokens = max(group.num_shared for group in groups)
        prefix = self._kept(row, num_tokens)
        for group in groups:
            if prefix is None:
                self._skip(group, 0)
            else:
                self._begin_with(group, prefix, group.num_shared)
        if prefix is not None:
            self._add(known[:num_tokens], prefix, salt)

    def _copied(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Copy rows, see `copy_rows`; whether there was memory for that."""
        try:
            copy_rows(self.cache, pairs)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def _skip(self, group: Group, num_tokens: int) -> None:
        """Note that the first row of a group has its first tokens."""
        group.prefix_owner, group.num_shared = None, 0
        if not num_tokens:
            return
        sequence = group.sequence
        sequence.pending = sequence.pending[num_tokens:]
        num_reused = min(num_tokens, len(sequence.request.prompt))
        sequence.num_reused = max(sequence.num_reused, num_reused)
        self._counts["tokens_reused"] += num_reused
        self._counts["prefix_hits"] += 1

    def _cut(self, row: int, num_tokens: int) -> None:
        lengths = host_lengths(self.cache)
        lengths[row] = num_tokens
        self.cache.truncate(lengths)


def _head(tokens: list[int], request: Request) -> Hashable:
    """The common beginning of rows that may share."""
    return request.salt, tuple(tokens[:MIN_SHARED])


def withhold(group: Group) -> None:
    """Let a group read all of its prompt but the last token first."""
    sequence = group.sequence
    num_first = max(0, len(sequence.request.prompt) - 1 - group.num_cached)
    group.withheld, sequence.pending = sequence.pending[num_first:], sequence.pending[:num_first]


def copy_rows(cache: Cache, pairs: Iterable[tuple[int, int]]) -> None:
    """Make the second row of each pair what the first was; all are read before one is written."""
    order = list(range(cache.num_rows))
    for source, row in pairs:
        order[row] = source
    if order != list(range(len(order))):
        cache.reorder(torch.tensor(order))


def begin_rows(cache: Cache, requests: Mapping[int, Request]) -> None:
    """Empty rows of a cache for the requests that begin there, by row; it learns their prompts if it asks for them."""
    cache.reset(list(requests))
    if isinstance(cache, KnowsPrompts):
        for row, request in requests.items():
            cache.set_prompt(row, request.prompt, request.negative_prompt)
