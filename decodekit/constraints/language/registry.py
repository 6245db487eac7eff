"""Names for lexical languages that no schema changes, so that what a vocabulary learned of one can be kept on disk.

A lexical state has a number, which means something in one process only. A front end registers the few languages that
nearly every text of its kind passes through, such as the rest of a JSON string; a state is recognised by its language,
whatever label ends it. The file of a language carries a digest of its structure, so that a language which a later
version spells differently is not mistaken for the one that was kept.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Hashable
from typing import Final

from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node

_MAX_PARTS: Final = 4  # of a chain that may be a registered language

_names: dict[Node, str] = {}


class Narrowed(Node):
    """Some words of another language, with its labels; they depend on its words and on how it is narrowed alone."""

    __slots__ = ("node",)

    node: Node

    @abstractmethod
    def narrowed(self, node: Node) -> Narrowed:
        """Another language, narrowed in the same way."""

    @property
    @abstractmethod
    def is_by_parts(self) -> bool:
        """Whether the words of a concatenation are those of its parts, each narrowed by itself, one after the other."""

    @property
    @abstractmethod
    def manner(self) -> bytes:
        """The manner of narrowing as bytes, for the digest."""


def register(name: str, node: Node) -> None:
    """Name a language without labels, made of the nodes of `ir`, or one of these narrowed."""
    _names[node] = f"{name}-{_digest(node, {}).hex()[:16]}"


def named(node: Node) -> tuple[str, Hashable] | None:
    """The name of a registered language whose words are those of `node`, and the label that ends them; None if none."""
    bare, label = _without_label(node)
    name = None if bare is None else _names.get(bare)
    return None if name is None else (name, label)


def _without_label(node: Node) -> tuple[Node | None, Hashable]:
    """A language without the label that ends it, and the label; no language if it is none that may be registered."""
    if isinstance(node, Narrowed):
        inner, label = _without_label(node.node)
        return None if inner is None else node.narrowed(inner), label
    parts: list[Node] = []
    while isinstance(node, ir.Product):
        parts.append(node.head)
        node = node.tail
        if len(parts) == _MAX_PARTS:
            return None, None
    if isinstance(node, ir.Accept):
        return (ir.concat(*parts) if parts else None), node.label
    return ir.concat(*parts, node), None


def _digest(node: Node, known: dict[Node, bytes]) -> bytes:
    """SHA-256 of the structure of a node: equal in every process, and for alternatives in any order."""
    if node in known:
        return known[node]
    kind = type(node).__name__
    parts: list[bytes] = []
    if isinstance(node, ir.Bytes):
        parts = [node.mask.to_bytes(32, "little")]
    elif isinstance(node, ir.Literal):
        parts = [node.text]
    elif isinstance(node, ir.Product):
        parts = [_digest(node.head, known), _digest(node.tail, known)]
    elif isinstance(node, ir.Repeat):
        parts = [_digest(node.body, known), f"{node.min} {node.max}".encode()]
    elif isinstance(node, ir.Choice):
        parts = sorted(_digest(option, known) for option in node.options)
    elif isinstance(node, Narrowed):
        parts = [_digest(node.node, known), node.manner]
    elif node is not ir.EPSILON:
        raise TypeError(f"a language with {kind} has no digest")
    known[node] = hashlib.sha256(b"".join([kind.encode(), b" ", *parts])).digest()
    return known[node]
