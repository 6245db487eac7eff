"""Constraints, and the guards that they may have.

A mask decides byte by byte. A few requirements are decided on a whole value only: that the objects of an array are
distinct, that a function of the user says yes. A constraint names them as its guard; the matcher asks the guard where
the language accepts the text, and no text that it refuses is ever finished. A guard that can tell earlier has a reader:

    text so far         [{"a":1},{"a":1     the items of the array have to be distinct
    tokens              }   2   ,
    the reader refuses  }                   after it no text is accepted, whatever follows
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

from decodekit.constraints.network import Frame
from decodekit.constraints.work_budget import Work, done


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a text: the reason, and the part that can stay.

    Attributes:
        keep: number of leading bytes of the text that can stay; what follows them is drawn again. The whole length says
            that only the end is wrong: the text before its last token stays, and goes on with another one.
        at: where: a JSON Pointer into the value, or a description.
        message: what is wrong, in one sentence.
        is_early: whether the text is the beginning of others, all of which are refused; see `GuardReader`.
    """

    keep: int
    at: str
    message: str
    is_early: bool = False


class Guard(Protocol):
    """Judges whole texts of a constraint's language.

    A text has the special tokens that the constraint asks for by their names (see `Constraint.special_tokens`).

    Laws: the answer depends on the text alone; `Refusal.keep` is at most its length. Several threads may ask at once.
    """

    def refuses(self, text: bytes) -> Refusal | None:
        """The refusal of `text`, which the language of the constraint accepts; None if it is accepted."""


class WorkingGuard(Guard, ABC):
    """A guard whose judgement is work that can be left off, for texts so long that other rows would wait for it."""

    __slots__ = ()

    is_of_compounds: ClassVar[bool] = False
    """Whether its texts are JSON, without blanks around them, and it refuses strings, arrays and objects only.

    So what it may refuse ends with the quote or bracket that closes it, and nothing else has to be looked at (see
    `brackets`).
    """

    @abstractmethod
    def judging(self, text: bytes) -> Work[Refusal | None]:
        """As `refuses`."""

    def refuses(self, text: bytes) -> Refusal | None:
        """As in `Guard`."""
        return done(self.judging(text))


def judging_of(guard: Guard, text: bytes) -> Work[Refusal | None]:
    """The judgement of any guard; that of one that says only `refuses` is a single step."""
    if isinstance(guard, WorkingGuard):
        return (yield from guard.judging(text))
    return guard.refuses(text)


OUTSIDE, STRING, ESCAPE = 0, 1, 2
"""The modes of a JSON text: outside of strings, inside of one, behind its backslash."""
UNQUOTED: Final = frozenset(b"0123456789+-.eEtrufalsn")
"""The bytes of numbers and words."""


class Watch(NamedTuple):
    """The tokens that may make a JSON text one that a reader refuses, told by what they complete.

    Attributes:
        mode: where the text has got to: `OUTSIDE`, `STRING` or `ESCAPE`.
        is_scalar: whether the scalar or key that the text ends in is judged where it ends.
        num_closed: how many brackets a token has to close to complete an array or object that is judged; -1: none is.
        num_before: how many brackets it has to close before keys and values that come then are judged; -1: none are.
        num_around: the same for what is inside of arrays and objects that come then.
    """

    mode: int
    is_scalar: bool = False
    num_closed: int = -1
    num_before: int = -1
    num_around: int = -1


class GuardReader(Protocol):
    """Reads one text of a guard and refuses it where no whole text that goes on from there is accepted.

    Laws: if it refuses a text, then the guard refuses every whole text of the language that begins so, and the reader
    every longer one. How the text was divided into reads makes no difference. It may refuse less than it could: what
    it cannot tell yet is judged at the end. Not shared between threads.
    """

    @property
    def watch(self) -> Watch | bool:
        """The tokens that it may refuse now: those that close something of a JSON text; True if any, False if none."""

    def read(self, data: bytes) -> Refusal | None:
        """Go on with the bytes of a token; or why no text goes on so, and then nothing changes."""

    def rollback(self, num_reads: int) -> None:
        """Forget the last reads that were not refused."""

    def fork(self) -> GuardReader:
        """An independent reader of the same text."""


class WorkingReader(GuardReader, ABC):
    """A `GuardReader` whose judgements are work that can be left off."""

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """The steps of its judgements. A fork begins with those of its original, and none are taken back."""

    @abstractmethod
    def judging(self, data: bytes) -> Work[None]:
        """The judgements that `read` needs, which knows them then; nothing else changes."""


@runtime_checkable
class EarlyGuard(Guard, Protocol):
    """A guard that can refuse a text before it is whole. `TextReader` makes a reader of a function.

    class Increasing:
        def refuses(self, text): ...             # the whole text
        def refuses_prefix(self, text): ...      # the beginning of one

        def reader(self):
            return TextReader(self.refuses_prefix)
    """

    def reader(self) -> GuardReader | None:
        """A reader at the beginning of a text; None if this guard is asked at the end alone."""


class TextReader:
    """The reader of a function that judges beginnings of texts.

    The function is asked about the text with each token that is drawn, and where an exact mask is wanted, as for beam
    search, with each token that may come.

    Args:
        refuses_prefix: given the beginning of a text, why every text that begins so is refused; None if some is not, or
            if that cannot be told. What it refuses it has to refuse with more bytes as well.
    """

    def __init__(self, refuses_prefix: Callable[[bytes], Refusal | None]) -> None:
        self._refuses_prefix = refuses_prefix
        self._texts = [b""]  # after each read

    @property
    def watch(self) -> bool:
        """Any token may be refused."""
        return True

    def read(self, data: bytes) -> Refusal | None:
        """Go on with the bytes of a token; or why no text goes on so, and then nothing changes."""
        text = self._texts[-1] + data
        refusal = self._refuses_prefix(text)
        if refusal is None:
            self._texts.append(text)
        return refusal

    def rollback(self, num_reads: int) -> None:
        """Forget the last reads that were not refused."""
        del self._texts[len(self._texts) - num_reads :]

    def fork(self) -> TextReader:
        """An independent reader of the same text."""
        twin = TextReader(self._refuses_prefix)
        twin._texts = self._texts.copy()
        return twin


def reader_of(guard: Guard) -> GuardReader | None:
    """A reader at the beginning of a text; None if a guard is asked at the end alone."""
    return guard.reader() if isinstance(guard, EarlyGuard) else None


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
        """The judge of whole texts beyond the language of `root`; None if the language says it all."""
        return None

    def special_tokens(self) -> frozenset[str | int]:
        """The special tokens that its texts are made of, by name or by id: the vocabulary has to have them.

        Those aside for which a text may have the characters of their name just as well. In a text that is parsed, or
        that a guard is asked about, a special token stands by its name; one that is asked for by its id as ``<[7]>``.
        """
        return frozenset()


class WrappedConstraint(Constraint):
    """The texts and values of another constraint; subclasses say what is different."""

    __slots__ = ()

    constraint: Constraint

    def root(self) -> Frame:
        """That of the other constraint."""
        return self.constraint.root()

    def parse(self, text: str) -> object:
        """That of the other constraint."""
        return self.constraint.parse(text)

    @property
    def num_bytes(self) -> int:
        """That of the other constraint."""
        return self.constraint.num_bytes

    def special_tokens(self) -> frozenset[str | int]:
        """Those of the other constraint."""
        return self.constraint.special_tokens()


def set_fields(owner: object, **values: object) -> None:
    """The fields of a frozen value, from its constructor."""
    for name, value in values.items():
        object.__setattr__(owner, name, value)
