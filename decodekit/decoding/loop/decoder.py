"""The work of one kind of search on the rows of its requests.

`step.Texts` has a row for each text, `beam_search.BeamSearch` one for each hypothesis,
`contrastive_search.ContrastiveRows` one for each candidate and `particle_filter.ParticleFilter` one for each particle.
Who calls them, and when, is the matter of `decoding.loop.batch` and `decoding.loop.scheduler`. What comes out for a
request is a function of its prompt, its constraint and its seed, whatever else is in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.loop.host_pass import forward
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.request.updates import Update, update_of
from decodekit.errors import DecodekitError
from decodekit.models.causal_lm import Cache, CausalLM, host_lengths


@dataclass(eq=False)
class Group:
    """The rows of one request, and the sequences in them, of which the first reads the prompt.

    Attributes:
        rows: of the cache.
        error: what failed for all of them.
        prefix_owner: another group that reads what this one begins with; this one waits until `num_shared` tokens are
            read.
        withheld: the last token of the prompt, where it must not be read together with those before it.
        is_late: whether other prompts were read before this one in the last step.
        number: how many groups came before it.
    """

    sequences: list[TextRow]
    rows: list[int] = field(default_factory=list, kw_only=True)
    error: DecodekitError | None = field(default=None, kw_only=True)
    prefix_owner: Group | None = field(default=None, kw_only=True)
    num_shared: int = field(default=0, kw_only=True)
    withheld: list[int] = field(default_factory=list, kw_only=True)
    is_late: bool = field(default=False, kw_only=True)
    number: int = field(default=0, kw_only=True)

    @property
    def sequence(self) -> TextRow:
        """The one that reads the prompt."""
        return self.sequences[0]

    @property
    def is_done(self) -> bool:
        """Whether nothing goes on."""
        return self.error is not None or all(sequence.finish_reason is not None for sequence in self.sequences)

    @property
    def num_cached(self) -> int:
        """Tokens that the first row has read."""
        return self.sequence.num_read - len(self.withheld)


G = TypeVar("G", bound=Group)


@dataclass(slots=True)
class CacheRows:
    """The state of the rows of all groups: keys and values, and the tokens if a processor looks back.

    Attributes:
        cuts: by row, how many tokens the cache is to keep.
        device: what takes tokens ahead of the host over the cache, if something does; it ends with the cache.
    """

    cache: Cache
    table: TokenTable | None = None
    cuts: dict[int, int] = field(default_factory=dict)
    device: object = None

    def cut(self) -> None:
        """Forget what the model has read beyond the texts: rejected drafts, and what was taken back."""
        if self.cuts:
            lengths = host_lengths(self.cache)
            for row, length in self.cuts.items():
                lengths[row] = min(length, lengths[row])
            self.cuts = {}
            self.cache.truncate(lengths)


class Decoder(ABC, Generic[G]):
    """The work of one kind of search on the rows of its requests."""

    num_rows: int = 1
    """Rows of a request."""
    is_prompt_shared: bool = False
    """Whether several rows begin with one prompt, which is read once and copied."""
    can_begin_late: bool = True
    """Whether a prompt may begin with what another row has read; not where something of every token is kept."""
    option: str | None = None
    """What asks for the rows, such as ``num_beams=4``, for errors; None for the batch size."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    @abstractmethod
    def begin(self, sequence: TextRow) -> G:
        """The group of a new request, which may be done already; a `DecodekitError` if the request cannot start."""

    @abstractmethod
    def step(self, groups: Sequence[G], rows: CacheRows) -> None:
        """Let the model read what is pending and bring every group on. What fails is an error of its group alone."""

    def read(self, groups: Sequence[G], num_tokens: int, rows: CacheRows) -> None:
        """Let the model read the next tokens of prompts."""
        forward([group.sequence for group in groups], self.model, rows.cache, num_tokens)

    def update(self, group: G) -> Update | None:
        """The update of a group, with its result if it is done. None if there is nothing to hand out."""
        sequence = group.sequence
        has_news = sequence.finish_reason or (sequence.new_text and not sequence.is_provisional)
        return update_of(sequence) if has_news else None

    def fail(self, group: G, error: DecodekitError) -> None:
        """End a group with an error."""
        group.error = error
        if group.sequence.finish_reason is None:
            group.sequence.finish("error", error)

    def recover(self, groups: Sequence[G], rows: CacheRows) -> bool:
        """After a step that was broken off before any text changed: make the groups ready for another attempt.

        Returns:
            Whether that can be: if not, the groups have to begin again.
        """
        return False

    def sequences(self, group: G) -> Iterable[TextRow]:
        """All sequences of a group that have rows."""
        return group.sequences

    def again(self, group: G) -> G:
        """A group without rows that goes on where this one was: what it has read is to be read again.

        Here the search begins anew, which gives the same: nothing of it was handed out.
        """
        sequence = group.sequence
        return self.begin(TextRow(sequence.index, sequence.request, sequence.max_tokens, sequence.settings))
