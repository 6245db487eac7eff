"""The tree of a grammar in Lark's language, as it is written: names stand for themselves, places are offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from decodekit.constraints.grammar.source import Source


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A rule, a terminal or a parameter of a template."""

    name: str
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Quoted:
    """A string, unescaped."""

    text: str
    ignores_case: bool
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A regular expression in the syntax of `re`, with letters for flags."""

    pattern: str
    flags: str
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class CharRange:
    """One character from `low` to `high`."""

    low: str
    high: str
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """A template with its arguments."""

    name: str
    arguments: tuple[Term, ...]
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class TokenName:
    """Any one of some special tokens, by name or by id."""

    tokens: tuple[str | int, ...]
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Json:
    """A JSON Schema."""

    schema: object
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The items one after the other."""

    items: tuple[Term, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Any of the options."""

    options: tuple[Term, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The item `min` to `max` times; ``max=None`` has no bound."""

    item: Term
    min: int
    max: int | None


Term: TypeAlias = Name | Quoted | Pattern | CharRange | Usage | TokenName | Json | Series | Options | Counted


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A rule, a template or a terminal.

    `how` is what it does to an earlier definition of the name: none may be there ("define"), it takes its place
    ("override"), or it adds alternatives ("extend").
    """

    name: str
    parameters: tuple[str, ...]
    priority: int
    body: Term
    how: str
    at: int

    @property
    def is_terminal(self) -> bool:
        """Whether the name is that of a terminal."""
        return is_terminal_name(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Import:
    """Names that are taken from another grammar, each with the name that it has here."""

    path: tuple[str, ...]
    is_relative: bool
    names: tuple[tuple[str, str, int], ...]
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """One grammar file."""

    source: Source
    definitions: tuple[Definition, ...]
    ignored: tuple[Term, ...]
    imports: tuple[Import, ...]


def is_terminal_name(name: str) -> bool:
    """Whether a name is that of a terminal; rules are in lower case."""
    return name.lstrip("_")[:1].isupper()


def walk(root: Term) -> Iterator[Term]:
    """An item and all that it is made of, in the order in which they stand there."""
    agenda = [root]
    while agenda:
        item = agenda.pop()
        yield item
        if isinstance(item, Series):
            agenda += reversed(item.items)
        elif isinstance(item, Options):
            agenda += reversed(item.options)
        elif isinstance(item, Usage):
            agenda += reversed(item.arguments)
        elif isinstance(item, Counted):
            agenda.append(item.item)
