"""The tokenizer's own division of bytes that must follow: never another one, and never too much of it."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex as Pattern
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import decodekit as dk
from decodekit.speculation import PromptLookup
from decodekit.speculation.canonical import Canonical
from decodekit.vocabulary import Vocabulary
from tests.reference.generation_tokenizer import small_tokenizer

GPT4 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ["name", "unit_price", "total", "é", "abc", "ab", "the", "items"]


def corpus() -> list[str]:
    rng = random.Random(0)
    lines = []
    for _ in range(400):
        pairs = [f'"{rng.choice(WORDS)}": {rng.choice([12, "null", "[]", repr(rng.choice(WORDS))])}' for _ in range(3)]
        lines.append("{" + rng.choice([", ", ",\n  ", ","]).join(pairs) + "}")
    return lines


@functools.cache
def canonical(kind: str) -> tuple[Canonical, Any]:
    if kind == "tiny":
        tokenizer: Any = dk.LLM.load("tiny").tokenizer
    elif kind == "pairs":
        tokenizer = small_tokenizer(('":', ": ", ' "', '",', "na", "ab", "bc", "th", '""'))
    else:
        backend = Tokenizer(models.BPE())
        steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")]
        if kind == "gpt4":
            steps = [pre_tokenizers.Split(Pattern(GPT4), "isolated"), *steps]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(
            corpus(), trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
        )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    encode = functools.partial(_encode, tokenizer)
    return Canonical(encode, Vocabulary.from_tokenizer(tokenizer)), encode


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


KINDS = ["tiny", "pairs", "gpt2", "gpt4", "no words"]
SYMBOLS = ['"', ":", " ", ",", "{", "}", "\n", "name", "ab", "abc", "unit", "_price", "1", "23", "é", "'s", "a"]
pieces = st.lists(st.sampled_from(SYMBOLS), max_size=6).map("".join)


def is_own(kind: str, before: str, run: tuple[int, ...], behind: str) -> bool:
    """Whether the tokenizer's own division of `before` and more has `run` right behind `before`."""
    divided, encode = canonical(kind)
    size = len(before.encode())
    ids = encode(before + behind)
    length = 0
    for number in range(len(ids) + 1):
        if length == size:
            return tuple(ids[number : number + len(run)]) == run
        length += len(divided.token_bytes[ids[number]] or b"") if number < len(ids) else 0
    return False


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(before=pieces, following=pieces, behind=st.lists(pieces, min_size=1, max_size=4))
def test_settled_tokens_stay_whatever_follows(kind: str, before: str, following: str, behind: list[str]) -> None:
    divided, encode = canonical(kind)
    text = encode(before)
    run = divided.settled_after(text, following.encode())
    assert run == divided.after(text, following.encode())[: len(run)]
    if run:
        for more in ["", *behind]:
            assert is_own(kind, before, run, following + more)


def test_unsettled_tokens_do_not() -> None:
    """Negative control: what is held back may be swallowed."""
    divided, encode = canonical("pairs")
    assert divided.after([], b"xa") == tuple(encode("xa")) and divided.settled_after([], b"xa") == tuple(encode("x"))
    assert not is_own("pairs", "", divided.after([], b"xa"), "xab")
    assert divided.after(encode("n"), b"abc") == ()  # a token of the tokenizer goes on where the text ends
    assert divided.after(encode("x"), b"n\xc3") == tuple(encode("n"))  # half of a character has no tokens
    assert divided.after(encode("x"), b"\xc3") == ()


def test_it_goes_on() -> None:
    """Scaffolding is settled but for its end."""
    for kind in ("tiny", "pairs", "gpt2", "gpt4"):
        divided, encode = canonical(kind)
        text, following = encode('{"name'), b'": null, "unit_price": null, "total": nu'
        run = divided.settled_after(text, following)
        assert len(run) >= len(divided.after(text, following)) - 4 > 0


RECORD = dk.Regex(r"the unit price of item [a-c]{2} is [0-9]{1,3}\.[0-9]{2} euros, the total price is [0-9]{2} euros\.")


def test_canonical_fast_forward() -> None:
    """Fewer forward passes, every run the tokenizer's own, and the same whether log-probabilities are measured."""
    llm = dk.LLM.load("tiny")
    runs: list[tuple[str, tuple[int, ...], bytes]] = []
    divided = llm._canonical()

    class Watched(Canonical):
        def settled_after(self, text: Any, following: bytes) -> tuple[int, ...]:
            run = super().settled_after(text, following)
            runs.append((llm.vocabulary.decode(text).decode(), run, following))
            return run

    llm._division = Watched(divided._encode, llm.vocabulary)
    lookup = PromptLookup(max_ngram=2)
    for strategy, guessing in (
        (dk.Greedy(), dk.Greedy(speculate=lookup)),
        (dk.Sample(temperature=1.5), dk.Sample(temperature=1.5, speculate=lookup)),
    ):
        given: dict[str, Any] = {
            "constraint": RECORD,
            "strategy": strategy,
            "seed": [1, 2, 3] if strategy.seed else None,
        }
        prompts = ["Item ab costs 12.50.", "x", "Total: 99 euros."]
        plain = llm.generate(prompts, **given)
        fast = llm.generate(prompts, fast_forward="canonical", **given)
        measured = llm.generate(prompts, fast_forward="canonical", logprobs=True, **given)
        given["strategy"] = guessing
        guessed = llm.generate(prompts, fast_forward="canonical", **given)
        both = llm.generate(prompts, fast_forward="canonical", logprobs=True, **given)
        assert [c.token_ids for c in fast] == [c.token_ids for c in guessed] == [c.token_ids for c in both]
        for one, two, three in zip(plain, fast, measured, strict=True):
            assert two.error is None and two.token_ids == three.token_ids
            assert three.logprobs is not None
            assert [entry.token_id for entry in three.logprobs] == list(three.token_ids)
            assert two.stats.num_forwards < one.stats.num_forwards / 2
            assert two.stats.num_forced_tokens > one.stats.num_forced_tokens
    taken = [(before, run, following) for before, run, following in runs if run]
    assert len(taken) >= 10
    assert all(is_own("tiny", before, run, following.decode()) for before, run, following in taken)
