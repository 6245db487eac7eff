"""A mail as a text: who wrote it to whom, when and about what, then its words; what is not text by its name.

    From: Ann <ann@example.org>
    Subject: Rechnung A-17

    Please pay 40.20 EUR.
    [attachment: A-17.pdf]

Of parts that are alternatives the plain one is read, else the HTML one. A part is divided once for each part that it is
in, and both numbers have bounds, so the work is linear in the mail (RFC 2045 to 2047, 2183, 5322).
"""

from __future__ import annotations

import binascii
import quopri
import re
from collections.abc import Iterator
from email.message import Message
from typing import Final, NamedTuple

from decodekit.errors import DocumentError
from decodekit.jobs.documents.encodings import is_encoding, plain_text
from decodekit.jobs.documents.html import page_source, page_words

MAX_PARTS: Final = 1_000
MAX_DEPTH: Final = 20
MAX_HEAD: Final = 1 << 20
"""Bytes of the fields of all parts."""
MAX_TYPE: Final = 4_096
"""Characters of a field that says the type of a part: Python's reader of its parameters takes quadratic time."""

_SHOWN: Final = ("From", "To", "Cc", "Date", "Subject")
_OF_MAILS: Final = re.compile(rb"(?im)^(?:from|to|cc|date|subject|received|message-id|mime-version|content-type):")
_NUM_SNIFFED: Final = 8_192  # bytes in which a mail has one of these
_RANKS: Final = {"text/plain": 0, "text/html": 1, "multipart/related": 1, "multipart/mixed": 1}
_HEAD: Final = re.compile(rb"(?:[^\r\n]+(?:\r?\n|\Z))*")
_FOLD: Final = re.compile(r"\r?\n(?=[ \t])")
_FIELD: Final = re.compile(r"([!-9;-~]+):[ \t]*")
_BEGIN: Final = re.compile(rb"[!-9;-~]+:")
_WORD: Final = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([qQbB])\?([^?\s]*)\?=")
_BETWEEN_WORDS: Final = re.compile(r"(?<=\?=)\s+(?==\?)")


_TAKE_PART: Final = "the part of it that matters, as a .txt file"


class _Part(NamedTuple):
    """A part of a mail: its fields by their names in small letters, and its bytes as they were sent."""

    fields: dict[str, str]
    body: bytes


class _PartKind(NamedTuple):
    """The kind of a part: ``text/plain``, with what is said of its bytes, or a file."""

    name: str
    is_attached: bool
    charset: str | None
    boundary: str | None
    file: str | None


def mail_text(data: bytes, place: str, encoding: str = "utf-8") -> str:
    """The text of a mail; what does not begin with a field of a mail is a text as it is. Raises DocumentError for a
    part that is not of the encoding that it declares, and for more parts than are read."""
    mail = data.removeprefix(b"\xef\xbb\xbf")
    if mail.startswith(b"From "):  # a line of a mailbox
        mail = mail.partition(b"\n")[2]
    reader = _Reader(place, encoding)
    head = _HEAD.match(mail, 0, _NUM_SNIFFED)
    if not _BEGIN.match(mail) or head is None or not _OF_MAILS.search(head[0]):
        return plain_text(data, place, encoding)
    return reader.mail(mail, 0).replace("\r\n", "\n")


class _Reader:
    """Reads one mail; see `mail_text`."""

    def __init__(self, place: str, encoding: str) -> None:
        self.place, self.encoding = place, encoding
        self.num_parts, self.num_left = 0, MAX_HEAD

    def mail(self, data: bytes, depth: int) -> str:
        part = self.divided(data)
        lines = [f"{name}: {_words(part.fields[name.lower()])}" for name in _SHOWN if name.lower() in part.fields]
        return "\n".join([*lines, "", self._text(part, depth)])

    def divided(self, data: bytes) -> _Part:
        """The fields, of several of one name the first, and what stands behind them."""
        head = _HEAD.match(data, 0, self.num_left + 1)
        assert head is not None  # it may be empty
        self.num_left -= head.end()
        if self.num_left < 0:
            cause = f"the fields of the mail have more than {MAX_HEAD:,} bytes."
            raise DocumentError(cause, at=self.place, hint=_TAKE_PART)
        fields: dict[str, str] = {}
        for line in _FOLD.sub("", plain_text(head[0], self.place, self.encoding)).splitlines():
            if name := _FIELD.match(line):
                fields.setdefault(name[1].lower(), line[name.end() :])
        body = data[head.end() if fields else 0 :]  # what has no field is a text, blank line or not
        return _Part(fields, body.removeprefix(b"\r").removeprefix(b"\n"))

    def _text(self, part: _Part, depth: int) -> str:
        """The text of a part, with those of the parts in it."""
        kind = self._kind(part)
        family = kind.name.partition("/")[0]
        if kind.is_attached or family not in ("text", "multipart", "message"):
            return f"[attachment: {_words(kind.file or kind.name)}]"
        bodies = self._parts(part.body, kind.boundary, depth) if family == "multipart" else ()
        inner = [self.divided(one) for one in bodies]
        if inner and kind.name == "multipart/alternative":
            inner.sort(key=lambda one: _RANKS.get(self._kind(one).name, 2))
            return next((text for one in inner if (text := self._text(one, depth + 1)).strip()), "")
        if inner:
            texts = (self._text(one, depth + 1).rstrip("\r\n") for one in inner)
            return "\n".join(text for text in texts if text.strip())
        body = self._transferred(part)
        if kind.name == "message/rfc822" and _BEGIN.match(body):
            self._count(depth)
            return self.mail(body, depth + 1)
        return self._decoded(body, kind.charset, is_page=kind.name == "text/html")

    def _kind(self, part: _Part) -> _PartKind:
        """The headers of a part."""
        told = Message()
        for name in ("content-type", "content-disposition"):
            value = part.fields.get(name, "")
            if len(value) > MAX_TYPE:
                cause = f"the field {name} of the mail has more than {MAX_TYPE:,} characters."
                raise DocumentError(cause, at=self.place)
            if value:
                told[name] = value
        try:
            is_attached = told.get_content_disposition() == "attachment"
            charset, boundary, file = told.get_content_charset(), told.get_boundary(), told.get_filename()
        except Exception as error:  # odd parameters, such as both of name*0 and name*, are too much for it
            cause = f"the type of a part cannot be read: {value!r:.80}."
            raise DocumentError(cause, at=self.place, hint=_TAKE_PART) from error
        return _PartKind(told.get_content_type(), is_attached, charset, boundary, file)

    def _count(self, depth: int) -> None:
        self.num_parts += 1
        if self.num_parts > MAX_PARTS or depth >= MAX_DEPTH:
            cause = f"the mail has more than {MAX_PARTS:,} parts, or more than {MAX_DEPTH} in one another."
            raise DocumentError(cause, at=self.place, hint=_TAKE_PART)

    def _parts(self, body: bytes, boundary: str | None, depth: int) -> Iterator[bytes]:
        """The parts between the boundaries; the last one may have lost its end."""
        if not boundary:
            return
        line = re.escape(f"--{boundary}".encode("utf-8", "surrogateescape"))
        begin = None
        for found in re.finditer(rb"(?m)^" + line + rb"(--)?[ \t]*\r?(?:\n|\Z)", body):
            if begin is not None:
                self._count(depth)
                yield body[begin : found.start()].removesuffix(b"\n").removesuffix(b"\r")
            if found[1]:
                return
            begin = found.end()
        if begin is not None:
            self._count(depth)
            yield body[begin:]

    def _transferred(self, part: _Part) -> bytes:
        """The bytes of a part before they were written for the way."""
        way = part.fields.get("content-transfer-encoding", "").strip().lower()
        try:
            if way == "quoted-printable":
                return quopri.decodestring(part.body)
            return binascii.a2b_base64(part.body) if way == "base64" else part.body
        except binascii.Error as error:
            raise DocumentError(f"a part of the mail is no base64: {error}.", at=self.place) from error

    def _decoded(self, body: bytes, charset: str | None, *, is_page: bool) -> str:
        """A part as text, by the encoding that it declares; that of ASCII alone says nothing about other bytes."""
        read = page_source if is_page else plain_text
        try:
            if charset is None or charset in ("us-ascii", "ascii"):
                text = read(body, self.place, self.encoding)
            elif is_encoding(charset):
                text = plain_text(body, self.place, charset)
            else:
                raise DocumentError("it is not known.")
        except DocumentError as error:
            if charset is None:
                raise
            cause = f"a part of the mail declares the encoding {charset!r:.60}: {error.cause}"
            raise DocumentError(cause, at=self.place, hint="the part as a .txt file in UTF-8") from error
        return page_words(text, self.place) if is_page else text


def _words(value: str) -> str:
    """A field with its encoded words read (RFC 2047); what cannot be read stays as it is."""

    def word(match: re.Match[str]) -> str:
        charset, way, text = match[1], match[2].lower(), match[3]
        try:
            data = quopri.decodestring(text, header=True) if way == "q" else binascii.a2b_base64(text)
            return data.decode(charset) if is_encoding(charset) else match[0]
        except ValueError:  # of base64 and of decoding
            return match[0]

    return _WORD.sub(word, _BETWEEN_WORDS.sub("", value)).strip()
