"""Emptiness of string languages by characters, against the search by bytes and against counting texts."""

import random

import pytest

from decodekit.constraints.json_schema.strings import character_search, patterns, text
from decodekit.constraints.json_schema.strings.character_derivatives import row
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language import node as nodes
from decodekit.constraints.language.node import Node
from decodekit.constraints.work_budget import Unfinished
from decodekit.errors import ResourceLimitError
from tests.sizes import sized

PATTERNS = [
    "^a*$", "a", "[^a]", "^[ab]{2,4}$", "^(a|bc)*$", "(?=.*b)a", "^(?!ab)", r"\\", '"', r"^[\u0000-\u001f]$", "é|ü",
    r"[\u0800-\uffff]", "^.{3}$", r"\bab\b", "^a(b|c|de)f?$", r"\d+-", "😀",
    "^(a|b|cd)$", r"^[^\x00-\x7f]+$", "(?<!a)b",
]  # fmt: skip
LANGUAGES = [
    *(patterns.searched(pattern, at="#").texts for pattern in PATTERNS),
    *(text.words(["a", "ab", "é", '"x', "\\"]), text.words(["b", "😀"])),
    *(text.length(2, 3), text.length(0, 1), text.length(5, None)),
]
BEGINNINGS = [b"", b"", b"", b"a", b"ab", b"\\", b"\\u00", b"\xc3", b"\xf0\x9f"]


def forget_emptiness() -> None:
    nodes._emptiness.clear()
    for node in ir._interned.values():
        if isinstance(node, ir._Interned):
            node._emptiness = None


def by_bytes(node: Node, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(nodes, "deciders", [])
        forget_emptiness()
        answer = node.is_empty
        forget_emptiness()
    return answer


def random_language(rng: random.Random) -> Node:
    languages = rng.sample(LANGUAGES, rng.randint(1, 4))
    return text.meet(*(node if rng.random() < 0.6 else text.without(text.BODY, node) for node in languages))


@sized("num_languages", 200, slow=2000)
def test_against_the_search_by_bytes(num_languages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    answers: list[bool] = []
    for _ in range(num_languages):
        node = random_language(rng)
        for byte in rng.choice(BEGINNINGS):
            node = node.derivative(byte)
        if not isinstance(node, ir.Both):
            continue
        fast = character_search.is_empty(node)
        if fast is None:
            continue
        try:
            assert fast == by_bytes(node, monkeypatch), node
        except ResourceLimitError:
            continue
        answers.append(fast)
    assert answers.count(True) > 20 and answers.count(False) > 20


def with_bounds(monkeypatch: pytest.MonkeyPatch, node: Node, **bounds: int) -> bool | None:
    """The answer of a search that remembers nothing, with other bounds."""
    character_search.forget()
    with monkeypatch.context() as patch:
        for name, bound in bounds.items():
            patch.setattr(character_search, name, bound)
        return character_search.is_empty(node)


def test_options_that_are_intersections(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(8)
    answers: list[bool] = []
    for _ in range(150):
        options = [random_language(rng) for _ in range(rng.randint(2, 3))]
        node = ir.both(ir.choice(*options), *(random_language(rng) for _ in range(rng.randint(1, 2))))
        slow = with_bounds(monkeypatch, node, MAX_ALTERNATIVES=1)
        assert with_bounds(monkeypatch, node) is slow, node
        if len(character_search._alternatives(node)) > 1 and slow is not None:
            answers.append(slow)
    assert answers.count(True) > 10 and answers.count(False) > 10


def test_a_length_that_a_pattern_asks_for() -> None:
    """The length of `.{60}` is no condition of a state."""
    many = [patterns.searched(pattern, at="#").texts for pattern in ("ab1", "1.*2", r"^\w+$")]
    for number, is_empty in ((3, True), (60, False), (2000, False)):  # ab12 is the shortest
        node = text.meet(patterns.searched(f"^.{{{number}}}$", at="#").texts, *many)
        assert character_search.is_empty(node) is is_empty


def test_what_begins_inside_a_character_is_left_to_bytes() -> None:
    node = text.meet(patterns.searched("^[a-cé]", at="#").texts, patterns.searched("[^b]$", at="#").texts)
    assert character_search.is_empty(node) is False
    for beginning in (b"\\", b"\\u", b"\\u00", b"\\u006", b"\xc3"):
        inside = node
        for byte in beginning:
            inside = inside.derivative(byte)
        assert character_search.is_empty(inside) is None and not inside.is_empty
    assert (
        character_search.is_empty(ir.both(ir.repeat(ir.byte_set(b"ab")), ir.complement(ir.literal(b"a")))) is None
    )  # no JSON
    assert character_search.is_empty(ir.complement(ir.literal(b"a"))) is None


ONE_SPELLING = ir.repeat(
    ir.choice(
        utf8.charset([(0x20, 0x21), (0x23, 0x5B), (0x5D, utf8.MAX_CODE_POINT)]),
        *map(ir.literal, (b'\\"', b"\\\\")),
        ir.concat(ir.literal(b"\\u00"), ir.byte_set(b"01"), ir.byte_set(b"0123456789abcdef")),
    )
)


def count_by_bytes(body: Node, limit: int) -> int:
    """One spelling of each text, level by level: the number of ways into each state after k bytes."""
    total = 0
    frontier = {ir.both(body, ONE_SPELLING): 1}
    while frontier and total < limit:
        following: dict[Node, int] = {}
        for node, num_ways in frontier.items():
            total += num_ways if node.is_nullable else 0
            for mask, target in node.transitions():
                if not target.is_empty:
                    if target is node:  # round and round: without end
                        return limit
                    following[target] = following.get(target, 0) + num_ways * mask.bit_count()
        frontier = following
    return min(total, limit)


def test_counting() -> None:
    rng = random.Random(7)
    num_finite = 0
    for _ in range(150):
        node, limit = random_language(rng), rng.choice([1, 5, 1000])
        num_texts = character_search.num_texts(node, limit)
        assert num_texts == count_by_bytes(node, limit), node
        num_finite += 0 < num_texts < limit
    assert num_finite > 5


@pytest.mark.parametrize(
    ("asked", "excluded", "empty"),
    [
        (["^[a-z]+$", "^.{40}$"], ["^a", "[b-z]$"], False),
        (["^[a-z]+$", "^.{40}$", "^a"], ["[a-z]$"], True),
        (["^(a|b)*a(a|b){6}$", "^(a|b)*b(a|b){6}$"], [], True),
        (["aa", "bb", "cc", "^[abc]{5}$"], [], True),
        (["aa", "bb", "cc", "^[abc]{6}$"], [], False),
        ([r"^(?!.*://)(?=.{1,255}$)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)$"], ["z$"], False),
        (['^"', r"\\$"], ["^.{0,2}$"], False),
        (["^\u0001?$"], ["^$", "[^a]"], True),
    ],
)
def test_by_hand(asked: list[str], excluded: list[str], empty: bool) -> None:
    node = text.BODY
    for pattern in asked:
        node = text.meet(node, patterns.searched(pattern, at="#").texts)
    for pattern in excluded:
        node = text.without(node, patterns.searched(pattern, at="#").texts)
    assert character_search.is_empty(node) is empty and node.is_empty is empty


def test_bounds_on_the_length() -> None:
    even = patterns.searched("^(..)*$", at="#").texts
    assert character_search.is_empty(text.meet(even, text.length(3, 3))) is True
    assert character_search.is_empty(text.meet(even, text.length(3, 4))) is False
    assert character_search.is_empty(text.meet(even, text.length(10_001, 10_001))) is True
    assert character_search.is_empty(text.meet(even, text.length(10_001, None))) is False
    assert character_search.num_texts(text.meet(text.words(["a", "bb", "cc"]), text.length(2, None)), 10) == 2


def test_what_lost_a_condition_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """All letters somewhere: behind each of them lies a state with one condition less, of 2**16 states."""
    letters = "abcdefghijklmnop"
    node = text.meet(*(patterns.searched(letter, at="#").texts for letter in letters))
    assert character_search.is_empty(node) is False

    def search(*asked: object) -> bool:
        raise RecursionError("a search")

    monkeypatch.setattr(character_search, "_dive", search)
    answers = [character_search.is_empty(node.derivative(ord(letter))) for letter in letters]
    assert answers == [False] * len(letters)
    with pytest.raises(RecursionError, match="a search"):  # one condition more is another question
        character_search.is_empty(text.meet(node, patterns.searched("q", at="#").texts))


def lengths(steps: tuple[int, ...], most: int) -> set[int]:
    """Sums of the steps, up to a bound."""
    found = {0}
    for length in range(1, most + 1):
        if any(length - step in found for step in steps):
            found.add(length)
    return found


def test_long_texts() -> None:
    """Lengths that are sums of steps, in common to several patterns: against the sums themselves."""
    rng = random.Random(11)
    answers: list[bool] = []
    for _ in range(120):
        many = [tuple(rng.sample(range(2, 9), rng.randint(1, 2))) for _ in range(rng.randint(1, 3))]
        least = rng.choice([3, 40, 700, 3000])
        most = least + rng.choice([0, 1, 2, 5])
        node = text.length(least, most)
        for steps in many:
            body = "|".join(f"[a-c]{{{step}}}" for step in steps)
            node = text.meet(node, patterns.searched(f"^({body})*$", at="#").texts)
        expected = not any(all(length in lengths(steps, most) for steps in many) for length in range(least, most + 1))
        assert character_search.is_empty(node) == expected, (many, least, most)
        answers.append(expected)
    assert answers.count(True) > 20 and answers.count(False) > 20


@pytest.mark.parametrize(
    ("pattern", "least", "most", "empty"),
    [
        ("^a*$", 10**12, None, False),
        ("^(aa)*$", 10**12 + 1, None, False),
        ("^(aa)*$", 10**12 + 1, 10**12 + 1, True),
        ("^(aa)*$", 10**12 + 1, 10**12 + 2, False),
        ("^b?(a{7})*$", 10**9 + 3, 10**9 + 7, True),  # 10**9 + 1 is a multiple of 7
        ("^b?(a{7})*$", 10**9 + 3, 10**9 + 8, False),
        ("^a{0,1000}$", 1001, None, True),
        ("^(a|b){900}(c{50})*$", 10**9, 10**9, False),
    ],
)
def test_texts_that_go_round(pattern: str, least: int, most: int | None, empty: bool) -> None:
    assert (
        character_search.is_empty(text.meet(patterns.searched(pattern, at="#").texts, text.length(least, most)))
        is empty
    )


def test_patterns_against_each_other() -> None:
    """Sets of 2**n remainders, but a text is near: the first letter that all patterns can use is taken at once."""
    asked = [patterns.searched(f"^(a|b)*a(a|b){{{n}}}$", at="#").texts for n in range(5, 18)]
    work = character_search.SearchWork()
    state, least, most = character_search._start([text.meet(*asked)])
    for letter in "abbabaaabbbbabababba":  # and from wherever one stands, whatever text was found before
        character_search._text_lengths.clear()
        assert state is not None and character_search._has_word(state, least, most, work)
        state = after_letter(state, letter)
    assert 10 < work.num_states < 600


def after_letter(state: character_search._State, letter: str) -> character_search._State | None:
    """Where a state leads by one letter, each condition by itself."""
    targets = [next((t for low, high, t in row(node) if low <= ord(letter) <= high), None) for node in [*state[0]]]
    return character_search._after(state, tuple(targets))


def test_too_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(character_search, "MAX_STATES", 50)
    node = text.meet(
        patterns.searched("^[ab]*a[ab]{8}$", at="#").texts, patterns.searched("^[ab]*b[ab]{8}$", at="#").texts
    )
    with pytest.raises(ResourceLimitError, match="50 states"):
        character_search.is_empty(node)
    monkeypatch.setattr(character_search, "MAX_STATES", 10_000)
    monkeypatch.setattr(character_search, "MAX_PARTS", 500)
    with pytest.raises(ResourceLimitError, match="states are needed"):
        character_search.is_empty(node)
    monkeypatch.setattr(character_search, "MAX_PARTS", 10_000)
    assert character_search.is_empty(node)


def test_searches_that_wait_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than there is room for, and those before it begin anew."""

    def unfinished() -> None:
        raise Unfinished

    monkeypatch.setattr(character_search, "MAX_BEGUN", 2)
    monkeypatch.setattr(character_search, "spend", unfinished)
    monkeypatch.setattr(character_search, "_begun", {})
    waiting = []
    for number in range(5):
        with pytest.raises(Unfinished):
            character_search._resumed(number, (nothing for nothing in ()))
        waiting.append([*character_search._begun])
    assert waiting == [[0], [0, 1], [2], [2, 3], [4]]


def test_the_rests_of_a_text_that_was_found_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows the text asks for each of them next, and would search for the same end each time."""
    node = text.meet(*(patterns.searched(pattern, at="#").texts for pattern in ("^(a|b)*a(a|b){9}$", "b(a|b){4}$")))
    character_search.forget()
    assert character_search.is_empty(node) is False
    state = character_search._start([*getattr(node, "operands", ())])[0]
    assert state is not None
    num_known = 0
    while not character_search._is_end(state):
        length = character_search._text_lengths[state]
        assert character_search._known_answer(state, 0, length) and character_search._known_answer(state, length, None)
        assert not character_search._known_answer(state, length + 1, None)  # perhaps there is a longer one, too
        state = next(
            after
            for after in character_search._following(state)
            if character_search._text_lengths.get(after) == length - 1
        )
        num_known += 1
    assert num_known >= 10
    character_search.forget()
    assert character_search._known_answer(state, 0, None) is None
