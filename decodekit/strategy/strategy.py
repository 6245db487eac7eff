"""Strategies: frozen values that say which token is taken.

A strategy is a pipeline of logits processors and a selector. To write one, subclass `Strategy`::

    @dataclass(frozen=True)
    class Coldest(Strategy):
        name: ClassVar[str] = "coldest"
        temperature: float = 0.1

        @property
        def pipeline(self) -> Pipeline:
            return Pipeline((Temperature(self.temperature),))

        def select(self, scores: Tensor | Candidates, keys: NoiseKeys) -> Tensor:
            return sample(scores, keys.seeds, keys.sequences, keys.positions)

and name it in the entry-point group ``decodekit.strategies`` to find it by name.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, ClassVar, Final, get_args

from torch import Tensor

from decodekit.decoding.request.settings import NoiseKeys
from decodekit.errors import DecodekitError
from decodekit.models.wrappers.contrast_model import Contrast, is_contrast
from decodekit.sampling import Candidates, Pipeline
from decodekit.sampling.checks import SEED, Domain, one_of
from decodekit.sampling.mirostat import MirostatTruncation as Truncation
from decodekit.speculation import Proposer, resolve_proposer
from decodekit.speculation.proposer import Speculate
from decodekit.speculation.verification import Verify

DOMAINS: Final[Mapping[str, Domain]] = {
    "seed": SEED.or_none,
    "verify": one_of(*get_args(Verify)),
    "contrast": Domain("a contrast", is_contrast).or_none.hinting("Guidance(scale=1.5), DoLa(), Amateur(llm)"),
}
"""The domains of the options that most strategies have."""


class Strategy(ABC):
    """The rule by which a token is taken from logits. A frozen value; equal strategies decode equal texts.

    Laws, which `testing.check_strategy` checks: those of `select` (see `decoding.request.settings.Selector`); a text
    depends on its prompt, its constraint and its seed alone; options out of their domains, without effect or in
    conflict are refused when the strategy is made, all in one `OptionError`; its `repr` makes an equal one.

    `speculate` says who guesses ahead: a proposer, its name (see `speculation.proposer_names`), or several to try in
    order. It never changes a text, only how many forward passes the text costs.

    `verify` says how guesses are verified: ``"coupled"``, or ``"rejection"`` for strategies whose `select` draws from
    the softmax of its scores. With the second the distribution of the texts is the same, and each text is a function of
    the seed, the proposer and all that decides where a draft ends; see `speculation.verification`.

    `contrast` changes the distribution of the model before anything else: `Guidance`, `DoLa` or `Amateur`.
    """

    name: ClassVar[str]
    domains: ClassVar[Mapping[str, Domain]] = {}
    """The domains of options whose values no other value checks."""
    seed: int | None = None
    speculate: Speculate = None
    verify: Verify = "coupled"
    contrast: Contrast | None = None

    @property
    @abstractmethod
    def pipeline(self) -> Pipeline:
        """The pipeline that reshapes the logits. The constraint's mask is applied inside it, before temperature."""

    @abstractmethod
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Token ids, int64 [N], for processed logits; see `decoding.request.settings.Selector`."""

    @property
    def mirostat(self) -> Truncation | None:
        """A truncation that adapts to the text, after the pipeline; None but for `Mirostat`."""
        return None

    @property
    def num_samples(self) -> int:
        """The number of texts that are decoded of a prompt; see `decoding.loop.step`."""
        return 1

    @property
    def proposer(self) -> Proposer | None:
        """The proposer of drafts, None without speculation; an error if `speculate` is nothing that can guess."""
        return None if self.speculate is None else resolve_proposer(self.speculate)

    def __repr__(self) -> str:
        options: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        values = [(option, getattr(self, option.name)) for option in options]
        given = [f"{option.name}={value!r}" for option, value in values if value != option.default]
        return f"{type(self).__name__}({', '.join(given)})"


def options_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The options of what makes a strategy."""
    return inspect.signature(factory).parameters


def check_seed(seed: object, faults: list[DecodekitError]) -> None:
    """Add a fault if `seed` is not an integer of 63 bits."""
    fault = SEED.fault("seed", seed)
    faults += [] if fault is None else [fault]
