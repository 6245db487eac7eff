"""From logits to a token, for many places at once: places of many rows, and along the draft of each.

Everything here is a function of a place alone: its logits, the tokens before it, its mask, its seed and position. That
is why a draft may be looked at as a whole, and why rows do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decodekit.errors import DeadEndError, DecodekitError, DecodingError, NonFiniteLogitsError, ProcessorError
from decodekit.generation.adaptive import take_along
from decodekit.generation.buffers import ALL_ALLOWED, NONE_ALLOWED, TokenTable, sole_tokens
from decodekit.generation.rejection import Drawn, verified
from decodekit.generation.sequence import Sequence, TokenLogprob
from decodekit.generation.settings import NoiseKeys, Settings
from decodekit.sampling import Candidates, History, apply_bitmask, faults, sample
from decodekit.sampling.noise import Stream
from decodekit.sampling.selectors import is_faulty

if TYPE_CHECKING:
    import numpy.typing as npt

    from decodekit.models.causal_lm import CausalLM
    from decodekit.speculation.verification import Verify
    from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Guess:
    """What may follow the text of a row.

    Args:
        tokens: in order, all legal; empty for plain decoding.
        num_forced: how many of the first ones are forced; the others come from a proposer.
        drawn: if they are to be tested, the same tokens, and perhaps one more; see `generation.rejection`.
        source: who of several proposers offers them.
    """

    tokens: Rows[int] = ()
    num_forced: int = 0
    drawn: tuple[Drawn, ...] = ()
    source: str = ""


class Place(NamedTuple):
    """Where a token is wanted: after the text of a sequence and some tokens of a draft.

    `drawn` is the token that the draft has there, if it is to be tested; see `generation.rejection`.
    """

    sequence: Sequence
    draft: Rows[int] = ()
    drawn: Drawn | None = None

    @property
    def position(self) -> int:
        """Index of the wanted token among the generated ones."""
        return len(self.sequence.token_ids) + len(self.draft)

    def __str__(self) -> str:
        return f"prompt {self.sequence.index}, step {self.position}"


def places_along(sequences: Rows[Sequence], guesses: Rows[Guess]) -> list[Place]:
    """The places after the first 0, 1, ..., k tokens of each guess, row by row."""
    return [
        Place(sequence, guess.tokens[:num_tokens], *guess.drawn[num_tokens : num_tokens + 1])
        for sequence, guess in zip(sequences, guesses, strict=True)
        for num_tokens in range(len(guess.tokens) + 1)
    ]


def choose(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """One token per place, or the error of the place."""
    draw_all = draw if settings.mirostat is None else draw_along
    if bitmask is None:
        return draw_all(places, logits, None, settings, table)
    # A token that is the only one allowed is certain: temperature and truncation keep it, whatever its logit. Noise is
    # keyed by position, so that not drawing here moves no later draw.
    sole = sole_tokens(bitmask)
    if settings.can_ban:
        sole = [token if token == NONE_ALLOWED else None for token in sole]
    rows = [row for row, token in enumerate(sole) if token is None]
    if len(rows) == len(places):
        return draw_all(places, logits, bitmask, settings, table)
    drawn: Iterator[int | DecodekitError] = iter(())
    if rows:
        index = torch.tensor(rows)
        some = [places[row] for row in rows]
        drawn = iter(draw_all(some, logits[index.to(logits.device)], bitmask[index], settings, table))
    return [
        next(drawn) if token is None else place.sequence.error or _dead_end(place) if token == NONE_ALLOWED else token
        for place, token in zip(places, sole, strict=True)
    ]


def draw(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """Process the logits [P, V] and select one token per place, or the error of the place."""
    try:
        rows, keys = scores(places, logits, bitmask, settings, table), noise_keys(places)
        return verified([*settings.select(rows, keys).tolist()], places, rows, keys)
    except DecodingError as error:
        if len(places) == 1:
            return [_at(places[0], error, logits, bitmask, settings, table)]
    # One place must not stop the others. Everything is a pure function of the place, so that each is drawn alone.
    return [
        choice
        for row, place in enumerate(places)
        for choice in draw(
            [place], logits[row : row + 1], None if bitmask is None else bitmask[row : row + 1], settings, table
        )
    ]


def draw_along(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> list[int | DecodekitError]:
    """`draw` with a truncation that adapts to the text; see `generation.adaptive`."""
    assert settings.mirostat is not None
    try:
        rows = scores(places, logits, bitmask, settings, table)
    except DecodingError as error:  # of a processor, whatever the place
        return [_at(place, error, logits, bitmask, settings, table) for place in places]
    rows = rows.dense() if isinstance(rows, Candidates) else rows
    choices = take_along(settings.mirostat, settings.select, places, rows, noise_keys(places))
    return [
        _at(place, choice, logits[row : row + 1], None if bitmask is None else bitmask[row : row + 1], settings, table)
        if isinstance(choice, DecodingError)
        else choice
        for row, (place, choice) in enumerate(zip(places, choices, strict=True))
    ]


def scores(
    places: Rows[Place], logits: Tensor, bitmask: Tensor | None, settings: Settings, table: TokenTable | None
) -> Tensor | Candidates:
    """The processed rows: each with the text that stands before it, draft included, and with its own mask."""
    device = logits.device
    history = None
    if table is not None:
        history = table.history([place.sequence for place in places], [place.draft for place in places], device)
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
        """One token per place. Masks are dear and most tokens are legal: only for those that are not, one is made."""
        places = [Place(self.sequences[row], draft) for row, draft in zip(rows, drafts, strict=True)]
        tokens = [_token(choice) for choice in draw(places, logits, None, self.settings, self.table)]
        illegal = [i for i, (place, token) in enumerate(zip(places, tokens, strict=True)) if not _allows(place, token)]
        if illegal:
            some = [places[i] for i in illegal]
            index = torch.tensor(illegal, device=logits.device)
            redrawn = draw(some, logits[index], self._masks(some), self.settings, self.table)
            for i, choice in zip(illegal, redrawn, strict=True):
                tokens[i] = _token(choice)
        return tokens

    def draw(self, rows: Rows[int], drafts: Rows[Rows[int]], logits: Tensor) -> tuple[list[int | None], Tensor]:
        """Tokens drawn apart from the target's, and their laws. These need all masks: q is what was drawn from."""
        places = [Place(self.sequences[row], draft) for row, draft in zip(rows, drafts, strict=True)]
        has_masks = any(place.sequence.matcher is not None for place in places)
        processed = scores(places, logits, self._masks(places) if has_masks else None, self.settings, self.table)
        processed = processed.dense() if isinstance(processed, Candidates) else processed
        bad = faults(processed.amax(dim=-1))
        good = [i for i in range(len(places)) if i not in bad]
        tokens: list[int | None] = [None] * len(places)
        if good:
            keys = noise_keys(places).of(good, Stream.DRAFT)
            drawn = sample(processed[good], keys.seeds, keys.sequences, keys.positions).tolist()
            for i, token in zip(good, drawn, strict=True):
                tokens[i] = token
        return tokens, processed.softmax(dim=-1)

    def _masks(self, places: Rows[Place]) -> Tensor:
        """The tokens allowed at each place, int32 [P, W]."""
        words = np.zeros((len(places), self.vocabulary.num_mask_words), dtype=np.int32)
        for place, row in zip(places, words, strict=True):
            _fill_ahead(place, row)
        return torch.from_numpy(words)


def _token(choice: int | DecodekitError) -> int | None:
    return choice if isinstance(choice, int) else None


def _allows(place: Place, token: int | None) -> bool:
    matcher = place.sequence.matcher
    if matcher is None:
        return True
    try:
        return token is not None and matcher.validate([*place.draft, token]) > len(place.draft)
    except DecodekitError:  # the row will meet the error by itself
        return True


def _fill_ahead(place: Place, words: npt.NDArray[np.int32]) -> None:
    """The tokens allowed at a place, into ``words``, int32 [W]; none where the constraint fails."""
    matcher = place.sequence.matcher
    if matcher is None:
        words[:] = ALL_ALLOWED
        return
    begin = matcher.num_tokens
    try:
        if all(matcher.accept(token) for token in place.draft):
            matcher.fill_bitmask(words[None], exact=False)
    except DecodekitError:
        words[:] = 0
    matcher.rollback(matcher.num_tokens - begin)


def noise_keys(places: Rows[Place]) -> NoiseKeys:
    """Seed, sequence and absolute position of every place."""
    requests = [place.sequence.request for place in places]
    positions = [len(place.sequence.token_ids) + len(place.draft) for place in places]
    return NoiseKeys([one.seed for one in requests], [one.sequence for one in requests], positions)


def measure(
    logits: Tensor, tokens: Rows[int], num_alternatives: int, bitmask: Tensor | None = None
) -> list[TokenLogprob]:
    """Log-probabilities of taken tokens under the model's own law, logits [N, V], masks int32 [N, W] if there are."""
    law = torch.log_softmax(logits, dim=-1)
    taken = law.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    top = law.topk(min(num_alternatives, law.shape[-1]), dim=-1)
    masses = [0.0] * len(tokens) if bitmask is None else log_mass(law, bitmask).tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)), log_z)
        for token, logprob, ids, values, log_z in zip(
            tokens, taken, top.indices.tolist(), top.values.tolist(), masses, strict=True
        )
    ]


def log_mass(law: Tensor, bitmask: Tensor) -> Tensor:
    """The logarithm of what the masks leave of each row of log-probabilities [N, V], [N]; 0 where they leave all."""
    is_free = (bitmask == ALL_ALLOWED).all(dim=-1).to(law.device)
    mass = apply_bitmask(law, bitmask.to(law.device)).logsumexp(dim=-1).clamp(max=0)
    return mass.masked_fill(is_free, 0.0)


def _dead_end(place: Place) -> DeadEndError:
    return DeadEndError(
        "the constraint allows no token of this vocabulary and the text is not complete",
        at=str(place),
        hint="a tokenizer that has every byte as a token, or a wider constraint",
    )


def _at(
    place: Place,
    error: DecodingError,
    logits: Tensor,
    bitmask: Tensor | None,
    settings: Settings,
    table: TokenTable | None,
) -> DecodingError:
    """The error of a place that was drawn alone, with the place that a caller knows, and with who made it."""
    if isinstance(error, DeadEndError):
        cause = "every token that is allowed has a logit of -inf"
        hint = error.hint or "a wider constraint, or fewer forbidden tokens in logit_bias"
        return DeadEndError(cause, at=str(place), hint=hint)
    if isinstance(error, NonFiniteLogitsError):
        device = logits.device
        history = None if table is None else table.history([place.sequence], [place.draft], device)
        return non_finite(settings, str(place), logits, history, None if bitmask is None else bitmask.to(device))
    if isinstance(error, ProcessorError):
        return ProcessorError(error.cause, at=f"{place}, {error.at}", hint=error.hint)
    return error


def non_finite(
    settings: Settings, at: str, logits: Tensor, history: History | None = None, bitmask: Tensor | None = None
) -> DecodingError:
    """The error of a place that has NaN or +inf before a token is taken: of the model, or of whom else it is.

    Args:
        settings: as in `step`.
        at: the place.
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
