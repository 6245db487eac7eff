"""Decisions beside the enumeration of all spellings, and beside what `generate` says of the same texts."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import decodekit as dk
from decodekit.constraints import Choices
from decodekit.decoding.search import decision as decisions
from decodekit.errors import (
    ContextLengthError,
    DeadEndError,
    DecodekitError,
    InvalidConstraintError,
    NonFiniteLogitsError,
    OptionError,
    ResourceLimitError,
    TokenizerError,
)
from decodekit.llm import LLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.testing.toy import toy_llm
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE
from tests.reference.decisions import any_spelling, choice_law, own_cut
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import small_tokenizer
from tests.reference.models import plain_logits
from tests.sizes import few

ARCHITECTURES = ("llama", "gpt2", "gemma2", "falcon", "mamba", "lfm2")
NUM_WORLDS = 24


class PieceTokenizer:
    """Tokens as they are given, with the methods of a `tiktoken.Encoding`; the longest that fits is taken."""

    def __init__(self, pieces: Sequence[bytes | None], end: int) -> None:
        self.pieces, self._end = pieces, end
        self.n_vocab = len(pieces)
        self.special_tokens_set = frozenset({"<|endoftext|>"})

    def encode_single_token(self, text: str) -> int:
        return self._end

    def decode_single_token_bytes(self, token: int) -> bytes:
        piece = self.pieces[token]
        if piece is None:
            raise KeyError(token)
        return piece

    def encode(self, text: str, bos: bool = False, eos: bool = False) -> list[int]:
        left, ids = text.encode(), []
        while left:
            fitting = [i for i, piece in enumerate(self.pieces) if piece and left.startswith(piece)]
            ids.append(max(fitting, key=lambda i: len(self.pieces[i] or b"")))
            left = left[len(self.pieces[ids[-1]] or b"") :]
        return ids


class World(NamedTuple):
    """A model, a vocabulary, a prompt and choices."""

    llm: LLM
    prompt: list[int]
    choices: list[str]
    fresh: Callable[[list[int]], Tensor]
    """Logits [V] after some tokens."""

    def law(self, **changes: Any) -> dict[str, float]:
        pieces, end_ids = self.llm.vocabulary.token_bytes, self.llm.vocabulary.eos_token_ids
        texts = [choice.encode() for choice in self.choices]
        given = {"admits": any_spelling(texts, pieces), "pieces": pieces, **changes}
        law = choice_law(self.fresh, self.prompt, texts, end_ids=end_ids, **given)
        return {choice: law[choice.encode()] for choice in self.choices}


@functools.cache
def network(name: str) -> Any:
    return architectures.build(name)


@functools.cache
def world(number: int) -> World:
    """A small world, the same at every call."""
    rng = random.Random(number)
    alphabet = "ab1é"
    size = VOCAB_SIZE if number < len(ARCHITECTURES) else rng.randint(16, 40)
    pieces: list[bytes | None] = [bytes((byte,)) for byte in alphabet.encode()]
    if number % 5 == 4:
        pieces.pop()  # a byte that only longer tokens have
        pieces.append("é".encode())
    while len(pieces) < 14:
        pieces.append("".join(rng.choices(alphabet, k=rng.randint(1, 3))).encode())  # some tokens have equal bytes
    pieces += [None] * (size - len(pieces))
    rng.shuffle(pieces)
    ends = rng.sample([token for token, piece in enumerate(pieces) if piece is None], 2)
    choices = {"".join(rng.choices(alphabet, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 7))} | {"a", "ab"}
    prompt = [rng.randrange(3, size) for _ in range(rng.randint(1, 40))]
    tokenizer = PieceTokenizer(pieces, ends[0])
    if number < len(ARCHITECTURES):
        module = network(ARCHITECTURES[number])
        llm = LLM(HuggingFaceLM(module), tokenizer)
        return World(llm, prompt, sorted(choices), lambda tokens: plain_logits(module, tokens)[-1])
    law = hashed_law(size, salt=number)
    return World(LLM(ToyLM(law, size, frozenset(ends)), tokenizer), prompt, sorted(choices), law)


def near(found: Any, expected: Any, tolerance: float = 1e-5) -> bool:
    return found.keys() == expected.keys() and all(abs(found[key] - expected[key]) < tolerance for key in found)


@few(3)
@pytest.mark.parametrize("number", range(NUM_WORLDS))
def test_probabilities_are_those_of_all_spellings(number: int) -> None:
    llm, prompt, choices, _ = world(number)
    found = llm.decide(prompt, choices)
    law = world(number).law()
    assert near(found.probabilities, law)
    assert near({key: math.exp(value) for key, value in found.logprobs.items()}, law)
    assert found.value == max(law, key=law.__getitem__) and abs(sum(found.probabilities.values()) - 1) < 1e-12
    first, second = sorted(law.values(), reverse=True)[:2]
    assert found.margin == pytest.approx(first - second, abs=1e-5)
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in law.values() if p), abs=1e-4)
    assert list(found.probabilities) == choices and not found.is_abstained


@pytest.mark.parametrize("number", range(6, NUM_WORLDS))
def test_other_laws_are_told_apart(number: int) -> None:
    """Negative controls: without renormalisation at every token, and with a token left out, something differs."""
    one = world(number)
    found = one.llm.decide(one.prompt, one.choices).probabilities
    pieces = [*one.llm.vocabulary.token_bytes]
    longest = max(
        (i for i, piece in enumerate(pieces) if piece and any(c.encode().startswith(piece) for c in one.choices)),
        key=lambda i: (len(pieces[i] or b""), pieces.count(pieces[i])),
    )
    if len(pieces[longest] or b"") > 1:
        fewer = [None if i == longest else piece for i, piece in enumerate(pieces)]
        texts = [choice.encode() for choice in one.choices]
        assert not near(found, one.law(admits=any_spelling(texts, fewer)))
    assert not near(found, one.law(renormalises=False))


@pytest.mark.parametrize("number", [0, 4, 7, 8, 10, 11])
def test_canonical_spelling_knows_one_cut_of_each_choice(number: int) -> None:
    llm, prompt, choices, _ = world(number)
    cuts = [llm.tokenizer.encode(choice) for choice in choices]
    found = llm.decide(prompt, choices, spelling="canonical").probabilities
    assert near(found, world(number).law(admits=own_cut(cuts)))


def test_processors_act_on_every_token_and_temperature_on_choices() -> None:
    one = world(9)
    found = one.llm.decide(one.prompt, one.choices, processors=dk.Temperature(2.0)).probabilities
    assert near(found, one.law(process=lambda logits: logits / 2))
    plain = one.llm.decide(one.prompt, one.choices)
    scaled = one.llm.decide(one.prompt, one.choices, temperature=2.0)
    total = sum(math.sqrt(p) for p in plain.probabilities.values())
    expected = {key: math.sqrt(p) / total for key, p in plain.probabilities.items()}
    assert near(scaled.probabilities, expected, 1e-12) and not near(found, expected)
    assert scaled == plain.at_temperature(2.0) or near(scaled.probabilities, plain.at_temperature(2.0).probabilities)
    best = max(plain.probabilities.values())
    for threshold, is_abstained in ((best - 1e-9, False), (best + 1e-9, True)):
        decision = one.llm.decide(one.prompt, one.choices, threshold=threshold)
        assert decision.is_abstained is is_abstained
        assert decision.value == (None if is_abstained else plain.value)
        assert near(decision.probabilities, plain.probabilities, 1e-12)


def test_a_processor_that_looks_back_sees_prompt_and_path() -> None:
    one = world(12)
    penalty = dk.RepetitionPenalty(1.7)
    found = one.llm.decide(one.prompt, one.choices, processors=penalty)
    drawn = one.llm.generate(
        [one.prompt] * 40,
        constraint=Choices(one.choices),
        strategy=dk.Sample(processors=penalty),
        seed=range(40),
        batch_size=40,
    )
    assert {completion.text for completion in drawn} <= {key for key, p in found.probabilities.items() if p > 1e-4}
    assert not near(found.probabilities, one.llm.decide(one.prompt, one.choices).probabilities)


def test_order_batch_and_engine_change_nothing() -> None:
    llm, prompt, choices, _ = world(8)
    prompts = [prompt, prompt[:1], [*prompt, 5], prompt]
    alone = [llm.decide(one, choices).probabilities for one in prompts]
    for batch_size in (1, 2, 8):
        together = llm.decide(prompts, choices[::-1], batch_size=batch_size)
        assert [list(one.probabilities) for one in together] == [choices[::-1]] * 4
        assert all(near(one.probabilities, other, 1e-7) for one, other in zip(together, alone, strict=True))
    question = llm.question(choices)
    with llm.engine(batch_size=16) as engine:
        other = engine.submit(prompt, max_new_tokens=5)
        handles = [engine.submit(one, **question.options) for one in prompts]
        done = [question.decision(handle.result()) for handle in handles]
        assert other.result().error is None
    assert all(near(one.probabilities, known, 1e-7) for one, known in zip(done, alone, strict=True))


def test_a_choice_has_the_probability_with_which_it_is_generated() -> None:
    """With single bytes as tokens a choice has one spelling, whose masked log-probabilities `generate` records."""
    pieces: list[bytes | None] = [*(bytes((byte,)) for byte in b"abc"), None]
    llm = LLM(ToyLM(hashed_law(4, salt=3), 4, frozenset({3})), PieceTokenizer(pieces, 3))
    choices = ["a", "ab", "abc", "b", "cab", "ccc"]
    found = llm.decide([0, 2], choices).logprobs
    drawn = llm.generate(
        [[0, 2]] * 60,
        constraint=Choices(choices),
        strategy="sample",
        seed=range(60),
        logprobs=True,
        masks="always",
        batch_size=60,
    )
    assert len({one.text for one in drawn}) > 3
    for one in drawn:
        steps = [entry.logprob - (entry.log_z or 0.0) for entry in one.logprobs or ()]
        assert found[one.text] == pytest.approx(sum(steps), abs=1e-5)


@pytest.mark.parametrize(
    ("choices", "num_passes"),
    [
        (["a", "b1"], 1),
        (["a", "ab", "b"], 2),
        (["aab", "aa1", "ba", "bb", "b"], 2),
        (["only"[:1]], 0),
        (["ab", "ab1"], 2),
    ],
)
def test_forward_passes(choices: list[str], num_passes: int) -> None:
    pieces: list[bytes | None] = [*(bytes((byte,)) for byte in b"ab1"), b"aa", None]
    model = ToyLM(hashed_law(5), 5, frozenset({4}))
    llm = LLM(model, PieceTokenizer(pieces, 4))
    found = llm.decide([[0, 1, 2]] * 3, choices, batch_size=3)
    assert len(model.calls) == num_passes
    assert [one.stats.num_forwards for one in found] == [num_passes] * 3
    assert sum(map(sum, model.calls)) <= 3 * (3 + 8)  # the prompts once


def test_more_paths_than_rows_take_more_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world(8)
    expected = one.llm.decide(one.prompt, one.choices)
    assert expected.stats.num_forwards < 5
    monkeypatch.setattr("decodekit.llm.decisions.MAX_ROWS", 2)
    fewer_rows = one.llm.decide(one.prompt, one.choices)
    assert fewer_rows.stats.num_forwards > expected.stats.num_forwards
    monkeypatch.setattr(decisions, "SCORE_LOGITS", one.llm.model.vocab_size)
    fewer_logits = one.llm.decide(one.prompt, one.choices)
    assert fewer_logits.stats.num_forwards > fewer_rows.stats.num_forwards
    for found in (fewer_rows, fewer_logits):
        assert near(found.probabilities, expected.probabilities, 1e-7)


def test_what_nothing_leads_to_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two choices with 18 bytes in common: of thousands of beginnings some hundreds are read."""
    pieces: list[bytes | None] = [*(bytes((byte,)) for byte in b"abc"), b"ab", b"abab", b"ababab", None]
    size = len(pieces)

    def law(tokens: Sequence[int]) -> Tensor:
        return hashed_law(size, scale=0.5)(tokens) + torch.tensor([0.0, 0.0, 0.0, 4.0, 8.0, 12.0, 0.0])

    llm = LLM(ToyLM(law, size, frozenset({size - 1})), PieceTokenizer(pieces, size - 1))
    choices = ["ab" * 9 + "b", "ab" * 9 + "c"]
    found = llm.decide([0, 1], choices)
    assert found.stats.num_forwards < 100
    mass = dict.fromkeys(choices, 0.0)  # of the spellings in at most two tokens more than the fewest
    for number, choice in enumerate(choices):
        mass[choice] = spelled_mass(law, pieces, choice.encode(), choices[1 - number].encode(), 7)
    total = sum(mass.values())
    assert 0.99 < total <= 1
    assert all(mass[choice] - 1e-6 <= p <= mass[choice] + 1 - total + 1e-6 for choice, p in found.probabilities.items())
    monkeypatch.setattr(decisions, "TOLERANCE", 0.3)  # a negative control
    rough = llm.decide([0, 1], choices)
    assert rough.stats.num_forwards < found.stats.num_forwards and not near(rough.probabilities, found.probabilities)


def test_choices_that_are_hardly_possible_have_a_probability() -> None:
    """Of a model that is sure: what leads to a choice is read, however unlikely it is."""
    for number in range(6, 12):
        one = world(number)
        law = hashed_law(one.llm.model.vocab_size, scale=25.0, salt=number)
        sure = one._replace(llm=LLM(ToyLM(law, one.llm.model.vocab_size, one.llm.vocabulary.eos_token_ids),
                                    one.llm.tokenizer), fresh=law)  # fmt: skip
        found, expected = sure.llm.decide(one.prompt, one.choices), sure.law()
        assert min(expected.values()) < 1e-9 and near(found.probabilities, expected)
        for choice, p in expected.items():
            assert (found.logprobs[choice] > -math.inf) == (p > 0)
            if p > 1e-6:
                assert found.logprobs[choice] == pytest.approx(math.log(p), abs=0.02)


def spelled_mass(law: Any, pieces: Sequence[bytes | None], choice: bytes, other: bytes, most: int) -> float:
    """The probability of a choice's spellings of a few tokens, beside another choice."""
    admits = any_spelling([choice, other], pieces)

    def walk(tokens: tuple[int, ...], text: bytes) -> float:
        if text == choice:
            return 1.0
        if len(tokens) == most or not choice.startswith(text):
            return 0.0
        allowed = admits(tokens, text)
        row = torch.softmax(law([0, 1, *tokens]).double()[allowed], -1).tolist()
        return sum(
            p * walk((*tokens, t), text + (pieces[t] or b"")) for t, p in zip(allowed, row, strict=True) if p > 1e-4
        )

    return walk((), b"")


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"
    NONE = None


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("choices", "written"),
    [
        (bool, {True: "true", False: "false"}),
        (Mood, {Mood.GOOD: '"good"', Mood.BAD: '"bad"', Mood.NONE: "null"}),
        (Level, {Level.LOW: "1", Level.HIGH: "2"}),
        (Literal["é", 3, None], {"é": '"é"', 3: "3", None: "null"}),
        (Literal["x", Level.LOW], {"x": '"x"', Level.LOW: "1"}),
        (range(8, 13, 2), {8: "8", 10: "10", 12: "12"}),
        (Choices(["yes", "no"]), {"yes": "yes", "no": "no"}),
        ({"ja": 1, "nein": 0}, {1: "ja", 0: "nein"}),
    ],
)
def test_keys_are_the_values(choices: Any, written: dict[Any, str]) -> None:
    llm = toy_llm()
    found = llm.decide("abc", choices)
    assert list(found.probabilities) == list(written)
    assert [type(key) for key in found.probabilities] == [type(key) for key in written]
    texts = llm.decide("abc", [*written.values()]).probabilities
    assert [*found.probabilities.values()] == pytest.approx([*texts.values()])
    if isinstance(choices, range | dict | Choices) or (Level.LOW in written and "x" in written):
        return
    for value, text in written.items():  # the texts are those of the constraint of the type
        assert dk.constraints.as_constraint(choices).parse(text) == value  # type: ignore[attr-defined]
        assert dk.constraints.explain(choices, text).is_allowed  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choices", "options", "error", "says"),
    [
        ([], {}, InvalidConstraintError, "no choices"),
        (range(0), {}, InvalidConstraintError, "no choices"),
        (["a", "a"], {}, InvalidConstraintError, "more than once"),
        (["a", 1], {}, InvalidConstraintError, "must be a str"),
        ("ab", {}, InvalidConstraintError, "no choices"),
        (int, {}, InvalidConstraintError, "no choices"),
        ({"a": 1, "b": True}, {}, InvalidConstraintError, "same value"),
        ({"a": []}, {}, InvalidConstraintError, "key of a dict"),
        (Literal[b"a"], {}, InvalidConstraintError, "bytes has no text"),
        (["\ud800"], {}, InvalidConstraintError, "surrogate"),
        (range(10**30), {}, ResourceLimitError, "more choices than a decision has: 4,096"),
        ({str(number): number for number in range(5000)}, {}, ResourceLimitError, "more choices"),
        (["a" * 600_000, "b" * 600_000], {}, ResourceLimitError, "1,200,000 bytes"),
        (["a", "b"], {"spelling": "own"}, OptionError, "spelling must be"),
        (["a", "b"], {"temperature": 0}, OptionError, "temperature must be"),
        (["a", "b"], {"threshold": 2, "temperature": math.inf}, OptionError, "2 options"),
        (["a", "b"], {"seed": 3}, OptionError, "no option of decide"),
        (["a", "b"], {"processors": "nosuch"}, DecodekitError, "nosuch"),
        (["aaaaaaaaaaab", "aaaaaaaaaaac"], {}, None, ""),
        (["abab" * 30 + "x", "abab" * 30 + "y"], {}, ResourceLimitError, 'spelling="canonical"'),
    ],
)
def test_what_cannot_be_used(choices: Any, options: Any, error: type[Exception] | None, says: str) -> None:
    llm = toy_llm()
    if error is None:
        assert abs(sum(llm.decide("abc", choices, **options).probabilities.values()) - 1) < 1e-9
        return
    with pytest.raises(error, match=says):
        llm.decide("abc", choices, **options)


def test_the_bound_of_the_trie_is_not_that_of_the_canonical_one() -> None:
    choices = ["abab" * 30 + "x", "abab" * 30 + "y"]
    found = toy_llm().decide("abc", choices, spelling="canonical")
    assert abs(sum(found.probabilities.values()) - 1) < 1e-9


def test_prompts_that_cannot_be_read_and_models_that_fail() -> None:
    pieces: list[bytes | None] = [b"a", b"b", None]
    tokenizer = PieceTokenizer(pieces, 2)
    short = LLM(ToyLM(hashed_law(3), 3, frozenset({2}), context_length=6), tokenizer)
    assert short.decide([0] * 4, ["ab", "aa"]).value in ("ab", "aa")
    with pytest.raises(ContextLengthError, match="a choice 3 to read"):
        short.decide([0] * 4, ["aaab", "aaaa"])
    broken = LLM(ToyLM(lambda _: torch.full((3,), math.nan), 3, frozenset({2})), tokenizer)
    with pytest.raises(NonFiniteLogitsError):
        broken.decide([0], ["a", "b"])
    with pytest.raises(DeadEndError):
        short.decide([0], ["c", "d"])  # the vocabulary has neither
    with pytest.raises((TokenizerError, ValueError)):
        short.decide([0], ["cc", "d"], spelling="canonical")


def test_what_the_vocabulary_cannot_end_is_no_choice() -> None:
    pieces: list[bytes | None] = [b"a", b"ac", b"b", None]
    llm = LLM(ToyLM(hashed_law(4), 4, frozenset({3})), PieceTokenizer(pieces, 3))
    found = llm.decide([0], ["ac", "b"]).probabilities  # after the token "a" there is no "c"
    row = torch.softmax(hashed_law(4)([0]).double(), -1).tolist()
    assert found == pytest.approx({"ac": row[1] / (row[1] + row[2]), "b": row[2] / (row[1] + row[2])}, abs=1e-6)


def test_the_bundled_model_decides() -> None:
    llm = LLM.load("tiny")
    prompts = [f'Invoice A-17, total 40.20 {currency}.\n{{"currency": ' for currency in ("EUR", "USD")]
    found = llm.decide(prompts, Literal["EUR", "USD", "GBP"])
    assert [one.value for one in found] == ["EUR", "USD"] and min(one.margin for one in found) > 0.9
    pieces, end_ids = llm.vocabulary.token_bytes, llm.vocabulary.eos_token_ids
    tokens = llm.tokenizer(prompts[0])["input_ids"]
    module: Any = llm.model.model  # type: ignore[attr-defined]
    for spelling, choices in (("any", range(3, 35)), ("canonical", ["EUR", "EURO", "USD"])):
        texts = [str(choice).encode() for choice in choices]
        cuts = [llm.tokenizer(text.decode(), add_special_tokens=False)["input_ids"] for text in texts]
        admits = any_spelling(texts, pieces) if spelling == "any" else own_cut(cuts)
        law = choice_law(lambda ids: plain_logits(module, ids)[-1], tokens, texts, pieces, end_ids, admits)
        own: Any = llm.decide(prompts[0], choices, spelling=spelling).probabilities
        assert near({str(key).encode(): p for key, p in own.items()}, law)


def test_over_pages(plain: LLM, over_pages: LLM) -> None:
    prompts = ["3 chairs\n", "Invoice A-17, total 40.20 EUR.\n" * 4]
    for choices in (range(1, 100), bool):
        expected, found = plain.decide(prompts, choices), over_pages.decide(prompts, choices)
        for one, other in zip(found, expected, strict=True):
            assert near(one.probabilities, other.probabilities, 1e-4)


@pytest.mark.parametrize(("choices", "cut"), [(["yes", "no"], {"yes", "no"}), ([" yes", " no"], {"▁yes", "▁no"})])
def test_the_cut_of_a_tokenizer_that_puts_a_space_before_texts(choices: list[str], cut: set[str]) -> None:
    words = [f"<0x{byte:02X}>" for byte in range(256)] + [*"▁yesno", "▁y", "es", "▁yes", "yes", "▁no", "no"]
    ids = {word: number for number, word in enumerate(dict.fromkeys(["<unk>", "<s>", "</s>", *words]))}
    merges = [("▁", "y"), ("e", "s"), ("▁y", "es"), ("y", "es"), ("n", "o"), ("▁", "no")]
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")
    trie = LLM(ToyLM(hashed_law(len(ids)), len(ids)), tokenizer).question(choices, spelling="canonical").search.trie
    assert trie.root is not None
    assert {*tokenizer.convert_ids_to_tokens(trie.edges(trie.root).token_ids.tolist())} == cut


def test_conversations_go_through_the_chat_template() -> None:
    tokenizer = small_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{{ 'th' if enable_thinking else '' }}"
    llm = LLM(ToyLM(hashed_law(len(tokenizer)), len(tokenizer)), tokenizer)
    chats = [[{"role": "user", "content": text}] for text in ("the", "a")]
    alone, told = llm.decide(chats, ["a", "th"]), llm.decide(chats[0], ["a", "th"], enable_thinking=True)
    texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the", "a", "theth")]
    found = llm.decide(texts, ["a", "th"])
    assert [one.probabilities for one in (*alone, told)] == [one.probabilities for one in found]


def test_a_decision_of_many_passes_stops_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two passes of a decision the texts of the engine take a token."""
    monkeypatch.setattr("decodekit.llm.decisions.MAX_ROWS", 1)
    pieces: list[bytes | None] = [*(bytes((byte,)) for byte in b"0123456789"), None]
    model = ToyLM(hashed_law(11, scale=0.1), 11, frozenset({10}))
    llm = LLM(model, PieceTokenizer(pieces, 10))
    question = llm.question(range(1, 300))
    with llm.engine(batch_size=4) as engine:
        text = engine.submit([1], max_new_tokens=60, min_tokens=60)
        asked = [engine.submit([2, 3], **question.options) for _ in range(2)]
        assert text.result().error is None
        passes = [question.decision(one.result()).stats.num_forwards for one in asked]
    assert min(passes) > 20
    during = model.calls[: 2 * min(passes)]  # of the text one row, of the decisions two
    assert during.count([1]) >= min(passes) - 2
