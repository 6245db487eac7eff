"""The tables of figures in README.md and docs/, made from the records: ``python -m benchmarks.figures``.

A page holds each table between two comments, and whatever stands there is written anew:

    <!-- figures: loop -->
    | weights | rows | ...
    <!-- end -->

Below every table stand the record, its commit and its machine. `rendered` is a page as it should be; a test compares.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.record import RESULTS

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "measured.md")
_BLOCK: Final = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WITHOUT: Final = "transformers, without constraint"

Record = Mapping[str, Any]
Cells = Sequence[str]


def load(name: str) -> Record:
    """A record of `benchmarks/results`."""
    found: Record = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def table(heads: Cells, rows: Iterable[Cells], num_texts: int = 1) -> str:
    """A table of Markdown, its first `num_texts` columns to the left and figures to the right."""
    marks = ["---" if place < num_texts else "--:" for place in range(len(heads))]
    lines = [" | ".join(heads), "|".join(marks), *map(" | ".join, rows)]
    return "".join(f"|{line}|\n" if line == lines[1] else f"| {line} |\n" for line in lines)


def source(*names: str) -> str:
    """The line below a table: records, commits, machines."""
    told = []
    for name in names:
        record = load(name)
        machine = record["machine"]
        where = f"{machine['processor'].removesuffix(' Processor')}, {machine['num_cores']} cores, no GPU"
        told.append(f"[`{name}.json`](../benchmarks/results/{name}.json), commit {record['commit']}, {where}")
    return "\n" + "\n".join(told) + ".\n"


def _row(rows: Sequence[Record], **wanted: object) -> Record:
    return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))


def loop(name: str = "loop") -> str:
    """The loop beside transformers, and beside llama.cpp if a record has that."""
    found = load(name)["rows"]
    rows = [
        [
            f"{row['model']}, {row['strategy']}",
            f"{row['dtype']}, {row['num_threads']}",
            f"{row['batch_size']}",
            *(f"{row[side]:,.{int(row[side] < 10)}f}" for side in ("decodekit", "generate")),
            f"{row['ratio_generate']:.2f}, {' to '.join(f'{end:.2f}' for end in row['ratio_generate_p10_p90'])}",
            f"{row['ratio_bare']:.2f}" if "ratio_bare" in row else "",
            f"{row['ratio_generate_batch']:.1f}" if "ratio_generate_batch" in row else "",
            f"{row['ratio_llama.cpp']:.2f}, {row['tokens_as_llama.cpp']:.0%}" if "llama.cpp" in row else "",
        ]
        for row in found
    ]
    heads = (
        "weights", "type, threads", "rows", "tokens per second", "`generate`", "ratio, 10 % to 90 %", "bare loop",
        "`generate_batch`", "llama.cpp, equal tokens",
    )  # fmt: skip
    versions = next((row["versions"] for row in found if "llama.cpp" in row), None)
    if versions is None:
        return table(heads[:-1], [row[:-1] for row in rows]) + source(name)
    told = f"llama.cpp is that of llama_cpp_python {versions['llama_cpp_python']}, in F32, BF16, F16 or Q8_0."
    return table(heads, rows) + f"\n{told}\n" + source(name)


def pairs() -> str:
    """Whatever is measured beside one other way of doing the same."""
    batching, beams = load("batching")["rows"], load("beams")["rows"]
    prefixes, attention = load("prefixes")["rows"][0], load("attention")["rows"][0]["median_ms"]
    ours = _row(batching, way="continuous")["tokens_per_second"]
    rows = []
    for way, told in (
        ("static", "static batches of one shape"),
        ("leaving", "static batches that rows leave"),
        ("transformers", "transformers' manager"),
    ):
        row = _row(batching, way=way)
        spread = f"{row['ratio']:.2f}, {row['ratio_min']:.2f} to {row['ratio_max']:.2f}"
        rows.append(
            [f"256 texts on 32 rows, tokens per second; {told}", *_thousands(ours, row["tokens_per_second"]), spread]
        )
    alone, shared = (f"{prefixes[f'documents_per_second_{way}']:.1f}" for way in ("alone", "shared"))
    told = "200 documents, 400 shared tokens, documents per second; each read alone"
    rows.append([told, shared, alone, f"{prefixes['ratio']:.2f}"])
    for part, told in (("prefill", "their prompt of 2,048 tokens"), ("token", "a token")):
        row = _row(beams, part=part)
        times = [f"{row[f'{who}_ms']:,.0f}" for who in ("decodekit", "transformers")]
        rows.append([f"four beams, {told}, ms; transformers", *times, f"{row['ratio']:.2f}"])
    for way, told in (("repeat_kv", "keys repeated"), ("enable_gqa", "`enable_gqa`")):
        times = [f"{attention['packed']:.1f}", f"{attention[way]:.1f}"]
        ratio = f"{attention[way] / attention['packed']:.1f}"
        rows.append([f"attention over 4,096 tokens, 32 heads for 8, ms; {told}", *times, ratio])
    heads = "what; beside", "decodekit", "the other", "ratio"
    return table(heads, rows) + source("batching", "prefixes", "beams", "attention")


def _thousands(*values: float) -> list[str]:
    return [f"{value:,.0f}" for value in values]


def speculation() -> str:
    """Documents as JSON, with and without drafts."""
    rows = load("speculation")["rows"]
    runs = {
        _WITHOUT: "transformers, no schema",
        "plain": "decodekit, no drafts",
        "GrammarDraft, Suffix": "`GrammarDraft`, `Suffix`",
        "GrammarDraft, PromptLookup": "`GrammarDraft`, `PromptLookup`",
        "GrammarDraft, DraftModel": '`GrammarDraft`, `DraftModel("tiny-draft")`',
    }
    made = []
    for run, told in runs.items():
        found = [_row(rows, part="extraction", setting=f"batch {size}", run=run) for size in (1, 8)]
        cells = [told]
        for row in found:
            ratio = row["ratio_to"].get(_WITHOUT)
            cells += [f"{row['tokens_per_second']:,.0f}", "" if ratio is None else f"{ratio:.2f}"]
        made.append(cells)
    return table(("tokens per second", "1 row", "ratio", "8 rows", "ratio"), made) + source("speculation")


def sampler() -> str:
    """One draw beside transformers."""
    rows = sorted(load("sampler")["rows"], key=lambda row: (len(row["settings"]), row["vocab_size"], row["batch_size"]))
    made = [
        [
            row["settings"],
            f"{row['vocab_size']:,}, {row['batch_size']}",
            *_thousands(row["decodekit_us"], row["transformers_us"]),
            f"{row['ratio']:.1f}",
        ]
        for row in rows
    ]
    return table(("processors", "tokens, rows", "decodekit", "transformers", "ratio"), made, 2) + source("sampler")


def masks() -> str:
    """Masks over schemas, and the ratios of their times."""
    record = load("masks")
    engines = record["rows"]
    lines: list[tuple[str, Callable[[Record], str]]] = [
        ("schemas right throughout", lambda row: f"{row['passing']}"),
        ("refused when compiled, over 10 s", lambda row: f"{row['compile_errors']}, {row['timeouts']}"),
        ("valid instances refused", lambda row: f"{row['valid_refused']} of {row['valid_instances']:,}"),
        ("invalid instances accepted", lambda row: f"{row['invalid_accepted']} of {row['invalid_instances']:,}"),
        ("first mask, p50 / p99, ms", lambda row: _times(row, "TTFM p50", "TTFM p99", scale=1e-3)),
        ("later masks, mean, µs", lambda row: _times(row, "TBM avg")),
        ("... p50 / p90", lambda row: _times(row, "TBM p50", "TBM p90")),
        ("... p99 / p99.9", lambda row: _times(row, "TBM p99", "TBM p99.9")),
        ("largest memory, GiB", lambda row: f"{row['peak_memory_gib']:.2f}"),
    ]
    made = [[told, *map(value, engines)] for told, value in lines]
    heads = "", "decodekit", *(f"{name} {version}" for name, version in _versions(record))
    told = (
        "\nThese are the times of each engine over the schemas that it compiles. "
        "The ratios of ours to theirs, over those that both compile:\n"
    )
    ratios = [
        [
            f"{row['peer'].removesuffix('-default')}, {row['num_schemas']} schemas",
            *(f"{row[name]:.2f}" for name in _TIMES),
        ]
        for row in record["ratios"]
        if row["schemas"].startswith("compiled") and row["by"].startswith("decodekit")
    ]
    shown = ("beside", *(name.replace("TTFM", "first mask").replace("TBM", "later") for name in _TIMES))
    return table(heads, made) + told + "\n" + table(shown, ratios) + source("masks")


def _times(row: Record, *names: str, scale: float = 1.0) -> str:
    found = [scale * row["times_us"][name] for name in names]
    return " / ".join(f"{value:.1f}" if value < 100 else f"{value:,.0f}" for value in found)


_TIMES: Final = ("TTFM p50", "TTFM p99", "TBM avg", "TBM p50", "TBM p90", "TBM p99", "TBM p99.9")


def _versions(record: Record) -> list[tuple[str, str]]:
    names = {"llguidance": "llguidance", "xgrammar": "XGrammar"}
    return [(names[name], version) for name, version in record["engine_versions"].items()]


def masks_suite() -> str:
    """The official test suite of JSON Schema."""
    record = load("masks_suite")
    engines = "decodekit", "llguidance", "xgrammar-default"
    made = []
    for suite, name in (("draft2020-12", "draft 2020-12"), ("draft7", "draft 7")):
        rows = [_row(record["rows"], engine=engine, suite=suite, part="required") for engine in engines]
        made.append([f"{name}: right, of {rows[0]['tests']:,}", *(f"{row['right']:,}" for row in rows)])
        made.append(["... schemas without a valid text, refused rightly", *(f"{row['unsatisfiable']}" for row in rows)])
        wrong = (f"{row['wrongly_accepted']} / {row['wrongly_refused']}" for row in rows)
        made.append(["... wrongly accepted / wrongly refused", *wrong])
    return table(("", "decodekit", "llguidance", "XGrammar"), made) + source("masks_suite")


def first_use() -> str:
    """Processor time of a new process."""
    rows = load("first_use")["rows"]
    ways = ("tokenizer", "decodekit, from a tokenizer"), ("token bytes", "decodekit, from the bytes of its tokens")
    made = [[told, *(_spread(_row(rows, way=way, caches=caches)) for caches in ("cold", "warm"))] for way, told in ways]
    made.append(["llguidance, which keeps none", _spread(_row(rows, way="llguidance")), ""])
    return table(("", "caches empty", "caches filled"), made) + source("first_use")


def _spread(row: Record) -> str:
    cpu, least, most = (f"{row[name]:.{1 if row[name] > 1 else 2}f}" for name in ("cpu_s", "least_cpu_s", "most_cpu_s"))
    return f"{cpu} ({least} to {most})"


def soak() -> str:
    """What an endpoint's clients wait for, without hostile ones and beside them."""
    rows = load("soak")["rows"]
    made = []
    for of in dict.fromkeys(row["of"] for row in rows):
        pair = [_row(rows, of=of, attacks=attacks) for attacks in (False, True)]
        made.append([of, *(" / ".join(f"{row[name]:,.0f}" for name in ("p50", "p99", "max")) for row in pair)])
    return table(("p50 / p99 / largest, ms", "without", "beside attacks"), made) + source("soak")


def stalls() -> str:
    """The gaps of a stream beside compilation, by policy of the garbage collector."""
    rows = [
        [f"{row['way']}, {row['policy']}", *(f"{row['gap_ms'][name]:,.1f}" for name in ("p50", "p99", "p999", "max"))]
        for row in load("stalls")["rows"]
    ]
    return table(("beside the stream, collector", "p50", "p99", "p99.9", "largest"), rows) + source("stalls")


def peers() -> str:
    """Documents and requests a second beside other packages, by the number of threads."""
    if not (RESULTS / "peers.json").exists():
        return "Not recorded yet: `make bench-peers`.\n"
    rows = load("peers")["rows"]
    shown = ""
    for part, unit, by, told, at in (
        ("extraction", "documents_per_second", "batch", "documents a second", "at a time"),
        ("serving", "requests_per_second", "clients", "requests a second", "clients"),
    ):
        found = [row for row in rows if row["part"] == part]
        sizes = sorted({row[by] for row in found})
        made = []
        for threads, side in dict.fromkeys((row["threads"], row["side"]) for row in found):
            own = {row[by]: row for row in found if (row["threads"], row["side"]) == (threads, side)}
            cells = [side, f"{threads}"]
            for size in sizes:
                row = own.get(size, {})
                cells += [f"{row[unit]:.1f}" if row else "", f"{row['ratio']:.2f}" if "ratio" in row else ""]
            texts, valid = (sum(row[name] for row in own.values()) for name in ("texts", "valid"))
            right = sum(row["fields_right"] * row["texts"] for row in own.values()) / texts
            made.append([*cells, f"{100 * valid / texts:.1f} %", f"{100 * right:.1f} %"])
        columns = [cell for size in sizes for cell in (f"{size} {at}", "ratio")]
        heads = told, "threads", *columns, "valid", "fields right"
        shown += ("\n" if shown else "") + (table(heads, made) if made else "")
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return shown + f"\nWith {named}." + source("peers")


def _beside_peers(what: str, unit: str, **wanted: int) -> list[str]:
    """A row: the most of ours with one thread, the most of the others, with a schema or without, and whose it is."""
    rows = [row for row in load("peers")["rows"] if row["threads"] == 1]
    rows = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    ours, others = ([row for row in rows if row["side"].startswith("decodekit") is own] for own in (True, False))
    best = max(others, key=lambda row: row[unit])
    own = max(row[unit] for row in ours)
    told = what if own > best[unit] else f"{what} (this one is lost)"
    return [told, f"{own:.1f}", f"{best[unit]:.1f}", best["side"]]


def front() -> str:
    """Twelve figures: six of ours, and the best of the others'."""
    engines = load("masks")["rows"]
    best = {name: min(row["times_us"][name] for row in engines[1:]) for name in ("TBM p50", "TBM avg")}
    ours = engines[0]["times_us"]
    others = "XGrammar" if all(best[name] == engines[2]["times_us"][name] for name in best) else "the better of two"
    right = [f"{engines[0]['passing']}", f"{max(row['passing'] for row in engines[1:])}"]
    made = [
        _beside_peers("JSON from documents, one at a time, a second", "documents_per_second", batch=1),
        _beside_peers("the same in batches of eight", "documents_per_second", batch=8),
        _beside_peers("requests to an endpoint from 32 clients, a second", "requests_per_second", clients=32),
        [f"schemas enforced without a mistake, of {engines[0]['schemas']}", *right, "XGrammar"],
        ["a mask, median, µs", *(f"{times['TBM p50']:.1f}" for times in (ours, best)), others],
        ["a mask, mean, µs (this one is lost)", *(f"{times['TBM avg']:.0f}" for times in (ours, best)), others],
    ]
    return table(("measured", "decodekit", "the best other", "which"), made)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "front": front,
    "loop": loop,
    "loop-1b": functools.partial(loop, "loop-1b"),
    "pairs": pairs,
    "speculation": speculation,
    "sampler": sampler,
    "masks": masks,
    "masks-suite": masks_suite,
    "first-use": first_use,
    "soak": soak,
    "stalls": stalls,
    "peers": peers,
}


def rendered(page: str) -> str:
    """A page with all its tables as the records have them.

    Raises:
        KeyError: there is no such table.
    """
    return _BLOCK.sub(lambda block: f"{block[1]}{TABLES[block['name']]()}{block[3]}", page)


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
