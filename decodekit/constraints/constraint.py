"""What a constraint is, and the guard that a constraint may have.

A mask decides byte by byte. A few requirements are decided on a whole value only: that the objects of an array are
distinct, that a function of the user says yes. A constraint names them as its guard; the matcher asks the guard where
the language accepts the text, and no text that it refuses is ever finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from decodekit.constraints.network import Frame


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a text is refused, and what of it can stay.

    Attributes:
        keep: number of leading bytes of the text that can stay; what follows them is drawn again. The whole length says
            that only the end is wrong: the text before its last token stays, and goes on with another one.
        at: where: a JSON Pointer into the value, or a description.
        message: what is wrong, in one sentence.
    """

    keep: int
    at: str
    message: str


class Guard(Protocol):
    """Judges whole texts of a constraint's language.

    A text has the special tokens that the constraint asks for by their names (see `Constraint.special_tokens`).

    Laws: the answer depends on the text alone; `Refusal.keep` is at most its length. Several threads may ask at once.
    """

    def refuses(self, text: bytes) -> Refusal | None:
        """Why `text`, which the language of the constraint accepts, is refused all the same; None if it is not."""


@runtime_checkable
class CompoundGuard(Guard, Protocol):
    """A guard of JSON texts, without blanks around them, that refuses strings, arrays and objects only.

    So what it may refuse ends with the quote or bracket that closes it, and nothing else has to be looked at (see
    `brackets`).
    """

    @property
    def is_of_compounds(self) -> bool:
        """Whether it is one: True."""


class Constraint(ABC):
    """A set of texts. Immutable; equal constraints compare and hash equal, so that compiled grammars are shared.

    Subclasses are frozen dataclasses.
    """

    __slots__ = ()

    @abstractmethod
    def root(self) -> Frame:
        """The frame whose run is one whole text.

        Raises:
            ConstraintError: the constraint is malformed, not supported or not satisfiable.
        """

    @abstractmethod
    def parse(self, text: str) -> object:
        """The value that a whole text stands for.

        Raises:
            ValueError: the text is not one of the constraint's.
        """

    @property
    def num_bytes(self) -> int:
        """About how much memory the frames of a text take, their lexical languages aside; for the memory limit."""
        return 0

    def guard(self) -> Guard | None:
        """What a whole text must satisfy beyond the language of `root`; None if the language says it all."""
        return None

    def special_tokens(self) -> frozenset[str | int]:
        """The special tokens that its texts are made of, by name or by id: the vocabulary has to have them.

        Those aside for which a text may have the characters of their name just as well. In a text that is parsed, or
        that a guard is asked about, a special token stands by its name; one that is asked for by its id as ``<[7]>``.
        """
        return frozenset()


def set_fields(owner: object, **values: object) -> None:
    """The fields of a frozen value, from its constructor."""
    for name, value in values.items():
        object.__setattr__(owner, name, value)
