"""The limits of the JSON Schema front end set so low that small schemas exceed them: what is left to the guard then."""

from __future__ import annotations

from types import ModuleType
from typing import Final

import pytest

from decodekit.constraints.json_schema import schema
from decodekit.constraints.json_schema.document import support
from decodekit.constraints.json_schema.frames import arrays, objects
from decodekit.constraints.json_schema.frames import schema_frames as frames
from decodekit.constraints.json_schema.meaning import keywords, limit_estimate, semantics
from decodekit.constraints.json_schema.values import inhabited, over_approximation, shape

MODULES: Final[tuple[ModuleType, ...]] = (
    arrays, frames, over_approximation, inhabited, keywords, limit_estimate, objects, semantics, shape, support,
)  # fmt: skip
LIMITS: Final[dict[str, dict[str, int]]] = {
    "one alternative": {"MAX_ALTERNATIVES": 1},
    "two alternatives": {"MAX_ALTERNATIVES": 2},
    "one pair": {"MAX_PAIRS": 1},
    "nothing settled": {"MAX_SETTLED": 1},
    "one in place": {"MAX_IN_PLACE": 1},
    "two in place": {"MAX_IN_PLACE": 2},
    "one branch": {"MAX_BRANCHES": 1},
    "no dependency": {"MAX_DEPENDENCIES": 0},
    "no pattern": {"MAX_PATTERNS": 0},
    "no contains": {"MAX_CONTAINS": 0},
    "one state of an array": {"MAX_SEARCH": 1},
    "no witness": {"MAX_WITNESSES": 0},
    "one class of keys": {"MAX_CLASSES": 1},
    "one goal": {"MAX_GOALS": 1},
    "hulls without choice": {"MAX_CHOICE": 1, "MAX_ALTERNATIVES": 1},
}
"""By name: limits with their values."""


def lower(monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]) -> None:
    """Set limits in every module that reads them, until the end of the test."""
    forget()
    for name, value in limits.items():
        readers = [module for module in MODULES if hasattr(module, name)]
        assert readers, name
        for module in readers:
            monkeypatch.setattr(module, name, value)


def forget() -> None:
    """Make networks anew: those that exist were made under other limits."""
    schema._release_networks()
