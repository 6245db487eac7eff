"""Mirostat in the loop: the same text as one token after the other, whatever makes a step take more of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit import LLM
from decodekit.constraints import Regex, compile
from decodekit.decoding.draws import mirostat_states
from decodekit.decoding.loop.text_row import Request, TextRow
from decodekit.decoding.request.settings import Settings
from decodekit.errors import OptionError
from decodekit.sampling import History, Temperature, sample
from decodekit.strategy import Mirostat, can_redraw
from tests.decoding.pairs import VOCABULARY as LETTERS
from tests.decoding.test_scheduler import EOS, TOKENS, VOCABULARY, V, settings_of
from tests.reference.generation import TextsMatcher, ToyLM, hashed_law, reference_decode
from tests.sizes import few
from tests.speculation.test_same_text import GUARDED, Prophet, decode

STRATEGIES = [
    Mirostat(tau=1.5, eta=0.4),
    Mirostat(tau=1.0, eta=0.8, version=1),
    Mirostat(tau=2.5, eta=1.0, temperature=1.5, repetition_penalty=1.3),
    Mirostat(tau=0.7, eta=0.3, bad_words=[[1, 2]]),
]
CONSTRAINTS = [None, [b"abcabc", b"abbb\nc", b"abca"], ["éaé".encode(), b"cab"], [b"bca\n\n", b"bcabca", b"ca"]]


def one_by_one(strategy: Mirostat, seed: int) -> Callable[[Tensor, list[int], list[int]], int]:
    """The strategy as the paper has it: one token after the other, and mu between them."""
    mirostat, state = strategy.mirostat, {0: torch.tensor([2 * strategy.tau])}

    def choose(logits: Tensor, prompt: list[int], text: list[int]) -> int:
        rows, mu = strategy.pipeline(logits[None], History.from_lists([prompt], [text])), state[len(text)]
        kept = mirostat.process(rows, mu)
        token = sample(kept, [seed], [0], [len(text)])
        state[len(text) + 1] = mirostat.advance(mu, rows, kept, token)
        return int(token)

    return choose


def assert_same_texts(
    strategy: Mirostat,
    *,
    texts: Sequence[bytes] | None = None,
    num_rows: int = 3,
    salt: int = 0,
    num_tokens: int = 0,
    error_rate: float = 0.0,
    guess: Sequence[int] | None = None,
    **options: Any,
) -> None:
    prompts = [[3, 1, 2], [0], [5, 5, 1, 4], [2, 7]]
    law = hashed_law(V, salt=salt)
    matcher = None if texts is None else TextsMatcher(texts, VOCABULARY)
    expected = [
        reference_decode(
            law,
            prompt,
            one_by_one(strategy, seed),
            TOKENS,
            eos_token_ids=EOS,
            max_new_tokens=14,
            matcher=None if matcher is None else matcher.fork(),
        )
        for seed, prompt in enumerate(prompts)
    ]
    known = {tuple(prompt): guess or tokens for prompt, (tokens, _, _) in zip(prompts, expected, strict=True)}
    proposer = Prophet(known, error_rate, num_tokens) if num_tokens else None
    chosen = settings_of(strategy, 14, mirostat=strategy.mirostat, proposer=proposer, **options)
    requests = [Request(prompt, matcher, seed) for seed, prompt in enumerate(prompts)]
    done, _ = decode(ToyLM(law, V), requests, chosen, num_rows)
    assert done == {i: (text, tuple(tokens), reason) for i, (tokens, text, reason) in enumerate(expected)}


@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    texts=st.sampled_from(CONSTRAINTS),
    num_rows=st.integers(1, 4),
    salt=st.integers(0, 5),
    num_tokens=st.sampled_from([0, 1, 3, 8]),
    error_rate=st.sampled_from([0.0, 0.3, 1.0]),
    fast_forward=st.sampled_from(["off", "exact"]),
    num_alternatives=st.sampled_from([None, 0]),
)
def test_same_text_as_one_by_one(**options: Any) -> None:
    """Drafts that are right and wrong, forced tokens unseen, drafted and asked for, neighbours."""
    assert_same_texts(**options)


@few(1)
@pytest.mark.parametrize("number", range(len(GUARDED)))
def test_guards_take_texts_back_and_mu_with_them(number: int) -> None:
    constraint, options = GUARDED[number]
    strategy = Mirostat(tau=1.2, eta=0.7, temperature=1.5)
    assert not can_redraw(strategy)
    matcher = compile(constraint, LETTERS).matcher()
    requests = [Request([index % 8, index // 8], matcher, seed=index) for index in range(12)]

    def run(num_rows: int, **more: Any) -> Any:
        given = {"mirostat": strategy.mirostat, **options, **more}
        chosen = Settings(LETTERS, strategy.pipeline, strategy.select, 16, **given)
        return decode(ToyLM(hashed_law(8, salt=2), 8), requests, chosen, num_rows)

    expected, results = run(4, fast_forward="off")
    known = {tuple(request.prompt): expected[index][1] for index, request in enumerate(requests)}
    for num_rows, error_rate in ((1, 0.0), (5, 0.3)):
        assert run(num_rows, proposer=Prophet(known, error_rate, 5, 8))[0] == expected
        assert run(num_rows)[0] == expected
    assert sum(result.stats.num_rollbacks for result in results) >= (number == 1)


def test_mu_follows_the_surprise() -> None:
    """A low tau gives a text of likely tokens, a high one the text of plain sampling."""
    law = hashed_law(V, salt=1)
    texts = {}
    for tau in (0.01, 50.0):
        strategy = Mirostat(tau=tau, eta=1.0)
        chosen = settings_of(strategy, 30, mirostat=strategy.mirostat)
        texts[tau] = decode(ToyLM(law, V), [Request([3], seed=1)], chosen, 1)[0][0][1]
    plain = settings_of(Mirostat(), 30)
    assert texts[50.0] == decode(ToyLM(law, V), [Request([3], seed=1)], plain, 1)[0][0][1] != texts[0.01]
    ranks = [
        int((law([3, *texts[0.01][:i]]) > law([3, *texts[0.01][:i]])[token]).sum())
        for i, token in enumerate(texts[0.01])
    ]
    assert sum(ranks) < len(ranks) / 4


def test_options_and_the_front_door() -> None:
    with pytest.raises(OptionError) as caught:
        Mirostat(tau=0.0, eta=-1.0, version=3, temperature=0.0, bad_words=[])
    assert [str(fault.at) for fault in caught.value.faults] == ["tau", "eta", "version", "bad_words", "temperature"]
    assert list(Mirostat(processors=Temperature(2.0)).pipeline) == [Temperature(2.0)]
    llm = LLM.load("tiny")
    given: dict[str, Any] = {"strategy": Mirostat(tau=2.0, eta=0.5), "seed": 3, "constraint": Regex("[a-z ]{8,12}: ok")}
    texts = [llm.generate("A few words:", **given, fast_forward=mode).text for mode in ("off", "exact")]
    assert texts[0] == texts[1] and texts[0].endswith(": ok")
    assert llm.generate("A few words:", strategy="mirostat", tau=2.0, eta=0.5, max_new_tokens=8).error is None
    with pytest.raises(OptionError, match="Mirostat needs their probabilities"):
        llm.generate("x", **given, fast_forward="canonical")


# Controls: what the states are kept for


def one_mu_for_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """mu does not move along a draft."""
    monkeypatch.setattr(mirostat_states, "_next_of_draft", lambda places, i: None)


def forced_tokens_leave_mu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced tokens count for nothing."""
    monkeypatch.setattr(mirostat_states, "_after_forced", lambda mirostat, mu, num_tokens: mu)


def stale_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """States of rejected drafts stay."""
    monkeypatch.setattr(TextRow, "forget_states", lambda self: None)


# After "a" much is forced, after "b" nothing: a rejected draft "b…" has states where "accc" has none.
LETTERS_ABC = (b"a", b"b", b"c")
CHOICES = [b"accc" + last for last in LETTERS_ABC] + [
    b"b" + b"".join(rest) for rest in itertools.product(LETTERS_ABC, repeat=4)
]


def compare_many() -> None:
    for salt in range(6):
        for strategy in (Mirostat(tau=1.5, eta=0.4), Mirostat(tau=0.4, eta=1.5)):
            assert_same_texts(strategy, num_tokens=8, salt=salt)
            assert_same_texts(strategy, texts=[b"caca", b"cacb", b"cac\n", b"cabc", b"ca\n\n"], salt=salt)
            assert_same_texts(strategy, texts=CHOICES, num_tokens=4, guess=[1] * 5, salt=salt)


def test_states_that_are_kept_right() -> None:
    compare_many()


@pytest.mark.parametrize("broken", [one_mu_for_a_draft, forced_tokens_leave_mu, stale_states])
def test_broken_states_are_noticed(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        compare_many()
