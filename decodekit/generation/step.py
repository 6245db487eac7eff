"""One step of decoding: every sequence of a batch takes one token.

Whatever is decoded goes through `step`: the first token after a prompt and all later ones, free or constrained,
greedy or sampled. The token of a row depends on that row alone: its logits, its prefix, its constraint, its seed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor

from decodekit.constraints.bitmask import forbid
from decodekit.errors import DeadEndError, DecodekitError, DecodingError, NonFiniteLogitsError
from decodekit.generation.buffers import NONE_ALLOWED, Masks, TokenTable, sole_tokens
from decodekit.generation.padding import right_padded
from decodekit.generation.retreat import MAX_REDRAWS, MAX_ROLLBACKS, checkpoint, destination, failure, give_up
from decodekit.generation.sequence import Sequence, TokenLogprob
from decodekit.generation.stopping import StopStrings, finish_reason
from decodekit.sampling import Candidates, Pipeline, Stage

if TYPE_CHECKING:
    from decodekit.models.causal_lm import Cache, CausalLM
    from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class NoiseKeys:
    """What the noise of every row is keyed by, besides the token id; one entry per row.

    Args:
        seeds: the seeds of the requests.
        sequences: numbers of the samples of a prompt.
        positions: index of the token among the generated ones, 0 for the first.
    """

    seeds: list[int]
    sequences: list[int]
    positions: list[int]


@dataclass(frozen=True, slots=True)
class Retreat:
    """The text goes back to its first `num_tokens` tokens."""

    num_tokens: int


Outcome: TypeAlias = int | Retreat | DecodekitError
"""What a row comes to in one step: a token, a way back, or the reason why there is neither."""


class Selector(Protocol):
    """Takes one token per row."""

    def __call__(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Token ids, int64 [N], for processed logits: float32 [N, V], or the survivors of a top-k that stand for them.

        Deterministic, and per row: the token of a row depends on its scores and its keys alone.

        Raises:
            DeadEndError: a row has no finite score.
            NonFiniteLogitsError: a row has NaN or +inf.
        """


@dataclass(frozen=True, slots=True)
class Settings:
    """How a batch decodes.

    Args:
        vocabulary: bytes of the tokens, and which of them end a text.
        pipeline: what reshapes the logits before a token is selected.
        select: takes the token.
        max_new_tokens: how many tokens a sequence may have.
        stop: texts that end a sequence.
        num_alternatives: how many alternatives to record with each token's log-probability; None records nothing.
        can_redraw: whether a token that may not come can be drawn, cleared and drawn again without a change of law:
            True promises that the selector takes the argmax of something that it computes for every token by itself,
            and that the pipeline removes no tokens. Otherwise what a guard refuses is cleared before the draw.
        max_rollbacks: how often a text is taken back because of a guard before its row fails.
        must_close: let no token come after which the constraint cannot be satisfied within `max_new_tokens`.
    """

    vocabulary: Vocabulary
    pipeline: Pipeline
    select: Selector
    max_new_tokens: int
    stop: StopStrings = StopStrings()
    num_alternatives: int | None = None
    can_redraw: bool = False
    max_rollbacks: int = MAX_ROLLBACKS
    must_close: bool = False
    can_ban: bool = field(init=False)
    """Whether a bias of the pipeline may be -inf, so that the only token that a constraint allows can be forbidden."""

    def __post_init__(self) -> None:
        biases = [processor for processor in self.pipeline if processor.stage is Stage.BIAS]
        object.__setattr__(self, "can_ban", bool(biases))


@torch.inference_mode()
def step(
    sequences: Rows[Sequence], model: CausalLM, cache: Cache, settings: Settings, masks: Masks, table: TokenTable | None
) -> None:
    """Let the model read what is pending and take one token per sequence; some finish by that.

    Args:
        sequences: N unfinished sequences with their rows in `cache`.
        model: gives the logits.
        cache: holds what the model has read of them.
        settings: how tokens are taken.
        masks: buffers for the constraints' bitmasks.
        table: the prefixes, kept if a processor of the pipeline looks back.
    """
    logits = forward(sequences, model, cache)  # [N, V], as the model gives them
    bitmask = masks.fill(sequences)  # [N, words] or None, on the CPU while a GPU computes
    if bitmask is not None and not settings.can_redraw:
        forbid_refused(sequences, bitmask, settings)
    choices = choose(sequences, logits, bitmask, settings, table)  # a token, or the reason why there is none
    settled = choices if bitmask is None else settle(sequences, choices, logits, bitmask, settings, table)
    logprobs = measure(logits, settled, settings.num_alternatives)
    now = time.perf_counter()
    for sequence, choice, logprob in zip(sequences, settled, logprobs, strict=True):
        if isinstance(choice, Retreat):
            continue
        if isinstance(choice, DecodekitError):
            sequence.finish("dead_end" if isinstance(choice, DeadEndError) else "error", choice)
            continue
        try:
            take(sequence, choice, logprob, settings)
        except DecodekitError as error:  # a constraint that outgrew its bounds: the other rows go on
            sequence.finish("error", error)
            continue
        if table is not None:
            table.append(sequence)
        if sequence.first_token_at is None:
            sequence.first_token_at = now
    go_back(sequences, settled, cache, settings, table)


def forward(sequences: Rows[Sequence], model: CausalLM, cache: Cache, num_tokens: int | None = None) -> Tensor:
    """Let the model read the pending tokens, at most `num_tokens` of each row; logits [N, V] after the last of them."""
    reading = [sequence.pending[:num_tokens] for sequence in sequences]
    counts = [len(tokens) for tokens in reading]
    rows = [sequence.row for sequence in sequences]
    in_order = rows == list(range(cache.num_rows))
    logits = model.forward(right_padded(reading, model.device), counts, cache, None if in_order else rows)
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.pending = sequence.pending[count:]
        sequence.num_forwards += 1
    return logits


def choose(
    sequences: Rows[Sequence], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """One token per row, or the error of the row."""
    if bitmask is None:
        return draw(sequences, logits, None, settings, table)
    # A token that is the only one allowed is certain: temperature and truncation keep it, whatever its logit. Noise is
    # keyed by position, so that not drawing here moves no later draw.
    sole = sole_tokens(bitmask)
    if settings.can_ban:
        sole = [token if token == NONE_ALLOWED else None for token in sole]
    rows = [row for row, token in enumerate(sole) if token is None]
    if len(rows) == len(sequences):
        return draw(sequences, logits, bitmask, settings, table)
    drawn: Iterator[int | DecodekitError] = iter(())
    if rows:
        index = torch.tensor(rows)
        some = [sequences[row] for row in rows]
        drawn = iter(draw(some, logits[index.to(logits.device)], bitmask[index], settings, table))
    return [
        next(drawn) if token is None else sequence.error or _dead_end(sequence) if token == NONE_ALLOWED else token
        for sequence, token in zip(sequences, sole, strict=True)
    ]


def draw(
    sequences: Rows[Sequence], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """Process the logits [N, V] and select one token per row, or the error of the row."""
    device = logits.device
    history = None if table is None else table.history(sequences, device)
    keys = NoiseKeys(
        [sequence.request.seed for sequence in sequences],
        [sequence.request.sequence for sequence in sequences],
        [len(sequence.token_ids) for sequence in sequences],
    )
    try:
        scores = settings.pipeline.narrow(logits, history, None if bitmask is None else bitmask.to(device))
        return [*settings.select(scores, keys).tolist()]
    except DecodingError as error:
        if len(sequences) == 1:
            return [_at(sequences[0], error)]
    # One row must not stop the others. Everything here is a pure function of the row, so that each is drawn alone.
    return [
        choice
        for row, sequence in enumerate(sequences)
        for choice in draw(
            [sequence], logits[row : row + 1], None if bitmask is None else bitmask[row : row + 1], settings, table
        )
    ]


def settle(
    sequences: Rows[Sequence],
    choices: list[int | DecodekitError],
    logits: Tensor,
    bitmask: Tensor,
    settings: Settings,
    table: TokenTable | None,
) -> list[Outcome]:
    """What becomes of the drawn tokens of rows that may refuse them: rows whose token may not come are drawn again.

    The bits of these tokens are cleared in `bitmask`, so that the row is drawn from what remains.
    """
    outcomes: list[Outcome] = [*choices]
    rows = [row for row, sequence in enumerate(sequences) if sequence.has_guard or _must_close(sequence, settings)]
    while rows:
        again = []
        for row in rows:
            choice = outcomes[row]
            assert not isinstance(choice, Retreat)
            outcome = judge(sequences[row], choice, settings)
            if outcome is not None:
                outcomes[row] = outcome
            else:
                assert isinstance(choice, int)
                forbid(bitmask[row].numpy(), choice)
                again.append(row)
        if again:
            index = torch.tensor(again)
            some = [sequences[row] for row in again]
            redrawn = choose(some, logits[index.to(logits.device)], bitmask[index], settings, table)
            for row, choice in zip(again, redrawn, strict=True):
                outcomes[row] = choice
        rows = again
    return outcomes


def judge(sequence: Sequence, choice: int | DecodekitError, settings: Settings) -> Outcome | None:
    """What becomes of a drawn token, or of a row without one; None if another token must be drawn."""
    if isinstance(choice, DecodekitError):
        is_empty = sequence.has_guard and isinstance(choice, DeadEndError) and sequence.error is None
        if not is_empty:
            return choice
        here = len(sequence.token_ids)
        return failure(sequence, settings.max_rollbacks, choice) or Retreat(destination(sequence, here - 1))
    assert sequence.matcher is not None
    try:
        refusal = sequence.matcher.refusal(choice) if sequence.has_guard else None
        if refusal is None:
            return choice if not _must_close(sequence, settings) or ends_in_time(sequence, choice) else None
    except DecodekitError as error:  # the guard is a program of the user's, a constraint may outgrow its bounds
        return error
    sequence.refusal = refusal
    sequence.num_guard_refusals += 1
    here = checkpoint(sequence, refusal.keep, settings.vocabulary.token_bytes)
    if here < len(sequence.token_ids):
        return failure(sequence, settings.max_rollbacks) or Retreat(destination(sequence, here))
    banned = sequence.bans.setdefault(here, set())
    banned.add(choice)
    return give_up(sequence, refusal) if len(banned) > MAX_REDRAWS else None


def ends_in_time(sequence: Sequence, token: int) -> bool:
    """Whether the constraint can be satisfied within the budget after `token`.

    By induction some token always passes: the first one of the completion that was found when the token before passed.
    Once a row depends on that, the completion is its `plan`.
    """
    assert sequence.matcher is not None
    num_left = sequence.max_tokens - len(sequence.token_ids) - 1  # after this token
    if sequence.matcher.can_end_within(num_left, token):
        return True
    plan = sequence.plan or sequence.matcher.completion()
    if plan[:1] != (token,) or len(plan) > num_left + 1:
        return False
    sequence.plan = plan
    return True


def forbid_refused(sequences: Rows[Sequence], bitmask: Tensor, settings: Settings) -> None:
    """Clear the tokens that a guard refuses although all of the text so far can stay.

    A token whose refusal takes more back keeps its bit: when it is drawn the text goes back, whatever the strategy.
    """
    for row, sequence in enumerate(sequences):
        if not sequence.has_guard or sequence.matcher is None or sequence.error is not None:
            continue
        try:
            refusals = sequence.matcher.refusals()
        except DecodekitError as error:
            sequence.error = error
            bitmask[row] = 0
            continue
        for token, refusal in refusals.items():
            if checkpoint(sequence, refusal.keep, settings.vocabulary.token_bytes) == len(sequence.token_ids):
                sequence.refusal = refusal
                forbid(bitmask[row].numpy(), token)


def go_back(
    sequences: Rows[Sequence], outcomes: Rows[Outcome], cache: Cache, settings: Settings, table: TokenTable | None
) -> None:
    """Take the texts back whose outcome says so, and cut what the model has read of them."""
    if not any(isinstance(outcome, Retreat) for outcome in outcomes):
        return
    lengths: list[int] = cache.lengths.tolist()
    for sequence, outcome in zip(sequences, outcomes, strict=True):
        if isinstance(outcome, Retreat):
            sequence.take_back(outcome.num_tokens, settings.vocabulary.token_bytes)
            lengths[sequence.row] = sequence.length - 1
            if table is not None:
                table.truncate(sequence)
    cache.truncate(lengths)


def _must_close(sequence: Sequence, settings: Settings) -> bool:
    return settings.must_close and sequence.matcher is not None


def measure(logits: Tensor, choices: Rows[Outcome], num_alternatives: int | None) -> list[TokenLogprob | None]:
    """Log-probabilities of the taken tokens under the model's own law, logits [N, V]; None where there is none."""
    if num_alternatives is None:
        return [None] * len(choices)
    law = torch.log_softmax(logits, dim=-1)
    tokens = torch.tensor([choice if isinstance(choice, int) else 0 for choice in choices], device=logits.device)
    taken = law.gather(1, tokens[:, None])[:, 0].tolist()
    top = law.topk(min(num_alternatives, law.shape[-1]), dim=-1)
    return [
        TokenLogprob(choice, logprob, tuple(zip(ids, values, strict=True))) if isinstance(choice, int) else None
        for choice, logprob, ids, values in zip(choices, taken, top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def take(sequence: Sequence, token: int, logprob: TokenLogprob | None, settings: Settings) -> None:
    """Append a token to a sequence: constraint, text, and whether it ends here."""
    if sequence.matcher is not None and not sequence.matcher.accept(token):
        raise RuntimeError(f"{type(sequence.matcher).__name__} refused token {token}, which its own mask allowed")
    sequence.token_ids.append(token)
    sequence.pending.append(token)
    sequence.plan = sequence.plan[1:] if sequence.plan[:1] == (token,) else ()
    if logprob is not None:
        sequence.logprobs.append(logprob)
    data = settings.vocabulary.token_bytes[token]
    if data is not None:
        sequence.new_text += sequence.stream.push(data)
    reason = finish_reason(
        token,
        eos_token_ids=settings.vocabulary.eos_token_ids,
        matcher=sequence.matcher,
        is_stopped=sequence.stream.is_stopped,
        num_tokens=len(sequence.token_ids),
        max_tokens=sequence.max_tokens,
    )
    if reason == "length" and _must_close(sequence, settings) and sequence.matcher and sequence.matcher.is_accepting:
        reason = "complete"
    if reason is not None:
        sequence.finish(reason)


def _dead_end(sequence: Sequence) -> DeadEndError:
    return DeadEndError(
        "the constraint allows no token of this vocabulary and the text is not complete",
        at=_place(sequence),
        hint="a tokenizer that has every byte as a token, or a wider constraint",
    )


def _at(sequence: Sequence, error: DecodingError) -> DecodingError:
    """The error of a row that was drawn alone, with the place that a caller knows."""
    if isinstance(error, DeadEndError):
        cause = "every token that is allowed has a logit of -inf"
        hint = error.hint or "a wider constraint, or fewer forbidden tokens in logit_bias"
        return DeadEndError(cause, at=_place(sequence), hint=hint)
    if isinstance(error, NonFiniteLogitsError):
        hint = error.hint or 'dtype="float32" or "bfloat16": float16 overflows in many models'
        return NonFiniteLogitsError("the model gave NaN or +inf logits", at=_place(sequence), hint=hint)
    return error


def _place(sequence: Sequence) -> str:
    return f"prompt {sequence.index}, step {len(sequence.token_ids)}"
