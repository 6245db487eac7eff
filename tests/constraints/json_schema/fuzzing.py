"""A fuzzer for the JSON Schema engine: random schemas of all five drafts, and texts to hold them against two oracles.

`python -m tests.constraints.json_schema.fuzzing` (`make fuzz`) runs it for as long as one likes; `test_fuzzing.py` runs
a little of it. A case is a draft and a seed: a schema over all keywords, with small values so that keywords meet, and

- texts by construction: random bytes under the engine's own masks until it may end (`walk`);
- neighbours: a value, or a byte of a text, changed a little;
- random JSON.

A text must be accepted exactly when it parses without a key twice and is valid (invariant 3), every state on the way
has a token or may end (9), and now and then the whole mask is held against byte stepping (1). Valid means valid for
`tests.reference.json_schema`, which follows the specifications; `jsonschema` is asked too, and has to agree unless the
schema has something that it is known to get wrong (`KNOWN_WRONG`, one named test each).

What the engine leaves out on purpose is a refusal of a valid text that `is_narrowed` names: numbers with an exponent
(only some spellings can be compared with a bound), lone surrogates, white space around the text, 65 blanks in a gap.
It never excuses accepting an invalid one.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jsonschema
import numpy as np

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import ResourceLimitError, UnsatisfiableError, UnsupportedSchemaError
from tests.reference import json_schema as reference
from tests.reference.any_json import any_json
from tests.reference.byte_masks import allowed_by_bytes
from tests.reference.json_network import SlowNetwork
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary

DRAFTS = (4, 6, 7, 2019, 2020)
KEYS = ["a", "b", "ab", "c", ""]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, -1, 1.5, 0.5, 10, "", "a", "b", "ab", "abc", "é", "😀", "\n"]
CONSTANTS: list[Any] = [*SCALARS, [], {}, [1], [1, "a"], ["a", "a"], {"a": 1}, {"a": None, "b": [0]}, [[]], [True]]
PATTERNS = ["a", "^a", "b$", "^ab?$", "^$", "[^a]", "^(a|b)*$", "^.{2}$", "a|^b$", r"\w", r"^\D+$", "^[^b]*$", "(?!a)b"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
BYTES = byte_vocabulary()
MAX_ITEMS = 2_000
"""Of the slow network, beyond which a text is not compared byte by byte."""


# -- schemas


@dataclass
class Source:
    """Random schemas of one draft."""

    rng: random.Random
    draft: int
    without: frozenset[str] = frozenset()
    has_other: bool = False

    def root(self) -> Any:
        """A whole schema, with definitions to refer to."""
        rng, draft = self.rng, self.draft
        self.has_other = rng.random() < 0.3  # a definition with an identifier of its own
        schema = self.schema(2)
        if isinstance(schema, bool):
            if draft > 4:
                return schema
            schema = {}
        if rng.random() < 0.15:
            # In place the root would meet itself; one level down it may be named.
            schema |= rng.choice([{"properties": {"a": {"$ref": "#"}}}, {"items": {"$ref": "#"}}])
        definitions = {"x": {"type": ["object", "array", "null"], "items": {"$ref": f"#/{self.defs}/x"}, "maxItems": 2}}
        definitions["y"] = self.schema(1)
        if draft >= 2019:
            definitions["y"] = {"$anchor": "y", "anyOf": [definitions["y"]]}
        if self.has_other:
            name = "id" if draft == 4 else "$id"
            if "$ref" in schema:  # beside which an identifier counts for nothing up to draft 7
                schema = {"allOf": [schema]}
            schema[name] = "http://fuzz.test/root"
            definitions["z"] = {name: "http://fuzz.test/z", "allOf": [self.schema(1)]}
            if draft >= 2019 and rng.random() < 0.5:
                definitions["z"] |= self.dynamic()
                schema |= {"$recursiveAnchor": True} if draft == 2019 else {"$dynamicAnchor": "node"}
        schema[self.defs] = definitions
        return {"$schema": reference.DRAFTS[draft], **schema}

    @property
    def defs(self) -> str:
        return "$defs" if self.draft >= 2019 else "definitions"

    def dynamic(self) -> dict[str, Any]:
        if self.draft == 2019:
            return {"$recursiveAnchor": self.rng.random() < 0.5, "items": {"$recursiveRef": "#"}}
        return {"$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}}

    def reference(self) -> dict[str, Any]:
        whole = "root" if self.has_other else ""  # a fragment alone would name a place of the other resource there
        names = [f"{whole}#/{self.defs}/x", f"{whole}#/{self.defs}/x", f"{whole}#/{self.defs}/y"]
        if self.has_other:
            names += ["http://fuzz.test/z", "z"]
        if self.draft >= 2019:
            names.append(f"{whole}#y")
        return {"$ref": self.rng.choice(names)}

    def schema(self, depth: int) -> Any:
        rng = self.rng
        if rng.random() < 0.08 and self.draft > 4:
            return rng.random() < 0.7
        schema: dict[str, Any] = {}
        if rng.random() < 0.4:
            schema["type"] = rng.choice(TYPES) if rng.random() < 0.6 else rng.sample(TYPES, rng.randint(2, 4))
        for _ in range(rng.randint(0, 3)):
            schema |= rng.choice(self.plain())()
        for _ in range(rng.randint(0, 3) if depth else 0):
            schema |= rng.choice(self.nested(depth))()
        if rng.random() < 0.05:
            schema |= rng.choice(
                [{"title": "x"}, {"x-unknown": {"$ref": "#/nowhere"}}, {"format": "unheard-of"}, {"default": 1}]
            )
        items = [(name, value) for name, value in schema.items() if name not in self.without]
        rng.shuffle(items)
        return dict(items)

    def plain(self) -> list[Callable[[], dict[str, Any]]]:
        rng, draft = self.rng, self.draft

        def bound(low: bool) -> dict[str, Any]:
            number = rng.choice([0, 1, 1.5, 2, 3, -1, 0.25, 10])
            name = "inimum" if low else "aximum"
            plain = {("m" + name): number}
            if draft == 4:
                return plain | ({f"exclusiveM{name}": rng.random() < 0.6} if rng.random() < 0.5 else {})
            return {f"exclusiveM{name}": number} if rng.random() < 0.5 else plain

        def names() -> list[str]:
            return rng.sample(KEYS, rng.randint(1, 2))

        made: list[Callable[[], dict[str, Any]]] = [
            lambda: {"enum": rng.sample(CONSTANTS, rng.randint(1, 5))},
            lambda: bound(True),
            lambda: bound(False),
            lambda: {"multipleOf": rng.choice([1, 2, 3, 0.5, 1.5, 0.1])},
            lambda: {"minLength": rng.randint(0, 2)},
            lambda: {"maxLength": rng.randint(0, 2)},
            lambda: {"pattern": rng.choice(PATTERNS)},
            lambda: {"required": names()},
            lambda: {"minProperties": rng.randint(0, 2)},
            lambda: {"maxProperties": rng.randint(0, 3)},
            lambda: {"minItems": rng.randint(0, 2)},
            lambda: {"maxItems": rng.randint(0, 3)},
            lambda: {"uniqueItems": rng.random() < 0.8},
        ]
        if draft >= 6:
            made.append(lambda: {"const": rng.choice(CONSTANTS)})
        if draft >= 2019:
            made.append(lambda: {"dependentRequired": {rng.choice(KEYS): names()}})
        return made

    def nested(self, depth: int) -> list[Callable[[], dict[str, Any]]]:
        rng, draft = self.rng, self.draft

        def one() -> Any:
            return self.schema(depth - 1)

        def some(least: int = 1, most: int = 3) -> list[Any]:
            return [one() for _ in range(rng.randint(least, most))]

        def additional() -> Any:
            return rng.random() < 0.3 if rng.random() < 0.5 else one()

        def properties() -> dict[str, Any]:
            return {"properties": {key: one() for key in rng.sample(KEYS, rng.randint(1, 3))}}

        made: list[Callable[[], dict[str, Any]]] = [
            properties,
            lambda: properties() | {"additionalProperties": additional()},
            lambda: {"patternProperties": {pattern: one() for pattern in rng.sample(PATTERNS, rng.randint(1, 2))}},
            lambda: {"additionalProperties": additional()},
            lambda: {"items": one()},
            lambda: {"allOf": some()},
            lambda: {"anyOf": some()},
            lambda: {"oneOf": some()},
            lambda: {"not": one()},
            self.reference,
        ]
        if draft <= 2019:
            made.append(
                lambda: {"items": some(1, 2)} | ({"additionalItems": additional()} if rng.random() < 0.6 else {})
            )
            made.append(lambda: {"additionalItems": additional()})
        else:
            made.append(lambda: {"prefixItems": some(1, 2)} | ({"items": additional()} if rng.random() < 0.5 else {}))
        if draft <= 7:
            made.append(
                lambda: {"dependencies": {rng.choice(KEYS): one() if rng.random() < 0.5 else rng.sample(KEYS, 1)}}
            )
        if draft >= 6:
            made += [lambda: {"propertyNames": one()}, lambda: {"contains": one()}]
        if draft >= 7:
            made.append(
                lambda: (
                    {"if": one()}
                    | ({"then": one()} if rng.random() < 0.7 else {})
                    | ({"else": one()} if rng.random() < 0.7 else {})
                )
            )
        if draft >= 2019:
            made += [
                lambda: {"contains": one(), "minContains": rng.randint(0, 2)},
                lambda: {"contains": one(), "maxContains": rng.randint(0, 2)},
                lambda: {"dependentSchemas": {rng.choice(KEYS): one()}},
                lambda: {"unevaluatedProperties": additional()},
                lambda: {"unevaluatedItems": additional()},
            ]
        return made


# -- values and texts


def random_value(rng: random.Random, depth: int) -> Any:
    """A small JSON value."""
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return copy.deepcopy(rng.choice(CONSTANTS))
    if kind < 0.7:
        return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {key: random_value(rng, depth - 1) for key in rng.sample(KEYS, rng.randint(0, 4))}


def neighbour(value: Any, rng: random.Random) -> Any:
    """The value with one thing changed."""
    value = copy.deepcopy(value)
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.25:
            del value[index]
        elif kind < 0.4:
            value.append(copy.deepcopy(value[index]))
        elif kind < 0.5:
            value.insert(index, random_value(rng, 1))
        else:
            value[index] = neighbour(value[index], rng)
        return value
    if isinstance(value, dict) and rng.random() < 0.8:
        key = rng.choice([*value, *KEYS]) if rng.random() < 0.5 or not value else rng.choice([*value])
        if key not in value:
            value[key] = random_value(rng, 1)
        elif rng.random() < 0.3:
            del value[key]
        elif rng.random() < 0.2:
            value[rng.choice(KEYS)] = value.pop(key)
        else:
            value[key] = neighbour(value[key], rng)
        return value
    if isinstance(value, str) and value and rng.random() < 0.6:
        return rng.choice([value[:-1], value + rng.choice("ab"), value[1:]])
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool) and rng.random() < 0.6:
        number = Decimal(value)
        if abs(number) < 1000:
            return number + rng.choice([Decimal(1), Decimal(-1), Decimal("0.5")])
    return random_value(rng, 1)


def spell(value: Any, rng: random.Random) -> str:
    """JSON of a value; any order of keys, escapes or not."""
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        gap = rng.choice(["", " "])
        return "{" + ",".join(f"{gap}{spell(key, rng)}:{gap}{spell(item, rng)}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + rng.choice([",", ", "]).join(spell(item, rng) for item in value) + "]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        return text.replace("a", r"\u0061", 1) if rng.random() < 0.1 else text
    if isinstance(value, Decimal):
        return format(value, "f")
    text = json.dumps(value)
    return text + ".0" if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.1 else text


_EXPONENT = re.compile(r"\d[eE][+-]?\d")


def is_narrowed(text: str) -> bool:
    """Whether the engine may leave a valid text out: see the head of the module."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    if text != text.strip() or _EXPONENT.search(outside) or re.search(r"\s{65}", outside):
        return True
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


# -- the engine


REFUSALS = (UnsupportedSchemaError, ResourceLimitError)


class Engine:
    """One schema under the engine, over single bytes: public interface only."""

    def __init__(self, schema: Any, order: str = "any") -> None:
        self.rule = any_json(schema, order=order)  # type: ignore[arg-type]
        self.grammar: CompiledGrammar | None
        try:
            self.grammar = CompiledGrammar(self.rule, BYTES)
        except UnsatisfiableError:
            self.grammar = None

    def accepts(self, text: bytes) -> bool:
        """Whether a whole text is accepted."""
        if self.grammar is None:
            return False
        matcher = self.grammar.matcher()
        return all(matcher.accept(byte) for byte in text) and matcher.is_accepting

    def walk(self, rng: random.Random, visit: Callable[[Any, bytes], None], max_bytes: int = 120) -> bytes | None:
        """A text by random bytes, closing where it can; None if it grew too long."""
        assert self.grammar is not None
        matcher = self.grammar.matcher()
        mask = allocate_bitmask(1, BYTES.size)
        text = b""
        while len(text) < max_bytes:
            matcher.fill_bitmask(mask)
            allowed = ids_from_bitmask(mask[0])
            options = allowed[allowed < 256].tolist()
            if len(allowed) == 0 and getattr(
                matcher, "has_guard", False
            ):  # the decoding loop goes back to its checkpoint here
                return None
            assert len(allowed) > 0, f"stuck after {text!r}"
            assert matcher.is_accepting == (len(options) < len(allowed)), f"EOS after {text!r}"
            visit(matcher, text)
            if matcher.is_accepting and (not options or rng.random() < 0.5):
                return text
            byte = self._choose(options, rng)
            assert matcher.accept(byte), f"{byte} is in the mask after {text!r} and refused"
            text += bytes((byte,))
        return None

    @staticmethod
    def _choose(options: list[int], rng: random.Random) -> int:
        for likely, chance in (
            (b"\\", 0.05),
            (b'"}]', 0.5),
            (b'{[,:abcn019.tfe"}]', 0.9),
            (b"\\u-E2345678rulsx\xc3\xa9\xf0", 0.5),
        ):
            found = [byte for byte in likely if byte in options]
            if found and rng.random() < chance:
                return rng.choice(found)
        return rng.choice(options)


# -- oracles


def _exact_multiple(validator: Any, step: Any, value: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(value, "number") and Fraction(value) % Fraction(step):
        yield jsonschema.ValidationError("no multiple")


def _number(checker: Any, value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _integer(checker: Any, value: Any) -> bool:
    return _number(checker, value) and value == int(value)


_CLASSES = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
# Floats would bring rounding in; with decimals two definitions have to be told what a number is.
_EXACT = {
    draft: jsonschema.validators.extend(
        cls,
        {"multipleOf": _exact_multiple},
        type_checker=cls.TYPE_CHECKER.redefine("number", _number).redefine(
            "integer",
            _integer if draft > 4 else lambda checker, value: _number(checker, value) and isinstance(value, int),
        ),
    )
    for draft, cls in _CLASSES.items()
}


KNOWN_WRONG = ("uniqueItems", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
"""Keywords that `jsonschema` reads otherwise than the specification in some cases (see `test_fuzzing.py`)."""


class Oracle:
    """Valid by the specification, and by `jsonschema` where it can be trusted."""

    def __init__(self, schema: Any, draft: int) -> None:
        text = json.dumps(schema)
        self.reference = reference.Validator(reference.load(text), draft)
        self.compares = "uniqueItems" in text
        self.second: Any = None
        if not any(f'"{name}"' in text for name in KNOWN_WRONG):
            plain = _python_patterns(reference.load(text))
            if isinstance(plain, dict):
                plain.pop("$schema", None)  # or the stock class would take over at a reference to the root
            self.second = _EXACT[draft](plain)

    def is_valid(self, text: bytes) -> bool | None:
        """Whether a text parses and is valid; None where the schema says nothing (it refers to itself in place).

        None, too, where items are compared and a number is too small for a double: readers take it for zero.
        """
        try:
            value = reference.load(text.decode())
        except (ValueError, RecursionError):
            return False
        if self.compares and _is_partly_zero(value):
            return None
        try:
            verdict = self.reference.is_valid(value)
        except RecursionError:
            return None
        try:
            differs = self.second is not None and self.second.is_valid(value) != verdict
        except (TypeError, RecursionError):  # additionalItems beside a boolean items, up to 2019-09: no opinion
            differs = False
        if differs:
            raise OraclesDifferError(text.decode(), verdict)
        return verdict


def _is_partly_zero(value: Any) -> bool:
    """Whether readers with doubles find a zero in a value where something else is written."""
    if isinstance(value, dict | list):
        return any(map(_is_partly_zero, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Decimal) and value != 0 and float(value) == 0


class OraclesDifferError(Exception):
    """`jsonschema` and the reference disagree: (text, what the reference says)."""


def _python_patterns(schema: Any) -> Any:
    """A copy whose patterns mean in Python's `re` what they mean in ECMA-262."""
    if not isinstance(schema, dict):
        return schema

    def python(pattern: str) -> str:
        return "(?a:" + re.sub(r"(?<!\\)\$", r"\\Z", pattern) + ")"

    made = dict(schema)
    for path, child in reference.below(schema):
        if len(path) == 1:
            made[path[0]] = _python_patterns(child)
        else:
            if made[path[0]] is schema[path[0]]:
                made[path[0]] = copy.copy(schema[path[0]])
            made[path[0]][path[1]] = _python_patterns(child)
    if isinstance(made.get("pattern"), str):
        made["pattern"] = python(made["pattern"])
    if "patternProperties" in made:
        made["patternProperties"] = {python(key): child for key, child in made["patternProperties"].items()}
    return made


# -- cases


@dataclass
class FailureError(Exception):
    """A schema and a text on which the engine and the specification differ, or a mask that is wrong."""

    schema: Any
    text: bytes
    cause: str
    expected: bool | None = None
    order: str = "any"

    def __str__(self) -> str:
        return f"{self.cause}: {json.dumps(self.schema)} {self.text!r} ({self.order})"


@dataclass
class Tally:
    """What a run saw."""

    num_schemas: int = 0
    num_valid: int = 0
    num_invalid: int = 0
    num_walks: int = 0
    num_masks: int = 0
    num_narrowed: int = 0
    num_undefined: int = 0
    num_impossible: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = f"{self.num_schemas} schemas ({self.num_impossible} that no value fits, "
        counts += f"{sum(self.refused.values())} refused)"
        counts += f", {self.num_valid} valid and {self.num_invalid} invalid texts, {self.num_walks} walks"
        counts += f", {self.num_masks} masks, {self.num_narrowed} narrowed, {self.num_undefined} undefined"
        return counts + "".join(f"\n  {count:6} {cause}" for cause, count in self.refused.most_common(12))


def run_case(
    draft: int,
    seed: int,
    tally: Tally,
    *,
    without: frozenset[str] = frozenset(),
    num_values: int = 25,
    num_walks: int = 4,
) -> None:
    """One schema, in which no keyword of `without` occurs, and its texts.

    Raises:
        FailureError: the engine is wrong, or the oracles are.
    """
    rng = random.Random(f"{draft}/{seed}")
    schema = Source(rng, draft, without).root()
    check_schema(schema, draft, rng, tally, num_values=num_values, num_walks=num_walks)


def check_schema(schema: Any, draft: int, rng: random.Random, tally: Tally, *, num_values: int, num_walks: int) -> None:
    """Hold one schema against the oracles; see `run_case`."""
    tally.num_schemas += 1
    oracle = Oracle(schema, draft)
    engines: dict[str, Engine] = {}
    try:
        engines["any"] = Engine(schema)
        engines["declared"] = Engine(schema, "declared")
    except REFUSALS as refusal:
        tally.refused[_cause(refusal)] += 1
        return
    except Exception as error:
        raise FailureError(schema, b"", f"{type(error).__name__}: {error}") from error
    tally.num_impossible += engines["any"].grammar is None
    if (engines["declared"].grammar is None) != (engines["any"].grammar is None):
        raise FailureError(schema, b"", "only one order of properties is impossible")

    def judge(text: bytes) -> None:
        try:
            expected = oracle.is_valid(text)
        except OraclesDifferError as error:
            raise FailureError(schema, text, "the oracles differ", expected=bool(error.args[1])) from error
        if expected is None:
            tally.num_undefined += 1
            return
        found = engines["any"].accepts(text)
        if found != expected:
            if expected and is_narrowed(text.decode()):
                tally.num_narrowed += 1
                return
            raise FailureError(schema, text, "refused" if expected else "accepted", expected=expected)
        if rng.random() < 0.3 and engines["declared"].accepts(text) > expected:
            raise FailureError(schema, text, "accepted", expected=False, order="declared")
        tally.num_valid += expected
        tally.num_invalid += not expected

    def visit(matcher: Any, text: bytes) -> None:
        if rng.random() < 0.03:
            tally.num_masks += 1
            compare_masks(engine, text)

    texts: list[bytes] = []
    try:
        for order, engine in engines.items():
            for _ in range(num_walks if engine.grammar is not None else 0):
                try:
                    text = engine.walk(rng, visit)
                except REFUSALS:
                    raise
                except Exception as error:
                    cause = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                    raise FailureError(schema, b"", cause, order=order) from error
                if text is None:
                    continue
                tally.num_walks += 1
                texts.append(text)
                if oracle.is_valid(text) is False:
                    raise FailureError(schema, text, "accepted", expected=False, order=order)
        for text in texts:
            judge(text)
            value = reference.load(text.decode())
            for _ in range(3):
                value = neighbour(value, rng)
                judge(spell(value, rng).encode())
            for _ in range(2):
                judge(_damaged(text, rng))
        for _ in range(num_values):
            judge(spell(random_value(rng, 3), rng).encode())
    except REFUSALS as refusal:
        tally.refused["later: " + _cause(refusal)] += 1
    except OraclesDifferError as error:
        raise FailureError(schema, error.args[0].encode(), "the oracles differ", expected=error.args[1]) from error


def compare_masks(engine: Engine, text: bytes) -> None:
    """The whole mask after `text`, over a vocabulary of many-byte tokens, against single bytes.

    Raises:
        AssertionError: they differ.
    """
    assert engine.grammar is not None
    compare_bytes(engine, text)
    vocabulary = adversarial_vocabulary()
    matcher = CompiledGrammar(engine.rule, vocabulary).matcher()
    by_bytes = engine.grammar.matcher()
    first = {data: token for token, data in reversed(list(enumerate(vocabulary.token_bytes))) if data}
    for byte in text:
        assert by_bytes.accept(byte) and matcher.accept(first[bytes((byte,))])
    mask = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(mask)
    found = ids_from_bitmask(mask[0])
    expected = allowed_by_bytes(by_bytes, vocabulary)
    assert np.array_equal(found, expected), (
        f"the mask after {text!r} has {np.setdiff1d(found, expected).tolist()} too much and lacks "
        f"{np.setdiff1d(expected, found).tolist()}"
    )


def compare_bytes(engine: Engine, text: bytes) -> None:
    """The bytes that may follow `text`, against the plainest run of the network.

    Raises:
        AssertionError: they differ.
    """
    assert engine.grammar is not None
    matcher, network = engine.grammar.matcher(), SlowNetwork(engine.rule)
    for byte in text:
        assert network.feed(bytes((byte,))) and matcher.accept(byte)
        if len(network.items) > MAX_ITEMS:  # one for each stack, of which ambiguous brackets have 2**n
            return
    items, is_accepting = network.items, network.is_accepting
    for byte in range(256):
        network.items, network.is_accepting = items, is_accepting
        expected, found = network.feed(bytes((byte,))), matcher.accept(byte)
        matcher.rollback(int(found))
        # A guard refuses whole texts, of which the network knows nothing.
        assert found == expected or (expected and getattr(matcher, "has_guard", False)), (
            f"{bytes((byte,))!r} after {text!r}: the engine says {found}, the network {expected}"
        )


def _cause(error: Exception) -> str:
    return re.sub(r": [{\[\d].*? cannot", " cannot", str(error).splitlines()[0])[:110]


def _damaged(text: bytes, rng: random.Random) -> bytes:
    index = rng.randrange(len(text))
    kind = rng.random()
    new = bytes((rng.choice(b'"{}[],:ab01. -tn\\'),)) if kind < 0.7 else b""
    return text[:index] + new + text[index + (1 if kind < 0.35 or kind >= 0.7 else 0) :]


# -- making a failure small


def _smaller(value: Any, *, is_schema: bool) -> Iterator[Any]:
    """Values that are a little simpler, simplest first."""
    if is_schema and isinstance(value, dict):
        for _, child in reference.below(value):
            if isinstance(child, dict):
                yield child | {key: value[key] for key in ("$schema", "$defs", "definitions") if key in value}
    elif isinstance(value, (list, dict)):
        yield from value.values() if isinstance(value, dict) else value
    if isinstance(value, dict):
        for key in value:
            if key != "$schema":
                yield {name: item for name, item in value.items() if name != key}
        for key, item in value.items():
            if key != "$schema":
                yield from ({**value, key: small} for small in _smaller(item, is_schema=False))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield value[:index] + value[index + 1 :]
        for index, item in enumerate(value):
            yield from ([*value[:index], small, *value[index + 1 :]] for small in _smaller(item, is_schema=False))
    elif isinstance(value, str) and value:
        yield from (value[1:], value[:-1])
    elif isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and value not in (0, 1):
        yield from (0, 1)


def shrink(failure: FailureError, draft: int, seconds: float = 60.0) -> FailureError:
    """A smaller failure of the same kind, by leaving out what does not matter."""
    deadline = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for schema, text in _candidates(failure):
            if time.monotonic() > deadline:
                break
            again = _fails(schema, text, failure, draft)
            if again is not None:
                failure, improved = again, True
                break
    return failure


def _candidates(failure: FailureError) -> Iterator[tuple[Any, bytes]]:
    for schema in _smaller(failure.schema, is_schema=True):
        yield schema, failure.text
    try:
        value = reference.load(failure.text.decode())
    except ValueError:
        return
    for small in _smaller(value, is_schema=False):
        yield failure.schema, json.dumps(small, default=float).encode()


def _fails(schema: Any, text: bytes, failure: FailureError, draft: int) -> FailureError | None:
    try:
        _CLASSES[draft].check_schema(schema)
        reference.Validator(json.loads(json.dumps(schema)), draft).check_references()
    except Exception:
        return None
    if failure.expected is None:  # no text shows it: run the case of the schema again
        for seed in range(3):
            try:
                check_schema(schema, draft, random.Random(seed), Tally(), num_values=5, num_walks=15)
            except FailureError as again:
                same = again.cause.split()[0] == failure.cause.split()[0]
                return FailureError(schema, again.text, again.cause, None, failure.order) if same else None
            except Exception:
                return None
        return None
    try:
        oracle = Oracle(schema, draft)
        if failure.cause == "the oracles differ":
            oracle.is_valid(text)
            return None
        expected = oracle.is_valid(text)
        if expected != failure.expected or (expected and is_narrowed(text.decode())):
            return None
        if Engine(schema, failure.order).accepts(text) == expected:
            return None
        return FailureError(schema, text, failure.cause, expected, failure.order)
    except OraclesDifferError as error:
        if failure.cause == "the oracles differ":
            return FailureError(schema, text, failure.cause, bool(error.args[1]), failure.order)
        return None
    except Exception:
        return None


def as_test(failure: FailureError, name: str) -> str:
    """A failure as a line for `FOUND` in `test_found.py`, or as a call that shows it."""
    schema = json.dumps(failure.schema)
    if failure.expected is None:
        return f"# {failure.cause}\nEngine(json.loads({schema!r}), {failure.order!r})  # after {failure.text!r}"
    return f"    ({name!r}, {schema!r}, {failure.text!r}, {failure.expected}, {failure.order!r}),"


def main() -> int:
    """Run for some minutes; print what was seen, and every failure as a ready-made test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first case; drawn if absent")
    parser.add_argument("--draft", type=int, choices=DRAFTS, default=None)
    parser.add_argument("--without", default="", help="keywords to leave out, with commas in between")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    parser.add_argument("--shrink-seconds", type=float, default=60.0)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)
    deadline = time.monotonic() + 60 * options.minutes
    tally, failures = Tally(), 0
    seen: set[str] = set()
    while time.monotonic() < deadline and failures < options.failures:
        for draft in (options.draft,) if options.draft else DRAFTS:
            started = time.process_time()
            try:
                run_case(draft, seed, tally, without=frozenset(options.without.split(",")))
            except FailureError as failure:
                small = shrink(failure, draft, options.shrink_seconds)
                line = as_test(small, f"draft {draft}, seed {seed}")
                if line.partition(",")[2] not in seen:
                    failures += 1
                    print(f"\n{small.cause} (draft {draft}, seed {seed}):\n{line}", flush=True)
            if time.process_time() - started > 20:
                print(f"\nslow: {time.process_time() - started:.0f} s for draft {draft}, seed {seed}", flush=True)
        seed += 1
    print(f"\n{tally}\n{failures} failures, last seed {seed - 1}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
