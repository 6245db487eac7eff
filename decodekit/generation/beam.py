"""Beam search: of all continuations of a few hypotheses, those of the largest log-probability live on.

The semantics are those of transformers 5 (`GenerationMixin._beam_search`), so that texts and scores are the same.
With b beams and e tokens that end a text, a step looks at the K = max(2, 1 + e) b best of all b V continuations; e b of
them may end, so at least b do not. The b best that go on are the next beams; what ends is kept only where it is among
the b best of the K, under the score

    s(y) = log p(y) / |y|^length_penalty,

with |y| counting the end-of-sequence token. `Beams` is one such search. Diverse beam search (Vijayakumar et al. 2016,
"Diverse Beam Search", algorithm 1) runs several side by side, each avoiding what those before it took at this step.
Beam sampling draws the K without replacement, as the K largest of log p + Gumbel noise (Kool et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from decodekit.errors import OptionError, UselessOptionError, raise_faults
from decodekit.generation.stopping import FinishReason
from decodekit.models.contrast import Contrast, is_contrast
from decodekit.sampling import Pipeline, Stage, Temperature, greedy
from decodekit.sampling.checks import is_count, is_number
from decodekit.sampling.named import Processors, listed

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.errors import DecodekitError
    from decodekit.generation.batch import Update
    from decodekit.generation.search import SearchCall
    from decodekit.generation.sequence import Request, TokenLogprob
    from decodekit.generation.settings import NoiseKeys, Settings
    from decodekit.models.causal_lm import CausalLM
    from decodekit.sampling import Candidates
    from decodekit.speculation.proposer import Proposer, Speculate

EarlyStopping: TypeAlias = bool | Literal["never"]


@dataclass(frozen=True)
class Beam:
    """The likeliest texts that a search with a few hypotheses finds.

    Processors see log-probabilities and the sums are of what they leave, without dividing by its mass: a constraint
    takes continuations away and changes the score of none. (So it is in transformers.)

    Args:
        num_beams: hypotheses that are kept, at least 2; each is a row of the cache.
        length_penalty: exponent of the length that divides a log-probability; above 0 favours long texts.
        early_stopping: when a prompt is done that has `num_beams` ended texts. True: at once. False: when the best
            hypothesis, at its present length, is no better than the worst of them. ``"never"``: when it could not be
            better at any length, if its remaining tokens had probability 1.
        num_return_sequences: how many texts to return, best first; `Completion.others` has those after the first.
        num_beam_groups: groups of equal size that search side by side; divides `num_beams`.
        diversity_penalty: subtracted from the log-probability of a token for each beam of the groups before that took
            it at the same step. It stays in the sum, and so in the score.
        do_sample: draw the continuations instead of taking the likeliest.
        temperature: divides the log-probabilities; only with `do_sample`.
        seed: key of the noise; only with `do_sample`. None is 0.
        processors: further processors, in the order of `Sample`.
        contrast: search the texts of another law than the model's own: `Guidance`, `DoLa` or `Amateur`.
        speculate: None. Drafts are verified along one text, and a beam search has several.

    Raises:
        OptionError: with all options that are out of range, without effect or in conflict.
    """

    name: ClassVar[str] = "beam"

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    num_return_sequences: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    do_sample: bool = False
    temperature: float = 1.0
    seed: int | None = None
    processors: Processors = ()
    speculate: InitVar[Speculate] = None
    contrast: Contrast | None = field(default=None, kw_only=True)

    def __post_init__(self, speculate: Speculate) -> None:
        faults = self._faults()
        if speculate is not None:
            faults.append(
                OptionError(
                    "beam search cannot speculate: a draft continues one text, and beams are several",
                    at="speculate",
                    hint='no speculate=, or strategy="greedy"',
                )
            )
        raise_faults(faults)

    def _faults(self) -> list[DecodekitError]:
        faults: list[DecodekitError] = []

        def need(name: str, condition: bool, expected: str, hint: str | None = None) -> None:
            if not condition:
                value = getattr(self, name)
                faults.append(OptionError(f"{name} must be {expected}, not {value!r}", at=name, hint=hint))

        has_beams = is_count(self.num_beams, 2)
        need("num_beams", has_beams, "an integer from 2 on", '"greedy" or "sample" for one hypothesis')
        need("length_penalty", is_number(self.length_penalty), "a number")
        stops = self.early_stopping
        need(
            "early_stopping",
            isinstance(stops, bool) or (isinstance(stops, str) and stops == "never"),
            'False, True or "never"',
        )
        returned = self.num_return_sequences
        need("num_return_sequences", is_count(returned), "an integer from 1 on")
        if has_beams and is_count(returned):
            need("num_return_sequences", returned <= self.num_beams, f"at most num_beams={self.num_beams}")
        groups = self.num_beam_groups
        need("num_beam_groups", is_count(groups), "an integer from 1 on")
        if has_beams and is_count(groups):
            need("num_beam_groups", self.num_beams % groups == 0, f"a divisor of num_beams={self.num_beams}")
        need(
            "diversity_penalty", is_number(self.diversity_penalty) and self.diversity_penalty >= 0, "a number from 0 on"
        )
        if self.diversity_penalty and groups == 1:
            faults.append(
                UselessOptionError(
                    "diversity_penalty has no effect on one group", at="diversity_penalty", hint="num_beam_groups=2"
                )
            )
        elif not self.diversity_penalty and is_count(groups, 2):
            faults.append(
                UselessOptionError(
                    "without a diversity_penalty all groups find the same",
                    at="num_beam_groups",
                    hint="diversity_penalty=0.5",
                )
            )
        need("do_sample", isinstance(self.do_sample, bool), "True or False")
        if self.do_sample and is_count(groups, 2):
            faults.append(OptionError("groups of beams cannot sample", at="do_sample", hint="num_beam_groups=1"))
        need("temperature", is_number(self.temperature) and self.temperature > 0, "a number above 0")
        need(
            "contrast", self.contrast is None or is_contrast(self.contrast), "Guidance(...), DoLa(...) or Amateur(...)"
        )
        need("seed", self.seed is None or (is_count(self.seed, 0) and self.seed < 1 << 63), "an integer of 63 bits")
        if not self.do_sample:
            for option, is_given in (("temperature", self.temperature != 1.0), ("seed", self.seed is not None)):
                if is_given:
                    cause = f"{option} has no effect on beams that take the likeliest"
                    faults.append(UselessOptionError(cause, at=option, hint="do_sample=True"))
        listed(self.processors, faults)
        return faults

    @cached_property
    def pipeline(self) -> Pipeline:
        """Biases, temperature, the rest: what log-probabilities go through."""
        extra = listed(self.processors, [])
        if self.temperature == 1.0:
            return Pipeline(extra)
        biases = [processor for processor in extra if processor.stage is Stage.BIAS]
        return Pipeline((*biases, Temperature(self.temperature), *(p for p in extra if p.stage is not Stage.BIAS)))

    @property
    def proposer(self) -> Proposer | None:
        """None: nobody guesses ahead."""
        return None

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The likeliest token of each row alone, which is what one hypothesis would take."""
        return greedy(scores if isinstance(scores, Tensor) else scores.dense())

    def decode(
        self, model: CausalLM, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        """Search the prompts of a stream; see `generation.search.Search`."""
        from decodekit.generation.beam_batch import BeamBatch

        return BeamBatch(model, settings, self, num_prompts, requests).run()

    def refusals(self, call: SearchCall) -> Iterator[DecodekitError]:
        """Options that a beam search does not have."""
        if call.on_length == "close":
            yield OptionError(
                'on_length="close" and beam search cannot be combined',
                at="on_length",
                hint="bounds on lengths in the constraint; texts that were cut rank behind all whole ones",
            )
        if call.fast_forward == "canonical":
            yield OptionError(
                'fast_forward="canonical" and beam search cannot be combined: beams are compared token by token',
                at="fast_forward",
                hint='fast_forward="exact"',
            )
        if call.max_rollbacks is not None:
            yield UselessOptionError(
                f"max_rollbacks={call.max_rollbacks} has no effect on beams: what a guard refuses is no candidate",
                at="max_rollbacks",
            )

    def rank(self, hypothesis: Hypothesis) -> tuple[bool, float]:
        """What finished hypotheses are sorted by: whether the constraint accepts them, then their scores."""
        return hypothesis.is_whole, hypothesis.score(self.length_penalty)

    @property
    def group_size(self) -> int:
        """Beams of one group."""
        return self.num_beams // self.num_beam_groups


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
    """The hypotheses of one group.

    Args:
        options: of the search.
        max_tokens: most tokens of a text.
        num_eos: how many tokens end a text.
        live: the hypotheses that go on, best first; one at the start.
    """

    options: Beam
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
        if matcher is not None and not matcher.accept(candidate.token):
            raise RuntimeError(f"{type(matcher).__name__} refused token {candidate.token}, which its own mask allowed")
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


def hamming_penalty(groups: Sequence[Beams], diversity_penalty: float, vocab_size: int) -> Tensor | None:
    """`diversity_penalty` for every beam of `groups` that took a token at this step, float32 [V]; None without any.

    Negated, this is the Hamming diversity of Vijayakumar et al. 2016, section 3.
    """
    tokens = [hypothesis.token_ids[-1] for beams in groups for hypothesis in beams.live if hypothesis.token_ids]
    if not tokens:
        return None
    return torch.bincount(torch.tensor(tokens), minlength=vocab_size) * diversity_penalty
