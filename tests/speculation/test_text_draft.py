"""Draft models of another vocabulary: the same text, drafts that come through the text, and a cache that is kept."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import decodekit as dk
from decodekit.constraints import Guarded, Regex
from decodekit.errors import VocabularyMismatchError
from decodekit.models.encoding import encode_plain
from decodekit.speculation import Context, DraftModel, GrammarDraft, Joined
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.speculation.proposers.draft_model import _DraftText, num_common
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.reference.generation import ToyLM
from tests.reference.generation_tokenizer import small_tokenizer
from tests.reference.vocabularies import sentencepiece_tokenizer, tekken_tokenizer
from tests.sizes import few, thinned
from tests.speculation.test_canonical import KINDS, SPACED, canonical, pieces
from tests.speculation.test_draft_model import acceptance
from tests.speculation.test_extraction import documents, schema_of

TOKENIZERS = {"bytes": small_tokenizer, "sentencepiece": sentencepiece_tokenizer, "tekken": tekken_tokenizer}


@functools.cache
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


@functools.cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary.from_tokenizer(TOKENIZERS[kind]())


def parrot(kind: str, texts: Sequence[str]) -> Any:
    """A model with a tokenizer of this kind that knows how texts go on."""
    own = vocabulary(kind)
    tokens = sorted(((data, i) for i, data in enumerate(own.token_bytes) if data), key=lambda one: -len(one[0]))
    by_byte: dict[int, list[tuple[bytes, int]]] = {}
    for data, token in tokens:
        by_byte.setdefault(data[0], []).append((data, token))

    def law(prefix: Sequence[int]) -> Tensor:
        read = own.decode(prefix).lstrip()
        known = next((text.encode() for text in texts if text.encode().startswith(read)), b"")
        rest = known[len(read) :]
        row = torch.zeros(own.size)
        row[next((token for data, token in by_byte.get(rest[0], ()) if rest.startswith(data)), 0) if rest else 0] = 9.0
        return row

    return SimpleNamespace(model=ToyLM(law, own.size), vocabulary=own, tokenizer=TOKENIZERS[kind]())


PROMPTS = ["Invoice A-17, total 40.20 EUR.", "Café Zürich, 3 × naïve", "x"]


@few(1)
@thinned("kind", ["bytes", "tekken"], keep=["bytes"])
@pytest.mark.parametrize("constrained", [False, True])
def test_any_model_leaves_the_text_as_it_is(kind: str, constrained: bool) -> None:
    """Random weights, over tokens that are no division of anything, in batches of one and three."""
    model = ToyLM(lambda prefix: torch.zeros(vocabulary("tekken").size), vocabulary("tekken").size)
    other = dk.LLM(architectures.build("llama") if kind == "bytes" else model, TOKENIZERS[kind]())
    given: dict[str, Any] = {"max_new_tokens": 20, "on_length": "return"}
    given |= {"constraint": schema_of("ticket")} if constrained else {"repetition_penalty": 1.3}
    plain = llm().generate(PROMPTS, **given)
    for batch_size in (1, 3):
        drafted = llm().generate(PROMPTS, speculate=DraftModel(other), batch_size=batch_size, **given)
        assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]


@few(1)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_is_right_in_other_tokens_is_accepted(kind: str) -> None:
    """A model that knows the text: nearly all of its drafts come, and it reads every text once."""
    prompts = documents("ticket")
    given: dict[str, Any] = {"max_new_tokens": 60, "constraint": schema_of("ticket"), "on_length": "return"}
    plain = llm().generate(prompts, **given)
    texts = [prompt + one.text for prompt, one in zip(prompts, plain, strict=True)]
    other = parrot(kind, texts)
    for batch_size in (1, 2):
        other.model.calls.clear()
        drafted = llm().generate(prompts, speculate=DraftModel(other, 6), batch_size=batch_size, **given)
        assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
        assert acceptance(drafted) > 0.7  # some drafts end inside a token of the target
        assert all(one.stats.num_forwards < 0.6 * len(one.token_ids) for one in drafted)
        once = sum(len(encode_plain(other.tokenizer, text)) + 1 for text in texts)
        steps = sum(one.stats.num_forwards for one in drafted)
        # Every text once, and in every step at most a draft and what is divided anew.
        assert sum(map(sum, other.model.calls)) <= once + 8 * steps < steps * once / 4
    wrong = parrot(kind, [prompts[0] + '{"idea" and what not'])
    drafted = llm().generate(prompts[0], speculate=DraftModel(wrong, 6), **given)
    assert drafted.token_ids == plain[0].token_ids
    assert sum(drafted.stats.acceptance_histogram) < 4 and drafted.stats.num_forwards > plain[0].stats.num_forwards - 4


@thinned("kind", ["tiny", "pairs", "gpt4"], keep=["pairs"])
def test_stops_and_guards(kind: str) -> None:
    """Texts that end inside a draft, and texts that are taken back."""
    prompts = ["aabb", "b"]
    stops: dict[str, Any] = {"max_new_tokens": 30, "stop": ["}", "a"]}
    no_pair = Guarded(Regex("[ab]{2,3}(;[ab]{2,3}){3}"), lambda text: len(set(text.split(";"))) == text.count(";") + 1)
    guards: dict[str, Any] = {"max_new_tokens": 60, "constraint": no_pair}
    _, encode = canonical(kind)
    tokenizer = SimpleNamespace(encode=lambda text, bos, eos: encode(text))
    for options in (stops, guards):
        plain = llm().generate(prompts, **options)
        # What it says of a text that was taken back is read anew.
        own = canonical(kind)[0]
        known = [prompt + one.text for prompt, one in zip(prompts, plain, strict=True)]
        law = functools.partial(_says, own.token_bytes, known)
        model = ToyLM(law, len(own.token_bytes))
        words = Vocabulary(own.token_bytes, ())
        other = SimpleNamespace(model=model, vocabulary=words, tokenizer=tokenizer)
        drafted = llm().generate(prompts, speculate=DraftModel(other, 3), **options)
        assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
        assert sum(one.stats.num_draft_tokens for one in drafted) > 0
    assert sum(one.stats.num_rollbacks for one in plain) > 0


def _says(token_bytes: Sequence[bytes | None], known: Sequence[str], prefix: Sequence[int]) -> Tensor:
    read = b"".join(token_bytes[token] or b"" for token in prefix)
    rest = next((text.encode()[len(read) :] for text in known if text.encode().startswith(read)), b"") or b"a"
    row = torch.zeros(len(token_bytes))
    row[next(i for i, data in enumerate(token_bytes) if data == rest[:1])] = 9.0
    return row


class Encodes:
    """A tokenizer as `encode_text` knows those of mistral-common."""

    def __init__(self, kind: str) -> None:
        self._encode = canonical(kind)[1]

    def encode(self, text: str, bos: bool, eos: bool) -> list[int]:
        return list(self._encode(text))


@few(2)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(prompt=pieces, texts=st.lists(st.tuples(st.integers(0, 9), pieces), min_size=1, max_size=8))
def test_a_text_that_grows_is_divided_as_a_whole(kind: str, prompt: str, texts: list[tuple[int, str]]) -> None:
    """Also where it was taken back in between: the tokens are those of the tokenizer itself for all of it."""
    own, encode = canonical(kind)
    prompt = prompt or "\n" * (kind in SPACED)  # of a text without a prompt they make one that begins with a space
    row, text = _DraftText(prompt.encode(), Encodes(kind), own), ""
    for num_lost, more in texts:
        text = text[: max(0, len(text) - num_lost)] + more
        assert list(row.read(text.encode())) == encode(prompt + text)


def test_a_text_that_ends_inside_a_character_waits() -> None:
    own, encode = canonical("gpt2")
    row = _DraftText(b"na\xc3", Encodes("gpt2"), own)
    assert row.read(b"") == [] and row.read(b"\xaf") == encode("naï")
    assert row.read(b"\xafve \xe6\x9d") == [] and row.read(b"\xafve") == encode("naïve")
    assert row.read("\xafve 東".encode("latin-1", "ignore") + b"\xe6\x9d\xb1") == encode("naïve 東")
    assert row.read(b"\xafve\xff") == row.read(b"\xafve\xffab") == []  # no text at all
    assert _DraftText(b"", Encodes("gpt2"), own).read(b"") == []


def test_special_tokens_stay_at_the_beginning() -> None:
    tokenizer = sentencepiece_tokenizer()
    own = canonical_of(tokenizer)
    row = _DraftText(b"the", tokenizer, own)
    for text in (b"", b" cat", b" cat sat on", b" c", b""):
        assert row.read(text) == tokenizer.encode("the" + text.decode(), bos=True, eos=False)


def canonical_of(tokenizer: Any) -> Canonical:
    return Canonical(functools.partial(encode_plain, tokenizer), Vocabulary.from_tokenizer(tokenizer))


@given(one=st.binary(max_size=40), other=st.binary(max_size=40), length=st.integers(0, 40))
def test_common_bytes(one: bytes, other: bytes, length: int) -> None:
    other = one[:length] + other
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert num_common(one, other) == expected


def test_behind_scaffolding() -> None:
    """Joined with the grammar, the guess of the text goes on from what is forced."""
    prompts = documents("ticket")[:1]
    given: dict[str, Any] = {"max_new_tokens": 60, "constraint": schema_of("ticket"), "on_length": "return"}
    [plain] = llm().generate(prompts, **given)
    other = parrot("sentencepiece", [prompts[0] + plain.text])
    [alone] = llm().generate(prompts, speculate=DraftModel(other, 4), **given)
    [joined] = llm().generate(prompts, speculate=Joined((GrammarDraft(), DraftModel(other, 4))), **given)
    assert plain.token_ids == alone.token_ids == joined.token_ids
    assert joined.stats.num_forwards < alone.stats.num_forwards < plain.stats.num_forwards


def test_who_draws_needs_the_same_tokens() -> None:
    other = parrot("bytes", ["x"])
    for options in ({"strategy": "sample"}, {"strategy": "mirostat"}):
        with pytest.raises(
            VocabularyMismatchError, match="the noise of a drawn token is a function of its number"
        ) as it:
            llm().generate("x", speculate=DraftModel(other), max_new_tokens=4, **options)
        assert 'strategy="greedy"' in str(it.value)
    unknown = SimpleNamespace(model=other.model, vocabulary=other.vocabulary)
    with pytest.raises(VocabularyMismatchError, match="another vocabulary"):
        llm().generate("x", speculate=DraftModel(unknown), max_new_tokens=4)
    with pytest.raises(VocabularyMismatchError, match="another vocabulary"):
        llm().generate("x", speculate=DraftModel(other.model), max_new_tokens=4)


def test_a_target_that_is_not_known_gets_no_draft() -> None:
    target: Any = SimpleNamespace(vocabulary=llm().vocabulary, model=None)
    context = Context([5], [], target=target)  # how it divides texts is not known
    assert [len(draft) for draft in DraftModel(parrot("bytes", ["x"])).propose([context], [4])] == [0]
