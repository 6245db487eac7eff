"""Formats of calls as descriptions: what one writes, its mask admits and its parser reads, in a small world of them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
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
from decodekit.errors import InvalidConstraintError
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
        split = GrowingSplit(constraint, is_written=True)
        for character in text:
            split.push(character)
        split.end()
        told = [(one.name, one.id, json.loads("".join(one.json.written))) for one in split.documents]
        assert told == [(call.name, call.id, call.arguments) for call in response.calls], (form.name, text)
        cut = [constraint.parse_cut(text[:end]) for end in (*sorted(rng.choices(range(len(text) + 1), k=4)), len(text))]
        assert cut[-1].calls == response.calls
        for one, other in pairwise(cut):  # an identifier may come last
            assert [(call.name, call.arguments) for call in one.calls] == [
                (call.name, call.arguments) for call in other.calls[: len(one.calls)]
            ]
        if response.calls:
            assert {one.content for one in cut if one.calls} == {response.content}


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
