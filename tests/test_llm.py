"""The front door on a toy model: prompts in, completions out, and every way to ask wrongly."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from pydantic import BaseModel, field_validator
from torch import Tensor

import decodekit as dk
from decodekit.constraints.tool_calls import ToolCall, ToolResponse
from decodekit.errors import (
    ChatTemplateError,
    ConstraintError,
    ContextLengthError,
    DecodekitError,
    LengthError,
    ModelError,
    OptionError,
    UnknownNameError,
    UselessOptionError,
    VocabularyMismatchError,
)
from decodekit.llm import LLM, Chunk, Completion, Score
from decodekit.sampling import History, LogitsProcessor, NoRepeatNGram, Stage, Temperature
from decodekit.strategy import Beam, Greedy, Sample
from decodekit.testing.toy import toy_llm
from tests.reference.generation import Law, ToyLM, hashed_law
from tests.reference.generation_tokenizer import BOS, EOS, small_tokenizer
from tests.reference.vocabularies import sentencepiece_tokenizer

V = 160
TOKENIZER = small_tokenizer()


def toy(law: Law | None = None, **options: Any) -> LLM:
    return LLM(ToyLM(law or hashed_law(V), V, frozenset({EOS}), **options), TOKENIZER)


def ids(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]  # type: ignore[no-any-return]


def writes(text: str, sharpness: float = 50.0) -> Law:
    """The law of a model that writes `text` after every prompt, then the end token."""
    tokens = [*ids(text), EOS]

    def law(prefix: Sequence[int]) -> Tensor:
        start = max((i for i, token in enumerate(prefix) if token == PROMPT_END), default=-1) + 1
        position = len(prefix) - start
        row = torch.zeros(V)
        row[tokens[min(position, len(tokens) - 1)]] = sharpness
        return row

    return law


PROMPT_END = ids("|")[0]


def test_text_of_a_prompt() -> None:
    llm = toy(writes("the né\n"))
    completion = llm.generate("Say it|")
    assert isinstance(completion, Completion)
    assert (completion.text, completion.finish_reason, completion.error) == ("the né\n", "stop", None)
    assert list(completion.token_ids) == [*ids("the né\n"), EOS]
    assert completion.value is None and completion.logprobs is None
    assert completion.stats.num_prompt_tokens == 7 and completion.stats.num_forwards == len(completion.token_ids)
    assert completion.stats.tokens_per_forward == 1.0


def test_a_list_in_gives_a_list_out_in_order() -> None:
    llm = toy()
    prompts = ["a", "abcabc", "", "the", "x" * 30, "ab"]
    completions = llm.generate(prompts, batch_size=2, max_new_tokens=7)
    assert llm.generate([], max_new_tokens=7) == []
    assert [type(c.error) for c in completions] == [type(None)] * 2 + [OptionError] + [type(None)] * 3
    for prompt, completion in zip(prompts, completions, strict=True):
        if prompt:
            assert completion.text == llm.generate(prompt, max_new_tokens=7).text
            assert llm.generate((prompt,), max_new_tokens=7)[0].token_ids == completion.token_ids


def test_generate_is_a_fold_over_stream() -> None:
    llm = toy()
    options: dict[str, Any] = {"strategy": "sample", "seed": [5, 6, 7], "max_new_tokens": 20, "stop": ["e", "ab"]}
    chunks: list[Chunk] = list(llm.stream(["a", "b", "cc"], **options))
    for index, completion in enumerate(llm.generate(["a", "b", "cc"], **options)):
        own = [chunk for chunk in chunks if chunk.index == index]
        assert "".join(chunk.text for chunk in own) == completion.text
        assert tuple(token for chunk in own for token in chunk.token_ids) == completion.token_ids
        assert [chunk.completion is not None for chunk in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].completion is not None and own[-1].completion.text == completion.text
        assert all(chunk.text or chunk.completion for chunk in own)


def test_same_seed_same_text() -> None:
    """Alone, in any row of a batch, streamed or not, in any admission order."""
    llm = toy()
    sample = dk.Sample(temperature=1.5, top_k=40)
    options: dict[str, Any] = {"strategy": sample, "max_new_tokens": 24}
    alone = llm.generate("ab the", seed=11, **options).text
    others = ["x", "yyyy", "the the the the", "a"]
    assert llm.generate(["ab the", *others], seed=11, **options)[0].text == alone
    assert llm.generate([*others, "ab the"], seed=[1, 2, 3, 4, 11], **options)[4].text == alone
    assert llm.generate([*others, "ab the"], seed=[1, 2, 3, 4, 11], batch_size=2, **options)[4].text == alone
    assert "".join(c.text for c in llm.stream([*others, "ab the"], seed=11, **options) if c.index == 4) == alone
    assert dict(llm.as_completed(iter(["x", "ab the"]), seed=iter([3, 11]), batch_size=1, **options))[1].text == alone
    assert (
        llm.generate("ab the", strategy=dk.Sample(temperature=1.5, top_k=40, seed=11), max_new_tokens=24).text == alone
    )
    assert llm.generate("ab the", seed=12, **options).text != alone
    assert llm.generate("ab the", **options).text == llm.generate("ab the", seed=0, **options).text != alone


def test_greedy_knows_no_seed() -> None:
    llm = toy()
    assert llm.generate("ab", seed=3).text == llm.generate("ab").text


def test_as_completed_takes_prompts_lazily_and_answers_in_order_of_completion() -> None:
    def law(prefix: Sequence[int]) -> Tensor:
        """As many letters as the prompt says."""
        row = torch.zeros(V)
        wanted = TOKENIZER.decode(prefix[:1])
        row[EOS if len(prefix) > int(wanted) else ids("a")[0]] = 50.0
        return row

    taken: list[str] = []

    def prompts() -> Iterator[str]:
        for text in ["9", "1", "1", "5", "1"]:
            taken.append(text)
            yield text

    order = []
    for index, completion in toy(law).as_completed(prompts(), batch_size=2):
        order.append((index, completion.text))
        assert len(taken) <= len(order) + 2
    assert sorted(order) == [(0, "a" * 9), (1, "a"), (2, "a"), (3, "a" * 5), (4, "a")]
    assert [index for index, _ in order] == [1, 2, 0, 3, 4]  # 0 and 3 end in one step


def test_stop_strings() -> None:
    llm = toy(writes("the other é end"))
    completion = llm.generate("|", stop="er é")
    assert (completion.text, completion.finish_reason) == ("the oth", "stop")
    assert completion.token_ids[: len(ids("the other "))] == tuple(ids("the other "))
    assert completion.stats.num_generated_tokens == len(completion.token_ids) < len(ids("the other é end"))
    assert llm.generate("|", stop=["zzz"]).text == llm.generate("|", stop=None).text == "the other é end"
    assert llm.generate("|", stop=["end", "é"]).text == "the other "


def test_logprobs() -> None:
    llm = toy(writes("ab", sharpness=2.0))
    plain = llm.generate("|", logprobs=True)
    assert plain.logprobs is not None and len(plain.logprobs) == len(plain.token_ids) == 2
    expected = math.log(math.exp(2) / (math.exp(2) + V - 1))
    assert [entry.logprob for entry in plain.logprobs] == pytest.approx([expected] * 2, abs=1e-6)
    assert plain.logprobs[0].alternatives == ()
    top = llm.generate("|", logprobs=4, strategy="sample", temperature=0.1).logprobs
    assert top is not None and top[0].alternatives[0] == (ids("ab")[0], pytest.approx(expected, abs=1e-6))
    assert len(top[0].alternatives) == 4
    assert llm.generate("|", logprobs=False).logprobs is None


def test_score_equals_brute_force() -> None:
    law = hashed_law(V)
    llm = toy(law)
    texts = ["the other", "ba", "né" * 9]
    scores = llm.score(texts)
    for text, score in zip(texts, scores, strict=True):
        tokens = ids(text)
        expected = [float(torch.log_softmax(law(tokens[:i]), -1)[tokens[i]]) for i in range(1, len(tokens))]
        assert score.token_ids == tuple(tokens)
        assert score.logprobs == pytest.approx(expected, abs=1e-6)
        assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)))
    assert llm.score("the other") == scores[0]
    assert isinstance(scores[0], Score)


def test_score_of_nothing() -> None:
    with pytest.raises(OptionError, match="nothing to predict"):
        toy().score(["the", "a"])
    with pytest.raises(ContextLengthError, match="10 tokens"):
        toy(context_length=8).score("abcdefghijk")


# --- constraints -----------------------------------------------------------------------------------------------------


def test_choices() -> None:
    llm = toy()
    texts = ["the first", "the second", "éa", "other"]
    for seed in range(10):
        completion = llm.generate("x", constraint=dk.Choices(texts), strategy="sample", seed=seed)
        assert completion.text in texts and completion.value == completion.text
        assert (completion.finish_reason, completion.error) == ("complete", None)
        assert EOS not in completion.token_ids


def test_a_constraint_that_may_go_on_needs_the_end_token() -> None:
    completion = toy(writes("the")).generate("|", constraint=dk.Choices(["the", "there"]))
    assert (completion.text, completion.finish_reason, completion.token_ids[-1]) == ("the", "stop", EOS)


def test_min_tokens_knows_the_end_of_the_vocabulary() -> None:
    llm = toy(writes("the"))
    least = len(ids("the")) + 4
    assert llm.generate("|").finish_reason == "stop"
    longer = llm.generate("|", min_tokens=least)
    assert len(longer.token_ids) == least + 1 and longer.token_ids.index(EOS) == least
    assert llm.generate("|", strategy=dk.Greedy(min_tokens=least)).token_ids == longer.token_ids


def test_regex_and_schema() -> None:
    llm = toy()
    for seed in range(20):
        date = llm.generate("x", constraint=dk.Regex(r"20\d\d-[01]\d"), strategy="sample", seed=seed)
        assert len(date.text) == 7 and date.text.startswith("20") and date.value == date.text
        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
            "required": ["n", "ok"],
            "additionalProperties": False,
        }
        item = llm.generate("x", constraint=schema, strategy="sample", seed=seed, max_new_tokens=60)
        if item.finish_reason == "length":
            assert isinstance(item.error, LengthError) and item.value is None
        else:
            assert item.error is None and item.value == json.loads(item.text) and set(item.value) == {"n", "ok"}


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def is_even(cls, age: int) -> int:
        if age % 2:
            raise ValueError("an odd age")
        return age


def test_python_types() -> None:
    llm = toy(writes('{"name":"the","age":4}'))
    assert llm.generate("|", constraint=Person).value == Person(name="the", age=4)


def test_a_value_that_is_refused_is_an_error() -> None:
    """A validator knows more than a schema can say; the text is kept."""
    completion = toy(writes('{"name":"the","age":5}')).generate("|", constraint=Person)
    assert isinstance(completion.error, ConstraintError) and "odd age" in str(completion.error)
    assert completion.value is None and completion.text == '{"name":"the","age":5}'
    assert completion.finish_reason in ("complete", "stop")


def test_cut_at_the_limit() -> None:
    llm = toy(writes('{"name":"the","age":4}'))
    cut = llm.generate("|", constraint=Person, max_new_tokens=8)
    assert isinstance(cut.error, LengthError) and cut.finish_reason == "length" and cut.value is None
    assert "DK101" in str(cut.error) and "max_new_tokens=8 before" in str(cut.error)
    full = toy(writes('{"name":"the","age":4}'), context_length=8).generate("|", constraint=Person).error
    assert isinstance(full, LengthError) and "context was full" in str(full) and "after 7 tokens" in str(full)
    assert '{"name":"the","age":4}'.startswith(cut.text) and cut.text
    kept = llm.generate("|", constraint=Person, max_new_tokens=8, on_length="return")
    assert (kept.text, kept.error, kept.value, kept.finish_reason) == (cut.text, None, None, "length")
    free = llm.generate("|", max_new_tokens=8)
    assert (free.error, free.finish_reason) == (None, "length")
    assert isinstance(llm.generate("|", max_new_tokens=8, on_length="error").error, LengthError)
    with pytest.raises(LengthError):
        llm.generate(["|"], constraint=Person, max_new_tokens=8, on_error="raise")


def test_the_last_token_may_complete() -> None:
    text = "the"
    llm = toy(writes(text))
    completion = llm.generate("|", constraint=dk.Choices([text]), max_new_tokens=len(ids(text)))
    assert (completion.text, completion.finish_reason, completion.error) == (text, "complete", None)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_rows_do_not_stop_the_others() -> None:
    llm = toy(writes("ab"), context_length=40)
    completions = llm.generate(["|", "", "x" * 50, "\ud800", "a|"])
    kinds = [type(c.error) for c in completions]
    assert kinds == [type(None), OptionError, ContextLengthError, OptionError, type(None)]
    assert [c.finish_reason for c in completions] == ["stop", "error", "error", "error", "stop"]
    assert "prompt 1" in str(completions[1].error)
    assert "50 tokens" in str(completions[2].error) and "40" in str(completions[2].error)
    assert "surrogate" in str(completions[3].error)
    sampled = llm.generate(["a|", "", "b|"], strategy="sample", seed=[1, 2, 3])
    alone = llm.generate("b|", strategy="sample", seed=3)
    assert sampled[2].token_ids == alone.token_ids  # a row that fails does not shift the seeds
    with pytest.raises(OptionError, match="no tokens"):
        llm.generate(["|", ""], on_error="raise")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_new_tokens": 0}, OptionError, "max_new_tokens must be"),
        ({"max_new_tokens": 2.5}, OptionError, "got 2.5"),
        ({"batch_size": 0}, OptionError, "batch_size must be"),
        ({"stop": ["a", ""]}, OptionError, "empty text"),
        ({"stop": [3]}, OptionError, "a text, a function"),
        ({"stop": 3}, OptionError, "a text, a function"),
        ({"stop": "a", "constraint": dk.Choices(["a"])}, OptionError, "cannot be combined"),
        ({"logprobs": -1}, OptionError, "logprobs must be"),
        ({"on_length": "trim"}, OptionError, "on_length must be"),
        ({"on_error": "ignore"}, OptionError, "on_error must be"),
        ({"seed": -1}, OptionError, "got -1"),
        ({"seed": True}, OptionError, "got True"),
        ({"seed": 1.5}, OptionError, "got 1.5"),
        ({"seed": [1, 2]}, OptionError, "2 seeds for 1 prompts"),
        ({"seed": ["x"]}, OptionError, "got 'x'"),
        ({"seed": 3, "strategy": dk.Sample(seed=4)}, OptionError, "which has one"),
        ({"logit_bias": {3: 1.0, V: 1.0}}, OptionError, "token id 160 is outside the vocabulary of 160 ids"),
        ({"bad_words": [[3, V + 2]]}, OptionError, "token id 162 is outside the vocabulary of 160 ids"),
        ({"sequence_bias": {(V, 3): 1.0}}, OptionError, "token id 160 is outside"),
        ({"allowed_tokens": [3, V]}, OptionError, "token id 160 is outside"),
        ({"temperature": 0.7}, UselessOptionError, "temperature=0.7 has no effect with greedy decoding."),
        ({"max_tokens": 5}, OptionError, "try max_new_tokens=5"),
        ({"strategy": "specualtive"}, UnknownNameError, "no strategy 'specualtive'"),
        ({"constraint": "[0-9]+"}, UnknownNameError, "Regex"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], error: type[DecodekitError], says: str) -> None:
    llm = toy()
    for ask in (llm.generate, llm.stream):
        with pytest.raises(error) as caught:
            ask(["x"], **options)
        assert says in str(caught.value)
    assert isinstance(llm.model, ToyLM) and llm.model.calls == []


def test_faults_are_reported_together() -> None:
    with pytest.raises(OptionError) as caught:
        toy().generate(["x", 5], strategy="greedy", top_p=0.5, max_new_tokens=-1, stop=[""], seed=[1])  # type: ignore[list-item]
    message = str(caught.value)
    assert "5 options cannot be used" in message
    assert all(
        text in message for text in ("prompt 1", "top_p=0.5 has no effect", "max_new_tokens must be", "stop", "1 seeds")
    )


def test_seeds_that_run_out() -> None:
    done = dict(toy().as_completed(["a", "b", "c"], strategy="sample", seed=iter([1, 2]), max_new_tokens=2))
    assert [type(done[i].error) for i in range(3)] == [type(None), type(None), OptionError]
    assert "only 2 seeds" in str(done[2].error)


def test_messages() -> None:
    template = (
        "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}{% endfor %}{% if add_generation_prompt %}|{% endif %}"
    )
    tokenizer = small_tokenizer(chat_template=template)
    model = ToyLM(writes("ab"), V, frozenset({EOS}))
    llm = LLM(model, tokenizer)
    conversation = [{"role": "user", "content": "the"}]
    assert llm.generate(conversation).text == "ab"
    assert model.calls[0] == [1 + len(ids("user:the|"))]
    assert model.caches[0].tokens[0][0] == BOS
    assert [c.text for c in llm.generate([conversation, conversation, "|"])] == ["ab"] * 3


def test_messages_without_a_template() -> None:
    completion = toy().generate([{"role": "user", "content": "the"}])
    assert isinstance(completion.error, ChatTemplateError) and "DK302" in str(completion.error)
    refusing = small_tokenizer(chat_template="{{ raise_exception('no system role') }}")
    error = LLM(ToyLM(hashed_law(V), V), refusing).generate([{"role": "system", "content": "x"}]).error
    assert isinstance(error, ChatTemplateError) and "no system role" in str(error)


def test_a_tokenizer_of_another_model() -> None:
    with pytest.raises(VocabularyMismatchError, match="137"):
        LLM(ToyLM(hashed_law(40), 40), TOKENIZER)


def test_what_is_no_model() -> None:
    with pytest.raises(ModelError):
        LLM(torch.nn.Linear(2, 2), TOKENIZER)


def test_the_function() -> None:
    model = ToyLM(writes("ab"), V, frozenset({EOS}))
    assert dk.generate(model, TOKENIZER, "|").text == "ab"
    assert [c.text for c in dk.generate(model, TOKENIZER, ["|", "|"], strategy="greedy", max_new_tokens=1)] == [
        "ab"
    ] * 2


@pytest.mark.parametrize("kind", ["mistral-common", "bare"])
def test_tokenizers_of_other_families(kind: str) -> None:
    """A tokenizer of mistral-common, with its beginning token, and one of `tokenizers`."""
    tokenizer: Any = TOKENIZER.backend_tokenizer
    prompt = ids("né the")
    if kind == "mistral-common":
        tokenizer = sentencepiece_tokenizer()
        prompt = tokenizer.encode("né the", bos=True, eos=False)
    model = ToyLM(lambda prefix: torch.zeros(32_768), 32_768)
    llm = LLM(model, tokenizer)
    assert llm.generate("né the", max_new_tokens=2).error is None
    assert model.caches[0].tokens[0][: len(prompt)] == prompt


CALLING = small_tokenizer()
CALLING.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
CALLS = CALLING.convert_tokens_to_ids("[TOOL_CALLS]")


def calling(law: Law) -> LLM:
    return LLM(ToyLM(law, V, frozenset({EOS})), CALLING)


def writes_tokens(tokens: list[int]) -> Law:
    """The law of a model that writes these tokens after every prompt, then the end token."""

    def law(prefix: Sequence[int]) -> Tensor:
        start = max((i for i, token in enumerate(prefix) if token == PROMPT_END), default=-1) + 1
        row = torch.zeros(V)
        row[[*tokens, EOS][min(len(prefix) - start, len(tokens))]] = 50.0
        return row

    return law


@pytest.mark.parametrize("special_tokens", [True, None])
def test_tool_calls_with_special_tokens(special_tokens: bool | None) -> None:
    text = '[{"name": "now", "arguments": {"zone": "a"}}]'
    tools = [{"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}]
    constraint = dk.tools(tools, "mistral", special_tokens=special_tokens)
    llm = calling(writes_tokens([*ids("ab"), CALLS, *ids(text)]))
    completion = llm.generate("Now?|", constraint=constraint)
    assert completion.error is None and completion.finish_reason == "complete"
    assert completion.value == ToolResponse("ab", (ToolCall("now", {"zone": "a"}),))
    assert completion.text == f"ab[TOOL_CALLS]{text}" and CALLS in completion.token_ids
    chunks = list(llm.stream("Now?|", constraint=constraint))
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert all(chunk.text or chunk.completion for chunk in chunks)
    # A guard sees the same text; without a constraint that asked for it, the token is no text.
    guarded = dk.Guarded(constraint, lambda answer: answer == completion.value or f"not {answer}")
    assert llm.generate("Now?|", constraint=guarded) == replace(completion, stats=ANY)
    assert llm.generate("Now?|").text == f"ab{text}"


@pytest.mark.parametrize("fast_forward", ["off", "exact", "canonical"])
def test_tool_calls_end_in_time_with_special_tokens(fast_forward: str) -> None:
    """A model that would go on for ever, or that writes at random."""
    constraint = dk.tools([{"name": "now"}], "mistral", "required", special_tokens=True)
    for law in (writes_tokens([*ids("a")] * 200), hashed_law(V)):
        for seed in range(3):
            completion = calling(law).generate(
                "Now?|", constraint=constraint, on_length="close", max_new_tokens=60, strategy="sample", seed=seed,
                fast_forward=fast_forward,
            )  # fmt: skip
            assert completion.error is None and completion.token_ids[0] == CALLS
            assert completion.text.startswith("[TOOL_CALLS]") and completion.value == constraint.parse(completion.text)
            assert {call.name for call in completion.value.calls} == {"now"}


@dataclass(frozen=True, repr=False)
class ForbidsAnything(LogitsProcessor):
    stage = Stage.BIAS

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        return logits


def test_closing_is_refused_beside_what_may_forbid_any_token() -> None:
    for processor in (NoRepeatNGram(2), ForbidsAnything()):
        strategy = Temperature(1.0) | processor
        name = re.escape(repr(processor))
        with pytest.raises(OptionError, match=rf'on_length="close" and {name} cannot be combined(.|\n)*may_forbid'):
            toy().generate("|", strategy=strategy, constraint=dk.Regex("[0-9]{3}"), on_length="close")
        assert toy().generate("|", strategy=strategy, constraint=dk.Regex("[0-9]{3}"), on_length="return").value


def test_closing_is_refused_where_no_text_has_tokens_that_may_come() -> None:
    zeros = [token for token, data in enumerate(toy().vocabulary.token_bytes) if data and b"0" in data]
    options: dict[str, Any] = {
        "strategy": "sample",
        "logit_bias": dict.fromkeys(zeros, -math.inf),
        "on_length": "close",
    }
    with pytest.raises(OptionError, match=r"no text of the constraint was found without what LogitBias\("):
        toy().generate("|", constraint=dk.Regex("[1-9]*0"), **options)
    closed = toy().generate("|", constraint=dk.Regex("[0-9]{2}(12)*"), max_new_tokens=5, **options)
    assert closed.error is None and "0" not in closed.text
    # By the bytes that remain a longer text is needed, so that the least budget is another one.
    with pytest.raises(OptionError, match="it needs 3"):
        toy().generate("|", constraint=dk.Regex("0|123"), max_new_tokens=2, **options)
    assert toy().generate("|", constraint=dk.Regex("0|123"), max_new_tokens=3, **options).text == "123"


DIGITS = dk.Regex("[0-9]+")


@pytest.mark.parametrize("strategy", [Greedy(), Sample(), Beam(2)], ids=repr)
def test_a_text_that_was_cut_where_it_may_end_has_its_value(strategy: Any) -> None:
    llm = toy(writes("55555555"))
    kept = llm.generate("|", strategy=strategy, constraint=DIGITS, max_new_tokens=3, on_length="return")
    assert kept.finish_reason == "length" and kept.error is None and kept.value == kept.text and kept.text.isdigit()
    cut = llm.generate("|", strategy=strategy, constraint=DIGITS, max_new_tokens=3)
    assert cut.finish_reason == "length" and cut.value == cut.text
    assert isinstance(cut.error, LengthError) and "before the constraint was satisfied" not in str(cut.error)
    assert "as it is it satisfies the constraint" in str(cut.error)
    closed = llm.generate("|", strategy=Greedy(), constraint=DIGITS, max_new_tokens=3, on_length="close")
    assert closed.finish_reason == "complete" and closed.error is None and closed.value == "555"


def test_a_text_that_was_cut_before_it_may_end_has_none() -> None:
    cut = toy(writes("55555555")).generate("|", constraint=dk.Regex("[0-9]+x"), max_new_tokens=3)
    assert cut.value is None and "before the constraint was satisfied" in str(cut.error)
    guarded = dk.Guarded(DIGITS, lambda text: len(text) == 2)
    cut = toy(writes("55555555")).generate("|", constraint=guarded, max_new_tokens=3, on_length="return")
    assert cut.finish_reason == "length" and cut.value is None


def test_special_tokens_that_the_tokenizer_does_not_have() -> None:
    constraint = dk.tools([{"name": "now"}], "mistral", "required", special_tokens=True)
    with pytest.raises(ConstraintError, match=r"no special token '\[TOOL_CALLS\]'"):
        toy().generate("Now?|", constraint=constraint)
    either = dk.tools([{"name": "now"}], "mistral", "required")
    completion = toy().generate("Now?|", constraint=either, on_length="close")
    assert completion.error is None and completion.text.startswith("[TOOL_CALLS]")


def test_vocabularies_are_read_once_per_tokenizer() -> None:
    tokenizer = small_tokenizer()
    first = LLM(ToyLM(hashed_law(V), V), tokenizer).vocabulary
    assert LLM(ToyLM(hashed_law(V), V), tokenizer).vocabulary is first
    wider = LLM(ToyLM(hashed_law(V), V + 8), tokenizer).vocabulary
    assert wider.size == V + 8
    tokenizer.add_tokens(["<new>"])
    assert len(ids("a")) == 1 and LLM(ToyLM(hashed_law(V), V), tokenizer).vocabulary != first


def test_threads_share_a_model() -> None:
    llm = toy()
    prompts = [f"the {i}" for i in range(8)]
    constraint = dk.Choices(["the other", "ab", "abab", "x" * 9])
    expected = [c.text for c in llm.generate(prompts, constraint=constraint, strategy="sample", seed=3)]
    found: dict[int, list[str]] = {}

    def work(i: int) -> None:
        found[i] = [c.text for c in llm.generate(prompts, constraint=constraint, strategy="sample", seed=3)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), expected)


def test_repr() -> None:
    assert repr(toy()) == "LLM('toy', torch.float32, cpu)"


def test_prompts_that_are_none() -> None:
    with pytest.raises(OptionError, match="a prompt is a text, a list of messages, or token ids, not int: 5"):
        toy().generate(5)  # type: ignore[call-overload]


def test_faults_of_the_strategy_stand_beside_the_others() -> None:
    with pytest.raises(OptionError, match="4 options cannot be used") as caught:
        toy().generate("x", strategy="sample", temperature=-1, top_p=3, top_q=1, max_new_tokens=0)
    assert len(caught.value.faults) == 4
    assert str(caught.value).count("cannot be used") == 1


def test_tokens_that_end_a_text() -> None:
    """The text is that without the option up to the first such token; with a constraint the option is refused."""
    llm = toy_llm()
    options: dict[str, Any] = {"strategy": "sample", "seed": 3, "max_new_tokens": 24}
    whole = llm.generate("abc, ", **options)
    for place in (0, len(whole.token_ids) // 2, -1):
        end = whole.token_ids[place]
        first = whole.token_ids.index(end)
        cut = llm.generate("abc, ", stop_token_ids=[end], **options)
        assert (cut.finish_reason, cut.token_ids) == ("stop", whole.token_ids[: first + 1])
        assert cut.text == llm.vocabulary.decode(whole.token_ids[:first]).decode("utf-8", "replace")
    end = whole.token_ids[0]
    later = llm.generate("abc, ", stop_token_ids=[end], min_tokens=4, **options)
    assert len(later.token_ids) >= 4 and end not in later.token_ids[:3]
    for wrong in ([-1], [10**6], ["a"], 3, [True]):
        with pytest.raises(OptionError, match="stop_token_ids"):
            llm.generate("abc", stop_token_ids=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="stop_token_ids and a constraint"):
        llm.generate("abc", stop_token_ids=[1], constraint=dk.Regex("a+"))
