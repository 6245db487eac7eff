"""Decisions: the probability of every choice, from one reading of the prompt and of a trie.

    prompt                       logits after it: the root
    rows of the same prompt      + path 1, + path 2, ...: logits at every other node (`choice_trie`)

The first step reads the prompt. Where the root leaves several choices open, its row is copied, and each further step
reads as many paths as there are rows, for all prompts of a batch in one pass. So an answer whose choices differ in
their first token takes one pass, and any other takes two, or one more for each `MAX_ROWS` paths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.errors import ContextLengthError, DeadEndError, DecodekitError
from decodekit.generation.choice_trie import ChoiceTrie, Floats, TriePath
from decodekit.generation.drawing import non_finite
from decodekit.generation.padding import right_padded
from decodekit.generation.policy import CacheRows, Group, Policy
from decodekit.generation.results import Result, Update, update_of, with_others
from decodekit.generation.scoring import SCORE_LOGITS
from decodekit.generation.sequence import Sequence as Text
from decodekit.generation.settings import Settings
from decodekit.generation.sharing import copy_rows
from decodekit.generation.step import forward
from decodekit.models.causal_lm import CausalLM, host_lengths
from decodekit.sampling import History
from decodekit.sampling.selectors import is_faulty

MAX_ROWS: Final = 8
"""Most rows of a prompt: each holds a copy of it where the cache has no pages."""


@dataclass(eq=False)
class DecisionGroup(Group):
    """The rows of one prompt.

    Args:
        trie: of its choices.
        log_probs: by node, of its tokens under the mask, as far as they are known.
        num_read: paths that were read.
        log_masses: of the choices, when all is known, float64 [C].
    """

    trie: ChoiceTrie
    log_probs: dict[int, Floats] = field(default_factory=dict)
    num_read: int = 0
    log_masses: Floats | None = None


class _Reading(NamedTuple):
    """A path that is read in a row."""

    row: int
    group: DecisionGroup
    path: TriePath


class DecisionSearch(Policy[DecisionGroup]):
    """One update for each prompt: the choices as texts, likeliest first, with their log-probabilities as scores.

    Args:
        model: reads.
        settings: with the pipeline that the masked log-probabilities of every token go through.
        trie_of: the choices of a request.
        num_rows: of a prompt.
    """

    def __init__(
        self, model: CausalLM, settings: Settings, trie_of: Callable[[Text], ChoiceTrie], num_rows: int = 1
    ) -> None:
        super().__init__(model)
        self.settings, self.num_rows = settings, num_rows
        self._trie_of = trie_of

    def begin(self, sequence: Text) -> DecisionGroup:
        """Nothing is known yet, unless there is but one choice."""
        group = DecisionGroup([sequence], self._trie_of(sequence))
        most = self.model.context_length
        if most is not None and len(sequence.request.prompt) + group.trie.depth > most:
            cause = (
                f"the prompt has {len(sequence.request.prompt):,} tokens and the choices up to {group.trie.depth:,} to "
                f"read, the context of the model {most:,}"
            )
            raise ContextLengthError(cause, at=f"prompt {sequence.index}", hint="a shorter prompt or shorter choices")
        self._end(group)
        return group

    def step(self, groups: Sequence[DecisionGroup], rows: CacheRows) -> None:
        """Read the ends of prompts, or the next paths of those that were read."""
        fresh = [group for group in groups if group.sequence.pending]
        if fresh:
            logits = forward([group.sequence for group in fresh], self.model, rows.cache)
            for group, own in zip(fresh, logits, strict=True):
                self._note(group, [0], own[None])
        self._read_paths([group for group in groups if group not in fresh], rows)
        for group in groups:
            self._end(group)

    def _read_paths(self, groups: Sequence[DecisionGroup], rows: CacheRows) -> None:
        readings, copies = list[_Reading](), list[tuple[int, int]]()
        for group in groups:
            paths = group.trie.paths[group.num_read : group.num_read + self.num_rows]
            if not group.num_read:
                copies += ((group.rows[0], row) for row in group.rows[1 : len(paths)])
            readings += (_Reading(row, group, path) for row, path in zip(group.rows, paths, strict=False))
        if not readings:
            return
        copy_rows(rows.cache, copies)
        for some in self._passes(sorted(readings, key=lambda one: one.row)):  # neighbouring rows are read in place
            self._read(some, rows)
        lengths = host_lengths(rows.cache)
        for row, group, _ in readings:
            group.num_read += 1
            lengths[row] = len(group.sequence.request.prompt)
        if any(group.num_read < len(group.trie.paths) for group in groups):
            rows.cache.truncate(lengths)

    def _passes(self, readings: list[_Reading]) -> list[list[_Reading]]:
        """The rows of each forward pass, which has a bounded number of logits."""
        most = max(1, SCORE_LOGITS // self.model.vocab_size)
        passes, num_nodes = [readings[:1]], len(readings[0].path.nodes)
        for reading in readings[1:]:
            num_nodes += len(reading.path.nodes)
            if num_nodes > most:
                passes.append([])
                num_nodes = len(reading.path.nodes)
            passes[-1].append(reading)
        return passes

    def _read(self, readings: list[_Reading], rows: CacheRows) -> None:
        tokens = [reading.path.tokens for reading in readings]
        counts = [len(reading.path.nodes) for reading in readings]
        logits = self.model.forward(
            right_padded(tokens), [*map(len, tokens)], rows.cache, [reading.row for reading in readings], logits=counts
        )
        for group in {id(reading.group): reading.group for reading in readings}.values():
            group.sequence.num_forwards += 1
        for reading, own in zip(readings, torch.split(logits, counts), strict=True):
            self._note(reading.group, reading.path.nodes, own)

    def _note(self, group: DecisionGroup, numbers: Sequence[int], logits: Tensor) -> None:
        """Take the log-probabilities at some nodes, logits [N, V]; what fails is the error of the group."""
        nodes = [group.trie.nodes[number] for number in numbers]
        words = np.stack([bitmask_from_ids(node.token_ids, self.settings.vocabulary.size) for node in nodes])
        mask, history = torch.from_numpy(words).to(logits.device), None
        if self.settings.pipeline.needs_history:
            prompts = [group.sequence.request.prompt] * len(nodes)
            history = History.from_lists(prompts, [node.tokens for node in nodes], logits.device)
        own = torch.log_softmax(logits.float(), dim=-1)
        processed = self.settings.pipeline(own, history, mask)
        is_faulty_row = bool(is_faulty(processed).any())
        if not own.amax().isfinite() or (
            is_faulty_row and self.settings.pipeline.first_fault(own, history, mask) is not None
        ):
            at = f"prompt {group.sequence.index}"
            self.fail(group, non_finite(self.settings, at, logits, history, mask))
            return
        for number, node, row in zip(numbers, nodes, processed, strict=True):
            values = row[torch.from_numpy(node.token_ids).to(row.device)].double().cpu().numpy()
            values = np.where(np.isnan(values), -np.inf, values)  # a truncation of a row without tokens
            total = np.logaddexp.reduce(values, initial=-np.inf)
            group.log_probs[number] = values - total if np.isfinite(total) else np.full_like(values, -np.inf)

    def _end(self, group: DecisionGroup) -> None:
        """End a group of which all is known."""
        if group.is_done or len(group.log_probs) < len(group.trie.nodes):
            return
        masses = group.trie.log_masses([group.log_probs[number] for number in range(len(group.trie.nodes))])
        total = np.logaddexp.reduce(masses)
        if not np.isfinite(total):
            cause, hint = "no choice can come: processors or the vocabulary forbid all", "other choices or processors"
            self.fail(group, DeadEndError(cause, at=f"prompt {group.sequence.index}", hint=hint))
            return
        group.log_masses = masses - total
        group.sequence.finish("complete")

    def fail(self, group: DecisionGroup, error: DecodekitError) -> None:
        """End a group with an error."""
        if group.sequence.finish_reason is None:
            group.sequence.finish("error", error)
        group.error = error

    def update(self, group: DecisionGroup) -> Update | None:
        """The choices, likeliest first; of equals the first."""
        if not group.is_done or group.log_masses is None:
            return update_of(group.sequence) if group.is_done else None
        sequence, scores = group.sequence, group.log_masses.tolist()
        stats = sequence.stats(time.perf_counter())
        order = sorted(range(len(scores)), key=lambda number: -scores[number])
        return with_others(
            Update(
                sequence.index,
                group.trie.texts[number],
                (),
                Result((), "complete", None, (), stats, score=scores[number]),
                sequence.request.sequence,
            )
            for number in order
        )
