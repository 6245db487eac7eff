"""What a text means as a constraint: the name of a grammar of the library, or of an installed constraint."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from decodekit import plugins
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar import Grammar, library
from decodekit.errors import PluginError, UnknownNameError

if TYPE_CHECKING:
    from decodekit.constraints.json_schema import JsonSchema

_NAME: Final = re.compile(r"[\w.-]{1,60}")


def named_constraint(name: str) -> Any:
    """The constraint of a name, or what `as_constraint` takes as one.

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


def json_schema_in(constraint: Constraint) -> JsonSchema | None:
    """The JSON Schema that a constraint is; None if it is something else.

    A schema of the library is one, and so is a guarded schema: that without its guard.
    """
    from decodekit.constraints.composition.guarded import Guarded
    from decodekit.constraints.grammar.rules import Inline
    from decodekit.constraints.json_schema import JsonSchema

    while isinstance(constraint, Guarded):
        constraint = constraint.constraint
    if isinstance(constraint, Grammar) and constraint.syntax == "schema":
        (rule,) = constraint.rules.rules.values()
        constraint = rule.constraint if isinstance(rule, Inline) else constraint
    return constraint if isinstance(constraint, JsonSchema) else None


def _may_stand_for_one(value: object) -> bool:
    """Whether `as_constraint` may take a value; a text is not looked up a second time."""
    return value is not None and not isinstance(value, str | bytes)
