"""Beam search: of all continuations of a few hypotheses, those of the largest log-probability live on.

The semantics are those of transformers 5 (`GenerationMixin._beam_search`), so that texts and scores are the same.
With b beams and e tokens that end a text, a step looks at the K = max(2, 1 + e) b best of all b V continuations; e b of
them may end, so at least b do not. The b best that go on are the next beams; what ends is kept only where it is among
the b best of the K, under the score

    s(y) = log p(y) / |y|^length_penalty,

with |y| counting the end-of-sequence token. `Beams` is one such search. Diverse beam search (Vijayakumar et al. 2016,
"Diverse Beam Search", algorithm 1) runs several side by side, each avoiding what those before it took at this step.
Beam sampling draws the K without replacement, as the K largest of log p + Gumbel noise (Kool et al. 2019).

Two beams, tokens a, b and the end $, K = 4. After the prompt, log p is a -0.5, b -1.2, $ -2.3:

    step 1  candidates a -0.5, b -1.2, $ -2.3     a and b go on; $ ended, but is not among the best 2
    step 2  aa -0.9, a$ -1.4, ab -2.6, ba -2.9    a$ ended with the score -1.4 / 2 = -0.7; aa and ab go on
            `a` is continued twice: aa stays in its row, and the row of b becomes a copy of it for ab
    step 3  the best of aa, -0.9 / 2 at its present length, is better than -0.7: the search goes on

With ``on_length="close"`` a hypothesis has only continuations after which its constraint can be satisfied in time, as
a single text has (see `budget`), so every text that is found is whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from decodekit.constraints.engine.bitmask import forbid
from decodekit.decoding.draws.row_draws import non_finite, record
from decodekit.decoding.lazy_masks.positions import Position
from decodekit.decoding.loop.append import append_token
from decodekit.decoding.loop.decoder import CacheRows, Decoder, Group
from decodekit.decoding.loop.host_pass import forward
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.prefixes.shared_rows import copy_rows
from decodekit.decoding.request.budget import (
    can_stop_here,
    check_budget,
    ends_in_time,
    keep_ending,
    must_close,
    plan_of,
)
from decodekit.decoding.request.settings import Settings
from decodekit.decoding.request.token_traces import text_of
from decodekit.decoding.request.trace_recorder import trace
from decodekit.decoding.request.updates import Update, update_of, with_others
from decodekit.decoding.search.beam_tree import BeamNode, BeamTree, Fate
from decodekit.errors import DeadEndError, DecodekitError
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling import History
from decodekit.sampling.noise import gumbel
from decodekit.sampling.selectors import is_faulty

EarlyStopping: TypeAlias = bool | Literal["never"]


@dataclass(frozen=True)
class BeamOptions:
    """The number of hypotheses and their ranking; see `strategy.Beam`."""

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    num_return_sequences: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    do_sample: bool = False

    @property
    def group_size(self) -> int:
        """Beams of one group."""
        return self.num_beams // self.num_beam_groups

    def rank(self, hypothesis: Hypothesis) -> tuple[bool, float]:
        """The sort key of finished hypotheses: whether the constraint accepts them, then their scores."""
        return hypothesis.is_whole, hypothesis.score(self.length_penalty)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation of the prompt.

    Args:
        sequence: its text; `pending` is its last token, and its row has read the others.
        log_prob: sum of the processed log-probabilities of its tokens, less the penalties of diversity.
        node: its place in the tree, if that is recorded.
    """

    sequence: TextRow
    log_prob: float
    node: int | None = None

    def score(self, length_penalty: float) -> float:
        """log p / length^length_penalty."""
        return self.log_prob / float(max(1, len(self.sequence.token_ids)) ** length_penalty)

    @property
    def is_whole(self) -> bool:
        """Whether this is a finished text that its constraint accepts; True without a constraint."""
        return self.sequence.matcher is None or self.sequence.finish_reason in ("stop", "complete")


class Candidate(NamedTuple):
    """One of the K best continuations of a step."""

    beam: int
    """Which of the live hypotheses it continues."""
    token: int
    log_prob: float
    """Of the whole text, the token included."""


@dataclass
class Beams:
    """The hypotheses of one group of beams."""

    options: BeamOptions
    max_tokens: int
    num_eos: int
    live: list[Hypothesis]
    finished: list[Hypothesis] = field(default_factory=list)
    """What ended, best first, at most `group_size`."""
    is_done: bool = False

    @property
    def num_candidates(self) -> int:
        """K: enough that `group_size` of them go on even if every end-of-sequence token is among the best."""
        return max(2, 1 + self.num_eos) * self.options.group_size

    def totals(self, log_probs: Tensor, penalty: Tensor | None) -> Tensor:
        """The log-probabilities of whole texts with each token more, float32 [B, V].

        Args:
            log_probs: float32 [B, V], processed, of what follows each live hypothesis.
            penalty: float32 [V], subtracted; None without diversity.
        """
        before = torch.tensor([hypothesis.log_prob for hypothesis in self.live], device=log_probs.device)
        return (log_probs if penalty is None else log_probs - penalty) + before[:, None]

    def candidates(self, totals: Tensor, noise: Tensor | None) -> list[Candidate]:
        """The K best continuations, or those drawn; none of probability 0.

        Args:
            totals: float32 [B, V].
            noise: Gumbel noise [B, V], to draw instead.
        """
        # Relative to the best, float32 is fine for the sum with the noise.
        keys = totals if noise is None else totals - totals.amax() + noise
        order = keys.flatten().topk(min(self.num_candidates, keys.numel())).indices
        sums = totals.flatten()[order].tolist()
        width = totals.shape[1]
        return [
            Candidate(index // width, index % width, total)
            for index, total in zip(order.tolist(), sums, strict=True)
            if total > -math.inf
        ]

    def advance(self, every: Sequence[Hypothesis]) -> None:
        """Take the continuations of a step, in the order in which they were chosen; the search may be over."""
        size = self.options.group_size
        ended = [one for one in every[:size] if one.sequence.finish_reason is not None]
        # What the constraint does not accept ranks behind all that it does, whatever the score. The sort is stable: of
        # equals the earlier stays.
        self.finished = sorted([*self.finished, *ended], key=self.options.rank, reverse=True)[:size]
        going = [one for one in every if one.sequence.finish_reason is None]
        going.sort(key=lambda one: -one.log_prob)  # what was drawn comes in another order
        self.live = going[:size]
        self.is_done = not self.live or not self._may_improve()
        if self.is_done:
            self.live = []

    def _may_improve(self) -> bool:
        """Whether a live hypothesis could still take a place among the finished, as the early stopping sees it."""
        options = self.options
        if len(self.finished) < options.group_size:
            return True
        if options.early_stopping is True:
            return False
        best, length = self.live[0], len(self.live[0].sequence.token_ids)
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self.max_tokens
        worst = min(hypothesis.score(options.length_penalty) for hypothesis in self.finished)
        return best.log_prob / float(length**options.length_penalty) > worst


def _note_fates(tree: BeamTree, beams: Beams) -> None:
    """Note which of the newest nodes go on, and which are finished texts among the best."""
    fates: tuple[tuple[list[Hypothesis], Fate], ...] = ((beams.live, "kept"), (beams.finished, "ended"))
    for hypotheses, fate in fates:
        for one in hypotheses:
            if one.node is not None:
                tree.nodes[one.node] = replace(tree.nodes[one.node], fate=fate)


def hamming_penalty(groups: Sequence[Beams], diversity_penalty: float, vocab_size: int) -> Tensor | None:
    """`diversity_penalty` for every beam of `groups` that took a token at this step, float32 [V]; None without any.

    Negated, this is the Hamming diversity of Vijayakumar et al. 2016, section 3.
    """
    texts = [hypothesis.sequence.token_ids for beams in groups for hypothesis in beams.live]
    tokens = [text[-1] for text in texts if text]
    if not tokens:
        return None
    return torch.bincount(torch.tensor(tokens), minlength=vocab_size) * diversity_penalty


@dataclass(eq=False)
class BeamGroup(Group):
    """The beams of one prompt. Its sequence is the empty text that all begin with, and reads the prompt.

    Args:
        beams: searches that know of each other; one without diversity.
        best: the best hypothesis of the step before, to be shown where no text was found.
        tree: what the steps looked at, if that is recorded.
    """

    beams: list[Beams]
    best: Hypothesis
    num_forwards: int = 0
    tree: BeamTree | None = None

    @property
    def live(self) -> list[Hypothesis]:
        """The hypotheses of all groups of beams."""
        return [hypothesis for beams in self.beams for hypothesis in beams.live]

    @property
    def is_done(self) -> bool:
        """Whether all beams are, or something failed."""
        return self.error is not None or all(beams.is_done for beams in self.beams)


class BeamSearch(Decoder[BeamGroup]):
    """A row for each hypothesis of a prompt; one update for each prompt, at the end.

    A hypothesis stays in the row of the one that it continues, and where one is continued twice, a row that has become
    free is made a copy of it (`Cache.reorder`, once for all prompts of a step).
    """

    def __init__(self, model: CausalLM, settings: Settings, options: BeamOptions) -> None:
        super().__init__(model)
        self.settings = settings
        self.num_rows = options.num_beams
        self.option = f"num_beams={options.num_beams}"
        self._options = options

    def begin(self, sequence: TextRow) -> BeamGroup:
        """Every group of beams begins with the empty text; `LengthError` if no text of the constraint fits."""
        check_budget(sequence, self.settings)
        root = Hypothesis(sequence, 0.0)
        num_eos = len(self.settings.vocabulary.eos_token_ids)
        every = [
            Beams(self._options, sequence.max_tokens, num_eos, [root]) for _ in range(self._options.num_beam_groups)
        ]
        if sequence.finish_reason is not None:
            for beams in every:
                beams.live, beams.is_done = [], True
            every[0].finished = [root]
        return BeamGroup([sequence], every, root, tree=BeamTree() if self.settings.traces else None)

    def step(self, groups: Sequence[BeamGroup], rows: CacheRows) -> None:
        """Continue the hypotheses of every prompt by a token."""
        self._place(groups, rows)
        reading = {id(one.sequence): one.sequence for group in groups for one in group.live}  # the empty text once
        sequences = sorted(reading.values(), key=lambda one: one.row)  # neighbouring rows are read in place
        logits = forward(sequences, self.model, rows.cache)
        index = {id(sequence): i for i, sequence in enumerate(sequences)}
        for group in groups:
            own = torch.tensor([index[id(one.sequence)] for one in group.live], device=logits.device)
            try:
                self._advance(group, logits[own])
            except DecodekitError as error:  # a constraint may outgrow its bounds
                group.error = error

    def _place(self, groups: Sequence[BeamGroup], rows: CacheRows) -> None:
        """Give every hypothesis a row of its own that has read what it has."""
        copies: list[tuple[int, int]] = []
        for group in groups:
            live = {id(one.sequence): one.sequence for one in group.live}.values()
            parents = {sequence.row for sequence in live}
            free = [row for row in group.rows if row not in parents]
            taken: set[int] = set()
            for sequence in live:
                if sequence.row in taken:
                    copies.append((sequence.row, free[0]))
                    sequence.row = free.pop(0)
                taken.add(sequence.row)
        copy_rows(rows.cache, copies)

    def _advance(self, group: BeamGroup, logits: Tensor) -> None:
        """Continue the hypotheses of a prompt; logits [B, V]."""
        group.best = group.live[0]
        group.num_forwards = group.best.sequence.num_forwards
        at = str(Position(group.best.sequence))
        if not math.isfinite(logits.amax().item()):  # the maximum of a row with NaN is NaN
            raise non_finite(self.settings, at, logits)
        is_constrained = group.sequence.matcher is not None
        mask = self._mask(group.live) if is_constrained else None
        log_probs = self._log_probs(group.live, logits, at, mask)
        first, before = 0, list[Beams]()
        for beams in group.beams:
            if beams.is_done:
                continue
            rows = slice(first, first + len(beams.live))
            first = rows.stop
            penalty = hamming_penalty(before, self._options.diversity_penalty, logits.shape[1])
            penalty = None if penalty is None else penalty.to(logits.device)
            totals = beams.totals(log_probs[rows], penalty)
            noise = self._noise(beams, logits) if self._options.do_sample else None
            candidates = beams.candidates(totals, noise)
            while mask is not None and (late := self._late(beams, candidates)):
                for one in late:
                    forbid(mask[rows.start + one.beam].numpy(), one.token)
                log_probs[rows] = self._log_probs(beams.live, logits[rows], at, mask[rows])
                totals = beams.totals(log_probs[rows], penalty)
                candidates = beams.candidates(totals, noise)
            beams.finished += self._stopped(beams, totals)
            extended = [self._extended(beams, candidate) for candidate in candidates]
            taken = [(one.sequence, [to.token], to.beam) for one, to in zip(extended, candidates, strict=True)]
            record(taken, logits[rows], None, self.settings)
            trace(taken, logits[rows], None, self.settings)
            if group.tree is not None:
                extended = self._noted(group.tree, beams, candidates, extended)
            beams.advance(extended)
            if group.tree is not None:
                _note_fates(group.tree, beams)
            before.append(beams)

    def _mask(self, live: Sequence[Hypothesis]) -> Tensor:
        """The mask of each hypothesis, int32 [B, words]."""
        words = np.zeros((len(live), self.settings.vocabulary.num_mask_words), dtype=np.int32)
        for row, hypothesis in enumerate(live):
            sequence = hypothesis.sequence
            assert sequence.matcher is not None
            sequence.matcher.fill_bitmask(words, row)
            sequence.num_masks += 1
            if must_close(sequence, self.settings):
                num_left = sequence.max_tokens - len(sequence.token_ids) - 1
                keep_ending(sequence.matcher, sequence.plan, num_left, self.settings.left_out, words[row])
        return torch.from_numpy(words)

    def _late(self, beams: Beams, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The continuations after which a constraint could not be satisfied in time; masks may have a few."""
        if not must_close(beams.live[0].sequence, self.settings):
            return []
        return [one for one in candidates if plan_of(beams.live[one.beam].sequence, one.token, self.settings) is None]

    def _stopped(self, beams: Beams, totals: Tensor) -> list[Hypothesis]:
        """The hypotheses that nothing may follow within their budget though their texts are whole: they end so."""
        found = []
        for one, best in zip(beams.live, totals.amax(dim=1).tolist(), strict=True):
            if best == -math.inf and can_stop_here(one.sequence, self.settings):
                sequence = one.sequence.fork(one.sequence.request, one.sequence.row)
                sequence.finish("complete")
                found.append(replace(one, sequence=sequence))
        return found

    def _log_probs(self, live: Sequence[Hypothesis], logits: Tensor, at: str, mask: Tensor | None) -> Tensor:
        """Processed log-probabilities of what may follow each live hypothesis, under masks if given, float32 [B, V]."""
        pipeline, sequences = self.settings.pipeline, [hypothesis.sequence for hypothesis in live]
        history = None
        if pipeline.needs_history:
            prompts = [sequence.request.prompt for sequence in sequences]
            history = History.from_lists(prompts, [sequence.token_ids for sequence in sequences], logits.device)
        mask = None if mask is None else mask.to(logits.device)
        own = torch.log_softmax(logits.float(), dim=-1)
        processed = pipeline(own, history, mask)
        if not bool(is_faulty(processed).any()):
            return processed
        if pipeline.first_fault(own, history, mask) is not None:
            raise non_finite(self.settings, at, own, history, mask)
        # A truncation of a row without tokens divides 0 by 0. Such a hypothesis has no continuation.
        return processed.masked_fill(processed.isnan(), -math.inf)

    def _noise(self, beams: Beams, logits: Tensor) -> Tensor:
        """Gumbel noise [B, V], keyed by seed, sample, rank of the hypothesis, and position."""
        num_live, sequence = len(beams.live), beams.live[0].sequence
        first = sequence.request.sequence * self._options.num_beams
        positions = [len(sequence.token_ids)] * num_live
        numbers = [*range(first, first + num_live)]
        return gumbel([sequence.request.seed] * num_live, numbers, positions, logits.shape[1], logits.device)

    def _extended(self, beams: Beams, candidate: Candidate) -> Hypothesis:
        """A hypothesis with one token more, which may have ended; raises the error of the constraint."""
        parent = beams.live[candidate.beam].sequence
        sequence = parent.fork(parent.request, parent.row)
        if must_close(sequence, self.settings):
            ends_in_time(sequence, candidate.token, self.settings)  # which notes its plan
        append_token(sequence, candidate.token, self.settings, None)
        if sequence.error is not None:
            raise sequence.error
        return Hypothesis(sequence, candidate.log_prob)

    def _noted(
        self, tree: BeamTree, beams: Beams, candidates: Sequence[Candidate], extended: Sequence[Hypothesis]
    ) -> list[Hypothesis]:
        """The continuations with their nodes, which are new in the tree."""
        first = len(tree.nodes)
        for candidate, one in zip(candidates, extended, strict=True):
            parent, step = beams.live[candidate.beam].node, len(one.sequence.token_ids) - 1
            text = text_of(candidate.token, self.settings.vocabulary)
            score = one.score(self._options.length_penalty)
            tree.nodes.append(BeamNode(parent, step, candidate.token, text, candidate.log_prob, score))
        return [replace(one, node=first + place) for place, one in enumerate(extended)]

    def sequences(self, group: BeamGroup) -> list[TextRow]:
        """The empty text and the hypotheses, each once."""
        every = [group.sequence, group.best.sequence, *(one.sequence for one in group.live)]
        return [*{id(one): one for one in every}.values()]

    def fail(self, group: BeamGroup, error: DecodekitError) -> None:
        """End a search with an error, and with its best text so far."""
        group.error = error

    def update(self, group: BeamGroup) -> Update | None:
        """The end of a search: its texts, best first."""
        if not group.is_done:
            return None
        found = sorted((one for beams in group.beams for one in beams.finished), key=self._options.rank, reverse=True)
        error = group.error
        if error is None and not found:
            error = DeadEndError(
                "no beam has a token that may follow, and none is complete",
                at=f"prompt {group.sequence.index}",
                hint="more beams, a wider constraint, or fewer forbidden tokens",
            )
        if error is not None:
            group.best.sequence.finish("dead_end" if isinstance(error, DeadEndError) else "error", error)
            found = [group.best]
        found = found[: self._options.num_return_sequences]
        update = with_others(self._ended(group, one) for one in found)
        if group.tree is None or update.result is None:
            return update
        group.tree.returned[:] = [one.node for one in found if one.node is not None]
        return replace(update, result=replace(update.result, tree=group.tree))

    def _ended(self, group: BeamGroup, hypothesis: Hypothesis) -> Update:
        update = update_of(hypothesis.sequence)
        assert update.result is not None
        # Nothing is certain before the end, and masks are filled for all hypotheses together.
        own = replace(update.result.stats, num_forwards=group.num_forwards)
        stats = replace(own, ttft_s=None, mask_s=None, ask_s=None, log_z=None)
        score = hypothesis.score(self._options.length_penalty)
        return replace(update, result=replace(update.result, stats=stats, score=score))
