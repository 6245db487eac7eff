"""A toy language model with its tokenizer: quick, the same on every machine, and inclined to repeat itself.

Its logits are a function of what the row has read, so that a token that is missing, repeated or in the wrong row shows
in the text. What was said before is likely to be said again, so that drafts have something to guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.llm import LLM
from decodekit.models.causal_lm import Cache, LogitsKind, Rows
from decodekit.sampling import gumbel

_END: Final = 256
_PIECES: Final = (b"ab", b"ba", b"abc", b"cd", b", ", b'":', b'{"', b"12", b"th", b"the", b" the", b"\xc3\xa9")
_TOKENS: Final = (*(bytes((byte,)) for byte in range(256)), None, *_PIECES)
_COMMON: Final = b'abcdefgh ,.0123"{}:[]'


class ToyTokenizer:
    """A few tokens and an end of text, None; of the tokens that fit the longest is taken.

    It has the methods of a `tiktoken.Encoding` by which `Vocabulary.from_tokenizer` reads its tokens.
    """

    special_tokens_set = frozenset({"<|endoftext|>"})

    def __init__(self, tokens: Sequence[bytes | None] = _TOKENS) -> None:
        self.n_vocab = len(tokens)
        self._tokens = tokens
        self._ids = {data: token for token, data in enumerate(tokens) if data is not None}
        pieces = sorted(self._ids, key=len, reverse=True)
        self._division = re.compile(b"|".join(map(re.escape, pieces)), re.DOTALL)

    def encode_single_token(self, text: str) -> int:
        """The id of the special token."""
        return {"<|endoftext|>": self._tokens.index(None)}[text]

    def decode_single_token_bytes(self, token: int) -> bytes:
        """The bytes of a token; KeyError if it has none."""
        data = self._tokens[token]
        if data is None:
            raise KeyError(token)
        return data

    def encode(self, text: str, bos: bool = False, eos: bool = False) -> list[int]:
        """Token ids, left to right; `bos` and `eos` have no effect."""
        return [self._ids[piece] for piece in self._division.findall(text.encode())]


class ToyCache:
    """The tokens of every row; see `models.causal_lm.Cache`."""

    def __init__(self, num_rows: int, capacity: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_rows)]
        self.capacity = capacity

    @property
    def num_rows(self) -> int:
        """The number of sequences."""
        return len(self.tokens)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, int64 [num_rows]."""
        return torch.tensor([len(row) for row in self.tokens], dtype=torch.int64)

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Forget the tokens beyond."""
        for row, length in zip(self.tokens, row_lengths, strict=True):
            if not 0 <= length <= len(row):
                raise ValueError(f"a row of {len(row)} tokens cannot be cut to {length}")
            del row[int(length) :]

    def reset(self, rows: Sequence[int]) -> None:
        """Empty rows."""
        for row in rows:
            self.tokens[row] = []

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self.tokens = [list(self.tokens[row]) for row in rows.tolist()]

    def grow(self, capacity: int) -> None:
        """More room."""
        self.capacity = max(self.capacity, capacity)


class ToyLM:
    """A `CausalLM` whose logits are pseudo-random in the last three tokens of a row, and higher for repeats.

    Another seed is another model; two of them agree where the text repeats itself.
    """

    name = "toy"
    vocab_size = len(_TOKENS)
    eos_token_ids = frozenset({_END})
    context_length = None
    device = torch.device("cpu")
    dtype = torch.float32
    can_rollback = True
    num_layers = 1

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._base = torch.full((len(_TOKENS),), -9.0)
        self._base[[*_COMMON]] = 0.0
        self._base[_END:] = -1.0

    def new_cache(self, num_rows: int, capacity: int) -> ToyCache:
        """Empty rows."""
        return ToyCache(num_rows, capacity)

    def logits_after(self, prefix: Sequence[int]) -> Tensor:
        """Logits after a prefix, float32 [V]."""
        key = 0
        for token in prefix[-3:]:
            key = (key * 1_000_003 + token + 1) % (1 << 62)
        logits = self._base + gumbel([self.seed], [0], [key], len(_TOKENS), self.device)[0]
        for place in range(len(prefix) - 1, 2, -1):  # what followed the last two tokens when they came before
            if prefix[place - 2 : place] == prefix[-2:]:
                logits[prefix[place]] += 3.0
                break
        return logits

    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """See `models.causal_lm.CausalLM.forward`."""
        assert isinstance(cache, ToyCache)
        rows = range(cache.num_rows) if rows is None else rows
        wanted = [1] * len(rows) if logits == "last" else num_tokens if logits == "all" else logits
        found = torch.zeros(*tokens.shape, self.vocab_size)
        for i, (row, count) in enumerate(zip(rows, num_tokens, strict=True)):
            read = cache.tokens[row]
            for place, token in enumerate(tokens[i, :count].tolist()):
                read.append(token)
                if place >= count - wanted[i]:
                    found[i, place] = self.logits_after(read)
        if logits == "all":
            return found
        return torch.cat([row[end - n : end] for row, end, n in zip(found, num_tokens, wanted, strict=True)])

    def forward_hidden(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: Cache,
        rows: Rows = None,
        *,
        layers: Sequence[int] = (-1,),
        **options: Any,
    ) -> tuple[Tensor, list[Tensor]]:
        """See `models.layers.HiddenStates.forward_hidden`; all layers say the same, 16 numbers for every token."""
        found = self.forward(tokens, num_tokens, cache, rows, **options)
        keys = tokens.flatten().tolist()
        hidden = gumbel([self.seed] * len(keys), [1] * len(keys), keys, 16, self.device).view(*tokens.shape, 16)
        return found, [hidden] * len(layers)


def toy_llm(seed: int = 0) -> LLM:
    """The toy model and its tokenizer as an `LLM`."""
    return LLM(ToyLM(seed), ToyTokenizer())
