"""docs/options.md and `sampling.options.option_fields`, written from what the options declare of themselves.

    python -m tests.options_page

`test_options_page` fails where either is not what this would write.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

from decodekit.processor_names import PROCESSORS
from decodekit.sampling.options.declared import Option, options_of
from decodekit.sampling.pipeline import Stage

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "options.md"
FIELDS: Final = ROOT / "decodekit" / "sampling" / "options" / "option_fields.py"
OWN: Final = ("temperature", "top_k", "top_p", "min_p")
"""Options of processors that `Sample` has as positional fields of its own."""


def kinds() -> list[Any]:
    """The classes of the built-in processors."""
    rooms = {name: f"decodekit.sampling.processors.{file}" for name, file in PROCESSORS.items()}
    return [getattr(importlib.import_module(room), name) for name, room in rooms.items()]


def annotation(kind: Any, field: str, option: Option) -> str:
    """The type of an option as a keyword, with None for one that may be left out."""
    written = option.type or next(one.type for one in kind.__dataclass_fields__.values() if one.name == field)
    if option.idle is not None:
        return str(written)
    return str(written) if str(written).endswith("| None") else f"{written} | None"


def declared() -> dict[str, tuple[Any, str, Option]]:
    """Every option of a processor, once, with the first class that declares it and its field there."""
    found: dict[str, tuple[Any, str, Option]] = {}
    for kind in kinds():
        for field, option in options_of(kind).items():
            found.setdefault(option.name, (kind, field, option))
    return found


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
    names = textwrap.fill(", ".join(f'"{name}"' for name in exported) + ",", 116)
    text = f'''"""The options of logits processors as fields and keywords, written by `tests.options_page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from decodekit.processor_names import PROCESSORS
from decodekit.sampling.pipeline import LogitsProcessor
{imports}

__all__ = [
{textwrap.indent(names, "    ")}
]  # fmt: skip

KINDS: Final[tuple[type[LogitsProcessor], ...]] = tuple(globals()[name] for name in PROCESSORS)


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


if __name__ == "__main__":
    FIELDS.write_text(fields_file(), encoding="utf-8")
