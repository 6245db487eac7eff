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

from decodekit.constraints.grammar.linear import Heads, Item, Linear, LinearForms
from decodekit.constraints.grammar.rules import RuleRef, Rules, Terminal
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.phrases import expectations
from decodekit.constraints.network import END, RETURN, Call, Frame, Label, Move, Read
from decodekit.errors import UnsatisfiableError


def root_frame(rules: Rules) -> Frame:
    """The frame whose run is one text of the grammar. Raises what `Grammar.root` raises."""
    forms = LinearForms(rules)
    if rules.start not in forms.productive:
        raise UnsatisfiableError(
            f"no text can be derived from the rule {rules.start!r}",
            hint="a rule that it needs has no alternative without calling itself",
        )
    return RuleFrame(forms, forms.start())


@dataclass(frozen=True, slots=True)
class RuleFrame(Frame):
    """The rest of a rule, or a non-empty text of the rule of a name."""

    has_registers: ClassVar[bool] = False
    forms: LinearForms
    rest: Item | str

    def _linear(self) -> Linear:
        return self.forms.beginnings(self.rest) if isinstance(self.rest, str) else self.forms.linear(self.rest)

    def moves(self) -> tuple[Move, ...]:
        """Its heads, and the end if nothing need follow."""
        heads, is_nullable = self._linear()
        moves = _moves(self.forms, heads)
        return (*moves, RETURN) if is_nullable else moves

    def title(self) -> str | None:
        """The rule that begins, where there are several."""
        return f"rule {self.rest}" if isinstance(self.rest, str) and len(self.forms.rules.rules) > 1 else None

    def expected(self, move: Move) -> tuple[str, ...]:
        """The names of terminals."""
        return _names(self.forms, self._linear().heads, move)


@dataclass(frozen=True, slots=True)
class Behind(Frame):
    """The reader of one terminal, or of several, whose label says which was read."""

    forms: LinearForms
    lefts: tuple[Item | None, ...]

    def moves(self) -> tuple[Move, ...]:
        """None: a reader only."""
        return ()

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The rest of the rule behind the terminal."""
        which = label if len(self.lefts) > 1 and isinstance(label, int) else 0
        return (_rest(self.forms, self.lefts[which]),)


def _rest(forms: LinearForms, left: Item | None) -> Frame:
    return END if left is None else RuleFrame(forms, left)


def _moves(forms: LinearForms, heads: Heads) -> tuple[Move, ...]:
    """The moves of a frame that goes on with any of some heads."""
    calls: list[Move] = []
    words: list[tuple[Node, Item | None]] = []
    keywords: dict[Item | None, list[Node]] = {}
    for head, left in heads:
        if not isinstance(head, Terminal):
            callee = RuleFrame(forms, head.name) if isinstance(head, RuleRef) else head
            calls.append(Call(callee, _rest(forms, left)))
        elif _is_keyword(head.node):
            keywords.setdefault(left, []).append(head.node)
        else:
            words.append((head.node, left))
    # Keywords are read together, their ends labelled: one automaton for all of them. Other terminals are read each
    # by itself, so that their states, and what a vocabulary knows of them, are shared by all places of the grammar.
    read: list[tuple[Node, tuple[Item | None, ...]]] = []
    if len(keywords) > 1:
        labelled = [ir.concat(ir.choice(*nodes), ir.accept(i)) for i, nodes in enumerate(keywords.values())]
        read.append((ir.choice(*labelled), tuple(keywords)))
    else:
        words += ((ir.choice(*nodes), left) for left, nodes in keywords.items())
    read += ((node, (left,)) for node, left in words)
    return (*calls, *(Read(forms.after_blanks(node), reader=Behind(forms, lefts)) for node, lefts in read))


def _names(forms: LinearForms, heads: Heads, move: Move) -> tuple[str, ...]:
    """The names of the terminals that one of `moves` reads; for messages."""
    reader = move.reader if isinstance(move, Read) else None
    if not isinstance(reader, Behind):
        return ()
    found: dict[str, None] = {}
    for head, left in heads:
        are_keywords = len(reader.lefts) > 1
        if isinstance(head, Terminal) and left in reader.lefts and _is_keyword(head.node) >= are_keywords:
            # The whole text as one word says nothing by its name.
            has_name = head.name is not None and head.name != forms.rules.start
            found.update(dict.fromkeys((str(head.name),) if has_name else expectations([head.node])))
    return tuple(found)


def _is_keyword(node: Node) -> bool:
    """Whether a terminal is one word, or a few that differ in their case."""
    while isinstance(node, ir.Product):
        if not _is_letter(node.head):
            return False
        node = node.tail
    return _is_letter(node)


def _is_letter(node: Node) -> bool:
    return isinstance(node, ir.Literal) or (isinstance(node, ir.Bytes) and node.mask.bit_count() <= 4)
