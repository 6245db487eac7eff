"""The library of grammars that ships with decodekit: files by name.

A file is ``name.lark``, ``name.gbnf``, ``name.regex`` or ``name.schema.json``, and beside it lies
``name.examples.json``: ``{"accepts": [...], "rejects": [...]}``. A name belongs to one file. Nothing is parsed here.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import decodekit
from decodekit.errors import NameNotFoundError
from decodekit.plugins import near_or_first

Syntax: TypeAlias = Literal["lark", "gbnf", "regex", "schema"]

SUFFIXES: Final[dict[str, Syntax]] = {".lark": "lark", ".gbnf": "gbnf", ".regex": "regex", ".schema.json": "schema"}
"""The kinds of files, by how their names end."""

_PACKAGE: Final = Path(decodekit.__file__).parent


def names() -> tuple[str, ...]:
    """The names of all grammars, without suffix, sorted."""
    return tuple(_paths())


def path_of(name: str) -> Path:
    """The file of the grammar with a name, which may have the suffix of its file: ``"sql"`` or ``"sql.lark"``.

    Raises:
        NameNotFoundError: there is no such grammar; with the nearest names.
    """
    path = _paths().get(_without_suffix(name))
    if path is None or name not in (path.name, _without_suffix(path.name)):
        hint = near_or_first(_without_suffix(name), names())
        raise NameNotFoundError(f"the library has no grammar {name!r}", hint=hint)
    return path


def _without_suffix(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


@lru_cache(maxsize=1)
def _paths() -> MappingProxyType[str, Path]:
    # A wheel holds the folder inside the package, a checkout beside it.
    folder = _PACKAGE / "grammars" if (_PACKAGE / "grammars").is_dir() else _PACKAGE.parent / "grammars"
    files = [path for path in folder.iterdir() if path.name.endswith(tuple(SUFFIXES))] if folder.is_dir() else []
    return MappingProxyType(dict(sorted((_without_suffix(path.name), path) for path in files)))
