"""The whole language of a JSON Schema: for tests of what a schema admits, whoever wrote the text.

The defaults of `JsonSchema` are for generation. They leave out most white space and all needless escapes, which a test
of keywords wants to see read.
"""

from __future__ import annotations

from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames.layout import Whitespace
from decodekit.constraints.json_schema.frames.objects import Order
from decodekit.constraints.json_schema.strings.escapes import Escapes
from decodekit.constraints.json_schema.strings.formats import Formats


def any_json(
    schema_or_type: object,
    format: Formats = "annotate",
    whitespace: Whitespace = "any",
    order: Order = "declared",
    registry: object = None,
    escapes: Escapes = "any",
) -> JsonSchema:
    """A `JsonSchema` with all white space and escapes that JSON allows, unless they are given."""
    return JsonSchema(schema_or_type, format, whitespace, order, registry, escapes)
