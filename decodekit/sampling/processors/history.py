"""The history of the rows of a batch, as tensors: the input of penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decodekit.errors import OptionError

PADDING = -1


@dataclass(frozen=True, eq=False)
class History:
    """The tokens before the row of logits that is processed, prompt first.

    Row n's prefix is ``token_ids[n, :lengths[n]]``; its first ``prompt_lengths[n]`` tokens are the prompt, the others
    are output. For a row inside a draft, the prefix goes on with the draft tokens before it.

    Args:
        token_ids: [N, S] int64, padded on the right with -1.
        prompt_lengths: [N] int64, at most ``lengths``.
        lengths: [N] int64, at most S.
    """

    token_ids: Tensor
    prompt_lengths: Tensor
    lengths: Tensor

    @classmethod
    def from_lists(
        cls,
        prompts: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        device: torch.device | str | None = None,
    ) -> History:
        """The history of N prompts and their N outputs so far; an `OptionError` if there are not as many."""
        if len(prompts) != len(outputs):
            raise OptionError(f"{len(prompts)} prompts and {len(outputs)} outputs")
        rows = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
        width = max(map(len, rows), default=0)
        return cls(
            torch.tensor([row + [PADDING] * (width - len(row)) for row in rows], dtype=torch.int64, device=device),
            torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64, device=device),
            torch.tensor([len(row) for row in rows], dtype=torch.int64, device=device),
        )

    def places(self, window: int | None = None, *, with_prompt: bool) -> Tensor:
        """[N, S] bool: the place is one of the last ``window`` tokens, of the output or of prompt and output."""
        places = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
        mask = places < self.lengths.unsqueeze(1)
        if not with_prompt:
            mask &= places >= self.prompt_lengths.unsqueeze(1)
        if window is not None:
            mask &= places >= (self.lengths - window).unsqueeze(1)
        return mask

    def last(self, count: int) -> Tensor:
        """[N, count] int64: the last tokens of each prefix, the latest at the end; -1 before its start."""
        if self.token_ids.shape[1] == 0:
            return self.token_ids.new_full((len(self.lengths), count), PADDING)
        places = self.lengths.unsqueeze(1) - count + torch.arange(count, device=self.lengths.device)
        tokens = self.token_ids.gather(1, places.clamp(min=0, max=self.token_ids.shape[1] - 1))
        return tokens.masked_fill(places < 0, PADDING)
