"""docs/options.md and `sampling.options.option_fields`, written from what the options declare of themselves.

    make options

`test_options_page` fails where either is not what this would write.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from decodekit.processor_names import PROCESSORS
from decodekit.sampling.mirostat import MirostatTruncation
from decodekit.sampling.options.declared import Option, options_of
from decodekit.sampling.orders import ORDER, ORDERS
from decodekit.sampling.pipeline import Stage
from decodekit.strategy import (
    GENERATION_OPTIONS,
    Beam,
    BestOf,
    ContrastiveSearch,
    GenerateOptions,
    Greedy,
    Mirostat,
    Particles,
    Sample,
    SelfConsistency,
)
from decodekit.strategy.options.generate_options import DOMAINS as GENERATION_DOMAINS
from decodekit.strategy.strategy_names import SPECULATIVE, speculative

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "options.md"
FIELDS: Final = ROOT / "decodekit" / "sampling" / "options" / "option_fields.py"
MARK: Final = "<!-- What follows is written by `make options`. -->"
READ_ELSEWHERE: Final = {
    "strategy": "a name, a `Strategy` or logits processors",
    "constraint": "None or what [constraints](constraints.md) lists",
    "tools": "None or what `dk.tools` takes",
}
"""Values of options that parts of their own read."""
_TRUNCATION: Final = {one.name: one.metadata["domain"].text for one in fields(MirostatTruncation)}
OTHERS: Final = {
    "processors": "logits processors, or names of installed ones",
    "speculate": "None, a proposer, its name, or several of them",
    "strategy": "a `Strategy`",
    "order": ORDER.text,
    "draft_model": "None, an LLM or the name of a model",
    **_TRUNCATION,
}
"""The same of strategies."""
OWN: Final = ("temperature", "top_k", "top_p", "min_p")
"""Options of processors that `Sample` has as positional fields of its own."""


def kinds() -> list[Any]:
    """The classes of the built-in processors."""
    rooms = {name: f"decodekit.sampling.processors.{file}" for name, file in PROCESSORS.items()}
    return [getattr(importlib.import_module(room), name) for name, room in rooms.items()]


def annotation(kind: Any, field: str, option: Option) -> str:
    """The type of an option as a keyword, with None for one that may be left out."""
    written = str(option.type or kind.__dataclass_fields__[field].type)
    can_be_none = default_of(option.name) is None and not written.endswith("| None")
    return f"{written} | None" if can_be_none else written


def default_of(name: str) -> object:
    """The default of a processor's option; None of one that `Sample` does not have yet."""
    parameter = inspect.signature(Sample).parameters.get(name)
    return None if parameter is None else parameter.default


def declared() -> dict[str, tuple[Any, str, Option]]:
    """Every option of a processor, once, with the first class that declares it and its field there."""
    found: dict[str, tuple[Any, str, Option]] = {}
    for kind in kinds():
        for field, option in options_of(kind).items():
            found.setdefault(option.name, (kind, field, option))
    return found


def wrapped(names: Iterable[str]) -> str:
    """Names as the lines of a tuple or list."""
    return textwrap.indent(textwrap.fill(", ".join(names) + ",", 116), "    ")


def fields_file() -> str:
    """The text of `option_fields`."""
    everything = declared()
    lines = {name: f"    {name}: {annotation(kind, field, one)}" for name, (kind, field, one) in everything.items()}

    def fields(is_bias: bool) -> str:
        own = (name for name, (kind, *_) in everything.items() if (kind.stage is Stage.BIAS) is is_bias)
        return "\n".join(f"{lines[name]} = None" for name in own if name not in OWN)

    imports = "\n".join(f"from decodekit.sampling.processors.{file} import {name}" for name, file in PROCESSORS.items())
    told = "Watermark | Mapping[str, Any] | bool | None"
    keywords = "\n".join(lines.values()).replace("Watermark | None", told)
    exported = sorted(PROCESSORS, key=lambda name: (not name.isupper(), name))
    text = f'''"""The options of logits processors as fields and keywords, written by `tests.options_page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from decodekit.sampling.pipeline import LogitsProcessor
{imports}

__all__ = [
{wrapped(f'"{name}"' for name in exported)}
]  # fmt: skip

KINDS: Final[tuple[type[LogitsProcessor], ...]] = (
{wrapped(PROCESSORS)}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class BiasOptions:
    """Options that change the logits of single tokens, before the constraint's mask; see docs/options.md."""

{fields(True)}


@dataclass(frozen=True, kw_only=True, repr=False)
class ShapeOptions:
    """Options that reshape the distribution of a token, after the constraint's mask; see docs/options.md."""

{fields(False)}


class ProcessorKeywords(TypedDict, total=False):
    """All of them as keywords."""

{keywords}
'''
    for command in (["check", "--select", "I", "--fix-only", "-q"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FIELDS), "-"]
        text = subprocess.run(run, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def entries(described: Any) -> dict[str, str]:
    """The first sentences of the arguments that a docstring lists, by name."""
    text = inspect.getdoc(described) or ""
    listed = text.partition("Args:\n")[2].partition("\nRaises:")[0]
    found = re.findall(r"^    ([\w, ]+): (.*(?:\n     .*)*)", listed, re.MULTILINE)
    return {name: sentence(told) for names, told in found for name in names.split(", ")}


def sentence(text: str) -> str:
    """The first sentence of a text, in the form of a page."""
    flat = re.sub(r"\s+", " ", text.replace("``", "`"))
    first = re.split(r"(?<=\.)(?<!et al\.)\s|; see ", flat)[0].rstrip(".") + "."
    return first[0].upper() + first[1:]


def text_of(kind: Any, field: str, option: Option) -> str:
    """The sentence of a processor's option."""
    if option.text:
        return sentence(option.text)
    is_main = next(iter(options_of(kind))) == field
    return sentence(inspect.getdoc(kind) or "") if is_main else entries(kind)[field]


def table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    """A table of a page."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *lines])


def generation_rows() -> Iterator[tuple[str, ...]]:
    """The options of `LLM.generate` that belong to no strategy."""
    told = entries(GenerateOptions)
    for one in fields(GenerateOptions):
        if one.name in GENERATION_OPTIONS:
            domain = GENERATION_DOMAINS.get(one.name)
            values = READ_ELSEWHERE[one.name] if domain is None else domain.text
            yield f"`{one.name}`", values, f"`{shown(one.default)}`", told[one.name]


def processor_rows() -> Iterator[tuple[str, ...]]:
    """The options of processors, in the order of the chain."""
    for name, (kind, field, one) in declared().items():
        default = f"`{shown(default_of(name))}`"
        libraries = [order.library for order in ORDERS.values() if kind.__name__ in order.names]
        where = ", ".join(libraries[1:]) or "-"
        yield f"`{name}`", one.domain.text, default, text_of(kind, field, one), f"`{kind.__name__}`", where


def strategy_rows() -> Iterator[tuple[str, ...]]:
    """The options of strategies that are no processors'."""
    rows: dict[str, list[Any]] = {}
    for kind in (Sample, Greedy, Mirostat, Beam, ContrastiveSearch, BestOf, SelfConsistency, Particles):
        told = entries(kind)
        for name, parameter in inspect.signature(kind).parameters.items():
            if name in declared() and name not in kind.domains:
                continue
            if name in rows:
                rows[name][4].append(kind.__name__)
            else:
                values = kind.domains[name].text if name in kind.domains else OTHERS[name]
                rows[name] = [f"`{name}`", values, f"`{shown(parameter.default)}`", told[name], [kind.__name__]]
    told = entries(speculative)
    for name, values in (
        ("draft_model", OTHERS["draft_model"]),
        ("num_draft_tokens", SPECULATIVE["num_draft_tokens"].text),
    ):
        rows[name] = [f"`{name}`", values, "`None`", told[name], []]
    for *row, names in rows.values():
        yield (*row, ", ".join(f"`{name}`" for name in names) or '`strategy="speculative"`')


def shown(value: object) -> str:
    """A default as code."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def page() -> str:
    """The text of docs/options.md: what is written by hand, then the tables."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"""{head}{MARK}

## Options of `generate`

Beside the strategy, for every call. `None` as a default means that the option is not used.

{table("| option | values | default | what it is |", generation_rows())}

## Options that change logits

Each stands for a processor; they are listed in the order in which they are applied. Those before `dynamic_temperature`
come before the constraint's mask and are options of `Greedy`, too. `Sample` has all of them, `Mirostat` the penalties,
the biases and `temperature`, and strategies over samples take those of `Sample`. The last column names the other
libraries whose `order=` has the processor.

{table("| option | values | default | what it does | processor | orders |", processor_rows())}

## Options of strategies

{table("| option | values | default | what it is | strategies |", strategy_rows())}
"""


if __name__ == "__main__":
    FIELDS.write_text(fields_file(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
