"""What a constraint costs per generated token: asked about single tokens, with masks, and in llguidance and XGrammar.

    python -m benchmarks.constrained [--schemas 60] [--texts 100] [--batch 1 8 64] [--vocabularies 32k 131k]

No model runs: a stand-in hands out logits that prefer the next token of a known instance, so that all engines are asked
about the same tokens. With probability 1 - q it prefers a token that the constraint forbids. *Cold*: schemas of
MaskBench's development split, each met for the first time; *warm*: texts of one schema after each other.

decodekit's figure is CPU time of the whole loop with the constraint, less that of the same loop in free text, per token:
questions, masks, their use and the steps of the matcher, all overhead included. A peer's figure is the time of its own
calls: fill a mask, apply it to logits with the peer's own kernel (and, beside it, with the quicker one of the two), and
advance. What the peers' loops would add is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.constraints import CompiledGrammar
from decodekit.models.causal_lm import wanted_counts

NUM_ROWS: Final = 16  # different rows of background logits
PREFERRED: Final = 16.0  # above the background, whose standard deviation is 2
MAX_TOKENS: Final = 200  # of an instance


@dataclass(frozen=True)
class Text:
    """A document: a schema as compiled, and the tokens of an instance, its end included."""

    grammar: CompiledGrammar | None
    tokens: tuple[int, ...]
    liked: tuple[int, ...]  # what the model prefers at each position


class Replay:
    """A `CausalLM` whose logits prefer the tokens of known texts; a prompt is the number of a text."""

    context_length = None
    device = torch.device("cpu")
    dtype = torch.float32
    name = "replay"
    can_rollback = True

    def __init__(self, texts: Sequence[Text], vocab_size: int, eos: frozenset[int]) -> None:
        self.texts, self.vocab_size, self.eos_token_ids = texts, vocab_size, eos
        generator = torch.Generator().manual_seed(0)
        self.background = 2 * torch.randn(NUM_ROWS, vocab_size, generator=generator)

    def new_cache(self, num_rows: int, capacity: int) -> ReplayCache:
        """Counts of tokens."""
        return ReplayCache(num_rows)

    def forward(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: ReplayCache,
        rows: Sequence[int] | None = None,
        *,
        logits: Any = "last",
    ) -> Tensor:
        """Logits after the last tokens."""
        found = []
        places = range(cache.num_rows) if rows is None else rows
        for i, (row, count, wanted) in enumerate(zip(places, num_tokens, wanted_counts(logits, num_tokens), strict=True)):
            if cache.counts[row] == 0:
                cache.texts[row] = int(tokens[i, 0])
            cache.counts[row] += count
            found += [(cache.texts[row], cache.counts[row] - 1 - back) for back in reversed(range(wanted))]
        out = torch.empty(len(found), self.vocab_size)
        for number, (text, position) in enumerate(found):
            out[number] = self.background[position % NUM_ROWS]
            known = self.texts[text]
            if position < len(known.tokens):
                out[number, known.tokens[position]] = PREFERRED
                if known.liked[position] != known.tokens[position]:
                    out[number, known.liked[position]] = PREFERRED + 6
        return out


class ReplayCache:
    """How many tokens each row has read, and of which text."""

    def __init__(self, num_rows: int) -> None:
        self.counts, self.texts, self.capacity = [0] * num_rows, [0] * num_rows, 1 << 30

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.counts)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row."""
        return torch.tensor(self.counts)

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Take tokens back."""
        self.counts = [int(length) for length in row_lengths]

    def reset(self, rows: Sequence[int]) -> None:
        """Forget rows."""
        for row in rows:
            self.counts[row] = 0

    def reorder(self, rows: Tensor) -> None:
        """Rows in another order."""
        self.counts, self.texts = ([values[row] for row in rows.tolist()] for values in (self.counts, self.texts))

    def grow(self, capacity: int) -> None:
        """Nothing is kept."""
