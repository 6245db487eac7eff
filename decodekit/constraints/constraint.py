"""What a constraint is, and which values are taken as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from decodekit.constraints.network import Frame
from decodekit.errors import InvalidConstraintError

if TYPE_CHECKING:
    from decodekit.constraints.guards import Guard


class Constraint(ABC):
    """A set of texts. Immutable; equal constraints compare and hash equal, so that compiled grammars are shared.

    Subclasses are frozen dataclasses.
    """

    __slots__ = ()

    @abstractmethod
    def root(self) -> Frame:
        """The frame whose run is one whole text.

        Raises:
            ConstraintError: the constraint is malformed, not supported or not satisfiable.
        """

    @abstractmethod
    def parse(self, text: str) -> object:
        """The value that a whole text stands for.

        Raises:
            ValueError: the text is not one of the constraint's.
        """

    @property
    def num_bytes(self) -> int:
        """About how much memory the frames of a text take, their lexical languages aside; for the memory limit."""
        return 0

    def guard(self) -> Guard | None:
        """What a whole text must satisfy beyond the language of `root`; None if the language says it all."""
        return None

    def special_tokens(self) -> frozenset[str | int]:
        """The special tokens that its texts are made of, by name or by id: the vocabulary has to have them.

        Those aside for which a text may have the characters of their name just as well. In a text that is parsed, or
        that a guard is asked about, a special token stands by its name; one that is asked for by its id as ``<[7]>``.
        """
        return frozenset()


def as_constraint(value: object) -> Constraint:
    """Take a value as a constraint.

    A `Constraint` is itself. A str is the name of a grammar of the library or of an installed constraint (see
    `named_constraint`), and never a pattern, a schema, a text or an expression. A dict or a bool is a JSON Schema;
    OpenAI's ``response_format`` if its ``"type"`` is ``"json_schema"`` or ``"json_object"``; a structural tag if it is
    ``"structural_tag"`` (see `Tagged.from_mapping`); OpenAI's tools if it has a list of ``"tools"`` (see
    `tools_of_request`). Pydantic models, dataclasses, TypedDicts, enums, ``Literal`` and the other typing forms are the
    JSON texts that validate as them. Objects of other packages are taken as they are: a compiled `re` pattern, a
    `lark.Lark`, an `interegular.FSM`, a `pydantic.TypeAdapter`, a validator of `jsonschema` (see the room `foreign`).

    Raises:
        InvalidConstraintError: the value is none of these; with the class of constraint that may be meant.
        UnknownNameError: nothing has this name; with the classes of constraints that may be meant.
        PluginError: a name is installed, and what it stands for cannot be loaded or is no constraint.
    """
    if isinstance(value, Constraint):
        return value
    if isinstance(value, str):
        from decodekit.constraints.named import named_constraint

        return as_constraint(named_constraint(value))
    if isinstance(value, bytes):
        raise InvalidConstraintError(
            "a bytes is no constraint, it could be a pattern, a schema or a text",
            hint='Regex("..."), JsonSchema(json.loads("...")) or Choices(["..."])',
        )
    if isinstance(value, list | set | frozenset):
        raise InvalidConstraintError(
            f"a {type(value).__name__} is no constraint", hint="Choices([...]) for one of several texts"
        )
    # The front ends import this module, and not every user needs them.
    from decodekit.constraints.foreign import constraint_of

    found = constraint_of(value)
    if found is not None:
        return found
    from decodekit.constraints.json_schema import JsonSchema
    from decodekit.constraints.python_types import is_type

    if isinstance(value, Mapping):
        if value.get("type") == "structural_tag":
            from decodekit.constraints.composition import Tagged

            return Tagged.from_mapping(value)
        if isinstance(value.get("tools"), list):
            from decodekit.constraints.tool_calls import tools_of_request

            return tools_of_request(value)
        return JsonSchema(_response_format(value))
    if isinstance(value, bool) or is_type(value):
        return JsonSchema(value)
    raise InvalidConstraintError(
        f"{type(value).__name__} is no constraint",
        hint="a JSON Schema as a dict, a Pydantic model, or one of Regex, Choices, JsonSchema",
    )


def _response_format(value: Mapping[str, object]) -> Mapping[str, object]:
    """The schema of an OpenAI ``response_format``; any other mapping is a schema itself."""
    kind = value.get("type")
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        return value
    inner = value.get("json_schema")
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping | bool):
        raise InvalidConstraintError(
            'a response format of type "json_schema" needs its schema',
            at="#/json_schema/schema",
            hint='{"type": "json_schema", "json_schema": {"name": "...", "schema": {...}}}',
        )
    schema = inner["schema"]
    return {} if schema is True else schema
