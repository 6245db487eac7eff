"""Declarations of options: the fields of a processor say which options of strategies they are.

    @dataclass(frozen=True, repr=False)
    class Shy(LogitsProcessor):
        share: float = field(metadata=option("shyness", SHARE))

Everything else follows: ``Shy(2)`` and ``Sample(shyness=2)`` are refused in the same words, ``Sample(shyness=0.2)``
makes ``Shy(0.2)``, and editors, type checkers and docs/options.md know the option, by ``python -m tests.options_page``.
The first option of a processor calls for it; the others refine it, and are refused where they stand alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final

from decodekit.errors import OptionError
from decodekit.sampling.checks import Domain

WHOLE: Final = "whole"
"""The place of an option that is no single field: its value is the processor, or all that it is made of."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of strategies.

    Args:
        name: as a keyword.
        domain: its values; None, which leaves it out, apart.
        text: one sentence for docs/options.md. If empty, that with which the docstring of the processor begins; of an
            option that refines another, the line of the field there.
        type: as an annotation, where it is not that of the field.
        usual: a value to show where an option needs this one beside it.
        off: values with which a generation config of transformers leaves it out; none if that does not have it.
        idle: a value that needs no processor.
    """

    name: str
    domain: Domain
    text: str = ""
    type: str = ""
    usual: Any = None
    off: tuple[float, ...] = ()
    idle: float | bool | None = None

    def is_idle(self, value: object) -> bool:
        """Whether the value needs no processor."""
        return isinstance(value, bool) == isinstance(self.idle, bool) and value == self.idle


def option(name: str, domain: Domain, text: str = "", **details: Any) -> Mapping[str, Any]:
    """The metadata of a field that is an option; see `Option`."""
    return {"domain": domain, "option": Option(name, domain, text, **details)}


def within(domain: Domain) -> Mapping[str, Any]:
    """The metadata of a field with a domain that is not an option."""
    return {"domain": domain}


@cache
def options_of(kind: Any) -> dict[str, Option]:
    """The options of a processor by their fields, the one that calls for it first."""
    if kind.whole is not None:
        return {WHOLE: kind.whole}
    return {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}


def faults_of_fields(value: object) -> Iterator[OptionError]:
    """The faults of fields whose values are out of their domains; None may stand where it is the default."""
    for one in fields(value) if is_dataclass(value) else ():
        given = getattr(value, one.name)
        if "domain" in one.metadata and not (given is None and one.default is None):
            named = one.metadata.get("option")
            fault = one.metadata["domain"].fault(one.name if named is None else named.name, given)
            if fault is not None:
                yield fault
