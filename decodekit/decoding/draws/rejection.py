"""Verification by rejection in the loop: where a drawn token of a draft stands, the target tests it.

The outcome of a position is its own affair here, too: a kept token, or its replacement, is the target's choice there,
as a draw of its own would be, and `speculation.verification.coupled_match` says how far the choices agree with the
draft.

A drawn token must not be dropped for what it is, or the tokens that remain follow another distribution than q. So one
that the constraint forbids, or that ends the text, ends its draft, but is tested like the others: the model need not
read it for that. Lengths and limits cut a draft wherever they like.

Where a text was taken back, the noise of the draft would give the token once more that is banned there now; so such a
draft is not tested but matched, as one that was chosen. One distribution is not that of coupled match: that of a text
after it was taken back (see `positions.Backtrack`), where the noise of a position serves more than one prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from decodekit.decoding.lazy_masks.positions import Drawn, Position
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.errors import DecodekitError, OptionError
from decodekit.sampling import Candidates, sample
from decodekit.sampling.noise import Stream, uniforms
from decodekit.speculation.proposer import Draft
from decodekit.speculation.verification import is_accepted, residual

Error = TypeVar("Error", bound=DecodekitError)


def may_test(sequence: TextRow, settings: Settings) -> bool:
    """Whether the drawn tokens of a draft for this text are tested."""
    return settings.verify == "rejection" and not sequence.banned


def drawn_tokens(draft: Draft, num_read: int, vocab_size: int) -> tuple[Drawn, ...]:
    """The first `num_read` tokens of a draft, and one more if there is one; none if they were chosen and not drawn.

    `OptionError` if the probabilities are not of shape [k, V].
    """
    distributions = draft.probabilities
    if distributions is None:
        return ()
    if distributions.shape != (len(draft), vocab_size):
        raise OptionError(
            f"the probabilities of a draft have the shape {list(distributions.shape)}, not {[len(draft), vocab_size]}",
            at="speculate",
            hint="None from a proposer that chooses its tokens and draws none",
        )
    return tuple(map(Drawn, draft.tokens[: num_read + 1], distributions))


def verified(
    choices: list[int | Error], positions: Sequence[Position], rows: Tensor | Candidates, keys: NoiseKeys
) -> list[int | Error]:
    """The choices, but where a drawn token stands, it or what replaces it.

    Args:
        choices, positions: [P], the target's own draws, and where.
        rows: [P, V], the processed rows; p is their softmax.
        keys: [P], of the noise. The test and the replacement have numbers of their own.
    """
    tested = [i for i, choice in enumerate(choices) if positions[i].drawn is not None and isinstance(choice, int)]
    if not tested:
        return choices
    rows = rows.dense() if isinstance(rows, Candidates) else rows
    p = rows[torch.tensor(tested, device=rows.device)].double().softmax(dim=-1)
    drawn = [one for i in tested if (one := positions[i].drawn) is not None]
    q = torch.stack([one.distribution for one in drawn]).to(p)
    tokens = torch.tensor([one.token for one in drawn], device=p.device)[:, None]
    u = torch.from_numpy(uniforms(*keys.of(tested, Stream.TEST))).to(p.device)
    kept = is_accepted(p.gather(1, tokens)[:, 0], q.gather(1, tokens)[:, 0], u).tolist()
    found = list(choices)
    for i, one in zip(tested, drawn, strict=True):
        found[i] = one.token
    refused = [row for row, is_kept in enumerate(kept) if not is_kept]
    if refused:
        rest = residual(p[refused], q[refused]).log().float()
        replacements = sample(rest, *keys.of([tested[row] for row in refused], Stream.RESIDUAL))
        for row, token in zip(refused, replacements.tolist(), strict=True):
            found[tested[row]] = token
    return found
