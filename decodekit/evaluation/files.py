"""Writing what was found to files."""

from __future__ import annotations

from pathlib import Path

from decodekit.errors import OutputError


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, with the folders above it.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise OutputError(f"the file cannot be written: {error.strerror or error}", at=str(path)) from error
