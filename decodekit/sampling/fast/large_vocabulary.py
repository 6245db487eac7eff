"""Truncation and selection on wide rows on the host, without sorting them and without noise for each of their tokens.

What is found is what the functions of whole rows give: the same tokens, from the same arithmetic, row by row. Logits
are float32 [N, V], and are divided by a temperature T before a truncation.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.sampling.fast.candidates import Candidates, Floats, Ids
from decodekit.sampling.noise import Words, gumbel_at
from decodekit.sampling.tolerances import lowest_kept_of, reached, widened

WIDE = 1024
"""Below this width torch is as fast."""

MANY = 1 << 20
"""Numbers of logits from which asking the system for large pages pays."""

_ROWS_OF_A_THREAD = 4
_REMOVED = np.float32(-np.inf)


def is_wide(logits: Tensor) -> bool:
    """Whether rows of logits [N, V] are on the host and wide enough for compiled code."""
    return logits.shape[-1] >= WIDE and logits.device.type == "cpu" and logits.dtype == torch.float32


def divided(logits: Tensor, temperature: float) -> Tensor:
    """z / T.

    Many wide rows by numpy: the same numbers as from torch in half the time for 64 rows of 131,072, as it asks the
    system for large pages, and most of what such a division takes is the first touch of new memory.
    """
    if temperature == 1.0:
        return logits
    if not is_wide(logits) or logits.numel() < MANY:
        return logits / temperature
    rows = logits.numpy(force=True)
    quotients = np.empty(rows.shape, np.float32)
    _over_rows(lambda part, out: np.divide(part, np.float32(temperature), out=out), rows, quotients)
    return torch.from_numpy(quotients)


def block_peaks(logits: Tensor) -> tuple[Floats, Floats] | None:
    """The rows as an array [N, V], and the largest logit of each block of 64, float32 [N, ceil(V / 64)].

    None if a row has NaN, +inf, or no token at all: such rows take the general way, which tells what is wrong.
    """
    from decodekit.sampling.fast.logit_blocks import BLOCK, find_block_peaks

    rows = np.ascontiguousarray(logits.numpy(force=True))
    peaks = np.empty((len(rows), -(-rows.shape[1] // BLOCK)), np.int32)
    are_sound = _over_rows(find_block_peaks, rows.view(np.int32), peaks)
    return (rows, peaks.view(np.float32)) if all(are_sound) else None


def keep_top_k(logits: Tensor, temperature: float, k: int) -> Candidates | None:
    """The k likeliest tokens of softmax(z / T) and ties with the last of them; None for a quarter of a row or more."""
    from decodekit.sampling.fast.cuts import cut_top_k

    # Which way is taken depends on the settings, not on the other rows, except for a nucleus: there both ways cut at
    # the same token, and nothing after it computes a mass again.
    cut = None if 4 * k > logits.shape[-1] else _cut_of(logits, temperature)
    if cut is None:
        return None
    cut.by(cut_top_k, k)
    return cut.candidates()


def keep_top_p(
    logits: Tensor, temperature: float, p: float, *, min_p: float = 0.0, even_many: bool = False
) -> Candidates | None:
    """The likeliest tokens of softmax(z / T) with mass p < 1, and of these the ones that min-p right after it keeps.

    Candidates are wanted `even_many`: also where a quarter of a row or more is left; otherwise None.
    """
    from decodekit.sampling.fast.cuts import cut_top_p

    cut = _cut_of(logits, temperature)
    if cut is None:
        return None
    cut.by(cut_top_p, reached(p))
    if 4 * cut.counts.max() > logits.shape[-1] and not even_many:
        return None
    if min_p > 0:  # few of the nucleus are left, and need sorting
        cut.further(min_p)
    return cut.candidates()


def keep_min_p(logits: Tensor, temperature: float, min_p: float) -> Candidates | None:
    """The tokens of softmax(z / T) at least min_p > 0 times as likely as the likeliest."""
    cut = _cut_of(logits, temperature)
    if cut is None:
        return None
    cut.further(min_p)
    return cut.candidates()


class _Cut:
    """The cut of a truncation in each row: a token stays if y > cut, or y = cut and its id <= last, with y = z / T.

    The logits [N, V] are there as an array, too, with the peaks [N, blocks] of `block_peaks`.
    """

    def __init__(self, logits: Tensor, rows: Floats, peaks: Floats, scale: np.float32) -> None:
        self.logits, self.rows, self.peaks, self.scale = logits, rows, peaks, scale
        self.cuts = np.full(len(rows), _REMOVED)  # [N] each: all tokens stay
        self.lasts, self.counts = np.full((2, len(rows)), rows.shape[1], np.int64)

    def by(self, kernel: Callable[..., Any], setting: float) -> None:
        """Cut with one of the kernels of `cuts`."""
        _over_rows(kernel, self.rows, self.peaks, self.scale, setting, self.cuts, self.lasts, self.counts)

    def further(self, min_p: float) -> None:
        """Cut what min-p removes, too, with the arithmetic of `MinP`."""
        from decodekit.sampling.fast.cuts import count_at_least

        floors = lowest_kept_of(self.peaks.max(axis=1) / self.scale, widened(-math.log(min_p)))
        self.lasts[floors > self.cuts] = self.rows.shape[1]
        np.maximum(self.cuts, floors, out=self.cuts)
        num_left = np.empty_like(self.counts)
        _over_rows(count_at_least, self.rows, self.peaks, self.scale, self.cuts, num_left)
        np.minimum(self.counts, num_left, out=self.counts)

    def candidates(self) -> Candidates:
        """The tokens that are left, in descending order."""
        from decodekit.sampling.fast.cuts import gather

        values = np.empty((len(self.rows), max(1, self.counts.max(initial=1))), np.float32)
        ids = np.empty(values.shape, np.int64)
        _over_rows(gather, self.rows, self.peaks, self.scale, self.cuts, self.lasts, values, ids)
        order = (-values).argsort(axis=1, kind="stable")  # they are in order of token id
        values, ids = np.take_along_axis(values, order, axis=1), np.take_along_axis(ids, order, axis=1)
        return Candidates(values, ids, self.logits.shape[-1], self.logits.device)


def _cut_of(logits: Tensor, temperature: float) -> _Cut | None:
    """No cut yet; None where `block_peaks` is None."""
    found = block_peaks(logits)
    return None if found is None else _Cut(logits, *found, np.float32(temperature))


def outside_nucleus(logits: Tensor, p: float) -> NDArray[np.bool_] | None:
    """bool [N, V]: what top-p removes; None where `block_peaks` is None."""
    from decodekit.sampling.fast.cuts import cut_top_p

    cut = _cut_of(logits, 1.0)
    if cut is None:
        return None
    cut.by(cut_top_p, reached(p))
    removed: NDArray[np.bool_] = cut.rows < cut.cuts[:, None]
    for row in np.flatnonzero(cut.lasts < logits.shape[-1]):  # of its ties with the last token only some stay
        last = cut.lasts[row] + 1
        removed[row, last:] |= cut.rows[row, last:] == cut.cuts[row]
    return removed


def sample_wide(logits: Tensor, keys: Words) -> Ids | None:
    """The draw of `selectors.sample` from wide rows (see `survivors`); None where `block_peaks` is None."""
    found = block_peaks(logits)
    if found is None:
        return None
    ids, counts = survivors(*found, keys)
    rows, peaks = found
    width = int(counts.max(initial=1))
    if width > ids.shape[1]:  # too many within 1e-4 of the best: float32 decides among all tokens
        return None
    ids = ids[:, :width]
    relative = np.take_along_axis(rows, ids, axis=1) - peaks.max(axis=1, keepdims=True)
    relative[np.arange(width) >= counts[:, None]] = _REMOVED
    return draw_among(ids, relative, keys)


def draw_among(ids: Ids, relative: Floats, keys: Words) -> Ids:
    """The token of each row with the largest noisy logit, [N], of the given ones with their logits, [N, K].

    Equal sums (about one draw in 10^6) go to the lowest id, as `argmax` does in the order of ids.
    """
    noisy = gumbel_at(keys[:, None], ids)
    noisy += relative
    is_best = noisy == noisy.max(axis=1, keepdims=True)
    tokens: Ids = np.where(is_best, ids, np.iinfo(np.int64).max).min(axis=1)
    return tokens


def survivors(
    rows: Floats, peaks: Floats, keys: Words, temperature: float = 1.0, floors: Floats | None = None
) -> tuple[Ids, Ids]:
    """The tokens of wide rows z / T with the largest noisy logit, or one within 1e-4 of it, and how many they are.

    Tokens below the `floors`, [N], need not be looked at. More than `MAX_CONTENDERS` are counted and not kept.
    """
    from decodekit.sampling.fast.noisy_draws import MAX_CONTENDERS, find_contenders

    ids, counts = np.zeros((len(rows), MAX_CONTENDERS), np.int64), np.empty(len(rows), np.int64)
    least = np.full(len(rows), _REMOVED) if floors is None else floors
    _over_rows(find_contenders, rows, peaks, np.float32(temperature), least, keys, ids, counts)
    return ids, counts


def distances_above(
    rows: Floats, peaks: Floats, tokens: Ids, temperature: float, most: int
) -> NDArray[np.float64] | None:
    """The distances from z / T of one token of each row to those of others >= it, [N, M] padded with -inf.

    None if a row has more than `most`; +inf where the token is -inf.
    """
    from decodekit.sampling.fast.cuts import find_above

    found, counts = np.full((len(rows), most), -np.inf), np.empty(len(rows), np.int64)
    _over_rows(find_above, rows, peaks, np.float32(temperature), tokens, found, counts)
    width = int(counts.max(initial=1))
    return None if width > most else found[:, :width]


def _over_rows(kernel: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a kernel on parts of the rows of all its arrays, one part for each thread that torch uses; what it returns.

    Kernels let other threads run. A row does not depend on which part it is in.
    """
    num_rows = len(arguments[0])
    num_parts = min(torch.get_num_threads(), num_rows // _ROWS_OF_A_THREAD)
    if num_parts < 2:
        return [kernel(*arguments)]
    bounds = [num_rows * part // num_parts for part in range(num_parts + 1)]

    def run(part: int) -> Any:
        rows = slice(bounds[part], bounds[part + 1])
        return kernel(*(a[rows] if isinstance(a, np.ndarray) else a for a in arguments))

    return list(_threads(num_parts, os.getpid()).map(run, range(num_parts)))


@functools.cache
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(count)
