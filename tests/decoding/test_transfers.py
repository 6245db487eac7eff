"""A whole step, from the proposer to the text that is handed out, is one copy to the device and one back at most.

Transfers are seen without a device: every function of torch that is given memory of the host, or that gives a value to
it, is one where the model lies elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import decodekit as dk
from decodekit import LLM
from decodekit.decoding.loop import step as step_module
from decodekit.decoding.loop.step import Texts
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.programs import proof
from decodekit.models.runners import paged
from tests.decoding.test_device_drafts import Knows, knowing
from tests.decoding.test_run_ahead import PROMPTS, SCHEMA, be_captured
from tests.models import architectures

MADE_OF_NUMBERS = {"tensor", "as_tensor", "from_numpy", "asarray"}
ON_THE_HOST = {"numpy", "pin_memory", "__get__", "is_cuda", "dim", "size", "stride", "data_ptr", "__len__", "numel"}
TO_THE_HOST = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "cpu", "nonzero", "equal", "unique"}


class Transfers(TorchFunctionMode):
    """Counts by direction what would be a transfer, since the last `reset`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._host: dict[int, Any] = {}  # tensors in memory of the host, held so that their numbers stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        is_host = any(id(one) in self._host for one in given)
        if name not in ON_THE_HOST | MADE_OF_NUMBERS:
            self.counts["up"] += is_host
            self.counts["down"] += name in TO_THE_HOST and not is_host
        out = func(*args, **(kwargs or {}))
        if name in MADE_OF_NUMBERS or (name == "pin_memory" and is_host):
            self._host[id(out)] = out
        if name == "numpy":  # a buffer that is filled in place
            self._host[id(given[0])] = given[0]
        return out

    def reset(self) -> dict[str, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The transfers (up, down) from the end of a step to that of the next; not of those that read prompts."""
    steps: list[tuple[int, int]] = []
    bring_on, others = Texts.step, step_module.flights_over
    with monkeypatch.context() as patch, Transfers() as transfers:

        def step(self: Texts, groups: Any, rows: Any) -> None:
            bring_on(self, groups, rows)
            counts = transfers.reset()
            if not counts.get("other"):
                steps.append((counts.get("up", 0), counts.get("down", 0)))

        def other(sequences: Any, *rest: Any) -> Any:
            transfers.counts["other"] += bool(sequences)
            return others(sequences, *rest)

        patch.setattr(Texts, "step", step)
        patch.setattr(step_module, "flights_over", other)
        yield steps


def transfers_of(llm: LLM, monkeypatch: pytest.MonkeyPatch, prompts: list[Any], **options: Any) -> Counter[Any]:
    """How often a step behind the prompts has so many transfers."""
    options = {"max_new_tokens": 12, "on_error": "return", **options}
    with counted(monkeypatch) as steps:
        done = llm.generate(prompts, **options)
    assert all(one.token_ids for one in done)
    return Counter(steps)


@pytest.mark.parametrize(
    ("is_captured", "numbers"),
    [(False, [4]), pytest.param(False, range(4), marks=pytest.mark.slow),
     pytest.param(True, range(5), marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_step_is_one_transfer_each_way_at_most(
    plain: LLM, ahead: LLM, monkeypatch: pytest.MonkeyPatch, is_captured: bool, numbers: Any
) -> None:
    if is_captured:
        be_captured(ahead, monkeypatch)
        monkeypatch.setattr(proof, "NUM_PROOFS", 0)  # what is compared with the modules comes down once more
    proposer, _ = knowing(plain, constraint=SCHEMA)
    prompts = [prompt or [5, 6, 7] for prompt in PROMPTS]
    cases: list[dict[str, Any]] = [
        {},
        {"strategy": "sample", "top_p": 0.9},
        {"constraint": SCHEMA},
        {"constraint": SCHEMA, "masks": "always"},
        {"constraint": SCHEMA, "strategy": dk.Greedy(speculate=proposer)},
    ]
    for options in (cases[number] for number in numbers):
        if options:
            ahead.generate(prompts, max_new_tokens=12, on_error="return", **options)  # masks are there from now on
        for some in (prompts, prompts[:1]):  # four rows of different lengths, and one
            found = transfers_of(ahead, monkeypatch, some, **options)
            assert sum(found.values()) >= 3, options
            assert max(up for up, _ in found) <= 1 and max(down for _, down in found) <= 1, (options, found)
            if not options:  # nothing goes up in steady state
                assert found[0, 1] >= 6


def test_no_layer_has_a_transfer(monkeypatch: pytest.MonkeyPatch, plain: LLM) -> None:
    monkeypatch.setattr(paged, "LONGEST", 128)
    found = []
    for num_layers in (1, 3):
        config = architectures.ALL["llama"]()
        config.num_hidden_layers, config.vocab_size = num_layers, plain.model.vocab_size
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        llm = LLM(HuggingFaceLM(model, tier="paged"), plain.tokenizer)
        prompts: list[Any] = [[5, 6, 7, 8], [9]]
        knows = Knows(tuple((tuple(prompt), (8,) * 16) for prompt in prompts))
        found.append(transfers_of(llm, monkeypatch, prompts, strategy=dk.Greedy(speculate=knows)))
    assert found[0] == found[1] and found[0].most_common(1)[0][0] == (1, 1)
    assert max(map(max, found[0])) == 1


def test_a_transfer_is_seen(ahead: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: a layer that asks for a value, and numbers that are brought along."""
    head: Any = ahead.model.paged._model.module.get_output_embeddings()  # type: ignore[attr-defined]
    for wrong, least in (
        (lambda module, inputs: None, (0, 1)),
        (lambda module, inputs: inputs[0].sum().item() and None, (0, 2)),
        (lambda module, inputs: (inputs[0] + torch.tensor([0.0]),), (1, 1)),
    ):
        handle = head.register_forward_pre_hook(wrong)
        found = transfers_of(ahead, monkeypatch, ["The"], max_new_tokens=6)
        handle.remove()
        assert found.most_common(1)[0][0] == least
