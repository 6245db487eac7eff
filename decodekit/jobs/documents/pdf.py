"""The text of a PDF, read in a process of its own with a limit of time and of memory.

A PDF is a program: a kilobyte may hold millions of operators, its pages may share them, its forms may call one another.
So `pypdf` runs where it may be ended::

    job                       process (decodekit.jobs.documents.pdf.serve)
    {"num_bytes": ...}, PDF   ->   pypdf
                              <-   {"text": ...} or {"fault": [cause, at, hint]}
    no answer                      the limit of time or memory: the document has failed, another process takes its place

The process starts with the first PDF, reads one after the other, and ends with the program.
"""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, BinaryIO, Final, cast

from decodekit.errors import DocumentError
from decodekit.jobs.documents.files import MAX_DOCUMENT_BYTES, mebibytes

MAX_SECONDS: Final = 60.0
"""Of processor time for a PDF; a page of a book takes about a hundredth of a second."""
MAX_MEMORY: Final = 2 << 30
"""Bytes of memory, the process itself included."""

_WALL: Final = 5  # times as long by the clock: other programs want the processors, too
_OCR_HINT: Final = "read it by a program for pictures, such as ocrmypdf IN.pdf OUT.pdf, then `decodekit retry`."
_TEXT_HINT: Final = "its text by another program: pdftotext IN.pdf OUT.txt."
_START: Final = "import sys; sys.path += sys.argv[1:]; from decodekit.jobs.documents.pdf import serve; serve()"

_lock = threading.Lock()
_processes: dict[int, subprocess.Popen[bytes]] = {}  # by the process that has started it: a fork starts its own


def pdf_text(data: bytes, place: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """The text of the pages of a PDF, with a blank line between them, as `pypdf` finds it. Raises DocumentError if it
    is broken or protected, a scan, larger than `max_bytes`, or takes too long to read."""
    with _lock:
        process = _processes.get(os.getpid())
        if process is None or process.poll() is not None:
            process = _processes[os.getpid()] = _started()
        answer = _asked(process, data, max_bytes)
        if answer is None:
            process.kill()
            process.wait()
    if answer is None:
        cause = f"the PDF takes more than {MAX_SECONDS:g} s of processor time, or {mebibytes(MAX_MEMORY)}, to read."
        raise DocumentError(cause, at=place, hint=_TEXT_HINT)
    if "fault" in answer:
        cause, at, hint = answer["fault"]
        raise DocumentError(cause, at=f"{place}, {at}" if at else place, hint=hint)
    return str(answer["text"])


def _started() -> subprocess.Popen[bytes]:
    """A process that reads PDFs, without the current folder among those that modules are taken from."""
    paths = [os.path.abspath(path) for path in sys.path if path]
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _START, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the keyboard is the job's
    )


def _asked(process: subprocess.Popen[bytes], data: bytes, max_bytes: int) -> dict[str, Any] | None:
    """The answer of the process for a PDF; None if it ends before it has one."""
    to, back = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    timer = threading.Timer(_WALL * MAX_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        asked = {"num_bytes": len(data), "max_bytes": max_bytes, "seconds": MAX_SECONDS, "memory": MAX_MEMORY}
        to.write(json.dumps(asked).encode() + b"\n")
        to.write(data)
        to.flush()
        line = back.readline()
    except BrokenPipeError:
        return None
    except BaseException:
        process.kill()  # what it has read of the PDF is not whole
        raise
    finally:
        timer.cancel()
    return cast("dict[str, Any]", json.loads(line)) if line.endswith(b"\n") else None


# --- in the process ---------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer what comes by stdin until it ends."""
    while line := sys.stdin.buffer.readline():
        asked = json.loads(line)
        _limit(asked["seconds"], asked["memory"])
        data = sys.stdin.buffer.read(asked["num_bytes"])
        try:
            answer = _read(data, asked["max_bytes"])
        except MemoryError:
            return  # without an answer
        sys.stdout.buffer.write(json.dumps(answer).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()


def _limit(seconds: float, memory: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _read(data: bytes, max_bytes: int) -> dict[str, Any]:
    """The text of a PDF, or why it has none."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it mends is no news, what it cannot is raised
    texts: list[str] = []
    pictures: list[int] = []
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            hint = "a copy without it: qpdf --decrypt --password=... IN.pdf OUT.pdf."
            return {"fault": ["the PDF is protected by a password.", None, hint]}
        for number, page in enumerate(reader.pages, start=1):
            texts.append(page.extract_text().strip())
            max_bytes -= len(texts[-1].encode("utf-8", "surrogatepass"))
            if max_bytes < 0:
                cause = "the text of the PDF is larger than a document may be."
                return {"fault": [cause, f"page {number}", "--max-document-mb"]}
            if not texts[-1] and _has_picture(page.get("/Resources")):
                pictures.append(number)
    except MemoryError:
        raise
    except Exception as error:  # a broken file breaks the library in many ways
        cause = f"the PDF cannot be read: {type(error).__name__}: {error}"
        return {"fault": [f"{cause:.300}.", None, "save it anew, then `decodekit retry`."]}
    if pictures:
        which = f"page {pictures[0]}" if len(pictures) == 1 else f"{len(pictures)} pages"
        cause = f"{which} of {len(texts)} of the PDF have no text but pictures: a scan."
        return {"fault": [cause, f"page {pictures[0]}", _OCR_HINT]}
    if not any(texts):
        return {"fault": [f"the PDF has no text on its {len(texts)} pages.", None, _OCR_HINT]}
    return {"text": "\n\n".join(text for text in texts if text)}


def _has_picture(resources: Any, depth: int = 3) -> bool:
    """Whether a page shows an image, itself or by a form of it."""
    if resources is None or not depth:
        return False
    named = resources.get_object().get("/XObject")
    objects = [] if named is None else [one.get_object() for one in named.get_object().values()]
    return any(one.get("/Subtype") == "/Image" or _has_picture(one.get("/Resources"), depth - 1) for one in objects)
