"""What of a schema is enforced: a walk over all sub-schemas that can take part, before anything is generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from decodekit.constraints.json_schema.document.drafts import JsonValue, is_assertion
from decodekit.constraints.json_schema.document.loader import Library, Location
from decodekit.constraints.json_schema.strings import patterns
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.json_schema.strings.patterns import MAX_PATTERNS
from decodekit.constraints.json_schema.strings.string_formats import Formats
from decodekit.constraints.json_schema.values.numbers import exact
from decodekit.errors import ConstraintError, ResourceLimitError, UnsupportedSchemaError

Status: TypeAlias = Literal["mask", "guard", "annotation", "refused"]
"""``"mask"``: enforced at every token; ``"guard"``: enforced when a value is complete; ``"annotation"``: says
nothing about what is valid; ``"refused"``: an error."""


@dataclass(frozen=True)
class Finding:
    """One keyword at its place.

    Attributes:
        location: the schema it stands in. `error`: why it is refused, or left to a guard.
    """

    location: Location
    keyword: str
    status: Status
    error: ConstraintError | None = None


def findings(library: Library, mode: Formats, among: frozenset[str] | None = None) -> Iterator[Finding]:
    """Every keyword of every schema that can take part in what the root admits, once; or those `among` some names.

    Raises:
        UnresolvableReferenceError: a reference names nothing.
    """
    told: set[int] = set()  # a schema with dynamic references below is met once in each of its scopes
    for location in reachable(library):
        keywords = location.keywords()
        if location.index in told or (among is not None and among.isdisjoint(keywords)):
            continue
        told.add(location.index)
        for name, value in keywords.items():
            if among is None or name in among:
                yield _finding(location, name, value, mode)
        if among is None and isinstance(location.value, dict) and keywords is not location.value:
            yield from (Finding(location, name, "annotation") for name in location.value if name not in keywords)


def _finding(location: Location, name: str, value: JsonValue, mode: Formats) -> Finding:
    try:
        excess = _examine(location, name, value, mode) if is_assertion(name, location.draft) else _SAYS_NOTHING
    except ConstraintError as error:
        return Finding(location, name, "refused", error)
    if excess is _SAYS_NOTHING:
        return Finding(location, name, "annotation")
    return Finding(location, name, "mask") if excess is None else Finding(location, name, "guard", excess)


def reachable(library: Library) -> Iterator[Location]:
    """Every schema that can take part in what the root admits, once in each scope, in document order.

    Raises:
        UnresolvableReferenceError: a reference names nothing.
    """
    seen = {library.root}
    stack = [library.root]
    while stack:
        location = stack.pop()
        yield location
        for target in reversed(list(library.references(location))):
            if target not in seen:
                seen.add(target)
                stack.append(target)


_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_PATTERNS: Final = frozenset({"pattern", "patternProperties"})
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


_SAYS_NOTHING: Final = ResourceLimitError("an annotation")


def _examine(location: Location, name: str, value: JsonValue, mode: Formats) -> ResourceLimitError | None:
    """Why a keyword exceeds a limit of the mask by itself; raises why it cannot be enforced at all."""
    if name == "format":
        return None if formats.language(str(value), mode, at=location.at(name)) is not None else _SAYS_NOTHING
    if name == "pattern":
        return patterns.searched(str(value), at=location.at(name)).excess
    if name == "patternProperties" and isinstance(value, dict):
        if len(value) > MAX_PATTERNS:
            for pattern in value:
                patterns.check_syntax(pattern, at=location.at(name, pattern))
            return ResourceLimitError(f"more than {MAX_PATTERNS:,} patternProperties in a schema")
        found = [patterns.searched(pattern, at=location.at(name, pattern)).excess for pattern in value]
        return next((excess for excess in found if excess is not None), None)
    if name in _NUMBERS:
        try:
            exact(value)  # type: ignore[arg-type]
        except ResourceLimitError as error:
            return error
    return None


def _troubles(library: Library, mode: Formats) -> list[Finding]:
    """The refused and guarded ones of `findings`; looks at those keywords only that can be: most schemas have none.

    Raises:
        UnresolvableReferenceError: a reference names nothing.
    """
    among = _NUMBERS | _PATTERNS | ({"format"} if mode == "python" else set())  # only Python itself can tell some

    def is_worth_a_walk(location: Location) -> bool:
        """Whether a schema, reachable or not, has a reference or something that may be refused."""
        keywords = location.keywords()
        names = (among | _REFERENCES) & keywords.keys()
        values = [keywords[name] for name in names if name in _NUMBERS]
        is_long = any(isinstance(value, int) and value.bit_length() > 64 for value in values)  # a float has few digits
        return is_long or len(values) < len(names)

    if not any(map(is_worth_a_walk, library.locations)):
        return []
    return [finding for finding in findings(library, mode, among) if finding.error is not None]


def refuse_unsupported(library: Library, mode: Formats) -> dict[str, str]:
    """The keywords that exceed a limit by themselves, by pointer, each with the limit. What is refused is an error.

    Raises:
        UnsupportedSchemaError: a keyword that is not enforced, with the number of the others.
        ConstraintError: a pattern that cannot be used.
    """
    troubles = _troubles(library, mode)
    refused = [one.error for one in troubles if one.status == "refused" and one.error is not None]
    if not refused:
        return {one.location.at(one.keyword): one.error.cause for one in troubles if one.error is not None}
    first = refused[0]
    if len(refused) == 1 or not isinstance(first, UnsupportedSchemaError):
        raise first
    places = ", ".join(str(error.at) for error in refused[1:4])
    more = f" (and {len(refused) - 1} more: {places}{', …' if len(refused) > 4 else ''})"
    raise type(first)(first.cause + more, at=first.at, hint=first.hint)
