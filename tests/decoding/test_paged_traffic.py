"""Random requests over pages have the texts that they have alone, whatever fails meanwhile; no page or row is lost."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
import transformers

from decodekit import LLM
from decodekit.errors import CacheFullError
from decodekit.models import huggingface
from decodekit.models.caches.paged_rows import PageGroup
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners.step_state import StepState
from tests.decoding.traffic import SCHEMA, FailsAt, Traffic, small
from tests.models import architectures
from tests.models.device_law import DeviceLawError
from tests.sizes import few, sized


@pytest.fixture(scope="module")
def model(plain: LLM) -> Any:
    """Two layers, one of them with a sliding window."""
    torch.manual_seed(0)
    config = architectures.ALL["gemma3"]()
    config.vocab_size = plain.model.vocab_size
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def traffic_of(
    model: Any, plain: LLM, patch: pytest.MonkeyPatch, seed: int, *, is_captured: bool, fails: bool, **kinds: Any
) -> Traffic:
    lm: Any = HuggingFaceLM(model, tier="paged")
    small(patch, lm.paged, is_captured=is_captured)
    llms = [LLM(one, plain.tokenizer) for one in (lm, HuggingFaceLM(model))]
    return Traffic(*llms, random.Random(seed), fails=fails, **kinds)


@few(1)
@sized("num_events", 100, slow=3400)
@pytest.mark.parametrize(("is_captured", "fails"), [(True, False), (True, True), (False, True)])
def test_every_request_has_its_own_text(
    model: Any, plain: LLM, monkeypatch: pytest.MonkeyPatch, num_events: int, is_captured: bool, fails: bool
) -> None:
    traffic = traffic_of(
        model, plain, monkeypatch, random.Random(1).randrange(99), is_captured=is_captured, fails=fails
    )
    traffic.run(num_events)
    counts = traffic.counts
    assert counts["submitted"] > num_events // 8 and counts["length"] > num_events // 16
    assert fails == (counts["failed: memory"] > 0) == (counts["failed: other"] > 0)
    assert traffic.llm.model.paged.num_replays > 0 or not is_captured  # type: ignore[attr-defined]


@few(1)
@sized("num_events", 100, slow=3400)
@pytest.mark.parametrize(("is_captured", "fails"), [(True, True), (True, False), (False, True)])
def test_every_request_of_a_hybrid_has_its_own_text(
    plain: LLM, monkeypatch: pytest.MonkeyPatch, num_events: int, is_captured: bool, fails: bool
) -> None:
    """With recurrent state, over pages: rows go back to a state, and are read again where there is none."""
    torch.manual_seed(0)
    config = architectures.ALL["lfm2"]()
    config.vocab_size = plain.model.vocab_size
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    beside = HuggingFaceLM(copy.deepcopy(model))
    for_gpu = tuple(way._replace(is_for_gpu=False) for way in huggingface._WAYS if way.name == "recurrent")
    monkeypatch.setattr(huggingface, "_WAYS", for_gpu)
    lm: Any = HuggingFaceLM(model)
    small(monkeypatch, lm.paged, is_captured=is_captured)
    llms = LLM(lm, plain.tokenizer), LLM(beside, plain.tokenizer)
    traffic = Traffic(*llms, random.Random(random.Random(1).randrange(99)), fails=fails)
    traffic.run(num_events)
    assert traffic.counts["length"] > num_events // 16 and fails == (traffic.counts["failed: memory"] > 0)
    assert (lm.paged.num_replays > 0) == is_captured


def test_entries_that_are_written_twice_are_seen(model: Any, plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a step that writes the entries of its last upload again, though others have replaced them."""
    traffic = traffic_of(model, plain, monkeypatch, 1, is_captured=False, fails=False, num_rows=9)
    brought: dict[int, list[tuple[PageGroup, Any]]] = {}
    now: list[int] = []
    fill, write, inputs = StepState.fill, PageGroup.write, StepState.inputs

    def filled(self: StepState, *arguments: Any) -> None:
        now[:], brought[id(self)] = [id(self)], []
        fill(self, *arguments)
        now.clear()

    def noted(self: PageGroup, entries: Any, uploaded: Any) -> None:
        for one in now:
            brought[one].append((self, entries.copy()))
        write(self, entries, uploaded)

    def again(self: StepState) -> Any:
        for group, (rows, slots, numbers) in brought.get(id(self), ()):
            group.table[torch.from_numpy(rows).long(), torch.from_numpy(slots).long()] = torch.from_numpy(numbers)
        return inputs(self)

    def run() -> None:
        """Two texts decode; prompts that begin alike, within a page, are read in chunks; the first is cancelled."""
        ids = random.Random(2)
        begin, *rest = ([ids.randrange(20, 1000) for _ in range(number)] for number in (33, 70, 60, 65))
        for first in (7, 8):
            traffic.ask([first], {"max_new_tokens": 60})
        for _ in range(4):
            traffic.step(is_failing=False)
        for end in rest:
            traffic.ask([*begin, *end], {"max_new_tokens": 12})
        for _ in range(2):
            traffic.step(is_failing=False)
        traffic.cancel(2)
        traffic.finish()

    run()
    monkeypatch.setattr(StepState, "fill", filled)
    monkeypatch.setattr(PageGroup, "write", noted)
    monkeypatch.setattr(StepState, "inputs", again)
    traffic = traffic_of(model, plain, monkeypatch, 1, is_captured=False, fails=False, num_rows=9)
    with pytest.raises((DeviceLawError, AssertionError)):
        run()


WALKS: list[dict[str, Any]] = [
    {"speculate": "grammar", "strategy": "sample", "temperature": 1.3},
    {"speculate": "grammar", "masks": "always"},
    {"speculate": "prompt-lookup", "strategy": "sample", "top_p": 0.9},
]
"""Drafts under a constraint: a step walks along them with the matcher of the row."""


def over_pages(plain: LLM) -> LLM:
    """The same model over pages."""
    return LLM(HuggingFaceLM(plain.model.model, tier="paged"), plain.tokenizer)  # type: ignore[attr-defined]


def wrong_after_a_fault(llm: LLM, options: dict[str, Any], every: int) -> list[tuple[int, str]]:
    """Where memory ran out, once in the nth operation for every nth n, and the texts of two prompts became others."""
    prompts = [[7, 30, 44, 9], [5, 61, 12]]

    def texts() -> list[Any]:
        wanted: dict[str, Any] = {"constraint": SCHEMA, "max_new_tokens": 12, "on_length": "return", "seed": 2}
        return [one.token_ids for one in llm.generate(prompts, on_error="raise", **wanted, **options)]

    expected = texts()
    count = FailsAt(1 << 30, RuntimeError())
    with count:
        assert texts() == expected
    wrong, num_failed = [], 0
    for number in range(every // 2, (1 << 30) - count.left, every):
        fault = FailsAt(number, torch.OutOfMemoryError("out of memory (injected)"))
        with fault:
            try:
                found = texts()
            except (torch.OutOfMemoryError, CacheFullError):  # where there is no other row to make room
                continue
        num_failed += bool(fault.where)
        if found != expected:
            wrong.append((number, fault.where))
    assert num_failed > 5
    return wrong


@few(1)
@sized("every", 193, slow=5)
@pytest.mark.parametrize("options", WALKS, ids=range(len(WALKS)))
def test_memory_that_runs_out_anywhere_changes_no_text(plain: LLM, options: dict[str, Any], every: int) -> None:
    """The younger row leaves, the step is made again, and all goes on from where it was."""
    assert wrong_after_a_fault(over_pages(plain), options, every) == []


def test_a_matcher_does_not_stay_where_a_walk_was_broken_off(plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by other seeds: memory ran out while a draft was followed, and the text went on one token further."""
    llm = over_pages(plain)
    small(monkeypatch, llm.model.paged, is_captured=False)  # type: ignore[attr-defined]
    Traffic(llm, plain, random.Random(673262668)).run(225)
