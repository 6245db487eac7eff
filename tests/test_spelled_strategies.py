"""Strategies as text: every option of every strategy can be said, and what cannot be used is named."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest

import decodekit as dk
from decodekit.errors import DecodekitError, OptionError, UnknownNameError
from decodekit.evaluation.comparison_run import named_strategies
from decodekit.speculation import Adaptive, EarlyExit, Joined, PromptLookup, Suffix
from decodekit.spelling import read_call, split, split_calls
from decodekit.strategy import available_strategies, resolve_strategy, strategy_factory


def test_strategies_between_commas_keep_their_options() -> None:
    text = 'greedy, sample:temperature=0.7,top_p=0.9,greedy+suffix,sample:bad_words=["a,b", "c"],min_p=0.1'
    assert split_calls(text) == [
        "greedy",
        "sample:temperature=0.7,top_p=0.9",
        "greedy+suffix",
        'sample:bad_words=["a,b", "c"],min_p=0.1',
    ]


@pytest.mark.parametrize("text", ["greedy,,sample", "", "greedy,top_k=3", "top_k=3"])
def test_pieces_that_belong_nowhere(text: str) -> None:
    with pytest.raises(OptionError):
        split_calls(text)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("greedy", dk.Greedy()),
        ("sample:temperature=0.7,top_k=50", dk.Sample(temperature=0.7, top_k=50)),
        ("sample:temperature=1e+0", dk.Sample(temperature=1.0)),
        ("sample:order=hf,top_k=3", dk.Sample(order="hf", top_k=3)),
        ("greedy+suffix", dk.Greedy(speculate="suffix")),
        ("greedy+grammar+prompt-lookup", dk.Greedy(speculate="grammar+prompt-lookup")),
        ("sample:min_p=0.1+prompt-lookup", dk.Sample(min_p=0.1, speculate="prompt-lookup")),
        ("beam:num_beams=3", dk.Beam(3)),
        ("greedy:contrast=dola", dk.Greedy(contrast=dk.DoLa())),
        ("greedy:contrast=dola:low", dk.Greedy(contrast=dk.DoLa("low"))),
        (
            'sample:top_k=5,contrast="dola:layers=[0,2],relative_top=0.2"+suffix',
            dk.Sample(top_k=5, contrast=dk.DoLa([0, 2], 0.2), speculate="suffix"),
        ),
        ("beam:contrast=guidance:2", dk.Beam(contrast=dk.Guidance(2))),
        ('greedy:contrast="guidance:negative_prompt=\\"a, b + c\\""', dk.Greedy(contrast=dk.Guidance(1.5, "a, b + c"))),
        ("greedy:contrast=amateur:tiny-draft", dk.Greedy(contrast=dk.Amateur("tiny-draft"))),
        (
            "sample:verify=rejection+draft-model:tiny-draft,num_tokens=6",
            dk.Sample(verify="rejection", speculate="draft-model:tiny-draft,num_tokens=6"),
        ),
        ('sample:logit_bias={"3":-1.5}', dk.Sample(logit_bias={3: -1.5})),
        ("sample:sequence_bias=[[[1,2],-1.5]]", dk.Sample(sequence_bias={(1, 2): -1.5})),
        ('sample:watermark={"key":3}', dk.Sample(watermark=dk.Watermark(key=3))),
        ("sample:dynamic_temperature=[0.5,1.5]", dk.Sample(dynamic_temperature=[0.5, 1.5])),
        ("best-of:n=3,temperature=0.7", dk.BestOf(3, dk.Sample(0.7))),
        ('best-of:n=3,strategy="mirostat:tau=3"', dk.BestOf(3, dk.Mirostat(3))),
    ],
)
def test_spelled_strategies(text: str, strategy: object) -> None:
    assert resolve_strategy(text, {}) == strategy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gredy", "Did you mean 'greedy'"),
        ("sample:temprature=0.7", "Did you mean 'temperature'"),
        ("sample:temperature=-1", "temperature"),
        ("sample:temperature", "no option=value"),
        ("sample:temperature=1,temperature=2", "given twice"),
        ("greedy:temperature=0.7", "no effect"),
        ("greedy+sufix", "Did you mean 'suffix'"),
        ("suffix+grammar", "has a proposer already"),
        ("speculative+grammar", "has a proposer already"),
        ("greedy:speculate=suffix+grammar", "has a proposer already"),
        ("greedy:contrast=dolla", "Did you mean 'dola'"),
        ("greedy:contrast=dola:layer=low", "contrast 'dola' has no option 'layer'. Did you mean 'layers'"),
        ("greedy:contrast=amateur", "contrast 'amateur' needs model(.|\n)*amateur:MODEL(.|\n)*Amateur"),
        ('sample:watermark={"kei":3}', "watermark 'watermark' has no option 'kei'. Did you mean 'key'"),
        ("sample:sequence_bias=[1,2]", "a list of pairs"),
        ("best-of:strategy=mirostat,top_k=3", "top_k"),
        ("best-of:strategy=greedy", "all samples of greedy decoding are the same"),
    ],
)
def test_faults_of_spelled_strategies(text: str, message: str) -> None:
    with pytest.raises(DecodekitError, match=message):
        resolve_strategy(text, {})


def test_names_of_strategies() -> None:
    found = named_strategies(["greedy", "sample:top_k=3", dk.Greedy(speculate="suffix")])
    assert list(found) == ["greedy", "sample:top_k=3", "Greedy(speculate='suffix')"]
    assert named_strategies({"plain": "greedy", "hot": dk.Sample(temperature=2.0)})["plain"] == dk.Greedy()
    assert list(named_strategies("greedy")) == ["greedy"]
    assert list(named_strategies(dk.Temperature(0.5) | dk.TopK(3)).values()) == [
        dk.Sample(processors=dk.Temperature(0.5) | dk.TopK(3))
    ]


def test_faults_of_several_strategies_are_told_together() -> None:
    with pytest.raises(OptionError) as raised:
        named_strategies(["gredy", "greedy", "greedy", dk.Sample(seed=3)])
    told = str(raised.value)
    assert len(raised.value.faults) == 3
    assert "no strategy 'gredy'" in told and "is there twice" in told and "seed of its own" in told
    with pytest.raises(OptionError, match="there is no strategy"):
        named_strategies([])
    with pytest.raises(UnknownNameError):
        named_strategies("nothing")


PLAIN = {
    "rank": "mean_logprob",
    "contrast": "dola",
    "speculate": "suffix",
    "strategy": "mirostat",
    "draft_model": "tiny-draft",
    "order": "hf",
}
FUNCTIONS = {"key", "predicate"}
"""Options that are functions of Python, which no text says."""


@pytest.mark.parametrize("name", available_strategies())
def test_every_option_of_every_strategy_is_reached_by_text(name: str) -> None:
    """Whatever comes of the value, the strategy sees the option: the fault, if there is one, is not about its name."""
    for option in inspect.signature(strategy_factory(name)).parameters:
        if option in FUNCTIONS:
            continue
        told = ""
        try:
            resolve_strategy(f"{name}:{option}={PLAIN.get(option, 1)}", {})
        except DecodekitError as error:
            told = str(error)
        assert "no option" not in told and "no strategy" not in told


def test_options_beside_a_text_are_options_of_it() -> None:
    assert resolve_strategy("sample:top_k=3+suffix", {"min_p": 0.1}) == dk.Sample(
        top_k=3, min_p=0.1, speculate="suffix"
    )
    with pytest.raises(OptionError, match="top_k is given twice"):
        resolve_strategy("sample:top_k=3", {"top_k": 4})
    assert resolve_strategy("sample", {"contrast": "dola"}) == dk.Sample(contrast=dk.DoLa())


@pytest.mark.parametrize(
    ("text", "proposer"),
    [
        ("prompt-lookup:num_tokens=5", Adaptive(PromptLookup(num_tokens=5))),
        ("suffix:max_tokens=5,min_match=2", Adaptive(Suffix(5, min_match=2))),
        ("grammar:max_tokens=8", dk.GrammarDraft(8)),
        ("draft-model:tiny-draft,num_tokens=6", dk.DraftModel("tiny-draft", 6)),
        ('draft-model:"a+b,c"', dk.DraftModel("a+b,c")),
        ("draft-model:./runs/lr=0.1", dk.DraftModel("./runs/lr=0.1")),
        ("early-exit:8,num_tokens=2", EarlyExit(8, 2)),
        ("early-exit:layer=0.25", EarlyExit(0.25)),
        ("grammar:max_tokens=8+suffix:max_tokens=5", Joined((dk.GrammarDraft(8), Adaptive(Suffix(5))))),
    ],
)
def test_spelled_proposers(text: str, proposer: object) -> None:
    assert dk.Greedy(speculate=text).proposer == proposer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "draft-model",
            "proposer 'draft-model' needs model\n  at  speculate\n  try \"draft-model:MODEL\", or DraftModel",
        ),
        ("draft-model:num_tokens=3", "needs model"),
        ("draft-model:", "no option=value"),
        ("draft-model:a,model=b", "model of proposer 'draft-model' is given twice"),
        ("draft-model:a,b", "'b' is no option=value"),
        ("prompt-lookup:5", "takes no '5' without a name"),
        ("suffix:max_token=5", "has no option 'max_token'. Did you mean 'max_tokens'"),
        ("suffix:max_tokens=0", "max_tokens must be an integer of at least 1"),
    ],
)
def test_faults_of_spelled_proposers(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dk.Sample(speculate=text)


def test_a_list_of_proposers_keeps_their_options() -> None:
    assert split_calls("grammar,suffix:max_tokens=5,min_match=2") == ["grammar", "suffix:max_tokens=5,min_match=2"]


def test_quotes_and_brackets_hold_what_they_hold() -> None:
    values: list[Any] = ["a,b", 'c"d,', "e+f", {"g": ["h,i"]}, "\\", 1e5, True, None]
    text = "name:" + ",".join(f"o{number}={json.dumps(value)}" for number, value in enumerate(values))
    assert list(read_call(text).options.values()) == values
    assert split(text + "+x", "+") == [text, "x"]
    assert split("a:b=1e+5 + c", "+") == ["a:b=1e+5", "c"]


def test_an_amateur_by_its_name_is_loaded_when_it_is_used() -> None:
    amateur, llm = dk.Amateur("tiny-draft"), dk.LLM.load("tiny")
    copied = pickle.loads(pickle.dumps(amateur))
    expected = llm.generate("Invoice", max_new_tokens=6, contrast=dk.Amateur(dk.LLM.load("tiny-draft")))
    assert copied == amateur
    assert llm.generate("Invoice", max_new_tokens=6, contrast=copied).token_ids == expected.token_ids
    assert (
        llm.generate("Invoice", max_new_tokens=6, strategy="greedy:contrast=amateur:tiny-draft").text == expected.text
    )
    with pytest.raises(DecodekitError, match="no-such-model"):
        llm.generate("Invoice", contrast="amateur:./no-such-model")
