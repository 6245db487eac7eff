"""Drafts on real architectures in float32: the tokens of transformers' own greedy `generate`, whatever is guessed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.speculation import Chain, DraftModel, EarlyExit, Joined, PromptLookup, Proposer, Suffix
from decodekit.strategy import Greedy, Sample, Strategy
from tests.decoding.test_on_models import NO_TEXT, TWELVE, generated, model
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.sizes import few, thinned
from tests.speculation.test_same_text import Prophet

NUM_TOKENS = 64  # what `generated` gives
PROMPTS = [tokens(i, length) for i, length in enumerate((3, 17, 9, 1, 30, 5, 12, 8))]


def decode(
    name: str,
    prompts: Sequence[Sequence[int]],
    strategy: Strategy,
    num_rows: int,
    proposer: Proposer | None,
    num_tokens: int = NUM_TOKENS,
) -> list[Result]:
    settings = Settings(NO_TEXT, strategy.pipeline, strategy.select, max_new_tokens=num_tokens, proposer=proposer)
    requests = [Request(prompt, seed=index) for index, prompt in enumerate(prompts)]
    updates = decode_texts(model(name), settings, num_rows, requests)
    results = {update.index: update.result for update in updates if update.result is not None}
    return [results[index] for index in range(len(prompts))]


@functools.cache
def own(name: str) -> list[tuple[int, ...]]:
    return [generated(name, prompt) for prompt in PROMPTS]


@few(1)
@pytest.mark.parametrize("name", ["llama", "mistral", "falcon"])
@thinned("num_tokens", [1, 2, 4, 8, 16], keep=[1, 16])
def test_greedy_tokens_equal_generate(name: str, num_tokens: int) -> None:
    known = {tuple(prompt): text for prompt, text in zip(PROMPTS, own(name), strict=True)}
    prophet = Prophet(known, 0.15, num_tokens, VOCAB_SIZE)
    results = decode(name, PROMPTS, Greedy(), 8, prophet)
    assert [result.token_ids for result in results] == own(name)
    assert all(result.stats.num_forwards < NUM_TOKENS for result in results)
    [alone] = decode(name, PROMPTS[1:2], Greedy(), 1, prophet)
    assert alone.token_ids == own(name)[1]
    [alone] = decode(name, PROMPTS[2:3], Greedy(), 1, PromptLookup(num_tokens=num_tokens))
    assert alone.token_ids == own(name)[2]


SHORT = 20


@functools.cache
def plain(name: str) -> list[tuple[int, ...]]:
    """The text without guesses, which is that of `generate`."""
    texts = [result.token_ids for result in decode(name, PROMPTS, Greedy(), 8, None, SHORT)]
    assert [generated(name, prompt)[:SHORT] for prompt in PROMPTS[1:3]] == texts[1:3]
    return texts


def proposers(name: str, num_tokens: int) -> list[Proposer]:
    """All there are: right, wrong, and right for a while."""
    known = dict(zip(map(tuple, PROMPTS), plain(name), strict=True))
    other = model("gpt2" if name != "gpt2" else "llama")
    return [
        Prophet(known, 0.15, num_tokens, VOCAB_SIZE),
        PromptLookup(num_tokens=num_tokens),
        Suffix(max_tokens=num_tokens),
        DraftModel(model(name), num_tokens),
        DraftModel(other, num_tokens),
        EarlyExit(2, num_tokens),
        Chain((Suffix(min_match=2, max_tokens=num_tokens), DraftModel(model(name), num_tokens))),
        Joined((PromptLookup(num_tokens=num_tokens), DraftModel(model(name), 1)), max_tokens=num_tokens),
    ]


def assert_every_proposer_keeps_the_text(name: str, num_tokens: int) -> None:
    for proposer in proposers(name, num_tokens):
        together = decode(name, PROMPTS, Greedy(), 8, proposer, SHORT)
        assert [result.token_ids for result in together] == plain(name), proposer
        [alone] = decode(name, PROMPTS[1:2], Greedy(), 1, proposer, SHORT)
        assert alone.token_ids == plain(name)[1], proposer


@pytest.mark.slow
@thinned("name", TWELVE, keep=["gemma2"])
def test_every_proposer_on_twelve_architectures(name: str) -> None:
    """E5 at k = 4, batches of 1 and 8."""
    assert_every_proposer_keeps_the_text(name, 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TWELVE)
@pytest.mark.parametrize("num_tokens", [1, 2, 8, 16])
def test_every_length_on_twelve_architectures(name: str, num_tokens: int) -> None:
    assert_every_proposer_keeps_the_text(name, num_tokens)


def test_sampled_tokens_do_not_depend_on_drafts() -> None:
    strategy = Sample(temperature=1.2, top_k=50, top_p=0.95, repetition_penalty=1.2)
    plain = decode("llama", PROMPTS, strategy, 8, None)
    known = {tuple(prompt): result.token_ids for prompt, result in zip(PROMPTS, plain, strict=True)}
    for num_rows, num_tokens in ((8, 3), (3, 8), (1, 16)):
        some = PROMPTS if num_rows > 1 else PROMPTS[:2]
        results = decode("llama", some, strategy, num_rows, Prophet(known, 0.2, num_tokens, VOCAB_SIZE))
        assert [result.token_ids for result in results] == [result.token_ids for result in plain[: len(some)]]
