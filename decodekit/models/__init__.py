"""Models: the `CausalLM` protocol, its adapter for transformers, and the cache of rows that advance independently.

- `causal_lm`: what the loops ask of a model; `loading`: by name, folder or hub id; `encoding`: texts to token ids
- `huggingface`: the adapter, which chooses among three ways of running a model by `self_check`: `ragged` (with
  `kv_cache`, `attention` and `replay`) and two of `rowwise`
- `known`, `shared_copy`: what was learned of a model, and copies of it that share its weights
- `layers`, `truncated`: its layers, read or cut off
- `contrast` with `guidance` and `dola`: models made of two

A new model family needs no code here if the self-check passes; any other model implements `CausalLM`.
"""

from decodekit.models.causal_lm import Cache, CausalLM
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.loading import load

__all__ = ["Cache", "CausalLM", "HuggingFaceLM", "load"]
