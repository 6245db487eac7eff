"""Compiled grammars on disk: the constraint as JSON, and the fingerprint of the vocabulary that it was compiled for.

Nothing in such a file is run, so it may come from whom you do not trust as far as its schema or grammar may. Masks are
not kept: the 46 of a short JSON text over 131k tokens take 0.2 seconds on two busy cores and would be 750 kB; what of
them depends on the vocabulary alone is in the cache folder (see `store`); and a file that holds masks would decide by
itself which tokens are allowed.

A constraint is written as its class and the arguments that make an equal one. Constraints that hold Python objects
(a function, a Pydantic model) are refused by name.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import decodekit
from decodekit.constraints.constraint import Constraint
from decodekit.errors import (
    InvalidConstraintError,
    NameNotFoundError,
    ResourceLimitError,
    UnsupportedSchemaError,
    VocabularyMismatchError,
)
from decodekit.vocabulary import Vocabulary

if TYPE_CHECKING:
    from decodekit.constraints.grammar.grammar import Grammar
    from decodekit.constraints.json_schema import JsonSchema

FORMAT: Final = "decodekit grammar 1"

_HOME: Final = {
    "Choices": "decodekit.constraints.composition.choices",
    "Grammar": "decodekit.constraints.grammar.grammar",
    "JsonSchema": "decodekit.constraints.json_schema",
    "Regex": "decodekit.constraints.regex.regex",
    **dict.fromkeys(
        ("Concat", "Many", "OneOf", "Optional", "Reasoned", "Special", "Tag", "Tagged", "Text"),
        "decodekit.constraints.composition",
    ),
}
"""The classes that a file may name, each with its module."""


def save(constraint: Constraint, vocabulary: Vocabulary, path: str | os.PathLike[str]) -> None:
    """Write a constraint and the fingerprint of a vocabulary; an existing file is replaced as a whole.

    Raises:
        UnsupportedSchemaError: the constraint holds Python objects, or is of a class that has no form in a file.
        OSError: the file cannot be written.
    """
    content = {
        "format": FORMAT,
        "decodekit": decodekit.__version__,
        "vocabulary": {"fingerprint": vocabulary.fingerprint, "size": vocabulary.size},
        "constraint": to_value(constraint),
    }
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], vocabulary: Vocabulary) -> Constraint:
    """Read a constraint that was saved for an equal vocabulary.

    Raises:
        NameNotFoundError: there is no such file.
        InvalidConstraintError: the file is none that `save` wrote, or of another version of the format.
        VocabularyMismatchError: it was saved for another vocabulary; with both fingerprints.
        ConstraintError: what the constraint itself raises.
    """
    place = str(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NameNotFoundError(f"there is no file {place!r}") from None
    except RecursionError:
        raise ResourceLimitError("the file is nested too deeply", at=place) from None
    except ValueError as error:
        raise InvalidConstraintError(f"the file is no saved grammar: {error}", at=place) from None
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(FORMAT.rpartition(" ")[0]):
        raise InvalidConstraintError("the file is no saved grammar", at=place, hint="CompiledGrammar.save(path)")
    if content["format"] != FORMAT:
        raise InvalidConstraintError(
            f"the file has the format {content['format']!r}, this version reads {FORMAT!r}",
            at=place,
            hint=f"the grammar saved anew; it was written by decodekit {content.get('decodekit')}",
        )
    saved = content.get("vocabulary")
    fingerprint = saved.get("fingerprint") if isinstance(saved, dict) else None
    if fingerprint != vocabulary.fingerprint:
        raise VocabularyMismatchError(
            f"the grammar was saved for the vocabulary {fingerprint}, the one given is {vocabulary.fingerprint}",
            at=place,
            hint="the tokenizer that it was compiled for, or compile(constraint, tokenizer) anew",
        )
    constraint = from_value(content.get("constraint"), place)
    if not isinstance(constraint, Constraint):
        raise InvalidConstraintError("the file holds no constraint", at=place)
    return constraint


# -- constraints as JSON values


def to_value(value: object) -> Any:
    """The JSON value of a constraint, or of an argument of one: ``{"Regex": {"pattern": "a+"}}``.

    Raises:
        UnsupportedSchemaError: it holds something that has no such value.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, tuple | list | frozenset):
        return [to_value(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    name = type(value).__name__
    if _class(name) is not type(value):
        raise UnsupportedSchemaError(
            f"a {name} cannot be saved: it is no text", hint=f"one of {', '.join(sorted(_HOME))}, or a JSON Schema"
        )
    write: Callable[[Any], dict[str, Any]] = _WRITERS.get(name, _arguments)
    written = {name: write(value)}
    is_equal = from_value(written, name) == value or (name == "Grammar" and "\n" not in written[name]["text"])
    if not is_equal:
        raise UnsupportedSchemaError(f"this {name} cannot be saved: what is read would be another constraint")
    return written


def from_value(value: Any, place: str) -> Any:
    """The constraint, or argument, that `to_value` wrote.

    Raises:
        InvalidConstraintError: the value is none of these.
    """
    if isinstance(value, list):
        return tuple(from_value(item, place) for item in value)
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or next(iter(value)) not in _HOME or not isinstance(next(iter(value.values())), dict):
        raise InvalidConstraintError(
            f"{sorted(value)[:3]} is no constraint", at=place, hint=f"one of {', '.join(sorted(_HOME))}"
        )
    ((name, arguments),) = value.items()
    reader = _READERS.get(name, _from_arguments)
    try:
        return reader(_class(name), arguments, place)
    except (TypeError, KeyError, AttributeError) as error:  # arguments of another version, or of another hand
        raise InvalidConstraintError(f"the arguments of {name} are none of its: {error}", at=place) from None


def _class(name: str) -> Any:
    home = _HOME.get(name)
    return None if home is None else getattr(importlib.import_module(home), name)


def _arguments(constraint: object) -> dict[str, Any]:
    """The arguments of the constructor, each of which is an attribute too."""
    parameters = inspect.signature(type(constraint)).parameters
    return {name: to_value(getattr(constraint, name)) for name in parameters}


def _from_arguments(kind: Any, arguments: Mapping[str, Any], place: str) -> Any:
    read = {name: from_value(argument, place) for name, argument in arguments.items()}
    parameters = inspect.signature(kind).parameters
    several = next((name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_POSITIONAL), None)
    return kind(**read) if several is None else kind(*read.pop(several), **read)


def _schema_arguments(constraint: JsonSchema) -> dict[str, Any]:
    if constraint.format == "python":
        raise UnsupportedSchemaError(
            f"{constraint!r:.100} cannot be saved: it is made of a Python type, which validates its values",
            hint="JsonSchema(constraint.schema) for the schema alone",
        )
    return {
        "schema": constraint.schema,
        "format": constraint.format,
        "whitespace": constraint.whitespace,
        "order": constraint.order,
        "escapes": constraint.escapes,
        "registry": {uri: json.loads(text) for uri, text in constraint.registry},
    }


def _read_schema(kind: Any, arguments: Mapping[str, Any], place: str) -> Any:
    options = dict(arguments)
    return kind(options.pop("schema"), **{**options, "registry": options.get("registry") or None})


def _grammar_arguments(constraint: Grammar) -> dict[str, Any]:
    if constraint.files or constraint.syntax not in ("lark", "gbnf"):
        cause = "it imports files" if constraint.files else f"it is a file with a {constraint.syntax}"
        raise UnsupportedSchemaError(
            f"this Grammar cannot be saved: {cause}", hint="one text without imports, a Regex or a JsonSchema"
        )
    return {name: getattr(constraint, name) for name in ("text", "syntax", "start", "lexer")}


def _read_grammar(kind: Any, arguments: Mapping[str, Any], place: str) -> Any:
    options = dict(arguments)
    text = options.pop("text")
    if not isinstance(text, str):
        raise TypeError("the text is none")
    # A line end makes it a text: what could be the name of a file is never opened.
    return kind(text if "\n" in text else f"{text}\n", **options)


_WRITERS: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "JsonSchema": _schema_arguments,
    "Grammar": _grammar_arguments,
}
_READERS: Final[dict[str, Callable[[Any, Mapping[str, Any], str], Any]]] = {
    "JsonSchema": _read_schema,
    "Grammar": _read_grammar,
}
