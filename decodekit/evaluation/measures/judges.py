"""Judgements of other models: perplexity under a judge, and MAUVE where its package is installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

from decodekit.chat.conversation import has_chat_template
from decodekit.decoding.request.prompt import Messages, Prompt, encode, encode_plain, is_messages
from decodekit.decoding.search.text_scores import token_logprobs
from decodekit.errors import OptionError
from decodekit.llm import LLM


class JudgeModel:
    """A model that says how likely texts are after their prompts; every pair is read once, however often it comes."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._known: dict[tuple[str, str], tuple[float, int]] = {}

    def surprise(self, pairs: Sequence[tuple[Prompt, str]]) -> list[tuple[float, int]]:
        """For each prompt and text, the negative log-probability of the text's tokens in nats, and their number.

        The text is divided into tokens apart from the prompt, so that only tokens of its own count; neither an end of
        text nor a special token is added to it. A text without tokens, or that does not fit into the model's context
        with its prompt, is (0.0, 0). Messages are plain text for a judge without a chat template.
        """
        keys = [(_key(prompt), text) for prompt, text in pairs]
        new = {key: prompt for key, (prompt, _) in zip(keys, pairs, strict=True) if key not in self._known}
        readable: list[tuple[tuple[str, str], list[int], int]] = []
        tokenizer, limit = self.llm.tokenizer, self.llm.model.context_length
        has_template = has_chat_template(tokenizer)
        for key, prompt in new.items():
            read = _plain(prompt) if is_messages(prompt) and not has_template else prompt
            before = encode(tokenizer, read, "prompt for the judge", self.llm.vocabulary.size)
            own = encode_plain(tokenizer, key[1])
            self._known[key] = (0.0, 0)
            if own and before and (limit is None or len(before) + len(own) <= limit):
                readable.append((key, [*before, *own], len(own)))
        scores = token_logprobs(self.llm.model, [tokens for _, tokens, _ in readable])
        for (key, _, num_own), logprobs in zip(readable, scores, strict=True):
            self._known[key] = (-math.fsum(logprobs[-num_own:]), num_own)
        return [self._known[key] for key in keys]

    def perplexity(self, pairs: Sequence[tuple[Prompt, str]]) -> float | None:
        """exp of the mean negative log-probability of all tokens of all texts; None without tokens.

        Tokens of all texts count alike, as for a corpus (Jelinek et al. 1977), so long texts count for more.
        """
        found = self.surprise(pairs)
        num_tokens = sum(count for _, count in found)
        if num_tokens == 0:
            return None
        return math.exp(math.fsum(nats for nats, _ in found) / num_tokens)


def _plain(messages: Messages) -> str:
    return "\n".join(str(message.get("content", "")) for message in messages)


def _key(prompt: Prompt) -> str:
    """A text for each prompt, the same for equal ones."""
    return prompt if isinstance(prompt, str) else _plain(prompt) if is_messages(prompt) else f"\0{prompt}"


def has_mauve() -> bool:
    """Whether the package `mauve` is installed."""
    return importlib.util.find_spec("mauve") is not None


def mauve(texts: Sequence[str], references: Sequence[str]) -> float:
    """MAUVE of texts against human texts, from 0 to 1 (Pillutla et al. 2021).

    The package reads the texts with its own model (GPT-2 large unless it is set otherwise), which it may download.

    Raises:
        OptionError: the package is not installed, or fails.
    """
    if not has_mauve():
        raise OptionError("MAUVE needs the package mauve, which is not installed", hint="pip install mauve-text")
    import mauve as package  # type: ignore[import-not-found]

    try:
        result: Any = package.compute_mauve(p_text=list(references), q_text=list(texts), verbose=False)
    except Exception as error:  # it loads a model, clusters, and raises what these raise
        raise OptionError(f"MAUVE could not be computed: {type(error).__name__}: {error}") from error
    return float(result.mauve)
