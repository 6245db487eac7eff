"""The constraint `Grammar`: texts of a context-free grammar in Lark's language or in GBNF."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from decodekit.constraints.constraint import Constraint, set_fields
from decodekit.constraints.explain.special_names import read_whole
from decodekit.constraints.grammar import gbnf
from decodekit.constraints.grammar.lark import definitions
from decodekit.constraints.grammar.lark import lark_rules as lark
from decodekit.constraints.grammar.library import SUFFIXES, Syntax, path_of
from decodekit.constraints.grammar.regular import fold
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import Inline, Rules, Terminal, special_tokens_of
from decodekit.constraints.grammar.source import Source, SourcePosition, read_json
from decodekit.constraints.memory_account import on_shortage
from decodekit.constraints.network import Frame
from decodekit.errors import InvalidConstraintError, NameNotFoundError, OptionError, ResourceLimitError

if TYPE_CHECKING:
    from decodekit.constraints.constraint import Guard

Lexer: TypeAlias = Literal["scannerless", "longest"]


_STARTS: Final[dict[Syntax, str]] = {"lark": "start", "gbnf": "root", "regex": "start", "schema": "start"}
_GBNF_RULE: Final = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)
_NUM_GRAMMARS: Final = 64  # as many as grammars are kept compiled
_BYTES_PER_CHARACTER: Final = 160  # of rules and frames, measured with tracemalloc on the library of grammars


@dataclass(frozen=True, slots=True, init=False)
class Grammar(Constraint):
    r"""Texts that a grammar derives.

        Grammar('start: "yes" | "no" ["!"]')
        Grammar('root ::= "yes" | [0-9]+')
        Grammar("sql.lark"), Grammar(Path("sql.gbnf")), Grammar("sql")

    Args:
        text_or_path_or_name: the text of a grammar (with a line end or a colon in it), the path of a file, or the name
            of a grammar of the library (`grammar.library`).
        syntax: ``"lark"`` (see `grammar.lark` for what is understood) or ``"gbnf"``, that of llama.cpp. Without it the
            suffix of the file says it, or else the text: ``::=`` behind a name makes it GBNF. Files may also hold a
            pattern (``.regex``) or a JSON Schema (``.schema.json``).
        start: the rule to start from; without it ``start`` in Lark, ``root`` in GBNF.
        lexer: ``"scannerless"``: every text that the rules and terminals derive. ``"longest"``: those that they derive
            from what a lexer finds that takes the longest terminal at each place, much as Lark's basic lexer does; for
            Lark grammars, see `grammar.longest`.

    A file is read once, with the files that it imports: a grammar is a value, equal to others of the same content.
    Grammars may be ambiguous, begin with themselves and derive the empty text. They may come from whom you do not
    trust: nothing is run, and of files only those below the folder of the grammar are read.

    Raises:
        InvalidConstraintError: malformed; the error shows the line and says what was expected.
        NameNotFoundError: no such file, grammar of the library, or name to import.
        UnsupportedSchemaError: something that is refused by name.
        ResourceLimitError: larger or nested deeper than the modules of this package say.
        OptionError: options that are none of the above, or do not go together.
    """

    text: str
    syntax: Syntax
    start: str
    lexer: Lexer
    files: tuple[tuple[str, str], ...]
    """The path and text of each file that is imported."""
    file: str | None = field(compare=False)
    """The name of the file that held the text."""

    def __init__(
        self,
        text_or_path_or_name: str | Path,
        syntax: Syntax | None = None,
        start: str | None = None,
        lexer: Lexer = "scannerless",
    ) -> None:
        if syntax is not None and not (isinstance(syntax, str) and syntax in _STARTS):
            raise OptionError(f"{syntax!r:.60} is no syntax of grammars", at="syntax", hint='"lark" or "gbnf"')
        if not isinstance(lexer, str) or lexer not in ("scannerless", "longest"):
            raise OptionError(f"{lexer!r:.60} is no lexer", at="lexer", hint='"scannerless" or "longest"')
        if start is not None and not isinstance(start, str):
            raise OptionError(f"start={start!r:.60} is no name of a rule", at="start", hint='start="value"')
        path = _path_of(text_or_path_or_name)
        text = str(text_or_path_or_name) if path is None else _read(path)
        if syntax is None:
            by_suffix = [kind for suffix, kind in SUFFIXES.items() if path is not None and path.name.endswith(suffix)]
            syntax = by_suffix[0] if by_suffix else "gbnf" if _GBNF_RULE.search(text) else "lark"
        if start is not None and syntax in ("regex", "schema"):
            raise OptionError(f"{start!r} is no start: a {syntax} has no rules", at="start", hint="no start")
        if lexer == "longest" and syntax != "lark":
            raise OptionError(f'lexer="longest" has no meaning for {syntax}', at="lexer", hint="no lexer")
        source = Source(text, None if path is None else path.name)
        files = {} if path is None or syntax != "lark" else definitions.imported_files(source, path.parent)
        set_fields(self, text=text, syntax=syntax, start=start or _STARTS[syntax], lexer=lexer)
        set_fields(self, files=tuple(sorted(files.items())), file=source.file)
        _rules(self)

    @property
    def rules(self) -> Rules:
        """The rules; shared by equal grammars."""
        return _rules(self)

    def root(self) -> Frame:
        """The frame of a whole text.

        Raises:
            UnsatisfiableError: no text can be derived from the start.
            ConstraintError: a schema inside of the grammar cannot be enforced or satisfied.
        """
        return _root(self)

    def guard(self) -> Guard | None:
        """The guard of a file with a JSON Schema; None for grammars, in which schemas that need one are refused."""
        schema = self.rules.rules[self.start]
        return schema.constraint.guard() if self.syntax == "schema" and isinstance(schema, Inline) else None

    def special_tokens(self) -> frozenset[str | int]:
        """Those of the rules and of the constraints in them."""
        return special_tokens_of(*self.rules.rules.values())

    def parse(self, text: str) -> str:
        """The text itself. Special tokens stand in it by name, or as ``<[7]>``, as in the text of a completion.

        Raises:
            ValueError: it is none of the grammar's; with the place where it stops being the beginning of one.
        """
        return read_whole(_root(self), text, self.special_tokens())

    @property
    def num_bytes(self) -> int:
        """About how much memory the rules take."""
        return _BYTES_PER_CHARACTER * (len(self.text) + sum(len(text) for _, text in self.files))

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 200 else self.text[:199] + "…"
        return f"Grammar({shown!r}, syntax={self.syntax!r}, start={self.start!r}, lexer={self.lexer!r})"


def _path_of(value: str | Path) -> Path | None:
    """The file that a value names; None if it is the text of a grammar."""
    if not isinstance(value, str | Path):
        raise InvalidConstraintError(
            f"a {type(value).__name__} is no grammar", hint="the text, the path or the name of a grammar"
        )
    if isinstance(value, Path):
        return value
    if "\n" in value:
        return None
    with suppress(OSError, ValueError):  # no path can be so long, or hold a NUL
        if Path(value).is_file():
            return Path(value)
    if ":" in value:
        return None
    try:
        return path_of(value)
    except NameNotFoundError as error:
        if "/" in value or value.endswith(tuple(SUFFIXES)):
            raise NameNotFoundError(f"there is no file {value!r}, nor such a name in the library") from error
        raise


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise NameNotFoundError(f"the grammar {str(path)!r} cannot be read: {error}") from error


@lru_cache(maxsize=_NUM_GRAMMARS)
def _rules(grammar: Grammar) -> Rules:
    try:
        return _load_rules(grammar)
    except RecursionError as error:  # the bounds on nesting leave room, but not if the caller has used it up
        raise ResourceLimitError("the grammar is nested too deeply for what is left of the stack") from error


def _load_rules(grammar: Grammar) -> Rules:
    source = Source(grammar.text, grammar.file)
    if grammar.syntax == "lark":
        files = None if grammar.file is None else dict(grammar.files)
        return lark.load_rules(source, grammar.start, files, grammar.lexer)
    if grammar.syntax == "gbnf":
        return gbnf.load_rules(source, grammar.start)
    if grammar.syntax == "regex":
        from decodekit.constraints.regex.regex import full_match

        return Rules({grammar.start: Terminal(full_match(grammar.text.rstrip("\r\n")))}, grammar.start)
    from decodekit.constraints.json_schema import JsonSchema

    schema, end = read_json(
        grammar.text, len(grammar.text) - len(grammar.text.lstrip()), partial(SourcePosition, source)
    )
    if grammar.text[end:].strip():
        SourcePosition(source, end).fail("something stands behind the schema")
    return Rules({grammar.start: Inline(JsonSchema(schema))}, grammar.start)


@lru_cache(maxsize=_NUM_GRAMMARS)
def _root(grammar: Grammar) -> Frame:
    if grammar.lexer == "scannerless":
        return root_frame(fold(_rules(grammar)))
    from decodekit.constraints.grammar.longest.lexer_frames import lexing_root  # few grammars need it

    return lexing_root(_rules(grammar))


on_shortage(_rules.cache_clear)
on_shortage(_root.cache_clear)
