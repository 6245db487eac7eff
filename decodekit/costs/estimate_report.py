"""The answer of `estimate`: numbers in bytes and seconds, and a text of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of a model with `batch` rows of `context` tokens each, and the time of their step on a GPU.

    ``print(estimate)`` shows it as a table; `to_dict` gives the numbers.

    Args:
        name: of the model.
        batch: rows.
        context: tokens of each that are stored when a token is decoded.
        device: where it runs, or the kind of GPU that was named.
        dtype: of the weights.
        num_parameters: numbers, tied matrices once.
        weight_bytes: of all weights as they are stored.
        bytes_read_per_step: of the weights that a step of `batch` tokens reads: no tables of embeddings, and of
            experts those that are chosen, on average.
        num_experts_per_step: distinct experts of a layer among them; 0 without experts.
        kv_bytes_per_token: keys and values of one token of one row.
        state_bytes_per_row: recurrent state of a row.
        cache_bytes: what the cache of `batch` rows of this capacity allocates.
        window_bytes: the part of the cache that a step reads: of each layer the tokens inside of its sliding window.
        activation_bytes: about what a pass of the prompt needs beside: widest activations, and float32 logits.
        max_batch: rows for which there is memory, with `context` tokens each; None if the free memory is not known.
        num_kernels: of a step, one after the other; None where no step is predicted: on a CPU, or an unknown GPU.
        least_seconds_per_step: of reading the bytes once at the speed of a copy, or of the operations.
        seconds_per_step: what a step that gives a token to each row is expected to take; see `costs.step_time`.
        notes: what the numbers rest on.
    """

    name: str
    batch: int
    context: int
    device: str
    dtype: str
    num_parameters: int
    weight_bytes: int
    bytes_read_per_step: int
    num_experts_per_step: float
    kv_bytes_per_token: int
    state_bytes_per_row: int
    cache_bytes: int
    window_bytes: int
    activation_bytes: int
    max_batch: int | None
    num_kernels: int | None = None
    least_seconds_per_step: float | None = None
    seconds_per_step: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """The least time of a step as a share of the expected one."""
        if self.least_seconds_per_step is None or self.seconds_per_step is None:
            return None
        return self.least_seconds_per_step / self.seconds_per_step

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, for JSON."""
        return {**asdict(self), "share": self.share}

    def lines(self) -> list[tuple[str, str]]:
        """The lines of the table: names and values."""
        weights = f"{told_bytes(self.weight_bytes)}, {self.num_parameters / 1e6:,.1f} M parameters, {self.dtype}"
        if self.bytes_read_per_step < self.weight_bytes:
            weights += f"; a step reads {told_bytes(self.bytes_read_per_step)}"
        if self.num_experts_per_step:
            weights += f", {self.num_experts_per_step:.1f} experts of a layer"
        rows = f"{self.batch:,} x {self.context:,} tokens"
        cache = f"{told_bytes(self.cache_bytes)} for {rows}, {self.kv_bytes_per_token:,} bytes a token"
        if self.state_bytes_per_row:
            cache += f", {self.state_bytes_per_row:,} bytes of state a row"
        if self.window_bytes < 0.98 * self.cache_bytes:
            cache += f"; a step reads {told_bytes(self.window_bytes)}"
        found = [
            ("weights", weights),
            ("cache", cache),
            ("activations", f"about {told_bytes(self.activation_bytes)}"),
            ("largest batch", "not known" if self.max_batch is None else f"{self.max_batch:,} rows"),
            ("device", self.device),
        ]
        if self.seconds_per_step is not None and self.least_seconds_per_step is not None:
            least, rate = told_seconds(self.least_seconds_per_step), self.batch / self.seconds_per_step
            step = f"about {told_seconds(self.seconds_per_step)} with {self.num_kernels:,} kernels, at least {least}"
            found.append(("step", f"{step}: {rate:,.0f} tokens/s without drafts"))
        return found

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.lines())
        rows = [f"  {name:{width}}  {value}" for name, value in self.lines()]
        return "\n".join([self.name, *rows, *(f"  note: {note}" for note in self.notes)])


def told_bytes(number: float) -> str:
    """Bytes in the unit that leaves one to three digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.4g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.0f} bytes"


def told_seconds(number: float) -> str:
    """Seconds in the unit that leaves one to three digits, or whole seconds."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if number >= size:
            return f"{number / size:,.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number * 1e9:,.3g} ns"
