"""Completions, and what else has rows, as a table of pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from decodekit.decoding.request.completion import Completion
from decodekit.errors import OptionError

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


@runtime_checkable
class HasRows(Protocol):
    """An object that knows the rows of its table, such as a comparison or a row of `extract`."""

    def table_rows(self) -> list[dict[str, Any]]:
        """The cells of each row by the names of their columns."""


Tabular: TypeAlias = Completion | HasRows


def to_pandas(table: Tabular | Iterable[Tabular]) -> pandas.DataFrame:
    """Completions, the rows of `extract`, or a comparison as a table.

    Of completions there is a row for each text: those of several prompts one after the other, the further texts of a
    prompt below its first. Columns: ``index`` (of the prompt) and ``sample`` (numbers from 0), ``prompt`` (as text,
    messages or token ids) and ``seed``, which are empty for those of an engine, ``text``, ``value`` (in plain types),
    ``finish_reason``, ``error`` (its code) and ``message``, ``score``, ``logprob`` (of the text: the sum) and
    ``logprobs`` (of its tokens) if they were asked for, and the figures of `Stats` that are single numbers.

    Of `extract`: ``id`` (an integer where it is one in the input, so that tables can be merged), ``value``, ``error``,
    ``message``, ``finish_reason``, ``text``. Of a comparison: see `Comparison.table_rows`.

    Args:
        table: a comparison, a completion, or completions of a list of prompts, or rows.

    Raises:
        OptionError: pandas is not installed, or something is none of these.
    """
    try:
        import pandas
    except ImportError as error:
        cause = "to_pandas needs pandas, which is not installed"
        raise OptionError(cause, at="to_pandas", hint="pip install 'decodekit[tables]'") from error
    rows: list[dict[str, Any]] = []
    given: Iterable[Any] = [table] if isinstance(table, Completion | HasRows) else table
    for index, one in enumerate(given):
        if isinstance(one, Completion):
            rows += [_row(index, sample, one, text) for sample, text in enumerate((one, *one.others))]
        elif isinstance(one, HasRows):
            rows += one.table_rows()
        else:
            cause = f"{one!r:.60} is no completion"
            raise OptionError(cause, at=f"completion {index}", hint="what LLM.generate gives for a list of prompts")
    return pandas.DataFrame(rows)


def _row(index: int, sample: int, first: Completion, completion: Completion) -> dict[str, Any]:
    record = completion.to_dict()
    error = record["error"] or {}
    stats = {name: one for name, one in record["stats"].items() if not isinstance(one, list | dict)}
    logprobs = None if completion.logprobs is None else [one.logprob for one in completion.logprobs]
    return {
        "index": index,
        "sample": sample,
        "prompt": first.prompt,
        "seed": first.seed,
        **{name: record[name] for name in ("text", "value", "finish_reason")},
        "error": error.get("code"),
        "message": error.get("message"),
        "score": completion.score,
        "logprob": None if logprobs is None else math.fsum(logprobs),
        "logprobs": logprobs,
        **stats,
    }
