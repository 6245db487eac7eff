"""Any string as a pattern: the language of `re`, or an error that says where; never a crash, never a hang."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter

import pytest

from decodekit.constraints.language.ir import EMPTY
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex.regex import full_match, parse_search
from decodekit.errors import ConstraintError, UnsupportedSchemaError
from tests.constraints.regex_patterns import BY_HAND, as_re, compiled, differences
from tests.sizes import few

PIECES = [
    *"ab1 \n\\()[]{}*+?|^$.-,:=!<>#PiamsxuLzN_&~é0123456789", "(?", "(?:", "(?P<", "(?i:", "(?x)", "(?=", "(?!", "(?<=",
    "(?<!", "(?>", "(?#", r"\d", r"\w", r"\b", r"\Z", r"\N{DIGIT ONE}", r"\x4", r"\u00", "{1,2}", "{,2}", "[^", "[a-",
    "*+", "??", "(?-i:", "(?P=", "(?(1)", r"\1", r"\01", "(?aiu", r"\p{L}", r"\k<n>", r"\u{61}", r"\cJ", "(?<n>",
    "(?i)", "(?-i)", r"\P{L}", r"\pN", r"\z",
]  # fmt: skip
SEEDS = [pattern for _, _, patterns in BY_HAND for pattern in patterns]


def random_string(rng: random.Random) -> str:
    """Pieces of syntax in any order, or a good pattern with something put in, left out or doubled."""
    if rng.random() < 0.5:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
    pattern = rng.choice(SEEDS)
    for _ in range(rng.randrange(1, 3)):
        place = rng.randrange(len(pattern) + 1)
        put = rng.choice([rng.choice(PIECES), rng.choice(SEEDS), ""])
        pattern = pattern[:place] + put + pattern[place + (not put) :]
    return pattern


def language(pattern: str, flavour: str, flags: str) -> Node | None:
    """The language, or None after an error that is as it should be."""
    try:
        return full_match(pattern, flavour, flags)  # type: ignore[arg-type]
    except ConstraintError as error:
        found = error
    assert found.cause and found.hint, pattern
    if found.at is not None:
        _, line, caret = found.at.split("\n")
        assert caret.strip() == "^" and len(caret) <= len(line) + 1, pattern
    return None


def compare_random_strings(seed: int, num_patterns: int) -> Counter[str]:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(num_patterns):
        pattern, flags = random_string(rng), "".join(rng.sample("imsxa", rng.choice([0, 0, 1, 2])))
        try:
            oracle: re.Pattern[str] | None = compiled(pattern, flags)
        except (re.error, OverflowError, ValueError):
            oracle = None
        node = language(pattern, "python", flags)
        if node is None:
            outcomes["neither" if oracle is None else "refused"] += 1
            continue
        if oracle is None:  # what other dialects have
            if "#" in pattern:
                continue
            oracle = compiled(as_re(pattern), flags)
            outcomes["of other dialects"] += 1
        alphabet = rng.choice(["ab1 \n", "aAé0\n"])
        assert not differences(node, oracle, alphabet, 3), (pattern, flags)
        outcomes["compared"] += 1
    return outcomes


def test_random_strings_as_python_patterns() -> None:
    outcomes = compare_random_strings(seed=3, num_patterns=1500)
    assert min(outcomes["compared"], outcomes["neither"]) > 400 and outcomes["refused"] < 20
    assert outcomes["of other dialects"] > 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_strings() -> None:
    assert compare_random_strings(seed=4, num_patterns=100_000)["compared"] > 30_000


@pytest.mark.parametrize("pattern", [r"$\P{L }|a", r"\Pn", r"\p{l_}", r"[\p{ n}a]", r"[\Pn]", r"[^\P{-N}]"])
def test_names_of_properties_are_loose(pattern: str) -> None:
    """As Rust reads them: without blanks, small letters like capital ones."""
    assert not differences(full_match(pattern), compiled(as_re(pattern)), "aA1 \n", 2)


@pytest.mark.parametrize(
    ("written", "read"),
    [(r"\P", r"\p"), (r"\pN", r"\d|a"), ("(?i)", ""), (r"\z", "$"), ("{,2}", "{,3}"), (r"\w", r"\d"), ("*+", "*")],
)
def test_patterns_that_are_read_otherwise_are_noticed(written: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control of the comparison."""
    rightly = full_match

    def misread(pattern: str, *rest: object) -> Node:
        return rightly(pattern.replace(written, read), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sys.modules[__name__], "full_match", misread)
    with pytest.raises((AssertionError, re.error)):  # of a pattern that is taken and should not be
        compare_random_strings(seed=3, num_patterns=5000)


def test_what_is_refused_is_named() -> None:
    # Patterns that `re` takes and that are no regular language, or not one that is understood here.
    for pattern in (r"(a)\1", "(?P<n>a)(?P=n)", "(a)?(?(1)b|c)", "(?:(?<=a)b)*", "(?>(?<=a)b)", "(?=(?<=a)b)b"):
        compiled(pattern)
        with pytest.raises(UnsupportedSchemaError):
            full_match(pattern)


def test_random_strings_as_ecma_patterns_give_a_language_or_an_error() -> None:
    rng = random.Random(5)
    outcomes = Counter(
        language(random_string(rng), "ecma", rng.choice(["", "u", "i", "iu", "ms"])) is None for _ in range(3000)
    )
    assert min(outcomes.values()) > 500


@few(2)
@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("a" * 200_000, marks=pytest.mark.slow),
        "[a]" * 9_000, "a|" * 19_999 + "a", r"\w" * 5_000, "(?i)" + "k" * 20_000, "a?" * 9_000,
        "[" + "ab-z" * 40_000 + "]", "(?x)" + " #\n" * 60_000, "(?#" + "x" * 190_000 + ")", "(" * 200_000,
        "[" * 50_000, "{" * 20_000, "a{1,2}" * 5_000, "(?:" * 99 + "a" + "){1000000000}" * 99, "(?P<n>" * 30_000,
        "\\" * 19_999, r"\N{" * 60_000, "(?>" * 99 + "a|ab" + ")" * 99, "(?:" * 60 + "a" + "){1,9}+" * 60,
        r"(?:(?:\b|a){0,1000000000}){0,1000000000}", r"(?:a{1,1000000000}+){1,1000000000}+", "a{4294967294}" * 1000,
        "(?i:" * 100 + "a" + ")" * 100, "(?>" + "(?:a|b?)" * 30 + ")", "a{" + "0" * 100_000 + "1}",
        "(?=" * 99 + ")" * 99, "(?-" + "i" * 100_000,
    ],
    ids=lambda pattern: f"{pattern[:12]}.{len(pattern)}",
)  # fmt: skip
@pytest.mark.timeout(60)
def test_large_patterns_end_soon(pattern: str) -> None:
    for flavour in ("python", "ecma") if len(pattern) < 100_000 else ("python",):
        begin = time.process_time()
        node = language(pattern, flavour, "")
        for byte in b"abababab" if node is not None else b"":
            node = node.derivative(byte) if node is not None else None
        assert time.process_time() - begin < 20  # seconds at most; an exponential construction takes for ever


def test_a_search_of_an_atomic_group_is_a_search() -> None:
    found = parse_search("(?>a|ab)c", "python")
    for text in ("ac", "bacb", "abc", "xabcx", "aacb", "c"):
        rest = found
        for byte in text.encode():
            rest = rest.derivative(byte)
        assert (rest is not EMPTY and rest.is_nullable) == (re.search("(?>a|ab)c", text) is not None)
