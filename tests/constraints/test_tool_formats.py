"""Formats of calls as descriptions: what one writes, its mask admits and its parser reads, in a small world of them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest

from decodekit.constraints import compile
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.growing import GrowingSplit
from decodekit.constraints.json_schema.notation import Values
from decodekit.constraints.tool_calls import FORMATS, ToolCall, ToolFormat, ToolResponse, Tools, tools
from decodekit.constraints.tool_calls.format import (
    ARGUMENTS,
    ID,
    NAME,
    NUMBER,
    Arguments,
    ElementArguments,
    JsonArguments,
    Part,
)
from decodekit.errors import DecodekitError, InvalidConstraintError
from decodekit.vocabulary import Vocabulary
from tests.sizes import sized

PIECES = [b'{"name": "', b'": ', b"}\n</", b"<call", b"\n\n", b'", "', b"</p>\n", b"f(", b">\n", b"\xc3", b"a <"]
BYTES = Vocabulary([*(bytes((b,)) for b in range(256)), None, *PIECES], [256])

CALLS: dict[str, tuple[Part, ...]] = {
    "json": ('<call>\n{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}\n</call>"),
    "named": ("<f=", NAME, ">\n", ARGUMENTS, "</f>"),
    "id": ('<call>{"id": "', ID, '", "name": "', NAME, '", "parameters": ', ARGUMENTS, "}</call>"),
    "id behind": ("[CALL]", NAME, "[ARGS]", ARGUMENTS, "[/ARGS]", ("[ID]", ID, "[/ID]")),
    "number": ("<call>tools.", NAME, ":", NUMBER, "<args>", ARGUMENTS, "</args>"),
    "reversed": ('<call>{"arguments": ', ARGUMENTS, ', "name": "', NAME, '"}</call>'),
}
ARGUMENT_FORMS: dict[str, Arguments] = {
    "json": JsonArguments(),
    "compact": JsonArguments(Values(item=",", key=":", is_ascii=True)),
    "quoted": JsonArguments(is_quoted=True),
    "tags": ElementArguments("<p=", ">\n", "\n</p>\n"),
    "pairs": ElementArguments("<k>", "</k>\n<v>", "</v>\n", values=Values("raw", literals="python")),
    "marked": ElementArguments('<p n="', '" s="true">', "</p>", middle_of_others='" s="false">', opening="<a>\n"),
    "parentheses": ElementArguments("", "=", "", ", ", Values(), opening="(", closing=")"),
    "python": ElementArguments("", "=", "", ", ", Values("python", "python", "python"), opening="(", closing=")"),
    "quotes": ElementArguments("", "=", "", ", ", Values('"', "python", "python"), opening="(", closing=")"),
    "tags with python": ElementArguments("<p=", ">", "</p>\n", values=Values("raw", "python", "python")),
    "bare keys": JsonArguments(Values('<|"|>', nested="own", item=",", key=":")),
    "bare elements": ElementArguments(
        "", ":", "", ",", Values('<|"|>', nested="own", item=",", key=":"), opening="{", closing="}"
    ),
    "dict": JsonArguments(Values("python", "python", "python")),
}
AROUND: dict[str, dict[str, Any]] = {
    "nothing": {"separator": "\n"},
    "list": {"opening": "<calls>\n[", "separator": ",\n", "closing": "]\n</calls>"},
    "joint": {"joint": "\n\n", "end": "\n<end>"},
    "joint alone": {"joint": "\n", "has_joint_alone": True, "separator": "\n"},
    "frame": {"content_begin": "<say>\n", "content_end": "\n</say>", "joint": "\n"},
    "words": {"content_begin": "all\n", "joint": ">>>", "separator": ">>>"},
    "begun": {"joint": "<tools>\n", "closing": "\n</tools>"},
    "alone": {"is_alone": True, "max_calls": 1, "lead": "<|tag|>"},
}

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": ["number", "null", "boolean"]},
        "any": {},
        "list": {"type": "array", "items": {"type": ["string", "integer", "null", "object"]}},
    },
    "required": ["number"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"name": "f", "parameters": PARAMETERS}, {"name": "fg"}]
CONTENTS = ["", "Hi.", "é a <b\n", "\n"]
ARGUMENTS_OF_F: list[dict[str, Any]] = [
    {"number": None},
    {"text": "", "number": True},
    {"text": " a\"b'c\\\n</p", "number": -1.5, "any": "x é\n", "list": [1, 'é"', None, {"k": ["</p>"]}]},
    {"text": "12", "number": 12, "any": {"a b": False}, "list": []},
    {"number": 0, "any": "[1"},
]


def formats() -> Iterator[ToolFormat]:
    """The world: every call with all arguments in every surrounding."""
    for (call, pieces), (form, arguments), (around, fields) in product(
        CALLS.items(), ARGUMENT_FORMS.items(), AROUND.items()
    ):
        names: Any = "json" if call in ("json", "id", "reversed") else "raw"
        identifier = ("tools.", NAME, ":", NUMBER) if call == "number" else ()
        name = f"{call}, {form}, {around}"
        yield ToolFormat(name, "", pieces, arguments, names=names, identifier=identifier, **fields)


def responses(form: ToolFormat, rng: random.Random) -> list[ToolResponse]:
    """Responses of a format: content alone, a call alone, and both."""
    first, second = (ToolCall("f", rng.choice(ARGUMENTS_OF_F)) for _ in range(2))
    some = [(), (first,), (ToolCall("fg", {}),), (second, ToolCall("fg", {}), first)]
    found = []
    for calls in some[: None if form.max_calls is None else 3]:
        if form.id_hole is not None:
            ids = rng.sample(range(9), len(calls))
            names = [
                f"tools.{call.name}:{id}" if form.identifier else f"id_{id}"
                for call, id in zip(calls, ids, strict=True)
            ]
            calls = tuple(replace(call, id=id) for call, id in zip(calls, names, strict=True))
        for content in ("", rng.choice(CONTENTS)):
            if (not calls or not content or not form.is_alone) and is_writable(form, calls):
                found.append(ToolResponse(content, calls))
    assert len(found) > 2
    return found


def is_writable(form: ToolFormat, calls: tuple[ToolCall, ...]) -> bool:
    """Whether no string holds the mark that ends strings."""
    try:
        form.written("", calls)
    except ValueError:
        return False
    return True


def tokens_of(text: str) -> list[int]:
    """The longest token each."""
    data, found = text.encode(), list[int]()
    while data:
        token = max(
            (token for token, piece in enumerate(BYTES.token_bytes) if piece and data.startswith(piece)),
            key=lambda token: len(BYTES.token_bytes[token] or b""),
        )
        found.append(token)
        data = data[len(BYTES.token_bytes[token] or b"") :]
    return found


def is_accepted(constraint: Tools, text: str) -> bool:
    """Whether every token is in the mask when it comes, and the text may end."""
    matcher = compile(constraint, BYTES).matcher()
    bitmask = allocate_bitmask(1, BYTES.size)
    for token in tokens_of(text):
        matcher.fill_bitmask(bitmask)
        if token not in ids_from_bitmask(bitmask[0]):
            return False
        assert matcher.accept(token)
    return matcher.is_accepting


def check(form: ToolFormat, rng: random.Random) -> None:
    """What the format writes is accepted, parsed, parsed where it is cut, and told as it grows."""
    for response in responses(form, rng):
        text = form.written(response.content, response.calls)
        choices = ["auto"] if response.content or not response.calls else ["auto", "required"]
        for choice in choices:
            constraint = tools(TOOLS, form, choice)
            assert is_accepted(constraint, text), (form.name, choice, text)
            assert constraint.parse(text) == response, (form.name, choice, text)
        assert told_as_it_grows(constraint, text) == [(call.name, call.id, call.arguments) for call in response.calls]
        cut = [constraint.parse_cut(text[:end]) for end in (*sorted(rng.choices(range(len(text) + 1), k=4)), len(text))]
        assert cut[-1].calls == response.calls
        for one, other in pairwise(cut):  # an identifier may come last
            assert [(call.name, call.arguments) for call in one.calls] == [
                (call.name, call.arguments) for call in other.calls[: len(one.calls)]
            ]
        if response.calls:
            assert {one.content for one in cut if one.calls} == {response.content}


def told_as_it_grows(constraint: Tools, text: str) -> list[tuple[str | None, str | None, Any]]:
    """Names, identifiers and arguments of the calls, as a stream is told them character by character."""
    split = GrowingSplit(constraint, is_written=True)
    for character in text:
        split.push(character)
    split.end()
    return [(one.name, one.id, json.loads("".join(one.json.written))) for one in split.documents]


def by_name(call: str, form: str, around: str) -> ToolFormat:
    return next(one for one in formats() if one.name == f"{call}, {form}, {around}")


@sized("num_formats", 6, slow=None)
def test_what_a_format_writes_it_reads(num_formats: int | None) -> None:
    world = list(formats())
    rng = random.Random(7)
    assert len({form.name for form in world}) == len(world) > 300
    for form in world if num_formats is None else rng.sample(world, num_formats):
        check(form, rng)


@pytest.mark.parametrize("around", ["nothing", "list", "words"])
def test_another_separator_is_refused(around: str) -> None:
    """The control: what is checked of two calls does not hold where something else stands between them."""
    form = by_name("named", "tags", around)
    response = ToolResponse("Hi.", (ToolCall("f", {"number": 1}), ToolCall("fg", {})))
    constraint, other = tools(TOOLS, form), replace(form, separator=";")
    assert constraint.parse(form.written(response.content, response.calls)) == response
    text = other.written(response.content, response.calls)
    assert not is_accepted(constraint, text) and tools(TOOLS, other).parse(text) == response
    with pytest.raises(ValueError, match="is no text of"):
        constraint.parse(text)


def test_content_ends_where_the_format_says() -> None:
    """What stands between the content and the calls is of neither, also where a model leaves some of it out."""
    cases: dict[str, dict[str, str]] = {
        "joint": {"a\n\n<f=fg>\n</f>": "a", "a\n<f=fg></f>": "a", "a\n\n\n<f=fg>\n</f>": "a\n",
                  "\n\n<f=fg>\n</f>\n<end>": ""},
        "frame": {"<say>\na\n\n</say><f=fg>\n</f>": "a\n", "<say>\n\n</say>\n<f=fg></f>": "", "<f=fg></f>": ""},
        "words": {"all\na\n>>><f=fg></f>": "a\n", "<f=fg></f>": "", "all\n>>><f=fg></f>": ""},
        "begun": {"<f=fg></f>\n</tools>": "", "a <tools><f=fg></f></tools>": "a "},
    }  # fmt: skip
    for around, texts in cases.items():
        constraint = tools(TOOLS, by_name("named", "tags", around))
        for text, content in texts.items():
            assert constraint.parse(text) == ToolResponse(content, (ToolCall("fg", {}),)), text
            assert is_accepted(constraint, text)


def test_responses_without_calls_begin_otherwise() -> None:
    alone = tools(TOOLS, by_name("named", "tags", "alone"))
    begun = tools(TOOLS, by_name("named", "tags", "begun"))
    assert alone.parse("a </f>") == ToolResponse("a </f>") == begun.parse("a </f>")
    for constraint, text in ((alone, "<f=g"), (alone, "a <|tag|>"), (begun, "<f=g"), (begun, "a <tools>")):
        assert not is_accepted(constraint, text)


def test_formats_are_values() -> None:
    one, other = ([*formats()][100] for _ in range(2))
    assert one == other and hash(one) == hash(other) and pickle.loads(pickle.dumps(one)) == one
    assert tools(TOOLS, one) == tools(TOOLS, other) != tools(TOOLS, replace(one, name="another"))
    assert tools(TOOLS, FORMATS["hermes"]) == tools(TOOLS, "hermes")


CALL: tuple[Part, ...] = ("<f=", NAME, ">", ARGUMENTS, "</f>")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"call": ("<f=", NAME, ">")}, "once each"),
        ({"call": ("<f=", NAME, ">", ARGUMENTS, NAME)}, "once each"),
        ({"call": (NAME, "\n", ARGUMENTS)}, "nothing tells calls"),
        ({"call": CALL[:-1], "arguments": ElementArguments("<p=", ">", "</p>")}, "another element follows"),
        ({"arguments": ElementArguments("<p=", ">", "")}, "nothing ends a string"),
        ({"lead": "\n"}, "a lead of blanks alone"),
        ({"joint": "<j>", "has_joint_alone": True}, "is of blanks"),
        ({"arguments": JsonArguments(Values("raw"))}, "need an end"),
        ({"arguments": ElementArguments("<p=", ">", "</p>", values=Values("raw", nested="own"))}, "need an end"),
        ({"arguments": JsonArguments(Values("python", "python", "python"), is_quoted=True)}, "JSON itself"),
    ],
)
def test_descriptions_that_say_too_little(fields: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"call": CALL, **fields}
    with pytest.raises(InvalidConstraintError, match=message):
        ToolFormat("f", "", **given)


def test_what_a_format_cannot_write() -> None:
    with pytest.raises(ValueError, match="has no identifier"):
        by_name("id", "json", "nothing").written("", [ToolCall("f", {})])
    words = ToolFormat("words", "", (NAME, "\n", ARGUMENTS), content_begin="all\n", joint=">>>", separator=">>>")
    with pytest.raises(InvalidConstraintError, match="without a call begin so"):
        tools([{"name": "all"}], words)
    assert tools(TOOLS, words).parse("all\na>>>fg\n{}") == ToolResponse("a", (ToolCall("fg", {}),))


def test_names_in_quoted_json_may_be_escaped() -> None:
    """A declared name beyond ASCII had only its plain spelling inside of a string."""
    form = ToolFormat("f", "", ("<f=", NAME, ">", ARGUMENTS, "</f>"), JsonArguments(Values(is_ascii=True), True))
    schema = {"type": "object", "properties": {"größe": {"type": "string"}}, "required": ["größe"]}
    constraint, call = tools([{"name": "f", "parameters": schema}], form), ToolCall("f", {"größe": "ü"})
    text = form.written("", [call])
    assert "gr\\\\u00f6" in text and is_accepted(constraint, text)
    assert constraint.parse(text) == ToolResponse("", (call,))
    assert not is_accepted(constraint, text.replace("00f6", "00f7"))


# -- drawn descriptions, tools and values

_MARKS = ("<call>", "</call>", "<|a|>", "<p=", "</p>", "[CALL]", "[WITH]", "<k>", "</k>", "<v>", "</v>")
_GLUE = ("", "", "\n", " ", "\n\n", ", ", ": ", "(", ")", '"', "|", ";", "w", "- ")
_NAMES = ("f", "fg", "get_weather", "w-2", "now")
_KEYS = ("a", "city", "n_1", "x-y", "größe", "name")
_TEXTS = ("", "a", "Zürich", "a\nb ", " 'it' ", '"b"', "\\n", "<", "</", "</p", "<|", "{", "[1", "a, b: c)", "\t", "😀")
_VALUES = (
    Values(), Values(item=",", key=":"), Values(is_ascii=True), Values(is_sorted=True),
    Values("python", "python", "python"), Values("json", "python", "python"), Values("json", "json", "python"),
    Values("json", null="python"),
    Values('<|"|>', nested="own", item=",", key=":"), Values("<|q|>", "python", "own", null="json"),
)  # fmt: skip
_RAW = (Values("raw"), Values("raw", "python"), Values("raw", "python", "python"), Values("raw", null="python"))


def drawn_text(rng: random.Random, num_marks: int, ending: str = "") -> str:
    """Marks with something between them."""
    pieces = [rng.choice(_GLUE), *(one for _ in range(num_marks) for one in (rng.choice(_MARKS), rng.choice(_GLUE)))]
    return "".join(pieces) + ending


def drawn_format(rng: random.Random) -> ToolFormat | None:
    """A description; None for one that says too little."""
    text = partial(drawn_text, rng)
    arguments: Arguments = JsonArguments(rng.choice(_VALUES))
    if rng.random() < 0.15:
        arguments = JsonArguments(rng.choice(_VALUES[:4]), is_quoted=True)
    elif rng.random() < 0.6:
        others = text(1) if rng.random() < 0.3 else None
        form = rng.choice([_VALUES, _RAW, _RAW])
        around = (text(1), text(1)) if rng.random() < 0.3 else ("", "")
        separator = text(rng.randint(0, 1))
        arguments = ElementArguments(
            text(rng.randint(0, 1)), text(1), text(1), separator, rng.choice(form), others, *around
        )
    names: Any = rng.choice(["raw", "raw", "json"])
    quote = '"' if names == "json" else ""
    call: list[Part] = [text(1, quote), NAME, quote + text(1), ARGUMENTS, text(1)]
    identifier: tuple[Any, ...] = ()
    if rng.random() < 0.3:
        call[4:4] = [("[ID]", ID, text(1))]
    elif rng.random() < 0.3:
        call[2:2] = [quote + "#", NUMBER]
        identifier = rng.choice([(NUMBER,), (NAME, ":", NUMBER)])
    fields: dict[str, Any] = {
        name: text(rng.randint(0, 1))
        for name in ("opening", "separator", "closing", "joint", "lead", "end", "content_begin", "content_end")
        if rng.random() < 0.4
    }
    marks = tuple(one for one in _MARKS if rng.random() < 0.3)
    fields |= {"is_alone": rng.random() < 0.1, "has_joint_alone": rng.random() < 0.2}
    fields |= {"is_closing_optional": rng.random() < 0.2, "marks": marks, "identifier": identifier}
    try:
        return ToolFormat("drawn", "", tuple(part for part in call if part), arguments, names=names, **fields)
    except InvalidConstraintError:
        return None


def drawn_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.choice(
        ["string", "string", "union", "any", "integer", "number", "boolean", "enum", "array", "object"][
            : None if depth else 7
        ]
    )
    if kind in ("union", "enum"):
        return (
            {"type": rng.sample(["string", "integer", "null", "boolean", "array"], 2)}
            if kind == "union"
            else {"enum": ["z", 1, None, True]}
        )
    if kind == "array":
        return {"type": "array", "items": drawn_schema(rng, depth - 1)}
    if kind == "object":
        return {"type": "object", "properties": {key: drawn_schema(rng, depth - 1) for key in rng.sample(_KEYS, 2)}}
    return {} if kind == "any" else {"type": kind}


def drawn_value(rng: random.Random, schema: dict[str, Any], is_raw: bool) -> Any:
    """A value of a schema; of a raw text that may be something else, one that is nothing else."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", ["string", "null", "boolean", "integer", "array"])
    kind = rng.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "string":
        return rng.choice(_TEXTS) if isinstance(kinds, str) or not is_raw else rng.choice(("z", "é z", "zzz\n"))
    if kind == "array":
        return [drawn_value(rng, schema.get("items", {"type": "integer"}), False) for _ in range(rng.randint(0, 2))]
    if kind == "object":
        return {key: drawn_value(rng, one, False) for key, one in schema["properties"].items() if rng.random() < 0.7}
    return {
        "null": None,
        "boolean": rng.random() < 0.5,
        "integer": rng.choice((0, -12, 10**12)),
        "number": rng.choice((2.5, -1, 1e-7)),
    }[kind]


def check_drawn(rng: random.Random, form: ToolFormat) -> int:
    """How many responses of drawn tools are written, accepted, read back, and refused with another separator."""
    given = []
    for name in rng.sample(_NAMES, 2):
        properties = {key: drawn_schema(rng, 2) for key in sorted(rng.sample(_KEYS, rng.randint(0, 3)))}
        required = [key for key in properties if rng.random() < 0.5]
        parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        if form.fault_of(name) is None:
            given.append({"name": name, "parameters": parameters})
    try:
        constraint = tools(given, form)
    except DecodekitError:  # a key or a constant that cannot be written, or no name that can
        return 0
    is_raw = isinstance(form.arguments, ElementArguments) and form.arguments.values.text == "raw"
    num_read = 0
    for num_calls in range(4 if form.max_calls is None else 2):
        calls = []
        for number in range(num_calls):
            tool = rng.choice(given)
            properties, required = tool["parameters"]["properties"], tool["parameters"]["required"]
            arguments = {
                key: drawn_value(rng, one, is_raw)
                for key, one in properties.items()
                if key in required or rng.random() < 0.5
            }
            identifier = None
            if form.id_hole is not None:
                identifier = form.identifier_of(tool["name"], str(number + 3) if form.identifier else f"id_{number}")
            calls.append(ToolCall(tool["name"], arguments, identifier))
        for content in ("", rng.choice(CONTENTS)) if not (form.is_alone and calls) else ("",):
            response = ToolResponse(content, tuple(calls))
            try:
                text = form.written(content, calls)
            except ValueError:
                continue
            assert is_accepted(constraint, text), (form, given, response, text)
            assert constraint.parse(text) == response, (form, given, response, text)
            told = [(call.name, call.id, call.arguments) for call in calls]
            assert told_as_it_grows(constraint, text) == told, (form, given, response, text)
            num_read += 1
            if num_calls > 1:
                other = replace(form, separator=f"{form.separator}~").written(content, calls)
                called = constraint if content else tools(given, form, "required")  # or all of it may be content
                assert not is_accepted(called, other), (form, given, response, other)
    return num_read


def test_blanks_beside_a_content_are_not_its_own() -> None:
    """What drawn descriptions have shown: a content that is empty, behind a comma or before a blank."""
    call = ("<c>", NAME, "<w>", ARGUMENTS, "</c>")
    for form in (
        ToolFormat("comma", "", call, content_begin=", "),
        ToolFormat("blank end", "", call, content_end=" "),
        ToolFormat("blank joint", "", ('|<c>"', *call[1:]), joint=" "),
        ToolFormat("raw", "", call, ElementArguments("<a>", "-, ", ";")),
    ):
        constraint = tools([{"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}], form)
        called = ToolCall("f", {"x": "a, b"})
        for content, calls in (("", ()), ("", (called,)), ("", (called, called)), ("a", ()), ("a", (called,))):
            text = form.written(content, calls)
            assert is_accepted(constraint, text), (form.name, text)
            if form.name != "blank end" or calls:  # a blank at the end of a text may be its own
                assert constraint.parse(text) == ToolResponse(content, calls), (form.name, text)
            assert [(name, told) for name, _, told in told_as_it_grows(constraint, text)] == [
                (one.name, one.arguments) for one in calls
            ], (form.name, text)


@sized("num_formats", 15, slow=600)
def test_any_tools_any_values_any_description(num_formats: int) -> None:
    rng = random.Random(11)
    drawn = [form for _ in range(num_formats) if (form := drawn_format(rng)) is not None]
    assert sum(check_drawn(rng, form) for form in drawn) > 2 * num_formats
