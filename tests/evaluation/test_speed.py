from __future__ import annotations

from dataclasses import replace

import pytest

from decodekit.decoding.request.stats import Stats
from decodekit.evaluation.measures.speed import speed_of
from decodekit.evaluation.stopwatch import Measurement

ONE = Measurement(
    text="abcd",
    token_ids=(1, 2, 3, 4),
    finish_reason="stop",
    error=None,
    stats=Stats(
        num_prompt_tokens=10,
        num_generated_tokens=4,
        num_forwards=3,
        ttft_s=0.1,
        duration_s=0.4,
        num_drafts=2,
        num_draft_tokens=6,
        acceptance_histogram=(1,),
        mask_s=0.006,
        ask_s=0.002,
    ),
    gaps=((0.2, 2), (0.1, 1)),
    wall_s=0.5,
    kv_bytes=1000,
)
TWO = replace(
    ONE,
    token_ids=(5,) * 6,
    stats=Stats(20, 6, 6, ttft_s=0.3, duration_s=0.8, num_drafts=2, num_draft_tokens=4, acceptance_histogram=(2, 1)),
    gaps=((0.1, 1),) * 5,
    wall_s=1.0,
    kv_bytes=3000,
)
FAILED = Measurement(None, (), "error", "DK601 dead", None, (), 0.5, None)


def test_use_of_the_machine_by_hand() -> None:
    used = speed_of(
        [replace(ONE, cpu_s=0.75, gpu_utilisation=0.5), replace(TWO, cpu_s=0.75, gpu_utilisation=1.0), FAILED]
    )
    assert used.cpu_cores == pytest.approx(1.5 / 1.5)  # what was not measured counts neither above nor below
    assert used.gpu_utilisation == pytest.approx(0.75)
    assert speed_of([ONE]).cpu_cores is speed_of([ONE]).gpu_utilisation is None


def test_figures_by_hand() -> None:
    speed = speed_of([ONE, TWO])
    assert speed.s_per_token == pytest.approx((0.4 / 4 + 0.8 / 6) / 2)
    assert speed.ttft_s == pytest.approx(0.2)
    assert speed.tpot_s == pytest.approx((0.3 / 3 + 0.5 / 5) / 2)
    # Tokens after the first: 0.1 0.1 (two in 0.2), 0.1, five of 0.1. Steps: 0.2, 0.1, five of 0.1.
    assert (speed.token_p50_s, speed.token_p99_s) == (pytest.approx(0.1), pytest.approx(0.1))
    assert speed.itl_mean_s == pytest.approx(0.8 / 7)
    assert speed.itl_p50_s == pytest.approx(0.1)
    assert speed.itl_p95_s == pytest.approx(0.1 + 0.1 * 0.7)  # between the sixth and the seventh of 7
    assert speed.prefill_tokens_per_s == pytest.approx(30 / 0.4)
    assert speed.decode_tokens_per_s == pytest.approx(8 / 0.8)
    assert speed.output_tokens_per_s == pytest.approx(10 / 1.5)
    assert speed.requests_per_s == pytest.approx(2 / 1.5)
    assert speed.forwards_per_token == pytest.approx(9 / 10)
    assert speed.mean_acceptance_length == pytest.approx(1 + 4 / 4)
    assert speed.acceptance == (3 / 4, 1 / 4)
    assert speed.mask_s_per_token == pytest.approx(0.008 / 4)  # the second row has no constraint
    assert (speed.kv_bytes, speed.num_tokens, speed.num_forwards) == (3000, 10, 9)


def test_failed_examples_cost_time_and_nothing_else() -> None:
    whole, part = speed_of([ONE, FAILED]), speed_of([ONE])
    assert whole.wall_s == part.wall_s + 0.5
    assert whole.requests_per_s == pytest.approx(1.0)
    assert (whole.s_per_token, whole.kv_bytes) == (part.s_per_token, part.kv_bytes)


def test_nothing_decoded_says_nothing() -> None:
    speed = speed_of([FAILED])
    assert (speed.s_per_token, speed.ttft_s, speed.itl_p50_s, speed.output_tokens_per_s) == (None,) * 4
    assert (speed.forwards_per_token, speed.mean_acceptance_length, speed.acceptance) == (None, None, ())
    assert speed.requests_per_s is None


def test_a_search_without_a_first_token_has_a_time_per_token() -> None:
    search = replace(ONE, stats=Stats(10, 4, 8, ttft_s=None, duration_s=0.4), gaps=())
    speed = speed_of([search])
    assert (speed.ttft_s, speed.tpot_s, speed.prefill_tokens_per_s, speed.token_p50_s) == (None,) * 4
    assert (speed.s_per_token, speed.forwards_per_token) == (pytest.approx(0.1), 2.0)
