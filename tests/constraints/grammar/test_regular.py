"""Folded rules have the texts of the rules, and what is regular is one terminal."""

from __future__ import annotations

import random

import pytest

from decodekit.constraints.grammar import gbnf
from decodekit.constraints.grammar.lark import lark_rules as lark
from decodekit.constraints.grammar.regular import MAX_PARTS, fold
from decodekit.constraints.grammar.rules import (
    EMPTY_TEXT,
    NO_TEXT,
    Alternatives,
    Concatenated,
    Expression,
    Repeated,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
    alternatives,
    repeated,
    sequence,
)
from decodekit.constraints.grammar.source import Source
from decodekit.constraints.language import ir
from tests.constraints.grammar import test_gbnf, test_lark
from tests.reference import earley


def of_lark(text: str) -> Rules:
    return lark.load_rules(Source(text))


def of_gbnf(text: str) -> Rules:
    return gbnf.load_rules(Source(text))


def texts(rules: Rules, max_length: int = 5) -> set[bytes]:
    return earley.language(rules, b"ab", max_length)


@pytest.mark.parametrize("name", test_lark.CONSTRUCTS)
def test_lark_constructs_keep_their_texts(name: str) -> None:
    rules = of_lark(test_lark.CONSTRUCTS[name][0])
    assert texts(fold(rules)) == texts(rules)


@pytest.mark.parametrize("name", test_gbnf.CONSTRUCTS)
def test_gbnf_constructs_keep_their_texts(name: str) -> None:
    rules = of_gbnf(test_gbnf.CONSTRUCTS[name][0])
    assert texts(fold(rules)) == texts(rules)


@pytest.mark.parametrize("name", test_gbnf.SHIPPED)
def test_larger_grammars_keep_their_texts(name: str) -> None:
    grammar, accepted, rejected = test_gbnf.SHIPPED[name]
    rules = of_gbnf("\n".join(line.removeprefix(" " * 8) for line in grammar.split("\n")))
    folded = fold(rules)
    assert len(folded.rules) <= len(rules.rules)
    assert all(earley.accepts(folded, text.encode()) for text in accepted)
    assert not any(earley.accepts(folded, text.encode()) for text in rejected)


def random_expression(rng: random.Random, depth: int) -> Expression:
    kind = rng.randrange(12) if depth else rng.randrange(5)
    if kind < 3:
        return Terminal(ir.literal(rng.choice([b"a", b"b", b"ab"])))
    if kind < 5:
        return rng.choice([RuleRef(name) for name in "rst"] + [EMPTY_TEXT])
    parts = [random_expression(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    if kind < 8:
        return sequence(*parts)
    if kind < 10:
        return alternatives(*parts)
    return repeated(parts[0], *rng.choice([(0, 1), (0, None), (1, None), (2, 3), (0, 0)]))  # type: ignore[misc]


def test_random_rules_keep_their_texts() -> None:
    rng = random.Random(5)
    num_folded = num_left = 0
    for _ in range(400):
        rules = Rules({name: random_expression(rng, 3) for name in "rst"}, "r")
        folded = fold(rules)
        assert texts(folded, 4) == texts(rules, 4), rules
        num_folded += isinstance(folded.rules["r"], Terminal)
        num_left += len(folded.rules) > 1
    assert min(num_folded, num_left) > 50


def test_what_is_regular_is_one_terminal() -> None:
    rest = 'root ::= "a" x ws root "b" | x\nx ::= [ab]+ "." y\ny ::= [0-9]{1,3}\n'
    rules = fold(of_gbnf(rest + "ws ::= ([ \\t] ws)?"))
    assert set(rules.rules) == {"root"}
    expected = of_gbnf(rest + "ws ::= [ \\t]*")
    assert earley.language(rules, b"ab.0 ", 5) == earley.language(expected, b"ab.0 ", 5)
    whole = fold(of_gbnf('root ::= x | "-" x\nx ::= [0-9]+ ("." [0-9]+)?')).rules["root"]
    assert isinstance(whole, Terminal) and whole.name == "root"
    assert ir.matches(whole.node, b"-1.5") and not ir.matches(whole.node, b"1.")


@pytest.mark.parametrize(
    ("rule", "is_regular"),
    [
        ('"a" root | "b"', True), ('root "a" | "b"', True), ('("a" root)?', True), ('root | "a"', True),
        ('"a" root', False), ('"a" root "b" |', False), ('"a" root | root "b" | "a"', False),
        ("root root | [a]", False), ('"a" root{2} | [b]', False),
    ],
)  # fmt: skip
def test_rules_that_call_themselves_at_one_end(rule: str, is_regular: bool) -> None:
    rules = of_gbnf(f"root ::= {rule}")
    folded = fold(rules)
    assert texts(folded, 6) == texts(rules, 6)
    assert isinstance(folded.rules["root"], Terminal) == is_regular


def test_special_tokens_and_other_constraints_stay() -> None:
    folded = fold(of_lark('start: "a" x <tok> "b" "b" %json {}\nx: "b"')).rules["start"]
    assert isinstance(folded, Concatenated)
    first, token, second, _ = folded.items
    assert token == SpecialToken("<tok>")
    assert isinstance(first, Terminal) and ir.matches(first.node, b"ab")
    assert isinstance(second, Terminal) and ir.matches(second.node, b"bb")


def test_ignored_terminals_forbid_it() -> None:
    rules = of_lark('start: "a" "b"\n%ignore " "')
    assert fold(rules) is rules


def test_a_list_of_words_is_one_part() -> None:
    options = [f'"w{number}"' for number in range(3 * MAX_PARTS)]
    folded = fold(of_gbnf(f"root ::= ({' | '.join(options)} | [0-9]) [.]")).rules["root"]
    assert isinstance(folded, Terminal)
    assert (
        ir.matches(folded.node, b"w29999.")
        and ir.matches(folded.node, b"7.")
        and not ir.matches(folded.node, b"w30000.")
    )


def test_size_is_bounded() -> None:
    doubling = "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(40))
    rules = fold(of_gbnf(f"root ::= r0\n{doubling}r40 ::= [a]"))
    assert 20 < len(rules.rules) < 41


def test_no_text_stays_no_text() -> None:
    assert fold(Rules({"r": NO_TEXT}, "r")).rules["r"] == NO_TEXT
    mixed = fold(Rules({"r": Alternatives((NO_TEXT, EMPTY_TEXT)), "s": Repeated(RuleRef("r"), 2, 3)}, "s"))
    assert texts(mixed) == {b""}
