"""No dead ends: random walks under the masks of every grammar of the library, and outside oracles for their texts.

A step is a mask and a token that it allows. A mask is never empty where the text may not end, wherever a walk stands a
completion leads to a whole text, and every whole text is one of the language for whoever else knows it.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import lark
import numpy as np
import pytest
from tokenizers import Tokenizer

import decodekit
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.grammar import library
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.testing import check_matcher
from decodekit.vocabulary import Vocabulary
from tests.grammars.judges import JUDGES
from tests.reference import earley
from tests.reference.vocabularies import adversarial_tokens, byte_vocabulary, small_vocabulary
from tests.sizes import few, thinned

NAMES = library.names()
NUM_STEPS = 1_000_000
"""Of the slow walks, over all grammars."""

NUM_PIECES = 70
"""Of the examples of each grammar, that are tokens."""
TINY_TOKENIZER = Path(decodekit.__file__).parent / "models" / "tiny" / "tokenizer.json"


@functools.cache
def accepted(name: str) -> tuple[bytes, ...]:
    """The accepted examples of a grammar."""
    path = library.path_of(name).parent / f"{name}.examples.json"
    return tuple(text.encode() for text in json.loads(path.read_text())["accepts"])


@functools.cache
def pieces(name: str) -> frozenset[bytes]:
    """What stands somewhere in the accepted examples, up to five bytes long."""
    return frozenset(text[i : i + n] for text in accepted(name) for n in (1, 2, 3, 5) for i in range(len(text) - n + 1))


@functools.cache
def vocabulary() -> Vocabulary:
    """Every byte, the tokens of the bundled models, tokens that are hard on JSON, and pieces of all examples."""
    tiny = Vocabulary.from_tokenizer(Tokenizer.from_file(str(TINY_TOKENIZER)), eos_token_ids=[1])
    known = {*tiny.token_bytes, *adversarial_tokens()}
    found: set[bytes] = set()
    for name in NAMES:
        new = sorted(pieces(name) - known)
        found.update(random.Random(name).sample(new, min(len(new), NUM_PIECES)))
    rows = [*tiny.token_bytes, *adversarial_tokens(), *sorted(found)]
    return Vocabulary(rows, tiny.eos_token_ids, len(rows), tiny.special_tokens)


def test_the_vocabulary_has_all_bytes_and_thousands_of_longer_tokens() -> None:
    tokens = [data for data in vocabulary().token_bytes if data is not None]
    assert {data[0] for data in tokens if len(data) == 1} == set(range(256))
    assert sum(len(data) > 1 for data in tokens) > 3500
    assert vocabulary().eos_token_ids == {1}


# --- oracles ----------------------------------------------------------------------------------------------------------


@functools.cache
def oracle(name: str) -> Callable[[str], bool]:
    """Whether a text is of the language: lark, `re`, jsonschema, or the slow twin of grammars for GBNF."""
    path = library.path_of(name)
    if path.suffix == ".lark":
        parser = lark.Lark.open(str(path), parser="earley", lexer="dynamic_complete")
        return functools.partial(_passes, parser.parse)
    if path.suffix == ".regex":
        pattern = re.compile(path.read_text())
        return lambda text: pattern.fullmatch(text) is not None
    if path.suffix == ".json":
        return functools.partial(_passes, JUDGES[name])
    rules = Grammar(name).rules
    return lambda text: earley.accepts(rules, text.encode())


def _passes(judge: Callable[[str], object], text: str) -> bool:
    try:
        judge(text)
    except Exception:  # each judge has errors of its own
        return False
    return True


def check_text(name: str, text: bytes) -> None:
    """A whole text is one of the language for the oracle of its grammar, and for the judge if it has one."""
    read = text.decode()
    assert oracle(name)(read), f"{name}: the oracle rejects {read!r}"
    assert name not in JUDGES or _passes(JUDGES[name], read), f"{name}: the judge rejects {read!r}"


def test_keywords_of_sql_are_ascii() -> None:
    with pytest.raises(ValueError, match="goes on with"):
        Grammar("sql").parse("ſELECT 1")


def test_keywords_of_sql_are_no_names() -> None:
    with pytest.raises(ValueError, match="no text of the grammar"):
        Grammar("sql").parse("SELECT name FROM set")


@few(14)
@pytest.mark.parametrize("name", NAMES)
def test_oracles_reject_what_a_grammar_rejects(name: str) -> None:
    path = library.path_of(name).parent / f"{name}.examples.json"
    texts = sorted(json.loads(path.read_text())["rejects"], key=len)[:6]
    assert [text for text in texts if oracle(name)(text)] == []


# --- walks ------------------------------------------------------------------------------------------------------------


class Walker:
    """Walks at random under the masks of a grammar, back and forth, and sees to what masks promise.

    Args:
        likely: the bytes of tokens that are drawn more often than others.
    """

    def __init__(self, constraint: Constraint, tokens: Vocabulary, likely: frozenset[bytes], rng: random.Random):
        self.matcher: Matcher = compile(constraint, tokens).matcher()
        self.num_steps = 0
        self._vocabulary, self._rng = tokens, rng
        self._bitmask = allocate_bitmask(1, tokens.size)
        self._eos = sorted(tokens.eos_token_ids)
        self._is_likely = np.array([data in likely for data in tokens.token_bytes])
        self._first = np.array([-1 if data is None else data[0] for data in tokens.token_bytes])
        self._is_byte = np.array([data is not None and len(data) == 1 for data in tokens.token_bytes])
        self._path: list[int] = []

    @property
    def text(self) -> bytes:
        """The text so far."""
        return self._vocabulary.decode(self._path)

    def text_after(self, beginning: bytes, num_steps: int, max_length: int) -> bytes:
        """A whole text; the walk goes `num_steps` steps from a beginning, and stays about within `max_length` bytes."""
        assert self.matcher.num_tokens == 0
        self._path = divide(beginning, self._vocabulary, self._rng)
        assert all(map(self.matcher.accept, self._path)), f"{beginning!r} is refused"
        for _ in range(num_steps):
            if not self._step():
                break
            if self._rng.random() < 0.1:
                self._completion()
            if len(self.text) > max_length or self._rng.random() < 0.1:
                self._back(self._rng.choice((1, 2, self._rng.randint(0, len(self._path)))))
        if not self.matcher.is_terminated:
            ending = self._completion()
            assert all(map(self.matcher.accept, ending)), f"{ending} is refused behind {self.text!r}"
            self._path += ending
        text = self.text
        self.matcher.rollback(self.matcher.num_tokens)
        self._path = []
        return text

    def allowed(self) -> Int32Array:
        """The allowed tokens that are no end of the text, after checking what a mask promises."""
        self.matcher.fill_bitmask(self._bitmask)
        ids = ids_from_bitmask(self._bitmask[0])
        assert len(ids), f"a dead end behind {self.text!r}"
        going_on = ids[self._first[ids] >= 0]
        eos = self._eos if self.matcher.is_accepting else []
        assert ids[self._first[ids] < 0].tolist() == eos, f"the end does not match is_accepting behind {self.text!r}"
        assert self.matcher.can_continue == (len(going_on) > 0), f"can_continue is wrong behind {self.text!r}"
        other = self._rng.randrange(self._vocabulary.size)
        is_allowed = bool(self._bitmask[0, other >> 5] >> (other & 31) & 1)
        assert self.matcher.validate([other]) == is_allowed, f"validate and mask: {other} behind {self.text!r}"
        return going_on

    def _step(self) -> bool:
        """Go on with a token; False if the text has ended."""
        going_on = self.allowed()
        self.num_steps += 1
        if self.matcher.is_accepting and (not len(going_on) or self._rng.random() < 0.05):
            assert self.matcher.accept(self._eos[0]) and self.matcher.is_terminated
            self.matcher.fill_bitmask(self._bitmask)
            assert not self._bitmask.any(), f"something is allowed after the end of {self.text!r}"
            return False
        token = self._draw(going_on)
        assert self.matcher.accept(token), f"the mask allows {token} behind {self.text!r}, accept refuses it"
        self._path.append(token)
        return True

    def _draw(self, tokens: Int32Array) -> int:
        """One of the allowed tokens. Drawing them all alike would leave a string only seldom."""
        how = self._rng.random()
        if how < 0.5:
            likely = tokens[self._is_likely[tokens]]
            tokens = likely if len(likely) else tokens
        elif how < 0.7:
            first = self._rng.choice(np.unique(self._first[tokens]).tolist())
            tokens = tokens[self._first[tokens] == first]
        elif how < 0.85:
            tokens = tokens[self._is_byte[tokens]]
            assert len(tokens), f"longer tokens are allowed behind {self.text!r}, their first bytes are not"
        return int(tokens[self._rng.randrange(len(tokens))])

    def _completion(self) -> list[int]:
        ending = list(self.matcher.completion())
        fork = self.matcher.fork()
        assert all(map(fork.accept, ending)), f"the completion {ending} is refused behind {self.text!r}"
        assert fork.is_accepting, f"the completion {ending} is no end behind {self.text!r}"
        return ending

    def _back(self, num_tokens: int) -> None:
        place = max(0, len(self._path) - num_tokens)
        self.matcher.rollback(len(self._path) - place)
        del self._path[place:]


@functools.cache
def ids_of(tokens: Vocabulary) -> dict[bytes, int]:
    return {data: token for token, data in enumerate(tokens.token_bytes) if data is not None}


def divide(data: bytes, tokens: Vocabulary, rng: random.Random, max_length: int = 8) -> list[int]:
    """A random division into tokens; every byte must be one."""
    ids, divided, place = ids_of(tokens), [], 0
    while place < len(data):
        ends = range(place + 1, min(place + max_length, len(data)) + 1)
        end = rng.choice([end for end in ends if data[place:end] in ids])
        divided.append(ids[data[place:end]])
        place = end
    return divided


def hunt(name: str, num_steps: int, seed: int, *, num_per_text: int) -> int:
    """Go so many steps at least in texts of a grammar, each judged; the number of texts."""
    rng = random.Random(f"{name} {seed}")
    walker = Walker(Grammar(name), vocabulary(), pieces(name), rng)
    beginnings = sorted(accepted(name), key=len)[:3] + [text for text in accepted(name) if len(text) <= 60]
    judged: set[bytes] = set()
    while walker.num_steps < num_steps:
        example = rng.choice(beginnings)
        begin = rng.choice([0, rng.randrange(len(example) + 1)])
        length = len(example) + (150 if rng.random() < 0.02 else 30)  # oracles are slow: seldom a long text
        text = walker.text_after(example[:begin], rng.randrange(1, 2 * num_per_text), length)
        if text not in judged:
            check_text(name, text)
            judged.add(text)
    return len(judged)


@few(2, "regular_expression")
@thinned("name", NAMES, keep=NAMES[::2])
def test_random_walks_meet_no_dead_end(name: str) -> None:
    assert hunt(name, 600, seed=0, num_per_text=25) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_million_steps_meet_no_dead_end(name: str) -> None:
    assert hunt(name, -(-NUM_STEPS // len(NAMES)), seed=1, num_per_text=25) >= 20


# --- that a walk would notice -----------------------------------------------------------------------------------------


def test_a_walk_notices_a_dead_end() -> None:
    """A vocabulary that lacks a byte has no tokens with which some text could go on."""
    walker = Walker(Grammar('start: "0" ["za"]'), small_vocabulary(["0", "z"]), frozenset(), random.Random(0))
    assert len(walker.allowed()) == 1 and walker.matcher.accept(0)
    assert walker.allowed().tolist() == [1] and walker.matcher.accept(1)
    with pytest.raises(AssertionError, match="a dead end"):
        walker.allowed()


def test_a_walk_notices_a_text_of_another_language() -> None:
    check_text("json", b'{"a": [1]}')
    with pytest.raises(AssertionError, match="the oracle rejects"):
        check_text("json", b'{"a": [1,]}')


# --- laws -------------------------------------------------------------------------------------------------------------


@functools.cache
def pieces_vocabulary(name: str) -> Vocabulary:
    """Every byte and some pieces of the examples: small, for laws that ask about each token."""
    longer = sorted(piece for piece in pieces(name) if len(piece) > 1)
    return byte_vocabulary(random.Random(name).sample(longer, min(len(longer), 200)), num_eos=2)


@few(11)
@pytest.mark.parametrize("name", NAMES)
def test_laws_of_matchers(name: str) -> None:
    """`accept` then `rollback` is the identity and a fork is independent, from the beginning and inside an example."""
    rng = random.Random(name)
    tokens = pieces_vocabulary(name)
    matcher = compile(Grammar(name), tokens).matcher()
    check_matcher(matcher, tokens, num_tokens=6, seed=1)
    example = min(accepted(name), key=lambda text: abs(len(text) - 20))
    assert all(map(matcher.accept, divide(example[: len(example) // 2], tokens, rng)))
    check_matcher(matcher, tokens, num_tokens=6, seed=2)


@few(9)
@pytest.mark.parametrize("name", NAMES)
def test_equal_texts_have_equal_masks(name: str) -> None:
    """Whatever tokens led there: the mask, whether the text may end, what is forced, and the completion."""
    rng = random.Random(name)
    grammar = compile(Grammar(name), vocabulary())
    bitmask = allocate_bitmask(2, vocabulary().size)
    num_divided = 0
    for example in rng.sample(sorted(accepted(name), key=len), 12):
        text = example[: rng.randrange(len(example) + 1)]
        by_bytes = grammar.matcher()
        assert all(map(by_bytes.accept, divide(text, vocabulary(), rng, max_length=1)))
        for _ in range(3):
            divided = divide(text, vocabulary(), rng)
            num_divided += len(divided) < len(text)
            matcher = grammar.matcher()
            assert all(map(matcher.accept, divided)), text
            for row, each in enumerate((by_bytes, matcher)):
                each.fill_bitmask(bitmask, row)
            assert (bitmask[0] == bitmask[1]).all(), text
            assert matcher.is_accepting == by_bytes.is_accepting, text
            assert matcher.forced_tokens() == by_bytes.forced_tokens(), text
            assert matcher.completion() == by_bytes.completion(), text
    assert num_divided >= 3
