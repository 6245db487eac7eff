"""A replay is trusted after it was compared, at lengths other than that of its recording."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decodekit.models.programs.proof import NUM_PROOFS, Proof


class Step:
    """A step whose output tells its length, and a recording of it."""

    def __init__(self, proof: Proof, noise: float = 0.0, baked: int | None = None) -> None:
        self.proof, self.noise, self.baked = proof, noise, baked
        self.num_replays = self.num_modules = 0

    def at(self, length: int) -> Tensor:
        def replay() -> Tensor:
            self.num_replays += 1
            told = length if self.baked is None else self.baked
            return torch.arange(8.0) * (told + 1) * (1 + self.noise)

        def modules() -> Tensor:
            assert self.num_replays or self.proof.is_refused, "the modules come last: they mend what was written"
            self.num_modules += 1
            return torch.arange(8.0) * (length + 1)

        return self.proof.output(replay, modules, length)


def test_modules_run_until_it_is_proven() -> None:
    step = Step(Proof(1e-3))
    for count, length in enumerate((0, 6, 0, 7, 8), 1):
        assert not step.proof.is_proven
        assert torch.equal(step.at(length), torch.arange(8.0) * (length + 1))
        assert (step.num_replays, step.num_modules) == (count, count)
    assert step.proof.is_proven and step.proof.num_equal == NUM_PROOFS
    step.at(9)
    assert (step.num_replays, step.num_modules) == (6, 5)


def test_a_baked_number_shows_at_another_length() -> None:
    """Negative control: at the length of the recording it is right, however often."""
    step = Step(Proof(1e-3), baked=0)
    for _ in range(2 * NUM_PROOFS):
        step.at(0)
    assert not step.proof.is_proven and not step.proof.is_refused
    assert torch.equal(step.at(6), torch.arange(8.0) * 7)
    assert step.proof.is_refused
    for length in (0, 6, 7, 8, 9):
        assert torch.equal(step.at(length), torch.arange(8.0) * (length + 1))
    assert step.num_replays == 2 * NUM_PROOFS + 1 and not step.proof.is_proven


@pytest.mark.parametrize(
    ("tolerance", "noise", "is_refused"),
    [(1e-8, 1e-6, True), (1e-3, 1e-6, False), (1e-3, 1e-2, True), (1e-3, float("nan"), True)],
)
def test_by_how_much_it_may_differ(tolerance: float, noise: float, is_refused: bool) -> None:
    step = Step(Proof(tolerance), noise)
    for length in range(1, 1 + NUM_PROOFS):
        step.at(length)
    assert step.proof.is_refused is is_refused and step.proof.is_proven is not is_refused
