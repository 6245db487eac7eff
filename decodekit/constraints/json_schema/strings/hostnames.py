"""Host names, plain and internationalised, as body languages, and whether one is valid.

Plain labels are letters, digits and hyphens (RFC 1123), none of them with hyphens in the third and fourth place: those
are reserved (RFC 5890, section 2.3.1). Whether an A-label such as ``xn--p1ai`` is valid depends on what its Punycode
stands for (here ``рф``), which no automaton of a useful size decides. So the languages of `with_a_labels` and
`international` have every text of an A-label's form, and `is_valid` says of a whole name whether its A-labels are
valid. That a U-label is in Unicode's form NFC is left to it, too. The guard of a schema asks it, see `guarding`.

U-labels follow RFC 5891 to 5893, derived from the Unicode tables of this Python: code points that are PVALID, no mark
in front, the contextual rules of RFC 5892's appendix A, the Bidi rule. What is narrower than the standards:

* a U-label that is written as such has at most `MAX_U_LABEL` code points, so that its A-label has at most 63 letters
  whatever they are, and a name with U-labels at most `MAX_U_LABELS` labels, so that it has at most 253;
* a name with right-to-left U-labels has such labels and A-labels only, which is more than the Bidi rule asks;
* ZERO WIDTH NON-JOINER stands after a virama or between Arabic letters that join (`_ARABIC_DUAL`), no others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.utf8 import Ranges
from decodekit.constraints.regex import charclasses

MAX_U_LABEL: Final = 13
"""A search for long A-labels found 54 letters for 13 code points, of 59 that may follow ``xn--``."""
MAX_U_LABELS: Final = 3
ACE_PREFIX: Final = "xn--"
MAX_LABEL: Final = 63
MAX_NAME: Final = 253
MAX_MAIL_DOMAIN: Final = 189
"""254 letters of an address (RFC 5321, section 4.5.3.1.3) less a local part of 64 and the @."""

_LETTERS_DIGITS: Final = ("Ll", "Lu", "Lo", "Nd", "Lm", "Mn", "Mc")  # RFC 5892, section 2.1
_PVALID_EXCEPTIONS: Final = (0xDF, 0x3C2, 0x6FD, 0x6FE, 0xF0B, 0x3007)  # section 2.6
_DISALLOWED_EXCEPTIONS: Final = (0x640, 0x7FA, 0x302E, 0x302F, *range(0x3031, 0x3036), 0x303B)
_CONTEXTUAL: Final = (0xB7, 0x375, 0x5F3, 0x5F4, 0x30FB, 0x200C, 0x200D)
# Old Hangul jamo (2.9), ignorable blocks (2.4) and what is Default_Ignorable_Code_Point (2.3).
_LEFT_OUT: Final[Ranges] = (
    (0x34F, 0x34F), (0x1100, 0x11FF), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x20D0, 0x20FF), (0xA960, 0xA97C),
    (0xD7B0, 0xD7C6), (0xD7CB, 0xD7FB), (0xFE00, 0xFE0F), (0x1D100, 0x1D1FF), (0x1D200, 0x1D24F), (0xE0000, 0xE0FFF),
)  # fmt: skip
# Joining_Type D and R among the letters of Arabic proper (ArabicShaping.txt).
_ARABIC_DUAL: Final[Ranges] = ((0x626, 0x626), (0x628, 0x628), (0x62A, 0x62E), (0x633, 0x63F), (0x641, 0x647),
                               (0x649, 0x64A))  # fmt: skip
_ARABIC_RIGHT: Final[Ranges] = ((0x622, 0x625), (0x627, 0x627), (0x629, 0x629), (0x62F, 0x632), (0x648, 0x648))

_DOTS: Final[Ranges] = ((0x2E, 0x2E), (0x3002, 0x3002), (0xFF0E, 0xFF0E), (0xFF61, 0xFF61))  # RFC 3490, section 3.1
_DOT: Final = re.compile("[.\u3002\uff0e\uff61]")
_HYPHEN: Final[Ranges] = ((0x2D, 0x2D),)
_ASCII: Final[Ranges] = ((0, 0x7F),)
_CAPITALS: Final[Ranges] = ((0x41, 0x5A),)
_ALPHANUMERIC: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A))


def _one_of(points: Iterable[int]) -> Ranges:
    return utf8.normalise((point, point) for point in points)


def _minus(ranges: Ranges, others: Ranges) -> Ranges:
    return utf8.intersect(ranges, utf8.invert(others))


@dataclass(frozen=True)
class _State:
    """What counts of the beginning of a label.

    Attributes:
        length: the number of code points, `previous` the role of the last one.
        japanese: 0: nothing, 1: a KATAKANA MIDDLE DOT that still needs a Japanese letter, 2: there is one.
        repertoire: "plain" if it can only be a plain label (by a capital or by its length), "U" if only a U-label.
        may_end: whether the Bidi class of the last letter may end a label. `digits`: the Bidi class of its digits.
    """

    length: int = 0
    previous: str = ""
    japanese: int = 0
    repertoire: str = ""
    may_end: bool = True
    digits: str = ""


def _labels(
    step: Callable[[_State], Iterable[tuple[Node, _State]]],
    is_label: Callable[[_State], bool],
    start: _State | None = None,
) -> Node:
    """The labels of a machine whose states never come again, so that no intersection is left to be searched."""
    known: dict[_State, Node] = {}

    def after(state: _State) -> Node:
        if state not in known:
            ways = [ir.concat(letter, after(target)) for letter, target in step(state)]
            known[state] = ir.choice(*ways, ir.EPSILON if is_label(state) else ir.EMPTY)
        return known[state]

    return after(start or _State())


def _may_be_hyphen(state: _State) -> bool:
    """Not the first, and not the fourth after a third one."""
    return state.length > 0 and not (state.length == 3 and state.previous == "hyphen")


@lru_cache(maxsize=1)
def plain_label() -> Node:
    """Letters, digits and hyphens inside, not in the third and fourth place both."""
    alphanumeric, hyphen = text.encode(_ALPHANUMERIC), text.encode(_HYPHEN)

    def step(state: _State) -> Iterator[tuple[Node, _State]]:
        length = state.length + 1
        if length <= MAX_LABEL:
            yield alphanumeric, _State(length)
            if _may_be_hyphen(state):
                yield hyphen, _State(length, "hyphen")

    return _labels(step, lambda state: state.length > 0 and not state.previous)


@lru_cache(maxsize=1)
def a_label() -> Node:
    """All that has the form of an A-label: ``xn--`` in small or capital letters, then letters, digits and hyphens."""
    alphanumeric, hyphen = text.encode(_ALPHANUMERIC), text.encode(_HYPHEN)

    def step(state: _State) -> Iterator[tuple[Node, _State]]:
        length = state.length + 1
        if length <= MAX_LABEL:
            yield alphanumeric, _State(length)
            yield hyphen, _State(length, "hyphen")

    rest = _labels(step, lambda state: not state.previous, _State(len(ACE_PREFIX), "hyphen"))
    prefix = (text.encode(_one_of({ord(letter), ord(letter.upper())})) for letter in ACE_PREFIX)
    return ir.concat(*prefix, rest)


@lru_cache(maxsize=4)
def plain(max_length: int = MAX_NAME) -> Node:
    """Host names of plain labels."""
    return _of_letters(plain_label(), max_length)


@lru_cache(maxsize=1)
def with_a_labels() -> Node:
    """Host names of plain labels and of what has the form of an A-label."""
    return _of_letters(ir.choice(plain_label(), a_label()), MAX_NAME)


def _of_letters(label: Node, max_length: int) -> Node:
    name = ir.concat(label, ir.repeat(ir.concat(text.encode(((0x2E, 0x2E),)), label)))
    return text.meet(name, text.length(1, max_length))


@lru_cache(maxsize=1)
def international() -> Node:
    """Host names of plain labels, U-labels and what has the form of an A-label."""
    labels, ace = _Labels(is_strict=True), a_label()
    return ir.choice(
        with_a_labels(),
        _names(ir.choice(labels.without_direction(), ace), _DOTS),
        _names(ir.choice(labels.right_to_left(), ace), _DOTS),
    )


@lru_cache(maxsize=1)
def international_mail() -> Node:
    """The domains of e-mail addresses (RFC 6531), which need not be in the form NFC; without contextual code points."""
    labels = _Labels(is_strict=False)
    dot: Ranges = ((0x2E, 0x2E),)
    names = (_names(label, dot) for label in (labels.without_direction(), labels.right_to_left()))
    return ir.choice(plain(MAX_MAIL_DOMAIN), *names)


def is_valid(name: str) -> bool:
    """Whether all A-labels and U-labels of a host name are valid. The name is one of `international`."""
    return all(
        _is_a_label(label.lower()) if label.isascii() else unicodedata.is_normalized("NFC", label)
        for label in _DOT.split(name)
        if not label.isascii() or label[:4].lower() == ACE_PREFIX
    )


@lru_cache(maxsize=1024)
def _is_a_label(label: str) -> bool:
    """Whether a label in small letters is the A-label of a U-label (RFC 5891, section 5.4)."""
    try:
        u_label = label[len(ACE_PREFIX) :].encode("ascii").decode("punycode")
        again = u_label.encode("punycode").decode("ascii")
    except (UnicodeError, OverflowError, ValueError):
        return False
    return not u_label.isascii() and ACE_PREFIX + again == label and is_u_label(u_label)


def is_u_label(label: str) -> bool:
    """Whether a label with a character beyond ASCII is valid (RFC 5891, section 4.2), its length left aside."""
    if not unicodedata.is_normalized("NFC", label) or label[0] == "-" or label[-1] == "-" or label[2:4] == "--":
        return False
    if unicodedata.category(label[0])[0] == "M":
        return False
    return all(_may_stand(label, place) for place in range(len(label))) and _keeps_direction(label)


def _may_stand(label: str, place: int) -> bool:
    """Whether a code point is PVALID, or stands where its contextual rule allows (RFC 5892, appendix A)."""
    point, before, after = ord(label[place]), label[:place], label[place + 1 :]
    scripts = _scripts()
    if point in (0x200C, 0x200D):
        if before and unicodedata.combining(before[-1]) == 9:
            return True
        return (
            point == 0x200C and _joins(reversed(before), _ARABIC_DUAL) and _joins(after, _ARABIC_DUAL + _ARABIC_RIGHT)
        )
    if point == 0xB7:
        return before[-1:] == "l" and after[:1] == "l"
    if point == 0x375:
        return bool(after) and _is_in(ord(after[0]), scripts["GREEK"])
    if point in (0x5F3, 0x5F4):
        return bool(before) and _is_in(ord(before[-1]), scripts["HEBREW"])
    if point == 0x30FB:
        return any(_is_in(ord(other), scripts["Japanese"]) for other in label)
    if 0x660 <= point <= 0x669:
        return not any(0x6F0 <= ord(other) <= 0x6F9 for other in label)
    return _is_in(point, pvalid())


def _joins(letters: Iterable[str], joining: Ranges) -> bool:
    """Whether the first of some letters that is no mark joins."""
    first = next((letter for letter in letters if unicodedata.category(letter) not in ("Mn", "Me", "Cf")), None)
    return first is not None and _is_in(ord(first), joining)


def _is_in(point: int, ranges: Ranges) -> bool:
    return any(low <= point <= high for low, high in ranges)


def _keeps_direction(label: str) -> bool:
    """The Bidi rule (RFC 5893, section 2), for a label with right-to-left letters or Arabic digits."""
    classes = [unicodedata.bidirectional(letter) for letter in label]
    if not {"R", "AL", "AN"} & set(classes):
        return True
    last = next((found for found in reversed(classes) if found != "NSM"), "")
    if classes[0] in ("R", "AL"):
        is_known = set(classes) <= {"R", "AL", "AN", "EN", *_NEUTRAL}
        return is_known and last in ("R", "AL", "EN", "AN") and not {"EN", "AN"} <= set(classes)
    return classes[0] == "L" and set(classes) <= {"L", "EN", *_NEUTRAL} and last in ("L", "EN")


def _names(label: Node, dots: Ranges) -> Node:
    return ir.concat(label, ir.repeat(ir.concat(text.encode(dots), label), 0, MAX_U_LABELS - 1))


def _by_property(points: Ranges, property_of: Callable[[str], object]) -> dict[object, Ranges]:
    found: dict[object, list[tuple[int, int]]] = {}
    for low, high in points:
        for point in range(low, high + 1):
            ranges = found.setdefault(property_of(chr(point)), [])
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1] = (ranges[-1][0], point)
            else:
                ranges.append((point, point))
    return {key: tuple(ranges) for key, ranges in found.items()}


def _is_stable(character: str) -> bool:
    """RFC 5892, section 2.2: the code point is its own case folding and compatibility form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold()) == character


@lru_cache(maxsize=1)
def pvalid() -> Ranges:
    """The code points that RFC 5892, section 3, derives as PVALID, by the Unicode version of this Python."""
    letters: list[tuple[int, int]] = []
    for category in _LETTERS_DIGITS:
        letters += _category(category)
    candidates = _minus(utf8.normalise(letters), utf8.normalise([*_LEFT_OUT, (0, 0x7F)]))
    stable = _by_property(candidates, _is_stable).get(True, ())
    valid = _minus(stable, _one_of((*_DISALLOWED_EXCEPTIONS, *_CONTEXTUAL)))
    return utf8.normalise([*valid, *_one_of(_PVALID_EXCEPTIONS), (0x2D, 0x2D), (0x30, 0x39), (0x61, 0x7A)])


def _category(name: str) -> Ranges:
    ranges = charclasses.unicode_property(name)
    assert ranges is not None
    return ranges


@lru_cache(maxsize=1)
def _scripts() -> dict[str, Ranges]:
    """Greek, Hebrew, and Japanese with Han, told by the names of their characters."""

    def script(character: str) -> object:
        name = unicodedata.name(character, "")
        if name.startswith(("HIRAGANA ", "KATAKANA ", "CJK UNIFIED")):
            return "Japanese"
        return name.partition(" ")[0] if name.startswith(("GREEK ", "HEBREW ")) else None

    blocks: Ranges = ((0x370, 0x3FF), (0x590, 0x5FF), (0x1F00, 0x1FFF), (0x3007, 0x3007), (0x3040, 0x30FF),
                      (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x323AF))  # fmt: skip
    found = _by_property(utf8.intersect(pvalid(), blocks), script)
    return {str(key): ranges for key, ranges in found.items()} | {
        "Japanese": utf8.normalise([*found["Japanese"], (0x3007, 0x3007)])
    }


_CONTEXT_ROLES: Final = {
    0xB7: "middle dot", 0x375: "keraia", 0x5F3: "geresh", 0x5F4: "geresh", 0x30FB: "katakana dot", 0x200C: "non-joiner",
    0x200D: "joiner", 0x2D: "hyphen", 0x6C: "l",
}  # fmt: skip
_INCOMPLETE: Final = ("", "hyphen", "middle dot", "keraia", "joined")
_NEUTRAL: Final = ("ES", "CS", "ET", "ON", "BN", "NSM")


class _Labels:
    """U-labels, told apart by the Bidi classes of their code points.

    Args:
        is_strict: whether contextual code points stand where their rules allow; without it there are none of them.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        scripts = _scripts()
        roles: dict[int, str] = {}
        for script, ranges in (
            ("greek", scripts["GREEK"]),
            ("hebrew", scripts["HEBREW"]),
            ("japanese", scripts["Japanese"]),
            ("dual", _ARABIC_DUAL),
            ("right", _ARABIC_RIGHT),
        ):
            roles |= {point: script for low, high in ranges for point in range(low, high + 1)}
        roles |= _CONTEXT_ROLES

        def kind(character: str) -> object:
            combining = unicodedata.combining(character)
            role = "virama" if combining == 9 else "mark" if combining else roles.get(ord(character), "")
            return role, unicodedata.bidirectional(character), unicodedata.category(character)[0] == "M"

        points = pvalid()
        if is_strict:
            points = utf8.normalise([*points, *_one_of(_CONTEXTUAL)])
        self.kinds = cast("dict[tuple[str, str, bool], Ranges]", _by_property(_minus(points, _ASCII), kind))
        self.ascii = cast("dict[tuple[str, str, bool], Ranges]", _by_property(utf8.intersect(points, _ASCII), kind))

    def without_direction(self) -> Node:
        """Plain labels and U-labels for names without any right-to-left letter."""
        encoded: dict[tuple[Ranges, ...], Node] = {}

        def step(state: _State) -> Iterator[tuple[Node, _State]]:
            ways: dict[_State, list[Ranges]] = {}
            length = state.length + 1
            if length <= (MAX_U_LABEL if state.repertoire == "U" else MAX_LABEL):
                repertoire = "plain" if length > MAX_U_LABEL else state.repertoire
                for (role, _, _), letters in self.ascii.items():
                    previous = self._follow(state, role)
                    if previous is not None:
                        target = _State(length, previous, state.japanese, repertoire)
                        ways.setdefault(target, []).append(letters)
                previous = self._follow(state, "")
                if state.repertoire != "U" and previous is not None:
                    ways.setdefault(_State(length, previous, 0, "plain"), []).append(_CAPITALS)
            if length <= MAX_U_LABEL and state.repertoire != "plain":
                for (role, bidi, is_mark), letters in self.kinds.items():
                    previous = self._follow(state, role)
                    if previous is not None and bidi not in ("R", "AL", "AN") and (state.length or not is_mark):
                        target = _State(length, previous, _japanese(state, role), "U")
                        ways.setdefault(target, []).append(letters)
            yield from _encode_ways(ways, encoded)

        return _labels(step, _is_complete)

    def right_to_left(self) -> Node:
        """RFC 5893, section 2, rules 1 to 4."""
        encoded: dict[tuple[Ranges, ...], Node] = {}
        kinds = [*self.kinds.items(), *self.ascii.items()]

        def step(state: _State) -> Iterator[tuple[Node, _State]]:
            ways: dict[_State, list[Ranges]] = {}
            for (role, bidi, is_mark), letters in kinds if state.length < MAX_U_LABEL else ():
                previous = self._follow(state, role)
                is_letter, is_digit = bidi in ("R", "AL"), bidi in ("EN", "AN")
                may_stand = is_letter if state.length == 0 else is_letter or is_digit or bidi in _NEUTRAL
                if previous is None or not may_stand or (is_mark and not state.length):
                    continue
                digits = bidi if is_digit else state.digits
                if state.digits not in ("", digits):
                    continue  # European digits or Arabic ones
                may_end = state.may_end if bidi == "NSM" else is_letter or is_digit
                target = _State(state.length + 1, previous, _japanese(state, role), "U", may_end, digits)
                ways.setdefault(target, []).append(letters)
            yield from _encode_ways(ways, encoded)

        return _labels(step, _is_complete)

    def _follow(self, state: _State, role: str) -> str | None:
        """What counts of a code point with a role as the last one; None where it may not stand."""
        previous = state.previous
        if role == "hyphen" and not _may_be_hyphen(state):
            return None
        if not self.is_strict:
            return "hyphen" if role == "hyphen" else "letter"
        wanted = {"middle dot": ("l",), "keraia": ("greek",), "joined": ("dual", "right")}.get(previous)
        if wanted is not None and role not in wanted:
            return None
        if role in ("mark", "virama"):
            return role if state.length else None
        if role in ("joiner", "non-joiner"):
            if previous == "virama":
                return "after virama"
            return "joined" if role == "non-joiner" and previous == "dual" else None
        if role in ("middle dot", "geresh"):
            before = "l" if role == "middle dot" else "hebrew"
            return None if previous != before else role if role == "middle dot" else before
        # A letter. What matters is what may stand behind it.
        return role if role in ("l", "hebrew", "dual", "keraia", "hyphen") else "letter"


def _japanese(state: _State, role: str) -> int:
    return 2 if role == "japanese" else max(state.japanese, int(role == "katakana dot"))


def _is_complete(state: _State) -> bool:
    return state.previous not in _INCOMPLETE and state.japanese != 1 and state.may_end


def _encode_ways(
    ways: dict[_State, list[Ranges]], encoded: dict[tuple[Ranges, ...], Node]
) -> Iterator[tuple[Node, _State]]:
    for target, sets in ways.items():
        key = tuple(sets)
        if key not in encoded:
            encoded[key] = text.encode(utf8.normalise(bounds for ranges in sets for bounds in ranges))
        yield encoded[key], target
