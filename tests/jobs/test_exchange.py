"""Jobs that another engine runs: requests out, answers back, through the same validation and ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.cli.parts.console import CRASH, DONE, SOME_FAILED, USAGE
from decodekit.errors import OptionError, UnsupportedSchemaError
from decodekit.jobs.folder.exchange import BatchRequests
from decodekit.jobs.job_schema import JobSchema
from tests.commands import Result
from tests.jobs.fakes import SCHEMA, FakeLLM, answer, make_settings, read_jsonl, write_jsonl

DOCUMENTS = ["one two three", "four five", "CUT six", "WRONG seven", "GARBLED eight", "né 😀 nine"]
Row = dict[str, Any]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> Path:
    """A folder with documents and a schema; `first` is a job of which the first document is done."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "d.jsonl", [{"id": f"d:{n}", "text": text} for n, text in enumerate(DOCUMENTS)])
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    assert extract("first", "--limit", "1").code == DONE
    return tmp_path


def extract(folder: str, *options: str) -> Result:
    return Result("extract", "d.jsonl", "-o", folder, "--schema", "schema.json", "--seed", "3", *options)


def run_batch(request: Mapping[str, Any]) -> Row:
    """What ``vllm run-batch`` writes for a request; the text is that of our own stand-in for a model."""
    body = request["body"]
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    done = answer(prompt, body["seed"], "return")
    usage = {"prompt_tokens": done.stats.num_prompt_tokens, "completion_tokens": done.stats.num_generated_tokens}
    said = {"text": done.text} if "prompt" in body else {"message": {"role": "assistant", "content": done.text}}
    choice = {"index": 0, **said, "finish_reason": done.finish_reason}
    response = {"status_code": 200, "request_id": "r", "body": {"model": "m", "choices": [choice], "usage": usage}}
    return {"id": "vllm-1", "custom_id": request["custom_id"], "response": response, "error": None}


def exchanged(folder: str, run: Callable[[Row], Row] = run_batch, *options: str) -> Result:
    """Export, run, import."""
    assert Result("export", folder, "--to", "vllm-batch", "-o", "requests.jsonl", *options).code == DONE
    write_jsonl(Path("answers.jsonl"), map(run, read_jsonl(Path("requests.jsonl"))))
    return Result("import", folder, "answers.jsonl", *options)


def values(folder: str) -> dict[str, Any]:
    return {row["id"]: row["value"] for row in read_jsonl(Path(folder) / "results.jsonl")}


def failures(folder: str) -> dict[str, Row]:
    return {row["id"]: row for row in read_jsonl(Path(folder) / "failed.jsonl")}


def test_a_job_that_goes_out_and_comes_back_is_the_job_that_was_run_here(work: Path) -> None:
    assert extract("here").code == SOME_FAILED
    told = exchanged("first")
    assert told.code == SOME_FAILED and "2 done and 3 failed" in told.err
    assert sorted(read_jsonl(work / "first" / "results.jsonl"), key=str) == sorted(
        read_jsonl(work / "here" / "results.jsonl"), key=str
    )  # values, counts, digests, settings
    ours, theirs = failures("here"), failures("first")
    assert ours.keys() == theirs.keys() == {"d:2", "d:3", "d:4"}
    for name in ours:
        for field in ("code", "error", "text", "finish_reason", "attempts", "document", "settings"):
            assert ours[name][field] == theirs[name][field], (name, field)
    assert (work / "first" / "report.html").exists()
    run = json.loads((work / "first" / "job.json").read_text())["runs"][-1]
    assert (run["answers"], run["models"], run["outcome"]) == (["answers.jsonl"], ["m"], "finished")


def test_a_request_says_what_the_job_says(work: Path) -> None:
    done = Result("export", "first", "--to", "vllm-batch", "--model", "org/big", "--limit", "1")
    (request,) = [json.loads(line) for line in done.out.splitlines()]
    job = json.loads((work / "first" / "job.json").read_text())
    fingerprint, digest, name = request.pop("custom_id").split(":", 2)
    assert (fingerprint, len(digest), name) == (job["fingerprint"], 16, "d:1")
    body = request.pop("body")
    assert request == {"method": "POST", "url": "/v1/completions"}
    assert body.pop("seed") > 0
    assert body.pop("response_format")["json_schema"] == {"name": "extraction", "schema": SCHEMA, "strict": True}
    assert body == {"model": "org/big", "max_tokens": 512, "temperature": 0, "prompt": "four five\n"}
    assert "1 request; 1 document is done, 0 failed" in done.err


def test_the_same_import_changes_nothing(work: Path) -> None:
    exchanged("first")
    before = {name: (work / "first" / name).read_bytes() for name in ("results.jsonl", "failed.jsonl")}
    again = Result("import", "first", "answers.jsonl")
    assert again.code == SOME_FAILED and "0 done and 0 failed in" in again.err
    assert {name: (work / "first" / name).read_bytes() for name in before} == before
    nothing = Result("export", "first", "--to", "vllm-batch")
    assert nothing.out == "" and "0 requests" in nothing.err


def test_an_import_in_two_halves_names_what_is_missing(work: Path) -> None:
    Result("export", "first", "--to", "vllm-batch", "-o", "requests.jsonl")
    rows = [run_batch(row) for row in read_jsonl(work / "requests.jsonl")]
    write_jsonl(work / "one.jsonl", rows[:1])
    write_jsonl(work / "two.jsonl", rows[1:])
    half = Result("import", "first", "one.jsonl")
    assert half.code == SOME_FAILED and "4 open documents have no answer: d:2, d:3, d:4, d:5" in half.err
    Result("import", "first", "two.jsonl")
    assert values("first").keys() == {"d:0", "d:1", "d:5"} and failures("first").keys() == {"d:2", "d:3", "d:4"}


def test_failures_are_exported_and_taken_back_again_on_request(work: Path) -> None:
    exchanged("first")

    def better(request: Row) -> Row:
        done = run_batch(request)
        text = json.dumps({"first": "x", "words": 1, "seed": 0})
        done["response"]["body"]["choices"][0] |= {"text": text, "finish_reason": "stop"}
        return done

    assert exchanged("first", better, "--retry").code == DONE
    assert len(values("first")) == len(DOCUMENTS) and failures("first") == {}


BAD_REQUEST = {"status_code": 400, "body": {"error": {"code": "invalid", "message": "schema is too large"}}}
WITHOUT_TEXT: list[tuple[str, Row, str]] = [
    (
        "line",
        {"response": None, "error": {"code": "batch_expired", "message": "late"}},
        "gave an error: batch_expired: late",
    ),
    ("line", {"response": BAD_REQUEST}, "gave an error (status 400): invalid: schema is too large"),
    ("line", {"response": {"status_code": 500, "body": None}}, "gave an error (status 500)"),
    ("choice", {"message": {"content": None, "refusal": "I cannot"}}, "the answer has no text: 'I cannot'"),
    ("choice", {"text": "{}", "finish_reason": "content_filter"}, "ended for the reason 'content_filter'"),
]


def test_errors_of_the_other_engine_are_failures_with_their_words(work: Path) -> None:
    kinds = iter(WITHOUT_TEXT)

    def run(request: Row) -> Row:
        done = run_batch(request)
        where, changes, _ = next(kinds)
        if where == "line":
            return {**done, **changes}
        done["response"]["body"]["choices"] = [changes]
        return done

    exchanged("first", run)
    failed = failures("first")
    assert failed.keys() == {f"d:{n}" for n in range(1, 6)} and {row["code"] for row in failed.values()} == {"DK505"}
    for number, (_, _, message) in enumerate(WITHOUT_TEXT, 1):
        assert message in failed[f"d:{number}"]["message"]
        assert failed[f"d:{number}"]["at"] == f"answers.jsonl:{number}"


def test_lines_that_are_no_answers_are_named_and_change_nothing(work: Path) -> None:
    Result("export", "first", "--to", "vllm-batch", "-o", "requests.jsonl")
    rows = read_jsonl(work / "requests.jsonl")
    good = run_batch(rows[0])
    second = run_batch(rows[0])
    second["response"]["body"]["choices"][0]["text"] = "{}"
    fingerprint, digest, _ = rows[0]["custom_id"].split(":", 2)
    others = [f"{fingerprint}:{digest}:d:99", f"{fingerprint}:{'0' * 16}:d:1", "request-1", 7]
    strange = [{**good, "custom_id": name} for name in others]
    lines = [json.dumps(row) for row in (good, second, *strange)]
    (work / "answers.jsonl").write_text("\n".join([*lines, '{"custom_id": "torn', "[]", ""]))
    told = Result("import", "first", "answers.jsonl")
    assert told.code == SOME_FAILED and values("first").keys() == {"d:0", "d:1"} and failures("first") == {}
    for number, cause in enumerate(
        [
            "document 'd:1' has a second answer; that of answers.jsonl:1 counts",
            "document 'd:99' is not among the inputs",
            "document 'd:1' has changed since it was exported",
            "custom_id 'request-1' is none",
            "custom_id 7 is none",
            "the line is not JSON",
            "custom_id None is none",
        ],
        2,
    ):
        assert f"DK502 {cause}" in told.err and f"answers.jsonl:{number}" in told.err


def test_answers_to_another_job_are_refused_before_anything_is_written(work: Path) -> None:
    assert extract("other", "--limit", "1", "--max-new-tokens", "99").code == DONE
    Result("export", "other", "--to", "vllm-batch", "-o", "requests.jsonl")
    write_jsonl(work / "answers.jsonl", map(run_batch, read_jsonl(work / "requests.jsonl")))
    before = (work / "first" / "results.jsonl").read_bytes()
    refused = Result("import", "first", "answers.jsonl")
    assert refused.code == USAGE and "DK501 the request was made with settings" in refused.err
    assert (work / "first" / "results.jsonl").read_bytes() == before and failures("first") == {}
    assert extract("first", "--limit", "1", "--max-new-tokens", "99", "--force").code == DONE  # now it is that job
    assert Result("import", "first", "answers.jsonl").code == SOME_FAILED
    assert len(values("first")) == 3
    Result("export", "first", "--to", "vllm-batch", "-o", "requests.jsonl", "--retry")
    assert extract("first", "--limit", "1", "--force").code == SOME_FAILED
    write_jsonl(work / "answers.jsonl", map(run_batch, read_jsonl(work / "requests.jsonl")))
    named = Result("import", "first", "answers.jsonl", "--retry")
    assert named.code == USAGE and "max_new_tokens was 99, now 512" in named.err


def test_what_a_request_cannot_say_is_refused_all_at_once(work: Path) -> None:
    refused = Result("export", "first")
    assert refused.code == USAGE and "--chat to send it as a user's message, or --to vllm-batch" in refused.err
    chat = Result("export", "first", "--chat", "--limit", "1")
    (request,) = [json.loads(line) for line in chat.out.splitlines()]
    assert request["url"] == "/v1/chat/completions" and request["body"]["max_completion_tokens"] == 512
    assert request["body"]["messages"] == [{"role": "user", "content": "four five\n"}]
    assert "the prompt is sent as a user's message, which the job does not do" in chat.err

    strategy = {"name": "sample", "temperature": 0.7, "top_k": 5, "typical_p": 0.9}
    settings = make_settings(strategy=strategy, is_chat=True, on_length="close", reading={"registry": "x"})
    schema = JobSchema("s", SCHEMA, dk.JsonSchema(SCHEMA))
    with pytest.raises(OptionError) as raised:
        BatchRequests(settings, schema)
    assert [fault.at for fault in raised.value.faults] == ["top_k", "typical_p", "schema"]
    assert [fault.hint for fault in raised.value.faults][:2] == ["--to vllm-batch", "a job without it"]
    with pytest.raises(OptionError, match="strategy 'beam' cannot be expressed"):
        BatchRequests(make_settings(strategy={"name": "beam"}, is_chat=True), schema)


def test_sampling_and_constraints_of_other_kinds() -> None:
    strategy = {"name": "sample", "temperature": 0.7, "top_k": 5, "presence_penalty": 0.5, "fast_forward": "canonical"}
    settings = make_settings(strategy=strategy, is_chat=True, on_length="close", constraint={"regex": "[0-9]+"})
    schema = JobSchema("s", True, dk.Regex("[0-9]+"), {"regex": "[0-9]+"}, False)
    requests = BatchRequests(settings, schema, "vllm-batch")
    body = requests._body(True)
    assert body.pop("structured_outputs") == {"regex": "[0-9]+"}
    assert body == {"model": "fake", "max_tokens": 64, "temperature": 0.7, "top_k": 5, "presence_penalty": 0.5}
    notes = " ".join(requests.notes())
    assert 'on_length="close"' in notes and "fast_forward='canonical' is not sent" in notes and "own noise" in notes
    assert "guard of the constraint" not in notes  # a pattern has none
    with pytest.raises(UnsupportedSchemaError, match=r"OpenAI's API cannot be given Regex"):
        BatchRequests(make_settings(is_chat=True), schema)
    grammar = JobSchema("s", True, dk.Grammar('start: "a"\n'), {"grammar": "a"}, False)
    with pytest.raises(UnsupportedSchemaError, match="Regex without flags and Choices can"):
        BatchRequests(make_settings(), grammar, "vllm-batch")


def test_variables_of_the_chat_template_go_along_or_are_refused() -> None:
    settings = make_settings(is_chat=True, chat_template_kwargs={"enable_thinking": False})
    schema = JobSchema("s", SCHEMA, dk.JsonSchema(SCHEMA))
    body = BatchRequests(settings, schema, "vllm-batch")._body(True)
    assert body["chat_template_kwargs"] == {"enable_thinking": False} and body["temperature"] == 0
    with pytest.raises(OptionError, match="cannot be expressed in a request for openai-batch") as raised:
        BatchRequests(settings, schema)
    assert (raised.value.at, raised.value.hint) == ("chat_template_kwargs", "--to vllm-batch")
    assert "chat_template_kwargs" not in BatchRequests(make_settings(is_chat=True), schema)._body(True)


def test_files_that_cannot_be_read_or_written(work: Path) -> None:
    for output in (".", "no/requests.jsonl"):
        refused = Result("export", "first", "--to", "vllm-batch", "-o", output)
        assert refused.code == CRASH and "DK503" in refused.err
    refused = Result("import", "first", "none.jsonl")
    assert refused.code == USAGE and "DK500 the answers cannot be read" in refused.err


def test_documents_that_cannot_be_read_are_left_out_by_name(work: Path) -> None:
    write_jsonl(work / "d.jsonl", [{"id": "d:0", "text": DOCUMENTS[0]}, {"id": "d:1", "text": " "}])
    done = Result("export", "first", "--to", "vllm-batch")
    assert done.code == SOME_FAILED and done.out == "" and "left out: DK502" in done.err and "d.jsonl:2" in done.err


def test_a_document_that_is_cut_is_done_where_the_job_says_so(work: Path) -> None:
    assert extract("cut", "--limit", "1", "--on-length", "return").code == DONE
    exchanged("cut")
    (row,) = [row for row in read_jsonl(work / "cut" / "results.jsonl") if row["id"] == "d:2"]
    assert (row["value"], row["finish_reason"], row["text"]) == (None, "length", '{"first":')


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["greedy", "sample:temperature=0.8,top_p=0.9"])
def test_our_own_model_behind_a_batch_runner(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests say all that our engine needs for the same texts: prompt, schema, strategy, seed, length."""
    monkeypatch.chdir(tmp_path)
    texts = [f"Invoice A-{n}, total {n}.50 EUR." for n in range(1, 6)]
    write_jsonl(tmp_path / "d.jsonl", [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)])
    options = ["--schema", "number, total float", "--strategy", strategy, "--max-new-tokens", "80"]
    for folder, more in (("here", ()), ("there", ("--limit", "1"))):
        assert Result("extract", "d.jsonl", "-o", folder, *options, *more).code == DONE
    llm = dk.LLM.load("tiny")

    def run(request: Row) -> Row:
        body = request["body"]
        names = ("temperature", "top_p") if body["temperature"] else ()
        done = llm.generate(
            body["prompt"],
            constraint=dk.JsonSchema(body["response_format"]["json_schema"]["schema"], format="assert"),
            strategy="sample" if names else "greedy",
            max_new_tokens=body["max_tokens"],
            seed=body["seed"],
            **{name: body[name] for name in names},
        )
        usage = {"prompt_tokens": done.stats.num_prompt_tokens, "completion_tokens": done.stats.num_generated_tokens}
        choice = {"text": done.text, "finish_reason": "stop"}
        response = {"status_code": 200, "body": {"model": "tiny", "choices": [choice], "usage": usage}}
        return {"custom_id": request["custom_id"], "response": response, "error": None}

    assert exchanged("there", run).code == DONE
    assert values("there") == values("here") and len(values("there")) == len(texts)
