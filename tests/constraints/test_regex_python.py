"""The law of the Python flavour: `full_match(p)` accepts exactly what `re.fullmatch(p, text)` accepts."""

from __future__ import annotations

import itertools
import random
import re
import sys
import warnings
from collections import Counter

import pytest

from decodekit.constraints.regex import syntax
from decodekit.constraints.regex.regex import Regex, full_match
from decodekit.errors import DecodekitError, ResourceLimitError, UnsupportedSchemaError
from decodekit.testing import check_language
from tests.constraints.regex_patterns import BY_HAND, accepted, compiled, differences, random_pattern
from tests.sizes import few

REFUSED = {r"(?<=\b)a"}  # of the patterns by hand: a lookbehind that looks past its end
LENGTHS = {1: 8, 2: 6, 3: 6, 4: 4}  # of the texts, by the size of the alphabet; 3 for larger ones

ATOMS = [
    ("ab\n", ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\n", "ab", r"\s", "^", "$", r"\b", r"\Z"]),
    ("aA_", ["a", "A", ".", "[a]", "[^a]", r"\w", "_", "aA", r"\W", "(?i:a)", "[A-_]"]),
    ("ab", ["a", "b", ".", "ab", "ba", "a?", "(?:|a)"]),
    ("kKé ", ["k", "K", ".", "[j-l]", "[^k]", r"\w", "é", r"\W", r"\s"]),
    ("1٣\u0301", [r"\d", r"\D", "1", "[0-9]", r"\w", "\u0301", r"[\W\d]"]),
    # No capitals and ranges from beyond U+FFFF: see test_where_re_is_not_consistent.
    ("\U00010428\U00010400", [".", "\U00010428", "[\U00010428]", "[^\U00010428]", r"\w"]),
]


@few(8)
@pytest.mark.parametrize("index", range(len(BY_HAND)))
def test_patterns_by_hand(index: int) -> None:
    alphabet, flags, patterns = BY_HAND[index]
    for pattern in patterns:
        oracle = compiled(pattern, flags)
        if pattern in REFUSED:
            with pytest.raises(UnsupportedSchemaError):
                full_match(pattern, "python", flags)
            continue
        node = full_match(pattern, "python", flags)
        assert not differences(node, oracle, alphabet, LENGTHS.get(len(alphabet), 3)), (pattern, flags)


def test_the_list_covers_the_constructs() -> None:
    assert sum(len(patterns) for _, _, patterns in BY_HAND) > 450
    assert {flag for _, flags, _ in BY_HAND for flag in flags} == set("aimsx")


def compare_random_patterns(seed: int, num_patterns: int, depth: int) -> Counter[str]:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(num_patterns):
        alphabet, atoms = rng.choice(ATOMS)
        pattern = random_pattern(rng, depth, atoms, is_atomic=rng.random() < 0.5)
        flags = "".join(rng.sample("imsa", rng.choice([0, 0, 1, 2])))
        oracle: re.Pattern[str] | None
        try:
            oracle = compiled(pattern, flags)
        except re.error:
            oracle = None
        try:
            node = full_match(pattern, "python", flags)
            assert oracle is not None, ("`re` refuses", pattern, flags)
            found = differences(node, oracle, alphabet, 5 if len(alphabet) <= 3 else 4)
            assert not found, (pattern, flags, min(found))
            outcomes["compared"] += 1
        except (UnsupportedSchemaError, ResourceLimitError):
            outcomes["refused"] += oracle is not None
        except DecodekitError:
            assert oracle is None, (pattern, flags)
    return outcomes


def test_random_patterns() -> None:
    # Small patterns are gone through in `test_regex_exhaustive.py`.
    outcomes = compare_random_patterns(seed=1, num_patterns=400, depth=3)
    assert outcomes["compared"] > 330 and outcomes["refused"] < 20  # about 2 in 100: lookbehinds in groups


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_random_patterns(seed: int) -> None:
    outcomes = compare_random_patterns(seed, num_patterns=4000, depth=4)
    assert outcomes["compared"] > 3000


@pytest.mark.parametrize(
    ("pattern", "flags", "wrong", "alphabet"),
    [
        (r"\w", "", r"(?a:\w)", "é"),
        (r"\b.", "", r"(?a:\b).", "é"),
        ("k", "i", "[kK]", "k\u212a"),
        ("a$\n^a", "m", "a$\n^a", "a\n"),
        ("a*+a", "", "a*a", "a"),
        ("(?>a|ab)b", "", "(?>ab|a)b", "ab"),
        ("(?:|a)*+a", "", "(?:a|)*+a", "a"),
        ("a$\n", "", r"a\Z\n", "a\n"),
    ],
)
def test_negative_control_a_wrong_variant_is_seen(pattern: str, flags: str, wrong: str, alphabet: str) -> None:
    oracle = compiled(pattern, flags)
    assert not differences(full_match(pattern, "python", flags), oracle, alphabet, 3)
    assert differences(full_match(wrong), oracle, alphabet, 3)


def test_rounds_inside_rounds_that_may_be_empty() -> None:
    # These accepted nothing but the empty text: the rounds of the inner group forgot that something had been read.
    for pattern, flags in (("(?:(?:(?:(?=$)\\s)+?){,2}){,2}", "m"), ("(?:(?:(?:(?!b).)+)*?){0,3}?", "")):
        assert not differences(full_match(pattern, "python", flags), compiled(pattern, flags), "a\n", 4)


def test_where_re_is_not_consistent() -> None:
    # The known differences, all under the flag i and beyond U+FFFF. Should `re` change, these lines fail, and the
    # docstring of Regex loses its last sentences.
    capital, small = "\U00010400", "\U00010428"

    def found(pattern: str, flags: str, alphabet: str) -> set[str]:
        return differences(full_match(pattern, "python", flags), compiled(pattern, flags), alphabet, 1)

    # A capital is forgotten in a class and between bars, though not alone and in a range; until Python 3.13.
    is_fixed = sys.version_info >= (3, 14)
    forgotten = set() if is_fixed else {capital}
    assert found(f"[{capital}a]", "i", capital) == found(f"{capital}|a", "i", capital) == forgotten
    assert not found(capital, "i", capital + small) and not found(f"[{capital}-\U00010401]", "i", capital + small)
    # A range is compared with the first letter of the upper case, and without regard to the flag a.
    assert found("[\u02bc-\U00010000]", "i", "\u0149") == {"\u0149"}
    assert found(f"[{capital}-\U00010401]", "ia", capital + small) == (set() if is_fixed else {small})


def test_masks_agree_at_every_token() -> None:
    check_language(Regex(r"\w+\s(?i:ok)\b.?"), accepts=["é٣ OK", "a\u2003oK!"], rejects=["é٣ Okay", "- ok", "a ok\n"])
    check_language(Regex(r"[a-z]++-?+(?>1|12)$"), accepts=["ab-1", "x1"], rejects=["ab-12", "-1", "x1\n"])


def test_flags_in_the_pattern_are_flags_beside_it() -> None:
    for flags, pattern in (("i", "aB"), ("x", "a b # c"), ("s", "."), ("m", "a$\n^a"), ("a", r"\w"), ("im", "A$\n^a")):
        beside, inside = full_match(pattern, "python", flags), full_match(f"(?{flags}){pattern}")
        found = accepted(beside, "aAbBé\n", 3)
        assert found and found == accepted(inside, "aAbBé\n", 3)
        assert found != accepted(full_match(pattern), "aAbBé\n", 3)


LETTERS = "aAbBα1_\n"


@pytest.mark.parametrize(
    ("pattern", "flags", "in_re", "wrong"),
    [
        ("(?<x>a)(?<été>b)", "", "(?P<x>a)(?P<été>b)", "(?P<x>a)"),
        (r"\x{61}\u{000062}\u0061", "", "aba", "ab"),
        (r"[\x{61}-\u{62}\x41]", "", "[abA]", "[a-b]"),
        (r"a\n?\z", "", r"a\n?\Z", "a$"),
        # Flags hold up to the end of the group, in its other alternatives too.
        ("a(?i)b|a", "", "a(?i:b)|(?i:a)", "a(?i:b)|a"),
        ("(a(?i)b|a)b", "", "(?:a(?i:b)|(?i:a))b", "(?i:ab|a)b"),
        ("a(?-i)b", "i", "(?i:a)b", "(?i:ab)"),
        ("(?i)a(?-i)b(?i:a)", "", "(?i:a)b(?i:a)", "(?i)aba"),
        ("a(?i)", "", "a", "(?i)a"),
        ("(?:b(?s)).(?s).", "", "b.(?s:.)", "b(?s:..)"),
        ("(?a)a(?u).|\\w", "", "a.|\\w", "(?a)a.|\\w"),
        ("a(?x) b # c\n1", "", "ab1", "ab"),
        (r"\p{L}", "", r"[^\W\d_]", r"\w"),
        (r"\p{Lu}\P{Lu}", "", r"[AB][^AB]", "[AB]."),
        (r"\pL\PL", "", r"[^\W\d_][\W\d_]", r"\w[\W\d_]"),
        (r"\p{Lu}\P{Lu}", "i", r"[^\W\d_][\W\d_]", r"[AB][^AB]"),
        (r"[\p{N}\p{sc=Greek}]+", "", "[1α]+", "[1a]+"),
        (r"[^\P{greek}]", "", "α", "[^α]"),
        (r"(?a)\p{Alphabetic}", "", r"[^\W\d_]", r"(?a)[^\W\d_]"),
        (r"(?i)\p{Lower}", "a", "[aAbBα]", "[abα]"),
    ],
)
def test_what_other_dialects_write(pattern: str, flags: str, in_re: str, wrong: str) -> None:
    with pytest.raises(re.error):
        compiled(pattern, flags)
    node = full_match(pattern, "python", flags)
    assert not differences(node, compiled(in_re), LETTERS, 3)
    assert differences(node, compiled(wrong), LETTERS, 3)


def test_masks_of_what_other_dialects_write() -> None:
    check_language(
        Regex(r"(?<name>\p{Script=Greek}+)(?i)x\z"), accepts=["αβx", "Ωx", "ωX"], rejects=["αβ", "ax", "αx\n", "αxx"]
    )
    check_language(Regex(r"(?<!\p{L})\p{Nd}(?=\p{Greek})."), accepts=["1α", "٣Ω"], rejects=["1a", "αα", "1"])


def readings(pattern: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Regex(pattern)
    assert all(warning.filename == __file__ and warning.category is UserWarning for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("[[:alpha:]]", "a class in a class"), ("[_[:alpha:]]+", "a class in a class"),
        ("x[[a-z]0-9]", "a class in a class"), ("[^[a]b]", "a class in a class"),
        ("[a-z&&b]", "an intersection"), ("[a-z--b]", "a difference"), ("[+--b]", "a difference"),
        ("[a~~b]", "a symmetric difference"), ("[a||b]", "a union"),
    ],
)  # fmt: skip
def test_warnings_of_sets_in_sets(pattern: str, what: str) -> None:
    (said,) = readings(pattern)
    assert said.startswith(what) and "as `re` reads it" in said and pattern in said


@pytest.mark.parametrize("pattern", ["[[]", r"[+*/(\[]", "[([]x", "[]a]", "[-a]", "[a-]", r"[a\--]", "[&]", r"[\[a]]"])
def test_no_warning_where_all_dialects_agree_or_others_refuse(pattern: str) -> None:
    assert not readings(pattern)


def test_warnings_are_those_of_re_where_other_dialects_read_a_class() -> None:
    """Over all short classes: `re` warns of the same, and of brackets that close nothing elsewhere."""
    counts: Counter[str] = Counter()
    for letters in itertools.product("[]^a-&", repeat=5):
        pattern = "[" + "".join(letters) + "]"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            re.purge()
            try:
                re.compile(pattern)
            except re.error:
                continue
        theirs = Counter(str(warning.message).split(" at ")[0] for warning in caught)
        ours = Counter(reading.split(" of other")[0] for reading in syntax.other_readings(pattern))
        assert ours["a difference"] == theirs["Possible set difference"], pattern
        assert ours["an intersection"] == theirs["Possible set intersection"], pattern
        counts.update({"both": bool(ours["a class in a class"] and theirs["Possible nested set"])})
        counts.update({"ours": ours["a class in a class"] > theirs["Possible nested set"]})
        counts.update({"theirs": ours["a class in a class"] < theirs["Possible nested set"]})
        if ours["a class in a class"]:
            assert pattern.count("[") > 1 and pattern.count("]") > 1, pattern
    assert min(counts.values()) > 20
