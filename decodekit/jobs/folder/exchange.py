"""The exchange of a job with another engine: its open documents as requests of a batch, and the answers taken back.

A line of a file is one document, in the form of OpenAI's Batch API, which ``vllm run-batch`` and the batch endpoints of
SGLang, LMDeploy and TensorRT-LLM read and write as well::

    {"custom_id": "9c10aa31:5e884898da280471:letters/a.txt", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "...", "messages": [...], "max_completion_tokens": 512, "seed": 7, "temperature": 0,
              "response_format": {"type": "json_schema", "json_schema": {...}}}}

    {"custom_id": "9c10aa31:5e88...:a.txt", "response": {"status_code": 200, "body": {"choices": [...]}}, "error": null}

The id of a request is the fingerprint of the job's settings, the digest of the document's text and the document's id:
an answer that comes back says by itself what it is an answer to. What a request cannot say is refused, or, where it
changes no more than the speed or the look of a text, told.

`AnswerExecutor` hands answers to the loop of a job as outcomes, so that every text is validated, written down and
reported as one that was decoded here. Lines that answer no open document are named and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from decodekit.constraints import Choices, Constraint, Regex
from decodekit.errors import (
    AnswerError,
    DecodekitError,
    DocumentError,
    JobError,
    JobSettingsError,
    LengthError,
    OptionError,
    UnsupportedSchemaError,
    collecting,
    raise_faults,
)
from decodekit.jobs.document_prompt import Prompt
from decodekit.jobs.documents.documents import DocumentRef, document_seed
from decodekit.jobs.folder.job_folder import JobFile, JobSettings
from decodekit.jobs.job_runner import Decoded, DocumentTask, failed
from decodekit.jobs.job_schema import JobSchema
from decodekit.records.ledger import Record
from decodekit.records.strict_json import read_json

if TYPE_CHECKING:
    from decodekit.decoding.request.completion import Completion
    from decodekit.decoding.request.stopping import FinishReason

_FINISHED: Final[Mapping[str | None, FinishReason]] = {"stop": "stop", "eos": "stop", None: "stop", "length": "length"}
_MAX_TEXT: Final = 300

Target: TypeAlias = Literal["openai-batch", "vllm-batch"]
"""Who reads the file: what OpenAI's API has, or with what vLLM, SGLang and LMDeploy add to it."""

_OF_OPENAI: Final = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"})
_SAMPLING: Final[Mapping[Target, frozenset[str]]] = {
    "openai-batch": _OF_OPENAI,
    "vllm-batch": _OF_OPENAI | {"top_k", "min_p", "repetition_penalty", "chat_template_kwargs"},
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
        options = self._options
        drawn = {name: options[name] for name in sorted(_SAMPLING[self.target] & options.keys())}
        temperature = {"temperature": 0} if options["name"] == "greedy" else {"temperature": 1.0}
        return {**body, **temperature, **drawn}

    @property
    def _options(self) -> dict[str, Any]:
        """The options of the strategy, and the variables of the chat template where there are any."""
        variables = self.settings.chat_template_kwargs
        return {**self.settings.strategy, **({"chat_template_kwargs": variables} if variables else {})}

    def _faults(self) -> Iterator[DecodekitError]:
        settings, target = self.settings, self.target
        strategy = self._options
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


class BatchAnswer(NamedTuple):
    """The answer for a document: the line as a JSON object, and its place, ``file:line``."""

    row: Mapping[str, Any]
    place: str


@dataclass
class Answers:
    """The answers of files, by document.

    Attributes:
        found: the first answer to each document, by id.
        faults: lines that answer no document of the job, each with its place: no JSON, a second answer, an
            unknown id, a document whose text has changed.
    """

    found: dict[str, BatchAnswer] = field(default_factory=dict)
    faults: list[DecodekitError] = field(default_factory=list)

    @classmethod
    def read(cls, files: Sequence[Path], job: JobFile, entries: Sequence[DocumentRef]) -> Answers:
        """Read files of answers, and of errors, where a batch has a file of its own for these.

        Raises:
            JobError: a file cannot be read.
            JobSettingsError: an answer is to a request of a job with other settings.
        """
        answers = cls()
        open_ids = {request_id(job.settings, entry): entry.id for entry in entries}
        ids = set(open_ids.values())
        for file in files:
            try:
                lines = file.read_bytes().split(b"\n")
            except OSError as error:
                raise JobError(f"the answers cannot be read: {error.strerror}.", at=str(file)) from error
            for number, line in enumerate(lines, 1):
                if line.strip():
                    with collecting(answers.faults, DocumentError):
                        answers._take(line, f"{file}:{number}", job, open_ids, ids)
        return answers

    @property
    def models(self) -> list[str]:
        """The models that the answers say they are from."""
        bodies = [_member(answer.row.get("response"), "body") for answer in self.found.values()]
        return sorted({str(model) for body in bodies if (model := _member(body, "model"))})

    def _take(self, line: bytes, place: str, job: JobFile, open_ids: Mapping[str, str], ids: set[str]) -> None:
        """Keep an answer; DocumentError if it is none to a document of the job."""
        try:
            row = read_json(line)
        except (ValueError, RecursionError) as error:
            hint = "a whole file: a batch that was cut off has torn lines"
            raise DocumentError(f"the line is not JSON: {error}.", at=place, hint=hint) from error
        name = _member(row, "custom_id")
        if not isinstance(name, str) or name.count(":") < 2:
            raise DocumentError(f"custom_id {name!r:.80} is none that `decodekit export` writes.", at=place)
        fingerprint, _, document = name.split(":", 2)
        now = job.settings.fingerprint
        if fingerprint != now:
            earlier = job.earlier.get(fingerprint)
            changes = "" if earlier is None else ": " + "; ".join(earlier.differences(job.settings))
            cause = f"the request was made with settings {fingerprint}, the folder has {now}{changes}."
            raise JobSettingsError(cause, at=place, hint="the folder that it was exported from, or export again.")
        known = open_ids.get(name)
        if known is None:
            what = f"document {document!r:.80}"
            if document in ids:
                raise DocumentError(f"{what} has changed since it was exported.", at=place, hint="export it again")
            raise DocumentError(f"{what} is not among the inputs of the job.", at=place)
        if known in self.found:
            first = self.found[known].place
            raise DocumentError(f"document {known!r:.80} has a second answer; that of {first} counts.", at=place)
        self.found[known] = BatchAnswer(row, place)


@dataclass
class AnswerExecutor:
    """Gives the answer to each document as its outcome; ``on_length="return"`` keeps the text of one that was cut."""

    answers: Mapping[str, BatchAnswer]
    on_length: str

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """The outcome of each task, in their order."""
        for task in tasks:
            try:
                yield Decoded(task, self._completion(self.answers[task.id]), 0.0)
            except DecodekitError as error:
                yield failed(task, error)

    def _completion(self, answer: BatchAnswer) -> Completion:
        """The answer as a completion; raises AnswerError if it has no text."""
        from decodekit.decoding.request.completion import Completion  # which loads torch
        from decodekit.decoding.request.stats import Stats

        body, place = _body_of(answer), answer.place
        choices = body.get("choices")
        if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
            raise AnswerError(f"the answer has no choices: {_shown(choices)}", at=place)
        choice = choices[0]
        message = choice.get("message")
        told = message if isinstance(message, dict) else {}
        text = told.get("content") if told else choice.get("text")
        if not isinstance(text, str):
            why = told.get("refusal") or told.get("reasoning_content") or choice
            raise AnswerError(f"the answer has no text: {_shown(why)}", at=place)
        finish = choice.get("finish_reason")
        reason = _FINISHED.get(finish) if finish is None or isinstance(finish, str) else None
        if reason is None:
            raise AnswerError(f"the text ended for the reason {_shown(finish)}", at=place)
        error = None
        if reason == "length" and self.on_length != "return":
            cause = "the text was cut at the limit of tokens, by the engine that ran it"
            hint = "a larger max_new_tokens, or bounds on lengths in the schema"
            error = LengthError(cause, at=place, hint=hint)
        counts = (_member(body.get("usage"), name) for name in ("prompt_tokens", "completion_tokens"))
        num_read, num_written = (count if type(count) is int and count >= 0 else 0 for count in counts)
        return Completion(text, (), None, reason, error, None, Stats(num_read, num_written, 0, None, 0.0))


def _body_of(answer: BatchAnswer) -> Mapping[str, Any]:
    """The body of a response that succeeded; raises AnswerError for any other."""
    response = answer.row.get("response")
    status = response.get("status_code", 200) if isinstance(response, dict) else None
    body = _member(response, "body")
    told = answer.row.get("error") or _member(body, "error")
    if told or status != 200 or not isinstance(body, dict):
        code = f" (status {status})" if status not in (None, 200) else ""
        raise AnswerError(f"the engine gave an error{code}: {_shown(told or body or response)}", at=answer.place)
    return body


def _member(value: Any, name: str) -> Any:
    """A member of what an engine wrote; None if that is not an object, or has none."""
    return value.get(name) if isinstance(value, dict) else None


def _shown(told: Any) -> str:
    """The words of an engine, in short: its message where it has one."""
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        code = told.get("code")
        return f"{code}: {told['message']}"[:_MAX_TEXT] if code else told["message"][:_MAX_TEXT]
    return f"{told!r:.{_MAX_TEXT}}"
