"""Where white space may stand between the tokens of JSON.

Each policy is a handful of languages; the frames of objects and arrays ask for them by the place. There is never any
white space before the first or after the last byte of the text: it carries nothing, and a text that cannot go on
tells the decoding loop that it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints import ir
from decodekit.constraints.ir import Node
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
