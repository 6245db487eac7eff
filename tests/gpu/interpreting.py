"""Modules of programs that Triton's interpreter runs on the host, beside the ones that are compiled.

What the interpreter does otherwise, and what it costs: bfloat16 is stored as integers and multiplied as such (programs
multiply float32 there), float32 to bfloat16 cuts off instead of rounding. Programs run one after the other, in order of
their numbers, so it shows no race between them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

with suppress(ImportError):
    import triton.experimental.gluon  # noqa: F401  the interpreter imports it, and it has to see the compiled parts


_NEW_EMPTY: Final = torch.Tensor.new_empty


def _unwritten(like: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
    """As `Tensor.new_empty`, without what the memory held before: that may be what a twin has just computed."""
    found = _NEW_EMPTY(like, *size, **options)
    return found.fill_(torch.nan if found.dtype.is_floating_point else 77)


@cache
def interpreted(name: str) -> ModuleType:
    """A second copy of a module, whose programs are interpreted."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
    return module


@contextmanager
def interpreter() -> Iterator[None]:
    """In here interpreted programs run: Triton's own parts, such as `tl.sum`, are interpreted, too.

    Running a program replaces names of Triton's language, and leaves some of them replaced, so that nothing could be
    compiled behind it; afterwards all are as they were. Memory that nobody has written holds no number of use.
    """
    places: list[Any] = [module for name, module in sys.modules.items() if name.startswith("triton.language")]
    places += {kind for module in places for kind in vars(module).values() if isinstance(kind, type)}
    before = [(place, dict(vars(place))) for place in places]
    for module in (tl, tl.standard):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, name, InterpretedFunction(value.fn))
    try:
        with patch.object(torch.Tensor, "new_empty", _unwritten):
            yield
    finally:
        for place, names in before:
            for name, value in names.items():
                if vars(place).get(name) is not value:
                    setattr(place, name, value)
