r"""Many texts that are patterns of ECMA-262, as a body language: all of them are of the format ``regex``.

Groups nest, names and numbers refer to each other, and counts and ranges are ordered, so the patterns are no regular
language. This is a part of it: every text here is a pattern by ECMA-262 (2018 and later) without flags, and with the
flag ``u`` too unless it escapes punctuation that needs none. Left out are

* groups nested deeper than `MAX_DEPTH`, and a second named group;
* back-references by number, and by name all but ``\k<x>`` at top level behind a group ``(?<x>…)`` at top level, with a
  name of one small letter;
* counts above 9999, and ``{m,n}`` with an `m` of more than two digits unless `n` has more;
* ranges in classes that begin with an escape or with a character beyond ASCII;
* bare braces and closing brackets, escapes of digits and of letters that mean nothing, properties that are no general
  category: what the flag ``u`` or a reader in another language takes differently.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.regex import charclasses

MAX_DEPTH: Final = 10

_DIGIT: Final = ((0x30, 0x39),)
_SYNTAX: Final = "^$\\.*+?()[]{}|"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


def _chars(characters: str) -> Node:
    return text.encode(utf8.normalise((ord(character), ord(character)) for character in characters))


def _others(characters: str) -> Node:
    return text.encode(utf8.invert((ord(character), ord(character)) for character in characters))


def _word(word: str) -> Node:
    return ir.concat(*map(text.spell, word))


@lru_cache(maxsize=1)
def language() -> Node:
    """The patterns."""
    inner = _terms(MAX_DEPTH)
    outside = _disjunction(inner)
    plain_name = ir.concat(
        _chars(_LETTERS + _LETTERS.upper() + "_$"), ir.repeat(_chars(_LETTERS + _LETTERS.upper() + "_$0123456789"))
    )
    body = ir.concat(_disjunction(_terms(MAX_DEPTH - 1)), _word(")"), _quantifier())
    named = ir.concat(_word("(?<"), plain_name, _word(">"), body, outside)
    referred = ir.choice(
        *(
            ir.concat(
                _word(f"(?<{name}>"),
                body,
                _disjunction(ir.choice(inner, ir.concat(_word(f"\\k<{name}>"), _quantifier()))),
            )
            for name in _LETTERS
        )
    )
    return ir.concat(outside, ir.optional(ir.choice(named, referred)))


def _disjunction(term: Node) -> Node:
    return ir.repeat(ir.choice(term, _word("|")))


def _terms(depth: int) -> Node:
    """One atom with its quantifier, or one assertion."""
    assertions = [_chars("^$"), ir.concat(_word("\\"), _chars("bB"))]
    atoms = [_others(_SYNTAX), _word("."), _escape(), _class()]
    if depth:
        inner = ir.concat(_disjunction(_terms(depth - 1)), _word(")"))
        atoms += [ir.concat(_word("("), inner), ir.concat(_word("(?:"), inner)]
        assertions.append(ir.concat(_word("(?"), ir.optional(_word("<")), _chars("=!"), inner))
    return ir.choice(ir.concat(ir.choice(*atoms), _quantifier()), *assertions)


@lru_cache(maxsize=1)
def _quantifier() -> Node:
    digit, two = text.encode(_DIGIT), ir.repeat(text.encode(_DIGIT), 2, 2)
    no_zero = _chars("123456789")
    number = ir.concat(no_zero, ir.repeat(digit, 0, 3))
    longer = ir.concat(no_zero, ir.repeat(digit, 1, 3))
    bounds = [_word("0"), number, ir.concat(ir.choice(_word("0"), number), _word(","))]
    bounds += (ir.concat(_word(f"{low},"), ir.choice(_chars("0123456789"[low:]), longer)) for low in range(10))
    for tens in range(1, 10):
        more = ir.concat(_chars("123456789"[tens:]), digit) if tens < 9 else ir.EMPTY
        for ones in range(10):
            same = ir.concat(_word(str(tens)), _chars("0123456789"[ones:]))
            longest = ir.concat(no_zero, two, ir.optional(digit))
            bounds.append(ir.concat(_word(f"{tens}{ones},"), ir.choice(same, more, longest)))
    bounds.append(ir.concat(no_zero, two, _word(","), no_zero, two, digit))
    counted = ir.concat(_word("{"), ir.choice(*bounds), _word("}"))
    return ir.optional(ir.concat(ir.choice(_chars("*+?"), counted), ir.optional(_word("?"))))


@lru_cache(maxsize=1)
def _shared_escape() -> Node:
    """What may follow a backslash in and out of classes, but a zero."""
    digit = _chars("0123456789abcdefABCDEF")
    code_point = ir.choice(
        ir.concat(ir.repeat(_word("0")), ir.repeat(digit, 1, 5)), ir.concat(_word("10"), ir.repeat(digit, 4, 4))
    )
    categories = ir.choice(*(_word(name) for name in charclasses.CATEGORIES))
    return ir.choice(
        _chars("dDwWsSfnrtv"),
        _chars("".join(chr(point) for point in range(0x21, 0x7F) if not chr(point).isalnum() and chr(point) != "_")),
        ir.concat(_word("c"), _chars(_LETTERS + _LETTERS.upper())),
        ir.concat(_word("x"), ir.repeat(digit, 2, 2)),
        ir.concat(_word("u"), ir.repeat(digit, 4, 4)),
        ir.concat(_word("u{"), code_point, _word("}")),
        ir.concat(_chars("pP"), _word("{"), categories, _word("}")),
    )


@lru_cache(maxsize=1)
def _escape() -> Node:
    return ir.concat(_word("\\"), _shared_escape())


@lru_cache(maxsize=1)
def _class() -> Node:
    escape = ir.concat(_word("\\"), ir.choice(_shared_escape(), _word("b")))
    ranges = []
    for point in range(0x20, 0x7F):
        if chr(point) not in "\\]-^[":
            ends = utf8.intersect(((point, utf8.MAX_CODE_POINT),), utf8.invert(((0x2D, 0x2D), (0x5B, 0x5D))))
            ranges.append(ir.concat(text.spell(chr(point)), _word("-"), text.encode(ends)))
    member = ir.choice(_others("\\]-^"), escape, *ranges)
    hyphen = ir.optional(_word("-"))
    members = ir.concat(hyphen, ir.repeat(ir.choice(member, ir.concat(member, _word("^")))), hyphen)
    return ir.concat(_word("["), ir.optional(_word("^")), members, _word("]"))
