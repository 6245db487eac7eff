"""Random traffic over pages, against each request alone: submits, cancels, shared beginnings, and failures anywhere.

    traffic = Traffic(llm, plain, random.Random(7))
    traffic.run(300)                    # events; then all that is left is brought to its end
    traffic.counts                      # requests that ended, by how; failures that were injected, by kind

A request has one text, whatever else is decoded and whatever fails meanwhile: the one that `plain` gives for it alone.
One that ends early, by a cancel or by a failure that nobody could be blamed for, has a beginning of it. Failures are
raised in place of the nth operation on tensors of a step: an allocation, an upload, a layer of the model, a capture, a
download. `make fuzz` runs the traffic with other seeds: ``python -m tests.decoding.traffic --minutes 5``.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decodekit import LLM, GenerateOptions
from decodekit.constraints.matching.wrapped_matcher import BudgetedMatcher
from decodekit.constraints.work_budget import WorkBudget
from decodekit.decoding.draws import device_step as decode_step
from decodekit.decoding.loop import batch
from decodekit.decoding.loop.scheduler import ScheduledRequest, Scheduler
from decodekit.errors import RequestCancelledError
from decodekit.llm.plans.prepared import Preparing
from decodekit.models.caches import paged_rows
from decodekit.models.runners import paged
from tests.models.recording import RecordedCapture

SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}}},
    "required": ["name", "tags"],
}
OPTIONS: Final[list[dict[str, Any]]] = [
    {},
    {"strategy": "sample", "temperature": 0.9},
    {"strategy": "sample", "temperature": 1.2, "top_k": 30, "top_p": 0.9},
    {"strategy": "sample", "min_p": 0.02, "speculate": "prompt-lookup"},
    {"speculate": "suffix"},
    {"constraint": SCHEMA},
    {"constraint": SCHEMA, "strategy": "sample", "temperature": 1.3, "speculate": "grammar"},
    {"constraint": SCHEMA, "masks": "always", "strategy": "sample", "top_p": 0.9},
    {"strategy": "sample", "repetition_penalty": 1.2},
    {"strategy": "beam", "num_beams": 2},
    {"strategy": "sample", "num_return_sequences": 2},
    {"logprobs": 1},
]
SILENT: Final = frozenset(
    {"view", "_unsafe_view", "reshape", "select", "slice", "detach", "alias", "expand", "t", "transpose", "unsqueeze"}
    | {"to", "lift_fresh", "resolve_neg", "resolve_conj", "chunk", "split", "unbind", "narrow", "squeeze", "numpy_T"}
)
"""Operations that only look at memory, and cannot fail."""


class FaultError(RuntimeError):
    """A failure that is nobody's fault."""


class FailsAt(TorchDispatchMode):
    """Raises in place of the nth operation."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__()
        self.left, self.error, self.where = number, error, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if not self.where and name not in SILENT:
            self.left -= 1
            if self.left < 0:
                self.where = name
                raise self.error
        return func(*args, **(kwargs or {}))


@dataclass
class Asked:
    """A request: its prompt and options, and the tokens of its texts so far."""

    prompt: tuple[int, ...]
    options: dict[str, Any]
    tokens: list[int] = field(default_factory=list)
    was_cancelled: bool = False


class Traffic:
    """Requests of all kinds in one scheduler over pages.

    Args:
        llm: over pages.
        plain: the same model otherwise.
        draw: what happens.
        num_rows: of a batch.
        fails: whether operations fail now and then.
        kinds, lengths: options of the requests, and how many tokens they may have.
    """

    def __init__(
        self, llm: LLM, plain: LLM, draw: random.Random, num_rows: int = 6, fails: bool = True,
        kinds: Sequence[dict[str, Any]] = OPTIONS, lengths: Sequence[int] = (1, 2, 6, 14, 24),
    ) -> None:  # fmt: skip
        self.llm, self.plain, self.draw, self.fails = llm, plain, draw, fails
        self._kinds, self._lengths = kinds, lengths
        self.counts: Counter[str] = Counter()
        self.asked: dict[int, Asked] = {}
        self._known: dict[Any, list[list[int]]] = {}
        self._preparing = Preparing(llm)
        self._beginnings = [self._ids(number) for number in (33, 45, 64, 8)]
        self._num_operations = 400
        self.scheduler = Scheduler(
            num_rows, cache_tokens=num_rows * 90, prefix_bytes=1 << 22, keeps_texts=True,
            max_owned=max(2, num_rows // 2),
        )  # fmt: skip

    def _ids(self, number: int) -> list[int]:
        return [self.draw.randrange(20, 1000) for _ in range(number)]

    def run(self, num_events: int) -> None:
        """So many events, and the end of all requests."""
        for _ in range(num_events):
            self.event()
        self.finish()

    def event(self) -> None:
        """One of: a request, a cancel, a step, a step that fails."""
        chance = self.draw.random()
        if chance < 0.2 and len(self.asked) < 24:
            self.submit()
        elif chance < 0.24 and self.asked:
            self.cancel(self.draw.choice(list(self.asked)))
        else:
            self.step(is_failing=self.fails and chance > 0.9)

    def finish(self) -> None:
        """Steps until nothing is left, and no page is anybody's."""
        for _ in range(10_000):
            if self.scheduler.is_idle:
                break
            self.step(is_failing=False)
        assert self.scheduler.is_idle and not self.asked
        self.scheduler.close()
        gc.collect()
        rows = self.llm.model.paged._rows  # type: ignore[attr-defined]
        rows.collect()
        held = rows.num_pages_in_use, rows.num_rows - rows.num_free_rows
        assert held == (0, 0), f"{held[0]} pages and {held[1]} rows are lost"

    def submit(self) -> None:
        """A request, whose prompt may begin like that of another one."""
        draw = self.draw
        begin = draw.choice(self._beginnings) if draw.random() < 0.7 else []
        prompt = [*begin[: draw.choice([len(begin), 40])], *self._ids(draw.choice([1, 3, 9, 50]))]
        options = {**draw.choice(self._kinds), "max_new_tokens": draw.choice(self._lengths)}
        if options.get("strategy") == "sample":
            options["seed"] = draw.randrange(3)
        self.ask(prompt, options, priority=draw.choice([0, 0, 0, 1]), owner=draw.choice([None, "one", "other"]))

    def ask(self, prompt: list[int], options: dict[str, Any], **place: Any) -> None:
        """This request; `place` is its priority and owner."""
        plan, decoder = self._preparing.plan(GenerateOptions.of(**options), [])
        request = self.llm.request(prompt, plan, options.get("seed"))
        if request.matcher is not None:  # as an engine does
            request = replace(request, matcher=BudgetedMatcher(request.matcher, WorkBudget()))
        index = self.counts["submitted"]
        self.counts["submitted"] += 1
        self.asked[index] = Asked(tuple(prompt), options)
        self.scheduler.add(ScheduledRequest(index, request, decoder, plan, plan.num_samples, **place))

    def cancel(self, index: int) -> None:
        """End a request early."""
        self.asked[index].was_cancelled = True
        self._take(self.scheduler.cancel(index, RequestCancelledError("cancelled", at=f"request {index}")))

    def step(self, *, is_failing: bool) -> None:
        """A step of the scheduler."""
        if self.scheduler.is_idle:
            return
        is_memory = self.draw.random() < 0.7
        error: Exception = torch.OutOfMemoryError("out of memory (injected)") if is_memory else FaultError("injected")
        # Early operations are uploads and embeddings, late ones draws and downloads.
        fault = FailsAt(self.draw.randrange(self._num_operations), error) if is_failing else None
        with fault or nullcontext():
            updates = self.scheduler.step()
        if fault is not None:
            reached = self._num_operations if fault.where else max(50, self._num_operations // 2)
            self._num_operations = min(4000, reached * 5 // 4) if fault.where else reached
            self.counts[f"failed: {'memory' if is_memory else 'other'}"] += bool(fault.where)
            self.counts[f"at {fault.where}"] += bool(fault.where)
        self.counts["steps"] += 1
        self._take(updates)

    def _take(self, updates: Sequence[Any]) -> None:
        for update in updates:
            asked = self.asked[update.index]
            asked.tokens += update.token_ids
            result = update.result
            if result is None:
                continue
            del self.asked[update.index]
            self.counts[result.finish_reason] += 1
            for one, whole in zip(
                [result, *(other.result for other in result.others)], self.right(asked), strict=False
            ):
                self._compare(one, whole, asked)

    def _compare(self, result: Any, whole: list[int], asked: Asked) -> None:
        text, told = list(result.token_ids), (asked, result.error, whole)
        if result.error is None:
            assert text == whole, told
        elif "num_beams" not in asked.options:  # the best hypothesis so far is no beginning of the best one in the end
            assert text == whole[: len(text)], told
        assert result.error is None or asked.was_cancelled or self.fails or not whole, told

    def right(self, asked: Asked) -> list[list[int]]:
        """The texts of a request alone."""
        key = asked.prompt, repr(asked.options)
        if key not in self._known:
            done = self.plain.generate([list(asked.prompt)], on_error="return", **asked.options)[0]
            self._known[key] = [list(done.token_ids), *(list(one.token_ids) for one in done.others)]
        return self._known[key]


def small(patch: pytest.MonkeyPatch, model: Any, *, is_captured: bool) -> None:
    """Short chunks, small arenas, rows of a few pages: what is rare in large sizes happens all the time."""
    patch.setattr(batch, "PREFILL_TOKENS", 32)
    patch.setattr(paged, "LONGEST", 160)
    patch.setattr(paged, "MAX_ROWS", 24)
    patch.setattr(paged_rows, "ARENA_BYTES", 1)
    patch.setattr(model, "_rows", None)
    if is_captured:
        for module in (paged, decode_step):
            patch.setattr(module, "CAPTURE_AFTER", 1)
            patch.setattr(module, "TRY_AGAIN_AFTER", 3)
        patch.setattr(model, "capture", RecordedCapture())


def main() -> int:
    """Traffic with other seeds until the time is over; the seed of each round is printed."""
    from decodekit.models.huggingface import HuggingFaceLM
    from tests.models import device_law

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--events", type=int, default=400, help="of a round")
    parser.add_argument("--device", default="cpu", help="cuda: nothing fails, and what lies there is not looked at")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain, on_cpu = LLM.load("tiny", device="cpu"), options.device == "cpu"
    own: Any = plain.model
    modules = own.model if on_cpu else copy.deepcopy(own.model).to(options.device)
    until, seed = time.monotonic() + 60 * options.minutes, options.seed
    while time.monotonic() < until:
        model: Any = HuggingFaceLM(modules, tier="paged", compile_layers=None if on_cpu else seed % 3 == 0)
        if not on_cpu:
            model.paged.compile_layers()
        with pytest.MonkeyPatch.context() as patch:
            small(patch, model.paged, is_captured=on_cpu and seed % 2 == 1)
            print(f"--seed {seed} --events {options.events}", end="  ", flush=True)
            if on_cpu:
                device_law.watch(patch)
            traffic = Traffic(LLM(model, plain.tokenizer), plain, random.Random(seed), fails=on_cpu)
            traffic.run(options.events)
        print(dict(traffic.counts))
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
