"""The text of a document: plain UTF-8, the words of an HTML page, the pages of a PDF.

What cannot be read with certainty is a `DocumentError`, never a guess: bytes that are not of the encoding that is
declared, a page that is a picture, a protected file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from decodekit.errors import DocumentError
from decodekit.jobs.files import File, in_memory, needed

HTML_SUFFIXES: Final = (".html", ".htm", ".xhtml")
PDF_SUFFIXES: Final = (".pdf",)
_UTF_16_HINT: Final = "convert the file to UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW."
_OCR_HINT: Final = "read it by a program for pictures, such as ocrmypdf IN.pdf OUT.pdf, then `decodekit retry`."


@dataclass(frozen=True)
class TextFile:
    """A file that is one document."""

    file: File

    def text(self, offset: int, length: int, field: str, place: str) -> str:
        """The text of the whole file, which is never blank.

        Raises:
            DocumentError: it cannot be read, or has no text.
        """
        reader = _READERS.get(self.file.suffix, plain_text)
        return usable_text(reader(self.file.read(place), place), place)

    def check(self) -> None:
        """Raise JobError if the package that reads files of this ending is not installed."""
        if self.file.suffix in HTML_SUFFIXES:
            needed("bs4", "texts", f"{self.file.path} is HTML")
        if self.file.suffix in PDF_SUFFIXES:
            needed("pypdf", "texts", f"{self.file.path} is a PDF")


def plain_text(data: bytes, place: str) -> str:
    """Bytes as UTF-8, with or without a mark at the beginning; raises DocumentError."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("the text is UTF-16, not UTF-8.", at=place, hint=_UTF_16_HINT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cause = f"the text is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}."
        raise DocumentError(cause, at=place, hint="convert the file to UTF-8, then `decodekit retry`.") from error
    if "\0" in text:
        cause = "the file has NUL bytes, so it is no UTF-8 text but UTF-16 or data of a program."
        raise DocumentError(cause, at=place, hint=_UTF_16_HINT)
    return text


def usable_text(text: str, place: str) -> str:
    """The text itself; raises DocumentError if it is blank or no Unicode."""
    if not text.strip():
        raise DocumentError("the document is empty.", at=place)
    if not is_encodable(text):
        raise DocumentError("the text has half of a surrogate pair, which is no character.", at=place)
    return text


def is_encodable(text: str) -> bool:
    """Whether a text has a UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_UNSEEN: Final = ("script", "style", "template", "noscript", "svg", "math")
_LINES: Final = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|dir|div|fieldset|figcaption|figure|"
    "footer|form|h[1-6]|header|hr|html|legend|li|main|menu|nav|ol|option|p|pre|section|select|summary|table|tbody|"
    "textarea|tfoot|thead|title|tr|ul"
)
"""The elements that stand on lines of their own."""


def html_text(data: bytes, place: str) -> str:
    """The words of an HTML page as a reader sees them: a line for each block or row of a table, tabs between cells.

    The encoding is that of the byte order mark, else the one that the page declares, else UTF-8. Scripts, styles and
    comments are no text.

    Raises:
        DocumentError: the page is not of its encoding, or has no text.
    """
    bs4 = needed("bs4", "texts", "the document is HTML")
    from bs4.dammit import EncodingDetector

    declared = EncodingDetector.find_declared_encoding(data, is_html=True)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        declared = "utf-16"
    try:
        source = data.decode("utf-8-sig" if (declared or "utf-8").lower() in ("utf-8", "utf8") else str(declared))
    except (UnicodeError, LookupError) as error:
        said = f"it declares {declared!r}" if declared else "it declares no encoding, so it is UTF-8"
        raise DocumentError(f"the page cannot be decoded: {said}, and {error}.", at=place) from error
    soup = bs4.BeautifulSoup(source, "html.parser")
    for tag in soup.find_all(_UNSEEN):
        tag.decompose()
    for string in soup.find_all(string=True):
        if string.find_parent("pre") is None:
            string.replace_with(type(string)(re.sub(r"\s+", " ", string)))
    for tag in soup.find_all("br"):
        tag.replace_with("\n")
    for tag in soup.find_all(["td", "th"]):
        tag.append("\t")
    for tag in soup.find_all(lambda tag: _LINES.fullmatch(tag.name) is not None):
        tag.insert_before("\n")
        tag.append("\n")
    lines = (re.sub(r" ?\t ?", "\t", line).strip() for line in soup.get_text().split("\n"))
    text = "\n".join(line for line in lines if line)
    if not text:
        raise DocumentError("the page has no text: it is empty, or a program of the page writes it.", at=place)
    return text


def pdf_text(data: bytes, place: str) -> str:
    """The text of the pages of a PDF, with a blank line between them, as `pypdf` finds it.

    Raises:
        DocumentError: the file is broken or protected, or a page is a picture without text (a scan).
    """
    pypdf = needed("pypdf", "texts", "the document is a PDF")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it mends is no news, what it cannot is raised
    try:
        reader = pypdf.PdfReader(in_memory(data))
        is_locked = reader.is_encrypted and not reader.decrypt("")
        texts = [] if is_locked else [page.extract_text().strip() for page in reader.pages]
        pictures = [
            number
            for number, text in enumerate(texts, start=1)
            if not text and _has_picture(reader.pages[number - 1].get("/Resources"))
        ]
    except Exception as error:  # a broken file breaks the library in many ways
        cause = f"the PDF cannot be read: {type(error).__name__}: {error}"
        raise DocumentError(f"{cause:.300}.", at=place, hint="save it anew, then `decodekit retry`.") from error
    if is_locked:
        hint = "a copy without it: qpdf --decrypt --password=... IN.pdf OUT.pdf."
        raise DocumentError("the PDF is protected by a password.", at=place, hint=hint)
    if pictures:
        which = f"page {pictures[0]}" if len(pictures) == 1 else f"{len(pictures)} pages"
        cause = f"{which} of {len(texts)} of the PDF have no text but pictures: a scan."
        raise DocumentError(cause, at=f"{place}, page {pictures[0]}", hint=_OCR_HINT)
    if not any(texts):
        raise DocumentError(f"the PDF has no text on its {len(texts)} pages.", at=place, hint=_OCR_HINT)
    return "\n\n".join(text for text in texts if text)


def _has_picture(resources: Any, depth: int = 3) -> bool:
    """Whether a page shows an image, itself or by a form of it."""
    if resources is None or not depth:
        return False
    named = resources.get_object().get("/XObject")
    objects = [] if named is None else [one.get_object() for one in named.get_object().values()]
    return any(one.get("/Subtype") == "/Image" or _has_picture(one.get("/Resources"), depth - 1) for one in objects)


_READERS: Final[Mapping[str, Callable[[bytes, str], str]]] = {
    **dict.fromkeys(HTML_SUFFIXES, html_text),
    **dict.fromkeys(PDF_SUFFIXES, pdf_text),
}
