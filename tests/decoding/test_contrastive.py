"""Contrastive search beside a twin that runs the model anew for every candidate, and through the front door."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.constraints import compile
from decodekit.decoding.loop.batch import PREFILL_TOKENS
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result, Update
from decodekit.decoding.search.contrastive_search import MAX_LAG, TopCandidates, likeliest, most_contrastive
from decodekit.errors import DeadEndError, ModelError, OptionError
from decodekit.llm import LLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.sampling import LogitBias, RepetitionPenalty, Temperature
from decodekit.strategy import ContrastiveSearch, Greedy
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.contrast import contrastive_search
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few, thinned

SEVERAL = ["llama", "gemma2", "mistral", "gpt2", "opt", "gpt_oss", "falcon", "lfm2"]
PROMPTS = [tokens(i, length) for i, length in enumerate((3, 17, 9, 1))]
NO_TEXT = Vocabulary([None] * VOCAB_SIZE, ())
NUM_TOKENS = 14


@functools.cache
def model(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


@functools.cache
def llm(name: str = "llama") -> LLM:
    return LLM(model(name), small_tokenizer())


def updates(
    lm: Any, search: ContrastiveSearch, requests: Sequence[Any], num_prompts: int, **options: Any
) -> list[Update]:
    options = {"vocabulary": NO_TEXT, "max_new_tokens": NUM_TOKENS, **options}
    settings = Settings(pipeline=search.pipeline, select=search.select, **options)
    return list(search.decode(lm, settings, num_prompts, requests))


def decode(lm: Any, search: ContrastiveSearch, prompts: Any, num_prompts: int, **options: Any) -> list[Result]:
    found = updates(lm, search, [Request(prompt) for prompt in prompts], num_prompts, **options)
    done = {update.index: update.result for update in found if update.result is not None}
    for index, result in done.items():
        assert result.token_ids == sum((one.token_ids for one in found if one.index == index), ())
    return [done[index] for index in range(len(prompts))]


def token_ids(*args: Any, **options: Any) -> list[tuple[int, ...]]:
    return [result.token_ids for result in decode(*args, **options)]


@functools.cache
def twin(name: str, number: int, top_k: int, alpha: float) -> tuple[int, ...]:
    return tuple(contrastive_search(model(name).model, PROMPTS[number], top_k, alpha, NUM_TOKENS))


def greedy(name: str) -> list[tuple[int, ...]]:
    settings = Settings(NO_TEXT, Greedy().pipeline, Greedy().select, max_new_tokens=NUM_TOKENS)
    requests = [Request(prompt) for prompt in PROMPTS]
    done = {one.index: one.result for one in decode_texts(model(name), settings, 4, requests) if one.result is not None}
    return [done[index].token_ids for index in range(len(PROMPTS))]


@few(1)
@thinned("name", SEVERAL, keep=["llama", "falcon"])
def test_tokens_equal_those_of_the_slow_twin(name: str) -> None:
    search = ContrastiveSearch(4, 0.6)
    expected = [twin(name, number, 4, 0.6) for number in range(4)]
    for num_prompts in (1, 3, 4):
        assert token_ids(model(name), search, PROMPTS, num_prompts) == expected
    assert expected != greedy(name)  # negative control: the comparison changes something


@few(1)
@thinned("options", [(2, 0.9), (8, 0.3), (5, 1.0), (24, 0.5)], keep=[(2, 0.9), (5, 1.0)])
def test_other_options_equal_the_slow_twin(options: tuple[int, float]) -> None:
    top_k, alpha = options
    expected = [twin("llama", number, top_k, alpha) for number in (0, 2)]
    prompts = [PROMPTS[0], PROMPTS[2]]
    assert token_ids(model("llama"), ContrastiveSearch(top_k, alpha), prompts, 2) == expected


@pytest.mark.parametrize("options", [(1, 0.6), (4, 0.0)])
def test_without_a_comparison_it_is_greedy_decoding(options: tuple[int, float]) -> None:
    for name in ("llama", "gpt2"):
        found = decode(model(name), ContrastiveSearch(*options), PROMPTS, 4)
        assert [result.token_ids for result in found] == greedy(name)
        assert {result.stats.num_forwards for result in found} == {NUM_TOKENS}  # no candidate was read


def test_processors_come_before_the_candidates() -> None:
    def penalised(logits: torch.Tensor, prefix: list[int]) -> torch.Tensor:
        seen = torch.zeros(1, VOCAB_SIZE, dtype=torch.bool)
        seen[0, prefix] = True
        return torch.where(seen[0], torch.where(logits > 0, logits / 1.5, logits * 1.5), logits) / 2.0

    search = ContrastiveSearch(4, 0.6, processors=RepetitionPenalty(1.5) | Temperature(2.0))
    expected = [tuple(contrastive_search(model("llama").model, p, 4, 0.6, NUM_TOKENS, penalised)) for p in PROMPTS]
    assert token_ids(model("llama"), search, PROMPTS, 3) == expected
    assert expected != [twin("llama", number, 4, 0.6) for number in range(4)]


CONSTRAINTS = {
    "choices": dk.Choices(["the first", "the other", "ab-c", "ab-d", "né"]),
    "forced runs": dk.Regex(r"(name|né): (the other|ab-[0-9]{2}), x (end|other)"),
    "words": dk.Regex(r"[a-z]{1,3}( [a-z]{1,3}){2}"),
}


@few(1)
@pytest.mark.parametrize("kind", CONSTRAINTS)
@thinned("name", ["llama", "falcon"], keep=["llama"])
def test_constraints_equal_the_slow_twin(name: str, kind: str) -> None:
    """Masks before the candidates, fewer candidates than k, forced tokens that nobody is asked about."""
    constraint = CONSTRAINTS[kind]
    vocabulary = llm(name).vocabulary
    prompts = ["the né other", "a", "x y z " * 3]
    expected = []
    for prompt in prompts:
        ids = small_tokenizer()(prompt)["input_ids"]
        matcher = compile(constraint, vocabulary).matcher()
        expected.append(tuple(contrastive_search(model(name).model, ids, 3, 0.6, 40, matcher=matcher)))
    for options in ({}, {"fast_forward": "off"}, {"batch_size": 2}, {"batch_size": 1}, {"logprobs": True}):
        found = llm(name).generate(
            prompts, strategy=dk.ContrastiveSearch(3), constraint=constraint, max_new_tokens=40, **options
        )
        assert [one.token_ids for one in found] == expected, options
        for one in found:
            assert one.error is None and one.finish_reason in ("complete", "stop")
            assert one.logprobs is None or len(one.logprobs) == len(one.token_ids)
    forwards = [
        sum(
            one.stats.num_forwards
            for one in llm(name).generate(
                prompts, strategy=dk.ContrastiveSearch(3), constraint=constraint, fast_forward=mode
            )
        )
        for mode in ("exact", "off")
    ]
    assert forwards[0] <= forwards[1] and (kind != "forced runs" or forwards[0] < forwards[1])


def test_rows_that_fall_behind_catch_up() -> None:
    """Two candidates for long, which leaves rows behind, then eight: those become copies, or read what they lack."""
    constraint = dk.Regex(f"(a|b){{{2 * MAX_LAG}}}[a-h]{{2}}")
    short = dk.Regex(f"(a|b){{{MAX_LAG // 2}}}[a-h]{{2}}")
    ids = small_tokenizer()("the")["input_ids"]
    for one in (constraint, short):
        matcher = compile(one, llm().vocabulary).matcher()
        expected = contrastive_search(model("llama").model, ids, 8, 0.6, 60, matcher=matcher)
        found = llm().generate("the", strategy=dk.ContrastiveSearch(8), constraint=one, max_new_tokens=60)
        assert list(found.token_ids) == expected


def test_what_is_read_and_copied() -> None:
    """A prompt is read once and copied once; then a pass of k candidates for each token, without copies."""
    lm = Counting(model("llama"))
    [result] = decode(lm, ContrastiveSearch(3, 0.6), [PROMPTS[1]], 1)
    assert result.stats.num_forwards == len(lm.calls) == NUM_TOKENS + 1
    assert lm.calls[:3] == [[17], [1, 1, 1], [2, 2, 2]] and lm.calls[3:] == [[2, 2, 2]] * (NUM_TOKENS - 2)
    assert lm.num_reorders == 1
    assert result.stats.num_prompt_tokens == 17 and result.stats.num_generated_tokens == NUM_TOKENS


class Counting(HuggingFaceLM):
    """A model, and counts."""

    def __init__(self, model: HuggingFaceLM) -> None:
        vars(self).update(vars(model))
        self.calls: list[list[int]] = []
        self.num_reorders = 0

    def new_cache(self, num_rows: int, capacity: int) -> Any:
        cache = super().new_cache(num_rows, capacity)
        reorder = cache.reorder

        def counted(rows: torch.Tensor) -> None:
            self.num_reorders += 1
            reorder(rows)

        cache.reorder = counted  # type: ignore[method-assign]
        return cache

    def forward_hidden(self, tokens: Any, num_tokens: Any, *args: Any, **options: Any) -> Any:
        self.calls.append(list(num_tokens))
        return super().forward_hidden(tokens, num_tokens, *args, **options)


def test_long_prompts_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodekit.decoding.loop.batch.PREFILL_TOKENS", 8)
    lm = Counting(model("llama"))
    found = [result.token_ids for result in decode(lm, ContrastiveSearch(4, 0.6), PROMPTS, 4)]
    assert found == [twin("llama", number, 4, 0.6) for number in range(4)]
    # Prompts of 3, 17, 9 and 1 tokens; between the chunks, and with the tokens that are left, the others go on.
    assert lm.calls[0] == [3, 1] and [call for call in lm.calls if len(call) == 1] == [[8], [8], [8]]
    assert PREFILL_TOKENS > 8


def test_texts_end_and_are_streamed_as_others() -> None:
    tiny = LLM.load("tiny")
    prompt = "Invoice A-17, total 40.20 EUR."
    search = dk.ContrastiveSearch(5, 0.7)
    whole = tiny.generate(prompt, strategy=search, max_new_tokens=40)
    assert (
        whole.text == tiny.generate(prompt, strategy="contrastive", top_k=5, penalty_alpha=0.7, max_new_tokens=40).text
    )
    assert whole.finish_reason == "stop" and whole.token_ids[-1] in tiny.vocabulary.eos_token_ids
    chunks = list(tiny.stream(prompt, strategy=search, max_new_tokens=40))
    assert "".join(chunk.text for chunk in chunks) == whole.text and len(chunks) > 3
    assert sum((chunk.token_ids for chunk in chunks), ()) == whole.token_ids
    middle = whole.text[4:7]
    stopped = tiny.generate(prompt, strategy=search, max_new_tokens=40, stop=middle)
    assert stopped.text == whole.text[: whole.text.index(middle)] and stopped.finish_reason == "stop"
    cut = tiny.generate(prompt, strategy=search, max_new_tokens=5)
    assert cut.token_ids == whole.token_ids[:5] and cut.finish_reason == "length"
    assert whole.stats.ttft_s is not None and 0 < whole.stats.ttft_s <= whole.stats.duration_s


def test_guards_and_values() -> None:
    """What the guard refuses is no candidate; nothing is streamed before the end."""
    tiny = LLM.load("tiny")
    schema = {"type": "object", "properties": {"total": {"type": "integer", "minimum": 7, "maximum": 99}}}
    schema |= {"required": ["total"], "additionalProperties": False}
    search = dk.ContrastiveSearch(4)
    free = tiny.generate("Total 40", constraint=schema, strategy=search, max_new_tokens=40)
    refused = free.value["total"]
    guarded = dk.Guarded(dk.JsonSchema(schema), lambda value: value["total"] != refused)
    chunks = list(tiny.stream("Total 40", constraint=guarded, strategy=search, max_new_tokens=40))
    assert len(chunks) == 1 and chunks[0].completion is not None
    completion = chunks[0].completion
    assert completion.error is not None or completion.value["total"] != refused
    assert completion.text != free.text


def test_rows_that_fail_do_not_stop_others() -> None:
    biased = ContrastiveSearch(3, 0.6, processors=LogitBias(dict.fromkeys(range(3, VOCAB_SIZE), -torch.inf)))
    [result] = decode(model("llama"), biased, PROMPTS[:1], 1)
    assert set(result.token_ids) <= {0, 1, 2}
    nothing = ContrastiveSearch(3, 0.6, processors=LogitBias(dict.fromkeys(range(VOCAB_SIZE), -torch.inf)))
    [result] = decode(model("llama"), nothing, PROMPTS[:1], 1)
    assert isinstance(result.error, DeadEndError) and result.finish_reason == "dead_end"
    found = updates(model("llama"), ContrastiveSearch(), [Request([]), Request(PROMPTS[0])], 1)
    results = {update.index: update.result for update in found if update.result is not None}
    assert isinstance(results[0].error, OptionError)
    assert results[1].token_ids == twin("llama", 0, 4, 0.6)


def test_more_prompts_than_rows() -> None:
    """Rows are used again, by longer and shorter prompts."""
    prompts = [*PROMPTS, *PROMPTS[::-1]]
    expected = [twin("llama", number, 4, 0.6) for number in (0, 1, 2, 3, 3, 2, 1, 0)]
    assert token_ids(model("llama"), ContrastiveSearch(), prompts, 3) == expected


def test_the_comparison_by_hand() -> None:
    """Two candidates: the likelier says the same as before, the other is orthogonal to all."""
    choices = TopCandidates([5, 7], torch.tensor([0.6, 0.2]))
    context = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    states = torch.tensor([[1.0, 0.0], [-0.8, 0.6]])  # largest similarities 1 and 0
    assert most_contrastive(choices, states, context, 0.0) == 0
    assert most_contrastive(choices, states, context, 0.28) == 0  # 0.72 * 0.6 - 0.28 = 0.152 > 0.144
    assert most_contrastive(choices, states, context, 0.3) == 1  # 0.42 - 0.3 = 0.12 < 0.14
    assert most_contrastive(TopCandidates([5, 7], torch.tensor([0.5, 0.5])), states[:1].repeat(2, 1), context, 0.6) == 0


def test_candidates_by_hand() -> None:
    scores = torch.tensor([0.5, 0.0, 0.25, 0.25]).log()
    assert likeliest(scores, 0, 2).tokens in ([0, 2], [0, 3])
    assert sorted(likeliest(scores, 0, 9).tokens) == [0, 2, 3]  # nothing of probability 0
    even = torch.zeros(6)
    assert likeliest(even, 4, 2).tokens[0] == 4 and len(likeliest(even, 4, 2).tokens) == 2
    torch.testing.assert_close(likeliest(scores, 0, 2).probabilities, torch.tensor([0.5, 0.25]))


@pytest.mark.parametrize(
    ("options", "faulty"),
    [
        ({"top_k": 0}, ["top_k"]),
        ({"top_k": True, "penalty_alpha": 1.5}, ["top_k", "penalty_alpha"]),
        ({"penalty_alpha": -0.1}, ["penalty_alpha"]),
        ({"processors": [3]}, [None]),
        ({"speculate": "prompt-lookup"}, ["speculate"]),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], faulty: list[str | None]) -> None:
    with pytest.raises(OptionError) as caught:
        ContrastiveSearch(**options)
    found = [fault.at for fault in caught.value.faults or (caught.value,)]
    assert found == faulty or faulty == [None]


@few(2)
@pytest.mark.parametrize(
    ("options", "faulty"),
    [
        ({"strategy": "contrastive", "speculate": "prompt-lookup"}, "speculate"),
        ({"strategy": dk.ContrastiveSearch(), "on_length": "close"}, "on_length"),
        ({"strategy": dk.ContrastiveSearch(), "fast_forward": "canonical"}, "fast_forward"),
        ({"strategy": "contrastive", "max_rollbacks": 3}, "max_rollbacks"),
        ({"strategy": "contrastive", "temperature": 0.5}, "temperature"),
    ],
)
def test_options_of_a_call_that_cannot_be_used(options: dict[str, Any], faulty: str) -> None:
    with pytest.raises(OptionError) as caught:
        LLM.load("tiny").generate("a", constraint={"type": "integer"}, **options)
    assert caught.value.at == faulty


def test_models_without_hidden_states_are_refused() -> None:
    toy = LLM(ToyLM(hashed_law(VOCAB_SIZE), VOCAB_SIZE), small_tokenizer())
    with pytest.raises(ModelError, match="ToyLM does not show its hidden states"):
        toy.stream("a", strategy="contrastive")
