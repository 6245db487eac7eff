"""Append tokens to a text: the constraint and the text stream advance, and the text may end with them.

Fast-forward: tokens that the constraint leaves no choice about cost no forward pass of their own. A token that is the
only one allowed is taken at once, and the model reads it together with what follows. Nothing else changes: it would
have been taken without a draw, and noise is keyed by position. Where the model's probability of the token is wanted, or
a bias may forbid it, the tokens go along as a draft instead: one forward pass just the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from decodekit.decoding.request.budget import ends_in_time, must_close
from decodekit.decoding.request.stopping import finish_reason
from decodekit.decoding.request.token_traces import forced_trace
from decodekit.errors import DecodekitError, ResourceLimitError
from decodekit.speculation.proposers.canonical import WINDOW

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.decoding.draws.token_table import TokenTable
    from decodekit.decoding.loop.text_row import TextRow
    from decodekit.decoding.request.settings import Settings
    from decodekit.speculation.proposers.canonical import Canonical


def append_token(sequence: TextRow, token: int, settings: Settings, table: TokenTable | None) -> bool:
    """Append a token to a sequence, which finishes if it ends here or its constraint fails; whether it goes on."""
    try:
        if sequence.matcher is not None and not sequence.matcher.accept(token):
            raise RuntimeError(f"{type(sequence.matcher).__name__} refused token {token}, which its own mask allowed")
        sequence.token_ids.append(token)
        sequence.pending.append(token)
        sequence.plan = sequence.plan[1:] if sequence.plan[:1] == (token,) else ()
        if table is not None and sequence.row >= 0:
            table.append(sequence)
        texts = settings.texts if sequence.matcher is None else sequence.matcher.token_texts
        data = texts[token]
        if data is not None:
            sequence.new_text += sequence.stream.push(data)
        reason = finish_reason(
            token,
            eos_token_ids=settings.vocabulary.eos_token_ids,
            matcher=sequence.matcher,
            is_stopped=sequence.stream.is_stopped,
            num_tokens=len(sequence.token_ids),
            max_tokens=sequence.max_tokens,
        )
        rules = sequence.settings.stop_rules  # of the sequence itself, since its neighbours may have others
        if reason in (None, "length") and any(rule(sequence.request.prompt, sequence.token_ids) for rule in rules):
            reason = "stop"
        if reason == "length" and must_close(sequence, settings) and sequence.matcher and sequence.matcher.is_accepting:
            reason = "complete"
    except DecodekitError as error:
        sequence.finish("error", error)
        return False
    if reason is not None:
        sequence.finish(reason)
    return reason is None


def append_forced(sequence: TextRow, settings: Settings, table: TokenTable | None) -> None:
    """Take what is forced after the text of a sequence, up to its end if all of the rest is."""
    if not settings.is_forced_unseen:
        return
    run = forced_run(sequence, settings)
    if sequence.fault is not None:
        sequence.finish("error", sequence.fault)
    for token in run:
        try:
            if must_close(sequence, settings) and not ends_in_time(sequence, token, settings):
                return
        except DecodekitError:  # the row will meet it by itself
            return
        sequence.num_forced_tokens += 1
        goes_on = append_token(sequence, token, settings, table)
        if settings.traces:
            sequence.traces.append(forced_trace(token, settings.vocabulary))
        if not goes_on:
            return


def forced_run(sequence: TextRow, settings: Settings) -> list[int]:
    """The tokens that follow the text without a choice."""
    matcher = sequence.matcher
    if matcher is None or settings.fast_forward == "off":
        return []
    try:
        if settings.fast_forward == "exact" or sequence.banned:
            return matcher.forced_tokens()
        assert settings.canonical is not None
        limit = sequence.max_tokens - len(sequence.token_ids)
        return canonical_run(matcher.fork(), sequence.token_ids, settings.canonical, limit)
    except ResourceLimitError as error:
        if settings.is_canonical:  # without the run it would be another text
            sequence.fault = error
        return []
    except DecodekitError:  # a constraint that fails: the row will meet it by itself
        return []


def canonical_run(matcher: Matcher, text: Sequence[int], canonical: Canonical, limit: int) -> list[int]:
    """The tokens that follow by themselves or by their bytes, about `limit` of them at most; moves the matcher."""
    run: list[int] = []
    while len(run) < limit:
        more = matcher.forced_tokens() or _settled(matcher, [*text[-WINDOW:], *run], canonical)
        if not more or not all(matcher.accept(token) for token in more):
            break
        run += more
    return run


def _settled(matcher: Matcher, text: list[int], canonical: Canonical) -> list[int]:
    """Tokens of the bytes that must follow which stay the same whatever comes then, all of them if nothing can."""
    following = matcher.forced_text()
    settled = canonical.settled_after(text, following)
    settled = settled[: matcher.validate(settled)]
    if settled or matcher.has_guard:  # whose judgement of a whole text may take long
        return list(settled)
    whole, num_before = canonical.after(text, following), matcher.num_tokens
    is_end = all(map(matcher.accept, whole)) and matcher.is_accepting and not matcher.can_continue
    matcher.rollback(matcher.num_tokens - num_before)
    return list(whole) if is_end else []
