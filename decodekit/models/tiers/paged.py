"""A model's own modules over pages: a pass is a function of a `StepState`, run as it is or captured and replayed.

    read(state)     embeddings, layers and head run; every layer writes and reads the pages of the tables
                    -> logits [B * T, V] of the wanted places, in the type of the model

A decoding step on a GPU is one upload (`StepState.fill`), one replay, and what the caller downloads. Steps are captured
for B = 1, 2, 4, ..., 256, 320, ... rows and T = 1, 4, 8, 16 columns once they have been seen a few times; what lies
between is filled with rows that hold nothing. Longer passes (prompts) are run as they are.

Nothing here knows an architecture. Whether a model computes the right thing this way is decided by the self-check.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from decodekit.errors import is_out_of_memory
from decodekit.kernels.paged_attention import why_no_kernel
from decodekit.kernels.pages import PAGE_SIZE, Stored
from decodekit.kernels.step_inputs import StepInputs
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.caches.paged_rows import PagedRows, PagePlan
from decodekit.models.causal_lm import LogitsKind, wanted_counts
from decodekit.models.modules.decoder_layers import compiled_copy, while_compiling
from decodekit.models.modules.merged_products import SharedInputs
from decodekit.models.tiers.captured import PassLock, Run, StepCapture, bucket
from decodekit.models.tiers.paged_step import LayerProbe, PagedStep
from decodekit.models.tiers.proof import Proof
from decodekit.models.tiers.step_state import StepState

ROW_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
ROWS_BEYOND: Final = 64
"""Steps of more rows are captured for multiples of so many."""
WIDTH_BUCKETS: Final = (1, 4, 8, 16)
CAPTURE_AFTER: Final = 4
"""Steps of one kind before it is captured."""
TRY_AGAIN_AFTER: Final = 256
"""Steps before a capture for which the memory was too small is tried again."""
REPLAY_TOLERANCE: Final = 1e-3
"""By how much replays may differ from the modules, see `proof`: the same kernels run in the same order."""
COMPILED_TOLERANCE: Final = 3e-2
"""The same for compiled layers of 16 bits: they round where the modules do not, and the other way round."""
MAX_ROWS: Final = 256
"""Rows that the tables have at first."""
LONGEST: Final = 1 << 17
"""Tokens that a row of the tables can have where the model sets no limit."""


def row_bucket(num_rows: int) -> int:
    """For how many rows a step is captured that has so many."""
    return bucket(num_rows, ROW_BUCKETS) or -(-num_rows // ROWS_BEYOND) * ROWS_BEYOND


@dataclass(slots=True, eq=False)
class _Captured:
    """A captured step."""

    state: StepState
    run: Run
    proof: Proof


@dataclass(slots=True, eq=False)
class Steps:
    """The captured steps over the rows of one set of tables; they live as long as these.

    Attributes:
        programs: what others than this module run over the same rows, by their keys.
    """

    programs: dict[Hashable, Any] = field(default_factory=dict)
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    captured: dict[tuple[int, int], _Captured | None] = field(default_factory=dict)


class Passes(Protocol):
    """How the modules of a model are called: see `ragged.RaggedModel`."""

    @property
    def module(self) -> nn.Module:
        """The model with decodekit's attention function."""

    @property
    def device(self) -> torch.device:
        """Where the embeddings are."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""

    def run(
        self, tokens: Tensor, step: Any, store: Any, keep: int | Tensor | None, module: nn.Module | None = None
    ) -> Tensor:
        """Logits [R, T, V] of a pass over tokens [R, T], or of those that are kept; `store` gets keys and values."""

    def run_at(self, tokens: Tensor, step: Any, store: Any, columns: Tensor, are_last: bool) -> Tensor:
        """Logits [R, W, V] at columns [R, W] of a pass; whether they are the last W of every row."""


@runtime_checkable
class HasPages(Protocol):
    """A model that may run over pages: then `paged` is how."""

    @property
    def paged(self) -> PagedModel | None:
        """How it runs over pages; None if it does not."""


class PagedModel:
    """Runs a model of transformers over pages.

    Args:
        model: how its modules are called.
        layers: what each layer stores.
        context_length: the most tokens of a row, if there is a limit.
        capture: makes captured steps of steps; None runs every step as it is.
        compiler: compiles the layers of captured steps, as `torch.compile` knows it; None leaves them as they are.
        stored: how keys and values are kept.
    """

    def __init__(
        self,
        model: Passes,
        context_length: int | None,
        capture: StepCapture | None = None,
        compiler: str | Callable[..., Any] | None = None,
        stored: Stored = Stored.AS_GIVEN,
    ) -> None:
        self._model, self._stored = model, stored
        self._context_length = context_length or LONGEST
        self.capture = capture
        self.pass_lock = PassLock(model.device)
        """To be taken from filling a state to the end of its pass: threads and streams may share a model."""
        self._rows: PagedRows | None = None
        self._shared = SharedInputs()
        self.plan = self._find_layers()
        """How the layers share pages."""
        self._compiled: nn.Module | None = None
        self.not_merged: list[str] = []
        """Why products with the same input are several, where layers are compiled."""
        if compiler is not None:
            self._compiled, self.not_merged = compiled_copy(model.module, compiler, self._shared)
        self.num_replays = 0
        self.not_captured: list[str] = []
        """Why steps are run as they are that should have been captured, for whoever wonders why they are slow."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": None}  # tables and arenas are of this process

    @torch.inference_mode()
    def _find_layers(self) -> PagePlan:
        """How the layers share pages, by what a pass over two tokens shows; every attention module learns its place."""
        device = self._model.device
        probe = LayerProbe(torch.arange(2, device=device)[None])
        with self._shared.watched(self._model.module):
            self._model.run(torch.zeros(1, 2, dtype=torch.int64, device=device), probe, probe, None)
        for layer, one in probe.layers.items() if device.type == "cuda" else ():
            key, value = one.shape.key, one.shape.value
            reason = why_no_kernel(key.dtype, key.head_dim, value.head_dim, self._stored, device)
            if reason is not None:
                raise RuntimeError(f"{reason} (layer {layer})")
        plan = PagePlan.of(probe.layers, PAGE_SIZE, self._stored)
        for layer, readers in probe.readers.items():
            place: Any = None
            for place in readers:
                # Plain integers, which a compiled layer takes as inputs: it is compiled once for all layers.
                place.paged_group = plan.places[layer].group
                offsets = plan.places[layer].offsets
                place.paged_keys, place.paged_values, place.paged_key_scales, place.paged_value_scales = offsets
        return plan

    def new_cache(self, num_rows: int, capacity: int) -> PagedCache:
        """An empty cache whose pages are of the model's common ones; see `causal_lm.CausalLM.new_cache`."""
        rows = self._rows
        if rows is not None:
            rows.collect()
            if rows.num_free_rows < num_rows:  # of caches that are gone, but were not collected yet
                gc.collect()
                rows.collect()
        if rows is None or rows.num_free_rows < num_rows or rows.num_slots * rows.page_size < capacity:
            num_tokens = min(self._context_length, LONGEST)
            rows = self._rows = None
            gc.collect()  # the old tables and what was captured over them refer to each other; arenas are large
            rows = self._rows = PagedRows(
                self.plan,
                max(MAX_ROWS, num_rows),
                max(num_tokens, capacity),
                max(1024, num_rows * min(capacity, num_tokens)),
                self._model.device,
                self._stored,
            )
        return PagedCache(rows, num_rows)

    @property
    def num_free_bytes(self) -> int:
        """Memory of the pages of its arenas that nobody has."""
        if self._rows is None:
            return 0
        self._rows.collect()
        return self._rows.num_free_bytes

    def steps_over(self, rows: PagedRows) -> Steps:
        """What is captured over some rows."""
        steps: Steps = rows.programs.setdefault(Steps, Steps())
        return steps

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: PagedCache,
        rows: Sequence[int] | None,
        logits: LogitsKind,
        hidden: list[Tensor] | None = None,
        is_strict: bool = False,
    ) -> Tensor:
        """Append tokens and return logits; see `causal_lm.CausalLM.forward`. Tokens may be on the host, too."""
        chosen = range(cache.num_rows) if rows is None else rows
        for row, again in cache.tokens_to_read(chosen).items():
            self.forward(torch.tensor([again]), [len(again)], cache, [row], "last")
        width = max(num_tokens)
        given = tokens[:, :width].to("cpu", torch.int32).numpy()
        steps = self.steps_over(cache.rows)
        with self.pass_lock():
            cache.reach(num_tokens, rows)
            places = [cache.places[row] for row in chosen]
            starts = [cache.row_lengths[row] for row in chosen]
            counts = list(num_tokens) if logits == "all" else wanted_counts(logits, num_tokens)
            captured = (
                None if hidden is not None or is_strict else self._captured(steps, cache.rows, len(places), width)
            )
            if captured is not None:
                wanted = [r * captured.state.width + t for r, t in _places(num_tokens, counts)]
                captured.state.fill(places, starts, num_tokens, given, np.array(wanted, dtype=np.int32))
                out = self._replayed(captured, max(starts), len(wanted))
                if captured.proof.is_refused:
                    steps.captured[captured.state.num_rows, captured.state.width] = None
            else:
                state = StepState(cache.rows, len(places), width)
                most = max(counts)
                kept = [(r, t - (num_tokens[r] - most)) for r, t in _places(num_tokens, counts)]
                wanted = [r * most + max(0, t) for r, t in kept]
                state.fill(places, starts, num_tokens, given, np.array(wanted, dtype=np.int32))
                is_even = min(num_tokens) == width
                out = self._run_eagerly(state, max(starts), most, len(wanted), hidden, is_strict, is_even)
            cache.commit(num_tokens, rows, given.tolist() if cache.remembers else ())
        return self._shaped(out, num_tokens, width) if logits == "all" else out

    def _run_eagerly(
        self,
        state: StepState,
        num_seen: int,
        most: int,
        num_wanted: int,
        hidden: list[Tensor] | None,
        is_strict: bool,
        is_even: bool,
    ) -> Tensor:
        """Logits [num_wanted, V] at places among the last `most` tokens of each row; `is_even`: of equal rows."""
        step, inputs = self._step_of(state, num_seen)
        # A twin in torch looks at every slot of a table, so it is given those that are in use.
        num_slots = -(-(num_seen + state.width) // state.table_rows.page_size)
        step.pages = [pages[:, :num_slots] for pages in step.pages]
        step.hidden, step.is_strict = hidden, is_strict
        last = state.counts.long()[:, None] - most + torch.arange(most, device=state.counts.device)
        out = self._model.run_at(inputs.tokens, step, step, last.clamp_min(0), is_even)  # [B, most, V]
        return out.flatten(0, 1)[state.wanted[:num_wanted]].float()

    def _replayed(self, captured: _Captured, num_seen: int, num_wanted: int) -> Tensor:
        """Logits [num_wanted, V] of a captured step."""
        was_refused = captured.proof.is_refused
        out = captured.proof.output(
            lambda: captured.run()[:num_wanted].to(torch.float32, copy=True),  # the next replay overwrites it
            lambda: self.read(captured.state, num_seen)[:num_wanted].float(),
            num_seen,
        )
        self.num_replays += not captured.proof.is_refused
        if captured.proof.is_refused and not was_refused:
            size = f"{captured.state.num_rows} rows of {captured.state.width}"
            self.not_captured.append(f"{size}: a replay differs from the modules")
        return out

    def _step_of(self, state: StepState, num_seen: int) -> tuple[PagedStep, StepInputs]:
        inputs = state.inputs()
        starts_and_counts = inputs.starts, inputs.counts
        return PagedStep(state.table_rows, starts_and_counts, inputs.pages, inputs.positions, num_seen), inputs

    def read(self, state: StepState, num_seen: int = 0, module: nn.Module | None = None) -> Tensor:
        """Logits [B * T, V] at the wanted places of a pass, in the type of the model; a function of the state alone.

        `num_seen` is what the modules are told if they ask their cache for its length. Most do so to make a mask that
        nobody uses; a captured step that depends on it is found out, and not used.
        """
        step, inputs = self._step_of(state, num_seen)
        out = self._model.run(inputs.tokens, step, step, None, module)
        flat = out.flatten(0, 1)
        return flat if state.width == 1 else flat.index_select(0, state.wanted)

    def read_compiled(self, state: StepState) -> Tensor:
        """`read` with compiled layers, if there are any; for passes that are captured, now or after a few times."""
        with while_compiling() if self._compiled is not None else nullcontext():
            return self.read(state, 0, self._compiled)

    def captured(self, state: StepState, run: Run) -> Run:
        """A pass over a state, captured; meanwhile it reads and writes no row.

        Raises:
            Exception: it cannot be captured.
        """
        assert self.capture is not None
        with state.emptied():
            return self.capture(run)

    def new_proof(self) -> Proof:
        """What a captured `read_compiled` has to show before it is trusted; it is captured with rows of no token."""
        is_exact = self._compiled is None or self._model.dtype == torch.float32
        return Proof(0, REPLAY_TOLERANCE if is_exact else COMPILED_TOLERANCE)

    def _captured(self, steps: Steps, rows: PagedRows, num_rows: int, width: int) -> _Captured | None:
        """The captured step for so many rows and columns; None if there is none (yet)."""
        num_columns = bucket(width, WIDTH_BUCKETS)
        if self.capture is None or num_columns is None:
            return None
        key = row_bucket(num_rows), num_columns
        if key not in steps.captured:
            steps.seen[key] = steps.seen.get(key, 0) + 1
            if steps.seen[key] <= CAPTURE_AFTER:
                return None
            state = StepState(rows, *key)
            try:
                run = self.captured(state, lambda: self.read_compiled(state))
                steps.captured[key] = _Captured(state, run, self.new_proof())
            except Exception as error:  # whatever a model does that cannot be captured: its modules go on running it
                if is_out_of_memory(error):
                    steps.seen[key] = -TRY_AGAIN_AFTER
                    return None
                steps.captured[key] = None
                self.not_captured.append(f"{key[0]} rows of {key[1]}: {type(error).__name__}: {error}")
        return steps.captured[key]

    @staticmethod
    def _shaped(out: Tensor, num_tokens: Sequence[int], width: int) -> Tensor:
        """[R, T, V] of the logits of all tokens, [sum, V]."""
        if min(num_tokens) == width:
            return out.view(len(num_tokens), width, -1)
        whole = out.new_zeros(len(num_tokens), width, out.shape[-1])
        for row, part in enumerate(torch.split(out, list(num_tokens))):
            whole[row, : len(part)] = part
        return whole


def _places(num_tokens: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
    """(row, column) of the last `counts[r]` tokens of each row."""
    return [(r, t) for r, (n, m) in enumerate(zip(num_tokens, counts, strict=True)) for t in range(n - m, n)]
