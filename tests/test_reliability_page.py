"""The page of known failures: every test that it names exists, and every row names one."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_named_test_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    for file, name in named:
        assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_every_failure_has_a_test():
    table = PAGE.partition("## Failures that people met elsewhere")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and not row.startswith(("| ---", "| **"))]
    assert len(rows) == 1 + 40
    assert all("::test_" in row for row in rows[1:])
