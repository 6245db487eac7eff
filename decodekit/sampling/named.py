"""What a caller means by the option `processors`: values, names of installed ones, and several of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from decodekit import plugins
from decodekit.errors import DecodekitError, OptionError, UnknownNameError
from decodekit.sampling.base import LogitsProcessor, Pipeline

Processors: TypeAlias = Pipeline | LogitsProcessor | str | Sequence[LogitsProcessor | str]
"""Logits processors as an option takes them: values, or names of installed ones (see `plugins`)."""


def listed(given: Processors, faults: list[DecodekitError]) -> list[LogitsProcessor]:
    """The processors of an option, in their order; what a name stands for may be several.

    Args:
        given: the option.
        faults: gets an `OptionError` for what is no processor, and the error of a name that is not known or whose
            plug-in fails.
    """
    processors: list[LogitsProcessor] = []
    each: Iterable[Any] = given if isinstance(given, Pipeline | list | tuple) else [given]
    for one in each:
        try:
            made = plugins.make("processor", one, _is_one, at="processors") if isinstance(one, str) else one
            processors += made if isinstance(made, Pipeline) else Pipeline([made])
        except (OptionError, UnknownNameError) as error:
            faults.append(error)
    return processors


def _is_one(value: object) -> bool:
    return isinstance(value, LogitsProcessor | Pipeline)
