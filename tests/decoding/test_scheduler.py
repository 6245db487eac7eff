"""The batch against a loop without cache, batch or anything incremental."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit.decoding.loop import batch as batch_module
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result, Update
from decodekit.errors import ContextLengthError, DeadEndError, NonFiniteLogitsError, OptionError, ResourceLimitError
from decodekit.sampling import History, LogitBias, RepetitionPenalty, sample
from decodekit.strategy import Greedy, Sample, Strategy, lead_of
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import TextsMatcher, ToyLM, hashed_law, reference_decode

TOKENS: list[bytes | None] = [
    *(bytes([c]) for c in b"abc\n"),
    *(b"ab", b"bca", b"\n\n", "é".encode(), b"\xc3", b"\xa9", "😀".encode()[:2], "😀".encode()[2:], b"\xff"),
    *(None, None, None),  # special, and two that end a text
]
EOS = frozenset({14, 15})
V = 16
VOCABULARY = Vocabulary(TOKENS, EOS)


def settings_of(
    strategy: Strategy = Greedy(), max_new_tokens: int = 12, stop: Sequence[str] = (), **kw: Any
) -> Settings:
    kw.setdefault("lead", lead_of(strategy))
    return Settings(VOCABULARY, strategy.pipeline, strategy.select, max_new_tokens, tuple(stop), **kw)


def run(model: ToyLM, requests: Sequence[Any], settings: Settings, num_rows: int) -> dict[int, tuple[str, Result]]:
    """Text and result by request, after checking the law of updates."""
    updates: dict[int, list[Update]] = {}
    for update in decode_texts(model, settings, num_rows, requests):
        assert not updates.get(update.index) or updates[update.index][-1].result is None
        updates.setdefault(update.index, []).append(update)
    done = {}
    for index, parts in updates.items():
        result = parts[-1].result
        assert result is not None
        assert [token for part in parts for token in part.token_ids] == list(result.token_ids)
        done[index] = "".join(part.text for part in parts), result
    assert sorted(done) == list(range(len(requests)))
    return dict(sorted(done.items()))


def choose_by(strategy: Strategy, seed: int) -> Any:
    """What a strategy takes, computed for one row from scratch."""

    def choose(logits: Tensor, prompt: list[int], text: list[int]) -> int:
        rows = strategy.pipeline(logits[None], History.from_lists([prompt], [text]))
        if isinstance(strategy, Greedy):
            return int(rows.argmax())
        return int(sample(rows, [seed], [0], [len(text)]))

    return choose


prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=9)
strategies = st.sampled_from(
    [
        Greedy(),
        Greedy(repetition_penalty=1.4),
        Sample(),
        Sample(temperature=0.7, top_k=5),
        Sample(top_p=0.8, min_p=0.05, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
        Sample(top_k=6, top_p=0.9, processors=LogitBias({3: 2.0})),
    ]
)
constraints = st.none() | st.lists(st.text("abcé\n", max_size=6).map(str.encode), min_size=1, max_size=4)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(prompts, min_size=1, max_size=7),
    strategies,
    constraints,
    st.sampled_from([(), ("a",), ("ab", "bca\n"), ("é", "\n\n")]),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_equals_the_slow_loop(
    prompts: list[list[int]],
    strategy: Strategy,
    texts: list[bytes] | None,
    stop: tuple[str, ...],
    max_new_tokens: int,
    num_rows: int,
    salt: int,
) -> None:
    """Every strategy, constraint and stop string, for unequal prompts and any number of rows."""
    law = hashed_law(V, salt=salt)
    matcher = None if texts is None else TextsMatcher(texts, VOCABULARY)
    requests = [Request(prompt, matcher, seed=index) for index, prompt in enumerate(prompts)]
    done = run(ToyLM(law, V), requests, settings_of(strategy, max_new_tokens, stop), num_rows)
    for index, prompt in enumerate(prompts):
        tokens, text, reason = reference_decode(
            law,
            prompt,
            choose_by(strategy, index),
            TOKENS,
            eos_token_ids=EOS,
            stop=stop,
            max_new_tokens=max_new_tokens,
            matcher=None if matcher is None else matcher.fork(),
        )
        assert (done[index][0], list(done[index][1].token_ids), done[index][1].finish_reason) == (text, tokens, reason)
        assert (done[index][1].error is not None) == (reason == "dead_end")


def never_ends(prefix: Sequence[int]) -> Tensor:
    """The token after t is (t + 1) mod 3: "a", "b", "c", ..."""
    return torch.eye(V)[(prefix[-1] + 1) % 3]


def ends_after(length: int, prefix: Sequence[int]) -> Tensor:
    return torch.eye(V)[14 if len(prefix) >= length else 0]


def test_number_of_forwards() -> None:
    """n tokens cost the prefill and n - 1 steps, whatever the prompt's length."""
    model = ToyLM(never_ends, V)
    [(text, result)] = run(model, [Request([5, 6, 7])], settings_of(max_new_tokens=6), 1).values()
    assert (text, result.stats.num_forwards) == ("cabcab", 6)
    assert model.calls == [[3], [1], [1], [1], [1], [1]]
    assert result.stats.num_prompt_tokens == 3 and result.stats.num_generated_tokens == 6
    assert 0 < (result.stats.ttft_s or 0) < result.stats.duration_s and (result.stats.tpot_s or 0) > 0


def test_one_token() -> None:
    model = ToyLM(never_ends, V)
    done = run(model, [Request([0]), Request([1])], settings_of(max_new_tokens=1), 2)
    assert [(text, result.finish_reason) for text, result in done.values()] == [("b", "length"), ("c", "length")]
    assert model.calls == [[1, 1]]


@pytest.mark.parametrize("eos", sorted(EOS))
def test_every_eos_token_ends_and_is_no_text(eos: int) -> None:
    model = ToyLM(lambda prefix: torch.eye(V)[eos if len(prefix) > 2 else 1], V)
    [(text, result)] = run(model, [Request([0])], settings_of(), 1).values()
    assert (text, result.token_ids, result.finish_reason) == ("bb", (1, 1, eos), "stop")


def test_rows_are_refilled_at_once_and_lazily() -> None:
    """Ten requests on two rows; a new one is taken only when a row is free."""
    taken: list[int] = []

    def requests() -> Any:
        for index in range(10):
            taken.append(index)
            yield Request([1] * (index % 3 + 1))

    model = ToyLM(partial(ends_after, 5), V)
    finished = 0
    for update in decode_texts(model, settings_of(), 2, requests()):
        assert len(taken) <= finished + 2
        finished += update.result is not None
    assert finished == 10
    assert len(model.caches) == 1 and model.caches[0].num_rows <= 2
    assert max(map(len, model.calls)) == 2


def test_finished_rows_leave_the_forward() -> None:
    """At the end of the stream the batch shrinks, and the rows that go on are neighbours again."""
    model = ToyLM(partial(ends_after, 6), V)
    run(model, [Request([1] * n) for n in (1, 5, 2, 5, 3)], settings_of(), 5)
    assert [len(call) for call in model.calls] == [5, 5, 3, 3, 2, 1]
    assert model.caches[0].num_reorders <= 2


def test_a_cache_is_not_larger_than_the_work() -> None:
    model = ToyLM(never_ends, V)
    run(model, [Request([1])], settings_of(), 64)
    assert model.caches[0].num_rows == 1


def test_groups_of_prefill_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read in groups of similar length; one that is too long alone is read in chunks."""
    monkeypatch.setattr(batch_module, "PREFILL_TOKENS", 10)
    model = ToyLM(never_ends, V)
    requests = [Request([0] * n) for n in (23, 2, 4, 3)]
    done = run(model, requests, settings_of(max_new_tokens=2), 4)
    assert model.calls == [[2, 3], [4], [1, 1, 1], [10], [10], [3], [1]]
    assert [text for text, _ in done.values()] == ["bc"] * 4
    assert done[0][1].stats.num_forwards == 4


def test_a_long_prompt_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the chunks of a prompt the rows that decode go on."""
    monkeypatch.setattr(batch_module, "PREFILL_TOKENS", 4)
    model = ToyLM(partial(ends_after, 8), V)
    done = run(model, [Request([1]), Request([1] * 7), Request([1] * 15)], settings_of(), 2)
    # the second ends, and the third is read in its row
    assert model.calls == [[1], [1], [4], [1], [3], [1, 1], [4], [1], [4], [1], [4], [1], [3], [1]]
    assert [text for text, _ in done.values()] == ["aaaaaaa", "a", ""]


def test_what_cannot_start_is_answered_and_the_others_go_on() -> None:
    model = ToyLM(never_ends, V, context_length=6)
    given_error = OptionError("the prompt could not be read")
    requests = [Request([]), Request([0] * 6), Request([0] * 5), given_error, Request([0])]
    done = run(model, requests, settings_of(), 2)
    assert isinstance(done[0][1].error, OptionError) and "prompt 0" in str(done[0][1].error)
    assert isinstance(done[1][1].error, ContextLengthError) and "6 tokens" in str(done[1][1].error)
    assert done[3][1].error is given_error
    assert [done[i][1].finish_reason for i in (0, 1, 3)] == ["error"] * 3
    # the context is a limit too: five tokens of prompt and one more fill it
    assert (done[2][0], done[2][1].finish_reason) == ("b", "length")
    assert (done[4][0], done[4][1].finish_reason) == ("bcabc", "length")


def test_many_refusals_do_not_pile_up() -> None:
    """Refused requests are handed out as they come, without reading the stream to its end."""
    taken = 0

    def requests() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield Request([])

    updates = decode_texts(ToyLM(never_ends, V), settings_of(), 4, requests())
    assert next(updates).result is not None
    assert taken <= 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("strategy", [Greedy(), Sample(), Sample(top_k=3), Sample(top_p=0.9, min_p=0.1)])
def test_a_row_of_nan_fails_alone(bad: float, strategy: Strategy) -> None:
    def law(prefix: Sequence[int]) -> Tensor:
        row = never_ends(prefix)
        return row + bad if prefix[0] == 2 and len(prefix) == 3 else row * 50

    done = run(ToyLM(law, V), [Request([0]), Request([2, 0]), Request([1])], settings_of(strategy, 4), 3)
    error = done[1][1].error
    assert isinstance(error, NonFiniteLogitsError) and error.at == "prompt 1, step 1"
    assert done[1][1].finish_reason == "error" and len(done[1][1].token_ids) == 1
    assert [done[0][0], done[2][0]] == ["bcab", "cabc"]


def test_dead_ends() -> None:
    """No token allowed by the constraint; and every allowed token at -inf."""
    impossible = TextsMatcher([b"aX"], VOCABULARY)
    done = run(ToyLM(never_ends, V), [Request([0], impossible), Request([0])], settings_of(max_new_tokens=3), 2)
    error = done[0][1].error
    assert isinstance(error, DeadEndError) and error.at == "prompt 0, step 1"
    assert (done[0][0], done[0][1].finish_reason) == ("a", "dead_end")
    assert done[1][0] == "bca"

    # "a" and "ab" are the only tokens that may begin; in the other row "b" is the only one
    banned = settings_of(Greedy(logit_bias={0: -math.inf, 1: -math.inf, 4: -math.inf}))
    requests = [Request([0], TextsMatcher(texts, VOCABULARY)) for texts in ([b"ab", b"a"], [b"b"], [b"cc"])]
    done = run(ToyLM(never_ends, V), requests, banned, 3)
    assert [result.finish_reason for _, result in done.values()] == ["dead_end", "dead_end", "complete"]
    assert "logit of -inf" in str(done[1][1].error)


@pytest.mark.parametrize("method", ["fill_bitmask", "accept", "is_accepting", "can_continue"])
def test_a_constraint_that_fails_stops_its_own_row_only(method: str) -> None:
    """Whichever question outgrows a bound, and whenever."""

    class Outgrown(TextsMatcher):
        def fork(self) -> TextsMatcher:
            return Outgrown(self.texts, self.vocabulary, self.tokens)

    def fails(name: str) -> Any:
        own = getattr(TextsMatcher, name)

        def ask(self: TextsMatcher, *args: Any, **named: Any) -> Any:
            if len(self.tokens) == 2:
                raise ResourceLimitError("too many states")
            return own.fget(self) if isinstance(own, property) else own(self, *args, **named)

        return property(ask) if isinstance(own, property) else ask

    setattr(Outgrown, method, fails(method))
    requests = [Request([0]), Request([0], Outgrown([b"bbbb", b"bb"], VOCABULARY)), Request([1])]
    done = run(ToyLM(never_ends, V), requests, settings_of(max_new_tokens=4, num_alternatives=0, masks="always"), 3)
    assert isinstance(done[1][1].error, ResourceLimitError) and done[1][1].finish_reason == "error"
    assert done[1][0] == "bb" and len(done[1][1].logprobs) == len(done[1][1].token_ids) == 2
    assert [done[0][0], done[2][0]] == ["bcab", "cabc"]


def test_complete_needs_no_end_token() -> None:
    """And the last forced tokens no forward pass."""
    for fast_forward, num_calls in (("off", 3), ("exact", 1)):
        model = ToyLM(never_ends, V)
        settings = settings_of(fast_forward=fast_forward)
        [(text, result)] = run(model, [Request([0], TextsMatcher([b"abc"], VOCABULARY))], settings, 1).values()
        assert (text, result.finish_reason, len(result.token_ids)) == ("abc", "complete", 3)
        assert len(model.calls) == num_calls


def test_a_constraint_of_the_empty_text_needs_no_model() -> None:
    model = ToyLM(never_ends, V)
    done = run(model, [Request([0], TextsMatcher([b""], VOCABULARY)), Request([0])], settings_of(max_new_tokens=1), 2)
    assert (done[0][0], done[0][1].finish_reason, done[0][1].token_ids) == ("", "complete", ())
    assert model.calls == [[1]]


def test_constrained_and_free_rows_share_a_batch() -> None:
    requests = [Request([0], TextsMatcher([b"cc"], VOCABULARY)), Request([0]), Request([1])]
    done = run(ToyLM(never_ends, V), requests, settings_of(max_new_tokens=3), 3)
    assert [text for text, _ in done.values()] == ["cc", "bca", "cab"]


def test_a_request_can_be_run_again() -> None:
    request = Request([0], TextsMatcher([b"cc"], VOCABULARY))
    batches = [decode_texts(ToyLM(never_ends, V), settings_of(), 1, [request]) for _ in range(2)]
    assert [[update.text for update in batch] for batch in batches] == [["cc"], ["cc"]]


def test_logprobs_are_those_of_the_raw_law() -> None:
    """Neither penalties nor temperature nor the constraint are in them."""
    law = hashed_law(V)
    strategy = Sample(temperature=0.5, top_k=4, processors=RepetitionPenalty(2.0))
    requests = [Request([1, 2]), Request([3], TextsMatcher([b"abc", b"bca"], VOCABULARY))]
    done = run(ToyLM(law, V), requests, settings_of(strategy, 5, num_alternatives=3), 2)
    for request, (_, result) in zip(requests, done.values(), strict=True):
        assert len(result.logprobs) == len(result.token_ids) > 0
        for position, entry in enumerate(result.logprobs):
            expected = torch.log_softmax(law([*request.prompt, *result.token_ids[:position]]), -1)
            assert entry.token_id == result.token_ids[position]
            assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-6)
            assert [token for token, _ in entry.alternatives] == expected.argsort(descending=True)[:3].tolist()
            assert entry.alternatives[0][1] == pytest.approx(float(expected.max()), abs=1e-6)


def test_processors_see_prompt_and_text_of_their_own_row() -> None:
    """The history of every call, rebuilt from the requests."""
    seen: list[tuple[list[list[int]], list[int]]] = []

    class Spy(RepetitionPenalty):
        def __call__(self, logits: Tensor, history: History | None) -> Tensor:
            assert history is not None
            rows = [row[:n] for row, n in zip(history.token_ids.tolist(), history.lengths.tolist(), strict=True)]
            seen.append((rows, history.prompt_lengths.tolist()))
            return logits

    requests = [Request([5] * n) for n in (2, 4, 1, 3)]
    done = run(ToyLM(partial(ends_after, 7), V), requests, settings_of(Sample(processors=Spy(1.5))), 2)
    prefixes = {tuple(row[:n]) + tuple(row[n:]) for rows, lengths in seen for row, n in zip(rows, lengths, strict=True)}
    expected = {
        (*request.prompt, *done[index][1].token_ids[:position])
        for index, request in enumerate(requests)
        for position in range(len(done[index][1].token_ids))
    }
    assert prefixes == expected
    assert {n for _, lengths in seen for n in lengths} == {1, 2, 3, 4}
