"""The text of a document: of its bytes, of an HTML page, of a mail, of the pages of a PDF.

What cannot be read with certainty is a `DocumentError`, never a guess: bytes that are not of the encoding that is
declared, a page that is a picture, a protected file, more bytes than a document may have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from decodekit.errors import DocumentError
from decodekit.jobs.documents.encodings import plain_text
from decodekit.jobs.documents.files import File, needed
from decodekit.jobs.documents.html import html_text
from decodekit.jobs.documents.mail import mail_text
from decodekit.jobs.documents.pdf import pdf_text

HTML_SUFFIXES: Final = (".html", ".htm", ".xhtml")
PDF_SUFFIXES: Final = (".pdf",)
MAIL_SUFFIXES: Final = (".eml",)


@dataclass(frozen=True)
class TextFile:
    """A file that is one document."""

    file: File

    def text(self, offset: int, length: int, field: str, place: str) -> str:
        """The text of the whole file, which is never blank.

        Raises:
            DocumentError: it cannot be read, or has no text.
        """
        suffix, data = self.file.suffix, self.file.read(place)
        if suffix in PDF_SUFFIXES:
            text = pdf_text(data, place, self.file.max_bytes)
        else:
            read = html_text if suffix in HTML_SUFFIXES else mail_text if suffix in MAIL_SUFFIXES else plain_text
            text = read(data, place, self.file.encoding)
        return usable_text(text, place)

    def check(self) -> None:
        """Raise JobError if the package that reads files of this ending is not installed."""
        if self.file.suffix in PDF_SUFFIXES:
            needed("pypdf", "texts", f"{self.file.path} is a PDF")


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
