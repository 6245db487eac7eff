"""From logits to a token, for many positions at once: those of many rows, and along the draft of each.

Everything here is a function of a position alone: its logits, the tokens before it, its mask and its noise. That is why
a draft may be looked at as a whole, and why rows do not meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decodekit.decoding.draws.device_draws import device_draws
from decodekit.decoding.draws.mirostat_states import take_along
from decodekit.decoding.draws.rejection import verified
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.lazy_masks.positions import Position, noise_keys
from decodekit.decoding.lazy_masks.row_masks import ALL_ALLOWED, NONE_ALLOWED, sole_tokens
from decodekit.decoding.loop.text_row import TextRow, TokenLogprob
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.errors import DeadEndError, DecodekitError, DecodingError, NonFiniteLogitsError, ProcessorError
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling import Candidates, History, MirostatTruncation, apply_bitmask, faults, sample
from decodekit.sampling.noise import Stream
from decodekit.sampling.selectors import is_faulty
from decodekit.speculation.verification import Verify
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Outputs:
    """The model's logits at the positions of a step, and the scores from which a token is taken at each.

    Args:
        positions: P of them.
        logits: float32 [P, V], as the model gives them.
        bitmask: int32 [P, W], the allowed tokens; None in free text.
        settings: how tokens are taken.
        table: the prefixes, if a processor of the pipeline looks back.
    """

    positions: Sequence[Position]
    logits: Tensor
    bitmask: Tensor | None
    settings: Settings
    table: TokenTable | None

    def at(self, indices: Sequence[int]) -> Outputs:
        """Those of some positions."""
        index = torch.tensor(indices)
        logits = self.logits[index.to(self.logits.device)]
        bitmask = None if self.bitmask is None else self.bitmask[index]
        return Outputs([self.positions[i] for i in indices], logits, bitmask, self.settings, self.table)

    def choose_rest(self, choices: Sequence[int | None]) -> list[int | DecodekitError]:
        """One token per position: what is known already, or of the rest what is allowed and drawn."""
        rest = [place for place, choice in enumerate(choices) if choice is None]
        if not rest:
            return [choice for choice in choices if choice is not None]
        if len(rest) == len(choices):
            return self.choose()
        some = self.at(rest)
        if all(position.sequence.matcher is None for position in some.positions):
            some = replace(some, bitmask=None)
        chosen = iter(some.choose())
        return [next(chosen) if choice is None else choice for choice in choices]

    def choose(self) -> list[int | DecodekitError]:
        """One token per position, or the error of the position."""
        if self.bitmask is None:
            return self.draw()
        # A token that is the only one allowed is certain: temperature and truncation keep it, whatever its logit. Noise
        # is keyed by position, so that not drawing here moves no later draw.
        sole = sole_tokens(self.bitmask)
        if self.settings.can_ban:
            sole = [token if token == NONE_ALLOWED else None for token in sole]
        rows = [row for row, token in enumerate(sole) if token is None]
        if len(rows) == len(self.positions):
            return self.draw()
        drawn = iter(self.at(rows).draw() if rows else ())
        return [
            next(drawn) if token is None else one.sequence.error or _dead_end(one) if token == NONE_ALLOWED else token
            for one, token in zip(self.positions, sole, strict=True)
        ]

    def draw(self) -> list[int | DecodekitError]:
        """Process the logits and select one token per position, or the error of the position."""
        positions, settings = self.positions, self.settings
        if settings.mirostat is not None:
            return self._draw_along(settings.mirostat)
        keys = noise_keys(positions)
        found = device_draws(self.logits, settings, keys, self.bitmask)
        if found is not None:
            # Of a row that failed the host's way tells what was wrong.
            return [one.token if one.status == 0 else self.at([i])._draw_here() for i, one in enumerate(found)]
        return self._draw_rows(keys)

    def _draw_here(self) -> int | DecodekitError:
        """The choice of the only position, by the pipeline and the selector."""
        [choice] = self._draw_rows(noise_keys(self.positions))
        return choice

    def _draw_rows(self, keys: NoiseKeys) -> list[int | DecodekitError]:
        """`draw` by the pipeline and the selector."""
        positions, settings = self.positions, self.settings
        try:
            rows = self.narrowed()
            return verified([*settings.select(rows, keys).tolist()], positions, rows, keys)
        except DecodingError as error:
            if len(positions) == 1:
                return [self._fault(error)]
        # One position must not stop the others. Everything is a function of the position, so that each is drawn alone.
        return [self.at([row])._draw_here() for row in range(len(positions))]

    def _draw_along(self, mirostat: MirostatTruncation) -> list[int | DecodekitError]:
        """`draw` with a truncation that adapts to the text; see `decoding.draws.mirostat_states`."""
        positions = self.positions
        choices: Sequence[int | DecodingError]
        try:
            choices = take_along(mirostat, self.settings.select, positions, self.scores(), noise_keys(positions))
        except DecodingError as error:  # of a processor, whatever the position
            choices = [error] * len(positions)
        return [
            self.at([row])._fault(choice) if isinstance(choice, DecodingError) else choice
            for row, choice in enumerate(choices)
        ]

    def scores(self) -> Tensor:
        """The processed logits, float32 [P, V]."""
        rows = self.narrowed()
        return rows.dense() if isinstance(rows, Candidates) else rows

    def narrowed(self) -> Tensor | Candidates:
        """The processed rows: each with the text that stands before it, draft included, and with its own mask."""
        return self.settings.pipeline.narrow(self.logits, self.history(), self._mask())

    def history(self) -> History | None:
        """The text before each position, if a processor looks back."""
        if self.table is None:
            return None
        drafts = [one.draft for one in self.positions]
        return self.table.history([one.sequence for one in self.positions], drafts, self.logits.device)

    def _mask(self) -> Tensor | None:
        return None if self.bitmask is None else self.bitmask.to(self.logits.device)

    def _fault(self, error: DecodingError) -> DecodingError:
        """The error of the only position, with the place that a caller knows, and with who made it."""
        at = str(self.positions[0])
        match error:
            case DeadEndError():
                hint = error.hint or "a wider constraint, or fewer forbidden tokens in logit_bias"
                return DeadEndError("every token that is allowed has a logit of -inf", at=at, hint=hint)
            case NonFiniteLogitsError():
                return non_finite(self.settings, at, self.logits, self.history(), self._mask())
            case ProcessorError():
                return ProcessorError(error.cause, at=f"{at}, {error.at}", hint=error.hint)
        return error


@dataclass(frozen=True, slots=True)
class LikeTarget:
    """Takes tokens from the logits of a draft model as the target takes its own; see `speculation.proposer.Target`."""

    sequences: Sequence[TextRow]
    settings: Settings
    table: TokenTable | None = None
    model: CausalLM | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of its tokens."""
        return self.settings.vocabulary

    @property
    def verify(self) -> Verify:
        """The verification of drafts, by name."""
        return self.settings.verify

    def take(self, rows: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> list[int | None]:
        """One token per position. Masks are dear and most tokens are legal: a mask is made where one is not."""
        outputs = self._outputs(rows, drafts, logits)
        choices = outputs.draw()
        illegal = [i for i, choice in enumerate(choices) if not _allows(outputs.positions[i], choice)]
        if illegal:
            for i, choice in zip(illegal, self._masked(outputs.at(illegal)).draw(), strict=True):
                choices[i] = choice
        return [choice if isinstance(choice, int) else None for choice in choices]

    def draw(
        self, rows: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor
    ) -> tuple[list[int | None], Tensor]:
        """Tokens drawn apart from the target's, and the distributions q that they come from, which need all masks."""
        outputs = self._outputs(rows, drafts, logits)
        has_masks = any(position.sequence.matcher is not None for position in outputs.positions)
        processed = (self._masked(outputs) if has_masks else outputs).scores()
        bad = faults(processed.amax(dim=-1))
        good = [i for i in range(len(rows)) if i not in bad]
        tokens: list[int | None] = [None] * len(rows)
        if good:
            drawn = sample(processed[good], *noise_keys(outputs.positions).of(good, Stream.DRAFT))
            for i, token in zip(good, drawn.tolist(), strict=True):
                tokens[i] = token
        return tokens, processed.softmax(dim=-1)

    def _outputs(self, rows: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> Outputs:
        positions = [Position(self.sequences[row], draft) for row, draft in zip(rows, drafts, strict=True)]
        return Outputs(positions, logits, None, self.settings, self.table)

    def _masked(self, outputs: Outputs) -> Outputs:
        """The outputs with the tokens allowed at each position."""
        words = np.zeros((len(outputs.positions), self.vocabulary.num_mask_words), dtype=np.int32)
        for position, row in zip(outputs.positions, words, strict=True):
            _fill_ahead(position, row)
        return replace(outputs, bitmask=torch.from_numpy(words))


def _allows(position: Position, choice: int | DecodekitError) -> bool:
    matcher = position.sequence.matcher
    if matcher is None:
        return True
    try:
        return isinstance(choice, int) and matcher.validate([*position.draft, choice]) > len(position.draft)
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
    finally:  # memory may have run out: the step is tried again
        matcher.rollback(matcher.num_tokens - begin)


def record(
    taken: Sequence[tuple[TextRow, Sequence[int], int]], logits: Tensor, bitmask: Tensor | None, settings: Settings
) -> None:
    """Note the log-probabilities of the tokens that were taken, if they are wanted.

    Args:
        taken: sequences, the tokens they took last, and the position of the first one among those of the step.
        logits, bitmask: of all positions, [P, V] and [P, W]; None where not every mask was made.
    """
    if settings.num_alternatives is None:
        return
    positions = [position for _, tokens, first in taken for position in range(first, first + len(tokens))]
    if not positions:
        return
    is_every = positions == list(range(len(logits)))
    rows = logits if is_every else logits[torch.tensor(positions, device=logits.device)]
    masks = None if bitmask is None else bitmask[torch.tensor(positions)]
    every = [token for _, tokens, _ in taken for token in tokens]
    entries = iter(measure(rows, every, settings.num_alternatives, masks))
    for sequence, tokens, _ in taken:
        is_known = sequence.matcher is None or bitmask is not None
        own = islice(entries, len(tokens))
        sequence.logprobs += own if is_known else (replace(entry, log_z=None) for entry in own)


def measure(
    logits: Tensor, tokens: Sequence[int], num_alternatives: int, bitmask: Tensor | None = None
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
    cause = "the constraint allows no token of this vocabulary and the text is not complete"
    hint = "a tokenizer that has every byte as a token, or a wider constraint"
    return DeadEndError(cause, at=str(position), hint=hint)


def non_finite(
    settings: Settings, at: str, logits: Tensor, history: History | None = None, bitmask: Tensor | None = None
) -> DecodingError:
    """The error of a position that has NaN or +inf before a token is taken: of the model, or of whom else it is.

    A row of the model without a finite logit is a fault of the model, too.
    """
    if not bool(logits.amax(dim=-1).isfinite().all()):  # the maximum of a row with NaN is NaN
        hint = 'dtype="float32" or "bfloat16": float16 overflows in many models'
        what = "NaN or +inf logits" if bool(is_faulty(logits).any()) else "no finite logit"
        return NonFiniteLogitsError(f"{settings.distribution_of} gave {what}", at=at, hint=hint)
    culprit = settings.pipeline.first_fault(logits, history, bitmask)
    if culprit is None:
        cause = "finite logits of the model became NaN or +inf where a token is selected"
        return NonFiniteLogitsError(cause, at=at, hint="the strategy's own select")
    return ProcessorError(
        f"{culprit!r:.60} made NaN or +inf of finite logits",
        at=f"{at}, processor {type(culprit).__name__}",
        hint="look for 0 / 0, infinity less infinity, a logarithm of a negative number; -inf forbids a token",
    )
