"""Responses that may call tools, as a constraint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from decodekit.constraints.composition.combinators import rounds
from decodekit.constraints.composition.composed import Composed, expression_of, row
from decodekit.constraints.composition.splitting import Split
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, Inline, SpecialToken, Terminal
from decodekit.constraints.language import ir
from decodekit.constraints.tool_calls.elements import XmlArguments
from decodekit.constraints.tool_calls.formats import FORMATS, Format, Spelling
from decodekit.constraints.tool_calls.tool import Tool, read_tool
from decodekit.errors import (
    ConstraintError,
    DecodekitError,
    InvalidConstraintError,
    OptionError,
    UnknownNameError,
    UselessOptionError,
    raise_faults,
)

Choice: TypeAlias = Literal["auto", "required", "none"]
_CHOICES: Final = ("auto", "required", "none")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: the name of the tool.
        arguments: a dict of JSON values; of a tool that is a function, a dict of its keyword arguments with their
            types; of one that is a Python type, a value of that type.
        id: the identifier of the call, where the format has one and the model wrote it.
    """

    name: str
    arguments: Any
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """A response.

    Attributes:
        content: the text before the calls, or the whole response without calls; as it is written, blanks included.
        calls: the calls in order.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Tools(Composed):
    """Responses that may call tools. Made by `tools`, which checks what is given.

    Attributes:
        tools: all tools, in the order that was given.
        format: name of the format.
        choice: ``"auto"``, ``"required"`` or ``"none"``.
        only: the name of the tool that has to be called, None if it may be any.
        max_calls: largest number of calls, None for no bound.
        has_special_markers: whether markers are special tokens of the vocabulary; None for either.
    """

    tools: tuple[Tool, ...]
    format: str
    choice: Choice
    only: str | None
    max_calls: int | None
    has_special_markers: bool | None

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI's requests have them, and as ``apply_chat_template(tools=...)`` takes them."""
        return [tool.definition for tool in self.tools]

    def expression(self) -> Expression:
        """Text, or text and calls; or calls."""
        spec = FORMATS[self.format]
        if self.choice == "none":
            return spec.free_text()
        calls = self._calls()
        if self.choice == "required":
            return calls
        if spec.is_alone:
            return Alternatives((calls, spec.free_text()))
        # The first trigger is where the text ends, because no trigger ends as it begins.
        return row(spec.free_text(), Alternatives((calls, EMPTY_TEXT)))

    def value(self, parts: object) -> ToolResponse:
        """The content and the calls."""
        found: Any = parts
        if self.choice == "none":
            return ToolResponse(found)
        content, number = "", 0
        if self.choice == "auto" and FORMATS[self.format].is_alone:
            number, found = found
            content = found if number else ""
        elif self.choice == "auto":
            content, (number, found) = found
        if number:  # no calls
            return ToolResponse(content)
        _, first, others, _ = found
        return ToolResponse(content, self._calls_of(first, others))

    def parse_cut(self, text: str) -> ToolResponse:
        """The content and the calls that are whole, of a text that was cut. Of a call that was broken off, nothing.

        A call is whole when its end is written: its arguments are those that the model chose, and fit their schema.

            completion = llm.generate(prompt, constraint=answer, max_new_tokens=200)
            if completion.finish_reason == "length":
                response = answer.parse_cut(completion.text)

        Args:
            text: the beginning of a text of this constraint.

        Raises:
            ValueError: arguments have no value, because a validator of the user's own type refuses them.
        """
        if self.choice == "none":
            return ToolResponse(text)
        spec = FORMATS[self.format]
        has_content = self.choice == "auto" and not spec.is_alone
        before = spec.free_text() if has_content else EMPTY_TEXT
        opening, call, others, _ = self._pieces()
        # Another call comes before the rest in the order of divisions, so the rest begins behind the last whole call.
        split = Split(row(before, opening, call, others, Terminal(ir.ANYTHING, "rest")), text.encode())
        if split.is_whole:
            content, _, first, found, _ = cast("list[Any]", split.value())
            return ToolResponse(content if has_content else "", self._calls_of(first, found))
        if self.choice == "required":
            return ToolResponse("")
        if spec.is_alone:
            return ToolResponse("" if text.startswith(("{", spec.trigger)) else text)
        return ToolResponse(text.partition(spec.trigger)[0])

    @property
    def is_id_first(self) -> bool:
        """Whether the identifier of a call, where there is one, comes before its arguments."""
        return self._spelling().id_in == "middle"

    def _callable(self) -> list[Tool]:
        return [tool for tool in self.tools if self.only in (None, tool.name)]

    def _spelling(self) -> Spelling:
        def mark(name: str) -> Expression:
            token, text = SpecialToken(name), expression_of(name)
            if self.has_special_markers is None:
                return Alternatives((token, text))
            return token if self.has_special_markers else text

        return FORMATS[self.format].spell(mark)

    def _calls(self) -> Expression:
        return row(*self._pieces())

    def _pieces(self) -> tuple[Expression, Expression, Expression, Expression]:
        """What stands before the calls, the first, the others with what separates them, and what stands behind."""
        spec, spelling = FORMATS[self.format], self._spelling()
        tools = self._callable()
        names = (
            row(spec.name_text(tool.name), spelling.middle, Inline(_arguments(tool, spec), tool.name)) for tool in tools
        )
        call = row(spelling.begin, Alternatives(tuple(names)), spelling.end)
        most = None if self.max_calls is None else self.max_calls - 1
        others = rounds(row(spelling.separator, call), 0, most)
        return spelling.opening, call, others, spelling.closing

    def _calls_of(self, first: list[Any], others: list[Any]) -> tuple[ToolCall, ...]:
        return tuple(map(self._call_of, [first, *(call for _, call in others)]))

    def _call_of(self, parts: list[Any]) -> ToolCall:
        _, (number, (_, middle, arguments)), end = parts
        where = {"middle": middle, "end": end}.get(self._spelling().id_in or "")
        identifier = where[0][0][1] if where and where[0] else None
        return ToolCall(self._callable()[number].name, arguments, identifier)


def tools(
    tools: Iterable[object],
    format: str = "hermes",
    tool_choice: object = "auto",
    parallel: bool | int | None = None,
    special_tokens: bool | None = None,
) -> Tools:
    """Responses in which the given tools may be called, each with the arguments that it takes.

        answer = dk.tools([get_weather, Search], format="hermes")
        llm.generate(prompt, constraint=answer).value         # ToolResponse(content="...", calls=(ToolCall(...),))

    A response is free text, or free text and then calls. The text before a call does not hold the marker with which
    calls begin, nothing follows the last call, and the name of a tool comes before its arguments. Around calls and
    between their parts stands the white space that chat templates write, or none. Of a text that was cut,
    `Tools.parse_cut` has the calls that are whole.

    Args:
        tools: OpenAI's ``tools`` (with or without the level ``"function"``), Pydantic models and other Python types
            (named as the class), Python functions (parameters with types; those with a default may be left out). The
            arguments are always those of the schema, whatever ``"strict"`` says. No ``"parameters"``: no arguments.
        format: how calls are written:

            - ``"hermes"`` (Hermes 2 Pro, Hermes 3, Qwen2.5, Qwen3): ``<tool_call>`` line break ``{"name": "f",
              "arguments": {...}}`` line break ``</tool_call>``;
            - ``"llama3"`` (Llama 3.1 to 3.3): ``{"name": "f", "parameters": {...}}``, after ``<|python_tag|>`` or not.
              One call, no text before it, and a text without a call does not begin with a brace;
            - ``"function"`` (Llama 3.1, functions by name): ``<function=f>{...}</function>``;
            - ``"mistral"`` (tokenizers v2 to v7): ``[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]``, each with
              or without an ``"id"`` of nine letters or digits;
            - ``"mistral-v11"``: ``[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{...}``, with the identifier or not;
              ``"mistral-v13"``: ``[TOOL_CALLS]f[ARGS]{...}``;
            - ``"qwen3-coder"``: ``<tool_call><function=f><parameter=x>`` and so on; see `XmlArguments`.
        tool_choice: ``"auto"``; ``"required"``: calls alone, without text before them; ``"none"``: text alone; the name
            of a tool, or ``{"type": "function", "function": {"name": ...}}``: one call of it alone.
        parallel: whether several calls are allowed, or how many; by default as many as the format can write, and one of
            a tool that is named.
        special_tokens: whether the markers (``<tool_call>``, ``<|python_tag|>``, ``[TOOL_CALLS]``, ...) are special
            tokens, by their name in the vocabulary, which then must have them; or texts. By default they may be either:
            a vocabulary without such special tokens has the texts alone.

    Raises:
        InvalidConstraintError, OptionError, UnknownNameError: what cannot be used; if several things cannot, one
            `OptionError` that has them all as `faults`.
        ConstraintError: a schema of arguments cannot be used; the place begins with the name of the tool.
    """
    faults: list[DecodekitError] = []
    read = _read_tools(tools, faults)
    spec: Format | None = FORMATS.get(format)
    if spec is None:
        faults.append(_unknown("format of tool calls", format, list(FORMATS), "format"))
    choice, only = _read_choice(tool_choice, [tool.name for tool in read], faults)
    _check_tools(read, spec, faults)
    if special_tokens not in (None, True, False):
        faults.append(OptionError(f"{special_tokens!r} is neither True nor False", at="special_tokens"))
    max_calls = _read_parallel(parallel, spec, choice, only, faults)
    raise_faults(faults, "things about the tools")
    assert spec is not None
    return Tools(tuple(read), spec.name, choice, only, max_calls, special_tokens)


def tools_of_request(request: Mapping[str, object], format: str = "hermes") -> Tools:
    """The same from an OpenAI request: its ``tools``, ``tool_choice`` and ``parallel_tool_calls``; the rest is ignored.

    Raises:
        what `tools` raises.
    """
    given: Any = request.get("tools")
    parallel: Any = request.get("parallel_tool_calls")
    # True is what OpenAI assumes: as many as there may be.
    return tools(given, format, request.get("tool_choice", "auto"), None if parallel is True else parallel)


def _arguments(tool: Tool, spec: Format | None) -> Constraint:
    return XmlArguments(tool) if spec is not None and spec.has_elements else tool.arguments()


def _read_tools(values: Iterable[object], faults: list[DecodekitError]) -> list[Tool]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        faults.append(InvalidConstraintError(f"a {type(values).__name__} is no list of tools", at="tools"))
        return []
    read: list[Tool] = []
    number = -1
    for number, value in enumerate(values):
        try:
            tool = read_tool(value)
        except ConstraintError as error:
            faults.append(_placed(error, f"tools/{number}, {error.at}" if error.at else f"tools/{number}"))
            continue
        if tool.name in [other.name for other in read]:
            faults.append(InvalidConstraintError(f"two tools have the name {tool.name!r:.60}", at=f"tools/{number}"))
        read.append(tool)
    if number < 0:
        faults.append(InvalidConstraintError("there are no tools", at="tools", hint="one at least"))
    return read


def _check_tools(read: list[Tool], spec: Format | None, faults: list[DecodekitError]) -> None:
    for tool in read:
        if spec is not None and (fault := spec.fault_of(tool.name)) is not None:
            cause = f"the format {spec.name!r} cannot write the name {tool.name!r:.60}: {fault}"
            faults.append(InvalidConstraintError(cause, at=f"{tool.name!r:.60}", hint="letters, digits, _ and -"))
        try:
            _arguments(tool, spec).root()
        except ConstraintError as error:
            faults.append(_placed(error, f"{tool.name}{error.at or '#'}"))


def _read_choice(choice: object, names: list[str], faults: list[DecodekitError]) -> tuple[Choice, str | None]:
    if isinstance(choice, Mapping):
        function = choice.get("function")
        # OpenAI's Responses have the name one level higher.
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        if choice.get("type") != "function" or not isinstance(name, str):
            hint = '{"type": "function", "function": {"name": "..."}}'
            faults.append(OptionError(f"{dict(choice)!r:.80} chooses no tool", at="tool_choice", hint=hint))
            return "auto", None
        if name in names:
            return "required", name
    elif choice in names:
        return "required", choice
    elif choice in _CHOICES:
        return choice, None
    else:
        name = choice
    faults.append(_unknown("tool", name, [*names, *_CHOICES], "tool_choice"))
    return "auto", None


def _read_parallel(
    parallel: object, spec: Format | None, choice: Choice, only: str | None, faults: list[DecodekitError]
) -> int | None:
    if parallel is None:
        return None if spec is not None and spec.has_many and only is None else 1
    if not isinstance(parallel, int) or parallel < 0 or (parallel == 0 and parallel is not False):
        cause = f"{parallel!r} is neither True, False nor a number of calls from 1 on"
        faults.append(OptionError(cause, at="parallel"))
        return None
    if choice == "none":
        faults.append(UselessOptionError(f'parallel={parallel!r} has no effect with tool_choice="none"', at="parallel"))
    if spec is not None and not spec.has_many and (parallel is True or parallel > 1):
        cause = f"the format {spec.name!r} writes one call only"
        faults.append(OptionError(cause, at="parallel", hint="another format"))
    return None if parallel is True else 1 if parallel is False else parallel


def _unknown(what: str, name: object, known: list[str], at: str) -> UnknownNameError:
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"{near[0]!r}" if near else f"one of {', '.join(known[:8])}"
    return UnknownNameError(f"there is no {what} {name!r:.60}", at=at, hint=hint)


def _placed(error: ConstraintError, at: str) -> ConstraintError:
    return type(error)(error.cause, at=at, hint=error.hint, code=error.code)
