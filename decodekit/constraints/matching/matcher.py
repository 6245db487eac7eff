"""The state of one sequence in its constraint: which tokens may follow, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, runtime_checkable

from decodekit.constraints.completion.budgeted_completion import BudgetedCompletion
from decodekit.constraints.constraint import Refusal
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.successors import read_as, successor
from decodekit.constraints.engine.token_masks import Masks
from decodekit.constraints.explain.explanation import Explanation, explain_end, explain_special, explain_text
from decodekit.constraints.special import is_text, spellings
from decodekit.constraints.work_budget import finished
from decodekit.errors import ConstraintError, OptionError
from decodekit.vocabulary import Vocabulary

MAX_FORCED: Final = 1024
"""`forced_tokens` returns so many at most, and `forced_text` so many bytes; a language may force without end."""

_BLANKS: Final = frozenset(b" \n\t\r")
_OTHER_SPELLINGS: Final = _BLANKS | frozenset(b"\\")


@runtime_checkable
class Matcher(Protocol):
    """The state of one sequence under a constraint. Not shared between threads; `fork` makes another.

    Laws: `accept(t)` succeeds exactly when the mask has bit t. `accept` then `rollback(1)` leaves every mask as it was.
    A fork and its original do not influence each other. Equal texts have equal masks, whatever their tokens. The mask
    has the end-of-sequence tokens (all of them) exactly when `is_accepting`, and is empty once `is_terminated`.

    With a guard (`has_guard`) these hold for the exact mask. ``fill_bitmask(exact=False)`` may allow more: tokens with
    which the text ends and the guard refuses it, or after which no text is accepted (`Refusal.is_early`). For exactly
    these `refusal` gives a reason.
    """

    @property
    def has_guard(self) -> bool:
        """Whether tokens of an inexact mask may be refused."""

    @property
    def token_texts(self) -> Sequence[bytes | None]:
        """The text of each token: its bytes; of a special token its name; None for one that adds nothing."""

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""

    @property
    def can_continue(self) -> bool:
        """Whether some token that is not an end-of-sequence token is allowed."""

    def fill_bitmask(self, out: Int32Array, row: int = 0, exact: bool = True) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]; without `exact`, the guard is not asked."""

    def refusal(self, token: int) -> Refusal | None:
        """The guard's refusal of the text that `token`, of the inexact mask, ends, or of all that begin with it."""

    def refusals(self, is_early: bool = True) -> dict[int, Refusal]:
        """All tokens of the inexact mask that the guard refuses, with the reason.

        Args:
            is_early: with those that do not end the text.
        """

    def completion(self, left_out: frozenset[int] = NONE) -> tuple[int, ...]:
        """Few tokens with which the text becomes whole, none of the end of the text among them; no guard is asked.

        A function of the text and `left_out` alone, tokens that it must not have; how few: see `shortest_completions`.

        Raises:
            ConstraintError: no completion was found within bounds, or the vocabulary has none.
        """

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Whether `token` is allowed and the `completion` of the text after it has at most so many tokens.

        With no tokens left the guard is asked, too: the text ends there. Nor is a token allowed that it refuses early.
        """

    def fill_ending(self, out: Int32Array, num_tokens: int, left_out: frozenset[int] = NONE) -> None:
        """Write the tokens for which `can_end_within` holds into ``out``, int32 [words], without trying each.

        The guard is not asked, and the mask may have a few tokens more or less where what may follow depends on all of
        a text that is remembered; see the module `budgeted_completion`.
        """

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        """Do a part of the work of `fill_bitmask`, or of `accept` for a token; whether it needs no more.

        What a state needs that is met for the first time is made a slice at a time, of at most so many new things each
        (see the module `work_budget`), so that other rows need not wait for it. A slice whose work fails needs no more:
        the call that it prepares says why. Nothing else changes. A guard is not asked.
        """

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""

    def validate(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that could be accepted one after the other; changes nothing."""

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens.

        Raises:
            ValueError: fewer were accepted, or a negative number.
        """

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one allowed; changes nothing.

        No end-of-sequence token is among them, and the run ends where the text may end. At most `MAX_FORCED` tokens.
        """

    def forced_text(self, gaps: Mapping[int, bytes] | None = None) -> bytes:
        """The run of bytes each of which is the only one that may follow; changes nothing.

        It ends where the text may end, and has at most `MAX_FORCED` bytes. It may be shorter than it could be, never
        wrong. A guard is not asked.

        Args:
            gaps: guess beyond what is forced, for a draft: blanks and escapes are not a choice. Where besides one byte
                only blanks or a backslash may follow, the byte is taken, after the blanks that `gaps` has for the byte
                before (none if it has no entry).
        """

    def explain(self, asked: int | str | bytes) -> Explanation:
        """Whether a token, or a text of any number of tokens, may come next, and why not; changes nothing.

        Law: a token is allowed exactly when `validate` says so. Far slower than a mask.
        """


class GrammarMatcher:
    """The matcher of a compiled grammar. See `Matcher` for what the methods promise."""

    __slots__ = ("_in_time", "_masks", "_path", "_token_bytes", "_tokens", "_vocabulary", "recogniser", "token_texts")

    has_guard = False
    token_texts: Sequence[bytes | None]
    """The text of each token: its bytes; of a special token its name; None for one that adds nothing."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        token_texts: Sequence[bytes | None],
        recogniser: Recogniser,
        masks: Masks,
        in_time: BudgetedCompletion,
    ) -> None:
        self.token_texts = token_texts
        self._vocabulary = vocabulary
        self._token_bytes = vocabulary.token_bytes
        self.recogniser = recogniser
        self._masks = masks
        self._in_time = in_time
        self._path = [recogniser.root]  # the state before the first token and after each one; states are immutable
        self._tokens: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""
        return len(self._path) - 1

    @property
    def state(self) -> State:
        """The state after the tokens so far."""
        return self._path[-1]

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here; False once it has."""
        return self.recogniser.states.is_accepting(self._path[-1])

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""
        return self._path[-1] == self.recogniser.ended

    @property
    def can_continue(self) -> bool:
        """Whether some token that is not an end-of-sequence token is allowed."""
        return self._masks.goes_on(self._path[-1]) or self.num_continuing > 0

    @property
    def num_continuing(self) -> int:
        """The number of allowed tokens that are not end-of-sequence tokens."""
        state = self._path[-1]
        if not self.recogniser.states.configurations[state]:
            return 0
        num_eos = len(self._vocabulary.eos_token_ids) if self.is_accepting else 0
        return self._masks.num_allowed(state) - num_eos

    @property
    def mask(self) -> Int32Array:
        """The allowed tokens, int32 [words]; not to be written to."""
        return self._masks.mask(self._path[-1])

    def refusal(self, token: int) -> Refusal | None:
        """None: there is no guard."""
        return None

    def refusals(self, is_early: bool = True) -> dict[int, Refusal]:
        """None: there is no guard."""
        return {}

    def fill_bitmask(self, out: Int32Array, row: int = 0, exact: bool = True) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]; always exact."""
        out[row] = self._masks.mask(self._path[-1])

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        """Do a part of the work of `fill_bitmask`, or of `accept` for a token; whether it needs no more."""
        try:
            if token is None:
                return self._masks.is_made(self._path[-1], num_things)
            return finished(lambda: self._look_behind(token), num_things)
        except ConstraintError:
            return True

    def _look_behind(self, token: int) -> None:
        """Make what `accept` needs for a token, and what `can_continue` needs then if the text may end there."""
        target = self.after(self._path[-1], token)
        if target is not None and self.recogniser.states.is_accepting(target) and not self._masks.goes_on(target):
            self._masks.mask(target)

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""
        target = self.after(self._path[-1], token)
        if target is None:
            return False
        self._path.append(target)
        self._tokens.append(token)
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that could be accepted one after the other; changes nothing."""
        state: State | None = self._path[-1]
        for count, token in enumerate(tokens):
            assert state is not None
            state = self.after(state, token)
            if state is None:
                return count
        return len(tokens)

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        if not 0 <= num_tokens < len(self._path):
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        if num_tokens:
            del self._path[-num_tokens:], self._tokens[-num_tokens:]

    def fork(self) -> GrammarMatcher:
        """An independent matcher in the same state."""
        twin = GrammarMatcher(self._vocabulary, self.token_texts, self.recogniser, self._masks, self._in_time)
        twin._path, twin._tokens = self._path.copy(), self._tokens.copy()
        return twin

    @property
    def text(self) -> bytes:
        """The bytes of the tokens so far as the engine reads them: special tokens in their spelling (see `special`)."""
        read = partial(read_as, self.recogniser, self._vocabulary)
        return b"".join(map(read, self._path, self._tokens))

    def completion(self, left_out: frozenset[int] = NONE) -> tuple[int, ...]:
        """Few tokens with which the text becomes whole, none of the end of the text among them.

        Raises:
            ResourceLimitError: none was found within bounds.
        """
        if self.is_terminated:
            return ()
        return self._in_time.completion(self._path[-1], left_out)

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Whether `token` is allowed and the `completion` of the text after it has at most so many tokens."""
        return self._in_time.ends_within(num_tokens, self._path[-1], token, left_out)

    def fill_ending(self, out: Int32Array, num_tokens: int, left_out: frozenset[int] = NONE) -> None:
        """Write the tokens for which `can_end_within` holds into ``out``, int32 [words], without trying each."""
        self._in_time.fill(out, num_tokens, self._path[-1], left_out)

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one allowed; changes nothing."""
        state, states = self._path[-1], self.recogniser.states
        forced: list[int] = []
        while not states.is_accepting(state) and len(forced) < MAX_FORCED:
            token = self._masks.only_token(state)
            target = None if token is None else self.after(state, token)
            if token is None or target is None:
                break
            forced.append(token)
            state = target
        return forced

    def explain(self, asked: int | str | bytes) -> Explanation:
        """Whether a token or a text may come next, and why not; changes nothing."""
        text = self.text
        if self.is_terminated:
            return Explanation(False, "refused: the text has ended", 0)
        if not isinstance(asked, int):
            return explain_text(self.recogniser, text, asked)
        if not 0 <= asked < len(self._token_bytes):
            return Explanation(False, f"refused: the vocabulary has no token {asked}", 0)
        data = self._token_bytes[asked]
        if data is not None:
            return explain_text(self.recogniser, text, data)
        if asked in self._vocabulary.eos_token_ids:
            return explain_end(self.recogniser, text)
        return explain_special(self.recogniser, text, spellings(self._vocabulary).get(asked, ()))

    def forced_text(self, gaps: Mapping[int, bytes] | None = None) -> bytes:
        """The run of bytes each of which is the only one that may follow; changes nothing."""
        state, states = self._path[-1], self.recogniser.states
        text = bytearray()
        last = self._token_bytes[self._tokens[-1]] if self._tokens else None
        before = last[-1] if last else -1  # the byte before; none after blanks that were guessed
        while not states.is_accepting(state) and states.configurations[state] and len(text) < MAX_FORCED:
            following = self.recogniser.following_bytes(state)
            if gaps is not None and len(following) > 1:
                blanks = gaps.get(before, b"") if before not in _BLANKS else b""
                following = bytes(byte for byte in following if byte not in _OTHER_SPELLINGS)
                written = self.recogniser.read(state, blanks) if blanks and len(following) == 1 else None
                if written is not None:
                    text += blanks
                    state, before = written, -1
                    continue
            if len(following) != 1 or not is_text(following):
                break
            target = self.recogniser.step(state, following[0])
            if target is None:
                break
            before = following[0]
            text.append(before)
            state = target
        return bytes(text)

    def after(self, state: State, token: int) -> State | None:
        """The state after one more token, or None if it is not allowed."""
        return successor(self.recogniser, self._vocabulary, state, token)


def fill_bitmasks(
    matchers: Sequence[Matcher],
    out: Int32Array,
    rows: Sequence[int] | None = None,
    num_threads: int | None = None,
    exact: bool = True,
) -> None:
    """Write the allowed tokens of each matcher into its row, as its `fill_bitmask` does.

    A mask that is known is a copy of 16 kB (131k tokens), 1.7 microseconds a row with all that Python does around it;
    64 rows took 106 microseconds in a loop and 149 on two threads. A mask that is new is computed under the lock of the
    lexical automaton, which all grammars of a process share, so threads take turns. Without that lock they would hardly
    be faster: half of a mask is Python (``docs/mask-cost.md``). Threads help only where guards wait for something else
    than Python. (Two cores, 2026.)

    Args:
        matchers: of any grammars over vocabularies of one size, no object twice: matchers are not shared by threads.
        out: int32 [rows, words]; other rows stay as they are.
        rows: the row of each matcher, no row twice; 0, 1, 2, … without it.
        num_threads: threads that fill rows at the same time; one without it, which is as fast.
        exact: whether guards are asked, see `Matcher.fill_bitmask`.

    Raises:
        OptionError: a matcher or a row twice, a row outside of `out`, another number of rows than of matchers, or no
            positive number of threads.
    """
    num_rows = len(matchers)
    if rows is None:
        rows = range(num_rows)
    elif len(set(rows)) < len(rows):
        raise OptionError("two matchers have the same row", at="rows", hint="a row of its own for each matcher")
    if len(rows) != num_rows:
        raise OptionError(f"{num_rows} matchers and {len(rows)} rows", at="rows", hint="one row for each matcher")
    if num_rows and (min(rows) < 0 or max(rows) >= len(out)):
        raise OptionError(f"the bitmask has {len(out)} rows", at="rows", hint=f"rows from 0 to {len(out) - 1}")
    if len(set(map(id, matchers))) < num_rows:
        raise OptionError("a matcher has two rows", at="matchers", hint="a fork of it for the second one")
    num_threads = 1 if num_threads is None else min(num_threads, max(num_rows, 1))
    if num_threads < 1:
        raise OptionError(f"{num_threads} threads", at="num_threads", hint="a positive number, or None")
    if num_threads == 1:
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.fill_bitmask(out, row, exact)
        return

    def fill(start: int) -> None:
        for number in range(start, num_rows, num_threads):
            matchers[number].fill_bitmask(out, rows[number], exact)

    with ThreadPoolExecutor(num_threads) as pool:
        for done in [pool.submit(fill, start) for start in range(num_threads)]:
            done.result()
