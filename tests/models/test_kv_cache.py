"""The ragged cache against lists, under random sequences of its operations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.collector import memory_bytes
from decodekit.models.caches.kv_cache import LayerShape, PlaneShape, RaggedCache
from decodekit.models.caches.quantised_planes import QuantisedCache
from tests.reference.models import ListCache
from tests.sizes import few

CPU = torch.device("cpu")


@pytest.mark.skipif(not memory_bytes(), reason="the system does not tell it")
def test_a_cache_takes_memory_for_what_is_written() -> None:
    """Of 256 MiB, when it is made and when it has grown, with a few tokens in each row."""
    shape = plane(4, 32)
    cache = RaggedCache({number: LayerShape(shape, shape) for number in range(8)}, 32, 512, CPU)
    before = memory_bytes()
    new = torch.ones(32, 4, 8, 32)
    step = cache.begin([8] * 32, None)
    for layer in range(8):
        cache.append(layer, new, new, step)
    cache.commit(step.row_ends, None)
    cache.grow(1023)
    written = 8 * 32 * cache.num_bytes // (32 * 1024)
    assert cache.num_bytes == 256 << 20 and written == 2 << 20
    assert memory_bytes() - before < 16 * written


def plane(num_heads: int, head_dim: int) -> PlaneShape:
    return PlaneShape(num_heads, head_dim, torch.float32, CPU)


# Layer 2 is of another shape, and its values are narrower than its keys.
LAYERS = {
    0: LayerShape(plane(2, 4), plane(2, 4)),
    1: LayerShape(plane(2, 4), plane(2, 4)),
    2: LayerShape(plane(1, 6), plane(1, 3)),
}


class Pair:
    """The cache and its twin, fed with the same numbers."""

    def __init__(self, num_rows: int, capacity: int, kind: type[RaggedCache] = RaggedCache) -> None:
        self.cache = kind(LAYERS, num_rows, capacity, CPU)
        self.twins = {(layer, i): ListCache(num_rows) for layer in LAYERS for i in range(2)}
        self.counter = 0.0

    def fresh(self, *shape: int) -> torch.Tensor:
        count = int(torch.tensor(shape).prod())
        self.counter += count
        return torch.arange(self.counter - count, self.counter).view(shape)

    @torch.inference_mode()
    def append(self, num_tokens: list[int], rows: list[int] | None) -> None:
        step = self.cache.begin(num_tokens, rows)
        chosen = list(range(self.cache.num_rows)) if rows is None else rows
        for layer, shape in LAYERS.items():
            new = [self.fresh(len(chosen), s.num_heads, max(num_tokens), s.head_dim) for s in (shape.key, shape.value)]
            stored = self.cache.append(layer, new[0], new[1], step)
            for i in range(2):
                twin = self.twins[layer, i]
                for n, row in enumerate(chosen):
                    twin.append(row, [self.kept(new[i][n, :, t]) for t in range(num_tokens[n])])
                    expected = torch.stack(twin.rows[row], dim=1)  # [H, length, D]
                    assert torch.equal(stored[i][n, :, : expected.shape[1]], expected)
        self.cache.commit(step.row_ends, rows)
        for n, ends in enumerate(step.row_ends):
            positions = step.positions.expand(len(chosen), -1)[n]
            assert positions[: num_tokens[n]].tolist() == list(range(ends - num_tokens[n], ends))

    def kept(self, numbers: torch.Tensor) -> torch.Tensor:
        """What the cache gives back of the key or value of one token [H, D], whatever stands beside it."""
        if not isinstance(self.cache, QuantisedCache):
            return numbers
        return torch.stack([rounded(head) for head in numbers])

    def lengths(self) -> list[int]:
        lengths = [len(row) for row in self.twins[0, 0].rows]
        assert self.cache.lengths.tolist() == lengths == list(self.cache.row_lengths)
        return lengths


def rounded(numbers: torch.Tensor) -> torch.Tensor:
    """One head of one token [D] as eight bits keep it."""
    scale = numbers.abs().max() / 127
    return torch.stack([torch.round(number / scale) * scale if scale > 0 else 0 * number for number in numbers])


@few(1)
@pytest.mark.parametrize("kind", [RaggedCache, QuantisedCache])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_operations_agree_with_lists(kind: type[RaggedCache], data: st.DataObject) -> None:
    pair = Pair(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)), kind)
    for _ in range(data.draw(st.integers(1, 8))):
        rows = pair.cache.num_rows
        match data.draw(st.sampled_from(["append", "append", "append", "truncate", "reset", "reorder", "grow"])):
            case "append":
                order = data.draw(st.permutations(range(rows)))
                chosen = data.draw(st.one_of(st.none(), st.integers(1, rows).map(lambda n, o=order: o[:n])))
                count = rows if chosen is None else len(chosen)
                pair.append(data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)), chosen)
            case "truncate":
                lengths = [data.draw(st.integers(0, length)) for length in pair.lengths()]
                pair.cache.truncate(torch.tensor(lengths) if data.draw(st.booleans()) else lengths)
                for twin in pair.twins.values():
                    twin.truncate(lengths)
            case "reset":
                chosen = data.draw(st.lists(st.integers(0, rows - 1), unique=True))
                pair.cache.reset(chosen)
                for twin in pair.twins.values():
                    twin.reset(chosen)
            case "reorder":
                order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows))
                pair.cache.reorder(torch.tensor(order))
                for twin in pair.twins.values():
                    twin.reorder(order)
            case "grow":
                pair.cache.grow(data.draw(st.integers(1, 20)))
        pair.lengths()
        assert pair.cache.capacity >= max(pair.lengths())


def test_lengths_change_at_commit_only() -> None:
    cache = RaggedCache(LAYERS, 2, 4, CPU)
    step = cache.begin([2, 1], None)
    assert cache.row_lengths == (0, 0)
    cache.commit(step.row_ends, None)
    assert cache.row_lengths == (2, 1)


@torch.inference_mode()
def test_reset_removes_nan() -> None:
    cache = RaggedCache(LAYERS, 2, 4, CPU)
    step = cache.begin([3, 3], None)
    cache.append(0, torch.full((2, 2, 3, 4), torch.nan), torch.full((2, 2, 3, 4), torch.nan), step)
    cache.commit(step.row_ends, None)
    cache.truncate([1, 1])
    cache.reset([1])
    step = cache.begin([1], [1])
    cache.commit(step.row_ends, [1])
    # Slot 1 and 2 of row 1 are behind the mask, and must hold numbers all the same.
    step = cache.begin([1, 1], None)
    ones = torch.ones(2, 2, 1, 4)
    keys, _ = cache.append(0, ones, ones, step)
    assert keys[0].isnan().any()
    assert not keys[1].isnan().any()


@torch.inference_mode()
def test_an_order_of_all_rows_is_copied_in_place() -> None:
    """Rows 0 and 2 change places, row 1 stays; what a row held beyond its new length is gone, NaN too."""
    cache = RaggedCache(LAYERS, 3, 4, CPU)
    storage = cache._planes[0][0].untyped_storage().data_ptr()
    new = torch.arange(3.0)[:, None, None, None].expand(3, 2, 4, 4).clone()
    new[2, :, 1:] = torch.nan
    step = cache.begin([1, 2, 1], None)
    cache.append(0, new[:, :, :2], new[:, :, :2], step)
    cache.commit(step.row_ends, None)
    cache.reorder(torch.tensor([2, 1, 0]))
    keys = cache._planes[0][0]
    assert keys.untyped_storage().data_ptr() == storage
    assert cache.row_lengths == (1, 2, 1)
    assert keys[:, 0, 0, 0].tolist() == [2.0, 1.0, 0.0]
    cache.reorder(torch.tensor([1, 1, 1]))
    assert cache.row_lengths == (2, 2, 2)
    assert torch.equal(keys[0, :, :2], new[1, :, :2]) and torch.equal(keys[2], keys[1])
    cache.reset([0])
    cache.reorder(torch.tensor([0, 0, 0]))
    assert not keys.any()


@torch.inference_mode()
def test_what_two_rows_share_is_not_copied_again() -> None:
    """Rows are copied from the first slot on in which they differ: what is overwritten by hand before it stays."""
    pair = Pair(3, 8)
    pair.append([4, 1, 1], None)

    def copied_slots(order: list[int], row: int) -> list[int]:
        """Slots that are written when `row` becomes row `order[row]`."""
        keys = pair.cache._planes[0][0]
        before = keys.clone()
        keys[row, :, : pair.cache.row_lengths[row]] = -1.0
        pair.cache.reorder(torch.tensor(order))
        slots = [slot for slot in range(pair.cache.row_lengths[row]) if keys[row, 0, slot, 0] != -1.0]
        keys[row] = before[order[row]]
        return slots

    assert copied_slots([0, 0, 2], 1) == copied_slots([0, 1, 0], 2) == [0, 1, 2, 3]
    for twin in pair.twins.values():
        twin.reorder([0, 0, 0])
    pair.append([1, 1, 1], None)
    assert copied_slots([0, 2, 2], 1) == [4]  # they never met, but both began as row 0
    for twin in pair.twins.values():
        twin.reorder([0, 2, 2])
    pair.cache.truncate([5, 5, 2])
    for twin in pair.twins.values():
        twin.truncate([5, 5, 2])
    pair.append([1, 1, 2], None)
    assert copied_slots([0, 1, 1], 2) == [2, 3, 4, 5]  # two slots are common still


@torch.inference_mode()
def test_consecutive_rows_are_read_without_a_copy() -> None:
    cache = RaggedCache(LAYERS, 3, 8, CPU)
    cache.commit(cache.begin([1, 2, 3], None).row_ends, None)
    step = cache.begin([1, 1], [1, 2])
    new = torch.ones(2, 2, 1, 4)
    keys, _ = cache.append(0, new, new, step)
    assert keys.untyped_storage().data_ptr() == cache._planes[0][0].untyped_storage().data_ptr()


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        RaggedCache(LAYERS, 0, 4, CPU)
    cache = RaggedCache(LAYERS, 2, 4, CPU)
    cache.commit(cache.begin([2, 2], None).row_ends, None)
    for lengths in ([3, 2], [-1, 2], [1]):
        with pytest.raises(ValueError, match=r"truncated|lengths given"):
            cache.truncate(lengths)
    for order in ([], [0, 1, 0], [2], [-1]):
        with pytest.raises(ValueError, match="no order"):
            cache.reorder(torch.tensor(order, dtype=torch.int64))
    assert cache.row_lengths == (2, 2)
