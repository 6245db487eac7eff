"""Strategies and contrasts by plain values: what a command line, a JSON file or a name can say of them.

``sample:temperature=0.7,contrast=dola+suffix`` is a strategy with its options and who guesses ahead (see `spelling`).
Options that are values of Python elsewhere are said in plain ones here: ``contrast`` as ``guidance:scale=2``, ``dola``,
``amateur:MODEL``; ``watermark`` as an object of its settings; ``logit_bias`` as an object with token ids for names;
``sequence_bias`` as a list of pairs ``[[token ids], bias]``. Functions (``rank``, ``key``, ``predicate``) have no text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from decodekit import plugins
from decodekit.errors import DecodekitError, OptionError, UnknownNameError, collecting, out_of_domain
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling.processors.watermark import Watermark
from decodekit.spelling import SpelledCall, arguments, read_call, read_value, split
from decodekit.strategy.contrasts import Amateur, DoLa, Guidance

CONTRASTS: Final[Mapping[str, Callable[..., Contrast]]] = {"guidance": Guidance, "dola": DoLa, "amateur": Amateur}
"""Names that the option `contrast` takes."""


def spelled_strategy(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of the strategy that a text spells; who guesses ahead is the option ``speculate``."""
    if not set(text) & set("+:"):
        return text.strip(), {}
    own, *guesses = split(text, "+")
    call = read_call(own)
    if call.argument is not None:
        raise OptionError(f"{call.argument!r} is no option=value", at=text)
    options = dict(call.options)
    if guesses:
        if "speculate" in options:
            raise OptionError(f"{own!r} has a proposer already, {guesses[0]!r} would be a second one", at=text)
        options["speculate"] = "+".join(guesses)
    return call.name, options


def read_options(options: Mapping[str, Any], faults: list[DecodekitError]) -> dict[str, Any]:
    """The options with plain values read as what they stand for; `faults` gets those that cannot be."""
    read = {}
    for name, value in options.items():
        with collecting(faults, (OptionError, UnknownNameError)):
            read[name] = _READERS[name](value) if name in _READERS else value
    return read


def _contrast(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    call = read_call(given)
    if call.name not in CONTRASTS:
        near = plugins.did_you_mean(call.name, CONTRASTS)
        cause = f"no contrast {call.name!r:.60}.{near} There are: {', '.join(CONTRASTS)}."
        raise UnknownNameError(cause, at="contrast")
    kind = CONTRASTS[call.name]
    read = replace(call, argument=None if call.argument is None else read_value(call.argument))
    return kind(**arguments("contrast", kind, read, at="contrast"))


def _watermark(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return Watermark() if given is True else given
    return Watermark(**arguments("watermark", Watermark, SpelledCall("watermark", None, dict(given)), at="watermark"))


def _logit_bias(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    return {
        int(token) if isinstance(token, str) and token.isdecimal() else token: bias for token, bias in given.items()
    }


def _sequence_bias(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list) for pair in given):
        domain, hint = "a list of pairs of token ids and a bias", "sequence_bias=[[[12,7],-2.5]]"
        raise out_of_domain("sequence_bias", domain, given, hint=hint)
    return {tuple(tokens): bias for tokens, bias in given}


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "contrast": _contrast,
    "watermark": _watermark,
    "logit_bias": _logit_bias,
    "sequence_bias": _sequence_bias,
}
