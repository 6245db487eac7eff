"""Models, prompts and a constraint for calls of `generate`."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch

import decodekit as dk
from tests.models.architectures import build
from tests.reference.generation_tokenizer import small_tokenizer

WIDTH: Final = 7
TOKENIZER: Final = small_tokenizer()
CONSTRAINT: Final = dk.Regex(r"(ab|cd)[0-9]{2,8}(th|x)+!")


@cache
def model_of(name: str) -> Any:
    return build(name)


@cache
def prompts() -> dict[str, Any]:
    """Two prompts [2, `WIDTH`], of which the second has two tokens of padding on the left."""
    ids = torch.randint(5, 120, (2, WIDTH), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    ids[1, :2] = mask[1, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}
