"""A text that is cut after so many tokens: against its definition, for all texts of a small world."""

from __future__ import annotations

import itertools

import pytest

from decodekit.constraints import compile
from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.combinators import Concat, OneOf
from decodekit.constraints.composition.tags import Reasoned
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.matching.cut_matcher import CutMatcher
from decodekit.vocabulary import Vocabulary
from tests.sizes import few, sized

WORLD = Vocabulary([b"a", b"<", b"/>", b"</>", b"1", b"\xc3", b"\x80", b"[", b"a</>1", None], [9])
END, ANSWER = b"</>", Choices(["1", "1a"])
OPEN = Reasoned(ANSWER, "", "</>")
FREE = OneOf(Reasoned(ANSWER, "[", "</>"), ANSWER)
CLOSING = Concat("</>", ANSWER)


def cut(limit: int, is_open: bool) -> CutMatcher:
    first = compile(OPEN if is_open else FREE, WORLD).matcher()
    return CutMatcher(first, compile(CLOSING, WORLD).matcher(), limit, b"" if is_open else b"[", END)


def is_cut(text: bytes, num_tokens: int, limit: int, is_open: bool) -> bool:
    """The definition."""
    if num_tokens < limit or (not is_open and not text.lstrip().startswith(b"[")) or END in text:
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return not text.endswith((b"<", b"</")) or num_tokens >= limit + len(END)


def num_allowed(tokens: tuple[int, ...], limit: int, is_open: bool) -> int:
    """How many of the tokens may come one after the other, by matchers that know nothing of a cut."""
    first = compile(OPEN if is_open else FREE, WORLD).matcher()
    for number, token in enumerate(tokens):
        text = b"".join(WORLD.token_bytes[one] or b"" for one in tokens[:number])
        if is_cut(text, number, limit, is_open):
            return number + compile(CLOSING, WORLD).matcher().validate(tokens[number:])
        if not first.accept(token):
            return number
    return len(tokens)


@few(2)
@sized("length", 3, slow=4)
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_all_texts(limit: int, is_open: bool, length: int) -> None:
    matcher, bitmask, num_cut = cut(limit, is_open), allocate_bitmask(1, WORLD.size), 0
    for tokens in itertools.product(range(WORLD.size), repeat=length):
        num = num_allowed(tokens, limit, is_open)
        assert matcher.validate(tokens) == num, tokens
        passed = list(itertools.takewhile(matcher.accept, tokens))
        assert len(passed) == num == matcher.num_tokens
        matcher.fill_bitmask(bitmask)
        allowed = set(ids_from_bitmask(bitmask[0]).tolist())
        assert allowed == {token for token in range(WORLD.size) if matcher.fork().accept(token)}
        assert (9 in allowed) is matcher.is_accepting
        if not matcher.is_terminated:
            rest = matcher.completion()
            twin = matcher.fork()
            assert all(map(twin.accept, rest)) and twin.is_accepting
            for token in allowed - {9}:
                twin = matcher.fork()
                assert twin.accept(token)
                for budget in range(8):
                    ends = matcher.can_end_within(budget, token)
                    assert ends is (len(twin.completion()) <= budget), (tokens, token, budget)
        num_cut += matcher._second is not None
        matcher.rollback(num)
        assert matcher.num_tokens == 0
    assert num_cut > 5


def test_forced_tokens_end_at_the_cut() -> None:
    matcher = cut(1, True)
    assert matcher.accept(0) and matcher.forced_text() == END + b"1"
    assert matcher.accept(3) and matcher.accept(4) and matcher.is_accepting
    with pytest.raises(ValueError, match="roll back 9"):
        matcher.rollback(9)
    assert matcher.explain("a").is_allowed and not matcher.explain("b").is_allowed


def test_the_limit_counts_tokens_and_not_characters() -> None:
    """The control: equal texts of other tokens go on in other ways."""
    several, single = cut(2, True), cut(2, True)
    assert several.accept(5) and several.accept(6) and single.accept(0)
    assert several.validate([0]) == 0 and single.validate([0]) == 1
