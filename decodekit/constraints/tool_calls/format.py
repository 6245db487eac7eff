r"""The format in which a family of models calls tools: one description, from which masks, parsers and pages are made.

    Qwen3                    call "<tool_call>\n{"name": "" NAME "", "arguments": " ARGUMENTS "}\n</tool_call>"
                             separator "\n"
    Mistral Nemo             opening "[TOOL_CALLS]["    call "{"name": "" NAME "", "arguments": " ARGUMENTS "}"
                             separator ", "    closing "]"
    GLM 4.6                  call "<tool_call>" NAME "\n" ARGUMENTS "</tool_call>", each argument an element
                             "<arg_key>" key "</arg_key>\n<arg_value>" value "</arg_value>\n"
    DeepSeek V3.2            elements whose middle tells a text (string="true") from another value (string="false")

A response is content, calls, or both. The content stands between `content_begin` and `content_end`, which most families
leave empty; behind it, where calls follow, `joint`. The calls are `opening`, the first, then `separator` and another as
often as there are more, then `closing`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias, cast

from decodekit.constraints.json_schema.notation import Spelling, Values
from decodekit.constraints.tool_calls.literals import BLANKS, LETTER, beginning, begins_with_mark, marks_of
from decodekit.constraints.tool_calls.tool import ToolCall
from decodekit.errors import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class Hole:
    """A text that differs from call to call: the name of the tool, the identifier of the call, its number among the
    calls (from 0 on), or its arguments."""

    kind: Literal["name", "id", "number", "arguments"]


NAME: Final = Hole("name")
ID: Final = Hole("id")
NUMBER: Final = Hole("number")
ARGUMENTS: Final = Hole("arguments")


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """The arguments as one object of JSON.

    Attributes:
        values: how it is written. Masks take JSON with the white space that `JsonSchema` has by default, too.
        is_quoted: whether the object is itself the text of a JSON string, whose quotation marks belong to it.
    """

    values: Values = Values()
    is_quoted: bool = False

    @property
    def edges(self) -> tuple[str, str]:
        """The characters with which they begin and end."""
        return ('"', '"') if self.is_quoted else ("{", "}")

    def written(self, arguments: dict[str, Any]) -> str:
        """The arguments as they stand in a call."""
        text = self.values.written(arguments)
        return json.dumps(text, ensure_ascii=self.values.is_ascii) if self.is_quoted else text


@dataclass(frozen=True, slots=True)
class ElementArguments:
    """The arguments one by one, each `begin`, its key, `middle`, its value, `end`, with `separator` between them.

        <parameter=city>\nBern\n</parameter>\n      begin "<parameter=", middle ">\n", end "\n</parameter>\n"
        get_weather(city="Bern", days=2)            middle "=", separator ", ", Values("python", "python", "python")

    Attributes:
        middle_of_others: what stands in place of `middle` before what is not a string; None if the same.
        opening, closing: what stands around all of them, also around none.
    """

    begin: str
    middle: str
    end: str
    separator: str = ""
    values: Values = Values("raw")
    middle_of_others: str | None = None
    opening: str = ""
    closing: str = ""

    @property
    def edges(self) -> tuple[str, str]:
        """The characters with which they begin and end, blanks apart; `LETTER` for any."""
        last = '"' if self.values.is_quoted else LETTER  # behind a value of JSON or Python blanks tell nothing
        return (self.opening + self.begin).strip()[:1] or LETTER, (self.end + self.closing).strip()[-1:] or last

    def written(self, arguments: dict[str, Any]) -> str:
        """The arguments as they stand in a call."""
        return self.opening + self.separator.join(map(self._element, self.values.items(arguments))) + self.closing

    def _element(self, argument: tuple[str, Any]) -> str:
        key, value = argument
        is_other = self.middle_of_others is not None and not isinstance(value, str)
        middle = self.middle_of_others if is_other else self.middle
        return f"{self.begin}{key}{middle}{self.values.written(value)}{self.end}"


Part: TypeAlias = str | Hole | tuple[str | Hole, ...]
"""A piece of a call. A tuple is left out of calls without an identifier, which stands in it."""

_OF_JSON: Final = (*'{["-0123456789tfn',)
"""With what texts of JSON begin."""
_BRACKETS: Final = "<>[](){}:"
"""What ends the name of a tool where it stands beside it."""

Arguments: TypeAlias = JsonArguments | ElementArguments


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way to write calls of tools. Formats are values: equal ones are the same format.

    Attributes:
        name: how a user asks for it; of one that was read off a template, what says so.
        families: whose it is, in words.
        call: texts and holes, `NAME` and `ARGUMENTS` once each. What stands in a tuple is left out where a call has no
            identifier. No content holds how it begins; of letters that come again (``<<``) the first one alone.
        arguments: how they are written.
        opening, separator, closing: around the calls and between them.
        lead: what some models write before the opening, though the templates do not (Llama 3.1: ``<|python_tag|>``).
        names: how the name of a tool is spelled; ``"json"`` is without the quotation marks, which stand in `call`.
        id_pattern: of identifiers, a regular expression; None for any text that the place can hold.
        identifier: of what the identifier of a call is made, where `call` has no `ID` (Kimi K2: ``functions.f:0``).
            Nothing if calls have none.
        content_begin, content_end: around the content.
        joint: what stands between the content and the calls, and belongs to neither.
        end: what the model writes behind the last call to end its turn, if that is text and no token that ends texts.
        marks: texts in it that may be special tokens of the same name.
        max_calls: most calls of a response; None for any number.
        is_alone: whether a response with calls has no content. Those without calls do not begin as a call does.
        has_joint_alone: whether the joint stands before calls without content, too (Bielik, Nemotron 3).
        is_closing_optional: whether the closing may be missing (DeepSeek R1 has it behind several calls).
    """

    name: str
    families: str
    call: tuple[Part, ...]
    arguments: Arguments = JsonArguments()
    opening: str = ""
    separator: str = ""
    closing: str = ""
    names: Spelling = "raw"
    id_pattern: str | None = None
    content_begin: str = ""
    content_end: str = ""
    joint: str = ""
    end: str = ""
    marks: tuple[str, ...] = ()
    max_calls: int | None = None
    is_alone: bool = False
    identifier: tuple[str | Hole, ...] = ()
    lead: str = ""
    has_joint_alone: bool = False
    is_closing_optional: bool = False

    def __post_init__(self) -> None:
        for part, cause, hint in self._faults():
            raise InvalidConstraintError(cause, at=f"{part}the format {self.name!r:.60}", hint=hint)

    def _faults(self) -> Iterator[tuple[str, str, str | None]]:
        """Faults of the description: of which part, what is wrong, and what would be right."""
        if any(self.call.count(hole) != 1 for hole in (NAME, ARGUMENTS)):
            cause = "a call has the name of the tool and the arguments once each, and in no part that may be left out"
            yield "call of ", cause, None
        form = self.arguments
        if isinstance(form, ElementArguments):
            if form.values.text == "raw" and not form.end:
                yield "arguments of ", "nothing ends a string that is written as it is", "an end"
            if not (form.closing or any(isinstance(part, str) for part in self.call[self.call.index(ARGUMENTS) + 1 :])):
                hint = "a text behind the arguments, or a closing of them"
                yield "call of ", "nothing tells whether another element follows the last one", hint
        elif form.is_quoted and not form.values.is_json:
            yield "arguments of ", "the text of a JSON string is written as JSON itself", None
        if form.values.text == "raw" and (form.values.nested == "own" or isinstance(form, JsonArguments)):
            yield "arguments of ", "strings in lists and objects need an end", "a mark around them"
        if self.has_joint_alone and self.joint.strip(BLANKS):
            yield "joint of ", "a joint that stands before calls alone, too, is of blanks", "an opening"
        if self.lead and not self.lead.strip(BLANKS):
            yield "lead of ", "a lead of blanks alone cannot be told from the end of a content", None
        if not (self.triggers or self.opener or (self.is_alone and self.content_begin)):
            hint = "an opening, a text before the name of the tool, or a joint"
            yield "", "nothing tells calls from the text before them", hint

    @property
    def pieces(self) -> tuple[str | Hole, ...]:
        """The texts and holes of a call with an identifier."""
        return tuple(piece for part in self.call for piece in (part if isinstance(part, tuple) else (part,)))

    @property
    def is_name_first(self) -> bool:
        """Whether the name of the tool comes before the arguments."""
        return self.call.index(NAME) < self.call.index(ARGUMENTS)

    @property
    def divided(self) -> tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, ...]]:
        """The parts of a call before, between and behind the name and the arguments."""
        first, last = sorted((self.call.index(NAME), self.call.index(ARGUMENTS)))
        return self.call[:first], self.call[first + 1 : last], self.call[last + 1 :]

    def edges(self, parts: Part | Sequence[Part]) -> tuple[str, str]:
        """The characters with which a part of a call begins and ends, blanks apart: `LETTER` where it may be any."""
        if isinstance(parts, str):
            return parts.strip()[:1], parts.strip()[-1:]
        if isinstance(parts, Hole):
            return self.arguments.edges if parts == ARGUMENTS else (LETTER, LETTER)
        return (self.edges(parts[0])[0], self.edges(parts[-1])[1]) if parts else ("", "")

    @property
    def id_hole(self) -> Hole | None:
        """The hole that tells the identifier of a call; None if none does."""
        return ID if ID in self.pieces else NUMBER if NUMBER in self.identifier else None

    @property
    def is_id_first(self) -> bool:
        """Whether the identifier of a call, where there is one, comes before its arguments."""
        return self.id_hole is not None and self.pieces.index(self.id_hole) < self.pieces.index(ARGUMENTS)

    def identifier_of(self, name: str, found: str) -> str:
        """The identifier of a call of a tool, from what stands in its `id_hole`."""
        if self.id_hole == ID:
            return found
        return "".join(name if part == NAME else found if isinstance(part, Hole) else part for part in self.identifier)

    @property
    def start(self) -> str:
        """The text with which calls begin where no content stands before them."""
        return (self.joint if self.has_joint_alone else "") + self._start

    @property
    def _start(self) -> str:
        return self.opening + "".join(takewhile(lambda part: isinstance(part, str), self.call))  # type: ignore[arg-type]

    @property
    def starts(self) -> tuple[str, ...]:
        """With what a response begins that has calls alone."""
        return self._beginnings(self.lead, self.start)

    def _beginnings(self, *texts: str) -> tuple[str, ...]:
        return tuple(filter(None, (beginning(text, self.marks) for text in texts)))

    @property
    def is_framed(self) -> bool:
        """Whether something but blanks stands around content that responses of calls alone do not have."""
        return bool(self.content_begin or (self.content_end + self.joint).strip(BLANKS))

    @property
    def triggers(self) -> tuple[str, ...]:
        """Texts that no content holds: the first of them ends it."""
        texts = [self.lead]
        if not self.is_alone:
            texts.append(self.content_end + self.joint + self._start)
        elif not self.opener:
            texts.append(self.start)
        return self._beginnings(*texts)

    @property
    def opener(self) -> str:
        """With what no content begins behind its blanks, because calls without content do; empty for nothing."""
        begin = beginning(self.start, self.marks)
        if self.is_alone:
            return begin[:1] if begin.startswith(_OF_JSON) and not begins_with_mark(self.start, self.marks) else ""
        return begin if (self.content_end + self.joint).strip() and not self.content_begin.strip() else ""

    @property
    def is_told_from_json(self) -> bool:
        """Whether no text of JSON begins as calls do."""
        begin = beginning(self.start, self.marks)
        return bool(begin) and (begins_with_mark(begin, self.marks) or not begin.startswith(_OF_JSON))

    @property
    def gap(self) -> str:
        """The blanks between the content and what ends it, which belong to neither."""
        text = self.content_end + self.joint + self._start
        return text[: len(text) - len(text.lstrip(BLANKS))]

    @property
    def excluded(self) -> tuple[str, ...]:
        """The texts that no string holds that is written as it is: the marks of the format, and its end."""
        form = self.arguments
        if not isinstance(form, ElementArguments) or form.values.text != "raw":
            return ()
        texts = [form.begin, form.middle, form.middle_of_others or "", form.end, form.opening, form.closing]
        texts += [self.opening, self.separator, self.closing, *(one for one in self.pieces if isinstance(one, str))]
        return tuple(sorted({*marks_of(texts, self.marks), form.end.strip(BLANKS) or form.end}))

    def fault_of(self, name: str) -> str | None:
        """The reason why the name of a tool cannot be written; None if it can."""
        try:
            name.encode()
        except UnicodeEncodeError:
            return "it holds a surrogate, which has no UTF-8 form"
        if self.names != "raw":
            return None
        place = self.pieces.index(NAME)
        around = [part for part in self.pieces[max(place - 1, 0) : place + 2] if isinstance(part, str)]
        if isinstance(self.arguments, ElementArguments):
            around.append(self.arguments.opening)
        ends = [character for character in _BRACKETS if any(character in text for text in around)]
        held = [character for character in [*ends, *BLANKS] if character in name]
        if held:
            return f"it holds {held[0]!r}"
        # Without a text before its name, a call may begin as the content does.
        begin = self.start + name
        is_content = self.content_begin and self.content_begin.strip().startswith(begin.strip())
        return "responses without a call begin so" if is_content else None

    def written(self, content: str, calls: Sequence[ToolCall]) -> str:
        """A response as the templates of the format write it.

        Args:
            content: the text; blanks are kept.
            calls: with arguments that are values of JSON.

        Raises:
            ValueError: a call without an identifier, where the format asks for one; a string that holds a mark of the
                format or of its end, where strings are written as they are.
        """
        text = f"{self.content_begin}{content}{self.content_end}" if content or not calls else ""
        if not calls:
            return text
        written = self.separator.join(self._call(call, number) for number, call in enumerate(calls))
        joint = self.joint if text or self.has_joint_alone else ""
        return f"{text}{joint}{self.opening}{written}{self.closing}{self.end}"

    def to_dict(self) -> dict[str, Any]:
        """The format as a value of JSON."""
        return cast("dict[str, Any]", json.loads(json.dumps(asdict(self))))

    @classmethod
    def of_dict(cls, value: Mapping[str, Any]) -> ToolFormat:
        """The format that `to_dict` has written."""
        arguments = {**value["arguments"], "values": Values(**value["arguments"]["values"])}
        form = ElementArguments(**arguments) if "begin" in arguments else JsonArguments(**arguments)
        read = {name: tuple(map(_part, value[name])) for name in ("call", "identifier", "marks")}
        return cls(**{**value, **read, "arguments": form})

    def name_text(self, name: str) -> str:
        """The name of a tool as it stands in a call."""
        if self.names == "raw":
            return name
        is_ascii = self.arguments.values.is_ascii
        return (json.dumps(name, ensure_ascii=is_ascii) if self.names == "json" else repr(name))[1:-1]

    def _call(self, call: ToolCall, number: int) -> str:
        parts = self.pieces if call.id is not None else [part for part in self.call if not isinstance(part, tuple)]
        return "".join(self._piece(part, call, number) for part in parts)

    def _piece(self, piece: str | Hole, call: ToolCall, number: int) -> str:
        if isinstance(piece, str):
            return piece
        if piece == NAME:
            return self.name_text(call.name)
        if piece == ARGUMENTS:
            texts = [one for one in call.arguments.values() if isinstance(one, str)] if self.excluded else []
            for text, mark in ((text, mark) for text in texts for mark in self.excluded if mark in text):
                raise ValueError(f"{text!r:.60} holds {mark!r}, which cannot be told from that of the format")
            return self.arguments.written(call.arguments)
        if piece == NUMBER:
            return self._number_in(call) or str(number)
        if call.id is None:
            raise ValueError(f"a call of {call.name!r:.60} has no identifier, which the format {self.name!r} asks for")
        return call.id

    def _number_in(self, call: ToolCall) -> str | None:
        """The number that an identifier holds."""
        if call.id is None or NUMBER not in self.identifier:
            return None
        patterns: dict[object, str] = {NUMBER: "([0-9]+)", NAME: re.escape(call.name)}
        pattern = "".join(patterns.get(part, re.escape(str(part))) for part in self.identifier)
        found = re.fullmatch(pattern, call.id)
        return None if found is None else found[1]


def _part(value: Any) -> Any:
    """A piece of a call, from JSON."""
    if isinstance(value, list):
        return tuple(map(_part, value))
    return value if isinstance(value, str) else Hole(value["kind"])
