"""Drafts in which proposers go on from one another: what is in them, the same text, fewer passes than in a chain."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.constraints import JsonSchema, Regex, compile
from decodekit.errors import OptionError, UnknownNameError
from decodekit.speculation import (
    Adaptive,
    Chain,
    Context,
    Draft,
    DraftModel,
    EarlyExit,
    GrammarDraft,
    Joined,
    PromptLookup,
    Suffix,
    SuffixCorpus,
    resolve_proposer,
)
from decodekit.strategy import Greedy, Sample
from decodekit.testing import check_proposer
from decodekit.testing.toy import toy_llm
from tests.sizes import few, thinned
from tests.speculation.test_draft_model import acceptance, toy
from tests.speculation.test_extraction import documents, schema_of
from tests.speculation.test_proposers import BYTES, context, looked_up
from tests.speculation.test_same_text import CONSTRAINTS, STRATEGIES, Prophet, assert_equals_the_plain_loop


@dataclass(frozen=True, eq=False)
class Says:
    """Offers what a function says of the text, bytes as tokens."""

    what: Callable[[bytes], bytes]
    asked: Any = None

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        if self.asked is not None:
            self.asked.append([bytes(context.text) for context in contexts])
        return [Draft(self.what(bytes(one.text))[:limit]) for one, limit in zip(contexts, limits, strict=True)]


def test_one_goes_on_from_the_other_by_hand() -> None:
    matcher = compile(Regex("([ab]c)*d?"), BYTES).matcher()
    odd_calls: list[Any] = []
    one = Says(lambda text: b"c" if text[-1:] in (b"a", b"b") else b"")
    other = Says(lambda text: b"ax" if len(text) < 5 else b"", odd_calls)
    contexts = [Context([1], [], matcher), Context([1], [*b"ac"], matcher.fork()), Context([1], [], matcher)]
    assert all(contexts[1].matcher.accept(byte) for byte in b"ac")  # type: ignore[union-attr]
    drafts = Joined((one, other)).propose(contexts, [99, 99, 3])
    assert [bytes(draft.tokens) for draft in drafts] == [b"acacac", b"acac", b"aca"]
    # In the first round all rows, then those that have had an offer of the other in between.
    assert odd_calls[0] == [b"", b"ac", b""] and odd_calls[1] == [b"ac", b"acac", b"ac"]
    assert [bytes(one.text) for one in contexts] == [b"", b"ac", b""] and matcher.num_tokens == 0
    assert [bytes(d.tokens) for d in Joined((one, other), 2).propose(contexts, [99, 1, 0])] == [b"ac", b"a", b""]


def test_nobody_goes_on_from_himself() -> None:
    endless, silent = Says(lambda text: b"abc"), Says(lambda text: b"")
    [draft] = Joined((silent, endless)).propose([Context([1], [])], [99])
    assert bytes(draft.tokens) == b"abc"
    [draft] = Joined((endless, Says(lambda text: b"x")), 9).propose([Context([1], [])], [99])
    assert bytes(draft.tokens) == b"abcxabcxa"


@functools.cache
def tiny() -> Any:
    return dk.LLM.load("tiny")


def test_scaffolding_guess_and_scaffolding_in_one_draft() -> None:
    llm = tiny()
    keys = {"number": {"type": "string"}, "kind": {"enum": ["invoice", "receipt"]}, "total": {"type": "integer"}}
    shape = {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}
    schema = JsonSchema(shape, whitespace="any", escapes="any")
    guesses = {'{"number":"': 'A-17"', '"kind":"': "inv", "": '{ "number": "C"'}

    class Reader:
        def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
            texts = [llm.vocabulary.decode(one.text).decode() for one in contexts]
            found = [next((end for end in guesses if end and text.endswith(end)), None) for text in texts]
            says = ["" if end is None and text else guesses[end or ""] for end, text in zip(found, texts, strict=True)]
            return [Draft(llm.tokenizer(guess, add_special_tokens=False)["input_ids"]) for guess in says]

    def offer(text: str, proposer: Any) -> str:
        [draft] = proposer.propose([context(llm, schema, text)], [99])
        return llm.vocabulary.decode(draft.tokens).decode()

    joined = Joined((GrammarDraft(), Reader()), 64)
    assert offer("", joined) == '{"number":"A-17","kind":"invoice","total":'
    assert offer("", Chain((GrammarDraft(), Reader()))) == '{"number":"'
    # Blanks as the text has them, be it a guess, of which nothing is kept.
    assert offer('{"number": "B-4"', joined) == ',"kind": "'
    assert offer("", Joined((Reader(), GrammarDraft()))) == '{ "number": "C","kind": "'
    before = context(llm, schema, '{"number": "B-4"')
    joined.propose([before], [99])
    assert before.memory[GrammarDraft].num_tokens == len(before.text)


def test_what_is_guessed_is_looked_up_and_not_kept() -> None:
    prompt = [1, 2, 3, 4, 1, 2, 5]
    lookup, row = PromptLookup(), Context(prompt, [9])
    ahead = row.ahead([1, 2])
    assert ahead is not None and (ahead.root, list(ahead.guessed), ahead.text) == (row, [1, 2], [9, 1, 2])
    further = ahead.ahead([5])
    assert further is not None and further.root is row and list(further.guessed) == [1, 2, 5]
    for one, expected in ((ahead, (5, 9)), (row, ()), (further, (9,))):
        [draft] = lookup.propose([one], [3])
        assert draft.tokens == expected
        assert [*expected] == looked_up([*prompt, *one.text], 3, 1, 3)[: len(expected)]
    assert row.memory[lookup].update(row.text).tolist() == [*prompt, 9]
    assert lookup.propose([row], [3])[0].tokens == ()  # and no guess among them is found


def test_a_corpus_gets_the_text_of_the_row() -> None:
    corpus = SuffixCorpus()
    row = Context([1], [7])
    ahead = row.ahead([8])
    assert ahead is not None
    Suffix(corpus=corpus).propose([ahead], [4])
    row.text.append(6)  # type: ignore[attr-defined]
    del ahead, row
    gc.collect()
    assert corpus.tokens.tolist() == [7, 6, -1]


def test_experience_behind_a_guess_counts_if_the_guess_came() -> None:
    def learned(*came: int) -> list[float]:
        adaptive = Adaptive(Says(lambda text: b"\5"))
        row = Context([1], [0])
        Joined((Says(lambda text: b"\3\4"), adaptive)).propose([row], [9])
        row.text.extend(came)  # type: ignore[attr-defined]
        adaptive.propose([row], [0])
        return adaptive.acceptance()

    fresh = Adaptive(PromptLookup()).acceptance()
    assert learned(3, 9) == learned(9, 4, 5) == fresh
    assert learned(3, 4, 5)[0] > fresh[0] > learned(3, 4, 6)[0]


@few(3)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=range(len(STRATEGIES)))
def test_the_text_stays_the_same(strategy: Any) -> None:
    for texts in (None, CONSTRAINTS[2]):
        for error_rate, num_rows in ((0.0, 3), (0.4, 1)):
            assert_equals_the_plain_loop(
                strategy,
                proposer=lambda known, rate=error_rate: Joined(
                    (PromptLookup(num_tokens=2), Prophet(known, rate, 2), DraftModel(toy(0), 2)), 7
                ),
                texts=texts,
                num_rows=num_rows,
            )


@pytest.mark.parametrize("strategy", [Greedy(), Sample(repetition_penalty=1.3, top_p=0.9)])
def test_a_draft_model_draws_at_its_place_behind_a_guess(strategy: Any) -> None:
    """What it goes on from is right, it is the target: all of ten tokens is accepted, noise and penalties included."""
    results = assert_equals_the_plain_loop(
        strategy,
        proposer=lambda known: Joined((Prophet(known, 0.0, 2), DraftModel(toy(3), 3)), 10),
        salt=3,
        max_new_tokens=11,
    )
    assert acceptance(results) == 1.0
    assert all(result.stats.num_forwards == 1 for result in results)


def test_laws_are_joined_and_what_was_drawn_is_not_cut() -> None:
    matcher = compile(Regex("[ab]*c"), BYTES).matcher()

    class Draws:
        def __init__(self, tokens: bytes) -> None:
            self.tokens = list(tokens)

        def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
            law = torch.full((len(self.tokens), BYTES.size), 1 / BYTES.size)
            return [Draft(self.tokens, law).first(limit) for limit in limits]

    chosen = Says(lambda text: b"ab" if not text else b"")
    [draft] = Joined((chosen, Draws(b"ba"))).propose([Context([1], [], matcher)], [9])
    assert bytes(draft.tokens) == b"abba" and draft.probabilities is not None
    laws = draft.probabilities
    assert laws.shape == (4, BYTES.size) and torch.allclose(laws.sum(-1), torch.ones(4))
    assert laws[0, ord("a")] == laws[1, ord("b")] == 1 and laws[2, ord("b")] == 1 / BYTES.size
    [draft] = Joined((chosen, Draws(b"bx"))).propose([Context([1], [], matcher)], [9])
    assert bytes(draft.tokens) == b"abbx"  # the last one is illegal, and ends the draft


@few(1)
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_extraction_takes_fewer_passes_than_a_chain(temperature: float | None) -> None:
    parts = (GrammarDraft(), DraftModel("tiny-draft", 6))
    strategy = {} if temperature is None else {"strategy": "sample", "temperature": temperature, "seed": [3, 4]}
    given = {"constraint": schema_of("ticket"), "max_new_tokens": 120, "on_length": "return", **strategy}
    chain = tiny().generate(documents("ticket"), speculate=Chain(parts), **given)
    for batch_size in (1, 3):
        joined = tiny().generate(documents("ticket"), speculate=Joined(parts), batch_size=batch_size, **given)
        for one, other in zip(joined, chain, strict=True):
            assert one.token_ids == other.token_ids
            assert one.stats.num_forwards < other.stats.num_forwards


def test_by_name() -> None:
    assert resolve_proposer("grammar+prompt-lookup") == Joined((GrammarDraft(), Adaptive(PromptLookup())))
    assert resolve_proposer(["grammar + suffix", "suffix"]) == Chain(
        (Joined((GrammarDraft(), Adaptive(Suffix()))), Adaptive(Suffix()))
    )
    assert resolve_proposer("early-exit:-2") == EarlyExit(-2)
    assert resolve_proposer("early-exit") == EarlyExit(0.5)
    assert resolve_proposer("early-exit:0.5+grammar") == Joined((EarlyExit(0.5), GrammarDraft()))
    assert resolve_proposer("draft-model:tiny-draft") == DraftModel("tiny-draft")
    for text, error, says in (
        ("grammar+", UnknownNameError, "no proposer ''"),
        ("grammar:x", OptionError, "proposer 'grammar' takes no 'x' without a name"),
        ("grammar:max_token=3", OptionError, "no option 'max_token'. Did you mean 'max_tokens'"),
        ("early-exit:x", OptionError, "a share of them, got 'x'"),
        ("draft-model", OptionError, "proposer 'draft-model' needs model"),
        ("none-such:1", UnknownNameError, "no proposer 'none-such'"),
    ):
        with pytest.raises(error, match=says):
            resolve_proposer(text)


def test_what_cannot_be_joined() -> None:
    for wrong in ((PromptLookup(),), ()):
        with pytest.raises(OptionError, match="cannot be joined"):
            Joined(wrong)
    for none in (5, PromptLookup):
        with pytest.raises(OptionError, match="speculate must be None, a proposer"):
            Joined((PromptLookup(), none))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="max_tokens"):
        Joined((PromptLookup(), Suffix()), 0)
    with pytest.raises(OptionError, match="GrammarDraft has no effect"):
        tiny().generate("x", speculate="grammar+prompt-lookup", max_new_tokens=2)


RESTS: dict[str, Any] = {
    "prompt-lookup": PromptLookup(),
    "suffix": Suffix(corpus=SuffixCorpus()),
    "draft-model": DraftModel(toy_llm(1), 2),
}


@pytest.mark.slow
@thinned("name", RESTS, keep=["draft-model"])
def test_the_laws_of_proposers(name: str) -> None:
    rest = RESTS[name]
    check_proposer(Joined((GrammarDraft(), rest), 8), max_new_tokens=8)
    check_proposer(Joined((PromptLookup(num_tokens=2), Adaptive(rest)), 8), max_new_tokens=6)
