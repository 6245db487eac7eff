"""Host names: their form as body languages, and whether a name is valid, which `idna` says.

A mask admits the form. Labels of ASCII are letters, digits and hyphens (RFC 1123), of 63 characters at most; hyphens in
the third and fourth place both are reserved for A-labels such as ``xn--p1ai`` (RFC 5890, section 2.3.1). Labels with
other characters are made of those that IDNA 2008 lets stand in a label (RFC 5892).

What decides about a label as a whole is left to a guard (see `schema_guard`): what the Punycode of an A-label stands
for (here ``рф``), Unicode's form NFC, contextual characters, the Bidi rule, the length as an A-label. As masks these
would take an automaton for each combination of the Unicode tables, and still cut labels short.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.patterns import full_language
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node

MAX_NAME: Final = 253
MAX_MAIL_DOMAIN: Final = 189
"""254 letters of an address (RFC 5321, section 4.5.3.1.3) less a local part of 64 and the @."""

_DOT: Final = re.compile("[.\u3002\uff0e\uff61]")  # RFC 3490, section 3.1
_AN: Final = "[A-Za-z0-9]"
_ANH: Final = "[A-Za-z0-9-]"
_PLAIN_LABEL: Final = f"{_AN}({_AN}|{_ANH}{_AN}({_ANH}{{0,59}}{_AN})?|{_ANH}-{_AN}({_ANH}{{0,58}}{_AN})?)?"
_A_LABEL: Final = f"[xX][nN]--{_ANH}{{0,58}}{_AN}"
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})


@lru_cache(maxsize=4)
def plain(max_length: int = MAX_NAME) -> Node:
    """Host names of plain labels."""
    return _names(_PLAIN_LABEL, max_length)


@lru_cache(maxsize=1)
def with_a_labels() -> Node:
    """Host names of plain labels and of what has the form of an A-label."""
    return _names(f"({_PLAIN_LABEL}|{_A_LABEL})", MAX_NAME)


def _names(label: str, max_length: int) -> Node:
    return text.meet(full_language(rf"{label}(\.{label})*"), text.length(1, max_length))


@lru_cache(maxsize=2)
def international(dots: str = _DOT.pattern, max_length: int = MAX_NAME) -> Node:
    """Host names of characters that may stand in a label, separated by `dots`, a pattern."""
    import idna  # its tables take 10 ms to load, and few schemas ask for such names

    classes = idna.idnadata.codepoint_classes
    packed = [bounds for name in ("PVALID", "CONTEXTJ", "CONTEXTO") for bounds in classes[name]]
    points = [(bounds >> 32, (bounds & 0xFFFFFFFF) - 1) for bounds in packed]  # upper bounds are exclusive
    label = ir.repeat(text.encode(utf8.normalise([*points, (0x41, 0x5A)])), 1)
    names = ir.concat(label, ir.repeat(ir.concat(full_language(dots), label)))
    return text.meet(names, text.length(1, max_length))


def is_valid(name: str) -> bool:
    """Whether all labels of a name are valid, alone and beside each other (RFC 5891, section 4.2; RFC 5893)."""
    import idna

    try:
        idna.encode(name)
        if any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in name):
            return all(idna.check_bidi(label, check_ltr=True) for label in _DOT.split(name))
    except UnicodeError:
        return False
    return not name.endswith(".")
