"""An `interegular.FSM` as a constraint: its texts are those that it accepts."""

from __future__ import annotations

import itertools
import pickle
import random

import interegular
import pytest
from interegular.fsm import FSM, Alphabet, anything_else

import decodekit as dk
from decodekit.constraints import as_constraint
from decodekit.constraints.fingerprint import described
from decodekit.constraints.interop.finite_automata import FiniteAutomaton
from decodekit.errors import InvalidConstraintError, UnsatisfiableError
from decodekit.testing import check_language, check_matcher
from tests.reference.vocabularies import byte_vocabulary


def texts(letters: str, length: int) -> list[str]:
    return ["".join(some) for n in range(length + 1) for some in itertools.product(letters, repeat=n)]


def check_texts(fsm: FSM, letters: str, length: int) -> set[str]:
    """All texts up to a length, by the automaton, by `parse` and byte by byte; returns those that are accepted."""
    accepted = {text for text in texts(letters, length) if fsm.accepts(text)}
    try:
        constraint = as_constraint(fsm)
    except UnsatisfiableError:
        assert fsm.empty()
        return accepted
    assert isinstance(constraint, FiniteAutomaton)
    for text in texts(letters, length):
        try:
            assert constraint.parse(text) == text
        except ValueError:
            assert text not in accepted
        else:
            assert text in accepted
    return accepted


def test_every_automaton_of_two_states() -> None:
    """Two states, two letters, arrows that may be missing, every set of accepting states: 324 automata."""
    alphabet = Alphabet.from_groups("a", "b")
    rows = list(itertools.product((None, 0, 1), repeat=4))
    for row in rows:
        arrows = dict(zip(itertools.product((0, 1), (0, 1)), row, strict=True))
        for finals in ((), (0,), (1,), (0, 1)):
            table = {s: {k: t for k in (0, 1) if (t := arrows[s, k]) is not None} for s in (0, 1)}
            check_texts(FSM(alphabet, {0, 1}, 0, set(finals), table), "ab", 5)


def random_automaton(seed: int) -> FSM:
    """Up to five states over characters of one to four bytes, groups of letters, perhaps anything else."""
    rng = random.Random(seed)
    letters = ["a", "b", "é", "日", "😀", *([anything_else] if seed % 2 else [])]
    rng.shuffle(letters)
    cut = rng.randint(1, len(letters) - 1)
    alphabet = Alphabet.from_groups(letters[:cut], letters[cut:])
    states = list(range(rng.randint(1, 5)))
    table = {s: {k: rng.choice(states) for k in (0, 1) if rng.random() < 0.8} for s in states}
    return FSM(alphabet, set(states), 0, {s for s in states if rng.random() < 0.4}, table)


@pytest.mark.parametrize("seed", range(30))
def test_random_automata(seed: int) -> None:
    """A fault that one automaton in ten shows escapes with probability 0.9 ** 30 = 0.04; the slow test has 500."""
    check_texts(random_automaton(seed), "aé日x", 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_500))
def test_more_random_automata(seed: int) -> None:
    check_texts(random_automaton(seed), "abé日😀x", 5)


@pytest.mark.parametrize(
    "pattern", ["(ab|a)*b?", "[^a]+", "a{2,4}(?=b).", "(?!ab)[ab]{2,3}", "é|日.*", "(?i)ab", r"\d{2}-\w", "a.b", ""]
)
def test_parsed_patterns(pattern: str) -> None:
    """A pattern of interegular is the automaton that it makes, whatever `re` makes of the pattern."""
    parsed = interegular.parse_pattern(pattern)
    assert as_constraint(parsed) == as_constraint(parsed.to_fsm())
    check_texts(parsed.to_fsm(), "abBé日1-", 4)


def test_operations_of_automata() -> None:
    first, second = (interegular.parse_pattern(pattern).to_fsm() for pattern in ("[ab]*", "(aa|b)*"))
    for fsm in (first & second, first - second, first | second, second.reversed(), first + second):
        assert check_texts(fsm, "ab", 5)


def test_by_hand() -> None:
    fsm = interegular.parse_pattern("(aé|b.)+").to_fsm()
    check_language(fsm, accepts=["aé", "bxaé", "b日"], rejects=["", "a", "é", "b\n", "ae"])
    check_language(dk.Concat("<", fsm, ">"), accepts=["<aé>"], rejects=["<>", "aé"])
    vocabulary = byte_vocabulary(["aé".encode(), b"b", "é".encode()])
    check_matcher(dk.compile(fsm, vocabulary).matcher(), vocabulary, num_tokens=8, seed=0)


def test_states_that_lead_nowhere_are_not_begun() -> None:
    alphabet = Alphabet.from_groups("a", "b")
    fsm = FSM(alphabet, {0, 1, 2, 3}, 0, {2}, {0: {0: 1, 1: 2}, 1: {0: 1}, 3: {0: 2}})
    constraint = as_constraint(fsm)
    assert isinstance(constraint, FiniteAutomaton) and len(constraint.rows) == 2
    matcher = dk.compile(constraint, byte_vocabulary()).matcher()
    assert matcher.validate([ord("a")]) == 0 and matcher.validate([ord("b")]) == 1


def test_equal_automata_are_equal() -> None:
    one, other = (as_constraint(interegular.parse_pattern(pattern)) for pattern in ("(ab)+", "(?:ab)+"))
    assert one == other and hash(one) == hash(other) and one != as_constraint(interegular.parse_pattern("(ab)*"))
    assert pickle.loads(pickle.dumps(one)) == one
    assert described(one) == described(other) and "0x" not in str(described(one))


@pytest.mark.parametrize(
    ("fsm", "error", "said"),
    [
        (FSM(Alphabet.from_groups("a"), {0, 1}, 0, {1}, {0: {0: 0}}), UnsatisfiableError, "accepts nothing"),
        (FSM(Alphabet.from_groups("a"), {0}, 0, set(), {}), UnsatisfiableError, "accepts nothing"),
        (FSM(Alphabet.from_groups(["ab"]), {0}, 0, {0}, {0: {0: 0}}), InvalidConstraintError, "'ab', which is no char"),
        (FSM(Alphabet.from_groups([3]), {0}, 0, {0}, {0: {0: 0}}), InvalidConstraintError, "the symbol 3"),
    ],
)
def test_what_is_refused(fsm: FSM, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        as_constraint(fsm)
    assert caught.value.hint  # type: ignore[attr-defined]
