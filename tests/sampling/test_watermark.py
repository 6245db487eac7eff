"""The watermark: its green lists, its law, and that it is found in marked text alone."""

from __future__ import annotations

import math

import pytest
import torch

from decodekit.errors import OptionError
from decodekit.sampling import History, Pipeline, TopK, Watermark, sample, watermark_score
from decodekit.sampling.processors.watermark import green_lists
from tests.reference.sampling import mix64

GOLDEN = 0x9E3779B97F4A7C15


def is_green(context: tuple[int, ...], token: int, ratio: float, key: int) -> bool:
    """The definition on Python integers."""
    state = key
    for earlier in context:
        state = mix64(state + (earlier + 1) * GOLDEN)
    return mix64(state + (token + 1) * GOLDEN) >> 1 < int(ratio * 2.0**63)


@pytest.mark.parametrize("context", [(3,), (0, 7), (7, 0)])
def test_green_lists_equal_the_definition(context: tuple[int, ...]) -> None:
    got = green_lists(torch.tensor([context, context]), 50, 0.3, 99)
    assert got.tolist() == [[is_green(context, token, 0.3, 99) for token in range(50)]] * 2


def test_the_share_of_green_tokens() -> None:
    """100,000 tokens after 20 contexts: the share is within 5 standard deviations, 1e-6 by chance for each."""
    green = green_lists(torch.arange(20).unsqueeze(1), 100_000, 0.25, 5)
    assert ((green.float().mean(dim=-1) - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / 100_000)).all()
    other = green_lists(torch.arange(20).unsqueeze(1), 100_000, 0.25, 6)
    assert abs((green & other).float().mean() - 0.0625) < 0.002  # another key, other lists
    assert (green[0] & green[1]).float().mean() == pytest.approx(0.0625, abs=0.005)


def test_green_tokens_get_delta_and_short_prefixes_nothing() -> None:
    logits = torch.zeros(3, 40)
    logits[:, 7] = -math.inf
    history = History.from_lists([[4, 5], [5], []], [[6], [], []])
    got = Watermark(delta=1.5, ratio=0.5, key=3, context_width=2)(logits, history)
    green = [is_green((5, 6), token, 0.5, 3) for token in range(40)]
    assert got[0].tolist() == [-math.inf if t == 7 else 1.5 if green[t] else 0.0 for t in range(40)]
    assert torch.equal(got[1:], logits[1:])


def test_the_mask_and_truncation_come_before() -> None:
    """A green token that was removed stays removed, and top-k looks at the model's logits."""
    logits = torch.arange(40.0).unsqueeze(0) / 100
    history = History.from_lists([[1]], [[]])
    kept = (TopK(10) | Watermark(delta=5.0))(logits, history) > -math.inf
    assert kept[0].nonzero().flatten().tolist() == list(range(30, 40))


def generated(pipeline: Pipeline, num_tokens: int, seed: int) -> list[int]:
    text = [1]
    for position in range(num_tokens):
        generator = torch.Generator().manual_seed(text[-1])
        logits = torch.randn(1, 200, generator=generator)
        rows = pipeline.narrow(logits, History.from_lists([[1]], [text[1:]]))
        text += sample(rows, [seed], [0], [position]).tolist()
    return text[1:]


def test_a_watermark_is_found_with_its_key_only() -> None:
    """Under chance a score of 4 has odds of 3e-5 for each of the texts without a watermark."""
    mark = Watermark(delta=4.0, ratio=0.25, key=7)
    marked, plain = generated(Pipeline([mark]), 200, 0), generated(Pipeline(), 200, 0)
    assert watermark_score(marked, ratio=0.25, key=7, prompt=[1]) > 10
    assert watermark_score(marked, ratio=0.25, key=8, prompt=[1]) < 4
    assert watermark_score(plain, ratio=0.25, key=7, prompt=[1]) < 4
    assert watermark_score([], ratio=0.25, key=7) == 0.0
    assert abs(watermark_score([5] * 1000, ratio=0.25, key=7)) < 2  # a repeat is one piece of evidence


def test_settings_are_checked() -> None:
    for make in (
        lambda: Watermark(delta=math.inf),
        lambda: Watermark(ratio=1.0),
        lambda: Watermark(key=-1),
        lambda: Watermark(context_width=0),
    ):
        with pytest.raises(OptionError):
            make()


@pytest.mark.parametrize(("name", "value"), [("ratio", 2), ("ratio", 1.0), ("key", -1), ("context_width", 0)])
def test_a_score_by_settings_that_no_watermark_has_is_refused(name: str, value: float) -> None:
    settings: dict[str, float] = {"ratio": 0.25, "key": 7, name: value}
    with pytest.raises(OptionError, match=f"{name} must be"):
        watermark_score([1, 2, 3], **settings)  # type: ignore[arg-type]
