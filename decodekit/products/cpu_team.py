"""Threads that work together with the thread that asks them to: parked in compiled code, without Python.

Example: a team of two for a product of 8,192 outputs, in chunks of 48. The asking thread writes the job, counts the
round up and wakes the helper; both take chunks from one counter until none is left:

    asking thread   job written, round 7    0 to 48    96 to 144   ...   waits until the helper has left round 7
    helper          sleeps                  48 to 96   144 to 192  ...   looks for round 8 for a while, then sleeps

A job is any function of `Callback` that does some of its units, and the place of what it is given: a product of which
a unit is an output, or attention (`step_code`).

A helper that has nothing to do looks at the round for some 50 µs, since the next product of a step follows at once,
and then sleeps in the kernel (a futex) until it is woken. It never holds the interpreter's lock. A job that is
asked for while the team is busy with another thread's is done by the asking thread alone; its numbers are the same.

On Linux alone; elsewhere there is a team of one.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any, Final

import numpy as np
import torch
from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from torch import Tensor

from decodekit.products.cpu_products import (
    GROUP,
    IS_WIDE,
    KIND_OF,
    KINDS,
    LANES,
    MARKS,
    ROOM,
    SINGLE,
    SIZES,
    WEIGHTS,
    Callback,
    called,
    outputs,
    pack,
)  # fmt: skip
from decodekit.records.compiled_code import compiled

# Places of the state, int64; what several threads write has a line of the cache (8 numbers) for itself.
_BUSY: Final = 0  # 1 while a thread has the team
_ROUND: Final = 8  # counts jobs; its lower half is the word that helpers sleep on
_SLEEPERS: Final = 16
_NEXT: Final = 24  # the first unit that nobody has taken
_INSIDE: Final = 32  # helpers that have entered a round and not left it
_JOB: Final = 40  # where the asking thread has it
_END: Final = 48
_THREADS: Final = 49  # with the one that asks

_LOOKS: Final = 4000  # so often a helper looks at the round before it sleeps: some 50 µs
_CHUNK_BYTES: Final = 1 << 16  # least that a thread reads before it looks for more
_LARGE_CHUNK: Final = _CHUNK_BYTES if IS_WIDE else 1 << 18  # most: what a stream fetches behind it is another thread's
_WORTHWHILE_BYTES: Final = 1 << 17  # what is smaller is read before a helper has come
_SYSCALLS: Final = {"x86_64": 202, "aarch64": 98}
_WAIT: Final = 128  # FUTEX_WAIT | FUTEX_PRIVATE_FLAG
_WAKE: Final = 129

_INT: Final = ir.IntType(64)
_WORD: Final = ir.IntType(32)


def code_of(emit: Any, result: Any, num_arguments: int) -> Any:
    """A function of compiled code that takes int64 and is written by `emit(builder, arguments)`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = emit(builder, *arguments)
        return context.get_dummy_value() if result is types.void else value

    told = result(*[types.int64] * num_arguments), code
    takes = lambda typing: told, lambda typing, a: told, lambda typing, a, b: told, lambda typing, a, b, c: told
    return intrinsic(takes[num_arguments])


def _at(b: Any, address: Any) -> Any:
    return b.inttoptr(address, _INT.as_pointer())


def _paused(b: Any) -> Any:
    if os.uname().machine == "x86_64":
        return called(b, "llvm.x86.sse2.pause", ir.VoidType())
    return called(b, "llvm.aarch64.hint", ir.VoidType(), _WORD(1))


def _futex(b: Any, address: Any, operation: Any, value: Any) -> Any:
    number = _INT(_SYSCALLS.get(os.uname().machine, 0))
    form = ir.FunctionType(_INT, [_INT], var_arg=True)
    call = b.module.globals.get("syscall") or ir.Function(b.module, form, "syscall")
    return b.call(call, [number, address, operation, value, _INT(0), _INT(0), _INT(0)])


_load: Final = code_of(lambda b, at: b.load_atomic(_at(b, at), "seq_cst", 8), types.int64, 1)
_store: Final = code_of(lambda b, at, value: b.store_atomic(value, _at(b, at), "seq_cst", 8), types.void, 2)
_add: Final = code_of(lambda b, at, value: b.atomic_rmw("add", _at(b, at), value, "seq_cst"), types.int64, 2)
_swap: Final = code_of(lambda b, at, value: b.atomic_rmw("xchg", _at(b, at), value, "seq_cst"), types.int64, 2)
_pause: Final = code_of(_paused, types.void, 0)
_give_way: Final = code_of(lambda b: called(b, "sched_yield", _INT), types.int64, 0)
_sleep_or_wake: Final = code_of(_futex, types.int64, 3)


@compiled
def _place(state: int, index: int) -> int:
    return state + 8 * index


def lending(form: Any) -> tuple[Any, Any]:
    """Two functions of compiled code for a type: the place of a value while its function runs, and the value there."""

    @intrinsic  # type: ignore[untyped-decorator]
    def place(typing: Any, value: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            return b.ptrtoint(cgutils.alloca_once_value(b, arguments[0]), _INT)

        return types.int64(form), code

    @intrinsic  # type: ignore[untyped-decorator]
    def value(typing: Any, place: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            found = b.load(b.inttoptr(arguments[0], context.get_value_type(form).as_pointer()))
            return impl_ret_borrowed(context, b, form, found)

        return form(types.int64), code

    return place, value


# Addresses of a function and of what it is given, the number of units, and of those of a chunk.
_lend_job, _lent_job = lending(types.UniTuple(types.int64, 4))
# Addresses of packed rows, weights, bias and results; rows, outputs, width.
_lend_product, _lent_product = lending(types.UniTuple(types.int64, 7))


def _maker(mark: Any, result: Any) -> Callback:
    size = SIZES[KIND_OF[typeof(mark)]]

    def make(given: int, totals: int, first: int, last: int) -> None:
        packed, weight, bias, out, rows, outs, width = _lent_product(given)
        outputs(mark, result, size, packed, weight, bias, out, totals, rows, outs, width, first, last)

    return Callback(make)


MAKERS: Final = (*(_maker(mark, mark) for mark in MARKS.values()), _maker(np.int8(0), SINGLE))
"""For each of the types in `WEIGHTS`, the function that makes some outputs of a product."""


@intrinsic  # type: ignore[untyped-decorator]
def do(typing: Any, function: Any, given: Any, totals: Any, first: Any, last: Any) -> Any:
    """The units from `first` to `last` of a job, done by its function, which has room at `totals`."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        form = ir.FunctionType(ir.VoidType(), [_INT] * 4)
        b.call(b.inttoptr(arguments[0], form.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), code


@compiled
def _take_chunks(state: int, totals: int) -> None:
    """Do chunks of the job until none is left."""
    function, given, num_units, chunk = _lent_job(_load(_place(state, _JOB)))
    while True:
        first = _add(_place(state, _NEXT), chunk)
        if first >= num_units:
            return
        do(function, given, totals, first, min(first + chunk, num_units))


@compiled
def _help(state: int, totals: int) -> None:
    """The life of a helper: it waits for a round that is open (an odd number), and takes chunks of its job."""
    seen = _load(_place(state, _ROUND))
    while True:
        looks = 0
        while _load(_place(state, _ROUND)) == seen or _load(_place(state, _ROUND)) % 2 == 0:
            if _load(_place(state, _END)) != 0:
                return
            looks += 1
            _pause()
            if looks > _LOOKS:
                now = _load(_place(state, _ROUND))
                if now == seen or now % 2 == 0:
                    _add(_place(state, _SLEEPERS), 1)
                    if _load(_place(state, _END)) == 0:
                        _sleep_or_wake(_place(state, _ROUND), _WAIT, now)
                    _add(_place(state, _SLEEPERS), -1)
                looks = 0
        seen = _load(_place(state, _ROUND))
        # Whoever asks waits for those who have entered; one who comes when the round is closed goes away again.
        _add(_place(state, _INSIDE), 1)
        if seen % 2 == 1 and _load(_place(state, _ROUND)) == seen:
            _take_chunks(state, totals)
        _add(_place(state, _INSIDE), -1)


@compiled
def ask(state: int, function: int, given: int, num_units: int, chunk: int, totals: int) -> bool:
    """Do a job with the team; False, with nothing done, if another thread has it."""
    if _swap(_place(state, _BUSY), 1) == 1:
        return False
    _store(_place(state, _JOB), _lend_job((function, given, num_units, chunk)))
    _store(_place(state, _NEXT), 0)
    _add(_place(state, _ROUND), 1)
    if _load(_place(state, _SLEEPERS)) > 0:
        _sleep_or_wake(_place(state, _ROUND), _WAKE, 1 << 30)
    _take_chunks(state, totals)
    _add(_place(state, _ROUND), 1)
    looks = 0
    while _load(_place(state, _INSIDE)) > 0:
        _pause()
        looks += 1
        if looks > _LOOKS:
            _give_way()
            looks = 0
    _store(_place(state, _BUSY), 0)
    return True


@compiled
def product(
    state: int, make: int, kind: int, size: int, x: int, weight: int, bias: int, out: int, room: int,
    rows: int, outs: int, width: int,
) -> None:  # fmt: skip
    """Products of rows [R, K] with weights [N, K], by their addresses; with the team whose state is not 0.

    `make` is the address of their `MAKERS`, `kind` the type of x, `size` the bytes of a weight.
    """
    packed = room + 4 * ROOM
    if kind == 0:
        pack(np.float32(0), x, packed, rows, width, False)
    elif kind == 1:
        pack(np.uint16(0), x, packed, rows, width, size == 2 and not IS_WIDE)
    else:
        pack(np.int16(0), x, packed, rows, width, False)
    chunk_bytes = max(_CHUNK_BYTES, min(_LARGE_CHUNK, outs * width * size // 8))
    chunk = max(1, chunk_bytes // (width * size * GROUP)) * GROUP
    given = _lend_product((packed, weight, bias, out, rows, outs, width))
    if state == 0 or outs * width * size < _WORTHWHILE_BYTES or not ask(state, make, given, outs, chunk, room):
        do(make, given, room, 0, outs)


@compiled
def threads_of(state: int) -> int:
    """The threads of a team, with the one that asks."""
    return 1 if state == 0 else _load(_place(state, _THREADS))


@compiled
def _end(state: int) -> None:
    """Wake all helpers, for good."""
    _store(_place(state, _END), 1)
    _sleep_or_wake(_place(state, _ROUND), _WAKE, 1 << 30)


class Team:
    """Helpers of a process and their state; see the head of the module."""

    def __init__(self, num_helpers: int) -> None:
        self._memory = np.zeros(_END + 16 + num_helpers * ROOM, np.int64)
        start = int(self._memory.ctypes.data)
        self.state = start + -start % 64
        self._memory[(self.state - start) // 8 + _THREADS] = num_helpers + 1
        self._threads = []
        for i in range(num_helpers):
            totals = self.state + 8 * (_END + 8 + i * ROOM)
            thread = threading.Thread(target=_help, args=(self.state, totals), name="decodekit-products", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """End the helpers."""
        _end(self.state)
        for thread in self._threads:
            thread.join()


def team_state() -> int:
    """The state of the team of the current thread; 0 if it works alone."""
    threads = torch.get_num_threads()
    return 0 if threads == 1 or not _HAS_HELPERS else _team(threads - 1).state


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Products [..., N] of rows [..., K] with weights [N, K] and a bias [N], all contiguous and of one type of `KINDS`.

    Or of int8 weights: then bias and products are float32. They are made by as many threads as torch has, and are the
    same for any number of them.
    """
    num_outs, width = weight.shape
    num_rows = x.numel() // width
    out = torch.empty((*x.shape[:-1], num_outs), dtype=torch.float32 if weight.dtype is torch.int8 else x.dtype)
    needed = ROOM + num_rows * (width + LANES)
    room: Tensor | None = getattr(_local, "room", None)
    if room is None or len(room) < needed:
        room = _local.room = torch.empty(needed)
    product(
        team_state(), MAKERS[WEIGHTS[weight.dtype]].address, KINDS[x.dtype], weight.element_size(), x.data_ptr(),
        weight.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(), room.data_ptr(),
        num_rows, num_outs, width,
    )  # fmt: skip
    return out


_HAS_HELPERS: Final = sys.platform == "linux" and os.uname().machine in _SYSCALLS
_local: Final = threading.local()
_teams: Final[dict[int, Team]] = {}
_lock: Final = threading.Lock()


def _team(num_helpers: int) -> Team:
    """The team of the process with so many helpers. It stays, as threads may differ in how many they ask for."""
    if num_helpers not in _teams:
        with _lock:
            if num_helpers not in _teams:
                _teams[num_helpers] = Team(num_helpers)
    return _teams[num_helpers]


@atexit.register
def _close() -> None:
    for team in _teams.values():
        team.close()
    _teams.clear()


os.register_at_fork(after_in_child=_teams.clear)  # a fork has no threads but the one that forked
