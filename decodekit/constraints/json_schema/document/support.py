"""The support of each keyword: a walk over all sub-schemas that can take part, before anything is generated."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from decodekit.constraints.json_schema.document.drafts import (
    KEYWORDS,
    REFERENCES,
    Inner,
    SchemaDraft,
    is_assertion,
    keyword,
)
from decodekit.constraints.json_schema.document.loader import Library, Location, show
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
    """One keyword at its place, with the reason if it is refused or left to a guard."""

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


def _finding(location: Location, name: str, value: Any, mode: Formats) -> Finding:
    says_something = is_assertion(name, location.draft)
    try:
        if says_something and name == "format":
            says_something = formats.language(value, mode, at=location.at(name)) is not None
        error = excess(location, name, value) if says_something else None
        if error is not None and name == "patternProperties":
            for pattern in value:
                patterns.check_syntax(pattern, at=location.at(name, pattern))
    except ConstraintError as refusal:
        return Finding(location, name, "refused", refusal)
    status: Status = "annotation" if not says_something else "mask" if error is None else "guard"
    return Finding(location, name, status, error)


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


def excess(location: Location, name: str, value: Any) -> ResourceLimitError | None:
    """Why a keyword exceeds a limit of the mask by itself; raises why it cannot be enforced at all."""
    if name == "pattern":
        return patterns.searched(value, at=location.at(name)).excess
    if name == "patternProperties":
        if len(value) > MAX_PATTERNS:  # whose syntax `findings` looks at
            return ResourceLimitError(f"more than {MAX_PATTERNS:,} patternProperties in a schema")
        found = [patterns.searched(pattern, at=location.at(name, pattern)).excess for pattern in value]
        return next((error for error in found if error is not None), None)
    if name in _NUMBERS:
        try:
            exact(value)
        except ResourceLimitError as error:
            return error
    return None


def _troubles(library: Library, mode: Formats) -> list[Finding]:
    """The refused and guarded ones of `findings`; looks at those keywords only that can be: most schemas have none."""
    among = _NUMBERS | _PATTERNS | ({"format"} if mode == "python" else set())  # only Python itself can tell some

    def is_worth_a_walk(location: Location) -> bool:
        """Whether a schema, reachable or not, has a reference or something that may be refused."""
        keywords = location.keywords()
        names = among.union(REFERENCES) & keywords.keys()
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


# -- what the author of a schema may not expect

_MOST_PLACES: Final = 3
"""So many places a warning lists; of more it tells the number."""

_OPENAPI: Final = {
    "discriminator": "",
    "example": "",
    "externalDocs": "",
    "xml": "",
    "nullable": '"type" with "null" in its list',
}
"""Keywords that OpenAPI 3.0 adds; for what limits the values there, how JSON Schema says it."""


def surprises(findings: Iterable[Finding], mode: Formats) -> list[str]:
    """A warning for each thing that is an annotation and looks as if it were more, with the places where it stands.

    Names that begin with ``x-``, and what OpenAPI adds to describe, are taken as annotations on purpose.
    """
    places: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status == "annotation":
            for message in _surprises(finding.keyword, finding.location, mode):
                places.setdefault(message, []).append(finding.location.at(finding.keyword))
    return [f"{_listed(where)}: {message}" for message, where in places.items()]


def _surprises(name: str, location: Location, mode: Formats) -> Iterator[str]:
    known = keyword(name, location.draft)
    if known is None or known.is_former:
        if not name.startswith("x-") and _OPENAPI.get(name) != "":
            yield _unknown(name, location.draft)
    elif known.is_assertion and name not in location.keywords():
        if "$ref" in location.keywords() and location.draft <= SchemaDraft.DRAFT7:
            yield f'"{name}" is ignored beside "$ref" up to draft 7'
        else:
            yield f'"{name}" is ignored: the meta-schema leaves its vocabulary out'
    elif name == "format" and mode != "python":
        format = location.keywords()[name]
        if formats.language(str(format), "assert", at=location.at(name)) is None:
            yield f"the format {show(format)} is not known: it is an annotation"
        elif mode == "annotate":
            yield f'the format {show(format)} is an annotation; JsonSchema(..., format="assert") enforces it'


def _unknown(name: str, draft: SchemaDraft) -> str:
    """The warning for a name that is not a keyword of `draft`: of OpenAPI, of another draft, or misspelled."""
    reading = next((reading for reading in KEYWORDS.get(name, ()) if not reading.is_former), None)
    if reading is None and name in _OPENAPI:
        said = f'"{name}" is a keyword of OpenAPI, in {draft.label} it is an annotation'
        return f"{said}; {draft.label} has {_OPENAPI[name]}"
    if reading is None:
        names = [other for other in KEYWORDS if (known := keyword(other, draft)) and not known.is_former]
        near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
        meant = f'; did you mean "{near[0]}"?' if near else ""
        return f"{show(name)} is no keyword of {draft.label}: it is an annotation{meant}"
    instead = reading.before if draft < reading.first else reading.after
    drafts = f"since {reading.first.label}" if draft < reading.first else f"up to {reading.last.label}"
    if reading.first == reading.last < max(SchemaDraft):
        drafts = f"of {reading.first.label}"
    said = f'"{name}" is a keyword {drafts}, in {draft.label} it is an annotation'
    if reading.place is Inner.MAP and not reading.is_assertion:
        said += ", and references into it are followed all the same"
    return said + (f"; {draft.label} has {instead}" if instead else "")


def _listed(places: list[str]) -> str:
    shown = ", ".join(places[:_MOST_PLACES])
    return shown if len(places) <= _MOST_PLACES else f"{shown}, … ({len(places):,} places)"
