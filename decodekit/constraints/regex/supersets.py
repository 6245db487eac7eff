"""A regular pattern in the place of one with back-references: it matches wherever the given one does.

A mask is made of it, and what it matches besides is left to a search by backtracking. ``^(a+)b\\1$`` becomes
``^a+b(|a+)$``.
"""

from __future__ import annotations

from typing import Final

from decodekit.constraints.language.utf8 import EVERYTHING
from decodekit.constraints.regex.tree import (
    Alternation,
    Assertion,
    Capture,
    Chars,
    Concatenation,
    Lookahead,
    Lookbehind,
    Quantified,
    Reference,
    Tree,
    children,
    has_references,
)

_NOTHING: Final = Concatenation(())
_ANY_TEXT: Final = Quantified(Chars(EVERYTHING), 0, None)


def regular(tree: Tree) -> Tree:
    """A pattern without groups, references and lookbehinds that matches wherever the given one does.

    What repeats a group may be any text that the group may hold, or nothing. A negative assertion with a reference
    inside goes: it could not be weakened otherwise.
    """
    groups: dict[int, Tree] = {}
    _collect(tree, groups)
    return _weaker(tree, groups)


def _collect(tree: Tree, groups: dict[int, Tree]) -> None:
    if isinstance(tree, Capture):
        groups[tree.number] = tree.item
    for child in children(tree):
        _collect(child, groups)


def _weaker(tree: Tree, groups: dict[int, Tree]) -> Tree:
    match tree:
        case Capture(item):
            return _weaker(item, groups)
        case Reference(numbers, fold):
            held = [groups[number] for number in numbers]
            if fold is not None or any(map(has_references, held)):
                return _ANY_TEXT
            return Alternation((_NOTHING, *(_plain(item) for item in held)))
        case Lookbehind():
            return _NOTHING
        case Lookahead(item, is_negative):
            if is_negative and has_references(item):
                return _NOTHING
            return Lookahead(_weaker(item, groups), is_negative)
        case Concatenation(items):
            return Concatenation(tuple(_weaker(item, groups) for item in items))
        case Alternation(options):
            return Alternation(tuple(_weaker(option, groups) for option in options))
        case Quantified(item, least, most, is_lazy):
            return Quantified(_weaker(item, groups), least, most, is_lazy)
    return tree


def _plain(tree: Tree) -> Tree:
    """What a group may hold: its texts, whatever stands around them."""
    match tree:
        case Capture(item):
            return _plain(item)
        case Concatenation(items):
            return Concatenation(tuple(map(_plain, items)))
        case Alternation(options):
            return Alternation(tuple(map(_plain, options)))
        case Quantified(item, least, most, is_lazy):
            return Quantified(_plain(item), least, most, is_lazy)
        case Assertion() | Lookahead() | Lookbehind():
            return _NOTHING
    return tree
