"""Objects of other packages as constraints: what a user has already need not be written anew.

==============================  ======================================================================================
`re.Pattern`                    `Regex`, with the flags of the pattern
`lark.Lark`                     `LarkParser`: the texts that it parses
`interegular.FSM`, `Pattern`    `FiniteAutomaton`: the texts that it accepts
`pydantic.TypeAdapter`          `JsonSchema` of its type, whose values the adapter reads
a validator of `jsonschema`     `JsonSchema` in its draft, with its registry; formats enforced if it checks formats
`outlines_core.Index`, `Guide`  refused: they hold token ids, and neither a pattern nor what the ids stand for
==============================  ======================================================================================

Packages are not imported to recognise their objects: whoever has one has imported its package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NoReturn

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.regex.regex import Regex
from decodekit.errors import UnsupportedSchemaError

_LETTERS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x", re.ASCII: "a"}
_WITHOUT_MEANING: Final = re.UNICODE | re.DEBUG  # the default, and what prints the pattern


def _of_pattern(pattern: re.Pattern[str]) -> Regex:
    """The texts that the pattern matches as a whole, as its `fullmatch` does."""
    if not isinstance(pattern.pattern, str):
        raise UnsupportedSchemaError(
            f"the pattern {pattern.pattern!r:.60} matches bytes, and texts are characters",
            hint='re.compile("...", re.ASCII) with the pattern as a str',
        )
    return Regex(pattern.pattern, flags=letters_of(pattern.flags))


def letters_of(flags: int) -> str:
    """The flags of `re` as the letters that `Regex` takes."""
    rest = flags & ~_WITHOUT_MEANING
    letters = "".join(letter for flag, letter in _LETTERS.items() if rest & flag)
    rest &= ~sum(_LETTERS)
    if rest:
        raise UnsupportedSchemaError(f"the flag {re.RegexFlag(rest)!r} is not supported", hint="the pattern without it")
    return letters


def _converter(module: str) -> Callable[[Any], Constraint]:
    """`constraint_of` of a module of this room, which is loaded when it is needed."""

    def convert(value: Any) -> Constraint:
        found: Constraint = import_module(f"decodekit.constraints.interop.{module}").constraint_of(value)
        return found

    return convert


def _refuse(value: object) -> NoReturn:
    cause = (
        f"an outlines_core.{type(value).__name__} is not supported: it holds token ids, not the texts of its pattern"
    )
    hint = "Regex(pattern) with the pattern that it was made of"
    if type(value).__name__ == "Vocabulary":
        cause = "an outlines_core.Vocabulary is no constraint: it has tokens and no rule"
        hint = "Regex(pattern) for the texts of a pattern"
    raise UnsupportedSchemaError(cause, hint=hint)


_CONVERTERS: Final[tuple[tuple[str, str, Callable[[Any], Constraint]], ...]] = (
    ("re", "Pattern", _of_pattern),
    ("lark", "Lark", _converter("lark_parser")),
    ("interegular.fsm", "FSM", _converter("finite_automata")),
    ("interegular.patterns", "Pattern", _converter("finite_automata")),
    ("pydantic.type_adapter", "TypeAdapter", _converter("json_types")),
    ("jsonschema.protocols", "Validator", _converter("json_types")),
    ("outlines_core", "Index", _refuse),
    ("outlines_core", "Guide", _refuse),
    ("outlines_core", "Vocabulary", _refuse),
)
"""The module and the class of what is taken, and what makes a constraint of it."""


def constraint_of(value: object) -> Constraint | None:
    """The constraint that an object of another package is; None if it is of none that is known here.

    Raises:
        InvalidConstraintError: the object has no language that can be told.
        UnsupportedSchemaError: something in it is refused by name.
        ConstraintError: what the constraint itself raises.
    """
    for module, name, convert in _CONVERTERS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(value, kind):
            return convert(value)
    return None
