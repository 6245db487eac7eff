"""A request as the engine is asked: prompts, options of `generate`, and a constraint."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from decodekit.errors import InvalidRequestError
from decodekit.serving.limits import Limits
from decodekit.serving.requests.fields import (
    AnyObjectFormat,
    ResponseFormat,
    SamplingFields,
    SchemaFormat,
    StructuralTagFormat,
    TextFields,
)
from decodekit.serving.requests.structure import Structure, read_json

if TYPE_CHECKING:
    from decodekit.llm.decisions import Question

_TOKEN_ID: Final = re.compile(r"[0-9]{1,9}")
LEAST_TEMPERATURE: Final = 0.001
"""Logits that are divided by less may leave the range of their numbers."""


@dataclass(frozen=True)
class Asked:
    """A request as the engine takes it.

    Args:
        read: gives the tokens of the prompts; it may take a while.
        num_characters: of the prompts, about; tokens of those that are in tokens.
        num_samples: texts of each prompt.
        options: of `LLM.generate`, without constraint.
        structure: the constraint; None for free text.
        seed: of the texts; None where nothing is drawn.
        limit_field: the field with the most tokens of a text; None where the client gave none.
        questions: of each prompt, for a request that wants decisions in place of texts.
        arrived: when the request came, a value of `time.monotonic`.
    """

    read: Callable[[], list[list[int]]]
    num_characters: int
    num_samples: int
    options: dict[str, Any]
    structure: Structure | None
    seed: int | None
    limit_field: str | None = None
    questions: tuple[Question, ...] = ()
    arrived: float = field(default_factory=monotonic)

    def check_entries(self, num_texts: int, most: int) -> None:
        """Bound the log-probabilities of the answer. Where the client gave no limit of tokens, there are fewer tokens.

        Args:
            num_texts: of the request.
            most: log-probabilities, those of alternatives included.

        Raises:
            InvalidRequestError: there may be more.
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

    Args:
        fields: of the request.
        max_new_tokens: most tokens of a text; None for as many as the endpoint gives.
        limits: of the endpoint.
        name: of the field that `max_new_tokens` stands in.

    Raises:
        InvalidRequestError: more tokens than the endpoint gives, or a token id that is none.
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
        if fields.temperature is not None:
            options["temperature"] = fields.temperature
        if fields.top_p is not None:
            options["top_p"] = None if fields.top_p == 1 else fields.top_p
        if fields.top_k is not None:
            options["top_k"] = fields.top_k if fields.top_k > 0 else None
        if fields.min_p is not None:
            options["min_p"] = fields.min_p or None
    for penalty in ("frequency_penalty", "presence_penalty"):
        if getattr(fields, penalty):
            options[penalty] = getattr(fields, penalty)
    if fields.repetition_penalty is not None:
        options["repetition_penalty"] = None if fields.repetition_penalty == 1 else fields.repetition_penalty
    if fields.logit_bias:
        wrong = next((key for key in fields.logit_bias if not _TOKEN_ID.fullmatch(key)), None)
        if wrong is not None:
            raise InvalidRequestError(f"{wrong!r:.40} is no token id", at="logit_bias")
        options["logit_bias"] = {int(key): value for key, value in fields.logit_bias.items()}
    if fields.on_length is not None:
        options["on_length"] = fields.on_length
    return options


def text_options(fields: TextFields, max_new_tokens: int | None, limits: Limits, name: str) -> dict[str, Any]:
    """The options of chats and completions; see `sampling_options`.

    Raises:
        InvalidRequestError: as there; or a field has no effect, or contradicts the most tokens of a text.
    """
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
    """The constraint of a chat or completion, if there is one.

    Raises:
        InvalidRequestError: there are several, or one that asks for nothing.
    """
    structures = [*filter(None, [_format_structure(fields.response_format)]), *_guided_structures(fields)]
    if len(structures) > 1:
        names = " and ".join(one.field for one in structures)
        raise InvalidRequestError(f"{names} cannot be combined: a text has one constraint", at=structures[1].field)
    return structures[0] if structures else None


def _guided_structures(fields: TextFields) -> list[Structure]:
    """The constraints in vLLM's fields, in the old spelling and in the new one."""
    found = []
    for name, kind in (("json", "json_schema"), ("regex", "regex"), ("choice", "choice"), ("grammar", "grammar")):
        value = getattr(fields, f"guided_{name}")
        if value is not None:
            found.append(_structure(kind, value, f"guided_{name}"))
    outputs = fields.structured_outputs
    if outputs is None:
        return found
    given = []
    for name, kind in (
        ("json", "json_schema"),
        ("regex", "regex"),
        ("choice", "choice"),
        ("grammar", "grammar"),
        ("structural_tag", "structural_tag"),
    ):
        value = getattr(outputs, "json_" if name == "json" else name)
        if value is not None:
            given.append(_structure(kind, value, f"structured_outputs.{name}"))
    if outputs.json_object:
        given.append(Structure("json_schema", {"type": "object"}, "structured_outputs.json_object"))
    if not given:
        raise InvalidRequestError("it asks for nothing", at="structured_outputs", hint="json, regex, choice or grammar")
    return [*found, *given]


def _structure(kind: Any, value: Any, field: str) -> Structure:
    is_text = isinstance(value, str) and kind in ("json_schema", "structural_tag")
    return Structure(kind, read_json(value, field) if is_text else value, field)


def _format_structure(given: ResponseFormat | None) -> Structure | None:
    """The constraint of a `response_format`."""
    at = "response_format"
    if isinstance(given, AnyObjectFormat):
        return Structure("json_schema", {"type": "object"}, at)
    if isinstance(given, SchemaFormat):
        return Structure("json_schema", given.json_schema.schema_, f"{at}.json_schema.schema")
    if isinstance(given, StructuralTagFormat):
        return Structure("structural_tag", given.model_dump(), at)
    return None
