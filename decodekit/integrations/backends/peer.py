"""The protocol of a peer that stands in for our engine: it compiles a constraint, and follows a text token by token."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.errors import ConstraintError, OptionError
from decodekit.vocabulary import Vocabulary


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
