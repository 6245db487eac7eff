"""Options of strategies under the names that their users know, and the processors that they stand for.

Names are those of transformers, vLLM and llama.cpp. The processors declare them (`options.declared`). An option that is
None is not used. One that refines another, such as the base of DRY, has no effect without it and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

from decodekit import plugins
from decodekit.errors import DecodekitError, OptionError, UnknownNameError, UselessOptionError
from decodekit.sampling.options.declared import Option, options_of
from decodekit.sampling.options.option_fields import KINDS
from decodekit.sampling.pipeline import LogitsProcessor, Pipeline
from decodekit.sampling.processors.pointwise import Temperature
from decodekit.sampling.processors.shapes import DynamicTemperature
from decodekit.sampling.processors.transformers_processors import as_processor, is_foreign, is_function, of_function

Processors: TypeAlias = (
    Pipeline | LogitsProcessor | str | Callable[..., Any] | Sequence[LogitsProcessor | str | Callable[..., Any]]
)
"""Logits processors as an option takes them: values, names of installed ones (see `plugins`), or those of transformers
(see `foreign`)."""


def made_of(options: object, faults: list[DecodekitError]) -> list[LogitsProcessor]:
    """The processors that the options of a strategy stand for, in the order of `PROCESSORS`; of others the faults."""
    made: list[LogitsProcessor] = []
    found: dict[str, DecodekitError] = {}
    for kind in KINDS:
        declared = options_of(kind)
        main = next(iter(declared.values()))
        value = getattr(options, main.name, None)
        if value is None or main.is_idle(value):
            continue
        values = {field: getattr(options, one.name, None) for field, one in declared.items()}
        try:
            made.append(kind.of_options(**{field: value for field, value in values.items() if value is not None}))
        except OptionError as error:
            found |= {str(fault): fault for fault in error.faults or (error,)}
    faults += [*found.values(), *_alone(options), *_twice(made)]
    return made


@cache
def refined_options() -> dict[Option, dict[str, Any]]:
    """The options that have no effect without another one: those that call for their processors, with usual values."""
    refined: dict[Option, dict[str, Any]] = {}
    for kind in KINDS:
        main, *others = options_of(kind).values()
        for one in others:
            refined.setdefault(one, {})[main.name] = main.usual
    return refined


def _alone(options: object) -> Iterator[OptionError]:
    """The faults of options that refine another one, which is not given."""
    for one, mains in refined_options().items():
        value = getattr(options, one.name, None)
        if value is not None and all(getattr(options, main, None) is None for main in mains):
            cause = f"{one.name}={value!r} has no effect without {' or '.join(mains)}"
            yield UselessOptionError(cause, at=one.name)
            fault = one.domain.fault(one.name, value)
            yield from () if fault is None else (fault,)


def _twice(made: Sequence[LogitsProcessor]) -> Iterator[OptionError]:
    """The fault of two temperatures."""
    given = [one for one in made if isinstance(one, Temperature)]
    if given and any(isinstance(one, DynamicTemperature) for one in made):
        yield OptionError(
            f"temperature={given[0].temperature} and dynamic_temperature cannot be combined: there is one temperature",
            at="temperature",
            hint="the bounds of dynamic_temperature multiplied by the temperature",
        )


def listed(given: Processors, faults: list[DecodekitError]) -> list[LogitsProcessor]:
    """The processors of an option, in their order; what a name stands for may be several.

    `faults` gets the errors of what is not a processor, of names that are not known, and of plug-ins that fail.
    """
    processors: list[LogitsProcessor] = []
    every: Iterable[Any] = given if isinstance(given, Pipeline | list | tuple) else [given]
    for one in every:
        try:
            made = plugins.make("processor", one, _is_one, at="processors") if isinstance(one, str) else one
            if is_foreign(made):
                made = [as_processor(each) for each in (made if isinstance(made, list) else [made])]
            elif is_function(made):
                made = [of_function(made)]
            processors += made if isinstance(made, Pipeline | list) else Pipeline([made])
        except (OptionError, UnknownNameError) as error:
            faults.append(error)
    return processors


def _is_one(value: object) -> bool:
    return isinstance(value, LogitsProcessor | Pipeline)
