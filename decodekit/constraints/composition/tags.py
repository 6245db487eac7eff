"""Free text with tags in it, inside of which a constraint holds; and reasoning before a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias, cast

from decodekit.constraints.composition.combinators import Part, check_bounds, rounds
from decodekit.constraints.composition.composed import Composed, Special, checked_text, part_of, row
from decodekit.constraints.composition.free_text import endings_before, free_text
from decodekit.constraints.constraint import set_fields
from decodekit.constraints.grammar.rules import Alternatives, Expression, Repeated, Terminal
from decodekit.constraints.language import ir
from decodekit.errors import InvalidConstraintError

MAX_GAP: Final = 16
"""Most blanks, in bytes, where any number may stand: an end for a model that loops in them."""

Markers: TypeAlias = "str | Special | tuple[str | Special, ...]"
"""What opens or closes reasoning: a text, a special token, or several of them."""

BLANKS: Final[Expression] = Repeated(Terminal(ir.byte_set(b" \t\r\n"), "blank"), 0, MAX_GAP)


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of `Tagged` text: a begin, a text of a constraint, an end.

    Args:
        begin: a str, or a `Special` token.
        constraint: as a part of `Concat`.
        end: a str, which may be empty, or a `Special` token.

    Raises:
        InvalidConstraintError: an empty begin, or something that is not a constraint.
    """

    begin: str | Special
    constraint: Part
    end: str | Special

    def __init__(self, begin: str | Special, constraint: object, end: str | Special = "") -> None:
        checked = _marker(begin, "the begin of a tag", may_be_empty=False)
        part = part_of(constraint, f"the tag {name_of(begin)!r:.60}")
        set_fields(self, begin=checked, constraint=part, end=_marker(end, "the end of a tag"))


@dataclass(frozen=True, slots=True)
class TagValue:
    """One tag of a text, as `Tagged` parses it.

    Attributes:
        begin: the begin of the tag, by its text or its name.
        value: the value of its constraint.
    """

    begin: str
    value: object


@dataclass(frozen=True, slots=True)
class Tagged(Composed):
    """Free text in which a trigger begins a tag ("structural tags").

        dk.Tagged(dk.Tag("<function=search>", Query, "</function>"), dk.Tag("<function=read>", Path, "</function>"),
                  triggers=["<function="])

    The text is free up to the first occurrence of a trigger. There one of the tags that begin with it goes on, up to
    its end; then the text is free again. So a trigger occurs nowhere but where a tag begins, also behind the last tag.
    The value is the tuple of the pieces in order: texts (str, empty ones left out) and a `TagValue` for each tag.

    Args:
        tags: what may follow.
        triggers: beginnings of the begins; those of the tags themselves if none are given. The begin of each tag starts
            with one of them; a `Special` begin is a trigger of its own.
        min_tags: least number of tags.
        max_tags: largest number of tags; None for no bound.

    Raises:
        InvalidConstraintError: no tags, a tag twice, a trigger that holds another one or begins no tag, a tag without a
            trigger, or bounds that are negative or crossed.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...]
    min_tags: int
    max_tags: int | None

    def __init__(
        self, *tags: Tag, triggers: Iterable[str] = (), min_tags: int = 0, max_tags: int | None = None
    ) -> None:
        check_bounds(min_tags, max_tags, "min_tags", "max_tags")
        if isinstance(triggers, str):
            raise InvalidConstraintError(
                "triggers takes several texts, not one", at="triggers", hint=f"triggers=[{triggers!r:.60}]"
            )
        for tag in tags:
            if not isinstance(tag, Tag):
                raise InvalidConstraintError(f"{tag!r:.60} is no tag", at="tags", hint='Tag("<b>", constraint, "</b>")')
        begins = [tag.begin for tag in tags]
        if not tags:
            raise InvalidConstraintError("Tagged without tags", at="tags", hint='Tag("<b>", constraint, "</b>")')
        for number, begin in enumerate(begins):
            if begin in begins[:number]:
                raise InvalidConstraintError(f"two tags begin with {name_of(begin)!r:.60}", at="tags")
        texts = [begin for begin in begins if isinstance(begin, str)]
        chosen = tuple(
            dict.fromkeys(checked_text(trigger, "triggers", may_be_empty=False) for trigger in triggers or texts)
        )
        words = [*chosen, *(begin.name for begin in begins if isinstance(begin, Special))]
        for word, other in product(words, words):
            if other is not word and other in word:
                raise InvalidConstraintError(
                    f"the trigger {word!r:.60} never comes, because it holds the trigger {other!r:.60}",
                    at="triggers",
                    hint="the shorter one alone",
                )
        for trigger in chosen:
            if not any(begin.startswith(trigger) for begin in texts):
                raise InvalidConstraintError(f"no tag begins with the trigger {trigger!r:.60}", at="triggers")
        for begin in texts:
            if not begin.startswith(chosen):
                raise InvalidConstraintError(f"the tag {begin!r:.60} begins with no trigger", at="triggers")
        set_fields(self, tags=tags, triggers=chosen, min_tags=min_tags, max_tags=max_tags)

    def expression(self) -> Expression:
        """Free text and a tag, as often as tags may come; then free text."""
        words = list(map(name_of, self._triggers()))
        options = []
        for trigger in self._triggers():
            rests = Alternatives(tuple(_rest(tag, trigger) for tag in self._tags_of(trigger)))
            options.append(row(before(name_of(trigger), words), trigger, rests))
        tags = rounds(Alternatives(tuple(options)), self.min_tags, self.max_tags)
        return row(tags, Terminal(free_text(words), "text"))

    def value(self, parts: object) -> tuple[str | TagValue, ...]:
        """The pieces in order."""
        found, last = cast("tuple[list[Any], str]", parts)
        pieces: list[str | TagValue] = []
        for number, (text, _, (choice, (_, value, _))) in found:
            tag = self._tags_of(self._triggers()[number])[choice]
            pieces += [text, TagValue(name_of(tag.begin), value)]
        return tuple(piece for piece in [*pieces, last] if piece != "")

    def _triggers(self) -> list[str | Special]:
        return [*self.triggers, *(tag.begin for tag in self.tags if isinstance(tag.begin, Special))]

    def _tags_of(self, trigger: str | Special) -> list[Tag]:
        if isinstance(trigger, Special):
            return [tag for tag in self.tags if tag.begin == trigger]
        return [tag for tag in self.tags if isinstance(tag.begin, str) and tag.begin.startswith(trigger)]

    @classmethod
    def from_mapping(cls, value: Mapping[str, object]) -> Tagged:
        """Read a structural tag as vLLM's and SGLang's ``response_format`` has it: ``structures`` and ``triggers``.

        Raises:
            InvalidConstraintError: another form; all places of the mapping that are wrong are named.
        """
        from decodekit.constraints.json_schema import JsonSchema

        known = {"type", "structures", "triggers"}
        faults = [f"{name!r} is not known" for name in value if name not in known]
        structures, triggers = value.get("structures"), value.get("triggers")
        if not isinstance(structures, list) or not structures:
            faults.append('"structures" must be a list of tags')
            structures = []
        if not isinstance(triggers, list) or not all(isinstance(trigger, str) for trigger in triggers):
            faults.append('"triggers" must be a list of texts')
        for number, one in enumerate(structures):
            if not isinstance(one, Mapping) or set(one) != {"begin", "schema", "end"}:
                faults.append(f'"structures/{number}" must have "begin", "schema" and "end"')
        if faults:
            raise InvalidConstraintError(
                f"the structural tag cannot be read: {'; '.join(faults)}",
                at="#",
                hint='{"type": "structural_tag", "structures": [{"begin": "<b>", "schema": {...}, "end": "</b>"}], '
                '"triggers": ["<b>"]}',
            )
        tags = [Tag(one["begin"], JsonSchema(one["schema"]), one["end"]) for one in structures]
        return cls(*tags, triggers=cast("list[str]", triggers))


@dataclass(frozen=True, slots=True)
class Reasoned(Composed):
    """Free reasoning between a begin and an end, then a value; the value is the pair of the reasoning and the value.

        dk.Reasoned(Invoice)                # <think>... and so the total is 40.20.</think>{"number": ...}
        dk.Reasoned(Invoice, begin="")      # where the chat template has begun the reasoning

    Blanks may stand before the begin and before the value, and belong to neither.

    Args:
        constraint: as a part of `Concat`.
        begin: a str, empty for none, or a `Special` token; or several of them, one after the other.
        end: a str, or a `Special` token; or several of them. The reasoning ends where the first of them comes first.
        max_chars: largest number of characters (code points) of the reasoning; None for no bound.

    Raises:
        InvalidConstraintError: no end, something that is not a constraint, or a bound that is negative.
    """

    constraint: Part
    begin: Markers
    end: Markers
    max_chars: int | None

    def __init__(
        self,
        constraint: object,
        begin: str | Special | Sequence[str | Special] = "<think>",
        end: str | Special | Sequence[str | Special] = "</think>",
        max_chars: int | None = None,
    ) -> None:
        check_bounds(0, max_chars, "0", "max_chars")
        part, checked = part_of(constraint, "the value of Reasoned"), _markers(begin, "begin")
        last = _markers(end, "end", may_be_empty=False)
        set_fields(self, constraint=part, begin=checked, end=last, max_chars=max_chars)

    def expression(self) -> Expression:
        """Blanks, begin, free text, end, blanks, the value."""
        begin, end = each_marker(self.begin), each_marker(self.end)
        word = name_of(end[0])
        reasoning = before(word, [word], self.max_chars)
        return row(BLANKS if begin != ("",) else "", row(*begin), reasoning, row(*end), BLANKS, self.constraint)

    def value(self, parts: object) -> tuple[str, object]:
        """The reasoning and the value."""
        _, _, reasoning, _, _, value = cast("list[Any]", parts)
        return reasoning, value


def before(word: str, words: list[str], max_chars: int | None = None) -> Terminal:
    """Free text behind which `word` comes, the first of `words` that is met."""
    return Terminal(free_text(words, endings_before(word, words), 0, max_chars), "text")


def name_of(marker: str | Special) -> str:
    """The text of a marker, or the name of a special token."""
    return marker.name if isinstance(marker, Special) else marker


def _rest(tag: Tag, trigger: str | Special) -> Expression:
    """The tag behind its trigger: the rest of the begin, the content, the end."""
    rest = tag.begin[len(trigger) :] if isinstance(trigger, str) and isinstance(tag.begin, str) else ""
    return row(rest, tag.constraint, tag.end)


def each_marker(markers: Markers) -> tuple[str | Special, ...]:
    """Markers that stand one after the other."""
    return markers if isinstance(markers, tuple) else (markers,)


def _markers(given: object, at: str, may_be_empty: bool = True) -> Markers:
    if not isinstance(given, list | tuple):
        return _marker(given, at, may_be_empty)
    if not given:
        raise InvalidConstraintError("no text at all", at=at, hint="a text, or a Special token")
    return tuple(_marker(one, at, may_be_empty=False) for one in given)


def _marker(marker: object, at: str, may_be_empty: bool = True) -> str | Special:
    return marker if isinstance(marker, Special) else checked_text(marker, at, may_be_empty)
