"""Lark's language construct by construct, texts by hand and by lark; faults by line and column; mutants."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import lark
import pytest

from decodekit.constraints.grammar.lark import definitions
from decodekit.constraints.grammar.lark.definitions import COMMON
from decodekit.constraints.grammar.lark.lark_rules import load_rules
from decodekit.constraints.grammar.lark.lark_syntax import parse
from decodekit.constraints.grammar.rules import Alternatives, Inline, Rules, SpecialToken, Terminal
from decodekit.constraints.grammar.source import MAX_DEPTH, MAX_LENGTH, Source
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.language import ir
from decodekit.constraints.language.ir import matches
from decodekit.constraints.language.node import Node
from decodekit.errors import (
    DecodekitError,
    InvalidConstraintError,
    NameNotFoundError,
    ResourceLimitError,
    UnsupportedSchemaError,
)
from tests.constraints.grammar.worlds import texts_of
from tests.reference import earley
from tests.sizes import few, sized


def rules_of(text: str, **options: object) -> Rules:
    return load_rules(Source(text), **options)  # type: ignore[arg-type]


def texts(grammar: str, alphabet: str = "ab", max_length: int = 4) -> set[str]:
    """All texts of a grammar over an alphabet, up to a length in bytes."""
    return {text.decode() for text in earley.language(rules_of(grammar), alphabet.encode(), max_length)}


def terminal(expression: str, more: str = "") -> Node:
    """The words of a terminal."""
    node = rules_of(f"start: A\nA: {expression}\n{more}").rules["start"]
    assert isinstance(node, Terminal)
    return node.node


# --- constructs ---

CONSTRUCTS: dict[str, tuple[str, set[str]]] = {
    "string": ('start: "ab"', {"ab"}),
    "empty string": ('start: "" "a" ""', {"a"}),
    "sequence": ('start: "a" "b" "a"', {"aba"}),
    "alternatives": ('start: "a" | "b" "b" |', {"", "a", "bb"}),
    "alternatives on lines": ('start: "a"\n  | "b"\n\n // a comment\n  | "ab"', {"a", "b", "ab"}),
    "alternatives from the first line on": ('start:\n   | "a"\n   | "b"', {"", "a", "b"}),
    "alternatives behind a comment": ('start: "a" // one\n# two\n | "b"', {"a", "b"}),
    "a group": ('start: ("a" | "b") "b"', {"ab", "bb"}),
    "a group on lines": ('start: ( // one\n "a"\n\n | "b"\n ) "b"', {"ab", "bb"}),
    "maybe": ('start: ["a"] ["b" "b"]', {"", "a", "bb", "abb"}),
    "optional": ('start: "a"? ("b" "a")?', {"", "a", "ba", "aba"}),
    "star": ('start: "a"*', {"", "a", "aa", "aaa", "aaaa"}),
    "plus": ('start: "b" "a"+', {"ba", "baa", "baaa"}),
    "count": ('start: "a" ~ 2', {"aa"}),
    "counts": ('start: "a"~1..3', {"a", "aa", "aaa"}),
    "no rounds": ('start: "b" "a"~0', {"b"}),
    "braces": ('start: "a"{2} x{1,2} "b"{,1} "b"{0,}\nx: "b"{0}', {"aa", "aab", "aabb"}),
    "line continuation": ('start: "a" \\\n "b"', {"ab"}),
    "line ends of another system": ('start: "a"\r\n  | x\r\n\r\nx: "b"\r\n', {"a", "b"}),
    "comments": ('# one\nstart: "a" # "b"\n// three\n', {"a"}),
    "rules": ('start: x y\nx: "a" | y\ny: "b"', {"ab", "bb"}),
    "rules before their use": ('y: "b"\nstart: y', {"b"}),
    "shapes of trees": ('!start: _x | y\n_x: "a"\n?y: "b" -> two | "ab"\n?!z: "q" -> three', {"a", "b", "ab"}),
    "priorities": ('start.2: A | x\nx.-1: "b"\nA.+10: "a"', {"a", "b"}),
    "recursion": ('start: "a" start "b" |', {"", "ab", "aabb"}),
    "left recursion": ('start: start "a" | "b"', {"b", "ba", "baa", "baaa"}),
    "unused rules": ('start: "a"\nunused: "b" start\nUNUSED: /(?P=refused elsewhere)/', {"a"}),
    "a range": ('start: "a".."b" "a" .. "a"', {"aa", "ba"}),
    "a pattern": ("start: /a+b?/", {"a", "aa", "aaa", "aaaa", "ab", "aab", "aaab"}),
    "terminals": ('start: A B?\nA: "a" | B B\nB: "b"', {"a", "ab", "bb", "bbb"}),
    "terminals of terminals": ('start: A\nA: B ~ 2 | [C] "a"\nB: C+\nC: "b"', {"a", "ba", "bb", "bbb", "bbbb"}),
    "a terminal that may be empty": ('start: A "b"\nA: "a"*', {"b", "ab", "aab", "aaab"}),
    "a terminal with an underscore": ('start: _A\n_A: "a"', {"a"}),
    "many words": ("start: A\nA: " + " | ".join('"' + n * "a" + 'b"' for n in range(40)) + " | B\nB: /b+/", {
        "b", "ab", "aab", "aaab", "bb", "bbb", "bbbb"}),
    "ignore": ('start: "a" "b"\n%ignore "-"', {"ab"}),
    "template": ('start: _sep{x, "b"}\n_sep{item, by}: item (by item)*\nx: "a"', {"a", "aba"}),
    "template in a template": ('start: two{two{"a"}}\ntwo{x}: x x', {"aaaa"}),
    "template as an argument": ('start: call{two, "a"} | call{one, "b"}\ncall{f, x}: f{x}\ntwo{x}: x x\none{x}: x', {
        "aa", "b"}),
    "template with a terminal": ('start: t{A} | t{/b+/} | t{"a".."b"}\nt{x}: x "a"\nA: "ab"', {
        "aba", "ba", "bba", "bbba", "aa"}),
    "template that calls itself": ('start: nest{"a"}\nnest{x}: x nest{x} "b" | "b"', {"b", "abb"}),
    "parameters are local": ('start: t{"a"} y\nt{x}: x\ny: "b"', {"ab"}),
    "override": ('start: x\nx: "a"\n%override x: "b"', {"b"}),
    "extend": ('start: x A\nx: "a"\nA: "b"\n%extend x: "bb"\n%extend A: "a" "a"', {
        "ab", "aaa", "bbb", "bbaa"}),
    "override a template": ('start: t{"a"}\nt{x}: x\n%override t{y}: y "b"', {"ab"}),
    "regex as JSON": ('start: %regex {"pattern": "a[ab]"} A\nA: %regex {"pattern": "B", "flags": "i"}', {
        "aab", "abb"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_construct(name: str) -> None:
    grammar, expected = CONSTRUCTS[name]
    assert texts(grammar) == expected


ALSO_LARKS = set(CONSTRUCTS) - {
    "empty string", "a group on lines", "braces", "unused rules", "a terminal that may be empty",
    "regex as JSON", "template as an argument", "line continuation",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALSO_LARKS))
def test_lark_reads_these_as_well(name: str) -> None:
    grammar, expected = CONSTRUCTS[name]
    oracle = lark.Lark(grammar.replace("\r", ""), parser="earley", lexer="dynamic_complete")
    for text in (text.decode() for text in texts_of([b"a", b"b"], 4)):
        assert is_accepted(oracle, text) == (text in expected), text


def is_accepted(oracle: lark.Lark, text: str) -> bool:
    try:
        oracle.parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def test_ignored_terminals_stand_before_terminals_and_at_the_end() -> None:
    grammar = 'start: "a" B\nB: "b"\nBLANK: " "\n%ignore BLANK\n%ignore /-+/ | "_"'
    rules = rules_of(grammar)
    assert rules.ignore is not None
    assert {word for word in texts_of([b" ", b"-", b"_"], 2) if matches(rules.ignore, word)} == {
        b" ", b"-", b"--", b"_"}  # fmt: skip
    assert earley.accepts(rules, b" -a --_b--_ ")
    assert not earley.accepts(rules, b"a-")


def test_terminals_have_their_names() -> None:
    rules = rules_of('start: A x "c" /d/i\nx: B | "e".."f" | _C\nA: "a"\nB: "b"\n_C: "c"\nD: "d"\nE: "e"\n%ignore E')
    assert set(rules.terminals) == {"A", "B", "_C", "E"}
    assert set(rules.rules) == {"start", "x"}
    names = [part.name for rule in rules.rules.values() for part in rule_parts(rule)]
    assert {"A", "B", "_C", '"c"', "/d/i", '"e".."f"'} <= set(names)


def rule_parts(rule: object) -> list[Terminal]:
    parts = getattr(rule, "items", None) or getattr(rule, "options", ())
    return [part for part in parts if isinstance(part, Terminal)]


def test_start() -> None:
    assert earley.accepts(rules_of('other: "a"\nstart: other other', start="other"), b"a")


# --- strings and patterns ---


@pytest.mark.parametrize(
    ("string", "text"),
    [
        (r'"\n\t\r\f"', "\n\t\r\f"), (r'"\"\\"', '"\\'), (r'"\x41\u00e9\U0001F600"', "Aé😀"), (r'"\d\/"', r"\d\/"),
        ('"é"', "é"), ("\"'\"", "'"), (r'"\\n"', r"\n"), ('"//"', "//"), ('"#"', "#"), ('"a b"', "a b"),
    ],
)  # fmt: skip
def test_strings(string: str, text: str) -> None:
    assert matches(terminal(string), text.encode())
    oracle = lark.Lark(f"start: A\nA: {string}", parser="earley", lexer="dynamic_complete")
    assert is_accepted(oracle, text)
    assert terminal(string) is ir.literal(text.encode())


def test_case() -> None:
    node = terminal('"aB"i "c"')
    assert {word for word in texts_of([b"a", b"A", b"b", b"B", b"c", b"C"], 3) if matches(node, word)} == {
        b"abc", b"Abc", b"aBc", b"ABc"}  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "pieces", "flags"),
    [
        ("/a.b/s", "ab\n", re.DOTALL), ("/a.b/", "ab\n", 0), ("/ab c/x", "abc ", re.VERBOSE),
        ("/[ab]C/i", "abcC", re.I), ("/a /x", "a ", re.VERBOSE), ("/^a$\n^b/xm", "ab\n", re.M | re.X),
        (r"/\w\d/", "aé1٣", 0), (r"/a\/b/", "a/b", 0),
        (r"/[^\/]+/", "a/b", 0), ("/a # one\nb/x", "ab#", re.VERBOSE), ('/"a"/', 'a"', 0), (r"/\x61|\u0062/", "ab", 0),
    ],
)  # fmt: skip
def test_patterns_are_those_of_re(expression: str, pieces: str, flags: int) -> None:
    node = terminal(expression)
    oracle = re.compile(expression[1 : expression.rindex("/")], flags)
    for word in texts_of([piece.encode() for piece in pieces], 4):
        assert matches(node, word) == bool(oracle.fullmatch(word.decode())), word


@pytest.mark.parametrize(
    ("expression", "pattern"),
    [
        ('"a"* /b(?=a)/ "ab"', "a*b(?=a)ab"), ('A2 "b"\nA2: /a+/ /(?<!aa)/', "a+(?<!aa)b"),
        ('("a" | B)~1..2 /$/ "a"?\nB: "b"', "[ab]{1,2}$a?"),
        (r'/a/ /\b/ B' + '\nB: "-"i | "ab" | "a".."b"', r"a\b(-|ab|[ab])"),
        ('/(?!ab)/x ("a" | "b" "b")+ "a"', "(?!ab)(a|bb)+a"), ('"A"i /(?=b)/ "B"i', "[aA](?=b)[bB]"),
    ],
)  # fmt: skip
def test_lookaround_sees_the_whole_terminal(expression: str, pattern: str) -> None:
    node = terminal(expression)
    for word in texts_of([b"a", b"b", b"-", b"A", b"B"], 4):
        assert matches(node, word) == bool(re.fullmatch(pattern, word.decode())), word


@few(2)
@pytest.mark.parametrize(
    ("expression", "pattern"),
    [
        ('/".*?"/', '".*?"'), (r'"/*" /(.|\n)*?/ "*/"', r"/\*(.|\n)*?\*/"),
        (r'/"(\\"|[^"])*?"i?/', r'"(\\"|[^"])*?"i?'),
        ('"i"? A2 "/"\nA2: /.+?/', "i?.+?/"), ("/i??/ \"/\" | /i{1,3}?/ \"*\"", r"(?:i??/|i{1,3}?\*)"),
    ],
)  # fmt: skip
def test_a_lazy_quantifier_ends_a_terminal_where_re_does(expression: str, pattern: str) -> None:
    node = terminal(expression)
    for word in texts_of([b'"', b"\\", b"/", b"*", b"i"], 5):
        match = re.match(pattern, word.decode())
        assert matches(node, word) == bool(match and match.end() == len(word)), word


def test_a_lazy_quantifier_goes_on_in_the_terminal_that_it_is_part_of() -> None:
    node = terminal('B "b"', "B: /a*?b?/")
    for word in texts_of([b"a", b"b"], 5):
        match = re.match("a*?b?b", word.decode())
        assert matches(node, word) == bool(match and match.end() == len(word)), word


def test_alternatives_of_a_terminal_have_no_order() -> None:
    node = terminal('"a" | "ab" | /"a?.*?"/ | B\nB: "b" | "ba"')
    words = {b"a", b"ab", b'""', b'"a"', b"b", b"ba"}
    assert words <= {word for word in texts_of([b"a", b"b", b'"'], 4) if matches(node, word)}
    oracle = lark.Lark("start: A\nA: " + '"a" | "ab" | /"a?.*?"/ | B\nB: "b" | "ba"', lexer="dynamic_complete")
    for word in texts_of([b"a", b"b", b'"'], 4):
        assert matches(node, word) == is_accepted(oracle, word.decode()), word


COMMON_TEXTS = {
    "ESCAPED_STRING": ['"', "\\", "a", "\n"], "_STRING_ESC_INNER": ['"', "\\", "a", "'"],
    "_STRING_INNER": ['"', "\\", "a"],
    "C_COMMENT": ["/", "*", "a", "\n"], "CPP_COMMENT": ["/", "a", "\n"], "SH_COMMENT": ["#", "a", "\n"],
    "SQL_COMMENT": ["-", "a", "\n"], "NEWLINE": ["\r", "\n", " "], "CR": ["\r", "\n"], "LF": ["\r", "\n"],
    "WS": [" ", "\t", "\f", "\r", "\n", "\x0b"], "WS_INLINE": [" ", "\t", "\n"], "CNAME": ["_", "a", "Z", "0", "é"],
}  # fmt: skip
COMMON_NAMES = sorted(definition.name for definition in parse(COMMON).definitions)


def test_common_has_all_names_of_lark() -> None:
    text = (Path(lark.__file__).parent / "grammars" / "common.lark").read_text()
    assert sorted(re.findall(r"^(\w+)\s*:", text, re.MULTILINE)) == COMMON_NAMES


@few(3)
@pytest.mark.parametrize("name", COMMON_NAMES)
def test_common_means_what_lark_means(name: str) -> None:
    around = '"\\"" {} "\\""' if name.startswith("_STRING") else "{}"  # which may be empty by themselves
    grammar = f"start: A\nA: {around.format(name)}\n%import common.{name}"
    rules, oracle = rules_of(grammar), lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
    pieces = COMMON_TEXTS.get(name, ["1", "a", "e", "F", "-", "+", "."])
    seen = set()
    for text in texts_of([piece.encode() for piece in pieces], 4):
        expected = is_accepted(oracle, text.decode())
        seen.add(expected)
        assert earley.accepts(rules, text) == expected, text
    assert seen == {True, False}


# --- imports ---


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, str]], Rules]:
    def load(files: dict[str, str]) -> Rules:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        source = Source(files["main.lark"], "main.lark")
        return load_rules(source, files=definitions.imported_files(source, tmp_path))

    return load


def is_text(rules: Rules, text: str) -> bool:
    return earley.accepts(rules, text.encode())


def test_imports_from_common() -> None:
    rules = rules_of("start: INT A LF B\n%import common.INT\n%import common.INT -> A\n%import common (LF, CR)\nB: CR")
    assert earley.accepts(rules, b"12\n\r") and not earley.accepts(rules, b"1\n\r")
    assert set(rules.terminals) == {"INT", "A", "LF", "B"}


def test_imports_from_files(folder: Callable[[dict[str, str]], Rules]) -> None:
    rules = folder(
        {
            "main.lark": 'start: value ("," value)*\nx: t{"x"}\n%import .parts.values (value, WORD)\n'
            "%import .parts.values.t",
            "parts/values.lark": 'value: WORD | hidden\nhidden: digits\n%import .numbers.digits\nWORD: LETTER+\n'
            'LETTER: "a"\nt{x}: x x\n%ignore "-"',
            "parts/numbers.lark": 'digits: DIGIT+\n%import common.DIGIT\n',
        }
    )  # fmt: skip
    assert is_text(rules, "a,12,aa") and not is_text(rules, "a,x") and not is_text(rules, "a-")
    assert set(rules.terminals) == {"WORD", "parts.values.numbers.DIGIT"}


def test_an_override_changes_what_was_imported(folder: Callable[[dict[str, str]], Rules]) -> None:
    rules = folder(
        {
            "main.lark": 'start: list\n%import .base (list, item)\n%override item: "b"\n%extend item: "c"\nitem2: "d"',
            "base.lark": 'list: item+\nitem: "a"',
        }
    )
    assert is_text(rules, "bcb") and not is_text(rules, "a")


def test_two_imports_of_one_grammar_do_not_meet(folder: Callable[[dict[str, str]], Rules]) -> None:
    files = {
        "main.lark": 'start: one two\n%import .a.x -> one\n%import .b.x -> two',
        "a.lark": "%import .base (x, item)\n%override item: \"1\"",
        "b.lark": "%import .base (x, item)\n%override item: \"2\"",
        "base.lark": 'x: item item\nitem: "0"',
    }  # fmt: skip
    assert is_text(folder(files), "1122")


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({"main.lark": "start: x\n%import .none.x"}, NameNotFoundError, ("line 2, column 1", "none.lark")),
        ({"main.lark": "start: x\n%import .b.xs", "b.lark": 'x: "a"'}, NameNotFoundError, ("'xs'", "'x'", "column 12")),
        ({"main.lark": "start: x\n%import .b.x", "b.lark": 'x: "a'}, InvalidConstraintError, ("b.lark, line 1",)),
        ({"main.lark": "start: x\n%import .b.x", "b.lark": "x: y"}, InvalidConstraintError, ("b.lark, line 1", "'y'")),
        (
            {"main.lark": "start: x\n%import .b.x", "b.lark": "%import .main.start\nx: start"},
            InvalidConstraintError,
            ("imports itself",),
        ),
        (
            {"main.lark": 'start: x\nx: "a"\n%import .b.x', "b.lark": 'x: "a"'},
            InvalidConstraintError,
            ("more than once", "b.lark, line 1, column 1"),
        ),
    ],
)
def test_imports_that_fail(
    folder: Callable[[dict[str, str]], Rules],
    files: dict[str, str],
    error: type[DecodekitError],
    words: tuple[str, ...],
) -> None:
    with pytest.raises(error) as raised:
        folder(files)
    assert all(word in str(raised.value) for word in words), raised.value


def test_imports_without_end_are_bounded(folder: Callable[[dict[str, str]], Rules]) -> None:
    files = {f"f{n}.lark": f"%import .f{n + 1}.x -> y\n%import .g{n + 1}.x -> z\nx: y | z" for n in range(15)}
    files |= {f"g{n}.lark": files[f"f{n}.lark"] for n in range(15)}
    with pytest.raises(ResourceLimitError, match="1,000 imports"):
        folder({"main.lark": "start: x\n%import .f0.x"} | files | {"f15.lark": 'x: "a"', "g15.lark": 'x: "b"'})


# --- what Lark has not ---


def test_special_tokens() -> None:
    rules = rules_of('start: <|tool|> "x" </think> <[7]> <[1,3-5]> t{<eot>}\nt{x}: x')
    items = rules.rules["start"].items  # type: ignore[union-attr]
    assert items[0] == SpecialToken("<|tool|>") and items[2] == SpecialToken("</think>") and items[3] == SpecialToken(7)
    assert items[4] == Alternatives(tuple(map(SpecialToken, (1, 3, 4, 5))))
    assert rules.rules["t{<eot>}"] == SpecialToken("<eot>")


def test_json_inline() -> None:
    rules = rules_of('start: "x" %json {\n "type": "integer",\n "maximum": 7\n} y\ny: %json true')
    items = rules.rules["start"].items  # type: ignore[union-attr]
    assert items[1] == Inline(JsonSchema({"type": "integer", "maximum": 7}))
    assert rules.rules["y"] == Inline(JsonSchema(True))


# --- faults ---

DOUBLING = "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(40))

FAULTS: list[tuple[str, type[DecodekitError], int, int, str]] = [
    ("start: 'a'", InvalidConstraintError, 1, 8, "double quotes"),
    ('start: "a', InvalidConstraintError, 1, 8, "string is not closed"),
    ("start: /a", InvalidConstraintError, 1, 8, "regular expression is not closed"),
    ('start: ("a" | "b"', InvalidConstraintError, 1, 8, "'(' is not closed"),
    ('start: ["a" | "b")', InvalidConstraintError, 1, 18, "found ')'"),
    ('start: "a")', InvalidConstraintError, 1, 11, "found ')'"),
    ('start "a"', InvalidConstraintError, 1, 7, "expected ':'"),
    ('start: x\n  "b"', InvalidConstraintError, 2, 3, "expected the name of a rule"),
    ('start ::= "a"', InvalidConstraintError, 1, 8, 'syntax="gbnf"'),
    ('start: "a"**', InvalidConstraintError, 1, 12, "one quantifier"),
    ("start: * a", InvalidConstraintError, 1, 8, "expected an item, found '*'"),
    ('start: "a" ~ "b"', InvalidConstraintError, 1, 14, "how often"),
    ('start: "a" ~ 3..1', InvalidConstraintError, 1, 14, "wrong order"),
    ('start: "a" ~ -1', InvalidConstraintError, 1, 14, "without a sign"),
    ('start: "a" ~ 99999999999999', ResourceLimitError, 1, 14, "4,294,967,296"),
    ('start: "b".."a"', InvalidConstraintError, 1, 8, "wrong order"),
    ('start: "ab".."c"', InvalidConstraintError, 1, 8, "one character"),
    ('start: "a"i.."c"', InvalidConstraintError, 1, 8, "without flags"),
    ('start: "\\xg0"', InvalidConstraintError, 1, 9, "2 hexadecimal digits"),
    ('start: "a\\uD800"', InvalidConstraintError, 1, 8, "surrogate"),
    ('start: "\\UFFFFFFFF"', InvalidConstraintError, 1, 9, "no code point"),
    ("start: /(a/", InvalidConstraintError, 1, 8, "not closed"),
    ("start: A\nA: /a(?P=x)/", UnsupportedSchemaError, 2, 4, "back-references"),
    ("start: /a*?/", InvalidConstraintError, 1, 8, "shortest text"),
    ("start: Aa", InvalidConstraintError, 1, 8, "'aa' or 'AA'"),
    ("start: __x", InvalidConstraintError, 1, 8, "no name"),
    ("start: valeu\nvalue: \"a\"", InvalidConstraintError, 1, 8, "'value'"),
    ("start: VALEU\nVALUE: \"a\"", InvalidConstraintError, 1, 8, "no terminal 'VALEU'"),
    ("start: \"a\"\nunused: nowhere", InvalidConstraintError, 2, 9, "no rule 'nowhere'"),
    ('start: "a"\n\nstart: "b"', InvalidConstraintError, 3, 1, "first at line 1, column 1"),
    ("start: A\nA: B\nB: C\nC: A", InvalidConstraintError, 4, 4, "'A' refers to itself"),
    ("start: A\nA: \"a\" x\nx: \"b\"", InvalidConstraintError, 2, 8, "rule 'x' cannot be part of a terminal"),
    ("start: A\nA: <tok>", InvalidConstraintError, 2, 4, "special token cannot be part"),
    ("start: A\nA: t{\"a\"}\nt{x}: x", InvalidConstraintError, 2, 4, "template cannot be part"),
    ("start: A\nA: %json {}", InvalidConstraintError, 2, 4, "%json cannot be part"),
    ("start: A\nA{x}: x", InvalidConstraintError, 2, 1, "cannot have parameters"),
    ("start: t\nt{x}: x", InvalidConstraintError, 1, 8, "without arguments"),
    ('start: t{"a"}\nt{x, y}: x y', InvalidConstraintError, 1, 8, "takes 2 arguments, and 1 are given"),
    ('start: x{"a"}\nx: "a"', InvalidConstraintError, 1, 8, "no template"),
    ('start: t{"a"}\nt{x, x}: x', InvalidConstraintError, 2, 6, "two parameters"),
    ('start: t{"a"}\nt{x}: x\nx: "b"', InvalidConstraintError, 2, 1, "name of a rule"),
    ('start: t{"a"\n', InvalidConstraintError, 1, 9, "'{' is not closed"),
    ('start: t{"a"}\nt{x}: "(" t{u{x}} ")" | x\nu{x}: x x', ResourceLimitError, 2, 11, "without end"),
    ("%declare A\nstart: A", UnsupportedSchemaError, 1, 1, "without a definition"),
    ("%llguidance {}\nstart: A", UnsupportedSchemaError, 1, 1, "%llguidance"),
    ("%unknown x", InvalidConstraintError, 1, 1, "found '%unknown'"),
    ("start[lazy]: /a/", UnsupportedSchemaError, 1, 6, "options of a rule"),
    ("%import common.NUMBR\nstart: NUMBR", NameNotFoundError, 1, 16, "'NUMBER'"),
    ("%import common\nstart: A", InvalidConstraintError, 1, 9, "%import common.NAME"),
    ("%import common.INT -> int\nstart: int", InvalidConstraintError, 1, 23, "keeps a name in upper case"),
    ("%import python.name\nstart: name", NameNotFoundError, 1, 1, "no grammar 'python'"),
    ("%import .other.x\nstart: x", NameNotFoundError, 1, 1, "no folder"),
    ("%import common (INT, \nstart: INT", InvalidConstraintError, 2, 6, "',' or ')'"),
    ('%override x: "a"\nstart: "b"', InvalidConstraintError, 1, 11, "no 'x' to override"),
    ('start: "b"\n%extend starts: "a"', InvalidConstraintError, 2, 9, "'start'"),
    ('start: t{"b"}\nt{x}: x\n%extend t{y}: y', InvalidConstraintError, 3, 9, "other parameters at line 2"),
    ('start: "a"\n%ignore x\nx: " "', InvalidConstraintError, 2, 9, "rule 'x' cannot be part of a terminal"),
    ('start: "a"\n%ignore X', InvalidConstraintError, 2, 9, "no terminal 'X'"),
    ("start: <[^5]>", UnsupportedSchemaError, 1, 8, "all but some"),
    ("start: <[*]>", UnsupportedSchemaError, 1, 8, "all tokens"),
    ("start: <[5-2]>", InvalidConstraintError, 1, 8, "<[7]>"),
    ("start: <[0-99999]>", ResourceLimitError, 1, 8, "1,000"),
    ("start: %json {\"a\": 1;}", InvalidConstraintError, 1, 21, "not JSON"),
    ("start: %json {\"type\": \"integer\", \"type\": \"string\"}", InvalidConstraintError, 1, 14, "a key occurs twice"),
    ("start: %json {\"type\": NaN}", InvalidConstraintError, 1, 14, "NaN"),
    ("start: %json [1]", InvalidConstraintError, 1, 8, "an object, true or false"),
    ("start: %json {\"x-guidance\": {}}", UnsupportedSchemaError, 1, 8, "x-guidance"),
    ("start: %json {\"type\": \"array\", \"uniqueItems\": true}", UnsupportedSchemaError, 1, 8, "uniqueItems"),
    ("start: %regex {\"substring_words\": \"a b\"}", UnsupportedSchemaError, 1, 8, "%regex takes"),
    ("start: " + "(" * 10_000, ResourceLimitError, 1, 8 + MAX_DEPTH, f"deeper than {MAX_DEPTH}"),
    ("start: " + "%json " + "[" * 100_000, ResourceLimitError, 1, 14, "nested too deeply"),
    (f"start: A0\n{DOUBLING}A40: \"a\"", ResourceLimitError, 25, 1, "parts"),
    ("A: \"a\"\nstart: \"b\" | 5", InvalidConstraintError, 2, 14, "found '5'"),
    ("start: \"a\" -> \"b\"", InvalidConstraintError, 1, 15, "name of an alias"),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "error", "line", "column", "words"), FAULTS)
def test_fault(grammar: str, error: type[DecodekitError], line: int, column: int, words: str) -> None:
    with pytest.raises(error) as raised:
        rules_of(grammar)
    assert type(raised.value) is error
    message = str(raised.value)
    assert words in message
    assert f"line {line}, column {column}" in message


def test_an_error_shows_the_line() -> None:
    with pytest.raises(InvalidConstraintError) as raised:
        load_rules(Source('// a list\nstart:\t"[" valeu* "]"\nvalue: "a"', "list.lark"))
    assert str(raised.value) == (
        "DK203 there is no rule 'valeu'\n"
        "  at  list.lark, line 2, column 12\n"
        '      start: "[" valeu* "]"\n'
        "                 ^\n"
        "  try 'value'"
    )


def test_a_start_that_is_not_there() -> None:
    with pytest.raises(InvalidConstraintError, match="no rule 'start'"):
        rules_of('begin: "a"')
    with pytest.raises(InvalidConstraintError) as raised:
        rules_of('start: "a"', start="strat")
    assert "'start'" in str(raised.value)
    with pytest.raises(InvalidConstraintError, match="'A' is a terminal"):
        rules_of('start: A\nA: "a"', start="A")
    with pytest.raises(InvalidConstraintError, match="'t' is a template"):
        rules_of('start: t{"a"}\nt{x}: x', start="t")


def test_priorities_leave_the_texts_as_they_are() -> None:
    grammar = 'start.3: A | B\nA.2: "a"\nB: "b"\nC.1: "unused"'
    assert rules_of(grammar).terminals == rules_of(grammar.replace(".2", "")).terminals
    assert rules_of(grammar, lexer="longest").terminals.keys() == {"A", "B"}
    assert rules_of(grammar, lexer="longest") != rules_of(grammar.replace(".2", ""), lexer="longest")


# --- untrusted text ---

# Each as large as about `size` characters make it.
LARGE: dict[str, Callable[[int], str]] = {
    "rules": lambda size: (
        "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(size // 20)) + f'r{size // 20}: "a"'
    ),
    "terminals": lambda size: f"start: A0 | A{size // 400}\n" + chain_of_terminals(size // 100, '"a"'),
    "lookaround": lambda size: "start: A0\n" + chain_of_terminals(size // 100, "/a(?=b)/"),
    "words": lambda size: "start: A\nA: " + " | ".join(f'"{n}"' for n in range(size // 33)),
    "blanks": lambda size: "start:" + " " * (size - 100_000) + '"a"',
    "comments": lambda size: "//\n" * (size // 7) + 'start: "a"',
    "a long string": lambda size: f'start: "{"a" * (size - 100_000)}"',
    "slashes": lambda size: "start: " + "/" * (size // 4),
    "quotes": lambda size: "start: " + '"\\' * (size // 4),
    "an open pattern": lambda size: "start: /" + "a\n" * (size // 4),
    "too long": lambda size: 'start: "a"' + " " * MAX_LENGTH,
}


def chain_of_terminals(number: int, last: str) -> str:
    return "".join(f"A{n}: A{n + 1}\n" for n in range(number)) + f"A{number}: {last}"


@few(6)
@sized("size", 300_000, slow=2_000_000)
@pytest.mark.parametrize("name", LARGE)
def test_large_grammars_end_in_time(name: str, size: int) -> None:
    begin = time.monotonic()
    message = ""
    try:
        rules_of(LARGE[name](size))
    except (InvalidConstraintError, ResourceLimitError) as error:
        message = str(error)
    assert len(message) < 1_000
    assert time.monotonic() - begin < 60  # some seconds, on a machine that others use as well


SEEDS = [grammar for grammar, _ in CONSTRUCTS.values()] + [grammar for grammar, *_ in FAULTS if len(grammar) < 200]


def test_mutants_raise_nothing_else() -> None:
    rng = random.Random(11)
    pieces = ['"', "/", "\\", "(", ")", "[", "]", "{", "}", "|", "\n", ":", "~", "..", "->", "%import ", "%ignore ",
              "%override ", "%extend ", "%json ", "a", "A", "start", "*", "?", "+", "0", "9", ",", ".", "<", ">", "_",
              " ", "i", "é", "\ud800", "\0", "common", "//", "#", "!"]  # fmt: skip
    num_read = num_refused = 0
    for _ in range(4_000):
        text = rng.choice(SEEDS)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(text) + 1)
            cut = rng.randrange(3)
            text = text[:place] + rng.choice(pieces) * rng.randrange(2) + text[place + cut :]
        try:
            rules_of(text)
            num_read += 1
        except DecodekitError:
            num_refused += 1
    assert min(num_read, num_refused) > 300
