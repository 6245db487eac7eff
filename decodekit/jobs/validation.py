"""The last word on an output, whatever decoded it: strict JSON, `jsonschema`, and the constraint's own `parse`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from decodekit.errors import DecodekitError, InvalidConstraintError, InvalidOutputError
from decodekit.records.strict_json import pointer_of, read_json, validator_of

if TYPE_CHECKING:
    from decodekit.constraints import Constraint


class OutputValidator:
    """Checks outputs against one schema, in the draft that its ``$schema`` names (2020-12 when it names none).

    Formats are annotations, as the specification has it. References are resolved inside the schema only.

    Args:
        constraint: reads each output, too, so that guards and the validators of Python types have their say.
        is_json: whether the value of an output is its JSON; otherwise it is what the constraint makes of it.

    Raises:
        InvalidConstraintError: the schema itself is malformed.
    """

    def __init__(
        self, schema: Mapping[str, Any] | bool, constraint: Constraint | None = None, *, is_json: bool = True
    ) -> None:
        from jsonschema import SchemaError

        try:
            self._validator = validator_of(schema)
        except SchemaError as error:
            place = f"#{pointer_of(error.path)}"
            raise InvalidConstraintError(f"not a JSON Schema: {error.message}.", at=place) from error
        self._constraint = constraint
        self.is_json = is_json

    def value(self, text: str) -> Any:
        """The JSON value of an output.

        Raises:
            InvalidOutputError: not JSON (NaN and infinities are not), the schema or the constraint does not allow the
                value, or what the constraint makes of a text cannot be written as JSON.
            ConstraintError: a guard has failed.
        """
        value = self._json_value(text) if self.is_json else None
        if self._constraint is None:
            return value
        try:
            parsed = self._constraint.parse(text)
        except DecodekitError:
            raise
        except Exception as error:  # a validator of the user's own type raises what it likes
            raise InvalidOutputError(f"the output breaks the constraint: {error}") from error
        return value if self.is_json else _plain(parsed)

    def _json_value(self, text: str) -> Any:
        from referencing.exceptions import Unresolvable

        try:
            value = read_json(text)
        except (ValueError, RecursionError) as error:
            raise InvalidOutputError(f"the output is not JSON: {error or type(error).__name__}.") from error
        try:
            fault = next(iter(self._validator.iter_errors(value)), None)
        except RecursionError as error:
            raise InvalidOutputError("the output is nested too deeply to be validated.") from error
        except (Unresolvable, re.error) as error:
            raise InvalidOutputError(f"the output cannot be validated with this schema: {error}.") from error
        if fault is not None:
            raise InvalidOutputError(f"the output breaks the schema: {fault.message}.", at=f"#{pointer_of(fault.path)}")
        return value


def _plain(value: object) -> Any:
    """A value in JSON's own types: a dataclass or a Pydantic model as an object, a tuple as an array."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        plain = to_jsonable_python(value)
        json.dumps(plain, allow_nan=False)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        cause = str(error).partition("\n")[0]
        raise InvalidOutputError(
            f"the value of the output, a {type(value).__name__}, cannot be written as JSON: {cause}"
        ) from error
    return plain
