"""What decodekit makes of a chat template, against what transformers writes with it.

A case of calls *round-trips* when the text that the template writes for it is a text of the constraint, by the parser
and token by token by the mask, and has the calls and the content that the template was given.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import decodekit as dk
from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.template_thought import thought_of
from decodekit.chat.thought import Thought, ThoughtSplit
from decodekit.chat.tool_format import derive
from decodekit.constraints import CompiledGrammar, compile
from decodekit.constraints.tool_calls import ToolResponse, Tools
from decodekit.constraints.tool_calls.format import ToolFormat
from decodekit.errors import DecodekitError
from tests.chat.cases import (
    CALLS,
    CONVERSATIONS,
    SYSTEM,
    THOUGHT,
    TOOLS,
    Call,
    Case,
    Form,
    JsonObject,
    Rendered,
    conversation,
    expected,
    form_of,
    lost_of,
    marks_of,
    messages_of,
    render,
)
from tests.chat.corpus import Entry

_MARK_BEHIND: Final = re.compile(r"\s*(?:<[^<>\s]+>|\[/?[A-Z_]+\])")
_LAST_MARK: Final = re.compile(rf"{_MARK_BEHIND.pattern}\s*\Z")


@dataclass
class RoundTrips:
    """Of one template.

    Attributes:
        format: how it writes calls; None if none was found, then `why_none` tells why.
        passed: the cases that round-trip.
        failed: by case, why it does not.
        lost: by case, why transformers writes none.
        untold: cases that transformers writes without tools alone; it raises where the template is told of them.
        conversations: by conversation, why decodekit writes none that transformers writes: empty if it does.
        thought: what stands around it; empty if there is none.
        thoughts_failed: by case, why a response behind a thought does not round-trip.
        reads_tools: whether the template writes tools that it is told.
    """

    name: str
    format: ToolFormat | None = None
    why_none: str = ""
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)
    conversations: dict[str, str] = field(default_factory=dict)
    thought: str = ""
    thoughts_failed: dict[str, str] = field(default_factory=dict)
    reads_tools: bool = False

    @property
    def writes_calls(self) -> bool:
        return len(self.lost) < len(CALLS)

    @property
    def is_whole(self) -> bool:
        """Whether every case that transformers writes is read."""
        is_read = self.format is not None or not self.writes_calls
        return is_read and not self.failed and not self.thoughts_failed and not any(self.conversations.values())

    def __str__(self) -> str:
        told = f"{len(self.passed)} of {len(self.passed) + len(self.failed)}"
        if self.format is None:
            why_lost = next(iter(self.lost.values()), "")[:100]
            told = f"no format ({' '.join(self.why_none.split())})" if self.writes_calls else f"no calls ({why_lost})"
        written = {name: why for name, why in self.conversations.items() if why}
        faults = {**self.failed, **written, **{f"{name}, thought": one for name, one in self.thoughts_failed.items()}}
        return "".join((f"{self.name}: {told}", *(f"\n    {name}: {why}" for name, why in faults.items())))


def round_trips(entry: Entry) -> RoundTrips:
    """All that is asked of a template, over its tokenizer."""
    tokenizer = entry.tokenizer()
    found = RoundTrips(entry.name)
    _read_conversations(tokenizer, found)
    form = form_of(tokenizer)
    try:
        found.format = derive(tokenizer)
        check = Checked(dk.tools(TOOLS, format=found.format), tokenizer)
    except DecodekitError as error:
        found.format, found.why_none = None, str(error)
    if isinstance(form, str):
        found.lost = dict.fromkeys(CALLS, form)
    if found.format is None or isinstance(form, str):
        return found
    for case in CALLS.values():
        rendered = expected(tokenizer, case, form)
        if isinstance(rendered, str):
            found.lost[case.name] = rendered
            continue
        if not rendered.is_told:
            found.untold.append(case.name)
        if rendered.unreadable:
            found.failed[case.name] = rendered.unreadable
        elif (fault := check.fault(case, rendered, form)) and check.fault_of_thought_before(case, rendered, form):
            found.failed[case.name] = fault
        else:
            found.passed.append(case.name)
    _read_thoughts(tokenizer, form, check, found)
    return found


def _read_conversations(tokenizer: Any, found: RoundTrips) -> None:
    """Which conversations are written whole, of those that transformers writes whole in any form of messages."""
    for name, rounds in CONVERSATIONS.items():
        tools = [*TOOLS[:1]] if name.startswith("turn") else None
        system = SYSTEM if conversation(tokenizer, rounds, SYSTEM, tools=tools) is not None else ""
        if system or conversation(tokenizer, rounds, tools=tools) is not None:
            messages, marks = messages_of(rounds, None, system), marks_of(rounds, system)
            found.conversations[name] = _fault_of_messages(
                tokenizer, messages, marks, TemplateArguments(tools=tools or ())
            )
    parts = [{"type": "text", "text": text} for text in ("Zebras", "and okapis")]
    if "question" in found.conversations:
        fault = _fault_of_messages(
            tokenizer, [{"role": "user", "content": parts}], ["Zebras", "and okapis"], TemplateArguments()
        )
        found.conversations["parts"] = fault
    try:
        found.reads_tools = "get_weather" in render(tokenizer, [{"role": "user", "content": "Hello"}], tools=[TOOLS[0]])
    except Exception:  # a template is a program of the model's author
        found.reads_tools = False


def _fault_of_messages(tokenizer: Any, messages: list[JsonObject], marks: list[str], told: TemplateArguments) -> str:
    try:
        written = str(told.written(tokenizer, messages, "the prompt"))
    except DecodekitError as error:
        return str(error)
    lost = lost_of(written, marks)
    return "" if lost is None else f"{lost!r} is not in {written!r}"


def _read_thoughts(tokenizer: Any, form: Form, check: Checked, found: RoundTrips) -> None:
    """Responses with a thought, behind the prompt that the template ends with, and those without where it ends it."""
    switches: list[JsonObject] = [{}]
    if "enable_thinking" in tokenizer.chat_template:
        switches += [{"enable_thinking": True}, {"enable_thinking": False}]
    for options in switches:
        thought = _thought_of(tokenizer, options)
        if thought is not None:
            found.thought = f"{thought.opener} {thought.closer}"
        for name in ("one", "text before", "no call"):
            fault = _fault_of_thought(tokenizer, CALLS[name], form, check, thought, options)
            if fault is not None:
                found.thoughts_failed[", ".join([name, *map(str, options.values())])] = fault


def _thought_of(tokenizer: Any, options: JsonObject) -> Thought | None:
    """A thought before a response with calls; what stands before each content is of the format of calls."""
    thought = thought_of(tokenizer, TemplateArguments(tools=[TOOLS[0]], options=options))
    return None if thought is None else replace(thought, answer="")


def _fault_of_thought(
    tokenizer: Any, case: Case, form: Form, check: Checked, thought: Thought | None, options: JsonObject
) -> str | None:
    is_off = options.get("enable_thinking") is False
    rendered = expected(tokenizer, case, form, thought=None if is_off else THOUGHT, **options)
    if isinstance(rendered, str) and thought is not None:  # thoughts are left out of what is written
        rendered = expected(tokenizer, case, form, **options)
        if isinstance(rendered, str) or (begun := thought.behind(rendered.prompt)) is None:
            return None
        if case.content and not check.fault_of_thought_before(case, rendered, form):
            return None  # the content is the thought
        written = f"{'' if begun.is_open else thought.begin}{THOUGHT}{thought.end}"
        texts = [f"{written}{text}" for text in responses(rendered)]
        faults = [check.fault_of_thought(text, case, form, begun) for text in texts]
        return None if None in faults else faults[0]
    if isinstance(rendered, str) or not rendered.text.startswith(rendered.prompt):
        return None
    begun = None if thought is None else thought.behind(rendered.prompt)
    if is_off:
        return None if begun is None or not begun.is_open else f"a thought is wanted behind {rendered.prompt[-60:]!r}"
    if begun is None:
        return f"behind {rendered.prompt[-60:]!r} no thought is expected, and there is {rendered.response!r}"
    faults = [check.fault_of_thought(text, case, form, begun) for text in responses(rendered)]
    return None if None in faults else faults[-1]


class Checked:
    """A constraint over a tokenizer."""

    def __init__(self, constraint: Tools, tokenizer: Any) -> None:
        self.constraint, self.tokenizer = constraint, tokenizer
        self.grammar: CompiledGrammar = compile(constraint, tokenizer)

    def fault(self, case: Case, rendered: Rendered, form: Form) -> str | None:
        """Why a case does not round-trip; None if it does."""
        faults = []
        for text in responses(rendered):
            fault = self._fault_of(text, case, form)
            if fault is None:
                return None
            faults.append(fault)
        return faults[0]

    def _fault_of(self, text: str, case: Case, form: Form) -> str | None:
        try:
            response = cast(ToolResponse, self.constraint.parse(text))
        except ValueError:
            return f"parse refuses {text!r}"
        calls = [Call(call.name, call.arguments) for call in response.calls]
        if not _is_same([[call.name, call.arguments] for call in calls], [[c.name, c.arguments] for c in case.calls]):
            return f"{text!r} is read as {calls}"
        if response.content.strip() != case.content:
            return f"the content of {text!r} is read as {response.content!r}"
        ids = [call.id for call in response.calls]
        wanted = [form.call_id(call, number) for number, call in enumerate(case.calls)]
        if all(id in text for id in wanted) and ids != wanted:
            return f"the identifiers of {text!r} are read as {ids}"
        return self.fault_of_mask(text)

    def fault_of_thought_before(self, case: Case, rendered: Rendered, form: Form) -> str | None:
        """The same for templates that write a thought before calls: an empty one, or the content."""
        thought = _thought_of(self.tokenizer, {})
        if thought is None or not rendered.response.startswith(thought.opener):
            return "no thought"
        calls = replace(case, content="")
        faults = [self.fault_of_thought(text, calls, form, thought, case.content) for text in responses(rendered)]
        return None if None in faults else faults[-1]

    def fault_of_thought(
        self, text: str, case: Case, form: Form, thought: Thought, wanted: str = THOUGHT
    ) -> str | None:
        """Why a response with a thought does not round-trip; None if it does."""
        reasoning, content = ThoughtSplit(thought).push(text, is_last=True)
        if reasoning != wanted:
            return f"the thought of {text!r} is read as {reasoning!r}"
        grammar = compile(thought.before(self.constraint, self.grammar.vocabulary), self.tokenizer)
        return self._fault_of(content, case, form) or self.fault_of_mask(text, grammar)

    def fault_of_mask(self, text: str, grammar: CompiledGrammar | None = None) -> str | None:
        """Where the mask refuses a text."""
        matcher = (grammar or self.grammar).matcher()
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        taken = matcher.validate(tokens)
        if taken < len(tokens):
            read = self.tokenizer.decode(tokens[:taken])
            return f"the mask of {text!r} refuses {self.tokenizer.decode(tokens[taken])!r} behind {read[-40:]!r}"
        for token in tokens:
            matcher.accept(token)
        return None if matcher.is_accepting else f"the mask wants more behind {text!r}"


def responses(rendered: Rendered) -> Iterator[str]:
    """What a model may be said to write: with what stands before each answer or not, with the marks that end it or not.

    Marks that end calls, a content and a turn look alike, so one less and up to two more are tried.
    """
    marks = itertools.islice(_MARK_BEHIND.finditer(rendered.end), 2)
    ends = ["", *(rendered.end[: mark.end()] for mark in marks)]
    for text in dict.fromkeys((rendered.answer, rendered.response)):
        shorter = _LAST_MARK.sub("", text)
        longer = [text + end for end in ends]
        yield from dict.fromkeys((*longer, text.rstrip(), shorter, shorter.rstrip()))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same; 2 and 2.0 are, 1 and true are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def main() -> None:
    """Every template, or those whose names hold a word: ``python -m tests.chat.round_trips [WORD ...]``."""
    import sys

    from tests.chat.corpus import templates

    chosen = [entry for entry in templates() if any(word in entry.name for word in sys.argv[1:] or [""])]
    found = []
    for entry in chosen:
        found.append(round_trips(entry))
        if not found[-1].is_whole or len(chosen) < 9:
            print("\n".join(line[:400] for line in str(found[-1]).splitlines()[:5]), flush=True)
    calling = [one for one in found if one.writes_calls]
    for name, ones in (("all", found), ("with calls", calling)):
        print(f"{name}: {sum(one.is_whole for one in ones)} of {len(ones)}")


if __name__ == "__main__":
    main()
