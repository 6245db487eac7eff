"""Models: the `CausalLM` protocol, its adapter for transformers, and the cache of rows that advance independently."""

from decodekit.models.causal_lm import Cache, CausalLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.loading import load

__all__ = ["Cache", "CausalLM", "HuggingFaceLM", "load"]
