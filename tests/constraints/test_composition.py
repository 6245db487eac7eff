"""Compositions: their languages by example, the division of a text by brute force, guards, refusals."""

from __future__ import annotations

import itertools
import pickle
import random
import re
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodekit as dk
from decodekit.constraints import Choices, Constraint, Guarded, JsonSchema, Regex, as_constraint, compile
from decodekit.constraints.composition import split
from decodekit.constraints.composition.combinators import Concat, Many, OneOf, Optional, Text
from decodekit.constraints.composition.composed import Composed, Special
from decodekit.constraints.composition.free_text import endings_before, free_text
from decodekit.constraints.composition.split import Split
from decodekit.constraints.composition.tags import Reasoned, Tag, Tagged, TagValue
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.grammar.rules import Alternatives, Concatenated, Expression, Inline, Repeated, Terminal
from decodekit.constraints.language import ir
from decodekit.constraints.tool_calls import tools
from decodekit.errors import InvalidConstraintError
from decodekit.testing import check_language, check_matcher
from decodekit.vocabulary import Vocabulary
from tests.reference import composition as reference
from tests.reference import masks
from tests.reference.vocabularies import adversarial_tokens, adversarial_vocabulary, byte_vocabulary
from tests.sizes import few


class Invoice(pydantic.BaseModel):
    number: str
    total: float


TAGS = Tagged(Tag("<b>", Text(excludes=["</b>"]), "</b>"), Tag("<i>", {"type": "integer"}, "</i>"))
FUNCTIONS = Tagged(
    Tag("<f=a>", {"type": "integer"}, "</f>"), Tag("<f=ab>", Regex("[xy]*"), "</f>"), triggers=["<f="], max_tags=2
)

LANGUAGES: dict[str, tuple[Constraint, dict[str, object], list[str | bytes]]] = {
    "concat": (
        Concat("Answer: ", Regex(r"\d+"), ", because ", Text()),
        {
            "Answer: 12, because é😀": ("12", "é😀"),
            "Answer: 1, because ": ("1", ""),
            "Answer: 1, because , because": ("1", ", because"),
        },
        ["Answer: , because", "Answer: 1", "answer: 1, because x", b"Answer: 1, because \xed\xa0\x80"],
    ),
    "one of": (
        OneOf("none", Regex("[a-z]+"), JsonSchema({"type": "integer"}), Invoice),
        {"none": "none", "nones": "nones", "12": 12, '{"number":"a","total":1}': Invoice(number="a", total=1)},
        ["", "None", "1.5", '{"number":"a"}'],
    ),
    "the first option wins": (OneOf(Regex("a+"), Choices(["aa"]), {"const": 1}, "1"), {"aa": "aa", "1": 1}, ["b"]),
    "many": (
        Many(Regex("[ab]+"), min=1, max=3, separator=", "),
        {"a": ["a"], "a, ab": ["a", "ab"], "a, b, b": ["a", "b", "b"]},
        ["", "a, ", ", a", "a,b", "a, a, a, a"],
    ),
    "many in short items": (Many(Regex("[ab]+")), {"": [], "aab": ["a", "a", "b"]}, ["c"]),
    "many of none": (Many("a", max=0), {"": []}, ["a"]),
    "two at least": (Many(Regex("a*"), min=2, max=2, separator="-"), {"-": ["", ""], "a-aa": ["a", "aa"]}, ["", "a"]),
    "many in many": (
        Many(Many(Regex("[0-9]"), min=1, separator=","), min=1, separator=";"),
        {"1,2;3": [["1", "2"], ["3"]]},
        ["1,;2", "1;"],
    ),
    "optional": (
        Concat(Optional("+"), Regex("[0-9]+"), Optional({"const": "kg"})),
        {"+1": ("+", "1", None), '12"kg"': (None, "12", "kg")},
        ["+", "++1", "1kg"],
    ),
    "text": (Text(), {"": "", "any\n\x00\x7f text 😀": "any\n\x00\x7f text 😀"}, [b"\xff", b"\xc3", b"\xed\xa0\x80"]),
    "text of some length": (Text(min_chars=2, max_chars=3), {"éé": "éé", "😀😀😀": "😀😀😀"}, ["", "é", "abcd"]),
    "text until": (Text(until="aba"), {"aba": "", "abbaba": "abb", "xaba": "x"}, ["", "abab", "ababa", "abaaba"]),
    "text until, bounded": (Text(until="ab", max_chars=2), {"ab": "", "aab": "a", "éxab": "éx"}, ["xxxab", "xxaab"]),
    "text that excludes": (Text(excludes=["é", "</b>"]), {"</b": "</b", "è": "è"}, ["é", "a</b>", "</b>x"]),
    "tags": (
        TAGS,
        {
            "": (),
            "<": ("<",),
            "<b></b>": (TagValue("<b>", ""),),
            "so<b>x<i></b><i>12</i>y": ("so", TagValue("<b>", "x<i>"), TagValue("<i>", 12), "y"),
        },
        ["<b>", "a<b>", "<b>x</b", "<i>a</i>", "<i>1</i><b>"],
    ),
    "triggers": (
        FUNCTIONS,
        {"<f": ("<f",), "<f=a>1</f>": (TagValue("<f=a>", 1),), "<<f=ab>x</f>": ("<", TagValue("<f=ab>", "x"))},
        ["<f=", "<f=b>1</f>", "<f=a>x</f>", "<f=a>1</f>" * 3, "<f=a>1</f>" * 2 + "<f="],
    ),
    "a tag at least": (
        Tagged(Tag("[", Regex("x")), min_tags=1),
        {"a[x": ("a", TagValue("[", "x")), "[xb[x": (TagValue("[", "x"), "b", TagValue("[", "x"))},
        ["", "a", "["],
    ),
    "reasoned": (
        Reasoned(Invoice),
        {
            '<think>a {} b</think>\n\n{"number":"1","total":2}': ("a {} b", Invoice(number="1", total=2)),
            '<think></think>{"number":"1","total":2}': ("", Invoice(number="1", total=2)),
        },
        ['{"number":"1","total":2}', "<think></think>", '<think></think>{"number":"1","total":2}\n', "<think>"],
    ),
    "reasoning that was begun": (
        Reasoned(Text(), begin="", max_chars=3),
        {"ab</think> x": ("ab", "x"), "</think>": ("", ""), "</</think>\n</think>": ("</", "</think>")},
        ["abcd</think>", "ab"],
    ),
}


@few(4)
@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_and_values(name: str) -> None:
    constraint, values, rejects = LANGUAGES[name]
    check_language(constraint, accepts=values, rejects=rejects)
    for text, value in values.items():
        assert constraint.parse(text) == value
    for text in rejects:
        if isinstance(text, str):
            with pytest.raises(ValueError, match="is no text of"):
                constraint.parse(text)


@pytest.mark.parametrize("name", LANGUAGES)
def test_values_of_constraints(name: str) -> None:
    constraint = LANGUAGES[name][0]
    copy = pickle.loads(pickle.dumps(constraint))
    assert copy == constraint and hash(copy) == hash(constraint) and copy.root() is not None
    assert all(other != constraint for key, (other, *_) in LANGUAGES.items() if key != name)


@pytest.mark.parametrize("name", ["concat", "tags", "reasoned", "text until"])
def test_matchers_keep_the_laws(name: str) -> None:
    vocabulary = adversarial_vocabulary()
    check_matcher(compile(LANGUAGES[name][0], vocabulary).matcher(), vocabulary, num_tokens=12)


@few(1)
@pytest.mark.parametrize("name", ["text of some length", "text until, bounded", "triggers", "reasoning that was begun"])
def test_masks_are_those_of_trying_every_token(name: str) -> None:
    """Along every text: counts that saturate, half characters and triggers in tokens make no difference."""
    constraint, texts, _ = LANGUAGES[name]
    vocabulary = byte_vocabulary([*adversarial_tokens(), b"<f=", b"f=a>", b"</think>", b"k> ", b"xab", b"baba", b"<<f"])
    bitmask = allocate_bitmask(1, vocabulary.size)
    for text in texts:
        matcher = compile(constraint, vocabulary).matcher()
        for end, byte in enumerate([*text.encode(), None]):
            matcher.fill_bitmask(bitmask)
            expected = masks.allowed(constraint.root(), text.encode()[:end], vocabulary)
            assert ids_from_bitmask(bitmask[0]).tolist() == expected, text.encode()[:end]
            assert byte is None or matcher.accept(byte)


def test_masks_where_counts_come_into_sight() -> None:
    """A count is out of sight as long as no token is longer than what is left of it, and then it is not."""
    text = Concat(Text(until="ab", min_chars=14, max_chars=24), Regex("!?"))
    vocabulary = byte_vocabulary([b"x" * 9, "é€".encode(), b"xab", b"ab!", b"aab", b"\xa9x", "éx".encode() * 3])
    longest = max(len(data) for data in vocabulary.token_bytes if data)
    bitmask = allocate_bitmask(1, vocabulary.size)
    matcher = compile(text, vocabulary).matcher()
    read = "éx" * 12
    for end, byte in enumerate(read.encode()):
        matcher.fill_bitmask(bitmask)
        expected = masks.allowed(text.root(), read.encode()[:end], vocabulary)
        assert ids_from_bitmask(bitmask[0]).tolist() == expected, end
        assert matcher.accept(byte)
    assert longest < 14 and not matcher.accept(ord("x")) and matcher.accept(ord("a")) and matcher.accept(ord("b"))


def test_a_refusal_says_how_far_the_text_goes_along() -> None:
    with pytest.raises(ValueError, match=re.escape("it goes along up to 'a, b'")):
        Many(Regex("[ab]+"), separator=", ").parse("a, bc")


# -- free text

WORDS = ("aba", "bé", "éé", "ab", "a", "aabb", "éa")


@pytest.mark.parametrize("seed", range(12))
def test_free_text_is_what_it_says(seed: int) -> None:
    """All texts of up to five characters, out of three, against looking at the text."""
    rng = random.Random(seed)
    excludes, not_ending = rng.sample(WORDS, rng.randint(0, 2)), rng.sample(WORDS, rng.randint(0, 2))
    low = rng.randint(0, 2)
    high = rng.choice([None, low, low + 2])
    node = free_text(excludes, not_ending, low, high)
    found = {True: 0, False: 0}
    for length in range(6):
        for characters in itertools.product("abé", repeat=length):
            text = "".join(characters)
            expected = reference.is_free_text(text, excludes, not_ending, low, high)
            assert ir.matches(node, text.encode()) is expected, (text, excludes, not_ending, low, high)
            found[expected] += 1
    assert found[False] > 0 or (low == 0 and high is None and not excludes and not not_ending)


def test_what_is_alive_in_free_text_can_be_completed() -> None:
    """Also where few characters are left and the text must not end as it stands: é excluded, half of it read."""
    node = free_text(["é", "xy"], ["b", "à"], 1, 2)
    agenda, seen = [(node, b"")], set()
    while agenda:
        state, read = agenda.pop()
        if state in seen:
            continue
        seen.add(state)
        assert state.is_nullable or state.transitions(), read
        agenda += [(target, read + bytes([ir.bytes_of(mask)[0]])) for mask, target in state.transitions()]
    assert len(seen) > 20


@pytest.mark.parametrize("limit", [1, 3])
def test_large_counts_of_free_text_are_one_for_who_looks_at_few_bytes(limit: int) -> None:
    large = [free_text(["ab"], (), low, high) for low, high in ((limit + 1, None), (limit + 5, 90), (30, limit + 40))]
    assert len({node.saturated(limit) for node in large}) == 1
    for node in [*large, free_text(["ab"], (), 1, 2), free_text(["ab"], (), limit, limit)]:
        saturated = node.saturated(limit)
        for length in range(limit + 1):
            for data in itertools.product("abé".encode() + b"c", repeat=length):
                assert ir.matches(node, bytes(data)) == ir.matches(saturated, bytes(data))
    assert free_text(["ab"]).saturated(limit) == free_text(["ab"])


@pytest.mark.parametrize("words", [["aba"], ["abab", "ba"], ["aab", "bb"], ["a"]])
def test_the_word_behind_free_text_is_the_first_to_be_found(words: list[str]) -> None:
    """Of all texts, those that are cut at a word are exactly those in which the first word is complete at the end."""
    for word in words:
        if any(other != word and other in word for other in words):
            continue
        node = ir.concat(free_text(words, endings_before(word, words)), ir.literal(word.encode()))
        for length in range(8):
            for characters in itertools.product("ab", repeat=length):
                text = "".join(characters)
                expected = text.endswith(word) and reference.first_occurrence(text, words) == len(text)
                assert ir.matches(node, text.encode()) is expected, (word, text)


@pytest.mark.slow
@pytest.mark.left_out
@settings(max_examples=60, deadline=None)
@given(st.text().filter(lambda text: "<b>" not in text and "<i>" not in text))
def test_any_text_without_a_trigger_is_free(text: str) -> None:
    matcher = compile(TAGS, byte_vocabulary()).matcher()
    assert all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting
    assert TAGS.parse(text) == ((text,) if text else ())
    tokens = [*text.encode(), *b"<i>7</i>"]
    assert compile(TAGS, byte_vocabulary()).matcher().validate(tokens) == len(tokens)
    assert TAGS.parse(f"{text}<i>7</i>") == ((text,) if text else ()) + (TagValue("<i>", 7),)


# -- the division of a text

LEAVES: list[Expression] = [
    Terminal(ir.literal(b"a")),
    Terminal(ir.literal(b"ab")),
    Terminal(ir.repeat(ir.byte_set(b"ab"))),
    Terminal(ir.EPSILON),
    Terminal(free_text(["b"])),
    Inline(Regex("b+a?")),
    Inline(Choices(["a", "ba", ""])),
    Inline(Concat("a", Optional(Regex("b")))),
]


def random_expression(rng: random.Random, depth: int) -> Expression:
    kind = rng.randrange(4) if depth else 3
    if kind == 0:
        return Concatenated(tuple(random_expression(rng, depth - 1) for _ in range(rng.randint(0, 3))))
    if kind == 1:
        return Alternatives(tuple(random_expression(rng, depth - 1) for _ in range(rng.randint(1, 3))))
    if kind == 2:
        low = rng.randint(0, 2)
        return Repeated(random_expression(rng, depth - 1), low, rng.choice([None, low, low + 1, 3]))
    return rng.choice(LEAVES)


TEXTS = ["".join(characters) for length in range(6) for characters in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize("seed", range(40))
def test_the_division_is_the_first_of_all(seed: int) -> None:
    rng = random.Random(seed)
    expression = random_expression(rng, 3)
    for text in rng.sample(TEXTS, 25):
        expected = reference.first_division(expression, text)
        split = Split(expression, text.encode())
        assert split.is_whole == bool(expected), (expression, text)
        if expected:
            assert split.value() == expected[0], (expression, text)


def test_the_random_expressions_divide_texts_and_refuse_some() -> None:
    """The property above says something: both answers are frequent, and many texts divide in several ways."""
    num_whole = num_refused = num_ambiguous = 0
    for seed in range(40):
        rng = random.Random(seed)
        expression = random_expression(rng, 3)
        for text in rng.sample(TEXTS, 25):
            ways = [
                value for end, value in itertools.islice(reference.divisions(expression, text), 500) if end == len(text)
            ]
            num_whole += bool(ways)
            num_refused += not ways
            num_ambiguous += any(way != ways[0] for way in ways)
    assert num_whole > 100 and num_refused > 100 and num_ambiguous > 30


@pytest.mark.parametrize(
    "text", ["", "I look it up.", "1 < 2 and <tool", '<tool_call>{"name":"f","arguments":{}}</tool_call>']
)
def test_free_text_is_not_tried_to_end_at_each_character(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at of a text that may call tools, or have tags, is the same behind a long text."""
    made = list[object]()

    class Counted(split.Leaf):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(split, "Leaf", Counted)
    rules: list[Composed] = [tools([{"name": "f"}], "hermes"), Concat(Text(), OneOf("<a>", "<b>"), Regex("[xy]*"))]
    for rule, ending in zip(rules, (text, f"{text}<b>xyx"), strict=True):
        numbers = []
        for before in ("", "word " * 400):
            made.clear()
            assert str(rule.parse(before + ending)).replace("word ", "") == str(rule.parse(ending))
            numbers.append(len(made))
        assert numbers[1] <= numbers[0] + 2, numbers


@pytest.mark.timeout(20)
def test_many_ways_to_divide_take_no_more_time() -> None:
    texts = Many(Many(Regex("a*"), max=3))
    with pytest.raises(ValueError, match="goes along"):
        texts.parse("a" * 300 + "b")
    assert Concat(Text(), Text(), "b").parse("a" * 300 + "b") == ("", "a" * 300)
    assert Many(Text(), max=10**9).parse("") == []


# -- guards

INCREASING = Guarded({"type": "array", "items": {"type": "integer"}}, lambda items: items == sorted(items) or "falls")
UNIQUE = JsonSchema({"type": "array", "uniqueItems": True})


def test_guards_of_parts_are_asked_for_their_part() -> None:
    both = Concat("a", INCREASING, "b", UNIQUE)
    check_language(
        both,
        accepts=["a[1,2]b[1,2]", "a[]b[]", 'a[1]b[{"a":1},{"a":2}]'],
        rejects=["a[2,1]b[1]", 'a[1]b[{"a":1},{"a":1.0}]', "a[2,1]b[1,1]"],
    )
    guard = both.guard()
    assert guard is not None and guard.refuses(b"a[1]b[1]") is None
    refusal = guard.refuses(b"a[2,1]b[1]")
    assert refusal is not None and refusal.message == "falls" and refusal.keep == len("a[2,1]")
    assert Concat("a", UNIQUE.schema).guard() is not None and Concat("a", Text()).guard() is None


def test_a_division_that_the_guards_accept_is_enough() -> None:
    short = Guarded(Regex("a+"), lambda text: len(text) == 3 or "not three")
    two = Concat(short, Regex("a*"))
    check_language(two, accepts=["aaa", "aaaa"], rejects=["a", "aa", "b"])
    assert two.parse("aaaaa") == ("aaa", "aa")
    check_language(OneOf(short, Choices(["aa"])), accepts=["aa", "aaa"], rejects=["a", "aaaa"])


def test_functions_see_the_values_of_compositions() -> None:
    rising = Guarded(Many(Regex("[0-9]"), min=1, separator=","), lambda items: items == sorted(items))
    check_language(rising, accepts=["1", "1,2,2"], rejects=["2,1", "", "1,"])
    check_language(Concat(rising, "!"), accepts=["1,2!"], rejects=["2,1!", "1"])
    assert Concat(rising, "!").parse("1,2!") == (["1", "2"],)


# -- special tokens

SPECIAL = Vocabulary(
    [*(bytes((b,)) for b in range(256)), None, None, None, b"<think>", b"ab"],
    [256],
    None,
    {"<think>": 257, "</think>": 258},
)


def test_special_tokens_are_matched_by_id_and_parsed_by_name() -> None:
    thinking = Reasoned(Choices(["ab", "b"]), begin=Special("<think>"), end=Special("</think>"))
    matcher = compile(thinking, SPECIAL).matcher()
    bitmask = allocate_bitmask(1, SPECIAL.size)
    matcher.fill_bitmask(bitmask)
    assert ids_from_bitmask(bitmask[0]).tolist() == [9, 10, 13, 32, 257]
    assert not matcher.accept(259) and not matcher.accept(ord("<"))  # the same characters are not the token
    tokens = [257, *b"so <think> ", 258, ord("\n"), 260]
    assert matcher.validate(tokens) == len(tokens)
    assert all(map(matcher.accept, tokens)) and matcher.is_accepting and not matcher.can_continue
    check_matcher(compile(thinking, SPECIAL).matcher(), SPECIAL, num_tokens=8)
    assert thinking.parse("<think>so <think> </think>\nab") == ("so <think> ", "ab")
    tagged = Tagged(Tag(Special("<think>"), Text(excludes=["</think>"]), Special("</think>")))
    assert tagged.parse("a<think>b</think>") == ("a", TagValue("<think>", "b"))
    assert compile(tagged, SPECIAL).matcher().validate([97, 257, 98, 258, 257, 258, 257, 257]) == 7
    assert compile(tagged, SPECIAL).matcher().validate([97, 259]) == 1  # free text does not hold a name either


def test_reasoning_between_several_markers_and_behind_blanks() -> None:
    """GLM 4.5 writes a line break before ``<think>``; gpt-oss ends its reasoning with several tokens."""
    check_language(
        Reasoned(Choices(["1"])),
        accepts=["<think></think>1", "\n<think>x</think>\n1", "  <think>\n</think>1"],
        rejects=["1", "\n1", "x<think></think>1", "\n" * 17 + "<think></think>1"],
    )
    assert Reasoned(Choices(["1"])).parse("\n<think> x</think>\n1") == (" x", "1")
    check_language(Reasoned(Choices(["1"]), begin=""), accepts=["</think>1", "\n</think> 1"], rejects=["1"])
    marks = Special("</think>"), "so", Special("<think>")
    answer = Reasoned(Choices(["ab"]), begin=(Special("<think>"), "ab"), end=list(marks))
    assert answer == Reasoned(Choices(["ab"]), begin=(Special("<think>"), "ab"), end=marks) and hash(answer)
    matcher = compile(answer, SPECIAL).matcher()
    tokens = [257, 260, ord("x"), 258, *b"so", 257, 260]
    assert matcher.validate(tokens) == len(tokens)
    assert matcher.validate([257, 260, 258, *b"x"]) == 3
    assert answer.parse("<think>abx</think>so<think>ab") == ("x", "ab")


def test_guards_are_asked_where_special_tokens_stand_between_parts() -> None:
    """The guard sees them by name."""
    thinking = Reasoned(INCREASING, begin=Special("<think>"), end=Special("</think>"))
    grammar = compile(thinking, SPECIAL)
    for value, is_accepted in ((b"[1,2]", True), (b"[2,1]", False)):
        matcher = grammar.matcher()
        assert all(map(matcher.accept, [257, *b"so", 258, *value[:-1]]))
        assert matcher.accept(value[-1]) is is_accepted
    guard = thinking.guard()
    assert guard is not None and guard.refuses(b"<think>so</think>[1]") is None
    refusal = guard.refuses(b"<think>so</think>[2,1]")
    assert refusal is not None and refusal.message == "falls"


def test_completions_write_special_tokens() -> None:
    thinking = Reasoned("x", begin=Special("<think>"), end=Special("</think>"))
    assert compile(thinking, SPECIAL).matcher().completion() == (257, 258, ord("x"))


# -- what is taken, and refusals

STRUCTURAL = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def test_structural_tags_are_taken() -> None:
    constraint = as_constraint(STRUCTURAL)
    assert isinstance(constraint, Tagged)
    check_language(constraint, accepts=["", "a<f=a>1</f>b<f=b>true</f>"], rejects=["<f=", "<f=b>1</f>"])
    assert constraint.parse("a<f=b>true</f>") == ("a", TagValue("<f=b>", True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"structures": []}, '"structures" must be a list'),
        ({"triggers": "<f="}, '"triggers" must be a list'),
        ({"triggers": ["<g="]}, "no tag begins with"),
        ({"structures": [{"begin": "<f="}]}, "structures/0"),
        ({"format": {}}, "'format' is not known"),
    ],
    ids=str,
)
def test_structural_tags_that_cannot_be_read(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConstraintError, match=message):
        as_constraint({**STRUCTURAL, **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Concat, "Concat of nothing"),
        (lambda: Concat("a", 3.5), "float is no constraint"),
        (lambda: Concat("\ud800"), "surrogate"),
        (lambda: OneOf(), "OneOf of nothing"),
        (lambda: Many("a", min=2, max=1), "at least 2 and at most 1"),
        (lambda: Many("a", min=-1), "min=-1 is no number"),
        (lambda: Many("a", max=True), "max=True is no number"),
        (lambda: Text(excludes="ab"), "several texts"),
        (lambda: Text(excludes=[""]), "empty text"),
        (lambda: Text(until="abc", excludes=["b"]), "'abc' holds the excluded 'b'"),
        (lambda: Text(min_chars=3, max_chars=2), "at least 3"),
        (lambda: Special(""), "no name"),
        (lambda: Tagged(), "without tags"),
        (lambda: Tagged("<b>"), "is no tag"),  # type: ignore[arg-type]
        (lambda: Tag("", Text()), "empty text"),
        (lambda: Tagged(Tag("<b>", Text()), Tag("<b>", Text())), "two tags begin with"),
        (lambda: Tagged(Tag("<b>", Text()), Tag("<b>c", Text())), "never comes"),
        (lambda: Tagged(Tag("<b>", Text()), triggers=["<b>", "<c>"]), "no tag begins with the trigger '<c>'"),
        (lambda: Tagged(Tag("<b>", Text()), Tag("<c>", Text()), triggers=["<b"]), "'<c>' begins with no trigger"),
        (lambda: Tagged(Tag("<b>", Text()), triggers="<b>"), "several texts"),
        (lambda: Reasoned(Text(), end=""), "empty text"),
        (lambda: Reasoned(Text(), end=[]), "no text at all"),
        (lambda: Reasoned(Text(), begin=["<a>", ""]), "empty text"),
        (lambda: Reasoned(3.5), "float is no constraint"),
        (lambda: Reasoned(Text(), max_chars=-1), "max_chars=-1"),
    ],
)
def test_refusals(make: type[Composed], message: str) -> None:
    with pytest.raises(InvalidConstraintError, match=message):
        make()


def test_public_names() -> None:
    for name in ("Concat", "OneOf", "Many", "Optional", "Text", "Special", "Tag", "TagValue", "Tagged", "Reasoned"):
        assert name in dk.__all__ and getattr(dk, name).__module__.startswith("decodekit.constraints.composition")
