"""The check of a format that was read off a template: what the template writes is accepted, and read back as it was.

faults_in(reading, tokenizer, vocabulary)      # [], or what is refused at which token, or what is read otherwise
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from decodekit.chat.tool_format import Case, DerivedFormat
from decodekit.constraints import compile
from decodekit.constraints.tool_calls import ToolCall, ToolFormat, Tools, tools
from decodekit.errors import DecodekitError
from decodekit.models.encoding import encode_plain
from decodekit.vocabulary import Vocabulary

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}


def faults_in(reading: DerivedFormat, tokenizer: Any, vocabulary: Vocabulary) -> list[str]:
    """The faults of a format: for each response that the template writes, one sentence, or none.

    Args:
        reading: of the template.
        tokenizer, vocabulary: of the model.
    """
    told = reading.format, tokenizer, vocabulary
    return [fault for case, text in reading.rendered for fault in _faults(case, text, *told)]


def _faults(case: Case, text: str, format: ToolFormat, tokenizer: Any, vocabulary: Vocabulary) -> Iterator[str]:
    try:
        constraint = tools_of(case.calls, format)
        matcher = compile(constraint, vocabulary).matcher()
        ids = encode_plain(tokenizer, text)
        count = matcher.validate(ids)
        if count < len(ids):
            yield f"{text!r:.200} is refused at its token {count}, {vocabulary.decode(ids[count : count + 1])!r:.40}"
            return
        if not all(map(matcher.accept, ids)) or not matcher.is_accepting:
            yield f"{text!r:.200} may not end there"
            return
        found = constraint.parse(text)
        read = [(call.name, call.arguments) for call in found.calls]
        if (found.content, read) != (case.content, [(call.name, call.arguments) for call in case.calls]):
            yield f"{text!r:.200} is read as {found!r:.200}"
    except (DecodekitError, ValueError) as error:
        yield f"{text!r:.200}: {error!s:.200}"


def tools_of(calls: Sequence[ToolCall], format: ToolFormat) -> Tools:
    """Responses in which such calls can be made, the parameters of the types of their arguments."""
    found: dict[str, Any] = {"no_call": {}}
    for call in calls:
        found.setdefault(call.name, {}).update({key: _schema(value) for key, value in call.arguments.items()})
    return tools(
        [
            {"name": name, "parameters": {"type": "object", "properties": properties}}
            for name, properties in found.items()
        ],
        format,
    )


def _schema(value: object) -> dict[str, str]:
    return {"type": _TYPES.get(type(value), "object")}
