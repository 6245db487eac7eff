"""The templates made for tests, and the oracle over real ones: what they write is known by hand."""

from __future__ import annotations

import pytest

from tests.chat.cases import CALLS, THOUGHT, Call, Case, Form, Rendered, expected, form_of
from tests.chat.made_templates import MADE, PARTS, tokenizer_of

_PARIS = Case("", (Call("get_weather", {"city": "Paris", "days": 3}),))


@pytest.mark.parametrize("name", MADE)
def test_a_call_is_written_as_by_hand(name: str) -> None:
    made = MADE[name]
    rendered = expected(tokenizer_of(made.template), _PARIS)
    assert isinstance(rendered, Rendered), rendered
    assert rendered.answer == made.call
    assert rendered.text == rendered.text[: rendered.answer_at] + made.call + rendered.end


@pytest.mark.parametrize("name", MADE)
def test_every_case_is_written(name: str) -> None:
    """Apart from what the template refuses."""
    made = MADE[name]
    tokenizer = tokenizer_of(made.template, is_special=True)
    form = form_of(tokenizer)
    assert isinstance(form, Form)
    for case in CALLS.values():
        rendered = expected(tokenizer, case, form)
        is_lost = (made.max_calls or 9) < len(case.calls) or (
            name == "json alone" and case.content != "" and case.calls != ()
        )
        assert isinstance(rendered, str) is is_lost, (case.name, rendered)


def test_thoughts() -> None:
    writing = [
        name
        for name, made in MADE.items()
        if isinstance(expected(tokenizer_of(made.template), CALLS["one"], thought=THOUGHT), Rendered)
    ]
    assert writing == ["thought in the prompt", "thought by option", "thought of the model"]
    for name, response in (
        ("thought in the prompt", f"{THOUGHT}\n</think>\n\n"),
        ("thought of the model", f"<think>\n{THOUGHT}\n</think>\n\n"),
    ):
        rendered = expected(tokenizer_of(MADE[name].template), CALLS["one"], thought=THOUGHT)
        assert isinstance(rendered, Rendered) and rendered.response == response + rendered.answer


def test_parts_alone() -> None:
    """A template without tools writes no call; texts as lists of parts are what this one reads."""
    tokenizer = tokenizer_of(PARTS)
    assert expected(tokenizer, CALLS["one"]) == "'get_weather' is lost"
    assert isinstance(expected(tokenizer, Case("", (), "Let me see.")), str)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert tokenizer.apply_chat_template(parts, tokenize=False) == "<|user|>\nHello<|end|>\n"
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False) == "<|user|>\n<|end|>\n"
    )
