"""What is said arrives: in the form that a chat template reads, or it is an error by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decodekit.chat import conversation
from decodekit.chat.conversation import TemplateArguments
from decodekit.errors import ChatTemplateError
from tests.chat.corpus import needs_corpus, templates
from tests.chat.made_templates import MADE, PARTS, tokenizer_of
from tests.chat.thinking_model import WITHOUT, llm_of
from tests.sizes import few

USER = {"role": "user", "content": "Say ZEBRA"}
ASSISTANT = {"role": "assistant", "content": "GNU"}
SYSTEM = {"role": "system", "content": "Be TERSE"}
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def of_role(body: str) -> str:
    """A template with a line for each message."""
    turns = (
        "{% for m in messages %}[{{ m.role }}] BODY\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    return turns.replace("BODY", body)


PLAIN = of_role("{{ m.content }}")


def written(template: str, messages: list[Any], tools: tuple[Any, ...] = (), **options: Any) -> str:
    return str(TemplateArguments(tools, options).written(tokenizer_of(template), messages, "prompt 0"))


def refused(template: str, messages: list[Any], **options: Any) -> ChatTemplateError:
    with pytest.raises(ChatTemplateError) as raised:
        written(template, messages, **options)
    return raised.value


def parts(*texts: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


# --- texts and lists of texts


def test_a_text_for_a_template_that_reads_parts() -> None:
    assert "Say ZEBRA" in written(PARTS, [USER])
    assert written(PARTS, [SYSTEM, USER, ASSISTANT, USER]).count("ZEBRA") == 2
    # The control: transformers writes nothing of it.
    assert "ZEBRA" not in tokenizer_of(PARTS).apply_chat_template([USER], tokenize=False)
    assert written(PARTS, [parts("Say ", "ZEBRA")]) == written(PARTS, [USER])


def test_parts_for_a_template_that_reads_texts() -> None:
    assert written(PLAIN, [parts("Say ", "ZEBRA")]) == written(PLAIN, [USER])
    as_they_are = tokenizer_of(PLAIN).apply_chat_template([parts("Say ", "ZEBRA")], tokenize=False)
    assert "[{'type': 'text'" in as_they_are  # the control
    mixed = {"role": "user", "content": ["Say ", {"type": "text", "text": "ZEBRA"}]}
    assert written(PLAIN, [mixed]) == written(PLAIN, [USER])
    only_texts = of_role("{% if m.content is string %}{{ m.content }}{% endif %}")
    assert "Say ZEBRA" in written(only_texts, [parts("Say ", "ZEBRA")])


def test_forms_by_role() -> None:
    template = of_role(
        "{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}"
        "{% else %}{{ m.content.strip() }}{% endif %};"
    )
    assert written(template, [SYSTEM, USER, ASSISTANT]) == written(
        of_role("{{ m.content }};"), [SYSTEM, USER, ASSISTANT]
    )


def test_several_parts_for_a_template_that_reads_one() -> None:
    """As the templates of Llama Guard's images have it: the first part, or the last."""
    for place in ("0", "-1"):
        template = of_role("{{ m.content[PLACE].text }}".replace("PLACE", place))
        assert written(template, [parts("Say ", "ZEBRA")]) == written(template, [USER])
        assert written(template, [parts("Be ", "TERSE", role="system"), USER]) == written(template, [SYSTEM, USER])
    assert written(PARTS, [parts("Say ", "ZEBRA")]).count("ZEBRA") == 1  # where all are read, they stay as they are
    # Where they do not stand side by side, each is looked for by itself.
    marking = of_role("{% for p in m.content %}<{{ p.text | trim | e }}>{% endfor %}")
    assert "<Say><&lt;ZEBRA&gt;>" in written(marking, [parts("Say ", "<ZEBRA>")])
    shy = of_role("{% for p in m.content if 'LION' not in p.text %}<{{ p.text }}>{% endfor %}")
    assert "'Say LION'" in refused(shy, [parts("Say ", "LION")]).cause
    cutting = of_role("{% for p in m.content %}{{ p.text.split('</think>')[-1] | e }}{% endfor %}")
    for one in (
        parts("<think>hm</think>", "<GNU>", role="assistant"),
        parts("<think>hm</think><GNU>", role="assistant"),
    ):
        assert written(cutting, [USER, one, USER]) == written(cutting, [USER, {**ASSISTANT, "content": "<GNU>"}, USER])


def test_a_part_that_is_no_text_is_refused() -> None:
    picture = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {}}]}
    error = refused(PARTS, [USER, ASSISTANT, picture])
    assert "'image_url'" in error.cause and error.at == "prompt 0, message 2"


# --- what does not come through


SPOKEN = of_role("{{ m.content if m.role in ('user', 'assistant') }}")
SHY = of_role("{% if 'LION' not in m.content %}{{ m.content }}{% endif %}")
LION = {"role": "user", "content": "LION"}
DROPPING: list[tuple[str, list[Any], str]] = [
    (of_role("{% if m.role != 'system' %}{{ m.content }}{% endif %}"), [SYSTEM, USER], "'Be TERSE'"),
    (of_role("{% if m.role == 'user' %}{{ m.content }}{% endif %}"), [USER, ASSISTANT, USER], "'GNU'"),
    ("{{ messages[-1].content }}", [USER, LION], "'Say ZEBRA'"),
    (of_role("{{ m.content[:4] }}"), [USER], "'Say ZEBRA'"),
    (of_role("{{ m.content.split('</think>')[-1] }}"), [{"role": "user", "content": "a</think>b"}], "'a</think>b'"),
    (SHY, [LION], "'LION'"),
    (SHY, [USER, {"role": "user", "content": "say\nLION now"}], "'say\\nLION now'"),
    (SPOKEN, [USER, {"role": "observer", "content": "OWL"}], "'OWL'"),
    (of_role(""), [USER], "'Say ZEBRA'"),
]


@pytest.mark.parametrize(("template", "messages", "says"), DROPPING)
def test_what_is_left_out_is_refused_by_name(template: str, messages: list[Any], says: str) -> None:
    error = refused(template, messages)
    assert "leaves out the content" in error.cause and says in error.cause
    assert str(error.at).startswith("prompt 0, message") and error.hint
    # Where it is not said, nothing is missed.
    blank = [{**one, "content": " "} if one["content"] in says else one for one in messages]
    if template != of_role("") and blank != messages:
        written(template, blank)


KEEPING = [
    (of_role("{{ m.content | trim }}"), "  a \n  b  "),
    (of_role("{{ m.content | tojson }}"), 'say "é"\n\tnow'),
    (of_role("{{ m.content | e }}"), "a < b & 'c'"),
    (of_role("{{ m.content | upper | lower }}"), "abc"),
    (of_role("{% for line in m.content.split('\n') %}{{ line | trim }} {% endfor %}"), " one\n  two \n\nthree"),
    (of_role("{{ m.content | replace('/no_think', '') }}"), "/no_think"),
    (of_role("{{ m.content | replace('/no_think', '') }}"), "Say ZEBRA /no_think"),
    (of_role("{{ m.content }}"), ""),
    (of_role("{{ m.content }}"), "\n"),
]


@pytest.mark.parametrize(("template", "content"), KEEPING)
def test_what_is_written_in_another_way_is_written(template: str, content: str) -> None:
    messages = [{"role": "user", "content": content}, ASSISTANT, {"role": "user", "content": "go"}]
    assert written(template, messages) == tokenizer_of(template).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_thoughts_of_the_past_are_not_content() -> None:
    cutting = of_role("{{ m.content.split('</think>')[-1] | trim }}")
    said = {"role": "assistant", "content": "<think>hm</think>GNU"}
    assert "GNU" in written(cutting, [USER, said, USER]) and "hm" not in written(cutting, [USER, said, USER])
    assert written(cutting, [USER, {**said, "content": "<think>hm</think>"}, USER])
    assert written(PLAIN, [USER, {**ASSISTANT, "reasoning_content": "hm"}, USER])
    kept = MADE["thought of the model"].template
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert "<think>\nhm\n</think>" in written(kept, [USER, {**ASSISTANT, name: "hm"}, USER])


def test_a_developer_is_the_system_of_templates_that_know_none() -> None:
    developer = {**SYSTEM, "role": "developer"}
    assert "[system] Be TERSE" in written(PLAIN, [developer, USER])
    knowing = of_role("{% if m.role == 'developer' %}DEV {% endif %}{{ m.content }}")
    assert "[developer] DEV Be TERSE" in written(knowing, [developer, USER])


def test_generate_extract_and_engines_refuse_alike() -> None:
    llm = llm_of(WITHOUT, "7")
    llm.tokenizer.chat_template = DROPPING[0][0]
    done = llm.generate([[SYSTEM, USER], [USER]], max_new_tokens=2)
    assert isinstance(done[0].error, ChatTemplateError) and done[0].error.at == "prompt 0, message 0"
    assert done[1].error is None
    with llm.engine() as engine:
        assert isinstance(engine.submit([SYSTEM, USER], max_new_tokens=2).result().error, ChatTemplateError)
    with pytest.raises(ChatTemplateError):
        llm.decide([SYSTEM, USER], ["a", "b"])


def test_one_rendering_for_a_conversation_of_a_known_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outline of a conversation is looked at once; a text that is escaped is looked at again."""
    tokenizer = tokenizer_of(of_role("{{ m.content | e }}"))
    calls: list[int] = []
    render = TemplateArguments._written
    monkeypatch.setattr(TemplateArguments, "_written", lambda *given: calls.append(1) or render(*given))
    told = TemplateArguments()
    for content, num_renderings in (("one", 3), ("two " * 1000, 1), ("three", 1), ("a < b", 2), ("four", 1)):
        calls.clear()
        told.written(tokenizer, [{"role": "user", "content": content}], "prompt")
        assert len(calls) == num_renderings, content
    monkeypatch.setattr(conversation, "_MANY_OUTLINES", 1)
    told.written(tokenizer, [USER, ASSISTANT], "prompt")
    assert len(conversation._outlines[tokenizer]) == 1


# --- calls and their results


def conversation_of(arguments: Any, content: Any = "", id: str | None = "call_1", result: Any = "SUN") -> list[Any]:
    call: Any = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    calling: Any = {"role": "assistant", "tool_calls": [call], "content": content}
    answer: Any = {"role": "tool", "content": result}
    if id is not None:
        call["id"], answer["tool_call_id"] = id, id
    if content is ...:
        del calling["content"]
    return [USER, calling, answer]


VALUES = ({"city": "Bern"}, '{"city": "Bern"}', '{"city":"Bern"}')
CONTENTS = ("", None, ...)


@few(29)
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("arguments", VALUES)
@pytest.mark.parametrize("content", CONTENTS)
def test_calls_in_every_form_that_clients_send(name: str, arguments: Any, content: Any) -> None:
    text = written(MADE[name].template, conversation_of(arguments, content), (TOOL,))
    assert text == written(MADE[name].template, conversation_of(VALUES[0]), (TOOL,))
    for said in ("Say ZEBRA", "look", "city", "Bern", "SUN"):
        assert said in text
    longer = [*conversation_of(arguments, content), ASSISTANT, USER] * 3
    assert written(MADE[name].template, longer, (TOOL,)).count("Bern") == 3


def calls(written_as: str) -> str:
    return "{% for c in m.tool_calls or [] %}" + written_as + "{% endfor %}"


def unless(test: str) -> str:
    """A content where a test holds, and calls where it does not."""
    return "{% if " + test + " %}{{ m.content }}{% else %}" + calls("{{ c.function | tojson }}") + "{% endif %}"


ARGUMENTS = '{"city": "Bern"}'
JSON = '{"name": "look", "arguments": {"city": "Bern"}}'
IN_TEXT = unless("m.content is not none").replace("c.function | tojson", "c.id + c.function.arguments")
NINE = "{% if ID | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
OF_TOOL = "{% if m.role == 'tool' %}BODY{% endif %}{{ m.content }}"
ASKING = [
    ("text", "{{ m.content }}" + calls("{{ c.function.name + c.function.arguments }}"), 'look{"city": "Bern"}'),
    ("value", "{{ m.content }}" + calls("{{ c.function | tojson }}"), JSON),
    ("null", unless("m.content is not none"), JSON),
    ("missing", unless("m.content is defined"), JSON),
    (
        "nine",
        OF_TOOL.replace("BODY", NINE.replace("ID", "m.tool_call_id"))
        + calls("{{ c.function | tojson }}{{ c.id }}" + NINE.replace("ID", "c.id")),
        JSON + "call00000",
    ),
    (
        "numbered",
        "{{ m.content }}" + calls("{{ c.id }}{{ c.function.arguments | tojson }}"),
        "functions.look:0" + ARGUMENTS,
    ),
    ("named results", OF_TOOL.replace("BODY", "{{ m.name }}=") + calls("{{ c.function | tojson }}"), "look=SUN"),
    ("all", IN_TEXT, "functions.look:0" + ARGUMENTS),
]


@few(51)
@pytest.mark.parametrize(("name", "body", "says"), ASKING)
@pytest.mark.parametrize("arguments", VALUES)
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("id", ["call_1", "functions.look:0", "abcdefghi"])
def test_calls_in_the_form_that_a_template_asks_for(
    name: str, body: str, says: str, arguments: Any, content: Any, id: str
) -> None:
    text = written(of_role(body), conversation_of(arguments, content, id))
    assert says.replace("call00000", id if id == "abcdefghi" else "call00000") in text and "SUN" in text


def test_calls_without_identifiers_and_several() -> None:
    assert "call00000" in written(of_role(ASKING[4][1]), conversation_of(VALUES[0], id=None))
    two = [*conversation_of(VALUES[0]), *conversation_of({"city": "Basel"}, id="call_2", result="RAIN")]
    text = written(of_role(ASKING[5][1]), two)
    assert 'functions.look:0{"city": "Bern"}' in text and 'functions.look:1{"city": "Basel"}' in text


def test_text_before_calls() -> None:
    """Where the template writes either of them, the text is a message of its own."""
    either = of_role("{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}")
    text = written(either, conversation_of(VALUES[0], "I look."))
    assert text.index("[assistant] I look.") < text.index('"name": "look"')
    both = of_role("{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}")
    assert "[assistant] I look.[{" in written(both, conversation_of(VALUES[0], "I look."))


FUNCTION = calls("{{ c.function | tojson }}")
EMPTIES = [
    # an empty message before the calls, as functionary 2.2 has it
    ("{% if m.content is not none %}(all){{ m.content }}{% endif %}" + FUNCTION, "[assistant] {"),
    ("{% if m.content is defined %}(all){{ m.content }}{% endif %}" + FUNCTION, "[assistant] {"),
    # an empty answer behind them, as a distilled DeepSeek R1 has it
    (FUNCTION + "{% if m.content is not none %}<A>{{ m.content }}{% endif %}<end>", "}<end>"),
    # the control: with less, LFM 2.5 does not end the turn, another loses the thought, and one writes "None"
    (FUNCTION + "{% if m.content is defined %}{{ m.content }}<end>{% endif %}", "}<end>"),
    ("{% if m.content is not none %}({{ m.thinking }}){{ m.content }}{% endif %}" + FUNCTION, "(HM){"),
    ("{{ m.content }}" + FUNCTION, "[assistant] {"),
    ("{{ m.content if m.content is defined else 'none' }}" + FUNCTION, "[assistant] {"),
]


@pytest.mark.parametrize(("body", "says"), EMPTIES)
@pytest.mark.parametrize("content", CONTENTS)
def test_calls_alone_are_written_with_nothing_beside_them(body: str, says: str, content: Any) -> None:
    user, calling, result = conversation_of(VALUES[0], content)
    text = written(of_role(body), [user, {**calling, "thinking": "HM"}, result, ASSISTANT, *conversation_of(VALUES[0])])
    assert says in text and "None" not in text
    assert all(text.count(mark) == (5 if mark in body else 0) for mark in ("(all)", "<A>"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{{ m.content }}", "the name of a tool that is called"),
        ("{{ m.content }}" + calls("{{ c.function.name }}"), "the arguments of a call"),
        ("{{ m.content if m.role != 'tool' }}" + calls("{{ c.function | tojson }}"), "the content"),
        (
            "{{ m.content }}" + calls("{{ c.function.name }}{{ c.function.arguments.values() }}"),
            "the arguments of a call",
        ),
    ],
)
def test_calls_that_are_left_out_are_refused(body: str, says: str) -> None:
    error = refused(of_role(body), conversation_of(VALUES[0]))
    assert f"leaves out {says}" in error.cause and error.hint


def test_results_of_every_kind() -> None:
    body = of_role("{{ m.content }}" + calls("{{ c.function | tojson }}"))
    listed = [{"type": "text", "text": "SUN"}, {"type": "text", "text": "SHINE"}]
    assert "[tool] SUNSHINE" in written(body, conversation_of(VALUES[0], result=listed))
    value = {"weather": "SUN", "days": [1, 2]}
    assert f"[tool] {json.dumps(value)}" in written(body, conversation_of(VALUES[0], result=value))
    mapping = body.replace("{{ m.content }}", "{{ m.content | tojson if m.content is mapping else m.content }}")
    assert f"[tool] {json.dumps(value)}" in written(mapping, conversation_of(VALUES[0], result=value))
    assert "[tool] 7" in written(body, conversation_of(VALUES[0], result=7))


def test_arguments_that_are_no_object_stand_as_they_are() -> None:
    body = of_role("{{ m.content }}" + calls("{{ c.function.name }}{{ c.function.arguments }}"))
    assert "look[1" in written(body, conversation_of("[1"))


# --- real templates

F: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}},
    },
}


@needs_corpus
@pytest.mark.slow
def test_real_templates_write_all_or_are_refused_by_name() -> None:
    """Texts as texts and as parts, alike; and the words are there."""
    num_written, others = 0, set()
    for entry in templates():
        tokenizer = entry.tokenizer()
        for messages in ([USER], [parts("Say ", "ZEBRA")], [SYSTEM, USER], [USER, ASSISTANT, LION]):
            try:
                text = str(TemplateArguments().written(tokenizer, messages, "messages"))
            except ChatTemplateError as error:
                others.add(" ".join(error.cause.split()[6:8]))
                continue
            num_written += 1
            for word in ("ZEBRA", "TERSE", "GNU", "LION"):
                assert (word in json.dumps(messages)) == (word in text), (entry.name, messages)
    assert num_written >= 660 and others == {"refuses the", "leaves out"}


@needs_corpus
@pytest.mark.slow
def test_real_templates_write_calls() -> None:
    """All that name calls, less those that transformers cannot run or that have one call at most."""
    written_by, refused_by = [], {}
    for entry in templates():
        if "tool_calls" not in entry.template:
            continue
        tokenizer = entry.tokenizer()
        told = TemplateArguments([F] if "tools" in TemplateArguments().variables_of(tokenizer) else [])
        try:
            texts = {
                str(told.written(tokenizer, conversation_of(arguments, content), "messages"))
                for arguments in VALUES
                for content in CONTENTS
            }
        except ChatTemplateError as error:
            refused_by[entry.name] = error.cause
            continue
        [text] = texts
        assert all(word in text for word in ("ZEBRA", "look", "Bern", "SUN")), entry.name
        written_by.append(entry.name)
    assert len(written_by) >= 85 and len(refused_by) <= 12, refused_by
