"""From the bytes of a request to its fields, or to an error that names the field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pydantic_core
from pydantic import ValidationError
from starlette.requests import Request

from decodekit.errors import BodyLimitError, InvalidRequestError
from decodekit.serving.fields import WireModel
from decodekit.serving.limits import Limits

B = TypeVar("B", bound=WireModel)
_WORDS: Final = {"extra_forbidden": "is unknown or not supported", "missing": "is missing"}
_LISTED: Final = "leaving it out; GET /openapi.json lists the fields"
_MOST_FAULTS: Final = 5


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of a request.

    Raises:
        BodyLimitError: they are too many, or come too slowly.
        ClientDisconnect: the client has gone.
    """
    too_large = BodyLimitError(
        f"the body is larger than {limits.max_body_bytes:,} bytes", at="body", hint="a smaller request"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise too_large
    parts: list[bytes] = []
    num_bytes = 0

    async def read() -> None:
        nonlocal num_bytes
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes > limits.max_body_bytes:
                raise too_large
            parts.append(part)

    try:
        await asyncio.wait_for(read(), limits.body_s)
    except TimeoutError:
        raise BodyLimitError(f"the body did not arrive within {limits.body_s:g} s", at="time") from None
    return b"".join(parts)


def fields_of(data: bytes, kind: type[B]) -> B:
    """The fields of a body.

    Raises:
        InvalidRequestError: it is no JSON, or a field is unknown, missing, of another type or out of range.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        try:
            given = pydantic_core.from_json(data)
        except ValueError:
            given = None
        faults = error.errors(include_url=False, include_context=False)
        raise _fault(faults, given) from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply", at="body") from None


def _fault(faults: Sequence[Any], given: Any) -> InvalidRequestError:
    """What is wrong, field by field; the place is the first of them."""
    if faults[0]["type"] == "json_invalid":
        message = str(faults[0]["msg"]).removeprefix("Invalid JSON: ")
        return InvalidRequestError(f"the body is no JSON: {message}", at="body")
    by_field: dict[str, list[str]] = {}
    for one in faults:
        words = _WORDS.get(one["type"]) or _in_english(one["msg"])
        by_field.setdefault(field_of(one["loc"], given) or "body", []).append(words)
    # Of a field that may be one of several things, each has its word; that of the one that fits best is deep inside.
    for field in [one for one in by_field if any(other.startswith(f"{one}.") for other in by_field)]:
        del by_field[field]
    told = [f"{field:.100} {', or '.join(dict.fromkeys(words))}"[:300] for field, words in by_field.items()]
    hint = _LISTED if any(one["type"] == "extra_forbidden" for one in faults) else None
    return InvalidRequestError("; ".join(told[:_MOST_FAULTS]), at=next(iter(by_field)), hint=hint)


def _in_english(message: str) -> str:
    """Pydantic's words, with values as JSON has them."""
    message = message.replace("Input should be", "should be").replace("Input tag", "the kind")
    return re.sub(r" found using .*? does not", " does not", message).replace("False", "false").replace("True", "true")


def field_of(place: Sequence[str | int], given: Any) -> str:
    """The name of a field, ``messages.0.content``: the parts of a place that the request has, and what it lacks.

    Pydantic puts the branches of unions among them, such as ``list[str]`` or the role of a message.
    """
    names: list[str] = []
    for number, part in enumerate(place):
        is_last = number == len(place) - 1
        is_there, value = _part(given, part)
        if is_there:
            given = value
        elif not (is_last and isinstance(given, dict) and isinstance(part, str) and part.isidentifier()):
            continue
        names.append(str(part))
    return ".".join(names)


def _part(given: Any, part: str | int) -> tuple[bool, Any]:
    """Whether a value has a part, and the part."""
    if isinstance(given, dict):
        return part in given, given.get(part)
    if isinstance(given, list) and isinstance(part, int) and part < len(given):
        return True, given[part]
    return False, None
