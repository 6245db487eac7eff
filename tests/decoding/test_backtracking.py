"""Guards in the loop: against a slow twin, and against themselves with the guard in the mask."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from decodekit.constraints import Constraint, Guarded, Regex, compile
from decodekit.constraints.composition.combinators import Concat
from decodekit.constraints.composition.composed import Special
from decodekit.constraints.constraint import Guard, Refusal, TextReader
from decodekit.constraints.network import Frame
from decodekit.decoding.lazy_masks.rollback import luby
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result
from decodekit.errors import ConstraintError, DeadEndError, GuardError
from decodekit.strategy import Greedy, Sample, Strategy, can_redraw, lead_of
from decodekit.testing import check_guard
from decodekit.vocabulary import Vocabulary
from tests.decoding.test_scheduler import choose_by
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.guards import guarded_decode
from tests.sizes import few, sized

TOKENS: list[bytes | None] = [*(bytes([c]) for c in b"[],123"), b"12", b"1,", b",2", b"2]", b"],", b"3,1", None]
V = len(TOKENS)
VOCABULARY = Vocabulary(TOKENS, [V - 1])
LISTS = Regex(r"\[[123]{1,2}(,[123]{1,2}){2,4}\]")


@dataclass(frozen=True)
class Far(Constraint):
    """Lists of distinct numbers; what was read before the second of two equal ones can stay."""

    def root(self) -> Frame:
        return LISTS.root()

    def parse(self, text: str) -> object:
        return json.loads(text)

    def guard(self) -> Guard:
        return Distinct()


class Distinct:
    def refuses(self, text: bytes) -> Refusal | None:
        items = text[1:-1].split(b",")
        for number, item in enumerate(items):
            if item in items[:number]:
                return Refusal(1 + sum(len(before) + 1 for before in items[:number]), f"/{number}", "occurs twice")
        return None


@dataclass(frozen=True)
class Early(Constraint):
    """Lists of numbers that ascend, which is told at every comma."""

    def root(self) -> Frame:
        return LISTS.root()

    def parse(self, text: str) -> object:
        return json.loads(text)

    def guard(self) -> Guard:
        return Ascending()


class Ascending:
    def refuses(self, text: bytes) -> Refusal | None:
        return self.refuses_prefix(text)

    def refuses_prefix(self, text: bytes) -> Refusal | None:
        """Every other number that is too small is taken back as a whole, of the others the comma behind it."""
        before, start = -1, 1
        for place, item in enumerate(text[1:].replace(b"]", b",").split(b",")[:-1]):
            if int(item) <= before:
                return Refusal(start if place % 2 else start + len(item), f"/{place}", "does not ascend")
            before, start = int(item), start + len(item) + 1
        return None

    def reader(self) -> TextReader:
        return TextReader(self.refuses_prefix)


def ascending(text: str) -> bool | str:
    value = json.loads(text)
    return value == sorted(set(value)) or f"{value} does not ascend"


CONSTRAINTS: list[Constraint] = [
    Far(),
    Guarded(LISTS, ascending),
    Guarded(Regex("[123]*"), lambda text: len(text) >= 3 and text.count("1") != 2),  # ends by a token
    Guarded(Far(), lambda items: sum(items) % 3 == 0),
    Early(),
    Guarded(Early(), lambda items: sum(items) % 3 == 0),
]
STRATEGIES: list[Strategy] = [Greedy(), Sample(), Sample(temperature=1.5), Sample(presence_penalty=1.0)]


def settings_of(strategy: Strategy, **options: Any) -> Settings:
    given = {"can_redraw": can_redraw(strategy), "lead": lead_of(strategy), "max_new_tokens": 24} | options
    return Settings(VOCABULARY, strategy.pipeline, strategy.select, **given)


def run(
    requests: list[Request], settings: Settings, num_rows: int = 4, salt: int = 0, shown: Vocabulary = VOCABULARY
) -> list[tuple[str, Result]]:
    texts: dict[int, str] = {}
    tokens: dict[int, list[int]] = {}
    results: dict[int, Result] = {}
    size = settings.vocabulary.size
    for update in decode_texts(ToyLM(hashed_law(size, salt=salt), size), settings, num_rows, requests):
        texts[update.index] = texts.get(update.index, "") + update.text
        tokens.setdefault(update.index, []).extend(update.token_ids)
        if update.result is not None:
            results[update.index] = update.result
    for index, result in results.items():  # nothing that was handed out was taken back
        assert tuple(tokens[index]) == result.token_ids
        assert texts[index] == shown.decode(result.token_ids).decode()
    return [(texts[index], results[index]) for index in sorted(results)]


def requests_of(constraint: Constraint, num: int = 24) -> list[Request]:
    grammar = compile(constraint, VOCABULARY)
    return [Request([index % V, index // V], grammar.matcher(), seed=index) for index in range(num)]


@few(4)
@pytest.mark.parametrize("number", range(len(CONSTRAINTS)))
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_the_slow_twin_agrees(number: int, strategy: Strategy) -> None:
    constraint = CONSTRAINTS[number]
    guard = constraint.guard()
    assert guard is not None
    inner = constraint.constraint if isinstance(constraint, Guarded) else LISTS
    inner = LISTS if isinstance(inner, Far | Early) else inner
    is_early = isinstance(constraint, Early) or getattr(constraint, "constraint", None) == Early()
    options: dict[str, Any] = {"refuses_prefix": Ascending().refuses_prefix} if is_early else {}
    requests = requests_of(constraint, 6)
    for request, (_, result) in zip(requests, run(requests, settings_of(strategy)), strict=True):
        tokens, reason, rollbacks = guarded_decode(
            hashed_law(V),
            request.prompt,
            choose_by(strategy, request.seed),
            VOCABULARY,
            compile(inner, VOCABULARY).matcher(),
            guard,
            max_new_tokens=24,
            **options,
        )
        assert rollbacks == result.stats.num_rollbacks
        if reason == "dead_end":
            assert isinstance(result.error, GuardError)
        else:
            assert (tokens, reason) == (list(result.token_ids), result.finish_reason)


MARKED = Vocabulary([*TOKENS, None, None], [V - 1], None, {"<list>": V, "<end>": V + 1})
SHOWN = Vocabulary([*TOKENS, b"<list>", b"<end>"], [V - 1])


@few(3)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("constraint", [Far(), Guarded(Far(), lambda items: sum(items) % 3 == 0)])
def test_texts_with_special_tokens_are_taken_back_as_far(constraint: Constraint, strategy: Strategy) -> None:
    """The twin sees a vocabulary in which special tokens are texts: their names."""
    begin, end = Special("<list>"), Special("<end>")
    whole = Concat(begin, constraint, end)
    guard = whole.guard()
    assert guard is not None
    grammar = compile(whole, MARKED)
    requests = [Request([index, 1], grammar.matcher(), seed=index) for index in range(8)]
    settings = replace(settings_of(strategy), vocabulary=MARKED)
    num_rollbacks = num_finished = 0
    for request, (text, result) in zip(requests, run(requests, settings, shown=SHOWN), strict=True):
        tokens, reason, rollbacks = guarded_decode(
            hashed_law(MARKED.size),
            request.prompt,
            choose_by(strategy, request.seed),
            SHOWN,
            compile(Concat(begin, LISTS, end), MARKED).matcher(),
            guard,
            max_new_tokens=24,
        )
        assert rollbacks == result.stats.num_rollbacks
        num_rollbacks += rollbacks
        if reason == "dead_end":
            assert isinstance(result.error, GuardError)
        else:
            assert (tokens, reason) == (list(result.token_ids), result.finish_reason)
        if reason == "complete":
            num_finished += 1
            assert text.startswith("<list>[") and text.endswith("]<end>")
            [items] = whole.parse(text)
            assert len(set(items)) == len(items)
    assert num_rollbacks > 0 and num_finished > 0


@few(3)
@sized("num", 10, slow=24)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=range(len(CONSTRAINTS)))
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_drawing_again_is_drawing_from_the_exact_mask(constraint: Constraint, strategy: Strategy, num: int) -> None:
    assert can_redraw(strategy)
    requests = requests_of(constraint, num)
    drawn = run(requests, settings_of(strategy))
    masked = run(requests, settings_of(strategy, can_redraw=False))
    assert sum(result.stats.num_guard_refusals for _, result in drawn) > 0
    assert [(text, result.token_ids) for text, result in drawn] == [(text, r.token_ids) for text, r in masked]


def test_under_a_truncation_it_is_not() -> None:
    """Negative control: a token that must not come takes a place among the k likeliest."""
    strategy = Sample(temperature=1.5, top_k=2)
    assert not can_redraw(strategy)
    requests = requests_of(Guarded(Regex("[123]*"), lambda text: len(text) >= 15), 60)
    masked = run(requests, settings_of(strategy))
    drawn = run(requests, settings_of(strategy, can_redraw=True))
    assert [r.token_ids for _, r in drawn] != [r.token_ids for _, r in masked]


@few(2)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=range(len(CONSTRAINTS)))
def test_finished_texts_pass_and_do_not_depend_on_their_neighbours(constraint: Constraint) -> None:
    guard = constraint.guard()
    assert guard is not None
    requests = requests_of(constraint, 30)
    settings = settings_of(Sample(temperature=1.5, presence_penalty=0.5))
    together = run(requests, settings, num_rows=8)
    num_refusals = num_finished = 0
    for number, (text, result) in enumerate(together):
        num_refusals += result.stats.num_guard_refusals
        if result.finish_reason in ("stop", "complete"):
            num_finished += 1
            assert guard.refuses(text.encode()) is None
        if number % 7 == 0:
            ((alone, lonely),) = run([requests[number]], settings, num_rows=1)
            assert (alone, lonely.token_ids) == (text, result.token_ids)
    assert num_refusals > 0 and num_finished >= 5


def test_without_the_guard_texts_fail_it() -> None:
    """Negative control: the texts of the language are refused often."""
    grammar = compile(LISTS, VOCABULARY)
    requests = [replace(request, matcher=grammar.matcher()) for request in requests_of(Far(), 30)]
    texts = [text for text, result in run(requests, settings_of(Sample(temperature=1.5))) if result.error is None]
    assert sum(Distinct().refuses(text.encode()) is not None for text in texts) >= 5


def test_log_probabilities_are_those_of_the_tokens() -> None:
    law = hashed_law(V)
    requests = requests_of(Far(), 12)
    results = run(requests, settings_of(Sample(temperature=1.5), num_alternatives=0))
    assert sum(result.stats.num_rollbacks for _, result in results) > 0
    for request, (_, result) in zip(requests, results, strict=True):
        assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
        for position, entry in enumerate(result.logprobs):
            prefix = [*request.prompt, *result.token_ids[:position]]
            assert entry.logprob == pytest.approx(float(law(prefix).log_softmax(-1)[entry.token_id]), abs=1e-5)


@pytest.mark.parametrize("answer", [False, "never"])
def test_a_guard_that_refuses_everything_fails_the_row(answer: bool | str) -> None:
    requests = requests_of(Guarded(LISTS, lambda text: answer), 4) + requests_of(LISTS, 2)
    results = run(requests, settings_of(Sample(), max_rollbacks=5))
    for _, result in results[:4]:
        assert isinstance(result.error, GuardError) and result.error.code == "DK604"
        assert result.stats.num_rollbacks <= 5
    assert answer is False or "never" in str(results[0][1].error)
    assert all(result.error is None or isinstance(result.error, DeadEndError) for _, result in results[4:])


@dataclass(frozen=True)
class OnlyThree(Constraint):
    """``[3]``: the mask says a digit in brackets, the guard does not say where a text is wrong."""

    def root(self) -> Frame:
        return Regex(r"\[[123]\]").root()

    def parse(self, text: str) -> object:
        return json.loads(text)

    def guard(self) -> Guard:
        return self

    def refuses(self, text: bytes) -> Refusal | None:
        return None if text == b"[3]" else Refusal(0, "the text", "not [3]")


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_token_without_an_alternative_is_not_the_one_that_is_banned(strategy: Strategy) -> None:
    for text, result in run(requests_of(OnlyThree(), 12), settings_of(strategy)):
        assert (text, result.finish_reason) == ("[3]", "complete"), result.error
    num_taken_back = [
        result.stats.num_rollbacks for _, result in run(requests_of(OnlyThree(), 12), settings_of(strategy))
    ]
    assert 0 < max(num_taken_back) <= 8


def test_a_guard_that_raises_fails_its_row_alone() -> None:
    def raises(text: str) -> bool:
        raise KeyError(text)

    requests = requests_of(Guarded(LISTS, raises), 1) + requests_of(LISTS, 1)
    for strategy in (Sample(), Sample(top_k=3)):
        (_, failed), (_, done) = run(requests, settings_of(strategy))
        assert isinstance(failed.error, ConstraintError) and "KeyError" in str(failed.error)
        assert done.error is None


def test_the_laws_of_guards_that_refuse_early() -> None:
    texts = ["[1,2,3]", "[1,12,21]", "[3,1,2]", "[1,2,2]", "[12,12,1,3]", "[1,3,2,31]", "[1,1,1]"]
    check_guard(Ascending(), texts)

    class TooEarly(Ascending):
        def refuses_prefix(self, text: bytes) -> Refusal | None:  # of a number that may go on
            return super().refuses_prefix(text + b"," if text[-1:] in b"123" else text)

    with pytest.raises(AssertionError, match="and accepted"):
        check_guard(TooEarly(), ["[2,12,21]"])

    class Forgetful(Ascending):
        def refuses(self, text: bytes) -> Refusal | None:
            return Ascending().refuses(text)

        def refuses_prefix(self, text: bytes) -> Refusal | None:
            return super().refuses_prefix(text) if text.endswith(b",") else None

    with pytest.raises(AssertionError, match=r"refused after .*, not after"):
        check_guard(Forgetful(), texts)

    class Far(Ascending):
        def refuses(self, text: bytes) -> Refusal | None:
            refusal = super().refuses(text)
            return None if refusal is None else replace(refusal, keep=len(text) + 1)

    with pytest.raises(AssertionError, match="can stay"):
        check_guard(Far(), ["[3,1,2]"])


def test_luby() -> None:
    assert [luby(number) for number in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
