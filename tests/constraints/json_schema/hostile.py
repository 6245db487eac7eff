"""Schemas from strangers, each tried in a process of its own with bounded memory and processor time.

`python -m tests.constraints.json_schema.hostile` reads names of `CASES` from its input and writes one line of JSON for
each: what became of the schema, how much processor time and how much memory it took. Without input but with names as
arguments it runs these.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import ConstraintError
from decodekit.vocabulary import Vocabulary
from tests.reference.any_json import any_json

MAX_MEGABYTES = 1024
"""What a schema may add to the memory of a process that has decodekit loaded; beyond it an allocation fails."""
STOP_SECONDS = 20
"""Processor time after which the process is killed."""
VOCABULARY = Vocabulary(
    [bytes([b]) for b in range(256)] + [b'{"', b'":', b'", "', b'"}', b"123", b"aa", b"[[", None], eos_token_ids=[263]
)


def nested(levels: int, leaf: Any, wrap: Callable[[Any], Any]) -> Any:
    """A value inside `levels` others."""
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def entry(number: int) -> dict[str, Any]:
    """One property of a large, ordinary schema."""
    fields = {"id": {"type": "integer", "minimum": number}, "name": {"type": "string", "maxLength": 20}}
    return {"type": "object", "properties": fields, "required": ["id"], "description": "x" * 40}


def tower(levels: int, step: Callable[[dict[str, Any], int], Any], leaf: Any) -> Any:
    """Definitions each of which refers to the one before, as often as it likes."""
    definitions = {"d0": leaf}
    for number in range(1, levels + 1):
        definitions[f"d{number}"] = step({"$ref": f"#/$defs/d{number - 1}"}, number)
    return {"$ref": f"#/$defs/d{levels}", "$defs": definitions}


def text(pattern: str) -> dict[str, Any]:
    """A string with a pattern."""
    return {"type": "string", "pattern": pattern}


def ring(wrap: Callable[[Any], Any], size: int = 3) -> Any:
    """Definitions that refer to each other in a circle."""
    definitions = {f"d{n}": wrap({"$ref": f"#/$defs/d{(n + 1) % size}"}) for n in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def far(distance: int) -> str:
    """A pattern that asks for a letter so far from the end: an intersection of some of them has very many states."""
    return f"^(a|b)*a(a|b){{{distance}}}$"


def by_distance(first: int, last: int) -> dict[str, Any]:
    """A value for each place of that letter: patterns that divide the keys into 2**(last - first) regions."""
    return {f"a(a|b){{{n}}}$": {"minimum": n} for n in range(first, last)}


USABLE: dict[str, Callable[[], Any]] = {
    # -- nesting
    "300 levels": lambda: nested(
        300, {"type": "null"}, lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}
    ),
    "90 times not": lambda: nested(90, {"type": "null"}, lambda s: {"not": s}),
    "a ring of 10,000 through properties": lambda: ring(lambda s: {"type": "object", "properties": {"a": s}}, 10_000),
    # -- many
    "100,000 strings": lambda: {"enum": [f"value {n}" for n in range(100_000)]},
    "100,000 strings with a long beginning": lambda: {"enum": ["x" * 30 + str(n) for n in range(100_000)]},
    "100,000 numbers": lambda: {"enum": list(range(100_000))},
    "100,000 decimals": lambda: {"enum": [n / 1000 for n in range(100_000)]},
    "100,000 strings but these": lambda: {"type": "string", "not": {"enum": [f"value {n}" for n in range(100_000)]}},
    "100,000 names": lambda: {"type": "object", "propertyNames": {"enum": [f"n{n}" for n in range(100_000)]}},
    "50,000 properties": lambda: {"properties": {f"p{n}": {"type": "null"} for n in range(50_000)}},
    "50,000 properties and no other": lambda: {
        "type": "object",
        "properties": {f"p{n}": {"type": "null"} for n in range(50_000)},
        "additionalProperties": False,
    },
    "50,000 properties, all required": lambda: {
        "type": "object",
        "properties": {f"p{n}": {"type": "null"} for n in range(50_000)},
        "required": [f"p{n}" for n in range(50_000)],
        "additionalProperties": False,
    },
    "20,000 required": lambda: {"type": "object", "required": [f"p{n}" for n in range(20_000)]},
    "nearly all of 50,000": lambda: {
        "type": "object",
        "properties": {f"p{n}": {} for n in range(50_000)},
        "additionalProperties": False,
        "minProperties": 49_999,
    },
    "100 branches": lambda: {
        "oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"], "type": "object"} for n in range(100)]
    },
    # -- large
    "5 megabytes of properties": lambda: {
        "type": "object",
        "properties": {f"prop{n}": entry(n) for n in range(25_000)},
    },
    "5 megabytes of description": lambda: {"type": "object", "description": "x" * 5_000_000},
    "5 megabytes in one string": lambda: {"enum": ["x" * 5_000_000, "y"]},
    "5 megabytes of definitions": lambda: {
        "$defs": {f"d{n}": entry(n) for n in range(25_000)},
        "items": {"$ref": "#/$defs/d77"},
    },
    # -- large counts
    "a billion items": lambda: {"type": "array", "minItems": 10**9},
    "a billion characters": lambda: {"type": "string", "minLength": 10**8, "maxLength": 10**9},
    "a billion properties": lambda: {"type": "object", "minProperties": 10**9},
    "a count like 1e300": lambda: {"type": "array", "maxItems": 1e300, "minItems": 10**30},
    # -- numbers
    "400 digits": lambda: {"type": "integer", "minimum": 10**400, "maximum": 10**401},
    "a large step": lambda: {"type": "integer", "multipleOf": 10**9 + 7, "minimum": 10**30},
    "a tiny step": lambda: {"type": "number", "multipleOf": 1e-300},
    "the largest float": lambda: {"type": "number", "minimum": 1.7e308},
    # -- references
    "itself in a property": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "itself in every property": lambda: {"type": "object", "additionalProperties": {"$ref": "#"}},
    "itself in items": lambda: {"type": "array", "items": {"$ref": "#"}},
    "itself denied in items": lambda: {"type": "array", "items": {"not": {"$ref": "#"}}},
    "itself contained or null": lambda: {"anyOf": [{"type": "null"}, {"type": "array", "contains": {"$ref": "#"}}]},
    "itself by a dynamic reference": lambda: {
        "$dynamicAnchor": "node",
        "type": "object",
        "additionalProperties": {"$dynamicRef": "#node"},
    },
    # -- towers
    "2**500 by properties": lambda: tower(
        500, lambda s, n: {"type": "object", "properties": {"a": s, "b": s}, "required": ["a", "b"]}, {"type": "null"}
    ),
    "2**500 by items": lambda: tower(
        500, lambda s, n: {"type": "array", "prefixItems": [s, s], "minItems": 2}, {"type": "null"}
    ),
    # -- patterns
    "(a*)*b": lambda: text("(a*)*b"),
    "^(a*)*b$": lambda: text("^(a*)*b$"),
    "a catastrophic pattern": lambda: text("^(a+)+(b|a*)*$"),
    "overlapping repeats": lambda: text("^(x+x+)+y$"),
    "a or aa": lambda: text("^(a|aa|aaa)+$"),
    "the twentieth from the end": lambda: text("^(a|b)*a(a|b){20}$"),
    "a class of 60,000 characters": lambda: text("^[" + "".join(chr(0x4E00 + n) for n in range(20_000)) * 3 + "]+$"),
    "up to 100,000 characters": lambda: text("^.{0,100000}$"),
    # -- odd characters
    "NUL in keys": lambda: {
        "type": "object",
        "properties": {"\0": {"type": "null"}, "a\0b": {"const": "\0"}},
        "required": ["\0", "a\0b"],
    },
    "lone surrogates in keys": lambda: {"type": "object", "properties": {"\ud800": {}, "\udfff\ud800": {"const": 1}}},
    "lone surrogates beside others": lambda: {"enum": ["\ud83d", "\ude00", "a"]},
    "20 overlapping branches": lambda: {
        "oneOf": [{"type": "object", "properties": {"a": {"minimum": n}}, "required": [f"r{n}"]} for n in range(20)]
    },
    # -- above a limit of the mask: the rest is left to the guard
    "50,000 that need another": lambda: {
        "type": "object",
        "dependentRequired": {f"p{n}": [f"p{n + 1}"] for n in range(50_000)},
    },
    "2**60 by anyOf": lambda: tower(60, lambda s, n: {"anyOf": [s, s]}, {"type": "null"}),
    "2**60 by allOf": lambda: tower(60, lambda s, n: {"allOf": [s, s]}, {"type": "null"}),
    "10,000 references one after the other": lambda: tower(10_000, lambda s, n: s, {"type": "null"}),
    "10,000 objects": lambda: {"enum": [{"a": n} for n in range(10_000)]},
    "5,000 digits": lambda: {"minimum": 10**4_200},
    "2**20 alternatives": lambda: {
        "allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(20)]
    },
    "2**60 different alternatives": lambda: tower(
        60, lambda s, n: {"anyOf": [{"allOf": [s], "required": [f"a{n}"]}, {"allOf": [s], "required": [f"b{n}"]}]}, {}
    ),
    "2**60 by oneOf": lambda: tower(60, lambda s, n: {"oneOf": [s, s]}, {"type": "null"}),
    "a million that count": lambda: {
        "type": "array",
        "contains": {"type": "null"},
        "minContains": 10**6,
        "maxContains": 10**7,
    },
    "8 overlapping patterns": lambda: {"patternProperties": {f"^{'.' * n}a": {"minimum": n} for n in range(8)}},
    "200 times allOf": lambda: nested(200, {"type": "null"}, lambda s: {"allOf": [s]}),
}
"""Schemas that have to end in a working mask."""

REFUSED: dict[str, Callable[[], Any]] = {
    "50,000 words": lambda: text("^(" + "|".join(f"w{n}" for n in range(50_000)) + ")$"),
    # -- nesting
    **{
        f"10,000 levels of {name}": (lambda wrap=wrap: nested(10_000, {}, wrap))  # type: ignore[misc]
        for name, wrap in {
            "properties": lambda s: {"properties": {"a": s}},
            "items": lambda s: {"items": s},
            "prefixItems": lambda s: {"prefixItems": [s]},
            "additionalProperties": lambda s: {"additionalProperties": s},
            "allOf": lambda s: {"allOf": [s]},
            "not": lambda s: {"not": s},
            "if": lambda s: {"if": s, "then": {"type": "null"}},
            "$defs": lambda s: {"$defs": {"a": s}},
            "an annotation": lambda s: {"default": [s]},
        }.items()
    },
    "10,000 levels in a const": lambda: {"const": nested(10_000, 1, lambda v: [v])},
    "10,000 levels in an enum": lambda: {"enum": [nested(10_000, 1, lambda v: {"a": v})]},
    # -- references
    "a reference to itself": lambda: {"$ref": "#"},
    "two references in a circle": lambda: ring(lambda s: s, 2),
    "10,000 references in a circle": lambda: ring(lambda s: s, 10_000),
    "itself in allOf": lambda: ring(lambda s: {"allOf": [s]}),
    "itself in anyOf": lambda: ring(lambda s: {"anyOf": [s, {"type": "null"}]}),
    "itself in oneOf": lambda: ring(lambda s: {"oneOf": [s, {"type": "null"}]}),
    "not itself": lambda: {"not": {"$ref": "#"}},
    "itself as a condition": lambda: {"if": {"$ref": "#"}, "then": {"type": "null"}},
    "itself as a dependent schema": lambda: {"type": "object", "dependentSchemas": {"a": {"$ref": "#"}}},
    "itself by a dynamic reference in place": lambda: {"$dynamicAnchor": "node", "$dynamicRef": "#node"},
    "itself required": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "itself contained": lambda: {"type": "array", "contains": {"$ref": "#"}},
    "itself as the first item": lambda: {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    # -- many
    "100,000 arrays": lambda: {"const": 1, "enum": [[n] for n in range(100_000)]},
    "10,000 digits": lambda: {"maximum": 10**10_000},
    "10,000 digits in an enum": lambda: {"enum": [1, -(10**10_000)]},
    # -- patterns
    "an unclosed group": lambda: text("(" * 10_000),
    "lone surrogates required": lambda: {"type": "object", "required": ["\ud800"]},
    "a lone surrogate alone": lambda: {"const": "\ud800"},
}
"""Schemas that have to end in a typed error."""

EITHER: dict[str, Callable[[], Any]] = {
    # A mask is welcome where the bounds allow it.
    "50,000 patterns": lambda: {"type": "object", "patternProperties": {f"^p{n}$": {} for n in range(50_000)}},
    "1,000 patterns": lambda: {"type": "object", "patternProperties": {f"^p{n}$": {} for n in range(1_000)}},
    "300 overlapping patterns": lambda: {
        "type": "object",
        "patternProperties": {f"{chr(97 + n % 26)}.{{{n}}}": {"minimum": n} for n in range(300)},
    },
    "5,000 branches of oneOf": lambda: {
        "oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"], "type": "object"} for n in range(5_000)]
    },
    "2,000 branches without a name for them": lambda: {
        "oneOf": [{"properties": {f"k{n}": {"minimum": n}}, "type": "object"} for n in range(2_000)]
    },
    "10,000 branches of anyOf": lambda: {"anyOf": [{"required": [f"k{n}"], "type": "object"} for n in range(10_000)]},
    "5,000 dependent schemas": lambda: {
        "type": "object",
        "dependentSchemas": {f"p{n}": {"required": [f"q{n}"]} for n in range(5_000)},
    },
    "a tower of conditions": lambda: tower(
        40,
        lambda s, n: {"if": {"required": [f"a{n}"]}, "then": s, "else": {"allOf": [s], "required": [f"b{n}"]}},
        {"type": "object"},
    ),
    "40 conditions side by side": lambda: {
        "type": "object",
        "allOf": [
            {"if": {"required": [f"a{n}"]}, "then": {"required": [f"b{n}"]}, "else": {"required": [f"c{n}"]}}
            for n in range(40)
        ],
    },
    "30 times contains": lambda: {
        "type": "array",
        "allOf": [{"contains": {"type": "object", "required": [f"k{n}"]}} for n in range(30)],
    },
    "12 times contains of a number": lambda: {
        "type": "array",
        "allOf": [{"contains": {"type": "integer", "multipleOf": n + 2}} for n in range(12)],
    },
    "lengths in common": lambda: {
        "type": "string",
        "minLength": 1,
        "allOf": [{"pattern": f"^(.{{{n}}})*$"} for n in (2, 3, 5, 7, 11, 13, 17, 19)],
    },
    "multiples in common": lambda: {
        "type": "integer",
        "minimum": 1,
        "allOf": [{"multipleOf": n} for n in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)],
    },
    "all letters somewhere": lambda: text("".join(f"(?=.*{chr(97 + n)})" for n in range(26))),
    "no letter twice": lambda: text("^" + "".join(f"(?!.*{chr(97 + n)}.*{chr(97 + n)})" for n in range(26)) + ".*$"),
    "nested repeats up to 10**9": lambda: text("^(((a{1,1000}){1,1000}){1,1000})$"),
    "nested repeats of exactly 10**9": lambda: text("^(((ab?){1000}){1000}){1000}$"),
    "a billion times": lambda: text("^a{1000000000}$"),
    "up to a billion times": lambda: text("^(a|b){0,1000000000}$"),
    "thirty nested repeats": lambda: text("^" + "(" * 30 + "a?" + "){2,9}" * 30 + "$"),
    "a? many times": lambda: text("^(a?){50000}$"),
    "a? then a": lambda: text("^(a?){1000}a{1000}$"),
    "any pair at a distance": lambda: text("(" + "|".join(f"a.{{{n}}}b.{{{n}}}c" for n in range(60)) + ")"),
    "5,000 groups": lambda: text("(" * 5_000 + "a" + ")" * 5_000),
    "100,000 groups": lambda: text("(" * 100_000 + "a" + ")" * 100_000),
    "a megabyte of pattern": lambda: text("^" + "ab?" * 350_000 + "$"),
    "a million alternatives of one": lambda: text("^(" + "a|" * 500_000 + "b)$"),
    "not a catastrophic pattern": lambda: {"type": "string", "not": {"pattern": "^((a|b)*a(a|b){14})*$"}},
    "patterns against each other": lambda: {
        "type": "string",
        "allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in range(5, 18)],
    },
    "patterns that leave no text": lambda: {
        "type": "string",
        "allOf": [{"pattern": "^(a|b)*a(a|b){16}$"}, {"pattern": "^(a|b)*b(a|b){16}$"}],
    },
    "patterns that leave one text": lambda: {
        "type": "string",
        "maxLength": 38,
        "allOf": [{"pattern": f"^(a|b)*{'aab'[n * n % 3]}(a|b){{{n}}}$"} for n in range(37)],
    },
    "a billion letters": lambda: text("^[a-z]*$") | {"minLength": 10**9},
    "a billion letters in pairs": lambda: text("^(a|bc)*$") | {"minLength": 10**9 + 1, "maxLength": 10**9 + 1},
    "a billion letters in threes and fives": lambda: {
        "type": "string",
        "minLength": 10**9,
        "maxLength": 10**9,
        "allOf": [{"pattern": "^(...)*$"}, {"pattern": "^(.{5})*$"}],
    },
    "20,000 letters": lambda: text("^[a-z]{20000}$") | {"minLength": 20_000},
    "names against longer patterns": lambda: {
        "type": "object",
        "propertyNames": {"pattern": far(16)},
        "patternProperties": {f"b(a|b){{{n}}}$": {"minimum": n} for n in range(14, 19)},
        "minProperties": 3,
    },
    "names against patterns": lambda: {
        "type": "object",
        "propertyNames": {"pattern": far(12)},
        "patternProperties": by_distance(0, 5),
        "minProperties": 3,
    },
    "names against more patterns": lambda: {
        "type": "object",
        "propertyNames": {"pattern": far(12)},
        "patternProperties": by_distance(0, 8),
        "minProperties": 3,
    },
    "names of a length against patterns": lambda: {
        "type": "object",
        "propertyNames": {"pattern": far(12), "maxLength": 24},
        "patternProperties": by_distance(0, 5),
        "minProperties": 3,
    },
    "properties beside patterns": lambda: {
        "type": "object",
        "properties": {"a" * n + "b" * (12 - n): {"maximum": n} for n in range(12)},
        "patternProperties": by_distance(7, 12),
        "additionalProperties": False,
        "minProperties": 15,
    },
    "other properties than patterns": lambda: {
        "type": "object",
        "patternProperties": by_distance(7, 12),
        "additionalProperties": {"type": "null"},
        "minProperties": 3,
    },
    "no other properties than patterns": lambda: {
        "type": "object",
        "propertyNames": {"pattern": far(16)},
        "allOf": [{"patternProperties": {pattern: schema}} for pattern, schema in by_distance(0, 8).items()],
        "unevaluatedProperties": False,
        "minProperties": 3,
    },
    "patterns that need a property": lambda: {
        "type": "object",
        "propertyNames": {"pattern": far(20)},
        "dependentSchemas": {
            "a" * (21 + n): {"patternProperties": {pattern: schema}, "minProperties": 3}
            for n, (pattern, schema) in enumerate(by_distance(0, 8).items())
        },
    },
    "an item nested 500 deep that must differ": lambda: {
        "type": "array",
        "not": {"const": nested(90, 1, lambda v: [v, {"a": v}] if len(str(v)) < 20_000 else [v])},
    },
    "50,000 items in a const": lambda: {"const": list(range(50_000))},
    "50,000 items, each with a schema": lambda: {
        "type": "array",
        "prefixItems": [{"const": n} for n in range(50_000)],
        "minItems": 50_000,
    },
    "50,000 keys in a const": lambda: {"const": {f"k{n}": n for n in range(50_000)}},
    "50,000 keys but these": lambda: {"type": "object", "not": {"const": {f"k{n}": n for n in range(50_000)}}},
    "50,000 items but these": lambda: {"type": "array", "not": {"const": list(range(50_000))}},
    "10,000 references one after the other through items": lambda: tower(
        10_000, lambda s, n: {"type": "array", "items": s, "minItems": 1}, {"type": "null"}
    ),
    "a step beside a bound far away": lambda: {"type": "number", "multipleOf": 0.0123456789, "minimum": 1e15},
    "a step of 300 digits": lambda: {"type": "integer", "multipleOf": 10**300 + 7},
    "not a large step": lambda: {"type": "integer", "not": {"multipleOf": 10**9 + 7}},
    "different steps": lambda: {"type": "number", "allOf": [{"multipleOf": 0.001 * n} for n in range(1, 40)]},
    "distinct items of 50,000": lambda: {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": list(range(50_000))},
        "minItems": 3,
    },
    "more distinct items than there are": lambda: {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": list(range(5_000))},
        "minItems": 5_001,
    },
    "what 50 branches leave": lambda: {
        "type": "object",
        "anyOf": [{"properties": {f"p{n}": {}}, "required": [f"p{n}"]} for n in range(50)],
        "unevaluatedProperties": False,
    },
    "itself where nothing was evaluated": lambda: {"type": "object", "unevaluatedProperties": {"$ref": "#"}},
}
"""Schemas that may end either way."""

CASES: dict[str, Callable[[], Any]] = USABLE | REFUSED | EITHER


def steps(schema: Any) -> str:
    """Compile, then 30 random steps under the mask; what became of it."""
    try:
        matcher = CompiledGrammar(any_json(schema), VOCABULARY).matcher()
        mask, rng = allocate_bitmask(1, VOCABULARY.size), random.Random(0)
        for _ in range(30):
            matcher.fill_bitmask(mask)
            allowed = [int(token) for token in ids_from_bitmask(mask[0]) if token not in VOCABULARY.eos_token_ids]
            if not allowed:
                return "mask" if matcher.is_accepting else "stuck"
            assert matcher.accept(rng.choice(allowed))
    except ConstraintError as error:
        str(error), repr(error)
        return f"refused: {type(error).__name__}: {error.cause:.100}"
    return "mask"


def _rss() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def try_case(name: str) -> dict[str, Any]:
    """Run one case in a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        schema = CASES[name]()
        before = _rss()
        resource.setrlimit(resource.RLIMIT_AS, (size + (MAX_MEGABYTES << 20),) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (STOP_SECONDS, STOP_SECONDS + 1))
        start = time.process_time()
        try:
            outcome = steps(schema)
        except BaseException as error:  # whatever it is, it is no typed error
            outcome = f"{type(error).__name__}: {str(error)[:200]}"
        seconds = time.process_time() - start
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        result = {"outcome": outcome, "seconds": round(seconds, 2), "megabytes": round(megabytes)}
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(data) if data else {"outcome": f"killed ({status})", "seconds": STOP_SECONDS, "megabytes": 0}


def main() -> None:
    """Names in, results out."""
    steps({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-f]+$"}, "b": {"type": "number"}}})
    for name in sys.argv[1:] or (line.rstrip("\n") for line in sys.stdin):
        print(json.dumps({"name": name} | try_case(name)), flush=True)


if __name__ == "__main__":
    main()
