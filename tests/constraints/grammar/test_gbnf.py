"""GBNF construct by construct, grammars in the manner of those that llama.cpp ships, and faults by line and column."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from decodekit.constraints.grammar.gbnf import load_rules
from decodekit.constraints.grammar.rules import Alternatives, Concatenated, Rules, SpecialToken
from decodekit.constraints.grammar.source import MAX_DEPTH, MAX_LENGTH, Source
from decodekit.errors import DecodekitError, InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError
from tests.reference import earley
from tests.sizes import few, sized


def rules_of(text: str, start: str = "root") -> Rules:
    return load_rules(Source(text), start)


def texts(grammar: str, alphabet: str = "ab", max_length: int = 4) -> set[str]:
    """All texts of a grammar over an alphabet, up to a length in bytes."""
    return {text.decode() for text in earley.language(rules_of(grammar), alphabet.encode(), max_length)}


CONSTRUCTS: dict[str, tuple[str, set[str]]] = {
    "string": ('root ::= "ab"', {"ab"}),
    "empty string": ('root ::= "" "a" ""', {"a"}),
    "sequence": ('root ::= "a" "b"', {"ab"}),
    "alternatives": ('root ::= "a" | "b" "b" |', {"", "a", "bb"}),
    "an empty alternative first": ('root ::= | "a" | "b" [ \\t]{0,20}', {"", "a", "b"}),
    "a bar ends a line": ('root ::=\n  "a" |\n\n # comment\n  "b"', {"a", "b"}),
    "a bar begins a line": ('root ::= "a"\n  # comment\n | "b"\nx ::= "a"', {"a", "b"}),
    "group": ('root ::= ("a" | "b") "b"', {"ab", "bb"}),
    "group on lines": ('root ::= ( # one\n  "a"\n\n  ("b" |\n "bb")+\n) "a"', {"aba", "abba"}),
    "star": ('root ::= "ab"*', {"", "ab", "abab"}),
    "plus": ('root ::= "a" "b"+', {"ab", "abb", "abbb"}),
    "optional": ('root ::= "a" ("b" "a")?', {"a", "aba"}),
    "count": ('root ::= "a"{2}', {"aa"}),
    "at least": ('root ::= "a"{ 2 , }', {"aa", "aaa", "aaaa"}),
    "counts": ('root ::= "a"{1,2} "b"{0,1}', {"a", "aa", "ab", "aab"}),
    "no rounds": ('root ::= "a"{0} "b"', {"b"}),
    "two quantifiers": ('root ::= "a"{2}{1,2}', {"aa", "aaaa"}),
    "rules": ('root ::= check-mate X_1 2nd\ncheck-mate ::= "a"\nX_1 ::= "b"\n2nd ::= "a"', {"aba"}),
    "class": ("root ::= [ab] [b-z] [a-]", {"aba", "bba"}),
    "negated class": ("root ::= [^a] [^\\]b]", {"ba"}),
    "escapes in a class": (r"root ::= [\x61\]] [\u0062\-] [\U00000061\\\[] [\n\t\r\"b]", {"abab"}),
    "any": ("root ::= . [a]", {"aa", "ba"}),
    "left recursion": ('root ::= root "a" | "b"', {"b", "ba", "baa", "baaa"}),
    "recursion": ('root ::= "a" root "b" | ""', {"", "ab", "aabb"}),
    "line ends of another system": ('root ::= "a" x\r\nx ::= "b" |\r\n  "a"\r\n', {"ab", "aa"}),
    "no space": ('root::="a"x|[b]\nx::="b"', {"ab", "b"}),
    "unused rules": ('root ::= "a"\nx ::= "b" x', {"a"}),
    "comments": ('# one\nroot ::= "a" # "b"\n# three', {"a"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_construct(name: str) -> None:
    grammar, expected = CONSTRUCTS[name]
    assert texts(grammar) == expected


def test_unused_rules_are_left_out() -> None:
    assert set(rules_of('root ::= x\nx ::= "a" | x "b"\ny ::= root').rules) == {"root", "x"}
    assert set(rules_of('root ::= x\nx ::= "a" | x "b"\ny ::= root', "x").rules) == {"x"}


@pytest.mark.parametrize(
    ("item", "accepted", "rejected"),
    [
        (r'"\x41\xe9\u3042\U0001F600\t\r\n\\\"\[\]\-"', ['Aéあ😀\t\r\n\\"[]-'], ["A"]),
        ("[ぁ-ゟ]", ["あ", "ん"], ["ア", "a", "\u3040"]),
        (r"[^\r\n\x0b\x0c\x85\u2028\u2029]", ["a", "é", "😀", "\x84"], ["\n", "\x0b", "\x85", "\u2028"]),
        (".", ["a", "\n", "😀", "\U0010ffff"], ["", "ab"]),
        ("[^a]", ["\n", "é"], ["a", ""]),
        (r"[\U00000000-\U0010FFFF]", ["a", "\ue000"], []),
        ('"a\nb"', ["a\nb"], ["ab"]),
        ("[a\"']", ['"', "'"], ["\\"]),
    ],
)
def test_characters(item: str, accepted: list[str], rejected: list[str]) -> None:
    rules = rules_of(f"root ::= {item}")
    assert all(earley.accepts(rules, text.encode()) for text in accepted)
    assert not any(earley.accepts(rules, text.encode()) for text in rejected)


def test_tokens() -> None:
    rules = rules_of('root ::= <think> [^<]* </think> <[7]> "x" <[1,3]>?')
    items = rules.rules["root"].items  # type: ignore[union-attr]
    assert items[0] == SpecialToken("<think>") and items[2] == SpecialToken("</think>") and items[3] == SpecialToken(7)
    assert items[5].item == Alternatives((SpecialToken(1), SpecialToken(3)))
    assert rules_of("root ::= <think> x\nx ::=").rules["x"] == Concatenated(())


# Grammars for what llama.cpp's own are for, with every construct that those use.
SHIPPED: dict[str, tuple[str, list[str], list[str]]] = {
    "arithmetic": (
        r"""
        root  ::= (expr "=" ws value "\n")+
        expr  ::= value ([-+*/] value)*
        value ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws
        num   ::= [0-9]+ ws
        ws    ::= [ \t\n]*
        """,
        ["1 +x_1*(2)= 3\n", "a=b\nc=d\n"],
        ["1=2", "1+=2\n", ""],
    ),
    "json": (
        r"""
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws

        object ::=
          "{" ws (
                    string ":" ws value
            ("," ws string ":" ws value)*
          )? "}" ws

        array  ::=
          "[" ws (
                    value
            ("," ws value)*
          )? "]" ws

        string ::=
          "\"" (
            [^"\\\x7F\x00-\x1F] |
            "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
          )* "\"" ws

        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

        # at most one line break
        ws ::= | " " | "\n" [ \t]{0,20}
        """,
        ['{}', '{"a": [1, -2.5e+1, "\\u00e9\\n"], "b":\n  null}'],
        ["[]", '{"a"}', '{"a":01x}', '{"a":"\n"}'],
    ),
    "chess": (
        r"""
        # moves as a list
        root ::= (
            # the first
            "1. " move " " move "\n"

            # and more
            ([1-9] [0-9]? ". " move " " move "\n")+
        )
        move ::= (pawn | nonpawn | castle) [+#]?
        nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
        pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
        castle ::= "O-O" "-O"?
        """,
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O-O exd8=Q+\n"],
        ["1. e4 e5\n", "1. e9 e5\n2. Nf3 Nc6\n"],
    ),
    "c": (
        r"""
        root ::= (declaration)*
        declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
        dataType ::= "int" ws | "float" ws
        identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
        parameter ::= dataType identifier
        statement ::=
            ( dataType identifier ws "=" ws expression ";" ) |
            ( "return" ws expression ";" ) |
            ( "if" "(" condition ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
            ( comment )
        condition ::= expression ("<=" | "<" | "==") expression
        expression ::= term (("+" | "-") term)*
        term ::= factor(("*" | "/") factor)*
        factor ::= identifier | number | unary | "(" expression ")" | identifier "(" argList? ")"
        unary ::= "-" factor
        argList ::= expression ("," ws expression)*
        number ::= [0-9]+
        comment ::= "//" [^\n]* "\n" | "/*" ( [^*] | ("*" [^/]) )* "*/"
        ws ::= ([ \t\n]+)
        """,
        ["", "int f(int a){return a*-b+g(1, 2);}", "int f(){if(a<=1){/* x */}else{// y\n}}"],
        ["int f()", "f(){}"],
    ),
    "list": (
        'root ::= item+\n\n# no line breaks\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"',
        ["- a\n", "- a\n- é b\n"],
        ["", "- a", "- \n"],
    ),
    "japanese": (
        "root ::= jp-char+ ([ \\t\\n] jp-char+)*\njp-char ::= hiragana | katakana | punctuation\n"
        "hiragana ::= [ぁ-ゟ]\nkatakana ::= [ァ-ヿ]\npunctuation ::= [、-〾]",
        ["ひらがな カタカナ。"],
        ["", "kana", "かa"],
    ),
    "english": (
        'root ::= en-char+ ([ \\t\\n] en-char+)*\nen-char ::= letter | digit | punctuation\n'
        'letter ::= [a-zA-Z]\ndigit ::= [0-9]\n'
        'punctuation ::= [!"#$%&\'()*+,-./:;<=>?@[\\\\\\]^_`{|}~]',
        ["Hello, [world]!", "a\\b ^c"],
        ["é", " a", ""],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_grammars_like_those_of_llama_cpp(name: str) -> None:
    grammar, accepted, rejected = SHIPPED[name]
    rules = rules_of("\n".join(line.removeprefix(" " * 8) for line in grammar.split("\n")))
    assert all(earley.accepts(rules, text.encode()) for text in accepted)
    assert not any(earley.accepts(rules, text.encode()) for text in rejected)


FAULTS: list[tuple[str, type[DecodekitError], int, int, str]] = [
    ('root: "a"', InvalidConstraintError, 1, 5, 'syntax="lark"'),
    ('root ::= "a', InvalidConstraintError, 1, 10, "string is not closed"),
    ("root ::= [a", InvalidConstraintError, 1, 10, "character class is not closed"),
    ('root ::= ("a"\n', InvalidConstraintError, 1, 10, "'(' is not closed"),
    ('root ::= ("a"]\n', InvalidConstraintError, 1, 14, "found ']'"),
    ('root ::= "a")', InvalidConstraintError, 1, 13, "found ')'"),
    ('root ::= "a"\n   "b"', InvalidConstraintError, 2, 4, "brackets around the lines"),
    ("root ::= *", InvalidConstraintError, 1, 10, "an item before the quantifier"),
    ('root ::= ("a" | ?)', InvalidConstraintError, 1, 17, "found '?'"),
    ('root ::= "a"{', InvalidConstraintError, 1, 14, "how often"),
    ('root ::= "a"{2,1}', InvalidConstraintError, 1, 13, "wrong order"),
    ('root ::= "a"{2;', InvalidConstraintError, 1, 15, "'}' after the counts"),
    ('root ::= "a"{99999999999999}', ResourceLimitError, 1, 14, "4,294,967,296"),
    ('root ::= "a"****', ResourceLimitError, 1, 16, "quantifiers in a row"),
    (r'root ::= "\q"', InvalidConstraintError, 1, 11, r"no escape \q"),
    (r'root ::= "\xf"', InvalidConstraintError, 1, 11, "2 hexadecimal digits"),
    (r'root ::= "\UFFFFFFFF"', InvalidConstraintError, 1, 11, "no code point"),
    (r'root ::= "\uD83D\uDE00"', InvalidConstraintError, 1, 10, r"\U and eight digits"),
    ("root ::= [z-a]", InvalidConstraintError, 1, 10, "wrong order"),
    ("root ::= []", InvalidConstraintError, 1, 10, "empty"),
    ("root ::= [^]", InvalidConstraintError, 1, 10, "empty"),
    ("root ::= itme\nitem ::= [a]", InvalidConstraintError, 1, 10, "'item'"),
    ("root ::= [a]\nx ::= y", InvalidConstraintError, 2, 7, "no rule 'y'"),
    ("root ::= [a]\n\nroot ::= [b]", InvalidConstraintError, 3, 1, "first at line 1, column 1"),
    ("root ::= !<think>", UnsupportedSchemaError, 1, 10, "negated token"),
    ("root ::= !<[1]>*", UnsupportedSchemaError, 1, 10, "negated token"),
    ("root ::= <think", InvalidConstraintError, 1, 10, "token is not closed"),
    ("root ::= <[x]>", InvalidConstraintError, 1, 10, "<[7]>"),
    ("root ::= 'a'", InvalidConstraintError, 1, 10, 'found "\'"'),
    ("= [a]", InvalidConstraintError, 1, 1, "expected the name of a rule, found '='"),
    ("root", InvalidConstraintError, 1, 5, "found the end of the grammar"),
    ("root ::= " + "(" * 10_000, ResourceLimitError, 1, 10 + MAX_DEPTH, "nested deeper"),
]


@pytest.mark.parametrize(("grammar", "error", "line", "column", "words"), FAULTS)
def test_fault(grammar: str, error: type[DecodekitError], line: int, column: int, words: str) -> None:
    with pytest.raises(error) as raised:
        rules_of(grammar)
    assert type(raised.value) is error
    message = str(raised.value)
    assert words in message
    assert f"line {line}, column {column}" in message


def test_a_start_that_is_not_there() -> None:
    with pytest.raises(InvalidConstraintError, match="no rule 'root'"):
        rules_of("start ::= [a]")
    with pytest.raises(InvalidConstraintError) as raised:
        rules_of("root ::= [a]", "rot")
    assert "'root'" in str(raised.value)


# Each as large as about `size` characters make it.
LARGE: dict[str, Callable[[int], str]] = {
    "rules": lambda size: (
        "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(size // 20)) + f'r{size // 20} ::= "a"'
    ),
    "options": lambda size: "root ::= " + " | ".join(f'"{n}"' for n in range(size // 33)),
    "blanks": lambda size: "root ::=" + " " * (size - 100_000) + '"a"',
    "lines": lambda size: 'root ::= "a"' + "\n" * (size - 100_000),
    "lines in groups": lambda size: "root ::= " + "(\n" * 90 + '"a"' + ("\n" * (size // 200) + ")") * 90,
    "comments": lambda size: "#\n" * (size // 3) + 'root ::= "a"',
    "a long string": lambda size: f'root ::= "{"a" * (size - 100_000)}"',
    "an open string": lambda size: 'root ::= "' + "a" * (size - 100_000),
    "brackets": lambda size: "root ::= " + "[" * (size // 2),
    "too long": lambda size: 'root ::= "a"' + " " * MAX_LENGTH,
}


@few(5)
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


def test_mutants_raise_nothing_else() -> None:
    seeds = [grammar for grammar, *_ in [*CONSTRUCTS.values(), *SHIPPED.values()]] + [
        g for g, *_ in FAULTS if len(g) < 99
    ]
    rng = random.Random(12)
    pieces = ['"', "[", "]", "(", ")", "{", "}", "\\", "|", "\n", "::=", "*", "+", "?", "<", ">", "!", "^", "-", ".",
              "#", "0", "9", ",", "a", "root", " ", "é", "\ud800", "\0", "\r"]  # fmt: skip
    num_read = num_refused = 0
    for _ in range(4_000):
        text = rng.choice(seeds)
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
