"""All small grammars: two rules over two letters, against the reference on every text of up to five letters.

The matcher of the rules, that of the folded rules, and that of the same rules written in Lark's language and in GBNF
accept the same texts as the reference, and read a text exactly as far as it begins one: so there is no dead end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.grammar import gbnf, linear, regular
from decodekit.constraints.grammar.lark import lark_rules as lark
from decodekit.constraints.grammar.regular import fold
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import (
    Alternatives,
    Concatenated,
    Expression,
    Repeated,
    RuleRef,
    Rules,
    Terminal,
)
from decodekit.constraints.grammar.source import Source
from decodekit.constraints.language import ir
from decodekit.constraints.matching.compiler import compile
from decodekit.errors import UnsatisfiableError
from decodekit.vocabulary import Vocabulary
from tests.constraints.grammar.worlds import Framed
from tests.reference import earley

LENGTH = 5
WORDS = (b"a", b"b", b"ab", b"ba", b"aab", b"bb")
VOCABULARY = Vocabulary([*WORDS, None], eos_token_ids=[len(WORDS)])

A, B = Terminal(ir.literal(b"a")), Terminal(ir.literal(b"b"))
S, T = RuleRef("start"), RuleRef("t")


def faults(rules: Rules, meant: Rules | None = None, *, has_masks: bool = True) -> list[str]:
    """What is wrong with the matcher of some rules, in sentences; `meant` is what the reference reads instead."""
    texts, beginnings = earley.language_and_beginnings(meant or rules, b"ab", LENGTH)
    try:
        matcher = compile(Framed(root_frame(rules)), VOCABULARY).matcher()
    except UnsatisfiableError:
        return [f"{rules} is refused"] if beginnings else []
    found = []
    agenda = [b""]
    while agenda:
        text = agenda.pop()
        for letter in text:
            assert matcher.accept(b"ab".index(letter))
        if matcher.is_accepting != (text in texts):
            found.append(f"{rules}: {text!r} is {'' if matcher.is_accepting else 'not '}a text")
        if len(text) < LENGTH:
            for token, letter in enumerate((b"a", b"b")):
                is_read = matcher.validate([token]) == 1
                if is_read != (text + letter in beginnings):
                    found.append(f"{rules}: {text + letter!r} is {'' if is_read else 'not '}a beginning")
                elif is_read:
                    agenda.append(text + letter)
        if has_masks and len(text) <= 1:
            mask = allocate_bitmask(1, VOCABULARY.size)
            matcher.fill_bitmask(mask)
            allowed = {WORDS[token] for token in ids_from_bitmask(mask[0]).tolist() if token < len(WORDS)}
            if allowed != {word for word in WORDS if text + word in beginnings}:
                found.append(f"{rules}: the mask behind {text!r} is {sorted(allowed)}")
        matcher.rollback(len(text))
    return found


def all_faults(rules: Rules) -> list[str]:
    """What is wrong with some rules as they are, and folded."""
    folded = fold(rules)
    return faults(rules) + (faults(folded, rules, has_masks=False) if folded != rules else [])


def check(grammars: Iterable[Rules], at_least: int) -> None:
    num = 0
    found: list[str] = []
    for num, rules in enumerate(grammars, 1):  # noqa: B007
        found += all_faults(rules)
    assert not found, "\n".join(found[:10])
    assert num >= at_least


# --- the grammars ---


def sequences(items: Iterable[Expression], most: int) -> list[Expression]:
    """All sequences of at most so many items; a single one is itself."""
    items = list(items)
    found: list[Expression] = [Concatenated(())]
    for length in range(1, most + 1):
        found += [row[0] if length == 1 else Concatenated(row) for row in itertools.product(items, repeat=length)]
    return found


def bodies(options: list[Expression], most: int) -> Iterator[Expression]:
    """All sets of at most so many alternatives."""
    yield from options
    for num in range(2, most + 1):
        yield from map(Alternatives, itertools.combinations(options, num))


def alone(most_items: int, most_options: int) -> Iterator[Rules]:
    """One rule over two letters and itself."""
    for body in bodies(sequences([A, B, S], most_items), most_options):
        yield Rules({"start": body}, "start")


SECOND = [
    Alternatives((Concatenated(()), A)),
    Alternatives((Concatenated((T, B)), A)),
    Alternatives((Concatenated((B, T)), Concatenated(()))),
    Alternatives((Concatenated((T, T)), B)),
    Alternatives((S, Concatenated(()))),
    Alternatives((Concatenated((S, T)), A)),
    Concatenated((B, T)),
]
"""The second rule: empty or not, recursive on the left, on the right and on both sides, through the first rule, without
any text."""


def pairs(firsts: Iterable[Expression], seconds: Iterable[Expression]) -> Iterator[Rules]:
    """Two rules; the first one names the second."""
    seconds = list(seconds)
    for first in firsts:
        if "t" in _names(first):
            for second in seconds:
                yield Rules({"start": first, "t": second}, "start")


def _names(expression: Expression) -> set[str]:
    if isinstance(expression, RuleRef):
        return {expression.name}
    if isinstance(expression, Concatenated):
        return set().union(*map(_names, expression.items))
    if isinstance(expression, Alternatives):
        return set().union(*map(_names, expression.options))
    return _names(expression.item) if isinstance(expression, Repeated) else set()


COUNTS = [(0, 1), (0, None), (1, None), (2, 2), (1, 2), (0, 2), (2, None), (2, 3)]


def counted() -> Iterator[Rules]:
    """Repetitions of letters, of both rules and of what may be empty, beside each other and nested."""
    groups: list[Expression] = [A, S, T, Concatenated((A, T)), Alternatives((T, B)), Concatenated(())]
    items: list[Expression] = [Repeated(item, low, high) for item in groups for low, high in COUNTS]
    items += [Repeated(Repeated(T, 0, 1), low, high) for low, high in COUNTS]
    items += [Repeated(Repeated(A, 1, None), low, high) for low, high in COUNTS]
    for item in items:
        for first in (
            item, Concatenated((item, B)), Concatenated((A, item)), Concatenated((item, S)),
            Alternatives((Concatenated((item, B)), A))
        ):  # fmt: skip
            for second in SECOND[:4]:
                yield Rules({"start": first, "t": second}, "start")


def ignoring() -> Iterator[Rules]:
    """Words that may stand before terminals and at the end."""
    ignored = [ir.literal(b"b"), ir.literal(b"ab"), ir.repeat(ir.literal(b"b"), 1, 2), ir.repeat(ir.literal(b"b"))]
    firsts = [*bodies(sequences([A, T], 2), 2), Concatenated((A, T, B)), Concatenated((S, A))]
    for first, second, node in itertools.product(firsts, SECOND[:3], ignored):
        yield Rules({"start": first, "t": second}, "start", node)


def overlapping() -> Iterator[Rules]:
    """Terminals whose words begin with each other, may be empty, or are none."""
    a, b = ir.literal(b"a"), ir.literal(b"b")
    nodes = [
        ir.choice(a, ir.literal(b"ab")), ir.repeat(b), ir.repeat(ir.choice(a, b), 1, 2), ir.literal(b"ba"), ir.EMPTY
    ]  # fmt: skip
    terminals = [Terminal(node) for node in nodes]
    for body in bodies(sequences([*terminals, S], 2), 1):
        for last in (A, Concatenated((B, S))):
            yield Rules({"start": Alternatives((body, last))}, "start")


def test_one_rule() -> None:
    check(alone(2, 3), 300)


@pytest.mark.slow
def test_two_rules() -> None:
    check(itertools.islice(pairs(bodies(sequences([A, B, S, T], 2), 2), SECOND), 0, None, 2), 450)
    check(pairs([Alternatives((row, B)) for row in sequences([A, S, T], 3)], SECOND), 150)


def test_repetitions() -> None:
    check(itertools.islice(counted(), 0, None, 2), 600)


def test_ignored_words() -> None:
    check(ignoring(), 150)


def test_terminals_that_overlap() -> None:
    check(overlapping(), 80)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(8))
def test_all_pairs_of_rules(block: int) -> None:
    some = list(bodies(sequences([A, B, S, T], 2), 2))
    check(itertools.islice(pairs(some, some), block, None, 8), 4_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_longer_rules() -> None:
    check(alone(3, 2), 700)
    check(itertools.islice(alone(3, 3), 0, None, 2), 4_000)
    check(counted(), 1_000)


# --- the same in two languages of grammars ---


def written(expression: Expression, is_gbnf: bool) -> str:
    """An expression as text of a grammar."""
    if isinstance(expression, Terminal):
        return '"a"' if expression == A else '"b"'
    if isinstance(expression, RuleRef):
        return "root" if is_gbnf and expression == S else expression.name
    if isinstance(expression, Concatenated):
        inner = " ".join(f"({written(item, is_gbnf)})" for item in expression.items)
        return inner or ('""' if is_gbnf else "")
    if isinstance(expression, Alternatives):
        return " | ".join(written(option, is_gbnf) for option in expression.options)
    assert isinstance(expression, Repeated)
    low, high = expression.min, expression.max
    sign = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((low, high))
    if sign is None:
        sign = f"{{{low},{'' if high is None else high}}}" if is_gbnf else f" ~ {low}..{high}"
    return f"({written(expression.item, is_gbnf)}){sign}"


def texts_agree(rules: Rules) -> list[str]:
    found = []
    for is_gbnf in (False, True):
        has_open = not is_gbnf and " ~ 2..None" in written(rules.rules["start"], False)
        if has_open:  # Lark has no such bound
            continue
        text = "\n".join(
            f"{written(RuleRef(name), is_gbnf)}{' ::= ' if is_gbnf else ': '}{written(body, is_gbnf)}"
            for name, body in rules.rules.items()
        )
        try:
            loaded = (gbnf if is_gbnf else lark).load_rules(Source(text + "\n"), "root" if is_gbnf else "start")
        except UnsatisfiableError:
            loaded = None
        if loaded is not None:
            found += faults(loaded, rules, has_masks=False)
    return found


def test_written_in_both_languages() -> None:
    some = [*itertools.islice(counted(), 0, None, 6), *itertools.islice(alone(2, 2), 0, None, 3)]
    found = [fault for rules in some for fault in texts_agree(rules)]
    assert not found, "\n".join(found[:10])


# --- negative controls: a rule of the engine that is broken is found ---


def _counts_empty_rounds(self: Any, item: Any, then: Any, heads: Any) -> Any:
    """As `LinearForms._rounds`, but a round that reads nothing does not count."""
    body = self.linear(item.body)
    most = None if item.max is None else item.max - 1
    again = then if most == 0 else self.item(linear.Rounds(item.body, max(item.min - 1, 0), most), then)
    for head, left in body.heads:
        heads[head, self.joined(left, again)] = None
    return () if item.min else (then,)


def _on_the_wrong_side(name: str, expression: Expression) -> Expression:
    """As `_without_recursion`, but the repetition stands on the other side."""
    made = _RIGHT(name, expression)
    is_made = made != expression and isinstance(made, Concatenated)
    return Concatenated(tuple(reversed(made.items))) if is_made and isinstance(made, Concatenated) else made


_RIGHT = regular._without_recursion

_FIND = linear.LinearForms._find


def _nothing_is_nullable(self: Any, *, can_read: bool) -> frozenset[str]:
    return _FIND(self, can_read=True) if can_read else frozenset()


MUTANTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "empty rounds": (linear.LinearForms, "_rounds", _counts_empty_rounds),
    "dead ends": (linear.LinearForms, "_is_possible", lambda self, rest: True),
    "left recursion ends at once": (linear.LinearForms, "_going_up", lambda self, item, then: [then]),
    "nothing is nullable": (linear.LinearForms, "_find", _nothing_is_nullable),
    "the wrong side": (regular, "_without_recursion", _on_the_wrong_side),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = [*alone(2, 2), *itertools.islice(counted(), 0, None, 5), *pairs(sequences([A, S, T], 2), SECOND)]
    grammars += pairs([Alternatives((Concatenated((A, A, T)), B))], SECOND)
    assert not any(map(all_faults, grammars[::20]))
    monkeypatch.setattr(*MUTANTS[name])
    assert any(map(all_faults, grammars))
