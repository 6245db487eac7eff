"""JSON Schema as a constraint: drafts 4 to 2020-12, enforced byte by byte."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from decodekit.constraints.json_schema.schema import JsonSchema
from decodekit.constraints.json_schema.strings import common as common

if TYPE_CHECKING:
    from decodekit.constraints.author.coverage import Coverage as Coverage
    from decodekit.constraints.author.coverage import KeywordCoverage as KeywordCoverage
    from decodekit.constraints.author.coverage import check as check

__all__ = ["Coverage", "JsonSchema", "KeywordCoverage", "check"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'decodekit.constraints.json_schema' has no attribute {name!r}")
    value = getattr(importlib.import_module("decodekit.constraints.author.coverage"), name)
    globals()[name] = value
    return value
