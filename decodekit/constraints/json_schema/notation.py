r"""Texts of a JSON Schema in another notation than JSON: as literals of Python, or with marks around strings.

    Values("python", "python", "python")             {'city': 'Bern', 'is_day': True, 'tags': ["it's"]}
    Values('<|"|>', nested="own", item=",", key=":")    {city:<|"|>Bern<|"|>,is_day:true,tags:[<|"|>it's<|"|>]}
    Values("raw", "python")                          Bern    True    {"city": "Bern"}       one value each

The mask is that of the same schema, read through a translation (see `strings.notations`). Values and guards read JSON:
a whole text is translated for them, also where Python reads more than is generated (``0x1F``, ``'\101'``, ``[1,]``).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from decodekit.constraints.constraint import Constraint, Guard, Refusal, WorkingGuard, judging_of
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.frames.schema_frames import SchemaNetwork
from decodekit.constraints.json_schema.notation_reader import Place, quoted, translated
from decodekit.constraints.json_schema.schema import JsonSchema
from decodekit.constraints.json_schema.strings import text as bodies
from decodekit.constraints.json_schema.strings.notations import JSON, Notation
from decodekit.constraints.json_schema.strings.string_escapes import spelled
from decodekit.constraints.network import Frame, Move, Read
from decodekit.constraints.work_budget import Work
from decodekit.errors import OptionError, UnsatisfiableError, UnsupportedSchemaError

Spelling: TypeAlias = Literal["raw", "json", "python"]
"""The form of a text among others: as it is, as a string of JSON, or as a literal of Python."""


@dataclass(frozen=True, slots=True)
class Values:
    """The written form of the values of arguments.

    Attributes:
        text: strings: by a spelling, or between two of these marks, as they are (Gemma 4 has ``<|"|>``).
        literals: how true, false and null stand outside of lists and objects.
        nested: lists and objects: as JSON, as literals of Python, or `own`: with the marks and literals of the outside,
            and keys as they are (Gemma 4 writes ``{a:[<|"|>b<|"|>]}``).
        item, key: what stands between the items of lists and objects, and behind keys.
        is_ascii: whether letters beyond ASCII are escaped (``\\u00fc``).
        null: how null stands where it does not stand as true and false do (Gemma 4 has ``None`` beside ``true``).
        is_sorted: whether keys stand in the order of their letters, small or large.
    """

    text: Spelling | str = "json"
    literals: Literal["json", "python"] = "json"
    nested: Literal["json", "python", "own"] = "json"
    item: str = ", "
    key: str = ": "
    is_ascii: bool = False
    null: Literal["json", "python"] | None = None
    is_sorted: bool = False

    @property
    def is_json(self) -> bool:
        """Whether all is JSON."""
        return self.text == self.literals == self.nested == "json" and self.null != "python"

    @property
    def is_quoted(self) -> bool:
        """Whether strings stand between quotation marks, with escapes."""
        return self.text in ("json", "python")

    def items(self, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The members of an object in the order in which they are written."""
        return sorted(value.items(), key=lambda item: item[0].casefold()) if self.is_sorted else [*value.items()]

    def written(self, value: Any) -> str:
        """A value of JSON as the argument of a call.

        Raises:
            ValueError: it cannot be written: a number that is not finite, a string that holds the mark around strings,
                a key with a colon where keys are bare.
        """
        if isinstance(value, str):
            return self._text(value, self.text)
        if value is None or isinstance(value, bool):
            literals = self.null if value is None and self.null else self.literals
            return str(value) if literals == "python" else json.dumps(value)
        return self._nested(value) if isinstance(value, list | Mapping) else json.dumps(value, allow_nan=False)

    @property
    def outside(self) -> Notation:
        """The notation of values outside of lists and objects."""
        return Notation(self.text, "python" in (self.text, self.literals, self.null))

    @property
    def inside(self) -> Notation:
        """The notation of values inside of lists and objects."""
        if self.nested == "own":
            return replace(self.outside, has_bare_keys=True)
        return JSON if self.nested == "json" else Notation("python", True)

    def _nested(self, value: Any) -> str:
        """A value in a list or an object, or one of these."""
        if isinstance(value, list):
            return f"[{self.item.join(map(self._nested, value))}]"
        if isinstance(value, Mapping):
            members = (self._key(key) + self.key + self._nested(one) for key, one in self.items(value))
            return f"{{{self.item.join(members)}}}"
        if self.nested == "own":
            return self.written(value)
        if isinstance(value, str):
            return self._text(value, self.nested)
        is_word = value is None or isinstance(value, bool)
        return str(value) if is_word and self.nested == "python" else json.dumps(value, allow_nan=False)

    def _key(self, key: str) -> str:
        if self.nested != "own":
            return self._text(key, self.nested)
        if not self.inside.can_be_key(key):
            raise ValueError(f"the key {key!r:.60} cannot be written without quotation marks")
        return key

    def _text(self, text: str, spelling: str) -> str:
        if spelling == "raw":
            return text
        if spelling == "json":
            return json.dumps(text, ensure_ascii=self.is_ascii)
        if spelling == "python":
            return _python(text, self.is_ascii)
        if (text + spelling).index(spelling) < len(text):
            raise ValueError(f"{text!r:.60} holds {spelling!r}, which ends a string, or its beginning at the end")
        return f"{spelling}{text}{spelling}"


_ESCAPES: Final = {ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_ESCAPES.update({code: f"\\x{code:02x}" for code in range(0x20) if code not in _ESCAPES})


def _python(text: str, is_ascii: bool) -> str:
    """A string of Python, in the quotation marks of `repr`; what `repr` escapes because no glyph shows it is raw."""
    quote = '"' if "'" in text and '"' not in text else "'"
    if is_ascii:
        return ascii(text)
    return quote + text.translate(_ESCAPES).replace(quote, f"\\{quote}") + quote


@dataclass(frozen=True, slots=True)
class Notated(Constraint):
    """The texts of a schema with their values written in another way.

    Of strings in Python those escapes are generated that are needed: the quotation mark, the backslash and control
    characters, as ``\\n`` or ``\\x0b``. White space, the order of members and numbers are as the schema has them.

    Attributes:
        schema: the schema, with its options.
        values: how its values are written.
        without: what no raw string holds, so that what follows it can be told from it.

    Raises:
        OptionError: values that cannot be written so.

    Raises (from `root`):
        UnsupportedSchemaError: a key or a string that cannot be written so; a raw string that cannot be told from
            another value.
        ConstraintError: what the schema itself raises.
    """

    schema: JsonSchema
    values: Values
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = self.values
        is_marked = values.text not in ("raw", "json", "python")
        if is_marked and (not values.text or values.text[0] in _NOT_IN_MARKS or not bodies.is_text(values.text)):
            raise OptionError(f"{values.text!r:.60} cannot stand around strings", at="text", hint='<|"|>, for example')
        if values.nested == "own" and values.text == "raw":
            raise OptionError(
                "strings in lists and objects need an end", at="nested", hint='"json", or marks around strings'
            )
        if values.is_ascii and "python" in (values.text, values.nested):
            raise OptionError("letters beyond ASCII are never escaped in Python", at="is_ascii", hint="False")
        if values.inside.strings != "json" and self.schema.escapes == "any":
            raise OptionError("needless escapes are generated in JSON alone", at="escapes", hint='"needed"')
        if not all(self.without) or (self.without and values.text != "raw"):
            raise OptionError(f"{self.without!r:.60} is for raw strings", at="without", hint="words, or nothing")

    @property
    def _spelled(self) -> JsonSchema:
        """The schema with the escapes that are written in JSON."""
        return self.schema.with_options(escapes="any") if self.values.is_ascii else self.schema

    def root(self) -> Frame:
        """The frame of a whole text."""
        schema, inner = self._spelled, self.values.inside
        outer = replace(self.values.outside, without=self.without)
        try:
            network = schema.network(inner)
        except UnsatisfiableError:
            _check_names(schema.unchecked_network(), inner)  # perhaps that is why
            raise
        _check_names(network, inner)
        if inner in (outer, replace(outer, has_bare_keys=True)):
            return network.root()
        shape = network.semantics.shape(network.root_goal)
        has_others = shape.has_plain or bool(network.objects(network.root_goal) or network.arrays(network.root_goal))
        if outer.strings == "raw" and not shape.strings.is_empty and has_others:
            raise UnsupportedSchemaError(
                "a string that is written as it is cannot be told from a value of another type",
                at="#",
                hint='"type": "string" alone, or another type',
            )
        frame = _OuterFrame(network, outer)
        if frame.moves()[0].node.is_empty:
            raise UnsatisfiableError("no string fits that can be written as it is", at="#")
        return frame

    def parse(self, text: str) -> object:
        """The value of a whole text, as `JsonSchema.parse` gives it.

        Raises:
            ValueError: the text is none of the notation, has a key twice, or does not validate as the Python type.
        """
        return self.schema.parse(self.json(text))

    def json(self, text: str) -> str:
        """A whole text as JSON."""
        return self._json(text.encode("utf-8", errors="surrogatepass"))[0].decode("utf-8", errors="surrogatepass")

    @property
    def num_bytes(self) -> int:
        """That of the schema."""
        return self.schema.num_bytes

    def guard(self) -> Guard | None:
        """That of the schema, asked about the same value as JSON when the text may end."""
        inner = self._spelled.guard(self.values.inside)
        return None if inner is None else _TranslatingGuard(self, inner)

    def _json(self, data: bytes) -> tuple[bytes, list[Place]]:
        """A whole text as JSON, and where its parts stand."""
        if self.values.text == "raw":
            network = self._spelled.network(self.values.inside)
            if not network.semantics.shape(network.root_goal).strings.is_empty:
                found = quoted(data)
                return found, [(0, 0, 0), (len(found), len(data), 0)]
        return translated(data, self.values.outside, self.values.inside)


@dataclass(frozen=True, slots=True)
class _OuterFrame(Frame):
    """Before a value that is written otherwise than those inside of it."""

    network: SchemaNetwork
    notation: Notation

    def moves(self) -> tuple[Read]:
        """One lexeme, which the frame of the value goes on with."""
        network = self.network
        escapes = network.escapes if self.notation.strings == "json" else "any"
        read = network.begun(network.root_goal, lambda node: self.notation.value(spelled(node, escapes)))
        return (replace(read, reader=read.reader or network.root()),)

    def expected(self, move: Move) -> tuple[str, ...]:
        """The values that the schema allows, in English."""
        return self.network.root().expected(move)


@dataclass(frozen=True)
class _TranslatingGuard(WorkingGuard):
    """Asks a guard of JSON about texts of another notation."""

    constraint: Notated
    inner: Guard

    def judging(self, text: bytes) -> Work[Refusal | None]:
        """The refusal of the same value in JSON, with its place in this notation; None if the value is valid."""
        yield len(text) // 8
        found, places = self.constraint._json(text)
        refusal = yield from judging_of(self.inner, found)
        if refusal is None:
            return None
        begin, start, opening = places[bisect_right(places, refusal.keep, key=lambda place: place[0]) - 1]
        return replace(refusal, keep=start + (opening if refusal.keep > begin else 0))


_NOT_IN_MARKS: Final = frozenset('-0123456789[]{},:"tfnTFN \t\r\n')


def _check_names(network: SchemaNetwork, notation: Notation) -> None:
    """Refuse the names and constants of a schema that cannot be written with bare keys and marks."""
    mark = "" if notation.strings in ("json", "python") else notation.strings
    for location in support.reachable(network.library) if notation.has_bare_keys else ():
        keywords = location.keywords()
        required = dict.fromkeys(keywords.get("required", ()))
        named = keywords.get("properties"), required, keywords.get("dependentRequired")
        for part in (*named, *_parts_of(keywords.get("enum")), *_parts_of(keywords.get("const"))):
            for name in part if isinstance(part, dict) else ():
                if not notation.can_be_key(name):
                    raise UnsupportedSchemaError(
                        f"the key {name!r:.60} cannot be written without quotation marks",
                        at=location.pointer,
                        hint="names without blanks around them, brackets, braces, commas, colons and quotation marks",
                    )
            if isinstance(part, str) and mark and mark in part:
                raise UnsupportedSchemaError(
                    f"the string {part!r:.60} holds {mark!r}, which ends strings here", at=location.pointer
                )


def _parts_of(value: Any) -> Iterator[Any]:
    """A value of JSON and all values inside."""
    stack = [value]
    while stack:
        part = stack.pop()
        yield part
        stack += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
