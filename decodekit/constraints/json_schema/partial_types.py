"""Values of Python types that are not whole yet: what a type would read, as far as it is there.

    class Invoice(BaseModel):               {"number": "A-1", "due": "2026-0
        number: str                         PartialInvoice(number='A-1', due=None)
        due: date

Of a Pydantic model or a dataclass there is a class with the same fields, each of them None as long as it is not there.
Strings grow where the type is `str`; what the type reads as something else (a date, an Enum, a `Literal`) is there when
it is whole. Nothing of a class is called that needs all of it: neither its validators nor its methods.

The core schema that Pydantic makes of a type says how its values are read.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import SchemaError, SchemaValidator

from decodekit.constraints.json_schema.growing_json import ABSENT
from decodekit.constraints.json_schema.python_types import core_schema_of

_Core = Mapping[str, Any]
_NOT_FROM_TEXT: Final = frozenset(("int", "float", "bool", "none", "decimal", "fraction"))
_ITEMS: Final[dict[str, Callable[[Iterable[Any]], Any]]] = {
    "list": list, "set": set, "frozenset": frozenset, "tuple": tuple, "generator": list
}  # fmt: skip
_WRAPPERS: Final = frozenset(("function-after", "function-before", "function-wrap"))


def partial_of(python_type: object, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
    """A value so far as a type has it; `ABSENT` if nothing of it is there.

    Args:
        python_type: the type.
        value: what was read of its JSON.
        num_open: how many objects, arrays and strings it ends in that are open, as `Mark.value` says.
        known: what was made of complete values of this text before. They are shared, and must stay alive.
    """
    key = "shape", id(python_type)
    if key not in known:  # where it lives as long as what is remembered under its id
        try:
            known[key] = _shape_of(python_type)
        except TypeError:  # an unhashable annotation
            known[key] = _shape_of.__wrapped__(python_type)
    return _read(known[key], value, num_open, known)


@lru_cache(maxsize=256)
def _shape_of(python_type: object) -> _Shape:
    return _Shapes().of(core_schema_of(python_type), {})


class _Shape:
    """A reader of the JSON of a type.

    Attributes:
        grows: whether a value is there before it is whole, which is then that of JSON.
        is_from_text: whether it may be written as a string.
    """

    grows: bool = False
    is_from_text: bool = False

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        """As `partial_of`."""
        raise NotImplementedError


def _read(shape: _Shape, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
    if num_open or not isinstance(value, dict | list):
        return shape.read(value, num_open, known)
    key = id(shape), id(value)
    if key not in known:
        known[key] = shape.read(value, 0, known)
    return known[key]


@dataclass(eq=False)
class _Whole(_Shape):
    """A reader of values that are there as they are, or when they are whole: of a type, or one of a few values."""

    schema: _Core
    config: _Core
    definitions: Mapping[str, _Core]
    grows: bool = False
    is_from_text: bool = True
    is_choice: bool = False

    @cached_property
    def _validator(self) -> SchemaValidator:
        config: Any = self.config or None
        try:
            return SchemaValidator(self.schema, config)
        except SchemaError:  # it refers to others
            schema: Any = {"type": "definitions", "schema": self.schema, "definitions": [*self.definitions.values()]}
            return SchemaValidator(schema, config)

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        if self.grows:
            return value
        if num_open:
            return ABSENT
        key = None if isinstance(value, dict | list) else (id(self), type(value), value)
        if key is not None and key in known:
            return known[key]
        try:
            made = self._validator.validate_json(json.dumps(value))
        except Exception:  # a validator raises what it likes; the whole text says so again
            made = value
        if key is not None:
            known[key] = made
        return made

    def accepts(self, value: Any) -> bool:
        return self._validator.isinstance_python(value)


@dataclass(eq=False)
class _Items(_Shape):
    """An array: the first items, each with its own shape, then others; and what is made of it."""

    first: list[_Shape]
    others: _Shape | None
    make: Callable[[Iterable[Any]], Any]

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        if not isinstance(value, list):
            return value
        if num_open > 1 and self.make in (set, frozenset):  # which an item that grows would change
            value, num_open = value[:-1], 1
        made, last = [], len(value) - 1
        for number, item in enumerate(value):
            shape = self.first[number] if number < len(self.first) else self.others
            num_inside = max(0, num_open - 1) if number == last else 0
            made.append(item if shape is None else _read(shape, item, num_inside, known))
        made = [item for item in made if item is not ABSENT]
        try:
            return self.make(made)
        except TypeError:  # of a set: items that are not hashable
            return made


@dataclass(eq=False)
class _Values(_Shape):
    """An object with keys and values of some shape."""

    keys: _Shape
    values: _Shape

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        if not isinstance(value, dict):
            return value
        made, last = {}, len(value) - 1
        for number, (key, one) in enumerate(value.items()):
            inside = _read(self.values, one, max(0, num_open - 1) if number == last else 0, known)
            if inside is not ABSENT:
                made[_read(self.keys, key, 0, known)] = inside
        return made


@dataclass(eq=False)
class _Fields(_Shape):
    """An object with fields.

    Args:
        fields: by key of the JSON, the name and the shape.
        defaults: by name.
        required: keys.
        make: gives the value, from the fields that are there by name.
        has_others: whether other keys are kept.
    """

    fields: dict[str, tuple[str, _Shape]]
    defaults: dict[str, Callable[[], Any]]
    required: frozenset[str]
    make: Callable[[dict[str, Any]], Any]
    has_others: bool

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        if not isinstance(value, dict):
            return value
        made: dict[str, Any] = {}
        last = len(value) - 1
        for number, (key, one) in enumerate(value.items()):
            if key in self.fields:
                name, shape = self.fields[key]
                inside = _read(shape, one, max(0, num_open - 1) if number == last else 0, known)
                if inside is not ABSENT:
                    made[name] = inside
            elif self.has_others:
                made[key] = one
        if not num_open:
            made |= {name: make() for name, make in self.defaults.items() if name not in made}
        return self.make(made)

    def fits(self, value: dict[str, Any], num_open: int) -> bool:
        """Whether an object, as far as it is there, may be one of these."""
        closed = [*value][: len(value) - (num_open > 1)]
        for key in value:
            if key not in self.fields and not self.has_others:
                return False
        shapes = ((self.fields[key][1], value[key]) for key in closed if key in self.fields)
        return all(shape.accepts(one) for shape, one in shapes if isinstance(shape, _Whole) and shape.is_choice)


@dataclass(eq=False)
class _Union(_Shape):
    """One of several.

    Args:
        members: their shapes.
        scalar: reads what is not an object or array.
        tag: the key that says which one, if there is one; `tagged` has them by its values.
    """

    members: list[_Shape]
    scalar: _Whole
    tag: str | None = None
    tagged: Mapping[Any, _Shape] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_from_text = any(one.is_from_text for one in self.members)
        self.grows = all(one.grows for one in self.members if one.is_from_text)

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        if value is None:
            return None
        members = [one.shape if isinstance(one, _Later) else one for one in self.members]
        if isinstance(value, dict | list):
            found = self._member(members, value, num_open)
            return _without_open_text(value, num_open) if found is None else _read(found, value, num_open, known)
        if len(members) == 1:
            return _read(members[0], value, num_open, known)
        if not num_open:
            return self.scalar.read(value, 0, known)
        return value if all(one.grows for one in members if one.is_from_text) else ABSENT

    def _member(self, members: list[_Shape], value: dict[str, Any] | list[Any], num_open: int) -> _Shape | None:
        """The only one that an object or array may be; of a whole object, the one of which it has most."""
        if isinstance(value, list):
            arrays: list[_Shape] = [one for one in members if isinstance(one, _Items)]
            return arrays[0] if len(arrays) == 1 else None
        if self.tag is not None:
            is_told = self.tag in value and not (num_open > 1 and [*value][-1] == self.tag)
            return self.tagged.get(value[self.tag]) if is_told else None
        fitting = [one for one in members if isinstance(one, _Fields) and one.fits(value, num_open)]
        objects: list[_Shape] = [*fitting, *(one for one in members if isinstance(one, _Values | _Union))]
        if len(objects) < 2 or num_open:
            return objects[0] if len(objects) == 1 else None
        return max(
            fitting, key=lambda one: (one.required <= value.keys(), len(value.keys() & one.fields)), default=None
        )


@dataclass(eq=False)
class _Later(_Shape):
    """A shape that is known by its name while it is made: that of a type that holds itself."""

    shape: Any = None

    def read(self, value: Any, num_open: int, known: dict[Any, Any]) -> Any:
        return _read(self.shape, value, num_open, known)


class _Shapes:
    """Makes shapes of core schemas."""

    def __init__(self) -> None:
        self._definitions: dict[str, _Core] = {}
        self._later: dict[str, _Later] = {}

    def of(self, schema: _Core, config: _Core) -> _Shape:
        """The shape of a schema under the config of the class that it is in."""
        kind = schema["type"]
        if kind == "definitions":
            self._definitions |= {one["ref"]: one for one in schema["definitions"]}
            return self.of(schema["schema"], config)
        if kind == "definition-ref":
            name = schema["schema_ref"]
            if name not in self._later:
                self._later[name] = _Later()
                self._later[name].shape = self.of(self._definitions[name], config)
            later = self._later[name]
            return later if later.shape is None else later.shape
        if kind in ("model", "dataclass", "typed-dict"):
            return self._object(schema, schema.get("config", config))
        if kind in _ITEMS:
            items = schema.get("items_schema")
            first = [] if not isinstance(items, list) else [self.of(one, config) for one in items]
            others = None if items is None or isinstance(items, list) else self.of(items, config)
            if (place := schema.get("variadic_item_index")) is not None:
                if place < len(first) - 1:
                    return self._whole(schema, config)  # what comes behind shows at the end
                others = first.pop()
            return _Items(first, others, _ITEMS[kind])
        if kind == "dict":
            any_schema = {"type": "any"}
            keys, values = schema.get("keys_schema", any_schema), schema.get("values_schema", any_schema)
            return _Values(self.of(keys, config), self.of(values, config))
        if kind in ("nullable", "union", "tagged-union"):
            return self._union(schema, config)
        if kind in ("default", "custom-error") or kind in _WRAPPERS:
            inside = self.of(schema["schema"], config)
            if kind == "default" or not isinstance(inside, _Whole):
                return inside
            return self._whole(schema, config, is_from_text=inside.is_from_text)
        if kind == "json-or-python":
            return self.of(schema["json_schema"], config)
        return self._whole(schema, config)

    def _whole(self, schema: _Core, config: _Core, *, is_from_text: bool | None = None) -> _Whole:
        kind = schema["type"]
        changes = [name for name in ("strip_whitespace", "to_lower", "to_upper")
                   if schema.get(name, config.get(f"str_{name}"))]  # fmt: skip
        grows = kind == "any" or (kind == "str" and not changes)
        if is_from_text is None:
            is_from_text = kind not in _NOT_FROM_TEXT
        return _Whole(schema, config, self._definitions, grows, is_from_text, kind in ("literal", "enum"))

    def _union(self, schema: _Core, config: _Core) -> _Shape:
        scalar = self._whole(schema, config)
        if schema["type"] == "nullable":
            return _Union([self.of(schema["schema"], config)], scalar)
        if schema["type"] == "union":
            choices = [one[0] if isinstance(one, tuple) else one for one in schema["choices"]]
            return _Union([self.of(one, config) for one in choices], scalar)
        tagged = {getattr(tag, "value", tag): self.of(one, config) for tag, one in schema["choices"].items()}
        tag = schema["discriminator"]
        return _Union([*tagged.values()], scalar, tag if isinstance(tag, str) else None, tagged)

    def _object(self, schema: _Core, config: _Core) -> _Shape:
        inside = schema if schema["type"] == "typed-dict" else schema["schema"]
        while inside["type"] in _WRAPPERS:
            inside = inside["schema"]
        if schema.get("root_model"):
            return self.of(inside, config)
        if inside["type"] not in ("model-fields", "dataclass-args", "typed-dict"):
            return self._whole(schema, config)
        listed = inside["fields"]
        by_name = listed if isinstance(listed, dict) else {one["name"]: one for one in listed}
        fields = {_key_of(name, one, config): (name, self.of(one["schema"], config)) for name, one in by_name.items()}
        defaults = {name: made for name, one in by_name.items() if (made := _default_of(one["schema"])) is not None}
        required = [_key_of(name, one, config) for name, one in by_name.items() if one["schema"]["type"] != "default"]
        extra = inside.get("extra_behavior", config.get("extra_fields_behavior"))
        make: Callable[[dict[str, Any]], Any] = dict
        if inside["type"] == "model-fields":
            made = _partial_model(schema["cls"], tuple(by_name), extra == "allow")
            make = lambda values: made.model_construct(set(values), **values)  # noqa: E731
        elif inside["type"] == "dataclass-args":
            of_class = _partial_dataclass(schema["cls"], tuple(by_name))
            make = lambda values: of_class(**values)  # noqa: E731
        return _Fields(fields, defaults, frozenset(required), make, extra == "allow")


def _key_of(name: str, field: _Core, config: _Core) -> str:
    """The key of a field in JSON: its alias, as `json_schema_of` writes it, unless the class reads names alone."""
    if config.get("validate_by_alias") is False:
        return name
    alias = field.get("validation_alias", name)
    if isinstance(alias, str):
        return alias
    single = (path[0] for path in alias if isinstance(path, list) and len(path) == 1 and isinstance(path[0], str))
    return next(single, name)


def _default_of(schema: _Core) -> Callable[[], Any] | None:
    """Gives the default of a field; None if it has none, or a function of the user's own makes it."""
    if schema["type"] != "default":
        return None
    if "default" in schema:
        return lambda: copy.deepcopy(schema["default"])
    factory: Any = schema.get("default_factory")
    return factory if isinstance(factory, type) and factory.__module__ == "builtins" else None


@lru_cache(maxsize=256)
def _partial_model(cls: type[Any], names: tuple[str, ...], has_others: bool) -> type[BaseModel]:
    config = ConfigDict(
        extra="allow" if has_others else "ignore", protected_namespaces=(), arbitrary_types_allowed=True
    )
    fields: dict[str, Any] = dict.fromkeys(names, (Any, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that pydantic has as well: it has told them of the class itself
        return create_model(f"Partial{cls.__name__}", __config__=config, __module__=cls.__module__, **fields)


@lru_cache(maxsize=256)
def _partial_dataclass(cls: type[Any], names: tuple[str, ...]) -> type[Any]:
    fields = [(name, Any, dataclasses.field(default=None)) for name in names]
    return dataclasses.make_dataclass(f"Partial{cls.__name__}", fields, namespace={"__module__": cls.__module__})


def _without_open_text(value: dict[str, Any] | list[Any], num_open: int) -> dict[str, Any] | list[Any]:
    """A value of which nobody knows the type yet: a string in it that is open may be read as something else."""
    parts: list[Any] = [*value.values()] if isinstance(value, dict) else value
    if num_open != 2 or not isinstance(parts[-1], str):
        return value
    return {key: value[key] for key in [*value][:-1]} if isinstance(value, dict) else value[:-1]
