"""The schema of a job, from a file, a class or constraint in a Python file, or a line of field names."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from decodekit.constraints import Constraint, Grammar, Guarded, JsonSchema, as_constraint
from decodekit.constraints.author import coverage
from decodekit.constraints.coercion import available_schemas
from decodekit.constraints.fingerprint import code_digest, described
from decodekit.constraints.json_schema.schema import OPTIONS
from decodekit.constraints.request_formats import json_schema_in
from decodekit.errors import (
    ConstraintError,
    DecodekitError,
    InvalidConstraintError,
    JobError,
    NameNotFoundError,
    OptionError,
)
from decodekit.plugins import near_or_first
from decodekit.records.fingerprints import digest

_CLASS_REFERENCE = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
_FIELD = re.compile(r"(?P<name>[^\W\d][\w-]*)(?P<q1>\?)?(?:\s+(?P<type>[^\s?]+(?:\s*\|\s*[^\s?|]+)*)\s*(?P<q2>\?)?)?")
_TYPES: dict[str, dict[str, Any]] = {
    **{kind: {"type": kind} for kind in ("string", "integer", "number", "boolean")},
    **{kind: {"type": "string", "format": kind} for kind in ("date", "time", "date-time", "email")},
}
_ALIASES = {"str": "string", "text": "string", "int": "integer", "bool": "boolean"}
_ALIASES |= {"float": "number", "decimal": "number", "datetime": "date-time"}
FIELDS_HELP = (
    "fields are written 'name, total float, due date?, tags string[], kind invoice|receipt': a name, a type "
    "(string when left out), [] for a list, | between choices, ? where null is allowed"
)


@dataclass(frozen=True)
class JobSchema:
    """A schema and what to give to the decoder for it.

    Attributes:
        source: as given on the command line.
        schema: the JSON Schema; every output is validated against it. True for a constraint that is none.
        constraint: what is enforced while decoding: the schema, the Python class that it came from, or a constraint.
        beyond: what is asked for beyond the schema, as `described` says it: the constraint, where it has a guard or is
            no JSON Schema. Empty for a schema or a class.
        is_json: whether the texts are JSON. Else the value of a text is what its constraint makes of it.
    """

    source: str
    schema: Mapping[str, Any] | bool
    constraint: Constraint
    beyond: Mapping[str, Any] = field(default_factory=dict)
    is_json: bool = True

    @property
    def told(self) -> Mapping[str, Any] | bool:
        """The schema for a prompt; of a constraint that is not about JSON its description."""
        return self.schema if self.is_json else self.beyond

    @property
    def reading(self) -> dict[str, Any]:
        """The options of reading the schema and writing its texts, as a JSON value: all else that decides on the texts.

        The options of `JsonSchema`, what its references may name, and a digest of the class that it came from, whose
        validators say more than its schema. Empty for a constraint that is not a JSON Schema, which `beyond` tells.
        """
        constraint = json_schema_in(self.constraint)
        if constraint is None:
            return {}
        found = constraint.options
        if constraint.registry:
            found["registry"] = digest(constraint.registry, length=16)
        if constraint.python_type is not None:
            found["code"] = code_digest(constraint.python_type)
        return found


def load_schema(source: str, options: Mapping[str, Any] = MappingProxyType({})) -> JobSchema:
    """Read a schema.

    Known formats are enforced, unless the options say otherwise: a field of type date should be a date. A `JsonSchema`
    of a module keeps the options that it was made with, where none is given here.

    Args:
        source: a JSON file; ``module.py:NAME`` or ``package.module:NAME`` (Pydantic model, dataclass, TypedDict, Enum
            or another type; a `Constraint`, such as ``dk.Guarded(Invoice, is_balanced)`` or ``dk.Regex("[0-9]+")``; a
            JSON Schema as a dict); the name of an installed constraint or of a schema of the library; or fields such
            as ``"name, total float, tags string[], kind invoice|receipt, due date?"``. A file goes before a name, and
            a name before the field of that name, which is written with its type.
        options: those of `JsonSchema` that were given: format, whitespace, order, escapes, numbers.

    Raises:
        ConstraintError, PluginError: there is none, or it cannot be read or loaded.
        OptionError: an option that is none of `JsonSchema`, or that has no effect on what the source is.
    """
    source = source.strip()
    if source.startswith(("{", "[")):
        return _from_dictionary(source, _parse(source, "schema"), options)
    if match := _CLASS_REFERENCE.fullmatch(source):
        return _from_module(source, match["module"], match["name"], options)
    path = Path(source)
    if path.suffix.lower() == ".json" or os.path.isfile(source):
        return _from_dictionary(source, _parse(_read(path), source), options)
    return _from_name(source, options) if source in available_schemas() else _from_fields(source, options)


def schema_of(value: Any) -> JobSchema:
    """The schema of a Python program: what `load_schema` reads, a JSON Schema, a type or a constraint.

    A type or a constraint of a module is known by ``module:NAME`` or ``file.py:NAME``, so that `retry` finds it again.
    """
    if isinstance(value, JobSchema):
        return value
    if isinstance(value, str):
        return load_schema(value)
    if isinstance(value, dict | bool):
        return _from_dictionary(json.dumps(value, ensure_ascii=False), value, {})
    return _from_constraint(_reference(value), as_constraint(value), {})


def _reference(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not name.isidentifier():
        return f"{value!r:.80}"
    module = sys.modules.get(value.__module__)
    if value.__module__ == "__main__":
        file = getattr(module, "__file__", None)
        return f"{os.path.abspath(file)}:{name}" if file else name
    return f"{value.__module__}:{name}"


def warnings_of(schema: JobSchema) -> list[str]:
    """The warnings of `schema check`; none for a constraint that is not a JSON Schema."""
    constraint = json_schema_in(schema.constraint)
    return [] if constraint is None else coverage.warnings_of(constraint)


def is_reference(source: str) -> bool:
    """Whether a text is ``module.py:NAME`` or ``package.module:NAME``."""
    return _CLASS_REFERENCE.fullmatch(source) is not None


def _from_name(source: str, options: Mapping[str, Any]) -> JobSchema:
    given = as_constraint(source)
    constraint = json_schema_in(given)
    if constraint is None:
        cause = f"the constraint {source!r} is no JSON Schema"
        hint = f"generate --constraint {source}, or {source + ' string'!r} for a field of that name"
        raise InvalidConstraintError(cause, at="schema", hint=hint)
    if isinstance(given, Grammar):  # a schema of the library
        return _from_dictionary(source, constraint.schema, options)
    return _from_constraint(source, constraint, options)


def _from_fields(source: str, options: Mapping[str, Any]) -> JobSchema:
    try:
        schema = fields_schema(source)
    except InvalidConstraintError as error:
        if re.search(r"[\s,|]", source):
            raise
        raise NameNotFoundError(
            f"there is no schema {source!r}: no file {str(Path(source).absolute())!r}, no name of a schema, no field.",
            at="schema",
            hint=f"{near_or_first(source, available_schemas())}; {FIELDS_HELP}",
        ) from error
    return _of_schema(source, schema, options)


def _of_schema(source: str, schema: Any, options: Mapping[str, Any]) -> JobSchema:
    return JobSchema(source, schema, JsonSchema(schema, **{"format": "assert", **options}))


def reload_schema(
    source: str,
    schema: Mapping[str, Any] | bool,
    beyond: Mapping[str, Any] = MappingProxyType({}),
    reading: Mapping[str, Any] = MappingProxyType({}),
) -> JobSchema:
    """The schema of an existing job: a file is not read again; a class, a constraint and fields are made again.

    The arguments are what `JobSchema` said when the job was made; `reading` is empty for jobs that do not say it.
    Raises JobError if the class or the constraint is another one now, or has gone; or a program made it and no name
    leads to it.
    """
    options = {name: reading[name] for name in OPTIONS if name in reading}
    if options.get("format") == "python":
        del options["format"]
    is_program = bool(beyond) or not {"registry", "code"}.isdisjoint(reading)
    is_program |= _CLASS_REFERENCE.fullmatch(source) is not None
    if not is_program:
        return _of_schema(source, schema, options)
    found = _loaded_again(source, options)  # a class may check more than its schema says
    now = json.loads(json.dumps([found.beyond, found.reading if reading else {}]))
    if found.schema != schema or now != [beyond, reading]:
        cause = f"{source} has changed since the job was made."
        raise JobError(cause, hint="run extract again with --fresh, or with --force to go on with what it is now.")
    return found


def _loaded_again(source: str, options: Mapping[str, Any]) -> JobSchema:
    """`load_schema` for a class or constraint of a job; its errors say what a job can do about them."""
    is_text = source.lstrip().startswith(("{", "[")) or os.path.isfile(source) or source in available_schemas()
    if not (is_text or _CLASS_REFERENCE.fullmatch(source)):
        raise JobError(
            f"what the program gave to dk.extract has no name by which it could be loaded again: {source}",
            at="schema_source in job.json",
            hint="a name in a module, CHECKED = dk.Guarded(...), and the same call with 'module.py:CHECKED' in its "
            "place; then the job is known by that name",
        )
    try:
        with redirect_stdout(sys.stderr):  # a script may print, and the data of a command goes to stdout
            return load_schema(source, options)
    except ConstraintError as error:
        raise JobError(
            f"the class or constraint of the job, {source}, cannot be loaded again: {error.cause}",
            at="schema_source in job.json",
            hint=error.hint
            or "put it where it was, at the top level of its module; a script calls dk.extract under "
            '`if __name__ == "__main__":`',
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        near = [] if not path.parent.is_dir() else sorted(file.name for file in path.parent.glob("*.json"))
        has = f" {path.parent} has: {', '.join(near[:8])}." if near else ""
        raise NameNotFoundError(f"there is no schema file {str(path)!r}.{has}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise NameNotFoundError(f"the schema file {str(path)!r} cannot be read: {error}.") from error


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cause = f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        raise InvalidConstraintError(cause, at=place, hint="a schema file holds one JSON Schema.") from error


def _from_dictionary(source: str, value: Any, options: Mapping[str, Any]) -> JobSchema:
    if not isinstance(value, (dict, bool)):
        raise InvalidConstraintError("a JSON Schema is an object, true or false.", at=source)
    if isinstance(value, dict) and (value.get("type") == "structural_tag" or isinstance(value.get("tools"), list)):
        return _from_constraint(source, as_constraint(value), options)
    inner = json_schema_in(as_constraint(value))  # of a response format, what it holds
    return _of_schema(source, value if inner is None else inner.schema, options)


def _from_constraint(source: str, constraint: Constraint, options: Mapping[str, Any]) -> JobSchema:
    if options:
        constraint = with_options(constraint, options)
    schema = json_schema_in(constraint)
    if schema is None:
        return JobSchema(source, True, constraint, described(constraint), is_json=False)
    beyond = described(constraint) if isinstance(constraint, Guarded) else {}
    return JobSchema(source, schema.schema, constraint, beyond)  # type: ignore[arg-type]


def with_options(constraint: Constraint, options: Mapping[str, Any]) -> Constraint:
    """A JSON Schema, or one with a guard, with other options; raises OptionError where they have no effect."""
    if isinstance(constraint, Guarded):
        return replace(constraint, constraint=with_options(as_constraint(constraint.constraint), options))
    schema = json_schema_in(constraint)
    if schema is None:
        name = next(iter(options))
        cause = f"{name} has no effect: it is an option of JSON Schemas, and this is a {type(constraint).__name__}."
        raise OptionError(cause, at=name)
    return schema.with_options(**options)


def _from_module(source: str, module_name: str, name: str, options: Mapping[str, Any]) -> JobSchema:
    module = load_module(module_name)
    if not hasattr(module, name):
        names = sorted(
            key
            for key, value in vars(module).items()
            if isinstance(value, Constraint) or (isinstance(value, type) and value.__module__ == module.__name__)
        )
        near = difflib.get_close_matches(name, names, n=1)
        cause = f"no name {name!r} in {module_name}. It has: {', '.join(names) or 'no class and no constraint'}."
        raise NameNotFoundError(cause, hint=f"{module_name}:{near[0]}" if near else None)
    value = getattr(module, name)
    if isinstance(value, dict):
        return _from_dictionary(source, value, options)
    try:
        return _from_constraint(source, as_constraint(value), options)
    except DecodekitError:
        raise
    except Exception as error:  # a missing package of a type, code of the user's class
        message = str(error).partition("\n")[0]
        raise InvalidConstraintError(f"{name} has no JSON Schema: {message}", at=source) from error


def load_module(name: str) -> ModuleType:
    """A module by its file or its name; raises the ConstraintError of one that is not there or cannot be imported."""
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        if not os.path.isfile(path):
            raise NameNotFoundError(f"there is no file {name!r}.")
        # A name of its own per file, registered before it runs: pydantic looks annotations up in sys.modules.
        module_name = f"_decodekit_schema_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        # From its source: bytecode beside it is taken for current while the size of the source and the second of its
        # last change are the same.
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
        return module
    except ModuleNotFoundError as error:
        raise NameNotFoundError(f"{name} cannot be imported: no module named {error.name!r}.") from error
    except NameNotFoundError:
        raise
    except Exception as error:
        raise InvalidConstraintError(f"{name} cannot be imported: {type(error).__name__}: {error}.") from error


def fields_schema(text: str) -> dict[str, Any]:
    """The schema of an object from a line of fields, all of them required and no others allowed.

    ``"name, total float, due date?, tags string[], kind invoice|receipt"``: a field is a name, then perhaps a type
    (``string``, ``integer``, ``number``, ``boolean``, ``date``, ``time``, ``date-time``, ``email``, or their Python
    names; ``string`` when left out) or choices between ``|``; ``[]`` makes a list, ``?`` allows null.

    Raises:
        InvalidConstraintError: a field cannot be read, or a name stands twice; all faults together.
    """
    properties: dict[str, Any] = {}
    faults: list[str] = []
    for number, part in enumerate(text.split(","), start=1):
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            faults.append(f"field {number} {part.strip()!r} is not a name and a type")
            continue
        schema = _field_type(match["type"] or "string")
        if schema is None:
            near = difflib.get_close_matches(match["type"], [*_TYPES, *_ALIASES], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_TYPES)}"
            faults.append(f"field {match['name']!r} has the unknown type {match['type']!r}{hint}")
        elif match["name"] in properties:
            faults.append(f"field {match['name']!r} stands twice")
        else:
            is_nullable = bool(match["q1"] or match["q2"])
            properties[match["name"]] = {"anyOf": [schema, {"type": "null"}]} if is_nullable else schema
    if faults:
        raise InvalidConstraintError("; ".join(faults) + ".", at="schema", hint=f"{FIELDS_HELP}; or name a .json file.")
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _field_type(text: str) -> dict[str, Any] | None:
    if text.endswith("[]"):
        items = _field_type(text[:-2])
        return None if items is None else {"type": "array", "items": items}
    if "|" in text:
        choices = [choice.strip() for choice in text.split("|")]
        return {"enum": choices} if all(choices) else None
    schema = _TYPES.get(_ALIASES.get(text, text))
    return None if schema is None else dict(schema)
