"""E8: texts of random schemas are valid under speculation, with ends, dead ends and illegal tokens in a draft."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from decodekit.constraints import JsonSchema
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.errors import GuardError, ResourceLimitError, UnsatisfiableError, UnsupportedSchemaError
from decodekit.speculation import Context, Draft, DraftModel, Proposer
from decodekit.strategy import Sample, can_redraw
from tests.constraints.json_schema.fuzzing import DRAFTS, Oracle, OraclesDifferError, Source
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.vocabularies import adversarial_vocabulary
from tests.sizes import few
from tests.speculation.test_same_text import decode

VOCABULARY = adversarial_vocabulary()
V = VOCABULARY.size
BUDGET = 40
STRATEGY = Sample(temperature=1.5)


@dataclass(frozen=True)
class Walker:
    """Goes along the masks at random, past ends of the text, and into a wall now and then."""

    num_tokens: int = 6

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft(self._walk(context, min(limit, self.num_tokens)))
            for context, limit in zip(contexts, limits, strict=True)
        ]

    def _walk(self, context: Context, limit: int) -> list[int]:
        rng = random.Random(str([*context.prompt, *context.text]))
        assert context.matcher is not None
        matcher, mask, tokens = context.matcher.fork(), allocate_bitmask(1, V), list[int]()
        while len(tokens) < limit:
            matcher.fill_bitmask(mask)
            allowed = ids_from_bitmask(mask[0]).tolist()
            ends = [token for token in allowed if token in VOCABULARY.eos_token_ids]
            if not allowed or rng.random() < 0.1:
                tokens.append(rng.randrange(V))
                break
            tokens.append(rng.choice(ends if ends and rng.random() < 0.3 else allowed))
            assert matcher.accept(tokens[-1])
        return tokens


def run(grammar: CompiledGrammar, proposer: Proposer | None, seed: int, num_rows: int, **options: Any) -> list[Any]:
    settings = Settings(
        VOCABULARY,
        STRATEGY.pipeline,
        STRATEGY.select,
        BUDGET,
        can_redraw=can_redraw(STRATEGY),
        must_close=True,
        proposer=proposer,
        **options,
    )
    requests = [Request([seed % V, row], grammar.matcher(), seed=row) for row in range(3)]
    texts, results = decode(ToyLM(hashed_law(V, salt=seed), V), requests, settings, num_rows)
    return [(texts[row][0], result) for row, result in enumerate(results)]


def check(draft: int, seed: int, tally: Counter[str]) -> None:
    schema = Source(random.Random(f"speculation {draft}/{seed}"), draft, frozenset()).root()
    try:
        grammar = CompiledGrammar(JsonSchema(schema), VOCABULARY)
    except (UnsupportedSchemaError, ResourceLimitError, UnsatisfiableError):
        tally["no grammar"] += 1
        return
    oracle = Oracle(schema, draft)
    near = ToyLM(hashed_law(V, salt=seed), V)
    plain = run(grammar, None, seed, 3, fast_forward="off")
    drafted = run(grammar, Walker(), seed, 2)
    tested = run(grammar, DraftModel(near, 4), seed, 3, verify="rejection")
    assert [(text, result.token_ids) for text, result in drafted] == [(text, one.token_ids) for text, one in plain]
    for text, result in [*drafted, *tested]:
        if (
            result.error is not None
        ):  # a budget below the least text, a guard that was too strict, a bound of the engine
            assert result.finish_reason == "error" or isinstance(result.error, GuardError), (schema, text)
            tally[type(result.error).__name__] += 1
            continue
        try:
            verdict = oracle.is_valid(text.encode())
        except OraclesDifferError:
            continue
        if verdict is False and re.search(r"[eE]-\d{3}", text):  # as numbers are read: below the least double, as zero
            verdict = oracle.is_valid(json.dumps(json.loads(text)).encode())
        assert verdict is not False, (schema, text, result.token_ids)
        tally["valid"] += 1
        tally["ended in a draft"] += result.token_ids[-1] in VOCABULARY.eos_token_ids
        tally["accepted"] += sum(result.stats.acceptance_histogram)


@few(2)
@pytest.mark.parametrize("draft", DRAFTS)
def test_random_schemas(draft: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10):
        check(draft, seed, tally)
    assert tally["valid"] >= 20 and tally["ended in a draft"] > 0 and tally["accepted"] > 20, tally


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("draft", DRAFTS)
def test_many_random_schemas(draft: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10, 150):
        check(draft, seed, tally)
    assert tally["valid"] >= 300, tally
