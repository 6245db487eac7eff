"""Texts of a model that knows nothing: any token that the mask admits, over tools as people have them.

    tools       set_alarm(label: str, volume: number, days: list of str, repeat: bool = ...), set(...), ...
    text        Ok;;<tool_call>{"name": "set", "arguments": {"label": "]] voor"}}</tool_call>

Now and then it takes the next token of the shortest end, or its texts would be as long as their bounds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Set
from functools import cache
from typing import Any, Final

from decodekit.constraints import CompiledGrammar, compile
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.special import with_names
from decodekit.constraints.tool_calls import ToolFormat, Tools, tools
from decodekit.constraints.tool_calls.format import ElementArguments
from decodekit.vocabulary import Vocabulary

JsonObject = dict[str, Any]

_NAMES: Final = ("get", "get_weather", "get_weather_today", "search", "set_alarm", "send-mail", "add2", "Book")
_KEYS: Final = ("city", "query", "q", "max_results", "when", "body", "options", "tags", "is_public", "name", "type")
_STRING: Final[JsonObject] = {"type": "string", "maxLength": 24}
_KINDS: Final[tuple[JsonObject, ...]] = (
    _STRING,
    _STRING,
    {"type": "string", "enum": ["celsius", "a b", "it's", '"', "ü"]},
    {"anyOf": [_STRING, {"type": "null"}], "default": None},
    {"type": ["string", "null"], "maxLength": 8},
    {"type": ["string", "integer"], "maxLength": 8},
    {"description": "Anything.", "maxLength": 24, "maxItems": 2, "maxProperties": 2},
    {"type": "integer"},
    {"type": "integer", "minimum": -5, "maximum": 500},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "array", "items": _STRING, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    {
        "type": "object",
        "properties": {"low": {"type": "number"}, "note": _STRING, "on": {"type": "boolean"}},
        "required": ["low"],
        "additionalProperties": False,
    },
)


def everyday_tools(rng: random.Random, are_names_words: bool = False) -> list[JsonObject]:
    """Three tools, as OpenAI's requests have them; the name of one may begin as that of another."""
    names = [name for name in _NAMES if not are_names_words or name.isidentifier()]
    return [_tool(name, rng) for name in rng.sample(names, 3)]


def _tool(name: str, rng: random.Random) -> JsonObject:
    keys = rng.sample(_KEYS, rng.choice((0, 1, 2, 2, 3, 4)))
    parameters = {
        "type": "object",
        "properties": {key: rng.choice(_KINDS) for key in keys},
        "required": [key for key in keys if rng.random() < 0.6],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}


class RandomModel:
    """Draws texts of a format over a vocabulary.

    Args:
        tokenize: a text as tokens.
        favourites: tokens that it takes every other time, where they may be.
    """

    def __init__(self, vocabulary: Vocabulary, tokenize: Any, favourites: Set[int] = frozenset()) -> None:
        self._vocabulary, self._tokenize, self._favourites = vocabulary, tokenize, favourites
        self._bitmask = allocate_bitmask(1, vocabulary.size)
        self._plain = [token for token, data in enumerate(vocabulary.token_bytes) if data and len(data) < 6]

    def texts(
        self, format: ToolFormat, num_calls: int, rng: random.Random, are_names_words: bool = False
    ) -> Iterator[tuple[str, Tools, list[JsonObject]]]:
        """Texts until so many calls are drawn; each with its constraint and the tools that it was drawn for."""
        num_drawn = num_of_these = 0
        given: list[JsonObject] = []
        constraint: Tools | None = None
        while num_drawn < num_calls:
            if constraint is None or num_of_these >= 25:
                given, num_of_these = everyday_tools(rng, are_names_words), 0
                constraint = tools(given, format, rng.choice(("required", "auto")))
            text = self._text(compile(constraint, self._vocabulary), constraint, rng)
            num_new = len(constraint.parse(text).calls)
            assert num_new, text
            num_drawn, num_of_these = num_drawn + num_new, num_of_these + num_new
            yield text, constraint, given

    def _text(self, grammar: CompiledGrammar, constraint: Tools, rng: random.Random) -> str:
        matcher, form = grammar.matcher(), constraint.format
        if constraint.choice == "auto":
            content = "" if form.is_alone else self._content(form, rng)
            framed = f"{form.content_begin}{content}{form.content_end}{form.joint}" if content else ""
            begin = framed + (form.opening + str(form.call[0]) if isinstance(form.call[0], str) else form.opening)
            for token in self._tokenize(begin.rstrip('{"')):
                if not matcher.accept(token):
                    break
        eos = [*self._vocabulary.eos_token_ids]
        while not matcher.is_terminated:
            self._bitmask[:] = 0
            matcher.fill_bitmask(self._bitmask)
            allowed = ids_from_bitmask(self._bitmask[0])
            shortest = matcher.completion() if rng.random() < 0.3 else ()
            if shortest:
                token = shortest[0]
            elif matcher.is_accepting and (rng.random() < 0.6 or len(allowed) == len(eos)):
                token = eos[0]
            else:
                some = [token for token in allowed if token in self._favourites] if rng.random() < 0.5 else []
                token = int(rng.choice(some or allowed))
            assert matcher.accept(token)
        return with_names(bytes(matcher.text)).decode()

    def _content(self, form: ToolFormat, rng: random.Random) -> str:
        """Some tokens of text, without what begins calls."""
        data = self._vocabulary.decode(rng.choices(self._plain, k=rng.randrange(6)))
        text = data.decode(errors="ignore")
        marks = [*form.triggers, form.opener, "<", "[", "{", ">", "`", "|"]
        return "" if any(mark and mark in text for mark in marks) else text


@cache
def small_model() -> RandomModel:
    """Over the tokenizer of the bundled model."""
    import decodekit as dk

    tokenizer = dk.LLM.load("tiny").tokenizer
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return RandomModel(vocabulary, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])


@cache
def real_model(name: str) -> RandomModel:
    """Over a tokenizer of the corpus."""
    from tests.chat.corpus import _load_tokenizer

    tokenizer = _load_tokenizer(name)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return RandomModel(vocabulary, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])


@cache
def marked_model(format: ToolFormat) -> RandomModel:
    """Over bytes and the texts of a format, the marks of which it likes best."""
    texts = [format.opening, format.separator, format.closing, format.joint, format.end]
    texts += [piece for piece in format.pieces if isinstance(piece, str)]
    form = format.arguments
    if isinstance(form, ElementArguments):
        texts += [form.begin, form.middle, form.end, form.separator, form.values.text, form.middle_of_others or ""]
    words = {word for text in texts for word in (text, text.strip(), *text.split()) if len(word.encode()) > 1}
    pieces = [word.encode() for word in sorted({*words, "ab", "é", "\u2028", "\n\n", "null", "12"})]
    vocabulary = Vocabulary([*(bytes((byte,)) for byte in range(256)), None, *pieces], [256])

    def tokenize(text: str) -> list[int]:
        return [*text.encode()]

    return RandomModel(vocabulary, tokenize, {*range(257, vocabulary.size)})
