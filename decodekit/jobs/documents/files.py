"""A file of documents, wherever it lies: on a disk, compressed, or behind a URL that fsspec opens.

    letters/a.txt      notes.jsonl.gz      s3://bucket/prices.parquet      memory://rows.csv

A URL is read where it lies; nothing is copied. Bytes of a compressed or remote file are read forward from a handle that
stays open, because documents come in the order of their file.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, cast

from decodekit.errors import DocumentError, JobError

GZIP_SUFFIX: Final = ".gz"
MAX_DOCUMENT_MB: Final = 64.0
"""Mebibytes of a document after it is unpacked, unless the user says otherwise."""
MAX_DOCUMENT_BYTES: Final = int(MAX_DOCUMENT_MB * (1 << 20))
_URL: Final = re.compile(r"[A-Za-z][\w+.-]+://")
_PACKAGES: Final = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
"""The packages that open URLs, by protocol."""
_BROKEN: Final = (OSError, EOFError, zlib.error)  # gzip raises each of these for a file that is cut or none


def is_url(path: str) -> bool:
    """Whether a path names its protocol, as ``s3://bucket/a.jsonl`` does."""
    return _URL.match(path) is not None


def needed(package: str, extra: str, why: str) -> Any:
    """A package of an extra; raises JobError with the line that installs it, where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = f"pip install 'decodekit[{extra}]'"
        raise JobError(f"{why}, and the package {package.partition('.')[0]} is not installed.", hint=hint) from error


@dataclass(frozen=True)
class File:
    """A file by its path or URL.

    Attributes:
        path: of the file system, or with a protocol.
        max_bytes: of a document that is in it.
        encoding: of what declares none; see `encodings.plain_text`.
    """

    path: str
    max_bytes: int = MAX_DOCUMENT_BYTES
    encoding: str = "utf-8"
    _handle: list[BinaryIO] = field(default_factory=list, compare=False, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether it lies behind a URL."""
        return is_url(self.path)

    @property
    def suffix(self) -> str:
        """The ending of its name in small letters, without that of the compression."""
        name = PurePosixPath(self.path) if self.is_remote else Path(self.path)
        is_compressed = name.suffix.lower() == GZIP_SUFFIX
        return (name.with_suffix("") if is_compressed else name).suffix.lower()

    @property
    def is_compressed(self) -> bool:
        """Whether its bytes are those of gzip, by its name."""
        return self.path.lower().endswith(GZIP_SUFFIX)

    def open(self) -> BinaryIO:
        """The bytes, uncompressed, for reading and seeking."""
        if not self.is_remote:
            return cast(BinaryIO, gzip.open(self.path)) if self.is_compressed else Path(self.path).open("rb")
        fsspec = needed("fsspec", "texts", f"{self.path} is remote")
        raw = cast(BinaryIO, _asked(self.path, lambda: fsspec.open(self.path, "rb").open()))
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self.is_compressed else raw

    def read(self, place: str, offset: int = 0, length: int = -1) -> bytes:
        """Some of the bytes; by default all of them, as one document. Raises DocumentError if that cannot be had."""
        try:
            if length < 0:
                with self.open() as file:
                    file.seek(offset)
                    data = file.read(self.max_bytes + 1)
                if len(data) > self.max_bytes:
                    raise too_large(place, self.max_bytes)
                return data
            if not (self.is_remote or self.is_compressed):
                with self.open() as file:
                    file.seek(offset)
                    return file.read(length)
            if not self._handle:
                self._handle.append(self.open())
            self._handle[0].seek(offset)
            return self._handle[0].read(length)
        except _BROKEN as error:
            raise DocumentError(f"the file cannot be read: {reason(error)}.", at=place) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": []}  # an open file stays in its process


def reason(error: Exception) -> str:
    """The words of an operating system, or of gzip, for an error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def too_large(place: str, max_bytes: int, what: str = "document") -> DocumentError:
    """The error of a document that has more bytes than it may have."""
    cause = f"the {what} is larger than {mebibytes(max_bytes)}."
    return DocumentError(cause, at=place, hint="parts of it as documents of their own, or a larger --max-document-mb")


def mebibytes(num_bytes: int) -> str:
    """A number of bytes in words: ``"64 MiB"``."""
    return f"{round(num_bytes / (1 << 20), 4):,g} MiB"


def _asked(url: str, call: Any) -> Any:
    """The answer of a file system. Whatever its package raises becomes an OSError with its words."""
    try:
        return call()
    except (OSError, JobError):
        raise
    except ImportError as error:
        protocol = url.partition("://")[0].lower()
        hint = f"pip install {_PACKAGES.get(protocol, 'the package that it names')}"
        raise JobError(f"{url} cannot be opened: {error}.", at=url, hint=hint) from error
    except ValueError as error:  # an unknown protocol
        raise JobError(f"{url} cannot be opened: {error}.", at=url, hint="a protocol that fsspec knows") from error
    except Exception as error:
        raise OSError(0, f"{type(error).__name__}: {error}") from error


def files_of_url(url: str, outside: list[str]) -> tuple[list[str], bool]:
    """The files at a URL, sorted, and whether it is a folder, whose links go to `outside`; OSError if there is
    nothing."""
    fsspec = needed("fsspec", "texts", f"{url} is remote")

    def find() -> tuple[list[str], bool]:
        system, path = fsspec.core.url_to_fs(url)
        if system.isfile(path):
            return [url], False
        details = system.find(path, detail=True)
        if not details and not system.isdir(path):
            raise FileNotFoundError(2, os.strerror(2))
        names = {one: url.rstrip("/") + one[len(path.rstrip("/")) :] for one in sorted(details)}
        links = [name for one, name in names.items() if details[one].get("islink")]
        outside.extend(links)
        return [name for name in names.values() if name not in links], True

    return cast("tuple[list[str], bool]", _asked(url, find))
