"""Decisions: the probability of every choice, from one reading of the prompt and of a trie.

    prompt                       logits after it: the root
    rows of the same prompt      + path 1, + path 2, ...: logits at other nodes (`choice_trie`)

The first step reads the prompt. Where the root leaves several choices open, its row is copied, and each further step
reads a path in each row, for all prompts of a batch in one pass: first the nodes that the most probability leads to,
each with what probably follows it. Choices that differ in their first token take one pass, and most others two.

Nodes are read until less than `TOLERANCE` in all leads to others, and every choice was met: probabilities are off by no
more than that, and none of a choice that can come is 0.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.decoding.draws.row_draws import non_finite
from decodekit.decoding.loop.decoder import CacheRows, Decoder, Group
from decodekit.decoding.loop.host_pass import forward, right_padded
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.prefixes.shared_rows import copy_rows
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.updates import Result, Update, update_of, with_others
from decodekit.decoding.search.choice_trie import ChoiceTrie, TrieNode
from decodekit.decoding.search.text_scores import SCORE_LOGITS
from decodekit.errors import ContextLengthError, DeadEndError, ResourceLimitError
from decodekit.models.causal_lm import CausalLM, host_lengths
from decodekit.sampling import History
from decodekit.sampling.selectors import is_faulty

MAX_ROWS: Final = 8
"""Most rows of a prompt: each holds a copy of it where the cache has no pages."""

MAX_NODES: Final = 2048
"""Most nodes that are read for a prompt."""

TOLERANCE: Final = 1e-8

_LONGEST_PATH: Final = 64  # tokens beyond a node that are read with it

Floats: TypeAlias = npt.NDArray[np.float64]


class TriePath(NamedTuple):
    """Tokens to read in one row, and the nodes that the last of them lead to."""

    tokens: tuple[int, ...]
    nodes: list[TrieNode]


@dataclass(eq=False)
class DecisionGroup(Group):
    """The rows of one prompt.

    Args:
        trie: of its choices.
        log_masses: of the choices, as far as they are known, float64 [C].
        waiting: nodes to read, with the logarithms of the probabilities that lead to them.
        known: nodes that were read before it was known what leads to them: log-probabilities of their edges.
        num_nodes: that were read.
    """

    trie: ChoiceTrie
    log_masses: Floats
    waiting: dict[TrieNode, float] = field(default_factory=dict)
    known: dict[TrieNode, Floats] = field(default_factory=dict)
    num_nodes: int = 0

    @property
    def unread(self) -> float:
        """The probability of all that waits."""
        return math.fsum(map(math.exp, self.waiting.values()))

    @property
    def due(self) -> list[TrieNode]:
        """The nodes to read, the likeliest first: all that wait, or those that lead to choices not met yet."""
        due = sorted(self.waiting, key=lambda node: -self.waiting[node])
        if self.unread > TOLERANCE:
            return due
        is_met = self.log_masses > -np.inf
        return [] if is_met.all() else [node for node in due if not is_met[self.trie.members(node)].all()]

    def note(self, node: TrieNode, log_probs: Floats) -> None:
        """Take the log-probabilities of the edges of a node, float64 [E]."""
        self.known[node] = log_probs
        self.num_nodes += 1
        due = [(node, self.waiting.pop(node))] if node in self.waiting else []
        while due:
            node, mass = due.pop()
            if node not in self.known:
                self.waiting[node] = mass
                continue
            edges, masses = self.trie.edges(node), mass + self.known.pop(node)
            is_settled = edges.choices >= 0
            np.logaddexp.at(self.log_masses, edges.choices[is_settled], masses[is_settled])
            due += ((after, masses[place]) for place, after in edges.nodes.items() if masses[place] > -math.inf)

    def paths(self, num_rows: int) -> list[TriePath]:
        """The next paths to read: from each of the likeliest nodes along the longest tokens, then the branches."""
        due, taken = deque(self.due[:num_rows]), set[TrieNode]()
        paths = list[TriePath]()
        while due and len(paths) < num_rows:
            node: TrieNode | None = due.popleft()
            if node in taken or node in self.known:
                continue
            nodes: list[TrieNode] = []
            while node is not None and node not in self.known and len(nodes) < _LONGEST_PATH:
                nodes.append(node)
                after = [*self.trie.edges(node).nodes.values()]
                node = max(after, key=self.trie.reach, default=None)
                due += (one for one in after if one is not node)
            taken.update(nodes)
            paths.append(TriePath(nodes[-1].tokens, nodes))
        return paths


class _Reading(NamedTuple):
    """A path that is read in a row."""

    row: int
    group: DecisionGroup
    path: TriePath


class DecisionSearch(Decoder[DecisionGroup]):
    """One update for each prompt: the choices as texts, likeliest first, with their log-probabilities as scores.

    Args:
        model: reads.
        settings: with the pipeline that the masked log-probabilities of every token go through.
        trie_of: the choices of a request.
        num_rows: of a prompt.
    """

    def __init__(
        self, model: CausalLM, settings: Settings, trie_of: Callable[[TextRow], ChoiceTrie], num_rows: int = 1
    ) -> None:
        super().__init__(model)
        self.settings, self.num_rows = settings, num_rows
        self._trie_of = trie_of

    def begin(self, sequence: TextRow) -> DecisionGroup:
        """Nothing is known yet, unless there is but one choice."""
        trie = self._trie_of(sequence)
        if trie.root is None:
            group = DecisionGroup([sequence], trie, np.zeros(1))
            sequence.finish("complete")
            return group
        return DecisionGroup([sequence], trie, np.full(len(trie.texts), -np.inf), {trie.root: 0.0})

    def step(self, groups: Sequence[DecisionGroup], rows: CacheRows) -> None:
        """Read the ends of prompts, or the next paths of those that were read."""
        fresh = [group for group in groups if group.sequence.pending]
        if fresh:
            logits = forward([group.sequence for group in fresh], self.model, rows.cache)
            for group, own in zip(fresh, logits, strict=True):
                self._note(group, [*group.waiting], own[None])
        readings = list[_Reading]()
        for group in groups:
            if group not in fresh:
                readings += map(_Reading, group.rows, [group] * self.num_rows, self._paths(group))
        if readings:
            self._read_all(sorted(readings, key=lambda one: one.row), rows)  # neighbouring rows are read in place
        for group in groups:
            self._end(group)

    def _paths(self, group: DecisionGroup) -> list[TriePath]:
        """The next paths of a group; what does not fit is its error."""
        paths, num_before = group.paths(self.num_rows), len(group.sequence.request.prompt)
        longest, most = max(len(path.tokens) for path in paths), self.model.context_length
        if most is None or num_before + longest <= most:
            return paths
        cause = (
            f"the prompt has {num_before:,} tokens and a choice {longest:,} to read, the context of the model {most:,}"
        )
        hint = "a shorter prompt or shorter choices"
        self.fail(group, ContextLengthError(cause, at=f"prompt {group.sequence.index}", hint=hint))
        return []

    def _read_all(self, readings: list[_Reading], rows: CacheRows) -> None:
        lengths, copies = host_lengths(rows.cache), list[tuple[int, int]]()
        for row, group, _ in readings:
            num_before = len(group.sequence.request.prompt)
            if lengths[row] < num_before:  # it has no copy of the prompt yet
                copies.append((group.rows[0], row))
            lengths[row] = min(lengths[row], num_before)
        if any(length > lengths[row] for row, length in enumerate(host_lengths(rows.cache))):
            rows.cache.truncate(lengths)
        copy_rows(rows.cache, copies)
        for some in self._passes(readings):
            self._read(some, rows)

    def _passes(self, readings: list[_Reading]) -> Iterable[list[_Reading]]:
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

    def _note(self, group: DecisionGroup, nodes: Sequence[TrieNode], logits: Tensor) -> None:
        """Take the log-probabilities at some nodes, logits [N, V]; what fails is the error of the group."""
        every = [group.trie.edges(node).token_ids for node in nodes]
        words = np.stack([bitmask_from_ids(token_ids, self.settings.vocabulary.size) for token_ids in every])
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
        for node, token_ids, row in zip(nodes, every, processed, strict=True):
            values = row[torch.from_numpy(token_ids).to(row.device)].double().cpu().numpy()
            values = np.where(np.isnan(values), -np.inf, values)  # a truncation of a row without tokens
            total = np.logaddexp.reduce(values, initial=-np.inf)
            group.note(node, values - total if np.isfinite(total) else np.full_like(values, -np.inf))

    def _end(self, group: DecisionGroup) -> None:
        """End a group of which enough is known, or that has read too much."""
        if group.is_done or (group.num_nodes < MAX_NODES and group.due):
            return
        at, unread = f"prompt {group.sequence.index}", group.unread
        if unread > TOLERANCE:
            cause = (
                f"the choices have long beginnings in common, which can be spelled in many ways: of {MAX_NODES:,} that "
                f"were read, {unread:.2g} of the probability leads further"
            )
            hint = 'spelling="canonical", or what all choices begin with at the end of the prompt'
            self.fail(group, ResourceLimitError(cause, at=at, hint=hint))
            return
        total = np.logaddexp.reduce(group.log_masses)
        if not np.isfinite(total):
            cause, hint = "no choice can come: processors or the vocabulary forbid all", "other choices or processors"
            self.fail(group, DeadEndError(cause, at=at, hint=hint))
            return
        group.log_masses = group.log_masses - total
        group.sequence.finish("complete")

    def update(self, group: DecisionGroup) -> Update | None:
        """The choices, likeliest first; of equals the first."""
        sequence, scores = group.sequence, group.log_masses.tolist()
        if sequence.finish_reason != "complete":
            return update_of(sequence) if group.is_done else None
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
