"""E9: to advance n tokens and go back m is to advance n - m, for cache, constraint, prefixes and text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.constraints import JsonSchema, Regex, compile
from decodekit.constraints.engine.bitmask import allocate_bitmask
from decodekit.decoding.draws.token_table import TokenTable
from decodekit.decoding.loop.append import append_token
from decodekit.decoding.loop.text_row import Request, TextRow
from decodekit.decoding.request.settings import Settings
from decodekit.strategy import Greedy
from tests.decoding.test_on_models import TWELVE, model
from tests.models.architectures import tokens
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

BYTES = byte_vocabulary()


@few(3)
@pytest.mark.parametrize("name", [*TWELVE, "gemma3", "falcon", "bloom", "llama4"])
def test_the_cache(name: str) -> None:
    """Logits after going back differ by at most 1e-5 of their spread from those of a cache that never went on."""
    lm = model(name)
    for num_tokens, num_back in ((12, 1), (12, 5), (20, 16), (7, 6)):
        rows = [tokens(row, num_tokens + row) for row in range(3)]
        following = torch.tensor([[5, 9, 7]] * 3)
        cache = lm.new_cache(3, 8)
        width = max(map(len, rows))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        lm.forward(padded, [len(row) for row in rows], cache)
        cache.truncate([len(row) - num_back for row in rows])
        found = lm.forward(following, [3] * 3, cache, logits="all")
        fresh = lm.new_cache(3, 8)
        lm.forward(padded, [len(row) - num_back for row in rows], fresh)
        expected = lm.forward(following, [3] * 3, fresh, logits="all")
        assert cache.lengths.tolist() == fresh.lengths.tolist()
        assert float((found - expected).abs().max() / expected.std()) < 1e-5


def row(matcher: object) -> tuple[TextRow, TokenTable]:
    given_settings = Settings(BYTES, Greedy().pipeline, Greedy().select, 64)
    sequence = TextRow(0, Request([7, 8, 9], matcher), 64, given_settings)  # type: ignore[arg-type]
    sequence.row = 0
    table = TokenTable(1)
    table.begin(sequence)
    return sequence, table


@settings(max_examples=60, deadline=None)
@given(number=st.integers(0, 1), num_tokens=st.integers(2, 12), num_back=st.integers(1, 12), seed=st.integers(0, 1000))
def test_a_row(number: int, num_tokens: int, num_back: int, seed: int) -> None:
    """Text, prefix and masks, after random legal tokens; then both go on alike."""
    strings = JsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 3})
    constraint = [Regex("(a|é|bc)+[0-9]{3,}"), strings][number]
    grammar, rng = compile(constraint, BYTES), np.random.default_rng(seed)
    given_settings = Settings(BYTES, Greedy().pipeline, Greedy().select, 64)
    one, one_table = row(grammar.matcher())
    path: list[int] = []
    for _ in range(num_tokens):
        allowed = [byte for byte in range(256) if one.matcher is not None and one.matcher.validate([byte])]
        path.append(int(rng.choice(allowed)))
        if not append_token(one, path[-1], given_settings, one_table):  # the text is complete
            return
    kept = max(0, len(path) - num_back)
    one.roll_back(kept)
    one_table.truncate(one)
    other, other_table = row(grammar.matcher())
    for token in path[:kept]:
        append_token(other, token, given_settings, other_table)
    assert one.banned == {path[kept]} and one.pending == [[7, 8, 9, *path[:kept]][-1]]
    for state in range(2):
        assert one.token_ids == other.token_ids and one.new_text == other.new_text and one.length == other.length
        masks = allocate_bitmask(2, BYTES.size)
        assert one.matcher is not None and other.matcher is not None
        one.matcher.fill_bitmask(masks[:1])
        other.matcher.fill_bitmask(masks[1:])
        assert np.array_equal(masks[0], masks[1])
        histories = [
            table.history([sequence], [()], torch.device("cpu"))
            for sequence, table in ((one, one_table), (other, other_table))
        ]
        assert torch.equal(histories[0].token_ids, histories[1].token_ids)
        assert torch.equal(histories[0].lengths, histories[1].lengths)
        if state == 0:
            append_token(one, path[kept], given_settings, one_table)
            append_token(other, path[kept], given_settings, other_table)
