"""Texts that earlier rows of a job came to, where later rows look for what follows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from decodekit.sampling.checks import require_integer

Tokens = npt.NDArray[np.int32]

SEPARATOR: Final = -1
"""Stands after every text; not a token."""


class SuffixCorpus:
    """A bounded store of texts, the latest ones, for `Suffix(corpus=...)`.

    Threads and jobs may share one. A pickled one takes its texts along, and the two go their own ways.

    Args:
        max_tokens: of all texts together, a separator for each included; the oldest texts leave first, and of a text
            that is longer the end is kept.

    Raises:
        OptionError: the number is below 2.
    """

    def __init__(self, max_tokens: int = 65_536) -> None:
        require_integer("max_tokens", max_tokens, 2)
        self.max_tokens = max_tokens
        # Rows that have gone add from a garbage collection, in the middle of anything, so that adding takes no lock.
        self._added: deque[Tokens] = deque()
        self._texts: deque[Tokens] = deque()
        self._whole: Tokens = np.empty(0, np.int32)
        self._lock = threading.Lock()

    @property
    def tokens(self) -> Tokens:
        """All texts, the oldest first, with a separator after each; int32 [n], never written to again.

        Costs a copy of the whole store after texts were added.
        """
        if self._added:
            with self._lock:
                self._take_in()
        return self._whole

    def add(self, text: Sequence[int]) -> None:
        """Store a text; an empty one is nothing."""
        if len(text):
            self._added.append(np.append(np.asarray(text, np.int32)[1 - self.max_tokens :], np.int32(SEPARATOR)))

    def _take_in(self) -> None:
        num_tokens = len(self._whole)
        while self._added:
            text = self._added.popleft()
            self._texts.append(text)
            num_tokens += len(text)
            while num_tokens > self.max_tokens:
                num_tokens -= len(self._texts.popleft())
        if self._texts:
            self._whole = np.concatenate(self._texts)

    def __len__(self) -> int:
        """Number of texts."""
        _ = self.tokens
        return len(self._texts)

    def __repr__(self) -> str:
        return f"SuffixCorpus({len(self)} texts, {len(self.tokens):,} of {self.max_tokens:,} tokens)"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._take_in()
            return {"max_tokens": self.max_tokens, "texts": list(self._texts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["max_tokens"])  # type: ignore[misc]  # the lock is new, all else as it was
        for text in state["texts"]:
            self.add(text[:-1])
