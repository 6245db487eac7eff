from __future__ import annotations

import pytest

import decodekit as dk
from decodekit.errors import DecodekitError, OptionError, UnknownNameError
from decodekit.evaluation.spelling import named_strategies, parse_strategy, split_strategies


def test_strategies_between_commas_keep_their_options() -> None:
    text = 'greedy, sample:temperature=0.7,top_p=0.9,greedy+suffix,sample:bad_words=["a,b", "c"],min_p=0.1'
    assert split_strategies(text) == [
        "greedy",
        "sample:temperature=0.7,top_p=0.9",
        "greedy+suffix",
        'sample:bad_words=["a,b", "c"],min_p=0.1',
    ]


@pytest.mark.parametrize("text", ["greedy,,sample", "", "greedy,top_k=3", "top_k=3"])
def test_pieces_that_belong_nowhere(text: str) -> None:
    with pytest.raises(OptionError):
        split_strategies(text)


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
    ],
)
def test_spelled_strategies(text: str, strategy: object) -> None:
    assert parse_strategy(text) == strategy


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
    ],
)
def test_faults_of_spelled_strategies(text: str, message: str) -> None:
    with pytest.raises(DecodekitError, match=message):
        parse_strategy(text)


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
