"""Slow twins of what contrasts laws: every pass anew, one row and one place at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def hidden_states(model: nn.Module, tokens: Sequence[int]) -> list[Tensor]:
    """[T, D] of the embeddings and after every layer, the last after the final norm."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    return [layer[0] for layer in out.hidden_states]


def exit_logits(model: nn.Module, tokens: Sequence[int], layer: int) -> Tensor:
    """float32 [T, V]: logits of the model whose layers from `layer` on hand on what they get."""
    twin: Any = copy.deepcopy(model)
    lists = [child for child in twin.modules() if isinstance(child, nn.ModuleList)]
    layers = max(lists, key=len)
    for late in layers[layer:]:
        late.register_forward_hook(_hand_on, with_kwargs=True)
    with torch.no_grad():
        logits: Tensor = twin(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return logits


def _hand_on(module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    given = args[0] if args else kwargs["hidden_states"]
    return (given, *out[1:]) if isinstance(out, tuple) else given


def contrastive_search(
    model: nn.Module,
    prompt: Sequence[int],
    top_k: int,
    penalty_alpha: float,
    num_tokens: int,
    process: Callable[[Tensor, list[int]], Tensor] = lambda logits, prefix: logits,
    matcher: Any = None,
) -> list[int]:
    """Su et al. 2022, equation 5, with a pass of the model for every candidate of every token.

    Args:
        model: of transformers.
        prompt: token ids.
        top_k, penalty_alpha: the options.
        num_tokens: most tokens; fewer where the constraint is complete.
        process: logits [V] and prefix to processed logits.
        matcher: the constraint; asked about one token at a time.
    """
    text = list(prompt)
    while len(text) < len(prompt) + num_tokens and (matcher is None or matcher.can_continue):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].float()
        logits = process(logits, text)
        if matcher is not None:
            logits = torch.tensor([x if matcher.validate([v]) else -math.inf for v, x in enumerate(logits.tolist())])
        p = law(logits)
        candidates = sorted((v for v in range(len(p)) if p[v] > 0), key=lambda v: -p[v])[:top_k]
        before = hidden_states(model, text)[-1]

        def score(v: int, p: Sequence[float] = p, before: Tensor = before) -> float:
            after = hidden_states(model, [*text, v])[-1][-1]
            similar = max(float(torch.cosine_similarity(after, state, dim=0)) for state in before)
            return (1 - penalty_alpha) * p[v] - penalty_alpha * similar

        text.append(max(candidates, key=score))
        if matcher is not None:
            assert matcher.accept(text[-1])
    return text[len(prompt) :]


def guided_row(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Sanchez et al. 2023, equation 7, token by token, over logits [V] of one place."""
    c, u = law(conditional), law(unconditional)
    return torch.tensor([math.log(u[v]) + scale * (math.log(c[v]) - math.log(u[v])) for v in range(len(c))])


def amateurish_row(expert: Tensor, amateur: Tensor, alpha: float, beta: float) -> Tensor:
    """O'Brien & Lewis 2023, section 2: over logits [V] and [V'], -inf for what is implausible."""
    e, a = law(expert), law(amateur[: len(expert)])
    a += e[len(a) :]  # unknown to the amateur
    return torch.tensor(
        [
            (1 + beta) * math.log(e[v]) - beta * math.log(a[v]) if e[v] >= alpha * max(e) else -math.inf
            for v in range(len(e))
        ]
    )


def layered_row(final: Tensor, early: Sequence[Tensor], relative_top: float) -> Tensor:
    """Chuang et al. 2023, equations 1 to 5: over logits [V] of the last and the candidate layers."""
    f = law(final)
    candidates = [law(logits) for logits in early]
    premature = max(candidates, key=lambda q: divergence(f, q))
    return torch.tensor(
        [math.log(f[v]) - math.log(premature[v]) if f[v] >= relative_top * max(f) else -math.inf for v in range(len(f))]
    )


def divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """Jensen-Shannon, in nats."""
    m = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return (kullback_leibler(p, m) + kullback_leibler(q, m)) / 2


def kullback_leibler(p: Sequence[float], q: Sequence[float]) -> float:
    return math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def law(logits: Tensor) -> list[float]:
    """Probabilities, as float64."""
    return torch.softmax(logits.double(), dim=-1).tolist()  # type: ignore[no-any-return]
