"""The leader of each row: the token with the largest logit, or the largest with its noise, among all of the row.

A leader is clear where no other token comes so near that rounding could decide between them: then it is the one that
`selectors` would take of every part of the row that holds it, whatever the other tokens of that part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from decodekit.sampling.certificates import Flags
from decodekit.sampling.fast.candidates import Floats, Ids
from decodekit.sampling.fast.large_vocabulary import survivors
from decodekit.sampling.noise import Keys, gumbel, host_keys
from decodekit.sampling.scores import Blocks, Scores
from decodekit.sampling.selectors import likeliest
from decodekit.sampling.tolerances import NEAR

Floor: TypeAlias = Callable[[Floats], Floats | None]
"""From the largest logit of each row, [N], the least one that counts, [N]; None if all do."""


class Leaders(NamedTuple):
    """A token of each row.

    Args:
        tokens: int64 [N], on the host; of a row that is not clear any token.
        are_certified: bool [N].
        given: int64 [N], on the host: tokens that have to be allowed, too, since they keep others from coming; mostly
            the tokens themselves.
    """

    tokens: Tensor
    are_certified: Flags
    given: Tensor


class Lead(Protocol):
    """Finds the leaders of rows; seeds, sequences, positions: int64 [N], as for `selectors.sample`.

    With a `floor`, tokens below it need not be looked at if the likeliest token is allowed, which is `given` then.
    """

    def __call__(
        self, scores: Scores, seeds: Keys, sequences: Keys, positions: Keys, floor: Floor | None = None, /
    ) -> Leaders:
        """The leaders."""


def lead_greedy(
    scores: Scores, seeds: Keys = (), sequences: Keys = (), positions: Keys = (), floor: Floor | None = None
) -> Leaders:
    """The largest logit, as `selectors.greedy` takes it; clear where it is finite."""
    peaks, found = likeliest(scores.rows)
    tokens = found.cpu()
    return Leaders(tokens, np.isfinite(peaks.numpy(force=True)), tokens)


def lead_noisy(scores: Scores, seeds: Keys, sequences: Keys, positions: Keys, floor: Floor | None = None) -> Leaders:
    """The largest logit with its noise, as `selectors.sample` takes it."""
    blocks = scores.blocks
    if blocks is not None:
        floors = None if floor is None else floor(blocks.largest)
        keys = host_keys(seeds, sequences, positions)
        ids, counts = survivors(blocks.rows, blocks.peaks, keys, scores.temperature, floors)
        own = ids[:, 0].copy()
        given = own if floor is None else _likeliest_unless(own, scores.temperature, blocks)
        return Leaders(torch.from_numpy(own), counts == 1, torch.from_numpy(given))
    rows = scores.rows
    relative = rows - rows.amax(dim=-1, keepdim=True)  # NaN where there is no finite token, or NaN, or +inf
    noisy = gumbel(seeds, sequences, positions, rows.shape[-1], rows.device).add_(relative)
    best = noisy.topk(min(2, noisy.shape[-1]), dim=-1)
    values = best.values.double().numpy(force=True)
    with np.errstate(invalid="ignore"):
        are_certified = np.isfinite(values[:, 0]) & (values[:, 0] - values[:, -1] > NEAR)
    tokens = best.indices[:, 0].cpu()
    return Leaders(tokens, are_certified, tokens)


def _likeliest_unless(tokens: Ids, temperature: float, blocks: Blocks) -> Ids:
    """The tokens [N], but where one is not as likely as the likeliest of its row, that."""
    found = tokens.copy()
    own = blocks.rows[np.arange(len(tokens)), tokens] / np.float32(temperature)
    for row in np.flatnonzero(own < blocks.largest):
        found[row] = blocks.rows[row].argmax()
    return found
