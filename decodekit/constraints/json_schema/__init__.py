"""JSON Schema as a constraint: drafts 4 to 2020-12, enforced byte by byte."""

from decodekit.constraints.json_schema.schema import JsonSchema

__all__ = ["JsonSchema"]
