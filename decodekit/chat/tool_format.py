r"""The format in which a model calls tools, read off its chat template.

    derive(tokenizer)       # ToolFormat(..., call=("<tool_call>", NAME, "\n", ARGUMENTS, "</tool_call>"), ...)

The template writes calls with words in place of names, keys and values (`renderings`). Where the words stand, and what
stands between them with one call and with several, with arguments of every type and with none, is the format. It is
right when it writes what the template writes, in every case that the template renders. A template that writes no calls
may be known by the marks in it.

    faults_in(reading, tokenizer, vocabulary)

checks it with the tokens of the model: what the template writes has to be accepted, and read back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from decodekit.chat.forms.argument_forms import NESTED, OTHERS, SEVERAL, TEXTS, argument_forms
from decodekit.chat.forms.call_forms import call_forms
from decodekit.chat.forms.renderings import CONTENT, KEYS, VALUES, Renderings, call_of
from decodekit.constraints import compile
from decodekit.constraints.tool_calls import FORMATS, ToolCall, Tools, tools
from decodekit.constraints.tool_calls.format import ElementArguments, ToolFormat
from decodekit.constraints.tool_calls.literals import marks_of
from decodekit.errors import ChatTemplateError, DecodekitError
from decodekit.models.encoding import encode_plain
from decodekit.vocabulary import Vocabulary

_FAMILIES: Final = (
    ("<|tool_calls_section_begin|>", "kimi-k2"),
    ("<|tool_call|>", "granite"),
    ("<|python_tag|>", "llama3"),
    ("[CALL_ID]", "mistral-v11"),
    ("[ARGS]", "mistral-v13"),
    ("[TOOL_CALLS]", "mistral"),
    ("<parameter=", "qwen3-coder"),
    ("<function=", "function"),
    ("<tool_call>", "hermes"),
    ("List of tools: ", "lfm2"),
)
"""Texts in templates, the surest first, and the formats that they tell."""
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}


class Case(NamedTuple):
    """A response."""

    content: str
    calls: tuple[ToolCall, ...]


def cases() -> Iterator[Case]:
    """Responses of every kind."""
    for content in (CONTENT, f"{CONTENT}\n\n{CONTENT}: {{}} é"):
        yield Case(content, ())
    for arguments in ({}, {KEYS[0]: VALUES[0]}, {KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]}, SEVERAL):
        yield Case("", (call_of(0, arguments),))
        yield Case(CONTENT, (call_of(1, arguments),))
    yield Case("", (call_of(0, {KEYS[1]: {"l": 1, "k": 2}, KEYS[0]: VALUES[0]}),))
    for value in (*TEXTS, *OTHERS, *NESTED):
        yield Case("", (call_of(0, {KEYS[0]: value}),))
        yield Case("", (call_of(0, {KEYS[0]: value, KEYS[1]: VALUES[1]}),))
    yield Case("", (call_of(0), call_of(1, SEVERAL)))
    yield Case("", (call_of(0, {}), call_of(1), call_of(2, {})))
    yield Case(CONTENT, (call_of(2), call_of(0, SEVERAL)))


@dataclass(frozen=True, slots=True)
class DerivedFormat:
    """A format as it was read off a template.

    Attributes:
        rendered: the cases that the template writes, with what it writes; none where the format is known by marks.
        differences: the cases that the format writes otherwise, with what it writes and what the template does.
    """

    format: ToolFormat
    rendered: tuple[tuple[Case, str], ...] = ()
    differences: tuple[tuple[Case, str, str], ...] = ()

    def __str__(self) -> str:
        if not self.rendered:
            return f"{self.format.name} ({self.format.families}), by marks in the chat template"
        count = len(self.rendered) - len(self.differences)
        return f"{self.format.families}; {count} of {len(self.rendered)} responses are written as the template does"


def derive(tokenizer: Any, template: str | None = None) -> ToolFormat:
    """The format that the chat template of a tokenizer tells, or another template by its text or name.

    Raises:
        ChatTemplateError: there is no template, or it does not tell.
    """
    return read(tokenizer, template).format


def read(tokenizer: Any, template: str | None = None) -> DerivedFormat:
    """The same with what speaks for it, found once; errors as of `derive`."""
    renderings = Renderings(tokenizer, template)
    try:
        known = _known.setdefault(tokenizer, {})
    except TypeError:  # what cannot be remembered
        known = {}
    if renderings.template not in known:
        known[renderings.template] = _read(renderings)
    return known[renderings.template]


_known: WeakKeyDictionary[Any, dict[str, DerivedFormat]] = WeakKeyDictionary()


def _read(renderings: Renderings) -> DerivedFormat:
    best = max(_readings(renderings), key=lambda one: len(one.rendered) - len(one.differences), default=None)
    if best is not None and 2 * len(best.differences) < len(best.rendered):
        return replace(best, format=_completed(best.format, renderings))
    name = next((name for mark, name in _FAMILIES if mark in renderings.template), None)
    if name is not None:
        return DerivedFormat(FORMATS[name])
    if best is not None:
        _, ours, theirs = best.differences[0]
        told = f"what was read off it writes {ours!r:.200} for {theirs!r:.200}"
    elif written := renderings.response("", (call_of(0),)):
        told = f"it writes {written!r:.300}, where neither JSON nor elements were found"
    else:
        raised = f", and raises {renderings.refusals[0]}" if renderings.refusals else ""
        told = f"it writes none in any form of messages{raised}"
    cause = f"the chat template does not tell how tools are called: {told}"
    raise ChatTemplateError(cause, at="format", hint=f"a format by name: {', '.join(FORMATS)}; or a ToolFormat")


def _readings(renderings: Renderings) -> Iterator[DerivedFormat]:
    """Formats that may be, up to the first that is right."""
    if renderings.form is None:
        return
    rendered = tuple(
        (case, text) for case in cases() if (text := renderings.response(*case)) is not None and _holds(text, case)
    )
    for arguments in argument_forms(renderings):
        for format in call_forms(renderings, arguments):
            reading = _compared(format, rendered)
            yield reading
            if not reading.differences:
                return


def _holds(rendered: str, case: Case) -> bool:
    """Whether a template wrote all that a case says, the content first."""
    places = [rendered.find(CONTENT)] if case.content else []
    places += [rendered.find(call.name) for call in case.calls]
    return min(places) >= 0 and places == sorted(places)


def _compared(format: ToolFormat, rendered: tuple[tuple[Case, str], ...]) -> DerivedFormat:
    kept, differences = [], []
    for case, text in rendered:
        if case.content and case.calls and format.is_alone:
            continue
        try:
            written = format.written(*case)
        except ValueError:  # a string that holds the mark around it, of which the template writes what nobody can read
            continue
        kept.append((case, text))
        if written != text:
            differences.append((case, written, text))
    return DerivedFormat(format, tuple(kept), tuple(differences))


def _completed(format: ToolFormat, renderings: Renderings) -> ToolFormat:
    """A format with its marks, and with what its template does not tell and a known one with the same calls has."""
    like = next((known for known in FORMATS.values() if _shape(known) == _shape(format)), None)
    families = format.families if like is None else f"{format.families}, calls as {like.name!r}"
    lead = format.lead or ("" if like is None else like.lead)
    arguments = format.arguments
    texts = [format.opening, format.separator, format.closing, format.content_begin, format.content_end, format.joint]
    texts += [piece for piece in format.pieces if isinstance(piece, str)] + [lead, format.end]
    if isinstance(arguments, ElementArguments):
        texts += [arguments.begin, arguments.middle, arguments.end, arguments.values.text]
    added = renderings.added_tokens
    marks = [mark for mark in marks_of(texts, added) if mark in added]
    return replace(format, families=families, lead=lead, marks=tuple(dict.fromkeys(marks)))


def _shape(format: ToolFormat) -> tuple[str, ...]:
    """The shape of a format: equal for formats with the same calls, blanks and spellings of values apart."""
    holes = [piece if isinstance(piece, str) else f"\0{piece.kind}\0" for piece in format.pieces]
    texts = [format.opening, format.closing, "".join(holes)]
    if isinstance(format.arguments, ElementArguments):
        texts += [format.arguments.begin, format.arguments.middle, format.arguments.end]
    return tuple("".join(text.split()) for text in texts)


def faults_in(reading: DerivedFormat, tokenizer: Any, vocabulary: Vocabulary) -> list[str]:
    """The faults of a format with the tokens of a model: a sentence for each response that it reads otherwise."""
    found = (_fault(case, text, reading.format, tokenizer, vocabulary) for case, text in reading.rendered)
    return [fault for fault in found if fault is not None]


def _fault(case: Case, text: str, format: ToolFormat, tokenizer: Any, vocabulary: Vocabulary) -> str | None:
    try:
        constraint = tools_of(case.calls, format)
        matcher = compile(constraint, vocabulary).matcher()
        ids = encode_plain(tokenizer, text)
        count = matcher.validate(ids)
        if count < len(ids):
            return f"{text!r:.200} is refused at its token {count}, {vocabulary.decode(ids[count : count + 1])!r:.40}"
        if not all(map(matcher.accept, ids)) or not matcher.is_accepting:
            return f"{text!r:.200} may not end there"
        found = constraint.parse(text)
        read, said = ([(call.name, call.arguments) for call in calls] for calls in (found.calls, case.calls))
        is_same = found.content == case.content and read == said
        return None if is_same else f"{text!r:.200} is read as {found!r:.200}"
    except (DecodekitError, ValueError) as error:
        return f"{text!r:.200}: {error!s:.200}"


def tools_of(calls: Sequence[ToolCall], format: ToolFormat) -> Tools:
    """Responses in which such calls can be made, the parameters of the types of their arguments."""
    found: dict[str, Any] = {"no_call": {}}
    for call in calls:
        types = {key: {"type": _TYPES.get(type(value), "object")} for key, value in call.arguments.items()}
        found.setdefault(call.name, {}).update(types)
    parameters = {name: {"type": "object", "properties": properties} for name, properties in found.items()}
    return tools([{"name": name, "parameters": one} for name, one in parameters.items()], format)
