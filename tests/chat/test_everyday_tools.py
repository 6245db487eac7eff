"""Tools as people have them, in every format that a chat template tells: written, accepted by the mask, read back."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal

import pytest

from decodekit.chat.tool_format import derive
from decodekit.constraints import compile
from decodekit.constraints.tool_calls import FORMATS, ToolCall, ToolFormat, Tools, tools
from decodekit.constraints.tool_calls.format import ElementArguments
from decodekit.constraints.tool_calls.literals import marks_of
from decodekit.vocabulary import Vocabulary
from tests.chat.made_templates import MADE, tokenizer_of
from tests.sizes import few, thinned

BYTES: Final = Vocabulary([*(bytes((b,)) for b in range(256)), None], [256])


class Unit(enum.Enum):
    celsius = "celsius"
    kelvin = "kelvin"


def lend(
    until: datetime.date,
    to: uuid.UUID,
    at: datetime.datetime | None = None,
    note: str | None = None,
    much: str | int = 1,
    share: float = 0.5,
    is_gift: bool = False,
    unit: Unit = Unit.celsius,
    kind: Literal["book", "film"] | None = None,
    tags: list[str] | None = None,
    sizes: dict[str, int] | None = None,
) -> None:
    """A tool with everyday types."""


_TEXT, _NULL, _LIST = {"type": "string"}, {"type": "null"}, {"type": "array"}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "untyped": {"properties": {"x": {}, "y": {"description": "Anything."}}},
    "optional": {"properties": {"x": {"anyOf": [_TEXT, _NULL], "default": None}, "y": {"type": ["integer", "null"]}}},
    "one of": {"properties": {"x": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}}, "required": ["x"]},
    "enums": {"properties": {"x": {"enum": ["a b", "c", None]}, "y": {"enum": [1, 2.5, True]}}},
    "formats": {"properties": {"x": {**_TEXT, "format": "date-time"}, "y": {**_TEXT, "format": "uuid"}}},
    "least": {"properties": {"x": _TEXT, "y": {"type": "boolean"}}, "minProperties": 1},
    "either": {"properties": {"x": _TEXT, "y": _TEXT}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
    "nested": {"properties": {"x": {"properties": {"a": {"type": ["string", "null"]}}, "type": "object"}, "y": _LIST}},
    "referred": {"properties": {"x": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": ["boolean", "null", "string"]}}},
    "words": {"properties": {"x": {"type": ["boolean", "null"]}}},
}  # fmt: skip
WORDS: Final = (("true", "True"), ("false", "False"), ("null", "None"))
VALUES: Final[dict[str, list[dict[str, Any]]]] = {
    "untyped": [{}, {"x": None}, {"x": True, "y": "a b"}, {"x": -1.5, "y": [1, "z", None]}, {"y": {"k": False}}],
    "optional": [{}, {"x": None}, {"x": "Bern"}, {"y": None}, {"x": "a\nb", "y": -3}],
    "one of": [{"x": "a"}, {"x": ["a", "b c"]}, {"x": []}],
    "enums": [{"x": "a b"}, {"x": None, "y": 2.5}, {"y": True}],
    "formats": [{"x": "2024-02-29T10:00:00Z"}, {"y": "12345678-1234-5678-1234-567812345678"}],
    "least": [{"x": ""}, {"y": False}],
    "either": [{"x": "1"}, {"y": "null"}],
    "nested": [{"x": {"a": None}, "y": [None, True, {"b": "é"}]}, {"x": {}}, {"y": []}],
    "referred": [{"x": None}, {"x": False}, {"x": "yes or no"}],
    "words": [{"x": True}, {"x": None}],
}
REJECTED: Final[dict[str, list[dict[str, Any]]]] = {
    "optional": [{"y": 1.5}],
    "one of": [{}],
    "enums": [{"y": 3}],
    "least": [{}],
    "either": [{}],
    "nested": [{"x": {"a": 1}}],
}
"""What the schemas refuse, and no format may let through."""
LOAN: Final[dict[str, Any]] = {
    "until": "2024-02-29", "to": "12345678-1234-5678-1234-567812345678", "at": None, "note": "it's \"due\"", "much": 7,
    "share": 0.25, "is_gift": True, "unit": "kelvin", "kind": None, "tags": ["a b", "é"], "sizes": {"a": 1},
}  # fmt: skip
TYPED: Final[dict[str, Any]] = {
    **LOAN, "until": datetime.date(2024, 2, 29), "to": uuid.UUID(LOAN["to"]), "unit": Unit.kelvin,
}  # fmt: skip


@cache
def formats() -> dict[str, ToolFormat]:
    """Those of the made templates, and those by name that are none of them."""
    return {name: derive(tokenizer_of(made.template)) for name, made in MADE.items()} | FORMATS


NAMES: Final = [name for name in [*MADE, *FORMATS] if not name.startswith("thought")]
KEPT: Final = (
    "json in tags",
    "elements",
    "typed elements",
    "python list",
    "own quotation",
    "recipients",
    "qwen3-coder",
)
IN_EVERY_FORMAT: Final = thinned("name", NAMES, keep=KEPT)


def is_accepted(constraint: Tools, text: str) -> bool:
    matcher = compile(constraint, BYTES).matcher()
    return all(map(matcher.accept, text.encode())) and matcher.is_accepting


def written(format: ToolFormat, tool: str, arguments: dict[str, Any]) -> str:
    return format.written("", [ToolCall(tool, arguments, "abcdef012")])


def read_back(constraint: Tools, text: str) -> Any:
    assert is_accepted(constraint, text), text
    (call,) = constraint.parse(text).calls
    return call.arguments


@few(2)
@IN_EVERY_FORMAT
def test_functions_of_everyday_types(name: str) -> None:
    form = formats()[name]
    constraint = tools([lend], form, "required")
    begun = {"until": LOAN["until"], "to": LOAN["to"]}
    assert read_back(constraint, written(form, "lend", LOAN)) == TYPED
    assert read_back(constraint, written(form, "lend", begun)) == {key: TYPED[key] for key in begun}
    for wrong in ({"until": "2023-02-29"}, {"to": "1"}, {"unit": "celsius "}, {"is_gift": "perhaps"}, {"share": [1]}):
        assert not is_accepted(constraint, written(form, "lend", {**begun, **wrong})), wrong


@few(2)
@IN_EVERY_FORMAT
def test_schemas_of_everyday_tools(name: str) -> None:
    form = formats()[name]
    for kind, schema in SCHEMAS.items():
        constraint = tools([{"name": "f", "parameters": {"type": "object", **schema}}], form, "required")
        for arguments in VALUES[kind]:
            found = read_back(constraint, written(form, "f", arguments))
            assert json.dumps(found) == json.dumps(arguments), (kind, arguments)
        for arguments in REJECTED.get(kind, []):
            assert not is_accepted(constraint, written(form, "f", arguments)), (kind, arguments)


@IN_EVERY_FORMAT
def test_booleans_and_null_as_the_family_writes_them_and_as_json(name: str) -> None:
    form = formats()[name]
    constraint = tools([{"name": "f", "parameters": SCHEMAS["words"]}], form, "required")
    for arguments in ({"x": True}, {"x": False}, {"x": None}):
        text = written(form, "f", arguments)
        told = [word for pair in WORDS for word in pair if word in text]
        assert len(told) == 1
        spellings = {told[0], json.dumps(arguments["x"])}
        for spelling in spellings:
            assert read_back(constraint, text.replace(told[0], spelling)) == arguments
        for spelling in ("TRUE", "none", "nil", "yes", ""):
            assert not is_accepted(constraint, text.replace(told[0], spelling))


def marks_in(form: ToolFormat) -> Iterator[str]:
    """The texts of a format that a string may hold."""
    texts = [
        form.opening,
        form.separator,
        form.closing,
        form.joint,
        form.content_begin,
        form.content_end,
        form.end,
        form.lead,
    ]
    texts += [piece for piece in form.pieces if isinstance(piece, str)]
    if isinstance(form.arguments, ElementArguments):
        one = form.arguments
        texts += [
            one.begin,
            one.middle,
            one.middle_of_others or "",
            one.end,
            one.separator,
            one.closing,
            one.values.text,
        ]
    stripped = [text.strip() for text in texts]
    return iter(dict.fromkeys(text for text in [*texts, *stripped, *marks_of(texts, form.marks)] if text))


@few(4)
@IN_EVERY_FORMAT
def test_values_with_marks_of_the_format_are_escaped_or_refused(name: str) -> None:
    """Never read otherwise: what can be written is read back, and what cannot is refused when it is written."""
    form = formats()[name]
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string"}, "y": {"type": "array"}, "z": {"type": "string"}},
    }
    constraint = tools([{"name": "f", "parameters": schema}, {"name": "g"}], form, "required")
    num_read, refused = 0, list[tuple[str, str]]()
    for mark in marks_in(form):
        for text in (mark, f"a{mark}b", f"{mark}{mark}", mark[:-1], f'{mark}"', f"\n{mark}\n"):
            arguments: dict[str, Any]
            for arguments in ({"x": text, "z": "q"}, {"y": [text, {"k": text}], "z": ""}):
                try:
                    whole = written(form, "f", arguments)
                except ValueError as error:
                    refused.append((repr(text)[1:9], str(error)))
                    continue
                assert read_back(constraint, whole) == arguments, (text, whole)
                num_read += 1
    assert num_read > 20 and all(text in told for text, told in refused)
    if isinstance(form.arguments, ElementArguments) and form.arguments.values.text == "raw":
        with pytest.raises(ValueError, match="cannot be told from"):
            written(form, "f", {"x": f"a{form.arguments.end.strip()}b"})
