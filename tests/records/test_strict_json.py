"""JSON Pointers: written, read, and followed into a value."""

import pytest

from decodekit.records.strict_json import path_of, pointer_of, value_at

VALUE = {"a/b": [{"m~n": 1}, None], "~1": {"": 2}}


@pytest.mark.parametrize(
    ("path", "pointer", "value"),
    [
        ([], "", VALUE),
        (["a/b", 0, "m~n"], "/a~1b/0/m~0n", 1),
        (["a/b", 1], "/a~1b/1", None),
        (["~1", ""], "/~01/", 2),
        (["a/b", 2], "/a~1b/2", None),
        (["a/b", "x"], "/a~1b/x", None),
        (["a/b", 0, "m~n", "x"], "/a~1b/0/m~0n/x", None),
    ],
)
def test_pointers_are_written_read_and_followed(path: list[str | int], pointer: str, value: object) -> None:
    assert pointer_of(path) == pointer
    assert path_of(pointer) == [str(step) for step in path]
    assert value_at(VALUE, pointer) == value
