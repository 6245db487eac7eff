"""JSON values as frames: what the engine reads, unfolded from the plans of objects and arrays.

A value is read as one lexeme: a scalar, or the opening bracket of an object or array. Punctuation with the whitespace
around it is called as lexemes of its own, so that all schemas share their lexical states and all members what follows
them; so is a key from behind its first quote to its last. The alternatives of a shape live side by side as separate
frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

from decodekit.constraints.json_schema.document.drafts import JsonValue
from decodekit.constraints.json_schema.document.loader import Library, Location
from decodekit.constraints.json_schema.frames.arrays import MAX_CONTAINS, SOME_TEXT, ArrayPlan, ArrayState, NextItem
from decodekit.constraints.json_schema.frames.embedded import embedded
from decodekit.constraints.json_schema.frames.layout import Layout, Whitespace, outermost
from decodekit.constraints.json_schema.frames.objects import MAX_CLASSES, SOME_KEY, ObjectPlan, ObjectState, Order
from decodekit.constraints.json_schema.meaning.keywords import KEYWORDS
from decodekit.constraints.json_schema.meaning.limit_estimate import may_meet_a_limit
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.notations import JSON, Notation
from decodekit.constraints.json_schema.strings.string_escapes import Escapes, spelled
from decodekit.constraints.json_schema.strings.string_formats import Formats
from decodekit.constraints.json_schema.strings.text import WordTable
from decodekit.constraints.json_schema.values import scalars
from decodekit.constraints.json_schema.values.inhabited import Ask, Emptiness
from decodekit.constraints.json_schema.values.scalars import Scalar
from decodekit.constraints.json_schema.values.shape import ArraySpec, Goal, ObjectSpec, Shape, conjunction
from decodekit.constraints.json_schema.values.short_numbers import Numbers
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import kept
from decodekit.constraints.network import END, Call, Frame, Fresh, Label, Lexeme, Move, Read, TextNeeded, Within
from decodekit.errors import UnsupportedSchemaError

MAX_EXPLORED: Final = 16
"""Goals that are looked at before the first text: those near the root. With 64 the slowest hundredth of schemas took
twice as long to their first mask."""
MAX_EXPLORED_BRANCHED: Final = 2_000
"""As `MAX_EXPLORED`, for schemas that may meet a limit."""
MAX_EXPLORED_LITERALS: Final = 4_000
"""Bound on the schemas in these goals: a goal out of a hundred takes as long as a hundred goals."""

_SCALAR: Final = "scalar"
_OBJECT: Final = "object"
_ARRAY: Final = "array"
_NAME: Final = "name"
"""The label of a key or string whose text matters."""

_OPEN_OBJECT: Final = ir.concat(ir.literal(b"{"), ir.accept(_OBJECT))
_OPEN_ARRAY: Final = ir.concat(ir.literal(b"["), ir.accept(_ARRAY))


class Messages(Protocol):
    """Descriptions of what a schema asks for, in English; the module `descriptions` has them."""

    def expected(self, frame: Frame, move: Move, /) -> tuple[str, ...]:
        """As `Frame.expected`, of a value, an object or an array."""

    def objection(self, frame: Frame, text: bytes, start: int, stop: int, /) -> str | None:
        """As `Frame.objection`: the keywords that refuse a value, what an object or array lacks or cannot have."""


class SchemaNetwork:
    """The unfolded network of one schema with its options, as of `JsonSchema`; `registry` has documents by URI."""

    def __init__(
        self,
        schema: JsonValue,
        registry: Mapping[str, JsonValue],
        formats: Formats,
        whitespace: Whitespace,
        order: Order,
        escapes: Escapes,
        numbers: Numbers,
        messages: Messages,
        notation: Notation = JSON,
    ) -> None:
        self.messages = messages
        self.notation, self.is_json = notation, notation == JSON
        self.library = Library(schema, registry)

        def embed(semantics: Semantics, location: Location) -> Node:
            """The strings that hold a text of JSON, without white space, that ``contentSchema`` admits."""
            defined = cast("Any", semantics.library.root.value).get("$defs", {})
            content = {"allOf": [location.keywords().get("contentSchema", True)], "$defs": defined}
            network = SchemaNetwork(content, {}, formats, "compact", order, escapes, numbers, messages)
            return embedded(network.root()) if network.is_inhabited(network.root_goal) else ir.EMPTY

        self.semantics = Semantics(self.library, formats, KEYWORDS, embed)
        self.emptiness = Emptiness(self._has_value, self.semantics.leave)
        self.is_inhabited = self.emptiness.is_inhabited
        self.layout = outermost(whitespace)
        self.order = order
        self.escapes = escapes
        self.numbers = numbers
        self.quotations = notation.places
        """By the place of an object or array inside of a key or string: see `ObjectFrame` and `ArrayFrame`."""
        self.root_goal = self.semantics.goal(self.library.root)
        self.is_told = True
        """Whether `explore` has met the limits that a text can meet, as far as that can be foreseen."""

    def root(self) -> Frame:
        """The frame of a whole text."""
        return ValueFrame(self, self.root_goal, self.layout)

    def lexeme(self, node: Node) -> Node:
        """The texts of a lexeme that are generated: those with the escapes that are wanted, in the notation."""
        return self.notation.value(self._spelled(node))

    def inside(self, place: str, node: Node) -> Node:
        """A key or string from behind what begins it, at one of the places of `quotations`."""
        return self.quotations[place].language(self._spelled(node))

    @kept
    def name(self, place: str, body: Node) -> Read:
        """A key or string of a language, of which it matters which one it is."""
        return Read(self.inside(place, ir.concat(body, text.QUOTE, ir.accept(_NAME))), capture=True)

    def _spelled(self, node: Node) -> Node:
        return spelled(node, self.escapes) if self.notation.strings == "json" else node

    def explore(self) -> None:
        """Meet the errors and limits of combinations before a text does: the guard has to be known then.

        Looks at the first `MAX_EXPLORED` goals below the root, nearest first; at more of a schema that may meet limits.
        If it did not look at all of those, a guard has to be there in case (`is_told`).

        Raises:
            ConstraintError: what a text that leads there would meet, a schema that refers to itself in place.
        """
        may_meet = may_meet_a_limit(self.library, MAX_CLASSES.bit_length() - 2, MAX_CONTAINS)
        most = MAX_EXPLORED_BRANCHED if may_meet else MAX_EXPLORED
        seen = {self.root_goal}
        queue = deque([self.root_goal])
        is_cut, num_seen, num_literals = False, 0, 0
        while queue:
            goal = queue.popleft()
            num_seen += 1
            num_literals += len(goal)
            if num_literals > MAX_EXPLORED_LITERALS:
                is_cut = True
                break
            if self.semantics.is_plain(goal):  # and leads nowhere
                continue
            try:
                below = list(self._below(goal, most))
            except UnsupportedSchemaError:
                if num_seen > MAX_EXPLORED:  # perhaps no text leads there
                    continue
                raise
            for other in below:
                if other not in seen and len(seen) < most:
                    seen.add(other)
                    queue.append(other)
                is_cut = is_cut or other not in seen
        self.is_told = most == MAX_EXPLORED or not is_cut

    def _below(self, goal: Goal, most: int) -> Iterator[Goal]:
        """The goals of the members and items of what satisfies a goal, of each kind at most so many."""
        shape = self.semantics.shape(goal)
        for plan in self._plans(shape):
            yield from plan.other_goals
            yield from (plan.goal(number) for number in range(min(len(plan.names), most)))
            yield from (witness.goal for witness in plan.spec.witnesses)
        for spec in (plan.spec for plan in map(self._array, shape.arrays)):
            yield from (*spec.prefix[:most], spec.rest)
            for contains in spec.contains:
                yield from (contains.goal, conjunction(spec.rest, contains.goal))

    @kept
    def objects(self, goal: Goal) -> tuple[ObjectPlan, ...]:
        """The plans of the objects that satisfy a goal, those that no object satisfies left out."""
        plans = self._plans(self.semantics.shape(goal))
        return tuple([plan for plan in plans if plan.is_satisfiable(self.is_inhabited)])

    @kept
    def arrays(self, goal: Goal) -> tuple[ArrayPlan, ...]:
        """The plans of the arrays that satisfy a goal, those that no array satisfies left out."""
        plans = map(self._array, self.semantics.shape(goal).arrays)
        return tuple([plan for plan in plans if plan.is_satisfiable(self.is_inhabited)])

    @kept
    def value(self, goal: Goal) -> Read:
        """A scalar that satisfies a goal, or the bracket that opens an object or array that does, each labelled."""
        return self.begun(goal, self.lexeme)

    def begun(self, goal: Goal, spell: Callable[[Node], Node]) -> Read:
        """As `value`, spelled otherwise."""
        scalar = scalars.language(self.semantics.shape(goal), form=self.numbers)
        opens = [_OPEN_OBJECT] if self.objects(goal) else []
        opens += [_OPEN_ARRAY] if self.arrays(goal) else []
        if not opens:
            return Read(spell(scalar), reader=END)
        return Read(spell(ir.choice(ir.concat(scalar, ir.accept(_SCALAR)), *opens)))

    @kept
    def keys(self, names: tuple[str, ...]) -> WordTable:
        """Names, ascending, as keys from behind the first quote on, each with its place among them as the label.

        Alternatives that declare the same names share the table, and so its lexical states.
        """
        return WordTable(names, text.closed, are_labelled=True)

    @kept
    def key_opening(self, layout: Layout, is_first: bool, place: str) -> Lexeme:
        """From an opening bracket or a member to the text of a key."""
        gap = layout.first if is_first else layout.next
        return Lexeme(ir.concat(gap.node, ir.literal(self.quotations[place].begin)))

    @kept
    def colon(self, layout: Layout) -> Lexeme:
        """From a key to its value."""
        is_read = self.notation.has_bare_keys
        return Lexeme(layout.colon.node.derivative(ord(":"))) if is_read else layout.colon

    def text_at(self, place: str, lexeme: bytes) -> str:
        """The key or string that was read at a place."""
        quotation = self.quotations[place]
        found = quotation.read(lexeme[: -len(quotation.end)])
        assert found is not None
        return found

    def fresh(self, place: str, frames: tuple[Frame, ...], listed: Collection[str]) -> Fresh | None:
        """The frames behind a key or string that is not `listed`; None where parts of strings cannot be read alone."""
        quotation = self.quotations[place]
        return Fresh(frames, listed, quotation.read, quotation.end, quotation.spell) if quotation.is_told else None

    def _plans(self, shape: Shape) -> list[ObjectPlan]:
        """The plans of the alternatives of a shape: many have smaller bounds each."""
        share = max(1, len(shape.objects) // 2)
        return [self._object(spec, share) for spec in shape.objects]

    @kept
    def _object(self, spec: ObjectSpec, share: int) -> ObjectPlan:
        return ObjectPlan(spec, self.semantics, self.order, self.is_inhabited, self.notation.keys, share)

    @kept
    def _array(self, spec: ArraySpec) -> ArrayPlan:
        return ArrayPlan(spec, self.semantics, self.numbers, is_lossy=self.notation.is_lossy)

    def _has_value(self, goal: Goal, ask: Ask) -> bool:
        shape = self.semantics.shape(goal)
        is_surely_written = shape.has_plain or not self.notation.is_lossy
        if shape.has_scalar and (is_surely_written or not self.notation.value(text.quoted(shape.strings)).is_empty):
            return True
        # All alternatives are asked, not only the first that holds: the answers of one round are found together.
        return any(
            [
                *(plan.is_satisfiable(ask) for plan in self._plans(shape)),
                *(self._array(spec).is_satisfiable(ask) for spec in shape.arrays),
            ]
        )


@dataclass(frozen=True, slots=True)
class _ToldFrame(Frame):
    """A frame that the messages of its network speak of."""

    network: SchemaNetwork

    def expected(self, move: Move) -> tuple[str, ...]:
        """The values that the schema allows where `move` begins, in English."""
        return self.network.messages.expected(self, move)

    def objection(self, text: bytes, start: int, stop: int) -> str | None:
        """The reason of the schema why the text ends at `stop`; None in notations other than JSON."""
        return self.network.messages.objection(self, text, start, stop) if self.network.is_json else None


@dataclass(frozen=True, slots=True)
class ValueFrame(_ToldFrame):
    """Before a value that satisfies `goal`; `layout` is that of an object or array that begins here."""

    goal: Goal
    layout: Layout

    def moves(self) -> tuple[Move, ...]:
        """One lexeme."""
        return (self.network.value(self.goal),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """A scalar is done; a bracket leads into every alternative."""
        network = self.network
        if label == _SCALAR:
            return (END,)
        if label == _OBJECT:
            return tuple(
                ObjectFrame(network, plan, plan.start, self.layout, "open") for plan in network.objects(self.goal)
            )
        return tuple(ArrayFrame(network, plan, plan.start, self.layout, "open") for plan in network.arrays(self.goal))


@dataclass(frozen=True, slots=True)
class CallFrame(Frame):
    """Nothing but a call."""

    callee: Frame
    then: Frame

    def moves(self) -> tuple[Move, ...]:
        """The call."""
        return (Call(self.callee, self.then),)


def _read_word(network: SchemaNetwork, place: str, table: WordTable, permitted: bytes) -> Read:
    """One of the permitted words of a table, whose lexical states are the same whatever is permitted."""
    # Behind half of a surrogate pair the words of a range would have gaps, and behind half of what a notation has.
    has_ranges = network.is_json and table.is_basic
    within = Within(network.inside(place, table.node()), permitted) if has_ranges else None
    return Read(network.inside(place, table.node(permitted)), within=within)


@dataclass(frozen=True, slots=True)
class ObjectFrame(_ToldFrame):
    """Inside an object, at `place`: "open" after the bracket, "key" after the first quote of one, "member" after one.

    Where every key is free, one language stands for all keys, and which key it was is asked at its end. The place also
    tells which quotation mark it was, where there are several (see `SchemaNetwork.quotations`).
    """

    plan: ObjectPlan
    state: ObjectState
    layout: Layout
    place: str

    def moves(self) -> tuple[Move, ...]:
        """A key that the object can go on with, or what leads to one, or the closing bracket."""
        plan, state, network = self.plan, self.state, self.network
        is_key = self.place in network.quotations
        if SOME_KEY in state.used and not plan.is_told(state, before_key=is_key):
            raise TextNeeded
        if is_key:
            return self._keys()
        layout, is_empty = self.layout, self.place == "open"
        moves: list[Move] = []
        if plan.can_close(state):
            moves.append(layout.close_empty_object if is_empty else layout.close_object)
        if plan.has_next(state):
            for place in network.notation.places_of_keys:
                if is_empty:
                    moves += [
                        Call(network.key_opening(one, True, place), replace(self, layout=one, place=place))
                        for one in layout.at_key
                    ]
                else:
                    moves.append(Call(network.key_opening(layout, False, place), self._at(place, state)))
        return tuple(moves)

    def _keys(self) -> tuple[Move, ...]:
        plan, state = self.plan, self.state
        if plan.is_free(state):
            return (self.network.name(self.place, self.network.notation.keys),)
        moves: list[Move] = []
        permitted = plan.permitted(state)
        if 1 in permitted:
            moves.append(_read_word(self.network, self.place, self.network.keys(plan.sorted_names), permitted))
        moves += [
            Read(self.network.inside(self.place, ir.concat(keys, text.QUOTE, ir.accept(label))), capture=True)
            for label, keys in plan.others(state)
        ]
        return tuple(moves)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The values that may stand at the key, for every way to meet the obligations."""
        if SOME_KEY in self.state.used:
            raise TextNeeded
        plan, state = self.plan, self.state
        if type(label) is int:
            return self._declared(plan.numbers[label])
        key = self.network.text_at(self.place, text)
        if label == _NAME:
            number = plan.index.get(key)
            if number is not None:
                return self._declared(number) if plan.may_take(number, state) else ()
            return self._other(key, 0, ()) if key not in state.used else ()
        return self._other(key, *cast("tuple[int, tuple[int, ...]]", label))

    def fresh(self, label: Label) -> Fresh | None:
        """The frames behind a key that is neither declared nor used; the language of a pattern has none that is."""
        if SOME_KEY in self.state.used:
            raise TextNeeded
        if type(label) is tuple and not self.state.pending:
            return self.network.fresh(self.place, self._other(SOME_KEY, *label), ())
        if label != _NAME:
            return None
        listed = self.plan.index.keys() | self.state.used
        return self.network.fresh(self.place, self._other(SOME_KEY, 0, ()), listed)

    def outward(self) -> Frame:
        """Members in one order."""
        if self.plan.in_order or self.state.is_sorted or SOME_KEY in self.state.used:
            return self
        return self._at(self.place, replace(self.state, is_sorted=True))

    def _at(self, place: str, state: ObjectState) -> ObjectFrame:
        return ObjectFrame(self.network, self.plan, state, self.layout, place)

    def _declared(self, number: int) -> tuple[Frame, ...]:
        plan, state = self.plan, self.state
        return self._members(
            [
                (plan.joined(plan.goal(number), witnesses), plan.after_declared(number, witnesses, state))
                for witnesses in plan.meeting(number, state)
            ]
        )

    def _other(self, key: str, number: int, met: tuple[int, ...]) -> tuple[Frame, ...]:
        plan = self.plan
        return self._members([(plan.joined(plan.other_goals[number], met), plan.after_other(key, met, self.state))])

    def _members(self, members: list[tuple[Goal, ObjectState]]) -> tuple[Frame, ...]:
        network, plan = self.network, self.plan

        def value(goal: Goal, layout: Layout) -> Frame:  # the same for all members with such a value
            return CallFrame(network.colon(layout), ValueFrame(network, goal, layout.inner))

        return tuple(
            CallFrame(value(goal, layout), ObjectFrame(network, plan, after, layout, "member"))
            for goal, after in members
            if network.is_inhabited(goal) and plan.can_finish(after)
            for layout in self.layout.behind_key
        )


@dataclass(frozen=True, slots=True)
class ArrayFrame(_ToldFrame):
    """Inside an array, at `place`: "open" after the bracket, "next" before an item, "item" after one.

    At "text" it is inside a string that differs from others: one language stands for all of them, used or not, and
    which one it was is asked at its end.
    """

    plan: ArrayPlan
    state: ArrayState
    layout: Layout
    place: str

    def moves(self) -> tuple[Move, ...]:
        """The items with which the array can still be finished, or what leads to them, or the closing bracket."""
        network, plan, state = self.network, self.plan, self.state
        if self.place in network.quotations:
            return (network.name(self.place, self._item_of_texts().texts),)
        items = plan.items(state, network.is_inhabited)
        if self.place == "next":
            return self._items(items)
        layout, is_empty = self.layout, self.place == "open"
        moves: list[Move] = []
        if plan.can_close(state):
            moves.append(layout.close_empty_array if is_empty else layout.close_array)
        if any(True for _ in items):
            if is_empty:
                moves += [Call(one.first, replace(self, layout=one, place="next")) for one in layout.at_item]
            else:
                moves.append(Call(layout.next, self._at("next", state)))
        return tuple(moves)

    def _items(self, items: Iterable[NextItem]) -> tuple[Move, ...]:
        moves: list[Move] = []
        for number, item in enumerate(items):
            if item.scalars is None:
                moves.append(Call(ValueFrame(self.network, item.goal, self.layout.inner), self._at("item", item.after)))
                continue
            for place in self.network.notation.places_of_texts:
                opening, inside = self.network.quotations[place].opening, self._at(place, self.state)
                if item.texts is not ir.EMPTY:
                    moves.append(Call(opening, inside))
                if item.listed is not None and 1 in item.listed[1]:
                    moves.append(Call(opening, ListedFrame(inside, item)))
            if item.scalars is not ir.EMPTY:
                language = self.network.lexeme(ir.concat(item.scalars, ir.accept(number)))
                moves.append(Read(language, capture=item.is_remembered))
        return tuple(moves)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The frames behind a scalar that was read here; none behind a string that is used already."""
        if label == _NAME:
            if SOME_TEXT in self.state.used:
                raise TextNeeded
            scalar: Scalar = ("string", self.network.text_at(self.place, text))
            return () if scalar in self.state.used else self.behind(self._item_of_texts(), scalar)
        item = tuple(self.plan.items(self.state, self.network.is_inhabited))[cast("int", label)]
        return self.behind(item, scalars.read(self.network.notation.scalar(text)) if item.is_remembered else None)

    def fresh(self, label: Label) -> Fresh | None:
        """The frames behind a string that is not used."""
        if SOME_TEXT in self.state.used:
            raise TextNeeded
        if label != _NAME:
            return None
        listed = {value for kind, value in self.state.used if kind == "string" and isinstance(value, str)}
        return self.network.fresh(self.place, self.behind(self._item_of_texts(), SOME_TEXT), listed)

    def _item_of_texts(self) -> NextItem:
        items = self.plan.items(self.state, self.network.is_inhabited)
        return next(item for item in items if item.texts is not ir.EMPTY)

    def _at(self, place: str, state: ArrayState) -> ArrayFrame:
        return ArrayFrame(self.network, self.plan, state, self.layout, place)

    def behind(self, item: NextItem, scalar: Scalar | None) -> tuple[Frame, ...]:
        """After an item, which is remembered if others must differ from it."""
        state = item.after
        if scalar is not None and item.is_remembered:
            state = self.plan.remember(state, scalar)
        return (self._at("item", state),)


@dataclass(frozen=True, slots=True)
class ListedFrame(Frame):
    """Inside a string out of a list, of which those are left that no other item of the array is; `array` says where."""

    array: ArrayFrame
    item: NextItem

    def moves(self) -> tuple[Move, ...]:
        """One word of the list."""
        assert self.item.listed is not None
        return (_read_word(self.array.network, self.array.place, *self.item.listed),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The array, where the word is gone."""
        assert self.item.listed is not None
        return self.array.behind(self.item, ("string", self.item.listed[0].words[cast("int", label)]))
