"""A draft model: a smaller model of the same vocabulary writes ahead, the target reads what it wrote in one pass.

The draft model draws as the target draws, with the same processors and the same noise (Leviathan et al. 2023 draw
independently and accept by a test; here both take the argmax of logits plus one noise, so that they agree wherever the
two distributions are near; "coupled" drafts, Daliri et al. 2024). Greedy targets get greedy drafts by the same rule.

Early exit needs no second model (Elhoushi et al. 2024, LayerSkip; Zhang et al. 2023, Draft & Verify): the first layers
of the target, its norm and its head write ahead, all layers verify. The weights are the target's own, and the memory it
costs is a cache for the keys and values of these layers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from decodekit.errors import DraftVocabularyError, OptionError, out_of_domain
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling.checks import COUNT
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.proposers.draft_engine import DraftEngine
from decodekit.speculation.proposers.text_draft import TextDrafts
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True)
class DraftModel:
    """Drafts of a smaller model, one forward pass of it for every position of the drafts of a whole batch.

    It has a cache of its own, in which every row keeps what it has read of the row's text; what was rejected or taken
    back is cut. Where its token is illegal under the constraint, it draws again among the legal ones.

    If its vocabulary is not that of the target, it reads and writes the text instead, for greedy targets; see
    `text_draft`. It then knows nothing of the constraint and of processors.

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
    def of(cls, layer: str = "0.5") -> EarlyExit:
        """From the text of a number: ``"8"``, ``"-4"``, ``"0.5"``; half of the layers if nothing is said.

        Raises:
            OptionError: the text is not a number.
        """
        try:
            return cls(int(layer))
        except ValueError:
            pass
        try:
            return cls(float(layer))
        except ValueError:
            raise out_of_domain("layer", "a number of layers or a share of them", layer, hint="8, -4 or 0.5") from None

    def num_kept(self, num_layers: int) -> int:
        """The number of layers that are run of a model with `num_layers`.

        Raises:
            OptionError: none, or all of them.
        """
        if isinstance(self.layer, float):
            kept = min(max(1, round(self.layer * num_layers)), num_layers - 1)
        else:
            kept = self.layer if self.layer > 0 else num_layers + self.layer
        if not 1 <= kept < num_layers:
            raise OptionError(f"layer={self.layer!r} of a model with {num_layers} layers", at="layer")
        return kept

    def check_target(self, model: CausalLM, vocabulary: Vocabulary, *, is_greedy: bool) -> None:
        """Cut the layers out if that was not done, or if the model has changed since; see `ChecksTarget`."""
        from decodekit.models.wrappers.truncated import first_layers, num_layers

        engine = self._engines.get(model)
        if engine is not None and engine.model is not first_layers(model, self.num_kept(num_layers(model))):
            del self._engines[model]
        self._engine(model)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The tokens that the layers would write; see `Proposer.propose`."""
        target = contexts[0].target if contexts else None
        if target is None or target.model is None:
            return [Draft()] * len(contexts)
        return self._engine(target.model).like_target(contexts, [min(limit, self.num_tokens) for limit in limits])

    def _engine(self, model: CausalLM) -> DraftEngine:
        engine = self._engines.get(model)
        if engine is None:
            from decodekit.models.wrappers.truncated import first_layers, num_layers

            engine = DraftEngine(first_layers(model, self.num_kept(num_layers(model))))
            engine = self._engines.setdefault(model, engine)  # another thread may have made one
        return engine

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layer, self.num_tokens)
