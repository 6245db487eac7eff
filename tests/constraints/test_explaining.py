"""What is said of a refused text: a table of examples, and the law that it is refused exactly where `validate` says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.combinators import Concat
from decodekit.constraints.composition.composed import Special
from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.explain import explanation, trace
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import RuleRef, Rules, SpecialToken, Terminal, alternatives, repeated, sequence
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.language.ir import literal
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.network import END, Call, Frame, Label, Lexeme, Move, Read
from decodekit.constraints.regex.regex import Regex, full_match
from decodekit.vocabulary import Vocabulary
from tests.constraints.test_masks import CONSTRAINTS, Framed
from tests.reference.any_json import any_json
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary
from tests.sizes import few

BYTES = byte_vocabulary()
EOS = 256


def after(constraint: object, prefix: str) -> Matcher:
    matcher = compile(constraint, BYTES).matcher()
    for byte in prefix.encode():
        assert matcher.accept(byte), f"{prefix!r} is not a beginning"
    return matcher


def obj(**properties: Any) -> JsonSchema:
    return any_json({"type": "object", "properties": properties})


PERSON = any_json(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5, "pattern": "^a"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2, "uniqueItems": True},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
)
NAMED = '{"name": "a", '

# constraint, the text so far, what is asked, what must be said
REFUSED: list[tuple[Constraint, str, str | int, list[str]]] = [
    # objects
    (PERSON, "{", "}", ["refused at '}'", 'the object still needs "name" (required)', 'expected the key "name"']),
    (PERSON, "{", "1", ['expected the key "name"']),
    (PERSON, '{"', "nmae", ["at 'm', character 2 of 4", "expected 'a'"]),
    (PERSON, '{"', 'nmae": 1', ['no key "nmae"', 'did you mean "name"?']),
    (PERSON, '{"', 'age": 1', ['"name" comes before "age"', 'order="declared"']),
    (PERSON, NAMED, '"x":', ["expected a key out of", '"age"', '"tags"']),
    (PERSON, NAMED, '"name":', ['the key "name" is there already']),
    (PERSON, '{"name": "a"', "x", ["expected ',' or '}'"]),
    (PERSON, '{"name"', "1", ["expected ':'"]),
    (obj(a={"type": "null"}, b=False), '{"', 'b":', ['no value fits the key "b"']),
    (any_json({"type": "object", "minProperties": 2}), '{"a": "b"', "}", ["1 more property", "minProperties 2"]),
    (any_json({"type": "object", "not": {"patternProperties": {"^a": {"type": "null"}}}}), '{"b": "b"', "}",
     ["still needs a property that makes one of its alternatives hold"]),
    (any_json({"type": "object", "maxProperties": 1}), '{"a": "b"', ",", ["no other property", "maxProperties 1"]),
    (any_json({"type": "object"}), '{"a": "b", "', 'a"', ['the key "a" is there already']),
    (any_json({"properties": {"a": {}, "b": {}}}, order="any"), '{"a": "b", "', 'a"', ['"a" is there already']),
    (any_json({"type": "object", "patternProperties": {"^x": True}, "additionalProperties": False}), '{"', "y",
     ["a key that a pattern allows"]),
    (obj(a={"items": {"properties": {"b/c": {"type": "null"}}}}), '{"a": ["x", {"b/c": ', "1",
     ["/a/1/b~1c needs null", "#/properties/a/items/properties/b~1c/type"]),
    # numbers
    (PERSON, NAMED + '"age": ', "151", ["/age needs an integer from 0 to 150", "#/properties/age/maximum", "3 of 3"]),
    (PERSON, NAMED + '"age": 15', "1", ["an integer from 0 to 150", "#/properties/age/maximum"]),
    (PERSON, NAMED + '"age": 150', "0", ["an integer from 0 to 150", "#/properties/age/maximum"]),
    (PERSON, NAMED + '"age": ', "-1", ["#/properties/age/minimum"]),
    (PERSON, NAMED + '"age": ', '"1"', ["an integer from 0 to 150", "#/properties/age/type"]),
    (any_json({"type": "integer", "minimum": 20}), "15", EOS, ["cannot end here", "at least 20", "#/minimum"]),
    (any_json({"type": "number", "exclusiveMinimum": 0}), "0", ",", ["above 0", "#/exclusiveMinimum", "'.'"]),
    (any_json({"type": "number", "multipleOf": 0.25}), "0.", "3", ["a multiple of 0.25", "#/multipleOf"]),
    (any_json({"type": "integer"}), "1.", "5", ["an integer", "#/type"]),
    (any_json({"type": "number"}), "", "00", ["character 2 of 2"]),
    # strings and words
    (PERSON, '{"name": ', "1", ["/name needs a string of at most 5 characters that matches ^a", "/name/type"]),
    (PERSON, '{"name": "', "b", ["#/properties/name/pattern", "expected 'a'"]),
    (PERSON, '{"name": "a', "bcdef", ["#/properties/name/maxLength", "character 5 of 5", "expected '\"'"]),
    (any_json({"type": "string", "minLength": 2}), '"a', '"', ["a string of at least 2 characters", "#/minLength"]),
    (any_json({"type": "string", "format": "date"}, format="assert"), '"2024-1', "3", ["format date", "#/format"]),
    (any_json({"type": "string"}), '"', "\n", ["any character but '\\t', '\\n' or '\\r'"]),
    (any_json({"const": "abc"}), '"a', "x", ['needs "abc"', "#/const", "'b'"]),
    (any_json({"enum": ["red", "green", 3]}), "", "t", ['"red", "green" or 3', "#/enum"]),
    (any_json({"enum": ["red", 3], "type": "string"}), "", "3", ['needs "red" ', "#/type"]),
    (any_json({"type": "boolean"}), "t", "x", ["'rue'"]),
    (any_json({"type": "boolean"}), "", "null", ["true or false", "#/type"]),
    # combinations
    (any_json({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "", "t", ["an integer or a string", "#/anyOf"]),
    (any_json({"allOf": [{"type": "integer"}, {"maximum": 5}]}), "", "6,", ["of at most 5", "#/allOf/1/maximum"]),
    (any_json({"not": {"type": "string"}}), "", '"', ["null, true, false, a number, an object or an array", "#/not"]),
    (any_json({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}), "", "1", ["needs null", "#/$defs/a/type"]),
    (any_json({"if": {"type": "string"}, "then": {"minLength": 2}, "else": False}), "", "1", ["#/if"]),
    # arrays
    (PERSON, NAMED + '"tags": [', "]", ["the array /tags still needs 1 more item", "minItems 1", '"x" or "y"']),
    (PERSON, NAMED + '"tags": ["x", "', 'x"', ['the array /tags has "x" already (uniqueItems)', "'y\"'"]),
    (PERSON, NAMED + '"tags": ["x", "y"', ",", ["no other item", "maxItems 2", "expected ']'"]),
    (any_json({"items": {"type": "null"}, "type": "array"}), "[", "1", ["/0 needs null", "#/items/type"]),
    (any_json({"type": "array", "contains": {"type": "string"}}), "[true", "]", ["an item that is a string"]),
    (any_json({"type": "array", "uniqueItems": True}), "[1, ", "1]", ["has 1 already (uniqueItems)"]),
    (any_json({"type": "array", "items": {"type": "string"}, "uniqueItems": True}), '["é", ', '"é"',
     ['has "é" already', "character 3 of 3"]),
    # other constraints
    (Choices(["yes", "no"]), "", "maybe", ["refused at 'm', character 1 of 5", "'no' or 'yes'"]),
    (Choices(["yes", "no"]), "y", EOS, ["the text cannot end here", "'es'"]),
    (Choices(["yes", "no"]), "yes", "!", ["the text is complete"]),
    (Regex(r"\d{3}-[a-z]+"), "12", "x", ["a digit"]),
    (Regex(r"\d{3}-[a-z]+"), "123-", "X", ["a small letter"]),
    (Regex(r"[^\n]*"), "", "a\n", ["at '\\n', character 2 of 2", "any character but '\\n'"]),
    (Regex(r"[é-ü]+"), "é", "€", ["refused at '€'"]),
    (Regex(r"[ \t]+x"), "", "y", ["expected white space"]),
    # guards
    (Guarded(Choices(["a", "b"]), lambda text: text == "a" or "not b"), "", "b", ["not b"]),
    (any_json({"type": "array", "items": {"type": "object"}, "uniqueItems": True}), "[{},{", "}",
     ["item 1 equals item 0", "#/uniqueItems"]),
]  # fmt: skip


@pytest.mark.parametrize(("constraint", "prefix", "asked", "said"), REFUSED)
def test_what_is_said(constraint: Constraint, prefix: str, asked: str | int, said: list[str]) -> None:
    matcher = after(constraint, prefix)
    explanation = matcher.explain(asked)
    assert not explanation.is_allowed
    for words in said:
        assert words in str(explanation), f"{words!r} is not said: {explanation}"
    assert matcher.explain(prefix) == matcher.explain(prefix) and matcher.num_tokens == len(prefix.encode())


def test_allowed_texts() -> None:
    matcher = after(PERSON, NAMED)
    assert matcher.explain('"age": 3').is_allowed
    assert str(matcher.explain('"age": 3}')) == "allowed: the text may end there"
    assert matcher.explain("").is_allowed
    assert after(PERSON, '{"name": "a"}').explain(EOS).is_allowed


def test_positions_are_in_the_units_of_what_was_asked() -> None:
    assert after(Regex("é*"), "").explain("ééx").position == 2
    assert after(Regex("é*"), "").explain("ééx".encode()).position == 4
    assert after(Regex("[é]"), "").explain("è").position == 0  # the first byte is that of é
    assert after(Regex("[é]"), "").explain("è".encode()).position == 1
    assert after(Choices(["ab"]), "").explain("ab").position == 2


def test_tokens_that_are_no_text() -> None:
    matcher = after(Choices(["a", "ab"]), "a")
    assert "no token 999" in str(matcher.explain(999))
    assert matcher.explain(EOS).is_allowed and matcher.accept(EOS)
    assert "has ended" in str(matcher.explain(EOS)) and "has ended" in str(matcher.explain("b"))
    assert matcher.explain(-1).is_allowed is False
    lone = after(Regex(".*"), "").explain("\ud800")
    assert not lone.is_allowed and lone.position == 0


class Statement(Frame):
    """A rule of two terminals that have names."""

    def moves(self) -> tuple[Move, ...]:
        return (
            Read(full_match("[Ss]elect"), reader=END, name="SELECT"),
            Read(full_match("[Ii]nsert"), reader=END, name="INSERT"),
            Call(Lexeme(full_match("x")), END),
        )

    def title(self) -> str:
        return "rule statement"

    def after(self, label: Label, text: bytes) -> tuple[Frame, ...]:
        raise AssertionError("END is asked")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statement)

    def __hash__(self) -> int:
        return 1


def test_names_of_terminals_and_rules() -> None:
    explanation = after(Framed(Statement()), "").explain("update")
    assert explanation.expected == ("SELECT (rule statement)", "INSERT (rule statement)", "'x'")
    assert "expected SELECT, INSERT (rule statement) or 'x'" in str(explanation)
    assert after(Framed(Statement()), "S").explain("update").expected == ("'elect'",)


LIST = Rules(
    {
        "start": sequence(RuleRef("item"), repeated(sequence(Terminal(literal(b","), "COMMA"), RuleRef("item")))),
        "item": alternatives(
            Terminal(full_match("[0-9]+"), "NUMBER"),
            Terminal(literal(b"null")),
            sequence(Terminal(literal(b"["), '"["'), RuleRef("start"), Terminal(literal(b"]"), '"]"')),
            SpecialToken("<eos0>"),
            SpecialToken("<image>"),
        ),
    },
    "start",
    ignore=full_match("[ ]"),
)


def test_names_of_grammars() -> None:
    matcher = after(Framed(root_frame(LIST)), "")
    assert set(matcher.explain("x").expected) == {
        "NUMBER (rule item)", "'null' (rule item)", '"[" (rule item)', "<eos0> (rule item)", "<image> (rule item)"
    }  # fmt: skip
    assert after(Framed(root_frame(LIST)), "  ").explain("x").expected == matcher.explain("x").expected
    assert set(after(Framed(root_frame(LIST)), "[1,nul").explain("x").expected) == {"'l'"}
    assert set(after(Framed(root_frame(LIST)), "[null ").explain("}").expected) == {"COMMA", '"]"'}
    assert "cannot end here: expected" in str(after(Framed(root_frame(LIST)), "[1").explain(EOS))


def test_special_tokens() -> None:
    vocabulary = Vocabulary([*(bytes((b,)) for b in range(256)), None, None, None], [256], None,
                            {"<eos0>": 256, "<image>": 257, "<audio>": 258})  # fmt: skip
    matcher = compile(Framed(root_frame(LIST)), vocabulary).matcher()
    assert matcher.explain(257).is_allowed and matcher.validate([257]) == 1
    refused = matcher.explain(258)
    assert not refused.is_allowed and matcher.validate([258]) == 0
    assert "<audio> is no text" in str(refused) and "<image> (rule item)" in refused.expected
    assert not matcher.explain("<image>").is_allowed and not matcher.explain(b"\xff<image>\xff").is_allowed
    assert matcher.accept(257) and matcher.explain(",").is_allowed and not matcher.explain("1").is_allowed


def test_where_there_are_too_many_ways_the_engine_tells_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    full = after(PERSON, NAMED).explain("}")
    monkeypatch.setattr(trace, "MAX_STEPS", 3)
    short = after(PERSON, NAMED).explain("}")
    assert "'\"'" in short.expected and short.position == full.position and not short.is_allowed


SCHEMAS: list[Constraint] = list(dict.fromkeys(constraint for constraint, *_ in REFUSED))


@few(1)
@pytest.mark.parametrize("seed", range(2))
def test_an_explanation_agrees_with_validate(seed: int) -> None:
    """Along random walks, for random tokens and for texts of several tokens."""
    vocabulary = adversarial_vocabulary()
    rng = random.Random(seed)
    num_refused = 0
    for constraint in [*CONSTRAINTS.values(), *SCHEMAS]:
        matcher = compile(constraint, vocabulary).matcher()
        for _ in range(6):
            bitmask = allocate_bitmask(1, vocabulary.size)
            matcher.fill_bitmask(bitmask)
            allowed = ids_from_bitmask(bitmask[0]).tolist()
            for token in [*rng.sample(range(vocabulary.size), 8), *allowed[:3], *vocabulary.eos_token_ids]:
                explanation = matcher.explain(token)
                assert explanation.is_allowed == (matcher.validate([token]) == 1), (constraint, token, explanation)
                num_refused += not explanation.is_allowed
                data = vocabulary.token_bytes[token]
                if data is not None:
                    text = matcher.explain(data)
                    assert (text.is_allowed, text.position) == (explanation.is_allowed, explanation.position)
                    assert explanation.is_allowed or text.position < len(data)
            going_on = [token for token in allowed if vocabulary.token_bytes[token]]
            if not going_on or not matcher.accept(rng.choice(going_on)):
                break
    assert num_refused > 500


def test_what_is_expected_is_allowed() -> None:
    """Literal expectations, at every place of a text, are texts that may come next."""
    import ast

    num_literals = 0
    text = '{"name": "abc", "age": 15, "tags": ["x", "y"]}'
    for stop in range(len(text)):
        matcher = after(PERSON, text[:stop])
        for words in matcher.explain("\x00").expected:
            if words.startswith("'"):
                num_literals += 1
                assert matcher.explain(ast.literal_eval(words.rstrip("…"))).is_allowed, (text[:stop], words)
    assert num_literals > 20
    assert explanation.Explanation(True, "allowed", 0).expected == ()


def test_a_guard_is_asked_where_the_text_ends_only() -> None:
    vocabulary = Vocabulary([*(bytes((b,)) for b in range(256)), None, None], [256], None, {"<e>": 256, "<x>": 257})
    guarded = Guarded(Concat(Special("<x>"), Regex("[ab]")), lambda value: value == ("a",) or "it is b")
    matcher = compile(guarded, vocabulary).matcher()
    assert matcher.explain(257).is_allowed and matcher.accept(257)
    assert matcher.explain("").is_allowed
    for token in (97, 98, 99, 256, 257):
        assert matcher.explain(token).is_allowed == (matcher.validate([token]) == 1), token


def test_texts_that_are_one_word_are_told_by_their_characters() -> None:
    assert after(Grammar("roman"), "").explain("x").expected == ("one of CDILMVX",)
    lines = Grammar('start: "\\n" A | "b"\nA: /a/\n%ignore " "\n')
    assert set(after(lines, "").explain("x").expected) == {'"\\n"', '"b"'}  # on one line
    word = ("a letter or digit", "'+'", "'-'", "'.'", "'_'", "a character beyond ASCII")
    assert after(Regex(r"[\w.+-]+@"), "").explain("(").expected == word
    assert after(Regex(r"k", flags="i"), "").explain("(").expected == ("'K'", "'k'")


def test_pointers_behind_another_text() -> None:
    call = Concat(Regex(r"[^<]*"), "<f>", obj(a={"items": {"type": "null"}}), "</f>")
    assert "/a/1 needs null" in str(after(call, 'see [1] and "{": <f>{"a": [null, ').explain("1"))


def test_one_rule_needs_no_name() -> None:
    digits = Grammar("start: /[0-9]/ start | A\nA: /a/\n%ignore /b/\n")
    assert set(after(digits, "").explain("x").expected) == {"A", "/[0-9]/"}
    assert after(Concat("Answer: ", Regex("[0-9]")), "Ans").explain("x").expected == ("'wer: '",)
