"""Exceptions that no part of decodekit raises on purpose: memory that ran out, or a fault of a request."""

from __future__ import annotations

import traceback

from decodekit.errors import DecodekitError, DecodingError, ProcessorError, ProposerError


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
    fault.__cause__ = _bare(error)
    return fault


def _bare(error: Exception) -> Exception:
    """An exception whose traceback is a note: a completion is kept for long, and frames would keep caches with it."""
    one: BaseException | None = error
    while one is not None:
        if one.__traceback__ is not None:
            one.add_note("".join(["Traceback of this:\n", *traceback.format_tb(one.__traceback__)]))
            one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
