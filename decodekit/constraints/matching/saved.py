"""Compiled grammars on disk: the constraint as JSON, and the fingerprint of the vocabulary that it was compiled for.

Nothing in such a file is run, so it may come from whom you do not trust as far as its schema or grammar may. Masks are
not kept: the 46 of a short JSON text over 131k tokens take 0.2 seconds on two busy cores and would be 750 kB; what of
them depends on the vocabulary alone is in the cache folder (see `store`); and a file that holds masks would decide by
itself which tokens are allowed.

A constraint is written as its class and the arguments that make an equal one. Constraints that hold Python objects
(a function, a Pydantic model) are refused by name.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any, Final

import decodekit
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.json_schema.schema import OPTIONS
from decodekit.errors import (
    InvalidConstraintError,
    NameNotFoundError,
    ResourceLimitError,
    UnsupportedSchemaError,
    VocabularyMismatchError,
)
from decodekit.vocabulary import Vocabulary

FORMAT: Final = "decodekit grammar 1"

_CLASSES: Final = (
    *("Choices", "Concat", "Grammar", "JsonSchema", "Many", "OneOf", "Optional", "Reasoned"),
    *("Regex", "Special", "Tag", "Tagged", "Text"),
)
"""The classes that a file may name; all of them are public."""

_OWN_ARGUMENTS: Final = {"JsonSchema": ("schema", *OPTIONS), "Grammar": ("text", "syntax", "start", "lexer")}
"""The attributes of classes that are made of one value and options; other classes have one for each argument."""


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
    if name not in _CLASSES or getattr(decodekit, name) is not type(value):
        raise UnsupportedSchemaError(
            f"a {name} cannot be saved: it is no text", hint=f"one of {', '.join(_CLASSES)}, or a JSON Schema"
        )
    own = _OWN_ARGUMENTS.get(name)
    if own is None:
        arguments = {one: to_value(getattr(value, one)) for one in inspect.signature(type(value)).parameters}
    else:
        arguments = {one: getattr(value, one) for one in own}
    if name == "JsonSchema":
        arguments["registry"] = {uri: json.loads(text) for uri, text in getattr(value, "registry", ())}
    if not _is_whole(value):
        raise UnsupportedSchemaError(
            f"this {name} cannot be saved: it has more than its text, a Python type or files of its own",
            hint="JsonSchema(constraint.schema) for the schema alone, one text without imports",
        )
    return {name: arguments}


def _is_whole(value: object) -> bool:
    """Whether the arguments that are written say all of a constraint."""
    if getattr(value, "files", ()) or getattr(value, "syntax", "lark") not in ("lark", "gbnf"):
        return False
    return getattr(value, "python_type", None) is None


def from_value(value: Any, place: str) -> Any:
    """The constraint, or argument, that `to_value` wrote.

    Raises:
        InvalidConstraintError: the value is none of these.
    """
    if isinstance(value, list):
        return tuple(from_value(item, place) for item in value)
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or next(iter(value)) not in _CLASSES or not isinstance(next(iter(value.values())), dict):
        raise InvalidConstraintError(
            f"{sorted(value)[:3]} is no constraint", at=place, hint=f"one of {', '.join(_CLASSES)}"
        )
    ((name, given),) = value.items()
    kind, options = getattr(decodekit, name), dict(given)
    try:
        if name in _OWN_ARGUMENTS:
            source = options.pop(_OWN_ARGUMENTS[name][0])
            # A line end makes it a text: what could be the name of a file is never opened.
            is_line = name == "Grammar" and "\n" not in source
            return kind(source + "\n" if is_line else source, **options)
        read = {one: from_value(argument, place) for one, argument in options.items()}
        several = [one.name for one in inspect.signature(kind).parameters.values() if one.kind is one.VAR_POSITIONAL]
        return kind(*[item for one in several for item in read.pop(one)], **read)
    except (TypeError, KeyError, AttributeError) as error:  # arguments of another version, or of another hand
        raise InvalidConstraintError(f"the arguments of {name} are none of its: {error}", at=place) from None
