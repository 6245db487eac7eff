"""log Z: what the masks leave of the model's own law, token by token, against sums over the vocabulary."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.constraints import Regex, compile
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.strategy import Greedy, Sample, Strategy, can_redraw
from tests.decoding.pairs import VOCABULARY as LETTERS
from tests.decoding.test_scheduler import VOCABULARY, V, settings_of
from tests.reference.generation import TableLM, TextsMatcher, ToyLM, hashed_law
from tests.reference.speculation import text_law
from tests.sizes import few
from tests.speculation.test_laws import NUM_TOKENS, PROMPT, REGEX, TARGET
from tests.speculation.test_laws import VOCABULARY as FIVE
from tests.speculation.test_same_text import GUARDED, Prophet, decode

TEXTS = [b"abcabc", b"abbb\nc", b"abca", b"cab", b"bca\n\n"]


def log_mass(logits: torch.Tensor, tokens: list[int]) -> float:
    """The logarithm of the probability of a set of tokens."""
    law = logits.double().softmax(-1)
    return math.log(sum(float(law[token]) for token in tokens))


@pytest.mark.parametrize(
    "strategy", [Greedy(), Sample(temperature=1.5, top_k=3), Sample(logit_bias={0: -3.0})], ids=repr
)
@pytest.mark.parametrize("fast_forward", ["off", "exact"])
@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_every_token(strategy: Strategy, fast_forward: Any, num_tokens: int) -> None:
    """Forced tokens, drafts that are right and wrong, processors that change which token is taken."""
    law = hashed_law(V)
    requests = [Request([3, 1, index], TextsMatcher(TEXTS, VOCABULARY), seed=index) for index in range(6)]
    options: dict[str, Any] = {"fast_forward": fast_forward, "num_alternatives": 0, "masks": "always"}
    known = decode(ToyLM(law, V), requests, settings_of(strategy, **options), 6)[0]
    if num_tokens:
        texts = {tuple(request.prompt): known[index][1] for index, request in enumerate(requests)}
        options["proposer"] = Prophet(texts, 0.3, num_tokens)
    done, results = decode(ToyLM(law, V), requests, settings_of(strategy, **options), 4)
    assert done == known
    num_forced = 0
    for request, result in zip(requests, results, strict=True):
        matcher = TextsMatcher(TEXTS, VOCABULARY)
        for position, entry in enumerate(result.logprobs):
            allowed = [token for token in range(V) if matcher.validate([token])]
            logits = law([*request.prompt, *result.token_ids[:position]])
            assert entry.log_z == pytest.approx(log_mass(logits, allowed), abs=1e-5)
            if len(allowed) == 1:
                num_forced += 1
                assert entry.log_z == pytest.approx(entry.logprob, abs=1e-5)
            assert matcher.accept(result.token_ids[position])
        assert result.stats.log_z == pytest.approx(sum(entry.log_z for entry in result.logprobs))
    assert num_forced > 5


def test_the_weight_of_a_text() -> None:
    """p(x) = q(x) Z(x) for every text that came, so that the mean of Z is the mass of the language under the model."""
    matcher = compile(REGEX, FIVE).matcher()
    strategy = Sample()
    q = text_law(strategy, lambda token: TARGET[token], PROMPT, NUM_TOKENS + 1, matcher)
    p = {
        text: math.prod(
            float(TARGET[last].double().softmax(-1)[token])
            for last, token in zip((PROMPT[-1], *text), text, strict=False)
        )
        for text in q
    }
    given = Settings(FIVE, strategy.pipeline, strategy.select, NUM_TOKENS + 1, num_alternatives=0)
    num_samples, weights = 2000, []
    requests = (Request(PROMPT, matcher, seed=seed) for seed in range(num_samples))
    for update in decode_texts(TableLM(TARGET), given, 500, requests):
        if update.result is not None:
            log_z = update.result.stats.log_z
            assert log_z is not None
            assert math.log(p[update.result.token_ids]) == pytest.approx(
                math.log(q[update.result.token_ids]) + log_z, abs=1e-5
            )
            weights.append(math.exp(log_z))
    mass = sum(p.values())
    error = float(torch.tensor(weights).std()) / num_samples**0.5
    assert abs(sum(weights) / num_samples - mass) < 4.5 * error  # odds of 1 in 10^5


@few(4)
@pytest.mark.parametrize("strategy", [Greedy(), Sample(temperature=1.5), Sample(temperature=1.5, top_k=4)], ids=repr)
@pytest.mark.parametrize("number", range(len(GUARDED)))
def test_texts_that_go_back(number: int, strategy: Strategy) -> None:
    """One entry for each token that stayed, between the token's own mass and the mask's; the same with drafts."""
    constraint, options = GUARDED[number]
    law = hashed_law(8, salt=2)
    options = {"can_redraw": can_redraw(strategy), "num_alternatives": 0, **options}
    requests = [Request([i % 8, i // 8], compile(constraint, LETTERS).matcher(), seed=i) for i in range(12)]

    def run(**more: Any) -> tuple[Any, list[Any]]:
        return decode(
            ToyLM(law, 8), requests, Settings(LETTERS, strategy.pipeline, strategy.select, 16, **options, **more), 5
        )

    done, results = run()
    texts = {tuple(request.prompt): done[index][1] for index, request in enumerate(requests)}
    again, drafted = run(proposer=Prophet(texts, 0.2, 4, 8))
    assert again == done
    for request, one, other in zip(requests, results, drafted, strict=True):
        assert [entry.log_z for entry in one.logprobs] == pytest.approx([entry.log_z for entry in other.logprobs])
        assert len(one.logprobs) == len(one.token_ids)
        matcher = compile(constraint, LETTERS).matcher()
        for position, entry in enumerate(one.logprobs):
            allowed = [token for token in range(8) if matcher.validate([token])]
            whole = log_mass(law([*request.prompt, *one.token_ids[:position]]), allowed)
            assert entry.logprob - 1e-5 <= entry.log_z <= whole + 1e-5
            assert matcher.accept(entry.token_id)


def test_without_a_constraint_it_is_zero_and_unasked_it_is_none() -> None:
    free = [Request([3, 1, 2])]
    [result] = decode(ToyLM(hashed_law(V), V), free, settings_of(masks="always", num_alternatives=2), 1)[1]
    assert result.stats.log_z == 0.0 and all(entry.log_z == 0.0 for entry in result.logprobs)
    [result] = decode(ToyLM(hashed_law(V), V), free, settings_of(), 1)[1]
    assert result.stats.log_z is None
    mixed = [Request([3, 1, 2]), Request([3, 1, 2], TextsMatcher(TEXTS, VOCABULARY))]
    one, other = decode(ToyLM(hashed_law(V), V), mixed, settings_of(masks="always", num_alternatives=0), 2)[1]
    assert one.stats.log_z == 0.0 and other.stats.log_z is not None and other.stats.log_z < -1


def test_through_the_front_door() -> None:
    llm: Any = dk.LLM.load("tiny")
    options = {"constraint": Regex(r"[0-9]{2}-[a-z]{3}"), "max_new_tokens": 20, "logprobs": True, "masks": "always"}
    plain = llm.generate("Invoice A-17", **options)
    fast = llm.generate("Invoice A-17", speculate=dk.DraftModel("tiny-draft"), **options)
    assert plain.text == fast.text
    assert plain.stats.log_z == pytest.approx(fast.stats.log_z, abs=1e-3) and plain.stats.log_z < 0
    assert [one.log_z for one in plain.logprobs] == pytest.approx([one.log_z for one in fast.logprobs], abs=1e-3)
    beams = llm.generate("Invoice A-17", strategy="beam", **options)
    assert beams.stats.log_z is None
