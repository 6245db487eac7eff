"""Classes and case folding of the Python flavour, over all code points, as `re` has them."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache, lru_cache

import pytest

from decodekit.constraints.language.ir import bytes_of
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.utf8 import MAX_CODE_POINT, SCALARS, Ranges, intersect, normalise
from decodekit.constraints.regex import casefolding, charclasses
from decodekit.constraints.regex.regex import full_match
from tests.constraints.regex_patterns import compiled


@lru_cache(maxsize=1)
def everything() -> str:
    return "".join(map(chr, range(MAX_CODE_POINT + 1)))


def members(node: Node) -> Ranges:
    """The code points of a language of single characters, read off its bytes in UTF-8."""

    @cache
    def tails(rest: Node, num_bytes: int) -> Ranges:
        """The numbers that the last bytes of a character may say, six bits in each."""
        if num_bytes == 0:
            return ((0, 0),) if rest.is_nullable else ()
        shift = 6 * (num_bytes - 1)
        return normalise(
            (((byte & 0x3F) << shift) + low, ((byte & 0x3F) << shift) + high)
            for mask, target in rest.transitions()
            for byte in bytes_of(mask)
            for low, high in tails(target, num_bytes - 1)
        )

    found: list[tuple[int, int]] = []
    for mask, target in node.transitions():
        for lead in bytes_of(mask):
            num_bytes = 0 if lead < 0x80 else 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
            base = (lead & (0x7F if num_bytes == 0 else 0x3F >> num_bytes)) << 6 * num_bytes
            found += ((base + low, base + high) for low, high in tails(target, num_bytes))
    return normalise(found)


def members_of_re(pattern: str, flags: str) -> Ranges:
    runs = compiled(f"(?:{pattern})+", flags).finditer(everything())
    return intersect(normalise((run.start(), run.end() - 1) for run in runs), SCALARS)


def points_of(ranges: Ranges) -> set[int]:
    return {point for low, high in ranges for point in range(low, high + 1)}


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [
        (r"\w", ""), (r"\W", "a"), (r"\d", ""), (r"\D", "i"), (r"\s", ""), (r"\s", "a"), (r"[^\W\d_]", ""),
        (r"[\W]", "i"), (".", ""), (".", "s"), ("[^a-z]", "i"), ("[a-z]", "i"), ("[a-z]", "ia"), ("[À-ɏ]", "i"),
        (r"[\u0080-\uffff]", "i"), ("[Ͱ-Ͽ]", "i"),
        ("[^\u017f]", "i"), ("\u212a", "i"), ("[\U00010400-\U00010410]", "i"), ("[^\u2000-\U0010ffff]", "i"),
        (r"\w|[\u2600-\u26ff]", ""), (r"(?a:\w)|[é-ÿ]", "i"),
    ],
)  # fmt: skip
def test_classes_over_all_code_points(pattern: str, flags: str) -> None:
    assert members(full_match(pattern, "python", flags)) == members_of_re(pattern, flags)


def test_negative_control_an_ascii_class_is_seen() -> None:
    assert members(full_match(r"\w", "python", "a")) != members_of_re(r"\w", "")


def test_all_letters_are_equal_to_what_re_takes_for_equal() -> None:
    cased = [c for c in everything() if not c == c.lower() == c.upper() == c.casefold()]
    related = sorted({*cased, *(other for c in cased for other in c.lower() + c.upper() + c.casefold())})
    text = "".join(related)
    assert len(related) > 2800
    for char in related:
        equal = {ord(other) for other in compiled(re.escape(char), "i").findall(text)}
        assert points_of(casefolding.close(((ord(char), ord(char)),), "python")) == equal, hex(ord(char))
    # All others are equal to themselves alone: no letter meets them, and a sample of them meets nothing else.
    others = sorted(set(everything()) - set(related))
    assert not compiled("[" + "".join(map(re.escape, related)) + "]", "i").search("".join(others))
    for char in random.Random(0).sample(others, 20):
        assert compiled(re.escape(char), "i").findall(everything()) == [char]
        assert casefolding.close(((ord(char), ord(char)),), "python") == ((ord(char), ord(char)),)


def test_the_rules_of_ecma_differ_where_they_should() -> None:
    def equal(char: str, rule: casefolding.Rule) -> str:
        return "".join(map(chr, sorted(points_of(casefolding.close(((ord(char), ord(char)),), rule)))))

    # ECMA-262, 22.2.2.7.3: without u, a letter beyond ASCII is never equal to one of ASCII, and there are no pairs.
    for char, python, ecma, unicode in (
        ("k", "Kk\u212a", "Kk", "Kk\u212a"),
        ("s", "Ss\u017f", "Ss", "Ss\u017f"),
        ("i", "Ii\u0130\u0131", "Ii", "Ii"),
        ("ß", "ßẞ", "ß", "ßẞ"),
        ("θ", "Θθϑϴ", "Θθϑ", "Θθϑϴ"),
        ("ω", "Ωω\u2126", "Ωω", "Ωω\u2126"),
        ("ᾳ", "ᾳᾼ", "ᾳ", "ᾳᾼ"),
        ("\U00010400", "\U00010400\U00010428", "\U00010400", "\U00010400\U00010428"),
        ("\ufb05", "\ufb05\ufb06", "\ufb05", "\ufb05\ufb06"),
        ("7", "7", "7", "7"),
    ):
        assert (equal(char, "python"), equal(char, "ecma"), equal(char, "ecma unicode")) == (python, ecma, unicode)
        assert equal(char, "ascii") == ("".join(sorted({char.lower(), char.upper()})) if char in "ksi" else char)


def test_properties_are_those_of_the_database() -> None:
    categories = list(map(unicodedata.category, everything()))
    for name in ("Lu", "Nd", "gc=Zs", "General_Category=Pd", "Uppercase_Letter"):
        expected = {"gc=Zs": "Zs", "General_Category=Pd": "Pd", "Uppercase_Letter": "Lu"}.get(name, name)
        ranges = charclasses.unicode_property(name)
        assert ranges is not None
        assert points_of(ranges) == {p for p, category in enumerate(categories) if category == expected}
    spaces = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
    small = {"White_Space": spaces, "AHex": "0123456789abcdefABCDEF"}
    for name, chars in small.items():
        assert points_of(charclasses.unicode_property(name) or ()) == set(map(ord, chars))
    assert len(points_of(charclasses.unicode_property("NChar") or ())) == 66
    letters = points_of(charclasses.unicode_property("L") or ())
    for name in ("Uppercase", "Lowercase", "XID_Start"):
        assert letters & points_of(charclasses.unicode_property(name) or ())
    for name in ("Greek", "Script=Greek", "Alphabetic", "lu", ""):
        assert charclasses.unicode_property(name) is None
