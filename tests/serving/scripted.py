r"""A model that writes what it was told to, behind prompts that are known: those that transformers writes.

    script = Script(tokenizer)
    script.behind("<|user|>\nHow much?<|end|>\n<|assistant|>\n", "<call>\n{...}\n</call>")
    endpoint_of(script.llm)

Behind any other prompt it ends its text at once, and the prompt is in `script.missed`. So a conversation goes on only
if the endpoint has written each prompt token by token as the template does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import decodekit as dk
from decodekit.llm import LLM
from tests.reference.generation import ToyLM


class Script:
    """What a model writes, by prompt.

    Args:
        tokenizer: of transformers, with a chat template.

    Attributes:
        missed: texts that nothing was said of.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        vocabulary = dk.Vocabulary.from_tokenizer(tokenizer)
        names = {token: name for name, token in vocabulary.special_tokens.items()}
        data_of = enumerate(vocabulary.token_bytes)
        self._texts = [names.get(token, "").encode() if data is None else data for token, data in data_of]
        self._specials = [name.encode() for name in names.values()]
        self._end = min(vocabulary.eos_token_ids)
        self._starting: dict[bytes, list[int]] = {}  # tokens by their first byte, the longest first
        for token in sorted(range(len(self._texts)), key=lambda token: -len(self._texts[token])):
            if self._texts[token] and token not in vocabulary.eos_token_ids:
                self._starting.setdefault(self._texts[token][:1], []).append(token)
        self._scripts: dict[tuple[int, ...], bytes] = {}
        self.missed: list[str] = []
        self.llm = LLM(ToyLM(self._law, vocabulary.size, frozenset(vocabulary.eos_token_ids)), tokenizer)

    def behind(self, prompt: str, writes: str) -> None:
        """Let the model write a text behind a prompt."""
        self._scripts[tuple(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])] = writes.encode()

    def _law(self, prefix: Sequence[int]) -> Tensor:
        row = torch.zeros(len(self._texts))
        row[self._next(tuple(prefix))] = 40.0
        return row

    def _next(self, prefix: tuple[int, ...]) -> int:
        known = [prompt for prompt in self._scripts if prefix[: len(prompt)] == prompt]
        if not known:
            self.missed.append(self._tokenizer.decode(prefix))
            return self._end
        prompt = max(known, key=len)
        written, script = b"".join(self._texts[token] for token in prefix[len(prompt) :]), self._scripts[prompt]
        if not script.startswith(written):
            self.missed.append(self._tokenizer.decode(prefix))
        rest = script[len(written) :] if script.startswith(written) else b""
        specials = (rest.find(name, 1) for name in self._specials)  # no other token reaches into one
        rest = rest[: min((place for place in specials if place > 0), default=len(rest))]
        fitting = (token for token in self._starting.get(rest[:1], ()) if rest.startswith(self._texts[token]))
        return next(fitting, self._end)
