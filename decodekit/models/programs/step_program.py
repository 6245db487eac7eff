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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from decodekit.models.caches.kv_cache import Step
from decodekit.models.modules.shared_copy import parts_of
from decodekit.products.cpu_products import KINDS, MAX_ROWS, WEIGHTS
from decodekit.products.step_code import BOOL, INT64, NO_OPERAND, NUM_FLOATS, Field, Op

READS: Final = frozenset({"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2"})
"""Operations that give Python the value of a tensor, or a shape that follows from it."""
_BY_VALUES: Final = frozenset({"index", "index_put_", "index_put", "repeat_interleave", "bincount", "unique_dim"})
"""Operations that do so if what they are given last is of truth values, or counts."""

FEW_SLOTS: Final = 8
MANY_SLOTS: Final = 1 << 14
"""Slots of what stands for a cache: with many, a model has to come to the same instructions."""

_KINDS: Final = {**KINDS, torch.int64: INT64, torch.bool: BOOL}
_OTHER: Final = -1  # a type that no instruction reads
_ABSOLUTE, _ARENA, _INPUTS = 0, 1, 2
_LINE: Final = 64


class NotWritableError(Exception):
    """A step does something that cannot be written down; never leaves this room."""


class _NoInstructionError(Exception):
    """An operation is none of the instructions: it is called."""


class Operand(NamedTuple):
    """A tensor: where its memory is, and how it lies there.

    Attributes:
        base, offset: the memory, by its number while it is written down, and the distance in bytes.
        kind: its type.
        shape, strides: in numbers.
    """

    base: int
    offset: int
    kind: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(slots=True)
class _Memory:
    """One number of memory: an input (its place among them), memory of torch, or a result."""

    input: int | None = None
    address: int | None = None
    num_bytes: int = 0
    is_slots: bool = False  # stands for what a cache holds


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
        given = (self.a, self.b, self.c) if self.call is None else self.call.reads
        return [one for one in given if one is not None and one.base != NO_OPERAND]

    @property
    def writes(self) -> list[Operand]:
        """The operands that it writes."""
        return [*(self.call.outs if self.call is not None else [self.out] if self.out is not None else [])]


class ArenaView(NamedTuple):
    """A tensor over the memory of a run: see `Operand`, whose place is final here."""

    base: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(slots=True)
class TorchCall:
    """An operation of torch that is called as it is.

    Attributes:
        function: the operation.
        args, kwargs: with a `ArenaView` where a tensor is another one in each run.
        outs: what it writes.
        is_given_out: whether it takes what it writes as `out`; otherwise its results are copied there.
        reads: the operands among the arguments.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    outs: Any
    is_given_out: bool = False
    reads: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StepProgram:
    """A step as instructions.

    Attributes:
        codes, floats: what `products.step_code.run` takes.
        calls: what is called in place of an instruction, by its place among them, in order.
        arena_bytes: of the memory for results.
        outputs: shapes and types of what it returns, which are the last bases.
        num_inputs: bases of inputs: tokens, positions, and states.
        room: float32 numbers that its longest product or reduction needs.
        per_slot: numbers for each slot that attention needs.
        kept: tensors that it reads.
    """

    codes: NDArray[np.int64]
    floats: NDArray[np.float64]
    calls: tuple[tuple[int, TorchCall], ...]
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    num_inputs: int
    room: int
    per_slot: int
    kept: tuple[Tensor, ...]

    def is_like(self, other: StepProgram) -> bool:
        """Whether another one does the same, though its constants may lie elsewhere."""
        if self.codes.shape != other.codes.shape or not np.array_equal(self.floats, other.floats):
            return False
        alike = self.codes == other.codes
        for place in (Field.OUT, Field.A, Field.B, Field.C):
            alike[:, place + 1] |= (self.codes[:, place] == _ABSOLUTE) & (other.codes[:, place] == _ABSOLUTE)
        return bool(alike.all())


class _Marked(NamedTuple):
    """A tensor among the arguments of a call, until its place is known."""

    operand: Operand
    dtype: torch.dtype


class Writer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what the modules do; see the head of the module.

    Args:
        module: whose weights are read where they lie.
        layers: the number of the first plane of each layer; its values are in the next one.
        inputs: tensors that are others in each run, contiguous.
        num_slots: of what stands for a cache.
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
        self._marked: dict[int, list[_Marked]] = {}  # what calls write
        self._num_inputs = len(inputs)
        for tensor in (part for one in (*module.parameters(), *module.buffers()) for part in parts_of(one)):
            self._note(tensor, _Memory(address=tensor.untyped_storage().data_ptr()))
        for i, tensor in enumerate(inputs):
            self._note(tensor, _Memory(input=i))

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
                self._note(one, _Memory(num_bytes=one.untyped_storage().nbytes()))
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
            if self._memory[self._number(tensor)].address is not None:
                raise NotWritableError("the model writes into its weights")
            return
        if storage not in self._made_by:
            raise NotWritableError("the model writes into a constant")
        func, args, kwargs, first = self._made_by[storage]
        self._note(first, _Memory(num_bytes=first.untyped_storage().nbytes()))
        self.call(func, args, kwargs, [first])

    def _number(self, tensor: Tensor) -> int:
        return self._number_of[tensor.untyped_storage().data_ptr()]

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._number_of

    def _note(self, tensor: Tensor, memory: _Memory) -> None:
        self._alive.append(tensor)
        storage = tensor.untyped_storage().data_ptr()
        if storage:
            self._number_of[storage] = len(self._memory)
            self._memory.append(memory)

    def operand(self, tensor: Tensor) -> Operand:
        """Where a tensor lies. What nothing has written is kept, and read where it is."""
        if not self._is_known(tensor):
            self._note(tensor, _Memory(address=tensor.untyped_storage().data_ptr()))
        offset = int(tensor.storage_offset()) * tensor.element_size()
        kind = _KINDS.get(tensor.dtype, _OTHER)
        strides = tuple(int(stride) for stride in tensor.stride())
        return Operand(self._number(tensor), offset, kind, tuple(tensor.shape), strides)

    def _numbers(self, tensor: Tensor) -> Operand:
        """The operand of an instruction."""
        found = self.operand(tensor)
        if found.kind == _OTHER:
            raise _NoInstructionError
        return found

    def call(
        self, function: Callable[..., Any], args: Any, kwargs: Any, outs: Sequence[Tensor], is_given_out: bool = False
    ) -> None:
        """Write down that an operation of torch is called."""
        reads = list[Operand]()

        def placed(value: Any) -> Any:
            if isinstance(value, Tensor) and self._is_known(value):
                memory = self._memory[self._number(value)]
                if memory.address is None:
                    reads.append(self.operand(value))
                    return _Marked(reads[-1], value.dtype)
            if isinstance(value, (list, tuple)):
                return type(value)(map(placed, value)) if type(value) in (list, tuple) else value
            if isinstance(value, dict):
                return {key: placed(one) for key, one in value.items()}
            return value

        args, kwargs = placed(args), placed(kwargs)
        marked = [_Marked(self.operand(one), one.dtype) for one in outs]
        call = TorchCall(function, args, kwargs, [one.operand for one in marked], is_given_out, tuple(reads))
        self._instructions.append(_Instruction(Op.CALL, call=call))
        self._marked[id(call)] = marked

    def write(self, op: Op, dims: tuple[int, ...], **more: Any) -> None:
        """Write an instruction down."""
        self._instructions.append(_Instruction(op, dims, **more))

    def fresh(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros that an instruction writes, without one that makes them."""
        with _paused():
            tensor = torch.zeros(tuple(shape), dtype=dtype)
        self._note(tensor, _Memory(num_bytes=tensor.untyped_storage().nbytes()))
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
        number, operands = 0.0, [self._numbers(out)]
        for one in (a, b):
            if isinstance(one, Tensor):
                with _paused():
                    one = one.expand(out.shape)
                operands.append(self._numbers(one))
            elif one is not None:
                number = float(one)
                operands.append(Operand(NO_OPERAND, 0, 0, tuple(out.shape), (0,) * out.dim()))
        if not out.numel():
            return
        dims, strides = _collapsed(out.shape, [one.strides for one in operands])
        placed = [one._replace(strides=own) for one, own in zip(operands, strides, strict=True)]
        names = dict(zip(("out", "a", "b"), placed, strict=False))
        self.write(op, dims, floats=(factor, number), **names)

    def reduced(self, op: Op, out: Tensor, a: Tensor, number: float = 0.0) -> None:
        """An operation along the last dimension; the result has it as 1, or as it was."""
        places = [self._numbers(out), self._numbers(a)]
        dims, strides = _collapsed(a.shape, [one.strides for one in places], keep_last=True)
        placed = [one._replace(strides=own) for one, own in zip(places, strides, strict=True)]
        self.write(op, dims, out=placed[0], a=placed[1], floats=(number,))

    # What stands in for the cache and for attention.

    def append(self, layer: int, keys: Tensor, values: Tensor, step: Step | None) -> tuple[Tensor, Tensor]:
        """As `RaggedCache.append`: the keys and values are stored; what comes back stands for the slots."""
        found = []
        for place, new in enumerate((keys, values)):
            plane = self._layers[layer] + place
            operand = self.operand(new)
            if not 0 <= operand.kind <= 2 or new.shape[-1] > MOST_WIDE:
                raise NotWritableError(f"heads of {new.shape[-1]} numbers of {new.dtype}")
            self.write(Op.STORE, tuple(new.shape), a=operand, more={Field.KEYS: plane})
            with _paused():
                one_slot = torch.zeros(new.shape[0], new.shape[1], 1, new.shape[3], dtype=new.dtype)
                stands = one_slot.expand(-1, -1, self.num_slots, -1)  # without memory
            self._note(stands, _Memory(is_slots=True))
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
        returned: dict[int, int] = {}
        for i, tensor in enumerate(outputs):
            returned[self._own(tensor, returned)] = _INPUTS + self._num_inputs + i
        kept = self._needed(returned)
        offsets, arena_bytes = self._arena(kept, returned)

        def placed(operand: Operand) -> tuple[int, int]:
            base, start = self._base_of(operand.base, returned, offsets)
            return base, start + operand.offset

        def viewed(value: Any) -> Any:
            if isinstance(value, _Marked):
                operand, dtype = value
                return ArenaView(*placed(operand), dtype, operand.shape, operand.strides)
            if type(value) in (list, tuple):
                return type(value)(map(viewed, value))
            return {key: viewed(one) for key, one in value.items()} if isinstance(value, dict) else value

        codes = np.zeros((len(kept), Field.END), np.int64)
        floats = np.zeros((len(kept), NUM_FLOATS))
        room, calls = 0, list[tuple[int, TorchCall]]()
        for i, one in enumerate(kept):
            code = codes[i]
            code[Field.OP] = one.op
            if one.call is not None:
                args, kwargs, outs = (
                    viewed(part) for part in (one.call.args, one.call.kwargs, self._marked[id(one.call)])
                )
                calls.append((i, TorchCall(one.call.function, args, kwargs, outs, one.call.is_given_out)))
                continue
            code[Field.DIMS : Field.DIMS + 4] = _four(one.dims, 1)
            for place, operand in ((Field.OUT, one.out), (Field.A, one.a), (Field.B, one.b), (Field.C, one.c)):
                if operand is None or operand.base == NO_OPERAND:
                    code[place] = NO_OPERAND
                    continue
                code[place : place + 3] = *placed(operand), operand.kind
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
        kept_tensors = tuple(self._kept(kept))
        return StepProgram(
            codes, floats, tuple(calls), arena_bytes, shapes, self._num_inputs, room, self._per_slot, kept_tensors
        )

    def _own(self, tensor: Tensor, returned: Mapping[int, int]) -> int:
        """The memory of a result, which has nothing else in it; it is copied if it has, or is an input."""
        number = self._number(tensor) if self._is_known(tensor) else -1
        if number >= 0 and number not in returned and tensor.is_contiguous() and not tensor.storage_offset():
            memory = self._memory[number]
            is_whole = memory.num_bytes == tensor.numel() * tensor.element_size()
            if memory.input is None and memory.address is None and is_whole:
                return number
        copy = self.fresh(tensor.shape, tensor.dtype)
        self.call(torch.clone, (tensor,), {}, [copy])
        return self._number(copy)

    def _base_of(self, number: int, returned: Mapping[int, int], offsets: Mapping[int, int]) -> tuple[int, int]:
        memory = self._memory[number]
        if number in returned:
            return returned[number], 0
        if memory.input is not None:
            return _INPUTS + memory.input, 0
        if memory.address is not None:
            return _ABSOLUTE, memory.address
        return _ARENA, offsets[number]

    def _needed(self, returned: Mapping[int, int]) -> list[_Instruction]:
        """The instructions that a result depends on, or the cache."""
        wanted, kept = set(returned), list[_Instruction]()
        for one in reversed(self._instructions):
            writes = one.writes
            if not writes or any(operand.base in wanted for operand in writes):
                kept.append(one)
                wanted |= {operand.base for operand in one.reads}
        return kept[::-1]

    def _arena(self, kept: Sequence[_Instruction], returned: Mapping[int, int]) -> tuple[dict[int, int], int]:
        """Where each result lies, and how many bytes all take."""
        first, last = dict[int, int](), dict[int, int]()
        for i, one in enumerate(kept):
            for operand in (*one.writes, *one.reads):
                if operand.base in returned:
                    continue
                memory = self._memory[operand.base]
                if memory.input is None and memory.address is None:
                    first.setdefault(operand.base, i)
                    last[operand.base] = i
        offsets, held, end = dict[int, int](), list[tuple[int, int, int]](), 0  # held: first byte, behind, last use
        for number in sorted(first, key=first.__getitem__):
            size = -(-self._memory[number].num_bytes // _LINE) * _LINE
            held = [one for one in held if one[2] >= first[number]]
            at = 0
            for begin, behind, _ in sorted(held):
                if at + size <= begin:
                    break
                at = max(at, behind)
            offsets[number] = at
            held.append((at, at + size, last[number]))
            end = max(end, at + size)
        return offsets, end

    def _kept(self, kept: Sequence[_Instruction]) -> Iterable[Tensor]:
        """Tensors that are read where they lie."""
        numbers = {operand.base for one in kept for operand in one.reads}
        read = {n for n in numbers if self._memory[n].address is not None}
        for tensor in self._alive:
            storage = tensor.untyped_storage().data_ptr()
            if self._number_of.get(storage) in read:
                read.discard(self._number_of[storage])
                yield tensor


MOST_WIDE: Final = 512
"""Numbers of a head, at most."""


def _paused() -> Any:
    """Operations that are not written down."""
    return torch.utils._python_dispatch._disable_current_modes()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in _tensors(part)]
    if isinstance(value, dict):
        return _tensors([*value.values()])
    return []


def _four(numbers: Sequence[int], filler: int) -> list[int]:
    if len(numbers) > 4:
        raise NotWritableError("more than four dimensions")
    return [*[filler] * (4 - len(numbers)), *numbers]


def _collapsed(
    shape: Sequence[int], strides: Sequence[Sequence[int]], keep_last: bool = False
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Dimensions and the strides of operands, those together that all step through alike."""
    dims, own = list[int](), [list[int]() for _ in strides]
    for i, length in enumerate(shape):
        is_last = i == len(shape) - 1
        if length == 1 and not (keep_last and is_last):
            continue
        here = [one[i] for one in strides]
        is_alike = dims and all(before[-1] == stride * length for before, stride in zip(own, here, strict=True))
        if is_alike and not (keep_last and is_last):
            dims[-1] *= length
            for before, stride in zip(own, here, strict=True):
                before[-1] = stride
        else:
            dims.append(length)
            for before, stride in zip(own, here, strict=True):
                before.append(stride)
    if not dims:
        return (1,), [(0,) for _ in strides]
    if len(dims) > 4:
        raise NotWritableError("more than four dimensions")
    return tuple(dims), [tuple(one) for one in own]


# How operations of torch are written down: each rule has the writer, the name, the result and the arguments.

_REDUCTIONS: Final = (Op.MEAN, Op.SUM, Op.AMAX, Op.SOFTMAX, Op.CENTRE)


def _no_rule(*given: Any, **more: Any) -> None:
    raise _NoInstructionError


def _unary(op: Op) -> Callable[..., None]:
    def rule(writer: Writer, name: str, out: Tensor, a: Tensor, *rest: Any, **more: Any) -> None:
        if a.dtype not in _KINDS or not out.is_floating_point():
            raise _NoInstructionError
        writer.elementwise(op, out, a)

    return rule


def _binary(op: Op, sign: float = 1.0, turned: bool = False) -> Callable[..., None]:
    def rule(writer: Writer, name: str, out: Tensor, a: Any, b: Any, alpha: float = 1, **more: Any) -> None:
        if more or not out.is_floating_point():
            raise _NoInstructionError
        if turned:
            a, b = b, a
        writer.elementwise(op, out, a, b, sign * float(alpha))

    return rule


def _gelu(writer: Writer, name: str, out: Tensor, a: Tensor, approximate: str = "none") -> None:
    writer.elementwise(Op.GELU_TANH if approximate == "tanh" else Op.GELU, out, a)


def _power(writer: Writer, name: str, out: Tensor, a: Any, exponent: Any) -> None:
    if isinstance(a, Tensor) and exponent == 2:
        writer.elementwise(Op.MUL, out, a, a)
    elif isinstance(a, Tensor) and exponent == 0.5:
        writer.elementwise(Op.SQRT, out, a)
    elif isinstance(a, Tensor) and exponent == -0.5:
        writer.elementwise(Op.RSQRT, out, a)
    elif isinstance(a, Tensor) and exponent == 3:
        squares = writer.fresh(a.shape, torch.float32)
        writer.elementwise(Op.MUL, squares, a, a)
        writer.elementwise(Op.MUL, out, squares, a)
    else:
        raise _NoInstructionError


def _clamp(writer: Writer, name: str, out: Tensor, a: Tensor, least: Any = None, most: Any = None) -> None:
    if isinstance(least, Tensor) or isinstance(most, Tensor):
        raise _NoInstructionError
    if name.startswith("clamp_min"):
        most = None
    if name.startswith("clamp_max"):
        least, most = None, least
    here = a
    if least is not None:
        writer.elementwise(Op.MAXIMUM, out, here, least)
        here = out
    if most is not None:
        writer.elementwise(Op.MINIMUM, out, here, most)


def _copied(writer: Writer, name: str, out: Tensor, a: Tensor, *rest: Any, **more: Any) -> None:
    if out.dtype is torch.int64 or out.dtype is torch.bool:
        raise _NoInstructionError
    writer.elementwise(Op.COPY, out, a)


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
    num_rows = x.numel() // x.shape[-1]
    is_coded = weight.dtype is torch.int8
    if x.dtype not in KINDS or not (is_coded or x.dtype is weight.dtype) or not weight.is_contiguous():
        raise _NoInstructionError
    is_fit = bias is None or (bias.is_contiguous() and bias.dtype is out.dtype)
    if not is_fit or (is_coded and num_rows > MAX_ROWS):
        raise _NoInstructionError
    if num_rows > MAX_ROWS:
        with _paused():
            flat, rows = writer.contiguous(x).view(num_rows, -1), out.view(num_rows, -1)
            columns = weight.t()
        if bias is None:
            writer.call(torch.mm, (flat, columns), {}, [rows], is_given_out=True)
        else:
            writer.call(torch.addmm, (bias, flat, columns), {}, [rows], is_given_out=True)
        return
    writer.write(
        Op.LINEAR,
        (num_rows, weight.shape[0], weight.shape[1]),
        out=_flat(writer, out),
        a=_flat(writer, writer.contiguous(x)),
        b=_flat(writer, weight)._replace(kind=WEIGHTS[weight.dtype]),
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
    "add": _binary(Op.ADD),
    "sub": _binary(Op.ADD, -1.0),
    "rsub": _binary(Op.ADD, -1.0, turned=True),
    "mul": _binary(Op.MUL),
    "div": _binary(Op.DIV),
    "maximum": _binary(Op.MAXIMUM),
    "minimum": _binary(Op.MINIMUM),
    "neg": _unary(Op.NEG),
    "rsqrt": _unary(Op.RSQRT),
    "sqrt": _unary(Op.SQRT),
    "exp": _unary(Op.EXP),
    "sigmoid": _unary(Op.SIGMOID),
    "silu": _unary(Op.SILU),
    "tanh": _unary(Op.TANH),
    "gelu": _gelu,
    "relu": _unary(Op.RELU),
    "cos": _unary(Op.COS),
    "sin": _unary(Op.SIN),
    "abs": _unary(Op.ABS),
    "pow": _power,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "_to_copy": _copied,
    "clone": _copied,
    "copy_": _copied_into,
    "cat": _joined,
    "mean": _reduction(Op.MEAN),
    "sum": _reduction(Op.SUM),
    "amax": _reduction(Op.AMAX),
    "_softmax": _softmax,
    "native_layer_norm": _normed,
    "embedding": _embedded,
    "few_rows_linear": _linear,
}
for _name in ("add", "sub", "mul", "div", "neg", "silu", "relu", "tanh", "sigmoid"):
    _RULES[f"{_name}_"] = _RULES[_name]
