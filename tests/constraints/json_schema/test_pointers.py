"""The JSON Pointer of what comes next in the beginning of a text."""

from __future__ import annotations

import json
import random

import pytest

from decodekit.constraints.json_schema.document.pointers import innermost, pointer


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", ""),
        ("  ", ""),
        ("{", ""),
        ('{"a": ', "/a"),
        ('{"a"', "/a"),
        ('{"a": 1, ', ""),
        ('{"a": [1, {"b": ', "/a/1/b"),
        ('{"a": [1, {"b": 2}, ', "/a/2"),
        ('{"a": [', "/a/0"),
        ('{"a/b~": {"\\u0061": ', "/a~1b~0/a"),
        ('{"x": "}]{[", "é": ', "/é"),
        ("[[], [[]], ", "/2"),
        ('{"a": 1, "', ""),
        ('["a", "', "/1"),
        ('{"a": {}}', ""),
        # behind another text
        ('see [1]: {"a": ', "/a"),
        ('he said "yes, {and}" [x] <f>{"a": [', "/a/0"),
        ('call {not json} {"a": {"b": ', "/a/b"),
        ("no json at all ] }", ""),
        ("}", ""),
        ('{"a" 1', ""),
        ("[,", ""),
    ],
)
def test_pointers(data: str, expected: str) -> None:
    assert pointer(data.encode()) == expected


def test_the_innermost() -> None:
    assert innermost(b'{"a": [1, {"b": 2, ') == "/a/1"
    assert innermost(b'{"a": 1') == "" and innermost(b"") == ""


def test_every_leaf_is_found_again() -> None:
    """Random values: cut before a leaf, the pointer leads to it."""
    rng = random.Random(0)
    num_leaves = 0

    def value(depth: int) -> object:
        kind = rng.choice(("leaf", "list", "dict")) if depth else "leaf"
        if kind == "list":
            return [value(depth - 1) for _ in range(rng.randint(0, 3))]
        if kind == "dict":
            return {rng.choice('ab"{/~é') + str(n): value(depth - 1) for n in range(rng.randint(0, 3))}
        return "LEAF"

    for _ in range(60):
        whole = value(4)
        text = json.dumps(whole, ensure_ascii=False)
        place = text.find('"LEAF"')
        while place >= 0:
            found = whole
            for token in pointer(text[:place].encode()).split("/")[1:]:
                token = token.replace("~1", "/").replace("~0", "~")
                found = found[int(token)] if isinstance(found, list) else found[token]  # type: ignore[index]
            assert found == "LEAF"
            num_leaves += 1
            place = text.find('"LEAF"', place + 1)
    assert num_leaves > 100
