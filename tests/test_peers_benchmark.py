"""The benchmark beside other packages: what a right answer is, its figures, and its processes with few documents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, peers, rivals
from benchmarks.endpoint import REPOSITORY, Endpoint


def test_documents_come_kind_by_kind() -> None:
    found = peers.documents(2)
    assert [document.kind for document in found] == [kind for kind in rivals.schemas() for _ in range(2)]
    assert len(peers.documents(peers.BATCH)) == 6 * peers.BATCH  # so that every batch is full
    for document in found:
        expected = json.dumps(document.expected)
        assert peers.judged([document], [expected], [expected])["valid"] == 1, document
        assert document.prompt.endswith("\n") and document.prompt.strip()


def test_texts_are_judged() -> None:
    (document,) = [one for one in peers.documents(1) if one.kind == "contact"]
    right = json.dumps(document.expected)
    num_fields = len(document.expected)
    other = json.dumps({**document.expected, "name": "?"})
    no_mail = json.dumps({**document.expected, "email": "no address"})
    cut, none = right[:-1], "7"
    texts = [right, other, no_mail, cut, none]
    found = peers.judged([document], texts, [right] * len(texts))
    share = (num_fields + 2 * (num_fields - 1)) / (len(texts) * num_fields)
    assert found == {"texts": 5, "valid": 2, "fields_right": round(share, 4), "same_as_first": 1}


def test_ratios_are_of_neighbours() -> None:
    found = peers.figures_of({"own": [1.0, 2.0, 4.0], "other": [3.0, 4.0, 4.0]}, 12, "per_second", "own")
    assert found["own"] == {"per_second": 6.0, "least_most": [3.0, 12.0]}
    assert found["other"] == {"per_second": 3.0, "least_most": [3.0, 4.0], "ratio": 2.0, "ratio_least_most": [1.0, 3.0]}


class Scripted:
    """A side that writes expected values, slowly or not, and notes its turns."""

    def __init__(self, side: str, turns: list[tuple[str, str, bool]]) -> None:
        self.side, self.turns = side, turns

    def ask(self, kind: str, prompts: list[str], *, is_together: bool) -> tuple[list[str], float]:
        self.turns.append((self.side, kind, is_together))
        return [f"{self.side} {prompt}" for prompt in prompts], 0.5


def test_sides_take_turns_and_the_first_turn_does_not_count() -> None:
    turns: list[tuple[str, str, bool]] = []
    workers: Any = [Scripted(side, turns) for side in ("a", "b")]
    wanted = peers.documents(1)
    seconds, texts = peers.timed(workers, wanted, 2, is_together=True)
    assert seconds == {"a": [3.0, 3.0], "b": [3.0, 3.0]}
    assert texts["a"] == 2 * [f"a {document.prompt}" for document in wanted]
    assert len(turns) == 3 * 2 * 6
    pairs = [(one[0], other[0]) for one, other in zip(turns[::2], turns[1::2], strict=True)]
    assert set(pairs) == {("a", "b"), ("b", "a")}
    assert all(one[1] == other[1] for one, other in zip(turns[::2], turns[1::2], strict=True))


@pytest.mark.slow
def test_a_side_in_its_process() -> None:
    (document,) = [one for one in peers.documents(1) if one.kind == "ticket"]
    texts = set()
    for side in ("decodekit", "transformers, no schema"):
        with peers.Worker(side, Path(sys.executable), 1) as worker:
            assert worker.absent is None and worker.takes_batches
            assert set(worker.versions) >= {"torch", "transformers"}
            both, seconds = worker.ask("ticket", [document.prompt] * 2, is_together=True)
            assert seconds > 0
            texts |= {*both, *worker.ask("ticket", [document.prompt], is_together=False)[0]}
    assert len(texts) == 1
    assert peers.judged([document], [*texts], [*texts])["valid"] == 1


@pytest.mark.slow
def test_an_absent_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "xgrammar.py").write_text("raise ModuleNotFoundError('there is none', name='xgrammar')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['transformers, xgrammar']; "
    code += "from benchmarks import rivals; rivals.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"absent": "xgrammar"}


@contextmanager
def endpoint_of_decodekit() -> Iterator[Endpoint]:
    endpoint = peers.start("decodekit, drafts", 1, Path("transformers"))
    assert endpoint is not None
    try:
        yield endpoint
    finally:
        endpoint.end()


@pytest.mark.slow
def test_an_endpoint_is_asked_by_several_clients() -> None:
    import asyncio

    wanted = peers.documents(1)
    assert peers.start("transformers", 1, Path("/nowhere/transformers")) is None
    with endpoint_of_decodekit() as endpoint:
        endpoint.send(signal.SIGSTOP)
        endpoint.send(signal.SIGCONT)
        requests = [peers.asked(one, has_schema=True, model=str(rivals.MODEL)) for one in wanted]
        texts, seconds = asyncio.run(peers.answers(endpoint.port, requests, 4))
        assert seconds > 0
        assert peers.judged(wanted, texts, texts)["valid"] == len(wanted)
        wrong = requests[0].replace(b"max_tokens", b"max_tokenz")
        with pytest.raises(SystemExit, match="is answered with 400"):
            asyncio.run(peers.answers(endpoint.port, [wrong], 1))


def test_the_table_says_what_the_record_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert "make bench-peers" in figures.peers()
    shared = {"texts": 10, "valid": 10, "fields_right": 0.98, "threads": 1, "versions": {"torch": "2"}}
    rows = [
        {"part": "extraction", "side": "decodekit", "batch": 1, "documents_per_second": 15.04, **shared},
        {"part": "extraction", "side": "decodekit", "batch": 8, "documents_per_second": 24.0, **shared},
        {"part": "extraction", "side": "llama.cpp", "batch": 1, "documents_per_second": 17.7, "ratio": 0.85, **shared},
        {"part": "serving", "side": "decodekit serve", "clients": 8, "requests_per_second": 24.1, **shared},
        {"part": "serving", "side": "other", "clients": 8, "requests_per_second": 8.1, "ratio": 3.0, **shared},
    ]
    machine = {"processor": "AMD EPYC Processor", "num_cores": 2}
    (tmp_path / "peers.json").write_text(json.dumps({"rows": rows, "commit": "abc", "machine": machine}))
    shown = figures.peers()
    assert "| decodekit | 1 | 15.0 |  | 24.0 |  | 100.0 % | 98.0 % |" in shown
    assert "| llama.cpp | 1 | 17.7 | 0.85 |  |  | 100.0 % | 98.0 % |" in shown
    assert "| other | 1 | 8.1 | 3.00 | 100.0 % | 98.0 % |" in shown
    assert "With torch 2." in shown and "commit abc" in shown


def rivals_folder() -> Path:
    """The environment of the rivals; a test is skipped where there is none."""
    folder = os.environ.get(peers.VARIABLE)
    if not folder:
        pytest.skip(f"{peers.VARIABLE} names no environment of the rivals")
    return Path(folder).absolute()


@pytest.mark.slow
@pytest.mark.parametrize("side", [side for side in rivals.SIDES if side not in rivals.OWN])
def test_a_rival_writes_valid_json(side: str) -> None:
    wanted = [one for one in peers.documents(2) if one.kind == "ticket"]
    prompts = [one.prompt for one in wanted]
    with peers.Worker(side, peers.python_of(side, rivals_folder()), 1) as worker:
        if worker.absent:
            pytest.skip(f"{worker.absent} is not in the environment of the rivals")
        alone, _ = worker.ask("ticket", prompts, is_together=False)
        assert peers.judged(wanted, alone, alone)["valid"] == len(wanted)
        if worker.takes_batches:
            together, _ = worker.ask("ticket", prompts, is_together=True)
            assert together == alone
