"""Attempts of a prompt: what a validator refuses is asked for again, with the text and the reason in the prompt.

    llm.generate("Invoice A-17, total -4 EUR.", constraint=Invoice, max_retries=2)

Where a value fails a validator of its type, or a guard refuses every text, the next attempt reads

    Invoice A-17, total -4 EUR.{"number":"A-17","total":-4}

    That is refused: total: the total is negative
    Corrected:

A conversation gets two messages instead: the text as the assistant's, the refusal as the user's. Attempts add up, so
the third one reads both refusals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.thought import Thought
from decodekit.decoding.request.completion import Completion
from decodekit.decoding.request.prompt import Prompt, encode_plain, is_messages, token_ids_of
from decodekit.errors import ConstraintError, DecodekitError, GuardError, InvalidValueError, OptionError
from decodekit.quoting import QuotedText
from decodekit.sampling.checks import plain
from decodekit.strategy import check_seed

REFUSED: Final = "That is refused: {reason}"
"""What the next attempt is told; `reason` is the message of the validator or guard."""

MAX_REASON: Final = 2_000
"""Most characters of a reason."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a prompt, and its text so far.

    Args:
        index: number of the prompt.
        prompt: what is read.
        seed: of the prompt, the same for every attempt; the error if there is none.
        before: the completions of the attempts before it, the first one first.

    Attributes:
        thought: with which the text may begin.
        growing: the text for those who see it grow, a `completions.GrowingText`.
    """

    index: int
    prompt: Prompt
    seed: int | DecodekitError
    before: tuple[Completion, ...] = ()
    text: str = field(init=False, default="")
    thought: Thought | None = field(init=False, default=None)
    growing: Any = field(init=False, default=None)

    def again(self, completion: Completion, tokenizer: Any) -> Attempt:
        """The next attempt at the prompt, after one with this completion."""
        prompt = corrected(self.prompt, completion.content, reason_of(completion), tokenizer)
        return Attempt(self.index, prompt, self.seed, (*self.before, completion))

    def named(self, completion: Completion) -> Completion:
        """A completion with the prompt as it was given, and its seed."""
        prompt = self.before[0].prompt if self.before else self.prompt
        return replace(completion, prompt=prompt, seed=self.seed if isinstance(self.seed, int) else None)

    def finished(self, completion: Completion) -> Completion:
        """The last completion of the prompt, with those of the attempts before it."""
        if not self.before:
            return completion
        stats = replace(completion.stats, num_retries=len(self.before))
        return replace(completion, stats=stats, attempts=self.before)


def first_attempts(prompts: Iterable[Prompt], seeds: Iterable[int]) -> Iterator[Attempt]:
    """The first attempt at each prompt, with the next seed; a prompt that cannot be read uses its seed up, too."""
    each_seed = iter(seeds)
    for index, prompt in enumerate(prompts):
        seed, faults = plain(next(each_seed, None)), list[DecodekitError]()
        if seed is None:
            faults.append(OptionError(f"there are prompts but only {index} seeds", at=f"prompt {index}"))
        else:
            check_seed(seed, faults)
        yield Attempt(index, prompt, faults[0] if faults else seed)


def is_refused(completion: Completion) -> bool:
    """Whether a validator or a guard refused the value: what another attempt may mend."""
    return isinstance(completion.error, InvalidValueError | GuardError)


def reason_of(completion: Completion) -> str:
    """The reason why the value was refused, in the words of the validator or guard."""
    error = completion.error
    assert error is not None
    raised = error.__cause__
    reason = error.cause
    if raised is not None and hasattr(raised, "errors") and callable(raised.errors):  # pydantic: a line for each fault
        reason = "; ".join(_fault_line(fault) for fault in raised.errors(include_url=False))
    elif raised is not None and not isinstance(raised, DecodekitError):
        reason = str(raised) or type(raised).__name__
    elif isinstance(error, GuardError):
        reason = error.cause.rpartition("the last: ")[2]
    return reason[:MAX_REASON]


def corrected(prompt: Prompt, text: str, reason: str, tokenizer: Any) -> Prompt:
    """The prompt of the next attempt."""
    refused = REFUSED.format(reason=reason)
    if isinstance(prompt, QuotedText):
        return prompt.followed_by(f"{text}\n\n{refused}\nCorrected:\n")
    if isinstance(prompt, str):
        return f"{prompt}{text}\n\n{refused}\nCorrected:\n"
    if not is_messages(prompt):
        return [*token_ids_of(prompt, "prompt"), *encode_plain(tokenizer, f"{text}\n\n{refused}\nCorrected:\n")]
    said: list[Mapping[str, Any]] = [*prompt]
    if said[-1].get("role") == "assistant":  # it was gone on with
        last = said.pop()
        text = f"{last.get('content') or ''}{text}"
    return [*said, {"role": "assistant", "content": text}, {"role": "user", "content": refused}]


def template_arguments_again(chat: TemplateArguments) -> TemplateArguments:
    """The arguments of the template for a further attempt."""
    return replace(chat, options=options_again(chat.options))


def options_again(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a template in a further attempt: nothing is gone on with."""
    return {name: one for name, one in options.items() if name != "continue_final_message"}


def value_error(error: Exception, text: str, at: str) -> ConstraintError:
    """The error of a text that satisfies its constraint and of which no value can be made."""
    fault = InvalidValueError(
        f"the text matches the constraint, but no value can be made of it: {type(error).__name__}: {error}",
        at=f"{at}, {text[:80]!r}",
        hint="max_retries= (more of them) to ask again with the reason, or constraint=dk.Guarded(...) to take it back",
    )
    fault.__cause__ = error
    _forget_frames(error)
    return fault


def _forget_frames(error: Exception) -> None:
    """Let go of the frames of pydantic's error and of those inside, which hold the model where no collector looks."""
    if type(error).__module__.startswith("pydantic_core"):
        error.__traceback__ = None
        for fault in error.errors(include_url=False, include_input=False):  # type: ignore[attr-defined]
            inner = fault.get("ctx", {}).get("error")
            if isinstance(inner, BaseException):
                inner.__traceback__ = None


def rename(completion: Completion, number: int, index: int) -> None:
    """Let the error of an attempt name its prompt, which the loop knows as a request, maybe by another number."""
    error = completion.error
    if error is None or error.at is None:
        return
    place, comma, rest = error.at.partition(",")
    if place in (f"prompt {number}", f"request {number}"):
        error.at = f"prompt {index}{comma}{rest}"


def _fault_line(fault: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in fault.get("loc", ()))
    return f"{place}: {fault['msg']}" if place else str(fault["msg"])
