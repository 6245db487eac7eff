"""The constraint of each request of a server: what a request asks for, and where its text stands.

vLLM and SGLang run many requests at a time, each with a text of its own that they alone extend. A request names its
constraint by the key ``decodekit`` of its extra arguments: a JSON Schema, a response format, or the name of a grammar::

    SamplingParams(extra_args={"decodekit": {"type": "object", ...}})              # vLLM, in Python
    {"vllm_xargs": {"decodekit": "{\\"type\\": \\"object\\"}"}}                        # vLLM's server: JSON as text
    {"custom_params": {"decodekit": {"type": "object", ...}}}                      # SGLang
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from decodekit.errors import DecodekitError, OptionError
from decodekit.integrations.prefix_matchers import PrefixMatchers
from decodekit.integrations.processor import grammar_of, words_for
from decodekit.sampling import apply_bitmask
from decodekit.vocabulary import Vocabulary

KEY: Final = "decodekit"
"""Of the extra arguments of a request."""


def constraint_in(arguments: object, default: object = None) -> object:
    """The constraint that the extra arguments of a request ask for; `default` if they do not.

    A text that begins with a brace is JSON: extra arguments of an HTTP request are often texts and numbers alone.

    Raises:
        OptionError: the text is no JSON.
    """
    given = arguments.get(KEY) if isinstance(arguments, Mapping) else None
    if given is None:
        return default
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            return json.loads(given)
        except ValueError as error:
            raise OptionError(f"the constraint of the request is no JSON: {error}", at=KEY) from error
    return given


_vocabularies: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, read once: that takes about as long as reading its file."""
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    found = _vocabularies.get(tokenizer)
    if found is None:
        found = _vocabularies[tokenizer] = Vocabulary.from_tokenizer(tokenizer)
    return found


class EngineRequest:
    """One request: its constraint, and the tokens of its text, which the engine extends.

    Args:
        constraint: as `LLM.generate` takes it.
        tokenizer: of the model, or a `Vocabulary`.
        text: the list that the engine appends to, without the prompt.
    """

    __slots__ = ("_matchers", "text")

    def __init__(self, constraint: object, tokenizer: Any, text: Sequence[int]) -> None:
        self._matchers = PrefixMatchers(grammar_of(constraint, vocabulary_of(tokenizer)))
        self.text = text

    def mask(self, row: Tensor) -> None:
        """Set the logits of what may not follow to -inf, in place.

        Args:
            row: [V], on any device.

        Raises:
            OptionError: the engine has tokens in the text that it does not know yet.
            VocabularyMismatchError: the logits are narrower than the tokenizer.
            DeadEndError: a text may not end, and no token is allowed.
        """
        if any(token < 0 for token in self.text[-8:]):
            cause = "the text of the request has places that are not filled yet"
            raise OptionError(cause, at="output token ids", hint="asynchronous scheduling off")
        words = words_for(self._matchers, [self.text], row.shape[-1], [0])
        row.copy_(apply_bitmask(row[None], torch.from_numpy(words).to(row.device))[0])


def check_request(arguments: object, default: object, tokenizer: Any) -> None:
    """Raise ValueError, as engines want it, if the constraint of a request cannot be used."""
    try:
        constraint = constraint_in(arguments, default)
        if constraint is not None and tokenizer is not None:
            grammar_of(constraint, vocabulary_of(tokenizer))
    except DecodekitError as error:
        raise ValueError(str(error)) from error
