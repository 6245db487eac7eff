"""Bytes of tokens: real tokenizers against their `decode` and their own files, made ones against answers by hand."""

from __future__ import annotations

import base64
import json
import pickle
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from decodekit.errors import TokenizerError, VocabularyMismatchError
from decodekit.vocabulary import Vocabulary, _all_byte_level, _byte_alphabet, _byte_level
from tests.reference.vocabularies import (
    adversarial_tokens,
    adversarial_vocabulary,
    byte_vocabulary,
    mistral_data,
    random_vocabulary,
    sentencepiece_tokenizer,
    sentencepiece_vocabulary,
    small_vocabulary,
    tekken_tokenizer,
    tekken_vocabulary,
)
from tests.sizes import few

TEXTS = {
    "ascii": 'The quick brown fox, 12.5 % of {"a": [1, 2]}; it\'s <b>bold</b>\\n',
    "latin": "Größe, façade, naïve, İstanbul, łódź, straße",
    "combining": "e\u0301 n\u0303 \u1100\u1161 क्षि a\u0300\u0301\u0302",
    "greek_cyrillic": "Ελληνικά и русский, Ђорђе",
    "cjk": "日本語のテキスト、中文字符。한국어 𠮷野家",
    "right_to_left": "مرحبا بالعالم שלום עולם \u200f\u202eabc\u202c",
    "indic_thai": "नमस्ते दुनिया สวัสดีชาวโลก தமிழ்",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ☺️ #️⃣",
    "spaces": "a  b   c\t\td \u00a0\u2003\u3000e \n\n\n  f \r\n\tg ",
    "controls": "\x00\x01\x07\x1b[0m\x7f\u0085\ufeff",
    "edges": "\u007f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff \ufffd",
    "sentencepiece_space": "a\u2581b",
    "looks_special": "<s></s>[INST]<0x41>",
    "one_space": " ",
}


def scripts(exclude: tuple[str, ...] = ()) -> Any:
    return pytest.mark.parametrize("text", [TEXTS[name] for name in TEXTS if name not in exclude])


# --- Tekken ----------------------------------------------------------------------------------------------------------


@few(4)
@scripts()
def test_tekken_text(text: str) -> None:
    ids = tekken_tokenizer().encode(text, bos=True, eos=True)
    assert tekken_vocabulary().decode(ids) == text.encode()
    assert tekken_tokenizer().decode(ids) == text


def test_every_tekken_token_equals_the_file() -> None:
    file = json.loads(mistral_data("tekken_240911.json").read_text())
    vocabulary, num_special = tekken_vocabulary(), file["config"]["default_num_special_tokens"]
    assert (vocabulary.size, num_special, vocabulary.eos_token_ids) == (131_072, 1_000, {2})
    assert vocabulary.token_bytes[:num_special] == (None,) * num_special
    ranks = file["vocab"][: vocabulary.size - num_special]
    assert list(vocabulary.token_bytes[num_special:]) == [base64.b64decode(entry["token_bytes"]) for entry in ranks]
    assert vocabulary.special_tokens["[INST]"] == 3 and len(vocabulary.special_tokens) == num_special
    assert {bytes((b,)) for b in range(256)} <= set(vocabulary.token_bytes)


def test_random_tekken_tokens_decode_alike() -> None:
    rng = random.Random(1)
    for _ in range(300):
        ids = [rng.randrange(1_000, 131_072 if rng.random() < 0.5 else 1_300) for _ in range(30)]
        assert tekken_vocabulary().decode(ids).decode("utf-8", "replace") == tekken_tokenizer().decode(ids)


@pytest.fixture(scope="module")
def tekken_as_byte_level() -> Any:
    """transformers' own conversion of the Tekken file into a fast byte-level BPE tokenizer."""
    from transformers.integrations.mistral import convert_tekken_tokenizer

    return convert_tekken_tokenizer(str(mistral_data("tekken_240911.json")))


@pytest.mark.slow
def test_byte_level_equals_tekken(tekken_as_byte_level: Any) -> None:
    vocabulary = Vocabulary.from_tokenizer(tekken_as_byte_level)
    assert vocabulary == tekken_vocabulary()
    assert vocabulary.special_tokens == tekken_vocabulary().special_tokens
    bare = Vocabulary.from_tokenizer(tekken_as_byte_level.backend_tokenizer, eos_token_ids=[2])
    assert bare.fingerprint == vocabulary.fingerprint


def test_every_byte_level_token_decodes_alike(tekken_as_byte_level: Any) -> None:
    decode = tekken_as_byte_level.backend_tokenizer.decoder.decode
    names = tekken_as_byte_level.convert_ids_to_tokens(list(range(1_000, 131_072)))
    for name, data in zip(names, tekken_vocabulary().token_bytes[1_000:], strict=True):
        assert data is not None
        assert decode([name]) == data.decode("utf-8", "replace")


def test_byte_level_text(tekken_as_byte_level: Any) -> None:
    vocabulary = Vocabulary.from_tokenizer(tekken_as_byte_level)
    for text in TEXTS.values():
        ids = tekken_as_byte_level.encode(text, add_special_tokens=False)
        decoded = tekken_as_byte_level.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert vocabulary.decode(ids).decode("utf-8", "replace") == decoded
        if text != TEXTS["looks_special"]:
            assert decoded == text


@pytest.mark.slow
def test_the_byte_map_of_131k_tokens_is_read_quickly(tekken_as_byte_level: Any) -> None:
    for tokenizer in (tekken_tokenizer(), tekken_as_byte_level):
        seconds = []
        for _ in range(5):
            start = time.process_time()  # of this process alone, so that a busy machine does not decide
            assert Vocabulary.from_tokenizer(tokenizer).fingerprint == tekken_vocabulary().fingerprint
            seconds.append(time.process_time() - start)
        start = time.process_time()  # the same work on every machine: 0.1 s where reading takes 0.17 to 0.2 s
        assert sum(len(str(number)) for number in range(1_000_000)) == 5_888_890
        assert min(seconds) < 6 * (time.process_time() - start)


def test_wrappers_around_mistral_common(tmp_path: Any) -> None:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from transformers.tokenization_mistral_common import MistralCommonBackend

    path = mistral_data("mistral_instruct_tokenizer_241114.model.v7")
    assert Vocabulary.from_tokenizer(MistralTokenizer.from_file(str(path))) == sentencepiece_vocabulary()
    assert Vocabulary.from_tokenizer(MistralCommonBackend(path)) == sentencepiece_vocabulary()


# --- SentencePiece ---------------------------------------------------------------------------------------------------


def without_prefix_space(data: bytes) -> str:
    """What SentencePiece decodes the bytes to: without one space at the start, and each bad byte marked by itself."""
    return re.sub("\ufffd+", "\ufffd", data.decode("utf-8", "replace").removeprefix(" "))


# SentencePiece spells U+2581 like a space, so a text with it does not come back as it was, and the controls lose their
# NUL in the library's C strings.
@scripts(exclude=("sentencepiece_space", "controls"))
def test_sentencepiece_text(text: str) -> None:
    ids = sentencepiece_tokenizer().encode(text, bos=True, eos=True)
    assert sentencepiece_vocabulary().decode(ids) == b" " + text.encode()
    assert sentencepiece_tokenizer().decode(ids) == text


def test_every_sentencepiece_token_decodes_alike() -> None:
    vocabulary, model = sentencepiece_vocabulary(), sentencepiece_tokenizer()._model
    assert (vocabulary.size, vocabulary.eos_token_ids) == (32_768, {2})
    (anchor,) = (i for i, data in enumerate(vocabulary.token_bytes) if data == b"a" and not model.is_byte(i))
    num_text = 0
    for token_id, data in enumerate(vocabulary.token_bytes):
        piece = model.id_to_piece(token_id)
        if model.is_control(token_id) or model.is_unknown(token_id):
            assert data is None and vocabulary.special_tokens[piece] == token_id
        elif model.is_byte(token_id):
            assert data is not None and piece == f"<0x{data[0]:02X}>"
        else:
            assert data is not None and model.decode([anchor, token_id]) == "a" + data.decode()
            num_text += 1
    assert num_text == 32_768 - 256 - len(vocabulary.special_tokens)


def test_random_sentencepiece_tokens_decode_alike() -> None:
    rng, vocabulary, model = random.Random(2), sentencepiece_vocabulary(), sentencepiece_tokenizer()._model
    text_ids = [i for i, data in enumerate(vocabulary.token_bytes) if data is not None and data != b"\0"]
    byte_ids = [i for i in text_ids if model.is_byte(i)]
    for _ in range(300):
        ids = [rng.choice(text_ids if rng.random() < 0.5 else byte_ids) for _ in range(20)]
        if not vocabulary.decode(ids).startswith(b"  "):
            assert without_prefix_space(vocabulary.decode(ids)) == re.sub("\ufffd+", "\ufffd", model.decode(ids))


def llama_like(model: Any, decoder: Any = None) -> Any:
    """A fast tokenizer as transformers converts SentencePiece ones."""
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoder or decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def pieces() -> list[str]:
    model = sentencepiece_tokenizer()._model
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_fast_sentencepiece_tokenizers_equal_the_real_one(kind: str) -> None:
    if kind == "bpe":
        model = models.BPE({piece: i for i, piece in enumerate(pieces())}, [], byte_fallback=True, unk_token="<unk>")
    else:
        model = models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces())], 0, byte_fallback=True)
    tokenizer = llama_like(model)
    controls = [name for name in sentencepiece_vocabulary().special_tokens if name not in ("<unk>", "<s>", "</s>")]
    tokenizer.add_special_tokens({"additional_special_tokens": controls})
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary == sentencepiece_vocabulary()
    assert vocabulary.special_tokens == sentencepiece_vocabulary().special_tokens
    for text in TEXTS.values():
        ids = sentencepiece_tokenizer().encode(text, bos=False, eos=False)
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert vocabulary.decode(ids).decode("utf-8", "replace").removeprefix(" ") == decoded


def test_a_sentencepiece_model_inside_transformers() -> None:
    from transformers import GPTSw3Tokenizer

    path = str(mistral_data("mistral_instruct_tokenizer_241114.model.v7"))
    tokenizer = GPTSw3Tokenizer(vocab_file=path, bos_token="<s>", eos_token="</s>", pad_token="<unk>")
    vocabulary, expected = Vocabulary.from_tokenizer(tokenizer), sentencepiece_vocabulary()
    assert (vocabulary.token_bytes, vocabulary.eos_token_ids) == (expected.token_bytes, expected.eos_token_ids)
    tokenizer.add_tokens(["<think>", "für"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|extra|>"]})
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=[7])
    assert vocabulary.token_bytes[32_768:] == (b"<think>", "für".encode(), None)
    assert vocabulary.special_tokens["<|extra|>"] == 32_770
    assert vocabulary.eos_token_ids == {2, 7}


def test_a_bare_sentencepiece_model() -> None:
    assert Vocabulary.from_tokenizer(sentencepiece_tokenizer()._model) == sentencepiece_vocabulary()


# --- made tokenizers -------------------------------------------------------------------------------------------------


def spelled(data: bytes) -> str:
    """The bytes in GPT-2's alphabet."""
    letters = {byte: letter for letter, byte in _byte_alphabet().items()}
    return "".join(letters[byte] for byte in data)


def byte_level(tokens: dict[str, int]) -> Any:
    backend = tokenizers.Tokenizer(models.BPE(tokens, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def test_the_byte_alphabet_is_that_of_tokenizers() -> None:
    assert sorted(_byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(_byte_alphabet().values()) == list(range(256))
    assert spelled(b" \n!") == "ĠĊ!"
    for byte in range(256):
        assert decoders.ByteLevel().decode([spelled(bytes((byte,)))]) == bytes((byte,)).decode("utf-8", "replace")


def test_added_special_and_unused_tokens() -> None:
    backend = byte_level({spelled(b"a"): 0, spelled(b" b"): 1, spelled(b"\xc3"): 2, "<|end|>": 3, "Ġthe": 20})
    backend.add_tokens([AddedToken("é", special=False), AddedToken("   ", special=False), "<tool>", "Ġthe"])
    backend.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|im|>", special=True)])
    vocabulary = Vocabulary.from_tokenizer(backend)
    ids = {token: backend.token_to_id(token) for token in ("é", "   ", "<tool>", "Ġthe", "<|im|>")}
    assert vocabulary.token_bytes[:3] == (b"a", b" b", b"\xc3")
    assert vocabulary.token_bytes[3] is None and vocabulary.special_tokens["<|end|>"] == 3
    assert vocabulary.token_bytes[ids["é"]] == "é".encode()  # text, not the byte E9
    assert vocabulary.token_bytes[ids["   "]] == b"   "
    assert vocabulary.token_bytes[ids["<tool>"]] == b"<tool>"
    assert vocabulary.token_bytes[ids["Ġthe"]] == b" the"  # the model's own spelling
    assert vocabulary.token_bytes[ids["<|im|>"]] is None
    unused = set(range(vocabulary.size)) - set(backend.get_vocab().values())
    assert unused and all(vocabulary.token_bytes[i] is None for i in unused)
    assert vocabulary.eos_token_ids == frozenset()


def test_tokens_outside_the_byte_alphabet_stand_for_their_text() -> None:
    vocabulary = Vocabulary.from_tokenizer(byte_level({"日": 0, "a b": 1, "": 2, "Ā": 3}))
    assert vocabulary.token_bytes == ("日".encode(), b"a b", None, b"\0")


def test_gemma_like_added_runs_of_spaces() -> None:
    tokenizer = llama_like(
        models.BPE({"<unk>": 0, "<s>": 1, "</s>": 2, "▁▁": 3, "<0x0A>": 4, "▁a": 5}, [], byte_fallback=True)
    )
    tokenizer.add_tokens([AddedToken("▁▁", special=False), AddedToken("▁▁▁", special=False), AddedToken("\n\n")])
    assert Vocabulary.from_tokenizer(tokenizer).token_bytes == (None, None, None, b"  ", b"\n", b" a", b"   ", b"\n\n")


def test_special_tokens_that_decode_keeps_are_text() -> None:
    """As transformers 5 reads the user-defined pieces of a SentencePiece model."""
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", "▁a", "b", ",", "(", "▁▁", "<|pad|>"]
    plain = llama_like(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    kept = [AddedToken(piece, special=False, normalized=False) for piece in (",", "(", "▁▁", "<tool>")]
    plain.backend_tokenizer.add_tokens(kept)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=[*kept, "<|pad|>", "<|new|>"],
    )
    ids = tokenizer.convert_tokens_to_ids([",", "(", "▁▁", "<tool>", "<|pad|>", "<|new|>"])
    assert set(ids) < set(tokenizer.all_special_ids)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert [vocabulary.token_bytes[i] for i in ids] == [b",", b"(", b"  ", b"<tool>", None, None]
    assert set(vocabulary.special_tokens) == {"<unk>", "<s>", "</s>", "<|pad|>", "<|new|>"}
    text = [3, 5, 4, 6, 7, 3, 8, 1]
    assert tokenizer.decode(text, skip_special_tokens=True) == "a,b(   a" == vocabulary.decode(text).decode()[1:]


def test_metaspace_without_byte_pieces() -> None:
    tokenizer = llama_like(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("<0x41>", -2.0)], 0), decoders.Metaspace())
    assert Vocabulary.from_tokenizer(tokenizer).token_bytes[1:3] == (b" a", b"<0x41>")


def test_tiktoken_with_holes_and_special_tokens() -> None:
    import tiktoken

    ranks = {bytes((b,)): b for b in range(256)} | {b" a": 256}
    encoding = tiktoken.Encoding(
        "made", pat_str=r".", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 260, "<|x|>": 258}
    )
    vocabulary = Vocabulary.from_tokenizer(encoding)
    assert vocabulary.token_bytes[250:] == (*(bytes((b,)) for b in range(250, 256)), b" a", None, None, None, None)
    assert vocabulary.special_tokens == {"<|endoftext|>": 260, "<|x|>": 258}
    assert vocabulary.eos_token_ids == {260}


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "it has no decoder, so a space is put between any two tokens"),
        (decoders.WordPiece(), "its decoder applies WordPiece"),
        (decoders.BPEDecoder(), "its decoder applies BPEDecoder"),
        (decoders.CTC(), "its decoder applies CTC"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), "its decoder applies Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), "its decoder applies Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), "its decoder replaces the pattern"),
        (decoders.Sequence([decoders.Replace(tokenizers.Regex("a+"), "c")]), "its decoder replaces the pattern"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "b")]), "its decoder applies Replace beside"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tokenizer_without_a_byte_map_is_refused(decoder: Any, message: str) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, "[UNK]"))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(TokenizerError) as caught:
        Vocabulary.from_tokenizer(backend)
    assert message in str(caught.value) and "tokenizers.Tokenizer" in str(caught.value)
    assert caught.value.code == "DK307"


def test_the_refused_tokenizer_is_named() -> None:
    from transformers import BertTokenizer

    bert = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5, "##b": 6})
    with pytest.raises(TokenizerError, match=r"transformers\.BertTokenizer cannot be known: .* WordPiece"):
        Vocabulary.from_tokenizer(bert)


@pytest.mark.parametrize("thing", [None, "gpt2", {"a": 1}, object()])
def test_what_is_no_tokenizer_is_refused(thing: object) -> None:
    with pytest.raises(TokenizerError, match="not"):
        Vocabulary.from_tokenizer(thing)


# --- logits width, EOS set, the value itself -------------------------------------------------------------------------


def test_wider_logits_are_padding() -> None:
    vocabulary = Vocabulary.from_tokenizer(sentencepiece_tokenizer(), logits_width=33_000)
    assert vocabulary.size == len(vocabulary) == len(vocabulary.token_bytes) == 33_000
    assert vocabulary.token_bytes[:32_768] == sentencepiece_vocabulary().token_bytes
    assert set(vocabulary.token_bytes[32_768:]) == {None}
    assert vocabulary.num_mask_words == 1_032
    assert vocabulary != sentencepiece_vocabulary()


def test_narrower_logits_are_refused() -> None:
    with pytest.raises(VocabularyMismatchError, match="has 32768 tokens, a row of logits 32000") as caught:
        Vocabulary.from_tokenizer(sentencepiece_tokenizer(), logits_width=32_000)
    assert caught.value.code == "DK301"


def test_eos_ids_are_joined_and_are_never_text() -> None:
    vocabulary = Vocabulary.from_tokenizer(sentencepiece_tokenizer(), eos_token_ids=[2, 781, 4])
    assert vocabulary.eos_token_ids == {2, 4, 781}
    assert sentencepiece_vocabulary().token_bytes[781] is not None
    assert vocabulary.token_bytes[781] is None
    with pytest.raises(VocabularyMismatchError, match="EOS token id 40000 is outside the vocabulary of 32768"):
        Vocabulary.from_tokenizer(sentencepiece_tokenizer(), eos_token_ids=[40_000])


def test_construction() -> None:
    vocabulary = Vocabulary([b"a", None, b"", b"a"], [1], size=40, special_tokens={"<eos>": 1})
    assert vocabulary.token_bytes == (b"a", None, None, b"a", *[None] * 36)
    assert vocabulary.num_mask_words == 2
    assert vocabulary.decode([0, 1, 2, 3, 39]) == b"aa"
    assert repr(vocabulary) == "Vocabulary(size=40, 2 text tokens, eos_token_ids=[1])"
    with pytest.raises(VocabularyMismatchError, match="has 2 tokens, a row of logits 1"):
        Vocabulary([b"a", b"b"], [], size=1)
    with pytest.raises(VocabularyMismatchError, match="special token id 9 is outside"):
        Vocabulary([b"a"], [], special_tokens={"<x>": 9})
    for token_id in (-1, 40):
        with pytest.raises(VocabularyMismatchError, match=f"token id {token_id} is outside the vocabulary of 40 ids"):
            vocabulary.decode([0, token_id])


def test_is_an_immutable_value() -> None:
    vocabulary = adversarial_vocabulary()
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy == vocabulary and hash(copy) == hash(vocabulary) and copy.special_tokens == vocabulary.special_tokens
    with pytest.raises(AttributeError, match="immutable"):
        vocabulary.size = 3
    with pytest.raises(AttributeError, match="immutable"):
        del vocabulary.size
    with pytest.raises(TypeError):
        vocabulary.special_tokens["x"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    "other",
    [
        lambda: Vocabulary([b"ab", b"c", None], [2]),
        lambda: Vocabulary([b"a", b"bc", None, None], [2]),
        lambda: Vocabulary([b"a", b"bc", None], []),
        lambda: Vocabulary([b"a", None, b"bc"], [1]),
        lambda: Vocabulary([b"bc", b"a", None], [2]),
        lambda: Vocabulary([b"a", b"bc", None], [2], special_tokens={"<call>": 1}),
    ],
)
def test_the_fingerprint_tells_vocabularies_apart(other: Callable[[], Vocabulary]) -> None:
    one = Vocabulary([b"a", b"bc", None], [2])
    assert one.fingerprint != other().fingerprint and one != other()
    assert one == Vocabulary((b"a", b"bc"), {2}, 3, {"</s>": 2})  # a grammar cannot ask for an end of the text by name


def test_vocabularies_for_tests_are_what_they_say() -> None:
    adversarial = adversarial_vocabulary()
    assert {bytes((b,)) for b in range(256)} | set(adversarial_tokens()) <= set(adversarial.token_bytes)
    assert len(adversarial.eos_token_ids) == 2 and adversarial.token_bytes[-37:] == (None,) * 37
    texts = [data for data in adversarial.token_bytes if data is not None]
    assert len(texts) == len(set(texts)) + 4  # duplicates
    assert {bytes((b,)) for b in range(256)} - set(adversarial_vocabulary(complete=False).token_bytes)
    assert byte_vocabulary([b"ab"], num_eos=2).token_bytes[256:] == (None, None, b"ab")
    assert small_vocabulary(["é", b"\xff"]).token_bytes == ("é".encode(), b"\xff", None)
    made = random_vocabulary(random.Random(0), b"ab", 30)
    assert made.size == 31 and made.eos_token_ids == {30} and set(b"".join(made.token_bytes[:30])) == set(b"ab")  # type: ignore[arg-type]


def test_byte_level_tokens_are_read_together_as_one_by_one() -> None:
    rng = random.Random(0)
    alphabet = [*_byte_alphabet()]
    for others in ([], [" "], ["日"], ["\U0001f600"], ["\ud800"], ["\u00ad"], ["\u0144"]):
        tokens = ["".join(rng.choices(alphabet + others, k=rng.randrange(9))) for _ in range(300)]
        assert list(_all_byte_level(tokens)) == [_byte_level(token) for token in tokens]
    assert list(_all_byte_level([])) == []
