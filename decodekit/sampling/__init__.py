"""From logits to tokens: pure functions, processors composed with ``|``, counter-based noise, selectors.

pipeline = Temperature(0.8) | TopK(50) | TopP(0.95)
tokens = sample(pipeline.narrow(logits, mask=mask), seeds, sequences, positions)

- `base`: what a processor is, and pipelines; `orders`: the orders of libraries; `named`, `options`: how callers say it
- `functions`, `truncations`, `shapes`, `repeats`, `bans`, `watermark`, `mirostat`: tensors to tensors, and processors
- `processors`: the processors of `functions`; `history`, `margins`, `checks`: what they rely on
- `noise`, `selectors`: from a row of logits to a token
- `candidates`, `wide`, `blocks`, `cuts`, `draws`: the few tokens that are left of a row, found without sorting it

A new processor: a function and a frozen dataclass beside those that are most like it, its name in `orders`, an option
in `options`, and `testing.check_processor` in its test.
"""

from decodekit.sampling.bans import (
    AllowedTokens,
    BadWords,
    MinTokens,
    SequenceBias,
    apply_allowed_tokens,
    apply_min_tokens,
    apply_sequence_bias,
)
from decodekit.sampling.base import LogitsProcessor, OrderPreserving, Pipeline, Stage, TraceStep
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
from decodekit.sampling.mirostat import Mirostat, apply_mirostat
from decodekit.sampling.noise import gumbel
from decodekit.sampling.orders import ORDERS, Order
from decodekit.sampling.processors import (
    FrequencyPenalty,
    LogitBias,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from decodekit.sampling.repeats import DRY, NoRepeatNGram, apply_dry, apply_no_repeat_ngram
from decodekit.sampling.selectors import faults, greedy, sample
from decodekit.sampling.shapes import (
    XTC,
    DynamicTemperature,
    Quadratic,
    apply_dynamic_temperature,
    apply_guidance,
    apply_quadratic,
    apply_xtc,
)
from decodekit.sampling.truncations import (
    Epsilon,
    Eta,
    TopA,
    TopH,
    TopNSigma,
    Typical,
    apply_epsilon,
    apply_eta,
    apply_top_a,
    apply_top_h,
    apply_top_n_sigma,
    apply_typical,
)
from decodekit.sampling.watermark import Watermark, apply_watermark, watermark_score

__all__ = [
    "DRY",
    "ORDERS",
    "XTC",
    "AllowedTokens",
    "BadWords",
    "Candidates",
    "DynamicTemperature",
    "Epsilon",
    "Eta",
    "FrequencyPenalty",
    "History",
    "LogitBias",
    "LogitsProcessor",
    "MinP",
    "MinTokens",
    "Mirostat",
    "NoRepeatNGram",
    "Order",
    "OrderPreserving",
    "Pipeline",
    "PresencePenalty",
    "Quadratic",
    "RepetitionPenalty",
    "SequenceBias",
    "Stage",
    "Temperature",
    "TopA",
    "TopH",
    "TopK",
    "TopNSigma",
    "TopP",
    "TraceStep",
    "Typical",
    "Watermark",
    "apply_allowed_tokens",
    "apply_bitmask",
    "apply_dry",
    "apply_dynamic_temperature",
    "apply_epsilon",
    "apply_eta",
    "apply_frequency_penalty",
    "apply_guidance",
    "apply_logit_bias",
    "apply_min_p",
    "apply_min_tokens",
    "apply_mirostat",
    "apply_no_repeat_ngram",
    "apply_presence_penalty",
    "apply_quadratic",
    "apply_repetition_penalty",
    "apply_sequence_bias",
    "apply_temperature",
    "apply_top_a",
    "apply_top_h",
    "apply_top_k",
    "apply_top_n_sigma",
    "apply_top_p",
    "apply_typical",
    "apply_watermark",
    "apply_xtc",
    "faults",
    "greedy",
    "gumbel",
    "sample",
    "watermark_score",
]
