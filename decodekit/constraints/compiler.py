"""From a constraint and a vocabulary to a grammar whose matchers give masks; compiled grammars are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

from decodekit.constraints.automaton import shared_automaton
from decodekit.constraints.closing import Completions
from decodekit.constraints.constraint import Constraint, as_constraint
from decodekit.constraints.guarded_matcher import GuardedMatcher, Verdicts
from decodekit.constraints.masks import Masks
from decodekit.constraints.matcher import GrammarMatcher, Matcher
from decodekit.constraints.unfolding import Unfolding
from decodekit.errors import UnsatisfiableError
from decodekit.vocabulary import Vocabulary

CACHED_GRAMMARS: Final = 64
EPOCH_STATES: Final = 100_000
"""A grammar whose states have grown beyond this starts anew with its next matcher, so that long jobs do not pile up."""


class CompiledGrammar:
    """A constraint over a vocabulary. Compiling is lazy: states and masks are made when a matcher reaches them."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary) -> None:
        self.constraint = constraint
        self.vocabulary = vocabulary
        self._root = constraint.root()
        self._guard = constraint.guard()
        self._lock = threading.Lock()
        self._start()
        if not self._unfolding.root.configurations and not self._unfolding.root.is_accepting:
            raise UnsatisfiableError("no text satisfies the constraint", at=f"{constraint!r:.200}")

    @property
    def has_guard(self) -> bool:
        """Whether texts may be refused at their end."""
        return self._guard is not None

    def matcher(self) -> Matcher:
        """A matcher at the start of the text. Matchers of one grammar share what they learn, in any thread."""
        with self._lock:
            if self._unfolding.num_states > EPOCH_STATES:
                self._start()
            matcher = GrammarMatcher(
                self.vocabulary, self._unfolding, self._masks, self._completions, [self._unfolding.root], []
            )
            return matcher if self._verdicts is None else GuardedMatcher(matcher, self._verdicts)

    def least_tokens(self) -> int:
        """How many tokens suffice for some text of the language, those of the end of the text not counted.

        The fewest that `closing` finds; a guard is not asked.

        Raises:
            ResourceLimitError: no text was found within bounds.
        """
        return len(self.matcher().completion())

    def _start(self) -> None:
        self._unfolding = Unfolding(self._root, shared_automaton())
        self._masks = Masks(self._unfolding, self.vocabulary)
        self._completions = Completions(self._root, self._unfolding, self.vocabulary)
        self._verdicts = None if self._guard is None else Verdicts(self._guard, self._unfolding, self.vocabulary)

    def __repr__(self) -> str:
        return f"CompiledGrammar({self.constraint!r:.200}, {self.vocabulary!r})"


_grammars: OrderedDict[tuple[Constraint, str], CompiledGrammar] = OrderedDict()
_lock = threading.Lock()


def compile(constraint: object, tokenizer: Any) -> CompiledGrammar:
    """The grammar of a constraint over the vocabulary of a tokenizer; the same object for equal arguments.

    Args:
        constraint: a `Constraint`, or what `as_constraint` takes as one.
        tokenizer: a `Vocabulary`, or a tokenizer. Reading a tokenizer takes about as long as reading its file, so who
            compiles often makes the `Vocabulary` once.

    Raises:
        ConstraintError: the constraint is malformed, not supported, too large or not satisfiable.
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
    grammar = CompiledGrammar(rule, vocabulary)
    with _lock:
        # Another thread may have been faster; then its grammar is the one that everybody gets.
        grammar = _grammars.setdefault(key, grammar)
        while len(_grammars) > CACHED_GRAMMARS:
            _grammars.popitem(last=False)
    return grammar
