"""The protocol of a peer that stands in for our engine, and the forms in which peers read constraints.

A peer compiles a constraint, and follows a text token by token. It reads a JSON Schema, a pattern or the text of a
grammar. What has none of these forms is refused, and so are options of our own that a peer would not follow: a peer has
its own whitespace and its own order of keys, which are options of its backend.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.grammar import Grammar
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.regex.regex import Regex
from decodekit.errors import ConstraintError, OptionError, UnsupportedSchemaError
from decodekit.vocabulary import Vocabulary

_META: Final = re.compile(r"[\\.^$|?*+()\[\]{}]")
_LAYOUT: Final[Mapping[str, object]] = {
    "whitespace": "natural", "order": "declared", "escapes": "needed", "numbers": "short"
}  # fmt: skip


class PeerText(Protocol):
    """The state of one text in a peer. It never meets a token without bytes: `PeerMatcher` keeps those to itself."""

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    def fill(self, words: Int32Array) -> None:
        """Set the bits of the allowed tokens in int32 [words] zeros; bits of tokens without bytes do not count."""

    def accept(self, token: int) -> bool:
        """Go on with `token` if the peer allows it; otherwise False, and nothing changes."""

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens, as many as were accepted at most."""

    def fork(self) -> PeerText:
        """An independent text in the same state."""

    def forced_text(self) -> bytes:
        """Bytes of which the peer knows that nothing else may follow; empty if it does not say, as here."""
        return b""


class MatcherText(PeerText):
    """A text whose state is an object of the peer's own, `matcher`."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if num_tokens:
            self.matcher.rollback(num_tokens)


@runtime_checkable
class Peer(Protocol):
    """An engine of another package. A value: equal peers with equal options compare and hash equal."""

    @property
    def name(self) -> str:
        """The name that messages use."""

    def compile(self, constraint: Constraint, vocabulary: Vocabulary) -> Callable[[], PeerText]:
        """The maker of texts at their beginning, as often as it is called.

        Raises:
            ConstraintError: the peer cannot read the constraint, or refuses it.
            OptionError: its package is not installed.
        """


def load(module: str, package: str) -> Any:
    """A module of a peer; raises the `OptionError` of a package that is not installed, or does not load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        cause = f"the backend {package!r} needs the package {package}: {error}"
        raise OptionError(cause, at="backend", hint=f"pip install {package}") from error


def refused(name: str, error: object) -> ConstraintError:
    """The refusal of a peer, as one of our errors."""
    text = str(error).strip().splitlines()
    return ConstraintError(f"{name} refuses the constraint: {' '.join(text)[:500] or type(error).__name__}")


@lru_cache(maxsize=8)
def token_ids_by_bytes(vocabulary: Vocabulary) -> tuple[dict[bytes, list[int]], int]:
    """The ids of each text of a token, of which several may have the same, and the length of the longest text."""
    found: dict[bytes, list[int]] = {}
    for token, data in enumerate(vocabulary.token_bytes):
        if data is not None:
            found.setdefault(data, []).append(token)
    return found, max(map(len, found), default=0)


class Form(NamedTuple):
    """A constraint as text."""

    kind: str  # "schema", "pattern", "lark" or "gbnf"
    text: str  # the schema as JSON, the pattern, the grammar


def form_of(constraint: Constraint, name: str, kinds: tuple[str, ...]) -> Form:
    """The form, of those `kinds` that a peer of this name reads, in which it is given a constraint.

    Raises:
        UnsupportedSchemaError: the constraint has none of these forms, or options, a guard or special tokens that the
            peer would not see.
    """
    form = _form(constraint, name)
    if form is None or form.kind not in kinds:
        what = type(constraint).__name__ if form is None else f"a {form.kind}"
        cause = f"{name} cannot be given {what}; it reads {', '.join(kinds)}"
        raise UnsupportedSchemaError(cause, hint="the constraint without a backend: decodekit's own engine takes it")
    if constraint.special_tokens():
        raise UnsupportedSchemaError(f"{name} would not see the special tokens of the constraint", hint="no backend")
    if constraint.guard() is not None:
        cause = f"{name} would not ask the guard of the constraint (uniqueItems of objects, a function of yours)"
        raise UnsupportedSchemaError(cause, hint="the constraint without a backend, or without what needs a guard")
    return form


def _form(constraint: Constraint, name: str) -> Form | None:
    if isinstance(constraint, JsonSchema):
        for option, default in _LAYOUT.items():
            given = getattr(constraint, option)
            if given != default:
                cause = f"{name} would not follow {option}={given!r} of JsonSchema"
                raise UnsupportedSchemaError(cause, at=option, hint=f"options of dk.backend({name!r}, ...) instead")
        if constraint.registry:
            raise UnsupportedSchemaError(f"{name} would not see the registry", at="registry", hint="one schema")
        return Form("schema", json.dumps(constraint.schema))
    if isinstance(constraint, Regex):
        if constraint.flags:
            cause = f"{name} would not follow flags={constraint.flags!r} of Regex"
            raise UnsupportedSchemaError(cause, at="flags", hint="the flags written out in the pattern")
        return Form("pattern", constraint.pattern)
    if isinstance(constraint, Choices):
        return Form("pattern", "|".join(_META.sub(r"\\\g<0>", text) for text in constraint.texts))
    if isinstance(constraint, Grammar) and constraint.syntax in ("lark", "gbnf"):
        default = "start" if constraint.syntax == "lark" else "root"
        if constraint.files or constraint.lexer != "scannerless" or constraint.start != default:
            cause = f"{name} would not see the imported files, the lexer or the start rule of the grammar"
            raise UnsupportedSchemaError(cause, hint=f"one text that starts at {default}")
        return Form(constraint.syntax, constraint.text)
    return None
