"""The rows of a comparison: one for each strategy, task and seed, as values and as JSON records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from decodekit.evaluation.measures.speed import Speed
from decodekit.evaluation.stopwatch import Measurement

PROVENANCE = ("date", "decodekit", "commit", "python", "versions", "machine")
"""What `machine.provenance` says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one example, at one seed, under one strategy.

    Args:
        example: its id.
        seed: key of the noise it was decoded with; see `comparison_run.seed_of`.
        quality: its figures by metric; those that do not apply are left out.
        repeats: one measurement per repeat.
    """

    example: str
    seed: int
    quality: Mapping[str, float]
    repeats: tuple[Measurement, ...]

    @property
    def text(self) -> str | None:
        """The decoded text, that of the first repeat; None if there is none."""
        return self.repeats[0].text

    @property
    def error(self) -> str | None:
        """The first error in any repeat."""
        return next((one.error for one in self.repeats if one.error is not None), None)

    @property
    def is_repeatable(self) -> bool:
        """Whether all repeats gave the same tokens, as the same seed promises."""
        return all(one.token_ids == self.repeats[0].token_ids for one in self.repeats)


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy on one task at one seed.

    Args:
        strategy: its name in the comparison.
        task: name of the task.
        seed: of the row.
        outcomes: one per example, in the order of the task.
        quality: figures by metric: of the texts together, or means over the examples.
        speeds: one per repeat.
        provenance: what measured it: machine, versions, commit, date. Rows of a comparison that was interrupted may
            differ in it.
    """

    strategy: str
    task: str
    seed: int
    outcomes: tuple[Outcome, ...]
    quality: Mapping[str, float]
    speeds: tuple[Speed, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_failed(self) -> int:
        """Examples with an error in some repeat; their rows are kept."""
        return sum(outcome.error is not None for outcome in self.outcomes)


def record_of(row: Row, strategy: Any, baseline: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a JSON value with all that is needed to read it alone; `row_of` reads it back.

    Numbers that JSON does not have are texts: ``"-inf"``, ``"inf"``, ``"nan"``. `facts` are what else to say: settings,
    and provenance where the row has none of its own.
    """
    record = {
        "strategy": row.strategy,
        "value": repr(strategy),
        "task": row.task,
        "seed": row.seed,
        "baseline": baseline,
        "num_examples": len(row.outcomes),
        "num_failed": row.num_failed,
        "quality": row.quality,
        "speed": [asdict(speed) for speed in row.speeds],
        "examples": [_outcome_record(outcome) for outcome in row.outcomes],
        **facts,
        **row.provenance,
    }
    return _plain(record)  # type: ignore[no-any-return]


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of which this is the record; raises KeyError, TypeError or ValueError for anything else."""
    quality, measurements = _reader(dict[str, float]), _reader(tuple[Measurement, ...])
    return Row(
        record["strategy"],
        record["task"],
        record["seed"],
        tuple(
            Outcome(one["id"], one["seed"], quality(one["quality"]), measurements(one["repeats"]))
            for one in record["examples"]
        ),
        quality(record["quality"]),
        _reader(tuple[Speed, ...])(record["speed"]),
        {name: record[name] for name in PROVENANCE if name in record},
    )


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Makes values of a kind from what `_plain` made of them."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python


def _outcome_record(outcome: Outcome) -> dict[str, Any]:
    first = outcome.repeats[0]
    return {
        "id": outcome.example,
        "seed": outcome.seed,
        "text": first.text,
        "finish_reason": first.finish_reason,
        "error": outcome.error,
        "num_tokens": len(first.token_ids),
        "quality": outcome.quality,
        "s_per_token": [one.s_per_token for one in outcome.repeats],
        "ttft_s": [None if one.stats is None else one.stats.ttft_s for one in outcome.repeats],
        "num_forwards": [None if one.stats is None else one.stats.num_forwards for one in outcome.repeats],
        "is_repeatable": outcome.is_repeatable,
        "repeats": [asdict(one) for one in outcome.repeats],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def pooled(rows: Sequence[Row]) -> list[Outcome]:
    """The outcomes of several rows, in order."""
    return [outcome for row in rows for outcome in row.outcomes]
