"""From logits to tokens: pure functions, processors composed with ``|``, counter-based noise, selectors.

pipeline = Temperature(0.8) | TopK(50) | TopP(0.95)
tokens = sample(pipeline.narrow(logits, mask=mask), seeds, sequences, positions)

- `pipeline`: processors in order; `orders`: the orders of libraries; `sampler_options`: how callers say it
- `processors`: tensors to tensors (`functions`, `truncations`, `shapes`, `repeats`, `bans`, `watermark`), and values
  that stand for them; those of transformers; `history`, which penalties look at
- `options`: what processors declare of themselves as options
- `margins`, `checks`, `scores`, `certificates`: what they rely on; `mirostat`
- `noise`, `selectors`: from a row of logits to a token
- `fast`: the few tokens that are left of a row, found without sorting it

A new processor: a function and a frozen dataclass beside those that are most like it, whose fields declare its options
(`options.declared`), its line in `decodekit.processor_names`, and `testing.check_processor` in its test.
"""

from decodekit.sampling.fast.candidates import Candidates as Candidates
from decodekit.sampling.mirostat import MirostatTruncation as MirostatTruncation
from decodekit.sampling.mirostat import apply_mirostat as apply_mirostat
from decodekit.sampling.noise import gumbel as gumbel
from decodekit.sampling.options.option_fields import *  # noqa: F403
from decodekit.sampling.orders import ORDERS as ORDERS
from decodekit.sampling.orders import Order as Order
from decodekit.sampling.pipeline import LogitsProcessor as LogitsProcessor
from decodekit.sampling.pipeline import OrderPreserving as OrderPreserving
from decodekit.sampling.pipeline import Pipeline as Pipeline
from decodekit.sampling.pipeline import Stage as Stage
from decodekit.sampling.pipeline import TraceStep as TraceStep
from decodekit.sampling.processors.bans import apply_allowed_tokens as apply_allowed_tokens
from decodekit.sampling.processors.bans import apply_min_tokens as apply_min_tokens
from decodekit.sampling.processors.bans import apply_sequence_bias as apply_sequence_bias
from decodekit.sampling.processors.functions import apply_bitmask as apply_bitmask
from decodekit.sampling.processors.functions import apply_frequency_penalty as apply_frequency_penalty
from decodekit.sampling.processors.functions import apply_logit_bias as apply_logit_bias
from decodekit.sampling.processors.functions import apply_min_p as apply_min_p
from decodekit.sampling.processors.functions import apply_presence_penalty as apply_presence_penalty
from decodekit.sampling.processors.functions import apply_repetition_penalty as apply_repetition_penalty
from decodekit.sampling.processors.functions import apply_temperature as apply_temperature
from decodekit.sampling.processors.functions import apply_top_k as apply_top_k
from decodekit.sampling.processors.functions import apply_top_p as apply_top_p
from decodekit.sampling.processors.history import History as History
from decodekit.sampling.processors.repeats import apply_dry as apply_dry
from decodekit.sampling.processors.repeats import apply_no_repeat_ngram as apply_no_repeat_ngram
from decodekit.sampling.processors.shapes import apply_dynamic_temperature as apply_dynamic_temperature
from decodekit.sampling.processors.shapes import apply_guidance as apply_guidance
from decodekit.sampling.processors.shapes import apply_quadratic as apply_quadratic
from decodekit.sampling.processors.shapes import apply_xtc as apply_xtc
from decodekit.sampling.processors.transformers_processors import Foreign as Foreign
from decodekit.sampling.processors.truncations import apply_epsilon as apply_epsilon
from decodekit.sampling.processors.truncations import apply_eta as apply_eta
from decodekit.sampling.processors.truncations import apply_top_a as apply_top_a
from decodekit.sampling.processors.truncations import apply_top_h as apply_top_h
from decodekit.sampling.processors.truncations import apply_top_n_sigma as apply_top_n_sigma
from decodekit.sampling.processors.truncations import apply_typical as apply_typical
from decodekit.sampling.processors.watermark import apply_watermark as apply_watermark
from decodekit.sampling.processors.watermark import watermark_score as watermark_score
from decodekit.sampling.selectors import faults as faults
from decodekit.sampling.selectors import greedy as greedy
from decodekit.sampling.selectors import sample as sample
