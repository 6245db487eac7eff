"""`generate`: one prompt, one text, streamed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodekit.cli.parts import shared_options as o
from decodekit.cli.parts.command import command
from decodekit.cli.parts.console import DONE, SOME_FAILED, GrowingView, note, print_json, print_text, typed_text
from decodekit.cli.parts.console import as_json as json_line
from decodekit.errors import OptionError

if TYPE_CHECKING:
    from decodekit.llm import LLM, Completion

_STATS = (
    "num_prompt_tokens num_generated_tokens ttft_s tokens_per_second num_guard_refusals num_rollbacks num_forwards "
    "num_forced_tokens draft_acceptance_rate"
)
"""What is told of a text as JSON beside it, by the names of the attributes of `Stats`."""


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """The constraint of the text: at most one of these."""

    schema: Annotated[
        str | None, typer.Option(help="JSON of this schema: a file, module.py:Class, a name, or fields.")
    ] = None
    constraint: Annotated[
        str | None,
        typer.Option(
            help="A text of this grammar: a .lark, .gbnf or .regex file, or the name of a grammar of the library or of "
            "an installed constraint."
        ),
    ] = None
    regex: Annotated[str | None, typer.Option(help="A text that matches this pattern as a whole.")] = None
    choices: Annotated[str | None, typer.Option(help="One of these, between commas.")] = None

    def load(self, layout: o.SchemaOptions) -> Any:
        """The constraint; None if none was asked for. At most one can be, and options of a schema only beside it."""
        given = [f"--{one.name}" for one in fields(self) if getattr(self, one.name)]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} cannot be combined: a text has one constraint.", at=given[-1])
        if self.schema:
            from decodekit.jobs.job_schema import load_schema

            return load_schema(self.schema, layout.given()).constraint
        layout.refuse_without_schema()
        if self.constraint:
            from decodekit.cli.grammar_commands import load

            return load(self.constraint)
        from decodekit.constraints import Choices, Regex

        if self.regex:
            return Regex(typed_text(self.regex))
        if self.choices:
            return Choices([choice.strip() for choice in typed_text(self.choices).split(",")])
        return None


@command
def generate(
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", help="One prompt or several; - reads one from stdin.")
    ],
    *,
    constraint: ConstraintOptions,
    layout: o.SchemaOptions,
    model: o.ModelOptions,
    raw: o.Raw = False,
    chat_template_kwargs: o.ChatTemplateKwargs = None,
    sampling: o.SamplingOptions,
    speed: o.SpeedOptions,
    max_new_tokens: o.MaxNewTokens = 256,
    on_length: Annotated[
        o.OnLength | None,
        typer.Option(
            help="A text cut at the budget: an error (with a constraint), returned as it is, or closed in time."
        ),
    ] = None,
    max_rollbacks: o.MaxRollbacks = None,
    max_retries: o.MaxRetries = 0,
    num_return_sequences: Annotated[
        int | None, typer.Option("-n", "--num-return-sequences", min=1, help="So many texts of each prompt.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Draw the value of a schema as it grows; in a pipe, a line of JSON for each."),
    ] = False,
    as_json: o.Json = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=o.output_path, help="Write a page of how each token was taken."),
    ] = None,
) -> int:
    """Complete a prompt and stream the text to stdout.

    Several texts, of several prompts or with -n, are printed one after the other in their order, each below a line that
    says which it is; with --json a line of JSON for each prompt. With --stream the value of a schema is drawn as
    it grows.
    """
    from decodekit.chat.conversation import has_chat_template
    from decodekit.cli.jobs.extract import load_model
    from decodekit.strategy import GENERATION_OPTIONS, resolve_strategy

    _check_page(html, len(prompts))
    rule = constraint.load(layout)
    if stream:
        _check_stream(rule, len(prompts), num_return_sequences or 1, as_json=as_json)
    options: Any = {
        "constraint": rule,
        "strategy": sampling.strategy,
        "seed": sampling.seed,
        "max_new_tokens": max_new_tokens,
        "stop": tuple(map(typed_text, stop or ())),
        "on_length": on_length,
        "max_rollbacks": max_rollbacks,
        "max_retries": max_retries,
        "fast_forward": speed.fast_forward,
        "trace": html is not None,
        "chat_template_kwargs": o.parse_chat_template_kwargs(chat_template_kwargs) or None,
        **o.given(speculate=o.parse_speculate(speed.speculate) or None, num_return_sequences=num_return_sequences),
        **sampling.of_strategy(),
    }
    texts = _read(prompts)
    # Faults of the strategy are told before the model is loaded.
    resolve_strategy(sampling.strategy, {name: options[name] for name in options if name not in GENERATION_OPTIONS})
    llm = load_model(model.model, model.dtype, model.device_map)
    is_chat = has_chat_template(llm.tokenizer) and not raw
    read: list[Any] = [[{"role": "user", "content": text}] if is_chat else text for text in texts]
    if len(read) > 1 or num_return_sequences not in (None, 1):
        told = _print_several(llm, read, options, as_json=as_json)
    else:
        told = [_print_one(llm, read[0], options, is_drawn=stream, as_json=as_json)]
    return _tell(told, html, is_told=not as_json)


def _check_page(html: Path | None, num_prompts: int) -> None:
    """Check that the page of the tokens can be written, and has those of one prompt."""
    if html is None:
        return
    if html.is_dir() or not html.parent.is_dir():
        cause = f"{str(html)!r} is a folder." if html.is_dir() else f"there is no folder {str(html.parent)!r}."
        raise OptionError(cause, at="--html", hint="a file in a folder that exists")
    if num_prompts > 1:
        raise OptionError(f"one page has the tokens of one prompt, not of {num_prompts}.", at="--html")


def _check_stream(constraint: Any, num_prompts: int, num_texts: int, *, as_json: bool) -> None:
    """Check that there is one value to draw."""
    from decodekit.constraints.growing import GrowingValue

    if num_prompts > 1 or num_texts > 1:
        raise OptionError(f"--stream draws one value, not {num_prompts * num_texts}.", at="--stream")
    if as_json:
        raise OptionError("--stream and --json cannot be combined.", at="--stream", hint="--stream alone in a pipe")
    if GrowingValue.of(constraint) is None:
        raise OptionError("--stream draws the value of JSON, and the text is none.", at="--stream", hint="--schema")


def _read(prompts: list[str]) -> list[str]:
    """The prompts as texts; ``-`` is what stdin holds, which is named once and not empty."""
    if prompts.count("-") > 1:
        raise OptionError("- is given twice, and there is one standard input.", at="PROMPT")
    texts = [sys.stdin.read() if prompt == "-" else typed_text(prompt) for prompt in prompts]
    if "-" in prompts and not texts[prompts.index("-")]:
        raise OptionError("standard input is empty.", at="PROMPT", hint="pipe a text into the command")
    return texts


def _print_one(llm: LLM, prompt: Any, options: Mapping[str, Any], *, is_drawn: bool, as_json: bool) -> Completion:
    """Print the text of a prompt, or its value, as it grows."""
    from pydantic_core import to_jsonable_python

    completion, view = None, GrowingView()
    for chunk in llm.stream(prompt, **options):
        completion = chunk.completion or completion
        if is_drawn and (value := chunk.partial) is not None:
            is_whole = completion is not None
            view.show(to_jsonable_python(value, exclude_none=not is_whole, fallback=repr), is_last=is_whole)
        elif not (is_drawn or as_json):
            print_text(chunk.text, end="")
    assert completion is not None
    if as_json:
        print_json(_as_record(completion))
    elif not is_drawn:
        print(flush=True)
    return completion


def _print_several(llm: LLM, prompts: list[Any], options: Mapping[str, Any], *, as_json: bool) -> list[Completion]:
    """Print the texts of each prompt as soon as those before are printed."""
    done: dict[int, Completion] = {}
    told: list[Completion] = []
    for index, completion in llm.as_completed(prompts, **options):
        done[index] = completion
        while len(told) in done:
            number, one = len(told), done[len(told)]
            told.append(one)
            if as_json:
                print(json_line({"prompt": number, **_as_record(one)}))
                continue
            texts = (one, *one.others)
            for sample, text in enumerate(texts):
                which = [f"prompt {number + 1} of {len(prompts)}"] if len(prompts) > 1 else []
                which += [f"text {sample + 1} of {len(texts)}"] if len(texts) > 1 else []
                print_text(f"--- {', '.join(which)}\n{text.text}")
    return told


def _tell(completions: list[Completion], html: Path | None, *, is_told: bool) -> int:
    """Say on stderr what became of the prompts, and write the page of the tokens; the exit code."""
    for number, completion in enumerate(completions):
        which = f"prompt {number + 1}: " if len(completions) > 1 else ""
        stats = completion.stats
        if is_told:
            speed = f"{stats.num_generated_tokens} tokens, {stats.tokens_per_second:,.0f} tokens/s"
            note(f"{which}{completion.finish_reason}: {speed}")
        if completion.error is not None:
            note(f"{which}{completion.error}")
    if html is not None:
        from decodekit.html_pages import page_bytes
        from decodekit.records.ledger import replace_file

        replace_file(html, [page_bytes(completions[0].to_html())])
        note(f"tokens: {html}")
    if completions[0].stats.recommended:
        taken = ", ".join(f"{name}={value}" for name, value in completions[0].stats.recommended)
        note(f"sampled as the generation config of the model recommends: {taken}")
    return SOME_FAILED if any(completion.error is not None for completion in completions) else DONE


def _as_record(completion: Completion) -> dict[str, Any]:
    """A completion as JSON."""
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "error": completion.error,
        **{name: getattr(completion.stats, name) for name in _STATS.split()},
        "score": completion.score,
        "others": [{"text": other.text, "score": other.score} for other in completion.others],
    }
