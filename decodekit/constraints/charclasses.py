r"""Named sets of code points: the escapes ``\d \w \s``, the dot, and Unicode general categories for ``\p{...}``."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from decodekit.constraints.utf8 import EVERYTHING, MAX_CODE_POINT, Ranges, invert, normalise

DIGIT: Final[Ranges] = ((0x30, 0x39),)
WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Final[Ranges] = ((0x09, 0x0D), (0x20, 0x20))
ECMA_SPACE: Final[Ranges] = normalise(
    [*ASCII_SPACE, (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
     (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
NOT_NEWLINE: Final[Ranges] = invert([(0x0A, 0x0A)])
NOT_LINE_END: Final[Ranges] = invert([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])

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


@lru_cache(maxsize=128)
def unicode_property(name: str) -> Ranges | None:
    r"""The code points of ``\p{name}``: a general category, short or long, with or without ``gc=``; ``Any``; ``ASCII``.

    None if the name is none of these (scripts and binary properties are not among them).
    """
    if name == "Any":
        return EVERYTHING
    if name == "ASCII":
        return ((0, 0x7F),)
    for prefix in ("gc=", "General_Category="):
        name = name.removeprefix(prefix)
    name = _LONG_NAMES.get(name, name)
    parts = {"Ll", "Lt", "Lu"} if name == "LC" else {key for key in _categories() if key == name or key[0] == name}
    if not parts:
        return None
    return normalise(bounds for part in parts for bounds in _categories()[part])
