"""One step of decoding: every sequence of a batch takes one token.

Whatever is decoded goes through `step`: the first token after a prompt and all later ones, free or constrained,
greedy or sampled. The token of a row depends on that row alone: its logits, its prefix, its constraint, its seed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodekitError, DecodingError, NonFiniteLogitsError
from decodekit.generation.buffers import NONE_ALLOWED, Masks, TokenTable, sole_tokens
from decodekit.generation.padding import right_padded
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
    """

    vocabulary: Vocabulary
    pipeline: Pipeline
    select: Selector
    max_new_tokens: int
    stop: StopStrings = StopStrings()
    num_alternatives: int | None = None
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
    choices = choose(sequences, logits, bitmask, settings, table)  # a token, or the reason why there is none
    logprobs = measure(logits, choices, settings.num_alternatives)
    now = time.perf_counter()
    for sequence, choice, logprob in zip(sequences, choices, logprobs, strict=True):
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


def measure(
    logits: Tensor, choices: Rows[int | DecodekitError], num_alternatives: int | None
) -> list[TokenLogprob | None]:
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
