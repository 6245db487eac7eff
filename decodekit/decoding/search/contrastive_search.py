"""Contrastive search: of the k likeliest tokens the one that is likely and unlike everything before it.

Su et al. 2022, "A Contrastive Framework for Neural Text Generation", equation 5: with the hidden states h of the last
layer, the next token is the argmax over the k likeliest v of

    (1 - alpha) p(v | x) - alpha max_j cos(h_v, h_j),

j running over all tokens of prompt and text, and h_v the state that the model has after reading v. So each token costs
a forward pass over k continuations. transformers 4 had it as `penalty_alpha`.

Every row of a prompt reads what the text has gained, and then a candidate of its own, which is cut off again. With
k = 2, after the prompt ``ab``:

    row 0  a b [c]    the candidates c and d are read, compared, and cut off again; d is taken
    row 1  a b [d]
    row 0  a b d [e]  d is read by both rows together with the next candidates
    row 1  a b d [f]

So no keys or values are copied but those of the prompt, once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from decodekit.decoding.draws.row_draws import Outputs, record
from decodekit.decoding.lazy_masks.positions import Position
from decodekit.decoding.lazy_masks.row_masks import StepMasks
from decodekit.decoding.loop.append import append_forced, append_token
from decodekit.decoding.loop.decoder import CacheRows, Decoder, Group
from decodekit.decoding.loop.host_pass import right_padded
from decodekit.decoding.loop.step import begin_text
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.prefixes.shared_rows import copy_rows
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.trace_recorder import trace
from decodekit.errors import DeadEndError, DecodekitError
from decodekit.models.layers import HiddenStates

MAX_LAG: Final = 8
"""A row that has more than so many tokens to catch up with becomes a copy of the first."""


class TopCandidates(NamedTuple):
    """The candidates for one token."""

    tokens: list[int]
    """Likeliest first."""
    probabilities: Tensor
    """Of each, float32 [c], under the processed distribution."""


def likeliest(scores: Tensor, first: int, num_candidates: int) -> TopCandidates:
    """The tokens of the largest probability by processed logits [V], none with 0; `first` before its equals."""
    probabilities = torch.softmax(scores, dim=-1)
    values, tokens = probabilities.topk(min(num_candidates, probabilities.shape[-1]))
    pairs = [(token, value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True) if value > 0]
    others = [pair for pair in pairs if pair[0] != first][: num_candidates - 1]
    chosen = [(first, float(probabilities[first])), *others]
    return TopCandidates(
        [token for token, _ in chosen], torch.tensor([value for _, value in chosen], device=scores.device)
    )


def most_contrastive(choices: TopCandidates, states: Tensor, context: Tensor, penalty_alpha: float) -> int:
    """The index of the most contrastive of c candidates; of equals the likeliest.

    The states are unit vectors, [c, D] after each candidate and [T, D] of prompt and text.
    """
    similarity = (states @ context.T).amax(dim=-1)  # [c]
    scores = ((1 - penalty_alpha) * choices.probabilities - penalty_alpha * similarity).tolist()
    return scores.index(max(scores))


@dataclass(eq=False)
class ContrastiveGroup(Group):
    """One prompt; `pending` of its sequence is what the first row has not read.

    Args:
        num_read: how many tokens of prompt and text each row has read.
        context: unit vectors float32 [T, D], the hidden states of the tokens that the first row has read.
        logits: float32 [1, V] of what follows the text; None where its last tokens are yet to be read.
        mask: of the constraint at that position, int32 [1, W]; None in free text.
        choices: the candidates that are being read; None where there is nothing to compare.
    """

    num_read: list[int] = field(default_factory=list)
    context: Tensor | None = None
    logits: Tensor | None = None
    mask: Tensor | None = None
    choices: TopCandidates | None = None

    @property
    def text(self) -> list[int]:
        """Prompt and text."""
        return [*self.sequence.request.prompt, *self.sequence.token_ids]

    @property
    def parts(self) -> list[list[int]]:
        """The tokens that each of its first rows reads."""
        if self.choices is None:
            return [self.sequence.pending]
        text = self.text
        return [[*text[read:], token] for read, token in zip(self.num_read, self.choices.tokens, strict=False)]


class ContrastiveRows(Decoder[ContrastiveGroup]):
    """A row for each candidate of a prompt."""

    model: HiddenStates
    can_begin_late = False  # the hidden states of all tokens are needed

    def __init__(
        self, model: HiddenStates, settings: Settings, num_candidates: int, penalty_alpha: float, option: str
    ) -> None:
        super().__init__(model)
        self.settings = settings
        self.num_rows = num_candidates
        self.option = option
        self._penalty_alpha = penalty_alpha
        self._masks = StepMasks(settings.vocabulary.num_mask_words, can_redraw=False, can_go_back=False)

    def begin(self, sequence: TextRow) -> ContrastiveGroup:
        """The text, with what is forced at its beginning."""
        begin_text(sequence, self.settings)
        return ContrastiveGroup([sequence], [0] * self.num_rows)

    def again(self, group: ContrastiveGroup) -> ContrastiveGroup:
        """The text goes on where it was."""
        group.sequence.read_again()
        return ContrastiveGroup(group.sequences, [0] * self.num_rows)

    def read(self, groups: Sequence[ContrastiveGroup], num_tokens: int, rows: CacheRows) -> None:
        """Read the next tokens of prompts, and keep their hidden states."""
        self._read([(group, [group.sequence.pending[:num_tokens]]) for group in groups], rows)

    def step(self, groups: Sequence[ContrastiveGroup], rows: CacheRows) -> None:
        """Bring every text on by a token; or let the model read what was forced, where that has to come first."""
        self._choose([group for group in groups if group.logits is not None], rows)
        going = [group for group in groups if not group.is_done]
        self._catch_up([group for group in going if group.choices is not None], rows)
        if going:
            self._read([(group, group.parts) for group in going], rows)
        for group in groups:
            if group.sequence.first_token_at is None and group.sequence.token_ids:
                group.sequence.first_token_at = time.perf_counter()

    def _choose(self, groups: list[ContrastiveGroup], rows: CacheRows) -> None:
        """The candidates of every text; a token without a rival is taken, where there is none the text ends."""
        if not groups:
            return
        positions = [Position(group.sequence) for group in groups]
        logits = torch.cat([group.logits for group in groups if group.logits is not None])  # [N, V]
        bitmask = self._masks.fill([group.sequence for group in groups], [[] for _ in groups])
        outputs = Outputs(positions, logits, bitmask, self.settings, rows.table)
        first = outputs.choose()  # as greedy decoding has it
        alive = [i for i, token in enumerate(first) if isinstance(token, int)]
        processed: dict[int, Tensor] = {}
        if alive and self.num_rows > 1:
            processed = dict(zip(alive, outputs.at(alive).scores(), strict=True))
        for i, (group, token) in enumerate(zip(groups, first, strict=True)):
            if isinstance(token, DecodekitError):
                group.sequence.finish("dead_end" if isinstance(token, DeadEndError) else "error", token)
                continue
            group.mask = None if bitmask is None else bitmask[i : i + 1].clone()
            choices = likeliest(processed[i], token, self.num_rows) if processed else None
            if choices is None or len(choices.tokens) == 1:
                self._take(group, token, rows)
            else:
                group.choices = choices

    def _take(self, group: ContrastiveGroup, token: int, rows: CacheRows) -> None:
        """Let a token join the text, and whatever is forced after it."""
        sequence, settings = group.sequence, self.settings
        assert group.logits is not None
        num_before = len(sequence.token_ids)
        goes_on = append_token(sequence, token, settings, rows.table)
        taken = [(sequence, sequence.token_ids[num_before:], 0)]
        record(taken, group.logits, group.mask, settings)
        trace(taken, group.logits, group.mask, settings)
        if goes_on:
            append_forced(sequence, settings, rows.table)
        group.choices = group.logits = None

    def _catch_up(self, groups: list[ContrastiveGroup], rows: CacheRows) -> None:
        """Copy what the first row has read to rows that are far behind it."""
        pairs = []
        for group in groups:
            assert group.choices is not None
            for number in range(1, len(group.choices.tokens)):
                if group.num_read[0] - group.num_read[number] > MAX_LAG:
                    pairs.append((group.rows[0], group.rows[number]))
                    group.num_read[number] = group.num_read[0]
        copy_rows(rows.cache, pairs)

    def _read(self, readings: Sequence[tuple[ContrastiveGroup, list[list[int]]]], rows: CacheRows) -> None:
        """Let rows read tokens, the last of each a candidate where there are any: one is taken, and all are cut off."""
        reading = sorted(
            ((group.rows[number], part) for group, parts in readings for number, part in enumerate(parts)),
            key=lambda one: one[0],  # neighbouring rows are read in place
        )
        indices, tokens = [row for row, _ in reading], [part for _, part in reading]
        every = indices == list(range(rows.cache.num_rows))
        counts = [len(part) for part in tokens]
        logits, [hidden] = self.model.forward_hidden(
            right_padded(tokens), counts, rows.cache, None if every else indices
        )
        index_of = {row: index for index, row in enumerate(indices)}
        compared = [group for group, _ in readings if group.choices is not None]
        for group, parts in readings:
            read = [index_of[row] for row in group.rows[: len(parts)]]
            self._learn(group, parts, hidden[read[0]])
            if group.choices is None:
                group.logits = None if group.sequence.pending else logits[read[0]][None]
            else:
                last = hidden[read, [counts[index] - 1 for index in read]]
                self._compare(group, logits[read], last, rows)
        if compared:
            lengths: list[int] = rows.cache.lengths.tolist()
            for group in compared:
                for row, num_read in zip(group.rows, group.num_read, strict=True):
                    lengths[row] = num_read
            rows.cache.truncate(lengths)

    def _learn(self, group: ContrastiveGroup, parts: Sequence[Sequence[int]], hidden: Tensor) -> None:
        """Note what was read of the text, candidates aside; the first row has the hidden states [T, D]."""
        num_candidates = 0 if group.choices is None else 1  # of each row
        num_new = len(parts[0]) - num_candidates
        states = normalize(hidden[:num_new].float(), dim=-1)
        group.context = states if group.context is None else torch.cat([group.context, states])
        group.sequence.pending = group.sequence.pending[num_new:]
        group.sequence.num_forwards += 1
        for number, part in enumerate(parts):
            group.num_read[number] += len(part) - num_candidates

    def _compare(self, group: ContrastiveGroup, logits: Tensor, hidden: Tensor, rows: CacheRows) -> None:
        """Take one of the candidates, after each of which there are logits [c, V] and a hidden state [c, D]."""
        assert group.choices is not None and group.context is not None
        states = normalize(hidden.float(), dim=-1)
        best = most_contrastive(group.choices, states, group.context, self._penalty_alpha)
        self._take(group, group.choices.tokens[best], rows)
        if len(group.sequence.pending) == 1:  # nothing was forced: what follows is known
            group.logits = logits[best : best + 1]
