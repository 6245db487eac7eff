"""What a completion cost: times and counts, under the names users know.

Times are wall-clock seconds. They start when the row is admitted to the batch (its prompt is known and a cache row is
free), so waiting in a queue is not counted, and prefilling is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one completion.

    Args:
        num_prompt_tokens: tokens of the prompt.
        num_generated_tokens: tokens taken, an end-of-sequence token included.
        num_forwards: forward passes of the model that this row took part in, prefill included.
        ttft_s: time to first token: from admission to the first token being known; None without a token.
        duration_s: from admission to the end.
        num_guard_refusals: tokens that were drawn, ended the text, and were refused by the guard of the constraint.
        num_rollbacks: how often the text was taken back by a token or more, because of a guard.
    """

    num_prompt_tokens: int
    num_generated_tokens: int
    num_forwards: int
    ttft_s: float | None
    duration_s: float
    num_guard_refusals: int = 0
    num_rollbacks: int = 0

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        if self.ttft_s is None or self.num_generated_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.num_generated_tokens - 1)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of this row, prefill included."""
        return self.num_generated_tokens / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens per forward pass."""
        return self.num_generated_tokens / self.num_forwards if self.num_forwards else 0.0
