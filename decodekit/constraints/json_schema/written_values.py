r"""The JSON Schema of what to write for a Python type: of what Pydantic reads, a part that a mask can tell.

Pydantic's own schemas are for people: that of `AwareDatetime` is the one of every datetime, that of ``dict[int, str]``
has any keys. A worked example:

    AwareDatetime            {"format": "date-time", "pattern": "([zZ]|[+-][0-9]{2}:[0-9]{2})$"}
    dict[int, str]           {"propertyNames": {"format": "json-string", "contentSchema": {"type": "integer"}}, …}
    Json[list[int]]          {"format": "json-string", "contentSchema": {"type": "array", …}}
    Literal[1, b"x"]         {"const": 1}, for no JSON is read as bytes there
    PastDate                 {"format": "date"}, and a mark: what is past a guard has to ask

So a schema here is either exact, or narrower than the type, or it has a mark: a validator that has to be asked (see the
module `validators`). Pydantic's own are asked by a guard, before a text is finished; those of users when it has ended.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, Final

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from decodekit.constraints.json_schema.validators import (
    ASCII,
    BASE64,
    Json,
    asked_about,
    base64,
    marked,
    module_of,
    name_of,
    with_patterns,
)

_OFFSET: Final = "([zZ]|[+-][0-9]{2}:[0-9]{2})$"
_NO_OFFSET: Final = "^([^T]*T)?[^zZ+-]*$"
_NUMBER: Final = r"[0-9]{1,15}(\.[0-9]{1,15})?"
_COMPLEX: Final = rf"^-?{_NUMBER}([+-]{_NUMBER}j)?$"
_FRACTION: Final = r"^-?[0-9]{1,15}(/[1-9][0-9]{0,14})?$"
# No blank at either end: what Rust and Python strip.
_BLANK: Final = r"\s\x1c-\x1f\x85"
_STRIPPED: Final = rf"^([^{_BLANK}]([^]*[^{_BLANK}])?)?$".replace("[^]", r"[\s\S]")
_LABEL: Final = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
_HOST: Final = f"({_LABEL}\\.)*[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*(:[1-9][0-9]{{0,3}})?"
_USER: Final = "([A-Za-z0-9._~-]+(:[A-Za-z0-9._~-]*)?@|:[A-Za-z0-9._~-]+@)?"
_PATH: Final = r"(/[A-Za-z0-9\-._~!$&'()*+,;=:@/]*)?(\?[A-Za-z0-9\-._~&=+]*)?"
_ODD_PATTERN: Final = re.compile(r"\[\^?\]?[^\]\\]*(\\.[^\]\\]*)*(\[|&&|--|~~)|\[\[:|\\[KGZRX]")
"""Parts of patterns that Rust reads otherwise than ECMA-262: sets inside of sets, and escapes of its own."""
_COMPOUND: Final = frozenset(
    {"any", "list", "dict", "set", "deque", "typed-dict", "generator", "json", "definition-ref", "is-instance"}
)
"""Schemas of values that have no hash, or may have none."""
_PLAIN: Final = frozenset({"str", "int", "float", "bool", "none", "literal", "enum"})


_ANCHOR: Final = re.compile(r"\\.|\(\?P<\w+>", re.DOTALL)
_PLAIN_ANCHORS: Final = {r"\A": "^", r"\Z": "$", r"\z": "$", "(?P": "("}


class WrittenValues(GenerateJsonSchema):
    """The schema of values to write, where Pydantic would read more, or says less than it asks for.

    Objects have the declared fields only, unless the type says ``extra="allow"``: Pydantic ignores other keys, but a
    model that is asked for a type has no reason to write what would be thrown away. Decimals are numbers.
    """

    _mapping: ClassVar[Any] = GenerateJsonSchema.ValidationsMapping
    _depth: int = 0
    _num_around: int = 0
    """Texts of JSON around the schema: in them keys and items are not told apart (see the module `embedded`)."""

    # -- objects

    def model_schema(self, schema: Any) -> Json:
        """A class, with what it does when its fields are read."""
        found = _closed(super().model_schema(schema))
        cls = schema["cls"]
        for name in ("model_post_init", "__init__"):
            method = getattr(cls, name)
            is_own = method is not getattr(BaseModel, name) and not module_of(method).startswith("pydantic")
            if is_own and (name != "__init__" or schema.get("custom_init")):
                found = marked(found, "end", f"{cls.__qualname__}.{name}")
        return found

    def dataclass_schema(self, schema: Any) -> Json:
        """A dataclass, with its ``__post_init__``."""
        found = _closed(super().dataclass_schema(schema))
        name = f"{schema['cls'].__qualname__}.__post_init__"
        return marked(found, "end", name) if schema.get("post_init") else found

    def dataclass_args_schema(self, schema: Any) -> Json:
        """The fields that may be given."""
        fields = [field for field in schema["fields"] if field.get("init") is not False]
        given: Any = {**schema, "fields": fields}
        return super().dataclass_args_schema(given)

    def typed_dict_schema(self, schema: Any) -> Json:
        """A TypedDict."""
        return _closed(super().typed_dict_schema(schema))

    def _named_required_fields_schema(self, named_required_fields: Any) -> Json:
        for name, _, field in named_required_fields:
            alias = field.get("validation_alias")
            paths = alias if isinstance(alias, list) else []
            is_key = any(isinstance(path, list) and len(path) == 1 and isinstance(path[0], str) for path in paths)
            if paths and self._config.validate_by_alias is not False and not is_key:
                raise PydanticInvalidForJsonSchema(
                    f"the field {name!r} is read from a path, {alias}, and not from a key"
                )
        return super()._named_required_fields_schema(named_required_fields)

    def dict_schema(self, schema: Any) -> Json:
        """A mapping, whose keys are strings that are read as keys of its type."""
        keys = schema.get("keys_schema", {"type": "any"})
        values = self.generate_inner(schema["values_schema"]).copy() if "values_schema" in schema else {}
        values.pop("title", None)
        found: Json = {"type": "object", "additionalProperties": values or True}
        read = self.generate_inner(keys).copy()
        names = self._names(read, keys)
        if names is None or (_unwrapped(keys)["type"] in ("json", "json-or-python") and not _has_hash(keys)):
            raise PydanticInvalidForJsonSchema(f"the keys of a JSON object are not read as {_kind(keys)}")
        rest = {key: value for key, value in names.items() if key not in ("type", "title")}
        if rest:
            found["propertyNames"] = rest
        self.update_with_validations(found, schema, self._mapping.object)
        if found.get("minProperties", 0) > 1 and (self._num_around or _unwrapped(keys)["type"] != "str"):
            found = marked(found, "guard", "keys that are equal")
        return found

    frozendict_schema = ordered_dict_schema = counter_schema = dict_schema

    def _names(self, found: Json, keys: Any) -> Json | None:
        """The strings that are read as values of a schema where they are keys; None if none are."""
        found = self.resolve_ref_schema(found) if "$ref" in found else found
        for name in ("anyOf", "oneOf"):
            if name in found:
                parts = [part for one in found[name] if (part := self._names(one, keys)) is not None]
                return {"anyOf": parts} if parts else None
        if "enum" in found or "const" in found:
            values = found.get("enum", [found.get("const")])
            texts = [one if isinstance(one, str) else json.dumps(one) for one in values]
            mapping: Any = core_schema.dict_schema(keys, core_schema.any_schema())
            texts = [one for one in texts if _is_read(mapping, {one: None})]
            return {"enum": texts} if texts else None
        kind = found.get("type", "string")
        if kind in ("integer", "number"):
            content = {name: value for name, value in found.items() if name not in ("title", "default")}
            return _json_string(content)
        if kind == "boolean":
            return {"enum": ["true", "false"]}
        return dict(found) if kind == "string" else None

    # -- arrays

    def set_schema(self, schema: Any) -> Json:
        """A set: its items need a hash, and those that are equal count once."""
        found = super().set_schema(schema)
        items = schema.get("items_schema", {"type": "any"})
        if not _has_hash(items):
            return marked(found, "guard", "items that have a hash")
        if found.get("minItems", 0) > 1 and (self._num_around or _unwrapped(items)["type"] not in _PLAIN):
            found["uniqueItems"] = not self._num_around
            return marked(found, "guard", "items that are equal")
        return found

    frozenset_schema = set_schema

    def tagged_union_schema(self, schema: Any) -> Json:
        """One of several, with the member by which they are told apart even where it has a default."""
        found = super().tagged_union_schema(schema)
        if not found["oneOf"]:
            raise PydanticInvalidForJsonSchema("no JSON is read as one of the choices")
        discriminator = schema["discriminator"]
        if callable(discriminator):
            return marked(found, "end", name_of(discriminator))
        name = found.get("discriminator", {}).get("propertyName")
        if name is None:
            return marked(found, "guard", "the discriminator")
        return {**found, "oneOf": [{**one, "required": [*one.get("required", ()), name]} for one in found["oneOf"]]}

    # -- numbers

    def float_schema(self, schema: Any) -> Json:
        """A number; a bound that it may not reach is the next double: more digits are read as the bound itself."""
        found = super().float_schema(schema)
        for strict, loose, towards in (
            ("exclusiveMinimum", "minimum", math.inf),
            ("exclusiveMaximum", "maximum", -math.inf),
        ):
            if found.get(strict):
                bound = math.nextafter(float(found.pop(strict)), towards)
                found[loose] = (max if towards > 0 else min)(bound, found.get(loose, bound))
        # Pydantic divides doubles: it refuses -9712313.2 as a multiple of 0.1.
        is_exact = found.get("multipleOf", 1) % 1 == 0
        return found if is_exact else marked(found, "guard", f"multiple_of {found['multipleOf']}")

    def decimal_schema(self, schema: Any) -> Json:
        """A number within the limits of a Decimal, which Pydantic would read from a string as well.

        Of ``max_digits=6, decimal_places=2`` there are at most four digits before the point; of ``max_digits=3`` alone
        one, two or three. Zero has a digit before the point, so it is none of ``max_digits=3, decimal_places=3``.
        """
        parts: list[Json] = [{name: _json_number(bound)} for name, bound in _bounds(schema)]
        if schema.get("multiple_of"):
            parts.append({"multipleOf": _json_number(schema["multiple_of"])})
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is not None and places is not None:
            places = min(places, digits)
            parts.append(_within(10 ** (digits - places)))
            if places == digits:
                parts.append({"not": {"const": 0}})
        elif digits is not None:
            parts.append({"anyOf": [{**_within(10**whole), **_places(digits - whole)} for whole in range(digits + 1)]})
        if places is not None:
            parts.append(_places(places))
        return {"type": "number", **(parts[0] if len(parts) == 1 else {"allOf": parts} if parts else {})}

    def fraction_schema(self, schema: Any) -> Json:
        """A number, or without bounds also a text such as ``1/3``."""
        bounds = dict(_bounds(schema))
        found: Json = {"type": "number"}
        if not bounds and not schema.get("multiple_of"):
            return {"anyOf": [found, {"type": "string", "format": "fraction", "pattern": _FRACTION}]}
        exact = {name: float(bound) for name, bound in bounds.items()}
        found |= exact
        is_exact = all(Fraction(repr(exact[name])) == bound for name, bound in bounds.items())
        return found if is_exact and not schema.get("multiple_of") else marked(found, "guard", "bounds of a fraction")

    def complex_schema(self, schema: Any) -> Json:
        """A complex number as Python writes it."""
        return {"type": "string", "pattern": _COMPLEX}

    # -- strings

    def str_schema(self, schema: Any) -> Json:
        """A text, as it is before blanks are stripped and letters made small."""
        found = super().str_schema(schema)
        if "pattern" in found:
            flags = getattr(schema["pattern"], "flags", 0)
            letters = "".join(letter for letter in "ims" if flags & getattr(re, letter.upper()))
            plain = _ANCHOR.sub(lambda part: _PLAIN_ANCHORS.get(part[0][:3], part[0]), found["pattern"])
            found["pattern"] = f"(?{letters}){plain}" if letters else plain
        pattern = found.get("pattern")
        more = []
        if schema.get("strip_whitespace", self._config.str_strip_whitespace) and (pattern or found.get("minLength")):
            more.append(_STRIPPED)
        if schema.get("ascii_only"):
            more.append(ASCII)
        if pattern and _ODD_PATTERN.search(pattern):
            raise PydanticInvalidForJsonSchema(f"the pattern {pattern!r:.80} has sets or escapes that only Rust reads")
        return with_patterns(found, more)

    def bytes_schema(self, schema: Any) -> Json:
        """Bytes as a text; as ASCII where they are counted."""
        found = super().bytes_schema(schema)
        how = self._config.val_json_bytes
        if how == "utf8":
            return with_patterns(found, [ASCII] if "maxLength" in found else [])
        if "minLength" in found or "maxLength" in found:
            least, most = found.pop("minLength", 0), found.pop("maxLength", None)
            found = marked(found, "guard", f"{least} to {'any number of' if most is None else most} bytes")
        return with_patterns(found, ["^([0-9a-fA-F]{2})*$" if how == "hex" else base64(BASE64[1])])

    def date_schema(self, schema: Any) -> Json:
        """A date."""
        found = with_patterns(super().date_schema(schema), [_dates(*bound) for bound in _bounds(schema)])
        return marked(found, "guard", f"in the {schema['now_op']}") if "now_op" in schema else found

    def time_schema(self, schema: Any) -> Json:
        """A time of day."""
        return self._in_zone(super().time_schema(schema), schema)

    def datetime_schema(self, schema: Any) -> Json:
        """A date and time."""
        return self._in_zone(super().datetime_schema(schema), schema)

    def timedelta_schema(self, schema: Any) -> Json:
        """A duration."""
        return self._in_zone(super().timedelta_schema(schema), schema)

    def _in_zone(self, found: Json, schema: Any) -> Json:
        zone = schema.get("tz_constraint")
        if zone is not None:
            found = with_patterns(found, [_NO_OFFSET if zone == "naive" else _OFFSET])
        if isinstance(zone, int):
            found = marked(found, "guard", f"an offset of {zone} seconds")
        if "now_op" in schema:
            found = marked(found, "guard", f"in the {schema['now_op']}")
        asked = [name for name in ("ge", "gt", "le", "lt", "multiple_of") if schema.get(name) is not None]
        return marked(found, "guard", ", ".join(f"{name} {schema[name]}" for name in asked)) if asked else found

    def url_schema(self, schema: Any) -> Json:
        """A URL: of the web, unless other schemes are asked for."""
        return self._of_schemes(super().url_schema(schema), schema, _HOST)

    def multi_host_url_schema(self, schema: Any) -> Json:
        """As `url_schema`, with several hosts."""
        return self._of_schemes(super().multi_host_url_schema(schema), schema, f"{_HOST}(,{_HOST})*")

    def _of_schemes(self, found: Json, schema: Any, host: str) -> Json:
        schemes = schema.get("allowed_schemes") or ["http", "https"]
        if {"http", "https"} <= set(schemes):
            return {**found, "format": "uri"}
        del found["format"]
        parts = [] if schemes == ["file"] else [f"({'|'.join(map(re.escape, schemes))})://{_USER}{host}{_PATH}"]
        parts += ["file:///[A-Za-z0-9._~/-]*"] if "file" in schemes else []
        return with_patterns(found, [f"^({'|'.join(parts)})$"])

    def json_schema(self, schema: Any) -> Json:
        """A text of JSON, inside of a string."""
        self._num_around += 1
        try:
            return _json_string(self.generate_inner(schema.get("schema") or core_schema.any_schema()))
        finally:
            self._num_around -= 1

    # -- values that are listed

    def literal_schema(self, schema: Any) -> Json:
        """Those of the values that are read from JSON."""
        return self._listed(schema, "expected", super().literal_schema)

    def enum_schema(self, schema: Any) -> Json:
        """Those of the members that are read from JSON."""
        return self._listed(schema, "members", super().enum_schema)

    def _listed(self, schema: Any, name: str, make: Callable[[Any], Json]) -> Json:
        bare = {key: value for key, value in schema.items() if key not in ("ref", "metadata", "serialization")}

        def is_kept(value: Any) -> bool:
            made = make({**bare, name: [value]})
            return _is_read(bare, made["const"] if "const" in made else made["enum"][0])

        kept = [value for value in schema[name] if is_kept(value)]
        if not kept:
            raise PydanticInvalidForJsonSchema(f"no JSON is read as one of {schema[name]!r:.100}")
        return make({**schema, name: kept})

    def is_subclass_schema(self, schema: Any) -> Json:
        """A class, which no JSON is read as."""
        return self.handle_invalid_for_json_schema(schema, f"a class ({schema['cls']})")

    # -- validators

    def generate_inner(self, schema: Any) -> Json:
        """The schema of a part of a type, with the validator around it."""
        self._depth += 1
        found = super().generate_inner(schema)
        self._depth -= 1
        if not str(schema["type"]).startswith("function-"):
            return found
        # What has a name of its own, or is the whole type, is marked where it is defined: a reference stays bare.
        is_own = "$ref" in found and ("ref" in schema or not self._depth)
        defined = self.get_schema_from_definitions(found["$ref"]) if is_own else None
        if defined is None:
            return asked_about(found, schema)
        defined.update(asked_about(defined, schema))
        return found

    def chain_schema(self, schema: Any) -> Json:
        """The first step; what the others ask of its value cannot be told from its text."""
        found = super().chain_schema(schema)
        return found if len(schema["steps"]) == 1 else marked(found, "guard", "further steps")


def _json_string(content: Json) -> Json:
    """The strings that are texts of JSON."""
    more = {"contentMediaType": "application/json", "contentSchema": content}
    return {"type": "string", "format": "json-string", **more}


def _closed(schema: Json) -> Json:
    is_object = schema.get("type") == "object"
    return {**schema, "additionalProperties": False} if is_object and "additionalProperties" not in schema else schema


def _is_read(schema: Any, value: Any) -> bool:
    """Whether a JSON value is read; True where the schema refers to others."""
    try:
        SchemaValidator(schema).validate_json(json.dumps(value))
    except (SchemaError, ValueError) as error:
        return isinstance(error, SchemaError) and not isinstance(error, ValidationError)
    return True


def _unwrapped(schema: Any) -> Any:
    """The schema inside of defaults and of None."""
    while schema["type"] in ("default", "nullable", "function-after"):
        schema = schema["schema"]
    return schema


def _kind(schema: Any) -> str:
    return {"tuple": "tuples", "none": "None"}.get(_unwrapped(schema)["type"], "keys of this type")


def _has_hash(schema: Any) -> bool:
    """Whether every value of a schema can be an item of a set."""
    kind = schema["type"]
    if kind == "function-after" and name_of(schema["function"]["function"]) == "NameEmail._validate":
        return False
    if kind in ("model", "dataclass"):
        return schema["cls"].__hash__ is not None
    if kind in ("tuple", "frozenset"):
        inner = schema.get("items_schema", {"type": "any"})
        return all(map(_has_hash, inner if isinstance(inner, list) else [inner]))
    if kind in ("union", "tagged-union"):
        choices = schema["choices"]
        listed = choices.values() if isinstance(choices, dict) else choices
        return all(_has_hash(one[0] if isinstance(one, tuple) else one) for one in listed)
    inside = schema.get("schema") or schema.get("json_schema") or schema.get("lax_schema")
    return _has_hash(inside) if isinstance(inside, dict) else kind not in _COMPOUND


_NAMES: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _bounds(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(keyword, schema[name]) for name, keyword in _NAMES.items() if schema.get(name) is not None]


def _json_number(value: Any) -> int | float:
    """A bound as JSON has it: as digits that read as the same value."""
    number = Decimal(str(value))
    return int(number) if number == number.to_integral_value() else float(number)


def _within(limit: int) -> Json:
    return {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}


def _places(number: int) -> Json:
    return {"multipleOf": _json_number(Decimal(1).scaleb(-number))}


def _dates(keyword: str, bound: Any) -> str:
    """The beginnings of ISO dates from one on, or up to one: digit by digit."""
    text, is_low = f"{bound:%Y-%m-%d}".rjust(10, "0"), "inimum" in keyword
    ways = [] if keyword.startswith("exclusive") else [text]
    for index, digit in enumerate(text):
        if digit != ("9" if is_low else "0") and digit != "-":
            beyond = f"[{int(digit) + 1}-9]" if is_low else f"[0-{int(digit) - 1}]"
            ways.append(text[:index] + beyond)
    return f"^({'|'.join(ways)})"
