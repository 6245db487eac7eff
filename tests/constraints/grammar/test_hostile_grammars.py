"""Grammars that are written to be dear end in masks or in typed errors, soon: the time limit of a test is the bound."""

from __future__ import annotations

import numpy as np
import pytest

from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary

BYTES = Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])


def ring(length: int) -> str:
    """Rules that begin with each other in a circle."""
    return "root ::= r0\n" + "\n".join(f'r{i} ::= r{(i + 1) % length} "a" | "x"' for i in range(length))


def doubling(length: int) -> str:
    """A text of 2**length words at least."""
    return (
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(length)) + f'\nr{length} ::= "a" root?'
    )


CASES = {
    "a ring of left recursion": (ring(300), b"xaaa", True),
    "a long ring of left recursion": (ring(4000), b"", False),
    "parts that may be left out": ("root ::= " + "(root | [x])? " * 300, b"xxxx", True),
    "doubling": (doubling(200), b"aaaa", True),
    "a ladder with two ways up each rung": (
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= r{i + 1} "a"? | r{i + 1} "b"? | "(" r0 ")"' for i in range(30))
        + '\nr30 ::= "x"',
        b"((xab",
        True,
    ),
    "hidden left recursion in a row": ('root ::= (root? root? root? | "x")+', b"xxxxxx", True),
    "every rule may be empty": ("root ::= a b\na ::= b? root?\nb ::= (a | [ab])*", b"abab", True),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CASES)
def test_bounded(name: str) -> None:
    text, prefix, works = CASES[name]

    def run() -> None:
        matcher = CompiledGrammar(Grammar(text, syntax="gbnf"), BYTES).matcher()
        bitmask = np.zeros((1, BYTES.num_mask_words), np.int32)
        for byte in prefix:
            matcher.fill_bitmask(bitmask)
            assert bitmask.any() and matcher.accept(byte)
        matcher.fill_bitmask(bitmask)
        assert bitmask.any()

    if works:
        run()
    else:
        with pytest.raises(ResourceLimitError):
            run()
