"""The last word on an output: parsed as strict JSON and validated by `jsonschema`, whatever decoded it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from decodekit.errors import InvalidConstraintError, InvalidOutputError


class OutputValidator:
    """Checks outputs against one schema, in the draft that its ``$schema`` names (2020-12 when it names none).

    Formats are annotations, as the specification has it. References are resolved inside the schema only.

    Raises:
        InvalidConstraintError: the schema itself is malformed.
    """

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        from jsonschema import FormatChecker, SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

        draft = validator_for(schema, default=Draft202012Validator)
        try:
            # Without formats: patterns are ECMAScript's, which Python's `re` does not read in all cases.
            draft.check_schema(schema, format_checker=FormatChecker(formats=()))
        except SchemaError as error:
            place = f"#{_pointer(error.path)}"
            raise InvalidConstraintError(f"not a JSON Schema: {error.message}.", at=place) from error
        # The registry holds the metaschemas and nothing else; without one, jsonschema would fetch references by itself.
        self._validator = draft(schema, registry=REGISTRY)

    def value(self, text: str) -> Any:
        """The JSON value of an output.

        Raises:
            InvalidOutputError: not JSON (NaN and infinities are not), or the schema does not allow the value.
        """
        from referencing.exceptions import Unresolvable

        try:
            value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
        except (ValueError, RecursionError) as error:
            raise InvalidOutputError(f"the output is not JSON: {error or type(error).__name__}.") from error
        try:
            fault = next(iter(self._validator.iter_errors(value)), None)
        except (Unresolvable, re.error) as error:
            raise InvalidOutputError(f"the output cannot be validated with this schema: {error}.") from error
        if fault is not None:
            raise InvalidOutputError(f"the output breaks the schema: {fault.message}.", at=f"#{_pointer(fault.path)}")
        return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond the range of floating point numbers")
    return value


def _pointer(path: Any) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
