"""Completions: what a caller gets of the text and the tokens that a loop gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.growing import GrowingValue, ValueSoFar
from decodekit.errors import DecodekitError, LengthError, RequestInterruptedError
from decodekit.generation.completion import Chunk, Completion
from decodekit.generation.results import Result
from decodekit.llm.plan import Plan
from decodekit.llm.retries import value_error


def completed(plan: Plan, index: int, text: str, result: Result) -> Completion:
    """The completion of a prompt; where several samples were drawn, what the strategy makes of them."""
    completion = _completion(plan, index, text, result)
    if plan.choice is not None:
        completion = plan.choice.choose([replace(completion, others=()), *completion.others])
        if not plan.options.logprobs:  # the strategy alone asked for them
            others = tuple(replace(other, logprobs=None) for other in completion.others)
            completion = replace(completion, logprobs=None, others=others)
    if isinstance(completion.error, RequestInterruptedError):
        completion.error.text = completion.text
    return completion


def whole(plan: Plan, index: int, completion: Completion) -> Chunk:
    """A completion as its only chunk."""
    so_far = value_so_far(growing_of(plan), completion.text, completion)
    return Chunk(index, completion.text, completion.token_ids, completion, completion.logprobs or (), so_far)


def growing_of(plan: Plan) -> GrowingValue | None:
    """The values so far of one text of a call; None if its texts hold no JSON."""
    return None if plan.grammar is None else GrowingValue.of(plan.grammar.constraint)


def value_so_far(growing: GrowingValue | None, text: str, completion: Completion | None) -> ValueSoFar | None:
    """The value after one more piece of a text, which is the last one if there is a completion."""
    if growing is None:
        return None
    is_whole = completion is not None and (
        completion.finish_reason in ("stop", "complete") or completion.value is not None
    )
    return growing.push(text, is_whole=is_whole)


def _completion(plan: Plan, index: int, text: str, result: Result) -> Completion:
    value, error = None, result.error
    is_whole = result.finish_reason in ("stop", "complete") or result.is_satisfied
    if plan.grammar is not None and error is None and is_whole:
        value, error = _parse(plan.grammar.constraint, text, index)
    if error is None and result.finish_reason == "length" and plan.on_length != "return":
        error = length_error(plan, index, text, len(result.token_ids), result.is_satisfied)
    settings = plan.settings
    has_logprobs = settings.num_alternatives is not None and (plan.options.logprobs or plan.choice is not None)
    others = tuple(
        _completion(plan, index, other.text, other.result) for other in result.others if other.result is not None
    )
    return Completion(
        text,
        result.token_ids,
        value,
        result.finish_reason,
        error,
        result.logprobs if has_logprobs else None,
        replace(result.stats, recommended=plan.recommended) if plan.recommended else result.stats,
        result.score,
        others,
        result.trace if settings.traces else None,
        result.tree,
    )


def _parse(constraint: Constraint, text: str, index: int) -> tuple[Any, DecodekitError | None]:
    try:
        return constraint.parse(text), None
    except DecodekitError as error:
        return None, error
    except Exception as error:  # a validator of the user's own type raises what it likes
        return None, value_error(error, text, f"prompt {index}")


def length_error(plan: Plan, index: int, text: str, num_tokens: int, is_satisfied: bool) -> LengthError:
    """The error of a text that was cut, with what the text was spent on and what would help.

    Args:
        plan: of the call.
        index: of the prompt.
        text: as far as it goes, of `num_tokens` tokens.
        num_tokens: of the text.
        is_satisfied: whether the text satisfies its constraint as it is.
    """
    limit = plan.options.max_new_tokens
    is_full = num_tokens < limit
    cause = "the model's context was full" if is_full else f"the text was cut at max_new_tokens={limit:,}"
    hints = ["a shorter prompt" if is_full else "a larger max_new_tokens", "bounds on lengths in the constraint"]
    if plan.grammar is not None and is_satisfied:
        cause += "; as it is it satisfies the constraint, and it might have gone on"
    elif plan.grammar is not None:
        from decodekit.constraints.author.filling import remark  # which not every user needs

        cause += " before the constraint was satisfied"
        spent_on = remark(plan.grammar.constraint, text)
        if spent_on is not None:
            cause += f": {spent_on[0]}"
            hints.insert(0, spent_on[1])
    if plan.grammar is not None and plan.on_length != "close":
        hints.append('on_length="close" to end in time')
    at = f"prompt {index}, after {num_tokens:,} tokens, {text[-40:]!r}"
    return LengthError(cause, at=at, hint=", ".join([*dict.fromkeys(hints), 'or on_length="return"']))
