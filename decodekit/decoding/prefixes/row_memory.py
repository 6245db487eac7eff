"""Whether what is asked for fits into memory: asked before a model runs, so that no process ends for want of it.

What is counted is needed for certain: the keys and values of the rows that a cache is made with, and a few float32 rows
of logits for each. Memory that the system would free for it (files that it keeps) and swap count as free.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from decodekit.errors import TooManyRowsError

if TYPE_CHECKING:
    from decodekit.models.causal_lm import Cache, CausalLM

LOGITS_COPIES: Final = 3
"""So many float32 rows of logits live at a time for each row of a batch: raw, as log-probabilities, and processed."""

LEAST_ROWS: Final = 32
FEW_ROWS: Final = 8
"""Rows of a call or a job on a CPU: its cores are busy with few, and the first results come sooner."""
MOST_ROWS: Final = 256
ROW_TOKENS: Final = 2048

_SMALL: Final = 1 << 27
"""Bytes that are not worth a question."""

_FEW_TOKENS: Final = 1 << 16
"""Tokens of a cache that are not worth a question."""

_BYTES_PER_TEXT: Final = 1024
"""A finished text takes more than this until it is handed out."""

MAX_TOKENS: Final = (1 << 31) - 1
"""Most tokens of a text: positions are numbers of 32 bits in kernels, and no context is longer."""


def new_cache(model: CausalLM, num_rows: int, capacity: int, option: str) -> Cache:
    """An empty cache, see `models.causal_lm.CausalLM.new_cache`; `TooManyRowsError` if there is not enough memory."""
    check_rows(model, num_rows, capacity, option)
    try:
        return model.new_cache(num_rows, capacity)
    except (RuntimeError, MemoryError) as error:
        if "memory" not in f"{type(error).__name__} {error}".lower():
            raise
        raise TooManyRowsError(
            f"{option}: {num_rows:,} rows of the cache with {capacity:,} tokens each cannot be allocated: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}",
            at=option.partition("=")[0],
            hint="a smaller number",
        ) from error


def check_rows(model: CausalLM, num_rows: int, capacity: int, option: str, num_logits: int = 1) -> None:
    """Refuse rows that the memory of the model's device cannot hold.

    Args:
        num_rows, capacity: rows of the cache, each with logits, and tokens of each.
        option: what asks for them, such as ``num_beams=5000``.
        num_logits: rows of logits of each, more than one with drafts.

    Raises:
        TooManyRowsError: with the most rows that there is memory for.
    """
    of_logits = 4 * model.vocab_size * LOGITS_COPIES * num_logits
    if num_rows * of_logits < _SMALL and num_rows * capacity < _FEW_TOKENS:
        return
    each = of_logits + row_bytes(model, capacity)
    _check(num_rows, each, model.device, option, "rows of the cache", free_for(model))


def check_texts(num_texts: int, option: str) -> None:
    """Refuse more texts of one prompt than memory can hold until all have ended; see `check_rows`."""
    if num_texts * _BYTES_PER_TEXT >= _SMALL:
        _check(num_texts, _BYTES_PER_TEXT, torch.device("cpu"), option, "texts of a prompt")


def check_masks(num_rows: int, num_words: int, option: str) -> None:
    """Refuse more rows than memory can hold bitmasks for; see `check_rows`."""
    if num_rows * 4 * num_words >= _SMALL:
        _check(num_rows, 4 * num_words, torch.device("cpu"), option, "rows")


def _check(number: int, each: int, device: torch.device, option: str, what: str, free: int | None = None) -> None:
    free = free_memory(device) if free is None else free
    if free is not None and number * each > free:
        raise TooManyRowsError(
            f"{option}: {number:,} {what} need {_told(number * each)} of memory, and {_told(free)} are free on "
            f"{device.type}",
            at=option.partition("=")[0],
            hint=f"at most {max(1, free // max(1, each)):,} {what}",
        )


def _told(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"


def bytes_per_token(model: CausalLM) -> int:
    """Bytes of keys and values of one token in a row of the model's cache; 0 if its caches do not say."""
    return _said_of(model, "bytes_per_token")


def row_bytes(model: CausalLM, num_tokens: int) -> int:
    """Bytes of a row of so many tokens in the model's cache, with its recurrent state and the one to go back to."""
    return num_tokens * bytes_per_token(model) + 2 * _said_of(model, "state_bytes")


def _said_of(model: CausalLM, name: str) -> int:
    """The number of this name that caches of a model have; pages are asked without one, which might need tables."""
    return _said(getattr(model, "paged", None) or model.new_cache(1, 1), name)


def _said(cache: Any, name: str) -> int:
    own = getattr(cache, name, None)
    parts = [getattr(cache, part, None) for part in ("inner", "first", "second")]  # caches made of caches
    each = [_said(one, name) * one.num_rows // cache.num_rows for one in parts if one is not None]
    return own if isinstance(own, int) else sum(each)


def free_for(model: CausalLM) -> int | None:
    """Bytes that keys and values of a model can still take: free memory, and the free pages of its arenas."""
    free, paged = free_memory(model.device), getattr(model, "paged", None)
    return free if free is None or paged is None else free + int(paged.num_free_bytes)


def rows_that_fit(model: CausalLM, on_host: int = LEAST_ROWS) -> int:
    """Rows of texts at a time, unless a caller says how many: on a GPU as many as half of the free memory holds.

    A row is counted with `ROW_TOKENS` tokens and its logits. More rows than `MOST_ROWS` gain little: products are bound
    by arithmetic then, and every text waits longer for its next token.
    """
    if model.device.type != "cuda":
        return on_host
    each = row_bytes(model, ROW_TOKENS) + 4 * model.vocab_size * LOGITS_COPIES
    num_rows = (free_for(model) or 0) // 2 // each
    return max(LEAST_ROWS, min(MOST_ROWS, num_rows - num_rows % LEAST_ROWS))


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None if that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_free_of_host(), default=None) if device.type == "cpu" else None


def _free_of_host() -> Iterator[int]:
    """The memory that the machine, the control group and the limits of the process leave."""
    try:
        kilobytes = {
            line.partition(":")[0]: int(line.split()[1])
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith(("MemAvailable", "SwapFree"))
        }
        yield sum(kilobytes.values()) * 1024
    except (OSError, ValueError, IndexError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, usage, details, cached in (
        ("memory.max", "memory.current", "memory.stat", "file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_cache"),
    ):
        try:
            group = Path("/sys/fs/cgroup")
            most = int((group / limit).read_text())
            used = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / details).read_text().splitlines())
            yield max(0, most - used + int(stat.get(cached, 0)))
        except (OSError, ValueError):
            continue
