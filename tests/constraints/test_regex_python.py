"""The law of the Python flavour: `full_match(p)` accepts exactly what `re.fullmatch(p, text)` accepts."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter

import pytest

from decodekit.constraints.regex.regex import Regex, full_match
from decodekit.errors import DecodekitError, ResourceLimitError, UnsupportedSchemaError
from decodekit.testing import check_language
from tests.constraints.regex_patterns import BY_HAND, accepted, compiled, differences, random_pattern

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
