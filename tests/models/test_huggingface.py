"""Every architecture against its own forward pass and its own `generate`, on whatever tier the self-check chose."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from decodekit.errors import ContextLengthError, ModelError
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import paged
from decodekit.models.runners.ragged import RaggedModel
from tests.models import architectures
from tests.models.architectures import (
    ALL,
    CONTEXT_LENGTH,
    GREEDY,
    MASKED,
    RAGGED,
    RECURRENT,
    SHARING,
    VOCAB_SIZE,
    tokens,
)
from tests.models.recording import RecordedCapture
from tests.reference.models import plain_logits
from tests.sizes import few, sized

PROMPT_LENGTHS = (3, 17, 9, 1, 30)


@functools.cache
def load(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]), [len(row) for row in rows]


def greedy(lm: HuggingFaceLM, prompts: Sequence[Sequence[int]], num_new: int) -> list[list[int]]:
    """The plainest decoding loop over a `CausalLM`."""
    cache = lm.new_cache(len(prompts), 16)
    batch, counts = padded(prompts)
    out: list[list[int]] = [[] for _ in prompts]
    for _ in range(num_new):
        best = lm.forward(batch, counts, cache).argmax(dim=-1)
        for row, token in zip(out, best.tolist(), strict=True):
            row.append(token)
        batch, counts = best[:, None], [1] * len(prompts)
    return out


def generated(model: nn.Module, prompt: Sequence[int], num_new: int) -> list[int]:
    """The new tokens of transformers' own greedy `generate`, end-of-text tokens ignored."""
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    out = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_new,
        do_sample=False,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@few(1)
@sized("num_new", 16, slow=64)
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_equal_generate(name: str, num_new: int) -> None:
    """Batch 1 and batch 5 with unequal prompts, against `generate` of each prompt alone."""
    lm = load(name)
    prompts = [tokens(i, length) for i, length in enumerate(PROMPT_LENGTHS)]
    expected = [generated(lm.model, prompt, num_new) for prompt in prompts]
    assert greedy(lm, prompts, num_new) == expected
    assert greedy(lm, prompts[1:2], num_new) == expected[1:2]
    assert len({token for row in expected for token in row}) > 7 + num_new // 5  # no model that only repeats itself


@few(6, "falcon_alibi")
@pytest.mark.parametrize("name", ALL)
def test_tier(name: str) -> None:
    lm = load(name)
    tiers = {"ragged": {**RAGGED, **SHARING}, "masked": MASKED, "recurrent": RECURRENT}
    expected = next((tier for tier, names in tiers.items() if name in names), "rowwise")
    assert lm.tier.name == expected, str(lm.tier)
    assert lm.tier.error < 1e-4
    assert bool(lm.tier.refused) == (expected != "ragged")
    assert all(text in str(lm.tier) for text in (expected, *lm.tier.refused))
    assert lm.can_rollback == (name not in RECURRENT)
    assert lm.vocab_size == VOCAB_SIZE
    assert lm.eos_token_ids == frozenset(
        i
        for i in [lm.model.config.eos_token_id]
        if i is not None  # type: ignore[union-attr]
    )


class Checked:
    """A cache and the tokens that its rows hold; every logit is compared with a plain forward pass."""

    def __init__(self, lm: HuggingFaceLM, num_rows: int, capacity: int = 4) -> None:
        self.lm, self.cache = lm, lm.new_cache(num_rows, capacity)
        self.rows: list[list[int]] = [[] for _ in range(num_rows)]

    def forward(self, new: Sequence[Sequence[int]], rows: list[int] | None = None, kind: str = "all") -> None:
        batch, counts = padded(new)
        wanted = [1 + n // 2 for n in counts] if kind == "some" else kind  # the last ones of each row
        out = self.lm.forward(batch, counts, self.cache, rows, logits=wanted)  # type: ignore[arg-type]
        assert out.dtype == torch.float32
        parts = out.split(wanted) if isinstance(wanted, list) else ()
        for i, row in enumerate(range(len(self.rows)) if rows is None else rows):
            self.rows[row] += new[i]
            expected = plain_logits(self.lm.model, self.rows[row])[-counts[i] :]
            given = parts[i] if parts else out[i, : counts[i]] if kind == "all" else out[i][None]
            torch.testing.assert_close(given, expected[-len(given) :], atol=1e-4, rtol=1e-4)
        assert self.cache.lengths.tolist() == [len(row) for row in self.rows]

    def truncate(self, lengths: Sequence[int]) -> None:
        self.cache.truncate(lengths)
        self.rows = [row[:length] for row, length in zip(self.rows, lengths, strict=True)]

    def reorder(self, order: list[int]) -> None:
        self.cache.reorder(torch.tensor(order))
        self.rows = [list(self.rows[row]) for row in order]

    def reset(self, rows: list[int]) -> None:
        self.cache.reset(rows)
        for row in rows:
            self.rows[row] = []


@few(2)
@pytest.mark.parametrize("name", ALL)
def test_one_of_each_operation(name: str) -> None:
    """Unequal prompts, drafts, rollback, reordering, rows used again, growth beyond window and capacity."""
    run = Checked(load(name), 4)
    run.forward([tokens(i, n) for i, n in enumerate((9, 2, 13, 5))], kind="last")
    run.forward([tokens(4 + i, 1) for i in range(4)], kind="last")
    run.forward([tokens(8 + i, n) for i, n in enumerate((4, 1, 3, 2))])
    run.truncate([11, 4, 14, 1])
    run.forward([tokens(12, 2), tokens(13, 3)], rows=[2, 0], kind="last")
    run.reorder([3, 3, 0, 1])
    run.forward([tokens(14 + i, n) for i, n in enumerate((1, 2, 1, 1))])
    run.reset([1, 2])
    run.forward([tokens(18, 6), tokens(19, 3)], rows=[1, 2], kind="last")
    run.cache.grow(64)
    run.reorder([2, 1])
    run.forward([tokens(20, 1), tokens(21, 1)], kind="last")
    run.forward([tokens(22, 2)], rows=[1])
    run.forward([tokens(23, 5)], rows=[0], kind="some")
    run.forward([tokens(24, 3), tokens(25, 3)], kind="some")
    run.forward([tokens(26, 1), tokens(27, 30)], kind="some")


@few(2)
@pytest.mark.parametrize("name", ["gemma2", "opt", "lfm2"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_random_operations(name: str, data: st.DataObject) -> None:
    run = Checked(load(name), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12)))
    for i in range(data.draw(st.integers(1, 6))):
        count = len(run.rows)
        match data.draw(st.sampled_from(["forward", "forward", "truncate", "reset", "reorder"])):
            case "forward":
                order = data.draw(st.permutations(range(count)))
                rows = data.draw(st.none() | st.integers(1, count).map(lambda n, o=order: o[:n]))
                width = len(rows or run.rows)
                sizes = data.draw(st.lists(st.integers(1, 12), min_size=width, max_size=width))
                new = [tokens(100 * i + j, size) for j, size in enumerate(sizes)]
                run.forward(new, rows, data.draw(st.sampled_from(["all", "last", "some"])))
            case "truncate":
                run.truncate([data.draw(st.integers(0, len(row))) for row in run.rows])
            case "reset":
                run.reset(data.draw(st.lists(st.integers(0, count - 1), unique=True)))
            case "reorder":
                run.reorder(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count)))


@few(2)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "opt", "bloom", "mamba"])
def test_recompute_tier(name: str) -> None:
    lm = HuggingFaceLM(load(name).model, tier="recompute")
    assert lm.tier.name == "recompute" and lm.can_rollback
    run = Checked(lm, 2)
    run.forward([tokens(0, 9), tokens(1, 3)], kind="last")
    run.forward([tokens(2, 1), tokens(3, 4)])
    run.truncate([8, 5])
    run.reorder([1, 0])
    run.forward([tokens(4, 1)], rows=[1])


def test_few_logits_of_long_rows() -> None:
    """Where padding and prompt are long, the output projection runs on the wanted positions alone."""
    for name in ("llama", "gpt2", "falcon"):
        run = Checked(load(name), 3)
        new = [tokens(0, 40), tokens(1, 2), tokens(2, 13)]
        batch, counts = padded(new)
        out = run.lm.forward(batch, counts, run.cache, logits=[3, 1, 2])
        expected = [plain_logits(run.lm.model, row)[-n:] for row, n in zip(new, (3, 1, 2), strict=True)]
        torch.testing.assert_close(out, torch.cat(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wanted", [[1], [0, 1], [2, 4], [3, 1, 1]])
def test_logits_that_are_not_there(wanted: list[int]) -> None:
    lm = load("llama")
    with pytest.raises(ValueError, match="logits at the last"):
        lm.forward(*padded([tokens(0, 3), tokens(1, 3)]), lm.new_cache(2, 8), logits=wanted)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """To rounding: matrix products of other shapes add in another order."""
    lm = load("llama")
    alone = lm.new_cache(1, 8)
    first = lm.forward(*padded([tokens(0, 7)]), alone)
    beside = lm.new_cache(3, 8)
    second = lm.forward(*padded([tokens(1, 12), tokens(0, 7), tokens(2, 1)]), beside)
    torch.testing.assert_close(first[0], second[1], atol=1e-5, rtol=1e-5)


def test_the_model_is_not_changed() -> None:
    model = architectures.build("gemma2")
    prompt = tokens(0, 12)
    before = generated(model, prompt, 20)
    attributes = {name: set(module.__dict__) for name, module in model.named_modules()}
    implementation = model.config._attn_implementation  # type: ignore[union-attr]
    model.train()
    lm = HuggingFaceLM(model)
    assert model.training  # and yet decodekit runs without dropout
    assert model.config._attn_implementation == implementation  # type: ignore[union-attr]
    assert attributes == {name: set(module.__dict__) for name, module in model.named_modules()}
    model.eval()
    assert greedy(lm, [prompt], 20) == [before]
    assert generated(model, prompt, 20) == before
    # Neither has it become unfit for training.
    model(input_ids=torch.tensor([prompt])).logits.sum().backward()


def test_weights_are_shared() -> None:
    model = architectures.build("gpt2")
    lm = HuggingFaceLM(model)
    assert {id(p) for p in lm._runner.module.parameters()} == {id(p) for p in model.parameters()}
    before = lm.forward(*padded([[5, 6]]), lm.new_cache(1, 4))
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.mul_(1.5)  # type: ignore[union-attr, index]
    after = lm.forward(*padded([[5, 6]]), lm.new_cache(1, 4))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after[0], plain_logits(model, [5, 6])[-1], atol=2e-5, rtol=1e-4)
    model.to(torch.bfloat16)
    assert lm.dtype == torch.bfloat16


@few(1)
@pytest.mark.parametrize("name", ["mistral", "gptj", "longrope"])
def test_threads_do_not_mix(name: str) -> None:
    lm = HuggingFaceLM(longrope_model()) if name == "longrope" else load(name)
    prompts = [tokens(i, 4 + 3 * i) for i in range(4)]
    expected = [greedy(lm, [prompt], 24) for prompt in prompts]
    found: list[list[list[int]]] = [[] for _ in prompts]

    def run(i: int) -> None:
        found[i] = greedy(lm, [prompts[i]], 24)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def longrope_model() -> nn.Module:
    config = RAGGED["phi3"]()
    config.original_max_position_embeddings = 16
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 16,
        "factor": 16.0,
    }
    torch.manual_seed(1)
    return type(architectures.build("phi3"))(config).eval()


def test_long_rows_do_not_change_the_rotary_factors_of_short_ones() -> None:
    """LongRoPE picks its factors for a whole batch by its longest row; each row must get its own."""
    model = longrope_model()
    lm = HuggingFaceLM(model)
    assert lm.tier.name == "ragged"
    run = Checked(lm, 3)
    run.forward([tokens(0, 20), tokens(1, 5), tokens(2, 7)], kind="last")
    run.forward([tokens(3, 2), tokens(4, 1), tokens(5, 3)])
    run.forward([tokens(6, 1), tokens(7, 1), tokens(8, 1)], kind="last")
    # Negative control: what one pass over all rows would give the long one.
    lm._runner._longrope_limit = None
    out = lm.forward(*padded([tokens(0, 20), tokens(1, 5)]), lm.new_cache(2, 8))
    assert (out[0] - plain_logits(model, tokens(0, 20))[-1]).abs().max() > 0.01


@few(1)
@pytest.mark.parametrize("is_captured", [None, False, True], ids=["rectangle", "pages", "captured pages"])
def test_a_text_that_gets_long_is_that_of_transformers(
    is_captured: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step across the limit of LongRoPE, beside a row that stays short; each side is captured by itself."""
    from transformers import DynamicCache

    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = longrope_model()
    capture = RecordedCapture() if is_captured else None
    runner = RaggedModel(model, use_pages=is_captured is not None, capture=capture)
    cache = runner.new_cache(2, 40)
    texts = [tokens(0, 30), tokens(1, 30)]
    lengths = [12, 3]
    runner.forward(*padded([text[:length] for text, length in zip(texts, lengths, strict=True)]), cache, None, "last")
    theirs = [DynamicCache(), DynamicCache()]
    with torch.inference_mode():
        for text, length, past in zip(texts, lengths, theirs, strict=True):
            model(input_ids=torch.tensor([text[:length]]), past_key_values=past)
        for step in range(9):
            new = torch.tensor([[text[length + step]] for text, length in zip(texts, lengths, strict=True)])
            found = runner.forward(new, [1, 1], cache, None, "last")
            for row, past in enumerate(theirs):
                expected = model(input_ids=new[row : row + 1], past_key_values=past).logits[0, -1]
                assert (found[row] - expected).abs().max() < 1e-4, (step, row)
    if is_captured:
        assert runner.paged is not None and runner.paged.not_captured == []
        kinds = {variant.is_long for variant, *_ in runner.paged.steps_over(cache.rows).captured}
        assert kinds == {False, True} and runner.paged.num_replays >= 9
    # Negative control: rows that never get long are another text.
    short = RaggedModel(model)
    short._longrope_limit = None
    other = short.new_cache(1, 40)
    short.forward(torch.tensor([texts[0][:20]]), [20], other, None, "last")
    with torch.inference_mode():
        out = short.forward(torch.tensor([[5]]), [1], other, None, "last")
        assert (out[0] - model(input_ids=torch.tensor([[*texts[0][:20], 5]])).logits[0, -1]).abs().max() > 0.01


def test_dynamic_rope_is_held_to_its_trained_length() -> None:
    config = RAGGED["llama"]()
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    lm = HuggingFaceLM(type(architectures.build("llama"))(config))
    assert lm.context_length == CONTEXT_LENGTH


def test_context_length_is_kept() -> None:
    lm = load("gpt2")
    cache = lm.new_cache(2, 8)
    lm.forward(*padded([tokens(0, CONTEXT_LENGTH), tokens(1, 3)]), cache)
    with pytest.raises(ContextLengthError, match="row 0 would hold 257 tokens, the model's context is 256"):
        lm.forward(torch.tensor([[5], [5]]), [1, 1], cache)
    assert cache.lengths.tolist() == [CONTEXT_LENGTH, 3]
    run = Checked(lm, 1)
    run.forward([tokens(0, CONTEXT_LENGTH - 1)], kind="last")
    run.forward([[7]])


def test_padding_beyond_the_context_does_no_harm() -> None:
    lm = load("opt")
    run = Checked(lm, 2)
    run.forward([tokens(0, CONTEXT_LENGTH - 2), tokens(1, 3)], kind="last")
    run.forward([tokens(2, 1), tokens(3, 9)])


def test_misuse_is_refused() -> None:
    lm = load("llama")
    cache = lm.new_cache(2, 8)
    row = torch.tensor([[5, 6], [7, 8]])
    for batch, counts, rows in [
        (row, [2], None),
        (row[:1], [2], None),
        (row, [2, 3], None),
        (row, [0, 1], None),
        (row, [1, 1], [0, 0]),
        (row, [1, 1], [0, 2]),
        (row, [1, 1], [-1, 0]),
    ]:
        with pytest.raises(ValueError, match=r"rows of tokens|token counts|not distinct rows"):
            lm.forward(batch, counts, cache, rows)
    assert cache.lengths.tolist() == [0, 0]
    with pytest.raises(ModelError, match="Linear is not a model of transformers"):
        HuggingFaceLM(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="in tier 'ragged'") as caught:
        HuggingFaceLM(architectures.build("bloom"), tier="ragged")
    assert "ragged:" in str(caught.value)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_an_exception_changes_no_length(name: str) -> None:
    model = architectures.build(name)
    lm = HuggingFaceLM(model)
    run = Checked(lm, 2)
    run.forward([tokens(0, 4), tokens(1, 2)])
    head = lm._runner.module.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        lm.forward(torch.tensor([[5], [6]]), [1, 1], run.cache)
    handle.remove()
    assert run.cache.lengths.tolist() == [4, 2]
    run.forward([tokens(2, 1), tokens(3, 2)])


@few(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt_oss"])
def test_half_precision_stays_ragged(name: str, dtype: torch.dtype) -> None:
    lm = HuggingFaceLM(architectures.build(name, dtype))
    assert lm.tier.name == "ragged", str(lm.tier)
    assert lm.forward(*padded([[5, 6]]), lm.new_cache(1, 4)).dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(RAGGED))
def test_cuda_bfloat16(name: str) -> None:
    """On CUDA in bf16: the ragged tier runs, and its logits are those of plain passes up to rounding."""
    model = architectures.build(name, torch.bfloat16).to("cuda")
    lm = HuggingFaceLM(model)
    assert lm.tier.name == "ragged", str(lm.tier)
    rows = [tokens(0, 9), tokens(1, 4), tokens(2, 14)]
    batch, counts = padded(rows)
    cache = lm.new_cache(3, 4)
    out = [lm.forward(batch.to("cuda"), counts, cache)]
    for i in range(4):
        rows = [[*row, 7 + i] for row in rows]
        out.append(lm.forward(torch.full((3, 1), 7 + i, device="cuda"), [1, 1, 1], cache))
    with torch.inference_mode():
        for i, row in enumerate(rows):
            expected = model(input_ids=torch.tensor([row], device="cuda"), use_cache=False).logits[0].float()
            for t, given in enumerate(out):
                want = expected[len(row) - 5 + t]
                assert (given[i] - want).square().mean().sqrt() < 0.08 * want.std()


def test_a_model_that_rescales_its_own_weights_keeps_them() -> None:
    """RWKV divides weights when it first runs in evaluation mode: a copy that shares them must not do it, too."""
    torch.manual_seed(0)
    config = transformers.RwkvConfig(vocab_size=VOCAB_SIZE, hidden_size=16, num_hidden_layers=3, rescale_every=1)
    model = transformers.RwkvForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    lm = HuggingFaceLM(model)
    run = lm.forward(*padded([tokens(0, 6)]), lm.new_cache(1, 8))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    own = model(input_ids=torch.tensor([tokens(0, 6)])).logits[0, -1]
    # Halved hidden states beside the epsilon of a norm: the model itself differs by as much.
    assert float(((run[0] - own).abs().max() / own.std()).detach()) < 1e-2
    assert not all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    again = lm.forward(*padded([tokens(0, 6)]), lm.new_cache(1, 8))  # with what the model has made of its weights
    torch.testing.assert_close(again[0], own, atol=1e-4, rtol=1e-4)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What is left is not found by the collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@few(3, "llama", "jamba")
@pytest.mark.parametrize("name", sorted(ALL))
def test_weights_go_with_their_model(name: str, no_collections: None) -> None:
    """At once, where those of its modules alone do, which is the control: a collection may come much later."""

    def are_left(is_run: bool) -> bool:
        module = architectures.build(name)
        weights = weakref.ref(next(module.parameters()))
        if is_run:
            greedy(HuggingFaceLM(module), [tokens(0, 9), tokens(1, 3)], 5)
        del module
        return weights() is not None

    are_left(False)  # what the first model of a process leaves
    assert are_left(True) == are_left(False) == (name == "mamba")
