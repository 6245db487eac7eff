"""Constraints: which texts are allowed, and for every text so far, which tokens may follow.

    grammar = compile(Choices(["yes", "no"]), tokenizer)
    matcher = grammar.matcher()
    matcher.fill_bitmask(bitmask)       # what may come next
    matcher.accept(token)               # what came

Front ends (`Regex`, `Choices`, `JsonSchema`, compositions of them, `tools`) describe a text as frames over regular
languages of bytes; one engine turns these into token masks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from decodekit.constraints.author.members import complete, explain, sample_text, sample_texts
from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.constraint import Constraint, EarlyGuard, Guard, GuardReader, Refusal, TextReader
from decodekit.constraints.engine.bitmask import allocate_bitmask, bitmask_from_ids, ids_from_bitmask
from decodekit.constraints.explain.explanation import Explanation
from decodekit.constraints.matching.compiler import CompiledGrammar, compile
from decodekit.constraints.matching.matcher import Matcher, fill_bitmasks
from decodekit.constraints.memory_account import memory_in_use, memory_limit, set_memory_limit
from decodekit.constraints.request_formats import as_constraint

if TYPE_CHECKING:
    from decodekit.constraints.author.coverage import check
    from decodekit.constraints.composition.combinators import Concat, Many, OneOf, Optional, Text
    from decodekit.constraints.composition.composed import Special
    from decodekit.constraints.composition.tags import Reasoned, Tag, Tagged, TagValue
    from decodekit.constraints.grammar import Grammar
    from decodekit.constraints.json_schema import JsonSchema
    from decodekit.constraints.regex.regex import Regex
    from decodekit.constraints.tool_calls import ToolCall, ToolResponse, Tools, tools

__all__ = [
    "Choices",
    "CompiledGrammar",
    "Concat",
    "Constraint",
    "EarlyGuard",
    "Explanation",
    "Grammar",
    "Guard",
    "GuardReader",
    "Guarded",
    "JsonSchema",
    "Many",
    "Matcher",
    "OneOf",
    "Optional",
    "Reasoned",
    "Refusal",
    "Regex",
    "Special",
    "Tag",
    "TagValue",
    "Tagged",
    "Text",
    "TextReader",
    "ToolCall",
    "ToolResponse",
    "Tools",
    "allocate_bitmask",
    "as_constraint",
    "bitmask_from_ids",
    "check",
    "compile",
    "complete",
    "explain",
    "fill_bitmasks",
    "ids_from_bitmask",
    "memory_in_use",
    "memory_limit",
    "sample_text",
    "sample_texts",
    "set_memory_limit",
    "tools",
]

# Loaded when asked for: they bring parsers and validators along.
_LAZY = {
    "author.coverage": "check",
    "composition.combinators": "Concat Many OneOf Optional Text",
    "composition.composed": "Special",
    "composition.tags": "Reasoned Tag TagValue Tagged",
    "grammar": "Grammar",
    "json_schema": "JsonSchema",
    "regex.regex": "Regex",
    "tool_calls": "ToolCall ToolResponse Tools tools",
}
_HOME = {name: f"decodekit.constraints.{module}" for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'decodekit.constraints' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
