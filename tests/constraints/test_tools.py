"""Calls of tools: the language and the values of every format by example, and random tool sets against `jsonschema`."""

from __future__ import annotations

import datetime
import enum
import json
import pickle
import random
import uuid
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodekit as dk
from decodekit.constraints import CompiledGrammar, Concat, JsonSchema, Reasoned, as_constraint, compile
from decodekit.constraints.composition.combinators import Text
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.tool_calls import FORMATS, Tool, ToolCall, ToolResponse, Tools, tools
from decodekit.constraints.tool_calls.calls import _pieces
from decodekit.errors import ConstraintError, DecodekitError, OptionError, UselessOptionError
from decodekit.testing import check_language, check_matcher
from decodekit.vocabulary import Vocabulary
from tests.sizes import few

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Search(pydantic.BaseModel):
    """Search the web."""

    query: str
    limit: int = 10


def add(a: int, b: float = 1.0, unit: Unit = Unit.C) -> float:
    """Add two numbers."""
    return a + b


TOOLS: list[object] = [WEATHER, add, Search, {"name": "now"}]

BERN, ONE = {"city": "Bern <b>"}, {"a": 1}

# By format: a text with two calls, or with one; texts that are no responses.
CALLS: dict[str, tuple[str, list[str]]] = {
    "hermes": (
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern <b>"}}\n</tool_call>\n'
        '<tool_call>{"name":"now","arguments":{}}</tool_call>',
        ["<tool_call>", '<tool_call>\n{"name": "now", "arguments": {}}', '<tool_call>{"arguments":{},"name":"now"}'],
    ),
    "llama3": ('{"name": "get_weather", "parameters": {"city": "Bern <b>"}}', ["{", ' {"a"', '{"name": "now"}']),
    "function": (
        'Let me see.\n<function=get_weather>{"city": "Bern <b>"}</function>\n<function=now>{}</function>',
        ["<function=", "<function=now></function>", "<function=now>{}"],
    ),
    "mistral": (
        'Let me see.\n[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bern <b>"}, "id": "a1B2c3D4e"}, '
        '{"name": "now", "arguments": {}}]',
        ["[TOOL_CALLS]", "[TOOL_CALLS][]", '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "short"}]'],
    ),
    "mistral-v11": (
        'Let me see.\n[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Bern <b>"}[TOOL_CALLS]now[ARGS]{}',
        ["[TOOL_CALLS]now[CALL_ID]a[ARGS]{}", "[TOOL_CALLS]now{}"],
    ),
    "mistral-v13": (
        'Let me see.\n[TOOL_CALLS]get_weather[ARGS]{"city": "Bern <b>"}[TOOL_CALLS]now[ARGS]{}',
        ["[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}", "[TOOL_CALLS]now[ARGS]"],
    ),
    "qwen3-coder": (
        "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBern <b>\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ["<tool_call><function=now></tool_call>", "<tool_call><function=get_weather></function></tool_call>"],
    ),
    "kimi-k2": (
        "Let me see.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Bern <b>"}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [
            "<|tool_calls_section_begin|><|tool_calls_section_end|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:01<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>",
        ],
    ),
    "granite": (
        'Let me see.\n<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Bern <b>"}}, '
        '{"name": "now", "arguments": {}}]',
        ["<|tool_call|>", "<|tool_call|>[]", '<|tool_call|>{"name": "now", "arguments": {}}'],
    ),
    "lfm2": (
        "Let me see.\n<|tool_call_start|>[get_weather(city='Bern <b>'), now()]<|tool_call_end|>",
        [
            "<|tool_call_start|>[]<|tool_call_end|>",
            "<|tool_call_start|>now()<|tool_call_end|>",
            "<|tool_call_start|>[f(",
        ],
    ),
}


MARKERS = {"<tool_call>": 256, "</tool_call>": 257, "[TOOL_CALLS]": 258, "[ARGS]": 259, "[CALL_ID]": 260}
PIECES = [b'{"name": "', b'", "arguments": {', b'"}', b"}\n</tool_call>", b"<tool", b"Let me", b'": ', b"</", b"{}"]
BYTES = Vocabulary([*(bytes((b,)) for b in range(256)), None, *PIECES], [256])
SPECIAL = Vocabulary(
    [*(bytes((b,)) for b in range(256)), *(None for _ in range(7)), *PIECES],
    [262],
    None,
    {**MARKERS, "<|python_tag|>": 261},
)


def expected(format: str) -> ToolResponse:
    ids: tuple[str | None, str | None] = ("a1B2c3D4e" if format in ("mistral", "mistral-v11") else None, None)
    if format == "kimi-k2":
        ids = ("functions.get_weather:0", "functions.now:1")
    calls = (ToolCall("get_weather", BERN, ids[0]), ToolCall("now", {}, ids[1]))
    return ToolResponse("", calls[:1]) if format == "llama3" else ToolResponse("Let me see.\n", calls)


def check_texts(constraint: Tools, accepts: list[str], rejects: list[str]) -> None:
    """Which texts are accepted, without the masks on the way; `parse` agrees."""
    for text in [*accepts, *rejects]:
        matcher = compile(constraint, BYTES).matcher()
        data = text.encode()
        is_accepted = (
            matcher.validate(list(data)) == len(data) and all(map(matcher.accept, data)) and matcher.is_accepting
        )
        assert is_accepted is (text in accepts), text
        if is_accepted:
            assert isinstance(constraint.parse(text), ToolResponse)
        else:
            with pytest.raises(ValueError, match="is no text of"):
                constraint.parse(text)


def test_every_format_has_an_example() -> None:
    assert CALLS.keys() == FORMATS.keys()
    described = str(dk.tools.__doc__)
    assert [name for name in FORMATS if f'``"{name}"``' not in described] == []


@few(1)
@pytest.mark.parametrize("format", FORMATS)
def test_formats(format: str) -> None:
    text, rejects = CALLS[format]
    spec = FORMATS[format]
    constraint = tools(TOOLS, format)
    calls = text.removeprefix("Let me see.\n")
    unlike = [
        text + "x",
        text[:-1],
        text.replace("get_weather", "get_wether"),
        text.replace("city", "town"),
        text.replace("get_weather", "add"),
    ]
    check_language(constraint, accepts=[text])
    check_texts(constraint, ["", "Hello, é😀!\n", text], [*rejects, *unlike])
    assert constraint.parse(text) == expected(format)
    assert constraint.parse("Hello.") == ToolResponse("Hello.")
    check_texts(tools(TOOLS, format, "required"), [calls], ["", "Hello.", *{text} - {calls}])
    check_texts(
        tools(TOOLS, format, "required", parallel=False), *([calls], []) if format == "llama3" else ([], [calls])
    )
    check_texts(tools(TOOLS, format, "none"), ["", "Hello."], [calls, spec.starts[0]])
    named = tools(TOOLS, format, {"type": "function", "function": {"name": "now"}})
    assert named == tools(TOOLS, format, "now") and named.max_calls == 1
    once = named.parse(dk.Vocabulary.decode(*_completion(named)).decode())
    assert once == ToolResponse("", (ToolCall("now", {}, "functions.now:0" if format == "kimi-k2" else None),))


def _completion(constraint: Tools) -> tuple[Vocabulary, tuple[int, ...]]:
    return BYTES, compile(constraint, BYTES).matcher().completion()


@pytest.mark.parametrize("format", FORMATS)
def test_between_the_parts_stands_at_most_what_templates_write(format: str) -> None:
    """Nowhere in a text of calls may two blanks stand, or a tab: a model that loops in them would never end."""
    constraint = tools([{"name": "now"}], format, "required")
    text = BYTES.decode(compile(constraint, BYTES).matcher().completion()).decode()
    opening, closing = constraint.format.opening.replace(" ", ""), constraint.format.closing
    if closing:
        separator = constraint.format.separator.strip()
        text = f"{text.removesuffix(closing)}{separator}{text.removeprefix(opening)}"
    elif format != "llama3":
        text += text
    grammar = compile(constraint, BYTES)
    assert grammar.matcher().validate([*text.encode()]) == len(text)
    for place in range(len(text) + 1):
        for blanks in ("  ", "\n\n", " \n", "\t", "\r"):
            begun = f"{text[:place]}{blanks}".encode()
            assert grammar.matcher().validate([*begun]) < len(begun), begun


@few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_a_cut_text_has_the_calls_that_are_whole(format: str) -> None:
    """Wherever it is cut; the content is there as soon as it is written, and no part of a call is taken for content."""
    text, _ = CALLS[format]
    whole, trigger = expected(format), FORMATS[format].starts[0]
    for choice, cut in (("auto", text), ("required", text.removeprefix("Let me see.\n"))):
        constraint = tools([WEATHER, {"name": "now"}], format, choice)
        found = [constraint.parse_cut(cut[:end]) for end in range(len(cut) + 1)]
        numbers = [len(one.calls) for one in found]
        assert numbers == sorted(numbers) and found[-1].calls == whole.calls and set(numbers) >= {0, 1}
        begin = cut.find(trigger) + len(trigger) if trigger in cut else 1
        assert {one.content for one in found[begin:]} == {whole.content if choice == "auto" else ""}
        assert all(one.calls == whole.calls[: len(one.calls)] for one in found)
        if choice == "auto" and format != "llama3":
            assert [one.content for one in found[: begin - len(trigger)]] == [cut[:end] for end in range(12)]
    assert tools(TOOLS, format, "none").parse_cut("Hel") == ToolResponse("Hel")


def test_calls_of_llama3_may_follow_its_tag_and_other_texts_do_not_begin_with_a_brace() -> None:
    call = '{"name": "now", "parameters": {}}'
    check_language(
        tools(TOOLS, "llama3"),
        accepts=[f"<|python_tag|>{call}", call, "So {", "<|python_tag|"],
        rejects=[f"So <|python_tag|>{call}", f"So {call}<|python_tag|>", f"\n{call}", "{", "<|python_tag|>"],
    )


def test_how_many_calls() -> None:
    one = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    check_texts(tools(TOOLS, "hermes", parallel=2), ["a", one, one * 2], [one * 3])
    check_texts(tools(TOOLS, "hermes", parallel=False), ["a", one], [one * 2])
    check_texts(tools(TOOLS, "hermes", tool_choice="now", parallel=True), [one, one * 3], ["", "a" + one])


def test_arguments_of_python_tools_have_their_types() -> None:
    constraint = tools([add, Search], "hermes")
    text = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'
    (call,) = constraint.parse(text % ("add", '{"a": 2, "unit": "fahrenheit"}')).calls
    assert call == ToolCall("add", {"a": 2, "unit": Unit.F}) and add(**call.arguments) == 3.0
    (call,) = constraint.parse(text % ("Search", '{"query": "q"}')).calls
    assert call.arguments == Search(query="q")
    for arguments in ('{"a": 2.5}', "{}", '{"a": 1, "c": 2}', '{"a": 1, "unit": "kelvin"}'):
        with pytest.raises(ValueError, match="is no text of"):
            constraint.parse(text % ("add", arguments))


def test_definitions_are_those_of_openai() -> None:
    constraint = tools(TOOLS, "hermes")
    weather, plus, search, now = constraint.definitions
    assert weather["function"] == {name: value for name, value in WEATHER["function"].items() if name != "strict"}
    assert plus["function"]["description"] == "Add two numbers." and plus["function"]["parameters"]["required"] == ["a"]
    assert search["function"]["name"] == "Search" and "query" in search["function"]["parameters"]["properties"]
    assert now["function"]["parameters"]["properties"] == {}
    assert tools(constraint.definitions).definitions == constraint.definitions


def test_values_of_constraints() -> None:
    constraint = tools(TOOLS, "mistral")
    copy = pickle.loads(pickle.dumps(constraint))
    assert copy == constraint and hash(copy) == hash(constraint) and copy.parse("a") == ToolResponse("a")
    assert constraint != tools(TOOLS) and constraint != tools(TOOLS[:3], "mistral")


def test_requests_are_taken() -> None:
    request = {"model": "m", "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    assert as_constraint(request) == tools([WEATHER], tool_choice="required", parallel=False)
    assert as_constraint({"tools": [WEATHER], "parallel_tool_calls": True}) == tools([WEATHER])


def test_tools_are_parts_of_compositions() -> None:
    answer = Reasoned(tools([{"name": "now"}], "hermes", tool_choice="required"))
    text = '<think>the time?</think>\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    check_language(answer, accepts=[text], rejects=[text.replace("now", "nov"), "<think></think>a"])
    assert answer.parse(text) == ("the time?", ToolResponse("", (ToolCall("now", {}),)))
    assert Concat(tools([{"name": "now"}], "hermes"), "!", Text(max_chars=0)).parse("a!") == (ToolResponse("a"), "")


def test_guards_of_arguments_are_asked() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"uniqueItems": True, "items": {"type": "object"}, "type": "array"}},
    }
    constraint = tools([{"name": "f", "parameters": schema}], "function")
    good, bad = '{"x": [{"a": 1}, {"a": 2}]}', '{"x": [{"a": 1}, {"a": 1.0}]}'
    call = "<function=f>%s</function>"
    check_texts(constraint, [call % good], [call % bad, call % good + call % bad])


def test_schemas_of_any_shape_give_objects() -> None:
    shapes: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, ["{}", '{"a":[1]}'], ["1", "[]", "null"]),
        ({"type": ["object", "null"], "maxProperties": 0}, ["{}"], ["null", '{"a":1}']),
        ({"minLength": 2, "required": ["a"]}, ['{"a":1}'], ['"ab"', "{}"]),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"const": 1}}}}}, ['{"a":1}'], ['{"a":2}', "1"]),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/A",
                "definitions": {"A": {"maxProperties": 1}},
                "minProperties": 1,  # beside a reference, draft 7 does not look at it
            },
            ["{}", '{"a":2}'],
            ['{"a":1,"b":2}', "1"],
        ),
    ]
    for schema, accepts, rejects in shapes:
        constraint = tools([{"name": "f", "parameters": schema}], "function", "required")
        wrapped = [[f"<function=f>{text}</function>" for text in texts] for texts in (accepts, rejects)]
        check_texts(constraint, *wrapped)


# -- elements

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 9},
        "kind": {"enum": ["a b", "c"]},
        "code": {"$ref": "#/$defs/code"},
        "é/~": {"type": ["integer", "array"], "items": {"type": "string"}},
    },
    "required": ["text"],
    "$defs": {"code": {"type": "string", "pattern": "^[A-Z]\n?$"}},
}


def element(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def call_of(*elements: str) -> str:
    return f"<tool_call>\n<function=f>\n{''.join(elements)}</function>\n</tool_call>"


def test_strings_are_written_as_they_are_and_the_rest_as_json() -> None:
    constraint = tools([{"name": "f", "parameters": PARAMETERS}], "qwen3-coder", "required")
    accepts = {
        call_of(element("text", '"\\n\n<p>"')): {"text": '"\\n\n<p>"'},
        call_of(element("text", "1"), element("kind", "a b"), element("code", "X\n")): {
            "text": "1",
            "kind": "a b",
            "code": "X\n",
        },
        call_of(element("text", "é"), element("é/~", '["</parameter>"]')): {"text": "é", "é/~": ["</parameter>"]},
        call_of(element("text", "é"), element("é/~", "7")): {"text": "é", "é/~": 7},
    }
    rejects = [
        call_of(),
        call_of(element("text", "")),
        call_of(element("text", "ten chars.")),
        call_of(element("text", "<function>"), element("kind", "b")),
        call_of(element("kind", "c"), element("text", "x")),
        call_of(element("text", "x"), element("code", "x")),
        call_of(element("text", "x"), element("é/~", '"7"')),
        call_of(element("text", "x"), element("other", "1")),
        call_of(element("text", "x") * 2),
    ]
    check_language(constraint, accepts=[call_of(element("text", '"\\n\n<p>"'))])
    check_texts(constraint, list(accepts), rejects)
    for text, arguments in accepts.items():
        assert constraint.parse(text) == ToolResponse("", (ToolCall("f", arguments),))


@few(1)
@pytest.mark.parametrize("mark", ["</parameter>", "<parameter=", "</function>", "<tool_call>", "</tool_call>"])
def test_strings_as_they_are_hold_no_mark_of_the_format(mark: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    constraint = tools([{"name": "f", "parameters": schema}], "qwen3-coder", "required")
    check_language(constraint, accepts=[call_of(element("x", mark[:-1]))], rejects=[call_of(element("x", f"a{mark}b"))])


@pytest.mark.parametrize(
    ("parameters", "at"),
    [
        ({"properties": {"x": {"const": "</function>"}}}, "f#/properties/x"),
        ({"properties": {"x": {"type": ["string", "array"], "uniqueItems": True}}}, "f#/properties/x"),
        ({"properties": {"x": False}, "required": ["x"]}, "f#/properties/x"),
        ({"properties": {"x>": {"type": "string"}}}, "f#/properties/x>"),
        ({"required": ["x"]}, "f#/required"),
    ],
    ids=str,
)
def test_elements_that_cannot_be_written(parameters: dict[str, Any], at: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        tools([{"name": "f", "parameters": parameters}], "qwen3-coder")
    assert caught.value.at == at


NULL, ANY = {"type": ["string", "null"]}, dict[str, Any]()
READINGS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    # the schema of a parameter, values by the texts that are read as them, texts that nothing is written as
    (NULL, {"null": None, "None": None, "": "", "7": "7", '"a"': '"a"', "nul": "nul", "[1]": "[1]", "True": "True"},
     []),
    (ANY, {"null": None, "7": 7, "7.": "7.", '"a"': '"a"', "[1, 2]": [1, 2], "[1,  2]": [1, 2], "{": "{",
           "true": True, "True": True, "on": "on"}, ["a</parameter>"]),
    ({"type": ["string", "integer"]}, {"7": 7, "07": "07", "7.5": "7.5", "true": "true"}, []),
    ({"type": "boolean"}, {"true": True, "True": True, "false": False, "False": False}, ["TRUE", "None", "null", "0"]),
    ({"const": None}, {"null": None, "None": None}, ["none", ""]),
    ({"type": "string"}, {"null": "null", "None": "None", "7": "7", "a\nb\n": "a\nb\n"}, []),
    ({"type": "string", "not": {"const": "a"}}, {"b": "b", "aa": "aa"}, ["a"]),
    ({"enum": ["a", "1", 1, None, True]}, {"a": "a", "1": 1, "None": None, "True": True}, ["2", "b", "False"]),
    ({"type": "string", "pattern": "^.[\\\\\"\n]$"}, {'a"': 'a"', "a\\": "a\\", "é\n": "é\n"}, ["a", "ab", 'ab"']),
    ({"type": ["string", "null"], "maxLength": 3}, {"abc": "abc", "null": None, "None": None}, ["abcd"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "values", "rejects"), READINGS, ids=str)
def test_what_elements_are_read_as(schema: dict[str, Any], values: dict[str, Any], rejects: list[str]) -> None:
    """As the parsers of the families read them; all that is accepted is read as a value that the schema admits."""
    constraint = tools([{"name": "f", "parameters": {"properties": {"x": schema}}}], "qwen3-coder", "required")
    check_texts(
        constraint, [call_of(element("x", text)) for text in values], [call_of(element("x", one)) for one in rejects]
    )
    for text, value in values.items():
        (call,) = constraint.parse(call_of(element("x", text))).calls
        assert call.arguments == {"x": value} and type(call.arguments["x"]) is type(value)
        jsonschema.Draft202012Validator(schema).validate(value)


def lend(until: datetime.date, to: uuid.UUID, note: str | None = None, much: str | int = 1) -> None:
    """A tool with everyday types."""


def test_elements_of_everyday_types() -> None:
    constraint = tools([lend], "qwen3-coder", "required")
    number = "12345678-1234-5678-1234-567812345678"
    first = [element("until", "2024-02-29"), element("to", number)]
    begin = "<tool_call>\n<function=lend>\n%s</function>\n</tool_call>"
    texts = {
        "": {},
        element("note", "None"): {"note": None},
        element("note", "a\nb") + element("much", "7"): {"note": "a\nb", "much": 7},
        element("much", "7 or 8"): {"much": "7 or 8"},
    }
    whole = {begin % ("".join(first) + text): arguments for text, arguments in texts.items()}
    rejects = [begin % "".join([element("until", "2023-02-29"), first[1]]), begin % first[0]]
    check_texts(constraint, list(whole), rejects)
    for text, arguments in whole.items():
        (call,) = constraint.parse(text).calls
        assert call.arguments == {"until": datetime.date(2024, 2, 29), "to": uuid.UUID(number)} | arguments


def test_elements_are_judged_together() -> None:
    """What the schema says of the object as a whole; the parameters may be declared in its branches."""
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}}
    shapes: list[tuple[dict[str, Any], list[list[str]], list[list[str]]]] = [
        ({"properties": properties, "minProperties": 1}, [["a", "1"], ["b", "x"]], [[]]),
        ({"properties": properties, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [["a", "1"]], [[]]),
        (
            {"properties": properties, "dependentRequired": {"a": ["b"]}},
            [["a", "1", "b", "x"], ["b", "x"]], [["a", "1"]],
        ),
        (
            {"oneOf": [{"properties": {"a": {"const": 1}, "c": {"type": "boolean"}}, "required": ["a", "c"]},
                       {"properties": {"a": {"const": 2}}, "required": ["a"]}]},
            [["a", "1", "c", "true"], ["a", "2"]], [["a", "1"], []],
        ),
        (
            {"$ref": "#/$defs/P", "$defs": {"P": {"properties": properties, "required": ["a"], "maxProperties": 1}}},
            [["a", "1"]], [[], ["a", "1", "b", "x"]],
        ),
        (  # a reference into a list
            {"$ref": "#/$defs/P/anyOf/0", "$defs": {"P": {"anyOf": [{"properties": properties, "required": ["a"]}]}}},
            [["a", "1"]], [[]],
        ),
    ]  # fmt: skip
    for schema, accepts, rejects in shapes:
        constraint = tools([{"name": "f", "parameters": schema}], "qwen3-coder", "required")
        texts = [[call_of(*map(element, one[::2], one[1::2])) for one in some] for some in (accepts, rejects)]
        for text in texts[0]:
            constraint.parse(text)
        for text in texts[1]:
            with pytest.raises(ValueError, match="is no text of"):
                constraint.parse(text)
        grammar = compile(constraint, BYTES)
        ended = grammar.matcher()
        assert all(map(ended.accept, texts[0][0].encode())) and ended.is_accepting


# -- special tokens


def read(vocabulary: Vocabulary, tokens: list[int]) -> str:
    """The text of tokens, special tokens by their name."""
    names = {token: name.encode() for name, token in vocabulary.special_tokens.items()}
    return b"".join(vocabulary.token_bytes[token] or names[token] for token in tokens).decode()


def allowed(grammar: CompiledGrammar, tokens: list[int]) -> set[int]:
    matcher = grammar.matcher()
    assert all(map(matcher.accept, tokens))
    bitmask = allocate_bitmask(1, grammar.vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return set(ids_from_bitmask(bitmask[0]).tolist())


@pytest.mark.parametrize("format", ["hermes", "mistral", "mistral-v11", "mistral-v13", "llama3", "qwen3-coder"])
def test_markers_as_special_tokens(format: str) -> None:
    text = CALLS[format][0]
    if format == "llama3":
        text = "<|python_tag|>" + text
    tokens: list[int] = []
    rest = text
    while rest:
        name = next((name for name in SPECIAL.special_tokens if rest.startswith(name)), None)
        data = rest[0] if name is None else name
        tokens += data.encode() if name is None else [SPECIAL.special_tokens[name]]
        rest = rest[len(data) :]
    as_text = list(text.encode())
    for special_tokens, is_token, is_text in ((None, True, True), (True, True, False), (False, False, True)):
        constraint = tools(TOOLS, format, special_tokens=special_tokens)
        for spelling, is_expected in ((tokens, is_token), (as_text, is_text)):
            matcher = compile(constraint, SPECIAL).matcher()
            assert (matcher.validate(spelling) == len(spelling)) is is_expected
        assert constraint.parse(read(SPECIAL, tokens)) == expected(format)
    check_matcher(compile(tools(TOOLS, format, "required"), SPECIAL).matcher(), SPECIAL, num_tokens=6)


def mistral_message() -> Any:
    from mistral_common.protocol.instruct.messages import AssistantMessage
    from mistral_common.protocol.instruct.tool_calls import FunctionCall
    from mistral_common.protocol.instruct.tool_calls import ToolCall as Call

    calls = [("a1B2c3D4e", "get_weather", json.dumps(BERN)), ("f5G6h7I8j", "now", "{}")]
    return AssistantMessage(
        content=None,
        tool_calls=[Call(id=id, function=FunctionCall(name=name, arguments=text)) for id, name, text in calls],
    )


def check_mistral(format: str, vocabulary: Vocabulary, tokens: list[int], has_ids: bool) -> None:
    constraint = tools(TOOLS, format, "required", special_tokens=True)
    matcher = compile(constraint, vocabulary).matcher()
    assert matcher.validate(tokens) == len(tokens)
    ids = ("a1B2c3D4e", "f5G6h7I8j") if has_ids else (None, None)
    calls = (ToolCall("get_weather", BERN, ids[0]), ToolCall("now", {}, ids[1]))
    assert constraint.parse(read(vocabulary, tokens)) == ToolResponse("", calls)


@few(2)
@pytest.mark.parametrize("version", ["v2", "v3", "v7"])
def test_lists_of_calls_are_those_that_mistral_common_writes(version: str) -> None:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tokenizer = getattr(MistralTokenizer, version)()
    tokens = tokenizer.instruct_tokenizer._encode_tool_calls_in_assistant_message(mistral_message())
    check_mistral("mistral", Vocabulary.from_tokenizer(tokenizer), tokens, has_ids=version != "v2")


@pytest.mark.parametrize("version", ["11", "13"])
def test_named_calls_are_those_that_mistral_common_writes(version: str) -> None:
    """Over bytes: the package has no vocabulary of these versions."""
    from mistral_common.tokens.tokenizers import instruct

    class Bytes:
        def encode(self, text: str, bos: bool, eos: bool) -> list[int]:
            return list(text.encode())

    tokenizer = object.__new__(getattr(instruct, f"InstructTokenizerV{version}"))
    tokenizer.tokenizer = Bytes()
    tokenizer.TOOL_CALLS, tokenizer.CALL_ID, tokenizer.ARGS = (
        MARKERS[name] for name in ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    )
    tokens = tokenizer._encode_tool_calls_in_assistant_message(mistral_message())
    check_mistral(f"mistral-v{version}", SPECIAL, tokens, has_ids=version == "11")


def test_the_first_token_of_a_required_call() -> None:
    def first(special_tokens: bool | None, vocabulary: Vocabulary) -> set[int]:
        constraint = tools(TOOLS, "mistral-v13", "required", special_tokens=special_tokens)
        return allowed(compile(constraint, vocabulary), [])

    token, text = MARKERS["[TOOL_CALLS]"], ord("[")
    assert first(True, SPECIAL) == {token}
    assert first(None, SPECIAL) == {token, text}
    assert first(False, SPECIAL) == {text} == first(None, BYTES)


@settings(max_examples=60, deadline=None)
@given(st.text().filter(lambda text: "<tool_call>" not in text))
def test_the_text_before_a_call_is_free(text: str) -> None:
    constraint = tools([{"name": "now"}], "hermes")
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for whole, calls in ((text, ()), (text + call, (ToolCall("now", {}),))):
        matcher = compile(constraint, BYTES).matcher()
        assert all(map(matcher.accept, whole.encode())) and matcher.is_accepting
        assert constraint.parse(whole) == ToolResponse(text, calls)


# -- random tool sets


def random_schema(rng: random.Random, depth: int, has_strings: bool = True) -> dict[str, Any]:
    kinds = ["integer", "boolean", "null", "number", "enum", *(["string"] if has_strings else []), "array", "object"]
    kind = rng.choice(kinds[: None if depth else -2])
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "ünï"] if has_strings else [1, 2.5, None], 2)}
    if kind == "string":
        return {"type": "string", **rng.choice([{}, {"maxLength": 5}, {"pattern": "^[a-z]+$"}, {"minLength": 2}])}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": 3}
    if kind == "object":
        return random_parameters(rng, depth - 1)
    return {"type": kind, **({"minimum": -3, "maximum": 40} if kind == "integer" else {})}


def random_parameters(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["city", "n", "x-y", "größe", "name", "arguments"], rng.randint(0, 3))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    return schema if rng.random() < 0.2 else {**schema, "additionalProperties": False}


def random_tools(rng: random.Random) -> list[dict[str, Any]]:
    names = rng.sample(["f", "fg", "get_weather", "get", "search-2", "a.b", "Now", "name"], rng.randint(1, 4))
    return [{"name": name, "parameters": random_parameters(rng, 2)} for name in names]


def random_response(rng: random.Random, constraint: Tools, vocabulary: Vocabulary, num_tokens: int) -> str:
    """A text drawn under the masks, uniformly among the allowed tokens, then ended by the completion."""
    matcher = compile(constraint, vocabulary).matcher()
    tokens: list[int] = []
    if constraint.choice == "auto" and not constraint.format.is_alone:  # a call is not met by chance
        (trigger,) = constraint.format.triggers
        begin = [*"é<b ".encode(), *trigger.encode()]
        if vocabulary is SPECIAL and trigger in MARKERS:
            begin[-len(trigger) :] = [MARKERS[trigger]]
        assert all(map(matcher.accept, begin))
        tokens += begin
    bitmask = allocate_bitmask(1, vocabulary.size)
    for _ in range(num_tokens):
        matcher.fill_bitmask(bitmask)
        going_on = sorted(set(ids_from_bitmask(bitmask[0]).tolist()) - vocabulary.eos_token_ids)
        if not going_on:
            break
        token = rng.choice(going_on)
        assert matcher.accept(token)
        tokens.append(token)
    ending = list(matcher.completion())
    assert all(map(matcher.accept, ending)) and matcher.is_accepting
    return read(vocabulary, [*tokens, *ending])


def check_random_tools(seed: int, format: str) -> int:
    """Returns the number of calls that were seen."""
    rng = random.Random(f"{seed} {format}")
    given = random_tools(rng)
    choice = rng.choice(["auto", "required", given[0]["name"]])
    try:
        constraint = tools(given, format, choice)
    except ConstraintError as error:  # a string that may be something else cannot be an element
        if format != "qwen3-coder" or error.at is None:
            raise
        return 0
    schemas = {tool["name"]: tool["parameters"] for tool in given}
    num_calls = 0
    for vocabulary in (BYTES, SPECIAL):
        for num_tokens in (0, 12, 60):
            text = random_response(rng, constraint, vocabulary, num_tokens)
            response = constraint.parse(text)
            assert isinstance(response, ToolResponse)
            assert response.calls or choice == "auto"
            assert text.startswith(response.content)
            for call in response.calls:
                assert choice in ("auto", "required", call.name)
                jsonschema.Draft202012Validator(schemas[call.name]).validate(call.arguments)
            num_calls += len(response.calls)
    return num_calls


@few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_random_tools(format: str) -> None:
    assert sum(check_random_tools(seed, format) for seed in range(3)) >= 10


def test_the_random_tools_notice_arguments_that_are_not_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: any object is taken as arguments."""
    monkeypatch.setattr(Tool, "arguments", lambda tool: JsonSchema({"type": "object"}))
    with pytest.raises(jsonschema.ValidationError):
        sum(check_random_tools(seed, "hermes") for seed in range(6))
    _pieces.cache_clear()  # they have the wrong arguments


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", FORMATS)
def test_many_random_tools(format: str) -> None:
    assert sum(check_random_tools(seed, format) for seed in range(200)) >= 800


# -- refusals


def nothing(value) -> None:  # type: ignore[no-untyped-def]
    """A function without types."""


def any_number(*values: int) -> None:
    """A function whose arguments have no names."""


@pytest.mark.parametrize(
    ("options", "message", "at"),
    [
        ({"tools": []}, "there are no tools", "tools"),
        ({"tools": "f"}, "a str is no list of tools", "tools"),
        ({"tools": WEATHER}, "a dict is no list", "tools"),
        ({"tools": [5]}, "a int is no tool", "tools/0"),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "two tools have the name 'f'", "tools/1"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "of type 'web_search'", "tools/0, /type"),
        ({"tools": [{"function": {}}]}, "needs a name", "tools/0, /function/name"),
        ({"tools": [{"name": "f", "parameter": {}}]}, "'parameter' is no part", "tools/0, /"),
        ({"tools": [{"name": "f", "strict": "yes"}]}, '"strict" must be', "tools/0, f/strict"),
        ({"tools": [{"name": "f", "parameters": {"type": "string"}}]}, "arguments are an object", "tools/0, f#/type"),
        ({"tools": [{"name": "f", "parameters": {"properties": {"a": {"pattern": "("}}}}]}, "not closed", "pattern"),
        ({"tools": [{"name": "f", "parameters": {"required": ["a"], "properties": {"a": False}}}]}, "no value", "f#"),
        ({"tools": [nothing]}, "'value' has no type", "tools/0, nothing"),
        ({"tools": [any_number]}, "cannot be given by its name", "tools/0, any_number"),
        ({"tools": TOOLS, "format": "hermess"}, "no format of tool calls 'hermess'", "format"),
        ({"tools": TOOLS, "format": 5}, "no format of tool calls 5", "format"),
        ({"tools": TOOLS, "tool_choice": "get_wether"}, "there is no tool 'get_wether'", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "chooses no tool", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": None}, "there is no tool None", "tool_choice"),
        ({"tools": TOOLS, "parallel": 0}, "0 is neither", "parallel"),
        ({"tools": TOOLS, "parallel": 2, "format": "llama3"}, "writes one call only", "parallel"),
        ({"tools": TOOLS, "special_tokens": "yes"}, "'yes' is neither", "special_tokens"),
        ({"tools": [{"name": "a b"}], "format": "function"}, "cannot write the name 'a b'", "a b"),
        ({"tools": [{"name": "a[ARGS]"}], "format": "mistral-v13"}, "it holds '['", "a[ARGS]"),
        ({"tools": [{"name": "\ud800"}], "format": "hermes"}, "surrogate", "ud800"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, at: str) -> None:
    with pytest.raises(DecodekitError) as caught:
        tools(**options)
    assert message in caught.value.cause and at in (caught.value.at or "")


def test_an_option_without_effect() -> None:
    with pytest.raises(UselessOptionError, match="has no effect"):
        tools(TOOLS, tool_choice="none", parallel=True)


def test_all_faults_at_once_and_near_names() -> None:
    broken: dict[str, Any] = {"name": "g", "parameters": {"properties": {"a": {"minimum": "x"}}}}
    with pytest.raises(OptionError, match="5 things about the tools cannot be used") as caught:
        tools([WEATHER, WEATHER, 5, broken], format="lama3", tool_choice="get_wether")
    assert [fault.hint for fault in caught.value.faults if fault.code == "DK401"] == ["'llama3'", "'get_weather'"]
    assert any(fault.at == "g#/properties/a/minimum" for fault in caught.value.faults)


def test_names_that_are_quoted_may_be_any_text() -> None:
    name = 'say "é"\n'
    constraint = tools([{"name": name}], "hermes", tool_choice="required")
    text = f'<tool_call>{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {{}}}}</tool_call>'
    check_language(constraint, accepts=[text], rejects=[text.replace("say", "Say")])
    assert constraint.parse(text).calls[0].name == name


def test_a_tool_may_have_the_name_of_a_choice() -> None:
    constraint = tools(
        [{"name": "auto"}, {"name": "b"}], tool_choice={"type": "function", "function": {"name": "auto"}}
    )
    assert constraint.only == "auto" and constraint.choice == "required"
