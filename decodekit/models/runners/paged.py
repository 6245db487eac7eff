"""A model's own modules over pages: a pass is a function of a `StepState`, run as it is or captured and replayed.

    read(state)     embeddings, layers and head run; every layer writes and reads the pages of the tables
                    -> logits [B * T, V] of the wanted places, in the type of the model

There may be several *variants* of the modules: with compiled layers, and with the long frequencies of LongRoPE. In 16
bits compiled layers round elsewhere than the modules, so a text is read by one of them from its first step to its last:

    steps of the model     0              1,000                              1,400
    compiled layers        not there      made and proved aside              ready
    a text begun at 900    modules        modules                            modules
    a text begun at 1,500                                                    compiled

`compile_layers` (and so `llm.warm_up`) waits for them; then all texts are read alike.

A decoding step on a GPU is one upload (`StepState.fill`), one replay, and what the caller downloads. Steps are captured
for B = 1, 2, 4, ..., 256, 320, ... rows and T = 1, 4, 8, 16 columns once they have been seen a few times; what lies
between is filled with rows that hold nothing. Longer passes (prompts) are run as they are.

A recurrent model has the states of its rows beside the tables (`row_states`): its pass takes and leaves them. Padding
would enter a state, so its steps are captured for one column, and rows that begin are in passes of their own.

Nothing here knows an architecture. Whether a model computes the right thing this way is decided by the self-check.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from decodekit.errors import is_out_of_memory
from decodekit.gpu.paged_attention import why_no_kernel
from decodekit.gpu.pages import PAGE_SIZE, Stored
from decodekit.gpu.step_inputs import StepInputs
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.caches.paged_rows import PagedRows, PagePlan
from decodekit.models.causal_lm import LogitsKind, assembled, forward_apart, wanted_counts
from decodekit.models.modules.decoder_layers import compiled_copy, while_compiling
from decodekit.models.modules.merged_products import SharedInputs
from decodekit.models.modules.shared_copy import WeightPlaces
from decodekit.models.programs.proof import NUM_PROOFS, Proof, relative_error, tolerance_of
from decodekit.models.runners.captured import PassLock, Run, StepCapture, bucket
from decodekit.models.runners.paged_step import LayerProbe, PagedStep
from decodekit.models.runners.step_state import StepState

ROW_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
ROWS_BEYOND: Final = 64
"""Steps of more rows are captured for multiples of so many."""
WIDTH_BUCKETS: Final = (1, 4, 8, 16)
CAPTURE_AFTER: Final = 4
"""Steps of one kind before it is captured."""
TRY_AGAIN_AFTER: Final = 256
"""Steps before a capture for which the memory was too small is tried again."""
REPLAY_TOLERANCE: Final = 1e-3
"""By how much replays may differ from what was captured, see `proof`: the same kernels run in the same order."""
COMPILE_AFTER: Final = 1000
"""Steps of a model before its layers are compiled aside, which takes about a minute of a processor."""
PROOFS: Final = ((3, 16), (3, 1), (1, 1), (3, 4), (1, 4))
"""Rows and columns of the passes by which compiled layers are proved; the first one is a prompt, for the others."""
MAX_ROWS: Final = 256
"""Rows that the tables have at first."""
LONGEST: Final = 1 << 17
"""Tokens that a row of the tables can have where the model sets no limit."""


def row_bucket(num_rows: int) -> int:
    """For how many rows a step is captured that has so many."""
    return bucket(num_rows, ROW_BUCKETS) or -(-num_rows // ROWS_BEYOND) * ROWS_BEYOND


class Variant(NamedTuple):
    """Which modules read a row."""

    is_compiled: bool = False  # those with compiled layers; fixed for a text when it begins
    is_long: bool = False  # those with the frequencies that LongRoPE has beyond the context length of its pretraining


MODULES: Final = Variant()
"""The modules of a model as they are."""


@dataclass(slots=True, eq=False)
class _Captured:
    """A captured step."""

    state: StepState
    variant: Variant
    run: Run
    proof: Proof


@dataclass(slots=True, eq=False)
class Steps:
    """The captured steps over the rows of one set of tables; they live as long as these."""

    of_weights: int  # how often the model had got other weights when they were captured
    programs: dict[Hashable, Any] = field(default_factory=dict)
    """What others than this module run over the same rows, by their keys."""
    seen: dict[tuple[Variant, int, int], int] = field(default_factory=dict)
    captured: dict[tuple[Variant, int, int], _Captured | None] = field(default_factory=dict)


class PagedModel:
    """Runs a model of transformers over pages.

    Args:
        model: how its modules are called: a `ragged.RaggedModel`, or a `recurrent.RecurrentModel`.
        context_length: the most tokens of a row, if there is a limit.
        capture: makes captured steps of steps; None runs every step as it is.
        compiler: compiles the layers of steps, as `torch.compile` knows it; None leaves them as they are.
        stored: how keys and values are kept.
    """

    def __init__(
        self,
        model: Any,
        context_length: int | None,
        capture: StepCapture | None = None,
        compiler: str | Callable[..., Any] | None = None,
        stored: Stored = Stored.AS_GIVEN,
    ) -> None:
        self._model, self._stored = model, stored
        self.widths = (1,) if model.states else WIDTH_BUCKETS
        """Columns of the steps that are captured."""
        self._context_length = context_length or LONGEST
        self.capture = capture
        self.pass_lock = PassLock(model.device)
        """To be taken from filling a state to the end of its pass: threads and streams may share a model."""
        self._rows: PagedRows | None = None
        self._shared = SharedInputs()
        self.plan = self._find_layers()
        self.bytes_per_token = self.plan.bytes_per_token
        self.state_bytes = sum(state.nbytes for state in model.states)  # of a row
        self._places, self._of_weights = WeightPlaces(model.module), 0
        self._variants: dict[Variant, nn.Module] = {MODULES: model.module}
        self._long_after: int | None = None  # tokens of a row that is not long yet
        self._compiler, self._is_compiled = compiler, False
        self._compiling = threading.Lock()
        self._num_steps = 0
        self.num_replays = 0
        self.not_captured: list[str] = []  # why steps are run as they are that should have been captured
        self.not_compiled: list[str] = []  # why the layers are not compiled, though they should be
        self.not_merged: list[str] = []  # why products with the same input are several, where layers are compiled

    def __getstate__(self) -> dict[str, Any]:
        # Tables and arenas are of this process, and so is what was compiled.
        variants = {variant: module for variant, module in self._variants.items() if not variant.is_compiled}
        return {**vars(self), "_rows": None, "_variants": variants, "_is_compiled": False, "_compiling": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compiling = threading.Lock()

    def read_long_rows_by(self, module: nn.Module, num_tokens: int) -> None:
        """Let a module read rows of more than so many tokens; before the first pass over a cache."""
        own = dict(module.named_modules())
        for name, place in self._model.module.named_modules():  # where a layer's keys and values are
            for key, value in vars(place).items():
                if key.startswith("paged_"):
                    setattr(own[name], key, value)
        self._variants[Variant(is_long=True)] = module
        self._long_after = num_tokens

    def variants_of(self, cache: PagedCache, rows: Sequence[int], ends: Sequence[int]) -> list[Variant]:
        """Which modules read some rows of a cache, by the lengths that they will have."""
        after, is_compiled = self._long_after, self._is_compiled
        return [
            Variant(cache.is_read_compiled(row, is_compiled) and is_compiled, after is not None and end > after)
            for row, end in zip(rows, ends, strict=True)
        ]

    @property
    def variants_now(self) -> list[Variant]:
        """Which modules may read a text that begins now."""
        return [variant for variant in self._variants if variant.is_compiled == self._is_compiled]

    def compile_layers(self) -> bool:
        """Compile the layers and prove them, unless that was done; whether texts that begin now are read by them.

        It takes about a minute at first. Other threads may decode meanwhile.
        """
        with self._compiling:
            if self._compiler is None or self._is_compiled or self.not_compiled:
                return self._is_compiled
            compiled = {}
            try:
                for variant, module in list(self._variants.items()):
                    twin, self.not_merged = compiled_copy(module, self._compiler, self._shared)
                    compiled[variant._replace(is_compiled=True)] = twin
                    self._prove(module, twin)
            except Exception as problem:  # whatever a compiler does not know: the modules go on
                self.not_compiled.append(f"{type(problem).__name__}: {problem}"[:500])
                return False
            self._variants.update(compiled)
            self._is_compiled = True
            return True

    def note_step(self) -> None:
        """Count a step; after many of them the layers are compiled aside, on the devices where that is worth it."""
        self._num_steps += 1
        if self._num_steps == COMPILE_AFTER and self._compiler is not None and self._model.device.type == "cuda":
            threading.Thread(target=self.compile_layers, name="decodekit-compile", daemon=True).start()

    @torch.inference_mode()
    def _prove(self, module: nn.Module, compiled: nn.Module) -> None:
        """Compare a compiled module with its origin: one row and several, one column and several, new lengths.

        It has rows of its own, so that no text waits for it. This compiles every kind of call that steps make.

        Raises:
            RuntimeError: their logits differ by more than rounding explains.
        """
        num_rows, width = PROOFS[0]
        rows = self._new_rows(num_rows, 64, 64 * num_rows)
        cache = PagedCache(rows, num_rows)
        tokens = np.arange(num_rows * width, dtype=np.int32).reshape(num_rows, width) % 97 + 1
        for number, (num_rows, width) in enumerate(PROOFS):
            starts, chosen = cache.row_lengths[:num_rows], range(num_rows)
            counts = [max(1, width - row) for row in chosen]
            state = StepState(rows, num_rows, width)
            cache.reach(counts, chosen)
            state.fill(cache.places[:num_rows], starts, counts, tokens[:num_rows, :width])
            expected = self._read_by(module, state, max(starts)).float()
            if number:
                with while_compiling():
                    found = self._read_by(compiled, state, 0).float()
                real = [row * width + place for row, count in enumerate(counts) for place in range(count)]
                error = relative_error(found[real], expected[real])
                if not error < tolerance_of(self._model.dtype):
                    raise RuntimeError(f"logits of compiled layers differ by {float(error):.2g} of their spread")
            cache.commit(counts, chosen, tokens.tolist() if cache.remembers else ())

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
                place.paged_group, offsets = plan.places[layer]
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
            num_in_arenas = max(1024, num_rows * min(capacity, num_tokens))
            most = row_bucket(num_rows) if self._model.states else max(MAX_ROWS, num_rows)  # a state is large
            rows = self._rows = self._new_rows(most, max(num_tokens, capacity), num_in_arenas)
        return PagedCache(rows, num_rows)

    def _new_rows(self, num_rows: int, num_tokens: int, num_in_arenas: int) -> PagedRows:
        """Tables of rows: plain tensors wherever they are made, for layers are compiled for one kind of tensors."""
        with torch.inference_mode(False):
            device, states = self._model.device, self._model.states
            return PagedRows(self.plan, num_rows, num_tokens, num_in_arenas, device, self._stored, states)

    @property
    def num_free_bytes(self) -> int:
        """Memory of the pages of its arenas that nobody has."""
        if self._rows is None:
            return 0
        self._rows.collect()
        return self._rows.num_free_bytes

    def steps_over(self, rows: PagedRows) -> Steps:
        """The captured steps over some rows; none where the model has other weights than they read."""
        steps: Steps | None = rows.programs.get(Steps)
        if steps is None or steps.of_weights != self._of_weights:
            steps = rows.programs[Steps] = Steps(self._of_weights)
        return steps

    def _look_at_weights(self) -> None:
        """Give up what reads weights where they lay: captured steps, and compiled layers with joined products.

        Asked at passes that the host starts, of which every text has one: its prompt.
        """
        if not self._places.have_changed():
            return
        self._of_weights += 1
        self._variants = {variant: module for variant, module in self._variants.items() if not variant.is_compiled}
        self._is_compiled, self._num_steps = False, 0

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
        """Append tokens and return logits; see `causal_lm.CausalLM.forward`. Tokens may be on the host, too.

        Rows that different modules read (`variants_of`) are in passes of their own.
        """
        chosen = list(range(cache.num_rows) if rows is None else rows)
        self._look_at_weights()
        for row, again in cache.tokens_to_read(chosen).items():
            self.forward(torch.tensor([again]), [len(again)], cache, [row], "last")
        variants = self.variants_of(cache, chosen, cache.ends(num_tokens, chosen))
        if len(set(variants)) > 1:
            return forward_apart(self.forward, variants, tokens, num_tokens, cache, chosen, logits, hidden)
        self.note_step()
        return self._forward(tokens, num_tokens, cache, chosen, logits, hidden, is_strict, variants[0])

    @torch.inference_mode()
    def warm_up(self, cache: PagedCache, num_rows: int, width: int) -> bool:
        """Capture and prove the pass of so many rows and columns, over empty rows of a cache; whether it could be."""
        chosen = list(range(num_rows))
        tokens, counts = torch.zeros(num_rows, width, dtype=torch.int64), [width] * num_rows
        is_captured = True
        for variant in self.variants_now:
            for _ in range(CAPTURE_AFTER + NUM_PROOFS + 2):  # the first one may begin the states of the rows
                self._forward(tokens, counts, cache, chosen, "all", None, False, variant)
            captured = self._captured(self.steps_over(cache.rows), cache.rows, variant, num_rows, width)
            is_captured &= captured is not None
            cache.reset(chosen)
        return is_captured

    def _forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: PagedCache, rows: list[int], logits: LogitsKind,
        hidden: list[Tensor] | None, is_strict: bool, variant: Variant,
    ) -> Tensor:  # fmt: skip
        """A pass by one variant of the modules."""
        width = max(num_tokens)
        given = tokens[:, :width].to("cpu", torch.int32).numpy()
        steps = self.steps_over(cache.rows)
        with self.pass_lock():
            cache.reach(num_tokens, rows)
            places = [cache.places[row] for row in rows]
            starts = [cache.row_lengths[row] for row in rows]
            counts = wanted_counts(logits, num_tokens)
            captured = None
            if hidden is None and not is_strict and not (self._model.states and min(starts) == 0):
                captured = self._captured(steps, cache.rows, variant, len(places), width)
            is_compiled = captured is None and variant.is_compiled and width <= WIDTH_BUCKETS[-1] and hidden is None
            most = max(counts)
            kept = [(r, t) for r, (n, m) in enumerate(zip(num_tokens, counts, strict=True)) for t in range(n - m, n)]
            state = StepState(cache.rows, len(places), width) if captured is None else captured.state
            if captured is not None or is_compiled:
                wanted = [r * state.width + t for r, t in kept]
            else:  # the last tokens alone have logits
                wanted = [r * most + t - (num_tokens[r] - most) for r, t in kept]
            state.fill(places, starts, num_tokens, given, np.array(wanted, dtype=np.int32))
            if captured is not None:
                out = self._replayed(captured, len(places), max(starts), len(wanted))
                if captured.proof.is_refused:
                    steps.captured[variant, state.num_rows, state.width] = None
            elif is_compiled:
                out = self.read(state, max(starts), variant)[: len(wanted)].float()
            else:
                is_even = min(num_tokens) == width
                module = self._variants[variant._replace(is_compiled=False)]
                out = self._run_eagerly(state, max(starts), most, len(wanted), hidden, is_strict, is_even, module)
            cache.commit(num_tokens, rows, given.tolist() if cache.remembers else ())
        if logits != "all":
            return out
        if min(num_tokens) == width:
            return out.view(len(num_tokens), width, -1)
        return assembled(torch.split(out, list(num_tokens)), logits, width)

    def _run_eagerly(
        self, state: StepState, num_seen: int, most: int, num_wanted: int,
        hidden: list[Tensor] | None, is_strict: bool, is_even: bool, module: nn.Module,
    ) -> Tensor:  # fmt: skip
        """Logits [num_wanted, V] at places among the last `most` tokens of each row; `is_even`: of equal rows."""
        step, inputs = self._step_of(state, num_seen)
        # A twin in torch looks at every slot of a table, so it is given those that are in use.
        num_slots = -(-(num_seen + state.width) // state.table_rows.page_size)
        step.pages = [pages[:, :num_slots] for pages in step.pages]
        step.hidden, step.is_strict, step.is_fresh = hidden, is_strict, num_seen == 0
        if is_even:
            out: Tensor = self._model.run(inputs.tokens, step, step, most, module).logits[:, -most:]
        else:
            last = state.counts.long()[:, None] - most + torch.arange(most, device=state.counts.device)
            out = self._model.run_at(inputs.tokens, step, step, last.clamp_min(0), module)  # [B, most, V]
        return out.flatten(0, 1)[state.wanted[:num_wanted]].float()

    def _replayed(self, captured: _Captured, num_rows: int, num_seen: int, num_wanted: int) -> Tensor:
        """Logits [num_wanted, V] of a captured step over so many rows; states are compared, too, and moved on once."""
        was_refused, states = captured.proof.is_refused, captured.state.table_rows.states
        rows = captured.state.rows[:num_rows]
        before = [] if captured.proof.is_proven else states.taken(rows)

        def by_modules() -> Tensor:
            left = states.taken(rows)
            states.put(rows, before)
            out = self.read(captured.state, num_seen, captured.variant)[:num_wanted].float()
            captured.proof.compare(left, states.taken(rows), 0)
            return out

        out = captured.proof.output(
            lambda: captured.run()[:num_wanted].to(torch.float32, copy=True),  # the next replay overwrites it
            by_modules,
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
        places = state.table_rows, starts_and_counts, inputs.pages, inputs.positions, state.rows
        return PagedStep(*places, num_seen), inputs

    def _read_by(self, module: nn.Module, state: StepState, num_seen: int) -> Tensor:
        step, inputs = self._step_of(state, num_seen)
        out: Tensor = self._model.run(inputs.tokens, step, step, None, module).logits
        flat = out.flatten(0, 1)
        return flat if state.width == 1 else flat.index_select(0, state.wanted)

    def read(self, state: StepState, num_seen: int = 0, variant: Variant = MODULES) -> Tensor:
        """Logits [B * T, V] at the wanted places of a pass, in the type of the model; a function of the state alone.

        `num_seen` is what the modules are told if they ask their cache for its length. Most do so to make a mask that
        nobody uses; a captured step that depends on it is found out, and not used. Compiled layers are told 0, or they
        would be compiled for every length.
        """
        if not variant.is_compiled:
            return self._read_by(self._variants[variant], state, num_seen)
        with while_compiling():
            return self._read_by(self._variants[variant], state, 0)

    def captured(self, state: StepState, run: Callable[[Variant], Tensor], variant: Variant) -> Run:
        """A pass over a state by a variant, captured; meanwhile it reads and writes no row.

        Raises:
            Exception: it cannot be captured.
        """
        assert self.capture is not None
        plain = variant._replace(is_compiled=False)
        with state.emptied():
            return self.capture(lambda: run(variant), lambda: run(plain))

    def _captured(self, steps: Steps, rows: PagedRows, variant: Variant, num_rows: int, width: int) -> _Captured | None:
        """The captured step for so many rows and columns; None if there is none (yet)."""
        num_columns = bucket(width, self.widths)
        if self.capture is None or num_columns is None:
            return None
        key = variant, row_bucket(num_rows), num_columns
        if key not in steps.captured:
            steps.seen[key] = steps.seen.get(key, 0) + 1
            if steps.seen[key] <= CAPTURE_AFTER:
                return None
            state = StepState(rows, *key[1:])
            try:
                run = self.captured(state, lambda variant: self.read(state, 0, variant), variant)
                steps.captured[key] = _Captured(state, variant, run, new_proof())
            except Exception as error:  # whatever a model does that cannot be captured: its modules go on running it
                if is_out_of_memory(error):
                    steps.seen[key] = -TRY_AGAIN_AFTER
                    return None
                steps.captured[key] = None
                self.not_captured.append(f"{key[1]} rows of {key[2]}: {type(error).__name__}: {error}")
        return steps.captured[key]


def new_proof() -> Proof:
    """The proof that a captured `read` has to give before it is trusted; it is captured with rows of no token."""
    return Proof(REPLAY_TOLERANCE)
