"""Where whitespace may stand between the tokens of JSON.

A `Layout` is the whitespace around one object or array: a handful of languages, which joined to the punctuation
between them are the lexemes that frames call, the same for all schemas. A layout names those of the containers inside,
so a policy is the layout of the outermost one. There is never any whitespace before the first or after the last byte
of the text: it carries nothing, and a text that cannot go on tells the decoding loop that it is complete.

The policy ``"natural"`` admits what people and `json.dumps` write::

    {"a":1,"b":[1,2]}        compact
    {"a": 1, "b": [1, 2]}    spaced
    {                        indented by 2, by 4 or by a tab, the same in every line;
      "a": 1,                a container inside may also stand on one line, spaced
      "b": [1, 2]
    }

Which of them it is, the outermost container decides, so a layout can be *open*: it stands for several, and the first
bytes after the bracket or the first key tell them apart. Until then they are followed side by side, and a container
inside is never met before they are settled. So it need not hand up what it decided, and no two parts of a text
disagree.

That a container in indented text may stand on one line is a choice. Language models write short lists so
(``"tags": ["a", "b"]``), which takes fewer tokens than a line for each item, and readers do not mind. It costs one more
alternative, at the byte after an opening bracket.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.network import END, Lexeme, Read
from decodekit.errors import OptionError

Whitespace: TypeAlias = Literal["natural", "any", "compact", "\t"] | int
"""``"natural"``: compact, spaced or indented, of a piece; ``"any"``: up to `MAX_GAP` bytes of it in every gap;
``"compact"``: none; n or a tab: as ``json.dumps(indent=...)``."""

MAX_GAP: Final = 64
"""Most whitespace in one gap, in bytes: enough for a line break and deep indentation, and an end for a loop."""
MAX_INDENT: Final = 16

_WHITESPACE: Final = ir.repeat(ir.byte_set(b" \t\n\r"), 0, MAX_GAP)
_BLANK: Final = ir.literal(b" ")
_QUOTE: Final = ir.literal(b'"')


@dataclass(frozen=True)
class Gaps:
    """The whitespace around one object or array.

    Attributes:
        first: after the opening bracket, before a member. `close`: before the closing bracket after a member.
        close_empty: between the brackets of an empty one.
        before_comma, after_comma: around a comma. `before_colon`, `after_colon`: around a colon.
    """

    first: Node = ir.EPSILON
    close: Node = ir.EPSILON
    close_empty: Node = ir.EPSILON
    before_comma: Node = ir.EPSILON
    after_comma: Node = ir.EPSILON
    before_colon: Node = ir.EPSILON
    after_colon: Node = ir.EPSILON


class Layout:
    """The whitespace around one object or array, with that of the containers inside. Compared by identity.

    Args:
        gaps: its whitespace. That of an open layout says how an empty container is closed, and how a key begins if
            the key does not tell.
        at_key, behind_key: the layouts for which an open one stands, told apart before or after the first key.
    """

    def __init__(self, gaps: Gaps, *, at_key: tuple[Layout, ...] = (), behind_key: tuple[Layout, ...] = ()) -> None:
        self.gaps, self._at_key, self._behind_key = gaps, at_key, behind_key

    @property
    def inner(self) -> Layout:
        """The layout of a container inside; not asked of an open layout."""
        return self

    @property
    def at_key(self) -> tuple[Layout, ...]:
        """What the layout may be after the opening bracket of an object and before its first key."""
        return self._at_key or (self,)

    @property
    def behind_key(self) -> tuple[Layout, ...]:
        """What the layout may be after the first key of an object."""
        return self._behind_key or (self,)

    @property
    def at_item(self) -> tuple[Layout, ...]:
        """What the layout may be after the opening bracket of an array and before its first item."""
        return tuple(settled for layout in self.at_key for settled in layout.behind_key)

    @cached_property
    def first_key(self) -> Lexeme:
        """From the opening bracket to the quote that begins the first key."""
        return Lexeme(ir.concat(self.gaps.first, _QUOTE))

    @cached_property
    def next_key(self) -> Lexeme:
        """From a member to the quote that begins the next key."""
        return Lexeme(ir.concat(self._comma, _QUOTE))

    @cached_property
    def colon(self) -> Lexeme:
        """From a key to its value."""
        return Lexeme(ir.concat(self.gaps.before_colon, ir.literal(b":"), self.gaps.after_colon))

    @cached_property
    def first_item(self) -> Lexeme:
        """From the opening bracket to the first item."""
        return Lexeme(self.gaps.first)

    @cached_property
    def next_item(self) -> Lexeme:
        """From an item to the next one."""
        return Lexeme(self._comma)

    @cached_property
    def close_object(self) -> Read:
        """The end of an object after a member."""
        return _close(self.gaps.close, b"}")

    @cached_property
    def close_empty_object(self) -> Read:
        """The end of an object without members."""
        return _close(self.gaps.close_empty, b"}")

    @cached_property
    def close_array(self) -> Read:
        """The end of an array after an item."""
        return _close(self.gaps.close, b"]")

    @cached_property
    def close_empty_array(self) -> Read:
        """The end of an array without items."""
        return _close(self.gaps.close_empty, b"]")

    @property
    def _comma(self) -> Node:
        return ir.concat(self.gaps.before_comma, ir.literal(b","), self.gaps.after_comma)


class _Indented(Layout):
    """Each member on a line of its own, `depth` + 1 indentations deep; with `has_lines`, those inside may have one."""

    def __init__(self, indent: bytes, depth: int, has_lines: bool) -> None:
        line = ir.literal(b"\n" + indent * (depth + 1))
        super().__init__(
            Gaps(first=line, close=ir.literal(b"\n" + indent * depth), after_comma=line, after_colon=_BLANK)
        )
        self._indent, self._depth, self._has_lines = indent, depth, has_lines

    @cached_property
    def inner(self) -> Layout:
        """One indentation deeper, or on one line."""
        inner = _Indented(self._indent, self._depth + 1, self._has_lines)
        return Layout(Gaps(), at_key=(inner, _SPACED)) if self._has_lines else inner


def _close(gap: Node, bracket: bytes) -> Read:
    return Read(ir.concat(gap, ir.literal(bracket)), reader=END)


_ANY: Final = Layout(Gaps(*(_WHITESPACE,) * 7))
_COMPACT: Final = Layout(Gaps())
_SPACED: Final = Layout(Gaps(after_comma=_BLANK, after_colon=_BLANK))
_ONE_LINE: Final = Layout(Gaps(), behind_key=(_COMPACT, _SPACED))


def outermost(whitespace: Whitespace) -> Layout:
    """The layout of the outermost container under a policy; an indented one is new, so that what it holds can go."""
    if whitespace == "natural":
        indented = (_Indented(indent, 0, has_lines=True) for indent in (b"  ", b"    ", b"\t"))
        return Layout(Gaps(), at_key=(_ONE_LINE, *indented))
    if whitespace == "any":
        return _ANY
    if whitespace == "compact":
        return _COMPACT
    return _Indented(b"\t" if whitespace == "\t" else b" " * whitespace, 0, has_lines=False)


def check(whitespace: object) -> None:
    """Refuse what is no policy.

    Raises:
        OptionError: not ``"natural"``, ``"any"``, ``"compact"``, a tab or an indentation of 0 to 16.
    """
    is_number = isinstance(whitespace, int) and not isinstance(whitespace, bool) and 0 <= whitespace <= MAX_INDENT
    if not is_number and not (isinstance(whitespace, str) and whitespace in ("natural", "any", "compact", "\t")):
        raise OptionError(
            f"{whitespace!r} is no white space policy",
            at="whitespace",
            hint='"natural", "any", "compact", or an indentation such as 2 or "\\t"',
        )
