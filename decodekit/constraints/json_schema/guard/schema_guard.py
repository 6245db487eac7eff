"""The guard of a schema: the check of what no mask can tell. Three things are left to it.

* `uniqueItems` where items may be objects or arrays. The mask admits all arrays there, repeated items or not, whether
  the keyword is asserted or denied.
* Asserted formats whose characters decide together (`formats.GUARDED`): international host names, and patterns. The
  mask admits all that has their form.
* What exceeds a limit (`Semantics.left`): alternatives by the hundred, patterns without end. The mask is weaker there.

The guard judges the whole value by the whole schema, so it is right whatever stands around the keyword. Its reader
judges the values inside as they become complete (see `schema_reader`). Where the schema is that of a Python type, the
type is asked, too (`TypeGuard`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from decodekit.constraints.constraint import Guard, GuardReader, Refusal, WorkingGuard, judging_of, reader_of
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.document.loader import Location
from decodekit.constraints.json_schema.frames.arrays import is_by_value
from decodekit.constraints.json_schema.guard.guard_rules import SchemaJudge
from decodekit.constraints.json_schema.guard.places import Places
from decodekit.constraints.json_schema.guard.schema_reader import SchemaReader
from decodekit.constraints.json_schema.meaning.keywords import is_unique_anyway
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.python_types import validate_json
from decodekit.constraints.json_schema.strings.patterns import is_pattern
from decodekit.constraints.json_schema.strings.string_formats import GUARDED
from decodekit.constraints.json_schema.values import instances
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.work_budget import Work
from decodekit.errors import ConstraintError

_DENYING: Final = frozenset({"not", "oneOf", "if", "contains", "unevaluatedProperties", "unevaluatedItems"})
"""The keywords that may ask a schema not to hold."""
_INTERNATIONAL: Final = re.compile(rb"--|\\u|[\x80-\xff]")
"""Hyphens of an A-label, a character beyond ASCII, or an escape, in which they could be spelled."""


@dataclass(frozen=True)
class SchemaGuard(WorkingGuard):
    """Judges a whole text by a whole schema.

    Attributes:
        semantics: the meaning of the schema.
        is_of_names: whether only host names are left to it: a text without `_INTERNATIONAL` is not judged.
        is_of_limits: whether only what exceeds a limit is left to it: until one is met, no text is judged.
        repeating: the schemas, by index, whose `uniqueItems` the mask does not enforce.
    """

    semantics: Semantics
    is_of_names: bool = False
    is_of_limits: bool = False
    repeating: frozenset[int] = frozenset()
    _places: dict[int, Places] = field(default_factory=dict, init=False, repr=False, compare=False)

    def judging(self, text: bytes) -> Work[Refusal | None]:
        """Why the value of a text is not valid.

        What can stay ends before the first repeated item or the first string that is not of its format, where there is
        one; otherwise before the end of the first value that is not valid by itself.

        Raises:
            ResourceLimitError: a pattern or format takes too long, or a schema refers to itself for the same value.
        """
        if self.is_of_names and not self.semantics.left and not _INTERNATIONAL.search(text):
            return None
        if self.is_of_limits and not self.semantics.left:
            return None
        judge = SchemaJudge(self.semantics)
        value = yield from instances.reading(text)
        evaluated = yield from judge.judging(self.semantics.library.root, value)
        return judge.refusal(value) if evaluated is None else None

    def reader(self) -> SchemaReader:
        """A reader that judges values as they become complete."""
        return SchemaReader(self._find_places, self._is_doubtful)

    def _find_places(self) -> Places:
        """The places of the schema, as far as is known now what is left."""
        num_left = len(self.semantics.left)
        found = self._places.get(num_left)
        if found is None:
            found = Places(self.semantics, self.repeating)
            self._places.clear()  # readers keep theirs
            self._places[num_left] = found
        return found

    def _is_doubtful(self, text: bytearray, value: Instance) -> bool:
        """Whether a value may be invalid although the mask admits it, as far as its text tells."""
        is_name = self.is_of_names and not self.semantics.left
        return not is_name or _INTERNATIONAL.search(text, value.start, value.end) is not None


class CompoundSchemaGuard(SchemaGuard):
    """As `SchemaGuard`, where a text that is a number or a word is valid if the mask admits it."""

    is_of_compounds: ClassVar[bool] = True


def guard_of(semantics: Semantics, *, may_leave: bool) -> Guard | None:
    """The guard of a schema; None if the mask enforces all of it and no limit was met or may be met by a text.

    Raises:
        ResourceLimitError: a schema refers to itself for the same value.
    """
    repeating, formats = guarded_locations(semantics), set[str]()
    if semantics.formats == "assert":
        places = support.reachable(semantics.library)
        formats = {str(place.keywords().get("format")) for place in places} & GUARDED.keys()
    if not repeating and not formats and not may_leave:
        return None
    shape = semantics.shape(semantics.goal(semantics.library.root))
    may_be_plain = may_leave and shape.has_plain
    is_of_names = not repeating and "regex" not in formats and not may_leave
    is_of_limits = not repeating and not formats
    guard = (SchemaGuard if may_be_plain else CompoundSchemaGuard)(semantics, is_of_names, is_of_limits, repeating)
    _prepare(semantics, formats)
    for smallest in (b"null", b"0", b'""', b"[]", b"{}") if semantics.left else ():
        guard.refuses(smallest)  # what cannot be judged is better told now than in the middle of a text
    return guard


def _prepare(semantics: Semantics, formats: set[str]) -> None:
    """Make what judgements would make with the first text that needs it, and in one piece."""
    if "regex" in formats:
        is_pattern(r"(?i:\p{L})")  # loads the tables of Unicode
    for location in support.reachable(semantics.library):
        keywords = location.keywords()
        if "pattern" in keywords:
            semantics.prepare_search(location, keywords["pattern"], "pattern")
        for pattern in keywords.get("patternProperties", ()):
            semantics.prepare_search(location, pattern, "patternProperties")


def guarded_locations(semantics: Semantics) -> frozenset[int]:
    """The schemas, by `Location.index`, whose `uniqueItems` the mask does not enforce."""
    places = list(support.reachable(semantics.library))
    may_deny = not all(_DENYING.isdisjoint(place.keywords()) for place in places)
    asking = [one for one in places if "uniqueItems" in one.keywords() and not is_unique_anyway(one, semantics.formats)]
    return frozenset(place.index for place in asking if not _is_in_mask(semantics, place, may_deny=may_deny))


def _is_in_mask(semantics: Semantics, location: Location, *, may_deny: bool) -> bool:
    """Whether all arrays that the schema admits are compared by value. Other schemas around it only narrow them."""
    try:
        shapes = [semantics.shape(semantics.goal(location))]
        if may_deny:
            shapes.append(semantics.shape(semantics.goal(location, is_asserted=False)))
        specs = [spec for shape in shapes for spec in shape.arrays if spec.is_unique or spec.is_repeating]
        return all(is_by_value(spec, semantics) for spec in specs)
    except ConstraintError:  # it cannot be told here; where it takes part, the error is met
        return False


@dataclass(frozen=True)
class TypeGuard(WorkingGuard):
    """Refuses the texts that a type does not read; the guard of its schema is asked first."""

    python_type: object
    inner: Guard | None = None

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
            found = _inside(instances.read(text), fault["loc"])
            keep = found.start + (found.kind == "string") if found.start else len(text)
            return Refusal(keep, "/".join(map(str, ("#", *fault["loc"]))), fault["msg"])
        except Exception as error:  # a validator of the user's raises what it likes
            return Refusal(len(text), "#", f"{type(error).__name__}: {error}")
        return None

    def reader(self) -> GuardReader | None:
        """That of the inner guard: a type reads whole texts only."""
        return None if self.inner is None else reader_of(self.inner)


def _inside(value: Instance, path: Sequence[int | str]) -> Instance:
    """The value at a path, as far as it leads; names of alternatives are not part of the value."""
    for step in path:
        if value.kind == "object" and step in value.members:
            value = value.members[str(step)]
        elif value.kind == "array" and isinstance(step, int) and step < len(value.items):
            value = value.items[step]
    return value
