"""Tokens and their log-probabilities as answers have them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from decodekit.generation.sequence import TokenLogprob
from decodekit.vocabulary import Vocabulary

LEAST_LOGPROB: Final = -9999.0
"""What JSON has in place of minus infinity, as OpenAI writes it."""


class TokenWriter:
    """Writes the tokens of a vocabulary.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._names = {token: name for name, token in vocabulary.special_tokens.items()}

    def text(self, token: int) -> str:
        """The text of a token; the name of a special one."""
        data = self._vocabulary.token_bytes[token]
        return self._names.get(token, f"<[{token}]>") if data is None else data.decode("utf-8", "replace")

    def of_chat(self, entries: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        """`logprobs.content` of a chat. A token that only ends the text is not among them."""
        return [
            {
                **self._entry(one.token_id, one.logprob),
                "top_logprobs": [self._entry(*other) for other in one.alternatives],
            }
            for one in self._of_text(entries)
        ]

    def of_completion(self, entries: Iterable[TokenLogprob], offset: int) -> dict[str, Any]:
        """`logprobs` of a completion; `offset` is where the first token stands in the text, in characters."""
        tokens, offsets = [], []
        listed = self._of_text(entries)
        for one in listed:
            tokens.append(self.text(one.token_id))
            offsets.append(offset)
            offset += len(tokens[-1])
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(one.logprob) for one in listed],
            "top_logprobs": [
                {self.text(token): _finite(logprob) for token, logprob in reversed(one.alternatives)} for one in listed
            ],
            "text_offset": offsets,
        }

    def _of_text(self, entries: Iterable[TokenLogprob]) -> list[TokenLogprob]:
        return [one for one in entries if one.token_id not in self._vocabulary.eos_token_ids]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._vocabulary.token_bytes[token]
        return {
            "token": self.text(token),
            "logprob": _finite(logprob),
            "bytes": None if data is None else list(data),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def as_event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
