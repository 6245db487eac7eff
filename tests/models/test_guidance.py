"""Guided logits beside transformers' own guidance, and beside a twin that reads everything anew."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor as TheirGuidance

from decodekit.decoding.loop.batch import PREFILL_TOKENS
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.wrappers.contrast_model import guided
from decodekit.models.wrappers.guidance import CHUNK, GuidedCache, GuidedLM
from decodekit.strategy import Greedy
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.contrast import guided_row
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.models import plain_logits
from tests.sizes import few, thinned

SEVERAL = ["llama", "gemma2", "mistral", "gpt2", "opt", "phi3", "gpt_oss", "falcon", "lfm2"]
PROMPTS = [tokens(i, length) for i, length in enumerate((3, 17, 9, 1))]
NEGATIVES: list[list[int]] = [tokens(10, 5), [], tokens(11, 30), tokens(12, 2)]
NO_TEXT = Vocabulary([None] * VOCAB_SIZE, ())
NUM_TOKENS = 24


@functools.cache
def model(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def decode(lm: Any, num_rows: int, scale: float = 1.5, prompts: Any = PROMPTS, negatives: Any = NEGATIVES) -> Any:
    settings = Settings(NO_TEXT, Greedy().pipeline, Greedy().select, max_new_tokens=NUM_TOKENS)
    requests = [Request(prompt, negative_prompt=negative) for prompt, negative in zip(prompts, negatives, strict=True)]
    results: dict[int, Result] = {}
    for update in decode_texts(GuidedLM(lm, scale), settings, num_rows, requests):
        if update.result is not None:
            results[update.index] = update.result
    return [results[i].token_ids for i in range(len(requests))]


def generated(name: str, prompt: Sequence[int], negative: Sequence[int], scale: float = 1.5) -> tuple[int, ...]:
    own: Any = model(name).model
    own.generation_config.eos_token_id = None
    more = {"negative_prompt_ids": torch.tensor([negative])} if negative else {}
    out = own.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
        guidance_scale=scale,
        **more,
    )
    return tuple(out[0, len(prompt) :].tolist())


@few(1)
@thinned("name", SEVERAL, keep=["llama", "lfm2"])
def test_greedy_tokens_equal_those_of_generate(name: str) -> None:
    expected = [generated(name, *pair) for pair in zip(PROMPTS, NEGATIVES, strict=True)]
    assert decode(model(name), 4) == expected
    assert decode(model(name), 1) == expected
    # Negative controls: neither the scale nor the negative prompt is without effect.
    assert decode(model(name), 4, scale=1.0) != expected
    assert decode(model(name), 4, negatives=[[]] * 4) != expected


def test_a_scale_below_1_equals_generate() -> None:
    assert decode(model("llama"), 2, scale=0.0) == [
        generated("llama", *pair, scale=0.0) for pair in zip(PROMPTS, NEGATIVES, strict=True)
    ]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_rows_equal_those_of_transformers(name: str) -> None:
    lm = model(name)
    negative, text = tokens(4, 6), tokens(5, 8)
    processor = TheirGuidance(2.5, lm.model, unconditional_ids=torch.tensor([negative]))
    guided_lm = GuidedLM(lm, 2.5)
    cache = guided_lm.new_cache(1, 8)
    cache.set_prompt(0, PROMPTS[2], negative)
    reading = list(PROMPTS[2])
    for step, token in enumerate(text):
        ours = guided_lm.forward(torch.tensor([reading]), [len(reading)], cache)[0]
        prefix = [*PROMPTS[2], *text[:step]]
        with torch.no_grad():
            theirs = processor(torch.tensor([prefix]), plain_logits(lm.model, prefix)[-1:])[0]
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-5)
        both = [plain_logits(lm.model, [*start, *text[:step]])[-1] for start in (PROMPTS[2], negative)]
        torch.testing.assert_close(guided(*both, 2.5), theirs, atol=2e-5, rtol=1e-5)  # the law alone
        reading = [token]


def test_the_law_by_hand() -> None:
    """c = (1/2, 1/4, 1/4), u = (1/4, 1/2, 1/4); scale 2 gives c^2 / u."""
    c, u = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    found = guided(c.log() + 3, u.log() - 7, 2.0)  # logits may be shifted
    torch.testing.assert_close(found.exp(), torch.tensor([1.0, 0.125, 0.25]))
    torch.testing.assert_close(found, guided_row(c.log(), u.log(), 2.0), check_dtype=False)
    # What the model excludes stays excluded, and nothing becomes NaN.
    never = torch.tensor([0.0, -torch.inf, 0.0])
    for other in (never, c.log(), torch.tensor([-torch.inf, 0.0, 0.0])):
        law = guided(never, other, 1.5)
        assert not law.isnan().any() and law[1] == -torch.inf and law[[0, 2]].isfinite().all()


class Twin:
    """What a guided cache means: a prompt, a negative prompt, and the tokens that were read."""

    def __init__(self, law: Any, scale: float, num_rows: int) -> None:
        self.law, self.scale = law, scale
        self.tokens: list[list[int]] = [[] for _ in range(num_rows)]
        self.prompts: list[list[int]] = [[] for _ in range(num_rows)]
        self.negatives: list[list[int]] = [[] for _ in range(num_rows)]

    def row(self, row: int, place: int) -> Tensor:
        """Logits after the token at a place."""
        read, num_prompt = self.tokens[row][: place + 1], len(self.prompts[row])
        if place < num_prompt - 1:
            return torch.log_softmax(self.law(read), dim=-1)
        negative = self.negatives[row] or self.prompts[row][-1:]
        return guided_row(self.law(read), self.law([*negative, *read[num_prompt:]]), self.scale)


@pytest.mark.parametrize("seed", range(12))
def test_any_walk_equals_reading_everything_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, drafts, all kinds of logits, subsets of rows, truncation, reordering, new prompts."""
    monkeypatch.setattr("decodekit.models.wrappers.guidance.CHUNK", 3)
    choose = random.Random(seed)
    law = hashed_law(7)
    lm = GuidedLM(ToyLM(law, 7), 1.7)
    cache, twin = lm.new_cache(4, 8), Twin(law, 1.7, 4)
    kinds = set()

    def some(least: int, most: int) -> list[int]:
        return [choose.randrange(7) for _ in range(choose.randint(least, most))]

    def begin(row: int) -> None:
        cache.reset([row])
        twin.tokens[row], twin.prompts[row], twin.negatives[row] = [], some(1, 6), some(0, 9)
        cache.set_prompt(row, twin.prompts[row], twin.negatives[row])

    for row in range(4):
        begin(row)
    for _ in range(40):
        action = choose.choice(["forward"] * 6 + ["truncate", "reorder", "begin", "grow"])
        num_rows = cache.num_rows
        if action == "forward":
            rows = choose.choice([None, choose.sample(range(num_rows), choose.randint(1, num_rows))])
            parts = []
            for row in range(num_rows) if rows is None else rows:
                rest = twin.prompts[row][len(twin.tokens[row]) :]
                whole = [*rest, *some(0 if rest else 1, 4)]
                parts.append(whole[: choose.randint(1, len(whole))])
            counts = [len(part) for part in parts]
            kind: Any = choose.choice(["last", "all", [choose.randint(1, count) for count in counts]])
            kinds.add(kind if isinstance(kind, str) else "counts")
            padded = torch.tensor([[*part, *[0] * (max(counts) - len(part))] for part in parts])
            out = lm.forward(padded, counts, cache, rows, logits=kind)
            expected = []
            for i, row in enumerate(range(num_rows) if rows is None else rows):
                begin_at = len(twin.tokens[row])
                twin.tokens[row] += parts[i]
                every = [twin.row(row, place) for place in range(begin_at, len(twin.tokens[row]))]
                if kind == "all":
                    torch.testing.assert_close(out[i, : counts[i]], torch.stack(every), atol=1e-5, rtol=1e-5)
                expected += every[-1 if kind == "last" else -kind[i] :] if kind != "all" else []
            if kind != "all":
                torch.testing.assert_close(out, torch.stack(expected), atol=1e-5, rtol=1e-5)
        elif action == "truncate":
            lengths = [choose.randint(max(0, len(row) - 5), len(row)) for row in twin.tokens]
            cache.truncate(lengths)
            twin.tokens = [row[:length] for row, length in zip(twin.tokens, lengths, strict=True)]
        elif action == "reorder":
            order = [choose.randrange(num_rows) for _ in range(num_rows)]
            cache.reorder(torch.tensor(order))
            twin.tokens = [list(twin.tokens[row]) for row in order]
            twin.prompts, twin.negatives = [twin.prompts[row] for row in order], [twin.negatives[row] for row in order]
        elif action == "begin":
            begin(choose.randrange(num_rows))
        else:
            cache.grow(cache.capacity + 3)
        assert cache.lengths.tolist() == [len(row) for row in twin.tokens]
    assert kinds == {"last", "all", "counts"}


def test_both_rows_are_read_in_one_pass() -> None:
    """A prompt in chunks with a negative prompt that is longer, and one pass per token from there on."""
    toy = ToyLM(hashed_law(VOCAB_SIZE), VOCAB_SIZE)
    decode(toy, 1, prompts=PROMPTS[1:2], negatives=[tokens(0, CHUNK + 40)])
    assert toy.calls[:2] == [[CHUNK], [17, 40]] and toy.calls[2:] == [[1, 1]] * (NUM_TOKENS - 1)
    toy.calls.clear()
    decode(toy, 1, prompts=[tokens(0, PREFILL_TOKENS + 100)], negatives=[tokens(1, 300)])
    assert toy.calls[:2] == [[PREFILL_TOKENS, 299], [100, 1]] and toy.calls[2:] == [[1, 1]] * (NUM_TOKENS - 1)


def test_a_failing_pass_changes_no_length() -> None:
    lm = GuidedLM(model("llama"), 1.5)
    cache = lm.new_cache(2, 8)
    for row in range(2):
        cache.set_prompt(row, PROMPTS[row], tokens(9, 250))
    lm.forward(torch.tensor([[*PROMPTS[0]]]), [3], cache, [0])
    before = (cache.row_lengths[:], cache.second_lengths[:], cache.lengths.tolist())
    with pytest.raises(Exception, match="the model's context is 256"):
        lm.forward(torch.tensor([tokens(3, 10), tokens(4, 10)]), [10, 10], cache)
    assert (cache.row_lengths, cache.second_lengths, cache.lengths.tolist()) == before


def test_a_cache_must_be_told_its_prompts() -> None:
    lm = GuidedLM(ToyLM(hashed_law(7), 7), 1.5)
    cache = lm.new_cache(2, 8)
    assert isinstance(cache, GuidedCache)
    with pytest.raises(ValueError, match="was not told the prompt of row 0"):
        lm.forward(torch.tensor([[1]]), [1], cache, [0])
    cache.set_prompt(0, [1, 2], [])
    lm.forward(torch.tensor([[1]]), [1], cache, [0])
    with pytest.raises(ValueError, match="not empty"):
        cache.set_prompt(0, [1, 2], [])
    with pytest.raises(ValueError, match="prompt"):
        cache.set_prompt(1, [], [])
