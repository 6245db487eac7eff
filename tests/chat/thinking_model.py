"""A model that thinks by heart: what it writes behind a chat template is said beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import decodekit as dk
from decodekit.llm import LLM
from tests.chat.made_templates import MADE, tokenizer_of
from tests.reference.generation import ToyLM

OPEN, BY_OPTION, FREE = (MADE[f"thought {name}"].template for name in ("in the prompt", "by option", "of the model"))
WITHOUT = MADE["json in tags"].template.replace("think>", "thing>")
CHANNELS = MADE["channels"].template
_HEADERS = {CHANNELS: "<|start|>assistant"}


def llm_of(template: str, writes: str, is_special: bool = False) -> LLM:
    """A model that writes a text behind the header after "How much?", and what follows the end of its thought there.

    It is as sure of its tokens as of nothing else; of those that fit it prefers the longest.
    """
    tokenizer = tokenizer_of(template, is_special)
    vocabulary = dk.Vocabulary.from_tokenizer(tokenizer)
    names = {token: name for name, token in vocabulary.special_tokens.items()}
    data_of = enumerate(vocabulary.token_bytes)
    texts = [names.get(token, "").encode() if data is None else data for token, data in data_of]
    header = _HEADERS.get(template, "<|assistant|>\n").encode()
    [end] = vocabulary.eos_token_ids
    script = writes.encode()

    def law(prefix: Sequence[int]) -> Tensor:
        row = torch.zeros(vocabulary.size)
        read = b"".join(texts[token] for token in prefix).rpartition(b"How much?")[2]
        written, told = read.partition(header)[2], script
        if not script.lstrip().startswith(b"<think>"):
            written = written.removeprefix(b"<think>\n")
        if b"</think>" in written and not script.startswith(written):
            written, told = (one.rpartition(b"</think>")[2].lstrip() for one in (written, script))
        rest = told[len(written) :] if told.startswith(written) else b""
        fitting = [token for token, data in enumerate(texts) if data and token != end and rest.startswith(data)]
        row[max(fitting, key=lambda token: len(texts[token]), default=end)] = 40.0
        return row

    return LLM(ToyLM(law, vocabulary.size, frozenset({end})), tokenizer)
