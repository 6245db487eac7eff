"""Does a way of running a model give the model's own logits? Asked for every model when it is loaded.

Some architectures ignore the attention interface and return wrong logits in silence, others raise. So a handful of
tokens are run through ragged rows, a draft of unequal length and a rollback, and every logit is compared with plain
forward passes of the model, one row at a time and without a cache.

    a window that is one token too wide, Mistral in bfloat16, weights as small as at its initialisation
    the model itself   error 0.004 of the spread of its logits, tolerance 0.06     not seen
    its float32 twin   error 0.4,                               tolerance 0.001    seen

Rounding in half precision is larger than many a fault, and windows of thousands of tokens are never reached. So a small
float32 twin of the same classes and settings is compared first (see `tiny_copy`), with windows of a few tokens. The
comparison of the model itself is the second, coarse one: it sees what is wrong with this model only. Where rounding
alone moves its logits further than the tolerance, as in deep models of large weights, the tolerance is twice that far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decodekit.gpu.paged_attention import PROMPT_TOKENS
from decodekit.models.causal_lm import LogitsKind
from decodekit.models.checks.tiny_copy import WINDOW, WINDOWS, tiny_copy_of
from decodekit.models.modules.shared_copy import shared_copy
from decodekit.models.programs.proof import relative_error, tolerance_of
from decodekit.models.runners.ragged import RaggedModel
from decodekit.models.runners.rowwise import RowwiseModel

Runner: TypeAlias = RaggedModel | RowwiseModel

TWIN_TOLERANCE: Final = 1e-3
"""Of twins, which are float32: a fault gives 0.05 and more, rounding 1e-6, rarely 1e-4."""
_MOST_TIMES: Final = 3
"""The tolerance of a model of which rounding moves the logits far, in tolerances; what a fault gives is above it."""


def small_windows(model: nn.Module) -> nn.Module | None:
    """A copy of the model with sliding windows of a few tokens; None if it has no window."""
    twin = shared_copy(model)
    found = False
    holders: dict[int, Any] = {}
    for module in twin.modules():
        holders[id(module)] = module
        config = getattr(module, "config", None)
        if config is not None:
            holders[id(config)] = config
            text = config.get_text_config() if hasattr(config, "get_text_config") else config
            holders[id(text)] = text
    for holder in holders.values():
        for name in WINDOWS:
            width = holder.__dict__.get(name)
            if isinstance(width, int) and not isinstance(width, bool) and width > WINDOW:
                setattr(holder, name, WINDOW)
                found = True
    return twin if found else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a way of running a model is from the model's own logits."""

    error: float  # of the model itself
    twin_error: float | None  # of its twin; None if it has none
    tolerance: float  # what the error may be

    @property
    def is_right(self) -> bool:
        """Whether both are within what rounding explains."""
        return self.error <= self.tolerance and (self.twin_error is None or self.twin_error <= TWIN_TOLERANCE)

    def __str__(self) -> str:
        if self.twin_error is not None and not self.twin_error <= TWIN_TOLERANCE:
            return f"logits of a small float32 twin differ from its own by {self.twin_error:.2g} of their spread"
        return f"logits differ from the model's own by {self.error:.2g} of their spread"


class SelfCheck:
    """The comparison of ways of running one model with its plain passes; what they have in common is computed once."""

    def __init__(self, model: nn.Module, context_length: int | None) -> None:
        self._model = model
        self._context_length = context_length
        self._tolerance = tolerance_of(model.dtype)  # type: ignore[arg-type]
        self._reference: Plain | None = None
        self._twin: Plain | None = None
        with suppress(Exception):  # whatever the class says of a configuration that does not fit any more
            twin = Plain(tiny_copy_of(model))
            if twin.logits([1, 2, 3]).isfinite().all():
                self._twin = twin

    def verdict(self, make: Callable[[nn.Module], Runner], runner: Runner) -> Verdict:
        """Compare one way of running the model: `runner` with the model itself, and one made for its twin.

        In full precision: products of ten bits (TF32), which a user may have asked for, differ by more than a fault.
        """
        backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        before = [one.fp32_precision for one in backends]  # the common setting raises where one was set alone
        try:
            for backend in backends:
                backend.fp32_precision = "ieee"
            return self._verdict(make, runner)
        finally:
            for backend, precision in zip(backends, before, strict=True):
                backend.fp32_precision = precision

    def _verdict(self, make: Callable[[nn.Module], Runner], runner: Runner) -> Verdict:
        twin_error = None
        if self._twin is not None:
            twin_error = self._error(make(self._twin.model), self._twin)
            if not twin_error <= TWIN_TOLERANCE:
                return Verdict(math.inf, twin_error, self._tolerance)
        self._reference = self._reference or Plain(shared_copy(self._model))
        error = self._error(runner, self._reference, is_coarse=self._twin is not None)
        if self._twin is None and isinstance(runner, RaggedModel) and math.isfinite(error):
            windowed = small_windows(self._model)
            if windowed is not None:
                error = max(error, self._error(make(windowed), Plain(windowed)))
        tolerance, most = self._tolerance, _MOST_TIMES * self._tolerance
        if self._twin is not None and tolerance < error < most:
            tolerance = max(tolerance, min(2 * rounding_of(self._model, self._reference), most))
        return Verdict(error, twin_error, tolerance)

    def is_causal(self) -> bool | None:
        """Whether the logits of the model at a token are the same without the tokens behind it; None if it fails."""
        plain = self._twin or self._reference or Plain(shared_copy(self._model))
        try:
            row = _tokens(0, 8, plain.logits([1]).shape[-1])
            error = relative_error(plain.logits(row[:4])[-1], plain.logits(row)[3])
            return bool(error < 10 * TWIN_TOLERANCE)
        except Exception:  # what it raises is among the reasons that are given anyway
            return None

    def _error(self, runner: Runner, plain: Plain, is_coarse: bool = False) -> float:
        if isinstance(runner, RaggedModel):
            runner.is_strict = True
        error = largest_error(runner, plain, self._context_length, is_coarse)
        if isinstance(runner, RaggedModel):
            runner.is_strict = False
        return error if math.isfinite(error) else math.inf


class Plain:
    """Plain forward passes of a model, one row at a time and without a cache; each is run once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.known: dict[tuple[int, ...], Tensor] = {}

    @torch.inference_mode()
    def logits(self, tokens: Iterable[int]) -> Tensor:
        """float32 [T, V]: logits of one row."""
        row = tuple(tokens)
        if row not in self.known:
            device: torch.device = self.model.get_input_embeddings().weight.device  # type: ignore[operator]
            out = self.model(input_ids=torch.tensor([list(row)], device=device), use_cache=False)
            self.known[row] = out.logits[0].float()
        return self.known[row]


def rounding_of(model: nn.Module, plain: Plain) -> float:
    """How far the logits that plain passes have given move if each product comes out a unit in the last place apart.

    As `largest_error`: of the row of logits that moves furthest.
    """
    twin, generator = shared_copy(model), torch.Generator().manual_seed(0)

    def rounded(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        shares = 2 * torch.rand(out.shape, generator=generator).to(out.device) - 1
        return (out.float() * (1 + torch.finfo(out.dtype).eps * shares)).to(out.dtype)

    for module in twin.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(rounded)
    moved = Plain(twin)
    pairs = [pair for row, logits in plain.known.items() for pair in zip(moved.logits(row), logits, strict=True)]
    return float(torch.stack([relative_error(one, other) for one, other in pairs]).max())


@torch.inference_mode()
def largest_error(runner: Runner, plain: Plain, context_length: int | None, is_coarse: bool = False) -> float:
    """The largest root mean square error of a row of logits, in deviations of those of plain passes; it may be NaN.

    A coarse check ends before anything is taken back.
    """
    embeddings: Any = plain.model.get_input_embeddings()  # type: ignore[operator]
    vocab_size, device = embeddings.weight.shape[0], embeddings.weight.device
    longest = _longest(device, context_length)
    first, second = rows = [_tokens(0, longest, vocab_size), _tokens(1, longest - 3, vocab_size)]
    references = [plain.logits(row) for row in rows]
    cache: Any = runner.new_cache(3, 2)  # a row that is not used, and slots that do not suffice
    errors: list[Tensor] = []

    def run(parts: list[list[int]], logits: LogitsKind, chosen: list[int] | None = None) -> Tensor:
        tokens = pad_sequence([torch.tensor(part) for part in parts], batch_first=True).to(device)
        return runner.forward(tokens, [len(part) for part in parts], cache, chosen or [0, 2], logits)

    cut = (longest - 4, longest - 7)
    # Prompts of unequal length, from a row of slots that is too short for them.
    out = run([first[: cut[0]], second[: cut[1]]], "last")
    errors += [relative_error(out[i], references[i][cut[i] - 1]) for i in range(2)]
    # A draft of four tokens beside a single one, every position compared.
    out = run([first[cut[0] :], second[cut[1] : cut[1] + 1]], "all")
    errors += [relative_error(out[0, t], references[0][cut[0] + t]) for t in range(4)]
    errors.append(relative_error(out[1, 0], references[1][cut[1]]))
    if is_coarse:
        return float(torch.stack(errors).max())  # of NaN: NaN
    # Three tokens of the draft are rejected, and both rows go on with one token each, twice.
    cache.truncate([longest - 3, 0, cut[1] + 1])
    other = _tokens(2, 2, vocab_size)
    changed = plain.logits([*first[: longest - 3], *other])
    for t in range(2):
        out = run([other[t : t + 1], second[cut[1] + 1 + t : cut[1] + 2 + t]], "last")
        errors.append(relative_error(out[0], changed[longest - 3 + t]))
        errors.append(relative_error(out[1], references[1][cut[1] + 1 + t]))
    # The rows are used again, for prompts of equal length, in another order.
    cache.reset([0, 2])
    out = run([second[: cut[1]], first[: cut[1]]], "last", [0, 1])
    errors += [relative_error(out[1 - i], references[i][cut[1] - 1]) for i in range(2)]
    return float(torch.stack(errors).max())


def _longest(device: torch.device, context_length: int | None) -> int:
    """Tokens of the longer row: prompts and then a draft of 4; on a GPU, whose kernels have other tiles for prompts
    and may not fit on the card with them, as many as a prompt has at least."""
    longest = 12 + (PROMPT_TOKENS if device.type == "cuda" else 0)
    return longest if context_length is None else min(longest, context_length)


def _tokens(row: int, count: int, vocab_size: int) -> list[int]:
    # Spread over the vocabulary and never twice the same in a row; low ids, often special, are avoided where possible.
    low = min(8, vocab_size // 2)
    return [low + (37 + 101 * row + 61 * i + i * i) % (vocab_size - low) for i in range(count)]
