"""The attention function against query-by-query attention, for every case it distinguishes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from decodekit.models.caches.kv_cache import LayerShape, PlaneShape, RaggedCache
from decodekit.models.runners import attention
from decodekit.models.runners.attention import UnsupportedAttentionError, ragged_attention
from tests.reference.models import plain_attention

CPU = torch.device("cpu")


@torch.inference_mode()
def largest_difference(
    starts: list[int],
    num_tokens: list[int],
    rows: list[int] | None = None,
    heads: tuple[int, int] = (4, 2),
    window: int | None = None,
    softcap: float | None = None,
    with_sinks: bool = False,
    num_last: int | None = None,
) -> float:
    """Fill a cache to `starts`, run one step of `num_tokens`, and compare every real query with the twin.

    Of the queries only the last columns may be asked for: `num_last`.
    """
    generator = torch.Generator().manual_seed(sum(starts) + 7 * len(starts))
    num_heads, num_key_heads = heads
    head_dim, value_dim = 8, 6
    shape = LayerShape(
        PlaneShape(num_key_heads, head_dim, torch.float32, CPU),
        PlaneShape(num_key_heads, value_dim, torch.float32, CPU),
    )
    num_rows = len(starts) if rows is None else max(rows) + 2
    chosen = list(range(num_rows)) if rows is None else rows
    cache = RaggedCache({0: shape}, num_rows, 4, CPU)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    keys: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    for row, start in zip(chosen, starts, strict=True):
        keys[row], values[row] = normal(num_key_heads, start, head_dim), normal(num_key_heads, start, value_dim)
        if start:
            step = cache.begin([start], [row])
            cache.append(0, keys[row][None], values[row][None], step)
            cache.commit(step.row_ends, [row])
    step = cache.begin(num_tokens, rows)
    step.is_strict = True
    width = max(num_tokens)
    new_keys = normal(len(chosen), num_key_heads, width, head_dim)
    new_values = normal(len(chosen), num_key_heads, width, value_dim)
    query = normal(len(chosen), num_heads, width, head_dim)
    sinks = normal(num_heads) if with_sinks else None
    key, value = cache.append(0, new_keys, new_values, step)
    first = 0 if num_last is None else max(0, width - num_last)
    out, weights = ragged_attention(
        nn.Identity(),
        query[:, :, first:],
        key,
        value,
        None,
        scaling=0.4,
        sliding_window=window,
        softcap=softcap,
        s_aux=sinks,
        decodekit_step=step,
    )
    assert weights is None and out.shape == (len(chosen), width - first, num_heads, value_dim)
    assert out.isfinite().all()  # padding too, or it would poison the slots that it is written to
    worst = 0.0
    for n, row in enumerate(chosen):
        count = num_tokens[n]
        expected = plain_attention(
            query[n, :, :count],
            torch.cat([keys[row], new_keys[n, :, :count]], dim=1),
            torch.cat([values[row], new_values[n, :, :count]], dim=1),
            range(starts[n], starts[n] + count),
            0.4,
            window,
            softcap,
            sinks,
        )
        if count > first:
            worst = max(worst, float((out[n, : count - first] - expected[first:]).abs().max()))
    return worst


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize(
    ("starts", "num_tokens", "rows"),
    [
        ([0], [6], None),
        ([0, 0, 0], [5, 1, 3], None),
        ([7], [1], None),
        ([7, 7], [1, 1], None),
        ([7, 2, 5], [1, 1, 1], None),
        ([7], [4], None),
        ([6, 3], [2, 4], None),
        ([0, 3], [4, 1], None),
        ([6, 3], [1, 1], [3, 1]),
        ([6, 6], [2, 1], [2, 0]),
        ([0, 0], [2, 3], [2, 0]),
        ([4], [3], [2]),
    ],
)
def test_every_case_of_masking(
    starts: list[int], num_tokens: list[int], rows: list[int] | None, heads: tuple[int, int], window: int | None
) -> None:
    assert largest_difference(starts, num_tokens, rows, heads, window) < 1e-5


@pytest.mark.parametrize("most_scores", [1 << 26, 1, 100])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("starts", "num_tokens"), [([0], [6]), ([5], [4]), ([0, 0], [5, 5]), ([6, 3], [4, 3])])
def test_queries_of_the_last_tokens_alone(
    monkeypatch: pytest.MonkeyPatch, starts: list[int], num_tokens: list[int], window: int | None, most_scores: int
) -> None:
    """As layers have them that read the keys of an earlier one."""
    monkeypatch.setattr(attention, "_MAX_SCORES", most_scores)
    for num_last in (1, 2, 3):
        assert largest_difference(starts, num_tokens, window=window, num_last=num_last) < 1e-5
    assert largest_difference(starts, num_tokens, window=window, softcap=1.5, num_last=2) < 1e-5


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_steps(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    starts = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    num_tokens = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    assert (
        largest_difference(
            starts,
            num_tokens,
            heads=data.draw(st.sampled_from([(4, 2), (4, 4), (6, 2)])),
            window=data.draw(st.none() | st.integers(1, 12)),
            softcap=data.draw(st.none() | st.just(1.5)),
            with_sinks=data.draw(st.booleans()),
        )
        < 1e-5
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_blocks_of_queries(data: st.DataObject) -> None:
    """The same with blocks of a few queries, as for prompts of many thousands of tokens."""
    count = data.draw(st.integers(1, 3))
    starts = data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    num_tokens = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_MAX_SCORES", data.draw(st.sampled_from([1, 100, 200])))
        assert (
            largest_difference(
                starts,
                num_tokens,
                heads=data.draw(st.sampled_from([(4, 2), (4, 4)])),
                window=data.draw(st.none() | st.integers(1, 6)),
                softcap=data.draw(st.none() | st.just(1.5)),
            )
            < 1e-5
        )


def test_a_wrong_window_or_softcap_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison sees a window that is off by one, and a forgotten cap or sink."""
    real = plain_attention

    def off(*args: object) -> torch.Tensor:
        query, key, value, positions, scaling, window, _, _ = args
        return real(query, key, value, positions, scaling, window + 1)  # type: ignore[arg-type, operator]

    monkeypatch.setitem(globals(), "plain_attention", off)
    assert largest_difference([7, 2], [1, 1], window=3) > 0.01
    assert largest_difference([7, 2], [1, 1], window=50, softcap=1.5) > 0.01
    assert largest_difference([7, 2], [1, 1], window=50, with_sinks=True) > 0.01


def test_what_is_not_understood_is_refused() -> None:
    cache = RaggedCache(
        {0: LayerShape(PlaneShape(1, 4, torch.float32, CPU), PlaneShape(1, 4, torch.float32, CPU))}, 1, 4, CPU
    )
    step = cache.begin([2], None)
    step.is_strict = True
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(UnsupportedAttentionError, match="outside of a forward pass"):
        ragged_attention(nn.Identity(), x, x, x, None)
    with pytest.raises(UnsupportedAttentionError, match="its own attention mask"):
        ragged_attention(nn.Identity(), x, x, x, torch.ones(1, 1, 2, 2), decodekit_step=step)
    with pytest.raises(UnsupportedAttentionError, match="dropout"):
        ragged_attention(nn.Identity(), x, x, x, None, dropout=0.1, decodekit_step=step)
    with pytest.raises(UnsupportedAttentionError, match="not causal"):
        ragged_attention(nn.Identity(), x, x, x, None, is_causal=False, decodekit_step=step)
    with pytest.raises(UnsupportedAttentionError, match="position_bias"):
        ragged_attention(nn.Identity(), x, x, x, None, position_bias=x, decodekit_step=step)
