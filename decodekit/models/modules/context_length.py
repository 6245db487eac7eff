"""How many tokens a model can read, by its configuration."""

from __future__ import annotations

from typing import Any

from decodekit.models.modules.shared_copy import rope_types


def context_length_of(config: Any) -> int | None:
    """The most tokens of a row; None where the architecture sets no limit."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
    given = (getattr(config, name, None) for name in names)
    limit = next((value for value in given if isinstance(value, int) and value > 0), None)
    dynamic = next((p for kind, p in rope_types(config).items() if "dynamic" in kind), None)
    if dynamic is not None and limit is not None:
        # Beyond the trained length, dynamic NTK scaling makes every row depend on the longest one seen before.
        limit = min(limit, dynamic.get("original_max_position_embeddings") or limit)
    return limit
