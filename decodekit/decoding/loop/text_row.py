"""One row of a batch: what was asked, and how far it is."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodekit.constraints.matching.wrapped_matcher import BudgetedMatcher
from decodekit.constraints.work_budget import next_slice
from decodekit.decoding.request.stats import ProposerStats, Stats
from decodekit.decoding.request.stopping import FinishReason, TextStream
from decodekit.errors import DecodekitError

if TYPE_CHECKING:
    from decodekit.chat.thought import Thought
    from decodekit.constraints.constraint import Refusal
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.decoding.request.settings import Settings
    from decodekit.decoding.request.token_traces import TokenTrace


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to continue, with its constraint and seed.

    Args:
        prompt: token ids, at least one.
        matcher: the constraint's state at the beginning of the new text; None for free text.
        seed: key of the noise with which tokens are sampled.
        sequence: number of this sample among several samples of one prompt, the second key of the noise.
        negative_prompt: token ids of what guidance contrasts the prompt with; empty without.
        salt: requests of other salts share nothing that was read.
        deadline: when it ends at the latest, a value of `time.monotonic`; None without.
        thought: with which the text may begin; None for a text that is all answer.
    """

    prompt: Sequence[int]
    matcher: Matcher | None = None
    seed: int = 0
    sequence: int = 0
    negative_prompt: Sequence[int] = ()
    salt: Hashable = None
    deadline: float | None = None
    thought: Thought | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a token under the model's own distribution: log-softmax of its logits as they came.

    Penalties, temperature, truncation and the constraint are not in it, so figures of different strategies compare.

    Args:
        token_id: the token that was taken.
        logprob: its natural logarithm of probability.
        alternatives: the likeliest tokens at this position with theirs, likeliest first; the taken one may be among
            them.
        log_z: logarithm of what the constraint's mask leaves of the model's distribution here, the sum of
            exp(log-probability) over the tokens that may come; 0 without a constraint, None where not every mask was
            made. See `decoding.request.stats.Stats`.
    """

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()
    log_z: float | None = 0.0


@dataclass(slots=True, eq=False)
class DraftCounts:
    """Drafts that were verified: how many, their tokens, and how many had their token at each position accepted."""

    num_drafts: int = 0
    num_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def add(self, num_tokens: int, num_accepted: int) -> None:
        """Count one more draft."""
        self.num_drafts += 1
        self.num_tokens += num_tokens
        self.accepted_at += [0] * (num_accepted - len(self.accepted_at))
        for position in range(num_accepted):
            self.accepted_at[position] += 1


@dataclass(slots=True, eq=False)
class TextRow:
    """The row of one text on its way.

    `pending` holds the tokens that the model has not read: the prompt first, then the token taken last, and forced
    tokens with both. The model has always read ``prompt + token_ids`` up to them. `new_text` and the tokens from
    `num_reported` on were not handed out yet. `memory` is what proposers keep for the row, `states` the mu of Mirostat
    by the number of tokens before it (see `decoding.draws.mirostat_states`).

    Where the constraint has a guard, `bans` holds the tokens that must not come at a position after the present prefix,
    `refusal` why the guard refused last, and `position_refusals`, by length of the text, why it refuses tokens that the
    masks of the present step do not have. `plan` holds the tokens that end the text in time, once the budget leaves no
    other choice.

    `fault` is what code of the request did wrong before the model read the row, which then ends with it.

    `drafts` are counted together, by "", and by proposer where there are several.

    `num_reused` counts the tokens of the prompt that another row had read (see `decoding.prefixes.shared_rows`).

    `is_waiting` says that its constraint needs more than this step gives it, `num_slices` how many steps gave it some,
    and `held` is what the row goes on with then (see `decoding.lazy_masks.deferral`).

    Args:
        index: number of the request.
        request: what is continued.
        max_tokens: the most tokens that it may have.
        settings: how it is decoded; its neighbours may have others.
        row: its row of the cache; -1 before it has one.
    """

    index: int
    request: Request
    max_tokens: int
    settings: Settings
    row: int = -1
    matcher: Matcher | None = field(init=False)
    pending: list[int] = field(init=False)
    token_ids: list[int] = field(init=False, default_factory=list)
    logprobs: list[TokenLogprob] = field(init=False, default_factory=list)
    traces: list[TokenTrace] = field(init=False, default_factory=list)
    stream: TextStream = field(init=False)
    new_text: str = field(init=False, default="")
    num_reported: int = field(init=False, default=0)
    finish_reason: FinishReason | None = field(init=False, default=None)
    error: DecodekitError | None = field(init=False, default=None)
    fault: DecodekitError | None = field(init=False, default=None)
    num_forwards: int = field(init=False, default=0)
    num_reused: int = field(init=False, default=0)
    mask_s: float = field(init=False, default=0.0)
    num_masks: int = field(init=False, default=0)
    ask_s: float = field(init=False, default=0.0)
    num_questions: int = field(init=False, default=0)
    pause: int = field(init=False, default=0)
    pause_left: int = field(init=False, default=0)
    started_at: float = field(init=False)
    first_token_at: float | None = field(init=False, default=None)
    has_guard: bool = field(init=False)
    bans: dict[int, set[int]] = field(init=False, default_factory=dict)
    refusal: Refusal | None = field(init=False, default=None)
    position_refusals: dict[int, Refusal] = field(init=False, default_factory=dict)
    plan: tuple[int, ...] = field(init=False, default=())
    num_guard_refusals: int = field(init=False, default=0)
    num_rollbacks: int = field(init=False, default=0)
    num_forced_tokens: int = field(init=False, default=0)
    drafts: dict[str, DraftCounts] = field(init=False, default_factory=dict)
    memory: dict[Any, Any] = field(init=False, default_factory=dict)
    states: dict[int, float] = field(init=False, default_factory=dict)
    is_waiting: bool = field(init=False, default=False)
    num_slices: int = field(init=False, default=0)
    held: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        # The request's own matcher stays at the beginning, so that a request can be run again.
        self.matcher = None if self.request.matcher is None else self.request.matcher.fork()
        self.has_guard = self.matcher is not None and self.matcher.has_guard
        self.pending = list(self.request.prompt)
        self.stream = TextStream(self.settings.stops, self.settings.keeps_stop)
        self.started_at = time.perf_counter()

    @property
    def length(self) -> int:
        """Tokens of prompt and text together."""
        return len(self.request.prompt) + len(self.token_ids)

    @property
    def is_provisional(self) -> bool:
        """Whether all of the text may still be taken back, so that nothing of it is handed out."""
        return self.has_guard and self.finish_reason is None

    @property
    def banned(self) -> set[int]:
        """The tokens that must not come next, because a guard refused what came of them."""
        return self.bans.get(len(self.token_ids), set())

    def is_prepared(self, token: int | None = None) -> bool:
        """Do a slice of the work for the next mask, or for the question about a token; if more is needed, wait."""
        assert self.matcher is not None
        self.is_waiting = not self.matcher.prepare(next_slice(self.num_slices), token)
        self.num_slices += self.is_waiting
        return not self.is_waiting

    @property
    def is_served(self) -> bool:
        """Whether nobody waits for its constraint: the work of that has a budget, and other requests may come."""
        return isinstance(self.matcher, BudgetedMatcher)

    @property
    def num_read(self) -> int:
        """Tokens of prompt and text that the model has read."""
        return self.length - len(self.pending)

    def read_again(self) -> None:
        """Leave the row: all that the model has read is pending, to be read in another row. The text stays as it is."""
        self.row = -1
        self.pending = [*self.request.prompt, *self.token_ids]
        self.held, self.is_waiting = None, False

    def roll_back(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens; the token that came next is banned there, later bans are forgotten.

        What the model has read must be cut to `length` - 1 tokens, for it reads the last one anew.
        """
        assert self.matcher is not None and num_tokens < len(self.token_ids)
        self.bans = {position: tokens for position, tokens in self.bans.items() if position <= num_tokens}
        self.bans.setdefault(num_tokens, set()).add(self.token_ids[num_tokens])
        self.matcher.rollback(len(self.token_ids) - num_tokens)
        del self.token_ids[num_tokens:], self.logprobs[num_tokens:], self.traces[num_tokens:]
        self.forget_states()
        self.plan = ()
        self.pending = [(self.token_ids or self.request.prompt)[-1]]
        self.stream = TextStream(self.settings.stops, self.settings.keeps_stop)
        texts = self.matcher.token_texts
        self.new_text = "".join(self.stream.push(texts[token] or b"") for token in self.token_ids)
        self.num_rollbacks += 1

    def fork(self, request: Request, row: int) -> TextRow:
        """The same text for another sample in another row, where it goes on by itself.

        Only for texts without bans, drafts and states, which would be shared: searches have none of them.
        """
        twin = object.__new__(TextRow)  # `copy.copy` takes twice as long, and beams fork at every token
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.request, twin.row = request, row
        twin.matcher = None if self.matcher is None else self.matcher.fork()
        twin.stream = self.stream.fork()
        twin.pending, twin.token_ids, twin.logprobs = [*self.pending], [*self.token_ids], [*self.logprobs]
        twin.traces = [*self.traces]
        return twin

    def forget_states(self) -> None:
        """Drop the states behind the text, and those that it cannot be taken back to."""
        if not self.states:
            return
        self.states = {position: state for position, state in self.states.items() if position <= len(self.token_ids)}
        if self.states and not self.has_guard:
            latest = max(self.states)
            self.states = {latest: self.states[latest]}

    def count_draft(self, num_tokens: int, num_accepted: int, source: str = "") -> None:
        """Note that a draft of so many tokens was verified, how many were accepted, and who of several offered it."""
        for name in {"", source}:
            self.drafts.setdefault(name, DraftCounts()).add(num_tokens, num_accepted)

    def finish(self, reason: FinishReason, error: DecodekitError | None = None) -> None:
        """End the sequence: the text that was held back is released."""
        self.finish_reason, self.error = reason, error
        self.new_text += self.stream.close()

    def stats(self, now: float) -> Stats:
        """Times and counts up to `now`, a value of `time.perf_counter`."""
        drafts = self.drafts.get("") or DraftCounts()
        known = [entry.log_z for entry in self.logprobs if entry.log_z is not None]
        return Stats(
            num_prompt_tokens=len(self.request.prompt),
            num_generated_tokens=len(self.token_ids),
            num_forwards=self.num_forwards,
            num_reused_tokens=self.num_reused,
            ttft_s=None if self.first_token_at is None else self.first_token_at - self.started_at,
            duration_s=now - self.started_at,
            num_guard_refusals=self.num_guard_refusals,
            num_rollbacks=self.num_rollbacks,
            num_forced_tokens=self.num_forced_tokens,
            num_drafts=drafts.num_drafts,
            num_draft_tokens=drafts.num_tokens,
            acceptance_histogram=tuple(drafts.accepted_at),
            mask_s=None if self.matcher is None else self.mask_s,
            num_masks=self.num_masks,
            ask_s=None if self.matcher is None else self.ask_s,
            num_questions=self.num_questions,
            log_z=math.fsum(known) if known and len(known) == len(self.logprobs) else None,
            by_proposer=tuple(
                ProposerStats(name, counts.num_drafts, counts.num_tokens, tuple(counts.accepted_at))
                for name, counts in self.drafts.items()
                if name
            ),
        )


def by_settings(sequences: Sequence[TextRow]) -> list[list[TextRow]]:
    """The rows of settings that tokens are taken by in one way together, in order; see `Settings.batch_key`."""
    parts: dict[int, list[TextRow]] = {}
    for sequence in sequences:
        parts.setdefault(id(sequence.settings.batch_key), []).append(sequence)
    return [*parts.values()]
