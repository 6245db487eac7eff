"""Whether the kernels are right on this machine: every shape that is used beside its twin, each with its name.

    python -m benchmarks.gpu_gate [attention] [sampler] [match]

A line for each case; a case that fails names its shape and what it differs by, and the others run on. The first case of
a shape compiles its programs, some seconds each.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.gpu_models import Rows, environment, guarded
from decodekit.gpu import paged_attention
from decodekit.gpu.draft_match import moved, take_tokens
from decodekit.gpu.draw_settings import DRAFT, MASKS, packed
from decodekit.gpu.pages import Geometry, Offsets, PageStore, PlaneOf, Stored, layout_of
from decodekit.gpu.sampler import chosen, sample_rows

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
MOST_UNITS: Final = {F32: 256, F16: 4, BF16: 2}
"""By how many units in the last place kernel and twin may differ; see `units_apart`."""
Case = dict[str, Any]

ATTENTION: Final[list[Case]] = [
    {}, {"width": 4}, {"width": 16}, {"width": 70}, {"group": 8}, {"key_dim": 64, "value_dim": 64, "group": 7},
    {"key_dim": 64, "value_dim": 64, "width": 70}, {"window": 100}, {"softcap": 30.0}, {"has_sinks": True},
    {"window": 100, "softcap": 30.0, "has_sinks": True, "width": 70}, {"dtype": F16}, {"dtype": F32},
    {"dtype": F32, "width": 70}, {"stored": Stored.INT8}, {"stored": Stored.INT8, "width": 70},
    {"key_dim": 192, "group": 1},
    {"key_dim": 192, "group": 1, "width": 70}, {"key_dim": 256, "value_dim": 256}, {"key_dim": 80, "value_dim": 80},
    {"key_dim": 256, "value_dim": 256, "width": 70}, {"key_dim": 576, "value_dim": 512, "heads": 1, "group": 16},
    {"key_dim": 576, "value_dim": 512, "heads": 1, "group": 16, "width": 70}, {"key_dim": 512, "value_dim": 512},
]  # fmt: skip


def units_apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference in units in the last place of the expected numbers, those below 1 counted as 1.

    Numbers are means of values that are about 1, whose shares are rounded, too: by half a unit of 1 or less, however
    small the mean is. Two roundings to the type of `found` differ by one unit, which is 0.03 for 4 in bfloat16.
    """
    _, exponents = torch.frexp(expected.double().abs().clamp(min=1.0))
    units = torch.finfo(found.dtype).eps * torch.exp2(exponents.double() - 1.0)
    apart = ((found.double() - expected.double()).abs() / units).amax() if found.numel() else found.new_zeros(())
    return float("inf") if bool(apart.isnan()) else float(apart)


def attention_error(
    device: torch.device, dtype: torch.dtype = BF16, width: int = 1, heads: int = 2, group: int = 4, key_dim: int = 128,
    value_dim: int = 128, stored: Stored = Stored.AS_GIVEN, window: int = 0, softcap: float = 0.0,
    has_sinks: bool = False,
) -> float:  # fmt: skip
    """The largest difference of kernel and twin by `units_apart`: unequal rows read a prompt in two parts, then go on.

    Raises:
        AssertionError: they write different bytes.
    """
    generator = torch.Generator(device).manual_seed(0)
    layout = layout_of([PlaneOf(heads, key_dim, value_dim, dtype, stored)] * 2)
    store = PageStore(layout, 16, device)
    lengths = [0, 700, 33, 1500]
    pages = store.take(4 * 52)
    random.Random(0).shuffle(pages)
    for arena in store.arenas:
        arena.fill_(0xFF)  # NaN
    table = torch.tensor(pages, dtype=torch.int32, device=device).view(4, 52)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    sinks = drawn(heads * group) if has_sinks else None
    worst, starts = 0.0, [0] * 4
    for counts in (lengths, [width, min(width, 3), 0, width], [1, width, width, 0]):
        span = max(counts) if counts is lengths else width
        query, key, value = (
            drawn(4, span, *shape) for shape in ((heads * group, key_dim), (heads, key_dim), (heads, value_dim))
        )
        numbers = [torch.tensor(one, dtype=torch.int32, device=device) for one in (starts, counts)]
        before = [arena.clone() for arena in store.arenas]
        out = paged_attention.paged_attention(
            query, key, value, table, *numbers, store.table, list(store.geometry), list(layout.offsets[1]), int(stored),
            0.09, window, softcap, sinks,
        )  # fmt: skip
        written = torch.cat(store.arenas)
        for arena, old in zip(store.arenas, before, strict=True):
            arena.copy_(old)
        expected = paged_attention.attended(
            query, key, value, table, numbers[0], numbers[1], store.arenas, Geometry(*store.geometry),
            Offsets(*layout.offsets[1]), stored, 0.09, window, softcap, sinks,
        )  # fmt: skip
        differ = (written != torch.cat(store.arenas)).sum()
        assert not differ, f"{int(differ)} bytes of pages differ behind {starts} + {counts}"
        worst = max(worst, units_apart(out, expected))
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return worst


def attention(rows: Rows, device: torch.device) -> None:
    """Each shape of attention."""
    for case in ATTENTION:
        name = "attention " + (", ".join(f"{key}={value}" for key, value in case.items()) or "of one token")
        with guarded(rows, name, device):
            begin = time.perf_counter()
            error, most = attention_error(device, **case), MOST_UNITS[case.get("dtype", BF16)]
            rows.append({"what": name, "is_right": error <= most, "units": error, "s": time.perf_counter() - begin})


SETTINGS: Final = [
    (1.0, 0, 1.0, 0.0, False), (0.8, 50, 0.95, 0.05, False), (1.7, 5, 1.0, 0.0, False), (0.7, 0, 0.9, 0.0, False),
    (1.0, 1, 0.5, 0.3, False), (1.0, 0, 1.0, 0.0, True), (1.0, 200_000, 0.3, 0.0, False), (0.01, 3, 0.95, 0.0, False),
]  # fmt: skip


def sampler(rows: Rows, device: torch.device) -> None:
    """Each chain of programs of the sampler, over rows that are plain, steep, flat, full of ties, banned, NaN."""
    for vocab_size, dtype, has_masks, uses in (
        (152_064, F32, False, (False, False)), (152_064, F32, False, (True, False)),
        (152_064, F32, False, (False, True)), (152_064, F32, False, (True, True)),
        (131_072, BF16, True, (True, True)), (4099, F32, True, (True, True)),
    ):  # fmt: skip
        name = f"sampler V={vocab_size} {dtype} masks={has_masks} top-k, top-p={uses}"
        with guarded(rows, name, device):
            begin = time.perf_counter()
            generator = torch.Generator().manual_seed(vocab_size)
            settings = [(t, k * uses[0], p if uses[1] else 1.0, m, g) for t, k, p, m, g in SETTINGS]
            logits = torch.randn(8, vocab_size, generator=generator) * 3
            logits[1] *= 4
            logits[2] *= 1e-3
            logits[3] = (logits[3] * 2).round()
            logits[4] = logits[4].where(torch.rand(vocab_size, generator=generator) < 0.3, -torch.inf)
            wrong, logits = [], logits.to(dtype)
            masks = ids = None
            if has_masks:
                words = torch.randint(-(2**31), 2**31, (3, -(-vocab_size // 32)), generator=generator)
                masks, ids = words.to(torch.int32), torch.tensor([-1, 0, 1, 2, -1, 0, 1, 2], dtype=torch.int32)
            for trial in range(4):
                if trial == 3:
                    logits[0, 7], logits[7] = torch.nan, -torch.inf
                drawn_by = packed(settings, range(trial, 8 + trial), [trial] * 8, range(8), is_asked=bool(trial % 2))
                if ids is not None:
                    drawn_by[MASKS] = ids
                values = torch.from_numpy(drawn_by)
                expected = chosen(logits, values, masks, 1, any(uses))
                there: list[Any] = [None if one is None else one.to(device) for one in (logits, values, masks)]
                found = sample_rows(*there, 1, any(uses)).cpu()
                for row in (found != expected).any(dim=1).nonzero().flatten().tolist():
                    a, b = found[row].tolist(), expected[row].tolist()
                    wrong.append(f"row {row} in trial {trial}: {a} for {b}, {settings[row]}")
                logits = logits.roll(1, dims=0)
            rows.append({"what": name, "is_right": not wrong, "wrong": wrong[:6], "s": time.perf_counter() - begin})


def match(rows: Rows, device: torch.device) -> None:
    """The end of a step, with the coupled match of drafts: 256 texts for each width."""
    names = ("logits", "values", "masks", "rows", "starts", "counts", "tokens", "taken", "out")
    for width in (1, 2, 4, 5, 16):
        with guarded(rows, f"coupled match of {width}", device):
            generator = torch.Generator().manual_seed(width)

            def drawn(*shape: int, most: int, generator: torch.Generator = generator) -> Tensor:
                return torch.randint(0, most, shape, generator=generator).int()

            count = 256
            logits = torch.randn(count * width, 40, generator=generator)
            logits[drawn(count * width, most=12) == 0] = torch.nan
            values = torch.from_numpy(
                packed([(1.0, 0, 1.0, 0.0, False)] * count, range(count), range(count), range(count), width)
            )
            values[DRAFT] = drawn(count, most=width)
            own = chosen(logits, values, None, width, False)[:, 0].view(count, width)
            tokens = torch.where(drawn(count, width, most=4) == 0, 7, own.roll(1, dims=1))  # behind the pending one
            masks, out = torch.zeros(1, 2, dtype=torch.int32), torch.zeros(count, 3 * width + 1, dtype=torch.int32)
            state = torch.arange(count).int(), drawn(count, most=99), values[DRAFT] + 1, tokens, torch.arange(count)
            given: list[Any] = [logits, values, masks, *state, out]
            there = [one.to(device) for one in given]
            for act, arguments in ((take_tokens, there), (moved, given)):
                act(*arguments, False)  # type: ignore[call-arg]
            differ = [name for name, one, other in zip(names, there, given, strict=True)
                      if not torch.equal(one.cpu().nan_to_num(), other.nan_to_num())]  # fmt: skip
            rows.append({"what": f"coupled match of {width}", "is_right": not differ, "wrong": differ})


PARTS: Final = {"attention": attention, "sampler": sampler, "match": match}


def main(argv: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS])
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(argv)
    device, rows = torch.device(args.device), Rows()
    rows.append(environment(device))
    for part in args.parts:
        PARTS[part](rows, device)
    wrong = [row["what"] for row in rows[1:] if not row.get("is_right")]
    print(f"{len(rows) - 1 - len(wrong)} right, {len(wrong)} not: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
