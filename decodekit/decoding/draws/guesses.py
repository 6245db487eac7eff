"""Guesses: what may follow a text, so that the model reads it in the same pass; by the constraint or by a proposer."""

from __future__ import annotations

from collections.abc import Sequence

from decodekit.decoding.draws.rejection import drawn_tokens, may_test
from decodekit.decoding.draws.row_draws import LikeTarget
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.lazy_masks.positions import NO_GUESS, Drawn, Guess, Position
from decodekit.decoding.loop.append import forced_run
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.request.faults import fault_of
from decodekit.decoding.request.settings import Settings
from decodekit.errors import is_out_of_memory
from decodekit.models.causal_lm import CausalLM
from decodekit.models.wrappers.contrast_model import uncontrasted
from decodekit.speculation.proposer import Context, asked


def guesses_of(
    sequences: Sequence[TextRow], model: CausalLM, settings: Settings, table: TokenTable | None
) -> list[Guess]:
    """`propose`; what a proposer raises is a fault of its row alone, which ends behind its next tokens."""
    try:
        return propose(sequences, model, settings, table)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if len(sequences) == 1:
            [sequence] = sequences
            sequence.fault = fault_of(error, "proposer", at=str(Position(sequence)))
            return [NO_GUESS]
    alone = [guesses_of([one], model, settings, table) for one in sequences]
    return [guess for [guess] in alone]


def propose(sequences: Sequence[TextRow], model: CausalLM, settings: Settings, table: TokenTable | None) -> list[Guess]:
    """A guess for each text: forced tokens that were not taken unseen, else the proposer's offer.

    One token of the budget is left for the target's own, and nothing is guessed beyond an end of the text.
    """
    guesses = [NO_GUESS] * len(sequences)
    limits = [sequence.max_tokens - len(sequence.token_ids) - 1 for sequence in sequences]
    if not settings.is_forced_unseen:
        for row, (sequence, limit) in enumerate(zip(sequences, limits, strict=True)):
            # What is certain needs no token of the target's own behind it.
            run = forced_run(sequence, settings)[: max(0, limit + settings.is_canonical)]
            if run:
                guesses[row] = Guess(run, len(run))
    rows = [row for row, limit in enumerate(limits) if limit > 0 and not guesses[row].tokens]
    if settings.proposer is None or not rows:
        return guesses
    target = LikeTarget(sequences, settings, table, uncontrasted(model))
    contexts = [
        Context(one.request.prompt, one.token_ids, one.matcher, settings.canonical, one.memory, target, row)
        for row in rows
        for one in [sequences[row]]
    ]
    drafts = asked(settings.proposer, contexts, [limits[row] for row in rows])
    for row, context, draft in zip(rows, contexts, drafts, strict=True):
        tokens = list(draft.tokens[: limits[row]])
        end = next((i for i, token in enumerate(tokens) if token in settings.vocabulary.eos_token_ids), len(tokens))
        tokens = tokens[: context.num_legal(tokens[:end])]
        drawn: tuple[Drawn, ...] = ()
        if may_test(sequences[row], settings):
            drawn = drawn_tokens(draft, len(tokens), settings.vocabulary.size)[: limits[row]]
        guesses[row] = Guess(tokens, 0, drawn, draft.source)
    return guesses
