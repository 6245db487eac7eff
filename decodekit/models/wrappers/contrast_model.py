"""A distribution made of two: that of a model, less that of something that knows less.

    token                 Paris   the     in     qua        the capital of France is ...
    expert      log p     -0.4    -1.6   -2.3   -7.0
    amateur     log p     -1.9    -1.2   -1.6   -9.0
    plausible             yes     yes    yes    no          at least alpha = 0.1 times as likely as the likeliest
    2 e - a                1.1    -2.0   -3.0   far below   `amateurish` with beta = 1

Every function takes logits and gives logits of another distribution; `AmateurLM` and the models in `guidance` and
`dola` get them from their two sources. Such a model is a `CausalLM` like any other, because the new distribution of a
token is a function of the text before it: drafts, constraints, batches, beams and log-probabilities need not know of
it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from decodekit.models.caches.kv_cache import checked_order, shortened
from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind, Rows
from decodekit.vocabulary import Vocabulary

IMPLAUSIBLE: Final = -1000.0
"""The number that is added to the log-probability of an implausible token.

Their probability is 0 in float32 wherever a plausible token may come. The papers give them minus infinity. That is the
same there, but leaves no token where a constraint allows implausible ones only; here the model itself decides then.
What looks at the spread or the number of finite logits (top-nσ, dynamic temperature) sees them as well.
"""

_MARGIN: Final = 2.0**-18
"""The distance to the limit that rounding explains: a token within it is plausible. This is
`sampling.tolerances.MARGIN`, written again because rooms of one level do not import each other."""

_LEAST: Final = -1e4
"""Log-probabilities that something is subtracted from end here: infinity less infinity is no number."""


def guided(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """u + scale (c - u) for log-probabilities c, u (Sanchez et al. 2023, equation 7).

    Args:
        conditional: logits float32 [..., V] after the prompt.
        unconditional: logits float32 [..., V] after the negative prompt.
        scale: how far to go from u to c and beyond; 1 gives c.
    """
    c = torch.log_softmax(conditional, dim=-1)
    u = torch.log_softmax(unconditional, dim=-1).clamp_min(_LEAST)
    return torch.where(c == -math.inf, c, u + scale * (c - u))


def amateurish(expert: Tensor, amateur: Tensor, alpha: float, beta: float) -> Tensor:
    """(1 + beta) e - beta a for log-probabilities e, a, where e >= max e + log alpha.

    The scores of O'Brien & Lewis 2023, section 2; with a large beta those of Li et al. 2023, equation 3, times beta.

    Args:
        expert: logits float32 [..., V].
        amateur: logits [..., V'] of the same tokens. What it does not have, if V' < V, keeps the expert's score.
        alpha: how much less likely than the likeliest a plausible token may be.
        beta: how much of the amateur is subtracted.
    """
    e = torch.log_softmax(expert, dim=-1)
    width = min(e.shape[-1], amateur.shape[-1])
    a = torch.log_softmax(amateur[..., :width].float(), dim=-1).clamp_min(_LEAST)
    scores = (1 + beta) * e - beta * torch.cat([a, e[..., width:].clamp_min(_LEAST)], dim=-1)
    return _plausible(e, scores, alpha, (1 + beta) * IMPLAUSIBLE)


def layered(final: Tensor, early: Iterable[Tensor], relative_top: float) -> Tensor:
    """f - q_M for log-probabilities f, q_j, where f >= max f + log relative_top: Chuang et al. 2023, equations 1 to 5.

    Args:
        final: logits float32 [P, V] of the last layer.
        early: logits [P, V] of the candidate layers, one after the other; at least one. For each place by itself, M is
            the one with the largest Jensen-Shannon divergence from the last layer; of equals the first.
        relative_top: how much less likely than the likeliest a plausible token may be.
    """
    f = torch.log_softmax(final, dim=-1)
    chosen, largest = torch.zeros_like(f), f.new_full(f.shape[:-1], -math.inf)
    for logits in early:
        q = torch.log_softmax(logits, dim=-1)
        divergence = jensen_shannon(f, q)
        is_larger = divergence > largest
        chosen = torch.where(is_larger[..., None], q, chosen)
        largest = torch.where(is_larger, divergence, largest)
    return _plausible(f, f - chosen.clamp_min(_LEAST), relative_top, IMPLAUSIBLE)


def jensen_shannon(log_p: Tensor, log_q: Tensor) -> Tensor:
    """(KL(p || m) + KL(q || m)) / 2 in nats for m = (p + q) / 2 and log-probabilities [..., V]; float32 [...]."""
    p, q = log_p.exp(), log_q.exp()
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    terms = torch.where(p > 0, p * (log_p - log_m), 0.0) + torch.where(q > 0, q * (log_q - log_m), 0.0)
    return terms.sum(dim=-1) / 2


def _plausible(log_p: Tensor, scores: Tensor, share: float, distance: float) -> Tensor:
    """The scores of tokens at least `share` times as likely as the likeliest; others keep their order far below."""
    is_plausible = log_p >= log_p.amax(dim=-1, keepdim=True) + (math.log(share) - _MARGIN)
    return torch.where(is_plausible, scores, log_p + distance)


@runtime_checkable
class Contrast(Protocol):
    """A value that says how the distribution of a model is to be changed; the option `contrast` of strategies."""

    def applied_to(self, model: CausalLM, vocabulary: Vocabulary) -> CausalLM:
        """A model with the changed distribution; of one cache row for each row of the given one.

        Args:
            model: the given one; it is not changed.
            vocabulary: what its tokens are.

        Raises:
            DecodekitError: it cannot be applied to this model.
        """


def is_contrast(value: object) -> bool:
    """Whether this is a value that can be applied to a model; a class of such values is none."""
    return isinstance(value, Contrast) and not isinstance(value, type)


@runtime_checkable
class KnowsPrompts(Protocol):
    """A cache of a model that treats a prompt and what follows it differently, and so must be told where it ends."""

    def set_prompt(self, row: int, prompt: Sequence[int], negative_prompt: Sequence[int]) -> None:
        """An empty row begins with this prompt, which is contrasted with `negative_prompt` (empty: not given)."""


def _of_the_model(name: str) -> Any:
    return property(lambda self: getattr(self.model, name), doc=f"See `causal_lm.CausalLM.{name}`.")


class ContrastLM(ABC):
    """The parts that all models made of another model have of it."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    name: str = _of_the_model("name")
    vocab_size: int = _of_the_model("vocab_size")
    eos_token_ids: frozenset[int] = _of_the_model("eos_token_ids")
    device: torch.device = _of_the_model("device")
    dtype: torch.dtype = _of_the_model("dtype")

    @property
    def context_length(self) -> int | None:
        """The most tokens a row may hold, or None without a limit."""
        return self.model.context_length

    @property
    def state(self) -> object:
        """Equal as long as the model is as it was, if it says so."""
        return getattr(self.model, "state", None)

    @property
    def can_rollback(self) -> bool:
        """Whether taking tokens back is free."""
        return self.model.can_rollback

    def new_cache(self, num_rows: int, capacity: int) -> Cache:
        """An empty cache; see `causal_lm.CausalLM.new_cache`."""
        return self.model.new_cache(num_rows, capacity)

    @abstractmethod
    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens to rows of the cache and return contrasted logits; see `causal_lm.CausalLM.forward`."""


def uncontrasted(model: CausalLM) -> CausalLM:
    """The model that a contrast was made of, or the model itself."""
    while isinstance(model, ContrastLM):
        model = model.model
    return model


class PairedCache:
    """A cache of each of two models that read the same, with as many rows."""

    def __init__(self, first: Cache, second: Cache) -> None:
        self.first, self.second = first, second
        self.row_lengths = [0] * first.num_rows

    @property
    def num_rows(self) -> int:
        """How many sequences the cache holds."""
        return len(self.row_lengths)

    @property
    def capacity(self) -> int:
        """Tokens a row can hold before a cache grows."""
        return min(self.first.capacity, self.second.capacity)

    @property
    def lengths(self) -> Tensor:
        """Tokens stored per row, int64 [num_rows], on the first model's device."""
        return self.first.lengths

    def truncate(self, row_lengths: Sequence[int] | Tensor) -> None:
        """Lower the lengths of the rows; see `causal_lm.Cache.truncate`."""
        self.row_lengths = shortened(self.row_lengths, row_lengths)
        for cache in (self.first, self.second):
            cache.truncate(self.row_lengths)

    def reset(self, rows: Sequence[int]) -> None:
        """Empty these rows; see `causal_lm.Cache.reset`."""
        for cache in (self.first, self.second):
            cache.reset(rows)
        for row in rows:
            self.row_lengths[row] = 0

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; see `causal_lm.Cache.reorder`."""
        order = checked_order(rows, self.num_rows)
        for cache in (self.first, self.second):
            cache.reorder(rows)
        self.row_lengths = [self.row_lengths[row] for row in order]

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row; see `causal_lm.Cache.grow`."""
        for cache in (self.first, self.second):
            cache.grow(capacity)


class AmateurLM(ContrastLM):
    """Contrastive decoding: the distribution of a model against that of an amateur; see `amateurish`.

    Li et al. 2023, "Contrastive Decoding: Open-ended Text Generation as Optimization"; O'Brien & Lewis 2023,
    "Contrastive Decoding Improves Reasoning in Large Language Models", whose scores are computed.
    """

    def __init__(self, model: CausalLM, amateur: CausalLM, alpha: float, beta: float) -> None:
        super().__init__(model)
        self.amateur = amateur
        self.alpha, self.beta = alpha, beta

    @property
    def context_length(self) -> int | None:
        """The smaller of the two, or None where neither has a limit."""
        limits = [limit for limit in (self.model.context_length, self.amateur.context_length) if limit is not None]
        return min(limits, default=None)

    @property
    def state(self) -> object:
        """Equal as long as both models are as they were."""
        return getattr(self.model, "state", None), getattr(self.amateur, "state", None)

    @property
    def can_rollback(self) -> bool:
        """Whether taking tokens back is free in both."""
        return self.model.can_rollback and self.amateur.can_rollback

    def new_cache(self, num_rows: int, capacity: int) -> PairedCache:
        """An empty cache of each; see `causal_lm.CausalLM.new_cache`."""
        return PairedCache(self.model.new_cache(num_rows, capacity), self.amateur.new_cache(num_rows, capacity))

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *, logits: LogitsKind = "last"
    ) -> Tensor:
        """Append tokens in both and return logits of the contrast; see `causal_lm.CausalLM.forward`."""
        assert isinstance(cache, PairedCache)
        expert = self.model.forward(tokens, num_tokens, cache.first, rows, logits=logits)
        try:
            theirs = tokens.to(self.amateur.device)
            amateur = self.amateur.forward(theirs, num_tokens, cache.second, rows, logits=logits)
        except BaseException:
            cache.first.truncate(cache.row_lengths)
            raise
        for row, count in zip(range(cache.num_rows) if rows is None else rows, num_tokens, strict=True):
            cache.row_lengths[row] += count
        return amateurish(expert, amateur.to(expert.device), self.alpha, self.beta)
