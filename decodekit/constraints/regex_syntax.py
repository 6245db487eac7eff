r"""The syntax of regular expressions: from a pattern to a tree over sets of code points.

Two flavours. ``"ecma"`` is ECMA-262 with the ``u`` flag's code points and the older leniency for stray braces and
brackets, which is what patterns in JSON Schemas use. ``"python"`` is the syntax of `re` with `re.ASCII`. In both, the
classes ``\d \w \b`` are ASCII and letters have no case folding. What is not regular, or not yet understood, is refused
by name with its place; nothing is ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NoReturn, TypeAlias

from decodekit.constraints import charclasses
from decodekit.constraints.utf8 import MAX_CODE_POINT, Ranges, invert, normalise
from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError

Flavour: TypeAlias = Literal["python", "ecma"]

MAX_PATTERN_LENGTH: Final = 200_000
MAX_GROUP_DEPTH: Final = 100
MAX_REPEAT: Final = 2**32


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One code point out of a set, which may be empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """The items one after the other; none for the empty text."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternatives:
    """Any of the options."""

    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """The item `min` to `max` times (None: no bound). Greedy and lazy have the same texts."""

    item: Tree
    min: int
    max: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead:
    """Nothing, provided that what follows begins (or does not begin) with the item."""

    item: Tree
    is_negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Lookbehind:
    """Nothing, provided that what was read ends (or does not end) with the item."""

    item: Tree
    is_negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    r"""Nothing, provided that the place is right.

    `kind` is "start", "end", "last line" (the end, or before a newline that ends the text), "boundary" or "inside".
    """

    kind: Literal["start", "end", "last line", "boundary", "inside"]


Tree: TypeAlias = Chars | Sequence | Alternatives | Repeated | Lookahead | Lookbehind | Assertion

_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CONTROL: Final = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}


@lru_cache(maxsize=512)
def parse(pattern: str, flavour: Flavour = "python") -> Tree:
    """The tree of a pattern.

    Raises:
        InvalidConstraintError: the pattern is malformed.
        UnsupportedSchemaError: it uses back-references, flags, or another thing that is refused by name.
        ResourceLimitError: it is longer than `MAX_PATTERN_LENGTH` or nested deeper than `MAX_GROUP_DEPTH`.
    """
    if flavour not in ("python", "ecma"):
        raise InvalidConstraintError(f"no flavour {flavour!r} of regular expressions", hint='"python" or "ecma"')
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ResourceLimitError(f"the pattern has {len(pattern):,} characters, at most {MAX_PATTERN_LENGTH:,} may be")
    parser = _Parser(pattern, flavour)
    tree = parser.alternatives()
    if parser.position < len(pattern):
        parser.fail("this ')' closes no group", 0)
    return tree


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str, flavour: Flavour) -> None:
        self.pattern, self.position, self.depth = pattern, 0, 0
        self.is_ecma = flavour == "ecma"

    # --- errors and small steps ---

    def _place(self, back: int) -> str:
        place = self.position - back
        low, high = max(place - 30, 0), place + 30
        line = "".join(c if c.isprintable() else "·" for c in self.pattern[low:high])
        return f"character {place + 1} of the pattern\n      {line}\n      {' ' * (place - low)}^"

    def fail(self, cause: str, back: int = 1) -> NoReturn:
        """The pattern is malformed `back` characters before the position."""
        raise InvalidConstraintError(cause, at=self._place(back))

    def refuse(
        self, what: str, hint: str, back: int = 1, error: type[ConstraintError] = UnsupportedSchemaError
    ) -> NoReturn:
        """The pattern is understood but not supported."""
        raise error(f"{what} not supported in a pattern", at=self._place(back), hint=hint)

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.position)

    def take(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.position += len(text)
        return True

    def next(self, what: str) -> str:
        if self.position == len(self.pattern):
            self.fail(f"the pattern ends inside {what}", 0)
        self.position += 1
        return self.pattern[self.position - 1]

    # --- structure ---

    def alternatives(self) -> Tree:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def sequence(self) -> Tree:
        items: list[Tree] = []
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|)":
            start = self.position
            item = self.atom()
            if item is None:
                continue
            quantified = self.quantifier(item, start)
            items.append(quantified)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def quantifier(self, item: Tree, start: int) -> Tree:
        begin = self.position
        bounds = self.bounds()
        if bounds is None:
            return item
        if isinstance(item, Assertion | Lookbehind) or (isinstance(item, Lookahead) and self.is_ecma):
            self.position = begin
            self.fail("an assertion cannot be repeated", 0)
        low, high = bounds
        if high is not None and high < low:
            self.fail(f"the counts {low} and {high} are in the wrong order")
        self.take("?")  # lazy: which of the texts is found first, not which texts there are
        if not self.is_ecma and self.peek("+"):
            self.refuse("possessive quantifiers are", "the same quantifier without the second '+'", 0)
        after = self.position
        if self.bounds() is not None:
            self.position = after
            self.fail("there is nothing to repeat: two quantifiers in a row", 0)
        return Repeated(item, low, high)

    def bounds(self) -> tuple[int, int | None] | None:
        for sign, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return low, high
        start = self.position
        if not self.take("{"):
            return None
        first = self.digits()
        if self.take(","):
            second = self.digits()
            counts = (int(first or "0"), int(second) if second else None)
            is_valid = bool(first) or not self.is_ecma
        else:
            counts = (int(first or "0"), int(first or "0"))
            is_valid = bool(first)
        if not is_valid or not self.take("}"):
            self.position = start  # a brace that begins no quantifier stands for itself
            return None
        if max(counts[0], counts[1] or 0) > MAX_REPEAT:
            self.refuse(f"a count above {MAX_REPEAT} is", "a smaller count, or none", error=ResourceLimitError)
        return counts

    def digits(self) -> str:
        start = self.position
        while self.position < len(self.pattern) and self.pattern[self.position] in "0123456789":
            self.position += 1
        if self.position - start > 20:
            self.fail("a number with more than 20 digits")
        return self.pattern[start : self.position]

    def atom(self) -> Tree | None:
        """One item, or None for a comment."""
        char = self.next("the pattern")
        if char == "(":
            return self.group()
        if char == "[":
            return Chars(self.char_class())
        if char == ".":
            return Chars(charclasses.NOT_LINE_END if self.is_ecma else charclasses.NOT_NEWLINE)
        if char == "^":
            return Assertion("start")
        if char == "$":
            return Assertion("end" if self.is_ecma else "last line")
        if char == "\\":
            return self.escape()
        if char in "*+?":
            self.fail("there is nothing to repeat before this quantifier")
        if char == "{":
            self.position -= 1
            if self.bounds() is not None:
                self.fail("there is nothing to repeat before this quantifier")
            self.position += 1
        return Chars(_one(ord(char)))

    def group(self) -> Tree | None:
        opening = self.position - 1
        kind: type[Lookahead | Lookbehind] | None = None
        is_negative = False
        if self.take("?"):
            if self.take(":"):
                pass
            elif self.peek("=") or self.peek("!"):
                kind, is_negative = Lookahead, self.next("a group") == "!"
            elif self.peek("<=") or self.peek("<!"):
                self.position += 1
                kind, is_negative = Lookbehind, self.next("a group") == "!"
            elif self.take("<" if self.is_ecma or self.peek("<") else "P<"):
                self.name()
            elif self.peek("P="):
                self.refuse("back-references are", "writing the repeated part again", 2)
            elif self.peek("("):
                self.refuse("conditional groups are", "an alternative", 2)
            elif self.peek(">"):
                self.refuse("atomic groups are", "a plain group", 2)
            elif not self.is_ecma and self.take("#"):
                while not self.take(")"):
                    self.next("a comment")
                return None
            else:
                self.refuse("inline flags and this kind of group are", "a plain group, (?:...)", 2)
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            self.refuse(f"groups nested deeper than {MAX_GROUP_DEPTH} are", "fewer groups", error=ResourceLimitError)
        inner = self.alternatives()
        self.depth -= 1
        if not self.take(")"):
            self.position = opening
            self.fail("this group is not closed", 0)
        return inner if kind is None else kind(inner, is_negative)

    def name(self) -> None:
        start = self.position
        while not self.take(">"):
            self.next("the name of a group")
        if not self.pattern[start : self.position - 1].isidentifier():
            self.fail("the name of a group must be an identifier")

    # --- escapes and classes ---

    def escape(self) -> Tree:
        """What follows a backslash outside of a class."""
        char = self.next("an escape")
        if char == "b":
            return Assertion("boundary")
        if char == "B":
            return Assertion("inside")
        if not self.is_ecma and char in "AZ":
            return Assertion("start" if char == "A" else "end")
        if char == "k" and self.peek("<"):
            self.refuse("back-references are", "writing the repeated part again", 2)
        if char in "123456789":
            number = char + re.match("[0-9]*", self.pattern[self.position :]).group()  # type: ignore[union-attr]
            if not self.is_ecma or len(number) > 6 or int(number) <= self.num_groups():
                self.refuse("back-references are", "writing the repeated part again", 2)
        return Chars(self.class_escape(char))

    def num_groups(self) -> int:
        """The groups of the whole pattern that a number could refer to."""
        parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?<(?![=!])", self.pattern, re.DOTALL)
        return sum(part[0] == "(" for part in parts)

    def class_escape(self, char: str) -> Ranges:
        """The set of an escape that may stand in a class too; `char` was taken."""
        if char in "dDwWsS":
            space = charclasses.ECMA_SPACE if self.is_ecma else charclasses.ASCII_SPACE
            ranges = {"d": charclasses.DIGIT, "w": charclasses.WORD, "s": space}[char.lower()]
            return invert(ranges) if char.isupper() else ranges
        if char in "pP":
            return self.unicode_property(char == "P")
        if char in _CONTROL:
            return _one(_CONTROL[char])
        if char == "a" and not self.is_ecma:
            return _one(0x07)
        if char == "0" or (self.is_ecma and char in "1234567"):
            return _one(self.octal(char))
        if char == "x":
            return _one(self.hexadecimal(2))
        if char == "u":
            return _one(self.unicode_escape())
        if char == "U" and not self.is_ecma:
            return _one(self.hexadecimal(8))
        if char == "c" and self.is_ecma:
            letter = self.next("a control escape")
            if not (letter.isascii() and letter.isalpha()):
                self.fail("a control escape is \\c and a letter")
            return _one(ord(letter) % 32)
        if self.is_ecma and char in "89":
            return _one(ord(char))
        if char.isalnum() and char.isascii():
            hint = "^ and $" if char in "AzZG" else f"{char!r} without the backslash, if the character is meant"
            self.refuse(f"the escape \\{char} is", hint, 2)
        return _one(ord(char))

    def octal(self, first: str) -> int:
        r"""``\0`` and up to two more octal digits; in ECMA up to ``\377`` (annex B.1.2, without the flag ``u``)."""
        value = int(first)
        for _ in range(2):
            if self.position == len(self.pattern) or self.pattern[self.position] not in "01234567":
                break
            if self.is_ecma and 8 * value + int(self.pattern[self.position]) > 0o377:
                break
            value = 8 * value + int(self.next("an escape"))
        return value

    def hexadecimal(self, num_digits: int) -> int:
        text = self.pattern[self.position : self.position + num_digits]
        if len(text) < num_digits or not set(text) <= _HEX:
            self.fail(f"{num_digits} hexadecimal digits must follow")
        self.position += num_digits
        return self.code_point(int(text, 16))

    def unicode_escape(self) -> int:
        if self.is_ecma and self.take("{"):
            digits = ""
            while not self.take("}"):
                digits += self.next("a Unicode escape")
            if not digits or not set(digits) <= _HEX or len(digits) > 16:
                self.fail("a Unicode escape is \\u{ hexadecimal digits }")
            return self.code_point(int(digits, 16))
        unit = self.hexadecimal(4)
        if self.is_ecma and 0xD800 <= unit <= 0xDBFF and self.peek("\\u"):
            low = self.pattern[self.position + 2 : self.position + 6]
            if len(low) == 4 and set(low) <= _HEX and 0xDC00 <= int(low, 16) <= 0xDFFF:
                self.position += 6
                return 0x10000 + ((unit - 0xD800) << 10) + int(low, 16) - 0xDC00
        return unit

    def code_point(self, value: int) -> int:
        if value > MAX_CODE_POINT:
            self.fail(f"U+{value:X} is no code point")
        return value

    def unicode_property(self, is_negated: bool) -> Ranges:
        if not self.is_ecma:
            self.refuse("the escape \\p is", 'flavour="ecma", which has Unicode properties', 2)
        if self.take("{"):
            name = ""
            while not self.take("}"):
                name += self.next("a Unicode property")
        else:
            name = self.next("a Unicode property")  # \pL, as other dialects write it
        ranges = charclasses.unicode_property(name)
        if ranges is None:
            self.refuse(f"the Unicode property {name!r} is", "a general category such as L, Lu, Nd, P or Letter")
        return invert(ranges) if is_negated else ranges

    def char_class(self) -> Ranges:
        opening = self.position - 1
        is_negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while True:
            if self.position == len(self.pattern):
                self.position = opening
                self.fail("this character class is not closed", 0)
            if self.peek("]") and not (is_first and not self.is_ecma):  # in Python, a first ] is a member
                self.position += 1
                break
            is_first = False
            low = self.class_member()
            if (
                self.peek("-")
                and not self.pattern.startswith("-]", self.position)
                and self.position + 1 < len(self.pattern)
            ):
                self.position += 1
                high = self.class_member()
                if _is_one(low) and _is_one(high):
                    if high[0][0] < low[0][0]:
                        self.fail("the range of characters is in the wrong order")
                    ranges.append((low[0][0], high[0][0]))
                    continue
                if not self.is_ecma:
                    self.fail("a class such as \\w is no end of a range")
                ranges += (*low, (0x2D, 0x2D), *high)  # [\w-.]: the older ECMA leniency takes the hyphen as a member
                continue
            ranges += low
        return invert(ranges) if is_negated else normalise(ranges)

    def class_member(self) -> Ranges:
        char = self.next("a character class")
        if char != "\\":
            return _one(ord(char))
        char = self.next("an escape")
        if char == "b":
            return _one(0x08)
        if char in "123456789" and not self.is_ecma:
            self.refuse("octal escapes are", "\\x and two hexadecimal digits", 2)
        return self.class_escape(char)


def _one(point: int) -> Ranges:
    return ((point, point),)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
