"""Contrasts of layers and of models, beside twins that read everything anew and compute in float64."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.errors import ModelError, OptionError
from decodekit.models.causal_lm import CausalLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.wrappers.contrast_model import IMPLAUSIBLE, AmateurLM, amateurish, jensen_shannon, layered
from decodekit.models.wrappers.dola import DoLaLM, candidate_layers
from tests.models import architectures
from tests.models.architectures import VOCAB_SIZE, tokens
from tests.reference.contrast import amateurish_row, divergence, exit_logits, hidden_states, law, layered_row
from tests.reference.generation import ToyLM, hashed_law
from tests.reference.models import plain_logits
from tests.sizes import few, thinned

SEVERAL = ["llama", "gemma2", "gpt2", "opt", "mixtral", "gpt_oss", "deepseek_v3", "falcon", "bloom", "lfm2"]


@functools.cache
def model(name: str) -> HuggingFaceLM:
    return HuggingFaceLM(architectures.build(name))


def check_row(found: Tensor, expected: Tensor) -> None:
    """Equal where a token is plausible; what is not ranks behind all that is, and has no probability."""
    is_plausible = expected.isfinite()
    expected = expected.float()
    torch.testing.assert_close(found[is_plausible], expected[is_plausible], atol=2e-3, rtol=1e-4)
    if not is_plausible.all():
        assert found[~is_plausible].max() < found[is_plausible].min() - 500
        assert torch.softmax(found, dim=-1)[~is_plausible].max() == 0


def run_and_check(lm: CausalLM, row: Any) -> None:
    """Prompts of unequal length, a draft with a rollback, all kinds of logits; `row(prefix)` gives what is expected."""
    first, second = tokens(0, 12), tokens(1, 7)
    cache = lm.new_cache(3, 4)

    def forward(parts: Sequence[list[int]], logits: Any) -> Tensor:
        width = max(map(len, parts))
        padded = torch.tensor([[*part, *[0] * (width - len(part))] for part in parts])
        return lm.forward(padded, [len(part) for part in parts], cache, [0, 2], logits=logits)

    out = forward([first[:5], second[:3]], "last")
    check_row(out[0], row(first[:5]))
    check_row(out[1], row(second[:3]))
    out = forward([first[5:9], second[3:4]], [3, 1])
    for i, expected in enumerate([first[:7], first[:8], first[:9], second[:4]]):
        check_row(out[i], row(expected))
    cache.truncate([6, 0, 4])
    out = forward([first[6:], second[4:]], "all")
    for t in range(6):
        check_row(out[0, t], row(first[: 7 + t]))
    for t in range(3):
        check_row(out[1, t], row(second[: 5 + t]))
    cache.reorder(torch.tensor([2, 2, 0]))
    cache.reset([1])
    assert cache.lengths.tolist() == [7, 0, 12]
    out = forward([first[:1], second[:1]], "last")
    check_row(out[0], row([*second, first[0]]))
    check_row(out[1], row([*first, second[0]]))


@few(1)
@thinned(
    "case",
    itertools.product([True, False], SEVERAL),
    keep=[*((True, name) for name in ("llama", "gemma2", "opt", "bloom", "lfm2")), (False, "gpt2"), (False, "falcon")],
)
def test_rows_of_dola_equal_those_of_a_slow_twin(case: tuple[bool, str]) -> None:
    final_norm, name = case
    lm = model(name)
    head: Any = lm.model.get_output_embeddings()  # type: ignore[operator]
    chosen = set()

    @functools.cache
    def early_of(prefix: tuple[int, ...]) -> list[Tensor]:
        if final_norm:
            return [exit_logits(lm.model, prefix, layer)[-1] for layer in (0, 1, 2)]
        with torch.no_grad():
            return [head(hidden[-1]) for hidden in hidden_states(lm.model, prefix)[:3]]

    def row(prefix: list[int]) -> Tensor:
        early, final = early_of(tuple(prefix)), plain_logits(lm.model, prefix)[-1]
        distances = [divergence(law(final), law(logits)) for logits in early]
        chosen.add(distances.index(max(distances)))
        return layered_row(final, early, 0.1)

    run_and_check(DoLaLM(lm, [0, 1, 2], 0.1, final_norm), row)
    if name in ("llama", "gpt2"):
        assert len(chosen) > 1  # places differ in their layer


def test_dola_with_one_layer_is_a_plain_difference() -> None:
    lm = model("llama")
    out = DoLaLM(lm, [1], relative_top=1e-30).forward(torch.tensor([tokens(0, 5)]), [5], lm.new_cache(1, 8))[0]
    final, early = plain_logits(lm.model, tokens(0, 5))[-1], exit_logits(lm.model, tokens(0, 5), 1)[-1]
    torch.testing.assert_close(out, final.log_softmax(-1) - early.log_softmax(-1), atol=2e-3, rtol=1e-4)


def test_the_divergence_by_hand() -> None:
    p, q = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    assert jensen_shannon(p.log(), q.log()).item() == pytest.approx(math.log(2))  # the most there is
    assert jensen_shannon(q.log(), q.log()).item() == pytest.approx(0, abs=1e-7)
    for seed in range(5):
        torch.manual_seed(seed)
        one, other = torch.randn(2, 20) * 3
        found = jensen_shannon(one.log_softmax(-1), other.log_softmax(-1)).item()
        assert found == pytest.approx(divergence(law(one), law(other)), rel=1e-4)


def test_each_place_takes_its_own_layer() -> None:
    """The farthest layer of one row is the nearest of the other; transformers 4 takes one layer for a whole batch."""
    flat, sharp = torch.zeros(4), torch.tensor([5.0, 0.0, 0.0, 0.0])
    final = torch.stack([sharp, flat])
    out = layered(final, [torch.stack([sharp, flat]), torch.stack([flat, sharp])], 0.001)
    for row in range(2):
        check_row(out[row], layered_row(final[row], [[sharp, flat], [flat, sharp]][row], 0.001))
    assert not torch.equal(out[0], final[0].log_softmax(-1) - sharp.log_softmax(-1))


@pytest.mark.parametrize(
    ("layers", "num_layers", "is_tied", "expected"),
    [
        ("high", 32, False, list(range(16, 32, 2))),
        ("low", 32, False, list(range(0, 16, 2))),
        ("low", 32, True, list(range(2, 16, 2))),
        ("high", 48, True, list(range(28, 48, 2))),
        ("low", 48, False, list(range(0, 20, 2))),
        ("low", 5, True, [2]),
        ("low", 3, True, [2]),
        ("low", 2, True, [1]),
        ("low", 1, True, [0]),
        ("high", 1, True, [0]),
        ((7, 3, 3), 8, False, [3, 7]),
    ],
)
def test_candidate_layers_are_those_of_the_paper(
    layers: Any, num_layers: int, is_tied: bool, expected: list[int]
) -> None:
    assert candidate_layers(layers, num_layers, is_tied) == expected


@pytest.mark.parametrize("layers", [[], [3], [-1], [0, 3]])
def test_layers_that_a_model_does_not_have(layers: list[int]) -> None:
    with pytest.raises(OptionError, match="which are 0 to 2"):
        DoLaLM(model("llama"), layers)


def test_models_without_readable_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="MambaForCausalLM does not show what its layers give"):
        DoLaLM(model("mamba"), "high")


def test_rows_of_an_amateur_equal_those_of_a_slow_twin() -> None:
    expert, amateur = hashed_law(9, 2.0), hashed_law(9, 1.0, salt=1)
    lm = AmateurLM(ToyLM(expert, VOCAB_SIZE), ToyLM(amateur, VOCAB_SIZE), 0.1, 0.5)
    wide: Any = lambda small: lambda prefix: torch.cat([small(prefix), torch.full((VOCAB_SIZE - 9,), -30.0)])  # noqa: E731
    lm.model.law, lm.amateur.law = wide(expert), wide(amateur)  # type: ignore[attr-defined]
    run_and_check(lm, lambda prefix: amateurish_row(wide(expert)(prefix), wide(amateur)(prefix), 0.1, 0.5))


def test_rows_of_two_real_models_equal_those_of_a_slow_twin() -> None:
    expert, amateur = model("llama"), model("gpt2")
    run_and_check(
        AmateurLM(expert, amateur, 0.2, 1.5),
        lambda prefix: amateurish_row(
            plain_logits(expert.model, prefix)[-1], plain_logits(amateur.model, prefix)[-1], 0.2, 1.5
        ),
    )


def test_the_amateur_by_hand() -> None:
    """e = (1/2, 3/8, 1/8), a = (1/2, 1/4, 1/4), beta 1: e^2 / a = (1/2, 9/16, -), for 1/8 < 0.5 * 1/2."""
    e, a = torch.tensor([0.5, 0.375, 0.125]), torch.tensor([0.5, 0.25, 0.25])
    found = amateurish(e.log(), a.log(), 0.5, 1.0)
    torch.testing.assert_close(found[:2].exp(), torch.tensor([0.5, 0.5625]))
    assert found[2].item() == pytest.approx(math.log(0.125) + 2 * IMPLAUSIBLE, rel=1e-5)
    # What the amateur does not know keeps the expert's score; what it has too much is left out.
    torch.testing.assert_close(amateurish(e.log(), a[:2].log(), 0.01, 1.0)[2], e[2].log())
    assert amateurish(e.log(), torch.zeros(5), 0.5, 1.0).shape == (3,)
    never = torch.tensor([-torch.inf, 0.0, 0.0])
    assert not amateurish(never, never, 0.1, 0.5).isnan().any()


def test_where_only_implausible_tokens_may_come_the_expert_decides() -> None:
    torch.manual_seed(0)
    expert, amateur = torch.randn(2, 50) * 4
    for found in (amateurish(expert, amateur, 0.1, 0.5), layered(expert[None], [amateur[None]], 0.1)[0]):
        implausible = found < -500
        assert 30 < implausible.sum() < 50
        torch.testing.assert_close(
            torch.softmax(found[implausible], -1), torch.softmax(expert[implausible], -1), atol=1e-3, rtol=1e-2
        )


def test_a_failing_amateur_changes_no_length() -> None:
    expert, amateur = model("llama"), ToyLM(hashed_law(VOCAB_SIZE), VOCAB_SIZE, context_length=6)
    lm = AmateurLM(expert, amateur, 0.1, 0.5)
    assert lm.context_length == 6 and lm.can_rollback
    cache = lm.new_cache(1, 4)
    lm.forward(torch.tensor([tokens(0, 5)]), [5], cache)
    with pytest.raises(AssertionError):
        lm.forward(torch.tensor([tokens(0, 2)]), [2], cache)
    assert cache.lengths.tolist() == cache.row_lengths == [5]
