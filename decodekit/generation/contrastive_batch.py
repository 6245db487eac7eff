"""Contrastive search over a stream of prompts: the candidates of a prompt are read in rows of the cache side by side.

Every row of a prompt reads what the text has gained, and then a candidate of its own, which is cut off again. So the
token that was taken is read by the other rows together with their next candidates, and no keys or values are copied but
those of the prompt, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from decodekit.errors import DeadEndError, DecodekitError
from decodekit.generation.batch import PREFILL_TOKENS, Update, admit, begin, rounded, update_of
from decodekit.generation.buffers import Masks, TokenTable
from decodekit.generation.contrastive import Choices, ContrastiveSearch, likeliest, most_contrastive
from decodekit.generation.drawing import Place, choose, measure, scores
from decodekit.generation.forced import take_forced
from decodekit.generation.memory import new_cache
from decodekit.generation.padding import right_padded, similar_lengths
from decodekit.generation.rows import begin_rows
from decodekit.generation.sharing import copy_rows
from decodekit.generation.taking import take

if TYPE_CHECKING:
    from decodekit.generation.sequence import Request
    from decodekit.generation.sequence import Sequence as Row
    from decodekit.generation.settings import Settings
    from decodekit.models.causal_lm import Cache
    from decodekit.models.layers import HiddenStates

MAX_LAG: Final = 8
"""A row that has more than so many tokens to catch up with becomes a copy of the first."""


@dataclass(slots=True, eq=False)
class Search:
    """One prompt on its way.

    Args:
        sequence: its text; `pending` is what the first row has not read.
        rows: its rows of the cache.
        num_read: how many tokens of prompt and text each row has read.
        context: unit vectors float32 [T, D], the hidden states of the tokens that the first row has read.
        logits: float32 [1, V] of what follows the text; None where its last tokens are yet to be read.
        mask: of the constraint at that place, int32 [1, W]; None in free text.
        choices: the candidates that are being read; None where there is nothing to compare.
    """

    sequence: Row
    rows: range = range(0)
    num_read: list[int] = field(default_factory=list)
    context: Tensor | None = None
    logits: Tensor | None = None
    mask: Tensor | None = None
    choices: Choices | None = None

    @property
    def is_done(self) -> bool:
        """Whether the text has ended."""
        return self.sequence.finish_reason is not None

    @property
    def text(self) -> list[int]:
        """Prompt and text."""
        return [*self.sequence.request.prompt, *self.sequence.token_ids]


class ContrastiveBatch:
    """Searches the prompts of a stream, several at a time.

    Args:
        model: gives logits and hidden states.
        settings: how texts end; its pipeline is that of the search.
        search: the options.
        num_prompts: most prompts at a time.
        requests: what to continue, as for `Batch`.
    """

    def __init__(
        self,
        model: HiddenStates,
        settings: Settings,
        search: ContrastiveSearch,
        num_prompts: int,
        requests: Iterable[Request | DecodekitError],
    ) -> None:
        width = search.num_candidates
        self._model = model
        self._settings = settings
        self._options = search
        self._num_prompts = num_prompts
        self._queue = enumerate(requests)
        self._free = [range(i * width, (i + 1) * width) for i in reversed(range(num_prompts))]
        self._cache: Cache | None = None
        self._masks = Masks(num_prompts, settings.vocabulary.num_mask_words, can_redraw=False)
        self._table = TokenTable(num_prompts * width) if settings.pipeline.needs_history else None

    def run(self) -> Iterator[Update]:
        """Search all requests; updates as they come, each request's own in order."""
        running: list[Search] = []
        while True:
            admitted, answers = self._admit(self._num_prompts - len(running))
            yield from answers
            if admitted:
                self._prefill(admitted)
            running += admitted
            if not (running or answers):
                return
            if running:
                yield from self._step(running)
            self._free += [search.rows for search in running if search.is_done]
            running = [search for search in running if not search.is_done]

    def _admit(self, num_free: int) -> tuple[list[Search], list[Update]]:
        """Take requests as long as there are rows; those that need no model are answered at once."""
        admitted, answers = admit(
            self._queue, num_free, self._begin, lambda one: update_of(one.sequence) if one.is_done else None
        )
        if admitted and self._cache is None:
            longest = max(len(one.sequence.request.prompt) + min(one.sequence.max_tokens, 256) for one in admitted)
            self._cache = new_cache(
                self._model,
                self._num_prompts * self._options.num_candidates,
                rounded(longest),
                f"top_k={self._options.top_k}",
            )
        for search in admitted:
            search.rows = self._free.pop()
            search.sequence.row = search.rows[0]
            search.num_read = [0] * len(search.rows)
            if self._table is not None:
                self._table.begin(search.sequence)
        if self._cache is not None and admitted:
            begin_rows(self._cache, {row: search.sequence.request for search in admitted for row in search.rows})
        return admitted, answers

    def _begin(self, index: int, request: Request | DecodekitError) -> Search:
        """A search at its start; see `batch.begin`."""
        return Search(begin(index, request, self._model, self._settings))

    @torch.inference_mode()
    def _prefill(self, searches: list[Search]) -> None:
        """Read every prompt into the first of its rows."""
        for indices in similar_lengths([len(search.sequence.pending) for search in searches], PREFILL_TOKENS):
            group = [searches[i] for i in indices]
            chunk = max(1, PREFILL_TOKENS // len(group))
            while going := [search for search in group if search.sequence.pending]:
                self._read([(search, [search.sequence.pending[:chunk]]) for search in going])

    @torch.inference_mode()
    def _step(self, searches: list[Search]) -> list[Update]:
        """Bring every text on by a token; or let the model read what was forced, where that has to come first."""
        self._choose([search for search in searches if search.logits is not None])
        going = [search for search in searches if not search.is_done]
        self._catch_up([search for search in going if search.choices is not None])
        if going:
            self._read([(search, self._parts(search)) for search in going])
        updates = []
        for search in searches:
            sequence = search.sequence
            if sequence.first_token_at is None and sequence.token_ids:
                sequence.first_token_at = time.perf_counter()
            if sequence.finish_reason or (sequence.new_text and not sequence.is_provisional):
                updates.append(update_of(sequence))
        return updates

    def _choose(self, searches: list[Search]) -> None:
        """The candidates of every search; a token without a rival is taken, where there is none the search ends."""
        if not searches:
            return
        places = [Place(search.sequence) for search in searches]
        logits = torch.cat([search.logits for search in searches if search.logits is not None])  # [N, V]
        bitmask = self._masks.fill([search.sequence for search in searches], [[] for _ in searches])
        first = choose(places, logits, bitmask, self._settings, self._table)  # as greedy decoding has it
        alive = [i for i, token in enumerate(first) if isinstance(token, int)]
        laws: dict[int, Tensor] = {}
        if alive and self._options.num_candidates > 1:
            index = torch.tensor(alive)
            some = None if bitmask is None else bitmask[index]
            law = scores([places[i] for i in alive], logits[index.to(logits.device)], some, self._settings, self._table)
            laws = dict(zip(alive, law if isinstance(law, Tensor) else law.dense(), strict=True))
        for i, (search, token) in enumerate(zip(searches, first, strict=True)):
            if isinstance(token, DecodekitError):
                search.sequence.finish("dead_end" if isinstance(token, DeadEndError) else "error", token)
                continue
            search.mask = None if bitmask is None else bitmask[i : i + 1].clone()
            choices = likeliest(laws[i], token, self._options.num_candidates) if laws else None
            if choices is None or len(choices.tokens) == 1:
                self._take(search, token)
            else:
                search.choices = choices

    def _take(self, search: Search, token: int) -> None:
        """Let a token join the text, and whatever is forced after it."""
        sequence, settings = search.sequence, self._settings
        assert search.logits is not None
        num_before = len(sequence.token_ids)
        goes_on = take(sequence, token, settings, self._table)
        if settings.num_alternatives is not None and len(sequence.token_ids) > num_before:
            sequence.logprobs += measure(search.logits, [token], settings.num_alternatives, search.mask)
        if goes_on:
            take_forced(sequence, settings, self._table)
        search.choices = search.logits = None

    def _parts(self, search: Search) -> list[list[int]]:
        """What each of its first rows is to read."""
        if search.choices is None:
            return [search.sequence.pending]
        text = search.text
        return [[*text[read:], token] for read, token in zip(search.num_read, search.choices.tokens, strict=False)]

    def _catch_up(self, searches: list[Search]) -> None:
        """Copy what the first row has read to rows that are far behind it."""
        assert self._cache is not None
        pairs = []
        for search in searches:
            assert search.choices is not None
            for number in range(1, len(search.choices.tokens)):
                if search.num_read[0] - search.num_read[number] > MAX_LAG:
                    pairs.append((search.rows[0], search.rows[number]))
                    search.num_read[number] = search.num_read[0]
        copy_rows(self._cache, pairs)

    def _read(self, readings: Sequence[tuple[Search, list[list[int]]]]) -> None:
        """Let rows read tokens. Candidates are compared, one is taken, and all are cut off.

        Args:
            readings: searches, and what each of their first rows reads; the last token of each is a candidate where the
                search has candidates.
        """
        assert self._cache is not None
        reading = sorted(
            ((search.rows[number], part) for search, parts in readings for number, part in enumerate(parts)),
            key=lambda one: one[0],  # neighbouring rows are read in place
        )
        rows, tokens = [row for row, _ in reading], [part for _, part in reading]
        every = rows == list(range(self._cache.num_rows))
        counts = [len(part) for part in tokens]
        logits, [hidden] = self._model.forward_hidden(
            right_padded(tokens, self._model.device), counts, self._cache, None if every else rows
        )
        place_of = {row: place for place, row in enumerate(rows)}
        compared = [search for search, _ in readings if search.choices is not None]
        for search, parts in readings:
            places = [place_of[row] for row in search.rows[: len(parts)]]
            self._learn(search, parts, hidden[places[0]])
            if search.choices is None:
                search.logits = None if search.sequence.pending else logits[places[0]][None]
            else:
                self._compare(search, logits[places], hidden[places, [counts[place] - 1 for place in places]])
        if compared:
            lengths: list[int] = self._cache.lengths.tolist()
            for search in compared:
                for row, num_read in zip(search.rows, search.num_read, strict=True):
                    lengths[row] = num_read
            self._cache.truncate(lengths)

    def _learn(self, search: Search, parts: Sequence[Sequence[int]], hidden: Tensor) -> None:
        """Note what was read of the text, candidates aside.

        Args:
            search: whose rows have read.
            parts: what each of its first rows has read.
            hidden: [T, D], the hidden states of what the first row has read.
        """
        num_candidates = 0 if search.choices is None else 1  # of each row
        num_new = len(parts[0]) - num_candidates
        states = normalize(hidden[:num_new].float(), dim=-1)
        search.context = states if search.context is None else torch.cat([search.context, states])
        search.sequence.pending = search.sequence.pending[num_new:]
        search.sequence.num_forwards += 1
        for number, part in enumerate(parts):
            search.num_read[number] += len(part) - num_candidates

    def _compare(self, search: Search, logits: Tensor, hidden: Tensor) -> None:
        """Take one of the candidates.

        Args:
            search: whose candidates were read.
            logits: [c, V], what follows each.
            hidden: [c, D], the hidden state after each.
        """
        assert search.choices is not None and search.context is not None
        states = normalize(hidden.float(), dim=-1)
        best = most_contrastive(search.choices, states, search.context, self._options.penalty_alpha)
        self._take(search, search.choices.tokens[best])
        if len(search.sequence.pending) == 1:  # nothing was forced: what follows is known
            search.logits = logits[best : best + 1]
