"""The memory that a program of a decoding step runs in: its arena, its addresses, and views for what torch computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodekit.models.programs.step_program import Operand, StepProgram, TorchCall
from decodekit.products.cpu_products import ROOM
from decodekit.products.cpu_team import MAKERS, team_state
from decodekit.products.step_code import SCRATCH, Field, Op, run


class StepFrame:
    """The memory of runs of one program, one at a time.

    Args:
        program: what is run.
    """

    def __init__(self, program: StepProgram) -> None:
        self._program = program
        self._arena = torch.empty(program.arena_bytes + 64, dtype=torch.uint8)
        skipped = -self._arena.data_ptr() % 64
        self._arena = self._arena[skipped : skipped + program.arena_bytes]
        num_bases = 2 + program.num_inputs + len(program.outputs)
        self._bases = np.zeros(num_bases, np.int64)
        self._bases[1] = self._arena.data_ptr()
        self._room = torch.empty(0)
        kinds = {int(code[Field.B + 2]) for code in program.codes if code[Field.OP] == Op.LINEAR}
        self._makers = np.array([one.address if i in kinds else 0 for i, one in enumerate(MAKERS)], np.int64)
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
        given = [*(one.contiguous() for one in inputs), *outputs]
        self._bases[2:] = [one.data_ptr() for one in given]
        needed = SCRATCH + ROOM + max(program.room, program.per_slot * (int(positions.max()) + 1))
        if len(self._room) < needed:
            self._room = torch.empty(2 * needed)
        room, state = self._room.data_ptr(), team_state()
        arguments = self._bases, planes, rows, slots, positions, room, state, self._makers
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
