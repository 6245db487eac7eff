"""References: dynamic scopes against `jsonschema`, bases, anchors, embedded resources, meta-schemas of the caller."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import jsonschema_specifications  # type: ignore[import-untyped]
import pytest
import referencing
from referencing.jsonschema import specification_with

from decodekit.constraints.author.coverage import check
from decodekit.constraints.json_schema.document.loader import Library
from decodekit.errors import UnresolvableReferenceError, UnsupportedSchemaError
from decodekit.testing import check_language
from tests.reference.any_json import any_json
from tests.reference.json_network import accepts

D4 = "http://json-schema.org/draft-04/schema#"
D6 = "http://json-schema.org/draft-06/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
D19 = "https://json-schema.org/draft/2019-09/schema"
D20 = "https://json-schema.org/draft/2020-12/schema"


def admits(schema: Any, value: Any, registry: dict[str, Any] | None = None) -> bool:
    return accepts(any_json(schema, order="any", registry=registry), json.dumps(value).encode())


def judged(schema: Any, value: Any) -> bool:
    kind = jsonschema.Draft202012Validator if schema["$schema"] == D20 else jsonschema.Draft201909Validator
    return bool(kind(schema).is_valid(value))


def strict_tree(draft: str) -> dict[str, Any]:
    """The example of the specification: a tree that is extended from outside."""
    is_new = draft == D20
    anchor: dict[str, Any] = {"$dynamicAnchor": "node"} if is_new else {"$recursiveAnchor": True}
    again = {"$dynamicRef": "#node"} if is_new else {"$recursiveRef": "#"}
    tree = {
        "$id": "http://example.com/tree",
        "$schema": draft,
        **anchor,
        "type": "object",
        "properties": {"data": True, "children": {"type": "array", "items": again}},
    }
    return {
        "$schema": draft,
        "$id": "http://example.com/strict",
        **anchor,
        "$ref": "tree",
        "propertyNames": {"enum": ["data", "children"]},
        "$defs": {"tree": tree},
    }


@pytest.mark.parametrize("draft", [D19, D20])
def test_an_extended_tree(draft: str) -> None:
    schema = strict_tree(draft)
    for value, expected in [
        ({"children": [{"data": 1}]}, True),
        ({"children": [{"daat": 1}]}, False),
        ({"children": [{"children": [{"data": 1, "x": 2}]}]}, False),
    ]:
        assert admits(schema, value) == expected == judged(schema, value)
    plain = schema["$defs"]["tree"]
    assert admits(plain, {"children": [{"daat": 1}]})


def test_the_mask_of_a_dynamic_reference() -> None:
    check_language(
        any_json(strict_tree(D20), whitespace="compact"),
        accepts=['{"data":1,"children":[{"data":2}]}', '{"children":[]}'],
        rejects=['{"children":[{"daat":2}]}', '{"x":1}'],
    )


def random_library(rng: random.Random, draft: str) -> dict[str, Any]:
    """Resources that lead to each other, each closed over names of its own, with or without the anchor."""
    names = ["r0", "r1", "r2", "r3"]
    resources = {}
    # Where only some are anchored, `jsonschema` stops at the first without, against 2019-09's section 8.2.4.2.
    odds = 0.6 if draft == D20 else float(rng.random() < 0.6)
    for index, name in enumerate(names):
        is_new = draft == D20
        mark: dict[str, Any] = {"$dynamicAnchor": "n"} if is_new else {"$recursiveAnchor": True}
        dynamic = {"$dynamicRef": rng.choice(["#n", "#n", "r1#n"])} if is_new else {"$recursiveRef": "#"}
        anchored = rng.random() < odds
        deep = is_new and not anchored  # an anchor below the root of the resource
        schema: dict[str, Any] = {
            "$id": f"http://example.com/{name}",
            **(mark if anchored else {}),
            "type": "object",
            "required": [f"k{index}"] if rng.random() < 0.4 else [],
            "properties": {
                "a": dynamic,
                "b": {"$ref": rng.choice(names)},
                "c": {"$ref": rng.choice(names) + rng.choice(["", "#/$defs/in"])},
                f"k{index}": {"type": "integer"},
            },
            "$defs": {"in": {"properties": {"a": dynamic, "k0": {"type": "null"}}}},
        }
        if deep:
            schema["$defs"]["anchor"] = {"$dynamicAnchor": "n", "required": ["k3"]}
        resources[name] = schema
    if draft == D20 and "$dynamicAnchor" not in resources["r1"]:
        resources["r1"]["$dynamicAnchor"] = "n"
        resources["r1"]["$defs"].pop("anchor", None)
    return {"$schema": draft, "$id": "http://example.com/root", "$ref": rng.choice(names), "$defs": resources}


def random_value(rng: random.Random, depth: int) -> Any:
    value: dict[str, Any] = {f"k{k}": rng.choice([1, 1, 1, None]) for k in range(4) if rng.random() < 0.6}
    if depth:
        value |= {name: random_value(rng, depth - 1) for name in "abc" if rng.random() < 0.6}
    return value


@pytest.mark.parametrize("draft", [D20, D19])
def test_random_scopes_agree_with_jsonschema(draft: str) -> None:
    rng = random.Random(5)
    verdicts = [0, 0]
    num_dynamic = 0
    for _ in range(12):
        schema = random_library(rng, draft)
        rule = any_json(schema, order="any", whitespace="compact")
        plain = json.loads(
            json.dumps(schema).replace('"$dynamicRef": "#n"', '"$ref": "#"').replace("$recursiveRef", "$ref")
        )
        for _ in range(8):
            value = random_value(rng, 2)
            expected = judged(schema, value)
            assert accepts(rule, json.dumps(value, separators=(",", ":")).encode()) == expected, (schema, value)
            verdicts[expected] += 1
            num_dynamic += expected != judged(plain, value)
    assert min(verdicts) > 5
    assert num_dynamic > 0  # the scope matters: a plain reference would be judged otherwise


def test_recursive_reference_takes_the_outermost_anchor_past_a_resource_without_one() -> None:
    schema = {
        "$schema": D19,
        "$id": "http://example.com/outer",
        "$recursiveAnchor": True,
        "anyOf": [{"type": "boolean"}, {"$ref": "middle"}],
        "$defs": {
            "middle": {"$id": "middle", "$ref": "inner"},
            "inner": {"$id": "inner", "$recursiveAnchor": True, "type": "array", "items": {"$recursiveRef": "#"}},
        },
    }
    assert admits(schema, [True]) and admits(schema, [[True]]) and not admits(schema, [1])


def test_ordinary_schemas_have_no_scopes() -> None:
    library = Library({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}}, {})
    below = library.child(library.root, "properties", "a")
    assert below is library.child(library.root, "properties", "a") and below.scope == ()
    assert library.target(below).scope == () and not library._scoped


def test_an_anchor_found_by_a_pointer_only_is_no_dynamic_anchor() -> None:
    schema = {"$ref": "#/x/y", "x": {"y": {"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}}}}
    assert admits(schema, [[1]])


def test_the_meta_schema_describes_itself() -> None:
    for draft in (D19, D20):
        # Its own documents, without the one keyword that is no part of this.
        registry = {
            uri: json.loads(json.dumps(jsonschema_specifications.REGISTRY[uri].contents).replace("uniqueItems", "x"))
            for uri in jsonschema_specifications.REGISTRY
        }
        rule = any_json({"$ref": draft}, order="any", whitespace="compact", registry=registry)
        assert accepts(rule, b'{"properties":{"a":{"anyOf":[{"minLength":1}]}}}')
        assert not accepts(rule, b'{"properties":{"a":{"anyOf":[{"minLength":-1}]}}}')
        assert not accepts(rule, b'{"$defs":{"a":{"type":"strng"}}}')


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"$schema": D4, "id": "http://a.b/c", "properties": {"x": {"$ref": "c#/definitions/d"}},
          "definitions": {"d": {"type": "null"}}}, {"x": None}, {"x": 1}),
        ({"$schema": D4, "properties": {"x": {"$ref": "#d"}}, "definitions": {"d": {"id": "#d", "type": "null"}}},
         {"x": None}, {"x": 1}),
        ({"$schema": D6, "$id": "http://a.b/c#e", "properties": {"x": {"$ref": "http://a.b/c#d"}},
          "definitions": {"d": {"$id": "#d", "const": None}}}, {"x": None}, {"x": 1}),
        ({"$schema": D7, "properties": {"x": {"$ref": "http://e.f/g#h"}},
          "definitions": {"d": {"$id": "http://e.f/g#h", "const": None}}}, {"x": None}, {"x": 1}),
        # Siblings of a reference count from 2019-09 on.
        ({"$schema": D7, "definitions": {"n": {}}, "$ref": "#/definitions/n", "type": "null"}, 5, ...),
        ({"$schema": D19, "$defs": {"n": {}}, "$ref": "#/$defs/n", "type": "null"}, None, 5),
        # Definitions by the names of other drafts are found by their pointer.
        ({"$schema": D7, "$defs": {"n": {"type": "null"}}, "$ref": "#/$defs/n"}, None, 5),
        ({"definitions": {"n": {"type": "null"}}, "$ref": "#/definitions/n"}, None, 5),
        # A nested base, and a resource found by its own name.
        ({"$id": "http://a.b/", "$ref": "x/y", "$defs": {"x": {"$id": "x/", "$defs": {"y": {"$id": "y", "$ref": "#z",
          "$defs": {"z": {"$anchor": "z", "type": "null"}}}}}}}, None, 5),
        ({"$schema": D7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, {"a": 1, "b": 1}, {"c": 1}),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, ...),
        ({"$schema": "http://nobody.example/knows#", "type": "null"}, None, 5),
    ],
)  # fmt: skip
def test_drafts_and_bases(schema: Any, accepted: Any, refused: Any) -> None:
    assert admits(schema, accepted)
    assert refused is ... or not admits(schema, refused)


def test_meta_schemas_of_the_caller() -> None:
    base = "https://json-schema.org/draft/2020-12/vocab/"
    registry = {
        "http://m/novalidation": {
            "$schema": D20,
            "$vocabulary": {f"{base}core": True, f"{base}applicator": True, "http://m/other": False},
        },
        "http://m/old": {"$schema": D7},
        "http://m/older": {"$schema": "http://m/old"},
        "http://m/strange": {"$schema": D20, "$vocabulary": {f"{base}core": True, "http://m/other": True}},
        "http://m/itself": {"$schema": "http://m/itself"},
    }
    schema = {"$schema": "http://m/novalidation", "properties": {"a": {"minimum": 5}, "b": False}}
    assert admits(schema, {"a": 1}, registry) and not admits(schema, {"b": 1}, registry)
    statuses = {entry.pointer: entry.status for entry in check(schema, registry=registry).keywords}
    assert statuses["#/properties/a/minimum"] == "annotation" and statuses["#/properties"] == "mask"
    for uri in ("http://m/old", "http://m/older"):
        assert check({"$schema": uri}, registry=registry).draft == "draft 7"
    assert admits({"$schema": "http://m/itself"}, 1, registry)
    with pytest.raises(UnsupportedSchemaError, match="http://m/other") as caught:
        any_json({"$schema": "http://m/strange"}, registry=registry).root()
    assert caught.value.at == "#/$schema"


def test_a_registry_of_referencing() -> None:
    registry = referencing.Registry().with_resource(
        "http://a.b/c", specification_with(D7).create_resource({"type": "null"})
    )
    rule = any_json({"items": {"$ref": "http://a.b/c"}}, registry=registry)
    assert accepts(rule, b"[null]") and not accepts(rule, b"[1]")


def test_unresolved_references_have_a_place_and_a_hint() -> None:
    for key, draft in (("$dynamicRef", D20), ("$recursiveRef", D19), ("$ref", D7)):
        with pytest.raises(UnresolvableReferenceError, match="registry=") as caught:
            any_json({"$schema": draft, "items": {key: "http://nowhere.example/x#y"}}).root()
        assert caught.value.at == f"#/items/{key}"


def test_content_keywords_are_annotations() -> None:
    schema = {"contentEncoding": "base64", "contentMediaType": "application/json", "contentSchema": {"type": "null"}}
    assert admits(schema, "!") and admits(schema, 5)
    assert {entry.keyword: entry.status for entry in check(schema).keywords} == dict.fromkeys(schema, "annotation")
    # What stands in a content schema is a schema, and can be referred to.
    assert not admits(schema | {"$ref": "#/contentSchema"}, 5)


def test_a_goal_that_needs_itself_is_no_endless_question() -> None:
    """The value of ``a`` has to be what the root is and to have an ``a``, which is again such a value."""
    needs_a = {"patternProperties": {"a|^b$": {"required": ["a"]}}, "properties": {"a": {"$ref": "#"}}}
    rule = any_json(needs_a)
    check_language(rule, accepts=["{}", '{"a":1}', '{"a":{"a":2}}', '{"b":{"a":0}}'], rejects=['{"a":{}}', '{"b":{}}'])
