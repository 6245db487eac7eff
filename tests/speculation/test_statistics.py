"""Who of several proposers offered what, and how much of it was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.stats import ProposerStats
from decodekit.speculation import Adaptive, Chain, Context, Draft, PromptLookup, Suffix
from decodekit.speculation.proposer import source_names
from decodekit.strategy import Greedy, Sample
from tests.decoding.test_scheduler import V, settings_of
from tests.reference.generation import ToyLM, hashed_law
from tests.speculation.test_same_text import Prophet, assert_equals_the_plain_loop, decode


@dataclass(frozen=True)
class Seldom:
    """The right tokens, where the text has a multiple of five."""

    text: Sequence[int]

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft() if len(context.text) % 5 else Draft(self.text[len(context.text) :][: min(2, limit)])
            for context, limit in zip(contexts, limits, strict=True)
        ]


def test_drafts_by_proposer() -> None:
    """Counted by hand: the text is t0 ... t11. At lengths 0, 5 and 10 `Seldom` offers two tokens and three come; at the
    other lengths `Wrong` offers one token in vain, and one comes."""
    law, request = hashed_law(V, salt=3), Request([3, 1, 2])
    text = decode(ToyLM(law, V), [request], settings_of(), 1)[0][0][1]
    assert len(text) == 12

    class Wrong:
        def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
            return [Draft([(text[len(context.text)] + 1) % 14]) for context in contexts]

    chain = Chain((Seldom(text), Wrong()))
    done, [result] = decode(ToyLM(law, V), [request], settings_of(proposer=chain), 1)
    assert done[0][1] == text
    # 0 -> 3 -> 4 -> 5 -> 8 -> 9 -> 10 -> 12: at 10 one token is offered, for the limit is 12
    assert result.stats.by_proposer == (ProposerStats("Seldom", 3, 5, (3, 2)), ProposerStats("Wrong", 4, 4, ()))
    assert result.stats.acceptance_histogram == (3, 2)
    assert (result.stats.num_drafts, result.stats.num_draft_tokens) == (7, 9)
    assert [one.draft_acceptance_rate for one in result.stats.by_proposer] == [1.0, 0.0]


@pytest.mark.parametrize("strategy", [Greedy(), Sample()])
def test_the_parts_are_the_whole(strategy: Greedy | Sample) -> None:
    results = assert_equals_the_plain_loop(
        strategy,
        proposer=lambda texts: Chain((PromptLookup(min_ngram=2), Prophet(texts, 0.3, 3), PromptLookup())),
        prompts=[[1, 2, 3, 1, 2, 3, 1, 2], [4, 4, 4, 4], [0]],
    )
    assert len({part.proposer for result in results for part in result.stats.by_proposer}) > 1
    for result in results:
        parts = result.stats.by_proposer
        assert sum(part.num_drafts for part in parts) == result.stats.num_drafts
        assert sum(part.num_draft_tokens for part in parts) == result.stats.num_draft_tokens
        histogram = [0] * len(result.stats.acceptance_histogram)
        for part in parts:
            for position, count in enumerate(part.acceptance_histogram):
                histogram[position] += count
        assert tuple(histogram) == result.stats.acceptance_histogram


def test_one_proposer_is_not_told_apart() -> None:
    for result in assert_equals_the_plain_loop(Greedy(), proposer=lambda texts: Prophet(texts, 0.0, 3)):
        assert result.stats.num_drafts > 0 and result.stats.by_proposer == ()


def test_names() -> None:
    proposers = (PromptLookup(), Adaptive(Suffix()), PromptLookup(1), Adaptive(Chain((Suffix(), PromptLookup()))))
    assert source_names(proposers) == ["PromptLookup", "Suffix", "PromptLookup 2", "Adaptive"]
