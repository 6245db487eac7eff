"""Constraints that another engine follows: the protocol, with our own engine as the other one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import decodekit as dk
from decodekit.constraints import allocate_bitmask, ids_from_bitmask
from decodekit.errors import ConstraintError, OptionError, UnknownNameError, UnsupportedSchemaError
from decodekit.integrations.backends import BACKENDS, PeerGrammar, PeerMatcher
from decodekit.testing import check_language, check_matcher, toy_llm
from decodekit.vocabulary import Vocabulary
from tests.integrations.peers import OwnPeer

PIECES = [b'{"', b'":', b'"a"', b"12", b"true", b", ", b'"}', b"abc"]
VOCABULARY = Vocabulary([*(bytes([i]) for i in range(256)), None, None, None, *PIECES], [256, 257], 280)
OBJECT = dk.JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
CONSTRAINTS = [OBJECT, dk.Regex("a(bc)*[0-9]{2,3}"), dk.Choices(["yes", "no", "yesno"])]


def matcher_of(constraint: dk.CompiledGrammar | object, peer: OwnPeer | None = None) -> PeerMatcher:
    grammar = dk.compile(dk.backend(peer or OwnPeer())(constraint), VOCABULARY)
    assert isinstance(grammar, PeerGrammar)
    return grammar.matcher()


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda one: type(one).__name__)
def test_a_peer_keeps_the_laws_of_matchers(constraint: object) -> None:
    for seed in range(2):
        check_matcher(matcher_of(constraint), VOCABULARY, num_tokens=8, seed=seed)


def test_the_language_is_that_of_the_peer() -> None:
    check_language(dk.backend(OwnPeer())(dk.Regex("(ab)+")), accepts=["ab", "abab"], rejects=["", "aba", "ba"])


def test_a_mask_that_hides_a_token_breaks_a_law() -> None:
    with pytest.raises(AssertionError, match="token 97: validate says True, the mask says False"):
        check_matcher(matcher_of(dk.Regex("[a-c]+"), OwnPeer(hidden=97)), VOCABULARY)


def test_forced_tokens_explanations_and_the_end() -> None:
    matcher = matcher_of(dk.Regex("abc12(34)?x"))
    own = dk.compile(dk.Regex("abc12(34)?x"), VOCABULARY).matcher()
    assert matcher.validate([*b"abc123456"]) == own.validate([*b"abc123456"]) == 7
    assert matcher.forced_tokens() == own.forced_tokens() == []  # "a" or "abc"
    assert matcher.accept(VOCABULARY.token_bytes.index(b"abc"))
    assert matcher.explain("12x").is_allowed and not matcher.explain("12y").is_allowed
    refusal = matcher.explain("123x")
    assert (refusal.position, refusal.expected) == (3, ("'4'",))
    assert str(refusal) == "refused by stand-in at 'x'; expected '4'"
    assert str(matcher.explain(256)) == "refused by stand-in: the text may not end here"
    assert all(map(matcher.accept, [*b"12x"])) and matcher.is_accepting and not matcher.can_continue
    assert matcher.accept(257) and matcher.is_terminated and matcher.validate([256]) == 0
    assert str(matcher.explain(97)) == "refused: the text has ended"
    matcher.rollback(2)
    assert (
        matcher.forced_tokens() == [] and matcher.accept(ord("3")) and matcher.forced_tokens() == [ord("4"), ord("x")]
    )
    with pytest.raises(ValueError, match="cannot roll back 9"):
        matcher.rollback(9)


@pytest.mark.parametrize("text", [b"", b"ab", b"abc1", b"abc12", b"abc1234x"])
def test_explanations_agree_with_validate_for_every_token(text: bytes) -> None:
    matcher = matcher_of(dk.Regex("abc12(34)?x"))
    assert all(map(matcher.accept, text))
    allowed = {token for token in range(-1, 281) if matcher.validate([token]) == 1}
    assert {token for token in range(-1, 281) if matcher.explain(token).is_allowed} == allowed
    assert allowed  # the whole text may end, every other one goes on


def test_a_mask_is_asked_for_once() -> None:
    """The loop asks for the mask, then what is forced, then whether the text can go on."""
    matcher = matcher_of(dk.Regex("[ab]x"))
    text = matcher._text
    for _ in range(3):
        matcher.fill_bitmask(allocate_bitmask(1, VOCABULARY.size))
        assert matcher.can_continue and matcher.forced_tokens() == [] and matcher.validate([97, 120]) == 2
    assert text.num_masks == 1


def test_tokens_that_are_never_text_are_never_allowed() -> None:
    """Whatever bits a peer sets."""
    matcher = matcher_of(dk.Regex("[ab]*"))
    matcher._text.fill = lambda words: words.fill(-1)
    bitmask = allocate_bitmask(1, VOCABULARY.size)
    matcher.fill_bitmask(bitmask)
    assert set(ids_from_bitmask(bitmask[0]).tolist()) == {*range(258), *range(259, 259 + len(PIECES))}
    assert not matcher.accept(258) and not matcher.accept(279) and not matcher.accept(-1)


@pytest.mark.parametrize("options", [{}, {"strategy": "sample", "seed": 5}, {"strategy": "beam", "num_beams": 3}])
def test_our_loop_writes_the_text_of_our_engine(options: dict[str, object]) -> None:
    llm = toy_llm()
    properties = {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["a", "b"], "additionalProperties": False}
    settings: Any = {"max_new_tokens": 80, **options}
    own = llm.generate("Q: ", constraint=schema, **settings)
    peer = llm.generate("Q: ", constraint=dk.backend(OwnPeer())(schema), **settings)
    assert own.value is not None and (peer.text, peer.value) == (own.text, own.value)


def test_what_the_constraint_does_not_allow_is_no_value() -> None:
    llm = toy_llm()
    wrong = dk.backend(OwnPeer(instead=dk.Choices(["[1]"])))({"type": "object"})
    done = llm.generate("Q: ", constraint=wrong, max_new_tokens=20)
    assert done.text == "[1]" and done.value is None and isinstance(done.error, ConstraintError)
    assert "stand-in has let through a text that the constraint does not allow" in str(done.error)


def test_what_a_peer_does_not_know_is_refused() -> None:
    constraint = dk.backend(OwnPeer())(dk.Regex("a+"))
    with pytest.raises(UnsupportedSchemaError, match='on_length="close" cannot be kept'):
        toy_llm().generate("Q: ", constraint=constraint, on_length="close")


def test_a_backend_is_never_inside_of_another_constraint() -> None:
    """Where our own engine would follow it, unasked."""
    inner = dk.backend(OwnPeer())(dk.Regex("a+"))
    for outer in (dk.Concat("x", inner), dk.Guarded(inner, bool), dk.Tagged(dk.Tag("<a>", inner, "</a>"))):
        with pytest.raises(UnsupportedSchemaError, match="made for whole texts") as raised:
            dk.compile(outer, VOCABULARY)
        assert raised.value.hint == "the backend outermost: dk.backend('stand-in')(the whole constraint)"


def test_a_text_that_is_cut_under_a_backend() -> None:
    done = toy_llm().generate("Q: ", constraint=dk.backend(OwnPeer())({"enum": ["abcdefgh"]}), max_new_tokens=3)
    assert done.error is not None and done.error.code == "DK101"


def test_equal_constraints_share_a_grammar() -> None:
    first, second = (dk.backend(OwnPeer())(dk.Regex("a+")) for _ in range(2))
    assert first == second and dk.compile(first, VOCABULARY) is dk.compile(second, VOCABULARY)
    assert dk.compile(first, VOCABULARY) is not dk.compile(dk.Regex("a+"), VOCABULARY)
    assert dk.backend(OwnPeer())(first) == first  # a backend of a backend is the outer one


def test_wrong_names_and_options() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'llguidance'"):
        dk.backend("llguidence")
    with pytest.raises(OptionError, match=r"no option 'any_whitspace'\. Did you mean 'any_whitespace'"):
        dk.backend("xgrammar", any_whitspace=True)
    with pytest.raises(OptionError, match="is no backend"):
        dk.backend(7)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="options are the peer's own"):
        dk.backend(OwnPeer(), lenient=True)


PACKAGES = {
    "llguidance": "llguidance",
    "xgrammar": "xgrammar",
    "outlines-core": "outlines_core",
    "lm-format-enforcer": "lmformatenforcer",
}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(OptionError, match=f"needs the package {name}") as raised:
        dk.compile(dk.backend(name)(dk.Regex("a+")), VOCABULARY)
    assert raised.value.hint == f"pip install {name}"


def test_forms_that_a_peer_would_read_otherwise_are_refused() -> None:
    from decodekit.integrations.backends.peer import form_of

    def message(constraint: object, *kinds: str) -> str:
        with pytest.raises(UnsupportedSchemaError) as raised:
            form_of(dk.backend(OwnPeer())(constraint).constraint, "peer", kinds or ("schema", "pattern", "lark"))
        return str(raised.value)

    assert "peer would not follow whitespace='compact'" in message(dk.JsonSchema({}, whitespace="compact"))
    assert "flags='i'" in message(dk.Regex("a", flags="i"))
    assert "cannot be given a pattern; it reads lark" in message(dk.Regex("a"), "lark")
    assert "cannot be given Text" in message(dk.Text())
    assert "the guard" in message({"type": "array", "items": {"type": "object"}, "uniqueItems": True})
    assert "the start rule" in message(dk.Grammar('top: "a"\nstart: "b"\n', start="top"))
    form = form_of(dk.Choices(["a.b", "(c)"]), "peer", ("pattern",))
    assert form == ("pattern", r"a\.b|\(c\)")
