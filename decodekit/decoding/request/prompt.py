"""From a prompt to token ids, by the tokenizer's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, TypeAlias, TypeGuard

from torch import Tensor

from decodekit.chat.conversation import NO_ARGUMENTS, TemplateArguments
from decodekit.errors import OptionError
from decodekit.models.encoding import encode_plain as encode_plain
from decodekit.models.encoding import encode_text
from decodekit.quoting import QuotedText
from decodekit.sampling.checks import plain

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation: dictionaries with ``role`` and ``content``, and whatever else the chat template reads."""

TokenIds: TypeAlias = Sequence[int] | Tensor | Mapping[str, Any]
"""A prompt that is in tokens: ids in a list or in a tensor of one dimension, or what a tokenizer returns.

That is a mapping with ``input_ids`` and, where there is padding, ``attention_mask``: tokens with a 0 are left out on
either side. The tokens are taken as they are; no special token is added. With a second dimension it holds a prompt in
every row, and counts as a list of prompts wherever prompts are given, even with one row.
"""

Prompt: TypeAlias = str | Messages | TokenIds

_KINDS: Final = "a text, a list of messages, or token ids"
_EXAMPLES: Final = '"some text", [{"role": "user", "content": "some text"}], or tokenizer("some text")'
_WITHOUT_MEANING: Final = frozenset({"token_type_ids", "special_tokens_mask", "offset_mapping", "length"})
"""What tokenizers return besides, and what no causal model reads."""


def is_messages(prompt: object) -> TypeGuard[Messages]:
    """Whether this is a conversation rather than a list of prompts."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) and "input_ids" not in message for message in prompt)
    )


def is_single(prompts: object) -> bool:
    """Whether this is one prompt, or something that can be taken for one and refused by name; not several."""
    if isinstance(prompts, Mapping):
        return _num_dimensions(prompts.get("input_ids")) != 2
    return (
        not isinstance(prompts, Iterable)
        or isinstance(prompts, str | bytes)
        or is_messages(prompts)
        or _num_dimensions(prompts) == 1
        or getattr(prompts, "ndim", 1) == 0
    )


def in_lists(prompts: Any) -> Any:
    """Prompts for a value that is compared, printed and written: token ids in lists, all else as it is."""
    if isinstance(prompts, Mapping) or (hasattr(prompts, "ndim") and _num_dimensions(prompts)):
        rows = each_prompt(prompts)
        return token_ids_of(rows[0], "prompt") if is_single(prompts) else rows
    if isinstance(prompts, list | tuple) and not is_single(prompts):
        return [in_lists(prompt) for prompt in prompts]
    return prompts


def each_prompt(prompts: Any) -> list[Any]:
    """The prompts of a call, of one or several; `OptionError` if what a tokenizer returned contradicts itself."""
    if is_single(prompts):
        return [prompts]
    if isinstance(prompts, Mapping):
        return [*_rows(prompts, "prompts")]
    if hasattr(prompts, "ndim") and _num_dimensions(prompts) == 2:
        return [*_rows({"input_ids": prompts}, "prompts")]
    return [*prompts]


def check_prompt(prompt: object, at: str, vocab_size: int | None = None) -> None:
    """Raise the `OptionError` of something that is not a prompt; see `token_ids_of`."""
    if not isinstance(prompt, str) and not is_messages(prompt):
        token_ids_of(prompt, at, vocab_size)


def token_ids_of(prompt: Any, at: str, vocab_size: int | None = None) -> list[int]:
    """The tokens of a prompt that is in tokens.

    Args:
        prompt: see `TokenIds`.
        at: the place to name in errors.
        vocab_size: how many ids there are, if they are to be checked.

    Raises:
        OptionError: it is no such prompt, or holds several; or an id is none.
    """
    if isinstance(prompt, Mapping):
        _check_mapping(prompt, at)
        rows = _rows(prompt, at)
    elif isinstance(prompt, list | tuple) and not prompt:
        return []  # a prompt that was all padding
    elif isinstance(prompt, str | bytes) or _num_dimensions(prompt) is None:
        shape = f" of {prompt.dtype} {[*prompt.shape]}" if isinstance(prompt, Tensor) else f": {prompt!r:.40}"
        raise OptionError(f"a prompt is {_KINDS}, not {type(prompt).__name__}{shape}", at=at, hint=_EXAMPLES)
    else:
        rows = _rows({"input_ids": prompt}, at)
    if len(rows) != 1:
        raise OptionError(f"{len(rows)} rows of token ids are given as one prompt", at=at, hint="a prompt for each row")
    ids = rows[0]
    for place, token in enumerate(ids if vocab_size is not None else ()):
        if not 0 <= token < (vocab_size or 0):
            raise OptionError(
                f"token id {token} is outside the vocabulary of {vocab_size:,} ids",
                at=f"{at}, token {place} of {len(ids)}",
                hint="ids of this model's own tokenizer",
            )
    return ids


def _check_mapping(mapping: Mapping[str, Any], at: str) -> None:
    """Refuse a mapping that is not an output of a tokenizer, or has what would be left out in silence."""
    names = [str(name) for name in mapping]
    if "input_ids" not in mapping:
        if "role" in mapping and "content" in mapping:
            raise OptionError(
                "one message is no conversation",
                at=at,
                hint=f"did you mean a list with this message? [{dict(mapping)!r:.60}]",
            )
        raise OptionError(
            f"a prompt is {_KINDS}, not a mapping of {', '.join(names) or 'nothing'}", at=at, hint=_EXAMPLES
        )
    unknown = [name for name in names if name not in {"input_ids", "attention_mask", *_WITHOUT_MEANING}]
    if unknown:
        raise OptionError(f"{', '.join(unknown)} beside input_ids cannot be read", at=at, hint="text alone")


def _rows(mapping: Mapping[str, Any], at: str) -> list[list[int]]:
    """The tokens of each row of what a tokenizer returned, without padding; one row where there is one dimension."""
    _check_mapping(mapping, at)
    given, masks = mapping["input_ids"], mapping.get("attention_mask")
    rows = _nested(given, "input_ids", at)
    if masks is None:
        if hasattr(given, "ndim") and len(rows) > 1:
            raise OptionError(
                f"which of the tokens are padding cannot be told: there are {len(rows)} rows and no attention_mask",
                at=at,
                hint="all that the tokenizer returns, or list(input_ids) if there is no padding",
            )
        return rows
    kept = _nested(_without_bools(masks), "attention_mask", at)
    if [len(row) for row in rows] != [len(row) for row in kept]:
        raise OptionError("input_ids and attention_mask have other shapes", at=at, hint="both from one call")
    several = len(rows) > 1
    return [
        _without_padding(row, mask, f"{at}, row {number}" if several else at)
        for number, (row, mask) in enumerate(zip(rows, kept, strict=True))
    ]


def _without_padding(row: list[int], mask: list[int], at: str) -> list[int]:
    places = [place for place, is_read in enumerate(mask) if is_read]
    if not places:
        return []
    first, last = places[0], places[-1]
    if len(places) != last - first + 1 or not set(mask) <= {0, 1}:
        hole = next((place for place in range(first, last) if mask[place] != 1), last)
        raise OptionError(
            f"attention_mask is {mask[hole]} at place {hole}, inside the prompt",
            at=at,
            hint="zeros at either end, where padding stands, and ones between",
        )
    return row[first : last + 1]


def _nested(value: Any, name: str, at: str) -> list[list[int]]:
    """Integers in a list for each row."""
    num_dimensions = _num_dimensions(value)
    listed = plain(value)
    if num_dimensions == 1 or (isinstance(listed, list | tuple) and not listed):
        return [[int(one) for one in listed]]
    if num_dimensions == 2:
        return [[int(one) for one in plain(row)] for row in listed]
    raise OptionError(f"{name} does not hold token ids: {value!r:.60}", at=at, hint="integers, in one row or several")


def _num_dimensions(value: Any) -> int | None:
    """1 for integers one after the other, 2 for rows of them, at least one; None for anything else."""
    if hasattr(value, "ndim") and hasattr(value, "tolist"):
        is_whole = str(value.dtype).rpartition(".")[2].startswith(("int", "uint"))
        return value.ndim if is_whole and value.ndim in (1, 2) else None
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        return None
    if all(isinstance(one, Integral) and not isinstance(one, bool) for one in value):
        return 1
    if all(not isinstance(row, str | Mapping) and _is_row(row) for row in value):
        return 2
    return None


def _is_row(row: Any) -> bool:
    if hasattr(row, "ndim"):
        return _num_dimensions(row) == 1
    return isinstance(row, Sequence) and all(isinstance(one, Integral) and not isinstance(one, bool) for one in row)


def _without_bools(mask: Any) -> Any:
    given = plain(mask)
    if isinstance(given, list | tuple):
        return [_without_bools(one) for one in given]
    return int(given) if isinstance(given, bool) else given


def encode(
    tokenizer: Any,
    prompt: Prompt,
    at: str,
    vocab_size: int | None = None,
    chat: TemplateArguments | None = None,
    check: Callable[[str, str], None] | None = None,
) -> list[int]:
    """Token ids of a prompt.

    A text gets the special tokens that the tokenizer adds by default, but no second beginning-of-sequence token; those
    that it spells are special, too, unless it is a `QuotedText`, or `chat` says otherwise.
    Messages go through the chat template, which writes its special tokens itself, with the generation prompt at the
    end. Token ids are taken as they are.

    Args:
        tokenizer: of the model.
        prompt: a text, messages or token ids.
        at: the place to name in errors.
        vocab_size: how many ids there are, if they are to be checked.
        chat: what the chat template is told beside the messages.
        check: is given a text and its place before the text is divided into tokens, and raises what it likes.

    Raises:
        OptionError: the prompt is none of these, not valid Unicode, or has an id that is not a token.
        ChatTemplateError: the tokenizer has no chat template, or the template refuses the messages.
        TokenizerError: the tokenizer offers no way to encode a text.
    """
    if isinstance(prompt, str):
        text: str = prompt
        if chat is not None and chat.split_special_tokens is not None:
            text = QuotedText(prompt) if chat.split_special_tokens else str(prompt)
    elif is_messages(prompt):
        written = (chat or NO_ARGUMENTS).written(tokenizer, prompt, at)
        if not isinstance(written, str):
            return written
        text = written
    else:
        return token_ids_of(prompt, at, vocab_size)
    if check is not None:
        check(text, at)
    return encode_text(tokenizer, text, at, add_special_tokens=isinstance(prompt, str))
