"""Processors in order, with the constraint mask at the one right place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling.candidates import Candidates, in_order, nucleus_candidates, top_candidates
from decodekit.sampling.functions import apply_bitmask
from decodekit.sampling.history import History
from decodekit.sampling.orders import ordered
from decodekit.sampling.processors import LogitsProcessor, MinP, OrderPreserving, Stage, Temperature, TopK, TopP
from decodekit.sampling.wide import is_wide, truncated


@dataclass(frozen=True)
class TraceStep:
    """What one step of a pipeline left of each row.

    Args:
        name: the processor, ``"mask"``, or ``"logits"`` for the start.
        logits: float32 [N, V] after the step.
        support: number of tokens left, by row.
        mass: their mass under the law of the logits at the start, by row.
    """

    name: str
    logits: Tensor
    support: tuple[int, ...]
    mass: tuple[float, ...]


@dataclass(frozen=True, repr=False, init=False)
class Pipeline:
    """Processors in the order given; ``Temperature(0.8) | TopK(50)`` makes one.

    A constraint mask is applied before the first processor that is not a bias. So it comes after penalties and biases
    and before temperature and truncation: top-k of an unmasked row could keep only forbidden tokens. (A bias that
    stands behind a truncation stays there; it cannot bring a forbidden token back, since -inf stays -inf.)

    Raises:
        OptionError: something in the list is not a processor.
    """

    processors: tuple[LogitsProcessor, ...]

    if TYPE_CHECKING:  # no field: it follows from the processors
        _sorted_part: tuple[TopK | TopP, tuple[OrderPreserving, ...]] | None
        _wide_part: _WidePart | None

    def __init__(self, processors: Iterable[LogitsProcessor] = ()) -> None:
        processors = tuple(processors)
        for processor in processors:
            if not isinstance(processor, LogitsProcessor):
                raise OptionError(
                    f"{processor!r:.60} is not a logits processor", at="processors", hint="Temperature(0.8) | TopK(50)"
                )
        object.__setattr__(self, "processors", processors)
        object.__setattr__(self, "_sorted_part", _sorted_part(processors))
        object.__setattr__(self, "_wide_part", _wide_part(processors))

    @classmethod
    def ordered(cls, processors: Iterable[LogitsProcessor], order: str = "decodekit") -> Pipeline:
        """The processors in the order, and with the meaning, that they have in a library; see `orders.ordered`.

        Args:
            processors: in any order.
            order: "decodekit", "hf", "vllm", "llamacpp" or "mlx".

        Raises:
            UnknownNameError: no such order.
            OptionError: the library has no such processor.
        """
        return cls(ordered(processors, order))

    @property
    def needs_history(self) -> bool:
        """Whether a call needs a ``History``."""
        return any(processor.needs_history for processor in self.processors)

    def __call__(self, logits: Tensor, history: History | None = None, mask: Tensor | None = None) -> Tensor:
        """The processed rows, float32 [N, V].

        Args:
            logits: [N, V] of the model.
            history: the tokens before each row; None is enough where ``needs_history`` is false.
            mask: int32 [N, ceil(V / 32)], the allowed tokens; None allows all.

        Raises:
            OptionError: a processor needs the history and there is none.
            ProcessorError: a processor gives another shape, type or device.
        """
        rows = self.narrow(logits, history, mask)
        return rows.dense() if isinstance(rows, Candidates) else rows

    def narrow(self, logits: Tensor, history: History | None = None, mask: Tensor | None = None) -> Tensor | Candidates:
        """A call that stops at the survivors of the first truncation where it can; ``sample`` takes either form.

        From a top-k, top-p or min-p on, rows of candidates stand for rows of V logits if all further processors keep
        the order. The result is that of a call, without sorting again and without noise for removed tokens.
        """
        rows = logits.to(torch.float32)
        wide = self._wide_part if is_wide(rows) and len(rows) else None
        part = self._sorted_part if wide is None else None
        for index, processor in enumerate(self.processors):
            if mask is not None and processor.stage > Stage.BIAS:
                rows, mask = apply_bitmask(rows, mask), None
            if wide is not None and index == wide.start:
                candidates = truncated(rows, wide.first, wide.temperature, wide.rest)
                if candidates is not None:
                    exact = (wide.first,) if isinstance(wide.first, TopK) and wide.first.exact else ()
                    return _continued(candidates, (*exact, *wide.rest))
            if part is not None and processor is part[0]:
                candidates = _truncate_sorted(rows, *part)
                if candidates is not None:
                    return candidates
            rows = processor.applied(rows, history)
        return rows if mask is None else apply_bitmask(rows, mask)

    def first_fault(
        self, logits: Tensor, history: History | None = None, mask: Tensor | None = None
    ) -> LogitsProcessor | None:
        """The processor that made NaN or +inf of rows without it, one call after the other; None if none did."""
        rows = logits.to(torch.float32)
        for processor in self.processors:
            if mask is not None and processor.stage > Stage.BIAS:
                rows, mask = apply_bitmask(rows, mask), None
            before = is_faulty(rows) | (rows == -torch.inf).all(dim=-1)  # nothing is left of the others to be made of
            rows = processor.applied(rows, history)
            if bool((is_faulty(rows) & ~before).any()):
                return processor
        return None

    def trace(self, logits: Tensor, history: History | None = None, mask: Tensor | None = None) -> list[TraceStep]:
        """Each step of a call with the size and mass of what it left, to see which step removes what."""
        rows = logits.to(torch.float32)
        law = rows.softmax(dim=-1)
        steps = [_trace_step("logits", rows, law)]
        for processor in self.processors:
            if mask is not None and processor.stage > Stage.BIAS:
                rows, mask = apply_bitmask(rows, mask), None
                steps.append(_trace_step("mask", rows, law))
            rows = processor.applied(rows, history)
            steps.append(_trace_step(repr(processor), rows, law))
        if mask is not None:
            steps.append(_trace_step("mask", apply_bitmask(rows, mask), law))
        return steps

    def __or__(self, other: LogitsProcessor | Pipeline) -> Pipeline:
        if isinstance(other, Pipeline):
            return Pipeline(self.processors + other.processors)
        if isinstance(other, LogitsProcessor):
            return Pipeline((*self.processors, other))
        return NotImplemented

    def __iter__(self) -> Iterator[LogitsProcessor]:
        return iter(self.processors)

    def __len__(self) -> int:
        return len(self.processors)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.processors)) if len(self.processors) > 1 else f"Pipeline({list(self)!r})"


def is_faulty(rows: Tensor) -> Tensor:
    """Which rows of logits [N, V] have NaN or +inf, bool [N]."""
    return ~(rows < torch.inf).all(dim=-1)


@dataclass(frozen=True)
class _WidePart:
    """Where wide rows become candidates: at a truncation, or at the temperature before it."""

    start: int
    temperature: float
    first: TopK | TopP | MinP
    rest: tuple[OrderPreserving, ...]


def _wide_part(processors: tuple[LogitsProcessor, ...]) -> _WidePart | None:
    """The first top-k, top-p or min-p after which all processors keep the order."""
    for index, processor in enumerate(processors):
        if isinstance(processor, TopK | TopP | MinP):
            rest = _all_order_preserving(processors[index + 1 :])
            if rest is not None:
                before = processors[index - 1] if index else None
                if isinstance(before, Temperature):
                    return _WidePart(index - 1, before.temperature, processor, rest)
                return _WidePart(index, 1.0, processor, rest)
    return None


def _sorted_part(processors: tuple[LogitsProcessor, ...]) -> tuple[TopK | TopP, tuple[OrderPreserving, ...]] | None:
    """The first top-k or top-p after which all processors keep the order, and those processors."""
    for index, processor in enumerate(processors):
        if isinstance(processor, TopK | TopP):
            rest = _all_order_preserving(processors[index + 1 :])
            if rest is not None:
                return processor, rest
    return None


def _all_order_preserving(processors: tuple[LogitsProcessor, ...]) -> tuple[OrderPreserving, ...] | None:
    found = tuple(processor for processor in processors if isinstance(processor, OrderPreserving))
    return found if len(found) == len(processors) else None


def _truncate_sorted(rows: Tensor, first: TopK | TopP, rest: tuple[OrderPreserving, ...]) -> Candidates | None:
    """The first truncation, and the rest on its survivors alone; None where they are too many to be worth it."""
    candidates = top_candidates(rows, first.k) if isinstance(first, TopK) else nucleus_candidates(rows, first.p)
    if candidates is None:
        return None
    exact = (first,) if isinstance(first, TopK) and first.exact else ()
    return _continued(candidates, (*exact, *rest))


def _continued(candidates: Candidates, processors: tuple[OrderPreserving, ...]) -> Candidates:
    values, ids = candidates.logits, candidates.token_ids
    with np.errstate(invalid="ignore"):  # -inf - -inf in a row without tokens: NaN removes nothing
        for processor in processors:
            values = processor.applied_on_sorted(values)
            if processor.stage is Stage.TEMPERATURE:  # rounding may make logits equal
                values, ids = in_order(values, ids)
    return Candidates(values, ids, candidates.vocab_size, candidates.device)


def _trace_step(name: str, rows: Tensor, law: Tensor) -> TraceStep:
    kept = rows > -torch.inf
    mass = (law * kept).sum(dim=-1)
    return TraceStep(name, rows, tuple(kept.sum(dim=-1).tolist()), tuple(mass.tolist()))
