"""Options that commands share: groups of them, each declared once, and the types of single ones.

A command has a parameter for each group, and `command.command` turns it into the options of the group::

    def check(schema: str, *, layout: SchemaOptions) -> int: ...   # --whitespace, --escapes, --numbers, --format, ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from decodekit.cli.parts.console import typed_text
from decodekit.errors import OptionError
from decodekit.spelling import split, split_calls

SCHEMA_HELP = (
    "What to extract: a JSON Schema file, module.py:NAME (a Pydantic model, dataclass, TypedDict, or a constraint such "
    "as Guarded(...)), the name of an installed constraint or of a schema of the library, or fields such as "
    "'name, total float, due date?, tags string[], kind invoice|receipt' "
    "(name, type, string if left out; [] a list, | choices, ? may be null)."
)
MODEL = "Model"

OnLength: TypeAlias = Literal["error", "return", "close"]
FastForward: TypeAlias = Literal["off", "exact", "canonical"]

_of_model = partial(typer.Option, rich_help_panel=MODEL)
_of_sampling = partial(typer.Option, rich_help_panel="Sampling")
_of_speed = partial(typer.Option, rich_help_panel="Speed")
_of_schema = partial(typer.Option, rich_help_panel="JSON of a schema")


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """The options of reading a schema and writing its JSON."""

    whitespace: Annotated[
        str | None,
        _of_schema(
            metavar="natural|any|compact|tab|N",
            help="natural (the default): none, one space after commas and colons, or one indentation, throughout; "
            "any: whitespace wherever JSON allows it; compact: none; tab or a number: this indentation.",
        ),
    ] = None
    escapes: Annotated[
        Literal["needed", "any"] | None,
        _of_schema(
            help="needed (the default): what JSON can write as itself is; any: every character may be an escape."
        ),
    ] = None
    numbers: Annotated[
        Literal["short", "any"] | None,
        _of_schema(
            help="short (the default): integers are digits alone, other numbers have at most 24 characters; "
            "any: every spelling."
        ),
    ] = None
    format: Annotated[
        Literal["assert", "annotate"] | None,
        _of_schema(help="assert (the default): a known format, such as date, limits the string; annotate: none does."),
    ] = None
    order: Annotated[
        Literal["declared", "any"] | None,
        _of_schema(help="declared (the default): properties in the order of the schema; any: in every order."),
    ] = None

    def given(self) -> dict[str, Any]:
        """The options that were given, as `JsonSchema` takes them."""
        options = given(**asdict(self))
        if self.whitespace is not None:
            options["whitespace"] = parse_whitespace(self.whitespace)
        return options

    def refuse_without_schema(self) -> None:
        """Raise the OptionError of options of a schema where there is none."""
        for name in self.given():
            raise OptionError(f"--{name} has no effect without --schema.", at=f"--{name}", hint="--schema")


Model = Annotated[str, _of_model(help="Bundled: tiny, tiny-draft. Or a folder, or a Hugging Face id.")]
DeviceMap = Annotated[str | None, _of_model(help="Spread the model over devices, as in transformers.")]
Raw = Annotated[bool, _of_model("--raw", help="Do not use the model's chat template.")]


ChatTemplateKwargs = Annotated[
    str | None,
    _of_model(metavar="JSON", help="Variables of the chat template, such as '{\"enable_thinking\": false}'."),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of the model and of loading it."""

    model: Model = "tiny"
    dtype: Annotated[str, _of_model(help="Number type of the weights.")] = "auto"
    device_map: DeviceMap = None


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The options of sampling."""

    strategy: Annotated[
        str,
        _of_sampling(
            help="greedy, sample, or another that `decodekit strategies` lists, with any of its options: "
            "sample:temperature=0.7,contrast=dola."
        ),
    ] = "greedy"
    temperature: Annotated[float | None, _of_sampling(help="Divides the logits.")] = None
    top_k: Annotated[int | None, _of_sampling(help="Keep the k likeliest tokens.")] = None
    top_p: Annotated[float | None, _of_sampling(help="Keep the likeliest tokens of this mass.")] = None
    min_p: Annotated[float | None, _of_sampling(help="Keep tokens this many times as likely as the likeliest.")] = None
    repetition_penalty: Annotated[float | None, _of_sampling(help="Weaken tokens that occurred.")] = None
    presence_penalty: Annotated[float | None, _of_sampling(help="Subtracted from generated tokens' logits.")] = None
    frequency_penalty: Annotated[float | None, _of_sampling(help="Subtracted once per occurrence.")] = None
    seed: Annotated[int, _of_sampling(min=0, help="Same seed, same text.")] = 0

    def of_strategy(self) -> Mapping[str, Any]:
        """The options of the strategy that were given."""
        return {name: value for name, value in given(**asdict(self)).items() if name not in ("strategy", "seed")}


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """Options that make decoding faster."""

    speculate: Annotated[
        str | None,
        _of_speed(
            metavar="NAMES",
            help="Proposers of drafts: grammar, prompt-lookup, suffix, draft-model:NAME, early-exit:LAYERS, with "
            "options (draft-model:NAME,num_tokens=6); joined by + in one draft, or several to try in order between "
            "commas; or none. The text stays the same.",
        ),
    ] = None
    fast_forward: Annotated[
        FastForward,
        _of_speed(
            help="What a constraint forces is taken unasked: nothing, single tokens, or (another distribution) text in "
            "the tokenizer's own tokens."
        ),
    ] = "exact"


MaxNewTokens = Annotated[int, typer.Option(min=1, help="Budget of tokens per text.")]
BatchSize = Annotated[str, typer.Option(metavar="auto|N", help="Documents decoded at a time.")]
JobDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="A job folder.")]
MaxRollbacks = Annotated[
    int | None,
    typer.Option(
        min=0, help="How often a text is rolled back because a guard refuses it (such as uniqueItems of objects)."
    ),
]
MaxRetries = Annotated[
    int,
    typer.Option(
        min=0, help="How often a text is asked for again, with the reason, whose value a validator or guard refuses."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what the folder holds and start again.")]


def output_path(text: str | Path) -> Path:
    """The path that ``-o`` names. ``-o ""``, which an unset variable of the shell leaves, would be the present
    folder."""
    if not str(text):
        raise typer.BadParameter("the empty text is no path; . is the present folder.")
    return Path(text)


output_option = partial(typer.Option, "-o", "--output", metavar="DIR", parser=output_path)


def parse_whitespace(text: str) -> str | int:
    """``"tab"`` as the character, a number as one, a name as it is; raises OptionError for anything else."""
    from decodekit.constraints.json_schema.frames.layout import MAX_INDENT

    if text in ("natural", "any", "compact"):
        return text
    if text in ("tab", "\t"):
        return "\t"
    if text.isascii() and text.isdigit() and int(text) <= MAX_INDENT:
        return int(text)
    cause = f"--whitespace is natural, any, compact, tab or an indentation up to {MAX_INDENT}, not {text!r}."
    raise OptionError(cause, at="--whitespace")


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in options.items() if value is not None}


def parse_speculate(text: str | None) -> tuple[str, ...] | None:
    """``"grammar,prompt-lookup"`` as names in order, ``"none"`` as no name, None where nothing was said; else
    OptionError."""
    if text is None:
        return None
    names = tuple(split_calls(text)) if all(split(text, ",")) else ()
    if names == ("none",):
        return ()
    if "none" in names or not names:
        raise OptionError(f"--speculate is none or names between commas, not {text!r}.", at="--speculate")
    return names


def parse_chat_template_kwargs(text: str | None) -> dict[str, Any]:
    """A JSON object as a mapping; empty where nothing was given. Raises OptionError for anything else."""
    if text is None:
        return {}
    try:
        value = json.loads(typed_text(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        cause = f"--chat-template-kwargs is a JSON object, not {text!r:.60}."
        raise OptionError(cause, at="--chat-template-kwargs", hint="'{\"enable_thinking\": false}'")
    return value


def parse_batch_size(text: str) -> int | None:
    """None for ``auto``. Raises OptionError for anything that is not a count."""
    if text == "auto":
        return None
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise OptionError(f"--batch-size is auto or a number from 1 on, not {text!r}.", at="--batch-size")


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """``"2/8"`` as (2, 8). Raises OptionError unless 1 <= i <= n."""
    if text is None:
        return None
    number, _, total = text.partition("/")
    if number.isascii() and number.isdigit() and total.isascii() and total.isdigit() and 1 <= int(number) <= int(total):
        return int(number), int(total)
    cause = f"--shard is i/n with i from 1 to n, not {text!r}."
    raise OptionError(cause, at="--shard", hint="--shard 1/4, 2/4, 3/4 and 4/4.")
