"""Bytes as text, in the encoding that the user names: UTF-8 by default, or another one, or by a rule.

    utf-8          what is none is refused
    cp1252         every document is in it
    auto           UTF-8, or UTF-16 or UTF-32 by the mark at the beginning
    auto:cp1252    the same, and else cp1252

Nothing is guessed: a mark that says another encoding than the name is an error, and so is a byte that the encoding does
not have.
"""

from __future__ import annotations

import codecs
from typing import Final

from decodekit.errors import DocumentError, OptionError

_AUTO: Final = "auto"
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # it begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NO_TEXTS: Final = ("punycode", "idna", "undefined", "unicode-escape", "raw-unicode-escape")
"""Of host names, in quadratic time, and of programs."""
_TO_UTF_8: Final = "convert the file to UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW."
_HINT: Final = "its encoding, such as --encoding cp1252 (auto:cp1252 where others are UTF-8), or convert it to UTF-8."


def plain_text(data: bytes, place: str, encoding: str = "utf-8", *, is_line: bool = False) -> str:
    """Bytes as text, in an encoding as above; the mark at the beginning is not part of it.

    A line (`is_line`) is of a file that was divided at bytes 10, which UTF-16 cannot be. Raises DocumentError for bytes
    that are not of the encoding, with their `place`.
    """
    mark = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    rule, _, other = encoding.partition(":")
    names = [encoding] if rule != _AUTO else [mark or "utf-8", *([other] if other and not mark else [])]
    if is_line and '\n,"'.encode(names[-1]) != b'\n,"':
        raise DocumentError(f"lines and rows cannot be divided in {names[-1]}.", at=place, hint=_TO_UTF_8)
    if mark:
        known = codecs.lookup(names[0]).name
        is_one = mark.startswith(known) or known.startswith(mark)  # ``utf-16-le`` is ``utf-16``
        if not is_one or (is_line and mark != "utf-8"):
            hint = _TO_UTF_8 if is_line else f"--encoding auto, or {_TO_UTF_8}"
            raise DocumentError(f"the text is {mark.upper()}, not {names[-1].upper()}.", at=place, hint=hint)
    for name in names:
        try:
            text = data.decode(name).removeprefix("\ufeff")
            break
        except UnicodeError as error:
            cause = f"the text is not {name.upper()}: {error}."
            if isinstance(error, UnicodeDecodeError):
                cause = f"the text is not {name.upper()}: byte 0x{data[error.start]:02x} at offset {error.start}."
            fault = DocumentError(cause, at=place, hint=_HINT)
    else:
        raise fault
    if "\0" in text:
        cause = f"the file has NUL bytes, so it is no {name.upper()} text but UTF-16 or data of a program."
        raise DocumentError(cause, at=place, hint=_TO_UTF_8)
    return text


def is_encoding(name: str) -> bool:
    """Whether texts can be in it, as Python knows it."""
    try:
        " ".encode(name)
        return codecs.lookup(name).name not in _NO_TEXTS
    except (LookupError, ValueError):  # a null character is a ValueError
        return False


def check_encoding(encoding: str) -> None:
    """Raise OptionError for what `plain_text` cannot take."""
    name = "utf-8" if encoding == _AUTO else encoding.removeprefix(f"{_AUTO}:")
    if not is_encoding(name):
        hint = "utf-8, cp1252, latin-1, utf-16, shift-jis, ..., auto, or auto:cp1252"
        raise OptionError(f"{name!r:.60} is no encoding of texts", at="--encoding", hint=hint)
