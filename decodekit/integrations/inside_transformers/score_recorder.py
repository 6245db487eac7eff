"""Scores and logits of a text, recorded while it is decoded, for who wants them as tensors of every step.

The logits before a token are a function of what stands before it. So they are kept by prefix: rows of a batch may be
decoded in any order, and drafts that were rejected are not looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodekit.decoding.request.settings import Settings
from decodekit.decoding.search.beam_search import BeamGroup, BeamOptions, BeamSearch, Hypothesis
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling import History, LogitsProcessor, Pipeline, Stage


def key_of(prompt: Iterable[int], text: Iterable[int] = ()) -> bytes:
    """The key of kept rows: the digest of the tokens before them."""
    tokens = torch.tensor([*prompt, *text], dtype=torch.int64).numpy()
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False, repr=False)
class Tap(LogitsProcessor):
    """Keeps the rows that come by, and changes nothing."""

    stage: Stage  # type: ignore[misc]  # the first bias sees the logits of the model, the last of all the scores
    rows: dict[bytes, Tensor] = field(default_factory=dict)
    """By `key_of`, float32 [V] each; what comes again replaces what came."""

    needs_history = True
    is_tokenwise = False  # rows are wanted after the mask, where one comes before

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """The logits as they are."""
        assert history is not None
        tokens = history.token_ids.cpu()
        with torch.inference_mode(False):
            for row, length in enumerate(history.lengths.tolist()):
                self.rows[key_of(tokens[row, :length].tolist())] = logits[row].clone()
        return logits


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps at both ends of a pipeline."""

    logits: Tap = field(default_factory=lambda: Tap(Stage.BIAS))
    scores: Tap = field(default_factory=lambda: Tap(Stage.LAST))

    def along(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline with the taps; what may forbid nothing is taken to forbid, so that no position is left out."""
        return Pipeline((self.logits, *pipeline, self.scores))


@dataclass(slots=True)
class BeamStep:
    """One step of a beam search of a prompt: the hypotheses that live, best first, and what follows each."""

    texts: list[tuple[int, ...]]
    logits: Tensor | None = None  # float32 [B, V]; None where nobody wants them
    scores: Tensor | None = None


class WatchedBeams(BeamSearch):
    """A beam search that keeps what its steps saw; logits and scores only if they are asked for."""

    def __init__(self, model: CausalLM, settings: Settings, options: BeamOptions, *, keeps_logits: bool) -> None:
        super().__init__(model, settings, options)
        self.steps: dict[int, dict[int, BeamStep]] = {}
        """By number of the prompt and of the step."""
        self._keeps_logits = keeps_logits
        self._step: BeamStep | None = None

    def _advance(self, group: BeamGroup, logits: Tensor) -> None:
        texts = [tuple(one.sequence.token_ids) for one in group.live]
        self._step = BeamStep(texts, _kept(logits) if self._keeps_logits else None)
        self.steps.setdefault(group.sequence.index, {})[len(texts[0])] = self._step
        super()._advance(group, logits)

    def _log_probs(self, live: Sequence[Hypothesis], logits: Tensor, at: str, mask: Tensor | None) -> Tensor:
        made = super()._log_probs(live, logits, at, mask)
        if self._keeps_logits and self._step is not None:
            self._step.scores = _kept(made)
        return made


def _kept(rows: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return rows.to(torch.float32).clone()
