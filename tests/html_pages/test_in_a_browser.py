"""The pages in a headless Chromium: they ask for nothing, say nothing on the console, and follow mouse and keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import decodekit as dk
from decodekit.evaluation.task import load_task
from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView
from tests.browser import Browser, needs_chromium
from tests.jobs.fakes import BYTES, FakeLLM, run_job, write_jsonl

pytestmark = [pytest.mark.slow, needs_chromium]

COLORS = "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    path = write_jsonl(folder / "in.jsonl", [{"id": f"a{n}", "text": f"word{n} other words"} for n in range(9)])
    run_job(folder / "out", [path], FakeLLM(), vocabulary=BYTES)
    write_report(folder / "report.html", [JobView.read(folder / "out")], title="t")
    llm = dk.LLM.load("tiny")
    task = load_task("copying").first(2)
    dk.compare(llm, ["greedy", "greedy+prompt-lookup"], task, seeds=(0,)).to_html(folder / "bench.html")
    drafts = dk.Greedy(speculate=[dk.PromptLookup()])
    tokens = llm.generate("to be or not to be, to be or", strategy=drafts, trace=True, max_new_tokens=40)
    (folder / "tokens.html").write_text(tokens.to_html(), encoding="utf-8")
    beams = llm.generate("a b", constraint=dk.Choices(["yes", "no"]), strategy=dk.Beam(3), trace=True)
    (folder / "beams.html").write_text(beams.to_html(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ("report", "bench", "tokens", "beams")}


@pytest.mark.parametrize("name", ["report", "bench", "tokens", "beams"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_fits_its_window_and_complains_of_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    seen = []
    for is_dark in (False, True):
        browser.open(pages[name], width=width, is_dark=is_dark)
        assert browser.complaints == []
        assert browser.value("document.documentElement.scrollWidth") <= width
        seen.append(browser.value(COLORS))
    assert seen[0] != seen[1] and seen[0][0] != seen[0][1]


def test_a_page_that_complains_is_noticed(browser: Browser, tmp_path: Path) -> None:
    for number, part in enumerate(
        ("<script>nothing()</script>", "<script>console.error('x')</script>", '<img src="http://localhost:9/x.png">')
    ):
        path = tmp_path / f"{number}.html"
        path.write_text(f"<!doctype html><body>{part}", encoding="utf-8")
        browser.open(path)
        browser.value("1")
        assert browser.complaints, part


def test_a_click_on_a_field_marks_its_place_and_back(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["report"])
    target = "document.querySelector(':target')?.id"
    assert browser.value(target) is None
    field, place = browser.value("[...document.querySelectorAll('.pair span a')].map(a => [a.id, a.hash.slice(1)])[0]")
    browser.click(f"#{field}")
    assert browser.value(target) == place
    assert browser.value(f"getComputedStyle(document.querySelector('#{place}')).outlineStyle") == "solid"
    assert browser.value(f"!!document.querySelector('mark #{place}')")
    browser.click(f"#{place}")
    assert browser.value(target) == field


def test_the_same_with_keys(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["report"])
    for _ in range(200):
        browser.press("Tab")
        if browser.value("document.activeElement.matches('.pair a')"):
            break
    first, other = browser.value("[document.activeElement.id, document.activeElement.hash.slice(1)]")
    browser.press("Enter")
    assert browser.value("[document.querySelector(':target').id, document.activeElement.id]") == [other, other]
    browser.press("Enter")
    assert browser.value("document.activeElement.id") == first


@pytest.mark.parametrize("width", [1200, 400])
def test_a_card_opens_by_mouse_and_by_key_within_the_window(
    browser: Browser, pages: dict[str, Path], width: int
) -> None:
    browser.open(pages["tokens"], width=width)
    card = "[...document.querySelectorAll('.dk-card')].findIndex(card => getComputedStyle(card).display != 'none')"
    assert browser.value(card) == -1
    inner = "(r => { r.selectNodeContents(text); return r.getBoundingClientRect().height; })(document.createRange())"
    blank = browser.value(f"(text => text.offsetHeight - {inner})(document.querySelector('.dk-text'))")
    assert blank < 30  # less than a line
    browser.press("Tab")
    browser.press("Tab")
    assert browser.value(card) == 1
    browser.hover(".dk-token:nth-of-type(4)")
    assert browser.value(card) == 3
    box = "(box => [box.left, box.right])(document.querySelectorAll('.dk-card')[3].getBoundingClientRect())"
    left, right = browser.value(box)
    assert 0 <= left < right <= width


def test_a_point_leads_to_its_line_by_key(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["bench"])
    browser.press("Tab")
    assert browser.value("document.activeElement.id") == "t0p1"
    browser.press("Enter")
    assert browser.value("document.querySelector(':target').id") == "t0n1"
