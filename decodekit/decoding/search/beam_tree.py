"""The tree of a beam search: which continuations were looked at, and which were pruned.

Two beams, tokens a, b and the end $, as in `decoding.search.beam_search`:

    node  parent  step  text  log p   fate
    0             0     a     -0.5    kept
    1             0     b     -1.2    kept
    2             0     $     -2.3    pruned   ended, but not among the best 2
    3     0       1     a     -0.9    kept
    4     0       1     $     -1.4    ended    a finished text
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Fate: TypeAlias = Literal["kept", "ended", "pruned"]
"""What became of a continuation at its step: it goes on; it is a finished text among the best; neither."""


@dataclass(frozen=True, slots=True)
class BeamNode:
    """A continuation that a step looked at.

    Args:
        parent: index of the node that it continues; None for a first token.
        step: index of its token among the generated ones.
        token_id, text: its token, and how that is shown; see `traces.TokenOption`.
        log_prob: sum over the text, processed, less the penalties of diversity.
        score: what finished texts are ranked by: log p / length^length_penalty.
        fate: what became of it.
    """

    parent: int | None
    step: int
    token_id: int
    text: str
    log_prob: float
    score: float
    fate: Fate = "pruned"


@dataclass(frozen=True, slots=True)
class BeamTree:
    """The hypotheses that a search looked at, step by step.

    Args:
        nodes: in the order of the steps, within a step the best first.
        returned: the nodes at which the returned texts end, best first.
    """

    nodes: list[BeamNode] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        """The nodes of a text from its first token on."""
        found = [node]
        while (parent := self.nodes[found[-1]].parent) is not None:
            found.append(parent)
        return found[::-1]
