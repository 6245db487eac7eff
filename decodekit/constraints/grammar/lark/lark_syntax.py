"""The syntax of Lark's grammar language: from text to a tree whose parts know their place.

Source of the syntax: Lark 1.3, `lark.load_grammar` and the grammar reference of its documentation. Two things are wider
here: line breaks may stand anywhere inside of brackets, and ``x{2,5}`` counts as ``x~2..5`` does. Added are
``%json {...}``, ``%regex {...}`` and special tokens, as llguidance writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, TypeVar

from decodekit.constraints.grammar.lark import lark_tree as tree
from decodekit.constraints.grammar.source import (
    MAX_COUNT,
    MAX_DEPTH,
    Source,
    SourcePosition,
    check_encodable,
    read_json,
    token_ids,
)
from decodekit.constraints.language.utf8 import MAX_CODE_POINT
from decodekit.errors import ResourceLimitError, UnsupportedSchemaError

T = TypeVar("T")


@lru_cache(maxsize=8)
def parse(source: Source) -> tree.Module:
    """The tree of a grammar. Raises what `Grammar` raises, with the place, what was expected and what was found."""
    return _GrammarParser(source).module()


class _Token(NamedTuple):
    kind: str  # "name", "string", "regexp", "directive", "special", "number", "line end", "end", or the sign itself
    text: str
    at: int


_BLANK: Final = re.compile(r"(?:[ \t\f]+|\\[ \t]*\r?\n|(?://|\#)[^\n]*)*")
_BREAK: Final = re.compile(r"(?:[ \t\f]+|\r?\n|\\[ \t]*\r?\n|(?://|\#)[^\n]*)*")
_TOKEN: Final = re.compile(
    r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"i?)
      | (?P<regexp>/(?:(?:\\.|[^/\\\n])+/[imslux]*|(?:\\(?s:.)|[^/\\])+/[imslu]*x[imslux]*))
      | (?P<directive>%[A-Za-z_]+)
      | (?P<special><\[[^\]\n]*\]>|<[^<>\s]+>)
      | (?P<number>[+-]?[0-9]+)
      | (?P<sign>->|\.\.|[:|()\[\]{},.~*+?!])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})|(?P<other>(?s:.)))"
)
_PLAIN_ESCAPES: Final = {"n": "\n", "f": "\f", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}
_NUM_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_OPERATORS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_RULE: Final = re.compile(r"_?[a-z][_a-z0-9]*")
_TERMINAL: Final = re.compile(r"_?[A-Z][_A-Z0-9]*")
_ENDS: Final = frozenset({"|", ")", "]", "->", "line end", "end"})
_REFUSED: Final = {
    "%declare": (
        "%declare is not supported: nothing can be known about a terminal without a definition",
        "a definition of the terminal",
    ),
    "%llguidance": ("%llguidance is not supported", "leaving it out"),
}


class _GrammarParser:
    """Recursive descent over one grammar."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.position = 0
        self.depth = 0  # of brackets: inside of them, line ends do not count
        self.token = self._scan()

    # --- tokens ---

    def _scan(self) -> _Token:
        """The next token. A line that goes on with "|" has not ended."""
        at = _BLANK.match(self.text, self.position).end()  # type: ignore[union-attr]
        if self.text.startswith(("\n", "\r\n"), at):
            after = _BREAK.match(self.text, at).end()  # type: ignore[union-attr]
            if not self.depth and not self.text.startswith("|", after):
                self.position = after
                return _Token("line end", "", at)
            at = after
        if at == len(self.text):
            self.position = at
            return _Token("end", "", at)
        match = _TOKEN.match(self.text, at)
        if match is None:
            self._unreadable(at)
        self.position = match.end()
        kind = match.lastgroup or ""
        return _Token(match.group() if kind == "sign" else kind, match.group(), at)

    def _unreadable(self, at: int) -> NoReturn:
        char = self.text[at]
        if char in '"/':
            what = "string" if char == '"' else "regular expression"
            hint = f"a backslash before a {char} that belongs to it"
            self.place(at).fail(f"this {what} is not closed on its line", hint)
        self.place(at).fail(f"no item begins with {char!r}", 'double quotes, "..."' if char == "'" else None)

    def place(self, at: int) -> SourcePosition:
        return SourcePosition(self.source, at)

    def expected(self, what: str, hint: str | None = None) -> NoReturn:
        token = self.token
        found = {"line end": "the end of the line", "end": "the end of the grammar"}.get(token.kind)
        if self.text.startswith("::=", token.at - (token.kind == ":")):
            hint = 'syntax="gbnf", in which "::=" defines a rule'
        self.place(token.at).fail(f"expected {what}, found {found or repr(token.text[:40])}", hint)

    def next(self) -> _Token:
        token, self.token = self.token, self._scan()
        return token

    def take(self, kind: str) -> bool:
        if self.token.kind != kind:
            return False
        self.next()
        return True

    def require(self, kind: str, what: str, hint: str | None = None) -> _Token:
        if self.token.kind != kind:
            self.expected(what, hint)
        return self.next()

    def several(self, read: Callable[[], T], sign: str = ",") -> tuple[T, ...]:
        """One or more, with a sign between them."""
        found = [read()]
        while self.take(sign):
            found.append(read())
        return tuple(found)

    def open(self) -> int:
        """Go into brackets, whose opening one is the token at hand; returns its place."""
        at = self.token.at
        self.depth += 1
        if self.depth > MAX_DEPTH:
            hint = "a rule of its own for the inner part"
            self.place(at).fail(f"brackets are nested deeper than {MAX_DEPTH}", hint, ResourceLimitError)
        self.next()
        return at

    def close(self, closing: str, at: int, instead: str = "','") -> None:
        """Leave brackets that were opened at `at`; `instead` could have gone on."""
        if self.token.kind != closing:
            if self.token.kind == "end":
                self.place(at).fail(f"this {self.text[at]!r} is not closed")
            self.expected(f"{instead} or {closing!r}")
        self.depth -= 1
        self.next()

    # --- statements ---

    def module(self) -> tree.Module:
        definitions: list[tree.Definition] = []
        ignored: list[tree.Term] = []
        imports: list[tree.Import] = []
        while True:
            while self.take("line end"):
                pass
            if self.token.kind == "end":
                return tree.Module(tuple(definitions), tuple(ignored), tuple(imports))
            if self.token.kind != "directive":
                definitions.append(self.definition("define"))
            elif self.token.text == "%ignore":
                self.next()
                ignored.append(self.choice())
            elif self.token.text == "%import":
                imports.append(self.import_())
            elif self.token.text in ("%override", "%extend"):
                definitions.append(self.definition(self.next().text[1:]))
            elif self.token.text in _REFUSED:
                self.place(self.token.at).fail(*_REFUSED[self.token.text], UnsupportedSchemaError)
            else:
                self.expected("a rule, a terminal, %import, %ignore, %override or %extend")
            if self.token.kind not in ("line end", "end"):
                self.expected("an item, '|' or the end of the line")

    def definition(self, how: str) -> tree.Definition:
        while self.token.kind in ("!", "?"):  # how trees are shaped
            self.next()
        token = self.name(
            "the name of a rule or terminal, or a statement such as %import",
            "'|' at the begin of a line, or brackets around the lines, where a definition goes on",
        )
        parameters = self.parameters() if self.token.kind == "{" else ()
        if self.token.kind == "[":
            self.place(self.token.at).fail(
                "options of a rule are not supported", "leaving out the brackets", UnsupportedSchemaError
            )
        if parameters and tree.is_terminal_name(token.text):
            self.place(token.at).fail("a terminal cannot have parameters", "a rule, in lower case")
        priority = 0
        if self.take("."):
            priority = self.number(self.require("number", "the number of a priority"))
        self.require(":", "':' after the name")
        return tree.Definition(token.text, parameters, priority, self.choice(), how, token.at)

    def parameters(self) -> tuple[str, ...]:
        at, names = self.open(), list[str]()
        while not names or self.take(","):
            token = self.name("the name of a parameter, in lower case")
            if tree.is_terminal_name(token.text):
                self.place(token.at).fail("the name of a parameter must be in lower case")
            if token.text in names:
                self.place(token.at).fail(f"there are two parameters {token.text!r}")
            names.append(token.text)
        self.close("}", at)
        return tuple(names)

    def import_(self) -> tree.Import:
        at = self.next().at
        is_relative = self.take(".")
        path = [self.require("name", "the name of a grammar")]
        while self.take("."):
            path.append(self.require("name", "a name"))
        if self.token.kind == "(":
            opening = self.open()
            tokens = self.several(lambda: self.name("the name of a rule or terminal"))
            names = tuple((token.text, token.text, token.at) for token in tokens)
            self.close(")", opening)
        else:
            token = path.pop()
            if not path:
                self.place(token.at).fail(
                    f"nothing is imported from {token.text!r}",
                    f"%import {token.text}.NAME, or %import {token.text} (A, B)",
                )
            self.check_name(token)
            alias = self.name("the name that it has here") if self.take("->") else token
            if tree.is_terminal_name(alias.text) != tree.is_terminal_name(token.text):
                self.place(alias.at).fail("a terminal keeps a name in upper case, a rule one in lower case")
            names = ((token.text, alias.text, token.at),)
        return tree.Import(tuple(part.text for part in path), is_relative, names, at)

    def name(self, what: str, hint: str | None = None) -> _Token:
        token = self.require("name", what, hint)
        self.check_name(token)
        return token

    def check_name(self, token: _Token) -> None:
        if not (_RULE.fullmatch(token.text) or _TERMINAL.fullmatch(token.text)):
            self.place(token.at).fail(
                f"{token.text!r} is no name: rules are in lower case, terminals in upper case, with '_' once before it",
                f"{token.text.strip('_').lower()!r} or {token.text.strip('_').upper()!r}",
            )

    def number(self, token: _Token) -> int:
        if len(token.text) > 12 or abs(int(token.text)) > MAX_COUNT:
            self.place(token.at).fail(f"{token.text[:20]} is more than {MAX_COUNT:,}", None, ResourceLimitError)
        return int(token.text)

    # --- expressions ---

    def choice(self) -> tree.Term:
        options = self.several(self.series, "|")
        return options[0] if len(options) == 1 else tree.Options(options)

    def series(self) -> tree.Term:
        items = []
        while self.token.kind not in _ENDS:
            items.append(self.counted())
        if self.take("->"):  # names the derivations, and leaves the texts as they are
            self.name("the name of an alias")
        return items[0] if len(items) == 1 else tree.Series(tuple(items))

    def counted(self) -> tree.Term:
        item = self.atom()
        if self.token.kind in _OPERATORS:
            return tree.Counted(item, *_OPERATORS[self.next().kind])
        low: int | None = None
        high: int | None = None
        if self.take("~"):
            at = self.token.at
            low = high = self.count()
            if self.take(".."):
                high = self.count()
        elif self.token.kind == "{":
            at = self.open()
            if self.token.kind == "number":
                low = high = self.count()
            if self.take(","):
                high = self.count() if self.token.kind == "number" else None
            elif low is None:
                self.expected("how often the item occurs, as in {2} or {2,5}")
            self.close("}", at, "a number")
        else:
            return item
        if high is not None and high < (low or 0):
            self.place(at).fail(f"the counts {low} and {high} are in the wrong order")
        return tree.Counted(item, low or 0, high)

    def count(self) -> int:
        token = self.require("number", "how often the item occurs")
        if not token.text.isdigit():
            self.place(token.at).fail(f"a count is no {token.text!r}", "digits without a sign")
        return self.number(token)

    def atom(self) -> tree.Term:
        token = self.token
        if token.kind in ("(", "["):
            self.open()
            inner = self.choice()
            self.close(")" if token.kind == "(" else "]", token.at, "an item, '|'")
            return inner if token.kind == "(" else tree.Counted(inner, 0, 1)
        if token.kind == "directive" and token.text in ("%json", "%regex"):
            return self.inline()
        if token.kind in _OPERATORS or token.kind == "~":
            self.expected("an item", "one quantifier after an item, with brackets where two are meant")
        return self.value()

    def value(self) -> tree.Term:
        """A value: an item that may also be an argument of a template."""
        token = self.token
        if token.kind == "name":
            return self.reference()
        if token.kind == "string":
            self.next()
            if self.take(".."):
                return self.char_range(token, self.require("string", "the string that ends the range"))
            return tree.Quoted(self.unescaped(token), token.text.endswith("i"), token.at)
        if token.kind == "regexp":
            self.next()
            end = token.text.rindex("/")
            return tree.Pattern(token.text[1:end], token.text[end + 1 :], token.at)
        if token.kind == "special":
            self.next()
            is_id = token.text.startswith("<[")
            return tree.TokenName(
                token_ids(token.text[2:-2], self.place(token.at)) if is_id else (token.text,), token.at
            )
        return self.expected("a rule, a terminal, a string or another item")

    def reference(self) -> tree.Term:
        token = self.next()
        self.check_name(token)
        if self.token.kind != "{" or self.text[_BREAK.match(self.text, self.position).end() :][:1] in "0123456789,":  # type: ignore[union-attr]
            return tree.Name(token.text, token.at)
        at = self.open()
        arguments = self.several(self.value)
        self.close("}", at)
        return tree.Name(token.text, token.at, arguments)

    # --- literals ---

    def unescaped(self, token: _Token) -> str:
        r"""The text of a string. As in Lark, a backslash before another letter than these stands for itself."""

        def replace(match: re.Match[str]) -> str:
            other, place = match["other"], self.place(token.at + 1 + match.start())
            if other is None:
                point = int(match["x"] or match["u"] or match["U"], 16)
                return chr(point) if point <= MAX_CODE_POINT else place.fail(f"U+{point:X} is no code point")
            if other in "xuU":
                place.fail(f"\\{other} needs {_NUM_DIGITS[other]} hexadecimal digits")
            return _PLAIN_ESCAPES.get(other, "\\" + other)

        text = token.text[1 : token.text.rindex('"')]
        text = _ESCAPE.sub(replace, text) if "\\" in text else text
        check_encodable(text, self.place(token.at))
        return text

    def char_range(self, first: _Token, last: _Token) -> tree.Term:
        ends = [self.unescaped(token) for token in (first, last) if not token.text.endswith("i")]
        if len(ends) < 2 or any(len(end) != 1 for end in ends):
            self.place(first.at).fail("a range has a string of one character at each end, without flags")
        if ends[1] < ends[0]:
            self.place(first.at).fail("the range of characters is in the wrong order")
        return tree.CharRange(ends[0], ends[1], first.at)

    def inline(self) -> tree.Term:
        """``%json`` or ``%regex``, and a JSON value."""
        token = self.token
        start = _BREAK.match(self.text, self.position).end()  # type: ignore[union-attr]
        value, self.position = read_json(self.text, start, self.place)
        self.next()
        if token.text == "%json":
            return tree.Json(value, token.at)
        others = dict(value) if isinstance(value, dict) else {}
        pattern, flags = others.pop("pattern", None), others.pop("flags", "")
        if others or not isinstance(pattern, str) or not isinstance(flags, str):
            self.place(token.at).fail(
                '%regex takes {"pattern": "...", "flags": "..."} and nothing else',
                "a terminal for other things",
                UnsupportedSchemaError,
            )
        return tree.Pattern(pattern, flags, token.at)
