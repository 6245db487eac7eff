"""The constraint `Grammar`: what it is made from, that it is a value, and that the engine reads its texts."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from pathlib import Path

import pytest

import decodekit as dk
from decodekit.constraints.grammar import Grammar, library
from decodekit.constraints.grammar.rules import Inline, Terminal
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching.compiler import compile
from decodekit.errors import (
    DecodekitError,
    InvalidConstraintError,
    NameNotFoundError,
    OptionError,
    ResourceLimitError,
    UnsatisfiableError,
)
from decodekit.testing import check_language, check_matcher
from decodekit.vocabulary import Vocabulary
from tests.constraints.grammar import test_gbnf
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

SUM = 'start: start "+" NUMBER | NUMBER\nNUMBER: /[0-9]+/\n%ignore " "'


# --- from what ---


def test_text() -> None:
    assert Grammar('start: "a"').syntax == "lark"
    assert Grammar('root ::= "a"').syntax == "gbnf"
    assert Grammar('root ::= "a"').start == "root"
    assert Grammar('start: "x ::= y"').syntax == "lark"
    assert Grammar('a ::= "a"', start="a").start == "a"
    assert Grammar('a: "a"', syntax="lark", start="a") == Grammar('a: "a"', start="a")
    with pytest.raises(InvalidConstraintError, match="expected"):
        Grammar('start: "a"', syntax="gbnf")


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yes.lark").write_text('start: "yes"')
    (tmp_path / "yes.gbnf").write_text('root ::= "yes"')
    (tmp_path / "yes.txt").write_text('root ::= "yes"')
    (tmp_path / "yes.regex").write_text("y[e]s\n")
    (tmp_path / "yes.schema.json").write_text('{"const": "yes"}')
    for name, syntax in (("lark", "lark"), ("gbnf", "gbnf"), ("txt", "gbnf"), ("regex", "regex")):
        grammar = Grammar(tmp_path / f"yes.{name}")
        assert (grammar.syntax, grammar.parse("yes")) == (syntax, "yes")
        assert grammar == Grammar(str(tmp_path / f"yes.{name}"))
    schema = Grammar(tmp_path / "yes.schema.json")
    assert schema.parse('"yes"') == '"yes"'
    assert isinstance(Grammar(tmp_path / "yes.regex").rules.rules["start"], Terminal)
    monkeypatch.chdir(tmp_path)
    assert Grammar("yes.lark").file == "yes.lark"
    assert Grammar("yes.lark") == Grammar('start: "yes"')


def test_a_file_with_a_schema_keeps_its_guard(tmp_path: Path) -> None:
    schema = {"type": "array", "uniqueItems": True}
    (tmp_path / "set.schema.json").write_text(json.dumps(schema))
    grammar = Grammar(tmp_path / "set.schema.json")
    assert grammar.rules.rules["start"] == Inline(JsonSchema(schema))
    guard = grammar.guard()
    assert guard is not None and guard.refuses(b"[1,1]") and not guard.refuses(b"[1,2]")
    assert Grammar(SUM).guard() is None


def test_imports_are_part_of_the_value(tmp_path: Path) -> None:
    main, part = tmp_path / "main.lark", tmp_path / "part.lark"
    main.write_text("start: x\n%import .part.x")
    part.write_text('x: "1"')
    first = Grammar(main)
    part.write_text('x: "2"')
    second = Grammar(main)
    assert first != second
    part.unlink()
    assert first.parse("1") == "1" and second.parse("2") == "2"
    assert pickle.loads(pickle.dumps(second)) == second
    with pytest.raises(NameNotFoundError, match="no folder"):
        Grammar(main.read_text())


@pytest.mark.parametrize("name", library.names()[:3])
def test_names_of_the_library(name: str) -> None:
    assert Grammar(name) == Grammar(library.path_of(name))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NameNotFoundError, match="no grammar 'jsonn'") as raised:
        Grammar("jsonn")
    assert "json" in str(raised.value.hint)
    with pytest.raises(NameNotFoundError, match="no file"):
        Grammar("folder/none.lark")
    with pytest.raises(NameNotFoundError, match="cannot be read"):
        Grammar(tmp_path / "none.lark")
    (tmp_path / "latin.lark").write_bytes(b'start: "\xe9"')
    with pytest.raises(NameNotFoundError, match="cannot be read"):
        Grammar(tmp_path / "latin.lark")
    with pytest.raises(InvalidConstraintError, match="a int is no grammar"):
        Grammar(5)  # type: ignore[arg-type]


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "a.regex").write_text("a")
    with pytest.raises(OptionError, match="no syntax"):
        Grammar(SUM, syntax="ebnf")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no lexer"):
        Grammar(SUM, lexer="short")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no start"):
        Grammar(tmp_path / "a.regex", start="a")
    with pytest.raises(OptionError, match="no meaning for gbnf"):
        Grammar("root ::= [a]", lexer="longest")


def test_errors_show_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.lark").write_text("start: x")
    with pytest.raises(InvalidConstraintError) as raised:
        Grammar(tmp_path / "bad.lark")
    assert "bad.lark, line 1, column 8" in str(raised.value)
    (tmp_path / "bad.schema.json").write_text('{"a": }')
    with pytest.raises(InvalidConstraintError, match="not JSON") as raised:
        Grammar(tmp_path / "bad.schema.json")
    assert "bad.schema.json, line 1, column 7" in str(raised.value)


# --- as a value ---


def test_is_a_value() -> None:
    one, other = Grammar(SUM), Grammar(SUM)
    assert one == other and hash(one) == hash(other) and one.rules is other.rules
    assert one != Grammar(SUM + " ") and one != Grammar(SUM.replace("start", "x"), start="x")
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one).startswith("Grammar('start: start")
    assert len(repr(Grammar(f'start: "{"a" * 9000}"'))) < 400
    with pytest.raises(AttributeError):
        one.text = ""  # type: ignore[misc]
    vocabulary = byte_vocabulary()
    assert compile(one, vocabulary) is compile(other, vocabulary)
    assert one.num_bytes > len(SUM)


def test_is_public() -> None:
    assert dk.Grammar is Grammar
    import decodekit.constraints

    assert decodekit.constraints.Grammar is Grammar


# --- texts ---


def test_parse() -> None:
    grammar = Grammar(SUM)
    assert grammar.parse("1 + 23 ") == "1 + 23 "
    with pytest.raises(ValueError, match=r"goes on with 'x' at line 1, column 5, behind '1 \+ '"):
        grammar.parse("1 + x")
    with pytest.raises(ValueError, match="ends behind '1 \\+'"):
        grammar.parse("1 +")
    with pytest.raises(ValueError, match="ends behind ''"):
        grammar.parse("")
    with pytest.raises(ValueError, match="line 2, column 2"):
        Grammar('start: "é\\né" "b"').parse("é\néxb")
    with pytest.raises(ValueError, match="goes on"):
        grammar.parse("\ud800")


def test_special_tokens_stand_in_a_text_as_they_are_written() -> None:
    grammar = Grammar('start: "a" <|eot|> x* <[7]> "c"\nx: <b>')
    for text in ("a<|eot|><[7]>c", "a<|eot|><b><b><[7]>c"):
        assert grammar.parse(text) == text
    assert not any(is_parsed(grammar, text) for text in ("ac", "a<|eot|>c", "a<b><|eot|><[7]>c"))
    vocabulary = Vocabulary(
        [*(bytes((b,)) for b in range(256)), None, None, None], [256], special_tokens={"<|eot|>": 257, "<b>": 258}
    )
    matcher = compile(Grammar('start: "a" <|eot|> <[258]> "c"'), vocabulary).matcher()
    assert matcher.validate([97, 257, 258, 99]) == 4 and matcher.validate([97, *b"<|eot|>"]) == 1


def test_language() -> None:
    check_language(Grammar(SUM), accepts=["1", " 12 + 3", "1+1+1 "], rejects=["", "+", "1+", "1 2", "x"])
    check_language(Grammar('start: %json {"type": "integer"} ";" <|eot|>'), rejects=["1", "1;", "1;<|eot|>"])
    check_language(Grammar('start: "n=" %json {"type": "integer"}'), accepts=["n=1", "n=-20"], rejects=["n=", "n=x"])


@few(3)
@pytest.mark.parametrize("name", test_gbnf.SHIPPED)
def test_grammars_like_those_of_llama_cpp(name: str) -> None:
    grammar, accepted, rejected = test_gbnf.SHIPPED[name]
    text = "\n".join(line.removeprefix(" " * 8) for line in grammar.split("\n"))
    check_language(Grammar(text), accepts=accepted, rejects=rejected)


@pytest.mark.parametrize("text", [SUM, 'root ::= "[" (root ("," root)*)? "]" | [0-9]+', 'start: "a"* start "b" | "a"'])
def test_the_engine_reads_what_parse_accepts(text: str) -> None:
    grammar = Grammar(text)
    vocabulary = byte_vocabulary([b"1+", b"[[", b"],", b"ab", b"aa"])
    check_matcher(compile(grammar, vocabulary).matcher(), vocabulary)
    matcher = compile(grammar, vocabulary).matcher()
    for letters in itertools.product("1+[],ab ", repeat=4):
        data = "".join(letters).encode()
        is_text = matcher.validate(list(data)) == len(data)
        if is_text:
            for byte in data:
                matcher.accept(byte)
            is_text = matcher.is_accepting
            matcher.rollback(len(data))
        assert is_text == is_parsed(grammar, data.decode()), data


def is_parsed(grammar: Grammar, text: str) -> bool:
    try:
        grammar.parse(text)
    except ValueError:
        return False
    return True


def test_what_can_derive_nothing() -> None:
    with pytest.raises(UnsatisfiableError, match="'start'"):
        Grammar('start: "a" start').root()
    with pytest.raises(DecodekitError, match="fits"):
        Grammar('start: %json {"type": "integer", "minimum": 2, "maximum": 1}').root()


def test_longest_divides_a_text_before_the_rules_are_asked() -> None:
    grammar = 'start: STEM SUFFIX\nSTEM: "list" | "listen"\nSUFFIX: "ed" | "en"'
    check_language(Grammar(grammar), accepts=["listed", "listened", "listen"], rejects=["list"])
    check_language(Grammar(grammar, lexer="longest"), accepts=["listed", "listened"], rejects=["list", "listen"])
    assert Grammar(grammar) != Grammar(grammar, lexer="longest")


# --- untrusted ---


@pytest.mark.parametrize(
    "text",
    [
        "start: " + "(" * 90 + '"a"' + ")*" * 90,
        "root ::= " + '("b" | ' * 90 + '"a"' + ")" * 90,
        "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(5_000)) + 'r5000: "a"',
        "start: r0\n" + "".join(f'r{n}: "b" | r{n + 1}?\n' for n in range(2_000)) + 'r2000: "a"',
        'start: ("a"* "b"*)* ("a"? "b"?)~0..1000000',
    ],
)
def test_large_grammars_are_read(text: str) -> None:
    assert Grammar(text).parse("a") == "a"


def test_deep_nesting_on_a_deep_stack() -> None:
    def down(depth: int) -> Grammar:
        return Grammar("start: " + "[" * 100 + '"a"' + "]" * 100) if depth == 0 else down(depth - 1)

    with pytest.raises(ResourceLimitError, match="stack"):
        down(sys.getrecursionlimit() - 250)
