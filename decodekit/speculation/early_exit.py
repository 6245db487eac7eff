"""Early exit: the first layers of the target, its norm and its head write ahead, all layers verify.

A draft model that needs no second model (Elhoushi et al. 2024, LayerSkip; Zhang et al. 2023, Draft & Verify): the
weights are the target's own, and the memory it costs is a cache for the keys and values of these layers. It draws as
the target draws, as a draft model does (see `draft_model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from decodekit.errors import OptionError
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling.checks import require_integer
from decodekit.speculation.draft_engine import DraftEngine
from decodekit.speculation.proposer import Context, Draft
from decodekit.vocabulary import Vocabulary


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
        ModelError: (when first used) the target is no model of transformers, or its layers cannot be run by themselves.
    """

    layer: int | float
    num_tokens: int = 4
    _engines: WeakKeyDictionary[CausalLM, DraftEngine] = field(
        init=False, repr=False, compare=False, default_factory=WeakKeyDictionary
    )

    def __post_init__(self) -> None:
        layer = self.layer
        if isinstance(layer, bool) or not isinstance(layer, int | float) or layer == 0:
            raise OptionError(f"layer={layer!r} is neither a number of layers nor a share of them", at="layer")
        if isinstance(layer, float) and not 0 < layer < 1:
            raise OptionError(f"layer={layer!r} is no share between 0.0 and 1.0", at="layer")
        require_integer("num_tokens", self.num_tokens)

    @classmethod
    def of(cls, layer: str = "0.5") -> EarlyExit:
        """From the text of a number: ``"8"``, ``"-4"``, ``"0.5"``; half of the layers if nothing is said.

        Raises:
            OptionError: the text is no number.
        """
        try:
            return cls(int(layer))
        except ValueError:
            pass
        try:
            return cls(float(layer))
        except ValueError:
            raise OptionError(f"{layer!r} is no number of layers", at="layer", hint="8, -4 or 0.5") from None

    def num_kept(self, num_layers: int) -> int:
        """How many layers are run of a model with `num_layers`.

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
        from decodekit.models.truncated import first_layers, num_layers

        engine = self._engines.get(model)
        if engine is not None and engine.model is not first_layers(model, self.num_kept(num_layers(model))):
            del self._engines[model]
        self._engine(model)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """What the layers would write; see `Proposer.propose`."""
        target = contexts[0].target if contexts else None
        if target is None or target.model is None:
            return [Draft()] * len(contexts)
        return self._engine(target.model).like_target(contexts, [min(limit, self.num_tokens) for limit in limits])

    def _engine(self, model: CausalLM) -> DraftEngine:
        engine = self._engines.get(model)
        if engine is None:
            from decodekit.models.truncated import first_layers, num_layers

            engine = DraftEngine(first_layers(model, self.num_kept(num_layers(model))))
            engine = self._engines.setdefault(model, engine)  # another thread may have made one
        return engine

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layer, self.num_tokens)
