"""The matcher of a constraint with a guard: a grammar matcher that asks the guard wherever a text may end.

A guard with a reader (`EarlyGuard`) is asked before that, at every token that may complete something that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from decodekit.constraints.constraint import GuardReader, Refusal, WorkingReader
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import forbid, ids_from_bitmask
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.explain.explanation import Explanation, as_bytes, explain_refusal
from decodekit.constraints.matching.brackets import Nesting, closing_tokens_of, completing_tokens_of
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.constraints.matching.verdicts import GuardAnswer, Verdicts
from decodekit.constraints.matching.wrapped_matcher import WrappedMatcher
from decodekit.constraints.work_budget import SLICE, STEPS, Work, charge, check, done, noted
from decodekit.errors import DecodekitError, ResourceLimitError

MAX_STEPS: Final = 10_000_000
"""So many steps may be made to judge what one text could become, and `STEPS_OF_A_BYTE` more for each of its bytes. A
step is about a microsecond; a long value is judged in some 20 steps a byte. Work is not given back by `rollback`."""
STEPS_OF_A_BYTE: Final = 100
_STEPS_OF_MASKS: Final = 4
"""So many of these steps take as long as one with which masks and states are counted (see `work_budget`)."""

_Answer = TypeVar("_Answer")


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

    def __init__(
        self,
        inner: GrammarMatcher,
        verdicts: Verdicts,
        text: bytes = b"",
        ends: Sequence[int] = (0,),
        places: Sequence[Nesting] = (Nesting(),),
        reader: GuardReader | None = None,
        num_steps: int = 0,
    ) -> None:
        self.inner = inner
        self._verdicts = verdicts
        self._text = bytearray(text)
        self._ends = list(ends)  # length of the text before the first token and after each one
        self._places = list(places)  # the same moments, for a guard of JSON arrays and objects
        self._reader = reader
        self._num_steps = num_steps  # of judgements of whole texts, whoever made them first
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
        """The guard's refusal of a whole text; None if it accepts it.

        Raises:
            ResourceLimitError: judging what this text could become takes too many steps.
        """
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
        """The tokens after which the text is whole, so that the guard has to be asked."""
        verdicts = self._verdicts
        if not verdicts.is_of_compounds:
            return verdicts.closers[self.inner.state]
        closing = closing_tokens_of(verdicts.vocabulary).get(self._places[-1], ())
        return [token for token in closing if self.inner.allows(token)]

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
        reader, inner = None if self._reader is None else self._reader.fork(), self.inner.fork()
        return GuardedMatcher(inner, self._verdicts, self.text, self._ends, self._places, reader, self._num_steps)

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
