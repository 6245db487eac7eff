"""From logits to tokens: pure functions, processors composed with ``|``, counter-based noise, selectors.

pipeline = Temperature(0.8) | TopK(50) | TopP(0.95)
tokens = sample(pipeline.narrow(logits, mask=mask), seeds, sequences, positions)

- `pipeline` puts `processors` in order, `orders` has those of libraries, `sampler_options` is how callers say it
- `noise` and `selectors` draw a token; `fast` finds the few tokens that are left of a row without sorting it

A new processor: a frozen dataclass beside those that are most like it, whose fields declare its options
(`options.declared`), its line in `decodekit.processor_names`, and `testing.check_processor` in its test.
"""

from decodekit.sampling.fast.candidates import Candidates as Candidates
from decodekit.sampling.mirostat import MirostatTruncation as MirostatTruncation
from decodekit.sampling.mirostat import apply_mirostat as apply_mirostat
from decodekit.sampling.noise import gumbel as gumbel
from decodekit.sampling.options.option_fields import *  # noqa: F403
from decodekit.sampling.orders import ORDERS as ORDERS
from decodekit.sampling.pipeline import LogitsProcessor as LogitsProcessor
from decodekit.sampling.pipeline import OrderPreserving as OrderPreserving
from decodekit.sampling.pipeline import Pipeline as Pipeline
from decodekit.sampling.pipeline import Stage as Stage
from decodekit.sampling.pipeline import apply_bitmask as apply_bitmask
from decodekit.sampling.processors.history import History as History
from decodekit.sampling.processors.transformers_processors import Foreign as Foreign
from decodekit.sampling.processors.watermark import watermark_score as watermark_score
from decodekit.sampling.selectors import faults as faults
from decodekit.sampling.selectors import greedy as greedy
from decodekit.sampling.selectors import sample as sample
