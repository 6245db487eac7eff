"""The plan of a call, made of checked options: the settings of the loops, the model, and the compiled constraint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import repeat
from typing import Any

from decodekit.chat.conversation import TemplateArguments
from decodekit.chat.thought import Thought
from decodekit.chat.tools import NO_TEMPLATE, in_format_of, tells_format, waits
from decodekit.constraints import as_constraint, compile
from decodekit.constraints.coercion import named_constraint
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.matching.matcher import Matcher
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.decoding.request.prompt import Prompt
from decodekit.decoding.request.settings import MAX_ROLLBACKS, Settings, left_out_of
from decodekit.decoding.request.stopping import StoppingFunction
from decodekit.decoding.search.search import Aggregation, Search
from decodekit.errors import (
    DecodekitError,
    OptionError,
    ResourceLimitError,
    UselessOptionError,
    collecting,
    raise_faults,
    warn,
)
from decodekit.llm.plans.option_rules import are_tokens, faults_of_call, template_arguments_of
from decodekit.llm.thoughts import Reasoning, reasoning_of
from decodekit.models.causal_lm import NO_DRAFTS, CausalLM, can_verify
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling import LogitsProcessor, Pipeline
from decodekit.speculation.proposer import Proposer, each_proposer
from decodekit.speculation.proposers.canonical import Canonical
from decodekit.strategy import Greedy, Strategy, can_redraw, lead_of, resolve_strategy
from decodekit.strategy.options.generate_options import GenerateOptions, OnLength, stops_of
from decodekit.strategy.options.recommended import read_recommended, recommended_for
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Settings):
    """A checked call: the settings of its loops, and what is done around them.

    Args:
        options: as they were given.
        strategy: takes the tokens.
        model: runs; under the contrast if there is one.
        grammar: the compiled constraint; None without one.
        search: the strategy, if it has a loop of its own.
        choice: the strategy, if it chooses among several samples.
        chat: what the chat template is told beside the messages.
        recommended: what the strategy takes from the generation config of the model.
        reasoning: how texts may reason; None if they are all answer.
    """

    options: GenerateOptions
    strategy: Strategy
    model: CausalLM
    grammar: CompiledGrammar | None
    search: Search | None
    choice: Aggregation | None
    chat: TemplateArguments
    recommended: tuple[tuple[str, Any], ...]
    reasoning: Reasoning | None

    @classmethod
    def of(
        cls,
        model: CausalLM,
        vocabulary: Vocabulary,
        canonical: Callable[[], Canonical],
        options: GenerateOptions,
        faults: list[DecodekitError],
        tokenizer: Any = None,
    ) -> Plan:
        """Check options, then compile the constraint.

        Args:
            model, vocabulary: of the call.
            canonical: gives how the tokenizer divides texts.
            options: of the call.
            faults: what was found before; it is raised with the rest.
            tokenizer: with the chat template, which tells how tools are called and what a thought is; None for none.

        Raises:
            OptionError: with all faults; or what only the compiled constraint shows.
            ConstraintError: the constraint cannot be used.
            ChatTemplateError: the chat template does not tell how tools are called.
        """
        strategy, recommended = _strategy(model, options, faults)
        constraint = options.constraint
        if isinstance(constraint, str):
            with collecting(faults):
                constraint = named_constraint(constraint)
        contrast: Contrast | None = getattr(strategy, "contrast", None)
        contrasted = model
        if contrast is not None:
            with collecting(faults):
                contrasted = contrast.applied_to(model, vocabulary)
        ending, pipeline = _pipeline(strategy, options, vocabulary, faults)
        proposer = _proposer(strategy, model)
        proposers = each_proposer(proposer)
        faults += faults_of_call(options, strategy, model, vocabulary, contrasted, pipeline, proposers)
        raise_faults(faults)
        chat = template_arguments_of(options, [])
        grammar = None
        if constraint is not None:
            grammar = compile(_constraint(constraint, chat, tokenizer), vocabulary)
        _check_compiled(options, grammar, pipeline)
        given: object = strategy  # the type of a strategy does not say that it may be a search
        choice = given if isinstance(given, Aggregation) else None
        reasoning = reasoning_of(options, None if grammar is None else grammar.constraint, ending, tokenizer, chat)
        stops = stops_of(options.stop)
        return cls(
            vocabulary=ending,
            pipeline=Pipeline(pipeline),
            select=strategy.select,
            max_new_tokens=options.max_new_tokens,
            stops=tuple(one for one in stops if not callable(one)),
            keeps_stop=options.include_stop,
            stop_rules=tuple(StoppingFunction(one) for one in stops if callable(one)),
            num_alternatives=_num_alternatives(options, choice),
            can_redraw=can_redraw(strategy),
            max_rollbacks=MAX_ROLLBACKS if options.max_rollbacks is None else options.max_rollbacks,
            must_close=options.on_length == "close",
            fast_forward=options.fast_forward,
            lead=lead_of(strategy),
            masks=options.masks,
            traces=options.trace,
            texts=() if reasoning is None else reasoning.texts,
            proposer=proposer,
            verify=getattr(strategy, "verify", "coupled"),  # a search has none
            mirostat=getattr(strategy, "mirostat", None),  # beams have none
            canonical=canonical(),
            distribution_of="the model" if contrast is None else f"the model under {contrast!r:.80}",
            options=options,
            strategy=strategy,
            model=contrasted,
            grammar=grammar,
            search=given if isinstance(given, Search) else None,
            choice=choice,
            chat=chat,
            recommended=tuple(recommended.items()),
            reasoning=reasoning,
        )

    @property
    def contrast(self) -> Contrast | None:
        """The contrast of the strategy."""
        return getattr(self.strategy, "contrast", None)

    def begun(
        self, prompt: Prompt, token_ids: Sequence[int], chat: TemplateArguments
    ) -> tuple[Thought | None, Matcher | None]:
        """The thought that the text behind a prompt may begin with, and the matcher of the text.

        Args:
            prompt: as it was given.
            token_ids: of it.
            chat: the arguments of the chat template.
        """
        thought = None if self.reasoning is None else self.reasoning.thought_behind(prompt, token_ids, chat)
        if thought is not None and self.reasoning is not None:
            return thought, self.reasoning.matcher(thought)
        return None, None if self.grammar is None else self.grammar.matcher()

    @property
    def num_samples(self) -> int:
        """The number of texts that are decoded of a prompt; a search has its own."""
        return getattr(self.strategy, "num_samples", 1)

    @property
    def on_length(self) -> OnLength:
        """The treatment of a text that is cut."""
        return self.options.on_length or ("return" if self.grammar is None else "error")

    @property
    def seeds(self) -> Iterable[int]:
        """A seed for each prompt."""
        seed = self.strategy.seed or 0 if self.options.seed is None else self.options.seed
        return seed if isinstance(seed, Iterable) else repeat(seed)

    @property
    def is_drawn_unseeded(self) -> bool:
        """Whether texts are drawn, and nobody gave a seed."""
        return self.options.seed is None and self.strategy.seed is None and _has_seed(self.strategy)

    @property
    def batch_size(self) -> int:
        """Prompts at a time."""
        if self.options.batch_size is not None:
            return self.options.batch_size
        rows, _ = self._rows_of_a_prompt
        return max(1, memory.rows_that_fit(self.model, memory.FEW_ROWS * rows) // rows)

    @property
    def _rows_of_a_prompt(self) -> tuple[int, str | None]:
        """The number of rows that a search has for a prompt, and the option that says so."""
        for name in ("num_beams", "num_particles", "num_candidates"):
            if self.search is not None and hasattr(self.search, name):
                rows: int = getattr(self.search, name)
                return rows, f"{'top_k' if name == 'num_candidates' else name}={rows}"
        return 1, None

    def check_memory(self, num_prompts: int, num_sure: int) -> None:
        """Refuse what memory cannot hold, before anything is read.

        Args:
            num_prompts: the most prompts at a time.
            num_sure: how many there are at least.

        Raises:
            OptionError: the rows, masks or drafts do not fit.
        """
        rows, named = self._rows_of_a_prompt
        option = named or f"batch_size={self.batch_size}"
        if self.num_samples > 1:
            name = "n" if self.choice else "num_return_sequences"
            memory.check_texts(self.num_samples, f"{name}={self.num_samples}")
        memory.check_masks(num_prompts * rows, self.vocabulary.num_mask_words, option)
        memory.check_rows(self.model, num_sure * rows, 1, option)
        longest = min(self.options.max_new_tokens, self.model.context_length or memory.MAX_TOKENS)
        for proposer in each_proposer(self.proposer):
            for name in ("num_tokens", "max_tokens"):
                num_tokens = getattr(proposer, name, 0)
                if num_tokens > 1:
                    memory.check_rows(self.model, 1, 1, f"{name}={num_tokens}", 1 + min(num_tokens, longest))


def _strategy(
    model: CausalLM, options: GenerateOptions, faults: list[DecodekitError]
) -> tuple[Strategy, Mapping[str, Any]]:
    """The strategy that options name, and what it takes from the model's generation config; greedy if it is a fault."""
    strategy: Strategy | None = None
    taken: Mapping[str, Any] = {}
    with collecting(faults):
        recommended = read_recommended(model.generation_config) if hasattr(model, "generation_config") else {}
        taken = recommended_for(options.strategy, options.strategy_options, recommended)
        strategy = resolve_strategy(options.strategy, {**taken, **options.strategy_options})
    return Greedy() if strategy is None else strategy, taken


def _pipeline(
    strategy: Strategy, options: GenerateOptions, vocabulary: Vocabulary, faults: list[DecodekitError]
) -> tuple[Vocabulary, list[LogitsProcessor]]:
    """The vocabulary where `stop_token_ids` end a text, too, and the processors of the strategy for it."""
    given, pipeline = options.stop_token_ids, []
    if given is not None and are_tokens(given, vocabulary.size):
        vocabulary = vocabulary.ending_with(given)
    for processor in strategy.pipeline:
        with collecting(faults):
            pipeline.append(processor.for_vocabulary(vocabulary.size, vocabulary.eos_token_ids))
    return vocabulary, pipeline


def _proposer(strategy: Strategy, model: CausalLM) -> Proposer | None:
    """The proposer of a strategy, made once: its model is loaded when it is first used, for checks or for drafts.

    None, with a warning, where the model cannot verify drafts.
    """
    proposer = strategy.proposer
    if proposer is None or can_verify(model):
        return proposer
    warn(f"speculate has no effect on {model.name}, {NO_DRAFTS}. Texts are those without it.")
    return None


def _constraint(given: Any, chat: TemplateArguments, tokenizer: Any) -> Constraint:
    """The constraint, with what the tokenizer tells of it."""
    constraint = as_constraint(given)
    if tokenizer is None or not waits(constraint):
        return constraint
    template = chat.options.get("chat_template")
    if not tells_format(tokenizer, template):
        warn(NO_TEMPLATE)
    return in_format_of(constraint, tokenizer, template)


def _num_alternatives(options: GenerateOptions, choice: Aggregation | None) -> int | None:
    """The number of alternatives that are recorded with each token; None if nothing is."""
    if not options.logprobs:
        return 0 if choice is not None and choice.needs_logprobs else None
    return 0 if options.logprobs is True else options.logprobs


def _check_compiled(
    options: GenerateOptions, grammar: CompiledGrammar | None, pipeline: Sequence[LogitsProcessor]
) -> None:
    """Raise what only the compiled constraint shows.

    Raises:
        UselessOptionError: nothing is ever rolled back.
        OptionError: no text of the constraint is short enough to be closed in time.
    """
    if options.max_rollbacks is not None and (grammar is None or not grammar.has_guard):
        cause = f"max_rollbacks={options.max_rollbacks} has no effect: only a constraint with a guard takes texts back"
        raise UselessOptionError(cause, at="max_rollbacks")
    if grammar is None or options.on_length != "close":
        return
    least = _least_tokens(grammar, pipeline)
    if least > options.max_new_tokens:
        raise OptionError(
            f"max_new_tokens={options.max_new_tokens:,} is too few for any text of the constraint: it needs {least:,}",
            at="max_new_tokens",
            hint=f"max_new_tokens={least} or more",
        )


def _least_tokens(grammar: CompiledGrammar, pipeline: Sequence[LogitsProcessor]) -> int:
    """The number of tokens that suffice for some text, none of them forbidden.

    Raises:
        OptionError: there is no text without the forbidden tokens, or none was found.
        ResourceLimitError: none was found, and nothing is forbidden.
    """
    left_out = left_out_of(pipeline, grammar.vocabulary.size)[0]
    try:
        return grammar.least_tokens(left_out)
    except ResourceLimitError as error:
        if not left_out:
            raise
        forbidding = [processor for processor in pipeline if left_out_of([processor], grammar.vocabulary.size)[0]]
        names = ", ".join(f"{processor!r:.80}" for processor in forbidding)
        cause = f'on_length="close" cannot be kept: no text of the constraint was found without what {names} may forbid'
        hint = "fewer forbidden tokens (of a sequence the last one counts), or another on_length"
        raise OptionError(cause, at="on_length", hint=hint) from error


def _has_seed(strategy: Any) -> bool:
    """Whether a strategy, or the one that it draws samples with, draws by a seed; beams do if they are told to."""
    drawing = getattr(strategy, "strategy", strategy)
    has_seed = is_dataclass(drawing) and any(option.name == "seed" for option in fields(drawing))
    return has_seed and getattr(drawing, "do_sample", True)
