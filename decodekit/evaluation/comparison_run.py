"""Comparing decoding strategies: the same prompts, the same seeds, in turn; quality beside speed.

comparison = dk.compare(llm, ["greedy", "sample:temperature=0.7", "greedy+suffix"], ["extraction"])
print(comparison.table())
comparison.to_html("bench.html")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from decodekit.chat.conversation import has_chat_template
from decodekit.constraints import compile
from decodekit.constraints.constraint import Constraint
from decodekit.decoding.request.prompt import Prompt, is_messages
from decodekit.errors import (
    DecodekitError,
    OptionError,
    UnknownNameError,
    UselessOptionError,
    collecting,
    out_of_domain,
    raise_faults,
)
from decodekit.evaluation.comparison import Comparison
from decodekit.evaluation.comparison_folder import BenchFolder, settings_of
from decodekit.evaluation.intervals import MIN_SAMPLES
from decodekit.evaluation.machine import provenance
from decodekit.evaluation.measures.accuracy import is_valid
from decodekit.evaluation.measures.judges import JudgeModel
from decodekit.evaluation.measures.measures import (
    JudgedText,
    Metric,
    OwnMetric,
    measure_run,
    metrics_of,
    missing_packages,
    own_metrics,
)
from decodekit.evaluation.measures.speed import speed_of
from decodekit.evaluation.result_rows import Outcome, Row, pooled, record_of
from decodekit.evaluation.stopwatch import Measurement, Meter, decode, metered
from decodekit.evaluation.task import Task, named_tasks
from decodekit.llm import LLM, StrategyLike
from decodekit.models.loading import BUNDLED
from decodekit.plugins import did_you_mean
from decodekit.records.fingerprints import differences
from decodekit.sampling.checks import COUNT, is_count
from decodekit.strategy import Strategy, check_seed, resolve_strategy

Strategies: TypeAlias = Mapping[str, StrategyLike] | Sequence[StrategyLike]
"""Strategies to compare: by names of one's own, or in a list. A text may have options; see `decodekit.spelling`."""
Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with how many decodings are done, how many there are, and what comes next."""


def compare(
    llm: LLM,
    strategies: Strategies | StrategyLike,
    tasks: Sequence[str | Path | Task] | str | Path | Task,
    *,
    seeds: Iterable[int] = (0, 1, 2),
    repeats: int = 1,
    batch_size: int = 1,
    judge: LLM | None = None,
    baseline: str | None = None,
    max_new_tokens: int | None = None,
    progress: Progress | None = None,
    folder: str | Path | None = None,
    fresh: bool = False,
    metrics: Mapping[str, OwnMetric] | Sequence[OwnMetric] = (),
) -> Comparison:
    """Run strategies on tasks and compare what they write with what it costs.

    All strategies decode an example (with `batch_size` above 1: as many of one constraint) before any goes on to the
    next, and take turns in going first, so that pairs meet the same machine. Before anything is timed, the first
    strategy decodes all examples and the others one, so that models, masks and kernels are warm. A strategy that fails
    on an example has a row with the error.

    Args:
        llm: the model.
        strategies: by names of one's own, or in a list: values, names, or texts such as
            ``"sample:temperature=0.7+suffix"`` (see `spelling`). The same strategy with `speculate` is another entry.
        tasks: names of shipped tasks (``extraction``, ``extraction-free``, ``copying``, ``summarising``,
            ``open-ended``), JSONL files, or `Task` values.
        seeds: at each, every example is decoded; example i has the noise of ``seed_of(seed, i)``. At least 3 for
            intervals.
        repeats: how often each is decoded at each seed: the same text again, another time.
        batch_size: examples that are decoded together. Times to first token and per token are those of a row.
        judge: the model for perplexity; None is `llm` itself.
        baseline: the strategy that differences and ratios are to; None is the first.
        max_new_tokens: for all tasks, in place of their own.
        progress: called before each decoding.
        folder: where rows are written down as they are measured, to ``bench.jsonl``. A comparison that was interrupted
            goes on where it stopped when it is run again; times are those of the run that measured the row.
        metrics: measures of your own beside those of the tasks: functions of the text and the reference of an example,
            of which more is better, in a list or by other names in a mapping.
        fresh: delete what an earlier comparison left in the folder.

    Raises:
        OptionError, UnknownNameError: strategies, tasks or options that cannot be used; all of them together.
        ConstraintError: the constraint of a task cannot be used.
        JobSettingsError: the folder has rows that were measured with other settings; with all that differ.
        JobError, OutputError: the folder cannot be used.
    """
    _refuse_other_types(llm, judge, seeds, progress, folder)
    plan = _planned(
        llm, judge or llm, strategies, tasks, list(seeds), repeats, batch_size, baseline, max_new_tokens, metrics
    )
    if fresh and folder is None:
        raise UselessOptionError("fresh=True has no effect without a folder", at="fresh")
    origin = provenance()
    watched, meter = metered(llm)
    bench = _Bench(
        watched, meter, plan, JudgeModel(judge or llm), progress or (lambda num_done, num_calls, label: None), origin
    )
    rows = bench.run() if folder is None else _kept_rows(bench, llm, judge or llm, Path(folder), fresh=fresh)
    found = {(row.task, name) for row in rows for name in row.quality}  # the measures that gave a figure
    shown = {
        task.name: tuple(one.name for one in plan.measures[task.name] if (task.name, one.name) in found)
        for task in plan.tasks
    }
    notes = tuple(_notes(rows, plan, shown, origin))
    return Comparison(tuple(rows), plan.strategies, plan.tasks, shown, plan.baseline, plan.settings, origin, notes)


def seed_of(seed: int, number: int) -> int:
    """The key of the noise of example `number`, counted from 0, at a seed below 2**32: other noise for each."""
    return seed + (number << 32)


_Unit: TypeAlias = tuple[tuple[int, ...], Any]
"""Examples that are decoded in one call: their numbers in the task, and their constraint."""
_Cell: TypeAlias = tuple[str, str, int]
"""Task, strategy and seed: what a row is of."""


@dataclass(frozen=True)
class _BenchPlan:
    """The plan of a comparison: the options of `compare` after they were read and checked."""

    strategies: Mapping[str, Strategy]
    tasks: tuple[Task, ...]  # with the token limit of the comparison
    measures: Mapping[str, Sequence[Metric]]  # by the names of the tasks
    seeds: Sequence[int]
    repeats: int
    batch_size: int
    baseline: str
    settings: Mapping[str, Any]  # as `Comparison` has them


def _refuse_other_types(llm: object, judge: object, seeds: object, progress: object, folder: object) -> None:
    """Raise an `OptionError` for options that are not what their types say, all of them together."""
    faults: list[DecodekitError] = []
    for name, given in (("llm", llm), ("judge", judge)):
        if (given is not None or name == "llm") and not (hasattr(given, "model") and hasattr(given, "vocabulary")):
            faults.append(OptionError(f"{name}={given!r:.60} is no LLM", at=name, hint=f"LLM.load({given!r:.60})"))
    if not isinstance(seeds, Iterable):
        hint = f"seeds=({seeds},) for this one, seeds=range({seeds}) for so many"
        faults.append(OptionError(f"seeds={seeds!r:.60} are not several", at="seeds", hint=hint))
    if progress is not None and not callable(progress):
        faults.append(OptionError(f"progress={progress!r:.60} cannot be called", at="progress"))
    if folder is not None and not (isinstance(folder, str | Path) and str(folder)):
        faults.append(OptionError(f"folder={folder!r:.60} is no path", at="folder", hint='folder="out/bench"'))
    raise_faults(faults)


def _planned(
    llm: LLM,
    judge: LLM,
    strategies: Strategies | StrategyLike,
    tasks: Sequence[str | Path | Task] | str | Path | Task,
    seeds: list[int],
    repeats: int,
    batch_size: int,
    baseline: str | None,
    max_new_tokens: int | None,
    metrics: Mapping[str, OwnMetric] | Sequence[OwnMetric],
) -> _BenchPlan:
    """The options of `compare`, read; raises what is wrong with them, all of it together."""
    faults: list[DecodekitError] = []
    chosen: dict[str, Strategy] = {}
    found: list[Task] = []
    own: list[Metric] = []
    measures: dict[str, Sequence[Metric]] = {}
    with collecting(faults):
        chosen = named_strategies(strategies)
    with collecting(faults):
        found = named_tasks(tasks)
    with collecting(faults):
        own = own_metrics(metrics)
    for task in found:
        with collecting(faults):
            measures[task.name] = [*metrics_of(task), *own]
    _check_numbers(seeds, repeats, batch_size, max_new_tokens, faults)
    if baseline is not None and chosen and baseline not in chosen:
        cause = f"no strategy {baseline!r} in this comparison.{did_you_mean(baseline, chosen)}"
        faults.append(UnknownNameError(cause, at="baseline"))
    for task in found:
        constraints: set[Any] = {task.constraint_of(example) for example in task.examples} - {None}
        for constraint in constraints:
            with collecting(faults):
                _check_constraint(llm, task, constraint)
        is_readable = all(isinstance(one.prompt, str) or is_messages(one.prompt) for one in task.examples)
        if judge.vocabulary != llm.vocabulary and not is_readable:
            cause = f"the prompts of {task.name!r} are token ids, and the judge has another vocabulary"
            faults.append(OptionError(cause, at="judge", hint="prompts as texts"))
    raise_faults(faults)
    if max_new_tokens is not None:
        found = [replace(task, max_new_tokens=max_new_tokens) for task in found]
    settings = {
        "model": name_of(llm),
        "dtype": str(llm.model.dtype).removeprefix("torch."),
        "device": str(llm.model.device),
        "judge": name_of(judge),
        "seeds": seeds,
        "repeats": repeats,
        "batch_size": batch_size,
        "max_new_tokens": {task.name: task.max_new_tokens for task in found},
    }
    if own:
        settings["metrics"] = [metric.name for metric in own]
    first = baseline or next(iter(chosen))
    return _BenchPlan(chosen, tuple(found), measures, seeds, repeats, batch_size, first, settings)


def _kept_rows(bench: _Bench, llm: LLM, judge: LLM, folder: Path, *, fresh: bool) -> list[Row]:
    """The rows of a comparison that writes them down; those that are in the folder are not measured again."""
    plan = bench.plan
    decided = {**plan.settings, "baseline": plan.baseline}
    settings = settings_of(llm, judge, plan.strategies, plan.tasks, bench.prompts, decided)
    with BenchFolder(folder, settings, fresh=fresh) as kept:

        def keep(row: Row) -> None:
            kept.append(record_of(row, plan.strategies[row.strategy], plan.baseline, plan.settings))

        return bench.run(kept.rows, keep)


@dataclass
class _Bench:
    """Runs the strategies of a comparison, task by task; `meter` watches the caches of `llm`."""

    llm: LLM
    meter: Meter
    plan: _BenchPlan
    judge: JudgeModel
    progress: Progress
    provenance: Mapping[str, Any]
    num_done: int = field(default=0, init=False)
    num_calls: int = field(default=0, init=False)

    def run(
        self, measured: Mapping[_Cell, Row] = MappingProxyType({}), keep: Callable[[Row], None] | None = None
    ) -> list[Row]:
        """The rows by task, strategy and seed; `keep` gets each that is not `measured`, once it is whole."""
        tasks, names, seeds = self.plan.tasks, self.plan.strategies, self.plan.seeds
        units = {task.name: list(_units(task, self.plan.batch_size)) for task in tasks}
        left = {
            (task.name, seed): [name for name in names if (task.name, name, seed) not in measured]
            for task in tasks
            for seed in seeds
        }
        self.num_calls = self.plan.repeats * sum(len(missing) * len(units[task]) for (task, _), missing in left.items())
        rows = dict(measured)
        for task in tasks:
            if any(left[task.name, seed] for seed in seeds):
                for place, name in enumerate(names):
                    for unit in units[task.name] if place == 0 else units[task.name][:1]:
                        self._decode(task, unit, name, seeds[0])
            for number, seed in enumerate(seeds):
                found = self._measure(task, units[task.name], left[task.name, seed], number)
                for name in left[task.name, seed]:
                    row = rows[task.name, name, seed] = self._row(task, name, seed, found[name])
                    if keep is not None:
                        keep(row)
        return [rows[task.name, name, seed] for task in tasks for name in names for seed in seeds]

    @cached_property
    def prompts(self) -> dict[str, list[Prompt]]:
        """The prompts of the examples of each task."""
        is_bundled, has_template = name_of(self.llm) in BUNDLED, has_chat_template(self.llm.tokenizer)
        return {
            task.name: [
                task.prompt_of(one, is_bundled=is_bundled, has_chat_template=has_template) for one in task.examples
            ]
            for task in self.plan.tasks
        }

    def _measure(
        self, task: Task, units: Sequence[_Unit], names: Sequence[str], number: int
    ) -> dict[str, list[list[Measurement]]]:
        """By strategy, the repeats of each example at the seed of this number, for the strategies of these names."""
        seed, num_repeats = self.plan.seeds[number], self.plan.repeats
        measured: dict[str, list[list[Measurement]]] = {name: [[] for _ in task.examples] for name in names}
        turn = number * num_repeats * len(units)
        for _ in range(num_repeats if names else 0):
            for unit in units:
                first = turn % len(names)
                turn += 1
                for name in [*names[first:], *names[:first]]:
                    self.progress(self.num_done, self.num_calls, f"{task.name}, seed {seed}, {name}")
                    for place, one in zip(unit[0], self._decode(task, unit, name, seed), strict=True):
                        measured[name][place].append(one)
                    self.num_done += 1
        return measured

    def _decode(self, task: Task, unit: _Unit, name: str, seed: int) -> list[Measurement]:
        numbers, constraint = unit
        is_measured = "log-z" in (task.metrics or ())  # what masks leave is recorded where all are made
        return decode(
            self.llm,
            self.meter,
            [self.prompts[task.name][number] for number in numbers],
            strategy=self.plan.strategies[name],
            constraint=constraint if task.is_constrained else None,
            max_new_tokens=task.max_new_tokens,
            logprobs=is_measured,
            masks="always" if is_measured and task.is_constrained else "asked",
            seed=[seed_of(seed, number) for number in numbers],
            batch_size=self.plan.batch_size,
        )

    def _row(self, task: Task, name: str, seed: int, measured: Sequence[Sequence[Measurement]]) -> Row:
        metrics = self.plan.measures[task.name]
        answers = [
            JudgedText(example, prompt, task.constraint_of(example), repeats[0].text, repeats[0].stats)
            for example, prompt, repeats in zip(task.examples, self.prompts[task.name], measured, strict=True)
        ]
        values = {one.name: [one.of_example and one.of_example(answer) for answer in answers] for one in metrics}
        outcomes = tuple(
            Outcome(
                example.id,
                seed_of(seed, number),
                {name: value for name, each in values.items() if (value := each[number]) is not None},
                tuple(measured[number]),
            )
            for number, example in enumerate(task.examples)
        )
        quality = {metric.name: measure_run(metric, answers, values[metric.name], self.judge) for metric in metrics}
        return Row(
            name,
            task.name,
            seed,
            outcomes,
            {metric: value for metric, value in quality.items() if value is not None},
            tuple(speed_of([repeats[number] for repeats in measured]) for number in range(self.plan.repeats)),
            self.provenance,
        )


def _units(task: Task, batch_size: int) -> Iterator[_Unit]:
    """Examples under one constraint, at most `batch_size` at a time."""
    by_constraint: dict[Any, list[int]] = {}
    for number, example in enumerate(task.examples):
        by_constraint.setdefault(task.constraint_of(example), []).append(number)
    for constraint, numbers in by_constraint.items():
        for first in range(0, len(numbers), batch_size):
            yield tuple(numbers[first : first + batch_size]), constraint


def _check_numbers(
    seeds: list[int], repeats: int, batch_size: int, max_new_tokens: int | None, faults: list[DecodekitError]
) -> None:
    given = {"repeats": repeats, "batch_size": batch_size, "max_new_tokens": max_new_tokens}
    for name, count in given.items():
        if not is_count(count) and (name, count) != ("max_new_tokens", None):
            faults.append(out_of_domain(name, COUNT.text, count))
    if not seeds:
        faults.append(OptionError("there is no seed", at="seeds", hint="seeds=(0, 1, 2)"))
    if any(seed in seeds[:number] for number, seed in enumerate(seeds)):
        faults.append(OptionError(f"a seed is there twice: {seeds}", at="seeds", hint="repeats=2 to time it again"))
    for seed in seeds:
        check_seed(seed, faults)
        if isinstance(seed, int) and seed >= 1 << 32:
            faults.append(OptionError(f"seed={seed} is not below 2**32", at="seeds"))


def _check_constraint(llm: LLM, task: Task, constraint: Constraint) -> None:
    """Refuse what cannot be used before anything is decoded; compiled grammars are kept."""
    try:
        if task.is_constrained:
            compile(constraint, llm.vocabulary)
        is_valid("null", constraint)
    except DecodekitError as error:
        error.at = f"task {task.name!r}" + (f", {error.at}" if error.at else "")
        raise


def name_of(llm: LLM) -> str:
    """Of a bundled model its name, not the folder of this machine."""
    name = llm.model.name
    folder = Path(name)
    is_bundled = folder.name in BUNDLED and folder.parent.name == "models" and folder.is_dir()
    return folder.name if is_bundled else name


def _notes(
    rows: Sequence[Row], plan: _BenchPlan, shown: Mapping[str, tuple[str, ...]], origin: Mapping[str, Any]
) -> Iterator[str]:
    """Notes on the figures for a reader."""
    seeds, repeats = plan.seeds, plan.repeats
    if len(seeds) < MIN_SAMPLES:
        yield f"no intervals over seeds: {len(seeds)} of at least {MIN_SAMPLES} seeds"
    if len(seeds) * repeats < MIN_SAMPLES:
        yield f"no intervals of times: {len(seeds) * repeats} of at least {MIN_SAMPLES} runs"
    for task in plan.tasks:
        missing = missing_packages(plan.measures[task.name])
        yield from (f"{task.name}: {note}" for note in missing)
        known = {*shown[task.name], *(["mauve"] if missing else [])}
        absent = [name for name in task.metrics or () if name not in known]
        if absent:
            yield f"{task.name}: {', '.join(absent)} left out: no example has what it needs"
        if all(example.reference is None for example in task.examples):
            yield f"{task.name} has no references, so nothing is said about what is right"
    settled = [name for name in plan.strategies if _is_settled([row for row in rows if row.strategy == name])]
    if settled and len(seeds) > 1:
        yield f"the same texts at every seed, so that intervals over seeds are 0: {', '.join(settled)}"
    unstable = {row.strategy for row in rows if not all(outcome.is_repeatable for outcome in row.outcomes)}
    if unstable:
        yield f"texts differ from repeat to repeat at the same seed: {', '.join(sorted(unstable))}"
    failed = sum(outcome.error is not None for outcome in pooled(rows))
    if failed:
        yield f"{failed} of {len(pooled(rows))} texts have an error; quality counts what is missing as wrong"
    now = json.loads(json.dumps(origin))  # as it is read
    others = [row.provenance for row in rows if row.provenance not in (origin, now)]
    changes = ["; ".join(differences(one, now)) for one in others]
    for change in dict.fromkeys(changes):  # of an earlier run that was another one in more than its time
        yield f"{changes.count(change)} of {len(rows)} rows were measured by an earlier run: {change}"


def _is_settled(rows: Sequence[Row]) -> bool:
    """Whether every example of these rows has one text, whatever the seed."""
    texts: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for row in rows:
        for outcome in row.outcomes:
            texts.setdefault((row.task, outcome.example), set()).add(outcome.repeats[0].token_ids)
    return any(next(iter(each)) for each in texts.values()) and all(len(each) == 1 for each in texts.values())


def named_strategies(strategies: Strategies | StrategyLike) -> dict[str, Strategy]:
    """Strategies by the names that tables show; what is wrong with them is raised together.

    Those of a list have the text that spells them as their name; a value has its `repr`.
    """
    if isinstance(strategies, Mapping):
        listed: list[tuple[str, Any]] = list(strategies.items())
    else:
        several = strategies if isinstance(strategies, list | tuple) else [strategies]
        listed = [(one if isinstance(one, str) else repr(one), one) for one in several]
    faults: list[DecodekitError] = []
    found: dict[str, Strategy] = {}
    for name, given in listed:
        with collecting(faults):
            strategy = resolve_strategy(given, {})
            if name in found:
                cause = f"strategy {name!r} is there twice"
                faults.append(OptionError(cause, at="strategies", hint="a mapping of names"))
            if getattr(strategy, "seed", None) is not None:
                cause = f"strategy {name!r} has a seed of its own: {strategy!r}"
                faults.append(OptionError(cause, at="strategies", hint="seeds=(...)"))
            found[name] = strategy
    if not listed:
        faults.append(OptionError("there is no strategy", at="strategies", hint='strategies=["greedy"]'))
    raise_faults(faults, "strategies")
    return found
