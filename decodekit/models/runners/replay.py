"""Decoding steps on a CPU without Python: a step is written down as instructions, and run from then on.

A step of a model that fits a CPU is mostly the Python of its modules and the overhead of hundreds of operations of
torch. `step_program` writes down what the modules do, `products.step_code` does it in one call of compiled code.

A program holds for one number of rows and of new tokens in each, for one kind of cache. Where rows lie in the cache,
how long they are and how many slots there are may change. Steps of up to `MAX_ROWS` tokens are run by a program from
the first one on, and every row of them comes to the same numbers whatever rows stand beside it: those of a draft are
those of its tokens one by one. A step of more tokens multiplies by torch, and is written down once it has been seen
`WRITE_AFTER` times.

A program rounds in other places than the modules do. Its first outputs are compared with theirs (`proof`); one that
differs by more than rounding is never used. This is for a CPU what a captured CUDA graph is for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from decodekit.models.caches.kv_cache import LayerShape, RaggedCache, Step
from decodekit.models.modules.shared_copy import WeightPlaces
from decodekit.models.runners.proof import Proof, tolerance_of
from decodekit.models.runners.step_program import Call, StepProgram, View, Writer
from decodekit.products.cpu_products import MAX_ROWS, ROOM
from decodekit.products.cpu_team import MAKE, team_state
from decodekit.products.step_code import SCRATCH, run

WRITE_AFTER: Final = 16
"""Steps of more than `MAX_ROWS` tokens before one of their kind is written down."""
MAX_WIDTH: Final = 16
"""Most new tokens of a row in a step that is written down; in longer ones arithmetic is most of the time."""

_LENGTH: Final = 8  # of the rows of a step that is written down

Run = Callable[[nn.Module, Tensor, Step, Any, Sequence[Tensor]], list[Tensor]]
"""Logits of `module(tokens [R, T], step, store)`, and the states that it leaves, if it begins with some."""


@dataclass(slots=True)
class _Kind:
    """One kind of step: seen, written down or refused.

    Attributes:
        frames: memory of runs that have ended, for the next ones.
    """

    proof: Proof
    num_seen: int = 0
    program: StepProgram | None = None
    frames: list[_Frame] = field(default_factory=list)


class Replays:
    """The decoding steps of one model that have been written down. Threads may share it.

    Args:
        module: the model with decodekit's attention function, on a CPU.
        runs: how the module is called, by the name of what is wanted.
        layers: what each layer stores.
    """

    def __init__(self, module: nn.Module, runs: dict[str, Run], layers: dict[int, LayerShape]) -> None:
        self._module = module
        self._runs = runs
        self._layers = layers
        self._kinds: dict[Hashable, _Kind] = {}
        self._places = WeightPlaces(module)
        self._tolerance = tolerance_of(next(module.parameters()).dtype)

    def step(
        self,
        tokens: Tensor,
        step: Step,
        cache: RaggedCache,
        wanted: str,
        eager: Callable[[], list[Tensor]],
        states: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """Logits of one decoding step, and states: by a program where it is trusted, else from `eager`.

        Args:
            tokens: int64 [R, T] with T up to `MAX_WIDTH`.
            step: not the first one of its rows.
            eager: makes the wanted run with the modules; float32. Running a step twice writes the same keys and values
                twice.
            states: that the step begins with, [R, ...]; it may write into them.
        """
        key = (type(cache), wanted, step.num_rows, step.num_new)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds.setdefault(key, _Kind(Proof(_LENGTH, self._tolerance)))
        if kind.proof.is_refused:
            return eager()
        if kind.program is None:
            kind.num_seen += 1
            if step.num_rows * step.num_new > MAX_ROWS and kind.num_seen < WRITE_AFTER:
                return eager()
            try:
                kind.program = self._written(step, wanted, type(cache), states)
            except Exception:  # whatever a model does that cannot be written down; then its modules go on running it
                kind.proof.is_refused = True
                return eager()
        if self._places.have_changed():  # the program has the old ones
            self._kinds = {}
            return eager()
        if kind.proof.is_proven:
            return self._run(kind, tokens, step, cache, states)
        copies = [state.clone() for state in states]  # the modules begin with the states, too
        return kind.proof.output(lambda: self._run(kind, tokens, step, cache, copies), eager, step.end)

    def num_replayable(self) -> int:
        """How many kinds of steps are written down and proven."""
        return sum(kind.proof.is_proven for kind in list(self._kinds.values()))

    def _run(
        self, kind: _Kind, tokens: Tensor, step: Step, cache: RaggedCache, states: Sequence[Tensor]
    ) -> list[Tensor]:
        program = kind.program
        assert program is not None
        frame = kind.frames.pop() if kind.frames else _Frame(program)
        try:
            return frame.run(tokens, step, cache, states)
        finally:
            kind.frames.append(frame)

    def _written(
        self, step: Step, wanted: str, kind: type[RaggedCache], states: Sequence[Tensor] = ()
    ) -> StepProgram:
        """Write a step like this one down, over rows of zeros.

        Raises:
            NotWritableError: the model looks at the value of a tensor, or does something of its own with its cache.
        """
        num_planes = [len(kind.planes_of(shape)) for shape in self._layers.values()]
        firsts = dict(zip(self._layers, np.cumsum([0, *num_planes]).tolist(), strict=False))
        size = step.num_rows, step.num_new
        with torch.inference_mode(False), torch.no_grad():
            tokens = torch.zeros(size, dtype=torch.int64)
            positions = torch.full(size, _LENGTH - 1)
            copies = [state.clone() for state in states]
            writer = Writer(self._module, firsts, [tokens, positions, *copies])
            like = Step(step.starts, step.row_ends, step.num_new, None, None, None, None, positions)
            like.is_fresh, like.recording = False, writer
            with writer:
                return writer.program(self._runs[wanted](self._module, tokens, like, writer, copies))


class _Frame:
    """The memory of runs of one program, one at a time."""

    def __init__(self, program: StepProgram) -> None:
        self._program = program
        self._arena = torch.empty(program.arena_bytes + 64, dtype=torch.uint8)
        skipped = -self._arena.data_ptr() % 64
        self._arena = self._arena[skipped : skipped + program.arena_bytes]
        num_bases = 2 + program.num_inputs + len(program.outputs)
        self._bases = np.zeros(num_bases, np.int64)
        self._bases[1] = self._arena.data_ptr()
        self._room = torch.empty(0)
        self._views: dict[int, Tensor] = {}

    def run(self, tokens: Tensor, step: Step, cache: RaggedCache, states: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a step; keys, values and states are written."""
        program, size = self._program, tokens.shape
        rows, slots, positions = cache.places_of(step)
        inputs = [tokens.contiguous(), torch.from_numpy(positions), *(state.contiguous() for state in states)]
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in program.outputs]
        given = [*inputs, *outputs]
        self._bases[2:] = [one.data_ptr() for one in given]
        needed = SCRATCH + ROOM + max(program.room, program.per_slot * step.end)
        if len(self._room) < needed:
            self._room = torch.empty(2 * needed)
        arguments = self._bases, cache.planes_now(), rows, slots, positions, self._room.data_ptr(), team_state(), MAKE.address
        codes, floats, first = program.codes, program.floats, 0
        for at, call in program.calls:
            run(codes, floats, first, at, *arguments)
            self._call(call, given)
            first = at + 1
        run(codes, floats, first, len(codes), *arguments)
        return outputs

    def _call(self, call: Call, given: Sequence[Tensor]) -> None:
        outs = [self._viewed(one, given) for one in call.outs]
        args, kwargs = self._viewed(call.args, given), self._viewed(call.kwargs, given)
        if call.is_given_out:
            call.function(*args, **kwargs, out=outs[0])
            return
        found = call.function(*args, **kwargs)
        for out, one in zip(outs, [found] if isinstance(found, Tensor) else found, strict=False):
            if out.data_ptr() != one.data_ptr():
                out.copy_(one)

    def _viewed(self, value: Any, given: Sequence[Tensor]) -> Any:
        """Arguments of a call with the tensors of this run."""
        if isinstance(value, View):
            if value.base == 1:
                view = self._views.get(id(value))
                if view is None:
                    view = self._views[id(value)] = _as_view(self._arena, value)
                return view
            return _as_view(given[value.base - 2], value)
        if type(value) in (list, tuple):
            return type(value)([self._viewed(one, given) for one in value])
        if type(value) is dict:
            return {key: self._viewed(one, given) for key, one in value.items()}
        return value


def _as_view(memory: Tensor, view: View) -> Tensor:
    flat = memory.reshape(-1).view(torch.uint8).view(view.dtype)
    return flat.as_strided(view.shape, view.strides, view.offset // flat.element_size())
