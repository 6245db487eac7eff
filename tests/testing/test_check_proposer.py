"""Every built-in proposer keeps the laws; for every law there are proposers that break it and are found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import decodekit as dk
from decodekit.speculation import Chain, Context, Draft, Proposer
from decodekit.testing import PROPOSER_LAWS, check_proposer, toy_llm
from tests.sizes import few, thinned

BUILT_IN: list[Proposer] = [
    dk.PromptLookup(),
    dk.GrammarDraft(),
    dk.DraftModel(toy_llm(1), num_tokens=2),
    dk.Joined((dk.GrammarDraft(), dk.PromptLookup())),
    dk.Suffix(corpus=dk.SuffixCorpus()),
    Chain((dk.GrammarDraft(), dk.PromptLookup())),
    dk.Adaptive(dk.Suffix()),
]


@few(1)
@thinned("proposer", BUILT_IN, keep=BUILT_IN[:4])
def test_built_in_proposers_keep_the_laws(proposer: Proposer) -> None:
    check_proposer(proposer, max_new_tokens=10)


def test_what_is_refused_for_some_strategies_is_checked_for_the_others() -> None:
    """A draft model of other tokens guesses for greedy targets alone."""
    check_proposer(dk.DraftModel(dk.LLM.load("tiny-draft"), num_tokens=2), max_new_tokens=4)
    with pytest.raises(dk.DecodekitError, match="keeps recurrent state"):
        check_proposer(dk.PromptLookup(), llm=_without_rollback(), max_new_tokens=4)


def _without_rollback() -> dk.LLM:
    llm = toy_llm()
    llm.model.can_rollback = False  # type: ignore[misc]
    return llm


VOCAB_SIZE = toy_llm().vocabulary.size


# --- proposers that break a law -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Same:
    """Breaks nothing: the last token again. The base of those that do."""

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return [
            Draft([*context.prompt, *context.text][-1:] * limit)
            for context, limit in zip(contexts, limits, strict=True)
        ]


class OneForAll(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return super().propose(contexts[:1], limits[:1])


class NoneWhereSilent(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return [draft or None for draft in super().propose(contexts, limits)]


class Generates(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        yield from super().propose(contexts, limits)


class AlwaysThree(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return super().propose(contexts, [3] * len(contexts))


class Speaks(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return super().propose(contexts, [max(1, limit) for limit in limits])


class Tensors(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return [Draft(torch.tensor(draft.tokens)) for draft in super().propose(contexts, limits)]  # type: ignore[arg-type]


class NumpyTokens(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return [Draft([*np.array(draft.tokens, int)]) for draft in super().propose(contexts, limits)]


class Beyond(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return [Draft([1_000_000] * limit) for limit in limits]


@dataclass(frozen=True)
class Laws(Same):
    """Probabilities of its own; by default they are right."""

    probability: float = 1.0
    of_token: bool = True
    dtype: Any = torch.float32

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        drafts = []
        for draft in super().propose(contexts, limits):
            law = torch.zeros(len(draft), VOCAB_SIZE, dtype=self.dtype)
            for place, token in enumerate(draft.tokens):
                law[place, token if self.of_token else token + 1] = self.probability
            drafts.append(Draft(draft.tokens, law))
        return drafts


class WritesTexts(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        for context in contexts:
            context.text.append(97)  # type: ignore[attr-defined]
        return super().propose(contexts, limits)


class MovesMatchers(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        for context in contexts:
            if context.matcher is not None:
                context.matcher.accept(97)
        return super().propose(contexts, limits)


class WritesLimits(Same):
    def propose(self, contexts: Sequence[Context], limits: Any) -> Any:
        limits[:] = [0] * len(limits)
        return super().propose(contexts, limits)


class CountsOn(Same):
    """Takes a text for one that only grows."""

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        for context in contexts:
            if len(context.text) < context.memory.get(self, 0):
                raise IndexError("the text is shorter than it was")
            context.memory[self] = len(context.text)
        return super().propose(contexts, limits)


@dataclass(frozen=True)
class KnowsItsRows(Same):
    """Takes the rows of the first call for all there will ever be."""

    rows: dict[int, int] = field(default_factory=dict, hash=False)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        if not self.rows:
            self.rows.update({context.row: 0 for context in contexts})
        for context in contexts:
            self.rows[context.row] = 1 + self.rows[context.row]
        return super().propose(contexts, limits)


@dataclass(frozen=True)
class HoldsAFunction(Same):
    choose: Any = field(default_factory=lambda: lambda tokens: tokens)


@dataclass(frozen=True)
class LosesItself(Same):
    """The copy has no tokens to offer, nor the attribute that it would need."""

    tokens: tuple[int, ...] = (97,)

    def __getstate__(self) -> dict[str, Any]:
        return {"nothing": None}

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        return [Draft(vars(self)["tokens"][:limit]) for limit in limits]


class ChangesTheTarget(Same):
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> Any:
        settings = contexts[0].target.settings  # type: ignore[union-attr]
        object.__setattr__(settings, "pipeline", dk.Pipeline([dk.LogitBias({98: 9.0})]))
        return super().propose(contexts, limits)


CONTROLS: list[tuple[str, Any, str]] = [
    ("drafts", OneForAll(), r"call [0-9]+ with [0-9] rows, limits \["),
    ("drafts", NoneWhereSilent(), "None"),
    ("drafts", Generates(), "generator"),
    ("limit", AlwaysThree(), "row 0 gets 3 tokens"),
    ("limit", Speaks(), "gets 1 tokens"),
    ("tokens", Tensors(), "row 0 gets"),
    ("tokens", NumpyTokens(), "row 0 gets"),
    ("tokens", Beyond(), "row 0 gets .*1000000"),
    ("probabilities", Laws(probability=0.5), "sums .*0.5"),
    ("probabilities", Laws(of_token=False), "a token of probability 0"),
    ("probabilities", Laws(dtype=torch.float64), "float64"),
    ("contexts", WritesTexts(), r"the text of row 0 was \[\], is \[97\]"),
    ("contexts", MovesMatchers(), "the matcher of row 0"),
    ("contexts", WritesLimits(), "the limits"),
    ("rows", CountsOn(), "IndexError: the text is shorter"),
    ("rows", KnowsItsRows(), "KeyError"),
    ("pickle", HoldsAFunction(), "pickling it"),
    ("pickle", LosesItself(), "KeyError: 'tokens'"),
    ("same text", ChangesTheTarget(), r"Greedy\(\), batch_size=1, constraint=None: '.*' after"),
]


@pytest.mark.parametrize(("law", "proposer", "place"), CONTROLS, ids=lambda v: type(v).__name__ if v else "")
def test_a_broken_law_is_found_and_named(law: str, proposer: Any, place: str) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)breaks the law '{law}'[^\n]*\n  at  .*({place})"):
        check_proposer(proposer)


def test_every_law_has_a_proposer_that_breaks_it() -> None:
    assert {law for law, _, _ in CONTROLS} == PROPOSER_LAWS.keys()


@pytest.mark.slow
def test_what_the_controls_are_made_of_breaks_nothing() -> None:
    check_proposer(Same(), max_new_tokens=8)
    check_proposer(Laws(), max_new_tokens=8)
