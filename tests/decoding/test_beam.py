"""Beam search beside transformers, beside brute force, and under constraints."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor as TheirProcessor
from transformers import LogitsProcessorList

import decodekit as dk
from decodekit.constraints import Regex, compile
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.errors import DeadEndError, LengthError, NonFiniteLogitsError, OptionError
from decodekit.llm import LLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.sampling import LogitBias, RepetitionPenalty
from decodekit.strategy import Beam
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.beam import best_texts, diverse_beam_search, text_log_prob, texts_of_words
from tests.reference.generation import Law, TextsMatcher, ToyLM, hashed_law
from tests.sizes import few

EOS = frozenset(range(2, VOCAB_SIZE, 3))  # many, for random weights seldom choose a given one
PROMPTS = [tokens(i, length) for i, length in enumerate((3, 17, 9))]
NUM_TOKENS = 12


@functools.cache
def model(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def search(
    lm: Any, beam: Beam, requests: Sequence[Any], vocabulary: Vocabulary, num_prompts: int = 3, **options: Any
) -> list[Result]:
    options = {"max_new_tokens": NUM_TOKENS, **options}
    settings = Settings(vocabulary, beam.pipeline, beam.select, **options)
    done = {}
    for update in beam.decode(lm, settings, num_prompts, requests):
        assert update.result is not None and update.index not in done
        assert update.token_ids == update.result.token_ids
        done[update.index] = update.result
    return [done[index] for index in range(len(requests))]


def results(first: Result) -> list[Result]:
    """A result and the others of its search."""
    others = [update.result for update in first.others if update.result is not None]
    assert len(others) == len(first.others)
    return [first, *others]


def ours(name: str, beam: Beam, eos: frozenset[int], prompts: Any = PROMPTS, **options: Any) -> Any:
    vocabulary = Vocabulary([None] * VOCAB_SIZE, eos)
    found = search(model(name), beam, [Request(prompt) for prompt in prompts], vocabulary, **options)
    return [[(one.token_ids, one.score) for one in results(first)] for first in found]


def theirs(name: str, beam: Beam, eos: frozenset[int], prompts: Any = PROMPTS, **options: Any) -> Any:
    own: Any = model(name).model
    own.generation_config.eos_token_id = None
    found = []
    for prompt in prompts:
        out = own.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NUM_TOKENS,
            num_beams=beam.num_beams,
            length_penalty=beam.length_penalty,
            early_stopping=beam.early_stopping,
            num_return_sequences=beam.num_return_sequences,
            eos_token_id=sorted(eos) or None,
            pad_token_id=0,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        rows = [
            cropped(row[len(prompt) :], indices)
            for row, indices in zip(out.sequences.tolist(), out.beam_indices.tolist(), strict=True)
        ]
        found.append(list(zip(rows, out.sequences_scores.tolist(), strict=True)))
    return found


def cropped(row: list[int], indices: list[int]) -> tuple[int, ...]:
    """A row without its padding: where there is a beam, there is a token."""
    return tuple(token for token, index in zip(row, indices, strict=True) if index >= 0)


def assert_equal(mine: Any, expected: Any) -> None:
    assert [[text for text, _ in found] for found in mine] == [[text for text, _ in found] for found in expected]
    scores = [score for found in expected for _, score in found]
    assert [score for found in mine for _, score in found] == pytest.approx(scores, rel=1e-5, abs=1e-5)


@few(3, "2.0-never-gpt2")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_equals_transformers(name: str, early_stopping: Any, length_penalty: float) -> None:
    """Texts and scores, for texts that end early and texts that are cut."""
    beam = Beam(3, length_penalty, early_stopping, num_return_sequences=3)
    mine = ours(name, beam, EOS)
    assert_equal(mine, theirs(name, beam, EOS))
    lengths = {len(text) for found in mine for text, _ in found}
    assert len(lengths) > 1 or length_penalty > 1  # some end, or the test would say little about ends


class Banned(TheirProcessor):
    """Transformers' side of a logit bias."""

    def __init__(self, biases: dict[int, float]) -> None:
        self.biases = biases

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        for token, bias in self.biases.items():
            scores[:, token] += bias
        return scores


def test_processors_see_log_probabilities_as_in_transformers() -> None:
    """A penalty divides a log-probability, a bias may forbid; neither is followed by a normalisation."""
    biases = {5: 1.5, 7: -math.inf, 60: 2.0}
    beam = Beam(4, num_return_sequences=4, processors=(RepetitionPenalty(1.7), LogitBias(biases)))
    expected = theirs(
        "llama", beam, EOS, logits_processor=LogitsProcessorList([Banned(biases)]), repetition_penalty=1.7
    )
    assert_equal(ours("llama", beam, EOS), expected)
    plain = ours("llama", Beam(4, num_return_sequences=4), EOS)
    assert [text for text, _ in plain[0]] != [text for text, _ in expected[0]]


def test_a_prompt_does_not_depend_on_its_neighbours() -> None:
    beam = Beam(3, num_return_sequences=3)
    alone = [ours("llama", beam, EOS, [prompt], num_prompts=1)[0] for prompt in PROMPTS]
    for num_prompts in (1, 2, 3, 7):
        assert_equal(ours("llama", beam, EOS, num_prompts=num_prompts), alone)


V = 4
ENDS = frozenset({3})
LETTERS = Vocabulary([b"a", b"b", b"c", None], ENDS)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("salt", range(4))
def test_equals_brute_force(salt: int, length_penalty: float) -> None:
    """As many beams as there are texts that go on (3^3) lose nothing: the best are the best of all texts."""
    law = hashed_law(V, salt=salt)
    lm = ToyLM(law, V, ENDS)
    beam = Beam(27, length_penalty, "never", num_return_sequences=5)
    [found] = search(lm, beam, [Request([1, 2])], LETTERS, max_new_tokens=4)
    expected = best_texts(law, [1, 2], V, 4, ENDS, length_penalty)[:5]
    assert [one.token_ids for one in results(found)] == [text for _, text in expected]
    assert [one.score for one in results(found)] == pytest.approx([score for score, _ in expected], abs=1e-5)


def test_few_beams_do_lose_texts() -> None:
    """The negative control of brute force: with two beams the best text is sometimes missed."""
    missed = 0
    for salt in range(12):
        law = hashed_law(V, scale=0.7, salt=salt)
        [found] = search(ToyLM(law, V, ENDS), Beam(2, 0.0), [Request([1, 2])], LETTERS, max_new_tokens=4)
        [(score, best), *_] = best_texts(law, [1, 2], V, 4, ENDS, 0.0)
        assert found.score is not None and found.score <= score + 1e-5
        assert found.score == pytest.approx(text_log_prob(law, [1, 2], found.token_ids), abs=1e-5)
        missed += found.token_ids != best
    assert 0 < missed < 12


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("salt", range(6))
def test_diverse_beams_equal_the_slow_search(salt: int, length_penalty: float) -> None:
    law = hashed_law(6, salt=salt)
    vocabulary = Vocabulary([b"a", b"b", b"c", b"d", b"e", None], frozenset({5}))
    beam = Beam(6, length_penalty, num_return_sequences=6, num_beam_groups=3, diversity_penalty=0.8)
    [found] = search(ToyLM(law, 6), beam, [Request([1])], vocabulary, max_new_tokens=5)
    slow = functools.partial(
        diverse_beam_search, law, [1], 6, 5, frozenset({5}), num_groups=3, group_size=2, length_penalty=length_penalty
    )
    expected = slow(diversity_penalty=0.8)
    assert [one.token_ids for one in results(found)] == [text for _, text in expected]
    assert [one.score for one in results(found)] == pytest.approx([score for score, _ in expected], abs=1e-5)
    assert expected != slow(diversity_penalty=0.0)  # all groups find the same


def test_the_prompt_is_read_once() -> None:
    """One pass over the prompts; then, per step, one token of every hypothesis and no more."""
    lm = ToyLM(hashed_law(V), V)
    no_end = Vocabulary([b"a", b"b", b"c", b"d"], ())
    prompts = [[1, 2, 3, 1, 2], [2, 1, 0]]
    found = search(lm, Beam(4), [Request(prompt) for prompt in prompts], no_end, max_new_tokens=3)
    assert [one.stats.num_forwards for one in found] == [3, 3]
    assert sorted(lm.calls[0]) == [3, 5]
    assert lm.calls[1:] == [[1] * 8, [1] * 8]


def test_rows_are_copied_only_where_a_hypothesis_branches() -> None:
    """With a law that always goes on with its own token, two hypotheses keep their rows after the first step."""

    def law(prefix: Sequence[int]) -> Tensor:
        logits = torch.full((V,), -20.0)
        logits[prefix[-1] if len(prefix) > 1 else slice(0, 2)] = 0.0
        return logits

    lm = ToyLM(law, V)
    no_end = Vocabulary([b"a", b"b", b"c", b"d"], ())
    [found] = search(lm, Beam(2, num_return_sequences=2), [Request([3])], no_end, max_new_tokens=6)
    assert sorted(one.token_ids for one in results(found)) == [(0,) * 6, (1,) * 6]
    assert lm.caches[0].num_reorders == 1


TEXTS = [b"ab", b"abca", b"bcc", b"c", b"aaaa"]


@pytest.mark.parametrize("salt", range(8))
def test_constrained_beams_are_valid(salt: int) -> None:
    """Scores are those of the free law: a mask takes away and divides by nothing. All texts fit into the beams."""
    law = hashed_law(V, salt=salt)
    matcher = TextsMatcher(TEXTS, LETTERS)
    request = Request([1], matcher)
    [found] = search(ToyLM(law, V), Beam(6, 0.0, "never", num_return_sequences=6), [request], LETTERS)
    every = {}
    for text in TEXTS:
        tokens_of_text = tuple(b"abc".index(byte) for byte in text)
        # A text that another one goes on from must be ended; the others end by themselves.
        ended = (*tokens_of_text, 3) if any(o.startswith(text) and o != text for o in TEXTS) else tokens_of_text
        every[ended] = text_log_prob(law, [1], ended)
    expected = sorted(every, key=lambda text: -every[text])
    assert [one.token_ids for one in results(found)] == expected
    assert [one.score for one in results(found)] == pytest.approx([every[text] for text in expected], abs=1e-5)
    assert {one.finish_reason for one in results(found)} == {"stop", "complete"}
    assert matcher.num_tokens == 0  # the request can be run again


def test_the_mask_comes_before_the_best_are_chosen() -> None:
    """The likeliest tokens are all forbidden: chosen first and masked then, nothing would be left."""
    letters = Vocabulary([bytes([byte]) for byte in b"abcdefghijkl"], ())
    lm = ToyLM(lambda prefix: -torch.arange(12.0), 12)
    [found] = search(lm, Beam(2), [Request([1], TextsMatcher([b"lk", b"ll"], letters))], letters)
    assert (found.token_ids, found.finish_reason) == ((11, 10), "complete")


def test_a_beam_in_a_dead_end_is_dropped() -> None:
    """The likeliest text leads where every token is forbidden; the other hypothesis goes on."""

    def law(prefix: Sequence[int]) -> Tensor:
        return torch.tensor([3.0, 0.0, 0.0, 0.0])

    banned = LogitBias({2: -math.inf})
    texts = [b"ac", b"ba"]
    beam = Beam(2, processors=banned)
    [found] = search(ToyLM(law, V), beam, [Request([1], TextsMatcher(texts, LETTERS))], LETTERS)
    assert (found.token_ids, found.finish_reason, found.others) == ((1, 0), "complete", ())
    [lost] = search(ToyLM(law, V), beam, [Request([1], TextsMatcher([b"ac"], LETTERS))], LETTERS)
    assert lost.finish_reason == "dead_end" and isinstance(lost.error, DeadEndError)


def test_texts_that_were_cut_rank_behind_whole_ones() -> None:
    """By score alone the cut text would be first."""

    def law(prefix: Sequence[int]) -> Tensor:
        return torch.tensor([3.0, 1.0, 0.0, 0.0])

    matcher = TextsMatcher([b"aaaa", b"ab"], LETTERS)
    beam = Beam(3, 0.0, num_return_sequences=3)
    [found] = search(ToyLM(law, V), beam, [Request([1], matcher)], LETTERS, max_new_tokens=3)
    assert [(one.token_ids, one.finish_reason) for one in results(found)] == [
        ((0, 1), "complete"),
        ((0, 0, 0), "length"),
    ]


PIECES = [b"a", b"b", b"c", b"ab"]
WORDS = Vocabulary([*PIECES, None], frozenset({4}))
CLOSING = [("(ab|c)+", 4), ("a{2,5}b", 4), ("[abc]*c", 3), ("(abc)+", 4), ("a(b|bc{2,9})?", 3), ("c|(aab)*b", 4)]
"""Patterns, and budgets that cut some of their texts."""


@functools.cache
def world_of(pattern: str, max_tokens: int) -> frozenset[tuple[int, ...]]:
    every = (bytes(word) for n in range(2 * max_tokens + 3) for word in itertools.product(b"abc", repeat=n))
    return frozenset(
        texts_of_words({word for word in every if re.fullmatch(pattern.encode(), word)}, PIECES, max_tokens)
    )


def closed(pattern: str, max_tokens: int, beam: Beam, salt: int, **options: Any) -> list[Result]:
    request = Request([1, 2], compile(Regex(pattern), WORDS).matcher())
    options = {"max_new_tokens": max_tokens, "must_close": True, **options}
    [found] = search(ToyLM(hashed_law(5, salt=salt), 5, frozenset({4})), beam, [request], WORDS, **options)
    return results(found)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize(("pattern", "max_tokens"), CLOSING)
def test_closing_in_time_equals_brute_force(pattern: str, max_tokens: int, length_penalty: float) -> None:
    """With as many beams as there are beginnings the best texts are the best of all that fit."""
    world = world_of(pattern, max_tokens)
    for salt in range(3):
        found = closed(pattern, max_tokens, Beam(70, length_penalty, "never", num_return_sequences=4), salt)
        law = hashed_law(5, salt=salt)
        expected = best_texts(law, [1, 2], 5, max_tokens, frozenset({4}), length_penalty, world)[:4]
        assert [one.token_ids for one in found] == [text for _, text in expected]
        assert [one.score for one in found] == pytest.approx([score for score, _ in expected], abs=1e-5)
        assert {one.finish_reason for one in found} <= {"stop", "complete"}


@few(11)
@pytest.mark.parametrize("processors", [(), (dk.TopK(2),)], ids=["all", "top-k"])
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize(("pattern", "max_tokens"), CLOSING)
def test_few_beams_that_close_equal_the_slow_search(
    pattern: str, max_tokens: int, num_groups: int, processors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the mask of what ends in time has all tokens, so that what comes too late is found one by one."""
    penalty = 0.7 * (num_groups - 1)
    beam = Beam(4, num_return_sequences=4, num_beam_groups=num_groups, diversity_penalty=penalty, processors=processors)
    for salt in range(4):
        found = closed(pattern, max_tokens, beam, salt)
        if not processors:
            expected = diverse_beam_search(
                hashed_law(5, salt=salt),
                [1, 2],
                5,
                max_tokens,
                frozenset({4}),
                num_groups=num_groups,
                group_size=4 // num_groups,
                diversity_penalty=penalty,
                length_penalty=1.0,
                world=world_of(pattern, max_tokens),
            )
            assert [one.token_ids for one in found] == [text for _, text in expected[:4]]
        with monkeypatch.context() as patched:
            patched.setattr(GrammarMatcher, "fill_ending", lambda self, out, *asked: out.fill(-1))
            wide = closed(pattern, max_tokens, beam, salt)
        assert [(one.token_ids, one.score) for one in wide] == [(one.token_ids, one.score) for one in found]


def test_beams_that_do_not_close_are_cut() -> None:
    """The negative control: some of their texts are no words."""
    beam = Beam(2, num_return_sequences=2)
    cases = [(*case, salt) for case in CLOSING for salt in range(4)]
    found = [(case, one) for *case, salt in cases for one in closed(*case, beam, salt, must_close=False)]
    assert any(one.finish_reason == "length" and one.token_ids not in world_of(*case) for case, one in found)


def test_beams_close_without_forbidden_tokens() -> None:
    """The end of the text is forbidden, and one more repetition has no room: a whole text ends as it is."""
    no_end = Beam(3, num_return_sequences=2, processors=LogitBias({4: -math.inf}))
    for max_tokens, texts in ((2, {b"abc"}), (3, {b"abc"}), (4, {b"abcabc"})):
        found = closed("(abc)+", max_tokens, no_end, 0)
        assert {b"".join(PIECES[token] for token in one.token_ids) for one in found} <= texts | {b"abc"}
        assert {(one.finish_reason, one.error) for one in found} == {("complete", None)}
    [short] = closed("(abc)+", 1, no_end, 0)
    assert isinstance(short.error, LengthError) and "the least known has 2" in str(short.error)


@few(1)
@pytest.mark.parametrize(
    "beam", [dk.Beam(3), dk.Beam(4, num_beam_groups=2, diversity_penalty=0.5), dk.Beam(3, do_sample=True)]
)
def test_beams_of_a_schema_without_bounds_are_whole(beam: dk.Beam) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array"}}}
    schema |= {"required": ["name", "tags"]}
    for max_new_tokens in (17, 24):
        best = LLM.load("tiny").generate(
            "Dear", constraint=schema, strategy=beam, max_new_tokens=max_new_tokens, on_length="close"
        )
        assert best.error is None and set(best.value) >= {"name", "tags"}
        assert len(best.token_ids) <= max_new_tokens


def test_stop_strings_end_hypotheses() -> None:
    law = hashed_law(V, salt=6)
    no_end = Vocabulary([b"a", b"b", b"c", b"d"], ())
    beam = Beam(4, -1.0, num_return_sequences=4)
    settings = Settings(no_end, beam.pipeline, beam.select, 8, ("ca",))
    [update] = beam.decode(ToyLM(law, V), settings, 1, [Request([1])])
    assert update.result is not None
    stopped = 0
    for one in (update, *update.result.others):
        assert one.result is not None
        text = "".join("abcd"[token] for token in one.token_ids)
        assert one.text == text.split("ca")[0]
        assert (one.result.finish_reason == "stop") == text.endswith("ca")
        stopped += one.result.finish_reason == "stop"
    assert stopped > 0


def draws(law: Law, beam: Beam, num_samples: int) -> Iterator[tuple[int, ...]]:
    no_end = Vocabulary([b"a", b"b", b"c"], ())
    settings = Settings(no_end, beam.pipeline, beam.select, 2)
    requests = [Request([1], seed=seed) for seed in range(num_samples)]
    for update in beam.decode(ToyLM(law, 3), settings, 50, requests):
        yield update.token_ids


def test_beam_sampling_draws_without_replacement() -> None:
    """The law of the first text of two tokens, against all orders of draws; chance fails it once in 10,000.

    With V = 3 and b = 2, the K = 4 of a step are drawn one after the other from what is left of 3 and then 6.
    """
    law = hashed_law(3, scale=1.0, salt=5)
    num_samples = 1500
    counts: dict[tuple[int, ...], int] = {}
    for text in draws(law, Beam(2, do_sample=True, temperature=1.5), num_samples):
        counts[text] = counts.get(text, 0) + 1
    expected = dict.fromkeys(itertools.product(range(3), repeat=2), 0.0)
    step = torch.log_softmax(law([1]), dim=-1) / 1.5
    best_two = step.topk(2).indices.tolist()  # all three are drawn, so the best two go on
    totals = {
        (first, token): float(step[first] + (torch.log_softmax(law([1, first]), dim=-1) / 1.5)[token])
        for first in best_two
        for token in range(3)
    }
    weights = {text: math.exp(total) for text, total in totals.items()}
    mass = sum(weights.values())
    for one, two in itertools.permutations(totals, 2):  # the first two drawn are kept, the better one is first
        chance = weights[one] / mass * weights[two] / (mass - weights[one])
        expected[max(one, two, key=totals.__getitem__)] += chance
    # Five of six texts can come first; chi squared with at most 4 degrees of freedom exceeds 23.5 once in 10,000.
    assert all(expected[text] > 0 for text in counts)
    likely = {text: chance for text, chance in expected.items() if chance > 0}
    statistic = sum(
        (counts.get(text, 0) - num_samples * chance) ** 2 / (num_samples * chance) for text, chance in likely.items()
    )
    assert len(likely) == 5 and statistic < 23.5
    uniform = num_samples / len(likely)  # the control: another law is refused
    assert sum((counts.get(text, 0) - uniform) ** 2 / uniform for text in likely) > 23.5


def test_beam_sampling_is_a_function_of_the_seed() -> None:
    beam = Beam(3, do_sample=True)
    vocabulary = Vocabulary([None] * VOCAB_SIZE, EOS)
    requests = [Request(prompt, seed=seed) for seed, prompt in enumerate(PROMPTS * 2)]
    together = search(model("llama"), beam, requests, vocabulary, num_prompts=4)
    alone = [search(model("llama"), beam, [request], vocabulary)[0] for request in requests]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert together[0].token_ids != together[3].token_ids


def test_logprobs_are_those_of_the_model() -> None:
    law = hashed_law(V, salt=1)
    beam = Beam(3, 0.0, processors=LogitBias({0: 1.0}))
    [found] = search(ToyLM(law, V), beam, [Request([1])], LETTERS, num_alternatives=2)
    assert [entry.token_id for entry in found.logprobs] == list(found.token_ids)
    total = math.fsum(entry.logprob for entry in found.logprobs)
    assert total == pytest.approx(text_log_prob(law, [1], found.token_ids), abs=1e-5)
    assert {len(entry.alternatives) for entry in found.logprobs} == {2}
    assert found.score == pytest.approx(total + found.token_ids.count(0), abs=1e-5)


def test_a_prompt_that_fails_leaves_the_others_alone() -> None:
    def law(prefix: Sequence[int]) -> Tensor:
        return torch.full((V,), math.nan) if len(prefix) > 2 and prefix[0] == 2 else hashed_law(V)(prefix)

    requests = [Request([1]), Request([2]), OptionError("unreadable"), Request([]), Request([1])]
    found = search(ToyLM(law, V), Beam(2), requests, LETTERS)
    assert isinstance(found[1].error, NonFiniteLogitsError) and found[1].finish_reason == "error"
    assert isinstance(found[2].error, OptionError) and isinstance(found[3].error, OptionError)
    assert found[0].error is None and found[0].token_ids == found[4].token_ids


def test_options_are_a_value() -> None:
    """Whoever looks for a field `speculate` to fill, as jobs do, finds none."""
    beam = Beam(4, 0.5)
    assert dataclasses.replace(beam, num_beams=2) == Beam(2, 0.5) != beam
    assert "speculate" not in {option.name for option in dataclasses.fields(beam)} and beam.speculate is None
    assert isinstance(beam, dk.Strategy) and hash(beam) == hash(Beam(4, 0.5))


@pytest.mark.parametrize(
    ("options", "faulty"),
    [
        ({"early_stopping": 1}, ["early_stopping"]),
        ({"num_beams": 1}, ["num_beams"]),
        ({"length_penalty": math.nan}, ["length_penalty"]),
        ({"early_stopping": "always"}, ["early_stopping"]),
        ({"num_return_sequences": 5}, ["num_return_sequences"]),
        ({"num_beam_groups": 3, "diversity_penalty": 0.5}, ["num_beam_groups"]),
        ({"num_beam_groups": 2}, ["num_beam_groups"]),
        ({"diversity_penalty": 0.5}, ["diversity_penalty"]),
        ({"temperature": 0.5}, ["temperature"]),
        ({"seed": 1}, ["seed"]),
        ({"do_sample": True, "num_beam_groups": 2, "diversity_penalty": 0.5}, ["do_sample"]),
        ({"speculate": "prompt-lookup"}, ["speculate"]),
        ({"num_beams": 0, "temperature": 0.5, "speculate": "prompt-lookup"}, ["num_beams", "temperature", "speculate"]),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], faulty: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        Beam(**options)
    assert [fault.at for fault in caught.value.faults or (caught.value,)] == faulty


def test_generate_reaches_the_search_by_value_and_by_name() -> None:
    llm = LLM.load("tiny")
    prompts = ["Invoice A-17, total", "The", "Dear"]
    beam = dk.Beam(3, num_return_sequences=2)
    found = llm.generate(prompts, strategy=beam, max_new_tokens=8, logprobs=True)
    assert found[0].text == llm.generate(prompts[0], strategy="beam", num_beams=3, max_new_tokens=8).text
    for completion in found:
        assert completion.error is None and completion.score is not None and len(completion.others) == 1
        [other] = completion.others
        assert other.score is not None and other.score <= completion.score and other.token_ids != completion.token_ids
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
        total = math.fsum(entry.logprob for entry in completion.logprobs)
        assert completion.score == pytest.approx(total / len(completion.token_ids), abs=1e-4)
        assert completion.stats.num_generated_tokens == len(completion.token_ids) and completion.stats.ttft_s is None
    greedy = llm.generate(prompts[0], max_new_tokens=8)
    assert greedy.score is None and greedy.others == ()
    [chunk] = llm.stream(prompts[0], strategy=beam, max_new_tokens=8)
    assert chunk.completion is not None and (chunk.text, chunk.completion.text) == (found[0].text,) * 2


def test_generate_gives_values_of_a_constraint_and_of_a_guard() -> None:
    """What the guard refuses is no candidate; a text that goes on with blanks instead is cut, and comes last."""
    llm = LLM.load("tiny")
    schema = {"type": "object", "properties": {"total": {"type": "integer", "minimum": 7, "maximum": 99}}}
    schema |= {"required": ["total"], "additionalProperties": False}
    beam = dk.Beam(3, num_return_sequences=3)
    wide = dk.JsonSchema(schema, whitespace="any", escapes="any")
    free = llm.generate("Total 40", constraint=wide, strategy=beam, max_new_tokens=40, masks="always")
    every = [free, *free.others]
    assert len(every) > 1 and all(7 <= one.value["total"] <= 99 for one in every)
    assert all(
        one.stats.num_masks == len(one.token_ids) and one.stats.ask_s is one.stats.mask_s is None for one in every
    )
    refused = free.value["total"]
    guarded = dk.Guarded(wide, lambda value: value["total"] != refused)
    found = llm.generate("Total 40", constraint=guarded, strategy=beam, max_new_tokens=40)
    values = [one.value for one in (found, *found.others)]
    assert values[:2] == [one.value for one in free.others]
    assert values[2] is None and isinstance(found.others[1].error, LengthError)


@few(2)
@pytest.mark.parametrize(
    ("options", "faulty"),
    [
        ({"strategy": "beam", "speculate": "prompt-lookup"}, "speculate"),
        ({"strategy": dk.Beam(2), "fast_forward": "canonical"}, "fast_forward"),
        ({"strategy": "beam", "max_rollbacks": 3}, "max_rollbacks"),
        ({"strategy": "greedy", "num_beams": 3}, "num_beams"),
        ({"strategy": dk.Beam(2), "num_beams": 3}, "num_beams"),
    ],
)
def test_options_of_a_call_that_beams_cannot_use(options: dict[str, Any], faulty: str) -> None:
    with pytest.raises(OptionError) as caught:
        LLM.load("tiny").generate("a", constraint={"type": "integer"}, **options)
    assert caught.value.at == faulty
    assert caught.value.code in ("DK305", "DK306")
