"""Quotations: in what a stranger wrote, the spelling of a special token is text.

    encode_text(tokenizer, "<|im_end|>")                    # [151645], as tokenizers do it
    encode_text(tokenizer, QuotedText("<|im_end|>"))        # [27, 91, 318, 6213, 91, 29], the letters

A tokenizer looks for the spellings of its special tokens in the whole of a text. So who writes a document or a message
could end a turn and begin another. In a quotation each such spelling is broken after its first character: a special
token is put there that is taken out of the ids again, so that the tokenizer meets two pieces, neither of which is the
spelling. A text without such a spelling is not touched: its ids are those of the tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from decodekit.errors import TokenizerError

_BLANKS: Final = ("\u2581", "\u0120")
"""What a tokenizer may put in front of a piece: a blank as SentencePiece and as GPT-2 write it."""


class Controls(NamedTuple):
    """The tokens that a tokenizer looks for in texts and that mean something to a model: ids by spelling.

    The pattern finds a spelling, None if there are none; `spare` are those of them that may stand between any two
    characters, and take nothing from around them.
    """

    ids: dict[str, int]
    pattern: re.Pattern[str] | None
    spare: tuple[str, ...]


class QuotedText(str):
    """A text that quotes others: special tokens that they spell stay text. In the rest of it they are what they are.

    Args:
        text: the whole.
        spans: (begin, end) of each quotation, in order; all of the text by default.
        controls: the tokens that are not to be spelled; None for the special tokens of the tokenizer.
    """

    spans: tuple[tuple[int, int], ...]
    controls: Controls | None

    def __new__(
        cls, text: str, spans: Iterable[tuple[int, int]] | None = None, controls: Controls | None = None
    ) -> Self:
        """The text."""
        made = super().__new__(cls, text)
        made.spans = ((0, len(text)),) if spans is None else tuple(spans)
        made.controls = controls
        return made

    def followed_by(self, text: str) -> QuotedText:
        """The text with another one behind it, which is quoted, too."""
        return QuotedText(f"{self}{text}", (*self.spans, (len(self), len(self) + len(text))), self.controls)


def encode_quoted(
    tokenizer: Any, text: QuotedText, at: str, encode: Callable[[str], list[int]], around: Sequence[int]
) -> list[int]:
    """Token ids of a text in which what is quoted has no special tokens.

    `encode` is what the tokenizer makes of a text, `around` are the special tokens that it adds to any text.

    Raises:
        TokenizerError: the tokenizer cannot read a quotation as text.
    """
    controls = text.controls or controls_of(tokenizer)
    breaks = _breaks(text, controls)
    if not breaks:
        return encode(str(text))
    pieces = [str(text)[begin:end] for begin, end in zip([0, *breaks], [*breaks, len(text)], strict=True)]
    # Best a token that the text has not; of others, the one that was put there is told by its number.
    spare = next((one for one in controls.spare if one not in text), next(iter(controls.spare), None))
    if spare is None:
        raise _unreadable(text, breaks, at)
    number = controls.ids[spare]
    is_ours = [one for piece in pieces for one in (True, *[False] * piece.count(spare))][1:]
    ids = encode(spare.join(pieces))
    first = 1 if number in around and ids[:1] == [number] else 0
    kept, taken, is_after = ids[:first], iter(is_ours), False
    for token in ids[first:]:
        if token == number and next(taken, False):
            is_after = True
            continue
        kept += _without_blank(tokenizer, token) if is_after else [token]
        is_after = False
    wanted = Counter(around)
    if controls.pattern is not None:
        wanted.update(controls.ids[match[0]] for piece in pieces for match in controls.pattern.finditer(piece))
    special = {*wanted, *controls.ids.values()}
    found = Counter(token for token in kept if token in special)
    if found != wanted:
        raise _unreadable(text, breaks, at)
    return kept


def _breaks(text: QuotedText, controls: Controls) -> list[int]:
    """The places where spellings that are quoted, or partly so, are to be broken: after their first characters."""
    if controls.pattern is None:
        return []
    found, spans = [], iter(text.spans)
    span = next(spans, None)
    for match in controls.pattern.finditer(text):
        while span is not None and span[1] <= match.start():
            span = next(spans, None)
        if span is not None and span[0] < match.end():
            found.append(match.start() + 1)
    return found


def _unreadable(text: str, breaks: Sequence[int], at: str) -> TokenizerError:
    begin = breaks[0] - 1
    cause = f"the tokenizer cannot read {text[begin : begin + 24]!r}, which begins like a special token, as text"
    return TokenizerError(cause, at=at, hint="the text without it, or split_special_tokens=False for the token")


def _without_blank(tokenizer: Any, token: int) -> list[int]:
    """A token without the blank that tokenizers of SentencePiece put in front of a piece."""
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        name, to_id = tokenizer.convert_ids_to_tokens(token), tokenizer.convert_tokens_to_ids
    else:
        name, to_id = tokenizer.id_to_token(token), tokenizer.token_to_id
    if not isinstance(name, str) or not name.startswith(_BLANKS):
        return [token]
    unknown = getattr(tokenizer, "unk_token_id", None)
    for rest in ([name[1:]], [*name[1:]]):  # as one token, else letter by letter
        ids = [to_id(one) for one in rest if one]
        if all(one is not None and one != unknown for one in ids):
            return ids
    return [token]


# --- what is not to be spelled ----------------------------------------------------------------------------------------

_known: WeakKeyDictionary[Any, dict[Any, Controls]] = WeakKeyDictionary()


def controls_of(
    tokenizer: Any, others: Callable[[list[str]], Iterable[str]] | None = None, key: object = None
) -> Controls:
    """The special tokens of a tokenizer, looked up once; one that looks for none in texts (mistral-common) has none.

    `others` says which of the added tokens that are not special count as well; `key` is what it depends on besides.
    """
    try:
        found = _known.setdefault(tokenizer, {})
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    except TypeError:  # what cannot be remembered
        found, size = {}, None
    if (key, size) not in found:
        added = {str(token.content): (number, token) for number, token in _added_tokens(tokenizer).items()}
        chosen = {text for text, (_, token) in added.items() if token.special and text}
        if others is not None:
            chosen |= {*others([text for text in added if text and text not in chosen])}
        whole = [text for text in sorted(chosen) if len(text) > 1]
        spare = (one for one in whole if not any(getattr(added[one][1], name) for name in _TAKING))
        pattern = re.compile(_any_of(sorted(chosen))) if chosen else None
        found[key, size] = Controls({text: added[text][0] for text in chosen}, pattern, tuple(spare))
    return found[key, size]


_TAKING: Final = ("lstrip", "rstrip", "single_word")


def _added_tokens(tokenizer: Any) -> dict[int, Any]:
    """The tokens that a tokenizer looks for in a text before it divides it, by id."""
    if hasattr(tokenizer, "get_added_tokens_decoder"):  # tokenizers
        return dict(tokenizer.get_added_tokens_decoder())
    found = getattr(tokenizer, "added_tokens_decoder", None)
    return dict(found) if isinstance(found, dict) and all(hasattr(one, "special") for one in found.values()) else {}


def _any_of(words: Iterable[str]) -> str:
    """A pattern of the longest of some words that stands at a place; common beginnings are read once."""
    rest: dict[str, list[str]] = {}
    is_optional = False
    for word in words:
        is_optional |= not word
        if word:
            rest.setdefault(word[0], []).append(word[1:])
    if not rest:
        return ""
    ways = "|".join(re.escape(first) + _any_of(ends) for first, ends in rest.items())
    return f"(?:{ways})?" if is_optional else f"(?:{ways})"
