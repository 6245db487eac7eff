"""The laws of `LogitsProcessor`, checked on rows of every kind that a model or another processor may leave."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling import (
    Candidates,
    History,
    LogitsProcessor,
    MinP,
    OrderPreserving,
    Pipeline,
    Stage,
    Temperature,
    TopK,
)
from decodekit.sampling.certificates import RankStatistics
from decodekit.sampling.fast.large_vocabulary import WIDE
from decodekit.sampling.processors.transformers_processors import is_function, of_function
from decodekit.testing.laws import Subject, check_value

PROCESSOR_LAWS: Final[Mapping[str, str]] = {
    "value": "it is a frozen dataclass; copies are equal and hash equal, and its repr makes an equal one",
    "vocabulary": "`for_vocabulary` gives a processor of the same stage for rows of that width, or an OptionError",
    "shape": "float32 [N, V] goes in and comes out",
    "pure": "equal input gives equal output, whatever was processed before, and is not changed",
    "rows": "a row depends on its logits and its own prefix alone: not on other rows, their order, or padding",
    "history": "`needs_history` is true where the history matters; then a call without one is an OptionError",
    "removed": "what is -inf stays -inf",
    "finite": "NaN and +inf come of NaN and +inf alone",
    "one left": "a processor that is no bias leaves a token where there was one",
    "can_forbid": "where `can_forbid` is false, no finite logit becomes -inf",
    "may_forbid": "where `may_forbid` names tokens, no finite logit of another token becomes -inf",
    "single": "a bias, what comes last, and what `is_tokenwise`, gives a token a logit that depends on no other logit",
    "certificate": "a token that `keeps` certifies stays whatever other tokens are forbidden; one below `floor` goes "
    "where the likeliest stays",
    "temperature": "a temperature removes nothing and keeps the order",
    "sorted": "`on_sorted` makes of sorted rows the sorted result of a call",
    "fused": "`Pipeline.narrow`, with its candidates, gives what one call after the other gives",
}
"""The laws by name."""


def check_processor(
    processor: LogitsProcessor | Callable[..., Tensor],
    *,
    vocab_size: int = 64,
    end_ids: Collection[int] | None = None,
    seed: int = 0,
) -> None:
    """The laws of `LogitsProcessor` (`PROCESSOR_LAWS`), on some dozen kinds of rows and four sets of histories.

    Among the rows are flat, steep and tied ones, rows with -inf in places, with one token, and with none. The laws of
    candidates are checked on wide rows too if the processor is `OrderPreserving`.

    Args:
        processor: what is checked, as an option would take it: a plain function, too.
        vocab_size: V, above every token id that the processor names, at least 32.
        end_ids: the tokens that end a text; the last one if left out.
        seed: of rows and histories.

    Raises:
        AssertionError: a law is broken; with its name and the place.
    """
    subject = Subject(processor, PROCESSOR_LAWS)
    is_plain = is_function(processor)
    checked = of_function(processor) if is_plain else cast("LogitsProcessor", processor)

    def case_of(vocab_size: int, end_ids: Collection[int]) -> _ProcessorCase:
        made = _for_vocabulary(subject, checked, vocab_size, end_ids)
        return _ProcessorCase(subject, made, *rows_of_every_kind(vocab_size, seed))

    case = case_of(vocab_size, [vocab_size - 1] if end_ids is None else [*end_ids])
    resolved, names, rows = case.processor, case.names, case.rows
    with suppress(OptionError):  # a small vocabulary that is not refused has rows that can be processed
        checked.for_vocabulary(8, [7])
        small = case_of(8, [7])
        small.call(small.rows, varied_history(len(small.rows), 8, seed))
    if isinstance(resolved, OrderPreserving):
        case.check_sorted(resolved)
    if resolved.stage is Stage.TRUNCATION:
        case.check_certificates(varied_history(len(rows), vocab_size, seed, 4))
    earlier: list[tuple[History, Tensor]] = []
    for number in range(4):
        history = varied_history(len(rows), vocab_size, seed + number, 4 + 3 * number)
        result = case.check_call(history)
        case.check_rows(history, result)
        case.check_tokens(history, result)
        case.check_history(history, result)
        earlier.append((history, result))
    for history, result in earlier[::-1]:  # in another order, after other calls
        _require_equal(subject, "pure", case.call(rows, history), result, names, "a later call")
    if isinstance(resolved, OrderPreserving):
        width = 2 * WIDE
        wide = case_of(width, [width - 1])
        wide.check_fused(varied_history(len(wide.rows), width, seed))
    if not is_plain:  # which is equal to itself alone
        check_value(subject)


@dataclass(frozen=True)
class _ProcessorCase:
    """A processor as it was given and for a vocabulary, with rows [N, V] to try it on and the names of their kinds."""

    subject: Subject
    processor: LogitsProcessor
    names: Sequence[str]
    rows: Tensor

    def call(self, rows: Tensor, history: History | None) -> Tensor:
        """The processed rows; an exception breaks the law "vocabulary"."""
        place = f"a call with rows of {rows.shape[-1]} logits"
        return self.subject.run("vocabulary", place, lambda: self.processor(rows, history))

    def check_call(self, history: History) -> Tensor:
        """Shape, purity of one call; its result."""
        given, before = self.rows.clone(), [tensor.clone() for tensor in _tensors(history)]
        result = self.call(given, history)
        is_right = isinstance(result, Tensor) and result.dtype == torch.float32 and result.shape == given.shape
        kind = f"{result.dtype} {[*result.shape]}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        self.subject.require("shape", is_right, f"{kind} comes of torch.float32 {[*given.shape]}")
        self.subject.require("pure", torch.equal(given, self.rows), "the logits that were given are changed in place")
        is_kept = all(torch.equal(one, other) for one, other in zip(_tensors(history), before, strict=True))
        self.subject.require("pure", is_kept, "the history that was given is changed in place")
        _require_equal(self.subject, "pure", self.call(given, history), result, self.names, "a second call")
        return result

    def check_rows(self, history: History, result: Tensor) -> None:
        """Every row alone, all rows in another order, with more padding, and beside a row of NaN."""
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(1))
        shuffled = self.call(self.rows[order], select_rows(history, order))
        names = [self.names[i] for i in order.tolist()]
        _require_equal(self.subject, "rows", shuffled, result[order], names, "the rows in another order")
        padded = History(
            torch.nn.functional.pad(history.token_ids, (0, 3), value=-1), history.prompt_lengths, history.lengths
        )
        _require_equal(self.subject, "rows", self.call(self.rows, padded), result, self.names, "a wider history")
        for row in range(len(self.rows)):
            here = torch.tensor([row])
            alone = self.call(self.rows[here], select_rows(history, here))
            _require_equal(self.subject, "rows", alone, result[here], [self.names[row]], "a row alone")
        broken = self.rows.clone()
        broken[0] = math.nan
        beside = self.call(broken, history)
        _require_equal(self.subject, "rows", beside[1:], result[1:], self.names[1:], "rows beside one of NaN")

    def check_tokens(self, history: History, result: Tensor) -> None:
        """The check of single tokens, by the stage of the processor."""
        removed, left, stage = self.rows == -math.inf, result > -math.inf, self.processor.stage
        self._require("finite", ~(result.isnan() | (result == math.inf)))
        self._require("removed", ~(removed & left))
        if not self.processor.can_forbid:
            self._require("can_forbid", removed | left)
        named = self.processor.may_forbid(self.rows.shape[-1])
        if self.processor.can_forbid and named is not None:
            is_named = torch.zeros(self.rows.shape[-1], dtype=torch.bool)
            is_named[list(named)] = True
            self._require("may_forbid", removed | left | is_named)
        if stage > Stage.BIAS:
            self._require("one left", left.any(dim=-1, keepdim=True) | removed.all(dim=-1, keepdim=True))
        if stage in (Stage.BIAS, Stage.LAST) or self.processor.is_tokenwise:
            masked = torch.rand(self.rows.shape, generator=torch.Generator().manual_seed(2)) < 0.5
            before = self.call(self.rows.masked_fill(masked, -math.inf), history)
            after = result.masked_fill(masked, -math.inf)
            _require_equal(self.subject, "single", before, after, self.names, "half of the tokens masked before it")
        if stage is Stage.TEMPERATURE:
            falling = result.gather(-1, self.rows.argsort(dim=-1, descending=True, stable=True))
            self._require("temperature", removed | left)
            self._require("temperature", falling[:, 1:] <= falling[:, :-1])

    def check_certificates(self, history: History) -> None:
        """Tokens that are certified, with all others forbidden, all likelier ones, all less likely ones, and some."""
        generator = torch.Generator().manual_seed(3)
        for token in range(0, self.rows.shape[-1], 3):
            here = (self.rows[:, token] > -math.inf).nonzero().flatten()
            rows, tokens = self.rows[here], torch.full((len(here),), token)
            keeps = partial(self.processor.keeps, RankStatistics(rows, tokens))
            certified = self.subject.run("certificate", "keeps", keeps)
            own = rows[:, token : token + 1]
            forbidden = [torch.ones_like(rows, dtype=torch.bool), rows > own, rows < own, rows <= own, rows >= own]
            forbidden += [torch.rand(rows.shape, generator=generator) < share for share in (0.1, 0.5, 0.9)]
            for masked in forbidden:
                masked[:, token] = False
                left = self.call(rows.masked_fill(masked, -math.inf), select_rows(history, here))[:, token] > -math.inf
                for row in np.flatnonzero(certified & ~left.numpy()).tolist():
                    self.subject.broken("certificate", f"row {self.names[int(here[row])]}, token {token}")
        peaks, likeliest = self.rows.max(dim=-1)
        floor = self.processor.floor(peaks.numpy())
        for share in (0.0, 0.5, 0.9) if floor is not None else ():
            masked = torch.rand(self.rows.shape, generator=generator) < share
            masked[torch.arange(len(masked)), likeliest] = False
            left = self.call(self.rows.masked_fill(masked, -math.inf), history) > -math.inf
            self._require("certificate", ~left | (self.rows >= torch.from_numpy(floor)[:, None]))

    def check_history(self, history: History, result: Tensor) -> None:
        """Whether `needs_history` tells the truth."""
        if self.processor.needs_history:
            try:
                self.processor(self.rows, None)
            except OptionError:
                return
            except Exception as error:  # whatever it does wrong
                self.subject.broken("history", "a call without a history", error)
            self.subject.broken("history", "a call without a history, which gives an answer")
        without = self.call(self.rows, None)
        _require_equal(self.subject, "history", without, result, self.names, "a call without a history")

    def check_sorted(self, processor: OrderPreserving) -> None:
        """The check of `on_sorted` on rows in descending order."""
        falling = self.rows.sort(dim=-1, descending=True, stable=True).values
        with np.errstate(invalid="ignore"):  # a row without tokens may give NaN on the way
            found = self.subject.run("sorted", "a call", lambda: processor.on_sorted(falling.numpy().copy()))
        wanted = self.call(self.rows, None).sort(dim=-1, descending=True).values
        _require_equal(self.subject, "sorted", torch.from_numpy(found), wanted, self.names, "rows in descending order")

    def check_fused(self, history: History) -> None:
        """Pipelines with the processor among others, as a whole and one call after the other.

        Whether a pipeline takes its fast path is decided for all rows of a call, so that every row goes alone, too.
        """
        one = self.processor
        everything = [*range(len(self.rows))]
        calls = [torch.tensor(rows) for rows in (everything, *([row] for row in everything))]
        for processors in (
            (one,),
            (TopK(5), one),
            (MinP(0.05), one),
            (Temperature(0.7), TopK(9), one),
            (one, TopK(7)),
            (one, Temperature(1.3), TopK(11, exact=True)),
        ):
            pipeline = Pipeline(processors)
            place = f"the pipeline {pipeline!r} over {self.rows.shape[-1]} logits"
            wanted = self.rows
            for processor in processors:
                wanted = processor(wanted, history)
            for here in calls:
                narrow = partial(pipeline.narrow, self.rows[here], select_rows(history, here))
                fused = self.subject.run("fused", place, narrow)
                dense = fused.dense() if isinstance(fused, Candidates) else fused
                _require_equal(self.subject, "fused", dense, wanted[here], [self.names[i] for i in here], place)

    def _require(self, law: str, holds: Tensor) -> None:
        """The law holds where `holds` [N, ...] does, which is everywhere."""
        failing = (~holds).any(dim=-1).nonzero().flatten().tolist()
        if failing:
            token = int((~holds[failing[0]]).nonzero()[0])
            at = f", token {token}" if holds.shape[-1] > 1 else ""
            self.subject.broken(law, f"row {failing[0]} ({self.names[failing[0]]}){at}")


def _for_vocabulary(
    subject: Subject, processor: LogitsProcessor, vocab_size: int, end_ids: Collection[int]
) -> LogitsProcessor:
    """The processor for a vocabulary, after what `for_vocabulary` promises."""
    place = f"for_vocabulary({vocab_size}, {end_ids})"
    before = repr(processor)
    made = subject.run("vocabulary", place, lambda: processor.for_vocabulary(vocab_size, end_ids))
    is_one = isinstance(made, LogitsProcessor)
    subject.require("vocabulary", is_one, f"{place}, which gives {made!r:.60}")
    kept = (made.stage, made.needs_history) == (processor.stage, processor.needs_history)
    subject.require("vocabulary", kept, f"{place}, which changes the stage or needs_history")
    again = subject.run("vocabulary", f"{place}, twice", lambda: made.for_vocabulary(vocab_size, end_ids))
    subject.require("vocabulary", again == made, f"{place}, which gives another processor when asked again")
    subject.require("vocabulary", repr(processor) == before, f"{place}, which changes the processor")
    return made


def rows_of_every_kind(vocab_size: int, seed: int) -> tuple[list[str], Tensor]:
    """Rows of every kind, float32 [N, vocab_size], with the names of their kinds."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(vocab_size, generator=generator)

    def some(share: float) -> Tensor:
        return torch.rand(vocab_size, generator=generator) < share

    def without(row: Tensor, removed: Tensor) -> Tensor:
        return row.masked_fill(removed, -math.inf)

    one, two = torch.arange(vocab_size) != vocab_size // 3, torch.arange(vocab_size) % (vocab_size // 2) != 2
    kinds = {
        "random": normal() * 3,
        "flat": normal() * 0.01,
        "steep": normal() * 40,
        "far from 0": normal() - 1e4,
        "large": normal() * 1e4,
        "ties": (normal() * 2).round(),
        "bfloat16": (normal() * 3).to(torch.bfloat16).float(),
        "all equal": torch.full((vocab_size,), 1.5),
        "half masked": without(normal() * 3, some(0.5)),
        "few left": without(normal() * 3, some(0.9)),
        "ties, masked": without((normal() * 2).round(), some(0.7)),
        "two equal tokens": without(torch.zeros(vocab_size), two),
        "one token": without(normal(), one),
        "one unlikely token": without(normal() - 300, one),
        "no token": torch.full((vocab_size,), -math.inf),
    }
    return [*kinds], torch.stack([*kinds.values()])


def varied_history(num_rows: int, vocab_size: int, seed: int, longest: int = 9) -> History:
    """Prompts and texts of unequal length, up to twice `longest`, that repeat themselves; some texts are empty."""
    rng = random.Random(seed)

    def tokens(least: int) -> list[int]:
        few = rng.sample(range(min(vocab_size, 16)), 4)
        listed = rng.choices(few, k=rng.randint(least, longest))
        return listed + listed[: rng.randint(0, len(listed))]

    return History.from_lists([tokens(1) for _ in range(num_rows)], [tokens(0) for _ in range(num_rows)])


def _tensors(history: History) -> tuple[Tensor, Tensor, Tensor]:
    return history.token_ids, history.prompt_lengths, history.lengths


def select_rows(history: History, rows: Tensor) -> History:
    """The history of some rows, no wider than they need."""
    token_ids, prompt_lengths, lengths = (tensor[rows] for tensor in _tensors(history))
    return History(token_ids[:, : int(lengths.max())], prompt_lengths, lengths)


def _require_equal(subject: Subject, law: str, found: Tensor, wanted: Tensor, names: Sequence[str], place: str) -> None:
    """The same tokens are left, and their logits are equal but for the rounding of sums in another order."""
    subject.require(law, found.shape == wanted.shape, f"{place}: shape {[*found.shape]}, not {[*wanted.shape]}")
    is_near = torch.isclose(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    failing = (~is_near).nonzero().tolist()
    if failing:
        row, token = failing[0]
        values = f"{float(found[row, token]):.6g}, not {float(wanted[row, token]):.6g}"
        subject.broken(law, f"{place}: row {row} ({names[row]}), token {token}: {values}")
