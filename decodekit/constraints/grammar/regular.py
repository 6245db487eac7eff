"""Rules that are regular, as terminals: what can be read as one word is one.

The engine keeps a stack for rules and one number for a word, and what a vocabulary learned about a word serves all
grammars. Grammars without terminals of their own, as those in GBNF, say everything by rules: here a string of JSON
becomes a terminal again. Only for grammars without ignored terminals, which could stand between the parts of a word.

A rule that calls itself only at its end, or only at its beginning, is a repetition: r = P r | R has the texts of P* R.
Source: D. Arden, Delayed-logic and finite-state machines (1961).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from decodekit.constraints.grammar.rules import (
    EMPTY_TEXT,
    Alternatives,
    Concatenated,
    Expression,
    Repeated,
    RuleRef,
    Rules,
    Terminal,
    alternatives,
    callees_first,
    reached,
    references,
    repeated,
    sequence,
)
from decodekit.constraints.language import ir
from decodekit.constraints.language.ir import Literal
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.words import words

MAX_PARTS: Final = 10_000
"""Bound on the parts of one word, those of the rules in it counted as often as they occur."""

_MANY_LITERALS: Final = 16  # so many options that are plain texts are sorted as a list of words


def fold(rules: Rules) -> Rules:
    """The same texts, where every part that is regular is one terminal; a rule that is one keeps its name as that."""
    if rules.ignore is not None:
        return rules
    plain = {name: _without_recursion(name, expression) for name, expression in rules.rules.items()}
    folding = _Folding()
    for name in callees_first({name: references(expression) for name, expression in plain.items()}):
        folding.add(name, plain[name])
    used = reached([rules.start], lambda name: references(folding.rules[name]))
    return replace(rules, rules={name: folding.rules[name] for name in used})


def _without_recursion(name: str, expression: Expression) -> Expression:
    """The rule, as a repetition if it calls itself only at the end of alternatives, or only at their beginning."""
    if name not in references(expression):
        return expression
    options = list(_options(expression))
    base = alternatives(*(option for option in options if name not in references(option)))
    recursive = (option for option in options if name in references(option))
    rounds = [option.items if isinstance(option, Concatenated) else (option,) for option in recursive]
    for own, rest in ((-1, slice(None, -1)), (0, slice(1, None))):  # at the end, at the beginning
        inner = [sequence(*items[rest]) for items in rounds if items[own] == RuleRef(name)]
        if len(inner) == len(rounds) and not any(name in references(one) for one in inner):
            many = repeated(alternatives(*inner))
            return sequence(base, many) if own == 0 else sequence(many, base)
    return expression


def _options(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, Alternatives):
        for option in expression.options:
            yield from _options(option)
    elif isinstance(expression, Repeated) and (expression.min, expression.max) == (0, 1):
        yield EMPTY_TEXT
        yield from _options(expression.item)
    else:
        yield expression


class _Folding:
    """Rules that were folded so far."""

    def __init__(self) -> None:
        self.rules: dict[str, Expression] = {}
        self._sizes: dict[str, int] = {}  # of those that are one word

    def add(self, name: str, expression: Expression) -> None:
        """Fold one more rule; those in it that are not there yet stay as they are."""
        self.rules[name], size = self._fold(expression)
        if (node := _node(self.rules[name])) is not None and size <= MAX_PARTS:
            self._sizes[name] = size
            self.rules[name] = _word(node, name)

    def _fold(self, expression: Expression) -> tuple[Expression, int]:
        """An expression with its regular parts as terminals; how many parts it has, if it is one word itself."""
        match expression:
            case RuleRef(name) if name in self._sizes:
                return self.rules[name], self._sizes[name]
            case Repeated(inner, least, most):
                item, size = self._fold(inner)
                node = _node(item)
                if node is None:
                    return repeated(item, least, most), 0
                return _word(ir.repeat(node, least, most)), size + 1
            case Concatenated():
                return self._fold_sequence(expression)
            case Alternatives():
                return self._fold_alternatives(expression)
        return expression, 1

    def _fold_sequence(self, expression: Concatenated) -> tuple[Expression, int]:
        parts: list[Expression] = []
        run: list[Expression] = []  # the regular items at the end, of which `parts` has none
        size = 0
        for item, item_size in map(self._fold, expression.items):
            if _node(item) is None or size + item_size > MAX_PARTS:
                parts += _joined(run)
                run, size = [], 0
            if _node(item) is None:
                parts.append(item)
            else:
                run.append(item)
                size += item_size
        return sequence(*parts, *_joined(run)), max(size, 1)

    def _fold_alternatives(self, expression: Alternatives) -> tuple[Expression, int]:
        options = [self._fold(option) for option in expression.options]
        regular = [(node, size) for item, size in options if (node := _node(item)) is not None]
        nodes = [node for node, _ in regular if not isinstance(node, Literal)]
        literals = [node for node, _ in regular if isinstance(node, Literal)]
        size = sum(size for _, size in regular)
        if len(literals) < _MANY_LITERALS:
            nodes += literals
        else:  # a list of words is one part
            nodes.append(words(dict.fromkeys(literal.text for literal in literals)))
            size -= len(literals) - 1
        if len(regular) < 2 or size > MAX_PARTS:
            return alternatives(*(item for item, _ in options)), size
        others = (item for item, _ in options if _node(item) is None)
        return alternatives(_word(ir.choice(*nodes)), *others), size


def _node(expression: Expression) -> Node | None:
    """The words of an expression that is one word."""
    if isinstance(expression, Terminal):
        return expression.node
    return ir.EPSILON if expression == EMPTY_TEXT else None


def _word(node: Node, name: str | None = None) -> Expression:
    return EMPTY_TEXT if node is ir.EPSILON else Terminal(node, name)


def _joined(run: list[Expression]) -> list[Expression]:
    """Items that are one word each, as one; a single one keeps its name."""
    return run if len(run) < 2 else [_word(ir.concat(*(_node(item) or ir.EPSILON for item in run)))]
