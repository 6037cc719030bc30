"""The page of `uow report`: what it says, and that nothing of a record's text can do more than be read."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from tests.report.summaries import EMPTY, HOSTILE, HOSTILE_TEXTS, NOW, OPEN, ORDINARY
from uow.report import charts
from uow.report.page import Section, html_page
from uow.report.sections import report_page
from uow.spark_sink.summary import Counted, Summary

NAMES = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "h1",
    "h2",
    "p",
    "div",
    "main",
    "section",
    "strong",
} | {
    *("span", "small", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "script"),
}


class Page(HTMLParser):
    """A page as a browser reads it: elements, attributes, texts, and the content of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self._within = ""
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())
        self.figures = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts.append(data)
        elif self._within != "style":
            self.texts.append(data)


def test_the_page_answers_each_question_in_words_and_in_a_plot() -> None:
    page = Page(report_page(ORDINARY, NOW, OPEN))
    for sentence in (
        "Units of work: megazon, payments",
        "1,250 units",
        "half within 1.0 s, 90 of 100 within 5.0 s, the slowest 2 min.",
        "Longest: 2 of megazon, 10 min over 300 units.",
        "Longest: gadget-planet of megazon, 10 min over 300 units.",
        "most: DuplicateSequenceNumberError, 7 of 12.",
        "most: 1, 4 of 9 groups.",
        "2 groups are open; the oldest for 2.0 h.",
        "most: Avro bytes that are no unit, 2 of 2.",
    ):
        assert sentence in page.text
    kinds = [{trace["type"] for trace in figure["data"]} for figure in page.figures.values()]
    assert kinds == [{"scatter"}, {"scatter"}, *[{"bar"}] * 6, {"bar"}]
    late = page.figures["plot-3"]
    assert [*late["data"][0]["x"]] == pytest.approx([10, 5, 2.5])
    assert late["layout"]["xaxis"]["title"]["text"] == "minutes waited"
    assert late["layout"]["yaxis"]["ticktext"] == ["2 of megazon", "1 of payments", "others"]


def test_nothing_is_loaded_and_only_the_two_scripts_of_the_page_may_run() -> None:
    """Offline, and safe even if a text were not escaped."""
    page = Page(report_page(ORDINARY, NOW, OPEN))
    assert page.elements <= NAMES
    assert not {"src", "href", "srcset", "action", "data"} & page.attributes
    assert not {name for name in page.attributes if name.startswith("on")}
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in page.scripts[1:]]
    assert page.policy.split("; ")[:2] == [
        "default-src 'none'",
        f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}'",
    ]
    assert len(page.scripts) == 3


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    """Ids, classes, producers, reasons, destinations: anybody may write them."""
    html = report_page(HOSTILE, NOW)
    page = Page(html)
    assert page.elements <= NAMES
    assert len(page.scripts) == 3
    assert not {name for name in page.attributes if name.startswith("on")}
    assert "<script>alert(1)</script>" in page.text, "escaped, it is a text like any other"
    own = html.replace(page.scripts[1], "")
    for text in HOSTILE_TEXTS:
        assert text not in own
    assert own.isascii() or "\0" not in own
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", own)
    assert max(map(len, page.texts)) < 2_000, "a megabyte is cut"
    for figure in page.figures.values():
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', json.dumps(figure)):
            assert not re.search(r"<(?!br>|extra>|/extra>)", text), "Plotly reads tags in its texts"


def test_no_text_of_a_figure_ends_the_script_that_it_stands_in() -> None:
    """Even if it were not escaped for Plotly."""
    figure = charts.bars(["name"], [1], "unit", ["note"]).update_layout(title="</script><b>bold</b><script>")
    page = Page(html_page("title", [], [], [Section("question", "answer", figure)]))
    assert page.elements <= NAMES
    assert len(page.scripts) == 3
    assert page.figures["plot-0"]["layout"]["title"]["text"] == "</script><b>bold</b><script>"


def test_names_that_look_the_same_shortened_have_bars_of_their_own() -> None:
    long = "x" * 100
    summary = replace(ORDINARY, refusals=(Counted(f"{long}1", "a", 2), Counted(f"{long}2", "a", 1)))
    bars = Page(report_page(summary, NOW)).figures["plot-5"]
    assert bars["data"][0]["y"] == [0, 1]
    assert len({*bars["layout"]["yaxis"]["ticktext"]}) == 1


def test_empty_tables_give_a_page_that_says_so() -> None:
    page = Page(report_page(EMPTY, NOW, {"megazon": []}))
    assert page.figures == {}
    for sentence in ("No unit is in the tables.", "0 units", "No component was refused.", "No group is open."):
        assert sentence in page.text


def test_without_a_broker_the_page_claims_nothing_about_open_groups() -> None:
    page = Page(report_page(ORDINARY, NOW))
    assert "The tables cannot tell" in page.text
    assert "oldest open group" not in page.text


def test_many_destinations_are_named_in_part() -> None:
    many = tuple(replace(ORDINARY.totals[0], destination=f"d{number}") for number in range(30))
    page = Page(report_page(Summary(**_fields(ORDINARY) | {"totals": many}), NOW))
    assert "d4 and 25 more" in page.text
    assert "12 of 30, those with the most units." in page.text


def _fields(summary: Summary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in summary.__slots__}


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01 00:00:00.000"),
        (NOW, "2025-10-11 10:53:20.000"),
        (2**62, "9999-12-31 23:59:59.000"),
        (-(2**62), "0001-01-01 00:00:00.000"),
    ],
)
def test_a_moment_has_a_text_however_far_it_is(ms: int, text: str) -> None:
    assert charts.moment(ms) == text
