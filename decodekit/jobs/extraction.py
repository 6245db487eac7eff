"""Extraction: a model, a schema and options, ready to run on documents into a job folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, get_args

from decodekit import __version__
from decodekit.chat.conversation import has_chat_template
from decodekit.chat.tools import in_format_of
from decodekit.constraints import Constraint, as_constraint, compile
from decodekit.constraints.matching.compiler import CompiledElsewhere
from decodekit.decoding.request.settings import FastForward
from decodekit.decoding.search.search import Search, SearchCall
from decodekit.errors import ConstraintError, OptionError, UselessOptionError, raise_faults
from decodekit.jobs.document_prompt import choose_prompt, read_template
from decodekit.jobs.documents.documents import DocumentRef
from decodekit.jobs.documents.files import needed
from decodekit.jobs.folder.job_folder import JobFolder, JobSettings
from decodekit.jobs.job_runner import Executor, JobRunner, LocalExecutor, Observer, RunSummary
from decodekit.jobs.job_schema import JobSchema, reload_schema
from decodekit.jobs.validation import OutputValidator
from decodekit.records.fingerprints import digest, tokenizer_fingerprint, weights_fingerprint
from decodekit.sampling.checks import COUNT, FLAG, SEED, Domain, faults_of, one_of
from decodekit.strategy import Strategy, resolve_strategy, spelled_strategy
from decodekit.strategy.options.generate_options import OnLength
from decodekit.strategy.options.recommended import recommended_for
from decodekit.strategy.several import OverSamples
from decodekit.strategy.strategy_programs import programs_of

if TYPE_CHECKING:
    from decodekit.llm import LLM


ExecutorName: TypeAlias = Literal["local", "ray"]
"""Where documents are decoded."""

_SETTINGS = ("model", "max_new_tokens", "on_length", "seed", "chat_template_kwargs")
"""The options that are settings of a job as they are."""

_CALL = ("max_new_tokens", "on_length", "fast_forward", "max_rollbacks", "max_retries")
"""The options that those of `LLM.generate` are."""

SPECULATE = ("grammar", "prompt-lookup")
"""The proposers of an extraction, unless the user says otherwise.

Keys, quotes and commas follow from the schema, values are mostly copied from the document, and the guesses cost no
model. The grammar comes first: where it guesses at all, it is nearly always right.
"""


def _reads_back(value: Any) -> bool:
    """Whether JSON, in which a job writes a mapping down, gives it back as it was."""
    try:
        return isinstance(value, Mapping) and bool(json.loads(json.dumps({**value}, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


_JSON: Final = Domain("a mapping of names to values of JSON", _reads_back).hinting('{"enable_thinking": False}').or_none
_DOMAINS: Final = {
    "seed": SEED,
    "chat_template_kwargs": _JSON,
    "max_failures": COUNT.or_none,
    "executor": one_of(*get_args(ExecutorName)),
    "num_workers": COUNT.or_none,
    "alternatives": FLAG,
}
"""Values of the options that are none of `LLM.generate`, whose front door refuses the others."""


class ExtractionKeywords(TypedDict, total=False):
    """Those of `ExtractionOptions` that are keywords of `decodekit.extract`, too."""

    prompt: str | None
    max_new_tokens: int
    on_length: OnLength
    seed: int
    speculate: tuple[str, ...] | None
    fast_forward: FastForward
    max_rollbacks: int | None
    max_retries: int
    chat_template_kwargs: Mapping[str, Any] | None
    batch_size: int | None
    max_failures: int | None
    executor: ExecutorName
    num_workers: int | None
    alternatives: bool
    device_map: str | None


@dataclass(frozen=True)
class ExtractionOptions:
    """The options that a user chooses for an extraction; `check` refuses all that can be wrong without a model.

    Attributes:
        strategy: a name, possibly with options, such as ``"sample:temperature=0.7"``.
        prompt: template, ``@FILE``, or None for the default of the model.
        is_raw: do not use the model's chat template.
        max_new_tokens: budget per document.
        on_length: ``"error"``: a document cut at the budget has failed; ``"return"``: it is done, without a value;
            ``"close"``: its JSON is closed before the budget is used up.
        seed: base of the documents' seeds.
        speculate: names of proposers, in order; empty for none. None is `SPECULATE`, where the model and the
            strategy can. Results do not depend on it, so it is not one of the job's settings.
        fast_forward, max_rollbacks, max_retries, chat_template_kwargs: as in `LLM.generate`.
        batch_size: documents decoded at a time; None leaves it to the device. This and what follows decides no result.
        max_failures: the number of failures after which no more documents are taken up; None for no limit.
        executor: ``"local"``: in this process; ``"ray"``: in `num_workers` actors of Ray (see `jobs.ray`).
        alternatives: find the probabilities of all values of fields that have few; see `jobs.reports.alternatives`.
        device_map: how the model is spread over the devices of a machine, here or of a worker; as of `LLM.load`.
    """

    schema: JobSchema
    model: str = "tiny"
    strategy: str = "greedy"
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    is_raw: bool = False
    max_new_tokens: int = 512
    on_length: str = "error"
    seed: int = 0
    speculate: tuple[str, ...] | None = None
    fast_forward: FastForward = "exact"
    max_rollbacks: int | None = None
    max_retries: int = 0
    chat_template_kwargs: Mapping[str, Any] | None = None
    batch_size: int | None = None
    max_failures: int | None = None
    executor: ExecutorName = "local"
    num_workers: int | None = None
    alternatives: bool = False
    device_map: str | None = None

    @property
    def strategy_settings(self) -> dict[str, Any]:
        """The strategy as one of the settings of a job: all that decides which token is taken."""
        name, spelled = spelled_strategy(self.strategy)
        options = {**spelled, **self.strategy_options}
        guesses = options.pop("speculate", None) or self.speculate
        if options.get("verify") == "rejection" and guesses:  # then the text depends on the proposers
            options["speculate"] = guesses if isinstance(guesses, str) else list(guesses)
        if self.fast_forward == "canonical":  # it changes the distribution
            options["fast_forward"] = self.fast_forward
        if self.max_rollbacks is not None:  # it decides who fails
            options["max_rollbacks"] = self.max_rollbacks
        if self.max_retries:
            options["max_retries"] = self.max_retries
        return {"name": name, **options}

    def check(self, tokenizer: Any = None) -> tuple[Strategy, Constraint, OutputValidator]:
        """Check executor, prompt, strategy and schema, which needs no model; a cluster that there is already is asked.

        Args:
            tokenizer: of the model, whose chat template tells how tools are called; until it is there they are checked
                in the format "hermes".

        Returns:
            The strategy, the constraint to decode with, and the validator of outputs.

        Raises:
            OptionError, UnknownNameError: of the strategy, the prompt or the executor, or without effect.
            ConstraintError: the schema is malformed, not supported or not satisfiable.
            JobError: Ray is not installed, or its cluster cannot be reached.
        """
        raise_faults(list(faults_of(self, _DOMAINS)))
        self._check_executor()
        if self.prompt is not None:
            read_template(self.prompt)
        guesses = {"speculate": self.speculate} if self.speculate else {}
        strategy = resolve_strategy(self.strategy, {**self.strategy_options, **guesses})
        num_texts = getattr(strategy, "num_return_sequences", 1)
        if num_texts > 1:
            cause = f"num_return_sequences={num_texts}, and a job keeps one value of each document"
            hint = 'num_return_sequences=1, or strategy="best-of", which chooses one'
            raise OptionError(cause, at="strategy", hint=hint)
        given: object = strategy  # the type of a strategy does not say that it may be a search
        if isinstance(given, Search):
            call = SearchCall(None, True, self.on_length, self.fast_forward, self.max_rollbacks)
            raise_faults(list(given.refusals(call)))
        constraint = in_format_of(as_constraint(self.schema.constraint), tokenizer)
        if not isinstance(constraint, CompiledElsewhere):
            constraint.root()
        if self.max_rollbacks is not None and constraint.guard() is None:
            cause = f"max_rollbacks={self.max_rollbacks} has no effect: only a constraint with a guard takes texts back"
            raise UselessOptionError(cause, at="max_rollbacks")
        if self.alternatives and not self.schema.is_json:
            cause = "the texts of this job are no JSON, so that they have no fields"
            raise UselessOptionError(cause, at="alternatives")
        validator = OutputValidator(self.schema.schema, constraint, is_json=self.schema.is_json)
        return strategy, constraint, validator

    def _check_executor(self) -> None:
        if self.executor == "local":
            if self.num_workers is not None:
                cause = f"num_workers={self.num_workers} has no effect without Ray"
                raise UselessOptionError(cause, at="num_workers", hint='executor="ray"')
            return
        if self.max_failures is not None:
            cause = f"max_failures={self.max_failures} has no effect on Ray, which takes all documents at once"
            raise UselessOptionError(cause, at="max_failures", hint="limit=100 for a trial")
        needed("ray.data", "ray", "the executor ray was asked for")
        from decodekit.jobs.ray import check_pool

        check_pool(self.num_workers)

    @classmethod
    def of_settings(cls, settings: JobSettings, **changes: Any) -> ExtractionOptions:
        """The options that a job folder was made with, some of them changed; raises JobError if the schema was a Python
        class and is no longer what it was."""
        schema = reload_schema(settings.schema_source, settings.schema, settings.constraint, settings.reading)
        strategy = dict(settings.strategy)
        given: dict[str, Any] = {name: getattr(settings, name) for name in (*_SETTINGS, "prompt")} | {
            "strategy": strategy.pop("name"),
            "fast_forward": strategy.pop("fast_forward", "exact"),
            "max_rollbacks": strategy.pop("max_rollbacks", None),
            "max_retries": strategy.pop("max_retries", 0),
            "strategy_options": strategy,
            "is_raw": not settings.is_chat,
        }
        return cls(schema, **(given | {name: value for name, value in changes.items() if value is not None}))


class Extraction:
    """An extraction with its model loaded and all options checked; raises the error of what cannot be used.

    Attributes:
        settings: what decides the results; compared when a folder is resumed.
    """

    def __init__(self, llm: LLM, options: ExtractionOptions) -> None:
        # What the model recommends becomes one of the settings: another config would give other results.
        taken = recommended_for(options.strategy, options.strategy_options, getattr(llm, "recommended", {}))
        options = replace(options, strategy_options={**taken, **options.strategy_options})
        strategy, constraint, self._validator = options.check(llm.tokenizer)
        options = replace(options, chat_template_kwargs={**(options.chat_template_kwargs or {})})
        self._llm, self._options = llm, options
        if options.speculate is None and getattr(llm.model, "can_rollback", False):
            strategy = with_guesses(strategy, options.fast_forward)
        schema = options.schema
        is_chat = has_chat_template(llm.tokenizer) and not options.is_raw
        self._prompt = choose_prompt(options.prompt, options.model, schema, is_chat=is_chat)
        self._call: dict[str, Any] = {
            "constraint": constraint,
            "strategy": strategy,
            "logprobs": True,
            "chat_template_kwargs": options.chat_template_kwargs or None,
            **{name: getattr(options, name) for name in _CALL},
        }
        if options.chat_template_kwargs and not self._prompt.is_chat:
            cause = "chat_template_kwargs has no effect: the prompts of this job go through no chat template"
            raise UselessOptionError(cause, at="chat_template_kwargs", hint="a chat model, without raw=True")
        # Nothing is decoded: the front door refuses wrong options here, before a folder is made.
        llm.as_completed((), seed=(), batch_size=1, **self._call)
        _check_budget(constraint, llm, options)
        # Of a template that is a text; a program belongs to its tokenizer.
        template = getattr(llm.tokenizer, "chat_template", None) if self._prompt.is_chat else None
        self.settings = JobSettings(
            **{name: getattr(options, name) for name in _SETTINGS},
            weights=weights_fingerprint(llm.model),
            dtype=str(llm.model.dtype).removeprefix("torch."),
            tokenizer=tokenizer_fingerprint(llm),
            schema_source=schema.source,
            schema=schema.schema,
            prompt=self._prompt.template,
            is_chat=self._prompt.is_chat,
            strategy=options.strategy_settings,
            version=__version__,
            constraint=schema.beyond,
            reading=schema.reading,
            programs=programs_of(strategy),
            chat_template=digest(template, length=16) if template else "",
        )

    def run(
        self,
        folder: JobFolder,
        entries: Sequence[DocumentRef],
        *,
        shard: tuple[int, int] | None = None,
        limit: int | None = None,
        retries: bool = False,
        observer: Observer | None = None,
    ) -> RunSummary:
        """Do the documents that are not done in an open folder; see `JobRunner`."""
        options = self._options
        if options.executor == "local":
            executor: Executor = LocalExecutor(self._llm, options.batch_size, self._call, options.alternatives)
        else:
            from decodekit.jobs.ray import RayExecutor, model_on_worker

            settings = self.settings
            load = partial(model_on_worker, settings.model, settings.dtype, settings.weights, options.device_map)
            executor = RayExecutor(load, self._call, options.batch_size, options.num_workers, options.alternatives)
        vocabulary, observer = self._llm.vocabulary, observer or Observer()
        runner = JobRunner(folder, self._prompt, self._validator, vocabulary, options.max_failures, observer)
        return runner.run(entries, executor, shard=shard, limit=limit, retries=retries)


def _check_budget(constraint: Constraint, llm: LLM, options: ExtractionOptions) -> None:
    """Refuse a budget without room for any text: every document would be decoded for nothing, and fail.

    Looking for the smallest text also makes what a constraint needs first, which takes seconds where no kernel is kept
    yet. So these are not in the time of the first document.
    """
    grammar = compile(constraint, llm.vocabulary)
    try:
        least = grammar.least_tokens()
    except ConstraintError:  # it was not found within bounds, or a backend knows none: the budget may do
        return
    if options.on_length == "error" and least > options.max_new_tokens:
        raise OptionError(
            f"max_new_tokens={options.max_new_tokens:,} is too few for any text of the schema: it needs {least:,}",
            at="max_new_tokens",
            hint=f"max_new_tokens={least} or more",
        )


def with_guesses(strategy: Strategy, fast_forward: FastForward) -> Strategy:
    """The strategy with the proposers of `SPECULATE`, if it or that of its samples takes proposers and has none.

    A search, such as beams or particles, takes none.
    """
    given: object = strategy
    if isinstance(given, Search):
        return strategy
    if isinstance(strategy, OverSamples):
        return replace(strategy, strategy=with_guesses(strategy.strategy, fast_forward))  # type: ignore[type-var]
    if "speculate" not in getattr(strategy, "__dataclass_fields__", {}) or strategy.speculate is not None:
        return strategy
    # What the grammar would guess is taken unasked by a canonical fast-forward.
    names = tuple(name for name in SPECULATE if (name, fast_forward) != ("grammar", "canonical"))
    return replace(strategy, speculate=names)  # type: ignore[type-var]
