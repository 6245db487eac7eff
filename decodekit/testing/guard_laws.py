"""The laws of a guard that refuses texts before they are whole."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from decodekit.constraints.constraint import EarlyGuard, Refusal
from decodekit.testing.matcher_laws import require


def check_guard(guard: EarlyGuard, texts: Iterable[str | bytes], *, seed: int = 0) -> None:
    """The laws of `EarlyGuard` and its reader, on whole texts of the constraint's language: valid and invalid ones.

    A text is refused at its end if a beginning of it is refused, and so are all longer beginnings, however they are
    divided into reads. A read that is refused changes nothing, `rollback` undoes reads, and a fork goes its own way.
    What can stay of a text is a part of it.
    """
    rng = random.Random(seed)
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        verdict = guard.refuses(data)
        found = [_read(guard, [data[:end]]) for end in range(len(data) + 1)]
        first = next((end for end, refusal in enumerate(found) if refusal is not None), len(data) + 1)
        require(first > len(data) or verdict is not None, f"refused after {data[:first]!r}, and accepted: {data!r}")
        for end, refusal in enumerate(found):
            beginning = data[:end]
            require((refusal is not None) == (end >= first), f"refused after {data[:first]!r}, not after {beginning!r}")
            require(refusal is None or 0 <= refusal.keep <= end, f"of {beginning!r} can stay {refusal!r}")
            divided = _read(guard, _divide(beginning, rng))
            require(
                (divided is None) == (refusal is None), f"{beginning!r} is refused in one division and not in another"
            )
        require(verdict is None or 0 <= verdict.keep <= len(data), f"of {data!r} can stay {verdict!r}")
        _check_ways(guard, data, min(first, len(data) + 1), rng)


def _check_ways(guard: EarlyGuard, data: bytes, first: int, rng: random.Random) -> None:
    """`rollback` and `fork` along a text that is refused after its first `first` bytes."""
    reader = guard.reader()
    if reader is None:
        return
    for end in range(1, first):
        reader.read(data[end - 1 : end])
    fork = reader.fork()
    rest = data[first - 1 :]
    for one in (reader, fork, reader):
        require((one.read(rest) is None) == (first > len(data)), f"another answer after a fork or refusal in {data!r}")
        if first > len(data):
            one.rollback(1)
    num_back = rng.randrange(first)
    fork.rollback(num_back)
    again = data[first - 1 - num_back :]
    require((fork.read(again) is None) == (first > len(data)), f"another answer after a rollback in {data!r}")
    require((reader.read(rest) is None) == (first > len(data)), f"a fork moves its original in {data!r}")


def _read(guard: EarlyGuard, pieces: Sequence[bytes]) -> Refusal | None:
    """The refusal of a text that is read in pieces."""
    reader = guard.reader()
    refusals = (None if reader is None else reader.read(piece) for piece in pieces)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _divide(data: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(len(data) + 1), min(len(data) + 1, rng.randrange(6))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
