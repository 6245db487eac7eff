r"""Patterns with back-references: searched by backtracking as ECMA-262 says, and held by a regular pattern."""

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator

import pytest

from decodekit.constraints.json_schema.strings import patterns, text
from decodekit.constraints.regex import syntax
from decodekit.constraints.regex.pattern_search import PatternSearch, regular_superset
from decodekit.constraints.regex.syntax import parse_groups
from decodekit.constraints.regex.tree import has_references
from decodekit.constraints.work_budget import done
from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError
from tests.reference import pattern_search as slow
from tests.sizes import few, sized

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
    (r"(?<=\1(a))b", ["aab"], ["ab", "b"]),
    (r"^(a)\12$", ["a\n"], ["aa2"]),
    (r"^(?<x>\p{Script=Greek}|\p{Lu})\k<x>(?!\P{Alphabetic})", ["αα", "AA", "ααa"], ["aa", "αβ", "αα1"]),
]
"""What ECMA-262 reads otherwise: a group that holds nothing is found anywhere, and each round begins without any."""


def is_found(pattern: str, word: str) -> bool:
    return done(patterns.search(patterns.program(pattern), word))


def found(pattern: str, words: list[str]) -> list[str]:
    return [word for word in words if is_found(pattern, word)]


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
    denied = [word for word in WORDS if not is_found(pattern, word)]
    assert all(text.matches(exact.others, word) for word in denied)
    assert not has_references(regular_superset(tree))


def test_the_regular_pattern_is_narrower_than_any_text() -> None:
    searched = patterns.searched(r"^(a|b)\1$", at="#")
    assert searched.excess is not None and not text.matches(searched.texts, "aaa")
    assert patterns.searched("^(a|b)$", at="#").excess is None


def test_limits_and_faults() -> None:
    with pytest.raises(ResourceLimitError, match="steps are made"):
        is_found(r"^(.*)(.*)(.*)\1\2\3$", "ab" * 400 + "c")
    with pytest.raises(InvalidConstraintError, match="no group has the name"):
        parse_groups(r"\k<x>")
    assert not is_found("a", "\ud800")


# -- nothing is lost by what is remembered

LEAVES = ["a", "b", "", "^", "$", r"\1"]
UNARY = ["({})", "(?:{})*", "(?:{})*?", "(?:{}){{2}}", "(?:{}){{1,}}", "(?={})", "(?!{})", "(?<={})"]
BINARY = ["{}{}", "(?:{}|{})"]
SHORT = [word for word in WORDS if len(word) <= 3]


@functools.cache
def patterns_of(size: int) -> list[str]:
    """The patterns of so many leaves and operators."""
    if size == 1:
        return LEAVES
    found = [way.format(inner) for way in UNARY for inner in patterns_of(size - 1)]
    for left in range(1, size - 1):
        pairs = itertools.product(patterns_of(left), patterns_of(size - 1 - left))
        found += [way.format(*pair) for pair, way in itertools.product(pairs, BINARY)]
    return found


class Forgetful(set[object]):
    """Choices that are told apart by instruction and place alone, as if registers decided nothing."""

    def __contains__(self, state: object) -> bool:
        return super().__contains__(state[:2])  # type: ignore[index]

    def add(self, state: object) -> None:
        super().add(state[:2])  # type: ignore[index]


def is_found_forgetfully(pattern: str, word: str) -> bool:
    program = patterns.program(pattern)
    search, tried, none = PatternSearch(program, word), Forgetful(), (None,) * program.num_registers
    ways = (done(search._first(program.start, place, none, tried)) for place in range(len(word) + 1))
    return any(way is not None for way in ways)


def faults(found: list[str], is_found: Callable[[str, str], bool]) -> Iterator[str]:
    for pattern in found:
        try:
            tree, num_groups = parse_groups.__wrapped__(pattern)
        except ConstraintError:
            continue
        for word in SHORT:
            if is_found(pattern, word) != slow.is_found(tree, num_groups, word):
                yield f"{pattern} on {word!r}"


@pytest.mark.slow
@sized("every", 7, slow=1)
def test_all_small_patterns_against_the_slow_twin(every: int) -> None:
    """Of the largest ones every seventh in the ordinary run."""
    small = [*patterns_of(1), *patterns_of(2), *patterns_of(3), *patterns_of(4)[::every]]
    assert next(faults(small, is_found), None) is None
    without_references = lambda pattern, word: is_found(pattern.replace(r"\1", ""), word)  # noqa: E731
    assert next(faults(small, without_references), None) is not None  # negative control


@sized("num_patterns", 50, slow=150)
def test_some_larger_patterns_against_the_slow_twin(num_patterns: int) -> None:
    rng = random.Random(0)
    num_broken = 0
    for _ in range(num_patterns):
        pattern = f"^({rng.choice(patterns_of(3))}){rng.choice(patterns_of(3))}\\1{rng.choice(patterns_of(3))}$"
        try:
            tree, num_groups = parse_groups(pattern)
        except ConstraintError:
            continue
        for word in WORDS:
            expected = slow.is_found(tree, num_groups, word)
            assert is_found(pattern, word) == expected, f"{pattern} on {word!r}"
            num_broken += is_found_forgetfully(pattern, word) != expected
    assert num_broken  # negative control


# -- cost


def num_steps(pattern: str, text: str) -> int:
    search = PatternSearch(patterns.program(pattern), text)
    done(search.is_found())
    return search.num_steps


EXPONENTIAL = [r"^(a|a)*\1b$", r"^(?:(a)|(a))*\1\2b$", r"^(?:a|(a))*\1c$", r"^(?=(a|a)*b)\1$", r"^((a*)*)*b\1$"]


@few(2)
@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_what_was_exponential_is_not(pattern: str) -> None:
    tree, num_groups = parse_groups(pattern)
    slowly = [slow.count(tree, num_groups, "a" * size)[1] for size in (4, 7, 10)]
    quickly = [num_steps(pattern, "a" * size) for size in (10, 20, 40)]
    assert quickly[2] < 5 * quickly[1] < 25 * quickly[0]  # at most as the square
    assert slowly[2] > 4 * slowly[1] > 16 * slowly[0]  # negative control


def test_work_can_be_left_off_and_ends_in_an_error() -> None:
    work = PatternSearch(patterns.program(r"^(.*)(.*)(.*)\1\2\3$"), "ab" * 400 + "c").is_found()
    parts = []
    with pytest.raises(ResourceLimitError) as caught:
        parts.extend(work)
    assert caught.value.code == "DK206"
    assert max(parts) <= 2 * 1024 and len(parts) > 100


@few(3)
@pytest.mark.parametrize("start", ["[", "(?<", r"\k<", r"(a)\1", "(", "a|", r"\11"])
def test_to_read_a_pattern_takes_no_square_of_its_length(start: str) -> None:
    assert not syntax.is_pattern(start * 20_000 + ")")
    with pytest.raises(ResourceLimitError, match="is not read as a pattern"):
        patterns.is_pattern(start * 20_000)
    assert not patterns.is_pattern("(a)" + chr(92) + "1" * 1990)
