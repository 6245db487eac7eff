"""A draft model: a smaller model of the same vocabulary writes ahead, the target reads what it wrote in one pass.

The draft model draws as the target draws, with the same processors and the same noise (Leviathan et al. 2023 draw
independently and accept by a test; here both take the argmax of logits plus one noise, so that they agree wherever the
two laws are near; "coupled" drafts, Daliri et al. 2024). Greedy targets get greedy drafts by the same rule.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.errors import OptionError, VocabularyMismatchError
from decodekit.models.causal_lm import Cache, CausalLM
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.verification import num_equal
from decodekit.vocabulary import Vocabulary

CHUNK: Final = 512
"""Most tokens of a row that are read at a time; bounds the activations of a prompt."""

_NUM_ROWS: Final = 8
_CAPACITY: Final = 512


@dataclass(frozen=True)
class DraftModel:
    """Drafts of a smaller model, one forward pass of it for every position of the drafts of a whole batch.

    It has a cache of its own, in which every row keeps what it has read of the row's text; what was rejected or taken
    back is cut. Where its token is illegal under the constraint, it draws again among the legal ones.

    Args:
        model: an `LLM`, or the name of a model, which is loaded when first used; or a `CausalLM`, whose tokens must be
            those of the target (of an `LLM` this is checked).
        num_tokens: most tokens of a draft.

    Raises:
        OptionError: the number is out of range, or the model is none.
        VocabularyMismatchError: (when first used) the vocabularies differ.
    """

    model: Any
    num_tokens: int = 4
    _engine: _Engine | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        value = self.num_tokens
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"num_tokens={value!r} is not an integer from 1 on", at="num_tokens")
        if not isinstance(self.model, str) and not _is_causal_lm(getattr(self.model, "model", self.model)):
            raise OptionError(
                f"{self.model!r:.60} is no model", at="model", hint='DraftModel(LLM.load("tiny-draft")), or its name'
            )

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Load the model if need be, and raise `VocabularyMismatchError` if it cannot draft for `vocabulary`."""
        self._loaded().check(vocabulary)

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """What the model would write; see `Proposer.propose`."""
        return self._loaded().drafts(contexts, [min(limit, self.num_tokens) for limit in limits])

    def _loaded(self) -> _Engine:
        if self._engine is None:
            with _loading:
                if self._engine is None:
                    object.__setattr__(self, "_engine", _engine(self.model))
        assert self._engine is not None
        return self._engine

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "num_tokens": self.num_tokens, "_engine": None}


_loading = threading.Lock()


class _Engine:
    """The model and one cache for the rows of all batches that it drafts for, which come one at a time.

    Args:
        model: the draft model.
        vocabulary: of its tokenizer; None if it is not known.
    """

    def __init__(self, model: CausalLM, vocabulary: Vocabulary | None) -> None:
        if not model.can_rollback:
            raise OptionError(
                f"{model.name} keeps recurrent state, which cannot be cropped to the accepted part of a draft",
                at="model",
                hint="a draft model with attention alone",
            )
        self._model = model
        self._vocabulary = vocabulary
        self._checked: Vocabulary | None = None
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._read: list[list[int]] = []  # what each row of the cache has read
        self._free: list[int] = []  # a heap: low rows first, so that busy ones are neighbours
        self._released: list[int] = []  # rows of sequences that have gone; appended from any thread, at any time

    def check(self, vocabulary: Vocabulary) -> None:
        """Raise `VocabularyMismatchError` if the tokens of the target are others."""
        if vocabulary is self._checked:
            return
        if self._vocabulary is None:
            different = (
                None if self._model.vocab_size == vocabulary.size else min(self._model.vocab_size, vocabulary.size)
            )
        else:
            different = first_difference(self._vocabulary, vocabulary)
        if different is not None:
            raise VocabularyMismatchError(
                f"the draft model {self._model.name} has another vocabulary than the target: "
                f"token {different} is not the same",
                at="speculate",
                hint="a draft model with the tokenizer of the target, from the same family",
            )
        self._checked = vocabulary

    def drafts(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """A draft of at most `limits[i]` tokens for every context."""
        drafts: list[list[int]] = [[] for _ in contexts]
        target = contexts[0].target if contexts else None
        if target is not None:
            self.check(target.vocabulary)
        most = self._model.context_length
        texts = {
            index: [*context.prompt, *context.text]
            for index, (context, limit) in enumerate(zip(contexts, limits, strict=True))
            if limit > 0 and (most is None or len(context.prompt) + len(context.text) + limit <= most)
        }
        if not texts:
            return [Draft()] * len(contexts)
        with self._lock:
            rows = self._rows([contexts[index] for index in texts])
            # In the order of the cache, which reads neighbouring rows in place.
            order = [(row, index) for row, index in sorted(zip(rows, texts, strict=True))]
            reading = self._catch_up([(row, texts[index]) for row, index in order])
            while order:
                logits = self._forward([row for row, _ in order], reading)
                tokens = _take([contexts[index] for _, index in order], [drafts[index] for _, index in order], logits)
                going = []
                for place, token in zip(order, tokens, strict=True):
                    if token is None:
                        continue
                    draft = drafts[place[1]]
                    draft.append(token)
                    if len(draft) < limits[place[1]]:
                        going.append(place)
                order, reading = going, [[drafts[index][-1]] for _, index in going]
        return [Draft(draft) for draft in drafts]

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
        self._cache = self._model.new_cache(num_rows, _CAPACITY)
        self._read = [[] for _ in range(num_rows)]
        for row in range(num_before, num_rows):
            heapq.heappush(self._free, row)

    def _catch_up(self, texts: Sequence[tuple[int, list[int]]]) -> list[list[int]]:
        """Cut each row to what it has of its text, and read what is missing but for a few last tokens, at least one.

        Args:
            texts: rows with the tokens they must have read.

        Returns:
            The tokens of each row that are left to read.
        """
        assert self._cache is not None
        for row, text in texts:
            read = self._read[row]
            del read[min(_num_common(read, text), len(text) - 1) :]
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
            [[*tokens, *[0] * (width - len(tokens))] for tokens in reading],
            dtype=torch.int64,
            device=self._model.device,
        )
        is_all = rows == list(range(self._cache.num_rows))
        logits = self._model.forward(padded, counts, self._cache, None if is_all else rows)
        for row, tokens in zip(rows, reading, strict=True):
            self._read[row] += tokens
        return logits


class _Held:
    """A row of the cache, as long as the memory of a sequence holds it."""

    __slots__ = ("__weakref__", "row")

    def __init__(self, row: int) -> None:
        self.row = row


def first_difference(draft: Vocabulary, target: Vocabulary) -> int | None:
    """The first id that is a different text in the two; None if there is none.

    Rows that only pad the logits make no difference, nor do ids that one of the two takes for an end of text: a model
    and its chat version end texts differently.
    """
    ends = draft.eos_token_ids | target.eos_token_ids
    for token in range(max(draft.size, target.size)):
        one = draft.token_bytes[token] if token < draft.size else None
        other = target.token_bytes[token] if token < target.size else None
        if one != other and token not in ends:
            return token
    return None


def _num_common(read: Sequence[int], text: Sequence[int]) -> int:
    """`num_equal`, in blocks: what differs is mostly the end of a long text."""
    begin, block = 0, 256
    while begin + block <= len(read) and read[begin : begin + block] == text[begin : begin + block]:
        begin += block
    return begin + num_equal(read[begin:], text[begin : begin + block])


def _take(contexts: Sequence[Context], drafts: Sequence[Sequence[int]], logits: Tensor) -> list[int | None]:
    """The token that the target would take from each row of logits [R, V]; None ends a draft."""
    target = contexts[0].target
    if target is None:
        return [*logits.argmax(dim=-1).tolist()]
    width = target.vocabulary.size
    if logits.shape[-1] < width:
        logits = torch.nn.functional.pad(logits, (0, width - logits.shape[-1]), value=-torch.inf)
    tokens = target.take([context.row for context in contexts], drafts, logits[:, :width])
    return [None if token in target.vocabulary.eos_token_ids else token for token in tokens]


def _engine(model: Any) -> _Engine:
    if isinstance(model, str):
        from decodekit.models import load

        loaded, tokenizer = load(model)
        vocabulary = Vocabulary.from_tokenizer(
            tokenizer, logits_width=loaded.vocab_size, eos_token_ids=loaded.eos_token_ids
        )
        return _Engine(loaded, vocabulary)
    return _Engine(getattr(model, "model", model), getattr(model, "vocabulary", None))


def _is_causal_lm(model: Any) -> bool:
    return hasattr(model, "new_cache") and hasattr(model, "forward")
