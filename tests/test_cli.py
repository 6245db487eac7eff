from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main

import decodekit
from decodekit.cli import app
from decodekit.cli.parts import console
from decodekit.constraints import explain
from decodekit.errors import DecodekitError, OptionError
from decodekit.jobs.extraction import SPECULATE, ExtractionOptions, with_guesses
from decodekit.jobs.folder.job_folder import JobSettings
from decodekit.jobs.job_schema import load_schema
from decodekit.strategy import BestOf, DoLa, Greedy, Sample, Strategy
from tests.commands import Result
from tests.jobs.fakes import SCHEMA, FakeLLM, answering_at_once, read_jsonl, words, write_jsonl
from tests.sizes import few
from training.documents import make_document
from training.kinds import KINDS

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "jobs" / "cli_options.json"


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    return answering_at_once(monkeypatch)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "d.jsonl", [{"id": f"doc-{n}", "text": words(n)} for n in range(30)])


# --- help and start ---------------------------------------------------------------------------------------------------


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    yield " ".join(path), sorted(option for parameter in command.params for option in parameter.opts)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_verbs_and_options_are_those_that_are_written_down() -> None:
    """A change here changes what users type: change tests/jobs/cli_options.json with it, on purpose."""
    assert dict(commands(typer.main.get_command(app))) == json.loads(GOLDEN.read_text())


@few(9)
@pytest.mark.parametrize("verb", sorted(json.loads(GOLDEN.read_text())))
def test_help_lists_every_verb_and_option(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Result(*verb.split(), "--help")
    assert shown.code == 0
    golden = json.loads(GOLDEN.read_text())
    for option in golden[verb]:
        if option.startswith("--"):
            assert option in shown.out, option
    for other in golden:
        if other.rpartition(" ")[0] == verb and other:
            assert other.rpartition(" ")[2] in shown.out


def test_help_loads_neither_torch_nor_transformers_nor_numba() -> None:
    code = (
        "import sys\n"
        "from decodekit.cli import main\n"
        "sys.argv = ['decodekit', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'numba', 'numpy', 'jsonschema'} & sys.modules.keys()\n"
        "print('loaded:', sorted(heavy), file=sys.stderr)\n"
    )
    for arguments in (["--help"], ["extract", "--help"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "loaded: []"
        assert done.stdout


def test_the_version_is_data() -> None:
    assert Result("--version").out == f"{decodekit.__version__}\n"


# --- extract, status, retry, report -----------------------------------------------------------------------------------


def test_extract_status_report_retry(tmp_path: Path, llm: FakeLLM, schema: Path) -> None:
    out = tmp_path / "out"
    rows = [{"id": f"doc-{n}", "text": words(n)} for n in range(30)] + [{"id": "bad", "text": "a CUT b"}]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    done = Result("extract", path, "-o", out, "--schema", schema)
    assert (done.code, done.out) == (console.SOME_FAILED, "")
    assert "30 done and 1 failed" in done.err and "failed bad: DK101" in done.err and "decodekit retry" in done.err
    for row in read_jsonl(out / "results.jsonl"):
        jsonschema.validate(row["value"], SCHEMA)
    assert "doc-29" in (out / "report.html").read_text()

    figures = json.loads(Result("status", out, "--json").out)
    assert (figures["done"], figures["failed"], figures["left"]) == (30, 1, 0)
    shown = Result("status", out)
    assert (shown.code, shown.err) == (0, "")
    assert "DK101 LengthError" in shown.out

    again = Result("extract", path, "-o", out, "--schema", schema)
    assert again.code == console.SOME_FAILED
    assert "resuming" in again.err and "0 done and 0 failed in" in again.err

    write_jsonl(path, [*rows[:-1], {"id": "bad", "text": "mended"}])
    mended = Result("retry", out, "--max-new-tokens", "99")
    assert mended.code == console.DONE
    assert read_jsonl(out / "failed.jsonl") == []
    settings = {row["id"]: row["settings"] for row in read_jsonl(out / "results.jsonl")}
    assert settings["bad"] != settings["doc-0"]
    assert "no failed documents" in Result("retry", out).err

    (out / "report.html").unlink()
    assert Result("report", out).code == 0
    assert "mended" in (out / "report.html").read_text()
    assert Result("report", out, "-o", tmp_path / "r.html", "--documents", "3").code == 0
    assert "3 of 31 documents" in (tmp_path / "r.html").read_text()


def test_text_files_folders_and_stdin(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("one two")
    (tmp_path / "docs" / "b.bin").write_bytes(b"%PDF")
    (tmp_path / "c.log").write_text("three")
    arguments = ("-", "docs", "c.log", "-o", "out", "--schema", "first, words int, seed int")
    done = Result("extract", *arguments, stdin='{"id": "x", "text": "from stdin"}\n')
    assert done.code == 0, done.err
    assert "left out 1 file of folders that is no text file (1 .bin), such as docs/b.bin" in done.err
    assert {row["id"]: row["value"]["first"] for row in read_jsonl(tmp_path / "out" / "results.jsonl")} == {
        "x": "from",
        "docs/a.txt": "one",
        "c.log": "three",
    }
    (tmp_path / "out").rename(tmp_path / "moved")
    assert Result("report", "moved").code == 0
    assert "</mark> stdin" in (tmp_path / "moved" / "report.html").read_text()
    assert json.loads(Result("status", "moved", "--json").out)["left"] == 0


def test_shards_of_one_folder_complete_each_other(tmp_path: Path, llm: FakeLLM, schema: Path, documents: Path) -> None:
    for number in (1, 2, 3):
        assert (
            Result("extract", documents, "-o", tmp_path / "o", "--schema", schema, "--shard", f"{number}/3").code == 0
        )
    assert len(read_jsonl(tmp_path / "o" / "results.jsonl")) == 30


def test_a_limit_on_failures_stops(tmp_path: Path, llm: FakeLLM, schema: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": n, "text": "CUT"} for n in range(40)])
    done = Result("extract", path, "-o", tmp_path / "o", "--schema", schema, "--max-failures", "2", "--batch-size", "1")
    assert done.code == console.SOME_FAILED
    assert "stopped at the limit of failures" in done.err
    assert len(read_jsonl(tmp_path / "o" / "failed.jsonl")) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(
    tmp_path: Path, llm: FakeLLM, schema: Path, documents: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = llm.as_completed

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for count, item in enumerate(whole(*arguments, **options)):
            yield item
            if count == 9:
                os.kill(os.getpid(), number)

    command = ("extract", documents, "-o", tmp_path / "o", "--schema", schema)
    # A shell that runs the tests in the background has SIGINT ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(llm, "as_completed", interrupted)
            done = Result(*command)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == console.INTERRUPTED
    assert "interrupted: 10 done" in done.err and "run the same command again" in done.err
    assert len(read_jsonl(tmp_path / "o" / "results.jsonl")) == 10
    assert "interrupted" in Result("status", tmp_path / "o").out
    assert "report.html" in done.err and (tmp_path / "o" / "report.html").is_file()
    llm.seen.clear()
    assert Result(*command).code == 0
    assert len(llm.seen) == 20
    assert len(read_jsonl(tmp_path / "o" / "results.jsonl")) == 30


def test_retry_where_a_file_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> None:
    """It is named and stays failed; the others are tried. Where none is left, no model is loaded."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for name in ("a.txt", "b.txt", "notes/c.txt", "notes/d.txt"):
        (tmp_path / name).write_text("a CUT b")
    names = ("a.txt", "b.txt", "notes")
    assert "4 failed" in Result("extract", *names, "-o", "out", "--schema", "first, words int, seed int").err
    for name in ("a.txt", "notes/c.txt"):
        (tmp_path / name).unlink()
    (tmp_path / "b.txt").write_text("mended")
    done = Result("retry", "out")
    assert done.code == console.SOME_FAILED
    assert "an input of out/job.json cannot be used: there is no file or folder 'a.txt'." in done.err
    assert "2 documents stay failed: they are no longer in the inputs: a.txt, notes/c.txt\n" in done.err
    assert "1 done and 1 failed in" in done.err and "1 done and 3 failed in all" in done.err
    attempts = {row["id"]: row["attempts"] for row in read_jsonl(tmp_path / "out" / "failed.jsonl")}
    assert attempts == {"a.txt": 1, "notes/c.txt": 1, "notes/d.txt": 2}
    (tmp_path / "notes" / "d.txt").unlink()
    (tmp_path / "notes").rmdir()
    monkeypatch.setattr("decodekit.cli.jobs.extract.load_model", None)
    done = Result("retry", "out")
    assert done.code == console.SOME_FAILED and "3 documents stay failed" in done.err


def test_what_is_said_of_one_document_and_of_many(tmp_path: Path, llm: FakeLLM, schema: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": "one"}])
    command = ("extract", path, "-o", tmp_path / "out", "--schema", schema)
    assert Result(*command).err.startswith("1 document\n")
    write_jsonl(path, [{"id": "a", "text": "two"}])
    assert "1 document has changed since it was done, and done again\n" in Result(*command).err
    assert "done or failed per second" in Result("status", tmp_path / "out").out
    write_jsonl(path, [{"id": str(number), "text": ""} for number in range(21)])
    told = Result(*command, "--fresh").err
    assert "failed 19: DK502 the document is empty.\nfurther failures are in failed.jsonl\n0 done and 21 failed" in told
    assert "has room" not in told
    write_jsonl(path, [{"id": "a", "text": "CUT"}])
    assert "runs them again; a larger --max-new-tokens has room for those that were cut" in Result(*command).err


# --- bad input: each with its own error and exit code -----------------------------------------------------------------


BAD = [
    # arguments after `extract d.jsonl -o out`, exit code, what is said
    (["--schema", "nowhere.json"], console.SCHEMA_REFUSED, "DK204"),
    (["--schema", "total flaot"], console.SCHEMA_REFUSED, "DK203"),
    (["--schema", '{"type": "integer", "minimum": 5, "maximum": 3}'], console.SCHEMA_REFUSED, "DK202"),
    (["--schema", '{"properties": {"a": {"pattern": "\\\\p{Nope}"}}}'], console.SCHEMA_REFUSED, "DK201"),
    (["--schema", "a", "--strategy", "gredy"], console.USAGE, "DK401"),
    (["--schema", "a", "--temperature", "0.7"], console.USAGE, "DK306"),
    (["--schema", "a", "--strategy", "sample", "--top-p", "1.5"], console.USAGE, "DK305"),
    (["--schema", "a", "--fresh", "--force"], console.USAGE, "DK305"),
    (["--schema", "a", "--shard", "3/2"], console.USAGE, "DK305"),
    (["--schema", "a", "--shard", "0/2"], console.USAGE, "DK305"),
    (["--schema", "a", "--batch-size", "many"], console.USAGE, "DK305"),
    (["--schema", "a", "--prompt", "no document"], console.USAGE, "DK305"),
    (["--schema", "a", "--text-field", "body"], console.USAGE, "DK502"),
    (["--schema", "a", "nowhere.txt"], console.USAGE, "DK500"),
    (["--schema", "a", "--max-new-tokens", "0"], console.USAGE, "max-new-tokens"),
    (["--schema", "a", "--draft-model", "x"], console.USAGE, "draft-model"),
    (["--schema", "a", "--on-length", "trim"], console.USAGE, "trim"),
    (["--schema", "a", "--speculate", "grammer"], console.USAGE, "no proposer 'grammer'"),
    (["--schema", "a", "--speculate", "none,grammar"], console.USAGE, "--speculate is none or names"),
    (["--schema", "a", "--fast-forward", "fast"], console.USAGE, "fast"),
    ([], console.USAGE, "schema"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_bad_options(
    tmp_path: Path,
    llm: FakeLLM,
    documents: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = Result("extract", "d.jsonl", "-o", "out", *arguments)
    assert done.code == code, done.err
    assert said in done.err
    assert done.out == ""
    assert llm.seen == []
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_several_faults_are_told_together(tmp_path: Path, llm: FakeLLM, documents: Path) -> None:
    done = Result("extract", documents, "-o", tmp_path / "o", "--schema", "a", "--temperature", "1", "--top-k", "3")
    assert done.code == console.USAGE
    assert "temperature" in done.err and "--top-k" in done.err


def test_other_settings(tmp_path: Path, llm: FakeLLM, schema: Path, documents: Path) -> None:
    command = ("extract", documents, "-o", tmp_path / "o", "--schema", schema)
    assert Result(*command, "--limit", "3").code == 0
    refused = Result(*command, "--seed", "4")
    assert (refused.code, "DK501" in refused.err, "seed was 0, now 4" in refused.err) == (console.USAGE, True, True)
    assert Result(*command, "--seed", "4", "--force").code == 0
    assert len({row["settings"] for row in read_jsonl(tmp_path / "o" / "results.jsonl")}) == 2
    assert Result(*command, "--seed", "5", "--fresh").code == 0
    assert len({row["settings"] for row in read_jsonl(tmp_path / "o" / "results.jsonl")}) == 1


def test_speed_is_no_setting_but_canonical_is(tmp_path: Path, llm: FakeLLM, schema: Path, documents: Path) -> None:
    """A job goes on with other guesses and without forced tokens; canonical fast-forward is another law."""
    command = ("extract", documents, "-o", tmp_path / "o", "--schema", schema)
    for speed in ((), ("--speculate", "none"), ("--speculate", "prompt-lookup,grammar"), ("--fast-forward", "off")):
        done = Result(*command, "--limit", "3", *speed)
        assert done.code == 0, done.err
    refused = Result(*command, "--fast-forward", "canonical")
    assert (refused.code, "DK501" in refused.err) == (console.USAGE, True)
    assert Result(*command, "--fast-forward", "canonical", "--fresh").code == 0
    job = json.loads((tmp_path / "o" / "job.json").read_text())
    assert job["settings"]["strategy"] == {"name": "greedy", "fast_forward": "canonical"}
    again = ExtractionOptions.of_settings(JobSettings.from_json(job["settings"]))
    assert (again.strategy_options, again.fast_forward) == ({}, "canonical")


def test_who_guesses_in_a_job() -> None:
    """Grammar and document unless somebody else was named; a strategy without proposers is left alone."""
    assert with_guesses(Sample(top_k=3), "exact") == Sample(top_k=3, speculate=SPECULATE)
    assert with_guesses(Greedy(), "canonical") == Greedy(speculate=("prompt-lookup",))
    assert with_guesses(Greedy(speculate="grammar"), "exact") == Greedy(speculate="grammar")

    class Plain(Strategy):
        pipeline, select = Greedy().pipeline, Greedy.select  # type: ignore[assignment]

    plain = Plain()
    assert with_guesses(plain, "exact") is plain
    guessing = BestOf(2, Sample(top_k=3, speculate=SPECULATE))
    assert with_guesses(BestOf(2, Sample(top_k=3)), "exact") == guessing


def test_a_job_knows_its_strategy_however_it_is_spelled() -> None:
    """Equal strategies are equal settings; who guesses ahead is none, unless the text depends on it."""
    shape = load_schema("name")
    spelled = ExtractionOptions(shape, strategy="sample:top_k=3,contrast=dola+suffix")
    apart = ExtractionOptions(shape, strategy="sample", strategy_options={"top_k": 3, "contrast": "dola"})
    assert spelled.strategy_settings == apart.strategy_settings == {"name": "sample", "top_k": 3, "contrast": "dola"}
    assert spelled.check()[0] == Sample(top_k=3, contrast=DoLa(), speculate="suffix")
    for options in ({"strategy": "sample:verify=rejection+grammar"}, {"speculate": ("grammar",)}):
        rejecting = ExtractionOptions(shape, **{"strategy": "sample:verify=rejection", **options})  # type: ignore[arg-type]
        assert "grammar" in rejecting.strategy_settings["speculate"]
        assert rejecting.check()[0].verify == "rejection"
    with pytest.raises(OptionError, match="speculate is given twice"):
        ExtractionOptions(shape, strategy="sample+suffix", speculate=("grammar",)).check()


def test_a_job_keeps_one_value_of_each_document() -> None:
    schema = load_schema("name")
    for strategy, options in (("sample", {"num_return_sequences": 2}), ("beam", {"num_return_sequences": 2})):
        with pytest.raises(OptionError, match="num_return_sequences=2, and a job keeps one value"):
            ExtractionOptions(schema, strategy=strategy, strategy_options=options).check()
    assert ExtractionOptions(schema, strategy="best-of", strategy_options={"n": 2}).check()[0] == BestOf(2)
    shape = load_schema("name")
    assert ExtractionOptions(shape, speculate=("grammar",)).check()[0] == Greedy(speculate=("grammar",))
    assert ExtractionOptions(shape, speculate=()).check()[0] == Greedy()


def test_outputs_that_cannot_be_written(tmp_path: Path, llm: FakeLLM, schema: Path, documents: Path) -> None:
    for output in (Path("/proc/decodekit"), documents / "out"):
        done = Result("extract", documents, "-o", output, "--schema", schema)
        assert done.code == console.CRASH
        assert "DK503" in done.err and str(output) in done.err


@pytest.mark.parametrize("verb", ["status", "retry", "report"])
def test_a_folder_that_is_no_job(tmp_path: Path, verb: str) -> None:
    done = Result(verb, tmp_path)
    assert done.code == console.USAGE
    assert "is not a job folder" in done.err


def test_every_error_has_an_exit_code_that_is_documented() -> None:
    kinds = [DecodekitError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        assert console.exit_code(kind("x")) in (1, 2, 3, 4)


# --- with the bundled model -------------------------------------------------------------------------------------------


def test_extract_with_the_bundled_model(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": n, "text": f"Invoice A-{n}, total {n}.50 EUR."} for n in range(6)])
    with path.open("a") as file:
        file.write(json.dumps({"id": "long", "text": "word " * 5000}) + "\n")
    shape = {
        "type": "object",
        "properties": {"paid": {"type": "boolean"}, "kind": {"enum": ["invoice", "receipt"]}},
        "required": ["paid", "kind"],
        "additionalProperties": False,
    }
    results = {}
    for batch_size in ("1", "4"):
        out = tmp_path / batch_size
        options = ("--schema", json.dumps(shape), "--strategy", "sample", "--seed", "3", "--batch-size", batch_size)
        # No training document has these two keys together: the model fills gaps with white space, up to the limit.
        done = Result("extract", path, "-o", out, *options, "--on-length", "close")
        assert done.code == console.SOME_FAILED, done.err
        failed = read_jsonl(out / "failed.jsonl")
        assert [(row["id"], row["code"], row["at"]) for row in failed] == [("long", "DK304", None)]
        assert "tokens, the context of the model" in failed[0]["message"]
        rows = read_jsonl(out / "results.jsonl")
        assert len(rows) == 6
        for row in rows:
            jsonschema.validate(row["value"], shape)
        results[batch_size] = sorted(json.dumps(row, sort_keys=True) for row in rows)
        probabilities = [row["probabilities"] for row in read_jsonl(out / "metrics.jsonl")]
        assert all(set(found) == {"/paid", "/kind"} for found in probabilities)
    assert results["1"] == results["4"]
    assert json.loads((tmp_path / "1" / "job.json").read_text())["settings"]["dtype"] == "float32"


def test_generate_with_a_constraint_streams_to_stdout() -> None:
    done = Result("generate", "Is it paid?", "--choices", "yes, no")
    assert done.code == 0, done.err
    assert done.out in ("yes\n", "no\n")
    assert "tokens/s" in done.err
    done = Result("generate", "-", "--regex", "[0-9]{3}", "--strategy", "sample", "--json", stdin="A number:")
    assert len(json.loads(done.out)["text"]) == 3
    done = Result("generate", "On", "--constraint", "date", "--json")
    assert explain("date", json.loads(done.out)["text"]).is_allowed, done.err
    fast = Result("generate", "a b a b", "--schema", "name", "--speculate", "grammar,prompt-lookup", "--json")
    plain = Result("generate", "a b a b", "--schema", "name", "--fast-forward", "off", "--json")
    fast_row, plain_row = json.loads(fast.out), json.loads(plain.out)
    assert fast_row["text"] == plain_row["text"]
    assert fast_row["num_forwards"] < plain_row["num_forwards"] == plain_row["num_generated_tokens"]
    cut = Result("generate", "x", "--regex", "[a-z]{40}", "--max-new-tokens", "2")
    assert cut.code == console.SOME_FAILED
    assert "DK101" in cut.err


def test_generate_writes_a_page_of_tokens(tmp_path: Path) -> None:
    page = tmp_path / "tokens.html"
    done = Result("generate", "Is it paid?", "--choices", "yes, no", "--html", str(page))
    assert done.code == 0 and done.out.strip() in ("yes", "no") and str(page) in done.err
    assert page.read_text(encoding="utf-8").count('role="tooltip"') >= 1
    for wrong in (tmp_path, tmp_path / "none" / "tokens.html"):
        refused = Result("generate", "Is it paid?", "--choices", "yes, no", "--html", str(wrong))
        assert refused.code == console.USAGE and refused.out == "" and str(tmp_path) in refused.err


def test_generate_takes_one_constraint() -> None:
    done = Result("generate", "x", "--regex", "a", "--choices", "a,b")
    assert done.code == console.USAGE
    assert "--regex and --choices cannot be combined" in done.err
    done = Result("generate", "x", "--schema", "a", "--constraint", "date")
    assert done.code == console.USAGE and "--schema and --constraint" in done.err


def test_an_unknown_model(tmp_path: Path, documents: Path) -> None:
    done = Result("extract", documents, "-o", tmp_path / "o", "--schema", "a", "--model", str(tmp_path / "nowhere"))
    assert done.code == console.MODEL
    assert "DK300" in done.err and "nowhere" in done.err


def test_the_tokenizer_of_another_model(tmp_path: Path, documents: Path) -> None:
    source = Path(decodekit.__file__).parent / "models" / "tiny"
    model = tmp_path / "mixed"
    model.mkdir()
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (model / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    template = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": size + n, "content": f"<other-{n}>", **template} for n in range(50)]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = Result("extract", documents, "-o", tmp_path / "o", "--schema", "a", "--model", str(model))
    assert done.code == console.MODEL, done.err
    assert "DK301" in done.err


def test_doctor() -> None:
    done = Result("doctor", "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["problems"]) == (0, []), facts
    assert facts["torch"].startswith(__import__("torch").__version__.partition("+")[0])
    assert "float32" in facts["model"] and "ragged" in facts["model"]
    assert {"device", "kernels", "triton", "cuda", "free memory"} <= facts.keys()
    assert ("steps: programs run by numba" in facts["kernels"]) is (facts["cuda"] == "none")
    assert "estimate" not in facts
    broken = Result("doctor", "--model", "/nowhere")
    assert broken.code == console.CRASH
    assert "problem: DK300" in broken.out


def test_doctor_estimates_a_configuration(tmp_path: Path) -> None:
    """A folder without weights: what a model of it would take."""
    from decodekit.models import loading

    config = json.loads((Path(loading.__file__).parent / "tiny" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    done = Result("doctor", "--model", str(tmp_path), "--batch", "3", "--context", "7", "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["problems"]) == (0, []), facts
    heads, width = config["num_key_value_heads"], config["head_dim"]
    assert facts["estimate"]["kv_bytes_per_token"] == 2 * 2 * heads * width * 4
    assert facts["estimate"]["cache_bytes"] == 3 * 8 * facts["estimate"]["kv_bytes_per_token"]
    table = Result("doctor", "--model", str(tmp_path / "config.json"), "--batch", "3")
    assert "a configuration without weights" in table.out and "3 x 1,024 tokens" in table.out, table.out
    predicted = Result("doctor", "--model", str(tmp_path), "--device", "h200", "--json")
    assert json.loads(predicted.out)["estimate"]["seconds_per_step"] > 0
    refused = Result("doctor", "--model", str(tmp_path), "--device", "abacus")
    assert refused.code == console.CRASH and "no device 'abacus'" in refused.out


# --- demo -------------------------------------------------------------------------------------------------------------


def test_demo_compares_with_what_is_right(tmp_path: Path, llm: FakeLLM) -> None:
    for kind in ("bill", "note"):
        folder = tmp_path / "examples" / kind
        folder.mkdir(parents=True)
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        (folder / "001.txt").write_text("one two")
        (folder / "002.txt").write_text("three")
        rows = [{"id": f"{kind}/001", "value": {"first": "one", "words": 9, "seed": 1}}]
        write_jsonl(folder / "expected.jsonl", rows)
    for _ in range(2):  # the second time is like the first
        done = Result("demo", "-o", tmp_path / "out", "--examples", tmp_path / "examples")
        assert done.code == 0, done.err
        lines = dict(line.split("  ", 1) for line in done.out.splitlines())
        assert lines["bill"].strip().startswith("2 done, 0 failed, ")
        assert "of 6 fields right" in lines["all"]
        assert "documents/s" in lines["rate"]
    html = (tmp_path / "out" / "report.html").read_text()
    assert "bill/001.txt" in html and "≠ 9" in html
    assert (tmp_path / "out" / "note" / "results.jsonl").exists()


def test_demo_without_the_samples_says_where_they_are(tmp_path: Path) -> None:
    done = Result("demo", "--examples", tmp_path, "-o", tmp_path / "out")
    assert done.code == console.USAGE
    assert "in the repository of decodekit" in done.err


@pytest.mark.slow
def test_a_thousand_documents_killed_ten_times_end_as_undisturbed(tmp_path: Path) -> None:
    """The whole command in processes of its own, with the bundled model; killed while loading, decoding, writing."""
    kind = KINDS["ticket"]
    rng = random.Random(2024)
    rows = [{"id": f"t-{n}", "text": make_document(kind, rng).text} for n in range(1000)]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(kind.schema))

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "decodekit.cli", "extract", str(path), "-o", str(out)]
        command += ["--schema", str(schema), "--batch-size", "16", "--max-new-tokens", "256"]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def num_done(out: Path) -> int:
        lines = out / "results.jsonl"
        return lines.read_bytes().count(b"\n") if lines.exists() else 0

    calm, out = tmp_path / "calm", tmp_path / "out"
    code = start(calm).wait()
    failed = read_jsonl(calm / "failed.jsonl")
    assert code == (console.SOME_FAILED if failed else console.DONE)
    assert {row["code"] for row in failed} <= {"DK101"}
    assert num_done(calm) + len(failed) == 1000
    for row in read_jsonl(calm / "results.jsonl"):
        jsonschema.validate(row["value"], kind.schema)

    for number in range(10):
        process = start(out)
        wanted = num_done(out) + rng.choice([0, 1, 30, 90])
        deadline = time.monotonic() + (rng.uniform(0, 4) if number == 0 else 600)  # once while it loads
        while process.poll() is None and num_done(out) < wanted and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert start(out).wait() == code
    for name in ("results.jsonl", "failed.jsonl"):
        lines = {folder: sorted((folder / name).read_text().splitlines()) for folder in (calm, out)}
        assert lines[out] == lines[calm], name
    assert len({row["id"] for row in read_jsonl(out / "results.jsonl")}) == num_done(out)


# --- schema check -----------------------------------------------------------------------------------------------------


def test_schema_check_lists_what_is_enforced(tmp_path: Path, schema: Path) -> None:
    done = Result("schema", "check", schema)
    assert (done.code, done.err) == (0, "")
    assert "    properties/words  mask type, minimum\n" in done.out
    (tmp_path / "types.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n")
    found = json.loads(Result("schema", "check", f"{tmp_path / 'types.py'}:Point", "--json").out)
    assert found["is_supported"] and found["error"] is None
    assert {"pointer": "#/properties/x/type", "status": "mask", "error": None} in found["keywords"]
    assert "format" in Result("schema", "check", "due date").out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('{"properties": {"a": {"pattern": "\\\\p{Nope}"}}}', "DK201"),
        ('{"type": "object", "required": ["a"], "properties": {"a": {"type": "null", "const": 1}}}', "#/properties/a"),
        ('{"allOf": [{"type": "integer"}, {"type": "string"}]}', "DK202"),
    ],
)
def test_schema_check_refuses_with_the_place(source: str, said: str) -> None:
    done = Result("schema", "check", source)
    assert done.code == console.SCHEMA_REFUSED
    assert said in done.out


def test_schema_check_prints_the_report_of_check(schema: Path, tmp_path: Path) -> None:
    assert Result("schema", "check", schema).out == f"{decodekit.check(SCHEMA)}\n"
    impossible = {"type": "array", "items": False, "minItems": 1}
    done = Result("schema", "check", json.dumps(impossible))
    assert done.out.splitlines()[0] == "refused (DK202): no value fits" and done.out.count("no value fits") == 2
    found = json.loads(Result("schema", "check", json.dumps(impossible), "--json").out)
    assert found["impossible"] == ["#"] and not found["is_supported"]
    assert found["reasons"] == ['for type "array", items false and minItems 1 exclude each other']


def test_schemas_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file goes before a name, a name before a field; what is none of them says where it was looked for."""
    monkeypatch.chdir(tmp_path)
    done = Result("schema", "check", "json_rpc_request")
    assert done.code == console.DONE and "#/properties/jsonrpc/const" not in done.out and "jsonrpc" in done.out
    assert "properties/json_rpc_request  mask type" in Result("schema", "check", "json_rpc_request string").out
    assert "properties/date  mask type" in Result("schema", "check", "date").out  # a grammar of the library, no schema
    (tmp_path / "json_rpc_request").write_text('{"type": "null"}')
    assert "#  mask type" in Result("schema", "check", "json_rpc_request").out
    done = Result("schema", "check", "json.rpc_request")
    assert done.code == console.SCHEMA_REFUSED
    for said in ("DK204", str(tmp_path / "json.rpc_request"), "try one of json_rpc_request;"):
        assert said in done.err, said


def test_schema_check_of_what_is_no_schema() -> None:
    done = Result("schema", "check", '{"type": "integre"}')
    assert done.code == console.SCHEMA_REFUSED
    assert "DK203" in done.err and done.out == ""


# --- grammar ----------------------------------------------------------------------------------------------------------

LIST = """
start: "[" [item ("," item)*] "]"
item: NUMBER | start
NUMBER: /[0-9]+/
endless: "x" endless
UNUSED: "u"
"""


@pytest.fixture
def grammar(tmp_path: Path) -> Path:
    path = tmp_path / "list.lark"
    path.write_text(LIST)
    return path


def test_grammar_check_shows_what_a_grammar_is_made_of(grammar: Path) -> None:
    done = Result("grammar", "check", grammar)
    assert (done.code, done.err) == (0, "")
    for said in ("lark", "2: start, item", "NUMBER", "'[]', 2 bytes", "'endless'", "'UNUSED'"):
        assert said in done.out, said
    found = json.loads(Result("grammar", "check", grammar, "--json").out)
    assert (found["start"], found["rules"], found["least"]) == ("start", ["start", "item"], "[]")
    assert len(found["warnings"]) == 2


def test_grammar_check_warns_of_rules_without_texts(tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "a" | loop\nloop ::= "b" loop\nother ::= "c"\n')
    warnings = json.loads(Result("grammar", "check", tmp_path / "g.gbnf", "--json").out)["warnings"]
    assert warnings == ["no text can be derived from the rule 'loop'", "the rule 'other' takes part in no text"]
    (tmp_path / "h.lark").write_text('start: "a" start\n')
    done = Result("grammar", "check", tmp_path / "h.lark")
    assert done.code == console.SCHEMA_REFUSED and "DK202" in done.err


def test_grammar_check_of_texts(grammar: Path) -> None:
    assert Result("grammar", "check", grammar, "[1,[2]]", "[]").code == console.DONE
    done = Result("grammar", "check", grammar, "[1]", "[1,]", "[1")
    assert done.code == console.SOME_FAILED
    lines = done.out.splitlines()
    assert lines[0] == "accepted  '[1]'"
    assert lines[1:3] == ["refused   [1,]", "             ^"]
    assert "refused at ']', character 4 of 4: expected NUMBER or \"[\" (rule item)" in lines[3]
    assert lines[4:6] == ["refused   [1", "            ^"] and "cannot end here" in lines[6]


def test_grammar_check_of_lines_and_stdin(grammar: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.regex").write_text("(a+\n)*")
    done = Result("grammar", "check", tmp_path / "lines.regex", "aa\na\nabc\n")
    assert done.out.splitlines()[:2] == ["refused   abc", "           ^"] and "line 3, column 2" in done.out
    assert Result("grammar", "check", grammar, "-", stdin="[1]").code == console.DONE
    found = json.loads(Result("grammar", "check", grammar, "-", "--json", stdin="[x").out)
    assert found[0]["position"] == 1 and not found[0]["is_accepted"] and "NUMBER (rule item)" in found[0]["expected"]


def test_grammar_check_of_schemas_and_of_the_library(tmp_path: Path, schema: Path) -> None:
    done = Result("grammar", "check", schema, "{}")
    assert done.code == console.SOME_FAILED and "still needs" in done.out
    assert "kind        JsonSchema" in Result("grammar", "check", schema).out
    assert Result("grammar", "check", "arithmetic", "1 + 2").code == console.DONE
    assert Result("grammar", "check", schema, "--start", "x").code == console.USAGE
    done = Result("grammar", "check", "arithmetik")
    assert done.code == console.SCHEMA_REFUSED
    assert str(Path("arithmetik").absolute()) in done.err and "try one of arithmetic" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nowhere"], "DK204"), (["nowhere.lark"], "DK204"), (["list.lark", "--start", "strat"], "strat"), ([], "FILE")],
)
def test_grammars_that_are_refused(
    arguments: list[str], said: str, grammar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(grammar.parent)
    done = Result("grammar", "check", *arguments)
    assert done.code == (console.SCHEMA_REFUSED if arguments else console.USAGE)
    assert said in done.err and done.out == ""


def test_grammar_list() -> None:
    names = {entry["name"]: entry["kind"] for entry in json.loads(Result("grammar", "list", "--json").out)}
    assert names["sql"] == "lark" and names["email"] == "regex"
    assert all(name in Result("grammar", "list").out for name in names)


def test_grammar_sample(grammar: Path) -> None:
    done = Result("grammar", "sample", grammar, "-n", "4", "--seed", "3", "--json")
    texts = [json.loads(line) for line in done.out.splitlines()]
    assert len(texts) == 4 and Result("grammar", "check", grammar, *texts).code == console.DONE
    assert Result("grammar", "sample", grammar, "-n", "4", "--seed", "3").out == "".join(f"{text}\n" for text in texts)
    assert len(set(Result("grammar", "sample", grammar, "-n", "20").out.splitlines())) > 5
