"""Tools in the format of a model: `dk.tools`, and constraints that wait for a tokenizer."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

from decodekit.chat.tool_format import derive, read
from decodekit.constraints.composition.tags import Tag
from decodekit.constraints.constraint import Constraint, set_fields
from decodekit.constraints.tool_calls import AUTO, FORMATS, ToolFormat, Tools
from decodekit.constraints.tool_calls import tools as tools_in
from decodekit.errors import ChatTemplateError

NO_TEMPLATE: Final = (
    "the tokenizer has no chat template, which would tell how tools are called, so they are called as in the format "
    "'hermes'; format= says otherwise"
)
C = TypeVar("C", bound=Constraint)


def tools(
    tools: Iterable[object],
    format: str | ToolFormat = "auto",
    tool_choice: object = "auto",
    parallel: bool | int | None = None,
    special_tokens: bool | None = None,
    tokenizer: Any = None,
) -> Tools:
    """Responses in which the given tools may be called, each with the arguments that it takes.

        answer = dk.tools([get_weather, Search])
        llm.generate(prompt, constraint=answer).value         # ToolResponse(content="...", calls=(ToolCall(...),))

    A response is free text, or free text and then calls. The text before a call does not hold the marker with which
    calls begin, and nothing follows the last call. Around calls and between their parts stands the white space that
    chat templates write, or none. Of a text that was cut, `Tools.parse_cut` has the calls that are whole.

    Args:
        tools: OpenAI's ``tools`` (with or without the level ``"function"``), Pydantic models and other Python types
            (named as the class), Python functions (parameters with types; those with a default may be left out). The
            arguments are always those of the schema, whatever ``"strict"`` says. No ``"parameters"``: no arguments.
        format: how calls are written: ``"auto"``, as the chat template of the model writes them; a `ToolFormat`; or
            one by name:

            - ``"hermes"`` (Hermes 2 Pro, Hermes 3, Qwen2.5, Qwen3): ``<tool_call>`` line break ``{"name": "f",
              "arguments": {...}}`` line break ``</tool_call>``;
            - ``"llama3"`` (Llama 3.1 to 3.3): ``{"name": "f", "parameters": {...}}``, after ``<|python_tag|>`` or not.
              One call, no text before it, and a text without a call does not begin with a brace;
            - ``"function"`` (Llama 3.1, functions by name): ``<function=f>{...}</function>``;
            - ``"mistral"`` (tokenizers v2 to v7): ``[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]``, each with
              or without an ``"id"`` of nine letters or digits;
            - ``"mistral-v11"``: ``[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{...}``, with the identifier or not;
              ``"mistral-v13"``: ``[TOOL_CALLS]f[ARGS]{...}``;
            - ``"qwen3-coder"``: ``<tool_call><function=f><parameter=x>`` and so on; see `ElementArguments`;
            - ``"kimi-k2"``, ``"granite"`` and ``"lfm2"``, whose templates do not all tell.
        tool_choice: ``"auto"``; ``"required"``: calls alone, without text before them; ``"none"``: text alone; the name
            of a tool, or ``{"type": "function", "function": {"name": ...}}``: one call of it alone.
        parallel: whether several calls are allowed, or how many; by default as many as the format can write, and one of
            a tool that is named.
        special_tokens: whether the markers (``<tool_call>``, ``<|python_tag|>``, ``[TOOL_CALLS]``, ...) are special
            tokens, by their name in the vocabulary, which then must have them; or texts. By default they may be either:
            a vocabulary without such special tokens has the texts alone.
        tokenizer: whose chat template tells the format ``"auto"``. `LLM.generate` and its kin know their own; without
            one there, such tools can be neither compiled nor read with `Tools.parse`.

    Raises:
        InvalidConstraintError, OptionError, UnknownNameError: what cannot be used; if several things cannot, one
            `OptionError` that has them all as `faults`.
        ConstraintError: a schema of arguments cannot be used; the place begins with the name of the tool.
        ChatTemplateError: the chat template does not tell how tools are called.
    """
    made = tools_in(tools, format, tool_choice, parallel, special_tokens)
    if tokenizer is None or made.format != AUTO:
        return made
    if not tells_format(tokenizer):
        warnings.warn(NO_TEMPLATE, UserWarning, stacklevel=2)
    return made.in_format(format_of(tokenizer))


def format_of(tokenizer: Any, template: str | None = None) -> ToolFormat:
    """The format in which a model calls tools: that of its chat template, or of another; ``"hermes"`` if it has none.

    Raises:
        ChatTemplateError: the chat template does not tell.
    """
    version = _mistral_version(tokenizer)
    if version is not None:
        return FORMATS["mistral" if version < 11 else "mistral-v11" if version < 13 else "mistral-v13"]
    return derive(tokenizer, template) if tells_format(tokenizer, template) else FORMATS["hermes"]


def tells_format(tokenizer: Any, template: str | None = None) -> bool:
    """Whether a tokenizer has something that may tell how tools are called."""
    has_template = bool(template or getattr(tokenizer, "chat_template", None))
    return (has_template and hasattr(tokenizer, "get_chat_template")) or _mistral_version(tokenizer) is not None


def _mistral_version(tokenizer: Any) -> int | None:
    """The version of a tokenizer of mistral-common, or of one around it."""
    some: list[Any] = [tokenizer, getattr(tokenizer, "tokenizer", None)]
    for one in some:
        if hasattr(one, "encode_chat_completion"):
            found = re.search(r"\d+", str(getattr(one.instruct_tokenizer.tokenizer.version, "value", "")))
            return None if found is None else int(found[0])
    return None


def told_of(tokenizer: Any, template: str | None = None) -> str:
    """In a line how a model calls tools, and what tells it."""
    if not tells_format(tokenizer, template):
        return "as in the format 'hermes': the tokenizer has no chat template"
    try:
        if _mistral_version(tokenizer) is not None:
            return f"as in the format {format_of(tokenizer).name!r}, by the version of the tokenizer"
        return str(read(tokenizer, template))
    except ChatTemplateError as error:
        return error.cause


def waits(constraint: object) -> bool:
    """Whether a constraint has calls whose format is still to be told."""
    if isinstance(constraint, Tools):
        return constraint.format == AUTO
    return any(map(waits, _inner(constraint)))


def content_begins(constraint: object) -> set[str]:
    """The texts that the calls in a constraint want before a content, without blanks."""
    if isinstance(constraint, Tools):
        return {constraint.format.content_begin.strip()} - {""}
    return set[str]().union(*map(content_begins, _inner(constraint)))


def in_format_of(constraint: C, tokenizer: Any, template: str | None = None) -> C:
    """A constraint with all calls in the format of a model. Raises what `format_of` and `tools` do."""
    return _told(constraint, format_of(tokenizer, template)) if waits(constraint) else constraint


def _told(value: Any, format: ToolFormat) -> Any:
    if isinstance(value, Tools):
        return value.in_format(format) if value.format == AUTO else value
    if isinstance(value, tuple):
        return tuple(_told(one, format) for one in value)
    if not waits(value):
        return value
    made = copy.copy(value)
    set_fields(made, **{one.name: _told(getattr(value, one.name), format) for one in fields(value)})
    return made


def _inner(value: object) -> Iterable[object]:
    """The parts of a composed constraint."""
    if isinstance(value, tuple):
        return value
    is_composed = isinstance(value, Constraint | Tag) and is_dataclass(value)
    return [getattr(value, one.name) for one in fields(value)] if is_composed else ()  # type: ignore[arg-type]
