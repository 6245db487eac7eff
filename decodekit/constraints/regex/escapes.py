r"""Reading a pattern: the place, errors that point at it, escapes and classes, from ``\w`` to sets of code points."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cached_property
from typing import Final, Literal, NoReturn, TypeAlias

from decodekit.constraints.language.utf8 import MAX_CODE_POINT, Ranges, invert, normalise
from decodekit.constraints.regex import charclasses
from decodekit.constraints.regex.tree import Assertion, Chars, Reference, Tree
from decodekit.errors import ConstraintError, InvalidConstraintError, UnsupportedSchemaError

Flavour: TypeAlias = Literal["python", "ecma"]

_SHOWN: Final = 30  # characters of the pattern that an error shows on each side
_DIGITS: Final = "0123456789"
_OCTAL: Final = "01234567"
_HEX: Final = "0123456789abcdefABCDEF"
_NUMBER: Final = re.compile("[0-9]*")
_OCTALS: Final = re.compile("[0-7]{0,2}")
_LOW_HALF: Final = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_CONTROL: Final = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_SET_SIGNS: Final = {"--": "a difference", "&&": "an intersection", "~~": "a symmetric difference", "||": "a union"}
_SYNTAX: Final = "^$\\.*+?()[]{}|/"  # what the flag u of ECMA-262 lets be escaped
_INSIDE_EMPTY: Final = sys.version_info >= (3, 14)  # since when \B of `re` holds in the empty text


class PatternReader:
    """A pattern with a position, its flavour, and the flags that hold here; reads escapes and classes."""

    def __init__(self, pattern: str, flavour: Flavour, flags: frozenset[str]) -> None:
        self.pattern, self.position, self.flags = pattern, 0, flags
        self.is_ecma = flavour == "ecma"
        self.is_strict = self.is_ecma and "u" in flags
        """Whether the leniency of ECMA-262, annex B.1.2, is off."""
        self.keeps_groups = False
        """Whether back-references are read: otherwise they are refused, and groups leave no trace."""
        self.references: list[tuple[int | str, Reference]] = []
        self.num_strays = 0
        """Numbers behind a backslash that are those of no group, where groups are kept."""
        self.other_readings: list[str] = []
        """What other dialects would not read as it is read here."""

    @property
    def is_at_end(self) -> bool:
        """Whether the whole pattern was read."""
        return self.position == len(self.pattern)

    def fail(self, cause: str, hint: str, back: int = 1) -> NoReturn:
        """The pattern is malformed `back` characters before the position."""
        raise InvalidConstraintError(cause, at=self._place(self.position - back), hint=hint)

    def refuse(
        self, what: str, hint: str, back: int = 1, error: type[ConstraintError] = UnsupportedSchemaError
    ) -> NoReturn:
        """The pattern is understood but not supported."""
        raise error(f"{what} not supported in a pattern", at=self._place(self.position - back), hint=hint)

    def _place(self, place: int) -> str:
        low, high = max(place - _SHOWN, 0), place + _SHOWN
        line = "".join(c if c.isprintable() else "·" for c in self.pattern[low:high])
        return f"character {place + 1} of the pattern\n      {line}\n      {' ' * (place - low)}^"

    def peek(self, text: str) -> bool:
        """Whether `text` comes next."""
        return self.pattern.startswith(text, self.position)

    def take(self, text: str) -> bool:
        """Read `text`, if it comes next."""
        if not self.peek(text):
            return False
        self.position += len(text)
        return True

    def take_while(self, members: str) -> str:
        """Read as many of these characters as come next."""
        start = self.position
        while not self.is_at_end and self.pattern[self.position] in members:
            self.position += 1
        return self.pattern[start : self.position]

    def take_until(self, end: str, what: str) -> str:
        """Read up to the character `end`, and it too."""
        start = self.position
        found = self.pattern.find(end, start)
        if found < 0:
            self.position = len(self.pattern)
            self.fail(f"the pattern ends inside {what}", "the rest of it, or a backslash before its beginning", 0)
        self.position = found + 1
        return self.pattern[start:found]

    def next(self, what: str) -> str:
        """Read one character, of `what` the error speaks if there is none."""
        if self.is_at_end:
            self.fail(f"the pattern ends inside {what}", "the rest of it, or a backslash before its beginning", 0)
        self.position += 1
        return self.pattern[self.position - 1]

    def note(self, what: str, place: int) -> None:
        """Other dialects read something else here."""
        self.other_readings.append(
            f"{what} of other dialects is read as `re` reads it, character by character\n  at  {self._place(place)}\n"
            "  try a backslash before it where the characters are meant, else \\p{...} or an alternative"
        )

    # --- escapes and classes ---

    def chars(self, ranges: Ranges) -> Chars:
        """One character of a set, or one that is equal to it here."""
        return Chars(self.folded_member(ranges))

    def folded_member(self, ranges: Ranges) -> Ranges:
        r"""A member of a class under the flags that hold here. In `re` the sets of ``\w`` and the like know no case."""
        return self.folded(ranges) if self.is_ecma or _is_one(ranges) else ranges

    def folded(self, ranges: Ranges) -> Ranges:
        """The set with whatever is equal to a member under the flags that hold here."""
        if "i" not in self.flags:
            return ranges
        if self.is_ecma:
            return charclasses.close(ranges, "ecma unicode" if self.is_strict else "ecma")
        return charclasses.close(ranges, "ascii" if "a" in self.flags else "python")

    def word(self) -> Ranges:
        r"""The set of ``\w`` under the flags that hold here, about which ``\b`` asks, too."""
        if self.is_ecma:  # with the flags iu also U+017F and U+212A: ECMA-262, section 22.2.2.9.2, WordCharacters
            return self.folded(charclasses.WORD) if self.is_strict else charclasses.WORD
        return charclasses.WORD if "a" in self.flags else charclasses.python_class("w")

    def named_class(self, letter: str) -> Ranges:
        r"""The set of ``\d``, ``\w`` or ``\s``."""
        if letter == "w":
            return self.word()
        if not self.is_ecma and "a" not in self.flags:
            return charclasses.python_class(letter)
        return (
            charclasses.DIGIT if letter == "d" else charclasses.ECMA_SPACE if self.is_ecma else charclasses.ASCII_SPACE
        )

    def escape(self) -> Tree:
        """The tree of an escape outside of a class, its backslash read."""
        char = self.next("an escape")
        if char == "b":
            return Assertion("boundary", self.word())
        if char == "B":
            return Assertion("inside", self.word(), self.is_ecma or _INSIDE_EMPTY)
        if not self.is_ecma and char in "AZz":
            return Assertion("start" if char == "A" else "end")
        if char == "k" and (self.is_strict or self.peek("<")):
            return self.reference(None)
        if char in "123456789":
            if self.keeps_groups and (number := self.group_number(char)) is not None:
                return self.reference(number)
            return self.chars(one(self.number(char)))
        return self.chars(self.class_escape(char))

    def refuse_reference(self) -> NoReturn:
        """Refuse a back-reference, since its pattern is not regular."""
        self.refuse("back-references are", "writing the repeated part again", 2)

    def group_number(self, first: str) -> int | None:
        """The number behind a backslash, if it is that of a group."""
        digits = first + self.digits()
        if len(digits) > 6 or int(digits) > self.num_groups:
            self.num_strays += 1
            return None
        self.position += len(digits) - 1
        return int(digits)

    def reference(self, number: int | None) -> Tree:
        r"""A back-reference, whose groups are told at the end of the pattern; by name (``\k``) without a number."""
        if not self.keeps_groups:
            self.refuse_reference()
        key: int | str
        if number is None:
            if not self.take("<"):
                self.fail("a reference by name is \\k<name>", "the name of a group", 2)
            key = self.take_until(">", "the name of a group")
        else:
            key = number - 1
        found = Reference((), self.folded if "i" in self.flags else None)
        self.references.append((key, found))
        return found

    def number(self, first: str) -> int:
        """A number behind a backslash outside of a class, if it is an octal escape."""
        if not self.is_ecma:
            if re.match("[0-7]{3}", self.pattern[self.position - 1 : self.position + 2]) is None:
                self.refuse_reference()
            return self.octal(first)
        number = first + self.digits()
        if self.is_strict or len(number) > 6 or int(number) <= self.num_groups:
            self.refuse_reference()
        return ord(first) if first in "89" else self.octal(first)

    def digits(self) -> str:
        """The digits that come next; they are not taken."""
        return _NUMBER.match(self.pattern, self.position).group()  # type: ignore[union-attr]

    @cached_property
    def num_groups(self) -> int:
        """The groups of the whole pattern that a number could refer to. A class that is not closed goes to the end."""
        parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]?|\((?!\?)|\(\?<(?![=!])", self.pattern, re.DOTALL)
        return sum(part[0] == "(" for part in parts)

    def class_escape(self, char: str) -> Ranges:
        """The set of an escape that may stand in a class too; `char` was taken."""
        if char in "dDwWsS":
            ranges = self.named_class(char.lower())
            return invert(ranges) if char.isupper() else ranges
        return self.unicode_property(char == "P") if char in "pP" else one(self.escaped(char))

    def escaped(self, char: str) -> int:
        """The code point of an escape that stands for one; `char` was taken."""
        if char in _CONTROL:
            return _CONTROL[char]
        if char in _OCTAL and (char == "0" or not self.is_strict):
            return self.octal(char)
        if char == "u" or (char == "x" and not self.is_ecma and self.peek("{")):
            return self.unicode_escape()
        if char == "x":
            return self.hexadecimal(2)
        if not self.is_ecma and char in "aUN":
            return 0x07 if char == "a" else self.hexadecimal(8) if char == "U" else self.named_character()
        if char == "c" and self.is_ecma:
            letter = self.next("a control escape")
            if not (letter.isascii() and letter.isalpha()):
                self.fail("a control escape is \\c and a letter", "\\x and two hexadecimal digits")
            return ord(letter) % 32
        is_lenient = char in "89" and self.is_ecma and not self.is_strict
        if char.isalnum() and char.isascii() and not is_lenient:
            hint = "^ and $" if char in "AzZG" else f"{char!r} without the backslash, if the character is meant"
            self.refuse(f"the escape \\{char} is", hint, 2)
        if self.is_strict and char not in _SYNTAX:
            self.fail(f"the flag 'u' lets no {char!r} be escaped", f"{char!r} without the backslash", 2)
        return ord(char)

    def octal(self, first: str) -> int:
        r"""Up to three octal digits, behind ``\0`` of `re` two; in ECMA up to ``\377`` (annex B.1.2)."""
        if self.is_strict and not self.is_at_end and self.pattern[self.position] in _DIGITS:
            self.fail("the flag 'u' lets no digit follow \\0", "\\x and two hexadecimal digits", 0)
        digits = _OCTALS.match(self.pattern, self.position).group()  # type: ignore[union-attr]
        digits = digits[: 1 if self.is_ecma and first > "3" else 2]
        self.position += len(digits)
        value = int(first + digits, 8)
        if value > 0o377 and not self.is_ecma and first != "0":
            self.fail("an octal escape is at most \\377", "\\x, \\u or \\U and hexadecimal digits", 4)
        return value

    def hexadecimal(self, num_digits: int) -> int:
        """That many hexadecimal digits."""
        text = self.pattern[self.position : self.position + num_digits]
        if len(text) < num_digits or not set(text) <= set(_HEX):
            self.fail(f"{num_digits} hexadecimal digits must follow", "leading zeros")
        self.position += num_digits
        return self.code_point(int(text, 16))

    def unicode_escape(self) -> int:
        r"""The code point behind ``\u``: four digits, digits in braces, or in ECMA both halves of a surrogate pair."""
        if self.take("{"):
            digits = self.take_until("}", "a Unicode escape")
            if not digits or not set(digits) <= set(_HEX) or len(digits) > 16:
                self.fail("between these braces stand hexadecimal digits", "1 to 6 of them")
            return self.code_point(int(digits, 16))
        unit = self.hexadecimal(4)
        low = _LOW_HALF.match(self.pattern, self.position) if self.is_ecma and 0xD800 <= unit <= 0xDBFF else None
        if low is None:
            return unit
        self.position = low.end()
        return 0x10000 + ((unit - 0xD800) << 10) + int(low[1], 16) - 0xDC00

    def code_point(self, value: int) -> int:
        """The value, if there is such a code point."""
        if value > MAX_CODE_POINT:
            self.fail(f"U+{value:X} is no code point", "a number up to 10FFFF")
        return value

    def named_character(self) -> int:
        r"""The code point behind ``\N``: a name of the Unicode database, in braces."""
        if not self.take("{"):
            self.fail("a named character is \\N{its name}", "\\N{DIGIT ONE} and the like", 2)
        name = self.take_until("}", "the name of a character")
        try:
            found = unicodedata.lookup(name)
        except KeyError:
            found = ""
        if len(found) != 1:
            self.fail(f"no character is called {name!r:.80}", "\\u or \\U and its number", len(name) + 1)
        return ord(found)

    def unicode_property(self, is_negated: bool) -> Ranges:
        r"""The set of the property behind ``\p`` or ``\P``."""
        if self.take("{"):
            name = self.take_until("}", "a Unicode property")
        else:
            if self.is_strict:
                self.fail("a Unicode property is \\p{its name}", "\\p{L} for \\pL")
            name = self.next("a Unicode property")  # \pL, as other dialects write it
        ranges = charclasses.unicode_property(name, is_loose=not self.is_ecma)
        if ranges is None:
            hint = "a general category (L, Lu, Nd), a script (Script=Greek), or a property such as Alphabetic or Emoji"
            self.refuse(f"the Unicode property {name!r:.80} is", hint)
        if not self.is_ecma:  # as in Rust, whose ``(?i)\P{Lu}`` matches no letter with a case
            ranges = self.folded(ranges)
        return invert(ranges) if is_negated else ranges

    def char_class(self) -> Chars:
        """A class; its bracket was taken."""
        opening = self.position - 1
        is_negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while True:
            if self.is_at_end:
                hint = "a ] at its end, or \\[ for the bracket itself"
                self.fail("this character class is not closed", hint, self.position - opening)
            if self.peek("]") and not (is_first and not self.is_ecma):  # in Python, a first ] is a member
                self.position += 1
                break
            if not self.is_ecma and not is_first and self.pattern[self.position : self.position + 2] in _SET_SIGNS:
                self.note(_SET_SIGNS[self.pattern[self.position : self.position + 2]], self.position)
            is_first = False
            ranges += self.class_range()
        if not self.is_ecma and _end_of_nested(self.pattern, opening) not in (None, self.position):
            self.note("a class in a class", opening)
        members = normalise(ranges)
        return Chars(invert(members) if is_negated else members)

    def class_range(self) -> Ranges:
        """One member of a class, or a range of them."""
        low = self.class_member()
        if not self.peek("-") or self.peek("-]") or self.position + 1 == len(self.pattern):
            return self.folded_member(low)
        self.position += 1
        if self.peek("-") and not self.is_ecma:
            self.note(_SET_SIGNS["--"], self.position - 1)
        high = self.class_member()
        if _is_one(low) and _is_one(high):
            if high[0][0] < low[0][0]:
                self.fail("the range of characters is in the wrong order", "the smaller code point first, or \\-")
            return self.folded(((low[0][0], high[0][0]),))
        if not self.is_ecma or self.is_strict:
            self.fail("a class such as \\w is no end of a range", "\\- for the hyphen itself")
        return self.folded((*low, (0x2D, 0x2D), *high))  # [\w-.]: the older ECMA leniency takes the hyphen as a member

    def class_member(self) -> Ranges:
        """One character or escape in a class."""
        char = self.next("a character class")
        if char != "\\":
            return one(ord(char))
        char = self.next("an escape")
        if char == "b":
            return one(0x08)
        if char == "-" and self.is_strict:
            return one(ord(char))
        return self.class_escape(char)


def _end_of_nested(pattern: str, opening: int) -> int | None:
    """The place behind a class in which classes may stand, as in Rust and in UTS #18; None if it is not closed."""
    depth = 0
    for found in re.compile(r"\\.|\[\^?\]?|\]", re.DOTALL).finditer(pattern, opening):
        depth += {"[": 1, "]": -1}.get(found[0][0], 0)
        if not depth:
            return found.end()
    return None


def one(point: int) -> Ranges:
    """The set of one code point."""
    return ((point, point),)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
