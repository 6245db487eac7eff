"""The laws of `Strategy` and of its selector, checked on rows of scores and on the texts of a toy model."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.constraints import Regex
from decodekit.decoding.request.prompt import encode
from decodekit.decoding.request.settings import NoiseKeys
from decodekit.errors import DeadEndError, DecodekitError, NonFiniteLogitsError, UselessOptionError
from decodekit.llm import LLM, Completion
from decodekit.sampling import Candidates, Pipeline
from decodekit.speculation import Context, Draft
from decodekit.strategy import Strategy
from decodekit.testing.laws import Subject, check_value
from decodekit.testing.processor_laws import rows_of_every_kind, select_rows, varied_history
from decodekit.testing.toy import toy_llm
from decodekit.vocabulary import Vocabulary

STRATEGY_LAWS: Final[Mapping[str, str]] = {
    "value": "it is a frozen dataclass; copies are equal, and its repr makes an equal one",
    "options": "wrong values of `seed`, `processors`, `speculate` and `contrast` are refused when it is made",
    "select": "`select` gives an int64 [N] of token ids, the same for the same scores and keys",
    "rows": "the token of a row depends on its scores and its keys alone",
    "allowed": "no token is taken whose score is -inf",
    "candidates": "candidates give the token that the whole row gives",
    "dead end": "a row without a token is a DeadEndError, one with NaN or +inf a NonFiniteLogitsError",
    "batch": "a text depends on its prompt and its seed alone: not on the batch",
    "constraint": "under a constraint a text that ends is one of the constraint's",
    "drafts": "a text is the same whoever guesses ahead (unless drafts are verified by rejection)",
}
"""The laws by name."""

PROMPTS: Final = ("abc, the abc, the ", '{"ab": 12} cd', "the cd the cd", "a", 'ab"12"ab"12"')


def texts_of(
    llm: LLM, strategy: Any, constraint: Any, max_new_tokens: int, batch_size: int, seeds: Sequence[int] | None = None
) -> list[Completion]:
    """The texts that a strategy makes of the prompts."""
    return llm.generate(
        list(PROMPTS),
        strategy=strategy,
        constraint=constraint,
        max_new_tokens=max_new_tokens,
        seed=seeds,
        batch_size=batch_size,
        on_length="return",
    )


def check_strategy(strategy: Strategy, *, llm: LLM | None = None, max_new_tokens: int = 24, seed: int = 0) -> None:
    """The laws of `Strategy` and `Selector` (`STRATEGY_LAWS`).

    Scores are what the strategy's own pipeline leaves of rows of every kind. Texts are those of a toy model, in batches
    of one to five, with and without a constraint, with drafts that are often right.

    Args:
        strategy: what is checked; a search with several hypotheses, which has no `select`, by its texts alone.
        llm: the model of the texts; the toy model if left out.
        max_new_tokens: of a text.
        seed: of rows, drafts and noise.

    Raises:
        AssertionError: a law is broken; with its name and the place.
    """
    subject = Subject(strategy, STRATEGY_LAWS)
    llm = toy_llm() if llm is None else llm
    check_value(subject, is_hashable=False)
    _check_options(subject, strategy)
    if hasattr(strategy, "select"):
        _check_select(subject, strategy, llm.vocabulary, seed)
    texts = _Texts(subject, llm, max_new_tokens, seed)
    for constraint in (None, Regex("[a-d]{3,9}(, [a-d]{2})?")):
        texts.check(strategy, constraint)


def _check_options(subject: Subject, strategy: Any) -> None:
    """A wrong value of each common option that the strategy has is refused by name."""
    options = {field.name for field in dataclasses.fields(strategy) if field.init}
    for option, wrong in (("seed", -1), ("processors", 7), ("speculate", "no such proposer"), ("contrast", 7)):
        if option not in options:
            continue
        try:
            dataclasses.replace(strategy, **{option: wrong})
        except DecodekitError:
            continue
        except Exception as error:  # whatever it does wrong
            subject.broken("options", f"{option}={wrong!r}", error)
        subject.broken("options", f"{option}={wrong!r}, which is taken")


def _check_select(subject: Subject, strategy: Strategy, vocabulary: Vocabulary, seed: int) -> None:
    """The selector, on rows as the pipeline leaves them, where it leaves a token."""
    rng = random.Random(seed)
    pipeline = Pipeline(one.for_vocabulary(vocabulary.size, vocabulary.eos_token_ids) for one in strategy.pipeline)
    logits = torch.cat([rows_of_every_kind(vocabulary.size, seed + one)[1] for one in range(2)])
    history = varied_history(len(logits), vocabulary.size, seed)
    is_alive = (pipeline(logits, history) > -math.inf).any(dim=-1)
    scores = pipeline(logits[is_alive], select_rows(history, is_alive))
    num_rows = len(scores)
    keys = NoiseKeys(*([rng.randrange(1 << most) for _ in range(num_rows)] for most in (62, 8, 20)))
    case = _Selection(subject, strategy)
    tokens = case.take(scores, keys, "rows of scores")
    subject.require("select", case.take(scores, keys, "a second call") == tokens, "a second call, which takes others")
    order = list(range(num_rows))
    rng.shuffle(order)
    shuffled = case.take(scores[order], _some(keys, order), "the rows in another order")
    subject.require("rows", shuffled == [tokens[row] for row in order], "the rows in another order")
    for row in range(num_rows):
        [token] = case.take(scores[row : row + 1], _some(keys, [row]), f"row {row} alone")
        subject.require("rows", token == tokens[row], f"row {row} alone: token {token}, among others {tokens[row]}")
        is_allowed = scores[row, token] > -math.inf
        subject.require("allowed", bool(is_allowed), f"row {row}: token {token}")
        if pipeline.can_narrow:
            values, ids = scores[row : row + 1].sort(descending=True, stable=True)
            candidates = Candidates(values.numpy(), ids.numpy(), vocabulary.size, scores.device)
            [found] = case.take(candidates, _some(keys, [row]), f"candidates of row {row}")
            subject.require("candidates", found == token, f"row {row}: token {found}, of the whole row {token}")
    for name, value, error in (
        ("no token", -math.inf, DeadEndError),
        ("NaN", math.nan, NonFiniteLogitsError),
        ("+inf", math.inf, NonFiniteLogitsError),
    ):
        broken = scores.clone()
        broken[0] = value
        case.check_refusal(broken, keys, f"a row of {name}", error)


@dataclass(frozen=True)
class _Selection:
    subject: Subject
    strategy: Strategy

    def take(self, scores: Tensor | Candidates, keys: NoiseKeys, place: str) -> list[int]:
        """The tokens of one call."""
        tokens: Any = self.subject.run("select", place, lambda: self.strategy.select(scores, keys))
        is_right = isinstance(tokens, Tensor) and tokens.dtype == torch.int64 and tokens.shape == (len(keys.seeds),)
        self.subject.require("select", is_right, f"{place}: {tokens!r:.80}")
        return [*tokens.tolist()]

    def check_refusal(self, scores: Tensor, keys: NoiseKeys, place: str, wanted: type[DecodekitError]) -> None:
        """A row from which no token can be taken is the right error."""
        try:
            tokens = self.strategy.select(scores, keys)
        except wanted:
            return
        except Exception as error:  # whatever it does wrong
            self.subject.broken("dead end", place, error)
        self.subject.broken("dead end", f"{place}, from which token {int(tokens[0])} is taken")


@dataclass(frozen=True)
class _Texts:
    subject: Subject
    llm: LLM
    max_new_tokens: int
    seed: int

    def check(self, strategy: Any, constraint: Regex | None) -> None:
        """The same texts alone, in batches, and with drafts."""
        under = "" if constraint is None else f" under {constraint!r}"
        if self._is_useless(strategy, constraint):
            return
        alone = self._texts("batch", f"batch_size=1{under}", strategy, constraint, batch_size=1)
        can_forbid = any(processor.can_forbid for processor in getattr(strategy, "pipeline", ()))
        for prompt, completion in zip(PROMPTS, alone, strict=True):
            if isinstance(completion.error, DeadEndError) and can_forbid:
                continue
            if completion.error is not None:
                self.subject.broken("constraint", f"the prompt {prompt!r}{under}", completion.error)
            if constraint is not None and completion.finish_reason in ("stop", "complete"):
                is_one = completion.value is not None
                self.subject.require("constraint", is_one, f"the prompt {prompt!r}{under}: {completion.text!r}")
        for batch_size in range(2, len(PROMPTS) + 1):
            place = f"batch_size={batch_size}{under}"
            found = self._texts("batch", place, strategy, constraint, batch_size=batch_size)
            self._require_equal("batch", place, found, alone)
        options = {field.name for field in dataclasses.fields(strategy) if field.init}
        if "speculate" not in options or getattr(strategy, "verify", "coupled") == "rejection":
            return
        try:
            guessing = dataclasses.replace(strategy, speculate=_Noisy(self.llm, alone, self.seed))
        except DecodekitError:  # it says that it takes no drafts
            return
        for batch_size in (1, len(PROMPTS)):
            place = f"drafts, batch_size={batch_size}{under}"
            found = self._texts("drafts", place, guessing, constraint, batch_size=batch_size)
            self._require_equal("drafts", place, found, alone)

    def _is_useless(self, strategy: Any, constraint: Regex | None) -> bool:
        """Whether the strategy says that it has no effect here; nothing is decoded."""
        try:
            self.llm.stream(list(PROMPTS), strategy=strategy, constraint=constraint)
        except Exception as error:  # whatever else it does wrong will be seen when it decodes
            return isinstance(error, UselessOptionError)
        return False

    def _texts(self, law: str, place: str, strategy: Any, constraint: Any, *, batch_size: int) -> list[Completion]:
        seeds = None if getattr(strategy, "seed", None) is not None else [self.seed + i for i in range(len(PROMPTS))]
        call = partial(texts_of, self.llm, strategy, constraint, self.max_new_tokens, batch_size, seeds)
        return self.subject.run(law, place, call)

    def _require_equal(self, law: str, place: str, found: Sequence[Completion], wanted: Sequence[Completion]) -> None:
        for prompt, one, other in zip(PROMPTS, found, wanted, strict=True):
            ends = [[(text.token_ids, text.finish_reason) for text in (each, *each.others)] for each in (one, other)]
            texts = f"{one.text!r} after {prompt!r}, alone {other.text!r}"
            self.subject.require(law, ends[0] == ends[1], f"{place}: {texts}")


class _Noisy:
    """Drafts of any length that go on as the text will, but for a token here and there."""

    def __init__(self, llm: LLM, completions: Sequence[Completion], seed: int) -> None:
        prompts = [tuple(encode(llm.tokenizer, prompt, "prompt")) for prompt in PROMPTS]
        self._token_ids = {prompt: one.token_ids for prompt, one in zip(prompts, completions, strict=True)}
        self._rng = random.Random(seed)
        self._vocab_size = llm.vocabulary.size

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """Right for three tokens of four."""
        drafts = []
        for context, limit in zip(contexts, limits, strict=True):
            known = self._token_ids.get(tuple(context.prompt), ())
            coming = known[len(context.text) : len(context.text) + self._rng.randint(0, min(limit, 7))]
            drafts.append(Draft([self._rng.choice([t, t, t, self._rng.randrange(self._vocab_size)]) for t in coming]))
        return drafts


def _some(keys: NoiseKeys, rows: Sequence[int]) -> NoiseKeys:
    return NoiseKeys(*([given[row] for row in rows] for given in (keys.seeds, keys.sequences, keys.positions)))
