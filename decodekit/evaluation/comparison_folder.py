"""The folder of a comparison: its rows, written down as they are measured, so that an interrupted one can go on.

- `bench.jsonl`: a line for each strategy, task and seed, in the order in which they were measured; see `Ledger`.
- `bench.json`: what decides the rows (`settings_of`), with a fingerprint. Rows of other settings are never mixed.

A row is written when it is whole, and synced; what was being measured when the process died is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from decodekit import __version__
from decodekit.constraints.fingerprint import described, without_address
from decodekit.decoding.request.prompt import Prompt
from decodekit.errors import JobError, JobSettingsError
from decodekit.evaluation.result_rows import row_of
from decodekit.evaluation.task import Task
from decodekit.llm import LLM
from decodekit.records.fingerprints import differences, digest, tokenizer_fingerprint, weights_fingerprint
from decodekit.records.ledger import Ledger, new_file, read_rows, replace_file
from decodekit.records.run_folder import lock_folder, remove_files
from decodekit.strategy.strategy_programs import programs_of

SETTINGS, ROWS, REPORT = "bench.json", "bench.jsonl", "bench.html"
FORMAT = 1


class BenchFolder:
    """The folder of a comparison, which this process has locked and writes to. Use it as a context manager.

    What an earlier comparison left is deleted if it is to be `fresh`; otherwise its settings have to be the same
    (`settings_of`), and `rows` are those that are measured, by task, strategy and seed. Errors are those of `compare`.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self._lock = lock_folder(path)
        try:
            remove_files(path, [new_file(path / name).name for name in (SETTINGS, ROWS)])  # left over by a kill
            if fresh:
                remove_files(path, [ROWS, REPORT, SETTINGS])
            _take_settings(path, settings)
            self._ledger = Ledger(path / ROWS, sync_interval_s=0.0)
            try:
                rows = [row_of(record) for record in self._ledger.rows()]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._ledger.close()
                cause = f"{path / ROWS} was not written by decodekit: {error!r}."
                raise JobError(cause, at=str(path / ROWS)) from error
            self.rows = {(row.task, row.strategy, row.seed): row for row in rows}
        except BaseException:
            self._lock.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Write down a row that is whole, as its record; it is safe as soon as this returns."""
        self._ledger.append(record)
        self._ledger.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the file and let go of the lock."""
        try:
            self._ledger.close()
        finally:
            self._lock.close()


def count_rows(path: Path) -> int:
    """The number of a comparison's rows in a folder, also while it is written."""
    return sum(1 for _ in read_rows(path / ROWS))


def settings_of(
    llm: LLM,
    judge: LLM,
    strategies: Mapping[str, Any],
    tasks: Sequence[Task],
    prompts: Mapping[str, Sequence[Prompt]],
    shown: Mapping[str, Any],
) -> dict[str, Any]:
    """All that decides the rows of a comparison, as JSON: equal settings give equal rows, but for the times.

    `prompts` are what the model reads for the examples of each task, `shown` is `Comparison.settings`.
    """
    return {
        **shown,
        "weights": weights_fingerprint(llm.model),
        "tokenizer": tokenizer_fingerprint(llm),
        "judge_weights": weights_fingerprint(judge.model),
        "strategies": {
            name: without_address(strategy) + (f" with {programs}" if (programs := programs_of(strategy)) else "")
            for name, strategy in strategies.items()
        },
        "tasks": {task.name: digest(_asked(task, prompts[task.name]), length=16) for task in tasks},
        "version": __version__,
    }


def _asked(task: Task, prompts: Sequence[Prompt]) -> list[Any]:
    """The settings of a comparison, as a JSON value."""
    constraints = [task.constraint_of(example) for example in task.examples]
    examples = [
        [example.id, prompt, example.reference, None if constraint is None else described(constraint)]
        for example, prompt, constraint in zip(task.examples, prompts, constraints, strict=True)
    ]
    return [examples, task.is_constrained, task.metrics]


def _take_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a new folder, or compare those of one that there is."""
    now = json.loads(json.dumps(settings))  # as they are read
    file = path / SETTINGS
    try:
        data = json.loads(file.read_bytes())
        before = data["settings"]
        if data["format"] != FORMAT:
            raise JobError(f"{file} has format {data['format']}, this version reads {FORMAT}.", at=str(file))
    except FileNotFoundError:
        if (path / ROWS).exists():
            cause = f"{path} holds {ROWS} but no {SETTINGS}: what its rows were measured with is not known."
            hint = "another folder, or --fresh (fresh=True) to delete them."
            raise JobError(cause, at=str(path), hint=hint) from None
        data = {"format": FORMAT, "fingerprint": digest(now, length=8), "settings": now}
        replace_file(file, [(json.dumps(data, indent=2, ensure_ascii=True) + "\n").encode("ascii")])
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{file} cannot be read: {error!r}.", at=str(file)) from error
    # What a model is called is for people; what it is, is in its weights. So a model that was moved is the same.
    ours, theirs = ({k: v for k, v in one.items() if k not in ("model", "judge")} for one in (before, now))
    changes = differences(ours, theirs)
    if changes:
        raise JobSettingsError(
            f"{path} holds a comparison with other settings "
            f"({digest(before, length=8)}, now {digest(now, length=8)}): {'; '.join(changes)}.",
            at=str(file),
            hint="another folder (-o), or --fresh (fresh=True) to delete its rows and start again.",
        )
