"""The cost of a completion: times and counts, under the names users know.

Times are wall-clock seconds. They start when the row is admitted to the batch (its prompt is known and a cache row is
free), so waiting in a queue is not counted, and prefilling is.

Masking locally is not conditioning. A mask divides by the mass Z_t that it leaves of the model's distribution p at
every token, so that a text x comes with probability q(x) = product of p(x_t) / Z_t, and not with that of the model
given that the constraint holds, p(x) / sum of p over the texts that it accepts: texts whose beginnings are likely and
whose ends the model did not want come too often. Between the two stands Z = product of Z_t, for p(x) = q(x) Z;
`Stats.log_z` has its logarithm. So Z weighs a text that was drawn (with the mask, at temperature 1, with no other
processor) as a draw from the model given the constraint, and its mean over such draws is the probability that the model
by itself satisfies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ProposerStats:
    """The drafts of one proposer of several; see `Stats`.

    Args:
        proposer: its class, with a number where the chain has several of the class.
        num_drafts, num_draft_tokens, acceptance_histogram: as in `Stats`.
    """

    proposer: str
    num_drafts: int
    num_draft_tokens: int
    acceptance_histogram: tuple[int, ...]

    @property
    def draft_acceptance_rate(self) -> float:
        """Share of the draft tokens that were accepted."""
        return sum(self.acceptance_histogram) / self.num_draft_tokens


@dataclass(frozen=True, slots=True)
class ParticleStats:
    """Statistics of the particles of one prompt; see `decoding.search.particle_filter`.

    Args:
        log_evidence: logarithm of the estimate of Z, the probability under the processed distribution that the
            constraint holds. The estimate itself, not its logarithm, is unbiased.
        effective_sample_size: of the weights at the end, from 1 to the number of particles; 0 if no text is legal.
        num_resamplings: how often the particles were drawn anew.
        num_asked: tokens that the constraint or predicate was asked about one by one; 0 with masks.
    """

    log_evidence: float
    effective_sample_size: float
    num_resamplings: int
    num_asked: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one completion.

    Args:
        num_prompt_tokens: tokens of the prompt.
        num_generated_tokens: tokens taken, an end-of-sequence token included.
        num_forwards: forward passes of the model that this row took part in, prefill included.
        num_reused_tokens: tokens of the prompt that were not read for this row, because another one had read them.
        ttft_s: time to first token: from admission to the first token being known; None without a token, and for a
            beam search, which knows all at the end.
        duration_s: from admission to the end.
        num_guard_refusals: tokens that were drawn, ended the text, and were refused by the guard of the constraint.
        num_rollbacks: how often the text was taken back by a token or more, because of a guard.
        num_forced_tokens: tokens that the constraint left no choice about and that were taken without a draw of their
            own; those of a text that was taken back are counted, too.
        num_drafts: drafts with at least one token that a proposer offered and the constraint allowed.
        num_draft_tokens: tokens of these drafts.
        acceptance_histogram: entry i is the number of drafts whose token at position i was accepted; it ends with the
            last position that was ever accepted.
        mask_s: time that the bitmasks of this row took to fill, those along its drafts included; None without a
            constraint, and for a search that fills masks for all its hypotheses together.
        num_masks: bitmasks of this row, one for each position that needed one.
        ask_s: time that the questions of this row took; None where `mask_s` is. See `decoding.lazy_masks.probes`.
        num_questions: tokens that the constraint was asked about in place of a mask; refused ones are counted, too.
        particles: of a prompt that was continued by particles, what became of them.
        log_z: sum over the tokens of the text of the logarithm of the mass that the constraint's mask leaves under the
            model's own distribution at their positions, the softmax of the logits as they come: 0 without a constraint,
            else at most 0, with forced tokens, whose mass is their probability. What a guard had refused at a place
            before its token was taken is not in its mask, nor what comes too late for ``on_length="close"``. None
            unless log-probabilities were asked for and every mask is made, as with ``masks="always"`` (particles make
            all by themselves), and for a search with several other hypotheses.
        by_proposer: the same three figures of drafts for each proposer of a chain that offered any; empty if there is
            only one.
        num_retries: how often the prompt was tried again because its value was refused; the other figures are those of
            the last attempt.
        num_reasoning_tokens: of the generated ones, those before the answer, where there is a thought.
        recommended: options that ``strategy="sample"`` took from the generation config of the model, with their values.
    """

    num_prompt_tokens: int
    num_generated_tokens: int
    num_forwards: int
    ttft_s: float | None
    duration_s: float
    num_guard_refusals: int = 0
    num_rollbacks: int = 0
    num_forced_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()
    mask_s: float | None = None
    num_masks: int = 0
    ask_s: float | None = None
    num_questions: int = 0
    particles: ParticleStats | None = None
    log_z: float | None = None
    by_proposer: tuple[ProposerStats, ...] = ()
    num_reused_tokens: int = 0
    num_retries: int = 0
    num_reasoning_tokens: int = 0
    recommended: tuple[tuple[str, Any], ...] = ()

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens, or without `ttft_s`."""
        if self.ttft_s is None or self.num_generated_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.num_generated_tokens - 1)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of this row, prefill included."""
        return self.num_generated_tokens / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens per forward pass."""
        return self.num_generated_tokens / self.num_forwards if self.num_forwards else 0.0

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Share of the draft tokens that were accepted; None without drafts."""
        return sum(self.acceptance_histogram) / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that came of a draft and its verification, on average: 1 + the accepted ones; None without drafts."""
        return 1 + sum(self.acceptance_histogram) / self.num_drafts if self.num_drafts else None


DERIVED: Final = (
    "tpot_s",
    "tokens_per_second",
    "tokens_per_forward",
    "draft_acceptance_rate",
    "mean_acceptance_length",
)
"""Figures of `Stats` that follow from others."""
