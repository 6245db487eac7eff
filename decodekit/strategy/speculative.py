"""Speculative decoding by its name: a draft model or look-ups guess ahead, and the text is that without guesses."""

from __future__ import annotations

import inspect
from typing import Any

from decodekit.errors import DecodekitError, OptionError, raise_faults
from decodekit.sampling.checks import is_count
from decodekit.speculation import Adaptive, DraftModel, Proposer, Suffix
from decodekit.strategy.base import Strategy
from decodekit.strategy.tokenwise import Greedy, Sample, useless_with_greedy


class Speculative:
    """Makes what ``strategy="speculative"`` stands for: `Greedy`, or `Sample` if it is given a temperature, with
    somebody who guesses ahead.

    It takes the options of these but ``speculate``, and two of its own:

    - ``draft_model``: an `LLM`, or the name of a model, as `DraftModel` takes it. Without one the guess is what mostly
      followed the longest ending of the text that came before, as long as that pays: `Adaptive` `Suffix`. (A prompt
      look-up behind it in a chain is never asked, for where it finds anything, so does `Suffix`.)
    - ``num_draft_tokens``: most tokens of a draft; None is as many as pay (`Adaptive`), or the draft model's default.
    """

    def __init__(self) -> None:
        sample = dict(inspect.signature(Sample).parameters)
        del sample["speculate"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [inspect.Parameter(name, keyword, default=None) for name in ("draft_model", "num_draft_tokens")]
        self.__signature__ = inspect.Signature([*own, *(one.replace(kind=keyword) for one in sample.values())])

    def __call__(self, draft_model: Any = None, num_draft_tokens: int | None = None, **options: Any) -> Strategy:
        """The strategy.

        Raises:
            OptionError: with all options that are out of range, or have no effect without a temperature.
        """
        faults: list[DecodekitError] = []
        proposer: Proposer = Suffix()
        try:
            proposer = _proposer(draft_model, num_draft_tokens)
        except OptionError as error:
            faults.append(error)
        strategy: Strategy = Greedy()
        try:
            if "temperature" in options:
                strategy = Sample(speculate=proposer, **options)
            else:
                of_greedy = inspect.signature(Greedy).parameters
                faults += [
                    useless_with_greedy(f"{name}={value!r}", hint="a temperature, as 1.0")
                    for name, value in options.items()
                    if name not in of_greedy
                ]
                strategy = Greedy(
                    speculate=proposer, **{name: value for name, value in options.items() if name in of_greedy}
                )
        except OptionError as error:
            faults.append(error)
        raise_faults(faults)
        return strategy


def _proposer(draft_model: Any, num_tokens: int | None) -> Proposer:
    if num_tokens is not None and not is_count(num_tokens):
        raise OptionError(f"num_draft_tokens={num_tokens!r} is not an integer from 1 on", at="num_draft_tokens")
    if draft_model is None:
        return Adaptive(Suffix()) if num_tokens is None else Suffix(max_tokens=num_tokens)
    try:
        return DraftModel(draft_model) if num_tokens is None else DraftModel(draft_model, num_tokens)
    except OptionError as error:
        raise OptionError(
            error.cause, at="draft_model", hint='an LLM, or the name of a model, as "tiny-draft"'
        ) from error
