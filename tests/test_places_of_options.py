"""How many files of the package name an option of a processor: its own, and those that have a reason of their own.

A processor declares its option; `sampling.options.option_fields` is written from that. Another file that names it is a
place to keep in step, so the numbers only fall.
"""

from __future__ import annotations

import re

from tests import options_page
from tests.package_sources import PACKAGE, SOURCES

TABLES = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.toml"))}
WORDS = {file: set(re.findall(r"\w+", text)) for file, text in sorted({**SOURCES, **TABLES}.items())}
DECLARED = 2
"""The file of the processor, and the fields that are written from it."""
MORE: dict[str, int] = {
    # also fields of requests, options of commands, kinds of kernels; or words of the language
    "temperature": 65,
    "top_p": 23,
    "top_k": 20,
    "min_p": 18,
    "repetition_penalty": 11,
    "watermark": 10,
    "logit_bias": 7,
    "presence_penalty": 6,
    "frequency_penalty": 6,
    "min_tokens": 6,
    # also of transformers' generate, or what another library calls so
    "sequence_bias": 5,
    "no_repeat_ngram_size": 5,
    "typical_p": 5,
    "bad_words": 4,
    "allowed_tokens": 4,
    "dynamic_temperature": 4,
    "epsilon_cutoff": 4,
    "eta_cutoff": 4,
    "top_h": 4,
    "penalty_window": 3,
    "dry_breakers": 3,
    "dry_window": 3,
}
"""Options that more files name: other interfaces that have them, texts about them, words of the language."""


def places(name: str) -> list[str]:
    """The files of the package that have the name as a word."""
    return [file for file, words in WORDS.items() if name in words]


def test_an_option_is_named_in_few_files() -> None:
    counts = {name: len(places(name)) for name in options_page.declared()}
    crowded = {name: count for name, count in counts.items() if count > MORE.get(name, DECLARED)}
    assert crowded == {}, {name: places(name) for name in crowded}
    lower = {name: counts[name] for name, most in MORE.items() if counts.get(name, 0) < most}
    assert lower == {}, "fewer files: lower the numbers"


def test_a_processor_without_other_interfaces_is_named_by_its_file_alone() -> None:
    """And by the list: p-less sampling was added so."""
    fields = "sampling/options/option_fields.py"
    assert places("p_less") == [fields, "sampling/processors/truncations.py"]
    assert places("PLess") == ["processor_names.py", fields, "sampling/processors/truncations.py"]
    assert len(places("top_p")) > DECLARED
