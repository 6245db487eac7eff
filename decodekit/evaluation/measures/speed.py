"""The cost of decoding: times, rates, forward passes, acceptance of drafts, masks and memory, of one run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from decodekit.evaluation.stopwatch import Measurement


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of one run: one strategy on the examples of a task, at one seed. None where nothing can be said.

    Args:
        s_per_token: mean over the examples of seconds per token, prefill included (it exists for every strategy).
        ttft_s: mean time to first token.
        tpot_s: mean over the examples of the time per output token after the first.
        token_p50_s, token_p95_s, token_p99_s: percentiles of the time of a token after the first: of the gap before the
            piece of the stream that it came with, divided by the tokens that came together.
        itl_mean_s, itl_p50_s, itl_p95_s, itl_p99_s: of the gaps themselves (inter-token latency as a reader of the
            stream meets it): one per step, however many tokens came.
        prefill_tokens_per_s: tokens of the prompts over the times to first token.
        decode_tokens_per_s: tokens after the first over the times that followed; per row, so that rows decoded together
            do not add up.
        output_tokens_per_s: all tokens over the time of all calls.
        requests_per_s: examples with a text over the time of all calls.
        forwards_per_token: forward passes over generated tokens.
        mean_acceptance_length: tokens that came of a draft and its verification; see `Stats`.
        acceptance: share of the drafts of which position i was accepted.
        mask_s_per_token: time to fill bitmasks, and to ask in place of them, per token.
        kv_bytes: the largest cache of a call.
        num_tokens: generated tokens.
        num_forwards: forward passes, a row of a batch counted by itself.
        wall_s: time of all calls.
        cpu_cores: how many cores were busy with this process, on average over the calls.
        gpu_utilisation: mean share of time in which the GPU was busy, from 0 to 1.
    """

    s_per_token: float | None
    ttft_s: float | None
    tpot_s: float | None
    token_p50_s: float | None
    token_p95_s: float | None
    token_p99_s: float | None
    itl_mean_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    forwards_per_token: float | None
    mean_acceptance_length: float | None
    acceptance: tuple[float, ...]
    mask_s_per_token: float | None
    kv_bytes: int | None
    num_tokens: int
    num_forwards: int
    wall_s: float
    cpu_cores: float | None = None
    gpu_utilisation: float | None = None


def speed_of(measurements: Sequence[Measurement]) -> Speed:
    """The figures of a run. Examples whose decoding failed count for none but the time of the calls."""
    stats = [one.stats for one in measurements if one.stats is not None]
    gaps = [gap for one in measurements for gap in one.gaps]
    per_token = [seconds / count for seconds, count in gaps for _ in range(count)]
    per_step = [seconds for seconds, _ in gaps]
    num_tokens = sum(one.num_generated_tokens for one in stats)
    num_forwards = sum(one.num_forwards for one in stats)
    num_drafts = sum(one.num_drafts for one in stats)
    # How many drafts had their token at position i accepted, over all rows.
    accepted = [sum(counts) for counts in zip_longest(*(one.acceptance_histogram for one in stats), fillvalue=0)]
    timed = [one for one in stats if one.ttft_s is not None and one.num_generated_tokens]
    wall_s = math.fsum(one.wall_s for one in measurements)
    masked = [one for one in stats if one.mask_s is not None]
    first_s = math.fsum(one.ttft_s or 0.0 for one in timed)
    return Speed(
        s_per_token=mean(one.s_per_token for one in measurements),
        ttft_s=mean(one.ttft_s for one in stats),
        tpot_s=mean(one.tpot_s for one in stats),
        token_p50_s=_percentile(per_token, 50),
        token_p95_s=_percentile(per_token, 95),
        token_p99_s=_percentile(per_token, 99),
        itl_mean_s=mean(per_step),
        itl_p50_s=_percentile(per_step, 50),
        itl_p95_s=_percentile(per_step, 95),
        itl_p99_s=_percentile(per_step, 99),
        prefill_tokens_per_s=ratio(sum(one.num_prompt_tokens for one in timed), first_s),
        decode_tokens_per_s=ratio(
            sum(one.num_generated_tokens - 1 for one in timed), math.fsum(one.duration_s for one in timed) - first_s
        ),
        output_tokens_per_s=ratio(num_tokens, wall_s),
        requests_per_s=ratio(sum(one.num_generated_tokens > 0 for one in stats), wall_s),
        forwards_per_token=ratio(num_forwards, num_tokens),
        mean_acceptance_length=1 + sum(accepted) / num_drafts if num_drafts else None,
        acceptance=tuple(count / num_drafts for count in accepted) if num_drafts else (),
        mask_s_per_token=ratio(
            math.fsum((one.mask_s or 0.0) + (one.ask_s or 0.0) for one in masked),
            sum(one.num_generated_tokens for one in masked),
        ),
        kv_bytes=max((one.kv_bytes for one in measurements if one.kv_bytes is not None), default=None),
        num_tokens=num_tokens,
        num_forwards=num_forwards,
        wall_s=wall_s,
        cpu_cores=ratio(
            math.fsum(one.cpu_s for one in measurements if one.cpu_s is not None),
            math.fsum(one.wall_s for one in measurements if one.cpu_s is not None),
        ),
        gpu_utilisation=mean(one.gpu_utilisation for one in measurements),
    )


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there; None if none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def ratio(numerator: float, denominator: float) -> float | None:
    """Their quotient; None if one of them is not positive."""
    return numerator / denominator if numerator > 0 and denominator > 0 else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None
