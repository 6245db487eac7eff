"""Conversations and calls of tools that chat templates have to write, and what transformers makes of them.

    rendered = expected(entry.tokenizer(), CALLS["one"])
    rendered.prompt          "<|im_start|>user\nThe weather?<|im_end|>\n<|im_start|>assistant\n"
    rendered.response        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    rendered.end             "<|im_end|>\n"

What a template can write is found by rendering: a message is given in all forms that clients send (arguments as a value
and as a text, content empty, null and absent), and the first in which nothing is lost counts.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

JsonObject = dict[str, Any]


def _tool(name: str, properties: JsonObject, required: Sequence[str] | None = None) -> JsonObject:
    parameters = {"type": "object", "properties": properties, "required": [*(required or [])]}
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}


_STRING: Final = {"type": "string", "description": "A text."}
_NESTED: Final = {
    "type": "object",
    "description": "A filter.",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}},
        "range": {"type": "object", "properties": {"low": {"type": "number"}, "high": {"type": ["number", "null"]}}},
        "exact": {"type": "boolean"},
    },
}

TOOLS: Final[tuple[JsonObject, ...]] = (
    _tool("get_weather", {"city": _STRING, "days": {"type": "integer", "description": "How many."}}, ["city"]),
    _tool("say", {"text": _STRING}, ["text"]),
    _tool("search", {"query": _STRING, "filter": _NESTED}, ["query"]),
    _tool("now", {}),
    _tool("set_switches", {name: {"type": "boolean", "description": "A switch."} for name in ("on", "off")}),
    _tool("note", {"text": {"type": ["string", "null"], "description": "A text, or none."}}, ["text"]),
    _tool("count", {name: {"type": "integer", "description": "A number."} for name in ("low", "high")}),
    _tool("scale", {name: {"type": "number", "description": "A number."} for name in ("x", "y", "z")}),
    _tool("label", dict.fromkeys(("key", "value"), _STRING)),
    _tool("sort", {"items": {"type": "array", "description": "Numbers.", "items": {"type": "integer"}}}, ["items"]),
)


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """A response of an assistant: `content`, and the calls behind it."""

    name: str
    calls: tuple[Call, ...]
    content: str = ""


_PARIS: Final = Call("get_weather", {"city": "Paris"})

CALLS: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        Case("one", (_PARIS,)),
        Case("two arguments", (Call("get_weather", {"city": "New York", "days": 3}),)),
        Case("unicode", (Call("get_weather", {"city": "Zürich 東京 😀"}),)),
        Case("line breaks", (Call("say", {"text": "first\nsecond\n\n  third, and a tab\t."}),)),
        Case(
            "nested values",
            (
                Call(
                    "search",
                    {
                        "query": "cats",
                        "filter": {"tags": ["a b", "ü"], "range": {"low": 1.5, "high": None}, "exact": True},
                    },
                ),
            ),
        ),
        Case("no arguments", (Call("now"),)),
        Case("two calls", (_PARIS, Call("say", {"text": "Hello"}))),
        Case("text before", (_PARIS,), "Let me look that up."),
        Case("booleans", (Call("set_switches", {"on": True, "off": False}),)),
        Case("null", (Call("note", {"text": None}),)),
        Case("integers", (Call("count", {"low": -12, "high": 12345678901}),)),
        Case("floats", (Call("scale", {"x": 0.5, "y": -3.25, "z": 2.0}),)),
        Case("empty string", (Call("say", {"text": ""}),)),
        Case("quotation", (Call("say", {"text": "\"double\" 'single' \\ back"}),)),
        Case("markup", (Call("say", {"text": "<b>1 & 2</b> {x} [y]"}),)),
        Case("like values", (Call("label", {"key": "true", "value": "12"}),)),
        Case("empty list", (Call("sort", {"items": []}),)),
        Case("empty object", (Call("search", {"query": "a", "filter": {}}),)),
        Case("no call", (), "It is 21 degrees."),
        Case("three calls", (Call("now"), _PARIS, Call("count", {"low": 1})), "One moment.\n\nThree things:"),
    )
}
"""By name. The first eight are what every agent meets."""

QUESTION: Final = "What is the weather like?"
THOUGHT: Final = "The user wants to know about okapis."
_CONTENT: Final = "Kookaburra"  # stands for what a template does with a content
_THOUGHT_FIELDS: Final = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")


@dataclass(frozen=True, slots=True)
class Rendered:
    """What transformers writes for a conversation that ends with a response.

    Attributes:
        prompt: with the beginning of a response at the end.
        text: the same conversation with the response, and the end of its turn.
        answer_at: where in the text the response begins, apart from a thought that the template puts before each.
        end_at: where it ends.
        messages: in the form that the template takes.
        is_told: whether the template was told of tools; some write calls, and raise where they are.
        unreadable: why nobody can read what the template writes; empty if somebody can.
    """

    prompt: str
    text: str
    answer_at: int
    end_at: int
    messages: tuple[JsonObject, ...]
    is_told: bool = True
    unreadable: str = ""

    @property
    def answer(self) -> str:
        """The content and the calls."""
        return self.text[self.answer_at : self.end_at]

    @property
    def response(self) -> str:
        """What a model writes behind the prompt, thoughts too; where the text goes on otherwise, from there on."""
        return self.text[_outside(self.text, _common(self.prompt, self.text), is_end=False) : self.end_at]

    @property
    def end(self) -> str:
        return self.text[self.end_at :]


def render(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """What transformers writes.

    Raises:
        Exception: whatever the template raises.
    """
    text = tokenizer.apply_chat_template([*messages], tokenize=False, **options)
    assert isinstance(text, str)
    return text


def expected(
    tokenizer: Any, case: Case, form: Form | None = None, *, thought: str | None = None, **options: Any
) -> Rendered | str:
    """What transformers writes for a response behind one question; or why it writes none, if it loses a part of it.

    Args:
        form: what `form_of` found; None looks for it.
        thought: what the response begins with.
        options: variables of the template.
    """
    first = form or form_of(tokenizer, **options)
    if isinstance(first, str):
        return first
    others = (replace(first, is_text=is_text, content=content) for is_text in (False, True) for content in _CONTENTS)
    why, unreadable = "", None
    for one, name in itertools.product([first, *others], _THOUGHT_FIELDS if thought else ("",)):
        rendered = _attempt(tokenizer, case, one, (name, thought), options)
        if isinstance(rendered, str):
            why = why or rendered
        elif rendered.unreadable:
            unreadable = unreadable or rendered
        else:
            return rendered
    return unreadable or why


_Content: TypeAlias = Literal["empty", "null", "absent", "parts"]
_Id: TypeAlias = Literal["short", "named"]
_CONTENTS: Final[tuple[_Content, ...]] = ("empty", "null", "absent", "parts")
_IDS: Final[tuple[_Id, ...]] = ("short", "named")


@dataclass(frozen=True, slots=True)
class Form:
    """How a client may write a message with calls.

    Attributes:
        content: what stands there in a message of calls alone; "parts": all contents are lists of parts.
        is_text: whether arguments are texts.
        id: how identifiers look: short ones of nine letters and digits, or with the name in it.
        is_flat: whether tools are given without the level ``"function"``.
    """

    content: _Content = "empty"
    is_text: bool = False
    id: _Id = "short"
    is_flat: bool = False

    def message(self, case: Case) -> JsonObject:
        """The response."""
        message: JsonObject = {"role": "assistant"}
        if case.content or self.content in ("empty", "parts"):
            message["content"] = self.text(case.content)
        elif self.content == "null":
            message["content"] = _Null()
        if case.calls:
            message["tool_calls"] = [self._call(call, number) for number, call in enumerate(case.calls)]
        return message

    def text(self, text: str) -> Any:
        """A content."""
        return [{"type": "text", "text": text}] if self.content == "parts" else text

    def result(self, call: Call, number: int, text: str) -> JsonObject:
        """The message with the result of a call."""
        return {
            "role": "tool",
            "tool_call_id": self.call_id(call, number),
            "name": call.name,
            "content": self.text(text),
        }

    def tools(self, tools: Sequence[JsonObject]) -> list[JsonObject]:
        return [tool["function"] if self.is_flat else tool for tool in tools]

    def call_id(self, call: Call, number: int) -> str:
        return f"abcdef{number:03}" if self.id == "short" else f"functions.{call.name}:{number}"

    def _call(self, call: Call, number: int) -> JsonObject:
        arguments = json.dumps(call.arguments, ensure_ascii=False) if self.is_text else call.arguments
        function = {"name": call.name, "arguments": arguments}
        return {"id": self.call_id(call, number), "type": "function", "function": function}


class _Null:
    """None, of which transformers would leave out the key."""

    def model_dump(self) -> None:
        """What transformers asks values of other types for."""


def form_of(tokenizer: Any, **options: Any) -> Form | str:
    """The form in which a template writes one call without loss; or why it writes none.

    Rather with arguments as a value than as a text; rather where least is written: ``None`` is, by some.
    """
    why = ""
    for is_flat, id, is_text in itertools.product((False, True), _IDS, (False, True)):
        found: list[tuple[int, int]] = []
        for number, content in enumerate(_CONTENTS):
            rendered = _attempt(tokenizer, CALLS["one"], Form(content, is_text, id, is_flat), ("", None), options)
            if isinstance(rendered, str):
                why = why or rendered
            elif repr(CALLS["one"].calls[0].arguments) not in rendered.text[len(rendered.prompt) // 2 :]:
                found.append((len(rendered.text), number))
        if found:
            return Form(_CONTENTS[min(found)[1]], is_text, id, is_flat)
    return why


def _attempt(
    tokenizer: Any, case: Case, form: Form, thinking: tuple[str, str | None], options: JsonObject
) -> Rendered | str:
    """The response in one form; or what is lost, or raised."""
    name, thought = thinking
    message = form.message(case) | ({name: thought} if thought else {})
    tools = [tool for tool in TOOLS if tool["function"]["name"] in {call.name for call in case.calls}]
    try:
        rendered = _rendered(tokenizer, form, message, {"tools": form.tools(tools or TOOLS[:1]), **options})
    except Exception as error:  # a template is a program of the model's author
        try:
            rendered = replace(_rendered(tokenizer, form, message, options), is_told=False)
        except Exception:
            return f"{type(error).__name__}: {error}"
    behind = rendered.text[_common(rendered.prompt, rendered.text) :]
    for mark in [*_marks_of(case), *([thought] if thought else [])]:
        if not _holds(behind, mark):
            return f"{mark!r} is lost"
    if case.content and case.calls and behind.rindex(case.content) > behind.rindex(case.calls[0].name):
        return "the content stands behind the calls"
    return replace(rendered, unreadable=_unreadable(behind, case))


def _unreadable(text: str, case: Case) -> str:
    """Why nobody can read a response: strings stand as they are between quotation marks."""
    for mark in _marks_of(case):
        quotes = [quote for quote in "\"'" if f"{quote}{mark}{quote}" in text]
        if any(quote in mark for quote in quotes):
            return f"{mark!r} stands between quotation marks that are in it, too: nobody can read it"
        if quotes and "\n" in mark:
            return f"{mark!r} stands between quotation marks with its line breaks: neither JSON nor Python reads it"
    return ""


def _rendered(tokenizer: Any, form: Form, message: JsonObject, options: JsonObject) -> Rendered:
    question = {"role": "user", "content": form.text(QUESTION)}
    prompt = render(tokenizer, [question], add_generation_prompt=True, **options)
    text = render(tokenizer, [question, message], **options)
    plain = {key: one for key, one in message.items() if key != "tool_calls"}
    try:
        content = render(tokenizer, [question, {**plain, "content": form.text(_CONTENT)}], **options)
    except Exception:  # some templates want no answer without calls
        content = prompt + _CONTENT
    before, _, behind = content.rpartition(_CONTENT)
    answer_at = _outside(text, _common(before, text), is_end=False)
    end_at = len(text) - min(_common(behind[::-1], text[::-1]), len(text) - answer_at)
    return Rendered(prompt, text, answer_at, _outside(text, end_at, is_end=True), (question, message))


_MARK: Final = re.compile(r"<[|｜/]?[^<>\s]*>|\[/?[A-Z_]+\]")


def _outside(text: str, position: int, is_end: bool) -> int:
    """A position that is not inside of a mark such as ``<|end|>``: its end, or its begin."""
    for mark in _MARK.finditer(text, max(position - 60, 0)):
        if mark.start() < position < mark.end():
            return mark.end() if is_end else mark.start()
    return position


@dataclass(frozen=True, slots=True)
class Round:
    """A question, and what follows it."""

    question: str
    case: Case | None = None
    result: str = ""
    answer: str = ""


TURNS: Final = (2, 3, 10)
"""Turns of the model behind results of tools that are looked at: the second one follows the first result."""


def rounds_before(turn: int) -> list[Round]:
    """What is said before a turn of the model, with a call and a result in each round."""
    words = ("zebra", "okapi", "quagga", "gnu", "kudu", "eland", "oryx", "impala", "nyala")[: turn - 1]
    found = []
    for number, word in enumerate(words):
        case = Case(word, (Call("get_weather", {"city": word.title(), "days": number + 1}),))
        answer = f"There is sun for the {word}." if number < turn - 2 else ""
        found.append(Round(f"And for the {word}?", case, f"Sunny, says the {word}", answer))
    return found


CONVERSATIONS: Final[dict[str, list[Round]]] = {
    "question": [Round("Where do okapis live?")],
    "rounds": [Round("Where do okapis live?", answer="In forests."), Round("And zebras?")],
    **{f"turn {number}": rounds_before(number) for number in TURNS},
}
SYSTEM: Final = "You are a helpful assistant named Quagga."


def messages_of(rounds: Sequence[Round], form: Form | None, system: str = "") -> list[JsonObject]:
    """A conversation; without a form as clients of OpenAI send it."""
    chosen = form or Form("null", is_text=True)
    messages: list[JsonObject] = [{"role": "system", "content": chosen.text(system)}] if system else []
    for one in rounds:
        messages.append({"role": "user", "content": chosen.text(one.question)})
        if one.case is not None:
            message = chosen.message(one.case)
            messages.append(message if form is not None or one.case.content else message | {"content": None})
            messages += [chosen.result(call, number, one.result) for number, call in enumerate(one.case.calls)]
        if one.answer:
            messages.append({"role": "assistant", "content": chosen.text(one.answer)})
    return messages


def marks_of(rounds: Sequence[Round], system: str = "") -> list[str]:
    """Texts of a conversation, in order."""
    marks = [system] if system else []
    for one in rounds:
        marks += [one.question, *(_marks_of(one.case) if one.case else []), one.result, one.answer]
    return [mark for mark in marks if mark]


def lost_of(text: str, marks: Sequence[str]) -> str | None:
    """The first text that is not there behind the one before it; None if all are."""
    place = 0
    for mark in marks:
        found = [at for spelling in _spellings(mark) if (at := text.find(spelling, place)) >= 0]
        if not found:
            return mark
        place = min(found)
    return None


def conversation(tokenizer: Any, rounds: Sequence[Round], system: str = "", **options: Any) -> str | None:
    """What transformers writes, in the first form in which nothing is lost; None if there is none."""
    for id, is_text, content in itertools.product(_IDS, (False, True), _CONTENTS):
        with contextlib.suppress(Exception):  # a template is a program of the model's author
            messages = messages_of(rounds, Form(content, is_text, id), system)
            text = render(tokenizer, messages, add_generation_prompt=True, **options)
            if lost_of(text, marks_of(rounds, system)) is None:
                return text
    return None


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _marks_of(case: Case) -> list[str]:
    """Texts that have to be seen where a response was written: all but values that spellings differ in."""
    calls = [mark for call in case.calls for mark in (call.name, *_texts(call.arguments))]
    return [*([case.content] if case.content else []), *calls]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, one in value.items() for text in (key, *_texts(one))]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def _holds(text: str, mark: str) -> bool:
    """Whether a text is there, as it is or as JSON spells it."""
    return any(one in text for one in _spellings(mark))


def _spellings(mark: str) -> set[str]:
    spellings = {json.dumps(mark, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)}
    return {mark, repr(mark)[1:-1], *spellings, *(json.dumps(one)[1:-1] for one in spellings)}
