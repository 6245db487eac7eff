r"""The syntax of regular expressions: from a pattern to a tree over sets of code points.

Two flavours. ``"python"`` is the syntax of `re` for `str`, where ``\d \w \s \b`` are about all of Unicode unless the
flag ``a`` is set, with what `re` refuses and Rust's `regex` and other dialects have: Unicode properties, groups as
``(?<name>a)``, flags that hold from where they stand, ``\x{61}``, ``\u{61}`` and ``\z``. ``"ecma"`` is ECMA-262 over
code points, where ``\d \w \s \b`` are ASCII; without the flag ``u`` it has the older leniency for stray braces,
brackets and escapes (annex B.1.2), which is what patterns in JSON Schemas use. What is not regular, or not yet
understood, is refused by name with its place; nothing is ignored.
"""

from __future__ import annotations

import re
from typing import Final

from decodekit.constraints.language.utf8 import EVERYTHING, invert
from decodekit.constraints.memory_account import remembered
from decodekit.constraints.regex import charclasses
from decodekit.constraints.regex.escapes import Flavour, PatternReader, one
from decodekit.constraints.regex.tree import (
    Alternation,
    Assertion,
    Atomic,
    Capture,
    Chars,
    Concatenation,
    Lookahead,
    Lookbehind,
    Quantified,
    Tree,
    width,
)
from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError

MAX_PATTERN_LENGTH: Final = 200_000
MOST_CHARACTERS: Final = 1 << 18
"""Of the patterns of which is remembered what was made of them."""
MAX_GROUP_DEPTH: Final = 100
MAX_REPEAT: Final = 2**32
PYTHON_MAX_REPEAT: Final = 2**32 - 2
"""The greatest count of `re`."""

_FLAGS: Final[dict[Flavour, str]] = {"python": "aimsux", "ecma": "imsu"}
_REFUSED_FLAGS: Final[dict[Flavour, dict[str, str]]] = {
    "python": {"L": "'a', or no flag: texts are Unicode", "l": "'a', or no flag: texts are Unicode", "t": "no flag"},
    "ecma": {"v": "'u', and classes without set notation", "d": "no flag", "g": "no flag", "y": "no flag"},
}
_BLANKS: Final = " \t\n\r\v\f"  # what the flag x ignores
_BRACES: Final = re.compile("{([0-9]*)(,?)([0-9]*)}")
_COUNTS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(pattern: str, flavour: Flavour = "python", flags: str = "") -> Tree:
    """The tree of a pattern.

    Arguments and errors are those of `Regex`. A pattern is too long with more than `MAX_PATTERN_LENGTH` characters, too
    deep with more than `MAX_GROUP_DEPTH` groups in each other; a count is at most `MAX_REPEAT`.
    """
    return _read(pattern, flavour, flags)[0]


def other_readings(pattern: str, flavour: Flavour = "python", flags: str = "") -> tuple[str, ...]:
    """The parts of a Python pattern that other dialects read otherwise: those for which `re` warns of sets in sets."""
    return _read(pattern, flavour, flags)[1]


@remembered(MOST_CHARACTERS)
def _read(pattern: str, flavour: Flavour, flags: str) -> tuple[Tree, tuple[str, ...]]:
    if flavour not in ("python", "ecma"):
        raise InvalidConstraintError(f"no flavour {flavour!r} of regular expressions", hint='"python" or "ecma"')
    parser = _PatternParser(pattern, flavour, flags)
    return parser.whole(), tuple(parser.other_readings)


@remembered(MOST_CHARACTERS)
def parse_groups(pattern: str) -> tuple[Tree, int]:
    """The tree of a pattern of ECMA-262 with its groups and back-references, and the number of groups.

    Errors are those of `parse`, but for what is about back-references; one by name has to name a group.
    """
    parser = _PatternParser(pattern, "ecma", "")
    return parser.whole_with_groups(), parser.num_kept


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern of ECMA-262, with references only to groups that it has, and no name twice."""
    try:
        parser = _PatternParser(text, "ecma", "")
        parser.whole_with_groups()
    except ConstraintError:
        return False
    return not parser.num_strays and all(len(numbers) == 1 for numbers in parser.numbers.values())


def _checked(flags: str, flavour: Flavour) -> frozenset[str]:
    if not isinstance(flags, str):
        raise InvalidConstraintError(f"flags are letters, not {flags!r:.80}", at="flags", hint='flags="i"')
    for flag in flags:
        if flag in _REFUSED_FLAGS[flavour]:
            hint = _REFUSED_FLAGS[flavour][flag]
            raise UnsupportedSchemaError(f"the flag {flag!r} is not supported in a pattern", at="flags", hint=hint)
        if flag not in _FLAGS[flavour]:
            raise InvalidConstraintError(
                f"no flag {flag!r} of regular expressions", at="flags", hint=f"letters out of {_FLAGS[flavour]!r}"
            )
    if flavour == "python" and {"a", "u"} <= set(flags):
        raise InvalidConstraintError("the flags 'a' and 'u' exclude each other", at="flags", hint="one of them")
    return frozenset(flags)


class _PatternParser(PatternReader):
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str, flavour: Flavour, flags: str) -> None:
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise ResourceLimitError(
                f"the pattern has {len(pattern):,} characters, at most {MAX_PATTERN_LENGTH:,} may be",
                hint="several constraints, or a grammar",
            )
        super().__init__(pattern, flavour, _checked(flags, flavour))
        self.depth = 0
        self.numbers: dict[str, list[int]] = {}  # of the groups, by name
        self.num_kept = 0

    def whole(self) -> Tree:
        tree = self.alternatives()
        if not self.is_at_end:
            self.fail("this ')' closes no group", "\\) for the character itself", 0)
        return tree

    def whole_with_groups(self) -> Tree:
        self.keeps_groups = True
        tree = self.whole()
        for key, reference in self.references:
            numbers = (key,) if isinstance(key, int) else tuple(self.numbers.get(key, ()))
            if not numbers:
                self.fail(f"no group has the name {key!r:.80}", "the name of a group", 0)
            object.__setattr__(reference, "numbers", numbers)  # groups may stand behind their references
        return tree

    def alternatives(self) -> Tree:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def sequence(self) -> Tree:
        """Items up to a bar or the end of the group."""
        items: list[Tree] = []
        target: Tree | None = None  # of a quantifier
        is_repeated = False
        while not self.is_at_end and self.pattern[self.position] not in "|)":
            if self.skip():
                continue
            start = self.position
            bounds = self.bounds()
            if bounds is not None:
                items[-1:] = [self.repeated(target, is_repeated, bounds, start)]
                is_repeated = True
                continue
            target, is_repeated = self.atom(), False
            if target is not None:
                items.append(target)
        return items[0] if len(items) == 1 else Concatenation(tuple(items))

    def skip(self) -> bool:
        """Read a comment, or what the flag ``x`` ignores. A backslash and what follows it are one, as in `re`."""
        opening = self.position
        if "x" in self.flags and self.take_while(_BLANKS):
            return True
        if not self.is_ecma and self.peek("(?#"):
            end = ")"
        elif "x" in self.flags and self.peek("#"):
            end = "\n"
        else:
            return False
        while not self.is_at_end:
            char = self.next("a comment")
            if char == "\\":
                self.next("an escape")
            elif char == end:
                return True
        if end == ")":
            self.fail("this comment is not closed", "a ) at its end", self.position - opening)
        return True

    def repeated(self, item: Tree | None, is_repeated: bool, bounds: tuple[int, int | None], start: int) -> Tree:
        """The item with its quantifier, which began at `start` and whose counts were read."""
        back = self.position - start
        if item is None:
            self.fail("there is nothing to repeat before this quantifier", "a backslash for the character itself", back)
        if is_repeated:
            self.fail("there is nothing to repeat: two quantifiers in a row", "(?:...) around the first one", back)
        if isinstance(item, Assertion) or (self.is_ecma and isinstance(item, Lookahead | Lookbehind)):
            self.fail("an assertion cannot be repeated", "the assertion without a quantifier", back)
        low, high = bounds
        if high is not None and high < low:
            self.fail(f"the counts {low} and {high} are in the wrong order", "the smaller one first")
        if isinstance(item, Lookahead | Lookbehind):  # once is as good as often
            item, low, high = (item, 1, 1) if low else (Concatenation(()), 0, 0)
        if self.take("?"):
            return Quantified(item, low, high, is_lazy=True)
        if not self.is_ecma and self.take("+"):  # each round keeps what it found first, as `re` does
            return Atomic(Quantified(_atomic(item), low, high))
        return Quantified(item, low, high)

    def bounds(self) -> tuple[int, int | None] | None:
        """The counts of a quantifier, or None (and nothing read) if none begins here."""
        start = self.position
        sign = self.pattern[start]
        if sign in _COUNTS:
            self.position += 1
            return _COUNTS[sign]
        found = _BRACES.match(self.pattern, start)
        if found is None or not (found[1] or (found[2] and not self.is_ecma)):
            return None  # a brace that begins no quantifier stands for itself
        self.position = found.end()
        return self.count(found[1]) or 0, self.count(found[3] if found[2] else found[1])

    def count(self, digits: str) -> int | None:
        """The number that the digits say, None if there are none."""
        most = MAX_REPEAT if self.is_ecma else PYTHON_MAX_REPEAT
        digits = digits.lstrip("0") or digits[:1]
        if len(digits) > 10 or int(digits or "0") > most:
            self.refuse(f"a count above {most} is", "a smaller count, or none", error=ResourceLimitError)
        return int(digits) if digits else None

    def atom(self) -> Tree | None:
        """One item, or None for flags."""
        char = self.next("the pattern")
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_class()
        if char == ".":
            ends = charclasses.ECMA_LINE_ENDS if self.is_ecma else charclasses.NEWLINE
            return Chars(EVERYTHING if "s" in self.flags else invert(ends))
        if char in "^$":
            return self.anchor(char)
        if char == "\\":
            return self.escape()
        if self.is_strict and char in "{}]":
            self.fail(f"the flag 'u' lets no {char!r} stand alone", f"\\{char}")
        return self.chars(one(ord(char)))

    def anchor(self, char: str) -> Assertion:
        ends = charclasses.ECMA_LINE_ENDS if self.is_ecma else charclasses.NEWLINE
        if "m" in self.flags:
            return Assertion("line start" if char == "^" else "line end", ends)
        if char == "^":
            return Assertion("start")
        return Assertion("end") if self.is_ecma else Assertion("last line", ends)

    # --- groups ---

    def group(self) -> Tree | None:
        """A group, or None for flags; its parenthesis was taken."""
        opening = self.position - 1
        flags = self.flags
        kind = self.kind_of_group()
        number = self.num_kept
        if self.keeps_groups and not kind:
            self.num_kept += 1
        if kind == "flags":
            return None
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            self.refuse(f"groups nested deeper than {MAX_GROUP_DEPTH} are", "fewer groups", error=ResourceLimitError)
        inner = self.alternatives()
        self.depth -= 1
        if not self.take(")"):
            hint = "a ) at its end, or \\( for the character itself"
            self.fail("this group is not closed", hint, self.position - opening)
        self.flags = flags
        if kind in ("?=", "?!"):
            return Lookahead(inner, kind == "?!")
        if kind in ("?<=", "?<!"):
            low, high = width(inner)
            if not self.is_ecma and low != high:
                cause = "a lookbehind of Python matches texts of one length only"
                self.fail(cause, "several, one for each length", self.position - opening)
            return Lookbehind(inner, kind == "?<!")
        if kind == "?>":
            return _atomic(inner)
        if self.keeps_groups and not kind:
            return Capture(inner, number)
        return inner if not isinstance(inner, Assertion | Lookahead | Lookbehind) else Concatenation((inner,))

    def kind_of_group(self) -> str:
        """The mark between the parenthesis and the pattern of the group; "flags" if there is no such pattern."""
        if not self.take("?"):
            return ""
        for kind in (":", "=", "!", "<=", "<!"):
            if self.take(kind):
                return "?" + kind
        if not self.is_ecma and self.take(">"):
            return "?>"
        if self.take("<") or (not self.is_ecma and self.take("P<")):
            self.name()
            return ""
        if self.peek("P="):
            self.refuse_reference()
        if self.peek("("):
            self.refuse("conditional groups are", "an alternative", 2)
        if self.peek(">"):
            self.refuse("atomic groups are", "a plain group", 2)
        if not self.is_at_end and (self.peek("-") or self.pattern[self.position].isalpha()) and not self.peek("P"):
            return self.set_flags()
        return self.refuse("this kind of group is", "a plain group, (?:...)", 2)

    def name(self) -> None:
        name = self.take_until(">", "the name of a group")
        if not name.replace("$", "_" if self.is_ecma else "$").isidentifier():
            self.fail("the name of a group must be an identifier", "letters, digits and _", len(name) + 1)
        if name in self.numbers and not self.is_ecma:
            self.fail(f"two groups have the name {name!r:.80}", "another name", len(name) + 1)
        self.numbers.setdefault(name, []).append(self.num_kept)

    def set_flags(self) -> str:
        """Flags for the group, or for what follows in the group around them."""
        start = self.position
        added, removed = self.letters(), ""
        has_minus = self.take("-")
        if has_minus:
            removed = self.letters(is_removed=True)
            if not removed and not (self.is_ecma and added):
                self.fail("a flag must follow", "(?-i:...) and the like", 0)
        if set(added) & set(removed):
            self.fail("a flag is turned on and off", "each flag once", 0)
        if {"a", "u"} <= set(added):
            self.fail("the flags 'a' and 'u' exclude each other", "one of them", 0)
        holds_from_here = self.take(")")
        if holds_from_here and self.is_ecma:
            self.position = start
            self.refuse("inline flags for a whole pattern are", "(?i:...), or the argument flags of Regex")
        if not holds_from_here and not self.take(":"):
            self.fail("flags must be followed by ':'", "(?i:...)", 0)
        kept = self.flags - {"a", "u"} if {"a", "u"} & set(added) and not self.is_ecma else self.flags
        self.flags = (kept | set(added)) - set(removed)
        return "flags" if holds_from_here else "?:"

    def letters(self, is_removed: bool = False) -> str:
        allowed = "ims" if self.is_ecma else "imsx" if is_removed else "aimsux"
        letters = self.take_while(allowed)
        if not self.is_at_end and self.pattern[self.position] not in "-:)":
            flag = self.next("flags")
            if not self.is_ecma and flag in "aLut":
                self.refuse(f"the flag {flag!r} is", "other flags")
            self.fail(f"no flag {flag!r} of a group", f"letters out of {allowed!r}")
        if self.is_ecma and len(set(letters)) < len(letters):
            self.fail("a flag stands twice", "each flag once", 0)
        return letters


def _atomic(item: Tree) -> Tree:
    """An atomic group, unless there is but one way through it."""
    parts = item.items if isinstance(item, Concatenation) else (item,)
    return item if all(isinstance(part, Chars) for part in parts) else Atomic(item)
