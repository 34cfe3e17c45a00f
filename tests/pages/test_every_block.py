"""No block of code in the pages is left to itself: it is executed, a named test looks at it, or it is prose.

Executed are those that tests/pages/snippets.py knows, on the pages pytest collects. To add another kind of block, teach
it there, or name the test below that takes it from the page.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, Block, blocks, every_block, pages
from tests.pages.snippets import SYBILS

# (page, how the block starts) -> the test that runs or compares it.
TESTED = {
    ("CONTRIBUTING.md", "from samekey.testing import AsyncStoreSuite"): (
        "tests/pages/test_contributing.py::test_the_example_of_a_stores_tests_runs"
    ),
    ("CONTRIBUTING.md", "[project.entry-points"): (
        "tests/pages/test_contributing.py::test_a_store_of_another_distribution_is_found_as_the_page_registers_it"
    ),
    ("CONTRIBUTING.md", "def test_a_redelivered_message"): (
        "tests/pages/test_contributing.py::test_the_example_of_an_adapters_test_runs"
    ),
    ("CONTRIBUTING.md", "python3 -m venv"): "tests/pages/test_contributing.py::test_the_lines_of_the_venv_are_right",
    ("CONTRIBUTING.md", "src/samekey/"): "tests/pages/test_contributing.py::test_the_layout_is_the_one_there_is",
    ("docs/redis.md", "ACL SETUSER"): "tests/servers/redis/test_connecting.py::test_a_user_with_few_rights_is_enough",
    ("docs/states.md", "stateDiagram-v2"): (
        "tests/pages/test_guarantees.py::test_the_diagram_of_the_states_is_made_from_next"
    ),
}

# (page, how the block starts) -> why nothing can execute it.
PROSE = {
    ("docs/atomic.md", "SAVEPOINT claim"): "the order of the steps, told in words",
    ("docs/capacity.md", "disk     ="): "arithmetic for a person",
    ("docs/decisions/0002-not-a-unique-business-entity.md", "caller A"): "two callers side by side",
    ("docs/decisions/0003-not-select-first.md", "caller A"): "two callers side by side",
}

BLOCKS = every_block()


def listed(block: Block, table: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    return [(page, start) for page, start in table if page == block.page and block.text.lstrip().startswith(start)]


@pytest.fixture(scope="module")
def executed() -> dict[str, list[int]]:
    """Page -> the lines at which something of it is run, as pytest collects it."""
    collected = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    found: dict[str, list[int]] = {}
    for page in pages():
        name = str(page.relative_to(ROOT))
        if any(page.is_relative_to(ROOT / path) for path in collected):
            documents = [sybil.parse(page) for sybil in SYBILS if sybil.should_parse(page)]
            found[name] = [example.line for document in documents for example in document.examples()]
    return found


def test_every_block_is_executed_or_in_exactly_one_of_the_lists(executed: dict[str, list[int]]):
    def ways(block: Block) -> int:
        runs = any(block.line - 1 <= line <= block.last_line for line in executed.get(block.page, ()))
        return runs + len(listed(block, TESTED)) + len(listed(block, PROSE))

    assert len(BLOCKS) > 100
    assert [str(block) for block in BLOCKS if ways(block) != 1] == []


def test_the_lists_name_only_what_is_there():
    def found(entry: tuple[str, str]) -> int:
        return sum(entry in [*listed(block, TESTED), *listed(block, PROSE)] for block in BLOCKS)

    assert [entry for entry in (*TESTED, *PROSE) if found(entry) != 1] == []


def test_every_named_test_is_there_and_takes_the_block_from_its_page():
    wrong = []
    for (page, _), test in TESTED.items():
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        if not re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE):
            wrong.append(f"{test}: there is no such test")
        if Path(page).name not in text and "states_diagram" not in text:
            wrong.append(f"{test}: does not read {page}")

    assert wrong == []


def test_nothing_is_skipped_on_a_page():
    """A block that cannot run is listed above, with its reason; no page hushes one by itself."""
    hushed = [str(page) for page in pages() if re.search(r"<!--+\s*;?\s*skip", page.read_text(encoding="utf-8"))]

    assert hushed == []


def test_no_code_hides_in_html():
    assert [str(page) for page in pages() if "<pre" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("written", ["```\na\n```", "~~~ sh\na\n~~~", "- ```sql\n  a\n  ```", "x\n\n    a\n\ny"])
def test_a_block_is_found_however_it_is_written(written: str):
    assert [block.text.strip() for block in blocks(written)] == ["a"]
