"""What an exception means that no part of decodekit raises on purpose: memory that ran out, or a fault of a request."""

from __future__ import annotations

from decodekit.errors import CacheFullError, DecodekitError, DecodingError, ProcessorError, ProposerError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device, the host or the cache has no room left."""
    # By name: `torch.OutOfMemoryError` is there since torch 2.5. The CPU allocator raises a bare RuntimeError.
    return (
        isinstance(error, MemoryError | CacheFullError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES))
    )


_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")


def fault_of(error: Exception, where: str, at: str | None = None) -> DecodekitError:
    """The error of a request whose own code raised; one of decodekit's stays as it is.

    Args:
        error: what was raised; it becomes the cause.
        where: "proposer", "decoding" or what else failed.
        at: the place.
    """
    if isinstance(error, DecodekitError):
        return error
    kind: type[DecodekitError] = {"proposer": ProposerError, "processor": ProcessorError}.get(where, DecodingError)
    fault = kind(
        f"{where} raised {type(error).__name__}: {str(error)[:200]}",
        at=at,
        hint="processors, proposers and constraints of your own; the traceback is in __cause__",
    )
    fault.__cause__ = error
    return fault
