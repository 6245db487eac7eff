"""Real chat templates, where they are at hand: in ``templates`` of the folder that `DECODEKIT_CORPORA` names.

`tests/chat/fetch_corpus.py` brings them to a machine.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("DECODEKIT_CORPORA", "../shared")) / "templates"
IS_HERE = (FOLDER / "sources.json").exists()
needs_corpus = pytest.mark.skipif(
    not IS_HERE, reason=f"no chat templates at {FOLDER}; python -m tests.chat.fetch_corpus, or set DECODEKIT_CORPORA"
)

# Names of templates, without their source and in small letters, and the tokenizer that comes closest to the model's
# own. The first pattern that fits counts.
_TOKENIZERS = (
    ("*llama-3*", "llama3_1"),
    ("*llama3*", "llama3_1"),
    ("*llama-guard-3*", "llama3_1"),
    ("*distill-llama*", "llama3_1"),
    ("*functionary-medium-v3*", "llama3_1"),
    ("*firefunction-v2", "llama3_1"),
    ("*deepseek*", "deepseek_v3"),
    ("*gemma*", "gemma3"),
    ("*gpt-oss*", "gptoss"),
    ("*gptoss*", "gptoss"),
    ("*llama-2*", "llama2"),
    ("*llama2*", "llama2"),
    ("*vicuna*", "llama2"),
    ("*zephyr*", "llama2"),
    ("*mi[sx]tral*", "tekken"),
    ("*ministral*", "tekken"),
    ("*devstral*", "tekken"),
    ("*", "qwen3"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A template as its publisher ships it.

    Attributes:
        name: its source and its name there, such as ``ik/Qwen3-Coder``.
        template: its text.
        tokenizer_name: the tokenizer to load it over. Marks of the template may be several tokens of it.
    """

    name: str
    template: str
    tokenizer_name: str

    def tokenizer(self) -> Any:
        """That tokenizer, with this template; the caller's own to change, apart from its vocabulary."""
        tokenizer = copy.copy(_load_tokenizer(self.tokenizer_name))
        tokenizer.chat_template = self.template
        return tokenizer


@cache
def templates() -> tuple[Entry, ...]:
    """All of them, by name; none where there is no corpus."""
    entries = []
    for file in sorted(FOLDER.glob("*/*.jinja")):
        text = file.read_bytes().decode("utf-8")
        entries.append(Entry(f"{file.parent.name}/{file.stem}", text, _tokenizer_name(file.stem)))
    return tuple(entries)


def template(name: str) -> Entry:
    return next(entry for entry in templates() if entry.name == name)


def _tokenizer_name(stem: str) -> str:
    return next(tokenizer for pattern, tokenizer in _TOKENIZERS if fnmatch(stem.lower(), pattern))


@cache
def _load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "tokenizers" / name)
    if tokenizer.bos_token is None:  # many templates of models that have one read it
        tokenizer.bos_token = tokenizer.pad_token
    return tokenizer
