"""Single texts, and several samples of a prompt: a row for each text.

Sample i has the text that it has when it is decoded alone with the number i: its noise is keyed by that number, and
nothing else of it knows of the others. The samples of a prompt share the reading of it, as all requests do that begin
with the same tokens (`decoding.prefixes.shared_rows`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from decodekit.decoding.lazy_masks.row_masks import StepMasks
from decodekit.decoding.loop.append import append_forced
from decodekit.decoding.loop.decoder import CacheRows, Decoder, Group
from decodekit.decoding.loop.device_pass import DevicePass
from decodekit.decoding.loop.scheduler import run
from decodekit.decoding.loop.step import DecodingLoop
from decodekit.decoding.loop.text_row import Request, TextRow
from decodekit.decoding.prefixes.row_memory import ROW_TOKENS, new_cache, rows_that_fit
from decodekit.decoding.request.budget import check_budget
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Update
from decodekit.errors import DecodekitError
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.causal_lm import CausalLM
from decodekit.models.runners.paged import WIDTH_BUCKETS, PagedModel, row_bucket

MAX_ROWS: Final = 64
"""Most rows of a cache for samples, unless there are more prompts than that: further samples wait for their turn."""

_MANY_SETTINGS: Final = 64


class Texts(Decoder[Group]):
    """Every text by itself, as `decoding.loop.step` has it; each with settings of its own."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__(model)
        self._masks: dict[object, StepMasks] = {}  # by `Settings.batch_key`
        self._loop: weakref.ref[DecodingLoop] | None = None  # of the rows: a decoder must not keep a cache

    def begin(self, sequence: TextRow) -> Group:
        """The text, with what is forced at its beginning."""
        begin_text(sequence, sequence.settings)
        return Group([sequence])

    def step(self, groups: Sequence[Group], rows: CacheRows) -> None:
        """One token or more for each text."""
        self._loop_over(rows).step([group.sequence for group in groups], rows.table)

    def _loop_over(self, rows: CacheRows) -> DecodingLoop:
        """The loop over a cache."""
        if not isinstance(rows.loop, DecodingLoop):
            rows.loop = DecodingLoop(self.model, rows.cache, self._masks_for)
            self._loop = weakref.ref(rows.loop)
        return rows.loop

    def _masks_for(self, settings: Settings) -> StepMasks:
        """The buffers for the masks of some settings."""
        masks = self._masks.get(settings.batch_key)
        if masks is None:
            if len(self._masks) >= _MANY_SETTINGS:
                self._masks.clear()
            left_out = settings.left_out if settings.masks_ending else None
            masks = StepMasks(settings.vocabulary.num_mask_words, settings.can_redraw, left_out)
            self._masks[settings.batch_key] = masks
        return masks

    def recover(self, groups: Sequence[Group], rows: CacheRows) -> bool:
        """Read the last token again where no token was taken after it."""
        loop, lengths = self._loop_over(rows), {}
        loop.rewind()
        for group in groups:
            sequence = group.sequence
            if sequence.held is not None or sequence.finish_reason is not None:
                continue
            if not sequence.pending and not group.withheld:
                sequence.pending = [(sequence.token_ids or sequence.request.prompt)[-1]]
            sequence.is_waiting = False
            lengths[sequence.row] = group.num_cached
        loop.cut(lengths)
        return True

    def again(self, group: Group) -> Group:
        """The text goes on where it was."""
        loop = None if self._loop is None else self._loop()
        if loop is not None:
            loop.leave(group.sequence)
        group.sequence.read_again()
        return Group(group.sequences)


def begin_text(sequence: TextRow, settings: Settings) -> None:
    """Take what is forced at the beginning of a text, maybe all; `LengthError` if no text of the constraint fits."""
    check_budget(sequence, settings)
    is_empty = sequence.finish_reason is not None
    if not is_empty:
        append_forced(sequence, settings, None)
    if sequence.finish_reason is not None and not is_empty:  # all of the text is forced
        sequence.first_token_at = time.perf_counter()


def warm_up(model: CausalLM, num_rows: int | None, *, drafts: bool) -> int:
    """Compile layers and capture the steps of up to so many rows before texts need them; how many were captured.

    The largest come first. They are the steps of rows that run ahead of the host, and those of all others.

    Args:
        num_rows: None for those of an engine.
        drafts: whether steps with drafts are captured, too.

    Raises:
        TooManyRowsError: there is no memory for so many rows.
    """
    paged: PagedModel | None = getattr(model, "paged", None)
    if paged is None or paged.capture is None:
        return 0
    paged.compile_layers()
    num_rows = num_rows or rows_that_fit(model)
    kinds = [(width, is_draft) for is_draft in (False, True)[: 1 + drafts] for width in WIDTH_BUCKETS[is_draft:]]
    cache = new_cache(model, num_rows, ROW_TOKENS, f"batch_size={num_rows}")
    assert isinstance(cache, PagedCache)
    device = DevicePass(model, paged, cache)
    sizes = sorted({row_bucket(number) for number in range(1, num_rows + 1)}, reverse=True)
    counts = [min(size, num_rows) for size in sizes]
    num_captured = sum(device.warm_up(count, *kind) for kind in kinds for count in counts)
    return num_captured + sum(paged.warm_up(cache, count, width) for width in WIDTH_BUCKETS for count in counts)


def decode(
    model: CausalLM,
    settings: Settings,
    num_prompts: int,
    requests: Iterable[Request | DecodekitError],
    num_samples: int = 1,
) -> Iterator[Update]:
    """Decode a stream of requests, `num_samples` texts of each.

    The text of the first sample is handed out as it grows. The last update of a request comes when all its samples have
    ended; its result is that of the first, with those of the others, in their order, in `Result.others`.

    Args:
        num_prompts: most prompts at a time.
        requests: what to continue, as for `scheduler.run`.
        num_samples: texts of each request, at least 1.
    """
    num_rows = max(num_prompts, min(num_prompts * num_samples, MAX_ROWS))
    return run(Texts(model), settings, num_rows, requests, num_samples)
