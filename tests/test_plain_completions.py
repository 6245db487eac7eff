"""Completions in plain types and as tables; several texts by the name `n`; stop strings that are kept."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

import decodekit as dk
from decodekit.errors import OptionError, UselessOptionError
from tests.test_llm import toy, writes


class Invoice(BaseModel):
    number: str
    total: float


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def test_a_completion_in_plain_types(llm: dk.LLM) -> None:
    done = llm.generate("Invoice A-17, total 40.20 EUR.", constraint=Invoice, logprobs=2)
    record = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert record["text"] == done.text and tuple(record["token_ids"]) == done.token_ids
    assert record["value"] == {"number": "A-17", "total": 40.2} and record["error"] is None
    assert len(record["logprobs"]) == len(done.token_ids)
    assert record["stats"]["tokens_per_forward"] == done.stats.tokens_per_forward
    cut = llm.generate("Invoice", constraint=Invoice, max_new_tokens=2).to_dict()
    assert cut["error"]["code"] == "DK101" and cut["error"]["hint"] and cut["value"] is None


def test_a_table(llm: dk.LLM) -> None:
    done = llm.generate(["Dear", "To"], strategy="sample", n=3, max_new_tokens=4)
    table = dk.to_pandas(done)
    assert list(table["index"]) == [0, 0, 0, 1, 1, 1] and list(table["sample"]) == [0, 1, 2] * 2
    assert list(table["text"]) == [text.text for one in done for text in (one, *one.others)]
    assert set(table["num_generated_tokens"]) == {4} and table["error"].isna().all()
    assert (
        list(table["prompt"]) == ["Dear"] * 3 + ["To"] * 3
        and set(table["seed"]) == {0}
        and table["logprob"].isna().all()
    )
    assert len(dk.to_pandas(done[0])) == 3 and len(dk.to_pandas([])) == 0
    with pytest.raises(OptionError, match="is no completion"):
        dk.to_pandas(["text"])  # type: ignore[list-item]


def test_prompts_seeds_and_log_probabilities_in_a_table(llm: dk.LLM) -> None:
    messages = [{"role": "user", "content": "Dear"}]
    done = llm.generate(["Dear", [5, 6]], strategy="sample", seed=[7, 9], logprobs=True, max_new_tokens=4)
    table = dk.to_pandas(done)
    assert list(table["prompt"]) == ["Dear", [5, 6]] and list(table["seed"]) == [7, 9]
    for cells, one in zip(table["logprobs"], done, strict=True):
        assert one.logprobs is not None and cells == [token.logprob for token in one.logprobs]
    assert list(table["logprob"]) == [math.fsum(cells) for cells in table["logprobs"]]
    assert replace(done[0], prompt=messages, seed=3) == done[0]  # what was asked is no part of what came


def test_n_is_the_number_of_texts(llm: dk.LLM) -> None:
    for strategy in ("sample", "mirostat"):
        ours = llm.generate("Dear", strategy=strategy, num_return_sequences=2, max_new_tokens=4)
        assert [ours.text, *(one.text for one in ours.others)] == [
            one.text
            for done in [llm.generate("Dear", strategy=strategy, n=2, max_new_tokens=4)]
            for one in (done, *done.others)
        ]
    assert len(llm.generate("Dear", strategy="beam", num_beams=3, n=2, max_new_tokens=4).others) == 1
    with pytest.raises(OptionError, match="another name"):
        llm.generate("Dear", strategy="sample", n=2, num_return_sequences=2)
    with pytest.raises(OptionError, match="num_return_sequences=3"):
        llm.generate("Dear", n=3)  # of greedy decoding there is one text


@pytest.mark.parametrize("stop", [["b"], ["ab", "b"], ["bc"], ["abcd"], ["x"]])
def test_a_stop_string_that_is_kept(stop: list[str]) -> None:
    llm = toy(writes("abcabd"))
    without, kept = (llm.generate("|", stop=stop, include_stop=include) for include in (False, True))
    assert kept.token_ids == without.token_ids and kept.finish_reason == without.finish_reason
    ended = [one for one in stop if one in "abcabd"]
    assert kept.text.startswith(without.text) and (kept.text[len(without.text) :] in ended if ended else True)
    assert "".join(chunk.text for chunk in llm.stream("|", stop=stop, include_stop=True)) == kept.text
    assert (kept.text != without.text) == bool(ended)


@pytest.mark.parametrize("options", [{"include_stop": True}, {"include_stop": 1, "stop": "a"}])
def test_keeping_what_is_not_there(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="include_stop") as raised:
        toy().generate("|", **options)
    assert isinstance(raised.value, UselessOptionError) == ("stop" not in options)
