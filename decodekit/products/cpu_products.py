"""Products of a few rows with a weight matrix on a CPU: weights are read once, as they are stored.

Example: two rows x of width 2,048 and a bfloat16 matrix of 512 outputs. Each number of the result is a sum over k of
x[r, k] weight[n, k], and it is always added up in the same order:

    blocks      k = 0 to 1,023, then 1,024 to 2,047; their sums are added one after the other
    in a block  16 partial sums, of every 16th product; they are halved until one is left: 8 + 8, 4 + 4, ...
    a product   the weight widened to float32 in a register, one fused multiply-add

So a number does not depend on the rows beside it, on the number of threads, or on which thread made it; what changes
with these is the *tile*, so many outputs by so many rows, that is added up side by side in registers:

    1 x 1, 1 x 2   rows of x that stay in the first cache: one output after the other, so that the matrix is one stream.
                   What comes 8 KiB later is fetched meanwhile: 0.8 to 0.95 of what a plain sum reads per second, 0.5
                   to 0.65 without (16 KiB where registers hold eight numbers)
    3 x 4, 4 x 2   more: three weight vectors and four of x for twelve multiply-adds; 3 x 8 where registers hold 16
                   numbers. The next tile's weights are fetched meanwhile

Registers of eight numbers hold half of a tile's partial sums: the first eight of each are added up, then the others,
over the same weights, which are in the first cache by then. Bfloat16 are read by pairs there: shifted, a pair is the
number at the even place, masked that at the odd one. So these eight are the even places, and rows of x are packed so.

The tiles are written as explicit vectors, since a compiler that vectorises a loop by itself picks another order for
every number of rows. Rows of x are packed beforehand (block by block, 16 numbers of each row of a tile side by side):
rows whose width is a power of two would fight for the same lines of the first cache.

Threads take chunks of outputs from a counter (`cpu_team`): one that is held up leaves its chunks to the others.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, TypeAlias

import numba
import numpy as np
import torch
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from decodekit.records.compiled_code import announced, compiled

MAX_ROWS: Final = 8
"""Most rows of a step that reading the weights takes longer than: what is made for few rows is made for these."""
MARKS: Final[dict[torch.dtype, Any]] = {
    torch.float32: np.float32(0),
    torch.bfloat16: np.uint16(0),
    torch.float16: np.int16(0),
}
"""The types of rows, weights and results, mostly the same; compiled code knows them by the type of a number."""
KINDS: Final = {dtype: kind for kind, dtype in enumerate(MARKS)}
"""The types by number."""
WEIGHTS: Final = {**KINDS, torch.int8: len(KINDS)}
"""The types of weights by number. Products of int8 are float32 for any x: whoever asks scales them."""
KIND_OF: Final = {types.float32: 0, types.uint16: 1, types.int16: 2, types.int8: 3}
SIZES: Final = (4, 2, 2, 1)

LANES: Final = 16
_FEATURES: Final = llvm.get_host_cpu_features()
IS_WIDE: Final = bool(_FEATURES.get("avx512f"))
"""Whether the processor has registers of 16 numbers; else a vector is two of eight."""
_OWN: Final = {torch.bfloat16: ("avx512bf16", "amx-bf16"), torch.float16: ("avx512fp16", "amx-fp16")}
WIDENED: Final = frozenset(
    dtype for dtype, names in _OWN.items() if _FEATURES.get("avx2") and not any(map(_FEATURES.get, names))
)
"""The types of which the processor has no products: torch multiplies many rows at a sixth of the speed of float32."""
STEP_ROWS: Final = dict.fromkeys(WEIGHTS, 32 if _FEATURES.get("avx2") and not IS_WIDE else MAX_ROWS)
"""By type of the weights, most rows of a product that a step's program makes here: torch is quicker with more."""
PRODUCT_ROWS: Final = STEP_ROWS | {torch.float32: MAX_ROWS}
"""The same in modules, which read prompts, too: in float32 these have torch's order of addition."""
_BLOCK: Final = 1024  # numbers of a row that are added up together: eight rows of them fit the first cache
GROUP: Final = 12  # outputs whose blocks are read in turn, so that a packed block of x stays where it is
ROOM: Final = GROUP * max(STEP_ROWS.values())
"""Float32 numbers that a product needs: totals."""
_AHEAD: Final = 1 << 13 if IS_WIDE else 1 << 14  # bytes from a weight to one that is fetched meanwhile
_NEAR: Final = 4096  # numbers of x that stay in the first cache as a whole
_IN_ONE_STREAM: Final = 6 if IS_WIDE else 2  # rows with which one output after the other is as quick as three

# Types of the intermediate code.
_FLOAT: Final = ir.FloatType()
_INT: Final = ir.IntType(64)
_WORD: Final = ir.IntType(32)
VECTOR: Final = ir.VectorType(_FLOAT, LANES)
_STORED: Final = (_FLOAT, ir.IntType(16), ir.HalfType(), ir.IntType(8))
Value: TypeAlias = Any


class Callback:
    """A function of int64, without a result, that compiled code calls by its address and is not compiled with."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @cached_property
    def address(self) -> int:
        """Compiled when it is first wanted, and kept on disk where one can write."""
        signature = types.void(*[types.int64] * self._function.__code__.co_argcount)
        found: Any = CFunc(
            self._function, (signature.args, signature.return_type), {}, {"nopython": True, "error_model": "numpy"}
        )
        found._cache = announced(self._function)
        found.compile()
        self._compiled = found  # as long as its address is known
        return int(found.address)


def widened(b: Any, kind: int, base: Value, index: Value, lanes: int, half: int | None = None) -> Value:
    """The code that reads `lanes` stored numbers from `index` on, as float32.

    Of 2 `lanes` bfloat16 with a half: those at even places (0), or at odd ones (1).
    """

    def all_of(one: Any) -> Any:
        return ir.VectorType(one, lanes) if lanes > 1 else one

    stored = _STORED[kind]
    place = b.gep(b.inttoptr(base, stored.as_pointer()), [index])
    if half is not None:
        pairs = b.load(b.bitcast(place, all_of(_WORD).as_pointer()), align=SIZES[kind])
        by = ir.Constant(all_of(_WORD), [16 if half == 0 else 0xFFFF0000] * lanes)
        return b.bitcast(b.and_(pairs, by) if half else b.shl(pairs, by), all_of(_FLOAT))
    value = b.load(b.bitcast(place, all_of(stored).as_pointer()), align=SIZES[kind])
    if kind == 0:
        return value
    if kind == 2:
        return b.fpext(value, all_of(_FLOAT))
    if kind == 3:
        return b.sitofp(b.sext(value, all_of(_WORD)), all_of(_FLOAT))
    by = ir.Constant(all_of(_WORD), [16] * lanes if lanes > 1 else 16)
    return b.bitcast(b.shl(b.zext(value, all_of(_WORD)), by), all_of(_FLOAT))


def called(b: Any, name: str, result: Any, *arguments: Value) -> Value:
    """The code of a call of a function of LLVM."""
    form = ir.FunctionType(result, [one.type for one in arguments])
    return b.call(b.module.globals.get(name) or ir.Function(b.module, form, name), arguments)


def multiply_add(b: Any, x: Value, y: Value, z: Value) -> Value:
    """The code of x y + z, rounded once, of vectors or of numbers."""
    lanes = f"v{x.type.count}" if isinstance(x.type, ir.VectorType) else ""
    return called(b, f"llvm.fma.{lanes}f32", x.type, x, y, z)


def _halved(b: Any, vectors: list[Value]) -> list[Value]:
    """The sum of each vector's numbers: its halves are added until one number is left.

    Two vectors are halved by one addition, [a a] and [b b] to [a b]; what is added to what is as for each alone.
    """
    held = [(vector, [i]) for i, vector in enumerate(vectors)]  # vectors, and which sums lie in them side by side
    width = LANES
    while width > 1:
        pairs = [(held[i], held[min(i + 1, len(held) - 1)]) for i in range(0, len(held), 2)]
        held = []
        for (one, first), (other, second) in pairs:
            low = [i * width + j for i in range(2 * len(first)) for j in range(width // 2)]
            halves = [
                b.shuffle_vector(one, other, ir.Constant(ir.VectorType(_WORD, LANES), [i + by for i in low]))
                for by in (0, width // 2)
            ]
            held.append((b.fadd(*halves), first + second))
        width //= 2
    places = {which: (vector, place) for vector, whose in held for place, which in enumerate(whose)}
    return [b.extract_element(vector, _WORD(place)) for _, (vector, place) in sorted(places.items())]


def _tile(num_outs: int, num_rows: int, is_packed: bool = True) -> Any:
    """The function that adds up one block of a tile.

    Its arguments are a mark of the weights' type, the address of the first weight, that of the packed block of x, the
    width of a weight row, and the length of the block. It returns `num_outs` x `num_rows` sums.

    Args:
        is_packed: whether x is as `pack` leaves it for weights of the type; else its numbers stand as they are.
    """
    cells = [(n, r) for n in range(num_outs) for r in range(num_rows)]
    is_narrow = is_packed and not IS_WIDE
    num_parts = 2 if is_narrow and len(cells) > 2 else 1  # the partial sums are added up half by half
    is_stream = is_packed and num_outs == 1 and num_parts == 1  # of one output after the other
    lanes = LANES // num_parts
    part_of = ir.VectorType(_FLOAT, lanes)

    def emitted(b: Any, kind: int, weight: Value, x: Value, width: Value, length: Value) -> list[Value]:
        by_pairs = is_narrow and kind == 1

        def weights(n: int, at: Value, part: int) -> Value:
            here = b.add(b.mul(_INT(n), width), at)
            if not by_pairs:
                return widened(b, kind, weight, b.add(here, _INT(part * lanes)), lanes)
            if num_parts == 2:
                return widened(b, kind, weight, here, lanes, part)
            return _joined(b, *(widened(b, kind, weight, here, LANES // 2, half) for half in (0, 1)))

        def added_up(part: int) -> list[Value]:
            before, head, body, behind = b.block, *(b.append_basic_block() for _ in range(3))
            b.branch(head)
            b.position_at_end(head)
            k = b.phi(_INT)
            sums = [b.phi(part_of) for _ in cells]
            b.cbranch(b.icmp_signed("<", k, whole), body, behind)
            b.position_at_end(body)
            read = [weights(n, k, part) for n in range(num_outs)]
            if part == 0:  # the next tile's weights, or what comes so many bytes later in a stream
                for n in range(num_outs, 2 * num_outs) if is_packed and num_outs > 1 else range(is_stream):
                    place = b.mul(b.add(b.mul(_INT(n), width), k), _INT(SIZES[kind]))
                    place = b.add(place, _INT(_AHEAD if is_stream else 0))
                    ahead = b.inttoptr(b.add(weight, place), ir.IntType(8).as_pointer())
                    called(b, "llvm.prefetch.p0i8", ir.VoidType(), ahead, _WORD(0), _WORD(3), _WORD(1))
            added: dict[tuple[int, int], Value] = {}
            for r in range(num_rows):  # a vector of x at a time: there are no more registers
                at = b.add(b.mul(k, _INT(num_rows)), _INT(r * LANES + part * lanes))
                of_x = widened(b, 0, x, at, lanes)
                added |= {(n, r): multiply_add(b, read[n], of_x, sums[n * num_rows + r]) for n in range(num_outs)}
            k.add_incoming(_INT(0), before)
            k.add_incoming(b.add(k, _INT(LANES)), body)
            for cell, phi in zip(cells, sums, strict=True):
                phi.add_incoming(ir.Constant(part_of, [0.0] * lanes), before)
                phi.add_incoming(added[cell], body)
            b.branch(head)
            b.position_at_end(behind)
            return sums

        whole = b.and_(length, _INT(-LANES))
        parts = [added_up(part) for part in range(num_parts)]
        sums = parts[0] if num_parts == 1 else [_joined(b, *both) for both in zip(*parts, strict=True)]
        if by_pairs:
            order = ir.Constant(ir.VectorType(_WORD, LANES), [i // 2 + i % 2 * LANES // 2 for i in range(LANES)])
            sums = [b.shuffle_vector(one, one, order) for one in sums]

        def one_weight(n: int, at: Value) -> Value:
            return widened(b, kind, weight, b.add(b.mul(_INT(n), width), at), 1)

        return _rest(b, one_weight, x, whole, length, _halved(b, sums), num_rows)

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(typing: Any, mark: Any, weight: Any, x: Any, width: Any, length: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.make_tuple(builder, signature.return_type, emitted(builder, KIND_OF[mark], *arguments[1:]))

        return types.UniTuple(types.float32, len(cells))(mark, *[types.int64] * 4), code

    return tile


def _joined(b: Any, low: Value, high: Value) -> Value:
    """The code of a vector of two halves."""
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(_WORD, LANES), list(range(LANES))))


def _rest(
    b: Any, weights: Any, x: Value, whole: Value, length: Value, totals: list[Value], num_rows: int
) -> list[Value]:
    """The code that adds the products behind the last whole step, one after the other."""
    before, head, body, behind = b.block, *(b.append_basic_block() for _ in range(3))
    b.branch(head)
    b.position_at_end(head)
    k = b.phi(_INT)
    k.add_incoming(whole, before)
    sums = [b.phi(_FLOAT) for _ in totals]
    b.cbranch(b.icmp_signed("<", k, length), body, behind)
    b.position_at_end(body)
    lane = b.and_(k, _INT(LANES - 1))
    start = b.mul(b.sub(k, lane), _INT(num_rows))
    for i, (phi, total) in enumerate(zip(sums, totals, strict=True)):
        n, r = divmod(i, num_rows)
        of_x = widened(b, 0, x, b.add(b.add(start, _INT(r * LANES)), lane), 1)
        phi.add_incoming(total, before)
        phi.add_incoming(multiply_add(b, weights(n, k), of_x, phi), body)
    k.add_incoming(b.add(k, _INT(1)), body)
    b.branch(head)
    b.position_at_end(behind)
    return sums


@intrinsic  # type: ignore[untyped-decorator]
def read(typing: Any, mark: Any, address: Any, index: Any) -> Any:
    """A stored number as float32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return widened(builder, KIND_OF[mark], arguments[1], arguments[2], 1)

    return types.float32(mark, types.int64, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def write(typing: Any, mark: Any, address: Any, index: Any, value: Any) -> Any:
    """Store a float32, rounded to the nearest number of the type, to the even one of two that are as near."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        _, address, index, value = arguments
        kind = KIND_OF[mark]
        if kind == 1:
            word = b.bitcast(value, _WORD)
            odd = b.and_(b.lshr(word, _WORD(16)), _WORD(1))
            rounded = b.lshr(b.add(b.add(word, _WORD(0x7FFF)), odd), _WORD(16))
            value = b.trunc(b.select(b.fcmp_unordered("uno", value, value), _WORD(0x7FC0), rounded), _STORED[1])
        elif kind == 2:
            value = b.fptrunc(value, _STORED[2])
        place = b.gep(b.inttoptr(address, _STORED[kind].as_pointer()), [index])
        b.store(value, place, align=SIZES[kind])
        return context.get_dummy_value()

    return types.void(mark, types.int64, types.int64, types.float32), code


one_by_one, four_by_one = _tile(1, 1, is_packed=False), _tile(4, 1, is_packed=False)
_OUTS_BY_TWO: Final = 3 if IS_WIDE else 4
_one_by_one = _tile(1, 1)
_one_by_two, _some_by_two = _tile(1, 2), _tile(_OUTS_BY_TWO, 2)
_one_by_four, _three_by_four = _tile(1, 4), _tile(3, 4)
_one_by_eight, _three_by_eight = _tile(1, 8), _tile(3, 8)
SINGLE: Final = np.float32(0)


@compiled
def _rows_of_tile(row: int, num_rows: int) -> int:
    """The number of rows, 8, 4, 2 or 1, of the tile that begins with a row."""
    left = num_rows - row
    if left >= 4:
        return 8 if IS_WIDE and left >= 8 else 4
    return 2 if left >= 2 else 1


@compiled
def _padded(length: int) -> int:
    return (length + LANES - 1) & -LANES


@compiled
def pack(mark: Any, x: int, packed: int, num_rows: int, width: int, by_pairs: bool) -> None:
    """Widen rows [R, K] to float32: block by block, tile by tile, 16 numbers of each row of a tile side by side.

    By pairs, those at even places come first among whole 16.
    """
    for start in range(0, width, _BLOCK):
        length = min(_BLOCK, width - start)
        whole = length & -LANES if by_pairs else 0
        row = 0
        while row < num_rows:
            rows = _rows_of_tile(row, num_rows)
            base = start * num_rows + row * _padded(length)
            for i in range(rows):
                for k in range(length):
                    lane = k & (LANES - 1)
                    if k < whole:
                        lane = (lane >> 1) + (lane & 1) * (LANES // 2)
                    place = base + (k & -LANES) * rows + i * LANES + lane
                    write(SINGLE, packed, place, read(mark, x, (row + i) * width + start + k))
            row += rows


@compiled
def _add(totals: int, place: int, num_rows: int, rows: int, sums: Any) -> None:
    """Add the sums of a tile, output by output, to totals [N, R]."""
    for j in range(len(sums)):
        here = place + j // rows * num_rows + j % rows
        write(SINGLE, totals, here, read(SINGLE, totals, here) + sums[j])


@compiled
def _add_output(mark: Any, weight: int, x: int, totals: int, row: int, num_rows: int, length: int) -> None:
    """Add one block of an output, for the tile of rows that begins with `row`, to totals [R]."""
    rows = _rows_of_tile(row, num_rows)
    if rows == 8:
        _add(totals, row, num_rows, 8, _one_by_eight(mark, weight, x, 0, length))
    elif rows == 4:
        _add(totals, row, num_rows, 4, _one_by_four(mark, weight, x, 0, length))
    elif rows == 2:
        _add(totals, row, num_rows, 2, _one_by_two(mark, weight, x, 0, length))
    else:
        _add(totals, row, num_rows, 1, _one_by_one(mark, weight, x, 0, length))


@compiled
def _add_block(
    mark: Any, size: int, weight: int, x: int, totals: int, outs: int, row: int, num_rows: int, width: int, length: int
) -> None:
    """Add one block of `outs` outputs, for the tile of rows that begins with `row`, to totals [N, R]."""
    rows = _rows_of_tile(row, num_rows)
    tile = _OUTS_BY_TWO if rows == 2 else 3
    n = 0
    while n < outs:
        at = weight + n * width * size
        place = n * num_rows + row
        if outs - n < tile or rows == 1:
            _add_output(mark, at, x, totals + 4 * n * num_rows, row, num_rows, length)
            n += 1
            continue
        if rows == 8:
            _add(totals, place, num_rows, 8, _three_by_eight(mark, at, x, width, length))
        elif rows == 4:
            _add(totals, place, num_rows, 4, _three_by_four(mark, at, x, width, length))
        else:
            _add(totals, place, num_rows, 2, _some_by_two(mark, at, x, width, length))
        n += tile


@compiled
def outputs(
    mark: Any, result: Any, size: int, packed: int, weight: int, bias: int, out: int, totals: int,
    num_rows: int, num_outs: int, width: int, first: int, last: int,
) -> None:  # fmt: skip
    """The outputs from `first` to `last` of all rows.

    Args:
        mark: a number whose type stands for that of the weights (`MARKS`; or int8).
        result: the same of bias and results.
        size: bytes of a weight.
        packed, weight, bias, out, totals: addresses: rows as `pack` leaves them; weights [N, K]; [N], or 0 for none;
            [R, N]; room for `ROOM` numbers.
    """
    is_near = num_rows * width <= _NEAR  # all of x stays in the first cache
    group = 1 if num_rows == 1 or (is_near and num_rows <= _IN_ONE_STREAM) else GROUP
    n = first
    while n < last:
        outs = min(group, last - n)
        for i in range(outs * num_rows):
            write(SINGLE, totals, i, numba.float32(0))
        for start in range(0, width, _BLOCK):
            length = min(_BLOCK, width - start)
            at = weight + (n * width + start) * size
            row = 0
            while row < num_rows:
                x = packed + (start * num_rows + row * _padded(length)) * 4
                if outs == 1:
                    _add_output(mark, at, x, totals, row, num_rows, length)
                else:
                    _add_block(mark, size, at, x, totals, outs, row, num_rows, width, length)
                row += _rows_of_tile(row, num_rows)
        for m in range(outs):
            added = numba.float32(0) if bias == 0 else read(result, bias, n + m)
            for row in range(num_rows):
                write(result, out, row * num_outs + n + m, read(SINGLE, totals, m * num_rows + row) + added)
        n += outs
