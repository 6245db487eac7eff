"""The tokens of every cache row, for processors that look back: a host array, written in place as texts grow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from decodekit.decoding.loop.text_row import TextRow
from decodekit.sampling import History


class TokenTable:
    """Prompt and text of every cache row, padded with -1, for processors that look back."""

    def __init__(self, num_rows: int) -> None:
        self._tokens = np.full((num_rows, 512), -1, dtype=np.int64)

    def begin(self, sequence: TextRow) -> None:
        """Put the prompt of a new sequence, and the text that it has already, into its row."""
        tokens = [*sequence.request.prompt, *sequence.token_ids]
        self._reserve(len(tokens))
        self._tokens[sequence.row] = -1
        self._tokens[sequence.row, : len(tokens)] = tokens

    def append(self, sequence: TextRow) -> None:
        """Add the token that the sequence took last."""
        self._reserve(sequence.length)
        self._tokens[sequence.row, sequence.length - 1] = sequence.token_ids[-1]

    def truncate(self, sequence: TextRow) -> None:
        """Forget the tokens beyond the length of the sequence."""
        self._tokens[sequence.row, sequence.length :] = -1

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i becomes what row ``rows[i]`` was, as in `Cache.reorder`."""
        self._tokens = self._tokens[list(rows)]

    def history(self, sequences: Sequence[TextRow], drafts: Sequence[Sequence[int]], device: torch.device) -> History:
        """The tokens before each of P positions, draft tokens included, as tensors on `device`."""
        lengths = [sequence.length + len(draft) for sequence, draft in zip(sequences, drafts, strict=True)]
        rows = [sequence.row for sequence in sequences]
        self._reserve(max(lengths))
        tokens = self._tokens[rows, : max(lengths)]  # a copy
        for position, draft in enumerate(drafts):
            if draft:
                tokens[position, lengths[position] - len(draft) : lengths[position]] = draft
        return History(
            token_ids=torch.from_numpy(tokens).to(device),
            prompt_lengths=torch.tensor([len(sequence.request.prompt) for sequence in sequences], device=device),
            lengths=torch.tensor(lengths, device=device),
        )

    def _reserve(self, length: int) -> None:
        num_rows, capacity = self._tokens.shape
        if length > capacity:
            wider = np.full((num_rows, max(length, 2 * capacity)), -1, dtype=np.int64)
            wider[:, :capacity] = self._tokens
            self._tokens = wider
