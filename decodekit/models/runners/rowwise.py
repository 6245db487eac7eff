"""The slower tiers, right for models that do not run on the ragged cache: each row by itself, unpadded.

`rowwise` keeps one cache of transformers per row, `recompute` keeps the tokens and runs all of them every time.
Both call the model as its authors wrote it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decodekit.models.caches.kv_cache import checked_order, shortened
from decodekit.models.causal_lm import LogitsKind, Rows, assembled, wanted_counts
from decodekit.models.modules.shared_copy import shared_copy


class RowPrefix:
    """A row as it was, of which the first `num_tokens` tokens count; a `causal_lm.Prefix`."""

    def __init__(self, tokens: list[int], state: Any) -> None:
        self.tokens, self.state = tokens, state
        self.num_tokens = len(tokens)
        layers = getattr(state, "layers", None) or ()
        pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers]
        self.num_bytes = sum(
            one.numel() * one.element_size() for pair in pairs for one in pair if isinstance(one, Tensor)
        )

    def release(self) -> None:
        """Drop the state."""
        self.tokens, self.state = [], None


class RowCache:
    """The tokens of each row, and what the model keeps of them. Implements `causal_lm.Cache`.

    Args:
        can_crop: whether a state can be shortened; where not, the next pass computes a shortened row from its tokens.
    """

    def __init__(self, num_rows: int, capacity: int, device: torch.device, can_crop: bool) -> None:
        if num_rows < 1 or capacity < 1:
            raise ValueError(f"a cache needs at least one row and one slot, not {num_rows} x {capacity}")
        self.tokens: list[list[int]] = [[] for _ in range(num_rows)]
        self.states: list[Any] = [None] * num_rows
        self.capacity = capacity  # what was announced; nothing is reserved
        self._device, self._can_crop = device, can_crop

    @property
    def num_rows(self) -> int:
        """How many sequences the cache holds."""
        return len(self.tokens)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """Tokens stored per row, as host integers."""
        return tuple(len(row) for row in self.tokens)

    @property
    def lengths(self) -> Tensor:
        """Tokens stored per row, int64 [num_rows], on the model's device."""
        return torch.tensor(self.row_lengths, dtype=torch.int64, device=self._device)

    @torch.inference_mode()
    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Shorten the rows; see `causal_lm.Cache.truncate`."""
        new = shortened(self.row_lengths, row_lengths)
        for row, length in enumerate(new):
            surplus = len(self.tokens[row]) - length
            if surplus == 0:
                continue
            if self._can_crop and length > 0 and self.states[row] is not None:
                self.states[row].crop(-surplus)
            else:
                self.states[row] = None
            del self.tokens[row][length:]

    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows; see `causal_lm.Cache.reset`."""
        for row in rows:
            self.tokens[row], self.states[row] = [], None

    @torch.inference_mode()
    def keep(self, row: int, num_tokens: int) -> RowPrefix:
        """A copy of a row; see `causal_lm.SharesPrefixes.keep`. A state that cannot be cropped is kept as a whole only.

        Raises:
            ValueError: the row holds fewer tokens; or more, and cannot be cropped.
        """
        length = len(self.tokens[row])
        if not 0 < num_tokens <= length or (
            num_tokens < length and not self._can_crop and self.states[row] is not None
        ):
            raise ValueError(f"row {row} holds {length} tokens, of which {num_tokens} cannot be kept")
        return RowPrefix(self.tokens[row][:num_tokens], self._state_at(self.states[row], length, num_tokens))

    @torch.inference_mode()
    def begin_with(self, row: int, prefix: RowPrefix, num_tokens: int) -> None:
        """Begin a row with a copy of a kept one; see `causal_lm.SharesPrefixes.begin_with`."""
        if not 0 < num_tokens <= len(prefix.tokens):
            raise ValueError(f"a row cannot begin with {num_tokens} of the {len(prefix.tokens)} tokens of a prefix")
        self.tokens[row] = prefix.tokens[:num_tokens]
        self.states[row] = self._state_at(prefix.state, prefix.num_tokens, num_tokens)

    def _state_at(self, state: Any, length: int, num_tokens: int) -> Any:
        """A copy of a state that has read `length` tokens, as it was after `num_tokens`; None to compute it again."""
        if state is None or (num_tokens < length and not self._can_crop):
            return None
        twin = copy.deepcopy(state)
        if num_tokens < length:
            twin.crop(num_tokens - length)
        return twin

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; see `causal_lm.Cache.reorder`."""
        order = checked_order(rows, self.num_rows)
        # A state that several rows continue from is copied for each but its first.
        self.states = [
            copy.deepcopy(self.states[row]) if row in order[:place] else self.states[row]
            for place, row in enumerate(order)
        ]
        self.tokens = [list(self.tokens[row]) for row in order]

    def grow(self, capacity: int) -> None:
        """Announce longer rows; see `causal_lm.Cache.grow`."""
        self.capacity = max(self.capacity, capacity)


class RowwiseModel:
    """Runs a transformers model row by row.

    Args:
        model: a transformers model; it is not changed.
        state: what is kept between calls. "full": a cache with every token's keys and values, which can be cropped;
            "own": the cache that the model's configuration asks for, which may hold recurrent state; None: nothing,
            every call computes all tokens of the row again.
    """

    def __init__(self, model: nn.Module, state: str | None) -> None:
        self.module = shared_copy(model)
        self.state = state
        self.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
        parameters = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache_params" if "cache_params" in parameters else "past_key_values"
        self._takes_keep = "logits_to_keep" in parameters
        self.can_rollback = self.can_restore = state != "own"

    def new_cache(self, num_rows: int, capacity: int) -> RowCache:
        """An empty cache; see `causal_lm.CausalLM.new_cache`."""
        return RowCache(num_rows, capacity, self.device, self.state == "full")

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: RowCache,
        rows: Rows,
        logits: LogitsKind,
        hidden: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens and return logits; see `causal_lm.CausalLM.forward`.

        `hidden` collects what embeddings and layers say of the new tokens, [R, T, D] each.
        """
        tokens = tokens.to(self.device)
        chosen, counts = range(cache.num_rows) if rows is None else rows, wanted_counts(logits, num_tokens)
        before = {row: len(cache.tokens[row]) for row in chosen}
        results: list[Tensor] = []
        states: list[list[Tensor]] = []  # by row and layer, [T, D]
        try:
            for i, row in enumerate(chosen):
                states.append([])
                found = None if hidden is None else states[-1]
                results.append(self._forward_row(tokens[i, : num_tokens[i]], cache, row, int(counts[i]), found))
        except BaseException:
            # A state half-way through a pass is worth nothing: drop it, and the next pass starts from the tokens.
            for row, length in before.items():
                if len(cache.tokens[row]) != length:
                    cache.states[row] = None
                    del cache.tokens[row][length:]
            raise
        if hidden is not None:
            hidden += [pad_sequence(list(layer), batch_first=True) for layer in zip(*states, strict=True)]
        return assembled(results, logits, max(num_tokens))

    def _forward_row(
        self, new: Tensor, cache: RowCache, row: int, num_wanted: int, hidden: list[Tensor] | None
    ) -> Tensor:
        """float32 [num_wanted, V]: logits of the last new tokens of one row; `hidden` collects [T, D] each."""
        added: list[int] = new.tolist()
        if self.state is None or (cache.states[row] is None and cache.tokens[row]):
            new = torch.tensor(cache.tokens[row] + added, device=self.device)
        arguments: dict[str, Any] = {"use_cache": self.state is not None}
        if self.state is not None:
            if cache.states[row] is None:
                cache.states[row] = new_state(self.module, self.state)
            arguments[self._cache_argument] = cache.states[row]
        if self._takes_keep:
            arguments["logits_to_keep"] = num_wanted
        if hidden is not None:
            arguments["output_hidden_states"] = True
        is_continued = self.state == "own" and bool(cache.tokens[row]) and len(new) == len(added)
        cache.tokens[row].extend(added)
        # Several tokens after a recurrent state: some architectures would start from an empty state, so one by one.
        outs, states = [], []
        for piece in torch.split(new, 1) if is_continued else (new,):
            result = self.module(input_ids=piece[None], **arguments)
            outs.append(result.logits[0].float())
            if hidden is not None:
                states.append([layer[0] for layer in result.hidden_states or ()])
        if hidden is not None:
            hidden += [torch.cat(layer)[-len(added) :] for layer in zip(*states, strict=True)]
        out = torch.cat(outs) if len(outs) > 1 else outs[0]
        return out[-num_wanted:]


def new_state(model: nn.Module, state: str) -> Any:
    """The cache of transformers that a row begins with; see `RowwiseModel`."""
    from transformers import DynamicCache

    # Without a configuration every layer keeps all tokens, also one with a sliding window, so it can be cropped.
    return DynamicCache(config=None if state == "full" else model.config)
