"""Frames of a context-free grammar: its rules as a recursive transition network that never calls itself unread.

A frame is what is left of a rule; its moves are the heads of its linear form (see `linear`), which always read
something before a rule is called again. What only returns is not returned to (see `recogniser`), so neither left nor
right recursion makes the stack grow.

Where Earley's algorithm would keep a chart of items, the engine keeps sets of stacks that share their parts, which is
the same information in a form that is a value: see `Stacks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decodekit.constraints.grammar.linear import Head, Item, LinearForms, Rule, Word
from decodekit.constraints.grammar.rules import Rules
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.wording import expectations
from decodekit.constraints.network import END, RETURN, Call, Frame, Label, Move, Read
from decodekit.errors import UnsatisfiableError


def root_frame(rules: Rules) -> Frame:
    """The frame whose run is one text of the grammar.

    Raises:
        UnsatisfiableError: no text can be derived from the start rule.
        ResourceLimitError: a rule is nested too deeply.
        ConstraintError: what an inline constraint raises.
    """
    forms = LinearForms(rules)
    if rules.start not in forms.productive:
        raise UnsatisfiableError(
            f"no text can be derived from the rule {rules.start!r}",
            hint="a rule that it needs has no alternative without calling itself",
        )
    return RuleFrame(forms, forms.start())


@dataclass(frozen=True, slots=True)
class RuleFrame(Frame):
    """What is left of a rule."""

    has_registers: ClassVar[bool] = False
    forms: LinearForms
    item: Item

    def moves(self) -> tuple[Move, ...]:
        """Its heads, and the end if nothing need follow."""
        linear = self.forms.linear(self.item)
        moves = _moves(self.forms, linear.heads)
        return (*moves, RETURN) if linear.is_nullable else tuple(moves)

    def expected(self, move: Move) -> tuple[str, ...]:
        """The names of terminals."""
        return _names(self.forms, self.forms.linear(self.item).heads, move)


@dataclass(frozen=True, slots=True)
class Begin(Frame):
    """A non-empty text of a rule."""

    forms: LinearForms
    name: str

    def moves(self) -> tuple[Move, ...]:
        """Its heads."""
        return tuple(_moves(self.forms, self.forms.beginnings(self.name)))

    def title(self) -> str | None:
        """The rule, where there are several."""
        return f"rule {self.name}" if len(self.forms.rules.rules) > 1 else None

    def expected(self, move: Move) -> tuple[str, ...]:
        """The names of terminals."""
        return _names(self.forms, self.forms.beginnings(self.name), move)


@dataclass(frozen=True, slots=True)
class Then(Frame):
    """The reader of a terminal after which there is one way to go on."""

    then: Frame

    def moves(self) -> tuple[Move, ...]:
        """None: a reader only."""
        return ()

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The way to go on."""
        return (self.then,)


@dataclass(frozen=True, slots=True)
class Sorted(Frame):
    """The reader of several terminals; the label says which was read."""

    forms: LinearForms
    lefts: tuple[Item | None, ...]

    def moves(self) -> tuple[Move, ...]:
        """None: a reader only."""
        return ()

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """What is left after the terminal."""
        assert isinstance(label, int)
        left = self.lefts[label]
        return (END if left is None else RuleFrame(self.forms, left),)


def _moves(forms: LinearForms, heads: tuple[tuple[Head, Item | None], ...]) -> list[Move]:
    """The moves of a frame that goes on with any of some heads."""
    moves: list[Move] = []
    words: list[tuple[Node, Item | None]] = []
    keywords: dict[Item | None, list[Node]] = {}
    for head, left in heads:
        if isinstance(head, Word):
            if _is_keyword(head.node):
                keywords.setdefault(left, []).append(head.node)
            else:
                words.append((head.node, left))
        elif isinstance(head, Rule):
            moves.append(Call(Begin(forms, head.name), END if left is None else RuleFrame(forms, left)))
        else:
            moves.append(Call(head.root, END if left is None else RuleFrame(forms, left)))
    # Keywords are read together, their ends labelled: one automaton for all of them. Other terminals are read each
    # by itself, so that their states, and what a vocabulary knows of them, are shared by all places of the grammar.
    if len(keywords) > 1:
        labelled = [ir.concat(ir.choice(*nodes), ir.accept(i)) for i, nodes in enumerate(keywords.values())]
        moves.append(Read(forms.after_blanks(ir.choice(*labelled)), reader=Sorted(forms, tuple(keywords))))
    else:
        words += ((ir.choice(*nodes), left) for left, nodes in keywords.items())
    for node, left in words:
        then = END if left is None else RuleFrame(forms, left)
        moves.append(Read(forms.after_blanks(node), reader=Then(then)))
    return moves


def _names(forms: LinearForms, heads: tuple[tuple[Head, Item | None], ...], move: Move) -> tuple[str, ...]:
    """What one of `moves` reads, by the names of the terminals; for messages."""
    if not isinstance(move, Read):
        return ()
    reader = move.reader
    lefts = reader.lefts if isinstance(reader, Sorted) else (_left_of(reader),)
    found: dict[str, None] = {}
    for head, left in heads:
        if isinstance(head, Word) and left in lefts and _is_keyword(head.node) >= isinstance(reader, Sorted):
            # The whole text as one word says nothing by its name.
            has_name = head.name is not None and head.name != forms.rules.start
            found.update(dict.fromkeys((str(head.name),) if has_name else expectations([head.node])))
    return tuple(found)


def _is_keyword(node: Node) -> bool:
    """Whether a terminal is one word, or a few that differ in their case."""
    while isinstance(node, ir.Concat):
        if not _is_letter(node.head):
            return False
        node = node.tail
    return _is_letter(node)


def _is_letter(node: Node) -> bool:
    return isinstance(node, ir.Literal) or (isinstance(node, ir.Bytes) and node.mask.bit_count() <= 4)


def _left_of(reader: Frame | None) -> Item | None:
    """What is left after a terminal that has a reader of its own."""
    after = reader.then if isinstance(reader, Then) else None
    return after.item if isinstance(after, RuleFrame) else None
