"""Languages by example, and the laws of `Matcher` and of guards that refuse texts before they are whole."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from decodekit.constraints.constraint import EarlyGuard, Refusal
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.request_formats import as_constraint
from decodekit.constraints.work_budget import next_slice
from decodekit.vocabulary import Vocabulary

MAX_SLICES: Final = 10_000
"""So many slices of work are enough for any mask; they grow."""


def check_language(
    constraint: object,
    *,
    accepts: Iterable[str | bytes] = (),
    rejects: Iterable[str | bytes] = (),
    vocabulary: Vocabulary | None = None,
) -> None:
    """A constraint accepts and rejects what it should, and at every token on the way mask and `validate` agree.

    Each text is read byte by byte, and in two random divisions into tokens.

    Args:
        constraint: a `Constraint` or what `as_constraint` takes as one.
        accepts: texts that must be whole texts of the constraint.
        rejects: texts that must not be.
        vocabulary: the tokens to try; must have every single byte. The default has all bytes and pieces of the texts,
            and the special tokens that the constraint asks for by name; these are not in the texts.
    """
    rule = as_constraint(constraint)
    good, bad = ([t.encode() if isinstance(t, str) else t for t in texts] for texts in (accepts, rejects))
    if vocabulary is None:
        vocabulary = _vocabulary_of([*good, *bad], [name for name in rule.special_tokens() if isinstance(name, str)])
    grammar = compile(rule, vocabulary)
    token_of = {data: token for token, data in enumerate(vocabulary.token_bytes) if data is not None}
    require(all(bytes((b,)) in token_of for b in range(256)), "the vocabulary must have every single byte")
    rng = random.Random(0)
    for data, is_expected in [(data, True) for data in good] + [(data, False) for data in bad]:
        for max_length in (1, 3, 8):
            tokens = _divide(data, token_of, max_length, rng)
            matcher = grammar.matcher()
            num_legal = matcher.validate(tokens)
            for number, token in enumerate(tokens):
                allowed = _check_mask(matcher, vocabulary)
                is_legal = number < num_legal
                place = f"{vocabulary.decode(tokens[: number + 1])!r} of {data!r}"
                require((token in allowed) == is_legal, f"mask and validate disagree at {place}")
                require(matcher.accept(token) == is_legal, f"accept and validate disagree at {place}")
                if not is_legal:
                    break
            is_accepted = num_legal == len(tokens) and matcher.is_accepting
            if is_expected and not is_accepted:
                read = vocabulary.decode(tokens[:num_legal])
                raise AssertionError(f"{rule!r:.300} rejects {data!r}; it went along up to {read!r}")
            require(is_expected or not is_accepted, f"{rule!r:.300} accepts {data!r}")
            if is_accepted:
                _check_mask(matcher, vocabulary)


def check_matcher(matcher: Matcher, vocabulary: Vocabulary, *, num_tokens: int = 30, seed: int = 0) -> None:
    """The laws of `Matcher`, along a random walk of `num_tokens` tokens; in the end `matcher` is where it was.

    In every state: `accept` and `validate` agree with the mask for each token; `accept` then `rollback` leaves the mask
    as it was; a fork goes its own way; end-of-sequence tokens are allowed exactly when the text may end, all of them;
    forced tokens are each the only one allowed; `prepare` comes to an end and moves nothing.
    """
    rng = random.Random(seed)
    begin, first = matcher.num_tokens, _check_mask(matcher, vocabulary)
    for _ in range(num_tokens):
        allowed = _check_mask(matcher, vocabulary)
        here = matcher.num_tokens
        _check_prepare(matcher, sorted(allowed)[:4])
        require(_mask(matcher, vocabulary) == allowed, "prepare changes the mask")
        for token in rng.sample(range(vocabulary.size), min(vocabulary.size, 64)) + sorted(allowed)[:64]:
            is_accepted = matcher.accept(token)
            require(is_accepted == (token in allowed), f"accept({token}) disagrees with the mask after {here} tokens")
            if is_accepted:
                require(matcher.num_tokens == here + 1, "accept does not count one token")
                matcher.rollback(1)
            require(matcher.num_tokens == here, "a refused token, or a rollback, leaves another number of tokens")
        require(_mask(matcher, vocabulary) == allowed, "accept and rollback change the mask")
        _check_forced(matcher, vocabulary)
        going_on = sorted(allowed - vocabulary.eos_token_ids)
        if not going_on:
            break
        fork = matcher.fork()
        require(fork.accept(rng.choice(going_on)), "a fork refuses what its original allows")
        require(_mask(matcher, vocabulary) == allowed, "a fork moves its original")
        matcher.accept(rng.choice(going_on))
    matcher.rollback(matcher.num_tokens - begin)
    require(_mask(matcher, vocabulary) == first, "a long rollback does not lead back")


def _check_mask(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The allowed tokens, after checking what a mask promises by itself."""
    allowed = _mask(matcher, vocabulary)
    eos = vocabulary.eos_token_ids
    for token in range(vocabulary.size) if vocabulary.size <= 4096 else sorted(allowed)[:256]:
        legal = matcher.validate([token]) == 1
        require(legal == (token in allowed), f"token {token}: validate says {legal}, the mask says {not legal}")
    if eos:
        require((allowed & eos) == (eos if matcher.is_accepting else set()), "EOS tokens do not match is_accepting")
    require(matcher.can_continue == bool(allowed - eos), "can_continue does not match the mask")
    require(not (matcher.is_terminated and allowed), "something is allowed after the end")
    return allowed


def _check_prepare(matcher: Matcher, tokens: list[int]) -> None:
    before = matcher.num_tokens
    for token in (None, *tokens):
        is_prepared = any(matcher.prepare(next_slice(number), token) for number in range(MAX_SLICES))
        require(is_prepared, f"prepare needs more than {MAX_SLICES} slices")
    require(matcher.num_tokens == before, "prepare moves the matcher")


def _check_forced(matcher: Matcher, vocabulary: Vocabulary) -> None:
    probe = matcher.fork()
    for token in matcher.forced_tokens():
        require(_mask(probe, vocabulary) == {token}, f"the forced token {token} is not the only one allowed")
        require(token not in vocabulary.eos_token_ids and probe.accept(token), f"token {token} cannot be forced")


def _mask(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    bitmask = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return set(ids_from_bitmask(bitmask[0]).tolist())


def _vocabulary_of(texts: list[bytes], names: list[str]) -> Vocabulary:
    """All bytes, end of sequence, special tokens, and pieces of the texts: few enough for a quick test."""
    pieces = {text[i : i + n] for n in (2, 3, 5, 8) for text in texts for i in range(len(text) - n + 1)}
    chosen = sorted(pieces)
    if len(chosen) > 200:
        chosen = sorted(random.Random(0).sample(chosen, 200))
    special = {name: 257 + number for number, name in enumerate(sorted(names))}
    return Vocabulary([*(bytes((b,)) for b in range(256)), None, *[None] * len(special), *chosen], [256], None, special)


def _divide(data: bytes, token_of: dict[bytes, int], max_length: int, rng: random.Random) -> list[int]:
    """A random division of `data` into tokens of at most `max_length` bytes."""
    tokens, position = [], 0
    while position < len(data):
        ends = range(position + 1, min(position + max_length, len(data)) + 1)
        end = rng.choice([end for end in ends if data[position:end] in token_of])
        tokens.append(token_of[data[position:end]])
        position = end
    return tokens


def require(condition: bool, message: str) -> None:
    """Raise `AssertionError` unless a condition holds."""
    if not condition:
        raise AssertionError(message)


def check_guard(guard: EarlyGuard, texts: Iterable[str | bytes], *, seed: int = 0) -> None:
    """The laws of `EarlyGuard` and its reader, on whole texts of the constraint's language: valid and invalid ones.

    A text is refused at its end if a beginning of it is refused, and so are all longer beginnings, however they are
    divided into reads. A read that is refused changes nothing, `rollback` undoes reads, and a fork goes its own way.
    What can stay of a text is a part of it.
    """
    rng = random.Random(seed)
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        verdict = guard.refuses(data)
        found = [_refusal(guard, [data[:end]]) for end in range(len(data) + 1)]
        first = next((end for end, refusal in enumerate(found) if refusal is not None), len(data) + 1)
        require(first > len(data) or verdict is not None, f"refused after {data[:first]!r}, and accepted: {data!r}")
        for end, refusal in enumerate(found):
            beginning = data[:end]
            require((refusal is not None) == (end >= first), f"refused after {data[:first]!r}, not after {beginning!r}")
            require(refusal is None or 0 <= refusal.keep <= end, f"of {beginning!r} can stay {refusal!r}")
            divided = _refusal(guard, _pieces(beginning, rng))
            require(
                (divided is None) == (refusal is None), f"{beginning!r} is refused in one division and not in another"
            )
        require(verdict is None or 0 <= verdict.keep <= len(data), f"of {data!r} can stay {verdict!r}")
        _check_ways(guard, data, min(first, len(data) + 1), rng)


def _check_ways(guard: EarlyGuard, data: bytes, first: int, rng: random.Random) -> None:
    """`rollback` and `fork` along a text that is refused after its first `first` bytes."""
    reader = guard.reader()
    if reader is None:
        return
    for end in range(1, first):
        reader.read(data[end - 1 : end])
    fork = reader.fork()
    rest = data[first - 1 :]
    for one in (reader, fork, reader):
        require((one.read(rest) is None) == (first > len(data)), f"another answer after a fork or refusal in {data!r}")
        if first > len(data):
            one.rollback(1)
    num_back = rng.randrange(first)
    fork.rollback(num_back)
    again = data[first - 1 - num_back :]
    require((fork.read(again) is None) == (first > len(data)), f"another answer after a rollback in {data!r}")
    require((reader.read(rest) is None) == (first > len(data)), f"a fork moves its original in {data!r}")


def _refusal(guard: EarlyGuard, pieces: Sequence[bytes]) -> Refusal | None:
    """The refusal of a text that is read in pieces."""
    reader = guard.reader()
    refusals = (None if reader is None else reader.read(piece) for piece in pieces)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _pieces(data: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(len(data) + 1), min(len(data) + 1, rng.randrange(6))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
