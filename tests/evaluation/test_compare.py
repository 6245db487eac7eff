from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from xml.dom import minidom

import pytest
from torch import Tensor

import decodekit as dk
from decodekit.errors import ConstraintError, DecodekitError, OptionError, OutputError, UnknownNameError
from decodekit.evaluation import Comparison, Example, Task, compare, load_task
from decodekit.evaluation import comparison_run as module
from decodekit.evaluation.comparison_run import seed_of
from decodekit.evaluation.reports import comparison_page as report
from decodekit.evaluation.reports.summary import without_speed_options
from decodekit.evaluation.stopwatch import Measurement
from decodekit.strategy import Strategy
from tests.sizes import sized

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string", "maxLength": 20}, "total": {"type": "number"}},
    "required": ["number", "total"],
    "additionalProperties": False,
}
TASK = Task(
    "bills",
    (
        Example("one", "Invoice A-17, total 40.20 EUR.\n", {"number": "A-17", "total": 40.2}),
        Example("two", "Invoice B-9, total 7.50 EUR.\n", {"number": "B-9", "total": 7.5}),
        Example("three", "Invoice number: 4711\nTotal: 12.00\n", {"number": "4711", "total": 12}),
    ),
    constraint=SCHEMA,
    max_new_tokens=40,
)
FREE = Task("free", (Example("x", "The old harbour\n"), Example("y", "Met a baker\n")), max_new_tokens=12)


LUCK = "DK600 decoding raised RuntimeError: out of luck"


class Fragile(dk.Greedy):
    """Fails on the second example at seed 0."""

    name: ClassVar[str] = "fragile"

    def select(self, scores: Any, keys: Any, /) -> Tensor:
        if seed_of(0, 1) in keys.seeds:
            raise RuntimeError("out of luck")
        return super().select(scores, keys)


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


@pytest.fixture(scope="module")
def comparison(llm: dk.LLM) -> Comparison:
    strategies = {
        "plain": "greedy",
        "drafts": "greedy+grammar+prompt-lookup",
        "warm": "sample:temperature=2.0",
        "warm+suffix": "sample:temperature=2.0+suffix",
        "beam": dk.Beam(2),
        "fragile": Fragile(),
    }
    return compare(llm, strategies, [TASK, FREE], seeds=(0, 1, 2), repeats=2)


@pytest.mark.slow
def test_a_row_for_every_strategy_task_and_seed(comparison: Comparison) -> None:
    found = [(row.task, row.strategy, row.seed) for row in comparison.rows]
    names = ["plain", "drafts", "warm", "warm+suffix", "beam", "fragile"]
    assert found == [(task, name, seed) for task in ("bills", "free") for name in names for seed in (0, 1, 2)]
    for row in comparison.rows:
        assert [outcome.example for outcome in row.outcomes] == [
            example.id for task in comparison.tasks if task.name == row.task for example in task.examples
        ]
        assert all(len(outcome.repeats) == len(row.speeds) == 2 for outcome in row.outcomes)


def test_texts_are_those_of_the_model_with_the_recorded_seeds(llm: dk.LLM, comparison: Comparison) -> None:
    for row in comparison.rows_of("warm", "bills"):
        for number, outcome in enumerate(row.outcomes):
            assert outcome.seed == seed_of(row.seed, number)
            again = llm.generate(
                TASK.examples[number].prompt,
                strategy=dk.Sample(temperature=2.0),
                seed=outcome.seed,
                constraint=SCHEMA,
                max_new_tokens=60,
            )
            assert again.text == outcome.text
    texts = {outcome.text for row in comparison.rows_of("warm", "free") for outcome in row.outcomes}
    assert len(texts) > 2  # seeds differ


def test_quality_of_a_row_is_that_of_its_texts(comparison: Comparison) -> None:
    for row in comparison.rows_of("plain", "bills"):
        assert row.quality["valid"] == 1.0
        assert row.quality["field-f1"] == pytest.approx(
            sum(outcome.quality["field-f1"] for outcome in row.outcomes) / len(row.outcomes)
        )
    assert comparison.metrics["bills"] == ("field-f1", "exact-match", "valid")
    assert comparison.metrics["free"][0] == "perplexity"
    assert "log-z" not in comparison.metrics["free"]


def test_speed_options_change_no_text_and_are_told_so(comparison: Comparison) -> None:
    drafts, warm = comparison.summary("drafts", "bills"), comparison.summary("warm+suffix", "bills")
    assert drafts.same_text is not None and warm.same_text is not None
    assert (drafts.same_text.strategy, drafts.same_text.num_same, drafts.same_text.num_texts) == ("plain", 9, 9)
    assert (warm.same_text.strategy, warm.same_text.num_same) == ("warm", 9)
    for name in ("plain", "warm", "beam", "fragile"):
        assert comparison.summary(name, "bills").same_text is None
    assert drafts.forwards_saved is not None and drafts.forwards_saved > 0.3
    assert drafts.acceptance and drafts.acceptance[0] <= 1.0
    assert comparison.summary("plain", "bills").forwards_saved is None


def test_other_texts_are_told_as_others(comparison: Comparison) -> None:
    """Negative control: had the second strategy the law of the first, its texts would be found to differ."""
    strategies = {**comparison.strategies, "warm": dk.Greedy(speculate="suffix")}
    claimed = replace(comparison, strategies=strategies).summary("warm", "free").same_text
    assert claimed is not None and claimed.num_same < claimed.num_texts


def test_a_strategy_that_fails_on_one_example_keeps_its_row(comparison: Comparison) -> None:
    row = comparison.rows_of("fragile", "bills")[0]
    assert [outcome.error and outcome.error.partition("\n")[0] for outcome in row.outcomes] == [None, LUCK, None]
    assert row.num_failed == 1
    assert row.outcomes[1].quality == {"field-f1": 0.0, "exact-match": 0.0, "valid": 0.0}  # missing is wrong
    assert comparison.rows_of("fragile", "bills")[1].num_failed == 0
    summary = comparison.summary("fragile", "bills")
    assert (summary.num_failed, summary.num_texts, dict(summary.errors)) == (1, 9, {LUCK: 1})
    assert any("have an error" in note for note in comparison.notes)
    assert f"bills, fragile: 1 times {LUCK}" in comparison.table()


def test_a_strategy_that_a_task_does_not_suit_fails_by_itself(comparison: Comparison) -> None:
    summary = comparison.summary("drafts", "free")  # drafts of a grammar, and no constraint
    assert summary.num_failed == summary.num_texts == 6
    assert "no effect without a constraint" in next(iter(summary.errors))
    assert (summary.quality, summary.times_faster, summary.same_text) == ({}, None, None)


def test_differences_and_ratios_are_to_the_baseline(comparison: Comparison) -> None:
    plain, beam = comparison.summary("plain", "bills"), comparison.summary("beam", "bills")
    assert (plain.difference, plain.times_faster) == ({}, None)
    assert beam.times_faster is not None and beam.times_faster.low is not None and beam.times_faster.value < 1.2
    expected = beam.over_examples["field-f1"].value - plain.over_examples["field-f1"].value
    assert beam.difference["field-f1"].value == pytest.approx(expected)
    warm = comparison.summary("warm", "free").difference["perplexity"]
    assert warm.num_samples == 3  # of texts together: paired by seed


def test_intervals_are_over_seeds_for_quality_and_over_runs_for_times(comparison: Comparison) -> None:
    summary = comparison.summary("warm", "bills")
    assert summary.quality["field-f1"].num_samples == 3
    assert summary.speed["ttft_s"].num_samples == 6
    assert summary.over_examples["field-f1"].num_samples == 3
    few = replace(comparison, rows=tuple(row for row in comparison.rows if row.seed < 2))
    assert few.summary("warm", "bills").quality["field-f1"].low is None


def test_the_records_say_all_that_is_needed(comparison: Comparison, tmp_path: Path) -> None:
    comparison.to_jsonl(tmp_path / "new" / "bench.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "new" / "bench.jsonl").read_text().splitlines()]
    assert len(rows) == len(comparison.rows) == 36
    first = rows[0]
    assert (first["strategy"], first["value"], first["task"], first["seed"]) == ("plain", "Greedy()", "bills", 0)
    assert (first["model"], first["dtype"], first["num_examples"]) == ("tiny", "float32", 3)
    assert {"machine", "versions", "commit", "date", "decodekit", "python", "batch_size", "repeats"} <= first.keys()
    assert [example["id"] for example in first["examples"]] == ["one", "two", "three"]
    assert len(first["speed"]) == 2 and first["speed"][0]["kv_bytes"] > 0
    assert first["speed"][0]["mask_s_per_token"] > 0
    assert rows[-3]["examples"][1]["error"].startswith(LUCK)
    with pytest.raises(OutputError):
        comparison.to_jsonl(tmp_path / "new" / "bench.jsonl" / "x")


def test_the_table_holds_quality_and_speed(comparison: Comparison) -> None:
    table = comparison.table()
    assert str(comparison) == table
    for heading in (
        "field-f1",
        "field-f1 - plain",
        "same text as",
        "TTFT ms",
        "times faster than plain",
        "KV MiB",
        "CPU cores",
    ):
        assert heading in table, heading
    [line] = [line for line in table.splitlines() if line.strip().startswith("drafts") and "plain: " in line]
    assert "plain: 9/9" in line and "0/9" in line
    assert "note: free has no references" in table


def test_the_page_is_whole_without_scripts_and_network(comparison: Comparison, tmp_path: Path) -> None:
    comparison.to_html(tmp_path / "bench.html")
    page = (tmp_path / "bench.html").read_text(encoding="utf-8")
    assert "<script" not in page and "http://" not in page and "https://" not in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for picture in pictures:
        minidom.parseString(picture)
    fronts = [picture for picture in pictures if 'class="front"' in picture]
    assert [picture.count("<circle") for picture in fronts] == [6, 5]  # the one that fails on a task has no point there
    anchors = set(re.findall(r'id="(t\d+[np]\d+)"', page))
    assert len(anchors) == 2 * (6 + 5)  # each point and its line in the list lead to each other
    assert sorted(re.findall(r'href="#(t\d+[np]\d+)"', page)) == sorted(anchors)
    assert sum("accepted by position" in picture for picture in pictures) == 3
    assert "Forward passes per token saved, beside plain" in page
    assert "RuntimeError: out of luck" in page
    for tag in ("table", "figure", "details", "div", "p", "ol"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag


def test_text_of_documents_is_escaped(llm: dk.LLM) -> None:
    task = Task("t", (Example("<b>", "<script>alert(1)</script>\n"),), max_new_tokens=3, description="<i>")
    found = compare(llm, {"<u>": "greedy"}, task, seeds=(0,))
    from decodekit.evaluation.reports.comparison_page import report_html

    page = report_html(found)
    assert "<script" not in page and "<u>" not in page and "<i>" not in page and "<b>&" not in page
    assert {"no intervals over seeds: 1 of at least 3 seeds", "no intervals of times: 1 of at least 3 runs"} <= {
        *found.notes
    }


def test_what_the_masks_leave_is_recorded_where_a_task_asks_for_it(llm: dk.LLM) -> None:
    asking = replace(TASK.first(1), metrics=("log-z", "valid"))
    found = compare(llm, ["greedy", "sample:temperature=2.0"], asking, seeds=(0,))
    [outcome] = found.rows_of("greedy", "bills")[0].outcomes
    again = llm.generate(TASK.examples[0].prompt, constraint=SCHEMA, max_new_tokens=60, logprobs=True, masks="always")
    assert outcome.quality["log-z"] == pytest.approx(again.stats.log_z)
    assert found.metrics["bills"] == ("log-z", "valid")
    assert found.summary("sample:temperature=2.0", "bills").quality["log-z"].value < 0
    free = compare(llm, ["greedy"], replace(asking, is_constrained=False), seeds=(0,))
    assert free.metrics["bills"] == ("valid",)  # there was no mask
    assert "bills: log-z left out: no example has what it needs" in free.notes


def test_messages_and_particles(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    text = str(TASK.examples[0].prompt)
    spoken = replace(TASK.examples[0], prompt=[{"role": "user", "content": text.strip()}])
    task = replace(TASK, examples=(spoken,), metrics=("exact-match", "perplexity"))
    found = compare(llm, ["greedy", "particles:num_particles=2"], task, seeds=(0,))
    written = replace(task, name="written", examples=TASK.examples[:1])
    plain = compare(llm, "greedy", written, seeds=(0,))
    assert found.rows[0].outcomes[0].text == plain.rows[0].outcomes[0].text
    assert found.rows[0].quality["perplexity"] == pytest.approx(plain.rows[0].quality["perplexity"])
    [outcome] = found.rows_of("particles:num_particles=2", "bills")[0].outcomes
    stats = outcome.repeats[0].stats
    assert stats is not None and stats.particles is not None
    assert outcome.quality["log-evidence"] == stats.particles.log_evidence < 0
    assert found.metrics["bills"] == ("exact-match", "perplexity", "log-evidence")


# --- how measurements are interleaved ---------------------------------------------------------------------------------


def test_strategies_take_turns_on_the_same_prompts(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, tuple[str, ...]]] = []

    def noted(llm: Any, meter: Any, prompts: list[str], *, strategy: Strategy, seed: list[int], **rest: Any) -> Any:
        calls.append((strategy.name, seed[0] & 0xFFFFFFFF, tuple(prompts)))
        return [Measurement("x", (1,), "stop", None, None, (), 0.1, None)] * len(prompts)

    monkeypatch.setattr(module, "decode", noted)
    told: list[tuple[int, int, str]] = []
    compare(llm, ["greedy", "sample"], TASK, seeds=(5, 6), repeats=2, progress=lambda *args: told.append(args))
    warm, timed = calls[:4], calls[4:]
    longer: list[tuple[int, int, str]] = []
    compare(llm, "greedy", [TASK, FREE], seeds=(5,), progress=lambda *args: longer.append(args))
    assert [(done, total) for done, total, _ in longer] == [(i, 5) for i in range(5)]  # three examples, then two
    assert [name for name, _, _ in warm] == ["greedy"] * 3 + ["sample"]
    assert len(timed) == 2 * 2 * 2 * 3 == len(told)
    pairs = [timed[i : i + 2] for i in range(0, len(timed), 2)]
    for one, other in pairs:
        assert one[1:] == other[1:] and {one[0], other[0]} == {"greedy", "sample"}
    assert Counter(pair[0][0] for pair in pairs) == {"greedy": 6, "sample": 6}
    assert [done for done, _, _ in told] == list(range(24))
    assert told[-1][1] == 24 and "bills, seed 6" in told[-1][2]


def test_examples_under_one_constraint_are_decoded_together(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(llm: Any, meter: Any, prompts: list[str], **rest: Any) -> Any:
        sizes.append(len(prompts))
        return [Measurement("x", (1,), "stop", None, None, (), 0.1, None)] * len(prompts)

    monkeypatch.setattr(module, "decode", noted)
    other = Example("four", "c\n", constraint=dk.Regex("a"))
    mixed = replace(TASK, examples=(TASK.examples[0], other, *TASK.examples[1:]))
    compare(llm, ["greedy"], mixed, seeds=(0,), batch_size=2)
    assert sizes == [2, 1, 1] * 2  # warm, then timed


def test_batches_write_the_same_texts(llm: dk.LLM) -> None:
    one, three = (compare(llm, "sample:temperature=2.0", TASK, seeds=(3,), batch_size=size) for size in (1, 3))
    assert [outcome.text for outcome in one.rows[0].outcomes] == [outcome.text for outcome in three.rows[0].outcomes]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_told_together_before_anything_runs(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "decode", None)
    with pytest.raises(OptionError) as raised:
        compare(
            llm, ["gredy"], ["extracton"], seeds=(1, 1, -3), repeats=0, batch_size=0, max_new_tokens=0, baseline="x"
        )
    told = str(raised.value)
    for part in (
        "'gredy'",
        "'extracton'",
        "seed is there twice",
        "got -3",
        "repeats must be",
        "batch_size must be",
        "max_new_tok",
    ):
        assert part in told, part
    with pytest.raises(OptionError, match="there is no seed"):
        compare(llm, ["greedy"], TASK, seeds=())
    with pytest.raises(UnknownNameError, match=r"in this comparison\. Did you mean 'greedy'"):
        compare(llm, ["greedy", "sample"], TASK, baseline="greed")
    with pytest.raises(OptionError, match="not below"):
        compare(llm, ["greedy"], TASK, seeds=(1 << 40,))


def test_values_of_other_types_are_refused_by_name(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "decode", None)
    examples = (Example("a", "Invoice A-17\n", {"number": "A-17"}),)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"metrics": ("exact-match", len)}, "the measure <built-in function len>, and a measure is asked for by its"),
        ({"metrics": 3}, "the measure 3, and"),
        ({"metrics": (None,)}, "the measure None, and"),
        ({"examples": ("a",)}, "has 'a' among its examples"),
    ]
    for options, said in wrong:
        with pytest.raises(OptionError, match=re.escape(said)):
            Task("t", **{"examples": examples, **options})
    assert Task("t", examples, metrics="exact-match").metrics == ("exact-match",)  # type: ignore[arg-type]
    calls: list[tuple[dict[str, Any], str]] = [
        ({"seeds": 3}, "seeds=range(3) for so many"),
        ({"seeds": ([],)}, "got []"),
        ({"judge": "tiny"}, "judge='tiny' is no LLM"),
        ({"llm": "tiny"}, "try LLM.load('tiny')"),
        ({"tasks": 3}, "3 is no task"),
        ({"tasks": [TASK, len]}, "<built-in function len> is no task"),
        ({"progress": 3}, "progress=3 cannot be called"),
        ({"folder": 3}, "folder=3 is no path"),
        ({"folder": ""}, "folder='' is no path"),
    ]
    for options, said in calls:
        with pytest.raises(DecodekitError, match=re.escape(said)):
            compare(**{"llm": llm, "strategies": "greedy", "tasks": TASK, **options})


@pytest.mark.parametrize("is_constrained", [True, False])
def test_a_schema_that_is_none_is_told_before_anything_runs(
    llm: dk.LLM, is_constrained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "decode", None)
    task = Task("t", (Example("a", "b"),), constraint={"type": 3}, is_constrained=is_constrained)
    with pytest.raises(ConstraintError) as raised:
        compare(llm, ["greedy"], task)
    assert "task 't'" in str(raised.value.at)


def test_missing_rows_are_an_error(comparison: Comparison) -> None:
    with pytest.raises(DecodekitError, match="no rows of strategy 'x'"):
        comparison.summary("x", "bills")


def test_what_decides_a_text() -> None:
    assert without_speed_options(dk.Greedy(speculate="suffix")) == dk.Greedy()
    assert without_speed_options(dk.Beam(3)) == dk.Beam(3)
    assert without_speed_options(dk.Sample(verify="rejection", speculate=dk.PromptLookup())) is None
    assert without_speed_options(object()) is None
    assert without_speed_options(dk.Sample(top_k=3)) != without_speed_options(dk.Sample(top_k=4))


@pytest.mark.slow
@sized(
    "names",
    ["extraction", "open-ended"],
    slow=["extraction", "extraction-free", "copying", "summarising", "open-ended"],
)
def test_shipped_tasks_run_on_the_bundled_model(llm: dk.LLM, names: list[str]) -> None:
    tasks = [load_task(name).first(1) for name in names]
    found = compare(llm, ["greedy", "greedy+prompt-lookup"], tasks, seeds=(0,))
    for name in names[:-1]:
        assert found.summary("greedy", name).quality["field-f1"].value > 0.5, name
        same = found.summary("greedy+prompt-lookup", name).same_text
        assert same is not None and same.num_same == 1
        saved = found.summary("greedy+prompt-lookup", name).forwards_saved
        assert saved is not None and saved > 0.2, name
    assert found.summary("greedy", "open-ended").quality["perplexity"].value > 1


def test_no_error_bar_starts_below_zero(comparison: Comparison) -> None:
    """Three seeds on a busy machine, one of them ten times as slow; a share of texts that is seldom above 0."""
    rows = [
        replace(row, speeds=tuple(replace(one, s_per_token=10.0 ** (row.seed > 0)) for one in row.speeds),
                quality={**row.quality, "valid": float(row.seed > 1), "mine": -1.0 + 2 * (row.seed > 1)})
        for row in comparison.rows
    ]  # fmt: skip
    metrics = {name: (*given, "mine") for name, given in comparison.metrics.items()}
    busy = replace(comparison, rows=tuple(rows), metrics=metrics)
    for one in busy.summaries:
        ends = [*one.speed.values(), *(one.quality[name] for name in ("valid",) if name in one.quality)]
        assert all(end.low is None or end.low >= 0 for end in ends)
    assert any(one.quality["mine"].low is not None and one.quality["mine"].low < 0 for one in busy.summaries)  # unknown


# --- in a notebook, as a frame, in a pipe -----------------------------------------------------------------------------


def test_a_notebook_shows_pictures_and_tables(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = comparison._repr_html_()
    minidom.parseString(piece.replace("<br>", "<br/>"))  # nothing is left open
    assert "<svg" in piece and "ms/token" in piece and "<style" not in piece and "<script" not in piece
    ends = re.findall(r' id="([^"]*)"', piece + comparison._repr_html_())  # a notebook may show it twice
    assert len(ends) == len(set(ends)) > 0 and {*re.findall(r'href="#([^"]*)"', piece)} <= {*ends}
    assert TASK.examples[0].prompt.strip() not in piece  # type: ignore[union-attr]  # the texts are in to_html
    for most in (len(piece) // 2, 10):
        monkeypatch.setattr(report, "MAX_PIECE", most)
        assert (
            len(comparison._repr_html_()) < most + 3000
            and "more tasks: <code>comparison.to_html" in comparison._repr_html_()
        )


def test_a_comparison_as_a_frame(comparison: Comparison) -> None:
    table = dk.to_pandas(comparison)
    rows = [(row, one) for row in comparison.rows for one in row.outcomes]
    assert len(table) == len(rows)
    prompts = {example.id: example.prompt for task in comparison.tasks for example in task.examples}
    for (_, cells), (row, one) in zip(table.iterrows(), rows, strict=True):
        assert (cells["strategy"], cells["task"], cells["seed"]) == (row.strategy, row.task, row.seed)
        assert cells["prompt"] == prompts[one.example] and cells["example_seed"] == one.seed
        assert cells["text"] == one.text or one.text is None
        assert all(cells[name] == value for name, value in one.quality.items())
    assert table["s_per_token"].min() > 0 and set(table.columns) >= {"finish_reason", "error", "num_tokens", "ttft_s"}
    assert ("log-z" in comparison.metrics["bills"]) == bool(table["logprob"].notna().any())


def test_the_rule_of_a_table_is_as_wide_as_the_table(comparison: Comparison) -> None:
    names = {name: f"{name}-{'x' * 300}" for name in comparison.strategies}  # wider than any terminal
    rows = tuple(replace(row, strategy=names[row.strategy]) for row in comparison.rows)
    strategies = {names[name]: value for name, value in comparison.strategies.items()}
    wide = replace(comparison, rows=rows, strategies=strategies, baseline=names[comparison.baseline])
    for one in (comparison, wide):
        lines = one.table().splitlines()
        rules = [number for number, line in enumerate(lines) if line.strip("- ") == "" and line.strip()]
        assert len(rules) == 3 * len(one.tasks)
        for number in rules:
            body = lines[number - 1 : lines.index("", number) if "" in lines[number:] else None]
            assert len(lines[number].encode()) == len(lines[number]) == max(map(len, body))
    assert all(name in wide.table() for name in strategies)  # and nothing is cut


def test_intervals_are_missed_below_the_least_number_of_samples_alone() -> None:
    def notes(num_seeds: int, repeats: int) -> list[str]:
        plan: Any = SimpleNamespace(seeds=range(num_seeds), repeats=repeats, tasks=[], measures={}, strategies=[])
        return [note.partition(":")[0] for note in module._notes([], plan, {}, {})]

    least = module.MIN_SAMPLES
    assert notes(least - 1, 1) == ["no intervals over seeds", "no intervals of times"]
    assert notes(least - 1, 2) == ["no intervals over seeds"]
    assert notes(least, 1) == []
