"""From the bytes of a request to its fields, or to an error that names the field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np
import pydantic_core
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Scope

from decodekit.errors import BodyLimitError, InvalidRequestError, ServerBusyError
from decodekit.serving.limits import Limits
from decodekit.serving.requests.fields import WireModel

B = TypeVar("B", bound=WireModel)
SHORT_BYTES: Final = 1 << 13
"""Larger bodies are read in a thread, one after the other."""
LARGE_BYTES: Final = 1 << 16
"""Larger bodies share a bound of memory."""
_WORDS: Final = {
    "extra_forbidden": "is unknown or not supported",
    "missing": "is missing",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
    "list_type": "should be a valid array",
    "none_required": "should be null",
}
_LISTED: Final = "leaving it out; GET /openapi.json lists the fields"
_MOST_FAULTS: Final = 5
_MOST_LOOKED_AT: Final = 64  # of faults, and of letters of a name
_MOST_LETTERS: Final = 400
_SIGNS: Final = b"[{:"  # one for each list, object and member
_QUOTE: Final = ord('"')
_BACKSLASHES: Final = re.compile(rb"\\*+")
_LOOKED_AT_ONCE: Final = 1 << 16
_COUNTED_AT_ONCE: Final = 1 << 20  # in less time than a thread takes
_SIZE: Final = "decodekit.body_size"


class Bodies:
    """Reads the bodies of requests. What those under way take of memory has a bound, all together.

    A body counts by its bytes as they come, and, once it is there, by what its values may take. The first
    `LARGE_BYTES` of each are free, so that large bodies keep no small ones out: of these there are as many as
    connections. Of requests between their body and their place in the engine there are `most_whole`.
    """

    def __init__(self, limits: Limits, most_whole: int) -> None:
        self._limits, self._most_whole = limits, most_whole
        self.num_bytes = 0
        self.num_whole = 0

    async def read(self, request: Request) -> bytes:
        """The bytes of a request, which count until `end`; raises `ClientDisconnect` if the client has gone."""
        most, scope = self._limits.max_body_bytes, request.scope
        too_large = _too_large(f"the body is larger than {most:,} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and (len(declared) > 20 or int(declared) > most):
            raise too_large
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        raise too_large
                    self._count(scope, size)
        except TimeoutError:
            raise BodyLimitError(f"the body did not arrive within {self._limits.body_s:g} s", at="time") from None
        data = b"".join(parts)
        if size > LARGE_BYTES:
            most_values = self._limits.max_values
            is_large = size > _COUNTED_AT_ONCE
            taken = await asyncio.to_thread(memory_of, data, most_values) if is_large else memory_of(data, most_values)
            self._count(scope, taken)
        return data

    def _count(self, scope: Scope, size: int) -> None:
        """Let a body count by `size` bytes."""
        most, size, counted = self._limits.max_bodies_bytes, size - LARGE_BYTES, scope.get(_SIZE, 0)
        if size > most:
            raise _too_large(f"the body takes more than {most:,} bytes of memory")
        if self.num_bytes + size - counted > most:
            cause = f"the bodies of requests under way take {most:,} bytes of memory, as many as there may be"
            raise ServerBusyError(cause, hint="again in a moment")
        if size > counted:
            scope[_SIZE] = size
            self.num_bytes += size - counted

    def end(self, scope: Scope) -> None:
        """Let go of the body of a request that has ended."""
        self.num_bytes -= scope.pop(_SIZE, 0)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """For a request whose body is there, until the engine has its texts."""
        if self.num_whole >= self._most_whole:
            cause = f"{self.num_whole:,} requests wait to be read, as many as this endpoint takes"
            raise ServerBusyError(cause, hint="again in a moment")
        self.num_whole += 1
        try:
            yield
        finally:
            self.num_whole -= 1


def memory_of(data: bytes, most_values: int) -> int:
    """Bytes that a body takes at most when it is read: its texts, and Python's objects around them."""
    return len(data) + 32 * _num_of(data, b",") + 64 * min(_num_of(data, _SIGNS), most_values)


def _num_of(data: bytes, letters: bytes) -> int:
    """The number of some letters in a body. Other threads go on meanwhile, as they do not for `bytes.count`."""
    read = np.frombuffer(data, np.uint8)
    return sum(int(np.count_nonzero(read == letter)) for letter in letters)


def check_values(data: bytes, most: int) -> None:
    """Raise the `BodyLimitError` of a body with more than `most` lists, objects and members of objects.

    Nothing else runs while Python makes the values of a body, of which three bytes may be one.
    """
    if len(data) <= most or _num_of(data, _SIGNS) <= most:
        return
    # What stands in texts is no value: without escapes, it is behind an odd number of quotation marks.
    is_sign = np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(_SIGNS, np.uint8))
    begin = num_quotes = num_values = 0
    while begin < len(data):
        end = begin + _LOOKED_AT_ONCE
        if data[end - 1 : end] == b"\\":  # an escape is not cut
            end = 1 + next(_BACKSLASHES.finditer(data, end)).end()
        piece = np.frombuffer(data[begin:end].replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        before = np.cumsum(piece == _QUOTE, dtype=np.int32) + num_quotes
        num_values += int(np.count_nonzero(is_sign[piece] & (before % 2 == 0)))
        begin, num_quotes = end, int(before[-1]) if len(before) else num_quotes
        if num_values > most:
            raise _too_large(f"the body has more than {most:,} lists, objects and members")


def _too_large(cause: str) -> BodyLimitError:
    return BodyLimitError(cause, at="body", hint="a smaller request")


def fields_of(data: bytes, kind: type[B], most_values: int) -> B:
    """The fields of a body; those that are unknown, missing, of another type or out of range are refused together."""
    check_values(data, most_values)
    try:
        given = pydantic_core.from_json(data)
    except ValueError as error:
        raise InvalidRequestError(f"the body is no JSON: {error}", at="body") from None
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise _fault(faults[:_MOST_LOOKED_AT], given) from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply", at="body") from None


def _fault(faults: Sequence[Any], given: Any) -> InvalidRequestError:
    """The faults, field by field; the place is the first of them."""
    by_field: dict[str, list[str]] = {}
    for one in faults:
        words = _WORDS.get(one["type"]) or _in_english(one["msg"])
        by_field.setdefault(field_of(one["loc"], given) or "body", []).append(words)
    # Of a field that may be one of several things, each has its word; that of the one that fits best is deep inside.
    for field in [*by_field]:
        for place, sign in enumerate(field):
            if sign == ".":
                by_field.pop(field[:place], None)
    told = [f"{field:.100} {', or '.join(dict.fromkeys(words))}"[:300] for field, words in by_field.items()]
    hint = _LISTED if any(one["type"] == "extra_forbidden" for one in faults) else None
    return InvalidRequestError("; ".join(told[:_MOST_FAULTS]), at=next(iter(by_field)), hint=hint)


def _in_english(message: str) -> str:
    """Pydantic's words, with values as JSON has them."""
    message = message[:_MOST_LETTERS].replace("Input should be", "should be").replace("Input tag", "the kind")
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
        names.append(str(part)[:_MOST_LOOKED_AT])
    return ".".join(names)


def _part(given: Any, part: str | int) -> tuple[bool, Any]:
    """Whether a value has a part, and the part."""
    if isinstance(given, dict):
        return part in given, given.get(part)
    if isinstance(given, list) and isinstance(part, int) and part < len(given):
        return True, given[part]
    return False, None
