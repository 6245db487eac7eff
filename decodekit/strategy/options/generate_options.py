"""The options of `LLM.generate`: one frozen value, and the same names as keywords that editors and mypy know.

    llm.generate(prompts, strategy="sample", temperature=0.7, max_new_tokens=64)

makes this value, which the checks and the loops read::

    GenerateOptions(strategy="sample", max_new_tokens=64, strategy_options={"temperature": 0.7})

A new option is a field of `GenerateOptions`, a key of `GenerateKeywords` and a domain in `DOMAINS`. How it goes
together with others is a rule in `llm.plans.option_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, Unpack, cast, get_args

from decodekit.chat.thought import Thought
from decodekit.decoding.prefixes.row_memory import MAX_TOKENS
from decodekit.decoding.request.settings import FastForward, Masking
from decodekit.models.wrappers.contrast_model import Contrast
from decodekit.sampling.checks import FLAG, SEED, Domain, at_least, is_count, one_of, plain
from decodekit.sampling.options.option_fields import ProcessorKeywords
from decodekit.sampling.sampler_options import Processors
from decodekit.speculation.proposer import Speculate
from decodekit.speculation.verification import Verify
from decodekit.strategy.strategy import Strategy

OnLength: TypeAlias = Literal["error", "return", "close"]
OnError: TypeAlias = Literal["return", "raise"]
ReasoningLike: TypeAlias = Literal["auto", "none"] | Thought | None
StrategyLike: TypeAlias = str | Strategy | Processors
Stops: TypeAlias = str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
Seeds: TypeAlias = int | Iterable[int] | None


class StrategyKeywords(ProcessorKeywords, total=False):
    """Options of the built-in strategies, for a strategy that is given by name.

    Options of an installed strategy are written in its text, ``strategy="mine:boldness=2"``, or in its value.
    """

    processors: Processors
    order: str
    # which distribution, how many texts, what is drafted: every strategy that draws
    contrast: Contrast | str | None
    num_return_sequences: int
    speculate: Speculate
    verify: Verify
    draft_model: Any
    num_draft_tokens: int | None
    # `Mirostat`
    tau: float
    eta: float
    version: int
    # `Beam` and `ContrastiveSearch`
    num_beams: int
    num_beam_groups: int
    diversity_penalty: float
    length_penalty: float
    early_stopping: bool | Literal["never"]
    do_sample: bool
    penalty_alpha: float
    # `BestOf`, `SelfConsistency` and `Particles`; of others that return several texts it is `num_return_sequences`
    n: int
    rank: Any
    key: Any
    num_particles: int
    method: str
    resample: str
    threshold: float
    returns: str
    predicate: Any


class GenerateKeywords(StrategyKeywords, total=False):
    """Keywords of `LLM.generate`, `stream`, `as_completed` and `decodekit.generate`; see `GenerateOptions`."""

    strategy: StrategyLike
    constraint: Any
    max_new_tokens: int
    stop: Stops
    stop_token_ids: Sequence[int] | None
    include_stop: bool
    seed: Seeds
    logprobs: bool | int
    trace: bool
    on_length: OnLength | None
    on_error: OnError
    max_rollbacks: int | None
    max_retries: int
    fast_forward: FastForward
    masks: Masking
    batch_size: int | None
    tools: Any
    enable_thinking: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    split_special_tokens: bool | None
    reasoning: ReasoningLike
    max_reasoning_tokens: int | None


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The options of `LLM.generate`, beside the prompts.

    A plain value: it is checked by the call that uses it, together with the model and the prompts, so that all faults
    are reported at once. ``llm.generate(prompts, **options.keywords())`` uses it; `dataclasses.replace` varies it.

    Args:
        strategy: ``"greedy"``, ``"sample"``, ``"beam"``, ``"best-of"`` or another installed name; a value such as
            ``Sample(temperature=0.7)`` or ``Beam(4)``; or logits processors joined by ``|``, to sample with.
        constraint: what the text must be: a JSON Schema, a Python type, `Regex`, `Choices`, a response format; or the
            name of a grammar of the library or of an installed constraint.
        max_new_tokens: the most tokens of a text, its end-of-sequence token included.
        stop: texts that end a completion. The one that ends first counts, and is not part of the text. Or functions of
            ``(input_ids, scores)``, such as a `StoppingCriteria` of transformers, asked after every token with the row,
            int64 [1, S], and no scores; the token with which they end a text is part of it.
        stop_token_ids: tokens that end a completion as its end-of-sequence token does, and are not part of the text.
        include_stop: whether the stop string that ended a text is part of it.
        seed: key of the noise when sampling, one for all prompts or one for each; 0 if left out. Equal prompts with
            equal seeds give equal texts, whatever else is in the batch: equal prompts in one list need
            ``seed=range(len(prompts))``, or ``num_return_sequences`` for several texts of one prompt.
        logprobs: record the log-probability of every token under the model's own distribution (before penalties,
            temperature, truncation and constraint), with ``contrast=`` under that of the contrast. An integer k > 0
            records the k likeliest alternatives too.
        trace: record how every token was taken: its source, mask or question, entropy, and the likeliest tokens; see
            `decoding.request.token_traces`. `Completion.show` shows it. The text is the same.
        on_length: what becomes of a text that `max_new_tokens` cuts. ``"error"``, the default with a constraint: it
            carries a `LengthError`. ``"return"``, the default without: it does not; its value is there if it satisfies
            the constraint as it is. ``"close"`` allows no token after which the constraint could not be satisfied
            within `max_new_tokens`, so the text is whole in time; tokens that processors may forbid are not relied on,
            and a processor that may forbid any token is refused.
        on_error: what happens when a row fails: ``"return"`` gives a completion with `.error`, ``"raise"`` raises.
        max_rollbacks: how often a text is rolled back because the guard of the constraint refuses it, before its row
            fails with a `GuardError`; None is `decoding.request.settings.MAX_ROLLBACKS` (64). Only with a guard.
        max_retries: how often a prompt is tried again of which a validator of its type refuses the value
            (`InvalidValueError`), or a guard every text (`GuardError`). The next attempt reads the text and the reason,
            too; see `llm.retries`. Texts are then streamed as a whole at their ends. Only with a constraint, and for
            one text of a prompt.
        fast_forward: what is taken without asking the model where the constraint leaves no choice: ``"exact"``, single
            allowed tokens; ``"off"``, nothing; ``"canonical"``, also single allowed bytes, in the tokenizer's own
            tokens. The first two give the same text, the third changes the distribution; see
            `decoding.request.settings.FastForward` for how and why.
        masks: ``"asked"`` makes a mask of the allowed tokens where questions about single tokens do not settle which
            one is taken, ``"always"`` at every position; the text is the same. See `decoding.lazy_masks.probes`.
            `Stats.log_z`, the mass of the masks, needs ``"always"`` beside `logprobs`.
        batch_size: the most prompts that are decoded at a time; by default 8 on a CPU, and on a GPU what half of its
            free memory holds. Each of several texts of a prompt, and each hypothesis of a search, is a row of a cache.
        tools: of conversations: what the chat template tells the model that it may call, as `dk.tools` takes it (or its
            value). ``constraint=dk.tools(...)`` makes the calls valid.
        enable_thinking: of conversations: for templates that read it, whether the model reasons first.
        chat_template_kwargs: of conversations: variables of the chat template, as in `apply_chat_template`; an option
            that the template does not read is refused. ``continue_final_message=True`` goes on with the last message,
            ``chat_template`` is another template.
        split_special_tokens: whether special tokens that a prompt spells, such as ``<|im_end|>``, are text. By default
            those of messages are, and those of a plain text are not.
        reasoning: whether texts may begin with a thought, behind which constraint and value begin. ``"auto"``: as the
            chat template has it, by its own marks; where the prompt has not begun the thought, the model may also
            answer without one. A `Thought` says the marks. ``"none"``: a text is all answer. None: ``"auto"`` for
            conversations with a constraint whose prompt ends inside of a thought, else ``"none"``. The thought is
            `Completion.reasoning`, the rest `Completion.content`.
        max_reasoning_tokens: after so many tokens of a thought its end is written, and the answer begins; 0 for no
            thought. A template that has a variable for it is told. With ``"auto"``, which it stands for.
        strategy_options: options of a strategy that is given by name, such as ``{"temperature": 0.7}``. As keywords of
            `LLM.generate` they stand beside the others.
    """

    strategy: StrategyLike = "greedy"
    constraint: Any = None
    max_new_tokens: int = 256
    stop: Stops = None
    stop_token_ids: Sequence[int] | None = None
    include_stop: bool = False
    seed: Seeds = None
    logprobs: bool | int = False
    trace: bool = False
    on_length: OnLength | None = None
    on_error: OnError = "return"
    max_rollbacks: int | None = None
    max_retries: int = 0
    fast_forward: FastForward = "exact"
    masks: Masking = "asked"
    batch_size: int | None = None
    tools: Any = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    split_special_tokens: bool | None = None
    reasoning: ReasoningLike = None
    max_reasoning_tokens: int | None = None
    strategy_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in DOMAINS:
            value = plain(getattr(self, name))
            is_several = name in ("seed", "stop_token_ids") and isinstance(value, list | tuple)
            object.__setattr__(self, name, [plain(one) for one in value] if is_several else value)

    @classmethod
    def of(cls, **keywords: Unpack[GenerateKeywords]) -> GenerateOptions:
        """The options that keywords of `LLM.generate` stand for."""
        given: Mapping[str, Any] = keywords
        own = {name: value for name, value in given.items() if name in GENERATION_OPTIONS}
        return cls(**own, strategy_options={name: value for name, value in given.items() if name not in own})

    def keywords(self) -> GenerateKeywords:
        """The keywords of `LLM.generate` that stand for these options."""
        own = {name: getattr(self, name) for name in GENERATION_OPTIONS}
        return cast(GenerateKeywords, {**own, **self.strategy_options})


GENERATION_OPTIONS: Final = tuple(one.name for one in fields(GenerateOptions) if one.name != "strategy_options")
"""Options of `LLM.generate` that do not belong to a strategy."""


def stops_of(stop: Any) -> tuple[Any, ...]:
    """The stops of a text as a tuple: texts, and functions."""
    if stop is None:
        return ()
    return tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)


def _are_stops(stop: object) -> bool:
    is_mapping = isinstance(stop, Mapping)
    return not is_mapping and all(callable(one) or (isinstance(one, str) and one) for one in stops_of(stop))


def _are_seeds(seed: object) -> bool:
    several = isinstance(seed, Iterable) and not isinstance(seed, Mapping | str | bytes)
    return seed is None or several or SEED.has(seed)


_AUTO: Final = one_of("auto", "none")
_TOKENS: Final = Domain(
    f"an integer from 1 to {MAX_TOKENS:,}", lambda value: is_count(value) and value <= MAX_TOKENS
).hinting("a smaller number", lambda value: is_count(value))

DOMAINS: Final[Mapping[str, Domain]] = {
    "max_new_tokens": _TOKENS,
    "stop": Domain("None, a text, a function, or several of them, and no empty text", _are_stops),
    "stop_token_ids": Domain(
        "None or token ids",
        lambda ids: ids is None or (isinstance(ids, Sequence) and all(is_count(one, 0) for one in ids)),
    ).hinting("a list of integers"),
    "include_stop": FLAG,
    "seed": Domain(f"None, {SEED.text}, or one for each prompt", _are_seeds),
    "logprobs": Domain("True, False or an integer of at least 0", lambda value: FLAG.has(value) or is_count(value, 0)),
    "trace": FLAG,
    "on_length": one_of(*get_args(OnLength)).or_none,
    "on_error": one_of(*get_args(OnError)),
    "max_rollbacks": at_least(0).or_none,
    "max_retries": at_least(0),
    "fast_forward": one_of(*get_args(FastForward)),
    "masks": one_of(*get_args(Masking)),
    "batch_size": _TOKENS.or_none,
    "enable_thinking": FLAG.or_none,
    "chat_template_kwargs": Domain(
        "a mapping of names", lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    ).or_none.hinting('{"enable_thinking": False}'),
    "split_special_tokens": FLAG.or_none,
    "reasoning": Domain('"auto", "none" or a Thought', lambda one: isinstance(one, Thought) or _AUTO.has(one)).or_none,
    "max_reasoning_tokens": at_least(0).or_none,
}
"""The domains of the options but three: strategies, constraints and tools are read by parts of their own."""
