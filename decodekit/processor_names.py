"""The built-in logits processors, in the order in which they are applied, with their files in `sampling.processors`.

A new one is a line here and a class there. This module loads nothing, so that `import decodekit` knows their names.
"""

from collections.abc import Mapping
from typing import Final

PROCESSORS: Final[Mapping[str, str]] = {
    # penalties and biases; the constraint's mask comes behind them
    "RepetitionPenalty": "pointwise",
    "PresencePenalty": "pointwise",
    "FrequencyPenalty": "pointwise",
    "LogitBias": "pointwise",
    "SequenceBias": "bans",
    "DRY": "repeats",
    "NoRepeatNGram": "repeats",
    "BadWords": "bans",
    "AllowedTokens": "bans",
    "MinTokens": "bans",
    # temperature, then truncations, the joint ones of most models first
    "DynamicTemperature": "shapes",
    "Temperature": "pointwise",
    "Quadratic": "shapes",
    "TopK": "pointwise",
    "TopP": "pointwise",
    "MinP": "pointwise",
    "Typical": "truncations",
    "Epsilon": "truncations",
    "Eta": "truncations",
    "TopNSigma": "truncations",
    "TopA": "truncations",
    "TopH": "truncations",
    "PLess": "truncations",
    "XTC": "shapes",
    "Watermark": "watermark",
}
