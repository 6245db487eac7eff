"""`bench`: decoding strategies side by side, quality and speed."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, INTERRUPTED, SOME_FAILED, note, print_json
from decodekit.errors import OptionError
from decodekit.terminal import one_line

if TYPE_CHECKING:
    from decodekit.evaluation.task import Task
    from decodekit.llm import LLM

_LINE_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class ExampleOptions:
    """The options that choose the examples."""

    tasks: Annotated[
        list[str],
        typer.Option(
            metavar="LIST",
            help="Shipped tasks (extraction, extraction-free, copying, summarising, open-ended) or JSONL files with "
            "prompt and reference, between commas.",
        ),
    ] = field(default_factory=lambda: ["extraction"])
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first examples of each task.")] = None
    schema: Annotated[str | None, typer.Option(help=f"For a JSONL file that names none. {o.SCHEMA_HELP}")] = None

    def load(self, layout: o.SchemaOptions) -> list[Task]:
        """The tasks with their examples."""
        from decodekit.evaluation.task import load_task
        from decodekit.jobs.job_schema import load_schema

        if self.schema is None:
            layout.refuse_without_schema()
        constraint = None if self.schema is None else load_schema(self.schema, layout.given()).constraint
        found = [load_task(name.strip(), constraint) for text in self.tasks for name in text.split(",")]
        return [task if self.limit is None else task.first(self.limit) for task in found]


@command
def bench(
    *,
    strategies: Annotated[
        list[str],
        typer.Option(
            metavar="LIST",
            help="Names between commas, each with options and a proposer: "
            "greedy,sample:temperature=0.7,top_p=0.9,greedy+prompt-lookup,greedy:contrast=dola. "
            "`decodekit strategies` lists them.",
        ),
    ],
    examples: ExampleOptions,
    output: Annotated[Path, o.output_option(help="Where bench.jsonl and bench.html go.")] = Path("out/bench"),
    model: o.ModelOptions,
    judge: Annotated[
        str | None, typer.Option(help="Model for perplexity; left out, the model itself.", rich_help_panel=o.MODEL)
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="LIST", help="Each decodes every example; 3 for intervals.")] = "0,1,2",
    repeats: Annotated[int, typer.Option(min=1, help="How often each text is decoded again, for its time.")] = 1,
    baseline: Annotated[
        str | None, typer.Option(help="What the others are compared with; left out, the first.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples decoded at a time.")] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Budget per text, in place of the tasks' own.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="module.py:FUNCTION", help="Your own measure, of (text, reference); may be repeated."),
    ] = None,
    layout: o.SchemaOptions,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=o.output_path, help="The Pareto front as png, pdf or svg (extra `plots`)."),
    ] = None,
    fresh: o.Fresh = False,
    as_json: o.Json = False,
) -> int:
    """Compare strategies on the same prompts and seeds: what they write, and what it costs.

    Prints a table and writes bench.jsonl (one line per strategy, task and seed, as soon as it is measured) and
    bench.html. Run the same command again to resume; nothing is measured twice. Exit code 7 if a text has an error; its
    row is kept.
    """
    from decodekit.evaluation.comparison_run import named_strategies
    from decodekit.spelling import split_calls

    # Before a model is loaded: faults are reported at once.
    if plot is not None:
        from decodekit.evaluation.reports.plots import require_matplotlib

        require_matplotlib()
    chosen = named_strategies([one for text in strategies for one in split_calls(text)])
    options: Any = {
        "tasks": examples.load(layout),
        "seeds": _seeds(seeds),
        "repeats": repeats,
        "batch_size": batch_size,
        "baseline": baseline,
        "max_new_tokens": max_new_tokens,
        "folder": output,
        "fresh": fresh,
        "metrics": dict(map(_metric, metric or ())),
    }

    from decodekit.cli.jobs.extract import load_model
    from decodekit.records.run_folder import check_free

    check_free(output)
    llm = load_model(model.model, model.dtype, model.device_map)
    options["judge"] = None if judge is None else load_model(judge, model.dtype, model.device_map)
    return _compare(llm, chosen, output, plot, as_json=as_json, **options)


def _compare(
    llm: LLM, chosen: Mapping[str, Any], output: Path, plot: Path | None, *, as_json: bool, **options: Any
) -> int:
    """Measure what is not measured yet, and print the table; the exit code."""
    from decodekit.evaluation.comparison_folder import REPORT, ROWS, count_rows
    from decodekit.evaluation.comparison_run import compare

    num_rows = len(chosen) * len(options["tasks"]) * len(options["seeds"])
    num_before = 0 if options["fresh"] else count_rows(output)
    if num_before:
        note(f"resuming {output}: {num_before} of {num_rows} rows are measured; --fresh measures them again")
    try:
        comparison = compare(llm, chosen, progress=_Watch(), **options)
    except KeyboardInterrupt:
        note(
            f"interrupted: {count_rows(output)} of {num_rows} rows are in {output}; run the same command again to go on"
        )
        return INTERRUPTED
    comparison.to_html(output / REPORT)
    if plot is not None:
        comparison.plot(plot)
    if as_json:
        print_json(comparison.records())
    else:
        print(comparison.table(), end="")
    note(f"{output / REPORT}, {output / ROWS}")
    return SOME_FAILED if any(row.num_failed for row in comparison.rows) else DONE


def _metric(text: str) -> tuple[str, Any]:
    """The name and the function that ``module.py:FUNCTION`` stands for."""
    from decodekit.jobs.job_schema import load_module

    module_name, colon, name = text.rpartition(":")
    if not colon:
        raise OptionError(f"--metric is module.py:FUNCTION, not {text!r}.", at="--metric")
    module = load_module(module_name)
    if not callable(getattr(module, name, None)):
        names = sorted(one for one, value in vars(module).items() if inspect.isfunction(value))
        raise OptionError(f"no function {name!r} in {module_name}. It has: {', '.join(names)}.", at="--metric")
    return name, getattr(module, name)


def _seeds(text: str) -> list[int]:
    """``"0,1,2"`` as numbers."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(piece.isascii() and piece.isdigit() for piece in pieces):
        raise OptionError(f"--seeds is numbers between commas, not {text!r}.", at="--seeds", hint="--seeds 0,1,2")
    return [int(piece) for piece in pieces]


class _Watch:
    """Tells on stderr how far a comparison is: on one line of a terminal, elsewhere every ten seconds."""

    def __init__(self) -> None:
        self._begun: float | None = None  # the first decoding: what comes before it is no measure of those to come
        self._told = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, num_done: int, num_calls: int, label: str) -> None:
        """Called before each decoding; see `evaluation.comparison_run.Progress`."""
        now = time.monotonic()
        self._begun = self._begun or now
        left = f", {(now - self._begun) / num_done * (num_calls - num_done):.0f} s left" if num_done else ""
        line = f"{num_done}/{num_calls}{left}: {one_line(label)}"
        if self._is_terminal:
            end = "\r" if num_done + 1 < num_calls else "\r\n"
            print(f"\r\x1b[K{line[:100]}", end=end, file=sys.stderr, flush=True)
        elif now - self._told >= _LINE_INTERVAL_S:
            self._told = now
            note(line)
