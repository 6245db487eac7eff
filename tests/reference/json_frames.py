"""A small JSON-like language made of frames by hand: nested calls, labels, captures, ambiguity, ends that coincide.

    value  = number | string | word | object | array
    number = -?[0-9]+(.[0-9]+)?          word = true | trueish | null
    object = { "key": value, ... }       no key twice; key = [a-c]{1,3}
    array  = [ value, ... ]              at most `max_items`, or without a bound
A space may stand after each comma and colon. The two words share a prefix, so one may end while the other goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from decodekit.constraints.language import ir
from decodekit.constraints.network import RETURN, Call, End, Frame, Label, Move, Read
from decodekit.constraints.regex.regex import full_match

NUMBER = full_match(r"-?[0-9]+(\.[0-9]+)?")
STRING = full_match(r'"[^"\\\x00-\x1f]*"')
SCALAR_OR_OPEN = ir.choice(
    ir.concat(ir.choice(NUMBER, STRING, ir.literal(b"true"), ir.literal(b"trueish"), ir.literal(b"null"))),
    ir.concat(ir.literal(b"{"), ir.accept("{")),
    ir.concat(ir.literal(b"["), ir.accept("[")),
)
KEY = full_match(r'"[a-c]{1,3}"')
COLON = full_match(r": ?")


@dataclass(frozen=True)
class Value(Frame):
    max_items: int | None = None

    def moves(self) -> tuple[Move, ...]:
        return (Read(SCALAR_OR_OPEN),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        if label == "{":
            return (ObjectStart(self.max_items),)
        if label == "[":
            return (ArrayStart(self.max_items),)
        return (End(),)


@dataclass(frozen=True)
class ObjectStart(Frame):
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        return (Read(ir.concat(ir.literal(b"}"), ir.accept("close"))), Call(Key(frozenset(), self.max_items), End()))

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (End(),)


@dataclass(frozen=True)
class Key(Frame):
    used: frozenset[bytes]
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        taken = ir.choice(*(ir.literal(key) for key in sorted(self.used)))
        return (Read(ir.both(KEY, ir.complement(taken)), capture=True),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        assert ir.matches(KEY, text) and text not in self.used, text
        return (Colon(self.used | {text}, self.max_items),)


@dataclass(frozen=True)
class Colon(Frame):
    used: frozenset[bytes]
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        return (Read(COLON),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (Member(self.used, self.max_items),)


@dataclass(frozen=True)
class Member(Frame):
    used: frozenset[bytes]
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        return (Call(Value(self.max_items), MemberEnd(self.used, self.max_items)),)


@dataclass(frozen=True)
class MemberEnd(Frame):
    used: frozenset[bytes]
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        # 39 keys exist (3 + 9 + 27); after the last one only the end is left.
        comma = ir.concat(full_match(", ?"), ir.accept("comma")) if len(self.used) < 39 else ir.EMPTY
        return (Read(ir.choice(ir.concat(ir.literal(b"}"), ir.accept("close")), comma)),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (Key(self.used, self.max_items),) if label == "comma" else (End(),)


@dataclass(frozen=True)
class ArrayStart(Frame):
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        close = Read(ir.literal(b"]"))
        if self.max_items == 0:
            return (close,)
        return (close, Call(Value(self.max_items), ArrayEnd(1, self.max_items)))

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (End(),)


@dataclass(frozen=True)
class ArrayEnd(Frame):
    count: int
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        comma = ir.concat(full_match(", ?"), ir.accept("comma"))
        close = ir.concat(ir.literal(b"]"), ir.accept("close"))
        return (Read(close if self.count == self.max_items else ir.choice(close, comma)),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        if label == "close":
            return (End(),)
        count = self.count if self.max_items is None else self.count + 1
        return (ArrayItem(count, self.max_items),)


@dataclass(frozen=True)
class ArrayItem(Frame):
    count: int
    max_items: int | None

    def moves(self) -> tuple[Move, ...]:
        return (Call(Value(self.max_items), ArrayEnd(self.count, self.max_items)),)


@dataclass(frozen=True)
class Ambiguous(Frame):
    """Two readings side by side: words of a's that are `even` in length then x, or any number of a's then y."""

    def moves(self) -> tuple[Move, ...]:
        return (
            Read(ir.concat(full_match("(aa)*"), ir.accept("even"))),
            Read(ir.concat(full_match("a*"), ir.accept("any"))),
        )

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (Tail(b"x" if label == "even" else b"y"), Tail(b"xy"))


@dataclass(frozen=True)
class Tail(Frame):
    word: bytes

    def moves(self) -> tuple[Move, ...]:
        return (Read(ir.literal(self.word)),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (End(),)


@dataclass(frozen=True)
class Branching(Frame):
    """S = a | ( S )w1 | ( S )w2 | …: what stands inside is read alike for all `count` words, each is a stack."""

    count: int
    depth: int

    def moves(self) -> tuple[Move, ...]:
        opening = (Read(ir.concat(ir.literal(b"("), ir.accept("open"))),) if self.depth else ()
        return (Read(ir.concat(ir.literal(b"a"), ir.accept("letter"))), *opening)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        if label == "letter":
            return (End(),)
        return tuple(Branch(number, self.count, self.depth) for number in range(self.count))


@dataclass(frozen=True)
class Branch(Frame):
    number: int
    count: int
    depth: int

    def moves(self) -> tuple[Move, ...]:
        word = bytes(b"xy"[self.number >> bit & 1] for bit in range(self.count.bit_length()))
        return (Call(Branching(self.count, self.depth - 1), Tail(b")" + word)),)


@dataclass(frozen=True)
class Nested(Frame):
    """Balanced parentheses, right recursive and able to be nothing: S = ( S ) S |"""

    def moves(self) -> tuple[Move, ...]:
        return (RETURN, Read(ir.literal(b"(")))

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (Opened(),)


@dataclass(frozen=True)
class Opened(Frame):
    def moves(self) -> tuple[Move, ...]:
        return (Call(Nested(), Closing()),)


@dataclass(frozen=True)
class Closing(Frame):
    def moves(self) -> tuple[Move, ...]:
        return (Read(ir.literal(b")")),)

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        return (Again(),)


@dataclass(frozen=True)
class Again(Frame):
    def moves(self) -> tuple[Move, ...]:
        return (Call(Nested(), End()),)


@dataclass(frozen=True)
class LeftRecursive(Frame):
    """S = S a: no progress, so it must be refused instead of unfolded for ever."""

    def moves(self) -> tuple[Move, ...]:
        return (Call(self, Tail(b"a")),)
