"""The sources of the package, read and parsed once for all tests that look at them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Final

import decodekit

PACKAGE: Final = Path(decodekit.__file__).parent
SOURCES: Final = {
    str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))
}
"""By the path of the file in the package."""


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source, which nobody may change."""
    return ast.parse(source)


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of the tree of a source."""
    return tuple(ast.walk(parsed(source)))
