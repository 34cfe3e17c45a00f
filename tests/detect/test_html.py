"""The HTML report: one file, every finding, no value of a row, and nothing that a name can break out of."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from samekey.ops import Ops
from samekey.stores.sqlite import SqliteStore
from tests.detect.conftest import plant_sqlite
from tests.detect.test_command import run
from tests.detect.test_scan_command import RULES, TABLE
from tests.detect.test_scan_command import run as run_scan


class Checked(HTMLParser):
    """Every tag is closed, and nothing comes from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "link", "iframe")
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_an_audit_as_a_page(sqlite_lab, tmp_path):
    assert run(sqlite_lab, "--confirm", "--html", str(tmp_path / "report.html")).exit_code == 1
    page = (tmp_path / "report.html").read_text()
    checked = Checked(page)

    assert checked.open == []
    assert "Findings by table" in page
    assert {"SK101", "SK107", "SK301"} <= set(re.findall(r"SK\d{3}", page))
    assert "order 1" not in page.lower()
    assert run(sqlite_lab, "--html", str(tmp_path / "no" / "report.html")).exit_code == 2


def test_a_scan_as_a_page(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    url = plant_sqlite(tmp_path / "shop.db", TABLE)
    assert run_scan(url, tmp_path, "--html", str(tmp_path / "report.html")).exit_code == 1
    page = (tmp_path / "report.html").read_text()

    assert Checked(page).open == []
    assert all(title in page for title in ("Duplicates by day", "Distance to the row before", "By source"))
    assert "2026-01-01" in page
    assert "req-1" not in page


def test_a_name_cannot_break_out_of_the_page(tmp_path):
    url = plant_sqlite(tmp_path / "odd.db", 'CREATE TABLE "<script>alert(1)</script>" (a INT)')
    run(url, "--html", str(tmp_path / "report.html"))

    assert Checked((tmp_path / "report.html").read_text()).open == []


def test_findings_of_an_audit_go_to_the_store(sqlite_lab, tmp_path):
    SqliteStore(tmp_path / "keys.db").close()
    url = f"sqlite:///{tmp_path}/keys.db"
    for _ in range(2):
        run(sqlite_lab, "--confirm", "--store", url)
    store = SqliteStore(tmp_path / "keys.db")
    found = Ops(store).findings.list(kind="schema", limit=1000)
    store.close()

    assert len(found) == len({finding.id for finding in found}) > 5
    assert {finding.severity for finding in found} <= {"low", "medium", "high", "critical"}
    assert any(finding.title.startswith("SK101 bare") for finding in found)
