"""The outline of a constraint, for its author: rules, terminals, a shortest text, and warnings of probable mistakes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from decodekit.constraints.author.members import complete
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.grammar.lark.definitions import Definitions
from decodekit.constraints.grammar.linear import LinearForms
from decodekit.constraints.grammar.source import Source
from decodekit.errors import ConstraintError, GuardError

_GBNF_RULE: Final = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outline:
    """The outline of a constraint.

    Attributes:
        kind: "lark", "gbnf", "regex", "schema", or the name of the class.
        start: the rule to start from; None for what has no rules.
        rules, terminals: the names of those that take part in a text.
        least: a shortest text; None if none was found within bounds.
        warnings: what is allowed and probably not meant.
    """

    kind: str
    start: str | None = None
    rules: tuple[str, ...] = ()
    terminals: tuple[str, ...] = ()
    least: str | None = None
    warnings: tuple[str, ...] = ()


def outline(constraint: Constraint) -> Outline:
    """Look at a constraint.

    Raises:
        ConstraintError: it is malformed, or no text satisfies it.
    """
    constraint.root()
    warnings: list[str] = []
    try:
        least = complete(constraint)
    except (ConstraintError, GuardError) as error:
        least = None
        warnings.append(f"no shortest text was found: {error.cause}")
    if not isinstance(constraint, Grammar) or constraint.syntax not in ("lark", "gbnf"):
        kind = constraint.syntax if isinstance(constraint, Grammar) else type(constraint).__name__
        return Outline(kind, least=least, warnings=tuple(warnings))
    rules = constraint.rules
    return Outline(
        constraint.syntax,
        rules.start,
        tuple(rules.rules),
        tuple(rules.terminals),
        least,
        (*_useless(constraint), *warnings),
    )


def _useless(grammar: Grammar) -> list[str]:
    """Rules of which no text can be derived, and rules and terminals that take part in none."""
    rules = grammar.rules
    productive = LinearForms(rules).productive
    found = [f"no text can be derived from the rule {name!r}" for name in rules.rules if name not in productive]
    return found + [
        f"the {'terminal' if is_terminal else 'rule'} {name!r} takes part in no text"
        for name, is_terminal in _defined(grammar)
        if name not in rules.rules and name not in rules.terminals
    ]


def _defined(grammar: Grammar) -> list[tuple[str, bool]]:
    """The names that the grammar itself defines, and whether each is a terminal; templates and imports aside."""
    if grammar.syntax == "gbnf":
        return [(name, False) for name in dict.fromkeys(_GBNF_RULE.findall(grammar.text))]
    source = Source(grammar.text, grammar.file)
    found = Definitions(source, None if grammar.file is None else dict(grammar.files))
    own = [entry for entry in found.entries.values() if entry.place.source == source and not entry.parameters]
    # Terminals that are named more often than they are defined are parts of other terminals, or ignored.
    terminals = [entry.name for entry in own if entry.is_terminal]
    inside = [name for name in terminals if len(re.findall(rf"(?<![\w.]){name}(?!\w)", grammar.text)) > 1]
    return [(entry.name, entry.is_terminal) for entry in own if entry.name not in inside]
