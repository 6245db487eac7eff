"""Linear layers of a model on a CPU that multiply a few rows at the speed of memory; see `kernels.few_rows`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from decodekit.kernels.few_rows import few_rows_linear


class FewRowsLinear(nn.Linear):
    """`nn.Linear` with the product of `few_rows_linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., out_features] of [..., in_features]."""
        return few_rows_linear(input, self.weight, self.bias)


def with_few_rows(model: nn.Module) -> nn.Module:
    """The model, of which linear layers with float32 weights on a CPU have become those of this room.

    Args:
        model: a copy (see `shared_copy`): its modules are changed, its weights are not.
    """
    from transformers.pytorch_utils import Conv1D

    from decodekit.models.modules.transposed_linear import TransposedLinear

    replacements = {nn.Linear: FewRowsLinear, Conv1D: TransposedLinear}
    for module in model.modules():
        if type(module) in replacements and "forward" not in vars(module):
            weight = module.weight
            if type(weight) is nn.Parameter and weight.dtype is torch.float32 and weight.device.type == "cpu":
                module.__class__ = replacements[type(module)]
    return model
