"""When a replay is trusted: its first outputs are compared with those of the modules that it was recorded from.

A step recorded with rows of no token, of which three replays are compared:

    length of the longest row   0          17         18         19         20
    replayed                    yes        yes        yes        yes        yes
    compared with the modules   yes        yes        yes        yes        no: it is proven
    counts as a proof           no         first      second     third

A number that was baked in when the step was recorded (a length, a position) is right for the length of the recording,
and shows at every other one. The first replay that differs refuses the recording for good, and the modules go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

NUM_PROOFS: Final = 3
"""Replays that are compared at other lengths; the second and later ones run what a compiler made of the recording."""

# Relative errors: a wrong mask or position gives 0.05 and more; rounding gives about 1e-6, 1e-3 and 1e-2.
_TOLERANCES: Final = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def tolerance_of(dtype: torch.dtype) -> float:
    """By how much two ways of running a model may differ that round in other places, in deviations of its logits."""
    return _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])


def relative_error(found: Tensor, expected: Tensor) -> Tensor:
    """Root mean square of the difference of two tensors over the standard deviation of the expected one; may be NaN."""
    found, expected = found.float(), expected.float()
    return (found - expected).square().mean().sqrt() / expected.std().clamp_min(1e-12)


@dataclass(slots=True)
class Proof:
    """The evidence for one recording, which was made over rows of no token."""

    tolerance: float  # what the relative error of its output to that of the modules may be
    num_equal: int = 0  # replays at other lengths that were those of the modules
    is_refused: bool = False  # whether one was not

    @property
    def is_proven(self) -> bool:
        """Whether replays are no longer compared."""
        return self.num_equal >= NUM_PROOFS and not self.is_refused

    def output(self, replay: Callable[[], Tensor], modules: Callable[[], Tensor], length: int) -> Tensor:
        """The output of a step: replayed where that is proven, else that of the modules.

        Args:
            replay: runs the recording.
            modules: runs the modules on the same inputs. A step that runs twice writes the same keys and values twice.
            length: tokens of the longest row.
        """
        if self.is_proven:
            return replay()
        if self.is_refused:
            return modules()
        replayed = replay()
        expected = modules()  # afterwards: it overwrites what a wrong recording has written
        self.compare([replayed], [expected], length)
        return expected

    def compare(self, replayed: Sequence[Tensor], expected: Sequence[Tensor], length: int) -> bool:
        """Note what the recording and the modules came to, for rows of a length; whether the first may be taken."""
        pairs = zip(replayed, expected, strict=True)
        if not all(relative_error(one, other) < self.tolerance for one, other in pairs):  # of NaN: no
            self.is_refused = True  # never cleared: threads may prove one recording together
        elif length:
            self.num_equal += 1
        return not self.is_refused
