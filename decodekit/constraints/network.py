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
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from decodekit.constraints.language.node import Node

Label: TypeAlias = Hashable


class Frame(ABC):
    """One control state of a structured text. Immutable; equal states compare and hash equal."""

    __slots__ = ()

    has_registers: ClassVar[bool] = True
    """Whether frames remember what was read (the keys of an object), so that few of them come again with others below.

    Masks are shared between stacks that are the same in their upper frames only where this is False.
    """

    @abstractmethod
    def moves(self) -> tuple[Move, ...]:
        """The moves that this state offers. Never empty for a frame that can be completed."""

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The states to go on with when a `Read` of this frame ends with `label`.

        `text` is what the `Read` consumed if it asked to `capture`, else ``b""``. An empty tuple is a dead end. It is
        allowed if the language of the `Read` already excludes it for every completable text, and for some of the texts
        that a `Read` captures if every beginning of one leads to another that is not a dead end.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no Read")

    def fresh(self, label: Label) -> Fresh | None:
        """The common continuation of all captured texts but a few; None if every text has to be asked for. See `Fresh`.

        Raises:
            TextNeeded: this frame follows a text that is not known, and that matters here.
        """
        return None

    def outward(self) -> Frame:
        """A state with fewer words, among them one of every length that this one has; this one if none is known.

        Members of an object that may come in every order come in one order there: all orders are equally long.
        """
        return self

    # What a message says of a state. Nothing of it decides what is allowed.

    def title(self) -> str | None:
        """The name of the part that this state is in, such as ``"rule statement"``; None if there is none."""
        return None

    def expected(self, move: Move) -> tuple[str, ...]:
        """Phrases for what `move`, one of `moves`, begins; empty to leave it to the languages that are read."""
        return ()

    def objection(self, text: bytes, start: int, stop: int) -> str | None:
        """The reason why the text cannot go on, in words; None if this state knows no more than its languages.

        ``text[:start]`` led to this state, ``text[:stop]`` can be read, and ``text[stop]`` cannot; with
        ``stop == len(text)`` the text is to end there and cannot.
        """
        return None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The common continuation of all captured texts but a few, so that a mask need not ask for each text by itself.

    Attributes:
        frames: what `Frame.after` would give, as far as it can be told without the text. Where the text matters again,
            these frames raise `TextNeeded`.
        listed: the texts for which this does not hold.
        decode: the listed form of captured bytes without their end, None if they are half of a text (an unfinished
            escape). The listed form of two parts joined is that of both, joined.
        end: the bytes that end every captured text.
        spell: bytes that stand for a listed form, without their end.
    """

    frames: tuple[Frame, ...]
    listed: Collection[str]
    decode: Callable[[bytes], str | None]
    end: bytes
    spell: Callable[[str], bytes]


class TextNeeded(Exception):  # noqa: N818  (no error: a question)
    """Raised by frames of a `Fresh` whose next step depends on the text that is not known."""


@dataclass(frozen=True, slots=True)
class Within:
    """A language given as the words of a larger one whose labels are permitted.

    The engine then keeps lexical states for the larger language alone, however many selections there are. Labels are
    numbers from 0, and of the words below any state of `node`, the labels are a contiguous range (a sorted word list).

    Attributes:
        node: the larger language.
        permitted: one byte per label, 1 if it is permitted.
    """

    node: Node
    permitted: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Consume a word of the regular language `node`; each end carries the label given by `ir.accept(label)`.

    A node without labels ends with the label None. With `capture`, the consumed bytes reach `Frame.after`. `within`
    says the same as `node` in a form that costs less. `reader` is the frame whose `after` is asked at the end, if it is
    not the one that offers the move: frames that share a reader share what the engine knows of it.
    """

    node: Node
    capture: bool = False
    within: Within | None = None
    reader: Frame | None = None
    name: str | None = field(default=None, compare=False)


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
    """A state that only returns, also when it was the reader of a lexeme."""

    def moves(self) -> tuple[Move, ...]:
        """Return, and nothing else."""
        return (RETURN,)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        """The end, whatever the label."""
        return (self,)


END: Final = End()


@dataclass(frozen=True, slots=True)
class Lexeme(Frame):
    """A text of one regular language: what a regex, or a scalar value, is."""

    node: Node

    def moves(self) -> tuple[Move, ...]:
        """One Read."""
        return (Read(self.node, reader=END),)
