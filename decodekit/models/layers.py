"""Hidden states of a model's layers, and the logits that it would give if it ended at a layer.

Not every `CausalLM` has layers to show, so that this is a capability of its own. `HuggingFaceLM` has it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from decodekit.errors import ModelError
from decodekit.models.causal_lm import Cache, CausalLM, LogitsKind, Rows
from decodekit.models.modules.decoder_layers import decoder_layers
from decodekit.models.modules.shared_copy import shared_copy
from decodekit.models.programs.proof import relative_error, tolerance_of


@runtime_checkable
class HiddenStates(CausalLM, Protocol):
    """A causal language model whose layers can be read."""

    @property
    def num_layers(self) -> int:
        """N: how many layers there are."""

    def forward_hidden(
        self, tokens: Tensor, num_tokens: Sequence[int], cache: Cache, rows: Rows = None, *,
        logits: LogitsKind = "last", layers: Sequence[int] = (-1,),
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """`CausalLM.forward` with what layers say of every new token.

        Args:
            tokens, num_tokens, cache, rows, logits: as in `CausalLM.forward`.
            layers: after which layers. 0 is the embeddings; N or -1 is the last one, after the final norm.

        Returns:
            The logits, and for every layer [R, T, D] in the type of the model; padding holds no meaning.

        Raises:
            ModelError: the architecture does not show its layers.
        """


@runtime_checkable
class EarlyExits(HiddenStates, Protocol):
    """A causal language model that can be left after any layer."""

    @property
    def is_tied(self) -> bool:
        """Whether embeddings and output projection are one matrix."""

    def check_layers(self) -> None:
        """Raise `ModelError` if the layers of the architecture cannot be told apart."""

    def exit_logits(self, hidden: Tensor, *, final_norm: bool = True) -> Tensor:
        """Logits float32 [P, V] of hidden states [P, D] before the final norm.

        Args:
            hidden: from `forward_hidden`, of another layer than the last.
            final_norm: go on as after the last layer; otherwise the output projection alone is applied.

        Raises:
            ModelError: the layers of the architecture cannot be told apart.
        """


class Exit:
    """The way from the last layer to the logits, whatever a model has on it: a norm, a projection, a soft cap.

    It is the model itself with one layer, which gives what it is told to give. Whether this is the way is checked once.

    Args:
        model: a model of transformers; it is not changed.

    Raises:
        ModelError: there is no list of layers, or what comes out is not what the model gives.
    """

    def __init__(self, model: nn.Module) -> None:
        self._module = shared_copy(model)
        self._given = threading.local()  # threads may share a model
        self._device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
        layers = decoder_layers(self._module)
        del layers[:-1]
        seen: list[Any] = []
        handle = layers[0].register_forward_hook(
            lambda module, args, kwargs, out: seen.extend((args[0] if args else kwargs["hidden_states"], out)),
            with_kwargs=True,
        )
        tokens = torch.arange(4, device=self._device)[None]
        with torch.inference_mode():
            result = self._module(input_ids=tokens, use_cache=False, output_hidden_states=True)
        handle.remove()
        before, out = seen
        is_tuple = isinstance(out, tuple)
        after: Tensor = out[0] if is_tuple else out
        shown: Sequence[Tensor] = result.hidden_states or ()
        # Of one layer: what it is given, and what comes after the norm. Some architectures leave out the first.
        if len(shown) != 2 or not torch.equal(shown[0], before):
            raise ModelError(
                f"{type(model).__name__} does not show what its layers give to each other",
                hint="a strategy that does not read layers",
            )

        def give(*args: Any, **kwargs: Any) -> Any:
            return (self._given.hidden,) if is_tuple else self._given.hidden

        layers[0].forward = give
        expected: Tensor = result.logits[0]
        if not relative_error(self(after[0]), expected) <= tolerance_of(expected.dtype):
            raise ModelError(
                f"{type(model).__name__} does not go from its last layer to its logits in a way that is understood",
                hint="a strategy that does not read layers",
            )

    @torch.inference_mode()
    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits float32 [P, V] of what a layer said, [P, D]."""
        self._given.hidden = hidden[:, None]
        tokens = torch.zeros(len(hidden), 1, dtype=torch.int64, device=self._device)
        logits: Tensor = self._module(input_ids=tokens, use_cache=False).logits
        return logits[:, 0].float()
