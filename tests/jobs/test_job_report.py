from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.decoding.loop.text_row import TokenLogprob
from decodekit.html_pages import page_bytes
from decodekit.jobs.reports.document_page import find_spans
from decodekit.jobs.reports.job_report import bars, histogram, report_html, write_report
from decodekit.jobs.reports.job_view import JobView, compare_fields, wrong_fields
from decodekit.jobs.reports.probabilities import value_probabilities, value_spans
from decodekit.records.strict_json import leaves, pointer_of
from decodekit.vocabulary import Vocabulary
from tests.jobs.fakes import BYTES, FakeLLM, answer, make_settings, run_job, words, write_jsonl
from tests.pictures import cut_labels

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def resolve(value: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def num_leaves(value: Any) -> int:
    items = list(value.values()) if isinstance(value, dict) else value
    return sum(map(num_leaves, items)) if isinstance(items, list) and items else 1


@settings(deadline=None)
@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_spans_of_values_hold_the_values(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    spans = list(value_spans(text))
    assert len(spans) == num_leaves(value)
    for pointer, start, end in spans:
        assert json.loads(text[start:end]) == resolve(value, pointer)


def test_deep_values_have_spans() -> None:
    text = "[" * 900 + "]" * 900
    assert list(value_spans(text)) == [("/0" * 899, 899, 901)]


def test_the_probability_of_a_value_is_that_of_its_least_likely_token() -> None:
    completion = answer("äb c", 7)
    assert completion.logprobs is not None
    least = completion.text.encode().index("ä".encode()) + 1  # its second byte
    entries = list(completion.logprobs)
    object.__setattr__(entries[least], "logprob", -2.0)
    found = value_probabilities(completion, BYTES)
    assert found == {"/first": 0.1353, "/words": 0.8825, "/seed": 0.8825}
    assert value_probabilities(completion, Vocabulary([b"xx"] * 256, {10})) == {}  # other bytes: nothing is claimed


def test_the_empty_text_has_no_probability() -> None:
    ended = replace(answer("a", 7), text="", token_ids=(10,), logprobs=(TokenLogprob(10, -0.5),))
    assert value_probabilities(ended, BYTES, is_json=False) == {}


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("Total 40.20 EUR", {"total": 40.2}, {"/total": "40.20"}),
        ("Total 1,040.20 EUR", {"total": 1040.2}, {"/total": "1,040.20"}),
        ("7 of 17 items, 17.5", {"n": 17}, {"/n": "17"}),
        ("Ann met ANN", {"a": "Ann", "b": "ann"}, {"/a": "Ann", "/b": "ANN"}),
        ("Anna", {"a": "Ann"}, {}),
        ("New York, York", {"a": "York", "b": "New York"}, {"/b": "New York", "/a": "York"}),
        ("true null 1", {"a": True, "b": None, "c": False}, {}),
        ("a.b*c", {"x/y": ["a.b*c"]}, {"/x~1y/0": "a.b*c"}),
    ],
)
def test_values_are_found_in_the_document(text: str, value: Any, found: dict[str, str]) -> None:
    assert {pointer: text[start:end] for pointer, (start, end) in find_spans(text, value).items()} == found


@settings(deadline=None)
@given(st.text(max_size=30), JSON)
def test_found_spans_are_apart_and_inside(text: str, value: Any) -> None:
    spans = sorted(find_spans(text, value).values())
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert set(find_spans(text, value)) <= {pointer_of(path) for path, _ in leaves(value)}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_a_histogram_counts_every_value(values: list[float]) -> None:
    titles = re.findall(r"<title>[^<]*: ([\d,]+)</title>", histogram(values, unit="s"))
    assert sum(int(count.replace(",", "")) for count in titles) == len(values)


@pytest.mark.parametrize("unit", ["tokens", "s", ""])
@pytest.mark.parametrize(
    "values", [[0.0], [1e-9], [5, 7000], [1e9] * 2, [0.5, 0.51], [123456.7, 1234567.8], [1, 10**12]]
)
def test_labels_of_a_histogram_are_whole(values: list[float], unit: str) -> None:
    for times in (1, 12_345):
        assert cut_labels(histogram(values * times, unit=unit)) == []
    assert cut_labels(histogram(values, unit=unit).replace('viewBox="0 ', 'viewBox="30 ')) != []


def test_pictures_of_nothing_say_so() -> None:
    assert "nothing" in histogram([], unit="s")
    assert "no failures" in bars({})


@pytest.mark.parametrize(
    ("value", "expected", "wrong"),
    [
        ({"a": 1, "b": 2}, {"a": 1.0, "b": 2}, {}),
        ({"a": True}, {"a": 1}, {"/a": 1}),
        ({"a": [1, True]}, {"a": [1, 1]}, {"/a": [1, 1]}),
        ({"a": None}, {"a": None, "b~/": None}, {"/b~0~1": None}),
        (None, {"a": 1}, {"/a": 1}),
        ("x", "x", {}),
        ("x", "y", {"": "y"}),
    ],
)
def test_fields_are_compared_as_json(value: Any, expected: Any, wrong: dict[str, Any]) -> None:
    assert wrong_fields(value, expected) == wrong
    total = len(expected) if isinstance(expected, dict) else 1
    assert compare_fields(value, expected) == (total - len(wrong), total)


class Page(HTMLParser):
    """Checks that every element is closed where it should be; collects text, ids and links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


NASTY = "<script>alert(\"x\")</script> & <b onclick='y'>"


@pytest.fixture
def nasty_job(tmp_path: Path) -> Path:
    rows = [{"id": f"doc-{n}", "text": words(n)} for n in range(40)]
    rows += [{"id": f"<i>{n}</i>", "text": f"{NASTY} {n}"} for n in range(3)]
    rows += [{"id": "<img src=x>", "text": f"{NASTY} CUT"}, {"id": "w", "text": "<u> WRONG"}, {"id": "e", "text": ""}]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    schema = make_settings().schema | {"title": NASTY}  # type: ignore[operator]
    settings = make_settings(schema=schema, prompt=NASTY + "{text}", model=NASTY, schema_source=NASTY)
    run_job(tmp_path / "out", [path], FakeLLM(), settings=settings, vocabulary=BYTES)
    return tmp_path / "out"


def test_the_report_has_every_document_and_escapes_everything(nasty_job: Path) -> None:
    view = JobView.read(nasty_job, expected={"doc-1": {"first": NASTY, "words": 1}, "doc-2": NASTY})
    html = report_html([view], title=NASTY)
    page = Page(html)
    assert not page.tags & {"script", "img", "u", "link", "iframe"}
    assert "<i>" not in html and "<script" not in html  # the bars are <i style=...>
    assert page.text.count(NASTY) >= 5
    for row in [*(f"doc-{n}" for n in range(40)), "<i>0</i>", "<i>2</i>", "<img src=x>", "w", "e"]:
        assert row in page.text
    assert len(page.ids) == len(set(page.ids))
    assert sum(re.fullmatch(r"d\d+", name) is not None for name in page.ids) == 46
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "http" not in html.replace("http-equiv", "")  # nothing is fetched
    assert "DK101" in page.text and "DK504" in page.text and "DK502" in page.text
    assert 'class="c' in html  # values are marked in the text


def test_the_report_says_what_it_leaves_out_and_still_names_it(nasty_job: Path) -> None:
    page = Page(report_html([JobView.read(nasty_job)] * 2, title="two", max_documents=50))
    assert "4 of 46 documents are shown" in page.text
    assert page.text.count("doc-39") >= 2


def test_a_view_that_stands_on_the_page_twice_has_anchors_of_its_own(nasty_job: Path) -> None:
    view = JobView.read(nasty_job)
    for most in (92, 50, 3):  # all documents with their texts, some, hardly any
        page = Page(report_html([view, view], title="two", max_documents=most))
        assert sum(re.fullmatch(r"d\d+", name) is not None for name in page.ids) == 2 * 46
        assert len(page.ids) == len(set(page.ids)) and {link[1:] for link in page.links} <= set(page.ids)


def test_the_report_is_written_without_the_documents(nasty_job: Path) -> None:
    (nasty_job.parent / "d.jsonl").unlink()
    write_report(nasty_job / "report.html", [JobView.read(nasty_job)], title="x")
    assert "no longer where it was read from" in (nasty_job / "report.html").read_text()
    assert JobView.read(nasty_job).to_json()["left"] is None


def test_counts_of_a_job(nasty_job: Path) -> None:
    figures = JobView.read(nasty_job).to_json()
    assert (figures["done"], figures["failed"], figures["left"], figures["cut"]) == (43, 3, 0, 0)
    assert figures["failures"] == {"DK101 LengthError": 1, "DK502 DocumentError": 1, "DK504 InvalidOutputError": 1}
    assert figures["documents_per_second"] > 0
    assert json.loads(json.dumps(figures)) == figures


def test_what_is_left_is_of_the_newest_selection(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": str(n), "text": words(n)} for n in range(30)])
    run_job(tmp_path / "out", [path], FakeLLM(), limit=10)
    assert JobView.read(tmp_path / "out").num_left == 0
    job_file = tmp_path / "out" / "job.json"
    job = json.loads(job_file.read_text())
    job["runs"].append({"started": 0.0, "shard": None, "limit": None})  # a run that was killed at once
    job_file.write_text(json.dumps(job))
    assert JobView.read(tmp_path / "out").num_left == 20


def test_a_page_is_written_whatever_a_name_is() -> None:
    """Of a file name beyond the locale the bytes, of any other half of a surrogate pair a sign that something was."""
    assert page_bytes("a é " + os.fsdecode("é".encode())) == "a é é".encode()
    assert page_bytes("\udcc3\udca9 \ud800 \udfff") == "é \ufffd \ufffd".encode()
