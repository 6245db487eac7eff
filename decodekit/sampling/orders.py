"""Named orders of processors: the same settings give different distributions in different libraries.

`Pipeline.ordered` puts processors into the order of a library. Where a processor means something else there, it gets
that meaning: top-k keeps exactly k tokens in llama.cpp and mlx-lm, and penalties count the last 64 or 20 tokens of
prompt and output. A processor that the library does not have is refused. The constraint mask does not move: it comes
before temperature and truncation in every order: a truncation of an unmasked row could keep only forbidden tokens.

Orders as in transformers 5.23 (`GenerationMixin._get_logits_processor`), vLLM's engine v1 (`v1/sample/sampler.py`),
llama.cpp (`common_params_sampling.samplers`), mlx-lm 0.32 (`make_logits_processors`, `make_sampler`).

Not reproduced: ties. Where a library's sort decides which of equal tokens stay, here it is the lower ids (mlx-lm keeps
all ties of top-p, typical keeps them here and in transformers). And two faults of llama.cpp: what top-n-sigma removes
there still counts as a candidate, so that typical sampling after it is undefined and dynamic temperature another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from decodekit.processor_names import PROCESSORS
from decodekit.sampling.checks import one_of


@dataclass(frozen=True)
class Order:
    """The order of one library.

    Args:
        library: its name in errors.
        names: the processors of this package that it has, first to last, by the names of their classes.
        window: how many of the last tokens of prompt and output its penalties count, unless they say it themselves; in
            such a library top-k keeps exactly k tokens. None: processors mean there what they mean here.
    """

    library: str
    names: tuple[str, ...]
    window: int | None = None

    def has(self, kind: type) -> bool:
        """Whether the library has this kind of processor, which is one of this package."""
        return kind.__name__ in self.names and kind.__module__.startswith(f"{__package__}.")


ORDERS: Mapping[str, Order] = MappingProxyType(
    {
        "decodekit": Order("decodekit", tuple(PROCESSORS)),
        "hf": Order(
            "transformers",
            (
                "SequenceBias", "LogitBias", "RepetitionPenalty", "NoRepeatNGram", "BadWords", "MinTokens",
                "AllowedTokens", "Temperature", "TopH", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta",
                "Watermark",
            ),
        ),
        # Min-p is one of the logits processors that cannot change the argmax; they come between temperature and top-k.
        "vllm": Order(
            "vLLM",
            (
                "AllowedTokens", "BadWords", "MinTokens", "LogitBias", "RepetitionPenalty", "FrequencyPenalty",
                "PresencePenalty", "Temperature", "MinP", "TopK", "TopP",
            ),
        ),
        # The truncations see the distribution at temperature 1.
        "llamacpp": Order(
            "llama.cpp",
            (
                "LogitBias", "RepetitionPenalty", "FrequencyPenalty", "PresencePenalty", "DRY", "TopNSigma", "TopK",
                "Typical", "TopP", "MinP", "XTC", "DynamicTemperature", "Temperature",
            ),
            window=64,
        ),
        # Top-k comes last, temperature after it.
        "mlx": Order(
            "mlx-lm",
            (
                "LogitBias", "RepetitionPenalty", "PresencePenalty", "FrequencyPenalty",
                "TopP", "MinP", "XTC", "TopK", "Temperature",
            ),
            window=20,
        ),
    }
)  # fmt: skip
"""The orders by name."""

ORDER: Final = one_of(*ORDERS)
"""The domain of the option."""
