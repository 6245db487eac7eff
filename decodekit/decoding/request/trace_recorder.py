"""Recording how tokens are taken; see `decoding.request.token_traces` for an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import num_set
from decodekit.decoding.draws.row_draws import log_mass
from decodekit.decoding.lazy_masks.positions import Guess
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.token_traces import Check, Source, TokenOption, TokenTrace, text_of
from decodekit.speculation.verification import num_equal

MAX_OPTIONS: Final = 8
"""So many of the likeliest tokens are kept of every position."""


def trace(
    taken: Sequence[tuple[TextRow, Sequence[int], int]],
    logits: Tensor,
    bitmask: Tensor | None,
    settings: Settings,
    offers: Sequence[Guess] = (),
    choices: Sequence[int | None] | None = None,
) -> None:
    """Note how tokens were taken, if that is wanted.

    Args:
        taken: sequences, the tokens they took last, and the position of the first one among those of the step.
        logits, bitmask: of all positions, [P, V] and [P, W]; None where there are no masks.
        settings: of all rows.
        offers: of each row what a draft had there; none of a search.
        choices: by position what was known without a mask; None where every position has a mask.
    """
    if not settings.traces:
        return
    for row, (sequence, tokens, first) in enumerate(taken):
        if not tokens:
            continue
        places = slice(first, first + len(tokens))
        known = [None] * len(tokens) if choices is None else choices[places]
        sources = _sources(tokens, offers[row] if offers else None)
        log_probs = torch.log_softmax(logits[places].float(), dim=-1)
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1).tolist()
        likeliest = log_probs.topk(min(MAX_OPTIONS, log_probs.shape[-1])).indices.tolist()
        masks = None if bitmask is None or sequence.matcher is None else bitmask[places]
        masses = [] if masks is None else log_mass(log_probs, masks).exp().tolist()
        for i, (token, source) in enumerate(zip(tokens, sources, strict=True)):
            # A token that is not the known one was taken by a mask after all, because the known one was refused.
            is_masked = masks is not None and known[i] != token
            place = _Place(log_probs[i], masks[i].numpy() if masks is not None and is_masked else None, settings)
            check: Check | None = "asked" if known[i] == token else "masked" if is_masked else None
            if sequence.matcher is None:
                check = "free"
            elif source == "forced":
                check = "forced"
            refused = place.option(offers[row].tokens[i]) if source == "draft rejected" else None
            one = TokenTrace(
                place.option(token),
                source,
                check,
                place.num_allowed(check),
                1.0 if check == "free" else masses[i] if is_masked else None,
                entropies[i],
                tuple(map(place.option, likeliest[i])),
                refused,
            )
            sequence.traces.append(one)


@dataclass(frozen=True, slots=True)
class _Place:
    """A position: log-probabilities [V], and its mask, int32 [W], if one was made."""

    log_probs: Tensor
    words: Int32Array | None
    settings: Settings

    def num_allowed(self, check: Check | None) -> int | None:
        """The number of tokens that may come, as far as that is known."""
        if check == "free":
            return self.settings.vocabulary.size
        if check == "forced" and not self.settings.is_canonical:
            return 1
        return None if self.words is None else num_set(self.words)

    def option(self, token: int) -> TokenOption:
        """A token with what is known of it here."""
        is_allowed = None if self.words is None else bool(int(self.words[token // 32]) >> token % 32 & 1)
        text = text_of(token, self.settings.vocabulary)
        return TokenOption(token, text, float(self.log_probs[token]), is_allowed)


def _sources(tokens: Sequence[int], offer: Guess | None) -> list[Source]:
    """The source of each of the tokens that a row took, of which the first ones may be those of a draft."""
    if offer is None:
        return ["model"] * len(tokens)
    num_kept = num_equal(tokens, offer.tokens)
    sources: list[Source] = ["forced"] * min(num_kept, offer.num_forced)
    sources += ["draft accepted"] * (num_kept - len(sources))
    if num_kept < min(len(tokens), len(offer.tokens)):
        sources.append("draft rejected")
    rest: list[Source] = ["model"] * (len(tokens) - len(sources))
    return sources + rest
