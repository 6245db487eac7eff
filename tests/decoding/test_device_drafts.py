"""Drafts that are verified on the device give the texts of the step by step loop; what goes wrong is a row's alone."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit import LLM
from decodekit.decoding.loop.device_pass import DevicePass
from decodekit.errors import NonFiniteLogitsError, ProposerError
from decodekit.gpu import draft_match as verify
from decodekit.gpu.draft_match import advanced
from decodekit.speculation import Context, Draft
from tests.decoding.test_run_ahead import PROMPTS, SCHEMA, be_captured
from tests.sizes import few

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Knows:
    """Offers what comes, as far as a number drawn by row and place says, and often with a wrong token in it."""

    texts: tuple[tuple[Tokens, Tokens], ...]
    longest: int = 9

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [self._draft(one, limit) for one, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: Context, limit: int) -> Draft:
        place = len(context.text)
        draw = random.Random(1000 * len(context.prompt) + place)
        [text] = [text for prompt, text in self.texts if prompt == tuple(context.prompt)]
        tokens = list(text[place : place + min(limit, draw.randrange(self.longest))])
        if tokens and draw.random() < 0.5:
            tokens[draw.randrange(len(tokens))] = draw.randrange(300)
        return Draft(tokens)


@dataclass(frozen=True)
class Raises:
    """A proposer that fails for texts behind some prompt, from their fifth token on."""

    first: int

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        if any(context.prompt[0] == self.first and len(context.text) >= 5 for context in contexts):
            raise ValueError("no idea")
        return [Draft()] * len(contexts)


def given() -> list[Any]:
    return [prompt or [5, 6, 7] for prompt in PROMPTS]


def tokens_of(llm: LLM, **options: Any) -> list[tuple[Any, ...]]:
    done = llm.generate(given(), max_new_tokens=24, on_error="return", **options)
    return [(tuple(one.token_ids), one.finish_reason) for one in done]


def knowing(llm: LLM, **options: Any) -> tuple[Knows, list[tuple[Any, ...]]]:
    """A proposer that knows the texts of some options, and these texts."""
    expected = tokens_of(llm, **options)
    prompts = [tuple(llm.tokenizer(one)["input_ids"]) if isinstance(one, str) else tuple(one) for one in given()]
    return Knows(tuple((prompt, text) for prompt, (text, _) in zip(prompts, expected, strict=True))), expected


CASES: list[dict[str, Any]] = [
    {},
    {"constraint": SCHEMA, "seed": 4, "temperature": 1.1},
    {"temperature": 0.8, "top_p": 0.9, "seed": 7},
    {"constraint": SCHEMA, "fast_forward": "off"},
    {"constraint": SCHEMA, "fast_forward": "canonical", "temperature": 1.4, "seed": 2},
    {"constraint": SCHEMA, "masks": "always"},
    {"stop": ["e "], "temperature": 0.8, "seed": 3},
]


def strategy_of(options: dict[str, Any], proposer: Any) -> dict[str, Any]:
    """The options with a strategy that has the proposer."""
    rest = {key: value for key, value in options.items() if key not in ("temperature", "top_p")}
    numbers = {key: value for key, value in options.items() if key not in rest}
    return {**rest, "strategy": dk.Sample(**numbers, speculate=proposer) if numbers else dk.Greedy(speculate=proposer)}


@few(1)
@pytest.mark.parametrize(
    ("is_captured", "numbers"),
    [(False, [0, 1]), (True, [2]), pytest.param(False, range(7), marks=pytest.mark.slow),
     pytest.param(True, range(7), marks=pytest.mark.slow)],
)  # fmt: skip
def test_drafts_of_different_lengths_give_the_texts_of_plain_decoding(
    plain: LLM, ahead: LLM, loops: list[DevicePass], monkeypatch: pytest.MonkeyPatch, is_captured: bool, numbers: Any
) -> None:
    if is_captured:
        be_captured(ahead, monkeypatch)
    for options in (CASES[number] for number in numbers):
        proposer, expected = knowing(plain, **strategy_of(options, None))
        loops.clear()
        done = ahead.generate(given(), max_new_tokens=24, on_error="return", **strategy_of(options, proposer))
        assert [(tuple(one.token_ids), one.finish_reason) for one in done] == expected, options
        histograms = [one.stats.acceptance_histogram for one in done]
        assert sum(map(sum, histograms)) > 12 and max(map(len, histograms)) >= 3, options
        assert [loop.num_downloads for loop in loops] == [loop.num_steps for loop in loops]


def test_a_draft_that_is_believed_changes_texts(plain: LLM, ahead: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a step that keeps a draft token that the target did not take is noticed."""
    proposer, expected = knowing(plain)

    def believing(tokens: Any, drafts: Any, lengths: Any, status: Any, held: Any) -> Any:
        is_draft = torch.arange(drafts.shape[1]) < lengths[:, None]
        tokens[:, :-1] = torch.where(is_draft, drafts, tokens[:, :-1])
        return advanced(tokens, drafts, lengths, status, held)

    monkeypatch.setattr(verify, "advanced", believing)
    assert tokens_of(ahead, strategy=dk.Greedy(speculate=proposer)) != expected


def test_a_silent_proposer_does_not_hold_the_device(ahead: LLM, loops: list[DevicePass]) -> None:
    """What has nothing to offer is asked while the next step runs; nothing goes up for it."""
    ahead.generate(given()[:2], strategy=dk.Greedy(speculate=Raises(-1)), max_new_tokens=24)
    [loop] = loops
    assert loop.num_steps >= 22 and loop.num_uploads <= 6


# --- status ----------------------------------------------------------------------------------------------------------


def poison(llm: LLM, monkeypatch: pytest.MonkeyPatch, position: int, value: float) -> None:
    """Let the model give nothing but a value behind a position of the second row, in steps of every kind."""
    model: Any = llm.model.paged  # type: ignore[attr-defined]
    read, run = model.read, model._run_eagerly
    model.new_cache(1, 64)  # makes the tables
    gc.collect()
    model._rows.collect()
    row = model._rows._free_rows[-2]  # of the tables, which the next cache takes

    def poisoned(logits: Any, state: Any, rows: Any, positions: Any) -> Any:
        bad = (state.rows[rows] == row) & (positions >= position)
        return torch.where(bad[: len(logits), None], value, logits)

    def read_poisoned(state: Any, num_seen: int = 0, module: Any = None) -> Any:
        places = torch.arange(state.num_rows) if state.width == 1 else state.wanted
        rows = places // state.width
        return poisoned(read(state, num_seen, module), state, rows, state.starts[rows] + places % state.width)

    def run_poisoned(state: Any, num_seen: int, most: int, num_wanted: int, *rest: Any) -> Any:
        places = state.wanted[:num_wanted]
        rows = places // most
        positions = state.starts[rows] + state.counts[rows] - most + places % most
        return poisoned(run(state, num_seen, most, num_wanted, *rest), state, rows, positions)

    monkeypatch.setattr(model, "read", read_poisoned)
    monkeypatch.setattr(model, "_run_eagerly", run_poisoned)


@pytest.mark.parametrize(
    ("value", "is_drafted"),
    [(torch.nan, True), *(pytest.param(*one, marks=pytest.mark.slow)
                          for one in ((torch.nan, False), (-torch.inf, True), (-torch.inf, False)))],
)  # fmt: skip
def test_bad_logits_are_the_status_of_their_row(
    plain: LLM, ahead: LLM, loops: list[DevicePass], monkeypatch: pytest.MonkeyPatch, value: float, is_drafted: bool
) -> None:
    """In the midst of a draft, too: what comes before them stays, and the neighbours write what they write alone."""
    proposer, expected = knowing(plain)
    poison(ahead, monkeypatch, 15, value)
    done = ahead.generate(
        given(), strategy=dk.Greedy(speculate=proposer if is_drafted else None), max_new_tokens=24, on_error="return"
    )
    found = [tuple(one.token_ids) for one in done]
    [failed] = [row for row, one in enumerate(done) if one.error is not None]
    assert isinstance(done[failed].error, dk.DecodekitError) and "logit" in str(done[failed].error)
    assert value == -torch.inf or isinstance(done[failed].error, NonFiniteLogitsError)
    for row, (text, _) in enumerate(expected):
        assert found[row] == (text[: len(found[row])] if row == failed else text)
    assert 8 < len(found[failed]) < 16
    assert sum(loop.num_steps for loop in loops) > 5


def test_a_proposer_that_raises_ends_its_row_alone(plain: LLM, ahead: LLM, loops: list[DevicePass]) -> None:
    expected = tokens_of(plain)
    first = plain.tokenizer(PROMPTS[1])["input_ids"][0]
    with dk.Engine(ahead, batch_size=4) as engine:
        strategy = dk.Greedy(speculate=Raises(first))
        handles = [engine.submit(one, strategy=strategy, max_new_tokens=12) for one in given()]
        done = [handle.result(60) for handle in handles]
    failed = done[1]
    assert isinstance(failed.error, ProposerError) and "no idea" in str(failed.error)
    assert tuple(failed.token_ids) == expected[1][0][: len(failed.token_ids)] and len(failed.token_ids) >= 4
    assert [tuple(one.token_ids) for row, one in enumerate(done) if row != 1] == [
        text[:12] for row, (text, _) in enumerate(expected) if row != 1
    ]
    assert sum(loop.num_steps for loop in loops) > 5
    options: dict[str, Any] = {"strategy": dk.Greedy(speculate=Raises(first)), "max_new_tokens": 12}
    [alone] = ahead.generate(given()[1:2], **options)
    assert alone.token_ids == failed.token_ids and "no idea" in str(alone.error)
    with pytest.raises(ProposerError, match="no idea"):
        ahead.generate(given()[1:2], on_error="raise", **options)


@pytest.mark.parametrize("method", ["validate", "fill_bitmask", pytest.param("accept", marks=pytest.mark.slow)])
def test_a_constraint_that_raises_ends_its_row_alone(
    plain: LLM, ahead: LLM, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from decodekit.constraints.matching.matcher import GrammarMatcher

    options: dict[str, Any] = {"masks": "always" if method == "fill_bitmask" else "asked", "max_new_tokens": 24}
    rules = [SCHEMA, dk.Regex("[a-z]{30}")]
    expected = [plain.generate(PROMPTS[1], constraint=rule, on_error="return", **options).token_ids for rule in rules]
    special = dk.compile(rules[1], plain.tokenizer).matcher().recogniser
    call = getattr(GrammarMatcher, method)

    def broken(self: GrammarMatcher, *arguments: Any, **options: Any) -> Any:
        if self.recogniser is special and self.num_tokens >= 6:
            raise ZeroDivisionError("no number")
        return call(self, *arguments, **options)

    monkeypatch.setattr(GrammarMatcher, method, broken)
    with dk.Engine(ahead, batch_size=4) as engine:
        handles = [engine.submit(PROMPTS[1], constraint=rule, **options) for rule in rules]
        good, failed = (handle.result(60) for handle in handles)
    assert good.token_ids == expected[0]
    assert "no number" in str(failed.error) and failed.token_ids == expected[1][: len(failed.token_ids)]
    assert 5 <= len(failed.token_ids) <= 7


def test_rows_of_one_batch_have_drafts_masks_and_neither(plain: LLM, ahead: LLM, loops: list[DevicePass]) -> None:
    proposer, _ = knowing(plain)
    work: list[dict[str, Any]] = [
        {"strategy": dk.Greedy(speculate=proposer)},
        {"strategy": "sample", "seed": 3},
        {"constraint": SCHEMA, "strategy": dk.Sample(temperature=1.2, speculate="prompt-lookup")},
        {"constraint": SCHEMA, "masks": "always"},
        {"strategy": "sample", "top_k": 20, "repetition_penalty": 1.1},
    ]
    prompts = [PROMPTS[0], *PROMPTS[:3], PROMPTS[0]]
    expected = [
        plain.generate(prompt, max_new_tokens=16, on_error="return", **one).token_ids
        for prompt, one in zip(prompts, work, strict=True)
    ]
    with dk.Engine(ahead, batch_size=8) as engine:
        handles = [engine.submit(prompt, max_new_tokens=16, **one) for prompt, one in zip(prompts, work, strict=True)]
        assert [handle.result(60).token_ids for handle in handles] == expected
    assert sum(loop.num_steps for loop in loops) > 5


ANYWHERE: list[Any] = [
    "suffix",
    "draft-model:tiny-draft,num_tokens=5",
    "early-exit:1",
    ["suffix", "draft-model:tiny-draft"],
    dk.Adaptive(dk.PromptLookup()),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speculate", "constraint"),
    [(one, None) for one in ANYWHERE] + [(one, SCHEMA) for one in (*ANYWHERE, "grammar", "grammar+prompt-lookup")],
)
def test_every_proposer(
    plain: LLM, ahead: LLM, loops: list[DevicePass], monkeypatch: pytest.MonkeyPatch, speculate: Any, constraint: Any
) -> None:
    sampled = dk.Sample(temperature=0.9, top_k=30, speculate=speculate)
    for is_captured in (False, True):
        if is_captured:
            be_captured(ahead, monkeypatch)
        for strategy in (dk.Greedy(speculate=speculate), sampled):
            loops.clear()
            options = {"constraint": constraint, "strategy": strategy, "seed": 5}
            assert tokens_of(ahead, **options) == tokens_of(plain, **options)
            assert sum(loop.num_steps for loop in loops) > 3
