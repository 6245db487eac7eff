"""Figures of an endpoint, as Prometheus reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from decodekit.constraints.memory_account import memory_in_use, memory_limit
from decodekit.llm import EngineStats

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The figures of one endpoint, and those of its engine; endpoints of one process have their own."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_OfEngine(stats))
        count = partial(Counter, namespace="decodekit", registry=self.registry)
        histogram = partial(Histogram, namespace="decodekit", registry=self.registry)
        by_status = ("route", "status")
        self.requests = count("requests", "Requests by route and status; 499: the client has gone.", by_status)
        self.seconds = histogram("request_seconds", "Seconds of a request.", ("route",), buckets=(*_SECONDS, 300.0))
        self.prompt_tokens = count("prompt_tokens", "Tokens of prompts.")
        self.generated_tokens = count("generated_tokens", "Tokens of texts.")
        self.cancelled = count("requests_cancelled", "Requests whose client has gone.")
        says = "From the arrival of a request to the first token of a text."
        self.ttft = histogram("time_to_first_token_seconds", says, buckets=_SECONDS)
        says = "Mean of a text, after its first token."
        self.tpot = histogram("time_per_output_token_seconds", says, buckets=_SECONDS)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)


class _OfEngine(Collector):
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, says, value in (
            ("running", "Texts that have a row.", stats.running),
            ("waiting", "Texts that wait for a row.", stats.waiting),
            ("cached_tokens", "Tokens in the rows of texts.", stats.cached_tokens),
            ("prefix_tokens", "Tokens that are kept for later prompts.", stats.prefix_tokens),
            ("prefix_bytes", "What these take of memory; the bound is an eighth of what was free.", stats.prefix_bytes),
            ("constraint_bytes", "What constraints keep, by their own account; see its bound.", memory_in_use()),
            ("constraint_bytes_limit", "Its bound.", memory_limit() or math.inf),
        ):
            yield GaugeMetricFamily(f"decodekit_{name}", says, value=value)
        for name, says, count in (
            ("prefix_tokens_reused", "Tokens of prompts that were not read again.", stats.tokens_reused),
            ("prefix_hits", "Rows that began with tokens that another had read.", stats.prefix_hits),
            ("preemptions", "Texts that had to leave their row for want of memory.", stats.preemptions),
        ):
            yield CounterMetricFamily(f"decodekit_{name}", says, value=count)
        says = "Texts by the reason of their end."
        finished = CounterMetricFamily("decodekit_texts_finished", says, labels=("reason",))
        for reason, count in stats.finished.items():
            finished.add_metric((reason,), count)
        yield finished
