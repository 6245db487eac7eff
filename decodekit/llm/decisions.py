"""Decisions: which of some choices a model takes, with the probability of each.

    llm.decide("Invoice A-17 of Ada Ltd. Paid?", bool).probabilities
    # {True: 0.71, False: 0.29}

The probabilities are exact: `decoding.search.choice_trie` says what is summed, `decoding.search.decision` what is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypedDict, get_args, get_origin

from decodekit.constraints import Choices, compile
from decodekit.decoding.request.completion import Completion
from decodekit.decoding.request.stats import Stats
from decodekit.decoding.search.choice_trie import ChoiceTrie, Cuts, Spellings
from decodekit.decoding.search.decision import MAX_ROWS, DecisionSearch
from decodekit.errors import (
    DecodekitError,
    InvalidConstraintError,
    OptionError,
    ResourceLimitError,
    TokenizerError,
    collecting,
    raise_faults,
)
from decodekit.sampling import Pipeline
from decodekit.sampling.checks import POSITIVE, SHARE, one_of
from decodekit.sampling.sampler_options import Processors, listed
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.strategy.searches import Searching

if TYPE_CHECKING:
    from decodekit.decoding.request.settings import Settings
    from decodekit.decoding.search.search import SearchCall
    from decodekit.models.causal_lm import CausalLM
    from decodekit.vocabulary import Vocabulary

MAX_CHOICES: Final = 4096
"""Most choices of a decision."""

MAX_BYTES: Final = 1 << 20
"""Most bytes of all choices together."""

Spelling: TypeAlias = Literal["any", "canonical"]
"""Which tokens may spell a choice.

``"any"``: all ways that the mask admits. At every token the model's distribution is renormalised over the tokens that
may follow (that of the end of the text included, where a choice is the beginning of another one); the probability of a
choice is the sum over its spellings. It is the share of the choice among the texts that ``generate`` draws with
``constraint=dk.Choices(...)`` and ``strategy="sample"`` at temperature 1 without truncation.

``"canonical"``: the tokens into which the tokenizer divides the choice by itself, and no others. At every token the
model's distribution is renormalised over those with which the cut of some choice goes on (that of the end included
where a cut ends and another one goes on).
"""


class DecideKeywords(TypedDict, total=False):
    """Keywords of `LLM.decide`.

    Args:
        spelling: which tokens may spell a choice, ``"any"`` by default; see `Spelling`.
        temperature: divides the log-probabilities of the choices, not those of tokens;
            `evaluation.measures.calibration` fits one.
        threshold: below this probability of the likeliest choice none is taken: `Decision.is_abstained`.
        processors: what the model's distribution goes through at every token, as in `Sample`; none by default.
        batch_size, tools, enable_thinking, chat_template_kwargs, split_special_tokens: as in `GenerateOptions`.
    """

    spelling: Spelling
    temperature: float
    threshold: float
    processors: Processors
    batch_size: int
    tools: Any
    enable_thinking: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    split_special_tokens: bool | None


_OWN: Final = ("spelling", "temperature", "threshold", "processors")


@dataclass(frozen=True)
class Decision:
    """A model's answer to a question.

    Args:
        value: the likeliest choice, of equals the first; None if it is less likely than the threshold.
        probabilities: of every choice, in the order of the choices; they sum to 1 up to rounding.
        logprobs: their natural logarithms, -inf for a choice that cannot come.
        is_abstained: whether the likeliest choice is less likely than the threshold.
        stats: times and counts.
    """

    value: Any
    probabilities: Mapping[Any, float]
    logprobs: Mapping[Any, float]
    is_abstained: bool
    stats: Stats

    @property
    def entropy(self) -> float:
        """In nats: 0 for a certain choice, log n where n choices are equally likely."""
        pairs = zip(self.probabilities.values(), self.logprobs.values(), strict=True)
        return abs(math.fsum(-p * logprob for p, logprob in pairs if p))

    @property
    def margin(self) -> float:
        """The probability of the likeliest choice less that of the second; 1 for a single choice."""
        first, second = sorted([0.0, *self.probabilities.values()], reverse=True)[:2]
        return first - second

    def at_temperature(self, temperature: float, threshold: float = 0.0) -> Decision:
        """The same with probabilities p^(1/T), divided by their sum.

        Raises:
            OptionError: a number is out of range.
        """
        raise_faults([*_faults_of(temperature, threshold)])
        return _decision(self.logprobs, self.stats, temperature, threshold)


def _faults_of(temperature: Any, threshold: Any) -> Iterator[DecodekitError]:
    faults = POSITIVE.fault("temperature", temperature), SHARE.fault("threshold", threshold)
    yield from (fault for fault in faults if fault is not None)


def _decision(scores: Mapping[Any, float], stats: Stats, temperature: float, threshold: float) -> Decision:
    most = max(scores.values())
    scaled = {value: (score - most) / temperature for value, score in scores.items()}
    total = math.log(math.fsum(map(math.exp, scaled.values())))
    logprobs = {value: score - total for value, score in scaled.items()}
    probabilities = {value: math.exp(score) for value, score in logprobs.items()}
    best = max(probabilities, key=lambda value: logprobs[value])
    is_abstained = probabilities[best] < threshold
    return Decision(None if is_abstained else best, probabilities, logprobs, is_abstained, stats)


@dataclass(frozen=True)
class ChoiceSearch(Searching):
    """The strategy of a decision; see `decoding.search.decision`.

    Args:
        trie: of the choices.
        processors: what the model's log-probabilities go through, as in `Sample`; none by default.
    """

    name: ClassVar[str] = "decide"

    trie: ChoiceTrie
    processors: Processors = ()

    @cached_property
    def pipeline(self) -> Pipeline:
        """The processors."""
        return Pipeline(listed(self.processors, []))

    def decoder(self, model: CausalLM, settings: Settings) -> DecisionSearch:
        """A row for each path that is read together with others."""
        return DecisionSearch(model, settings, lambda _: self.trie, self.trie.width(MAX_ROWS))

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Nothing: its options are checked by `Question`."""
        return iter(())


@dataclass(frozen=True)
class Question:
    """Choices that are ready for a model.

    Args:
        values: what the choices mean, by their texts.
        search: finds their probabilities.
        temperature, threshold: of the decision.
        others: further options of `LLM.generate`.
    """

    values: Mapping[str, Any]
    search: ChoiceSearch
    temperature: float
    threshold: float
    others: Mapping[str, Any]

    @classmethod
    def of(cls, choices: object, vocabulary: Vocabulary, canonical: Canonical, keywords: DecideKeywords) -> Question:
        """The question that choices stand for; see `LLM.decide`.

        Raises:
            InvalidConstraintError: they are not choices.
            ResourceLimitError: there are too many of them, or of their spellings.
            OptionError: a keyword is unknown or out of range; all of them together.
            TokenizerError: the tokenizer does not divide a choice by itself.
        """
        given: Mapping[str, Any] = keywords
        faults: list[DecodekitError] = []
        for name in given.keys() - DecideKeywords.__annotations__:
            hint = ", ".join(DecideKeywords.__annotations__)
            faults.append(OptionError(f"{name} is no option of decide", at=name, hint=hint))
        temperature, threshold = given.get("temperature", 1.0), given.get("threshold", 0.0)
        faults += _faults_of(temperature, threshold)
        spelling, processors = given.get("spelling", "any"), given.get("processors", ())
        with collecting(faults):
            one_of(*get_args(Spelling)).require("spelling", spelling)
        listed(processors, faults)
        raise_faults(faults)
        values = values_of(choices)
        trie = _trie(tuple(values), vocabulary, canonical if spelling == "canonical" else None)
        others = {name: value for name, value in given.items() if name not in _OWN}
        return cls(values, ChoiceSearch(trie, processors), temperature, threshold, others)

    @property
    def options(self) -> dict[str, Any]:
        """Of `LLM.generate` and `Engine.submit`."""
        return {**self.others, "strategy": self.search, "max_new_tokens": 1}

    def decision(self, completion: Completion) -> Decision:
        """The decision of a completion with these options.

        Raises:
            DecodekitError: the error of the completion.
        """
        if completion.error is not None:
            raise completion.error
        found = {one.text: one.score for one in (completion, *completion.others)}
        scores = {value: found[text] or 0.0 for text, value in self.values.items()}
        return _decision(scores, completion.stats, self.temperature, self.threshold)


@lru_cache(maxsize=32)
def _trie(texts: tuple[str, ...], vocabulary: Vocabulary, canonical: Canonical | None) -> ChoiceTrie:
    if canonical is None:
        return Spellings(texts, compile(Choices(texts), vocabulary).matcher(), vocabulary)
    cuts = [canonical.after((), text.encode()) for text in texts]
    for text, cut in zip(texts, cuts, strict=True):
        if vocabulary.decode(cut) != text.encode():
            cause = f"the tokenizer does not divide {text!r:.60} into tokens of its own"
            raise TokenizerError(cause, at="choices", hint='spelling="any"')
    return Cuts(texts, cuts, vocabulary.eos_token_ids)


def values_of(choices: object) -> dict[str, Any]:
    """The values of choices, by the texts that the model writes; errors as of `Question.of`."""
    given: Any = choices.texts if isinstance(choices, Choices) else choices
    if isinstance(given, Sequence) and given[MAX_CHOICES:]:  # a range may have more than there is a length for
        raise _too_large("more choices")
    found = _pairs_of(given)
    if len(found) > MAX_CHOICES:
        raise _too_large("more choices")
    Choices([text for text, _ in found])  # says what is wrong with texts
    if (num_bytes := sum(len(text.encode()) for text, _ in found)) > MAX_BYTES:
        raise _too_large(f"choices of {num_bytes:,} bytes, more")
    try:
        num_values = len({value for _, value in found})
    except TypeError as error:
        raise InvalidConstraintError(f"a choice cannot be a key of a dict: {error}", at="choices") from None
    if num_values < len(found):
        raise InvalidConstraintError(
            "two choices mean the same value, so that they would share a probability",
            at="choices",
            hint="each value once; in Python True equals 1, and 1 equals 1.0",
        )
    return dict(found)


def _too_large(what: str) -> ResourceLimitError:
    return ResourceLimitError(
        f"{what} than a decision has: {MAX_CHOICES:,} of {MAX_BYTES:,} bytes together",
        at="choices",
        hint="fewer choices, or several decisions: first a group, then a choice of it",
    )


def _pairs_of(choices: Any) -> list[tuple[str, Any]]:
    """Choices as texts with what they mean."""
    if isinstance(choices, Mapping):
        return [*choices.items()]
    if isinstance(choices, range):
        return [(str(number), number) for number in choices]
    if choices is bool:
        return [("true", True), ("false", False)]
    if isinstance(choices, type) and issubclass(choices, Enum):
        return [(_written(member.value), member) for member in choices]
    if get_origin(choices) is Literal:
        return [(_written(value.value if isinstance(value, Enum) else value), value) for value in get_args(choices)]
    if isinstance(choices, Sequence) and not isinstance(choices, str | bytes):
        return [(text, text) for text in choices]
    raise InvalidConstraintError(
        f"{choices!r:.60} are no choices",
        at="choices",
        hint="a list of texts, dk.Choices, an Enum, a Literal, bool, a range, or a dict from texts to values",
    )


def _written(value: object) -> str:
    """A value as the constraint of its type has it: in JSON."""
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value, ensure_ascii=False)
    raise InvalidConstraintError(
        f"a choice of the type {type(value).__name__} has no text", at=f"{value!r:.60}", hint="a dict from texts"
    )
