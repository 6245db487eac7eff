"""A task for comparing decoding methods: prompts, right answers, and the constraint of the text.

A task is a value, or a JSONL file: an example on each line, and before them, if wanted, a line about all of them::

    {"task": {"name": "invoices", "schema": "invoice.schema.json", "max_new_tokens": 300}}
    {"id": "a-1", "prompt": "Invoice A-17, total 40.20 EUR.\\n", "reference": {"number": "A-17", "total": 40.2}}

Fields of the first line: those of `Task`, with `schema` (a JSON Schema, or the name of a file beside this one), `regex`
or `choices` for its constraint, and `schemas`, which gives names to schemas that examples may ask for. Fields of an
example: `id`, `prompt` or `messages`, `reference`, `schema`. Fields of other names are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from decodekit.constraints import Choices, Regex, as_constraint
from decodekit.constraints.constraint import Constraint
from decodekit.decoding.request.prompt import Prompt, check_prompt, in_lists, is_messages
from decodekit.errors import DecodekitError, OptionError, UnknownNameError, collecting, raise_faults
from decodekit.plugins import did_you_mean
from decodekit.sampling.checks import COUNT

_MAX_FAULTS = 10


@dataclass(frozen=True)
class Example:
    """One prompt of a task.

    Args:
        id: its name, one of its own within the task.
        prompt: a text or messages; or token ids, which only models of one vocabulary can be asked with.
        reference: what is right: a text, or any other JSON value; None if it is not known.
        constraint: what its text must be, if that differs from the task's.
    """

    id: str
    prompt: Prompt
    reference: Any = None
    constraint: Any = None

    def __post_init__(self) -> None:
        check_prompt(self.prompt, f"example {self.id}")
        object.__setattr__(self, "prompt", in_lists(self.prompt))
        if self.constraint is not None:
            object.__setattr__(self, "constraint", as_constraint(self.constraint))


@dataclass(frozen=True)
class Task:
    """Examples, and how they are decoded and judged.

    Args:
        name: its name in tables.
        examples: at least one.
        constraint: what every text must be; anything that `LLM.generate` takes as a constraint.
        is_constrained: whether the constraint is enforced while decoding; otherwise it is only what texts are checked
            against.
        metrics: names of measures (see `metrics.METRICS`), the most important first, or a single name; None takes those
            that fit.
        max_new_tokens: how many tokens a text may have.
        instruction: what a model that follows instructions is told before the prompt; ``{schema}`` stands for the JSON
            Schema of the example. The bundled models read the bare prompt.
        description: a sentence for people.

    Raises:
        OptionError: no examples, an id twice, or an option that is out of range; all of them together.
        InvalidConstraintError: the constraint is none.
    """

    name: str
    examples: tuple[Example, ...]
    constraint: Any = None
    is_constrained: bool = True
    metrics: tuple[str, ...] | None = None
    max_new_tokens: int = 256
    instruction: str | None = None
    description: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(self.examples))
        if self.metrics is not None:
            object.__setattr__(self, "metrics", _listed(self.metrics))
        if self.constraint is not None:
            object.__setattr__(self, "constraint", as_constraint(self.constraint))
        faults: list[DecodekitError] = []
        if not self.examples:
            faults.append(OptionError(f"task {self.name!r} has no examples", at="examples"))
        # What callers give is not always what the types say.
        measures: tuple[object, ...] = self.metrics or ()
        examples: tuple[object, ...] = self.examples
        for one in measures:
            if not isinstance(one, str):
                cause = f"task {self.name!r} has the measure {one!r:.60}, and a measure is asked for by its name"
                faults.append(OptionError(cause, at="metrics", hint='metrics=("exact-match", "valid")'))
        seen: set[str] = set()
        for one in examples:
            if not isinstance(one, Example):
                cause = f"task {self.name!r} has {one!r:.60} among its examples, which is none"
                faults.append(OptionError(cause, at="examples", hint='Example("1", prompt, reference)'))
                continue
            if one.id in seen:
                faults.append(OptionError(f"task {self.name!r} has two examples {one.id!r}", at="examples"))
            seen.add(one.id)
        with collecting(faults):
            COUNT.require("max_new_tokens", self.max_new_tokens)
        raise_faults(faults[:_MAX_FAULTS], "parts of a task")

    def constraint_of(self, example: Example) -> Constraint | None:
        """The constraint of an example's text; None for free text."""
        constraint: Constraint | None = self.constraint if example.constraint is None else example.constraint
        return constraint

    def first(self, num_examples: int) -> Task:
        """The task with its first examples only."""
        return replace(self, examples=self.examples[:num_examples])

    def prompt_of(self, example: Example, *, is_bundled: bool, has_chat_template: bool) -> Prompt:
        """The prompt of an example as a model reads it: after the instruction, unless the model is a bundled one.

        Those were trained on bare documents. With a chat template the instruction is a user's message.
        """
        if self.instruction is None or is_bundled or not isinstance(example.prompt, str):
            return example.prompt
        schema = getattr(self.constraint_of(example), "schema", None)
        shown = "" if schema is None else json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        text = f"{self.instruction.replace('{schema}', shown)}\n\n{example.prompt}"
        return [{"role": "user", "content": text}] if has_chat_template else text


def load_task(source: str | Path | Task, constraint: Any = None) -> Task:
    """A task by its name, its file, or as it is.

    Args:
        source: the name of a shipped task (`shipped_tasks`), the path of a JSONL file, or a `Task`.
        constraint: what its texts must be; only for a file that does not say it.

    Raises:
        UnknownNameError: neither a name nor a file.
        OptionError: the file cannot be used; its first faults together, each with its line.
        ConstraintError: a schema of the file is none.
    """
    if isinstance(source, Task):
        task = source
    elif isinstance(source, str) and source in _SHIPPED:
        task = _SHIPPED[source]()
    else:
        path = Path(source)
        if not path.is_file():
            near = did_you_mean(str(path), _SHIPPED)
            cause = f"no task {str(path)!r}: neither a shipped one nor a file.{near} Shipped: {', '.join(_SHIPPED)}."
            raise UnknownNameError(cause, at="tasks")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the file cannot be read: {error}", at=str(path)) from error
        task = _TaskReader(path.name.removesuffix(".jsonl"), str(path), path.parent).task(text)
    if constraint is None:
        return task
    if task.constraint is not None or any(example.constraint is not None for example in task.examples):
        cause = f"task {task.name!r} says by itself what its texts must be"
        raise OptionError(cause, at=str(source), hint="no further schema")
    return replace(task, constraint=constraint)


def shipped_tasks() -> dict[str, str]:
    """The names of the shipped tasks with a sentence about each."""
    return {name: load_task(name).description for name in _SHIPPED}


class _TaskReader:
    """Reads a file, which errors name `at`, and collects what is wrong with it; schemas are in the folder, if any."""

    def __init__(self, name: str, at: str, folder: Path | None) -> None:
        self._name, self._at, self._folder = name, at, folder
        self._faults: list[DecodekitError] = []
        self._schemas: dict[str, Constraint] = {}

    def task(self, text: str) -> Task:
        """The task that a file holds."""
        lines = list(self._lines(text))
        options: dict[str, Any] = {}
        if lines and "task" in lines[0][1]:
            number, line = lines.pop(0)
            options = self._try(number, lambda: self._options(line)) or {}
        examples = [self._try(number, partial(self._example, line, number)) for number, line in lines]
        if not examples and not self._faults:
            self._fault("the file has no examples", None, 'lines such as {"prompt": "...", "reference": "..."}')
        raise_faults(self._faults[:_MAX_FAULTS], "lines")
        found = tuple(example for example in examples if example is not None)
        try:
            return Task(**{"name": self._name, **options, "examples": found})
        except DecodekitError as error:
            error.at = f"{self._at}, {error.at}"
            raise

    def _lines(self, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                self._fault(f"not JSON: {error}", number)
                continue
            if isinstance(value, dict):
                yield number, value
            else:
                self._fault(f"not a JSON object but {line.strip()!r:.40}", number)

    def _options(self, line: Mapping[str, Any]) -> dict[str, Any]:
        given = line["task"]
        if len(line) > 1 or not isinstance(given, dict):
            raise OptionError('the line about the task is {"task": {...}} and nothing else')
        own = {field.name for field in fields(Task)} - {"examples", "constraint"}
        _refuse_unknown(given, {*own, "schema", "schemas", "regex", "choices"})
        if not isinstance(given.get("schemas", {}), dict):
            raise OptionError('"schemas" is an object of schemas by their names')
        self._schemas = {name: self._schema(schema) for name, schema in given.get("schemas", {}).items()}
        options = {name: value for name, value in given.items() if name in own}
        constraint = self._constraint(given)
        return options if constraint is None else {**options, "constraint": constraint}

    def _constraint(self, given: Mapping[str, Any]) -> Constraint | None:
        makers: dict[str, Callable[[Any], Constraint]] = {"schema": self._schema, "regex": Regex, "choices": Choices}
        kinds = [kind for kind in makers if kind in given]
        if len(kinds) > 1:
            raise OptionError(f"{' and '.join(kinds)} cannot be combined: a text has one constraint")
        return makers[kinds[0]](given[kinds[0]]) if kinds else None

    def _schema(self, given: Any) -> Constraint:
        """A schema as it stands, by its name, or in a file."""
        if not isinstance(given, str):
            return as_constraint(given)
        if given in self._schemas:
            return self._schemas[given]
        path = None if self._folder is None else self._folder / given
        if path is None or not path.is_file():
            near = did_you_mean(given, self._schemas)
            raise OptionError(f'no schema {given!r}: neither one of "schemas" nor a file beside this one.{near}')
        try:
            return as_constraint(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise OptionError(f"the schema file {given!r} is not JSON: {error}") from error

    def _example(self, line: Mapping[str, Any], number: int) -> Example:
        _refuse_unknown(line, {"id", "prompt", "messages", "reference", "schema"})
        if ("prompt" in line) == ("messages" in line):
            raise OptionError('an example has either "prompt" or "messages"')
        prompt = line["prompt"] if "prompt" in line else line["messages"]
        if not (isinstance(prompt, str) and prompt if "prompt" in line else is_messages(prompt)):
            raise OptionError(
                '"prompt" is a text that is not empty, "messages" a list of objects with role and content'
            )
        constraint = self._schema(line["schema"]) if "schema" in line else None
        return Example(str(line.get("id", number)), prompt, line.get("reference"), constraint)

    def _try(self, number: int, read: Callable[[], Any]) -> Any:
        """The value of `read`; None, and a fault at the line, if it raises."""
        try:
            return read()
        except DecodekitError as error:
            error.at = f"{self._at}, line {number}" + (f", {error.at}" if error.at else "")
            self._faults.append(error)
            return None

    def _fault(self, cause: str, number: int | None, hint: str | None = None) -> None:
        self._faults.append(OptionError(cause, at=self._at + (f", line {number}" if number else ""), hint=hint))


def _refuse_unknown(given: Mapping[str, Any], known: set[str]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        cause = f"no field {unknown!r}.{did_you_mean(unknown, known)}"
        raise OptionError(cause, hint=f"fields are {', '.join(sorted(known))}")


def _packaged(name: str) -> Task:
    source = files("decodekit.evaluation").joinpath("tasks", f"{name}.jsonl")
    return _TaskReader(name, f"the shipped task {name}", None).task(source.read_text(encoding="utf-8"))


_FREE = "The documents of extraction, decoded without the schema and checked against it."
_SHIPPED: dict[str, Callable[[], Task]] = {
    "extraction": partial(_packaged, "extraction"),
    "extraction-free": lambda: replace(
        _packaged("extraction"), name="extraction-free", is_constrained=False, description=_FREE
    ),
    **{name: partial(_packaged, name) for name in ("copying", "summarising", "open-ended")},
}


def _listed(given: Any) -> tuple[Any, ...]:
    """The values that were given as one or as several."""
    is_several = isinstance(given, Iterable) and not isinstance(given, str | Path | Task)
    return tuple(given) if is_several else (given,)


def named_tasks(tasks: Sequence[str | Path | Task] | str | Path | Task) -> list[Task]:
    """Tasks as `compare` takes them: one, or several; all faults are raised together."""
    listed = list(_listed(tasks))
    faults: list[DecodekitError] = []
    found: list[Task] = []
    for source in listed:
        with collecting(faults):
            if not isinstance(source, str | Path | Task):
                raise OptionError(f"{source!r:.60} is no task", at="tasks", hint="a name, a JSONL file or a Task")
            task = load_task(source)
            found.append(task)
            if any(task.name == other.name for other in found[:-1]):
                raise OptionError(f"two tasks have the name {task.name!r}", at="tasks")
    if not listed:
        faults.append(OptionError("there is no task", at="tasks", hint=f"tasks=[{next(iter(_SHIPPED))!r}]"))
    raise_faults(faults, "tasks")
    return found
