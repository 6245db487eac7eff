"""Systems of different representatives: who gets what, if nothing may be given twice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

_Value = TypeVar("_Value", bound=Hashable)


def have_representatives(choices: Sequence[tuple[frozenset[_Value], int]]) -> bool:
    """Whether each set can give so many values that no value is given twice: augmenting paths (Kuhn 1955)."""
    places = [values for values, count in choices for _ in range(count)]
    giver: dict[_Value, int] = {}
    for place in range(len(places)):
        came_by: dict[_Value, int] = {}  # value -> the place that asks for it
        agenda = [place]
        free: _Value | None = None
        while agenda and free is None:
            asking = agenda.pop()
            for value in places[asking]:
                if value in came_by:
                    continue
                came_by[value] = asking
                if value not in giver:
                    free = value
                    break
                agenda.append(giver[value])
        if free is None:
            return False
        holds = {number: value for value, number in giver.items()}
        given: _Value | None = free
        while given is not None:
            number = came_by[given]
            giver[given], given = number, None if number == place else holds[number]
    return True
