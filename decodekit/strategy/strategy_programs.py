"""Programs of a strategy: what the text of its options does not say, code of others and further models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from decodekit.constraints.fingerprint import code_digest
from decodekit.records.fingerprints import weights_fingerprint

_KNOWN: Final = ("decodekit", "builtins", "torch", "functools")  # whose version says it, or who decides nothing


def programs_of(strategy: Any) -> dict[str, str]:
    """The programs and models that a strategy's options name and do not say, each with a digest.

    Classes of installed packages, by their code, and further models that the distribution depends on, by their weights:
    the amateur of a contrast, and with ``verify="rejection"`` whoever guesses ahead. Other guesses never change a text.
    """
    from decodekit.speculation.proposers.draft_model import DraftModel
    from decodekit.strategy.contrasts import Amateur

    found: dict[str, str] = {}
    seen: set[int] = set()
    values: list[Any] = [strategy, getattr(strategy, "pipeline", None)]
    while values:
        value = values.pop()
        if id(value) in seen or isinstance(value, str | bytes | int | float | type(None)):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            values += value.values()
        elif isinstance(value, Sequence | Set):
            values += value
        elif hasattr(value, "new_cache") and hasattr(value, "forward"):
            found[f"model {value.name}"] = weights_fingerprint(value)
            continue
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            is_rejecting = getattr(value, "verify", None) == "rejection"
            for one in dataclasses.fields(value):
                if one.name != "speculate":
                    values.append(getattr(value, one.name, None))
                elif is_rejecting:
                    values.append(getattr(value, "proposer", None))
            if isinstance(value, Amateur | DraftModel):
                values.append(value.causal_lm())
        if type(value).__module__.partition(".")[0] not in _KNOWN:
            found[f"{type(value).__module__}.{type(value).__qualname__}"] = code_digest(type(value))
    return found
