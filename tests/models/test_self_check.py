"""The self-check must see every fault that a way of running a model could have; each test here breaks one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from decodekit.gpu.paged_attention import PROMPT_TOKENS
from decodekit.models.caches import kv_cache
from decodekit.models.caches.kv_cache import RaggedCache, Step
from decodekit.models.checks import model_notes, self_check
from decodekit.models.checks.self_check import Plain, SelfCheck, largest_error, small_windows
from decodekit.models.checks.tiny_copy import tiny_copy_of
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.programs.proof import tolerance_of
from decodekit.models.runners.attention import ragged_attention
from decodekit.models.runners.ragged import RaggedModel
from tests.models import architectures
from tests.models.architectures import CONTEXT_LENGTH
from tests.models.other_attention import use_attention
from tests.sizes import few, thinned

FAULT = 3 * tolerance_of(torch.bfloat16)  # seen even by the widest tolerance


def error_of(name: str = "llama", **changes: int) -> float:
    model = architectures.build(name)
    return largest_error(RaggedModel(model), Plain(model), changes.get("context_length", CONTEXT_LENGTH))


def test_nothing_broken() -> None:
    assert error_of() < tolerance_of(torch.float32) / 10
    assert error_of(context_length=8) < tolerance_of(torch.float32) / 10


@pytest.mark.parametrize("name", ["mistral", "gpt2"])
def test_a_gpu_is_checked_with_prompts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As long as a kernel's tiles for prompts ask for, within the context; the same check, over pages, on a CPU."""
    assert self_check._longest(torch.device("cpu"), None) == 12
    cuda = self_check._longest(torch.device("cuda"), None)
    assert cuda - 7 >= PROMPT_TOKENS  # the shorter of the two prompts
    assert self_check._longest(torch.device("cuda"), 20) == 20
    widths: set[int] = set()
    forward = RaggedModel.forward

    def noted(self: RaggedModel, tokens: Tensor, *others: Any) -> Any:
        widths.add(tokens.shape[1])
        return forward(self, tokens, *others)

    monkeypatch.setattr(RaggedModel, "forward", noted)
    monkeypatch.setattr(self_check, "_longest", lambda device, context_length: cuda)
    assert HuggingFaceLM(architectures.build(name), tier="paged").tier.name == "paged"
    assert max(widths) >= PROMPT_TOKENS


def test_rounding_that_moves_logits_far_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of a package that rounds twice, in a model of large weights: within what rounding does to its logits."""
    model = architectures.build("llama").bfloat16()
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.mul_(3 if weight.dim() > 1 else 1)
    check, runner = SelfCheck(model, CONTEXT_LENGTH), RaggedModel(model)
    for module in runner.module.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, given, out: (out / 3) * 3)
    found = check.verdict(RaggedModel, runner)
    assert tolerance_of(torch.bfloat16) < found.error < FAULT and found.is_right, found
    monkeypatch.setattr(self_check, "rounding_of", lambda *_: 0.0)
    assert not check.verdict(RaggedModel, runner).is_right


def break_begin(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    real = RaggedCache.begin

    def begin(self: RaggedCache, *given: Any) -> Step:
        step = real(self, *given)
        change(step)
        return step

    monkeypatch.setattr(RaggedCache, "begin", begin)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_positions_off_by_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def shift(step: Step) -> None:
        # From the second pass on: rotary positions are relative, so a shift of everything would change nothing.
        if not step.is_fresh:
            step.mask(None, 1, torch.float32, torch.device("cpu"))
            step.mask(None, 2, torch.float32, torch.device("cpu"))
            step.positions = step.positions + 1

    break_begin(monkeypatch, shift)
    assert error_of(name) > FAULT


def test_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Step.mask
    monkeypatch.setattr(Step, "mask", lambda *args: (*real(*args)[:2], torch.zeros_like(real(*args)[2])))
    assert error_of() > FAULT


def test_prompt_seen_from_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmask(step: Step) -> None:
        step.is_uniform = True

    break_begin(monkeypatch, unmask)
    assert error_of() > FAULT


def test_rows_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def swap(step: Step) -> None:
        if step.row_index is not None:
            step.row_index = step.row_index.flip(0)

    break_begin(monkeypatch, swap)
    assert error_of() > FAULT


def test_rollback_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaggedCache, "truncate", lambda self, lengths: None)
    assert error_of() > FAULT


def test_growth_loses_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(self: RaggedCache, capacity: int) -> None:
        self.capacity = capacity
        self._allocate()

    monkeypatch.setattr(kv_cache.RaggedCache, "grow", grow)
    assert error_of() > FAULT


@few(1)
@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt_oss"])
def test_windows_are_checked_however_wide(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The check itself never reaches a window of thousands of tokens; that it is ignored must show all the same."""
    model = architectures.build(name)
    widen(model, 4096)
    assert HuggingFaceLM(model).tier.name == "ragged"
    real = Step.mask
    monkeypatch.setattr(Step, "mask", lambda self, window, *rest: real(self, None, *rest))
    assert largest_error(RaggedModel(model), Plain(model), CONTEXT_LENGTH) < 1e-4
    small = small_windows(model)
    assert small is not None
    assert largest_error(RaggedModel(small), Plain(small), CONTEXT_LENGTH) > tolerance_of(torch.float32) * 100
    model_notes._notes.pop(model, None)  # it was found right before the fault
    lm = HuggingFaceLM(model)
    assert lm.tier.name == "rowwise", lm.tier
    assert "small float32 twin" in lm.tier.refused[0]
    # The check has left the model's own windows alone.
    assert model.config.sliding_window == 4096  # type: ignore[union-attr]


def test_chunked_attention_is_found_out() -> None:
    """Llama 4 cuts its past into chunks, which its attention function is never told."""
    model = architectures.build("llama4")
    model.config.attention_chunk_size = 8192  # type: ignore[union-attr]
    assert HuggingFaceLM(model).tier.name == "rowwise"


def test_models_without_windows() -> None:
    assert small_windows(architectures.build("llama")) is None


def test_non_finite_models_are_refused() -> None:
    model = architectures.build("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(Exception, match="cannot be run") as caught:
        HuggingFaceLM(model)
    assert "finite logits" in str(caught.value)


def widen(model: torch.nn.Module, window: int) -> None:
    for holder in (model.config, *model.modules()):
        if isinstance(getattr(holder, "sliding_window", None), int):
            holder.sliding_window = window  # type: ignore[union-attr, assignment]


def test_reference_is_not_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference logits come from plain passes, without decodekit's cache or attention."""
    calls: list[Tensor] = []

    def fail(*args: object, **kwargs: object) -> None:
        calls.append(torch.empty(0))
        raise AssertionError

    model = architectures.build("llama")
    runner = HuggingFaceLM(model)._runner
    expected = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits
    monkeypatch.setattr("decodekit.models.caches.kv_cache.RaggedCache.append", fail)
    assert torch.equal(model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits, expected)
    with pytest.raises(AssertionError):
        largest_error(runner, Plain(model), CONTEXT_LENGTH)
    assert len(calls) == 1


# What a way of running a model could do wrong. Each is a change of the attention function that transformers calls.
def without(*names: str) -> Callable[..., Any]:
    def attend(*args: Any, **kwargs: Any) -> Any:
        return ragged_attention(*args, **{name: value for name, value in kwargs.items() if name not in names})

    return attend


def widened(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> Any:
    return ragged_attention(*args, sliding_window=sliding_window and sliding_window + 1, **kwargs)


def narrowed(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> Any:
    return ragged_attention(*args, sliding_window=sliding_window and sliding_window - 1, **kwargs)


def rescaled(*args: Any, scaling: float | None = None, **kwargs: Any) -> Any:
    return ragged_attention(*args, scaling=2 * (scaling or 0.125), **kwargs)


def unmasked(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: object, **kwargs: Any) -> Any:
    """What a model computes that ignores the attention interface, and is given no mask."""
    group = query.shape[1] // key.shape[1]
    out = scaled_dot_product_attention(query, *(one.repeat_interleave(group, 1) for one in (key, value)))
    return out.transpose(1, 2), None


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "no mask": ("llama", unmasked),
    "window too wide": ("mistral", widened),
    "window too narrow": ("mistral", narrowed),
    "window forgotten": ("mistral", without("sliding_window")),
    "scaling": ("gemma2", rescaled),
    "scaling forgotten": ("granite", without("scaling")),
    "softcap forgotten": ("gemma2", without("softcap")),
    "sinks forgotten": ("gpt_oss", without("s_aux")),
}


def as_initialised(name: str, dtype: torch.dtype) -> nn.Module:
    """A model with weights as small as at its initialisation, whose attention adds little to what its layers hand on.

    So it is in large models with many layers; in a small one the attention must be made small.
    """
    torch.manual_seed(0)
    config = architectures.RAGGED[name]()
    config.initializer_range = 0.02
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if part.endswith("o_proj.weight"):
                weight.mul_(0.1)
    return model.to(dtype).eval()


@few(3)
@thinned("dtype", [torch.bfloat16, torch.float16], keep=[torch.bfloat16])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_below_the_rounding_of_half_precision_are_seen(
    monkeypatch: pytest.MonkeyPatch, fault: str, dtype: torch.dtype
) -> None:
    name, attend = FAULTS[fault]
    model = as_initialised(name, dtype)
    assert HuggingFaceLM(model).tier.name == "ragged"
    use_attention(monkeypatch, attend)
    # The coarse check alone would let it pass: the control, without which the twin would prove nothing.
    assert largest_error(RaggedModel(model), Plain(model), CONTEXT_LENGTH, is_coarse=True) < tolerance_of(
        torch.bfloat16
    )
    model_notes._notes.pop(model, None)
    tier = HuggingFaceLM(model).tier
    assert tier.name in ("masked", "rowwise")  # with the attention of the model itself
    assert "small float32 twin" in tier.refused[0]


def test_positions_that_are_ignored_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = as_initialised("llama", torch.bfloat16)
    real = RaggedModel.run
    monkeypatch.setattr(
        RaggedModel, "run", lambda self, *args: real(vars(self).update(_takes_positions=False) or self, *args)
    )
    assert largest_error(RaggedModel(model), Plain(model), CONTEXT_LENGTH, is_coarse=True) < tolerance_of(
        torch.bfloat16
    )
    assert "small float32 twin" in HuggingFaceLM(model).tier.refused[0]


def test_a_model_without_a_twin_is_checked_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = architectures.build("mistral")
    widen(model, 4096)
    monkeypatch.setattr("decodekit.models.checks.self_check.tiny_copy_of", lambda model: 1 / 0)
    assert HuggingFaceLM(model).tier.twin_error is None
    model_notes._notes.pop(model, None)
    use_attention(monkeypatch, widened)
    assert "differ from the model's own" in HuggingFaceLM(model).tier.refused[0]


BACKENDS: Any = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def precisions() -> list[str]:
    return [backend.fp32_precision for backend in BACKENDS]


def set_for_all() -> None:
    torch.set_float32_matmul_precision("medium")


def set_for_one() -> None:
    """After this the common setting cannot be read any more."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()


@pytest.mark.parametrize(("ask", "asked"), [(set_for_all, ["tf32", "bf16"]), (set_for_one, ["tf32", "none"])])
def test_the_check_is_in_full_precision(
    ask: Callable[[], None], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a user has asked for faster products, which stay theirs."""
    seen: set[str] = set()
    logits, forward = Plain.logits, RaggedModel.forward

    def noted(*arguments: Any) -> Tensor:
        seen.update(precisions())
        return logits(*arguments)

    def noted_too(*arguments: Any) -> Tensor:
        seen.update(precisions())
        return forward(*arguments)

    monkeypatch.setattr(Plain, "logits", noted)
    monkeypatch.setattr(RaggedModel, "forward", noted_too)
    before = precisions()
    try:
        ask()
        assert precisions() == asked
        model = architectures.build("llama")
        check = SelfCheck(model, CONTEXT_LENGTH)
        assert seen == {*asked}  # its making compares nothing; and the control
        seen.clear()
        assert check.verdict(RaggedModel, RaggedModel(model)).is_right and seen == {"ieee"}
        assert precisions() == asked
    finally:
        torch.set_float32_matmul_precision("highest")
        for backend, precision in zip(BACKENDS, before, strict=True):
            backend.fp32_precision = precision


def test_what_a_twin_keeps() -> None:
    model = architectures.build("gemma2", torch.bfloat16)
    config = model.config
    twin = tiny_copy_of(model)
    assert type(twin) is type(model) and twin.dtype == torch.float32
    assert [type(part) for part in twin.model.layers[0].children()] == [
        type(part) for part in model.model.layers[0].children()
    ]
    assert twin.config.layer_types == ["sliding_attention", "full_attention"]
    assert twin.config.sliding_window == 4 and twin.config.attn_logit_softcapping == 2.0
    assert twin.config.query_pre_attn_scalar == config.query_pre_attn_scalar
    assert config.sliding_window == architectures.WINDOW  # nothing of the model is changed
    again = tiny_copy_of(model)
    assert all(torch.equal(one, other) for one, other in zip(twin.parameters(), again.parameters(), strict=True))


def test_the_check_of_a_model_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine passes of the model: two plain ones, two to compare, the rest to learn its shapes; a twin does the rest."""
    model = architectures.build("mistral")
    counts: dict[int, int] = {}
    size = sum(parameter.numel() for parameter in model.parameters())
    real = type(model).forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        number = sum(parameter.numel() for parameter in self.parameters())
        counts[number] = counts.get(number, 0) + 1
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", forward)
    HuggingFaceLM(model)
    assert counts.pop(size) <= 9
    [(small, _)] = counts.items()
    assert small < 30_000
