"""What users get who say nothing: natural white space, needed escapes, and messages that name the options.

The ten schemas and the measurement are those of `benchmarks.defaults`; here is a small part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import decodekit as dk
from benchmarks.defaults import WAYS, is_valid, layout_of, of_documents, random_models
from benchmarks.own_schemas import DOCUMENTS, SCHEMAS
from decodekit.cli.jobs import extract as extract_module
from decodekit.cli.parts import console
from decodekit.cli.parts.shared_options import parse_whitespace
from decodekit.constraints import as_constraint, explain
from decodekit.constraints.author.filler import Filler, filler_of, remark
from decodekit.constraints.grammar.rules import Inline
from decodekit.constraints.request_formats import json_schema_in
from decodekit.errors import LengthError, OptionError
from decodekit.jobs.job_schema import load_schema
from tests.commands import Result
from tests.constraints.json_schema.test_layout import VALUES, natural
from tests.jobs.fakes import FakeLLM, write_jsonl
from tests.sizes import few

USUAL = {"whitespace": "natural", "escapes": "needed", "numbers": "short", "order": "declared"}


class Point(BaseModel):
    x: int


# --- which they are ---------------------------------------------------------------------------------------------------


def test_whatever_makes_a_json_schema_has_the_defaults() -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "object"}}}
    for source in ({}, True, Point, list[int], response_format, {"type": "json_object"}, "json_rpc_request"):
        found = json_schema_in(as_constraint(source))
        assert found is not None and found.options.items() >= USUAL.items(), source
    (rule,) = dk.Grammar('start: %json {"type": "object"}\n').rules.rules.values()
    inner = rule.items[0] if hasattr(rule, "items") else rule
    assert isinstance(inner, Inline) and inner.constraint == dk.JsonSchema({"type": "object"}, **USUAL)  # type: ignore[arg-type]


def test_whatever_the_command_line_reads_has_them_and_asserts_formats(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string", "format": "date"}')
    for source in (str(tmp_path / "s.json"), '{"type": "object"}', "name, due date", "json_rpc_request"):
        assert load_schema(source).reading == {**USUAL, "format": "assert"}
        given = {"whitespace": 2, "escapes": "any", "numbers": "any", "format": "annotate", "order": "any"}
        assert load_schema(source, given).reading == given
    (tmp_path / "own.py").write_text("import decodekit as dk\nA = dk.JsonSchema({}, whitespace='compact', order='any')")
    source = f"{tmp_path / 'own.py'}:A"
    assert load_schema(source).reading == {**USUAL, "format": "annotate", "whitespace": "compact", "order": "any"}
    assert load_schema(source, {"order": "declared"}).reading["whitespace"] == "compact"


def test_options_that_have_no_effect_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import decodekit as dk\nA = dk.Regex('a')\nclass B:\n    x: int\n")
    with pytest.raises(OptionError, match=r"^DK305 whitespace has no effect") as raised:
        load_schema(f"{tmp_path / 'own.py'}:A", {"whitespace": "any"})
    assert raised.value.at == "whitespace"
    with pytest.raises(OptionError, match="formats of a Python type are enforced"):
        load_schema("datetime:date", {"format": "assert"})
    for arguments in (
        ("generate", "x", "--regex", "a", "--order", "any"),
        ("schema", "check", "name", "--whitespace", "17"),
        ("grammar", "check", "date", "2024-01-01", "--escapes", "any"),
        ("bench", "--strategies", "greedy", "--tasks", "x", "-o", tmp_path / "o", "--format", "assert"),
    ):
        assert Result(*arguments).code == console.USAGE, arguments


def test_white_space_on_the_command_line() -> None:
    assert [parse_whitespace(text) for text in ("natural", "any", "compact", "tab", "\t", "0", "16")] == [
        "natural", "any", "compact", "\t", "\t", 0, 16,
    ]  # fmt: skip
    for text in ("", "17", "-1", "two", "spaced", "²"):
        with pytest.raises(OptionError, match="--whitespace is natural"):
            parse_whitespace(text)


def test_a_grammar_check_judges_texts_of_other_hands(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"properties": {"a": {"type": "string"}}, "type": "object"}')
    text = '{ "\\u0061" :\n"b" }'
    assert Result("grammar", "check", tmp_path / "s.json", text).code == console.DONE
    assert Result("grammar", "check", tmp_path / "s.json", text, "--whitespace", "natural").code == console.SOME_FAILED
    request = '{"jsonrpc":"2.0",  "method":"m"}'
    assert Result("grammar", "check", "json_rpc_request", request).code == console.DONE
    sampled = Result("grammar", "sample", tmp_path / "s.json", "--whitespace", "tab", "-n", "3", "--json").out
    assert {layout_of(json.loads(line)) for line in sampled.splitlines()} <= {"\t", "compact"}  # {} is compact


# --- what is written --------------------------------------------------------------------------------------------------


def test_layouts_are_told() -> None:
    for value in VALUES:
        for text in natural(value):
            assert layout_of(text) is not None, text
    for text in (
        '{"a":1, "b":2}', "[1,  2]", '{ "a":1}', "[1 ,2]", '{"a": 1,"b":2}', '{\n  "a": 1,\n   "b": 2\n}', "[ ]",
        "[\n  [1,2]\n]", "[\n  1\n ]", " 1", '{"a":\n1}', "[\n  1, 2\n]", "[[1, 2],[3]]", "[\n\t[\n    1\n\t]\n]",
    ):  # fmt: skip
        assert layout_of(text) is None, text


@pytest.fixture(scope="module")
def tiny() -> dk.LLM:
    return dk.LLM.load("tiny")


@pytest.fixture(scope="module")
def models(tiny: dk.LLM) -> dict[str, dk.LLM]:
    return dict(random_models(tiny))


def written(llm: dk.LLM, name: str, way: str, num: int) -> Iterator[tuple[dk.JsonSchema, str]]:
    constraint = dk.JsonSchema(SCHEMAS[name], **WAYS[way])
    done = llm.generate(
        ["Say: "] * num, strategy="sample", constraint=constraint, seed=range(num), max_new_tokens=96, on_length="close"
    )
    for one in done:
        assert one.error is None, one
        yield constraint, one.text


@few(1)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "GPTNeoXForCausalLM", "MambaForCausalLM"])
def test_random_models_write_no_run_of_blanks_and_no_needless_escape(name: str, models: dict[str, dk.LLM]) -> None:
    for number, schema in enumerate(SCHEMAS):
        if number % 4 == list(models).index(name):  # `benchmarks.defaults` takes each schema with each of them
            for constraint, text in written(models[name], schema, "defaults", 2):
                assert is_valid(constraint, text), text
                assert layout_of(text) is not None, text
                assert filler_of(text).needless == 0, text


def test_negative_control_with_any_they_do(models: dict[str, dk.LLM]) -> None:
    texts = [text for _, text in written(models["LlamaForCausalLM"], "people", "any", 4)]
    assert any(layout_of(text) is None for text in texts) and any(filler_of(text).needless for text in texts)


@pytest.mark.slow
def test_the_bundled_model_finishes_what_it_was_not_trained_on(tiny: dk.LLM) -> None:
    for name in ("timetable", "weather", "loan", "survey"):
        [done] = tiny.generate([f"{DOCUMENTS[name][0]}\n"], constraint=SCHEMAS[name], max_new_tokens=512)
        assert done.error is None and layout_of(done.text) == "compact"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_bundled_model_finishes_ninety_of_a_hundred(tiny: dk.LLM) -> None:
    assert sum(row["num_finished"] for row in of_documents(tiny, "defaults", 10, 512)) >= 90


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": "\\u006c\\/\\u00e9"', Filler(1, 14, 0)),
        ('{  "a  b":\n\t1', Filler(4, 0, 0)),
        ('["\\n\\"\\u001f\\u0022\\u005C\\\\"]', Filler(0, 0, 24)),
        ('{"a": "b\\u00', Filler(1, 0, 4)),  # an escape that has begun may be a needed one
        ('{"a": "b\\u006', Filler(1, 5, 0)),
        ("12", Filler()),
    ],
)
def test_what_says_nothing_is_counted(text: str, found: Filler) -> None:
    assert filler_of(text) == found


def test_a_text_that_was_cut_says_what_it_is_made_of(tiny: dk.LLM) -> None:
    shape = SCHEMAS["survey"]
    constraint = dk.JsonSchema(shape, **WAYS["any"])
    done = tiny.generate(f"{DOCUMENTS['survey'][0]}\n", constraint=constraint, max_new_tokens=64)
    assert isinstance(done.error, LengthError)
    assert "white space between the values" in str(done.error) and 'whitespace="natural"' in str(done.error)
    cut = tiny.generate(f"{DOCUMENTS['survey'][0]}\n", constraint=shape, max_new_tokens=12)
    assert isinstance(cut.error, LengthError) and "whitespace" not in str(cut.error)


def test_remarks_name_the_option_that_helps() -> None:
    schema = dk.JsonSchema({})
    blanks, escapes = '{"a":' + " " * 20, '"' + "\\u0061" * 5
    assert remark(dk.JsonSchema({}, whitespace="any"), blanks) == (
        "80% of it is white space between the values",
        'whitespace="natural" (--whitespace natural)',
    )
    assert 'whitespace="compact"' in str(remark(schema, blanks))
    assert 'escapes="needed"' in str(remark(dk.Guarded(schema, bool), escapes))
    assert "maxLength" in str(remark(schema, '"' + "\\n" * 10))
    assert "digits of one number" in str(remark(schema, '{"total":3.5' + "0" * 60))
    assert remark(schema, '{"a":"' + "0" * 60) is None and remark(schema, '{"total":3.5000000000') is None
    assert remark(schema, '{"a": "a long text of words"') is None and remark(schema, "[  ") is None
    assert remark(dk.Regex(" *a"), blanks) is None


def test_extract_tells_once_what_schema_check_would_warn_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_module, "load_model", lambda *arguments: FakeLLM())
    monkeypatch.setattr(extract_module, "run", lambda *arguments, **options: console.DONE)
    documents = write_jsonl(tmp_path / "d.jsonl", [{"id": n, "text": "a b"} for n in range(3)])
    schema = tmp_path / "s.json"
    schema.write_text(json.dumps({"type": "object", "propertys": {}, "properties": {"d": {"format": "date"}}}))
    told = Result("extract", documents, "-o", tmp_path / "o", "--schema", schema).err
    assert told.count('did you mean "properties"?') == 1 and "annotation; JsonSchema" not in told
    annotated = Result("extract", documents, "-o", tmp_path / "p", "--schema", schema, "--format", "annotate").err
    assert annotated.count('the format "date" is an annotation') == 1
    checked = json.loads(Result("schema", "check", schema, "--format", "annotate", "--json").out)["warnings"]
    assert all(warning in annotated for warning in checked)


def test_a_date_that_is_none_is_no_date(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string", "format": "date"}')
    constraint = load_schema(str(tmp_path / "s.json")).constraint
    assert explain(constraint, '"2024-02-29"').is_allowed and not explain(constraint, '"2023-02-29"').is_allowed
