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

The tokens are drawn by the same program (`sampler_kernel.choose`), so that on a GPU a step ends with one launch, with
top-k or top-p with two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from decodekit.gpu.draw_settings import DRAFT, INDEX
from decodekit.gpu.sampler import chosen, why_no_kernel


class Advance(NamedTuple):
    """The results of N rows."""

    num_taken: Tensor  # int32 [N], tokens that come; 0 where the first position has none
    pending: Tensor  # int64 [N], the last of them, which the model reads next; undefined where none comes
    lengths: Tensor  # int32 [N], tokens that the cache holds from now on
    status: Tensor  # int32 [N], of the position where the row stopped; 0 where it has a token
    out: Tensor  # int64 [N, T], what comes, -1 behind it


def advanced(tokens: Tensor, drafts: Tensor, draft_lengths: Tensor, status: Tensor, lengths: Tensor) -> Advance:
    """The results of the target's tokens along drafts; see the module.

    `tokens` int64 [N, T] are the target's own at each position: after the pending token, then after each of the draft,
    int64 [N, T - 1] with lengths int32 [N]. `status` int32 [N, T] is that of `sampler.sample_rows`, 0 where there is a
    token; `lengths` int32 [N] is what the cache held before the pending token.
    """
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


def moved(
    logits: Tensor, values: Tensor, masks: Tensor, rows: Tensor, starts: Tensor, counts: Tensor, tokens: Tensor,
    taken: Tensor, out: Tensor, has_cut: bool,
) -> None:  # fmt: skip
    """The operation in torch; arguments as of `take_tokens`."""
    num_texts, width = tokens.shape
    num_positions = logits.shape[0] // num_texts
    found = chosen(logits, values, masks, num_positions, has_cut).view(num_texts, num_positions, 4)
    own, given, are_certified, status = found.unbind(dim=2)
    draft_lengths = values[DRAFT].clone()
    num_pending = counts - draft_lengths
    columns = num_pending[:, None] + torch.arange(num_positions - 1, device=logits.device)
    drafts = tokens.gather(1, columns.long().clamp(0, width - 1)).long()
    come = advanced(own.long(), drafts, draft_lengths, status, starts + num_pending - 1)
    taken.index_put_((rows.long(),), come.pending)
    out.copy_(torch.cat([come.out, given, are_certified, come.status[:, None]], dim=1))
    starts.copy_(torch.where(counts > 0, come.lengths, starts))
    counts.clamp_(max=1)
    tokens.fill_(-1)
    values[INDEX].add_(come.num_taken)


@torch.library.custom_op(
    "decodekit::take_tokens", mutates_args=("values", "starts", "counts", "tokens", "taken", "out")
)
def take_tokens(
    logits: Tensor, values: Tensor, masks: Tensor, rows: Tensor, starts: Tensor, counts: Tensor, tokens: Tensor,
    taken: Tensor, out: Tensor, has_cut: bool,
) -> None:  # fmt: skip
    """Draw the tokens of B texts at W positions, match them with drafts, and let the texts move on: the end of a step.

    Args:
        logits: [B * W, V], as of `sampler.sample_rows`.
        values: int32 [MASKS + W, B], as `draw_settings.packed`; the index of each text's token moves on.
        masks: int32 [n, ceil(V / 32)].
        rows: int32 [B], of `taken`.
        starts: int32 [B], what the cache held before the pass; afterwards what it holds from now on. That of a text
            without new tokens stays.
        counts: int32 [B], new tokens of the pass, the draft's among them; then 1, or 0 where there were none.
        tokens: int32 [B, T], what was read; then -1, what stands in `taken`.
        taken: int64 [R], the token that each row has taken last.
        out: int32 [B, 3 W + 1]: tokens that come, -1 behind them; what must be allowed besides; whether they are
            certified; status.
        has_cut: as of `sampler.sample_rows`.
    """
    moved(logits, values, masks, rows, starts, counts, tokens, taken, out, has_cut)


@take_tokens.register_kernel("cuda")
def _on_cuda(logits: Tensor, values: Tensor, masks: Tensor, *others: Any) -> None:
    if why_no_kernel(logits.device) is not None:
        return moved(logits, values, masks, *others)
    from decodekit.gpu.kernels.sampler_kernel import launched

    *step, has_cut = others
    launched(logits, values, masks, logits.shape[0] // values.shape[1], has_cut, tuple(step))
    return None


@take_tokens.register_fake
def _nothing(*arguments: Any) -> None:
    return None
