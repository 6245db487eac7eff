"""Ordinary clients of an endpoint beside hostile ones: what they wait for, and whether their texts stay the same.

    OMP_NUM_THREADS=1 python -m benchmarks.soak [--minutes 20] [--small]
    OMP_NUM_THREADS=1 python -m benchmarks.soak --attack back-references huge-prompts

`decodekit serve` runs with the bundled model as a process of its own, with the limits that it has by itself or, with
``--small``, with small ones and 256 descriptors. Its ordinary clients are in this process (`benchmarks.clients`):
streams, schemas, tools, large batches, short completions, responses. The hostile ones are in a third process, of a
lower priority (`benchmarks.attacks`). Phases without and with attacks alternate, so that both meet whatever else the
machine does.

``--attack`` starts an endpoint for each attack that is named (``all`` for every one), and lets it go on for
``--attack-seconds`` beside a stream, a client that wants one token and one whose schema is known; before, meanwhile and
afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import record
from benchmarks.attacks import BY_NAME, Outcome
from benchmarks.clients import Clients, Kind, ordinary, probes
from benchmarks.endpoint import REPOSITORY, Endpoint, Usage
from benchmarks.soak_report import Found, Phase, attacks_of, lines_of, phases_of, rows_of, show, summary

SMALL: Final = ("--batch-size", "8", "--max-queue", "12", "--timeout", "20", "--compile-seconds", "2")
SMALL_DESCRIPTORS: Final = 256
_NUM_ROWS = {False: 32, True: 8}  # what the endpoint has by itself, and with small limits


class Attackers:
    """The process of the hostile clients.

    Args:
        port: of the endpoint.
        names: of the attacks.
        pace: times the seconds of each.
    """

    def __init__(self, port: int, names: Sequence[str], pace: float) -> None:
        self._command = [sys.executable, "-m", "benchmarks.attacks", "--port", f"{port}", "--pace", f"{pace}", *names]

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, cwd=REPOSITORY, limit=1 << 20
        )
        await self._outcomes(60.0)  # it is ready
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def play(self, seconds: float) -> list[Outcome]:
        """Go on with the attacks for some time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        return await self._outcomes(seconds + 60.0)

    async def _outcomes(self, most_s: float) -> list[Outcome]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), most_s)
        if not line:
            raise SystemExit("the process of the attacks has ended")
        return [Outcome(**{**told, "statuses": Counter(told["statuses"])}) for told in json.loads(line)]


async def watch(endpoint: Endpoint, found: Found) -> None:
    """Note what the endpoint takes of the machine, once a second."""
    while True:
        found.usages.append(endpoint.usage())
        await asyncio.sleep(1.0)


async def go_on(endpoint: Endpoint, found: Found, seconds: float, attackers: Attackers | None = None) -> None:
    """One phase; with attacks if somebody plays them."""
    gc.collect()  # not by itself while times are taken
    begin = time.monotonic()
    if attackers is None:
        await asyncio.sleep(seconds)
    else:
        found.outcomes += await attackers.play(seconds)
    end = time.monotonic()
    found.phases.append(Phase(attackers is not None, begin, end, await asyncio.to_thread(endpoint.kept_mib)))


async def soak(endpoint: Endpoint, clients: Clients, minutes: float, phase_s: float, pace: float) -> Found:
    """Phases without and with attacks in turn, the last one without."""
    num_pairs = max(1, round((60 * minutes / phase_s - 1) / 2))
    phase_s = 60 * minutes / (2 * num_pairs + 1)
    found = Found(clients)
    await clients.learn()
    async with Attackers(endpoint.port, [*BY_NAME], pace) as attackers:
        clients.start()
        await asyncio.sleep(min(10.0, phase_s / 4))  # the first steps of new shapes are slow
        watching = asyncio.create_task(watch(endpoint, found))
        for _ in range(num_pairs):
            await go_on(endpoint, found, phase_s)
            await go_on(endpoint, found, phase_s, attackers)
        await go_on(endpoint, found, phase_s)
        watching.cancel()
        await clients.end()
    return found


async def alone(endpoint: Endpoint, name: str, seconds: float) -> dict[str, Any]:
    """One attack beside the probes; the waits before, meanwhile and afterwards."""
    clients = Clients(endpoint.port, probes())
    found = Found(clients)
    await clients.learn()
    async with Attackers(endpoint.port, [name], seconds / BY_NAME[name].seconds) as attackers:
        clients.start()
        await asyncio.sleep(2.0)
        watching = asyncio.create_task(watch(endpoint, found))
        await go_on(endpoint, found, seconds / 2)
        await go_on(endpoint, found, seconds, attackers)
        await go_on(endpoint, found, seconds / 2)
        watching.cancel()
        num_waiting = len(clients.waiting(1.0))
        await clients.end()
    row: dict[str, Any] = {"attack": name}
    kinds: dict[str, tuple[Kind, str]] = {
        "gap": ("gap", "streams"),
        "first": ("first", "streams"),
        "token": ("whole", "short"),
        "known_schema": ("whole", "known schema"),
        "health": ("health", "health"),
        "own": ("own", "own"),
    }
    for short, (kind, whose) in kinds.items():
        spans = clients.spans(kind, whose)
        row[short] = [summary([end - begin for begin, end in spans if one.meets((begin, end))]) for one in found.phases]
    first, last = found.usages[0], found.usages[-1]
    at_bounds = [first, *(found.usage_at(phase.end) for phase in found.phases)]
    faults = Counter(f"{whose} {what}" for _, whose, what in clients.faults)
    return row | {
        "statuses": dict(found.outcomes[0].statuses),
        "wrong": found.outcomes[0].wrong(),
        "faults": {**faults, **({"still waiting": num_waiting} if num_waiting else {})},
        "memory_mib": [first.memory_mib, max(one.memory_mib for one in found.usages), last.memory_mib],
        "descriptors": [first.num_descriptors, max(one.num_descriptors for one in found.usages), last.num_descriptors],
        "log_bytes": last.log_bytes - first.log_bytes,
        "waited_for_processor_s": [round(b.waited_s - a.waited_s, 1) for a, b in itertools.pairwise(at_bounds)],
        "own_processor_s": found.outcomes[0].processor_s,
    }


def show_alone(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each attack."""
    shown = []
    for row in rows:
        one: dict[str, object] = {"attack": row["attack"]}
        for kind in ("gap", "first", "token", "known_schema", "health", "own"):
            for part in ("p99", "max") if kind == "gap" else ("max",):
                waits = [summed.get(part) for summed in row[kind]]
                one[f"{kind} {part}"] = " / ".join("-" if wait is None else f"{wait:,.0f}" for wait in waits)
        one["memory MiB"] = " / ".join(f"{value:,.0f}" for value in row["memory_mib"])
        shown.append(one | {name: row[name] for name in ("faults", "statuses", "end_s")})
    show("waits in milliseconds: before / during / after the attack", shown)


def run_alone(names: Sequence[str], seconds: float, start: Callable[[], Endpoint]) -> list[dict[str, Any]]:
    """Each attack on an endpoint of its own."""
    rows: list[dict[str, Any]] = []
    for name in names:
        endpoint = start()
        try:
            row = asyncio.run(alone(endpoint, name, seconds))
            is_alive = endpoint.is_alive
        finally:
            end_s = endpoint.end()
        rows.append({**row, "is_alive": is_alive, "end_s": round(end_s, 1)})
        show_alone(rows[-1:])
    if len(rows) > 1:
        show_alone(rows)
    return rows


def main() -> int:
    """Run, print the tables, write ``results/soak.json``; 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="of all phases together (default: 20)")
    parser.add_argument("--phase", type=float, default=120.0, help="seconds of a phase, about (default: 120)")
    parser.add_argument("--pace", type=float, default=1.0, help="times the seconds of each attack (default: 1)")
    parser.add_argument("--small", action="store_true", help=f"small limits: {' '.join(SMALL)}")
    parser.add_argument("--attack", nargs="+", choices=[*BY_NAME, "all"], metavar="NAME", help="these alone, or all")
    parser.add_argument("--attack-seconds", type=float, default=10.0, help="of an attack alone (default: 10)")
    parser.add_argument("--into", type=Path, help="a folder for the record in place of benchmarks/results")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    options = (*(SMALL if arguments.small else ()), "--grace", "1")

    def start() -> Endpoint:
        return Endpoint(options, SMALL_DESCRIPTORS if arguments.small else None)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an endpoint is not left behind
    gc.collect()
    gc.freeze()
    gc.disable()  # a pause of these clients is not one of the endpoint; see `go_on`
    about = {"options": options, "small": arguments.small, "load_average_before": round(load, 2)}
    if arguments.attack:
        names = [*BY_NAME] if "all" in arguments.attack else arguments.attack
        rows = run_alone(names, arguments.attack_seconds, start)
        if arguments.into:
            record.write_into(arguments.into, "soak_attacks", rows, **about, attack_seconds=arguments.attack_seconds)
        return 0
    endpoint = start()
    clients = Clients(endpoint.port, ordinary(_NUM_ROWS[arguments.small]))
    try:
        found = asyncio.run(soak(endpoint, clients, arguments.minutes, arguments.phase, arguments.pace))
        is_alive = endpoint.is_alive
    finally:
        end_s = endpoint.end()
    name = "soak_small" if arguments.small else "soak"
    return report(
        found, name, arguments.into, is_alive, {**about, "minutes": arguments.minutes, "end_s": round(end_s, 2)}
    )


def report(found: Found, name: str, folder: Path | None, is_alive: bool, about: Mapping[str, object]) -> int:
    """Print and write what was found; 1 if something does not hold."""
    rows, phases, attacks, lines = rows_of(found), phases_of(found), attacks_of(found), lines_of(found, is_alive)
    show("milliseconds", rows)
    show("the endpoint", phases)
    show("by attack", attacks)
    show("what is wanted", lines)
    first, last, faults = found.usages[0], found.usages[-1], dict(found.faults())
    print(f"right answers: {dict(found.clients.num_answers)}; faults: {faults or 'none'}")
    record.write_into(
        folder,
        name,
        rows,
        **about,
        lines=lines,
        num_right_answers=dict(found.clients.num_answers),
        faults=faults,
        attacks=attacks,
        phases=phases,
        processor_s={
            "endpoint": round(last.processor_s - first.processor_s, 1),
            "clients": round(time.process_time(), 1),
            "attackers": round(sum(one.processor_s for one in found.outcomes), 1),
        },
        usage=[{**asdict(one), "at": round(one.at - found.phases[0].begin, 1)} for one in _thinned(found.usages)],
    )
    return int(any(line["holds"] is False for line in lines))


def _thinned(usages: Sequence[Usage], most: int = 120) -> Sequence[Usage]:
    return usages[:: -(-len(usages) // most)]


if __name__ == "__main__":
    sys.exit(main())
