"""The slow twin of ``lexer="longest"``: divide the text first, then look for the terminals in the rules.

At each place every beginning of the rest is tried, the longest first, against every terminal. What is found is spelled
with one letter for a terminal, and `earley` says whether the rules with these letters derive it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

from decodekit.constraints.grammar.rules import (
    NO_TEXT,
    Alternatives,
    Concatenated,
    Expression,
    Repeated,
    Rules,
    Terminal,
    children,
)
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from tests.reference import earley


class Lexing:
    """A grammar whose terminals label the ends of their words with their rank, the ignored ones too."""

    def __init__(self, rules: Rules) -> None:
        self.ignored = ir.EMPTY if rules.ignore is None else rules.ignore
        found = {item.node for rule in rules.rules.values() for item in _parts(rule) if isinstance(item, Terminal)}
        self.terminals = sorted(found, key=id)
        self.letters: dict[Hashable, bytes] = {}
        spelled = {name: self._spelled(rule) for name, rule in rules.rules.items()}
        self.rules = replace(rules, rules=spelled, ignore=None)
        self._derived: dict[bytes, bool] = {}

    def divide(self, text: bytes) -> list[Any] | None:
        """The ranks of the lexemes, None if the lexer is stuck."""
        ranks: list[Any] = []
        place = 0
        while place < len(text):
            for end in range(len(text), place, -1):
                word = text[place:end]
                fitting = [rank for node in (*self.terminals, self.ignored) for rank in labels_of(node, word)]
                if fitting:
                    ranks.append(min(fitting))
                    break
            else:
                return None
            place = end
        return ranks

    def accepts(self, text: bytes) -> bool:
        """Whether `text` is a whole text of the grammar."""
        ranks = self.divide(text)
        if ranks is None:
            return False
        ignored = {rank for rank in ranks if self._is_ignored(rank)}
        letters = b"".join(self._letter(rank) for rank in ranks if rank not in ignored)
        if letters not in self._derived:
            self._derived[letters] = earley.accepts(self.rules, letters)
        return self._derived[letters]

    def _letter(self, rank: Hashable) -> bytes:
        return self.letters.setdefault(rank, bytes((len(self.letters),)))

    def _is_ignored(self, rank: Hashable) -> bool:
        return rank in _all_labels(self.ignored)

    def _spelled(self, item: Expression) -> Expression:
        if isinstance(item, Terminal):
            ranks = _all_labels(item.node)
            return Terminal(ir.literal(self._letter(*ranks))) if ranks else NO_TEXT
        if isinstance(item, Concatenated):
            return Concatenated(tuple(map(self._spelled, item.items)))
        if isinstance(item, Alternatives):
            return Alternatives(tuple(map(self._spelled, item.options)))
        if isinstance(item, Repeated):
            return Repeated(self._spelled(item.item), item.min, item.max)
        return item


def labels_of(node: Node, word: bytes) -> tuple[Hashable, ...]:
    """The labels with which a word ends; none if it is no word of the language."""
    for byte in word:
        node = node.derivative(byte)
    return node.labels


def _all_labels(node: Node) -> set[Hashable]:
    found: set[Hashable] = set()
    seen = {node}
    agenda = [node]
    while agenda:
        current = agenda.pop()
        found.update(current.labels)
        for _, target in current.transitions():
            if target not in seen:
                seen.add(target)
                agenda.append(target)
    return found


def _parts(root: Expression) -> Iterator[Expression]:
    agenda = [root]
    while agenda:
        item = agenda.pop()
        yield item
        agenda += children(item)
