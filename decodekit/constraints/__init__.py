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
from decodekit.constraints.wire import as_constraint

if TYPE_CHECKING:
    from decodekit.constraints.author.coverage import check as check
    from decodekit.constraints.composition.combinators import Concat as Concat
    from decodekit.constraints.composition.combinators import Many as Many
    from decodekit.constraints.composition.combinators import OneOf as OneOf
    from decodekit.constraints.composition.combinators import Optional as Optional
    from decodekit.constraints.composition.combinators import Text as Text
    from decodekit.constraints.composition.composed import Special as Special
    from decodekit.constraints.composition.tags import Reasoned as Reasoned
    from decodekit.constraints.composition.tags import Tag as Tag
    from decodekit.constraints.composition.tags import Tagged as Tagged
    from decodekit.constraints.composition.tags import TagValue as TagValue
    from decodekit.constraints.grammar import Grammar as Grammar
    from decodekit.constraints.json_schema import JsonSchema as JsonSchema
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
    "Concat": "decodekit.constraints.composition.combinators",
    "Many": "decodekit.constraints.composition.combinators",
    "OneOf": "decodekit.constraints.composition.combinators",
    "Optional": "decodekit.constraints.composition.combinators",
    "Reasoned": "decodekit.constraints.composition.tags",
    "Special": "decodekit.constraints.composition.composed",
    "Tag": "decodekit.constraints.composition.tags",
    "TagValue": "decodekit.constraints.composition.tags",
    "Tagged": "decodekit.constraints.composition.tags",
    "Text": "decodekit.constraints.composition.combinators",
    "ToolCall": "decodekit.constraints.tool_calls",
    "ToolResponse": "decodekit.constraints.tool_calls",
    "Tools": "decodekit.constraints.tool_calls",
    "tools": "decodekit.constraints.tool_calls",
    "Grammar": "decodekit.constraints.grammar",
    "JsonSchema": "decodekit.constraints.json_schema",
    "check": "decodekit.constraints.author.coverage",
    "Regex": "decodekit.constraints.regex.regex",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'decodekit.constraints' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
