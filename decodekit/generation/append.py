"""Append a token to a text: the constraint and the text stream advance, and the text may end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodekit.errors import DecodekitError
from decodekit.generation.budget import must_close
from decodekit.generation.stopping import finish_reason

if TYPE_CHECKING:
    from decodekit.generation.sequence import Sequence
    from decodekit.generation.settings import Settings
    from decodekit.generation.token_table import TokenTable


def append_token(sequence: Sequence, token: int, settings: Settings, table: TokenTable | None) -> bool:
    """Append a token to a sequence, and finish the sequence if it ends here or if its constraint fails.

    A constraint that outgrew its bounds stops its own row; the other rows go on.

    Returns:
        Whether the sequence goes on.
    """
    try:
        if sequence.matcher is not None and not sequence.matcher.accept(token):
            raise RuntimeError(f"{type(sequence.matcher).__name__} refused token {token}, which its own mask allowed")
        sequence.token_ids.append(token)
        sequence.pending.append(token)
        sequence.plan = sequence.plan[1:] if sequence.plan[:1] == (token,) else ()
        if table is not None and sequence.row >= 0:
            table.append(sequence)
        texts = settings.vocabulary.token_bytes if sequence.matcher is None else sequence.matcher.token_texts
        data = texts[token]
        if data is not None:
            sequence.new_text += sequence.stream.push(data)
        reason = finish_reason(
            token,
            eos_token_ids=settings.vocabulary.eos_token_ids,
            matcher=sequence.matcher,
            is_stopped=sequence.stream.is_stopped,
            num_tokens=len(sequence.token_ids),
            max_tokens=sequence.max_tokens,
        )
        if reason == "length" and must_close(sequence, settings) and sequence.matcher and sequence.matcher.is_accepting:
            reason = "complete"
    except DecodekitError as error:
        sequence.finish("error", error)
        return False
    if reason is not None:
        sequence.finish(reason)
    return reason is None
