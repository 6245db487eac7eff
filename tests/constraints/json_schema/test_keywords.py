"""What each keyword accepts and rejects, by hand, read byte by byte."""

import json
from typing import Any

import pytest

from decodekit.testing import check_language
from tests.reference.any_json import any_json
from tests.reference.json_network import accepts
from tests.sizes import few

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"

TABLE: list[tuple[Any, list[str], list[str]]] = [
    # types and literals
    (
        True,
        ["null", '{"a":[1,{}]}', "-0", "1e5", '"\\u0061"'],
        ["", "nul", "01", "[1,]", "{,}", " 1", "1 ", '"\\ud800"'],
    ),
    ({"type": "integer"}, ["1", "-0", "1.0", "1e0", "10e2"], ["1.5", '"1"', "true", "1e-1"]),
    ({"$schema": D4, "type": "integer"}, ["1"], ["1.0", "1e0"]),
    ({"type": ["null", "boolean"]}, ["null", "true", "false"], ["0", '""']),
    ({"minLength": 2}, ["7", "null", '"ab"', '"\\u0061b"'], ['"a"', '"\\u0061"']),
    ({"type": "string", "maxLength": 1}, ['"😀"', '"\\ud83d\\ude00"', '""'], ['"ab"']),
    # enum and const
    (
        {"enum": [1, "a", {"x": [1, 2]}, None, [True]]},
        ["1", "1.0", "1e0", '"\\u0061"', '{"x":[1,2]}', "null", "[true]"],
        ["true", "[1]", '{"x":[1]}', '{"x":[1,2],"y":1}', "2"],
    ),
    ({"const": {"a": 1, "b": 2}}, ['{"a":1.0,"b":2}'], ['{"a":1}', '{"a":1,"b":2,"c":3}', '{"a":true,"b":2}']),
    ({"const": False}, ["false"], ["0", "null"]),
    ({"not": {"enum": [1, "a"]}}, ["2", '"b"', "null", "[1]"], ["1", "1.0", '"a"', '"\\u0061"']),
    # numbers
    ({"type": "integer", "minimum": 10}, ["10", "123", "1e1"], ["9", "010", "10.5", "-10"]),
    ({"exclusiveMinimum": 0.5, "maximum": 2}, ["0.51", "2", "2.00", "5.1e-1"], ["0.5", "2.01", "5e-1", "-1"]),
    ({"$schema": D4, "minimum": 3, "exclusiveMinimum": True}, ["4", "3.1"], ["3", "3.0"]),
    ({"multipleOf": 0.01}, ["0.07", "19.99", "-0.5", "3"], ["0.075", "1.001"]),
    ({"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 7}, ["6", "6.0"], ["3", "9", "7"]),
    # strings
    ({"pattern": "b"}, ['"abc"', '"\\u0062"', "1"], ['"ac"', '""']),
    ({"pattern": "^a$"}, ['"a"'], ['"ab"', '"a\\n"', '"ba"']),
    ({"pattern": "(?i)^a|b$"}, ['"A"', '"ax"', '"xB"'], ['"xA"', '"Bx"']),
    ({"pattern": "(?si)^a.$"}, ['"A\\n"', '"ab"'], ['"a"']),
    ({"type": "object", "patternProperties": {"(?i)^n": {"type": "null"}}}, ['{"N":null}'], ['{"n":1}', '{"N":1}']),
    ({"type": "string", "pattern": "^\\w+$", "minLength": 2}, ['"ab"'], ['"a"', '"a-"']),
    # objects
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {}},
            "required": ["b"],
            "additionalProperties": False,
        },
        ['{"a":1,"b":null}', '{"b":{}}', '{ "a" :\n1 , "b" : 2 }', '{"\\u0062":1}'],
        ["{}", '{"a":1}', '{"a":"x","b":1}', '{"b":1,"c":1}', '{"a":1,"a":1,"b":1}', '{"b":1,"a":1}'],
    ),
    (
        {"required": ["z"], "additionalProperties": {"type": "integer"}},
        ['{"z":1}', '{"z":1,"y":2}', "1"],
        ['{"y":1}', '{"z":"1"}'],
    ),
    ({"additionalProperties": True, "maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":2}']),
    (
        {"properties": {"a": {}, "b": {}, "c": False}, "additionalProperties": False, "minProperties": 2},
        ['{"a":1,"b":2}'],
        ["{}", '{"a":1}', '{"b":1}', '{"a":1,"c":1}'],
    ),
    (
        {"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}}, "additionalProperties": False},
        ['{"ab":3}', '{"a":1}', '{"b":"x"}', "{}"],
        ['{"ab":1}', '{"c":1}', '{"ab":"x"}', '{"a":1,"a":2}'],
    ),
    (
        {
            "properties": {"ax": {"maximum": 5}},
            "patternProperties": {"^a": {"minimum": 2}},
            "additionalProperties": {"type": "null"},
        },
        ['{"ax":3,"a":9,"z":null}'],
        ['{"ax":6}', '{"ax":1}', '{"a":1}', '{"z":1}'],
    ),
    (  # two obligations, each with one key of its own
        {"type": "object", "allOf": [{"not": {"propertyNames": {"not": {"const": key}}}} for key in ("a4", "a4d3")]}
        | {"patternProperties": {"3": {"type": "boolean"}}},
        ['{"a4":1,"a4d3":true}', '{"x":2,"a4d3":false,"a4":1}'],
        ['{"a4":1,"a4d3":1}', '{"a4":1}', "{}"],
    ),
    (  # and two that would need the same one
        {"type": "object", "allOf": [{"not": {"additionalProperties": {"not": {"const": n}}}} for n in (1, 2)]}
        | {"propertyNames": {"enum": ["k", "l"]}},
        ['{"k":1,"l":2}', '{"l":1,"k":2}'],
        ['{"k":1}', '{"k":1,"l":1}', '{"k":1,"m":2}'],
    ),
    ({"propertyNames": {"maxLength": 2}, "minProperties": 1}, ['{"ab":1}', '{"\\u0061b":1}'], ['{"abc":1}', "{}"]),
    ({"additionalProperties": {"type": "integer"}}, ['{"a":1,"b":2}'], ['{"a":1,"\\u0061":2}', '{"a":"x"}']),
    (
        {"patternProperties": {"^[ab]$": {}}, "additionalProperties": False, "minProperties": 2},
        ['{"b":1,"a":2}'],
        ['{"a":1}', '{"a":1,"a":2}', '{"c":1}'],
    ),
    (
        {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
        ['{"a":1}', "{}"],
        ['{"b":1}'],
    ),
    # arrays
    (
        {"items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ["[1]", "[1,2]", "[ 1 , 2 ]", "{}"],
        ["[]", "[1,2,3]", '["a"]'],
    ),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "items": False}, ["[]", "[1]", "[1,2]"], ["[2]", "[1,2,3]"]),
    ({"$schema": D7, "items": [{"const": 1}], "additionalItems": {"const": 2}}, ["[1,2,2]", "[]"], ["[2]", "[1,1]"]),
    ({"$schema": D7, "additionalItems": False}, ["[1]"], []),
    ({"type": "array", "prefixItems": [{}, False]}, ["[1]", "[]"], ["[1,2]"]),
    (
        {"contains": {"type": "integer"}, "minContains": 2, "maxContains": 3},
        ["[1,2]", '[1,"a",2,3]', "5"],
        ["[1]", "[1,2,3,4]", "[]"],
    ),
    ({"contains": {"type": "integer"}, "minContains": 0}, ["[]", '["a"]'], []),
    ({"uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1,1]"]),
    # combinators
    ({"anyOf": [{"type": "integer"}, {"minLength": 2}]}, ["1", '"ab"', "1.5"], ['"a"']),
    ({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, ["2", "4"], ["1", "5"]),
    ({"oneOf": [{"minimum": 2}, {"maximum": 5}]}, ["1", "6"], ["3", '"x"', "null"]),
    (
        {
            "oneOf": [
                {"properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k"]},
                {"properties": {"k": {"const": "b"}, "v": {"type": "null"}}, "required": ["k"]},
            ],
            "type": "object",
        },
        ['{"k":"a","v":1}', '{"k":"b","v":null}'],
        ['{"k":"a","v":null}', "{}", '{"k":"c"}'],
    ),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"b":1,"c":1}'],
        ["{}", '{"a":1,"b":1}'],
    ),
    ({"not": {"type": "string"}}, ["1", "{}"], ['"x"']),
    ({"not": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}, ["{}", '{"a":"x"}'], ['{"a":1}', "1"]),
    ({"not": {"additionalProperties": {"type": "integer"}}}, ['{"a":"x"}', '{"a":1,"b":"x"}'], ["{}", '{"a":1}', "3"]),
    ({"not": {"items": {"type": "integer"}}}, ['["a"]', '[1,"a"]'], ["[]", "[1]", "1"]),
    (
        {
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"required": ["c"]},
        },
        ['{"a":1,"b":2}', '{"a":2,"c":2}', '{"c":1}', "3"],
        ['{"a":1}', '{"a":2}', '{"b":1}'],
    ),
    ({"if": False, "type": "null"}, ["null"], ["1"]),
    ({"dependentRequired": {"a": ["b"]}}, ['{"b":1}', '{"a":1,"b":1}', "{}"], ['{"a":1}']),
    ({"dependentSchemas": {"a": {"maxProperties": 1}}}, ['{"a":1}', '{"b":1,"c":1}'], ['{"a":1,"b":1}']),
    (
        {"$schema": D7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        ['{"a":1,"b":1}', '{"c":1,"d":1}'],
        ['{"a":1}', '{"c":1}'],
    ),
    # references
    (
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"properties": {"v": {"type": "integer"}, "l": {"$ref": "#/$defs/n"}}, "required": ["v"]}},
        },
        ['{"v":1,"l":{"v":2,"l":{"v":3}}}'],
        ['{"v":1,"l":{"v":2,"l":{}}}'],
    ),
    ({"$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": {"type": "integer"}}}, ["5"], ["4", '"a"']),
    (
        {"$schema": D7, "$ref": "#/definitions/n", "minimum": 5, "definitions": {"n": {"type": "integer"}}},
        ["4"],
        ['"a"'],
    ),
    ({"items": {"$ref": "#there"}, "$defs": {"x": {"$anchor": "there", "type": "null"}}}, ["[null]"], ["[1]"]),
    ({"$id": "http://x/a", "items": {"$ref": "b"}, "$defs": {"x": {"$id": "b", "type": "null"}}}, ["[null]"], ["[1]"]),
    ({"$ref": "#/a~1b/c%25", "a/b": {"c%": {"type": "null"}}}, ["null"], ["1"]),
    # annotations
    (
        {"title": "x", "default": 1, "unknown": [1], "format": "date", "contentEncoding": "base64"},
        ['"no date"', "1"],
        [],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), TABLE, ids=[json.dumps(row[0])[:60] for row in TABLE])
def test_keyword(schema: Any, good: list[str], bad: list[str]) -> None:
    strict, free = any_json(schema), any_json(schema, order="any")
    for text in good:
        assert accepts(free, text.encode()), text
    for text in bad:
        assert not accepts(strict, text.encode()), text
        is_only_order = text == '{"b":1,"a":1}'
        assert accepts(free, text.encode()) == is_only_order, text


@few(5)
@pytest.mark.parametrize("number", range(len(TABLE)))
def test_masks_and_validate_agree_with_the_table(number: int) -> None:
    schema, good, bad = TABLE[number]
    check_language(any_json(schema, order="any"), accepts=good, rejects=[t for t in bad if t != '{"b":1,"a":1}'])


def test_order_declared() -> None:
    schema = {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b", "z"]}
    rule = any_json(schema)
    for text in ['{"b":1,"z":1}', '{"a":1,"b":1,"c":1,"z":1,"y":1}']:
        assert accepts(rule, text.encode())
    for text in ['{"z":1,"b":1}', '{"b":1,"a":1,"z":1}', '{"b":1,"y":1,"z":1}']:
        assert not accepts(rule, text.encode())
        assert accepts(any_json(schema, order="any"), text.encode())


def test_white_space() -> None:
    value = {"a": [1, {"b": 2}, [], {}], "c": 3}
    for indent in (0, 2, 4):
        rule = any_json({"type": "object"}, whitespace=indent)
        assert accepts(rule, json.dumps(value, indent=indent).encode())
        assert not accepts(rule, json.dumps(value).encode())
    compact = any_json({"type": "object"}, whitespace="compact")
    assert accepts(compact, json.dumps(value, separators=(",", ":")).encode())
    assert not accepts(compact, json.dumps(value).encode())
    anything = any_json({"type": "array"})
    assert accepts(anything, b"[" + b" " * 64 + b"]")
    assert not accepts(anything, b"[" + b" " * 65 + b"]")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "0000-01-01", "24-01-01"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:00"], ["24:00:00Z", "12:00:00", "12:00Z"]),
        ("date-time", ["2024-01-02T03:04:05Z"], ["2024-01-02 03:04:05Z", "2024-01-02T03:04:05"]),
        ("duration", ["P3D", "PT4H", "P1Y2M3DT4H5M6S", "P2W"], ["P", "3D", "P1D2H", "PT"]),
        ("email", ["a.b@example.com"], ["a@", "@b", "a b@c.d", "a..b@c"]),
        ("hostname", ["example.com", "a-b.c"], ["-a.b", "a_b", "a..b", "x" * 64]),
        ("ipv4", ["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
        (
            "ipv6",
            ["::", "::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"],
            ["1:2:3", ":::", "12345::", "1::2::3"],
        ),
        ("uuid", ["2EB8AA08-AA98-11EA-B4AA-73B441D16380"], ["2eb8aa08aa9811eab4aa73b441d16380", "x"]),
        ("uri", ["http://a.b/c?d#e", "urn:a:b", "mailto:x@y.z"], ["//a", "a b", "no", "http://a b"]),
        ("uri-reference", ["/a/b", "#x", "http://a"], ["\\\\a", "a b"]),
        ("json-pointer", ["", "/a~1b/0"], ["a", "/~2"]),
    ],
)
def test_formats(name: str, good: list[str], bad: list[str]) -> None:
    rule = any_json({"format": name}, format="assert")
    for value in good:
        assert accepts(rule, json.dumps(value).encode()), value
        assert not accepts(any_json({"not": {"format": name}}, format="assert"), json.dumps(value).encode())
    for value in bad:
        assert not accepts(rule, json.dumps(value).encode()), value
        assert accepts(any_json({"format": name}), json.dumps(value).encode())
    assert accepts(rule, b"1")


def test_registry() -> None:
    schema = {"properties": {"a": {"$ref": "http://x/y#/$defs/z"}}}
    rule = any_json(schema, registry={"http://x/y": {"$defs": {"z": {"type": "null"}}}})
    assert accepts(rule, b'{"a":null}')
    assert not accepts(rule, b'{"a":1}')
