"""Special tokens in constraints: one text with their names for guards, values and explanations; and missing ones."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest

from decodekit.constraints import compile, complete, explain, sample_text, sample_texts
from decodekit.constraints.composition.combinators import Concat, Many, OneOf, Text
from decodekit.constraints.composition.composed import Special
from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.composition.tags import Reasoned, Tag, Tagged
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.explain.special_names import readings
from decodekit.constraints.grammar import Grammar
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.constraints.regex.regex import Regex
from decodekit.constraints.special import is_text, spelling, token_texts, with_names, written
from decodekit.constraints.tool_calls import tools
from decodekit.decoding.lazy_masks.rollback import checkpoint
from decodekit.errors import ConstraintError, InvalidConstraintError, OptionError
from decodekit.testing import check_language, check_matcher
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import byte_vocabulary

EOS, CALLS, THINK, DONE, IMAGE = range(256, 261)
NAMES = {"</s>": EOS, "[TOOL_CALLS]": CALLS, "<think>": THINK, "</think>": DONE, "<image>": IMAGE}
VOCABULARY = Vocabulary(
    # The name of one as a text too, and bytes around the marks of spellings, which no text has.
    [*(bytes((b,)) for b in range(256)), *[None] * 5, b"<think>", b"ab", b"a\xff", b"\xffb"],
    [EOS],
    None,
    NAMES,
)
BYTES = byte_vocabulary()
NOW = [{"name": "now"}]

CONSTRAINTS: dict[str, tuple[Constraint, set[str | int]]] = {
    "grammar": (Grammar('start: "a" (<think> "b"* | <[260]>)+ rest\nrest: "c" <image>?'.replace("<image>", "<[260]>")),
                {"<think>", 260}),
    "gbnf": (Grammar('root ::= <think> [ab]* </think> root?'), {"<think>", "</think>"}),
    "sequence": (Concat(Special("<think>"), Text(max_chars=4, excludes=["</think>"]), Special("</think>")),
                 {"<think>", "</think>"}),
    "reasoned": (Reasoned(Regex("[ab]{1,3}"), Special("<think>"), Special("</think>")), {"<think>", "</think>"}),
    "tagged": (Tagged(Tag(Special("<think>"), Regex("[ab]*"), Special("</think>"))), {"<think>", "</think>"}),
    "many": (Many(OneOf("a", Special("<image>")), 1, 4, Special("<think>")), {"<image>", "<think>"}),
    "either": (Concat(OneOf(Special("<think>"), "<think>"), Regex("[ab]")), set()),
    "guarded": (Guarded(Concat(Regex("[ab]*"), Special("<image>")), lambda value: value != ("aa",)), {"<image>"}),
    "inside": (Concat("x", Guarded(Many(Special("<image>"), 1, 3), lambda items: len(items) != 2)), {"<image>"}),
    "tools": (tools(NOW, "mistral", special_tokens=True), {"[TOOL_CALLS]"}),
    "tools, either": (tools(NOW, "mistral"), set()),
    "plain": (Regex("[ab]*"), set()),
}  # fmt: skip


def allowed(matcher: Any, vocabulary: Vocabulary = VOCABULARY) -> set[int]:
    bitmask = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return set(ids_from_bitmask(bitmask[0]).tolist())


def text_of(matcher: Any, tokens: list[int]) -> str:
    return b"".join(matcher.token_texts[token] or b"" for token in tokens).decode()


# -- which tokens are asked for


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_what_a_constraint_asks_for(name: str) -> None:
    constraint, asked = CONSTRAINTS[name]
    assert constraint.special_tokens() == asked
    if asked:
        with pytest.raises(InvalidConstraintError):
            compile(constraint, BYTES)
    else:
        compile(constraint, BYTES)  # the alternative falls away
    compile(constraint, VOCABULARY)


@pytest.mark.parametrize(
    ("token", "cause", "hint"),
    [
        ("<|think|>", "the vocabulary has no special token '<|think|>'", "near names: '<think>', '</think>'; as text"),
        (
            "@",
            "no special token '@'",
            "there are '[TOOL_CALLS]', '<think>', '</think>', '<image>'; as text it may be wri",
        ),
        ("</s>", "the token '</s>' ends a text", "as text it may be written as a string, '</s>'"),
        (256, "the token 256 ends a text", "there are"),
        (97, "the token 97 is no special token of the vocabulary: it is written as the text b'a'", "there are"),
        (4000, "the vocabulary has no special token 4000", "there are"),
    ],
)
def test_tokens_that_cannot_be_asked_for(token: str | int, cause: str, hint: str) -> None:
    grammar = Grammar(f'start: "a" <[{token}]>') if isinstance(token, int) else Concat("a", Special(token))
    with pytest.raises(InvalidConstraintError) as caught:
        compile(grammar, VOCABULARY)
    assert cause in caught.value.cause and hint in (caught.value.hint or "")


def test_names_are_texts() -> None:
    with pytest.raises(InvalidConstraintError, match="surrogate"):
        Special("<\ud800>")


def test_all_that_are_missing_are_named() -> None:
    with pytest.raises(InvalidConstraintError) as caught:
        compile(Concat(*(Special(f"<{number}>") for number in range(20))), VOCABULARY)
    assert caught.value.cause.count("no special token") == 8 and caught.value.cause.endswith("and 12 more")
    with pytest.raises(InvalidConstraintError) as caught:
        compile(Concat(Special("<x>")), BYTES)
    assert "it has none that can be part of a text" in (caught.value.hint or "")


def test_what_explains_a_constraint_does_not_compile_it_for_everybody() -> None:
    constraint = Concat("once", Special("<image>"))
    assert complete(constraint) == "once<image>"
    with pytest.raises(InvalidConstraintError):
        compile(constraint, Vocabulary([*(bytes((b,)) for b in range(256)), None], [256]))


def test_one_token_is_asked_for_in_one_way() -> None:
    with pytest.raises(InvalidConstraintError, match=r"260 as '<image>' and as 260|260 as 260 and as '<image>'"):
        compile(Grammar(f"start: <image> <[{IMAGE}]>"), VOCABULARY)
    twice = Vocabulary(VOCABULARY.token_bytes, [EOS], None, {**NAMES, "<img>": IMAGE})
    matcher = compile(Concat("a", Special("<img>")), twice).matcher()
    assert matcher.accept(97) and matcher.accept(IMAGE) and text_of(matcher, [97, IMAGE]) == "a<img>"
    assert token_texts(twice)[IMAGE] == b"<image>" and token_texts(VOCABULARY) is token_texts(VOCABULARY, {"<image>"})


# -- one text


def test_spellings_and_names() -> None:
    for token in ("<think>", "é", 7):
        assert not is_text(spelling(token))
        assert with_names(b"a" + spelling(token) + "é".encode()).decode() == f"a{written(token)}é"
    assert with_names(b"plain") == b"plain" and written(7) == "<[7]>"


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_text_of_tokens_is_parsed(name: str) -> None:
    """Random walks: what the tokens add is what the engine read, with names; whole texts have values."""
    constraint, _ = CONSTRAINTS[name]
    rng = random.Random(name)
    num_whole = num_special = 0
    for _ in range(12):
        matcher, tokens = compile(constraint, VOCABULARY).matcher(), []
        for _ in range(40):
            going_on = [
                t for t in allowed(matcher) - {EOS} if t > 256 or t in b"abcx[]{}<think>" or rng.random() < 0.02
            ]
            if not going_on or (matcher.is_accepting and rng.random() < 0.2):
                break
            tokens.append(rng.choice(sorted(going_on)))
            assert matcher.accept(tokens[-1])
        tokens += matcher.completion() if not matcher.is_accepting else ()
        replay = compile(constraint, VOCABULARY).matcher()
        assert all(map(replay.accept, tokens[:-1]))
        whole = text_of(replay, tokens)
        if isinstance(replay, GuardedMatcher):
            assert replay.text == text_of(replay, tokens[:-1]).encode()
            if tokens and not replay.accept(tokens[-1]):
                continue  # a completion does not ask the guard
        else:
            assert isinstance(replay, GrammarMatcher) and all(map(replay.accept, tokens[-1:]))
            assert with_names(replay.text) == whole.encode()
        num_whole += 1
        num_special += any(THINK <= token <= IMAGE or token == CALLS for token in tokens)
        constraint.parse(whole)
        assert explain(constraint, whole).is_allowed
    assert num_whole >= 6 and (num_special > 0) == (name != "plain")


def test_the_same_characters_are_not_the_token() -> None:
    matcher = compile(Concat(Special("<think>"), "a"), VOCABULARY).matcher()
    assert allowed(matcher) == {THINK} and matcher.validate([261]) == 0 == matcher.validate(list(b"<think>"))
    either = compile(CONSTRAINTS["either"][0], VOCABULARY).matcher()
    assert {THINK, 261, ord("<")} <= allowed(either)


# -- guards


def test_guards_see_the_names() -> None:
    seen: list[Any] = []
    inner = Concat(Special("<think>"), Many(OneOf("a", Special("<image>"))), Special("</think>"))
    guarded = Guarded(inner, lambda value: bool(seen.append(value[0])) or len(value[0]) == 2)
    matcher = compile(guarded, VOCABULARY).matcher()
    assert all(map(matcher.accept, [THINK, IMAGE]))
    assert not matcher.accept(DONE) and seen == [["<image>"]]  # a special token ends the text
    refusal = matcher.refusal(DONE)
    assert refusal is not None and matcher.refusals() == {DONE: refusal}
    assert refusal.keep == len(b"<think><image></think>")
    assert checkpoint([THINK, IMAGE], refusal.keep, matcher.token_texts) == 2
    assert checkpoint([THINK, IMAGE], len(b"<think><imag"), matcher.token_texts) == 1
    assert DONE not in allowed(matcher) and not matcher.can_end_within(0, DONE) and matcher.can_end_within(1, IMAGE)
    assert "refuses the value" in str(matcher.explain(DONE)) and matcher.explain(IMAGE).is_allowed
    assert matcher.accept(97) and matcher.accept(DONE) and matcher.is_accepting and not matcher.can_continue
    assert isinstance(matcher, GuardedMatcher) and matcher.text == b"<think><image>a</think>"
    matcher.rollback(2)
    assert matcher.text == b"<think><image>" and DONE not in allowed(matcher)
    assert guarded.parse("<think><image>a</think>") == (["<image>", "a"],)


@pytest.mark.parametrize("name", ["guarded", "inside"])
def test_masks_with_guards_are_those_of_trying(name: str) -> None:
    constraint, _ = CONSTRAINTS[name]
    check_matcher(compile(constraint, VOCABULARY).matcher(), VOCABULARY, num_tokens=6)
    matcher = compile(constraint, VOCABULARY).matcher()
    start = {"guarded": [*b"aa"], "inside": [*b"x", IMAGE]}[name]
    assert all(map(matcher.accept, start))
    here = allowed(matcher)
    for token in range(VOCABULARY.size):
        fork = matcher.fork()
        assert fork.accept(token) == (token in here)
    assert (IMAGE in here) == (name == "inside")


# -- completions, forced tokens, explanations


def test_completions_write_tokens_that_may_come() -> None:
    """Not those whose bytes are only a part of a spelling, however few they would be."""
    matcher = compile(
        Concat("a", Special("b"), "b"), Vocabulary([*VOCABULARY.token_bytes, None], [EOS], None, {"b": 265})
    )
    tokens = matcher.matcher().completion()
    assert tokens == (97, 265, 98) and matcher.matcher().validate(tokens) == 3 and matcher.least_tokens() == 3
    calls = compile(tools(NOW, "mistral", "required", special_tokens=True), VOCABULARY).matcher()
    tokens = calls.completion()
    assert calls.validate(tokens) == len(tokens) and tokens[0] == CALLS and calls.can_end_within(len(tokens) - 1, CALLS)
    assert not calls.can_end_within(len(tokens) - 2, CALLS)


def test_forced_tokens_and_forced_text() -> None:
    matcher = compile(Concat(Special("<think>"), "a", Special("</think>"), Regex("[ab]")), VOCABULARY).matcher()
    assert matcher.forced_tokens() == [THINK, 97, DONE] and matcher.forced_text() == b""
    assert matcher.accept(THINK) and matcher.forced_text({}) == b"a"


def test_explanations_of_tokens() -> None:
    matcher = compile(Concat("a", Special("<think>")), VOCABULARY).matcher()
    refused = matcher.explain(IMAGE)
    assert "<image> is no text, nor a special token that may come here" in str(refused)
    assert not matcher.explain("a<think>").is_allowed  # what is asked is a text
    assert matcher.accept(97) and matcher.explain(THINK).is_allowed and matcher.explain(IMAGE).expected == ("<think>",)
    by_id = compile(Grammar(f"start: <[{IMAGE}]>"), VOCABULARY).matcher()
    assert by_id.explain("x").expected == (f"<[{IMAGE}]>",) and by_id.explain(IMAGE).is_allowed


# -- texts without a model


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_random_texts_have_names(name: str) -> None:
    constraint, _ = CONSTRAINTS[name]
    for text in islice(sample_texts(constraint, seed=3, size=20), 8):
        constraint.parse(text)
        assert explain(constraint, text).is_allowed and complete(constraint, text) == text
        assert "\xff" not in text and "\xfe" not in text


def test_shortest_texts_have_names() -> None:
    assert complete(CONSTRAINTS["sequence"][0]) == "<think></think>"
    assert complete(CONSTRAINTS["sequence"][0], "<think>x") == "<think>x</think>"
    assert complete(CONSTRAINTS["grammar"][0], "a<[260]>") == "a<[260]>c"
    assert complete(CONSTRAINTS["guarded"][0]) == "<image>" and complete(CONSTRAINTS["inside"][0]) == "x<image>"
    assert complete(CONSTRAINTS["inside"][0], "x<image><image>") == "x<image><image><image>"
    assert sample_text(Concat(Special("<think>"))) == "<think>"
    with pytest.raises(OptionError, match="no text begins so"):
        complete(CONSTRAINTS["sequence"][0], "<think></think>x")


def test_explanations_of_texts() -> None:
    constraint = CONSTRAINTS["reasoned"][0]
    for text, position in (("a", 0), ("<think>é</think>x", 16), ("<think>é</think>", 16), ("<think>é</thin", 14)):
        explanation = explain(constraint, text)
        assert not explanation.is_allowed and explanation.position == position, text
    assert explain(constraint, "<think>é</think>ab") == explain(constraint, "<think>é</think>ab")
    refused = explain(CONSTRAINTS["guarded"][0], "aa<image>")
    assert not refused.is_allowed and "refuses the value" in str(refused) and refused.position == 9


def every_path(data: bytes, names: list[tuple[bytes, bytes]], start: int = 0) -> list[bytes]:
    """All ways to write a text with tokens for names."""
    if start == len(data):
        return [b""]
    paths = [data[start : start + 1] + rest for rest in every_path(data, names, start + 1)]
    for name, spelled in names:
        if data.startswith(name, start):
            paths += [spelled + rest for rest in every_path(data, names, start + len(name))]
    return paths


def test_a_text_is_read_in_any_way_that_leads_on() -> None:
    """Against all ways in turn; the names overlap, and one is the beginning of the other."""
    rng = random.Random(0)
    ab, aba = Special("ab"), Special("aba")
    constraints = [
        Many(OneOf("a", "b", ab), 0, 3),
        Concat(ab, OneOf("a", "ab"), aba),
        Concat(Many(OneOf(ab, aba)), Regex("(ab|ba)?")),
        Concat(OneOf("ab", ab), OneOf(aba, "ba")),
    ]
    num_whole = 0
    for number in range(300):
        constraint = constraints[number % len(constraints)]
        text = "".join(rng.choice("ab") for _ in range(rng.randint(0, 8)))
        recogniser = Recogniser(constraint.root(), shared_automaton())
        names = [(name.encode(), spelling(name)) for name in ("ab", "aba")]
        found = readings(recogniser, text, {"ab", "aba"})
        longest = max(
            length
            for length in range(len(text) + 1)
            for path in every_path(text[:length].encode(), names)
            if recogniser.read(recogniser.root, path) is not None
        )
        assert {reading.end for reading in found} == {longest}
        for reading in found:
            assert recogniser.read(recogniser.root, reading.path) == reading.state
            assert with_names(reading.path) == text[:longest].encode()
        states = [recogniser.read(recogniser.root, path) for path in every_path(text[:longest].encode(), names)]
        assert {reading.state for reading in found} == {state for state in states if state is not None}
        is_whole = longest == len(text) and any(
            recogniser.states.is_accepting(state) for state in states if state is not None
        )
        assert explain(constraint, text).is_allowed == is_whole
        num_whole += is_whole
    assert 30 < num_whole < 270


def test_languages_with_special_tokens_can_be_checked() -> None:
    check_language(CONSTRAINTS["sequence"][0], rejects=["<think></think>", "", "a"])
    check_language(CONSTRAINTS["either"][0], accepts=["<think>a"], rejects=["a", "<think>"])
    with pytest.raises(ConstraintError, match="no special token 260"):
        check_language(CONSTRAINTS["grammar"][0], rejects=["a"])
