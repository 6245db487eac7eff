"""Values so far of compositions and of calls: what the beginning of a text has shown, every text with it keeps."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from pydantic import BaseModel

import decodekit as dk
from decodekit.constraints import Constraint, as_constraint
from decodekit.constraints.growing import MAX_DIVISIONS, GrowingSplit, GrowingValue
from decodekit.constraints.json_schema.notation import Values
from decodekit.constraints.tool_calls import FORMATS, ToolCall, ToolFormat, ToolResponse
from decodekit.constraints.tool_calls.format import JsonArguments
from tests.reference.growing_json import goes_on
from tests.sizes import few

NUMBER = dk.JsonSchema({"type": "integer", "minimum": 0, "maximum": 120})
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"],
        "additionalProperties": False}  # fmt: skip
PAIRS = ['{"a":1}', '{"a":12}', '{"a":1,"b":""}', '{"a": -1, "b": "x</t>\\né"}', '{"a":1,"b":"{\\"a\\":2}"}']
WORDS = dk.JsonSchema({"type": "string"})


def last(value: Any) -> Any:
    return value[-1]


def same(value: Any) -> Any:
    return value


def tag_values(value: Any) -> Any:
    return [one.value for one in value if not isinstance(one, str)]


# A constraint, all its texts that are tried, and what the last value so far is, of the value of a text.
WORLDS: dict[str, tuple[Any, Iterable[str], Callable[[Any], Any]]] = {
    "schema": (PAIR, PAIRS, same),
    "number": (NUMBER, map(str, range(121)), same),
    "guarded": (dk.Guarded(PAIR, lambda _: True), PAIRS, same),
    "reasoned": (dk.Reasoned(PAIR), ("<think>" + text + "</think>" + blanks + pair for text, blanks, pair in
                 product(["", "</thin", "a {} b"], ["", " \n"], PAIRS)), last),
    "behind a number": (dk.Concat(NUMBER, "0"), (f"{number}0" for number in range(121)), last),
    "tagged": (dk.Tagged(dk.Tag("<t>", PAIR, "</t>"), dk.Tag("<n>", NUMBER)),
               ("".join(parts) for parts in product(["", "x<", "{"], ["", *(f"<t>{one}</t>" for one in PAIRS), "<n>1"],
                                                    ["", "<n>12", "<n>1<n>2"])), tag_values),
    "many": (dk.Many(PAIR, separator=", "),
             (", ".join(some) for n in range(3) for some in product(PAIRS, repeat=n)), same),
    "one of": (dk.OneOf(PAIR, {"type": "array", "items": {"type": "string"}}), [*PAIRS, '["a","bc"]', "[]"], same),
    "shared": (dk.OneOf({"const": {"a": 1}}, {"const": {"a": 12, "b": ["x"]}}),
               ['{"a":1}', '{"a":12,"b":["x"]}'], same),
    "shared behind": (dk.Concat("x", dk.OneOf({"const": {"a": 1}}, {"const": {"a": 12}})),
                      ['x{"a":1}', 'x{"a":12}'], last),
    "or free": (dk.OneOf(dk.Concat("a", PAIR), dk.Concat("ab", WORDS)), ["a" + PAIRS[0], 'ab"c"', 'ab""'], last),
    "optional": (dk.Concat(dk.Optional(NUMBER), "!"), ["!", "1!", "120!"], last),
}  # fmt: skip


def shown(constraint: Any, text: str) -> list[Any]:
    """The values so far after each character, and at the end."""
    growing = GrowingValue.of(as_constraint(constraint))
    assert growing is not None
    made = [growing.push(character) for character in text]
    return [one() for one in [*made, growing.push("", is_whole=True)]]


def check_world(constraint: Any, texts: Iterable[str], expected: Callable[[Any], Any]) -> int:
    """Whatever a beginning shows, every text that goes on from it keeps. How many values were shown."""
    parsed = as_constraint(constraint)
    finals = {text: expected(parsed.parse(text)) for text in texts}
    num_shown = 0
    for text, final in finals.items():
        values = shown(constraint, text)
        assert values[-1] == final
        for num_read, value in enumerate(values[:-1], 1):
            if value is None:
                continue
            num_shown += 1
            for other, end in finals.items():
                assert not other.startswith(text[:num_read]) or goes_on(value, end), (text[:num_read], value, other)
        later = [value for value in values if value is not None]
        assert all(goes_on(one, other) for one, other in pairwise(later))
    return num_shown


@pytest.mark.parametrize("name", WORLDS)
def test_what_is_shown_is_kept(name: str) -> None:
    num_shown = check_world(*WORLDS[name])
    assert num_shown > 0 or "number" in name  # a number shows at its end


def test_json_that_may_be_of_several_schemas_is_shown() -> None:
    assert shown(WORLDS["shared behind"][0], 'x{"a":12}')[1:7] == [{}, {}, {}, {}, {}, {}]


def test_a_value_that_is_shown_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one division is taken for all."""
    monkeypatch.setattr(GrowingSplit, "_settle", _hasty(GrowingSplit._settle))
    with pytest.raises(AssertionError):
        check_world(dk.OneOf(dk.Concat(WORDS, "a"), dk.Concat(dk.Regex('".*"b'), NUMBER)), ['"x"a', '"x"b1'], last)


def _hasty(settle: Callable[[GrowingSplit], None]) -> Callable[[GrowingSplit], None]:
    def hasty(split: GrowingSplit) -> None:
        del split._divisions[1:]
        settle(split)

    return hasty


TOOLS: list[Any] = [
    {"name": "get", "parameters": {"type": "object", "required": ["city"], "additionalProperties": False,
     "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                    "text": {"type": "array", "items": {"type": "number"}}}}},
    {"name": "get_all"},
    {"name": "put", "parameters": {"type": "object", "required": ["kind", "much"], "additionalProperties": False,
     "properties": {"kind": {"enum": ["ab", "a"]}, "much": {"type": "number"}}}},
]  # fmt: skip
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "get": [{"city": "Bern"}, {"city": '\n</par é\\"', "days": 12}, {"city": "", "days": -3, "text": [1.5, 100.0]}],
    "get_all": [{}],
    "put": [{"kind": "a", "much": 1.25}, {"kind": "ab", "much": 10.0}],
}


def compact(form: ToolFormat) -> ToolFormat:
    """The same without blanks that may be left out."""

    def without(text: Any) -> Any:
        return re.sub(r"(?<!\w)[ \n]|[ \n](?!\w)", "", text) if isinstance(text, str) else text

    call = tuple(tuple(map(without, part)) if isinstance(part, tuple) else without(part) for part in form.call)
    arguments = form.arguments
    if isinstance(arguments, JsonArguments):
        arguments = JsonArguments(Values(item=",", key=":"))
    return replace(
        form, call=call, arguments=arguments, opening=without(form.opening), separator=without(form.separator)
    )


def tool_texts(form: ToolFormat, rng: random.Random, num_texts: int) -> list[str]:
    found = []
    for _ in range(num_texts):
        names = [rng.choice([*ARGUMENTS]) for _ in range(rng.randrange(3 if form.max_calls is None else 2))]
        ids = [rng.choice([None, "abcdef123"]) for _ in names]
        calls = [ToolCall(name, rng.choice(ARGUMENTS[name]), id) for name, id in zip(names, ids, strict=True)]
        content = rng.choice(["", "I look <tool", "[TOOL {} <func"]) if not form.is_alone or not calls else ""
        found.append((compact(form) if rng.random() < 0.5 else form).written(content, calls))
    return found


def plain_calls(calls: Iterable[ToolCall]) -> list[Any]:
    """Without identifiers, which may come late."""
    return [[one.name, one.arguments] for one in calls]


@few(5)
@pytest.mark.parametrize("format", FORMATS)
def test_calls_so_far(format: str) -> None:
    """Of every format: what is shown is kept, the arguments are told as the text that the whole call has."""
    constraint = dk.tools(TOOLS, format)
    texts = tool_texts(FORMATS[format], random.Random(3), 25)
    responses: dict[str, Any] = {text: constraint.parse(text) for text in texts}
    num_calls = 0
    for text, response in responses.items():
        assert isinstance(response, ToolResponse)
        num_calls += len(response.calls)
        values = shown(constraint, text)
        assert values[-1] == list(response.calls)
        first = next((num_read for num_read, value in enumerate(values) if value), None)
        if first is not None:
            begins = text[first - 1] == "(" if format == "lfm2" else text[first] in "{<"
            assert begins, "a call is shown with the first character of its arguments"
        for num_read, value in enumerate(values[:-1], 1):
            for other, end in responses.items():
                if other.startswith(text[:num_read]):
                    assert goes_on(plain_calls(value), plain_calls(end.calls)), (text[:num_read], value)
        split = GrowingSplit(constraint, is_written=True)
        for character in text:
            split.push(character)
        told = [(one.name, "".join(one.json.written)) for one in split.documents]
        assert told == [(one.name, json.dumps(one.arguments, ensure_ascii=False)) for one in response.calls]
    assert num_calls >= 8


def test_arguments_come_in_pieces() -> None:
    """An example that one can look at, with the arguments as elements."""
    text = FORMATS["qwen3-coder"].written("", [ToolCall("get", {"city": "Bern\n<", "days": 12})])
    split, told = GrowingSplit(dk.tools(TOOLS, "qwen3-coder"), is_written=True), list[str]()
    for character in text:
        split.push(character)
        told += split.documents[0].json.written if split.documents else []
        if split.documents:
            split.documents[0].json.written = []
    assert told == ["{", '"city": ', '"', "B", "e", "r", "n", "\\n", "<", '"', ", ", '"days": ', "12", "}"]


class Point(BaseModel):
    x: int
    name: str = "p"


def move(point: Point, steps: int = 1) -> None:
    """A tool with types."""


def test_calls_of_typed_tools_have_partial_arguments() -> None:
    text = '<tool_call>{"name":"move","arguments":{"point":{"x":3,"name":"ab"},"steps":4}}</tool_call>'
    values = shown(dk.tools([move], "hermes"), text)
    arguments = [value[0].arguments for value in values if value]
    assert arguments[0] == {} and repr(arguments[-1]) == "{'point': PartialPoint(x=3, name='ab'), 'steps': 4}"
    half = shown(dk.tools([Point], "hermes"), '<tool_call>{"name":"Point","arguments":{"x":3,"name":"a')
    assert repr(half[-1]) == "[ToolCall(name='Point', arguments=PartialPoint(x=3, name='a'), id=None)]"


@pytest.mark.parametrize("constraint", [dk.Regex("[a-z]+"), dk.Choices(["a", "b"]), dk.Grammar("json"), dk.Text(),
                                        dk.Concat("a", dk.Regex("b"))], ids=repr)  # fmt: skip
def test_texts_without_json_have_no_value_so_far(constraint: Constraint) -> None:
    assert GrowingValue.of(constraint) is None


def test_chunks_may_be_asked_in_any_order_and_pickled() -> None:
    text = '{"a": 12, "b": "xy"}'
    in_order = shown(PAIR, text)
    growing = GrowingValue(as_constraint(PAIR))
    made = [growing.push(one) for one in text]
    mixed = random.Random(0).sample(range(len(made)), len(made))
    found = {number: made[number]() for number in mixed}
    assert [found[number] for number in range(len(made))] == in_order[:-1]
    assert pickle.loads(pickle.dumps(made[9]))() == in_order[9] == {"a": 12}


def test_every_character_of_json_is_read_once() -> None:
    """However many values are asked for, and of whichever pieces; also where two schemas may be meant."""
    text = json.dumps({"a": 1, "b": "x" * 5000})
    for constraint in (PAIR, dk.OneOf(PAIR, {"type": "object"})):
        growing = GrowingValue(as_constraint(constraint))
        made = [growing.push(text[at : at + 3]) for at in range(0, len(text), 3)]
        for one in made[::-1]:
            assert one() is not None
        assert growing._split is not None
        assert [one.json.num_read for one in growing._split.documents] == [len(text)]


def test_divisions_are_bounded() -> None:
    """A text that divides in too many ways is followed no further, and its value comes with its end alone."""
    split = GrowingSplit(dk.Concat(dk.Text(), {"type": "array"}))
    split.push("[" * (MAX_DIVISIONS - 1))  # and the text
    assert len(split._divisions) == MAX_DIVISIONS and split.documents == []
    split.push("[")
    assert split._divisions == []
