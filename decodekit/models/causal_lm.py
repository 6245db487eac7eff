"""The model as the decoding loop sees it: a forward pass over rows that advance independently, and their cache.

A *row* is one sequence. Rows of a batch have their own lengths: `forward` appends `num_tokens[i]` tokens to cache row
`rows[i]` at that row's own length, so unequal prompts, unequal progress and drafts of unequal length need neither
left padding nor a padding mask. Taking tokens back is setting a length (`Cache.truncate`); nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

LogitsKind: TypeAlias = Literal["last", "all"] | Sequence[int]
"""Which positions of a forward pass have logits; see `CausalLM.forward`."""

Rows: TypeAlias = Sequence[int] | None
"""Distinct rows of a cache, or None for all of them."""


def wanted_counts(logits: LogitsKind, num_tokens: Sequence[int]) -> list[int]:
    """At how many of the last tokens of each row logits are wanted, [R]."""
    if isinstance(logits, str):
        return [1] * len(num_tokens) if logits == "last" else list(num_tokens)
    return list(logits)


def assembled(parts: Sequence[Tensor], logits: LogitsKind, width: int) -> Tensor:
    """The result of `CausalLM.forward` from the logits of each row, [n, V]; "all" is `width` tokens wide."""
    if logits == "last":
        return torch.stack([part[-1] for part in parts])
    if logits != "all":
        return torch.cat(tuple(parts))
    out = parts[0].new_zeros(len(parts), width, parts[0].shape[-1])
    for i, part in enumerate(parts):
        out[i, : len(part)] = part
    return out


def forward_apart(
    forward: Callable[..., Tensor],
    sides: Sequence[Hashable],
    tokens: Tensor,
    num_tokens: Sequence[int],
    cache: Any,
    rows: Rows,
    logits: LogitsKind,
    hidden: list[Tensor] | None,
) -> Tensor:
    """`CausalLM.forward` of rows that must not share a pass: one pass for the rows of each side, put together again.

    `hidden`, if it is wanted, gets the hidden states of all rows, [R, T, D] for each layer.
    """
    all_rows = list(range(cache.num_rows)) if rows is None else list(rows)
    counts, width = wanted_counts(logits, num_tokens), max(num_tokens)
    parts: dict[int, Tensor] = {}
    states: dict[int, list[Tensor]] = {}
    for side in dict.fromkeys(sides):
        chosen = [i for i, own in enumerate(sides) if own == side]
        wanted = logits if isinstance(logits, str) else [logits[i] for i in chosen]
        layers: list[Tensor] = []
        seen = None if hidden is None else layers
        out = forward(
            tokens[chosen], [num_tokens[i] for i in chosen], cache, [all_rows[i] for i in chosen], wanted, seen
        )
        rows_of = out.unbind() if logits == "all" else torch.split(out, [counts[i] for i in chosen])
        for place, (i, part) in enumerate(zip(chosen, rows_of, strict=True)):
            parts[i], states[i] = part, [layer[place] for layer in layers]
    if hidden is not None:
        each = zip(*(states[i] for i in range(len(sides))), strict=True)
        hidden += [assembled(layer, "all", width) for layer in each]
    return assembled([parts[i] for i in range(len(sides))], logits, width)


class Cache(Protocol):
    """The state of `num_rows` sequences: for attention, their keys and values.

    Laws: after `truncate(n)` the cache behaves as if only the first `n` tokens of each row had ever been forwarded;
    `reset` is `truncate` to 0 for some rows; `reorder(rows)` makes row i what row `rows[i]` was; `grow` changes no
    later result. No method changes what another row sees.
    """

    @property
    def num_rows(self) -> int:
        """How many sequences the cache holds."""

    @property
    def capacity(self) -> int:
        """How many tokens a row can hold before `grow` is needed."""

    @property
    def lengths(self) -> Tensor:
        """Tokens stored per row, int64 [num_rows], on the model's device."""

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Forget the tokens of each row beyond its new length; nothing moves in memory.

        Args:
            row_lengths: [num_rows] new lengths, none larger than the present one. A tensor on an accelerator is read
                by the host, which waits for it; give host integers where that matters.

        Raises:
            ValueError: a length is negative or larger than the row's present one.
        """

    def reset(self, rows: Sequence[int]) -> None:
        """Set the length of these rows to 0, to use them for other sequences. Works for every model."""

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; `rows` int64 [n], n <= num_rows; rows beyond n are dropped."""

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row, keeping what is stored; a smaller capacity changes nothing."""


class Prefix(Protocol):
    """The keys and values of some first tokens, with which rows of a cache can begin."""

    @property
    def num_tokens(self) -> int:
        """How many tokens it holds; a cache of pages may keep fewer than it was asked for."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes by itself, beside that of prefixes that it stands on."""

    def release(self) -> None:
        """Give the memory back, as far as no row and no other prefix needs it; no row may begin with it any more."""


@runtime_checkable
class SharesPrefixes(Protocol):
    """A cache whose rows can begin with what other rows have read.

    Laws: a row that began with the first n tokens of a prefix behaves as if it had read them itself; neither `keep` nor
    `begin_with` changes what another row sees, and a prefix does not change when its row goes on, is cut or is reset.
    """

    def keep(self, row: int, num_tokens: int) -> Prefix:
        """The first `num_tokens` tokens of a row.

        Raises:
            ValueError: the row holds fewer.
        """

    def begin_with(self, row: int, prefix: Any, num_tokens: int) -> None:
        """Make a row, whatever it was, one that has read the first `num_tokens` tokens of a prefix of this cache.

        Raises:
            ValueError: the prefix holds fewer, or was released.
        """


def host_lengths(cache: Cache) -> list[int]:
    """Tokens stored per row, without a wait for the device where the cache knows them on the host."""
    known: Any = getattr(cache, "row_lengths", None)
    return [*known] if isinstance(known, tuple | list) else [*cache.lengths.tolist()]


NO_DRAFTS: Final = "which keeps recurrent state and reads drafts one token at a time, so that they save nothing"
"""Why a model verifies no drafts."""


def can_verify(model: CausalLM) -> bool:
    """Whether a draft can be verified in one pass, and taken back for the price of reading its accepted part again.

    A model with recurrent state says so by an attribute `can_restore`, since its `can_rollback` is False.
    """
    return model.can_rollback or bool(getattr(model, "can_restore", False))


class CausalLM(Protocol):
    """A causal language model as the generation loop sees it."""

    @property
    def name(self) -> str:
        """Where the model came from: a folder, a hub id or a class name."""

    @property
    def vocab_size(self) -> int:
        """Width V of a row of logits; may exceed the number of tokens of the tokenizer (padding)."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that the model's configuration names as an end of text."""

    @property
    def context_length(self) -> int | None:
        """The most tokens a row may hold, or None where the architecture sets no limit."""

    @property
    def device(self) -> torch.device:
        """Where tokens go in and logits come out."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights; logits are float32 whatever it is."""

    @property
    def can_rollback(self) -> bool:
        """Whether `Cache.truncate` is free. With recurrent state (False) tokens are read again; see `can_verify`."""

    def new_cache(self, num_rows: int, capacity: int) -> Cache:
        """An empty cache for `num_rows` sequences of up to `capacity` tokens each."""

    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens to rows of the cache and return the logits of what may follow them.

        Row i of `tokens` continues cache row `rows[i]` at that row's length, which advances by `num_tokens[i]`. If an
        exception leaves this method, no length has changed.

        Args:
            tokens: int64 [R, T] on the host or the device, right-padded; what stands in the padding does not matter, as
                long as it is a token.
            num_tokens: [R] host integers, 1..T: the real tokens of each row.
            cache: a cache of this model; it grows by itself when a row runs out of capacity.
            rows: [R] distinct cache rows; None means all rows 0..num_rows-1.
            logits: "last": only at each row's last real token; "all": at every position (padding holds no meaning);
                counts [R]: at the last `logits[i]` real tokens of row i, as the verification of a draft needs them.

        Returns:
            float32 [R, V] for "last", [R, T, V] for "all", [sum of the counts, V] for counts: the positions of the
            first row in their order, then those of the second.

        Raises:
            ValueError: shapes, counts or rows that contradict each other.
            ContextLengthError: a row would exceed `context_length`.
        """
