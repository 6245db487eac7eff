"""An append-only file of JSON lines that survives `kill -9`, a power cut and a full disk.

What always holds, whatever happens to the process:

- every line but the last is complete, because a line goes to the file with one `write` on a descriptor in append mode,
  and a write that fails half-way is cut back to the length before it;
- a torn last line (killed inside the `write`, or pages lost in a power cut) is cut off when the file is opened again;
- a line that is not a row for another reason (an edit by hand, a bad disk) is an error that names it, or, where
  the owner of the file says what a row is, is left out when the file is read and moved to a file of its own when it is
  opened for writing;
- `rewrite` replaces the file in one step: a reader sees the old lines or the new ones.

A line is safe against the death of the process as soon as `append` returns (it is in the page cache), and safe against
the death of the machine after the next `fsync`: `sync_interval_s` later, or later still on a disk so slow that `fsync`
would take more than a twentieth of the time.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from decodekit.errors import JobError, OutputError
from decodekit.records.strict_json import read_json

Record: TypeAlias = dict[str, Any]
"""A JSON object: one line of a file."""

_SYNC_SHARE = 20  # at most one part in 20 of the time goes to `fsync`


_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a file of a folder that may have come from elsewhere: a file, never a link or a pipe.

    A link would have what is read or written be chosen by whoever made the folder. Raises OSError for these, too.
    """
    try:
        descriptor = os.open(path, flags | _NO_LINK, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and has to be a file of this folder") from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no file")


def encode_line(row: Mapping[str, object]) -> bytes:
    """One row as a line of UTF-8 JSON, line feed included. Raises ValueError for NaN and infinities."""
    try:
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate ("\ud800" in the JSON a model wrote) has no UTF-8 form; as an escape it survives.
        return json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that is not a row: its number, from 1, and what is wrong with it."""

    number: int
    why: str


Check: TypeAlias = Callable[[Record], str | None]
"""Says what is wrong with a row; None if nothing is. It is asked about the rows of one file in order."""


def read_rows(path: Path, check: Check | None = None, damaged: list[Damage] | None = None) -> Iterator[Record]:
    """The complete rows of a ledger that another process may be writing; a torn tail is left out. A missing file has
    none.

    `check` says what is a row, besides being a JSON object. Lines that are not are left out and told to `damaged`;
    without it they are a JobError, but for a tail that no good line follows.
    """
    return (row for _, row in _scan(path, check, damaged))


def _scan(path: Path, check: Check | None = None, damaged: list[Damage] | None = None) -> Iterator[tuple[int, Record]]:
    """(offset after the line, row) of every good line. Blank lines are passed over."""
    bad_lines: list[Damage] = []  # they are a torn tail, unless something good follows
    offset = 0
    try:
        file = os.fdopen(open_own(path), "rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror}.", at=str(path)) from error
    with file:
        for number, line in enumerate(file, start=1):
            offset += len(line)
            row = _decode_line(line)
            if row is None:
                if line.strip():
                    bad_lines.append(Damage(number, "it is not a JSON object"))
                continue
            if bad_lines:
                if damaged is None:
                    cause = f"line {bad_lines[0].number} is not a JSON object, though good lines follow it."
                    hint = "remove or mend that line; only the end of the file can be torn by a kill."
                    raise JobError(cause, at=f"{path}:{bad_lines[0].number}", hint=hint)
                damaged += bad_lines
                bad_lines = []
            why = None if check is None else check(row)
            if why is None:
                yield offset, row
            elif damaged is None:
                cause = f"line {number} is no row: {why}."
                raise JobError(cause, at=f"{path}:{number}", hint="remove or mend that line.")
            else:
                damaged.append(Damage(number, why))


def _decode_line(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = read_json(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


class Ledger:
    """An open JSONL file for appending, made when missing. One process at a time (the job folder's lock sees to it).

    Args:
        sync_interval_s: how long lines wait for `fsync` while rows keep coming; infinity: until `close`.
        new_check: makes a `Check` for a reading of the file, if lines may be damaged; else they are a JobError.
        damaged_path: where damaged lines are moved on opening, with `new_check`.

    Attributes:
        num_torn_bytes: how many bytes of a torn tail were cut off on opening.
        damaged: the lines that were moved away on opening.
    """

    def __init__(
        self,
        path: Path,
        *,
        sync_interval_s: float = 1.0,
        new_check: Callable[[], Check] | None = None,
        damaged_path: Path | None = None,
    ) -> None:
        self.path = path
        self._new_check = new_check
        self._damaged_path = damaged_path
        self.damaged: list[Damage] = []
        self._sync_interval_s = self._pause_s = sync_interval_s
        self._synced_at = time.monotonic()
        self._is_dirty = False
        self.num_torn_bytes = self._open()

    def _open(self) -> int:
        """Cut off what is torn, move away what is damaged; how many bytes were cut off."""
        self._size = 0
        found: list[Damage] = []
        for offset, _ in self._scanned(found):
            self._size = offset  # of the end of the last good line
        if found:
            self._move_away({one.number for one in found})
            self.damaged += found
            return self._open()
        try:
            self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            num_torn_bytes = os.fstat(self._descriptor).st_size - self._size
            if num_torn_bytes:
                os.ftruncate(self._descriptor, self._size)
                os.fsync(self._descriptor)
        except OSError as error:
            raise output_error(self.path, error) from error
        return num_torn_bytes

    def _scanned(self, damaged: list[Damage]) -> Iterator[tuple[int, Record]]:
        return _scan(self.path) if self._new_check is None else _scan(self.path, self._new_check(), damaged)

    def _move_away(self, numbers: set[int]) -> None:
        """Take lines out of the file, after they are safe in that of damaged ones; the others stay byte for byte."""
        assert self._damaged_path is not None
        try:
            descriptor = open_own(self._damaged_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file, self.path.open("rb") as old:
                file.writelines(line for number, line in enumerate(old, start=1) if number in numbers)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise output_error(self._damaged_path, error) from error
        with self.path.open("rb") as old:
            replace_file(self.path, (line for number, line in enumerate(old, start=1) if number not in numbers))

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row. Either the whole line is in the file, or none of it and an OutputError is raised."""
        line = encode_line(row)
        try:
            written = 0
            while written < len(line):  # a full disk gives a short write first, then ENOSPC
                written += _write(self._descriptor, line[written:])
        except BaseException as error:
            with suppress(OSError):  # a disk that is gone, too; the line is cut off when the file is opened again
                os.ftruncate(self._descriptor, self._size)
            if isinstance(error, OSError):
                raise output_error(self.path, error) from error
            raise
        self._size += len(line)
        self._is_dirty = True
        if time.monotonic() - self._synced_at >= self._pause_s:
            self.sync()

    def rows(self) -> Iterator[Record]:
        """All rows, in the order in which they were appended."""
        return (row for _, row in self._scanned([]))

    def rewrite(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Replace all rows in one step; a kill leaves either the old file or the new one."""
        replace_file(self.path, (encode_line(row) for row in rows))
        os.close(self._descriptor)
        self._open()
        self._is_dirty = False

    def sync(self) -> None:
        """Make every appended line safe against a power cut; OutputError if the file has gone or the disk does not take
        them."""
        if not self._is_dirty:
            return
        started = time.monotonic()
        try:
            os.fsync(self._descriptor)
            is_here = os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError as error:
            raise output_error(self.path, error) from error
        if not is_here:
            cause = f"{self.path.name} was replaced while it was written to; what came since is lost."
            hint = "run the same command again, with nobody else at work in the folder."
            raise OutputError(cause, at=str(self.path), hint=hint)
        self._is_dirty = False
        self._synced_at = time.monotonic()
        self._pause_s = max(self._sync_interval_s, _SYNC_SHARE * (self._synced_at - started))

    def close(self) -> None:
        """Sync and close. The ledger cannot be used afterwards."""
        try:
            self.sync()
        finally:
            os.close(self._descriptor)


def _write(descriptor: int, data: bytes) -> int:
    return os.write(descriptor, data)


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file in one step: a new file beside it, synced, then renamed over it. On an OutputError the old file is
    untouched."""
    if path.name in ("", ".."):
        raise OutputError(f"{str(path)!r} is a folder, not a file.", at=str(path), hint="the path of a file.")
    temporary = new_file(path)
    try:
        with os.fdopen(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name == "posix":  # Windows cannot open a folder; there the rename itself is journalled
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        with suppress(OSError):  # on a disk that cannot be written, nothing can be removed either
            temporary.unlink(missing_ok=True)
        raise output_error(path, error) from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file with the folders above it; a link or a device stays what it is, unlike with `replace_file`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise output_error(path, error) from error


def new_file(path: Path) -> Path:
    """The file that `replace_file` writes before it takes the place of `path`."""
    return path.with_name(f".{path.name}.new")


def output_error(path: Path, error: OSError) -> OutputError:
    """The typed error for an operating system error on an output path."""
    cause, why = f"{path.name} cannot be written", error.strerror or error
    hint = "check the path given with -o, then run the same command again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"no space left for {path.name}"
        hint = "make room and run the same command again: everything written so far is kept and is not done twice."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "choose a folder with -o that you may write to."
    return OutputError(f"{cause} ({why}).", at=str(path), hint=hint)
