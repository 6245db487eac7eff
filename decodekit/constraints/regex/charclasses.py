r"""Sets of code points: the escapes ``\d \w \s``, the dot, Unicode properties for ``\p{...}``, and what is equal to a
set when the case does not matter: by the rules of `re`, and of the two modes of ECMA-262.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from decodekit.constraints.language.utf8 import MAX_CODE_POINT, Ranges, normalise

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

# ECMA-262, table 69, but Changes_When_NFKC_Casefolded.
_SHORT_NAMES: Final = {
    "AHex": "ASCII_Hex_Digit", "Alpha": "Alphabetic", "Bidi_C": "Bidi_Control", "Bidi_M": "Bidi_Mirrored",
    "CI": "Case_Ignorable", "CWCF": "Changes_When_Casefolded", "CWCM": "Changes_When_Casemapped",
    "CWL": "Changes_When_Lowercased", "CWT": "Changes_When_Titlecased", "CWU": "Changes_When_Uppercased",
    "DI": "Default_Ignorable_Code_Point", "Dep": "Deprecated", "Dia": "Diacritic", "EComp": "Emoji_Component",
    "EMod": "Emoji_Modifier", "EBase": "Emoji_Modifier_Base", "EPres": "Emoji_Presentation",
    "ExtPict": "Extended_Pictographic", "Ext": "Extender", "Gr_Base": "Grapheme_Base", "Gr_Ext": "Grapheme_Extend",
    "Hex": "Hex_Digit", "IDSB": "IDS_Binary_Operator", "IDST": "IDS_Trinary_Operator", "IDC": "ID_Continue",
    "IDS": "ID_Start", "Ideo": "Ideographic", "Join_C": "Join_Control", "LOE": "Logical_Order_Exception",
    "Lower": "Lowercase", "NChar": "Noncharacter_Code_Point", "Pat_Syn": "Pattern_Syntax",
    "Pat_WS": "Pattern_White_Space", "QMark": "Quotation_Mark", "RI": "Regional_Indicator",
    "STerm": "Sentence_Terminal", "SD": "Soft_Dotted", "Term": "Terminal_Punctuation", "UIdeo": "Unified_Ideograph",
    "Upper": "Uppercase", "VS": "Variation_Selector", "space": "White_Space", "XIDC": "XID_Continue",
    "XIDS": "XID_Start",
}  # fmt: skip
_BINARY: Final = {*_SHORT_NAMES.values(), "Any", "ASCII", "Assigned", "Cased", "Dash", "Emoji", "Math", "Radical"}
_NAMES: Final = {name: name for name in (*_BINARY, *CATEGORIES)} | _SHORT_NAMES | _LONG_NAMES
_VALUED: Final = {
    "General_Category": "gc", "gc": "gc", "Script": "sc", "sc": "sc", "Script_Extensions": "scx", "scx": "scx",
}  # fmt: skip
_SCRIPT: Final = re.compile("[A-Z][a-z]*(_[A-Z][a-z]*)*|SignWriting")  # how Unicode spells the names of scripts


def _loosely(name: str) -> str:
    return re.sub("[ _-]", "", name).lower()


_LOOSE_NAMES: Final = {_loosely(name): one for name, one in _NAMES.items()}
_LOOSELY_VALUED: Final = {_loosely(name): one for name, one in _VALUED.items()}


def unicode_property(name: str, *, is_loose: bool = False) -> Ranges | None:
    r"""The code points of ``\p{name}``, from the Unicode tables of the package `regex`; None if it names nothing known.

    Known are the general categories, also behind ``gc=`` or ``General_Category=``; scripts behind ``sc=``, ``Script=``,
    ``scx=`` or ``Script_Extensions=``; and the binary properties of ECMA-262, table 69, but
    Changes_When_NFKC_Casefolded. Each has its long and its short name.

    Args:
        name: what stands in the braces.
        is_loose: names as Rust's `regex` has them: case, blanks, hyphens and underscores do not matter, a colon may
            stand for the sign of equality, and a script may stand alone.
    """
    key, sign, value = (name.replace(":", "=", 1) if is_loose else name).partition("=")
    if is_loose:
        key, value = _loosely(key), _loosely(value)
    names = _LOOSE_NAMES if is_loose else _NAMES
    if not sign and key in names:
        return _points(names[key])
    kind = (_LOOSELY_VALUED if is_loose else _VALUED).get(key) if sign else "sc" if is_loose else None
    if kind == "gc":
        return _points(names[value]) if names.get(value) in CATEGORIES else None
    value = value if sign else key
    is_script = value.isalpha() and value.isascii() if is_loose else _SCRIPT.fullmatch(value)
    return _points(f"{kind}={value}") if kind and is_script else None


@lru_cache(maxsize=1024)  # all names there are
def _points(name: str) -> Ranges | None:
    import regex  # type: ignore[import-untyped]

    try:
        return _runs(regex.compile(rf"\p{{{name}}}+"))
    except regex.error:
        return None


def _runs(pattern: Any) -> Ranges:
    """The runs of code points, in their order, that a pattern finds."""
    return tuple((found.start(), found.end() - 1) for found in pattern.finditer(_everything()))


@lru_cache(maxsize=1)
def _everything() -> str:
    return array("I", range(MAX_CODE_POINT + 1)).tobytes().decode("utf-32", errors="surrogatepass")


@lru_cache(maxsize=3)
def python_class(letter: str) -> Ranges:
    r"""``\d``, ``\w`` or ``\s`` of `re` without the flag ``a``, as `re` itself finds them among all code points."""
    return _runs(re.compile(rf"\{letter}+"))


# -- sets under which the case does not matter
# Each rule is a key: characters with one key are equal. The tables are made from Python's own Unicode data when a rule
# is used for the first time, and hold only characters that are equal to another one.

Rule: TypeAlias = Literal["python", "ascii", "ecma", "ecma unicode"]

_BLOCK: Final = 256


def _ecma_key(char: str) -> str:
    """ECMA-262, section 22.2.2.7.3 (Canonicalize), without the flag ``u``: code units in upper case."""
    upper = char.upper()
    if len(upper) > 1 or ord(char) > 0xFFFF or (ord(char) >= 128 and ord(upper) < 128):
        return char
    return upper


_KEYS: Final[dict[Rule, Callable[[str], str]]] = {
    # `re` compares lower-case letters (the first, if there are several), and those with one upper case are equal.
    "python": lambda char: char.lower()[0].upper(),
    "ascii": lambda char: char.lower() if char.isascii() else char,  # `re` with the flag ``a``
    "ecma": _ecma_key,
    # With the flag ``u``: simple case folding. Python knows the full one. Two characters with one full folding have one
    # simple folding too (CaseFolding.txt of Unicode 15.1 and later, which gives U+1FD3, U+1FE3 and U+FB05 the simple
    # foldings that they lacked).
    "ecma unicode": str.casefold,
}


@lru_cache(maxsize=512)
def close(ranges: Ranges, rule: Rule) -> Ranges:
    """The set with all characters that are equal to one of its members by the rule."""
    points, groups = _groups(rule)
    lows, highs = np.array(ranges, dtype=np.int32).reshape(-1, 2).T
    # A point is inside where more ranges have begun than have ended before it.
    inside = np.searchsorted(np.sort(lows), points, "right") > np.searchsorted(np.sort(highs), points, "left")
    found = points[np.isin(groups, groups[inside]) & ~inside].tolist()
    return normalise([*ranges, *((point, point) for point in found)]) if found else ranges


@lru_cache(maxsize=4)
def _groups(rule: Rule) -> tuple[NDArray[Any], NDArray[Any]]:
    """Code points that are equal to another one, ascending; and for each the number of those that it is equal to."""
    groups: dict[str, list[int]] = {}
    for point in _with_case():
        groups.setdefault(_KEYS[rule](chr(point)), []).append(point)
    equal = [group for group in groups.values() if len(group) > 1]
    pairs = np.array(sorted((point, number) for number, group in enumerate(equal) for point in group))
    return pairs[:, 0], pairs[:, 1]


@lru_cache(maxsize=1)
def _with_case() -> tuple[int, ...]:
    """The code points that a change of case changes, and those that come out of one."""
    found: set[int] = set()
    for start in range(0, MAX_CODE_POINT, _BLOCK):
        points = range(start, start + _BLOCK)
        block = array("I", points).tobytes().decode("utf-32", errors="surrogatepass")
        if block.lower() == block.upper() == block.casefold() == block:
            continue
        for point, char in zip(points, block, strict=True):
            others = char.lower() + char.upper() + char.casefold()
            if others != 3 * char:
                found.update((point, *map(ord, others)))
    return tuple(sorted(found))
