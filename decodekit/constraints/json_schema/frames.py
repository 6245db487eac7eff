"""JSON values as frames: what the engine reads, unfolded from the plans of objects and arrays.

A value is read as one lexeme: a scalar, or the opening bracket of an object or array. A member's key, its colon and the
comma before it are one lexeme too. The alternatives of a shape live side by side as separate frames.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from decodekit.constraints import ir
from decodekit.constraints.ir import Node
from decodekit.constraints.json_schema import text
from decodekit.constraints.json_schema.arrays import ArrayPlan, ArrayState
from decodekit.constraints.json_schema.drafts import JsonValue
from decodekit.constraints.json_schema.emptiness import Ask, Emptiness
from decodekit.constraints.json_schema.formats import Formats
from decodekit.constraints.json_schema.layout import Gaps, Whitespace, gaps
from decodekit.constraints.json_schema.loader import Library
from decodekit.constraints.json_schema.objects import ObjectPlan, ObjectState, Order
from decodekit.constraints.json_schema.semantics import Semantics
from decodekit.constraints.json_schema.shape import ArraySpec, Goal, ObjectSpec
from decodekit.constraints.json_schema.text import WordTable
from decodekit.constraints.network import Call, End, Frame, Label, Move, Read

MAX_EXPLORED: Final = 256
"""Goals that are looked at before the first text."""

_SCALAR: Final = "scalar"
_OBJECT: Final = "object"
_ARRAY: Final = "array"
_CLOSE: Final = "close"
_NEXT: Final = "next"

_OPEN_OBJECT: Final = ir.concat(ir.literal(b"{"), ir.accept(_OBJECT))
_OPEN_ARRAY: Final = ir.concat(ir.literal(b"["), ir.accept(_ARRAY))
_END: Final = End()


class SchemaNetwork:
    """The unfolded network of one schema with its options.

    Args:
        schema: the JSON value of the schema.
        registry: documents that references may name, by URI.
        formats, whitespace, order: see `JsonSchema`.
    """

    def __init__(
        self,
        schema: JsonValue,
        registry: Mapping[str, JsonValue],
        formats: Formats,
        whitespace: Whitespace,
        order: Order,
    ) -> None:
        self.library = Library(schema, registry)
        self.semantics = Semantics(self.library, formats)
        self.emptiness = Emptiness(self._has_value)
        self.whitespace = whitespace
        self.order = order
        self.root_goal = self.semantics.goal(self.library.root)
        self._objects: dict[ObjectSpec, ObjectPlan] = {}
        self._arrays: dict[ArraySpec, ArrayPlan] = {}
        self._values: dict[Goal, Node] = {}
        self._tables: dict[tuple[ObjectPlan, Node], WordTable] = {}

    def root(self) -> Frame:
        """The frame of a whole text."""
        return ValueFrame(self, self.root_goal, ir.EPSILON, 0)

    def gaps(self, depth: int) -> Gaps:
        """The white space of an object or array that is `depth` brackets deep."""
        return gaps(self.whitespace, depth)

    def inner(self, depth: int) -> int:
        """The depth of what lies inside; the same everywhere unless white space depends on it."""
        return depth + 1 if isinstance(self.whitespace, int) else 0

    def is_inhabited(self, goal: Goal) -> bool:
        """Whether some value satisfies a goal."""
        return self.emptiness.is_inhabited(goal)

    def explore(self) -> None:
        """Meet the errors of combinations (too many alternatives, a reference to itself) before a text does.

        Looks at the first `MAX_EXPLORED` goals below the root, nearest first.

        Raises:
            ConstraintError: what a text that leads there would meet.
        """
        seen = {self.root_goal}
        queue = deque([self.root_goal])
        while queue:
            goal = queue.popleft()
            shape = self.semantics.shape(goal)
            below: list[Goal] = []
            for plan in map(self._object, shape.objects):
                below += [region.goal for region in plan.classes]
                below += [plan.goal(number) for number in range(min(len(plan.names), MAX_EXPLORED))]
            for spec in shape.arrays:
                below += [*spec.prefix[:MAX_EXPLORED], spec.rest, *(contains.goal for contains in spec.contains)]
            for other in below:
                if other not in seen and len(seen) < MAX_EXPLORED:
                    seen.add(other)
                    queue.append(other)

    def objects(self, goal: Goal) -> list[ObjectPlan]:
        """The plans of the objects that satisfy a goal, those that no object satisfies left out."""
        plans = map(self._object, self.semantics.shape(goal).objects)
        return [plan for plan in plans if plan.is_satisfiable(self.is_inhabited)]

    def arrays(self, goal: Goal) -> list[ArrayPlan]:
        """The plans of the arrays that satisfy a goal, those that no array satisfies left out."""
        plans = map(self._array, self.semantics.shape(goal).arrays)
        return [plan for plan in plans if plan.is_satisfiable(self.is_inhabited)]

    def value(self, goal: Goal) -> Node:
        """A scalar that satisfies a goal, or the bracket that opens an object or array that does, each labelled."""
        node = self._values.get(goal)
        if node is None:
            parts = [ir.concat(part, ir.accept(_SCALAR)) for part in self._scalars(goal)]
            if self.objects(goal):
                parts.append(_OPEN_OBJECT)
            if self.arrays(goal):
                parts.append(_OPEN_ARRAY)
            node = self._values[goal] = ir.choice(*parts)
        return node

    def keys(self, plan: ObjectPlan, colon: Node) -> WordTable:
        """The declared names as keys, each with its colon and its number as the label."""
        table = self._tables.get((plan, colon))
        if table is None:
            numbers = plan.numbers

            def end(position: int) -> Node:
                return ir.concat(text.QUOTE, colon, ir.accept(numbers[position]))

            table = self._tables[plan, colon] = WordTable(plan.sorted_names, end, are_labelled=True)
        return table

    def _object(self, spec: ObjectSpec) -> ObjectPlan:
        plan = self._objects.get(spec)
        if plan is None:
            plan = self._objects[spec] = ObjectPlan(spec, self.semantics, self.order, self.is_inhabited)
        return plan

    def _array(self, spec: ArraySpec) -> ArrayPlan:
        plan = self._arrays.get(spec)
        if plan is None:
            plan = self._arrays[spec] = ArrayPlan(spec)
        return plan

    def _scalars(self, goal: Goal) -> list[Node]:
        shape = self.semantics.shape(goal)
        names = ((b"null", shape.has_null), (b"true", shape.has_true), (b"false", shape.has_false))
        parts = [ir.literal(name) for name, is_member in names if is_member]
        if not shape.strings.is_empty:
            parts.append(text.quoted(shape.strings))
        parts += [node for spec in shape.numbers if not (node := spec.node()).is_empty]
        return parts

    def _has_value(self, goal: Goal, ask: Ask) -> bool:
        if self._scalars(goal):
            return True
        shape = self.semantics.shape(goal)
        # All alternatives are asked, not only the first that holds: the answers of one round are found together.
        return any(
            [
                *(self._object(spec).is_satisfiable(ask) for spec in shape.objects),
                *(self._array(spec).is_satisfiable(ask) for spec in shape.arrays),
            ]
        )


@dataclass(frozen=True, slots=True)
class ValueFrame(Frame):
    """Before a value that satisfies `goal`; `lead` is the white space in front of it."""

    network: SchemaNetwork
    goal: Goal
    lead: Node
    depth: int

    def moves(self) -> tuple[Move, ...]:
        """One lexeme."""
        return (Read(ir.concat(self.lead, self.network.value(self.goal))),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """A scalar is done; a bracket leads into every alternative."""
        network = self.network
        if label == _SCALAR:
            return (_END,)
        inner = network.inner(self.depth)
        if label == _OBJECT:
            return tuple(
                ObjectFrame(network, plan, plan.start, self.depth, True) for plan in network.objects(self.goal)
            )
        return tuple(
            ArrayFrame(network, plan, plan.start, self.depth, inner, "open") for plan in network.arrays(self.goal)
        )


@dataclass(frozen=True, slots=True)
class CallFrame(Frame):
    """Nothing but a call."""

    callee: Frame
    then: Frame

    def moves(self) -> tuple[Move, ...]:
        """The call."""
        return (Call(self.callee, self.then),)


@dataclass(frozen=True, slots=True)
class _Permitted:
    """The declared names that may come next in one state of an object; a selection of its table of keys."""

    plan: ObjectPlan
    state: ObjectState

    def has_any(self, start: int, stop: int) -> bool:
        plan, state = self.plan, self.state
        if plan.in_order:
            first, last = plan.window(state)
            if last - first < stop - start:
                at = plan.positions
                return any(
                    start <= at.get(number, -1) < stop and plan.may_take(number, state) for number in range(first, last)
                )
        return any(plan.may_take(number, state) for number in plan.numbers[start:stop])


@dataclass(frozen=True, slots=True)
class ObjectFrame(Frame):
    """Inside an object: after the opening bracket (`is_first`) or after a member."""

    network: SchemaNetwork
    plan: ObjectPlan
    state: ObjectState
    depth: int
    is_first: bool

    def moves(self) -> tuple[Move, ...]:
        """A key with its colon, or the closing bracket."""
        network, plan, state = self.network, self.plan, self.state
        around = network.gaps(self.depth)
        if self.is_first:
            before_key, before_close = around.first, around.close_empty
        else:
            before_key = ir.concat(around.before_comma, ir.literal(b","), around.after_comma)
            before_close = around.close
        before_key = ir.concat(before_key, text.QUOTE)
        colon = ir.concat(around.before_colon, ir.literal(b":"))
        parts = []
        if plan.can_close(state):
            parts.append(ir.concat(before_close, ir.literal(b"}"), ir.accept(_CLOSE)))
        declared = network.keys(plan, colon).node(_Permitted(plan, state))
        if declared is not ir.EMPTY:
            parts.append(ir.concat(before_key, declared))
        moves: list[Move] = [Read(ir.choice(*parts))] if parts else []
        others = [
            ir.concat(before_key, keys, text.QUOTE, colon, ir.accept((number, witnesses)))
            for number, witnesses, keys in plan.others(state)
        ]
        moves += [Read(other, capture=True) for other in others]
        return tuple(moves)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The values that may stand at the key, for every way to meet the obligations."""
        if label == _CLOSE:
            return (_END,)
        plan, state, network = self.plan, self.state, self.network
        if isinstance(label, int):
            members = [
                (plan.joined(plan.goal(label), witnesses), plan.after_declared(label, witnesses, state))
                for witnesses in plan.meeting(label, state)
            ]
        else:
            number, met = cast("tuple[int, tuple[int, ...]]", label)
            key = json.loads(text[text.index(b'"') : text.rindex(b'"') + 1])
            goal = plan.joined(plan.classes[number].goal, met)
            members = [(goal, plan.after_other(key, met, state))]
        lead, inner = network.gaps(self.depth).after_colon, network.inner(self.depth)
        return tuple(
            CallFrame(ValueFrame(network, goal, lead, inner), ObjectFrame(network, plan, after, self.depth, False))
            for goal, after in members
            if network.is_inhabited(goal) and plan.can_finish(after)
        )


@dataclass(frozen=True, slots=True)
class ArrayFrame(Frame):
    """Inside an array, at `place`: "open" after the bracket, "comma" after a comma, "item" after an item."""

    network: SchemaNetwork
    plan: ArrayPlan
    state: ArrayState
    depth: int
    inner: int
    place: str

    def moves(self) -> tuple[Move, ...]:
        """The items with which the array can still be finished, a comma, or the closing bracket."""
        network, plan, state = self.network, self.plan, self.state
        around = network.gaps(self.depth)
        close = ir.EMPTY
        if plan.can_close(state) and self.place != "comma":
            before = around.close_empty if self.place == "open" else around.close
            close = ir.concat(before, ir.literal(b"]"), ir.accept(_CLOSE))
        items = plan.items(state, network.is_inhabited)
        if self.place == "item":
            comma = ir.EMPTY
            if any(True for _ in items):
                comma = ir.concat(around.before_comma, ir.literal(b","), ir.accept(_NEXT))
            return (Read(ir.choice(close, comma)),)
        lead = around.first if self.place == "open" else around.after_comma
        calls: list[Move] = [
            Call(
                ValueFrame(network, goal, lead, self.inner),
                ArrayFrame(network, plan, after, self.depth, self.inner, "item"),
            )
            for goal, after in items
        ]
        return (*calls, Read(close)) if close is not ir.EMPTY else tuple(calls)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The end, or the next item."""
        if label == _CLOSE:
            return (_END,)
        return (ArrayFrame(self.network, self.plan, self.state, self.depth, self.inner, "comma"),)
