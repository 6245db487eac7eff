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
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodekitError
from decodekit.generation.drawing import measure, non_finite
from decodekit.generation.driver import CacheRows, Group, Policy
from decodekit.generation.padding import right_padded
from decodekit.generation.results import Result, Update, is_satisfied, with_others
from decodekit.generation.sequence import Sequence as Text
from decodekit.generation.sharing import copy_rows
from decodekit.generation.stats import Stats
from decodekit.generation.stopping import FinishReason, finish_reason
from decodekit.generation.streaming import TextStream
from decodekit.sampling import History
from decodekit.sampling.noise import gumbel
from decodekit.sampling.pipeline import is_faulty

if TYPE_CHECKING:
    from decodekit.constraints.matcher import Matcher
    from decodekit.generation.sequence import TokenLogprob
    from decodekit.generation.settings import Settings
    from decodekit.models.causal_lm import CausalLM

EarlyStopping: TypeAlias = bool | Literal["never"]


@dataclass(frozen=True)
class BeamOptions:
    """How many hypotheses there are and how they are ranked; see `strategy.Beam`."""

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
        """What finished hypotheses are sorted by: whether the constraint accepts them, then their scores."""
        return hypothesis.is_whole, hypothesis.score(self.length_penalty)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation of the prompt.

    Args:
        token_ids: its tokens.
        log_prob: sum of their processed log-probabilities, less the penalties of diversity.
        row: the cache row that has read all tokens but the last.
        matcher: state of the constraint after the tokens; not changed any more.
        logprobs: one per token if asked for.
        finish_reason: why it ended; None while it may go on.
    """

    token_ids: tuple[int, ...]
    log_prob: float
    row: int
    matcher: Matcher | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None

    def score(self, length_penalty: float) -> float:
        """log p / length^length_penalty."""
        return self.log_prob / float(max(1, len(self.token_ids)) ** length_penalty)

    @property
    def is_whole(self) -> bool:
        """Whether this is a finished text that its constraint accepts; True without a constraint."""
        return self.matcher is None or self.finish_reason in ("stop", "complete")


class Candidate(NamedTuple):
    """One of the K best continuations of a step."""

    beam: int
    """Which of the live hypotheses it continues."""
    token: int
    log_prob: float
    """Of the whole text, the token included."""


@dataclass
class Beams:
    """The hypotheses of one group of beams.

    Args:
        options: of the search.
        max_tokens: most tokens of a text.
        num_eos: how many tokens end a text.
        live: the hypotheses that go on, best first; one at the start.
    """

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

    def candidates(self, log_probs: Tensor, penalty: Tensor | None, noise: Tensor | None) -> list[Candidate]:
        """The K best continuations, or those drawn; none of probability 0.

        Args:
            log_probs: float32 [B, V], processed, of what follows each live hypothesis.
            penalty: float32 [V], subtracted; None without diversity.
            noise: Gumbel noise [B, V], to draw instead.
        """
        before = torch.tensor([hypothesis.log_prob for hypothesis in self.live], device=log_probs.device)
        totals = (log_probs if penalty is None else log_probs - penalty) + before[:, None]
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

    def advance(
        self,
        candidates: Sequence[Candidate],
        reasons: Sequence[FinishReason | None],
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """Take the continuations of a step: which end, which go on, and whether the search is over.

        Args:
            candidates: of this step, in the order in which they were chosen.
            reasons: of each, why its text ends with it; None if it does not.
            logprobs: of each, if they are asked for.
        """
        size = self.options.group_size
        entries = [logprobs[rank : rank + 1] for rank in range(len(candidates))]
        every = list(zip(candidates, reasons, entries, strict=True))
        ended = [self._extended(*one) for one in every[:size] if one[1] is not None]
        # What the constraint does not accept ranks behind all that it does, whatever the score. The sort is stable: of
        # equals the earlier stays.
        self.finished = sorted([*self.finished, *ended], key=self.options.rank, reverse=True)[:size]
        going = [one for one in every if one[1] is None]
        going.sort(key=lambda one: -one[0].log_prob)  # what was drawn comes in another order
        self.live = [self._extended(*one) for one in going[:size]]
        self.is_done = not self.live or not self._may_improve()
        if self.is_done:
            self.live = []

    def _extended(
        self, candidate: Candidate, reason: FinishReason | None, logprobs: Sequence[TokenLogprob]
    ) -> Hypothesis:
        parent = self.live[candidate.beam]
        matcher = None if parent.matcher is None else parent.matcher.fork()
        if matcher is not None:
            _accept(matcher, candidate.token)
        return Hypothesis(
            (*parent.token_ids, candidate.token),
            candidate.log_prob,
            parent.row,
            matcher,
            (*parent.logprobs, *logprobs),
            reason,
        )

    def _may_improve(self) -> bool:
        """Whether a live hypothesis could still take a place among the finished, as the early stopping sees it."""
        options = self.options
        if len(self.finished) < options.group_size:
            return True
        if options.early_stopping is True:
            return False
        best, length = self.live[0], len(self.live[0].token_ids)
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self.max_tokens
        worst = min(hypothesis.score(options.length_penalty) for hypothesis in self.finished)
        return best.log_prob / float(length**options.length_penalty) > worst


def _accept(matcher: Matcher, token: int) -> None:
    if not matcher.accept(token):
        raise RuntimeError(f"{type(matcher).__name__} refused token {token}, which its own mask allowed")


def hamming_penalty(groups: Sequence[Beams], diversity_penalty: float, vocab_size: int) -> Tensor | None:
    """`diversity_penalty` for every beam of `groups` that took a token at this step, float32 [V]; None without any.

    Negated, this is the Hamming diversity of Vijayakumar et al. 2016, section 3.
    """
    tokens = [hypothesis.token_ids[-1] for beams in groups for hypothesis in beams.live if hypothesis.token_ids]
    if not tokens:
        return None
    return torch.bincount(torch.tensor(tokens), minlength=vocab_size) * diversity_penalty


@dataclass(eq=False)
class BeamGroup(Group):
    """The beams of one prompt. Its sequence reads the prompt, and has no tokens of its own.

    Args:
        beams: searches that know of each other; one without diversity.
        best: the best hypothesis of the step before, to be shown where no text was found.
    """

    beams: list[Beams]
    best: Hypothesis

    @property
    def live(self) -> list[Hypothesis]:
        """The hypotheses of all groups of beams."""
        return [hypothesis for beams in self.beams for hypothesis in beams.live]

    @property
    def is_done(self) -> bool:
        """Whether all beams are, or something failed."""
        return self.sequence.error is not None or all(beams.is_done for beams in self.beams)

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        return f"prompt {self.sequence.index}, step {len(self.live[0].token_ids)}"


class BeamSearch(Policy[BeamGroup]):
    """A row for each hypothesis of a prompt; one update for each prompt, at the end.

    A hypothesis stays in the row of the one that it continues, and where one is continued twice, a row that has become
    free is made a copy of it (`Cache.reorder`, once for all prompts of a step).

    Args:
        model, settings: see `Policy`; the pipeline is that of the beams.
        options: of the search.
    """

    def __init__(self, model: CausalLM, settings: Settings, options: BeamOptions) -> None:
        super().__init__(model, settings)
        self.num_rows = options.num_beams
        self.option = f"num_beams={options.num_beams}"
        self._options = options

    def begin(self, sequence: Text) -> BeamGroup:
        """Every group of beams begins with the empty hypothesis."""
        options, reason = self._options, sequence.finish_reason
        root = Hypothesis((), 0.0, -1, sequence.matcher)
        num_eos = len(self.settings.vocabulary.eos_token_ids)
        every = [Beams(options, sequence.max_tokens, num_eos, [root]) for _ in range(options.num_beam_groups)]
        if reason is not None:
            for beams in every:
                beams.live, beams.is_done = [], True
            every[0].finished = [replace(root, finish_reason=reason)]
        return BeamGroup([sequence], every, root)

    def step(self, groups: Sequence[BeamGroup], rows: CacheRows) -> None:
        """Continue the hypotheses of every prompt by a token."""
        self._place(groups, rows)
        for group, logits in zip(groups, self._read(groups, rows), strict=True):
            try:
                self._advance(group, logits)
            except DecodekitError as error:  # a constraint may outgrow its bounds
                group.sequence.error = error

    def _place(self, groups: Sequence[BeamGroup], rows: CacheRows) -> None:
        """Give every hypothesis a row of its own that has read what it has."""
        copies: list[tuple[int, int]] = []
        for group in groups:
            if group.sequence.pending:  # the prompt is read once, for all
                continue
            parents = {hypothesis.row for hypothesis in group.live}
            free = [row for row in group.rows if row not in parents]
            taken: set[int] = set()
            for beams in group.beams:
                for rank, hypothesis in enumerate(beams.live):
                    if hypothesis.row in taken:
                        row = free.pop(0)
                        copies.append((hypothesis.row, row))
                        beams.live[rank] = replace(hypothesis, row=row)
                    taken.add(hypothesis.row)
        copy_rows(rows.cache, copies)

    def _read(self, groups: Sequence[BeamGroup], rows: CacheRows) -> list[Tensor]:
        """Read the rest of a prompt, or the last token of every live hypothesis.

        Returns:
            For each prompt logits [B, V] of what follows its B live hypotheses.
        """
        parts = [self._parts(group) for group in groups]
        reading = [part for some in parts for part in some]
        order = sorted(range(len(reading)), key=lambda i: reading[i][0])  # neighbouring rows are read in place
        indices = [reading[i][0] for i in order]
        tokens = right_padded([reading[i][1] for i in order], self.model.device)
        every = indices == list(range(rows.cache.num_rows))
        counts = [len(reading[i][1]) for i in order]
        logits = self.model.forward(tokens, counts, rows.cache, None if every else indices)
        logits = logits[torch.tensor(np.argsort(order), device=logits.device)]
        for group in groups:
            group.sequence.num_forwards += 1
            group.sequence.pending = []
        found = torch.split(logits, [len(some) for some in parts])
        return [one.expand(len(group.live), -1) for group, one in zip(groups, found, strict=True)]

    def _parts(self, group: BeamGroup) -> list[tuple[int, list[int]]]:
        """The rows of a prompt that read, and what."""
        if not group.sequence.pending:
            return [(hypothesis.row, [hypothesis.token_ids[-1]]) for hypothesis in group.live]
        for beams in group.beams:
            beams.live = [replace(beams.live[0], row=group.rows[0])]
        return [(group.rows[0], group.sequence.pending)]

    def _advance(self, group: BeamGroup, logits: Tensor) -> None:
        if not math.isfinite(logits.amax().item()):  # the maximum of a row with NaN is NaN
            raise non_finite(self.settings, group.place, logits)
        log_probs = self._log_probs(group, logits)
        group.best = group.live[0]
        first, before = 0, list[Beams]()
        for beams in group.beams:
            if beams.is_done:
                continue
            rows = slice(first, first + len(beams.live))
            first = rows.stop
            penalty = hamming_penalty(before, self._options.diversity_penalty, logits.shape[1])
            candidates = beams.candidates(
                log_probs[rows],
                None if penalty is None else penalty.to(logits.device),
                self._noise(group, beams, logits) if self._options.do_sample else None,
            )
            reasons = [self._reason_after(beams, candidate) for candidate in candidates]
            beams.advance(candidates, reasons, self._measured(candidates, logits[rows]))
            before.append(beams)

    def _log_probs(self, group: BeamGroup, logits: Tensor) -> Tensor:
        """Processed log-probabilities of what may follow each live hypothesis, float32 [B, V]."""
        live, pipeline = group.live, self.settings.pipeline
        history = None
        if pipeline.needs_history:
            prompts = [group.sequence.request.prompt] * len(live)
            history = History.from_lists(prompts, [hypothesis.token_ids for hypothesis in live], logits.device)
        mask = None
        if group.sequence.matcher is not None:
            words = np.zeros((len(live), self.settings.vocabulary.num_mask_words), dtype=np.int32)
            for row, hypothesis in enumerate(live):
                assert hypothesis.matcher is not None
                hypothesis.matcher.fill_bitmask(words, row)
            mask = torch.from_numpy(words).to(logits.device)
        own = torch.log_softmax(logits.float(), dim=-1)
        processed = pipeline(own, history, mask)
        if not bool(is_faulty(processed).any()):
            return processed
        if pipeline.first_fault(own, history, mask) is not None:
            raise non_finite(self.settings, group.place, own, history, mask)
        # A truncation of a row without tokens divides 0 by 0. Such a hypothesis has no continuation.
        return processed.masked_fill(processed.isnan(), -math.inf)

    def _noise(self, group: BeamGroup, beams: Beams, logits: Tensor) -> Tensor:
        """Gumbel noise [B, V], keyed by seed, sample, rank of the hypothesis, and position."""
        num_live, request = len(beams.live), group.sequence.request
        numbers = [request.sequence * self._options.num_beams + rank for rank in range(num_live)]
        position = len(beams.live[0].token_ids)
        return gumbel([request.seed] * num_live, numbers, [position] * num_live, logits.shape[1], logits.device)

    def _measured(self, candidates: Sequence[Candidate], logits: Tensor) -> list[TokenLogprob]:
        """The log-probabilities of the tokens of candidates under the model's own distribution, if they are wanted."""
        if self.settings.num_alternatives is None or not candidates:
            return []
        parents = torch.tensor([candidate.beam for candidate in candidates], device=logits.device)
        return measure(logits[parents], [candidate.token for candidate in candidates], self.settings.num_alternatives)

    def _reason_after(self, beams: Beams, candidate: Candidate) -> FinishReason | None:
        """Why the text of a candidate ends with it; None if it goes on."""
        hypothesis, token = beams.live[candidate.beam], candidate.token
        matcher = hypothesis.matcher
        if matcher is not None:
            _accept(matcher, token)
        tokens = (*hypothesis.token_ids, token)
        reason = finish_reason(
            token,
            eos_token_ids=self.settings.vocabulary.eos_token_ids,
            matcher=matcher,
            is_stopped=bool(self.settings.stop) and self._text(tokens, matcher)[1].is_stopped,
            num_tokens=len(tokens),
            max_tokens=beams.max_tokens,
        )
        if matcher is not None:
            matcher.rollback(1)
        return reason

    def _text(self, token_ids: Sequence[int], matcher: Matcher | None) -> tuple[str, TextStream]:
        """The text of tokens, as far as it is certain before the end, and its stream."""
        texts = self.settings.vocabulary.token_bytes if matcher is None else matcher.token_texts
        stream = TextStream(self.settings.stop)
        return "".join(stream.push(texts[token] or b"") for token in token_ids), stream

    def update(self, group: BeamGroup) -> Update | None:
        """The end of a search: its texts, best first."""
        if not group.is_done:
            return None
        found = sorted((one for beams in group.beams for one in beams.finished), key=self._options.rank, reverse=True)
        error = group.sequence.error
        if error is None and not found:
            error = DeadEndError(
                "no beam has a token that may follow, and none is complete",
                at=f"prompt {group.sequence.index}",
                hint="more beams, a wider constraint, or fewer forbidden tokens",
            )
        now = time.perf_counter()
        if error is not None:
            reason: FinishReason = "dead_end" if isinstance(error, DeadEndError) else "error"
            return self._ended(group, replace(group.best, finish_reason=reason), now, error)
        return with_others(self._ended(group, one, now) for one in found[: self._options.num_return_sequences])

    def _ended(
        self, group: BeamGroup, hypothesis: Hypothesis, now: float, error: DecodekitError | None = None
    ) -> Update:
        sequence = group.sequence
        certain, stream = self._text(hypothesis.token_ids, hypothesis.matcher)
        assert hypothesis.finish_reason is not None
        result = Result(
            hypothesis.token_ids,
            hypothesis.finish_reason,
            error,
            hypothesis.logprobs,
            Stats(
                num_prompt_tokens=len(sequence.request.prompt),
                num_generated_tokens=len(hypothesis.token_ids),
                num_forwards=sequence.num_forwards,
                ttft_s=None,  # nothing is certain before the end
                duration_s=now - sequence.started_at,
            ),
            hypothesis.score(self._options.length_penalty),
            is_satisfied=is_satisfied(hypothesis.finish_reason, hypothesis.matcher),
        )
        return Update(sequence.index, certain + stream.close(), hypothesis.token_ids, result)
