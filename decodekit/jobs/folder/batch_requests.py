"""The open documents of a job as requests of a batch, for another engine to run.

A line of the file is one document, in the form of OpenAI's Batch API, which ``vllm run-batch`` and the batch endpoints
of SGLang, LMDeploy and TensorRT-LLM read as well::

    {"custom_id": "9c10aa31:5e884898da280471:letters/a.txt", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "...", "messages": [...], "max_completion_tokens": 512, "seed": 7, "temperature": 0,
              "response_format": {"type": "json_schema", "json_schema": {...}}}}

The id of a request is the fingerprint of the job's settings, the digest of the document's text and the document's id:
an answer that comes back says by itself what it is an answer to (see `answers`). What a request cannot say is refused,
or, where it changes no more than the speed or the look of a text, told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from decodekit.constraints import Choices, Constraint, Regex
from decodekit.errors import DecodekitError, DocumentError, OptionError, UnsupportedSchemaError, raise_faults
from decodekit.jobs.document_prompt import Prompt
from decodekit.jobs.documents.documents import DocumentRef, document_seed
from decodekit.jobs.folder.job_folder import JobSettings
from decodekit.jobs.job_schema import JobSchema
from decodekit.records.ledger import Record

Target: TypeAlias = Literal["openai-batch", "vllm-batch"]
"""Who reads the file: what OpenAI's API has, or with what vLLM, SGLang and LMDeploy add to it."""

_OF_OPENAI: Final = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"})
_SAMPLING: Final[Mapping[Target, frozenset[str]]] = {
    "openai-batch": _OF_OPENAI,
    "vllm-batch": _OF_OPENAI | {"top_k", "min_p", "repetition_penalty"},
}


@dataclass(frozen=True)
class BatchRequests:
    """The requests that a job's documents are written as.

    Args:
        model: its name there; None for the name that the job has.
        is_chat: send the prompt as a user's message although the job does not.

    Raises:
        OptionError, UnsupportedSchemaError: everything of the job that a request cannot say.
    """

    settings: JobSettings
    schema: JobSchema
    target: Target = "openai-batch"
    model: str | None = None
    is_chat: bool = False
    left_out: list[DocumentError] = field(default_factory=list, init=False)
    """The documents that cannot be read; known once the requests were taken."""

    def __post_init__(self) -> None:
        raise_faults([*self._faults()], "settings of the job")

    def lines(self, entries: Iterable[DocumentRef]) -> Iterator[Record]:
        """A request for each document that can be read."""
        settings = self.settings
        as_chat = settings.is_chat or self.is_chat
        prompt = Prompt(settings.prompt, as_chat, self.schema.told)
        body = self._body(as_chat)
        key, url = ("messages", "/v1/chat/completions") if as_chat else ("prompt", "/v1/completions")
        for entry in entries:
            try:
                text = prompt.fill(entry.read())
            except DocumentError as error:
                self.left_out.append(error)
                continue
            seeded = {**body, key: text, "seed": document_seed(settings.seed, entry.id)}
            yield {"custom_id": request_id(settings, entry), "method": "POST", "url": url, "body": seeded}

    def notes(self) -> list[str]:
        """Options that the requests do not carry, each in a sentence."""
        settings, notes = self.settings, []
        if self.is_chat and not settings.is_chat:
            notes.append("the prompt is sent as a user's message, which the job does not do: texts will differ")
        if settings.on_length == "close":
            notes.append('on_length="close": no other engine ends a text in time; a document that is cut fails')
        if settings.constraint.get("guard") or (settings.constraint and self.schema.is_json):
            notes.append("the guard of the constraint is asked when answers are imported, not while they are decoded")
        if self.schema.is_json:
            notes.append("how values are spelled and the order of keys are the other engine's own; values are compared")
        notes.append(
            "special tokens that a document spells go out as letters, and the other engine decides what they are"
        )
        if settings.strategy["name"] == "sample":
            notes.append("seeds are sent, and the other engine draws by its own noise: texts will differ")
        unsent = [name for name in ("fast_forward", "max_rollbacks", "speculate") if name in settings.strategy]
        return notes + [f"{name}={settings.strategy[name]!r} is not sent" for name in unsent]

    def _body(self, as_chat: bool) -> dict[str, Any]:
        is_openai_chat = as_chat and self.target == "openai-batch"
        length = "max_completion_tokens" if is_openai_chat else "max_tokens"  # newer models refuse the older name
        body = {"model": self.model or self.settings.model, length: self.settings.max_new_tokens}
        if self.schema.is_json:
            schema = {"name": "extraction", "schema": self.settings.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            body["structured_outputs"] = _structured_outputs(self.schema.constraint)
        options = self.settings.strategy
        drawn = {name: options[name] for name in sorted(_SAMPLING[self.target] & options.keys())}
        temperature = {"temperature": 0} if options["name"] == "greedy" else {"temperature": 1.0}
        return {**body, **temperature, **drawn}

    def _faults(self) -> Iterator[DecodekitError]:
        settings, target = self.settings, self.target
        strategy = settings.strategy
        if strategy["name"] not in ("greedy", "sample"):
            cause = f"strategy {strategy['name']!r} cannot be expressed in a request"
            yield OptionError(cause, at="strategy", hint="a job with --strategy greedy or sample")
        known = _SAMPLING[target] | {"name", "speculate", "fast_forward", "max_rollbacks"}
        for name in sorted(strategy.keys() - known):
            elsewhere = name in _SAMPLING["vllm-batch"]
            cause = f"{name}={strategy[name]!r} cannot be expressed in a request for {target}"
            yield OptionError(cause, at=name, hint="--to vllm-batch" if elsewhere else "a job without it")
        if "registry" in settings.reading:
            cause = "the schema refers to documents of a registry, which a request cannot carry"
            yield OptionError(cause, at="schema", hint="one schema, with its references in $defs")
        if target == "openai-batch" and not (settings.is_chat or self.is_chat):
            cause = "the job sends a bare prompt, and OpenAI takes a JSON Schema with messages alone"
            yield OptionError(cause, at="--to", hint="--chat to send it as a user's message, or --to vllm-batch")
        if not self.schema.is_json:
            if target == "openai-batch":
                cause = f"OpenAI's API cannot be given {self.schema.constraint!r:.80}: it takes JSON Schemas alone"
                yield UnsupportedSchemaError(cause, at="schema", hint="--to vllm-batch")
            else:
                try:
                    _structured_outputs(self.schema.constraint)
                except UnsupportedSchemaError as error:
                    yield error


def _structured_outputs(constraint: Constraint) -> dict[str, Any]:
    """A constraint that is not a JSON Schema as vLLM takes it; raises UnsupportedSchemaError."""
    if isinstance(constraint, Regex) and not constraint.flags:
        return {"regex": constraint.pattern}
    if isinstance(constraint, Choices):
        return {"choice": [*constraint.texts]}
    cause = f"{constraint!r:.80} cannot be expressed in a request; Regex without flags and Choices can"
    raise UnsupportedSchemaError(cause, at="schema", hint="decodekit extract, which takes every constraint")


def request_id(settings: JobSettings, entry: DocumentRef) -> str:
    """The names in an answer: the settings, the text, the document."""
    return f"{settings.fingerprint}:{entry.digest}:{entry.id}"
