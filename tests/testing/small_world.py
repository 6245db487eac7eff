"""A world so small that the probability of every text can be computed: a model of a few letters, texts of a few tokens.

    world = SmallWorld(num_letters=2, num_tokens=2)
    world.law(dk.Sample())  # {"aa": 0.05, "ab": 0.00, "a": 0.27, "ba": 0.07, "bb": 0.06, "b": 0.01, "": 0.53}

A token is a letter or the end, so that a text says which tokens it came of: "a" ended by itself, "aa" at the limit.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from decodekit.constraints import as_constraint, compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.decoding.request.prompt import encode
from decodekit.decoding.search.search import Search
from decodekit.errors import DecodekitError, OptionError, out_of_domain, raise_faults
from decodekit.llm import LLM
from decodekit.sampling import History, LogitsProcessor, Stage, gumbel
from decodekit.sampling.checks import is_count
from decodekit.strategy import Strategy
from decodekit.testing.toy import ToyLM, ToyTokenizer

NextToken: TypeAlias = Callable[[Tensor], Tensor]
"""From the logits of a place, float64 [V], to the probabilities of the next token, float64 [V]."""

PROMPT = "a"
MAX_TEXTS = 20_000
ROWS = 256


class SmallWorld:
    """A model of a few letters, and all texts up to a few tokens.

    Logits are a pseudo-random function of all that was read, with a standard deviation of 1.3, so that a token that is
    missing, repeated or in the wrong row changes the law.

    Args:
        num_letters: 1 to 26; the end of a text is a token besides.
        num_tokens: most tokens of a text.
        seed: another one is another model.

    Raises:
        OptionError: there would be more than 20,000 texts, or an option is out of range.
    """

    def __init__(self, num_letters: int = 4, num_tokens: int = 2, seed: int = 0) -> None:
        faults: list[DecodekitError] = [
            out_of_domain(name, f"an integer from 1 to {most}", count)
            for name, count, most in (("num_letters", num_letters, 26), ("num_tokens", num_tokens, MAX_TEXTS))
            if not is_count(count) or count > most
        ]
        raise_faults(faults)
        if num_letters**num_tokens > MAX_TEXTS:
            raise OptionError(f"{num_letters}**{num_tokens} texts are more than {MAX_TEXTS}", at="num_tokens")
        self.num_tokens = num_tokens
        self.model = _LetterLM(num_letters, seed)
        letters = [letter.encode() for letter in string.ascii_lowercase[:num_letters]]
        self.llm = LLM(self.model, ToyTokenizer([*letters, None]))

    def law(
        self, strategy: Strategy, next_token: NextToken | None = None, *, constraint: object = None
    ) -> dict[str, float]:
        """The probability of every text.

        Args:
            strategy: whose texts they are.
            next_token: see `check_distribution`; None is what the strategy's pipeline leaves.
            constraint: of the texts.

        Raises:
            OptionError: the strategy is a search, or no function from logits to probabilities was given.
        """
        if isinstance(strategy, Search) or not hasattr(strategy, "pipeline"):
            cause = f"{strategy!r:.60} takes no token by itself, so that its texts have another law than its tokens"
            raise OptionError(cause, at="law", hint="the probability of every text: law={'a': 0.5, ...}")
        grammar = None if constraint is None else compile(as_constraint(constraint), self.llm.vocabulary)
        walk = _EveryText(self, next_token or _PipelineLaw(self, list(strategy.pipeline)))
        law: dict[str, float] = {}
        for text, p in walk.texts([], 1.0, None if grammar is None else grammar.matcher()):
            law[text] = law.get(text, 0.0) + p
        return law

    def sampler(self, strategy: Strategy, *, constraint: object = None) -> Callable[[Sequence[int]], list[str]]:
        """A function from seeds to the texts that a strategy writes."""
        if getattr(strategy, "seed", None) is not None:
            strategy = replace(strategy, seed=None)  # type: ignore[type-var]

        def draw(seeds: Sequence[int]) -> list[str]:
            completions = self.llm.generate(
                [PROMPT] * len(seeds),
                strategy=strategy,
                constraint=constraint,
                max_new_tokens=self.num_tokens,
                seed=list(seeds),
                batch_size=ROWS,
                on_length="return",
                on_error="raise",
            )
            return [one.text for one in completions]

        return draw


class _EveryText:
    """Goes through all texts, one token at a time."""

    def __init__(self, world: SmallWorld, next_token: Callable[..., Tensor]) -> None:
        self._world, self._next_token = world, next_token

    def texts(self, tokens: list[int], p: float, matcher: Matcher | None) -> Iterator[tuple[str, float]]:
        """The texts that begin with these tokens, which have probability p, with their probabilities."""
        world = self._world
        [end] = world.model.eos_token_ids
        if len(tokens) == world.num_tokens or (matcher is not None and not matcher.can_continue):
            yield world.llm.vocabulary.decode(tokens).decode(), p
            return
        prompt = encode(world.llm.tokenizer, PROMPT, "prompt")
        logits = world.model.logits_after([*prompt, *tokens]).double()
        if matcher is not None:
            forbidden = [token for token in range(len(logits)) if matcher.validate([token]) == 0]
            logits[forbidden] = -torch.inf
        for token, share in enumerate(_probabilities(self._next_token, logits, tokens)):
            if share == 0:
                continue
            if token == end:
                yield world.llm.vocabulary.decode(tokens).decode(), p * share
                continue
            after = None if matcher is None else matcher.fork()
            if after is not None:
                after.accept(token)
            yield from self.texts([*tokens, token], p * share, after)


def _probabilities(next_token: Callable[..., Tensor], logits: Tensor, tokens: list[int]) -> list[float]:
    """The law of a place.

    Raises:
        OptionError: it is none.
    """
    given = next_token(logits, tokens) if isinstance(next_token, _PipelineLaw) else next_token(logits.clone())
    found = torch.as_tensor(given, dtype=torch.float64)
    is_law = found.shape == logits.shape and bool((found >= 0).all()) and abs(float(found.sum()) - 1) < 1e-6
    if not is_law:
        raise OptionError(f"{given!r:.80} are no probabilities of {len(logits)} tokens", at="law")
    return [*found.tolist()]


class _PipelineLaw:
    """The distribution that the processors of a strategy leave: biases, then the mask, then the others, each called by
    itself."""

    def __init__(self, world: SmallWorld, processors: Sequence[LogitsProcessor]) -> None:
        model = world.model
        own = [one.for_vocabulary(model.vocab_size, model.eos_token_ids) for one in processors]
        self._biases = [one for one in own if one.stage is Stage.BIAS]
        self._others = [one for one in own if one.stage is not Stage.BIAS]
        self._prompt = encode(world.llm.tokenizer, PROMPT, "prompt")

    def __call__(self, logits: Tensor, tokens: list[int]) -> Tensor:
        history = History.from_lists([self._prompt], [tokens])
        # A mask may come before a bias, too, for a bias moves each logit by itself.
        rows = logits.float()[None]
        for processor in (*self._biases, *self._others):
            rows = processor(rows, history)
        return rows[0].double().softmax(dim=-1)


class _LetterLM(ToyLM):
    """Logits of a few letters and the end, each place with its own; see `ToyLM`."""

    name = "small-world"

    def __init__(self, num_letters: int, seed: int) -> None:
        super().__init__(seed)
        self.vocab_size = num_letters + 1
        self.eos_token_ids = frozenset({num_letters})
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logits_after(self, prefix: Sequence[int]) -> Tensor:
        """Logits after a prefix, float32 [V]."""
        place = tuple(prefix)
        if place not in self._known:
            key = 0
            for token in prefix:
                key = (key * 1_000_003 + token + 1) % (1 << 62)
            self._known[place] = gumbel([self.seed], [0], [key], self.vocab_size, self.device)[0]
        return self._known[place].clone()
