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
from decodekit.constraints.bitmask import allocate_bitmask, bitmask_from_ids, ids_from_bitmask
from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.guarded import Guard, Guarded, Refusal
from decodekit.constraints.constraint import Constraint, as_constraint
from decodekit.constraints.explain.explanation import Explanation
from decodekit.constraints.matching.batches import fill_bitmasks
from decodekit.constraints.matching.compiler import CompiledGrammar, compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.memory import memory_in_use, memory_limit, set_memory_limit

if TYPE_CHECKING:
    from decodekit.constraints.composition import Concat as Concat
    from decodekit.constraints.composition import Many as Many
    from decodekit.constraints.composition import OneOf as OneOf
    from decodekit.constraints.composition import Optional as Optional
    from decodekit.constraints.composition import Reasoned as Reasoned
    from decodekit.constraints.composition import Special as Special
    from decodekit.constraints.composition import Tag as Tag
    from decodekit.constraints.composition import Tagged as Tagged
    from decodekit.constraints.composition import TagValue as TagValue
    from decodekit.constraints.composition import Text as Text
    from decodekit.constraints.grammar import Grammar as Grammar
    from decodekit.constraints.json_schema import JsonSchema as JsonSchema
    from decodekit.constraints.json_schema import check as check
    from decodekit.constraints.regex.regex import Regex as Regex
    from decodekit.constraints.tool_calls import ToolCall as ToolCall
    from decodekit.constraints.tool_calls import ToolResponse as ToolResponse
    from decodekit.constraints.tool_calls import Tools as Tools
    from decodekit.constraints.tool_calls import tools as tools

__all__ = [
    "Choices",
    "CompiledGrammar",
    "Concat",
    "Constraint",
    "Explanation",
    "Grammar",
    "Guard",
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
    "Concat": "decodekit.constraints.composition",
    "Many": "decodekit.constraints.composition",
    "OneOf": "decodekit.constraints.composition",
    "Optional": "decodekit.constraints.composition",
    "Reasoned": "decodekit.constraints.composition",
    "Special": "decodekit.constraints.composition",
    "Tag": "decodekit.constraints.composition",
    "TagValue": "decodekit.constraints.composition",
    "Tagged": "decodekit.constraints.composition",
    "Text": "decodekit.constraints.composition",
    "ToolCall": "decodekit.constraints.tool_calls",
    "ToolResponse": "decodekit.constraints.tool_calls",
    "Tools": "decodekit.constraints.tool_calls",
    "tools": "decodekit.constraints.tool_calls",
    "Grammar": "decodekit.constraints.grammar",
    "JsonSchema": "decodekit.constraints.json_schema",
    "check": "decodekit.constraints.json_schema",
    "Regex": "decodekit.constraints.regex.regex",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'decodekit.constraints' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
