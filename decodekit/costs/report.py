"""What `estimate` says: numbers in bytes, operations and seconds, and a text of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodekit.costs.device_speed import DeviceSpeed


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model takes for `batch` rows of `context` tokens each, and the least times on a device.

    ``print(estimate)`` shows it as a table; `to_dict` gives the numbers.

    Args:
        name: of the model.
        batch: rows.
        context: tokens of each: the length of the prompt for the time to first token, and what is stored when a token
            is decoded.
        device: where it runs.
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
        flops_per_prompt_token: operations of a prompt's token in all layers, attention left out.
        attention_flops: operations of attention over a whole prompt of `context` tokens, of one row.
        speed: of the device.
        seconds_to_first_token: least, for `batch` prompts of `context` tokens.
        seconds_per_token: least, for one step that gives a token to each row.
        measured_seconds_per_token: of a step, as it was given or measured.
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
    flops_per_prompt_token: float
    attention_flops: float
    speed: DeviceSpeed
    seconds_to_first_token: float
    seconds_per_token: float
    measured_seconds_per_token: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """The least time of a token as a share of the measured one: 1 would be the device's limit."""
        return self.measured_seconds_per_token and self.seconds_per_token / self.measured_seconds_per_token

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, for JSON."""
        return {**asdict(self), "share": self.share}

    def lines(self) -> list[tuple[str, str]]:
        """What the table has: names and values."""
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
        prompt = (
            f"{told_flops(self.flops_per_prompt_token)} a token, and {told_flops(self.attention_flops)} of attention"
        )
        speed = f"{self.speed.bandwidth / 1e9:,.1f} GB/s, {self.speed.flops / 1e9:,.0f} GFLOP/s"
        found = [
            ("weights", weights),
            ("cache", cache),
            ("activations", f"about {told_bytes(self.activation_bytes)}"),
            ("largest batch", "not known" if self.max_batch is None else f"{self.max_batch:,} rows"),
            ("prompt", f"{prompt} over {self.context:,} tokens"),
            ("device", f"{self.device}: {speed}"),
            ("first token", f"at least {told_seconds(self.seconds_to_first_token)}"),
            ("each token", f"at least {told_seconds(self.seconds_per_token)}"),
        ]
        if self.measured_seconds_per_token is not None:
            reached = f"{told_seconds(self.measured_seconds_per_token)}, the limit is {self.share:.0%} of it"
            found.append(("measured", reached))
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


def told_flops(number: float) -> str:
    """Operations in the unit that leaves one to three digits."""
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if number >= size:
            return f"{number / size:,.3g} {unit}"
    return f"{number:,.0f} FLOP"


def told_seconds(number: float) -> str:
    """Seconds in the unit that leaves one to three digits, or whole seconds."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if number >= size:
            return f"{number / size:,.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number * 1e9:,.3g} ns"
