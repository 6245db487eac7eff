"""Several samples of a prompt: each as if it were alone, and a prompt that is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.constraints import Guarded, Regex, compile
from decodekit.decoding.loop import batch as batch_module
from decodekit.decoding.loop import step as step_module
from decodekit.decoding.loop.scheduler import ScheduledRequest
from decodekit.decoding.loop.step import Texts, decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.prefixes import shared_rows as sharing
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.stats import Stats
from decodekit.decoding.request.updates import Result, Update
from decodekit.errors import OptionError
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.strategy import Mirostat, Sample, Strategy, lead_of
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.generation import TextsMatcher, ToyLM, hashed_law
from tests.sizes import few

LETTERS: list[bytes | None] = [*(bytes([c]) for c in b"abcd"), b"ab", b"cda", b"dd", None, None]
V, EOS = len(LETTERS), frozenset({8})
VOCABULARY = Vocabulary(LETTERS, EOS)
TEXTS = [b"abcd", b"abdd", b"cda", b"cdaab", b"dda", b"b"]


def settings_of(
    strategy: Strategy, vocabulary: Vocabulary = VOCABULARY, stop: Sequence[str] = (), **kw: Any
) -> Settings:
    options = {"max_new_tokens": 9, "lead": lead_of(strategy), **kw}
    return Settings(
        vocabulary,
        strategy.pipeline,
        strategy.select,
        stops=tuple(stop),
        proposer=strategy.proposer,
        mirostat=strategy.mirostat,
        **options,
    )


def families(
    model: Any, given: Settings, requests: Sequence[Any], num_samples: int, num_prompts: int
) -> list[list[tuple[str, Result]]]:
    """Text and result of every sample of every request, after checking the law of updates."""
    streamed: dict[int, str] = {}
    done: dict[int, list[tuple[str, Result]]] = {}
    for update in decode_texts(model, given, num_prompts, requests, num_samples):
        assert update.index not in done
        streamed[update.index] = streamed.get(update.index, "") + update.text
        if update.result is not None:
            others = [(other.text, other.result) for other in update.result.others if other.result is not None]
            done[update.index] = [(streamed[update.index], update.result), *others]
    assert all(len(family) == num_samples for family in done.values())
    return [done[index] for index in range(len(requests))]


def alone(model: Any, given: Settings, request: Request) -> tuple[str, Result]:
    text = ""
    for update in decode_texts(model, given, 1, [request]):
        text += update.text
        if update.result is not None:
            return text, update.result
    raise AssertionError("no result")


def comparable(sample: tuple[str, Result]) -> Any:
    text, result = sample
    return text, result.token_ids, result.finish_reason, type(result.error)


prompts = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=12), min_size=1, max_size=3)
strategies = st.sampled_from(
    [
        Sample(),
        Sample(temperature=0.7, top_k=4),
        Sample(repetition_penalty=1.4, speculate="prompt-lookup"),
        Mirostat(tau=2.0),
    ]
)


@settings(max_examples=80, deadline=None)
@given(
    prompts,
    strategies,
    st.booleans(),
    st.sampled_from([(), ("bc",)]),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(1, 7),
    st.booleans(),
)
def test_every_sample_has_the_text_that_it_has_alone(
    prompts: list[list[int]],
    strategy: Strategy,
    is_constrained: bool,
    stop: tuple[str, ...],
    num_samples: int,
    num_prompts: int,
    max_rows: int,
    can_rollback: bool,
) -> None:
    """Any number of rows, so that samples wait for each other, and models that cannot go back."""
    law = hashed_law(V)
    matcher = TextsMatcher(TEXTS, VOCABULARY) if is_constrained else None
    given = settings_of(strategy, stop=stop)
    requests = [Request(prompt, matcher, seed=index) for index, prompt in enumerate(prompts)]
    model = ToyLM(law, V)
    model.can_rollback = can_rollback or strategy.proposer is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "MAX_ROWS", max_rows)
        patch.setattr(batch_module, "PREFILL_TOKENS", 7)
        found = families(model, given, requests, num_samples, num_prompts)
    for index, prompt in enumerate(prompts):
        for number, sample in enumerate(found[index]):
            expected = alone(ToyLM(law, V), given, Request(prompt, matcher, seed=index, sequence=number))
            assert comparable(sample) == comparable(expected)


def tokens_read(model: ToyLM) -> int:
    return sum(map(sum, model.calls))


@pytest.mark.parametrize("num_samples", [2, 8, 64])
def test_a_prompt_is_read_once(num_samples: int) -> None:
    """By the first sample, which takes a token with it; of the others each reads its last token, and the new ones."""
    model = ToyLM(hashed_law(V), V)
    prompt = [i % V for i in range(100)]
    families(
        model,
        settings_of(Sample(), max_new_tokens=3, vocabulary=Vocabulary(LETTERS, ())),
        [Request(prompt)],
        num_samples,
        1,
    )
    assert model.calls == [[100], *[[1] * num_samples] * 2, [1] * (num_samples - 1)]


def test_samples_in_turns_find_the_prompt_in_a_row() -> None:
    """Seven samples on two rows: the prompt is read once all the same, and the cache is no larger."""
    model = ToyLM(hashed_law(V), V)
    given = settings_of(Sample(), max_new_tokens=3, vocabulary=Vocabulary(LETTERS, ()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "MAX_ROWS", 2)
        families(model, given, [Request([1] * 50)], 7, 1)
    assert tokens_read(model) == 49 + 7 * 3
    assert model.caches[0].num_rows == 2
    assert model.caches[0].num_kept == 1  # for the second row; later ones have the prompt in their own row


def test_with_recurrent_state_those_that_begin_together_share() -> None:
    model = ToyLM(hashed_law(V), V)
    model.can_rollback = False
    given = settings_of(Sample(), max_new_tokens=3, vocabulary=Vocabulary(LETTERS, ()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "MAX_ROWS", 2)
        families(model, given, [Request([1] * 50)], 4, 1)
    assert tokens_read(model) == 2 * 49 + 4 * 3


def test_equal_prompts_are_shared_and_a_control_reads_every_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyLM(hashed_law(V), V)
    given = settings_of(Sample(), max_new_tokens=3, vocabulary=Vocabulary(LETTERS, ()))
    requests = [Request([1] * 50, sequence=number) for number in range(4)]
    list(decode_texts(model, given, 4, requests))
    assert tokens_read(model) == 49 + 4 * 3
    monkeypatch.setattr(sharing, "MIN_SHARED", 51)
    list(decode_texts(model, given, 4, requests))
    assert tokens_read(model) == 49 + 4 * 3 + 4 * (50 + 2)


def test_what_cannot_start_has_as_many_results() -> None:
    error = OptionError("the prompt could not be read")
    found = families(ToyLM(hashed_law(V), V), settings_of(Sample()), [Request([]), error, Request([1])], 3, 2)
    assert [[result.finish_reason for _, result in family] for family in found[:2]] == [["error"] * 3] * 2
    assert found[1][2][1].error is error
    assert all(result.error is None for _, result in found[2])


def test_text_that_is_released_at_the_end_is_handed_out() -> None:
    """The first sample of two ends in the middle of a character, without a token more."""
    stats = Stats(1, 1, 1, None, 0.0)
    whole, broken = Result((5,), "stop", None, (), stats), Result((4,), "dead_end", None, (), stats)
    parts = [
        Update(0, "", (4,), None, 0),
        Update(0, "ab", (5,), None, 1),
        Update(0, "\ufffd", (), broken, 0),
        Update(0, "", (), whole, 1),
    ]
    gathered = ScheduledRequest(0, Request([1]), Texts(ToyLM(hashed_law(V), V)), settings_of(Sample()), 2)
    first, second, last = [told for part in parts for told in gathered.gathered(part)]
    assert (first.text, first.token_ids, second.text, second.token_ids) == ("", (4,), "\ufffd", ())
    assert (first.result, second.result) == (None, None)
    assert last.text == "" and last.result is not None and last.result.token_ids == (4,)
    assert [(other.text, other.token_ids, other.result) for other in last.result.others] == [("ab", (5,), whole)]


def test_samples_differ_and_the_first_streams() -> None:
    given = settings_of(Sample(), max_new_tokens=6, vocabulary=Vocabulary(LETTERS, ()))
    updates = list(decode_texts(ToyLM(hashed_law(V), V), given, 1, [Request([1])], 4))
    assert len(updates) > 3 and [update.result for update in updates[:-1]] == [None] * (len(updates) - 1)
    assert updates[-1].text == "" and updates[-1].result is not None
    streamed = [token for update in updates for token in update.token_ids]
    assert tuple(streamed) == updates[-1].result.token_ids
    texts = {other.token_ids for other in updates[-1].result.others} | {updates[-1].result.token_ids}
    assert len(texts) == 4


@few(1)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "mamba"])
def test_on_models(name: str) -> None:
    """Families of unequal prompts under a constraint, on real caches, beside each sample alone."""
    model = HuggingFaceLM(architectures.build(name))
    vocabulary = Vocabulary([bytes([i]) for i in range(VOCAB_SIZE)], frozenset({3}))
    given = settings_of(Sample(temperature=0.8), vocabulary=vocabulary, max_new_tokens=7)
    grammar = compile(Regex("[!-_]{0,5}"), vocabulary)
    requests = [Request(tokens(i, length), grammar.matcher(), seed=i) for i, length in enumerate((9, 3, 40))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "MAX_ROWS", 5)
        found = families(model, given, requests, 4, 2)
    for request, family in zip(requests, found, strict=True):
        for number, sample in enumerate(family):
            expected = alone(model, given, Request(request.prompt, request.matcher, request.seed, number))
            assert comparable(sample) == comparable(expected)


def test_guards_take_back_only_their_own_sample() -> None:
    """A guard that refuses many texts, so that rows that are copied later have been taken back before."""
    vocabulary = Vocabulary([bytes([c]) for c in b"abcd"], ())
    grammar = compile(Guarded(Regex("[ab][a-d]|[cd][a-d]"), lambda text: text[0] not in "ab"), vocabulary)
    given = settings_of(Sample(), vocabulary=vocabulary, max_new_tokens=2, can_redraw=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "MAX_ROWS", 3)
        [family] = families(ToyLM(hashed_law(4), 4), given, [Request([1, 2, 3], grammar.matcher())], 12, 1)
    assert sum(result.stats.num_rollbacks for _, result in family) > 0
    for number, sample in enumerate(family):
        expected = alone(ToyLM(hashed_law(4), 4), given, Request([1, 2, 3], grammar.matcher(), sequence=number))
        assert comparable(sample) == comparable(expected)
