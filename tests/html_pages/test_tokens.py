"""The token view as HTML: what stands in it, and what must not."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.decoding.request.token_traces import TokenOption, TokenTrace
from decodekit.evaluation.task import load_task
from decodekit.html_pages import POLICY, sheet
from decodekit.html_pages.tokens import _shade as shade
from decodekit.html_pages.tokens import token_page, token_view
from decodekit.jobs.reports.job_report import write_report
from decodekit.jobs.reports.job_view import JobView
from tests.jobs.fakes import BYTES, FakeLLM, run_job, write_jsonl


class Tags(HTMLParser):
    """Opens and closes; `stray` holds what does not fit."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.stray: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.stray.append(tag)


@dataclass(frozen=True)
class Text:
    trace: tuple[TokenTrace, ...]
    finish_reason: str = "stop"
    score: float | None = None
    stats: Any = None
    tree: None = None


@pytest.fixture(scope="module")
def completion() -> dk.Completion:
    llm = dk.LLM.load("tiny")
    return llm.generate(
        "Invoice A-17", constraint=dk.Choices(["<b>&\n\t x", "yes"]), trace=True, masks="always", max_new_tokens=20
    )


def test_a_page_has_a_card_for_every_token_and_asks_for_nothing(completion: dk.Completion) -> None:
    page = completion.to_html()
    tags = Tags(page)
    assert tags.stray == [] and tags.open == []
    names = [name for name, _ in tags.seen]
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert re.findall(r"https?:|url\(|@import", page) == []
    tokens = [attributes for _, attributes in tags.seen if "dk-token " in (attributes.get("class") or "")]
    cards = {attributes["id"] for _, attributes in tags.seen if attributes.get("role") == "tooltip"}
    assert len(tokens) == len(cards) == len(completion.token_ids)
    assert all(token["tabindex"] == "0" and token["aria-describedby"] in cards for token in tokens)
    assert "prefers-color-scheme: dark" in page


def test_a_notebook_shows_the_same_without_the_styles_of_a_page(completion: dk.Completion) -> None:
    view = completion._repr_html_()
    assert view is not None and Tags(view).stray == []
    assert view.count('role="tooltip"') == len(completion.token_ids)
    ends = [attributes["id"] for _, attributes in Tags(view + str(completion._repr_html_())).seen if "id" in attributes]
    assert len(ends) == len(set(ends)) == 2 * len(completion.token_ids)  # the same completion, shown again
    selectors = re.findall(r"^([^\s@}][^{]*)\{", re.sub(r"/\*.*?\*/", "", view.split("</style>")[0]), re.MULTILINE)
    assert selectors and [one for one in selectors if not one.startswith((".dk-", "<style>"))] == []


def test_a_frame_is_as_high_as_what_is_in_it() -> None:
    """Room for a card is made while one is shown."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", sheet("decodekit.html_pages", "tokens.css"))
    high = [selector for selector, body in rules if re.search(r"(min-height|padding-bottom): \d\drem", body)]
    assert len(high) == 2 and all(one.count(":has(.dk-token:") == one.count(".dk-text") == 2 for one in high)


def test_texts_are_escaped_and_told_apart() -> None:
    evil = TokenOption(7, '<script>alert("x")</script>\n', math.log(0.5), True)
    no = TokenOption(8, " &amp;", math.log(0.25), False)
    trace = TokenTrace(evil, "draft rejected", "masked", 1_234, 0.25, 1.0, (evil, no), no)
    stats = dk.LLM.load("tiny").generate("a", max_new_tokens=1).stats
    page = token_page([Text((trace,), stats=stats), Text((), score=-0.5, stats=stats)])
    assert "<script" not in page and "&lt;script&gt;" in page
    for said in ("␣&amp;amp;", "1,234 tokens, 25.0% of the probability", "p 0.500, entropy 1 nats",
                 "Struck out", "Text 2 of 2, score -0.5", "no tokens"):  # fmt: skip
        assert said in page, said
    asked = replace(trace, check="asked", num_allowed=None, mass=None, source="model", refused=None)
    assert "One question to the constraint" in token_view(Text((asked,), stats=stats))


def test_shades_are_darker_for_less_likely_tokens() -> None:
    assert [shade(math.log(p)) for p in (1.0, 0.5, 0.1, 0.01, 1e-9)] == ["0", "0.15", "0.50", "1.00", "1.00"]
    assert shade(None) == "0" and shade(-math.inf) == "1.00"


# --- what a page may do -----------------------------------------------------------------------------------------------


def test_every_page_may_do_nothing_and_needs_nothing(tmp_path: Path) -> None:
    """One policy for all pages, and no page has what it forbids: scripts, handlers, pictures, frames, other files."""
    path = write_jsonl(tmp_path / "in.jsonl", [{"id": "a<script>", "text": "one two"}])
    run_job(tmp_path / "out", [path], FakeLLM(), vocabulary=BYTES)
    write_report(tmp_path / "report.html", [JobView.read(tmp_path / "out")], title="t")
    llm = dk.LLM.load("tiny")
    dk.compare(llm, ["greedy"], load_task("copying").first(1), seeds=(0,)).to_html(tmp_path / "bench.html")
    (tmp_path / "tokens.html").write_text(llm.generate("a b", trace=True, max_new_tokens=3).to_html(), encoding="utf-8")
    for name in ("report", "bench", "tokens"):
        html = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        tags = Tags(html)
        head = [attributes for tag, attributes in tags.seen[:4] if tag == "meta"]
        assert {"http-equiv": "Content-Security-Policy", "content": POLICY} in head, name
        assert not {tag for tag, _ in tags.seen} & FORBIDDEN
        for _, attributes in tags.seen:
            assert not [one for one in attributes if one.startswith("on") or one in ("src", "action", "srcset")]
            assert (attributes.get("href") or "#").startswith("#")
            assert "url(" not in (attributes.get("style") or "")
        assert "@import" not in html and "url(" not in html
    assert POLICY.startswith("default-src 'none'") and "script" not in POLICY


FORBIDDEN = {"script", "img", "iframe", "object", "embed", "link", "base", "form", "video", "audio", "image"}
