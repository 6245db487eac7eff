"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from decodekit.errors import OptionError
from decodekit.spelling import split, split_calls

MAX_INDENT = 16  # as in `layout`, which would load the engine
SCHEMA_HELP = (
    "What to extract: a JSON Schema file, module.py:NAME (a Pydantic model, dataclass, TypedDict, or a constraint such "
    "as Guarded(...)), the name of an installed constraint or of a schema of the library, or fields such as "
    "'name, total float, due date?, tags string[], kind invoice|receipt' "
    "(name, type, string if left out; [] a list, | choices, ? may be null)."
)
SAMPLING = "Sampling"
MODEL = "Model"
SPEED = "Speed"
SCHEMA = "JSON of a schema"


class OnLength(StrEnum):
    """What becomes of a document that is cut at the limit."""

    error = "error"
    return_ = "return"
    close = "close"


class FastForward(StrEnum):
    """What is taken without asking the model, where the schema leaves no choice."""

    off = "off"
    exact = "exact"
    canonical = "canonical"


class Format(StrEnum):
    """Whether known formats limit strings."""

    assert_ = "assert"
    annotate = "annotate"


class Order(StrEnum):
    """In which order the properties of an object come."""

    declared = "declared"
    any = "any"


class Escapes(StrEnum):
    """Which characters may be escapes."""

    needed = "needed"
    any = "any"


Model = Annotated[
    str,
    typer.Option(help="Bundled: tiny, tiny-draft. Or a folder, or a Hugging Face id.", rich_help_panel=MODEL),
]
Dtype = Annotated[str, typer.Option(help="Number type of the weights.", rich_help_panel=MODEL)]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread the model over devices, as in transformers.", rich_help_panel=MODEL)
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Do not use the model's chat template.", rich_help_panel=MODEL, show_default=False)
]
Strategy = Annotated[
    str,
    typer.Option(
        help="greedy, sample, or another that `decodekit strategies` lists, with any of its options: "
        "sample:temperature=0.7,contrast=dola.",
        rich_help_panel=SAMPLING,
    ),
]
Temperature = Annotated[float | None, typer.Option(help="Divides the logits.", rich_help_panel=SAMPLING)]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest tokens of this mass.", rich_help_panel=SAMPLING)]
MinP = Annotated[
    float | None,
    typer.Option(help="Keep tokens this many times as likely as the likeliest.", rich_help_panel=SAMPLING),
]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Weaken tokens that occurred.", rich_help_panel=SAMPLING)]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Subtracted from generated tokens' logits.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Subtracted once per occurrence.", rich_help_panel=SAMPLING)
]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same text.", rich_help_panel=SAMPLING)]
Speculate = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Who guesses ahead: grammar, prompt-lookup, suffix, draft-model:NAME, early-exit:LAYERS, with options "
        "(draft-model:NAME,num_tokens=6); joined by + in one draft, or several to try in order between commas; or "
        "none. The text stays the same.",
        rich_help_panel=SPEED,
        show_default=False,
    ),
]
FastForwardOption = Annotated[
    FastForward,
    typer.Option(
        "--fast-forward",
        help="What a constraint forces is taken unasked: nothing, single tokens, or (another law) text in the "
        "tokenizer's own tokens.",
        rich_help_panel=SPEED,
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Budget of tokens per text.")]
BatchSize = Annotated[str, typer.Option(metavar="auto|N", help="Documents decoded at a time.")]
JobDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="A job folder.", show_default=False)]
MaxRollbacks = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How often a text is taken back because a guard refuses it (such as uniqueItems of objects).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.", show_default=False)]


def output_path(text: str | Path) -> Path:
    """The path that ``-o`` names.

    ``-o ""``, which a variable of the shell that is not set leaves, would be the present folder, and is refused.
    """
    if not str(text):
        raise typer.BadParameter("the empty text is no path; . is the present folder.")
    return Path(text)


Whitespace = Annotated[
    str | None,
    typer.Option(
        metavar="natural|any|compact|tab|N",
        help="natural (left out: this): none, one blank after commas and colons, or one indentation, throughout; any: "
        "blanks wherever JSON allows them; compact: none; tab or a number: this indentation.",
        rich_help_panel=SCHEMA,
        show_default=False,
    ),
]
EscapesOption = Annotated[
    Escapes | None,
    typer.Option(
        "--escapes",
        help="needed (left out: this): what JSON can write as itself is; any: every character may be an escape.",
        rich_help_panel=SCHEMA,
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="assert (left out: this): a known format, such as date, limits the string; annotate: none does.",
        rich_help_panel=SCHEMA,
        show_default=False,
    ),
]
OrderOption = Annotated[
    Order | None,
    typer.Option(
        "--order",
        help="declared (left out: this): properties in the order of the schema; any: in every order.",
        rich_help_panel=SCHEMA,
        show_default=False,
    ),
]


def schema_options(
    whitespace: str | None, escapes: Escapes | None, format: Format | None, order: Order | None
) -> Mapping[str, Any]:
    """The options of a schema that were given, as `JsonSchema` takes them.

    Raises:
        OptionError: `whitespace` is none.
    """
    return given(
        whitespace=None if whitespace is None else parse_whitespace(whitespace),
        escapes=None if escapes is None else escapes.value,
        format=None if format is None else format.value,
        order=None if order is None else order.value,
    )


def refuse_without_schema(options: Mapping[str, Any]) -> None:
    """Raise the OptionError of options of a schema where there is none."""
    for name in options:
        raise OptionError(f"--{name} has no effect without --schema.", at=f"--{name}", hint="--schema")


def parse_whitespace(text: str) -> str | int:
    """``"tab"`` as the character, a number as one, a name as it is; raises OptionError for anything else."""
    if text in ("natural", "any", "compact"):
        return text
    if text in ("tab", "\t"):
        return "\t"
    if text.isascii() and text.isdigit() and int(text) <= MAX_INDENT:
        return int(text)
    raise OptionError(
        f"--whitespace is natural, any, compact, tab or an indentation up to {MAX_INDENT}, not {text!r}.",
        at="--whitespace",
    )


def given(**options: Any) -> Mapping[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in options.items() if value is not None}


def parse_speculate(text: str | None) -> tuple[str, ...] | None:
    """``"grammar,prompt-lookup"`` as names in order, ``"none"`` as no name, None where nothing was said.

    Raises:
        OptionError: there is no name, ``none`` stands beside others, or an option has no name before it.
    """
    if text is None:
        return None
    names = tuple(split_calls(text)) if all(split(text, ",")) else ()
    if names == ("none",):
        return ()
    if "none" in names or not names:
        raise OptionError(f"--speculate is none or names between commas, not {text!r}.", at="--speculate")
    return names


def parse_batch_size(text: str) -> int | None:
    """None for ``auto``. Raises OptionError for anything that is no count."""
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
    raise OptionError(
        f"--shard is i/n with i from 1 to n, not {text!r}.", at="--shard", hint="--shard 1/4, 2/4, 3/4 and 4/4."
    )
