"""The front door of constraints: every value that is taken as one, the forms of requests to a server included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from decodekit.constraints.coercion import coerce, named_constraint
from decodekit.constraints.constraint import Constraint

if TYPE_CHECKING:
    from decodekit.constraints.json_schema import JsonSchema


def as_constraint(value: object) -> Constraint:
    """Take a value as a constraint.

    A `Constraint` is itself. A str is the name of a grammar of the library or of an installed constraint (see
    `named_constraint`), and never a pattern, a schema, a text or an expression. A dict or a bool is a JSON Schema;
    OpenAI's ``response_format`` if its ``"type"`` is ``"json_schema"`` or ``"json_object"``; a structural tag if it is
    ``"structural_tag"`` (see `Tagged.from_mapping`); OpenAI's tools if it has a list of ``"tools"`` (see
    `tools_of_request`). Pydantic models, dataclasses, TypedDicts, enums, ``Literal`` and the other typing forms are the
    JSON texts that validate as them. Objects of other packages are taken as they are: a compiled `re` pattern, a
    `lark.Lark`, an `interegular.FSM`, a `pydantic.TypeAdapter`, a validator of `jsonschema` (see the room `interop`).

    Raises:
        InvalidConstraintError: the value is none of these; with the class of constraint that may be meant.
        UnknownNameError: nothing has this name; with the classes of constraints that may be meant.
        PluginError: a name is installed, and what it stands for cannot be loaded or is not a constraint.
    """
    if isinstance(value, str):
        value = named_constraint(value)
    # Not every user needs these front ends.
    if isinstance(value, Mapping):
        if value.get("type") == "structural_tag":
            from decodekit.constraints.composition.tags import Tagged

            return Tagged.from_mapping(value)
        if isinstance(value.get("tools"), list):
            from decodekit.constraints.tool_calls import tools_of_request

            return tools_of_request(value)
    return coerce(value)


def json_schema_in(constraint: Constraint) -> JsonSchema | None:
    """The JSON Schema that a constraint is; None if it is something else.

    A schema of the library is one, and so is a guarded schema: that without its guard.
    """
    from decodekit.constraints.composition.guarded import Guarded
    from decodekit.constraints.grammar import Grammar
    from decodekit.constraints.grammar.rules import Inline
    from decodekit.constraints.json_schema import JsonSchema

    while isinstance(constraint, Guarded):
        constraint = constraint.constraint
    if isinstance(constraint, Grammar) and constraint.syntax == "schema":
        (rule,) = constraint.rules.rules.values()
        constraint = rule.constraint if isinstance(rule, Inline) else constraint
    return constraint if isinstance(constraint, JsonSchema) else None
