"""From a document to what the model reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodekit.errors import OptionError
from decodekit.quoting import QuotedText

if TYPE_CHECKING:
    from decodekit.jobs.job_schema import JobSchema

BUNDLED_MODELS = ("tiny", "tiny-draft")  # those of `models.loading`, which loads torch
BUNDLED_TEMPLATE = "{text}\n"  # the format that the bundled models were trained on
INSTRUCTION = """\
Extract the data from the document below as one JSON value that follows the JSON Schema.
Copy names, numbers and dates as the document has them. Where it says nothing, use null if the schema allows it.
Answer with the JSON value and nothing else.

JSON Schema:
{schema}

Document:
{text}
"""
TEXT_INSTRUCTION = """\
Read the document below and answer with a text of this form and with nothing else.

Form:
{schema}

Document:
{text}
"""
_PLACEHOLDER = re.compile(r"\{(text|schema)\}")


@dataclass(frozen=True)
class Prompt:
    """A template and the way to the model.

    Attributes:
        template: with ``{text}`` (the document without white space at its ends) and perhaps ``{schema}`` (compact
            JSON). All other braces stand for themselves.
        is_chat: send the filled template as a user's message through the model's chat template.
        schema: what ``{schema}`` stands for.
    """

    template: str
    is_chat: bool
    schema: Mapping[str, Any] | bool

    def fill(self, text: str) -> str | list[dict[str, str]]:
        """The prompt for one document: a text, or messages. What a document spells of special tokens is text."""
        values = {"text": text.strip(), "schema": json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))}
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        position = length = 0
        # One pass, so that "{schema}" inside a document stays what it is.
        for match in _PLACEHOLDER.finditer(self.template):
            pieces += [self.template[position : match.start()], values[match[1]]]
            length += len(pieces[-2])
            spans.append((length, length + len(pieces[-1])))
            position, length = match.end(), spans[-1][1]
        prompt = "".join([*pieces, self.template[position:]])
        return [{"role": "user", "content": prompt}] if self.is_chat else QuotedText(prompt, spans)


def choose_prompt(template: str | None, model: str, schema: JobSchema, *, is_chat: bool) -> Prompt:
    """The prompt of a job: its template, or the default of the model, of which the bundled ones read the bare document.

    Raises:
        OptionError: as `read_template`.
    """
    if template is not None:
        return Prompt(read_template(template), is_chat, schema.told)
    if model in BUNDLED_MODELS:
        return Prompt(BUNDLED_TEMPLATE, False, schema.told)
    instruction, end = (INSTRUCTION, "\nJSON:\n") if schema.is_json else (TEXT_INSTRUCTION, "\nAnswer:\n")
    return Prompt(instruction if is_chat else instruction + end, is_chat, schema.told)


def read_template(template: str) -> str:
    """A template as given; ``@FILE`` reads it. OptionError if it has no ``{text}``, or its file cannot be read."""
    if template.startswith("@") and "{text}" not in template:  # a template may begin with this sign, too
        try:
            template = Path(template[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the template file {template[1:]!r} cannot be read: {error}.", at="prompt") from error
    if "{text}" not in template:
        cause = "the template has no {text}, so every document would get the same prompt."
        hint = "put {text} where the document belongs; {schema} stands for the JSON Schema."
        raise OptionError(cause, at="prompt", hint=hint)
    return template
