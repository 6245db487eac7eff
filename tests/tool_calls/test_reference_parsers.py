"""Parsers of other engines read our texts: those of a model that knows nothing, and those made to mislead."""

from __future__ import annotations

import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from decodekit.chat.tool_format import derive
from decodekit.constraints.tool_calls import FORMATS, ToolCall, ToolFormat, Tools, tools
from decodekit.constraints.tool_calls.format import ElementArguments
from decodekit.errors import DecodekitError
from decodekit.serving.routes.call_stream import CallSplitter
from tests.chat.corpus import needs_corpus, template
from tests.reference.tool_parsers import PARSERS
from tests.sizes import few, sized, thinned
from tests.tool_calls.differences import DIFFERENCES, explained
from tests.tool_calls.families import FAMILIES, Family
from tests.tool_calls.random_calls import JsonObject, RandomModel, marked_model, real_model, small_model

_SOME = ("glm-4.6", "hermes", "deepseek-v3.2", "lfm2")


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same; 2 and 2.0 are, 1 and true are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def fault(parser: str, text: str, constraint: Tools, given: list[JsonObject]) -> str | None:
    """How a parser reads a text otherwise than ours does; None if it does not."""
    ours, form = constraint.parse(text), constraint.format
    try:
        reading = PARSERS[parser](text, given)
    except (ValueError, SyntaxError, AssertionError, IndexError, KeyError, TypeError) as error:
        return f"{text!r} is not read: {type(error).__name__}: {error}"
    wanted = [(call.name, call.arguments) for call in ours.calls]
    names = [name for name, _ in wanted] == [name for name, _ in reading.calls]
    if not names or not all(is_same(one[1], other[1]) for one, other in zip(wanted, reading.calls, strict=True)):
        return f"{text!r} is read as {reading.calls}, and as {wanted} by ours"
    content = f"{form.content_begin}{ours.content}{form.content_end}" if ours.content else ""
    if reading.content is not None and reading.content.strip() not in (content.strip(), ours.content.strip()):
        return f"{text!r} has the content {reading.content!r}, and {ours.content!r} by ours"
    return None


def compare(family: Family, model: RandomModel, num_calls: int, rng: random.Random) -> dict[str, int]:
    """How many texts each parser of a family reads otherwise for a known reason; all others it reads as ours does."""
    num_explained = dict.fromkeys(family.parsers, 0)
    for text, constraint, given in model.texts(family.format, num_calls, rng, family.are_names_words):
        check_stream(constraint, text, rng)
        calls = constraint.parse(text).calls
        for parser in family.parsers:
            found = fault(parser, text, constraint, given)
            assert found is None or explained(parser, text, calls, given), (family.name, parser, found)
            num_explained[parser] += found is not None
    return num_explained


def check_stream(constraint: Tools, text: str, rng: random.Random) -> None:
    """What is handed out of a text that comes in pieces is together what the whole text has."""
    ours, splitter = constraint.parse(text), CallSplitter(constraint)
    content, calls, place = "", list[list[Any]](), 0

    def take(pieces: Any) -> None:
        for piece in pieces:
            if piece.number == len(calls):
                calls.append([piece.name, ""])
            calls[piece.number][1] += piece.arguments

    while place < len(text):
        size = rng.choice((1, 2, 3, 7, 40))
        content += splitter.push(text[place : place + size])
        take(splitter.calls())
        place += size
    completion: Any = SimpleNamespace(finish_reason="stop", value=ours)
    ended = splitter.end(completion)
    take(splitter.calls(ended))
    assert content + ended.rest == ours.content, text
    wanted = [(call.name, call.arguments) for call in ours.calls]
    assert [(name, json.loads(told)) for name, told in calls] == wanted, text


@few(5, "10-gemma-4")
@pytest.mark.parametrize("name", FAMILIES)
@sized("num_calls", 10, slow=500)
def test_parsers_of_others_read_random_texts(name: str, num_calls: int) -> None:
    rng = random.Random(f"{name} {num_calls}")
    num_explained = compare(FAMILIES[name], small_model(), num_calls, rng)
    if num_calls > 100:
        assert max(num_explained.values()) < num_calls / 2, num_explained


@needs_corpus
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FAMILIES)
def test_parsers_of_others_read_random_texts_over_real_tokens(name: str) -> None:
    family = FAMILIES[name]
    compare(family, real_model(family.tokenizer), 60, random.Random(name))


@thinned("name", FAMILIES, keep=_SOME)
@sized("num_calls", 5, slow=150)
def test_marks_inside_of_values_mislead_nobody(name: str, num_calls: int) -> None:
    """A model that writes the marks of its format wherever it may: ours reads what the mask let through as it was let
    through, and so does the other parser, unless a string of JSON holds the mark that the other looks for."""
    family, rng = FAMILIES[name], random.Random(f"{name} {num_calls}")
    model = marked_model(family.format)
    for text, constraint, given in model.texts(family.format, num_calls, rng, family.are_names_words):
        check_stream(constraint, text, rng)
        calls = constraint.parse(text).calls
        again = constraint.parse(family.format.written("", [replace(call, id=None) for call in calls]))
        assert [(one.name, one.arguments) for one in again.calls] == [(one.name, one.arguments) for one in calls]
        held = json.dumps([call.arguments for call in calls], ensure_ascii=False)
        for parser in family.parsers:
            found = fault(parser, text, constraint, given)
            is_known = explained(parser, text, calls, given) or holds_marks(family.format, held)
            assert found is None or is_known, (name, parser, found)


def holds_marks(form: ToolFormat, held: str) -> bool:
    """Whether the strings of arguments hold a text that stands around calls or arguments in the format."""
    texts = [form.opening, form.closing, *(piece for piece in form.pieces if isinstance(piece, str))]
    if isinstance(form.arguments, ElementArguments):
        texts += [form.arguments.begin, form.arguments.middle, form.arguments.end]
    marks = {word.strip("\"'") for text in texts for word in text.split() if len(word.strip("\"'{}[],: ")) > 2}
    return any(json.dumps(mark, ensure_ascii=False)[1:-1] in held for mark in marks)


_ODD = (
    "", " ", "\n", "\n\n", " a ", "null", "None", "true", "12", "1e5", "[1]", '"', '"a"', "'", "\\", "\\n", "\\u0041",
    "a\nb\r\tc", "\u2028\u2029\x85", "\x00\x1f\x7f", "\ud7ff\ue000\U0001f600", "}", '"}', "{}", "]", ", ", "a=1", ")",
    "</", "<|", "```", "\n```", "</parameter>", "</arg_value>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]",
    '<|"|>', "<escape>", "<|tool_call_end|>", "<|message|>", "</｜DSML｜parameter>", "</function>", "<parameter=x>",
)  # fmt: skip
_NUMBERS = (0, -1, 2**53 + 1, -(10**40), 10**300, 0.1, -2.5e-300, 1e22)
_ODD_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "get",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "number": {"type": "number"},
                "any": {},
                "more": {"type": "object"},
            },
        },
    },
}


@thinned("name", FAMILIES, keep=_SOME[:2])
def test_odd_values_are_read_back_or_refused(name: str) -> None:
    """Of every call that can be written, ours reads exactly that call, or nothing."""
    form, rng = FAMILIES[name].format, random.Random(name)
    constraint = tools([_ODD_TOOL, {**_ODD_TOOL, "function": {**_ODD_TOOL["function"], "name": "get_more"}}], form)
    num_read = 0
    ends = (form.closing, form.end, form.separator, *(piece for piece in form.pieces if isinstance(piece, str)))
    odd = [*_ODD, *ends, *(end + begin for end in ends for begin in ends)]
    cases: list[JsonObject] = [{"text": one} for one in odd] + [{"number": one} for one in _NUMBERS]
    cases += [{"any": one} for one in [*_ODD, *_NUMBERS, None, True, [], {}, [[""]]]]
    cases += [{"more": {one: [one, {"a b": None}]}} for one in odd]
    for case in cases:
        calls = [ToolCall("get_more", case), ToolCall("get", {"text": "x"})][: form.max_calls]
        try:
            text = form.written("", calls)
        except ValueError:
            continue
        try:
            found = constraint.parse(text)
        except (ValueError, DecodekitError):
            continue
        check_stream(constraint, text, rng)
        # A text that JSON reads is what JSON reads where strings stand as they are.
        is_doubtful = isinstance(case.get("any"), str) and not form.arguments.values.is_quoted
        wanted, read = ([[call.name, call.arguments] for call in some] for some in (calls, found.calls))
        assert is_doubtful or is_same(read, wanted), (text, read)
        num_read += 1
    assert num_read > len(cases) / 3


_STRING: JsonObject = {"type": "string"}
_DOUBTFUL: list[JsonObject] = [
    {"anyOf": [_STRING, {"type": "null"}], "default": None},
    {"type": ["string", "null"]},
    {"type": ["string", "integer"]},
    {"anyOf": [_STRING, {"type": "boolean"}]},
    {"anyOf": [_STRING, {"type": "array", "items": _STRING}]},
    {"description": "Anything."},
]
"""Parameters of which a text alone does not tell the type."""
_DOUBTFUL_TEXTS = (
    "null", "NULL", "None", "none", "true", "True", "TRUE", "false", "7", "-7", "007", "+7", " 7", "7_0", "7.0", "7e1",
    "1", "0", "[1]", "['a']", '["a"]', '{"a": 1}', "{'a': 1}", '"a"', "'a'", "(1)", "nan", "Infinity", "1e999",
)  # fmt: skip
_OF_ELEMENTS = [name for name, one in FAMILIES.items() if isinstance(one.format.arguments, ElementArguments)]
_CERTAIN_TEXTS = ("Bern", "a b", "", "null and void", "7 dwarfs", "[1", "Nothing", "true\nor false")


@few(1)
@pytest.mark.parametrize(
    "name", [name for name, one in FAMILIES.items() if isinstance(one.format.arguments, ElementArguments)]
)
def test_texts_of_doubtful_types(name: str) -> None:
    """Where a parameter may be a text and something else, parsers read the same or differ for a reason that is known;
    of texts that look like nothing else none differs. In pieces each is read as it is as a whole."""
    family, num_alike, rng = FAMILIES[name], 0, random.Random(name)
    for schema in _DOUBTFUL:
        parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
        given = [{"type": "function", "function": {"name": "get", "parameters": parameters}}]
        constraint = tools(given, family.format, "required")
        for text in (*_DOUBTFUL_TEXTS, *_CERTAIN_TEXTS):
            as_text, as_value = (family.format.written("", [ToolCall("get", {"x": x})]) for x in ("?", 987654321))
            for whole in {as_text.replace("?", text), as_value.replace("987654321", text)}:
                try:
                    calls = constraint.parse(whole).calls
                except (ValueError, DecodekitError):
                    continue
                check_stream(constraint, whole, rng)
                for parser in family.parsers:
                    found = fault(parser, whole, constraint, given)
                    is_known = text in _DOUBTFUL_TEXTS and explained(parser, whole, calls, given)
                    assert found is None or is_known, (schema, found)
                    num_alike += found is None
    assert num_alike > 40


def test_all_that_is_json_is_no_string() -> None:
    """Where strings stand as they are, lists, objects and numbers are none, however they are written."""
    form = FAMILIES["glm-4.6"].format
    constraint = tools([_ODD_TOOL], form)
    texts = ("[ 1 ,\n2 ]", "-1" + "0" * 40, '"\\u0041"', "1e400", '{"a" :1}', "Bern", "[1")
    for text, value in zip(texts, ([1, 2], -(10**40), '"\\u0041"', "1e400", {"a": 1}, "Bern", "[1"), strict=True):
        written = form.written("", [ToolCall("get", {"any": "?"})]).replace("?", text)
        assert constraint.parse(written).calls[0].arguments == {"any": value}, text
        assert value == text or PARSERS["glm mlx"](written, [_ODD_TOOL]).calls == [("get", {"any": value})]


@thinned("name", FAMILIES, keep=(*_SOME, "llama4", "llama3", "gpt-oss"))
def test_a_wrong_mark_is_not_read(name: str) -> None:
    """The control: a text of the same format with another mark is none to the other parsers."""
    family = FAMILIES[name]
    wrong = with_wrong_mark(family.format)
    rng, num_wrong = random.Random(name), 0
    for text, constraint, given in small_model().texts(wrong, 4, rng, family.are_names_words):
        num_wrong += all(fault(parser, text, constraint, given) is not None for parser in family.parsers)
    assert num_wrong > 0


def with_wrong_mark(form: ToolFormat) -> ToolFormat:
    """A format with a letter more in what begins its calls, or with another key."""
    if form.opening.strip("[ \n"):
        return replace(form, opening=form.opening.replace(form.opening.strip()[1], f"{form.opening.strip()[1]}x", 1))
    if form.opening:
        return replace(form, opening="(")
    first = str(form.call[0])
    return replace(form, call=(f"{first[:2]}x{first[2:]}", *form.call[1:]))


@needs_corpus
@thinned("name", [name for name, one in FAMILIES.items() if one.template], keep=("glm-4.6", "lfm2"))
def test_descriptions_are_those_of_the_templates(name: str) -> None:
    family = FAMILIES[name]
    derived = derive(template(str(family.template)).tokenizer())
    same = {"name": "", "families": "", "marks": (), "lead": ""}
    assert replace(derived, **same) == replace(family.format, **same)


def test_every_format_and_parser_takes_part() -> None:
    formats = {id(family.format) for family in FAMILIES.values()}
    left_out = {name for name, form in FORMATS.items() if id(form) not in formats}
    # No engine reads functions by name; vLLM and SGLang do not read identifiers between name and arguments.
    # The calls of LFM2 are those of a family whose template writes them.
    assert left_out == {"function", "mistral-v11", "lfm2"} and FORMATS["lfm2"].pieces == FAMILIES["lfm2"].format.pieces
    assert {parser for family in FAMILIES.values() for parser in family.parsers} == {*PARSERS}
    assert {*DIFFERENCES} <= {*PARSERS}


_MLX = {"qwen3 coder mlx": "qwen3_coder", "glm mlx": "glm47", "functiongemma": "function_gemma", "gemma 4": "gemma4"}
_MLX_FAMILIES = {
    "qwen3 coder mlx": "qwen3-coder",
    "glm mlx": "glm-4.7",
    "functiongemma": "functiongemma",
    "hermes": "hermes",
    "kimi k2": "kimi-k2",
}


@pytest.mark.slow
@pytest.mark.parametrize("parser", _MLX_FAMILIES)
def test_rewritten_parsers_read_as_those_of_mlx_lm(parser: str) -> None:
    """What stands in `tests/reference` is what mlx-lm does."""
    found = importlib.util.find_spec("mlx_lm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("mlx-lm is not installed: pip install --no-deps mlx-lm")
    names = {"hermes": "json_tools", "kimi k2": "kimi_k2", **_MLX}
    path = Path(next(iter(found.submodule_search_locations))) / "tool_parsers" / f"{names[parser]}.py"
    module = _module_of(path)
    family, rng = FAMILIES[_MLX_FAMILIES[parser]], random.Random(parser)
    for text, constraint, given in small_model().texts(family.format, 100, rng, family.are_names_words):
        blocks = text.split(module.tool_call_start)[1:]
        theirs = []
        try:
            for block in blocks:
                read = module.parse_tool_call(block.split(module.tool_call_end)[0], given)
                theirs += read if isinstance(read, list) else [read]
        except ValueError:
            with pytest.raises(ValueError, match="substring not found"):
                PARSERS[parser](text, given)
            continue
        calls = PARSERS[parser](text, given).calls
        if parser != "glm mlx" or all(arguments for _, arguments in calls):  # a call without arguments is read by guess
            assert [(one["name"], one["arguments"]) for one in theirs] == calls, text
        assert constraint.parse(text).calls


def _module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
