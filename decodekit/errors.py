"""Every error of decodekit: a class for `except`, a stable code for logs, a message with place, cause and next step;
and warnings, at the caller's line.

Codes are grouped by hundred: 1xx output cut short, 2xx constraint, 3xx model, tokenizer and options, 4xx plug-ins,
5xx jobs, 6xx decoding, 7xx the engine, 8xx the
endpoint. A code is never reused for another meaning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


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

    def __reduce__(self) -> tuple[object, ...]:
        # `at`, `hint` and `code` are keyword-only, so the default pickling of exceptions would lose them.
        return _rebuild, (type(self), self.cause, self.at, self.hint, self.code)


def _rebuild(cls: type[DecodekitError], cause: str, at: str | None, hint: str | None, code: str) -> DecodekitError:
    return cls(cause, at=at, hint=hint, code=code)


class LengthError(DecodekitError):
    """The output was cut at ``max_new_tokens`` or by the end of the context; says if the constraint was satisfied."""

    code = "DK101"


class ConstraintError(DecodekitError):
    """A constraint cannot be used; base of the errors about schemas, patterns and grammars."""

    code = "DK200"


class UnsupportedSchemaError(ConstraintError):
    """A keyword or combination of keywords that is not enforced while decoding; refused by name and JSON Pointer."""

    code = "DK201"


class UnsatisfiableError(ConstraintError):
    """No text satisfies the constraint."""

    code = "DK202"


class InvalidConstraintError(ConstraintError):
    """The constraint is malformed: not a JSON Schema, a regex that does not parse, an empty list of choices."""

    code = "DK203"


class NameNotFoundError(ConstraintError):
    """A schema file, or a class in a module, was not found."""

    code = "DK204"


class UnresolvableReferenceError(ConstraintError):
    """A ``$ref`` points to nothing; references are never fetched from the network."""

    code = "DK205"


class ResourceLimitError(ConstraintError):
    """A constraint outgrew a stated bound on states, depth or repetitions."""

    code = "DK206"


class InvalidValueError(ConstraintError):
    """The text satisfies the constraint, and a validator refuses its value; `__cause__` is what it raised."""

    code = "DK207"


class ModelError(DecodekitError):
    """A model cannot be loaded or used."""

    code = "DK300"


class VocabularyMismatchError(ModelError):
    """The tokenizer does not belong to the model."""

    code = "DK301"


class ChatTemplateError(ModelError):
    """Messages were given and the tokenizer has no chat template."""

    code = "DK302"


class DraftVocabularyError(VocabularyMismatchError):
    """The draft model has another vocabulary than the target, and the strategy needs the same one."""

    code = "DK303"


class ContextLengthError(ModelError):
    """The prompt does not fit into the model's context."""

    code = "DK304"


class OptionError(DecodekitError):
    """Options that contradict each other or are out of range.

    Where several options are wrong at once, `faults` holds an error for each. `remedy` is what to write instead, as the
    value that `hint` tells (a `strategy.options.remedies.Remedy`), where one is known.
    """

    code = "DK305"
    faults: tuple[DecodekitError, ...] = ()
    remedy: object = None


def out_of_domain(option: str, domain: str, value: object, *, hint: str | None = None) -> OptionError:
    """The fault of an option's value, in the one form that all of them have: what it must be, and what it is."""
    return OptionError(f"{option} must be {domain}, got {value!r:.60}", at=option, hint=hint)


class TooManyRowsError(OptionError):
    """Rows of a cache, or what belongs to them, that memory cannot hold."""

    code = "DK309"


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


class UselessOptionError(OptionError):
    """An option that would have no effect, such as a temperature with greedy decoding."""

    code = "DK306"


class TokenizerError(ModelError):
    """The bytes of the tokenizer's tokens cannot be known, so no text can be constrained with it."""

    code = "DK307"


class UnknownNameError(DecodekitError):
    """A strategy, processor or format name that is not installed; suggests the nearest one."""

    code = "DK401"


class PluginError(UnknownNameError):
    """A name is installed and what it stands for cannot be loaded, or is not what it should be."""

    code = "DK402"


class JobError(DecodekitError):
    """A job folder or its input cannot be used."""

    code = "DK500"


class JobSettingsError(JobError):
    """An output folder was made with other settings."""

    code = "DK501"


class DocumentError(JobError):
    """One document of a job cannot be used: empty, not UTF-8, repeated id, missing field."""

    code = "DK502"


class OutputError(JobError):
    """The output folder cannot be written: read-only, or the disk is full."""

    code = "DK503"


class InvalidOutputError(JobError):
    """The text that the model wrote for a document is not JSON, or breaks the schema."""

    code = "DK504"


class AnswerError(JobError):
    """Another engine that ran a document of a job gave no text for it: an error of its own, or a refusal."""

    code = "DK505"


class DecodingError(DecodekitError):
    """Decoding of one row had to stop; base of the errors below."""

    code = "DK600"


class DeadEndError(DecodingError):
    """No token is allowed and the text is not complete."""

    code = "DK601"


class NonFiniteLogitsError(DecodingError):
    """The model gave NaN or +inf logits."""

    code = "DK602"


class ProcessorError(DecodingError):
    """A logits processor gave rows of another shape, type or device, or NaN or +inf of finite logits."""

    code = "DK605"


class ProposerError(DecodingError):
    """A proposer gave something that is not a draft of the target's tokens."""

    code = "DK606"


class GuardError(DecodingError):
    """The guard of the constraint refused every text that was tried, as often as was allowed."""

    code = "DK604"


class CacheFullError(DecodingError):
    """The key-value cache has no room for what a request has to read; raised before anything has changed."""

    code = "DK603"


class EngineError(DecodekitError):
    """An engine cannot take or finish a request; base of the errors below."""

    code = "DK700"


class QueueFullError(EngineError):
    """As many requests wait as `max_waiting` allows."""

    code = "DK701"


class EngineClosedError(EngineError):
    """The engine was closed, belongs to another process, or ended by a failure of its own."""

    code = "DK702"


class RequestInterruptedError(EngineError):
    """A request ended before its text did; base of the errors below. `text` is the text so far."""

    code = "DK710"
    text: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_interrupted, (type(self), self.cause, self.at, self.hint, self.code, self.text)


def _rebuild_interrupted(
    cls: type[RequestInterruptedError], cause: str, at: str | None, hint: str | None, code: str, text: str
) -> RequestInterruptedError:
    error = cls(cause, at=at, hint=hint, code=code)
    error.text = text
    return error


class RequestCancelledError(RequestInterruptedError):
    """The request was cancelled."""

    code = "DK711"


class RequestTimeoutError(RequestInterruptedError):
    """The request took longer than its `timeout`."""

    code = "DK712"


class EndpointError(DecodekitError):
    """The endpoint cannot answer a request; base of the errors below."""

    code = "DK800"


class InvalidRequestError(EndpointError):
    """A request that is not JSON, has a field that is unknown or unsupported, or a value that is out of range."""

    code = "DK801"


class NotServedError(EndpointError):
    """A path, a method or a model that the endpoint does not have."""

    code = "DK802"


class AccessError(EndpointError):
    """A request without the key of the endpoint."""

    code = "DK803"


class BodyLimitError(EndpointError):
    """A body that is larger than the endpoint takes, or that comes too slowly."""

    code = "DK804"


class ServerBusyError(EndpointError):
    """As many requests are under way as the endpoint takes."""

    code = "DK805"


class ShutdownError(EndpointError):
    """The endpoint is shutting down."""

    code = "DK806"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device, the host or the cache has no room left."""
    # By name: `torch.OutOfMemoryError` is there since torch 2.5. The CPU allocator raises a bare RuntimeError.
    return (
        isinstance(error, MemoryError | CacheFullError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY))
    )


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
