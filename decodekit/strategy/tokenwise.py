"""Strategies that take one token at a time: the likeliest, one drawn from a distribution, one of a wanted surprise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from decodekit.decoding.request.settings import NoiseKeys
from decodekit.errors import DecodekitError, OptionError, UnknownNameError, UselessOptionError, collecting, raise_faults
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import (
    Candidates,
    LogitsProcessor,
    OrderPreserving,
    Pipeline,
    Stage,
    Temperature,
    greedy,
    sample,
)
from decodekit.sampling.certificates import Lead, lead_greedy, lead_noisy
from decodekit.sampling.checks import COUNT, Domain, faults_of
from decodekit.sampling.mirostat import MirostatTruncation as Truncation
from decodekit.sampling.options.option_fields import BiasOptions, ShapeOptions
from decodekit.sampling.orders import ORDER
from decodekit.sampling.sampler_options import Processors, listed, made_of
from decodekit.speculation import Adaptive, GrammarDraft, PromptLookup, Proposer, Suffix
from decodekit.speculation.proposer import Speculate, each_proposer, every_part
from decodekit.speculation.verification import Verify
from decodekit.strategy.strategy import DOMAINS, Strategy


@dataclass(frozen=True, repr=False)
class Greedy(Strategy, BiasOptions):
    """The likeliest token, the smallest id among equally likely ones. Seeds have no influence.

    Args:
        processors: further processors that change which token is the likeliest.
        speculate: who guesses ahead; see `Strategy`.
        contrast: whose likeliest token, if not the model's own; see `Strategy`.
        others: penalties and biases; see docs/options.md.
    """

    name: ClassVar[str] = "greedy"
    domains: ClassVar[Mapping[str, Domain]] = {"contrast": DOMAINS["contrast"]}

    processors: Processors = ()
    speculate: Speculate = None
    contrast: Contrast | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        processors = [*made_of(self, faults), *listed(self.processors, faults)]
        faults += [
            useless_with_greedy(repr(processor)) for processor in processors if isinstance(processor, OrderPreserving)
        ]
        raise_faults([*faults, *_common_faults(self)])

    @cached_property
    def pipeline(self) -> Pipeline:
        """Penalties and biases."""
        return Pipeline([*made_of(self, []), *listed(self.processors, [])])

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The index of the largest score."""
        return greedy(scores)


class Drawing(Strategy):
    """A strategy that draws each token with keyed noise, for one text of a prompt or several."""

    domains: ClassVar[Mapping[str, Domain]] = {**DOMAINS, "num_return_sequences": COUNT}
    num_return_sequences: int

    @property
    def num_samples(self) -> int:
        """`num_return_sequences`."""
        return self.num_return_sequences

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """Draw by the Gumbel-max trick."""
        return sample(scores, keys.seeds, keys.sequences, keys.positions)


@dataclass(frozen=True, repr=False)
class Sample(Drawing, ShapeOptions, BiasOptions):
    """A token drawn from the distribution that the pipeline leaves.

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
        seed: key of the noise, for every prompt; ``generate(seed=...)`` may give it instead, one for each prompt. None
            is 0, so that equal prompts get equal texts.
        processors: further processors.
        speculate: who guesses ahead; see `Strategy`.
        verify: how guesses are verified, "coupled" or "rejection"; see `Strategy`.
        num_return_sequences: how many texts of a prompt; `Completion.others` has those after the first, which alone is
            streamed. Sample i has the number i, the second key of the noise.
        contrast: draw from another distribution than the model's own; see `Strategy`.
        order: "decodekit", or the order and the meaning that the options have in "hf" (transformers), "vllm",
            "llamacpp" or "mlx"; see `sampling.orders`.
        others: penalties and biases, further truncations and shapes; see docs/options.md.
    """

    name: ClassVar[str] = "sample"

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    processors: Processors = ()
    speculate: Speculate = None
    verify: Verify = field(default="coupled", kw_only=True)
    num_return_sequences: int = field(default=1, kw_only=True)
    contrast: Contrast | None = field(default=None, kw_only=True)
    order: str = field(default="decodekit", kw_only=True)

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        own = made_of(self, faults)
        listed(self.processors, faults)
        is_known = ORDER.has(self.order)
        for each in [[one] for one in own] if is_known else [[]]:
            with collecting(faults, (OptionError, UnknownNameError)):
                Pipeline.ordered(each, self.order)
        if is_known and self.order != "decodekit" and not own:
            faults.append(UselessOptionError(f"order={self.order!r} has nothing to put in order", at="order"))
        raise_faults([*faults, *_common_faults(self)])

    @cached_property
    def pipeline(self) -> Pipeline:
        """Penalties and biases, temperature, truncation."""
        return joined([*Pipeline.ordered(made_of(self, []), self.order)], listed(self.processors, []))


@dataclass(frozen=True, repr=False)
class Mirostat(Drawing, BiasOptions):
    """A token drawn from what is not too surprising, so that the text keeps a level of surprise (Basu et al. 2020).

    Tokens with more than mu bits of surprise are left out; after each token mu moves by `eta` times the distance of
    its surprise from `tau`. It begins at 2 tau. mu is a function of the text so far, so that a text depends on the seed
    and on nothing else, as with `Sample`; see `decoding.draws.mirostat_states`.

    Args:
        tau: the surprise to keep, in bits; above 0.
        eta: how fast mu follows; above 0.
        version: 2 as described, or 1: the k likeliest tokens, with k from mu by a fit of Zipf's law.
        seed: key of the noise, as in `Sample`.
        temperature: divides the logits first; above 0.
        processors: further processors, before the surprise is taken.
        speculate: who guesses ahead; see `Strategy`.
        verify: how guesses are verified, as in `Sample`.
        num_return_sequences: how many texts of a prompt, as in `Sample`.
        contrast: as in `Sample`.
        others: penalties and biases; see docs/options.md.
    """

    name: ClassVar[str] = "mirostat"

    tau: float = 5.0
    eta: float = 0.1
    version: int = 2
    seed: int | None = None
    temperature: float = 1.0
    processors: Processors = ()
    speculate: Speculate = None
    verify: Verify = field(default="coupled", kw_only=True)
    num_return_sequences: int = field(default=1, kw_only=True)
    contrast: Contrast | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        faults: list[DecodekitError] = []
        with collecting(faults, OptionError):
            Truncation(self.tau, self.eta, self.version)
        listed(self.processors, faults)
        made_of(self, faults)
        raise_faults([*faults, *_common_faults(self)])

    @property
    def mirostat(self) -> Truncation:
        """The truncation behind the pipeline."""
        return Truncation(self.tau, self.eta, self.version)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Penalties and biases, temperature, further processors."""
        return joined(made_of(self, []), listed(self.processors, []))


def can_redraw(strategy: Strategy) -> bool:
    """Whether a drawn token may be cleared and the row drawn again, with the distribution of a row without the token.

    So it is for an argmax of scores that each depend on their own token: the argmax over the rest does not depend on
    what else was there. A truncation does: a token that must not come takes the place of another among the k likeliest.
    """
    strategy = getattr(strategy, "strategy", strategy)  # of several samples, that which draws them
    selects = type(strategy).select in (Greedy.select, Sample.select) and strategy.mirostat is None
    return selects and all(
        processor.stage is Stage.BIAS or isinstance(processor, Temperature) for processor in strategy.pipeline
    )


def lead_of(strategy: Strategy) -> Lead | None:
    """The function that finds the token which a strategy takes of a whole row; None if its `select` is its own."""
    inner: Strategy = getattr(strategy, "strategy", strategy)  # of several samples, that which draws them
    select = type(inner).select
    return lead_greedy if select is Greedy.select else lead_noisy if select is Drawing.select else None


def joined(own: Sequence[LogitsProcessor], extra: Sequence[LogitsProcessor]) -> Pipeline:
    """The processors of the options and further ones: biases first, what comes last of all last."""
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


def _common_faults(strategy: Strategy) -> Iterator[DecodekitError]:
    """The faults of the options that all of them have."""
    faults: list[DecodekitError] = []
    with collecting(faults, (OptionError, UnknownNameError)):
        proposer = strategy.proposer
        if strategy.verify == "rejection":
            _check_rejection(proposer)
    yield from faults
    yield from faults_of(strategy, strategy.domains)


def _check_rejection(proposer: Proposer | None) -> None:
    """Raise the `OptionError` of guesses that cannot be verified by rejection."""
    if proposer is None:
        cause = 'verify="rejection" has no effect without speculate='
        raise UselessOptionError(cause, at="verify", hint='DraftModel("tiny-draft")')
    if all(isinstance(one, _CHOOSING) for one in each_proposer(proposer)):
        return
    for part in every_part(proposer):
        if isinstance(part, Adaptive) or (isinstance(part, Suffix) and part.corpus is not None):
            cause = (
                f'verify="rejection" and {part!r:.60} beside drafts that are drawn cannot be combined: '
                "where its drafts end depends on other rows, and so would the text"
            )
            hint = 'Suffix() for "suffix", which is adaptive; or verify="coupled", where no text depends on a draft'
            raise OptionError(cause, at="verify", hint=hint)


_CHOOSING = (PromptLookup, Suffix, GrammarDraft)
"""Proposers that draw nothing, so that no text depends on their drafts under either rule."""


def useless_with_greedy(option: str, hint: str = 'strategy="sample"') -> UselessOptionError:
    """The fault of an option that changes no likeliest token."""
    return UselessOptionError(f"{option} has no effect with greedy decoding.", at=option.split("=")[0], hint=hint)
