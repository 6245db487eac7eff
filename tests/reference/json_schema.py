"""JSON Schema, read from its specifications and nothing else: is a value valid, for all five drafts.

The second opinion beside the package `jsonschema`, and the first one where that is known to be wrong: numbers are exact
(decimals, never floats), `$` is the end of the string only, `uniqueItems` compares all pairs, and `unevaluated*` sees
exactly what a succeeding schema evaluated. Plain recursion over the value, no errors, no formats.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_BY_URI = {uri.rstrip("#"): draft for draft, uri in DRAFTS.items()}
SCHEMAS_BELOW = {
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"), "one"),
    **dict.fromkeys(("additionalItems", "unevaluatedItems", "unevaluatedProperties"), "one"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), "list"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), "map"),
    "items": "one or list",
    "dependencies": "map",
}
"""Keyword to where its sub-schemas are, whatever the draft."""


def load(text: str) -> Any:
    """A JSON text as exact values: integers and decimals.

    Raises:
        ValueError: no JSON, or a key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            raise ValueError("a key twice")
        return value

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, object_pairs_hook=unique, parse_float=Decimal, parse_constant=refuse)


def below(schema: Any) -> list[tuple[tuple[str | int, ...], Any]]:
    """The sub-schemas one level down, each with its path."""
    found: list[tuple[tuple[str | int, ...], Any]] = []
    if isinstance(schema, dict):
        for name, value in schema.items():
            kind = SCHEMAS_BELOW.get(name)
            if kind is None:
                continue
            if isinstance(value, list) and "list" in kind:
                found += [((name, index), entry) for index, entry in enumerate(value)]
            elif isinstance(value, dict) and kind == "map":
                found += [((name, key), entry) for key, entry in value.items() if not isinstance(entry, list)]
            elif kind.startswith("one") and isinstance(value, (dict, bool)):
                found.append(((name,), value))
    return found


def equal(one: Any, two: Any) -> bool:
    """JSON's equality: 1 is 1.0 and is not true."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return bool(one == two)


def found_in(pattern: str, text: str) -> bool:
    """Whether an ECMA-262 pattern is found; for the plain ones of the tests (no white space class)."""
    return re.search(re.sub(r"(?<!\\)\$", r"\\Z", pattern), text, re.ASCII) is not None


class Resource:
    """A schema with an identifier of its own: its base URI, root, draft, and the names in it."""

    def __init__(self, base: str, root: Any, draft: int) -> None:
        self.base, self.root, self.draft = base, root, draft
        self.anchors: dict[str, Any] = {}
        self.dynamic: dict[str, Any] = {}


class Validator:
    """One schema; `is_valid` answers. The schema must be fresh from `json.loads`: places are told by identity."""

    def __init__(self, schema: Any, draft: int = 2020, registry: dict[str, Any] | None = None) -> None:
        self._schema = schema
        self._of: dict[int, Resource] = {}
        self._resources: dict[str, Resource] = {}
        for uri, other in (registry or {}).items():
            self._index(other, Resource(uri, other, draft))
        self._index(schema, Resource("", schema, draft))

    def is_valid(self, value: Any) -> bool:
        """Whether the value is valid.

        Raises:
            RecursionError: a schema that refers to itself for the same value.
            LookupError: a reference that names nothing.
        """
        return self._run(self._schema, value, ()) is not None

    def check_references(self) -> None:
        """Look every reference of the schema up.

        Raises:
            LookupError: one names nothing.
        """
        agenda = [self._schema]
        while agenda:
            schema = agenda.pop()
            if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
                self._resolve(self._of[id(schema)], schema["$ref"])
            agenda += [child for _, child in below(schema)]

    def _index(self, schema: Any, resource: Resource) -> None:
        if isinstance(schema, dict):
            dialect = schema.get("$schema")
            draft = _BY_URI.get(dialect.rstrip("#"), resource.draft) if isinstance(dialect, str) else resource.draft
            name = schema.get("id" if draft == 4 else "$id")
            hidden = draft <= 7 and isinstance(schema.get("$ref"), str)
            if schema is resource.root:
                resource.draft = draft
                self._resources.setdefault(resource.base, resource)
            if isinstance(name, str) and not hidden:
                if name.startswith("#") and draft <= 7:
                    resource.anchors[name[1:]] = schema
                else:
                    base = urldefrag(urljoin(resource.base, name)).url
                    if schema is not resource.root:
                        resource = Resource(base, schema, draft)
                    resource.base = base
                    self._resources[base] = resource
            self._of[id(schema)] = resource
            if draft >= 2019:
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(schema.get(keyword), str):
                        resource.anchors[schema[keyword]] = schema
                if isinstance(schema.get("$dynamicAnchor"), str):
                    resource.dynamic[schema["$dynamicAnchor"]] = schema
        for _, child in below(schema):
            self._index(child, resource)

    def _resolve(self, resource: Resource, reference: str) -> Any:
        uri, fragment = urldefrag(urljoin(resource.base, reference))
        if reference.startswith("#"):
            uri = resource.base
        fragment = unquote(fragment)
        target = self._resources[uri]
        if fragment and not fragment.startswith("/"):
            return target.anchors[fragment]
        place = target.root
        for token in fragment.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            place = place[int(token)] if isinstance(place, list) else place[token]
        return place

    def _run(self, schema: Any, value: Any, scope: tuple[Resource, ...]) -> tuple[set[str], set[int]] | None:
        """The properties and items that the schema evaluated; None if the value is not valid."""
        if isinstance(schema, bool):
            return (set(), set()) if schema else None
        resource = self._of[id(schema)]
        if not scope or scope[-1] is not resource:
            scope = (*scope, resource)
        draft = resource.draft
        if draft <= 7 and isinstance(schema.get("$ref"), str):
            schema = {"$ref": schema["$ref"]}
        if not self._plain(schema, value, draft):
            return None
        properties: set[str] = set()
        items: set[int] = set()

        def add(result: tuple[set[str], set[int]] | None) -> bool:
            if result is not None:
                properties.update(result[0])
                items.update(result[1])
            return result is not None

        def run(sub: Any, on: Any = value) -> tuple[set[str], set[int]] | None:
            return self._run(sub, on, scope)

        def holds(sub: Any, on: Any) -> bool:
            return run(sub, on) is not None

        if "$ref" in schema and not add(run(self._resolve(resource, schema["$ref"]))):
            return None
        if draft == 2020 and "$dynamicRef" in schema:
            target = self._resolve(resource, schema["$dynamicRef"])
            name = urldefrag(schema["$dynamicRef"]).fragment
            if isinstance(target, dict) and name and target.get("$dynamicAnchor") == name:
                target = next(outer.dynamic[name] for outer in scope if name in outer.dynamic)
            if not add(run(target)):
                return None
        if draft == 2019 and "$recursiveRef" in schema:
            target = resource.root
            if isinstance(target, dict) and target.get("$recursiveAnchor") is True:
                target = next(
                    outer.root
                    for outer in scope
                    if isinstance(outer.root, dict) and outer.root.get("$recursiveAnchor") is True
                )
            if not add(run(target)):
                return None
        for sub in schema.get("allOf", ()):
            if not add(run(sub)):
                return None
        if "anyOf" in schema:
            branches = [add(run(sub)) for sub in schema["anyOf"]]  # all of them: each may evaluate something
            if not any(branches):
                return None
        if "oneOf" in schema and sum([add(run(sub)) for sub in schema["oneOf"]]) != 1:
            return None
        if "not" in schema and holds(schema["not"], value):
            return None
        if draft >= 7 and "if" in schema:
            branch = "then" if add(run(schema["if"])) else "else"
            if branch in schema and not add(run(schema[branch])):
                return None
        if isinstance(value, dict):
            for name, sub in schema.get("dependencies", {}).items() if draft <= 7 else ():
                if name in value:
                    if isinstance(sub, list):
                        if not value.keys() >= set(sub):
                            return None
                    elif not add(run(sub)):
                        return None
            for name, sub in schema.get("dependentSchemas", {}).items() if draft >= 2019 else ():
                if name in value and not add(run(sub)):
                    return None
            own: set[str] = set()
            for key in value:
                goals = [schema["properties"][key]] if key in schema.get("properties", {}) else []
                goals += [sub for pattern, sub in schema.get("patternProperties", {}).items() if found_in(pattern, key)]
                if not goals and "additionalProperties" in schema:
                    goals = [schema["additionalProperties"]]
                if not all(holds(goal, value[key]) for goal in goals):
                    return None
                if goals:
                    own.add(key)
            properties |= own
            if draft >= 6 and "propertyNames" in schema and not all(holds(schema["propertyNames"], k) for k in value):
                return None
            if draft >= 2019 and "unevaluatedProperties" in schema:
                if not all(holds(schema["unevaluatedProperties"], value[key]) for key in value.keys() - properties):
                    return None
                properties |= value.keys()
        if isinstance(value, list):
            prefix_key, rest_key = ("prefixItems", "items") if draft == 2020 else ("items", "additionalItems")
            prefix = schema.get(prefix_key, [])
            if isinstance(prefix, list):
                rest = schema.get(rest_key) if draft == 2020 or prefix_key in schema else None
            else:
                prefix, rest = [], prefix
            goals = [*prefix[: len(value)]]
            goals += [rest] * (len(value) - len(goals)) if rest is not None else []
            if not all(holds(goal, item) for goal, item in zip(goals, value, strict=False)):
                return None
            items.update(range(len(goals)))
            if draft >= 6 and "contains" in schema:
                where = {index for index, item in enumerate(value) if holds(schema["contains"], item)}
                least = schema.get("minContains", 1) if draft >= 2019 else 1
                most = schema.get("maxContains", len(value)) if draft >= 2019 else len(value)
                if not least <= len(where) <= most:
                    return None
                if draft == 2020:  # in 2019-09 `contains` leaves no annotation that unevaluatedItems reads
                    items |= where
            if draft >= 2019 and "unevaluatedItems" in schema:
                left = [item for index, item in enumerate(value) if index not in items]
                if not all(holds(schema["unevaluatedItems"], item) for item in left):
                    return None
                items.update(range(len(value)))
        return properties, items

    @staticmethod
    def _plain(schema: dict[str, Any], value: Any, draft: int) -> bool:
        """The keywords without sub-schemas."""
        is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        names = {"null": value is None, "boolean": isinstance(value, bool), "number": is_number}
        names |= {"string": isinstance(value, str), "array": isinstance(value, list), "object": isinstance(value, dict)}
        names["integer"] = is_number and (isinstance(value, int) or (draft > 4 and value == value.to_integral_value()))
        if "type" in schema:
            wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if not any(names[name] for name in wanted):
                return False
        if "enum" in schema and not any(equal(value, entry) for entry in schema["enum"]):
            return False
        if draft >= 6 and "const" in schema and not equal(value, schema["const"]):
            return False
        if is_number:
            low, high = schema.get("minimum"), schema.get("maximum")
            if draft == 4:
                if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
                    return False
                if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
                    return False
            else:
                if (low is not None and value < low) or (high is not None and value > high):
                    return False
                if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
                    return False
                if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
                    return False
            if "multipleOf" in schema and Fraction(value) % Fraction(schema["multipleOf"]) != 0:
                return False
        if isinstance(value, str):
            if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
                return False
            if "pattern" in schema and not found_in(schema["pattern"], value):
                return False
        if isinstance(value, list):
            if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
                return False
            if schema.get("uniqueItems") is True:
                pairs = ((one, two) for index, one in enumerate(value) for two in value[:index])
                if any(equal(one, two) for one, two in pairs):
                    return False
        if isinstance(value, dict):
            if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
                return False
            if not value.keys() >= set(schema.get("required", ())):
                return False
            if draft >= 2019:
                for name, needed in schema.get("dependentRequired", {}).items():
                    if name in value and not value.keys() >= set(needed):
                        return False
        return True
