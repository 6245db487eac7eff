"""The scores of given texts: log-probabilities of their tokens under the model's own distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decodekit.decoding.loop.batch import similar_lengths
from decodekit.decoding.loop.host_pass import right_padded
from decodekit.models.causal_lm import CausalLM

SCORE_TOKENS = 2048
"""Most tokens, padding included, of one forward pass."""

SCORE_LOGITS = 1 << 26
"""Most logits of one forward pass (256 MiB in float32): with a large vocabulary the pass has fewer tokens."""


def token_logprobs(model: CausalLM, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """For every text, the natural log-probability of each token after the first, given the tokens before it."""
    return [[logprob for logprob, _ in scores] for scores in token_scores(model, texts)]


@torch.inference_mode()
def token_scores(model: CausalLM, texts: Sequence[Sequence[int]]) -> list[list[tuple[float, bool]]]:
    """For every text, of each token after the first: its natural log-probability given the tokens before it, and
    whether it is the likeliest one, so that greedy decoding takes it.
    """
    max_tokens = max(1, min(SCORE_TOKENS, SCORE_LOGITS // model.vocab_size))
    # The last token of a text is predicted, never read.
    inputs = [list(text[:-1]) for text in texts]
    scores: list[list[tuple[float, bool]]] = [[] for _ in texts]
    readable = [index for index, tokens in enumerate(inputs) if tokens]
    for positions in similar_lengths([len(inputs[index]) for index in readable], max_tokens):
        group = [readable[position] for position in positions]
        longest = max(len(inputs[index]) for index in group)
        cache = model.new_cache(len(group), longest)
        chunk = max(1, max_tokens // len(group))
        for start in range(0, longest, chunk):
            rows = [row for row, index in enumerate(group) if len(inputs[index]) > start]
            reading = [inputs[group[row]][start : start + chunk] for row in rows]
            following = [texts[group[row]][start + 1 : start + 1 + chunk] for row in rows]
            logits = model.forward(
                right_padded(reading), [len(tokens) for tokens in reading], cache, rows, logits="all"
            )  # [R, T, V]
            log_probs = torch.log_softmax(logits, dim=-1)
            wanted = right_padded(following).to(model.device)
            taken = log_probs.gather(2, wanted[:, :, None])[:, :, 0].tolist()
            is_likeliest = (log_probs.argmax(dim=-1) == wanted).tolist()
            for row, tokens, *found in zip(rows, reading, taken, is_likeliest, strict=True):
                scores[group[row]] += list(zip(*found, strict=True))[: len(tokens)]
    return scores
