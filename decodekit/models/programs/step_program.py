"""A decoding step of a model, written down as instructions for `products.step_code` while its modules run once.

The modules run over zeros, under a mode that sees every operation of torch with the memory of its operands. Say a layer
scales and shifts its input, [1, 192], and hands on the first half:

    operation of torch            written down
    y = x * weight                MUL  [192]  y <- x, weight
    y = y + bias                  ADD  [192]  y' <- y, bias
    z = y[:, :96]                 nothing: z is the memory of y', and whoever reads z reads it there
    torch.arange(4)               nothing: it does not depend on the inputs, and is kept

Attention and the cache are not run: they write `ATTEND` and `STORE`, which know planes and positions from the run. So
a program holds for any number of slots, and for rows wherever they lie in a cache. An operation that has no instruction
is called in its place, over the same memory. One that hands Python the value of a tensor raises `NotWritableError`:
such a model is run by its modules.

Memory of results is an arena: what is no longer read gives its place to what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import TypeIs

from decodekit.models.caches.kv_cache import Step
from decodekit.models.modules.shared_copy import parts_of
from decodekit.products.cpu_products import KINDS, STEP_ROWS, WEIGHTS, WIDENED
from decodekit.products.few_rows import widened_linear
from decodekit.products.step_code import BOOL, INT64, NO_OPERAND, NUM_FLOATS, Field, Op

READS: Final = frozenset({"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2"})
"""Operations that give Python the value of a tensor, or a shape that follows from it."""
_BY_VALUES: Final = frozenset({"index", "index_put_", "index_put", "repeat_interleave", "bincount", "unique_dim"})
"""Operations that do so if what they are given last is of truth values, or counts."""

FEW_SLOTS: Final = 8
MANY_SLOTS: Final = 1 << 14
"""Slots of what stands for a cache: with many, a model has to come to the same instructions."""

MOST_WIDE: Final = 512
"""Numbers of a head, at most."""

_KINDS: Final = {**KINDS, torch.int64: INT64, torch.bool: BOOL}
_ABSOLUTE, _ARENA, _INPUTS = 0, 1, 2
_LINE: Final = 64


class NotWritableError(Exception):
    """A step does something that cannot be written down; never leaves this room."""


class _NoInstructionError(Exception):
    """An operation is none of the instructions: it is called."""


class Operand(NamedTuple):
    """A tensor: where its memory is, and how it lies there."""

    base: int  # of its memory in a program; the number of that while a step is written down
    offset: int  # in bytes
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in numbers


@dataclass(slots=True)
class _Memory:
    """The base of one number of memory: of an input or a result of the step, of torch, or the arena.

    Its offset in the arena is known when all is written down.
    """

    base: int
    offset: int
    num_bytes: int
    is_slots: bool  # stands for what a cache holds


class TorchCall(NamedTuple):
    """An operation of torch that is called as it is."""

    function: Callable[..., Any]  # the operation
    args: Any  # with an `Operand` where a tensor is another one in each run; so are keyword arguments
    kwargs: Any
    outs: Any  # what it writes
    is_given_out: bool  # whether it takes what it writes as `out`; otherwise its results are copied there


@dataclass(slots=True)
class _Instruction:
    op: Op
    dims: tuple[int, ...] = ()
    out: Operand | None = None
    a: Operand | None = None
    b: Operand | None = None
    c: Operand | None = None
    floats: tuple[float, ...] = ()
    more: Mapping[Field, int] = field(default_factory=dict)
    call: TorchCall | None = None

    @property
    def reads(self) -> list[Operand]:
        """The operands that it reads."""
        given = (self.a, self.b, self.c) if self.call is None else (self.call.args, self.call.kwargs)
        leaves = tree_leaves(given, is_leaf=_is_operand)
        return [one for one in leaves if _is_operand(one) and one.base != NO_OPERAND]

    @property
    def writes(self) -> list[Operand]:
        """The operands that it writes."""
        if self.call is not None:
            return [*self.call.outs]
        return [] if self.out is None else [self.out]


def _is_operand(value: object) -> TypeIs[Operand]:
    return isinstance(value, Operand)


@dataclass(frozen=True, slots=True, eq=False)
class StepProgram:
    """A step as instructions."""

    codes: NDArray[np.int64]  # what `products.step_code.run` takes, with the next
    floats: NDArray[np.float64]
    calls: tuple[tuple[int, TorchCall], ...]
    """What is called in place of an instruction, by its place among them, in order."""
    arena_bytes: int  # of the memory for results
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    """Shapes and types of what it returns, which are the last bases."""
    room: int  # float32 numbers that its longest product or reduction needs
    per_slot: int  # numbers for each slot that attention needs
    kept: tuple[Tensor, ...]  # tensors that it reads

    def is_like(self, other: StepProgram) -> bool:
        """Whether another one does the same, though its constants may lie elsewhere."""
        if self.codes.shape != other.codes.shape or not np.array_equal(self.floats, other.floats):
            return False
        alike = self.codes == other.codes
        for place in (Field.OUT, Field.A, Field.B, Field.C):
            alike[:, place + 1] |= (self.codes[:, place] == _ABSOLUTE) & (other.codes[:, place] == _ABSOLUTE)
        return bool(alike.all())


class Writer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what the modules do; see the head of the module.

    `layers` has the number of the first plane of each layer, whose values are in the next one; `inputs` are tensors
    that are others in each run, contiguous.
    """

    def __init__(
        self, module: nn.Module, layers: Mapping[int, int], inputs: Sequence[Tensor], num_slots: int = FEW_SLOTS
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_slots = num_slots
        self._layers = layers
        self._memory: list[_Memory] = []
        self._number_of: dict[int, int] = {}  # of storages
        self._alive: list[Tensor] = []
        self._slots: dict[int, int] = {}  # tensors that stand for the slots of a plane
        self._per_slot = 1
        self._made_by: dict[int, Any] = {}  # constants by their storage: how, if from no tensor
        self._instructions: list[_Instruction] = []
        self._num_inputs = len(inputs)
        for tensor in (part for one in (*module.parameters(), *module.buffers()) for part in parts_of(one)):
            self._note(tensor, _ABSOLUTE)
        for i, tensor in enumerate(inputs):
            self._note(tensor, _INPUTS + i)

    # What runs.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name in READS:
            raise NotWritableError(f"the model looks at the value of a tensor: {func}")
        given = _tensors((args, kwargs))
        is_index = name.startswith("index")
        if name in _BY_VALUES and (not is_index or any(one.dtype in (torch.bool, torch.uint8) for one in given[1:])):
            raise NotWritableError(f"a shape follows from the value of a tensor: {func}")
        out = func(*args, **kwargs)
        made = _tensors(out)
        if not any(self._is_known(one) for one in given):
            self._alive += made
            if not given and len(made) == 1:
                self._made_by[made[0].untyped_storage().data_ptr()] = func, args, kwargs, made[0]
            return out
        if func._schema.is_mutable:
            for one in made:
                self._begin_again(one)
        if not func._schema.is_mutable and all(self._is_known(one) for one in made):
            self._alive += made
            return out  # views
        if any(self._memory[self._number(one)].is_slots for one in given if self._is_known(one)):
            raise NotWritableError(f"the model does {name} with the keys of its cache before its attention")
        for one in made:
            if not self._is_known(one):
                self._note(one)
        num_before = len(self._instructions)
        try:
            _RULES.get(name, _no_rule)(self, name, out, *args, **kwargs)
        except _NoInstructionError:
            del self._instructions[num_before:]
            self.call(func, args, kwargs, made)
        return out

    def _begin_again(self, tensor: Tensor) -> None:
        """See that what an operation writes into is memory of the run: zeros, say, are made anew by each."""
        storage = tensor.untyped_storage().data_ptr()
        if self._is_known(tensor):
            if self._memory[self._number(tensor)].base == _ABSOLUTE:
                raise NotWritableError("the model writes into its weights")
            return
        if storage not in self._made_by:
            raise NotWritableError("the model writes into a constant")
        func, args, kwargs, first = self._made_by[storage]
        self._note(first)
        self.call(func, args, kwargs, [first])

    def _number(self, tensor: Tensor) -> int:
        return self._number_of[tensor.untyped_storage().data_ptr()]

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._number_of

    def _note(self, tensor: Tensor, base: int = _ARENA, is_slots: bool = False) -> None:
        self._alive.append(tensor)
        storage = tensor.untyped_storage()
        if address := storage.data_ptr():
            self._number_of[address] = len(self._memory)
            self._memory.append(_Memory(base, address if base == _ABSOLUTE else 0, storage.nbytes(), is_slots))

    def operand(self, tensor: Tensor) -> Operand:
        """Where a tensor lies. What nothing has written is kept, and read where it is."""
        if not self._is_known(tensor):
            self._note(tensor, _ABSOLUTE)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        strides = tuple(int(stride) for stride in tensor.stride())
        return Operand(self._number(tensor), offset, tensor.dtype, tuple(tensor.shape), strides)

    def _numbers(self, tensor: Tensor) -> Operand:
        """The operand of an instruction."""
        if tensor.dtype not in _KINDS:
            raise _NoInstructionError
        return self.operand(tensor)

    def call(
        self, function: Callable[..., Any], args: Any, kwargs: Any, outs: Sequence[Tensor], is_given_out: bool = False
    ) -> None:
        """Write down that an operation of torch is called."""

        def placed(value: Any) -> Any:
            is_ours = isinstance(value, Tensor) and self._is_known(value)
            return self.operand(value) if is_ours and self._memory[self._number(value)].base != _ABSOLUTE else value

        args, kwargs = tree_map(placed, (args, kwargs))
        call = TorchCall(function, args, kwargs, [self.operand(one) for one in outs], is_given_out)
        self._instructions.append(_Instruction(Op.CALL, call=call))

    def write(self, op: Op, dims: tuple[int, ...], **more: Any) -> None:
        """Write an instruction down."""
        if len(dims) > 4:
            raise NotWritableError("more than four dimensions")
        self._instructions.append(_Instruction(op, dims, **more))

    def fresh(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros that an instruction writes, without one that makes them."""
        with _paused():
            tensor = torch.zeros(tuple(shape), dtype=dtype)
        self._note(tensor)
        return tensor

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The tensor, or a copy of it."""
        if tensor.is_contiguous():
            return tensor
        copy = self.fresh(tensor.shape, tensor.dtype)
        self.elementwise(Op.COPY, copy, tensor)
        return copy

    def elementwise(self, op: Op, out: Tensor, a: Any, b: Any = None, factor: float = 1.0) -> None:
        """An operation element by element; operands are tensors that broadcast to the result, or numbers."""
        number, operands = 0.0, [self._result(out)]
        for one in (a, b):
            if isinstance(one, Tensor):
                with _paused():
                    one = one.expand(out.shape)
                operands.append(self._numbers(one))
            elif one is not None:
                number = float(one)
                operands.append(Operand(NO_OPERAND, 0, out.dtype, tuple(out.shape), (0,) * out.dim()))
        if out.numel():
            dims, placed = _collapsed(out.shape, operands)
            self.write(op, dims, floats=(factor, number), **dict(zip(("out", "a", "b"), placed, strict=False)))

    def reduced(self, op: Op, out: Tensor, a: Tensor, number: float = 0.0) -> None:
        """An operation along the last dimension; the result has it as 1, or as it was."""
        dims, (to, source) = _collapsed(a.shape, [self._result(out), self._numbers(a)], keep_last=True)
        self.write(op, dims, out=to, a=source, floats=(number,))

    def _result(self, tensor: Tensor) -> Operand:
        """The operand that an instruction writes: numbers that are rounded to their type."""
        if tensor.dtype not in KINDS:
            raise _NoInstructionError
        return self.operand(tensor)

    # What stands in for the cache and for attention.

    def append(self, layer: int, keys: Tensor, values: Tensor, step: Step | None) -> tuple[Tensor, Tensor]:
        """As `RaggedCache.append`: the keys and values are stored; what comes back stands for the slots."""
        found = []
        for place, new in enumerate((keys, values)):
            plane = self._layers[layer] + place
            if new.dtype not in KINDS or new.shape[-1] > MOST_WIDE:
                raise NotWritableError(f"heads of {new.shape[-1]} numbers of {new.dtype}")
            self.write(Op.STORE, tuple(new.shape), a=self.operand(new), more={Field.KEYS: plane})
            with _paused():
                one_slot = torch.zeros(new.shape[0], new.shape[1], 1, new.shape[3], dtype=new.dtype)
                stands = one_slot.expand(-1, -1, self.num_slots, -1)  # without memory
            self._note(stands, is_slots=True)
            self._slots[id(stands)] = plane
            found.append(stands)
        return found[0], found[1]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        s_aux: Tensor | None,
        num_skipped: int,
    ) -> Tensor:
        """Attention [R, T, Hq, Dv] of queries [R, Hq, T, D] to the slots that two tensors stand for."""
        planes = [self._slots.get(id(one)) for one in (key, value)]
        if None in planes:
            raise NotWritableError("attention to something else than the cache")
        num_rows, num_heads, num_new, width = query.shape
        self._per_slot = max(self._per_slot, 1 + width + value.shape[3])
        out = self.fresh((num_rows, num_new, num_heads, value.shape[3]), query.dtype)
        with _paused():
            by_heads = out.transpose(1, 2)
        more = {
            Field.KEYS: planes[0], Field.VALUES: planes[1], Field.KEY_HEADS: key.shape[1],
            Field.VALUE_DIM: value.shape[3], Field.WINDOW: window or 0, Field.SKIPPED: num_skipped,
        }  # fmt: skip
        floats = width**-0.5 if scaling is None else scaling, 0.0, softcap or 0.0
        self.write(
            Op.ATTEND,
            tuple(query.shape),
            out=self.operand(by_heads),
            a=self.operand(query),
            c=None if s_aux is None else self.operand(self.contiguous(s_aux)),
            floats=floats,
            more=more,
        )
        return out

    # What is made of it.

    def program(self, outputs: Sequence[Tensor]) -> StepProgram:
        """The instructions of these results, in order."""
        wanted = set[int]()
        for i, tensor in enumerate(outputs):
            number = self._own(tensor)
            wanted.add(number)
            self._memory[number].base = _INPUTS + self._num_inputs + i
        kept = self._needed(wanted)
        arena_bytes = self._arrange(kept)

        def placed(value: Any) -> Any:
            if not _is_operand(value):
                return value
            memory = self._memory[value.base]
            return value._replace(base=memory.base, offset=memory.offset + value.offset)

        codes = np.zeros((len(kept), Field.END), np.int64)
        floats = np.zeros((len(kept), NUM_FLOATS))
        room, calls = 0, list[tuple[int, TorchCall]]()
        for i, one in enumerate(kept):
            code = codes[i]
            code[Field.OP] = one.op
            if one.call is not None:
                calls.append((i, tree_map(placed, one.call, is_leaf=_is_operand)))
                continue
            code[Field.DIMS : Field.DIMS + 4] = _four(one.dims, 1)
            kinds = WEIGHTS if one.op is Op.LINEAR else _KINDS
            for place, operand in ((Field.OUT, one.out), (Field.A, one.a), (Field.B, one.b), (Field.C, one.c)):
                if operand is None or operand.base == NO_OPERAND:
                    code[place] = NO_OPERAND
                    continue
                code[place : place + 3] = *placed(operand)[:2], kinds[operand.dtype]
                if place != Field.C:
                    code[place + 3 : place + 7] = _four(operand.strides, 0)
            for name, value in one.more.items():
                code[name] = value
            floats[i, : len(one.floats)] = one.floats
            if one.op is Op.LINEAR:
                room = max(room, one.dims[0] * (one.dims[2] + _LINE))
            elif one.op in _REDUCTIONS:
                room = max(room, 2 * one.dims[-1])
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in outputs)
        return StepProgram(codes, floats, tuple(calls), arena_bytes, shapes, room, self._per_slot, self._kept(kept))

    def _own(self, tensor: Tensor) -> int:
        """The memory of a result, which has nothing else in it; it is copied if it has, or is an input."""
        if self._is_known(tensor) and tensor.is_contiguous() and not tensor.storage_offset():
            memory = self._memory[number := self._number(tensor)]
            if memory.base == _ARENA and memory.num_bytes == tensor.numel() * tensor.element_size():
                return number
        copy = self.fresh(tensor.shape, tensor.dtype)
        self.call(torch.clone, (tensor,), {}, [copy])
        return self._number(copy)

    def _needed(self, wanted: set[int]) -> list[_Instruction]:
        """The instructions that wanted memory depends on, or the cache."""
        kept = list[_Instruction]()
        for one in reversed(self._instructions):
            writes = one.writes
            if not writes or any(operand.base in wanted for operand in writes):
                kept.append(one)
                wanted |= {operand.base for operand in one.reads}
        return kept[::-1]

    def _arrange(self, kept: Sequence[_Instruction]) -> int:
        """Give each result its place in the arena; how many bytes all take."""
        first, last = dict[int, int](), dict[int, int]()
        for i, one in enumerate(kept):
            for operand in (*one.writes, *one.reads):
                if self._memory[operand.base].base == _ARENA:
                    first.setdefault(operand.base, i)
                    last[operand.base] = i
        held, end = list[tuple[int, int, int]](), 0  # held: first byte, behind, last use
        for number in first:
            memory = self._memory[number]
            size = -(-memory.num_bytes // _LINE) * _LINE
            held = [one for one in held if one[2] >= first[number]]
            at = 0
            for begin, behind, _ in sorted(held):
                if at + size <= begin:
                    break
                at = max(at, behind)
            memory.offset = at
            held.append((at, at + size, last[number]))
            end = max(end, at + size)
        return end

    def _kept(self, kept: Sequence[_Instruction]) -> tuple[Tensor, ...]:
        """Tensors that are read where they lie, one of each memory."""
        read = {operand.base for one in kept for operand in one.reads}
        alive = {self._number(tensor): tensor for tensor in reversed(self._alive) if self._is_known(tensor)}
        return tuple(tensor for n, tensor in alive.items() if n in read and self._memory[n].base == _ABSOLUTE)


def _paused() -> Any:
    """Operations that are not written down."""
    return torch.utils._python_dispatch._disable_current_modes()


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


def _four(numbers: Sequence[int], filler: int) -> list[int]:
    return [*[filler] * (4 - len(numbers)), *numbers]


def _collapsed(
    shape: Sequence[int], operands: Sequence[Operand], keep_last: bool = False
) -> tuple[tuple[int, ...], list[Operand]]:
    """Dimensions, those together that all operands step through alike, and the operands with strides for these."""
    dims, own = list[int](), [list[int]() for _ in operands]
    for i, length in enumerate(shape):
        is_kept = keep_last and i == len(shape) - 1
        if length == 1 and not is_kept:
            continue
        here = [one.strides[i] for one in operands]
        if (
            dims
            and not is_kept
            and all(before[-1] == stride * length for before, stride in zip(own, here, strict=True))
        ):
            dims[-1] *= length
            for before in own:
                before.pop()
        else:
            dims.append(length)
        for before, stride in zip(own, here, strict=True):
            before.append(stride)
    placed = [one._replace(strides=tuple(before) or (0,)) for one, before in zip(operands, own, strict=True)]
    return tuple(dims) or (1,), placed


# How operations of torch are written down: each rule has the writer, the name, the result and the arguments.

_UNARY: Final = (
    Op.NEG, Op.RSQRT, Op.SQRT, Op.EXP, Op.SIGMOID, Op.SILU, Op.TANH, Op.RELU, Op.COS, Op.SIN, Op.ABS,
)  # fmt: skip
_REDUCTIONS: Final = (Op.MEAN, Op.SUM, Op.AMAX, Op.SOFTMAX, Op.CENTRE)


def _no_rule(*given: Any, **more: Any) -> None:
    raise _NoInstructionError


def _unary(op: Op) -> Callable[..., None]:
    def rule(writer: Writer, name: str, out: Tensor, a: Tensor, *rest: Any, **more: Any) -> None:
        writer.elementwise(op, out, a)

    return rule


def _binary(op: Op, sign: float = 1.0, turned: bool = False) -> Callable[..., None]:
    def rule(writer: Writer, name: str, out: Tensor, a: Any, b: Any, alpha: float = 1, **more: Any) -> None:
        if more:
            raise _NoInstructionError
        if turned:
            a, b = b, a
        writer.elementwise(op, out, a, b, sign * float(alpha))

    return rule


def _gelu(writer: Writer, name: str, out: Tensor, a: Tensor, approximate: str = "none") -> None:
    writer.elementwise(Op.GELU_TANH if approximate == "tanh" else Op.GELU, out, a)


def _power(writer: Writer, name: str, out: Tensor, a: Any, exponent: Any) -> None:
    if not isinstance(a, Tensor):
        raise _NoInstructionError
    if exponent in (0.5, -0.5):
        writer.elementwise(Op.SQRT if exponent > 0 else Op.RSQRT, out, a)
    elif exponent == 2:
        writer.elementwise(Op.MUL, out, a, a)
    elif exponent == 3:
        squares = writer.fresh(a.shape, torch.float32)
        writer.elementwise(Op.MUL, squares, a, a)
        writer.elementwise(Op.MUL, out, squares, a)
    else:
        raise _NoInstructionError


def _clamp(writer: Writer, name: str, out: Tensor, a: Tensor, least: Any = None, most: Any = None) -> None:
    if isinstance(least, Tensor) or isinstance(most, Tensor):
        raise _NoInstructionError
    if name.startswith("clamp_max"):
        least, most = None, least
    for op, bound in ((Op.MAXIMUM, least), (Op.MINIMUM, most)):
        if bound is not None:
            writer.elementwise(op, out, a, bound)
            a = out


def _copied_into(writer: Writer, name: str, out: Tensor, to: Tensor, source: Tensor, *rest: Any) -> None:
    writer.elementwise(Op.COPY, to, source)


def _joined(writer: Writer, name: str, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    at, dim = 0, dim % out.dim()
    for part in parts:
        if part.dim() != out.dim():
            continue  # torch lets empty ones of another shape pass
        with _paused():
            to = out.narrow(dim, at, part.shape[dim])
        writer.elementwise(Op.COPY, to, part)
        at += part.shape[dim]


def _reduction(op: Op) -> Callable[..., None]:
    def rule(
        writer: Writer, name: str, out: Tensor, a: Tensor, dim: Any = None, keepdim: bool = False, **more: Any
    ) -> None:
        axes = [dim] if isinstance(dim, int) else list(dim or [])
        if [axis % a.dim() for axis in axes] != [a.dim() - 1] or not a.is_floating_point():
            raise _NoInstructionError
        with _paused():
            shaped = out if keepdim else out.unsqueeze(-1)
            wide = shaped.expand(a.shape)
        writer.reduced(op, wide, a)

    return rule


def _softmax(writer: Writer, name: str, out: Tensor, a: Tensor, dim: int, *rest: Any) -> None:
    if dim % a.dim() != a.dim() - 1:
        raise _NoInstructionError
    writer.reduced(Op.SOFTMAX, out, a)


def _embedded(writer: Writer, name: str, out: Tensor, table: Tensor, ids: Tensor, *rest: Any) -> None:
    if table.dtype not in KINDS or not table.is_contiguous() or ids.dtype is not torch.int64:
        raise _NoInstructionError
    with _paused():
        flat, rows = writer.contiguous(ids).reshape(-1), out.view(-1, out.shape[-1])
    dims = (flat.numel(), out.shape[-1])
    writer.write(
        Op.GATHER,
        dims,
        out=writer.operand(rows),
        a=writer.operand(table),
        b=writer.operand(flat)._replace(strides=(1, 0)),
    )


def _linear(writer: Writer, name: str, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    num_rows, is_coded = x.numel() // x.shape[-1], weight.dtype is torch.int8
    if x.dtype not in KINDS or not (is_coded or x.dtype is weight.dtype) or not weight.is_contiguous():
        raise _NoInstructionError
    if bias is not None and not (bias.is_contiguous() and bias.dtype is out.dtype):
        raise _NoInstructionError
    if num_rows > STEP_ROWS[weight.dtype]:
        with _paused():
            flat, rows = writer.contiguous(x).view(num_rows, -1), out.view(num_rows, -1)
            columns = weight.t()
        if is_coded or weight.dtype in WIDENED:
            writer.call(widened_linear, (flat, weight, bias), {}, [rows], is_given_out=True)
        elif bias is None:
            writer.call(torch.mm, (flat, columns), {}, [rows], is_given_out=True)
        else:
            writer.call(torch.addmm, (bias, flat, columns), {}, [rows], is_given_out=True)
        return
    writer.write(
        Op.LINEAR,
        (num_rows, weight.shape[0], weight.shape[1]),
        out=_flat(writer, out),
        a=_flat(writer, writer.contiguous(x)),
        b=_flat(writer, weight),
        c=None if bias is None else _flat(writer, bias),
    )


def _normed(
    writer: Writer, name: str, out: Any, a: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> None:
    if len(shape) != 1 or not a.is_floating_point():
        raise _NoInstructionError
    normed, by = out[0], [one for one in ((Op.MUL, weight), (Op.ADD, bias)) if one[1] is not None]
    here = writer.fresh(a.shape, torch.float32) if by else normed  # rounded once, at the end
    writer.reduced(Op.CENTRE, here, a, eps)
    for i, (op, other) in enumerate(by):
        to = normed if i == len(by) - 1 else here
        writer.elementwise(op, to, here, other)


def _flat(writer: Writer, tensor: Tensor) -> Operand:
    return writer.operand(tensor)._replace(strides=())


_RULES: Final[dict[str, Callable[..., None]]] = {
    **{op.name.lower(): _unary(op) for op in _UNARY},
    **{op.name.lower(): _binary(op) for op in (Op.ADD, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM)},
    "sub": _binary(Op.ADD, -1.0),
    "rsub": _binary(Op.ADD, -1.0, turned=True),
    "gelu": _gelu,
    "pow": _power,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("_to_copy", "clone"), _unary(Op.COPY)),
    "copy_": _copied_into,
    "cat": _joined,
    **{op.name.lower(): _reduction(op) for op in (Op.MEAN, Op.SUM, Op.AMAX)},
    "_softmax": _softmax,
    "native_layer_norm": _normed,
    "embedding": _embedded,
    "few_rows_linear": _linear,
}
for _name in ("add", "sub", "mul", "div", "neg", "silu", "relu", "tanh", "sigmoid"):
    _RULES[f"{_name}_"] = _RULES[_name]
