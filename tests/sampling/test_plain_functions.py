"""Functions as processors: told apart by the names of their parameters, and checked."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.errors import OptionError, ProcessorError
from decodekit.sampling import History
from decodekit.testing import check_processor
from tests.test_llm import EOS, toy

BANNED = 100


def by_history(logits: Tensor, history: History) -> Tensor:
    logits[:, BANNED:] = -torch.inf
    logits[:, EOS] -= history.lengths.to(logits)
    return logits


def by_tokens(token_ids: Tensor, logits: Tensor) -> Tensor:
    logits[:, BANNED:] = -torch.inf
    logits[:, EOS] -= token_ids.shape[1]
    return logits


def moved(shift: float, input_ids: Tensor, scores: Tensor) -> Tensor:
    return by_tokens(input_ids, scores) + shift


class Moved:
    """An object that is called as a function is."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return by_tokens(input_ids, scores)


@pytest.mark.parametrize("seed", range(3))
def test_both_kinds_give_the_same_texts(seed: int) -> None:
    options: dict[str, Any] = {"strategy": "sample", "seed": seed, "max_new_tokens": 12}
    prompts = ["the", "a longer one"]
    texts = [
        [one.token_ids for one in toy().generate(prompts, processors=given, **options)]
        for given in (
            [by_history],
            by_history,
            [by_tokens],
            partial(moved, 0.0),
            Moved(),
            [lambda logits, history: logits],
        )
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3] == texts[4] != texts[5]
    assert all(max(tokens) < BANNED for tokens in texts[0])
    drafting = toy().generate(prompts, processors=[by_history], speculate="suffix", **options)
    assert [one.token_ids for one in drafting] == texts[0]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda logits, history: logits[:, :3], "made"),
        (lambda logits, history: None, "a NoneType"),
        (lambda logits, history: logits / 0 + missing, "raised NameError"),  # type: ignore[name-defined] # noqa: F821
        (lambda logits, history: logits + torch.rand(1), "two answers"),
        (lambda logits, history: logits * float("nan"), r"made NaN or \+inf"),
    ],
)
def test_what_a_function_does_wrong_is_named(function: Any, says: str) -> None:
    with pytest.raises(ProcessorError, match=says):
        toy().generate("the", processors=[function], on_error="raise", max_new_tokens=2)


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b: a, lambda logits: logits, print])
def test_a_function_of_other_things(function: Any) -> None:
    with pytest.raises(OptionError, match="is no processor"):
        dk.Sample(processors=[function])


def test_the_laws_of_what_is_called_as_a_function() -> None:
    def scaled(by: float, logits: Tensor, history: History) -> Tensor:
        return logits * by

    check_processor(partial(scaled, 0.5))
    with pytest.raises(AssertionError, match="breaks the law 'rows'"):
        check_processor(lambda logits, history: logits - logits.clamp(min=-50).mean())
