"""The slow twin of grammars: what context-free rules accept, from what an expression means for a piece of text.

`accepts` asks for every rule and every place where a text of that rule may end; `language` builds the words of every
rule, shortest first, and `language_and_beginnings` what they begin with, too. All start with no text for any rule and
repeat until nothing is added: left recursion, rules that may be empty in a circle and ambiguity need no thought.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TypeAlias

from decodekit.constraints.grammar.rules import (
    Alternatives,
    Concatenated,
    Expression,
    Inline,
    Repeated,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
)
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.network import Lexeme
from decodekit.constraints.special import spelling

Lexical: TypeAlias = Terminal | SpecialToken | Inline
_Both: TypeAlias = tuple[set[bytes], set[bytes]]
"""Texts, and beginnings of texts."""


def accepts(rules: Rules, text: bytes) -> bool:
    """Whether `text` is a whole text of the grammar."""
    return _Places(rules, text).is_known(lambda places: places.is_text())


def accepts_prefix(rules: Rules, text: bytes) -> bool:
    """Whether some text of the grammar begins with `text`."""
    return _Places(rules, text).is_known(lambda places: places.is_beginning())


def language(rules: Rules, alphabet: bytes, max_length: int) -> set[bytes]:
    """All texts of the grammar over `alphabet` of at most `max_length` bytes."""
    return language_and_beginnings(rules, alphabet, max_length)[0]


def language_and_beginnings(rules: Rules, alphabet: bytes, max_length: int) -> tuple[set[bytes], set[bytes]]:
    """All texts of the grammar over `alphabet` of at most `max_length` bytes, and all beginnings of its texts.

    An expression without any text has no beginnings, every other one has the empty one at least.
    """

    def join(first: Collection[bytes], second: Collection[bytes]) -> set[bytes]:
        return {a + b for a in first for b in second if len(a) + len(b) <= max_length}

    def words(node: Node) -> _Both:
        universe = _universe(alphabet, max_length)
        return {w for w in universe if _is_word(node, w)}, {w for w in universe if _is_prefix(node, w)}

    def in_a_row(first: _Both, second: _Both) -> _Both:
        if not first[1] or not second[1]:
            return set(), set()
        return join(first[0], second[0]), first[1] | join(first[0], second[1])

    def rounds(item: _Both, low: int, high: int | None) -> _Both:
        texts: set[bytes] = set()
        starts: set[bytes] = set() if low and not item[1] else {b""}
        exactly = {b""}
        most = _most_rounds(low, high, max_length + 1)
        for count in range(most + 1):
            if count >= low:
                texts |= exactly
            if count < most:
                starts |= join(exactly, item[1])
                exactly = join(exactly, item[0])
        return texts, starts

    ignored: _Both = ({b""}, {b""}) if rules.ignore is None else rounds(words(rules.ignore), 0, None)
    lexemes: dict[Expression, _Both] = {}
    of_rule: dict[str, _Both] = {name: (set(), set()) for name in rules.rules}

    def of(item: Expression) -> _Both:
        if isinstance(item, Lexical):
            if item not in lexemes:
                lexemes[item] = in_a_row(ignored, words(_node(item)))
            return lexemes[item]
        if isinstance(item, RuleRef):
            return of_rule[item.name]
        if isinstance(item, Concatenated):
            found: _Both = {b""}, {b""}
            for part in item.items:
                found = in_a_row(found, of(part))
            return found
        if isinstance(item, Alternatives):
            options = [of(option) for option in item.options]
            return set().union(*(texts for texts, _ in options)), set().union(*(starts for _, starts in options))
        assert isinstance(item, Repeated), f"the reference knows no {type(item).__name__}"
        return rounds(of(item.item), item.min, item.max)

    is_growing = True
    while is_growing:
        is_growing = False
        for name, (texts, starts) in of_rule.items():
            more_texts, more_starts = of(rules.rules[name])
            is_growing |= not (more_texts <= texts and more_starts <= starts)
            texts |= more_texts
            starts |= more_starts
    return in_a_row(of_rule[rules.start], ignored)


@lru_cache(maxsize=64)
def _universe(alphabet: bytes, max_length: int) -> tuple[bytes, ...]:
    return tuple(bytes(w) for n in range(max_length + 1) for w in itertools.product(alphabet, repeat=n))


class _Places:
    """For one text: where texts of an expression may end that begin at a place, and whether what is left begins one.

    What is asked about a rule at a place is answered by what is known so far, at first nothing, until nothing is added.
    """

    def __init__(self, rules: Rules, text: bytes) -> None:
        self.rules, self.text = rules, text
        self._ends: dict[tuple[str, int], set[int]] = {}
        self._beginnings: dict[tuple[str, int], bool] = {}
        self._possible: dict[str, bool] = {}

    def is_known(self, asked: Callable[[_Places], bool]) -> bool:
        """The answer to a question when nothing is added any more."""
        before: object = None
        while before != (state := self._size()):
            before = state
            if asked(self):  # what is known once stays true
                return True
            for name, place in list(self._ends):
                self._ends[name, place] = self.ends_of(self.rules.rules[name], {place})
            for name, place in list(self._beginnings):
                self._beginnings[name, place] = self.begins(self.rules.rules[name], place)
            for name in list(self._possible):
                self._possible[name] = self.is_possible(self.rules.rules[name])
        return False

    def _size(self) -> tuple[int, ...]:
        """How much was asked and is known. Nothing that is known is ever lost, so equal sizes are equal knowledge."""
        tables = (self._ends, self._beginnings, self._possible)
        known = sum(map(len, self._ends.values())), sum(self._beginnings.values()), sum(self._possible.values())
        return (*map(len, tables), *known)

    def is_text(self) -> bool:
        """Whether the text is one of the grammar, as far as the rules are known by now."""
        return len(self.text) in self.after_ignored(self.ends_of(RuleRef(self.rules.start), {0}))

    def is_beginning(self) -> bool:
        """Whether the text begins one of the grammar, as far as the rules are known by now."""
        start = RuleRef(self.rules.start)
        ends = self.after_ignored(self.ends_of(start, {0}))
        return self.begins(start, 0) or any(map(self.begins_ignored, ends))

    def ends_of(self, item: Expression, begins: set[int]) -> set[int]:
        """Where texts of `item` end that begin at one of some places, as far as the rules are known by now."""
        if not begins:
            return set()
        if isinstance(item, Lexical):
            return self._words(_node(item), self.after_ignored(begins))
        if isinstance(item, RuleRef):
            return set().union(*(self._ends.setdefault((item.name, begin), set()) for begin in begins))
        if isinstance(item, Concatenated):
            for part in item.items:
                begins = self.ends_of(part, begins)
            return begins
        if isinstance(item, Alternatives):
            return set().union(*(self.ends_of(option, begins) for option in item.options))
        assert isinstance(item, Repeated), f"the reference knows no {type(item).__name__}"
        found: set[int] = set()
        for count in range(_most_rounds(item.min, item.max, len(self.text)) + 1):
            if count >= item.min:
                found |= begins
            begins = self.ends_of(item.item, begins)
        return found

    def after_ignored(self, begins: set[int]) -> set[int]:
        """Some places, and those after ignored words from there."""
        reached: set[int] = set()
        while self.rules.ignore is not None and not begins <= reached:
            reached |= begins
            begins = self._words(self.rules.ignore, reached)
        return reached | begins

    def begins(self, item: Expression, place: int) -> bool:
        """Whether the text from `place` is the beginning of a text of `item`, as far as the rules are known by now."""
        if isinstance(item, Lexical):
            return any(
                (self.begins_ignored(begin) and self.is_possible(item)) or _is_prefix(_node(item), self.text[begin:])
                for begin in self.after_ignored({place})
            )
        if isinstance(item, RuleRef):
            return self._beginnings.setdefault((item.name, place), False)
        if isinstance(item, Alternatives):
            return any(self.begins(option, place) for option in item.options)
        if isinstance(item, Repeated):
            reached = {place}
            for _ in range(_most_rounds(item.min, item.max, len(self.text) + 1)):
                if any(self.begins(item.item, begin) for begin in reached):
                    return True
                reached = self.ends_of(item.item, reached)
            return item.min == 0 and place == len(self.text)
        assert isinstance(item, Concatenated), f"the reference knows no {type(item).__name__}"
        reached, is_beginning = {place}, False
        for part in item.items:
            is_beginning |= any(self.begins(part, begin) for begin in reached)
            reached = self.ends_of(part, reached)
        return (is_beginning or len(self.text) in reached) and self.is_possible(item)

    def begins_ignored(self, place: int) -> bool:
        """Whether the text from `place` is the beginning of an ignored word."""
        return self.rules.ignore is not None and _is_prefix(self.rules.ignore, self.text[place:])

    def is_possible(self, item: Expression) -> bool:
        """Whether `item` has any text, as far as the rules are known by now."""
        if isinstance(item, Lexical):
            return not _node(item).is_empty
        if isinstance(item, RuleRef):
            return self._possible.setdefault(item.name, False)
        if isinstance(item, Concatenated):
            return all(map(self.is_possible, item.items))
        if isinstance(item, Alternatives):
            return any(map(self.is_possible, item.options))
        assert isinstance(item, Repeated), f"the reference knows no {type(item).__name__}"
        return item.min == 0 or self.is_possible(item.item)

    def _words(self, node: Node, begins: set[int]) -> set[int]:
        """Where words of a regular language end that begin at one of some places."""
        places = range(len(self.text) + 1)
        return {end for begin in begins for end in places[begin:] if _is_word(node, self.text[begin:end])}


def _most_rounds(low: int, high: int | None, length: int) -> int:
    """How many rounds of a repetition need be looked at in `length` bytes: a round more than `low` reads something."""
    most = max(low, length)
    return most if high is None else min(high, most)


@lru_cache(maxsize=100_000)
def _is_word(node: Node, text: bytes) -> bool:
    return ir.matches(node, text)


@lru_cache(maxsize=100_000)
def _is_prefix(node: Node, text: bytes) -> bool:
    for byte in text:
        node = node.derivative(byte)
    return not node.is_empty


def _node(item: Lexical) -> Node:
    """The regular language of a lexeme.

    Raises:
        ValueError: the item is a constraint that is more than one lexeme.
    """
    if isinstance(item, Terminal):
        return item.node
    if isinstance(item, SpecialToken):
        return ir.literal(spelling(item.token))
    root = item.constraint.root()
    if not isinstance(root, Lexeme):
        raise ValueError(f"the reference knows no {item}")
    return root.node
