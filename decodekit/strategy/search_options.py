"""The common part of strategies whose prompts are decoded by a search of their own, such as beams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from decodekit.decoding.loop.decoder import Decoder
from decodekit.decoding.loop.scheduler import run
from decodekit.decoding.request.settings import NoiseKeys, Settings
from decodekit.errors import DecodekitError, OptionError
from decodekit.sampling import Candidates, greedy
from decodekit.speculation.proposer import Proposer, Speculate
from decodekit.strategy.strategy import Strategy

if TYPE_CHECKING:
    from decodekit.decoding.loop.text_row import Request
    from decodekit.decoding.request.updates import Update
    from decodekit.models.causal_lm import CausalLM


class Searching(Strategy):
    """A strategy with a `decoding.search.search.Search`: a prompt has several rows, and a decoder says what they do."""

    @abstractmethod
    def decoder(self, model: CausalLM, settings: Settings) -> Decoder[Any]:
        """The decoder of the rows of a prompt.

        Raises:
            ModelError: the model lacks what the search needs.
        """

    def decode(
        self, model: CausalLM, settings: Settings, num_prompts: int, requests: Iterable[Request | DecodekitError]
    ) -> Iterator[Update]:
        """Search the prompts of a stream; see `decoding.search.search.Search`."""
        return run(self.decoder(model, settings), settings, num_prompts, requests)

    @property
    def proposer(self) -> Proposer | None:
        """None: nobody guesses ahead."""
        return None

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        """The likeliest token of each row alone, which is what one hypothesis would take."""
        return greedy(scores if isinstance(scores, Tensor) else scores.dense())


def faults_of_guesses(speculate: Speculate, why: str) -> Iterator[DecodekitError]:
    """The fault of a proposer given to a search, which none can use."""
    if speculate is not None:
        hint = 'no speculate=, or strategy="greedy"'
        yield OptionError(why, at="speculate", hint=hint)
