"""Legal tokens for particles, each with an unbiased estimate of the mass of all legal tokens as its weight.

Of the tokens a 0.5, b 0.3, c 0.2 let b and c be legal. `masked_draws` knows the mask: it takes b with probability 0.6
or c with 0.4, and the weight is 0.5. `rejection_draw` asks about single tokens, drawn without replacement. Say a comes
first and is refused, then b, which is taken; one more is asked about, c, which is legal: the weight is 0.3 + 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from decodekit.sampling import sample
from decodekit.sampling.functions import apply_bitmask

if TYPE_CHECKING:
    from torch import Tensor

    from decodekit.generation.settings import NoiseKeys


class Draw(NamedTuple):
    """A token, and by what its particle is weighted; no token if none is legal."""

    token: int | None
    log_weight: float


NO_DRAW = Draw(None, -math.inf)


def masked_draws(rows: Tensor, bitmask: Tensor, keys: NoiseKeys) -> list[Draw]:
    """A token of each row from its masked distribution, weighted by the mass that the mask leaves.

    Args:
        rows: float32 [L, V], processed without a mask.
        bitmask: int32 [L, W], the allowed tokens.
        keys: of the noise.
    """
    masked = apply_bitmask(rows, bitmask)
    log_mass = (masked.logsumexp(dim=-1) - rows.logsumexp(dim=-1)).tolist()  # 0 exactly where all is allowed
    legal = [row for row, mass in enumerate(log_mass) if mass > -math.inf]  # a row of -inf has NaN
    draws = [NO_DRAW] * len(log_mass)
    if legal:
        own = keys.of(legal)
        tokens = sample(
            masked[torch.tensor(legal, device=rows.device)], own.seeds, own.sequences, own.positions
        ).tolist()
        for row, token in zip(legal, tokens, strict=True):
            draws[row] = Draw(token, log_mass[row])
    return draws


def rejection_draw(scores: Tensor, noise: Tensor, is_legal: Callable[[int], bool]) -> Draw:
    """A legal token and an unbiased estimate of the mass of all legal ones, by asking about few tokens.

    This is adaptive weighted rejection sampling in its recursive form (Lipkin et al. 2025, "Fast controlled generation
    from language models with adaptive weighted rejection sampling"). Tokens come in the order of p without replacement:
    x_1 from p, x_2 from p without x_1, ... The first legal one, x_k, is taken. One more is asked about, and the weight
    is

        w = p(x_k) + (1 - p(x_1) - ... - p(x_k)) [x_(k+1) is legal].

    The rejected tokens have no legal mass, so that the distribution of x_k is p given that the token is legal, exactly.
    And given x_1, ..., x_k, the token x_(k+1) comes from the rest R of the vocabulary, in proportion to p: it is legal
    with probability Z(R) / p(R), so that E[w | x_1, ..., x_k] = p(x_k) + Z(R) = Z, whatever x_k is. (It is the estimate
    of Des Raj 1956 for sampling without replacement.) So w is an unbiased estimate of Z given the token, which is all
    that a particle needs, and it is never 0.

    The order is that of log p + Gumbel noise (Kool et al. 2019): its first legal token is the one that a draw from the
    masked distribution takes with the same noise.

    Args:
        scores: [V], processed logits, -inf for what has no probability.
        noise: [V], standard Gumbel.
        is_legal: asked about each token once at most.
    """
    log_probs = torch.log_softmax(scores.double(), dim=-1)
    order = _descending(log_probs + noise)
    rest = log_probs.exp()
    for token in order:
        rest[token] = 0.0
        if is_legal(token):
            log_p = float(log_probs[token])
            following = next(order, None)
            if following is None or not is_legal(following):
                return Draw(token, log_p)
            # What has not come yet, summed anew: 1 minus what has come would lose a small rest.
            return Draw(token, min(0.0, float(np.logaddexp(log_p, rest.sum().log().item()))))
    return NO_DRAW


def _descending(keys: Tensor) -> Iterator[int]:
    """Indices of the keys above -inf, largest first; few are wanted as a rule."""
    num_known, num_wanted = 0, 32
    while num_known < len(keys):
        top = keys.topk(min(num_wanted, len(keys)))
        for key, index in zip(top.values[num_known:].tolist(), top.indices[num_known:].tolist(), strict=True):
            if not key > -math.inf:  # a row without any probability has NaN
                return
            yield index
        num_known, num_wanted = num_wanted, 8 * num_wanted
