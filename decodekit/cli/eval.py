"""`eval`: tasks of lm-evaluation-harness, decoded by our strategies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from decodekit.cli.generate_command import ConstraintOptions
from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, SOME_FAILED, note, print_json


@command
def evaluate(
    *,
    tasks: Annotated[
        list[str],
        typer.Option(metavar="LIST", help="Tasks or groups of lm-eval, patterns such as mmlu_*, or YAML files."),
    ],
    include_path: Annotated[
        str | None, typer.Option(metavar="DIR", help="A folder with tasks of your own: YAML beside its data.")
    ] = None,
    output: Annotated[Path, o.output_option(help="Where results.json and samples.jsonl go.")] = Path("out/eval"),
    model: o.ModelOptions,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Of generated texts, with options and a proposer: sample:temperature=0.7+suffix. "
            "Left out, what the task says, by default greedy."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same text.")] = 0,
    constraint: ConstraintOptions,
    layout: o.SchemaOptions,
    speculate: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Who guesses ahead; the texts stay the same.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put prompts into the model's chat template.")] = False,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Examples in the prompt, in place of the tasks' own.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first documents of each task.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Texts decoded at a time.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Budget per text, in place of the tasks' own.")
    ] = None,
    as_json: o.Json = False,
) -> int:
    """Run tasks of lm-evaluation-harness with our strategies; needs the extra `eval`.

    Prints the table of lm-eval and writes results.json and samples.jsonl. Exit code 7 if a text has an error.
    """
    from decodekit.evaluation.harness import RESULTS, SAMPLES, evaluate_tasks, require_harness

    require_harness()
    rule = constraint.load(layout)
    names = [name.strip() for text in tasks for name in text.split(",")]

    from decodekit.cli.jobs.extract import load_model

    llm = load_model(model.model, model.dtype, model.device_map)
    options: dict[str, Any] = o.given(speculate=o.parse_speculate(speculate))
    found = evaluate_tasks(
        llm,
        names,
        include_path=include_path,
        strategy=strategy,
        constraint=rule,
        seed=seed,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        num_fewshot=num_fewshot,
        limit=limit,
        is_chat=chat,
        options=options,
        progress=sys.stderr.isatty(),
    )
    found.write(output)
    if as_json:
        print_json(found.record())
    else:
        print(found.table(), end="")
    for error in found.errors:
        note(error)
    if found.num_shortened:
        note(f"{found.num_shortened} prompts were longer than the context and lost their first tokens")
    note(f"{output / RESULTS}, {output / SAMPLES}")
    return SOME_FAILED if found.errors else DONE
