"""Which token is taken: strategies as frozen values, and the names by which they are found.

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

and name it in the entry-point group ``decodekit.strategies`` to find it by name. Entry points are loaded when asked
for, so that a broken one harms nobody else.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from decodekit.errors import DecodekitError, OptionError, UnknownNameError, UselessOptionError, raise_faults
from decodekit.generation.beam import Beam
from decodekit.generation.settings import NoiseKeys
from decodekit.sampling import (
    ORDERS,
    Candidates,
    LogitsProcessor,
    OrderPreserving,
    Pipeline,
    Stage,
    Temperature,
    greedy,
    sample,
)
from decodekit.sampling.mirostat import Mirostat as MirostatLaw
from decodekit.sampling.options import BiasOptions, ShapeOptions
from decodekit.sampling.orders import ordered
from decodekit.speculation import GrammarDraft, PromptLookup, Proposer, Suffix, resolve_proposer
from decodekit.speculation.proposer import Speculate

ENTRY_POINTS = "decodekit.strategies"

PROPOSERS: Mapping[str, Callable[[], Proposer]] = {
    "prompt-lookup": PromptLookup,
    "suffix": Suffix,
    "grammar": GrammarDraft,
}
"""Names that the option `speculate` takes."""

Processors: TypeAlias = Pipeline | LogitsProcessor | list[LogitsProcessor] | tuple[LogitsProcessor, ...]
"""Logits processors as an option takes them."""


class Strategy(ABC):
    """How a token is taken from logits. A frozen value; equal strategies decode equal texts.

    `speculate` says who guesses ahead: a proposer, its name (see `PROPOSERS`), or several to try in order. It never
    changes a text, only how many forward passes the text costs.
    """

    name: ClassVar[str]
    seed: int | None = None
    speculate: Speculate = None

    @property
    @abstractmethod
    def pipeline(self) -> Pipeline:
        """What reshapes the logits first. The constraint's mask is applied inside it, before temperature."""

    @abstractmethod
    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Token ids, int64 [N], for processed logits; see `generation.settings.Selector`."""

    @property
    def mirostat(self) -> MirostatLaw | None:
        """A truncation that adapts to the text, after the pipeline; None but for `Mirostat`."""
        return None

    @property
    def proposer(self) -> Proposer | None:
        """Who guesses ahead; None without speculation.

        Raises:
            OptionError, UnknownNameError: `speculate` is nothing that can guess.
        """
        return resolve_proposer(self.speculate, PROPOSERS)

    def __repr__(self) -> str:
        options: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        values = [(option, getattr(self, option.name)) for option in options]
        given = [f"{option.name}={value!r}" for option, value in values if value != option.default]
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Greedy(Strategy, BiasOptions):
    """The likeliest token, the smallest id among equally likely ones. Seeds have no influence.

    Args:
        processors: further processors that change which token is the likeliest.
        speculate: who guesses ahead; see `Strategy`.
        others: penalties and biases; see `sampling.options.BiasOptions`.

    Raises:
        OptionError: with all options that are out of range, or have no effect on the likeliest token.
    """

    name: ClassVar[str] = "greedy"

    processors: Processors = ()
    speculate: Speculate = None

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        processors = [*self.biases(faults), *_listed(self.processors, faults)]
        faults += [_useless(repr(processor)) for processor in processors if isinstance(processor, OrderPreserving)]
        _check_speculate(self, faults)
        raise_faults(faults)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Penalties and biases."""
        return Pipeline([*self.biases([]), *_listed(self.processors, [])])

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The index of the largest score."""
        return greedy(scores.dense() if isinstance(scores, Candidates) else scores)


@dataclass(frozen=True, repr=False)
class Sample(Strategy, ShapeOptions, BiasOptions):
    """A token drawn from the law that the pipeline leaves.

    The order of the options is that of `order`: with "decodekit" penalties and biases, the constraint's mask,
    temperature, smoothing, top-k, top-p, min-p, the other truncations, XTC, the watermark. Of `processors` the biases
    come after the options' own, the others at the end, but before a watermark. Processors alone keep the order in
    which they were composed. The noise is a function of (seed, number of the sample, index of the new token, token id),
    so that a text does not depend on batch size, neighbours or streaming.

    Args:
        temperature: divides the logits; above 0.
        top_k: keep the k likeliest tokens.
        top_p: keep the smallest set of likeliest tokens with this mass.
        min_p: keep tokens at least this many times as likely as the likeliest.
        seed: key of the noise, for every prompt; ``generate(seed=...)`` may give it instead. None is 0.
        processors: further processors.
        speculate: who guesses ahead; see `Strategy`.
        order: "decodekit", or the order and the meaning that the options have in "hf" (transformers), "vllm",
            "llamacpp" or "mlx"; see `sampling.orders`.
        others: penalties and biases, further truncations and shapes; see `sampling.options`.

    Raises:
        OptionError: with all options that are out of range, have no effect, or that the library of `order` lacks.
        UnknownNameError: no such order.
    """

    name: ClassVar[str] = "sample"

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    processors: Processors = ()
    speculate: Speculate = None
    order: str = field(default="decodekit", kw_only=True)

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        own = self._own(faults)
        _listed(self.processors, faults)
        for processor in own if self.order in ORDERS else own[:1]:
            _ordered([processor], self.order, faults)
        if self.order not in ORDERS and not own:
            _ordered([], self.order, faults)
        elif self.order != "decodekit" and not own:
            faults.append(UselessOptionError(f"order={self.order!r} has nothing to put in order", at="order"))
        _check_speculate(self, faults)
        if self.seed is not None:
            check_seed(self.seed, faults)
        raise_faults(faults)

    def _own(self, faults: list[DecodekitError]) -> list[LogitsProcessor]:
        return [*self.biases(faults), *self.shapes(self.temperature, self.top_k, self.top_p, self.min_p, faults)]

    @cached_property
    def pipeline(self) -> Pipeline:
        """Penalties and biases, temperature, truncation."""
        own, extra = _ordered(self._own([]), self.order, []), _listed(self.processors, [])
        biases = [processor for processor in own if processor.stage is Stage.BIAS]
        if len(biases) == len(own):  # the order in which the caller composed them has a meaning: it is kept
            return Pipeline([*own, *extra])
        return Pipeline(
            [
                *biases,
                *(processor for processor in extra if processor.stage is Stage.BIAS),
                *(processor for processor in own if Stage.BIAS < processor.stage < Stage.LAST),
                *(processor for processor in extra if processor.stage is not Stage.BIAS),
                *(processor for processor in own if processor.stage is Stage.LAST),
            ]
        )

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Draw by the Gumbel-max trick."""
        return sample(scores, keys.seeds, keys.sequences, keys.positions)


@dataclass(frozen=True, repr=False)
class Mirostat(Strategy, BiasOptions):
    """A token drawn from what is not too surprising, so that the text keeps a level of surprise (Basu et al. 2020).

    Tokens with more than mu bits of surprise are left out; after each token mu moves by `eta` times the distance of
    its surprise from `tau`. It begins at 2 tau. mu is a function of the text so far, so that a text depends on the seed
    and on nothing else, as with `Sample`; see `generation.adaptive`.

    Args:
        tau: the surprise to keep, in bits; above 0.
        eta: how fast mu follows; above 0.
        version: 2 as described, or 1: the k likeliest tokens, with k from mu by a fit of Zipf's law.
        seed: key of the noise, as in `Sample`.
        temperature: divides the logits first; above 0.
        processors: further processors, before the surprise is taken.
        speculate: who guesses ahead; see `Strategy`.
        others: penalties and biases; see `sampling.options.BiasOptions`.

    Raises:
        OptionError: with all options that are out of range or have no effect.
    """

    name: ClassVar[str] = "mirostat"

    tau: float = 5.0
    eta: float = 0.1
    version: int = 2
    seed: int | None = None
    temperature: float = 1.0
    processors: Processors = ()
    speculate: Speculate = None

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        for option in ("tau", "eta", "version"):
            try:
                MirostatLaw(**{option: getattr(self, option)})
            except OptionError as error:
                faults.append(error)
        _listed(self.processors, faults)
        self._sampled(faults)
        _check_speculate(self, faults)
        if self.seed is not None:
            check_seed(self.seed, faults)
        raise_faults(faults)

    def _sampled(self, faults: list[DecodekitError]) -> list[LogitsProcessor]:
        return [*self.biases(faults), *ShapeOptions().shapes(self.temperature, None, None, None, faults)]

    @property
    def mirostat(self) -> MirostatLaw:
        """What truncates after the pipeline."""
        return MirostatLaw(self.tau, self.eta, self.version)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Penalties and biases, temperature, further processors."""
        own, extra = self._sampled([]), _listed(self.processors, [])
        if all(processor.stage is Stage.BIAS for processor in own):
            return Pipeline([*own, *extra])
        biases = [processor for processor in extra if processor.stage is Stage.BIAS]
        return Pipeline(
            [*own[:-1], *biases, own[-1], *(processor for processor in extra if processor.stage is not Stage.BIAS)]
        )

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Draw by the Gumbel-max trick."""
        return sample(scores, keys.seeds, keys.sequences, keys.positions)


def can_redraw(strategy: Strategy) -> bool:
    """Whether a drawn token may be cleared and the row drawn again, with the law of a row without the token.

    So it is for an argmax of scores that each depend on their own token: the argmax over the rest does not depend on
    what else was there. A truncation does: a token that must not come takes the place of another among the k likeliest.
    """
    selects = type(strategy).select in (Greedy.select, Sample.select)
    return selects and all(
        processor.stage is Stage.BIAS or isinstance(processor, Temperature) for processor in strategy.pipeline
    )


Strategy.register(Beam)  # a search of its own, with its options beside it

_BUILT_IN: dict[str, Callable[..., Any]] = {
    "greedy": Greedy,
    "sample": Sample,
    "prompt-lookup": partial(Greedy, speculate=PromptLookup()),
    "suffix": partial(Greedy, speculate=Suffix()),
    "mirostat": Mirostat,
    "beam": Beam,
}


def available_strategies() -> list[str]:
    """Names of the installed strategies, the built-in ones first."""
    installed = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return [*_BUILT_IN, *sorted(installed - _BUILT_IN.keys())]


def resolve_strategy(strategy: str | Strategy | Beam | Processors, options: Mapping[str, Any]) -> Strategy:
    """The strategy that a caller means.

    Args:
        strategy: a name, a value, or processors to sample with.
        options: keyword options for a strategy given by name.

    Raises:
        UnknownNameError: no strategy of that name is installed, or it cannot be loaded.
        OptionError: options that the strategy does not have, or that were given beside a value; all of them together.
    """
    if isinstance(strategy, str):
        return _named(strategy, options)
    faults: list[DecodekitError] = [
        OptionError(
            f"{name}={value!r} is given beside strategy={strategy!r}, which is complete",
            at=name,
            hint=f"{name} inside the strategy, or the strategy by its name",
        )
        if name in all_option_names()
        else unknown_option(name)
        for name, value in options.items()
    ]
    if isinstance(strategy, Strategy):
        raise_faults(faults)
        return strategy
    raise_faults(faults)
    if isinstance(strategy, Pipeline | LogitsProcessor | list | tuple):
        return Sample(processors=strategy)
    raise OptionError(
        f"{strategy!r:.60} is no strategy",
        at="strategy",
        hint='a name such as "greedy", a value such as Sample(temperature=0.7), or processors joined by |',
    )


def _named(name: str, options: Mapping[str, Any]) -> Strategy:
    factory = _BUILT_IN.get(name) or _installed(name)
    accepted = inspect.signature(factory).parameters
    is_greedy = factory in (Greedy, _BUILT_IN["prompt-lookup"], _BUILT_IN["suffix"])
    faults: list[DecodekitError] = []
    for option, value in options.items():
        if option in accepted:
            continue
        if is_greedy and option in inspect.signature(Sample).parameters:
            faults.append(_useless(f"{option}={value!r}"))
        else:
            faults.append(unknown_option(option, accepted))
    strategy: Strategy | None = None
    try:
        strategy = factory(**{option: value for option, value in options.items() if option in accepted})
    except OptionError as error:
        faults.append(error)
    raise_faults(faults)
    assert strategy is not None
    return strategy


def _installed(name: str) -> Callable[..., Strategy]:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        try:
            factory = entry.load()
        except Exception as error:  # whatever the plug-in does wrong
            raise UnknownNameError(
                f"strategy {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}", at="strategy"
            ) from error
        if not callable(factory):
            raise UnknownNameError(f"strategy {name!r} ({entry.value}) is no class or function", at="strategy")
        return factory  # type: ignore[no-any-return]
    names = available_strategies()
    raise UnknownNameError(
        f"no strategy {name!r}.{did_you_mean(name, names)} Installed: {', '.join(names)}.", at="strategy"
    )


def all_option_names() -> set[str]:
    """Every option of a built-in strategy."""
    return {option for strategy in _BUILT_IN.values() for option in inspect.signature(strategy).parameters}


def unknown_option(name: str, accepted: Iterable[str] = ()) -> OptionError:
    """The fault of an option that nothing knows."""
    known = {*all_option_names(), *accepted, *GENERATION_OPTIONS}
    return OptionError(f"no option {name!r}.{did_you_mean(name, known)}", at=name)


GENERATION_OPTIONS = (
    "strategy",
    "constraint",
    "max_new_tokens",
    "stop",
    "seed",
    "logprobs",
    "on_length",
    "on_error",
    "max_rollbacks",
    "fast_forward",
    "batch_size",
)
"""Options of `LLM.generate` that do not belong to a strategy."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`` Did you mean 'x'?``, or nothing if no name is near."""
    nearest = difflib.get_close_matches(name, sorted(names), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def check_seed(seed: object, faults: list[DecodekitError]) -> None:
    """Add a fault if `seed` is not an integer of 63 bits."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 63:
        faults.append(OptionError(f"seed={seed!r} is not an integer from 0 to 2**63 - 1", at="seed"))


def _listed(given: Processors, faults: list[DecodekitError]) -> list[LogitsProcessor]:
    """What the option `processors` holds."""
    try:
        return list(Pipeline(given if isinstance(given, Pipeline | list | tuple) else [given]))
    except OptionError as error:
        faults.append(error)
        return []


def _ordered(
    processors: Sequence[LogitsProcessor], order: str, faults: list[DecodekitError]
) -> tuple[LogitsProcessor, ...]:
    try:
        return ordered(processors, order)
    except (OptionError, UnknownNameError) as error:
        faults.append(error)
        return ()


def _check_speculate(strategy: Strategy, faults: list[DecodekitError]) -> None:
    try:
        _ = strategy.proposer
    except (OptionError, UnknownNameError) as error:
        faults.append(error)


def _useless(option: str) -> UselessOptionError:
    return UselessOptionError(
        f"{option} has no effect with greedy decoding.", at=option.split("=")[0], hint='strategy="sample"'
    )
