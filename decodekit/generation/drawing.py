"""From logits to a token, for many places at once: places of many rows, and along the draft of each.

Everything here is a function of a place alone: its logits, the tokens before it, its mask, its seed and position. That
is why a draft may be looked at as a whole, and why rows do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodekitError, DecodingError, NonFiniteLogitsError
from decodekit.generation.buffers import NONE_ALLOWED, TokenTable, sole_tokens
from decodekit.generation.sequence import Sequence, TokenLogprob
from decodekit.generation.settings import NoiseKeys, Settings

if TYPE_CHECKING:
    from decodekit.sampling import Candidates


class Place(NamedTuple):
    """Where a token is wanted: after the text of a sequence and some tokens of a draft."""

    sequence: Sequence
    draft: Rows[int] = ()

    @property
    def position(self) -> int:
        """Index of the wanted token among the generated ones."""
        return len(self.sequence.token_ids) + len(self.draft)

    def __str__(self) -> str:
        return f"prompt {self.sequence.index}, step {self.position}"


def places_along(sequences: Rows[Sequence], drafts: Rows[Rows[int]]) -> list[Place]:
    """The places after the first 0, 1, ..., k tokens of each draft, row by row."""
    if not any(drafts):
        return list(map(Place, sequences))
    return [
        Place(sequence, draft[:num_tokens])
        for sequence, draft in zip(sequences, drafts, strict=True)
        for num_tokens in range(len(draft) + 1)
    ]


def choose(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """One token per place, or the error of the place."""
    if bitmask is None:
        return draw(places, logits, None, settings, table)
    # A token that is the only one allowed is certain: temperature and truncation keep it, whatever its logit. Noise is
    # keyed by position, so that not drawing here moves no later draw.
    sole = sole_tokens(bitmask)
    if settings.can_ban:
        sole = [token if token == NONE_ALLOWED else None for token in sole]
    rows = [row for row, token in enumerate(sole) if token is None]
    if len(rows) == len(places):
        return draw(places, logits, bitmask, settings, table)
    drawn: Iterator[int | DecodekitError] = iter(())
    if rows:
        index = torch.tensor(rows)
        some = [places[row] for row in rows]
        drawn = iter(draw(some, logits[index.to(logits.device)], bitmask[index], settings, table))
    return [
        next(drawn) if token is None else place.sequence.error or _dead_end(place) if token == NONE_ALLOWED else token
        for place, token in zip(places, sole, strict=True)
    ]


def draw(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """Process the logits [P, V] and select one token per place, or the error of the place."""
    try:
        return [*settings.select(scores(places, logits, bitmask, settings, table), noise_keys(places)).tolist()]
    except DecodingError as error:
        if len(places) == 1:
            return [_at(places[0], error)]
    # One place must not stop the others. Everything is a pure function of the place, so that each is drawn alone.
    return [
        choice
        for row, place in enumerate(places)
        for choice in draw(
            [place], logits[row : row + 1], None if bitmask is None else bitmask[row : row + 1], settings, table
        )
    ]


def scores(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> Tensor | Candidates:
    """The processed rows: each with the text that stands before it, draft included, and with its own mask."""
    device = logits.device
    history = None
    if table is not None:
        history = table.history([place.sequence for place in places], [place.draft for place in places], device)
    return settings.pipeline.narrow(logits, history, None if bitmask is None else bitmask.to(device))


def noise_keys(places: Rows[Place]) -> NoiseKeys:
    """Seed, sequence and absolute position of every place."""
    requests = [place.sequence.request for place in places]
    positions = [len(place.sequence.token_ids) + len(place.draft) for place in places]
    return NoiseKeys([one.seed for one in requests], [one.sequence for one in requests], positions)


def measure(logits: Tensor, tokens: Rows[int], num_alternatives: int) -> list[TokenLogprob]:
    """Log-probabilities of taken tokens under the model's own law, logits [N, V]."""
    law = torch.log_softmax(logits, dim=-1)
    taken = law.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    top = law.topk(min(num_alternatives, law.shape[-1]), dim=-1)
    return [
        TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)))
        for token, logprob, ids, values in zip(tokens, taken, top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def _dead_end(place: Place) -> DeadEndError:
    return DeadEndError(
        "the constraint allows no token of this vocabulary and the text is not complete",
        at=str(place),
        hint="a tokenizer that has every byte as a token, or a wider constraint",
    )


def _at(place: Place, error: DecodingError) -> DecodingError:
    """The error of a place that was drawn alone, with the place that a caller knows."""
    if isinstance(error, DeadEndError):
        cause = "every token that is allowed has a logit of -inf"
        hint = error.hint or "a wider constraint, or fewer forbidden tokens in logit_bias"
        return DeadEndError(cause, at=str(place), hint=hint)
    if isinstance(error, NonFiniteLogitsError):
        hint = error.hint or 'dtype="float32" or "bfloat16": float16 overflows in many models'
        return NonFiniteLogitsError("the model gave NaN or +inf logits", at=str(place), hint=hint)
    return error
