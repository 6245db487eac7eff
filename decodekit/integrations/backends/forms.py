"""A constraint in the forms that other engines read: a JSON Schema, a pattern, the text of a grammar.

What has none of these forms is refused, and so are options of our own that a peer would not follow: a peer has its own
whitespace and its own order of keys, which are options of its backend.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar import Grammar
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.regex.regex import Regex
from decodekit.errors import UnsupportedSchemaError

_META: Final = re.compile(r"[\\.^$|?*+()\[\]{}]")
_LAYOUT: Final[Mapping[str, object]] = {
    "whitespace": "natural", "order": "declared", "escapes": "needed", "numbers": "short"
}  # fmt: skip


class Form(NamedTuple):
    """A constraint as text.

    Attributes:
        kind: ``"schema"``, ``"pattern"``, ``"lark"`` or ``"gbnf"``.
        text: the schema as JSON, the pattern, the grammar.
    """

    kind: str
    text: str

    @property
    def schema(self) -> Any:
        """The schema as a value."""
        return json.loads(self.text)


def form_of(constraint: Constraint, name: str, kinds: tuple[str, ...]) -> Form:
    """The form in which a peer reads a constraint.

    Args:
        constraint: what is asked for.
        name: of the peer.
        kinds: the forms that it reads.

    Raises:
        UnsupportedSchemaError: the constraint has none of these forms, or options, a guard or special tokens that the
            peer would not see.
    """
    form = _form(constraint, name)
    if form is None or form.kind not in kinds:
        what = type(constraint).__name__ if form is None else f"a {form.kind}"
        cause = f"{name} cannot be given {what}; it reads {', '.join(kinds)}"
        raise UnsupportedSchemaError(cause, hint="the constraint without a backend: decodekit's own engine takes it")
    if constraint.special_tokens():
        raise UnsupportedSchemaError(f"{name} would not see the special tokens of the constraint", hint="no backend")
    if constraint.guard() is not None:
        cause = f"{name} would not ask the guard of the constraint (uniqueItems of objects, a function of yours)"
        raise UnsupportedSchemaError(cause, hint="the constraint without a backend, or without what needs a guard")
    return form


def _form(constraint: Constraint, name: str) -> Form | None:
    if isinstance(constraint, JsonSchema):
        for option, default in _LAYOUT.items():
            given = getattr(constraint, option)
            if given != default:
                cause = f"{name} would not follow {option}={given!r} of JsonSchema"
                raise UnsupportedSchemaError(cause, at=option, hint=f"options of dk.backend({name!r}, ...) instead")
        if constraint.registry:
            raise UnsupportedSchemaError(f"{name} would not see the registry", at="registry", hint="one schema")
        return Form("schema", json.dumps(constraint.schema))
    if isinstance(constraint, Regex):
        if constraint.flags:
            cause = f"{name} would not follow flags={constraint.flags!r} of Regex"
            raise UnsupportedSchemaError(cause, at="flags", hint="the flags written out in the pattern")
        return Form("pattern", constraint.pattern)
    if isinstance(constraint, Choices):
        return Form("pattern", "|".join(_META.sub(r"\\\g<0>", text) for text in constraint.texts))
    if isinstance(constraint, Grammar) and constraint.syntax in ("lark", "gbnf"):
        default = "start" if constraint.syntax == "lark" else "root"
        if constraint.files or constraint.lexer != "scannerless" or constraint.start != default:
            cause = f"{name} would not see the imported files, the lexer or the start rule of the grammar"
            raise UnsupportedSchemaError(cause, hint=f"one text that starts at {default}")
        return Form(constraint.syntax, constraint.text)
    return None
