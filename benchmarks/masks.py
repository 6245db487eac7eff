"""decodekit's token masks beside llguidance's and XGrammar's: what each gets right, and what a mask costs.

    python -m benchmarks.masks [--limit 600 | --all] [--seed 1] [--timeout 10] [--engines decodekit llguidance ...]
    python -m benchmarks.masks --suite

The runner is `maskbench/maskbench.py` in the folder that `DECODEKIT_CORPORA` names (by default ``../shared``). It runs
once per engine, each time in a process of its own, on the same schemas and the same tokenizer: Mistral's Tekken with
131,072 tokens, made from the data of `mistral_common`, or the one of ``--tokenizer``. Nothing is prepared between the
runs but what an engine keeps on disk by itself. Times are the runner's steady clock: per step the smaller of wall and
process CPU time.

``--suite`` asks only what is right: the probes, and the official JSON Schema Test Suite for drafts 7 and 2020-12.
Its ``format`` tests contradict its ``optional/format`` tests (formats are ignored in the one, enforced in the other),
so an engine that has the option runs once with each and is judged by the fitting one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import record

REPOSITORY = Path(__file__).parent.parent
CORPUS = (REPOSITORY / os.environ.get("DECODEKIT_CORPORA", "../shared") / "maskbench").resolve()
RUNNER = CORPUS / "maskbench.py"
DEV, PROBES, SUITE = (
    CORPUS / "data" / name for name in ("dev.jsonl.gz", "probes.jsonl.gz", "json-schema-test-suite.tar.gz")
)
TEKKEN = "tekken_240911.json"
DRAFTS = ("draft7", "draft2020-12")
PARTS = ("required", "optional", "optional/format")
TIMES = ("TTFM p50", "TTFM p99", "TBM avg", "TBM p50", "TBM p90", "TBM p99", "TBM p99.9", "TBM max")

Record = Mapping[str, Any]  # what the runner says of one schema


@dataclass(frozen=True)
class Engine:
    """An engine as the runner names it, and the package that it needs."""

    spec: str
    package: str
    options: tuple[str, ...] = ()
    asserting: tuple[str, ...] | None = None  # the options with which formats are enforced, if it has that choice


ENGINES = {
    "decodekit": Engine("benchmarks.maskbench:Engine", "decodekit", ("format=annotate",), asserting=("format=assert",)),
    "llguidance": Engine("llguidance", "llguidance"),
    "llguidance-lenient": Engine("llguidance-lenient", "llguidance"),
    "xgrammar": Engine("xgrammar", "xgrammar"),
    "xgrammar-default": Engine("xgrammar-default", "xgrammar"),
}
DEFAULT_ENGINES = ("decodekit", "llguidance", "xgrammar-default")


@dataclass
class Run:
    """What one engine did: a file of the runner, its records, and what the process took."""

    name: str
    path: Path
    records: list[Record]
    peak_memory_gib: float
    load_average: float  # over the last minute, when the run began
    by_id: dict[str, Record] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {row["id"]: row for row in self.records}


def load_runner() -> ModuleType:
    """The runner as a module, for its readings of its own files."""
    if not RUNNER.exists():
        raise SystemExit(f"no runner at {RUNNER}; set DECODEKIT_CORPORA to the folder that has maskbench/")
    spec = importlib.util.spec_from_file_location("maskbench", RUNNER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_tokenizer(folder: Path) -> None:
    """Write Tekken into a folder, as ``tokenizer.json`` and ``tokenizer_config.json``."""
    try:
        import mistral_common
        from transformers.integrations.mistral import convert_tekken_tokenizer
    except ImportError as error:
        raise SystemExit(
            f"cannot make the Tekken tokenizer ({error}): pip install 'decodekit[mistral]', or give --tokenizer"
        ) from error
    convert_tekken_tokenizer(str(Path(mistral_common.__file__).parent / "data" / TEKKEN)).save_pretrained(folder)


def installed(names: Sequence[str]) -> list[str]:
    """Those of the engines that can be imported; the others are named, with how to install them."""
    missing = [name for name in names if importlib.util.find_spec(ENGINES[name].package) is None]
    for name in missing:
        package = ENGINES[name].package
        print(f"{name} is left out: {package} is not installed; to compare with it: pip install {package}")
    present = [name for name in names if name not in missing]
    if not present:
        raise SystemExit("no engine is left")
    return present


def run(runner: ModuleType, name: str, label: str, out: Path, arguments: Sequence[str]) -> Run:
    """One run of one engine, in a new process, and what it wrote."""
    load_average = os.getloadavg()[0]
    command = [sys.executable, str(RUNNER), "--engine", ENGINES[name].spec, "--label", label, "--out", str(out)]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([*command, *arguments], cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)  # the peak of the process and of every worker it waited for
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{label}: the runner ended with {process.returncode}; its message is above")
    records: list[Record] = runner.load_records(str(out))[1]
    return Run(name, out, records, round(usage.ru_maxrss / 2**20, 2), round(load_average, 2))


# ------------------------------------------------------------------------------------------------ masks and their cost


def times(runner: ModuleType, records: Sequence[Record], timeout_us: float | None = None) -> dict[str, float | None]:
    """Microseconds. With `timeout_us`, a schema that ran out of time counts with the limit in TTFM."""
    values: dict[str, float | None] = dict(runner.timing(records, timeout_us))
    return {name: _rounded(values[name]) for name in TIMES}


def coverage(runner: ModuleType, records: Sequence[Record]) -> dict[str, int]:
    """How many schemas pass, and why the others do not."""
    count: Counter[str] = runner.coverage(records)
    return {
        "schemas": count["schemas"],
        "passing": count["passing"],
        "compile_errors": count["compile_error"],
        "timeouts": count["timeout"],
        "crashes": count["crash"] + count["oom"],
        "exceptions": count["exception"],
        "valid_instances": count["inst_valid"],
        "valid_refused": count["false_reject"],
        "invalid_instances": count["inst_invalid"],
        "invalid_accepted": count["false_accept"],
    }


def wrong(runner: ModuleType, records: Sequence[Record]) -> dict[str, list[str]]:
    """The ids of the schemas that do not pass, by what is wrong with them."""
    ids: dict[str, list[str]] = {}
    for row in records:
        valid_refused, invalid_accepted, exception, *_ = runner.schema_flags(row)
        reasons = {
            row["status"]: row["status"] != "ok",
            "valid refused": valid_refused,
            "invalid accepted": invalid_accepted,
            "exception": exception,
        }
        for reason, holds in reasons.items():
            if holds:
                ids.setdefault(reason, []).append(row["id"])
    return ids


def ratios(runner: ModuleType, ours: Run, peers: Sequence[Run]) -> list[dict[str, object]]:
    """Our times over each peer's, on the same schemas: what both or all walked to the end, and what they got right."""
    judges: dict[str, Callable[[Record], bool]] = {
        "compiled and walked to the end": lambda row: bool(row["status"] == "ok"),
        "all instances right": lambda row: bool(runner.passed(row)),
    }
    rows: list[dict[str, object]] = []
    for peer in peers:
        groups = {f"decodekit and {peer.name}": [ours, peer]}
        if len(peers) > 1:
            groups["every engine"] = [ours, *peers]
        for by, runs in groups.items():
            for what, judge in judges.items():
                ids = [name for name in ours.by_id if all(name in r.by_id and judge(r.by_id[name]) for r in runs)]
                mine, theirs = (times(runner, [r.by_id[name] for name in ids]) for r in (ours, peer))
                row: dict[str, object] = {"peer": peer.name, "schemas": what, "by": by, "num_schemas": len(ids)}
                for name in TIMES:
                    a, b = mine[name], theirs[name]
                    row[name] = None if a is None or not b else round(a / b, 3)
                rows.append(row)
    return rows


def compare_masks(runner: ModuleType, names: Sequence[str], folder: Path, arguments: argparse.Namespace) -> None:
    """The sample through every engine; prints the comparison and writes ``results/masks.json``."""
    options = ["--tokenizer", str(arguments.tokenizer), "--data", str(DEV), "--seed", str(arguments.seed)]
    options += ["--timeout", str(arguments.timeout)]
    if not arguments.all:
        options += ["--limit", str(arguments.limit)]
    runs = [run(runner, name, name, folder / f"{name}.jsonl.gz", options) for name in names]
    print(runner.compare([str(one.path) for one in runs]))

    rows: list[dict[str, object]] = []
    for one in runs:
        row: dict[str, object] = {"engine": one.name, **coverage(runner, one.records)}
        row["times_us"] = times(runner, one.records, arguments.timeout * 1e6)
        row["peak_memory_gib"], row["load_average"] = one.peak_memory_gib, one.load_average
        if one.name == "decodekit":
            row["wrong"] = wrong(runner, one.records)
        rows.append(row)
    ours = next((one for one in runs if one.name == "decodekit"), None)
    factors = [] if ours is None else ratios(runner, ours, [one for one in runs if one is not ours])
    if factors:
        table = Table(title="decodekit's time over the peer's, on the same schemas")
        for heading in ("peer", "schemas", "by", "number", *TIMES):
            table.add_column(heading, justify="left" if heading in ("peer", "schemas", "by") else "right")
        for factor in factors:
            table.add_row(*(str(factor[name]) for name in ("peer", "schemas", "by", "num_schemas", *TIMES)))
        Console(width=200).print(table)
    for one in runs:
        for reason, ids in wrong(runner, one.records).items() if one.name == "decodekit" else ():
            print(f"{one.name}, {reason}: {', '.join(ids[:20])}{' ...' if len(ids) > 20 else ''}")
    record.write(
        "masks",
        rows,
        **_about(names, arguments),
        num_schemas=len(runs[0].records),
        sample="all" if arguments.all else f"the first {arguments.limit} after a shuffle with seed {arguments.seed}",
        timeout_cpu_s=arguments.timeout,
        clock="per step the smaller of wall and process CPU time",
        ratios=factors,
    )


# ---------------------------------------------------------------------------------------------------- what is right


def part_of(name: str) -> str:
    """The part of the official suite that a file belongs to."""
    return next((part for part in reversed(PARTS[1:]) if f"/{part}/" in name), PARTS[0])


def judge_suite(records: Sequence[Record]) -> dict[str, Counter[str]]:
    """Per part: tests, and how many are right, wrongly accepted, wrongly refused, refused with their schema, broken.

    A schema that is refused and has no valid instance is refused rightly (``unsatisfiable``).
    """
    parts: dict[str, Counter[str]] = {}
    for row in records:
        count = parts.setdefault(part_of(row["id"]), Counter())
        count["tests"] += len(row["expect"])
        for valid, outcome, *_ in row["inst"]:
            if outcome in "XMS":
                count["broken"] += 1
            elif (outcome == "A") == bool(valid):
                count["right"] += 1
            else:
                count["wrongly_refused" if valid else "wrongly_accepted"] += 1
        missing = len(row["expect"]) - len(row["inst"])
        if row["status"] != "compile_error":
            count["broken"] += missing
        else:
            count["schema_refused" if any(row["expect"]) else "unsatisfiable"] += missing
    return parts


def not_right(records: Sequence[Record], part: str) -> list[str]:
    """The ids of a part's schemas with a test that is not right."""
    return [row["id"] for row in records if part_of(row["id"]) == part and not _is_right(judge_suite([row])[part])]


def _is_right(count: Counter[str]) -> bool:
    return count["right"] + count["unsatisfiable"] == count["tests"]


def compare_suite(runner: ModuleType, names: Sequence[str], folder: Path, arguments: argparse.Namespace) -> None:
    """Probes and official suite through every engine; writes ``results/masks_suite.json``."""
    columns = ("tests", "right", "unsatisfiable", "schema_refused", "wrongly_refused", "wrongly_accepted", "broken")
    table = Table(title="probes and JSON Schema Test Suite")
    for heading in ("engine", "suite", "part", "formats", *columns):
        table.add_column(
            heading.replace("_", " "), justify="left" if heading in ("engine", "suite", "part") else "right"
        )
    rows: list[dict[str, object]] = []
    common = ["--tokenizer", str(arguments.tokenizer), "--timeout", str(arguments.timeout)]

    def add(name: str, suite: str, part: str, formats: str, count: Counter[str], ids: list[str]) -> None:
        numbers = {column: count[column] for column in columns}
        rows.append({"engine": name, "suite": suite, "part": part, "formats": formats, **numbers, "not_right": ids})
        table.add_row(name, suite, part, formats, *map(str, numbers.values()))

    for name in names:
        engine = ENGINES[name]
        settings = {"as it is": engine.options}
        if engine.asserting is not None:
            settings = {"annotate": engine.options, "assert": engine.asserting}
        # The probes say nothing of an option: an engine does what it does by default.
        probes = run(runner, name, name, folder / f"{name}-probes.jsonl.gz", [*common, "--data", str(PROBES)]).records
        is_right = {row["id"]: bool(runner.passed(row)) for row in probes}
        count = Counter({"tests": len(probes), "right": sum(is_right.values())})
        add(name, "probes", "all", "as it is", count, [probe for probe, right in is_right.items() if not right])
        for draft in DRAFTS:
            for formats, options in settings.items():
                chosen = [part for part in PARTS if len(settings) == 1 or (part == PARTS[2]) == (formats == "assert")]
                given = [word for option in options for word in ("--opt", option)]
                out = folder / f"{name}-{draft}-{formats.replace(' ', '-')}.jsonl.gz"
                asked = [*common, "--suite", str(SUITE), "--draft", draft, *given]
                records = run(runner, name, f"{name} {draft} {formats}", out, asked).records
                judged = judge_suite(records)
                for part in chosen:
                    add(name, draft, part, formats, judged[part], not_right(records, part))
    Console(width=160).print(table)
    for row in rows:
        if row["engine"] == "decodekit" and row["not_right"]:
            print(f"decodekit, {row['suite']}, {row['part']}: {row['not_right']}")
    record.write("masks_suite", rows, **_about(names, arguments), timeout_cpu_s=arguments.timeout)


def _about(names: Sequence[str], arguments: argparse.Namespace) -> dict[str, object]:
    peers = sorted({ENGINES[name].package for name in names} - {"decodekit"})
    return {
        "engine_versions": {package: importlib.metadata.version(package) for package in peers},
        "tokenizer": arguments.tokenizer_name,
        "load_average_at_the_end": round(os.getloadavg()[0], 2),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def main() -> None:
    """Run the engines one after the other, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=600, help="schemas of the development split (default: 600)")
    parser.add_argument("--all", action="store_true", help="all 6,825 of them")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1, the published sample of 600)")
    parser.add_argument("--timeout", type=float, default=10.0, help="CPU seconds per schema (default: 10)")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=DEFAULT_ENGINES,
        metavar="ENGINE",
        help=f"of {', '.join(ENGINES)} (default: {' '.join(DEFAULT_ENGINES)})",
    )
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; without it, Tekken is made")
    parser.add_argument("--suite", action="store_true", help="the probes and the official test suite instead")
    arguments = parser.parse_args()
    if arguments.all and any(word.startswith("--limit") for word in sys.argv):
        parser.error("--all and --limit: one or the other")

    runner = load_runner()
    names = installed(list(dict.fromkeys(arguments.engines)))
    with tempfile.TemporaryDirectory(prefix="decodekit-masks-") as name:
        folder = Path(name)
        if arguments.tokenizer is None:
            arguments.tokenizer, arguments.tokenizer_name = folder / "tokenizer", f"mistral_common {TEKKEN}"
            make_tokenizer(arguments.tokenizer)
        else:
            arguments.tokenizer = arguments.tokenizer.resolve()
            arguments.tokenizer_name = arguments.tokenizer.name
        (compare_suite if arguments.suite else compare_masks)(runner, names, folder, arguments)


if __name__ == "__main__":
    main()
