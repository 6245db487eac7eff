"""The reports of broken laws by the checks of this package: which, by what and where; and the laws of a value."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from typing import Any, NoReturn, TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Subject:
    """The part that is checked, and the laws that its protocol states, by name, each in one sentence."""

    value: object
    laws: Mapping[str, str]

    def require(self, law: str, condition: bool, place: str) -> None:
        """Raise `AssertionError` with the law and the place unless the condition holds."""
        if not condition:
            self.broken(law, place)

    def broken(self, law: str, place: str, cause: Exception | None = None) -> NoReturn:
        """Raise `AssertionError` with the law and the place."""
        reason = "" if cause is None else f" ({type(cause).__name__}: {cause})"
        raise AssertionError(
            f"{self.value!r:.200} breaks the law {law!r}: {self.laws[law]}\n  at  {place}{reason}"
        ) from cause

    def run(self, law: str, place: str, call: Callable[[], _Result]) -> _Result:
        """The result of a call; its exception breaks the law."""
        try:
            return call()
        except Exception as error:  # whatever it does wrong
            self.broken(law, place, error)


def check_value(subject: Subject, *, is_hashable: bool = True) -> None:
    """The law "value": a frozen dataclass whose copies are equal to it and whose `repr` makes an equal one.

    Where it holds a model, or another thing that is equal to nothing else, it must be possible to copy it all the same.
    """
    value: Any = subject.value
    if not is_dataclass(value):
        subject.broken("value", "it is no dataclass")
    for field in fields(value):
        try:
            setattr(value, field.name, getattr(value, field.name))
        except FrozenInstanceError:
            continue
        subject.broken("value", f"its field {field.name!r} can be set")
    copy = subject.run("value", "pickling it", lambda: pickle.loads(pickle.dumps(value)))
    held = [part for part in _parts(value) if part is not value]
    if any(type(part).__eq__ is object.__eq__ for part in held if part is not None and not isinstance(part, type)):
        return
    subject.require("value", bool(copy == value), "a pickled copy is not equal")
    if is_hashable:
        hashes = subject.run("value", "hashing it", lambda: (hash(value), hash(copy)))
        subject.require("value", hashes[0] == hashes[1], "a pickled copy has another hash")
    again = subject.run("value", f"evaluating {value!r:.200}", lambda: eval(repr(value), names_of(value)))
    subject.require("value", bool(again == value), f"evaluating {value!r:.200} makes {again!r:.200}")


def names_of(value: object) -> dict[str, Any]:
    """The names that the `repr` of a value may have: the classes of the value and of all that it holds, and their
    modules."""
    names: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
    for part in _parts(value):
        names |= vars(sys.modules[type(part).__module__])
        names[type(part).__name__] = type(part)
    return names


def _parts(value: object) -> Iterator[object]:
    """A value and, before it, the values that it holds."""
    held: list[object] = []
    if is_dataclass(value) and not isinstance(value, type):
        held = [getattr(value, field.name) for field in fields(value) if field.init]
    elif isinstance(value, Mapping):
        held = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        held = [*value]
    for part in held:
        yield from _parts(part)
    yield value
