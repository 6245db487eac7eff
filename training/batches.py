"""Batches: documents with their JSON, one to a row, rows of like length together.

A row is `document, line feed, JSON, <eos>`. There is a loss on the JSON and on the second half of every copy task, none
on the documents: their content is random and cannot be predicted. One document to a row is what decoding meets too;
packed into rows of 512 tokens, attention to other documents' tokens took half of the time of a step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.documents import Document, make_document, make_partial_document, to_json
from training.kinds import KINDS
from training.tokenizer import VOCAB_SIZE

Encode = Callable[[str], list[int]]
NO_LOSS = -100


@dataclass(frozen=True)
class Sample:
    """Tokens with, for each, whether it is learned; `fields` are the spans of the values, (start, end) by position."""

    tokens: list[int]
    is_learned: list[bool]
    fields: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


def encode_document(
    document: Document, encode: Encode, eos_id: int, separator: str = "\n", *, learns_keys: bool = True
) -> Sample:
    """A document and its JSON as one sample.

    A span in `fields` covers a value and the token after it, which shows that the value ended where it should.
    Keys are not learned for partial records: which keys are wanted cannot be read from the document.
    """
    tokens = encode(document.text + separator)
    learned = [False] * len(tokens)
    spans: list[tuple[int, int]] = []

    def add(text: str, is_learned: bool) -> None:
        piece = encode(text)
        tokens.extend(piece)
        learned.extend([is_learned] * len(piece))

    for index, (key, value) in enumerate(document.record.items()):
        add(("," if index else "{") + f'"{key}":', learns_keys)
        start = len(tokens)
        add(to_json(value), True)
        spans.append((start, len(tokens) + 1))
    add("}", True)
    tokens.append(eos_id)
    learned.append(True)
    return Sample(tokens, learned, tuple(spans))


def copy_task(rng: random.Random, length: int, vocab_size: int, eos_id: int) -> Sample:
    """Random tokens said twice, then `<eos>`; the second time is learned. `length` tokens in all, at least 5.

    Half of the tasks use few different tokens, as numbers and dates do: there the last token alone does not tell where
    to go on.
    """
    half = (length - 1) // 2
    alphabet: Sequence[int] = range(eos_id + 1, vocab_size)
    if rng.random() < 0.5:
        alphabet = rng.sample(alphabet, rng.randint(6, 24))
    part = rng.choices(alphabet, k=half)
    return Sample([*part, *part, eos_id], [False] * half + [True] * half + [False])


def training_sample(rng: random.Random, encode: Encode, eos_id: int, partial_share: float) -> Sample:
    """One random training document, whole or partial."""
    kind = rng.choice(list(KINDS.values()))
    separator = rng.choices(("\n", "", "\n\n", " "), weights=(85, 6, 6, 3))[0]
    if rng.random() < partial_share:
        document = make_partial_document(kind, rng)
        return encode_document(document, encode, eos_id, separator, learns_keys=False)
    return encode_document(make_document(kind, rng), encode, eos_id, separator)


class Batches:
    """An endless source of batches; each takes rows from one range of lengths."""

    # Samples are padded to the next of these; longer ones (one in a thousand) are not used.
    LENGTHS = (144, 208, 256, 304, 368, 512)

    def __init__(self, rng: random.Random, encode: Encode, eos_id: int, num_tokens: int) -> None:
        self.rng = rng
        self.encode = encode
        self.eos_id = eos_id
        self.num_rows = {length: num_tokens // length for length in self.LENGTHS}
        self._waiting: dict[int, list[Sample]] = {length: [] for length in self.LENGTHS}

    def _draw(self, copy_share: float, partial_share: float) -> Sample:
        if self.rng.random() < copy_share:
            return copy_task(self.rng, self.rng.randint(20, 140), VOCAB_SIZE, self.eos_id)
        return training_sample(self.rng, self.encode, self.eos_id, partial_share)

    def take(self, copy_share: float, partial_share: float) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 [rows, length]; targets are the next tokens, NO_LOSS where nothing is learned.

        `copy_share` of the samples are copy tasks, `partial_share` of the others are partial documents.
        """
        while True:
            sample = self._draw(copy_share, partial_share)
            length = next((length for length in self.LENGTHS if len(sample) <= length), None)
            if length is None:
                continue
            waiting = self._waiting[length]
            waiting.append(sample)
            if len(waiting) == self.num_rows[length]:
                self._waiting[length] = []
                return stack(waiting, length)


def stack(samples: Sequence[Sample], length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of some samples, each int64 [samples, length]; the last token of a sample is no input."""
    inputs = torch.zeros(len(samples), length, dtype=torch.long)
    targets = torch.full((len(samples), length), NO_LOSS, dtype=torch.long)
    for row, sample in enumerate(samples):
        tokens, learned = torch.tensor(sample.tokens), torch.tensor(sample.is_learned)
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, : len(tokens) - 1] = torch.where(learned[1:], tokens[1:], NO_LOSS)
    return inputs, targets
