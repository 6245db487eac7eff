"""The toy model with a cache that keeps prefixes."""

from __future__ import annotations

from decodekit.testing.toy import ToyCache, ToyLM


class ToyPrefix:
    """The first tokens of a row; see `models.causal_lm.Prefix`. A token counts as a byte."""

    def __init__(self, tokens: list[int], living: set[int]) -> None:
        self._tokens, self._living = tokens, living
        self.num_tokens = self.num_bytes = len(tokens)
        living.add(id(self))

    @property
    def tokens(self) -> list[int]:
        """The tokens; empty after `release`."""
        return self._tokens

    def release(self) -> None:
        """Forget the tokens."""
        self._tokens = []
        self._living.discard(id(self))


class SharingCache(ToyCache):
    """A toy cache that keeps prefixes. `prefixes` are those that were not released."""

    def __init__(self, num_rows: int, capacity: int) -> None:
        super().__init__(num_rows, capacity)
        self.prefixes: set[int] = set()

    def keep(self, row: int, num_tokens: int) -> ToyPrefix:
        """The first tokens of a row; see `models.causal_lm.SharesPrefixes`."""
        if not 0 < num_tokens <= len(self.tokens[row]):
            raise ValueError(f"a row of {len(self.tokens[row])} tokens has no first {num_tokens}")
        return ToyPrefix(self.tokens[row][:num_tokens], self.prefixes)

    def begin_with(self, row: int, prefix: ToyPrefix, num_tokens: int) -> None:
        """A row has read the first tokens of a prefix."""
        if not 0 < num_tokens <= len(prefix.tokens):
            raise ValueError(f"a prefix of {len(prefix.tokens)} tokens has no first {num_tokens}")
        self.tokens[row] = prefix.tokens[:num_tokens]


class SharingLM(ToyLM):
    """A toy model whose caches keep prefixes."""

    def new_cache(self, num_rows: int, capacity: int) -> SharingCache:
        """Empty rows."""
        return SharingCache(num_rows, capacity)
