"""What a soak has found: percentiles with and without attacks, what each attack did, and whether that is enough.

A wait that has begun in a phase with attacks, or reaches into one, counts as one beside attacks; so does what begins in
the first seconds after it.
"""

from __future__ import annotations

import math
import os
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.attacks import ATTACKS, PAUSE_S, Outcome
from benchmarks.clients import KINDS, Clients, Kind, Span
from benchmarks.endpoint import Usage

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
MOST_RATIO: Final = 2.0
"""So many times as long as without attacks may the p99 be."""

MOST_MS: Final = 250.0
"""So much longer than without attacks may the largest gap be, and so long an answer of `/health`."""

MOST_MEMORY: Final = 1.1
"""So many times as much memory at the end as after the first attacks."""

MOST_DESCRIPTORS: Final = 8
"""So many descriptors more at the end than at the beginning."""

_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Some minutes of a soak.

    Args:
        is_attacked: whether hostile clients were there.
        begin, end: values of `time.monotonic`.
        kept_mib: what the endpoint keeps at its end for later requests, by its own account, which has bounds.
    """

    is_attacked: bool
    begin: float
    end: float
    kept_mib: float = 0.0

    def meets(self, span: Span) -> bool:
        """Whether a wait, or some of it, was in this phase."""
        return self.begin <= span[1] and span[0] < self.end


@dataclass
class Found:
    """What a soak has found.

    Args:
        clients: with their times and faults.
        phases: in turn.
        outcomes: of the attacks, in turn.
        usages: of the endpoint, one a second.
    """

    clients: Clients
    phases: list[Phase] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)

    def is_attacked(self, span: Span) -> bool:
        """Whether a wait is one beside attacks."""
        return any(
            one.is_attacked and span[0] < one.end + min(_SETTLE_S, (one.end - one.begin) / 4) and span[1] > one.begin
            for one in self.phases
        )

    def seconds(self, kind: Kind, is_attacked: bool) -> list[float]:
        """Of the waits with or without attacks, since the first phase began."""
        spans = (one for one in self.clients.spans(kind) if one[0] >= self.phases[0].begin)
        return [end - begin for begin, end in spans if self.is_attacked((begin, end)) == is_attacked]

    def faults(self) -> Counter[str]:
        """Of the ordinary clients, since the first phase began."""
        return Counter(f"{whose} {what}" for at, whose, what in self.clients.faults if at >= self.phases[0].begin)

    def usage_at(self, at: float) -> Usage:
        """The last one until then."""
        return max((one for one in self.usages if one.at <= at), key=lambda one: one.at, default=self.usages[0])

    def median(self, name: str, phase: Phase) -> float:
        """Of a figure of the endpoint over a phase."""
        values = sorted(getattr(one, name) for one in self.usages if phase.begin <= one.at <= phase.end)
        return float(percentile(values, 0.5)) if values else 0.0


def percentile(sorted_values: Sequence[float], part: float) -> float:
    """The least value that `part` of the values do not exceed."""
    return sorted_values[max(0, math.ceil(part * len(sorted_values)) - 1)]


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Percentiles in milliseconds."""
    values = sorted(seconds)
    if not values:
        return {"num": 0}
    found = {name: round(1000 * percentile(values, part), 1) for name, part in PERCENTILES.items()}
    return {"num": len(values), **found, "max": round(1000 * values[-1], 1)}


def rows_of(found: Found) -> list[dict[str, object]]:
    """Percentiles with and without attacks, over all phases; and the p99 of each phase with its neighbour's."""
    rows: list[dict[str, object]] = []
    for kind, says in KINDS.items():
        summaries = (summary(found.seconds(kind, is_attacked)) for is_attacked in (False, True))
        rows += ({"of": says, "attacks": bool(number), **one} for number, one in enumerate(summaries))
        spans = found.clients.spans(kind)
        each = [
            summary([end - begin for begin, end in spans if one.meets((begin, end))]).get("p99") for one in found.phases
        ]
        rows[-1]["p99_by_pair"] = [*zip(each[::2], each[1::2], strict=False)]
    return rows


def phases_of(found: Found) -> list[dict[str, object]]:
    """What the endpoint took of the machine in each phase."""
    rows: list[dict[str, object]] = []
    for phase in found.phases:
        early, late = found.usage_at(phase.begin), found.usage_at(phase.end)
        rows.append(
            {
                "attacks": phase.is_attacked,
                "begin_s": round(phase.begin - found.phases[0].begin, 1),
                "end_s": round(phase.end - found.phases[0].begin, 1),
                "memory_mib": found.median("memory_mib", phase),
                "kept_mib": phase.kept_mib,
                "num_descriptors": found.median("num_descriptors", phase),
                "processor_s": round(late.processor_s - early.processor_s, 1),
                "waited_for_processor_s": round(late.waited_s - early.waited_s, 1),
            }
        )
    return rows


def attacks_of(found: Found) -> list[dict[str, object]]:
    """For each attack the largest waits that began while it went on, or before the next one began."""
    rows: list[dict[str, object]] = []
    kinds: tuple[Kind, ...] = ("gap", "first", "whole", "health")
    largest: defaultdict[tuple[str | None, Kind], float] = defaultdict(float)
    for kind in kinds:
        for span in found.clients.spans(kind):
            key = _of(found, span), kind
            largest[key] = max(largest[key], span[1] - span[0])
    for name in (attack.name for attack in ATTACKS):
        outcomes = [one for one in found.outcomes if one.attack == name]
        if not outcomes:
            continue
        statuses: Counter[str] = Counter()
        for one in outcomes:
            statuses.update(one.statuses)
        usages = [one for one in found.usages if any(o.begin <= one.at <= o.end + PAUSE_S for o in outcomes)]
        rows.append(
            {
                "attack": name,
                "num_times": len(outcomes),
                **{f"largest_{kind}_ms": round(1000 * largest[name, kind], 1) for kind in kinds},
                "largest_memory_mib": max((one.memory_mib for one in usages), default=None),
                "own_processor_s": round(sum(one.processor_s for one in outcomes), 2),
                "statuses": dict(statuses),
            }
        )
    return rows


def _of(found: Found, span: Span) -> str | None:
    """The attack that a wait is of: the last one that had begun, shortly after the wait at most."""
    at = span[0] + min(0.05, span[1] - span[0])
    number = bisect([one.begin for one in found.outcomes], at) - 1
    return found.outcomes[number].attack if number >= 0 and at <= found.outcomes[number].end + PAUSE_S else None


def lines_of(found: Found, is_alive: bool) -> list[dict[str, object]]:
    """What is wanted, what was found, and whether that is enough; None where the run is too short to tell."""
    lines: list[dict[str, object]] = []

    def line(wanted: str, value: object, holds: bool | None) -> None:
        lines.append({"wanted": wanted, "found": value, "holds": holds})

    for kind in ("gap", "first"):
        without, beside = (summary(found.seconds(kind, is_attacked)) for is_attacked in (False, True))
        wanted = f"p99 of {KINDS[kind]}: at most {MOST_RATIO:g} times that without attacks"
        if not without["num"] or not beside["num"]:
            line(wanted, None, None)
            continue
        ratio = round(beside["p99"] / without["p99"], 2)
        line(wanted, ratio, ratio <= MOST_RATIO)
        if kind == "gap":
            more = round(beside["max"] - without["max"], 1)
            line(f"largest gap: at most {MOST_MS:g} ms more than without attacks", more, more <= MOST_MS)
    largest = summary(found.seconds("health", is_attacked=True)).get("max")
    line(f"/health beside attacks: at most {MOST_MS:g} ms", largest, None if largest is None else largest <= MOST_MS)
    faults = {what: count for what, count in found.faults().items() if not what.endswith(" 429")}
    line("faults of ordinary clients: none but 429", faults, not faults)
    wrong: Counter[str] = Counter()
    for one in found.outcomes:
        wrong.update({f"{one.attack} {status}": count for status, count in one.wrong().items()})
    line("hostile requests: none fails the endpoint, none is taken that must not be", dict(wrong), not wrong)
    line("the endpoint lives", is_alive, is_alive)
    quiet = [one for one in found.phases if not one.is_attacked]
    after = quiet[min(1, len(quiet) - 1)]  # every cache is filled by the first attacks
    end, begin = (found.median("memory_mib", one) - one.kept_mib for one in (quiet[-1], after))
    ratio = round(end / max(1.0, begin), 3)
    wanted = f"memory beside what is kept: at the end at most {MOST_MEMORY:g} times that after the first attacks"
    line(wanted, ratio, ratio <= MOST_MEMORY if len(quiet) > 2 else None)
    more = found.median("num_descriptors", quiet[-1]) - found.median("num_descriptors", quiet[0])
    line(f"descriptors at the end: at most {MOST_DESCRIPTORS} more than at first", more, more <= MOST_DESCRIPTORS)
    return lines


def show(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print the columns that a row has."""
    names = dict.fromkeys(name for row in rows for name in row)
    table = Table(title=title)
    for name in names:
        table.add_column(name.replace("_", " "), justify="left" if name in ("of", "attack", "wanted") else "right")
    for row in rows:
        table.add_row(*(_told(row.get(name)) for name in names))
    Console(width=int(os.environ.get("COLUMNS", "180"))).print(table)


def _told(cell: object) -> str:
    if isinstance(cell, dict):
        return " ".join(f"{name}:{count}" for name, count in cell.items()) or "none"
    return f"{cell:,}" if isinstance(cell, float) else "" if cell is None else str(cell)
