"""The guard of a Python type: what its mask cannot tell, Pydantic is asked, with the text that may end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodekit.constraints.constraint import Guard, GuardReader, Refusal, judging_of, reader_of
from decodekit.constraints.json_schema.python_types import validate_json
from decodekit.constraints.json_schema.values import instances
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.work import Work, done


@dataclass(frozen=True)
class TypeGuard:
    """Refuses the texts that a type does not read.

    Attributes:
        python_type: the type. `inner`: the guard of its schema, which is asked first.
    """

    python_type: object
    inner: Guard | None = None

    def refuses(self, text: bytes) -> Refusal | None:
        """As `judging`, at once."""
        return done(self.judging(text))

    def judging(self, text: bytes) -> Work[Refusal | None]:
        """Why the type does not read a text: the first fault that it finds. What can stay ends before its value."""
        refusal = None if self.inner is None else (yield from judging_of(self.inner, text))
        if refusal is not None:
            return refusal
        yield 8 * len(text)
        from pydantic import ValidationError

        try:
            validate_json(self.python_type, text.decode())
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            found = _at(instances.read(text), fault["loc"])
            keep = found.start + (found.kind == "string") if found.start else len(text)
            return Refusal(keep, "/".join(map(str, ("#", *fault["loc"]))), fault["msg"])
        except Exception as error:  # a validator of the user's raises what it likes
            return Refusal(len(text), "#", f"{type(error).__name__}: {error}")
        return None

    def reader(self) -> GuardReader | None:
        """That of the inner guard: a type reads whole texts only."""
        return None if self.inner is None else reader_of(self.inner)


def _at(value: Instance, path: Sequence[int | str]) -> Instance:
    """What lies at a path, as far as it leads; names of alternatives are no part of the value."""
    for step in path:
        if value.kind == "object" and step in value.members:
            value = value.members[str(step)]
        elif value.kind == "array" and isinstance(step, int) and step < len(value.items):
            value = value.items[step]
    return value
