"""From a constraint and a vocabulary to a grammar whose matchers give masks; compiled grammars are kept.

When the memory limit is passed, the grammars that were used longest ago release their states and masks. A released
grammar stays usable: new matchers rebuild their states, existing matchers keep theirs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, Protocol, runtime_checkable

from decodekit.constraints.completion.budgeted_completion import BudgetedCompletion
from decodekit.constraints.completion.longest import most_bytes
from decodekit.constraints.completion.shortest_completions import Completions
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Automaton, begin_epoch, shared_automaton
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.token_masks import Masks
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher, Verdicts
from decodekit.constraints.matching.matcher import GrammarMatcher, Matcher
from decodekit.constraints.memory_account import Account, has_room, make_room, on_shortage, share
from decodekit.constraints.request_formats import as_constraint
from decodekit.constraints.special import check_special_tokens, token_texts
from decodekit.errors import UnsatisfiableError
from decodekit.vocabulary import Vocabulary

CACHED_GRAMMARS: Final = 64
EPOCH_STATES: Final = 100_000
"""A grammar whose states have grown beyond this starts anew with its next matcher, so that long jobs do not pile up."""
EPOCH_BYTES: Final = 256 << 20
"""The same for its memory, and for that of the automaton; less if the memory limit is low."""

_LEXICAL_STATE_BYTES: Final = 500  # of Python objects, measured as those of states are


class CompiledGrammar:
    """A constraint over a vocabulary. Compiling is lazy: states and masks are made when a matcher reaches them."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary) -> None:
        self.constraint = constraint
        self.vocabulary = vocabulary
        asked = constraint.special_tokens()
        check_special_tokens(asked, vocabulary)
        self._token_texts = token_texts(vocabulary, asked)
        self._root = constraint.root()
        self._guard = constraint.guard()
        self._lock = threading.Lock()
        self._is_started = False
        self._own_account = Account()
        self._own_account.add(constraint.num_bytes)
        self._start()
        check_satisfiable(constraint, self._recogniser)

    @property
    def has_guard(self) -> bool:
        """Whether texts may be refused that the language accepts."""
        return self._guard is not None

    def matcher(self) -> Matcher:
        """A matcher at the start of the text. Matchers of one grammar share what they learn, in any thread.

        The first one of a process loads compiled functions, and sorts the tokens of its vocabulary for a guard.
        """
        with self._lock:
            if not self._is_started or self._has_outgrown():
                self._start()
            self._measure()
            self._masks.load()
            if self._verdicts is not None:
                self._verdicts.load()
            texts, verdicts = self._token_texts, self._verdicts
            inner = GrammarMatcher(self.vocabulary, texts, self._recogniser, self._masks, self._in_time)
            matcher = inner if verdicts is None else GuardedMatcher(inner, verdicts)
        make_room()
        return matcher

    def release(self) -> None:
        """Let go of states and masks; the next matcher starts anew."""
        with self._lock:
            if not self._is_started:
                return
            self._is_started = False
            del self._recogniser, self._masks, self._completions, self._in_time, self._verdicts

    def least_tokens(self, left_out: frozenset[int] = NONE) -> int:
        """The number of tokens that suffice for some text of the language, those of the end of the text not counted.

        The fewest that `shortest_completions` finds; a guard is not asked.

        Args:
            left_out: tokens that the text must not have.

        Raises:
            ResourceLimitError: no text was found within bounds.
        """
        return len(self.matcher().completion(left_out))

    def most_tokens(self) -> int | None:
        """The most tokens of a text of the language, every byte a token; None if there is no bound.

        Raises:
            ResourceLimitError: the search exceeds `longest.MAX_STEPS`.
        """
        return most_bytes(self._root)

    @property
    def num_bytes(self) -> int:
        """About how much memory the states take."""
        return self._recogniser.account.num_bytes if self._is_started else 0

    def _has_outgrown(self) -> bool:
        return self._recogniser.num_states > EPOCH_STATES or self._recogniser.account.num_bytes > share(EPOCH_BYTES, 4)

    def _measure(self) -> None:
        """Account for what has grown since the last time."""
        recogniser = self._recogniser
        recogniser.account.set(recogniser.num_bytes + self._completions.num_bytes + self._in_time.num_bytes)
        _measured(recogniser.automaton)

    def _start(self) -> None:
        automaton = shared_automaton()
        if _measured(automaton) > share(EPOCH_BYTES, 4):
            begin_epoch()
            automaton = shared_automaton()
        self._root.moves()  # what they ask is answered and kept before the lock is taken
        self._recogniser = Recogniser(self._root, automaton)
        self._masks = Masks(self._recogniser, self.vocabulary)
        self._completions = Completions(self._recogniser, self.vocabulary)
        self._in_time = BudgetedCompletion(self._recogniser, self._masks, self._completions, self.vocabulary)
        self._verdicts = None if self._guard is None else Verdicts(self._guard, self._recogniser, self.vocabulary)
        self._is_started = True

    def __repr__(self) -> str:
        return f"CompiledGrammar({self.constraint!r:.200}, {self.vocabulary!r})"


@runtime_checkable
class CompiledElsewhere(Protocol):
    """A constraint that another engine compiles."""

    def compiled(self, vocabulary: Vocabulary) -> CompiledGrammar:
        """Its grammar over a vocabulary.

        Raises:
            ConstraintError: the other engine cannot read the constraint, or refuses it.
        """


def check_satisfiable(constraint: Constraint, recogniser: Recogniser) -> None:
    """Refuse a constraint of which nothing can be read.

    Raises:
        UnsatisfiableError: it has no text.
    """
    root, states = recogniser.root, recogniser.states
    if not states.configurations[root] and not states.is_accepting(root):
        raise UnsatisfiableError("no text satisfies the constraint", at=f"{constraint!r:.200}")


_grammars: OrderedDict[tuple[Constraint, str], CompiledGrammar] = OrderedDict()
_lock = threading.Lock()


def _measured(automaton: Automaton) -> int:
    """Account for what has grown since the last time; returns all of it."""
    automaton.account.set(automaton.num_bytes + automaton.num_states * _LEXICAL_STATE_BYTES)
    return automaton.account.num_bytes


@on_shortage
def _release_grammars() -> None:
    """Let go of grammars, the one that was used longest ago first; of the last one only if it is large itself."""
    with _lock:
        grammars = list(_grammars.items())
    older, latest = grammars[:-1], grammars[-1:]
    for key, grammar in older:
        if has_room():
            return
        with _lock:
            _grammars.pop(key, None)
        grammar.release()
    if has_room():
        return
    begin_epoch()  # the automaton goes with the grammars that used it
    for _, grammar in latest:
        if grammar.num_bytes > share(EPOCH_BYTES, 4):
            grammar.release()


def compile(constraint: object, tokenizer: Any) -> CompiledGrammar:
    """The grammar of a constraint over the vocabulary of a tokenizer; the same object for equal arguments.

    Args:
        constraint: a `Constraint`, or what `as_constraint` takes as one.
        tokenizer: a `Vocabulary`, or a tokenizer. Reading a tokenizer takes about as long as reading its file, so who
            compiles often makes the `Vocabulary` once.

    Raises:
        ConstraintError: the constraint is malformed, not supported, too large or not satisfiable, or asks for special
            tokens that the vocabulary does not have.
        TokenizerError: the tokenizer has no byte map.
    """
    rule = as_constraint(constraint)
    vocabulary = tokenizer if isinstance(tokenizer, Vocabulary) else Vocabulary.from_tokenizer(tokenizer)
    key = (rule, vocabulary.fingerprint)
    with _lock:
        grammar = _grammars.get(key)
        if grammar is not None:
            _grammars.move_to_end(key)
            return grammar
    if isinstance(rule, CompiledElsewhere):
        grammar = rule.compiled(vocabulary)
    else:
        grammar = CompiledGrammar(rule, vocabulary)
    with _lock:
        # Another thread may have been faster; then its grammar is the one that everybody gets.
        grammar = _grammars.setdefault(key, grammar)
        while len(_grammars) > CACHED_GRAMMARS:
            _grammars.popitem(last=False)
    make_room()
    return grammar
