"""Tokens and their log-probabilities as answers have them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.vocabulary import Vocabulary

LEAST_LOGPROB: Final = -9999.0
"""What JSON has in place of minus infinity, as OpenAI writes it."""


class TokenWriter:
    """Writes the tokens of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._names = {token: name for name, token in vocabulary.special_tokens.items()}

    def written(self, token: int, as_id: bool) -> str:
        """The name of a token in an answer: its text, which another one may have, too; or its id, as vLLM writes it."""
        return f"token_id:{token}" if as_id else self.text(token)

    def text(self, token: int) -> str:
        """The text of a token; the name of a special one."""
        data = self._vocabulary.token_bytes[token]
        return self._names.get(token, f"<[{token}]>") if data is None else data.decode("utf-8", "replace")

    def of_chat(self, entries: Iterable[TokenLogprob], as_ids: bool = False) -> list[dict[str, Any]]:
        """`logprobs.content` of a chat. A token that only ends the text is not among them."""
        return [
            {
                **self._entry(one.token_id, one.logprob, as_ids),
                "top_logprobs": [self._entry(*other, as_ids) for other in one.alternatives],
            }
            for one in self._of_text(entries)
        ]

    def of_completion(self, entries: Iterable[TokenLogprob], offset: int, as_ids: bool = False) -> dict[str, Any]:
        """`logprobs` of a completion; `offset` is where the first token stands in the text, in characters.

        Of alternatives with equal texts the likeliest is told, unless tokens are written as ids.
        """
        listed = self._of_text(entries)
        ends = accumulate((len(self.text(one.token_id)) for one in listed), initial=offset)
        return {
            "tokens": [self.written(one.token_id, as_ids) for one in listed],
            "token_logprobs": [_finite(one.logprob) for one in listed],
            "top_logprobs": [
                {self.written(token, as_ids): _finite(logprob) for token, logprob in reversed(one.alternatives)}
                for one in listed
            ],
            "text_offset": [*ends][:-1],
        }

    def num_characters(self, entries: Iterable[TokenLogprob]) -> int:
        """The number of characters that the tokens of some entries have in a text."""
        return sum(len(self.text(one.token_id)) for one in self._of_text(entries))

    def _of_text(self, entries: Iterable[TokenLogprob]) -> list[TokenLogprob]:
        return [one for one in entries if one.token_id not in self._vocabulary.eos_token_ids]

    def _entry(self, token: int, logprob: float, as_id: bool) -> dict[str, Any]:
        data = self._vocabulary.token_bytes[token]
        return {
            "token": self.written(token, as_id),
            "logprob": _finite(logprob),
            "bytes": None if data is None else list(data),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def as_event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
