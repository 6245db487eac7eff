"""Models with recurrent state: rows go together, states are held by row, and drafts are taken back by going back.

What is equal to plain passes is checked for them in `test_huggingface`, as for every architecture; here is what a pass
costs, and that the rows do not mix.
"""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.models.checks.self_check import Plain
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners.recurrent import RecurrentCache, RecurrentModel
from tests.models import architectures, survey
from tests.models.architectures import IN_CHUNKS, RECURRENT, tokens
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few, thinned

# Those of the survey that hold recurrent state; the page says so, too.
BATCHED = (
    *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2"),
    *("lfm2_moe", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text"),
    *("qwen3_5_text", "qwen3_next", "recurrent_gemma", "zamba2", "zaya"),
)


@functools.cache
def load(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def runner_of(lm: HuggingFaceLM) -> RecurrentModel:
    assert isinstance(lm._runner, RecurrentModel)
    return lm._runner


def counted(lm: HuggingFaceLM) -> Any:
    """How many forward calls of the model there have been since the last call."""
    runner, before = runner_of(lm), [0]
    before[0] = runner.num_passes

    def count() -> int:
        found, before[0] = runner.num_passes - before[0], runner.num_passes
        return found

    return count


def read(lm: HuggingFaceLM, cache: Any, rows: list[list[int]], logits: Any = "last") -> Tensor:
    batch = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return lm.forward(batch, [len(row) for row in rows], cache, logits=logits)


@few(2)
@thinned("name", BATCHED, keep=("bamba", "jamba", "mamba2", "minimax", "qwen3_next", "recurrent_gemma"))
def test_eight_rows_are_one_pass_and_exact(name: str) -> None:
    """One forward call in place of the eight of rows one by one; logits as of the plain model, to rounding."""
    model = survey.build(name)
    lm = HuggingFaceLM(model)
    assert lm.tier.name == "recurrent", lm.tier
    plain = Plain(model)
    prompts = [[token % 120 for token in tokens(row, 3 + row % 3)] for row in range(8)]
    cache, count = lm.new_cache(8, 4), counted(lm)
    read(lm, cache, prompts)
    assert count() == 3  # one for each length
    for step in range(4):
        new = [[(17 * row + 5 * step) % 120] for row in range(8)]
        out = read(lm, cache, new)
        assert count() == 1
        for prompt, one, logits in zip(prompts, new, out, strict=True):
            prompt += one
            expected = plain.logits(prompt)[-1]
            torch.testing.assert_close(logits, expected, atol=2e-5 * float(expected.std()), rtol=1e-4)


@few(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["lfm2", "mamba"])
def test_neighbours_change_nothing(name: str, dtype: torch.dtype) -> None:
    """A row beside seven others against the same row alone: 1e-5, which a state in another row would exceed by far."""
    lm = HuggingFaceLM(architectures.build(name, dtype))
    rows = [tokens(row, 5) for row in range(8)]
    beside, alone = lm.new_cache(8, 16), lm.new_cache(1, 16)
    for begin, end in ((0, 3), (3, 4), (4, 5)):
        out = read(lm, beside, [row[begin:end] for row in rows])
        one = read(lm, alone, [rows[5][begin:end]])
        torch.testing.assert_close(out[5], one[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(out[4], one[0], atol=1e-2)  # the control


@few(1)
@pytest.mark.parametrize("name", IN_CHUNKS)
def test_drafts_cost_one_pass_and_nothing_to_take_back(name: str) -> None:
    """A draft is one pass; what is accepted of it is read again together with what follows, in one pass, too."""
    lm = load(name)
    assert lm.can_restore and not lm.can_rollback
    plain, count = Plain(lm.model), counted(lm)
    cache: Any = lm.new_cache(2, 4)
    rows = [tokens(0, 6), tokens(1, 6)]
    read(lm, cache, rows)
    count()
    read(lm, cache, [tokens(2, 4), tokens(3, 4)], "all")
    assert count() == 1
    cache.truncate([8, 10])  # two of four accepted, and all of four
    assert count() == 0
    assert (cache.num_unread(0), cache.num_unread(1)) == (2, 0)
    rows = [[*rows[0], *tokens(2, 4)[:2]], [*rows[1], *tokens(3, 4)]]
    out = read(lm, cache, [[11], [12]])
    assert count() == 2  # three tokens of one row, one of the other: without drafts nothing is padded
    for row, token, logits in zip(rows, (11, 12), out, strict=True):
        row.append(token)
        torch.testing.assert_close(logits, plain.logits(row)[-1], atol=1e-4, rtol=1e-4)
    cache.truncate([9, 11])
    read(lm, cache, [[13], [14]])
    assert count() == 1


@few(1)
@pytest.mark.parametrize("name", IN_CHUNKS)
def test_drafts_of_unequal_length_are_one_pass(name: str) -> None:
    """Shorter rows are padded and put back: their tokens are unread, and read again with those of the next pass."""
    lm = load(name)
    plain, count = Plain(lm.model), counted(lm)
    cache: Any = lm.new_cache(4, 4)
    rows = [tokens(row, 5) for row in range(4)]
    read(lm, cache, rows)
    count()
    num_passes, num_steps = 0, 14
    for step in range(num_steps):
        drafts = [tokens(10 * step + row, 1 + (3 * step + 2 * row) % 5) for row in range(4)]
        drafts[2] = drafts[2][:1]  # a row without drafts
        out = read(lm, cache, drafts, [len(draft) for draft in drafts]).split([len(draft) for draft in drafts])
        num_passes += count()
        for row, draft, logits in zip(rows, drafts, out, strict=True):
            row += draft
            torch.testing.assert_close(logits, plain.logits(row)[-len(draft) :], atol=1e-4, rtol=1e-4)
            del row[len(row) - (len(draft) - 1) // 2 :]  # some are refused
        cache.truncate([len(row) for row in rows])
        assert max(cache.num_unread(row) for row in range(4)) <= 16
    assert num_passes <= 1.5 * num_steps


def test_copies_of_a_model() -> None:
    lm = HuggingFaceLM(architectures.build("lfm2"))
    expected = read(lm, lm.new_cache(2, 4), [tokens(0, 5), tokens(1, 3)])
    for twin in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm))):
        cache = twin.new_cache(2, 4)
        assert torch.equal(read(twin, cache, [tokens(0, 5), tokens(1, 3)]), expected)
        assert read(twin, cache, [[5], [6]]).isfinite().all()


def test_one_token_at_a_time_where_chunks_are_wrong() -> None:
    """Mamba begins anew when it is given several tokens behind a state: the self-check sees it, and they go singly."""
    model = architectures.build("mamba")
    with pytest.raises(AssertionError):
        assert_right(RecurrentModel(model, in_chunks=True), model)
    assert_right(RecurrentModel(model, in_chunks=False), model)
    lm = load("mamba")
    assert not lm.can_restore
    count, cache = counted(lm), lm.new_cache(3, 4)
    read(lm, cache, [tokens(row, 4) for row in range(3)])
    assert count() == 1
    read(lm, cache, [tokens(3, 5), tokens(4, 2), tokens(5, 1)])
    assert count() == 5  # the longest


def assert_right(runner: RecurrentModel, model: Any) -> None:
    cache, row = runner.new_cache(1, 4), tokens(0, 7)
    runner.forward(torch.tensor([row[:3]]), [3], cache, None, "last")
    out = runner.forward(torch.tensor([row[3:]]), [4], cache, None, "last")
    torch.testing.assert_close(out[0], Plain(model).logits(row)[-1], atol=1e-4, rtol=1e-4)


def test_a_pass_that_fails_leaves_the_rows_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = load("lfm2")
    cache: Any = lm.new_cache(2, 8)
    rows = [tokens(0, 5), tokens(1, 3)]
    read(lm, cache, rows)
    real = RecurrentModel._pass

    def fail(self: RecurrentModel, *args: Any) -> Any:
        real(self, *args)  # the states have been moved on by then
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(RecurrentModel, "_pass", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            read(lm, cache, [[7, 8], [9]])
    assert cache.row_lengths == (5, 3)
    out = read(lm, cache, [[7], [9]])
    for row, token, logits in zip(rows, (7, 9), out, strict=True):
        torch.testing.assert_close(logits, Plain(lm.model).logits([*row, token])[-1], atol=1e-4, rtol=1e-4)


def test_states_kept_for_going_back() -> None:
    """A row that goes back further than its kept state is read from its first token; the kept one stays after use."""
    lm = load("lfm2")
    cache: Any = lm.new_cache(1, 8)
    read(lm, cache, [tokens(0, 6)])
    for token in (5, 6, 7):
        read(lm, cache, [[token]])
    cache.truncate([8])
    assert cache.num_unread(0) == 2  # since the prompt, which was kept with the first step
    cache.truncate([7])
    assert cache.num_unread(0) == 1
    cache.truncate([4])
    assert cache.num_unread(0) == 4
    out = read(lm, cache, [[9]])
    torch.testing.assert_close(out[0], Plain(lm.model).logits([*tokens(0, 4), 9])[-1], atol=1e-4, rtol=1e-4)


def test_memory_of_states_is_counted() -> None:
    lm = load("lfm2")
    few, many = lm.new_cache(1, 16), lm.new_cache(4, 16)
    assert isinstance(few, RecurrentCache) and isinstance(many, RecurrentCache)
    assert many.num_bytes == 4 * few.num_bytes > 4 * few.kv.num_bytes


OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "seed": 3}
TOKENIZER = small_tokenizer()


@few(1)
@pytest.mark.parametrize("name", ["lfm2", "minimax"])
def test_drafts_do_not_change_the_text(name: str) -> None:
    llm = dk.LLM(architectures.build(name), TOKENIZER)
    prompts = ["the cat and the cat and the", "on"]
    plain = llm.generate(prompts, strategy=dk.Sample(temperature=0.7), **OPTIONS)
    guessed = llm.generate(prompts, strategy=dk.Sample(temperature=0.7, speculate="prompt-lookup"), **OPTIONS)
    assert [one.token_ids for one in guessed] == [one.token_ids for one in plain]
    alone = llm.generate(prompts, strategy=dk.Sample(temperature=0.7), batch_size=1, **OPTIONS)
    assert [one.token_ids for one in alone] == [one.token_ids for one in plain]


@few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "greedy", "speculate": "prompt-lookup"},
        {"strategy": "prompt-lookup"},
        {"strategy": "sample", "speculate": dk.EarlyExit(1)},
        {"strategy": "best-of", "n": 2, "speculate": "grammar+suffix", "constraint": dk.Regex("[a-z ]{3,9}")},
    ],
)
def test_drafts_that_cannot_pay_are_left_out_with_a_warning(options: dict[str, Any]) -> None:
    llm = dk.LLM(architectures.build("mamba"), TOKENIZER)
    plain = {name: value for name, value in options.items() if name != "speculate"}
    plain["strategy"] = plain["strategy"].replace("prompt-lookup", "greedy")
    wanted = llm.generate("the", **plain, **OPTIONS)
    with pytest.warns(UserWarning, match="MambaForCausalLM, which keeps recurrent state .* Texts are those") as told:
        found = llm.generate("the", **options, **OPTIONS)
    assert found.token_ids == wanted.token_ids and found.stats.num_drafts == 0
    assert [one.filename for one in told] == [__file__]


def test_every_one_has_a_row_on_the_page() -> None:
    page = survey.PAGE.read_text(encoding="utf-8")
    assert all(f"| {name} | recurrent |" in page for name in BATCHED)
    assert set(RECURRENT) <= set(BATCHED)
