"""Masks on the device: brought there once for a state, selected by number, never those of another state."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import pytest
import torch

import decodekit as dk
from decodekit import LLM
from decodekit.constraints import Regex, compile
from decodekit.constraints.matching.matcher import GrammarMatcher, Matcher
from decodekit.decoding.lazy_masks import mask_pool
from decodekit.decoding.lazy_masks.mask_pool import MaskPool, mask_key
from decodekit.decoding.loop import device_pass
from decodekit.decoding.loop.device_pass import DevicePass
from decodekit.decoding.loop.text_row import TextRow
from tests.decoding.test_asking import VOCABULARY
from tests.decoding.test_run_ahead import PROMPTS, SCHEMA, texts
from tests.models.device_law import DeviceLawError

NUM_WORDS = VOCABULARY.num_mask_words
RULE = Regex("[abc]{2,9}")


def words_of(matcher: Matcher) -> list[int]:
    words = np.zeros((1, NUM_WORDS), dtype=np.int32)
    matcher.fill_bitmask(words)
    return words[0].tolist()  # type: ignore[no-any-return]


def walked(rule: Regex, num_tokens: int) -> list[Matcher]:
    """The matchers behind 0, 1, ... tokens of some text of a rule."""
    matcher, found = compile(rule, VOCABULARY).matcher(), []
    for _ in range(num_tokens):
        found.append(matcher.fork())
        [bits] = np.unpackbits(np.array([words_of(matcher)], dtype=np.int32).view(np.uint8), bitorder="little", axis=1)
        assert matcher.accept(int(bits.nonzero()[0][0]))
    return found


def pool_of(num_places: int) -> MaskPool:
    return MaskPool(num_places, NUM_WORDS, torch.device("cpu"))


def test_a_second_visit_of_a_state_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, matchers = pool_of(8), walked(RULE, 4)
    fills: list[int] = []
    fill = GrammarMatcher.fill_bitmask
    monkeypatch.setattr(GrammarMatcher, "fill_bitmask", lambda self, *rest: (fills.append(1), fill(self, *rest))[1])
    for _ in range(3):
        pool.begin()
        places = [pool.place(one) for one in matchers]
        pool.upload()
        assert [pool.masks[place].tolist() for place in places] == [words_of(one) for one in matchers]
        assert len(set(places)) == len({mask_key(one) for one in matchers}) == pool.num_sent
        assert pool.num_uploads == 1
    assert len(fills) == pool.num_sent + 2 * 3 * len(matchers)  # the test's own and those of the law are the rest


def test_the_mask_goes_that_was_used_longest_ago() -> None:
    """Any walk over more states than there are places: every mask of a step is the right one, and none of it goes."""
    draw, pool, matchers = random.Random(5), pool_of(3), walked(RULE, 7)
    recent: list[Any] = []
    num_sent = 0
    for _ in range(200):
        some = draw.sample(matchers, draw.randrange(1, 4))
        pool.begin()
        places = [pool.place(one) for one in some]
        for one in some:
            key = mask_key(one)
            num_sent += key not in recent
            recent = [*(other for other in recent if other != key), key][-3:]
        pool.upload()
        assert [pool.masks[place].tolist() for place in places] == [words_of(one) for one in some]
        assert pool.num_sent == num_sent
    assert num_sent > 100


def test_a_step_of_more_masks_than_places_is_told() -> None:
    pool, matchers = pool_of(2), walked(RULE, 4)
    pool.begin()
    assert [pool.place(one) for one in matchers] == [0, 1, None, None]
    pool.begin()
    assert pool.place(matchers[3]) == 0


class Untold:
    """A matcher that does not tell its state."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def fill_bitmask(self, out: Any, row: int = 0, exact: bool = True) -> None:
        self._matcher.fill_bitmask(out, row, exact)


def test_what_does_not_tell_its_state_is_known_by_its_words() -> None:
    pool, matchers = pool_of(8), walked(RULE, 3)
    assert mask_key(Untold(matchers[0])) is None  # type: ignore[arg-type]
    for _ in range(2):
        places = [pool.place(Untold(one)) for one in matchers]  # type: ignore[arg-type]
        pool.upload()
        assert [pool.masks[place].tolist() for place in places] == [words_of(one) for one in matchers]
    assert pool.num_sent == len({tuple(words_of(one)) for one in matchers})


def test_states_of_a_recogniser_that_is_gone_are_no_others() -> None:
    """States are numbered anew by each: the same numbers, and perhaps the same address."""
    pool = pool_of(64)
    for number in range(12):
        [matcher] = walked(Regex(f"[{'abc'[number % 3]}]{{2,{number + 3}}}"), 1)
        place = pool.place(matcher)
        pool.upload()
        assert pool.masks[place].tolist() == words_of(matcher)
        compile(Regex(f"[{'abc'[number % 3]}]{{2,{number + 3}}}"), VOCABULARY).release()
        del matcher
        gc.collect()


def pools_of(loops: list[DevicePass]) -> MaskPool:
    [pool] = {id(pool): pool for loop in loops for pool in [loop._pool()]}.values()
    return pool


def test_the_second_text_of_a_constraint_sends_no_mask(ahead: LLM, loops: list[DevicePass]) -> None:
    options: dict[str, Any] = {"constraint": SCHEMA, "masks": "always"}
    first = texts(ahead, **options)
    pool = pools_of(loops)
    num_sent, steps = pool.num_sent, sum(loop.num_steps for loop in loops)
    assert num_sent > 5
    loops.clear()
    assert texts(ahead, **options) == first
    assert pools_of(loops) is pool and pool.num_sent == num_sent
    assert sum(loop.num_uploads for loop in loops) == sum(loop.num_steps for loop in loops) == steps


def test_a_mask_of_another_state_changes_texts(ahead: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: one name for all states."""
    monkeypatch.setattr(mask_pool, "mask_key", lambda matcher: "the same")
    with pytest.raises(DeviceLawError, match="the mask 0 on the device is another one"):
        texts(ahead, constraint=SCHEMA, masks="always")


def test_a_small_pool_gives_the_same_texts(plain: LLM, ahead: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks go and come; where a step has no place left for those along a draft, the draft ends."""
    monkeypatch.setattr(device_pass, "MIN_PLACES", 8)  # for four rows
    options: dict[str, Any] = {"constraint": SCHEMA, "masks": "always", "strategy": dk.Greedy(speculate="grammar")}
    assert texts(ahead, **options) == texts(plain, **options)


@pytest.mark.parametrize("masks", ["asked", "always"])
def test_a_row_whose_constraint_is_late_does_not_hold_the_others(
    plain: LLM, ahead: LLM, loops: list[DevicePass], monkeypatch: pytest.MonkeyPatch, masks: str
) -> None:
    """Nothing is read twice for it, and its text is what it is without waiting, drafts included."""
    late, other = Regex("[a-z ]{16,17}"), Regex("[a-z ]{12}")
    work = [(late, PROMPTS[0]), (other, PROMPTS[1]), (other, PROMPTS[2])]
    options: dict[str, Any] = {"masks": masks, "strategy": dk.Sample(seed=3, speculate="prompt-lookup")}
    expected = [plain.generate(prompt, constraint=rule, max_new_tokens=20, **options).text for rule, prompt in work]
    slow = compile(late, plain.tokenizer).matcher().recogniser
    calls: list[int] = []
    prepare = GrammarMatcher.prepare

    def wait_long(self: GrammarMatcher, num_things: int, token: int | None = None) -> bool:
        is_late = self.recogniser is slow and self.num_tokens == 2
        calls.extend([1] * is_late)
        return not (is_late and len(calls) < 40) and prepare(self, num_things, token)

    monkeypatch.setattr(GrammarMatcher, "prepare", wait_long)
    ended: list[int] = []
    finish = TextRow.finish
    monkeypatch.setattr(TextRow, "finish", lambda self, *rest: (ended.append(self.index), finish(self, *rest))[1])
    with dk.Engine(ahead, batch_size=3) as engine:
        handles = [engine.submit(prompt, constraint=rule, max_new_tokens=20, **options) for rule, prompt in work]
        assert [handle.result(60).text for handle in handles] == expected
    assert ended[-1] == min(ended) and len(calls) >= 40  # the first one
    assert sum(loop.num_steps for loop in loops) < 40  # what waits is in no step
