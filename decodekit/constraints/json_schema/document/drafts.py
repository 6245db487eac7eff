"""The drafts of JSON Schema: which keywords each has, what their values must look like, what we do with them.

Sources: draft-04 (Zyp, 2013), draft-06 and draft-07 (Wright, Andrews, 2017-2018), 2019-09 and 2020-12 (Wright, Andrews,
Hutton, Dennis).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, TypeAlias

JsonValue: TypeAlias = object
"""A value as `json.loads` returns it."""


class SchemaDraft(enum.IntEnum):
    """A draft, ordered by age."""

    DRAFT4 = 4
    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020

    @property
    def label(self) -> str:
        """The name people use."""
        return {2019: "draft 2019-09", 2020: "draft 2020-12"}.get(self.value, f"draft {self.value}")


META_SCHEMAS: Final = {
    "http://json-schema.org/draft-04/schema": SchemaDraft.DRAFT4,
    "http://json-schema.org/draft-06/schema": SchemaDraft.DRAFT6,
    "http://json-schema.org/draft-07/schema": SchemaDraft.DRAFT7,
    "https://json-schema.org/draft/2019-09/schema": SchemaDraft.DRAFT2019,
    "https://json-schema.org/draft/2020-12/schema": SchemaDraft.DRAFT2020,
}


@dataclass(frozen=True)
class Dialect:
    """The dialect of a meta-schema: its draft, and the keywords of the vocabularies that it leaves out."""

    draft: SchemaDraft
    ignored: frozenset[str] = frozenset()


class Inner(enum.Enum):
    """Where the schemas inside a keyword's value are."""

    NONE = enum.auto()
    SELF = enum.auto()  # the value is a schema
    LIST = enum.auto()  # a list of schemas
    MAP = enum.auto()  # an object whose values are schemas
    SELF_OR_LIST = enum.auto()
    MAP_OR_NAMES = enum.auto()  # an object whose values are schemas or lists of names


Check: TypeAlias = Callable[[JsonValue], bool]


@dataclass(frozen=True)
class Keyword:
    """A keyword that some draft knows.

    Attributes:
        must_be: what its value must be, for the message; `check` decides.
        place: where its sub-schemas are.
        first, last: the drafts that know it.
        is_assertion: whether it takes part in what is valid; the others are annotations or only hold definitions.
        is_former: the drafts have dropped it: it is read for the sub-schemas in it only, which references may name.
        before, after: how the drafts before `first` say the same, and how those after `last`; empty if they cannot.
    """

    must_be: str
    check: Check
    place: Inner = Inner.NONE
    first: SchemaDraft = SchemaDraft.DRAFT4
    last: SchemaDraft = SchemaDraft.DRAFT2020
    is_assertion: bool = True
    is_former: bool = False
    before: str = ""
    after: str = ""


def is_number(value: JsonValue) -> bool:
    """A JSON number; true and false are none."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _is_count(value: JsonValue) -> bool:
    return is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_a(*types: type) -> Check:
    return lambda value: isinstance(value, types)


_is_schema, _is_map, _is_text, _is_boolean = _is_a(dict, bool), _is_a(dict), _is_a(str), _is_a(bool)
_is_anything = _is_a(object)


def _is_full_list(value: JsonValue) -> bool:
    return isinstance(value, list) and bool(value)


def is_names(value: JsonValue) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_names_map(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(map(is_names, value.values()))


TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is_type(value: JsonValue) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


_D4, _D6, _D7, _D19, _D20 = SchemaDraft
_SCHEMA: Final = "a schema: an object or a boolean"
_DEPENDENT: Final = '"dependentRequired" or "dependentSchemas"'


_text = partial(Keyword, "a string", _is_text)
_anything = partial(Keyword, "a value", _is_anything)
_count = partial(Keyword, "an integer that is not negative", _is_count)
_schema = partial(Keyword, _SCHEMA, _is_schema, Inner.SELF)
_schemas = partial(Keyword, "a list of schemas that is not empty", _is_full_list, Inner.LIST)
_schema_map = partial(Keyword, "an object of schemas", _is_map, Inner.MAP)

# A keyword may have several readings, each for its own drafts.
KEYWORDS: Final[dict[str, tuple[Keyword, ...]]] = {
    "$schema": (_text(is_assertion=False),),
    "$ref": (_text(),),
    "$id": (_text(first=_D6, is_assertion=False, before='"id"'),),
    # Other values are taken as what they are meant to be: a property "id" that its author did not put below properties.
    "id": (Keyword("a string", _is_anything, last=_D4, is_assertion=False, after='"$id"'),),
    "$anchor": (_text(first=_D19, is_assertion=False, before='an id such as "#name"'),),
    "$dynamicAnchor": (_text(first=_D20, is_assertion=False),),
    "$recursiveAnchor": (
        Keyword("a boolean", _is_boolean, first=_D19, last=_D19, is_assertion=False, after='"$dynamicAnchor"'),
    ),
    "$dynamicRef": (_text(first=_D20),),
    "$recursiveRef": (_text(first=_D19, last=_D19, after='"$dynamicRef"'),),
    "$vocabulary": (Keyword("an object of booleans", _is_map, first=_D19, is_assertion=False),),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), (_text(first=_D7, is_assertion=False),)),
    "contentSchema": (_schema(first=_D19, is_assertion=False),),
    "$defs": (_schema_map(first=_D19, is_assertion=False, before='"definitions"'),),
    "definitions": (
        _schema_map(last=_D7, is_assertion=False, after='"$defs"'),
        _schema_map(first=_D19, is_assertion=False, is_former=True),
    ),
    # The meta-data limit nothing, so whatever they hold is taken: their form is no reason to refuse a schema.
    **dict.fromkeys(("title", "description", "default"), (_anything(is_assertion=False),)),
    "examples": (_anything(first=_D6, is_assertion=False),),
    **dict.fromkeys(("$comment", "readOnly", "writeOnly"), (_anything(first=_D7, is_assertion=False),)),
    "deprecated": (_anything(first=_D19, is_assertion=False),),
    "type": (Keyword(f"one or several of {', '.join(TYPES)}", _is_type),),
    "enum": (Keyword("a list", _is_a(list)),),
    "const": (_anything(first=_D6, before='"enum" with one value'),),
    "multipleOf": (Keyword("a number above 0", lambda value: is_number(value) and value > 0),),  # type: ignore[operator]
    **dict.fromkeys(("minimum", "maximum"), (Keyword("a number", is_number),)),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        (Keyword("a boolean (in draft 4)", _is_boolean, last=_D4), Keyword("a number", is_number, first=_D6)),
    ),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), (_count(),)),
    "pattern": (Keyword("a regular expression", _is_text),),
    "format": (_text(),),
    "items": (
        Keyword("a schema or a list of schemas", _is_a(dict, bool, list), Inner.SELF_OR_LIST, last=_D19),
        Keyword(f"{_SCHEMA} (a list of schemas is prefixItems)", _is_schema, Inner.SELF, first=_D20),
    ),
    "additionalItems": (_schema(last=_D19, after='"items" beside "prefixItems"'),),
    "prefixItems": (_schemas(first=_D20, before='"items" with a list of schemas'),),
    "uniqueItems": (Keyword("a boolean", _is_boolean),),
    **dict.fromkeys(("contains", "propertyNames"), (_schema(first=_D6),)),
    **dict.fromkeys(("minContains", "maxContains"), (_count(first=_D19),)),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), (_schema(first=_D19),)),
    **dict.fromkeys(("properties", "patternProperties"), (_schema_map(),)),
    **dict.fromkeys(("additionalProperties", "not"), (_schema(),)),
    "required": (Keyword("a list of strings", is_names),),
    "dependencies": (
        Keyword("an object of schemas or lists of strings", _is_map, Inner.MAP_OR_NAMES, last=_D7, after=_DEPENDENT),
        Keyword("an object", _is_map, Inner.MAP_OR_NAMES, first=_D19, is_assertion=False, is_former=True),
    ),
    "dependentRequired": (
        Keyword("an object of lists of strings", _is_names_map, first=_D19, before='"dependencies"'),
    ),
    "dependentSchemas": (_schema_map(first=_D19, before='"dependencies"'),),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), (_schemas(),)),
    **dict.fromkeys(("if", "then", "else"), (_schema(first=_D7),)),
}


REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_APPLICATORS: Final = (
    "prefixItems", "items", "contains", "properties", "patternProperties", "additionalProperties", "propertyNames",
    "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
)  # fmt: skip
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
_VALIDATION: Final = (
    "type", "enum", "const", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength",
    "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "required",
    "minProperties", "maxProperties", "dependentRequired",
)  # fmt: skip
_2019: Final = "https://json-schema.org/draft/2019-09/vocab/"
_2020: Final = "https://json-schema.org/draft/2020-12/vocab/"

VOCABULARIES: Final[dict[str, tuple[str, ...]]] = {
    f"{_2019}applicator": (*_APPLICATORS[1:], "additionalItems", *_UNEVALUATED),
    f"{_2020}applicator": _APPLICATORS,
    f"{_2020}unevaluated": _UNEVALUATED,
    f"{_2019}format": ("format",),
    f"{_2020}format-annotation": ("format",),
    f"{_2020}format-assertion": ("format",),
    **{f"{prefix}validation": _VALIDATION for prefix in (_2019, _2020)},
    **{f"{prefix}{name}": () for prefix in (_2019, _2020) for name in ("core", "content", "meta-data")},
}
"""Vocabularies by URI, each with the keywords of it that assert something."""


@lru_cache(maxsize=8192)  # a large schema asks some hundred thousand times
def keyword(name: str, draft: SchemaDraft) -> Keyword | None:
    """The definition of a keyword in `draft`; None where the draft does not have it: it is an annotation there."""
    return next((reading for reading in KEYWORDS.get(name, ()) if reading.first <= draft <= reading.last), None)


@lru_cache(maxsize=8192)
def is_assertion(name: str, draft: SchemaDraft) -> bool:
    """Whether `draft` has a keyword that takes part in what is valid."""
    reading = keyword(name, draft)
    return reading is not None and reading.is_assertion
