"""The numpy twin of the compiled walk: level by level over the trie, and the trie itself made of dicts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.automaton import DEAD, FINAL, NOT_EXPANDED, Automaton
from decodekit.constraints.engine.compiled.kernels import EXIT_AT, EXIT_BEFORE
from decodekit.constraints.engine.trie import TokenTrie
from decodekit.vocabulary import Vocabulary


def trie_nodes(vocabulary: Vocabulary) -> list[tuple[bytes, list[int]]]:
    """Every prefix of a token with the tokens that it is, in preorder; special tokens by their spellings."""
    tokens: dict[bytes, list[int]] = {b"": []}
    for token, data in entries(vocabulary):
        for length in range(1, len(data) + 1):
            tokens.setdefault(data[:length], [])
        tokens[data].append(token)
    return sorted(tokens.items())


def entries(vocabulary: Vocabulary) -> list[tuple[int, bytes]]:
    """Tokens with the bytes by which a constraint may ask for them."""
    found = [(t, data) for t, data in enumerate(vocabulary.token_bytes) if data and not {0xFE, 0xFF} & set(data)]
    known = {data for _, data in found}
    for name, token in vocabulary.special_tokens.items():
        if vocabulary.token_bytes[token] is None and token not in vocabulary.eos_token_ids:
            written = b"\xfe%d\xfe" % token
            found += [(token, written)] if written not in known else []
            found.append((token, b"\xff" + name.encode() + b"\xff"))
    return found


def walk(
    automaton: Automaton, trie: TokenTrie, state: int, size: int, follow: npt.NDArray[np.uint8]
) -> tuple[list[int], set[tuple[int, int, int]]]:
    """Tokens inside the lexeme, ascending, and its exits, by advancing whole levels of the trie at once."""
    states = np.zeros(trie.num_nodes, np.int32)
    states[0] = state
    parents = np.zeros(trie.num_nodes, np.int64)
    last: dict[int, int] = {0: 0}
    for node in range(1, trie.num_nodes):
        level = int(trie.depth[node])
        parents[node] = last[level - 1]
        last[level] = node
    inside: list[int] = []
    exits: set[tuple[int, int, int]] = set()
    for level in range(1, trie.max_depth + 1):
        nodes = np.flatnonzero(trie.depth == level)
        nodes = nodes[states[parents[nodes]] != DEAD]
        before = states[parents[nodes]]
        for number in np.unique(before):
            automaton.expand(int(number))
        after = automaton.next[before, trie.byte[nodes]]
        for number in np.unique(after):
            if number != DEAD and automaton.kinds[number] == NOT_EXPANDED:
                automaton.expand(int(number))
        states[nodes] = after
        if level > 1:
            leaving = (automaton.endings[before] != 0) & (follow[trie.byte[nodes]] != 0)
            exits |= {
                (int(n), int(automaton.endings[s]), EXIT_BEFORE)
                for n, s in zip(nodes[leaving], before[leaving], strict=True)
            }
        for node, target in zip(nodes.tolist(), after.tolist(), strict=True):
            own = trie.tokens[trie.first[node] : trie.first[node + 1]].tolist()
            if target == DEAD or not own:
                continue
            if automaton.kinds[target] == FINAL:
                exits.add((node, int(automaton.endings[target]), EXIT_AT))
            else:
                inside += own
    assert all(token < size for token in inside)
    return sorted(inside), exits
