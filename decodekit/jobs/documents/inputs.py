"""The inputs of a job as they were named, and which files of a folder are documents.

    letters/    notes/ with --include '*.log' and --exclude drafts    rows.jsonl    s3://bucket/letters/

What is left out of a folder is noted. What the job has written itself is none of its documents, also where it writes
into their folder.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from decodekit.errors import JobError, OptionError
from decodekit.jobs.documents.encodings import check_encoding
from decodekit.jobs.documents.files import GZIP_SUFFIX, MAX_DOCUMENT_MB, File, files_of_url, is_url
from decodekit.jobs.documents.refused_formats import BY_SUFFIX, FOLDER_SUFFIXES
from decodekit.jobs.folder.file_names import JOB, is_own
from decodekit.records.run_folder import LOCK


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it was named: a path and how to read it.

    Attributes:
        path: as given, or a URL; also the beginning of the ids of text files.
        id_field, text_field: fields of JSON lines, columns of tables.
        folder: the folder that a relative `path` starts from.
        name: the beginning of the ids instead of `path`, for what is saved in the job folder: standard input, or
            documents of a Python program.
        max_document_mb: mebibytes of each document after it is unpacked; a larger one has failed.
        include: patterns of further files of a folder that are documents, such as ``*.log``. Without a slash, a pattern
            is that of a file, or of a folder for all that is in it; with one, of a path below the folder. Case does not
            matter; what begins with a dot is meant by a pattern that does.
        exclude: patterns of files of a folder that are none.
        encoding: of texts that declare none: a name, ``auto`` or ``auto:NAME``; see `encodings`.

    Raises:
        OptionError: there is no such encoding, or no document could be so small.
    """

    path: str
    id_field: str = "id"
    text_field: str = "text"
    folder: str = "."
    name: str = ""
    max_document_mb: float = MAX_DOCUMENT_MB
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if not 0 < self.max_document_mb < float("inf"):
            cause = f"max_document_mb={self.max_document_mb:g} is no size of a document"
            raise OptionError(cause, at="max_document_mb", hint="64, or more")
        for name in ("include", "exclude"):  # a list, where they were read from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def file(self, path: str) -> File:
        """One of its files."""
        return File(path, int(self.max_document_mb * (1 << 20)), self.encoding)

    @property
    def location(self) -> Path:
        """The path of the input."""
        return Path(self.folder) / self.path

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL, which starts from no folder."""
        return is_url(self.path)

    @property
    def label(self) -> str:
        """The beginning of the ids of its documents."""
        return self.name or (self.path if self.is_remote else Path(self.path).as_posix())

    @property
    def fields(self) -> set[str]:
        """Names that the columns of a table of documents may have."""
        return {self.id_field.lower(), self.text_field.lower(), "id", "text"}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The parts of the inputs that are not documents, or are done once though they were named twice.

    Attributes:
        skipped: files in folders that are not text files or are excluded, and so are not documents.
        hidden: files in folders whose name, or that of a folder on the way, begins with a dot.
        outside: links in folders that lead to files outside of them or to none, and so are not documents.
        repeated: files that were named before, by another input or another spelling; each is done once.
    """

    skipped: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def way(self) -> str:
        """The options that take what was skipped, such as ``"--include '*.log'"``; empty if nothing was."""
        names = [PurePosixPath(name.lower().removesuffix(GZIP_SUFFIX)) for name in self.skipped]
        kinds = Counter(
            f"*{name.suffix}" if name.suffix else name.name for name in names if name.suffix not in BY_SUFFIX
        )
        return " ".join(f"--include {shlex.quote(kind)}" for kind, _ in kinds.most_common(4))

    @property
    def skipped_kinds(self) -> str:
        """The numbers of skipped files by ending, such as ``"2 .csv, 1 .pdf"``."""
        kinds = Counter(PurePosixPath(name).suffix.lower() or "without an ending" for name in self.skipped)
        shown = [f"{count} {kind}" for kind, count in kinds.most_common(4)]
        return ", ".join([*shown, "..."] if len(kinds) > 4 else shown)


def without_own(inputs: Sequence[Input], output: Path) -> tuple[list[Input], list[str]]:
    """The inputs but for what the job has written into its own folder, and the names of that.

    With ``-o letters``, ``letters/*`` names the files of the job, too, when the command is run again. Raises JobError
    if there is nothing else, or a document has the name of a file that the job would write.
    """
    place, is_job = os.path.realpath(output), (output / JOB).exists()
    kept: list[Input] = []
    own: list[str] = []
    for source in inputs:
        if source.is_remote or source.name or not source.path:
            kept.append(source)
            continue
        location = Path(os.path.realpath(source.location))
        is_folder = location.is_dir()
        if is_folder:
            is_around = Path(place).is_relative_to(location) and os.path.isdir(place)
            names = os.listdir(place) if is_around else []
        else:
            names = [location.name] if str(location.parent) == place else []
        taken = sorted(filter(is_own, names))
        if taken and not is_job:
            at = str(output / taken[0])
            cause = f"{at} is a file of the inputs, and the job would write its own in its place."
            raise JobError(cause, at=at, hint="another folder with -o, or another name for this file")
        if is_folder:
            is_written = (location / JOB).exists() and not _files_of(source, LeftOut())
        else:
            is_written = bool(taken)
        if is_written:
            own.append(source.label)
        else:
            kept.append(source)
    if own and not kept:
        raise JobError(f"{own[0]} is what a job has written, and there are no other inputs.", hint="the documents")
    return kept, own


def paths_of(source: Input, found: LeftOut) -> tuple[list[str], bool]:
    """The files of an input, and whether it is a folder; those of a folder that are not documents are noted."""
    if source.is_remote:
        paths, is_folder = files_of_url(source.path, found.outside)
        if is_folder:
            begin = len(source.path.rstrip("/")) + 1
            paths = [path for path in paths if _takes(source, path[begin:], found)]
        return paths, is_folder
    if source.name and source.location.is_symlink():
        cause = f"{source.location} is a link, and a job saves its documents as files of its own."
        raise JobError(cause, at=str(source.location), hint="the file itself in its place")
    mode = source.location.stat().st_mode
    if stat.S_ISDIR(mode):
        return [str(path) for path in _files_of(source, found)], True
    if not stat.S_ISREG(mode):
        cause = f"{source.path!r} is a pipe or a device, and documents are read more than once."
        raise JobError(cause, hint=f"standard input: cat {source.path} | decodekit extract - ...")
    return [str(source.location)], False


def name_in(source: Input, path: str) -> str:
    """The name of a file of an input."""
    if source.is_remote or Path(path) == source.location:
        return path if source.is_remote else source.label
    return f"{source.label}/{Path(path).relative_to(source.location).as_posix()}"


def _files_of(source: Input, found: LeftOut) -> list[Path]:
    """The documents of a folder; other files are noted, and so are pipes, and links that lead out of it or nowhere."""
    folder, paths, root = source.location, [], source.location.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.name == LOCK or (is_own(path.name) and (path.parent / JOB).exists()):
            continue  # of a job, and came out of documents
        relative = path.relative_to(folder).as_posix()
        if not _takes(source, relative, found):
            continue
        if path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(root)):
            # Whoever fills the folder would choose what else is read.
            found.outside.append(f"{source.label}/{relative}")
        elif not path.is_file():
            found.skipped.append(f"{source.label}/{relative}")
        else:
            paths.append(path)
    return paths


def _takes(source: Input, path: str, found: LeftOut) -> bool:
    """Whether a file of a folder, by its path below it, is a document; what is none, and not excluded, is noted."""
    if _matches(path, source.exclude):
        return False
    name = f"{source.label.rstrip('/')}/{path}"
    is_hidden = any(part.startswith(".") for part in path.split("/"))
    if is_hidden and not _matches(path, [one for one in source.include if one.startswith(".") or "/." in one]):
        found.hidden.append(name)
        return False
    if is_hidden or File(path).suffix in FOLDER_SUFFIXES or _matches(path, source.include):
        return True
    found.skipped.append(name)
    return False


def _matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is that of a path; see `Input.include`."""
    path = path.lower()
    whole, parts = {path, path.removesuffix(GZIP_SUFFIX)}, set(path.split("/"))
    parts.add(path.rpartition("/")[2].removesuffix(GZIP_SUFFIX))
    lower = (pattern.lower() for pattern in patterns)
    return any(fnmatch.fnmatchcase(one, pattern) for pattern in lower for one in (whole if "/" in pattern else parts))
