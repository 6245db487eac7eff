"""The slow twin of the engine: a network run over plain sets, one byte at a time, and masks by trying every token.

It shares with the engine only the derivatives of the nodes (which have a twin of their own in `languages`) and the
frames themselves. No interning, no numbers, no tries, no caches.
"""

from __future__ import annotations

from decodekit.constraints.language.node import Node
from decodekit.constraints.network import Call, Frame, Read, Return
from decodekit.vocabulary import Vocabulary

Stack = tuple[Frame, ...]
"""Frames to return to, the innermost first."""

Thread = tuple[Node, Frame, Stack, bytes, bool]
"""What is left of the lexeme, the frame that reads it, the frames to return to, the bytes read, whether to capture."""


def enter(frames: list[tuple[Frame, Stack]]) -> tuple[set[Thread], bool]:
    """All that may be read next, and whether the text may end."""
    threads: set[Thread] = set()
    accepted = False
    agenda, seen = list(frames), set()
    while agenda:
        frame, stack = agenda.pop()
        if (frame, stack) in seen:
            continue
        seen.add((frame, stack))
        for move in frame.moves():
            if isinstance(move, Return):
                if stack:
                    agenda.append((stack[0], stack[1:]))
                else:
                    accepted = True
            elif isinstance(move, Call):
                agenda.append((move.callee, (move.then, *stack)))
            else:
                assert isinstance(move, Read)
                reader = move.reader or frame
                if not move.node.is_empty:
                    threads.add((move.node, reader, stack, b"", move.capture))
                for label in move.node.labels:
                    agenda += [(after, stack) for after in reader.after(label, b"")]
    return threads, accepted


def start(root: Frame) -> tuple[set[Thread], bool]:
    return enter([(root, ())])


def step(threads: set[Thread], byte: int) -> tuple[set[Thread], bool]:
    """The threads after one more byte, and whether the text may end there."""
    alive: set[Thread] = set()
    accepted = False
    for node, frame, stack, text, capture in threads:
        rest = node.derivative(byte)
        if rest.is_empty:
            continue
        text_now = text + bytes([byte]) if capture else b""
        if any(not target.is_empty for _, target in rest.transitions()):
            alive.add((rest, frame, stack, text_now, capture))
        for label in rest.labels:
            more, ends = enter([(after, stack) for after in frame.after(label, text_now)])
            alive |= more
            accepted |= ends
    return alive, accepted


def run(root: Frame, data: bytes) -> tuple[set[Thread], bool]:
    threads, accepted = start(root)
    for byte in data:
        threads, accepted = step(threads, byte)
    return threads, accepted


def accepts(root: Frame, data: bytes) -> bool:
    return run(root, data)[1]


def is_prefix(root: Frame, data: bytes) -> bool:
    threads, accepted = run(root, data)
    return bool(threads) or accepted


def allowed(root: Frame, data: bytes, vocabulary: Vocabulary, tokens: range | list[int] | None = None) -> list[int]:
    """The tokens that may follow `data`: each is tried in turn."""
    threads, accepted = run(root, data)
    found = []
    for token in range(vocabulary.size) if tokens is None else tokens:
        token_bytes = vocabulary.token_bytes[token]
        if token_bytes is None:
            if token in vocabulary.eos_token_ids and accepted:
                found.append(token)
            continue
        current, ends = threads, accepted
        for byte in token_bytes:
            current, ends = step(current, byte)
            if not current and not ends:
                break
        else:
            found.append(token)
    return found
