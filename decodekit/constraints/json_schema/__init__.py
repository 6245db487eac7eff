"""JSON Schema as a constraint: drafts 4 to 2020-12, enforced byte by byte."""

from decodekit.constraints.json_schema import common as common
from decodekit.constraints.json_schema.coverage import Coverage, KeywordCoverage, check
from decodekit.constraints.json_schema.schema import JsonSchema

__all__ = ["Coverage", "JsonSchema", "KeywordCoverage", "check"]
