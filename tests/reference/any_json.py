"""The whole language of a JSON Schema: for tests of what a schema admits, whoever wrote the text.

The defaults of `JsonSchema` are for generation. They leave out most white space, all needless escapes and long
numbers, which a test of keywords wants to see read.
"""

from __future__ import annotations

from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames.layout import Whitespace
from decodekit.constraints.json_schema.frames.objects import Order
from decodekit.constraints.json_schema.strings.string_escapes import Escapes
from decodekit.constraints.json_schema.strings.string_formats import Formats
from decodekit.constraints.json_schema.values.short_numbers import Numbers


def any_json(
    schema_or_type: object,
    format: Formats = "annotate",
    whitespace: Whitespace = "any",
    order: Order = "declared",
    registry: object = None,
    escapes: Escapes = "any",
    numbers: Numbers = "any",
) -> JsonSchema:
    """A `JsonSchema` with all white space, escapes and numbers that JSON allows, unless they are given."""
    return JsonSchema(schema_or_type, format, whitespace, order, registry, escapes, numbers)
