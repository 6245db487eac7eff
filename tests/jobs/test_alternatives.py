"""The probabilities of all values of a field, beside the enumeration of what might have been written there."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

import decodekit as dk
from decodekit.constraints import Regex, as_constraint, compile
from decodekit.constraints.engine.automaton import shared_automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.errors import UselessOptionError
from decodekit.jobs.reports.alternatives import FieldAlternatives, values_after
from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView
from decodekit.jobs.reports.probabilities import value_spans
from decodekit.testing.toy import ToyLM, ToyTokenizer, toy_llm
from tests.commands import Result
from tests.reference.decisions import part_law
from tests.sharing_toy import SharingLM


class Kind(Enum):
    ABC = "abc"
    ABD = "abd"
    THE = "the é"


class Note(BaseModel):
    kind: Kind
    is_paid: bool
    level: Literal[1, 12, 2]
    name: str = Field(max_length=3)
    flags: list[bool | None] = Field(max_length=2)
    fixed: Literal["a"]


@pytest.mark.parametrize("seed", range(4))
def test_alternatives_are_those_of_the_masked_model(seed: int) -> None:
    llm = toy_llm(seed)
    assert isinstance(llm.model, ToyLM)
    options = {"constraint": Note}
    drawn = llm.generate("abc", constraint=Note, strategy="sample", seed=seed, logprobs=True, max_new_tokens=200)
    assert drawn.error is None
    found = FieldAlternatives(llm, options).of("abc", drawn)
    pieces, data = llm.vocabulary.token_bytes, drawn.text.encode()
    prompt = llm.tokenizer.encode("abc")
    seen = {}
    for pointer, start, _ in value_spans(drawn.text):
        name = pointer.split("/")[1]
        values = {
            "kind": ['"abc"', '"abd"', '"the é"'],
            "is_paid": ["true", "false"],
            "level": ["1", "12", "2"],
            "flags": ["true", "false", "null"],
        }.get(name)
        if values is None or pointer == "/flags":
            continue
        begin = len(drawn.text[:start].encode())
        matcher, num_tokens, end = compile(as_constraint(Note), llm.vocabulary).matcher(), 0, 0
        while end + len(pieces[drawn.token_ids[num_tokens]] or b"") <= begin:
            end += len(pieces[drawn.token_ids[num_tokens]] or b"")
            assert matcher.accept(drawn.token_ids[num_tokens])
            num_tokens += 1
        read = [*prompt, *drawn.token_ids[:num_tokens]]
        every = [value.encode() for value in values]
        law = part_law(llm.model.logits_after, read, matcher, pieces, data[end:begin], every)
        seen[pointer] = dict(zip(values, law, strict=True))
    assert found.keys() == seen.keys() and {"/kind", "/is_paid", "/level"} <= found.keys()
    for pointer, law_of in seen.items():
        assert found[pointer] == pytest.approx(law_of, abs=1e-4)
        assert len(set(law_of.values())) > 1


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "boolean"}, ["false", "true"]),
        ({"enum": ["a", 'q"x\\', None, 3]}, ["null", "3", '"a"', '"q\\"x\\\\"']),  # some in several spellings
        ({"type": "integer", "minimum": 8, "maximum": 11}, ["8", "9", "10", "11"]),
        ({"type": "integer"}, []),
        ({"type": "string"}, []),
        ({"type": ["boolean", "array"]}, []),
        ({"enum": [f"v{number}" for number in range(300)]}, []),
        ({"const": "a"}, ['"a"']),
    ],
)
def test_values_that_may_stand(schema: Any, values: list[str]) -> None:
    recogniser = Recogniser(dk.JsonSchema(schema).root(), shared_automaton())
    found = values_after(recogniser, recogniser.root)
    assert {*map(json.dumps, map(json.loads, found))} == {*values} and len(found) == len({*found})


def test_jobs_have_alternatives_where_they_are_asked_for(tmp_path: Path) -> None:
    llm = toy_llm()
    schema = {
        "type": "object",
        "properties": {"paid": {"type": "boolean"}, "kind": {"enum": ["abc", "b"]}},
        "required": ["paid", "kind"],
        "additionalProperties": False,
    }
    plain = dk.extract(["abc", "the"], schema, llm, folder=tmp_path / "plain")
    asked = dk.extract(["abc", "the"], schema, llm, folder=tmp_path / "asked", alternatives=True)
    assert [row.value for row in plain] == [row.value for row in asked]
    assert [row.alternatives for row in plain] == [{}, {}]
    for row in asked:
        assert {pointer: [*each] for pointer, each in row.alternatives.items()} == {
            "/paid": ["false", "true"],
            "/kind": ['"abc"', '"b"'],
        }
        assert all(sum(each.values()) == pytest.approx(1, abs=1e-3) for each in row.alternatives.values())
    lines = [json.loads(line) for line in (tmp_path / "asked/metrics.jsonl").read_text().splitlines()]
    assert [line["alternatives"] for line in lines] == [row.alternatives for row in asked]
    write_report(tmp_path / "report.html", [JobView.read(tmp_path / "asked")], title="t")
    likeliest = max(asked[0].alternatives["/paid"].items(), key=lambda one: one[1])
    assert f"; {likeliest[0]} {likeliest[1]:.2g}, " in (tmp_path / "report.html").read_text()


def test_a_document_is_read_once_for_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = dk.LLM(SharingLM(), ToyTokenizer())
    done = llm.generate("the abc " * 60, constraint=Note, logprobs=True)
    num_read, forward = [], ToyLM.forward

    def counted(self: ToyLM, tokens: Any, num_tokens: Any, *rest: Any, **options: Any) -> Any:
        num_read.append(sum(num_tokens))
        return forward(self, tokens, num_tokens, *rest, **options)

    monkeypatch.setattr(ToyLM, "forward", counted)
    found = FieldAlternatives(llm, {"constraint": Note}).of("the abc " * 60, done)
    assert len(found) >= 3
    assert sum(num_read) <= done.stats.num_prompt_tokens + len(done.token_ids) + 12 * len(found)


def test_a_text_that_is_no_json_has_none() -> None:
    with pytest.raises(UselessOptionError, match="no JSON"):
        dk.extract(["abc"], Regex("[ab]{2}"), toy_llm(), alternatives=True)


def test_the_command_line_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Invoice A-17, total 40.20 EUR. Not paid.")
    schema = json.dumps({"type": "object", "properties": {"paid": {"type": "boolean"}}, "required": ["paid"]})
    (tmp_path / "s.json").write_text(schema)
    out = tmp_path / "out"
    done = Result("extract", tmp_path / "a.txt", "--schema", tmp_path / "s.json", "-o", out, "--alternatives")
    assert done.code == 0, done.err
    [line] = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert line["alternatives"]["/paid"].keys() == {"true", "false"}
