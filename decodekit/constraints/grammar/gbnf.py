r"""Grammars in GBNF, the language of llama.cpp, as rules.

Everything that llama.cpp reads is read here with the same texts, and some more: rules may begin with themselves, ``|``
may also begin a line, counts have no bound. Refused by name are ``!<token>`` and a rule that is defined twice.

Source of the syntax: `llama_grammar_parser` and the guide in https://github.com/ggml-org/llama.cpp/tree/master/grammars
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from decodekit.constraints.grammar.rules import (
    EMPTY_TEXT,
    Expression,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
    alternatives,
    reached,
    repeated,
    sequence,
)
from decodekit.constraints.grammar.source import (
    MAX_COUNT,
    MAX_DEPTH,
    Source,
    SourcePosition,
    check_encodable,
    nearest,
    token_ids,
)
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.utf8 import MAX_CODE_POINT
from decodekit.errors import ConstraintError, InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError


def load_rules(source: Source, start: str = "root") -> Rules:
    """The rules of a grammar, those aside that are not reached from the start. Raises what `Grammar` raises."""
    parser = _GbnfParser(source)
    parser.grammar()
    for name, at in parser.references.items():
        if name not in parser.rules:
            parser.fail(f"there is no rule {name!r}", at, nearest(name, parser.rules))
    if start not in parser.rules:
        raise InvalidConstraintError(
            f"there is no rule {start!r} to start from",
            at=source.file,
            hint=nearest(start, parser.rules) or 'start="..." with the name of a rule',
        )
    return Rules({name: parser.rules[name] for name in reached([start], parser.uses.__getitem__)}, start)


MAX_QUANTIFIERS: Final = 3
"""Bound on the quantifiers in a row."""

_SPACE: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}


class _GbnfParser:
    """Recursive descent over one grammar."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.position = 0
        self.depth = 0
        self.rules: dict[str, Expression] = {}
        self.uses: dict[str, dict[str, None]] = {}  # the rules that each rule names
        self.references: dict[str, int] = {}  # where each rule is named first
        self._defined_at: dict[str, int] = {}
        self._names: dict[str, None] = {}  # the rules that the rule at hand names

    # --- small steps ---

    def place(self, at: int) -> SourcePosition:
        return SourcePosition(self.source, at)

    def fail(
        self, cause: str, at: int, hint: str | None = None, error: type[ConstraintError] = InvalidConstraintError
    ) -> NoReturn:
        self.place(at).fail(cause, hint, error)

    def expected(self, what: str, hint: str | None = None) -> NoReturn:
        found = self.peek()
        shown = "the end of the grammar" if not found else "the end of the line" if found in "\r\n" else repr(found)
        self.fail(f"expected {what}, found {shown}", self.position, hint)

    def space(self, has_lines: bool = False) -> None:
        """Skip blanks and comments, and inside of a group line ends."""
        pattern = _SPACE_AND_LINES if has_lines or self.depth else _SPACE
        self.position = pattern.match(self.text, self.position).end()  # type: ignore[union-attr]

    def lines(self) -> None:
        self.space(has_lines=True)

    def peek(self) -> str:
        """The next character; none at the end."""
        return self.text[self.position : self.position + 1]

    def take(self, text: str) -> bool:
        if not self.text.startswith(text, self.position):
            return False
        self.position += len(text)
        return True

    # --- structure ---

    def grammar(self) -> None:
        self.lines()
        while self.position < len(self.text):
            self.rule()
            if self.peek() not in "\r\n":
                self.expected("an item, '|' or the end of the line")
            self.lines()

    def rule(self) -> None:
        at = self.position
        match = _NAME.match(self.text, at)
        if match is None:
            self.expected("the name of a rule", "brackets around the lines, where a rule goes on in the next line")
        name = match.group()
        self.position = match.end()
        self.space()
        if not self.take("::="):
            self.expected("'::=' after the name of a rule", 'syntax="lark", if ":" defines a rule')
        if name in self.rules:
            self.fail(
                f"the rule {name!r} is defined more than once, first at {self.place(self._defined_at[name]).short}",
                at,
                "one rule with '|' between its alternatives",
            )
        self._defined_at[name] = at
        self._names = self.uses[name] = {}
        self.lines()
        self.rules[name] = self.alternatives()

    def alternatives(self) -> Expression:
        options = [self.sequence()]
        while True:
            at = self.position
            self.lines()
            if not self.take("|"):  # which may also begin the next line
                self.position = at
                return options[0] if len(options) == 1 else alternatives(*options)
            self.lines()
            options.append(self.sequence())

    def sequence(self) -> Expression:
        items: list[Expression] = []
        while (item := self.item()) is not None:
            self.space()
            items.append(self.quantified(item))
        return sequence(*items)

    def item(self) -> Expression | None:
        """One item; None where none begins."""
        at = self.position
        char = self.peek()
        reader = {'"': self.literal, "[": self.char_class, "(": self.group, "<": self.token}.get(char)
        if reader is not None:
            return reader()
        if self.text.startswith("!<", at):
            hint = "the text that may stand here, such as [^<]"
            self.fail("a negated token is not supported", at, hint, UnsupportedSchemaError)
        if char == ".":
            self.position += 1
            return Terminal(utf8.charset(utf8.EVERYTHING), ".")
        if match := _NAME.match(self.text, at):
            self.position = match.end()
            self.references.setdefault(match.group(), at)
            self._names[match.group()] = None
            return RuleRef(match.group())
        if char and char in "*+?{":
            self.expected("an item before the quantifier")
        return None

    def group(self) -> Expression:
        at = self.position
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"groups are nested deeper than {MAX_DEPTH}", at, "a rule of its own", ResourceLimitError)
        self.position += 1
        self.space()
        inner = self.alternatives()
        if not self.take(")"):
            if self.position == len(self.text):
                self.fail("this '(' is not closed", at)
            self.expected("an item, '|' or ')'")
        self.depth -= 1
        return inner

    def quantified(self, item: Expression) -> Expression:
        """The item with its quantifiers; several may follow each other."""
        num_quantifiers = 0
        while (char := self.peek()) and char in "*+?{":
            num_quantifiers += 1
            if num_quantifiers > MAX_QUANTIFIERS:
                self.fail(f"more than {MAX_QUANTIFIERS} quantifiers in a row", self.position, "one", ResourceLimitError)
            if char == "{":
                low, high = self.counts()
            else:
                self.position += 1
                low, high = _COUNTS[char]
            item = repeated(item, low, high)
            self.space()
        return item

    def counts(self) -> tuple[int, int | None]:
        at = self.position
        self.position += 1
        self.space()
        low = self.number()
        high: int | None = low
        self.space()
        if self.take(","):
            self.space()
            high = self.number() if self.peek() in set("0123456789") else None
            self.space()
        if not self.take("}"):
            self.expected("'}' after the counts")
        if high is not None and high < low:
            self.fail(f"the counts {low} and {high} are in the wrong order", at)
        return low, high

    def number(self) -> int:
        match = re.compile("[0-9]+").match(self.text, self.position)
        if match is None:
            self.expected("how often the item occurs, as in {2} or {2,5}")
        if len(match.group()) > 12 or int(match.group()) > MAX_COUNT:
            self.fail(f"a count above {MAX_COUNT:,}", self.position, "'*' or '+'", ResourceLimitError)
        self.position = match.end()
        return int(match.group())

    # --- terminals ---

    def char(self, what: str, opening: int) -> str:
        """One character of a literal or a class, which may be written as an escape."""
        at = self.position
        if at == len(self.text):
            self.fail(f"this {what} is not closed", opening)
        self.position += 1
        if self.text[at] != "\\":
            return self.text[at]
        letter = self.peek()
        self.position += 1
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        if letter not in _HEX_DIGITS:
            self.fail(f"there is no escape \\{letter}", at, r"\\ for a backslash")
        digits = self.text[self.position : self.position + _HEX_DIGITS[letter]]
        if re.fullmatch(f"[0-9A-Fa-f]{{{_HEX_DIGITS[letter]}}}", digits) is None:
            self.fail(f"\\{letter} needs {_HEX_DIGITS[letter]} hexadecimal digits", at)
        if int(digits, 16) > MAX_CODE_POINT:
            self.fail(f"U+{digits} is no code point", at)
        self.position += len(digits)
        return chr(int(digits, 16))

    def literal(self) -> Expression:
        at = self.position
        self.position += 1
        chars: list[str] = []
        while not self.take('"'):
            chars.append(self.char("string", at))
        text = "".join(chars)
        check_encodable(text, self.place(at))
        return Terminal(ir.literal(text.encode()), self.text[at : self.position]) if text else EMPTY_TEXT

    def char_class(self) -> Expression:
        at = self.position
        self.position += 1
        is_negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = high = self.char("character class", at)
            if self.text.startswith("-", self.position) and not self.text.startswith("-]", self.position):
                self.position += 1
                high = self.char("character class", at)
            if high < low:
                self.fail("the range of characters is in the wrong order", at)
            ranges.append((ord(low), ord(high)))
        if not ranges:
            self.fail("this character class is empty", at, "'.' for any character")
        points = utf8.invert(ranges) if is_negated else utf8.normalise(ranges)
        return Terminal(utf8.charset(points), self.text[at : self.position])

    def token(self) -> Expression:
        """A special token: ``<name>``, with its brackets the name, or ``<[id]>``."""
        at = self.position
        match = re.compile(r"<\[([^\]\n]*)\]>|<([^>\n]+)>").match(self.text, at)
        if match is None:
            self.fail("this token is not closed", at, "<name> or <[id]>")
        self.position = match.end()
        if match[1] is None:
            return SpecialToken(match.group())
        return alternatives(*map(SpecialToken, token_ids(match[1], self.place(at))))
