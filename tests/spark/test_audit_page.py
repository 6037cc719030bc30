"""The report of an audit as a page: no Spark and no broker."""

from __future__ import annotations

from html.parser import HTMLParser

from uow.cli.audit_page import page
from uow.spark_sink.audit import AuditReport, Difference
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.recompute import Fate
from uow.terminal.printing import moment_text, printable

CLEAN = AuditReport(
    "books",
    {0: {Fate.DELIVERED: 3, Fate.OPEN: 1}},
    {Fate.DELIVERED: 3},
    {"complete": 1},
    left_out=0,
    unread=0,
    totals={},
)
WRONG = AuditReport(
    "<b>films</b>",
    {0: {Fate.DELIVERED: 3}},
    {Fate.DELIVERED: 2},
    {"complete": 1},
    left_out=4,
    unread=5,
    totals={DifferenceKind.MISSING: 1},
    since={0: 7},
    until={0: 10},
    earlier=0,
    routed={"stock.events": 12},
    note="because <so>",
    examples=(
        Difference(DifferenceKind.MISSING, "components", "<script>\x1b\u202e", "films.components/0/1", "no row & more"),
    ),
)


class Reader(HTMLParser):
    """Collects the rows of tables, the text, and names of elements and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.text = ""
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_page_tells_the_report_and_needs_no_other_file_w216() -> None:
    reader = Reader()
    reader.feed(page([CLEAN, WRONG], "today"))
    assert reader.open == []
    assert reader.attributes <= {"lang", "charset", "class", "scope"}
    assert not {"script", "link", "img", "iframe", "b"} & set(reader.elements)
    assert ["open", "1", ""] in reader.rows
    assert ["delivered", "3", "2"] in reader.rows
    assert ["missing", "1"] in reader.rows
    assert [
        "missing",
        "components",
        printable("<script>\x1b\u202e"),
        "films.components/0/1",
        "no row & more",
    ] in reader.rows
    assert "<b>films</b> differences found" in reader.text
    assert "books no difference" in reader.text
    assert "4 ids could not be judged" in reader.text
    assert "5 records come after" in reader.text
    assert "range: everything up to the offsets" in reader.text
    assert f"since the audit of {moment_text(0)}, from the offsets 0: 7 to 0: 10" in reader.text
    assert "12 records of stock.events; each should be a component" in reader.text
    assert "because <so>" in reader.text
