"""A decoding step as a list of instructions, and the compiled function that runs them one after the other.

Example: a norm of one row of 192 numbers, as `models.programs.step_program` writes it down:

    MUL      [192]     square  <- x, x
    MEAN     [1, 192]  mean    <- square
    ADD      [1]       sum     <- mean, 1e-5
    RSQRT    [1]       root    <- sum
    MUL      [1, 192]  scaled  <- x, root          a stride of 0 repeats the root
    MUL      [192]     out     <- weight, scaled

An instruction is a row of whole numbers (`Field`) and one of floats. An operand is a place (a base and a distance from
it in bytes), a type, and a stride for each of four dimensions. Bases are given anew for each run, so that one list may
be run by several threads, and over caches that have moved. Numbers are widened to float32, computed with, and rounded
to the type of the result, which is what torch does with bfloat16 and float16.

What a row comes to does not depend on the rows beside it: every sum is added up in an order that follows from its own
length alone, and `ATTEND` reads the slots that a token may see and no others. Nor on the threads: they share out the
products' outputs and the heads of the cache.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from decodekit.products.cpu_products import (
    KIND_OF,
    LANES,
    ROOM,
    SINGLE,
    SIZES,
    VECTOR,
    Callback,
    called,
    four_by_one,
    multiply_add,
    one_by_one,
    read,
    widened,
    write,
)  # fmt: skip
from decodekit.products.cpu_team import ask, code_of, do, lending, product, threads_of
from decodekit.records.compiled_code import compiled


class Op(IntEnum):
    """Operations; those up to `ABS` have two operands or one, element by element."""

    COPY = 0
    ADD = 1  # a + x b
    MUL = 2
    DIV = 3
    MAXIMUM = 4
    MINIMUM = 5
    NEG = 6
    RSQRT = 7
    SQRT = 8
    EXP = 9
    SIGMOID = 10
    SILU = 11
    TANH = 12
    GELU = 13
    GELU_TANH = 14
    RELU = 15
    COS = 16
    SIN = 17
    ABS = 18
    MEAN = 20  # of the last dimension
    SUM = 21
    AMAX = 22
    SOFTMAX = 23
    CENTRE = 24  # less the mean, over the deviation
    GATHER = 25  # rows of a by the numbers in b
    LINEAR = 26
    STORE = 27  # into a plane of the cache
    ATTEND = 28
    CALL = 29  # of torch; not run here


class Field(IntEnum):
    """Places of an instruction: dimensions from the outermost on, then three operands and two more."""

    OP = 0
    DIMS = 1  # four
    OUT = 5  # base, distance in bytes, type, four strides in numbers
    A = 12
    B = 19
    C = 26  # base, distance, type: a bias, or sinks
    KEYS = 29  # planes
    VALUES = 30
    KEY_HEADS = 31
    VALUE_DIM = 32
    WINDOW = 33
    SKIPPED = 34  # tokens of a row that have no query
    END = 35


NUM_FLOATS: Final = 3
"""Floats of an instruction: the factor or the number in place of a, that in place of b, and the cap of scores."""
NO_OPERAND: Final = -1
"""The base of an operand that is a float of the instruction, or that is absent."""
INT64: Final = 3
"""The type of token ids and positions; 0 to 2 are those of `cpu_products.KINDS`."""
BOOL: Final = 4
INT8: Final = 5
NUM_PLACES: Final = 6
"""What is said of a plane: address, strides of rows, heads and slots in numbers, type, the plane of its scales."""

_TILE: Final = 512
_SUMS: Final = 16
SCRATCH: Final = 3 * _TILE + _SUMS + ROOM
"""Float32 numbers that a run needs beside those of its attention and products."""

_INT32: Final = ir.IntType(32)
_FLOAT: Final = ir.FloatType()
_INT: Final = ir.IntType(64)


def _byte(b: Any, address: Any, index: Any) -> Any:
    return b.gep(b.inttoptr(address, ir.IntType(8).as_pointer()), [index])


_int_at: Final = code_of(
    lambda b, address, index: b.load(b.gep(b.inttoptr(address, _INT.as_pointer()), [index])), types.int64, 2
)
_byte_at: Final = code_of(lambda b, address, index: b.sext(b.load(_byte(b, address, index)), _INT), types.int64, 2)
_put_byte: Final = code_of(
    lambda b, address, index, value: b.store(b.trunc(value, ir.IntType(8)), _byte(b, address, index)), types.void, 3
)


_BFLOAT: Final = np.uint16(0)
_HALF: Final = np.int16(0)
_HALF_ONE: Final = np.float32(0.5)
_ONE: Final = np.float32(1)
_TWO: Final = np.float32(2)
_ROOT_HALF: Final = np.float32(0.7071067811865476)
_GELU_FACTOR: Final = np.float32(0.7978845608028654)
_GELU_CUBE: Final = np.float32(0.044715)
_LOG2E: Final = 1.44269504088896341
_LN2: Final = (0.693359375, -2.12194440e-4)  # what is above 9 bits, and the rest
_POLYNOMIAL: Final = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0,
)  # fmt: skip
_BOUNDS: Final = (-87.3, 88.3)


@intrinsic  # type: ignore[untyped-decorator]
def _exp(typing: Any, x: Any) -> Any:
    """e to the power x, within two units in the last place (Cephes, `expf`), without a branch: loops are vectorised."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        [x] = arguments
        least, most = (ir.Constant(_FLOAT, np.float32(one)) for one in _BOUNDS)
        near = b.select(b.fcmp_ordered("<", x, least), least, x)
        near = b.select(b.fcmp_ordered(">", near, most), most, near)
        half = ir.Constant(_FLOAT, 0.5)
        factor = ir.Constant(_FLOAT, np.float32(_LOG2E))
        whole = called(b, "llvm.floor.f32", _FLOAT, multiply_add(b, near, factor, half))
        r = near
        for part in _LN2:
            r = multiply_add(b, whole, ir.Constant(_FLOAT, np.float32(-part)), r)
        p = ir.Constant(_FLOAT, np.float32(_POLYNOMIAL[0]))
        for factor in _POLYNOMIAL[1:]:
            p = multiply_add(b, p, r, ir.Constant(_FLOAT, np.float32(factor)))
        power = b.shl(b.add(b.fptosi(whole, _INT32), _INT32(127)), _INT32(23))
        value = b.fmul(p, b.bitcast(power, _FLOAT))
        value = b.select(b.fcmp_ordered("<", x, least), ir.Constant(_FLOAT, 0.0), value)
        value = b.select(b.fcmp_ordered(">", x, most), ir.Constant(_FLOAT, float("inf")), value)
        return b.select(b.fcmp_unordered("uno", x, x), x, value)

    return types.float32(types.float32), code


@compiled
def _widened(kind: int, address: int, first: int, stride: int, n: int, scratch: int) -> int:
    """The address of n float32 numbers that stand at `first`, `first + stride` ...: in place, or in scratch."""
    if kind == 0:
        if stride == 1:
            return address + 4 * first
        for i in range(n):
            write(SINGLE, scratch, i, read(SINGLE, address, first + i * stride))
    elif kind == 1:
        if stride == 1:
            for i in range(n):
                write(SINGLE, scratch, i, read(_BFLOAT, address, first + i))
        else:
            for i in range(n):
                write(SINGLE, scratch, i, read(_BFLOAT, address, first + i * stride))
    elif kind == 2:
        for i in range(n):
            write(SINGLE, scratch, i, read(_HALF, address, first + i * stride))
    elif kind == INT64:
        for i in range(n):
            write(SINGLE, scratch, i, np.float32(_int_at(address, first + i * stride)))
    else:
        for i in range(n):
            write(SINGLE, scratch, i, np.float32(_byte_at(address, first + i * stride)))
    return scratch


@compiled
def _rounded(kind: int, address: int, first: int, stride: int, n: int, scratch: int) -> None:
    """Store n float32 numbers in a type."""
    if kind == 0:
        for i in range(n):
            write(SINGLE, address, first + i * stride, read(SINGLE, scratch, i))
    elif kind == 1:
        for i in range(n):
            write(_BFLOAT, address, first + i * stride, read(SINGLE, scratch, i))
    else:
        for i in range(n):
            write(_HALF, address, first + i * stride, read(SINGLE, scratch, i))


@compiled
def _filled(scratch: int, n: int, value: float) -> int:
    for i in range(n):
        write(SINGLE, scratch, i, np.float32(value))
    return scratch


@compiled
def _two(op: int, out: int, a: int, b: int, n: int, x: Any) -> None:
    """Operations on two operands of n float32 numbers."""
    if op == Op.ADD:
        for i in range(n):
            write(SINGLE, out, i, read(SINGLE, a, i) + x * read(SINGLE, b, i))
    elif op == Op.MUL:
        for i in range(n):
            write(SINGLE, out, i, read(SINGLE, a, i) * read(SINGLE, b, i))
    elif op == Op.DIV:
        for i in range(n):
            write(SINGLE, out, i, read(SINGLE, a, i) / read(SINGLE, b, i))
    elif op == Op.MAXIMUM:
        for i in range(n):
            write(SINGLE, out, i, max(read(SINGLE, a, i), read(SINGLE, b, i)))
    else:
        for i in range(n):
            write(SINGLE, out, i, min(read(SINGLE, a, i), read(SINGLE, b, i)))


@compiled
def _one(op: int, out: int, a: int, n: int) -> None:
    """Operations on one operand of n float32 numbers."""
    if op == Op.COPY:
        for i in range(n):
            write(SINGLE, out, i, read(SINGLE, a, i))
    elif op == Op.NEG:
        for i in range(n):
            write(SINGLE, out, i, -read(SINGLE, a, i))
    elif op == Op.RSQRT:
        for i in range(n):
            write(SINGLE, out, i, _ONE / np.sqrt(read(SINGLE, a, i)))
    elif op == Op.SQRT:
        for i in range(n):
            write(SINGLE, out, i, np.sqrt(read(SINGLE, a, i)))
    elif op == Op.EXP:
        for i in range(n):
            write(SINGLE, out, i, _exp(read(SINGLE, a, i)))
    elif op == Op.SIGMOID:
        for i in range(n):
            write(SINGLE, out, i, _ONE / (_ONE + _exp(-read(SINGLE, a, i))))
    elif op == Op.SILU:
        for i in range(n):
            v = read(SINGLE, a, i)
            write(SINGLE, out, i, v / (_ONE + _exp(-v)))
    elif op == Op.TANH:
        for i in range(n):
            v = read(SINGLE, a, i)
            write(SINGLE, out, i, np.float32(math.tanh(v)))
    elif op == Op.GELU:
        for i in range(n):
            v = read(SINGLE, a, i)
            write(SINGLE, out, i, v * _HALF_ONE * (_ONE + np.float32(math.erf(v * _ROOT_HALF))))
    elif op == Op.GELU_TANH:
        for i in range(n):
            v = read(SINGLE, a, i)
            t = _GELU_FACTOR * (v + _GELU_CUBE * v * v * v)
            write(SINGLE, out, i, v - v / (_ONE + _exp(_TWO * t)))
    elif op == Op.RELU:
        for i in range(n):
            v = read(SINGLE, a, i)
            write(SINGLE, out, i, v if not v < 0 else np.float32(0))
    elif op == Op.COS:
        for i in range(n):
            write(SINGLE, out, i, np.float32(math.cos(read(SINGLE, a, i))))
    elif op == Op.SIN:
        for i in range(n):
            write(SINGLE, out, i, np.float32(math.sin(read(SINGLE, a, i))))
    else:
        for i in range(n):
            write(SINGLE, out, i, abs(read(SINGLE, a, i)))


@compiled
def _total(a: int, n: int, sums: int) -> Any:
    """The sum of n float32 numbers: of every 16th, then of these."""
    for j in range(_SUMS):
        write(SINGLE, sums, j, np.float32(0))
    whole = n & -_SUMS
    for i in range(0, whole, _SUMS):
        for j in range(_SUMS):
            write(SINGLE, sums, j, read(SINGLE, sums, j) + read(SINGLE, a, i + j))
    for i in range(whole, n):
        write(SINGLE, sums, i - whole, read(SINGLE, sums, i - whole) + read(SINGLE, a, i))
    total = np.float32(0)
    for j in range(_SUMS):
        total += read(SINGLE, sums, j)
    return total


@compiled
def _largest(a: int, n: int) -> Any:
    best = np.float32(-np.inf)
    for i in range(n):
        v = read(SINGLE, a, i)
        if v > best or v != v:
            best = v
    return best


@compiled
def _peak(a: int, n: int, peaks: int) -> Any:
    """The largest of n numbers that is not NaN."""
    for j in range(_SUMS):
        write(SINGLE, peaks, j, np.float32(-np.inf))
    whole = n & -_SUMS
    for i in range(0, whole, _SUMS):
        for j in range(_SUMS):
            v, w = read(SINGLE, peaks, j), read(SINGLE, a, i + j)
            write(SINGLE, peaks, j, w if w > v else v)
    best = np.float32(-np.inf)
    for i in range(whole, n):
        v = read(SINGLE, a, i)
        best = v if v > best else best
    for j in range(_SUMS):
        v = read(SINGLE, peaks, j)
        best = v if v > best else best
    return best


@compiled
def _size_of(kind: int) -> int:
    return 4 if kind == 0 else 8 if kind == INT64 else 1 if kind == BOOL else 2


@compiled
def _elementwise(code: Any, floats: Any, bases: Any, scratch: int) -> None:
    op = code[Field.OP]
    n3 = code[Field.DIMS + 3]
    out, a, b = Field.OUT, Field.A, Field.B
    has_a, has_b = code[a] != NO_OPERAND, code[b] != NO_OPERAND
    is_pair = op == Op.ADD or op == Op.MUL or op == Op.DIV or op == Op.MAXIMUM or op == Op.MINIMUM
    to = bases[code[out]] + code[out + 1]
    from_a = bases[code[a]] + code[a + 1] if has_a else 0
    from_b = bases[code[b]] + code[b + 1] if has_b else 0
    kind, kind_a, kind_b = code[out + 2], code[a + 2], code[b + 2]
    x = np.float32(floats[0])
    is_direct = kind == 0 and code[out + 6] == 1
    for i0 in range(code[Field.DIMS]):
        for i1 in range(code[Field.DIMS + 1]):
            for i2 in range(code[Field.DIMS + 2]):
                at = i0 * code[out + 3] + i1 * code[out + 4] + i2 * code[out + 5]
                at_a = i0 * code[a + 3] + i1 * code[a + 4] + i2 * code[a + 5]
                at_b = i0 * code[b + 3] + i1 * code[b + 4] + i2 * code[b + 5]
                for start in range(0, n3, _TILE):
                    n = min(_TILE, n3 - start)
                    first = scratch
                    if has_a:
                        first = _widened(kind_a, from_a, at_a + start * code[a + 6], code[a + 6], n, scratch)
                    else:
                        _filled(scratch, n, floats[1])
                    here = to + 4 * (at + start) if is_direct else scratch + 8 * _TILE
                    if is_pair:
                        second = scratch + 4 * _TILE
                        if has_b:
                            second = _widened(kind_b, from_b, at_b + start * code[b + 6], code[b + 6], n, second)
                        else:
                            _filled(second, n, floats[1])
                        _two(op, here, first, second, n, x)
                    else:
                        _one(op, here, first, n)
                    if not is_direct:
                        _rounded(kind, to, at + start * code[out + 6], code[out + 6], n, here)


@compiled
def _reduced(code: Any, floats: Any, bases: Any, scratch: int, room: int) -> None:
    """Operations along the whole last dimension; `room` has twice its length."""
    op, n3 = code[Field.OP], code[Field.DIMS + 3]
    out, a = Field.OUT, Field.A
    to, from_a = bases[code[out]] + code[out + 1], bases[code[a]] + code[a + 1]
    for i0 in range(code[Field.DIMS]):
        for i1 in range(code[Field.DIMS + 1]):
            for i2 in range(code[Field.DIMS + 2]):
                at = i0 * code[out + 3] + i1 * code[out + 4] + i2 * code[out + 5]
                at_a = i0 * code[a + 3] + i1 * code[a + 4] + i2 * code[a + 5]
                row = _widened(code[a + 2], from_a, at_a, code[a + 6], n3, room)
                if op == Op.SOFTMAX:
                    most = _peak(row, n3, scratch)
                    for i in range(n3):
                        write(SINGLE, room, i, _exp(read(SINGLE, row, i) - most))
                    total = _total(room, n3, scratch)
                    for i in range(n3):
                        write(SINGLE, room, i, read(SINGLE, room, i) / total)
                    _rounded(code[out + 2], to, at, code[out + 6], n3, room)
                elif op == Op.CENTRE:
                    mean = _total(row, n3, scratch) / np.float32(n3)
                    for i in range(n3):
                        write(SINGLE, room, i, read(SINGLE, row, i) - mean)
                    for i in range(n3):
                        v = read(SINGLE, room, i)
                        write(SINGLE, room, n3 + i, v * v)
                    variance = _total(room + 4 * n3, n3, scratch) / np.float32(n3)
                    root = _ONE / np.sqrt(variance + np.float32(floats[0]))
                    for i in range(n3):
                        write(SINGLE, room, i, read(SINGLE, room, i) * root)
                    _rounded(code[out + 2], to, at, code[out + 6], n3, room)
                else:
                    value = _largest(row, n3) if op == Op.AMAX else _total(row, n3, scratch)
                    if op == Op.MEAN:
                        value = value / np.float32(n3)
                    write(SINGLE, scratch, 0, value)
                    _rounded(code[out + 2], to, at, 1, 1, scratch)


@compiled
def _gathered(code: Any, bases: Any) -> None:
    """Rows [M, K] of a table, by M token ids: bytes are copied."""
    out, a, b = Field.OUT, Field.A, Field.B
    to, table = bases[code[out]] + code[out + 1], bases[code[a]] + code[a + 1]
    ids = bases[code[b]] + code[b + 1]
    width, size = code[Field.DIMS + 3], _size_of(code[a + 2])
    for i in range(code[Field.DIMS + 2]):
        row = table + _int_at(ids, i * code[b + 5]) * code[a + 5] * size
        for k in range(width * size):
            _put_byte(to + i * code[out + 5] * size, k, _byte_at(row, k))


@compiled
def _stored(code: Any, bases: Any, planes: Any, rows: Any, slots: Any, scratch: int) -> None:
    """Write keys or values [R, H, T, D] into their slots of a plane."""
    a = Field.A
    source = bases[code[a]] + code[a + 1]
    plane = planes[code[Field.KEYS]]
    width = code[Field.DIMS + 3]
    for r in range(code[Field.DIMS]):
        for h in range(code[Field.DIMS + 1]):
            for t in range(code[Field.DIMS + 2]):
                at = rows[r] * plane[1] + h * plane[2] + slots[r, t] * plane[3]
                first = r * code[a + 3] + h * code[a + 4] + t * code[a + 5]
                found = _widened(code[a + 2], source, first, code[a + 6], width, scratch)
                if plane[4] == INT8:
                    scales = planes[plane[5]]
                    _quantised(
                        found, width, plane[0] + at, scales[0], rows[r] * scales[1] + h * scales[2] + slots[r, t]
                    )
                else:
                    _rounded(plane[4], plane[0], at, 1, width, found)


@compiled
def _quantised(numbers: int, width: int, codes: int, scales: int, place: int) -> None:
    """Store numbers in eight bits and their scale: `caches.quantised_planes.quantised`."""
    most = np.float32(0)
    for i in range(width):
        v = abs(read(SINGLE, numbers, i))
        if v > most or v != v:
            most = v
    scale = most / np.float32(127)
    write(SINGLE, scales, place, scale)
    by = scale if scale > 0 else _ONE
    for i in range(width):
        ratio = read(SINGLE, numbers, i) / by
        _put_byte(codes, i, np.int64(np.rint(ratio)) if ratio == ratio and by < np.inf else 0)


@compiled
def _restored(
    plane: Any, scales: Any, row: int, head: int, first: int, last: int, width: int, kind: int, out: int
) -> None:
    """The numbers [last - first, width] of some slots, as they are in the type of the model."""
    for s in range(first, last):
        at = plane[0] + row * plane[1] + head * plane[2] + s * plane[3]
        scale = read(SINGLE, scales[0], row * scales[1] + head * scales[2] + s)
        for d in range(width):
            write(SINGLE, out, (s - first) * width + d, np.float32(_byte_at(at, d)) * scale)
    if kind == 1:
        for i in range((last - first) * width):
            write(_BFLOAT, out, 2 * i, read(SINGLE, out, i))
            write(SINGLE, out, i, read(_BFLOAT, out, 2 * i))
    elif kind == 2:
        for i in range((last - first) * width):
            write(_HALF, out, 2 * i, read(SINGLE, out, i))
            write(SINGLE, out, i, read(_HALF, out, 2 * i))


@compiled
def _score_slots(
    mark: Any, size: int, keys: int, stride: int, query: int, width: int, first: int, last: int, out: int
) -> None:
    """The products [last - first] of a query of float32 with the keys of some slots."""
    s = first
    while s < last:
        at = keys + s * stride * size
        if last - s >= 4:
            p0, p1, p2, p3 = four_by_one(mark, at, query, stride, width)
            write(SINGLE, out, s - first, p0)
            write(SINGLE, out, s - first + 1, p1)
            write(SINGLE, out, s - first + 2, p2)
            write(SINGLE, out, s - first + 3, p3)
            s += 4
        else:
            (p0,) = one_by_one(mark, at, query, stride, width)
            write(SINGLE, out, s - first, p0)
            s += 1


def _mix(num_vectors: int) -> Any:
    """The function that adds up so many neighbouring vectors of the values of slots, times their weights.

    Its arguments are a mark of the values' type, the address of the first slot's numbers, how many numbers further
    those of the next slot are, the addresses of the weights and of the result, and the number of slots. A sum stays in
    its register, and takes one slot after the other.
    """

    def emitted(b: Any, kind: int, values: Any, stride: Any, weights: Any, out: Any, num_slots: Any) -> None:
        before, head, body, behind = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        s = b.phi(_INT)
        sums = [b.phi(VECTOR) for _ in range(num_vectors)]
        b.cbranch(b.icmp_signed("<", s, num_slots), body, behind)
        b.position_at_end(body)
        weight = widened(b, 0, weights, s, 1)
        many = b.insert_element(ir.Constant(VECTOR, ir.Undefined), weight, _INT32(0))
        many = b.shuffle_vector(
            many, ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
        )
        at = b.mul(s, stride)
        added = [
            multiply_add(b, many, widened(b, kind, values, b.add(at, _INT(i * LANES)), LANES), one)
            for i, one in enumerate(sums)
        ]
        s.add_incoming(_INT(0), before)
        s.add_incoming(b.add(s, _INT(1)), body)
        for phi, after in zip(sums, added, strict=True):
            phi.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
            phi.add_incoming(after, body)
        b.branch(head)
        b.position_at_end(behind)
        for i, one in enumerate(sums):
            place = b.gep(b.inttoptr(out, _FLOAT.as_pointer()), [_INT(i * LANES)])
            b.store(one, b.bitcast(place, VECTOR.as_pointer()), align=4)

    @intrinsic  # type: ignore[untyped-decorator]
    def mix(typing: Any, mark: Any, values: Any, stride: Any, weights: Any, out: Any, num_slots: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emitted(builder, KIND_OF[mark], *arguments[1:])
            return context.get_dummy_value()

        return types.void(mark, *[types.int64] * 5), code

    return mix


_mix_four, _mix_two, _mix_one = _mix(4), _mix(2), _mix(1)


@compiled
def _weigh(mark: Any, size: int, values: int, stride: int, weights: int, num_slots: int, width: int, out: int) -> None:
    """The sum [width] of the values of slots, times their weights: one slot after the other."""
    d = 0
    while width - d >= LANES:
        if width - d >= 4 * LANES:
            _mix_four(mark, values + d * size, stride, weights, out + 4 * d, num_slots)
            d += 4 * LANES
        elif width - d >= 2 * LANES:
            _mix_two(mark, values + d * size, stride, weights, out + 4 * d, num_slots)
            d += 2 * LANES
        else:
            _mix_one(mark, values + d * size, stride, weights, out + 4 * d, num_slots)
            d += LANES
    for e in range(d, width):
        total = np.float32(0)
        for s in range(num_slots):
            total += read(SINGLE, weights, s) * read(mark, values, s * stride + e)
        write(SINGLE, out, e, total)


_MANY_KEYS: Final = 1 << 15  # numbers; what is less is read before a helper has come
# An instruction, its floats, bases, planes, rows, positions; the threads' rooms, bytes of one, and their number.
_lend, _lent = lending(types.Tuple((
    types.int64[::1], types.float64[::1], types.int64[::1], types.int64[:, ::1], types.int64[::1], types.int64[:, ::1],
    types.int64, types.int64, types.int64,
)))  # fmt: skip


@compiled
def _attended(
    code: Any, floats: Any, bases: Any, planes: Any, rows: Any, positions: Any, room: int, size: int, attend: int,
    state: int,
) -> None:  # fmt: skip
    """Attention of queries [R, Hq, T, D] to the slots of their rows that they may see; many by the team."""
    num_keys = 0
    for r in range(code[Field.DIMS]):
        num_keys += positions[r, code[Field.SKIPPED] + code[Field.DIMS + 2] - 1] * code[Field.KEY_HEADS]
    num_shares = threads_of(state) if num_keys * code[Field.DIMS + 3] >= _MANY_KEYS else 1
    given = _lend((code, floats, bases, planes, rows, positions, room, size, num_shares))
    if num_shares == 1 or not ask(state, attend, given, num_shares, 1, 0):
        do(attend, given, 0, 0, num_shares)


def _attend(given: int, totals: int, first: int, last: int) -> None:
    """Some shares, of units from all rows, as one may be long: of what reads a head of a row's cache, or part of it."""
    code, floats, bases, planes, rows, positions, room, size, num_shares = _lent(given)
    keys, values = planes[code[Field.KEYS]], planes[code[Field.VALUES]]
    num_heads, num_new, width = code[Field.KEY_HEADS], code[Field.DIMS + 2], code[Field.DIMS + 3]
    num_queries, value_dim, is_coded = code[Field.DIMS + 1], code[Field.VALUE_DIM], keys[4] == INT8
    group = num_queries // num_heads
    unit = group if is_coded or code[Field.DIMS] * num_heads >= num_shares else 1
    kind_of_keys, kind_of_values = (0, 0) if is_coded else (keys[4], values[4])
    stride, value_stride = (width, value_dim) if is_coded else (keys[3], values[3])
    for share in range(first, last):
        scratch = room + share * size
        for start in range(share * unit, code[Field.DIMS] * num_queries, num_shares * unit):
            r, first_head = start // num_queries, start % num_queries
            h = first_head // group
            at_keys = keys[0] + (rows[r] * keys[1] + h * keys[2]) * _size_of(kind_of_keys)
            at_values = values[0] + (rows[r] * values[1] + h * values[2]) * _size_of(kind_of_values)
            scores = scratch + 4 * SCRATCH
            if is_coded:
                end, kind = positions[r, code[Field.SKIPPED] + num_new - 1] + 1, code[Field.A + 2]
                at_keys, at_values = scores, scores + 4 * end * width
                scores = at_values + 4 * end * value_dim
                _restored(keys, planes[keys[5]], rows[r], h, 0, end, width, kind, at_keys)
                _restored(values, planes[values[5]], rows[r], h, 0, end, value_dim, kind, at_values)
            for head in range(first_head, first_head + unit):
                for t in range(num_new):
                    _attended_by_one(
                        code, floats, bases, r, head, t, positions[r, t + code[Field.SKIPPED]], at_keys, at_values,
                        kind_of_keys, kind_of_values, stride, value_stride, scratch, scores,
                    )  # fmt: skip


ATTENDER: Final = Callback(_attend)
"""The function that does some shares of an attention, each in a room of its own."""


@compiled
def _attended_by_one(
    code: Any, floats: Any, bases: Any, r: int, head: int, t: int, position: int, keys: int, values: int,
    kind_of_keys: int, kind_of_values: int, stride: int, value_stride: int, scratch: int, scores: int,
) -> None:  # fmt: skip
    """Attention of the query of one head at a position."""
    out, a, c = Field.OUT, Field.A, Field.C
    scale, cap = np.float32(floats[0]), np.float32(floats[2])
    query, mixed = scratch, scratch + 4 * _TILE
    width, window = code[Field.VALUE_DIM], code[Field.WINDOW]
    first = max(0, position + 1 - window) if window > 0 else 0
    n = position + 1 - first
    at = r * code[a + 3] + head * code[a + 4] + t * code[a + 5]
    q = _widened(code[a + 2], bases[code[a]] + code[a + 1], at, code[a + 6], code[Field.DIMS + 3], query)
    key_dim, end = code[Field.DIMS + 3], position + 1
    if kind_of_keys == 0:
        _score_slots(SINGLE, 4, keys, stride, q, key_dim, first, end, scores)
    elif kind_of_keys == 1:
        _score_slots(_BFLOAT, 2, keys, stride, q, key_dim, first, end, scores)
    else:
        _score_slots(_HALF, 2, keys, stride, q, key_dim, first, end, scores)
    for s in range(n):
        write(SINGLE, scores, s, read(SINGLE, scores, s) * scale)
    if cap > 0:
        for s in range(n):
            write(SINGLE, scores, s, np.float32(math.tanh(read(SINGLE, scores, s) / cap)) * cap)
    most = _peak(scores, n, scratch + 12 * _TILE)
    sink = np.float32(0)
    if code[c] != NO_OPERAND:
        sink = read(SINGLE, _widened(code[c + 2], bases[code[c]] + code[c + 1], head, 1, 1, mixed), 0)
        most = max(most, sink)
    for s in range(n):
        write(SINGLE, scores, s, _exp(read(SINGLE, scores, s) - most))
    total = _total(scores, n, scratch + 12 * _TILE)
    if code[c] != NO_OPERAND:
        total = total + _exp(sink - most)
    at_values = values + first * value_stride * _size_of(kind_of_values)
    if kind_of_values == 0:
        _weigh(SINGLE, 4, at_values, value_stride, scores, n, width, mixed)
    elif kind_of_values == 1:
        _weigh(_BFLOAT, 2, at_values, value_stride, scores, n, width, mixed)
    else:
        _weigh(_HALF, 2, at_values, value_stride, scores, n, width, mixed)
    for d in range(width):
        write(SINGLE, mixed, d, read(SINGLE, mixed, d) / total)
    at = r * code[out + 3] + head * code[out + 4] + t * code[out + 5]
    _rounded(code[out + 2], bases[code[out]] + code[out + 1], at, code[out + 6], width, mixed)


@compiled
def run(
    codes: Any, floats: Any, first: int, last: int, bases: Any, planes: Any, rows: Any, slots: Any, positions: Any,
    room: int, size: int, state: int, makers: Any,
) -> None:  # fmt: skip
    """Run the instructions from `first` to `last`.

    Args:
        codes, floats: int64 [N, Field.END], float64 [N, NUM_FLOATS].
        bases: int64, addresses.
        planes: int64 [P, NUM_PLACES].
        rows: int64 [R], the row of the cache of each row.
        slots, positions: int64 [R, T] of the new tokens.
        room: address of float32 numbers, for each thread: `SCRATCH`, then as many as a row of attention needs, or as a
            product, for which there is one room alone.
        size: bytes of a thread's room.
        state: of the team; see `cpu_team`.
        makers: int64, the addresses of its functions by type, of those that the program needs, and of `ATTENDER`.
    """
    more = room + 4 * SCRATCH
    for i in range(first, last):
        code = codes[i]
        op = code[Field.OP]
        if op < Op.MEAN:
            _elementwise(code, floats[i], bases, room)
        elif op < Op.GATHER:
            _reduced(code, floats[i], bases, room, more)
        elif op == Op.LINEAR:
            bias = 0
            if code[Field.C] != NO_OPERAND:
                bias = bases[code[Field.C]] + code[Field.C + 1]
            weights = code[Field.B + 2]
            product(
                state, makers[weights], code[Field.A + 2], SIZES[weights], bases[code[Field.A]] + code[Field.A + 1],
                bases[code[Field.B]] + code[Field.B + 1], bias, bases[code[Field.OUT]] + code[Field.OUT + 1], more,
                code[Field.DIMS + 1], code[Field.DIMS + 2], code[Field.DIMS + 3],
            )  # fmt: skip
        elif op == Op.ATTEND:
            _attended(code, floats[i], bases, planes, rows, positions, room, size, makers[-1], state)
        elif op == Op.STORE:
            _stored(code, bases, planes, rows, slots, room)
        else:
            _gathered(code, bases)
