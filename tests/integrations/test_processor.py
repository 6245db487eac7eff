"""A constraint in transformers' own loop: whole batches, beams, assisted decoding; every text is in the language."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.errors import OptionError, VocabularyMismatchError
from tests.integrations.calls import CONSTRAINT, TOKENIZER, WIDTH, model_of, prompts
from tests.models.architectures import VOCAB_SIZE
from tests.reference.generation_tokenizer import EOS, PAD

NEW = 14
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beam samples": {"num_beams": 3, "do_sample": True},
}
ASSISTED: dict[str, dict[str, Any]] = {
    "lookup": {"prompt_lookup_num_tokens": 3},
    "assistant": {"assistant": "qwen2"},
    "itself": {"assistant": "llama"},
}


def inputs() -> dict[str, Any]:
    return {**prompts(), "max_new_tokens": NEW}


def num_legal(tokens: list[int]) -> int:
    """How many tokens a matcher that starts anew takes."""
    return dk.compile(CONSTRAINT, TOKENIZER).matcher().validate(tokens)


def assert_legal(output: torch.Tensor) -> None:
    """Every text is the beginning of one of the language, and what follows its end is padding."""
    for row in output[:, WIDTH:].tolist():
        legal = num_legal(row)
        assert legal > 3
        assert set(row[legal:]) <= {PAD, EOS}


def processor(**options: Any) -> Any:
    return dk.processor(CONSTRAINT, TOKENIZER, **options)


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_legal(way: str) -> None:
    torch.manual_seed(0)
    one = processor()
    for _ in range(2):  # the same object again
        assert_legal(model_of("llama").generate(**inputs(), **WAYS[way], logits_processor=[one]))
    with_none = model_of("llama").generate(**inputs(), **WAYS[way])
    assert any(num_legal(row) < 4 for row in with_none[:, WIDTH:].tolist())


@pytest.mark.parametrize("way", ASSISTED)
def test_assisted_texts_are_those_without(way: str) -> None:
    """Drafts make the loop call with prefixes that go back."""
    given = {**inputs(), "input_ids": inputs()["input_ids"][:1], "attention_mask": None}
    options = dict(ASSISTED[way])
    if "assistant" in options:
        options["assistant_model"] = model_of(options.pop("assistant"))
    one = processor()
    plain = model_of("llama").generate(**given, logits_processor=[one])
    assisted = model_of("llama").generate(**given, **options, logits_processor=[one])
    assert assisted.tolist() == plain.tolist()
    assert_legal(plain)


def test_the_mask_comes_last_of_what_changes_single_scores() -> None:
    """In our loop a greedy text under the constraint is the one of their loop with our mask."""
    theirs = model_of("llama").generate(**inputs(), logits_processor=[processor()])
    ours = model_of("llama").generate(
        **inputs(), custom_generate=dk.hf(constraint=CONSTRAINT, tokenizer=TOKENIZER, on_length="return")
    )
    width = min(theirs.shape[1], ours.shape[1])
    assert theirs[:, :width].tolist() == ours[:, :width].tolist()


def test_scores_are_as_wide_as_the_model_says() -> None:
    ids = inputs()["input_ids"]
    masked = processor()(ids, torch.zeros(2, VOCAB_SIZE, dtype=torch.bfloat16))
    assert masked.shape == (2, VOCAB_SIZE) and masked.dtype == torch.bfloat16
    assert len(TOKENIZER) < VOCAB_SIZE and bool((masked[:, len(TOKENIZER) :] == -torch.inf).all())
    with pytest.raises(VocabularyMismatchError, match="the logits 64 columns"):
        processor()(ids, torch.zeros(2, 64))


def test_the_end_of_a_text_is_what_the_loop_says() -> None:
    ended = torch.cat((inputs()["input_ids"][:1], torch.tensor([TOKENIZER.encode("ab12x!")])), dim=1)
    for ends in (None, [EOS, 1]):
        one, allowed = processor(eos_token_id=ends), torch.zeros(1, VOCAB_SIZE)
        for width in range(WIDTH, ended.shape[1] + 1):
            allowed = one(ended[:, :width], torch.zeros(1, VOCAB_SIZE))
        assert (allowed[0] == 0).nonzero().flatten().tolist() == sorted(ends or [EOS])


def test_errors_say_what_is_missing() -> None:
    for options, place in (
        ({"tokenizer": TOKENIZER}, "constraint"),
        ({"constraint": CONSTRAINT}, "tokenizer"),
        ({"constraint": CONSTRAINT, "tokenizer": TOKENIZER, "framework": "jax"}, "framework"),
        ({"constraint": CONSTRAINT, "tokenizer": TOKENIZER, "eos_token_id": "</s>"}, "eos_token_id"),
    ):
        with pytest.raises(OptionError) as caught:
            dk.processor(**options)
        assert caught.value.at == place
