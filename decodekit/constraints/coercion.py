"""The values that are taken as a constraint: constraints, names, schemas, types and objects of other packages.

`coerce` is what compositions ask; `request_formats.as_constraint`, which everybody else asks, knows the forms of
OpenAI's and vLLM's requests as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from decodekit import plugins
from decodekit.constraints import interop
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar import Grammar, library
from decodekit.errors import InvalidConstraintError, PluginError, UnknownNameError

_NAME: Final = re.compile(r"[\w.-]{1,60}")


def coerce(value: object) -> Constraint:
    """Take a value as a constraint; see `request_formats.as_constraint`, without what has a structural tag or tools.

    Raises:
        InvalidConstraintError: the value is not a constraint; with the class of constraint that may be meant.
        UnknownNameError: nothing has this name; with the classes of constraints that may be meant.
        PluginError: a name is installed, and what it stands for cannot be loaded or is not a constraint.
    """
    if isinstance(value, Constraint):
        return value
    if isinstance(value, str):
        return coerce(named_constraint(value))
    if isinstance(value, bytes):
        raise InvalidConstraintError(
            "a bytes is no constraint, it could be a pattern, a schema or a text",
            hint='Regex("..."), JsonSchema(json.loads("...")) or Choices(["..."])',
        )
    if isinstance(value, list | set | frozenset):
        raise InvalidConstraintError(
            f"a {type(value).__name__} is no constraint", hint="Choices([...]) for one of several texts"
        )
    found = interop.constraint_of(value)
    if found is not None:
        return found
    # Not every user needs this front end.
    from decodekit.constraints.json_schema import JsonSchema
    from decodekit.constraints.json_schema.python_types import class_meant, is_type

    if isinstance(value, Mapping):
        if value.get("type") == "structural_tag" or isinstance(value.get("tools"), list):
            raise InvalidConstraintError(
                "a request with a structural tag or with tools is no part of another constraint as it is",
                hint="as_constraint({...}), whose result is one",
            )
        return JsonSchema(_response_format(value))
    if isinstance(value, bool) or is_type(value):
        return JsonSchema(value)
    meant = class_meant(value)
    if meant is not None:
        raise InvalidConstraintError(f"a value of the class {meant} is no constraint", hint=f"the class {meant} itself")
    raise InvalidConstraintError(
        f"{type(value).__name__} is no constraint",
        hint="a JSON Schema as a dict, a Pydantic model, or one of Regex, Choices, JsonSchema",
    )


def named_constraint(name: str) -> Any:
    """The constraint of a name, or what stands for one.

    First the library of grammars is asked, then the entry points of the group ``decodekit.constraints`` (see
    `plugins`). An entry point is a constraint, a class of constraints or a function, which are called without
    arguments, or what stands for a constraint, such as a Pydantic model or a JSON Schema.

    Raises:
        UnknownNameError: nothing has this name; a text is never read as a pattern, a schema or a choice.
        PluginError: what has it cannot be loaded or made.
    """
    built_in = {known: partial(Grammar, known) for known in library.names()}
    try:
        found = plugins.find("constraint", name, built_in)
    except PluginError:
        raise
    except UnknownNameError as error:
        hint = 'Regex("..."), Choices(["..."]) or JsonSchema(json.loads("...")), if the text is no name'
        cause = error.cause if _NAME.fullmatch(name) else f"no constraint {name!r:.60}."
        raise UnknownNameError(cause, at=error.at, hint=hint) from None
    if isinstance(found, type) and not issubclass(found, Constraint):  # a Pydantic model stands for its JSON texts
        return found
    if not isinstance(found, Constraint) and callable(found):
        return plugins.called("constraint", name, found, _may_stand_for_one)
    if not _may_stand_for_one(found):
        raise PluginError(
            f"constraint {name!r} is {found!r:.60}, no constraint and nothing that makes one", at="constraint"
        )
    return found


def available_constraints() -> list[str]:
    """The names of all constraints: the library's grammars, then those of installed packages. Loads nothing."""
    return plugins.available("constraint", library.names())


def available_schemas() -> list[str]:
    """The names that a JSON Schema may have: the library's schemas, then all constraints of installed packages.

    Loads nothing, so that the latter may turn out to be something else.
    """
    is_schema = {name: library.path_of(name).name.endswith(".schema.json") for name in library.names()}
    return [name for name in available_constraints() if is_schema.get(name, True)]


def _may_stand_for_one(value: object) -> bool:
    """Whether `as_constraint` may take a value; a text is not looked up a second time."""
    return value is not None and not isinstance(value, str | bytes)


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
