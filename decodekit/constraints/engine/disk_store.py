"""A store on disk, between processes, of what depends on a tokenizer alone: a folder of files with named arrays.

The folder is ``DECODEKIT_CACHE``, or ``decodekit`` in the user's cache folder; ``DECODEKIT_CACHE=off`` keeps nothing.
Nothing here is needed: a file that is missing, damaged or of another version is made anew, and where the folder cannot
be written each process works for itself. Whoever can write the folder decides which tokens are allowed, so it should
belong to the user.

A file is written beside its place and moved there, so that readers meet the old one or the new one, whole. It is read
rather than mapped: 5 MB take as long as three milliseconds, and a mapped file could change under the engine. It begins
with the SHA-256 of the rest, so damage is noticed before anything is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

import decodekit

VARIABLE: Final = "DECODEKIT_CACHE"
OFF: Final = "off"
KEPT_DAYS: Final = 30
"""When files are written, those that are older may be deleted; who needs one makes it again."""

_MAGIC: Final = b"decodekit arrays 1\n"

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_log = logging.getLogger("decodekit")


def root() -> Path | None:
    """The folder of the cache, which need not exist yet; None if nothing is to be kept."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return None if chosen == OFF else Path(chosen).expanduser()
    try:
        return _user_cache() / "decodekit"
    except RuntimeError:  # no home
        return None


def _user_cache() -> Path:
    """The cache folder of this user, by the platform's convention."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@lru_cache
def version_of(*sources: str) -> str:
    """The package's version and a digest of the source files that say what a kept array means."""
    digest = hashlib.sha256()
    for source in sources:
        with contextlib.suppress(OSError):  # packed without sources: the version has to do
            digest.update(Path(source).read_bytes())
    return f"{decodekit.__version__}-{digest.hexdigest()[:16]}"


class Store:
    """The files of one subject, such as a vocabulary, and of one version of what they mean; others are left alone."""

    def __init__(self, subject: str, version: str) -> None:
        self._key = {"subject": subject, "version": version}

    def path(self, name: str) -> Path | None:
        """The file of the arrays with a name; None if nothing is kept."""
        folder = root()
        return None if folder is None else folder / self._key["version"] / self._key["subject"] / f"{name}.arrays"

    def load(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """The arrays with a name, writable; None if they are not there or damaged."""
        path = self.path(name)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            return _unpack(data, {**self._key, "name": name})
        except ValueError as error:
            _log.warning("decodekit: %s is damaged (%s) and made anew", path, error)
            return None

    def save(self, name: str, arrays: Arrays) -> bool:
        """Keep arrays under a name, in place of those that it had; False if they cannot be kept."""
        path = self.path(name)
        if path is None:
            return False
        parts = _pack(arrays, {**self._key, "name": name})
        temporary = path.with_name(f"{name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.writelines(parts)
            os.replace(temporary, path)
        except OSError as error:
            _log.debug("decodekit: %s cannot be written: %s", path, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        _sweep(path.parents[2], path.parent)
        return True


def _sweep(folder: Path, current: Path) -> None:
    """Delete what was written long ago, by versions that are perhaps gone; nothing but files that are named as ours."""
    oldest = time.time() - KEPT_DAYS * 86_400
    for path in folder.glob("*/*/*.arrays"):
        with contextlib.suppress(OSError):  # another process may be faster
            if path.parent != current and path.stat().st_mtime < oldest:
                path.unlink()
                path.parent.rmdir()  # fails, and nothing is lost, while other files are there
                path.parent.parent.rmdir()


def _pack(arrays: Arrays, key: Mapping[str, str]) -> list[bytes]:
    """Magic, SHA-256 of what follows, length of the header, header, arrays."""
    little = {name: np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    entries = [[name, array.dtype.str, list(array.shape)] for name, array in little.items()]
    header = json.dumps({**key, "arrays": entries}).encode()
    body = [len(header).to_bytes(4, "little"), header]
    body += [array.tobytes() for array in little.values()]
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return [_MAGIC, digest.digest(), *body]


def _unpack(data: bytes, key: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a file.

    Raises:
        ValueError: the file is not what `_pack` wrote, or it was written for another key.
    """
    view = memoryview(data)
    start = len(_MAGIC) + 32
    if len(data) < start + 4 or data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as such files do")
    if hashlib.sha256(view[start:]).digest() != data[len(_MAGIC) : start]:
        raise ValueError("its checksum is wrong")
    stop = start + 4 + int.from_bytes(view[start : start + 4], "little")
    header = json.loads(data[start + 4 : stop])
    if any(header.get(word) != value for word, value in key.items()):
        raise ValueError("it belongs elsewhere")
    arrays = {}
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        # A copy: aligned, writable, and of this machine's byte order, as compiled code expects it.
        flat = np.frombuffer(view, dtype, count, stop).astype(dtype.newbyteorder("="))
        arrays[name] = flat.reshape(shape)
        stop += count * dtype.itemsize
    return arrays


def narrow(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers, none of them negative, in as few bytes as hold them."""
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))
