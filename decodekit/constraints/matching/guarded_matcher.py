"""The matcher of a constraint with a guard: a grammar matcher that asks the guard wherever a text may end.

A guard with a reader (`EarlyGuard`) is asked before that, at every token that may complete something that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from decodekit.constraints.constraint import (
    Guard,
    GuardReader,
    Refusal,
    WorkingGuard,
    WorkingReader,
    judging_of,
    reader_of,
)
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import forbid, ids_from_bitmask
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.successors import token_bytes_of
from decodekit.constraints.explain.explanation import Explanation, as_bytes, explain_refusal
from decodekit.constraints.matching.brackets import Nesting, completing_tokens_of
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.constraints.matching.wrapped_matcher import WrappedMatcher
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.special import is_text, spellings
from decodekit.constraints.work_budget import SLICE, STEPS, Work, charge, check, done, noted
from decodekit.errors import DecodekitError, ResourceLimitError
from decodekit.vocabulary import Vocabulary

MAX_STEPS: Final = 10_000_000
"""So many steps may be made to judge what one text could become, and `STEPS_OF_A_BYTE` more for each of its bytes. A
step is about a microsecond; a long value is judged in some 20 steps a byte. Work is not given back by `rollback`."""
STEPS_OF_A_BYTE: Final = 100
MAX_VERDICTS: Final = 4096
"""Verdicts and sets of ending tokens that the matchers of one grammar remember, each."""
MAX_VERDICT_BYTES: Final = 1 << 24
"""Bytes of the texts of these verdicts."""
_STEPS_OF_MASKS: Final = 4
"""So many of these steps take as long as one with which masks and states are counted (see `work_budget`)."""

_Answer = TypeVar("_Answer")


class GuardAnswer(NamedTuple):
    """The answer of a guard to a text: why it is refused, the guard's error, or None; and its steps."""

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
        self.is_of_compounds = isinstance(guard, WorkingGuard) and guard.is_of_compounds
        self._is_loaded = False

    def load(self) -> None:
        """Sort the tokens of the vocabulary by how they end a text, once: no mask should take as long."""
        if self._is_loaded:
            return
        reader = self.reader()
        if not self.is_of_compounds:
            token_bytes_of(self.vocabulary)
        if self.is_of_compounds or (reader is not None and not isinstance(reader.watch, bool)):
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


class GuardedMatcher(WrappedMatcher):
    """The matcher of a grammar with a guard. See `Matcher` for what the methods promise.

    The guard is asked about a text in two places: where an end-of-sequence token would end it, and where a token makes
    it whole and nothing can follow. Both are answered before the token is accepted, so that a finished text is one that
    the guard accepts. The reader of a guard is asked about every token: one that it refuses is not accepted either.

    Judgements are counted: a text for which too many steps are made fails (`MAX_STEPS`), it alone. A fork begins with
    the count of its original, and nothing is given back, so a text that costs too much fails wherever it goes.

    The guard sees special tokens by their names (`Matcher.token_texts`), as `Constraint.parse` does.
    """

    __slots__ = (
        "_begun", "_ends", "_num_steps", "_paid", "_places", "_reader", "_text", "_verdicts", "inner",
    )  # fmt: skip

    inner: GrammarMatcher
    has_guard = True

    def __init__(self, inner: GrammarMatcher, verdicts: Verdicts) -> None:
        self.inner = inner
        self._verdicts = verdicts
        self._text = bytearray()
        self._ends = [0]  # length of the text before the first token and after each one
        self._places = [Nesting()]  # the same moments, for a guard of JSON arrays and objects
        self._reader = verdicts.reader()
        self._num_steps = 0  # of judgements of whole texts, whoever made them first
        self._paid: bytes | None = None  # the last of these texts
        self._begun: tuple[bytes, int, Work[object]] | None = None  # the work for a token after a text

    @property
    def text(self) -> bytes:
        """The text that the guard sees: the bytes of the tokens so far, special tokens by name."""
        return bytes(self._text)

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here: the language and the guard accept it."""
        return self.inner.is_accepting and self._judged(self.text) is None

    @property
    def is_complete(self) -> bool:
        """Whether the text is whole and nothing can follow. The guard is asked last: a text may often end."""
        return self.inner.is_accepting and not self.can_continue and self.is_accepting

    @property
    def num_guard_steps(self) -> int:
        """The steps of all judgements for this text so far; see `MAX_STEPS`."""
        return self._num_steps + (self._reader.num_steps if isinstance(self._reader, WorkingReader) else 0)

    @property
    def can_continue(self) -> bool:
        """Whether some token that is not an end-of-sequence token is allowed."""
        if not self.inner.can_continue:
            return False
        num_asked = len(self._closers())
        if self._reader is None and self.inner.num_continuing > num_asked:
            return True
        refused = self.refusals()
        return self.inner.num_continuing > len(refused.keys() - self._verdicts.vocabulary.eos_token_ids)

    def fill_bitmask(self, out: Int32Array, row: int = 0, exact: bool = True) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]."""
        self.inner.fill_bitmask(out, row)
        if exact:
            for token in self.refusals():
                forbid(out[row], token)

    def refusal(self, token: int) -> Refusal | None:
        """The guard's refusal of the text that `token` ends, or of all that begin with it; None if it refuses none."""
        refusal = self._at_end(token)
        if refusal is None and self.inner.after(self.inner.state, token) is not None:
            refusal = self._early(self.token_texts[token] or b"")
        return refusal

    def _at_end(self, token: int) -> Refusal | None:
        """The guard's refusal of the text that `token` ends; None if it accepts it, or `token` does not end it."""
        whole = self._ended_by(token)
        return None if whole is None else self._judged(whole)

    def _ended_by(self, token: int) -> bytes | None:
        """The whole text that `token` ends; None if it does not end it, or is not allowed."""
        if token in self._verdicts.vocabulary.eos_token_ids:
            return self.text if self.inner.is_accepting else None
        target = self.inner.after(self.inner.state, token)
        if target is None or self.inner.recogniser.states.configurations[target]:
            return None
        return self.text + (self.token_texts[token] or b"")

    def _judged(self, text: bytes) -> Refusal | None:
        """The guard's refusal of a whole text; None if it accepts it."""
        verdict = done(self._whole(text))
        if isinstance(verdict.found, DecodekitError):
            raise verdict.found.with_traceback(None)
        return verdict.found

    def _whole(self, text: bytes) -> Work[GuardAnswer]:
        """The guard's answer to a whole text; for the text of the last answer, its steps do not count again."""
        verdict = self._verdicts.of(text)
        if text != self._paid:
            self._check()
        if verdict is None:
            verdict = yield from self._checked(self._verdicts.judging(text))
        elif text != self._paid:
            self._num_steps += verdict.num_steps
            self._check()
        self._paid = text
        return verdict

    def _beginning(self, data: bytes) -> Work[None]:
        """The judgements that the reader of the guard needs before it goes on with the bytes of a token."""
        if isinstance(self._reader, WorkingReader):
            self._check()
            yield from self._checked(self._reader.judging(data), is_counted=True)

    def _checked(self, work: Work[_Answer], is_counted: bool = False) -> Work[_Answer]:
        """Work that fails where it is too much for the text; `is_counted`: by who does it."""

        def note(num_steps: int) -> None:
            self._num_steps += 0 if is_counted else num_steps
            self._check()
            charge(num_steps // _STEPS_OF_MASKS)
            check()

        return noted(work, note)

    def _check(self) -> None:
        """Refuse to judge more than a text may cost."""
        most = MAX_STEPS + STEPS_OF_A_BYTE * len(self._text)
        if self.num_guard_steps > most:
            raise ResourceLimitError(
                f"judging the values of one text takes more than {most:,} steps",
                at=f"byte {len(self._text)} of the text",
                hint='a schema that leaves less to be judged: simpler patterns, fewer "anyOf" and "uniqueItems", '
                '"maxItems" and "maxLength"',
            )

    def refusals(self, is_early: bool = True) -> dict[int, Refusal]:
        """The tokens that are refused, with the reason; without `is_early` those only with which the text ends."""
        found = self._early_refusals() if is_early else {}
        ending = self.ending_tokens()
        return found | {token: refusal for token in ending if (refusal := self.refusal(token)) is not None}

    def ending_tokens(self) -> list[int]:
        """The tokens that the language allows and with which the text ends: the guard is asked about each."""
        ending = list(self._closers()) if self.inner.recogniser.states.configurations[self.inner.state] else []
        return [*ending, *self._verdicts.vocabulary.eos_token_ids] if self.inner.is_accepting else ending

    def _early(self, data: bytes) -> Refusal | None:
        """The refusal of all texts that go on with some bytes; None if some may be accepted."""
        reader = self._reader
        if reader is None:
            return None
        done(self._beginning(data))
        refusal = reader.read(data)
        if refusal is None:
            reader.rollback(1)
            return None
        return replace(refusal, is_early=True)

    def _early_refusals(self) -> dict[int, Refusal]:
        """The tokens that the reader of the guard refuses."""
        watch = False if self._reader is None else self._reader.watch
        if watch is False or not self.inner.recogniser.states.configurations[self.inner.state]:
            return {}
        vocabulary = self._verdicts.vocabulary
        allowed = self.inner.mask
        if watch is True:
            tokens = (token for token in ids_from_bitmask(allowed).tolist() if token not in vocabulary.eos_token_ids)
            return {token: why for token in tokens if (why := self._early(self.token_texts[token] or b"")) is not None}
        groups = completing_tokens_of(vocabulary).at(watch, allowed)
        verdicts = ((tokens, self._early(data)) for data, tokens in groups.items())
        return {token: why for tokens, why in verdicts if why is not None for token in tokens}

    def _closers(self) -> Sequence[int]:
        """The tokens after which the text is whole, so that the guard has to be asked, and a few more perhaps."""
        verdicts = self._verdicts
        if not verdicts.is_of_compounds:
            return verdicts.closers[self.inner.state]
        if not self.inner.recogniser.states.configurations[self.inner.state]:
            return ()
        groups = completing_tokens_of(verdicts.vocabulary).at(self._places[-1].end, self.inner.mask)
        return sorted(chain.from_iterable(groups.values()))

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Whether the text after `token` can become one of the language with so many tokens more.

        With no tokens left the text ends there, and the guard has to accept it; its reader in any case.
        """
        if not self.inner.can_end_within(num_tokens, token, left_out):
            return False
        data = self.token_texts[token] or b""
        return (num_tokens > 0 or self._judged(self.text + data) is None) and self._early(data) is None

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        """Do a part of the work of `fill_bitmask`, or of `accept` for a token; whether it needs no more.

        The guard is asked about a token, too: `refusal` and `accept` know what it says then.
        """
        if not self.inner.prepare(num_things, token):
            return False
        if token is None or not 0 <= token < len(self.token_texts):
            return True
        if self._begun is None or self._begun[:2] != (self.text, token):
            self._begun = self.text, token, self._judging(token)
        left = min(num_things, SLICE) * STEPS  # all of it is kept, so slices need not grow
        try:
            while left > 0:
                left -= next(self._begun[2])
            return False
        except (StopIteration, DecodekitError):  # the question itself raises the error
            pass
        except BaseException:
            self._begun = None
            raise
        self._begun = None
        return True

    def _judging(self, token: int) -> Work[None]:
        """The judgements of the guard and its reader that a token needs."""
        whole = self._ended_by(token)
        if whole is not None:
            yield from self._whole(whole)
        is_end = token in self._verdicts.vocabulary.eos_token_ids
        if not is_end and self.inner.after(self.inner.state, token) is not None:
            yield from self._beginning(self.token_texts[token] or b"")

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""
        if not 0 <= token < len(self._verdicts.vocabulary.token_bytes) or self._at_end(token) is not None:
            return False
        if not self.inner.accept(token):
            return False
        data = self.token_texts[token] or b""
        if self._reader is not None:
            try:
                done(self._beginning(data))
                is_refused = self._reader.read(data) is not None
            except BaseException:
                self.inner.rollback(1)
                raise
            if is_refused:
                self.inner.rollback(1)
                return False
        self._text += data
        self._ends.append(len(self._text))
        if self._verdicts.is_of_compounds:
            self._places.append(self._places[-1].after(data))
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that could be accepted one after the other; changes nothing."""
        num_accepted = next((count for count, token in enumerate(tokens) if not self.accept(token)), len(tokens))
        self.rollback(num_accepted)
        return num_accepted

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        self.inner.rollback(num_tokens)
        if self._reader is not None:
            self._reader.rollback(num_tokens)
        del self._ends[self.inner.num_tokens + 1 :]
        del self._places[self.inner.num_tokens + 1 :]
        del self._text[self._ends[-1] :]

    def fork(self) -> GuardedMatcher:
        """An independent matcher in the same state."""
        twin = copy(self)
        twin.inner, twin._reader = self.inner.fork(), None if self._reader is None else self._reader.fork()
        twin._text, twin._ends, twin._places = self._text.copy(), self._ends.copy(), self._places.copy()
        twin._paid = twin._begun = None
        return twin

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one that the language allows, up to one that the guard refuses.

        A token that is the only one because the guard refuses all others is not seen to be forced, nor is one that
        takes long to be judged.
        """
        num_forced, begun = 0, self.num_guard_steps
        forced = self.inner.forced_tokens()
        for token in forced:
            is_much = self.num_guard_steps - begun > SLICE * STEPS or not self.prepare(SLICE, token)
            if is_much or not self.accept(token):
                break
            num_forced += 1
        self.rollback(num_forced)
        return forced[:num_forced]

    def explain(self, asked: int | str | bytes) -> Explanation:
        """Whether a token or a text may come next, and why not; a guard is asked as far as it can tell."""
        explanation = self.inner.explain(asked)
        if not explanation.is_allowed:
            return explanation
        if isinstance(asked, int):
            refusal, size = self.refusal(asked), len(self._verdicts.vocabulary.token_bytes[asked] or b"")
            return explanation if refusal is None else explain_refusal(refusal, max(0, size - 1))
        data = as_bytes(asked)
        state = self.inner.recogniser.read(self.inner.state, data)
        ends = state is not None and not self.inner.recogniser.states.configurations[state]
        refusal = self._judged(self.text + data) if ends else None
        position = max(0, len(asked) - 1)
        if refusal is None:
            refusal, num_read = self._early_within(data)
            position = num_read if isinstance(asked, bytes) else len(data[:num_read].decode("utf-8", "ignore"))
        return explanation if refusal is None else explain_refusal(refusal, position)

    def _early_within(self, data: bytes) -> tuple[Refusal | None, int]:
        """The refusal of all texts that go on with some bytes, and the number of bytes behind which that is known."""
        refusal, num_read = None, 0
        if self._reader is not None:
            for number in range(len(data)):
                refusal = self._reader.read(data[number : number + 1])
                if refusal is not None:
                    break
                num_read += 1
            self._reader.rollback(num_read)
        return None if refusal is None else replace(refusal, is_early=True), num_read
