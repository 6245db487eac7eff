"""Stacks of ambiguous and deep texts: shared, cut for masks, merged inside long tokens; steps per byte stay few."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from decodekit.constraints.engine import token_masks as masks
from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.bitmask import ids_from_bitmask
from decodekit.constraints.engine.compiled import kernel_runs as runner
from decodekit.constraints.engine.configurations import CUT, State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.token_masks import Masks
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import (
    Expression,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
    alternatives,
    repeated,
    sequence,
)
from decodekit.constraints.language import ir
from decodekit.errors import UnsatisfiableError
from decodekit.vocabulary import Vocabulary


def term(text: str) -> Terminal:
    return Terminal(ir.literal(text.encode()), text)


def rules(**given: Expression) -> Rules:
    return Rules(given, next(iter(given)))


S, E, F, P, Q = map(RuleRef, ("s", "e", "f", "p", "q"))
NOTHING = sequence()

GRAMMARS: dict[str, tuple[Rules, Callable[[int], str]]] = {
    "all readings": (rules(s=alternatives(sequence(S, S), term("a"))), lambda n: "a" * n),
    "left list": (rules(s=alternatives(sequence(S, term(","), term("x")), term("x"))), lambda n: "x" + ",x" * (n // 2)),
    "right list": (
        rules(s=alternatives(sequence(term("x"), term(","), S), term("x"))),
        lambda n: "x" + ",x" * (n // 2),
    ),
    "parentheses": (
        rules(s=alternatives(sequence(term("("), S, term(")")), term("x"))),
        lambda n: "(" * (n // 2) + "x" + ")" * (n // 2),
    ),
    "two closers": (
        rules(
            s=alternatives(P, Q, term("x")), p=sequence(term("("), S, term(")")), q=sequence(term("("), S, term("]"))
        ),
        lambda n: "(" * (n // 2) + "x" + ")]" * (n // 4),
    ),
    "dangling else": (
        rules(s=alternatives(sequence(term("i"), S, repeated(sequence(term("e"), S), 0, 1)), term("x"))),
        lambda n: "i" * (n // 2) + "x" + "ex" * (n // 4),
    ),
    "hidden right recursion": (
        rules(s=alternatives(sequence(term("x"), S, F), NOTHING), f=repeated(term("b"), 0, 1)),
        lambda n: "x" * (n // 2) + "b" * (n // 2),
    ),
    "expressions": (
        rules(
            e=alternatives(sequence(E, term("+"), F), F),
            f=alternatives(sequence(F, term("*"), P), P),
            p=alternatives(term("x"), sequence(term("("), E, term(")"))),
        ),
        lambda n: "(" * (n // 4) + "x+x*x" + ")*x" * (n // 4),
    ),
}


def unfold(grammar: Rules) -> Recogniser:
    return Recogniser(root_frame(grammar), Automaton())


def read(recogniser: Recogniser, text: str) -> tuple[State, int]:
    """The state after a text, and the most configurations on the way."""
    state, most = recogniser.root, 0
    for byte in text.encode():
        following = recogniser.step(state, byte)
        assert following is not None, text[:80]
        state = following
        most = max(most, len(recogniser.states.configurations[state]))
    return state, most


@pytest.mark.parametrize("name", GRAMMARS)
def test_work_per_byte_does_not_grow(name: str) -> None:
    """Stacks made per byte, and configurations of a state, are as few in a text ten times as long."""
    grammar, text_of = GRAMMARS[name]
    counts = []
    for length in (400, 4000):
        recogniser, text = unfold(grammar), text_of(length)
        _, most = read(recogniser, text)
        counts.append((int(recogniser.stacks.count[0]) / len(text), most))
    (few, few_at_once), (many, many_at_once) = counts
    assert many <= 1.1 * few + 0.1
    assert many_at_once <= few_at_once


def test_ten_thousand_levels() -> None:
    grammar, _ = GRAMMARS["parentheses"]
    recogniser = unfold(grammar)
    state, most = read(recogniser, "(" * 10_000 + "x" + ")" * 10_000)
    assert recogniser.states.is_accepting(state) and most <= 2
    assert recogniser.step(state, ord(")")) is None


def test_stacks_with_the_same_top_are_one() -> None:
    recogniser = unfold(GRAMMARS["parentheses"][0])
    stacks = recogniser.stacks
    below = [stacks.push(0, frame) for frame in (1, 2, 3)]
    one = stacks.bundle([stacks.push(stack, 7) for stack in below])
    assert stacks.frame[one] == 7 and stacks.standing_for(int(stacks.parent[one])) == below
    assert stacks.bundle([one, below[0]]) == stacks.bundle([below[0], *stacks.standing_for(one)])


def test_cut_stacks() -> None:
    stacks = unfold(GRAMMARS["parentheses"][0]).stacks
    deep = 0
    for frame in (1, 2, 3, 4):
        deep = stacks.push(deep, frame)
    cut = stacks.upper(deep, 2)
    assert [int(stacks.frame[s]) for s in (cut, int(stacks.parent[cut]))] == [4, 3]
    assert stacks.frame[stacks.parent[stacks.parent[cut]]] == CUT
    assert stacks.upper(deep, 4) == deep
    other = stacks.push(stacks.push(stacks.push(0, 9), 3), 4)
    assert stacks.upper(other, 2) == cut
    assert stacks.upper(stacks.bundle([deep, other]), 2) == cut


def random_expression(rng: random.Random, names: list[str], depth: int) -> Expression:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return term(rng.choice(["a", "b", "c", "ab", "ba"])) if rng.random() < 0.6 else RuleRef(rng.choice(names))
    if kind < 0.62:
        return sequence(*(random_expression(rng, names, depth - 1) for _ in range(rng.randint(0, 3))))
    if kind < 0.82:
        return alternatives(*(random_expression(rng, names, depth - 1) for _ in range(rng.randint(1, 3))))
    least = rng.randint(0, 2)
    return repeated(random_expression(rng, names, depth - 1), least, rng.choice([None, least, least + 1, least + 2]))


def brute_force(recogniser: Recogniser, state: State, vocabulary: Vocabulary) -> set[int]:
    found = {t for t, data in enumerate(vocabulary.token_bytes) if data and recogniser.read(state, data) is not None}
    return found | (set(vocabulary.eos_token_ids) if recogniser.states.is_accepting(state) else set())


@pytest.mark.parametrize("cuts", [(1, 2), (2,), ()])
def test_masks_of_cut_stacks_are_those_of_whole_ones(cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random grammars, random tokens; so few frames are kept that most masks meet the cut."""
    monkeypatch.setattr(masks, "_CUTS", cuts)
    monkeypatch.setattr(runner, "MANY_THREADS", 4)
    num_masks = num_shared = 0
    for seed in range(120):
        rng = random.Random(seed)
        names = ["s", "t", "u"][: rng.randint(1, 3)]
        grammar = Rules({name: random_expression(rng, names, 3) for name in names}, "s")
        tokens = [bytes((byte,)) for byte in b"abc"]
        tokens += sorted({bytes(rng.choice(b"abc") for _ in range(rng.randint(2, 6))) for _ in range(60)})
        vocabulary = Vocabulary([*tokens, None], [len(tokens)])
        try:
            recogniser = unfold(grammar)
        except UnsatisfiableError:
            continue
        made, state = Masks(recogniser, vocabulary), recogniser.root
        for _ in range(12):
            expected = brute_force(recogniser, state, vocabulary)
            assert set(ids_from_bitmask(made.mask(state)).tolist()) == expected, (seed, grammar)
            num_masks += 1
            going_on = sorted(expected - {len(tokens)})
            if not going_on:
                break
            following = recogniser.read(state, tokens[rng.choice(going_on)])
            assert following is not None
            state = following
        num_shared += len(made._shared)
    assert num_masks > 120
    assert (num_shared > 10) == bool(cuts)


def test_threads_that_differ_in_their_stacks_are_merged_inside_a_token() -> None:
    """Every bracket of the long token has two readings: 2**100 stacks, were they not shared."""
    tokens = [b"(", b")", b"]", b"x", b"(" * 100, b"((x)])))", b")]" * 20, b"(" * 30 + b"x" + b")" * 20]
    vocabulary = Vocabulary([*tokens, None], [len(tokens)])
    recogniser = unfold(GRAMMARS["two closers"][0])
    made, state = Masks(recogniser, vocabulary), recogniser.root
    for token in (b"(", b"(" * 100, b"x", b")", b"]"):
        allowed = set(ids_from_bitmask(made.mask(state)).tolist())
        assert allowed == brute_force(recogniser, state, vocabulary)
        following = recogniser.read(state, token)
        assert following is not None
        state = following


def test_special_tokens_are_read_by_name_and_by_id_and_never_as_text() -> None:
    vocabulary = Vocabulary(
        [*(bytes((b,)) for b in range(256)), None, None, None, b"<call>", b"xy"],
        [256],
        special_tokens={"<call>": 257, "<end>": 258},
    )
    grammar = rules(s=sequence(term("x"), alternatives(SpecialToken("<call>"), SpecialToken(258)), term("y")))
    recogniser = unfold(grammar)
    made = Masks(recogniser, vocabulary)
    state = recogniser.step(recogniser.root, ord("x"))
    assert state is not None
    assert set(ids_from_bitmask(made.mask(state)).tolist()) == {257, 258}
    assert recogniser.read(state, b"<call>") is None
