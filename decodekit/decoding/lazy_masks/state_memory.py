"""The outcomes of steps at states of constraints, so that a step that would be in vain is not made again.

A JSON object whose model likes to write ``{"age"`` where only ``{"name"`` is allowed:

    first text     the device takes "age" and goes on; it is refused, and the row goes back for its mask: a pass in vain
    second text    the state before is known to lead there: its token is seen first, the next one is taken by the mask
    later texts    now and then the token is asked about again, for behind another text the model may prefer another

Only time depends on it. Threads that share it may lose an update to one another.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from decodekit.constraints.matching.matcher import Matcher
from decodekit.decoding.lazy_masks.mask_pool import mask_key
from decodekit.decoding.lazy_masks.probes import MAX_PAUSE

MAX_STATES: Final = 4096
"""States that are remembered; beyond them, all is forgotten."""


class StateMemory:
    """States as `mask_key` tells them; matchers that tell none, and free text, are never known."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, bool] = {}  # whether a step behind the next one was of no use
        self._refusing: dict[Hashable, tuple[int, int]] = {}  # visits that get a mask at once: at first, and left

    def is_turning(self, matcher: Matcher) -> bool:
        """Whether a step that starts before the token of this state is seen would hardly be of use."""
        return self._turns.get(mask_key(matcher), False)

    def note_turn(self, key: Hashable, *, is_turned: bool, after: Matcher | None) -> None:
        """Note whether the step behind a state was of no use, or the one behind that will be, at a state that refuses.

        Args:
            key: of the state.
            after: where its token led.
        """
        if key is not None:
            if len(self._turns) >= MAX_STATES:
                self._turns.clear()
            self._turns[key] = is_turned or self._refusing.get(mask_key(after), (0, 0))[1] > 0

    def refuses(self, matcher: Matcher) -> bool:
        """Whether the likely token of a state is hardly allowed, so that its mask comes at once; counts the visit."""
        key = mask_key(matcher)
        pause, left = self._refusing.get(key, (0, 0))
        if left:
            self._refusing[key] = pause, left - 1
        return left > 0

    def note_answer(self, matcher: Matcher, *, is_allowed: bool) -> None:
        """Note what came of a question; a state that refuses again and again is asked about ever more seldom."""
        key = mask_key(matcher)
        if is_allowed:
            self._refusing.pop(key, None)
        elif key is not None:
            if len(self._refusing) >= MAX_STATES:
                self._refusing.clear()
            pause = min(2 * self._refusing.get(key, (0, 0))[0] + 1, MAX_PAUSE)
            self._refusing[key] = pause, pause
