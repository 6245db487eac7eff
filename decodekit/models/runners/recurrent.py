"""The tier of models with recurrent state: all rows in one pass, each with its own state beside its keys and values.

    row 0  "The cat sat"   state after 3 tokens          keys and values of 3 tokens
    row 1  "Two men"       state after 2 tokens          keys and values of 2 tokens

    A draft "on it" behind row 0 moves its state on; the state before is kept. The draft is refused: `truncate([3, 2])`
    puts the kept state back. Is "on" accepted: `truncate([4, 2])` puts it back, too, and "on" is *unread*: the next
    pass reads it again, in front of what is new. So taking tokens back costs no pass of its own, but it is not free.

Over pages (on CUDA) the states of all rows lie beside the tables, and a pass of one new token for each row is captured
(`paged`). Everything else is as over a rectangle: the host sees every token before the next pass.

A state is whatever tensors a model keeps between passes that do not grow with the text: those in the layers of its
cache (`LinearAttentionLayer` of transformers), in its output (RWKV), or in its modules (RecurrentGemma). Nothing here
knows an architecture. Padding would enter a state, so rows go together where they read equally many tokens, or are put
back afterwards. Whether a model goes on rightly from a state, with several tokens at a time or only with one, is
decided by the self-check.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decodekit.models.caches.kv_cache import LayerShape, RaggedCache, RowLengths, Step, checked_order, shortened
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.causal_lm import LogitsKind, Rows, assembled, wanted_counts
from decodekit.models.modules.merged_products import SharedInputs
from decodekit.models.programs.replay import Replays
from decodekit.models.runners.captured import StepCapture
from decodekit.models.runners.paged_step import LayerProbe, PagedStep
from decodekit.models.runners.ragged import RaggedModel, Recorder, past_key_values_class

MAX_SINGLE: Final = 4
"""Most tokens that are read again one by one; beyond, the row is computed from its first token."""

MAX_UNREAD: Final = 8
"""Most tokens that a row leaves unread while others have drafts; with more it has a pass of its own."""

_ARGUMENTS = ("past_key_values", "cache_params", "state")


class NoStateError(Exception):
    """The model is none of those that this tier is for; never leaves this room."""


class RecurrentCache(RowLengths):
    """The tokens of each row, their state, and the keys and values of the layers with attention, if there are some.

    Args:
        kv: keys and values.
        states: of every row, [R, ...] each. Over pages those of all rows of the tables.
        in_chunks: whether several tokens can be read after a state at a time.
    """

    def __init__(self, kv: RaggedCache | PagedCache, states: Sequence[Tensor], in_chunks: bool) -> None:
        num_rows = kv.num_rows
        super().__init__(num_rows, states[0].device)
        self.kv, self.states, self.in_chunks = kv, list(states), in_chunks
        self.bytes_per_token, self.state_bytes = kv.bytes_per_token, sum(state[0].nbytes for state in states)
        self._places = kv.places if isinstance(kv, PagedCache) else list(range(num_rows))  # row -> row of the states
        self.read = [0] * num_rows  # tokens that the state of a row has seen
        self._kept: list[Tensor] = []  # an earlier state of each row; made when first wanted
        self._kept_read: list[int | None] = [None] * num_rows
        self._tokens: list[list[int]] = [[] for _ in range(num_rows)]

    @property
    def capacity(self) -> int:
        """How many tokens a row can hold before `grow` is needed."""
        return self.kv.capacity

    @property
    def num_bytes(self) -> int:
        """Memory of keys, values and states."""
        return self.kv.num_bytes + self.num_rows * self.state_bytes + sum(one.nbytes for one in self._kept)

    def num_unread(self, row: int) -> int:
        """Tokens of a row that the next pass reads again."""
        return self._lengths[row] - self.read[row]

    def add(self, rows: Sequence[int], tokens: Tensor, num_tokens: Sequence[int]) -> None:
        """Write tokens [R, T] behind the rows; `commit` makes them part of their rows."""
        for row, new, count in zip(rows, tokens.tolist(), num_tokens, strict=True):
            self._tokens[row][self._lengths[row] :] = new[:count]

    def span(self, rows: Sequence[int], begins: Sequence[int], width: int) -> Tensor:
        """int64 [R, width] on the host: the tokens of rows from their beginnings on, and 0 behind their ends."""
        found = (self._tokens[row][begin : begin + width] for row, begin in zip(rows, begins, strict=True))
        return torch.tensor([[*one, *[0] * (width - len(one))] for one in found])

    def commit(self, rows: Sequence[int], num_tokens: Sequence[int]) -> None:
        """Advance the lengths of rows."""
        for row, count in zip(rows, num_tokens, strict=True):
            self._lengths[row] += count

    def states_of(self, rows: Sequence[int]) -> list[Tensor]:
        """The state of some rows: views where they are neighbours, copies where not."""
        if all(row == rows[0] + i for i, row in enumerate(rows)):
            return [state.narrow(0, rows[0], len(rows)) for state in self.states]
        return [state[list(rows)] for state in self.states]

    def put(self, rows: Sequence[int], given: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """Store the state that a pass has left; `given` are the tensors of `states_of` that it started from, if any."""
        is_slice = all(row == rows[0] + i for i, row in enumerate(rows))
        for i, (state, new) in enumerate(zip(self.states, found, strict=True)):
            if new.shape != (len(rows), *state.shape[1:]):
                raise RuntimeError(f"a state of {tuple(state.shape[1:])} per row became {tuple(new.shape[1:])}")
            if not is_slice:
                state[list(rows)] = new.to(state.dtype)
            elif not given or new.data_ptr() != given[i].data_ptr():  # a recording gives what it wrote into anew
                state.narrow(0, rows[0], len(rows)).copy_(new)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the present state of rows, to go back to."""
        self._kept = self._kept or [state.new_zeros(self.num_rows, *state.shape[1:]) for state in self.states]
        for kept, state in zip(self._kept, self.states, strict=True):
            kept[list(rows)] = state[[self._places[row] for row in rows]]
        for row in rows:
            self._kept_read[row] = self.read[row]

    def put_back(self, rows: Sequence[int]) -> None:
        """Take the states that were kept of rows last, before what they have read since."""
        for state, kept in zip(self.states, self._kept, strict=True):
            state[[self._places[row] for row in rows]] = kept[list(rows)]
        self._set_read({row: self._kept_read[row] or 0 for row in rows})

    def is_kept(self, row: int) -> bool:
        """Whether an earlier state of a row is kept."""
        return self._kept_read[row] is not None

    def forget(self, rows: Sequence[int]) -> None:
        """The states of rows are worth nothing: their tokens will be read from the first on."""
        self._set_read(dict.fromkeys(rows, 0))
        for row in rows:
            self._kept_read[row] = None

    @contextmanager
    def or_forgotten(self, rows: Sequence[int]) -> Iterator[None]:
        """The time in which states of rows change: they are worth nothing if that fails."""
        try:
            yield
        except BaseException:
            self.forget(rows)
            raise

    def _set_read(self, read: dict[int, int]) -> None:
        for row, length in read.items():
            self.read[row] = length
        held = self.kv.row_lengths
        self.kv.truncate([min(length, held[row]) for row, length in enumerate(self.read)])
        if isinstance(self.kv, PagedCache):
            for row in self.kv.tokens_to_read(list(read)):  # whose sliding window had passed: from the first token on
                self.read[row], self._kept_read[row] = 0, None

    @torch.inference_mode()
    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Forget tokens of the rows; see `causal_lm.Cache.truncate`."""
        self._lengths = shortened(self._lengths, row_lengths)
        changed = {}
        for row, length in enumerate(self._lengths):
            if length >= self.read[row]:
                continue
            kept = self._kept_read[row]
            if kept is not None and kept > length:
                kept = self._kept_read[row] = None
            if kept is not None and not self.in_chunks and length - kept > MAX_SINGLE:
                kept = None
            changed[row] = kept or 0
        with self.or_forgotten([*changed]):
            for row in (row for row, kept in changed.items() if kept):
                for state, earlier in zip(self.states, self._kept, strict=True):
                    state[self._places[row]] = earlier[row]
        if changed:
            self._set_read(changed)

    @torch.inference_mode()
    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows; see `causal_lm.Cache.reset`."""
        self.kv.reset(rows)
        for row in rows:
            self._lengths[row] = self.read[row] = 0
            self._kept_read[row] = None

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; see `causal_lm.Cache.reorder`."""
        order = checked_order(rows, self.num_rows)
        sources = [self._places[row] for row in order]
        with self.or_forgotten(range(self.num_rows)):
            self.kv.reorder(rows)
            for state in self.states:
                state[self._places[: len(order)]] = state[sources]
            self._kept = [kept[order] for kept in self._kept]
        self._tokens = [list(self._tokens[row]) for row in order]
        self.read = [self.read[row] for row in order]
        self._kept_read = [self._kept_read[row] for row in order]
        self._lengths = [self._lengths[row] for row in order]

    @torch.inference_mode()
    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row; see `causal_lm.Cache.grow`."""
        self.kv.grow(capacity)


class RecurrentModel(RaggedModel):
    """Runs a transformers model with recurrent state on rows of unequal lengths.

    Args:
        model: a transformers model; it is not changed.
        in_chunks: read several tokens after a state in one pass; else one by one.
        use_pages, capture: see `ragged.RaggedModel`.

    Raises:
        Exception: the model keeps no state that can be held by row, or cannot be run this way.
    """

    can_rollback = False

    def __init__(
        self, model: nn.Module, in_chunks: bool = True, *, use_pages: bool = False, capture: StepCapture | None = None
    ) -> None:
        parameters = inspect.signature(type(model).forward).parameters
        arguments = [name for name in _ARGUMENTS if name in parameters]
        if not arguments:
            raise NoStateError("the model takes no cache")
        self._argument = arguments[-1]
        self.in_chunks = self.can_restore = in_chunks
        self.num_passes = 0
        """Forward calls of the model so far."""
        self._one_pass = threading.RLock()  # states in modules belong to one pass at a time
        super().__init__(model, use_pages=use_pages, capture=capture)
        self._replays = self._new_replays()

    def _new_replays(self) -> Replays | None:
        """Recorded steps of a token after a state, on a CPU; not where the modules hold their state themselves."""
        if self.device.type != "cpu" or self._holders or self.is_spread or self.paged is not None:
            return None
        return Replays(self.module, self.layers)

    @torch.inference_mode()
    def _find_layers(self, shared: SharedInputs | None = None) -> dict[int, LayerShape]:
        """The shapes of keys, values and states, seen in a first pass over two rows of two tokens."""
        tokens = torch.zeros(2, 2, dtype=torch.int64, device=self.device)
        positions = torch.arange(2, device=self.device).unsqueeze(0)
        step = Step([0, 0], [2, 2], 2, positions)
        try:
            own = getattr(self.run(tokens, step, None, None), self._argument, None)
        except Exception:  # some make a cache that they cannot use
            own = None
        self._empty = _empty_cache(own, self.module.config, self._argument)
        self._holders: list[tuple[nn.Module, str]] = []
        recorder = Recorder()
        logits, left = self._pass(tokens, step, recorder, None, 0)
        for module in self.module.modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == 2 and value.is_inference():
                    self._holders.append((module, name))
        self._template = left
        self._is_state = [leaf.shape[:1] == (2,) for leaf in self._leaves(left)]
        self.states = [state[:1].clone() for state in self._states_in(left)]
        if not self.states:
            raise NoStateError("the model keeps no recurrent state")
        self.vocab_size: int = logits.shape[-1]
        return recorder.layers

    def run(self, tokens: Tensor, step: Any, store: Any, keep: Any, module: nn.Module | None = None) -> Any:
        """The output of the model; over pages its logits alone, and it takes the states of its rows and leaves them."""
        if isinstance(step, LayerProbe):
            return SimpleNamespace(logits=self._pass(tokens, step, store, None, 0, module)[0])
        if not isinstance(step, PagedStep):
            return super().run(tokens, step, store, keep, module)
        held = step.rows.states
        states = None if step.is_fresh else held.taken(step.places)
        logits, left = self._pass(tokens, step, store, states, keep or 0, module)
        held.put(step.places, self._states_in(left))
        return SimpleNamespace(logits=logits)

    def _past(self, store: Any, step: Step | None) -> Any:
        """The cache that `_pass` gives to `run`, which is one for modules already."""
        return store

    def _leaves(self, past: Any) -> list[Tensor]:
        return [*_tensors(past), *(getattr(module, name) for module, name in self._holders)]

    def _pass(
        self,
        tokens: Tensor,
        step: Any,
        store: Any,
        states: Sequence[Tensor] | None,
        keep: int,
        module: nn.Module | None = None,
    ) -> tuple[Tensor, Any]:
        """Logits of one pass, and what the model left; from a state, or from none."""
        past: Any
        if states is None:
            past = copy.deepcopy(self._empty)
            for holder, name in self._holders:
                setattr(holder, name, None)
        else:
            waiting = iter(states)
            leaves = (
                next(waiting) if is_state else leaf
                for leaf, is_state in zip(self._leaves(self._template), self._is_state, strict=True)
            )
            past = _with_tensors(self._template, leaves)
            for holder, name in self._holders:
                setattr(holder, name, next(leaves))
        if hasattr(past, "store"):
            past.store, past.step = store, step
        out = super().run(tokens, step, past, keep or None, module)
        return out.logits, past if hasattr(past, "store") else getattr(out, self._argument, None)

    def _run_next(
        self, module: nn.Module, tokens: Tensor, step: Step, store: Any, states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Logits [R, 1, V] of one new token of each row, and the states after it."""
        out, left = self._pass(tokens, step, store, states, 1, module)
        return [out, *self._states_in(left)]

    def _states_in(self, left: Any) -> list[Tensor]:
        """The states [R, ...] in what a pass has left."""
        return [leaf for leaf, is_state in zip(self._leaves(left), self._is_state, strict=True) if is_state]

    def new_cache(self, num_rows: int, capacity: int) -> RecurrentCache:  # type: ignore[override]
        """An empty cache; see `causal_lm.CausalLM.new_cache`."""
        if self.paged is not None:
            kv = self.paged.new_cache(num_rows, capacity)
            return RecurrentCache(kv, kv.rows.states.planes, self.in_chunks)
        states = [state.new_zeros(num_rows, *state.shape[1:]) for state in self.states]
        rectangle = RaggedCache(self.layers, num_rows, capacity, self.device)
        return RecurrentCache(rectangle, states, self.in_chunks)

    @torch.inference_mode()
    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: RecurrentCache,
        rows: Rows,
        logits: LogitsKind,
        hidden: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens and return logits; see `causal_lm.CausalLM.forward`."""
        chosen = list(range(cache.num_rows)) if rows is None else list(rows)
        wanted = wanted_counts(logits, num_tokens)
        cache.add(chosen, tokens, num_tokens)
        ends = {row: cache.row_lengths[row] + count for row, count in zip(chosen, num_tokens, strict=True)}
        parts: dict[int, list[Tensor]] = {row: [] for row in chosen}
        seen: dict[int, list[Sequence[Tensor]]] = {row: [] for row in chosen}
        most = dict(zip(chosen, wanted, strict=True))
        with cache.or_forgotten(chosen), self._one_pass if self._holders else self._guard:
            for group, widths in self._groups(cache, ends, max(num_tokens) > 1):
                layers: list[Tensor] | None = None if hidden is None else []
                for row, out in zip(group, self._read(cache, group, widths, most, layers), strict=True):
                    parts[row].append(out)
                for i, (row, width) in enumerate(zip(group, widths, strict=True)):
                    seen[row].append([layer[i, :width] for layer in layers or ()])
        cache.commit(chosen, num_tokens)
        if hidden is not None:
            of_rows = [  # by row and layer, [T, D] at its last tokens, from all of its passes
                [torch.cat(layer)[-count:] for layer in zip(*seen[row], strict=True)]
                for row, count in zip(chosen, num_tokens, strict=True)
            ]
            hidden += [pad_sequence(list(layer), batch_first=True) for layer in zip(*of_rows, strict=True)]
        rows_out = [
            (parts[row][0] if len(parts[row]) == 1 else torch.cat(parts[row]))[-count:]
            for row, count in zip(chosen, wanted, strict=True)
        ]
        return assembled(rows_out, logits, max(num_tokens))

    def _groups(
        self, cache: RecurrentCache, ends: dict[int, int], has_drafts: bool
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Rows that are read in one pass, with their numbers of tokens; begins are looked at as the passes go on.

        Padding enters a state, so rows go together where they read equally many tokens. Where there are drafts, of
        which some is taken back anyway, rows with few tokens to read are padded and put back afterwards: their tokens
        are read again with those of the next pass.
        """
        fresh: dict[int, list[int]] = {}
        going: dict[int, list[int]] = {}
        for row, end in ends.items():
            of_kind = going if cache.read[row] > 0 else fresh
            of_kind.setdefault(end - cache.read[row], []).append(row)
        for width, group in fresh.items():
            yield group, [width] * len(group)
        if not self.in_chunks:
            rows = [row for group in going.values() for row in group]
            while rows := [row for row in sorted(rows) if cache.read[row] < ends[row]]:
                yield rows, [1] * len(rows)
            return
        if has_drafts and len(going) > 1:
            padded = sorted(row for group in going.values() for row in group if cache.num_unread(row) <= MAX_UNREAD)
            if padded:
                yield padded, [ends[row] - cache.read[row] for row in padded]
            going = {width: [row for row in group if row not in padded] for width, group in going.items()}
        for width, group in going.items():
            if group:
                yield group, [width] * len(group)

    def _read(
        self,
        cache: RecurrentCache,
        rows: list[int],
        widths: list[int],
        most: dict[int, int],
        hidden: list[Tensor] | None,
    ) -> list[Tensor]:
        """float32 [n, V] of each row: logits of its last `most[row]` tokens, or as many as there are, of one pass."""
        begins, width = [cache.read[row] for row in rows], max(widths)
        is_fresh, is_padded = begins[0] == 0, min(widths) < width
        if not is_fresh:
            new = [row for row in rows if not cache.is_kept(row) or is_padded or (width > 1 and self.in_chunks)]
            if new:
                cache.keep(new)
        tokens = cache.span(rows, begins, width)
        counts = [min(own, most[row]) for row, own in zip(rows, widths, strict=True)]  # logits of each
        self.num_passes += 1
        if isinstance(cache.kv, PagedCache):
            assert self.paged is not None
            out = self.paged.forward(tokens, widths, cache.kv, rows, counts, hidden, self.is_strict)
            wanted = list(torch.split(out, counts))
        else:
            is_all = rows == list(range(cache.num_rows))
            step = cache.kv.begin(widths, None if is_all else rows, [tokens])
            [tokens] = step.carried
            step.is_strict, step.hidden = self.is_strict, hidden
            given = [] if is_fresh else cache.states_of(rows)
            if self._replays is not None and width == 1 and not is_fresh and hidden is None:
                out, *found = self._replays.step(
                    tokens,
                    rows,
                    begins,
                    cache.kv,
                    self._run_next,
                    lambda states: self._run_next(self.module, tokens, step, cache.kv, states),
                    given,
                )
            else:
                num_kept = width - min(own - count for own, count in zip(widths, counts, strict=True))
                out, left = self._pass(tokens, step, cache.kv, None if is_fresh else given, num_kept)
                found = self._states_in(left)
            cache.put(rows, given, found)
            cache.kv.commit(step.row_ends, None if is_all else rows)
            ends = [own - (width - out.shape[1]) for own in widths]  # of columns that have logits
            wanted = [one[end - count : end].float() for one, end, count in zip(out, ends, counts, strict=True)]
        for row, own in zip(rows, widths, strict=True):
            cache.read[row] += own
        if is_padded:
            cache.put_back([row for row, own in zip(rows, widths, strict=True) if own < width])
        return wanted

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_one_pass", "_guard", "_empty", "_template", "_replays")  # locks, and classes made at run time
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._one_pass = threading.RLock()
        self._guard = nullcontext()
        self.layers = self._find_layers()
        self._replays = self._new_replays()


def _empty_cache(own: Any, config: Any, argument: str) -> Any:
    """The cache to hand to a model that begins: of its own class, with keys and values elsewhere; or None.

    `own` is the cache that the model has made for itself; None if it has failed.
    """
    from transformers import Cache, DynamicCache

    is_cache = isinstance(own, Cache) if own is not None else argument != "state"
    if not is_cache:
        return None
    kind: Any = DynamicCache if own is None else type(own)
    empty: Any = kind(config=config) if kind is DynamicCache else kind()
    ours = past_key_values_class()
    empty.__class__ = type(ours.__name__, (ours, type(empty)), {})
    empty.store = empty.step = None
    return empty


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of a container by their keys; attributes of a cache of transformers, or of a layer of one, are such."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif type(value).__module__.startswith(("transformers.", "decodekit.models")) and not hasattr(value, "to_dict"):
        yield from ((n, each) for n, each in getattr(value, "__dict__", {}).items() if n not in ("store", "step"))


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what a model keeps, always in the same order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, each in _items(value):
            yield from _tensors(each)


def _with_tensors(value: Any, leaves: Iterator[Tensor]) -> Any:
    """A copy of what a model keeps with other tensors in it."""
    if isinstance(value, Tensor):
        return next(leaves)
    changed = {name: _with_tensors(each, leaves) for name, each in _items(value)}
    if isinstance(value, dict):
        return changed
    if isinstance(value, list | tuple):
        return type(value)(changed.values())
    if changed:
        twin = copy.copy(value)
        vars(twin).update(changed)
        return twin
    return value
