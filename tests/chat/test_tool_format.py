"""The chat template tells the format: descriptions by hand, the check of each, and where formats are taken from."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any, Final

import pytest

import decodekit as dk
from decodekit.chat.forms.renderings import CONTENT, Renderings, call_of, common_begin, common_end
from decodekit.chat.tool_format import DerivedFormat, derive, faults_in, read
from decodekit.chat.tools import format_of, in_format_of, waits
from decodekit.constraints import as_constraint
from decodekit.constraints.json_schema.notation import Values
from decodekit.constraints.tool_calls import FORMATS, ToolCall, ToolFormat, ToolResponse
from decodekit.constraints.tool_calls.format import ARGUMENTS, ID, NAME, NUMBER, ElementArguments, JsonArguments
from decodekit.errors import ChatTemplateError, OptionError
from tests.chat.made_templates import MADE, PARTS, tokenizer_of
from tests.sizes import few

JSON = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS)
PYTHON = ElementArguments("", "=", "", ", ", Values("json", "python", "python"))
TAGGED = {"call": ('<call>\n{"name": "', *JSON[1:], "}\n</call>"), "separator": "\n", "joint": "\n", "names": "json",
          "marks": ("<call>", "</call>")}  # fmt: skip
LIST = {
    "opening": "<|calls|>[",
    "separator": ", ",
    "closing": "]<|calls_end|>",
    "marks": ("<|calls|>", "<|calls_end|>"),
}

BY_HAND: dict[str, dict[str, Any]] = {
    "json in tags": TAGGED,
    "json list": {**LIST, "call": (*JSON, "}"), "names": "json"},
    "name as key": {**LIST, "call": ('{"', NAME, '": ', ARGUMENTS, "}"), "names": "json"},
    "name then json": {"call": ("[CALL]", NAME, "[WITH]", ARGUMENTS), "marks": ("[CALL]", "[WITH]")},
    "name, id, json": {
        "call": ("[CALL]", NAME, ("[ID]", ID), "[WITH]", ARGUMENTS),
        "marks": ("[CALL]", "[ID]", "[WITH]"),
    },
    "fenced json": {
        "opening": "<|calls|>",
        "call": ("<|call|>function<|sep|>", NAME, "\n```json\n", ARGUMENTS, "\n```<|call_end|>"),
        "separator": "\n",
        "closing": "<|calls_end|>",
        "marks": ("<|calls|>", "<|calls_end|>", "<|call|>", "<|sep|>", "<|call_end|>"),
    },
    "elements": {
        "call": ("<call>\n<tool=", NAME, ">\n", ARGUMENTS, "</tool>\n</call>"),
        "arguments": ElementArguments("<argument=", ">\n", "\n</argument>\n"),
        "separator": "\n",
        "joint": "\n",
        "marks": ("<call>", "</tool>", "</call>", "</argument>"),
    },
    "keys and values": {
        "call": ("<call>", NAME, "\n", ARGUMENTS, "</call>"),
        "arguments": ElementArguments("<key>", "</key>\n<value>", "</value>\n"),
        "separator": "\n",
        "joint": "\n",
        "has_joint_alone": True,
        "marks": ("<call>", "</call>", "<key>", "</key>", "<value>", "</value>"),
    },
    "typed elements": {
        "opening": "<calls>\n",
        "call": ('<invoke tool="', NAME, '">\n', ARGUMENTS, "</invoke>"),
        "arguments": ElementArguments(
            '<argument key="', '" text="yes">', "</argument>\n", middle_of_others='" text="no">'
        ),
        "separator": "\n",
        "closing": "\n</calls>",
        "joint": "\n\n",
        "has_joint_alone": True,
        "marks": ("<calls>", "</calls>", "</invoke>", "</argument>"),
    },
    "python list": {**LIST, "call": (NAME, "(", ARGUMENTS, ")"), "arguments": PYTHON},
    "python in a fence": {
        "opening": "<|calls|>\n```python\n",
        "call": (NAME, "(", ARGUMENTS, ")"),
        "arguments": PYTHON,
        "separator": "\n",
        "closing": "\n```\n<|calls_end|>",
        "marks": LIST["marks"],
    },
    "own quotation": {
        "call": ("<|call>", NAME, "{", ARGUMENTS, "}<call|>"),
        "arguments": ElementArguments("", ":", "", ",", Values("<|q|>", "json", "own", ",", ":")),
        "marks": ("<|call>", "<call|>", "<|q|>"),
    },
    "numbered identifiers": {
        "opening": "<|calls|>",
        "call": ("<|call|>functions.", NAME, ":", NUMBER, "<|with|>", ARGUMENTS, "<|call_end|>"),
        "closing": "<|calls_end|>",
        "identifier": ("functions.", NAME, ":", NUMBER),
        "marks": ("<|calls|>", "<|calls_end|>", "<|call|>", "<|with|>", "<|call_end|>"),
    },
    "channels": {
        "call": (" to=tools.", NAME, "<|channel|>call json<|text|>", ARGUMENTS),
        "content_begin": "<|channel|>last<|text|>",
        "max_calls": 1,
        "is_alone": True,
        "marks": ("<|channel|>", "<|text|>"),
    },
    "recipients": {
        "call": (NAME, "\n", ARGUMENTS),
        "separator": "\n<|from|>assistant\n<|to|>",
        "content_begin": "all\n",
        "joint": "\n<|from|>assistant\n<|to|>",
        "marks": ("<|from|>", "<|to|>"),
    },
    "json alone": {
        "call": ('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"),
        "names": "json",
        "max_calls": 1,
        "is_alone": True,
        "lead": "<|python_tag|>",
    },
    "arguments as text": {"call": ("[CALL]", NAME, "[WITH]", ARGUMENTS), "marks": ("[CALL]", "[WITH]")},
    "thought in the prompt": TAGGED,
    "thought by option": TAGGED,
    "thought of the model": TAGGED,
}


def by_hand(name: str) -> ToolFormat:
    return ToolFormat("template", "", **BY_HAND[name])


def without_words(format: ToolFormat) -> ToolFormat:
    """A format without what says where it is from; marks in any order."""
    return replace(format, name="template", families="", marks=tuple(sorted({*format.marks})))


def reading_of(name: str, is_special: bool = True) -> DerivedFormat:
    return read(tokenizer_of(MADE[name].template, is_special))


@few(7)
@pytest.mark.parametrize("name", MADE)
def test_what_is_read_off_is_the_description_by_hand(name: str) -> None:
    reading = reading_of(name)
    assert without_words(reading.format) == without_words(by_hand(name))
    assert not reading.differences and len(reading.rendered) > 45
    for other in MADE:  # the description of another template writes something else
        if BY_HAND[other] | {"marks": ()} != BY_HAND[name] | {"marks": ()}:
            assert any(by_hand(other).written(*case) != text for case, text in reading.rendered)


def test_marks_are_those_of_the_tokenizer() -> None:
    assert reading_of("json list", is_special=False).format.marks == ()
    assert reading_of("json list").format.marks == ("<|calls|>", "<|calls_end|>")


_COMMA: Final = "{{- SEPARATOR if not loop.first }}\n        {{- key"
_CHANGES: Final[list[tuple[str, str, str, dict[str, Any]]]] = [
    ("json in tags", "\"arguments\": '", "\"arguments\":'",
     {"call": ('<call>\n{"name": "', NAME, '", "arguments":', ARGUMENTS, "}\n</call>")}),
    ("json in tags", '"}\\n</call>"', '"}</call>"', {"call": ('<call>\n{"name": "', *JSON[1:], "}</call>")}),
    ("json list", '{{- ", " if not', '{{- "," if not', {"separator": ","}),
    ("json list", "| tojson) + \"}\"", "| tojson(separators=(',', ':'))) + \"}\"",
     {"arguments": JsonArguments(Values(item=",", key=":"))}),
    ("json list", "| tojson) + \"}\"", "| tojson(sort_keys=True)) + \"}\"",
     {"arguments": JsonArguments(Values(is_sorted=True))}),
    ("json list", '"]<|calls_end|>"', '"]<|calls_end|>\\n"', {"end": "\n"}),
    ("elements", '">\\n" + (value', '">" + (value',
     {"arguments": ElementArguments("<argument=", ">", "\n</argument>\n")}),
    ("elements", "value | tojson", "value | string",
     {"arguments": ElementArguments("<argument=", ">\n", "\n</argument>\n", values=Values("raw", "python", "python"))}),
    ("python list", _COMMA.replace("SEPARATOR", '", "'), _COMMA.replace("SEPARATOR", '","'),
     {"arguments": replace(PYTHON, separator=",")}),
    ("numbered identifiers", '":" + (loop', '"#" + (loop',
     {"call": ("<|call|>functions.", NAME, "#", NUMBER, "<|with|>", ARGUMENTS, "<|call_end|>"),
      "identifier": ("functions.", NAME, "#", NUMBER)}),
    ("own quotation", "value | tojson", "value | string",
     {"arguments": ElementArguments("", ":", "", ",", Values("<|q|>", "python", "own", ",", ":"))}),
]  # fmt: skip


@few(5)
@pytest.mark.parametrize(("name", "old", "new", "changed"), _CHANGES)
def test_a_change_in_the_template_is_another_description(
    name: str, old: str, new: str, changed: dict[str, Any]
) -> None:
    template = MADE[name].template
    assert old in template
    before, after = reading_of(name), read(tokenizer_of(template.replace(old, new), True))
    assert not after.differences
    assert (
        without_words(after.format) == without_words(replace(before.format, **changed)) != without_words(before.format)
    )
    # The old description writes something else.
    wrong = [case for case, text in after.rendered if before.format.written(*case) != text]
    assert len(wrong) >= 1


def test_a_wrong_description_fails_its_check() -> None:
    reading, tokenizer = reading_of("fenced json"), tokenizer_of(MADE["fenced json"].template, True)
    some = replace(reading, rendered=reading.rendered[:6])
    vocabulary = dk.Vocabulary.from_tokenizer(tokenizer)
    assert faults_in(some, tokenizer, vocabulary) == []
    wrong = replace(reading.format, closing="<|calls|>")
    faults = faults_in(replace(some, format=wrong), tokenizer, vocabulary)
    assert len(faults) == 4 and "is refused at its token" in faults[0]  # two of the six have no calls
    parameters = replace(reading.format, content_begin="<|sep|>")
    assert len(faults_in(replace(some, format=parameters), tokenizer, vocabulary)) == 4  # those with a content


@pytest.mark.parametrize(
    "name", ["json in tags", "typed elements", "numbered identifiers", "channels", "name, id, json"]
)
def test_what_the_template_writes_is_accepted_and_read_back(name: str) -> None:
    reading, tokenizer = reading_of(name), tokenizer_of(MADE[name].template, True)
    some = replace(reading, rendered=reading.rendered[:10] + reading.rendered[10::6])
    assert faults_in(some, tokenizer, dk.Vocabulary.from_tokenizer(tokenizer)) == []


def test_indented_json_is_read_with_arguments_and_without() -> None:
    """As Command R+ has it: what opens the arguments and closes them stands on lines of its own, or side by side."""
    template = MADE["json list"].template.replace("arguments | tojson", "arguments | tojson(indent=4)")
    reading, tokenizer = read(tokenizer_of(template, True)), tokenizer_of(template, True)
    flat = [
        (case, text)
        for case, text in reading.rendered
        if not any(isinstance(value, list | dict) for call in case.calls for value in call.arguments.values())
    ]
    assert len(flat) > 20 and sum('"arguments": {}}' in text for _, text in flat) >= 3
    some = replace(reading, rendered=tuple(flat))
    assert faults_in(some, tokenizer, dk.Vocabulary.from_tokenizer(tokenizer)) == []


def test_what_is_read_off_is_kept() -> None:
    tokenizer = tokenizer_of(MADE["json list"].template)
    assert derive(tokenizer) is derive(tokenizer)
    other = derive(tokenizer, MADE["elements"].template)
    assert other is derive(tokenizer, MADE["elements"].template) and other != derive(tokenizer)


def test_one_of_several_templates() -> None:
    tokenizer = tokenizer_of(MADE["json list"].template)
    tokenizer.chat_template = {"default": PARTS, "tool_use": MADE["elements"].template, "x": MADE["channels"].template}
    assert without_words(derive(tokenizer)) == replace(without_words(by_hand("elements")), marks=())
    assert derive(tokenizer, "x").is_alone


# --- what a template does not tell ------------------------------------------------------------------------------------

_SILENT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"


@pytest.mark.parametrize(
    ("mark", "name"),
    [("<|tool_calls_section_begin|>", "kimi-k2"), ("<|tool_call|>", "granite"), ("<tool_call>", "hermes"),
     ("[TOOL_CALLS][ARGS]", "mistral-v13"), ("<tool_call><function=f><parameter=x>", "qwen3-coder"),
     ("List of tools: ", "lfm2")],
)  # fmt: skip
def test_a_family_is_known_by_its_marks(mark: str, name: str) -> None:
    reading = read(tokenizer_of(_SILENT + "{# " + mark + " #}"))
    assert reading.format == FORMATS[name] and "by marks" in str(reading)


def test_templates_that_do_not_tell() -> None:
    with pytest.raises(ChatTemplateError, match="does not tell how tools are called: it writes none") as caught:
        derive(tokenizer_of(_SILENT))
    assert caught.value.at == "format" and caught.value.hint is not None and "hermes" in caught.value.hint
    refusing = "{{ raise_exception('no tools here') }}"
    with pytest.raises(ChatTemplateError, match="raises TemplateError: no tools here"):
        derive(tokenizer_of(refusing))
    # It writes the names and no arguments.
    half = _SILENT.replace("<|end|>", "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}<|end|>")
    with pytest.raises(ChatTemplateError, match="does not tell"):
        derive(tokenizer_of(half))
    tokenizer = copy.copy(tokenizer_of(_SILENT))
    tokenizer.chat_template = None
    with pytest.raises(ChatTemplateError, match="no chat template"):
        derive(tokenizer)


def test_a_template_that_is_read_in_part() -> None:
    """Of what it writes otherwise the reading tells the difference; a template of which most is not read is refused."""
    odd = MADE["json list"].template.replace(
        "(call.function.arguments | tojson)",
        "('null' if call.function.arguments == {} else call.function.arguments | tojson)",
    )
    reading = read(tokenizer_of(odd, True))
    assert without_words(reading.format) == without_words(by_hand("json list"))
    assert [case.calls[0].arguments for case, _, _ in reading.differences] == [{}] * 3
    assert f"of {len(reading.rendered)} responses are written as the template does" in str(reading)


# --- renderings -------------------------------------------------------------------------------------------------------


def test_texts_in_common_divide_no_marks_and_no_words() -> None:
    assert common_begin(["<a><bc>x", "<a><bd>"]) == "<a>"
    assert common_begin(["one two", "one twelve"]) == "one "
    assert common_begin(["<a", "<a>b"]) == "<a"  # a whole text
    assert common_end(["x<|end|>\n", "y</t><|end|>\n"]) == "<|end|>\n"
    assert common_end(["<|END_X|><|E|>", "<|END_Y|><|E|>"]) == "<|E|>"
    assert common_begin([]) == common_end([]) == ""


def test_leads_and_ends_are_no_part_of_a_response() -> None:
    for name, lead in (("thought in the prompt", ""), ("json in tags", "")):
        renderings = Renderings(tokenizer_of(MADE[name].template))
        assert renderings.lead == lead and renderings.ends == ("<|end|>\n", "<|end|>\n")
        assert renderings.response(CONTENT) == CONTENT
    always = MADE["thought of the model"].template.replace(
        "{%- if message.reasoning_content %}", "{%- if message.role == 'assistant' %}"
    )
    renderings = Renderings(
        tokenizer_of(always.replace("message.reasoning_content", "(message.reasoning_content or '')"))
    )
    assert renderings.lead == "<think>\n\n</think>\n\n"
    assert (renderings.response("", (call_of(0),)) or "").startswith("<call>")


def test_a_single_call_whose_end_is_missing_has_that_of_several() -> None:
    written = '{{- "<|end|>\\n" }}\n{%- endfor %}'
    template = MADE["json in tags"].template
    assert written in template
    ends = "{% if (message.tool_calls or []) | length != 1 %}<|end|>{% endif %}\n{%- endfor %}"
    assert Renderings(tokenizer_of(template.replace(written, ends))).ends == ("<|end|>", "<|end|>")


# --- where a format is told -------------------------------------------------------------------------------------------


def get_weather(city: str, days: int = 1) -> None:
    """The weather."""


PARIS = ToolCall("get_weather", {"city": "Paris", "days": 3})


def test_tools_without_a_tokenizer_have_no_format_yet() -> None:
    calls = dk.tools([get_weather])
    assert waits(calls) and calls.definitions[0]["function"]["name"] == "get_weather"
    for use in (lambda: calls.parse("x"), calls.root, lambda: calls.parse_cut("x")):
        with pytest.raises(OptionError, match="no tokenizer at hand"):
            use()
    assert calls == as_constraint({"tools": [calls.definitions[0]]}).__class__(
        *[getattr(calls, name) for name in calls.__slots__]
    )


@pytest.mark.parametrize("name", ["json in tags", "elements", "recipients"])
def test_tools_with_a_tokenizer(name: str) -> None:
    tokenizer = tokenizer_of(MADE[name].template)
    calls = dk.tools([get_weather], tokenizer=tokenizer)
    assert calls == dk.tools([get_weather], derive(tokenizer)) and not waits(calls)
    assert calls.parse(MADE[name].call) == ToolResponse("", (PARIS,))
    assert dk.tools([get_weather], "hermes", tokenizer=tokenizer).format == FORMATS["hermes"]


def test_a_tokenizer_without_a_template_has_hermes_and_says_so() -> None:
    tokenizer = tokenizer_of(None)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="no chat template") as caught:
        assert dk.tools([get_weather], tokenizer=tokenizer).format == FORMATS["hermes"]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dk.tools([get_weather], "mistral", tokenizer=tokenizer).format == FORMATS["mistral"]


@pytest.mark.parametrize(
    ("version", "name"), [("v3", "mistral"), ("v7", "mistral"), ("v11", "mistral-v11"), ("v13", "mistral-v13")]
)
def test_tokenizers_of_mistral_are_known_by_their_version(version: str, name: str) -> None:
    class Version:
        value = version

    class Inner:
        tokenizer = Version
        Version.version = Version  # type: ignore[attr-defined]

    class Mistral:
        instruct_tokenizer = Inner

        def encode_chat_completion(self) -> None: ...

    class Around:
        tokenizer = Mistral()

    assert format_of(Mistral()) == format_of(Around()) == FORMATS[name]


def test_calls_inside_of_other_constraints() -> None:
    tokenizer, calls = tokenizer_of(MADE["name then json"].template), dk.tools([get_weather])
    told = dk.tools([get_weather], tokenizer=tokenizer)
    tagged = dk.Tagged(dk.Tag("<t>", calls, "</t>"))
    for one, other in (
        (dk.Reasoned(calls), dk.Reasoned(told)),
        (dk.OneOf("no", dk.Concat(calls, "!")), dk.OneOf("no", dk.Concat(told, "!"))),
        (dk.Guarded(calls, bool), dk.Guarded(told, bool)),
        (tagged, dk.Tagged(dk.Tag("<t>", told, "</t>"))),
    ):
        assert waits(one) and in_format_of(one, tokenizer) == other and not waits(other)
        assert in_format_of(other, tokenizer_of(MADE["elements"].template)) is other
    assert waits(tagged)  # it is as it was


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    model = dk.LLM.load("tiny").model
    return dk.LLM(model, tokenizer_of(MADE["elements"].template))


def test_generate_takes_the_format_of_the_template(llm: dk.LLM) -> None:
    calls = dk.tools([get_weather], tool_choice="required", parallel=False)
    question = [{"role": "user", "content": "The weather in Paris?"}]
    options: dict[str, Any] = {"constraint": calls, "max_new_tokens": 70, "on_length": "close"}
    completion = llm.generate(question, **options)
    assert completion.text.startswith("<call>\n<tool=get_weather>") and completion.value.calls[0].name == "get_weather"
    assert llm.tool_format == derive(llm.tokenizer)
    other = {"chat_template": MADE["name then json"].template}
    assert llm.generate(question, chat_template_kwargs=other, **options).text.startswith("[CALL]get_weather[WITH]")
    with llm.engine() as engine:
        assert engine.submit(question, **options).result().text == completion.text
    as_dict = {"tools": calls.definitions, "tool_choice": "required", "parallel_tool_calls": False}
    assert llm.generate(question, **{**options, "constraint": as_dict}).text == completion.text


def test_what_the_format_of_the_template_cannot_have(llm: dk.LLM) -> None:
    single = dk.LLM(llm.model, tokenizer_of(MADE["json alone"].template))
    assert single.generate("x", constraint=dk.tools([get_weather]), max_new_tokens=1, on_length="return").text
    with pytest.raises(OptionError, match="writes one call only"):
        single.generate("x", constraint=dk.tools([get_weather], parallel=2))
    silent = dk.LLM(llm.model, tokenizer_of(_SILENT))
    with pytest.raises(ChatTemplateError, match="does not tell"):
        silent.generate("x", constraint=dk.tools([get_weather]))
    assert silent.generate("x", constraint=dk.tools([get_weather], "hermes"), max_new_tokens=1, on_length="return").text
