"""Where the bytes of a page lie, and which pages are free."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from decodekit.gpu.pages import ALIGNMENT, STORES, Offsets, PageError, PageStore, PlaneOf, Stored, layout_of, store_of


def test_the_example_of_the_module() -> None:
    planes = layout_of([PlaneOf(1, 4, 4, torch.bfloat16)] * 2, page_size=8)
    assert planes.page_bytes == 256
    assert planes.offsets == ((0, 64, -1, -1), (128, 192, -1, -1))
    store = PageStore(planes, pages_per_arena=4, device="cpu")
    row = store.take(2)
    store.share(row[:1])
    store.release(row)
    assert [store.num_owners(page) for page in row] == [1, 0]
    assert store.take(5) == [1, 2, 3, 4, 5]
    assert store.num_pages == 8
    assert store.num_pages * planes.page_bytes == 8 * 256 == sum(map(len, store.arenas))


def test_planes_lie_apart_and_aligned() -> None:
    draw = random.Random(2)
    for _ in range(200):
        page_size = draw.choice((1, 2, 8, 32))
        layers = [
            PlaneOf(
                draw.randint(1, 3), draw.randint(1, 9), draw.randint(1, 9),
                draw.choice((torch.float32, torch.float16)), draw.choice(list(Stored)),
            )
            for _ in range(draw.randint(1, 4))
        ]  # fmt: skip
        layout = layout_of(layers, page_size)
        used = torch.zeros(layout.page_bytes, dtype=torch.int64)
        total = 0
        for layer, offsets in zip(layers, layout.offsets, strict=True):
            tokens, width = page_size * layer.num_heads, layer.stored.dtype(layer.dtype).itemsize
            sizes = [tokens * layer.key_dim * width, tokens * layer.value_dim * width, 4 * tokens, 4 * tokens]
            assert (layer.stored is Stored.AS_GIVEN) == (offsets.key_scale == -1) == (offsets.value_scale == -1)
            for begin, size in zip(offsets, sizes, strict=True):
                if begin >= 0:
                    assert begin % ALIGNMENT == 0
                    used[begin : begin + size] += 1
                    total += size
        assert used.max() == 1
        assert used.sum() == total
        assert layout.page_bytes % ALIGNMENT == 0


def test_pages_have_as_many_owners_as_shares() -> None:
    """Against a plain count, over random takes, shares and releases."""
    draw = random.Random(3)
    store = PageStore(layout_of([PlaneOf(1, 1, 1, torch.float32)], 1), 3, "cpu")
    owners: dict[int, int] = {}
    for _ in range(500):
        held = sorted(owners)
        kind = draw.choice(("take", "share", "release"))
        if kind == "take":
            free_before = store.num_pages - len(owners)
            assert store.num_free == free_before
            for page in store.take(draw.randint(0, 4)):
                assert page not in owners
                owners[page] = 1
        elif held:
            page = draw.choice(held)
            if kind == "share":
                store.share([page])
                owners[page] += 1
            else:
                store.release([page])
                owners[page] -= 1
                if not owners[page]:
                    del owners[page]
    assert all(store.num_owners(page) == owners.get(page, 0) for page in range(store.num_pages))
    assert store.num_pages == 3 * len(store.arenas)
    assert store.table[1 : 1 + len(store.arenas)].tolist() == [arena.data_ptr() for arena in store.arenas]


def test_a_store_is_found_by_its_table_while_it_is_in_use() -> None:
    store = PageStore(layout_of([PlaneOf(1, 1, 1, torch.float32)], 1), 1, "cpu")
    table = store.table
    assert store_of(table) is store
    number = int(table[0])
    del store
    gc.collect()
    assert number not in STORES
    with pytest.raises(PageError, match="keep the cache alive"):
        store_of(table)


def test_what_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PageError, match="a page of 24 tokens"):
        layout_of([PlaneOf(1, 1, 1, torch.float32)], 24)
    layout = layout_of([PlaneOf(1, 1, 1, torch.float32)], 1)
    with pytest.raises(PageError, match="0 pages"):
        PageStore(layout, 0, "cpu")
    monkeypatch.setattr("decodekit.gpu.pages.MAX_ARENAS", 2)
    store = PageStore(layout, 2, "cpu")
    with pytest.raises(PageError, match="5 pages are wanted and 0 are free"):
        store.take(5)
    assert store.arenas == []
    store.release(store.take(1))
    with pytest.raises(PageError, match="page 0 has no owner"):
        store.release([0])
    with pytest.raises(PageError, match="page 9 has no owner"):
        store.share([9])
    assert Offsets(0, 1).key_scale == -1
