"""The matrix: every processor x constraint x proposer x batch size gives the text of plain decoding, token by token.

A toy model whose logits depend on the whole prefix, and a vocabulary that spells JSON in several ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from decodekit import sampling
from decodekit.constraints import Constraint, JsonSchema, Regex, compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.sampling import (
    DRY,
    XTC,
    AllowedTokens,
    BadWords,
    DynamicTemperature,
    Epsilon,
    Eta,
    FrequencyPenalty,
    LogitBias,
    LogitsProcessor,
    MinP,
    MinTokens,
    NoRepeatNGram,
    Pipeline,
    PLess,
    PresencePenalty,
    Quadratic,
    RepetitionPenalty,
    SequenceBias,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Watermark,
)
from decodekit.speculation import Chain, DraftModel, Joined, PromptLookup, Proposer, Suffix
from decodekit.strategy import Greedy, Mirostat, Sample, Strategy
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import Law, ToyLM, hashed_law
from tests.sizes import few, sized

TOKENS: list[bytes | None] = [
    *(bytes([c]) for c in b'0123456789abcdefghiklnorstu{}":,- '),
    *(b'{"', b'":', b'","', b'"ok"', b"true", b"fal", b"se", b"ab", b"12", b'"n":'),
    None,
]
VOCABULARY = Vocabulary(TOKENS, [len(TOKENS) - 1])
V = len(TOKENS)
PROMPTS = [[3, 10, 11, 12, 3, 10, 11], [41, 5, 40, 5, 41], [20, 21, 20, 21, 20, 21, 7]]
MAX_NEW_TOKENS = 12

CONSTRAINTS: dict[str, Constraint | None] = {
    "free": None,
    "regex": Regex("(ab|a|n)[a-f]{1,4}-[0-9]{2,3}( [0-9])*"),
    "schema": JsonSchema(
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "ok": {"type": "boolean"}},
            "required": ["n", "ok"],
            "additionalProperties": False,
        },
        whitespace="compact",
    ),
}

PROCESSORS: list[LogitsProcessor] = [
    RepetitionPenalty(1.4),
    PresencePenalty(0.7),
    FrequencyPenalty(0.5),
    LogitBias({0: 2.0, 10: -3.0, 13: -5.0}),
    SequenceBias({(10, 11): 3.0, (3,): -1.0}),
    DRY(0.8, allowed_length=1),
    NoRepeatNGram(3),
    BadWords([[12], [10, 11]]),
    AllowedTokens([token for token in range(V) if token % 11]),
    MinTokens(4),
    Temperature(0.6),
    DynamicTemperature(0.5, 1.5),
    Quadratic(0.3),
    TopK(6),
    TopP(0.8),
    MinP(0.1),
    Typical(0.8),
    Epsilon(0.01),
    Eta(0.01),
    TopNSigma(1.0),
    TopA(0.2),
    TopH(0.6),
    PLess(),
    XTC(0.5, 0.1),
    Watermark(2.0, 0.5, 7),
]
STRATEGIES: dict[str, Strategy] = {
    **{type(processor).__name__: Sample(processors=processor) for processor in PROCESSORS},
    "Greedy": Greedy(),
    "Mirostat": Mirostat(tau=2.0, eta=0.5),
    "several": Sample(repetition_penalty=1.2, temperature=0.9, top_k=8, top_p=0.9, min_p=0.02, dry_multiplier=0.5),
}


def near(salt: int) -> Law:
    """Logits near those of the target: a draft model that is often right."""
    target, other = hashed_law(V), hashed_law(V, scale=0.7, salt=salt)

    def law(prefix: Sequence[int]) -> Tensor:
        return target(prefix) + other(prefix)

    return law


PROPOSERS: dict[str, Callable[[], Proposer | None]] = {
    "none": lambda: None,
    "prompt-lookup": PromptLookup,
    "suffix": Suffix,
    "draft model": lambda: DraftModel(ToyLM(near(1), V), 4),
    "chain": lambda: Chain((Suffix(min_match=3), DraftModel(ToyLM(near(1), V), 2))),
    "joined": lambda: Joined((PromptLookup(min_ngram=2), DraftModel(ToyLM(near(1), V), 2))),
}


def test_every_processor_is_in_the_matrix() -> None:
    known = {one for one in vars(sampling).values() if isinstance(one, type) and issubclass(one, LogitsProcessor)}
    bases = {
        sampling.LogitsProcessor,
        sampling.OrderPreserving,
        sampling.Foreign,
    }  # functions of others are as they are
    assert {type(one) for one in PROCESSORS} == known - bases


@functools.cache
def matcher(constraint: str) -> Matcher | None:
    value = CONSTRAINTS[constraint]
    return None if value is None else compile(value, VOCABULARY).matcher()


def decode(strategy: Strategy, constraint: str, proposer: Proposer | None, num_rows: int) -> list[Result]:
    settings = Settings(
        VOCABULARY,
        Pipeline([one.for_vocabulary(V, VOCABULARY.eos_token_ids) for one in strategy.pipeline]),
        strategy.select,
        MAX_NEW_TOKENS,
        proposer=proposer,
        mirostat=strategy.mirostat,
    )
    requests = [Request(prompt, matcher(constraint), seed=seed) for seed, prompt in enumerate(PROMPTS)]
    results = {}
    for update in decode_texts(ToyLM(hashed_law(V), V), settings, num_rows, requests):
        if update.result is not None:
            results[update.index] = update.result
    return [results[index] for index in range(len(PROMPTS))]


@few(3)
@sized("all_rows", (3,), slow=(1, 3))
@pytest.mark.parametrize("name", STRATEGIES)
def test_same_seed_same_text(name: str, all_rows: tuple[int, ...]) -> None:
    num_accepted = 0
    for constraint in CONSTRAINTS:
        expected = decode(STRATEGIES[name], constraint, None, 1)
        for proposer in PROPOSERS:
            for num_rows in all_rows:
                for one, other in zip(
                    decode(STRATEGIES[name], constraint, PROPOSERS[proposer](), num_rows), expected, strict=True
                ):
                    where = f"{constraint}, {proposer}, {num_rows} rows"
                    assert one.token_ids == other.token_ids, where
                    assert one.finish_reason == other.finish_reason, where
                    assert type(one.error) is type(other.error), where
                    num_accepted += sum(one.stats.acceptance_histogram)
    assert num_accepted > 0
