"""From logits to a token, for many positions at once: those of many rows, and along the draft of each.

Everything here is a function of a position alone: its logits, the tokens before it, its mask and its noise. That is why
a draft may be looked at as a whole, and why rows do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodekitError, DecodingError, NonFiniteLogitsError, ProcessorError
from decodekit.generation.masks import ALL_ALLOWED, NONE_ALLOWED, sole_tokens
from decodekit.generation.mirostat_states import take_along
from decodekit.generation.positions import Position, noise_keys
from decodekit.generation.rejection import verified
from decodekit.generation.sequence import Sequence, TokenLogprob
from decodekit.generation.settings import Settings
from decodekit.generation.token_table import TokenTable
from decodekit.sampling import Candidates, History, apply_bitmask, faults, sample
from decodekit.sampling.noise import Stream
from decodekit.sampling.pipeline import is_faulty

if TYPE_CHECKING:
    import numpy.typing as npt

    from decodekit.models.causal_lm import CausalLM
    from decodekit.speculation.verification import Verify
    from decodekit.vocabulary import Vocabulary


def choose(
    positions: Rows[Position], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """One token per position, or the error of the position."""
    draw_all = draw if settings.mirostat is None else draw_along
    if bitmask is None:
        return draw_all(positions, logits, None, settings, table)
    # A token that is the only one allowed is certain: temperature and truncation keep it, whatever its logit. Noise is
    # keyed by position, so that not drawing here moves no later draw.
    sole = sole_tokens(bitmask)
    if settings.can_ban:
        sole = [token if token == NONE_ALLOWED else None for token in sole]
    rows = [row for row, token in enumerate(sole) if token is None]
    if len(rows) == len(positions):
        return draw_all(positions, logits, bitmask, settings, table)
    drawn: Iterator[int | DecodekitError] = iter(())
    if rows:
        index = torch.tensor(rows)
        some = [positions[row] for row in rows]
        drawn = iter(draw_all(some, logits[index.to(logits.device)], bitmask[index], settings, table))
    return [
        next(drawn) if token is None else one.sequence.error or _dead_end(one) if token == NONE_ALLOWED else token
        for one, token in zip(positions, sole, strict=True)
    ]


def draw(
    positions: Rows[Position], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """Process the logits [P, V] and select one token per position, or the error of the position."""
    try:
        rows, keys = scores(positions, logits, bitmask, settings, table), noise_keys(positions)
        return verified([*settings.select(rows, keys).tolist()], positions, rows, keys)
    except DecodingError as error:
        if len(positions) == 1:
            return [_at(positions[0], error, logits, bitmask, settings, table)]
    # One position must not stop the others. Everything is a function of the position, so that each is drawn alone.
    return [
        choice
        for row, position in enumerate(positions)
        for choice in draw([position], *_only(row, logits, bitmask), settings, table)
    ]


def _only(row: int, logits: Tensor, bitmask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return logits[row : row + 1], None if bitmask is None else bitmask[row : row + 1]


def draw_along(
    positions: Rows[Position], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """`draw` with a truncation that adapts to the text; see `generation.mirostat_states`."""
    assert settings.mirostat is not None
    try:
        rows = scores(positions, logits, bitmask, settings, table)
    except DecodingError as error:  # of a processor, whatever the position
        return [_at(position, error, logits, bitmask, settings, table) for position in positions]
    rows = rows.dense() if isinstance(rows, Candidates) else rows
    choices = take_along(settings.mirostat, settings.select, positions, rows, noise_keys(positions))
    return [
        _at(position, choice, *_only(row, logits, bitmask), settings, table)
        if isinstance(choice, DecodingError)
        else choice
        for row, (position, choice) in enumerate(zip(positions, choices, strict=True))
    ]


def scores(
    positions: Rows[Position], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> Tensor | Candidates:
    """The processed rows: each with the text that stands before it, draft included, and with its own mask."""
    device = logits.device
    history = None
    if table is not None:
        history = table.history([one.sequence for one in positions], [one.draft for one in positions], device)
    return settings.pipeline.narrow(logits, history, None if bitmask is None else bitmask.to(device))


@dataclass(frozen=True, slots=True)
class LikeTarget:
    """Takes tokens from the logits of a draft model as the target takes its own; see `speculation.proposer.Target`.

    Args:
        sequences: the rows.
        settings, table, model: as in `step`.
    """

    sequences: Rows[Sequence]
    settings: Settings
    table: TokenTable | None = None
    model: CausalLM | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """What its tokens are."""
        return self.settings.vocabulary

    @property
    def verify(self) -> Verify:
        """How drafts are verified."""
        return self.settings.verify

    def take(self, rows: Rows[int], drafts: Rows[Rows[int]], logits: Tensor) -> list[int | None]:
        """One token per position. Masks are dear and most tokens are legal: a mask is made where one is not."""
        positions = [Position(self.sequences[row], draft) for row, draft in zip(rows, drafts, strict=True)]
        tokens = [_token(choice) for choice in draw(positions, logits, None, self.settings, self.table)]
        illegal = [i for i, token in enumerate(tokens) if not _allows(positions[i], token)]
        if illegal:
            some = [positions[i] for i in illegal]
            index = torch.tensor(illegal, device=logits.device)
            redrawn = draw(some, logits[index], self._masks(some), self.settings, self.table)
            for i, choice in zip(illegal, redrawn, strict=True):
                tokens[i] = _token(choice)
        return tokens

    def draw(self, rows: Rows[int], drafts: Rows[Rows[int]], logits: Tensor) -> tuple[list[int | None], Tensor]:
        """Tokens drawn apart from the target's, and the distributions q that they come from, which need all masks."""
        positions = [Position(self.sequences[row], draft) for row, draft in zip(rows, drafts, strict=True)]
        has_masks = any(position.sequence.matcher is not None for position in positions)
        processed = scores(positions, logits, self._masks(positions) if has_masks else None, self.settings, self.table)
        processed = processed.dense() if isinstance(processed, Candidates) else processed
        bad = faults(processed.amax(dim=-1))
        good = [i for i in range(len(positions)) if i not in bad]
        tokens: list[int | None] = [None] * len(positions)
        if good:
            keys = noise_keys(positions).of(good, Stream.DRAFT)
            drawn = sample(processed[good], keys.seeds, keys.sequences, keys.positions).tolist()
            for i, token in zip(good, drawn, strict=True):
                tokens[i] = token
        return tokens, processed.softmax(dim=-1)

    def _masks(self, positions: Rows[Position]) -> Tensor:
        """The tokens allowed at each position, int32 [P, W]."""
        words = np.zeros((len(positions), self.vocabulary.num_mask_words), dtype=np.int32)
        for position, row in zip(positions, words, strict=True):
            _fill_ahead(position, row)
        return torch.from_numpy(words)


def _token(choice: int | DecodekitError) -> int | None:
    return choice if isinstance(choice, int) else None


def _allows(position: Position, token: int | None) -> bool:
    matcher = position.sequence.matcher
    if matcher is None:
        return True
    try:
        return token is not None and matcher.validate([*position.draft, token]) > len(position.draft)
    except DecodekitError:  # the row will meet the error by itself
        return True


def _fill_ahead(position: Position, words: npt.NDArray[np.int32]) -> None:
    """The tokens allowed at a position, into ``words``, int32 [W]; none where the constraint fails."""
    matcher = position.sequence.matcher
    if matcher is None:
        words[:] = ALL_ALLOWED
        return
    begin = matcher.num_tokens
    try:
        if all(matcher.accept(token) for token in position.draft):
            matcher.fill_bitmask(words[None], exact=False)
    except DecodekitError:
        words[:] = 0
    matcher.rollback(matcher.num_tokens - begin)


def record(
    taken: Rows[tuple[Sequence, Rows[int], int]], logits: Tensor, bitmask: Tensor | None, settings: Settings
) -> None:
    """Note the log-probabilities of the tokens that were taken, if they are wanted.

    Args:
        taken: sequences, the tokens they took last, and the position of the first one among those of the step.
        logits, bitmask: of all positions, [P, V] and [P, W].
        settings: as in `step`.
    """
    if settings.num_alternatives is None:
        return
    positions = [position for _, tokens, first in taken for position in range(first, first + len(tokens))]
    if not positions:
        return
    rows = logits if len(positions) == len(logits) else logits[torch.tensor(positions, device=logits.device)]
    masks = None if bitmask is None else bitmask[torch.tensor(positions)]
    every = [token for _, tokens, _ in taken for token in tokens]
    entries = iter(measure(rows, every, settings.num_alternatives, masks))
    for sequence, tokens, _ in taken:
        sequence.logprobs += islice(entries, len(tokens))


def measure(
    logits: Tensor, tokens: Rows[int], num_alternatives: int, bitmask: Tensor | None = None
) -> list[TokenLogprob]:
    """Log-probabilities of taken tokens under the model's own distribution: logits [N, V], masks int32 [N, W]."""
    log_probs = torch.log_softmax(logits, dim=-1)
    taken = log_probs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    top = log_probs.topk(min(num_alternatives, log_probs.shape[-1]), dim=-1)
    masses = [0.0] * len(tokens) if bitmask is None else log_mass(log_probs, bitmask).tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)), log_z)
        for token, logprob, ids, values, log_z in zip(
            tokens, taken, top.indices.tolist(), top.values.tolist(), masses, strict=True
        )
    ]


def log_mass(log_probs: Tensor, bitmask: Tensor) -> Tensor:
    """The logarithm of what the masks leave of each row of log-probabilities [N, V], [N]; 0 where they leave all."""
    is_free = (bitmask == ALL_ALLOWED).all(dim=-1).to(log_probs.device)
    mass = apply_bitmask(log_probs, bitmask.to(log_probs.device)).logsumexp(dim=-1).clamp(max=0)
    return mass.masked_fill(is_free, 0.0)


def _dead_end(position: Position) -> DeadEndError:
    return DeadEndError(
        "the constraint allows no token of this vocabulary and the text is not complete",
        at=str(position),
        hint="a tokenizer that has every byte as a token, or a wider constraint",
    )


def _at(
    position: Position,
    error: DecodingError,
    logits: Tensor,
    bitmask: Tensor | None,
    settings: Settings,
    table: TokenTable | None,
) -> DecodingError:
    """The error of a position that was drawn alone, with the position that a caller knows, and with who made it."""
    if isinstance(error, DeadEndError):
        cause = "every token that is allowed has a logit of -inf"
        hint = error.hint or "a wider constraint, or fewer forbidden tokens in logit_bias"
        return DeadEndError(cause, at=str(position), hint=hint)
    if isinstance(error, NonFiniteLogitsError):
        device = logits.device
        history = None if table is None else table.history([position.sequence], [position.draft], device)
        return non_finite(settings, str(position), logits, history, None if bitmask is None else bitmask.to(device))
    if isinstance(error, ProcessorError):
        return ProcessorError(error.cause, at=f"{position}, {error.at}", hint=error.hint)
    return error


def non_finite(
    settings: Settings, at: str, logits: Tensor, history: History | None = None, bitmask: Tensor | None = None
) -> DecodingError:
    """The error of a position that has NaN or +inf before a token is taken: of the model, or of whom else it is.

    Args:
        settings: as in `step`.
        at: the position.
        logits: float32 [N, V], as the model gave them; a row without a finite logit is a fault of the model, too.
        history: what the processors are given.
        bitmask: int32 [1, W], the allowed tokens.
    """
    if not bool(logits.amax(dim=-1).isfinite().all()):  # the maximum of a row with NaN is NaN
        hint = 'dtype="float32" or "bfloat16": float16 overflows in many models'
        what = "NaN or +inf logits" if bool(is_faulty(logits).any()) else "no finite logit"
        return NonFiniteLogitsError(f"{settings.law_of} gave {what}", at=at, hint=hint)
    culprit = settings.pipeline.first_fault(logits, history, bitmask)
    if culprit is None:
        cause = "finite logits of the model became NaN or +inf where a token is selected"
        return NonFiniteLogitsError(cause, at=at, hint="the strategy's own select")
    return ProcessorError(
        f"{culprit!r:.60} made NaN or +inf of finite logits",
        at=f"{at}, processor {type(culprit).__name__}",
        hint="look for 0 / 0, infinity less infinity, a logarithm of a negative number; -inf forbids a token",
    )
