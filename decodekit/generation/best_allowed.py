"""The best few tokens that constraints allow, asked about one by one: for searches that compare several.

Two beams, four continuations wanted, no mask made:

    of all continuations, best first    [a   {x   {"   {a   [1   {}   ...
    may it come?                        no   no   yes  yes  yes  yes
    found                               {"   {a   [1   {}

They are the best four of the two masked rows as well, for a mask takes away and changes no sum. That holds where each
token has a logit of its own: a truncation would look at what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Final

from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from torch import Tensor

    from decodekit.generation.sequence import Sequence

MAX_REFUSED: Final = 2
"""So many tokens of a row may be refused, in the mean over the rows, before masks are made.

With 8 in place of 2, beams of the bundled model make a tenth fewer masks and ask half as many questions again.
"""


def best_allowed(keys: Tensor, sequences: Rows[Sequence], num_wanted: int, gap: float = 0.0) -> list[int] | None:
    """The places of the largest keys that the constraints of their rows allow, best first; None if that is not settled.

    Fewer than are wanted if all others are -inf. Not settled is what has too many refusals, and two allowed keys that
    are no farther apart than `gap`: equal keys have no order.

    Args:
        keys: float32 [R, V], without NaN and +inf.
        sequences: of the rows; all have matchers.
        num_wanted: how many.
        gap: at least 0; what rounding can make of a difference.

    Returns:
        Places in the flattened keys.
    """
    num_searched = min(num_wanted + MAX_REFUSED * len(sequences) + 1, keys.numel())
    top = keys.flatten().topk(num_searched)
    found: list[int] = []
    least = math.inf
    for key, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        if key == -math.inf or (len(found) == num_wanted and least - key > gap):
            return found
        row, token = divmod(place, keys.shape[1])
        matcher = sequences[row].matcher
        assert matcher is not None
        sequences[row].num_questions += 1
        try:
            is_allowed = matcher.validate([token]) == 1
        except DecodekitError:  # of a constraint that fails: its mask tells of it
            return None
        if is_allowed:
            if least - key <= gap:
                return None
            found.append(place)
            least = key
    return found if num_searched == keys.numel() else None
