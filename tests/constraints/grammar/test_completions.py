"""Completions under grammars: as short as a search over all texts finds, and found whatever the nesting."""

from __future__ import annotations

import random

import pytest

from decodekit.constraints.completion.shortest_completions import Completions
from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import Rules
from decodekit.constraints.matching.compiler import compile
from decodekit.errors import UnsatisfiableError
from decodekit.vocabulary import Vocabulary
from tests.constraints.grammar.test_stacks import random_expression

BYTES = Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])


def fewest(recogniser: Recogniser, state: State, alphabet: bytes) -> int:
    """The length of a shortest completion, by breadth-first search."""
    layer, length, seen = {state}, 0, {state}
    while not any(map(recogniser.states.is_accepting, layer)):
        layer = {
            after for one in layer for byte in alphabet if (after := recogniser.step(one, byte)) is not None
        } - seen
        assert layer, "a state from which no text ends"
        seen |= layer
        length += 1
    return length


def test_completions_are_shortest() -> None:
    num_asked = 0
    for seed in range(150):
        rng = random.Random(seed)
        names = ["s", "t", "u"][: rng.randint(1, 3)]
        rules = Rules({name: random_expression(rng, names, 3) for name in names}, "s")
        try:
            root = root_frame(rules)
        except UnsatisfiableError:
            continue
        recogniser = Recogniser(root, Automaton())
        completions = Completions(recogniser, BYTES)
        state, path = recogniser.root, b""
        for _ in range(8):
            word = completions.text(state)
            end = recogniser.read(state, word)
            assert end is not None and recogniser.states.is_accepting(end)
            assert len(word) == fewest(recogniser, state, b"abc"), (seed, rules, path)
            num_asked += 1
            options = [(byte, after) for byte in b"abc" if (after := recogniser.step(state, byte)) is not None]
            if not options:
                break
            byte, state = rng.choice(options)
            path += bytes((byte,))
    assert num_asked > 200


@pytest.mark.parametrize(
    ("grammar", "text", "completion"),
    [
        ('start: "(" start ")" | "(" start ";)" | "x"', "(" * 2000 + "x", ")" * 2000),
        ('start: start "+" start | "(" start ")" | "x"', "(" * 500 + "x+", "x" + ")" * 500),
        ("python_expression", "(y)[0**mormoot not in orEot in isum((xc(u", ")))]"),
    ],
)
def test_nesting_costs_no_more_than_its_depth(grammar: str, text: str, completion: str) -> None:
    """Found with a bounded number of steps (`MAX_SEARCH`), although each level has several ways to close."""
    matcher = compile(Grammar(grammar), BYTES).matcher()
    assert all(matcher.accept(byte) for byte in text.encode())
    assert bytes(matcher.completion()).decode() == completion
