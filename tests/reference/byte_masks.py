"""The mask by single bytes: every token of a vocabulary is spelled under a matcher that knows bytes only.

Holds for any engine with the interface of `Matcher`: nothing here knows how masks are made. The tokens are tried in the
order of their bytes, so that a shared beginning is spelled once and a refused byte ends all tokens that go on from it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from decodekit.constraints.matching.matcher import Matcher
from decodekit.vocabulary import Vocabulary


@lru_cache(maxsize=8)
def _sorted_tokens(vocabulary: Vocabulary) -> tuple[tuple[bytes, int], ...]:
    return tuple(sorted((data, token) for token, data in enumerate(vocabulary.token_bytes) if data is not None))


def allowed_by_bytes(matcher: Matcher, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """The tokens of `vocabulary` that may follow, ascending; `matcher` is left as it was.

    Args:
        matcher: of the constraint over `tests.reference.vocabularies.byte_vocabulary`, whose token b is byte b.
        vocabulary: whose mask is wanted.
    """
    found = [*vocabulary.eos_token_ids] if matcher.is_accepting else []
    spelled = b""  # what of a token is accepted
    refused: bytes | None = None  # the last prefix that was refused
    start = matcher.num_tokens
    for data, token in _sorted_tokens(vocabulary):
        if refused is not None and data.startswith(refused):
            continue
        common = 0
        while common < min(len(spelled), len(data)) and spelled[common] == data[common]:
            common += 1
        matcher.rollback(len(spelled) - common)
        spelled = spelled[:common]
        for byte in data[common:]:
            if not matcher.accept(byte):
                refused = spelled + bytes((byte,))
                break
            spelled += bytes((byte,))
        else:
            found.append(token)
    matcher.rollback(len(spelled))
    assert matcher.num_tokens == start
    return np.array(sorted(found), dtype=np.int64)
