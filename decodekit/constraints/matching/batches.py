"""The masks of many rows at once.

A mask that is known is a copy of 16 kB (131k tokens), 1.7 microseconds a row with all that Python does around it; 64
rows took 106 microseconds in a loop and 149 on two threads. A mask that is new is computed under the lock of the
lexical automaton, which all grammars of a process share, so that threads take turns there too. Without that lock they
would hardly be faster: half of a mask is Python (``docs/mask-cost.md`` has the figures). Rows are therefore filled
one after the other unless threads are asked for: they help only where guards wait for something else than Python. (Two
cores, 2026.)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.matching.matcher import Matcher
from decodekit.errors import OptionError


def fill_bitmasks(
    matchers: Sequence[Matcher],
    out: Int32Array,
    rows: Sequence[int] | None = None,
    num_threads: int | None = None,
    exact: bool = True,
) -> None:
    """Write the allowed tokens of each matcher into its row, as its `fill_bitmask` does.

    Args:
        matchers: of any grammars over vocabularies of one size, no object twice: matchers are not shared by threads.
        out: int32 [rows, words]; other rows stay as they are.
        rows: the row of each matcher, no row twice; 0, 1, 2, … without it.
        num_threads: threads that fill rows at the same time; one without it, which is as fast (see the module).
        exact: whether guards are asked, see `Matcher.fill_bitmask`.

    Raises:
        OptionError: a matcher or a row twice, a row outside of `out`, another number of rows than of matchers, or no
            positive number of threads.
    """
    num_rows = len(matchers)
    if rows is None:
        rows = range(num_rows)
    elif len(set(rows)) < len(rows):
        raise OptionError("two matchers have the same row", at="rows", hint="a row of its own for each matcher")
    if len(rows) != num_rows:
        raise OptionError(f"{num_rows} matchers and {len(rows)} rows", at="rows", hint="one row for each matcher")
    if num_rows and (min(rows) < 0 or max(rows) >= len(out)):
        raise OptionError(f"the bitmask has {len(out)} rows", at="rows", hint=f"rows from 0 to {len(out) - 1}")
    if len(set(map(id, matchers))) < num_rows:
        raise OptionError("a matcher has two rows", at="matchers", hint="a fork of it for the second one")
    num_threads = 1 if num_threads is None else min(num_threads, max(num_rows, 1))
    if num_threads < 1:
        raise OptionError(f"{num_threads} threads", at="num_threads", hint="a positive number, or None")
    if num_threads == 1:
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.fill_bitmask(out, row, exact)
        return

    def fill(start: int) -> None:
        for number in range(start, num_rows, num_threads):
            matchers[number].fill_bitmask(out, rows[number], exact)

    with ThreadPoolExecutor(num_threads) as pool:
        for done in [pool.submit(fill, start) for start in range(num_threads)]:
            done.result()
