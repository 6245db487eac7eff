"""Fast-forward: tokens that the constraint leaves no choice about cost no forward pass of their own.

A token that is the only one allowed is taken at once, and the model reads it together with what follows. Nothing else
changes: it would have been taken without a draw, and noise is keyed by position. Where the model's probability of the
token is wanted, or a bias may forbid it, the tokens go along as a draft instead: one forward pass just the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodekit.errors import DecodekitError
from decodekit.generation.taking import ends_in_time, must_close, take

if TYPE_CHECKING:
    from decodekit.generation.buffers import TokenTable
    from decodekit.generation.sequence import Sequence
    from decodekit.generation.settings import Settings


def take_forced(sequence: Sequence, settings: Settings, table: TokenTable | None) -> None:
    """Take what is forced after the text of a sequence, up to its end if all of the rest is."""
    if not settings.is_forced_unseen:
        return
    while run := forced_run(sequence, settings)[0]:
        for token in run:
            try:
                if must_close(sequence, settings) and not ends_in_time(sequence, token):
                    return
            except DecodekitError:  # the row will meet it by itself
                return
            sequence.num_forced_tokens += 1
            if not take(sequence, token, settings, table):
                return


def forced_run(sequence: Sequence, settings: Settings) -> tuple[list[int], bool]:
    """The tokens that follow without a choice, and whether that is by their bytes alone (``"canonical"``)."""
    matcher = sequence.matcher
    if matcher is None or settings.fast_forward == "off":
        return [], False
    try:
        run = matcher.forced_tokens()
        if run or settings.fast_forward == "exact" or sequence.banned:
            return run, False
        assert settings.canonical is not None
        tokens = settings.canonical.settled_after(sequence.token_ids, matcher.forced_text())
        return list(tokens[: matcher.validate(tokens)]), True
    except DecodekitError:  # a constraint that fails: the row will meet it by itself
        return [], False
