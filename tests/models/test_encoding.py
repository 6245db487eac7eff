"""How few tokens a text may have by its bytes: never more than it has, and only where that is certain."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import decodekit as dk
from decodekit.errors import ContextLengthError
from decodekit.models.encoding import check_bytes, most_bytes_per_token
from decodekit.testing.toy import ToyTokenizer
from decodekit.vocabulary import Vocabulary
from tests.sizes import few

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["ab", "abc", "Ġthe"]


def tokenizer_of(normalizer: Any = None, divider: Any = None, **options: Any) -> Tokenizer:
    """All bytes and a few longer tokens."""
    names = [*ALPHABET, *WORDS]
    merges = [("a", "b"), ("ab", "c")]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges, **options))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = divider or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def most(tokenizer: Any) -> int | None:
    return most_bytes_per_token(tokenizer, Vocabulary.from_tokenizer(tokenizer))


@pytest.mark.parametrize(("tokenizer", "expected"), [
    (tokenizer_of(), 4),
    (tokenizer_of(normalizers.NFC()), 16),
    (tokenizer_of(normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("x")])), 16),
    (tokenizer_of(normalizers.Replace("abc", "a")), 12),
    (tokenizer_of(normalizers.Replace("abc", "")), None),
    (tokenizer_of(normalizers.Replace(Regex(" +"), " ")), None),
    (tokenizer_of(normalizers.Strip()), None),
    (tokenizer_of(normalizers.StripAccents()), None),
    (tokenizer_of(normalizers.Lowercase()), None),
    (tokenizer_of(divider=pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)])), 4),
    (tokenizer_of(divider=pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)])), None),
    (tokenizer_of(divider=pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(use_regex=False)])), None),
    (ToyTokenizer(), None),
])  # fmt: skip
def test_what_is_certain(tokenizer: Any, expected: int | None) -> None:
    assert most(tokenizer) == expected


def test_special_tokens_count_by_their_names() -> None:
    tokenizer = tokenizer_of()
    tokenizer.add_special_tokens(["<|a_long_name|>"])
    assert most(tokenizer) == len("<|a_long_name|>")
    for options in ({"lstrip": True}, {"rstrip": True}):
        other = tokenizer_of()
        other.add_special_tokens([AddedToken("<|x|>", special=True, **options)])
        assert most(other) is None
        num_tokens = len(other.encode(" " * 1000 + "<|x|>" + " " * 1000).ids)  # the control: why there is none
        assert num_tokens <= 1001
    cut = tokenizer_of()
    cut.enable_truncation(2)
    assert most(cut) is None


def test_unknown_characters_may_be_one_token() -> None:
    """Without all bytes among the tokens there is no bound."""
    few = Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True))
    few.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary([b"a", None], ())
    assert most_bytes_per_token(few, vocabulary) is None and len(few.encode("x" * 1000).ids) == 1


def test_the_bundled_model() -> None:
    llm = dk.LLM.load("tiny")
    longest = max(len(data) for data in llm.vocabulary.token_bytes if data is not None)
    assert most_bytes_per_token(llm.tokenizer, llm.vocabulary) == longest

    class Own(type(llm.tokenizer)):  # type: ignore[misc]
        def _encode_plus(self, *given: Any, **options: Any) -> Any:
            return super()._encode_plus(*given, **options)

    own = object.__new__(Own)
    own.__dict__.update(llm.tokenizer.__dict__)
    assert most_bytes_per_token(own, llm.vocabulary) is None  # which may do anything


SHORTENED = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD()}
TEXTS = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("ab\u0301\u0327 𝐚Åﬁ각")), max_size=60
)


@given(TEXTS, st.sampled_from([None, *SHORTENED]))
def test_no_text_has_fewer_tokens(text: str, form: str | None) -> None:
    tokenizer = tokenizer_of(None if form is None else SHORTENED[form])
    each = most(tokenizer)
    assert each is not None and len(tokenizer.encode(text).ids) * each >= len(text.encode())


@few(1)
@pytest.mark.parametrize(("form", "decomposed"), [("NFC", "NFD"), ("NFKC", "NFKD"), ("NFD", "NFD"), ("NFKD", "NFKD")])
def test_no_form_shortens_by_more_than_four(form: Any, decomposed: Any) -> None:
    """The proof, over all code points; see `encoding._COMPOSED`. Those that no form moves stand for themselves."""
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    moved = [one for one in every if not all(map(unicodedata.is_normalized, (form, decomposed), (one, one)))]
    assert len(moved) > 1_000
    characters = sorted({*moved, *"".join(unicodedata.normalize(decomposed, one) for one in moved)})
    parts = {one: unicodedata.normalize(decomposed, one) for one in characters}
    longest: dict[str, int] = {}
    for one, part in parts.items():
        if len(part) == 1:
            longest[part] = max(longest.get(part, 0), len(one.encode()))
    sizes = {one: sum(longest[part] for part in parts[one]) for one in characters}
    assert all(len(one.encode()) <= sizes[one] for one in characters)
    composed = [one for one in characters if unicodedata.normalize(form, one) == one]
    assert max(sizes[one] / len(one.encode()) for one in composed) <= 4


def test_a_prompt_of_too_many_bytes_is_refused() -> None:
    """Half a surrogate, which no encoding has, counts as one byte."""
    check_bytes("a" * 90, "prompt", 10, 10)
    for text in ("a" * 91, "\ud800" * 91):
        with pytest.raises(ContextLengthError, match="the prompt has 91 bytes"):
            check_bytes(text, "prompt", 10, 10)
