"""A request as the engine is asked: prompts, options of `generate`, and a constraint."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from decodekit.errors import ConstraintError, InvalidRequestError
from decodekit.serving.limits import Limits
from decodekit.serving.requests.fields import (
    AnyObjectFormat,
    SamplingFields,
    SchemaFormat,
    StructuralTagFormat,
    StructuredOutputs,
    TextFields,
)
from decodekit.serving.requests.structure import Structure, StructureKind

if TYPE_CHECKING:
    from decodekit.llm.decisions import Question

_TOKEN_ID: Final = re.compile(r"[0-9]{1,9}")
_GUIDED: Final[Mapping[str, StructureKind]] = {
    "json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar",
    "structural_tag": "structural_tag",
}  # fmt: skip
LEAST_TEMPERATURE: Final = 0.001
"""Logits that are divided by less may leave the range of their numbers."""


@dataclass(frozen=True)
class Asked:
    """A request as the engine takes it; its options are those of `LLM.generate`, without constraint."""

    read: Callable[[], list[list[int]]]  # the tokens of the prompts, which may take a while
    num_characters: int  # of the prompts, about; tokens of those that are in tokens
    num_samples: int
    options: dict[str, Any]
    structure: Structure | None
    seed: int | None  # None where nothing is drawn
    limit_field: str | None = None  # with the most tokens of a text; None where the client gave none
    questions: tuple[Question, ...] = ()  # of each prompt, for who wants decisions in place of texts
    arrived: float = field(default_factory=monotonic)

    def check_entries(self, num_texts: int, most: int) -> None:
        """Bound the log-probabilities of the answer. Where the client gave no limit of tokens, there are fewer tokens.

        Log-probabilities of alternatives count, too; the `InvalidRequestError` of more than `most` is raised.
        """
        if "logprobs" not in self.options:
            return
        given, num_tokens = self.options["logprobs"], self.options["max_new_tokens"]
        each = num_texts * (1 if given is True else 1 + given)
        if each * num_tokens <= most:
            return
        if self.limit_field is not None or each > most:
            cause = f"{num_texts} texts of {num_tokens:,} tokens with log-probabilities of {each // num_texts} tokens "
            raise InvalidRequestError(
                f"{cause}at each place are {each * num_tokens:,}, more than {most:,}", at=self.limit_field or "n"
            )
        self.options["max_new_tokens"] = most // each


def sampling_options(fields: SamplingFields, max_new_tokens: int | None, limits: Limits, name: str) -> dict[str, Any]:
    """The options of `generate` that a request asks for. What asks for nothing is left out.

    `max_new_tokens` stands in the field `name`; None is as many as the endpoint gives. More are an
    `InvalidRequestError`, and so is a token id that is none.
    """
    if max_new_tokens is not None and max_new_tokens > limits.max_new_tokens:
        cause = f"{name}={max_new_tokens:,} is more than the {limits.max_new_tokens:,} tokens that this endpoint gives"
        raise InvalidRequestError(cause, at=name)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens or limits.max_new_tokens, "on_length": "return"}
    if fields.temperature is not None and 0 < fields.temperature < LEAST_TEMPERATURE:
        cause = f"temperature={fields.temperature:g} should be 0, or from {LEAST_TEMPERATURE} on"
        raise InvalidRequestError(cause, at="temperature", hint="0 for the likeliest token")
    if fields.temperature == 0:  # truncations keep the likeliest token, and a seed decides nothing
        options["strategy"] = "greedy"
    else:
        options["strategy"] = "sample"  # which takes from the model what is not given
        _take(fields, options, {"temperature": (), "top_p": (1,), "top_k": (0, -1), "min_p": (0,)})
    for penalty in ("frequency_penalty", "presence_penalty"):
        if getattr(fields, penalty):
            options[penalty] = getattr(fields, penalty)
    _take(fields, options, {"repetition_penalty": (1,)})
    if fields.logit_bias:
        wrong = next((key for key in fields.logit_bias if not _TOKEN_ID.fullmatch(key)), None)
        if wrong is not None:
            raise InvalidRequestError(f"{wrong!r:.40} is no token id", at="logit_bias")
        options["logit_bias"] = {int(key): value for key, value in fields.logit_bias.items()}
    if fields.on_length is not None:
        options["on_length"] = fields.on_length
    return options


def _take(fields: SamplingFields, options: dict[str, Any], neutral: dict[str, tuple[int, ...]]) -> None:
    """Take the fields that are given; a value that changes nothing is None, whatever the model has by itself."""
    for name, values in neutral.items():
        given = getattr(fields, name)
        if given is not None:
            options[name] = None if given in values else given


def text_options(fields: TextFields, max_new_tokens: int | None, limits: Limits, name: str) -> dict[str, Any]:
    """The options of chats and completions; fields without effect are refused, too. See `sampling_options`."""
    options = sampling_options(fields, max_new_tokens, limits, name)
    most = options["max_new_tokens"]
    if (fields.min_tokens or 0) > most:
        cause = f"min_tokens={fields.min_tokens:,} is more than the {most:,} tokens that there may be"
        raise InvalidRequestError(cause, at="min_tokens")
    if fields.min_tokens:
        options["min_tokens"] = fields.min_tokens
    if fields.stop:
        options["stop"] = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    if fields.stop_token_ids:
        options["stop_token_ids"] = tuple(fields.stop_token_ids)
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError(
            "stream_options has no effect without stream", at="stream_options", hint="stream=true"
        )
    return options


def check_ids(fields: TextFields, *, has_logprobs: bool) -> None:
    """Raise the `InvalidRequestError` of token ids that are asked for where no tokens are told."""
    if fields.return_tokens_as_token_ids and not has_logprobs:
        at = "return_tokens_as_token_ids"
        raise InvalidRequestError(f"{at} needs logprobs", at=at, hint="logprobs")


def seed_of(fields: SamplingFields) -> int:
    """The seed of a request, drawn where it names none."""
    return secrets.randbits(31) if fields.seed is None else fields.seed


def structure_of(fields: TextFields) -> Structure | None:
    """The constraint of a chat or completion, if there is one; several, or one that asks for nothing, are refused."""
    structures: list[Structure] = []
    form, outputs = fields.response_format, fields.structured_outputs
    if isinstance(form, AnyObjectFormat):
        structures.append(Structure("json_schema", {"type": "object"}, "response_format"))
    elif isinstance(form, SchemaFormat):
        structures.append(Structure("json_schema", form.json_schema.schema_, "response_format.json_schema.schema"))
    elif isinstance(form, StructuralTagFormat):
        structures.append(Structure("structural_tag", form.model_dump(), "response_format"))
    structures += _guided(fields, "guided_")
    if outputs is not None:
        given = _guided(outputs, "structured_outputs.")
        if outputs.json_object:
            given.append(Structure("json_schema", {"type": "object"}, "structured_outputs.json_object"))
        if not given:
            hint = "json, regex, choice or grammar"
            raise InvalidRequestError("it asks for nothing", at="structured_outputs", hint=hint)
        structures += given
    if len(structures) > 1:
        names = " and ".join(one.field for one in structures)
        raise InvalidRequestError(f"{names} cannot be combined: a text has one constraint", at=structures[1].field)
    return structures[0] if structures else None


def _guided(fields: TextFields | StructuredOutputs, prefix: str) -> list[Structure]:
    """The constraints in vLLM's fields, in the old spelling (`guided_json`) or in the new one."""
    values = {name.removeprefix(prefix).rstrip("_"): value for name, value in fields}
    found = []
    for name, kind in _GUIDED.items():
        value, at = values.get(name), f"{prefix}{name}"
        if isinstance(value, str) and name in ("json", "structural_tag"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ConstraintError(f"the text is no JSON: {error}", at=at, code="DK203") from error
        if value is not None:
            found.append(Structure(kind, value, at))
    return found
