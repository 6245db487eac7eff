"""Lengths of the paths to an end, against following all paths from the start."""

import random

import pytest

from decodekit.constraints.json_schema.strings import character_search
from decodekit.constraints.json_schema.strings.character_search import PathLengths

Graph = dict[int, set[int]]


def lengths_from(graph: Graph, ends: set[int], vertex: int, most: int) -> set[int]:
    """Lengths up to a bound of the paths from a vertex to an end."""
    found: set[int] = set()
    frontier = {vertex}
    for length in range(most + 1):
        if frontier & ends:
            found.add(length)
        frontier = {target for one in frontier for target in graph[one]}
    return found


def random_graph(rng: random.Random) -> tuple[Graph, set[int]]:
    size = rng.randint(1, 9)
    graph = {one: set(rng.choices(range(size), k=rng.choice([0, 1, 1, 2]))) for one in range(size)}
    return graph, set(rng.sample(range(size), rng.randint(0, 2) if size > 1 else 1))


def test_against_all_paths() -> None:
    rng = random.Random(4)
    answers: list[bool] = []
    for _ in range(300):
        graph, ends = random_graph(rng)
        lengths = PathLengths(graph, ends)
        for _ in range(8):
            vertex, least = rng.choice(list(graph)), rng.choice([0, 1, 3, 10, 40])
            most = rng.choice([None, least, least + 1, least + 5])
            # Without a bound: no cycle of nine vertices is longer than nine, and all of them fit into a bit more.
            expected = lengths_from(graph, ends, vertex, least + 90 if most is None else most)
            answer = lengths.has_path(vertex, least, most)
            assert answer == any(length >= least for length in expected), (graph, ends, vertex, least, most)
            answers.append(bool(answer))
    assert answers.count(True) > 200 and answers.count(False) > 200


def test_levels_go_round_at_any_length() -> None:
    """Rings of 7 and 11: the levels repeat after 77."""
    graph = {one: {(one + 1) % 7} for one in range(7)} | {7 + one: {7 + (one + 1) % 11} for one in range(11)}
    lengths = PathLengths(graph, {0, 7})
    assert lengths.has_path(0, 7 * 10**15, 7 * 10**15) and lengths.has_path(7, 11 * 10**15, 11 * 10**15)
    assert lengths.has_path(0, 7 * 10**15 + 1, 7 * 10**15 + 6) is False
    assert lengths.has_path(1, 7 * 10**15 + 6, None) is True
    assert len(lengths._levels) == 77


def test_too_many_levels_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = {one: {(one + 1) % 7} for one in range(7)} | {7 + one: {7 + (one + 1) % 11} for one in range(11)}
    monkeypatch.setattr(character_search, "MAX_LEVELS", 20)
    lengths = PathLengths(graph, {0, 7})
    assert lengths.has_path(0, 14, 14) is True and lengths.has_path(0, 15, 19) is False
    assert lengths.has_path(0, 15, 20) is None
