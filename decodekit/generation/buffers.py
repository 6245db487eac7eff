"""What a batch keeps from step to step for its rows: bitmasks of allowed tokens, and the tokens that processors read.

Both are host arrays that are written in place and handed to torch without a copy (on a CPU).
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decodekit.constraints.bitmask import forbid
from decodekit.errors import DecodekitError
from decodekit.generation.sequence import Sequence
from decodekit.sampling import History

_ALL = -1  # every bit of a word
NONE_ALLOWED = -1
"""Stands for a token where the mask is empty."""


class Masks:
    """The bitmasks of the rows of one step.

    Args:
        num_rows: how many rows a step may have.
        num_words: int32 words of one row; bit t % 32 of word t // 32 allows token t.
    """

    def __init__(self, num_rows: int, num_words: int) -> None:
        self._words = np.zeros((num_rows, num_words), dtype=np.int32)

    def fill(self, sequences: Rows[Sequence]) -> Tensor | None:
        """The tokens allowed next, int32 [N, words], valid until the next call; None if all rows are free text.

        A constraint that fails (it may outgrow its bounds) is an error of its sequence, and allows nothing.
        """
        if all(sequence.matcher is None for sequence in sequences):
            return None
        for row, sequence in enumerate(sequences):
            if sequence.matcher is None:
                self._words[row] = _ALL
                continue
            try:
                if sequence.has_guard:
                    sequence.matcher.fill_bitmask(self._words, row, exact=False)  # `retreat` asks the guard
                    for token in sequence.banned:
                        forbid(self._words[row], token)
                else:
                    sequence.matcher.fill_bitmask(self._words, row)
            except DecodekitError as error:
                sequence.error = error
                self._words[row] = 0
        return torch.from_numpy(self._words[: len(sequences)])


def sole_tokens(bitmask: Tensor) -> list[int | None]:
    """Per row the token that is the only one allowed; `NONE_ALLOWED`; or None where there is a choice."""
    words = bitmask.numpy().view(np.uint32)  # bits of a negative number are counted as those of its absolute value
    counts = np.bitwise_count(words).sum(axis=1, dtype=np.int64).tolist()
    return [None if count > 1 else _only_bit(words[row]) if count else NONE_ALLOWED for row, count in enumerate(counts)]


def _only_bit(words: npt.NDArray[np.uint32]) -> int:
    word = int(words.nonzero()[0][0])
    return word * 32 + int(words[word]).bit_length() - 1


class TokenTable:
    """Prompt and text of every cache row, padded with -1, for processors that look back.

    Args:
        num_rows: rows of the cache.
    """

    def __init__(self, num_rows: int) -> None:
        self._tokens = np.full((num_rows, 512), -1, dtype=np.int64)

    def begin(self, sequence: Sequence) -> None:
        """Put the prompt of a new sequence into its row."""
        prompt = sequence.request.prompt
        self._reserve(len(prompt))
        self._tokens[sequence.row] = -1
        self._tokens[sequence.row, : len(prompt)] = prompt

    def append(self, sequence: Sequence) -> None:
        """Add the token that the sequence took last."""
        self._reserve(sequence.length)
        self._tokens[sequence.row, sequence.length - 1] = sequence.token_ids[-1]

    def truncate(self, sequence: Sequence) -> None:
        """Forget the tokens beyond the length of the sequence."""
        self._tokens[sequence.row, sequence.length :] = -1

    def reorder(self, rows: Rows[int]) -> None:
        """Row i becomes what row ``rows[i]`` was, as in `Cache.reorder`."""
        self._tokens = self._tokens[list(rows)]

    def history(self, sequences: Rows[Sequence], device: torch.device) -> History:
        """The prefixes of the sequences, as tensors on `device`."""
        lengths = [sequence.length for sequence in sequences]
        rows = [sequence.row for sequence in sequences]
        return History(
            token_ids=torch.from_numpy(self._tokens[rows, : max(lengths)]).to(device),
            prompt_lengths=torch.tensor([len(sequence.request.prompt) for sequence in sequences], device=device),
            lengths=torch.tensor(lengths, device=device),
        )

    def _reserve(self, length: int) -> None:
        num_rows, capacity = self._tokens.shape
        if length > capacity:
            wider = np.full((num_rows, max(length, 2 * capacity)), -1, dtype=np.int64)
            wider[:, :capacity] = self._tokens
            self._tokens = wider
