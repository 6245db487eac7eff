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

from functools import cached_property
from typing import Final, Literal, TypeAlias
from weakref import WeakValueDictionary

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
_COMMA: Final = ir.literal(b",")
_COLON: Final = ir.literal(b":")


class Layout:
    """The whitespace around one object or array, with that of the containers inside. Compared by identity.

    Args:
        first: after the opening bracket, before a member. `close`: before the closing bracket after a member.
        close_empty: between the brackets of an empty one.
        comma, colon: with the whitespace around them.
        at_key, behind_key: the layouts for which an open one stands, told apart before or after the first key. Its own
            whitespace says how an empty container is closed, and how a key begins if the key does not tell.

    Attributes:
        at_key: what the layout may be after the opening bracket of an object and before its first key.
        behind_key: what it may be after that key.
        at_item: what it may be after the opening bracket of an array and before its first item.
        first, next: from the opening bracket, or a member or item, to another one.
        colon: from a key to its value.
        close_object, close_array: the end after a member or an item, and with `empty` without one.
    """

    def __init__(
        self,
        first: Node = ir.EPSILON,
        close: Node = ir.EPSILON,
        close_empty: Node = ir.EPSILON,
        comma: Node = _COMMA,
        colon: Node = _COLON,
        *,
        at_key: tuple[Layout, ...] = (),
        behind_key: tuple[Layout, ...] = (),
    ) -> None:
        self.at_key, self.behind_key = at_key or (self,), behind_key or (self,)
        self.at_item = tuple(settled for layout in self.at_key for settled in layout.behind_key)
        self.first, self.next, self.colon = Lexeme(first), Lexeme(comma), Lexeme(colon)
        self.close_object, self.close_array = _ends(close)
        self.close_empty_object, self.close_empty_array = _ends(close_empty)

    @property
    def inner(self) -> Layout:
        """The layout of a container inside; not asked of an open layout."""
        return self


def _ends(gap: Node) -> tuple[Read, Read]:
    brackets = (ir.literal(bracket) for bracket in (b"}", b"]"))
    end_of_object, end_of_array = (Read(ir.concat(gap, bracket), reader=END) for bracket in brackets)
    return end_of_object, end_of_array


class _Indented(Layout):
    """Each member on a line of its own, `depth` + 1 indentations deep; with `has_lines`, those inside may have one."""

    def __init__(self, indent: bytes, depth: int, has_lines: bool) -> None:
        line = ir.literal(b"\n" + indent * (depth + 1))
        close = ir.literal(b"\n" + indent * depth)
        super().__init__(line, close, comma=ir.concat(_COMMA, line), colon=ir.concat(_COLON, _BLANK))
        self._indent, self._depth, self._has_lines = indent, depth, has_lines

    @cached_property
    def inner(self) -> Layout:
        """One indentation deeper, or on one line."""
        inner = _Indented(self._indent, self._depth + 1, self._has_lines)
        return Layout(at_key=(inner, _SPACED)) if self._has_lines else inner


_ANY: Final = Layout(
    *(_WHITESPACE,) * 3,
    comma=ir.concat(_WHITESPACE, _COMMA, _WHITESPACE),
    colon=ir.concat(_WHITESPACE, _COLON, _WHITESPACE),
)
_COMPACT: Final = Layout()
_SPACED: Final = Layout(comma=ir.concat(_COMMA, _BLANK), colon=ir.concat(_COLON, _BLANK))
_ONE_LINE: Final = Layout(behind_key=(_COMPACT, _SPACED))


_living: WeakValueDictionary[Whitespace, Layout] = WeakValueDictionary()


def outermost(whitespace: Whitespace) -> Layout:
    """The layout of the outermost container under a policy; it is kept as long as somebody has it, with its depths."""
    layout = _living.get(whitespace)
    if layout is None:
        layout = _living[whitespace] = _outermost(whitespace)
    return layout


def _outermost(whitespace: Whitespace) -> Layout:
    if whitespace == "natural":
        indented = (_Indented(indent, 0, has_lines=True) for indent in (b"  ", b"    ", b"\t"))
        return Layout(at_key=(_ONE_LINE, *indented))
    if whitespace == "any":
        return _ANY
    if whitespace == "compact":
        return _COMPACT
    return _Indented(b"\t" if whitespace == "\t" else b" " * whitespace, 0, has_lines=False)


def check(whitespace: object) -> None:
    """Refuse what is not a policy.

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
