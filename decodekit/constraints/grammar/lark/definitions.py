"""The definitions of a Lark grammar by name, with those that it imports, overrides and extends.

What is imported is defined anew for each import, as in Lark: it has the name that it is given, the rest of its grammar
a qualified one such as ``common.DIGIT``, and who overrides a name changes what its grammar makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from decodekit.constraints.grammar.lark.lark_syntax import parse
from decodekit.constraints.grammar.lark.lark_tree import Definition, Import, Name, Term, is_terminal_name
from decodekit.constraints.grammar.source import Source, SourcePosition, nearest
from decodekit.errors import NameNotFoundError, ResourceLimitError

MAX_IMPORTS: Final = 1_000
"""Bound on the grammars that are imported, each counted as often as it is."""
MAX_IMPORT_DEPTH: Final = 50

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
r"""The terminals of ``%import common``, by the names that Lark's own library has for them.

Strings and comments are said without lazy quantifiers and lookbehind, and have the same words as in Lark, where a lexer
takes the first end that it finds. ``_STRING_ESC_INNER`` reads a backslash together with what it escapes; before any
delimiter that is not a backslash its words are the same, too.

Source of the names and their meaning: https://github.com/lark-parser/lark/blob/1.3.1/lark/grammars/common.lark
"""


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The scope of the names in the text of one grammar."""

    source: Source
    prefix: str = ""  # of its names in the whole
    given: Mapping[str, str] = field(default_factory=dict)  # names in the whole of what was imported

    def qualified(self, name: str) -> str:
        """The name in the whole."""
        return self.given.get(name, self.prefix + name)

    def place(self, at: int) -> SourcePosition:
        """A place in the text."""
        return SourcePosition(self.source, at)


Parts: TypeAlias = tuple[tuple[Term, Scope], ...]
"""The alternatives of a symbol."""


@dataclass(frozen=True, slots=True, eq=False)
class GrammarSymbol:
    """A rule, template or terminal, whose alternatives may come from several grammars."""

    name: str
    is_terminal: bool
    parameters: tuple[str, ...]
    priority: int
    parts: Parts
    place: SourcePosition


def imported_files(source: Source, folder: Path) -> dict[str, str]:
    """The texts of all grammars that `source`, which lies in `folder`, imports from files, by their path from there."""
    texts: dict[str, str] = {}
    agenda = [("", source)]
    for key, importing in agenda:  # grows while it is read
        for statement in parse(importing).imports:
            imported = _file_key(key, statement)
            if not statement.is_relative or imported in texts:
                continue
            place = SourcePosition(importing, statement.at)
            try:
                texts[imported] = (folder / imported).read_text(encoding="utf-8")
            except (OSError, UnicodeError) as error:
                place.fail(f"the grammar {imported!r} cannot be read: {error}", None, NameNotFoundError)
            if len(texts) > MAX_IMPORTS:
                place.fail(f"more than {MAX_IMPORTS:,} imports", None, ResourceLimitError)
            agenda.append((imported, Source(texts[imported], imported)))
    return texts


def _file_key(importing: str, statement: Import) -> str:
    return str(PurePosixPath(importing).parent.joinpath(*statement.path)) + ".lark"


class Definitions:
    """The definitions of a grammar, from itself down its imports, by qualified name. Raises what `Grammar` raises.

    `files` are the texts of the grammars that it imports, as `imported_files` gives them; None for a text without a
    folder, which can import none.
    """

    def __init__(self, source: Source, files: Mapping[str, str] | None = None) -> None:
        self.entries: dict[str, GrammarSymbol] = {}
        self.scope = Scope(source)
        self.ignored = parse(source).ignored
        self._files = files
        self._num_imports = 0
        self._load(self.scope, ("",))

    def look_up(self, item: Name, scope: Scope) -> GrammarSymbol:
        """The rule or terminal of a name. Where there is none, the error has the nearest name."""
        entry = self.entries.get(scope.qualified(item.name))
        if entry is None:
            kind = "terminal" if is_terminal_name(item.name) else "rule"
            known = (name.removeprefix(scope.prefix) for name in self.entries if name.startswith(scope.prefix))
            scope.place(item.at).fail(f"there is no {kind} {item.name!r}", nearest(item.name, known))
        return entry

    def _load(self, scope: Scope, open_files: tuple[str, ...]) -> None:
        """Define what a grammar holds. `open_files` are those on the way to it, itself the last."""
        module = parse(scope.source)
        by_grammar: dict[tuple[bool, tuple[str, ...]], list[Import]] = {}
        for statement in module.imports:
            by_grammar.setdefault((statement.is_relative, statement.path), []).append(statement)
        for statements in by_grammar.values():
            self._load_import(statements, scope, open_files)
        for definition in module.definitions:
            self._define(definition, scope)

    def _load_import(self, statements: list[Import], scope: Scope, open_files: tuple[str, ...]) -> None:
        """Load one grammar for all statements that import from it."""
        statement = statements[0]
        place = scope.place(statement.at)
        self._num_imports += 1
        if self._num_imports > MAX_IMPORTS or len(open_files) > MAX_IMPORT_DEPTH:
            place.fail(
                f"more than {MAX_IMPORTS:,} imports, or nested deeper than {MAX_IMPORT_DEPTH}", None, ResourceLimitError
            )
        key, source = self._find(statement, place, open_files[-1])
        if key in open_files:
            place.fail(f"the grammar {key!r} imports itself")
        module, path = parse(source), ".".join(statement.path)
        names = [name for one in statements for name in one.names]
        known = {definition.name for definition in module.definitions}
        known |= {alias for one in module.imports for _, alias, _ in one.names}
        given: dict[str, str] = {}
        for name, alias, at in names:
            if name not in known:
                scope.place(at).fail(f"{path} has no {name!r}", nearest(name, sorted(known)), NameNotFoundError)
            given.setdefault(name, scope.qualified(alias))
        inner = Scope(source, f"{scope.prefix}{path}.", given)
        self._load(inner, open_files if key is None else (*open_files, key))
        for name, alias, at in names:  # a second name of the same thing
            if given[name] != scope.qualified(alias):
                renamed = Scope(scope.source, scope.prefix, {alias: given[name]})
                self._add(Definition(alias, (), 0, Name(alias, at), "define", at), scope, renamed)

    def _find(self, statement: Import, place: SourcePosition, importing: str) -> tuple[str | None, Source]:
        """The key of a file, None for the library, and the text."""
        path = ".".join(statement.path)
        if not statement.is_relative:
            if path != "common":
                hint = f"common, or .{path} for a file"
                place.fail(f"there is no grammar {path!r} to import", hint, NameNotFoundError)
            return None, COMMON
        if self._files is None:
            cause = f"{path!r} cannot be imported: a grammar that is given as text has no folder"
            place.fail(cause, "the path of a file that holds the grammar", NameNotFoundError)
        key = _file_key(importing, statement)
        if key not in self._files:
            place.fail(f"there is no file {key!r} to import from", None, NameNotFoundError)
        return key, Source(self._files[key], key)

    def _define(self, definition: Definition, scope: Scope) -> None:
        """Add a definition, or change one."""
        place = scope.place(definition.at)
        known = self.entries.get(scope.qualified(definition.name))
        if definition.how == "define":
            if known is not None:
                place.fail(
                    f"{definition.name!r} is defined more than once, first at {known.place.short}",
                    "%override to replace it, %extend to add alternatives",
                )
        elif known is None:
            near = nearest(definition.name, self.entries)
            place.fail(f"there is no {definition.name!r} to {definition.how}", near)
        elif definition.how == "extend" and known.parameters != definition.parameters:
            place.fail(f"{definition.name!r} has other parameters at {known.place.short}")
        self._add(definition, scope, scope, known.parts if known and definition.how == "extend" else ())

    def _add(self, definition: Definition, scope: Scope, inner: Scope, parts: Parts = ()) -> None:
        """Define a name of `scope` by an item whose names are those of `inner`, besides other `parts`."""
        name = scope.qualified(definition.name)
        self.entries[name] = GrammarSymbol(
            name,
            definition.is_terminal,
            definition.parameters,
            definition.priority,
            (*parts, (definition.body, inner)),
            scope.place(definition.at),
        )
