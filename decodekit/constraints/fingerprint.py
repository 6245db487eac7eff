"""The description of a constraint as a JSON value: written in `job.json`, and compared when a job goes on.

    described(dk.Guarded(Invoice, is_balanced))
    # {"Guarded": {"constraint": {"JsonSchema": {...}}, "function": {"function": "is_balanced", "code": "3fa2c1d0..."}}}

A schema is data and can be compared. A guard, or a class with validators, is a program: it is told by its name and a
digest of its source, that of the functions and classes that it names in its own file and in others of the user's, and
the plain values that it reads. What it reads from files, or from installed packages, is not seen.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import math
import re
import sys
import sysconfig
import textwrap
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from decodekit.constraints.json_schema.python_types import is_adapter
from decodekit.records.fingerprints import digest

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_PLAIN: Final = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)


def described(value: object) -> Any:
    """The JSON value of a constraint, or of an argument of one. Equal constraints have equal ones."""
    from decodekit.constraints.json_schema import JsonSchema

    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((described(item) for item in value), key=repr)
    if isinstance(value, JsonSchema):
        more = {"registry": digest(value.registry, length=16)} if value.registry else {}
        return {"JsonSchema": {"schema": value.schema, "type": described(value.python_type), **value.options, **more}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: {one.name: described(getattr(value, one.name)) for one in _told(value)}}
    if isinstance(value, type):
        return {"type": _name(value), "code": code_digest(value)}
    if callable(value):
        return {"function": _name(value), "code": code_digest(value)}
    return {type(value).__name__: without_address(value)}


def code_digest(thing: object) -> str:
    """16 hexadecimal digits over the program that a function, a class or another callable is; see the module.

    Comments and line breaks do not count.
    """
    parts: dict[str, str] = {}
    _collect(thing, getattr(thing, "__module__", None), parts)
    return digest(sorted(parts.items()), length=16)


def _collect(thing: object, module: str | None, parts: dict[str, str], place: str = "") -> None:
    """Add the source of a callable of a module to `parts` under its name, and that of what it names.

    `place` stands before the name of what is in another module than the first thing.
    """
    name = place + _name(thing)
    if name in parts:
        return
    if not inspect.isroutine(thing) and not isinstance(thing, type):  # an object that can be called: a partial, say
        parts[name] = without_address(thing)
        used = {"": type(thing), "func": getattr(thing, "func", None)}
        used |= _parts_of_form(thing) if is_adapter(thing) else getattr(thing, "__dict__", {})
    else:
        parts[name] = source = _source(thing)
        space = vars(sys.modules.get(module or "", object))
        named = set(_WORD.findall(source)) & space.keys()
        used = {one: space[one] for one in sorted(named)} | _enclosed(thing)
    for one, value in used.items():
        if isinstance(value, _PLAIN):
            plain = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            parts[f"{name}: {one}"] = without_address(plain)
        elif isinstance(value, ModuleType):
            if _is_own(value):
                parts[f"module {value.__name__}"] = _of_file(value)
        elif callable(value):
            theirs = getattr(value, "__module__", None)
            if theirs == module:
                _collect(value, module, parts, place)
            elif _is_own(sys.modules.get(theirs or "")):
                _collect(value, theirs, parts, f"{theirs}.")


def _parts_of_form(adapter: object) -> dict[str, object]:
    """The type of a Pydantic adapter such as ``list[Item]``, with the classes and values in it, by their place."""
    parts = [getattr(adapter, "_type", None)]
    for part in parts:  # grows while it is read
        parts += typing.get_args(part)
    return {f"[{place}]": part for place, part in enumerate(parts)}


def _is_own(module: ModuleType | None) -> bool:
    """Whether a module is a file of the user's: neither of Python nor of an installed package."""
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, "__name__", "").partition(".")[0] == "decodekit":
        return False
    installed = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in installed)


def _of_file(module: ModuleType) -> str:
    """The program that a module is. Which of its parts are used is not asked."""
    try:
        return ast.unparse(ast.parse(Path(module.__file__ or "").read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return module.__name__


def _enclosed(thing: object) -> dict[str, object]:
    """The values that a function reads from the one around it, by name."""
    code, cells = getattr(thing, "__code__", None), getattr(thing, "__closure__", None) or ()
    found = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        with suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found


def _source(thing: object) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(thing))  # type: ignore[arg-type]
    except (OSError, TypeError):  # made by `exec`, or not in Python
        code = getattr(thing, "__code__", None)
        return without_address(_of_code(code)) if isinstance(code, CodeType) else without_address(thing)
    try:
        return ast.unparse(ast.parse(source))
    except SyntaxError:  # a lambda in the middle of an expression
        return " ".join(source.split())


def _of_code(code: CodeType) -> list[object]:
    constants = [_of_code(one) if isinstance(one, CodeType) else without_address(one) for one in code.co_consts]
    return [hashlib.sha256(code.co_code).hexdigest(), constants, *code.co_names]


def _told(value: Any) -> Iterator[dataclasses.Field[Any]]:
    """The fields that say what a value is; one that only serves may be left out by its metadata."""
    fields = dataclasses.fields(value)
    return (one for one in fields if hasattr(value, one.name) and one.metadata.get("is_told", True))


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)


def without_address(value: object) -> str:
    """A value as it is printed, without where it is in memory."""
    return _ADDRESS.sub("", repr(value))
