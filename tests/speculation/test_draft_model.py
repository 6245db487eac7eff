"""Drafts of another model: the same text whatever it writes, all of it accepted if it is the same model."""

from __future__ import annotations

import functools
import gc
import pickle
from typing import Any

import pytest

import decodekit as dk
from decodekit.constraints import compile
from decodekit.decoding.draws import row_draws as drawing
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.errors import OptionError, VocabularyMismatchError
from decodekit.speculation import Context, DraftModel
from decodekit.speculation.proposers import draft_model
from decodekit.speculation.proposers.draft_engine import num_common
from decodekit.speculation.proposers.draft_model import first_difference
from decodekit.strategy import Greedy, Sample, Strategy, can_redraw
from decodekit.vocabulary import Vocabulary
from tests.decoding.test_scheduler import V
from tests.reference.generation import ToyLM, hashed_law
from tests.sizes import few, thinned
from tests.speculation.test_extraction import documents, schema_of
from tests.speculation.test_same_text import (
    CONSTRAINTS,
    GUARDED,
    LETTERS,
    STRATEGIES,
    assert_equals_the_plain_loop,
    decode,
)


def toy(salt: int, vocab_size: int = V, **options: Any) -> ToyLM:
    return ToyLM(hashed_law(vocab_size, salt=salt), vocab_size, **options)


def acceptance(results: list[Any]) -> float:
    offered = sum(result.stats.num_draft_tokens for result in results)
    return sum(sum(result.stats.acceptance_histogram) for result in results) / offered


@few(3)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=range(len(STRATEGIES)))
@pytest.mark.parametrize("texts", [None, CONSTRAINTS[2]], ids=["free", "constrained"])
def test_the_text_stays_the_same(strategy: Strategy, texts: Any) -> None:
    for salt, num_tokens, num_rows in ((0, 1, 1), (0, 5, 3), (1, 4, 3)):
        draft = DraftModel(toy(salt), num_tokens)
        assert_equals_the_plain_loop(strategy, proposer=lambda _, p=draft: p, texts=texts, num_rows=num_rows)


@few(4)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=range(len(STRATEGIES)))
def test_a_draft_model_that_is_the_target_is_always_right(strategy: Strategy) -> None:
    """It draws with the same noise, processors and prefixes, from a cache that holds what the text holds."""
    for num_rows in (1, 3):
        draft = DraftModel(toy(3), 3)
        results = assert_equals_the_plain_loop(strategy, proposer=lambda _, p=draft: p, salt=3, num_rows=num_rows)
        assert acceptance(results) == 1.0
        for result in results:
            assert result.stats.num_forwards == -(-len(result.token_ids) // 4)


def test_masks_are_the_targets() -> None:
    draft = DraftModel(toy(0), 4)
    texts = [a + b + c for a in (b"a", b"b") for b in (b"ca", b"b", b"ac") for c in (b"ab", b"c\n", b"bb")]
    for strategy in (Greedy(), Sample(), Sample(top_k=3)):
        results = assert_equals_the_plain_loop(strategy, proposer=lambda _: draft, texts=texts)
        assert acceptance(results) == 1.0


def test_other_noise_is_accepted_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the argmax of the same model, drawn for a sampled text."""
    monkeypatch.setattr(drawing.LikeTarget, "take", lambda self, rows, drafts, logits: logits.argmax(-1).tolist())
    results = assert_equals_the_plain_loop(Sample(), proposer=lambda _: DraftModel(toy(3)), salt=3)
    assert acceptance(results) < 0.7


@few(1)
@pytest.mark.parametrize("strategy", [Greedy(), Sample(temperature=1.5)])
def test_texts_that_go_back(strategy: Strategy) -> None:
    constraint, _ = GUARDED[1]
    matcher = compile(constraint, LETTERS).matcher()
    requests = [Request([index % 8, index // 8], matcher, seed=index) for index in range(12)]
    texts, num_rollbacks = [], 0
    for proposer in (None, DraftModel(toy(2, 8)), DraftModel(toy(5, 8), 2)):
        given = Settings(
            LETTERS, strategy.pipeline, strategy.select, 16, can_redraw=can_redraw(strategy), proposer=proposer
        )
        done, results = decode(toy(2, 8), requests, given, 5)
        texts.append(done)
        num_rollbacks += sum(result.stats.num_rollbacks for result in results)
    assert texts[0] == texts[1] == texts[2] and num_rollbacks > 0


def test_one_pass_for_all_rows_and_rows_are_used_again() -> None:
    model = toy(3)
    draft = DraftModel(model, 3)
    prompts = [[1, number % 16] for number in range(24)]
    assert_equals_the_plain_loop(Greedy(), proposer=lambda _: draft, prompts=prompts, num_rows=4, max_new_tokens=10)
    assert max(map(len, model.calls)) == 4
    assert sum(map(len, model.calls)) > 2 * len(model.calls)
    gc.collect()
    assert [cache.num_rows for cache in model.caches] == [8]
    contexts = [Context([1, number % 16], []) for number in range(11)]
    before = draft.propose(contexts[:5], [3] * 5)
    after = draft.propose(contexts, [3] * 11)  # a larger cache, in which all is read again
    assert [one.tokens for one in after[:5]] == [one.tokens for one in before]
    assert [cache.num_rows for cache in model.caches] == [8, 16]
    again = draft.propose(contexts, [1, 0, *[3] * 9])
    assert [list(one.tokens) for one in again] == [
        list(one.tokens)[:n] for one, n in zip(after, [1, 0, *[3] * 9], strict=True)
    ]


def test_long_prompts_and_contexts_that_are_full() -> None:
    model = toy(0, context_length=1100)
    prompt = [number * number % 13 for number in range(1090)]
    draft = DraftModel(model, 4)
    short, long = Context([1], []), Context(prompt, [])
    drafts = draft.propose([short, long], [4, 4])
    assert max(max(call) for call in model.calls) <= 512 and len(drafts[1]) == 4
    [alone] = DraftModel(toy(0), 4).propose([Context([1], [])], [4])
    assert alone.tokens == drafts[0].tokens
    assert len(draft.propose([Context([1] * 1098, [])], [4])[0]) == 0
    assert draft.propose([], []) == []


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 512, 600])
@pytest.mark.parametrize("place", [0, 1, 255, 256, 300, 511, 599])
def test_what_is_common_in_blocks(length: int, place: int) -> None:
    text = [*range(600)]
    read = [*text[:length]]
    if place < length:
        read[place] = -5
    assert num_common(read, text) == min(place, length)
    assert num_common([*read, 7, 8], text[: max(1, length)]) <= length


def test_vocabularies_must_be_the_same() -> None:
    letters = [bytes((byte,)) for byte in b"abcd"]
    target = Vocabulary([*letters, None], [4])
    assert first_difference(Vocabulary([*letters, b"</s>"], []), target) is None  # another end of text
    assert first_difference(Vocabulary(letters, [], 8), target) is None  # padding
    assert first_difference(Vocabulary([b"a", b"c", b"b", b"d"], []), target) == 1
    assert first_difference(Vocabulary(letters[:3], []), target) == 3
    with pytest.raises(VocabularyMismatchError, match="another vocabulary than the target: token 5"):
        DraftModel(toy(0, 5)).check_target(toy(0), Vocabulary(letters, [], 6), is_greedy=True)
    with pytest.raises(VocabularyMismatchError, match="another vocabulary"):
        llm().generate("x", speculate=DraftModel(toy(0, 5)), max_new_tokens=4)


def test_what_cannot_draft() -> None:
    for wrong in (5, None, object()):
        with pytest.raises(OptionError, match="the name of a model, got"):
            DraftModel(wrong)
    for number in (0, 1.5, True):
        with pytest.raises(OptionError, match="num_tokens"):
            DraftModel("tiny-draft", number)  # type: ignore[arg-type]
    recurrent = toy(0)
    recurrent.can_rollback = False
    with pytest.raises(OptionError, match="recurrent state"):
        DraftModel(recurrent).propose([Context([1], [])], [1])


def test_copies_load_their_model_anew() -> None:
    draft = DraftModel("tiny-draft", 2)
    [expected] = draft.propose([Context([5, 6], [])], [4])
    copy = pickle.loads(pickle.dumps(draft))
    assert copy == draft and copy._engine is None
    assert copy.propose([Context([5, 6], [])], [4])[0].tokens == expected.tokens


@functools.cache
def llm() -> Any:
    return dk.LLM.load("tiny")


def test_a_call_loads_a_model_by_its_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    own = draft_model.loaded
    monkeypatch.setattr(draft_model, "loaded", lambda model: loaded.append(model) or own(model))
    given: dict[str, Any] = {"speculate": "draft-model:tiny-draft", "max_new_tokens": 4}
    assert llm().generate("Dear", **given).stats.num_drafts > 0
    assert loaded == ["tiny-draft"]


@pytest.mark.slow
@thinned("temperature", [None, 0.7], keep=[0.7])
def test_extraction_with_the_bundled_draft_model(temperature: float | None) -> None:
    strategy = {} if temperature is None else {"strategy": "sample", "temperature": temperature, "seed": [3, 4]}
    given = {"constraint": schema_of("ticket"), "max_new_tokens": 120, "on_length": "return", **strategy}
    plain = llm().generate(documents("ticket"), **given)
    for batch_size in (1, 2):
        drafted = llm().generate(
            documents("ticket"), speculate=DraftModel("tiny-draft"), batch_size=batch_size, **given
        )
        for one, other in zip(drafted, plain, strict=True):
            assert one.token_ids == other.token_ids
            assert one.stats.num_forwards < 0.6 * len(one.token_ids)
            assert one.stats.draft_acceptance_rate > 0.4
