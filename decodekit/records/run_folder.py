"""A folder that one process at a time writes to."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import IO, Final

from decodekit.errors import JobError
from decodekit.records.ledger import open_own, output_error

LOCK: Final = ".lock"
_URL: Final = re.compile(r"[A-Za-z][\w+.-]+:/")
"""As `pathlib` leaves it of a URL; of more than a letter, which may be a drive."""


def lock_folder(path: Path) -> IO[str]:
    """Make a folder, if need be, and lock it until what is returned is closed, or the process ends in whatever way.

    Raises:
        JobError: another process has locked it, or it is a URL.
        OutputError: it cannot be made or written.
    """
    _refuse_url(path)
    file_path = path / LOCK
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(open_own(file_path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+", encoding="ascii")
    except OSError as error:
        raise output_error(path, error) from error
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read().strip()
        file.close()
        if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):  # a file system that has no locks
            raise output_error(file_path, error) from error
        cause = f"another run works in {path}" + (f" (process {owner})." if owner else ".")
        raise JobError(cause, hint="wait for it, stop it, or choose another folder with -o.") from error
    try:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
    except OSError as error:  # a full disk shows here first
        raise output_error(file_path, error) from error
    return file


def check_free(path: Path) -> None:
    """Say beforehand, by the errors of `lock_folder`, that another process works in a folder, or it cannot be written.

    A folder that there is not yet is not made; the one that it would be made in must be writable.
    """
    _refuse_url(path)
    if os.path.lexists(path):
        lock_folder(path).close()
        return
    parent = next(one for one in path.absolute().parents if os.path.lexists(one))
    code = None if parent.is_dir() else errno.ENOTDIR
    if code is None and not os.access(parent, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code is not None:
        raise output_error(path, OSError(code, os.strerror(code)))


def _refuse_url(path: Path) -> None:
    if _URL.match(path.as_posix()):
        cause = f"{path.as_posix().replace(':/', '://', 1)} is a URL, and a folder that is resumed must be a local one."
        raise JobError(cause, hint="a folder of this machine; its files can be copied when the run is done.")


def remove_files(path: Path, names: list[str]) -> None:
    """Remove those of the files that there are, in this order."""
    for name in names:
        try:
            (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise output_error(path / name, error) from error
