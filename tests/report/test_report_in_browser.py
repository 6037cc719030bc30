"""The page in a real browser, without a network: every plot is drawn, nothing is complained of, and no text of a record runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import stretched
from tests.report.summaries import EMPTY, HOSTILE, NOW, OPEN, ORDINARY
from uow.report.sections import report_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium or Chrome on the path; the page's text is tested without one"
    ),
    pytest.mark.timeout(300),
]


class Rendered:
    """The page as it is after its scripts have run."""

    def __init__(self, html: str, folder: Path) -> None:
        assert BROWSER is not None
        page = folder / "report.html"
        page.write_text(html, encoding="utf-8")
        options = ["--headless", "--disable-gpu", "--window-size=1280,2400", f"--user-data-dir={folder / 'profile'}"]
        options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--enable-logging=stderr"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to run as root with it
        done = subprocess.run(
            [BROWSER, *options, "--dump-dom", page.as_uri()],
            capture_output=True,
            text=True,
            timeout=stretched(240),
            check=True,
        )
        self.dom = re.sub("<script>.*?</script>", "", done.stdout, flags=re.DOTALL)
        self.complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.title = re.findall("<title>(.*?)</title>", self.dom)[0]

    def plots(self) -> int:
        """The number of plots that are drawn."""
        return len(re.findall(r'<div class="plot js-plotly-plot"', self.dom))

    def marks(self) -> int:
        """The number of bars and lines in them."""
        return len(re.findall(r'<g class="point">|<path class="js-line"', self.dom))


def test_every_plot_is_drawn(tmp_path: Path) -> None:
    page = Rendered(report_page(ORDINARY, NOW, OPEN), tmp_path)
    assert page.complaints == []
    assert page.plots() == 9
    assert page.marks() > 30
    for text in ("gadget-planet of megazon", "minutes waited", "DuplicateSequenceNumberError", "2025"):
        assert re.search(rf">[^<]*{text}[^<]*</(text|tspan)>", page.dom), text


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    page = Rendered(report_page(HOSTILE, NOW), tmp_path)
    assert page.complaints == [], "a script that wanted to run would be told here, by the content security policy"
    assert page.plots() == 8
    assert page.title.startswith("Units of work: &lt;script&gt;")
    assert not re.search("<(img|a|b|script[^>]*src)[ >]", page.dom)
    assert re.search(r">\$\\alpha\$</text>", page.dom)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in re.sub("<[^>]*>", "", page.dom)


def test_no_data_no_plots_and_no_complaint(tmp_path: Path) -> None:
    page = Rendered(report_page(EMPTY, NOW), tmp_path)
    assert (page.plots(), page.complaints) == (0, [])
    assert "No unit is in the tables." in page.dom
