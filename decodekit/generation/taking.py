"""A token joins a text: constraint, bytes, and whether the text ends with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodekit.errors import DecodekitError
from decodekit.generation.stopping import finish_reason

if TYPE_CHECKING:
    from decodekit.generation.buffers import TokenTable
    from decodekit.generation.sequence import Sequence
    from decodekit.generation.settings import Settings


def take(sequence: Sequence, token: int, settings: Settings, table: TokenTable | None) -> bool:
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


def must_close(sequence: Sequence, settings: Settings) -> bool:
    """Whether the constraint of a row has to be satisfied within its budget."""
    return settings.must_close and sequence.matcher is not None


def ends_in_time(sequence: Sequence, token: int) -> bool:
    """Whether the constraint can be satisfied within the budget after `token`.

    By induction some token always passes: the first one of the completion that was found when the token before passed.
    Once a row depends on that, the completion is its `plan`.
    """
    assert sequence.matcher is not None
    num_left = sequence.max_tokens - len(sequence.token_ids) - 1  # after this token
    if sequence.matcher.can_end_within(num_left, token):
        return True
    plan = sequence.plan or sequence.matcher.completion()
    if plan[:1] != (token,) or len(plan) > num_left + 1:
        return False
    sequence.plan = plan
    return True
