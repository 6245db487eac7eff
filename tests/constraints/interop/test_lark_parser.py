"""A `lark.Lark` as a constraint: its texts are those that the object parses, for every parser and lexer of Lark."""

from __future__ import annotations

import io
import logging
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lark
import pytest
from lark.indenter import PythonIndenter

import decodekit as dk
from decodekit.constraints import as_constraint
from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.fingerprint import described
from decodekit.constraints.grammar.longest.lexer import Lexer
from decodekit.constraints.interop.lark_parser import LarkParser, ParserGuard
from decodekit.constraints.language import ir
from decodekit.errors import ConstraintError, InvalidConstraintError, UnsatisfiableError, UnsupportedSchemaError
from decodekit.testing import check_language, check_matcher
from tests.constraints.grammar import test_against_lark, test_lexing
from tests.constraints.grammar.test_lexing import Completions
from tests.constraints.grammar.worlds import texts_of
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

KINDS = [
    ("earley", "dynamic"),
    ("earley", "dynamic_complete"),
    ("earley", "basic"),
    ("lalr", "basic"),
    ("lalr", "contextual"),
    ("cyk", "basic"),
]
KIND = pytest.mark.parametrize(("parser", "lexer"), KINDS)

CASES: dict[str, tuple[str, tuple[str, ...], int]] = {
    # --- what a pattern finds ---
    "first match": ('start: A "c"\nA: /a|ab/', ("a", "b", "c"), 4),
    "first match, which is longer later": ('start: A /b|d/ "c"?\nA: /(a|ab)(c|bcd)?/', ("a", "b", "c", "d"), 4),
    "lazy": ('start: (S | "a")+\nS: /"a*?"/', ("a", '"'), 6),
    "lazy at its end": ('start: A /a*b/\nA: /a+?/', ("a", "b"), 6),
    "lookbehind inside": ('start: S S?\nS: /".*?(?<!!)(!!)*?"/', ('"', "!", "a"), 5),
    "boundary inside": ('start: A "a"?\nA: /a+\\b./', ("a", "-"), 5),
    "two lines": ('start: L+\nL: /.+/ "\\n"', ("a", "\n"), 5),
    # --- what looks outside: the parser judges ---
    "boundary at the end": ('start: A ("b" | "-")\nA: /a\\b/', ("a", "b", "-"), 4),
    "lookahead at the end": ('start: (A | "b" | "c")+\nA: /a(?!b)/', ("a", "b", "c"), 4),
    "keywords with lookahead": ('start: NAME "b"? "."\nNAME: /(?!ab)[ab]+/', ("a", "b", "."), 5),
    "lookbehind before": ('start: (A | "b")+\nA: /(?<=b)a/', ("a", "b"), 5),
    "line ends": ('start: (A | B | "\\n")+\nA: /^a/m\nB: /b$/', ("a", "b", "\n"), 4),
    "possessive": ('start: A "b"?\nA: /(?>ab|a)c?/', ("a", "b", "c"), 4),
    "ignored lookahead": ('start: "a" "b"\n%ignore /-(?!-)/', ("a", "b", "-"), 5),
    # --- which terminal it is ---
    "keyword where a name may be": (
        'start: (s ".")+\ns: "if" N | N "=" N\nN: /[if]+/\n%ignore " "', ("if", "f", "=", ".", " "), 5
    ),
    "two contexts": ('start: "(" A ")" | "[" B "]"\nA: /a+/\nB: /a/ "b"', ("(", "[", "a", "b", ")", "]"), 4),
    "priority": ('start: (A | B "c")+\nA.2: /ab/\nB: /[ab]+c?/', ("a", "b", "c"), 5),
    "strings that ignore case": ('start: ("ab"i | N)+ "."\nN: /[ab]+/', ("a", "B", "b", "."), 4),
    "string that no pattern is": ('start: N "a" | "ab"\nN: /[ab]c?/', ("a", "b", "c"), 4),
    # --- rules ---
    "dangling else": ('start: "i" start | "i" start "e" start | "x"', ("i", "e", "x"), 6),
    "shift, not reduce": ('start: x "a"\nx: "a" | "a" "a"', ("a", "b"), 4),
    "shift where the other is right": ('start: x "b" "c" | x "d"\nx: "a" | "a" "b"', ("a", "b", "c", "d"), 4),
    "ignored in the rules": ('start: "a" WS? "b"\nWS: " "\n%ignore WS', ("a", "b", " "), 5),
    "ignored alone": ('start: "a"?\n%ignore /b+/', ("a", "b"), 5),
    "a terminal of nothing": ('start: "a" | "a" X\n%declare X', ("a", "b"), 3),
    "characters": ('start: (/[à-é]/ "ü")+ | "日"', ("é", "à", "ü", "日"), 4),
}  # fmt: skip


def world_of(name: str) -> tuple[str, tuple[str, ...], int]:
    """The grammar, pieces and length of a case, of this file or of its neighbours."""
    if name in CASES:
        return CASES[name]
    case: Any = {**test_lexing.CASES, **test_against_lark.CASES}[name]
    if isinstance(case, test_lexing.Case):
        return case.grammar, tuple(case.letters), min(case.length, 4)
    return case.grammar, tuple(case.pieces), min(case.max_pieces, 3 if len(case.pieces) > 3 else 4)


def parses(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except (lark.exceptions.LarkError, KeyError):  # a declared terminal, which the dynamic lexer does not know
        return False
    return True


def built(grammar: str, parser: str, lexer: str, **options: Any) -> lark.Lark | None:
    """None where lark itself refuses: conflicts of LALR, empty rules of CYK, empty terminals; and where it fails."""
    try:
        return lark.Lark(grammar, parser=parser, lexer=lexer, **options)  # type: ignore[arg-type]
    except (lark.exceptions.LarkError, AssertionError, AttributeError):
        return None


def check_texts(parser: lark.Lark, pieces: tuple[str, ...], length: int) -> LarkParser | None:
    """All texts of a small world, and that what can be begun can be ended; None if there is no text."""
    texts = [text.decode() for text in texts_of([piece.encode() for piece in pieces], length)]
    theirs = {text for text in texts if parses(parser, text)}
    constraint = as_constraint(parser)
    assert isinstance(constraint, LarkParser)
    try:
        recogniser = Recogniser(constraint.root(), Automaton())
    except UnsatisfiableError:
        assert not theirs
        return None
    ours, alive = set(), []
    for text in texts:
        state = recogniser.read(recogniser.root, text.encode())
        if state is not None:
            alive.append(state)
            if recogniser.states.is_accepting(state):
                ours.add(text)
    guard = constraint.guard()
    if guard is None:
        assert ours == theirs
    else:
        assert theirs <= ours
        assert theirs == {text for text in ours if guard.refuses(text.encode()) is None}
    completions = Completions(recogniser, bytes(sorted(set("".join(pieces).encode()))))
    for state in alive[:200]:
        assert completions.behind(state) is not None
    return constraint


@few(12, "possessive-lalr-contextual")
@KIND
@pytest.mark.parametrize("name", CASES)
def test_small_worlds(name: str, parser: str, lexer: str) -> None:
    grammar, pieces, length = world_of(name)
    found = built(grammar, parser, lexer)
    if found is not None:
        check_texts(found, pieces, length)


@pytest.mark.slow
@pytest.mark.parametrize(("parser", "lexer"), KINDS[:5])  # in circles of rules lark's CYK parser does not always end
@pytest.mark.parametrize("name", [*test_lexing.CASES, *test_against_lark.CASES])
def test_the_worlds_of_grammars(name: str, parser: str, lexer: str) -> None:
    grammar, pieces, length = world_of(name)
    found = built(grammar, parser, lexer)
    if found is not None:
        check_texts(found, pieces, length)


def random_grammar(seed: int) -> str:
    """As in the tests of lexers, with patterns that find less than they match."""
    rng = random.Random(seed)
    grammar = test_lexing.random_grammar(seed)
    return grammar.replace("/ab*a/", rng.choice(["/a|ab/", "/a+?b/", "/(a|ab)(b|ba)?/", "/a(?=b)/", "/a\\b/"]))


def check_random_grammars(seeds: Iterator[int], parser: str, lexer: str, length: int) -> int:
    num_checked = 0
    for seed in seeds:
        grammar = random_grammar(seed)
        found = None if parser == "cyk" else built(grammar, parser, lexer)
        if found is not None:
            check_texts(found, ("a", "b", "c") if "ignore" in grammar else ("a", "b"), length)
            num_checked += 1
    return num_checked


@few(2)
@pytest.mark.parametrize(("parser", "lexer"), KINDS[:5])
def test_random_grammars(parser: str, lexer: str) -> None:
    """A fault that one grammar in ten shows escapes with probability 0.9 ** 12 = 0.28; the slow test has 100."""
    assert check_random_grammars(iter(range(12)), parser, lexer, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("parser", "lexer"), KINDS[:5])
def test_more_random_grammars(parser: str, lexer: str) -> None:
    assert check_random_grammars(iter(range(2_000, 2_100)), parser, lexer, 5)


# --- what is in a mask, and what the parser judges ---


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("first match", set()),
        ("lazy at its end", set()),
        ("lookbehind inside", set()),
        ("boundary inside", set()),
        ("two contexts", set()),
        ("keyword where a name may be", {"contextual"}),
        ("shift where the other is right", {"lalr"}),
        ("lookahead at the end", {"dynamic", "dynamic_complete", "basic", "contextual"}),
        ("line ends", {"dynamic", "dynamic_complete", "basic", "contextual"}),
    ],
)
def test_what_the_parser_judges(name: str, kinds: set[str]) -> None:
    for parser, lexer in KINDS:
        found = built(CASES[name][0], parser, lexer)
        if found is not None:
            assert (as_constraint(found).guard() is not None) == bool({parser, lexer} & kinds), (parser, lexer)


def test_without_its_order_a_scanner_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a lexer that takes the longest of all terminals."""
    monkeypatch.setattr("decodekit.constraints.interop.lark_parser.first_match", lambda parts: ir.choice(*parts))
    with pytest.raises(AssertionError):
        check_texts(lark.Lark(CASES["priority"][0], parser="lalr", lexer="basic"), ("a", "b", "c"), 4)


def test_without_shadows_the_dynamic_lexer_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a lexer that forgets what would have made a word longer."""
    monkeypatch.setattr(Lexer, "_shadow_behind", lambda self, state: frozenset())
    with pytest.raises(AssertionError):
        check_texts(lark.Lark('start: A "ab"\nA: /a+/'), ("a", "b"), 5)


def test_a_refusal_keeps_what_stands_before_the_token() -> None:
    parser = lark.Lark('start: "é" "if" N\nN: /[a-z]+/\n%ignore " "', parser="lalr")
    refusal = ParserGuard(parser).refuses("é if 3".encode())
    assert refusal is not None and refusal.keep == len("é if ".encode())
    refusal = ParserGuard(parser).refuses("é if".encode())
    assert refusal is not None and refusal.keep == len("é if".encode())


def test_an_error_of_the_users_transformer_is_the_error_of_the_row() -> None:
    class Failing(lark.Transformer[Any, Any]):
        def start(self, children: list[Any]) -> Any:
            raise KeyError("no such name")

    parser = lark.Lark("start: A\nA: /if\\b/", parser="lalr", transformer=Failing())
    guard = as_constraint(parser).guard()
    assert guard is not None
    with pytest.raises(ConstraintError, match="KeyError"):
        guard.refuses(b"if")


# --- options ---


def test_texts_by_hand() -> None:
    grammar = r"""
        ?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: ESCAPED_STRING ":" value
        %import common.ESCAPED_STRING
        %import common.SIGNED_NUMBER
        %import common.WS
        %ignore WS
    """
    for kind in ("earley", "lalr"):
        parser = lark.Lark(grammar, start="value", parser=kind)  # type: ignore[arg-type]
        check_language(
            parser,
            accepts=['{"a": [1, 2.5e3, "x\\"y", null]}', "[]", " true ", '"é"'],
            rejects=["{a: 1}", "[1 2]", "tru", "", '"a', "[1,]"],
        )
        assert as_constraint(parser).guard() is None


@few(2)
@pytest.mark.parametrize(
    "options",
    [
        {"maybe_placeholders": False},
        {"propagate_positions": True},
        {"keep_all_tokens": True},
        {"priority": "invert"},
        {"priority": None},
        {"strict": True},
        {"ambiguity": "explicit"},
        {"g_regex_flags": 2},
        {"edit_terminals": lambda one: setattr(one, "priority", len(one.name))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(options: dict[str, Any]) -> None:
    grammar = 'start: ["a"] X* ["b" "c"]\nX.1: /[ab]/\nY: "bc"\n!x: Y'
    for parser, lexer in KINDS[:4]:
        if (found := built(grammar, parser, lexer, **options)) is not None:
            check_texts(found, ("a", "A", "b", "c"), 4)


def test_flags_of_all_terminals() -> None:
    parser = lark.Lark('start: "ab" /c . d/', g_regex_flags=2 | 64)  # IGNORECASE | VERBOSE
    check_language(parser, accepts=["abcxd", "ABC-D"], rejects=["abc d d", "abc . d"])


def test_where_a_parser_comes_from(tmp_path: Path) -> None:
    """From a text, a file with imports, a saved parser, a folder to import from: the same constraint."""
    grammar = 'start: NAME "=" N\nNAME: /[a-z]+/\n%import .digits.N\n%ignore " "'
    (tmp_path / "a.lark").write_text(grammar)
    (tmp_path / "digits.lark").write_text("N: /[0-9]+/")
    opened = lark.Lark.open(str(tmp_path / "a.lark"), parser="lalr")
    saved = io.BytesIO()
    opened.save(saved)
    saved.seek(0)
    loaded = lark.Lark.load(saved)
    imported = lark.Lark(grammar.replace(".digits", "digits"), parser="lalr", import_paths=[str(tmp_path)])
    constraints = [as_constraint(parser) for parser in (opened, loaded, imported)]
    assert constraints[0] == constraints[1]
    for parser in (opened, loaded, imported):
        check_language(parser, accepts=["a=1", " ab = 12"], rejects=["a", "=1", "a=b"])


def test_one_parser_is_read_once() -> None:
    parser = lark.Lark('start: "a"')
    assert as_constraint(parser) is as_constraint(parser)
    assert as_constraint(lark.Lark('start: "a"')) == as_constraint(parser) != as_constraint(lark.Lark('start: "b"'))


# --- what is refused ---


class OwnLexer(lark.lexer.Lexer):
    def __init__(self, conf: Any) -> None: ...

    def lex(self, lexer_state: Any, parser_state: Any) -> Any: ...


@pytest.mark.parametrize(
    ("parser", "error", "said"),
    [
        (
            lambda: lark.Lark(
                "start: _NL\n_NL: /\\n/\n%declare _INDENT _DEDENT", parser="lalr", postlex=PythonIndenter()
            ),
            UnsupportedSchemaError,
            "Indenter",
        ),
        (lambda: lark.Lark('start: "a"', parser="lalr", lexer=OwnLexer), UnsupportedSchemaError, "lexer class"),
        (
            lambda: lark.Lark('start: A\nA: "a"', parser="lalr", lexer_callbacks={"A": lambda token: token}),
            UnsupportedSchemaError,
            "lexer_callbacks",
        ),
        (lambda: lark.Lark('start: "a"', use_bytes=True), UnsupportedSchemaError, "use_bytes"),
        (lambda: lark.Lark('start: "a"', regex=True), UnsupportedSchemaError, "regex"),
        (lambda: lark.Lark('a: "a"\nb: "b"', start=["a", "b"]), InvalidConstraintError, "several starts"),
        (lambda: lark.Lark('start: "a"', parser=None, lexer="basic"), InvalidConstraintError, "lexer alone"),
        (lambda: lark.Lark("start: A\nA: /(a)b\\1/"), UnsupportedSchemaError, "back-reference"),
    ],
)
def test_what_is_refused(parser: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        as_constraint(parser())
    assert caught.value.hint or caught.value.at  # type: ignore[attr-defined]


def test_a_parser_without_a_text() -> None:
    with pytest.raises(UnsatisfiableError):
        as_constraint(lark.Lark('start: "a" start')).root()


# --- in use ---


def test_a_guard_in_a_generation() -> None:
    """The model writes what it likes, and what comes out is what the parser parses."""
    parser = lark.Lark('start: ("if" N | N "=" N) "."\nN: /[if]{1,3}/', parser="lalr")
    assert as_constraint(parser).guard() is not None
    llm = dk.LLM.load("tiny")
    for seed in range(3):
        out = llm.generate("x", strategy=dk.Sample(), constraint=parser, seed=seed, max_new_tokens=40)
        assert out.error is None and parses(parser, out.text) and out.value == out.text


def test_in_compositions_and_matchers() -> None:
    parser = lark.Lark('start: "a"+ ["b"]')
    check_language(dk.Concat("x", parser, "y"), accepts=["xay", "xaaby"], rejects=["xby", "xy"])
    vocabulary = byte_vocabulary([b"aa", b"ab", b"ba"])
    check_matcher(dk.compile(parser, vocabulary).matcher(), vocabulary, num_tokens=8, seed=0)


def test_parse_and_explain() -> None:
    constraint = as_constraint(lark.Lark('start: "if" N\nN: /[a-z]+/\n%ignore " "', parser="lalr"))
    assert constraint.parse("if a") == "if a"
    with pytest.raises(ValueError, match="line 1, column 4"):
        constraint.parse("if 3")
    judged = as_constraint(lark.Lark('start: A "b"?\nA: /a\\b/', parser="lalr"))
    assert judged.parse("a") == "a"
    with pytest.raises(ValueError, match="parser refuses"):
        judged.parse("ab")


def test_what_it_is_called(caplog: pytest.LogCaptureFixture) -> None:
    """A job tells two parsers apart by what they parse, and not by where they are in memory or on disk."""
    caplog.set_level(logging.ERROR)
    grammar = 'start: (N | "if" N)+\nN: /[a-z]+/\n%ignore " "'
    one, other = (as_constraint(lark.Lark(grammar, parser="lalr", source_path=path)) for path in ("x", "y"))
    assert described(one) == described(other)
    assert "parser" not in described(one)["LarkParser"]
    assert described(one) != described(as_constraint(lark.Lark(grammar.replace("if", "of"), parser="lalr")))
    assert described(one) != described(as_constraint(lark.Lark(grammar, parser="earley")))


def test_pickled() -> None:
    """A constraint without a parser is data. One with a parser holds a program, which cannot be pickled."""
    constraint = as_constraint(lark.Lark('start: "a"+'))
    assert pickle.loads(pickle.dumps(constraint)) == constraint
    judged = as_constraint(lark.Lark("start: A\nA: /a\\b/"))
    with pytest.raises(TypeError):
        pickle.dumps(judged)
