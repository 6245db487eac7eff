"""The fast tier: a model's own modules over the ragged cache, with decodekit's attention function.

Nothing here knows an architecture. Whether a model computes the right thing this way is decided by the self-check.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from decodekit.gpu.pages import Stored
from decodekit.models.caches.kv_cache import LayerShape, RaggedCache, Step
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.causal_lm import LogitsKind, Rows, forward_apart
from decodekit.models.modules.few_row_layers import with_few_rows
from decodekit.models.modules.merged_products import SharedInputs
from decodekit.models.modules.shared_copy import context_length_of, is_spread, rope_types, shared_copy, with_longrope
from decodekit.models.programs.replay import MAX_TOKENS, MAX_WIDTH, Replays
from decodekit.models.runners import attention
from decodekit.models.runners.captured import StepCapture, grouped_products_wait
from decodekit.models.runners.paged import PagedModel


class Output(Protocol):
    """The output of the modules of transformers."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None


class RaggedModel:
    """Runs a transformers model on rows of unequal lengths.

    Args:
        model: a transformers model; it is not changed.
        own_attention: leave the model its own attention and hand it a mask, for those that ignore the attention
            interface.
        use_pages: keep what rows have read in pages, as on a GPU; otherwise in a rectangle.
        capture: makes captured steps of steps over pages; None runs them as they are.
        compiler, stored: see `paged.PagedModel`.

    Raises:
        Exception: whatever the model raises when it is run this way; then it needs a slower tier.
    """

    can_rollback = True
    can_restore = True
    """Whether taking back a draft costs at most another reading of its accepted part."""
    _argument = "past_key_values"
    states: Sequence[Tensor] = ()
    """One row of every tensor that the model keeps beside keys and values, [1, ...] each."""

    def __init__(
        self,
        model: nn.Module,
        own_attention: bool = False,
        *,
        use_pages: bool = False,
        capture: StepCapture | None = None,
        compiler: str | Callable[..., Any] | None = None,
        stored: Stored = Stored.AS_GIVEN,
    ) -> None:
        attention.register()
        # The model with decodekit's attention function.
        self.module: nn.Module = with_few_rows(shared_copy(model, None if own_attention else attention.ATTENTION_NAME))
        if capture is not None and experts_wait(model):  # on the copy, whose configuration is its own
            self.module.set_experts_implementation("batched_mm")  # type: ignore[operator]
        self._own_attention = own_attention
        self.is_spread = is_spread(model)
        """Whether the model lies on several devices, or in several processes; then its modules run every pass."""
        self.dtype: torch.dtype = model.dtype  # type: ignore[assignment]
        self.device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
        self._is_cuda = self.device.type == "cuda"
        config = model.config.get_text_config()  # type: ignore[operator, union-attr]
        parameters = inspect.signature(type(model).forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._takes_keep = "logits_to_keep" in parameters
        self._keeps_per_row = False
        self.is_strict = False  # refuse what the attention function does not know; on during the self-check
        # LongRoPE turns from short to long factors for the whole batch at once when one row gets long.
        kinds = rope_types(config)
        self._longrope_limit: int | None = kinds.get("longrope", {}).get("original_max_position_embeddings")
        # Models that rewrite their rotary frequencies during the pass cannot run in two threads at once.
        rewrites = any("dynamic" in kind or kind == "longrope" for kind in kinds)
        long_module: nn.Module | None = None
        limit = self._longrope_limit
        if limit is not None:
            with suppress(AttributeError, KeyError, TypeError):  # then it goes on rewriting them
                long_module = with_longrope(self.module, is_long=True)
                self.module = with_longrope(self.module, is_long=False)
                rewrites = False
        self._guard: AbstractContextManager[Any] = threading.RLock() if rewrites else nullcontext()
        self._sets_step = False  # for the attention function to find it, where it is not handed on
        shared = SharedInputs()
        try:
            self.layers = self._find_layers(shared)
        except attention.StepNotHandedOnError:
            self._sets_step = True
            self.layers = self._find_layers(shared)
        self.paged: PagedModel | None = None
        if use_pages:
            if self.is_spread:
                raise attention.UnsupportedAttentionError("the model is spread, its pages lie on one device")
            self.paged = PagedModel(self, context_length_of(config), None if rewrites else capture, compiler, stored)
            if long_module is not None and limit is not None:
                self.paged.read_long_rows_by(long_module, limit)
        self._replays: Replays | None = None
        if self.device.type == "cpu" and not rewrites and not own_attention and not self.is_spread:
            self._replays = Replays(self.module, self.layers)
        self._long: RaggedModel | None = None
        """The runner of rows of a rectangle beyond the limit of LongRoPE; None if there is no such limit."""
        if long_module is not None:
            self._long = copy.copy(self)
            self._long.module, self._long._longrope_limit, self._long._replays = long_module, None, None

    @torch.inference_mode()
    def _find_layers(self, shared: SharedInputs) -> dict[int, LayerShape]:
        """The shapes of the keys and values, seen in a pass over rows of one and two tokens; `shared` watches it."""
        recorder = Recorder()
        tokens = torch.zeros(2, 2, dtype=torch.int64, device=self.device)
        positions = torch.arange(2, device=self.device).unsqueeze(0)
        step = Step([0, 0], [1, 2], 2, positions)
        with shared.watched(self.module):
            logits = self.run(tokens, step, recorder, None).logits
        if not recorder.layers:
            raise attention.UnsupportedAttentionError("no layer of the model stores keys and values")
        if self._takes_keep:
            # Since transformers 5.23 the positions whose logits are wanted may differ by row.
            last = torch.tensor([[0], [1]], device=self.device)
            try:
                kept = self.run(tokens, step, Recorder(), last).logits
            except (IndexError, RuntimeError, TypeError, ValueError):
                kept = logits
            self._keeps_per_row = kept.shape == (2, 1, logits.shape[-1])
        self.vocab_size: int = logits.shape[-1]
        return recorder.layers

    def _run_last(
        self, module: nn.Module, tokens: Tensor, step: Step, store: Any, states: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Logits [R, V] of the last of equally many new tokens per row."""
        return [self.run(tokens, step, store, 1, module).logits[:, -1].float()]

    def run(
        self, tokens: Tensor, step: Any, store: Any, keep: int | Tensor | None, module: nn.Module | None = None
    ) -> Output:
        """The output of the model for a pass over tokens [R, T]; `store` gets keys and values.

        Its logits are [R, T, V], or those that are kept.
        """
        arguments: dict[str, Any] = {"input_ids": tokens, self._argument: self._past(store, step), "use_cache": True}
        if self._own_attention:
            arguments["attention_mask"] = step.mask(None, 1, self.dtype, self.device)[2]
        else:
            arguments[attention.STEP_ARGUMENT] = step
        if self._takes_positions:
            arguments["position_ids"] = step.positions
        if keep is not None and self._takes_keep:
            arguments["logits_to_keep"] = keep
        if step.hidden is not None:
            arguments["output_hidden_states"] = True
        changes_shape = self._is_cuda and isinstance(step, Step)  # steps over pages are captured, and have a kernel
        backends = attention.without_cudnn() if changes_shape else nullcontext()
        with self._guard, backends, attention.in_pass(step) if self._sets_step else nullcontext():
            out: Output = (module or self.module)(**arguments)
        if step.hidden is not None:
            step.hidden += out.hidden_states or ()
        return out

    def _past(self, store: RaggedCache | Recorder, step: Step | None) -> Any:
        """The cache as the modules see it in one pass."""
        global _class
        if _class is None:
            _class = _stateless_class()
        return _class(store, step)

    def run_at(self, tokens: Tensor, step: Any, store: Any, columns: Tensor, module: nn.Module | None = None) -> Tensor:
        """Logits [R, W, V] at columns [R, W] of a pass, with as little of the output projection as the model allows.

        Before transformers 5.23 a model cannot be told columns that differ by row: then the input of its output
        projection is cut down to them.
        """
        if self._keeps_per_row:
            return self.run(tokens, step, store, columns, module).logits
        index = columns[:, :, None]
        is_less = columns.shape[1] < tokens.shape[1]  # else there is no telling whether the head saw less
        seen = self._before_head(lambda hidden: hidden.take_along_dim(index.to(hidden.device), dim=1), module)
        with seen if is_less else nullcontext():
            out = self.run(tokens, step, store, None, module).logits
        is_cut = is_less and out.shape[1] == columns.shape[1]
        return out if is_cut else out.take_along_dim(index.to(out.device), dim=1)

    @contextmanager
    def _before_head(self, select: Callable[[Tensor], Tensor], module: nn.Module | None) -> Iterator[None]:
        """Let the output projection see less of hidden states [R, T, D], in passes of this thread."""
        head, own = (module or self.module).get_output_embeddings(), threading.get_ident()  # type: ignore[operator]

        def selected(_: nn.Module, given: tuple[Any, ...]) -> Any:
            is_ours = threading.get_ident() == own and len(given) == 1 and given[0].dim() == 3
            return (select(given[0]),) if is_ours else None

        hook = None if head is None else head.register_forward_pre_hook(selected)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    def new_cache(
        self, num_rows: int, capacity: int, kind: type[RaggedCache] = RaggedCache
    ) -> RaggedCache | PagedCache:
        """An empty cache; see `causal_lm.CausalLM.new_cache`. A rectangle may be of another kind."""
        if self.paged is not None:
            return self.paged.new_cache(num_rows, capacity)
        return kind(self.layers, num_rows, capacity, self.device)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        num_tokens: Sequence[int],
        cache: RaggedCache | PagedCache,
        rows: Rows,
        logits: LogitsKind,
        hidden: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens and return logits; see `causal_lm.CausalLM.forward`.

        `hidden` collects what embeddings and layers say of the new tokens, [R, T, D] each.
        """
        if isinstance(cache, PagedCache):
            assert self.paged is not None
            return self.paged.forward(tokens, num_tokens, cache, rows, logits, hidden, self.is_strict)
        limit = self._longrope_limit
        if limit is not None:
            ends = cache.ends(num_tokens, rows)
            if min(ends) <= limit < max(ends):
                is_long = [end > limit for end in ends]
                return forward_apart(self.forward, is_long, tokens, num_tokens, cache, rows, logits, hidden)
            if min(ends) > limit and self._long is not None:
                self._long.is_strict = self.is_strict
                return self._long.forward(tokens, num_tokens, cache, rows, logits, hidden)
        by_modules = partial(self._by_modules, tokens, num_tokens, cache, rows, logits, hidden)
        lengths = cache.row_lengths
        is_begun = min(lengths if rows is None else [lengths[row] for row in rows]) > 0
        is_step = is_begun and sum(num_tokens) <= MAX_TOKENS and max(num_tokens) <= MAX_WIDTH
        if self._replays is not None and is_step and logits != "all" and hidden is None and not self.is_strict:
            return self._replays.logits(tokens, num_tokens, cache, rows, logits, self._run_last, by_modules)
        out = by_modules()
        cache.commit(cache.ends(num_tokens, rows), rows)
        return out

    def _by_modules(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: RaggedCache, rows: Rows, logits: LogitsKind,
        hidden: list[Tensor] | None,
    ) -> Tensor:  # fmt: skip
        """Logits of a pass; the lengths of the rows stay."""
        width, counts = max(num_tokens), [1] * len(num_tokens) if isinstance(logits, str) else logits
        most, is_even = max(counts), logits == "all" or min(num_tokens) == width
        given = [tokens[:, :width]]  # all goes up at once
        if not is_even:  # the columns of the last `most` tokens of each row
            given.append((torch.tensor(num_tokens)[:, None] - most + torch.arange(most)).clamp_min(0))
        if min(counts) < most:  # which of these are wanted
            given.append((torch.arange(most) >= most - torch.tensor(counts)[:, None]).flatten().nonzero()[:, 0])
        step = cache.begin(num_tokens, rows, given)
        tokens, *given = step.carried
        step.is_strict, step.hidden = self.is_strict, hidden
        if logits == "all":
            return self.run(tokens, step, cache, None).logits.float()
        if is_even:
            out = self.run(tokens, step, cache, most).logits[:, -most:].flatten(0, 1)
        else:
            out = self.run_at(tokens, step, cache, given.pop(0)).flatten(0, 1)
        return out[given[0].to(out.device)].float() if given else out.float()


def experts_wait(model: nn.Module) -> bool:
    """Whether products of a model's experts wait for the device; each layer looks at a configuration of its own."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    is_grouped = any(getattr(config, "_experts_implementation", None) == "grouped_mm" for config in configs)
    return is_grouped and grouped_products_wait(model.dtype, next(model.parameters()).device)  # type: ignore[arg-type]


class Recorder:
    """Stands in for the cache to learn what the layers store."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def append(self, layer: int, keys: Tensor, values: Tensor, step: Step | None) -> tuple[Tensor, Tensor]:
        """Note the shapes of a layer; see `RaggedCache.append`."""
        self.layers[layer] = LayerShape.of(keys, values)
        return keys, values


@functools.cache
def past_key_values_class() -> type[Any]:
    """The cache that the modules of transformers see; made when first wanted, for transformers takes long to load."""
    from transformers import Cache

    class PastKeyValues(Cache):  # type: ignore[misc]
        """A cache as the modules of transformers see it during one forward pass; a new one for each pass."""

        # Without a call of super().__init__: the base class wants layers of its own.
        def __init__(self, store: RaggedCache | Recorder, step: Step | None) -> None:
            self.layers: list[Any] = []
            self.layer_class_to_replicate = None
            self.offloading = False
            self.store, self.step = store, step

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            return self.store.append(layer_idx, key_states, value_states, self.step)  # type: ignore[arg-type]

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0 if self.step is None else max(self.step.starts)

    return PastKeyValues


_class: type[Any] | None = None  # made when first wanted; not by a cached function, for a compiler reads behind those


def _stateless_class() -> type[Any]:
    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise attention.UnsupportedAttentionError("the model keeps recurrent state")

    verbs = ("get_conv_state", "get_recurrent_state", "update_conv_state", "update_recurrent_state")
    names = ("has_previous_state", *verbs)
    return type("KeyValuesAlone", (past_key_values_class(),), dict.fromkeys(names, refuse))
