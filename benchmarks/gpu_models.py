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
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from decodekit import LLM
from decodekit.models.huggingface import HuggingFaceLM

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


Row = dict[str, Any]


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
        traceback.print_exc()
        rows.append({"what": what, "error": f"{type(error).__name__}: {error}"[:400]})
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

    from decodekit.kernels.programs import missing

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
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


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
    """Tekken, from a folder or made from the data of mistral_common; the bundled one for the tiny shape."""
    if shape == "tiny":
        return LLM.load("tiny").tokenizer
    if folder is None:
        from benchmarks.masks import make_tokenizer

        folder = Path("tekken")
        make_tokenizer(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def last_logits(model: Any, ids: Tensor) -> Tensor:
    """Logits of a plain pass, of the last token."""
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[:, -1]  # type: ignore[no-any-return]
