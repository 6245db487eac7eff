"""Completions as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from decodekit.errors import OptionError
from decodekit.generation.completion import Completion

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


def to_pandas(completions: Completion | Iterable[Completion]) -> pandas.DataFrame:
    """A row for each text: those of several prompts one after the other, the further texts of a prompt below its first.

    Columns: ``prompt`` and ``sample`` (numbers from 0), ``text``, ``value`` (in plain types), ``finish_reason``,
    ``error`` (its code) and ``message``, ``score``, and the figures of `Stats` that are single numbers.

    Args:
        completions: one, or those of a list of prompts.

    Raises:
        OptionError: pandas is not installed, or something is no completion.
    """
    try:
        import pandas
    except ImportError as error:
        cause = "to_pandas needs pandas, which is not installed"
        raise OptionError(cause, at="to_pandas", hint="pip install 'decodekit[tables]'") from error
    rows: list[dict[str, Any]] = []
    given: Iterable[Any] = [completions] if isinstance(completions, Completion) else completions
    for prompt, completion in enumerate(given):
        if not isinstance(completion, Completion):
            cause = f"{completion!r:.60} is no completion"
            raise OptionError(cause, at=f"completion {prompt}", hint="what LLM.generate gives for a list of prompts")
        rows += [_row(prompt, sample, one) for sample, one in enumerate((completion, *completion.others))]
    return pandas.DataFrame(rows)


def _row(prompt: int, sample: int, completion: Completion) -> dict[str, Any]:
    record = completion.to_dict()
    error = record["error"] or {}
    stats = {name: one for name, one in record["stats"].items() if not isinstance(one, list | dict)}
    kept = {name: record[name] for name in ("text", "value", "finish_reason")}
    told = {"error": error.get("code"), "message": error.get("message"), "score": completion.score}
    return {"prompt": prompt, "sample": sample, **kept, **told, **stats}
