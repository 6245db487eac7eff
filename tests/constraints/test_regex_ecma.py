r"""The ECMA flavour: what ECMA-262 says, worked out by hand; the sections are those of the edition of 2025.

No engine is asked here. `accepts` and `rejects` are whole texts.
"""

from __future__ import annotations

import pytest

from decodekit.constraints.language.ir import matches
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex.regex import Regex, full_match, parse_search
from decodekit.errors import DecodekitError, InvalidConstraintError, UnsupportedSchemaError
from decodekit.testing import check_language

LONG_S, KELVIN, SMALL, CAPITAL = "\u017f", "\u212a", "\U00010428", "\U00010400"


def agrees(node: Node, accepts: list[str], rejects: list[str]) -> bool:
    return all(matches(node, text.encode()) for text in accepts) and not any(
        matches(node, text.encode()) for text in rejects
    )


CASES: list[tuple[str, str, list[str], list[str]]] = [
    # 22.2.2.7.3 Canonicalize: without u, upper case of single code units, never from beyond ASCII into it
    ("k", "i", ["k", "K"], [KELVIN, "kk"]),
    ("[a-z]", "i", ["s", "S"], [LONG_S, KELVIN, "1"]),
    ("[^k]", "i", [KELVIN, "a", "é"], ["k", "K", ""]),
    ("é|Ω", "i", ["É", "é", "ω"], ["e", "\u2126"]),
    (CAPITAL, "i", [CAPITAL], [SMALL]),
    ("ß", "i", ["ß"], ["ẞ", "ss", "SS"]),
    (r"\w", "i", ["a", "_"], [LONG_S, KELVIN]),
    # with u, simple case folding
    ("k", "iu", ["k", "K", KELVIN], ["kk"]),
    ("[a-z]", "iu", ["S", LONG_S, KELVIN], ["1", "é"]),
    ("[^k]", "iu", ["a"], ["k", "K", KELVIN]),
    (CAPITAL, "iu", [CAPITAL, SMALL], ["a"]),
    ("ß", "iu", ["ß", "ẞ"], ["ss"]),
    ("i", "iu", ["i", "I"], ["ı", "İ"]),
    # 22.2.2.9.2 WordCharacters: u and i together add U+017F and U+212A
    (r"\w+", "iu", ["aS", LONG_S + KELVIN], ["é"]),
    (r"\W", "iu", ["é", "-"], ["s", LONG_S, KELVIN]),
    (r"[^\W]", "iu", ["s", LONG_S], ["-"]),
    (r"\w+", "u", ["aS"], [LONG_S, KELVIN]),
    (r"a\b.", "iu", ["a-", "aé"], ["a" + LONG_S, "ab"]),
    (r"a\b.", "i", ["a-", "a" + LONG_S], ["ab"]),
    # 22.2.2.4 Assertion: m is about all line terminators, and so is the dot without s
    ("^a$\n^b$", "m", ["a\nb"], ["a\n"]),
    ("a$[^]^b", "m", ["a\nb", "a\rb", "a\u2028b", "a\u2029b"], ["a\vb", "a b", "a\x85b"]),
    ("a$[^]", "", [], ["a\n", "a\r"]),
    ("$|a", "", ["", "a"], ["\n"]),
    (".", "", ["a", "\v", "\x85", "😀"], ["\n", "\r", "\u2028", "\u2029"]),
    (".", "s", ["a", "\n", "\r", "\u2028", "😀"], ["", "ab"]),
    # 22.2.2.7: modifiers of a group
    ("(?i:a)b", "", ["ab", "Ab"], ["aB", "AB"]),
    ("(?-i:a)b", "i", ["ab", "aB"], ["Ab"]),
    ("(?s-i:A.)b", "i", ["A\nb", "A\nB"], ["a\nb"]),
    ("(?m:a$)\n(?i-m:b)", "", ["a\nb", "a\nB"], ["ab"]),
    ("(?i-:a)", "", ["A"], ["b"]),
    # 22.2.1 patterns: escapes, groups, classes
    (r"\cA\cz\t\v\f\r\n\0", "u", ["\x01\x1a\t\v\f\r\n\0"], []),
    (r"\u{1F600}\u{61}\ud83d\ude00\x61\/\^\$\|", "u", ["😀a😀a/^$|"], []),
    (r"[\b\-\u{61}-\u{63}]+", "u", ["\b-abc"], ["d"]),
    (r"(?<año>\d{4})-(?<$m>\d\d)", "u", ["2024-12"], ["2024-1", "٢٠٢٤-12"]),
    ("a{2,}?b{0,1}?c{1}", "u", ["aac", "aaaabc"], ["ac", "aabbc"]),
    ("[^]", "u", ["\n", "a"], [""]),
    ("[]", "u", [], ["", "a"]),
    ("[]|a", "", ["a"], ["]"]),
    (r"[\d-]", "u", ["1", "-"], ["a"]),
    (r"\s", "", ["\ufeff", "\u2028", "\xa0", "\t", "\u3000"], ["\x1c", "\x85", "\u180e", "\u200b"]),
    (r"\d\D", "", ["1a", "1٣"], ["٣a", "11"]),
    (r"\p{Lu}\P{Lu}", "u", ["Aa", "Ω1"], ["aa", "AA"]),
    (r"[\p{L}\p{Nd}]+", "u", ["aß٣日"], ["-", "\u0301"]),
    (r"\p{General_Category=Letter}", "u", ["é"], ["1"]),
    (r"\p{White_Space}\p{ASCII}\p{Any}", "u", ["\u3000a\n"], ["aa\n"]),
    (r"\p{Uppercase}\p{Lowercase}", "u", ["Aª", "Ⅷⅷ"], ["aA"]),
    (r"\p{Script=Greek}\p{sc=Cyrl}", "u", ["αд"], ["дα", "αa"]),
    (r"\p{Script_Extensions=Deva}\P{scx=Deva}", "u", ["\u0964a", "अα"], ["a\u0964"]),
    (r"\p{Script=Devanagari}", "u", ["अ"], ["\u0964"]),
    (r"\p{Alphabetic}\p{Emoji_Presentation}[\p{ExtPict}\p{RI}]", "u", ["a😀©", "é😀🇫"], ["1😀©", "a1©", "a😀a"]),
    (r"\p{Lu}", "iu", ["A", "a"], ["1"]),
    (r"\P{Lu}", "iu", ["A", "a", "1"], [""]),
    # 22.2.2.3.1 RepeatMatcher: a round may not be empty, but for those that must be
    ("(?:a*?)*b", "", ["b", "aab"], ["a"]),
    ("(?:a?){3}b", "", ["b", "aaab"], ["aaaab"]),
    (r"(?:\b|-)+a", "", ["a", "-a", "--a"], ["-"]),
    # lookahead and lookbehind
    ("(?=.*\\d)(?!.*--)[-\\da]+", "", ["a-1", "1"], ["a", "1--"]),
    ("a(?=b)b|c(?!b).", "", ["ab", "cc"], ["cb", "a"]),
    ("(?<=a|bc)d|.(?<!x)", "", ["a", "d"], ["x"]),
    ("(?:^)*a(?:$)?", "", ["a"], ["b"]),
    # annex B.1.2, without u
    ("a{,2}|{|}|]", "", ["a{,2}", "{", "}", "]"], ["aa"]),
    (r"\-\_\é", "", ["-_é"], []),
    (r"[\w-z]", "", ["a", "-", "z"], ["+"]),
    (r"\7\08\400\9", "", ["\x07\x008 09"], []),
]


@pytest.mark.parametrize(("pattern", "flags", "accepts", "rejects"), CASES)
def test_expectations(pattern: str, flags: str, accepts: list[str], rejects: list[str]) -> None:
    node = full_match(pattern, "ecma", flags)
    for text in accepts:
        assert matches(node, text.encode()), text
    for text in rejects:
        assert not matches(node, text.encode()), text


def test_negative_control_the_flag_u_is_seen() -> None:
    depending = [case for case in CASES if "i" in case[1] and "u" in case[1]]
    others = [full_match(pattern, "ecma", flags.replace("u", "")) for pattern, flags, _, _ in depending]
    seen = [not agrees(node, case[2], case[3]) for node, case in zip(others, depending, strict=True)]
    assert sum(seen) >= 8


@pytest.mark.parametrize(
    ("pattern", "flags", "error", "message"),
    [
        # what the flag u forbids: 22.2.1, without annex B
        ("{", "u", InvalidConstraintError, "'{' stand alone"),
        ("a}", "u", InvalidConstraintError, "'}' stand alone"),
        ("]", "u", InvalidConstraintError, "']' stand alone"),
        ("a{,2}", "u", InvalidConstraintError, "'{' stand alone"),
        (r"\-", "u", InvalidConstraintError, "'-' be escaped"),
        (r"\é", "u", InvalidConstraintError, "be escaped"),
        (r"\01", "u", InvalidConstraintError, "no digit follow"),
        (r"\7", "u", UnsupportedSchemaError, "back-references"),
        (r"[\7]", "u", UnsupportedSchemaError, "the escape"),
        (r"[\w-z]", "u", InvalidConstraintError, "no end of a range"),
        (r"\pL", "u", InvalidConstraintError, "a Unicode property is"),
        (r"\k<n>(?<n>a)", "u", UnsupportedSchemaError, "back-references"),
        (r"\u{110000}", "u", InvalidConstraintError, "no code point"),
        (r"\c1", "u", InvalidConstraintError, "control escape"),
        # in both modes
        (r"\p{Script=greek}", "u", UnsupportedSchemaError, "'Script=greek'"),
        (r"\p{Script:Greek}", "", UnsupportedSchemaError, "'Script:Greek'"),
        (r"\p{Greek}", "", UnsupportedSchemaError, "'Greek'"),
        (r"\p{alphabetic}", "u", UnsupportedSchemaError, "'alphabetic'"),
        ("(?=a)*", "", InvalidConstraintError, "an assertion cannot be repeated"),
        ("(?-:a)", "", InvalidConstraintError, "a flag must follow"),
        ("(?ii:a)", "", InvalidConstraintError, "a flag stands twice"),
        ("(?x:a)", "", InvalidConstraintError, "no flag 'x'"),
        ("(?P<n>a)", "", UnsupportedSchemaError, "this kind of group"),
        ("a++", "", InvalidConstraintError, "two quantifiers"),
    ],
)
def test_refusals(pattern: str, flags: str, error: type[DecodekitError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        Regex(pattern, "ecma", flags)
    assert caught.value.at is not None and "character" in caught.value.at


def test_flags_hold_in_a_search_too() -> None:
    node = parse_search("^b$", flags="im")
    assert agrees(node, ["B", "a\nb\nc", "a\u2028B"], ["ab", "a b"])


def test_masks_agree_at_every_token() -> None:
    check_language(Regex("^[k-l]+(?=.$).", "ecma", "iu"), accepts=["K" + KELVIN + "l"], rejects=["a", KELVIN, "k\n"])
