"""Products of a few rows beside sums in float64, bit for bit the same whatever rows stand beside one, and only where
they are meant to be."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.few_row_layers import FewRowsLinear, quicker_here, with_few_rows
from decodekit.models.programs.proof import NUM_PROOFS
from decodekit.products import cpu_team, few_rows
from decodekit.products.cpu_products import MAX_ROWS, PRODUCT_ROWS
from decodekit.products.few_rows import few_rows_linear
from decodekit.products.step_code import Field, Op
from tests.models.architectures import build, tokens
from tests.sizes import few

NO_MORE = dict.fromkeys(PRODUCT_ROWS, MAX_ROWS)
"""In place of `PRODUCT_ROWS`: what has more rows is torch's."""


def numbers_of_rows(dtype: torch.dtype) -> list[int]:
    """All up to eight, and the most that are multiplied here."""
    return sorted({*range(1, MAX_ROWS + 1), PRODUCT_ROWS[dtype] - 1, PRODUCT_ROWS[dtype]})


DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Rows, outputs and width of every product that is made here."""
    seen: list[tuple[int, int, int]] = []
    multiply = cpu_team.multiply

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append((len(x), *weight.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(cpu_team, "multiply", counted)
    return seen


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def error_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """How far products may be from those of float64: sums of float32, rounded to the type."""
    most = linear(x.abs().double(), weight.abs().double(), None if bias is None else bias.abs().double())
    unit = 0.0 if x.dtype is torch.float32 else torch.finfo(x.dtype).eps / 2
    return (x.shape[-1] + 1) * 2.0**-24 * most + unit * most + 1e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_of_many_rows_are_added_in_float32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece, the last one smaller, with and without a bias; what a processor multiplies itself is torch's."""
    monkeypatch.setattr(few_rows, "_PIECE", 1000)
    monkeypatch.setattr(few_rows, "PRODUCT_ROWS", NO_MORE)
    for is_widened in (True, False):
        monkeypatch.setattr(few_rows, "WIDENED", frozenset({dtype} if is_widened else ()))
        pieces: list[int] = []

        def noted(x: Tensor, weight: Tensor, bias: Tensor | None, pieces: list[int] = pieces) -> Tensor:
            pieces.append(len(weight))
            return linear(x, weight, bias)

        monkeypatch.setattr(few_rows, "linear", noted)
        for num_rows, num_outs, width in ((MAX_ROWS + 1, 70, 33), (30, 10, 1500), (64, 1, 1000), (9, 4, 0)):
            x, weight, bias = (
                one.to(dtype) for one in (numbers(num_rows, width), numbers(num_outs, width), numbers(num_outs))
            )
            for added in (None, bias):
                exact = linear(x.double(), weight.double(), None if added is None else added.double())
                ours = few_rows_linear(x.view(1, num_rows, width), weight, added)
                assert ours.dtype is dtype and ours.shape == (1, num_rows, num_outs)
                assert not is_widened or bool(((ours[0].double() - exact).abs() <= error_of(x, weight, added)).all())
        assert pieces == (
            [30, 30, 10] * 2 + [1] * 20 + [1] * 2 + [4] * 2 if is_widened else [70, 70, 10, 10, 1, 1, 4, 4]
        )


@DTYPE
def test_products_are_those_of_float64(calls: list[Any], dtype: torch.dtype) -> None:
    """Rows of every tile, outputs that fill a tile or not, widths that fill vectors and blocks or not."""
    widths = (1, 2, 15, 16, 31, 33, 64, 129, 1024, 1030, 2100)
    shapes = [*product(numbers_of_rows(dtype), (1, 3, 17), widths)]
    for num_rows, num_outs, width in shapes:
        x, weight, bias = (
            one.to(dtype) for one in (numbers(num_rows, 1, width), numbers(num_outs, width), numbers(num_outs))
        )
        for added in (None, bias):
            found = few_rows_linear(x, weight, added)
            expected = linear(x.double(), weight.double(), None if added is None else added.double())
            assert found.shape == (num_rows, 1, num_outs) and found.dtype is dtype
            wrong = (found - expected).abs() > error_of(x, weight, added)
            assert not bool(wrong.any()), (num_rows, num_outs, width)
    assert calls == [shape for shape in shapes for _ in range(2)]


@DTYPE
def test_a_row_is_the_same_beside_any_others_and_by_any_threads(dtype: torch.dtype) -> None:
    for num_outs, width in ((50, 300), (700, 1200), (40, 5000)):  # some that are shared, and x in the cache or not
        x, weight = numbers(PRODUCT_ROWS[dtype], width).to(dtype), numbers(num_outs, width).to(dtype)
        alone = torch.cat([few_rows_linear(row[None], weight) for row in x])
        for num_threads, num_rows in product((1, 2, 3), numbers_of_rows(dtype)):
            torch.set_num_threads(num_threads)
            assert torch.equal(few_rows_linear(x[:num_rows], weight), alone[:num_rows])
    # The comparison sees an order of addition: the same products from the last to the first.
    assert not torch.equal(few_rows_linear(x.flip(1), weight.flip(1)).float(), alone.float()) or dtype != torch.float32


@DTYPE
def test_int8_weights_are_multiplied_as_the_numbers_that_they_are(dtype: torch.dtype) -> None:
    """Bit for bit what the same numbers come to in float32, where torch does it, too, up to rounding."""
    for num_rows, num_outs, width in product(numbers_of_rows(torch.int8), (1, 3, 17), (1, 15, 33, 64, 1030, 2100)):
        x = numbers(num_rows, width).to(dtype)
        codes = torch.randint(-128, 128, (num_outs, width), generator=torch.manual_seed(width), dtype=torch.int8)
        found = few_rows_linear(x, codes)
        assert found.dtype is torch.float32
        assert torch.equal(found, cpu_team.multiply(x.float(), codes.float(), None))
        bias = numbers(num_outs)
        assert torch.equal(few_rows_linear(x, codes, bias), cpu_team.multiply(x.float(), codes.float(), bias))
    many = numbers(PRODUCT_ROWS[torch.int8] + 1, width).to(dtype)
    assert torch.equal(few_rows_linear(many, codes), linear(many.float(), codes.float()))
    assert torch.equal(few_rows_linear(many, codes, bias), linear(many.float(), codes.float(), bias))


@DTYPE
def test_results_are_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    """A product with 1 is the number itself; half-way numbers go to the even one, as in torch."""
    exact = torch.cat([torch.tensor([0.0, -0.0, 1e-40, 3e38, torch.inf, -torch.inf]), numbers(200)]).to(dtype)
    one = torch.ones(1, 1, dtype=dtype)
    assert torch.equal(few_rows_linear(one, exact[:, None].contiguous())[0], exact + 0)
    halves = torch.tensor([1.0, 1.0], dtype=dtype)[None]
    step = torch.finfo(dtype).eps
    weights = torch.tensor([[1.0, k * step / 2] for k in range(8)], dtype=dtype)
    assert torch.equal(few_rows_linear(halves, weights)[0], weights.float().sum(1).to(dtype))


def test_threads_that_ask_at_once_get_their_own_numbers() -> None:
    """Four threads, one team of two: one has it, the others multiply alone."""
    torch.set_num_threads(2)
    x, weights = numbers(3, 512), [numbers(400, 512) + i for i in range(4)]
    expected = [few_rows_linear(x, weight) for weight in weights]
    wrong: list[int] = []

    def ask(which: int) -> None:
        torch.set_num_threads(2)
        for _ in range(300):
            if not torch.equal(few_rows_linear(x, weights[which]), expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=ask, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not torch.equal(expected[0], expected[1])


def test_helpers_work_and_end() -> None:
    """What a team makes is what one thread makes, and its helpers end when they are told to, asleep or not."""
    team = cpu_team.Team(2)
    x, weight = numbers(1, 1024), numbers(20_000, 1024)
    out = x.new_zeros(1, 20_000)
    room = torch.empty(cpu_team.ROOM + 1024 + 16)
    for _ in range(20):
        cpu_team.product(
            team.state,
            cpu_team.MAKERS[0].address,
            0,
            4,
            x.data_ptr(),
            weight.data_ptr(),
            0,
            out.data_ptr(),
            room.data_ptr(),
            1,
            20_000,
            1024,
        )
    assert torch.equal(out, few_rows_linear(x, weight))
    team.close()
    assert not any(thread.is_alive() for thread in team._threads)


def test_a_fork_multiplies_with_helpers_of_its_own() -> None:
    code = (
        "import os, torch; from decodekit.products.few_rows import few_rows_linear as f; torch.set_num_threads(2);"
        "x, w = torch.ones(1, 600), torch.ones(300, 600); f(x, w); pid = os.fork();"
        "ok = bool((f(x, w) == 600).all());"
        "os._exit(0 if ok else 1) if pid == 0 else print(ok, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True", "0"]


def test_what_is_not_a_number_goes_through() -> None:
    x, weight = torch.ones(2, 40), torch.ones(4, 40)
    weight[0, 3], weight[1, 5], weight[2, 7], weight[2, 8] = torch.inf, torch.nan, torch.inf, -torch.inf
    found = few_rows_linear(x, weight)
    assert found[:, 0].tolist() == [torch.inf] * 2 and bool(found[:, 1:3].isnan().all())
    assert found[:, 3].tolist() == [40.0] * 2


def test_all_else_is_left_to_torch(calls: list[Any]) -> None:
    x, weight, bias = numbers(3, 16), numbers(5, 16), numbers(5)
    others = [
        (numbers(MAX_ROWS + 1, 16), weight, bias),
        (x[:0], weight, None),
        (x.double(), weight.double(), None),
        (numbers(16, 3).T, weight, None),
        (x, numbers(16, 5).T, bias),
    ]
    for arguments in others:
        assert torch.equal(few_rows_linear(*arguments), linear(*arguments))
    assert calls == []
    few_rows_linear(x, weight, bias)
    assert calls == [(3, 5, 16)]


def test_only_plain_layers_become_others() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = nn.Sequential(nn.Linear(4, 4), Scaled(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4, device="meta"))
    assert [type(one) for one in with_few_rows(copy.deepcopy(model))] == [FewRowsLinear, Scaled, nn.Linear, nn.Linear]


def test_steps_use_them_by_modules_or_by_programs_and_the_model_stays(calls: list[Any]) -> None:
    model = build("llama")
    kinds = [type(module) for module in model.modules()]
    num_layers = kinds.count(nn.Linear)
    prompt = torch.tensor([tokens(0, 6)])
    with torch.inference_mode():
        before = model(prompt).logits
    lm = HuggingFaceLM(model, tier="ragged")
    cache = lm.new_cache(1, 32)
    lm.forward(prompt, [6], cache)
    for number in range(6):
        calls.clear()
        lm.forward(prompt[:, :1], [1], cache)
        if number < NUM_PROOFS:  # the first step is written down, twice
            assert len(calls) == (1 if number else 3) * num_layers and {num_rows for num_rows, *_ in calls} == {1}
    assert calls == []
    [kind] = lm._runner._replays._kinds.values()  # type: ignore[union-attr]
    assert kind.program is not None and int((kind.program.codes[:, Field.OP] == Op.LINEAR).sum()) == num_layers
    with torch.inference_mode():
        assert torch.equal(model(prompt).logits, before)
    assert [type(module) for module in model.modules()] == kinds


@pytest.fixture
def kernel() -> Iterator[Any]:
    """The program of CUDA, interpreted, with small steps."""
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    from tests.gpu.interpreting import interpreted, interpreter

    module = interpreted("decodekit.gpu.kernels.few_rows_kernel")
    module._STEP_BYTES = 64
    with interpreter():
        yield module


@few(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_program_of_cuda_is_its_twin(kernel: Any, dtype: torch.dtype) -> None:
    """All small shapes: rows, blocks that are full or not, steps that are full or not, with splits and without."""
    num_split = 0
    rows = (1, 3, 8) if dtype is torch.float32 else (2,)
    for num_rows, num_outs, width in product(rows, (1, 33), (1, 16, 50, 160, 520)):
        x, weight, bias = (
            one.to(dtype) for one in (numbers(num_rows, width), numbers(num_outs, width), numbers(num_outs))
        )
        for added in (None, bias):
            (_, splits), *_ = kernel.launch_of(x, weight, added)
            num_split += splits > 1
            found = kernel.launched(x[:, None], weight, added)
            expected = linear(x.double(), weight.double(), None if added is None else added.double())[:, None]
            most = linear(x.abs().double(), weight.abs().double())[:, None] + 1
            rounding = (width + 1) * 2.0**-24 * most + torch.finfo(dtype).eps * 2 * expected.abs()
            assert found.shape == (num_rows, 1, num_outs) and found.dtype == dtype
            assert bool(((found - expected).abs() <= rounding).all()), (num_rows, num_outs, width)
    assert num_split > 2


def test_a_row_on_cuda_is_the_same_beside_any_others(kernel: Any) -> None:
    x, weight = numbers(MAX_ROWS, 300), numbers(33, 300)
    (_, splits), *_ = kernel.launch_of(x, weight, None)
    whole = kernel.launched(x, weight, None)
    assert splits > 1
    for num_rows in (1, 2, 5):
        assert torch.equal(kernel.launched(x[:num_rows].contiguous(), weight, None), whole[:num_rows])
    assert not torch.equal(kernel.launched(x.flip(1), weight.flip(1).contiguous(), None), whole)  # negative control


@pytest.mark.parametrize(
    ("dtype", "width", "capability"),
    [
        (torch.bfloat16, 4096, 90),
        *(
            pytest.param(dtype, width, capability, marks=pytest.mark.slow)
            for dtype in (torch.bfloat16, torch.float16, torch.float32)
            for width in (4096, 896)
            for capability in (80, 89, 90)
        ),
    ],
)
def test_the_program_compiles_without_spills(dtype: torch.dtype, width: int, capability: int) -> None:
    """One split or several, blocks of 32 and of 64 outputs, for an A100, an L4 or a 4090, and an H100."""
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    from decodekit.gpu.kernels import few_rows_kernel
    from tests.gpu.offline import compiled

    most_shared = {80: 163, 89: 99, 90: 227}[capability] << 10
    for num_outs in (4096, 128_256):
        x, weight = (torch.empty(*shape, dtype=dtype, device="meta") for shape in ((4, width), (num_outs, width)))
        _, arguments, constants, num_warps, _ = few_rows_kernel.launch_of(x, weight, None)
        found = compiled(few_rows_kernel.multiply, arguments, constants, num_warps, capability=capability)
        assert found.spilled == 0 and 2 * found.shared <= most_shared, (num_outs, found)
        assert "cp.async" in found.ptx  # weights are on their way while others are multiplied


def test_what_is_measured_is_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By shape and rows; nothing on a CPU."""
    monkeypatch.setattr(few_rows, "MEASURED", {})
    assert not few_rows.measure([numbers(4, 4)], lambda run: 1.0) and not few_rows.MEASURED
    assert quicker_here([nn.Linear(4, 4)], lambda run: 1.0) == []
    assert not few_rows.measure([torch.empty(4, 77, device="meta")], lambda run: 1.0)

    class There:
        """A weight on a device that this machine does not have."""

        device, dtype, shape = torch.device("cuda", 0), torch.bfloat16, torch.Size((64, 32))

        def new_ones(self, *shape: int) -> Tensor:
            return torch.ones(*shape)

    times = iter([1.0, 2.0, 3.0, 2.0, 5.0, 5.0, 1.0, 9.0])  # here, by torch; of 1, 2, 4 and 8 rows
    monkeypatch.setattr(few_rows, "missing", lambda: None)
    monkeypatch.setattr(few_rows, "on", lambda device: nullcontext())
    weights: Any = [There()] * 2
    assert few_rows.measure(weights, lambda run: next(times))
    shapes = [few_rows.ProductShape(There.device, There.dtype, rows, 64, 32) for rows in few_rows.ROWS]
    assert [few_rows.is_quicker(shape) for shape in shapes] == [True, False, False, True]
    assert few_rows.MEASURED[shapes[0]] == (0.5, 1.0)  # of one weight
    assert few_rows.measure(weights, lambda run: pytest.fail("it is known"))
    assert not few_rows.is_quicker(shapes[0]._replace(width=31))  # never measured
