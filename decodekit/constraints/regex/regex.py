"""Regular expressions as a constraint of their own, and as languages over any spelling of the characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import remembered
from decodekit.constraints.network import Frame, Lexeme
from decodekit.constraints.regex.escapes import Flavour
from decodekit.constraints.regex.regex_language import Encode, Lowering
from decodekit.constraints.regex.regex_language import Loop as Loop
from decodekit.constraints.regex.syntax import MOST_CHARACTERS, other_readings, parse
from decodekit.constraints.regex.tree import Tree
from decodekit.errors import InvalidConstraintError, warn

_BYTES_PER_CHARACTER: Final = 256  # measured with tracemalloc on alternatives of random words


@dataclass(frozen=True, slots=True)
class Regex(Constraint):
    r"""Texts that the pattern matches as a whole, as `re.fullmatch` does.

    Args:
        pattern: the pattern.
        flavour: ``"python"``, the syntax of `re` and of what other dialects have besides (``\p{L}``, ``(?<name>a)``,
            ``a(?i)b``), or ``"ecma"``, ECMA-262, as in JSON Schema.
        flags: letters. Python: ``i`` (case does not matter), ``m`` (``^`` and ``$`` at every line), ``s`` (the dot
            matches line ends), ``x`` (blanks and comments), ``a`` (``\d \w \s \b`` and the case know only ASCII) or
            ``u`` (all of Unicode: the default). ECMA: ``i``, ``m``, ``s``, and ``u`` (its strict syntax and its case
            folding; patterns are over code points in any case).

    What other dialects read otherwise, as ``[[:alpha:]]`` and ``[a&&b]``, is read as in `re`, with a warning.

    As in `re`, ``\d`` matches the digits of every script: ``flags="a"`` or ``[0-9]`` if the text is read by a program.
    The known differences from `re` are inconsistencies there, all with the flag ``i`` and beyond U+FFFF: a capital
    letter in a class or between bars is forgotten by `re`, and a range that ends there takes U+0149 for U+02BC and
    ignores the flag ``a`` (from Python 3.14 on only U+0149 is left). Here such letters and ranges are like all others.

    Raises:
        InvalidConstraintError: the pattern or the flags are malformed; the error shows where.
        UnsupportedSchemaError: back-references and other things that are refused by name.
        ResourceLimitError: the pattern is too long, too deep, or has too many assertions (`regex_language`).
    """

    pattern: str
    flavour: Flavour = "python"
    flags: str = ""

    def __post_init__(self) -> None:
        for name in ("pattern", "flavour", "flags"):
            if not isinstance(getattr(self, name), str):
                raise InvalidConstraintError(
                    f"{name}={getattr(self, name)!r:.60} is no text", at=name, hint='Regex("[0-9]+")'
                )
        for reading in other_readings(self.pattern, self.flavour, self.flags):
            warn(reading)

    @property
    def num_bytes(self) -> int:
        """About how much memory its tree and its language take."""
        return _BYTES_PER_CHARACTER * len(self.pattern)

    def root(self) -> Frame:
        """One lexeme."""
        return Lexeme(full_match(self.pattern, self.flavour, self.flags))

    def parse(self, text: str) -> str:
        """The text itself."""
        node = full_match(self.pattern, self.flavour, self.flags)
        if not ir.matches(node, text.encode("utf-8", errors="surrogatepass")):
            raise ValueError(f"{text!r:.200} does not match {self.pattern!r:.200}")
        return text


@remembered(MOST_CHARACTERS)
def full_match(pattern: str, flavour: Flavour = "python", flags: str = "", encode: Encode = utf8.charset) -> Node:
    """The texts that the pattern matches from start to end.

    Arguments and errors are those of `Regex`. `encode` gives the spellings of one character out of a set: a pure
    function, the same object for the same spelling.
    """
    return Lowering(encode, parse(pattern, flavour, flags)).full_match()


@remembered(MOST_CHARACTERS)
def parse_search(pattern: str, flavour: Flavour = "ecma", encode: Encode = utf8.charset, *, flags: str = "") -> Node:
    """The texts in which the pattern matches somewhere, as JSON Schema's ``pattern`` means it.

    Arguments and errors are those of `full_match`.
    """
    return search_of(parse(pattern, flavour, flags), encode)


def search_of(tree: Tree, encode: Encode) -> Node:
    """`parse_search` of a tree without groups and references."""
    return Lowering(encode, tree).search()
