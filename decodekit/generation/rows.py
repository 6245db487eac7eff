"""Where sequences begin in a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from decodekit.models.contrast import KnowsPrompts

if TYPE_CHECKING:
    from decodekit.generation.sequence import Request
    from decodekit.models.causal_lm import Cache


def begin_rows(cache: Cache, requests: Mapping[int, Request]) -> None:
    """Empty rows of a cache for the requests that begin there, by row; it learns their prompts if it asks for them."""
    cache.reset(list(requests))
    if isinstance(cache, KnowsPrompts):
        for row, request in requests.items():
            cache.set_prompt(row, request.prompt, request.negative_prompt)
