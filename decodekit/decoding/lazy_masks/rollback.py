"""Guards in the loop: a token that a guard refuses is drawn again, a text that a guard refuses is taken back.

A guard judges whole texts, so it is asked about a drawn token with which the text would end; its reader, if it has one,
about every drawn token. If all of the text so far
can stay (`Refusal.keep`), the bit of the token is cleared and the row drawn again: with noise that is keyed by the
token, the argmax over the rest is the token that the exact mask would have given. If less can stay, or if no token is
left, the text goes back to a checkpoint, with the token that followed it banned there. Bans belong to the prefix: they
add up as long as the text comes back to it, and are forgotten when it goes back further.

A token that the reader refuses is taken back at once, and this counts as a rollback even if nothing before it is wrong:
else a string whose end is refused could go on to the end of the budget.

Going back by one token at a time could wander among the ways to write one value for ever (whitespace, escapes). So the
r-th rollback goes back ``luby(r) - 1`` tokens further than it must: 0, 0, 1, 0, 0, 1, 3, ... (M. Luby, A. Sinclair,
D. Zuckerman, Optimal speedup of Las Vegas algorithms, 1993). A token that was the only one of its mask is never the one
that is banned, because nothing would be left there: ``P`` begins every duration, so of ``"P1D`` the ``1`` is banned.

All of this is state of one row, so a text does not depend on its neighbours. After the first rollback the distribution
of a row is no longer the exact conditional one of the model given that the guard accepts: prefixes are banned that
other continuations might have saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from decodekit.constraints.engine.bitmask import allocate_bitmask, num_set
from decodekit.errors import DeadEndError, DecodekitError, GuardError

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from decodekit.constraints.constraint import Refusal
    from decodekit.decoding.loop.text_row import TextRow

MAX_REDRAWS: Final = 1024
"""How many tokens are refused at one position before the row fails."""


def luby(number: int) -> int:
    """The sequence 1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8, ... for 1, 2, 3, ..."""
    while (number & (number + 1)) != 0:  # not 2^k - 1: the value repeats that of the rest after the last whole block
        number -= (1 << (number.bit_length() - 1)) - 1
    return (number + 1) >> 1


def checkpoint(text: Rows[int], keep: int, token_texts: Rows[bytes | None]) -> int:
    """The largest number of tokens of the text that lie within its first `keep` bytes; see `Matcher.token_texts`."""
    num_bytes = 0
    for number, token in enumerate(text):
        num_bytes += len(token_texts[token] or b"")
        if num_bytes > keep:
            return number
    return len(text)


def destination(sequence: TextRow, first: int, last: int) -> int:
    """The length after the next rollback of a row: `first` tokens or fewer, or more behind tokens without alternatives.

    Args:
        first: how many tokens can stay.
        last: how many may stay at most. If there was no other way between, it leads to the last one before.
    """
    assert sequence.matcher is not None
    text, here = sequence.token_ids, max(0, first - luby(sequence.num_rollbacks + 1) + 1)
    matcher, mask = sequence.matcher.fork(), allocate_bitmask(1, len(sequence.matcher.token_texts))
    matcher.rollback(len(text) - here)

    def has_choice() -> bool:
        matcher.fill_bitmask(mask, exact=False)
        return num_set(mask[0]) > 1

    for place in range(here, last + 1):
        if place == len(text) or has_choice():
            return place
        matcher.accept(text[place])
    matcher.rollback(last + 1 - here)
    while here and not has_choice():
        matcher.rollback(1)
        here -= 1
    return here


def failure(sequence: TextRow, max_rollbacks: int, dead_end: DecodekitError | None = None) -> DecodekitError | None:
    """The error of a row that cannot be rolled back again; None if it can."""
    if sequence.token_ids and sequence.num_rollbacks < max_rollbacks:
        return None
    if sequence.refusal is None:
        return dead_end or DeadEndError("no token is allowed", at=f"prompt {sequence.index}")
    return give_up(sequence, sequence.refusal)


def give_up(sequence: TextRow, refusal: Refusal) -> GuardError:
    """The error of a row whose guard accepts nothing that was tried."""
    return GuardError(
        f"the guard refused every text that was tried ({sequence.num_guard_refusals:,} refusals, "
        f"{sequence.num_rollbacks:,} rollbacks); the last: {refusal.message}",
        at=f"prompt {sequence.index}, {refusal.at}",
        hint="a larger max_rollbacks, another seed or a higher temperature, or a constraint that says more of what the "
        "guard asks for",
    )
