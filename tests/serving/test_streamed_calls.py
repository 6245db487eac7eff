"""Streams of texts that may call tools, of any description of a format: pieces are together the whole answer."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from decodekit.constraints.tool_calls import ToolCall, ToolFormat, ToolResponse, tools
from decodekit.serving.routes.call_stream import CallSplitter
from tests.constraints.test_tool_formats import TOOLS, by_name, formats, responses
from tests.sizes import sized


def streamed(form: ToolFormat, text: str, choice: str, rng: random.Random) -> tuple[str, list[tuple[Any, ...]]]:
    """The content and the calls that a client puts together."""
    constraint = tools(TOOLS, form, choice)
    splitter = CallSplitter(constraint)
    content, calls, place = "", list[list[Any]](), 0

    def take(pieces: Any) -> None:
        for piece in pieces:
            if piece.number == len(calls):
                calls.append([piece.name, piece.id, ""])
            calls[piece.number][2] += piece.arguments

    while place < len(text):
        size = rng.choice((1, 1, 2, 5, 30))
        content += splitter.push(text[place : place + size])
        take(splitter.calls())
        place += size
    completion: Any = SimpleNamespace(finish_reason="stop", value=constraint.parse(text))
    ended = splitter.end(completion)
    content += ended.rest
    take(splitter.calls(ended))
    assert [tuple(one) for one in calls] == [(call.name, call.id, call.arguments) for call in ended.calls]
    return content, [(name, id, json.loads(arguments)) for name, id, arguments in calls]


def check(form: ToolFormat, rng: random.Random) -> None:
    for response in responses(form, rng):
        text = form.written(response.content, response.calls)
        for choice in ["auto"] if response.content or not response.calls else ["auto", "required"]:
            content, calls = streamed(form, text, choice, rng)
            assert content == response.content, (form.name, choice, text)
            assert [(name, arguments) for name, _, arguments in calls] == [
                (call.name, call.arguments) for call in response.calls
            ]
            if form.is_id_first:
                assert [id for _, id, _ in calls] == [call.id for call in response.calls]


@sized("num_formats", 24, slow=None)
def test_streams_of_every_format(num_formats: int | None) -> None:
    world, rng = list(formats()), random.Random(11)
    for form in world if num_formats is None else rng.sample(world, num_formats):
        check(form, rng)


@pytest.mark.parametrize("form", ["tags", "quotes", "python", "bare keys", "bare elements", "dict", "parentheses"])
def test_long_strings_grow(form: str) -> None:
    """A string is told while it is written, in whatever notation: half of it before its end is there."""
    told, text = by_name("named", form, "nothing"), "abc é\\n" * 20
    written = told.written("", [ToolCall("f", {"text": text, "number": 1})])
    splitter = CallSplitter(tools(TOOLS, told))
    splitter.push(written[: written.index("abc") + 60])
    arguments = "".join(piece.arguments for piece in splitter.calls())
    assert arguments.startswith('{"text": "abc ') and arguments.count("abc") >= 5


def test_content_is_told_without_what_stands_around_it() -> None:
    splitter = CallSplitter(tools(TOOLS, by_name("named", "tags", "frame")))
    told = [splitter.push(piece) for piece in ("<sa", "y>", "\n", "a", "\n", "b \n", "</sa", "x", "\n</say>", "\n<f=")]
    assert told == ["", "", "", "a", "", "\nb ", "", "\n</sax", "", ""]
    joint = CallSplitter(tools(TOOLS, by_name("named", "tags", "joint")))
    told = [joint.push(piece) for piece in ("a\n", "\n", "\n", "<f", "b", "\n\n\n<f=")]
    assert told == ["a", "", "\n", "", "\n\n<fb", "\n"]
    words = CallSplitter(tools(TOOLS, by_name("named", "tags", "words")))
    assert [words.push(piece) for piece in ("all", "\n", "ab>>>b>", ">", "><f=")] == ["", "", "ab>>>b", "", ""]
    alone = CallSplitter(tools(TOOLS, by_name("named", "tags", "words")))
    assert [alone.push(piece) for piece in ("<f=fg", ">\n</f>")] == ["", ""] and len(alone.calls()) == 2


def test_a_cut_stream_keeps_its_content() -> None:
    form = by_name("named", "tags", "frame")
    texts = {"<say>\nab\n\n</sa": "ab\n\n</sa", "<sa": "", "<say>\nab\n</say>\n<f=f": "ab", "<f=f": ""}
    for text, content in texts.items():
        constraint = tools(TOOLS, form)
        splitter = CallSplitter(constraint)
        told = "".join(map(splitter.push, text))
        cut: Any = SimpleNamespace(finish_reason="length", value=None)
        assert told + splitter.end(cut).rest == content == constraint.parse_cut(text).content
        assert constraint.parse_cut(text) == ToolResponse(content)
