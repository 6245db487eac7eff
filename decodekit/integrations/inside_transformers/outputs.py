"""The outputs of transformers' `generate`, made of the texts that decodekit decoded.

Two prompts of three and two tokens, padded on the left, whose texts have two tokens and one::

    sequences   7 8 9 | 4 2        a prompt as it was given, then its text
                0 7 8 | 2 0        what ends early is filled with the padding token
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decodekit.integrations.inside_transformers.call import TheirCall
from decodekit.integrations.inside_transformers.score_recorder import BeamStep, Taps, WatchedBeams, key_of


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


def sequences_of(call: TheirCall, texts: Sequence[ReturnedText], padding: int) -> Tensor:
    """Prompts and texts, int64 [len(texts), S + T], with T the length of the longest text."""
    new = _filled([text.token_ids for text in texts], padding, torch.int64)
    prompts = call.rows.given[[text.prompt for text in texts]]
    return torch.cat((prompts, new), dim=1).to(call.rows.device)


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

    is_beam = num_beams > 1
    sequences = sequences_of(call, texts, call.beam_pad_token_id if is_beam else call.pad_token_id)
    config = call.config
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
