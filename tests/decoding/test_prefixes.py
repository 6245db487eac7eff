"""Prefixes: the tree against a list, the caches against rows that read by themselves, and texts that stay the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.decoding.loop import batch as batch_module
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.prefixes import shared_rows as sharing
from decodekit.decoding.prefixes.prefix_store import PrefixStore, num_common
from decodekit.decoding.request.settings import Settings
from decodekit.models.causal_lm import SharesPrefixes
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.strategy import Greedy, Sample, lead_of
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.generation import SharedTokens, ToyLM, hashed_law
from tests.sizes import few

V = 8
VOCABULARY = Vocabulary([bytes([97 + i]) for i in range(V)], ())


def settings_of(strategy: Any = Sample(), max_new_tokens: int = 6, vocabulary: Vocabulary = VOCABULARY) -> Settings:
    return Settings(vocabulary, strategy.pipeline, strategy.select, max_new_tokens, lead=lead_of(strategy))


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12))
def test_common_tokens(one: list[int], other: list[int]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert num_common(one, other) == num_common(tuple(one), tuple(other)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=7)), max_size=30))
def test_the_tree_finds_what_a_list_finds(events: list[tuple[bool, list[int]]]) -> None:
    """Without a limit; what is matched, how much is kept, and that all is released in the end."""
    store, kept = PrefixStore(1 << 30), dict[tuple[int, ...], SharedTokens]()
    for is_added, given_tokens in events:
        if is_added:
            prefix = SharedTokens(given_tokens)
            assert store.add(given_tokens, prefix) == (tuple(given_tokens) not in kept)
            kept.setdefault(tuple(given_tokens), prefix)
        prefix, number = store.match(given_tokens)  # type: ignore[assignment]
        assert number == max((num_common(tuple(given_tokens), one) for one in kept), default=0)
        assert (prefix is None) == (number == 0) and (not number or prefix.tokens[:number] == given_tokens[:number])
        assert store.num_bytes == sum(len(one) for one in kept) and len(store) == len(kept)
        assert store.num_tokens == len({one[:n] for one in kept for n in range(1, len(one) + 1)})
    store.clear()
    assert all(one.is_released for one in kept.values()) and store.num_bytes == store.num_tokens == 0


def test_what_was_used_least_recently_goes_first() -> None:
    store = PrefixStore(10)
    prefixes = {name: SharedTokens([*name.encode()]) for name in ("abcd", "abxy", "q", "abcdef")}
    for name in ("abcd", "abxy", "q"):
        assert store.add([*name.encode()], prefixes[name])
    store.match([*b"abcd"])
    assert store.add([*b"abcdef"], prefixes["abcdef"])  # 15 bytes: "abxy" goes, then "q"
    assert [one.is_released for one in prefixes.values()] == [False, True, True, False]
    assert store.num_bytes == 10 and store.match([*b"abx"])[1] == 2
    assert not store.add(range(11), SharedTokens([*range(11)])) and store.num_bytes == 10
    assert not PrefixStore(0).add([1], SharedTokens([1]))


@few(3)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("tier", ["ragged", "rowwise", "recompute"])
def test_a_row_that_begins_with_a_prefix_is_one_that_has_read_it(name: str, tier: Any) -> None:
    """Also one that stands on another, is shortened, outlives its row, and is handed over while rows go on."""
    lm = HuggingFaceLM(architectures.build(name), tier=tier)
    cache: Any = lm.new_cache(4, 8)
    assert isinstance(cache, SharesPrefixes)
    prompt, other, rest = tokens(0, 21), tokens(3, 5), tokens(5, 4)

    def read(cache: Any, row: int, given_tokens: Sequence[int]) -> torch.Tensor:
        return lm.forward(torch.tensor([[*given_tokens]]), [len(given_tokens)], cache, [row])[0]

    read(cache, 0, prompt)
    first = cache.keep(0, 17)
    read(cache, 1, other)
    cache.begin_with(1, first, 17)
    read(cache, 1, prompt[17:])
    longer = cache.keep(1, 20)
    cache.reset([0, 1])
    cache.begin_with(2, longer, 19)
    cache.begin_with(3, first, 3)
    found = [read(cache, 2, [*prompt[19:], *rest]), read(cache, 3, rest)]
    alone = lm.new_cache(2, 8)
    expected = [read(alone, 0, [*prompt, *rest]), read(alone, 1, [*prompt[:3], *rest])]
    for one, two in zip(found, expected, strict=True):
        assert float((one - two).abs().max() / two.std()) < 1e-4
    assert cache.lengths.tolist() == [0, 0, 25, 7]
    if tier == "ragged":
        assert longer.num_bytes * 17 == first.num_bytes * 3  # it stands on the first
    if tier != "recompute":
        assert first.num_bytes > 0
    longer.release()
    first.release()
    for number in (0, 18):
        with pytest.raises(ValueError, match="prefix"):
            cache.begin_with(0, first, number)
    with pytest.raises(ValueError, match="kept"):
        cache.keep(2, 26)
    with pytest.raises(ValueError, match="prefix"):
        cache.begin_with(0, first, 4)


def run(model: Any, requests: Sequence[Request], num_rows: int, given_settings: Settings) -> list[tuple[int, ...]]:
    updates = decode_texts(model, given_settings, num_rows, requests)
    found = {one.index: one.result.token_ids for one in updates if one.result is not None}
    return [found[index] for index in range(len(requests))]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_texts_are_the_same_with_and_without_sharing(
    seed: int, num_rows: int, min_shared: int, can_rollback: bool
) -> None:
    """Prompts of a random tree, in any number of rows, with chunks, and models that cannot go back."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(2) for _ in range(rng.randint(1, 6))]]
    for _ in range(rng.randint(1, 8)):
        begin = rng.choice(prompts)
        prompts.append([*begin[: rng.randint(1, len(begin))], *(rng.randrange(2) for _ in range(rng.randint(0, 9)))])
    requests = [Request(prompt, seed=index) for index, prompt in enumerate(prompts)]
    given_settings = settings_of()
    model = ToyLM(hashed_law(V), V)
    model.can_rollback = can_rollback
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "MIN_SHARED", min_shared)
        patch.setattr(batch_module, "PREFILL_TOKENS", 5)
        shared = run(model, requests, num_rows, given_settings)
        patch.setattr(sharing, "MIN_SHARED", 1 << 30)
        alone = run(ToyLM(hashed_law(V), V), requests, 1, given_settings)
    assert shared == alone


def num_read(model: ToyLM) -> int:
    return sum(map(sum, model.calls))


def test_a_job_reads_its_instructions_once() -> None:
    """40 documents on 8 rows: 400 tokens once, and of each document its own; a control reads them all."""
    requests = [Request([*([1, 2, 3, 4] * 100), *([index % 5, index % 7] * 20)]) for index in range(40)]
    model = ToyLM(lambda prefix: torch.eye(V)[len(prefix) % V], V)
    run(model, requests, 8, settings_of(Greedy(), 2))
    assert num_read(model) <= 400 + 40 * (40 + 1) and len(model.caches) == 1
    control = ToyLM(lambda prefix: torch.eye(V)[len(prefix) % V], V)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "MIN_SHARED", 1 << 30)
        run(control, requests, 8, settings_of(Greedy(), 2))
    assert num_read(control) == 40 * (440 + 1)


def test_a_control_a_cache_that_hands_over_another_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property sees a prefix with one wrong token."""
    from tests.reference.generation import SharingCache

    keep = SharingCache.keep
    monkeypatch.setattr(SharingCache, "keep", lambda self, row, n: _spoiled(keep(self, row, n)))
    requests = [Request([*([1, 2, 3, 4] * 10), index % 5], seed=index) for index in range(4)]
    found = run(ToyLM(hashed_law(V), V), requests, 4, settings_of())
    monkeypatch.setattr(sharing, "MIN_SHARED", 1 << 30)
    assert found != run(ToyLM(hashed_law(V), V), requests, 4, settings_of())


def _spoiled(prefix: SharedTokens) -> SharedTokens:
    prefix.tokens[0] = 7
    return prefix


@few(1)
@pytest.mark.parametrize("name", ["llama", "mistral", "mamba"])
def test_shared_texts_on_models(name: str) -> None:
    """Real caches in float64, where chunks change no token."""
    model = HuggingFaceLM(architectures.build(name).double())
    vocabulary = Vocabulary([bytes([i]) for i in range(VOCAB_SIZE)], frozenset({3}))
    begin = tokens(0, 40)
    requests = [Request([*begin[: 40 - 3 * i], *tokens(i, 6)], seed=i) for i in range(3)]
    requests += [Request([*begin, *tokens(9, 3)], seed=7)] * 2
    given_settings = settings_of(Sample(temperature=0.8), 6, vocabulary)
    found = run(model, requests, 2, given_settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "MIN_SHARED", 1 << 30)
        assert found == run(model, requests, 1, given_settings)
