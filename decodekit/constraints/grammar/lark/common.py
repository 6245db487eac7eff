r"""What ``%import common`` offers: terminals by the names that Lark's own library has for them.

Strings and comments are said without lazy quantifiers and lookbehind, and have the same words as in Lark, where a lexer
takes the first end that it finds. ``_STRING_ESC_INNER`` reads a backslash together with what it escapes; before any
delimiter that is not a backslash its words are the same, too.

Source of the names and their meaning: https://github.com/lark-parser/lark/blob/1.3.1/lark/grammars/common.lark
"""

from __future__ import annotations

from typing import Final

from decodekit.constraints.grammar.source import Source

COMMON: Final = Source(
    r"""
DIGIT: "0".."9"
HEXDIGIT: DIGIT | "a".."f" | "A".."F"

INT: DIGIT+
SIGNED_INT: ["+" | "-"] INT
DECIMAL: INT "." [INT] | "." INT
_EXP: ("e" | "E") SIGNED_INT
FLOAT: INT _EXP | DECIMAL [_EXP]
SIGNED_FLOAT: ["+" | "-"] FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: ["+" | "-"] NUMBER

_STRING_INNER: /.*?/
_STRING_ESC_INNER: /(?:[^\\\n]|\\[^\n])*?/
ESCAPED_STRING: /"(?:[^"\\\n]|\\[^\n])*"/

LCASE_LETTER: "a".."z"
UCASE_LETTER: "A".."Z"
LETTER: LCASE_LETTER | UCASE_LETTER
WORD: LETTER+
CNAME: ("_" | LETTER) ("_" | LETTER | DIGIT)*

WS_INLINE: /[ \t]+/
WS: /[ \t\f\r\n]+/
CR: "\r"
LF: "\n"
NEWLINE: /(?:\r?\n)+/

SH_COMMENT: /#[^\n]*/
CPP_COMMENT: /\/\/[^\n]*/
C_COMMENT: /\/\*(?:[^*]|\*+[^*\/])*\*+\//
SQL_COMMENT: /--[^\n]*/
""",
    "common",
)
