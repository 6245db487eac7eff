"""One draft of several proposers: what one guesses, another goes on from.

Where a constraint forces ``{"number": "``, a look-up or a draft model may know what comes then, and where its guess
ends in ``A-17"`` the constraint may force ``, "total": ``. A chain offers one of these in a step and the next in the
next step; joined, they are read in one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from decodekit.errors import OptionError
from decodekit.speculation.proposer import Context, Draft, Proposer, asked, no_proposer


@dataclass(frozen=True)
class Joined:
    """Several proposers that go on from one another's guesses within one draft.

    For each row the first proposer that offers a legal token begins, as in a `Chain`; then the first of the others that
    has something to add goes on, and so forth in turn, until nobody does. The likelier a guess is right, the more is
    won: what follows a wrong one is read in vain.

    Args:
        proposers: at least two.
        max_tokens: most tokens of a draft.

    Raises:
        OptionError: there are fewer, something is no proposer, or the number is out of range.
    """

    proposers: tuple[Proposer, ...]
    max_tokens: int = 24

    def __post_init__(self) -> None:
        if not isinstance(self.proposers, list | tuple):
            raise no_proposer(self.proposers)
        for proposer in self.proposers:
            if isinstance(proposer, type) or not isinstance(proposer, Proposer):
                raise no_proposer(proposer)
        if len(self.proposers) < 2:
            raise OptionError(f"{len(self.proposers)} proposers cannot be joined", at="speculate", hint="two or more")
        value = self.max_tokens
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"max_tokens={value!r} is not an integer from 1 on", at="max_tokens")

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """For each context what the proposers offer one after another; see `Proposer.propose`."""
        rows = [_Row(context, min(limit, self.max_tokens)) for context, limit in zip(contexts, limits, strict=True)]
        going = [row for row in rows if row.num_left > 0]
        while going:
            waiting, going = going, []
            for number, proposer in enumerate(self.proposers):
                open_rows = [row for row in waiting if row.last != number]
                if not open_rows:
                    continue
                offers = asked(proposer, [row.context for row in open_rows], [row.num_left for row in open_rows])
                longer = [row for row, offer in zip(open_rows, offers, strict=True) if row.add(offer, number)]
                waiting = [row for row in waiting if row not in longer]
                going += [row for row in longer if row.num_left > 0]
        return [_concatenated(row.parts) for row in rows]


class _Row:
    """A draft that grows.

    Args:
        context: of its place.
        num_left: how many tokens it may have.
    """

    def __init__(self, context: Context, num_left: int) -> None:
        self.context = context  # behind what is guessed so far
        self.num_left = num_left
        self.parts: list[Draft] = []
        self.last: int | None = None  # the proposer of the last part

    def add(self, offer: Draft, number: int) -> bool:
        """Append the legal beginning of what a proposer offers, if there is one; whether there is."""
        num_legal = self.context.num_legal(offer.tokens)
        # What was drawn must not be cut for what it is; see `generation.rejection`.
        part = offer.first(num_legal) if offer.probabilities is None else offer
        if not part:
            return False
        self.parts.append(part)
        self.last = number
        ahead = self.context.ahead(part.tokens) if num_legal >= len(part) < self.num_left else None
        self.num_left = 0 if ahead is None else self.num_left - len(part)
        self.context = ahead or self.context
        return True


def _concatenated(parts: Sequence[Draft]) -> Draft:
    """One draft; of tokens that were chosen beside others that were drawn, the law is all on the token."""
    if len(parts) < 2:
        return parts[0] if parts else Draft()
    tokens = [token for part in parts for token in part.tokens]
    drawn = next((part.probabilities for part in parts if part.probabilities is not None), None)
    if drawn is None:
        return Draft(tokens)
    laws = [
        one_hot(torch.tensor(list(part.tokens), device=drawn.device), drawn.shape[-1]).to(drawn)
        if part.probabilities is None
        else part.probabilities
        for part in parts
    ]
    return Draft(tokens, torch.cat(laws))
