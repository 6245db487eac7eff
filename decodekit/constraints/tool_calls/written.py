"""Values of a schema in the notation of a format."""

from __future__ import annotations

import json
from dataclasses import dataclass

from decodekit.constraints.constraint import Constraint, Guard, Refusal, WorkingGuard, judging_of
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames.embedded import embedded
from decodekit.constraints.json_schema.notation import Notated, Values
from decodekit.constraints.json_schema.strings.text import QUOTE
from decodekit.constraints.language import ir
from decodekit.constraints.network import Frame, Lexeme
from decodekit.constraints.work_budget import Work


def noted(schema: JsonSchema, values: Values) -> Constraint:
    """The values that a schema admits, as `values` writes them. Strings without escapes are for others to write."""
    if values.is_sorted:
        schema = schema.with_options(order="any")
    if not values.is_quoted and values.nested != "own":
        values = Values() if values.nested == "json" else Values("python", "python", "python")
    if values.is_json:
        return schema.with_options(escapes="any") if values.is_ascii else schema
    return Notated(schema, values)


@dataclass(frozen=True, slots=True)
class QuotedJson(Constraint):
    """The texts of a schema, each as a string of JSON.

    Keys that the schema does not declare may come twice in an object; then the last one counts.
    """

    schema: JsonSchema

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(ir.concat(QUOTE, embedded(self.schema.root()), QUOTE))

    def parse(self, text: str) -> object:
        """The value of the text in the string."""
        return self.schema.parse(json.dumps(json.loads(self.json(text))))

    def json(self, text: str) -> str:
        """The text in the string."""
        return str(json.loads(text))

    def guard(self) -> Guard | None:
        """That of the schema."""
        guard = self.schema.guard()
        return None if guard is None else _QuotedGuard(guard)


@dataclass(frozen=True, slots=True)
class _QuotedGuard(WorkingGuard):
    """A guard that is asked about the text in a string."""

    guard: Guard

    def judging(self, text: bytes) -> Work[Refusal | None]:
        refusal = yield from judging_of(self.guard, json.loads(text).encode("utf-8", "surrogatepass"))
        return None if refusal is None else Refusal(len(text), refusal.at, refusal.message)
