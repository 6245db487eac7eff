"""Stop strings and streaming text against the whole-text definitions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.decoding.request.stopping import TextStream
from tests.reference.generation import first_stop


def streamed(pieces: list[bytes], stop: tuple[str, ...]) -> list[str]:
    """What each push returns, and close last; pushing ends at a stop string, as in the loop."""
    stream = TextStream(stop)
    texts = []
    for piece in pieces:
        texts.append(stream.push(piece))
        if stream.is_stopped:
            break
    return [*texts, stream.close()]


@pytest.mark.parametrize(
    ("pieces", "stop", "texts"),
    [
        (["ab", "c"], (), ["ab", "c", ""]),
        # across token boundaries: "x" might begin "xyz" and waits, until "xq" shows that it does not
        (["ax", "yz", "never"], ("xyz",), ["a", "", ""]),
        (["ax", "q"], ("xyz",), ["a", "xq", ""]),
        (["ax"], ("xyz",), ["a", "x"]),
        # inside one token, and at its beginning
        (["one\ntwo"], ("\n",), ["one", ""]),
        (["\n"], ("\n",), ["", ""]),
        # of several, the one that ends first; of those that end together, the longest
        (["xabc"], ("xabc", "ab"), ["x", ""]),
        (["x", "a", "b", "c"], ("xabc", "ab"), ["", "", "x", ""]),
        (["xab"], ("xab", "ab"), ["", ""]),
        # a stop string that repeats its own beginning
        (["aab", "aac"], ("aabaac",), ["", "", ""]),
        (["aaba", "abaac"], ("aabaac",), ["", "aab", ""]),
        # characters of several bytes, split between tokens
        ([b"caf\xc3", b"\xa9 ole"], ("é o",), ["caf", "", ""]),
        ([b"\xf0\x9f", b"\x98", b"\x80!"], (), ["", "", "😀!", ""]),
        # bytes that are no UTF-8 become U+FFFD, at the end too
        ([b"a\xffb", b"\xe2\x82"], (), ["a\ufffdb", "", "\ufffd"]),
        ([b"a\xe2\x82"], ("\ufffd",), ["a", ""]),
    ],
)
def test_by_hand(pieces: list[str | bytes], stop: tuple[str, ...], texts: list[str]) -> None:
    assert streamed([p.encode() if isinstance(p, str) else p for p in pieces], stop) == texts


alphabet = st.sampled_from([b"a", b"b", b"ab", b"ba", b"c", "é".encode(), b"\xc3", b"\xa9", b"\x80", "😀".encode()[:2]])


@settings(max_examples=400, deadline=None)
@given(st.lists(alphabet, max_size=14), st.lists(st.text("abcé\ufffd", min_size=1, max_size=4), max_size=3))
def test_law_of_streaming(pieces: list[bytes], stop: list[str]) -> None:
    texts = streamed(pieces, tuple(stop))
    whole = b"".join(pieces).decode("utf-8", "replace")
    cut = first_stop(whole, stop)
    assert "".join(texts) == (whole if cut is None else whole[:cut])
    assert not any(string in "".join(texts) for string in stop)


@settings(max_examples=200, deadline=None)
@given(st.lists(alphabet, max_size=14), st.lists(st.text("abcé", min_size=1, max_size=4), max_size=3))
def test_only_what_may_change_is_withheld(pieces: list[bytes], stop: list[str]) -> None:
    """Text waits only as an incomplete character, or as a real beginning of a stop string."""
    stream = TextStream(tuple(stop))
    data, released = b"", ""
    for piece in pieces:
        data += piece
        released += stream.push(piece)
        if stream.is_stopped:
            break
        certain = data.decode("utf-8", "ignore") if data.decode("utf-8", "replace")[-1:] != "\ufffd" else None
        if certain is None:
            continue
        held = data.decode("utf-8", "replace")[len(released) :]
        assert held == "" or any(string.startswith(held) and string != held for string in stop)
