"""The adapter that makes any causal language model of transformers a `causal_lm.CausalLM`.

Six tiers, fastest first, give the same logits; the first that passes the self-check runs:

- paged: the model's modules over pages of keys and values, decoding steps captured; on CUDA;
- ragged: the model's modules over the ragged KV cache, all rows of a batch in one pass;
- masked: the same with the model's own attention, which is given a mask;
- recurrent: as ragged, with the recurrent state of each row beside its keys and values; on CUDA over pages, where steps
  of one token a row are captured;
- rowwise: the model as it is, one row at a time, with its own cache;
- recompute: the model as it is, one row at a time, without a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from decodekit.errors import ContextLengthError, ModelError, OptionError
from decodekit.gpu.pages import Stored
from decodekit.models.caches.quantised_planes import QuantisedCache
from decodekit.models.causal_lm import Cache, LogitsKind, Rows
from decodekit.models.checks.model_notes import ModelNotes, notes_of, state_of
from decodekit.models.checks.self_check import Runner, SelfCheck
from decodekit.models.layers import Exit
from decodekit.models.modules.shared_copy import context_length_of
from decodekit.models.runners.captured import CudaCapture
from decodekit.models.runners.paged import PagedModel
from decodekit.models.runners.ragged import RaggedModel
from decodekit.models.runners.recurrent import NoStateError, RecurrentModel
from decodekit.models.runners.rowwise import RowwiseModel

TierName = Literal["paged", "ragged", "masked", "recurrent", "rowwise", "recompute"]


@dataclass(frozen=True, slots=True)
class Tier:
    """Which way of running a model was chosen, and why not a faster one.

    Args:
        name: "paged", "ragged", "masked", "recurrent", "rowwise" or "recompute".
        error: largest relative error of the self-check.
        refused: why each faster tier was not taken.
        place: its number among the ways that are tried; there are two of "recurrent" and of "rowwise".
        twin_error: the same of the small float32 twin of the model; None if it has none.
    """

    name: TierName
    error: float
    refused: tuple[str, ...] = ()
    place: int = 0
    twin_error: float | None = None

    def __str__(self) -> str:
        reasons = "".join(f"; {reason}" for reason in self.refused)
        return f"{self.name} (self-check {self.error:.1e}){reasons}"


class HuggingFaceLM:
    """A causal language model of transformers, run on rows that advance independently.

    The given model is not changed: its own `generate` gives what it gave before. Its weights are shared, not copied.
    What is learned of it, which takes some forward passes of a few tokens, is kept as long as the model lives, for all
    objects that run it, and learned again when a cache is made after the model has changed; see `model_notes`.

    Args:
        model: a model with a language modelling head, loaded by transformers; on its device, in its type.
        tier: run this way and no other; by default the fastest that passes the self-check.
        cache_dtype: "int8" stores keys and values in eight bits with a scale for every token and head, which takes
            about a quarter of the memory and changes the logits; see `quantised_planes`. In the tier paged, and on a
            CPU in the tier ragged. By default they are stored as they are.
        compile_layers: compile the decoder layers of steps, which saves the time of what stands around matrix
            products. By default where steps are captured, on CUDA in the tier paged. It is done aside once a model has
            made many steps, or by `warm_up`; a text is read by one kind of layers from its beginning to its end.

    Raises:
        ModelError: the model cannot be run, or the wanted tier gives other logits than the model itself.
        OptionError: a `cache_dtype` or `compile_layers` that the model's device or tier does not have.
    """

    name: str
    """The folder or hub id that the model was loaded from, or its class."""
    tier: Tier
    """Which way the model runs, and why."""
    vocab_size: int
    """Width of a row of logits."""
    eos_token_ids: frozenset[int]
    """Every end-of-text token of the model's configuration and generation configuration."""
    context_length: int | None
    """The most tokens a row may hold, or None without a limit."""
    device: torch.device
    """Where the embeddings are."""

    def __init__(
        self,
        model: nn.Module,
        *,
        tier: TierName | None = None,
        cache_dtype: Literal["int8"] | None = None,
        compile_layers: bool | None = None,
    ) -> None:
        if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
            raise ModelError(
                f"{type(model).__name__} is not a model of transformers",
                hint="AutoModelForCausalLM.from_pretrained(...), or implement the CausalLM protocol for it",
            )
        _refuse_by_kind(model)
        if cache_dtype is not None and not (isinstance(cache_dtype, str) and cache_dtype == "int8"):
            raise OptionError(
                f"keys and values cannot be stored as {cache_dtype!r:.60}", at="cache_dtype", hint='"int8", or None'
            )
        self.model = model
        self.cache_dtype = cache_dtype
        self.compile_layers = compile_layers if compile_layers is not None else _device_of(model).type == "cuda"
        """Whether layers are compiled, in the tier paged."""
        self._wanted = tier
        self._learn(notes_of(model))
        if compile_layers and self.tier.name != "paged":
            raise OptionError(
                f"layers are compiled for captured steps in the tier paged, not {self.tier.name} on {self.device.type}",
                at="compile_layers",
                hint="leave it out",
            )

    def _learn(self, notes: ModelNotes) -> None:
        """Take what is known of the model as it is, or find it out."""
        model = self.model
        config: Any = model.config
        self.name = _name_of(model)
        self.device = _device_of(model)
        self.context_length = context_length_of(config.get_text_config())
        self.eos_token_ids = _eos_token_ids(model)
        self._runner, self.tier, self.vocab_size = _learned(
            model, notes, self.context_length, (self._wanted, self.cache_dtype, self.compile_layers)
        )
        self._notes = notes
        is_paged = self.tier.name == "paged"
        if self.cache_dtype is not None and not is_paged and (self.tier.name, self.device.type) != ("ragged", "cpu"):
            raise OptionError(
                "an int8 cache is for models in the tier paged, or ragged on a CPU, "
                f"not {self.tier.name} on {self.device.type}",
                at="cache_dtype",
                hint="leave it out",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_notes": None}  # they are of this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._notes = notes_of(self.model)
        self._notes.keep(
            ("runner", self._wanted, self.cache_dtype, self.compile_layers),
            _Learned(self._runner, self.tier, self.vocab_size),
        )

    @property
    def generation_config(self) -> dict[str, Any]:
        """The settings of the model's generation config that differ from the defaults of transformers."""
        config = getattr(self.model, "generation_config", None)
        return dict(config.to_diff_dict()) if config is not None and hasattr(config, "to_diff_dict") else {}

    def __repr__(self) -> str:
        return f"HuggingFaceLM({self.name!r}, tier={self.tier.name!r}, device={self.device}, dtype={self.dtype})"

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.model.dtype  # type: ignore[return-value]

    @property
    def state(self) -> object:
        """Equal as long as the model is as it was: what was read of prompts holds for it; see `model_notes`."""
        return notes_of(self.model)

    @property
    def runner(self) -> Runner:
        """The runner of the model, in its tier."""
        return self._runner

    @property
    def can_rollback(self) -> bool:
        """Whether taking tokens back is free; not with recurrent state."""
        return self._runner.can_rollback

    @property
    def paged(self) -> PagedModel | None:
        """How it runs over pages of keys and values; None if it does not."""
        return getattr(self._runner, "paged", None)

    @property
    def can_restore(self) -> bool:
        """Whether taking back a draft costs at most another reading of its accepted part; see `can_verify`."""
        return self._runner.can_restore

    @property
    def num_layers(self) -> int:
        """How many layers the configuration says there are."""
        return int(self.model.config.get_text_config().num_hidden_layers)  # type: ignore[operator, union-attr]

    @property
    def is_tied(self) -> bool:
        """Whether embeddings and output projection are one matrix."""
        config: Any = self.model.config.get_text_config()  # type: ignore[operator, union-attr]
        return bool(getattr(config, "tie_word_embeddings", False))

    def new_cache(self, num_rows: int, capacity: int) -> Cache:
        """An empty cache for `num_rows` sequences of up to `capacity` tokens; it grows when a row needs more.

        Raises:
            ModelError: the model has changed since it was last looked at, and cannot be run as it is now.
        """
        notes = notes_of(self.model)
        if notes is not self._notes:
            self._learn(notes)
        if self.cache_dtype is not None and isinstance(self._runner, RaggedModel) and self.paged is None:
            return self._runner.new_cache(num_rows, capacity, QuantisedCache)
        return self._runner.new_cache(num_rows, capacity)

    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens to rows of the cache and return their logits; see `causal_lm.CausalLM.forward`.

        Runs in inference mode; the result is an inference tensor, which cannot be changed in place outside of it.
        """
        self._check(tokens, num_tokens, cache, rows, logits)
        return self._runner.forward(tokens, num_tokens, cache, rows, logits)  # type: ignore[arg-type]

    def forward_hidden(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *,
        logits: LogitsKind = "last", layers: Sequence[int] = (-1,),
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """`forward` with hidden states; see `layers.HiddenStates.forward_hidden`. Steps are not replayed for it."""
        self._check(tokens, num_tokens, cache, rows, logits)
        hidden: list[Tensor] = []
        out = self._runner.forward(tokens, num_tokens, cache, rows, logits, hidden)  # type: ignore[arg-type]
        if len(hidden) != self.num_layers + 1:
            raise ModelError(
                f"{type(self.model).__name__} shows {len(hidden)} hidden states of its {self.num_layers} layers",
                at=self.name,
                hint="a strategy that does not read layers",
            )
        return out, [hidden[layer] for layer in layers]

    def check_layers(self) -> None:
        """Raise `ModelError` if the model cannot be left after a layer; see `layers.EarlyExits.check_layers`."""
        self._way_out()

    def _way_out(self) -> Exit:
        with self._notes.lock:
            known: Exit | None = self._notes.get("exit")
            return known or self._notes.keep("exit", Exit(self.model))

    def exit_logits(self, hidden: Tensor, *, final_norm: bool = True) -> Tensor:
        """Logits of the hidden states of a middle layer; see `layers.EarlyExits.exit_logits`."""
        way_out = self._way_out()
        if final_norm:
            return way_out(hidden)
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        with torch.inference_mode():
            return head(hidden).float()  # type: ignore[no-any-return]

    def _check(self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows, logits: LogitsKind) -> None:
        """Refuse arguments of `forward` that contradict each other, or exceed the context."""
        lengths = cache.row_lengths  # type: ignore[attr-defined]
        chosen = range(len(lengths)) if rows is None else rows
        if not len(chosen) == len(num_tokens) == tokens.shape[0] > 0:
            raise ValueError(f"{tokens.shape[0]} rows of tokens, {len(num_tokens)} counts and {len(chosen)} cache rows")
        if not 1 <= min(num_tokens) <= max(num_tokens) <= tokens.shape[1]:
            raise ValueError(f"token counts {list(num_tokens)} for {tokens.shape[1]} columns of tokens")
        if not isinstance(logits, str) and (
            len(logits) != len(num_tokens)
            or not all(1 <= wanted <= count for wanted, count in zip(logits, num_tokens, strict=True))
        ):
            raise ValueError(f"logits at the last {list(logits)} of {list(num_tokens)} tokens")
        if rows is not None and (len(set(rows)) != len(rows) or min(rows) < 0 or max(rows) >= len(lengths)):
            raise ValueError(f"{list(rows)} are not distinct rows of a cache of {len(lengths)}")
        limit = math.inf if self.context_length is None else self.context_length
        for row, count in zip(chosen, num_tokens, strict=True):
            if lengths[row] + count > limit:
                raise ContextLengthError(
                    f"row {row} would hold {lengths[row] + count} tokens, the model's context is {limit}",
                    at=self.name,
                    hint="a shorter prompt or a smaller max_new_tokens",
                )


class _Learned(NamedTuple):
    """The way a model in one state is run, the reason, and the width of a row of its logits."""

    runner: Runner
    tier: Tier
    vocab_size: int


def _learned(
    model: nn.Module, notes: ModelNotes, context_length: int | None, asked: tuple[TierName | None, str | None, bool]
) -> _Learned:
    """The way of running a model from the notes, or found out now, by one thread for all."""
    wanted, cache_dtype, compiles = asked  # tier, type of keys and values, whether layers are compiled
    with notes.lock:
        known: _Learned | None = notes.get(("runner", *asked))
        plain: _Learned | None = notes.get(("runner", wanted, None, False))
        if known is None and plain is not None and plain.tier.name != "paged":
            known = plain  # what was asked for is not a matter of the runner there
        if known is not None:
            return known
        runner, tier = _choose(model, context_length, wanted, notes.get(("tier", wanted)))
        if tier.name != "paged":
            asked = wanted, None, False
        elif cache_dtype is not None or compiles:
            # Checked as it is without: eight bits give other logits, and a replay is compared with the modules.
            stored = Stored.AS_GIVEN if cache_dtype is None else Stored.INT8
            runner = _over_pages(model, stored=stored, compiler="inductor" if compiles else None)
        notes.keep(("tier", wanted), tier)
        learned = notes.keep(("runner", *asked), _Learned(runner, tier, _vocab_size(runner, model)))
        notes.state = state_of(model)  # a model may make buffers when it is run first
        return learned


def _over_pages(model: nn.Module, kind: Callable[..., RaggedModel] = RaggedModel, **options: Any) -> RaggedModel:
    """The model over pages, by a kind of runner with its options; its steps are captured on CUDA."""
    return kind(model, use_pages=True, capture=_capture_on(_device_of(model)), **options)


def _capture_on(device: torch.device) -> CudaCapture | None:
    return CudaCapture(device) if device.type == "cuda" else None


def _device_of(model: nn.Module) -> torch.device:
    """Where the embeddings are."""
    device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
    return device


class _Way(NamedTuple):
    """A way of running a model."""

    name: TierName
    make: Callable[[nn.Module], Runner]
    is_for_gpu: bool = False  # on a CPU attention reads a rectangle faster than pages


_WAYS: tuple[_Way, ...] = (
    _Way("paged", _over_pages, is_for_gpu=True),
    _Way("ragged", RaggedModel),
    _Way("masked", partial(RaggedModel, own_attention=True)),
    _Way("recurrent", partial(_over_pages, kind=RecurrentModel, in_chunks=True), is_for_gpu=True),
    _Way("recurrent", partial(_over_pages, kind=RecurrentModel, in_chunks=False), is_for_gpu=True),
    _Way("recurrent", partial(RecurrentModel, in_chunks=True)),
    _Way("recurrent", partial(RecurrentModel, in_chunks=False)),
    _Way("rowwise", partial(RowwiseModel, state="full")),
    _Way("rowwise", partial(RowwiseModel, state="own")),
    _Way("recompute", partial(RowwiseModel, state=None)),
)


def _choose(
    model: nn.Module, context_length: int | None, wanted: TierName | None, known: Tier | None
) -> tuple[Runner, Tier]:
    """The first tier that gives the model's own logits, or the known one."""
    if known is not None:
        return _WAYS[known.place].make(model), known
    check: SelfCheck | None = None
    refused: list[str] = []
    for place, (name, make, is_for_gpu) in enumerate(_WAYS):
        if wanted is not None and name != wanted:
            continue
        if is_for_gpu and wanted != "paged" and _device_of(model).type != "cuda":
            continue
        try:
            runner = make(model)
            check = check or SelfCheck(model, context_length)
            verdict = check.verdict(make, runner)
        except NoStateError:
            continue
        except Exception as problem:
            refused.append(f"{name}: {_one_line(problem)}")
            continue
        if verdict.is_right:
            return runner, Tier(name, verdict.error, tuple(dict.fromkeys(refused)), place, verdict.twin_error)
        refused.append(f"{name}: {verdict}")
    if check is not None and check.is_causal() is False:
        raise ModelError(
            f"{type(model).__name__} is not causal: its logits at a token depend on the tokens behind it",
            at=_name_of(model),
            hint="a decoder; for an encoder that can be one, config.is_decoder = True before it is built",
        )
    hint = "check that model(input_ids=...) itself returns finite logits"
    if any("pixel_values" in reason for reason in refused):
        hint = "its language model alone, for example AutoModelForCausalLM of its text_config: it wants images"
    raise ModelError(
        f"{type(model).__name__} cannot be run" + (f" in tier {wanted!r}" if wanted else ""),
        at="; ".join(dict.fromkeys(refused)) or None,
        hint=hint,
    )


def _refuse_by_kind(model: nn.Module) -> None:
    """`ModelError` for models that continue no text: encoder-decoders, masked models, models without a head."""
    kind, config = type(model).__name__, model.config
    cause = None
    if getattr(config, "is_encoder_decoder", False):
        cause = f"{kind} is an encoder-decoder model: its decoder continues what its encoder has read, not a prompt"
        hint = "a decoder-only model, which AutoModelForCausalLM loads"
    elif kind.endswith("ForMaskedLM"):
        cause = f"{kind} is a masked language model: it fills gaps, and sees the tokens behind them"
        hint = "a causal language model; of some encoders AutoModelForCausalLM makes one, with is_decoder=True"
    elif kind.endswith("Model") and getattr(model, "get_output_embeddings", lambda: None)() is None:
        cause = f"{kind} has no language modelling head"
        hint = "AutoModelForCausalLM in place of AutoModel"
    if cause is not None:
        raise ModelError(cause, at=_name_of(model), hint=hint)


def _name_of(model: nn.Module) -> str:
    """The folder or hub id of a model, or its class."""
    return str(getattr(model.config, "_name_or_path", "") or type(model).__name__)


def _one_line(problem: Exception) -> str:
    text = str(problem).strip().split("\n", 1)[0]
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def _vocab_size(runner: Runner, model: nn.Module) -> int:
    if isinstance(runner, RaggedModel):
        return runner.vocab_size
    token = torch.zeros(1, 1, dtype=torch.int64, device=_device_of(model))
    return runner.forward(token, [1], runner.new_cache(1, 1), None, "last").shape[-1]


def _eos_token_ids(model: nn.Module) -> frozenset[int]:
    ids: set[int] = set()
    for config in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):  # type: ignore[operator, union-attr]
        given = getattr(config, "eos_token_id", None)
        ids.update([given] if isinstance(given, int) else given or [])
    return frozenset(ids)
