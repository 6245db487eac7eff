"""Bitmasks of the tokens that constraints allow, for all positions of a step.

They are kept in one host array that is written in place and handed to torch without a copy (on a CPU).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decodekit.constraints.engine.bitmask import forbid
from decodekit.constraints.matching.wrapped_matcher import WrappedMatcher
from decodekit.decoding.lazy_masks.rollback import checkpoint
from decodekit.decoding.loop.text_row import TextRow
from decodekit.decoding.request.budget import keep_ending, plan_before
from decodekit.errors import DecodekitError

ALL_ALLOWED = -1
"""A word of a mask with every bit."""
NONE_ALLOWED = -1
"""Stands for a token where the mask is empty."""


class StepMasks:
    """The bitmasks of the positions of one step.

    Args:
        num_words: int32 words of one position; bit t % 32 of word t // 32 allows token t.
        can_redraw: whether a token that a guard refuses keeps its bit, because it can be drawn and refused.
        left_out: where tokens lose their bits after which a text cannot end within its budget, the tokens that it must
            not depend on; else None.
        can_go_back: whether a text can be taken back. Otherwise no token keeps its bit that a guard refuses.
    """

    def __init__(
        self, num_words: int, can_redraw: bool = True, left_out: frozenset[int] | None = None, can_go_back: bool = True
    ) -> None:
        self._words = np.zeros((0, num_words), dtype=np.int32)
        self._can_redraw = can_redraw
        self._can_go_back = can_go_back
        self._left_out = left_out

    def fill(
        self,
        sequences: Sequence[TextRow],
        drafts: list[list[int]],
        choices: Sequence[int | None] | None = None,
        can_wait: bool = False,
    ) -> Tensor | None:
        """The tokens allowed after the first 0, 1, ..., k tokens of each draft, int32 [P, words] as positions come.

        Valid until the next call; None if all rows are free text. A constraint that fails (it may outgrow its bounds)
        in front of a draft is an error of its sequence, and allows nothing. Where it fails further on, the draft is cut
        in `drafts`, so that the row meets the failure in its own time; the positions behind the cut mean nothing.

        Args:
            sequences, drafts: of all rows.
            choices: by position, what is known without a mask; only where it is None there is one. None for all.
            can_wait: whether a row may wait for its masks; its positions mean nothing then. One that waits already has
                none.
        """
        if all(sequence.matcher is None for sequence in sequences):
            return None
        num_places = len(sequences) + sum(map(len, drafts))
        if num_places > len(self._words):
            self._words = np.zeros((2 * num_places, self._words.shape[1]), dtype=np.int32)
        first = 0
        for row, sequence in enumerate(sequences):
            words = self._words[first : first + len(drafts[row]) + 1]
            known = [None] * len(words) if choices is None else choices[first : first + len(words)]
            first += len(words)
            sequence.position_refusals = {}
            if sequence.matcher is None:
                words[:] = ALL_ALLOWED
            elif None in known and not sequence.is_waiting:
                begin = time.perf_counter()
                drafts[row] = self._fill_along(sequence, drafts[row], words, known, can_wait)
                sequence.mask_s += time.perf_counter() - begin
        return torch.from_numpy(self._words[:num_places])

    def fill_here(self, sequence: TextRow, words: npt.NDArray[np.int32]) -> None:
        """The tokens allowed after the text of a sequence, into ``words``, int32 [words]."""
        begin = time.perf_counter()
        self._fill_position(sequence, (), words, sequence.plan)
        sequence.mask_s += time.perf_counter() - begin

    def _fill_along(
        self,
        sequence: TextRow,
        draft: list[int],
        words: npt.NDArray[np.int32],
        known: Sequence[int | None],
        can_wait: bool,
    ) -> list[int]:
        matcher = sequence.matcher
        assert matcher is not None
        begin, num_passed = matcher.num_tokens, 0
        plan: tuple[int, ...] | None = sequence.plan
        last = max(position for position, choice in enumerate(known) if choice is None)
        try:
            for position in range(last + 1):
                if position:
                    plan = self._plan_after(sequence, plan, draft[position - 1], position)
                    if not matcher.accept(draft[position - 1]):
                        break
                if known[position] is None:
                    if can_wait and not (sequence.is_prepared() and self._is_judged(sequence)):
                        break
                    self._fill_position(sequence, draft[:position], words[position], plan)
                num_passed += 1
        except DecodekitError as error:
            if num_passed == 0:
                sequence.error = error
                words[0], num_passed = 0, 1
        finally:  # memory may have run out: the step is tried again
            matcher.rollback(matcher.num_tokens - begin)
        if num_passed > last or sequence.is_waiting:
            return draft
        words[num_passed:] = ALL_ALLOWED
        return draft[: num_passed - 1]

    def _is_judged(self, sequence: TextRow) -> bool:
        """Whether the guard was asked about all tokens that the mask is to say; if not, a slice of that was done."""
        matcher = sequence.matcher
        if self._can_redraw or not isinstance(matcher, WrappedMatcher):
            return True
        return all(sequence.is_prepared(token) for token in matcher.ending_tokens())

    def _plan_after(
        self, sequence: TextRow, plan: tuple[int, ...] | None, token: int, position: int
    ) -> tuple[int, ...] | None:
        """The plan of a text after a token of a draft, by which it has `position` tokens more; see `TextRow.plan`.

        None if the text could not end in time: the draft is not followed to there.
        """
        if self._left_out is None or plan is None:
            return plan
        assert sequence.matcher is not None
        num_left = sequence.max_tokens - len(sequence.token_ids) - position
        plan = plan_before(sequence.matcher, plan, token, num_left, self._left_out)
        return None if plan is None else plan[1:] if plan[:1] == (token,) else ()

    def _fill_position(
        self, sequence: TextRow, draft: Sequence[int], words: npt.NDArray[np.int32], plan: tuple[int, ...] | None
    ) -> None:
        matcher = sequence.matcher
        assert matcher is not None
        sequence.num_masks += 1
        is_exact = not (sequence.has_guard and self._can_go_back)  # else `step` asks the guard what is drawn
        matcher.fill_bitmask(words[None], exact=is_exact)
        if self._left_out is not None and plan is not None:
            num_left = sequence.max_tokens - len(sequence.token_ids) - len(draft) - 1
            keep_ending(matcher, plan, num_left, self._left_out, words)
        if not sequence.has_guard:
            return
        if not draft:
            for token in sequence.banned:
                forbid(words, token)
        if self._can_redraw or is_exact:
            return
        # A token whose refusal takes more back keeps its bit, and one that is refused early: when it is drawn the text
        # goes back, whatever the strategy.
        text = [*sequence.token_ids, *draft]
        for token, refusal in matcher.refusals(is_early=False).items():
            if checkpoint(text, refusal.keep, matcher.token_texts) == len(text):
                sequence.position_refusals[len(text)] = refusal
                forbid(words, token)


def sole_tokens(bitmask: Tensor) -> list[int | None]:
    """Per row the token that is the only one allowed; `NONE_ALLOWED`; or None where there is a choice."""
    words = bitmask.numpy().view(np.uint32)  # bits of a negative number are counted as those of its absolute value
    counts = np.bitwise_count(words).sum(axis=1, dtype=np.int64).tolist()
    return [None if count > 1 else _only_bit(words[row]) if count else NONE_ALLOWED for row, count in enumerate(counts)]


def _only_bit(words: npt.NDArray[np.uint32]) -> int:
    word = int(words.nonzero()[0][0])
    return word * 32 + int(words[word]).bit_length() - 1
