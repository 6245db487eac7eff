"""The budget of a text: how many tokens it may have, and with ``on_length="close"`` whether it can end within it.

A text closes in time by induction. Say 3 tokens are left and ``{"a": 1`` stands. ``}`` passes, for the constraint is
satisfied after it; ``0`` passes, for the completion ``}`` fits into the 2 tokens after it; ``, "b`` does not, if the
least completion ``": 0}`` has 4. The completion that was found when a token passed is the text's `TextRow.plan`: its
first token passes next, whatever else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodekit.errors import ContextLengthError, LengthError, OptionError

if TYPE_CHECKING:
    import numpy.typing as npt

    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.decoding.loop.text_row import Request, TextRow
    from decodekit.decoding.request.settings import Settings
    from decodekit.models.causal_lm import CausalLM


def token_budget(index: int, request: Request, model: CausalLM, settings: Settings) -> int:
    """The number of tokens that may be generated for a request.

    Raises:
        OptionError: its prompt has no tokens.
        ContextLengthError: its prompt fills the context of the model.
    """
    context_length = model.context_length
    if not len(request.prompt):
        raise OptionError(
            "the prompt has no tokens, so that the model has nothing to continue",
            at=f"prompt {index}",
            hint="a prompt that is not empty; this tokenizer puts no token at the beginning",
        )
    if context_length is None:
        return settings.max_new_tokens
    for what, tokens, hint in (
        ("prompt", request.prompt, "a shorter prompt, or a model with a longer context"),
        ("negative prompt", request.negative_prompt, "a shorter negative prompt"),
    ):
        if len(tokens) >= context_length:
            raise ContextLengthError(
                f"the {what} has {len(tokens):,} tokens, the context of the model {context_length:,}: "
                "there is no room for an answer",
                at=f"prompt {index}",
                hint=hint,
            )
    return min(settings.max_new_tokens, context_length - max(len(request.prompt), len(request.negative_prompt)))


def check_budget(sequence: TextRow, settings: Settings) -> None:
    """Raise the `LengthError` of a row that must satisfy its constraint in time, where no text is short enough."""
    if not settings.must_close or sequence.matcher is None:
        return
    least = len(sequence.matcher.completion(settings.left_out))
    if least > sequence.max_tokens:
        is_cut = sequence.max_tokens < settings.max_new_tokens  # by the context of the model
        raise LengthError(
            f"no text of the constraint fits into {sequence.max_tokens:,} tokens: the least known has {least:,}",
            at=f"prompt {sequence.index}",
            hint="a shorter prompt" if is_cut else "a larger max_new_tokens",
        )


def must_close(sequence: TextRow, settings: Settings) -> bool:
    """Whether the constraint of a row has to be satisfied within its budget."""
    return settings.must_close and sequence.matcher is not None


def can_stop_here(sequence: TextRow, settings: Settings) -> bool:
    """Whether a row that must satisfy its constraint in time may end where no token may follow: its text is whole."""
    return settings.must_close and sequence.matcher is not None and sequence.matcher.is_accepting


def ends_in_time(sequence: TextRow, token: int, settings: Settings) -> bool:
    """Whether the constraint can be satisfied within the budget after `token`.

    By induction some token always passes: the first one of the completion that was found when the token before passed.
    Once a row depends on that, the completion is its `plan`.
    """
    plan = plan_of(sequence, token, settings)
    if plan is None:
        return False
    sequence.plan = plan
    return True


def plan_of(sequence: TextRow, token: int, settings: Settings) -> tuple[int, ...] | None:
    """The plan of a row before `token` comes; None if that is too late for any."""
    assert sequence.matcher is not None
    num_left = sequence.max_tokens - len(sequence.token_ids) - 1  # after this token
    return plan_before(sequence.matcher, sequence.plan, token, num_left, settings.left_out)


def plan_before(
    matcher: Matcher, plan: tuple[int, ...], token: int, num_left: int, left_out: frozenset[int]
) -> tuple[int, ...] | None:
    """The plan of a text before `token`, after which `num_left` tokens may come; None if that is too late for any."""
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
