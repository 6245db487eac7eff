"""Classes and case folding of the Python flavour, over all code points, as `re` has them."""

from __future__ import annotations

import random
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache

import pytest

from decodekit.constraints.language.ir import bytes_of
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.utf8 import MAX_CODE_POINT, SCALARS, Ranges, intersect, normalise
from decodekit.constraints.regex import charclasses
from decodekit.constraints.regex.regex import full_match
from tests.constraints.regex_patterns import compiled
from tests.sizes import few, sized


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


@few(9)
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


@pytest.mark.slow
@sized("every", 8, slow=1)
def test_all_letters_are_equal_to_what_re_takes_for_equal(every: int) -> None:
    cased = [c for c in everything() if not c == c.lower() == c.upper() == c.casefold()]
    related = sorted({*cased, *(other for c in cased for other in c.lower() + c.upper() + c.casefold())})
    text = "".join(related)
    assert len(related) > 2800
    for char in related[::every]:
        equal = {ord(other) for other in compiled(re.escape(char), "i").findall(text)}
        assert points_of(charclasses.close(((ord(char), ord(char)),), "python")) == equal, hex(ord(char))
    # All others are equal to themselves alone: no letter meets them, and a sample of them meets nothing else.
    others = sorted(set(everything()) - set(related))
    assert not compiled("[" + "".join(map(re.escape, related)) + "]", "i").search("".join(others))
    for char in random.Random(0).sample(others, 3 + 20 // every):
        assert compiled(re.escape(char), "i").findall(everything()) == [char]
        assert charclasses.close(((ord(char), ord(char)),), "python") == ((ord(char), ord(char)),)


def test_the_rules_of_ecma_differ_where_they_should() -> None:
    def equal(char: str, rule: charclasses.Rule) -> str:
        return "".join(map(chr, sorted(points_of(charclasses.close(((ord(char), ord(char)),), rule)))))

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


def property_of(name: str) -> set[int]:
    ranges = charclasses.unicode_property(name)
    assert ranges is not None, name
    return points_of(ranges)


def test_categories_are_those_of_the_database() -> None:
    """Of this Python; where its tables are older than those of `regex`, code points are assigned since."""
    categories = list(map(unicodedata.category, everything()))
    assigned = {point for point, category in enumerate(categories) if category != "Cn"}
    sizes = Counter(categories)
    num_moved = 0  # between two versions of Unicode, a few characters get another category
    for name in (name for name in charclasses.CATEGORIES if len(name) == 2 and name != "LC"):
        expected = {point for point in assigned if categories[point] == name}
        num_moved += len(expected ^ (property_of(name) & assigned))
        assert name == "Cn" or len(expected) == sizes[name] > 0
    assert num_moved < 20
    assert property_of("LC") == property_of("Lu") | property_of("Ll") | property_of("Lt")
    for name in "LMNPSZC":
        assert property_of(name) == set().union(*(property_of(one) for one in sizes if one[0] == name))
    assert property_of("Uppercase_Letter") == property_of("gc=Lu") == property_of("General_Category=Lu")
    assert property_of("Assigned") == property_of("Any") - property_of("Cn") >= assigned


@few(2)
@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("Lowercase", str.islower), ("Upper", str.isupper), ("XIDS", lambda char: char != "_" and char.isidentifier()),
        ("XID_Continue", lambda char: ("a" + char).isidentifier()), ("Bidi_M", lambda char: unicodedata.mirrored(char)),
        ("ASCII", str.isascii), ("AHex", lambda char: char.isascii() and char in string.hexdigits),
        ("White_Space", lambda char: char.isspace() and char not in "\x1c\x1d\x1e\x1f"),
        ("NChar", lambda char: 0xFDD0 <= ord(char) <= 0xFDEF or ord(char) & 0xFFFE == 0xFFFE),
        ("CWL", lambda char: unicodedata.normalize("NFD", char) != unicodedata.normalize("NFD", char).lower()),
    ],
)  # fmt: skip
def test_binary_properties_are_what_python_says(name: str, holds: Callable[[str], bool]) -> None:
    expected = {point for point, char in enumerate(everything()) if holds(char)}
    different = {point for point in property_of(name) ^ expected if unicodedata.category(chr(point)) != "Cn"}
    assert expected and len(different) < 10


@pytest.mark.slow
@sized("step", 9, slow=1)
def test_scripts_are_those_of_another_package(step: int) -> None:
    scripts = pytest.importorskip("fontTools.unicodedata")
    assigned = {point for point, char in enumerate(everything()) if unicodedata.category(char) != "Cn"}
    by_script: dict[str, set[int]] = {}
    for point in assigned:
        by_script.setdefault(scripts.script(chr(point)), set()).add(point)
    assert len(by_script) > 150 and {"Linb", "Sgnw"} & set(sorted(by_script)[::step])
    for name in sorted(by_script)[::step]:
        found = property_of(f"sc={name}")
        assert found & assigned == by_script[name], name
        assert found == property_of(f"Script={scripts.script_name(name).replace(' ', '_')}")
    for name in ("Deva", "Grek"):
        extended = {point for point in assigned if name in scripts.script_extension(chr(point))}
        assert extended > by_script[name]
        assert len(property_of(f"scx={name}") & assigned ^ extended) < 5, name


def test_names_of_properties() -> None:
    """Exact in ECMA-262; as loose as in Rust's `regex` in patterns of Python."""
    for name in ("Greek", "lu", "", "Script=greek", "Script=", "sc=Nothing", "gc=Greek", "Lu=Lu", "script=Greek", "L "):
        assert charclasses.unicode_property(name) is None, name
    for loose, exact in {
        "greek": "Script=Greek", "Old Persian": "sc=Xpeo", "script:OLD-persian": "sc=Xpeo", "lu": "Lu", "sc": "Sc",
        "uppercase letter": "Lu", "gc: currency_symbol": "Sc", "scx=deva": "scx=Deva", "alpha": "Alphabetic",
        "cf": "Format", "white space": "space",
    }.items():  # fmt: skip
        assert points_of(charclasses.unicode_property(loose, is_loose=True) or ()) == property_of(exact) != set()
    for name in ("", "nothing", "=", "sc=", "gc=greek", "IsGreek", "x}|.", "Greek="):
        assert charclasses.unicode_property(name, is_loose=True) is None, name
    assert len(charclasses._LOOSE_NAMES) == len(charclasses._NAMES)  # no two names become one


def test_case_of_properties() -> None:
    """As in Rust: a set that knows no case is closed first and negated then; in ECMA-262 the other way around."""
    upper, lower, both = property_of("Lu"), property_of("Ll"), property_of("LC")
    ignoring = points_of(members(full_match(r"\p{Lu}", "python", "i")))
    assert ignoring > upper and len(ignoring & lower) > 1300 and len(ignoring - both) < 30
    assert points_of(members(full_match(r"\P{Lu}", "python", "i"))) == points_of(SCALARS) - ignoring
    assert points_of(members(full_match(r"\P{Lu}", "ecma", "iu"))) > lower
    assert points_of(members(full_match(r"[^\p{Lu}]", "python", "i"))) == points_of(SCALARS) - ignoring
