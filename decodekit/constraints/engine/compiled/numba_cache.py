"""Compiled functions: machine code that numba made in an earlier process is loaded without starting its compiler.

numba keeps compiled code on disk, but before it looks there it imports and registers everything that it could compile,
which takes longer than all the rest of a first mask. Loading machine code needs none of that. Whatever is not found on
disk is compiled as usual. The code lies where numba puts it: in ``__pycache__`` beside the source, or in the user's
cache folder, or in ``NUMBA_CACHE_DIR``. Where none of them can be written, each process compiles for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

from decodekit.first_use import AnnouncedCache

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _QuickCache(FunctionCache):  # type: ignore[misc]
    """A cache of numba that does not get the compiler ready before it loads."""

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled code, or None. numba's own method calls ``target.refresh()`` first, which is the slow part."""
        if not hasattr(self, "_load_overload"):  # a numba that is made otherwise: slower, but right
            return super().load_overload(signature, target)
        rtsys.initialize(target)  # what compiled code calls to count references to arrays
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)


# Kernels make no arrays, so nothing counts the references to them (`_nrt`): counts at every array that a part is given
# made runs five times as slow. Nobody calls kernels from C, or parts from Python: half of the compiling is saved.


def part(function: _Function) -> _Function:
    """The function as a part of compiled ones, into which it is copied: no arrays are handed over at run time."""
    inlined: _Function = numba.njit(
        nogil=True, _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return inlined


def compiled(function: _Function) -> _Function:
    """The function, compiled on its first call for the types of its arguments, and kept on disk."""
    dispatcher: Any = numba.njit(nogil=True, _nrt=False, no_cfunc_wrapper=True)(function)
    try:
        dispatcher._cache = AnnouncedCache(_QuickCache(function))
    except RuntimeError:  # no folder can be written
        dispatcher._cache = AnnouncedCache(None)
    kernel: _Function = dispatcher
    return kernel
