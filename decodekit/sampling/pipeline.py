"""Logits processors, and pipelines of them with the constraint mask at the one right place.

    pipeline = Temperature(0.8) | TopK(50) | TopP(0.95)

    step          a row of five logits                     why
    logits        3.0   2.0   1.0   0.5  -1.0
    mask          3.0  -inf   1.0   0.5  -1.0              before the first processor that is not a bias
    Temperature   3.75 -inf   1.25  0.63 -1.25             z / 0.8
    TopK(50)      candidates: 3.75 (0), 1.25 (2), 0.63 (3), -1.25 (4)
    TopP(0.95)    candidates: 3.75 (0), 1.25 (2)           0.88 + 0.07 of the mass

From the first truncation on, wide rows of V logits give way to their few survivors in descending order (`Candidates`),
if all that follows keeps the order. The result is that of one call after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import OptionError, ProcessorError, UnknownNameError, out_of_domain, raise_faults
from decodekit.sampling.certificates import Flags, Floor, Leaders, RankStatistics, Scores
from decodekit.sampling.fast.candidates import Candidates, Floats, in_order
from decodekit.sampling.fast.large_vocabulary import is_wide
from decodekit.sampling.options.declared import WHOLE, Option, faults_of_fields
from decodekit.sampling.orders import ORDER, ORDERS
from decodekit.sampling.processors.history import History
from decodekit.sampling.selectors import is_faulty


class Stage(IntEnum):
    """The stage of a processor. The constraint mask comes before temperature and truncation, whatever their order."""

    BIAS = 0
    """Changes single logits: penalties, biases."""
    MASK = 1
    """The constraint; a pipeline applies it itself."""
    TEMPERATURE = 2
    """Changes the shape of the whole row and keeps its order."""
    TRUNCATION = 3
    """Removes unlikely tokens."""
    LAST = 4
    """Changes single logits of what is left: a watermark."""


class LogitsProcessor(ABC):
    """A pure function of logits and history; a frozen dataclass. Composed with ``|`` into a pipeline.

    Laws, which `testing.check_processor` checks: what is given is not changed, and equal input gives equal output,
    whatever was processed before. A row depends on its logits and its own prefix alone, which inside a draft goes on
    with the draft tokens before it. float32 [N, V] goes in and comes out. What is -inf stays -inf; NaN and +inf come of
    NaN and +inf alone. A bias (and what comes last) gives a token a logit that does not depend on those of the others,
    so that a mask may come before or after it; a temperature removes nothing and keeps the order; a truncation leaves a
    token where there was one (a ban need not). Settings out of their domains are refused in one `OptionError`.
    """

    stage: ClassVar[Stage]
    needs_history: ClassVar[bool] = False
    whole: ClassVar[Option | None] = None
    """The option whose value is the whole processor; mostly options are fields."""

    def __post_init__(self) -> None:
        raise_faults([*faults_of_fields(self)])

    @classmethod
    def of_options(cls, **given: Any) -> LogitsProcessor:
        """The processor of options, by the fields that they are; see `options.declared`."""
        if cls.whole is None:
            return cls(**given)
        cls.whole.domain.require(cls.whole.name, given[WHOLE])
        return cls()

    @property
    def can_forbid(self) -> bool:
        """Whether a finite logit may become -inf. True unless a processor knows better.

        A token that is the only one left to a constraint is certain before a bias that cannot forbid it.
        """
        return True

    def may_forbid(self, vocab_size: int) -> Collection[int] | None:
        """The tokens whose finite logits may become -inf, in whatever text; None if it may be any of them.

        A text that has to end in time (``on_length="close"``) is never made to depend on such tokens. Nothing where
        `can_forbid` is false, else any token, unless a processor knows better.
        """
        return None if self.can_forbid else ()

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> LogitsProcessor:
        """The processor for a vocabulary: itself, unless its settings leave something to the vocabulary.

        Raises:
            OptionError: the settings name a token that the vocabulary does not have.
        """
        return self

    def adapted(self, window: int) -> LogitsProcessor:
        """The processor as llama.cpp and mlx-lm understand it, whose penalties count so many of the last tokens."""
        return self

    def followed_by(self, rest: Sequence[LogitsProcessor]) -> LogitsProcessor | None:
        """One processor in place of this one and those after it; None where calling one after the other is right."""
        return None

    def applied(self, logits: Tensor, history: History | None) -> Tensor:
        """A call whose result is checked: a `ProcessorError` unless it has the shape, type and device of the logits."""
        rows = self(logits, history)
        is_right = isinstance(rows, Tensor) and rows.shape == logits.shape and rows.dtype == logits.dtype
        if is_right and rows.device == logits.device:
            return rows
        raise self._made(rows, logits, "", "", "shape, type and device")

    def _made(self, rows: object, given: Tensor | Floats, what: str, where: str, same: str) -> ProcessorError:
        kind = _kind(rows) if isinstance(rows, type(given)) else f"a {type(rows).__name__}"
        cause = f"{self!r:.60} made {kind} of {what}{_kind(given)}"
        hint = f"a result of the same {same}; decodekit.testing.check_processor tries it"
        return ProcessorError(cause, at=f"processor {type(self).__name__}{where}", hint=hint)

    def keeps(self, standing: RankStatistics) -> Flags:
        """Whether the token of each row stays whatever else of the row is forbidden, bool [N]; never wrongly yes.

        For a truncation; without a way of its own to tell, masks are made for all tokens. See `certificates`.

        Args:
            standing: N tokens among the logits that a call would get without a mask.
        """
        return np.zeros(len(standing.tokens), np.bool_)

    @property
    def is_tokenwise(self) -> bool:
        """Whether the new logit of a token depends on no other token's, so that a mask may come before or after it.

        By the laws that is so of a bias and of what comes last.
        """
        return self.stage in (Stage.BIAS, Stage.LAST)

    def floor(self, peaks: Floats) -> Floats | None:
        """The least logit that stays where the likeliest token stays, whatever else is forbidden; None if not known.

        Args:
            peaks: float32 [N], the largest logit of each row.
        """
        return None

    @property
    def certifies(self) -> bool:
        """Whether a token can be certified through this processor."""
        return self.is_tokenwise or type(self).keeps is not LogitsProcessor.keeps

    @abstractmethod
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """The new logits.

        Args:
            logits: float32 [N, V].
            history: the tokens before each row; None is enough where ``needs_history`` is false.
        """

    def __or__(self, other: LogitsProcessor | Pipeline) -> Pipeline:
        return Pipeline((self,)) | other

    def __repr__(self) -> str:
        settings = []
        given: Any = self  # mostly a dataclass
        for field in fields(given) if is_dataclass(given) else ():
            name, value = field.name, getattr(self, field.name)
            if field.default is MISSING:
                settings.append(repr(value))
            elif value != field.default:
                settings.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(settings)})"


def _kind(rows: Any) -> str:
    where = f" on {rows.device}" if isinstance(rows, Tensor) else ""
    return f"{str(rows.dtype).removeprefix('torch.')} {[*rows.shape]}{where}"


class OrderPreserving(LogitsProcessor):
    """A processor that acts on a few logits in descending order too: there it cuts the end off, or keeps the order.

    Law: what ``on_sorted`` makes of sorted rows is the sorted result of a call.
    """

    def divides_by(self) -> float | None:
        """The number that divides all logits, of a temperature; None if the processor does something else."""
        return None

    def applied_on_sorted(self, logits: Floats) -> Floats:
        """`on_sorted`, checked as `applied` is."""
        rows = self.on_sorted(logits)
        if isinstance(rows, np.ndarray) and rows.shape == logits.shape and rows.dtype == logits.dtype:
            return rows
        raise self._made(rows, logits, "sorted rows ", ".on_sorted", "shape and type")

    def on_sorted(self, logits: Floats) -> Floats:
        """The new logits of rows in descending order, where equal finite values are in order of token id.

        This is a call; a processor with a quicker way for few numbers has one of its own.

        Args:
            logits: float32 [N, K] on the host.
        """
        rows: Floats = self(torch.from_numpy(np.ascontiguousarray(logits)), None).numpy()
        return rows


class Narrowing(OrderPreserving):
    """A truncation from which on a pipeline can go on with candidates in place of rows."""

    @abstractmethod
    def survivors(self, logits: Tensor, temperature: float, rest: Sequence[OrderPreserving]) -> Candidates | None:
        """The tokens that it leaves of wide rows [N, V] divided by a temperature; None where it removes little.

        Candidates that the next processor of the `rest` removes may be left out.
        """


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Keep the tokens t whose bit ``t % 32`` of word ``t // 32`` is set in int32 [N, ceil(V / 32)], on their device."""
    num_rows, vocab_size = logits.shape
    if bitmask.shape != (num_rows, (vocab_size + 31) // 32):
        raise OptionError(f"a bitmask of shape {tuple(bitmask.shape)} for logits of shape {tuple(logits.shape)}")
    unpack = _unpack_on_host if bitmask.device.type == "cpu" else _unpack_on_device
    return torch.where(unpack(bitmask, vocab_size), logits, -torch.inf)


def _unpack_on_host(bitmask: Tensor, vocab_size: int) -> Tensor:
    """[N, V] bool by one pass of numpy instead of four of torch."""
    words = np.ascontiguousarray(bitmask.numpy()).astype("<i4", copy=False)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits).view(torch.bool)


def _unpack_on_device(bitmask: Tensor, vocab_size: int) -> Tensor:
    places = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    # [N, words, 1] >> [32]: the shift is arithmetic, the lowest bit is right all the same.
    return ((bitmask.unsqueeze(-1) >> places) & 1).flatten(1)[:, :vocab_size].to(torch.bool)


@dataclass(frozen=True)
class TraceStep:
    """The rows behind one step of a pipeline.

    Args:
        name: the processor, ``"mask"``, or ``"logits"`` for the start.
        logits: float32 [N, V] after the step.
        support: number of tokens left, by row.
        mass: their mass under the distribution of the logits at the start, by row.
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
    stands after a truncation stays there; it cannot bring a forbidden token back, since -inf stays -inf.)

    Raises:
        OptionError: something in the list is not a processor.
    """

    processors: tuple[LogitsProcessor, ...]

    def __init__(self, processors: Iterable[LogitsProcessor] = ()) -> None:
        processors = tuple(processors)
        for processor in processors:
            if not isinstance(processor, LogitsProcessor):
                raise out_of_domain("processors", "logits processors", processor, hint="Temperature(0.8) | TopK(50)")
        object.__setattr__(self, "processors", processors)

    @cached_property
    def _narrowing(self) -> tuple[int, Narrowing, float, tuple[OrderPreserving, ...]] | None:
        """The first truncation that finds survivors and after which all processors keep the order.

        The index of the step at which wide rows become candidates, which is it, or a temperature before it; it; this
        temperature; and the processors after it.
        """
        for index, processor in enumerate(self.processors):
            rest = tuple(after for after in self.processors[index + 1 :] if isinstance(after, OrderPreserving))
            if isinstance(processor, Narrowing) and len(rest) == len(self.processors) - index - 1:
                before = self.processors[index - 1] if index else None
                divisor = before.divides_by() if isinstance(before, OrderPreserving) else None
                return (index, processor, 1.0, rest) if divisor is None else (index - 1, processor, divisor, rest)
        return None

    @classmethod
    def ordered(cls, processors: Iterable[LogitsProcessor], order: str = "decodekit") -> Pipeline:
        """The processors in the order of a library, with the meaning that they have there; see `orders`.

        Processors of one kind keep their order. What follows XTC becomes its ``then``: see `XTC`.

        Args:
            processors: in any order.
            order: a name in `ORDERS`.

        Raises:
            UnknownNameError: no such order.
            OptionError: the library has no such processor, or the order is not a name.
        """
        fault = ORDER.fault("order", order)
        if fault is not None:
            raise UnknownNameError(fault.cause, at="order") if isinstance(order, str) else fault
        chosen = ORDERS[order]
        made = list(processors)
        for processor in made:
            if not chosen.has(type(processor)):
                raise OptionError(
                    f"{chosen.library} has no {type(processor).__name__}",
                    at=f"order={order!r}",
                    hint=f"another order, or a pipeline composed by hand: Pipeline([...]) | {processor!r}",
                )
        made.sort(key=lambda processor: chosen.names.index(type(processor).__name__))
        if chosen.window is not None:
            made = [processor.adapted(chosen.window) for processor in made]
        for index in range(len(made) - 1, -1, -1):
            rest = made[index + 1 :]
            whole = made[index].followed_by(rest) if rest and not any(each.needs_history for each in rest) else None
            if whole is not None:
                made[index:] = [whole]
        return cls(made)

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

        From a top-k, top-p or min-p on, rows of candidates stand for wide rows of V logits if all further processors
        keep the order. The result is that of a call, without sorting and without noise for removed tokens.
        """
        rows = logits.to(torch.float32)
        start = self._narrowing[0] if self._narrowing and is_wide(rows) and len(rows) else None
        for index, processor in enumerate(self.processors):
            if mask is not None and processor.stage > Stage.BIAS:
                rows, mask = apply_bitmask(rows, mask), None
            if index == start:
                candidates = self._candidates(rows)
                if candidates is not None:
                    return candidates
            rows = processor.applied(rows, history)
        return rows if mask is None else apply_bitmask(rows, mask)

    def _candidates(self, rows: Tensor) -> Candidates | None:
        """The tokens that are left of rows [N, V] from the narrowing on; None where that is not worth it."""
        assert self._narrowing is not None
        _, truncation, temperature, rest = self._narrowing
        found = truncation.survivors(rows, temperature, rest)
        if found is None:
            return None
        values, ids = found.logits, found.token_ids
        with np.errstate(invalid="ignore"):  # -inf - -inf in a row without tokens: NaN removes nothing
            for processor in rest:
                values = processor.applied_on_sorted(values)
                if processor.stage is Stage.TEMPERATURE:  # rounding may make logits equal
                    values, ids = in_order(values, ids)
        return Candidates(values, ids, found.vocab_size, found.device)

    @property
    def can_narrow(self) -> bool:
        """Whether `narrow` may give candidates in place of rows."""
        return self._narrowing is not None

    @property
    def certifies(self) -> bool:
        """Whether a token can be certified: see `certificates`."""
        return all(processor.certifies for processor in self.processors)

    @property
    def is_tokenwise(self) -> bool:
        """Whether the result for a token depends on no other token's logit, with a mask or without."""
        return all(processor.is_tokenwise for processor in self.processors)

    def leaders(
        self, logits: Tensor, history: History | None, lead: Callable[[Scores, Floor | None], Leaders]
    ) -> Leaders:
        """The leader of each row without a mask; clear where it is the token taken under every mask that allows it.

        The mask has to allow what is `given`, too. `lead` finds the leaders of rows that no truncation has touched,
        perhaps above a floor.
        """
        scores = Scores(logits.to(torch.float32))
        truncations: list[tuple[LogitsProcessor, Scores]] = []
        for processor in self.processors:
            divisor = processor.divides_by() if isinstance(processor, OrderPreserving) else None
            if divisor is not None:
                scores = scores.divided_by(divisor)
            elif processor.is_tokenwise:
                scores = Scores(processor.applied(scores.rows, history))
            else:
                truncations.append((processor, scores))
        floors = [
            processor.floor
            for processor, before in truncations
            if before is scores and type(processor).floor is not LogitsProcessor.floor
        ]
        tokens, are_certified, given = lead(scores, floors[0] if floors else None)
        standing: RankStatistics | None = None
        for processor, before in truncations:
            if standing is None or standing.scores is not before:
                standing = RankStatistics(before, tokens.to(logits.device))
            are_certified = are_certified & processor.keeps(standing)
        return Leaders(tokens, are_certified, given)

    def first_fault(
        self, logits: Tensor, history: History | None = None, mask: Tensor | None = None
    ) -> LogitsProcessor | None:
        """The processor that made NaN or +inf of rows without it, one call after the other; None if none did."""
        rows = logits.to(torch.float32)
        for processor, after in self._steps(rows, history, mask):
            before = is_faulty(rows) | (rows == -torch.inf).all(dim=-1)  # nothing is left of the others to be made of
            if processor is not None and bool((is_faulty(after) & ~before).any()):
                return processor
            rows = after
        return None

    def trace(self, logits: Tensor, history: History | None = None, mask: Tensor | None = None) -> list[TraceStep]:
        """Each step of a call with the size and mass of what it left, to see which step removes what."""
        rows = logits.to(torch.float32)
        start, traced = rows.softmax(dim=-1), []
        steps = (("mask" if one is None else repr(one), after) for one, after in self._steps(rows, history, mask))
        for name, after in (("logits", rows), *steps):
            kept = after > -torch.inf
            mass = (start * kept).sum(dim=-1)
            traced.append(TraceStep(name, after, tuple(kept.sum(dim=-1).tolist()), tuple(mass.tolist())))
        return traced

    def _steps(
        self, rows: Tensor, history: History | None, mask: Tensor | None
    ) -> Iterator[tuple[LogitsProcessor | None, Tensor]]:
        """Each processor, or None for the mask, with the rows after it, one call after the other."""
        for processor in self.processors:
            if mask is not None and processor.stage > Stage.BIAS:
                rows, mask = apply_bitmask(rows, mask), None
                yield None, rows
            rows = processor.applied(rows, history)
            yield processor, rows
        if mask is not None:
            yield None, apply_bitmask(rows, mask)

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
