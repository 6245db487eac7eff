r"""The JSON in a text while it grows, divided by its constraint.

    dk.Reasoned(Invoice)            <think>40 plus 0.20.</think>{"number": "A-1
    the division that goes on so    [<think>] [40 plus 0.20.] [</think>] [the value, open]
    the value so far                PartialInvoice(number='A-1', total=None)

A composition may divide a text in several ways, and which one counts may show late. So all divisions of the text so far
are followed side by side, character by character, in the order in which `split` tries them; a part has begun, or
has ended, when all of them say so. Most of the time there is one. JSON that it is in is read in large pieces.

The arguments of a call are a document like any other, with the name of the tool. Where they are not written as JSON,
what is read is the JSON that stands for them: of elements in pieces, of values in another notation when they are whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from decodekit.constraints.composition.split import Close, Composed, FirstBytes, Round, Split, Todo
from decodekit.constraints.constraint import Constraint, WrappedConstraint
from decodekit.constraints.grammar.rules import Expression, Inline, SpecialToken, Terminal
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.growing_json import GrowingJson
from decodekit.constraints.json_schema.notation import Notated
from decodekit.constraints.json_schema.notation_reader import GrowingTranslation
from decodekit.constraints.special import written
from decodekit.constraints.tool_calls.calls import CALL_ID
from decodekit.constraints.tool_calls.elements import RAW, Elements, LiteralWords, QuotedJson, Unquoted
from decodekit.constraints.tool_calls.format import ToolFormat
from decodekit.constraints.tool_calls.response import Tools

MAX_DIVISIONS: Final = 64
"""A text that divides in more ways than these at once is followed no further: no more of its value is told."""
_OF_JSON: Final = FirstBytes(sum(1 << byte for byte in b'{["-0123456789tfn'), False)


@dataclass(eq=False, slots=True)
class Document:
    """One JSON value of a text.

    Attributes:
        json: reads it.
        constraint: of it; None while it may be that of several.
        name: of the tool, if it is the arguments of a call.
        id: of the call, once it was read.
    """

    json: GrowingJson
    constraint: JsonSchema | None
    name: str | None = None
    id: str | None = None


@dataclass(eq=False, slots=True)
class _Event:
    """A part begins at `start`; with an `end`, it ends there. A list, from the last event to the first."""

    before: _Event | None
    item: Inline | Terminal
    start: int
    end: int | None = None
    reader: GrowingJson | None = None  # of a part that is JSON
    number: int = field(init=False)  # of the events up to this one

    def __post_init__(self) -> None:
        self.number = 1 if self.before is None else self.before.number + 1


@dataclass(eq=False, slots=True)
class _Division:
    """A way to divide the text so far.

    Attributes:
        item: the part that it is in, since `start`; None behind the last one.
        state: of that part: of JSON its reader, of a special token how much of its name was read, else the state of its
            recogniser.
        then: what is still to be matched.
        last: the last event.
    """

    item: Terminal | SpecialToken | Inline | None
    start: int
    state: Any
    then: Todo | None
    last: _Event | None


class GrowingSplit(Split):
    """The JSON in a text while it grows, of which `num_read` characters were read; `is_written` as of `GrowingJson`."""

    def __init__(self, constraint: Constraint, *, is_written: bool = False) -> None:
        root = Inline(constraint)
        super().__init__(root, b"", is_searched=False)
        self.num_read = 0
        self._is_written = is_written
        self._documents: list[Document] = []
        self._undecided: Document | None = None  # the JSON that all divisions are in, each with another constraint
        self._certain: _Event | None = None  # the last event that all divisions have in common
        self._text, self._offset = "", 0  # what is still needed of the text, and where it begins
        self._reader, self._reader_at = GrowingJson(is_written=is_written), 0  # of JSON that begins there
        self._elements: Document | None = None  # whose arguments are elements
        self._element: _Event | None = None  # the one that is open
        self._num_elements = 0  # that have begun
        self._num_told = 0  # where the next character of it stands
        self._translation: GrowingTranslation | None = None  # of what is open, if that is no JSON
        self._format: ToolFormat | None = None  # of the calls that come
        self._id: str | None = None  # what tells the identifier of the call that comes
        self._divisions = list(self._begun(self._before(root, None), 0, None, set()))
        self._settle()

    @property
    def documents(self) -> list[Document]:
        """Those that have begun for certain, in order; all but the last one are whole."""
        return self._documents if self._undecided is None else [*self._documents, self._undecided]

    def push(self, text: str) -> None:
        """Go on with a piece of the text."""
        at = 0
        self._text += text if self._divisions else ""
        while at < len(text) and self._divisions:
            reader = self._divisions[0].state
            is_inside = isinstance(reader, GrowingJson) and reader.is_inside
            if is_inside and all(one.state is reader for one in self._divisions):
                num_read = reader.push(text, at)
                if num_read == 0:
                    self._divisions = []
            else:
                num_read = 1
                self._step(text[at])
            at += num_read
            self.num_read += num_read
        self._settle()

    def end(self) -> None:
        """Take the text as whole: of the divisions that end here, the first one counts."""
        agenda, seen = self._divisions[::-1], set[int]()
        while agenda:
            one = agenda.pop()
            if one.item is None:
                self._divisions = [one]
                self._settle()
                return
            if self._may_end(one):
                agenda += [*self._begun(self._rest(one), self.num_read, self._ended(one), seen)][::-1]

    # -- divisions

    def _step(self, character: str) -> None:
        """Follow all divisions for one more character."""
        data, seen = character.encode("utf-8", "surrogatepass"), set[int]()
        going_on: dict[object, _Division] = {}
        for one in self._divisions:
            self._follow(one, character, data, seen, going_on)
        self._divisions = [] if len(going_on) > MAX_DIVISIONS else list(going_on.values())

    def _follow(
        self, one: _Division, character: str, data: bytes, seen: set[int], going_on: dict[object, _Division]
    ) -> None:
        """Follow a division. Its part is left before it goes on: the shortest comes first that lets the rest fit."""
        if one.item is None:
            return
        if self._may_end(one):
            rest = self._rest(one)
            if self._begin_of_todo(rest).first >> data[0] & 1:
                for other in self._begun(rest, self.num_read, self._ended(one), seen):
                    self._follow(other, character, data, seen, going_on)
        state = one.state
        if isinstance(state, GrowingJson):
            if one.start and not state.num_read and character.isspace():  # which is of what stands before
                return
            is_known = one.start + state.num_read > self.num_read  # another division has read the character
            if is_known or state.push(character):
                going_on.setdefault((id(one.item), id(one.then), id(state)), one)
            return
        if isinstance(one.item, SpecialToken):
            state = state + 1 if written(one.item.token).startswith(character, state) else None
        else:
            recogniser, asked = self._reader_of(one.item)
            for byte in data:
                state = None if state is None or asked else recogniser.step(state, byte)
        if state is not None:
            key = id(one.item), id(one.then), state
            going_on.setdefault(key, _Division(one.item, one.start, state, one.then, one.last))

    def _begun(self, todo: Todo | None, at: int, last: _Event | None, seen: set[int]) -> Iterator[_Division]:
        """The parts that may begin at a place, in the order in which they count; `seen` is what was met there."""
        agenda = [(todo, last)]
        while agenda:
            todo, last = agenda.pop()
            if id(todo) in seen:
                continue
            seen.add(id(todo))
            if todo is None:
                yield _Division(None, at, None, None, last)
                continue
            item, then = todo.item, todo.then
            if isinstance(item, Close):
                if item.kind == "part" and isinstance(todo.owner, Inline):
                    last = _Event(last, todo.owner, at, at)
                agenda.append((then, last))
            elif (ways := self._ways(item, then)) is not None:
                last = _Event(last, item, at) if isinstance(item, Inline) else last
                agenda += [(after, last) for after in ways]
            elif isinstance(item, Inline | Terminal | SpecialToken):
                yield self._entered(item, then, at, last)

    def _entered(
        self, item: Inline | Terminal | SpecialToken, then: Todo | None, at: int, last: _Event | None
    ) -> _Division:
        if isinstance(item, SpecialToken):
            return _Division(item, at, 0, then, last)
        if isinstance(item, Inline) and isinstance(inner(item.constraint), JsonSchema):
            if self._reader_at != at:
                self._reader, self._reader_at = GrowingJson(is_written=self._is_written), at
            return _Division(item, at, self._reader, then, _Event(last, item, at, None, self._reader))
        if isinstance(item, Inline) or item.name is not None:
            last = _Event(last, item, at)
        return _Division(item, at, self._reader_of(item)[0].root, then, last)

    def _may_end(self, one: _Division) -> bool:
        """Whether the part that a division is in may end here."""
        if isinstance(one.state, GrowingJson):
            return one.state.may_end
        if isinstance(one.item, SpecialToken):
            return bool(one.state == len(written(one.item.token)))
        return one.item is None or self._reader_of(one.item)[0].states.is_accepting(one.state)

    def _rest(self, one: _Division) -> Todo | None:
        """The items behind the part that a division is in, if that ends here."""
        return one.then if one.start == self.num_read else self._after_reading(one.then)

    def _ended(self, one: _Division) -> _Event | None:
        """The last event, if the part ends here."""
        last = one.last
        if last is None or last.item is not one.item or last.end is not None:
            return last
        return _Event(last, last.item, last.start, self.num_read, last.reader)

    def _marked(self, mark: Close, then: Todo | None, owner: Expression) -> Todo | None:
        """The rest alone: no value is made of it, and ways to the same rest are one."""
        return then

    def _within(self, item: Expression | Close | Round) -> Composed | None:
        part = inner(item.constraint) if isinstance(item, Inline) else None
        return part if isinstance(part, Composed) else None

    def _begin_of(self, item: Expression | Close | Round) -> FirstBytes:
        if isinstance(item, Inline) and isinstance(inner(item.constraint), JsonSchema):
            return _OF_JSON
        return super()._begin_of(item)

    # -- what is certain

    def _settle(self) -> None:
        """Tell the documents what all divisions agree about."""
        if not self._divisions:
            return
        certain = self._divisions[0].last
        for one in self._divisions[1:]:
            certain = _common(certain, one.last)
        events: list[_Event] = []
        event = certain
        while event is not self._certain:
            assert event is not None
            events.append(event)
            event = event.before
        self._certain = certain
        for event in reversed(events):
            if event.end is None:
                self._begin(event)
            else:
                self._end(event, event.end)
        begun = [after for after in (_first_after(one.last, certain) for one in self._divisions) if after is not None]
        if self._element is not None and not _is_told_whole(self._element.item):
            self._tell(min([self.num_read, *(after.end for after in begun if after.end is not None)]))
        if not self._elements and self._undecided is None:
            self._share()
        starts = [after.start for after in begun if after.item.name is not None]
        if certain and certain.end is None and (certain.item.name == CALL_ID or _is_told_whole(certain.item)):
            starts.append(certain.start)
        starts += [] if self._element is None else [self._num_told]
        kept = max(self._offset, min([self.num_read, *starts]))
        self._text, self._offset = self._text[kept - self._offset :], kept

    def _share(self) -> None:
        """If all divisions are in the same JSON, each with another constraint, it is a document already."""
        reader = self._divisions[0].state
        is_shared = len(self._divisions) > 1 and isinstance(reader, GrowingJson) and reader.num_read > 0
        if is_shared and all(one.state is reader and one.last is not self._certain for one in self._divisions):
            self._undecided = Document(reader, None)

    def _begin(self, event: _Event) -> None:
        item = event.item
        part = inner(item.constraint) if isinstance(item, Inline) else None
        if isinstance(part, Tools):
            self._format = part.format
        elif isinstance(part, Elements):
            self._elements = self._begun_document(GrowingJson(is_written=self._is_written), part.tool.arguments(), item)
            self._elements.json.push("{")
            self._num_elements = 0
        elif self._elements is not None:
            self._element, self._num_told = event, event.start
            comma = ", " if self._num_elements else ""
            self._num_elements += 1
            self._translation = _translation_of(part)
            quote = '"' if _is_raw(part) else ""
            self._elements.json.push(f"{comma}{json.dumps(item.name, ensure_ascii=False)}: {quote}")
        elif isinstance(part, JsonSchema):
            assert event.reader is not None
            if self._undecided is not None and self._undecided.json is not event.reader:
                self._undecided = None
            self._begun_document(event.reader, part, item)
            self._undecided = None
        elif isinstance(part, QuotedJson | Notated):
            self._begun_document(GrowingJson(is_written=self._is_written), part.schema, item)
            if isinstance(part, Notated):
                self._element, self._num_told, self._translation = event, event.start, _translation_of(part)

    def _begun_document(self, reader: GrowingJson, constraint: JsonSchema, item: Inline | Terminal) -> Document:
        """The document that begins, or the undecided one of that reader, of which all is known now."""
        document = self._undecided or Document(reader, None)
        document.constraint, document.name = constraint, item.name
        if self._id is not None:
            self._identify(document, self._id)
        self._documents.append(document)
        return document

    def _identify(self, document: Document, found: str) -> None:
        assert self._format is not None and document.name is not None
        document.id = self._format.identifier_of(document.name, found)

    def _end(self, event: _Event, end: int) -> None:
        item = event.item
        part = inner(item.constraint) if isinstance(item, Inline) else None
        if isinstance(part, Elements):
            assert self._elements is not None
            self._elements.json.push("}")
            self._elements = self._id = None
        elif self._elements is not None:
            if _is_told_whole(item):
                assert part is not None
                self._elements.json.push(json.dumps(part.parse(self._text_of(event.start, end)), ensure_ascii=False))
            else:
                self._tell(end, is_last=True)
            self._elements.json.push('"' if _is_raw(part) else " ")  # a number ends with it
            self._element = None
        elif isinstance(part, JsonSchema):
            assert event.reader is not None
            event.reader.end(end - event.start)
            self._id = None
        elif isinstance(part, QuotedJson):
            self._documents[-1].json.push(part.json(self._text_of(event.start, end)))
            self._id = None
        elif isinstance(part, Notated):
            self._tell(end, is_last=True)
            self._element = self._id = None
        elif item.name == CALL_ID:
            assert self._format is not None
            found = self._text_of(event.start, end)
            if self._format.is_id_first:
                self._id = found
            else:
                self._identify(self._documents[-1], found)

    def _text_of(self, start: int, end: int) -> str:
        return self._text[start - self._offset : end - self._offset]

    def _tell(self, end: int, *, is_last: bool = False) -> None:
        """Tell the arguments more of the element that is open, or of themselves."""
        assert self._element is not None
        piece = self._text_of(self._num_told, end)
        if self._translation is not None:
            piece = self._translation.push(piece, is_last=is_last)
        elif isinstance(self._element.item, Inline) and _is_raw(self._element.item.constraint):
            piece = json.dumps(piece, ensure_ascii=False)[1:-1]
        self._documents[-1].json.push(piece)
        self._num_told = end


def _common(one: _Event | None, other: _Event | None) -> _Event | None:
    """The last event that two lists have in common."""
    while one is not other:
        if other is None or (one is not None and one.number >= other.number):
            assert one is not None
            one = one.before
        else:
            other = other.before
    return one


def _first_after(last: _Event | None, certain: _Event | None) -> _Event | None:
    """The event that follows on another one in a list; None if that is the last."""
    found = None
    while last is not certain:
        assert last is not None
        found, last = last, last.before
    return found


def _is_told_whole(item: Inline | Terminal) -> bool:
    """Whether a part is a value that is written otherwise than in JSON, and is told when it is whole."""
    part = inner(item.constraint) if isinstance(item, Inline) else None
    return isinstance(part, QuotedJson | Unquoted | LiteralWords)


def _translation_of(part: Constraint | None) -> GrowingTranslation | None:
    """The translation to JSON of a part in another notation; None for JSON, and for a string written as it is."""
    if not isinstance(part, Notated) or _is_raw(part):
        return None
    return GrowingTranslation(part.values.outside, part.values.inside)


def _is_raw(part: Constraint | None) -> bool:
    """Whether a part is a string that is written as it is."""
    return isinstance(part, Notated) and part.values == RAW


def inner(constraint: Constraint) -> Constraint:
    """A constraint without what only judges its texts, or makes its masks."""
    while isinstance(constraint, WrappedConstraint) and not isinstance(constraint, Unquoted):
        constraint = constraint.constraint
    return constraint
