"""Grammars accept what lark's Earley parser accepts with its complete dynamic lexer, text by text in small worlds.

Where lark is wrong, the definition wins: a text is accepted if some derivation divides it into words of terminals, with
ignored words before any terminal and at the end. Such texts are listed with the case.
"""

from __future__ import annotations

from dataclasses import dataclass

import lark
import pytest

from decodekit.constraints.grammar.lark.lark_rules import load_rules
from decodekit.constraints.grammar.source import Source
from tests.constraints.grammar.worlds import check_against_reference, texts_of
from tests.reference import earley
from tests.sizes import few


@dataclass(frozen=True)
class Case:
    """A grammar with what its texts are made of: at most `max_pieces` of `pieces` (given as one text of letters).

    `lark_rejects` and `lark_accepts` are texts about which lark is wrong.
    """

    grammar: str
    pieces: str | tuple[str, ...]
    max_pieces: int
    lark_rejects: frozenset[str] = frozenset()
    lark_accepts: frozenset[str] = frozenset()

    @property
    def byte_pieces(self) -> list[bytes]:
        return [piece.encode() for piece in self.pieces]


CASES: dict[str, Case] = {
    # --- terminals that a longest-match lexer would cut in the wrong place ---
    "listed": Case(
        'start: STEM SUFFIX?\nSTEM: "list" | "listen"\nSUFFIX: "ed" | "er"', ("list", "en", "ed", "er", "e"), 4
    ),
    "overlapping terminals": Case('start: A B A\nA: "a" | "aa"\nB: "a"+ "b"?', "ab", 8),
    "keyword or name": Case('start: "if" NAME | NAME "=" NAME\nNAME: /[if]+/', "if=", 5),
    "name without keywords": Case('start: NAME ("." NAME)*\nNAME: /(?!(if|fi)\\b)[if]+/', "if.", 5),
    "lookahead inside": Case('start: A*\nA: /a(?!bb)[ab]{2}/ | "b"', "ab", 8),
    "ranges and classes": Case('start: (X | Y)+\nX: "a".."c"\nY: /[^ab]/ "d"', "abcd", 4),
    "case": Case('start: "ab"i "c" | "B"', "abABc", 3),
    "two bytes each": Case('start: X+ "é"\nX: "é" | "ê" | /[à-ä]/', ("é", "ê", "á", "a"), 4),
    "counted terminals": Case('start: A B\nA: ("a" | "b") ~ 2..3\nB: "b" ~ 2', "ab", 8),
    # --- recursion ---
    "left": Case('start: start "a" | "b"', "ab", 8),
    "right": Case('start: "a" start | "b"', "ab", 8),
    "left and right": Case('start: start "a" | "b" start | "c"', "abc", 5),
    "mutual left": Case('start: x "a" | "b"\nx: start "b" | "a"', "ab", 8),
    "three in a ring": Case('start: x "a" | "b"\nx: y "b" | "c"\ny: start "c" | "a"', "abc", 5),
    "hidden left": Case('start: x start "a" | "b"\nx: "c"?', "abc", 5),
    "hidden behind two": Case('start: x y start "a" | "b"\nx: "a"?\ny: x x', "ab", 8),
    "itself": Case('start: start | x\nx: start | "a" x?', "ab", 6),
    "nothing comes of it": Case('start: "a" | "b" x | y\nx: "a" x\ny: y "b"', "ab", 6),
    # --- ambiguity and nothing ---
    "pairs": Case('start: start start | "a"', "ab", 8),
    "pairs and triples": Case('start: start start | start start start | "a" | "b" "a"', "ab", 8),
    "pairs or nothing": Case('start: start start | "a" |', "ab", 7),
    "empty in a ring": Case('start: x\nx: y | "a"\ny: x | "b" |', "ab", 5),
    "empty rounds": Case('start: x* "b"\nx: "a"?', "ab", 7),
    "empty rounds of rounds": Case('start: (x*)+ y~2..3\nx: "a"? "b"?\ny: "c"?', "abc", 4),
    "four that may be missing": Case('start: x y z x\nx: "a"?\ny: "b"?\nz: x | y', "ab", 7),
    "dangling else": Case('start: "i" start | "i" start "e" start | "x"', "iex", 5),
    "inherently ambiguous": Case('start: x c | a y\nx: ("a" x "b")?\nc: "c"*\na: "a"*\ny: ("b" y "c")?', "abc", 5),
    # --- counting ---
    "a^n b^n": Case('start: "a" start "b" | "a" "b"', "ab", 8),
    "a^n b^m c^m d^n": Case('start: "a" start "d" | x\nx: ("b" x "c")?', "abcd", 4),
    "palindromes": Case('start: "a" start "a" | "b" start "b" | "a" | "b" |', "ab", 7),
    "as many of each": Case('start: "a" start "b" start | "b" start "a" start |', "ab", 6),
    "brackets of three kinds": Case('start: ("(" start ")" | "[" start "]" | "<" start ">")*', "()[]<>", 3),
    "rounds between bounds": Case('start: (x ~ 1..2 "b") ~ 2..3 | x ~ 5\nx: "a"', "ab", 8),
    "at most": Case('start: x ~ 0..3 y ~ 2\nx: "a" | "b"\ny: "b"', "ab", 7),
    # --- shapes of rules ---
    "maybe": Case('start: ["a"] ["b" ["c"]] "a"', "abc", 5),
    "groups": Case('start: (("a" | "b")+ "c")? (("a"))', "abc", 5),
    "template": Case(
        'start: _list{x, ","}\n_list{item, separator}: item (separator item)*\nx: "a" | "[" _list{"b", ";"} "]"',
        "a,[b;]", 3,
    ),
    "template that calls itself": Case(
        'start: nest{"a", "b"}\nnest{open, close}: open nest{open, close} close | open close', "ab", 8
    ),
    "priorities and aliases": Case('start: x | y\nx.2: "a" "b"? -> one\n!y: "a" "c"?', "abc", 5),
    "expressions": Case(
        '?start: sum\n?sum: product | sum "+" product\n?product: atom | product "*" atom\n'
        '?atom: "1" | "-" atom | "(" sum ")"', "1+*-()", 3,
    ),
    # --- ignored terminals ---
    "blanks": Case('start: "a" "b"+\n%ignore " "', "ab ", 5),
    "blanks and expressions": Case('start: start "+" start | "1" | "(" start ")"\n%ignore /[ ]+/', "1+() ", 4),
    "blanks in a terminal": Case('start: A B\nA: "a" " "? "a"\nB: "b"\n%ignore " "', "ab ", 5),
    "two that are ignored": Case('start: "a" "b"\n%ignore " "\n%ignore "-"', "ab -", 4),
    "comments": Case('start: "a"+\n%ignore /#[^;]*;/', "a#;", 5),
}  # fmt: skip

LARK_DIFFERS: dict[str, Case] = {
    # A pattern is tried for the match that `re` finds first, and for beginnings of it.
    "first match": Case('start: A "c"\nA: /a|ab/', "abc", 5, lark_rejects=frozenset({"abc"})),
    # A pattern sees what follows the terminal.
    "lookahead outside": Case('start: A "b"?\nA: /a(?!bb)[ab]/', "ab", 6, lark_rejects=frozenset({"abb"})),
    # Patterns inside a larger terminal are joined without brackets around their alternatives.
    "joined patterns": Case(
        'start: A\nA: "c" /a|b/', "abc", 4, lark_rejects=frozenset({"cb"}), lark_accepts=frozenset({"b"})
    ),
}


def parses(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def check(case: Case, max_pieces: int, mask_pieces: int) -> tuple[set[str], set[str]]:
    """The engine equals the reference; returns what lark rejects and accepts of what is accepted and rejected."""
    rules = load_rules(Source(case.grammar))
    accepted = check_against_reference(rules, case.byte_pieces, max_pieces=max_pieces, mask_pieces=mask_pieces)
    assert accepted, "a world without accepted texts shows little"
    parser = lark.Lark(case.grammar, parser="earley", lexer="dynamic_complete")
    texts = [text.decode() for text in texts_of(case.byte_pieces, max_pieces)]
    by_lark = {text for text in texts if parses(parser, text)}
    ours = {text.decode() for text in accepted}
    return ours - by_lark, by_lark - ours


@few(8)
@pytest.mark.parametrize("name", CASES)
def test_small_worlds(name: str) -> None:
    case = CASES[name]
    assert check(case, case.max_pieces - (case.max_pieces > 4), mask_pieces=2) == (set(), set())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_larger_worlds(name: str) -> None:
    case = CASES[name]
    assert check(case, case.max_pieces + (3 if len(case.pieces) == 2 else 1), mask_pieces=4) == (set(), set())


@pytest.mark.parametrize("name", LARK_DIFFERS)
def test_where_lark_differs(name: str) -> None:
    case = LARK_DIFFERS[name]
    assert check(case, case.max_pieces, mask_pieces=2) == (case.lark_rejects, case.lark_accepts)


@few(13)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case.pieces, str)])
def test_both_references_agree(name: str) -> None:
    """The words that the rules build are the texts in which the rules are found."""
    case = CASES[name]
    rules = load_rules(Source(case.grammar))
    alphabet = b"".join(dict.fromkeys(bytes((byte,)) for byte in case.pieces.encode()))
    length = min(case.max_pieces, {2: 6, 3: 4}.get(len(alphabet), 3))
    texts = texts_of([bytes((byte,)) for byte in alphabet], length)
    assert earley.language(rules, alphabet, length) == {text for text in texts if earley.accepts(rules, text)}
