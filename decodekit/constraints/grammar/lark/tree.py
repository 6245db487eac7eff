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
class Text:
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
    arguments: tuple[Item, ...]
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Special:
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

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Any of the options."""

    options: tuple[Item, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The item `min` to `max` times; ``max=None`` has no bound."""

    item: Item
    min: int
    max: int | None


Item: TypeAlias = Name | Text | Pattern | CharRange | Usage | Special | Json | Series | Choice | Counted


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A rule, a template or a terminal.

    `how` is what it does to an earlier definition of the name: none may be there ("define"), it takes its place
    ("override"), or it adds alternatives ("extend").
    """

    name: str
    parameters: tuple[str, ...]
    priority: int
    body: Item
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
    ignored: tuple[Item, ...]
    imports: tuple[Import, ...]


def is_terminal_name(name: str) -> bool:
    """Whether a name is that of a terminal; rules are in lower case."""
    return name.lstrip("_")[:1].isupper()


def walk(root: Item) -> Iterator[Item]:
    """An item and all that it is made of, in the order in which they stand there."""
    agenda = [root]
    while agenda:
        item = agenda.pop()
        yield item
        if isinstance(item, Series):
            agenda += reversed(item.items)
        elif isinstance(item, Choice):
            agenda += reversed(item.options)
        elif isinstance(item, Usage):
            agenda += reversed(item.arguments)
        elif isinstance(item, Counted):
            agenda.append(item.item)
