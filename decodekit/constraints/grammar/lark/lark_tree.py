"""The tree of a grammar in Lark's language, as it is written: names stand for themselves, places are offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias


class Name(NamedTuple):
    """A rule, a terminal or a parameter of a template; with arguments, a template."""

    name: str
    at: int
    arguments: tuple[Term, ...] = ()


class Quoted(NamedTuple):
    """A string, unescaped."""

    text: str
    ignores_case: bool
    at: int


class Pattern(NamedTuple):
    """A regular expression in the syntax of `re`, with letters for flags."""

    pattern: str
    flags: str
    at: int


class CharRange(NamedTuple):
    """One character from `low` to `high`."""

    low: str
    high: str
    at: int


class TokenName(NamedTuple):
    """Any one of some special tokens, by name or by id."""

    tokens: tuple[str | int, ...]
    at: int


class Json(NamedTuple):
    """A JSON Schema."""

    schema: object
    at: int


class Series(NamedTuple):
    """The items one after the other."""

    items: tuple[Term, ...]


class Options(NamedTuple):
    """Any of the options."""

    options: tuple[Term, ...]


class Counted(NamedTuple):
    """The item `min` to `max` times; ``max=None`` has no bound."""

    item: Term
    min: int
    max: int | None


Term: TypeAlias = Name | Quoted | Pattern | CharRange | TokenName | Json | Series | Options | Counted


class Definition(NamedTuple):
    """A rule, a template or a terminal. It is the first of its name, takes the place of one, or adds alternatives."""

    name: str
    parameters: tuple[str, ...]
    priority: int
    body: Term
    how: str  # "define", "override" or "extend"
    at: int

    @property
    def is_terminal(self) -> bool:
        """Whether the name is that of a terminal."""
        return is_terminal_name(self.name)


class Import(NamedTuple):
    """Names that are taken from another grammar, each with the name that it has here."""

    path: tuple[str, ...]
    is_relative: bool
    names: tuple[tuple[str, str, int], ...]
    at: int


class Module(NamedTuple):
    """One grammar file."""

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
        match item:
            case Series(parts) | Options(parts) | Name(_, _, parts):
                agenda += reversed(parts)
            case Counted(part):
                agenda.append(part)
