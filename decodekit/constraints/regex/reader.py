"""Reading a pattern character by character: the place, what is there, and errors that point at it."""

from __future__ import annotations

from typing import Final, Literal, NoReturn, TypeAlias

from decodekit.errors import ConstraintError, InvalidConstraintError, UnsupportedSchemaError

Flavour: TypeAlias = Literal["python", "ecma"]

_SHOWN: Final = 30  # characters of the pattern that an error shows on each side


class Reader:
    """A pattern with a position, its flavour, and the flags that hold here."""

    def __init__(self, pattern: str, flavour: Flavour, flags: frozenset[str]) -> None:
        self.pattern, self.position, self.flags = pattern, 0, flags
        self.is_ecma = flavour == "ecma"
        self.is_strict = self.is_ecma and "u" in flags
        """Whether the leniency of ECMA-262, annex B.1.2, is off."""

    @property
    def is_at_end(self) -> bool:
        """Whether the whole pattern was read."""
        return self.position == len(self.pattern)

    def fail(self, cause: str, hint: str, back: int = 1) -> NoReturn:
        """The pattern is malformed `back` characters before the position."""
        raise InvalidConstraintError(cause, at=self._place(back), hint=hint)

    def refuse(
        self, what: str, hint: str, back: int = 1, error: type[ConstraintError] = UnsupportedSchemaError
    ) -> NoReturn:
        """The pattern is understood but not supported."""
        raise error(f"{what} not supported in a pattern", at=self._place(back), hint=hint)

    def _place(self, back: int) -> str:
        place = self.position - back
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
