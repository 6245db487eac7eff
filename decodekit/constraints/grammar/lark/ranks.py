"""The order of Lark's terminals, by which a lexer takes one where several have the same word.

By priority (``NAME.2``), strings before patterns, and then as Lark's basic lexer does: first the terminal that can
match more characters, then the one with the longer pattern, as Lark writes it, then by name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from decodekit.constraints.grammar.lark.definitions import Definitions, GrammarSymbol, Parts, Scope
from decodekit.constraints.grammar.lark.lark_tree import (
    CharRange,
    Counted,
    Name,
    Options,
    Pattern,
    Quoted,
    Series,
    Term,
)
from decodekit.constraints.regex import syntax as regex_syntax
from decodekit.constraints.regex import tree as regex_tree

_NO_BOUND: Final = float("inf")
_BRACKETS: Final = 4  # (?:)
_FLAG: Final = 5  # (?i:)


class Rank(NamedTuple):
    """The place of a terminal in the order. The least is taken; no two terminals of a grammar have the same."""

    less_priority: int
    is_pattern: bool
    less_width: float
    less_length: int
    name: str


class Ranks:
    """The ranks of terminals whose languages are known to be well defined."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self._spelled: dict[str, tuple[float, int]] = {}
        self._named: dict[tuple[str, str, str], GrammarSymbol] = {}
        for entry in definitions.entries.values():
            key = key_of(entry.parts[0][0]) if entry.is_terminal and len(entry.parts) == 1 else None
            if key is not None:
                self._named[key] = entry

    def alias(self, item: Term) -> GrammarSymbol | None:
        """The terminal that an item without a name is, because that is written as the same string or pattern."""
        key = key_of(item)
        return None if key is None else self._named.get(key)

    def of(self, parts: Parts, name: str, priority: int = 0) -> Rank:
        """The rank of a terminal that is called `name`."""
        while len(parts) == 1 and isinstance(parts[0][0], Name):
            item, scope = parts[0]
            assert isinstance(item, Name)
            parts = self.definitions.look_up(item, scope).parts
        width, length = self._spell_all(parts)
        only = parts[0][0] if len(parts) == 1 else None
        if isinstance(only, Quoted):
            width, length = len(only.text), len(only.text)
        elif isinstance(only, Pattern):
            length = len(only.pattern)
        return Rank(-priority, not isinstance(only, Quoted), -width, -length, name)

    def _spell_all(self, parts: Parts) -> tuple[float, int]:
        """The most characters that a terminal matches, and the length of its pattern."""
        spelled = [self._spell(item, scope) for item, scope in parts]
        if len(spelled) == 1:
            return spelled[0]
        return max(width for width, _ in spelled), _BRACKETS - 1 + sum(length + 1 for _, length in spelled)

    def _spell(self, item: Term, scope: Scope) -> tuple[float, int]:
        """The same for a part of one."""
        if isinstance(item, Name):
            entry = self.definitions.look_up(item, scope)
            if entry.name not in self._spelled:
                self._spelled[entry.name] = self._spell_all(entry.parts)
            return self._spelled[entry.name]
        if isinstance(item, Series):
            spelled = [self._spell(part, scope) for part in item.items]
            return sum(width for width, _ in spelled), sum(length for _, length in spelled)
        if isinstance(item, Options):
            return self._spell_all(tuple((part, scope) for part in item.options))
        if isinstance(item, Counted):
            width, length = self._spell(item.item, scope)
            most = _NO_BOUND if item.max is None else item.max
            sign = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((item.min, item.max))
            sign = sign or (f"{{{item.min}}}" if item.min == item.max else f"{{{item.min},{item.max}}}")
            return width * most if width and most else 0, length + _BRACKETS + len(sign)
        if isinstance(item, Quoted):
            return len(item.text), len(re.escape(item.text)) + _FLAG * item.ignores_case
        if isinstance(item, CharRange):
            return 1, len("[a-b]")
        assert isinstance(item, Pattern)  # nothing else is part of a terminal
        flags = "".join(sorted(set(item.flags) - {"u"}))
        _, high = regex_tree.width(regex_syntax.parse(item.pattern, "python", flags))
        return _NO_BOUND if high is None else high, len(item.pattern) + _FLAG * len(item.flags)


def key_of(item: Term) -> tuple[str, str, str] | None:
    """A key that equal terminals without a name share: how they are written. None for one that is made of parts."""
    if isinstance(item, Quoted):
        return "text", item.text, "i" * item.ignores_case
    if isinstance(item, Pattern):
        return "pattern", item.pattern, "".join(sorted(item.flags))
    return ("range", item.low, item.high) if isinstance(item, CharRange) else None
