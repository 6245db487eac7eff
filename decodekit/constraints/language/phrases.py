"""Phrases for what may follow in a language: `','`, `a digit`, `'true'`; for messages only."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from decodekit.constraints.language.ir import bytes_of, mask_of
from decodekit.constraints.language.node import ByteMask, Node

MAX_SHOWN: Final = 6
"""Alternatives that are listed before the rest is counted."""
_ESCAPE: Final = repr("\\u")[:-1]
_MAX_LITERAL: Final = 40  # bytes of a text that is shown whole


_BLANKS: Final = mask_of(b" \t\r\n")
_PRINTABLE: Final = mask_of(range(0x20, 0x7F))
_LEADS: Final = mask_of(range(0xC0, 0xFE))
_NAMED: Final = (
    (mask_of((string.ascii_letters + string.digits).encode()), "a letter or digit"),
    (mask_of(string.ascii_letters.encode()), "a letter"),
    (mask_of(string.hexdigits.encode()), "a hexadecimal digit"),
    (mask_of(string.ascii_lowercase.encode()), "a small letter"),
    (mask_of(string.ascii_uppercase.encode()), "a capital letter"),
    (mask_of(string.digits.encode()), "a digit"),
    (mask_of(b"123456789"), "a digit from 1 to 9"),
)
_OTHERS: Final = (
    (mask_of([*range(0x20), 0x7F]) & ~_BLANKS, "a control character"),
    (_LEADS, "a character beyond ASCII"),
    (mask_of(b"\xfe\xff"), "a special token"),  # whose spelling begins so (see `special`)
    (mask_of(range(0x80, 0xC0)), "the rest of a character"),
)


def expectations(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Phrases for what comes next in any of some languages: texts that are forced, else sets of characters.

    White space is told only where nothing else may come.
    """
    literals: dict[str, None] = {}
    mask = 0
    for node in nodes:
        for bits, target in node.transitions():
            literal = _forced(bits, target)
            if literal is None:
                mask |= bits
            else:
                literals[literal] = None
    found = (*literals, *_characters(mask))
    # Another spelling of what may be written plainly is no news: an escape, the Kelvin sign beside k and K.
    found = tuple(words for words in found if not words.startswith(_ESCAPE) and not _is_variant(words)) or found
    return found if found else ("white space",) if mask & _BLANKS else ()


def listed(words: Sequence[str], limit: int = MAX_SHOWN) -> str:
    """``"a, b or c"``; of a long list only the beginning. What stands in brackets behind several is said once."""
    words = list(dict.fromkeys(words))
    if len(words) > limit:
        words = [*words[: limit - 1], f"{len(words) - limit + 1} more"]
    for place in range(len(words) - 1):
        start, bracket, title = words[place].rpartition(" (")
        if bracket and title.endswith(")") and words[place + 1].endswith(bracket + title):
            words[place] = start
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else ""


def show(data: bytes) -> str:
    """A short text in quotes; bytes that are not text as such."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return repr(data)
    if len(text) == 1 and text.isspace() and text not in " \t\n\r":
        return f"{text!r} ({unicodedata.name(text, 'a blank')})"
    return repr(text)


def _is_variant(literal: str) -> bool:
    """Whether a shown text is one character that stands for an ASCII one."""
    return len(literal) == 3 and not literal.isascii() and unicodedata.normalize("NFKC", literal).isascii()


def printable(name: str) -> str:
    """A name on one line, without characters that cannot be seen."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in name)


def _forced(bits: ByteMask, target: Node) -> str | None:
    """The text that has to come after the only byte of a set, shown; None if there are several bytes, or one alone."""
    if bits.bit_count() != 1 or bits & _BLANKS:
        return None
    data = bytearray((bits.bit_length() - 1,))
    node = target
    while len(data) <= _MAX_LITERAL and not node.labels:
        edges = [(mask, rest) for mask, rest in node.transitions() if not rest.is_empty]
        if len(edges) != 1 or edges[0][0].bit_count() != 1:
            break
        data.append(edges[0][0].bit_length() - 1)
        node = edges[0][1]
    if len(data) == 1:  # perhaps one of a known set
        return None
    is_whole = len(data) <= _MAX_LITERAL
    if is_whole and data[0] == data[-1] >= 0xFE:
        return data[1:-1].decode(errors="replace")
    if data[0] >= 0x80:
        try:
            data.decode()
        except UnicodeDecodeError:  # the first bytes of several characters
            return None
    while data:  # perhaps the last character is half
        try:
            return repr(data.decode()) if is_whole else f"{data.decode()!r}…"
        except UnicodeDecodeError:
            data.pop()
    return None


def _characters(mask: ByteMask) -> list[str]:
    """A set of first bytes in words."""
    found: list[str] = []
    printable = mask & _PRINTABLE & ~_BLANKS
    if printable.bit_count() > 60:
        refused = [repr(chr(byte)) for byte in bytes_of((_PRINTABLE | _BLANKS) & ~mask)]
        some = "any character" if mask & _LEADS else "any ASCII character"
        if len(refused) <= MAX_SHOWN:
            return [f"{some} but {listed(refused)}" if refused else some]
    for members, name in _NAMED:
        if printable & members == members:
            found.append(name)
            printable &= ~members
    rest = [chr(byte) for byte in bytes_of(printable)]
    found += [f"one of {''.join(rest)}"] if len(rest) > MAX_SHOWN else map(repr, rest)
    return found + [name for members, name in _OTHERS if mask & members]
