"""Warnings for keywords that probably do not do what the author of a schema expects."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Final

from decodekit.constraints.json_schema.document.drafts import KEYWORDS, Inner, SchemaDraft, keyword
from decodekit.constraints.json_schema.document.loader import Location, show
from decodekit.constraints.json_schema.document.support import Finding
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.json_schema.strings.string_formats import Formats

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
            for message in _messages(finding.keyword, finding.location, mode):
                places.setdefault(message, []).append(finding.location.at(finding.keyword))
    return [f"{_listed(where)}: {message}" for message, where in places.items()]


def _messages(name: str, location: Location, mode: Formats) -> Iterator[str]:
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
    """What a name is that `draft` does not have as a keyword."""
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
