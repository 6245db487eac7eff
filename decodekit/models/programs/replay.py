"""Decoding steps on a CPU without Python: a step is written down as instructions, and run from then on.

A step of a model that fits a CPU is mostly the Python of its modules and the overhead of hundreds of operations of
torch. `step_program` writes down what the modules do, `products.step_code` does it in one call of compiled code.

A program is for a number of tokens. Which of them belong to one row does not matter: a row with a draft of two is three
rows of one token in the same row of the cache, which write their keys before any of them attends:

    row 4 reads "the", "cat"; row 7 reads "on"      tokens     the  cat  on
    row 4 holds 20 tokens, row 7 holds 31           rows         4    4   7
                                                    positions   20   21  31

Steps of up to `MAX_ROWS` tokens are run by a program from the first one on, and every token comes to the same numbers
whatever stands beside it: those of a draft are those of its tokens one by one. A step of more tokens is written down
once it has been seen `WRITE_AFTER` times, and comes to these numbers, too, up to `STEP_ROWS`; beyond, torch multiplies.

A program rounds in other places than the modules do. Its first outputs are compared with theirs (`proof`); one that
differs by more than rounding is never used. This is for a CPU what a captured CUDA graph is for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decodekit.models.caches.kv_cache import LayerShape, RaggedCache, Step
from decodekit.models.causal_lm import LogitsKind, Rows
from decodekit.models.modules.shared_copy import WeightPlaces
from decodekit.models.programs.proof import Proof, tolerance_of
from decodekit.models.programs.step_program import (
    FEW_SLOTS,
    MANY_SLOTS,
    NotWritableError,
    Operand,
    StepProgram,
    TorchCall,
    Writer,
)
from decodekit.products.cpu_products import MAX_ROWS, ROOM
from decodekit.products.cpu_team import MAKERS, team_state, threads_of
from decodekit.products.step_code import ATTENDER, SCRATCH, Field, Op, run

MAX_TOKENS: Final = 512
MAX_WIDTH: Final = 16
"""Most tokens of a step that is written down, and of a row: with more, arithmetic is most of the time."""
_FINE: Final = 64
_COARSE: Final = 32
"""Steps of up to `_FINE` tokens are padded to a multiple of `MAX_ROWS`, longer ones to one of `_COARSE`."""
WRITE_AFTER: Final = 8
"""Steps of more than `MAX_ROWS` tokens before one of their kind is written down."""

Run = Callable[[nn.Module, Tensor, Step, Any, Sequence[Tensor]], list[Tensor]]
"""Logits of `module(tokens [M, 1], step, store)`, and the states that it leaves, if it begins with some."""


class StepFrame:
    """The memory that runs of one program take, one at a time: arena, addresses, and views for what torch computes."""

    def __init__(self, program: StepProgram) -> None:
        self._program = program
        self._arena = torch.empty(program.arena_bytes + 64, dtype=torch.uint8)
        skipped = -self._arena.data_ptr() % 64
        self._arena = self._arena[skipped : skipped + program.arena_bytes]
        self._room = torch.empty(0, 0)  # of each thread
        kinds = {int(code[Field.B + 2]) for code in program.codes if code[Field.OP] == Op.LINEAR}
        makers = [one.address if i in kinds else 0 for i, one in enumerate(MAKERS)]
        self._makers = np.array([*makers, ATTENDER.address], np.int64)
        self._views: dict[int, Tensor] = {}

    def run(
        self,
        inputs: Sequence[Tensor],
        rows: NDArray[np.int64],
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
        planes: NDArray[np.int64],
    ) -> list[Tensor]:
        """The outputs of a program; the cache is written, and inputs may be.

        Args:
            inputs: as it was written down with, of the same shapes and types.
            rows: [M], the row of the cache of each token.
            slots: [M, 1], where its keys and values go.
            positions: [M, 1], of the tokens: each sees the slots up to its own.
            planes: [P, NUM_PLACES]; see `products.step_code`.
        """
        program = self._program
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in program.outputs]
        given = [*[one.contiguous() for one in inputs], *outputs]
        bases = np.array([0, *[one.data_ptr() for one in (self._arena, *given)]], np.int64)
        needed = SCRATCH + ROOM + max(program.room, program.per_slot * (int(positions.max()) + 1))
        state = team_state()
        if self._room.shape[1] < needed or len(self._room) < threads_of(state):
            self._room = torch.empty(threads_of(state), 2 * needed)
        room, size = self._room.data_ptr(), 4 * self._room.stride(0)
        arguments = bases, planes, rows, slots, positions, room, size, state, self._makers
        codes, floats, first = program.codes, program.floats, 0
        for at, call in program.calls:
            run(codes, floats, first, at, *arguments)
            self._call(call, given)
            first = at + 1
        run(codes, floats, first, len(codes), *arguments)
        return outputs

    def _call(self, call: TorchCall, given: Sequence[Tensor]) -> None:
        outs = [self._viewed(one, given) for one in call.outs]
        args, kwargs = self._viewed(call.args, given), self._viewed(call.kwargs, given)
        if call.is_given_out:
            call.function(*args, **kwargs, out=outs[0])
            return
        found = call.function(*args, **kwargs)
        for out, one in zip(outs, [found] if isinstance(found, Tensor) else found, strict=False):
            if out.shape != one.shape:
                raise RuntimeError(f"{call.function} came to {tuple(one.shape)}, not {tuple(out.shape)}")
            if out.data_ptr() != one.data_ptr():
                out.copy_(one)

    def _viewed(self, value: Any, given: Sequence[Tensor]) -> Any:
        """Arguments of a call with the tensors of this run."""
        if isinstance(value, Operand):
            if value.base != 1:
                return _as_view(given[value.base - 2], value)
            view = self._views.get(id(value))
            if view is None:
                view = self._views[id(value)] = _as_view(self._arena, value)
            return view
        if type(value) in (list, tuple):
            return type(value)([self._viewed(one, given) for one in value])
        if type(value) is dict:
            return {key: self._viewed(one, given) for key, one in value.items()}
        return value


def _as_view(memory: Tensor, view: Operand) -> Tensor:
    flat = memory if memory.dtype is view.dtype else memory.view(view.dtype)
    first = flat.storage_offset() + view.offset // flat.element_size()
    return flat.as_strided(view.shape, view.strides, first)


@dataclass(slots=True)
class _StepKind:
    """One kind of step: seen, written down or refused."""

    proof: Proof
    num_seen: int = 0
    program: StepProgram | None = None
    frames: list[StepFrame] = field(default_factory=list)  # of runs that have ended, for the next ones


class Replays:
    """The decoding steps of one model that have been written down. Threads may share it.

    Args:
        module: the model with decodekit's attention function, on a CPU.
        layers: what each layer stores.
    """

    def __init__(self, module: nn.Module, layers: dict[int, LayerShape]) -> None:
        self._module = module
        self._layers = layers
        self._kinds: dict[Hashable, _StepKind] = {}
        self._places = WeightPlaces(module)
        self._is_written = False  # whether a program holds for any number of slots
        self._tolerance = tolerance_of(next(module.parameters()).dtype)

    def logits(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: RaggedCache,
        rows: Rows,
        wanted: LogitsKind,
        call: Run,
        eager: Callable[[], Tensor],
    ) -> Tensor:
        """Logits [P, V] of a pass, whose tokens the cache holds then; see `causal_lm.CausalLM.forward`.

        `wanted` is not "all"; `eager` makes them with the modules, and `call` is how these are called.
        """
        chosen = list(range(cache.num_rows)) if rows is None else list(rows)
        starts, ends = cache.reserve(num_tokens, chosen)
        width = max(num_tokens)
        flat, places = tokens[:, :1], None
        if width > 1:
            is_token = np.arange(width) < np.array(num_tokens)[:, None]
            flat = torch.from_numpy(tokens.numpy()[:, :width][is_token])[:, None]
            chosen = np.repeat(chosen, num_tokens).tolist()
            starts = [start + i for start, count in zip(starts, num_tokens, strict=True) for i in range(count)]
            counts: Sequence[int] = [1] * len(num_tokens) if isinstance(wanted, str) else wanted
            if [*counts] != [*num_tokens]:
                ends_of = zip(accumulate(num_tokens), counts, strict=True)
                places = torch.tensor([place for end, count in ends_of for place in range(end - count, end)])
        [out] = self.step(flat, chosen, starts, cache, call, lambda _: [eager()], places=places)
        cache.commit(ends, rows)
        return out

    def step(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: RaggedCache,
        call: Run,
        eager: Callable[[Sequence[Tensor]], list[Tensor]],
        states: Sequence[Tensor] = (),
        places: Tensor | None = None,
    ) -> list[Tensor]:
        """Logits after some tokens, and states: by a program where it is trusted, else from `eager`.

        Args:
            tokens: int64 [M, 1].
            rows, positions: [M], where they are in the cache, which has slots for them.
            call: how the module is called. It is not kept: whose method it is would outlive its last user.
            eager: makes what is wanted with the modules, of states. Running a step twice writes the same keys and
                values twice.
            states: that the step begins with, [M, ...]; it may write into them.
            places: int64, of which tokens logits are wanted; None for all.
        """
        num_tokens, num_added = len(rows), 0
        if num_tokens > MAX_ROWS and not states:  # few kinds: what is added goes where nothing is read
            num_added = -num_tokens % (MAX_ROWS if num_tokens <= _FINE else _COARSE)
        kind = self._kind_of(num_tokens + num_added, type(cache), call, states)
        if kind is None or (program := kind.program) is None:
            return eager(states)
        at = slots = np.array(positions)[:, None]
        if num_added:
            tokens = torch.cat([tokens, tokens.new_zeros(num_added, 1)])
            rows = [*rows, *[rows[0]] * num_added]
            slots = np.concatenate([at, np.full((num_added, 1), cache.capacity)])
            at = np.concatenate([at, np.zeros((num_added, 1), np.int64)])

        def replayed(states: Sequence[Tensor]) -> list[Tensor]:
            frame = kind.frames.pop() if kind.frames else StepFrame(program)
            try:
                inputs = [tokens, torch.from_numpy(at), *states]
                out, *left = frame.run(inputs, np.array(rows), slots, at, cache.planes_now())
            finally:
                kind.frames.append(frame)
            return [out[:num_tokens] if places is None else out[places], *left]

        if kind.proof.is_proven:
            return replayed(states)
        expected = eager([state.clone() for state in states])
        try:
            out = replayed([state.clone() for state in states])
        except Exception:  # a shape that was right for zeros alone
            kind.proof.is_refused = True
        # What the program has come to is taken, so that a text does not depend on what was decoded before it.
        if not kind.proof.is_refused and kind.proof.compare(out, expected, max(positions) + 1):
            return out
        return eager(states)  # anew: the cache has what the program wrote

    def _kind_of(
        self, num_tokens: int, cache: type[RaggedCache], call: Run, states: Sequence[Tensor]
    ) -> _StepKind | None:
        """The kind of a step that has been written down; None if the modules run it."""
        key = cache, num_tokens
        kind = self._kinds.get(key) or self._kinds.setdefault(key, _StepKind(Proof(self._tolerance)))
        if kind.program is None and not kind.proof.is_refused:
            kind.num_seen += 1
            if num_tokens > MAX_ROWS and kind.num_seen < WRITE_AFTER:
                return None
            try:
                kind.program = self._written(num_tokens, cache, call, states)
            except Exception:  # whatever a model does that cannot be written down; then its modules go on running it
                kind.proof.is_refused = True
        if kind.proof.is_refused:
            return None
        if self._places.have_changed():  # the program has the old ones
            self._kinds = {}
            return None
        return kind

    def _written(self, num_tokens: int, kind: type[RaggedCache], call: Run, states: Sequence[Tensor]) -> StepProgram:
        """Write a step of so many tokens down, over rows of zeros.

        Raises:
            NotWritableError: the model looks at the value of a tensor, or does something of its own with its cache.
        """
        num_planes = [len(kind.planes_of(shape)) for shape in self._layers.values()]
        firsts = dict(zip(self._layers, np.cumsum([0, *num_planes]).tolist(), strict=False))

        def written(num_slots: int) -> StepProgram:
            tokens = torch.zeros(num_tokens, 1, dtype=torch.int64)
            positions = torch.full((num_tokens, 1), FEW_SLOTS - 1)
            copies = [state.clone() for state in states]
            writer = Writer(self._module, firsts, [tokens, positions, *copies], num_slots)
            starts, ends = [FEW_SLOTS - 1] * num_tokens, [FEW_SLOTS] * num_tokens
            like = Step(starts, ends, 1, positions, recording=writer)
            with writer:
                return writer.program(call(self._module, tokens, like, writer, copies))

        with torch.inference_mode(False), torch.no_grad():
            program = written(FEW_SLOTS)
            if not self._is_written:  # a model that does something else for many slots does it in every kind of step
                longer = written(MANY_SLOTS)
                self._is_written = program.is_like(longer)
                if not self._is_written:
                    raise NotWritableError("the model does something else where there are many slots")
            return program
