"""Context-free rules over regular terminals: what every front end of grammars makes, and what the engine unfolds.

The right side of a rule is an expression: sequences, alternatives and counted repetitions over terminals (regular
languages of bytes), other rules, special tokens and whole constraints. Expressions are immutable and compare by value;
the constructors `sequence`, `alternatives` and `repeated` keep them small.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.language.ir import literal
from decodekit.constraints.language.node import Node
from decodekit.errors import InvalidConstraintError

Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Terminal:
    """A word of a regular language of bytes. The name is for messages and does not make two terminals different."""

    node: Node
    name: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RuleRef:
    """A text of the rule of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """One special token, by its name in the vocabulary (``"<|im_end|>"``) or by its id; never matched by text."""

    token: str | int


@dataclass(frozen=True, slots=True)
class Inline:
    """A text of another constraint. The name tells parts apart and does not make two of them different."""

    constraint: Constraint
    name: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Concatenated:
    """The items one after the other; none for the empty text."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any of the options; none for no text at all."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The item `min` to `max` times, one after the other; ``max=None`` has no bound."""

    item: Expression
    min: int
    max: int | None


Expression: TypeAlias = Terminal | RuleRef | SpecialToken | Inline | Concatenated | Alternatives | Repeated

EMPTY_TEXT: Final = Concatenated(())
NO_TEXT: Final = Alternatives(())


def sequence(*items: Expression) -> Expression:
    """The items one after the other, nested sequences flattened."""
    flat: list[Expression] = []
    for item in items:
        if isinstance(item, Concatenated):
            flat += item.items
        elif item == NO_TEXT:
            return NO_TEXT
        else:
            flat.append(item)
    return flat[0] if len(flat) == 1 else Concatenated(tuple(flat))


def alternatives(*options: Expression) -> Expression:
    """Any of the options, nested alternatives flattened, each once."""
    flat: dict[Expression, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alternatives) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Alternatives(tuple(flat))


def repeated(item: Expression, min: int = 0, max: int | None = None) -> Expression:
    """The item `min` to `max` times."""
    if min < 0 or (max is not None and max < min):
        raise InvalidConstraintError(f"no number of repetitions is at least {min} and at most {max}")
    if max == 0 or item == EMPTY_TEXT:
        return EMPTY_TEXT
    return item if min == max == 1 else Repeated(item, min, max)


@dataclass(frozen=True, slots=True)
class Rules:
    """A grammar: rules by name, where to start, and what may stand between terminals.

    Args:
        rules: the right side of each rule.
        start: the name of the rule that a whole text is of.
        ignore: a language of which any number of words may stand before every terminal and at the end; None for none.
        terminals: the terminals that have a name, for ``lexer="longest"`` and for messages.
    """

    rules: Mapping[str, Expression]
    start: str
    ignore: Node | None = None
    terminals: Mapping[str, Terminal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", MappingProxyType(dict(self.rules)))
        object.__setattr__(self, "terminals", MappingProxyType(dict(self.terminals)))
        for name in [self.start, *(ref for rule in self.rules.values() for ref in references(rule))]:
            if name not in self.rules:
                raise InvalidConstraintError(
                    f"there is no rule {name!r}", hint=f"one of {', '.join(sorted(self.rules)[:8])}"
                )


def special_tokens_of(*expressions: Expression) -> frozenset[str | int]:
    """The special tokens of expressions and of the constraints in them.

    Those aside that are an alternative to the text of their name: a vocabulary without them has the text.
    """
    found: set[str | int] = set()
    agenda = list(expressions)
    while agenda:
        item = agenda.pop()
        if isinstance(item, SpecialToken):
            found.add(item.token)
        elif isinstance(item, Inline):
            found |= item.constraint.special_tokens()
        elif isinstance(item, Alternatives):
            texts = {option.node for option in item.options if isinstance(option, Terminal)}
            agenda += [option for option in item.options if _name_of(option) not in texts]
        else:
            agenda += children(item)
    return frozenset(found)


def _name_of(expression: Expression) -> Node | None:
    """The text of the name of a special token; None of anything else."""
    if isinstance(expression, SpecialToken) and isinstance(expression.token, str):
        return literal(expression.token.encode("utf-8", "surrogatepass"))
    return None


def references(expression: Expression) -> list[str]:
    """The names of the rules that an expression names, in order, with repetitions."""
    return [item.name for item in walk(expression) if isinstance(item, RuleRef)]


def walk(expression: Expression) -> Iterator[Expression]:
    """An expression and all that it is made of, in the order in which they stand there."""
    agenda = [expression]
    while agenda:
        item = agenda.pop()
        yield item
        agenda += reversed(children(item))


def children(expression: Expression) -> tuple[Expression, ...]:
    """The parts of an expression."""
    match expression:
        case Concatenated(parts) | Alternatives(parts):
            return parts
        case Repeated(item):
            return (item,)
    return ()


def mapped(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The same with other leaves."""
    match expression:
        case Concatenated(items):
            return sequence(*(mapped(item, change) for item in items))
        case Alternatives(options):
            return alternatives(*(mapped(option, change) for option in options))
        case Repeated(item, least, most):
            return repeated(mapped(item, change), least, most)
    return change(expression)


def reached(roots: Iterable[Place], following: Callable[[Place], Iterable[Place]]) -> dict[Place, None]:
    """Some places of a graph and all that follow them, in the order in which they are met."""
    found = dict.fromkeys(roots)
    agenda = list(found)
    while agenda:
        for other in following(agenda.pop()):
            if other not in found:
                found[other] = None
                agenda.append(other)
    return found


def callees_first(called: Mapping[str, Iterable[str]]) -> list[str]:
    """Names, each behind those that it calls, but for circles: the order in which a depth-first search leaves them."""
    order: list[str] = []
    seen: set[str] = set()
    for root in called:
        agenda = [] if root in seen else [(root, iter(called[root]))]
        seen.add(root)
        while agenda:
            name, others = agenda[-1]
            following = next((other for other in others if other not in seen), None)
            if following is None:
                order.append(name)
                agenda.pop()
            else:
                seen.add(following)
                agenda.append((following, iter(called[following])))
    return order
