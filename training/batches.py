"""Batches: documents with their JSON packed into rows of one length, the gaps filled with copy tasks.

A row is `document, line feed, JSON, <eos>, document, ...`. There is a loss on the JSON and on the second half of every
copy task, none on the documents: their content is random and cannot be predicted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.documents import Document, make_document, make_partial_document, to_json
from training.kinds import KINDS

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


def make_batch(
    rng: random.Random,
    encode: Encode,
    eos_id: int,
    vocab_size: int,
    shape: tuple[int, int],
    copy_share: float,
    partial_share: float,
) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each int64 [rows, length]; targets are the next tokens, NO_LOSS where nothing is learned."""
    rows, length = shape
    packed: list[list[Sample]] = [[] for _ in range(rows)]
    room = [length + 1] * rows
    failures = 0
    while failures < 3:
        if rng.random() < copy_share:
            sample = copy_task(rng, rng.randint(20, 96), vocab_size, eos_id)
        else:
            sample = training_sample(rng, encode, eos_id, partial_share)
        fitting = [row for row in range(rows) if room[row] >= len(sample)]
        if not fitting:
            failures += 1
            continue
        row = max(fitting, key=room.__getitem__) if rng.random() < 0.3 else min(fitting, key=room.__getitem__)
        packed[row].append(sample)
        room[row] -= len(sample)
    inputs = torch.zeros(rows, length, dtype=torch.long)
    targets = torch.full((rows, length), NO_LOSS, dtype=torch.long)
    for row, samples in enumerate(packed):
        rng.shuffle(samples)
        while room[row] >= 9:
            samples.append(copy_task(rng, min(room[row], rng.randint(9, 120)), vocab_size, eos_id))
            room[row] -= len(samples[-1])
        tokens = torch.tensor([token for sample in samples for token in sample.tokens])
        learned = torch.tensor([flag for sample in samples for flag in sample.is_learned])
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, : len(tokens) - 1] = torch.where(learned[1:], tokens[1:], NO_LOSS)
    return inputs, targets
