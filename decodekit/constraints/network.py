"""The protocol between the front ends of constraints and the engine: a lazily unfolded recursive transition network.

A structured text (a JSON value, later a context-free rule) is a *frame*: one control state, immutable and hashable by
value. A frame offers moves. A `Read` consumes bytes of a regular language, whose ends carry labels; a `Call` runs
another frame to its end first; `RETURN` ends the frame. The engine keeps *sets* of configurations (lexical state, stack
of frames), so moves may be ambiguous: alternatives simply live side by side.

Front ends own reachability: a frame offers only moves that can be completed. Whoever unfolds a network may then trust
that every configuration that is alive leads to an accepted text.

Source of the idea: recursive transition networks (Woods 1970), with states made on demand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from decodekit.constraints.ir import Node

Label: TypeAlias = Hashable


class Frame(ABC):
    """One control state of a structured text. Immutable; equal states compare and hash equal."""

    __slots__ = ()

    @abstractmethod
    def moves(self) -> tuple[Move, ...]:
        """What may happen in this state. Never empty for a frame that can be completed."""

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The states to go on with when a `Read` of this frame ends with `label`.

        `text` is what the `Read` consumed if it asked to `capture`, else ``b""``. An empty tuple is a dead end and is
        allowed only if the language of the `Read` already excludes it for every completable text.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no Read")


@dataclass(frozen=True, slots=True)
class Read:
    """Consume a word of the regular language `node`; each end carries the label given by `ir.accept(label)`.

    A node without labels ends with the label None. With `capture`, the consumed bytes reach `Frame.after`.
    """

    node: Node
    capture: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Run `callee` until it returns, then go on in state `then`."""

    callee: Frame
    then: Frame


@dataclass(frozen=True, slots=True)
class Return:
    """The frame may end here."""


RETURN: Final = Return()
Move: TypeAlias = Read | Call | Return


@dataclass(frozen=True, slots=True)
class End(Frame):
    """A state that only returns."""

    def moves(self) -> tuple[Move, ...]:
        """Return, and nothing else."""
        return (RETURN,)


@dataclass(frozen=True, slots=True)
class Lexeme(Frame):
    """A text of one regular language: what a regex, or a scalar value, is."""

    node: Node

    def moves(self) -> tuple[Move, ...]:
        """One Read."""
        return (Read(self.node),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The end, whatever the label."""
        return (End(),)
