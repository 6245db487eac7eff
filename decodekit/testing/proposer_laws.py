"""The laws of `Proposer`, watched while a model decodes with its drafts."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from decodekit.constraints import Guarded, JsonSchema, Regex
from decodekit.errors import DecodekitError, OptionError
from decodekit.llm import LLM, Completion
from decodekit.models.causal_lm import NO_DRAFTS, can_verify
from decodekit.speculation import Context, Draft, Proposer
from decodekit.strategy import Greedy, Sample
from decodekit.testing.laws import Subject
from decodekit.testing.strategy_laws import PROMPTS, texts_of
from decodekit.testing.toy import toy_llm

PROPOSER_LAWS: Final[Mapping[str, str]] = {
    "drafts": "there is one draft for every context, in a list",
    "limit": "no draft is longer than its limit, so that with limit 0 it is empty",
    "tokens": "a draft holds token ids of the target, as Python integers",
    "probabilities": "probabilities are float32 [k, V], a law for each token, under which the token is possible",
    "contexts": "prompts, texts, matchers and limits are not changed",
    "rows": "it does not fail, whatever rows come, go, are left out or stand in another order, or were taken back",
    "pickle": "it can be pickled, and the copy guesses too",
    "same text": "the texts are what they are without drafts",
}
"""The laws by name."""


def check_proposer(proposer: Proposer, *, llm: LLM | None = None, max_new_tokens: int = 24, seed: int = 0) -> None:
    """The laws of `Proposer` (`PROPOSER_LAWS`), while a model decodes with its drafts.

    Greedy and sampled, in free text, under a pattern, a JSON Schema and a guard that takes texts back. At every step
    the rows are asked for in parts, in a random order and with random limits; some are left out. Where the front door
    refuses the proposer (a `GrammarDraft` in free text, a draft model of another vocabulary when sampling), it is not
    asked.

    Args:
        proposer: what is checked.
        llm: the target; a toy model that likes to repeat itself if left out.
        max_new_tokens: of a text.
        seed: of orders, limits and noise.

    Raises:
        AssertionError: a law is broken; with its name and the place.
        DecodekitError: the front door refuses it everywhere, or leaves it out for this target.
    """
    subject = Subject(proposer, PROPOSER_LAWS)
    target = toy_llm() if llm is None else llm
    if not can_verify(target.model):
        raise OptionError(f"no proposer is asked for {target.model.name}, {NO_DRAFTS}", at="llm", hint="another target")
    copy: Any = subject.run("pickle", "pickling it", lambda: pickle.loads(pickle.dumps(proposer)))
    case = _ProposerCase(subject, target, Greedy(), Regex("[a-d]{4,12}"), max_new_tokens, "pickle")
    refusals = [case.check(copy, 2, seed)]
    for number, constraint in enumerate(_constraints()):
        for strategy in (Greedy(), Sample(seed=seed)):
            case = _ProposerCase(subject, target, strategy, constraint, max_new_tokens)
            wanted = case.texts(len(PROMPTS))
            # Fewer rows than prompts: rows are used again.
            refusals += [case.check(proposer, batch_size, seed + number, wanted) for batch_size in (1, 3)]
        with suppress(OptionError):  # not everything can be verified so
            drawn = Sample(seed=seed, speculate=proposer, verify="rejection")  # asks for probabilities; another text
            _ProposerCase(subject, target, drawn, constraint, max_new_tokens).check(proposer, 3, seed + number)
    if refusals[0] is not None and all(refusals):
        raise refusals[0]


def _constraints() -> list[Any]:
    properties = {"ab": {"type": "integer", "minimum": 0, "maximum": 300}, "cd": {"enum": ["abc", "ab", "a"]}}
    schema = {"type": "object", "properties": properties, "required": ["ab", "cd"], "additionalProperties": False}
    even = Guarded(Regex("[a-d]{2,12}"), lambda text: text.count("a") == 1 or "one a, please")
    return [None, Regex("([a-d]{2}, ){2,6}the"), JsonSchema(schema, whitespace="compact"), even]


@dataclass(frozen=True)
class _ProposerCase:
    """One way to decode; `law` is the one that a failing proposer breaks."""

    subject: Subject
    llm: LLM
    strategy: Any
    constraint: Any
    max_new_tokens: int
    law: str = "rows"

    def texts(self, batch_size: int) -> list[Completion]:
        """The completions of the prompts."""
        return texts_of(self.llm, self.strategy, self.constraint, self.max_new_tokens, batch_size)

    def check(
        self, proposer: Proposer, batch_size: int, seed: int, wanted: Sequence[Completion] | None = None
    ) -> DecodekitError | None:
        """The laws while a proposer guesses; its texts are the wanted ones, if any are. The refusal if it may not."""
        watched = _Watched(self.subject, proposer, self.llm.vocabulary.size, seed, self.law)
        try:
            found = replace(self, strategy=replace(self.strategy, speculate=watched)).texts(batch_size)
        except DecodekitError as refusal:  # at the front door: what a proposer raises breaks a law
            return refusal
        if watched.broken is not None:  # not what became of its row, or of the same rows one by one
            raise watched.broken
        for prompt, one, other in zip(PROMPTS, found, wanted or found, strict=True):
            is_equal = (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
            place = f"{self.strategy!r}, batch_size={batch_size}, constraint={self.constraint!r:.80}"
            texts = f"{one.text!r} after {prompt!r}, without drafts {other.text!r}"
            self.subject.require("same text", is_equal, f"{place}: {texts}")
        return None


class _Watched:
    """A proposer that asks another one and looks at what it does; `law` is the one that an exception breaks, `broken`
    the first report."""

    def __init__(self, subject: Subject, proposer: Proposer, vocab_size: int, seed: int, law: str) -> None:
        self.proposers = (proposer,)  # what the front door looks at
        self._subject = subject
        self._vocab_size = vocab_size
        self._law = law
        self._rng = random.Random(seed)
        self._num_calls = 0
        self.broken: AssertionError | None = None

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The drafts of some of the rows, asked for in two parts."""
        try:
            return self._drafts(contexts, limits)
        except AssertionError as error:
            self.broken = self.broken or error
            raise

    def _drafts(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        drafts = [Draft()] * len(contexts)
        rows = [row for row in range(len(contexts)) if self._rng.random() < 0.9]
        self._rng.shuffle(rows)
        cut = self._rng.randint(0, len(rows))
        for part in (rows[:cut], rows[cut:]):
            if not part:
                continue
            least = [self._rng.choice([limits[row], limits[row], min(1, limits[row]), 0]) for row in part]
            for row, draft in zip(part, self._asked([contexts[row] for row in part], least), strict=True):
                drafts[row] = draft
        return drafts

    def _asked(self, contexts: list[Context], limits: list[int]) -> list[Draft]:
        self._num_calls += 1
        place = f"call {self._num_calls} with {len(contexts)} rows, limits {limits}"
        before = [_state(context) for context in contexts], list(limits)
        drafts = self._subject.run(self._law, place, lambda: self.proposers[0].propose(contexts, limits))
        require = self._subject.require
        is_right = isinstance(drafts, list) and len(drafts) == len(contexts)
        require("drafts", is_right and all(isinstance(draft, Draft) for draft in drafts), f"{place}: {drafts!r:.80}")
        after = [_state(context) for context in contexts], list(limits)
        require("contexts", after == before, f"{place}: {_difference(before[0], after[0])}")
        for row, (draft, limit) in enumerate(zip(drafts, limits, strict=True)):
            require("limit", len(draft) <= limit, f"{place}: row {row} gets {len(draft)} tokens")
            are_tokens = all(type(token) is int and 0 <= token < self._vocab_size for token in draft.tokens)
            require("tokens", are_tokens, f"{place}: row {row} gets {[*draft.tokens]!r:.80}")
            if draft.probabilities is not None:
                self._check_probabilities(draft, f"{place}: row {row}")
        return drafts

    def _check_probabilities(self, draft: Draft, place: str) -> None:
        law, require = draft.probabilities, self._subject.require
        assert law is not None
        shape = (len(draft), self._vocab_size)
        is_right = law.dtype == torch.float32 and law.shape == shape
        require("probabilities", is_right, f"{place}: {law.dtype} {[*law.shape]}")
        is_law = bool((law >= 0).all()) and bool(((law.sum(dim=-1) - 1).abs() < 1e-3).all())
        require("probabilities", is_law, f"{place}: sums {law.sum(dim=-1).tolist()}")
        taken = law.gather(1, torch.tensor([*draft.tokens], device=law.device)[:, None])
        require("probabilities", bool((taken > 0).all()), f"{place}: a token of probability 0")


def _state(context: Context) -> tuple[Any, ...]:
    """The state of a context, which a proposer may not change."""
    matcher = context.matcher
    matched = None if matcher is None else (matcher.num_tokens, matcher.is_accepting, matcher.can_continue)
    return list(context.prompt), list(context.text), matched


def _difference(before: Sequence[tuple[Any, ...]], after: Sequence[tuple[Any, ...]]) -> str:
    """The first row that has changed, and what of it."""
    for row, (one, other) in enumerate(zip(before, after, strict=True)):
        for name, was, now in zip(("prompt", "text", "matcher"), one, other, strict=True):
            if was != now:
                return f"the {name} of row {row} was {was!r:.60}, is {now!r:.60}"
    return "the limits"
