"""A value so far never shrinks, never holds what the end takes back, and ends as `json.loads` of the text."""

from __future__ import annotations

import codecs
import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import pytest

from decodekit.constraints.json_schema import growing_json
from decodekit.constraints.json_schema.growing_json import ABSENT, GrowingJson, Mark
from tests.reference.growing_json import NOTHING, goes_on, so_far
from tests.sizes import sized

CHARACTERS = ["a", "b", " ", '"', "\\", "/", "\n", "\t", "\x00", "é", "€", "😀", "\ud83d", "\ude00", "\ud800"]


def written(rng: random.Random, depth: int = 0) -> str:
    """A JSON text, spelled at random."""
    kind = rng.randrange(7 if depth < 4 else 5)
    blanks = [rng.choice(["", "", "", " ", "\n\t", "\r\n "]) for _ in range(4)]
    if kind == 0:
        return rng.choice(["true", "false", "null"])
    if kind in (1, 2):
        whole = rng.choice(["0", "7", "12", "-0", "-3", "123456789012345678901234567890"])
        return whole + rng.choice(["", "", ".5", ".250"]) + rng.choice(["", "", "e2", "E-1", "e+05"])
    if kind in (3, 4):
        return string(rng)
    items = [written(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return "[" + blanks[0] + f"{blanks[1]},{blanks[2]}".join(items) + blanks[3] + "]"
    keys: dict[str, str] = {}
    for _ in items:
        key = string(rng)
        keys.setdefault(json.loads(key), key)
    members = [f"{key}{blanks[1]}:{blanks[2]}{item}" for key, item in zip(keys.values(), items, strict=False)]
    return "{" + blanks[0] + f"{blanks[1]},{blanks[2]}".join(members) + blanks[3] + "}"


def string(rng: random.Random) -> str:
    spelled = []
    for character in rng.choices(CHARACTERS, k=rng.randrange(6)):
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        is_written_out = "\ud800" <= character <= "\udfff" or rng.random() < 0.3
        spelled.append(json.dumps(character)[1:-1] if is_written_out else plain)
    text = "".join(spelled)
    return f'"{text.replace(chr(92) + "u00e9", chr(92) + "u00E9")}"'


def cut(rng: random.Random, text: str) -> Iterator[str]:
    """A text as a stream hands it out whose bytes come in pieces."""
    data, decoder = text.encode(), codecs.getincrementaldecoder("utf-8")()
    while data:
        size = rng.choice([1, 1, 2, 3, 8, 100])
        yield decoder.decode(data[:size])
        data = data[size:]


def check(text: str, pieces: Iterator[str], reader: GrowingJson) -> None:
    """One text against the twin; what was made before is looked at again at the end."""
    num_read, before, marks = 0, NOTHING, list[tuple[Mark, str]]()
    for piece in pieces:
        assert reader.push(piece) == len(piece)
        num_read += len(piece)
        mark = reader.mark()
        value, num_open = mark.value()
        wanted = so_far(text, num_read)
        assert (value is ABSENT) == (wanted is NOTHING), text[:num_read]
        if value is not ABSENT:
            assert repr(value) == repr(wanted), text[:num_read]
            assert before is NOTHING or goes_on(before, value)
            before = value
            marks.append((mark, repr(value)))
        assert num_open or value is ABSENT or reader.is_closed
    reader.end(len(text))
    value, num_open = reader.mark().value()
    assert num_open == 0 and repr(value) == repr(json.loads(text))
    assert before is NOTHING or goes_on(before, value)
    assert [repr(mark.value()[0]) for mark, _ in marks] == [shown for _, shown in marks]
    assert "".join(reader.written) == json.dumps(value, ensure_ascii=False)


@sized("num_texts", 1500, slow=10_000)
def test_random_texts_in_random_cuts(num_texts: int) -> None:
    rng = random.Random(27)
    for _ in range(num_texts):
        text = written(rng)
        check(text, cut(rng, text), GrowingJson(is_written=True))


@pytest.mark.parametrize("text", ['{"a": [1, {"b": "x\\ud83d\\ude00\\n"}], "c": -1.5e3}',
                                  '"\\ud83d\\ud83d\\ude00\\u00e9"',
                                  "[[], {}, [[]]]", "12", "true", '{"": ""}',
                                  '"\\ud83dx\\ud83d\\n\\ud83d"'])  # fmt: skip
def test_every_division_in_two(text: str) -> None:
    for at in range(len(text) + 1):
        check(text, iter([text[:at], text[at:]]), GrowingJson(is_written=True))
    check(text, iter(text), GrowingJson(is_written=True))


@pytest.mark.parametrize(
    ("alphabet", "length", "frame"), [('[]{}",:10-', 5, "{}"), ('"\\ud8c0', 5, '"{}"')], ids=["all", "strings"]
)
def test_all_short_texts(alphabet: str, length: int, frame: str) -> None:
    """What is read as whole is what `json.loads` reads, and the value is the same."""
    num_read = 0
    for size in range(length + 1):
        for characters in product(alphabet, repeat=size):
            text = frame.replace("{}", "".join(characters))
            reader = GrowingJson()
            is_read = reader.push(text) == len(text)
            reader.end(len(text))
            try:
                value = json.loads(text)
            except ValueError:
                assert not (is_read and reader.is_closed), text
            else:
                assert is_read and repr(reader.mark().value()) == repr((value, 0)), text
                num_read += 1
    assert num_read > 300


class Hasty(GrowingJson):
    """Shows a number that may go on."""

    def mark(self) -> Mark:
        mark = super().mark()
        if (
            self._scalar
            and self._scalar[-1][-1].isdigit()
            and self._top is not None
            and isinstance(self._top.members, list)
        ):
            hasty = [*self._top.members, json.loads("".join(self._scalar))]
            return mark._replace(top=growing_json._Container(hasty, self._top.around, self._top.key, self._top.place),
                                 num_members=len(hasty))  # fmt: skip
        return mark


def test_a_reader_that_shows_numbers_early_is_caught() -> None:
    reader, shown = Hasty(), []
    for character in "[1, 23]":
        reader.push(character)
        value, _ = reader.mark().value()
        shown.append(value)
    assert not all(goes_on(one, other) for one, other in pairwise(shown))
    with pytest.raises(AssertionError):
        check("[1, 23]", iter("[1, 23]"), Hasty(is_written=True))


@pytest.mark.parametrize(
    ("text", "num_read"),
    [("{} ", 2), ('"a"b', 3), ("[1}", 2), ('{"a" 1}', 5), ("[1,]", 3), ("tru3", 3), ("12a", 2), ('"\\x"', 2),
     ('"\n"', 1), ("[01]", 3), ('{"a":1,}', 7), ("nulll", 4), ("]", 0), ('"\\u00g0"', 5), ("{1", 1)],
)  # fmt: skip
def test_what_is_no_json_is_not_read(text: str, num_read: int) -> None:
    reader = GrowingJson()
    assert reader.push(text) == num_read == reader.num_read
    assert reader.push(text[num_read:]) == 0


class Counted(str):
    """A text that counts how often its characters are looked at."""

    num_looks = 0

    def __getitem__(self, at: Any) -> str:
        found = super().__getitem__(at)
        Counted.num_looks += len(found)
        return found


class CountedPattern:
    """A pattern that counts the characters that it matches."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def match(self, text: str, at: int) -> re.Match[str] | None:
        found = self._pattern.match(text, at)
        Counted.num_looks += 0 if found is None else found.end() - at
        return found


@pytest.mark.parametrize("size", [1, 7, 10**9])
def test_every_character_is_read_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at once to read it, and at most three times to tell what it is; whatever was read before."""
    for name in ("_PLAIN", "_BLANKS", "_DIGITS"):
        monkeypatch.setattr(growing_json, name, CountedPattern(getattr(growing_json, name)))
    rng = random.Random(5)
    items = [written(rng) for _ in range(300)]
    text = "[" + ", ".join(items) + "]"
    Counted.num_looks, reader = 0, GrowingJson()
    for at in range(0, len(text), size):
        piece = Counted(text[at : at + size])
        assert reader.push(piece) == len(piece)
        reader.mark().value() if at % 50 == 0 else None
    assert reader.num_read == len(text) and reader.is_closed
    assert len(text) <= Counted.num_looks <= 4 * len(text)


def test_what_is_complete_is_shared() -> None:
    reader = GrowingJson()
    reader.push('{"a": {"b": [1, 2]}, "c": "x')
    (first, _) = reader.mark().value()
    reader.push('yz", "d": [')
    (second, _) = reader.mark().value()
    assert first["a"] is second["a"] and first is not second
    assert (first["c"], second["c"], second["d"]) == ("x", "xyz", [])
