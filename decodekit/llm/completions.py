"""Completions: what a caller gets of the text and the tokens that a loop gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from decodekit.chat.thought import Thought, ThoughtSplit, ThoughtTokens
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.growing import GrowingValue
from decodekit.decoding.request.completion import Chunk, Completion
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.updates import Result, Update
from decodekit.errors import DecodekitError, LengthError, RequestInterruptedError
from decodekit.llm.plans.plan import Plan
from decodekit.llm.retries import value_error


class GrowingText:
    """A text of a call, as it grows: its thought, its answer, and the value of the answer so far.

    Args:
        plan: of the call.
        thought: with which the text may begin; None if it is all answer.

    Attributes:
        text: so far.
        thought: see above.
    """

    def __init__(self, plan: Plan, thought: Thought | None) -> None:
        self.thought = thought
        self.text = ""
        self._split = ThoughtSplit(thought)
        self._tokens = None if plan.reasoning is None else ThoughtTokens(thought, plan.reasoning.texts)
        self._growing = None if plan.grammar is None else GrowingValue.of(plan.grammar.constraint)

    def chunk(self, index: int, update: Update, completion: Completion | None) -> Chunk:
        """The news as a chunk; with the completion, the last one."""
        self.text += update.text
        reasoning, content = self._split.push(update.text, is_last=completion is not None)
        so_far: Callable[[], Any] | None = None
        if self._growing is not None:
            so_far = self._growing.push(content, is_whole=completion is not None and _is_whole(completion))
        num_tokens = 0 if self._tokens is None else self._tokens.push(update.token_ids)
        return Chunk(
            index, update.text, update.token_ids, completion, update.logprobs, reasoning, content, num_tokens, so_far
        )


def _is_whole(completion: Completion) -> bool:
    return completion.finish_reason in ("stop", "complete") or completion.value is not None


def completed(plan: Plan, index: int, text: str, result: Result, thought: Thought | None = None) -> Completion:
    """The completion of a prompt; where several samples were drawn, what the strategy makes of them.

    What a user's own code raises there is its error; the text is there.

    Args:
        plan: of the call.
        index: of the prompt.
        text, result: as the loop gives them.
        thought: with which the text may begin.
    """
    try:
        return _chosen(plan, _completion(plan, index, text, result, thought))
    except Exception as error:
        fault = fault_of(error, "making the completion", at=f"prompt {index}")
        return Completion(text, result.token_ids, None, "error", fault, None, result.stats)


def _chosen(plan: Plan, completion: Completion) -> Completion:
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
    growing = None if plan.grammar is None else GrowingValue.of(plan.grammar.constraint)
    so_far = None if growing is None else growing.push(completion.content, is_whole=_is_whole(completion))
    said = completion.reasoning or "", completion.content, completion.stats.num_reasoning_tokens
    return Chunk(index, completion.text, completion.token_ids, completion, completion.logprobs or (), *said, so_far)


def _completion(plan: Plan, index: int, text: str, result: Result, thought: Thought | None) -> Completion:
    value, error = None, result.error
    split = ThoughtSplit(thought)
    reasoning, content = split.push(text, is_last=True)
    is_whole = result.finish_reason in ("stop", "complete") or result.is_satisfied
    if plan.grammar is not None and error is None and is_whole:
        value, error = _parse(plan.grammar.constraint, content, index)
        num_blanks = split.content_at - len(text[: split.content_at].rstrip())
        for size in range(1, num_blanks + 1 if error is not None else 0):  # blanks that belong to the value
            longer = _parse(plan.grammar.constraint, text[split.content_at - size :], index)
            value, error = longer if longer[1] is None else (value, error)
    if error is None and result.finish_reason == "length" and plan.on_length != "return":
        said = content if split.is_over else None
        error = length_error(plan, index, said, len(result.token_ids), result.is_satisfied)
    has_logprobs = plan.num_alternatives is not None and (plan.options.logprobs or plan.choice is not None)
    others = tuple(
        _completion(plan, index, other.text, other.result, thought)
        for other in result.others
        if other.result is not None
    )
    stats = result.stats
    if split.has_thought and plan.reasoning is not None:
        num_tokens = ThoughtTokens(thought, plan.reasoning.texts).push(result.token_ids)
        stats = replace(stats, num_reasoning_tokens=num_tokens)
    return Completion(
        text,
        result.token_ids,
        value,
        result.finish_reason,
        error,
        result.logprobs if has_logprobs else None,
        replace(stats, recommended=plan.recommended) if plan.recommended else stats,
        result.score,
        others,
        result.trace if plan.traces else None,
        result.tree,
        reasoning=reasoning if split.has_thought else None,
        content_at=split.content_at,
    )


def _parse(constraint: Constraint, text: str, index: int) -> tuple[Any, DecodekitError | None]:
    try:
        return constraint.parse(text), None
    except DecodekitError as error:
        return None, error
    except Exception as error:  # a validator of the user's own type raises what it likes
        return None, value_error(error, text, f"prompt {index}")


def length_error(plan: Plan, index: int, text: str | None, num_tokens: int, is_satisfied: bool) -> LengthError:
    """The error of a text that was cut, with what the text was spent on and what would help.

    Args:
        plan: of the call.
        index: of the prompt.
        text: the answer as far as it goes; None where the text was cut in its thought.
        num_tokens: of the text.
        is_satisfied: whether the text satisfies its constraint as it is.
    """
    limit = plan.options.max_new_tokens
    is_full = num_tokens < limit
    cause = "the model's context was full" if is_full else f"the text was cut at max_new_tokens={limit:,}"
    hints = ["a shorter prompt" if is_full else "a larger max_new_tokens", "bounds on lengths in the constraint"]
    if text is None:
        cause += " in the thought before the answer"
        hints.insert(0, "max_reasoning_tokens")
    elif plan.grammar is not None and is_satisfied:
        cause += "; as it is it satisfies the constraint, and it might have gone on"
    elif plan.grammar is not None:
        from decodekit.constraints.author.filler import remark  # which not every user needs

        cause += " before the constraint was satisfied"
        spent_on = remark(plan.grammar.constraint, text)
        if spent_on is not None:
            cause += f": {spent_on[0]}"
            hints.insert(0, spent_on[1])
    if plan.grammar is not None and plan.on_length != "close":
        hints.append('on_length="close" to end in time')
    at = f"prompt {index}, after {num_tokens:,} tokens" + ("" if text is None else f", {text[-40:]!r}")
    return LengthError(cause, at=at, hint=", ".join([*dict.fromkeys(hints), 'or on_length="return"']))
