"""From JSON documents to schema locations: drafts, bases, anchors and references, and the first check of every keyword.

A `Location` is one (sub-)schema at its place. All passes over a document are loops, so nesting costs no stack.
References are never fetched: a document is the schema itself, one of the caller's registry, or a meta-schema of a
draft, which is bundled with the `jsonschema` package.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urljoin

from decodekit.constraints.json_schema.drafts import (
    DEFAULT_DRAFT,
    KEYWORDS,
    Draft,
    JsonValue,
    Place,
    draft_of,
    keyword,
)
from decodekit.errors import InvalidConstraintError, UnresolvableReferenceError

_SHOWN: Final = 60  # characters of a value in a message


class Location:
    """One schema at its place. Compared by identity; `index` numbers the locations of a library.

    Attributes:
        value: the schema, a dict or a boolean.
        pointer: its JSON Pointer as a URI fragment, ``#/properties/a``, behind the document's URI unless it is the
            first document.
        base: the URI that references in it are relative to. `draft`: the draft it is written in.
        is_constant: it stands for a value inside an enum or a const, at the place of that value.
    """

    __slots__ = ("base", "document", "draft", "index", "is_constant", "path", "value")

    def __init__(
        self,
        index: int,
        value: JsonValue,
        document: Document,
        path: str,
        base: str,
        draft: Draft,
        *,
        is_constant: bool = False,
    ) -> None:
        self.index, self.value, self.document, self.path = index, value, document, path
        self.base, self.draft, self.is_constant = base, draft, is_constant

    @property
    def pointer(self) -> str:
        """The JSON Pointer as a URI fragment."""
        return f"{self.document.uri}#{self.path}"

    def at(self, *tokens: str | int) -> str:
        """The pointer of something inside, for errors."""
        return self.pointer + "".join(f"/{escape(str(token))}" for token in tokens)

    def keywords(self) -> dict[str, JsonValue]:
        """Keyword to value. Beside a ``$ref`` all other keywords are ignored up to draft 7."""
        if not isinstance(self.value, dict):
            return {}
        if self.draft <= Draft.DRAFT7 and isinstance(self.value.get("$ref"), str):
            return {"$ref": self.value["$ref"]}
        return self.value

    def __repr__(self) -> str:
        return f"Location({self.pointer!r})"


class Document:
    """One JSON document: its value, its URI (empty for the first one) and the locations met in it, by path."""

    def __init__(self, uri: str, value: JsonValue) -> None:
        self.uri, self.value = uri, value
        self.locations: dict[str, Location] = {}


def escape(token: str) -> str:
    """A reference token of a JSON Pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def show(value: JsonValue) -> str:
    """A value as JSON, shortened for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class Library:
    """The documents of one schema and their locations.

    Args:
        schema: the JSON value of the schema.
        registry: documents that references may name, by absolute URI.

    Raises:
        InvalidConstraintError: a keyword's value has not the form that its draft asks for.
    """

    def __init__(self, schema: JsonValue, registry: Mapping[str, JsonValue]) -> None:
        self._registry = {uri.rstrip("#"): value for uri, value in registry.items()}
        self.locations: list[Location] = []
        self._resources: dict[str, Location] = {}
        self._anchors: dict[tuple[str, str], Location] = {}
        self._dynamic_anchors: dict[str, list[Location]] = {}
        self.draft = DEFAULT_DRAFT
        self.root = self._add_document("", schema)
        self.draft = self.root.draft

    def child(self, location: Location, *tokens: str | int) -> Location:
        """The sub-schema below `location`, which the walk over its document has met."""
        path = location.path + "".join(f"/{escape(str(token))}" for token in tokens)
        return location.document.locations[path]

    def _add_document(self, uri: str, value: JsonValue) -> Location:
        document = Document(uri, value)
        self._index(document, value, "", uri, self.draft)
        root = document.locations[""]
        self._resources.setdefault(uri, root)
        return root

    def _index(self, document: Document, value: JsonValue, path: str, base: str, draft: Draft) -> None:
        """Make locations for a schema and all schemas below it; register their ids and anchors."""
        stack = [(value, path, base, draft)]
        while stack:
            value, path, base, draft = stack.pop()
            if path in document.locations:
                continue
            if not isinstance(value, (dict, bool)):
                raise InvalidConstraintError(
                    f"a schema must be an object or a boolean, not {show(value)}", at=f"{document.uri}#{path}"
                )
            is_root = path == ""
            if isinstance(value, dict):
                draft, base = self._identify(value, base, draft, may_name_draft=is_root or _has_id(value))
            location = Location(len(self.locations), value, document, path, base, draft)
            self.locations.append(location)
            document.locations[path] = location
            if isinstance(value, dict):
                self._register(location, value)
                _check(location)
                stack += reversed(
                    [(below, f"{path}{suffix}", base, draft) for suffix, below in _schemas_below(value, draft)]
                )

    @staticmethod
    def _identify(value: dict[str, JsonValue], base: str, draft: Draft, *, may_name_draft: bool) -> tuple[Draft, str]:
        named = value.get("$schema")
        if may_name_draft and isinstance(named, str):
            draft = draft_of(named) or draft
        name = value.get("id" if draft == Draft.DRAFT4 else "$id")
        if isinstance(name, str) and not name.startswith("#") and not _is_bare_reference(value, draft):
            base = _join(base, name).rstrip("#")
        return draft, base

    def _register(self, location: Location, value: dict[str, JsonValue]) -> None:
        if _is_bare_reference(value, location.draft):
            return
        name = value.get("id" if location.draft == Draft.DRAFT4 else "$id")
        if isinstance(name, str):
            if name.startswith("#") and len(name) > 1 and location.draft <= Draft.DRAFT7:
                self._anchors.setdefault((location.base, name[1:]), location)
            elif not name.startswith("#"):
                self._resources.setdefault(location.base, location)
        if location.draft >= Draft.DRAFT2019:
            for key in ("$anchor", "$dynamicAnchor"):
                anchor = value.get(key)
                if isinstance(anchor, str):
                    self._anchors.setdefault((location.base, anchor), location)
                    if key == "$dynamicAnchor":
                        self._dynamic_anchors.setdefault(anchor, []).append(location)
            if value.get("$recursiveAnchor") is True:
                self._dynamic_anchors.setdefault("", []).append(location)

    def resolve(self, location: Location, reference: str, key: str = "$ref") -> Location:
        """The location that a reference in `location` means.

        Raises:
            UnresolvableReferenceError: it names nothing that is here.
        """
        base, _, fragment = _join(location.base, reference).partition("#")
        resource = self._resources.get(base)
        if resource is None:
            document = self._registry.get(base, _missing)
            if document is _missing:
                document = _bundled(base)
            if document is _missing:
                raise UnresolvableReferenceError(
                    f"{show(reference)} names a document that is not here, and nothing is ever fetched",
                    at=location.at(key),
                    hint=f"passing it as registry={{{base!r}: ...}}",
                )
            resource = self._add_document(base, document)
            self._resources.setdefault(base, resource)
        fragment = unquote(fragment)
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return self._at_pointer(location, reference, key, resource, fragment)
        target = self._anchors.get((resource.base, fragment))
        if target is None:
            anchors = [name for base, name in self._anchors if base == resource.base]
            raise _not_found(location, reference, key, fragment, anchors)
        return target

    def resolve_dynamic(self, location: Location) -> Location | None:
        """What ``$dynamicRef`` or ``$recursiveRef`` means, or None where that depends on the way that led here."""
        keywords = location.keywords()
        key = "$dynamicRef" if "$dynamicRef" in keywords else "$recursiveRef"
        reference = str(keywords[key])
        target = self.resolve(location, reference, key)
        name = reference.partition("#")[2] if key == "$dynamicRef" else ""
        anchored = self._dynamic_anchors.get(name, [])
        return target if target not in anchored or len(anchored) == 1 else None

    def _at_pointer(self, location: Location, reference: str, key: str, resource: Location, pointer: str) -> Location:
        known = resource.document.locations.get(resource.path + pointer)
        if known is not None:
            return known
        value, path, base, draft = resource.value, resource.path, resource.base, resource.draft
        for raw in pointer[1:].split("/"):
            token = _unescape(raw)
            if isinstance(value, dict) and token in value:
                value = value[token]
            elif isinstance(value, list) and token.isdecimal() and int(token) < len(value):
                value = value[int(token)]
            else:
                names = list(value) if isinstance(value, dict) else []
                raise _not_found(location, reference, key, token, names)
            path = f"{path}/{escape(token)}"
            met = resource.document.locations.get(path)
            if met is not None:
                base, draft = met.base, met.draft
        known = resource.document.locations.get(path)
        if known is None:  # a schema where no keyword of the draft holds one, such as "definitions" of another draft
            self._index(resource.document, value, path, base, draft)
            known = resource.document.locations[path]
        return known

    def references(self, location: Location) -> Iterator[tuple[str, Location]]:
        """The sub-schemas and referenced schemas that take part in what `location` admits, by keyword."""
        keywords = location.keywords()
        for suffix, _ in _schemas_below(keywords, location.draft, assertions_only=True):
            yield suffix[1:].split("/")[0], location.document.locations[location.path + suffix]
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = keywords.get(key)
            if isinstance(reference, str) and keyword(key, location.draft):
                yield key, self.resolve(location, reference, key)


_missing: Final = object()


def _has_id(value: dict[str, JsonValue]) -> bool:
    return isinstance(value.get("$id"), str) or isinstance(value.get("id"), str)


def _is_bare_reference(value: dict[str, JsonValue], draft: Draft) -> bool:
    return draft <= Draft.DRAFT7 and isinstance(value.get("$ref"), str)


def _join(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    joined = urljoin(base, reference)
    return joined if "#" in joined or not reference.endswith("#") else joined + "#"


def _bundled(uri: str) -> JsonValue:
    """A meta-schema that comes with the `jsonschema` package."""
    if not uri.startswith(("http://json-schema.org/", "https://json-schema.org/")):
        return _missing
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    resource = REGISTRY.get(uri) or REGISTRY.get(uri + "#")
    return _missing if resource is None else resource.contents


def _not_found(
    location: Location, reference: str, key: str, token: str, names: list[str]
) -> UnresolvableReferenceError:
    near = difflib.get_close_matches(token, names[:1000], n=1)
    return UnresolvableReferenceError(
        f"{show(reference)} points to nothing: there is no {show(token)}",
        at=location.at(key),
        hint=f"{show(near[0])}, which is there" if near else None,
    )


def _schemas_below(
    value: dict[str, JsonValue], draft: Draft, *, assertions_only: bool = False
) -> Iterator[tuple[str, JsonValue]]:
    """(path below, schema) of the direct sub-schemas of a schema object."""
    for name in value:
        if name not in KEYWORDS:
            continue
        known = keyword(name, draft)
        if known is None or known.place is Place.NONE or (assertions_only and not known.is_assertion):
            continue
        if known.check(value[name]):  # beside a bare $ref nothing is asked of the siblings
            yield from _schemas_in(f"/{name}", known.place, value[name])


def _schemas_in(path: str, place: Place, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, list) and place in (Place.LIST, Place.SELF_OR_LIST):
        yield from ((f"{path}/{index}", below) for index, below in enumerate(value))
    elif isinstance(value, dict) and place in (Place.MAP, Place.MAP_OR_NAMES):
        for name, below in value.items():
            if not (place is Place.MAP_OR_NAMES and isinstance(below, list)):
                yield f"{path}/{escape(name)}", below
    elif place in (Place.SELF, Place.SELF_OR_LIST):
        yield path, value


def _check(location: Location) -> None:
    for name, value in location.keywords().items():
        known = keyword(name, location.draft)
        if known is not None and not known.check(value):
            raise InvalidConstraintError(f'"{name}" must be {known.must_be}, not {show(value)}', at=location.at(name))
        if name == "dependencies" and known is not None and known.is_assertion and isinstance(value, dict):
            for key, below in value.items():
                is_names = isinstance(below, list) and all(isinstance(entry, str) for entry in below)
                if not (is_names or isinstance(below, (dict, bool))):
                    raise InvalidConstraintError(
                        f"a dependency must be a schema or a list of strings, not {show(below)}",
                        at=location.at(name, key),
                    )
