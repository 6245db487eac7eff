r"""Regular expressions inside JSON strings: ECMA-262 patterns, over all spellings of each character.

Whether a text is such a pattern (the format ``regex``) is asked when the text is whole. Groups nest, names and numbers
refer to each other, and counts and ranges are ordered, so the patterns are not a regular language, and a part of them
as a mask forbids what people write. So the mask admits every text, and a guard asks the parser of `pattern` (see
`schema_guard`). Not accepted are patterns that it refuses by name, such as escapes of letters that mean nothing and a
few Unicode properties; and two groups of one name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeVar

from decodekit.constraints.json_schema.strings import character_search, text
from decodekit.constraints.language import node
from decodekit.constraints.language.node import Node
from decodekit.constraints.memory_account import remembered
from decodekit.constraints.regex import regex, syntax
from decodekit.constraints.regex.pattern_search import PatternProgram, PatternSearch, regular_superset
from decodekit.constraints.regex.syntax import MOST_CHARACTERS, parse_groups
from decodekit.constraints.work_budget import Work
from decodekit.errors import ConstraintError, ResourceLimitError, UnsupportedSchemaError

MAX_PATTERNS: Final = 1_000
"""Bound on the `patternProperties` of one schema that a mask tells apart."""

node.deciders.append(character_search.is_empty)

MAX_WRITTEN: Final = 2_000
"""Bound on the characters of a text that is read as a pattern in the middle of decoding: up to 20 us each."""


_FLAGS: Final = re.compile(r"\(\?([ims]+)\)(.*)", re.DOTALL)
_WORD_OF_SOME: Final = r"\p{L}\p{M}\p{N}\p{Pc}\p{So}\p{Cf}\p{Cn}"
_ALIKE: Final = (
    (r"\\[sS]|\(\?<?[!]", r"[^\x1c-\x1f\x85\ufeff]*"),
    (r"\\D|\[\^[^\]]*\\[dw]|\(\?<?[!]", r"([0-9]|[^\p{Nd}\p{Cn}])*"),
    (r"\\[WbB]|\[\^[^\]]*\\w|\(\?<?[!]", rf"([\x00-\x7f]|[^{_WORD_OF_SOME}])*"),
    (r"\(\?[a-z]*i|\(\?<?[!]", r"[^\u0130\u0131\u017f\u212a]*"),
    (r"\(\?[a-z]*m|\(\?<?[!]", r"[^\r\u2028\u2029]*"),
)
"""Parts of patterns that Rust's `regex`, `re` and ECMA-262 read differently, with the texts where it has no effect."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The texts in which a pattern is found, as far as a mask can tell them.

    Attributes:
        texts: a body language that holds all of them.
        excess: why it holds others, too; None if it does not.
    """

    texts: Node
    excess: ResourceLimitError | None = None

    @property
    def others(self) -> Node:
        """A body language that holds all texts in which the pattern is not found."""
        return text.without(text.BODY, self.texts) if self.excess is None else text.BODY


def searched(pattern: str, *, at: str) -> Searched:
    """The texts in which a pattern is found, where a guard does a `search` for what is not regular or exceeds a limit.

    Raises:
        InvalidConstraintError: the pattern is malformed.
        UnsupportedSchemaError: it has something that is not understood.
        ResourceLimitError: it is too long or its groups are too deep.
    """
    try:
        found = _searched(pattern)
    except ConstraintError as error:
        raise _placed(error, type(error), at) from error
    excess = found.excess
    return found if excess is None else Searched(found.texts, _placed(excess, ResourceLimitError, at))


@remembered(MOST_CHARACTERS)
def _searched(pattern: str) -> Searched:
    try:
        return Searched(regex.parse_search(_in_ecma(pattern), "ecma", text.encode))
    except (UnsupportedSchemaError, ResourceLimitError) as error:
        texts = _superset(pattern)
        if texts is None:
            raise
        return Searched(texts, ResourceLimitError(error.cause, at=error.at, hint=error.hint))


def read_alike(pattern: str) -> Node:
    """Texts in which Rust's `regex` and `re` find a pattern where ECMA-262 does.

    ECMA-262 knows only the digits and letters of ASCII, and other blanks: so ``\\W`` finds less elsewhere.
    """
    return text.meet(*(full_language(texts) for part, texts in _ALIKE if re.search(part, pattern)))


def _in_ecma(pattern: str) -> str:
    """A pattern with its flags as ECMA-262 has them: ``(?i)a`` of `re` and of Rust is ``(?i:a)``."""
    flags = _FLAGS.match(pattern)
    return pattern if flags is None else f"(?{''.join(sorted(set(flags[1])))}:{flags[2]})"


_Error = TypeVar("_Error", bound=ConstraintError)


def _placed(error: ConstraintError, kind: type[_Error], at: str) -> _Error:
    """An error about a pattern, with the place of the pattern."""
    return kind(error.cause, at=at if error.at is None else f"{at}, {error.at}", hint=error.hint)


def _superset(pattern: str) -> Node | None:
    """A body language of all texts in which a pattern is found, and of others; None if it cannot be read at all."""
    try:
        tree, _ = parse_groups(_in_ecma(pattern))
    except ConstraintError:
        return None
    try:
        return regex.Lowering(text.encode, regular_superset(tree)).search()
    except ConstraintError:
        return text.BODY


def check_syntax(pattern: str, *, at: str) -> None:
    """Refuse what `searched` refuses, with its errors, without making a language."""
    try:
        parse_groups(_in_ecma(pattern))
    except ConstraintError as error:
        raise _placed(error, type(error), at) from error


def program(pattern: str) -> PatternProgram:
    """The pattern for a `search`."""
    return PatternProgram(parse_groups(_in_ecma(pattern))[0])


def search(program: PatternProgram, value: str) -> Work[bool]:
    """Whether a pattern is found in a text, by backtracking.

    Raises:
        ResourceLimitError: that takes too many steps.
    """
    return (yield from PatternSearch(program, value).is_found()) if text.is_text(value) else False


def full_language(pattern: str) -> Node:
    """The texts that `pattern` matches as a whole; for patterns of our own."""
    return regex.full_match(pattern, "ecma", encode=text.encode)


def is_pattern(written: str) -> bool:
    """Whether a text is a pattern, with references only to groups that it has.

    Raises:
        ResourceLimitError: it is too long to be told.
    """
    if len(written) > MAX_WRITTEN:
        raise ResourceLimitError(
            f"a text of {len(written):,} characters is not read as a pattern, at most {MAX_WRITTEN:,} may be",
            hint='a "maxLength"',
        )
    return syntax.is_pattern(written)
