"""The tokenizer's own division of bytes that must follow: never another one, and never too much of it."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex as Pattern
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import decodekit as dk
from decodekit.constraints import compile
from decodekit.decoding.loop.append import canonical_run
from decodekit.speculation import PromptLookup
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import TableLM
from tests.reference.generation_tokenizer import small_tokenizer
from tests.reference.vocabularies import sentencepiece_tokenizer
from tests.sizes import few

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
    elif kind == "llama":
        tokenizer = like_llama()
    elif kind == "mistral":
        real = sentencepiece_tokenizer()
        return Canonical(_plainly, Vocabulary.from_tokenizer(real)), _plainly
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


def like_llama() -> Any:
    """As SentencePiece divides: a space before the text, no words, and bytes for characters that are no tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    lines = [line.replace("\n", " ") for line in corpus()]
    backend.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=200))
    learned = json.loads(backend.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    merges = [tuple(pair) for pair in learned["merges"]]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _plainly(text: str) -> list[int]:
    return list(sentencepiece_tokenizer().encode(text, bos=False, eos=False))


SPACED = ["llama", "mistral"]  # a space before a text
KINDS = ["tiny", "pairs", "gpt2", "gpt4", "no words", *SPACED]
SYMBOLS = ['"', ":", " ", ",", "{", "}", "\n", "name", "ab", "abc", "unit", "_price", "1", "23", "é", "'s", "a"]
pieces = st.lists(st.sampled_from(SYMBOLS), max_size=6).map("".join)


def is_own(kind: str, before: str, run: tuple[int, ...], behind: str) -> bool:
    """Whether the tokenizer's own division of `before` and more has `run` right behind `before`."""
    divided, encode = canonical(kind)
    size = len(before.encode())
    ids = encode(before + behind)
    length = len((before + behind).encode()) - sum(len(divided.token_bytes[token] or b"") for token in ids)
    for number in range(len(ids) + 1):
        if length == size:
            return tuple(ids[number : number + len(run)]) == run
        length += len(divided.token_bytes[ids[number]] or b"") if number < len(ids) else 0
    return False


@few(1)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(before=pieces, following=pieces, behind=st.lists(pieces, min_size=1, max_size=4))
def test_settled_tokens_stay_whatever_follows(kind: str, before: str, following: str, behind: list[str]) -> None:
    divided, encode = canonical(kind)
    before = before or "\n" * (kind in SPACED)  # what such a tokenizer makes of a text alone begins with a space
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
    for kind in ("tiny", "pairs", "gpt2", "gpt4", "mistral"):
        divided, encode = canonical(kind)
        text, following = encode('{"name'), b'": null, "unit_price": null, "total": nu'
        run = divided.settled_after(text, following)
        assert len(run) >= len(divided.after(text, following)) - 4 > 0


TEXTS = ["the", "the items", "the total", "abc", "ab", '{"name": "ab"}', '{"name": "abc"}', "é", "12 the", " the"]


def own_division(kind: str, text: str) -> list[int]:
    """How the tokenizer divides a text, and one that begins with no space if it puts one there: as in a second line."""
    divided, encode = canonical(kind)
    ids: list[int] = encode("\n" * (kind in SPACED) + text)
    sizes = [len(divided.token_bytes[token] or b"") for token in ids]
    return ids[next(i for i in range(len(ids)) if sum(sizes[i:]) == len(text.encode())) :]


@functools.cache
def grammar_of(kind: str, texts: tuple[str, ...]) -> Any:
    return compile(dk.Choices(texts), Vocabulary(canonical(kind)[0].token_bytes, ()))


def first_run(kind: str, texts: tuple[str, ...], divided: Canonical | None = None) -> list[int]:
    """What is taken unseen at the beginning of a text, which is one of these."""
    return canonical_run(grammar_of(kind, texts).matcher(), [], divided or canonical(kind)[0], 99)


@few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_first_runs(kind: str) -> None:
    """Of one text all is taken, to its end; of two what both begin with, never what the tokenizer would not write."""
    num_taken = 0
    for text in TEXTS:
        assert first_run(kind, (text,)) == own_division(kind, text)
    for pair in itertools.combinations(TEXTS, 2):
        run = first_run(kind, pair)
        num_taken += len(run)
        for text in pair:
            assert own_division(kind, text)[: len(run)] == run, pair
    assert num_taken > 3
    # Where the text may end and may go on, its end is not taken as one.
    assert first_run(kind, ("the", "the items")) == list(canonical(kind)[0].settled_after([], b"the"))


class Hasty(Canonical):
    """Holds nothing back."""

    def settled_after(self, text: Sequence[int], following: bytes) -> tuple[int, ...]:
        return self.after(text, following)


@pytest.mark.parametrize("kind", SPACED)
def test_negative_control_of_first_runs(kind: str) -> None:
    own, encode = canonical(kind)
    hasty = Hasty(encode, Vocabulary(own.token_bytes, ()))
    runs = {pair: first_run(kind, pair, hasty) for pair in itertools.combinations(TEXTS, 2)}
    assert any(own_division(kind, text)[: len(run)] != run for pair, run in runs.items() for text in pair)
    assert own_division(kind, "the total") != encode("the total")  # which has a space before it


def test_passes_of_a_sentencepiece_tokenizer() -> None:
    """Two tokens have the bytes of each letter, so none is the only one allowed; bytes are forced all the same."""
    tokenizer = like_llama()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    table = torch.randn(vocabulary.size, vocabulary.size, generator=torch.Generator().manual_seed(3))
    llm = dk.LLM(TableLM(table), tokenizer)
    text = "the total, the items: abc"
    for prompt in ("the", "the ", [1]):
        given: dict[str, Any] = {"constraint": dk.Choices([text]), "max_new_tokens": 99}
        off, exact, fast = (llm.generate(prompt, fast_forward=how, **given) for how in ("off", "exact", "canonical"))
        assert off.token_ids == exact.token_ids and exact.stats.num_forced_tokens < len(exact.token_ids) / 4
        assert list(fast.token_ids) == own_division("llama", text) and fast.stats.num_forwards == 0
        assert fast.text == off.text == text and fast.finish_reason == off.finish_reason == "complete"
        measured = llm.generate(prompt, fast_forward="canonical", logprobs=True, **given)
        assert measured.token_ids == fast.token_ids


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
