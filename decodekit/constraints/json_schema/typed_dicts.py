"""`typing.TypedDict` before Python 3.12, where Pydantic reads that of `typing_extensions` alone.

class Point(typing.TypedDict):          Point as typing_extensions makes it: the same fields, the same ones required
    x: int
    label: NotRequired[str]
"""

from __future__ import annotations

import sys
import typing
from functools import reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required

import typing_extensions


def readable(form: Any) -> Any:
    """A type or typing form, in which the classes of `typing.TypedDict` are those that Pydantic can read."""
    return form if sys.version_info >= (3, 12) else _rebuilt(form, {})


def _rebuilt(form: Any, made: dict[Any, Any]) -> Any:
    """`made` is what has been made of classes so far: they may hold themselves."""
    origin, inside = typing.get_origin(form), typing.get_args(form)
    if typing.is_typeddict(form) and type(form).__module__ == "typing":
        return made[form] if form in made else _typed_dict(form, made)
    if origin is None or origin is Literal:
        return form
    if origin is Annotated:
        return Annotated[(_rebuilt(inside[0], made), *inside[1:])]
    parts = tuple([_rebuilt(one, made) for one in inside])
    if parts == inside:
        return form
    if origin in (UnionType, typing.Union):
        return reduce(or_, parts)
    return origin[parts] if isinstance(form, GenericAlias) else form.copy_with(parts)


def _typed_dict(form: Any, made: dict[Any, Any]) -> Any:
    make: Any = typing_extensions.TypedDict
    same = made[form] = make(form.__name__, {})
    hints = typing.get_type_hints(form, include_extras=True)
    bare = {name: _bare(hint) for name, hint in hints.items()}
    kinds: dict[str, Any] = {name: Required if name in form.__required_keys__ else NotRequired for name in hints}
    same.__annotations__ = {name: kinds[name][_rebuilt(hint, made)] for name, hint in bare.items()}
    for name in ("__required_keys__", "__optional_keys__", "__doc__", "__module__", "__qualname__"):
        setattr(same, name, getattr(form, name))
    return same


def _bare(hint: Any) -> Any:
    """A hint without `Required` and `NotRequired`."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) in (Required, NotRequired) else hint
