"""Small worlds in which a grammar is compared with its reference on every text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import Rules
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.network import Frame
from decodekit.vocabulary import Vocabulary
from tests.reference import earley
from tests.reference.vocabularies import byte_vocabulary


@dataclass(frozen=True)
class Framed(Constraint):
    """A frame as a constraint."""

    frame: Frame

    def root(self) -> Frame:
        return self.frame

    def parse(self, text: str) -> str:
        return text


def texts_of(pieces: Sequence[bytes], max_pieces: int) -> list[bytes]:
    """All texts of at most so many pieces, shortest first, each once."""
    texts = (b"".join(some) for n in range(max_pieces + 1) for some in itertools.product(pieces, repeat=n))
    return sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))


class Beginnings:
    """Which texts begin a text of the grammar, by the reference."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._known: dict[bytes, bool] = {}

    def __contains__(self, text: bytes) -> bool:
        known = self._known.get(text)
        if known is None:
            known = (not text or text[:-1] in self) and earley.accepts_prefix(self.rules, text)
            self._known[text] = known
        return known


def check_against_reference(
    rules: Rules,
    pieces: Sequence[bytes],
    *,
    max_pieces: int,
    mask_pieces: int,
    token_pieces: int = 2,
    frame: Frame | None = None,
) -> set[bytes]:
    """The engine accepts what the reference accepts, and its masks are those of brute force; returns what is accepted.

    Args:
        rules: the grammar.
        pieces: what texts are made of.
        max_pieces: texts of at most so many pieces are accepted or rejected.
        mask_pieces: masks are compared after all texts of at most so many pieces.
        token_pieces: tokens are single bytes, and everything of at most so many pieces.
        frame: what the engine is given; the default is the frame of the rules.
    """
    tokens = [token for token in texts_of(pieces, token_pieces) if len(token) > 1]
    vocabulary = byte_vocabulary(tokens)
    ids = {data: number for number, data in enumerate(vocabulary.token_bytes) if data is not None}
    spelled = {data: number for data, number in ids.items() if len(data) > 1 or data in b"".join(pieces)}
    masked = set(texts_of(pieces, mask_pieces))
    matcher = compile(Framed(root_frame(rules) if frame is None else frame), vocabulary).matcher()
    beginnings = Beginnings(rules)
    accepted: set[bytes] = set()
    for text in texts_of(pieces, max_pieces):
        num_read = matcher.validate([ids[bytes((byte,))] for byte in text])
        assert (num_read == len(text)) == (text in beginnings), text
        if num_read < len(text):
            continue
        for byte in text:
            assert matcher.accept(byte)
        assert matcher.is_accepting == earley.accepts(rules, text), text
        if matcher.is_accepting:
            accepted.add(text)
        if text in masked:
            expected = {number for data, number in spelled.items() if text + data in beginnings}
            assert allowed(matcher, vocabulary) & set(spelled.values()) == expected, text
        matcher.rollback(len(text))
    return accepted


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The tokens of the mask."""
    bitmask = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return set(ids_from_bitmask(bitmask[0]).tolist())
