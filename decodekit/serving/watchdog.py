"""Watches the engine: a step that does not come to its end is told once, with the requests that it may be about."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Final

from decodekit.llm import Engine

LOGGER = logging.getLogger("decodekit.serving")
_MOST_NAMED: Final = 16
_LOOKS: Final = 4  # while a step becomes too long


class Watchdog:
    """Looks at the step under way, in a thread of its own; after `stall_s` seconds it is too long."""

    def __init__(self, engine: Engine, stall_s: float) -> None:
        self._engine, self._stall_s = engine, stall_s
        self._ends = threading.Event()
        threading.Thread(target=self._run, name="decodekit-watchdog", daemon=True).start()

    @property
    def is_stalled(self) -> bool:
        """Whether the step under way takes too long."""
        step = self._engine.step_under_way()
        return step is not None and step.seconds > self._stall_s

    def close(self) -> None:
        """Watch no longer."""
        self._ends.set()

    def _run(self) -> None:
        was_stalled = False
        while not self._ends.wait(min(1.0, self._stall_s / _LOOKS)):
            step = self._engine.step_under_way()
            is_stalled = step is not None and step.seconds > self._stall_s
            if step is not None and is_stalled and not was_stalled:
                named = ", ".join(map(str, step.requests[:_MOST_NAMED])) or "none that has a row"
                more = f" and {len(step.requests) - _MOST_NAMED} more" if len(step.requests) > _MOST_NAMED else ""
                frame = sys._current_frames().get(step.thread or 0)
                where = "" if frame is None else "".join(traceback.format_stack(frame))
                says = "a step of the engine takes more than %g s; requests in it: %s%s\n%s"
                LOGGER.error(says, self._stall_s, named, more, where)
            elif was_stalled and not is_stalled:
                LOGGER.warning("the engine goes on")
            was_stalled = is_stalled
