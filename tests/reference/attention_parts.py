"""Which part of which row a program of attention has, by handing the parts out one after the other."""

from __future__ import annotations

from collections.abc import Sequence

Share = tuple[int, range]
"""A row, and which of its blocks."""


def blocks_of(start: int, count: int, window: int, block: int) -> int:
    """Blocks of old tokens, from that of the first position that a new one sees, and blocks of new ones."""
    if count == 0:
        return 0
    first = max(0, start - window + 1) // block
    return len({token // block for token in range(start)} - {*range(first)}) + len({t // block for t in range(count)})


def shares(blocks: Sequence[int], num_parts: int, least: int, most_parts: int) -> list[Share]:
    """What the programs have, in their order: parts of `each` blocks, the least number that is allowed.

    Args:
        blocks: of each row.
        num_parts: how many there may be of all rows, if a row may round up once.
        least: blocks of a part.
        most_parts: of a row.
    """
    each = least
    while each * num_parts < sum(blocks) or each * most_parts < max(blocks):
        each += 1
    found: list[Share] = []
    for row, count in enumerate(blocks):
        begins = range(0, count, each) or [0]
        found += [(row, range(begin, min(begin + each, count))) for begin in begins]
    return found
