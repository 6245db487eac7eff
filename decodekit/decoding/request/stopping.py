"""The ends of a text: end-of-sequence tokens, stop strings, the limit of new tokens, a constraint that is complete.

Stop strings are matched on the text, not on tokens, and the outcome does not depend on how the text was split into
tokens: of all occurrences, the one that *ends first* counts, and among those that end together the longest.

The law of streaming: what `TextStream.push` and `close` return, concatenated, is the final text: the bytes of all
tokens (of a special token that the constraint asked for, its name) decoded as UTF-8 with U+FFFD for what is not, up to
the first stop string. Nothing that was returned is ever taken back.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch

from decodekit.constraints.matching.wrapped_matcher import WrappedMatcher
from decodekit.decoding.request.faults import fault_of

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher

_decoder = codecs.getincrementaldecoder("utf-8")

FinishReason: TypeAlias = Literal["stop", "length", "complete", "dead_end", "error"]
"""Why a text ended.

``stop``: an end-of-sequence token, a stop string or a stop rule. ``length``: `max_new_tokens`, or the model's context,
is used up.
``complete``: the constraint is satisfied and nothing can follow, so no end-of-sequence token is needed; or, where the
text must close in time, it is satisfied when `max_new_tokens` is used up.
``dead_end``: no token is allowed and the text is not complete. ``error``: the row failed; see the error.
"""


class StopRule(Protocol):
    """Ends texts by what was said so far; a function of that alone, asked after every token."""

    def __call__(self, prompt: Sequence[int], text: Sequence[int]) -> bool:
        """Whether the text ends with its last token."""


@dataclass(frozen=True, eq=False, slots=True)
class StoppingFunction:
    """A function of ``(input_ids, scores)``, such as a `StoppingCriteria` of transformers, as a `StopRule`.

    It is shown one row at a time, int64 [1, S], and no scores.

    Args:
        function: gives whether the row ends, a bool or a tensor of one.
    """

    function: Callable[..., Any]

    def __call__(self, prompt: Sequence[int], text: Sequence[int]) -> bool:
        """The function's answer for the row; a `DecodingError` if it raises, or says neither yes nor no."""
        row = torch.tensor([[*prompt, *text]], dtype=torch.int64)
        try:
            with torch.inference_mode(False):
                return bool(self.function(row, None))
        except Exception as error:  # a program of the user's, which raises what it likes
            raise fault_of(error, f"the stop function {self.function!r:.60}", at="stop") from error


class TextStream:
    """The text of one sequence, up to its first stop string.

    Args:
        stops: texts that end it, none of them empty.
        keeps_stop: whether the one that ended it belongs to it.
    """

    __slots__ = ("_decoder", "_held", "_stops", "is_stopped", "keeps_stop")

    is_stopped: bool
    """Whether a stop string was found; from then on there is no further text."""

    def __init__(self, stops: Sequence[str] = (), keeps_stop: bool = False) -> None:
        self._decoder = _decoder("replace")
        self._stops, self.keeps_stop = stops, keeps_stop
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
        twin = TextStream(self._stops, self.keeps_stop)
        twin._decoder.setstate(self._decoder.getstate())
        twin._held, twin.is_stopped = self._held, self.is_stopped
        return twin

    def _release(self, text: str, *, is_final: bool) -> str:
        if self.is_stopped:
            return ""
        if not self._stops:
            return text
        # An occurrence that is not complete begins in the held text, so the window sees every occurrence.
        window = self._held + text
        found = [(window.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in window]
        if found:
            self.is_stopped = True
            end, negative_length = min(found)  # the occurrence that ends first, the longest of those
            return window[: end if self.keeps_stop else end + negative_length]
        num_certain = len(window) if is_final else len(window) - self._num_held(window)
        self._held = window[num_certain:]
        return window[:num_certain]

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that could be the beginning of a stop string."""
        longest = max(map(len, self._stops))
        for length in range(min(longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


def finish_reason(
    token: int,
    *,
    eos_token_ids: Iterable[int],
    matcher: Matcher | None,
    is_stopped: bool,
    num_tokens: int,
    max_tokens: int,
) -> FinishReason | None:
    """The reason why a sequence ends after `token`; None while it goes on.

    The order decides when several hold at once: a text that stops, or is complete, with its very last allowed token
    was not cut.
    """
    if is_stopped or token in eos_token_ids:
        return "stop"
    if matcher is not None and is_complete(matcher):
        return "complete"
    if num_tokens >= max_tokens:
        return "length"
    return None


def is_complete(matcher: Matcher) -> bool:
    """Whether the text is whole and nothing can follow."""
    if isinstance(matcher, WrappedMatcher):
        return matcher.is_complete
    return matcher.is_accepting and not matcher.can_continue
