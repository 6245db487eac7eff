"""The constraint of each request of a server: what a request asks for, and where its text stands.

vLLM and SGLang run many requests at a time, each with a text of its own that they alone extend. A request names its
constraint by the key ``decodekit`` of its extra arguments: a JSON Schema, a response format, or the name of a grammar::

    SamplingParams(extra_args={"decodekit": {"type": "object", ...}})              # vLLM, in Python
    {"vllm_xargs": {"decodekit": "{\\"type\\": \\"object\\"}"}}                        # vLLM's server: JSON as text
    {"custom_params": {"decodekit": {"type": "object", ...}}}                      # SGLang

Requests are those of strangers, and an exception in a processor ends such a server for everybody. So a request names no
installed package, which would be imported, and a constraint that cannot be used or outgrows a bound ends its own text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from decodekit.chat.tools import in_format_of, waits
from decodekit.constraints import as_constraint
from decodekit.constraints.grammar import library
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import (
    ChatTemplateError,
    ConstraintError,
    DecodekitError,
    DecodingError,
    OptionError,
    UnknownNameError,
)
from decodekit.integrations.mask_processor import grammar_of, words_for
from decodekit.integrations.prefix_matchers import PrefixMatchers
from decodekit.sampling import apply_bitmask
from decodekit.terminal import one_line
from decodekit.vocabulary import Vocabulary

KEY: Final = "decodekit"
"""Of the extra arguments of a request."""

MAX_CHARACTERS: Final = 1 << 18
"""Of a constraint that a request writes as a text."""

_log = logging.getLogger(__name__)


def constraint_in(arguments: object, default: object = None) -> object:
    """The constraint that the extra arguments of a request ask for; `default` if they do not.

    A text that begins with a brace is JSON: extra arguments of an HTTP request are often texts and numbers alone. Any
    other is the name of a grammar of the library, never of a constraint that a package has installed.
    """
    given = arguments.get(KEY) if isinstance(arguments, Mapping) else None
    if not isinstance(given, str):
        return default if given is None else given
    if len(given) > MAX_CHARACTERS:
        cause = f"the constraint of the request has {len(given):,} characters, and may have {MAX_CHARACTERS:,}"
        raise OptionError(cause, at=KEY, hint="a smaller schema, or one for all requests as `constraint` of the class")
    if given.lstrip().startswith("{"):
        try:
            return json.loads(given)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"the constraint of the request is no JSON: {error}", at=KEY) from error
    if given not in (names := library.names()):
        hint = f"a JSON Schema, or one of {', '.join(names)}"
        raise OptionError(f"{given!r:.60} is no grammar of the library", at=KEY, hint=hint)
    return given


def is_asked(arguments: object, default: object = None) -> bool:
    """Whether a request has a constraint, of its own or by default."""
    return default is not None or (isinstance(arguments, Mapping) and arguments.get(KEY) is not None)


_vocabularies: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, read once: that takes about as long as reading its file."""
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = Vocabulary.from_tokenizer(tokenizer)
    return _vocabularies[tokenizer]


class EngineRequest:
    """One request: its constraint, and the tokens of its text without the prompt, which the engine extends.

    `default` is the constraint of requests that name none. `error` is why the text had to end: the constraint cannot
    be used, has outgrown a bound, or allows nothing more.
    """

    __slots__ = ("_matchers", "_vocabulary", "error", "text")

    def __init__(self, arguments: object, default: object, tokenizer: Any, text: Sequence[int]) -> None:
        self._vocabulary, self.text = vocabulary_of(tokenizer), text
        self._matchers: PrefixMatchers | None = None
        self.error: DecodekitError | None = None
        try:
            self._matchers = PrefixMatchers(_grammar(constraint_in(arguments, default), tokenizer))
        except (ChatTemplateError, ConstraintError, OptionError, UnknownNameError) as error:
            self._end(error)

    def mask(self, row: Tensor) -> None:
        """Set the logits [V] of what may not follow to -inf, in place: all but the end of the text after an `error`."""
        if self._matchers is not None:
            if any(token < 0 for token in self.text[-8:]):
                cause = "the text of the request has places that are not filled yet"
                raise OptionError(cause, at="output token ids", hint="asynchronous scheduling off")
            try:
                words = words_for(self._matchers, [self.text], row.shape[-1], [0])
                row.copy_(apply_bitmask(row[None], torch.from_numpy(words).to(row.device))[0])
                return
            except (ConstraintError, DecodingError) as error:
                self._end(error)
        ends = [token for token in self._vocabulary.eos_token_ids if token < row.shape[-1]]
        kept = row[ends].clone()
        if ends:  # without an end there is none to give, and a row that allows nothing ends the engine
            row.fill_(-torch.inf)
            row[ends] = torch.where(torch.isfinite(kept), kept, torch.zeros_like(kept))

    def _end(self, error: DecodekitError) -> None:
        """From now on the text may only end: an engine has no other way to end a request from inside."""
        self.error, self._matchers = error, None
        _log.warning("the text of a request is ended: %s", one_line(error))


def _grammar(constraint: object, tokenizer: Any) -> CompiledGrammar:
    if constraint is not None:
        constraint = in_format_of(as_constraint(constraint), tokenizer)
    return grammar_of(constraint, vocabulary_of(tokenizer))


def check_request(arguments: object, default: object, tokenizer: Any) -> None:
    """Raise ValueError, as engines want it, if the constraint of a request cannot be used.

    Without a tokenizer, what is looked at is the constraint alone.
    """
    try:
        constraint = constraint_in(arguments, default)
        if constraint is not None and tokenizer is not None:
            _grammar(constraint, tokenizer)
        elif constraint is not None and not waits(read := as_constraint(constraint)):
            read.root()
    except DecodekitError as error:
        raise ValueError(str(error)) from error
