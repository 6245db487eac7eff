"""decodekit: decoding and structured generation for any Hugging Face causal LM; speed options never change the text.

The public names are listed in `_HOME`. They load when first used, so `import decodekit` needs neither torch nor
transformers nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module that defines it
_HOME: dict[str, str] = {
    # front door
    "LLM": "decodekit.llm",
    "Completion": "decodekit.llm",
    "generate": "decodekit.llm",
    # strategies
    "Greedy": "decodekit.strategy",
    "Sample": "decodekit.strategy",
    # logits processors
    "FrequencyPenalty": "decodekit.sampling",
    "LogitBias": "decodekit.sampling",
    "MinP": "decodekit.sampling",
    "Pipeline": "decodekit.sampling",
    "PresencePenalty": "decodekit.sampling",
    "RepetitionPenalty": "decodekit.sampling",
    "Temperature": "decodekit.sampling",
    "TopK": "decodekit.sampling",
    "TopP": "decodekit.sampling",
    # constraints
    "Choices": "decodekit.constraints",
    "JsonSchema": "decodekit.constraints",
    "Regex": "decodekit.constraints",
    "check": "decodekit.constraints",
    "compile": "decodekit.constraints",
    # the rest
    "DecodekitError": "decodekit.errors",
    "Vocabulary": "decodekit.vocabulary",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604

if TYPE_CHECKING:
    from decodekit.constraints import Choices, JsonSchema, Regex, check, compile
    from decodekit.errors import DecodekitError
    from decodekit.llm import LLM, Completion, generate
    from decodekit.sampling import (
        FrequencyPenalty,
        LogitBias,
        MinP,
        Pipeline,
        PresencePenalty,
        RepetitionPenalty,
        Temperature,
        TopK,
        TopP,
    )
    from decodekit.strategy import Greedy, Sample
    from decodekit.vocabulary import Vocabulary


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'decodekit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
