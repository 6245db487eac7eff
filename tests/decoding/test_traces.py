"""What `trace=True` records of every token, and that the text is the same without it."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.decoding.lazy_masks.positions import Guess
from decodekit.decoding.request.token_traces import TokenTrace
from decodekit.decoding.request.trace_recorder import MAX_OPTIONS
from decodekit.decoding.request.trace_recorder import _sources as sources_of
from decodekit.errors import OptionError
from tests.sizes import few

PROMPT = "Invoice A-17, total 40.20 EUR."
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string", "pattern": "^[A-Z0-9-]{1,9}$"}, "total": {"type": "number"}},
    "required": ["number", "total"],
    "additionalProperties": False,
}
DRAFTS = [dk.GrammarDraft(), dk.PromptLookup()]
DRAFT = dk.LLM.load("tiny-draft")
STRATEGIES: dict[str, Any] = {
    "greedy": dk.Greedy(),
    "drafts": dk.Greedy(speculate=DRAFTS),
    "sample": dk.Sample(temperature=4.0, seed=5, speculate=DRAFTS),
    "tested": dk.Sample(temperature=4.0, seed=5, speculate=dk.DraftModel(DRAFT), verify="rejection"),
    "samples": dk.Sample(temperature=4.0, seed=5, num_return_sequences=2),
    "beam": dk.Beam(2, num_return_sequences=2),
    "particles": dk.Particles(2),
    "contrastive": dk.ContrastiveSearch(top_k=2, penalty_alpha=0.6),
    "best": dk.BestOf(2, dk.Sample(seed=1)),
}


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def texts(completion: dk.Completion) -> list[tuple[str, tuple[int, ...], int]]:
    every = [completion, *completion.others]
    return [(one.text, one.token_ids, one.stats.num_forwards) for one in every]


@few(2)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_trace_changes_neither_the_text_nor_the_forward_passes(llm: dk.LLM, name: str) -> None:
    options: Any = {"constraint": SCHEMA, "strategy": STRATEGIES[name], "max_new_tokens": 40}
    plain, traced = llm.generate(PROMPT, **options), llm.generate(PROMPT, trace=True, **options)
    assert texts(plain) == texts(traced)
    assert plain.trace is None and traced.logprobs is None
    for one in (traced, *traced.others):
        assert one.trace is not None
        assert tuple(token.taken.token_id for token in one.trace) == one.token_ids
        assert "".join(token.taken.text for token in one.trace) == one.text


def test_a_text_of_another_seed_is_noticed(llm: dk.LLM) -> None:
    warm = [dk.Sample(temperature=4.0, seed=seed) for seed in (1, 2)]
    one, other = (llm.generate("Dear", strategy=strategy, max_new_tokens=8) for strategy in warm)
    assert texts(one) != texts(other)


@few(4)
@pytest.mark.parametrize("name", ["greedy", "drafts", "sample", "tested"])
@pytest.mark.parametrize("logprobs", [False, True])
def test_sources_add_up_to_the_figures(llm: dk.LLM, name: str, logprobs: bool) -> None:
    out = llm.generate(PROMPT, constraint=SCHEMA, strategy=STRATEGIES[name], trace=True, logprobs=logprobs)
    assert out.trace is not None
    counts = Counter(token.source for token in out.trace)
    assert counts["forced"] == out.stats.num_forced_tokens > 0
    assert counts["draft accepted"] == sum(out.stats.acceptance_histogram)
    assert counts["draft rejected"] <= out.stats.num_drafts
    assert sum(token.check == "masked" for token in out.trace) <= out.stats.num_masks
    assert all((token.refused is not None) == (token.source == "draft rejected") for token in out.trace)
    assert all(token.refused.token_id != token.taken.token_id for token in out.trace if token.refused is not None)


def check_figures(token: TokenTrace, size: int) -> None:
    assert token.entropy is not None and 0 <= token.entropy <= math.log(size) + 1e-6
    assert len(token.options) == MAX_OPTIONS
    likely = [option.logprob for option in token.options if option.logprob is not None]
    assert likely == sorted(likely, reverse=True) and len(likely) == MAX_OPTIONS
    assert token.taken.logprob is not None and token.taken.logprob <= likely[0]


def test_figures_are_those_of_the_model_and_the_masks(llm: dk.LLM) -> None:
    options: Any = {"constraint": SCHEMA, "strategy": dk.Sample(temperature=4.0, seed=5), "logprobs": True}
    out = llm.generate(PROMPT, masks="always", trace=True, **options)
    assert out.trace is not None and out.logprobs is not None
    matcher = dk.compile(dk.JsonSchema(SCHEMA), llm.vocabulary).matcher()
    for token, entry in zip(out.trace, out.logprobs, strict=True):
        check_figures(token, llm.vocabulary.size)
        assert token.taken.logprob == pytest.approx(entry.logprob, abs=1e-6)
        allowed = [one for one in range(llm.vocabulary.size) if matcher.validate([one])]  # the mask's slow twin
        if not matcher.is_accepting:
            assert token.num_allowed == len(allowed)
            assert all(option.is_allowed == (option.token_id in allowed) for option in token.options)
        assert entry.log_z is not None and token.mass == pytest.approx(math.exp(entry.log_z), abs=1e-6)
        assert matcher.accept(token.taken.token_id)
    assert {token.check for token in out.trace} == {"masked", "forced"}


def test_a_token_that_was_not_asked_for_has_no_figures(llm: dk.LLM) -> None:
    out = llm.generate(PROMPT, constraint=SCHEMA, trace=True)
    assert out.trace is not None
    for token in out.trace:
        if token.source == "forced":
            assert (token.taken.logprob, token.entropy, token.options, token.num_allowed) == (None, None, (), 1)
        else:
            check_figures(token, llm.vocabulary.size)
    free = llm.generate("Dear", trace=True, max_new_tokens=3).trace
    assert free is not None
    assert {(one.check, one.num_allowed, one.mass) for one in free} == {("free", llm.vocabulary.size, 1.0)}


def test_a_text_that_is_taken_back_takes_its_trace_along(llm: dk.LLM) -> None:
    guarded = dk.Guarded(dk.Regex("[ab]{6}"), lambda text: text.count("a") != 3 or "three")
    out = llm.generate("ab", constraint=guarded, strategy=dk.Sample(seed=3), trace=True, max_new_tokens=12)
    assert out.stats.num_rollbacks + out.stats.num_guard_refusals > 0
    assert out.trace is not None and tuple(token.taken.token_id for token in out.trace) == out.token_ids


def test_sources_of_every_short_draft() -> None:
    """All drafts and texts of up to three tokens of two, against the rule said one by one."""
    for size, length in product(range(4), range(1, 4)):
        for draft, tokens in product(product((0, 1), repeat=size), product((0, 1), repeat=length)):
            for num_forced in range(size + 1):
                found = sources_of(tokens, Guess(draft, num_forced))
                for i, source in enumerate(found):
                    agrees = tokens[: i + 1] == draft[: i + 1]
                    is_first_other = tokens[:i] == draft[:i] and i < size and not agrees
                    right = "forced" if agrees and i < num_forced else "draft accepted" if agrees else "model"
                    assert source == ("draft rejected" if is_first_other else right), (draft, tokens, num_forced)


def test_the_option_and_the_picture_are_refused_where_they_make_no_sense(llm: dk.LLM) -> None:
    wrong: Any = 3
    with pytest.raises(OptionError, match="trace must be True or False, got 3"):
        llm.generate("Dear", trace=wrong)
    plain = llm.generate("Dear", max_new_tokens=2)
    assert plain._repr_html_() is None
    for picture in (plain.to_html, plain.show):
        with pytest.raises(OptionError, match="was not recorded"):
            picture()
    with pytest.raises(OptionError, match="needs a notebook"):
        llm.generate("Dear", max_new_tokens=2, trace=True).show()


def test_the_entropy_of_a_distribution_by_hand() -> None:
    assert torch.special.entr(torch.tensor([0.5, 0.25, 0.25, 0.0])).sum().item() == pytest.approx(1.5 * math.log(2))
