"""The outputs of transformers' `generate`, made of the texts that decodekit decoded.

Two prompts of three and two tokens, padded on the left, whose texts have two tokens and one::

    sequences   7 8 9 | 4 2        a prompt as it was given, then its text
                0 7 8 | 2 0        what ends early is filled with the padding token

Scores and logits are recorded while a text is decoded, for who wants them as tensors of every step. The logits before a
token are a function of what stands before it. So they are kept by prefix: rows of a batch may be decoded in any order,
and drafts that were rejected are not looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decodekit.decoding.request.settings import Settings
from decodekit.decoding.search.beam_search import BeamGroup, BeamOptions, BeamSearch, Hypothesis
from decodekit.integrations.inside_transformers.call import TheirCall
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


@dataclass(frozen=True, slots=True)
class ReturnedText:
    """One text that is returned; the score is that of a beam search."""

    prompt: int  # number of its prompt
    token_ids: tuple[int, ...]
    score: float | None = None


def _filled(rows: Sequence[Sequence[int]], padding: int, dtype: torch.dtype) -> Tensor:
    """The rows as a tensor [N, length of the longest], short ones filled at their end."""
    longest = max(map(len, rows), default=0)
    filled = [[*row, *[padding] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, dtype=dtype).reshape(len(rows), longest)


def tapped_rows(call: TheirCall, texts: Sequence[ReturnedText], taps: Taps, kind: str) -> tuple[Tensor, ...]:
    """The rows that a tap, of "logits" or "scores", saw at every step, T tensors float32 [len(texts), V].

    Behind the end of a text, where the rows of transformers go on unread, its padding token is certain.
    """
    seen = getattr(taps, kind).rows
    width = next(iter(seen.values())).shape[0] if seen else 0
    ended = torch.full((width,), -torch.inf)
    if width:
        ended[call.pad_token_id] = 0.0
    steps = []
    for step in range(max((len(text.token_ids) for text in texts), default=0)):
        rows = [
            seen[key_of(call.rows.tokens[text.prompt], text.token_ids[:step])] if step < len(text.token_ids) else ended
            for text in texts
        ]
        steps.append(torch.stack([row.to(call.rows.device) for row in rows]))
    return tuple(steps)


def beam_rows(call: TheirCall, watched: WatchedBeams, num_beams: int, kind: str) -> tuple[Tensor, ...]:
    """The rows that the hypotheses of every prompt saw at every step, float32 [prompts * num_beams, V].

    Transformers begins with equal hypotheses; a row that has no hypothesis, since its constraint allows no more or its
    prompt is done, is -inf.
    """
    every = [watched.steps.get(prompt, {}) for prompt in range(len(call.rows.tokens))]
    seen = (getattr(step, kind) for steps in every for step in steps.values())
    width = next((rows.shape[1] for rows in seen if rows is not None), 0)
    nothing = torch.full((num_beams, width), -torch.inf, device=call.rows.device)

    def padded(step: BeamStep | None) -> Tensor:
        rows: Tensor | None = getattr(step, kind, None)
        if step is None or rows is None:
            return nothing
        rows = rows.to(nothing.device)
        if step.texts == [()]:  # the prompt alone
            return rows[:1].expand(num_beams, -1).clone()
        return torch.cat((rows, nothing[len(rows) :]))[:num_beams]

    num_steps = max(map(len, every), default=0)
    return tuple(torch.cat([padded(steps.get(number)) for steps in every]) for number in range(num_steps))


def beam_indices_of(
    texts: Sequence[ReturnedText], watched: WatchedBeams, num_beams: int, device: torch.device
) -> Tensor:
    """The hypothesis, of all prompts, that each token of a text continued, int32 [len(texts), T]; -1 behind the end."""
    rows = [
        [
            text.prompt * num_beams + watched.steps[text.prompt][step].texts.index(text.token_ids[:step])
            for step in range(len(text.token_ids))
        ]
        for text in texts
    ]
    return _filled(rows, -1, torch.int32).to(device)


def output_of(
    call: TheirCall, texts: Sequence[ReturnedText], taps: Taps | None, watched: WatchedBeams | None, num_beams: int
) -> Any:
    """A tensor of sequences, or with ``return_dict_in_generate`` the `ModelOutput` that transformers gives."""
    from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateDecoderOnlyOutput

    padding, config = call.beam_pad_token_id if num_beams > 1 else call.pad_token_id, call.config
    new = _filled([text.token_ids for text in texts], padding, torch.int64)
    prompts = call.rows.given[[text.prompt for text in texts]]
    sequences = torch.cat((prompts, new), dim=1).to(call.rows.device)  # [len(texts), S + T]
    if not config.return_dict_in_generate:
        return sequences
    wanted = {"scores": bool(config.output_scores), "logits": bool(config.output_logits)}
    if watched is None:
        rows = {
            kind: tapped_rows(call, texts, taps, kind) if taps is not None and is_wanted else None
            for kind, is_wanted in wanted.items()
        }
        return GenerateDecoderOnlyOutput(sequences=sequences, **rows)
    scores = torch.tensor([text.score for text in texts], device=sequences.device) if config.output_scores else None
    rows = {kind: beam_rows(call, watched, num_beams, kind) if one else None for kind, one in wanted.items()}
    indices = beam_indices_of(texts, watched, num_beams, sequences.device)
    return GenerateBeamDecoderOnlyOutput(sequences=sequences, sequences_scores=scores, beam_indices=indices, **rows)


class TokenStreamer:
    """Hands tokens to a streamer of transformers: the prompts, then one token of every text, then the end.

    Texts that are ahead wait for those that are behind, since a streamer takes a tensor with a token for each, which
    is the padding token for a text that has ended.
    """

    def __init__(self, streamer: Any, num_texts: int, pad_token_id: int) -> None:
        self._streamer, self._pad = streamer, pad_token_id
        self._tokens: list[list[int]] = [[] for _ in range(num_texts)]
        self._is_open = [True] * num_texts
        self._num_put = 0

    def push(self, text: int, tokens: Sequence[int], *, is_last: bool) -> None:
        """Take new tokens of a text, and hand out the steps that are complete."""
        self._tokens[text] += tokens
        self._is_open[text] = not is_last
        longest = max(map(len, self._tokens))
        behind = [len(one) for one, is_open in zip(self._tokens, self._is_open, strict=True) if is_open]
        for step in range(self._num_put, min([longest, *behind])):
            column = [one[step] if step < len(one) else self._pad for one in self._tokens]
            self._streamer.put(torch.tensor(column, dtype=torch.int64))
            self._num_put = step + 1

    def end(self) -> None:
        """Tell the streamer that nothing follows."""
        self._streamer.end()
