r"""The marks of thoughts under a chat template, found by rendering.

    turn with a thought       "<|im_start|>assistant\n<think>\nTHOUGHT\n</think>\n\nANSWER<|im_end|>"
    prompt with a thought     "<|im_start|>assistant\n"
    prompt without            "<|im_start|>assistant\n<think>\n\n</think>\n\n"

An assistant's turn shows both around its thought. Where the template leaves thoughts out of what it writes, the ends of
prompts with and without `enable_thinking` differ by an empty thought. Where it has no such variable, it names the end:
to cut thoughts off. Some write thoughts before calls alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.forms.message_form import REASONING_NAMES
from decodekit.chat.forms.prompt_outline import THOUGHT_END, shared_begin
from decodekit.chat.forms.renderings import common_begin, common_end
from decodekit.chat.thought import TAGS, Thought
from decodekit.errors import DecodekitError

SWITCHES: Final = ("enable_thinking", "thinking", "reasoning")
"""Variables of templates that say whether there is a thought."""

EFFORT: Final = "reasoning_effort"
"""The variable of templates that says how much thought there is."""

BUDGETS: Final = ("thinking_budget", "reasoning_budget")
"""Variables of templates that tell the model how many tokens its thought may have."""

_USER, _THOUGHT, _ANSWER = "zqzux", "zqztx", "zqzax"
_CALLING: Final[Mapping[str, Any]] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "zqzidentx", "function": {"name": "zqzfx", "arguments": {"zqzkx": "zqzvx"}}}
    ],
}
_known: WeakKeyDictionary[Any, dict[Any, Thought | None]] = WeakKeyDictionary()


def thought_of(tokenizer: Any, chat: TemplateArguments) -> Thought | None:
    """The marks of a thought under the template of a tokenizer, `is_open` left False; None if there are none.

    A program that writes conversations has none.
    """
    source = chat.source(tokenizer)
    if source is None:
        return None
    key = source, repr(chat.options), bool(chat.tools)
    try:
        known = _known.setdefault(tokenizer, {})
    except TypeError:  # what cannot be remembered
        known = {}
    if key not in known:
        known[key] = _read(tokenizer, chat, source)
    return known[key]


def _read(tokenizer: Any, chat: TemplateArguments, source: str) -> Thought | None:
    def rendered(*said: Mapping[str, Any], **options: Any) -> str:
        """A conversation; empty where the template refuses it."""
        others = {name: one for name, one in chat.options.items() if name != "continue_final_message"}
        try:
            own = replace(chat, options={**others, **options}, split_special_tokens=False)
            return str(own.written(tokenizer, [{"role": "user", "content": _USER}, *said], "prompt"))
        except DecodekitError:
            return ""

    names = chat.variables_of(tokenizer)
    prompts = [rendered()]
    for name in SWITCHES:
        if name in names and name not in chat.options:
            prompts += [rendered(**{name: True}), rendered(**{name: False})]
            break
    answer: dict[str, Any] = {"role": "assistant", "content": _ANSWER}
    thinking = rendered({**answer, **dict.fromkeys(REASONING_NAMES, _THOUGHT)}, add_generation_prompt=False)
    plain = rendered(answer, add_generation_prompt=False)
    called, calling = (
        rendered({**_CALLING, **dict.fromkeys(REASONING_NAMES, one)} if one else _CALLING, add_generation_prompt=False)
        for one in ("", _THOUGHT)
    )
    marks = itertools.chain(_marks(prompts, thinking, plain, source), [_around_thought(calling, called)])
    for begin, end in marks:
        if begin.strip() and end.strip():
            return _with_answer(begin, end, prompts[0], plain)
    return None


def _marks(prompts: list[str], thinking: str, plain: str, source: str) -> Iterator[tuple[str, str]]:
    """Begins and ends, the surest first."""
    before, is_there, rest = thinking.partition(_THOUGHT)
    end, is_answered, _ = rest.partition(_ANSWER)
    if is_there and is_answered:
        yield _begin_before(before, _answering(end, _BEGINS), prompts), end
    if len(prompts) > 1:
        with_thought, without = (prompt.rpartition(_USER)[2] for prompt in prompts[1:])
        shared = shared_begin((with_thought, without))
        tags = [*TAGS.finditer(empty := without[len(shared) :])]
        if tags and shared == with_thought:  # an empty thought, or the end of one
            end = empty[tags[-1].start() :]
            begin = empty[: tags[-1].start()]
            yield begin if begin.strip() else _begin_before(shared, _answering(end, _BEGINS), []), end
        begun = with_thought[len(shared) :]
        if begun.strip() and (closing := _answering(begun, _ENDS)):
            yield begun, closing
    for prompt in prompts:
        for last in [*TAGS.finditer(prompt)][-1:]:
            closing = _answering(last[0], _ENDS)
            if prompt.rstrip().endswith(last[0]) and THOUGHT_END.search(closing):
                yield prompt[last.start() :], closing
    for match in THOUGHT_END.finditer(source):
        yield _answering(match[0], _BEGINS), match[0]


def _around_thought(thinking: str, plain: str) -> tuple[str, str]:
    """The texts around the thought that the same rendering without it does not have."""
    before, behind = common_begin([thinking, plain]), common_end([thinking, plain])
    begin, _, end = thinking[len(before) : len(thinking) - len(behind)].partition(_THOUGHT)
    return begin, end


def _begin_before(written: str, opener: str, prompts: list[str]) -> str:
    """The mark that opens a thought at the end of the text before it."""
    if opener and written.rstrip().endswith(opener):
        return written[written.rindex(opener) :]
    for prompt in prompts:
        longer, shorter = (prompt, written) if len(prompt) > len(written) else (written, prompt)
        if longer.startswith(shorter) and longer[len(shorter) :].strip():
            return longer[len(shorter) :]
    return ""


def _with_answer(begin: str, end: str, prompt: str, plain: str) -> Thought:
    """A thought, less what stands before each answer: that belongs to the answer."""
    before, is_there, _ = plain.partition(_ANSWER)
    shared = shared_begin((prompt, before))
    if shared.rfind("<") > shared.rfind(">"):  # inside of a tag
        shared = shared[: shared.rindex("<")]
    answer = before[len(shared) :].rpartition(end.strip())[2] if is_there else ""
    if answer.strip() and end.endswith(answer) and end != answer:
        return Thought(begin, end[: -len(answer)], answer)
    return Thought(begin, end, answer if answer.strip() else "")


_BEGINS: Final = (
    (r"</(.+)>", r"<\1>"),
    (r"\[/(.+)\]", r"[\1]"),
    (r"<\|END_(\w+)\|>.*", r"<|START_\1|>"),
    (r"<\|(\w+)_end\|>", r"<|\1_start|>"),
)
"""Patterns of ends, and the begins that they answer to."""
_ENDS: Final = ((r"<([^/|<>]+)>", r"</\1>"), (r"\[([^/\[\]]+)\]", r"[/\1]"), (r"<\|START_(\w+)\|>", r"<|END_\1|>"))
"""Patterns of begins that are one tag, and their ends."""


def _answering(mark: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """The other mark of a pair; empty if there is none."""
    found = ((re.fullmatch(pattern, mark.strip(), re.DOTALL), other) for pattern, other in pairs)
    return next((match.expand(other) for match, other in found if match), "")
