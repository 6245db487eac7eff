"""Decoding steps as programs: the logits of the modules, and of a token alone whatever stands beside it."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.shared_copy import WeightPlaces
from decodekit.models.programs import replay, step_program
from decodekit.products import few_rows
from decodekit.products.cpu_products import MAX_ROWS, STEP_ROWS
from decodekit.products.step_code import Op
from decodekit.speculation import measured_costs
from tests.models.architectures import COMMON, RAGGED, RECURRENT, SHARING, build, tokens
from tests.sizes import few, thinned

NUM_STEPS = 16
ROUNDING = 1e-4
"""Largest difference of logits, in their deviations, that comes from rounding in other places."""
EIGHT_BITS = 2e-2
"""The same over keys in eight bits, where rounding may lead to the neighbouring code."""


def loaded(name: str, **options: Any) -> tuple[HuggingFaceLM, HuggingFaceLM]:
    """A model whose steps are programs, and one that is run by its modules alone."""
    model = build(name)
    lm, plain = HuggingFaceLM(model, **options), HuggingFaceLM(copy.deepcopy(model), **options)
    runner(plain)._replays = None
    return lm, plain


def runner(lm: HuggingFaceLM) -> Any:
    return lm._runner


def prompted(lm: HuggingFaceLM, prompt_lengths: list[int]) -> Any:
    """A cache that has read prompts of these lengths, and grows in the next step but one."""
    longest = max(prompt_lengths)
    cache = lm.new_cache(len(prompt_lengths), longest + 2)
    prompt = torch.stack([torch.tensor(tokens(row, longest)) for row in range(len(prompt_lengths))])
    lm.forward(prompt, prompt_lengths, cache)
    return cache


def decoded(lm: HuggingFaceLM, prompt_lengths: list[int], num_steps: int = NUM_STEPS) -> list[Tensor]:
    """Logits [R, V] of steps of one token after prompts of these lengths."""
    cache, num_rows = prompted(lm, prompt_lengths), len(prompt_lengths)
    steps = torch.tensor([tokens(100 + row, num_steps) for row in range(num_rows)])
    return [lm.forward(steps[:, t : t + 1], [1] * num_rows, cache).clone() for t in range(num_steps)]


def drafted(lm: HuggingFaceLM, prompt_lengths: list[int], width: int, wanted: Any) -> list[Tensor]:
    """Logits of steps of `width` tokens in every row, all but one of them rejected each time."""
    cache, num_rows = prompted(lm, prompt_lengths), len(prompt_lengths)
    steps = torch.tensor([tokens(100 + row, 12 + width) for row in range(num_rows)])
    out = []
    for t in range(12):
        kind = wanted if isinstance(wanted, str) else [wanted] * num_rows
        out.append(lm.forward(steps[:, t : t + width], [width] * num_rows, cache, logits=kind).clone())
        cache.truncate([length + t + 1 for length in prompt_lengths])
    return out


def apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, in deviations."""
    return max(float((one - other).abs().max() / other.std()) for one, other in zip(ours, theirs, strict=True))


def num_proven(replays: Any) -> int:
    """How many kinds of steps are written down and proven."""
    return sum(kind.proof.is_proven for kind in replays._kinds.values())


def programs(lm: HuggingFaceLM) -> list[step_program.StepProgram]:
    kinds = runner(lm)._replays._kinds.values()
    return [kind.program for kind in kinds if kind.program is not None and not kind.proof.is_refused]


@few(1)
@thinned("name", [*RAGGED, *SHARING], keep=["gemma2", "mistral", "opt", "gpt_oss", "gemma3n"])
@pytest.mark.parametrize("options", [{}, {"cache_dtype": "int8"}], ids=["as_given", "int8"])
def test_programs_come_to_the_logits_of_the_modules(name: str, options: dict[str, Any]) -> None:
    lm, plain = loaded(name, **options)
    most = EIGHT_BITS if options else ROUNDING
    for prompt_lengths in ([5], [4, 4], [3, 9, 6]):
        assert apart(decoded(lm, prompt_lengths), decoded(plain, prompt_lengths)) < most
    for prompt_lengths, width, wanted in (([5], 4, 4), ([3, 9], 3, 3), ([7], 3, "last"), ([7], 5, 2)):
        asked = prompt_lengths, width, wanted
        assert apart(drafted(lm, *asked), drafted(plain, *asked)) < most
    is_written = name != "deepseek_v3"  # which multiplies what its cache holds before it attends
    assert num_proven(runner(lm)._replays) == 6 * is_written
    assert len(programs(lm)) == 6 * is_written


@few(2)
@thinned("name", list(RECURRENT), keep=["mamba", "lfm2", "qwen3_next"])
def test_programs_of_states(name: str) -> None:
    """One row, level rows and uneven ones, and states that are put back between them."""
    lm, plain = loaded(name)
    for prompt_lengths in ([5], [4, 4], [3, 9, 6]):
        assert apart(decoded(lm, prompt_lengths), decoded(plain, prompt_lengths)) < ROUNDING
        assert apart(*(drafted(one, prompt_lengths, 3, "all") for one in (lm, plain))) < ROUNDING
    assert num_proven(runner(lm)._replays) == 3


@few(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt_neox"])
def test_programs_of_short_types(name: str, dtype: torch.dtype) -> None:
    """Rounded where torch rounds: as near to float64 as the modules are."""
    model = build(name).double()
    exact = HuggingFaceLM(copy.deepcopy(model))
    lm, plain = HuggingFaceLM(copy.deepcopy(model).to(dtype)), HuggingFaceLM(copy.deepcopy(model).to(dtype))
    runner(plain)._replays = None
    wanted = [one.float() for one in decoded(exact, [3, 9, 6])]
    ours, theirs = decoded(lm, [3, 9, 6]), decoded(plain, [3, 9, 6])
    assert num_proven(runner(lm)._replays) == 1
    assert apart(ours, wanted) < 1.5 * apart(theirs, wanted) + 1e-3


# What decodes by instructions alone; the experts of others are called.
_ALONE = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt_neox", "olmo2", "granite", "gemma4"]


@few(1)
@thinned("name", _ALONE, keep=["llama", "gemma3"])
@pytest.mark.parametrize("options", [{}, {"cache_dtype": "int8"}], ids=["as_given", "int8"])
def test_a_token_is_the_same_whatever_stands_beside_it(name: str, options: dict[str, Any]) -> None:
    """Bit for bit: alone and in a batch, as a draft and one by one, in rows of the cache that do not follow another."""
    lm, _ = loaded(name, **options)
    decoded(lm, [3, 9, 6, 5, 4])  # all numbers of tokens below are proven
    for count in range(1, MAX_ROWS + 1):
        drafted(lm, [5], count, count)
    together, cache = _by_rows(lm, [3, 9, 6], 6)
    for row, length in enumerate([3, 9, 6]):
        alone, _ = _by_rows(lm, [length], 6, first=row)
        assert torch.equal(alone[0], together[row])
    # A draft of four in the first and last rows, from the same caches as before.
    cache.truncate([3, 9, 6])
    steps = torch.tensor([tokens(200 + row, 6)[:4] for row in (0, 2)])
    found = lm.forward(steps, [4, 4], cache, [0, 2], logits=[4, 4]).view(2, 4, -1)
    assert torch.equal(found, together[[0, 2], :4])
    assert all(not program.calls for program in programs(lm))


@few(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", _ALONE)
def test_steps_of_many_tokens_are_as_exact(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as products are made here: drafts of six and ten tokens, in two and three rows, beside single tokens."""
    if STEP_ROWS[dtype] < 32:
        pytest.skip("no AVX2, or AVX-512: products of more than eight rows are torch's there")
    assert _many_tokens_beside_single_ones(name, dtype, monkeypatch) == [12, 30]


def test_steps_by_torch_are_not_that_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(step_program, "STEP_ROWS", dict.fromkeys(STEP_ROWS, MAX_ROWS))
    assert _many_tokens_beside_single_ones("llama", torch.float32, monkeypatch) == []


def _many_tokens_beside_single_ones(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of tokens of a step that come to the same logits as one by one, to the last bit."""
    monkeypatch.setattr(replay, "WRITE_AFTER", 2)
    lm = HuggingFaceLM(build(name).to(dtype))
    decoded(lm, [3, 9, 6])
    together, cache = _by_rows(lm, [3, 9, 6], 10)
    equal = []
    for rows, width in (([0, 2], 6), ([0, 1, 2], 10)):
        steps = torch.tensor([tokens(200 + row, 10)[:width] for row in rows])
        for _ in range(8):  # until it is proven
            cache.truncate([3, 9, 6])
            found = lm.forward(steps, [width] * len(rows), cache, rows, logits=[width] * len(rows))
        if torch.equal(found.view(len(rows), width, -1), together[rows, :width]):
            equal.append(len(rows) * width)
    assert num_proven(runner(lm)._replays) == 3
    return equal


def test_costs_of_drafts_are_those_of_programs() -> None:
    """Those of steps of 2, 4, 6, 10 and 18 tokens, the last of which are not written down from the first one on."""
    lm = HuggingFaceLM(build("llama"))
    measured_costs(lm, 8, num_rows=2, num_read=4)
    assert num_proven(runner(lm)._replays) == 5


def test_the_modules_are_not_that_exact() -> None:
    """Negative control."""
    _, plain = loaded("llama")
    together, _ = _by_rows(plain, [3, 9, 6], 6)
    alone = torch.cat([_by_rows(plain, [length], 6, first=row)[0] for row, length in enumerate([3, 9, 6])])
    assert not torch.equal(alone, together)
    torch.testing.assert_close(alone, together, atol=1e-4, rtol=1e-4)


def _by_rows(lm: HuggingFaceLM, prompt_lengths: list[int], num_steps: int, first: int = 0) -> tuple[Tensor, Any]:
    """Logits [R, T, V] of tokens one by one after prompts that were read one by one, too; and the cache."""
    num_rows = len(prompt_lengths)
    cache = lm.new_cache(num_rows, 24)
    for row, length in enumerate(prompt_lengths):
        lm.forward(torch.tensor([tokens(first + row, length)]), [length], cache, [row])
    steps = torch.tensor([tokens(200 + first + row, num_steps) for row in range(num_rows)])
    out = [lm.forward(steps[:, t : t + 1], [1] * num_rows, cache).clone() for t in range(num_steps)]
    return torch.stack(out, dim=1), cache


@few(1)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_many_tokens_multiply_by_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than `MAX_ROWS`, padded to a multiple of it: what is added goes where nothing is read."""
    monkeypatch.setattr(replay, "WRITE_AFTER", 2)
    monkeypatch.setattr(step_program, "STEP_ROWS", dict.fromkeys(STEP_ROWS, MAX_ROWS))
    lm, plain = loaded(name)
    for prompt_lengths, width in (([3, 9, 6], 4), ([5, 5], 5), ([4] * 9, 8)):
        assert apart(*(drafted(one, prompt_lengths, width, width) for one in (lm, plain))) < ROUNDING
    assert {key[1] for key in runner(lm)._replays._kinds} == {16, 96}
    assert num_proven(runner(lm)._replays) == 2 and programs(lm)[0].calls


@pytest.mark.parametrize("is_widened", [True, False])
def test_many_tokens_of_bfloat16(is_widened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 where the processor has no products of the type, by programs as by modules."""
    for module, limit in ((few_rows, "PRODUCT_ROWS"), (step_program, "STEP_ROWS")):
        monkeypatch.setattr(module, "WIDENED", frozenset({torch.bfloat16} if is_widened else ()))
        monkeypatch.setattr(module, limit, dict.fromkeys(STEP_ROWS, MAX_ROWS))
    monkeypatch.setattr(replay, "WRITE_AFTER", 2)
    model = build("llama").bfloat16()
    lm, plain = HuggingFaceLM(model), HuggingFaceLM(copy.deepcopy(model))
    runner(plain)._replays = None
    assert apart(*(drafted(one, [3, 9, 6], 4, 4) for one in (lm, plain))) < 0.2
    [program] = programs(lm)
    assert {call.function is few_rows.widened_linear for _, call in program.calls} == {is_widened}


def test_uneven_rows_and_rows_out_of_order() -> None:
    lm, plain = loaded("qwen3")
    found = []
    for one in (lm, plain):
        cache, out = prompted(one, [3, 9, 6, 5]), list[Tensor]()
        for t in range(8):
            steps = torch.tensor([tokens(300 + t, 2), tokens(400 + t, 2), tokens(500 + t, 2)])
            out.append(one.forward(steps, [1, 2, 1], cache, [3, 0, 2], logits=[1, 2, 1]).clone())
            out.append(one.forward(steps, [2, 1, 2], cache, [1, 3, 0]).clone())
        found.append(out)
    assert apart(*found) < ROUNDING and num_proven(runner(lm)._replays) == 2


def test_a_program_runs_no_module() -> None:
    lm, _ = loaded("llama")
    decoded(lm, [5])
    calls = 0

    def count(module: nn.Module, arguments: Any) -> None:
        nonlocal calls
        calls += 1

    for module in runner(lm).module.modules():
        module.register_forward_pre_hook(count)
    cache = lm.new_cache(1, 64)
    lm.forward(torch.tensor([tokens(0, 5)]), [5], cache)
    assert calls > 0
    calls = 0
    for _ in range(4):
        lm.forward(torch.tensor([[7]]), [1], cache)
    assert calls == 0


def test_threads_may_share_programs() -> None:
    lm, _ = loaded("llama")
    decoded(lm, [5])
    expected = {length: decoded(lm, [length], 40) for length in (5, 6, 7, 8)}
    found: dict[int, list[Tensor]] = {}

    def go(length: int) -> None:
        found[length] = decoded(lm, [length], 40)

    threads = [threading.Thread(target=go, args=(length,)) for length in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for length, logits in expected.items():
        assert all(torch.equal(one, other) for one, other in zip(found[length], logits, strict=True))


@few(2, "2-llama-int8")
@pytest.mark.parametrize("options", [{}, {"cache_dtype": "int8"}], ids=["as_given", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "qwen3"])
@pytest.mark.parametrize("num_heads", [2, 1])
def test_long_contexts_are_the_same_by_any_threads(
    num_heads: int, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, in rows of different lengths: threads share out the heads of a cache, where it is long."""
    monkeypatch.setitem(COMMON, "num_key_value_heads", num_heads)
    monkeypatch.setitem(COMMON, "max_position_embeddings", 4096)
    lm = HuggingFaceLM(build(name), **options)
    num_units = 2 * num_heads if options else 2 * 4  # heads of the cache are read apart by their queries, if need be
    for length in (5, 3300):
        cache = prompted(lm, [length, 900])
        alone = _continued(lm, cache, [length, 900])
        [kind] = runner(lm)._replays._kinds.values()
        [frame] = kind.frames
        for num_threads in (2, 3):
            torch.set_num_threads(num_threads)
            _continued(lm, cache, [length, 900])  # each thread has its room now
            with torch.inference_mode():
                frame._room.fill_(torch.nan)
            assert torch.equal(_continued(lm, cache, [length, 900]), alone)
            used = [not bool(room.isnan().all()) for room in frame._room]
            assert sum(used) == (min(num_threads, num_units) if length > 5 else 1) and len(used) >= num_threads
        torch.set_num_threads(1)
    with torch.inference_mode():  # negative control: the comparison sees the oldest slot of the long row
        for plane in cache._all_planes:
            plane[0, :, 0] = 0
    others = _continued(lm, cache, [3300, 900])
    assert [torch.equal(others[:, row], alone[:, row]) for row in range(2)] == [False, True]


def test_threads_that_decode_at_once_share_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them, one team of two: one has it, the others attend alone."""
    monkeypatch.setitem(COMMON, "max_position_embeddings", 2048)
    lm = HuggingFaceLM(build("llama"))
    caches = [prompted(lm, [1500 + i, 1700]) for i in range(3)]
    alone = [_continued(lm, cache, [1500 + i, 1700]) for i, cache in enumerate(caches)]
    found: dict[int, list[Tensor]] = {}

    def go(i: int) -> None:
        torch.set_num_threads(2)
        found[i] = [_continued(lm, caches[i], [1500 + i, 1700]) for _ in range(8)]

    threads = [threading.Thread(target=go, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, alone[i]) for i in range(3) for one in found[i])
    assert len(found) == 3 and not torch.equal(alone[0], alone[1])


def _continued(lm: HuggingFaceLM, cache: Any, lengths: list[int]) -> Tensor:
    """Logits [6, R, V] of single tokens after prompts of these lengths, which the cache holds."""
    cache.truncate(lengths)
    steps = torch.tensor([tokens(100 + row, 6) for row in range(len(lengths))])
    return torch.stack([lm.forward(steps[:, t : t + 1], [1] * len(lengths), cache).clone() for t in range(6)])


class _DependsOnValues(nn.Module):
    """Wraps an MLP with a branch on the value of a tensor, which cannot be written down."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out if bool(x.isfinite().all()) else out * 0


class _Counts(nn.Module):
    """Wraps an MLP with a factor that changes from pass to pass: a program has one of them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.count, self.is_on = inner, 0, False

    def forward(self, x: Tensor) -> Tensor:
        self.count += self.is_on
        out: Tensor = self.inner(x) * (1 + self.count % 7)
        return out


@pytest.mark.parametrize("kind", [_DependsOnValues, _Counts])
def test_what_cannot_be_written_down_is_run_by_the_modules(kind: type[nn.Module]) -> None:
    model: Any = build("llama")
    model.model.layers[0].mlp = kind(model.model.layers[0].mlp)
    lm = HuggingFaceLM(model, tier="ragged")
    for module in runner(lm).module.modules():
        vars(module).update({"is_on": True} if type(module) is _Counts else {})
    out = decoded(lm, [5])
    assert num_proven(runner(lm)._replays) == 0 and len(out) == NUM_STEPS
    assert all(kind.proof.is_refused for kind in runner(lm)._replays._kinds.values())


@few(1)
@pytest.mark.parametrize(("name", "place"), [("llama", 0), ("lfm2", 0), ("lfm2", 1)])
def test_a_program_that_differs_is_refused(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits, or the state that it leaves."""
    lm, plain = loaded(name)
    run = replay.StepFrame.run

    def wrong(self: Any, *given: Any) -> list[Tensor]:
        return [one * (1 + 1e-2 * (i == place)) for i, one in enumerate(run(self, *given))]

    monkeypatch.setattr(replay.StepFrame, "run", wrong)
    for ours, theirs in zip(decoded(lm, [5]), decoded(plain, [5]), strict=True):
        assert torch.equal(ours, theirs)
    assert num_proven(runner(lm)._replays) == 0


def test_a_branch_on_the_number_of_slots_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    append = step_program.Writer.append

    def branching(self: Any, layer: int, keys: Tensor, values: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        return append(self, layer, keys * 2 if self.num_slots > 1000 else keys, values, step)

    monkeypatch.setattr(step_program.Writer, "append", branching)
    lm, _ = loaded("llama")
    decoded(lm, [5])
    assert num_proven(runner(lm)._replays) == 0


def test_new_weights_reach_the_programs() -> None:
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


def test_a_norm_is_six_instructions_and_its_views_are_none() -> None:
    """The example at the head of `step_code`."""
    lm, _ = loaded("llama")
    decoded(lm, [5], 6)
    [program] = programs(lm)
    ops = [Op(code) for code in program.codes[:, 0]]
    num_layers = len(runner(lm).layers)
    assert ops.count(Op.MEAN) == ops.count(Op.RSQRT) == 2 * num_layers + 1
    assert ops.count(Op.ATTEND) == num_layers and ops.count(Op.STORE) == 2 * num_layers
    assert set(ops[:4]) & {Op.GATHER} and Op.CALL not in ops
    assert len(ops) < 40 * num_layers + 20


def test_long_steps_are_run_by_the_modules() -> None:
    lm, _ = loaded("llama")
    drafted(lm, [5], replay.MAX_WIDTH + 1, replay.MAX_WIDTH + 1)
    assert runner(lm)._replays._kinds == {}


def test_places_are_told_of_tensors_with_and_without_memory() -> None:
    """A sparse matrix has none of its own: it is told by its identity, and a weight beside it by its address."""
    module = torch.nn.Linear(2, 2)
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    places = WeightPlaces(module)
    assert not places.have_changed()
    module.weight.data = torch.ones(2, 2)
    assert places.have_changed() and not places.have_changed()
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    assert places.have_changed() and not places.have_changed()
