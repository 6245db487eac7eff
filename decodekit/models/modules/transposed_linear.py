"""GPT-2's linear layers as `linear`, so that a recorded step gives bit for bit what its modules give.

`Conv1D` multiplies by `addmm`. A recorded graph takes that apart into a product and a sum, which rounds otherwise; the
products of `linear` it leaves alone.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D


class TransposedLinear(Conv1D):  # type: ignore[misc]
    """`Conv1D`, whose weight is [in, out], as a linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] of [..., in]."""
        return linear(x, self.weight.t(), self.bias)
