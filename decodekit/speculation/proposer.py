"""Proposers: a proposer looks at the texts of a batch and guesses how each goes on.

A draft is a guess, never a decision: `verification` keeps of it what the target takes by itself. So a proposer may be
wrong, slow or silent, and the text stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from decodekit.errors import DecodekitError, OptionError, ProposerError, out_of_domain

if TYPE_CHECKING:
    from torch import Tensor

    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.models.causal_lm import CausalLM
    from decodekit.speculation.proposers.canonical import Canonical
    from decodekit.speculation.verification import Verify
    from decodekit.vocabulary import Vocabulary

Memory: TypeAlias = dict[Any, Any]
Tokens: TypeAlias = list[int | None]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Tokens that may follow a text.

    Args:
        tokens: k of them, in order; none where there is no guess.
        probabilities: float32 [k, V], the distribution that each token was drawn from, given the tokens before it; None
            for tokens that were chosen and not drawn, each with probability 1.
        source: who of several proposers offers it, for the statistics; a `Chain` says it.
        match: how many tokens of the text the guess goes on from, where it was found by a match; 0 if nothing is told.
    """

    tokens: Sequence[int] = ()
    probabilities: Tensor | None = None
    source: str = ""
    match: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, num_tokens: int) -> Draft:
        """The first `num_tokens` of it."""
        if num_tokens >= len(self.tokens):
            return self
        probabilities = None if self.probabilities is None else self.probabilities[:num_tokens]
        return Draft(self.tokens[:num_tokens], probabilities, self.source, self.match)


class Target(Protocol):
    """The target's way of taking tokens, for proposers that have logits of their own."""

    @property
    def model(self) -> CausalLM | None:
        """The target itself, for proposers that run a part of it; None if it is not known."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of its tokens."""

    @property
    def verify(self) -> Verify:
        """The verification of drafts: "rejection" asks for tokens that `draw` drew, with their probabilities."""

    def take(self, rows: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> list[int | None]:
        """The tokens that the target would take if these logits were its own: its processors, its mask, its noise.

        Args:
            rows: [R], `Context.row` of each place.
            drafts: [R], the tokens between the row's own text and the place, `Context.guessed` first.
            logits: [R, V]. None is taken where none is left.
        """

    def draw(self, rows: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor) -> tuple[Tokens, Tensor]:
        """Tokens drawn by its processors and its mask, with noise that it does not use itself, and their distributions.

        As `take`, with float32 [R, V], the probabilities, beside the tokens.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """One row of a batch as proposers see it.

    Args:
        prompt, text: tokens; the text so far is in a list that grows on with the row. It may be shorter than at the
            call before: a guard takes texts back.
        matcher: the constraint's state after the text, not to be changed; None in free text.
        canonical: how the tokenizer divides a text; None if it is not known.
        memory: what proposers keep for this row from call to call, each under a key of its own.
        target: how the target takes its tokens, the same for all contexts of a call; None if it is not known.
        row: which of its rows this is.
        ahead_of: the context of the row itself, where `text` is its text and a guess after it; see `ahead`.
    """

    prompt: Sequence[int]
    text: Sequence[int]
    matcher: Matcher | None = None
    canonical: Canonical | None = None
    memory: Memory = field(default_factory=dict)
    target: Target | None = None
    row: int = 0
    ahead_of: Context | None = None

    @property
    def root(self) -> Context:
        """The context of the row itself: no part of its text is a guess."""
        return self.ahead_of or self

    @property
    def guessed(self) -> Sequence[int]:
        """The part of `text` that is a guess; mostly none."""
        return self.text[len(self.root.text) :] if self.ahead_of else ()

    def num_legal(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that the constraint allows; none where it fails."""
        if self.matcher is None:
            return len(tokens)
        try:
            return self.matcher.validate(tokens)
        except DecodekitError:  # the row will meet the error by itself, if it ever comes there
            return 0

    def ahead(self, tokens: Sequence[int]) -> Context | None:
        """The context that the row will have if its text goes on with `tokens`; None if the constraint refuses them.

        A proposer that learns from texts, or keeps the list of one, takes them from `root`: a guess may never come.
        """
        matcher = None if self.matcher is None else self.matcher.fork()
        try:
            if matcher is not None and not all(matcher.accept(token) for token in tokens):
                return None
        except DecodekitError:  # the row will meet the error by itself, if it ever comes there
            return None
        return replace(self, text=[*self.text, *tokens], matcher=matcher, ahead_of=self.root)


@runtime_checkable
class Proposer(Protocol):
    """Guesses ahead, for all rows of a batch at once, since a model that drafts runs them in one pass.

    A value that several batches may share. What a row needs from call to call is kept in its `Context.memory`, so rows
    may advance unequally, come and go.

    Laws, which `testing.check_proposer` checks: one draft per context, of token ids of the target, none longer than its
    limit; contexts are not changed, but for their memory; rows come, go and are left out in any order, and their texts
    are taken back; it can be pickled.

    It may be asked ahead of what others have guessed (`Joined`): then `text` ends in tokens that may never come, and
    `Context.root` has the text that did. One that cannot draft for every target is a `ChecksTarget`, too.
    """

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """A draft for every context, with at most `limits[i]` tokens (0 or more); an empty one where there is no
        guess.
        """


@runtime_checkable
class ChecksTarget(Protocol):
    """A proposer that is asked, before anything is decoded, whether it can draft for a target."""

    def check_target(self, model: CausalLM, vocabulary: Vocabulary, *, is_greedy: bool) -> None:
        """Raise the `DecodekitError` that says why not, for a target and its tokens; loads what is needed for drafts.

        `is_greedy`: whether the target takes the likeliest token.
        """


def asked(proposer: Proposer, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
    """The drafts of a proposer; a `ProposerError` unless there is one for every context, of tokens of the target."""
    drafts: Any = proposer.propose(contexts, limits)
    if not isinstance(drafts, Sequence) or len(drafts) != len(contexts):
        count = f"{len(drafts)} drafts" if isinstance(drafts, Sequence) else f"a {type(drafts).__name__}"
        raise _no_draft(proposer, f"gave {count} for {len(contexts)} texts")
    for context, draft in zip(contexts, drafts, strict=True):
        if not isinstance(draft, Draft):
            raise _no_draft(proposer, f"gave a {type(draft).__name__} in place of a Draft")
        size = None if context.target is None else context.target.vocabulary.size
        tokens: Sequence[Any] = draft.tokens
        if {*map(type, tokens)} <= {int}:  # nearly always
            most = max(tokens, default=0)
            if min(tokens, default=0) >= 0 and (size is None or most < size):
                continue
        for place, token in enumerate(tokens):
            number = None if isinstance(token, bool) or not isinstance(token, Integral) else int(token)
            if number is None:
                raise _no_draft(proposer, f"gave {token!r:.40} in place of a token id", place)
            if number < 0 or (size is not None and number >= size):
                known = "" if size is None else f", which is outside the vocabulary of {size:,} ids"
                raise _no_draft(proposer, f"gave the token id {token}{known}", place)
    return [*drafts]


def _no_draft(proposer: Proposer, what: str, place: int | None = None) -> ProposerError:
    at = f"speculate={proposer!r:.60}" + ("" if place is None else f", token {place} of a draft")
    hint = "token ids of the target; decodekit.testing.check_proposer tries a proposer"
    return ProposerError(f"the proposer {type(proposer).__name__} {what}", at=at, hint=hint)


def source_names(proposers: Sequence[Proposer]) -> list[str]:
    """The name of each in statistics: its class, or that of the only one inside; a second one has a number."""
    leaves = [each_proposer(proposer) for proposer in proposers]
    names = [
        type(inner[0] if len(inner) == 1 else outer).__name__ for inner, outer in zip(leaves, proposers, strict=True)
    ]
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if count == 1 else f"{name} {count}" for name, count in zip(names, counts, strict=True)]


Speculate: TypeAlias = "str | Proposer | Sequence[str | Proposer] | None"
"""Proposers as an option takes them: a name (see `names`), a value, or several to try in order."""


def each_proposer(proposer: Proposer | None) -> tuple[Proposer, ...]:
    """The proposers of a chain, or the only one. What is made of others names them in `proposers`, as `Chain` does."""
    return tuple(part for part in every_part(proposer) if not hasattr(part, "proposers"))


def every_part(proposer: Proposer | None) -> tuple[Proposer, ...]:
    """A proposer and, if it is made of others, these and what they are made of."""
    if proposer is None:
        return ()
    parts: tuple[Proposer, ...] = getattr(proposer, "proposers", ())
    return (proposer, *(one for part in parts for one in every_part(part)))


def is_proposer(value: object) -> TypeGuard[Proposer]:
    """Whether this is a proposer, and no class of such."""
    return isinstance(value, Proposer) and not isinstance(value, type)


def no_proposer(given: object) -> OptionError:
    """The fault of something that is given as a proposer."""
    hint = '"prompt-lookup", PromptLookup(num_tokens=10)'
    return out_of_domain("speculate", "None, a proposer, its name, or several of them", given, hint=hint)
