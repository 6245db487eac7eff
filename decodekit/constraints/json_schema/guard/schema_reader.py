"""The guard of a schema reads along, and judges each value when it is complete. A worked example:

    {"items": {"properties": {"id": {"pattern": "^(.)\\\\1$"}}, ...}, "uniqueItems": true}

    [{"id":"aa"        complete: the string, against #/items/properties/id
    [{"id":"aa"}       complete: the object; it is none of the items before
    [{"id":"aa"},{     nothing is complete, so nothing is judged

A value is complete with its last quote, bracket or letter; a number when the next byte ends it. Every value is judged
once by each schema, also where it is a part of others that are judged: an `Instance` remembers what is known of it.

The reader goes back as well, for tokens are tried. What it did is kept in a log and undone in turn. A text that has to
be read again, because more is left to the guard than was known, is read token by token where the reader goes on.

A judgement is work that can be left off, a token is not: a reader that is asked for the work of a token reads up to the
first judgement that it does not know, undoes that, and begins again when the judgement is known.

Judgements are remembered, since tokens are tried before they are taken: by the place for all texts, by the reader's own
text for long values and for reasons. Their steps are counted as often as the text needs them, whoever made them first,
so that the count is the same in every run.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, cast

from decodekit.constraints.constraint import ESCAPE, OUTSIDE, STRING, UNQUOTED, Refusal, Watch, WorkingReader
from decodekit.constraints.json_schema.guard.guard_rules import SchemaJudge, repetition
from decodekit.constraints.json_schema.guard.places import Place, Places
from decodekit.constraints.json_schema.meaning.semantics import Semantics
from decodekit.constraints.json_schema.values import instances
from decodekit.constraints.json_schema.values.instances import Instance
from decodekit.constraints.work_budget import Work, done, noted
from decodekit.errors import ConstraintError
from decodekit.records.strict_json import pointer_of

_QUOTE, _BACKSLASH, _COLON = 0x22, 0x5C, 0x3A
_STOP: Final = re.compile(rb'["\\]')
_WORDS: Final = frozenset({b"true", b"false", b"null"})
_STEPS_OF_A_BYTE: Final = 2
MAX_REASONS: Final = 8
"""So many reasons a reader remembers, until they are forgotten together."""
MAX_RECENT: Final = 64
"""So many verdicts are remembered from one token to the next, of texts of `MAX_RECENT_BYTES` together."""
MAX_RECENT_BYTES: Final = 1 << 22

_Answer = TypeVar("_Answer")


class Unknown(Exception):  # noqa: N818  (no error: it says what has to be done first)
    """Raised where a judgement is needed that is not known.

    Attributes:
        work: the judgement, after which it is known.
    """

    def __init__(self, work: Work[object]) -> None:
        super().__init__()
        self.work = work


class Judgements:
    """The judgements of one text.

    Attributes:
        num_steps: of all of them, also of those that another text made before.
        is_asked: whether a judgement that is not known is raised as `Unknown`, and not made at once.
    """

    def __init__(self, semantics: Semantics) -> None:
        self.num_steps = 0
        self.is_asked = False
        self._semantics = semantics
        self._recent: dict[tuple[Place, bytes], bool] = {}
        self._reasons: dict[Hashable, Refusal] = {}

    def copy(self) -> Judgements:
        """Those of an independent text."""
        twin = copy.copy(self)
        twin._recent, twin._reasons = self._recent.copy(), self._reasons.copy()
        return twin

    def forget(self) -> None:
        """Let go of the oldest verdicts, where they are many; never while a token is read, which would not end then."""
        while len(self._recent) > MAX_RECENT or sum(len(text) for _, text in self._recent) > MAX_RECENT_BYTES:
            del self._recent[next(iter(self._recent))]

    def holds(self, place: Place, instance: Instance, raw: bytes) -> bool:
        """Whether a value, whose text is `raw`, is valid at its place; True if that takes too long to be told."""
        verdict = self._recent.get((place, raw))
        if verdict is None and raw in place.verdicts:
            verdict, num_steps = place.verdicts[raw]
            self.num_steps += num_steps
            self._recent[place, raw] = verdict
        return self._answer(self._verdict(place, instance, raw)) if verdict is None else verdict

    def why(self, place: Place, instance: Instance, raw: bytes, path: list[str | int]) -> Refusal:
        """Why it is not, given the keys and indices that lead to it."""
        key = place, instance.start, raw, *path
        return self._reasons.get(key) or self._answer(self._reason(place, instance, path, key))

    def _answer(self, work: Work[_Answer]) -> _Answer:
        if self.is_asked:
            raise Unknown(work)
        return done(work)

    def _verdict(self, place: Place, instance: Instance, raw: bytes) -> Work[bool]:
        """Whether a value is valid at its place, which is known then; True if the end of the text has to tell."""
        begun, verdict = self.num_steps, True
        judge = SchemaJudge(self._semantics, is_remembered=True)
        try:
            for schema in place.schemas:
                verdict &= (yield from noted(judge.judging(schema, instance), self._count)) is not None
                if not verdict:
                    break
        except ConstraintError:
            pass
        place.remember(raw, (verdict, self.num_steps - begun))
        self._recent[place, raw] = verdict
        return verdict

    def _reason(self, place: Place, instance: Instance, path: list[str | int], key: Hashable) -> Work[Refusal]:
        judge = SchemaJudge(self._semantics, path)
        for schema in place.schemas:
            if (yield from noted(judge.judging(schema, instance), self._count)) is None:
                break
        if len(self._reasons) >= MAX_REASONS:
            self._reasons.clear()
        found = self._reasons[key] = judge.refusal(instance)
        return found

    def _count(self, num_steps: int) -> None:
        self.num_steps += num_steps


@dataclass(eq=False, slots=True)
class _Bracket:
    """An object or array that is open.

    Attributes:
        is_object, start: what it is, and where it begins.
        place: where it stands; None if nothing in it is watched.
        is_kept: whether its values are needed, because it is judged, or something around it.
        num_closed, num_before, num_around: as in `Watch`, when the text stands right inside of it.
        keys, values: so far; None for a value that is not needed.
        met: the number of each item, by identity, where all have to differ. `strings`: those among them, sorted.
    """

    is_object: bool
    start: int
    place: Place | None
    is_kept: bool
    num_closed: int = -1
    num_before: int = -1
    num_around: int = -1
    keys: list[str] = field(default_factory=list)
    values: list[Instance | None] = field(default_factory=list)
    met: dict[int, int] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)

    def copy(self) -> _Bracket:
        """Another one that is as open."""
        keys, values = self.keys.copy(), self.values.copy()
        return replace(self, keys=keys, values=values, met=self.met.copy(), strings=self.strings.copy())


_Mark = tuple[int, int, int, int, int]
"""Where the reader stood before a read: the bytes of the text, the entries of the log, and what the log leaves out."""


def _further(num_brackets: int) -> int:
    """A number of brackets to close, one bracket further inside; -1 stays."""
    return num_brackets if num_brackets < 0 else num_brackets + 1


def _remove(strings: list[str], string: str) -> None:
    del strings[bisect_left(strings, string)]


class SchemaReader(WorkingReader):
    """Reads one text of a schema; see `GuardReader`.

    Args:
        find_places: gives the places of the schema, as far as is known by then what is left to the guard.
        is_doubtful: whether a value has to be judged at all, given the text.
    """

    def __init__(self, find_places: Callable[[], Places], is_doubtful: Callable[[bytearray, Instance], bool]) -> None:
        self._find_places = find_places
        self._is_doubtful = is_doubtful
        self._places = find_places()
        self._text = bytearray()
        self._marks: list[_Mark] = []  # before each read
        self._num_before = 0  # reads that the log does not reach back to
        self._behind: list[bytes] = []  # reads that follow and have to be done once more, the last one first
        self._refusal: Refusal | None = None  # of a text that was read before it was known what is left
        self._judgements = Judgements(self._places.semantics)
        self._reset()

    def _reset(self) -> None:
        self._mode, self._start, self._before = OUTSIDE, -1, -1  # of the scalar; the last comma, colon or bracket
        self._open: list[_Bracket] = []
        self._log: list[Callable[[], object]] = []  # each undoes a step
        self._identities: dict[Hashable, int] = {}

    # -- the text

    @property
    def num_steps(self) -> int:
        """The steps of its judgements."""
        return self._judgements.num_steps

    @property
    def watch(self) -> Watch | bool:
        """A description of the tokens that may be refused here; True for any, False for none."""
        self._renew()
        if self._refusal is not None:
            return True
        if not self._places.root.is_watched:
            return False
        if not self._open:
            return Watch(self._mode, num_around=0)
        top = self._open[-1]
        is_scalar = self._start >= 0 and top.place is not None and self._is_scalar_judged(top, top.place)
        return Watch(self._mode, is_scalar, top.num_closed, top.num_before, top.num_around)

    def _is_scalar_judged(self, top: _Bracket, place: Place) -> bool:
        if self._is_key(top):
            return place.is_weak or place.names.is_judged
        return self._below(top, place).is_judged or (bool(top.met) and self._may_repeat(top))

    def _may_repeat(self, top: _Bracket) -> bool:
        """Whether the scalar that the text ends in may become equal to an item before; False for most strings."""
        if self._text[self._start] != _QUOTE or _BACKSLASH in self._text[self._start :]:
            return True
        beginning = self._text[self._start + 1 :].decode("utf-8", "ignore")
        index = bisect_left(top.strings, beginning)
        return index < len(top.strings) and top.strings[index].startswith(beginning)

    def read(self, data: bytes) -> Refusal | None:
        """Go on with the bytes of a token; or why no text goes on so, and then nothing changes."""
        self._renew()
        if self._refusal is not None:
            return self._refusal
        return self._go_on(data)

    def judging(self, data: bytes) -> Work[None]:
        """The judgements that `read` needs, which knows them then; nothing else changes."""
        self._judgements.forget()
        while True:
            self._judgements.is_asked = True
            try:
                if self.read(data) is None:
                    self.rollback(1)
                return
            except Unknown as unknown:
                work = unknown.work
            finally:
                self._judgements.is_asked = False
            yield from work

    def _go_on(self, data: bytes) -> Refusal | None:
        mark = self._mark()
        self._text += data
        try:
            refusal = self._scan(mark[0]) if self._places.root.is_watched else None
        except BaseException:
            self._undo(mark)
            raise
        if refusal is None:
            self._marks.append(mark)
        else:
            self._undo(mark)
        return refusal

    def rollback(self, num_reads: int) -> None:
        """Forget the last reads that were not refused."""
        num_behind = min(num_reads, len(self._behind))
        del self._behind[:num_behind]
        num_reads -= num_behind
        if not num_reads:
            return
        left = len(self._marks) - num_reads
        mark = self._marks[left]
        if left < self._num_before or self._refusal is not None:
            self._begin_again(left)
        else:
            del self._marks[left:]
            self._undo(mark)

    def fork(self) -> SchemaReader:
        """An independent reader of the same text."""
        twin = copy.copy(self)
        twin._text, twin._identities = self._text.copy(), self._identities.copy()
        twin._marks, twin._num_before, twin._log = self._marks.copy(), len(self._marks), []
        twin._behind = self._behind.copy()
        twin._judgements = self._judgements.copy()
        twin._open = [one.copy() for one in self._open]
        return twin

    def _mark(self) -> _Mark:
        return len(self._text), len(self._log), self._mode, self._start, self._before

    def _undo(self, mark: _Mark) -> None:
        num_bytes, num_logged, self._mode, self._start, self._before = mark
        del self._text[num_bytes:]
        while len(self._log) > num_logged:
            self._log.pop()()

    def _renew(self) -> None:
        """Read the text once more, as it was read, if more is left to the guard than when it began."""
        if len(self._places.semantics.left) != self._places.num_left:
            self._places = self._find_places()
            self._begin_again(len(self._marks))
        while self._behind:
            data = self._behind[-1]
            if self._refusal is None:
                self._refusal = self._go_on(data)
                self._judgements.num_steps += _STEPS_OF_A_BYTE * len(data)
            if self._refusal is not None:  # it goes back by reads, but they say nothing more
                self._marks.append(self._mark())
                self._text += data
            self._behind.pop()

    def _begin_again(self, num_reads: int) -> None:
        """Forget what the first reads came to, and let them be done once more; those after them are forgotten."""
        starts = [mark[0] for mark in self._marks]
        text, ends = bytes(self._text), [*starts[1:], len(self._text)]
        self._behind += [text[start:end] for start, end in zip(starts, ends, strict=True)][:num_reads][::-1]
        self._reset()
        self._text, self._marks, self._num_before, self._refusal = bytearray(), [], 0, None

    # -- values

    def _scan(self, at: int) -> Refusal | None:
        """Read the text from a byte on, up to its end or to what is refused."""
        text = self._text
        while at < len(text):
            byte = text[at]
            refusal = None
            if self._mode == STRING:
                found = _STOP.search(text, at)
                if found is None:
                    return None
                at = found.end()
                self._mode = ESCAPE if text[at - 1] == _BACKSLASH else OUTSIDE
                refusal = self._end_scalar(at) if self._mode == OUTSIDE else None
            elif self._mode == ESCAPE:
                self._mode = STRING
                at += 1
            elif self._start >= 0:  # a number or a word
                is_going_on = byte in UNQUOTED
                at += is_going_on
                if not is_going_on or (byte in b"el" and bytes(text[self._start : at]) in _WORDS):
                    refusal = self._end_scalar(at)
            else:
                at += 1
                refusal = self._step(byte, at)
            if refusal is not None:
                return refusal
        return None

    def _step(self, byte: int, end: int) -> Refusal | None:
        """A byte between scalars; why what it closes is refused."""
        if byte in b"[{":
            self._open_one(is_object=byte == 0x7B, start=end - 1)
            self._before = byte
        elif byte in b"]}":
            return self._close_one(end)
        elif byte in b",:":
            self._before = byte
        elif byte not in b" \t\r\n":
            self._start = end - 1
            self._mode = STRING if byte == _QUOTE else OUTSIDE
        return None

    def _is_key(self, top: _Bracket) -> bool:
        return top.is_object and self._before != _COLON

    @staticmethod
    def _below(top: _Bracket, place: Place) -> Place:
        """The place of the value that comes next in what is open."""
        return place.member(top.keys[-1]) if top.is_object else place.item(len(top.values))

    def _open_one(self, *, is_object: bool, start: int) -> None:
        one = _Bracket(is_object, start, self._places.root, False, num_around=0)
        if self._open:  # else it is the whole text, which is judged at its end
            top = self._open[-1]
            one.place = None if top.place is None else self._below(top, top.place)
            is_item = top.place is not None and bool(top.place.repeating) and not top.is_object
            is_judged = is_item or (one.place is not None and one.place.is_judged)
            one.is_kept = top.is_kept or is_judged
            one.num_closed = 1 if is_judged else _further(top.num_closed)
            one.num_before, one.num_around = _further(top.num_before), _further(top.num_around)
        if one.place is not None:
            if not one.place.is_watched:
                one.place = None
            else:
                one.num_around = 0
                one.num_before = 0 if one.place.is_judged_inside else one.num_before
                one.is_kept |= bool(one.place.repeating) and not is_object
        self._open.append(one)
        self._log.append(self._open.pop)

    def _close_one(self, end: int) -> Refusal | None:
        one = self._open.pop()
        self._log.append(partial(self._open.append, one))
        if not self._open:
            return None
        top = self._open[-1]
        if not top.is_kept and not one.is_kept:
            self._skip(top)
            return None
        values = [value for value in one.values if value is not None]
        instance = instances.compound(one.keys if one.is_object else None, values, one.start, end)
        return self._complete(top, instance)

    def _end_scalar(self, end: int) -> Refusal | None:
        start, self._start = self._start, -1
        if not self._open:
            return None
        top = self._open[-1]
        if top.place is None and not top.is_kept:
            return None
        raw = bytes(self._text[start:end])
        if self._is_key(top):
            top.keys.append(json.loads(raw))
            self._log.append(top.keys.pop)
            return None if top.place is None else self._judge_key(top, top.place, raw, end)
        is_needed = top.is_kept or (top.place is not None and self._below(top, top.place).is_judged)
        if is_needed:
            return self._complete(top, instances.scalar(raw, end))
        self._skip(top)
        return None

    def _skip(self, top: _Bracket) -> None:
        """A value that is not needed."""
        if top.place is not None:
            top.values.append(None)
            self._log.append(top.values.pop)

    def _complete(self, top: _Bracket, instance: Instance) -> Refusal | None:
        """A value that is needed is complete: why it is refused."""
        place = top.place
        below = None if place is None else self._below(top, place)
        content = instances.content(instance)
        known = self._identities.get(content)
        if known is None:
            known = self._identities[content] = len(self._identities)
            self._log.append(partial(self._identities.pop, content))
        instance.identity = known
        refusal = self._judged(below, instance) if below is not None and below.is_judged else None
        if refusal is None and place is not None and place.repeating and not top.is_object:
            refusal = self._repeated(top, place, instance)
        top.values.append(instance)
        self._log.append(top.values.pop)
        return refusal

    def _repeated(self, top: _Bracket, place: Place, item: Instance) -> Refusal | None:
        index = len(top.values)
        first = top.met.get(item.identity)
        if first is None:
            top.met[item.identity] = index
            self._log.append(partial(top.met.pop, item.identity))
            if item.kind == "string":
                string = cast("str", item.value)
                insort(top.strings, string)
                self._log.append(partial(_remove, top.strings, string))
            return None
        items = cast("list[Instance]", top.values)  # all are kept
        return repetition(items, self._path(), first, place.repeating[0])

    # -- judgements

    def _path(self) -> list[str | int]:
        """The keys and indices that lead to the value that is complete."""
        return [one.keys[-1] if one.is_object else len(one.values) for one in self._open]

    def _judge_key(self, top: _Bracket, place: Place, raw: bytes, end: int) -> Refusal | None:
        if place.is_weak and place.member(top.keys[-1]).is_empty:
            pointer = pointer_of(self._path())
            return Refusal(end - 1, pointer, f"no value may stand at {pointer}")
        return self._judged(place.names, instances.scalar(raw, end)) if place.names.is_judged else None

    def _judged(self, place: Place, instance: Instance) -> Refusal | None:
        """Why a value is not valid at its place. What takes too long to be judged is judged at the end of the text."""
        if not self._is_doubtful(self._text, instance):
            return None
        raw = bytes(self._text[instance.start : instance.end])
        return (
            None
            if self._judgements.holds(place, instance, raw)
            else self._judgements.why(place, instance, raw, self._path())
        )
