r"""Arguments of a call one by one, as elements: ``<parameter=city>\nBern\n</parameter>``, ``city="Bern"``.

Where strings stand as they are, a text says by itself what it is, as the parsers that the families publish read it:

    of the schema                   a text                              is read as
    strings alone                   7   null   "a"                      itself
    no strings                      7   null   [1]                      JSON
    both, or anything               7   null   [1]                      JSON, where the schema admits the value
                                    Bern   "a"   [1                     itself

So a parameter that may be a string and a number has no string ``7``. Formats whose templates write `True`, `False` and
`None` have these words as well. Where a format marks what is not a string, nothing is doubtful.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote

from decodekit.constraints.composition.composed import Composed, row
from decodekit.constraints.composition.split import Split
from decodekit.constraints.constraint import Constraint, Guard, Refusal, WorkingGuard, WrappedConstraint, judging_of
from decodekit.constraints.grammar.rules import EMPTY_TEXT, Alternatives, Expression, Inline
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames.embedded import embedded
from decodekit.constraints.json_schema.notation import Notated, Values
from decodekit.constraints.json_schema.strings.string_formats import Formats
from decodekit.constraints.json_schema.strings.text import QUOTE
from decodekit.constraints.language import ir
from decodekit.constraints.language.words import words
from decodekit.constraints.network import Frame, Lexeme
from decodekit.constraints.tool_calls.format import ElementArguments
from decodekit.constraints.tool_calls.literals import BLANKS, LETTER, TEXT, literal
from decodekit.constraints.tool_calls.tool import RESOURCE, Tool
from decodekit.constraints.work_budget import Work
from decodekit.errors import InvalidConstraintError, UnsatisfiableError, UnsupportedSchemaError
from decodekit.records.strict_json import pointer_of, value_at

_BRANCHES: Final = ("allOf", "anyOf", "oneOf", "if", "then", "else")
"""Keywords whose schemas may declare properties of the same object."""
_OF_THE_WHOLE: Final = frozenset(
    ("$ref", "$dynamicRef", "const", "dependencies", "dependentRequired", "dependentSchemas", "enum", "maxProperties",
     "minProperties", "not", "patternProperties", "propertyNames", "unevaluatedProperties", *_BRANCHES)
)  # fmt: skip
"""Keywords that no element can answer for by itself."""


RAW: Final = Values("raw")
"""How strings are written as they are."""
_PYTHON: Final = {"true": "True", "false": "False", "null": "None"}


@dataclass(frozen=True, slots=True)
class Elements(Composed):
    """The arguments of a tool as elements.

    The parameters stand in the order in which the schema declares them, also in the schemas of `_BRANCHES`. Those that
    are not required may be left out, and no others are written. The value is that of the same arguments as JSON.

    Raises (from `root`):
        InvalidConstraintError: the name of a parameter cannot be written.
        UnsupportedSchemaError: a required parameter is not declared.
        UnsatisfiableError: a required parameter has no value that can be written.
        ConstraintError: a schema cannot be used.
    """

    tool: Tool
    form: ElementArguments
    excludes: tuple[str, ...]  # marks, which no string that is written as it is holds
    marks: tuple[str, ...]  # those that may be special tokens
    are_special: bool | None  # whether they are; None if they may be either

    def expression(self) -> Expression:
        """The elements with what stands around and between them."""
        form = self.form
        parameters = _parameters(self)
        separator = self._literal(form.separator, after=form.begin or LETTER)
        rest: list[Expression] = []
        begins: list[Expression] = []  # what may stand there from some parameter on, the first that is written
        for parameter in reversed(parameters):
            begin = self._literal(form.begin, after=LETTER)
            element = row(begin, parameter.name, parameter.content)
            if parameter.is_required:
                begins = []
            begins.insert(0, row(element, *rest))
            later = row(separator, element)
            rest.insert(0, later if parameter.is_required else Alternatives((later, EMPTY_TEXT)))
        if not any(parameter.is_required for parameter in parameters):
            begins.append(EMPTY_TEXT)
        return row(self._literal(form.opening), Alternatives(tuple(begins)), self._literal(form.closing))

    def value(self, parts: object) -> object:
        """The arguments."""
        return self.tool.arguments().parse(json.dumps(self.values(parts)))

    def values(self, parts: object) -> dict[str, Any]:
        """The arguments as values of JSON."""
        _, (number, found), _ = cast("list[Any]", parts)
        parameters, values = _parameters(self)[number:], dict[str, Any]()
        for place, (parameter, part) in enumerate(zip(parameters, found or (), strict=bool(found))):
            element = part
            if place:  # behind a separator, and maybe not there
                is_left_out, later = (False, part) if parameter.is_required else part
                if is_left_out:
                    continue
                element = later[1]
            _, _, (_, (_, (_, value), _)) = element
            values[parameter.name] = value
        return values

    def _literal(self, text: str, before: str = "", after: str = "") -> Expression:
        return literal(text, self.marks, self.are_special, before=before, after=after)

    def element(self, name: str, ways: Iterable[tuple[str, list[Constraint], str]]) -> Expression | None:
        """The element behind a key, in one of some ways: a text, the values, an end. None if no way has values."""
        beside = "" if self.form.values.is_quoted else TEXT
        found = [
            row(
                self._literal(middle, LETTER, beside),
                Alternatives(tuple(Inline(value, name) for value in values)),
                self._literal(end, beside),
            )
            for middle, values, end in ways
            if values
        ]
        return Alternatives(tuple(found)) if found else None


class _Parameter(NamedTuple):
    name: str
    content: Expression
    is_required: bool


@lru_cache(maxsize=256)
def _parameters(elements: Elements) -> tuple[_Parameter, ...]:
    schema = elements.tool.schema
    places: dict[str, list[str]] = {}
    for at, part in _parts(schema, "#", set()):
        for name in part.get("properties", {}):
            places.setdefault(name, []).append(at + pointer_of(["properties", name]))
    required = {name for _, part in _parts(schema, "#", set(), ("allOf",)) for name in part.get("required", ())}
    for name in required:
        if name not in places:
            cause = f"the required {name!r:.60} is not declared"
            raise UnsupportedSchemaError(cause, at="#/required", hint="properties for all of them")
    found = []
    for name, declared in elements.form.values.items(places):
        content = _content(elements, schema, name, declared)
        if content is not None:
            found.append(_Parameter(name, content, name in required))
        elif name in required:
            raise UnsatisfiableError("no value fits that can be written", at=declared[0])
    return tuple(found)


def _parts(
    schema: object, at: str, seen: set[str], keywords: tuple[str, ...] = _BRANCHES, root: Any = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas that speak of the same object, each with its place."""
    if not isinstance(schema, dict) or at in seen:
        return
    seen.add(at)
    root = schema if root is None else root
    yield at, schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        yield from _parts(value_at(root, unquote(reference)), reference, seen, keywords, root)
    for keyword in keywords:
        branch = schema.get(keyword)
        if isinstance(branch, list):
            for number, one in enumerate(branch):
                yield from _parts(one, f"{at}/{keyword}/{number}", seen, keywords, root)
        else:
            yield from _parts(branch, f"{at}/{keyword}", seen, keywords, root)


def _content(elements: Elements, root: dict[str, Any], name: str, places: list[str]) -> Expression | None:
    """The element of a parameter behind its key; None if it has no values that can be written."""
    form = elements.form
    at = places[0]
    around = form.middle.strip(BLANKS)[:1] + "<>" + BLANKS
    if not name or any(character in name for character in around):
        raise InvalidConstraintError(f"an element cannot have the name {name!r:.60}", at=at)
    formats: Formats = "annotate" if isinstance(elements.tool.parameters, str) else "python"

    def schema_of(*conditions: object) -> JsonSchema:
        references: list[dict[str, object]] = [{"$ref": RESOURCE + quote(place, safe="#/~")} for place in places]
        schema: dict[str, object] = {"anyOf": references} if len(references) > 1 else references[0]
        schema = {"allOf": [schema, *conditions]} if conditions else schema
        return JsonSchema(schema, formats, registry={RESOURCE: root})

    try:
        network = schema_of().network()
    except UnsatisfiableError:
        return None
    shape = network.semantics.shape(network.root_goal)
    has_strings = not shape.strings.is_empty
    has_others = bool(shape.has_plain or network.objects(network.root_goal) or network.arrays(network.root_goal))
    values = form.values
    middle_of_others = form.middle if form.middle_of_others is None else form.middle_of_others
    if values.is_quoted and middle_of_others == form.middle:
        return elements.element(name, [(form.middle, [noted(schema_of(), values)], form.end)])
    strings = schema_of({"type": "string"}) if has_others else schema_of()
    others = schema_of({"not": {"type": "string"}}) if has_strings else schema_of()
    mark = "" if values.text in ("raw", "json", "python") else values.text
    text: list[Constraint] = []
    if has_strings and values.is_quoted:
        text = [noted(strings, values)]
    elif has_strings:
        try:
            text = [Notated(strings, RAW, (mark,) if mark else elements.excludes)]
            text[0].root()
        except UnsatisfiableError as error:
            if not has_others:
                raise UnsatisfiableError(error.cause, at=at) from error
            text = []
    rest: list[Constraint] = [noted(others, values)] if has_others else []
    if text and rest and values.text == "raw" and middle_of_others == form.middle:
        if others.guard() is not None:
            cause = "a value that only a guard tells from invalid ones cannot be told from a string, either"
            raise UnsupportedSchemaError(cause, at=at, hint="a parameter without strings, or another format")
        # All that is JSON, written in whatever way: what is not found here is taken for a string.
        wide = others.with_options(order="any", whitespace="any", numbers="any")
        wide = wide if values.nested == "python" else wide.with_options(escapes="any")
        rest = [Unquoted(noted(wide, values))]
    has_python = "python" in (values.literals, values.null, values.nested)
    if shape.words and has_python and values.nested != "own" and not values.is_quoted:
        is_python = values.nested == "json"  # those that the others do not have
        rest.append(LiteralWords(tuple(sorted(_PYTHON[word] if is_python else word for word in shape.words))))
    if middle_of_others == form.middle and not mark:
        return elements.element(name, [(form.middle, rest + text, form.end)])
    return elements.element(name, [(middle_of_others, rest, form.end), (form.middle + mark, text, mark + form.end)])


@dataclass(frozen=True, slots=True)
class Unquoted(WrappedConstraint):
    """Values other than strings where strings stand as they are: only the whole text tells which it is."""

    constraint: Constraint


@dataclass(frozen=True, slots=True)
class LiteralWords(Constraint):
    """Words that stand for true, false and null."""

    texts: tuple[str, ...]

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(words(dict.fromkeys(text.encode() for text in self.texts)))

    def parse(self, text: str) -> object:
        """True, False or None."""
        if text not in self.texts:
            raise ValueError(f"{text!r:.60} is none of {', '.join(self.texts)}")
        return {"true": True, "false": False, "null": None}[text.lower().replace("none", "null")]


@dataclass(frozen=True, slots=True)
class Judged(WrappedConstraint):
    """Elements whose arguments are judged together, where the schema says more than what each of them is."""

    constraint: Elements

    def guard(self) -> Guard:
        """Asks the schema about the arguments as JSON."""
        return _Judge(self.constraint)


@dataclass(frozen=True, slots=True)
class _Judge(WorkingGuard):
    elements: Elements

    def judging(self, text: bytes) -> Work[Refusal | None]:
        elements = self.elements
        split = yield from Split.dividing(elements.expression(), text)
        if not split.is_whole:
            return Refusal(len(text), "the arguments", "a value is refused by the schema of its parameter")
        told = json.dumps(elements.values(split.value()), ensure_ascii=False)
        admitted = elements.tool.arguments().with_options(order="any", whitespace="any", escapes="any", numbers="any")
        found = yield from Split.dividing(Inline(admitted), told.encode("utf-8", "surrogatepass"))
        if found.is_whole:
            return None
        return Refusal(len(text), "the arguments", f"the schema of {elements.tool.name} does not admit {told:.200}")


def elements_of(
    tool: Tool, form: ElementArguments, excludes: tuple[str, ...], marks: tuple[str, ...], are_special: bool | None
) -> Elements | Judged:
    """The arguments of a tool as elements; see `Elements`."""
    elements = Elements(tool, form, excludes, marks, are_special)
    _parameters(elements)  # raises what is wrong with one of them
    schema = tool.schema
    is_judged = not _OF_THE_WHOLE.isdisjoint(schema) or tool.arguments().guard() is not None
    return Judged(elements) if is_judged else elements


# --- values in the notation of a format ---


def noted(schema: JsonSchema, values: Values) -> Constraint:
    """The values that a schema admits, as `values` writes them. Strings without escapes are for others to write."""
    if values.is_sorted:
        schema = schema.with_options(order="any")
    if not values.is_quoted and values.nested != "own":
        values = Values() if values.nested == "json" else Values("python", "python", "python")
    if values.is_json:
        return schema.with_options(escapes="any") if values.is_ascii else schema
    return Notated(schema, values)


@dataclass(frozen=True, slots=True)
class QuotedJson(Constraint):
    """The texts of a schema, each as a string of JSON.

    Keys that the schema does not declare may come twice in an object; then the last one counts.
    """

    schema: JsonSchema

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(ir.concat(QUOTE, embedded(self.schema.root()), QUOTE))

    def parse(self, text: str) -> object:
        """The value of the text in the string."""
        return self.schema.parse(json.dumps(json.loads(self.json(text))))

    def json(self, text: str) -> str:
        """The text in the string."""
        return str(json.loads(text))

    def guard(self) -> Guard | None:
        """That of the schema."""
        guard = self.schema.guard()
        return None if guard is None else _QuotedGuard(guard)


@dataclass(frozen=True, slots=True)
class _QuotedGuard(WorkingGuard):
    """A guard that is asked about the text in a string."""

    guard: Guard

    def judging(self, text: bytes) -> Work[Refusal | None]:
        refusal = yield from judging_of(self.guard, json.loads(text).encode("utf-8", "surrogatepass"))
        return None if refusal is None else Refusal(len(text), refusal.at, refusal.message)
