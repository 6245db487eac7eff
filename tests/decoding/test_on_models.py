"""The loop on real architectures with random weights, in float32, beside transformers' own `generate`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.errors import LengthError
from decodekit.llm import LLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.strategy import Greedy, Sample, Strategy
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few, thinned

TWELVE = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "mixtral",
    "olmo2",
    "smollm3",
]
PROMPT_LENGTHS = (3, 17, 9, 1, 30)
PROMPTS = [tokens(i, length) for i, length in enumerate(PROMPT_LENGTHS)]
NO_TEXT = Vocabulary([None] * VOCAB_SIZE, ())  # nothing ends a text: every row runs to its limit


@functools.cache
def model(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def decode(
    name: str, prompts: Sequence[Sequence[int]], strategy: Strategy, num_rows: int, seeds: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    settings = Settings(NO_TEXT, strategy.pipeline, strategy.select, max_new_tokens=64)
    requests = [Request(prompt, seed=seeds[i] if seeds else 0) for i, prompt in enumerate(prompts)]
    results: dict[int, Result] = {}
    for update in decode_texts(model(name), settings, num_rows, requests):
        if update.result is not None:
            results[update.index] = update.result
    return [results[i].token_ids for i in range(len(prompts))]


def generated(name: str, prompt: Sequence[int], **options: Any) -> tuple[int, ...]:
    """The new tokens of transformers' own `generate`, end-of-text tokens ignored."""
    own: Any = model(name).model
    own.generation_config.eos_token_id = None
    mask = torch.ones(1, len(prompt), dtype=torch.int64)
    out = own.generate(
        torch.tensor([prompt]), attention_mask=mask, max_new_tokens=64, do_sample=False, pad_token_id=0, **options
    )
    return tuple(out[0, len(prompt) :].tolist())


@few(1)
@thinned("name", TWELVE, keep=["llama", "gemma2", "mixtral"])
def test_greedy_tokens_equal_generate(name: str) -> None:
    """Alone and all five at once; 64 tokens each."""
    expected = [generated(name, prompt) for prompt in PROMPTS]
    assert decode(name, PROMPTS, Greedy(), 5) == expected
    assert decode(name, PROMPTS[1:2], Greedy(), 1) == expected[1:2]
    assert len({token for row in expected for token in row}) > 20  # no model that only repeats itself


def test_greedy_with_a_repetition_penalty_equals_generate() -> None:
    expected = [generated("llama", prompt, repetition_penalty=1.3) for prompt in PROMPTS]
    assert expected != [generated("llama", prompt) for prompt in PROMPTS]
    assert decode("llama", PROMPTS, Greedy(repetition_penalty=1.3), 3) == expected


@few(1)
@thinned("name", ["llama", "gpt2", "lfm2"], keep=["llama", "lfm2"])
def test_sampled_tokens_do_not_depend_on_the_batch(name: str) -> None:
    strategy = Sample(temperature=1.2, top_k=50, top_p=0.95)
    seeds = [5, 6, 7, 8, 9]
    together = decode(name, PROMPTS, strategy, 5, seeds)
    assert decode(name, PROMPTS, strategy, 2, seeds) == together
    for i in (0, 4):
        assert decode(name, [PROMPTS[i]], strategy, 1, [seeds[i]]) == [together[i]]
    assert decode(name, PROMPTS[::-1], strategy, 3, seeds[::-1]) == together[::-1]
    assert decode(name, PROMPTS[:1], strategy, 1, [1]) != together[:1]


def test_text_of_generate_with_its_end_token() -> None:
    """Through the front door: texts, end-of-sequence tokens and logits that are wider than the tokenizer."""
    tokenizer = small_tokenizer()
    hf: Any = architectures.build("llama")
    llm = LLM(hf, tokenizer)
    prompts = ["the né other", "a", "x y z " * 5]
    # An end token that the model really gives somewhere on the way.
    sixth = llm.generate(prompts[0], max_new_tokens=6).token_ids[5]
    hf.generation_config.eos_token_id = [2, sixth]
    llm = LLM(hf, tokenizer)
    assert llm.vocabulary.eos_token_ids == {2, sixth}
    for prompt, completion in zip(prompts, llm.generate(prompts, max_new_tokens=40), strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        mask = torch.ones_like(ids)
        out = hf.generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
        assert list(completion.token_ids) == out[0, ids.shape[1] :].tolist()
    assert llm.generate(prompts[0]).finish_reason == "stop"


def test_scores_equal_the_models_own_logits() -> None:
    hf: Any = architectures.build("qwen3")
    llm = LLM(hf, small_tokenizer())
    texts = ["the né other", "ab c", "x y z " * 20]
    for score in llm.score(texts):
        ids = torch.tensor([list(score.token_ids)])
        with torch.no_grad():
            law = torch.log_softmax(hf(ids).logits[0], -1)
        expected = law[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        assert score.logprobs == pytest.approx(expected, abs=1e-4)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"enum": ["small", "large", None]},
        "parts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "size", "parts"],
    "additionalProperties": False,
}


@few(1)
@thinned("name", ["llama", "falcon", "mamba"], keep=["falcon", "mamba"])
def test_constrained_texts_are_valid_or_cut(name: str) -> None:
    import jsonschema

    llm = LLM(architectures.build(name), small_tokenizer())
    prompts = [f"item {i}" for i in range(5)]
    constraints = {
        "regex": dk.Regex(r"(ab|é){2,5}-\d+[a-f]"),
        "choices": dk.Choices(["the first", "é", "other"]),
        "schema": SCHEMA,
    }
    num_valid = 0
    for kind, constraint in constraints.items():
        for strategy in (dk.Greedy(), dk.Sample(temperature=1.5, top_p=0.95)):
            for completion in llm.generate(
                prompts, constraint=constraint, strategy=strategy, seed=list(range(5)), max_new_tokens=40, batch_size=4
            ):
                if completion.finish_reason == "length":
                    assert isinstance(completion.error, LengthError)
                    continue
                assert completion.error is None and completion.finish_reason in ("complete", "stop")
                num_valid += 1
                if kind == "schema":
                    jsonschema.validate(completion.value, SCHEMA)
                else:
                    assert completion.value == completion.text
    assert num_valid >= 10  # at least all the choices
