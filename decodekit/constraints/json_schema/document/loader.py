"""From JSON documents to schema locations: drafts, bases, anchors and references, and the first check of every keyword.

A `Location` is one (sub-)schema at its place. All passes over a document are loops, so nesting costs no stack.
References are never fetched: a document is the schema itself, one of the caller's registry, or a meta-schema of a
draft, which is bundled with the `jsonschema` package.

``$dynamicRef`` and ``$recursiveRef`` mean what the way that led to them says: of the resources entered on that way, the
outermost that has the anchor. So a location is a schema in a *scope*: for each dynamic anchor met so far, the schema it
means. There are finitely many, and only libraries with dynamic anchors have more than the empty one.
Sources: JSON Schema Core 2020-12, sections 7.1 and 8.2; Core 2019-09, sections 7.1 and 8.2.4.2.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urljoin

from decodekit.constraints.json_schema.document.drafts import (
    KEYWORDS,
    META_SCHEMAS,
    REFERENCES,
    VOCABULARIES,
    Dialect,
    Inner,
    JsonValue,
    SchemaDraft,
    is_assertion,
    is_names,
    keyword,
)
from decodekit.constraints.priority import give_way
from decodekit.errors import InvalidConstraintError, UnresolvableReferenceError, UnsupportedSchemaError
from decodekit.records.strict_json import path_of, pointer_of

_SHOWN: Final = 60  # characters of a value in a message
_MAX_META_SCHEMAS: Final = 10  # meta-schemas that are described by one another
_NO_REFERENCES: Final = KEYWORDS.keys() - set(REFERENCES)

Scope: TypeAlias = tuple[tuple[str, int], ...]
"""Dynamic anchors, by name, each with the number of the location that it means on this way; sorted."""

_RECURSIVE: Final = ""
"""The name of ``$recursiveAnchor`` among the dynamic anchors; an anchor of 2020-12 is never empty."""


@dataclass(eq=False, slots=True)
class Location:
    """One schema at its place. Compared by identity.

    Attributes:
        index: the number of the schema among those of its library, the same in any scope.
        value: the schema, a dict or a boolean.
        uri: of the document where it stands, empty for the first one. `path`: its JSON Pointer there.
        base: the URI that references in it are relative to. `draft`: the draft it is written in.
        ignored: keywords that the vocabularies of its meta-schema leave out; annotations here.
        scope: what the dynamic anchors mean on the way that led here.
        is_constant: it stands for a value inside an enum or a const, at the place of that value.
    """

    index: int
    value: JsonValue
    uri: str
    path: str
    base: str
    draft: SchemaDraft
    ignored: frozenset[str] = frozenset()
    scope: Scope = ()
    is_constant: bool = False

    @property
    def pointer(self) -> str:
        """The JSON Pointer as a URI fragment, ``#/properties/a``, behind the URI of any document but the first."""
        return f"{self.uri}#{self.path}"

    def at(self, *tokens: str | int) -> str:
        """The pointer of something inside, for errors."""
        return self.pointer + pointer_of(tokens)

    def keywords(self) -> dict[str, Any]:
        """Keyword to value. Beside a ``$ref`` all other keywords are ignored up to draft 7."""
        if not isinstance(self.value, dict):
            return {}
        if self.draft <= SchemaDraft.DRAFT7 and isinstance(self.value.get("$ref"), str):
            return {"$ref": self.value["$ref"]}
        if self.ignored:
            return {name: value for name, value in self.value.items() if name not in self.ignored}
        return self.value

    def assertions(self) -> Iterator[tuple[str, Any]]:
        """The keywords that take part in what is valid, with their values."""
        return ((name, value) for name, value in self.keywords().items() if is_assertion(name, self.draft))

    def of_items(self) -> tuple[str, list[Any], str]:
        """The keyword that lists a schema for each of the first items, with its list; and that of the other items."""
        is_2020 = self.draft >= SchemaDraft.DRAFT2020
        first, rest = ("prefixItems", "items") if is_2020 else ("items", "additionalItems")
        listed = self.keywords().get(first)
        return (first, listed, rest) if isinstance(listed, list) else (first, [], "items")

    def __repr__(self) -> str:
        return f"Location({self.pointer!r})"


def show(value: JsonValue) -> str:
    """A value as JSON, shortened for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate could not be printed
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def asking(location: Location) -> str:
    """The pointer of the keyword that a schema is a part of: ``#/oneOf`` of ``#/oneOf/3``; of a root, its own."""
    before, _, last = location.path.rpartition("/")
    name = before.rpartition("/")[2]
    places = {reading.place for reading in KEYWORDS.get(name, ())}
    is_inside = not places.isdisjoint({Inner.MAP, Inner.MAP_OR_NAMES}) or (
        last.isdigit() and not places.isdisjoint({Inner.LIST, Inner.SELF_OR_LIST})
    )
    return f"{location.uri}#{before if is_inside else location.path}"


class Library:
    """The documents of one schema and their locations; `registry` has those that references may name, by absolute URI.

    Raises:
        InvalidConstraintError: a keyword's value has not the form that its draft asks for.
        UnsupportedSchemaError: a meta-schema requires a vocabulary that is not known.
    """

    def __init__(self, schema: JsonValue, registry: Mapping[str, JsonValue]) -> None:
        self._registry = {uri.rstrip("#"): value for uri, value in registry.items()}
        self.locations: list[Location] = []
        self._documents: dict[str, dict[str, Location]] = {}  # by URI, then by path; no location holds others
        self._resources: dict[str, Location] = {}
        self._anchors: dict[tuple[str, str], Location] = {}
        self._dynamic_anchors: dict[str, dict[str, Location]] = {}  # by base, then by name
        self._scoped: dict[tuple[int, Scope], Location] = {}
        self.draft = SchemaDraft.DRAFT2020  # unless the schema says another
        root = self._add_document("", schema)
        self.draft = root.draft
        self.root = self._enter((), root)

    def child(self, location: Location, *tokens: str | int) -> Location:
        """The sub-schema below `location`, which the walk over its document has met."""
        path = location.path + pointer_of(tokens)
        return self._enter(location.scope, self._documents[location.uri][path])

    def _enter(self, scope: Scope, target: Location) -> Location:
        """A schema that is reached out of `scope`: the anchors of its resource join what is met for the first time."""
        anchors = self._dynamic_anchors.get(target.base) if self._dynamic_anchors else None
        if anchors:
            known = dict(scope)
            if not anchors.keys() <= known.keys():
                met = {name: anchored.index for name, anchored in anchors.items()}
                scope = tuple(sorted((met | known).items()))
        if not scope:
            return target
        scoped = self._scoped.get((target.index, scope))
        if scoped is None:
            scoped = self._scoped[target.index, scope] = replace(target, scope=scope)
        return scoped

    def _add_document(self, uri: str, value: JsonValue) -> Location:
        self._documents[uri] = {}
        self._index(uri, value, "", uri, Dialect(self.draft))
        root = self._documents[uri][""]
        self._resources.setdefault(uri, root)
        return root

    def _index(
        self, uri: str, value: JsonValue, path: str, base: str, dialect: Dialect, *, may_anchor: bool = True
    ) -> None:
        """Make locations for a schema and all schemas below it; register their ids and anchors."""
        stack = [(value, path, base, dialect)]
        document = self._documents[uri]
        while stack:
            give_way()
            value, path, base, dialect = stack.pop()
            if path in document:
                continue
            if not isinstance(value, (dict, bool)):
                raise InvalidConstraintError(
                    f"a schema must be an object or a boolean, not {show(value)}", at=f"{uri}#{path}"
                )
            if isinstance(value, dict):
                if not path or _id(value, dialect.draft) is not None:
                    dialect = self._dialect(value, dialect, f"{uri}#{path}/$schema")
                name = _id(value, dialect.draft)
                if name is not None and not name.startswith("#") and not _is_bare_reference(value, dialect.draft):
                    base = _join(base, name).partition("#")[0]
            location = Location(len(self.locations), value, uri, path, base, dialect.draft, dialect.ignored)
            self.locations.append(location)
            document[path] = location
            if isinstance(value, dict):
                self._register(location, value, may_anchor=may_anchor)
                _check(location)
                below = [found for name in value for found in _schemas_in(name, dialect.draft, value[name])]
                stack += [(schema, f"{path}{suffix}", base, dialect) for suffix, schema in reversed(below)]

    def _dialect(self, value: dict[str, JsonValue], default: Dialect, at: str) -> Dialect:
        """The dialect that ``$schema`` names: a draft, or a meta-schema of the registry with its vocabularies.

        The meta-schema of a meta-schema names its draft; without ``$schema``, or if that names nothing that is here, it
        is the draft of `default`.
        """
        ignored: frozenset[str] | None = None
        for _ in range(_MAX_META_SCHEMAS):
            named = value.get("$schema")
            if not isinstance(named, str):
                break
            named = named.rstrip("#")
            if named in META_SCHEMAS:
                return Dialect(META_SCHEMAS[named], ignored or frozenset())
            meta = self._registry.get(named)
            if not isinstance(meta, dict):
                break
            if ignored is None and isinstance(meta.get("$vocabulary"), dict):
                ignored = _left_out(meta["$vocabulary"], at)
            value = meta
        return default if ignored is None else Dialect(default.draft, ignored)

    def _register(self, location: Location, value: dict[str, JsonValue], *, may_anchor: bool) -> None:
        base, draft = location.base, location.draft
        if _is_bare_reference(value, draft):
            return
        name = _id(value, draft)
        if name is not None:
            before, _, fragment = name.partition("#")
            if fragment and draft <= SchemaDraft.DRAFT7:
                self._anchors.setdefault((base, fragment), location)
            if before or not name:
                self._resources.setdefault(base, location)
        dynamic = [_RECURSIVE] if value.get("$recursiveAnchor") is True and draft == SchemaDraft.DRAFT2019 else []
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = value.get(key)
            if isinstance(anchor, str) and keyword(key, draft) is not None:
                self._anchors.setdefault((base, anchor), location)
                dynamic += [anchor] if key == "$dynamicAnchor" and anchor else []
        for anchor in dynamic if may_anchor else ():  # what is found only by a pointer came too late to be one
            self._dynamic_anchors.setdefault(base, {}).setdefault(anchor, location)

    def target(self, location: Location, key: str = "$ref") -> Location:
        """The location that a reference, the keyword `key` of `location`, means.

        If the plain target of a ``$dynamicRef`` or ``$recursiveRef`` is a dynamic anchor of the name that the reference
        ends with, it is the outermost schema of the scope that has this anchor.

        Raises:
            UnresolvableReferenceError: it names nothing that is here.
        """
        target = self._plain_target(location, key)
        if key != "$ref":
            name = unquote(location.keywords()[key].partition("#")[2]) if key == "$dynamicRef" else _RECURSIVE
            if self._dynamic_anchors.get(target.base, {}).get(name) is target:
                outermost = dict(location.scope).get(name)
                target = target if outermost is None else self.locations[outermost]
        return self._enter(location.scope, target)

    def follow(self, location: Location) -> Location:
        """As `target`, to the first schema that says more than where it is found; in a circle, `location` itself."""
        target, met = self.target(location), set[Location]()
        while target.keywords().keys() == {"$ref"}:
            if target in met:
                return location
            met.add(target)
            target = self.target(target)
        return target

    def _plain_target(self, location: Location, key: str) -> Location:
        """As `target`, whatever the scope."""
        reference = location.keywords()[key]
        base, _, fragment = _join(location.base, reference).partition("#")
        resource = self._resources.get(base)
        if resource is None:
            document = self._registry[base] if base in self._registry else _bundled(base)
            if document is None and base not in self._registry:
                raise UnresolvableReferenceError(
                    f"{show(reference)} names a document that is not here, and nothing is ever fetched",
                    at=location.at(key),
                    hint=f"passing it as registry={{{base!r}: ...}}",
                )
            resource = self._add_document(base, document)
        fragment = unquote(fragment)
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return self._at_pointer(location, key, resource, fragment)
        target = self._anchors.get((resource.base, fragment))
        if target is None:
            raise _not_found(location, key, fragment, [name for base, name in self._anchors if base == resource.base])
        return target

    def _at_pointer(self, location: Location, key: str, resource: Location, pointer: str) -> Location:
        locations = self._documents[resource.uri]
        if (known := locations.get(resource.path + pointer)) is not None:
            return known
        value, path, base = resource.value, resource.path, resource.base
        dialect = Dialect(resource.draft, resource.ignored)
        for token in path_of(pointer):
            if isinstance(value, dict) and token in value:
                value = value[token]
            elif isinstance(value, list) and token.isdecimal() and int(token) < len(value):
                value = value[int(token)]
            else:
                raise _not_found(location, key, token, list(value) if isinstance(value, dict) else [])
            path += pointer_of([token])
            if (met := locations.get(path)) is not None:
                base, dialect = met.base, Dialect(met.draft, met.ignored)
        if path not in locations:  # no keyword of the draft holds one here, such as "definitions" of another draft
            self._index(resource.uri, value, path, base, dialect, may_anchor=False)
        return locations[path]

    def parts(self, location: Location, among: Collection[str]) -> Iterator[Location]:
        """The sub-schemas and referenced schemas of some of the keywords that take part in what `location` admits."""
        for name, value in location.assertions():
            if name not in among:
                continue
            if name in REFERENCES:
                yield self.target(location, name)
            else:
                for suffix, _ in _schemas_in(name, location.draft, value):
                    yield self._enter(location.scope, self._documents[location.uri][location.path + suffix])

    def references(self, location: Location) -> Iterator[Location]:
        """All `parts`, those of references last."""
        give_way()
        yield from self.parts(location, _NO_REFERENCES)
        for key in REFERENCES:
            if key in location.keywords() and is_assertion(key, location.draft):
                yield self.target(location, key)


def _id(value: dict[str, JsonValue], draft: SchemaDraft) -> str | None:
    """The identifier that makes a schema a resource of its own, as the draft around it sees it."""
    name = value.get("id" if draft == SchemaDraft.DRAFT4 else "$id")
    return name if isinstance(name, str) else None


def _left_out(vocabularies: JsonValue, at: str) -> frozenset[str]:
    """The keywords of the vocabularies that a meta-schema does not name."""
    assert isinstance(vocabularies, dict)
    for uri, is_required in vocabularies.items():
        if uri not in VOCABULARIES and is_required is True:
            raise UnsupportedSchemaError(
                f"the meta-schema requires a vocabulary that is not known: {show(uri)}",
                at=at,
                hint="a meta-schema with the standard's vocabularies, or false for this one",
            )
    known = frozenset(name for names in VOCABULARIES.values() for name in names)
    return known - {name for uri in vocabularies for name in VOCABULARIES.get(uri, ())}


def _is_bare_reference(value: dict[str, JsonValue], draft: SchemaDraft) -> bool:
    return draft <= SchemaDraft.DRAFT7 and isinstance(value.get("$ref"), str)


def _join(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    joined = urljoin(base, reference)
    return joined if "#" in joined or not reference.endswith("#") else joined + "#"


def _bundled(uri: str) -> JsonValue:
    """A meta-schema that comes with the `jsonschema` package; None if it has none of that name."""
    if not uri.startswith(("http://json-schema.org/", "https://json-schema.org/")):
        return None
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    resource = REGISTRY.get(uri) or REGISTRY.get(uri + "#")
    return None if resource is None else resource.contents


def _not_found(location: Location, key: str, token: str, names: list[str]) -> UnresolvableReferenceError:
    near = difflib.get_close_matches(token, names[:1000], n=1)
    return UnresolvableReferenceError(
        f"{show(location.keywords()[key])} points to nothing: there is no {show(token)}",
        at=location.at(key),
        hint=f"{show(near[0])}, which is there" if near else None,
    )


def _schemas_in(name: str, draft: SchemaDraft, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """(path below, schema) of the direct sub-schemas in a keyword."""
    known = keyword(name, draft)
    # Beside a bare $ref nothing is asked of the siblings.
    if known is None or known.place is Inner.NONE or not known.check(value):
        return
    if isinstance(value, list) and known.place in (Inner.LIST, Inner.SELF_OR_LIST):
        yield from ((f"/{name}/{index}", below) for index, below in enumerate(value))
    elif isinstance(value, dict) and known.place in (Inner.MAP, Inner.MAP_OR_NAMES):
        for key, below in value.items():
            if not (known.place is Inner.MAP_OR_NAMES and isinstance(below, list)):
                yield pointer_of((name, key)), below
    else:
        yield f"/{name}", value


def _check(location: Location) -> None:
    for name, value in location.keywords().items():
        known = keyword(name, location.draft)
        if known is not None and not known.check(value):
            raise InvalidConstraintError(f'"{name}" must be {known.must_be}, not {show(value)}', at=location.at(name))
        for key, below in value.items() if name == "dependencies" and is_assertion(name, location.draft) else ():
            if not is_names(below) and not isinstance(below, (dict, bool)):
                raise InvalidConstraintError(
                    f"a dependency must be a schema or a list of strings, not {show(below)}", at=location.at(name, key)
                )
