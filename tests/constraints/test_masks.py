"""The mask of every state equals brute force over the vocabulary, and matchers obey their laws."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.combinators import Concat
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine import recogniser, token_index
from decodekit.constraints.engine import token_masks as masks_module
from decodekit.constraints.engine.automaton import UInt8Array
from decodekit.constraints.engine.bitmask import allocate_bitmask, bitmask_from_ids, forbid, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching.compiler import CompiledGrammar, compile
from decodekit.constraints.matching.matcher import GrammarMatcher, Matcher
from decodekit.constraints.network import Frame
from decodekit.constraints.regex.regex import Regex
from decodekit.constraints.special import is_text
from decodekit.errors import ResourceLimitError, UnsatisfiableError
from decodekit.vocabulary import Vocabulary
from tests.reference import json_frames, masks
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary, random_vocabulary, tekken_vocabulary
from tests.sizes import few, sized


@dataclass(frozen=True)
class Framed(Constraint):
    """A hand-made network as a constraint."""

    frame: Frame

    def root(self) -> Frame:
        return self.frame

    def parse(self, text: str) -> str:
        return text


CONSTRAINTS: dict[str, Constraint] = {
    "json": Framed(json_frames.Value()),
    "json, two items": Framed(json_frames.Value(2)),
    "ambiguous": Framed(json_frames.Ambiguous()),
    "parentheses": Framed(json_frames.Nested()),
    "many stacks": Framed(json_frames.Branching(6, 2)),
    "many threads": Framed(json_frames.Branching(70, 1)),
    "string": Regex(r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'),
    "any text": Regex(r"(.|\n)*"),
    "words": Regex(r"[a-z]+( [a-z]+)*\.?"),
    "unicode": Regex(r"[é-ÿ€日😀]{2,5}x?"),
    "counted": Regex(r"(ab?){3,40}c{0,200}"),
    "not": Regex(r"(?!.*(true|null)).{0,12}"),
    "choices": Choices(["true", "trueish", "null", "nul", "", '"', '"}', "é", "日本", "0.5e"]),
}
EXTRA = [
    # Keys that are captured inside a token that began outside of them.
    b'{"a":',
    b', "ab": ',
    b',"c": [',
    b'1,"b":2',
    b"ab",
    b"aa",
    b"aaa",
    b"((",
    b"((a",
    b")xyx",
    b")yy",
    b"yx)x",
    b"a)xyxx",
    b"))",
    b"()",
    b")(",
    b"xy",
    b"ax",
    b"true",
    b"trueish,",
    b'c":',
    b'"ab": ',
    b'"abc"',
]


def mask_ids(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    bitmask = allocate_bitmask(2, vocabulary.size)
    bitmask[:] = -1  # whatever was there must be overwritten
    matcher.fill_bitmask(bitmask, 1)
    assert (bitmask[0] == -1).all()
    return ids_from_bitmask(bitmask[1]).tolist()


def random_walk(
    grammar: CompiledGrammar,
    rng: random.Random,
    num_tokens: int,
    check: Callable[[GrammarMatcher, bytes, list[int]], None],
) -> None:
    """Take random allowed tokens and call `check(matcher, text, allowed)` in every state on the way."""
    vocabulary = grammar.vocabulary
    matcher = grammar.matcher()
    text = b""
    for _ in range(num_tokens):
        allowed = mask_ids(matcher, vocabulary)
        check(matcher, text, allowed)
        going_on = [token for token in allowed if token not in vocabulary.eos_token_ids]
        if not going_on:
            return
        # Mostly short tokens, or the walk would see long ones only: most tokens are long.
        token = min(rng.sample(going_on, min(3, len(going_on))), key=lambda t: len(vocabulary.token_bytes[t] or b""))
        assert matcher.accept(token)
        text += vocabulary.token_bytes[token] or b""


def vocabularies() -> list[Vocabulary]:
    rng = random.Random(7)
    return [
        adversarial_vocabulary(),
        byte_vocabulary([*EXTRA, *EXTRA], num_eos=2, size=700),  # duplicates, padding, two ends
        byte_vocabulary(random_vocabulary(rng, b'ab"{}[]:, ()xy', 200).token_bytes[:200], num_eos=1),
    ]


@few(3)
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_mask_equals_brute_force(name: str) -> None:
    constraint = CONSTRAINTS[name]
    for number, vocabulary in enumerate(vocabularies()):
        rng = random.Random(number)
        for _ in range(3):
            random_walk(compile(constraint, vocabulary), rng, 8, partial(check_state, constraint, vocabulary))


def test_stacks_on_which_the_same_is_read_are_one() -> None:
    vocabulary = byte_vocabulary(EXTRA)
    matcher = compile(Framed(json_frames.Branching(12, 9)), vocabulary).matcher()
    words = [bytes(b"xy"[number >> bit & 1] for bit in range(4)) for number in (0, 11, 5, 7, 3, 8, 1, 2, 10)]
    text = b"(" * 9 + b"a" + b"".join(b")" + word for word in words)  # 12 ** 9 ways to read what is opened
    for position, byte in enumerate(text):
        assert byte in mask_ids(matcher, vocabulary)
        assert len(matcher.recogniser.states.configurations[matcher.state]) <= 2 * 12, position
        assert matcher.accept(byte)
    assert mask_ids(matcher, vocabulary) == [256]
    fresh = compile(Framed(json_frames.Branching(12, 9)), vocabulary).matcher()
    assert fresh.validate([*text[:-5], *b")xyyy"]) == len(text) - 1  # 14 is none of the words


def check_state(
    constraint: Constraint, vocabulary: Vocabulary, matcher: GrammarMatcher, text: bytes, allowed: list[int]
) -> None:
    assert allowed == masks.allowed(constraint.root(), text, vocabulary), text
    assert matcher.is_accepting == masks.accepts(constraint.root(), text)
    assert allowed, f"nothing is allowed after {text!r}"  # the vocabularies have every byte
    eos = vocabulary.eos_token_ids
    assert matcher.can_continue == bool(set(allowed) - eos)
    assert eos <= set(allowed) if matcher.is_accepting else not eos & set(allowed)


def test_negative_control_a_wrong_mask_is_noticed() -> None:
    # The same comparison against the masks of another constraint must fail.
    vocabulary = adversarial_vocabulary()
    allowed = mask_ids(compile(CONSTRAINTS["json"], vocabulary).matcher(), vocabulary)
    assert allowed != masks.allowed(CONSTRAINTS["json, two items"].root(), b"[1,2", vocabulary)


@pytest.mark.parametrize("many_bytes", [0, 24, 257], ids=["walks", "both", "runs"])
@pytest.mark.parametrize("max_exits", [0, 4096], ids=["few exits", "exits"])
def test_every_way_to_a_mask_gives_the_same(monkeypatch: pytest.MonkeyPatch, many_bytes: int, max_exits: int) -> None:
    monkeypatch.setattr(masks_module, "_MANY_BYTES", many_bytes)
    monkeypatch.setattr(token_index, "_MAX_EXITS", max_exits)
    vocabulary = vocabularies()[1]
    for name in ("json", "ambiguous", "words"):
        grammar = CompiledGrammar(CONSTRAINTS[name], vocabulary)
        grammar._masks._tokens = token_index.all_tokens.__wrapped__(vocabulary)  # without others' walks

        def check(matcher: GrammarMatcher, text: bytes, allowed: list[int], name: str = name) -> None:
            assert allowed == masks.allowed(CONSTRAINTS[name].root(), text, vocabulary), text

        random_walk(grammar, random.Random(3), 8, check)


KEYED = {
    "free keys": {"properties": {"a": {"type": "integer"}, "ab": {"type": "null"}, "é": True}, "required": ["ab"]},
    "closed keys": {
        "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}, "b\n": True, "é": True},
        "additionalProperties": False,
        "minProperties": 2,
    },
    "astral keys": {"properties": {"\U0001f600": True, "\U0001f601a": {"type": "null"}}, "additionalProperties": False},
    "some keys": {
        "properties": {"a": {"type": "integer"}},
        "patternProperties": {"^b": {"type": "null"}},
        "maxProperties": 2,
    },
    "nested": {"additionalProperties": {"properties": {"a": {"enum": ["a", 1]}}, "additionalProperties": False}},
}


@few(3)
@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("order", ["any", "declared"])
def test_keys_equal_brute_force(name: str, order: Literal["any", "declared"]) -> None:
    # Tokens that end a key, hold a whole member, spell a key by escapes, or end one object and begin the next.
    texts = [bytes([byte]) for byte in range(256)]
    texts += [
        b'{"',
        b'":',
        b'","',
        b'":1,"',
        b'a":1,"a":',
        b'a":',
        b'"a',
        b'"ab":null',
        b"ab",
        b"\\u006",
        b"\\u0061",
        b'1"',
    ]
    texts += [
        b'{"a":',
        b'{"a":1,"',
        b'"}',
        b'},"',
        b',"a',
        b'":{"a":1',
        b"\xc3",
        b"\xa9",
        b"\\n",
        b'\\n":',
        b"\\ud83d",
        b"\\ude0",
    ]
    texts += [
        b'":"',
        b'":null}',
        b'a":1,"ab":null,"',
        b'b":"b","bb":',
        "é".encode(),
        "😀".encode(),
        "😁a".encode(),
        b'"":',
    ]
    vocabulary = Vocabulary([*texts, None], [len(texts)])
    constraint = JsonSchema({"type": "object", **KEYED[name]}, whitespace="compact", order=order)
    grammar = CompiledGrammar(constraint, vocabulary)

    def check(matcher: GrammarMatcher, text: bytes, allowed: list[int]) -> None:
        assert allowed == masks.allowed(constraint.root(), text, vocabulary), text

    for seed in range(4):
        random_walk(grammar, random.Random(seed), 9, check)


@few(2)
@pytest.mark.parametrize("name", ["json", "any text", "not", "choices"])
def test_mask_equals_brute_force_on_a_real_vocabulary(name: str) -> None:
    vocabulary = tekken_vocabulary()
    grammar = compile(CONSTRAINTS[name], vocabulary)
    rng = random.Random(11)
    sample = sorted(rng.sample(range(vocabulary.size), 1500))
    sample += [t for t, data in enumerate(vocabulary.token_bytes) if data is not None and b'"' in data][::3]

    def check(matcher: GrammarMatcher, text: bytes, allowed: list[int]) -> None:
        expected = masks.allowed(CONSTRAINTS[name].root(), text, vocabulary, sample)
        assert sorted(set(allowed) & set(sample)) == sorted(set(expected)), text

    random_walk(grammar, rng, 5, check)


def test_accept_agrees_with_the_mask_and_with_validate() -> None:
    vocabulary = adversarial_vocabulary()
    grammar = compile(CONSTRAINTS["json"], vocabulary)

    def check(matcher: GrammarMatcher, text: bytes, allowed: list[int]) -> None:
        before = matcher.num_tokens
        for token in range(vocabulary.size):
            assert matcher.validate([token]) == (token in allowed)
            assert matcher.accept(token) == (token in allowed)
            if token in allowed:
                assert matcher.num_tokens == before + 1
                assert matcher.is_terminated == (token in vocabulary.eos_token_ids)
                matcher.rollback(1)
            assert matcher.num_tokens == before
        assert mask_ids(matcher, vocabulary) == allowed

    random_walk(grammar, random.Random(5), 12, check)


def test_rollback_and_fork() -> None:
    vocabulary = adversarial_vocabulary()
    rng = random.Random(13)
    matcher = compile(CONSTRAINTS["json"], vocabulary).matcher()
    history = [mask_ids(matcher, vocabulary)]
    accepted: list[int] = []
    for _ in range(60):
        if rng.random() < 0.3 and accepted:
            count = rng.randint(1, len(accepted))
            matcher.rollback(count)
            del accepted[-count:], history[-count:]
        else:
            going_on = history[-1]
            if not going_on:
                continue
            token = rng.choice(going_on)
            assert matcher.accept(token)
            accepted.append(token)
            history.append(mask_ids(matcher, vocabulary))
        assert mask_ids(matcher, vocabulary) == history[-1]
        assert matcher.num_tokens == len(accepted)
        fork = matcher.fork()
        for token in history[-1][:2]:
            if fork.accept(token):
                break
        assert mask_ids(matcher, vocabulary) == history[-1]  # the original did not move
        assert fork.num_tokens == len(accepted) + bool(history[-1])
    with pytest.raises(ValueError, match="roll back"):
        matcher.rollback(matcher.num_tokens + 1)
    with pytest.raises(ValueError, match="roll back"):
        matcher.rollback(-1)


def test_equal_bytes_have_equal_masks() -> None:
    vocabulary = adversarial_vocabulary()
    by_bytes: dict[bytes, int] = {}
    for token, data in enumerate(vocabulary.token_bytes):
        if data is not None:
            by_bytes.setdefault(data, token)
    grammar = compile(CONSTRAINTS["json"], vocabulary)
    text = b'{"a": [1, {"b":"x"}], "ab": trueish}'
    rng = random.Random(17)
    for _ in range(20):
        cuts, position = [], 0
        while position < len(text):
            ends = [e for e in range(position + 1, min(position + 6, len(text)) + 1) if text[position:e] in by_bytes]
            end = rng.choice(ends)
            cuts.append(by_bytes[text[position:end]])
            position = end
        matcher = grammar.matcher()
        assert matcher.validate(cuts) == len(cuts)
        for token in cuts:
            assert matcher.accept(token)
        assert matcher.is_accepting
        assert mask_ids(matcher, vocabulary) == sorted(vocabulary.eos_token_ids)


def test_forced_tokens_are_the_unique_continuation() -> None:
    vocabulary = byte_vocabulary([b"bc", b"xyz"])
    grammar = compile(Regex("a(bd|be)c?qqq[xy]"), vocabulary)

    def check(matcher: GrammarMatcher, text: bytes, allowed: list[int]) -> None:
        expected: list[int] = []
        current = text
        while True:
            options = masks.allowed(grammar.constraint.root(), current, vocabulary)
            if len(options) != 1 or options[0] in vocabulary.eos_token_ids:
                break
            expected.append(options[0])
            current += vocabulary.token_bytes[options[0]] or b""
        before = matcher.num_tokens
        assert matcher.forced_tokens() == expected
        assert matcher.num_tokens == before

    for seed in range(6):
        random_walk(grammar, random.Random(seed), 12, check)
    assert len(grammar.matcher().forced_tokens()) == 2  # a, b


def test_what_branches_without_a_mask_has_two_tokens() -> None:
    num_branching = num_told = 0
    whole = byte_vocabulary(EXTRA)
    some = Vocabulary([None if data in (b"b", b"t", b"]") else data for data in whole.token_bytes], whole.eos_token_ids)
    for vocabulary in (*vocabularies(), some):
        single = token_index.byte_tokens(vocabulary)
        alone = {data[0] for data in vocabulary.token_bytes if data and len(data) == 1}
        assert {*np.flatnonzero(single).tolist()} == {byte for byte in alone if is_text(bytes((byte,)))}
        for constraint in (*CONSTRAINTS.values(), *map(JsonSchema, KEYED.values())):
            grammar = CompiledGrammar(constraint, vocabulary)

            def check(
                matcher: GrammarMatcher,
                text: bytes,
                allowed: list[int],
                vocabulary: Vocabulary = vocabulary,
                single: UInt8Array = single,
            ) -> None:
                nonlocal num_branching, num_told
                first = {(vocabulary.token_bytes[token] or b"-")[0] for token in allowed}
                is_told = matcher.recogniser.branches(matcher.state, single)
                assert not is_told or len(first) > 1, text
                num_branching += len(first) > 1 and not matcher.is_accepting
                num_told += is_told and not matcher.is_accepting

            random_walk(grammar, random.Random(2), 12, check)
    assert num_told > 0.95 * num_branching > 200


def test_forced_tokens_are_found_without_masks_of_states_that_branch() -> None:
    grammar = CompiledGrammar(JsonSchema({"enum": [{"a": "xyz", "b": n} for n in (1, 2)]}), byte_vocabulary())
    matcher = grammar.matcher()
    for byte in b'{"a": "xyz", "b": ':
        num_masks = len(grammar._masks._kept)
        forced = matcher.forced_tokens()
        assert len(grammar._masks._kept) - num_masks <= len(forced)
        assert matcher.accept(byte)
    assert matcher.forced_tokens() == [] and matcher.state not in grammar._masks._kept
    assert len(mask_ids(matcher, grammar.vocabulary)) == 2


def test_forced_run_stops_where_the_text_may_end_and_at_the_bound() -> None:
    vocabulary = Vocabulary([b"a", None], [1])
    assert compile(Regex("aaa"), vocabulary).matcher().forced_tokens() == [0, 0, 0]
    assert compile(Regex("aa(aa)?"), vocabulary).matcher().forced_tokens() == [0, 0]
    assert len(compile(Regex("a{100000}"), vocabulary).matcher().forced_tokens()) == 1024


def test_ends() -> None:
    vocabulary = byte_vocabulary(num_eos=2)
    matcher = compile(Regex("ab?"), vocabulary).matcher()
    first, second = sorted(vocabulary.eos_token_ids)
    assert not matcher.accept(first) and not matcher.is_terminated
    assert matcher.accept(ord("a")) and matcher.is_accepting and matcher.can_continue
    assert matcher.validate([first, ord("b")]) == 1
    assert matcher.accept(second) and matcher.is_terminated and not matcher.is_accepting and not matcher.can_continue
    assert mask_ids(matcher, vocabulary) == [] and not matcher.accept(first) and matcher.forced_tokens() == []
    matcher.rollback(1)
    assert matcher.accept(ord("b")) and mask_ids(matcher, vocabulary) == [first, second] and not matcher.can_continue
    assert not matcher.accept(-1) and not matcher.accept(10**6)


def test_ids_that_are_never_text_are_never_allowed() -> None:
    vocabulary = Vocabulary([b"a", b"", b"<s>", None, None], eos_token_ids=[4], size=40, special_tokens={"<s>": 3})
    matcher = compile(Regex(".*"), vocabulary).matcher()
    assert mask_ids(matcher, vocabulary) == [0, 2, 4]


def test_a_vocabulary_without_some_bytes_may_meet_a_dead_end() -> None:
    # Documented: bytes could go on (b), tokens cannot. The matcher then allows nothing and says so.
    vocabulary = Vocabulary([b"a", None], [1])
    matcher = compile(Regex("ab"), vocabulary).matcher()
    assert matcher.accept(0)
    assert mask_ids(matcher, vocabulary) == [] and not matcher.can_continue and not matcher.is_accepting


def test_compiled_grammars_are_shared_by_content() -> None:
    vocabulary = byte_vocabulary()
    again = Vocabulary(vocabulary.token_bytes, vocabulary.eos_token_ids, special_tokens=vocabulary.special_tokens)
    assert compile(Regex("a+"), vocabulary) is compile(Regex("a+"), again)
    assert compile(Regex("a+"), vocabulary) is not compile(Regex("a+"), adversarial_vocabulary())


@pytest.mark.parametrize("constraint", [Regex("a(?=b)"), Regex("[^\\s\\S]", "ecma"), Regex("(?!a)a+")])
def test_impossible_constraints_are_refused(constraint: Constraint) -> None:
    with pytest.raises(UnsatisfiableError):
        compile(constraint, byte_vocabulary())


@sized("limit", 2000, slow=recogniser.MAX_CONFIGURATIONS)
def test_left_recursion_ends_in_an_error(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recogniser, "MAX_CONFIGURATIONS", limit)
    with pytest.raises(ResourceLimitError, match="alternatives"):
        compile(Framed(json_frames.LeftRecursive()), byte_vocabulary())


def test_right_recursion_and_deep_nesting_keep_going() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile(CONSTRAINTS["parentheses"], vocabulary).matcher()
    for _ in range(1000):
        assert matcher.accept(ord("(")) and matcher.accept(ord(")"))
    configurations = matcher.recogniser.states.configurations[matcher.state]
    assert len(configurations) == 1 and matcher._path[-1] == matcher._path[-3]
    deep = compile(CONSTRAINTS["json"], vocabulary).matcher()
    for _ in range(5000):
        assert deep.accept(ord("["))
    assert ord("]") in mask_ids(deep, vocabulary)
    for _ in range(5000):
        assert deep.accept(ord("]"))
    assert deep.is_accepting and not deep.can_continue


def test_a_grammar_that_grew_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from decodekit.constraints.matching import compiler

    monkeypatch.setattr(compiler, "EPOCH_STATES", 50)
    vocabulary = byte_vocabulary()
    grammar = CompiledGrammar(CONSTRAINTS["json"], vocabulary)
    old = grammar.matcher()
    for byte in b"[" * 60 + b'"x':
        assert old.accept(byte)
    new = grammar.matcher()
    assert new.recogniser is not old.recogniser
    assert mask_ids(new, vocabulary) == mask_ids(grammar.matcher(), vocabulary)
    assert old.accept(ord('"')) and mask_ids(old, vocabulary) == [ord(","), ord("]")]


def test_masks_are_dropped_when_they_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "MASK_CACHE_BYTES", 1000)
    monkeypatch.setattr(token_index, "WALK_CACHE_BYTES", 2000)
    vocabulary = adversarial_vocabulary()
    grammar = CompiledGrammar(CONSTRAINTS["json"], vocabulary)
    grammar._masks._tokens = token_index.all_tokens.__wrapped__(vocabulary)

    def check(matcher: GrammarMatcher, text: bytes, allowed: list[int]) -> None:
        assert allowed == masks.allowed(grammar.constraint.root(), text, vocabulary)

    random_walk(grammar, random.Random(1), 15, check)
    assert grammar._masks._kept._account.num_bytes <= 2000 and len(grammar._masks._kept) < 10


def test_bitmask_helpers() -> None:
    import torch

    from decodekit.sampling import apply_bitmask

    rng = np.random.default_rng(0)
    for size in (1, 31, 32, 33, 100):
        ids = np.flatnonzero(rng.random(size) < 0.5)
        row = bitmask_from_ids(ids, size)
        assert ids_from_bitmask(row).tolist() == ids.tolist()
        logits = torch.randn(3, size)
        masked = apply_bitmask(logits, torch.from_numpy(np.stack([row] * 3)))
        allowed = torch.isfinite(masked)
        assert all(allowed[i].nonzero().flatten().tolist() == ids.tolist() for i in range(3))
        assert torch.equal(masked[allowed], logits[allowed])
        for token in rng.permutation(size).tolist():
            forbid(row, token)
            ids = ids[ids != token]
            assert ids_from_bitmask(row).tolist() == ids.tolist()
    with pytest.raises(ValueError, match="token ids"):
        bitmask_from_ids([40], 33)


def test_matcher_protocol() -> None:
    matcher: Any = compile(Regex("a"), byte_vocabulary()).matcher()
    assert isinstance(matcher, Matcher)


@pytest.mark.parametrize("in_a_grammar", [False, True])
def test_tokens_that_close_many_brackets_after_a_key(in_a_grammar: bool) -> None:
    """A free key is captured; a token may end it and close more frames than the shared masks of a grammar keep."""
    node = {"properties": {"v": {"type": "integer"}, "l": {"$ref": "#"}}, "required": ["v"]}
    value = JsonSchema(node, order="any")
    text = '{"v":1,"l":' * 6 + '{"v":3}' + "}" * 6
    pieces = sorted({text[i:j] for i in range(len(text)) for j in range(i + 2, min(len(text), i + 12) + 1)})
    tokens = [*(bytes((b,)) for b in range(256)), *(piece.encode() for piece in pieces)]
    vocabulary = Vocabulary([*tokens, None], [len(tokens)])
    matcher = compile(Concat(value, ";") if in_a_grammar else value, vocabulary).matcher()
    for byte in text.encode():
        allowed = set(mask_ids(matcher, vocabulary))
        assert allowed == {token for token in range(vocabulary.size) if matcher.validate([token])}
        assert matcher.accept(byte)


def differing_masks(constraint: Constraint, vocabulary: Vocabulary, texts: list[bytes]) -> list[bytes]:
    """The beginnings of some texts whose masks are not those of brute force."""
    grammar = compile(constraint, vocabulary)
    differing: list[bytes] = []
    for text in texts:
        matcher = grammar.matcher()
        for end, byte in enumerate([*text, None]):
            if mask_ids(matcher, vocabulary) != masks.allowed(constraint.root(), text[:end], vocabulary):
                differing.append(text[:end])
            assert byte is None or matcher.accept(byte), text[: end + 1]
    return differing


def test_lengths_that_are_out_of_sight_share_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = masks_module.Masks._make

    def noted(self: masks_module.Masks, state: int) -> Any:
        made.append(state)
        return original(self, state)

    monkeypatch.setattr(masks_module.Masks, "_make", noted)
    vocabulary = byte_vocabulary([b"ab", b"ab" * 4, b'a"', b'aaa"'])
    value = JsonSchema({"type": "string", "minLength": 3, "maxLength": 200})
    assert differing_masks(value, vocabulary, [b'"' + b"x" * 200 + b'"']) == []
    assert len(made) < 60
