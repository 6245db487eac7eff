"""What the benchmarks on a GPU share: models of known shapes with random weights, and how time is taken.

Random weights serve for speed: the same kernels run. Every figure follows a numeric check (`gate`): the logits of what
is measured against those of transformers' own modules.

`--device cpu --shape tiny` runs the same code anywhere, in seconds; its figures mean nothing.
"""

from __future__ import annotations

import json
import platform
import shutil
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from decodekit import LLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.merged_products import lay_together

KIT: Final = Path("kit")
"""What a machine without a network is brought: `packages`, and Tekken in `tekken`."""

VOCAB_SIZE: Final = 131_072
"""Of Mistral's Tekken, the tokenizer of the constrained runs."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model of the Llama kind."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    tied: bool = False

    def config(self, vocab_size: int = VOCAB_SIZE) -> LlamaConfig:
        """As transformers knows it, with a context of 16k."""
        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.head_dim,
            vocab_size=vocab_size,
            tie_word_embeddings=self.tied,
            max_position_embeddings=16_384,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )


SHAPES: Final = {
    "8b": Shape(4096, 14_336, 32, 32, 8, 128),  # as Llama 3.1 8B
    "1b": Shape(2048, 8192, 16, 32, 8, 64, tied=True),  # as Llama 3.2 1B
    "0.5b": Shape(896, 4864, 24, 14, 2, 64, tied=True),  # as Qwen 2.5 0.5B
    "tiny": Shape(64, 128, 2, 4, 2, 16, tied=True),
}


BOUNDS: Final = {torch.bfloat16: 8e-2, torch.float16: 1e-2, torch.float32: 1e-3}
"""How far logits may be from those of the modules, root mean square in deviations (`gate`).

In bfloat16 two right ways to run 32 layers of random weights were seen to differ by 0.057, on an H200; a row that reads
another one's page differs by 1 and more.
"""

Row = dict[str, Any]


class RefusedError(Exception):
    """A figure that would mislead."""


class Rows(list[Row]):
    """Rows of a run, each printed when it comes: a run that is cut off has said what it found."""

    def append(self, row: Row) -> None:
        """Print it, too."""
        super().append(row)
        print(json.dumps(row), flush=True)


@contextmanager
def guarded(rows: Rows, what: str, device: torch.device) -> Iterator[None]:
    """A part that may fail without the others; its error is a row, and what was called is printed.

    Raises:
        SystemExit: the device is lost, as behind an access to memory that is not there: then nothing more runs on it
            in this process.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, RefusedError):
            traceback.print_exc()
        rows.append({"what": what, "error_type": type(error).__name__, "error": str(error)[:400]})
        if isinstance(error, torch.OutOfMemoryError):
            error.__traceback__ = None  # its frames hold what has filled the memory
            torch.cuda.empty_cache()
        try:
            synchronise(device)
        except Exception as lost:
            raise SystemExit(f"the device is lost behind {what!r}: leave it out next time ({lost})") from error


def environment(device: torch.device) -> Row:
    """What the machine has, and what it lacks: Triton and `torch.compile` want a C compiler."""
    import transformers

    from decodekit.gpu.triton_programs import missing

    row: Row = {"what": "environment", "python": platform.python_version(), "torch": torch.__version__}
    row |= {"transformers": transformers.__version__, "kernels": missing() or "on"}
    row["compiler"] = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), "none")
    try:
        import triton

        row["triton"] = triton.__version__
    except ImportError as error:
        row["triton"] = str(error)
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        row |= {"device": about.name, "sm": f"{about.major}.{about.minor}", "num_sm": about.multi_processor_count}
        row |= {"cuda": torch.version.cuda, "free_gib": round(torch.cuda.mem_get_info(device)[0] / 2**30, 1)}
    return row


def build(shape: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of random weights, made on the device."""
    config = SHAPES[shape].config(1536 if shape == "tiny" else VOCAB_SIZE)
    torch.manual_seed(0)
    with torch.device(device):
        return ready(AutoModelForCausalLM.from_config(config, dtype=dtype), device)


def ready(model: Any, device: torch.device) -> Any:
    """The same model for inference, whose weights lie as `LLM.load` lays them on a GPU."""
    model = model.eval().requires_grad_(False)
    if device.type == "cuda":
        lay_together(model)
    return model


def weight_bytes(model: nn.Module, *, with_embeddings: bool = False) -> int:
    """Bytes of weights that a decoding step reads; of embeddings that are no output projection it reads a row."""
    read = {id(one): one for one in model.parameters()}
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if not with_embeddings and head.weight is not embeddings.weight:
        read.pop(id(embeddings.weight))
    return sum(one.numel() * one.element_size() for one in read.values())


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_bandwidth(device: torch.device, num_bytes: int = 1 << 31) -> float:
    """Bytes per second, read and written, of copying a large tensor: the median of 20."""
    num_bytes = num_bytes if device.type == "cuda" else 1 << 26
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return float(2 * num_bytes / seconds_of(lambda: target.copy_(source), device, repeats=20))


def seconds_of(run: Callable[[], object], device: torch.device, repeats: int = 30, warmups: int = 3) -> float:
    """The median time of a call, by events on a GPU."""
    for _ in range(warmups):
        run()
    synchronise(device)
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) / 1e3)
        else:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def replayed(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same as a graph on a GPU, so that the device is timed and not the host; elsewhere as it is."""
    if device.type != "cuda":
        return run
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def wall_seconds(run: Callable[[], object], device: torch.device, repeats: int = 3) -> float:
    """The median wall time of a call that ends with the host knowing its result; one call before is not counted."""
    run()
    times = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(count)
    rows = torch.randint(100, vocab_size - 1, (count, length), generator=generator)
    found: list[list[int]] = rows.tolist()
    return found


def gate(lm: HuggingFaceLM, model: nn.Module, num_rows: int = 2, length: int = 40, num_steps: int = 8) -> float:
    """The largest error of decoding steps against plain passes of the model, root mean square in deviations."""
    device, vocab_size = lm.device, lm.vocab_size
    rows = prompts(num_rows, length + num_steps, vocab_size)
    cache = lm.new_cache(num_rows, length + num_steps)
    tokens = torch.tensor(rows)
    worst = 0.0
    for step in range(num_steps + 1):
        new = tokens[:, :length] if step == 0 else tokens[:, length + step - 1 : length + step]
        ours = lm.forward(new, [new.shape[1]] * num_rows, cache)
        with torch.inference_mode():
            theirs = model(input_ids=tokens[:, : length + step].to(device), use_cache=False).logits[:, -1].float()
        error = (ours - theirs).square().mean().sqrt() / theirs.std()
        worst = max(worst, float(error))
    return worst


def tokenizer(folder: Path | None, shape: str) -> Any:
    """Tekken, from a folder or what `make gpu-kit` has brought; the bundled one for the tiny shape.

    Raises:
        SystemExit: it is not there; said before a model is built.
    """
    if shape == "tiny":
        return LLM.load("tiny").tokenizer
    folder = folder or KIT / "tekken"
    if not (folder / "tokenizer.json").exists():
        raise SystemExit(f"no tokenizer in {folder}: `make gpu-kit` where mistral_common is, and bring kit/ along")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


MOST_BROUGHT: Final = 64 << 20
"""Bytes that may be brought to the machine, the tree and `kit` together."""


def brought() -> dict[str, int]:
    """Bytes of what is brought to a machine: files of the tree that git knows, and those of `KIT`."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True).stdout.decode().split("\0")
    tree = sum(Path(name).stat().st_size for name in listed if name and Path(name).exists())
    return {"tree": tree, **{part.name: _bytes_in(part) for part in sorted(KIT.glob("*"))}}


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """What `make gpu-kit` says at its end.

    Raises:
        SystemExit: it is more than may be brought.
    """
    found = brought()
    print({name: f"{size / 2**20:.1f} MiB" for name, size in found.items()})
    if sum(found.values()) > MOST_BROUGHT:
        raise SystemExit(f"{sum(found.values()):,} bytes are more than the {MOST_BROUGHT:,} that may be brought")


if __name__ == "__main__":
    main()
