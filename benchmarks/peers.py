"""JSON from documents beside what people would use in its place: documents a second, and requests a second.

    DECODEKIT_RIVALS=FOLDER OMP_NUM_THREADS=1 python -m benchmarks.peers [--threads 1 2] [--repeats 7] [--into FOLDER]

The bundled model reads the sample documents, greedy, in float32, each under the schema of its kind. The variable names
the folder of a virtual environment of the rivals (`benchmarks/README.md` says what is in it). Without it, and where a
package is absent, a side is left out and named.

``extraction``: decodekit with the drafts of `decodekit extract` and without any, beside Outlines over transformers with
each of its back ends, the logits processors of XGrammar and llguidance in transformers, transformers without a schema,
and llama.cpp with its grammar; one document at a time, and in batches of eight of one kind. Every side is a process of
its own that has compiled its schemas and has gone through all documents once. They take turns, kind by kind.

``serving``: `decodekit serve` beside `transformers serve` with and without continuous batching; each client asks for
its next document when it has an answer. Neither keeps what it has read of a prompt, as every document comes again:
decodekit is told so, and the prompts are shorter than a page of continuous batching. `transformers serve` knows no
schema, so decodekit's figures without one stand there, too. A server that has no turn is stopped (SIGSTOP).

A figure is the median over repeats, a ratio the median of the ratios of one repeat: the first side to each other. Every
text of every repeat is checked. It is valid under the schema with its formats by `jsonschema`; a field is a top-level
property, and right if it equals the expected value.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from jsonschema import Draft202012Validator
from rich.console import Console
from rich.table import Table

from benchmarks import record
from benchmarks.clients import read_answer
from benchmarks.endpoint import REPOSITORY, Endpoint, request
from benchmarks.rivals import MAX_NEW_TOKENS, MODEL, OWN, SIDES, SPECULATE, schemas

VARIABLE: Final = "DECODEKIT_RIVALS"
BATCH: Final = 8
ROUNDS: Final = 2
"""So often the clients ask for all documents in one repeat: 96 requests are three for each of 32 clients."""
_VALIDATORS: Final = {
    kind: Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for kind, schema in schemas().items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """A sample document: its kind, the prompt, and the value that should be read from it."""

    kind: str
    prompt: str
    expected: Mapping[str, Any]


def documents(num_of_kind: int) -> list[Document]:
    """The first documents of each kind, those of a kind together."""
    found = []
    for kind in schemas():
        folder = REPOSITORY / "examples" / kind
        lines = (folder / "expected.jsonl").read_text(encoding="utf-8").splitlines()[:num_of_kind]
        for one in map(json.loads, lines):
            text = (REPOSITORY / "examples" / f"{one['id']}.txt").read_text(encoding="utf-8")
            found.append(Document(kind, text.strip() + "\n", one["value"]))
    return found


def judged(wanted: Sequence[Document], texts: Sequence[str], first: Sequence[str]) -> dict[str, Any]:
    """How many texts are valid under their schemas, which share of the fields is right; how many are the first side's.

    Args:
        wanted: the documents, in the order of the texts.
        texts: of one side, of one repeat after the other.
        first: those of the first side.
    """
    num_valid = num_fields = num_right = 0
    for document, text in zip(itertools.cycle(wanted), texts, strict=False):
        value: Any = None
        with suppress(ValueError):
            value = json.loads(text)
        num_valid += _VALIDATORS[document.kind].is_valid(value)
        found = value if isinstance(value, dict) else {}
        num_fields += len(document.expected)
        num_right += sum(name in found and found[name] == right for name, right in document.expected.items())
    same = sum(one == other for one, other in zip(texts, first, strict=True))
    shares = {"fields_right": round(num_right / num_fields, 4), "same_as_first": same}
    return {"texts": len(texts), "valid": num_valid, **shares}


def figures_of(
    seconds: Mapping[str, Sequence[float]], num_done: int, unit: str, first: str
) -> dict[str, dict[str, Any]]:
    """Of each side: the median of what it does a second, least and most; and the first side's ratios to it."""
    rows = {}
    for name, found in seconds.items():
        speeds = sorted(num_done / one for one in found)
        row = {unit: round(statistics.median(speeds), 2), "least_most": [round(speeds[at], 2) for at in (0, -1)]}
        if name != first:
            ratios = sorted(theirs / own for own, theirs in zip(seconds[first], found, strict=True))
            row["ratio"] = round(statistics.median(ratios), 3)
            row["ratio_least_most"] = [round(ratios[at], 3) for at in (0, -1)]
        rows[name] = row
    return rows


class Worker:
    """A process of `benchmarks.rivals`.

    Args:
        side: its name.
        python: the interpreter that it needs.
        num_threads: of its arithmetic.
        options: further ones of its command line.

    Attributes:
        absent: the package that it lacks; None if it is ready.

    Raises:
        SystemExit: it ended without saying what it lacks.
    """

    def __init__(self, side: str, python: Path, num_threads: int, *options: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.rivals", side, "--threads", f"{num_threads}", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=REPOSITORY,
            env={**os.environ, **threads(num_threads)},
            text=True,
        )
        self.side = side
        told = self._read()
        self.absent: str | None = told.get("absent")
        self.versions: dict[str, str] = told.get("versions", {})
        self.takes_batches: bool = told.get("takes_batches", False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def ask(self, kind: str, prompts: Sequence[str], *, is_together: bool) -> tuple[list[str], float]:
        """Texts, and the seconds that the side took for them."""
        answer = self.answer(kind=kind, prompts=list(prompts), together=is_together)
        return answer["texts"], answer["seconds"]

    def answer(self, **request: object) -> dict[str, Any]:
        """What the process writes for a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(f"the process of {self.side} has ended\n{self._log.read()[-4000:]}")
        told: dict[str, Any] = json.loads(line)
        return told


def threads(num_threads: int) -> dict[str, str]:
    """The variables that hold the libraries to so many threads."""
    names = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"
    return dict.fromkeys(names, f"{num_threads}")


def python_of(side: str, rivals: Path | None) -> Path:
    """The interpreter of a side: this one for decodekit's own."""
    return Path(sys.executable) if rivals is None or side in OWN else rivals / "bin" / "python"


def about(num_threads: int, versions: Mapping[str, str]) -> dict[str, Any]:
    """What every row says of where it comes from."""
    machine = record.STARTED["machine"]
    assert isinstance(machine, Mapping)
    where = {name: machine[name] for name in ("processor", "num_cores", "memory_gib")}
    return {"threads": num_threads, "versions": dict(versions), "machine": where}


def timed(
    workers: Sequence[Worker], wanted: Sequence[Document], num_repeats: int, *, is_together: bool
) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """Seconds of every repeat by side, and the texts of all of them; kind by kind all sides take their turns."""
    seconds = {worker.side: [0.0] * num_repeats for worker in workers}
    texts: dict[str, list[str]] = {worker.side: [] for worker in workers}
    for turn in range(-1, num_repeats):  # the first one warms up
        for place, kind in enumerate(schemas()):
            prompts = [document.prompt for document in wanted if document.kind == kind]
            for worker in workers if (turn + place) % 2 else reversed(workers):
                found, took = worker.ask(kind, prompts, is_together=is_together)
                if turn >= 0:
                    seconds[worker.side][turn] += took
                    texts[worker.side] += found
    return seconds, texts


def extraction(
    num_threads: int, wanted: Sequence[Document], num_repeats: int, rivals: Path | None, sides: Iterable[str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of documents a second, and the absent packages by side."""
    rows: list[dict[str, Any]] = []
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        workers = []
        for side in sides:
            worker = stack.enter_context(Worker(side, python_of(side, rivals), num_threads))
            if worker.absent is None:
                workers.append(worker)
            else:
                absent[side] = worker.absent
        for batch in (1, BATCH):
            who = [worker for worker in workers if batch == 1 or worker.takes_batches]
            seconds, texts = timed(who, wanted, num_repeats, is_together=batch > 1)
            found = figures_of(seconds, len(wanted), "documents_per_second", OWN[0])
            for worker in who:
                case = {"part": "extraction", "side": worker.side, "batch": batch, **found[worker.side]}
                case |= judged(wanted, texts[worker.side], texts[OWN[0]])
                rows += [case | about(num_threads, worker.versions)]
    return rows, absent


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and how it is asked.

    Args:
        name: of the side.
        server: of the process; sides may share one.
        has_schema: whether requests carry the schema.
    """

    name: str
    server: str
    has_schema: bool


SERVED: Final = (
    Served("decodekit serve with drafts", "decodekit, drafts", True),
    Served("decodekit serve", "decodekit", True),
    Served("decodekit serve, no schema", "decodekit", False),
    Served("transformers serve, no schema", "transformers", False),
    Served("transformers serve, continuous batching, no schema", "transformers, continuous batching", False),
)
_OWN_OPTIONS: Final = ("--model", str(MODEL), "--share-prefixes", "none", "--grace", "1")


def start(server: str, num_threads: int, program: Path) -> Endpoint | None:
    """A server that listens; None where the program of transformers is not there."""
    if server.startswith("decodekit"):
        drafts = ("--speculate", ",".join(SPECULATE)) if server.endswith("drafts") else ()
        return Endpoint((*_OWN_OPTIONS, *drafts), num_threads=num_threads)
    if not program.exists():
        return None
    options = ("serve", str(MODEL), "--device", "cpu", "--host", "127.0.0.1")
    # Without bounds its cache takes most of the memory (14 GiB of 24), and is no faster by it.
    bounds = ("--continuous-batching", "--cb-num-blocks", "512", "--cb-max-batch-tokens", "1024")
    batched = bounds if server.endswith("batching") else ()
    return Endpoint((*options, *batched), num_threads=num_threads, command=(str(program),))


def asked(document: Document, *, has_schema: bool, model: str) -> bytes:
    """A request for the JSON of a document."""
    fields: dict[str, Any] = {"guided_json": schemas()[document.kind]} if has_schema else {}
    body = {"model": model, "prompt": document.prompt, "max_tokens": MAX_NEW_TOKENS, "temperature": 0, **fields}
    return request("/v1/completions", body)


async def answers(port: int, requests: Sequence[bytes], num_clients: int) -> tuple[list[str], float]:
    """The texts of requests that so many clients send, each its next one after an answer; and seconds.

    Raises:
        SystemExit: a request is not answered with a text.
    """
    texts = [""] * len(requests)
    waiting = iter(enumerate(requests))

    async def client() -> None:
        for place, data in waiting:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(data)
                found = read_answer(await reader.read(-1))
            finally:
                writer.transport.abort()
            if isinstance(found, str) or "text" not in found:
                raise SystemExit(f"a request is answered with {found}\n{data.decode()}")
            texts[place] = found["text"]

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    return texts, time.perf_counter() - begin


class Servers:
    """Servers of which one at a time is awake.

    Args:
        num_threads: of each.
        program: of transformers, in the environment of the rivals.
    """

    def __init__(self, num_threads: int, program: Path) -> None:
        self._all: dict[str, Endpoint] = {}
        try:
            for server in dict.fromkeys(one.server for one in SERVED):
                if (endpoint := start(server, num_threads, program)) is not None:
                    self._all[server] = endpoint
                    endpoint.send(signal.SIGSTOP)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for endpoint in self._all.values():
            endpoint.send(signal.SIGCONT)
            endpoint.end()

    def __contains__(self, server: str) -> bool:
        return server in self._all

    def ask(self, served: Served, wanted: Sequence[Document], num_clients: int) -> tuple[list[str], float]:
        """Texts and seconds of one side."""
        model = str(MODEL)
        requests = [asked(document, has_schema=served.has_schema, model=model) for document in wanted]
        endpoint = self._all[served.server]
        endpoint.send(signal.SIGCONT)
        try:
            return asyncio.run(answers(endpoint.port, requests, num_clients))
        finally:
            endpoint.send(signal.SIGSTOP)


def serving(
    num_threads: int, wanted: Sequence[Document], num_repeats: int, clients: Sequence[int], rivals: Path | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of requests a second, and the absent packages by side."""
    program = python_of("transformers", rivals).parent / "transformers"
    mixed = [wanted[place::BATCH] for place in range(BATCH)]  # kinds come mixed, as clients have them
    wanted = ROUNDS * [document for part in mixed for document in part]
    rows: list[dict[str, Any]] = []
    with Servers(num_threads, program) as servers:
        sides = [one for one in SERVED if one.server in servers]
        for num_clients in clients:
            seconds: dict[str, list[float]] = {one.name: [] for one in sides}
            texts: dict[str, list[str]] = {one.name: [] for one in sides}
            for turn in range(-1, num_repeats):  # the first one warms up
                for side in sides if turn % 2 else reversed(sides):
                    written, took = servers.ask(side, wanted, num_clients)
                    if turn >= 0:
                        seconds[side.name].append(took)
                        texts[side.name] += written
            found = figures_of(seconds, len(wanted), "requests_per_second", sides[0].name)
            for side in sides:
                case = {"part": "serving", "side": side.name, "clients": num_clients, **found[side.name]}
                case |= judged(wanted, texts[side.name], texts[sides[0].name])
                rows += [case | about(num_threads, _versions(side, rivals))]
    return rows, {one.name: "transformers[serving]" for one in SERVED if one not in sides}


def _versions(side: Served, rivals: Path | None) -> dict[str, str]:
    """Of torch and transformers where a server runs."""
    code = (
        "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in ('torch', 'transformers')}))"
    )
    python = python_of(OWN[0] if side.server.startswith("decodekit") else side.name, rivals)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of rows."""
    table = Table(title="documents or requests per second; how many times the first side of its group does")
    for heading in (
        "part",
        "threads",
        "rows or clients",
        "side",
        "per second",
        "ratio",
        "valid",
        "fields right",
        "same text",
    ):
        table.add_column(heading, justify="left" if heading in ("part", "side") else "right")
    for row in rows:
        per_second = row.get("documents_per_second", row.get("requests_per_second"))
        cells = row["part"], row["threads"], row.get("batch", row.get("clients")), row["side"], per_second
        more = (row.get("ratio", ""), f"{row['valid']}/{row['texts']}", row["fields_right"], row["same_as_first"])
        table.add_row(*map(str, (*cells, *more)))
    Console(width=160).print(table)


def main() -> None:
    """Measure, print, write ``peers.json`` into the folder of ``--into``, if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--documents", type=int, default=BATCH, help=f"of each of six kinds (default: {BATCH})")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--parts", nargs="+", default=["extraction", "serving"], choices=["extraction", "serving"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES), metavar="SIDE")
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--into", type=Path, help="the folder of the record, such as benchmarks/results; else none")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rivals = Path(os.environ[VARIABLE]).absolute() if os.environ.get(VARIABLE) else None
    if rivals is None:
        print(f"{VARIABLE} names no environment of the rivals: those that are not in this one are left out")
    wanted = documents(arguments.documents)
    sides = dict.fromkeys((OWN[0], *arguments.sides))
    rows: list[dict[str, Any]] = []
    absent: dict[str, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process is left behind
    for num_threads, part in itertools.product(arguments.threads, arguments.parts):
        if part == "extraction":
            found, lacking = extraction(num_threads, wanted, arguments.repeats, rivals, sides)
        else:
            found, lacking = serving(num_threads, wanted, arguments.repeats, arguments.clients, rivals)
        show(found)
        rows, absent = rows + found, absent | lacking
    for side, package in absent.items():
        print(f"left out: {side}; absent is {package}")
    if arguments.into:
        record.write_into(
            arguments.into,
            "peers",
            rows,
            question="JSON of sample documents beside other packages, the bundled model, greedy",
            num_repeats=arguments.repeats,
            max_new_tokens=MAX_NEW_TOKENS,
            drafts=SPECULATE,
            absent=absent,
            load_average_before=round(load, 2),
        )


if __name__ == "__main__":
    main()
