"""Errors as answers: the status of each class, and OpenAI's form with our code in it.

{"error": {"message": "DK206 ...", "type": "invalid_request_error", "param": "guided_regex", "code": "DK206"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from decodekit import errors
from decodekit.errors import DecodekitError

CLIENT_CLOSED: Final = 499
"""The status in logs and metrics of a request whose client has gone; nobody receives it."""

# The first class that fits decides.
_STATUSES: Final = (
    ((errors.AccessError,), 401, "authentication_error"),
    ((errors.NotServedError,), 404, "not_found_error"),
    ((errors.BodyLimitError,), 413, "invalid_request_error"),
    ((errors.GuardError, errors.DeadEndError), 422, "unprocessable_error"),
    ((errors.QueueFullError, errors.ServerBusyError), 429, "rate_limit_error"),
    ((errors.ShutdownError, errors.EngineClosedError), 503, "service_unavailable_error"),
    ((errors.RequestTimeoutError,), 504, "timeout_error"),
    ((errors.InvalidRequestError, errors.OptionError, errors.UnknownNameError), 400, "invalid_request_error"),
    ((errors.ConstraintError, errors.ModelError), 400, "invalid_request_error"),
    ((errors.LengthError, errors.CacheFullError), 400, "invalid_request_error"),
)

ERROR_TABLE: Final[Mapping[int, str]] = {
    400: "A field is unknown, unsupported or out of range; a constraint cannot be used; a prompt is too long.",
    401: "The key is missing or wrong.",
    403: "A page of another origin, or a name that is not the endpoint's.",
    404: "There is no such path or model.",
    405: "The path has no such method.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    422: "No text was found that the constraint and its guard allow.",
    429: "Too many requests wait; `Retry-After` says when to come back.",
    500: "A failure of the server.",
    503: "The server is shutting down; `Retry-After` says when to come back.",
    504: "The time of the request is over.",
}
"""What each status says, for the description of the endpoint."""

# Names of `generate` and of its strategies, as requests have them.
_FIELDS: Final = {"num_return_sequences": "n", "sample": "n"}
LIMIT_FIELD: Final = "max_tokens"
"""The field with the most tokens of a text, unless a route calls it otherwise."""


def status_of(error: DecodekitError) -> int:
    """The HTTP status that an error is answered with."""
    return _kind_of(error)[0]


def _kind_of(error: DecodekitError) -> tuple[int, str]:
    if isinstance(error, errors.BodyLimitError) and error.at == "time":
        return 408, "timeout_error"
    if isinstance(error, errors.AccessError) and error.at in ("Host", "Origin"):
        return 403, "permission_error"
    if isinstance(error, errors.NotServedError) and error.at == "method":
        return 405, "invalid_request_error"
    fitting = ((status, kind) for classes, status, kind in _STATUSES if isinstance(error, classes))
    return next(fitting, (500, "server_error"))


def body_of(error: DecodekitError, limit_field: str = LIMIT_FIELD) -> dict[str, Any]:
    """An error in OpenAI's form; `limit_field` is what the request calls `max_new_tokens`."""
    status, kind = _kind_of(error)
    message = f"{error.code} {error.cause}"
    if error.at is not None and error.at not in error.cause:
        message += f" (at {error.at})"
    if error.hint is not None:
        message += f" Try {error.hint}."
    param = limit_field if isinstance(error, errors.LengthError) or error.at == "max_new_tokens" else error.at
    if status >= 500 or (param is not None and " " in param):  # "request 3" is a number of the engine's
        param = None
    param = _FIELDS.get(param or "", param)
    return {"error": {"message": message, "type": kind, "param": param, "code": error.code}}


def refused(error: DecodekitError, retry_s: int = 1, limit_field: str = LIMIT_FIELD) -> Response:
    """The answer to a request that ends with an error; see `body_of`."""
    status = status_of(error)
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(retry_s)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413, 503):
        headers["Connection"] = "close"
    return JSONResponse(body_of(error, limit_field), status, headers)
