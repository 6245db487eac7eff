"""Recorded decoding steps give the modules' logits bit for bit, or are not used."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import replay
from tests.models.architectures import RAGGED, RECURRENT, SHARING, build, tokens
from tests.sizes import thinned

NUM_STEPS = 24


@pytest.fixture(autouse=True)
def _record_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RECORD_AFTER", 3)


def decoded(lm: HuggingFaceLM, prompt_lengths: list[int], num_steps: int = NUM_STEPS) -> list[Tensor]:
    """Logits [R, V] of single-token steps after prompts of these lengths, from a cache that grows on the way."""
    num_rows, longest = len(prompt_lengths), max(prompt_lengths)
    cache = lm.new_cache(num_rows, longest + 2)
    prompt = torch.stack([torch.tensor(tokens(row, longest)) for row in range(num_rows)])
    lm.forward(prompt, prompt_lengths, cache)
    steps = torch.tensor([tokens(100 + row, num_steps) for row in range(num_rows)])
    return [lm.forward(steps[:, t : t + 1], [1] * num_rows, cache).clone() for t in range(num_steps)]


def runner(lm: HuggingFaceLM) -> Any:
    return lm._runner


@thinned("name", RAGGED, keep=["gemma2", "mistral", "opt", "gpt_oss"])
def test_replayed_logits_equal_the_modules_bit_for_bit(name: str) -> None:
    model = build(name)
    lm, plain = HuggingFaceLM(model, tier="ragged"), HuggingFaceLM(copy.deepcopy(model), tier="ragged")
    runner(plain)._replays = None
    for prompt_lengths in ([5], [4, 4], [3, 9, 6]):
        for ours, theirs in zip(decoded(lm, prompt_lengths), decoded(plain, prompt_lengths), strict=True):
            assert torch.equal(ours, theirs)


@thinned("name", RAGGED, keep=["gemma2"])
def test_steps_over_eight_bits_are_replayed_bit_for_bit(name: str) -> None:
    """The recordings of one model hold for one kind of cache each: plain steps come between."""
    model = build(name)
    lm, plain = HuggingFaceLM(model, cache_dtype="int8"), HuggingFaceLM(copy.deepcopy(model), cache_dtype="int8")
    runner(plain)._replays = None
    for prompt_lengths in ([5], [3, 9, 6]):
        decoded(HuggingFaceLM(model), prompt_lengths)
        for ours, theirs in zip(decoded(lm, prompt_lengths), decoded(plain, prompt_lengths), strict=True):
            assert torch.equal(ours, theirs)
    assert runner(lm)._replays.num_replayable() >= 2


@pytest.mark.parametrize(("name", "kinds"), [("llama", 3), ("gpt2", 3), ("opt", 3), ("mistral", 2)])
def test_what_is_expected_to_replay_does(name: str, kinds: int) -> None:
    # llama: one row, two level rows, three ragged rows. mistral: one row before and after its window is crossed.
    lm = HuggingFaceLM(build(name), tier="ragged")
    for prompt_lengths in ([5], [4, 4], [3, 9, 6]) if kinds == 3 else ([2], [9]):
        decoded(lm, prompt_lengths)
    assert runner(lm)._replays.num_replayable() >= kinds


def test_a_replayed_step_runs_no_module() -> None:
    model = build("llama")
    lm = HuggingFaceLM(model, tier="ragged")
    decoded(lm, [5])
    calls = 0

    def count(module: nn.Module, arguments: Any) -> None:
        nonlocal calls
        calls += 1

    for module in runner(lm)._module.modules():
        module.register_forward_pre_hook(count)
    cache = lm.new_cache(1, 64)
    lm.forward(torch.tensor([tokens(0, 5)]), [5], cache)
    assert calls > 0
    calls = 0
    for _ in range(4):
        lm.forward(torch.tensor([[7]]), [1], cache)
    assert calls == 0


class _DependsOnValues(nn.Module):
    """Wraps an MLP with a branch on the value of a tensor, which a recording cannot see."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out if bool(x.isfinite().all()) else out * 0


def test_a_model_that_looks_at_values_is_not_recorded() -> None:
    model: Any = build("llama")
    for layer in model.model.layers:
        layer.mlp = _DependsOnValues(layer.mlp)
    lm, plain = HuggingFaceLM(model, tier="ragged"), HuggingFaceLM(copy.deepcopy(model), tier="ragged")
    runner(plain)._replays = None
    for ours, theirs in zip(decoded(lm, [5]), decoded(plain, [5]), strict=True):
        assert torch.equal(ours, theirs)
    assert runner(lm)._replays.num_replayable() == 0


def test_a_recording_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = HuggingFaceLM(build("llama"), tier="ragged")
    plain = HuggingFaceLM(copy.deepcopy(lm.model), tier="ragged")
    runner(plain)._replays = None
    replays = runner(lm)._replays
    record = replays._record
    monkeypatch.setattr(replays, "_record", lambda *kind: lambda *given: [one + 1e-6 for one in record(*kind)(*given)])
    for ours, theirs in zip(decoded(lm, [5]), decoded(plain, [5]), strict=True):
        assert torch.equal(ours, theirs)
    assert replays.num_replayable() == 0


def test_a_branch_on_the_number_of_slots_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what a model compares are shapes, but one that grows."""
    append = replay._Slots.append

    def branching(self: Any, layer: int, keys: Tensor, values: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        found = append(self, layer, keys, values, step)
        return (found[0] * 2, found[1]) if found[0].shape[2] > 1000 else found

    monkeypatch.setattr(replay._Slots, "append", branching)
    lm = HuggingFaceLM(build("llama"), tier="ragged")
    decoded(lm, [5])
    assert runner(lm)._replays.num_replayable() == 0


@pytest.mark.parametrize("name", SHARING)
def test_comparisons_of_constant_shapes_are_recorded(name: str) -> None:
    model = build(name)
    lm, plain = HuggingFaceLM(model, tier="ragged"), HuggingFaceLM(copy.deepcopy(model), tier="ragged")
    runner(plain)._replays = None
    for ours, theirs in zip(decoded(lm, [9]), decoded(plain, [9]), strict=True):
        assert torch.equal(ours, theirs)
    assert runner(lm)._replays.num_replayable() == 1


@thinned("name", RECURRENT, keep=["mamba", "lfm2"])
def test_steps_after_a_state_are_replayed_bit_for_bit(name: str) -> None:
    """One row, level rows and ragged ones, and states that are put back between them."""
    model = build(name)
    lm, plain = HuggingFaceLM(model), HuggingFaceLM(copy.deepcopy(model))
    runner(plain)._replays = None
    for prompt_lengths in ([5], [4, 4], [3, 9, 6]):
        for ours, theirs in zip(decoded(lm, prompt_lengths), decoded(plain, prompt_lengths), strict=True):
            assert torch.equal(ours, theirs)
        for ours, theirs in zip(*(drafted(one, prompt_lengths, 3, "all") for one in (lm, plain)), strict=True):
            assert torch.equal(ours, theirs)
    replays = runner(lm)._replays
    assert any(recording.graph is not None for recording in replays._recordings.values())
    # On some processors a recording of mamba differs in a last bit; its proof refuses it then.
    assert replays.num_replayable() >= (name not in ("mamba", "jamba"))


def test_a_recording_that_leaves_another_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the logits of the step are right, and those of the next one would not be."""
    lm, plain = HuggingFaceLM(build("lfm2")), HuggingFaceLM(build("lfm2"))
    runner(plain)._replays = None
    replays = runner(lm)._replays
    record = replays._record

    def wrong(*kind: Any) -> Any:
        graph = record(*kind)
        return lambda *given: [one + 1e-6 * (place == 1) for place, one in enumerate(graph(*given))]

    monkeypatch.setattr(replays, "_record", wrong)
    for ours, theirs in zip(decoded(lm, [5]), decoded(plain, [5]), strict=True):
        assert torch.equal(ours, theirs)
    assert replays.num_replayable() == 0


def test_new_weights_reach_the_replays() -> None:
    model: Any = build("llama")
    lm = HuggingFaceLM(model, tier="ragged")
    decoded(lm, [5])
    before = decoded(lm, [5], 2)[-1]
    model.lm_head.weight.data = model.lm_head.weight.data * 2  # another tensor
    after = decoded(lm, [5], 2)[-1]
    torch.testing.assert_close(after, 2 * before)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)  # in place
    torch.testing.assert_close(decoded(lm, [5], 2)[-1], before)


def drafted(lm: HuggingFaceLM, prompt_lengths: list[int], width: int, wanted: Any) -> list[Tensor]:
    """Logits of steps of `width` tokens in every row, all but one of them rejected each time."""
    num_rows, longest = len(prompt_lengths), max(prompt_lengths)
    cache = lm.new_cache(num_rows, longest + 2)
    prompt = torch.stack([torch.tensor(tokens(row, longest)) for row in range(num_rows)])
    lm.forward(prompt, prompt_lengths, cache)
    steps = torch.tensor([tokens(100 + row, 12 + width) for row in range(num_rows)])
    out = []
    for t in range(12):
        kind = wanted if isinstance(wanted, str) else [wanted] * num_rows
        out.append(lm.forward(steps[:, t : t + width], [width] * num_rows, cache, logits=kind).clone())
        cache.truncate([length + t + 1 for length in prompt_lengths])
    return out


@thinned("name", ["llama", "qwen3", "opt", "gemma2", "deepseek_v3"], keep=["qwen3", "gemma2"])
def test_steps_of_several_tokens_too(name: str) -> None:
    """Drafts and forced tokens, level rows and ragged ones, all logits and the last ones."""
    model = build(name)
    lm, plain = HuggingFaceLM(model, tier="ragged"), HuggingFaceLM(copy.deepcopy(model), tier="ragged")
    runner(plain)._replays = None
    for prompt_lengths, width, wanted in (([5], 4, 4), ([3, 9], 3, 3), ([7], 3, "last"), ([7], 5, 2)):
        ours = drafted(lm, prompt_lengths, width, wanted)
        theirs = drafted(plain, prompt_lengths, width, wanted)
        for one, other in zip(ours, theirs, strict=True):
            if isinstance(wanted, int) and wanted < width:  # the modules alone compute fewer logits
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)
            else:
                torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)
    if name in ("llama", "qwen3", "opt"):
        assert runner(lm)._replays.num_replayable() >= 3


def test_long_steps_are_not_recorded() -> None:
    lm = HuggingFaceLM(build("llama"), tier="ragged")
    drafted(lm, [5], replay.MAX_WIDTH + 1, replay.MAX_WIDTH + 1)
    assert runner(lm)._replays.num_replayable() == 0
