"""What the first mask of a new process costs, with cold and with warm caches on disk, beside llguidance.

    python -m benchmarks.first_use [--repeats 5] [--tokenizer FOLDER]

Every figure comes from child processes of its own, and is the CPU time of the whole process (all threads, the start of
Python included) without the reading of the tokenizer, which is the caller's. Three ways to a vocabulary:

- ``token bytes``: decodekit, given the bytes of every token, as a runner has them (`benchmarks.maskbench`);
- ``tokenizer``: decodekit, given a tokenizer of transformers (`Vocabulary.from_tokenizer`);
- ``llguidance``: given the same tokenizer (``llguidance.hf.from_tokenizer``). It keeps nothing on disk.

Cold means that ``DECODEKIT_CACHE`` and ``NUMBA_CACHE_DIR`` are empty folders, warm that one process has filled them.
Python's bytecode of the package is there in both cases, as an installation leaves it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodekit.vocabulary import Vocabulary

# What is imported here is paid by every child, so it is little.
REPOSITORY = Path(__file__).parent.parent

SMALL: dict[str, object] = {"type": "boolean"}
TYPICAL: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["invoice", "letter", "form"]},
        "total": {"type": "number", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}},
    },
    "required": ["name", "kind"],
}
TEXT = '{"name":"'  # then the mask inside of a string
STEPS = ("import", "vocabulary", "mask of a small schema", "mask of a typical schema", "mask in a string")
WAYS = ("token bytes", "tokenizer", "llguidance")


class Clock:
    """CPU time by step; what the steps do not take is the reading of the tokenizer."""

    def __init__(self) -> None:
        self.steps = dict.fromkeys(STEPS, 0.0)
        self._at = 0.0
        self.steps["import"] = self._lap()  # the start of Python

    def _lap(self) -> float:
        before, self._at = self._at, time.process_time()
        return self._at - before

    def step(self, name: str) -> None:
        """What was done since the last call belongs to a step."""
        self.steps[name] += self._lap()

    def outside(self) -> None:
        """What was done since the last call is not counted."""
        self._lap()


def first_use(clock: Clock, way: str, folder: Path) -> None:
    """The child of decodekit."""
    if way == "tokenizer":
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    else:
        tokenizer = TokenBytes(folder)
    clock.outside()
    from decodekit.constraints import JsonSchema, allocate_bitmask, compile
    from decodekit.vocabulary import Vocabulary

    clock.step("import")
    if way == "tokenizer":
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
    else:
        vocabulary = Vocabulary(tokenizer.token_bytes, [tokenizer.eos_token_id], tokenizer.size)
    clock.step("vocabulary")
    bitmask = allocate_bitmask(1, len(vocabulary))
    for name, schema in (("small", SMALL), ("typical", TYPICAL)):
        matcher = compile(JsonSchema(schema), vocabulary).matcher()
        matcher.fill_bitmask(bitmask)
        clock.step(f"mask of a {name} schema")
    tokens = [vocabulary.token_bytes.index(bytes((byte,))) for byte in TEXT.encode()]
    clock.outside()
    for token in tokens:
        assert matcher.accept(token)
        matcher.fill_bitmask(bitmask)
    clock.step("mask in a string")


class TokenBytes:
    """What a runner hands over: the bytes of the tokens, the end of text, and their number."""

    def __init__(self, folder: Path) -> None:
        rows, self.eos_token_id = pickle.loads((folder / "bytes.pickle").read_bytes())
        self.token_bytes: list[bytes | None] = rows
        self.size = len(rows)

    @staticmethod
    def write(vocabulary: Vocabulary, folder: Path) -> None:
        """Put the bytes of a vocabulary where `TokenBytes` reads them."""
        rows = list(vocabulary.token_bytes), min(vocabulary.eos_token_ids)
        (folder / "bytes.pickle").write_bytes(pickle.dumps(rows))


def first_use_of_llguidance(clock: Clock, folder: Path) -> None:
    """The child of the peer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    clock.outside()
    llguidance: Any = importlib.import_module("llguidance")
    hf: Any = importlib.import_module("llguidance.hf")
    import numpy as np

    clock.step("import")
    vocabulary = hf.from_tokenizer(tokenizer)
    clock.step("vocabulary")
    bitmask = np.zeros((vocabulary.vocab_size + 31) // 32, np.int32)
    for name, schema in (("small", SMALL), ("typical", TYPICAL)):
        matcher = llguidance.LLMatcher(vocabulary, json.dumps({"grammars": [{"json_schema": schema}]}), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        clock.step(f"mask of a {name} schema")
    for token in vocabulary.tokenize_str(TEXT):
        assert matcher.consume_token(token)
        matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
    clock.step("mask in a string")


def child(way: str, folder: Path) -> None:
    """What a child process does: print its times."""
    clock = Clock()
    if way == "llguidance":
        first_use_of_llguidance(clock, folder)
    else:
        first_use(clock, way, folder)
    large = [name for name in ("torch", "transformers", "scipy", "numba") if name in sys.modules]
    print(json.dumps({"steps": clock.steps, "peak_memory_mib": peak_memory_mib(), "modules": large}))


def peak_memory_mib() -> float:
    """Of this process since it was started; ``getrusage`` would count the memory of the process that forked it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def run(way: str, folder: Path, caches: Path) -> dict[str, Any]:
    """One child process."""
    environment = {
        **os.environ,
        "DECODEKIT_CACHE": str(caches / "decodekit"),
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "OMP_NUM_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "benchmarks.first_use", "--child", way, "--tokenizer", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{way}: the process ended with {done.returncode}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    result["cpu_s"] = sum(result["steps"].values())
    result["said"] = done.stderr.count("decodekit:")
    return result


def summary(way: str, caches: str, runs: Sequence[dict[str, Any]]) -> dict[str, object]:
    """Medians of some runs."""
    times = sorted(one["cpu_s"] for one in runs)
    return {
        "way": way,
        "caches": caches,
        "cpu_s": round(statistics.median(times), 3),
        "least_cpu_s": round(times[0], 3),
        "most_cpu_s": round(times[-1], 3),
        "steps_s": {step: round(statistics.median(one["steps"][step] for one in runs), 4) for step in STEPS},
        "peak_memory_mib": round(statistics.median(one["peak_memory_mib"] for one in runs)),
        "progress_lines": [one["said"] for one in runs],
        "large_modules": runs[0]["modules"],
        "num_runs": len(runs),
    }


def main() -> None:
    """Run the children, print, write ``results/first_use.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="child processes per figure (default: 5)")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; without it, Tekken is made")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.tokenizer)
        return
    import compileall

    from rich.console import Console
    from rich.table import Table
    from transformers import AutoTokenizer

    from benchmarks import record
    from benchmarks.masks import TEKKEN, make_tokenizer
    from decodekit.vocabulary import Vocabulary

    ways = [way for way in WAYS if way != "llguidance" or importlib.util.find_spec("llguidance")]
    if len(ways) < len(WAYS):
        print("llguidance is not installed and left out; to compare with it: pip install llguidance")
    compileall.compile_dir(REPOSITORY / "decodekit", quiet=1)
    compileall.compile_dir(REPOSITORY / "benchmarks", quiet=1)
    rows: list[dict[str, object]] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="decodekit-first-use-") as name:
        folder = Path(name) / "tokenizer"
        if arguments.tokenizer is None:
            make_tokenizer(folder)
        else:
            folder.mkdir()
            for file in ("tokenizer.json", "tokenizer_config.json"):
                (folder / file).symlink_to((arguments.tokenizer / file).resolve())
        TokenBytes.write(Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(folder)), folder)
        for way in ways:
            cold, warm = [], []
            for repeat in range(arguments.repeats):
                caches = Path(name) / f"{way} {repeat}"
                cold.append(run(way, folder, caches))
                warm.append(run(way, folder, caches))
            if way == "llguidance":
                rows.append(summary(way, "none", cold + warm))
            else:
                rows += [summary(way, "cold", cold), summary(way, "warm", warm)]
    table = Table(title=f"CPU seconds up to the first masks, medians of {arguments.repeats} new processes")
    for heading in ("way", "caches", "all", "least", "most", *STEPS, "peak MiB"):
        table.add_column(heading, justify="left" if heading in ("way", "caches") else "right")
    for row in rows:
        steps: Any = row["steps_s"]
        figures = [row[name] for name in ("cpu_s", "least_cpu_s", "most_cpu_s")]
        cells = [row["way"], row["caches"], *figures, *steps.values(), row["peak_memory_mib"]]
        table.add_row(*map(str, cells))
    Console(width=160).print(table)
    record.write(
        "first_use",
        rows,
        question="CPU seconds of a new process up to the first masks, the reading of the tokenizer not counted",
        tokenizer=f"mistral_common {TEKKEN}" if arguments.tokenizer is None else arguments.tokenizer.name,
        load_average=round(load, 2),
    )


if __name__ == "__main__":
    main()
