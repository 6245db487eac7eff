"""Models: the `CausalLM` protocol, its adapter for transformers, and the caches and runners that it chooses among.

From the ground up:

- `causal_lm`: what the loops ask of a model; `encoding`: texts to token ids
- `modules`: copies of a model of transformers that share its weights, its decoder layers
- `caches`: keys and values in a rectangle (`kv_cache`), in eight bits (`quantised_planes`), in pages (`paged_cache`)
- `runners`: the ways to run a model over them: over pages (`paged`), ragged, recurrent, row by row
- `programs`: the steps of a model on a CPU, written down as instructions (`step_program`), proven and run (`replay`)
- `checks`: does a tier give the model's own logits? What was learned of a model is kept (`model_notes`)
- `layers`: hidden states and what the model would say at each of them
- `huggingface`: the adapter, which takes the fastest tier that passes the self-check
- `wrappers`: models made of models; `loading`: by name, folder or hub id; `sizes`: what a model takes

A new model family needs no code here if the self-check passes; any other model implements `CausalLM`.
"""

from decodekit.models.causal_lm import Cache as Cache
from decodekit.models.causal_lm import CausalLM as CausalLM
from decodekit.models.huggingface import HuggingFaceLM as HuggingFaceLM
from decodekit.models.loading import load as load
