"""Text as it grows: bytes of tokens in, text out on character boundaries, stop strings held back.

The law of streaming: what `push` and `close` return, concatenated, is the final text: the bytes of all tokens (of a
special token that the constraint asked for, its name) decoded as UTF-8 with U+FFFD for what is not, up to the first
stop string. Nothing that was returned is ever taken back.
"""

from __future__ import annotations

import codecs

from decodekit.generation.stopping import StopStrings

_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one sequence.

    Args:
        stop: texts that end it.
    """

    __slots__ = ("_decoder", "_held", "_stop", "is_stopped")

    is_stopped: bool
    """Whether a stop string was found; from then on there is no further text."""

    def __init__(self, stop: StopStrings) -> None:
        self._decoder = _decoder("replace")
        self._stop = stop
        self._held = ""
        self.is_stopped = False

    def push(self, data: bytes) -> str:
        """Add the bytes of a token; the text that is certain now and was not before.

        A character whose bytes are incomplete, and text that could be the beginning of a stop string, wait.
        """
        return self._release(self._decoder.decode(data), is_final=False)

    def close(self) -> str:
        """The rest of the text: no further bytes will come."""
        return self._release(self._decoder.decode(b"", final=True), is_final=True)

    def fork(self) -> TextStream:
        """A stream that has come as far, and goes on by itself."""
        twin = TextStream(self._stop)
        twin._decoder.setstate(self._decoder.getstate())
        twin._held, twin.is_stopped = self._held, self.is_stopped
        return twin

    def _release(self, text: str, *, is_final: bool) -> str:
        if self.is_stopped:
            return ""
        if not self._stop:
            return text
        # An occurrence that is not complete begins in the held text, so the window sees every occurrence.
        window = self._held + text
        occurrence = self._stop.find(window)
        if occurrence is not None:
            self.is_stopped = True
            return window[: occurrence[0]]
        num_certain = len(window) if is_final else len(window) - self._stop.num_held(window)
        self._held = window[num_certain:]
        return window[:num_certain]
