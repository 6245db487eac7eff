"""Compiled functions: machine code of numba is kept on disk until something that it was made of has changed.

The code lies where numba puts it: in ``__pycache__`` beside the source, or in the user's cache folder, or in
``NUMBA_CACHE_DIR``. Where none of them can be written, each process compiles for itself.

Example: ``outputs`` calls ``pack`` of another file, which is copied into its code together with the constants of both.
numba notices that the file of a function has changed, and no other. After an upgrade that changes ``pack`` alone, code
of the old one would run beside that of the new one, on arrays of other sizes. So code is kept with a digest of all that
it was made of (`origin`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from enum import EnumType
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.runtime import rtsys

from decodekit.first_use import AnnouncedCache

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Cache = Callable[[Any], FunctionCache]


class KeptCode(FunctionCache):  # type: ignore[misc]
    """A cache of numba that is out of date once anything that the function is made of has changed."""

    _is_stamped = False

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled code, or None. It is asked for before code is kept, and after the module is there as a whole."""
        self._stamp()
        return super().load_overload(signature, target)

    def _stamp(self) -> None:
        if not self._is_stamped:
            self._cache_file._source_stamp = self._cache_file._source_stamp, origin(self._py_func)
            self._is_stamped = True


class QuickCode(KeptCode):
    """The same, which does not get the compiler ready before it loads.

    numba imports and registers everything that it could compile before it looks on disk (``target.refresh()``), which
    takes longer than all the rest of a first mask. Loading machine code needs none of that.
    """

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled code, or None."""
        if not hasattr(self, "_load_overload"):  # a numba that is made otherwise: slower, but right
            return super().load_overload(signature, target)
        self._stamp()
        rtsys.initialize(target)  # what compiled code calls to count references to arrays
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)


def origin(function: Any) -> str:
    """A digest of the files of all functions that come into the code of one, and of the constants that they name."""
    files, constants, seen, todo = set(), set(), {function}, [function]
    while todo:
        one = todo.pop()
        files.add(one.__code__.co_filename)
        for name, value in _named(one):
            found = _function_of(value)
            if isinstance(value, (int, float, str, np.generic)):
                constants.add(f"{one.__module__} {name} {value!r}")
            elif isinstance(value, EnumType):
                constants.add(f"{one.__module__} {name} {list(value)!r}")
            elif isinstance(value, np.ndarray):
                constants.add(f"{one.__module__} {name} {hashlib.sha256(value.tobytes()).hexdigest()}")
            elif found is not None and found not in seen:
                seen.add(found)
                todo.append(found)
    digests = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(files)]
    return hashlib.sha256("\n".join([*digests, *sorted(constants)]).encode()).hexdigest()


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a function's closure, and of globals in its code and in that of functions inside it."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    named = [*zip(function.__code__.co_freevars, cells, strict=True)]
    codes: list[CodeType] = [function.__code__]
    for code in codes:
        codes += (one for one in code.co_consts if isinstance(one, CodeType))
        named += ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for name, value in named:
        for number, one in enumerate(value if isinstance(value, tuple) else [value]):
            yield f"{name} {number}", one


def _function_of(value: Any) -> Any:
    """The Python function of a compiled function, of an intrinsic, or of a function that writes code for one."""
    if isinstance(value, Dispatcher):
        return value.py_func
    if isinstance(value, _Intrinsic):
        return value._defn
    return value if isinstance(value, FunctionType) and value.__module__.startswith("decodekit.") else None


def kept(function: _Function, cache: _Cache = KeptCode, **options: Any) -> _Function:
    """The function, compiled on its first call for the types of its arguments without the interpreter's lock, and kept.

    A long wait is announced, see `first_use`.

    Args:
        function: what to compile.
        cache: where its code is kept.
        options: those of ``numba.njit``.
    """
    dispatcher: Any = numba.njit(nogil=True, **options)(function)
    dispatcher._cache = announced(function, cache)
    found: _Function = dispatcher
    return found


def announced(function: Callable[..., Any], cache: _Cache = KeptCode) -> AnnouncedCache:
    """The cache of a function; one that keeps nothing where no folder can be written."""
    try:
        return AnnouncedCache(cache(function))
    except RuntimeError:
        return AnnouncedCache(None)


compiled = functools.partial(kept, error_model="numpy")
"""`kept`, where a division by zero is an infinity."""

# Kernels make no arrays, so nothing counts the references to them (`_nrt`): counts at every array that a part is given
# made runs five times as slow. Nobody calls kernels from C, or parts from Python: half of the compiling is saved.

kernel = functools.partial(kept, cache=QuickCode, _nrt=False, no_cfunc_wrapper=True)
"""`kept`, for functions that make no arrays."""


def part(function: _Function) -> _Function:
    """The function as a part of kernels, into which it is copied: no arrays are handed over at run time."""
    inlined: _Function = numba.njit(
        nogil=True, _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return inlined
