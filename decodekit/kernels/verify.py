"""Coupled match on the device: how much of each row's draft is kept, which tokens come, and where the row goes on.

Three rows of four positions: the target's own tokens, drafts of 3, 2 and no tokens, what comes, and what the cache
keeps of the pending token p and the draft behind it (see `speculation.verification`):

    tokens    sat  on   the  hat      draft   sat on   a        comes  sat on the       kept   p sat on
    tokens    a    b    c    .        draft   a   b    .        comes  a b c            kept   p a b
    tokens    d    .    .    .        draft   .   .    .        comes  d                kept   p

Every token that comes is the target's own, so that a draft decides how many there are and never which. A position may
have no token (`status`): then the row comes as far as that, and its status says why.

    lengths   what the cache holds of the row before the pending token. The forward pass wrote 1 + draft tokens behind
              it (the pending token and the draft); of these the first `num_taken` stay: the token that comes last is
              pending, and not yet written

Where a text ends, and how many tokens it may have, the host says: a draft does not reach so far.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from decodekit.kernels.programs import missing


class Advance(NamedTuple):
    """What comes of N rows.

    Args:
        num_taken: int32 [N], tokens that come; 0 where the first position has none.
        pending: int64 [N], the last of them, which the model reads next; of no meaning where none comes.
        lengths: int32 [N], tokens that the cache holds from now on.
        status: int32 [N], of the position where the row stopped; 0 where it has a token.
        out: int64 [N, T], what comes, -1 behind it.
    """

    num_taken: Tensor
    pending: Tensor
    lengths: Tensor
    status: Tensor
    out: Tensor


def advanced(tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor, lengths: Tensor) -> Advance:
    """The operation in torch; arguments as of `advance`."""
    num_rows, width = tokens.shape
    is_draft = torch.arange(width - 1, device=tokens.device) < draft_lengths[:, None]
    agrees = (tokens[:, :-1] == drafts) & is_draft & (status[:, :-1] == 0)
    # A position is reached where all before it agree.
    reached = torch.cat([agrees.new_ones(num_rows, 1), agrees.cumprod(dim=1) != 0], dim=1)
    comes = reached & (status == 0)
    num_taken = comes.sum(dim=1).to(torch.int32)
    last = (num_taken - 1).clamp(min=0).to(torch.int64)[:, None]
    return Advance(
        num_taken,
        tokens.gather(1, last)[:, 0],
        lengths + num_taken,
        torch.where(reached, status, 0).amax(dim=1),
        torch.where(comes, tokens, -1),
    )


@torch.library.custom_op(
    "decodekit::advance",
    mutates_args=(),
    schema=(
        "(Tensor tokens, Tensor drafts, Tensor draft_lengths, Tensor status, Tensor lengths) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def advance(
    tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What comes of the target's tokens along drafts; see the module.

    Args:
        tokens: int64 [N, T], the target's own at each position: after the pending token, then after each of the draft.
        drafts: int64 [N, T - 1].
        draft_lengths: int32 [N], 0 .. T - 1.
        status: int32 [N, T], of `sampler.sample_rows`, not negative; 0 where the position has a token.
        lengths: int32 [N], what the cache held before the pending token.

    Returns:
        As of `Advance`.
    """
    return tuple(advanced(tokens, drafts, draft_lengths, status, lengths))  # type: ignore[return-value]


@advance.register_kernel("cuda")
def _on_cuda(*arguments: Any) -> tuple[Tensor, ...]:
    if missing() is not None:
        return advance._init_fn(*arguments)  # type: ignore[no-any-return]
    from decodekit.kernels.verify_kernel import launched

    return launched(*arguments)


@advance.register_fake
def _shapes_of(
    tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor, lengths: Tensor
) -> tuple[Tensor, ...]:
    num_rows, width = tokens.shape
    taken, new_lengths, new_status = (tokens.new_empty(num_rows, dtype=torch.int32) for _ in range(3))
    return taken, tokens.new_empty(num_rows), new_lengths, new_status, tokens.new_empty(num_rows, width)
