"""The front door: a model with its tokenizer, prompts in, completions out.

llm = LLM.load("tiny")
completion = llm.generate("Invoice A-17, total 40.20 EUR.", constraint=Invoice)
completion.value
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from decodekit.constraints import as_constraint, compile
from decodekit.constraints.coerce import named_constraint
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import (
    ConstraintError,
    ContextLengthError,
    DecodekitError,
    LengthError,
    OptionError,
    ResourceLimitError,
    UselessOptionError,
    raise_faults,
)
from decodekit.generation import families, memory
from decodekit.generation.batch import Result
from decodekit.generation.beam import Beam
from decodekit.generation.completion import Chunk, Completion, Score
from decodekit.generation.prompt import (
    Messages,
    Prompt,
    TokenIds,
    check_prompt,
    each_prompt,
    encode,
    encode_plain,
    is_single,
)
from decodekit.generation.retreat import MAX_ROLLBACKS
from decodekit.generation.scoring import token_logprobs
from decodekit.generation.search import Choice, Search, SearchCall
from decodekit.generation.sequence import Request
from decodekit.generation.settings import FastForward, Settings, left_out_of
from decodekit.generation.stopping import StopStrings
from decodekit.models.causal_lm import CausalLM
from decodekit.models.contrast import Contrast
from decodekit.sampling import LogitsProcessor, Pipeline, Stage
from decodekit.sampling.checks import is_count, plain
from decodekit.speculation import GrammarDraft
from decodekit.speculation.canonical import Canonical
from decodekit.speculation.proposer import ChecksTarget, each_proposer
from decodekit.strategy import Greedy, Guidance, Processors, Strategy, can_redraw, check_seed, resolve_strategy
from decodekit.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LLM", "Chunk", "Completion", "Score", "generate"]

OnLength: TypeAlias = Literal["error", "return", "close"]
OnError: TypeAlias = Literal["return", "raise"]
StrategyLike: TypeAlias = str | Strategy | Beam | Processors
Seeds: TypeAlias = int | Iterable[int] | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Checked options of one call."""

    model: CausalLM
    contrast: Contrast | None
    settings: Settings
    search: Search | None
    choice: Choice | None
    num_samples: int
    has_logprobs: bool
    grammar: CompiledGrammar | None
    on_length: OnLength
    on_error: OnError
    seeds: Iterable[int]
    is_drawn_unseeded: bool


class LLM:
    """A causal language model and its tokenizer.

    Threads may share one: every call has a cache of its own.

    Args:
        model: a causal language model of transformers, or any `models.causal_lm.CausalLM`.
        tokenizer: its tokenizer.

    Raises:
        VocabularyMismatchError: the tokenizer belongs to another model.
        TokenizerError: the bytes of its tokens cannot be known.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model: CausalLM = _as_causal_lm(model)
        self.tokenizer = tokenizer
        reading = _reading(tokenizer, self.model)
        self.vocabulary: Vocabulary = reading.vocabulary
        self._division: Canonical | None = reading.canonical

    @classmethod
    def load(
        cls,
        name_or_path: str,
        dtype: Any = "auto",
        device: Any = None,
        device_map: Any = None,
        revision: str | None = None,
        **from_pretrained: Any,
    ) -> LLM:
        """Load a model: ``"tiny"`` and ``"tiny-draft"`` are bundled, else a folder or a Hugging Face id.

        Args:
            name_or_path: bundled name, folder or id.
            dtype: of the weights; "auto" takes what the model was saved in.
            device: where it runs; None takes the GPU if there is one.
            device_map: spread over devices by transformers.
            revision: branch, tag or commit on the hub.
            from_pretrained: passed on to transformers.

        Raises:
            ModelError: there is no such model, or it cannot be loaded.
        """
        from decodekit.models.huggingface import load

        model, tokenizer = load(
            name_or_path, dtype=dtype, device=device, device_map=device_map, revision=revision, **from_pretrained
        )
        return cls(model, tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_division": None}  # what it remembers holds functions

    def __repr__(self) -> str:
        return f"LLM({self.model.name!r}, {self.model.dtype}, {self.model.device})"

    @overload
    def generate(self, prompts: str | Messages | Sequence[int], **options: Any) -> Completion: ...
    @overload
    def generate(
        self, prompts: Sequence[str] | Sequence[Messages] | Sequence[TokenIds], **options: Any
    ) -> list[Completion]: ...
    @overload
    def generate(self, prompts: Tensor | Mapping[str, Any], **options: Any) -> Any: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        strategy: StrategyLike = "greedy",
        constraint: Any = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        seed: int | Sequence[int] | None = None,
        logprobs: bool | int = False,
        on_length: OnLength | None = None,
        on_error: OnError = "return",
        max_rollbacks: int | None = None,
        fast_forward: FastForward = "exact",
        batch_size: int = 8,
        **strategy_options: Any,
    ) -> Completion | list[Completion]:
        """Continue prompts. A list in gives a list out, in order.

        Args:
            prompts: a text, a conversation (list of messages with ``role`` and ``content``), token ids, or a list of
                these. Token ids are a list or a tensor of integers, or what the tokenizer returns (``input_ids`` and
                ``attention_mask``; padding is left out), and are taken as they are. Two dimensions are a list of
                prompts, ``tokenizer(text, return_tensors="pt")`` as well, which has one row.
            strategy: ``"greedy"``, ``"sample"``, ``"beam"``, ``"best-of"`` or another installed name; a value such as
                ``Sample(temperature=0.7)`` or ``Beam(4)``;
                or logits processors joined by ``|``, to sample with.
            constraint: what the text must be: a JSON Schema, a Python type, `Regex`, `Choices`, a response format; or
                the name of a grammar of the library or of an installed constraint.
            max_new_tokens: how many tokens a text may have, its end-of-sequence token included.
            stop: texts that end a completion; the one that ends first counts and is not part of the text.
            seed: key of the noise when sampling, one for all prompts or one for each; without one it is 0. Equal
                prompts with equal seeds give equal texts, whatever else is in the batch, so that equal prompts in one
                list need ``seed=range(len(prompts))``, or ``num_return_sequences`` for several texts of one prompt.
            logprobs: record the log-probability of every token under the model's own law (before penalties,
                temperature, truncation and constraint), with ``contrast=`` under that of the contrast; an integer
                k > 0 records the k likeliest alternatives too.
            on_length: a text that is cut by `max_new_tokens` carries a `LengthError` (``"error"``, the default with a
                constraint) or not (``"return"``, the default without); its value is there if it satisfies the
                constraint as it is. ``"close"`` lets no token come after which the constraint could not be satisfied
                within `max_new_tokens`, so that its text is whole in time; what processors may forbid is not relied on,
                and one that may forbid any token is refused.
            on_error: what happens when a row fails: ``"return"`` gives a completion with `.error`, ``"raise"`` raises.
            max_rollbacks: how often a text is taken back because the guard of the constraint refuses it, before its row
                fails with a `GuardError`; None is `generation.retreat.MAX_ROLLBACKS` (64). Only with a guard.
            fast_forward: what is taken without asking the model, where the constraint leaves no choice: ``"exact"``,
                the tokens that are the only ones allowed; ``"off"``, nothing; ``"canonical"``, besides, bytes that are
                the only ones allowed, in the tokenizer's own tokens. The first two give the same text, the third
                changes the law; see `generation.settings.FastForward` for how and why.
            batch_size: most prompts that are decoded at a time; each text of several that a prompt has, and each
                hypothesis of a search, is a row of the cache.
            strategy_options: options of a strategy that is given by name, such as ``temperature=0.7``.

        Raises:
            OptionError: options that are unknown, out of range, without effect or in conflict; all of them together.
            UnknownNameError: no strategy of this name.
            ConstraintError: the constraint cannot be used.
        """
        chunks = self.stream(
            prompts,
            strategy=strategy,
            constraint=constraint,
            max_new_tokens=max_new_tokens,
            stop=stop,
            seed=seed,
            logprobs=logprobs,
            on_length=on_length,
            on_error=on_error,
            max_rollbacks=max_rollbacks,
            fast_forward=fast_forward,
            batch_size=batch_size,
            **strategy_options,
        )
        done = {chunk.index: chunk.completion for chunk in chunks if chunk.completion is not None}
        completions = [done[index] for index in range(len(done))]
        return completions[0] if is_single(prompts) else completions

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        strategy: StrategyLike = "greedy",
        constraint: Any = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        seed: int | Sequence[int] | None = None,
        logprobs: bool | int = False,
        on_length: OnLength | None = None,
        on_error: OnError = "return",
        max_rollbacks: int | None = None,
        fast_forward: FastForward = "exact",
        batch_size: int = 8,
        **strategy_options: Any,
    ) -> Iterator[Chunk]:
        """Continue prompts and hand out the texts as they grow. Options and errors are those of `generate`."""
        faults: list[DecodekitError] = []
        listed: list[Any] = []
        try:
            listed = each_prompt(prompts)
        except OptionError as error:
            faults.append(error)
        for index, prompt in enumerate(listed):
            try:
                check_prompt(prompt, f"prompt {index}", self.vocabulary.size)
            except OptionError as error:
                faults.append(error)
        seed, batch_size = _numbers(seed), plain(batch_size)
        if isinstance(seed, Sequence) and not isinstance(seed, str | bytes):
            if len(seed) != len(listed):
                faults.append(OptionError(f"{len(seed)} seeds for {len(listed)} prompts", at="seed"))
            for one in seed:
                check_seed(one, faults)
        plan = self._plan(
            faults,
            strategy=strategy,
            constraint=constraint,
            max_new_tokens=max_new_tokens,
            stop=stop,
            seed=seed,
            logprobs=logprobs,
            on_length=on_length,
            on_error=on_error,
            max_rollbacks=max_rollbacks,
            fast_forward=fast_forward,
            batch_size=batch_size,
            strategy_options=strategy_options,
        )
        if isinstance(plan.contrast, Guidance) and plan.contrast.num_prompts not in (None, len(listed)):
            raise OptionError(
                f"{plan.contrast.num_prompts} negative prompts for {len(listed)} prompts", at="negative_prompt"
            )
        if plan.is_drawn_unseeded:
            _warn_of_equal_prompts(listed)
        num_prompts = min(batch_size, max(1, len(listed)))
        self._check_memory(plan, num_prompts, f"batch_size={batch_size}", num_prompts)
        return self._decode(listed, plan, num_prompts)

    def as_completed(
        self,
        prompts: Iterable[Prompt],
        *,
        strategy: StrategyLike = "greedy",
        constraint: Any = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        seed: Seeds = None,
        logprobs: bool | int = False,
        on_length: OnLength | None = None,
        on_error: OnError = "return",
        max_rollbacks: int | None = None,
        fast_forward: FastForward = "exact",
        batch_size: int = 8,
        **strategy_options: Any,
    ) -> Iterator[tuple[int, Completion]]:
        """Continue a stream of prompts, possibly endless; completions with the numbers of their prompts as they finish.

        Prompts, and seeds where there is one for each, are taken one by one when there is room for them in the batch,
        so that memory does not grow with their number. Options and errors are those of `generate`; something that is no
        prompt is the error of its completion.
        """
        if is_single(prompts) or isinstance(prompts, Mapping) or hasattr(prompts, "ndim"):
            prompts = each_prompt(prompts)
        if not isinstance(prompts, Iterable):
            raise OptionError(f"prompts={prompts!r:.60} are no prompts to go through", at="prompts", hint="a list")
        seed, batch_size = _numbers(seed), plain(batch_size)
        plan = self._plan(
            [],
            strategy=strategy,
            constraint=constraint,
            max_new_tokens=max_new_tokens,
            stop=stop,
            seed=seed,
            logprobs=logprobs,
            on_length=on_length,
            on_error=on_error,
            max_rollbacks=max_rollbacks,
            fast_forward=fast_forward,
            batch_size=batch_size,
            strategy_options=strategy_options,
        )
        self._check_memory(plan, batch_size, f"batch_size={batch_size}", 1)
        chunks = self._decode(prompts, plan, batch_size)
        return ((chunk.index, chunk.completion) for chunk in chunks if chunk.completion is not None)

    @overload
    def score(self, texts: str | Sequence[int]) -> Score: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[str] | Sequence[TokenIds]) -> list[Score]: ...
    @overload
    def score(self, texts: Tensor | Mapping[str, Any]) -> Any: ...
    def score(self, texts: Any) -> Any:
        """Log-probabilities of texts under the model. A list in gives a list out, in order.

        Args:
            texts: a text, or token ids as `generate` takes them; or a list of these.

        Raises:
            OptionError: a text has fewer than two tokens, so that there is nothing to predict; or is none.
            ContextLengthError: a text is longer than the model's context.
        """
        if not isinstance(texts, Iterable):
            check_prompt(texts, "texts")
        token_ids = [
            encode(self.tokenizer, text, f"text {index}", self.vocabulary.size)
            for index, text in enumerate(each_prompt(texts))
        ]
        context_length = self.model.context_length
        for index, ids in enumerate(token_ids):
            if len(ids) < 2:
                raise OptionError(f"a text of {len(ids)} tokens has nothing to predict", at=f"text {index}")
            if context_length is not None and len(ids) > context_length:
                raise ContextLengthError(
                    f"the text has {len(ids):,} tokens, the context of the model {context_length:,}", at=f"text {index}"
                )
        scores = [
            Score(tuple(ids), tuple(logprobs))
            for ids, logprobs in zip(token_ids, token_logprobs(self.model, token_ids), strict=True)
        ]
        return scores[0] if is_single(texts) else scores

    def _plan(
        self,
        faults: list[DecodekitError],
        *,
        strategy: StrategyLike,
        constraint: Any,
        max_new_tokens: int,
        stop: str | Sequence[str] | None,
        seed: Seeds,
        logprobs: bool | int,
        on_length: OnLength | None,
        on_error: OnError,
        max_rollbacks: int | None,
        fast_forward: FastForward,
        batch_size: int,
        strategy_options: dict[str, Any],
    ) -> _Plan:
        """Check all options together, then compile the constraint."""
        max_new_tokens, logprobs, max_rollbacks = plain(max_new_tokens), plain(logprobs), plain(max_rollbacks)
        resolved: Strategy | None = None
        try:
            resolved = resolve_strategy(strategy, strategy_options)
        except DecodekitError as error:
            faults.append(error)
        if isinstance(constraint, str):
            try:
                constraint = named_constraint(constraint)
            except DecodekitError as error:
                faults.append(error)
        for name, count in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
            if not is_count(count):
                faults.append(OptionError(f"{name}={count!r:.60} is not an integer from 1 on", at=name))
            elif count > memory.MAX_TOKENS:
                cause = f"{name}={count:,} is above {memory.MAX_TOKENS:,}, the most there can be"
                faults.append(OptionError(cause, at=name, hint="a smaller number"))
        if not isinstance(logprobs, int) or logprobs < 0:
            faults.append(
                OptionError(f"logprobs={logprobs!r:.60} is neither a bool nor a number of alternatives", at="logprobs")
            )
        elif logprobs > self.vocabulary.size:
            faults.append(
                OptionError(
                    f"logprobs={logprobs:,} asks for more alternatives than the {self.vocabulary.size:,} tokens",
                    at="logprobs",
                    hint=f"logprobs={self.vocabulary.size} or less",
                )
            )
        if not _is_one_of(on_length, (None, "error", "return", "close")):
            faults.append(
                OptionError(f'on_length={on_length!r:.40} is none of "error", "return", "close"', at="on_length")
            )
            on_length = None  # for the checks that follow
        elif on_length == "close" and constraint is None:
            faults.append(UselessOptionError('on_length="close" has no effect without a constraint', at="on_length"))
        if max_rollbacks is not None and not is_count(max_rollbacks, 0):
            faults.append(
                OptionError(f"max_rollbacks={max_rollbacks!r:.60} is not an integer from 0 on", at="max_rollbacks")
            )
        if not _is_one_of(fast_forward, ("off", "exact", "canonical")):
            faults.append(
                OptionError(
                    f'fast_forward={fast_forward!r:.60} is none of "off", "exact", "canonical"', at="fast_forward"
                )
            )
            fast_forward = "exact"  # for the checks that follow
        elif fast_forward != "exact" and constraint is None:
            faults.append(
                UselessOptionError(
                    f"fast_forward={fast_forward!r} has no effect without a constraint", at="fast_forward"
                )
            )
        model, contrast = self.model, getattr(resolved, "contrast", None)
        if contrast is not None:
            try:
                model = contrast.applied_to(self.model, self.vocabulary)
            except DecodekitError as error:
                faults.append(error)
        if resolved is not None:
            faults += self._faults_of_speed(resolved, constraint, fast_forward)
        given: object = resolved  # a search may be a strategy by registration, which types do not see
        search = given if isinstance(given, Search) else None
        choice = given if isinstance(given, Choice) else None
        if search is not None:
            call = SearchCall(model, constraint is not None, on_length, fast_forward, max_rollbacks)
            faults += search.refusals(call)
        if not _is_one_of(on_error, ("return", "raise")):
            faults.append(OptionError(f'on_error={on_error!r:.60} is neither "return" nor "raise"', at="on_error"))
        stop = () if stop is None else stop
        stops = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
        if isinstance(stop, Mapping) or not all(isinstance(text, str) and text for text in stops):
            faults.append(
                OptionError(f"stop={stop!r:.60} holds something that is no text, or the empty text", at="stop")
            )
        elif stops and constraint is not None:
            faults.append(
                OptionError(
                    "a stop string and a constraint cannot be combined: the constraint decides where the text ends",
                    at="stop",
                    hint="stop strings only in free text, or a pattern that ends where the stop string would begin",
                )
            )
        if seed is not None and (not isinstance(seed, Iterable) or isinstance(seed, Mapping | str | bytes)):
            check_seed(seed, faults)
        if seed is not None and resolved is not None and resolved.seed is not None:
            faults.append(OptionError(f"seed={seed!r} is given beside {resolved!r}, which has one", at="seed"))
        pipeline: list[LogitsProcessor] = []
        for processor in resolved.pipeline if resolved is not None else ():
            try:
                pipeline.append(processor.for_vocabulary(self.vocabulary.size, self.vocabulary.eos_token_ids))
            except OptionError as error:
                faults.append(error)
        left_out: frozenset[int] = frozenset()
        if on_length == "close":
            left_out, unknown = left_out_of(pipeline, self.vocabulary.size)
            faults += (
                OptionError(
                    f'on_length="close" and {processor!r} cannot be combined: it may forbid any token, also those that '
                    "a text needs to end",
                    at="on_length",
                    hint='on_length="return" or "error" with bounds on lengths in the constraint; a processor of your '
                    "own says by `may_forbid` which tokens it forbids, or by `can_forbid` that it forbids none",
                )
                for processor in unknown
            )
        raise_faults(faults)
        assert resolved is not None
        is_drawn_unseeded = seed is None and resolved.seed is None and _has_seed(resolved)
        if seed is None:
            seed = resolved.seed or 0
        if logprobs is False or logprobs == 0:
            num_alternatives = 0 if choice is not None and choice.needs_logprobs else None
        else:
            num_alternatives = 0 if logprobs is True else logprobs
        grammar = None if constraint is None else compile(as_constraint(constraint), self.vocabulary)
        if max_rollbacks is not None and (grammar is None or not grammar.has_guard):
            raise UselessOptionError(
                f"max_rollbacks={max_rollbacks} has no effect: only a constraint with a guard takes texts back",
                at="max_rollbacks",
            )
        if grammar is not None and on_length == "close":
            least = _least_tokens(grammar, left_out, pipeline)
            if least > max_new_tokens:
                raise OptionError(
                    f"max_new_tokens={max_new_tokens:,} is too few for any text of the constraint: it needs {least:,}",
                    at="max_new_tokens",
                    hint=f"max_new_tokens={least} or more",
                )
        return _Plan(
            model,
            contrast,
            Settings(
                vocabulary=self.vocabulary,
                pipeline=Pipeline(pipeline),
                select=resolved.select,
                max_new_tokens=max_new_tokens,
                stop=StopStrings(stops),
                num_alternatives=num_alternatives,
                can_redraw=can_redraw(resolved),
                max_rollbacks=MAX_ROLLBACKS if max_rollbacks is None else max_rollbacks,
                must_close=on_length == "close",
                fast_forward=fast_forward,
                proposer=resolved.proposer,
                verify=getattr(resolved, "verify", "coupled"),  # a search has none
                mirostat=getattr(resolved, "mirostat", None),  # beams have none
                canonical=self._canonical(),
                law_of="the model" if contrast is None else f"the model under {contrast!r:.80}",
            ),
            search,
            choice,
            getattr(resolved, "num_samples", 1),  # a search has none
            bool(logprobs),
            grammar,
            on_length or ("return" if constraint is None else "error"),
            on_error,
            seed if isinstance(seed, Iterable) else repeat(seed),
            is_drawn_unseeded,
        )

    def _faults_of_speed(
        self, strategy: Strategy, constraint: Any, fast_forward: FastForward
    ) -> Iterator[DecodekitError]:
        """What speaks against the proposers and the fast-forward of a call."""
        proposers = each_proposer(strategy.proposer)
        if proposers and not self.model.can_rollback:
            yield OptionError(
                f"{self.model.name} keeps recurrent state, which cannot be cropped to the accepted part of a draft",
                at="speculate",
                hint="no speculate=; forced tokens of a constraint are taken all the same",
            )
        is_greedy = type(strategy).select is Greedy.select
        for proposer in (one for one in proposers if isinstance(one, ChecksTarget)):
            try:
                proposer.check_target(self.model, self.vocabulary, is_greedy=is_greedy)
            except DecodekitError as error:
                yield error
        if any(isinstance(proposer, GrammarDraft) for proposer in proposers):
            if constraint is None:
                yield UselessOptionError("GrammarDraft has no effect without a constraint", at="speculate")
            elif fast_forward == "canonical":
                yield UselessOptionError(
                    'GrammarDraft offers what fast_forward="canonical" takes without asking',
                    at="speculate",
                    hint='fast_forward="exact", with which the text stays the same',
                )
        if fast_forward == "canonical" and getattr(strategy, "mirostat", None):
            yield OptionError(
                'fast_forward="canonical" takes tokens unseen, and Mirostat needs their probabilities',
                at="fast_forward",
                hint='fast_forward="exact"',
            )
        if fast_forward == "canonical":
            banning = [p for p in strategy.pipeline if p.stage is Stage.BIAS and p.can_forbid]
            if banning:
                yield OptionError(
                    f'fast_forward="canonical" takes tokens unseen, and {banning[0]!r} may forbid them',
                    at="fast_forward",
                    hint='fast_forward="exact"',
                )

    def _canonical(self) -> Canonical:
        """How the tokenizer divides texts; one for all calls, since it remembers divisions."""
        if self._division is None:  # a copy of another process
            self._division = _reading(self.tokenizer, self.model).canonical
        return self._division

    def _check_memory(self, plan: _Plan, num_prompts: int, option: str, num_sure: int) -> None:
        """Refuse what memory cannot hold, before anything is read.

        Args:
            plan: the checked options.
            num_prompts: most prompts at a time.
            option: what says so.
            num_sure: how many there are at least.
        """
        rows = 1
        for name in ("num_beams", "num_particles", "num_candidates"):
            if plan.search is not None and hasattr(plan.search, name):
                rows = getattr(plan.search, name)
                option = f"{'top_k' if name == 'num_candidates' else name}={rows}"
        if plan.num_samples > 1:
            memory.check_texts(plan.num_samples, f"{'n' if plan.choice else 'num_return_sequences'}={plan.num_samples}")
        memory.check_masks(num_prompts * rows, self.vocabulary.num_mask_words, option)
        memory.check_rows(plan.model, num_sure * rows, 1, option)
        longest = min(plan.settings.max_new_tokens, plan.model.context_length or memory.MAX_TOKENS)
        for proposer in each_proposer(plan.settings.proposer):
            for name in ("num_tokens", "max_tokens"):
                num_tokens = getattr(proposer, name, 0)
                if num_tokens > 1:
                    memory.check_rows(plan.model, 1, 1, f"{name}={num_tokens}", 1 + min(num_tokens, longest))

    def _decode(self, prompts: Iterable[Prompt], plan: _Plan, num_rows: int) -> Iterator[Chunk]:
        texts: dict[int, list[str]] = {}
        requests = self._requests(prompts, plan)
        if plan.search is None:
            updates = families.decode(plan.model, plan.settings, num_rows, requests, plan.num_samples)
        else:
            updates = plan.search.decode(plan.model, plan.settings, num_rows, requests)
        for update in updates:
            texts.setdefault(update.index, []).append(update.text)
            completion = None
            if update.result is not None:
                completion = _completion(plan, update.index, "".join(texts.pop(update.index)), update.result)
                if plan.choice is not None:
                    completion = _chosen(plan, plan.choice, completion)
                if completion.error is not None and plan.on_error == "raise":
                    raise completion.error
            if plan.choice is None:
                yield Chunk(update.index, update.text, update.token_ids, completion)
            elif completion is not None:
                yield Chunk(update.index, completion.text, completion.token_ids, completion)

    def _requests(self, prompts: Iterable[Prompt], plan: _Plan) -> Iterator[Request | DecodekitError]:
        seeds = iter(plan.seeds)
        for index, prompt in enumerate(prompts):
            request: Request | DecodekitError
            try:
                seed = _next_seed(seeds, index)  # first: a prompt that cannot be read uses its seed up, too
                token_ids = encode(self.tokenizer, prompt, f"prompt {index}", self.vocabulary.size)
                matcher = None if plan.grammar is None else plan.grammar.matcher()
                request = Request(token_ids, matcher, seed, negative_prompt=self._negative_prompt(plan, index))
            except DecodekitError as error:
                request = error
            yield request

    def _negative_prompt(self, plan: _Plan, index: int) -> list[int]:
        """What guidance contrasts a prompt with; empty for its last token, or without guidance."""
        given = plan.contrast.negative_prompt_of(index) if isinstance(plan.contrast, Guidance) else None
        return [] if given is None else encode(self.tokenizer, given, f"negative prompt {index}", self.vocabulary.size)


def generate(model: Any, tokenizer: Any, prompts: Any, **options: Any) -> Any:
    """`LLM.generate` for a model that is loaded: ``generate(model, tokenizer, prompts, strategy=..., constraint=...)``.

    What is learned of the model and of the tokenizer (how the model may be run, which takes some forward passes, and
    the bytes of the tokens) is kept as long as they live, so that a further call costs about a millisecond more than
    one of an `LLM`. A model that has changed, or was switched to another adapter, is looked at again; see
    `models.known`.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        prompts: as in `LLM.generate`.
        options: as in `LLM.generate`.

    Returns:
        A `Completion`, or a list of them for a list of prompts.
    """
    return LLM(model, tokenizer).generate(prompts, **options)


def _completion(plan: _Plan, index: int, text: str, result: Result) -> Completion:
    value, error = None, result.error
    if (
        plan.grammar is not None
        and error is None
        and (result.finish_reason in ("stop", "complete") or result.is_satisfied)
    ):
        value, error = _parse(plan.grammar.constraint, text, index)
    if error is None and result.finish_reason == "length" and plan.on_length != "return":
        limit = plan.settings.max_new_tokens
        is_full = len(result.token_ids) < limit
        made_of = None
        if plan.grammar is not None and not result.is_satisfied:
            from decodekit.constraints.author.filling import remark  # which not every user needs

            made_of = remark(plan.grammar.constraint, text)
        error = LengthError(
            ("the model's context was full" if is_full else f"the text was cut at max_new_tokens={limit:,}")
            + _standing(plan, result)
            + ("" if made_of is None else f": {made_of[0]}"),
            at=f"prompt {index}, after {len(result.token_ids):,} tokens, {text[-40:]!r}",
            hint=("" if made_of is None else f"{made_of[1]}, ")
            + ("a shorter prompt" if is_full else "a larger max_new_tokens")
            + ", bounds on lengths in the constraint"
            + ("" if plan.grammar is None or plan.on_length == "close" else ', on_length="close" to end in time')
            + ', or on_length="return"',
        )
    logprobs = None if plan.settings.num_alternatives is None else result.logprobs
    others = tuple(
        _completion(plan, index, other.text, other.result) for other in result.others if other.result is not None
    )
    return Completion(
        text, result.token_ids, value, result.finish_reason, error, logprobs, result.stats, result.score, others
    )


def _standing(plan: _Plan, result: Result) -> str:
    """What a text that was cut is to its constraint."""
    if plan.grammar is None:
        return ""
    if result.is_satisfied:
        return "; as it is it satisfies the constraint, and it might have gone on"
    return " before the constraint was satisfied"


def _least_tokens(grammar: CompiledGrammar, left_out: frozenset[int], pipeline: Sequence[LogitsProcessor]) -> int:
    """How many tokens suffice for some text, none of them forbidden.

    Raises:
        OptionError: there is no text without the forbidden tokens, or none was found.
        ResourceLimitError: none was found, and nothing is forbidden.
    """
    try:
        return grammar.least_tokens(left_out)
    except ResourceLimitError as error:
        if not left_out:
            raise
        forbidding = [processor for processor in pipeline if left_out_of([processor], grammar.vocabulary.size)[0]]
        names = ", ".join(f"{processor!r:.80}" for processor in forbidding)
        raise OptionError(
            f'on_length="close" cannot be kept: no text of the constraint was found without what {names} may forbid',
            at="on_length",
            hint="fewer forbidden tokens (of a sequence the last one counts), or another on_length",
        ) from error


def _chosen(plan: _Plan, choice: Choice, completion: Completion) -> Completion:
    """What a strategy makes of all samples of a prompt, without the log-probabilities that it alone asked for."""
    chosen = choice.choose([replace(completion, others=()), *completion.others])
    if plan.has_logprobs:
        return chosen
    others = tuple(replace(other, logprobs=None) for other in chosen.others)
    return replace(chosen, logprobs=None, others=others)


def _parse(constraint: Constraint, text: str, index: int) -> tuple[Any, DecodekitError | None]:
    try:
        return constraint.parse(text), None
    except DecodekitError as error:
        return None, error
    except Exception as error:  # a validator of the user's own type raises what it likes
        return None, ConstraintError(
            f"the text satisfies the constraint and has no value: {type(error).__name__}: {error}",
            at=f"prompt {index}, {text[:80]!r}",
        )


def _has_seed(strategy: Any) -> bool:
    """Whether a strategy, or the one that it draws samples with, draws by a seed; beams do if they are told to."""
    drawing = getattr(strategy, "strategy", strategy)
    has_seed = is_dataclass(drawing) and any(option.name == "seed" for option in fields(drawing))
    return has_seed and getattr(drawing, "do_sample", True)


def _warn_of_equal_prompts(prompts: Sequence[Any]) -> None:
    """Say that equal prompts get equal texts, which nobody expects who draws several without a seed."""
    counts = Counter(prompt if isinstance(prompt, str) else repr(prompt) for prompt in prompts)
    most = max(counts.values(), default=1)
    if most < 2:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{most} equal prompts get {most} equal texts: without a seed, every prompt has the seed 0. "
        "Try seed=range(len(prompts)), or num_return_sequences for several texts of one prompt.",
        UserWarning,
        stacklevel=level,
    )


def _is_one_of(value: object, options: tuple[str | None, ...]) -> bool:
    return (value is None or isinstance(value, str)) and value in options


def _numbers(given: Any) -> Any:
    """Numbers of numpy and torch as those of Python, alone or several of them."""
    given = plain(given)
    return [plain(one) for one in given] if isinstance(given, list | tuple) else given


def _next_seed(seeds: Iterator[int], index: int) -> int:
    seed = plain(next(seeds, None))
    if seed is None:
        raise OptionError(f"there are prompts but only {index} seeds", at=f"prompt {index}")
    faults: list[DecodekitError] = []
    check_seed(seed, faults)
    raise_faults(faults)
    assert isinstance(seed, int)
    return seed


def _as_causal_lm(model: Any) -> CausalLM:
    if hasattr(model, "new_cache") and hasattr(model, "forward"):
        return model  # type: ignore[no-any-return]
    from decodekit.models.huggingface import HuggingFaceLM

    return HuggingFaceLM(model)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was read of a tokenizer.

    Args:
        read_for: what it depends on.
        vocabulary: its tokens.
        canonical: how it divides texts; remembers divisions, and does not hold the tokenizer.
    """

    read_for: tuple[object, ...]
    vocabulary: Vocabulary
    canonical: Canonical


_readings: weakref.WeakKeyDictionary[Any, _Reading] = weakref.WeakKeyDictionary()
"""What was last read of each tokenizer that lives; of a large one that takes some tenths of a second."""


def _reading(tokenizer: Any, model: CausalLM) -> _Reading:
    """What is known of a tokenizer beside a model, read anew where tokens, their kinds or the decoder have changed."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "decoder", None)
    read_for = (
        len(tokenizer) if hasattr(tokenizer, "__len__") else None,
        getattr(tokenizer, "eos_token_id", None),
        tuple(getattr(tokenizer, "all_special_ids", ())),
        decoder.__getstate__() if hasattr(decoder, "__getstate__") else None,
        model.vocab_size,
        model.eos_token_ids,
    )
    try:
        known = _readings.get(tokenizer)
        encode = partial(_encode_with, weakref.ref(tokenizer))
    except TypeError:  # no weak references, or no hash
        known, encode = None, partial(encode_plain, tokenizer)
    if known is not None and known.read_for == read_for:
        return known
    vocabulary = Vocabulary.from_tokenizer(tokenizer, logits_width=model.vocab_size, eos_token_ids=model.eos_token_ids)
    reading = _Reading(read_for, vocabulary, Canonical(encode, vocabulary))
    if encode.func is _encode_with:
        _readings[tokenizer] = reading
    return reading


def _encode_with(tokenizer: weakref.ref[Any], text: str) -> list[int]:
    return encode_plain(tokenizer(), text)
