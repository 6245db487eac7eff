r"""Patterns with back-references: searched by backtracking as ECMA-262 says, and held by a regular pattern."""

import itertools
import re

import pytest

from decodekit.constraints.json_schema.strings import patterns, text
from decodekit.constraints.regex import backtracking
from decodekit.constraints.regex.syntax import parse_groups
from decodekit.errors import InvalidConstraintError, ResourceLimitError

WORDS = ["".join(letters) for count in range(6) for letters in itertools.product("ab", repeat=count)]
AS_IN_RE = [
    r"^(a|b)\1$", r"(a+)b\1", r"^(?<x>ab?)\k<x>$", r"^(a*?)\1b$", r"(?=(a+))\1b", r"^(?!(a|b)\1).*$", r"^(.)(.)\2\1$",
    r"^((a|b)\2)\1$", r"(?<=^(a|b))\1", r"((?<=a)b)+", r"^(?i:(A)\1)$", r"^(a{2,3})\1?$", r"^(a|ab)(b|)\2?$",
    r"\ba\b", r"^a??b", r"(a{0}b)\1", r"^(?:(a)b|ba)+$", r"^(?:a|b(?!a))*$",
]  # fmt: skip
"""Patterns that mean the same to `re`: no group is referred to that holds nothing."""
OTHERWISE = [
    (r"^(a)?\1b$", ["b", "aab"], ["ab", "a"]),
    (r"^(?:(a)|b)*\1$", ["", "b", "aa", "ab"], ["ba", "a"]),
    (r"^\1(a)$", ["a"], ["aa", ""]),
    (r"^(a\1)$", ["a"], ["aa"]),
    (r"^(?:(?<x>a)|(?<x>b))\k<x>$", ["aa", "bb"], ["ab", "a"]),
    (r"^(?:a*)*$", ["", "aaaa"], ["b"]),
    (r"^(a)\12$", ["a\n"], ["aa2"]),
]
"""What ECMA-262 reads otherwise: a group that holds nothing is found anywhere, and each round begins without any."""


def found(pattern: str, words: list[str]) -> list[str]:
    return [word for word in words if patterns.is_found(pattern, word)]


@pytest.mark.parametrize("pattern", AS_IN_RE)
def test_against_re(pattern: str) -> None:
    python = re.compile(pattern.replace("(?<x>", "(?P<x>").replace(r"\k<x>", "(?P=x)"))
    assert found(pattern, WORDS) == [word for word in WORDS if python.search(word)]


@pytest.mark.parametrize(("pattern", "good", "bad"), OTHERWISE)
def test_by_hand(pattern: str, good: list[str], bad: list[str]) -> None:
    assert found(pattern, [*good, *bad]) == good


@pytest.mark.parametrize("pattern", [*AS_IN_RE, *(pattern for pattern, _, _ in OTHERWISE)])
def test_the_regular_pattern_holds_all(pattern: str) -> None:
    tree, _ = parse_groups(pattern)
    exact = patterns.searched(pattern, at="#")
    assert all(text.matches(exact.texts, word) for word in found(pattern, WORDS))
    denied = [word for word in WORDS if not patterns.is_found(pattern, word)]
    assert all(text.matches(exact.others, word) for word in denied)
    assert not backtracking.has_references(backtracking.regular(tree))


def test_the_regular_pattern_is_narrower_than_any_text() -> None:
    searched = patterns.searched(r"^(a|b)\1$", at="#")
    assert searched.excess is not None and not text.matches(searched.texts, "aaa")
    assert patterns.searched("^(a|b)$", at="#").excess is None


def test_limits_and_faults() -> None:
    with pytest.raises(ResourceLimitError, match="ways are tried"):
        patterns.is_found(r"^(a|a)*\1b$", "a" * 40)
    with pytest.raises(InvalidConstraintError, match="no group has the name"):
        parse_groups(r"\k<x>")
    assert not patterns.is_found("a", "\ud800")
