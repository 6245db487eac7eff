"""One line on stderr when the first use on a machine takes long: what is made then is kept, so it is said once.

The steps that can be slow announce themselves. Once they have taken `PATIENCE_S` together, the logger ``decodekit``
writes the line, at the level of warnings because that is what Python shows where nobody has set up logging.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

PATIENCE_S: Final = 1.0
"""So much waiting is not worth a line."""

_log = logging.getLogger("decodekit")


class Announcer:
    """Says at most once that something takes long. Steps may overlap, in one thread or in several."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._waited_s = 0.0
        self._began_at = 0.0
        self._num_running = 0
        self._timer: threading.Timer | None = None
        self._was_said = False

    def begin(self, what: str) -> None:
        """A slow step begins; `end` must follow."""
        with self._lock:
            self._num_running += 1
            if self._num_running > 1 or self._was_said:
                return
            self._began_at = time.monotonic()
            self._timer = threading.Timer(max(0.0, self._patience_s - self._waited_s), self._say, (what,))
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """The step that began last is over."""
        with self._lock:
            self._num_running -= 1
            if self._num_running == 0 and self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._waited_s += time.monotonic() - self._began_at

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A slow step, for a ``with`` statement."""
        self.begin(what)
        try:
            yield
        finally:
            self.end()

    def _say(self, what: str) -> None:
        with self._lock:
            if self._was_said or self._timer is None:
                return
            self._was_said = True
        _log.warning("decodekit: first use here: %s; kept for the next time if the cache can be written", what)


announcer: Final = Announcer()
"""The one of the process."""


class AnnouncedCache:
    """A cache of compiled code for a dispatcher of numba; it says so when there is none and compiling takes a while.

    Args:
        on_disk: a cache of numba, or None where no folder can be written.
    """

    def __init__(self, on_disk: Any) -> None:
        self._on_disk = on_disk

    @property
    def cache_path(self) -> str | None:
        """The folder."""
        return None if self._on_disk is None else self._on_disk.cache_path

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled code for the types of some arguments; None if numba has to compile."""
        found = None if self._on_disk is None else self._on_disk.load_overload(signature, target)
        if found is None:
            announcer.begin("compiling")
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what numba compiled."""
        announcer.end()
        if self._on_disk is not None:
            self._on_disk.save_overload(signature, compiled)
