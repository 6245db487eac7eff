"""Proposers one by one, verification, and the bytes that a constraint forces."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodekit as dk
from decodekit.constraints import Choices, Guarded, JsonSchema, Regex, compile
from decodekit.errors import DecodekitError, OptionError, ResourceLimitError, UnknownNameError, UselessOptionError
from decodekit.speculation import (
    Adaptive,
    Chain,
    Context,
    Draft,
    GrammarDraft,
    PromptLookup,
    coupled_match,
    resolve_proposer,
)
from decodekit.strategy import resolve_strategy
from decodekit.vocabulary import Vocabulary
from tests.models import architectures
from tests.reference.any_json import any_json
from tests.reference.generation_tokenizer import small_tokenizer

BYTES = Vocabulary([*(bytes((b,)) for b in range(256)), None], [256])


def looked_up(tokens: Sequence[int], max_ngram: int, min_ngram: int, num_tokens: int) -> list[int]:
    """The slow twin: every earlier place, the longest run first, then the latest place."""
    for length in range(max_ngram, min_ngram - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if length <= len(tokens) and list(tokens[end - length : end]) == list(tokens[len(tokens) - length :]):
                return list(tokens[end : end + num_tokens])
    return []


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    texts=st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=4),
    max_ngram=st.integers(1, 4),
    num_tokens=st.integers(1, 5),
)
def test_prompt_lookup_equals_its_twin(
    prompt: list[int], texts: list[list[int]], max_ngram: int, num_tokens: int
) -> None:
    """As the text grows, and after it was taken back."""
    proposer = PromptLookup(max_ngram, num_tokens, random.Random(num_tokens).randint(1, max_ngram))
    memory: dict[Any, Any] = {}
    for text in [part for whole in texts for part in (whole[: len(whole) // 2], whole)]:
        [draft] = proposer.propose([Context(prompt, text, memory=memory)], [100])
        assert list(draft.tokens) == looked_up([*prompt, *text], max_ngram, proposer.min_ngram, num_tokens)
        [cut] = proposer.propose([Context(prompt, text, memory=memory)], [2])
        assert list(cut.tokens) == list(draft.tokens[:2])
        assert len(proposer.propose([Context(prompt, text)], [0])[0]) == 0


def test_coupled_match() -> None:
    assert coupled_match([1, 2, 3], [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert coupled_match([1, 2, 3], [1, 5, 3, 4]) == [1, 5]
    assert coupled_match([], [7]) == [7]
    error = DecodekitError("no token")
    assert coupled_match([1, 2], [1, error, 4]) == [1, error]


def test_a_chain_takes_the_first_offer_that_is_legal() -> None:
    matcher = compile(Regex("[ab]*c"), BYTES).matcher()

    class Always:
        def __init__(self, *tokens: int) -> None:
            self.tokens = tokens

        def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
            return [Draft(self.tokens[:limit]) for limit in limits]

    chain = Chain((Always(), Always(*b"xab"), Always(*b"abz")))
    drafts = chain.propose([Context([1], [], matcher), Context([1], []), Context([1], [], matcher)], [8, 2, 0])
    assert [bytes(draft.tokens) for draft in drafts] == [b"ab", b"xa", b""]
    assert isinstance(resolve_proposer([PromptLookup(), "grammar"]), Chain)
    assert resolve_proposer([PromptLookup()]) == PromptLookup()


@pytest.mark.parametrize(
    ("constraint", "before", "forced"),
    [
        (Regex("abc(d|e)f"), "", "abc"),
        (Regex("abc(d|e)f"), "abcd", "f"),
        (Regex("ab(cd)?"), "", "ab"),  # the text may end here
        (Choices(["north east", "north west"]), "", "north "),
        (Choices(["naïve", "naîve"]), "", "na\xc3"),  # half of a character
        (JsonSchema({"const": {"a": 1}}, whitespace="compact"), "", "{"),
        (Regex("[a-z]+!"), "", ""),
        (Guarded(Regex("abc"), lambda text: True), "a", "bc"),
    ],
)
def test_forced_bytes(constraint: Any, before: str, forced: str) -> None:
    matcher = compile(constraint, BYTES).matcher()
    assert all(matcher.accept(byte) for byte in before.encode())
    found = matcher.forced_text()
    expected = forced.encode("latin-1")
    if "{" in forced:
        assert found.startswith(expected)
    else:
        assert found == expected
    # each of them is the only byte that may follow
    for byte in found:
        assert [b for b in range(256) if matcher.validate([b])] == [byte] and not matcher.is_accepting
        assert matcher.accept(byte)


def test_guessed_bytes_pass_over_blanks_and_escapes() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "required": ["id"],
        "additionalProperties": False,
    }
    matcher = compile(any_json(schema), BYTES).matcher()
    assert matcher.forced_text() == b"{"  # then blanks may follow, and the key may have escapes
    assert matcher.forced_text({}) == b'{"id":'
    assert matcher.forced_text({ord(":"): b" ", ord("{"): b"\n"}) == b'{\n"id":'
    assert matcher.validate(list(b'{\n"id":')) == 7


def context(llm: Any, constraint: Any, text: str = "") -> Context:
    tokens = llm.tokenizer(text, add_special_tokens=False)["input_ids"]
    matcher = compile(constraint, llm.vocabulary).matcher()
    assert all(matcher.accept(token) for token in tokens)
    return Context([5], tokens, matcher, llm._canonical())


@functools.cache
def tiny() -> Any:
    return dk.LLM.load("tiny")


def test_scaffolding_is_offered_in_own_tokens_and_in_the_style_of_the_text() -> None:
    llm = tiny()
    keys = {"name": {"type": "string"}, "size": {"type": "integer"}, "when": {"type": "integer"}}
    schema = {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}
    every, natural = any_json(schema), JsonSchema(schema)

    def offer(
        text: str, limit: int = 99, proposer: GrammarDraft = GrammarDraft(), constraint: JsonSchema = every
    ) -> str:
        [draft] = proposer.propose([context(llm, constraint, text)], [limit])
        return llm.vocabulary.decode(draft.tokens).decode()

    assert offer("") == '{"name":"'
    assert offer('{"name":"x"') == ',"size":'
    assert offer('{ "name": "x", "size": 3,') == ' "when":'
    assert offer('{"name":"x') == ""
    # What the layout of the text forces is offered to its end.
    assert offer("", constraint=natural) == '{"name":"'
    assert offer('{"name":"x"', constraint=natural) == ',"size":'
    assert offer('{"name": "x", "size": 3,', constraint=natural) == ' "when": '
    assert offer('{\n  "name": "x",', constraint=natural) == '\n  "size": '
    assert len(llm.tokenizer(offer("", 3), add_special_tokens=False)["input_ids"]) == 3
    assert offer("", 99, GrammarDraft(max_tokens=1)) == "{"
    assert GrammarDraft().propose([Context([1], [])], [5])[0].tokens == ()


def test_a_constraint_that_fails_offers_nothing() -> None:
    class Failing:
        def validate(self, tokens: Sequence[int]) -> int:
            raise ResourceLimitError("too many states")

        def forced_text(self, gaps: Any = None) -> bytes:
            raise ResourceLimitError("too many states")

    failing: Any = Failing()
    given_context = Context([1], [], failing, tiny()._canonical())
    assert given_context.num_legal([1, 2]) == 0
    assert len(GrammarDraft().propose([given_context], [5])[0]) == 0


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"speculate": "promt-lookup"}, UnknownNameError, "no proposer 'promt-lookup'. Did you mean 'prompt-lookup'?"),
        ({"speculate": 5}, OptionError, "speculate must be None, a proposer, its name, or several of them, got 5"),
        ({"speculate": []}, OptionError, "speculate must be"),
        ({"speculate": PromptLookup}, OptionError, "speculate must be"),
        ({"speculate": GrammarDraft()}, UselessOptionError, "GrammarDraft has no effect without a constraint"),
        ({"fast_forward": "canonical"}, UselessOptionError, "no effect without a constraint"),
        ({"fast_forward": "off"}, UselessOptionError, "no effect without a constraint"),
        ({"fast_forward": "fast", "constraint": Regex("a")}, OptionError, "must be"),
        (
            {"fast_forward": "canonical", "speculate": "grammar", "constraint": Regex("a")},
            UselessOptionError,
            "takes without asking",
        ),
        ({"fast_forward": "canonical", "bad_words": [[3]], "constraint": Regex("a")}, OptionError, "may forbid them"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        tiny().generate("x", max_new_tokens=4, **options)
    assert says in str(caught.value)


def test_numbers_out_of_range() -> None:
    for wrong in ({"max_ngram": 0}, {"num_tokens": 1.5}, {"min_ngram": 4}, {"num_tokens": True}):
        with pytest.raises(OptionError):
            PromptLookup(**wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        GrammarDraft(0)


def test_by_name() -> None:
    assert resolve_strategy("prompt-lookup", {"repetition_penalty": 1.2}).proposer == Adaptive(PromptLookup())
    assert resolve_strategy("sample", {"speculate": "grammar"}).proposer == GrammarDraft()
    assert resolve_strategy("greedy", {}).proposer is None
    with pytest.raises(UselessOptionError, match="no effect with greedy"):
        resolve_strategy("prompt-lookup", {"temperature": 0.5})


def test_recurrent_state_cannot_be_cropped() -> None:
    llm = dk.LLM(architectures.build("mamba"), small_tokenizer())
    with pytest.warns(UserWarning, match="recurrent state"):
        drafted = llm.generate("x", strategy="prompt-lookup", max_new_tokens=4)
    assert drafted.token_ids == llm.generate("x", max_new_tokens=4).token_ids
    assert llm.generate("x", constraint=Choices(["the first", "other"]), max_new_tokens=20).error is None
