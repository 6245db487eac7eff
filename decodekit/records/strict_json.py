"""JSON as the standard has it: what Python's reader takes besides is refused."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def read_json(text: str | bytes) -> Any:
    """The value of a text.

    Raises:
        ValueError: it is not JSON; NaN and the infinities are not, nor is a number that is read as one.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond the range of floating point numbers")
    return value
