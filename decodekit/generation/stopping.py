"""When a text ends: end-of-sequence tokens, stop strings, the limit of new tokens, a constraint that is complete.

Stop strings are matched on the text, not on tokens, and the outcome does not depend on how the text was split into
tokens: of all occurrences, the one that *ends first* counts, and among those that end together the longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher

FinishReason: TypeAlias = Literal["stop", "length", "complete", "dead_end", "error"]
"""Why a text ended.

``stop``: an end-of-sequence token or a stop string. ``length``: `max_new_tokens`, or the model's context, is used up.
``complete``: the constraint is satisfied and nothing can follow, so no end-of-sequence token is needed; or, where the
text must close in time, it is satisfied when `max_new_tokens` is used up.
``dead_end``: no token is allowed and the text is not complete. ``error``: the row failed; see the error.
"""


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Texts that end a completion and do not belong to it.

    Args:
        texts: the stop strings, none of them empty.
    """

    texts: tuple[str, ...] = ()
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


def finish_reason(
    token: int,
    *,
    eos_token_ids: Iterable[int],
    matcher: Matcher | None,
    is_stopped: bool,
    num_tokens: int,
    max_tokens: int,
) -> FinishReason | None:
    """Why a sequence ends after `token`; None while it goes on.

    The order decides when several hold at once: a text that stops, or is complete, with its very last allowed token
    was not cut.

    Args:
        token: the token that was taken last.
        eos_token_ids: the tokens that end a text.
        matcher: the constraint's state after `token`; None without a constraint.
        is_stopped: whether a stop string was found.
        num_tokens: generated tokens so far, `token` included.
        max_tokens: how many may be generated.
    """
    if is_stopped or token in eos_token_ids:
        return "stop"
    if matcher is not None and matcher.is_accepting and not matcher.can_continue:
        return "complete"
    if num_tokens >= max_tokens:
        return "length"
    return None
