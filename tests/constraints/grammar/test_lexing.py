"""``lexer="longest"``: texts that a lexer divides first, against the slow twin, against lark, and by hand."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import lark
import pytest

from decodekit.constraints.completion.longest import most_bytes
from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.grammar import Grammar
from decodekit.constraints.grammar.lark.lark_rules import load_rules
from decodekit.constraints.grammar.longest.lexer import Lexer
from decodekit.constraints.grammar.longest.lexer_frames import lexing_root
from decodekit.constraints.grammar.rules import Rules
from decodekit.constraints.grammar.source import Source
from decodekit.constraints.matching.compiler import compile
from decodekit.errors import InvalidConstraintError, ResourceLimitError, UnsatisfiableError, UnsupportedSchemaError
from decodekit.testing import check_language, check_matcher
from tests.constraints.grammar.worlds import Framed, allowed, texts_of
from tests.reference.lexing import Lexing
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few, sized


@dataclass(frozen=True)
class Case:
    """A grammar, the letters of its texts, the length up to which all are tried, and where lark is another lexer.

    Lark tries its terminals in a fixed order and takes what `re` finds first, which need not be the longest.
    """

    grammar: str
    letters: str
    length: int
    lark_rejects: frozenset[str] = frozenset()
    lark_accepts: frozenset[str] = frozenset()


CASES: dict[str, Case] = {
    # --- where a lexeme ends ---
    "greedy": Case('start: A "ab"? "b"?\nA: /a+/', "ab", 6, lark_accepts=frozenset({"ab"})),
    "the lexer does not give back": Case('start: A "ab" | "c"\nA: /a+/', "abc", 5),
    "a shadow over two lexemes": Case('start: ("a" | "b" | "abc")+', "abc", 6),
    "a shadow over two lexemes, without the long one": Case('start: ("a" | "b" | "c" | x)+\nx: "abca" "c"', "abc", 6),
    "shadows of several lexemes": Case('start: ("a" | "b" | "aab" | "bba")+', "ab", 7),
    "a shadow that lasts": Case('start: (A | B | C)+\nA: "a"\nB: "b"\nC: /ab*c/', "abc", 5),
    "nested shadows": Case('start: ("a" | "b" | /abab+a/ | /bb+a/)+', "ab", 7),
    "stuck": Case('start: ("a" | "aba")+', "ab", 8),
    "back to a shorter one": Case('start: ("a" | "ab" | "abab" "c")+', "abc", 6),
    "at the end nothing follows": Case(
        'start: A B\nA: /a|ab/\nB: /ba?/', "ab", 6,
        lark_rejects=frozenset({"abb", "abba"}), lark_accepts=frozenset({"ab", "aba"}),
    ),
    "suffix": Case('start: STEM SUFFIX?\nSTEM: "a" | "ab"\nSUFFIX: "b" | "c"', "abc", 5),
    "numbers": Case('start: INT ("." INT)* | FLOAT\nINT: /1+/\nFLOAT: /1+\\.1+/', "1.", 9),
    "an open comment": Case('start: ("/" | "*" | "a")+\n%ignore /\\/\\*a*\\*\\//', "/*a", 6),
    "strings of one and of three": Case('start: (S | "a")+\nS: /""".*?"""/ | /"a*"/', '"a', 7),
    # --- which terminal a lexeme is of ---
    "keywords and names": Case('start: "if" NAME | NAME "=" NAME\nNAME: /[if]+/\n%ignore " "', "if= ", 6),
    "keywords alone": Case('start: ("in" | "int" | NAME "!")+\nNAME: /[int]+/', "int!", 5),
    "priority of a pattern": Case('start: "ab" "c" | X "d"\nX.1: /a[bc]/', "abcd", 4),
    "priority of the shorter": Case(
        'start: (A | B "c")+\nA.2: /ab/\nB: /[ab]+c?/', "abc", 5,
        lark_rejects=frozenset({"abcc"}), lark_accepts=frozenset({"abab"}),
    ),
    "of two patterns the wider": Case('start: A "c" | B "d"\nA: /[ab]/\nB: /[ab]+/', "abcd", 4),
    "of two patterns the longer": Case('start: A "c" | B "d"\nA: /[ab]+/\nB: /[ba]{1,}/', "abcd", 4),
    "of two patterns the first by name": Case('start: B "c" | A "d"\nA: /[ab]/\nB: /[ba]/', "abcd", 4),
    "a string and a pattern of one word": Case('start: "a" "c" | A "d"\nA: /a/', "acd", 4),
    "strings written alike": Case('start: "a" "c" | A "d"\nA.3: "a"\nX: /a/', "acd", 4),
    "a name that is always another": Case('start: A | B "b"\nA: "a"\nB: /a/', "ab", 5),
    "ignoring case": Case('start: ("ab"i | "c")+', "aAbBc", 4),
    # --- ignored terminals ---
    "blanks": Case('start: "a" A* | "b"\nA: /a+/\n%ignore " "', "ab ", 6),
    "blanks longer than terminals": Case('start: (" a" | "a")+\n%ignore " "', " a", 8),
    "ignored in the rules": Case('start: "a" WS? "b"\nWS: " "\n%ignore WS', "ab ", 6),
    "ignored alone": Case('start: "a"?\n%ignore /b+/', "ab", 7),
    "ignored keeps lexemes apart": Case('start: A A B?\nA: /a+/\nB: "b"\n%ignore "-"', "ab-", 6),
    "comments and division": Case('start: N ("/" N)*\nN: /a+/\n%ignore /\\/\\/b*;/', "a/b;", 6),
    # --- rules ---
    "left recursion": Case('start: start "+" A | A\nA: /a+/', "a+", 8),
    "right recursion": Case('start: A start | B\nA: /ab?/\nB: /ba?/', "ab", 8),
    "brackets": Case('start: "(" start ")" | A | "((" "x"\nA: /a+/', "(a)x", 6),
    "calls that leave different shadows": Case(
        'start: x y | "c" x "c"\nx: A | "b" | "b" x "c"\ny: A | B\nA: /a+/\nB: /b+c/', "abc", 5
    ),
    "pairs or nothing": Case('start: start start | A | "b" |\nA: /aa?b?/', "ab", 7),
    "empty in a ring": Case('start: x\nx: y | A\ny: x | "b" |\nA: /a+/', "ab", 6),
    "rounds between bounds": Case('start: (A "b"?) ~ 2..3\nA: /a+b?/', "ab", 8),
}  # fmt: skip


def ranked(grammar: str) -> Rules:
    return load_rules(Source(grammar), lexer="longest")


class Completions:
    """A shortest text that leads from a state to an accepting one, by trying all."""

    def __init__(self, recogniser: Recogniser, letters: bytes) -> None:
        self.recogniser, self.letters = recogniser, letters
        self._known: dict[State, bytes | None] = {}

    def behind(self, state: State) -> bytes | None:
        if state not in self._known:
            self._known[state] = self._search(state)
        return self._known[state]

    def _search(self, state: State) -> bytes | None:
        seen = {state}
        agenda = deque([(state, b"")])
        while agenda:
            current, text = agenda.popleft()
            if self.recogniser.states.is_accepting(current):
                return text
            for letter in self.letters:
                target = self.recogniser.step(current, letter)
                if target is not None and target not in seen:
                    seen.add(target)
                    agenda.append((target, text + bytes((letter,))))
        return None


def check_against_twin(grammar: str, letters: bytes, length: int) -> set[bytes]:
    """The engine accepts what the twin accepts, and goes along with its beginnings alone; returns what is accepted."""
    rules = ranked(grammar)
    twin = Lexing(rules)
    texts = texts_of([bytes((letter,)) for letter in letters], length)
    accepted = {text for text in texts if twin.accepts(text)}
    try:
        recogniser = Recogniser(lexing_root(rules), Automaton())
    except UnsatisfiableError:
        assert not accepted
        return accepted
    completions = Completions(recogniser, letters)
    alive: set[bytes] = set()
    for text in texts:
        state = recogniser.read(recogniser.root, text)
        assert (state is not None and recogniser.states.is_accepting(state)) == (text in accepted), text
        if state is not None:
            alive.add(text)
            rest = completions.behind(state)
            assert rest is not None, f"nothing completes {text!r}"
            assert twin.accepts(text + rest), text + rest
    beginnings = {text[:end] for text in accepted for end in range(len(text) + 1)}
    assert beginnings <= alive
    return accepted


def check_masks(grammar: str, letters: bytes, length: int) -> None:
    """After all short texts, the mask has the tokens behind which a text can still be completed."""
    frame = lexing_root(ranked(grammar))
    pieces = [bytes((letter,)) for letter in letters]
    vocabulary = byte_vocabulary([token for token in texts_of(pieces, 3) if len(token) > 1])
    tokens = {number: data for number, data in enumerate(vocabulary.token_bytes) if data is not None}
    matcher = compile(Framed(frame), vocabulary).matcher()
    recogniser = Recogniser(frame, Automaton())
    for text in texts_of(pieces, length):
        if recogniser.read(recogniser.root, text) is not None:
            for byte in text:
                assert matcher.accept(byte)
            expected = {n for n, data in tokens.items() if recogniser.read(recogniser.root, text + data) is not None}
            assert allowed(matcher, vocabulary) - vocabulary.eos_token_ids == expected, text
            matcher.rollback(len(text))


def by_lark(grammar: str, texts: list[bytes]) -> set[str]:
    parser = lark.Lark(grammar, parser="earley", lexer="basic")
    found = set()
    for text in texts:
        try:
            parser.parse(text.decode())
        except lark.exceptions.LarkError:
            continue
        found.add(text.decode())
    return found


@few(4, "strings written alike-1")
@sized("less", 1, slow=0)
@pytest.mark.parametrize("name", CASES)
def test_small_worlds(name: str, less: int) -> None:
    case = CASES[name]
    letters, length = case.letters.encode(), case.length - less
    accepted = {text.decode() for text in check_against_twin(case.grammar, letters, length)}
    assert accepted or less, "a world without accepted texts shows little"
    lark_accepts = by_lark(case.grammar, texts_of([bytes((letter,)) for letter in letters], length))
    assert accepted - lark_accepts == {text for text in case.lark_rejects if len(text) <= length}
    assert lark_accepts - accepted == {text for text in case.lark_accepts if len(text) <= length}


@few(17)
@pytest.mark.parametrize("name", CASES)
def test_masks(name: str) -> None:
    case = CASES[name]
    check_masks(case.grammar, case.letters.encode(), 3)


def random_grammar(seed: int) -> str:
    """Rules and terminals over a and b, and blanks c."""
    rng = random.Random(seed)
    pool = ['"a"', '"b"', '"ab"', '"aba"', "/a+/", "/b+a?/", "/ab*a/", "/(ab)+/", "/[ab]b/", "/a{2,3}b/", "/b(ab)*b/"]
    terminals = rng.sample(pool, rng.randint(2, 4))
    names = [f"T{i}" for i in range(len(terminals))]

    def expression(depth: int) -> str:
        kind = rng.randrange(7) if depth else 0
        if kind <= 2:
            return rng.choice([*names, *names, "x", "y"])
        if kind <= 4:
            return f"({expression(depth - 1)} {expression(depth - 1)})"
        if kind == 5:
            return f"({expression(depth - 1)} | {expression(depth - 1)})"
        return f"({expression(depth - 1)}){rng.choice('?*+')}"

    rules = [f"{name}: {expression(3)} | {rng.choice(names)}" for name in ("x", "y")]
    priorities = [rng.choice(["", "", ".1"]) for _ in names]
    ends = [f"{name}{p}: {terminal}" for name, p, terminal in zip(names, priorities, terminals, strict=True)]
    ignored = ["%ignore /c/"] if rng.random() < 0.4 else []
    return "\n".join([f"start: {expression(3)} {expression(2)}", *rules, *ends, *ignored])


@pytest.mark.parametrize("seed", range(20))
def test_random_grammars(seed: int) -> None:
    """A fault that one grammar in ten shows escapes with probability 0.9 ** 20 = 0.12; the slow test has 300."""
    grammar = random_grammar(seed)
    check_against_twin(grammar, b"abc" if "ignore" in grammar else b"ab", 4 if "ignore" in grammar else 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_more_random_grammars(seed: int) -> None:
    grammar = random_grammar(seed)
    accepted = check_against_twin(grammar, b"abc" if "ignore" in grammar else b"ab", 5 if "ignore" in grammar else 8)
    if accepted:
        check_masks(grammar, b"abc", 2)


@pytest.mark.parametrize(
    "name", ["a shadow over two lexemes, without the long one", "greedy", "keywords alone", "numbers", "blanks"]
)
def test_without_shadows_the_twin_disagrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a lexer that forgets what would have made a lexeme longer."""
    case = CASES[name]
    monkeypatch.setattr(Lexer, "_shadow_behind", lambda self, state: frozenset())
    with pytest.raises(AssertionError):
        check_against_twin(case.grammar, case.letters.encode(), case.length)


@pytest.mark.parametrize("name", ["a string and a pattern of one word", "of two patterns the wider", "keywords alone"])
def test_without_ranks_the_twin_disagrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a lexer that takes the last terminal of those that have a word."""
    case = CASES[name]
    monkeypatch.setattr("decodekit.constraints.grammar.longest.lexer.min", max, raising=False)
    with pytest.raises(AssertionError):
        check_against_twin(case.grammar, case.letters.encode(), case.length)


@few(4)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if "x" in case.grammar or "start " in case.grammar]
)
def test_calls_that_guess_the_shadow(name: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks that are kept in frames save guesses; whoever keeps none has the same texts."""
    monkeypatch.setattr("decodekit.constraints.grammar.longest.lexer_frames.MAX_DEPTH", depth)
    case = CASES[name]
    assert check_against_twin(case.grammar, case.letters.encode(), min(case.length, 6))


@pytest.mark.parametrize("seed", range(100, 110))
def test_random_grammars_that_guess(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodekit.constraints.grammar.longest.lexer_frames.MAX_DEPTH", seed % 2)
    check_against_twin(random_grammar(seed), b"ab", 6)


@few(2, "toml")
@pytest.mark.parametrize("name", ["arithmetic", "json", "c_expression", "python_expression", "toml"])
def test_grammars_of_the_library(name: str) -> None:
    """Random texts, and what is left of them with one byte changed, against the twin."""
    rules = Grammar(name, lexer="longest").rules
    twin, recogniser = Lexing(rules), Recogniser(lexing_root(rules), Automaton())
    letters = bytes(range(32, 127)) + b"\n"
    completions = Completions(recogniser, letters)
    rng = random.Random(0)
    num_accepted = num_rejected = 0
    for _ in range(12):
        state, text = recogniser.root, b""
        for _ in range(10):
            byte = rng.choice([letter for letter in letters if recogniser.step(state, letter) is not None] or [0])
            following = recogniser.step(state, byte)
            if following is None:
                break
            state, text = following, text + bytes((byte,))
        rest = completions.behind(state)
        assert rest is not None, text
        text += rest
        assert twin.accepts(text), text
        for _ in range(6):
            at = rng.randrange(len(text) + 1)
            changed = text[:at] + rng.choice([b"", bytes((rng.choice(letters),))]) + text[at + rng.randrange(2) :]
            read = recogniser.read(recogniser.root, changed)
            is_accepted = read is not None and recogniser.states.is_accepting(read)
            assert is_accepted == twin.accepts(changed), changed
            num_accepted += is_accepted
            num_rejected += not is_accepted
    assert num_accepted and num_rejected


# --- by hand ---


def test_texts_by_hand() -> None:
    grammar = """
        start: (assignment ";")+
        assignment: NAME "=" sum | "return" sum | "if" sum "then" assignment
        sum: sum ("+" | "++") atom | atom
        atom: NAME | NUMBER | "(" sum ")"
        NAME: /[a-z]+/
        NUMBER: /[0-9]+(\\.[0-9]+)?/
        COMMENT: /#[^\\n]*\\n/
        %ignore COMMENT
        %ignore /[ \\n]+/
    """
    check_language(
        Grammar(grammar, lexer="longest"),
        accepts=["a=1;", "a = b++c;", "return x;", "iffy=1;", "if a then b=2.5;", "a=(b) # c\n;\n"],
        rejects=["return=1;", "returnx;", "ifathen b=1;", "if=1;", "a=1 2;", "a=b+++c;", "a=1.;", "a=1 # c;", ""],
    )
    check_language(Grammar(grammar), accepts=["returnx;", "return=1;", "ifathen b=1;"], rejects=["a=b+++c;"])


def test_the_laws_of_a_matcher() -> None:
    grammar = Grammar(
        'start: NAME ("=" sum | "(" sum ")")\nsum: sum "+" atom | atom\natom: NAME | "if" | /1+(\\.1+)?/\n'
        'NAME: /[a-z]+/\n%ignore " "',
        lexer="longest",
    )
    vocabulary = byte_vocabulary([b"if", b"i", b"fi", b"a=", b"1.", b".1", b" (", b"a(i", b"+if", b"f)", b") ", b"= 1"])
    for seed in range(3):
        check_matcher(compile(grammar, vocabulary).matcher(), vocabulary, num_tokens=12, seed=seed)


def test_parse_is_the_same_language() -> None:
    grammar = Grammar('start: "if" NAME\nNAME: /[a-z]+/\n%ignore " "', lexer="longest")
    assert grammar.parse("if iffy ") == "if iffy "
    for text in ("iffy", "if if", "if"):
        with pytest.raises(ValueError, match="no text of the grammar"):
            grammar.parse(text)


def test_how_long_a_text_can_get() -> None:
    """The network is finite: frames that come back to themselves are texts without bound."""
    assert most_bytes(Grammar('start: "if" "." A\nA: /[a-z]{1,5}/', lexer="longest").root()) == 8
    assert most_bytes(Grammar('start: "a" start "b" |', lexer="longest").root()) is None


def test_a_refusal_names_the_terminals() -> None:
    grammar = Grammar('start: "if" NAME "." | NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "', lexer="longest")
    vocabulary = byte_vocabulary()
    matcher = compile(grammar, vocabulary).matcher()
    for byte in b"if ":
        assert matcher.accept(byte)
    explanation = matcher.explain("=")
    assert not explanation.is_allowed
    assert "NAME" in explanation.text


@pytest.mark.parametrize(
    "grammar",
    [
        "start: A A\nA: /a+/",
        "start: A B\nA: /a+/\nB: /a+b/",
        'start: A\nA: /a/\nB: "a"\nx: B\n%extend start: x "b" A',
        'start: A "b"\nA: "a"\nB.1: /a/\n%ignore B',
        'start: WS\nWS: " "\n%ignore WS',
        'start: x "c"\nx: A x | A\nA: /a+/\n%ignore /a+c|c+/',
    ],
)
def test_grammars_without_a_text(grammar: str) -> None:
    with pytest.raises(UnsatisfiableError):
        Grammar(grammar, lexer="longest").root()


def test_ways_that_lead_nowhere_are_not_begun() -> None:
    """Behind the first a there is no second one, and no c, which would have been read as one with it."""
    grammar = Grammar('start: A (A | "c" | "b") | "d" start\nA: /a+/ "c"?', lexer="longest")
    recogniser = Recogniser(grammar.root(), Automaton())
    state = recogniser.read(recogniser.root, b"da")
    assert state is not None
    assert {byte for byte in range(256) if recogniser.step(state, byte) is not None} == set(b"abc")
    assert recogniser.read(recogniser.root, b"dacc") is not None
    assert recogniser.read(recogniser.root, b"dab") is not None


# --- what is refused ---


@pytest.mark.parametrize(
    ("grammar", "error", "cause"),
    [
        ("start: A\nA: /a*/", InvalidConstraintError, "the terminal A may be empty"),
        ('start: "a" /b?/', InvalidConstraintError, "/b\\?/ may be empty"),
        ('start: "a" ""', InvalidConstraintError, "may be empty"),
        ('start: "a"\n%ignore /b*/', InvalidConstraintError, "what is ignored may be empty"),
        ('start: "a" <|end|>', UnsupportedSchemaError, "a special token"),
        ('start: "a" %json {"type": "null"}', UnsupportedSchemaError, "%json"),
    ],
)
def test_what_is_refused(grammar: str, error: type[Exception], cause: str) -> None:
    with pytest.raises(error, match=cause) as raised:
        Grammar(grammar, lexer="longest")
    assert "line " in str(raised.value)


@few(2)
@pytest.mark.parametrize(
    "grammar",
    [
        "start: A\nA: /[ab]*a[ab]{15}/",
        'start: x+\nx: "a" | "b" | /[ab]*a[ab]{9}c/',
        'start: x+\nx: "a" | ' + " | ".join(f"/a{{{i}}}b/" for i in range(1, 150)),
    ],
)
def test_what_is_too_large(grammar: str) -> None:
    with pytest.raises(ResourceLimitError):
        Grammar(grammar, lexer="longest").root()
