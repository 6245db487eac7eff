"""Special tokens inside a constraint: spelled with bytes that no text has.

The engine reads bytes. A special token has none, so it is given a spelling that cannot be met in UTF-8: its name
between two bytes 0xFF, or its id between two bytes 0xFE. A constraint that wants the token reads its spelling; the
vocabulary's trie holds the spellings beside the texts of the other tokens, so masks need to know nothing of them.

A text shows the special tokens that its constraint asked for, as the constraint wrote them: by name, or an id as
grammars write it (``<[7]>``). That text is the only one there is: `Completion.text`, what a guard is asked about, what
`Constraint.parse` reads. End-of-sequence tokens end a text and are not part of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Final, TypeAlias

from decodekit.errors import InvalidConstraintError
from decodekit.vocabulary import Vocabulary

SpecialName: TypeAlias = str | int
"""How a constraint asks for a special token: by its name in the vocabulary, or by its id."""

_BY_NAME: Final = b"\xff"
_BY_ID: Final = b"\xfe"
_SPELLING: Final = re.compile(rb"\xff([^\xff]*)\xff|\xfe([0-9]+)\xfe")
_MAX_SHOWN: Final = 8


def spelling(token: SpecialName) -> bytes:
    """The bytes that stand for a special token, given by its name or its id."""
    if isinstance(token, int):
        return _BY_ID + str(token).encode() + _BY_ID
    return _BY_NAME + token.encode() + _BY_NAME


def written(token: SpecialName) -> str:
    """The text of a special token: its name, or its id as grammars write it."""
    return f"<[{token}]>" if isinstance(token, int) else token


def is_text(data: bytes) -> bool:
    """Whether bytes can be part of a text in UTF-8, as those of a spelling cannot."""
    return data.isascii() or (_BY_NAME not in data and _BY_ID not in data)


@lru_cache(maxsize=8)
def spellings(vocabulary: Vocabulary) -> dict[int, tuple[bytes, ...]]:
    """All spellings of each special token that has a name and no bytes, those that end a text excepted."""
    found: dict[int, tuple[bytes, ...]] = {}
    for name, token in vocabulary.special_tokens.items():
        if vocabulary.token_bytes[token] is None and token not in vocabulary.eos_token_ids:
            found[token] = (*found.get(token, (spelling(token),)), spelling(name))
    return found


def with_names(path: bytes) -> bytes:
    """The text of what the engine read: special tokens as they are written, not as they are spelled."""
    if is_text(path):
        return path
    return _SPELLING.sub(lambda found: found[1] if found[2] is None else b"<[" + found[2] + b"]>", path)


def token_texts(vocabulary: Vocabulary, asked: Set[SpecialName] = frozenset()) -> tuple[bytes | None, ...]:
    """The text of each token: its bytes; of a special token how it was asked for, else its first name.

    None for what cannot be asked for: end-of-sequence tokens, and tokens without bytes and without a name.

    Raises:
        InvalidConstraintError: one token is asked for in two ways, so that a text would not say which was meant.
    """
    texts = _named(vocabulary)
    forms: dict[int, SpecialName] = {}
    for form in sorted(asked, key=str):
        token = vocabulary.special_tokens[form] if isinstance(form, str) else form
        if forms.setdefault(token, form) != form:
            raise InvalidConstraintError(
                f"the constraint asks for the special token {token} as {forms[token]!r} and as {form!r}",
                hint="one of them everywhere",
            )
    others = {token: text for token, form in forms.items() if texts[token] != (text := written(form).encode())}
    return _replaced(texts, others)


@lru_cache(maxsize=8)
def _named(vocabulary: Vocabulary) -> tuple[bytes | None, ...]:
    names = {token: some[1][1:-1] for token, some in spellings(vocabulary).items()}
    return _replaced(vocabulary.token_bytes, names)


def _replaced(texts: tuple[bytes | None, ...], others: Mapping[int, bytes]) -> tuple[bytes | None, ...]:
    if not others:
        return texts
    changed = list(texts)
    for token, text in others.items():
        changed[token] = text
    return tuple(changed)


def check_special_tokens(asked: Set[SpecialName], vocabulary: Vocabulary) -> None:
    """Refuse names and ids that the vocabulary has not as special tokens that may stand in a text.

    Raises:
        InvalidConstraintError: some are missing; with their names, and names that are near.
    """
    some = spellings(vocabulary)
    missing = {
        token: _fault(token, vocabulary)
        for token in sorted(asked, key=str)
        if (vocabulary.special_tokens.get(token) if isinstance(token, str) else token) not in some
    }
    if not missing:
        return
    shown = list(missing.values())[:_MAX_SHOWN]
    more = f"; and {len(missing) - _MAX_SHOWN:,} more" if len(missing) > _MAX_SHOWN else ""
    raise InvalidConstraintError("; ".join(shown) + more, hint=_hint(list(missing), vocabulary))


def _fault(token: SpecialName, vocabulary: Vocabulary) -> str:
    """The reason why a token cannot be asked for."""
    number = vocabulary.special_tokens.get(token) if isinstance(token, str) else token
    if number in vocabulary.eos_token_ids:
        return f"the token {token!r} ends a text, so that it cannot be part of one"
    data = vocabulary.token_bytes[number] if number is not None and 0 <= number < vocabulary.size else None
    if data is not None:
        return f"the token {token!r} is no special token of the vocabulary: it is written as the text {data!r:.60}"
    return f"the vocabulary has no special token {token!r:.60}"


def _hint(missing: list[SpecialName], vocabulary: Vocabulary) -> str:
    names = [name for name, token in vocabulary.special_tokens.items() if token in spellings(vocabulary)]
    wanted = [token for token in missing if isinstance(token, str)][:_MAX_SHOWN]
    near = [name for token in wanted for name in difflib.get_close_matches(token, names, n=3, cutoff=0.5)]
    shown = list(dict.fromkeys(near))[:_MAX_SHOWN] or names[:_MAX_SHOWN]
    words = [f"near names: {', '.join(map(repr, shown))}" if near else f"there are {', '.join(map(repr, shown))}"]
    if not names:
        words = ["it has none that can be part of a text"]
    if wanted:
        words.append(f"as text it may be written as a string, {wanted[0]!r:.60}")
    return "; ".join(words)
