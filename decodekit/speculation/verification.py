"""Verification: how much of a draft is kept, and which token comes next.

    text so far           The cat
    draft                 sat   on    a    mat
    target's own choice   sat   on    the  hat   .        one forward pass over text and draft, five choices
                           =     =     x
    what comes out        sat   on    the                 after "the", "mat" was never asked about in the right text

*Coupled match*, the default: the target takes its own token at every place of the draft, with the noise that belongs to
the place, (seed, sequence, position). The draft is kept while it agrees; at the first difference the target's token is
taken. So every token that comes out is the target's own, taken after the right prefix with the right noise: the draft
decides how many tokens come out of one forward pass, and never which. It needs no probabilities of the draft, and holds
for every processor, every constraint and every selector that is a function of its row.

*Rejection* (Leviathan et al. 2023, Chen et al. 2023), an option of strategies that draw from the softmax p of the
processed row. A token x that the draft drew from a distribution q of its own is kept with probability
min(1, p(x) / q(x)); otherwise one is drawn from what p has more than q. Any token t then comes with

    q(t) min(1, p(t) / q(t)) + (1 - sum over x of min(p(x), q(x))) (p(t) - q(t))+ / (sum over x of (p(x) - q(x))+)
    = min(p(t), q(t)) + (p(t) - q(t))+ = p(t),

since both sums in the second term are one number. The distribution is that of coupled match. A draft token is kept at
least as often: with the sum of min(p, q), which nothing can exceed. But which token comes depends on the draft: with
another draft, or one of another length, the text is another one.

A token that was chosen and not drawn has q = 1: it is kept with probability p(x); otherwise one is drawn from p without
x. Coupled match does the same: its choice is x with probability p(x). So nothing has to be known of such drafts, and
the text does not depend on them under either rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Verify: TypeAlias = Literal["coupled", "rejection"]
"""The rules."""


def coupled_match(draft: Sequence[int], target: Sequence[T]) -> Sequence[T]:
    """The tokens that come of a draft of k: the target's choices up to the first that is not the draft's.

    Of its k + 1 choices, choice i is made after the first i tokens of the draft; one that is not a token (an error)
    agrees with nothing. At least one comes, and all but the last are those of the draft.
    """
    return target[: num_equal(draft, target) + 1] if draft else target


def is_accepted(p: Tensor, q: Tensor, uniforms: Tensor) -> Tensor:
    """Whether tokens are kept: with probability min(1, p / q), bool [N] (Leviathan et al. 2023, algorithm 1).

    p and q are the probabilities of each token in its place and where it was drawn, q above 0; the uniforms are
    independent of the token. Strict, so that a token with p = 0 is never kept.
    """
    return uniforms * q < p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The distribution of what replaces a token that was not kept: (p - q)+ over its sum, float [N, V].

    Where p is nowhere above q the two are equal but for rounding, and the distribution is p.
    """
    rest = (p - q).clamp(min=0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, p)


def num_equal(draft: Sequence[int], tokens: Sequence[object]) -> int:
    """Length of the common beginning."""
    return next(
        (place for place, (guess, token) in enumerate(zip(draft, tokens, strict=False)) if guess != token),
        min(len(draft), len(tokens)),
    )
