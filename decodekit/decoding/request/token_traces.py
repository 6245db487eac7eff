"""The origin of each token of a text: what ``trace=True`` records, and what `pages.tokens` shows.

The text ``{"a":7}`` under a schema, with a draft ``7,`` offered behind the colon:

    token   source           check    num_allowed
    {"a":   forced           forced   1              the constraint left no choice
    7       draft accepted   asked                   one question settled it; nobody counted what else may come
    }       draft rejected   masked   2              the draft had a comma there; the model took its own of two tokens

Recording (`decoding.request.trace_recorder`) reads what a step has computed anyway: logits, drafts, the masks that were
made. It makes no mask, asks no question and adds no forward pass, so that it shows what happens without it. Forced
tokens are taken before the model has said anything about them, and have no probability; beside ``logprobs=True``, which
asks it, they have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from decodekit.vocabulary import Vocabulary

Source: TypeAlias = Literal["model", "forced", "draft accepted", "draft rejected"]
"""Who gave a token: the model by itself; the constraint, which left no choice; a draft that the model agreed to; the
model where a draft had another token."""
Check: TypeAlias = Literal["free", "forced", "asked", "masked"]
"""The way a token was checked: no constraint; forced by it; tokens asked about one by one; masked."""


class TokenOption(NamedTuple):
    """A token that could have come at a position.

    Args:
        token_id: its id.
        text: its bytes as UTF-8, others as ``\\xe2``; the name of a special token, ``<[7]>`` if it has none.
        logprob: natural log-probability under the model's own distribution; None where the model was not asked.
        is_allowed: whether the constraint's mask has it; None where no mask was made.
    """

    token_id: int
    text: str
    logprob: float | None
    is_allowed: bool | None


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The trace of one token. Figures are of the model's own distribution, as in `sequence.TokenLogprob`.

    Args:
        taken: the token.
        source: who gave it.
        check: how the constraint was heard; None of a search, which hears it for all hypotheses together.
        num_allowed: how many tokens the constraint allowed here, V in free text; None where nobody counted them.
        mass: share of the probability that the mask left, 1 in free text; None where no mask was made.
        entropy: of the distribution, in nats, from 0 to log V; None where the model was not asked.
        options: the likeliest tokens, likeliest first; none where the model was not asked.
        refused: the token of the draft in place of which this one was taken, None if there was none.
    """

    taken: TokenOption
    source: Source
    check: Check | None
    num_allowed: int | None
    mass: float | None
    entropy: float | None
    options: tuple[TokenOption, ...] = ()
    refused: TokenOption | None = None


def forced_trace(token: int, vocabulary: Vocabulary) -> TokenTrace:
    """The trace of a token that was the only one allowed, and was taken before the model said anything of it."""
    return TokenTrace(TokenOption(token, text_of(token, vocabulary), None, True), "forced", "forced", 1, None, None)


def text_of(token: int, vocabulary: Vocabulary) -> str:
    """The text by which a token is shown; see `TokenOption`."""
    data = vocabulary.token_bytes[token]
    if data is not None:
        return data.decode("utf-8", "backslashreplace")
    return next((name for name, one in vocabulary.special_tokens.items() if one == token), f"<[{token}]>")
