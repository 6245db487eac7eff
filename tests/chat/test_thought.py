"""Thoughts: what a template says of them, and texts that have them, with constraints, bounds and tools behind them."""

from __future__ import annotations

from typing import Any

import pytest

import decodekit as dk
from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.template_thought import thought_of
from decodekit.chat.thought import Thought, ThoughtSplit, ThoughtTokens
from decodekit.errors import ChatTemplateError, LengthError, OptionError, UselessOptionError
from decodekit.llm import LLM
from tests.chat.corpus import needs_corpus, templates
from tests.chat.made_templates import tokenizer_of
from tests.chat.thinking_model import BY_OPTION, CHANNELS, FREE, OPEN, WITHOUT, llm_of
from tests.sizes import few

ASKED = [{"role": "user", "content": "How much?"}]
NUMBER = {"type": "integer"}


# --- what a template says


@pytest.mark.parametrize(
    ("template", "options", "thought", "state"),
    [
        (OPEN, {}, Thought("<think>\n", "\n</think>\n\n"), "open"),
        (BY_OPTION, {}, Thought("<think>\n", "\n</think>\n\n"), "free"),
        (BY_OPTION, {"enable_thinking": True}, Thought("<think>\n", "\n</think>\n\n"), "free"),
        (BY_OPTION, {"enable_thinking": False}, Thought("<think>\n", "\n</think>\n\n"), "over"),
        (FREE, {}, Thought("<think>\n", "\n</think>\n\n"), "free"),
        (
            CHANNELS,
            {},
            Thought("<|channel|>thought<|text|>", "<|stop|><|start|>assistant", "<|channel|>last<|text|>"),
            "free",
        ),
        (WITHOUT, {}, None, "none"),
    ],
)
@pytest.mark.parametrize("is_special", [False, True])
def test_thoughts_are_read_off_templates(
    template: str, options: dict[str, Any], thought: Thought | None, state: str, is_special: bool
) -> None:
    tokenizer, told = tokenizer_of(template, is_special), TemplateArguments(options=options)
    found = thought_of(tokenizer, told)
    assert found == thought and thought_of(tokenizer, told) is found
    if found is not None:
        behind = found.behind(str(told.written(tokenizer, ASKED, "prompt")))
        assert state == ("over" if behind is None else "open" if behind.is_open else "free")


def test_the_end_of_another_turn_is_no_end_of_a_thought() -> None:
    """Where the end of a thought is what each turn ends with, too."""
    thought = Thought("<|channel|>thought<|text|>", "<|stop|><|start|>assistant", "<|channel|>last<|text|>")
    thinking = f"<|start|>assistant{thought.begin}so"
    called = f"{thinking}{thought.end} to=f<|stop|><|start|>f<|text|>21"
    for prompt, state in (
        (thinking + thought.end, "over"),
        (called + thought.end, "free"),
        (f"{called}{thought.end}{thought.begin}so{thought.end}", "over"),
        (called + thought.end + thought.begin, "open"),
        (called + thought.end + thought.answer, "over"),
    ):
        assert state_of(thought, prompt) == state, prompt


def test_thoughts_that_are_cut_off_are_known_by_their_ends() -> None:
    """As DeepSeek R1 has it: what an assistant said is written without its thought."""
    cutting = "{{ messages[-1].content.split('</think>')[-1] }}{% if add_generation_prompt %}<A>{% endif %}"
    assert thought_of(tokenizer_of(cutting), TemplateArguments()) == Thought("<think>", "</think>")
    other = cutting.replace("</think>", "</thing>")
    assert thought_of(tokenizer_of(other), TemplateArguments()) is None
    opened = other.replace("<A>", "<A><think>\n")
    assert thought_of(tokenizer_of(opened), TemplateArguments()) == Thought("<think>\n", "</think>")
    words = (
        "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}{{ m.reasoning_content }} SO: {% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>I think: {% endif %}"
    )
    assert thought_of(tokenizer_of(words), TemplateArguments()) == Thought("I think: ", " SO: ")


# --- texts in two parts

TEXTS = [
    (Thought(is_open=True), "so\n it is \n</think>\n\n7 \n", ("so\n it is", "7 \n"), True),
    (Thought(is_open=True), "</think>7", ("", "7"), True),
    (Thought(is_open=True), "so</thin</think>7", ("so</thin", "7"), True),
    (Thought(is_open=True), "so it", ("so it", ""), True),
    (Thought(), "\n<think>so</think> 7", ("so", "7"), True),
    (Thought(), " 7</think>", ("", " 7</think>"), False),
    (Thought(), "<thing>", ("", "<thing>"), False),
    (Thought("<a>", "<b>", "<c>"), "<a>x<b><c> 7", ("x", " 7"), True),
    (Thought("<a>", "<b>", "<c>"), "<a>x<b>7", ("x", "7"), True),
    (Thought("<a>", "<b>", "<c>"), "<c>7", ("", "7"), False),
    (Thought("<a>", "<b>who", "<c>"), "<a>x<b>who to=f", ("x", " to=f"), True),
    (Thought("<a>", "<b>who", "<c>"), "<a>x<b>who<c> 7", ("x", " 7"), True),
    (None, "<think>so</think>7", ("", "<think>so</think>7"), False),
]


@pytest.mark.parametrize(("thought", "text", "parts", "has_thought"), TEXTS)
def test_a_text_is_divided_alike_in_all_pieces(
    thought: Thought | None, text: str, parts: tuple[str, str], has_thought: bool
) -> None:
    whole = ThoughtSplit(thought)
    assert whole.push(text, is_last=True) == parts and whole.has_thought is has_thought
    assert text[whole.content_at :] == parts[1]
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            split = ThoughtSplit(thought)
            pieces = [split.push(text[:first]), split.push(text[first:second]), split.push(text[second:], is_last=True)]
            assert ("".join(one for one, _ in pieces), "".join(one for _, one in pieces)) == parts
            assert split.content_at == whole.content_at
    tokens = ThoughtTokens(thought, [bytes([byte]) for byte in range(256)])
    num_thought = tokens.push([*text.encode()])
    assert num_thought == (whole.content_at if has_thought else 0)


# --- texts of a model


def test_a_constraint_begins_behind_the_thought() -> None:
    llm = llm_of(OPEN, "It is { 8 }\n</think>\n\n7")
    for options in ({"reasoning": "auto"}, {}):
        done = llm.generate(ASKED, constraint=NUMBER, **options)  # type: ignore[arg-type]
        assert done.error is None and done.value == 7
        assert (done.reasoning, done.content, done.text) == ("It is { 8 }", "7", "It is { 8 }\n</think>\n\n7")
        assert done.stats.num_reasoning_tokens > 3
    # The control: without it the constraint holds in the thought.
    plain = llm.generate(ASKED, constraint=NUMBER, reasoning="none", on_length="return", max_new_tokens=8)
    assert plain.reasoning is None and plain.text[:1].isdigit() | plain.text.startswith("-")
    chunks = list(llm.stream(ASKED, constraint=NUMBER))
    assert "".join(one.reasoning for one in chunks) == "It is { 8 }" and "".join(one.content for one in chunks) == "7"
    assert "".join(one.text for one in chunks) == done.text and chunks[-1].partial == 7
    with llm.engine() as engine:
        handle = engine.submit(ASKED, constraint=NUMBER)
        assert "".join(one.reasoning for one in handle) == "It is { 8 }"
        assert handle.result().value == 7 and handle.result().reasoning == done.reasoning


@pytest.mark.parametrize(
    ("template", "writes", "options", "reasoning", "value"),
    [
        (FREE, "\n<think>\nsix\n</think>\n\n6", {}, "six", 6),
        (FREE, "6", {}, None, 6),
        (BY_OPTION, "<think>six</think>6", {"enable_thinking": True}, "six", 6),
        (BY_OPTION, "6", {"enable_thinking": False}, None, 6),
        (OPEN, "</think>6", {}, "", 6),
        (CHANNELS, "<|channel|>thought<|text|>six<|stop|><|start|>assistant<|channel|>last<|text|>6", {}, "six", 6),
        (CHANNELS, "<|channel|>last<|text|>6", {}, None, 6),
        (WITHOUT, "6", {}, None, 6),
    ],
)
@pytest.mark.parametrize("is_special", [False, True])
def test_thoughts_of_all_kinds(
    template: str, writes: str, options: dict[str, Any], reasoning: str | None, value: int, is_special: bool
) -> None:
    llm = llm_of(template, writes, is_special)
    done = llm.generate(ASKED, constraint=NUMBER, reasoning="auto", **options)
    assert done.error is None and (done.reasoning, done.value, done.text) == (reasoning, value, writes)
    free = llm.generate(ASKED, reasoning="auto", **options)
    assert (free.reasoning, free.content, free.text) == (reasoning, "6", writes)


def test_a_thought_that_was_not_asked_for() -> None:
    """Without a constraint, or where the prompt does not end inside of a thought, all is as it was."""
    done = llm_of(OPEN, "It\n</think>\n\n7").generate(ASKED)
    assert (done.reasoning, done.content) == (None, "It\n</think>\n\n7")
    done = llm_of(FREE, "<think>\n6").generate(ASKED, constraint=NUMBER, on_length="return", max_new_tokens=4)
    assert done.reasoning is None and not done.text.startswith("<")
    text = str(TemplateArguments().written(tokenizer_of(OPEN), ASKED, "prompt"))
    done = llm_of(OPEN, "It\n</think>\n\n7").generate(text, constraint=NUMBER, on_length="return", max_new_tokens=4)
    assert done.reasoning is None
    done = llm_of(OPEN, "It\n</think>\n\n7").generate(text, constraint=NUMBER, reasoning="auto")
    assert done.value == 7


def test_an_answer_that_is_gone_on_with() -> None:
    told = {"continue_final_message": True}
    for said, reasoning in (("<think>\nSo ", "it is"), ("<think>\nSo</think>\n\n", None)):
        asked = [*ASKED, {"role": "assistant", "content": said}]
        llm = llm_of(FREE, f"{said}it is</think>7" if reasoning else f"{said}7")
        done = llm.generate(asked, constraint=NUMBER, reasoning="auto", chat_template_kwargs=told)
        assert (done.value, done.reasoning) == (7, reasoning)


# --- bounds


@pytest.mark.parametrize("most", [0, 1, 3, 9])
def test_a_thought_is_closed_after_so_many_tokens(most: int) -> None:
    llm = llm_of(OPEN, "é" * 40 + "\n</think>\n\n7")
    done = llm.generate(ASKED, constraint=NUMBER, max_reasoning_tokens=most)
    assert done.error is None and done.value == 7
    assert (
        done.reasoning is not None
        and done.reasoning == "é" * len(done.reasoning)
        and done.text.endswith("\n</think>\n\n7")
    )
    closing = len(llm.tokenizer("\n</think>\n\n")["input_ids"])
    assert most <= done.stats.num_reasoning_tokens <= most + 3 + 11
    assert len(done.token_ids) <= most + 3 + 11 + closing
    assert (done.reasoning == "") == (most == 0)
    free = llm.generate(ASKED, max_reasoning_tokens=most)
    assert (free.text, free.content) == (done.text, "7")
    short = llm_of(OPEN, "é\n</think>\n\n7").generate(ASKED, constraint=NUMBER, max_reasoning_tokens=30)
    assert short.text == "é\n</think>\n\n7"


@pytest.mark.parametrize("most", [0, 4])
def test_a_bound_that_a_text_without_a_thought_does_not_meet(most: int) -> None:
    llm = llm_of(FREE, "1234567")
    assert llm.generate(ASKED, constraint=NUMBER, max_reasoning_tokens=most).value == 1234567
    llm = llm_of(FREE, "<think>" + "a b " * 20 + "</think>12")
    done = llm.generate(ASKED, constraint=NUMBER, max_reasoning_tokens=most)
    assert done.value == 12 and done.reasoning is not None and len(done.reasoning) < 12


@few(1)
@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_the_same_with_all_options_of_speed(seed: int) -> None:
    llm = dk.LLM.load("tiny")
    tokenizer = tokenizer_of(OPEN)
    llm = LLM(llm.model, tokenizer)
    options: dict[str, Any] = {"constraint": {"type": "array", "items": NUMBER, "maxItems": 3}}
    options["max_reasoning_tokens"] = 7
    options |= {"strategy": "sample", "temperature": 1.3, "seed": seed, "max_new_tokens": 60, "on_length": "return"}
    texts = [
        llm.generate(ASKED, **options, **speed)
        for speed in (
            {},
            {"speculate": ["grammar", "prompt-lookup"]},
            {"fast_forward": "off"},
            {"masks": "always"},
            {"speculate": ["prompt-lookup"], "fast_forward": "off"},
        )
    ]
    assert len({one.text for one in texts}) == 1
    with llm.engine(batch_size=3) as engine:
        assert [engine.submit(ASKED, **options).result().text for _ in range(3)] == [texts[0].text] * 3
    other = llm.generate(ASKED, **{**options, "max_reasoning_tokens": 20})
    assert other.text != texts[0].text


def test_a_text_closes_in_time_around_a_bound() -> None:
    llm = llm_of(OPEN, "é" * 60)
    for most in (0, 2, 5, 11):
        for budget in range(most + 12, most + 22):
            options: dict[str, Any] = {"max_reasoning_tokens": most, "max_new_tokens": budget, "on_length": "close"}
            done = llm.generate(ASKED, constraint=NUMBER, **options)
            assert done.error is None and isinstance(done.value, int), (most, budget, done.text)


def test_a_thought_without_end_is_an_error_with_a_next_step() -> None:
    llm = llm_of(OPEN, "x" * 500)
    done = llm.generate(ASKED, constraint=NUMBER, max_new_tokens=12)
    assert isinstance(done.error, LengthError) and "in the thought" in done.error.cause
    assert "max_reasoning_tokens" in str(done.error.hint)
    assert done.reasoning and done.content == ""


# --- options


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"reasoning": "yes"}, OptionError, "a Thought, got"),
        ({"max_reasoning_tokens": -1}, OptionError, "at least 0"),
        ({"max_reasoning_tokens": 3, "reasoning": "none"}, UselessOptionError, "no effect"),
        ({"max_reasoning_tokens": 3}, OptionError, "has no thoughts"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        llm_of(WITHOUT, "7").generate(ASKED, constraint=NUMBER, **options)


def test_marks_of_ones_own() -> None:
    llm = llm_of(WITHOUT, "[[so]]7")
    done = llm.generate(ASKED, constraint=NUMBER, reasoning=Thought("[[", "]]"))
    assert (done.reasoning, done.value) == ("so", 7)
    with pytest.raises(OptionError, match="marks nothing"):
        Thought(" ", "]]")


# --- real templates

ENDS = {
    "Qwen3.5-4B": ("<think>\n", "\n</think>\n\n", "", "open"),
    "Qwen-Qwen3-0.6B": ("<think>\n", "\n</think>\n\n", "", "free"),
    "Qwen-QwQ-32B": ("<think>\n", "</think>", "", "over"),
    "GLM-4.6": ("<think>", "</think>\n", "", "free"),
    "GLM-5.2": ("<think>", "</think>", "", "open"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("<think>\n", "\n</think>\n", "", "open"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("<think>\n", "</think>", "", "open"),
    "deepseek-ai-DeepSeek-V3.1": ("<think>", "</think>", "", "over"),
    "ByteDance-Seed-OSS": ("<seed:think>", "</seed:think>\n", "", "free"),
    "google-gemma-4-31B-it": ("<|channel>thought\n", "<channel|>", "", "over"),
    "openai-gpt-oss-120b": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        "free",
    ),
    "Cohere2MoE": ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "open"),
    "Apriel-1.6-15b-Thinker-fixed": ("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n", "", "open"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("[THINK]", "[/THINK]", "", "free"),
    "meta-llama-Llama-3.1-8B-Instruct": None,
    "google-gemma-2-2b-it": None,
}


def state_of(thought: Thought | None, prompt: str) -> str:
    behind = None if thought is None else thought.behind(prompt)
    return "over" if behind is None else "open" if behind.is_open else "free"


@needs_corpus
@pytest.mark.slow
def test_thoughts_of_real_templates() -> None:
    some = {entry.name: entry for entry in templates()}
    for name, expected in ENDS.items():
        tokenizer = some[f"ik/{name}"].tokenizer()
        found = thought_of(tokenizer, TemplateArguments())
        if expected is None or found is None:
            assert found is expected, name
            continue
        prompt = str(TemplateArguments().written(tokenizer, ASKED, "prompt"))
        assert (found.begin, found.end, found.answer, state_of(found, prompt)) == expected, name
    num_open = 0
    for entry in some.values():
        try:
            prompt = str(TemplateArguments().written(entry.tokenizer(), ASKED, "prompt"))
        except ChatTemplateError:
            continue
        is_open = prompt.rstrip().endswith(("<think>", "reasoning steps:", "<|START_THINKING|>"))
        assert (state_of(thought_of(entry.tokenizer(), TemplateArguments()), prompt) == "open") is is_open, entry.name
        num_open += is_open
    assert num_open >= 16
