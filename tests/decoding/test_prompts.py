"""Prompts in tokens: whatever a tokenizer returns is a prompt or several, and what is none is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import decodekit as dk
from decodekit.decoding.request.prompt import each_prompt, in_lists, is_single
from decodekit.errors import OptionError
from decodekit.evaluation import Example, Task
from decodekit.llm import LLM
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import EOS, small_tokenizer

V = 160
TOKENIZER = small_tokenizer()
TEXTS = ["the other", "xab", "né the ab"]
OPTIONS: dict[str, Any] = {"max_new_tokens": 6}


def toy() -> LLM:
    return LLM(ToyLM(hashed_law(V), V, frozenset({EOS})), TOKENIZER)


LLM_ = toy()
EXPECTED = [one.token_ids for one in LLM_.generate(TEXTS, **OPTIONS)]


def padded(side: str, kind: str | None = None) -> Any:
    tokenizer = small_tokenizer()
    tokenizer.padding_side = side
    return tokenizer(TEXTS, padding=True, return_tensors=kind)


SEVERAL: dict[str, Callable[[], Any]] = {
    "lists": lambda: TOKENIZER(TEXTS),
    "lists of ids": lambda: TOKENIZER(TEXTS)["input_ids"],
    "padded left": lambda: padded("left"),
    "padded right": lambda: padded("right"),
    "tensors, padded left": lambda: padded("left", "pt"),
    "tensors, padded right": lambda: padded("right", "pt"),
    "arrays": lambda: padded("left", "np"),
    "a plain dictionary": lambda: dict(padded("left", "pt")),
    "a mask of bools": lambda: {**padded("left"), "attention_mask": padded("left", "pt")["attention_mask"].bool()},
    "one by one": lambda: [TOKENIZER(text) for text in TEXTS],
    "one by one, in tensors of one row": lambda: [TOKENIZER(text, return_tensors="pt") for text in TEXTS],
    "tensors of one dimension": lambda: [torch.tensor(TOKENIZER(text)["input_ids"]) for text in TEXTS],
    "arrays of one dimension": lambda: [np.array(TOKENIZER(text)["input_ids"]) for text in TEXTS],
    "of every kind": lambda: [TEXTS[0], TOKENIZER(TEXTS[1])["input_ids"], TOKENIZER(TEXTS[2])],
    "texts in an array": lambda: np.array(TEXTS),
    "tuples": lambda: tuple(tuple(TOKENIZER(text)["input_ids"]) for text in TEXTS),
}
SINGLE: dict[str, Callable[[], Any]] = {
    "a list": lambda: TOKENIZER(TEXTS[0])["input_ids"],
    "a tuple": lambda: tuple(TOKENIZER(TEXTS[0])["input_ids"]),
    "a tensor": lambda: torch.tensor(TOKENIZER(TEXTS[0])["input_ids"]),
    "an int32 tensor": lambda: torch.tensor(TOKENIZER(TEXTS[0])["input_ids"], dtype=torch.int32),
    "an array": lambda: np.array(TOKENIZER(TEXTS[0])["input_ids"]),
    "numbers of numpy": lambda: list(np.array(TOKENIZER(TEXTS[0])["input_ids"])),
    "what the tokenizer returns": lambda: TOKENIZER(TEXTS[0]),
    "with padding": lambda: TOKENIZER(TEXTS[0], padding="max_length", max_length=20),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_prompts(kind: str) -> None:
    given = SEVERAL[kind]
    assert [one.token_ids for one in LLM_.generate(given(), **OPTIONS)] == EXPECTED
    found = dict(LLM_.as_completed(given(), **OPTIONS))
    assert [found[i].token_ids for i in range(3)] == EXPECTED
    chunks = [chunk for chunk in LLM_.stream(given(), **OPTIONS) if chunk.completion]
    assert {chunk.index for chunk in chunks} == {0, 1, 2}
    assert LLM_.score(given()) == LLM_.score(TEXTS)
    negative = dk.Greedy(contrast=dk.Guidance(2.0, given()))
    as_texts = dk.Greedy(contrast=dk.Guidance(2.0, TEXTS))
    ours, theirs = (LLM_.generate(TEXTS, strategy=one, **OPTIONS) for one in (negative, as_texts))
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]


@pytest.mark.parametrize("kind", SINGLE)
def test_one_prompt(kind: str) -> None:
    given = SINGLE[kind]
    assert LLM_.generate(given(), **OPTIONS).token_ids == EXPECTED[0]
    assert [one.token_ids for _, one in LLM_.as_completed(given(), **OPTIONS)] == EXPECTED[:1]
    assert "".join(chunk.text for chunk in LLM_.stream(given(), **OPTIONS)) == LLM_.generate(TEXTS[0], **OPTIONS).text
    assert LLM_.score(given()) == LLM_.score(TEXTS[0])
    strategies = (dk.Greedy(contrast=dk.Guidance(2.0, one)) for one in (given(), TEXTS[0]))
    ours, theirs = (LLM_.generate(TEXTS[1], strategy=one, **OPTIONS) for one in strategies)
    assert ours.token_ids == theirs.token_ids


def test_two_dimensions_are_several_prompts() -> None:
    """One row, too, so that the result does not depend on how many there happen to be."""
    one_row = TOKENIZER(TEXTS[0], return_tensors="pt")
    for given in (one_row, one_row["input_ids"], TOKENIZER([TEXTS[0]])):
        [found] = LLM_.generate(given, **OPTIONS)
        assert found.token_ids == EXPECTED[0]
    assert LLM_.generate([], **OPTIONS) == [] and LLM_.generate(iter(TEXTS), **OPTIONS)[2].token_ids == EXPECTED[2]  # type: ignore[call-overload]
    assert dict(LLM_.as_completed("ab", **OPTIONS)).keys() == {0}  # a text is one prompt and not its letters


def test_tokens_are_taken_as_they_are() -> None:
    """No special token is added, and none is lost."""
    model = ToyLM(hashed_law(V), V, frozenset({EOS}))
    LLM(model, TOKENIZER).generate([1, 5, 1, 7], max_new_tokens=1)
    assert model.caches[0].tokens[0][:4] == [1, 5, 1, 7]


MESSAGE = {"role": "user", "content": "the"}
REFUSED: list[tuple[Any, str, str]] = [
    (MESSAGE, "one message is no conversation", "did you mean a list with this message? [{'role': 'user'"),
    ({"text": "the"}, "not a mapping of text", "tokenizer("),
    ({}, "not a mapping of nothing", "tokenizer("),
    ({"input_ids": [5], "pixel_values": 3}, "pixel_values beside input_ids cannot be read", "text alone"),
    ({"input_ids": [5], "labels": [5], "past_key_values": 1}, "labels, past_key_values beside", "text alone"),
    ({"input_ids": [5.5]}, "input_ids does not hold token ids", "integers"),
    ({"input_ids": "the"}, "input_ids does not hold token ids", "integers"),
    ({"input_ids": torch.zeros(1, 2, 3, dtype=torch.int64)}, "does not hold token ids", "integers"),
    ({"input_ids": torch.zeros(3)}, "does not hold token ids", "integers"),
    ({"input_ids": [5, 6], "attention_mask": [1]}, "other shapes", "both from one call"),
    ({"input_ids": [[5, 6], [7]], "attention_mask": [[1, 1]]}, "other shapes", "both from one call"),
    ({"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]}, "attention_mask is 0 at place 1", "zeros at either end"),
    ({"input_ids": [5, 6, 7], "attention_mask": [0, 1, 2]}, "attention_mask is 2 at place 2", "zeros at either end"),
    (torch.zeros(2, 3, dtype=torch.int64), "2 rows and no attention_mask", "list(input_ids)"),
    ({"input_ids": torch.zeros(2, 3, dtype=torch.int64)}, "2 rows and no attention_mask", "all that the tokenizer"),
    (torch.zeros(3), "not Tensor", "tokenizer("),
    (torch.tensor(3), "not Tensor", "tokenizer("),
    (b"the", "not bytes: b'the'", "tokenizer("),
    ([True, False], "not bool", "tokenizer("),
    ([5, "the"], "not int: 5", "tokenizer("),
    ([5, V], "token id 160 is outside the vocabulary of 160 ids", "this model's own tokenizer"),
    ([5, -1], "token id -1 is outside", "this model's own tokenizer"),
    (TOKENIZER([["the", "ab"]], is_split_into_words=True), "", ""),
    (5, "not int: 5", "tokenizer("),
    ([TOKENIZER(TEXTS)], "3 rows of token ids are given as one prompt", "a prompt for each row"),
    ([MESSAGE, TOKENIZER("the")], "one message is no conversation", "did you mean"),
]


@pytest.mark.parametrize(("given", "cause", "hint"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_is_no_prompt_is_refused_by_name(given: Any, cause: str, hint: str) -> None:
    llm = toy()
    if not cause:  # a control: words are one prompt for the tokenizer
        assert llm.generate(given, **OPTIONS)[0].error is None
        return
    for ask in (llm.generate, llm.stream, llm.score):
        with pytest.raises(OptionError) as caught:
            ask(given)
        assert cause in str(caught.value) and hint in str(caught.value)
    assert llm.model.calls == []  # type: ignore[attr-defined]
    try:
        errors = [one.error for _, one in llm.as_completed(given)]
    except OptionError as error:  # what holds several, as a whole
        errors = [error]
    assert any(isinstance(error, OptionError) and cause in str(error) for error in errors)
    if "outside" not in cause:  # of which vocabulary is not known before it is used
        with pytest.raises(OptionError, match="prompt"):
            dk.Guidance(2.0, given)


def test_the_place_is_named() -> None:
    with pytest.raises(OptionError) as caught:
        LLM_.generate(["the", [5, 6, 999, 7]])
    assert "prompt 1, token 2 of 4" in str(caught.value)
    with pytest.raises(OptionError) as caught:
        LLM_.generate({"input_ids": [[5, 6], [5, 6, 7]], "attention_mask": [[1, 1], [1, 0, 1]]})
    assert "prompts, row 1" in str(caught.value)
    [(_, found)] = LLM_.as_completed([[5, 999]])
    assert isinstance(found.error, OptionError) and "prompt 0, token 1 of 2" in str(found.error)


def test_a_prompt_that_is_all_padding_has_no_tokens() -> None:
    found = LLM_.generate({"input_ids": [[0, 0], [5, 6]], "attention_mask": [[0, 0], [1, 1]]}, **OPTIONS)
    assert "no tokens" in str(found[0].error) and found[1].error is None


def test_other_keys_of_tokenizers_are_no_fault() -> None:
    encoded = TOKENIZER(TEXTS[0], return_special_tokens_mask=True, return_token_type_ids=True, return_length=True)
    assert set(encoded) > {"input_ids", "attention_mask"}
    assert LLM_.generate({**encoded, "length": 9}, **OPTIONS).token_ids == EXPECTED[0]


def test_comparisons_take_them() -> None:
    """Their settings are written as JSON, and a judge reads the same tokens."""
    asked = [TOKENIZER(text) for text in TEXTS], TEXTS
    tables = []
    for prompts in asked:
        examples = tuple(Example(str(i), prompt, "the") for i, prompt in enumerate(prompts))
        task = Task("mine", examples, metrics=("perplexity",), max_new_tokens=4)
        found = dk.compare(LLM_, "greedy", task, seeds=(0,), folder=None)
        tables.append(found.summary("greedy", "mine").quality["perplexity"].value)
        assert isinstance(examples[0].prompt, list | str)
    assert tables[0] == tables[1] is not None
    other = LLM(ToyLM(hashed_law(V + 8), V + 8), TOKENIZER)
    task = Task("mine", (Example("0", [5, 6], "the"),), metrics=("perplexity",))
    with pytest.raises(OptionError, match="the judge has another vocabulary"):
        dk.compare(LLM_, "greedy", task, seeds=(0,), judge=other)
    with pytest.raises(OptionError, match="one message is no conversation"):
        Example("0", MESSAGE)


def test_values_are_plain() -> None:
    """A strategy is compared and printed, so that it holds lists and no tensors."""
    made = dk.Guidance(2.0, TOKENIZER(TEXTS[0], return_tensors="pt"))
    assert made == dk.Guidance(2.0, [TOKENIZER(TEXTS[0])["input_ids"]]) and "tensor" not in repr(made)
    assert in_lists("the") == "the" and in_lists([MESSAGE]) == [MESSAGE]
    assert each_prompt([MESSAGE]) == [[MESSAGE]] and is_single([MESSAGE]) and not is_single(TEXTS)


def test_equal_prompts_without_a_seed_are_a_warning() -> None:
    llm = toy()
    with pytest.warns(UserWarning, match=r"3 equal prompts get 3 equal texts.*seed=range") as caught:
        texts = [one.text for one in llm.generate(["ab", "the", "ab", "ab"], strategy="sample", **OPTIONS)]
    assert texts[0] == texts[2] == texts[3] and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.generate(["ab", "ab"], strategy="sample", seed=3, **OPTIONS)  # was said
        llm.generate(["ab", "ab"], strategy=dk.Sample(seed=3), **OPTIONS)
        llm.generate(["ab", "ab"], **OPTIONS)  # greedy
        llm.generate(["ab", "ab"], strategy=dk.Beam(2), **OPTIONS)
        llm.generate(["ab", "the"], strategy="sample", **OPTIONS)
        different = llm.generate(["ab"] * 4, strategy="sample", seed=range(4), **OPTIONS)
    assert len({one.text for one in different}) > 1
