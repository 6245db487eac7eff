r"""Named sets of code points: the escapes ``\d \w \s``, the dot, and Unicode properties for ``\p{...}``."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from decodekit.constraints.language.utf8 import EVERYTHING, MAX_CODE_POINT, Ranges, invert, normalise

DIGIT: Final[Ranges] = ((0x30, 0x39),)
WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Final[Ranges] = ((0x09, 0x0D), (0x20, 0x20))
ECMA_SPACE: Final[Ranges] = normalise(
    [*ASCII_SPACE, (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
     (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
NEWLINE: Final[Ranges] = ((0x0A, 0x0A),)
ECMA_LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


# Long names of https://www.unicode.org/Public/UCD/latest/ucd/PropertyValueAliases.txt, and the unions LC, L, M, ...
_LONG_NAMES: Final = {
    "Cased_Letter": "LC", "Letter": "L", "Lowercase_Letter": "Ll", "Modifier_Letter": "Lm", "Other_Letter": "Lo",
    "Titlecase_Letter": "Lt", "Uppercase_Letter": "Lu", "Mark": "M", "Combining_Mark": "M", "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me", "Nonspacing_Mark": "Mn", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd",
    "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Close_Punctuation": "Pe", "Final_Punctuation": "Pf", "Initial_Punctuation": "Pi",
    "Other_Punctuation": "Po", "Open_Punctuation": "Ps", "Symbol": "S", "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk", "Math_Symbol": "Sm", "Other_Symbol": "So", "Separator": "Z", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Space_Separator": "Zs", "Other": "C", "Control": "Cc", "cntrl": "Cc",
    "Format": "Cf", "Unassigned": "Cn", "Private_Use": "Co", "Surrogate": "Cs",
}  # fmt: skip

CATEGORIES: Final = tuple(sorted(set(_LONG_NAMES.values())))
"""The short names of all general categories."""


@lru_cache(maxsize=1)
def _categories() -> dict[str, list[tuple[int, int]]]:
    """Ranges by two-letter general category, from the Unicode tables of this Python."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, current = 0, unicodedata.category("\0")
    for point in range(1, MAX_CODE_POINT + 1):
        category = unicodedata.category(chr(point))
        if category != current:
            found.setdefault(current, []).append((start, point - 1))
            start, current = point, category
    found.setdefault(current, []).append((start, MAX_CODE_POINT))
    return found


def _is_noncharacter(char: str) -> bool:
    return 0xFDD0 <= ord(char) <= 0xFDEF or ord(char) & 0xFFFE == 0xFFFE


def _begins_name(char: str) -> bool:
    return char.isidentifier() and char != "_"


def _continues_name(char: str) -> bool:
    return ("a" + char).isidentifier()


# Binary properties of ECMA-262, table 69, as far as this Python knows them.
_PREDICATES: Final[dict[str, Callable[[str], bool]]] = {
    "Lowercase": str.islower, "Lower": str.islower, "Uppercase": str.isupper, "Upper": str.isupper,
    "XID_Start": _begins_name, "XIDS": _begins_name, "XID_Continue": _continues_name, "XIDC": _continues_name,
    "Noncharacter_Code_Point": _is_noncharacter, "NChar": _is_noncharacter,
}  # fmt: skip
_WHITE_SPACE: Final = normalise([*ECMA_SPACE[:-1], (0x85, 0x85)])  # without U+FEFF
_SMALL_PROPERTIES: Final[dict[str, Ranges]] = {
    "Any": EVERYTHING, "ASCII": ((0, 0x7F),),
    "ASCII_Hex_Digit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)), "AHex": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
    "White_Space": _WHITE_SPACE, "space": _WHITE_SPACE,
}  # fmt: skip


@lru_cache(maxsize=128)
def unicode_property(name: str) -> Ranges | None:
    r"""The code points of ``\p{name}``, from the Unicode tables of this Python.

    Known are the general categories, short or long, with or without ``gc=`` or ``General_Category=``, and the binary
    properties `Any`, `ASCII`, `Assigned`, `Lowercase`, `Uppercase`, `White_Space`, `ASCII_Hex_Digit`, `XID_Start`,
    `XID_Continue` and `Noncharacter_Code_Point`, with their short names.

    None if the name is none of these: Python has no tables of scripts and of the other binary properties.
    """
    if name in _SMALL_PROPERTIES:
        return _SMALL_PROPERTIES[name]
    if name in _PREDICATES:
        holds = _PREDICATES[name]
        return normalise((point, point) for point in range(MAX_CODE_POINT + 1) if holds(chr(point)))
    if name == "Assigned":
        return invert(_categories()["Cn"])
    for prefix in ("gc=", "General_Category="):
        name = name.removeprefix(prefix)
    name = _LONG_NAMES.get(name, name)
    parts = {"Ll", "Lt", "Lu"} if name == "LC" else {key for key in _categories() if key == name or key[0] == name}
    if not parts:
        return None
    return normalise(bounds for part in parts for bounds in _categories()[part])


@lru_cache(maxsize=3)
def python_class(letter: str) -> Ranges:
    r"""``\d``, ``\w`` or ``\s`` of `re` without the flag ``a``, as `re` itself finds them among all code points."""
    everything = array("I", range(MAX_CODE_POINT + 1)).tobytes().decode("utf-32", errors="surrogatepass")
    return tuple((found.start(), found.end() - 1) for found in re.finditer(rf"\{letter}+", everything))
