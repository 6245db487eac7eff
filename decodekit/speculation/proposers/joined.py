"""Several proposers: tried in order (`Chain`), or one draft of all of them, where one goes on from another (`Joined`).

    prompt            Invoice A-17, total 40.20 EUR.
    1. the grammar    {"number":"                     the constraint allows nothing else
    2. a draft model  A-17"                           after that, a guess
    3. the grammar    ,"total":                       and after that, again the only bytes that are allowed

    Chain             {"number":"                     the first that offers something; the draft model in the next step
    Joined            {"number":"A-17","total":       all three parts, verified in one forward pass

A list of proposers as an option is a `Chain`; ``"grammar+prompt-lookup"`` is a `Joined` (see `names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import one_hot

from decodekit.errors import OptionError
from decodekit.sampling.checks import COUNT
from decodekit.speculation.proposer import Context, Draft, Proposer, asked, is_proposer, no_proposer, source_names


@dataclass(frozen=True)
class Chain:
    """Several proposers, tried in order: for each row the first draft with a legal token counts.

    Args:
        proposers: at least one.

    Raises:
        OptionError: there is none, or something is not a proposer.
    """

    proposers: tuple[Proposer, ...]

    def __post_init__(self) -> None:
        _check_proposers(self.proposers)
        if not self.proposers:
            raise no_proposer(None)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """For each context the first draft that offers anything."""
        rows = [_Growing(context, limit) for context, limit in zip(contexts, limits, strict=True)]
        _ask_in_turn(self.proposers, rows)
        sources = source_names(self.proposers)
        return [
            replace(row.parts[0], source=row.parts[0].source or sources[row.last]) if row.parts else Draft()
            for row in rows
        ]


@dataclass(frozen=True)
class Joined:
    """Several proposers that go on from one another's guesses within one draft.

    For each row the first proposer that offers a legal token begins, as in a `Chain`; then the first of the others that
    has something to add goes on, and so forth in turn, until none has. It pays where guesses are mostly right: what
    follows a wrong one is verified in vain.

    Args:
        proposers: at least two.
        max_tokens: most tokens of a draft.

    Raises:
        OptionError: there are fewer, something is not a proposer, or the number is out of range.
    """

    proposers: tuple[Proposer, ...]
    max_tokens: int = 24

    def __post_init__(self) -> None:
        _check_proposers(self.proposers)
        if len(self.proposers) < 2:
            raise OptionError(f"{len(self.proposers)} proposers cannot be joined", at="speculate", hint="two or more")
        COUNT.require("max_tokens", self.max_tokens)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """For each context what the proposers offer one after another; see `Proposer.propose`."""
        rows = [_Growing(context, min(limit, self.max_tokens)) for context, limit in zip(contexts, limits, strict=True)]
        growing = rows
        while growing:
            growing = [row for row in _ask_in_turn(self.proposers, growing) if row.advance()]
        return [_concatenated(row.parts) for row in rows]


class _Growing:
    """A draft that grows, with room for `num_left` tokens more."""

    def __init__(self, context: Context, num_left: int) -> None:
        self.context = context  # after what is guessed so far
        self.num_left = num_left
        self.parts: list[Draft] = []
        self.last = -1  # the number of the proposer of the last part

    def add(self, offer: Draft, number: int) -> bool:
        """Append the legal beginning of what a proposer offers, if there is one; whether there is."""
        # What was drawn must not be cut for what it is; see `decoding.draws.rejection`.
        is_drawn = offer.probabilities is not None
        part = offer if is_drawn else offer.first(self.context.num_legal(offer.tokens))
        if part:
            self.parts.append(part)
            self.last = number
        return bool(part)

    def advance(self) -> bool:
        """Go to the place after the last part; whether the draft may go on there."""
        tokens = self.parts[-1].tokens
        self.num_left -= len(tokens)
        ahead = self.context.ahead(tokens) if self.num_left > 0 else None
        self.context = ahead or self.context
        return ahead is not None


def _ask_in_turn(proposers: Sequence[Proposer], rows: Sequence[_Growing]) -> list[_Growing]:
    """Add to each row what the first proposer offers that was not the last to add; the rows that got something."""
    waiting = [row for row in rows if row.num_left > 0]
    longer: list[_Growing] = []
    for number, proposer in enumerate(proposers):
        open_rows = [row for row in waiting if row.last != number]
        if not open_rows:
            continue
        offers = asked(proposer, [row.context for row in open_rows], [row.num_left for row in open_rows])
        added = [row for row, offer in zip(open_rows, offers, strict=True) if row.add(offer, number)]
        waiting = [row for row in waiting if row not in added]
        longer += added
    return longer


def _check_proposers(proposers: object) -> None:
    """Raise the `OptionError` of what is not a list of proposers."""
    if not isinstance(proposers, list | tuple):
        raise no_proposer(proposers)
    for proposer in proposers:
        if not is_proposer(proposer):
            raise no_proposer(proposer)


def _concatenated(parts: Sequence[Draft]) -> Draft:
    """One draft; a token that was chosen has probability 1 beside others that were drawn."""
    if len(parts) < 2:
        return parts[0] if parts else Draft()
    tokens = [token for part in parts for token in part.tokens]
    drawn = next((part.probabilities for part in parts if part.probabilities is not None), None)
    if drawn is None:
        return Draft(tokens)
    probabilities = [
        one_hot(torch.tensor(list(part.tokens), device=drawn.device), drawn.shape[-1]).to(drawn)
        if part.probabilities is None
        else part.probabilities
        for part in parts
    ]
    return Draft(tokens, torch.cat(probabilities))
