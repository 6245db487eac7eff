"""Rules for the options of a call: each is a function that yields what is wrong with them.

    GenerateCall.of(model, vocabulary, GenerateOptions(max_new_tokens=0, on_error="x"), faults)
    # faults: "max_new_tokens=0 is not an integer from 1 on", 'on_error='x' is neither "return" nor "raise"'

All rules are asked before anything is raised, so that a caller hears of every fault at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args

from decodekit.chat.conversation import Telling
from decodekit.chat.thought import Thought
from decodekit.constraints.coerce import named_constraint
from decodekit.constraints.tool_calls import Tools, tools
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.decoding.request.settings import FastForward, Masking, left_out_of
from decodekit.decoding.search.search import Search, SearchCall
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, collecting, warn
from decodekit.models.causal_lm import NO_DRAFTS, CausalLM, can_verify
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import LogitsProcessor, Stage
from decodekit.sampling.checks import is_count
from decodekit.speculation import GrammarDraft, Proposer
from decodekit.speculation.proposer import ChecksTarget, each_proposer
from decodekit.strategy import Greedy, Strategy, check_seed, resolve_strategy
from decodekit.strategy.options.generate_options import GenerateOptions, OnError, OnLength
from decodekit.strategy.options.recommended import read_recommended, recommended_for
from decodekit.vocabulary import Vocabulary

LONGEST_S: Final = 1e9
"""Seconds; no clock has to count further."""


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One call as its rules see it.

    Args:
        model: the model of the call, before a contrast.
        vocabulary: of its tokenizer.
        options: as they were given.
        strategy: what `options.strategy` stands for; None if that is a fault.
        constraint: what `options.constraint` stands for, if it is a name; None without a constraint.
        contrasted: the model under the contrast, or `model` without one.
        pipeline: the processors of the strategy, for this vocabulary.
        recommended: options of the strategy that are taken from the generation config of the model.
        proposer: of the strategy, made once: its model is loaded when it is first used, for checks or for drafts. None
            where the model cannot verify drafts, which is warned of.
    """

    model: CausalLM
    vocabulary: Vocabulary
    options: GenerateOptions
    strategy: Strategy | None
    constraint: Any
    contrasted: CausalLM
    pipeline: tuple[LogitsProcessor, ...]
    recommended: Mapping[str, Any]
    proposer: Proposer | None

    @classmethod
    def of(
        cls, model: CausalLM, vocabulary: Vocabulary, options: GenerateOptions, faults: list[DecodekitError]
    ) -> GenerateCall:
        """The call that options ask for; `faults` gets everything that is wrong with them."""
        strategy: Strategy | None = None
        taken: dict[str, Any] = {}
        with collecting(faults):
            recommended = read_recommended(model.generation_config) if hasattr(model, "generation_config") else {}
            taken = recommended_for(options.strategy, options.strategy_options, recommended)
            strategy = resolve_strategy(options.strategy, {**taken, **options.strategy_options})
        constraint = options.constraint
        if isinstance(constraint, str):
            with collecting(faults):
                constraint = named_constraint(constraint)
        contrast: Contrast | None = getattr(strategy, "contrast", None)
        contrasted = model
        if contrast is not None:
            with collecting(faults):
                contrasted = contrast.applied_to(model, vocabulary)
        ending = _with_ends(vocabulary, options.stop_token_ids)
        pipeline = []
        for processor in () if strategy is None else strategy.pipeline:
            with collecting(faults):
                pipeline.append(processor.for_vocabulary(ending.size, ending.eos_token_ids))
        proposer = None if strategy is None else strategy.proposer
        if proposer is not None and not can_verify(model):
            warn(f"speculate has no effect on {model.name}, {NO_DRAFTS}. Texts are those without it.")
            proposer = None
        call = cls(model, vocabulary, options, strategy, constraint, contrasted, tuple(pipeline), taken, proposer)
        faults += (fault for rule in RULES for fault in rule(call))
        return call

    @property
    def ending_vocabulary(self) -> Vocabulary:
        """The vocabulary where `stop_token_ids` end a text, too."""
        return _with_ends(self.vocabulary, self.options.stop_token_ids)

    @property
    def told(self) -> Telling:
        """The arguments of the chat template, without those that are faults."""
        return telling_of(self.options, [])

    @property
    def is_constrained(self) -> bool:
        """Whether there is a constraint."""
        return self.constraint is not None

    @property
    def on_length(self) -> OnLength | None:
        """The option; None if its value is a fault."""
        return self.options.on_length if _is_one_of(self.options.on_length, get_args(OnLength)) else None

    @property
    def fast_forward(self) -> FastForward:
        """The option; its default if its value is a fault."""
        given = self.options.fast_forward
        return given if _is_one_of(given, get_args(FastForward)) else "exact"

    @property
    def stops(self) -> tuple[Any, ...]:
        """The stops of a text as a tuple: texts, and functions."""
        stop: Any = () if self.options.stop is None else self.options.stop
        return tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)

    @property
    def stop_strings(self) -> tuple[Any, ...]:
        """Of these all that is not a function."""
        return tuple(one for one in self.stops if not callable(one))

    @property
    def proposers(self) -> Sequence[Proposer]:
        """All proposers of drafts, those inside of others as well."""
        return each_proposer(self.proposer)

    @property
    def left_out(self) -> tuple[frozenset[int], tuple[LogitsProcessor, ...]]:
        """Tokens that processors forbid, and the processors that may forbid any token."""
        return left_out_of(self.pipeline, self.vocabulary.size)


Faults: TypeAlias = Iterator[DecodekitError]


def seeds_fit(seed: object, num_prompts: int) -> Faults:
    """There are as many seeds as prompts, and each is a seed."""
    if isinstance(seed, Sequence) and not isinstance(seed, str | bytes):
        if len(seed) != num_prompts:
            yield OptionError(f"{len(seed)} seeds for {num_prompts} prompts", at="seed")
        for one in seed:
            yield from _seed_faults(one)


def warn_of_equal_prompts(prompts: Sequence[Any]) -> None:
    """Warn that equal prompts get equal texts, which is a surprise where several are drawn without a seed."""
    counts = Counter(prompt if isinstance(prompt, str) else repr(prompt) for prompt in prompts)
    most = max(counts.values(), default=1)
    if most > 1:
        warn(
            f"{most} equal prompts get {most} equal texts: without a seed, every prompt has the seed 0. "
            "Try seed=range(len(prompts)), or num_return_sequences for several texts of one prompt."
        )


def timeout_fits(timeout: object) -> Faults:
    """A limit of time is a number of seconds above 0, or None."""
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout > 0):  # type: ignore[operator]
        yield OptionError(f"timeout={timeout!r:.40} is no number of seconds above 0", at="timeout")


def deadline_after(timeout: object, began: float) -> float | None:
    """The deadline, in seconds of `time.monotonic`, of what began then; None without a limit, or with a wrong one."""
    return began + min(timeout, LONGEST_S) if isinstance(timeout, int | float) else None


def _counts(call: GenerateCall) -> Faults:
    for name in ("max_new_tokens", "batch_size"):
        count = getattr(call.options, name)
        if count is None and name == "batch_size":
            continue
        if not is_count(count):
            yield OptionError(f"{name}={count!r:.60} is not an integer from 1 on", at=name)
        elif count > memory.MAX_TOKENS:
            cause = f"{name}={count:,} is above {memory.MAX_TOKENS:,}, the most there can be"
            yield OptionError(cause, at=name, hint="a smaller number")


def _logprobs(call: GenerateCall) -> Faults:
    given, size = call.options.logprobs, call.vocabulary.size
    if not isinstance(given, int) or given < 0:
        yield OptionError(f"logprobs={given!r:.60} is neither a bool nor a number of alternatives", at="logprobs")
    elif given > size:
        cause = f"logprobs={given:,} asks for more alternatives than the {size:,} tokens"
        yield OptionError(cause, at="logprobs", hint=f"logprobs={size} or less")


def _trace(call: GenerateCall) -> Faults:
    given: object = call.options.trace
    if not isinstance(given, bool):
        yield OptionError(f"trace={given!r:.60} is neither True nor False", at="trace")


def _on_length(call: GenerateCall) -> Faults:
    given = call.options.on_length
    if given is not None and call.on_length is None:
        yield OptionError(f'on_length={given!r:.40} is none of "error", "return", "close"', at="on_length")
    elif given == "close" and not call.is_constrained:
        yield UselessOptionError('on_length="close" has no effect without a constraint', at="on_length")


def _max_rollbacks(call: GenerateCall) -> Faults:
    given = call.options.max_rollbacks
    if given is not None and not is_count(given, 0):
        yield OptionError(f"max_rollbacks={given!r:.60} is not an integer from 0 on", at="max_rollbacks")


def _max_retries(call: GenerateCall) -> Faults:
    given, num_texts = call.options.max_retries, getattr(call.strategy, "num_return_sequences", 1)
    if not is_count(given, 0):
        yield OptionError(f"max_retries={given!r:.60} is not an integer from 0 on", at="max_retries")
    elif given and not call.is_constrained:
        cause = f"max_retries={given} has no effect without a constraint, whose values validators and guards refuse"
        yield UselessOptionError(cause, at="max_retries")
    elif given and num_texts != 1:
        cause = f"max_retries={given} and num_return_sequences={num_texts} cannot be combined"
        yield OptionError(cause, at="max_retries", hint="a list with the prompt several times, and a seed for each")


def _fast_forward(call: GenerateCall) -> Faults:
    given = call.options.fast_forward
    if not _is_one_of(given, get_args(FastForward)):
        cause = f'fast_forward={given!r:.60} is none of "off", "exact", "canonical"'
        yield OptionError(cause, at="fast_forward")
    elif given != "exact" and not call.is_constrained:
        cause = f"fast_forward={given!r} has no effect without a constraint"
        yield UselessOptionError(cause, at="fast_forward")


def _masks(call: GenerateCall) -> Faults:
    given = call.options.masks
    if not _is_one_of(given, get_args(Masking)):
        yield OptionError(f'masks={given!r:.60} is neither "asked" nor "always"', at="masks")
    elif given != "asked" and not call.is_constrained:
        yield UselessOptionError(f"masks={given!r} has no effect without a constraint", at="masks")


def _proposers(call: GenerateCall) -> Faults:
    is_greedy = call.strategy is not None and type(call.strategy).select is Greedy.select
    for proposer in call.proposers:
        if isinstance(proposer, ChecksTarget):
            try:
                proposer.check_target(call.model, call.vocabulary, is_greedy=is_greedy)
            except DecodekitError as error:
                yield error


def _grammar_drafts(call: GenerateCall) -> Faults:
    if not any(isinstance(proposer, GrammarDraft) for proposer in call.proposers):
        return
    if not call.is_constrained:
        yield UselessOptionError("GrammarDraft has no effect without a constraint", at="speculate")
    elif call.fast_forward == "canonical":
        cause = 'GrammarDraft offers what fast_forward="canonical" takes without asking'
        yield UselessOptionError(cause, at="speculate", hint='fast_forward="exact", with which the text stays the same')


def _tokens_taken_unseen(call: GenerateCall) -> Faults:
    """With ``fast_forward="canonical"`` no processor sees the tokens that are taken."""
    if call.fast_forward != "canonical" or call.strategy is None:
        return
    begin, hint = 'fast_forward="canonical" takes tokens unseen, and', 'fast_forward="exact"'
    if getattr(call.strategy, "mirostat", None):
        yield OptionError(f"{begin} Mirostat needs their probabilities", at="fast_forward", hint=hint)
    banning = [one for one in call.strategy.pipeline if one.stage is Stage.BIAS and one.can_forbid]
    if banning:
        yield OptionError(f"{begin} {banning[0]!r} may forbid them", at="fast_forward", hint=hint)


def _search(call: GenerateCall) -> Faults:
    search: object = call.strategy  # the type of a strategy does not say that it may be a search
    if isinstance(search, Search):
        given = (call.on_length, call.fast_forward, call.options.max_rollbacks)
        yield from search.refusals(SearchCall(call.contrasted, call.is_constrained, *given))


def telling_of(options: GenerateOptions, faults: list[DecodekitError]) -> Telling:
    """The arguments of a chat template from options; `faults` gets their faults."""
    named: Any = options.chat_template_kwargs
    if named is not None and not (isinstance(named, Mapping) and all(isinstance(name, str) for name in named)):
        cause = f"chat_template_kwargs={named!r:.60} is no mapping of names"
        faults.append(OptionError(cause, at="chat_template_kwargs", hint='{"enable_thinking": False}'))
        named = None
    told = dict(named or {})
    if options.enable_thinking is not None:
        if "enable_thinking" in told:
            faults.append(OptionError("enable_thinking is given twice", at="chat_template_kwargs"))
        thinks: Any = options.enable_thinking
        if not isinstance(thinks, bool):
            faults.append(
                OptionError(f"enable_thinking={thinks!r:.40} is neither True nor False", at="enable_thinking")
            )
        told["enable_thinking"] = thinks
    definitions: list[dict[str, Any]] = []
    if options.tools is not None:
        with collecting(faults):
            given = options.tools if isinstance(options.tools, Tools) else tools(options.tools)
            definitions = given.definitions
    splits: Any = options.split_special_tokens
    if splits is not None and not isinstance(splits, bool):
        cause = f"split_special_tokens={splits!r:.40} is none of True, False and None"
        faults.append(OptionError(cause, at="split_special_tokens"))
    return Telling(definitions, told, splits)


def _chat(call: GenerateCall) -> Faults:
    faults: list[DecodekitError] = []
    telling_of(call.options, faults)
    yield from faults


def _reasoning(call: GenerateCall) -> Faults:
    given: object = call.options.reasoning
    most: object = call.options.max_reasoning_tokens
    if given is not None and not _is_one_of(given, ("auto", "none")) and not isinstance(given, Thought):
        yield OptionError(f'reasoning={given!r:.60} is none of "auto", "none" and a Thought', at="reasoning")
    if most is not None and not is_count(most, 0):
        yield OptionError(f"max_reasoning_tokens={most!r:.60} is not an integer from 0 on", at="max_reasoning_tokens")
    elif most is not None and _is_one_of(given, ("none",)):
        cause = 'max_reasoning_tokens has no effect with reasoning="none"'
        yield UselessOptionError(cause, at="max_reasoning_tokens")


def _on_error(call: GenerateCall) -> Faults:
    given = call.options.on_error
    if not _is_one_of(given, get_args(OnError)):
        yield OptionError(f'on_error={given!r:.60} is neither "return" nor "raise"', at="on_error")


def _stop(call: GenerateCall) -> Faults:
    given, stops = call.options.stop, call.stop_strings
    if isinstance(given, Mapping) or not all(isinstance(text, str) and text for text in stops):
        yield OptionError(
            f"stop={given!r:.60} holds something that is neither a text nor a function, or the empty text", at="stop"
        )
    elif stops and call.is_constrained:
        cause = "a stop string and a constraint cannot be combined: the constraint decides where the text ends"
        hint = "stop strings only in free text, or a pattern that ends where the stop string would begin"
        yield OptionError(cause, at="stop", hint=hint)


def _include_stop(call: GenerateCall) -> Faults:
    given: object = call.options.include_stop
    if not isinstance(given, bool):
        yield OptionError(f"include_stop={given!r:.40} is neither True nor False", at="include_stop")
    elif given and not call.stop_strings:
        cause = "include_stop=True has no effect without a stop string"
        yield UselessOptionError(cause, at="include_stop", hint='stop=["\\n\\n"]')


def _stop_token_ids(call: GenerateCall) -> Faults:
    given, size = call.options.stop_token_ids, call.vocabulary.size
    if given is None:
        return
    if not _are_tokens(given, size):
        cause = f"stop_token_ids={given!r:.60} are no token ids from 0 to {size - 1:,}"
        yield OptionError(cause, at="stop_token_ids", hint="a list of integers")
    elif given and call.is_constrained:
        cause = "stop_token_ids and a constraint cannot be combined: the constraint decides where the text ends"
        yield OptionError(cause, at="stop_token_ids", hint="dk.Special(name) as a part of the constraint")


def _seed(call: GenerateCall) -> Faults:
    seed: Any = call.options.seed
    if seed is None:
        return
    if not isinstance(seed, Iterable) or isinstance(seed, Mapping | str | bytes):
        yield from _seed_faults(seed)
    if call.strategy is not None and call.strategy.seed is not None:
        yield OptionError(f"seed={seed!r} is given beside {call.strategy!r}, which has one", at="seed")


def _closing(call: GenerateCall) -> Faults:
    """With ``on_length="close"`` it must be known which tokens processors forbid."""
    for processor in call.left_out[1] if call.on_length == "close" else ():
        yield OptionError(
            f'on_length="close" and {processor!r} cannot be combined: it may forbid any token, also those that '
            "a text needs to end",
            at="on_length",
            hint='on_length="return" or "error" with bounds on lengths in the constraint; a processor of your '
            "own says by `may_forbid` which tokens it forbids, or by `can_forbid` that it forbids none",
        )


RULES: Final[tuple[Callable[[GenerateCall], Faults], ...]] = (
    _counts,
    _logprobs,
    _trace,
    _on_length,
    _max_rollbacks,
    _max_retries,
    _fast_forward,
    _masks,
    _proposers,
    _grammar_drafts,
    _tokens_taken_unseen,
    _search,
    _on_error,
    _stop,
    _include_stop,
    _stop_token_ids,
    _seed,
    _closing,
    _chat,
    _reasoning,
)
"""The rules, in the order in which their faults are told."""


def _seed_faults(seed: object) -> list[DecodekitError]:
    faults: list[DecodekitError] = []
    check_seed(seed, faults)
    return faults


def _with_ends(vocabulary: Vocabulary, token_ids: Any) -> Vocabulary:
    """The vocabulary where these tokens end a text; unchanged where they are none."""
    if token_ids is None or not _are_tokens(token_ids, vocabulary.size):
        return vocabulary
    return vocabulary.ending_with(token_ids)


def _are_tokens(value: object, size: int) -> bool:
    return isinstance(value, Sequence) and all(is_count(one, 0) and one < size for one in value)


def _is_one_of(value: object, options: tuple[object, ...]) -> bool:
    return isinstance(value, str) and value in options
