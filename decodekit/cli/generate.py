"""`generate`: one prompt, one text, streamed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from decodekit.cli import options as o
from decodekit.cli.console import SOME_FAILED, command, note, print_json
from decodekit.errors import OptionError


@command
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt, or - for stdin.", show_default=False)],
    schema: Annotated[
        str | None,
        typer.Option(help="JSON of this schema: a file, module.py:Class, a name, or fields.", show_default=False),
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(
            help="A text of this grammar: a .lark, .gbnf or .regex file, or the name of a grammar of the library or of "
            "an installed constraint.",
            show_default=False,
        ),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="A text that matches this pattern as a whole.", show_default=False)
    ] = None,
    choices: Annotated[str | None, typer.Option(help="One of these, between commas.", show_default=False)] = None,
    whitespace: o.Whitespace = None,
    escapes: o.EscapesOption = None,
    format: o.FormatOption = None,
    order: o.OrderOption = None,
    model: o.Model = "tiny",
    dtype: o.Dtype = "auto",
    device_map: o.DeviceMap = None,
    raw: o.Raw = False,
    strategy: o.Strategy = "greedy",
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    seed: o.Seed = 0,
    speculate: o.Speculate = None,
    fast_forward: o.FastForwardOption = o.FastForward.exact,
    max_new_tokens: o.MaxNewTokens = 256,
    on_length: Annotated[
        o.OnLength | None,
        typer.Option(
            help="A text cut at the budget: an error (with a constraint), returned as it is, or closed in time.",
            show_default=False,
        ),
    ] = None,
    max_rollbacks: o.MaxRollbacks = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    as_json: o.Json = False,
) -> int:
    """Complete a prompt and stream the text to stdout."""
    from decodekit.cli.extract import load_model

    rule = _constraint(schema, constraint, regex, choices, o.schema_options(whitespace, escapes, format, order))
    guesses = o.parse_speculate(speculate)
    text = sys.stdin.read() if prompt == "-" else prompt
    llm = load_model(model, dtype, device_map)
    is_chat = bool(getattr(llm.tokenizer, "chat_template", None)) and not raw
    completion = None
    for chunk in llm.stream(
        [{"role": "user", "content": text}] if is_chat else text,
        constraint=rule,
        strategy=strategy,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        on_length=on_length.value if on_length else None,
        max_rollbacks=max_rollbacks,
        fast_forward=fast_forward.value,
        **o.given(
            speculate=guesses or None,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
        ),
    ):
        if not as_json:
            print(chunk.text, end="", flush=True)
        completion = chunk.completion or completion
    assert completion is not None
    stats = completion.stats
    if as_json:
        print_json(
            {
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "error": None if completion.error is None else str(completion.error),
                "num_prompt_tokens": stats.num_prompt_tokens,
                "num_generated_tokens": stats.num_generated_tokens,
                "ttft_s": stats.ttft_s,
                "tokens_per_second": stats.tokens_per_second,
                "num_guard_refusals": stats.num_guard_refusals,
                "num_rollbacks": stats.num_rollbacks,
                "num_forwards": stats.num_forwards,
                "num_forced_tokens": stats.num_forced_tokens,
                "draft_acceptance_rate": stats.draft_acceptance_rate,
                "score": completion.score,
                "others": [{"text": other.text, "score": other.score} for other in completion.others],
            }
        )
    else:
        print(flush=True)
        note(
            f"{completion.finish_reason}: {stats.num_generated_tokens} tokens, {stats.tokens_per_second:,.0f} tokens/s"
        )
    if completion.error is not None:
        note(str(completion.error))
        return SOME_FAILED
    return 0


def _constraint(
    schema: str | None, constraint: str | None, regex: str | None, choices: str | None, asked: Mapping[str, Any]
) -> Any:
    options = {"--schema": schema, "--constraint": constraint, "--regex": regex, "--choices": choices}
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} cannot be combined: a text has one constraint.", at=given[-1])
    if schema:
        from decodekit.jobs.schema import load_schema

        return load_schema(schema, asked).constraint
    o.refuse_without_schema(asked)
    if constraint:
        from decodekit.cli.grammar import load

        return load(constraint)
    if regex:
        from decodekit.constraints import Regex

        return Regex(regex)
    if choices:
        from decodekit.constraints import Choices

        return Choices([choice.strip() for choice in choices.split(",")])
    return None
