"""Verification: how much of a draft is kept, and which token comes next.

*Coupled match*, the one there is: the target takes its own token at every place of the draft, with the noise that
belongs to the place, (seed, sequence, position). The draft is kept while it agrees; where it does not, the target's
token stands. So every token that comes out is the target's own, taken from the right prefix with the right noise: the
draft decides how many come out of one forward pass and never which. It needs no probabilities of the draft, and holds
for every processor, every constraint and every selector that is a function of its row.

A rejection test (Leviathan et al. 2023, Chen et al. 2023: keep with probability min(1, p / q), else draw from what p
has more than q) accepts at least as much and gives the same law, but other texts for other drafts. It would stand
beside `coupled_match`, with the processed rows and `Draft.probabilities` as further arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def coupled_match(draft: Sequence[int], target: Sequence[T]) -> Sequence[T]:
    """What comes out of a draft of k tokens: the target's choices up to the first that is not the draft's.

    Args:
        draft: k tokens.
        target: the k + 1 choices of the target, choice i made after the first i tokens of the draft. A choice that is
            no token (an error) agrees with nothing.

    Returns:
        At least one and at most k + 1 choices; all but the last are those of the draft.
    """
    return target[: num_equal(draft, target) + 1] if draft else target


def num_equal(draft: Sequence[int], tokens: Sequence[object]) -> int:
    """Length of the common beginning."""
    return next(
        (place for place, (guess, token) in enumerate(zip(draft, tokens, strict=False)) if guess != token),
        min(len(draft), len(tokens)),
    )
