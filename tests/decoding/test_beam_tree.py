"""The tree of a beam search is that of the search: its texts, its scores, as many hypotheses as there are beams."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest

import decodekit as dk

CHOICES = dk.Choices(["yes, it is paid", "no, it is due", "unknown"])


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


@pytest.mark.parametrize("options", [{}, {"num_beam_groups": 2, "diversity_penalty": 0.5}, {"do_sample": True}])
@pytest.mark.parametrize("constraint", [None, CHOICES])
def test_the_tree_holds_the_returned_texts_with_their_scores(llm: dk.LLM, options: Any, constraint: Any) -> None:
    beam = dk.Beam(4, num_return_sequences=2, length_penalty=0.7, **options)
    out = llm.generate("Is it paid?", constraint=constraint, strategy=beam, trace=True, max_new_tokens=12)
    tree = out.tree
    assert tree is not None and len(tree.returned) == 2
    for one, end in zip((out, *out.others), tree.returned, strict=True):
        assert tuple(tree.nodes[node].token_id for node in tree.path(end)) == one.token_ids
        assert tree.nodes[end].score == one.score
        assert tree.nodes[end].fate == "ended"
    for _, nodes in groupby(tree.nodes, key=lambda node: node.step):
        assert 0 <= sum(node.fate == "kept" for node in nodes) <= 4
    for node in tree.nodes:
        assert (node.parent is None) == (node.step == 0)
        if node.parent is not None:
            parent = tree.nodes[node.parent]
            assert (parent.step, parent.fate) == (node.step - 1, "kept")
            assert node.log_prob <= parent.log_prob + 1e-4


def test_the_picture_has_a_cell_for_every_continuation(llm: dk.LLM) -> None:
    out = llm.generate("Is it paid?", constraint=CHOICES, strategy=dk.Beam(3), trace=True)
    assert out.tree is not None
    page = out.to_html()
    for fate in ("kept", "ended", "pruned"):
        num = sum(node.fate == fate for node in out.tree.nodes)
        assert len(re.findall(rf'<g class="dk-cell dk-{fate}[ "]', page)) == num > 0
    assert len(re.findall(r'<g class="dk-cell dk-\w+ dk-best"', page)) == len(out.tree.path(out.tree.returned[0]))
    assert llm.generate("Is it paid?", constraint=CHOICES, strategy=dk.Beam(3)).tree is None
    assert llm.generate("Is it paid?", constraint=CHOICES, trace=True).tree is None
