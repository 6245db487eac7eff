"""Tasks of lm-evaluation-harness (the package lm-eval, extra `eval`), decoded by our strategies.

    found = evaluate_tasks(llm, ["capitals"], include_path="tasks", strategy="sample:temperature=0.7", seed=1)
    print(found.table())                        # the table that lm-eval prints
    found.results["results"]["capitals"]        # {"exact_match,none": 0.5, "exact_match_stderr,none": 0.19, ...}
    found.write("out/eval")                     # results.json, samples.jsonl

Tasks, prompts, few-shot examples, filters and metrics are lm-eval's own; what is ours is what answers them.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

from decodekit.errors import OptionError, UnknownNameError, out_of_domain
from decodekit.evaluation.machine import git
from decodekit.llm import LLM, StrategyLike
from decodekit.plugins import did_you_mean
from decodekit.records.ledger import encode_line, write_file
from decodekit.sampling.checks import COUNT, is_count

RESULTS, SAMPLES = "results.json", "samples.jsonl"


@dataclass(frozen=True)
class HarnessResults:
    """The results of lm-eval.

    Args:
        results: its results, as `lm_eval.simple_evaluate` gives them, without the samples.
        samples: by task, each document with its prompts, answers and metrics.
        errors: of texts that could not be decoded; they counted as what was decoded of them.
        num_shortened: prompts that were longer than the model's context, and lost their first tokens.
    """

    results: Mapping[str, Any]
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    errors: tuple[str, ...]
    num_shortened: int

    def table(self) -> str:
        """The tables that lm-eval prints: tasks, then groups."""
        from lm_eval.utils import make_table

        tables = [make_table(self.results)]
        if "groups" in self.results:
            tables.append(make_table(self.results, "groups"))
        return "\n".join(tables).strip("\n") + "\n"

    def record(self) -> dict[str, Any]:
        """The results as a JSON value."""
        return _as_json({**self.results, "errors": self.errors, "num_shortened": self.num_shortened})

    def write(self, folder: str | Path) -> None:
        """Write ``results.json``, and ``samples.jsonl`` with a line for each document.

        Raises:
            OutputError: a file cannot be written.
        """
        lines = [_as_json({"task": task, **one}) for task, samples in self.samples.items() for one in samples]
        text = json.dumps(self.record(), indent=2, ensure_ascii=False) + "\n"
        write_file(Path(folder) / RESULTS, text.encode())
        write_file(Path(folder) / SAMPLES, b"".join(map(encode_line, lines)))


def _as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    from lm_eval.utils import handle_non_serializable

    found: dict[str, Any] = json.loads(json.dumps(facts, default=handle_non_serializable))
    return found


def evaluate_tasks(
    llm: LLM,
    tasks: str | Iterable[str],
    *,
    include_path: str | Path | None = None,
    strategy: StrategyLike | None = None,
    constraint: Any = None,
    seed: int = 0,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    is_chat: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> HarnessResults:
    """Run tasks of lm-eval with a model and a strategy.

    Log-likelihoods are the model's own, whatever the strategy. Texts follow the strategy; without one, what the task
    says (`do_sample`, `temperature`, `top_p`, …), by default greedy decoding. Stop strings are the task's.

    Args:
        llm: the model.
        tasks: names of tasks or groups, patterns such as ``mmlu_*``, or YAML files.
        include_path: a folder with tasks of one's own. Where it has all that are named, lm-eval's are not read.
        strategy: as `LLM.generate` takes it.
        constraint: of all generated texts.
        seed: request i has the noise of ``seed_of(seed, i)``, so repeats of a document differ.
        batch_size: texts decoded together.
        max_new_tokens: in place of the tasks' own.
        num_fewshot: examples in the prompt, in place of the tasks' own.
        limit: only the first documents of each task.
        is_chat: put prompts into the model's chat template.
        options: further options of `LLM.generate`, such as ``{"speculate": "suffix"}``.
        progress: show a bar on stderr that counts the texts; the bars of lm-eval are not shown.

    Raises:
        OptionError: lm-eval is not installed, or an option cannot be used.
        UnknownNameError: there is no such task.
    """
    require_harness()
    names = [tasks] if isinstance(tasks, str) else [*tasks]
    _refuse(names, include_path, {"batch_size": batch_size, "limit": limit, "max_new_tokens": max_new_tokens})
    from lm_eval import simple_evaluate

    from decodekit.evaluation.harness_model import HarnessModel

    manager = _manager(names, include_path)
    decoding = {"constraint": constraint, "batch_size": batch_size, **(options or {})}
    model = HarnessModel(llm, strategy, seed, max_new_tokens, {k: v for k, v in decoding.items() if v is not None})
    model.progress = progress
    with _quiet():
        found = simple_evaluate(
            model,
            tasks=names,
            task_manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            apply_chat_template=is_chat,
            bootstrap_iters=1000,
        )
    results = {name: value for name, value in found.items() if name != "samples"}
    return HarnessResults(results, found.get("samples", {}), tuple(model.errors), model.num_shortened)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what lm-eval lets be printed: its bars, and what git says of a folder that is not a repository."""
    from lm_eval import evaluator
    from tqdm import tqdm  # type: ignore[import-untyped]

    make, name = tqdm.__init__, "get_git_commit_hash"
    commit = getattr(evaluator, name, None)
    tqdm.__init__ = partialmethod(make, disable=True)  # who says otherwise has a bar
    setattr(evaluator, name, lambda: git(Path.cwd(), "describe", "--always"))
    try:
        yield
    finally:
        tqdm.__init__ = make
        setattr(evaluator, name, commit)


def require_harness() -> None:
    """Raise the OptionError that names the extra unless lm-eval is installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise OptionError("the package lm-eval is not installed", at="eval", hint="pip install 'decodekit[eval]'")


def _refuse(names: Sequence[str], include_path: str | Path | None, counts: Mapping[str, int | None]) -> None:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise OptionError(f"tasks={names!r:.60} are no names of tasks", at="tasks", hint='tasks=["arc_easy"]')
    if include_path is not None and not Path(include_path).is_dir():
        raise OptionError(f"{str(include_path)!r} is no folder", at="include_path", hint="a folder with YAML files")
    for name, count in counts.items():
        if count is not None and not is_count(count):
            raise out_of_domain(name, COUNT.text, count)


def _manager(names: Sequence[str], include_path: str | Path | None) -> Any:
    """The index of tasks: those of the folder, with lm-eval's own (thousands of files) where they are needed."""
    from lm_eval.tasks import TaskManager

    folder = None if include_path is None else str(include_path)
    for include_defaults in (True,) if folder is None else (False, True):
        manager = TaskManager(include_path=folder, include_defaults=include_defaults)
        missing = [name for name in names if not manager.match_tasks([name]) and not Path(name).is_file()]
        if not missing:
            return manager
    near = did_you_mean(missing[0], manager.all_tasks)
    raise UnknownNameError(f"no task {missing[0]!r}.{near}", at="tasks", hint="include_path, the folder of your tasks")
