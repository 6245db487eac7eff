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
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Texts that end a completion, none of them empty.

    Args:
        texts: of any length.
        is_kept: whether the one that ended the completion belongs to it.
    """

    texts: tuple[str, ...] = ()
    is_kept: bool = False
    _longest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_longest", max(map(len, self.texts), default=0))

    def __bool__(self) -> bool:
        return bool(self.texts)

    def find(self, text: str) -> tuple[int, int] | None:
        """The (start, end) of the occurrence that ends first, the longest of those; None if there is none."""
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in self.texts if stop in text]
        if not found:
            return None
        end, negative_length = min(found)
        return end + negative_length, end

    def num_held(self, text: str) -> int:
        """Length of the longest end of `text` that could be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self.texts):
                return length
        return 0


class TextStream:
    """The text of one sequence."""

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
            return window[: occurrence[1 if self._stop.is_kept else 0]]
        num_certain = len(window) if is_final else len(window) - self._stop.num_held(window)
        self._held = window[num_certain:]
        return window[:num_certain]


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
