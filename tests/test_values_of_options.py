"""Values of any type for any option: used as they are meant or refused with a typed error, never a traceback."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import decodekit as dk
from decodekit.errors import DecodekitError, OptionError
from decodekit.models import loading
from decodekit.sampling.checks import is_count, is_number, plain
from decodekit.strategy import GENERATION_OPTIONS, resolve_strategy, strategy_factory
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few

WRONG: list[Any] = [
    None,
    "",
    "x",
    "3",
    b"x",
    [],
    [None],
    [[]],
    [[-1]],
    [["a"]],
    {},
    {"a": 1},
    (),
    {1, 2},
    range(3),
    object(),
    math.nan,
    math.inf,
    -1,
    0,
    True,
    False,
    2.5,
    1 + 2j,
    10**400,
    int,
    len,
    np.array([1.0, 2.0]),
    np.float32("nan"),
    torch.zeros(2),
    "\ud800",
]
VOCABULARY = 160


def refusal(call: Callable[..., Any], *values: Any, **options: Any) -> DecodekitError | None:
    """The typed error that a call ends in; any other error goes on."""
    try:
        call(*values, **options)
    except DecodekitError as error:
        return error
    return None


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM(ToyLM(hashed_law(VOCABULARY), VOCABULARY, frozenset({2})), small_tokenizer())


@pytest.mark.parametrize("option", GENERATION_OPTIONS)
def test_options_of_generate(llm: dk.LLM, option: str) -> None:
    for value in WRONG:
        options: dict[str, Any] = {"max_new_tokens": 1, "on_length": "return", option: value}
        refusal(llm.generate, "the", **options)
        if option in ("seed", "batch_size"):
            refusal(lambda **given: list(llm.as_completed(["the"], **given)), **options)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("max_new_tokens", ["3", 2.5, True, -1, None, math.nan, np.float32(2.5)]),
        ("batch_size", ["3", 2.5, True, 0]),
        ("logprobs", ["3", 2.5, -1, None]),
        ("max_rollbacks", ["3", True, -1, 2.5]),
        ("seed", ["3", True, -1, 2.5, {"a": 1}, 1 << 63]),
        ("stop", [3, [3], b"a", {"a": 1}, [""]]),
        ("on_length", ["", True, 3, ["close"]]),
        ("on_error", ["", None, True]),
        ("fast_forward", ["", None, True, "On"]),
        ("masks", ["", None, True, "never"]),
    ],
)
def test_wrong_values_are_never_used(llm: dk.LLM, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(OptionError) as caught:
            llm.generate("the", **{option: value})
        assert any(str(one.at).startswith(option) for one in caught.value.faults or (caught.value,)), str(caught.value)


def test_prompts_and_texts(llm: dk.LLM) -> None:
    for value in WRONG:
        refusal(llm.generate, value, max_new_tokens=1)
        refusal(lambda given: list(llm.as_completed(given, max_new_tokens=1)), value)
        refusal(llm.score, value)


@few(2)
@pytest.mark.parametrize("strategy", ["greedy", "sample", "mirostat", "beam", "contrastive", "best-of", "particles"])
def test_options_of_strategies(strategy: str) -> None:
    """By name; an error names the option as it was given."""
    for option in inspect.signature(strategy_factory(strategy)).parameters:
        for value in WRONG:
            error = refusal(resolve_strategy, strategy, {option: value})
            if error is None or option in ("contrast", "speculate", "strategy"):  # they have options of their own
                continue
            every = [str(one.at) for one in getattr(error, "faults", ()) or (error,)]
            assert all(at.startswith(option) for at in every) and option in str(error), (option, value, str(error))


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("PromptLookup", {}),
        ("Suffix", {}),
        ("GrammarDraft", {}),
        ("EarlyExit", {"layer": 2}),
        ("DraftModel", {"model": "tiny"}),
        ("Guidance", {}),
        ("DoLa", {}),
        ("Amateur", {"model": "tiny"}),
        ("Temperature", {}),
        ("TopK", {"k": 3}),
        ("TopP", {}),
        ("LogitBias", {}),
        ("BadWords", {}),
        ("DRY", {"multiplier": 1.0}),
        ("XTC", {"probability": 0.5}),
        ("Watermark", {}),
        ("Regex", {"pattern": "a"}),
        ("Choices", {}),
        ("Grammar", {"text_or_path_or_name": 'start: "a"'}),
    ],
)
def test_options_of_values(name: str, others: dict[str, Any]) -> None:
    kind = getattr(dk, name)
    for option in inspect.signature(kind).parameters:
        for value in WRONG:
            if isinstance(value, np.ndarray | torch.Tensor) and option in ("layers", "lexer"):
                continue
            refusal(kind, **{**others, option: value})


@pytest.mark.parametrize("option", ["name_or_path", "dtype", "device", "device_map", "revision"])
def test_options_of_load(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded: what is left to transformers ends here."""

    class AskedError(Exception):
        pass

    def ask(*_: Any, **__: Any) -> None:
        raise AskedError

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", ask)
    monkeypatch.setattr(loading, "_ask_hub", ask)
    for value in WRONG:
        with contextlib.suppress(AskedError):
            refusal(loading.load, **{"name_or_path": "tiny", option: value})
    for given in ({"dtype": "flaot32"}, {"dtype": 3}, {"device": "gpu"}, {"device": True}, {"name_or_path": 3}):
        with pytest.raises(OptionError):
            loading.load(**{"name_or_path": "tiny", **given})


def test_numbers_of_numpy_and_torch_are_numbers(llm: dk.LLM) -> None:
    """Where a number is meant, those of other libraries are taken, and become plain ones."""
    as_one: list[Any] = [np.float64(0.5), np.float32(0.5), torch.tensor(0.5), np.array(0.5)]
    for value in as_one:
        assert dk.Sample(temperature=value) == dk.Sample(temperature=0.5)
        assert repr(dk.Sample(temperature=value)) == "Sample(temperature=0.5)"
        assert resolve_strategy("sample", {"top_p": value}) == dk.Sample(top_p=0.5)
    counts: list[Any] = [np.int64(3), np.int32(3), torch.tensor(3), np.uint8(3)]
    plainly = llm.generate("the", strategy="sample", seed=3, max_new_tokens=3, top_k=3)
    for value in counts:
        assert dk.Beam(value) == dk.Beam(3)
        given = llm.generate("the", strategy="sample", seed=value, max_new_tokens=value, top_k=value, batch_size=value)
        assert given.token_ids == plainly.token_ids
    seeds: list[Any] = [np.array([3, 3]), torch.tensor([3, 3]), (np.int64(3), 3)]
    for value in seeds:
        both = llm.generate(["the", "the"], strategy="sample", seed=value, max_new_tokens=3, top_k=3)
        assert [one.token_ids for one in both] == [plainly.token_ids] * 2


def test_plain_numbers() -> None:
    assert plain(np.int64(3)) == 3 and type(plain(np.int64(3))) is int
    assert type(plain(torch.tensor(0.5))) is float
    assert plain("x") == "x" and plain(None) is None
    assert plain(np.array([[1, 2]])) == plain(torch.tensor([[1, 2]])) == [[1, 2]]
    assert not is_number(10**400) and not is_number(True) and is_count(10**400)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["word"], "tokenizer.encode(text, add_special_tokens=False) for text in ['word', ' word']"),
        ("word", "for text in ['word', ' word']"),
        ([5, 6], "bad_words=[[5], [6]]"),
        ([[5, 6], "word"], "for text in ['word', ' word']"),
    ],
)
def test_bad_words_as_texts_are_refused_with_how(given: Any, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        dk.Sample(bad_words=given)
    assert caught.value.at == "bad_words" and hint in str(caught.value.hint)
