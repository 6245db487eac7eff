"""From logits to tokens: pure functions, processors composed with ``|``, counter-based noise, selectors.

pipeline = Temperature(0.8) | TopK(50) | TopP(0.95)
tokens = sample(pipeline.narrow(logits, mask=mask), seeds, sequences, positions)
"""

from decodekit.sampling.candidates import Candidates
from decodekit.sampling.functions import (
    apply_bitmask,
    apply_frequency_penalty,
    apply_logit_bias,
    apply_min_p,
    apply_presence_penalty,
    apply_repetition_penalty,
    apply_temperature,
    apply_top_k,
    apply_top_p,
)
from decodekit.sampling.history import History
from decodekit.sampling.noise import gumbel
from decodekit.sampling.pipeline import Pipeline, TraceStep
from decodekit.sampling.processors import (
    FrequencyPenalty,
    LogitBias,
    LogitsProcessor,
    MinP,
    OrderPreserving,
    PresencePenalty,
    RepetitionPenalty,
    Stage,
    Temperature,
    TopK,
    TopP,
)
from decodekit.sampling.selectors import faults, greedy, sample

__all__ = [
    "Candidates",
    "FrequencyPenalty",
    "History",
    "LogitBias",
    "LogitsProcessor",
    "MinP",
    "OrderPreserving",
    "Pipeline",
    "PresencePenalty",
    "RepetitionPenalty",
    "Stage",
    "Temperature",
    "TopK",
    "TopP",
    "TraceStep",
    "apply_bitmask",
    "apply_frequency_penalty",
    "apply_logit_bias",
    "apply_min_p",
    "apply_presence_penalty",
    "apply_repetition_penalty",
    "apply_temperature",
    "apply_top_k",
    "apply_top_p",
    "faults",
    "greedy",
    "gumbel",
    "sample",
]
