"""Speculative decoding by its name: a draft model or look-ups draft tokens, and the text is that without drafts."""

from __future__ import annotations

import inspect
from typing import Any

from decodekit.errors import DecodekitError, OptionError, collecting, raise_faults
from decodekit.sampling.checks import is_count
from decodekit.speculation import Adaptive, DraftModel, Proposer, Suffix
from decodekit.strategy.base import Strategy, accepting
from decodekit.strategy.tokenwise import Greedy, Sample, useless_with_greedy


@accepting(*(one for one in inspect.signature(Sample).parameters.values() if one.name != "speculate"))
def speculative(draft_model: Any = None, num_draft_tokens: int | None = None, **options: Any) -> Strategy:
    """What ``strategy="speculative"`` stands for: `Greedy`, or `Sample` if there is a temperature, with a proposer.

    It takes the options of these but ``speculate``, and two of its own.

    Args:
        draft_model: an `LLM`, or the name of a model, as `DraftModel` takes it. Without one the draft is what mostly
            followed the longest ending of the text that came before, as long as that pays: `Adaptive` `Suffix`.
            (Prompt look-up behind it would never be asked: where it finds anything, so does `Suffix`.)
        num_draft_tokens: the most tokens of a draft; None is as many as pay (`Adaptive`), or the draft model's default.
        options: of `Sample`.

    Raises:
        OptionError: with all options that are out of range, or have no effect without a temperature.
    """
    faults: list[DecodekitError] = []
    proposer: Proposer = Suffix()
    with collecting(faults, OptionError):
        proposer = _proposer(draft_model, num_draft_tokens)
    strategy: Strategy = Greedy()
    with collecting(faults, OptionError):
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
