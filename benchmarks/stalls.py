"""Gaps of a stream while schemas are compiled beside it: what the garbage collector and compilation hold up.

    python -m benchmarks.stalls [--schemas 400] [--ways alone compile submit] [--policies as-is governed off]

One request without a constraint is streamed on an engine of the bundled model. Beside it, in another thread:

- ``alone``: nothing;
- ``compile``: schemas of the development corpus are compiled, one after the other, each with its first mask;
- ``submit``: requests with such schemas are submitted to the same engine, a few tokens each.

Policies of the garbage collector: ``as-is`` is what a user's process has, ``governed`` what processes of decodekit's
own do (`decodekit.collector`), ``off`` switches it off, to tell what is not its doing. Every run has a process of its
own, in which streams in as many rows as there will be have run before: the first pass of so many rows is recorded.

A gap is the time between two chunks of the stream, as its reader sees it, and beside it the processor time that the
process has had in it: that is the gap on a machine of its own, whoever else uses this one. Beside the percentiles: how
often and how long whole collections ran while the stream did, how many objects the collector tracks in the end, and the
memory of the process after each quarter of the schemas.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parent.parent
CORPUS: Final = REPOSITORY / os.environ.get("DECODEKIT_CORPORA", "../shared") / "maskbench" / "data" / "dev.jsonl.gz"
WAYS: Final = ("alone", "compile", "submit")
POLICIES: Final = ("as-is", "governed", "off")
ALONE_S: Final = 10.0
NUM_MASKS: Final = 1
SUBMITTED_TOKENS: Final = 16
AT_A_TIME: Final = 4
PROMPT: Final = "Once upon a time"


def load_schemas(num_schemas: int, seed: int) -> list[Any]:
    """Schemas of the corpus, after a shuffle."""
    if not CORPUS.exists():
        raise SystemExit(f"no corpus at {CORPUS}; set DECODEKIT_CORPORA to the folder that has maskbench/")
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    random.Random(seed).shuffle(schemas)
    return schemas[:num_schemas]


@dataclass
class Collections:
    """The collections of the garbage collector since `watch`."""

    seconds: dict[int, list[float]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    _began: float = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """As `gc.callbacks` wants it."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds[info["generation"]].append(time.perf_counter() - self._began)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    parts = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {name: round(1e3 * ordered[min(len(ordered) - 1, int(p * len(ordered)))], 1) for name, p in parts.items()}


def memory_mib() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def beside(way: str, llm: Any, engine: Any, schemas: list[Any], refused: list[str]) -> Callable[[int], None]:
    """What is done with schema i beside the stream."""
    import decodekit as dk
    from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask

    handles: list[Any] = []
    row, draws = allocate_bitmask(1, llm.vocabulary.size), random.Random(0)

    def compile_one(i: int) -> None:
        matcher = dk.compile(dk.JsonSchema(schemas[i]), llm.vocabulary).matcher()
        for _ in range(NUM_MASKS):
            matcher.fill_bitmask(row)
            allowed = ids_from_bitmask(row[0]).tolist()
            if not allowed or not matcher.accept(draws.choice(allowed)):
                break

    def submit_one(i: int) -> None:
        while len(handles) >= AT_A_TIME:
            handles.pop(0).result()
        constraint = dk.JsonSchema(schemas[i])
        options = {"max_new_tokens": SUBMITTED_TOKENS, "on_length": "return"}
        handles.append(engine.submit(PROMPT, constraint=constraint, **options))

    def one(i: int) -> None:
        try:
            (compile_one if way == "compile" else submit_one)(i)
        except dk.DecodekitError as error:
            refused.append(error.code)

    return one


def child(way: str, policy: str, num_schemas: int, seed: int) -> dict[str, Any]:
    """One run in this process."""
    import decodekit as dk

    schemas = load_schemas(num_schemas, seed)
    llm = dk.LLM.load("tiny")
    dk.compile(dk.JsonSchema({"type": "string"}), llm.vocabulary).matcher()  # compiled functions are loaded
    if policy == "off":
        gc.disable()
    elif policy == "governed":
        from decodekit import collector

        collector.take_over()
        collector.settle()
    refused: list[str] = []
    collections, memory = Collections(), list[int]()
    gaps: list[float] = []
    work: list[float] = []
    is_done = threading.Event()
    with llm.engine() as engine:
        act = beside(way, llm, engine, schemas, refused)

        def act_on_all() -> None:
            try:
                if way == "alone":
                    time.sleep(ALONE_S)
                else:
                    for i in range(num_schemas):
                        act(i)
                        if (i + 1) % max(1, num_schemas // 4) == 0:
                            memory.append(memory_mib())
            finally:
                is_done.set()

        first = [
            engine.submit(PROMPT, max_new_tokens=n, min_tokens=n) for n in (900, *range(400, 0, -400 // AT_A_TIME))
        ]
        for handle in first:
            handle.result()
        memory.append(memory_mib())
        gc.callbacks.append(collections)
        began = time.perf_counter()
        worker = threading.Thread(target=act_on_all)
        worker.start()
        for number in itertools.count():
            before, worked = 0.0, 0.0
            # Another prompt each time, so that nothing of it is known.
            for _ in engine.submit(f"{number} {PROMPT}", max_new_tokens=900, min_tokens=900):
                now, work_now = time.perf_counter(), time.process_time()
                if before:
                    gaps.append(now - before)
                    work.append(work_now - worked)
                before, worked = now, work_now
                if is_done.is_set():
                    break
            if is_done.is_set():
                break
        seconds = time.perf_counter() - began
        worker.join()
        gc.callbacks.remove(collections)
        engine.close(drain=False)
    return {
        "way": way,
        "policy": policy,
        "num_schemas": 0 if way == "alone" else num_schemas,
        "seconds": round(seconds, 1),
        "num_gaps": len(gaps),
        "gap_ms": percentiles(gaps),
        "gap_cpu_ms": percentiles(work),
        "over_30_ms": sum(gap > 0.03 for gap in gaps),
        "collections": {
            str(generation): {
                "num": len(found),
                "sum_ms": round(1e3 * sum(found)),
                "max_ms": round(1e3 * max(found, default=0.0), 1),
            }
            for generation, found in collections.seconds.items()
        },
        "num_tracked": len(gc.get_objects()),
        "num_frozen": gc.get_freeze_count(),
        "memory_mib": memory,
        "num_refused": len(refused),
    }


def main() -> None:
    """Every way under every policy, each in a process of its own; prints, and writes ``results/stalls.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=400, help="how many (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--repeats", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child[0], arguments.child[1], arguments.schemas, arguments.seed)))
        return

    from benchmarks import record

    rows: list[dict[str, Any]] = []
    numbers = [f"--schemas={arguments.schemas}", f"--seed={arguments.seed}"]
    for way, policy, _ in itertools.product(arguments.ways, arguments.policies, range(arguments.repeats)):
        command = [sys.executable, "-m", "benchmarks.stalls", *numbers, "--child", way, policy]
        load = os.getloadavg()[0]
        done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
        row = json.loads(done.stdout) | {"load_average": round(load, 2)}
        rows.append(row)
        gap, work, whole = row["gap_ms"], row["gap_cpu_ms"], row["collections"]["2"]
        print(
            f"{way:8} {policy:9} {row['seconds']:6.1f} s  gaps of {row['num_gaps']:,} ms:"
            f" p50 {gap['p50']} p99 {gap['p99']} p99.9 {gap['p999']} max {gap['max']}, {row['over_30_ms']} over 30;"
            f" processor p50 {work['p50']} p99 {work['p99']} p99.9 {work['p999']} max {work['max']};"
            f" whole collections {whole['num']}, up to {whole['max_ms']} ms; tracked {row['num_tracked']:,};"
            f" MiB {row['memory_mib']}; load {row['load_average']}",
            flush=True,
        )
    if arguments.repeats > 1:
        for way, policy in itertools.product(arguments.ways, arguments.policies):
            some = [row["gap_ms"] for row in rows if (row["way"], row["policy"]) == (way, policy)]
            medians = {name: statistics.median(one[name] for one in some) for name in some[0]}
            print(f"{way:8} {policy:9} medians of {len(some)}: {medians}")
    if not arguments.no_record:
        record.write("stalls", rows, question="gaps of a stream while schemas are compiled beside it", model="tiny")


if __name__ == "__main__":
    main()
