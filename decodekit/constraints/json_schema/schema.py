"""The JSON Schema constraint: a schema or a Python type, with its options, as a value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from decodekit.constraints.constraint import Constraint, Guard
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.document.drafts import JsonValue
from decodekit.constraints.json_schema.frames import layout
from decodekit.constraints.json_schema.frames.layout import Whitespace
from decodekit.constraints.json_schema.frames.objects import Order
from decodekit.constraints.json_schema.frames.schema_frames import SchemaNetwork
from decodekit.constraints.json_schema.messages import descriptions
from decodekit.constraints.json_schema.strings.notations import JSON, Notation
from decodekit.constraints.json_schema.strings.string_escapes import Escapes
from decodekit.constraints.json_schema.strings.string_formats import GUARDED, Formats
from decodekit.constraints.json_schema.values.numbers import MAX_DIGITS
from decodekit.constraints.json_schema.values.short_numbers import Numbers
from decodekit.constraints.memory_account import on_shortage
from decodekit.constraints.network import Frame
from decodekit.errors import InvalidConstraintError, OptionError, ResourceLimitError

if TYPE_CHECKING:
    from decodekit.constraints.json_schema.validators import AskedValidator

_Key: TypeAlias = tuple[str, Formats, Whitespace, Order, tuple[tuple[str, str], ...], Escapes, Numbers]

OPTIONS: Final = ("format", "whitespace", "order", "escapes", "numbers")
"""The options of `JsonSchema`: how a schema is read, and how its texts are written."""


class JsonSchema(Constraint):
    """JSON texts that a schema admits, or that validate as a Python type.

    Args:
        schema_or_type: a JSON Schema (a mapping or a bool; drafts 4, 6, 7, 2019-09 and 2020-12 by ``$schema``, 2020-12
            without it), or a Pydantic model, dataclass, TypedDict, Enum, ``Literal``, ``list[int]`` and the like.
        format: ``"assert"`` enforces the formats that are known, ``"annotate"`` none, as the standard has it;
            ``"python"`` as Pydantic reads them, which holds for a Python type whatever is said here.
        whitespace: ``"natural"``: no whitespace, or one space after each comma and colon, or one indentation by 2, 4
            or a tab (see the module `layout`), of a piece; ``"any"``: up to `layout.MAX_GAP` bytes in a gap;
            ``"compact"``: none; a number or a tab: as the indentation of `json.dumps`. Never any around the whole text.
        order: ``"declared"``: declared properties in their order, optional ones may be left out, then other ones;
            ``"any"``: in every order.
        registry: schemas that references may name, by absolute URI: a mapping or a `referencing.Registry`. Nothing
            is ever fetched.
        escapes: ``"needed"``: characters that JSON can write as themselves are, so that more bytes are forced;
            ``"any"``: every character may be an escape, as in JSON.
        numbers: ``"short"``: what has to be an integer is digits alone, and a number has at most 24 bytes, which every
            double and every integer of 64 bits fits in, or as many as the schema asks for (see the module
            `short_numbers`); ``"any"``: every spelling, of any length.

    Whitespace, escapes and numbers narrow what is generated, not what `parse` takes. Their defaults are for generation:
    a model may spend its tokens on whitespace, escapes and digits that are free. To validate given texts by the
    constraint itself, ask for ``whitespace="any", escapes="any", numbers="any", order="any"``.

    Duplicate keys are never generated, nor is a number in a form that could not be compared with its bounds, or one
    that is read as infinity: exponents end at ``1.7976931348623158e308`` and at -999, and behind several digits at 99
    (see the module `numbers`). Constraints of equal content are equal.

    Raises:
        InvalidConstraintError: not JSON, or not a schema.
        OptionError: an option that is none of the above.
        ResourceLimitError: nested too deeply.
    """

    __slots__ = (
        "_key", "_text", "asked", "escapes", "format", "numbers", "order", "python_type", "registry", "whitespace",
    )  # fmt: skip

    format: Formats
    whitespace: Whitespace
    order: Order
    registry: tuple[tuple[str, str], ...]
    escapes: Escapes
    numbers: Numbers
    python_type: object
    """The type that the texts are of; None for a schema."""
    asked: tuple[AskedValidator, ...]
    """The validators of the type that the mask knows nothing of."""
    _text: str
    _key: _Key

    def __init__(
        self,
        schema_or_type: object,
        format: Formats = "annotate",
        whitespace: Whitespace = "natural",
        order: Order = "declared",
        registry: object = None,
        escapes: Escapes = "needed",
        numbers: Numbers = "short",
    ) -> None:
        _check_choice("format", format, ("annotate", "assert", "python"), "is no treatment of formats")
        _check_choice("order", order, ("declared", "any"), "is no order of properties")
        _check_choice("escapes", escapes, ("any", "needed"), "are no escapes")
        _check_choice("numbers", numbers, ("any", "short"), "is no way to write numbers")
        layout.check(whitespace)
        asked: tuple[AskedValidator, ...] = ()
        if isinstance(schema_or_type, (Mapping, bool)):
            python_type, schema = None, schema_or_type
        else:
            from decodekit.constraints.json_schema.python_types import json_schema_of

            python_type, format = schema_or_type, "python"
            schema, asked = json_schema_of(schema_or_type)
        key = (_to_text(schema), format, whitespace, order, _registry_texts(registry), escapes, numbers)
        names = ("_text", "format", "whitespace", "order", "registry", "escapes", "numbers", "_key")
        for name, value in zip((*names, "python_type", "asked"), (*key, key, python_type, asked), strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a JsonSchema does not change; make a new one with another {name}")

    @property
    def schema(self) -> JsonValue:
        """The schema as a fresh JSON value."""
        return json.loads(self._text)

    @property
    def options(self) -> dict[str, Any]:
        """The values of `OPTIONS`, by name: of how the schema is read and its texts are written."""
        return {name: getattr(self, name) for name in OPTIONS}

    def with_options(self, **options: Any) -> JsonSchema:
        """The same with other options: those of `OPTIONS`.

        Raises:
            OptionError: an option that `JsonSchema` does not take, or a format for a Python type.
        """
        if "format" in options and self.python_type is not None:
            raise OptionError(
                f"{options['format']!r} is no choice: the formats of a Python type are enforced as Pydantic reads them",
                at="format",
                hint="no format, or the schema in place of the type",
            )
        return JsonSchema(**self._arguments() | options)

    def network(self, notation: Notation = JSON) -> SchemaNetwork:
        """The network of the schema in a notation; shared by equal constraints."""
        return _network(self._key, notation)

    def unchecked_network(self) -> SchemaNetwork:
        """A network of its own, of which nothing is known yet: neither that it is supported nor that a value fits."""
        return _load(self._key)

    def root(self) -> Frame:
        """The frame of a whole text.

        Raises:
            InvalidConstraintError: a keyword's value has not the form that its draft asks for.
            UnsupportedSchemaError: a keyword, or a combination of them, that is not enforced.
            UnresolvableReferenceError: a reference names nothing that is here.
            UnsatisfiableError: no value fits.
            ResourceLimitError: a pattern is too long or too deep.
        """
        return self.network().root()

    @property
    def num_bytes(self) -> int:
        """About how much memory the network takes."""
        return _BYTES_PER_CHARACTER * (len(self._text) + sum(len(text) for _, text in self.registry))

    def guard(self, notation: Notation = JSON) -> Guard | None:
        """The guard for the keywords that the mask does not enforce; None if it enforces all. See `schema_guard`.

        Of a Python type also what asks its validators, where these are Pydantic's own (see `validators`). In every
        notation it reads JSON.
        """
        guard = _guard(self._key, notation)
        if all(one.status == "end" for one in self.asked):
            return guard
        from decodekit.constraints.json_schema.guard.schema_guard import TypeGuard

        return TypeGuard(self.python_type, guard)

    def parse(self, text: str) -> object:
        """The value of a whole text: as `json.loads` reads it, or the validated value of the Python type.

        Raises:
            ValueError: it is not JSON, has a key twice, or does not validate as the Python type.
        """
        value = json.loads(text, object_pairs_hook=_refuse_duplicates)
        if self.python_type is None:
            return value
        from decodekit.constraints.json_schema.python_types import validate_json

        return validate_json(self.python_type, text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JsonSchema):
            return NotImplemented
        return self._key == other._key and self.python_type is other.python_type

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        shown = repr(self.python_type) if self.python_type is not None else self._text
        return f"JsonSchema({shown if len(shown) <= 200 else shown[:199] + '…'})"

    def __reduce__(self) -> tuple[object, ...]:
        return JsonSchema, tuple(self._arguments().values())

    def _arguments(self) -> dict[str, Any]:
        is_schema = self.python_type is None
        return {
            "schema_or_type": self.schema if is_schema else self.python_type,
            "format": self.format if is_schema else "annotate",
            "whitespace": self.whitespace,
            "order": self.order,
            "registry": {uri: json.loads(text) for uri, text in self.registry} or None,
            "escapes": self.escapes,
            "numbers": self.numbers,
        }


_NUM_NETWORKS: Final = 64  # as many as grammars are kept
_BYTES_PER_CHARACTER: Final = 26  # of a network, measured with tracemalloc on 60 schemas of a corpus


_TOO_LONG: Final = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")


@lru_cache(maxsize=_NUM_NETWORKS)
def _network(key: _Key, notation: Notation) -> SchemaNetwork:
    network = _load(key, notation)
    network.semantics.left.update(support.refuse_unsupported(network.library, key[1]))
    if not network.is_inhabited(network.root_goal):
        from decodekit.constraints.json_schema.messages.unsatisfiable import Reasons

        raise Reasons(network).error()
    network.explore()
    return network


@lru_cache(maxsize=_NUM_NETWORKS)
def _guard(key: _Key, notation: Notation) -> Guard | None:
    texts, network = f"{key[0]}{key[4]}", _network(key, notation)
    is_exact = network.is_told and not network.semantics.left
    if is_exact and "uniqueItems" not in texts and not (key[1] == "assert" and any(name in texts for name in GUARDED)):
        network.semantics.may_leave = False
        return None
    from decodekit.constraints.json_schema.guard.schema_guard import guard_of  # most schemas need none of it

    guard = guard_of(network.semantics, may_leave=not is_exact)
    network.semantics.may_leave = guard is not None
    return guard


@on_shortage
def _release_networks() -> None:
    """Let go of the networks that no grammar uses."""
    _guard.cache_clear()
    _network.cache_clear()


def _load(key: _Key, notation: Notation = JSON) -> SchemaNetwork:
    text, formats, whitespace, order, registry, escapes, numbers = key
    documents = {uri: json.loads(document) for uri, document in registry}
    if _TOO_LONG.search(text) or any(_TOO_LONG.search(document) for _, document in registry):
        numbers = "any"  # the guard may ask for a number that is longer than the mask can tell
    schema = json.loads(text)
    return SchemaNetwork(schema, documents, formats, whitespace, order, escapes, numbers, descriptions, notation)


def _check_choice(name: str, value: object, choices: tuple[str, ...], fault: str) -> None:
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{value!r:.60} {fault}", at=name, hint=" or ".join(f'"{choice}"' for choice in choices))


def _to_text(schema: object) -> str:
    if isinstance(schema, Mapping) and not isinstance(schema, dict):
        schema = dict(schema)
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ResourceLimitError("the schema is nested too deeply", hint='fewer levels, or "$ref"') from error
    except (TypeError, ValueError) as error:
        raise InvalidConstraintError(f"the schema is not JSON: {error}") from error


def _registry_texts(registry: object) -> tuple[tuple[str, str], ...]:
    if registry is None:
        return ()
    if not isinstance(registry, Mapping):
        raise OptionError(
            f"a {type(registry).__name__} is no registry", at="registry", hint="a dict from URI to schema"
        )
    entries = ((uri, registry[uri]) for uri in registry)
    # referencing.Registry maps to resources, which hold their schema as `contents`.
    return tuple(sorted((uri, _to_text(getattr(entry, "contents", entry))) for uri, entry in entries))


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} occurs twice")
    return value
