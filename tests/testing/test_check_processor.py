"""Every built-in processor keeps the laws; for every law there are processors that break it and are found out."""

from __future__ import annotations

import inspect
import itertools
import math
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from decodekit import sampling
from decodekit.errors import OptionError
from decodekit.sampling import (
    DRY,
    XTC,
    AllowedTokens,
    BadWords,
    DynamicTemperature,
    Epsilon,
    Eta,
    Foreign,
    FrequencyPenalty,
    History,
    LogitBias,
    LogitsProcessor,
    MinP,
    MinTokens,
    NoRepeatNGram,
    OrderPreserving,
    PLess,
    PresencePenalty,
    Quadratic,
    RepetitionPenalty,
    SequenceBias,
    Stage,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Watermark,
)
from decodekit.sampling.certificates import Flags, RankStatistics
from decodekit.sampling.fast.candidates import Floats
from decodekit.testing import PROCESSOR_LAWS, check_processor
from tests.sizes import few, thinned

INF = math.inf


def halved(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor as transformers calls it."""
    return scores / 2


BUILT_IN: list[LogitsProcessor] = [
    AllowedTokens([1, 2, 3]),
    BadWords([[1, 2], [5]]),
    DRY(0.8),
    DRY(2.0, base=1.5, allowed_length=1, breakers=((3,),), window=8),
    DynamicTemperature(0.5, 1.5),
    Epsilon(0.01),
    Eta(0.01),
    FrequencyPenalty(0.5),
    FrequencyPenalty(-0.5, window=5, counts_prompt=True),
    LogitBias({2: -1.0}),
    LogitBias({1: 2.0, 3: -INF}),
    MinP(0.1),
    MinP(0),
    MinTokens(4),
    MinTokens(4, end_ids=(3,)),
    NoRepeatNGram(1),
    NoRepeatNGram(2),
    PresencePenalty(1.0),
    PresencePenalty(-1.0, window=3, counts_prompt=True),
    Quadratic(0.3),
    Quadratic(0.3, curve=2.5),
    RepetitionPenalty(1.3),
    RepetitionPenalty(0.5, window=4),
    SequenceBias({(1, 2): -3.0, (4,): 1.0}),
    SequenceBias({(1, 2): -INF}),
    Temperature(0.7),
    Temperature(0.01),
    TopA(0.2),
    TopH(0.5),
    PLess(),
    TopK(5),
    TopK(3, exact=True),
    TopK(100),
    TopNSigma(1.0),
    TopP(0.9),
    TopP(1.0),
    Typical(0.9),
    Typical(1.0),
    Watermark(),
    Watermark(context_width=3),
    XTC(0.5),
    XTC(1.0, threshold=0.05),
    XTC(0.5, then=(Temperature(0.7), TopK(9))),
    Foreign(halved),
]


# The first of each class; their other options in the slow run.
FIRST = list({type(processor): processor for processor in reversed(BUILT_IN)}.values())


@few(8, "processor29", "processor43")
@thinned("processor", BUILT_IN, keep=FIRST)
def test_built_in_processors_keep_the_laws(processor: LogitsProcessor) -> None:
    check_processor(processor)


def test_no_built_in_processor_is_forgotten() -> None:
    kinds = {kind for kind in vars(sampling).values() if inspect.isclass(kind) and issubclass(kind, LogitsProcessor)}
    assert kinds - {LogitsProcessor, OrderPreserving} == {type(processor) for processor in BUILT_IN}


def test_other_vocabularies() -> None:
    check_processor(LogitBias({5000: 1.0}), vocab_size=6000)
    check_processor(MinTokens(4), vocab_size=100, end_ids=[7, 8])
    with pytest.raises(AssertionError, match=r"law 'vocabulary'.*\n.*for_vocabulary\(64.*token id 5000"):
        check_processor(LogitBias({5000: 1.0}))


# --- processors that break a law ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Bias(LogitsProcessor):
    """Breaks nothing: the base of those that do."""

    stage = Stage.BIAS

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits


@dataclass(frozen=True, repr=False)
class Cut(Bias):
    stage = Stage.TRUNCATION


class NoDataclass(LogitsProcessor):
    stage = Stage.BIAS

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits


@dataclass(repr=False)
class NotFrozen(LogitsProcessor):
    bias: float = 1.0
    stage = Stage.BIAS

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits + self.bias


@dataclass(frozen=True, repr=False)
class HoldsAList(Bias):
    tokens: list[int] = field(default_factory=lambda: [1, 2])


@dataclass(frozen=True, repr=False, eq=False)
class NeverEqual(NoDataclass):
    pass


@dataclass(frozen=True, repr=False)
class SaysLittle(Bias):
    bias: float = 1.0

    def __repr__(self) -> str:
        return "<a bias>"


@dataclass(frozen=True, repr=False)
class SaysWrong(Bias):
    bias: float = 1.0

    def __repr__(self) -> str:
        return "SaysWrong(2.0)"


@dataclass(frozen=True, repr=False)
class NamesATokenUnchecked(Bias):
    token: int = 40

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits + torch.nn.functional.one_hot(torch.tensor(self.token), logits.shape[-1])


@dataclass(frozen=True, repr=False)
class NoProcessorForAVocabulary(Bias):
    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> Any:
        return None


@dataclass(frozen=True, repr=False)
class GrowsWithEachVocabulary(Bias):
    count: int = 0

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> LogitsProcessor:
        return GrowsWithEachVocabulary(self.count + 1)


@dataclass(frozen=True, repr=False)
class ChangesItsStage(Bias):
    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> LogitsProcessor:
        return Temperature(0.7)


@dataclass(frozen=True, repr=False)
class Doubles(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits.double()


@dataclass(frozen=True, repr=False)
class Shortens(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits[:, :-1]


@dataclass(frozen=True, repr=False)
class GivesArrays(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Any:
        return logits.numpy()


@dataclass(frozen=True, repr=False)
class InPlace(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        logits[:, 0] -= 1
        return logits


@dataclass(frozen=True, repr=False)
class Counts(Bias):
    calls = itertools.count()

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits - float(next(self.calls) % 2)


@dataclass(frozen=True, repr=False)
class RemembersAPrefix(Bias):
    """Keeps what it saw of a row by its number, as processors of other libraries do."""

    needs_history = True
    seen: ClassVar[dict[int, int]] = {}

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        lengths = sampling.processors.with_history(self, history).lengths.tolist()
        for row, length in enumerate(lengths):
            self.seen[row] = max(self.seen.get(row, 0), length)
        return logits - torch.tensor([[float(self.seen[row])] for row in range(len(lengths))])


@dataclass(frozen=True, repr=False)
class RemembersTheLongest(Bias):
    """The same for all rows together."""

    needs_history = True
    seen: ClassVar[list[int]] = [0]

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        history = sampling.processors.with_history(self, history)
        self.seen[0] = max(self.seen[0], int(history.lengths.max()))
        return logits - history.lengths.unsqueeze(1) / self.seen[0]


@dataclass(frozen=True, repr=False)
class WritesIntoTheHistory(Bias):
    needs_history = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        sampling.processors.with_history(self, history).lengths[0] -= 1
        return logits


@dataclass(frozen=True, repr=False)
class MeanOfTheBatch(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits - logits.clamp(min=-50).mean()


@dataclass(frozen=True, repr=False)
class LooksAtPadding(Bias):
    needs_history = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits - sampling.processors.with_history(self, history).token_ids.shape[1]


@dataclass(frozen=True, repr=False)
class PrefixOfTheFirstRow(Bias):
    needs_history = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits - sampling.processors.with_history(self, history).lengths[0]


@dataclass(frozen=True, repr=False)
class StopsAtNaN(Cut):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits if logits.isnan().any() else TopK(3)(logits)


@dataclass(frozen=True, repr=False)
class HidesItsNeed(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits if history is None else logits - history.lengths.unsqueeze(1)


@dataclass(frozen=True, repr=False)
class DoesWithoutHistory(HidesItsNeed):
    needs_history = True


@dataclass(frozen=True, repr=False)
class FailsWithoutHistory(Bias):
    needs_history = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits - history.lengths.unsqueeze(1)  # type: ignore[union-attr]


@dataclass(frozen=True, repr=False)
class Resurrects(Bias):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits.clamp(min=-1e9)


@dataclass(frozen=True, repr=False)
class Normalises(Bias):
    """Of a row without tokens it makes NaN; with `is_safe` that is avoided."""

    is_safe: bool = False
    stage = Stage.TEMPERATURE

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        law = logits.log_softmax(dim=-1)
        return torch.where(logits == -INF, logits, law) if self.is_safe else law


@dataclass(frozen=True, repr=False)
class NormalisingBias(Normalises):
    stage = Stage.BIAS


@dataclass(frozen=True, repr=False)
class AbsoluteFloor(Cut):
    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits.masked_fill(logits < 0, -INF)


@dataclass(frozen=True, repr=False)
class ForbidsAnother(Bias):
    @property
    def can_forbid(self) -> bool:
        return True

    def may_forbid(self, vocab_size: int) -> list[int]:
        return [2]

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return LogitBias({2: -INF, 3: -INF})(logits, history)


@dataclass(frozen=True, repr=False)
class ForbidsSecretly(Bias):
    @property
    def can_forbid(self) -> bool:
        return False

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return LogitBias({3: -INF})(logits, history)


@dataclass(frozen=True, repr=False)
class Upside(Bias):
    stage = Stage.TEMPERATURE

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return torch.where(logits == -INF, logits, -logits)


@dataclass(frozen=True, repr=False)
class CutsAsTemperature(Bias):
    stage = Stage.TEMPERATURE

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return TopK(5)(logits)


@dataclass(frozen=True, repr=False)
class OffByOne(OrderPreserving):
    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return TopK(4, exact=True)(logits)

    def on_sorted(self, logits: Floats) -> Floats:
        return TopK(5, exact=True).on_sorted(logits)


@dataclass(frozen=True, repr=False)
class EighthOfTheRow(OrderPreserving):
    """Right on whole rows; on candidates it takes their number for the size of the vocabulary."""

    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return TopK(logits.shape[-1] // 8)(logits)

    def on_sorted(self, logits: Floats) -> Floats:
        return TopK(max(1, logits.shape[-1] // 8)).on_sorted(np.asarray(logits))


@dataclass(frozen=True, repr=False)
class CertifiesWhatItKeeps(LogitsProcessor):
    """Top-p; what it keeps of a whole row it calls kept under every mask."""

    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return TopP(0.7)(logits)

    def keeps(self, standing: RankStatistics) -> Flags:
        kept: Flags = (self(standing.logits, None).gather(1, standing.tokens[:, None])[:, 0] > -INF).numpy()
        return kept


@dataclass(frozen=True, repr=False)
class TooHighAFloor(LogitsProcessor):
    """Min-p, and the floor of another."""

    stage = Stage.TRUNCATION

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return MinP(0.1)(logits)

    def floor(self, peaks: Floats) -> Floats:
        return MinP(0.5).floor(peaks)


@dataclass(frozen=True, repr=False)
class LooksAround(LogitsProcessor):
    """A temperature that falls where few tokens are left, and says that it looks at each token alone."""

    stage = Stage.TEMPERATURE
    is_tokenwise = True

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits / (1 + (logits > -INF).sum(dim=-1, keepdim=True))


CONTROLS: list[tuple[str, LogitsProcessor, str]] = [
    ("value", NoDataclass(), "it is no dataclass"),
    ("value", NotFrozen(), "its field 'bias' can be set"),
    ("value", HoldsAList(), r"hashing it \(TypeError"),
    ("value", NeverEqual(), "a pickled copy is not equal"),
    ("value", SaysLittle(), r"evaluating <a bias> \(SyntaxError"),
    ("value", SaysWrong(), r"evaluating SaysWrong\(2.0\) makes SaysWrong\(2.0\)"),
    ("vocabulary", NamesATokenUnchecked(), "a call with rows of 8 logits"),
    ("vocabulary", NoProcessorForAVocabulary(), r"for_vocabulary\(64, \[63\]\), which gives None"),
    ("vocabulary", GrowsWithEachVocabulary(), "another processor when asked again"),
    ("vocabulary", ChangesItsStage(), "changes the stage"),
    ("shape", Doubles(), r"torch.float64 \[15, 64\] comes of torch.float32 \[15, 64\]"),
    ("shape", Shortens(), r"\[15, 63\]"),
    ("shape", GivesArrays(), "a ndarray comes of"),
    ("pure", InPlace(), "the logits that were given are changed in place"),
    ("pure", Counts(), r"a second call: row 0 \(random\), token 0"),
    ("rows", RemembersAPrefix(), "the rows in another order: row"),
    ("pure", RemembersTheLongest(), "a later call: row"),
    ("pure", WritesIntoTheHistory(), "the history that was given is changed in place"),
    ("rows", MeanOfTheBatch(), r"a row alone: row 0 \(random\)"),
    ("rows", LooksAtPadding(), "a wider history"),
    ("rows", PrefixOfTheFirstRow(), "the rows in another order"),
    ("rows", StopsAtNaN(), "rows beside one of NaN"),
    ("history", HidesItsNeed(), "a call without a history: row"),
    ("history", DoesWithoutHistory(), "a call without a history, which gives an answer"),
    ("history", FailsWithoutHistory(), r"a call without a history \(AttributeError"),
    ("removed", Resurrects(), r"row 8 \(half masked\), token"),
    ("finite", Normalises(), r"row 14 \(no token\)"),
    ("one left", AbsoluteFloor(), r"row 4 \(far from 0\)|row 3 \(far from 0\)"),
    ("can_forbid", ForbidsSecretly(), r"row 0 \(random\), token 3"),
    ("may_forbid", ForbidsAnother(), r"row 0 \(random\), token 3"),
    ("single", NormalisingBias(is_safe=True), "half of the tokens masked before it"),
    ("single", LooksAround(), "half of the tokens masked before it"),
    ("certificate", CertifiesWhatItKeeps(), r"row \w[^,]*, token"),
    ("certificate", TooHighAFloor(), r"row \d+ \(\w+"),
    ("temperature", Upside(), r"row 0 \(random\)"),
    ("temperature", CutsAsTemperature(), r"row 0 \(random\)"),
    ("sorted", OffByOne(), r"rows in descending order: row 0 \(random\), token 4"),
    ("fused", EighthOfTheRow(), r"the pipeline TopK\(5\) \| EighthOfTheRow\(\) over 2048 logits"),
]


@pytest.mark.parametrize(("law", "processor", "place"), CONTROLS, ids=lambda v: type(v).__name__ if v else "")
def test_a_broken_law_is_found_and_named(law: str, processor: LogitsProcessor, place: str) -> None:
    with pytest.raises(AssertionError, match=rf"breaks the law '{law}'[^\n]*\n  at  .*({place})"):
        check_processor(processor)


def test_every_law_has_a_processor_that_breaks_it() -> None:
    assert {law for law, _, _ in CONTROLS} == PROCESSOR_LAWS.keys()


def test_what_the_controls_are_made_of_breaks_nothing() -> None:
    check_processor(Bias())
    check_processor(Cut())
    check_processor(Normalises(is_safe=True))


def test_the_checks_are_at_hand() -> None:
    code = "import sys, decodekit as dk; print('torch' in sys.modules, dk.testing.check_processor.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "check_processor"]


def test_plain_functions_are_checked_as_they_are() -> None:
    def without_evens(logits: torch.Tensor, history: History) -> torch.Tensor:
        logits[:, ::2] = -INF
        return logits

    def by_call(logits: torch.Tensor, history: History, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(1)
        return logits + len(seen)

    check_processor(without_evens)
    with pytest.raises(AssertionError, match="'finite'"):
        check_processor(lambda logits, history: logits * float("nan"))
    with pytest.raises(AssertionError, match="two answers"):
        check_processor(by_call)
    with pytest.raises(OptionError, match="is no processor"):
        check_processor(lambda a, b: a)
