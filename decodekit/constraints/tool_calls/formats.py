"""How the families of models spell calls of tools, from their published chat templates.

Every format is a function of how markers are spelled (as text, or as special tokens).

Between the parts stands what the templates write, or nothing: a line break around a call and between calls, a space
after a colon, a comma and Mistral's marker. Where any white space might stand, a model that nobody taught to call tools
writes it up to the bound at every place, and its text is cut before its calls are done.

Sources: the chat templates of NousResearch/Hermes-3-Llama-3.1-8B, Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen3-8B,
Qwen/Qwen3-Coder-30B-A3B-Instruct and meta-llama/Llama-3.1-8B-Instruct; Meta's prompt formats of Llama 3.1 (functions by
name); the instruct tokenizers of mistral-common, versions 2, 3, 7, 11 and 13.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from decodekit.constraints.composition.composed import row
from decodekit.constraints.composition.free_text import free_text
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Concatenated, Expression, Repeated, Terminal
from decodekit.constraints.language import ir
from decodekit.constraints.regex.regex import full_match
from decodekit.constraints.tool_calls.elements import LINE

Mark: TypeAlias = Callable[[str], Expression]
"""A marker, by its text or the name of its special token, as it is written."""

_SPACE: Final = Repeated(Terminal(ir.literal(b" "), "space"), 0, 1)
CALL_ID: Final = "call id"
_IDENTIFIER: Final = Terminal(full_match("[a-zA-Z0-9]{9}"), CALL_ID)  # the form that mistral-common demands


@dataclass(frozen=True, slots=True)
class Spelling:
    """The pieces of a response that calls tools.

    `opening`, then one call or several with `separator` between them, then `closing`. A call is `begin`, the name,
    `middle`, the arguments, `end`.

    Attributes:
        id_in: where a call has its identifier: as the first item of `middle` or of `end`, which then are sequences with
            what `_identified` gives in front; None if it has none.
    """

    begin: Expression
    middle: Expression
    end: Expression
    opening: Expression = EMPTY_TEXT
    separator: Expression = EMPTY_TEXT
    closing: Expression = EMPTY_TEXT
    id_in: Literal["middle", "end"] | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name.

    Attributes:
        name: how a user asks for it.
        families: whose it is.
        trigger: what begins a call, and what no text before the calls holds.
        spell: the pieces, from how markers are spelled.
        is_quoted: whether the name of a tool is a JSON string.
        not_in_names: what a name that is not quoted cannot hold, beside blanks.
        has_many: whether a response may have several calls.
        is_alone: whether there is no text before the calls. They begin with a brace, and other responses do not.
        has_elements: whether the arguments are written as elements, not as one JSON object.
        has_short_ids: whether the templates take identifiers of nine letters or digits alone.
    """

    name: str
    families: str
    trigger: str
    spell: Callable[[Mark], Spelling]
    is_quoted: bool = False
    not_in_names: str = ""
    has_many: bool = True
    is_alone: bool = False
    has_elements: bool = False
    has_short_ids: bool = False

    def free_text(self) -> Terminal:
        """Responses without a call."""
        node = free_text([self.trigger])
        if self.is_alone:
            blanks = ir.repeat(ir.byte_set(b" \t\r\n"))
            node = ir.both(node, ir.complement(ir.concat(blanks, ir.literal(b"{"), ir.ANYTHING)))
        return Terminal(node, "text")

    def name_text(self, name: str) -> str:
        """The name of a tool as it is written."""
        return json.dumps(name, ensure_ascii=False) if self.is_quoted else name

    def fault_of(self, name: str) -> str | None:
        """Why the name of a tool cannot be written; None if it can."""
        try:
            name.encode()
        except UnicodeEncodeError:
            return "it holds a surrogate, which has no UTF-8 form"
        if self.is_quoted:
            return None
        held = [character for character in self.not_in_names + " \t\r\n" if character in name]
        return f"it holds {held[0]!r}" if held else None


def _identified(before: Expression, after: Expression) -> Expression:
    """An identifier that may stand here; its text is the second item of the only round."""
    return Repeated(row(before, _IDENTIFIER, after), 0, 1)


def _key(name: str) -> Concatenated:
    return row(",", _SPACE, json.dumps(name), ":", _SPACE)


def _name() -> Concatenated:
    return row('{"name":', _SPACE)


def _hermes(mark: Mark) -> Spelling:
    return Spelling(
        begin=row(mark("<tool_call>"), LINE, _name()),
        middle=_key("arguments"),
        end=row("}", LINE, mark("</tool_call>")),
        separator=LINE,
    )


def _llama3(mark: Mark) -> Spelling:
    opening = Alternatives((mark("<|python_tag|>"), EMPTY_TEXT))
    return Spelling(begin=_name(), middle=_key("parameters"), end=row("}"), opening=opening)


def _function(mark: Mark) -> Spelling:
    return Spelling(begin=row("<function="), middle=row(">"), end=row("</function>"), separator=LINE)


def _mistral(mark: Mark) -> Spelling:
    identifier = _identified(row(_key("id"), '"'), row('"'))
    return Spelling(
        opening=row(mark("[TOOL_CALLS]"), _SPACE, "["),
        begin=_name(),
        middle=_key("arguments"),
        end=row(identifier, "}"),
        separator=row(",", _SPACE),
        closing=row("]"),
        id_in="end",
    )


def _mistral_v11(mark: Mark) -> Spelling:
    return Spelling(
        begin=row(mark("[TOOL_CALLS]")),
        middle=row(_identified(mark("[CALL_ID]"), EMPTY_TEXT), mark("[ARGS]")),
        end=EMPTY_TEXT,
        id_in="middle",
    )


def _mistral_v13(mark: Mark) -> Spelling:
    return Spelling(begin=row(mark("[TOOL_CALLS]")), middle=row(mark("[ARGS]")), end=EMPTY_TEXT)


def _qwen3_coder(mark: Mark) -> Spelling:
    return Spelling(
        begin=row(mark("<tool_call>"), LINE, "<function="),
        middle=row(">", LINE),
        end=row("</function>", LINE, mark("</tool_call>")),
        separator=LINE,
    )


FORMATS: Final[dict[str, Format]] = {
    one.name: one
    for one in (
        Format("hermes", "Hermes 2 Pro, Hermes 3, Qwen2.5, Qwen3", "<tool_call>", _hermes, is_quoted=True),
        Format(
            "llama3", "Llama 3.1, 3.2 and 3.3 (JSON-based calls)", "<|python_tag|>", _llama3,
            is_quoted=True, has_many=False, is_alone=True,
        ),
        Format("function", "Llama 3.1 (user-defined functions by name)", "<function=", _function, not_in_names="<>"),
        Format(
            "mistral", "Mistral, tokenizers v2 to v7", "[TOOL_CALLS]", _mistral,
            is_quoted=True, has_short_ids=True,
        ),
        Format(
            "mistral-v11", "Mistral, tokenizer v11", "[TOOL_CALLS]", _mistral_v11,
            not_in_names="[]", has_short_ids=True,
        ),
        Format(
            "mistral-v13", "Mistral, tokenizers from v13 on", "[TOOL_CALLS]", _mistral_v13,
            not_in_names="[]", has_short_ids=True,
        ),
        Format("qwen3-coder", "Qwen3-Coder", "<tool_call>", _qwen3_coder, not_in_names="<>", has_elements=True),
    )
}  # fmt: skip
