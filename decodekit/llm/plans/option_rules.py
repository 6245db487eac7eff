"""Rules for the options of a call: each is a function that yields what is wrong with them.

    GenerateCall.of(model, vocabulary, GenerateOptions(max_new_tokens=0, masks="always"), faults)
    # faults: "max_new_tokens must be an integer from 1 to 2,147,483,647, got 0",
    #         'masks="always" has no effect without a constraint'

The first rule is that every value lies in its domain; the others say how options go together. All rules are asked
before anything is raised, so that a caller hears of every fault at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from decodekit.chat.conversation import TemplateArguments
from decodekit.constraints.coercion import named_constraint
from decodekit.constraints.tool_calls import Tools, tools
from decodekit.decoding.request.settings import FastForward, left_out_of
from decodekit.decoding.search.search import Search, SearchCall
from decodekit.errors import DecodekitError, OptionError, UselessOptionError, collecting, out_of_domain, warn
from decodekit.models.causal_lm import NO_DRAFTS, CausalLM, can_verify
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import LogitsProcessor, Stage
from decodekit.sampling.checks import SEED, faults_of, is_count
from decodekit.speculation import GrammarDraft, Proposer
from decodekit.speculation.proposer import ChecksTarget, each_proposer
from decodekit.strategy import Greedy, Strategy, resolve_strategy
from decodekit.strategy.options.generate_options import DOMAINS, GenerateOptions, OnLength, stops_of
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
    def chat(self) -> TemplateArguments:
        """The arguments of the chat template, without those that are faults."""
        return template_arguments_of(self.options, [])

    @property
    def is_constrained(self) -> bool:
        """Whether there is a constraint."""
        return self.constraint is not None

    @property
    def on_length(self) -> OnLength | None:
        """The option; None if its value is a fault."""
        return self.options.on_length if self._is_right("on_length") else None

    @property
    def fast_forward(self) -> FastForward:
        """The option; its default if its value is a fault."""
        return self.options.fast_forward if self._is_right("fast_forward") else "exact"

    def _is_right(self, option: str) -> bool:
        return DOMAINS[option].has(getattr(self.options, option))

    @property
    def stops(self) -> tuple[Any, ...]:
        """The stops of a text as a tuple: texts, and functions."""
        return stops_of(self.options.stop)

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


def _domains(call: GenerateCall) -> Faults:
    yield from faults_of(call.options, DOMAINS)


def _logprobs(call: GenerateCall) -> Faults:
    given, size = call.options.logprobs, call.vocabulary.size
    if DOMAINS["logprobs"].has(given) and given > size:
        domain = f"at most {size:,}, as there are no more tokens"
        yield out_of_domain("logprobs", domain, given, hint=f"logprobs={size} or less")


def _of_constraints(call: GenerateCall) -> Faults:
    """Options that are not at their defaults and say how a constraint is used."""
    given = {"on_length": ("close",), "fast_forward": ("off", "canonical"), "masks": ("always",)}
    for name, values in () if call.is_constrained else given.items():
        value = getattr(call.options, name)
        if _is_one_of(value, values):
            yield UselessOptionError(f'{name}="{value}" has no effect without a constraint', at=name)


def _max_retries(call: GenerateCall) -> Faults:
    given, num_texts = call.options.max_retries, getattr(call.strategy, "num_return_sequences", 1)
    if not is_count(given):
        return
    if not call.is_constrained:
        cause = f"max_retries={given} has no effect without a constraint, whose values validators and guards refuse"
        yield UselessOptionError(cause, at="max_retries")
    elif num_texts != 1:
        cause = f"max_retries={given} and num_return_sequences={num_texts} cannot be combined"
        yield OptionError(cause, at="max_retries", hint="a list with the prompt several times, and a seed for each")


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
    return TemplateArguments(definitions, chat, options.split_special_tokens)


def _chat(call: GenerateCall) -> Faults:
    faults: list[DecodekitError] = []
    template_arguments_of(call.options, faults)
    yield from faults


def _reasoning(call: GenerateCall) -> Faults:
    if is_count(call.options.max_reasoning_tokens, 0) and _is_one_of(call.options.reasoning, ("none",)):
        cause = 'max_reasoning_tokens has no effect with reasoning="none"'
        yield UselessOptionError(cause, at="max_reasoning_tokens")


def _stop(call: GenerateCall) -> Faults:
    if DOMAINS["stop"].has(call.options.stop) and call.stop_strings and call.is_constrained:
        cause = "a stop string and a constraint cannot be combined: the constraint decides where the text ends"
        hint = "stop strings only in free text, or a pattern that ends where the stop string would begin"
        yield OptionError(cause, at="stop", hint=hint)


def _include_stop(call: GenerateCall) -> Faults:
    if call.options.include_stop is True and not call.stop_strings:
        cause = "include_stop=True has no effect without a stop string"
        yield UselessOptionError(cause, at="include_stop", hint='stop=["\\n\\n"]')


def _stop_token_ids(call: GenerateCall) -> Faults:
    given, size = call.options.stop_token_ids, call.vocabulary.size
    if not given or not DOMAINS["stop_token_ids"].has(given):
        return
    if not _are_tokens(given, size):
        yield out_of_domain("stop_token_ids", f"token ids from 0 to {size - 1:,}", given, hint="a list of integers")
    elif call.is_constrained:
        cause = "stop_token_ids and a constraint cannot be combined: the constraint decides where the text ends"
        yield OptionError(cause, at="stop_token_ids", hint="dk.Special(name) as a part of the constraint")


def _seed(call: GenerateCall) -> Faults:
    seed: Any = call.options.seed
    if seed is not None and call.strategy is not None and call.strategy.seed is not None:
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
    _domains,
    _logprobs,
    _of_constraints,
    _max_retries,
    _proposers,
    _grammar_drafts,
    _tokens_taken_unseen,
    _search,
    _stop,
    _include_stop,
    _stop_token_ids,
    _seed,
    _closing,
    _chat,
    _reasoning,
)
"""The rules, in the order in which their faults are told."""


def _with_ends(vocabulary: Vocabulary, token_ids: Any) -> Vocabulary:
    """The vocabulary where these tokens end a text; unchanged where they are none."""
    if token_ids is None or not _are_tokens(token_ids, vocabulary.size):
        return vocabulary
    return vocabulary.ending_with(token_ids)


def _are_tokens(value: object, size: int) -> bool:
    return isinstance(value, Sequence) and all(is_count(one, 0) and one < size for one in value)


def _is_one_of(value: object, options: tuple[object, ...]) -> bool:
    return isinstance(value, str) and value in options
