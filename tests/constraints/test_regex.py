"""`Regex` is `re.fullmatch` and `parse_search` is `re.search`, on all short texts; refusals name thing and place."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from decodekit.constraints.engine.bitmask import allocate_bitmask
from decodekit.constraints.language import utf8
from decodekit.constraints.language.ir import EMPTY, choice, concat, literal, matches
from decodekit.constraints.language.node import Node
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.regex.regex import Regex, full_match, parse_search
from decodekit.errors import DecodekitError, InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError
from decodekit.testing import check_language
from tests.constraints.views import Views
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

ALPHABET = "\n -abc"
TEXTS = sorted("".join(text) for length in range(6) for text in itertools.product(ALPHABET, repeat=length))

PATTERNS = [
    "a*b", "(a|ab)(c|bcd)?", "[^a]+", "a{2,3}", "(a{1,2}){2}", "a{,2}b", "a{2}b{0}", "^a|b$", "(?=a)[ab]+",
    "(?!ab)[ab]*", r"\ba+\b b", r"a\b.b", "(^a|b)c", "((?!ab)[abc])*", "((?!b$)[ab])*", ".+", "a$\n?", "a$",
    r"\Aa\Z", "(?:)", "",
    "a||b", r"[a-c]-?[\d\s]", "(a*)*", "(a+)+b", "(a|a)*", "(?:a?){3}a{2}", "a.{2}", r"a\Bb", r"(\ba|b)+",
    r"(?:a\b|b)+ ?", "[]a]+", "(?=.*a)(?=.*b).*c", r"(a*)\b b*", "(a|b)*(?!c).*", r"\w+\b-?", "(?:^a)?b", r"(\bab|c)*",
    "(?P<x>a)(?#comment)b", "a{b", "a{,}", "{", "}]", "[a\\-c]", "[-a]", "[a-]", r"[\]]|\n", "(a(?=b)|b){2,3}",
    r"[^\W]c",     "(?=(?!b)[^c])..", "$", "^", "^$|a", "(?!$)a*", "a*?b+?c??", r"\x61\u0062", r"(a|b\b)*c",
    "(?<=a)b", "(?<!a)b", "a(?<=a)b|c", "(?<!b)a+(?<!aa)-", "^(?:(?<!b)a|b(?<=bb))c?$", "(?<=ab)(?<!bab)c*$",
    r"\ba(?<!-a)b?\b", "(?:(?<=a)-)?c", "(?<=a|b)-", r"(?:a*\b)*", r"(?:(?:a|\b)-?)+c", r"(?:\b|(?:\B|a)*b)+-",
    r"^(?:-?(?:b|a*)(?:$|-))*$", r"^(?:-?(?:b|a*)(?:$|-))+$", r"(?:(?=a)a?){2}b", r"(?:a?(?!b)){2,3}c",
    "(?:b+){2,}", "(?:[ab]+){3,}", "(?:a{2,}){2,}b", "(?:a+){2,3}", "(?:a{2,})*", "(?:(?:a*){2,}b){2}",
]  # fmt: skip


@few(19)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_equals_re_on_all_short_texts(pattern: str) -> None:
    whole, part, oracle = full_match(pattern), parse_search(pattern, "python"), re.compile(pattern, re.ASCII)
    assert texts_of(whole) == [text for text in TEXTS if oracle.fullmatch(text)]
    assert texts_of(part) == [text for text in TEXTS if oracle.search(text)]


def texts_of(node: Node) -> list[str]:
    """Those of `TEXTS` that a node holds."""
    seen, _ = Views(ALPHABET.encode(), with_dead_ends=False).of(node, 5)
    return [text for text, bit in zip(TEXTS, reversed(f"{seen:0{len(TEXTS)}b}"), strict=True) if bit == "1"]


def random_pattern(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(11) if depth else 0
    if kind < 3:
        return rng.choice(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\s", "-", "ab"])
    inner = [random_pattern(rng, depth - 1) for _ in range(2)]
    if kind < 6:
        return inner[0] + inner[1]
    if kind == 6:
        return f"(?:{inner[0]}|{inner[1]})"
    if kind < 9:
        return f"(?:{inner[0]}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '{0,3}?'])}"
    return rng.choice(
        [f"(?={inner[0]}){inner[1]}", f"(?!{inner[0]}){inner[1]}", f"^{inner[0]}", f"{inner[0]}$", rf"\b{inner[0]}"]
    )


def test_random_patterns_equal_re() -> None:
    # Small patterns are gone through in `test_regex_exhaustive.py`.
    rng = random.Random(2)
    for _ in range(60):
        pattern = random_pattern(rng, 4)
        oracle = re.compile(pattern, re.ASCII)
        assert texts_of(full_match(pattern)) == [text for text in TEXTS if oracle.fullmatch(text)], pattern
        assert texts_of(parse_search(pattern, "python")) == [text for text in TEXTS if oracle.search(text)], pattern


def test_negative_control_the_comparison_sees_a_difference() -> None:
    assert texts_of(full_match("a+")) != [text for text in TEXTS if re.fullmatch("a*", text)]
    assert texts_of(full_match("a+")) == ["a", "aa", "aaa", "aaaa", "aaaaa"]


@pytest.mark.parametrize(
    ("pattern", "accepts", "rejects"),
    [
        (r"\d\w\s", ["1a ", "1_\ufeff", "0Z\u2028"], ["٣a ", "1é ", "1a", "1aa"]),
        (".", ["a", "😀", "\x0b", "\x85"], ["\n", "\r", "\u2028", "", "ab"]),
        ("[^]", ["\n", "a", "😀"], ["", "ab"]),
        ("[]|a", ["a"], ["", "]"]),
        (r"\cJ\/\-\0\x41\u0041\u{1F600}\uD83D\uDE00", ["\n/-\x00AA😀😀"], []),
        (r"\p{Lu}\p{L}\P{L}[\p{Nd}_]", ["Éa-3", "Aß ٣", "Ωω__"], ["éa-3", "A--3"]),
        (r"\p{Letter}\p{gc=Lu}", ["aB"], ["ab"]),
        (r"[\w-.]+", ["a-.b"], ["a b", ""]),
        ("a{,2}", ["a{,2}"], ["a", "", "aa"]),
        ("x{1", ["x{1"], ["x"]),
        ("(?<year>[0-9]{4})", ["2024"], ["202"]),
        ("^[^é-ü]$", ["a", "日"], ["é", "ö", "ab"]),
        ("日{2}[あ-ん]+", ["日日あん"], ["日あ", "日日"]),
        (r"[\b]", ["\b"], ["b", ""]),
        (r"\101\1[\60-\63]\08\477", ["A\x010\x008'7"], ["AA", "101"]),
        (r"(a)\2\8", ["a\x028"], ["aa8", "a"]),
    ],
)
def test_ecma(pattern: str, accepts: list[str], rejects: list[str]) -> None:
    check_language(Regex(pattern, "ecma"), accepts=accepts, rejects=rejects)


@pytest.mark.parametrize(
    ("pattern", "accepts", "rejects"),
    [
        ("^a|b$", ["a", "abc", "xb", "b"], ["xa", "bx", "", "ca"]),
        ("^(a|b)$", ["a", "b"], ["ab", "a\n", ""]),
        ("a.c", ["abc", "xxabcxx", "\nabc"], ["ac", "a\nc"]),
        ("", ["", "x"], []),
        (r"\bcat\b", ["cat", "a cat.", "cat-dog"], ["cats", "concat", "ca t"]),
        ("^(?!.*foo).*$", ["bar", "fo o", ""], ["foo", "xfoox", "a\nb"]),
        ("^(?=.*[A-Z])(?=.*[0-9]).{4,}$", ["abC1", "1Cxxx"], ["abcd", "C1", "ABCD"]),
        ("^((?!--)[a-z-])*$", ["a-b-c", ""], ["a--b", "A"]),
        ("^((?!\n\n)[^])*$", ["a\nb\n"], ["a\n\nb"]),
    ],
)
def test_search(pattern: str, accepts: list[str], rejects: list[str]) -> None:
    node = parse_search(pattern)
    for text in accepts:
        assert matches(node, text.encode()), text
    for text in rejects:
        assert not matches(node, text.encode()), text


def test_another_spelling_of_the_characters() -> None:
    # Each character raw or as its number between angle brackets: languages stay closed under spelling.
    def encode(ranges: utf8.Ranges) -> Node:
        members = [p for low, high in utf8.intersect(ranges, ((0x20, 0x7E),)) for p in range(low, high + 1)]
        return choice(*(choice(literal(bytes([p])), literal(f"<{p}>".encode())) for p in members if chr(p) not in "<>"))

    node = parse_search("^(?!ab)[a-c]+$", "ecma", encode)
    for text, expected in {
        "abc": False,
        "<97>b": False,
        "a<98>": False,
        "ac": True,
        "<97><99>": True,
        "<100>": False,
    }.items():
        assert matches(node, text.encode()) == expected, text


@pytest.mark.parametrize(
    ("pattern", "flavour", "error", "message", "column"),
    [
        (r"(a)\1", "python", UnsupportedSchemaError, "back-references", 4),
        (r"(?<n>a)\k<n>", "ecma", UnsupportedSchemaError, "back-references", 8),
        ("(x(?<=a)b)*", "ecma", UnsupportedSchemaError, "lookbehind", None),
        ("(?=a)(?<!b)b", "python", UnsupportedSchemaError, "lookbehind", None),
        ("(?<!a)+b", "ecma", InvalidConstraintError, "cannot be repeated", 7),
        ("(?i)a", "ecma", UnsupportedSchemaError, "inline flags", 2),
        ("a(?i)*", "python", InvalidConstraintError, "nothing to repeat before", 6),
        ("(?-u)a", "python", UnsupportedSchemaError, "the flag 'u'", 4),
        ("(?U)a", "python", InvalidConstraintError, "no flag 'U'", 3),
        ("(?L:a)", "python", UnsupportedSchemaError, "the flag 'L'", 3),
        ("(?z:a)", "python", InvalidConstraintError, "no flag 'z'", 3),
        ("(?i-i:a)", "python", InvalidConstraintError, "on and off", 6),
        ("(?-:a)", "python", InvalidConstraintError, "a flag must follow", 4),
        ("(?>a)", "ecma", UnsupportedSchemaError, "atomic", 1),
        ("(?<n>a)(?P<n>b)", "python", InvalidConstraintError, "two groups", 12),
        (r"(?<n>a)\k<n>", "python", UnsupportedSchemaError, "back-references", 8),
        ("(?&n)", "python", UnsupportedSchemaError, "this kind of group", 1),
        ("(?P<n>a)(?P=n)", "python", UnsupportedSchemaError, "back-references", 9),
        ("(?P<n>a)(?P<n>b)", "python", InvalidConstraintError, "two groups", 13),
        ("(a)?(?(1)b|c)", "python", UnsupportedSchemaError, "conditional", 5),
        ("(?<=a|bc)", "python", InvalidConstraintError, "one length", 1),
        ("a(?#b", "python", InvalidConstraintError, "comment is not closed", 2),
        (r"\N{NO SUCH NAME}", "python", InvalidConstraintError, "no character is called", 4),
        (r"\400", "python", InvalidConstraintError, "an octal escape", 1),
        (r"[\d-z]", "python", InvalidConstraintError, "no end of a range", 5),
        ("a{4294967295}", "python", ResourceLimitError, "count", 13),
        (r"a\Z", "ecma", UnsupportedSchemaError, r"the escape \\Z", 2),
        (r"\p{Greek}", "ecma", UnsupportedSchemaError, "'Greek'", 9),
        (r"\p{InGreek}", "python", UnsupportedSchemaError, "'InGreek'", 11),
        (r"\p{IsGreek}", "python", UnsupportedSchemaError, "'IsGreek'", 11),
        (r"\p{^L}", "python", UnsupportedSchemaError, r"'\^L'", 6),
        (r"\p{Changes_When_NFKC_Casefolded}", "python", UnsupportedSchemaError, "NFKC_Casefolded", None),
        (r"\x{110000}", "python", InvalidConstraintError, "no code point", 10),
        (r"\u{}", "python", InvalidConstraintError, "hexadecimal digits", 4),
        ("a**", "ecma", InvalidConstraintError, "two quantifiers", 3),
        ("*a", "ecma", InvalidConstraintError, "nothing to repeat", 1),
        ("b{3,2}", "ecma", InvalidConstraintError, "wrong order", 6),
        ("a(b", "ecma", InvalidConstraintError, "not closed", 2),
        ("a)b", "ecma", InvalidConstraintError, "closes no group", 2),
        ("ab[c", "ecma", InvalidConstraintError, "not closed", 3),
        ("[z-a]", "ecma", InvalidConstraintError, "wrong order", 4),
        (r"\xg0", "ecma", InvalidConstraintError, "hexadecimal", 2),
        (r"\u{110000}", "ecma", InvalidConstraintError, "no code point", 10),
        ("a\\", "ecma", InvalidConstraintError, "ends inside", 3),
        (r"(?:a*\b){9}", "python", UnsupportedSchemaError, "may match nothing", None),
        ("(" * 101 + ")" * 101, "ecma", ResourceLimitError, "nested deeper", 101),
        ("a{99999999999}", "ecma", ResourceLimitError, "count", 14),
        ("a" * 200_001, "ecma", ResourceLimitError, "characters", None),
        (r"\b" * 101, "ecma", ResourceLimitError, "assertions", None),
    ],
)
def test_refusals(pattern: str, flavour: str, error: type[DecodekitError], message: str, column: int | None) -> None:
    with pytest.raises(error, match=message) as caught:
        Regex(pattern, flavour).root()  # type: ignore[arg-type]
    if column is not None:
        assert caught.value.at is not None and f"character {column} of" in caught.value.at
        _, line, caret = caught.value.at.split("\n")
        assert len(caret) <= len(line) + 1


def test_unknown_flavour() -> None:
    with pytest.raises(InvalidConstraintError, match="flavour"):
        Regex("a", "perl")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flavour", "flags", "error", "message"),
    [
        ("python", "L", UnsupportedSchemaError, "the flag 'L' is not supported"),
        ("python", "l", UnsupportedSchemaError, "the flag 'l' is not supported"),
        ("python", "z", InvalidConstraintError, "no flag 'z'"),
        ("python", "au", InvalidConstraintError, "exclude each other"),
        ("python", re.IGNORECASE, InvalidConstraintError, "flags=re.IGNORECASE is no text"),
        ("ecma", "v", UnsupportedSchemaError, "the flag 'v' is not supported"),
        ("ecma", "x", InvalidConstraintError, "no flag 'x'"),
    ],
)
def test_flags_are_checked(flavour: str, flags: str, error: type[DecodekitError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        Regex("a", flavour, flags)  # type: ignore[arg-type]
    assert caught.value.at == "flags" and caught.value.hint


def test_parse_is_membership() -> None:
    assert Regex("a+").parse("aa") == "aa"
    with pytest.raises(ValueError, match="does not match"):
        Regex("a+").parse("ab")
    assert Regex("a") == Regex("a") and hash(Regex("a")) == hash(Regex("a")) and Regex("a") != Regex("a", "ecma")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a*)*b", "a" * 60), ("(a|a)*b", "a" * 60), ("(a|aa)+$", "a" * 60), ("(x+x+)+y", "x" * 60),
        ("((a{0,1000}){0,1000}){0,1000}", "a" * 60), ("(a{1,1000}){1,1000}", "a" * 60),
        ("((a{1,100}){1,100}){1,100}", "a" * 40), ("(.*)(.*)(.*)(.*)(.*)[^a]", "a" * 60), (".*a.{30}", "ab" * 30),
        ("(?:(?:a?){1000000000}){1000000000}", "a" * 60), ("(?=.*a{20})(?=.*b{20}).*", "ab" * 20),
        ("a?" * 500 + "a" * 500, "a" * 40), ("(ab|a)(bc|c){0,100000}", "a" + "bc" * 20),
        ("[a-z]{1,4294967294}", "a" * 60), ("(" * 100 + "a" + ")*" * 100, "a" * 60),
        ("|".join("a" * n for n in range(1, 150)), "a" * 50),
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_hostile_patterns_are_bounded(pattern: str, text: str) -> None:
    begin = time.process_time()
    vocabulary = byte_vocabulary([b"aa", b"ab", b"aaaa", b"xx"])
    matcher = compile(Regex(pattern), vocabulary).matcher()
    bitmask = allocate_bitmask(1, vocabulary.size)
    for byte in text.encode():
        assert matcher.accept(byte)
        matcher.fill_bitmask(bitmask)
    assert bitmask.any()
    # Takes milliseconds to a second; an exponential construction takes for ever.
    assert time.process_time() - begin < 20


def test_empty_classes_have_no_texts() -> None:
    assert full_match("[^\\s\\S]") is EMPTY
    assert concat(full_match("a[]", "ecma"), literal(b"x")) is EMPTY
