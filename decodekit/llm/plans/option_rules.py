"""Rules for the options of a call: each is a function that yields what is wrong with them.

    [*faults_of_call(GenerateOptions(max_new_tokens=0, masks="always"), strategy, ...)]
    # "max_new_tokens must be an integer from 1 to 2,147,483,647, got 0",
    # 'masks="always" has no effect without a constraint'

The first rule is that every value lies in its domain; the others say how options go together, and look past a value
that is a fault already. All rules are asked before anything is raised, so that a caller hears of every fault at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from decodekit.chat.conversation import NO_ARGUMENTS, TemplateArguments
from decodekit.constraints.tool_calls import Tools, tools
from decodekit.decoding.request.settings import left_out_of
from decodekit.decoding.search.search import Search, SearchCall
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, collecting, out_of_domain, warn
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling import LogitsProcessor, Stage
from decodekit.sampling.checks import SEED, faults_of, is_count
from decodekit.speculation import GrammarDraft, Proposer
from decodekit.speculation.proposer import ChecksTarget
from decodekit.strategy import Greedy, Strategy
from decodekit.strategy.options.generate_options import DOMAINS, GenerateOptions, stops_of
from decodekit.vocabulary import Vocabulary

LONGEST_S: Final = 1e9
"""Seconds; no clock has to count further."""


Faults: TypeAlias = Iterator[DecodekitError]


def faults_of_call(
    options: GenerateOptions,
    strategy: Strategy,
    model: CausalLM,
    vocabulary: Vocabulary,
    contrasted: CausalLM,
    pipeline: Sequence[LogitsProcessor],
    proposers: Sequence[Proposer],
) -> Faults:
    """Everything that is wrong with the options of a call, in the order in which it is told.

    Args:
        options: as they were given.
        strategy: what `options.strategy` stands for; any plain one if that is a fault.
        model, vocabulary: of the call.
        contrasted: the model under the contrast, or `model` without one.
        pipeline: the processors of the strategy, for this vocabulary.
        proposers: all that offer drafts, those inside of others as well.
    """
    yield from faults_of(options, DOMAINS)
    yield from _logprobs(options, vocabulary.size)
    yield from _of_constraints(options)
    yield from _max_retries(options, strategy)
    yield from _proposers(proposers, strategy, model, vocabulary)
    yield from _grammar_drafts(options, proposers)
    yield from _tokens_taken_unseen(options, strategy)
    yield from _search(options, strategy, contrasted)
    yield from _stop(options)
    yield from _stop_token_ids(options, vocabulary.size)
    yield from _seed(options, strategy)
    yield from _closing(options, pipeline, vocabulary.size)
    told: list[DecodekitError] = []
    template_arguments_of(options, told)
    yield from told
    yield from _reasoning(options)


def _right(options: GenerateOptions, name: str) -> Any:
    """The value of an option; None if it is a fault."""
    value = getattr(options, name)
    return value if DOMAINS[name].has(value) else None


def seeds_fit(seed: object, num_prompts: int) -> Faults:
    """There are as many seeds as prompts, and each is a seed."""
    if isinstance(seed, Sequence) and not isinstance(seed, str | bytes):
        if len(seed) != num_prompts:
            yield OptionError(f"{len(seed)} seeds for {num_prompts} prompts", at="seed")
        yield from (fault for one in seed if (fault := SEED.fault("seed", one)) is not None)


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
        yield out_of_domain("timeout", "None or a number of seconds above 0", timeout)


def deadline_after(timeout: object, began: float) -> float | None:
    """The deadline, in seconds of `time.monotonic`, of what began then; None without a limit, or with a wrong one."""
    return began + min(timeout, LONGEST_S) if isinstance(timeout, int | float) else None


def _logprobs(options: GenerateOptions, size: int) -> Faults:
    given = options.logprobs
    if DOMAINS["logprobs"].has(given) and given > size:
        domain = f"at most {size:,}, as there are no more tokens"
        yield out_of_domain("logprobs", domain, given, hint=f"logprobs={size} or less")


def _of_constraints(options: GenerateOptions) -> Faults:
    """Options that are not at their defaults and say how a constraint is used."""
    given = {"on_length": ("close",), "fast_forward": ("off", "canonical"), "masks": ("always",)}
    for name, values in () if options.constraint is not None else given.items():
        value = getattr(options, name)
        if _is_one_of(value, values):
            yield UselessOptionError(f'{name}="{value}" has no effect without a constraint', at=name)


def _max_retries(options: GenerateOptions, strategy: Strategy) -> Faults:
    given, num_texts = options.max_retries, getattr(strategy, "num_return_sequences", 1)
    if not is_count(given):
        return
    if options.constraint is None:
        cause = f"max_retries={given} has no effect without a constraint, whose values validators and guards refuse"
        yield UselessOptionError(cause, at="max_retries")
    elif num_texts != 1:
        cause = f"max_retries={given} and num_return_sequences={num_texts} cannot be combined"
        yield OptionError(cause, at="max_retries", hint="a list with the prompt several times, and a seed for each")


def _proposers(proposers: Sequence[Proposer], strategy: Strategy, model: CausalLM, vocabulary: Vocabulary) -> Faults:
    is_greedy = type(strategy).select is Greedy.select
    for proposer in proposers:
        if isinstance(proposer, ChecksTarget):
            try:
                proposer.check_target(model, vocabulary, is_greedy=is_greedy)
            except DecodekitError as error:
                yield error


def _grammar_drafts(options: GenerateOptions, proposers: Sequence[Proposer]) -> Faults:
    if not any(isinstance(proposer, GrammarDraft) for proposer in proposers):
        return
    if options.constraint is None:
        yield UselessOptionError("GrammarDraft has no effect without a constraint", at="speculate")
    elif _right(options, "fast_forward") == "canonical":
        cause = 'GrammarDraft offers what fast_forward="canonical" takes without asking'
        yield UselessOptionError(cause, at="speculate", hint='fast_forward="exact", with which the text stays the same')


def _tokens_taken_unseen(options: GenerateOptions, strategy: Strategy) -> Faults:
    """With ``fast_forward="canonical"`` no processor sees the tokens that are taken."""
    if _right(options, "fast_forward") != "canonical":
        return
    begin, hint = 'fast_forward="canonical" takes tokens unseen, and', 'fast_forward="exact"'
    if getattr(strategy, "mirostat", None):
        yield OptionError(f"{begin} Mirostat needs their probabilities", at="fast_forward", hint=hint)
    banning = [one for one in strategy.pipeline if one.stage is Stage.BIAS and one.can_forbid]
    if banning:
        yield OptionError(f"{begin} {banning[0]!r} may forbid them", at="fast_forward", hint=hint)


def _search(options: GenerateOptions, strategy: Strategy, contrasted: CausalLM) -> Faults:
    search: object = strategy  # the type of a strategy does not say that it may be a search
    if isinstance(search, Search):
        given = _right(options, "on_length"), _right(options, "fast_forward") or "exact", options.max_rollbacks
        yield from search.refusals(SearchCall(contrasted, options.constraint is not None, *given))


def template_arguments_of(options: GenerateOptions, faults: list[DecodekitError]) -> TemplateArguments:
    """The arguments of a chat template from options; `faults` gets their faults."""
    named: Any = options.chat_template_kwargs
    chat = dict(named) if named is not None and DOMAINS["chat_template_kwargs"].has(named) else {}
    if options.enable_thinking is not None:
        if "enable_thinking" in chat:
            faults.append(OptionError("enable_thinking is given twice", at="chat_template_kwargs"))
        chat["enable_thinking"] = options.enable_thinking
    definitions: list[dict[str, Any]] = []
    if options.tools is not None:
        with collecting(faults):
            given = options.tools if isinstance(options.tools, Tools) else tools(options.tools)
            definitions = given.definitions
    is_told = bool(definitions or chat) or options.split_special_tokens is not None
    return TemplateArguments(definitions, chat, options.split_special_tokens) if is_told else NO_ARGUMENTS


def _reasoning(options: GenerateOptions) -> Faults:
    if is_count(options.max_reasoning_tokens, 0) and _is_one_of(options.reasoning, ("none",)):
        cause = 'max_reasoning_tokens has no effect with reasoning="none"'
        yield UselessOptionError(cause, at="max_reasoning_tokens")


def _stop(options: GenerateOptions) -> Faults:
    has_text = not all(map(callable, stops_of(options.stop)))
    if DOMAINS["stop"].has(options.stop) and has_text and options.constraint is not None:
        cause = "a stop string and a constraint cannot be combined: the constraint decides where the text ends"
        hint = "stop strings only in free text, or a pattern that ends where the stop string would begin"
        yield OptionError(cause, at="stop", hint=hint)
    if options.include_stop is True and not has_text:
        cause = "include_stop=True has no effect without a stop string"
        yield UselessOptionError(cause, at="include_stop", hint='stop=["\\n\\n"]')


def _stop_token_ids(options: GenerateOptions, size: int) -> Faults:
    given = options.stop_token_ids
    if not given or not DOMAINS["stop_token_ids"].has(given):
        return
    if not are_tokens(given, size):
        yield out_of_domain("stop_token_ids", f"token ids from 0 to {size - 1:,}", given, hint="a list of integers")
    elif options.constraint is not None:
        cause = "stop_token_ids and a constraint cannot be combined: the constraint decides where the text ends"
        yield OptionError(cause, at="stop_token_ids", hint="dk.Special(name) as a part of the constraint")


def _seed(options: GenerateOptions, strategy: Strategy) -> Faults:
    if options.seed is not None and strategy.seed is not None:
        yield OptionError(f"seed={options.seed!r} is given beside {strategy!r}, which has one", at="seed")


def _closing(options: GenerateOptions, pipeline: Sequence[LogitsProcessor], size: int) -> Faults:
    """With ``on_length="close"`` it must be known which tokens processors forbid."""
    for processor in left_out_of(pipeline, size)[1] if _right(options, "on_length") == "close" else ():
        yield OptionError(
            f'on_length="close" and {processor!r} cannot be combined: it may forbid any token, also those that '
            "a text needs to end",
            at="on_length",
            hint='on_length="return" or "error" with bounds on lengths in the constraint; a processor of your '
            "own says by `may_forbid` which tokens it forbids, or by `can_forbid` that it forbids none",
        )


def are_tokens(value: object, size: int) -> bool:
    """Whether these are tokens of a vocabulary of this size."""
    return isinstance(value, Sequence) and all(is_count(one, 0) and one < size for one in value)


def _is_one_of(value: object, options: tuple[object, ...]) -> bool:
    return isinstance(value, str) and value in options
