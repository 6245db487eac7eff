"""A token joins a text: constraint, bytes, and whether the text ends with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodekit.errors import DecodekitError
from decodekit.generation.stopping import finish_reason

if TYPE_CHECKING:
    import numpy.typing as npt

    from decodekit.constraints.matching.matcher import Matcher
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


def can_stop_here(sequence: Sequence, settings: Settings) -> bool:
    """Whether a row that must satisfy its constraint in time may end where no token may follow: its text is whole."""
    return settings.must_close and sequence.matcher is not None and sequence.matcher.is_accepting


def ends_in_time(sequence: Sequence, token: int, settings: Settings) -> bool:
    """Whether the constraint can be satisfied within the budget after `token`.

    By induction some token always passes: the first one of the completion that was found when the token before passed.
    Once a row depends on that, the completion is its `plan`.
    """
    assert sequence.matcher is not None
    num_left = sequence.max_tokens - len(sequence.token_ids) - 1  # after this token
    plan = plan_before(sequence.matcher, sequence.plan, token, num_left, settings.left_out)
    if plan is None:
        return False
    sequence.plan = plan
    return True


def plan_before(
    matcher: Matcher, plan: tuple[int, ...], token: int, num_left: int, left_out: frozenset[int]
) -> tuple[int, ...] | None:
    """The plan of a text before `token`, after which `num_left` tokens may come; None if that is too late for any.

    Args:
        matcher: the state before the token.
        plan: what the text depends on so far; empty for nothing.
        token: what may come.
        num_left: how many tokens after it.
        left_out: tokens that no plan has.
    """
    if matcher.can_end_within(num_left, token, left_out):
        return plan
    plan = plan or matcher.completion(left_out)
    return plan if plan[:1] == (token,) and len(plan) <= num_left + 1 else None


def keep_ending(
    matcher: Matcher, plan: tuple[int, ...], num_left: int, left_out: frozenset[int], row: npt.NDArray[np.int32]
) -> None:
    """Clear the tokens of a mask, int32 [words], that come too late: those for which `plan_before` is None.

    A few of them may keep their bits, see `Matcher.fill_ending`.
    """
    ending = np.zeros_like(row)
    matcher.fill_ending(ending, num_left, left_out)
    plan = plan or matcher.completion(left_out)
    if plan and len(plan) <= num_left + 1:
        ending.view(np.uint32)[plan[0] >> 5] |= np.uint32(1 << (plan[0] & 31))
    row &= ending
