"""Forced tokens: the same text and the same law with and without them, and runs as the tokenizer itself writes them."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import decodekit as dk
from benchmarks.forced import ESCAPES, instances, walk, walk_matcher
from decodekit.constraints import Regex, compile
from decodekit.decoding.loop import append
from decodekit.decoding.loop.step import decode_texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.settings import Settings
from decodekit.errors import DecodekitError
from decodekit.speculation import GrammarDraft
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.strategy import Sample, Strategy
from decodekit.vocabulary import Vocabulary
from tests.constraints.json_schema.corpora import needs_corpus, sample
from tests.decoding.pairs import THRESHOLD, p_value
from tests.reference.generation import TableLM
from tests.reference.vocabularies import tekken_tokenizer
from tests.sizes import few
from tests.speculation.test_canonical import Hasty, canonical

# The law of objects whose scaffolding comes in runs of several forced tokens

PIECES = [b'{"', b"a", b"b", b'":', b"1", b"2", b',"', b"}"]
OBJECTS = Vocabulary(PIECES, ())
OBJECT = Regex(r'\{"a":[12](,"b":[12])?\}')
START = 7
TABLE = torch.randn(8, 8, generator=torch.Generator().manual_seed(8)) * 1.5
HEAD, MORE = [0, 1, 3], [6, 2, 3]  # `{" a ":` is one forced run; after `,"` comes another one
TEXTS = [[*HEAD, one, 7] for one in (4, 5)]
TEXTS += [[*HEAD, one, *MORE, two, 7] for one, two in itertools.product((4, 5), repeat=2)]


def object_law(is_scaffolding_read: bool = True) -> np.ndarray:
    """The probability of each text, token by token in float64, from the masked logits after the token before."""
    probabilities = []
    for text in TEXTS:
        probability, last = 1.0, START
        for place, token in enumerate(text):
            allowed = sorted({other[place] for other in TEXTS if other[:place] == text[:place]})
            row = torch.softmax(TABLE[last, allowed].double(), -1)
            probability *= float(row[allowed.index(token)])
            last = token if is_scaffolding_read or len(allowed) > 1 else last
        probabilities.append(probability)
    assert sum(probabilities) == pytest.approx(1.0)
    return np.array(probabilities)


def object_counts(strategy: Strategy, num_samples: int = 4000, **options: Any) -> tuple[np.ndarray, int]:
    """How often each text came, and how many tokens were forced."""
    matcher = compile(OBJECT, OBJECTS).matcher()
    given = Settings(OBJECTS, strategy.pipeline, strategy.select, max_new_tokens=12, **options)
    found, num_forced = np.zeros(len(TEXTS)), 0
    requests = (Request([START], matcher, seed=seed) for seed in range(num_samples))
    for update in decode_texts(TableLM(TABLE), given, 1000, requests):
        if update.result is not None:
            found[TEXTS.index(list(update.result.token_ids))] += 1
            num_forced += update.result.stats.num_forced_tokens
    assert found.sum() == num_samples
    return found, num_forced


def longest_first(pieces: Sequence[bytes]) -> Callable[[str], list[int]]:
    """A tokenizer that takes the first of the pieces that fits."""

    def encode(text: str) -> list[int]:
        data, ids = text.encode(), list[int]()
        while data:
            ids.append(next(token for token, piece in enumerate(pieces) if data.startswith(piece)))
            data = data[len(pieces[ids[-1]]) :]
        return ids

    return encode


SPEEDS: dict[str, dict[str, Any]] = {
    "off": {"fast_forward": "off"},
    "unseen": {},
    "measured": {"num_alternatives": 0},
    "canonical": {"fast_forward": "canonical"},  # with one division the law is the same
    "drafted": {"fast_forward": "off", "proposer": GrammarDraft()},
}


@few(1)
@pytest.mark.parametrize("speed", SPEEDS)
def test_objects_follow_the_exact_law(speed: str) -> None:
    """χ² over the six texts, N = 4,000; odds of 1 in 10,000 per case to fail by chance."""
    options = {"canonical": Canonical(longest_first(PIECES), OBJECTS), **SPEEDS[speed]}
    found, num_forced = object_counts(Sample(), **options)
    assert p_value(found, object_law()) > THRESHOLD
    lengths = np.array([len(text) for text in TEXTS])
    # All tokens but the choices: one value and whether more follows, and the value of what follows.
    num_choices = np.where(lengths == 5, 2, 3)
    expected = 0 if speed in ("off", "drafted") else int((found * (lengths - num_choices)).sum())
    assert num_forced == expected


def test_forced_tokens_that_are_not_read_have_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the model does not read what was taken unseen."""
    own = append.append_token

    def take(sequence: Any, token: int, *rest: Any) -> bool:
        goes_on = own(sequence, token, *rest)
        sequence.pending = sequence.pending[:-1]
        return goes_on

    monkeypatch.setattr(append, "append_token", take)
    found, _ = object_counts(Sample())
    assert p_value(found, object_law()) < THRESHOLD
    assert p_value(found, object_law(is_scaffolding_read=False)) > THRESHOLD  # it is that law


# The same text on the bundled model

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
KINDS = ("invoice", "product")
CONSTRAINTS: dict[str, Any] = {
    **{kind: json.loads((EXAMPLES / kind / "schema.json").read_text(encoding="utf-8")) for kind in KINDS},
    "compact": dk.JsonSchema(
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^INV-2026-[0-9]{3}$"},
                "kind": {"enum": ["invoice", "invitation"]},
            },
            "required": ["id", "kind"],
        },
        whitespace="compact",
    ),
    "record": dk.Regex(r'\{"total_amount": [0-9]{2}, "currency": "(EUR|USD)", "is_paid": (true|false)\}'),
}


@functools.cache
def tiny() -> Any:
    return dk.LLM.load("tiny")


@few(1)
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_same_text_with_and_without_forced_tokens(name: str) -> None:
    """At temperature 0, and at temperature 1 with the same seeds; each token that was forced saved a pass."""
    num_forced = 0
    prompts = ["Invoice INV-2026-118, 60 EUR, paid.\n", "Dear Ms Lund, the lamp costs 12 USD.\n", "x"]
    for strategy in (dk.Greedy(), dk.Sample(temperature=1.0)):
        given = {"constraint": CONSTRAINTS[name], "max_new_tokens": 48, "on_length": "return", "strategy": strategy}
        if isinstance(strategy, dk.Sample):
            given["seed"] = [5, 6, 7]
        plain = tiny().generate(prompts, fast_forward="off", **given)
        for one, other in zip(tiny().generate(prompts, **given), plain, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            assert other.stats.num_forced_tokens == 0 and other.stats.num_forwards == len(other.token_ids)
            assert one.stats.num_forwards <= len(one.token_ids) - one.stats.num_forced_tokens + 1
            num_forced += one.stats.num_forced_tokens
    assert num_forced > 0


# What the benchmark counts


def test_walks_by_hand() -> None:
    """No token of `ab` is forced, since it may be `a`, `b`; its bytes are, and `ab` is how it is divided."""
    pieces = [b"ab", *(bytes([byte]) for byte in range(256))]
    vocabulary = Vocabulary(pieces, ())
    grammar = compile(Regex("ab[xy]ccab[xy]"), vocabulary)
    division = Canonical(longest_first(pieces), vocabulary)

    def counts(way: str, tokens: list[int], division: Canonical = division) -> dict[str, int]:
        count = walk_matcher(way, grammar.matcher(), tokens, division)
        return {} if count is None else {name.removeprefix("num_"): number for name, number in count.items() if number}

    a, x, y, c = (1 + byte for byte in b"axyc")
    text = [0, x, c, c, 0, y]
    assert counts("forced", text) == {"tokens": 6, "runs": 1, "unseen": 2, "forwards": 4}
    assert counts("canonical", text) == {"tokens": 6, "runs": 2, "unseen": 4, "forwards": 2}
    assert counts("draft", text) == {
        "tokens": 6, "runs": 1, "unseen": 2, "offered": 2, "accepted": 2, "forwards": 2
    }  # fmt: skip
    assert counts("canonical", [0, a]) == counts("canonical", text[:-1]) == {}  # refused, and not whole
    bytewise = Canonical(lambda text: [1 + byte for byte in text.encode()], vocabulary)
    found = counts("canonical", text, bytewise)
    assert found["noncanonical_runs"] == 2 and found["unseen"] == 2


SENTENCE = "The unit price of item ab is 12.50 euros, the total price is 40 euros."
FIELDS: dict[str, Any] = {
    "number": {"type": "string"},
    "total": {"type": "number"},
    "currency": {"enum": ["EUR", "USD"]},
}
INVOICE = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}


@few(1)
@pytest.mark.parametrize(
    ("kind", "of_the_sentence", "of_the_object"),
    [
        ("mistral", [26, 26, 0, 2], [20, 20, 15, 12]),
        ("tekken", [24, 13, 0, 2], [20, 20, 15, 12]),
        ("tiny", [39, 16, 0, 2], [29, 16, 13, 11]),
    ],
)
def test_passes_by_tokenizer(kind: str, of_the_sentence: list[int], of_the_object: list[int]) -> None:
    """The table of docs/forced-tokens.md: tokens, passes with `exact`, with `canonical`, with `GrammarDraft`."""
    real = tekken_tokenizer()
    encode: Callable[[str], list[int]]
    own, encode = canonical(kind) if kind != "tekken" else (None, functools.partial(real.encode, bos=False, eos=False))
    vocabulary = Vocabulary.from_tokenizer(real) if own is None else Vocabulary(own.token_bytes, ())
    division = Canonical(encode, vocabulary)
    for text, constraint, expected in (
        (SENTENCE, Regex(re.escape(SENTENCE)), of_the_sentence),
        ('{"number":"A-17","total":40.2,"currency":"EUR"}', dk.JsonSchema(INVOICE), of_the_object),
    ):
        tokens = division.after((), text.encode())
        assert vocabulary.decode(tokens) == text.encode()
        counts = [
            walk_matcher(way, compile(constraint, vocabulary).matcher(), tokens, division)
            for way in ("forced", "canonical", "draft")
        ]
        assert all(count is not None and not count.get("num_noncanonical_runs") for count in counts)
        assert [len(tokens), *((count or {}).get("num_forwards", 0) for count in counts)] == expected


def test_a_draft_that_ends_the_text_saves_its_last_token_no_pass() -> None:
    count = walk([1, 2, 3], lambda token: True, lambda text: (), lambda text: [1, 2, 3][len(text) :])
    assert count is not None and (count["num_accepted"], count["num_forwards"]) == (2, 1)
    count = walk([1, 2, 3], lambda token: token != 3, lambda text: [1, 2][len(text) :])
    assert count is None


def test_what_escapes_cost() -> None:
    """A key may begin with an escape, so its bytes are not forced; but for that they are, up to where blanks may be."""
    schema = {
        "type": "object",
        "properties": {"total": {"const": "EUR"}},
        "required": ["total"],
        "additionalProperties": False,
    }
    vocabulary = tiny().vocabulary
    byte_tokens = {data[0]: token for token, data in enumerate(vocabulary.token_bytes) if data and len(data) == 1}
    needless = [byte_tokens[byte] for byte in b"\\u0074otal"]
    following = {
        ("compact", "any"): b"",
        ("compact", "needed"): b'total":"EUR"}',
        ("any", "any"): b"",
        ("any", "needed"): b'total"',
    }
    for (whitespace, escapes), forced_text in following.items():
        options: Any = {"whitespace": whitespace, "escapes": escapes}
        matcher = compile(dk.JsonSchema(schema, **options), vocabulary).matcher()
        assert all(matcher.accept(byte_tokens[byte]) for byte in b'{"')
        assert matcher.forced_text() == forced_text
        assert matcher.validate(needless) == (len(needless) if escapes == "any" else 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_corpus
@pytest.mark.parametrize("kind", ["tiny", "gpt4", "mistral"])
def test_no_run_is_noncanonical_on_real_schemas(kind: str) -> None:
    """100 schemas, without needless escapes too, so that there are many runs. Without holding back some are wrong."""
    own, encode = canonical(kind)
    vocabulary = Vocabulary(own.token_bytes, ())
    hasty = Hasty(encode, vocabulary)
    total: Counter[str] = Counter()
    num_schemas = num_wrong = 0
    for row in sample(130, seed=3, max_bytes=10_000):
        if row["id"].startswith("Handwritten") or num_schemas == 100:  # made to be hard, minutes each
            continue
        try:
            grammars = [
                compile(
                    dk.JsonSchema(row["schema"], order="any", whitespace="compact", escapes=escapes),  # type: ignore[arg-type]
                    vocabulary,
                )
                for escapes in ESCAPES
            ]
            texts = [own.after((), text.encode()) for text in itertools.islice(instances(row["tests"], "compact"), 3)]
            for grammar, tokens in itertools.product(grammars, texts):
                total.update(walk_matcher("canonical", grammar.matcher(), tokens, own) or {})
            for tokens in texts:
                found = walk_matcher("canonical", grammars[-1].matcher(), tokens, hasty) or {}
                num_wrong += found.get("num_noncanonical_runs", 0)
        except DecodekitError:
            continue
        num_schemas += 1
    assert num_schemas == 100 and total["num_runs"] > 300
    assert total["num_noncanonical_runs"] == 0
    assert num_wrong >= 5  # the bundled tokenizer is small: most of what it writes is what it would write anyhow
