"""Numbers as programs write them: whole ones as digits alone, and none without an end.

JSON has no bound on the digits of a number, nor have ``minimum`` and ``multipleOf``: a model that cannot stop writes
``0.333333…`` until its budget is spent. 24 bytes hold every double as programs print it (``-2.2250738585072014e-308``)
and every integer of 64 bits. An integer has one spelling: ``-0`` is written as ``0``.

A worked example, with 4 bytes in place of 24. Of ``{"exclusiveMinimum": 0}`` remain

    0.03  1e-9  1234     whatever has at most 4 bytes
    0.001 … 0.009        0.00 is no such number yet, and one digit makes it one: nothing longer

and of ``{"enum": [1, 2.5]}``

    1  2.5  2.50         but not 1.0, and not 1e0

From the last byte on a number ends where it can, and where it cannot it goes on by a shortest way to its end. So no
language becomes empty, and a long number that a schema asks for is there: under ``{"const": 123456789}`` the nine
digits. Where values are listed, or two bounds and a step say how many digits there are, a number has as many bytes as
any of them needs: the integers from 0 to 2**256 - 1 have 78.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints.json_schema.values.numbers import POSITIVE, NumberSpec, digits
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import ByteMask, Node, Transitions

Numbers: TypeAlias = Literal["any", "short"]

MAX_BYTES: Final = 24
"""Bound on the bytes of a number, unless its shortest form needs more."""
INTEGER: Final = ir.choice(ir.literal(b"0"), ir.concat(ir.optional(ir.literal(b"-")), POSITIVE))
"""Integers in one spelling each: ``-0`` is 0."""
_LARGE: Final = 10 ** (MAX_BYTES - 1)  # listed ones from here on may be meant as 1e300
_MAX_NODES: Final = 10_000
"""Bound on the nodes that the search for a shortest end looks at; where it is met, a number goes on as it likes."""


def in_form(spec: NumberSpec, form: Numbers) -> Node:
    """The numbers of a set, written in a form; empty only if there are none."""
    if form == "any":
        return spec.node()
    most = max(MAX_BYTES, spec.num_bytes)
    if spec.languages:  # they may speak of how a number is written
        return Short(spec.node(), most)
    if spec.values is not None:
        whole = frozenset(value for value in spec.admitted_values if value.denominator == 1 and abs(value) < _LARGE)
        rest = replace(spec, values=spec.admitted_values - whole)
        return ir.choice(digits(whole), *([] if rest.is_impossible else [Short(rest.node(), most)]))
    if spec.whole_step is None or spec.whole_step.denominator != 1:
        return Short(spec.node(), most)
    plain = replace(spec, is_plain=True, is_integer=False)
    return Short(INTEGER if plain == NumberSpec(is_plain=True) else ir.both(plain.node(), INTEGER), most)


class Short(Node):
    """The words of a language of numbers of at most so many bytes, and those that end soonest behind as many.

    Args:
        node: what follows, of any length.
        left: how many bytes are left.
    """

    __slots__ = ("can_be_empty", "is_labelled", "left", "node")

    can_be_empty: bool
    is_labelled: bool
    has_counts = True  # the bytes that are left

    def __init__(self, node: Node, left: int) -> None:
        self.node, self.left = node, left
        self.can_be_empty, self.is_labelled = node.can_be_empty, node.is_labelled

    @property
    def label_range(self) -> tuple[int, int] | None:
        """As in `Node`."""
        return self.node.label_range

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """As in `Node`."""
        return self.node.labels

    def transitions(self) -> Transitions:
        """As in `Node`."""
        rows = self.node.transitions()
        if self.left == 0:
            distance = _bytes_to_end(self.node)
            if distance is not None:
                rows = tuple((mask, target) for mask, target in rows if _bytes_to_end(target) == distance - 1)
        return tuple((mask, Short(target, max(0, self.left - 1))) for mask, target in rows)

    def possible_bytes(self) -> ByteMask:
        """As in `Node`."""
        return self.node.possible_bytes() if self.left else super().possible_bytes()

    def _is_empty(self) -> bool:
        return self.node.is_empty  # a shortest word is always there

    def forget(self) -> None:
        """As in `Node`."""
        self.node.forget()

    def _saturate(self, limit: int) -> Node:
        return self.node.saturated(limit) if self.left > limit else self

    def bounds(self) -> tuple[int, int] | None:
        """As in `Node`: a shortest way to the end is never cut off."""
        return self.node.bounds()

    def __eq__(self, other: object) -> bool:
        return type(other) is Short and self.left == other.left and self.node == other.node

    def __hash__(self) -> int:
        return hash((Short, self.node, self.left))

    def __repr__(self) -> str:
        return f"Short({self.node!r}, {self.left})"


@lru_cache(maxsize=4096)
def _bytes_to_end(node: Node) -> int | None:
    """The length of the shortest words; None if there is none, or none was found in `_MAX_NODES`."""
    seen, ring, distance = {node}, [node], 0
    while ring and len(seen) <= _MAX_NODES:
        if any(reached.labels for reached in ring):
            return distance
        targets = dict.fromkeys(target for reached in ring for _, target in reached.transitions())
        ring = [target for target in targets if target not in seen]
        seen.update(ring)
        distance += 1
    return None
