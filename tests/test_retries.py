"""A value that a validator refuses is asked for again, with the reason in the prompt."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from pydantic import BaseModel, field_validator, model_validator
from torch import Tensor

import decodekit as dk
from decodekit.errors import GuardError, InvalidValueError, JobSettingsError, OptionError, UselessOptionError
from decodekit.llm import front
from decodekit.llm.retries import corrected, reason_of
from tests.commands import Result
from tests.reference.generation import ToyLM
from tests.reference.generation_tokenizer import EOS, small_tokenizer

V = 160
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:"
TOKENIZER = small_tokenizer(chat_template=TEMPLATE)


class Paid(BaseModel):
    total: int

    @field_validator("total")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value


class Sum(BaseModel):
    a: int

    @model_validator(mode="after")
    def is_four(self) -> Sum:
        if self.a != 4:
            raise ValueError("a is not four")
        return self


def improving(field: str = "total") -> dk.LLM:
    """Writes 1, and one more for each refusal that it has read."""

    def law(prefix: Sequence[int]) -> Tensor:
        said = TOKENIZER.decode(list(prefix))
        answer = f'{{"{field}":{1 + said.count("That is refused")}}}'
        begun = next(n for n in range(len(answer), -1, -1) if said.endswith(answer[:n]))
        row = torch.zeros(V)
        row[TOKENIZER(answer[begun])["input_ids"][0] if begun < len(answer) else EOS] = 50.0
        return row

    return dk.LLM(ToyLM(law, V, frozenset({EOS})), TOKENIZER)


PROMPTS: list[Any] = ["the total:", [{"role": "user", "content": "the total"}], TOKENIZER("the total:")["input_ids"]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "messages", "tokens"])
def test_the_reason_is_read_by_the_next_attempt(prompt: Any) -> None:
    llm = improving()
    refused = llm.generate(prompt, constraint=Paid)
    assert isinstance(refused.error, InvalidValueError) and "DK207" in str(refused.error) and not refused.attempts
    done = llm.generate(prompt, constraint=Paid, max_retries=2)
    assert done.error is None and done.value == Paid(total=2) and done.stats.num_retries == 1
    [attempt] = done.attempts
    assert attempt.text == '{"total":1}' and isinstance(attempt.error, InvalidValueError)
    assert reason_of(attempt) == "total: Value error, 1 is odd"
    assert done.stats.num_prompt_tokens > attempt.stats.num_prompt_tokens
    if isinstance(prompt, str):
        expected = f"{prompt}{attempt.text}\n\nThat is refused: {reason_of(attempt)}\nCorrected:\n"
        assert corrected(prompt, attempt.text, reason_of(attempt), TOKENIZER) == expected
        assert done.stats.num_prompt_tokens == len(TOKENIZER(expected)["input_ids"])


def test_attempts_are_bounded_and_add_up() -> None:
    llm = improving("a")
    done = llm.generate("x", constraint=Sum, max_retries=2)
    assert isinstance(done.error, InvalidValueError) and done.stats.num_retries == 2
    assert [attempt.text for attempt in done.attempts] == ['{"a":1}', '{"a":2}'] and done.text == '{"a":3}'
    assert llm.generate("x", constraint=Sum, max_retries=3).value == Sum(a=4)
    with pytest.raises(InvalidValueError, match="a is not four") as raised:
        llm.generate("x", constraint=Sum, max_retries=1, on_error="raise")
    assert raised.value.at is not None and raised.value.at.startswith("prompt 0")


def test_a_guard_that_refuses_every_text_is_asked_again() -> None:
    checked = dk.Guarded(dk.Regex("a1|b2"), lambda value: value != "a1" or "one is too few")

    def law(prefix: Sequence[int]) -> Tensor:
        said = TOKENIZER.decode(list(prefix))
        row = torch.zeros(V)
        row[TOKENIZER("b" if "one is too few" in said else "a")["input_ids"][0]] = 50.0
        return row

    llm = dk.LLM(ToyLM(law, V, frozenset({EOS})), TOKENIZER)
    alone = llm.generate("x", constraint=checked, max_rollbacks=0)
    assert isinstance(alone.error, GuardError)
    done = llm.generate("x", constraint=checked, max_rollbacks=0, max_retries=1)
    assert done.value == "b2" and reason_of(done.attempts[0]) == "one is too few"


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_every_prompt_ends_once_whatever_the_batch(batch_size: int) -> None:
    llm, prompts = improving("a"), [f"x{number}" + " That is refused" * (number % 4) for number in range(9)]
    options: Any = {"constraint": Sum, "max_retries": 2, "batch_size": batch_size}
    together = llm.generate(prompts, **options)
    alone = [llm.generate(prompt, **options) for prompt in prompts]
    assert [(c.text, c.stats.num_retries) for c in together] == [(c.text, c.stats.num_retries) for c in alone]
    assert {c.stats.num_retries for c in together} == {0, 1, 2} and len({c.error is None for c in together}) == 2
    done = list(llm.as_completed(iter(prompts), **options))
    assert sorted(index for index, _ in done) == list(range(9))
    chunks = list(llm.stream(prompts, **options))
    assert sorted(chunk.index for chunk in chunks) == list(range(9))  # each as a whole
    failed = [(index, c.error.at) for index, c in done if c.error is not None]
    assert all(at is not None and at.startswith(f"prompt {index},") for index, at in failed) and failed


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_retries": -1, "constraint": Paid}, OptionError),
        ({"max_retries": True, "constraint": Paid}, OptionError),
        ({"max_retries": 1}, UselessOptionError),
        ({"max_retries": 1, "constraint": Paid, "strategy": "sample", "num_return_sequences": 2}, OptionError),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="max_retries"):
        improving().generate("x", **options)


def test_a_request_of_an_engine_is_not_tried_again() -> None:
    with improving().engine() as engine, pytest.raises(UselessOptionError, match="max_retries"):
        engine.submit("x", constraint=Paid, max_retries=1)


def test_a_job_keeps_what_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("picky_form.py").write_text(
        "from pydantic import BaseModel, field_validator\n\n\nclass Form(BaseModel):\n    number: str\n\n"
        "    @field_validator('number')\n    @classmethod\n    def check(cls, value):\n"
        "        raise ValueError('never good')\n"
    )
    Path("a.txt").write_text("Invoice A-17, total 40.20 EUR.")
    done = Result("extract", "a.txt", "--schema", "picky_form.py:Form", "-o", "out", "--max-retries", "2")
    assert done.code == 7, done.err
    assert "`decodekit retry out --max-retries 2` runs them again, and asks again with the reason" in done.err
    [row] = [json.loads(line) for line in Path("out/failed.jsonl").read_text().splitlines()]
    assert row["code"] == "DK207" and len(row["refused"]) == 2
    assert all("never good" in one["message"] for one in row["refused"])


def test_a_job_of_python_asks_again_and_tells_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `decodekit extract` does with `--max-retries` and `--chat-template-kwargs`."""
    monkeypatch.setattr(TOKENIZER, "chat_template", "{% if formal %}formal {% endif %}" + TEMPLATE)
    llm, read = improving(), list[str]()
    encode = front.encode

    def noted(*given: Any) -> list[int]:
        read.append(TOKENIZER.decode(tokens := encode(*given)))
        return tokens

    monkeypatch.setattr(front, "encode", noted)
    variables: Any = MappingProxyType({"formal": True})
    options: Any = {"prompt": "{text}", "folder": tmp_path / "out", "chat_template_kwargs": variables}
    [row] = dk.extract(["the total"], Paid, llm, **options)
    assert isinstance(row.error, InvalidValueError) and read[0].startswith("formal user:the total")
    with pytest.raises(JobSettingsError, match="strategy was"):
        dk.extract(["the total"], Paid, llm, **options, max_retries=1)
    [row] = dk.extract(["the total"], Paid, llm, **options, max_retries=1, fresh=True)
    assert row.value == {"total": 2} and sum("That is refused" in one for one in read) == 1
    with pytest.raises(JobSettingsError, match="chat_template_kwargs"):
        dk.extract(["the total"], Paid, llm, **{**options, "chat_template_kwargs": {"formal": False}}, max_retries=1)


def test_what_a_validator_refuses_keeps_no_model() -> None:
    """Pydantic's errors hold those of validators, and with them frames, out of sight of the collector."""
    llm = improving()
    refused, model = llm.generate("x", constraint=Paid, max_new_tokens=40), weakref.ref(llm)
    assert isinstance(refused.error, InvalidValueError) and "1 is odd" in str(refused.error)
    del llm
    gc.collect()
    assert model() is None
