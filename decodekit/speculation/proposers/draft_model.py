"""A draft model: a smaller model of the same vocabulary writes ahead, the target reads what it wrote in one pass.

The draft model draws as the target draws, with the same processors and the same noise (Leviathan et al. 2023 draw
independently and accept by a test; here both take the argmax of logits plus one noise, so that they agree wherever the
two distributions are near; "coupled" drafts, Daliri et al. 2024). Greedy targets get greedy drafts by the same rule.

Early exit needs no second model (Elhoushi et al. 2024, LayerSkip; Zhang et al. 2023, Draft & Verify): the first layers
of the target, its norm and its head write ahead, all layers verify. The weights are the target's own, and the memory it
costs is a cache for the keys and values of these layers.

A model with another vocabulary drafts by way of the text (Timor et al. 2025, "assisted generation" by strings). The
text of a row is divided into tokens of the draft model, which goes on from them; the bytes it writes are divided into
tokens of the target, and verified as any draft. Nothing has to be right for the text to be the target's: a division
that the target would not have chosen is a wrong guess. Such a model cannot draw as the target does: the noise of a draw
is a number for every token id, and the ids are others. So it is for greedy targets.
"""

from __future__ import annotations

import codecs
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch import Tensor

from decodekit.errors import DraftVocabularyError, OptionError, out_of_domain
from decodekit.models.causal_lm import CausalLM
from decodekit.models.encoding import encode_plain, encode_text
from decodekit.sampling.checks import COUNT
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.proposers.canonical import WINDOW, Canonical
from decodekit.speculation.proposers.draft_engine import DraftEngine, num_common
from decodekit.vocabulary import Vocabulary

_OPEN: Final = (4, WINDOW // 2, WINDOW)
"""Numbers of last tokens that may be divided again when bytes follow, tried in turn until one begins at a boundary."""


@dataclass(frozen=True)
class DraftModel:
    """Drafts of a smaller model, one forward pass of it for every position of the drafts of a whole batch.

    It has a cache of its own, in which every row keeps what it has read of the row's text; what was rejected or taken
    back is cut. Where its token is illegal under the constraint, it draws again among the legal ones.

    If its vocabulary is not that of the target, it reads and writes the text instead, for greedy targets; see
    the module. It then knows nothing of the constraint and of processors.

    Args:
        model: an `LLM`, or the name of a model, which is loaded when first used; or a `CausalLM`, whose tokens must be
            those of the target.
        num_tokens: most tokens of a draft, of its own vocabulary and of the target's.

    Raises:
        OptionError: the number is out of range, or the model is none.
        DraftVocabularyError: (when first used) the vocabularies differ, and the target draws its tokens, or the
            tokenizer of the draft model is not known.
    """

    model: Any
    num_tokens: int = 4
    _engine: _Loaded | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        COUNT.require("num_tokens", self.num_tokens)
        if not isinstance(self.model, str) and causal_lm_of(self.model) is None:
            hint = 'DraftModel(LLM.load("tiny-draft")), or its name'
            raise out_of_domain("model", "an LLM, a CausalLM or the name of a model", self.model, hint=hint)

    def check_target(self, model: CausalLM, vocabulary: Vocabulary, *, is_greedy: bool) -> None:
        """Load the model if need be, and raise `DraftVocabularyError` if it cannot draft for `vocabulary`."""
        self._loaded().check(vocabulary, is_greedy)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The tokens that the model would write; see `Proposer.propose`."""
        return self._loaded().drafts(contexts, [min(limit, self.num_tokens) for limit in limits])

    def causal_lm(self) -> CausalLM:
        """The model, which is loaded if need be."""
        return self._loaded().model

    def _loaded(self) -> _Loaded:
        if self._engine is None:
            with _loading:
                if self._engine is None:
                    object.__setattr__(self, "_engine", _Loaded(self.model))
        assert self._engine is not None
        return self._engine

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "num_tokens": self.num_tokens, "_engine": None}


_loading = threading.Lock()


class _Loaded:
    """A draft model that is loaded, with the vocabulary and the tokenizer if they are known."""

    def __init__(self, given: Any) -> None:
        self.model, self._vocabulary, tokenizer = loaded(given)
        self._engine = DraftEngine(self.model)
        self._by_text: TextDrafts | None = None
        if self._vocabulary is not None and tokenizer is not None:
            self._by_text = TextDrafts(self._engine, tokenizer, self._vocabulary)
        self._compared: tuple[Vocabulary, int | None] | None = None  # the target's, and where the two differ

    def check(self, target: Vocabulary, is_greedy: bool) -> None:
        """Raise `DraftVocabularyError` if the tokens of the target are others and text does not help."""
        different = self._difference(target)
        if different is None or (self._by_text is not None and is_greedy):
            return
        raise DraftVocabularyError(
            f"the draft model {self.model.name} has another vocabulary than the target: "
            f"token {different} is not the same"
            + ("" if self._by_text is None else ", and the noise of a drawn token is a function of its number"),
            at="speculate",
            hint="a draft model with the tokenizer of the target, from the same family"
            + ("" if is_greedy else '; or strategy="greedy", for which an LLM of any vocabulary drafts'),
        )

    def drafts(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """A draft of at most `limits[i]` tokens for every context."""
        target = contexts[0].target if contexts else None
        if target is None or self._difference(target.vocabulary) is None:
            return self._engine.like_target(contexts, limits)
        if self._by_text is None:
            self.check(target.vocabulary, is_greedy=True)
        assert self._by_text is not None
        return self._by_text.drafts(contexts, limits)

    def _difference(self, target: Vocabulary) -> int | None:
        """The first token that is another one in the two vocabularies; without one of its own, their sizes count."""
        if self._compared is None or self._compared[0] is not target:
            size = self.model.vocab_size
            if self._vocabulary is not None:
                different = first_difference(self._vocabulary, target)
            else:
                different = None if size == target.size else min(size, target.size)
            self._compared = target, different
        return self._compared[1]


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


def loaded(given: Any) -> tuple[CausalLM, Vocabulary | None, Any]:
    """The model of an option, which is loaded if it is a name; its vocabulary and tokenizer, None if not known."""
    if isinstance(given, str):
        from decodekit.models import load

        model, tokenizer = load(given)
        ends = model.eos_token_ids
        return model, Vocabulary.from_tokenizer(tokenizer, logits_width=model.vocab_size, eos_token_ids=ends), tokenizer
    return causal_lm_of(given), getattr(given, "vocabulary", None), getattr(given, "tokenizer", None)


def causal_lm_of(given: Any) -> Any:
    """The `CausalLM` of an `LLM`, or that is given itself; None if it is neither."""
    for model in (given, getattr(given, "model", None)):  # a `CausalLM` may have a module by the name `model`, too
        if hasattr(model, "new_cache") and hasattr(model, "forward"):
            return model
    return None


class TextDrafts:
    """Writes drafts for targets of any vocabulary."""

    def __init__(self, engine: DraftEngine, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._canonical = Canonical(partial(encode_plain, tokenizer), vocabulary)

    def drafts(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The model's text in tokens of the target; none where a text ends inside a character."""
        texts = [self._read(context) for context in contexts]
        written = self._engine.write(contexts, texts, limits, self._likeliest)
        return [
            Draft(self._divided(context, tokens)[:limit])
            for context, tokens, limit in zip(contexts, written, limits, strict=True)
        ]

    def _read(self, context: Context) -> list[int]:
        """The text of a row in tokens of the draft model; none if it cannot be."""
        if context.target is None or context.canonical is None:
            return []
        target = context.target.vocabulary
        row = context.memory.get(self)
        if row is None:
            row = context.memory[self] = _DraftText(target.decode(context.prompt), self._tokenizer, self._canonical)
        return row.read(target.decode(context.text))

    def _likeliest(self, indices: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> list[int | None]:
        """The likeliest token of each row of logits [R, V]; what is not text ends a draft."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        texts = self._vocabulary.token_bytes
        return [token if token < len(texts) and texts[token] is not None else None for token in tokens]

    def _divided(self, context: Context, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens of the target for those of the draft model, as the target's tokenizer goes on from the text."""
        if not tokens or context.canonical is None:
            return ()
        data = self._vocabulary.decode(tokens)
        before = [*context.prompt[-WINDOW:], *context.text[-WINDOW:]]
        return context.canonical.after(before, data) or context.canonical.after((), data)


class _DraftText:
    """A text in tokens of the draft model, divided again only where it changes; the cache is kept for the rest.

    Special tokens of the target are not part of the prompt before it.
    """

    def __init__(self, prompt: bytes, tokenizer: Any, canonical: Canonical) -> None:
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(prompt)
        self._canonical = canonical
        self._tokens = encode_text(tokenizer, whole, "prompt", add_special_tokens=True)
        is_text = [bool(self._bytes_of(token)) for token in self._tokens]
        self._num_special = is_text.index(True) if any(is_text) else len(is_text)  # at the beginning
        # What the tokens say, which may differ from the prompt: some tokenizers put a space before a text.
        self._data = b"".join(map(self._bytes_of, self._tokens))
        self._prompt = self._data + prompt[len(whole.encode()) :]  # and the beginning of a character
        self._ends = [*accumulate(len(self._bytes_of(token)) for token in self._tokens)]

    def _bytes_of(self, token: int) -> bytes:
        return self._canonical.token_bytes[token] or b""

    def read(self, text: bytes) -> list[int]:
        """The tokens of prompt and `text`, which may be any other than the last one; none if it has none."""
        data = self._prompt + text
        if data != self._data:
            self._go_on(data)
        return self._tokens if data == self._data else []

    def _go_on(self, data: bytes) -> None:
        settled = bisect_right(self._ends, num_common(data, self._data))  # tokens whose bytes are still there
        for num_open in _OPEN:
            begin = max(self._num_special, settled - num_open)
            tokens = self._canonical.after(self._tokens[:begin], data[self._end_of(begin) :])
            if tokens:
                break
        else:  # no boundary nearby: what is new for itself
            begin = settled
            tokens = self._canonical.after((), data[self._end_of(begin) :])
        del self._tokens[begin:], self._ends[begin:]
        for token in tokens:
            self._ends.append(self._end_of(len(self._tokens)) + len(self._bytes_of(token)))
            self._tokens.append(token)
        self._data = data[: self._end_of(len(self._tokens))]

    def _end_of(self, num_tokens: int) -> int:
        return self._ends[num_tokens - 1] if num_tokens else 0


@dataclass(frozen=True)
class EarlyExit:
    """Drafts of the first layers of the target itself.

    It pays where a model was trained to say the next token early; of others the first half or more is needed, and the
    draft costs as much of a forward pass.

    Args:
        layer: how many layers are run, as an end of a slice: from 1 on the first ones, below 0 all but the last ones;
            or as a share of them, between 0.0 and 1.0.
        num_tokens: most tokens of a draft.

    Raises:
        OptionError: a number is out of range; (when first used) the model has too few layers.
        ModelError: (when first used) the target is not a model of transformers, or its layers cannot be run by
        themselves.
    """

    layer: int | float
    num_tokens: int = 4
    _engines: WeakKeyDictionary[CausalLM, DraftEngine] = field(
        init=False, repr=False, compare=False, default_factory=WeakKeyDictionary
    )

    def __post_init__(self) -> None:
        layer = self.layer
        if isinstance(layer, bool) or not isinstance(layer, int | float) or layer == 0:
            raise out_of_domain("layer", "a number of layers or a share of them", layer)
        if isinstance(layer, float) and not 0 < layer < 1:
            raise out_of_domain("layer", "a share between 0.0 and 1.0", layer)
        COUNT.require("num_tokens", self.num_tokens)

    @classmethod
    def of(cls, layer: str = "0.5", num_tokens: int = 4) -> EarlyExit:
        """From the text of a number: ``"8"``, ``"-4"``, ``"0.5"``; half of the layers if nothing is said."""
        try:
            return cls(int(str(layer)), num_tokens)
        except ValueError:
            pass
        try:
            return cls(float(layer), num_tokens)
        except ValueError:
            raise out_of_domain("layer", "a number of layers or a share of them", layer, hint="8, -4 or 0.5") from None

    def num_kept(self, num_layers: int) -> int:
        """The number of layers that are run of `num_layers`; an `OptionError` if it is none, or all of them."""
        if isinstance(self.layer, float):
            kept = min(max(1, round(self.layer * num_layers)), num_layers - 1)
        else:
            kept = self.layer if self.layer > 0 else num_layers + self.layer
        if not 1 <= kept < num_layers:
            raise OptionError(f"layer={self.layer!r} of a model with {num_layers} layers", at="layer")
        return kept

    def check_target(self, model: CausalLM, vocabulary: Vocabulary, *, is_greedy: bool) -> None:
        """Cut the layers out, anew if the model has changed since; see `ChecksTarget`."""
        layers = self._layers_of(model)
        engine = self._engines.get(model)
        if engine is None or engine.model is not layers:
            self._engines[model] = DraftEngine(layers)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The tokens that the layers would write; see `Proposer.propose`."""
        target = contexts[0].target if contexts else None
        if target is None or target.model is None:
            return [Draft()] * len(contexts)
        return self._engine(target.model).like_target(contexts, [min(limit, self.num_tokens) for limit in limits])

    def _engine(self, model: CausalLM) -> DraftEngine:
        engine = self._engines.get(model)  # another thread may make one meanwhile
        return engine or self._engines.setdefault(model, DraftEngine(self._layers_of(model)))

    def _layers_of(self, model: CausalLM) -> CausalLM:
        from decodekit.models.wrappers.truncated import first_layers, num_layers

        return first_layers(model, self.num_kept(num_layers(model)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layer, self.num_tokens)
