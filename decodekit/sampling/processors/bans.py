"""Biases of sequences, banned words, allowed tokens, and a least number of tokens. Logits are float32 [N, V]."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.errors import OptionError, UselessOptionError, out_of_domain
from decodekit.sampling.checks import COUNT, SEQUENCES, TOKENS, is_count, is_number, require, token_sequence
from decodekit.sampling.checks import token_ids as checked_ids
from decodekit.sampling.options.declared import option
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.processors.pointwise import BIASES, FINITE, check_ids, check_within, with_history


def _biased(logits: Tensor, history: History, biases: Iterable[tuple[Sequence[int], float]], name: str) -> Tensor:
    """Each bias added to the last token of its sequence where the prefix ends with the tokens before it.

    Of several sequences that end in the same token all count.
    """
    by_length: dict[int, list[tuple[Sequence[int], float]]] = {}
    for sequence, bias in biases:
        by_length.setdefault(len(sequence) - 1, []).append((sequence, bias))
    for length, group in sorted(by_length.items()):
        last = [sequence[-1] for sequence, _ in group]
        check_within(last, logits.shape[-1], name)
        starts = torch.tensor([sequence[:-1] for sequence, _ in group], device=logits.device)
        values = torch.tensor([bias for _, bias in group], dtype=logits.dtype, device=logits.device)
        is_here = (history.last(length).unsqueeze(1) == starts).all(dim=-1)  # [N, sequences]
        ids = torch.tensor(last, device=logits.device)
        logits = logits.index_add(-1, ids, torch.where(is_here, values, 0.0))
    return logits


_BIASES: Final = replace(BIASES, text="a mapping from sequences of token ids to biases")


@dataclass(frozen=True, repr=False, init=False)
class SequenceBias(LogitsProcessor):
    """Add a bias to the token that would complete a sequence of token ids. (transformers)"""

    biases: tuple[tuple[tuple[int, ...], float], ...] = field(
        metadata=option("sequence_bias", _BIASES, type="Mapping[tuple[int, ...], float]")
    )
    stage = Stage.BIAS
    needs_history = True

    def __init__(self, biases: Mapping[tuple[int, ...], float]) -> None:
        name = "sequence_bias"
        _BIASES.require(name, biases)
        made = []
        for sequence, bias in biases.items():
            ids = token_sequence(f"{name}, key", sequence)
            require(f"{name}[{ids}]", bias, is_number(bias) or bias == -math.inf, "a finite number or -inf")
            made.append((ids, float(bias)))
        object.__setattr__(self, "biases", tuple(sorted(made)))

    @property
    def can_forbid(self) -> bool:
        """Whether a bias, or the sum of several, is -inf."""
        return len(self.may_forbid(0)) > 0

    def may_forbid(self, vocab_size: int) -> Collection[int]:
        """The last tokens of the sequences whose bias is -inf."""
        ends: dict[int, float] = {}
        for sequence, bias in self.biases:
            ends[sequence[-1]] = ends.get(sequence[-1], 0.0) + min(bias, 0.0)  # those of several add up
        return [token for token, bias in ends.items() if bias < -FINITE]

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> SequenceBias:
        """Itself, if the vocabulary has its tokens."""
        check_ids("sequence_bias", (token for sequence, _ in self.biases for token in sequence), vocab_size)
        return self

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Likelier or less likely ends of the sequences."""
        return _biased(logits, with_history(self, history), self.biases, "sequence_bias")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.biases)!r})"


def _of_words(given: object) -> str | None:
    """The hint on how to ban words that are given as texts."""
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        return None
    words = [given] if isinstance(given, str) else [one for one in given if isinstance(one, str)]
    both = [text for word in words[:4] for text in dict.fromkeys((word, f" {word.lstrip()}"))]
    if both:
        return (
            f"bad_words=[tokenizer.encode(text, add_special_tokens=False) for text in {both!r}], one division of each"
        )
    is_flat = all(is_count(one, 0) for one in given)
    return f"bad_words={[[one] for one in given]!r:.80}" if is_flat and given else None


@dataclass(frozen=True, repr=False, init=False)
class BadWords(LogitsProcessor):
    """Remove the tokens that would complete one of these sequences of token ids: their bias is -inf.

    A sequence of token ids is one way to write a word; another tokenization of it is another sequence.
    """

    sequences: tuple[tuple[int, ...], ...] = field(
        metadata=option("bad_words", SEQUENCES, type="Sequence[Sequence[int]]")
    )
    stage = Stage.BIAS
    needs_history = True

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        require("bad_words", sequences, SEQUENCES.has(sequences), SEQUENCES.text, _of_words(sequences))
        given: list[Any] = [*sequences]  # they may come once
        for one in given:
            if isinstance(one, str):
                domain = "sequences of token ids, as a text has many divisions into tokens"
                raise out_of_domain("bad_words", domain, given, hint=_of_words(given))
        if given and all(is_count(one, 0) for one in given):
            require("bad_words", given, False, "sequences of token ids", _of_words(given))
        made = {token_sequence("bad_words", sequence) for sequence in given}
        require("bad_words", given, len(made) > 0, "at least one sequence of token ids")
        object.__setattr__(self, "sequences", tuple(sorted(made)))

    def may_forbid(self, vocab_size: int) -> Collection[int]:
        """The last tokens of the sequences."""
        return {sequence[-1] for sequence in self.sequences}

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> BadWords:
        """Itself, if the vocabulary has its tokens."""
        check_ids("bad_words", (token for sequence in self.sequences for token in sequence), vocab_size)
        return self

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Logits in which no token completes one of them."""
        biases = [(sequence, -math.inf) for sequence in self.sequences]
        return _biased(logits, with_history(self, history), biases, "bad_words")


@dataclass(frozen=True, repr=False, init=False)
class AllowedTokens(LogitsProcessor):
    """Remove every token but these. (vLLM's ``allowed_token_ids``)"""

    token_ids: tuple[int, ...] = field(metadata=option("allowed_tokens", TOKENS, type="Sequence[int]"))
    stage = Stage.BIAS

    def __init__(self, token_ids: Iterable[int]) -> None:
        object.__setattr__(self, "token_ids", checked_ids("allowed_tokens", token_ids))

    def may_forbid(self, vocab_size: int) -> Collection[int]:
        """Every other token."""
        return set(range(vocab_size)).difference(self.token_ids)

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> AllowedTokens:
        """Itself, if the vocabulary has its tokens."""
        check_ids("allowed_tokens", self.token_ids, vocab_size)
        return self

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The allowed tokens."""
        check_within(self.token_ids, logits.shape[-1], "allowed_tokens")
        removed = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
        removed[list(self.token_ids)] = False
        return logits.masked_fill(removed, -math.inf)


@dataclass(frozen=True, repr=False)
class MinTokens(LogitsProcessor):
    """Let no text end before it has this many tokens.

    A constraint that is complete ends it earlier. (transformers ``min_new_tokens``, vLLM ``min_tokens``; transformers'
    older ``min_length`` counts the prompt too.)

    Args:
        min_tokens: how many tokens the output must have, at least 1.
        end_ids: the tokens that end a text; None: those of the vocabulary (see `for_vocabulary`).
    """

    min_tokens: int = field(metadata=option("min_tokens", COUNT))
    end_ids: tuple[int, ...] | None = None
    stage = Stage.BIAS
    needs_history = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end_ids is not None:
            object.__setattr__(self, "end_ids", checked_ids("end_ids", self.end_ids))

    def for_vocabulary(self, vocab_size: int, end_ids: Collection[int]) -> MinTokens:
        """With the ends of the vocabulary, if none were given; an `OptionError` if it lacks one, or has none."""
        if self.end_ids is not None:
            check_ids("end_ids", self.end_ids, vocab_size)
            return self
        if not end_ids:
            raise UselessOptionError(
                f"min_tokens={self.min_tokens} has no effect: no token of the vocabulary ends a text", at="min_tokens"
            )
        return MinTokens(self.min_tokens, tuple(end_ids))

    def may_forbid(self, vocab_size: int) -> Collection[int] | None:
        """The ends."""
        return self.end_ids

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Without an end where it would come too early."""
        if self.end_ids is None:
            raise OptionError(f"{self!r} does not know which tokens end a text", at="end_ids", hint="for_vocabulary")
        history = with_history(self, history)
        check_within(self.end_ids, logits.shape[-1], "end_ids")
        is_end = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        is_end[list(self.end_ids)] = True
        is_short = (history.lengths - history.prompt_lengths < self.min_tokens).unsqueeze(1)
        return logits.masked_fill(is_short & is_end, -math.inf)
