"""A value of the report and its place in the document lead to each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView
from tests.jobs.fakes import BYTES, FakeLLM, run_job, write_jsonl


@pytest.fixture
def page(tmp_path: Path) -> str:
    path = write_jsonl(tmp_path / "in.jsonl", [{"id": f"a{n}", "text": f"word{n} <&> other words"} for n in range(3)])
    run_job(tmp_path / "out", [path], FakeLLM(), vocabulary=BYTES)
    write_report(tmp_path / "report.html", [JobView.read(tmp_path / "out")], title="t")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_marked_value_and_its_place_lead_to_each_other(page: str) -> None:
    links = re.findall(r'<a id="(d\d+[tv]\d+)" href="#(d\d+[tv]\d+)">(.*?)</a>', page)
    ends = {name: (other, shown) for name, other, shown in links}
    assert len(ends) == len(links) == page.count("<mark") * 2 > 0
    for name, (other, shown) in ends.items():
        assert ends[other][0] == name and {name[2:3], other[2:3]} == {"t", "v"}
        assert shown.strip('"').casefold() == ends[other][1].strip('"').casefold()
    assert "<script" not in page
