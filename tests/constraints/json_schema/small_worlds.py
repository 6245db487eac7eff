"""Every text of a small world of JSON values under one schema: accepted exactly when `jsonschema` says it is valid.

A world is a list of values with all texts that spell them compactly. The texts are walked as a trie, so that what many
of them begin with is read once. What is found wrong is returned as sentences; no sentence means that

* with ``order="any"`` a text is accepted if and only if its value is valid and no key comes twice;
* with ``order="declared"`` every accepted text is valid, and every valid value is accepted in some order of its
  members; see `declared_orders` for which order that is where no combinator speaks of the same object;
* what is alive can be completed: after every beginning of a text of the world that is not refused, some text follows
  (perhaps outside of the world), and it is valid;
* a schema that is refused as unsatisfiable has no valid value in the world, and any other one has some value at all.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema

from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames.objects import Order
from decodekit.constraints.matching.compiler import compile
from decodekit.errors import ResourceLimitError, UnsatisfiableError
from tests.reference.json_network import Item, SlowNetwork
from tests.reference.vocabularies import byte_vocabulary

VALIDATORS: Final = {
    4: jsonschema.Draft4Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
DIALECTS: Final = {
    4: "http://json-schema.org/draft-04/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
}
NUM_TRIES: Final = 6
MAX_STEPS: Final = 40
"""Pieces with which one try completes a beginning."""
_PIECES: Final = (
    *(b'"%c":' % key for key in b"abc"), *(b',"%c":' % key for key in b"abc"), b"0", b"1", b"[]", b",0", b",1", b",[]",
    b"{}", b',""', b',"',
)  # fmt: skip
_BYTES: Final = tuple(bytes((byte,)) for byte in range(256))


def _pieces(rng: random.Random) -> Iterator[bytes]:
    """What may come next: what ends a string, an object or an array first, since nearly anything may be in a string."""
    ends, string = (b"}", b"]"), (b'"', *rng.sample([b"a", b"b", b"c"], 3))
    yield from (*string, *ends) if rng.random() < 0.7 else (*ends, *string)
    yield from rng.sample(_PIECES, len(_PIECES))
    yield from _BYTES


@dataclass
class _Place:
    """A place of the trie: what follows, and the values whose text ends here."""

    after: dict[int, _Place] = field(default_factory=dict)
    value: int | None = None
    is_twice: bool = False


class World:
    """Values with their texts.

    Args:
        values: each value once. Its texts have the members of objects in every order, at the outermost level.
        others: texts that are no value, because a key comes twice.
    """

    def __init__(self, values: Sequence[Any], others: Iterable[str] = ()) -> None:
        self.values = values
        self.root = _Place()
        for number, value in enumerate(values):
            for text in texts_of(value):
                self._add(text).value = number
        for text in others:
            self._add(text).is_twice = True

    def _add(self, text: str) -> _Place:
        place = self.root
        for byte in text.encode():
            place = place.after.setdefault(byte, _Place())
        return place


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def texts_of(value: Any) -> Iterator[str]:
    """The compact texts of a value, its members in every order."""
    if not isinstance(value, dict):
        yield compact(value)
        return
    for members in itertools.permutations(value.items()):
        yield compact(dict(members))


State = tuple[frozenset[Item], bool]


class _Walk:
    """One schema with its options, walked through a world. States are values, and steps are remembered."""

    def __init__(self, rule: JsonSchema) -> None:
        self.rule = rule
        self.network = SlowNetwork(rule)
        self.start: State = self.network.items, self.network.is_accepting
        self._steps: dict[tuple[frozenset[Item], int], State | None] = {}
        self._completions: dict[State, bytes] = {}

    def step(self, state: State, byte: int) -> State | None:
        key = state[0], byte
        if key not in self._steps:
            self.network.items, self.network.is_accepting = state
            alive = self.network.feed(bytes((byte,)))
            self._steps[key] = (self.network.items, self.network.is_accepting) if alive else None
        return self._steps[key]

    def completion(self, text: bytes, state: State) -> bytes | None:
        """Some bytes that complete what led to a state; None if none are found.

        No state that is alive has nothing behind it, so a state without any next byte is a dead end. Otherwise ways are
        tried that end what can be ended, and go on at random where nothing can; at last the shortest way.
        """
        rng = random.Random(len(self._completions))
        for _ in range(NUM_TRIES):
            way: list[tuple[State, bytes]] = []
            here = state
            while len(way) < MAX_STEPS:
                rest = b"" if here[1] else self._completions.get(here)
                if rest is not None:
                    for before, piece in reversed(way):
                        rest = self._completions[before] = piece + rest
                    return rest
                found = ((piece, after) for piece in _pieces(rng) if (after := self._read(here, piece)) is not None)
                step = next(found, None)
                if step is None:
                    return None  # a dead end
                way.append((here, step[0]))
                here = step[1]
        matcher = compile(self.rule, byte_vocabulary()).matcher()
        if not all(matcher.accept(byte) for byte in text):
            return None
        try:
            rest = bytes(matcher.completion())
        except ResourceLimitError:
            return None
        after = self._read(state, rest)
        return rest if after is not None and after[1] else None

    def _read(self, state: State, text: bytes) -> State | None:
        after: State | None = state
        for byte in text:
            after = after and self.step(after, byte)
        return after


def dialect(schema: dict[str, Any], draft: int) -> dict[str, Any]:
    return {"$schema": DIALECTS[draft], **schema} if draft in DIALECTS else schema


def faults(
    schema: dict[str, Any],
    world: World,
    *,
    draft: int = 2020,
    orders: Sequence[Order] = ("any", "declared"),
    is_thorough: bool = False,
) -> list[str]:
    """What is wrong with the language of a schema in a world.

    With `is_thorough` each of the configurations behind a beginning can be completed, not only some of them. That is
    what the front end promises to whoever unfolds its network.

    Raises:
        ResourceLimitError: the schema has too many alternatives.
    """
    schema = dialect(schema, draft)
    oracle = VALIDATORS[draft](schema)
    valid = [oracle.is_valid(value) for value in world.values]
    found = []
    for order in orders:
        rule = JsonSchema(schema, order=order, whitespace="compact")
        said = f"{json.dumps(schema)} with order {order!r}"
        try:
            walk = _Walk(rule)
        except UnsatisfiableError:
            found += [f"{said} is refused, and {world.values[valid.index(True)]} is valid"] if any(valid) else []
            continue
        guard = rule.guard()
        accepted: set[int] = set()
        agenda: list[tuple[_Place, State, bytes]] = [(world.root, walk.start, b"")]
        while agenda:
            place, state, text = agenda.pop()
            is_accepted = state[1] and (guard is None or guard.refuses(text) is None)
            if place.value is not None:
                if is_accepted != valid[place.value] and (is_accepted or order == "any"):
                    found.append(f"{said}: {text!r} is {'' if is_accepted else 'not '}accepted")
                if is_accepted:
                    accepted.add(place.value)
            elif is_accepted and place.is_twice:
                found.append(f"{said}: {text!r} is accepted with a key twice")
            is_leaf = True
            for byte, following in place.after.items():
                after = walk.step(state, byte)
                if after is not None:
                    is_leaf = False
                    agenda.append((following, after, text + bytes((byte,))))
            asked = [state] if is_leaf else []
            if is_thorough and len(state[0]) > 1:
                asked += [(frozenset({item}), False) for item in state[0]]
            for one in asked if guard is None else ():
                rest = walk.completion(text, one)
                if rest is None:
                    found.append(f"{said}: nothing completes {text!r}")
                elif not oracle.is_valid(json.loads(text + rest)):
                    found.append(f"{said}: {text + rest!r} is accepted")
        if order == "declared":
            missing = [value for number, value in enumerate(world.values) if valid[number] and number not in accepted]
            found += [f"{said}: {value} is valid and accepted in no order" for value in missing]
    return found
