"""Whatever is written for a type, the type reads: small texts, random ones, the shortest one, those of every day."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pytest
from pydantic import TypeAdapter

import decodekit as dk
from decodekit.constraints import JsonSchema
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.errors import UnsupportedSchemaError
from tests.constraints.json_schema.pydantic_types import KEYS, MAILS, REFUSED, VALUES
from tests.reference.json_network import is_admitted
from tests.sizes import sized, thinned

_DOUBTFUL: Final = [one.encode() for one in "é٣\u00a0\ufeff\u0085\u0301\u212a"]
"""Characters that readers take for letters, digits or blanks, or not."""


QUICK: Final = (
    "aware datetime", "naive datetime", "past date", "condate", "timedelta, bounds", "uuid4", "email",
    "json of numbers",
    "json of objects", "postgres", "http url", "discriminated", "byte size", "fraction", "complex", "card",
    "base64 str", "base64 bytes of any length", "constr, stripped", "conbytes", "condecimal, digits", "confloat",
    "condecimal, below one", "pattern without case",
    "literal of bytes", "enum", "class by name", "class that strips", "dataclass", "strict class", "set of dates",
    "new path", "secret, bounds", "ipv4 network", "digits", "int", "optional", "regex",
)  # fmt: skip
"""In the ordinary run; all others in the slow one."""
QUICK_KEYS: Final = ("int", "bounded int", "float", "bool", "uuid4", "aware datetime", "literal of numbers", "json")


def skip_without_mail(name: str) -> None:
    if name in MAILS and importlib.util.find_spec("email_validator") is None:
        pytest.skip("no email-validator")


def small_texts(constraint: JsonSchema, most: int) -> Iterator[str]:
    """Whole texts, shorter ones first, on so many ways at most by every state of the mask; of the first so many ways.

    Of bytes that lead to the same state two stand for all, beside doubtful characters.
    """
    recogniser = Recogniser(constraint.root(), shared_automaton())
    queue = [(b"", recogniser.root)]
    num_ways: Counter[int] = Counter()
    for text, state in islice(queue, 100 * most):
        if recogniser.states.is_accepting(state):
            yield text.decode()
        targets: dict[int, list[bytes]] = {}
        steps = [bytes((byte,)) for byte in recogniser.following_bytes(state) if byte < 0x80]
        for step in [*steps, *_DOUBTFUL]:
            after = recogniser.read(state, step)
            if after is not None:
                targets.setdefault(after, []).append(step)
        for after, found in targets.items():
            kept = dict.fromkeys([found[0], found[-1], *(step for step in found if step[0] > 0x7F)])
            room = max(0, most - num_ways[after])
            num_ways[after] += len(kept)
            queue += [(text + step, after) for step in islice(kept, room)]


def is_read(adapter: TypeAdapter[Any], text: str) -> bool:
    try:
        adapter.validate_json(text)
    except ValueError:
        return False
    return True


def unread(made: Any, constraint: JsonSchema, num_texts: int) -> list[str]:
    """Written texts that the type does not read."""
    adapter, guard = TypeAdapter(made), constraint.guard()
    found, num_written = [], 0
    small = islice(small_texts(constraint, max(2, num_texts // 20)), num_texts)
    drawn = (dk.sample_text(constraint, seed=seed, size=40) for seed in range(num_texts // 10))
    for text in [*small, *drawn, dk.complete(constraint)]:
        if guard is None or guard.refuses(text.encode()) is None:
            num_written += 1
            if not is_read(adapter, text):
                found.append(text)
    assert num_written > 0
    return found


@sized("num_texts", 10, slow=1000)
@thinned("name", VALUES | MAILS, keep=QUICK)
def test_values(name: str, num_texts: int) -> None:
    skip_without_mail(name)
    made, everyday = (VALUES | MAILS)[name]
    assert unread(made, JsonSchema(made), num_texts) == []
    for text in everyday:
        assert is_read(TypeAdapter(made), text), text
        assert is_admitted(JsonSchema(made, whitespace="any"), text.encode()), text


@sized("num_texts", 10, slow=500)
@thinned("name", KEYS, keep=QUICK_KEYS)
def test_keys(name: str, num_texts: int) -> None:
    made, everyday = KEYS[name]
    mapping = dict[made, bool]  # type: ignore[valid-type]
    constraint = JsonSchema(mapping)
    assert unread(mapping, constraint, num_texts) == []
    for key in everyday:
        text = json.dumps({key: True}, ensure_ascii=False, separators=(",", ":"))
        assert is_read(TypeAdapter(mapping), text), text
        assert is_admitted(constraint, text.encode()), text


@pytest.mark.parametrize("made", REFUSED.values(), ids=REFUSED)
def test_what_no_mask_and_no_guard_can_say_is_refused(made: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        JsonSchema(made)


RELAXED: Final = (
    "aware datetime", "naive datetime", "past date", "uuid4", "json of numbers", "postgres", "discriminated",
    "constr, stripped", "conbytes", "color", "byte size", "timedelta, bounds", "condate",
)  # fmt: skip


@pytest.mark.parametrize("name", RELAXED)
def test_the_schema_that_pydantic_writes_is_found_out(name: str) -> None:
    """The control: with the mask of Pydantic's own schema, the same texts hold some that are not read."""
    made, _ = VALUES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        relaxed = JsonSchema(TypeAdapter(made).json_schema())
    assert unread(made, relaxed, 100) != []


def test_what_a_key_is_read_as_is_in_the_mask() -> None:
    statuses = {entry.keyword: entry.status for entry in dk.check(dict[int, bool]).keywords}
    assert statuses["contentSchema"] == "mask" and statuses["contentMediaType"] == "annotation"
