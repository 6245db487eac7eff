"""Linear forms of rules: what may be read next, and what is left of the rule behind it.

    pair: "(" number ("," number)? ")" | "(" ")"

An *item* is a rule with a dot in it, given by what stands behind the dot. The item at the beginning of `pair` has the
linear form

    { ("(", number ("," number)? ")"  |  ")") }

one *head*, the terminal ``"("``, with the item behind it: both alternatives begin alike and are read once. The item
behind it has two heads, `number` and ``")"``; the one behind `number` has ``","`` and ``")"``. A head is a terminal
(also for a special token), another rule or another constraint, and always reads something: a rule is called for its
non-empty texts alone and skipped where it may be empty, so nullable rules, also in cycles, need no care elsewhere.

Most rules are expanded where they are named; of each circle of rules that hold each other at least one is called. So an
opening bracket that begins a tuple, a call or a group is one bracket, a ladder of operators is one frame, and a text
stays ambiguous no longer than it must.

Left recursion becomes left-corner ascent. If rules can begin with each other, a text of one of them begins with a head
that is none of them. Behind it the text *ascends*: a text of rule k is the beginning of a text of each rule m that may
begin with k. So ``e: e "+" t | t`` reads a t, then any number of ``"+" t``, and neither left nor right recursion makes
the stack grow (a call behind which nothing is left is not returned to; see `recogniser`). The language is the same.

Sources: V. Antimirov, Partial derivatives of regular expressions (1996), for linear forms; D. Rosenkrantz, P. Lewis,
Deterministic left corner parsing (1970), and R. Moore, Removing left recursion from context-free grammars (2000).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from decodekit.constraints.grammar.rules import (
    Alternatives,
    Concatenated,
    Expression,
    Repeated,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
    callees_first,
    reached,
)
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import RETURN, Frame, Lexeme
from decodekit.constraints.special import spelling, written
from decodekit.errors import ResourceLimitError

MAX_DEPTH: Final = 500
"""Bound on the nesting of groups in one rule; rules may call each other as deep as the text goes."""
MAX_HEADS: Final = 50_000
"""Bound on the ways in which one place of a rule may go on."""
MAX_WRITTEN_OUT: Final = 300
"""Bound on the rules that are written out where they are named."""
MAX_WAYS: Final = 100
"""Bound on the ways in which a rule that is written out may begin."""
MAX_CORNERS: Final = 400
"""Bound on the rules that may begin with each other."""
MAX_WORK: Final = 2_000_000
"""Bound on the ways to go on at all the places of a grammar that are met."""


@dataclass(slots=True, eq=False)
class Item:
    """The symbols behind the dot of a rule, as a linked list; None is the empty one. `LinearForms` interns them."""

    symbol: Symbol
    then: Item | None


@dataclass(frozen=True, slots=True)
class Either:
    """One of several items."""

    options: tuple[Item | None, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """An item `min` to `max` times."""

    body: Item
    min: int
    max: int | None


@dataclass(frozen=True, slots=True)
class Ascent:
    """A text of `done` was read, as the beginning of a text of `goal`: whatever completes that."""

    done: str
    goal: str


Head: TypeAlias = Terminal | RuleRef | Frame  # the root of another constraint
Symbol: TypeAlias = Head | Either | Rounds | Ascent
Heads: TypeAlias = "tuple[tuple[Head, Item | None], ...]"
"""Heads, each with what is left after it."""


class Linear(NamedTuple):
    """The linear form of an item: each head with what is left after it; and whether the item may be empty."""

    heads: Heads
    is_nullable: bool


class LinearForms:
    """The rules of a grammar with their linear forms. Compared by identity; the frames of a grammar share it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ignored = None if rules.ignore is None else ir.repeat(rules.ignore)
        self._items: dict[tuple[Symbol, int], Item] = {}
        self._linear: Memo[Item, Linear] = Memo(self._linearise)
        self._work = 0
        self.bodies: dict[str, Item | None] = {
            name: self._convert(expression, None, 0) for name, expression in rules.rules.items()
        }
        self.productive = self._find(can_read=True)
        self.nullable = self._find(can_read=False)
        self.written_out = self._find_written_out()

    # -- from expressions to items

    def item(self, symbol: Symbol, then: Item | None) -> Item:
        """The item of a symbol and what follows it; the same object for the same parts."""
        key = (symbol, id(then))
        if key not in self._items:
            self._items[key] = Item(symbol, then)
        return self._items[key]

    def joined(self, item: Item | None, then: Item | None) -> Item | None:
        """One item after the other."""
        if then is None:
            return item
        symbols = []
        while item is not None:
            symbols.append(item.symbol)
            item = item.then
        for symbol in reversed(symbols):
            then = self.item(symbol, then)
        return then

    def _convert(self, expression: Expression, then: Item | None, depth: int) -> Item | None:
        """The item of an expression, before `then`."""
        if depth > MAX_DEPTH:
            raise ResourceLimitError(
                f"a rule has groups nested more than {MAX_DEPTH} deep", hint="a rule of its own for the inner part"
            )
        if isinstance(expression, Concatenated):
            for symbol in reversed(expression.items):
                then = self._convert(symbol, then, depth + 1)
            return then
        if isinstance(expression, Alternatives):
            options = dict.fromkeys(self._convert(option, None, depth + 1) for option in expression.options)
            return self.item(Either(tuple(options)), then)
        if isinstance(expression, Repeated):
            body = None if expression.max == 0 else self._convert(expression.item, None, depth + 1)
            return then if body is None else self.item(Rounds(body, expression.min, expression.max), then)
        if isinstance(expression, RuleRef):
            return self.item(expression, then)
        if isinstance(expression, SpecialToken):
            return self._word(ir.literal(spelling(expression.token)), written(expression.token), then)
        if isinstance(expression, Terminal):
            return self._word(expression.node, expression.name, then)
        root = expression.constraint.root()
        if isinstance(root, Lexeme):
            return self._word(root.node, None, then)
        inline = self.item(root, then)
        may_be_empty = any(move is RETURN for move in root.moves())
        return self.item(Either((inline, then)), None) if may_be_empty else inline

    def _word(self, node: Node, name: str | None, then: Item | None) -> Item | None:
        """A word of `node`, where it may be empty too."""
        if not node.is_nullable:
            return self.item(Terminal(node, name), then)
        some = self.item(Terminal(ir.both(node, _NOT_EMPTY), name), None)
        return self.item(Either((some, None)), then)

    # -- what is known of rules

    def _find(self, *, can_read: bool) -> frozenset[str]:
        """The rules that have a text; without `can_read`, the empty text. A least fixed point."""
        found: set[str] = set()
        users: dict[str, set[str]] = {name: set() for name in self.bodies}
        for name, body in self.bodies.items():
            for used in _rules_in(body):
                users[used].add(name)
        agenda = list(self.bodies)
        while agenda:
            name = agenda.pop()
            if name not in found and self._holds(self.bodies[name], found, can_read=can_read):
                found.add(name)
                agenda += users[name]
        return frozenset(found)

    def _holds(self, item: Item | None, rules: Set[str], *, can_read: bool) -> bool:
        """Whether an item has a text, given the rules that have one; without `can_read`, the empty text."""
        while item is not None:
            match item.symbol:
                case Terminal(node):
                    holds = can_read and not node.is_empty
                case RuleRef(name):
                    holds = name in rules
                case Either(options):
                    holds = any(self._holds(option, rules, can_read=can_read) for option in options)
                case Rounds(body, least):
                    holds = not least or self._holds(body, rules, can_read=can_read)
                case Ascent():
                    holds = True
                case _:
                    holds = can_read
            if not holds:
                return False
            item = item.then
        return True

    def _find_written_out(self) -> frozenset[str]:
        """Rules that do not hold themselves through rules of their kind; those that are named least often come first.

        What many rules name (an expression, a value) is where recursion comes back, and is called.
        """
        holds = {name: _rules_in(body) for name, body in self.bodies.items()}
        num_users = Counter(used for some in holds.values() for used in some)
        chosen: dict[str, set[str]] = {}  # the rules that each chosen one leads to, through chosen ones
        for name in sorted(holds, key=lambda name: num_users[name]):
            reached = {other for used in holds[name] & chosen.keys() for other in (used, *chosen[used])}
            leading = [other for other, others in chosen.items() if any(name in holds[o] for o in (other, *others))]
            if name in holds[name] or any(other in reached for other in leading):
                continue
            chosen[name] = reached
            for other in leading:
                chosen[other] |= {name, *reached}
            if len(chosen) > MAX_WRITTEN_OUT:
                break
        return frozenset(chosen) - self._manifold(chosen)

    def _manifold(self, chosen: Mapping[str, Set[str]]) -> set[str]:
        """Those of some rules, none in a circle, that would begin in too many ways, were they written out."""
        num_ways: dict[str, int] = {}
        manifold: set[str] = set()
        for name in sorted(chosen, key=lambda name: len(chosen[name])):  # who is named before who names
            num_ways[name] = self._num_ways(self.bodies[name], num_ways)
            if num_ways[name] > MAX_WAYS:
                manifold.add(name)
                num_ways[name] = 1
        return manifold

    def _num_ways(self, item: Item | None, num_ways: Mapping[str, int]) -> int:
        """In how many ways an item may begin, at most; a rule that is not given counts once."""
        found = 0
        while item is not None:
            match item.symbol:
                case RuleRef(name):
                    found += num_ways.get(name, 1)
                case Either(options):
                    found += sum(self._num_ways(option, num_ways) for option in options)
                case Rounds(body):
                    found += self._num_ways(body, num_ways)
                case _:
                    return found + 1
            if not self._holds(self.item(item.symbol, None), self.nullable, can_read=False):
                break
            item = item.then
        return found

    @cached_property
    def corners(self) -> dict[str, tuple[str, ...]]:
        """For every rule that may begin with itself, the rules with which it can change places at the left corner."""
        begins = {name: self._leading(body) for name, body in self.bodies.items()}
        cycles: dict[str, tuple[str, ...]] = {}
        for component in _components(begins):
            if len(component) > MAX_CORNERS:
                raise ResourceLimitError(
                    f"{len(component):,} rules may begin with each other, at most {MAX_CORNERS} may", hint="fewer rules"
                )
            if len(component) > 1 or component[0] in begins[component[0]]:
                cycles.update(dict.fromkeys(component, tuple(component)))
        return cycles

    def _leading(self, body: Item | None) -> tuple[str, ...]:
        names = (head.name for head, _ in self.linear(body).heads if isinstance(head, RuleRef))
        return tuple(dict.fromkeys(name for name in names if name in self.productive))

    # -- linear forms

    def linear(self, item: Item | None) -> Linear:
        """The linear form of an item, rules that are left recursive among its heads."""
        return _NOTHING_LEFT if item is None else self._linear[item]

    def _linearise(self, item: Item) -> Linear:
        heads: dict[tuple[Head, Item | None], None] = {}
        is_nullable = False
        agenda: list[Item | None] = [item]
        seen: set[Item | None] = {item}
        while agenda:
            current = agenda.pop()
            if current is None:
                is_nullable = True
                continue
            symbol, then = current.symbol, current.then
            following: Iterable[Item | None] = ()
            if isinstance(symbol, Terminal):
                if not symbol.node.is_empty:
                    heads[symbol, then] = None
            elif isinstance(symbol, RuleRef):
                if symbol.name in self.written_out:
                    for head, left in self.linear(self.bodies[symbol.name]).heads:
                        heads[head, self.joined(left, then)] = None
                elif symbol.name in self.productive:
                    heads[symbol, then] = None
                if symbol.name in self.nullable:
                    following = (then,)
            elif isinstance(symbol, Either):
                following = [self.joined(option, then) for option in symbol.options]
            elif isinstance(symbol, Rounds):
                following = self._rounds(symbol, then, heads)
            elif isinstance(symbol, Ascent):
                following = self._going_up(symbol, then)
            else:
                heads[symbol, then] = None
            for other in following:
                if other not in seen:
                    seen.add(other)
                    agenda.append(other)
            if len(heads) + len(seen) > MAX_HEADS:
                raise ResourceLimitError(
                    f"the grammar has more than {MAX_HEADS:,} ways to go on at one place of a rule",
                    hint="alternatives that begin differently",
                )
        self._work += len(heads) + len(seen)
        if self._work > MAX_WORK:
            raise ResourceLimitError(
                f"the grammar has more than {MAX_WORK:,} ways to go on at all the places of its rules",
                hint="fewer parts in a row that may be left out, or rules of their own for them",
            )
        return Linear(self._grouped(heads), is_nullable)

    def _grouped(self, heads: Iterable[tuple[Head, Item | None]]) -> Heads:
        """Each head once, before any of what is left after it; what cannot be completed is left out."""
        lefts: dict[Head, list[Item | None]] = {}
        for head, left in heads:
            if self._is_possible(left):
                lefts.setdefault(head, []).append(left)
        return tuple(
            (head, some[0] if len(some) == 1 else self.item(Either(tuple(some)), None)) for head, some in lefts.items()
        )

    def _rounds(
        self, symbol: Rounds, then: Item | None, heads: dict[tuple[Head, Item | None], None]
    ) -> tuple[Item | None, ...]:
        """Add the heads of a round that reads something; returns what may come without one."""
        body = self.linear(symbol.body)
        least = 0 if body.is_nullable else symbol.min  # rounds may be empty
        most = None if symbol.max is None else symbol.max - 1
        again = then if most == 0 else self.item(Rounds(symbol.body, max(least - 1, 0), most), then)
        for head, left in body.heads:
            heads[head, self.joined(left, again)] = None
        return () if least else (then,)

    def _going_up(self, symbol: Ascent, then: Item | None) -> list[Item | None]:
        """The items that may come when a text of a left recursive rule is done."""
        ways = [then] if symbol.done == symbol.goal else []
        for above in self.corners[symbol.goal]:
            up = self.item(Ascent(above, symbol.goal), then)
            for head, left in self.linear(self.bodies[above]).heads:
                if head == RuleRef(symbol.done):
                    ways.append(self.joined(left, up))
        return ways

    def _is_possible(self, item: Item | None) -> bool:
        """Whether an item has a text at all, so that nothing is read that cannot be completed."""
        return self._holds(item, self.productive, can_read=True)

    def beginnings(self, name: str) -> Linear:
        """The linear form of a rule's non-empty texts, without heads that are left recursive with it."""
        corners = self.corners.get(name)
        if corners is None:
            return Linear(self.linear(self.bodies[name]).heads, False)
        found: dict[tuple[Head, Item | None], None] = {}
        for corner in corners:
            up = self.item(Ascent(corner, name), None)
            for head, left in self.linear(self.bodies[corner]).heads:
                if not isinstance(head, RuleRef) or head.name not in corners:
                    found[head, self.joined(left, up)] = None
        return Linear(self._grouped(found), False)

    def start(self) -> Item:
        """A whole text."""
        blanks = None if self.ignored is None else self._word(self.ignored, None, None)
        return self.item(RuleRef(self.rules.start), blanks)

    def after_blanks(self, node: Node) -> Node:
        """A terminal with the ignored texts that may stand before it."""
        return node if self.ignored is None else ir.concat(self.ignored, node)


_NOTHING_LEFT: Final = Linear((), True)
_NOT_EMPTY: Final = ir.complement(ir.EPSILON)


def _rules_in(item: Item | None) -> set[str]:
    found: set[str] = set()
    agenda = [item]
    while agenda:
        current = agenda.pop()
        while current is not None:
            symbol = current.symbol
            if isinstance(symbol, RuleRef):
                found.add(symbol.name)
            elif isinstance(symbol, Either):
                agenda += symbol.options
            elif isinstance(symbol, Rounds):
                agenda.append(symbol.body)
            current = current.then
    return found


def _components(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components (M. Sharir, A strong-connectivity algorithm, 1981)."""
    before: dict[str, list[str]] = {name: [] for name in edges}
    for name, successors in edges.items():
        for successor in successors:
            before[successor].append(name)
    components: list[list[str]] = []
    seen: set[str] = set()

    def others_before(name: str) -> list[str]:
        return [other for other in before[name] if other not in seen]

    for name in reversed(callees_first(edges)):
        if name not in seen:
            components.append(sorted(reached([name], others_before)))
            seen.update(components[-1])
    return components
