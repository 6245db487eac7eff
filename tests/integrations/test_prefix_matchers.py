"""Rows of tokens that a loop extends, reorders and takes back have the masks of matchers that start anew."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

import numpy as np
import pytest

from decodekit.constraints import Choices, Guarded, Regex, compile
from decodekit.constraints.engine.bitmask import ids_from_bitmask
from decodekit.errors import OptionError
from decodekit.integrations.prefix_matchers import PrefixMatchers
from decodekit.testing.toy import ToyTokenizer
from decodekit.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_tokenizer(ToyTokenizer())
END = 256
GRAMMAR = compile(Regex("a(b|c)*d?"), VOCABULARY)


def of(text: str) -> list[int]:
    return [*text.encode()]


def allowed(masks: np.ndarray) -> list[set[int]]:
    return [{int(t) for t in ids_from_bitmask(row)} for row in masks]


def slowly(grammar, text: Sequence[int]) -> set[int]:
    """The tokens after a text, by a matcher that starts anew; after what it does not allow, or its end, the end."""
    matcher = grammar.matcher()
    if not all(matcher.accept(token) for token in text) or matcher.is_terminated:
        return {END}
    out = np.zeros((1, VOCABULARY.num_mask_words), np.int32)
    matcher.fill_bitmask(out)
    return allowed(out)[0]


def test_a_text_goes_on_and_back() -> None:
    matchers = PrefixMatchers(GRAMMAR)
    prompt = of("xy")
    assert allowed(matchers.masks([prompt])) == [slowly(GRAMMAR, [])]
    for text in ("a", "ab", "abc", "abd", "ac", "acb", "a"):  # "abd" takes one token back, "ac" two
        assert allowed(matchers.masks([prompt + of(text)])) == [slowly(GRAMMAR, of(text))]
    assert allowed(matchers.masks([prompt])) == [slowly(GRAMMAR, [])]


def test_beams_change_their_places() -> None:
    matchers = PrefixMatchers(GRAMMAR)
    for texts in (["", "", ""], ["a", "a", "a"], ["ab", "ac", "ad"], ["acb", "abb", "abc"], ["abbd", "abbc", "acbd"]):
        found = allowed(matchers.masks([of("p" + text) for text in texts]))
        assert found == [slowly(GRAMMAR, of(text)) for text in texts]


def test_what_is_refused_may_only_end_and_the_rest_goes_on() -> None:
    matchers = PrefixMatchers(GRAMMAR)
    matchers.masks([of("p"), of("p")])
    assert allowed(matchers.masks([of("pa"), of("pz")])) == [slowly(GRAMMAR, of("a")), {END}]
    assert [is_legal for _, is_legal in matchers.rows] == [True, False]
    ended = [*of("pa"), END]
    assert allowed(matchers.masks([ended, of("pzz")])) == [{END}, {END}]


@pytest.mark.parametrize("prompts", [["q"], ["xyz"], ["x"], ["xy", "xy"], ["xz"]])
def test_other_prompts_begin_anew(prompts: list[str]) -> None:
    matchers = PrefixMatchers(GRAMMAR)
    for text in ("xy", "xya", "xyab"):
        matchers.masks([of(text)])
    assert allowed(matchers.masks([of(prompt) for prompt in prompts])) == [slowly(GRAMMAR, [])] * len(prompts)


def test_a_prompt_that_looks_like_a_text_needs_a_word() -> None:
    """A prompt and an allowed token more: a longer text, unless `reset` or the lengths of the prompts say otherwise."""
    matchers = PrefixMatchers(GRAMMAR)
    matchers.masks([of("xy")])
    assert allowed(matchers.masks([of("xya")])) == [slowly(GRAMMAR, of("a"))]
    assert allowed(matchers.masks([of("xya")], prompt_lengths=[3])) == [slowly(GRAMMAR, [])]
    matchers.masks([of("xy")])
    matchers.reset()
    assert allowed(matchers.masks([of("xya")])) == [slowly(GRAMMAR, [])]


def test_any_calls_with_prompt_lengths() -> None:
    rng = random.Random(11)
    matchers = PrefixMatchers(GRAMMAR)
    texts: list[tuple[str, str]] = []
    for _ in range(150):
        kept = [(prompt, text[: rng.randint(0, len(text))]) for prompt, text in texts if rng.random() < 0.9]
        texts = [
            (prompt, text + "".join(rng.choices("abcdz", (3, 9, 9, 1, 1), k=rng.randint(0, 3))))
            for prompt, text in kept
        ]
        texts += [(rng.choice(["p", "pa", "pab", "q"]), "") for _ in range(rng.randint(0, 2))]
        rng.shuffle(texts)
        rows = [of(prompt + text) for prompt, text in texts]
        found = allowed(matchers.masks(rows, [len(prompt) for prompt, _ in texts]))
        assert found == [slowly(GRAMMAR, of(text)) for _, text in texts]


def test_guards_are_asked_and_masks_are_exact() -> None:
    grammar = compile(Guarded(Choices(["ab", "ac"]), lambda text: text != "ab" or "no"), VOCABULARY)
    matchers = PrefixMatchers(grammar)
    matchers.masks([of("p")])
    assert of("b")[0] not in allowed(matchers.masks([of("pa")]))[0]


def test_a_wider_mask_forbids_what_the_tokenizer_does_not_have() -> None:
    out = np.full((1, VOCABULARY.num_mask_words + 3), -1, np.int32)
    matchers = PrefixMatchers(GRAMMAR)
    assert matchers.masks([of("p")], out=out) is out
    assert allowed(out) == [slowly(GRAMMAR, [])]
    with pytest.raises(OptionError, match="not 2 rows"):
        matchers.masks([of("p"), of("q")], out=out)
    with pytest.raises(OptionError, match="1 prompt lengths for 2 rows"):
        matchers.masks([of("p"), of("q")], [1])


def test_a_copy_of_another_process_starts_anew() -> None:
    matchers = PrefixMatchers(GRAMMAR)
    matchers.masks([of("p")])
    assert allowed(pickle.loads(pickle.dumps(matchers)).masks([of("pa")])) == [slowly(GRAMMAR, [])]


def test_a_row_with_the_prompt_of_another_needs_no_new_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing behind the prompt is the same; a longer prompt needs one."""
    calls = [("pab", 1, 1), ("pxb", 1, 1), ("pa", 1, 1), ("pab", 2, 2)]
    expected = [slowly(GRAMMAR, of(text)[prompt_length:]) for text, prompt_length, _ in calls]
    made: list[object] = []
    make = type(GRAMMAR).matcher
    monkeypatch.setattr(type(GRAMMAR), "matcher", lambda self: made.append(self) or make(self))
    matchers = PrefixMatchers(GRAMMAR)
    for (text, prompt_length, num_made), one in zip(calls, expected, strict=True):
        assert allowed(matchers.masks([of(text)], prompt_lengths=[prompt_length])) == [one], text
        assert len(made) == num_made, text
