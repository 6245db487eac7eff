"""A model that drafts: a cache of its own, in whose rows it keeps what it has read of the texts of a batch.

The rows belong to sequences of the target, which come and go, whose texts grow by several tokens at a time and are
taken back. What was rejected or taken back is cut, what is missing is read, and all rows write in one pass per token.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.models.causal_lm import Cache, CausalLM
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.verification import num_equal

CHUNK: Final = 512
"""Most tokens of a row that are read at a time; bounds the activations of a prompt."""

_NUM_ROWS: Final = 8
_CAPACITY: Final = 512

Take: TypeAlias = Callable[[Sequence[int], Sequence[Sequence[int]], Tensor], Sequence[int | None]]
"""A token for each row of logits [R, V], or None where a draft ends, given the indices [R] of the contexts and the
tokens [R] that were written after their texts."""


class DraftEngine:
    """A model without recurrent state, and one cache for the rows of all batches that it drafts for, one at a time."""

    def __init__(self, model: CausalLM) -> None:
        if not model.can_rollback:
            raise OptionError(
                f"{model.name} keeps recurrent state, which cannot be cropped to the accepted part of a draft",
                at="model",
                hint="a draft model with attention alone",
            )
        self.model = model
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._read: list[list[int]] = []  # what each row of the cache has read
        self._free: list[int] = []  # a heap: low rows first, so that busy ones are neighbours
        self._released: list[int] = []  # rows of sequences that have gone; appended from any thread, at any time

    @torch.inference_mode()
    def like_target(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """Drafts for a target of the same vocabulary: each token is what the target would take from these logits, or
        one drawn apart from it, with its distribution, if the target verifies by rejection.
        """
        texts = [[*context.prompt, *context.text] for context in contexts]
        probabilities: list[list[Tensor]] = [[] for _ in contexts]

        def take(indices: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> list[int | None]:
            target = contexts[0].target
            if target is None:
                return [*logits.argmax(dim=-1).tolist()]
            width = target.vocabulary.size
            if logits.shape[-1] < width:
                logits = torch.nn.functional.pad(logits, (0, width - logits.shape[-1]), value=-torch.inf)
            rows = [contexts[index].row for index in indices]
            places = [[*contexts[index].guessed, *draft] for index, draft in zip(indices, drafts, strict=True)]
            if target.verify == "coupled":
                tokens = target.take(rows, places, logits[:, :width])
                return [None if token in target.vocabulary.eos_token_ids else token for token in tokens]
            tokens, drawn_from = target.draw(rows, places, logits[:, :width])
            for index, token, row in zip(indices, tokens, drawn_from, strict=True):
                if token is not None:
                    probabilities[index].append(row)
            return tokens

        drafts = self.write(contexts, texts, limits, take)
        return [Draft(draft, torch.stack(p) if p else None) for draft, p in zip(drafts, probabilities, strict=True)]

    @torch.inference_mode()
    def write(
        self, contexts: Sequence[Context], texts: Sequence[list[int]], limits: Sequence[int], take: Take
    ) -> list[list[int]]:
        """The tokens that the model writes after each text of its own, one pass for each position of all drafts.

        Limit 0 leaves a row alone, as does a text that fills the model's context.
        """
        drafts: list[list[int]] = [[] for _ in contexts]
        most = self.model.context_length
        writing = [
            index
            for index, (text, limit) in enumerate(zip(texts, limits, strict=True))
            if text and limit > 0 and (most is None or len(text) + limit <= most)
        ]
        if not writing:
            return drafts
        with self._lock:
            rows = self._rows([contexts[index] for index in writing])
            # In the order of the cache, which reads neighbouring rows in place.
            order = sorted(zip(rows, writing, strict=True))
            reading = self._catch_up([(row, texts[index]) for row, index in order])
            while order:
                logits = self._forward([row for row, _ in order], reading)
                indices = [index for _, index in order]
                tokens = take(indices, [drafts[index] for index in indices], logits)
                going = []
                for place, token in zip(order, tokens, strict=True):
                    if token is None:
                        continue
                    draft = drafts[place[1]]
                    draft.append(token)
                    if len(draft) < limits[place[1]]:
                        going.append(place)
                order, reading = going, [[drafts[index][-1]] for _, index in going]
        return drafts

    def _rows(self, contexts: Sequence[Context]) -> list[int]:
        """The cache row of every context; a new one has an empty row, which is given back when its memory goes."""
        missing = [context for context in contexts if self not in context.memory]
        while self._released:
            heapq.heappush(self._free, self._released.pop())
        if len(missing) > len(self._free):
            self._add_rows(len(missing) - len(self._free))
        assert self._cache is not None
        fresh = []
        for context in missing:
            held = context.memory[self] = _Held(heapq.heappop(self._free))
            weakref.finalize(held, self._released.append, held.row).atexit = False
            self._read[held.row] = []
            fresh.append(held.row)
        if fresh:
            self._cache.reset(fresh)
        return [context.memory[self].row for context in contexts]

    def _add_rows(self, num_missing: int) -> None:
        """A larger cache. It is empty: all rows read their texts again, at most log2(N / 8) times for N rows."""
        num_before = len(self._read)
        num_rows = max(_NUM_ROWS, 2 * num_before, num_before + num_missing)
        self._cache = self.model.new_cache(num_rows, _CAPACITY)
        self._read = [[] for _ in range(num_rows)]
        for row in range(num_before, num_rows):
            heapq.heappush(self._free, row)

    def _catch_up(self, texts: Sequence[tuple[int, list[int]]]) -> list[list[int]]:
        """Cut each row to what it has of its text, read what is missing but for a few last tokens; these."""
        assert self._cache is not None
        for row, text in texts:
            read = self._read[row]
            del read[min(num_common(read, text), len(text) - 1) :]
        self._cache.truncate([len(read) for read in self._read])
        while True:  # new rows, apart from those that have only the last step to read
            late = [(row, text) for row, text in texts if len(text) - len(self._read[row]) > CHUNK // 16]
            if not late:
                return [text[len(self._read[row]) :] for row, text in texts]
            parts = [text[len(self._read[row]) : -1][:CHUNK] for row, text in late]
            self._forward([row for row, _ in late], parts)

    def _forward(self, rows: list[int], reading: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens to rows; logits [R, V] after the last of each."""
        assert self._cache is not None
        counts = [len(tokens) for tokens in reading]
        width = max(counts)
        padded = torch.tensor(
            [[*tokens, *[0] * (width - len(tokens))] for tokens in reading], dtype=torch.int64, device=self.model.device
        )
        is_all = rows == list(range(self._cache.num_rows))
        logits = self.model.forward(padded, counts, self._cache, None if is_all else rows)
        for row, tokens in zip(rows, reading, strict=True):
            self._read[row] += tokens
        return logits


class _Held:
    """A row of the cache, as long as the memory of a sequence holds it."""

    __slots__ = ("__weakref__", "row")

    def __init__(self, row: int) -> None:
        self.row = row


def num_common(read: Sequence[int], text: Sequence[int]) -> int:
    """`num_equal`, in blocks: what differs is mostly the end of a long text."""
    begin, block = 0, 256
    while begin + block <= len(read) and read[begin : begin + block] == text[begin : begin + block]:
        begin += block
    return begin + num_equal(read[begin:], text[begin : begin + block])
