"""The settings of a request, and what selects its tokens. The rows of one batch may have different settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from decodekit.decoding.request.stopping import StopRule
from decodekit.sampling import Candidates, LogitsProcessor, MirostatTruncation, Pipeline, Stage
from decodekit.sampling.certificates import Lead
from decodekit.sampling.noise import Stream
from decodekit.speculation.proposer import Proposer
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.speculation.verification import Verify
from decodekit.vocabulary import Vocabulary

MAX_ROLLBACKS: Final = 64
"""How often the text of a row is taken back before the row fails, unless the caller says otherwise."""

FastForward: TypeAlias = Literal["off", "exact", "canonical"]
"""What is taken without asking the model, where a constraint leaves no choice.

``"exact"``: a token that is the only one allowed. The model would give it probability 1 under the mask, so nothing
changes but the number of forward passes.

``"canonical"``: besides, bytes that are the only ones allowed, in the tokens into which the tokenizer itself divides
them. That changes the distribution, and so it is an option. Say ``"name":`` must follow, and the vocabulary has ``"``,
``n``, ``name`` and ``":``. The bytes are certain, the tokens are not: under the mask a model may give 3 % to spelling
the key ``n ame``, and where it does, what follows has been seen with ``n`` before it, which it has hardly met in
training. Taking ``" name ":`` leaves these 3 % out, and the conditional distribution of all later tokens is that after
the canonical tokens. Texts get a little likelier on average, and the log-probability of a text, summed over its tokens,
is no longer that of masked decoding. Tokens that were taken stay as they are; where the tokenizer would not divide at
the end of the text, or a longer token may still swallow the last ones, the model decides (see
`speculation.proposers.canonical`).

``"off"``: every token is asked of the model.
"""

Masking: TypeAlias = Literal["asked", "always"]
"""Where the allowed tokens are found out.

``"asked"``: where a question about one token does not settle which one is taken; see `decoding.lazy_masks.probes`.
``"always"``: at every position, which gives the same texts.
"""


class NoiseKeys(NamedTuple):
    """The keys of every row's noise, besides the token id; one entry per row.

    Args:
        seeds: the seeds of the requests.
        sequences: numbers of the samples of a prompt.
        positions: index of the token among the generated ones, 0 for the first.
    """

    seeds: list[int]
    sequences: list[int]
    positions: list[int]

    def of(self, rows: Sequence[int], stream: Stream = Stream.TARGET) -> NoiseKeys:
        """The keys of some rows, for another of the numbers that a position has."""
        seeds, sequences, positions = ([keys[row] for row in rows] for keys in self)
        return NoiseKeys(seeds, stream.of(sequences), positions)


def left_out_of(
    pipeline: Iterable[LogitsProcessor], vocab_size: int
) -> tuple[frozenset[int], tuple[LogitsProcessor, ...]]:
    """The tokens that biases may forbid, and the biases that may forbid any token, whatever stands before it."""
    left_out: set[int] = set()
    unknown = []
    for processor in pipeline:
        if processor.stage is Stage.BIAS and processor.can_forbid:
            tokens = processor.may_forbid(vocab_size)
            if tokens is None:
                unknown.append(processor)
            else:
                left_out.update(tokens)
    return frozenset(left_out), tuple(unknown)


class Selector(Protocol):
    """Takes one token per row."""

    def __call__(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Token ids, int64 [N], for processed logits: float32 [N, V], or the survivors of a top-k that stand for them.

        Laws: deterministic, and per row: the token of a row depends on its scores and its keys alone, and is the same
        for candidates; a token whose score is -inf is never taken.

        Raises:
            DeadEndError: a row has no finite score.
            NonFiniteLogitsError: a row has NaN or +inf.
        """


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings with which a request is decoded.

    Args:
        vocabulary: bytes of the tokens, and which of them end a text.
        pipeline: what reshapes the logits before a token is selected.
        select: takes the token.
        max_new_tokens: how many tokens a sequence may have.
        stops: texts that end a sequence, none of them empty.
        keeps_stop: whether the one that ended it belongs to it.
        stop_rules: what else ends one; see `stopping.StopRule`.
        num_alternatives: how many alternatives to record with each token's log-probability; None records nothing.
        can_redraw: whether a token that may not come can be drawn, cleared and drawn again without a change of
            distribution: True promises that the selector takes the argmax of something that it computes for every token
            by itself, and that the pipeline removes no tokens. Otherwise what a guard refuses is cleared before the
            draw.
        max_rollbacks: how often a text is taken back because of a guard before its row fails.
        must_close: let no token come after which the constraint cannot be satisfied within `max_new_tokens`.
        fast_forward: what is taken without asking the model.
        proposer: guesses ahead; its drafts are verified.
        verify: how: see `speculation.verification`. ``"rejection"`` promises that the selector draws from the softmax
            of its scores.
        mirostat: truncates by the surprise of the text so far, after the pipeline.
        canonical: how the tokenizer divides texts, for `fast_forward` and for proposers.
        distribution_of: who gives the logits, for errors.
        lead: finds the token that `select` would take of a whole row; None if it is somebody's own.
        masks: where masks are made, if there is a choice.
        traces: whether to record how each token was taken; see `decoding.request.token_traces`.
        texts: what each token adds to a free text.
    """

    vocabulary: Vocabulary
    pipeline: Pipeline
    select: Selector
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    num_alternatives: int | None = None
    can_redraw: bool = False
    max_rollbacks: int = MAX_ROLLBACKS
    must_close: bool = False
    fast_forward: FastForward = "exact"
    proposer: Proposer | None = None
    verify: Verify = "coupled"
    mirostat: MirostatTruncation | None = None
    canonical: Canonical | None = None
    distribution_of: str = "the model"
    lead: Lead | None = None
    masks: Masking = "asked"
    keeps_stop: bool = False
    stop_rules: tuple[StopRule, ...] = ()
    traces: bool = False
    texts: Sequence[bytes | None] = ()
    batch_key: object = field(default_factory=object, compare=False, repr=False)
    """The same for settings that differ in `max_new_tokens`, stops and stop rules alone, whose rows go together."""
    can_ban: bool = field(init=False)
    """Whether a bias of the pipeline may be -inf, so that the only token that a constraint allows can be forbidden.

    Penalties and finite biases cannot (`LogitsProcessor.can_forbid`): the only allowed token stays certain.
    """
    left_out: frozenset[int] = field(init=False)
    """With `must_close`, the tokens that a bias of the pipeline may forbid: no text is made to depend on them."""
    masks_ending: bool = field(init=False)
    """Whether what comes too late for `must_close` is cleared from every mask, and not only where it was drawn.

    Where the selector takes an argmax over all tokens, what is drawn from the larger mask and comes in time is what the
    smaller one would give. A truncation is not the same for both, and `Stats.log_z` is that of the smaller one.
    """
    is_canonical: bool = field(init=False)
    """Whether tokens are taken that are forced by their bytes alone."""
    is_forced_unseen: bool = field(init=False)
    """Whether forced tokens are taken before the model has read what stands before them.

    Not where their log-probabilities are wanted, or where a bias may forbid them: then they go along as a draft.
    """
    is_plain: bool = field(init=False)
    """Whether nothing is guessed: there is no proposer, and forced tokens are taken unseen, or like any other."""
    asks: bool = field(init=False)
    """Whether questions are asked before masks are made: where tokens can be certified, and nobody wants the masks.

    `Stats.log_z`, the mass of the masks, is recorded where this is not so.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", self.texts or self.vocabulary.token_bytes)
        can_ban = any(processor.can_forbid for processor in self.pipeline if processor.stage is Stage.BIAS)
        object.__setattr__(self, "can_ban", can_ban)
        has_leaders = self.lead is not None and self.mirostat is None and self.pipeline.certifies
        makes_masks = self.masks == "always" or not has_leaders
        is_measured = makes_masks and self.num_alternatives is not None
        is_exact = self.must_close and (not self.can_redraw or is_measured)
        object.__setattr__(self, "masks_ending", is_exact)
        object.__setattr__(self, "asks", not makes_masks)
        left_out = left_out_of(self.pipeline, self.vocabulary.size)[0] if self.must_close else frozenset[int]()
        object.__setattr__(self, "left_out", left_out)
        object.__setattr__(self, "is_canonical", self.fast_forward == "canonical")
        object.__setattr__(self, "is_forced_unseen", self.num_alternatives is None and not can_ban)
        is_plain = self.proposer is None and (self.is_forced_unseen or self.fast_forward == "off")
        object.__setattr__(self, "is_plain", is_plain)
