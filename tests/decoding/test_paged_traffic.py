"""Random requests over pages have the texts that they have alone, whatever fails meanwhile; no page or row is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers

from decodekit import LLM
from decodekit.models.caches.paged_rows import PageGroup
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners.step_state import StepState
from tests.decoding.traffic import Traffic, small
from tests.models import architectures
from tests.models.device_law import DeviceLawError
from tests.sizes import sized


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
