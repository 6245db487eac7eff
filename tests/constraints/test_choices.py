"""`Choices` is its texts and nothing else."""

from __future__ import annotations

import time

import pytest

from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.engine.bitmask import allocate_bitmask
from decodekit.constraints.matching.compiler import compile
from decodekit.errors import InvalidConstraintError
from decodekit.testing import check_language, check_matcher
from tests.reference.vocabularies import adversarial_vocabulary, tekken_vocabulary


def test_language() -> None:
    texts = ["yes", "no", "nothing", "", "é", "日本", "日", 'say "no"', "a" * 300]
    rejects = ["y", "yess", "n", "not", "日日", "\udce9".encode("utf-8", "surrogatepass"), b"\xc3", "a" * 299, " yes"]
    check_language(Choices(texts), accepts=texts, rejects=rejects)
    check_matcher(compile(Choices(texts), adversarial_vocabulary()).matcher(), adversarial_vocabulary())


def test_parse_and_equality() -> None:
    choices = Choices(["a", "b"])
    assert choices.parse("a") == "a" and choices == Choices(iter(["a", "b"]))
    with pytest.raises(ValueError, match="none of the choices"):
        choices.parse("c")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no choices"),
        (["a", "b", "a"], "more than once: 'a'"),
        ("abc", "several texts"),
        (["a", 1], "must be a str, not int"),
        (["a", "\ud800"], "surrogate"),
    ],
)
def test_refusals(texts: list[str], message: str) -> None:
    with pytest.raises(InvalidConstraintError, match=message):
        Choices(texts)


@pytest.mark.timeout(60)
def test_100_000_texts() -> None:
    texts = [f"product {number * 7919 % 1000003:06} {'xyz'[number % 3]}" for number in range(100_000)]
    begin = time.process_time()
    vocabulary = tekken_vocabulary()
    matcher = compile(Choices(texts), vocabulary).matcher()
    bitmask = allocate_bitmask(1, vocabulary.size)
    for byte in texts[77_777].encode():
        matcher.fill_bitmask(bitmask)
        token = vocabulary.token_bytes.index(bytes([byte]))
        assert matcher.accept(token)
    assert matcher.is_accepting and not matcher.can_continue
    assert time.process_time() - begin < 30
