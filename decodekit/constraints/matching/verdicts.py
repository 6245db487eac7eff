"""The verdicts of a grammar's guard, and the tokens that end a text: shared by the matchers of the grammar."""

from __future__ import annotations

from typing import Final, NamedTuple

from decodekit.constraints.constraint import CompoundGuard, Guard, GuardReader, Refusal, judging_of, reader_of
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.successors import token_bytes_of
from decodekit.constraints.matching.brackets import closing_tokens_of, completing_tokens_of
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.special import is_text, spellings
from decodekit.constraints.work_budget import Work, noted
from decodekit.errors import DecodekitError
from decodekit.vocabulary import Vocabulary

MAX_VERDICTS: Final = 4096
"""Verdicts and sets of ending tokens that the matchers of one grammar remember, each."""
MAX_VERDICT_BYTES: Final = 1 << 24
"""Bytes of the texts of these verdicts."""


class GuardAnswer(NamedTuple):
    """The answer of a guard to a text.

    Attributes:
        found: why it is refused, or the error of the guard; None if it is accepted.
        num_steps: of the judgement.
    """

    found: Refusal | DecodekitError | None
    num_steps: int


class Verdicts:
    """The verdicts of a guard by text, and the tokens that end a text by state, for the matchers of one grammar.

    Threads may share one: an entry is written as a whole, and a lost one is asked for again.
    """

    def __init__(self, guard: Guard, recogniser: Recogniser, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._guard = guard
        self._recogniser = recogniser
        self._verdicts: dict[bytes, GuardAnswer] = {}
        self._num_bytes = 0
        self.closers: Memo[State, tuple[int, ...]] = Memo(self._find_closers, MAX_VERDICTS)
        """The tokens, those of the end of a text aside, after which the text is whole and nothing can follow."""
        self.is_of_compounds = isinstance(guard, CompoundGuard)
        self._is_loaded = False

    def load(self) -> None:
        """Sort the tokens of the vocabulary by how they end a text, once: no mask should take as long."""
        if self._is_loaded:
            return
        if self.is_of_compounds:
            closing_tokens_of(self.vocabulary)
        else:
            token_bytes_of(self.vocabulary)
        reader = self.reader()
        if reader is not None and not isinstance(reader.watch, bool):
            completing_tokens_of(self.vocabulary)
        self._is_loaded = True

    def reader(self) -> GuardReader | None:
        """A reader of the guard at the beginning of a text; None if it is asked at the end alone."""
        return reader_of(self._guard)

    def of(self, text: bytes) -> GuardAnswer | None:
        """The guard's answer to a text; None if it was not asked, or the answer is forgotten."""
        return self._verdicts.get(text)

    def judging(self, text: bytes) -> Work[GuardAnswer]:
        """The guard's answer to a text that the language accepts, remembered for `of`."""
        found: Refusal | DecodekitError | None
        steps: list[int] = []
        try:
            found = yield from noted(judging_of(self._guard, text), steps.append)
        except DecodekitError as error:
            found = error
        if len(self._verdicts) >= MAX_VERDICTS or self._num_bytes >= MAX_VERDICT_BYTES:
            self._verdicts.clear()
            self._num_bytes = 0
        self._num_bytes += len(text)
        verdict = self._verdicts[text] = GuardAnswer(found, sum(steps))
        return verdict

    def _find_closers(self, state: State) -> tuple[int, ...]:
        tokens, numbers, states = token_bytes_of(self.vocabulary).after(self._recogniser, state)
        ends = self._recogniser.states.configurations
        final = [number for number, target in enumerate(states) if not ends[target]]
        found = tuple(int(token) for number in final for token in tokens[numbers == number])
        return found + self._special_closers(state)

    def _special_closers(self, state: State) -> tuple[int, ...]:
        """The special tokens among them."""
        recogniser = self._recogniser
        if all(is_text(bytes((byte,))) for byte in recogniser.following_bytes(state)):
            return ()
        targets = {
            token: recogniser.join([recogniser.read(state, way) for way in ways])
            for token, ways in spellings(self.vocabulary).items()
        }
        ends = recogniser.states.configurations
        return tuple(t for t, target in targets.items() if target is not None and not ends[target])
