"""The recurrent state of every row of a set of tables, in one tensor for each type of number.

A model that keeps a window (bfloat16 [8, 4]) and a matrix (float32 [2, 3, 3]) in each of two layers, over three rows:

    planes    bfloat16 [3, 64]    window of layer 0 | window of layer 1
              float32  [3, 36]    matrix of layer 0 | matrix of layer 1

So a pass takes the states of its rows, whatever rows they are, and leaves them by a copy for each type, not for each
tensor of the model. All of it stays where it is, so that a captured pass finds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RowStates:
    """The states of R rows, zeros at first: `planes`, [R, numbers of a row] of each type.

    `templates` are one row of every tensor of a state, [1, ...] each; none for a model without states.
    """

    def __init__(self, templates: Sequence[Tensor], num_rows: int, device: torch.device) -> None:
        self._shapes = [template.shape[1:] for template in templates]
        kinds = list(dict.fromkeys(template.dtype for template in templates))
        self._members = [[i for i, one in enumerate(templates) if one.dtype == kind] for kind in kinds]
        self._sizes = [[templates[i].numel() for i in members] for members in self._members]
        self.planes = [
            torch.zeros(num_rows, sum(sizes), dtype=kind, device=device)
            for kind, sizes in zip(kinds, self._sizes, strict=True)
        ]

    def taken(self, rows: Tensor) -> list[Tensor]:
        """Copies of the states of rows, integers [B], in the order of the templates: [B, ...] each."""
        states: dict[int, Tensor] = {}
        for plane, members, sizes in zip(self.planes, self._members, self._sizes, strict=True):
            parts = torch.split(plane.index_select(0, rows), sizes, dim=1)
            states |= {i: part.view(-1, *self._shapes[i]) for i, part in zip(members, parts, strict=True)}
        return [states[i] for i in range(len(self._shapes))]

    def put(self, rows: Tensor, states: Sequence[Tensor]) -> None:
        """Make these, [B, ...] each, the states of rows, integers [B]; of rows that are named twice any of them.

        Raises:
            RuntimeError: a state has another shape than its template.
        """
        for state, shape in zip(states, self._shapes, strict=True):
            if state.shape != (len(rows), *shape):
                raise RuntimeError(f"a state of {tuple(shape)} per row became {tuple(state.shape[1:])}")
        for plane, members in zip(self.planes, self._members, strict=True):
            plane.index_copy_(0, rows.long(), torch.cat([states[i].flatten(1).to(plane.dtype) for i in members], dim=1))
