"""Where white space may stand between the tokens of JSON.

Each policy is a handful of languages; joined to the punctuation between them they are the lexemes that the frames of
objects and arrays call, the same for all schemas. There is never any white space before the first or after the last
byte of the text: it carries nothing, and a text that cannot go on tells the decoding loop that it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints import ir
from decodekit.constraints.ir import Node
from decodekit.constraints.network import END, Lexeme, Read
from decodekit.errors import OptionError

Whitespace: TypeAlias = Literal["any", "compact"] | int
"""``"any"``: up to `MAX_GAP` blanks in every gap; ``"compact"``: none; n: as ``json.dumps(indent=n)``."""

MAX_GAP: Final = 64
"""Most white space in one gap, in bytes: enough for a line break and deep indentation, and an end for a loop."""

_BLANKS: Final = ir.repeat(ir.byte_set(b" \t\n\r"), 0, MAX_GAP)


@dataclass(frozen=True)
class Gaps:
    """The white space around one object or array.

    Attributes:
        first: after the opening bracket, before a member. `close`: before the closing bracket after a member.
        close_empty: between the brackets of an empty one.
        before_comma, after_comma: around a comma. `before_colon`, `after_colon`: around a colon.
    """

    first: Node
    close: Node
    close_empty: Node
    before_comma: Node
    after_comma: Node
    before_colon: Node
    after_colon: Node


@lru_cache(maxsize=4096)
def gaps(whitespace: Whitespace, depth: int) -> Gaps:
    """The gaps of an object or array that is `depth` brackets deep (0 for the outermost)."""
    if whitespace == "any":
        return Gaps(*(_BLANKS,) * 7)
    if whitespace == "compact":
        return Gaps(*(ir.EPSILON,) * 7)
    inner = ir.literal(b"\n" + b" " * (whitespace * (depth + 1)))
    outer = ir.literal(b"\n" + b" " * (whitespace * depth))
    return Gaps(inner, outer, ir.EPSILON, ir.EPSILON, inner, ir.EPSILON, ir.literal(b" "))


@dataclass(frozen=True)
class Punctuation:
    """What stands between the values of one object or array, with the white space around it.

    Attributes:
        first_key, next_key: up to and with the quote that begins the key of a member.
        colon: from a key to its value.
        first_item, next_item: up to an item.
        close_object, close_array, close_empty_object, close_empty_array: the end, with or without something inside.
    """

    first_key: Lexeme
    next_key: Lexeme
    colon: Lexeme
    first_item: Lexeme
    next_item: Lexeme
    close_object: Read
    close_empty_object: Read
    close_array: Read
    close_empty_array: Read


@lru_cache(maxsize=4096)
def punctuation(whitespace: Whitespace, depth: int) -> Punctuation:
    """The punctuation of an object or array that is `depth` brackets deep (0 for the outermost)."""
    around = gaps(whitespace, depth)
    quote, comma = ir.literal(b'"'), ir.concat(around.before_comma, ir.literal(b","), around.after_comma)

    def close(gap: Node, bracket: bytes) -> Read:
        return Read(ir.concat(gap, ir.literal(bracket)), reader=END)

    return Punctuation(
        first_key=Lexeme(ir.concat(around.first, quote)),
        next_key=Lexeme(ir.concat(comma, quote)),
        colon=Lexeme(ir.concat(around.before_colon, ir.literal(b":"), around.after_colon)),
        first_item=Lexeme(around.first),
        next_item=Lexeme(comma),
        close_object=close(around.close, b"}"),
        close_empty_object=close(around.close_empty, b"}"),
        close_array=close(around.close, b"]"),
        close_empty_array=close(around.close_empty, b"]"),
    )


def check(whitespace: object) -> None:
    """Refuse what is no policy.

    Raises:
        OptionError: not ``"any"``, ``"compact"`` or an indentation of 0 to 16.
    """
    is_indentation = isinstance(whitespace, int) and not isinstance(whitespace, bool) and 0 <= whitespace <= 16
    if whitespace not in ("any", "compact") and not is_indentation:
        raise OptionError(
            f"{whitespace!r} is no white space policy",
            at="whitespace",
            hint='"any", "compact" or an indentation such as 2',
        )
