"""Coupled match on the device: how much of each row's draft is kept, which tokens come out, and whether the row ends.

Two rows of four positions; the target's own tokens, and drafts of 3 and 2 tokens (see `speculation.verification`):

    tokens    sat  on   the  hat      drafts  sat on   a        kept 2, out: sat on the
    tokens    a    b    EOS  x        drafts  a   b    .        kept 2, out: a b EOS    and the row ends
    limits    9    2                  with room for 2 tokens    the second row: out: a b, kept 1, and it ends

Every token that comes out is the target's own, so that a draft decides how many there are and never which. A row takes
one token at least, unless it is dead (no room), and stops behind an end of the text and where its room is used up.

    length    what the cache holds of the row. The forward pass wrote 1 + draft tokens behind it (the pending token and
              the draft); of these the first `num_taken` stay: the token that comes last is pending, and not yet written
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from decodekit.kernels.programs import missing


class Advance(NamedTuple):
    """What comes of N rows.

    Args:
        num_accepted: int32 [N], tokens of the draft that come out.
        num_taken: int32 [N], tokens that come out; 0 for a dead row.
        pending: int64 [N], the last of them, which the model reads next; that of before for a dead row.
        lengths: int32 [N], tokens that the cache holds from now on.
        room: int32 [N], tokens that may still come; 0 where the row has ended.
        out: int64 [N, T], what comes out, -1 behind it.
    """

    num_accepted: Tensor
    num_taken: Tensor
    pending: Tensor
    lengths: Tensor
    room: Tensor
    out: Tensor


def advanced(
    tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor,
    pending: Tensor, lengths: Tensor, room: Tensor, is_end: Tensor,
) -> Advance:  # fmt: skip
    """The operation in torch; arguments as of `advance`."""
    num_rows, width = tokens.shape
    places = torch.arange(width, device=tokens.device)
    is_draft = places[:-1] < draft_lengths[:, None]
    agrees = (tokens[:, :-1] == drafts) & is_draft & (status[:, :-1] == 0)
    reached = torch.cat([agrees.new_ones(num_rows, 1), agrees.cumprod(dim=1) != 0], dim=1)
    # Behind an end of the text nothing comes, nor from a position on that has no token.
    ends = is_end[tokens.clamp(0, is_end.shape[0] - 1)]
    is_before_end = torch.cat([ends.new_ones(num_rows, 1), (~ends[:, :-1]).cumprod(dim=1) != 0], dim=1)
    has_token = (status == 0).cumprod(dim=1) != 0
    comes = reached & is_before_end & has_token & (places < room[:, None])
    num_taken = comes.sum(dim=1).to(torch.int32)
    last = (num_taken - 1).clamp(min=0).to(torch.int64)[:, None]
    is_alive = num_taken > 0
    has_ended = is_alive & ends.gather(1, last)[:, 0]
    # A draft of one token less than what comes out was kept whole; the last token may be a draft's, too.
    padded = torch.cat([agrees, agrees.new_zeros(num_rows, 1)], dim=1)
    num_accepted = (comes & padded).sum(dim=1).to(torch.int32)
    is_faulty = (status != 0) & reached & is_before_end & (places < room[:, None])
    left = torch.where(has_ended | is_faulty.any(dim=1), 0, room - num_taken)
    return Advance(
        num_accepted,
        num_taken,
        torch.where(is_alive, tokens.gather(1, last)[:, 0], pending),
        lengths + num_taken,
        left.to(torch.int32),
        torch.where(comes, tokens, -1),
    )


@torch.library.custom_op(
    "decodekit::advance",
    mutates_args=(),
    schema=(
        "(Tensor tokens, Tensor drafts, Tensor draft_lengths, Tensor status, Tensor pending, Tensor lengths, "
        "Tensor room, Tensor is_end) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def advance(
    tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor,
    pending: Tensor, lengths: Tensor, room: Tensor, is_end: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What comes out of the target's tokens along drafts; see the module.

    Args:
        tokens: int64 [N, T], the target's own at each position: after the pending token, then after each of the draft.
        drafts: int64 [N, T - 1].
        draft_lengths: int32 [N], 0 .. T - 1.
        status: int32 [N, T], of `sampler.sample_rows`; a position that has none ends the row before it.
        pending: int64 [N], what the model read first.
        lengths: int32 [N], what the cache held before.
        room: int32 [N], tokens that may still come; 0 for a dead row.
        is_end: bool [V], the tokens that end a text.

    Returns:
        As of `Advance`.
    """
    return tuple(advanced(tokens, drafts, draft_lengths, status, pending, lengths, room, is_end))  # type: ignore[return-value]


@advance.register_kernel("cuda")
def _on_cuda(*arguments: Any) -> tuple[Tensor, ...]:
    if missing() is not None:
        return advance._init_fn(*arguments)  # type: ignore[no-any-return]
    from decodekit.kernels.verify_kernel import launched

    return launched(*arguments)


@advance.register_fake
def _shapes_of(
    tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor,
    pending: Tensor, lengths: Tensor, room: Tensor, is_end: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    num_rows, width = tokens.shape
    small = [tokens.new_empty(num_rows, dtype=torch.int32) for _ in range(4)]
    return (small[0], small[1], tokens.new_empty(num_rows), small[2], small[3], tokens.new_empty(num_rows, width))
