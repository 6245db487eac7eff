"""Responses that may call tools, as a constraint; and their content, as it grows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from decodekit.constraints.composition.composed import Composed, row
from decodekit.constraints.composition.free_text import free_text
from decodekit.constraints.composition.split import Split
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, Terminal
from decodekit.constraints.language import ir
from decodekit.constraints.tool_calls.calls import Calls, arguments_of
from decodekit.constraints.tool_calls.format import ToolFormat
from decodekit.constraints.tool_calls.formats import AUTO, FORMATS
from decodekit.constraints.tool_calls.literals import BLANKS, TEXT, num_held, read
from decodekit.constraints.tool_calls.tool import Tool, ToolCall, read_tool
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
_State: TypeAlias = Literal["open", "content", "calls"]
"""What a text is in: nothing that is certain, its content, or its calls."""


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
        format: how calls are written; `AUTO` until a tokenizer is at hand.
        choice: ``"auto"``, ``"required"`` or ``"none"``.
        only: the name of the tool that has to be called, None if it may be any.
        max_calls: largest number of calls, None for no bound.
        has_special_markers: whether markers are special tokens of the vocabulary; None for either.
        parallel: what was said of several calls.
    """

    tools: tuple[Tool, ...]
    format: ToolFormat
    choice: Choice
    only: str | None
    max_calls: int | None
    has_special_markers: bool | None
    parallel: bool | int | None = None

    def in_format(self, format: ToolFormat) -> Tools:
        """The same in another format. Raises what `tools` raises."""
        only = None if self.only is None else {"type": "function", "function": {"name": self.only}}
        return tools(self.tools, format, only or self.choice, self.parallel, self.has_special_markers)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI's requests have them, and as ``apply_chat_template(tools=...)`` takes them."""
        return [tool.definition for tool in self.tools]

    def expression(self) -> Expression:
        """Text, or text and calls; or calls.

        Raises:
            OptionError: the format is that of a chat template, and there is no tokenizer.
        """
        if self.choice == "none":
            return self._content()
        calls = self._calls()
        if self.choice == "required":
            return calls.expression()
        if self.format.is_alone:
            return Alternatives((calls.expression(), self._content()))
        # No trigger ends as it begins, so the first one is where the content ends.
        both = row(self._content(), Alternatives((row(*calls.pieces(is_behind_content=True)), EMPTY_TEXT)))
        return Alternatives((calls.expression(), both)) if self.format.is_framed else both

    def value(self, parts: object) -> ToolResponse:
        """The content and the calls."""
        found: Any = parts
        if self.choice == "none":
            return ToolResponse(found[1])
        if self.choice == "required":
            return self._response("", found)
        if self.format.is_alone:
            number, found = found
            return self._response("", found) if number == 0 else ToolResponse(found[1])
        if self.format.is_framed:
            number, found = found
            if number == 0:
                return self._response("", found)
        (_, content, _), (number, found) = found
        return ToolResponse(content) if number else self._response(content, found)

    def parse(self, text: str) -> ToolResponse:
        """The content and the calls of a whole text.

        Raises:
            ValueError: the text is none of this constraint, or arguments have no value.
        """
        return cast("ToolResponse", Composed.parse(self, text))

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
        whole = Split(self.expression(), text.encode())
        if whole.is_whole:
            return self.value(whole.value())
        calls = self._calls()
        ways: list[tuple[Expression, bool]] = [] if self.choice == "none" else [(EMPTY_TEXT, False)]
        if self.choice == "auto" and not self.format.is_alone:
            ways.append((self._content(), True))
        for before, has_content in ways:
            opening, call, others, _ = calls.pieces(is_behind_content=has_content)
            # Another call comes before the rest in the order of divisions, which so begins behind the last whole call.
            split = Split(row(before, opening, call, others, Terminal(ir.ANYTHING, "rest")), text.encode())
            if split.is_whole:
                content, _, first, found, _ = cast("list[Any]", split.value())
                return ToolResponse(content[1] if has_content else "", calls.values(first, found))
        return ToolResponse("" if self.choice == "required" else ContentSplit(self.format).push(text, is_last=True))

    def _response(self, content: str, parts: list[Any]) -> ToolResponse:
        _, first, others, _ = parts
        return ToolResponse(content, self._calls().values(first, others))

    def _calls(self) -> Calls:
        if self.format == AUTO:
            cause = "calls are written as the chat template of the model tells, and there is no tokenizer at hand"
            hint = f"dk.tools(..., tokenizer=llm.tokenizer); or format= by name: {', '.join(FORMATS)}"
            raise OptionError(cause, at="format", hint=hint)
        tools = tuple(tool for tool in self.tools if self.only in (None, tool.name))
        return Calls(self.format, tools, self.max_calls, self.has_special_markers)

    def _content(self) -> Expression:
        """The content with what stands around it."""
        form = self.format
        node = free_text(form.triggers)
        if form.opener:
            blanks = ir.repeat(ir.byte_set(BLANKS.encode()))
            begun = ir.concat(blanks, ir.literal(form.opener.encode()), ir.ANYTHING)
            node = ir.both(node, ir.complement(begun))
        begin = self._calls().literal(form.content_begin, after=TEXT)
        return row(begin, Terminal(node, "text"), self._calls().literal(form.content_end))


def tools(
    tools: Iterable[object],
    format: str | ToolFormat = "auto",
    tool_choice: object = "auto",
    parallel: bool | int | None = None,
    special_tokens: bool | None = None,
) -> Tools:
    """Responses in which the given tools may be called, each with the arguments that it takes; see `dk.tools`.

    Raises:
        InvalidConstraintError, OptionError, UnknownNameError: what cannot be used; if several things cannot, one
            `OptionError` that has them all as `faults`.
        ConstraintError: a schema of arguments cannot be used; the place begins with the name of the tool.
    """
    faults: list[DecodekitError] = []
    found = _read_tools(tools, faults)
    spec = format if isinstance(format, ToolFormat) else AUTO if format == "auto" else FORMATS.get(format)
    if spec is None:
        faults.append(_unknown("format of tool calls", format, ["auto", *FORMATS], "format"))
    choice, only = _read_choice(tool_choice, [tool.name for tool in found], faults)
    for tool in found:
        faults += _faults_of(tool, None if spec == AUTO else spec)
    if special_tokens not in (None, True, False):
        faults.append(OptionError(f"{special_tokens!r} is neither True nor False", at="special_tokens"))
    max_calls = _read_parallel(parallel, spec, choice, only, faults)
    raise_faults(faults, "things about the tools")
    assert spec is not None
    return Tools(tuple(found), spec, choice, only, max_calls, special_tokens, parallel)


def tools_of_request(request: Mapping[str, object], format: str | ToolFormat = "auto") -> Tools:
    """The same from an OpenAI request, by `tools`, `tool_choice` and `parallel_tool_calls`; the rest is ignored."""
    given: Any = request.get("tools")
    parallel: Any = request.get("parallel_tool_calls")
    # True is what OpenAI assumes: as many as there may be.
    return tools(given, format, request.get("tool_choice", "auto"), None if parallel is True else parallel)


def _read_tools(values: Iterable[object], faults: list[DecodekitError]) -> list[Tool]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        faults.append(InvalidConstraintError(f"a {type(values).__name__} is no list of tools", at="tools"))
        return []
    found: list[Tool] = []
    number = -1
    for number, value in enumerate(values):
        try:
            tool = read_tool(value)
        except ConstraintError as error:
            faults.append(_placed(error, f"tools/{number}, {error.at}" if error.at else f"tools/{number}"))
            continue
        if tool.name in [other.name for other in found]:
            faults.append(InvalidConstraintError(f"two tools have the name {tool.name!r:.60}", at=f"tools/{number}"))
        found.append(tool)
    if number < 0:
        faults.append(InvalidConstraintError("there are no tools", at="tools", hint="one at least"))
    return found


def _faults_of(tool: Tool, spec: ToolFormat | None) -> Iterator[ConstraintError]:
    """Faults of a tool: what a format cannot write of it."""
    if spec is not None and (fault := spec.fault_of(tool.name)) is not None:
        cause = f"the format {spec.name!r} cannot write the name {tool.name!r:.60}: {fault}"
        yield InvalidConstraintError(cause, at=f"{tool.name!r:.60}", hint="letters, digits, _ and -")
    try:
        (tool.arguments() if spec is None else arguments_of(tool, spec)).root()
    except ConstraintError as error:
        yield _placed(error, f"{tool.name}{error.at or '#'}")


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
    parallel: object, spec: ToolFormat | None, choice: Choice, only: str | None, faults: list[DecodekitError]
) -> int | None:
    if parallel is None:
        return 1 if spec is None or only is not None else spec.max_calls
    if not isinstance(parallel, int) or parallel < 0 or (parallel == 0 and parallel is not False):
        cause = f"{parallel!r} is neither True, False nor a number of calls from 1 on"
        faults.append(OptionError(cause, at="parallel"))
        return None
    if choice == "none":
        faults.append(UselessOptionError(f'parallel={parallel!r} has no effect with tool_choice="none"', at="parallel"))
    most = None if spec is None else spec.max_calls
    if spec is not None and most is not None and (most == 1 if parallel is True else parallel > most):
        cause = f"the format {spec.name!r} writes {'one call' if most == 1 else f'{most} calls'} only"
        faults.append(OptionError(cause, at="parallel", hint="another format"))
    return most if parallel is True else 1 if parallel is False else parallel


def _unknown(what: str, name: object, known: list[str], at: str) -> UnknownNameError:
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"{near[0]!r}" if near else f"one of {', '.join(known[:8])}"
    return UnknownNameError(f"there is no {what} {name!r:.60}", at=at, hint=hint)


def _placed(error: ConstraintError, at: str) -> ConstraintError:
    return type(error)(error.cause, at=at, hint=error.hint, code=error.code)


class ContentSplit:
    r"""One text, as it grows, up to where its calls begin.

        <-   "I look it up.<tool_", "call>\n{"
        ->   "I look it up."                        what may be the beginning of a call waits

    Args:
        has_content: whether content may come; otherwise all is calls.
        is_json: whether the text may be JSON of a schema in place of calls: all that begins no call is content then.
    """

    def __init__(self, format: ToolFormat, has_content: bool = True, is_json: bool = False) -> None:
        self._format = format
        self._ends = format.starts if is_json else format.triggers  # the first of them ends the content
        self._gap = "" if is_json else format.gap  # blanks before it, which are not the content's
        self._state: _State = "content" if is_json else "open" if has_content else "calls"
        self.text = ""
        self.num_read = 0  # where in it the content goes on that was not handed out
        self.calls_at = 0 if self._state == "calls" else None  # from where on it has calls, when that is certain

    def push(self, text: str, is_last: bool = False) -> str:
        """Take what is new; the content that is certain now and was not before."""
        self.text += text
        if self._state == "open":
            self._open(is_last)
        if self._state != "content":
            return ""
        begin = self.num_read
        found = [place for one in self._ends if (place := self.text.find(one, begin)) >= 0]
        end = min(found, default=len(self.text))
        if found:
            self._state, self.calls_at = "calls", end
        elif not is_last:
            end -= max((num_held(self.text, one) for one in self._ends), default=0)
        if found or not is_last:
            for blank in reversed(self._gap):  # each of them may be missing
                end -= end > begin and self.text[end - 1] == blank
        self.num_read = max(begin, end)
        return self.text[begin : self.num_read]

    def _open(self, is_last: bool) -> None:
        """Find out whether content begins, if that is certain now."""
        opener, begun = self._format.opener, read(self.text, self._format.content_begin)
        rest = "" if begun is None else self.text[begun[0] :].lstrip(BLANKS)
        if begun is None or (opener and rest.startswith(opener)):
            self._state, self.calls_at = "calls", 0
        elif begun[1] and (is_last or not (opener and opener.startswith(rest))):
            self._state, self.num_read = "content", begun[0]
