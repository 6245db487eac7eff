"""Names for lexical languages that no schema changes, so that what a vocabulary learned of one can be kept on disk.

A lexical state has a number, which means something in one process only. A front end registers the few languages that
nearly every text of its kind passes through, such as the rest of a JSON string; a state is recognised by its language,
whatever label ends it. The file of a language carries a digest of its structure, so that a language which a later
version spells differently is not mistaken for the one that was kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Final

from decodekit.constraints import ir
from decodekit.constraints.ir import Node

_MAX_PARTS: Final = 4  # of a chain that may be a registered language

_names: dict[Node, str] = {}


def register(name: str, node: Node) -> None:
    """Name a language without labels, made of the nodes of `ir`.

    Raises:
        TypeError: a node of another module is part of it.
    """
    _names[node] = f"{name}-{_digest(node, {}).hex()[:16]}"


def named(node: Node) -> tuple[str, Hashable] | None:
    """The name of a registered language whose words are those of `node`, and the label that ends them; None if none."""
    parts: list[Node] = []
    while isinstance(node, ir.Concat):
        parts.append(node.head)
        node = node.tail
        if len(parts) == _MAX_PARTS:
            return None
    label = None
    if isinstance(node, ir.Accept):
        label = node.label
    else:
        parts.append(node)
    name = _names.get(ir.concat(*parts)) if parts else None
    return None if name is None else (name, label)


def _digest(node: Node, known: dict[Node, bytes]) -> bytes:
    """SHA-256 of the structure of a node: equal in every process, and for alternatives in any order."""
    digest = known.get(node)
    if digest is None:
        kind = type(node).__name__
        parts: list[bytes]
        if isinstance(node, ir.Bytes):
            parts = [node.mask.to_bytes(32, "little")]
        elif isinstance(node, ir.Literal):
            parts = [node.text]
        elif isinstance(node, ir.Concat):
            parts = [_digest(node.head, known), _digest(node.tail, known)]
        elif isinstance(node, ir.Repeat):
            parts = [_digest(node.body, known), f"{node.min} {node.max}".encode()]
        elif isinstance(node, ir.Choice):
            parts = sorted(_digest(option, known) for option in node.options)
        elif node is ir.EPSILON:
            parts = []
        else:
            raise TypeError(f"a language with {kind} has no digest")
        digest = known[node] = hashlib.sha256(b"".join([kind.encode(), b" ", *parts])).digest()
    return digest
