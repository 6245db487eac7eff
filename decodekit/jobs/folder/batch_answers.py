"""The answers of another engine to the requests of a job, taken back as if the job had been run here.

A line of a file is one answer, in the form of OpenAI's Batch API; ``vllm run-batch`` and the batch endpoints of SGLang,
LMDeploy and TensorRT-LLM write the same. What an answer is to stands in its ``custom_id`` (see `requests`)::

    {"custom_id": "9c10aa31:5e88...:a.txt", "response": {"status_code": 200, "body": {"choices": [...]}}, "error": null}

`AnswerExecutor` hands these to the loop of a job as outcomes, so that every text is validated, written down and
reported as one that was decoded here. Lines that answer no open document are named and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from decodekit.decoding.request.completion import Completion
from decodekit.decoding.request.stats import Stats
from decodekit.decoding.request.stopping import FinishReason
from decodekit.errors import (
    AnswerError,
    DecodekitError,
    DocumentError,
    JobError,
    JobSettingsError,
    LengthError,
    collecting,
)
from decodekit.jobs.documents.documents import DocumentRef
from decodekit.jobs.folder.batch_requests import request_id
from decodekit.jobs.folder.job_folder import JobFile
from decodekit.jobs.job_runner import Decoded, DocumentTask, failed
from decodekit.records.strict_json import read_json

_FINISHED: Final[Mapping[str | None, FinishReason]] = {"stop": "stop", "eos": "stop", None: "stop", "length": "length"}
_MAX_TEXT: Final = 300


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
