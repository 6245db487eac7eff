"""Every error of decodekit: a class for `except`, a stable code for logs, a message with place, cause and next step;
and warnings, at the caller's line.

Codes are grouped by hundred: 1xx output cut short, 2xx constraint, 3xx model, tokenizer and options, 4xx plug-ins,
5xx jobs, 6xx decoding, 7xx the engine, 8xx the endpoint. A code is never reused for another meaning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any


def warn(message: str, frameworks: Sequence[str] = ("decodekit",)) -> None:
    """Warn at the line that called into these packages."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in frameworks:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


class DecodekitError(Exception):
    """Base of all errors that decodekit raises on purpose.

    Args:
        cause: what was seen, in one sentence.
        at: where it was seen: a JSON Pointer, a file and line, an option name.
        hint: what to do next.
        code: a stable code such as ``"DK201"``; the default is the code of the class.
    """

    code: str = "DK000"

    def __init_subclass__(cls, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __init__(self, cause: str, *, at: str | None = None, hint: str | None = None, code: str | None = None) -> None:
        self.cause, self.at, self.hint = cause, at, hint
        if code is not None:
            self.code = code
        super().__init__(cause)

    def __str__(self) -> str:
        lines = [f"{self.code} {self.cause}"]
        if self.at is not None:
            lines.append(f"  at  {self.at}")
        if self.hint is not None:
            lines.append(f"  try {self.hint}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, str | None]:
        """Code, class, cause, place and next step, as data; `error_of` reads them back."""
        name = type(self).__name__
        return {"code": self.code, "error": name, "message": self.cause, "at": self.at, "hint": self.hint}

    def __reduce__(self) -> tuple[object, ...]:
        # Faults and remedies stay behind: they hold values of the caller's, which it may not be possible to pickle.
        kept = {name: value for name, value in vars(self).items() if name not in ("faults", "remedy")}
        return type(self), (self.cause,), kept


class LengthError(DecodekitError, code="DK101"):
    """The output was cut at ``max_new_tokens`` or by the end of the context; says if the constraint was satisfied."""


class ConstraintError(DecodekitError, code="DK200"):
    """A constraint cannot be used; base of the errors about schemas, patterns and grammars."""


class UnsupportedSchemaError(ConstraintError, code="DK201"):
    """A keyword or combination of keywords that is not enforced while decoding; refused by name and JSON Pointer."""


class UnsatisfiableError(ConstraintError, code="DK202"):
    """No text satisfies the constraint."""


class InvalidConstraintError(ConstraintError, code="DK203"):
    """The constraint is malformed: not a JSON Schema, a regex that does not parse, an empty list of choices."""


class NameNotFoundError(ConstraintError, code="DK204"):
    """A schema file, or a class in a module, was not found."""


class UnresolvableReferenceError(ConstraintError, code="DK205"):
    """A ``$ref`` points to nothing; references are never fetched from the network."""


class ResourceLimitError(ConstraintError, code="DK206"):
    """A constraint outgrew a stated bound on states, depth or repetitions."""


class InvalidValueError(ConstraintError, code="DK207"):
    """The text satisfies the constraint, and a validator refuses its value; `__cause__` is what it raised."""


class ModelError(DecodekitError, code="DK300"):
    """A model cannot be loaded or used."""


class VocabularyMismatchError(ModelError, code="DK301"):
    """The tokenizer does not belong to the model."""


class ChatTemplateError(ModelError, code="DK302"):
    """Messages were given and the tokenizer has no chat template."""


class DraftVocabularyError(VocabularyMismatchError, code="DK303"):
    """The draft model has another vocabulary than the target, and the strategy needs the same one."""


class ContextLengthError(ModelError, code="DK304"):
    """The prompt does not fit into the model's context."""


class OptionError(DecodekitError, code="DK305"):
    """Options that contradict each other or are out of range.

    Where several options are wrong at once, `faults` holds an error for each. `remedy` is what to write instead, as the
    value that `hint` tells (a `strategy.options.remedies.Remedy`), where one is known.
    """

    faults: tuple[DecodekitError, ...] = ()
    remedy: object = None


def out_of_domain(option: str, domain: str, value: object, *, hint: str | None = None) -> OptionError:
    """The fault of an option's value, in the one form that all of them have: what it must be, and what it is."""
    return OptionError(f"{option} must be {domain}, got {value!r:.60}", at=option, hint=hint)


class TooManyRowsError(OptionError, code="DK309"):
    """Rows of a cache, or what belongs to them, that memory cannot hold."""


def raise_faults(faults: Sequence[DecodekitError], what: str = "options") -> None:
    """Raise what was found: nothing, the only fault as it is, or all of them in one `OptionError` about `what`."""
    each = [one for fault in faults for one in (isinstance(fault, OptionError) and fault.faults) or (fault,)]
    if len(each) == 1:
        raise each[0]
    if each:
        lines = [str(fault).replace("\n", "\n    ") for fault in each]
        error = OptionError("\n  - ".join([f"{len(each)} {what} cannot be used:", *lines]))
        error.faults = tuple(each)
        raise error


@contextmanager
def collecting(
    faults: list[DecodekitError], kind: type[DecodekitError] | tuple[type[DecodekitError], ...] = DecodekitError
) -> Iterator[None]:
    """An error that is raised inside becomes one of the faults, and ends the block alone."""
    try:
        yield
    except kind as error:
        faults.append(error)


class UselessOptionError(OptionError, code="DK306"):
    """An option that would have no effect, such as a temperature with greedy decoding."""


class TokenizerError(ModelError, code="DK307"):
    """The bytes of the tokenizer's tokens cannot be known, so no text can be constrained with it."""


class UnknownNameError(DecodekitError, code="DK401"):
    """A strategy, processor or format name that is not installed; suggests the nearest one."""


class PluginError(UnknownNameError, code="DK402"):
    """A name is installed and what it stands for cannot be loaded, or is not what it should be."""


class JobError(DecodekitError, code="DK500"):
    """A job folder or its input cannot be used."""


class JobSettingsError(JobError, code="DK501"):
    """An output folder was made with other settings."""


class DocumentError(JobError, code="DK502"):
    """One document of a job cannot be used: empty, not UTF-8, repeated id, missing field."""


class OutputError(JobError, code="DK503"):
    """The output folder cannot be written: read-only, or the disk is full."""


class InvalidOutputError(JobError, code="DK504"):
    """The text that the model wrote for a document is not JSON, or breaks the schema."""


class AnswerError(JobError, code="DK505"):
    """Another engine that ran a document of a job gave no text for it: an error of its own, or a refusal."""


class DecodingError(DecodekitError, code="DK600"):
    """Decoding of one row had to stop; base of the errors below."""


class DeadEndError(DecodingError, code="DK601"):
    """No token is allowed and the text is not complete."""


class NonFiniteLogitsError(DecodingError, code="DK602"):
    """The model gave NaN or +inf logits."""


class ProcessorError(DecodingError, code="DK605"):
    """A logits processor gave rows of another shape, type or device, or NaN or +inf of finite logits."""


class ProposerError(DecodingError, code="DK606"):
    """A proposer gave something that is not a draft of the target's tokens."""


class GuardError(DecodingError, code="DK604"):
    """The guard of the constraint refused every text that was tried, as often as was allowed."""


class CacheFullError(DecodingError, code="DK603"):
    """The key-value cache has no room for what a request has to read; raised before anything has changed."""


class EngineError(DecodekitError, code="DK700"):
    """An engine cannot take or finish a request; base of the errors below."""


class QueueFullError(EngineError, code="DK701"):
    """As many requests wait as `max_waiting` allows."""


class EngineClosedError(EngineError, code="DK702"):
    """The engine was closed, belongs to another process, or ended by a failure of its own."""


class RequestInterruptedError(EngineError, code="DK710"):
    """A request ended before its text did; base of the errors below. `text` is the text so far."""

    text: str = ""


class RequestCancelledError(RequestInterruptedError, code="DK711"):
    """The request was cancelled."""


class RequestTimeoutError(RequestInterruptedError, code="DK712"):
    """The request took longer than its `timeout`."""


class EndpointError(DecodekitError, code="DK800"):
    """The endpoint cannot answer a request; base of the errors below."""


class InvalidRequestError(EndpointError, code="DK801"):
    """A request that is not JSON, has a field that is unknown or unsupported, or a value that is out of range."""


class NotServedError(EndpointError, code="DK802"):
    """A path, a method or a model that the endpoint does not have."""


class AccessError(EndpointError, code="DK803"):
    """A request without the key of the endpoint."""


class BodyLimitError(EndpointError, code="DK804"):
    """A body that is larger than the endpoint takes, or that comes too slowly."""


class ServerBusyError(EndpointError, code="DK805"):
    """As many requests are under way as the endpoint takes."""


class ShutdownError(EndpointError, code="DK806"):
    """The endpoint is shutting down."""


def error_of(told: Mapping[str, Any], otherwise: type[DecodekitError] = DecodekitError) -> DecodekitError:
    """The error that `DecodekitError.to_dict` told; of the class `otherwise` where its own is none of this module."""
    rest = {name: told[name] for name in ("at", "hint", "code")}
    kind = globals().get(told["error"])
    if isinstance(kind, type) and issubclass(kind, DecodekitError):
        with suppress(TypeError):  # a class that needs more to be made
            return kind(told["message"], **rest)
    return otherwise(told["message"], **rest)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device, the host or the cache has no room left."""
    # By name: `torch.OutOfMemoryError` is there since torch 2.5. The CPU allocator raises a bare RuntimeError.
    return (
        isinstance(error, MemoryError | CacheFullError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY))
    )


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
