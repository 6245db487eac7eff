"""The probability of every value of a field, where the field was written: of enums, literals and booleans.

    {"paid": true, "kind": "credit note"}

    /paid   true 0.83, false 0.17       given the document and {"paid":
    /kind   "invoice" 0.2, ...          given the document and {"paid": true, "kind":

The text before a value stays as it was written, and the probabilities are those of the masked model for what may come
then, at temperature 1 whatever the strategy of the job. They are found by a second reading of document and text, which
the fields share. A guard is not asked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.matching.compiler import CompiledElsewhere
from decodekit.decoding.loop.scheduler import run
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.search.choice_trie import ChoiceTrie, Spellings
from decodekit.decoding.search.decision import DecisionSearch
from decodekit.errors import OptionError, ResourceLimitError
from decodekit.jobs.reports.probabilities import value_spans
from decodekit.strategy.options.generate_options import GenerateOptions

if TYPE_CHECKING:
    from decodekit.constraints.engine.configurations import State
    from decodekit.llm import LLM, Completion

MOST_VALUES: Final = 256
"""A field with more values has no probabilities of them; a text with escapes counts in each of its spellings."""

MOST_BYTES: Final = 1024
"""Nor has one with a longer value."""

_MOST_GROUPS: Final = 4
_OF_NUMBERS: Final = frozenset(b"-+.0123456789eE")
_WHITE_SPACE: Final = frozenset(b" \t\r\n")
_WHOLE: Final = re.compile(rb'true|false|null|"(?:[^"\\]|\\.)*"', re.DOTALL)


class _Field(NamedTuple):
    """A field with several values: its place, the values in JSON, the tokens before it, and the spellings."""

    pointer: str
    values: list[str]
    num_tokens: int
    trie: ChoiceTrie


class FieldAlternatives:
    """Finds the probabilities of all values of fields. Raises OptionError if the masks are those of another engine."""

    def __init__(self, llm: LLM, options: Mapping[str, Any]) -> None:
        self._llm = llm
        told = options.get("chat_template_kwargs")
        self._plan = llm.plan(GenerateOptions(constraint=options["constraint"], chat_template_kwargs=told), [])
        assert self._plan.grammar is not None
        constraint = self._plan.grammar.constraint
        if isinstance(constraint, CompiledElsewhere):
            cause = f"the values of a field are not known to {constraint!r:.60}, whose masks another engine makes"
            raise OptionError(cause, at="alternatives", hint="a schema of decodekit")
        self._recogniser = Recogniser(constraint.root(), shared_automaton())

    def of(self, prompt: Any, completion: Completion) -> dict[str, dict[str, float]]:
        """By JSON Pointer of each field with a few values, the probability of each value, in JSON, to 4 digits.

        Nothing is said about a text that failed or came of a further attempt, nor about a field whose values have too
        many spellings.
        """
        if completion.error is not None or completion.attempts or not completion.text:
            return {}
        fields = [*self._fields(completion)]
        if not fields:
            return {}
        tokens = [*self._llm.request(prompt, self._plan).prompt]
        requests = [Request([*tokens, *completion.token_ids[: field.num_tokens]]) for field in fields]
        # One row for each: the next field then begins with what the row has read.
        search = DecisionSearch(self._plan.model, self._plan, lambda sequence: fields[sequence.index].trie)
        found: dict[str, dict[str, float]] = {}
        for update in run(search, self._plan, min(len(requests), _MOST_GROUPS), requests):
            assert update.result is not None
            if isinstance(update.result.error, ResourceLimitError):
                continue
            if update.result.error is not None:
                raise update.result.error
            scores = {one.text: one.result.score for one in (update, *update.result.others) if one.result is not None}
            field = fields[update.index]
            found[field.pointer] = _shares({value: scores[value] or 0.0 for value in field.values})
        return {field.pointer: found[field.pointer] for field in fields if field.pointer in found}

    def _fields(self, completion: Completion) -> Iterator[_Field]:
        assert self._plan.grammar is not None
        vocabulary, matcher = self._plan.vocabulary, self._plan.grammar.matcher()
        text, data = completion.text, completion.text.encode()
        ends = [*accumulate(len(vocabulary.token_bytes[token] or b"") for token in completion.token_ids)]
        if not ends or ends[-1] != len(data):
            return
        state: State | None = self._recogniser.root
        byte = character = num_tokens = 0
        for pointer, start, _ in value_spans(text):
            piece = text[character:start].encode()
            byte, character = byte + len(piece), start
            state = None if state is None else self._recogniser.read(state, piece)
            if state is None:
                return
            values = values_after(self._recogniser, state)
            if len(values) < 2:
                continue
            while num_tokens < len(ends) and ends[num_tokens] <= byte:
                if not matcher.accept(completion.token_ids[num_tokens]):
                    return
                num_tokens += 1
            before = data[ends[num_tokens - 1] if num_tokens else 0 : byte]
            trie = Spellings(values, matcher, vocabulary, before, is_part=True)
            yield _Field(pointer, values, num_tokens, trie)


def values_after(recogniser: Recogniser, state: State) -> list[str]:
    """The scalars of JSON that may come after a state, in JSON; none where there are too many, or other values."""
    found: list[str] = []
    waiting: list[tuple[State, bytes]] = [(state, b"")]
    while waiting:
        place, value = waiting.pop()
        if _WHOLE.fullmatch(value):
            found.append(value.decode())
            continue
        following = recogniser.following_bytes(place)
        if not value:
            if any(byte in b"{[" for byte in following):
                return []
            following = bytes(byte for byte in following if byte not in _WHITE_SPACE)
        elif value[0] in _OF_NUMBERS:
            if recogniser.states.is_accepting(place) or any(byte not in _OF_NUMBERS for byte in following):
                found.append(value.decode())
            following = bytes(byte for byte in following if byte in _OF_NUMBERS)
        waiting += (
            (target, value + bytes((byte,)))
            for byte in reversed(following)
            if (target := recogniser.step(place, byte)) is not None
        )
        if len(found) + len(waiting) > MOST_VALUES or len(value) > MOST_BYTES:
            return []
    return found


def _shares(scores: Mapping[str, float]) -> dict[str, float]:
    """Probabilities by value; what is written in several ways is one value."""
    shares: dict[str, float] = {}
    for text, score in scores.items():
        value = json.dumps(json.loads(text), ensure_ascii=False)
        shares[value] = shares.get(value, 0.0) + math.exp(score)
    return {value: float(f"{share:.4g}") for value, share in shares.items()}
